/* update.c -- from the gradients of all micro-batches to the next weights (see strategies.h).
 *
 * Hierarchy: each micro-batch was reduced over fsdp; here the shard is summed once over ddp, so every
 * replica holds the same bits, and clipping needs a sum over fsdp only. For expert-parallel experts, whose
 * shards are the last ones, these are efsdp and eddp.
 */
#include "strategies/fsdp_impl.h"

#include <math.h>
#include <string.h>

/* Gradients on the host: part by part on the device. */
static cr_status sum_from_host(cr_fsdp *f, cr_group *group, cr_mem *grad, size_t num, cr_err *err)
{
    size_t max = (size_t)f->part_elems;

    for (size_t first = 0; first < num; first += max) {
        size_t n = num - first < max ? num - first : max, bytes = n * sizeof(float);
        cr_mem *host = cr_at(CR_F32, grad, (int64_t)first);
        CR_TRY(cr_upload_async(f->dev, f->part, host, bytes, err));
        CR_TRY(cr_all_reduce_f32(group, "gradients", f->part, n, err));
        CR_TRY(cr_download_async(f->dev, host, f->part, bytes, err));
        cri_count(f, CRI_ALL_REDUCES, bytes);
    }
    return cr_device_sync(f->dev, err);
}

static cr_status sum_replicas(cr_fsdp *f, cr_axis axis, cr_mem *grad, size_t num, cr_err *err)
{
    cr_group *group = f->mesh->group[axis];

    if (cr_mesh_axis_ranks(&f->mesh->shape, axis) == 1 || num == 0) return CR_OK;
    if (f->args.is_offloaded) return sum_from_host(f, group, grad, num, err);
    CR_TRY(cr_all_reduce_f32(group, "gradients", grad, num, err));
    cri_count(f, CRI_ALL_REDUCES, num * sizeof(float));
    return CR_OK;
}

/* Shards without a gradient: no module of theirs has run backward. */
static cr_status zero_others(cr_fsdp *f, cr_err *err)
{
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = f->state[i].flat[0].flat;
        if (f->state[i].has_grad || flat->num_params == 0) continue;
        CR_TRY(cr_zero(cri_home(f), cr_at(CR_F32, f->grad, flat->first.elems),
                       (size_t)flat->shard_elems * sizeof(float), err));
    }
    return CR_OK;
}

/* The sum over all ranks, unscaled, is in the shards. */
static cr_status complete_grads(cr_fsdp *f, cr_err *err)
{
    size_t num = (size_t)f->units.trained_shard.elems,
           common = (size_t)f->units.common_trained.elems;

    if (f->is_grad_complete) return CR_OK;
    CR_TRY(cri_reduce_whole(f, err));
    if (f->args.is_offloaded) CR_TRY(cr_device_sync(cri_stream(f, CR_STREAM_COPY), err));
    CR_TRY(zero_others(f, err));
    CR_TRY(sum_replicas(f, CR_AXIS_DDP, f->grad, common, err));
    CR_TRY(
        sum_replicas(f, CR_AXIS_EDDP, cr_at(CR_F32, f->grad, (int64_t)common), num - common, err));
    if (f->loss_scale > 0)
        CR_TRY(
            cr_scale(cri_home(f), &(cr_scale_args){f->grad, (float)(1 / f->loss_scale), num}, err));
    f->is_grad_complete = true;
    return CR_OK;
}

static cr_status grad_norm(cr_fsdp *f, double *out, cr_err *err)
{
    size_t num = (size_t)f->units.trained_shard.elems,
           common = (size_t)f->units.common_trained.elems;
    double sum = 0, of_experts = 0;

    CR_TRY(cr_square_sum(cri_home(f), &(cr_square_sum_args){f->grad, common, &sum}, err));
    CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_FSDP], "grad_norm", CR_OP_SUM, &sum, 1, err));
    if (f->mesh->shape.num_ep > 1) {
        CR_TRY(cr_square_sum(cri_home(f),
                             &(cr_square_sum_args){cr_at(CR_F32, f->grad, (int64_t)common),
                                                   num - common, &of_experts},
                             err));
        CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "grad_norm of experts", CR_OP_SUM,
                                 &of_experts, 1, err));
        sum += of_experts / f->mesh->shape.num_eddp; /* all of them have the same */
    }
    *out = sqrt(sum);
    return CR_OK;
}

/* ---- AdamW ---- */

