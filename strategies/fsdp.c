/* fsdp.c -- shards, unshard and reshard around modules, gradients, the update (see strategies.h).
 *
 * Gathered buffers are slots of two gather objects: the root's, which stays unsharded until the
 * weights change, and the units', of which nesting depth + 2 are alive (the one that runs and the one
 * that comes next). Every rank takes slots in the same order because every rank meets the same hooks
 * in the same order; a rank without a batch walks the tree and meets them, too.
 */
#include "strategies/fsdp_impl.h"

#include <math.h>
#include <string.h>

/* ---- shards ---- */

bool cri_shard_range(const cr_flat *flat, size_t i, int shard, int64_t *begin, int64_t *end,
                     int64_t *at)
{
    int64_t first = (int64_t)shard * flat->shard_elems, last = first + flat->shard_elems;
    int64_t p0 = flat->offset[i], p1 = p0 + flat->params[i]->num_elems;
    int64_t a = p0 > first ? p0 : first, b = p1 < last ? p1 : last;

    if (a >= b) return false;
    *begin = a - p0;
    *end = b - p0;
    *at = a - first;
    return true;
}

static cr_status allocate(cr_fsdp *f, size_t num_bytes, void **out, cr_err *err)
{
    CR_TRY(cr_device_alloc(f->dev, num_bytes, out, err));
    CR_TRY(cr_zero(f->dev, *out, num_bytes, err));
    f->stats.shard_bytes += (int64_t)num_bytes;
    return CR_OK;
}

/* Fill this rank's elements of one flat, from the source or from random numbers. */
static cr_status fill_flat(cr_fsdp *f, const cr_weights *source, const cr_flat *flat, float *master,
                           void *values, cr_err *err)
{
    enum { CHUNK = 1 << 20 };
    float *chunk =
        master ? NULL : CR_NEW_ARRAY(float, flat->shard_elems < CHUNK ? flat->shard_elems : CHUNK);
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);

    for (size_t i = 0; i < flat->num_params && err->status == CR_OK; i++) {
        int64_t begin, end, at;
        if (!cri_shard_range(flat, i, cri_rank(f), &begin, &end, &at)) continue;
        for (int64_t e = begin; e < end && err->status == CR_OK; e += CHUNK) {
            int64_t stop = end - e < CHUNK ? end : e + CHUNK,
                    where = flat->first + at + (e - begin);
            float *to = master ? master + where : chunk;
            if (!source)
                cr_param_init(f->model, flat->params[i], f->args.seed, e, stop, to);
            else if (cr_weights_read(source, flat->params[i], e, stop, to, err) != CR_OK)
                break;
            if (!master &&
                cr_cast(f->dev, f->args.param_dtype, (char *)values + (size_t)where * bytes, CR_F32,
                        chunk, (size_t)(stop - e), err) != CR_OK)
                break;
        }
    }
    cr_free(chunk);
    return err->status;
}

static cr_status materialise(cr_fsdp *f, cr_err *err)
{
    size_t trained = (size_t)f->units.trained_shard_elems,
           frozen = (size_t)f->units.frozen_shard_elems,
           bytes = cr_dtype_bytes(f->args.param_dtype);
    cr_weights *source = NULL;

    if (f->args.is_train) {
        CR_TRY(allocate(f, trained * 4, (void **)&f->master, err));
        CR_TRY(allocate(f, trained * 4, (void **)&f->grad, err));
        CR_TRY(allocate(f, trained * 4, (void **)&f->m, err));
        CR_TRY(allocate(f, trained * 4, (void **)&f->v, err));
    } else {
        CR_TRY(allocate(f, trained * bytes, &f->values, err));
    }
    CR_TRY(allocate(f, frozen * bytes, &f->frozen, err));
    if (cr_device_is_meta(f->dev)) return CR_OK;
    if (f->args.source) CR_TRY(cr_weights_open(f->args.source, f->model, &source, err));
    for (size_t i = 0; i < f->units.num && err->status == CR_OK; i++) {
        if (fill_flat(f, source, &f->units.unit[i].trained, f->master, f->values, err) != CR_OK)
            break;
        if (fill_flat(f, source, &f->units.unit[i].frozen, NULL, f->frozen, err) != CR_OK) break;
    }
    cr_weights_close(source);
    return err->status;
}

/* ---- unshard and reshard ---- */

static cr_gather *gather_of(const cri_unit *u)
{
    return u->index == 0 ? u->f->root_gather : u->f->gather;
}

static int take_slot(cri_unit *u, int kind)
{
    if (u->index == 0) return kind;
    CR_CHECK(u->f->num_free > 0, "no slot is left to unshard %s", u->unit->name);
    return u->f->free_slots[--u->f->num_free];
}

/* Where a flat's values are kept, if that is the whole flat in param_dtype already; else NULL. */
static const void *resident(const cri_unit *u, int kind)
{
    const cr_fsdp *f = u->f;
    bool is_cast = kind == 0 && f->args.is_train && f->args.param_dtype != CR_F32;
    const void *base = kind == 1 ? f->frozen : f->args.is_train ? (void *)f->master : f->values;

    if (is_cast || cr_group_num_ranks(f->mesh->group[CR_AXIS_FSDP]) > 1) return NULL;
    return (const char *)base +
           (size_t)u->flat[kind].flat->first * cr_dtype_bytes(f->args.param_dtype);
}

static bool is_gathered(const cri_unit *u, int kind)
{
    return u->flat[kind].flat->num_params > 0 && !resident(u, kind);
}

static int slots_needed(const cri_unit *u)
{
    return is_gathered(u, 0) + is_gathered(u, 1);
}

/* Cast the shard into the gathered buffer and tell the others; does not wait for theirs. */
static cr_status publish(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);

    for (int k = 0; k < 2; k++) {
        cri_flat *s = &u->flat[k];
        const cr_flat *flat = s->flat;
        void *own;
        if (!is_gathered(u, k)) continue;
        s->slot = take_slot(u, k);
        CR_TRY(cr_gather_begin(gather_of(u), s->slot, u->unit->name,
                               (size_t)flat->shard_elems * bytes, &own, err));
        if (k == 0 && f->args.is_train)
            CR_TRY(cr_cast(f->dev, f->args.param_dtype, own, CR_F32, f->master + flat->first,
                           (size_t)flat->shard_elems, err));
        else
            CR_TRY(cr_copy(f->dev, own,
                           (const char *)(k == 0 ? f->values : f->frozen) +
                               (size_t)flat->first * bytes,
                           (size_t)flat->shard_elems * bytes, err));
        CR_TRY(cr_gather_publish(gather_of(u), s->slot, err));
    }
    u->state = CRI_PUBLISHED;
    return CR_OK;
}

static cr_status unshard(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);

    if (u->state == CRI_UNSHARDED) return CR_OK;
    if (u->state == CRI_SHARDED) CR_TRY(publish(u, err));
    for (int k = 0; k < 2; k++) {
        const cr_flat *flat = u->flat[k].flat;
        const void *whole = resident(u, k);
        if (flat->num_params == 0) continue;
        if (!whole) CR_TRY(cr_gather_wait(gather_of(u), u->flat[k].slot, &whole, err));
        for (size_t i = 0; i < flat->num_params; i++) {
            cr_param *p = flat->params[i];
            p->weight.data = (const char *)whole + (size_t)flat->offset[i] * bytes;
            p->weight.dtype = f->args.param_dtype;
            p->weight.num_rows = p->shape[0];
            p->weight.num_cols = p->num_elems / p->shape[0];
            p->weight.packed = NULL;
        }
    }
    u->state = CRI_UNSHARDED;
    return CR_OK;
}

void cri_reshard(cri_unit *u)
{
    if (u->state != CRI_UNSHARDED) return;
    for (int k = 0; k < 2; k++) {
        const cr_flat *flat = u->flat[k].flat;
        for (size_t i = 0; i < flat->num_params; i++)
            flat->params[i]->weight.data = NULL;
        if (!is_gathered(u, k)) continue;
        cr_gather_release(gather_of(u), u->flat[k].slot);
        if (u->index) u->f->free_slots[u->f->num_free++] = u->flat[k].slot;
        u->flat[k].slot = -1;
    }
    u->state = CRI_SHARDED;
}