/* Masters and moments in another dtype, from element `at` of the shards on (seconds: of second moments): float32 for a block at a time, rounded back. */
static cr_status update_rounded(cr_fsdp *f, const cr_adamw_args *whole, int64_t at, int64_t seconds,
                                cr_err *err)
{
    enum { BLOCK = 1 << 16 };
    cr_dtype dtype = f->args.master_dtype;
    cr_device *dev = cri_home(f);
    cr_stack *stack = f->args.is_offloaded ? f->host_scratch : f->scratch;
    cr_mem *of[3] = {f->master, f->m, f->v}, *memory, *x[3];
    size_t mark = cr_stack_mark(stack);

    CR_TRY(cr_stack_push(stack, 3 * BLOCK * sizeof(float), &memory, err));
    for (int k = 0; k < 3; k++)
        x[k] = cr_at(CR_F32, memory, k * BLOCK);
    for (size_t first = 0; first < whole->num; first += BLOCK) {
        cr_adamw_args a = *whole;
        const int64_t elem = at + (int64_t)first, second = seconds + (int64_t)first,
                      elems[3] = {elem, elem, second};
        a.param = x[0], a.m = x[1], a.v = x[2];
        a.grad = cr_at_const(CR_F32, f->grad, elem);
        a.num = whole->num - first < BLOCK ? whole->num - first : BLOCK;
        for (int k = 0; k < 3; k++)
            CR_TRY(cr_cast(
                dev, &(cr_cast_args){CR_F32, x[k], dtype, cr_at(dtype, of[k], elems[k]), a.num},
                err));
        CR_TRY(cr_adamw(dev, &a, err));
        for (int k = 0; k < 3; k++)
            CR_TRY(cr_cast(
                dev, &(cr_cast_args){dtype, cr_at(dtype, of[k], elems[k]), CR_F32, x[k], a.num},
                err));
    }
    cr_stack_release(stack, mark);
    return CR_OK;
}

/* num elements of the shards from `at` on, of second moments from `seconds` on. rounded: where they are kept in param_dtype, too, or NULL. */
static cr_status update_range(cr_fsdp *f, const cr_adamw_args *how, int64_t at, int64_t seconds,
                              size_t num, cr_mem *rounded, cr_err *err)
{
    cr_adamw_args a = *how;

    a.num = num;
    if (f->args.master_dtype != CR_F32) return update_rounded(f, &a, at, seconds, err);
    a.param = cr_at(CR_F32, f->master, at);
    a.m = cr_at(CR_F32, f->m, at);
    a.v = cr_at(CR_F32, f->v, seconds);
    a.grad = cr_at_const(CR_F32, f->grad, at);
    a.rounded = rounded;
    a.rounded_dtype = f->args.param_dtype;
    return cr_adamw(cri_home(f), &a, err);
}

/* What this rank has of each parameter, with its own rate and decay. */
static cr_status update_params(cr_fsdp *f, const cri_flat *s, const cr_adamw_args *how, cr_err *err)
{
    const cr_flat *flat = s->flat;
    cr_mem *rounded = cri_weights(f, s);
    int64_t begin, end, at;

    for (size_t k = 0; k < flat->num_params; k++) {
        const size_t index = flat->params[k]->index;
        const cr_param_choice *choice = &f->choices[index];
        cr_adamw_args a = *how;
        if (choice->is_muon || !cri_shard_range(flat, k, cri_shard_of(f, flat), &begin, &end, &at))
            continue;
        a.lr *= choice->lr_scale;
        a.weight_decay = choice->weight_decay;
        CR_TRY(update_range(f, &a, flat->first.elems + at, f->seconds[index], (size_t)(end - begin),
                            rounded ? cr_at(f->args.param_dtype, rounded, at) : NULL, err));
    }
    return CR_OK;
}

/* All at once; flat by flat, where some are kept in param_dtype, which AdamW writes; or parameter by parameter, where they
 * differ. */
static cr_status update_all(cr_fsdp *f, const cr_adamw_args *how, cr_err *err)
{
    const bool is_same = f->args.optimizer.num_rules == 0 && !f->args.optimizer.muon.is_on;

    if (is_same && !f->weights)
        return update_range(f, how, 0, 0, (size_t)f->units.trained_shard.elems, NULL, err);
    for (size_t i = 0; i < f->units.num; i++) {
        const cri_flat *s = &f->state[i].flat[0];
        const int64_t first = s->flat->first.elems;
        CR_TRY(is_same ? update_range(f, how, first, first, (size_t)s->flat->shard_elems,
                                      cri_weights(f, s), err)
                       : update_params(f, s, how, err));
        if (f->args.optimizer.muon.is_on)
            CR_TRY(cri_muon_update(f, s, how->lr, how->grad_scale, err));
    }
    f->has_old_weights = false;
    return CR_OK;
}

static cr_status adamw(cr_fsdp *f, double lr, double norm, cr_err *err)
{
    const cr_fsdp_args *o = &f->args;
    cr_adamw_args a = {.lr = lr,
                       .beta1 = o->beta1,
                       .beta2 = o->beta2,
                       .eps = o->eps,
                       .weight_decay = o->weight_decay,
                       .grad_scale = 1,
                       .t = f->num_updates + 1};

    if (o->max_grad_norm > 0) a.grad_scale = fmin(1, o->max_grad_norm / (norm + 1e-6));
    cri_states_changed(f);
    CR_TRY(update_all(f, &a, err));
    f->num_updates++;
    return CR_OK;
}