/* Publish the next unit of the recorded order, if a slot is free for it. */
static cr_status prefetch(cr_fsdp *f, cr_err *err)
{
    cri_order *o = f->order;
    cri_unit *u;

    if (o->at == o->num) return CR_OK;
    u = o->units[o->at];
    if (u->state != CRI_SHARDED || slots_needed(u) == 0 || f->num_free < slots_needed(u))
        return CR_OK;
    return publish(u, err);
}

/* A module of the unit is about to run. The order in which a pass comes to gather units is recorded,
 * and what came next the last time is gathered under the compute of this one. */
static cr_status need(cri_unit *u, cr_err *err)
{
    cri_order *o = u->f->order;

    if (u->state == CRI_UNSHARDED) return CR_OK;
    if (o->at == o->num || o->units[o->at] != u) {
        if (o->at == o->capacity) {
            size_t capacity = o->capacity ? 2 * o->capacity : 64;
            o->units =
                cr_realloc(o->units, o->capacity * sizeof *o->units, capacity * sizeof *o->units);
            o->capacity = capacity;
        }
        o->units[o->at] = u;
        o->num = o->at + 1;
    }
    o->at++;
    CR_TRY(unshard(u, err));
    return prefetch(u->f, err);
}

/* ---- gradients of a unit ---- */

static bool is_reduced(const cr_fsdp *f)
{
    return cr_group_num_ranks(f->mesh->group[CR_AXIS_FSDP]) > 1;
}

static cr_reduce *reduce_of(const cri_unit *u)
{
    return u->index == 0 ? u->f->root_reduce : u->f->reduce;
}

static cr_status begin_grads(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    const cr_flat *flat = u->flat[0].flat;
    float *grad = f->grad + flat->first;

    if (flat->num_params == 0) return CR_OK;
    if (is_reduced(f)) {
        CR_CHECK(u->index == 0 || f->num_free_reduces > 0, "no slot is left for the gradient of %s",
                 u->unit->name);
        u->reduce_slot = u->index == 0 ? 0 : f->free_reduces[--f->num_free_reduces];
        CR_TRY(cr_reduce_begin(reduce_of(u), u->reduce_slot, &grad, err));
        CR_TRY(cr_zero(f->dev, grad, (size_t)flat->padded_elems * 4, err));
    }
    for (size_t i = 0; i < flat->num_params; i++)
        flat->params[i]->grad = grad + flat->offset[i];
    return CR_OK;
}

static cr_status finish_pending(cr_fsdp *f, cr_err *err)
{
    cri_unit *u = f->pending;

    if (!u) return CR_OK;
    f->pending = NULL;
    CR_TRY(cr_reduce_finish(reduce_of(u), u->reduce_slot, f->grad + u->flat[0].flat->first,
                            CR_REDUCE_ADD, err));
    if (u->index) f->free_reduces[f->num_free_reduces++] = u->reduce_slot;
    u->reduce_slot = -1;
    return CR_OK;
}

/* Its reduce-scatter is finished when the next one is published: the others have time to come. */
static cr_status end_grads(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    const cr_flat *flat = u->flat[0].flat;

    if (flat->num_params == 0) return CR_OK;
    for (size_t i = 0; i < flat->num_params; i++)
        flat->params[i]->grad = NULL;
    if (!is_reduced(f)) return CR_OK;
    CR_TRY(cr_reduce_publish(reduce_of(u), u->reduce_slot, u->unit->name, (size_t)flat->shard_elems,
                             f->args.reduce_dtype, err));
    CR_TRY(finish_pending(f, err));
    f->pending = u;
    return CR_OK;
}

/* ---- hooks ---- */

static cr_status before(void *ctx, cr_module *module, cr_phase phase, cr_err *err)
{
    cri_unit *u = module->unit;

    (void)ctx;
    if (!u || u->index == 0) return CR_OK; /* the root is unsharded before the pass */
    CR_TRY(need(u, err));
    return phase == CR_BACKWARD ? begin_grads(u, err) : CR_OK;
}

static cr_status after(void *ctx, cr_module *module, cr_phase phase, cr_err *err)
{
    cr_fsdp *f = ctx;
    cri_unit *u = module->unit;

    if (!u || u->index == 0 || phase == CR_RECOMPUTE) return CR_OK;
    if (phase == CR_BACKWARD) CR_TRY(end_grads(u, err));
    if (f->args.reshard != CR_RESHARD_NEVER) cri_reshard(u); /* else until the weights change */
    return CR_OK;
}

/* ---- life ---- */

/* The most units below the root that are unsharded together: those of one layer (after its recompute
 * all of them are), or the last norm and the head, and units around them. */
static int most_alive(const cr_fsdp *f)
{
    int most = 1, num = 0, layer = -1;

    for (size_t i = 1; i < f->units.num; i++) {
        const cr_module *m = f->units.unit[i].module;
        int outer = 0;
        for (const cr_module *up = m->parent; up && up->parent; up = up->parent)
            outer += up->unit && up->layer < 0;
        num = m->layer == layer && strcmp(m->cls, "Embedding") != 0 ? num + 1 : 1;
        layer = m->layer;
        if (num + outer > most) most = num + outer;
    }
    return most;
}

static cr_status make_reduces(cr_fsdp *f, size_t widest, cr_err *err)
{
    cr_group *group = f->mesh->group[CR_AXIS_FSDP];
    size_t root = (size_t)f->units.unit[0].trained.padded_elems;
    int num_slots = most_alive(f) + 1; /* nested units, and the one that is being reduced */

    if (!f->args.is_train || !is_reduced(f)) return CR_OK;
    if (root) CR_TRY(cr_reduce_create(group, 1, root, &f->root_reduce, err));
    if (widest) CR_TRY(cr_reduce_create(group, num_slots, widest, &f->reduce, err));
    f->free_reduces = CR_NEW_ARRAY(int, num_slots);
    for (int i = 0; i < num_slots; i++)
        f->free_reduces[f->num_free_reduces++] = num_slots - 1 - i;
    f->stats.reduce_bytes = (int64_t)(4 * (root + (size_t)num_slots * widest));
    return CR_OK;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static cr_status make_buffers(cr_fsdp *f, cr_err *err)
{
    cr_group *group = f->mesh->group[CR_AXIS_FSDP];
    int64_t widest = 0, widest_trained = 0, root = 0;
    size_t bytes = cr_dtype_bytes(f->args.param_dtype);
    int alive = f->args.reshard == CR_RESHARD_NEVER ? (int)f->units.num : most_alive(f) + 1,
        kinds = 1;

    for (size_t i = 0; i < f->units.num; i++) {
        const cri_unit *u = &f->state[i];
        int64_t n = 0;
        for (int k = 0; k < 2; k++)
            if (is_gathered(u, k)) n = max64(n, u->flat[k].flat->padded_elems);
        if (i == 0)
            root = n;
        else
            widest = max64(widest, n);
        if (i) widest_trained = max64(widest_trained, u->flat[0].flat->padded_elems);
        if (i && slots_needed(u) == 2) kinds = 2;
    }
    if (root) CR_TRY(cr_gather_create(group, 2, (size_t)root * bytes, &f->root_gather, err));
    if (widest)
        CR_TRY(cr_gather_create(group, alive * kinds, (size_t)widest * bytes, &f->gather, err));
    f->free_slots = CR_NEW_ARRAY(int, alive *kinds);
    for (int i = 0; i < alive * kinds; i++)
        f->free_slots[f->num_free++] = alive * kinds - 1 - i;
    f->stats.gather_bytes = (2 * root + alive * kinds * widest) * (int64_t)bytes;
    return make_reduces(f, (size_t)widest_trained, err);
}

cr_status cr_fsdp_create(cr_model *model, cr_device *dev, cr_mesh *mesh, const cr_fsdp_args *args,
                         cr_fsdp **out, cr_err *err)
{
    cr_fsdp *f = CR_NEW(cr_fsdp);

    *out = NULL;
    f->model = model;
    f->dev = dev;
    f->mesh = mesh;
    f->args = *args;
    if (cr_units_build(model, &args->wrap, mesh->shape.num_fsdp, &f->units, err) == CR_OK) {
        f->state = CR_NEW_ARRAY(cri_unit, f->units.num);
        for (size_t i = 0; i < f->units.num; i++) {
            cri_unit *u = &f->state[i];
            *u = (cri_unit){.unit = &f->units.unit[i], .index = i, .f = f, .reduce_slot = -1};
            u->flat[0] = (cri_flat){&f->units.unit[i].trained, true, -1};
            u->flat[1] = (cri_flat){&f->units.unit[i].frozen, false, -1};
            f->units.unit[i].module->unit = u;
        }
        f->tape = cr_stack_create(dev);
        f->scratch = cr_stack_create(dev);
        f->hooks = (cr_hooks){before, after, f};
        if (mesh->shape.num_ulysses == 1 ||
            cr_ulysses_create(mesh, model, &f->ulysses, err) == CR_OK)
            materialise(f, err);
    }
    if (cr_agree(mesh->group[CR_AXIS_ALL], "materialise", err) == CR_OK &&
        make_buffers(f, err) == CR_OK) {
        *out = f;
        return CR_OK;
    }
    cr_fsdp_destroy(f);
    return err->status;
}

void cr_fsdp_destroy(cr_fsdp *f)
{
    size_t trained, frozen, bytes;

    if (!f) return;
    cri_save_abandon(f);
    trained = (size_t)f->units.trained_shard_elems, frozen = (size_t)f->units.frozen_shard_elems,
    bytes = cr_dtype_bytes(f->args.param_dtype);
    cr_reduce_destroy(f->reduce);
    cr_reduce_destroy(f->root_reduce);
    cr_gather_destroy(f->gather);
    cr_gather_destroy(f->root_gather);
    cr_device_free(f->dev, f->master, trained * 4);
    cr_device_free(f->dev, f->grad, trained * 4);
    cr_device_free(f->dev, f->m, trained * 4);
    cr_device_free(f->dev, f->v, trained * 4);
    cr_device_free(f->dev, f->values, trained * bytes);
    cr_device_free(f->dev, f->frozen, frozen * bytes);
    cr_ulysses_destroy(f->ulysses);
    cr_stack_destroy(f->tape);
    cr_stack_destroy(f->scratch);
    cr_free(f->host);
    cr_free(f->free_slots);
    cr_free(f->free_reduces);
    cr_free(f->orders[0].units);
    cr_free(f->orders[1].units);
    cr_free(f->state);
    for (size_t i = 0; i < f->units.num; i++)
        f->units.unit[i].module->unit = NULL;
    cr_units_free(&f->units);
    cr_free(f);
}

const cr_units *cr_fsdp_units(const cr_fsdp *f)
{
    return &f->units;
}

int64_t cr_fsdp_num_updates(const cr_fsdp *f)
{
    return f->num_updates;
}

cr_fsdp_stats cr_fsdp_get_stats(const cr_fsdp *f)
{
    cr_fsdp_stats s = f->stats;

    s.tape_peak_bytes = (int64_t)cr_stack_peak_bytes(f->tape);
    s.scratch_peak_bytes = (int64_t)cr_stack_peak_bytes(f->scratch);
    return s;
}

cr_status cr_fsdp_agree_num(cr_fsdp *f, int64_t mine, int64_t *most, cr_err *err)
{
    double x = (double)mine;

    CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "number of micro-batches", CR_OP_MAX, &x,
                             1, err));
    *most = (int64_t)x;
    return CR_OK;
}