/* Halved after an overflow, doubled after a number of good updates. */
static void adapt_scale(cr_fsdp *f, bool is_overflow)
{
    if (f->loss_scale <= 0) return;
    if (is_overflow) {
        f->loss_scale = fmax(f->loss_scale / 2, 1);
        f->num_good_updates = 0;
    } else if (++f->num_good_updates >= f->args.loss_scale_interval) {
        f->loss_scale = fmin(f->loss_scale * 2, 0x1p40);
        f->num_good_updates = 0;
    }
}

cr_status cr_fsdp_update(cr_fsdp *f, double lr, cr_update *out, cr_err *err)
{
    *out = (cr_update){0};
    CR_TRY(cri_need_states(
        f, CR_STATE_PARAMS | CR_STATE_GRADS | CR_STATE_MOMENTS | CR_STATE_BUFFERS, "update", err));
    CR_TRY(complete_grads(f, err));
    CR_TRY(grad_norm(f, &out->grad_norm, err));
    out->is_skipped =
        !isfinite(out->grad_norm); /* the same number on every rank: all skip, or none */
    if (!out->is_skipped) CR_TRY(adamw(f, lr, out->grad_norm, err));
    adapt_scale(f, out->is_skipped);
    out->loss_scale = f->loss_scale;
    CR_TRY(cri_reshard_all(f, err));
    f->is_grad_complete = f->has_grad = false;
    for (size_t i = 0; i < f->units.num; i++)
        f->state[i].has_grad = false;
    return CR_OK;
}

/* ---- the full gradient, for `croll grad` ---- */

typedef struct visitor {
    cr_grad_visit visit;
    void *ctx;
    cr_buf mine, all; /* of each rank: the first element, and gradients from there on */
    size_t *offsets;  /* [ranks + 1] */
    float *whole;     /* rank 0: [elements of the largest parameter] */
} visitor;

/* r: what this rank says of the parameter, or NULL. */
static cr_status visit_param(cr_fsdp *f, visitor *v, const cr_param *p, const cr_weight_range *r,
                             cr_err *err)
{
    size_t num_bytes = r ? (size_t)(r->end - r->begin) * sizeof(float) : 0;

    cr_buf_clear(&v->mine);
    if (r) {
        cr_buf_add(&v->mine, &r->begin, sizeof r->begin);
        cr_buf_reserve(&v->mine, v->mine.num_bytes + num_bytes);
        CR_TRY(cr_download(cri_home(f), v->mine.data + v->mine.num_bytes,
                           cr_at_const(CR_F32, f->grad, r->at / r->elem_bytes), num_bytes, err));
        v->mine.num_bytes += num_bytes;
    }
    CR_TRY(cr_all_gather_bytes(f->mesh->group[CR_AXIS_ALL], p->name, v->mine.data,
                               v->mine.num_bytes, &v->all, v->offsets, err));
    if (f->mesh->rank > 0) return CR_OK;
    for (int k = 0; k < f->mesh->shape.num_ranks; k++) {
        const char *part = v->all.data + v->offsets[k];
        int64_t begin;
        if (v->offsets[k + 1] == v->offsets[k]) continue;
        memcpy(&begin, part, sizeof begin);
        memcpy(v->whole + begin, part + sizeof begin,
               v->offsets[k + 1] - v->offsets[k] - sizeof begin);
    }
    return v->visit(v->ctx, p, v->whole, err);
}

/* Parameter by parameter, from the first of the ranks that have the same. */
static cr_status visit_all(cr_fsdp *f, visitor *v, cr_err *err)
{
    const cr_weight_range **mine = CR_NEW_ARRAY(const cr_weight_range *, f->model->num_params);
    cr_weight_map map = {0};

    cri_map_kept(f, /*is_trained=*/true, /*is_written=*/true, &map);
    for (size_t i = 0; i < map.num; i++)
        mine[map.range[i].param] = &map.range[i];
    for (size_t i = 0; i < f->model->num_params && err->status == CR_OK; i++)
        if (f->model->params[i]->is_trainable)
            cr_note(visit_param(f, v, f->model->params[i], mine[i], err));
    cr_weight_map_free(&map);
    cr_free(mine);
    return err->status;
}

cr_status cr_fsdp_visit_grads(cr_fsdp *f, cr_grad_visit visit, void *ctx, double *norm, cr_err *err)
{
    visitor v = {
        .visit = visit, .ctx = ctx, .offsets = CR_NEW_ARRAY(size_t, f->mesh->shape.num_ranks + 1)};
    int64_t max = 0;

    for (size_t i = 0; i < f->model->num_params; i++)
        max = cr_max64(max, f->model->params[i]->num_elems);
    v.whole = CR_NEW_ARRAY(float, max);
    CR_TRY_GOTO(out, cri_need_states(f, CR_STATE_GRADS | CR_STATE_BUFFERS, "gradients", err));
    CR_TRY_GOTO(out, complete_grads(f, err));
    CR_TRY_GOTO(out, grad_norm(f, norm, err));
    CR_TRY_GOTO(out, visit_all(f, &v, err));
out:
    cr_buf_free(&v.all);
    cr_buf_free(&v.mine);
    cr_free(v.whole);
    cr_free(v.offsets);
    return err->status;
}