/* ---- passes ---- */

/* What a rank runs that has no batch left: the others need its part in the collectives. */
static const cr_batch *dummy_batch(void)
{
    static const int32_t zero[1] = {0}, offsets[2] = {0, 1};
    static const cr_batch batch = {zero, zero, zero, offsets, 1, 1};

    return &batch;
}

/* A pass that begins: the root is there, and the first unit on its way. */
static cr_status begin_pass(cr_fsdp *f, const cr_batch *batch, bool with_tape, cr_pass *out,
                            cr_err *err)
{
    *out = (cr_pass){.dev = f->dev,
                     .dtype = f->args.param_dtype,
                     .tape = with_tape ? f->tape : NULL,
                     .scratch = f->scratch,
                     .batch = batch ? batch : dummy_batch(),
                     .hooks = &f->hooks,
                     .should_recompute = f->args.should_recompute};
    if (f->ulysses) {
        cr_ulysses_cut(f->ulysses, out->batch);
        out->batch = cr_ulysses_batch(f->ulysses);
        out->split = cr_ulysses_split(f->ulysses);
    }
    f->order = &f->orders[with_tape];
    f->order->at = 0;
    CR_TRY(unshard(&f->state[0], err));
    return prefetch(f, err);
}

static void end_pass(cr_fsdp *f)
{
    if (f->args.reshard == CR_RESHARD_ALWAYS) cri_reshard(&f->state[0]);
}

/* Forward of this rank's rows; then out has those of the whole batch. */
static cr_status run_forward(cr_fsdp *f, const cr_batch *batch, cr_pass *pass, cr_model_out *out,
                             cr_err *err)
{
    size_t first = 0, num;
    cr_model_out mine;

    if (f->ulysses) cr_ulysses_rows(f->ulysses, &first, &num);
    mine = (cr_model_out){out->log_prob + first, out->entropy + first};
    CR_TRY(cr_model_forward(f->model, pass, &mine, err));
    if (!f->ulysses || !batch) return CR_OK;
    CR_TRY(cr_ulysses_collect(f->ulysses, "log-probs", out->log_prob, 1, err));
    return cr_ulysses_collect(f->ulysses, "entropies", out->entropy, 1, err);
}

cr_status cr_fsdp_forward(cr_fsdp *f, const cr_batch *batch, cr_model_out *out, cr_err *err)
{
    float ignored[2];
    cr_model_out nobody = {ignored, ignored + 1};
    cr_pass pass;

    CR_TRY(begin_pass(f, batch, /*with_tape=*/false, &pass, err));
    CR_TRY(run_forward(f, batch, &pass, batch ? out : &nobody, err));
    end_pass(f);
    return CR_OK;
}

cr_status cr_fsdp_logits(cr_fsdp *f, const cr_batch *batch, const int32_t *rows, int64_t num_rows,
                         float *logits, cr_err *err)
{
    int64_t vocab = f->model->config.vocab_size;
    size_t first = 0, num = batch ? (size_t)num_rows : 0;
    int32_t *own = NULL;
    cr_pass pass;

    CR_TRY(begin_pass(f, batch, /*with_tape=*/false, &pass, err));
    if (f->ulysses && batch) {
        own = CR_NEW_ARRAY(int32_t, num);
        cr_ulysses_choose(f->ulysses, rows, num_rows, own);
        cr_ulysses_rows(f->ulysses, &first, &num);
    }
    if (cr_model_logits(f->model, &pass, own ? own : rows, (int64_t)num,
                        logits + first * (size_t)vocab, err) == CR_OK &&
        own)
        cr_note(cr_ulysses_collect(f->ulysses, "logits", logits, vocab, err));
    cr_free(own);
    end_pass(f);
    return err->status;
}

static size_t num_labels(const cr_batch *batch)
{
    size_t n = 0;

    for (int64_t t = 0; batch->labels && t < batch->num_tokens; t++)
        n += batch->labels[t] >= 0;
    return n;
}

cr_status cr_fsdp_backward(cr_fsdp *f, const cr_batch *batch, cr_loss_fn loss, void *ctx,
                           cr_err *err)
{
    size_t num = num_labels(batch ? batch : dummy_batch()), first = 0, own;
    float *grad_log_prob, *grad_entropy;
    cr_model_out out;
    cr_pass pass;

    if (num > f->host_rows || !f->host) {
        cr_free(f->host);
        f->host_rows = num + num / 4 + 1;
        f->host = CR_NEW_ARRAY(float, 4 * f->host_rows);
    }
    out = (cr_model_out){f->host, f->host + f->host_rows};
    grad_log_prob = f->host + 2 * f->host_rows;
    grad_entropy = f->host + 3 * f->host_rows;
    memset(grad_log_prob, 0, 2 * f->host_rows * sizeof(float));
    CR_TRY(begin_pass(f, batch, /*with_tape=*/true, &pass, err));
    CR_TRY(run_forward(f, batch, &pass, &out, err));
    if (batch) CR_TRY(loss(ctx, out.log_prob, out.entropy, num, grad_log_prob, grad_entropy, err));
    CR_TRY(begin_grads(&f->state[0], err));
    if (f->ulysses) cr_ulysses_rows(f->ulysses, &first, &own);
    CR_TRY(cr_model_backward(f->model, &pass, grad_log_prob + first, grad_entropy + first, err));
    CR_TRY(end_grads(&f->state[0], err));
    CR_TRY(finish_pending(f, err));
    end_pass(f);
    return CR_OK;
}

/* ---- the update ---- */

static cr_status grad_norm(cr_fsdp *f, double *out, cr_err *err)
{
    double sum = 0;

    CR_TRY(cr_square_sum(f->dev, f->grad, (size_t)f->units.trained_shard_elems, &sum, err));
    CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_FSDP], "grad_norm", CR_OP_SUM, &sum, 1, err));
    *out = sqrt(sum);
    return CR_OK;
}

cr_status cr_fsdp_update(cr_fsdp *f, double lr, cr_update *out, cr_err *err)
{
    size_t num = (size_t)f->units.trained_shard_elems;
    cr_adamw_args a = {f->master,
                       f->m,
                       f->v,
                       f->grad,
                       num,
                       lr,
                       f->args.beta1,
                       f->args.beta2,
                       f->args.eps,
                       f->args.weight_decay,
                       1,
                       f->num_updates + 1};

    *out = (cr_update){0};
    if (f->mesh->shape.num_ddp > 1)
        CR_TRY(cr_all_reduce_f32(f->mesh->group[CR_AXIS_DDP], "gradients", CR_OP_SUM, f->grad, num,
                                 err));
    CR_TRY(grad_norm(f, &out->grad_norm, err));
    out->is_skipped =
        !isfinite(out->grad_norm); /* the same number on every rank: all skip, or none */
    if (!out->is_skipped) {
        if (f->args.max_grad_norm > 0)
            a.grad_scale = fmin(1, f->args.max_grad_norm / (out->grad_norm + 1e-6));
        CR_TRY(cr_adamw(f->dev, &a, err));
        f->num_updates++;
    }
    for (size_t i = 0; i < f->units.num; i++) /* gathered copies are of the old weights */
        cri_reshard(&f->state[i]);
    return cr_zero(f->dev, f->grad, num * 4, err);
}

/* ---- the full gradient, for `croll grad` ---- */

cr_status cr_fsdp_visit_grads(cr_fsdp *f, cr_grad_visit visit, void *ctx, double *norm, cr_err *err)
{
    cr_group *group = f->mesh->group[CR_AXIS_FSDP];
    size_t *offsets = CR_NEW_ARRAY(size_t, cr_group_num_ranks(group) + 1);
    cr_buf whole = {0};

    if (f->mesh->shape.num_ddp > 1)
        CR_TRY_GOTO(out, cr_all_reduce_f32(f->mesh->group[CR_AXIS_DDP], "gradients", CR_OP_SUM,
                                           f->grad, (size_t)f->units.trained_shard_elems, err));
    CR_TRY_GOTO(out, grad_norm(f, norm, err));
    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        if (flat->num_params == 0) continue;
        CR_TRY_GOTO(out, cr_all_gather_bytes(group, f->units.unit[i].name, f->grad + flat->first,
                                             (size_t)flat->shard_elems * 4, &whole, offsets, err));
        for (size_t k = 0; k < flat->num_params && f->mesh->rank == 0; k++)
            CR_TRY_GOTO(out, visit(ctx, flat->params[k],
                                   (const float *)(const void *)whole.data + flat->offset[k], err));
    }
out:
    cr_buf_free(&whole);
    cr_free(offsets);
    return err->status;
}
