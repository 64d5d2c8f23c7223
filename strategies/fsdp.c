/* fsdp.c -- a model on a mesh: its life and its passes (see strategies.h). */
#include "models/vision/vision.h"
#include "strategies/fsdp_impl.h"
#include "strategies/lanes.h"

#include <string.h>

/* ---- life ---- */

static cr_status check_args(const cr_fsdp_args *a, const cr_mesh *mesh, cr_err *err)
{
    int n = mesh->shape.num_fsdp;

    if (a->reshard_ranks < 0 || a->reshard_ranks > n ||
        (a->reshard_ranks > 1 && n % a->reshard_ranks != 0))
        return cr_fail(err, CR_ECONFIG,
                       "U8: reshard_after_forward %d does not divide the %d ranks of a shard group",
                       a->reshard_ranks, n);
    if (sizeof(float) == sizeof(double) &&
        (a->param_dtype != CR_F32 || a->reduce_dtype != CR_REDUCE_F32 || a->master_dtype != CR_F32))
        return cr_fail(err, CR_EABSENT,
                       "this build is in float64 (base/float64.h): param_dtype, "
                       "reduce_dtype and master_dtype must be fp32, which names it");
    if (a->param_dtype == CR_F64)
        return cr_fail(err, CR_EABSENT, "param_dtype: computing in fp64 is not available");
    if (a->is_train && a->master_dtype != CR_F32 && a->master_dtype != CR_BF16)
        return cr_fail(err, CR_ECONFIG, "master_dtype: masters are fp32 or bf16, not %s",
                       cr_dtype_name(a->master_dtype));
    if (a->is_train && a->optimizer.muon.is_on && (a->master_dtype != CR_F32 || a->is_offloaded))
        return cr_fail(err, CR_ECONFIG,
                       "optim: muon needs float32 masters on the device (master_dtype: fp32, no "
                       "offload_policy)");
    return CR_OK;
}

/* Neighbours in the shard group, reshard_ranks of them: each keeps a slice after forward. */
static cr_status make_slice_group(cr_fsdp *f, cr_err *err)
{
    cr_group *fsdp = f->mesh->group[CR_AXIS_FSDP];
    int k = f->args.reshard_ranks, first = cri_rank(f) / (k ? k : 1) * k;
    cr_status status;
    int *ranks;

    if (k <= 1 || k == f->units.num_shards || !f->args.is_train) return CR_OK;
    ranks = CR_NEW_ARRAY(int, k);
    for (int i = 0; i < k; i++)
        ranks[i] = cr_group_world_rank(fsdp, first + i);
    f->num_slices = k;
    status =
        cr_group_create(cr_group_world(fsdp), f->dev, "reshard", ranks, k, &f->slice_group, err);
    cr_free(ranks);
    return status;
}

static cr_status make_states(cr_fsdp *f, cr_err *err)
{
    f->state = CR_NEW_ARRAY(cri_unit, f->units.num);
    for (size_t i = 0; i < f->units.num; i++) {
        cri_unit *u = &f->state[i];
        *u = (cri_unit){.unit = &f->units.unit[i], .index = i, .f = f, .reduce_slot = -1};
        u->flat[0] =
            (cri_flat){.flat = &f->units.unit[i].trained, .is_trained = true, .weight_at = -1};
        u->flat[1] = (cri_flat){.flat = &f->units.unit[i].frozen, .weight_at = -1};
        f->units.unit[i].module->unit = u;
        CR_TRY(cr_event_create(f->dev, &u->ready, err));
    }
    return CR_OK;
}

cr_status cr_fsdp_create(cr_model *model, cr_device *dev, cr_mesh *mesh, const cr_fsdp_args *args,
                         cr_fsdp **out, cr_err *err)
{
    cr_fsdp *f = CR_NEW(cr_fsdp);
    cr_ep_layout layout = {mesh->shape.num_ep, mesh->shape.num_efsdp,
                           cr_mesh_axis_rank(&mesh->shape, CR_AXIS_EP, mesh->rank)};

    *out = NULL;
    f->model = model;
    f->dev = dev;
    f->mesh = mesh;
    f->args = *args;
    f->loss_scale = args->loss_scale;
    f->hooks = (cr_hooks){cri_before, cri_after, f};
    f->pass_state = cr_pass_state_create();
    f->choices = CR_NEW_ARRAY(cr_param_choice, model->num_params);
    cr_model_mark_trainable(model);
    if (check_args(args, mesh, err) == CR_OK &&
        cr_optimizer_choose(model, &args->optimizer, args->weight_decay, f->choices, err) ==
            CR_OK &&
        cr_units_build_ep(model, &args->wrap, mesh->shape.num_fsdp, &layout, &f->units, err) ==
            CR_OK) {
        if (mesh->rank == 0 && !cr_device_is_meta(dev) && args->wrap.num_expert_classes == 0 &&
            cr_units_can_diverge(&f->units, model))
            cr_log(CR_LOG_WARN, "fsdp",
                   "the wrap policy makes units of experts: ranks that route differently stop with "
                   "an error "
                   "(apply_expert_patch: true calls every expert)");
        if (args->reshard_ranks > 0 && args->reshard_ranks == f->units.num_shards)
            f->args.reshard = CR_RESHARD_DEFAULT;
        if (args->reshard_ranks == 1) f->args.reshard = CR_RESHARD_NEVER;
        if (make_states(f, err) == CR_OK &&
            (mesh->shape.num_ulysses == 1 ||
             cr_ulysses_create(mesh, model, &f->ulysses, err) == CR_OK) &&
            (mesh->shape.num_ep == 1 || cr_moe_create(mesh, model, &f->moe, err) == CR_OK))
            cr_note(cri_shards_create(f, err));
    }
    if (cr_agree(mesh->group[CR_AXIS_ALL], "materialise", err) == CR_OK &&
        make_slice_group(f, err) == CR_OK && cri_buffers_create(f, err) == CR_OK) {
        *out = f;
        return CR_OK;
    }
    cr_fsdp_destroy(f);
    return err->status;
}

void cr_fsdp_destroy(cr_fsdp *f)
{
    if (!f) return;
    cri_save_abandon(f);
    cri_buffers_destroy(f);
    cr_ulysses_destroy(f->ulysses);
    cr_moe_destroy(f->moe);
    cr_group_destroy(f->slice_group);
    cr_group_destroy(f->parts_group);
    cri_shards_destroy(f);
    cr_free(f->choices);
    cr_free(f->seconds);
    cr_free(f->host_rows);
    cr_free(f->host_chosen);
    cr_pass_state_destroy(f->pass_state);
    for (size_t i = 0; i < CR_COUNT(f->orders); i++)
        cr_free(f->orders[i].units);
    for (size_t i = 0; i < f->units.num; i++) {
        if (f->state) cr_event_destroy(f->state[i].ready);
        f->units.unit[i].module->unit = NULL;
    }
    cr_free(f->state);
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

    if (f->tape) {
        s.tape_peak_bytes = cr_max64(s.tape_peak_bytes, (int64_t)cr_stack_peak_bytes(f->tape));
        s.scratch_peak_bytes =
            cr_max64(s.scratch_peak_bytes,
                     (int64_t)cr_stack_peak_bytes(f->scratch) + cri_lanes_bytes(f->lanes));
    }
    s.held_bytes = (int64_t)cr_device_get_stats(f->dev).bytes_now;
    if (f->tape) s.held_bytes += s.gather_bytes + s.reduce_bytes;
    s.host_bytes = (int64_t)cr_device_get_stats(f->dev).host_bytes_now;
    return s;
}

void cr_fsdp_watch(cr_fsdp *f, cr_fsdp_watcher watcher, void *ctx)
{
    f->watcher = watcher;
    f->watcher_ctx = ctx;
    if (!f->tape) return;
    cr_stack_take_high(f->tape); /* what was before */
    cr_stack_take_high(f->scratch);
}

cr_status cr_fsdp_agree_num(cr_fsdp *f, int64_t mine, int64_t *max, cr_err *err)
{
    double x = (double)mine;

    CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "number of micro-batches", CR_OP_MAX, &x,
                             1, err));
    *max = (int64_t)x;
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

/* If one rank's batch has images, all ranks run the tower: those without over a black one whose features
 * go nowhere, because its units are gathered and reduced together. */
static cr_status agree_on_images(cr_fsdp *f, const cr_batch **batch, cr_err *err)
{
    double num = (*batch)->vision ? 1 : 0;

    f->has_images = false;
    if (!f->model->tower) return CR_OK;
    CR_TRY(cr_all_reduce_f64(f->mesh->group[CR_AXIS_ALL], "images", CR_OP_MAX, &num, 1, err));
    f->has_images = num > 0;
    if (!f->has_images || (*batch)->vision) return CR_OK;
    f->idle = **batch;
    f->idle.vision = cr_vision_idle(f->model);
    *batch = &f->idle;
    return CR_OK;
}

/* A pass that begins: the root is there, and the first unit on its way. */
static cr_status begin_pass(cr_fsdp *f, const cr_batch *batch, bool with_tape, cr_pass *out,
                            cr_err *err)
{
    CR_TRY(cri_need_states(f, CR_STATE_PARAMS | CR_STATE_BUFFERS | (with_tape ? CR_STATE_GRADS : 0),
                           with_tape ? "backward" : "forward", err));
    batch = batch ? batch : dummy_batch();
    CR_TRY(agree_on_images(f, &batch, err));
    *out = (cr_pass){.state = f->pass_state,
                     .dev = f->dev,
                     .dtype = f->args.param_dtype,
                     .tape = with_tape ? f->tape : NULL,
                     .scratch = f->scratch,
                     .batch = batch,
                     .hooks = &f->hooks,
                     .should_recompute = f->args.should_recompute,
                     .adapter = f->adapter,
                     .mlp_tiles = f->args.mlp_tiles,
                     .aux_weight = with_tape ? f->aux_weight : 0};
    if (f->ulysses) {
        cr_ulysses_cut(f->ulysses, out->batch);
        out->batch = cr_ulysses_batch(f->ulysses);
        out->split = cr_ulysses_split(f->ulysses);
    }
    if (f->moe) out->experts = cr_moe_dispatch(f->moe);
    return cri_begin_pass(f, with_tape, err);
}

/* An array of outputs, [rows, num_cols] of 4 bytes. */
typedef struct rows_of {
    const char *name;
    void *values; /* NULL: not wanted */
    int64_t num_cols;
} rows_of;

enum { NUM_ARRAYS = CR_NUM_OUTPUTS + 8 };

static void list_arrays(const cr_outputs *o, rows_of out[NUM_ARRAYS])
{
    const rows_of list[NUM_ARRAYS] = {
        {"log-probs", o->of[CR_LOG_PROB], 1},
        {"entropies", o->of[CR_ENTROPY], 1},
        {"values", o->of[CR_VALUE], 1},
        {"ranks", o->rank, 1},
        {"largest ids", o->top_ids, o->num_top},
        {"largest log-probs", o->top_log_probs, o->num_top},
        {"log-probs of candidates", o->candidate_log_probs, o->num_candidates},
        {"tempered log-probs", o->tempered, o->num_candidates},
        {"log-sums", o->log_sum, 1},
        {"states", o->states, o->num_states},
        {"drawn ids", o->drawn, 1}};

    memcpy(out, list, sizeof list);
}

cr_outputs cri_outputs_from(const cr_outputs *all, int64_t first)
{
    cr_outputs rows = *all;

    for (int i = 0; i < CR_NUM_OUTPUTS; i++)
        if (rows.of[i]) rows.of[i] += first;
    if (rows.rank) rows.rank += first;
    if (rows.num_top) {
        rows.top_ids += first * rows.num_top;
        rows.top_log_probs += first * rows.num_top;
    }
    if (rows.draw) {
        rows.draw += first;
        rows.drawn += first;
    }
    if (rows.num_candidates) {
        rows.candidates += first * rows.num_candidates;
        rows.candidate_log_probs += first * rows.num_candidates;
    }
    if (rows.tempered) {
        rows.tempered += first * rows.num_candidates;
        rows.log_sum += first;
    }
    if (rows.rest) rows.rest += first;
    if (rows.states) rows.states += first * rows.num_states;
    rows.first_row += first;
    return rows;
}

/* Forward of this rank's rows; then out has those of the whole batch. */
static cr_status run_forward(cr_fsdp *f, const cr_batch *batch, cr_pass *pass,
                             const cr_outputs *out, cr_err *err)
{
    rows_of arrays[NUM_ARRAYS];
    size_t first = 0, num;
    cr_outputs mine;

    if (f->ulysses) cr_ulysses_rows(f->ulysses, &first, &num);
    mine = cri_outputs_from(out, (int64_t)first);
    CR_TRY(cr_model_forward(f->model, pass, &mine, err));
    if (!f->ulysses || !batch) return CR_OK;
    list_arrays(out, arrays);
    for (size_t i = 0; i < NUM_ARRAYS; i++)
        if (arrays[i].values && arrays[i].num_cols)
            CR_TRY(cr_ulysses_collect(f->ulysses, arrays[i].name, arrays[i].values,
                                      arrays[i].num_cols, err));
    return CR_OK;
}

cr_status cr_fsdp_forward(cr_fsdp *f, const cr_batch *batch, const cr_outputs *out, cr_err *err)
{
    static const cr_outputs none = {{NULL}};
    cr_pass pass;

    CR_TRY(begin_pass(f, batch, /*with_tape=*/false, &pass, err));
    if (batch && !f->watcher && cri_is_resident(f) && cri_lanes_cut(f->lanes, pass.batch)) {
        CR_TRY(cri_show_all(f, err));
        CR_TRY(cri_lanes_forward(f->lanes, f->model, &pass, out, err));
    } else {
        CR_TRY(run_forward(f, batch, &pass, batch ? out : &none, err));
    }
    return cri_end_pass(f, false, err);
}

cr_status cr_fsdp_logits(cr_fsdp *f, const cr_batch *batch, const int32_t *rows, int64_t num_rows,
                         float *logits, cr_err *err)
{
    int64_t vocab = f->model->config.vocab_size;
    size_t first = 0, num = batch ? (size_t)num_rows : 0;
    int32_t *own = NULL;
    size_t mark = f->scratch ? cr_stack_mark(f->scratch) : 0, bytes;
    cr_mem *found;
    cr_pass pass;

    CR_TRY(begin_pass(f, batch, /*with_tape=*/false, &pass, err));
    if (f->ulysses && batch) {
        own = CR_NEW_ARRAY(int32_t, num);
        cr_ulysses_choose(f->ulysses, rows, num_rows, own);
        cr_ulysses_rows(f->ulysses, &first, &num);
    }
    bytes = num * (size_t)vocab * sizeof *logits;
    if (cr_stack_push(f->scratch, bytes, &found, err) == CR_OK &&
        cr_model_logits(f->model, &pass, own ? own : rows, (int64_t)num, found, err) == CR_OK &&
        cr_download(f->dev, logits + first * (size_t)vocab, found, bytes, err) == CR_OK && own)
        cr_note(cr_ulysses_collect(f->ulysses, "logits", logits, vocab, err));
    cr_stack_release(f->scratch, mark);
    cr_free(own);
    return err->status == CR_OK ? cri_end_pass(f, false, err) : err->status;
}

static size_t num_labels(const cr_batch *batch)
{
    size_t n = 0;

    for (int64_t t = 0; batch->labels && t < batch->num_tokens; t++)
        n += batch->labels[t] >= 0;
    return n;
}

static void scale_rows(float *x, size_t num, double scale)
{
    for (size_t i = 0; i < num; i++)
        x[i] = (float)(x[i] * scale);
}

/* Of a loss over ids: log-probs of its ids twice, log-sums, and gradients, which come zeroed, too. */
static void reserve_chosen(cr_fsdp *f, size_t num, cr_outputs *out, cr_outputs *grad)
{
    size_t chosen = num * (size_t)f->chosen.num_candidates;
    float *at = f->host_chosen =
        cr_reserve(f->host_chosen, &f->num_host_chosen, 3 * chosen + 2 * num + 1, sizeof *at);

    *out = *grad = f->chosen;
    out->candidate_log_probs = grad->candidate_log_probs = at;
    out->tempered = at + chosen;
    grad->tempered = at + 2 * chosen;
    out->log_sum = grad->log_sum = at + 3 * chosen;
    grad->rest = at + 3 * chosen + num;
    memset(at, 0, (3 * chosen + 2 * num) * sizeof *at);
}

/* Host memory of a micro-batch's outputs and, zeroed, of their gradients. */
static void reserve_outputs(cr_fsdp *f, size_t num, cr_outputs *out, cr_outputs *grad)
{
    float *gradients;

    *out = *grad = (cr_outputs){{NULL}};
    if (f->chosen.num_candidates) reserve_chosen(f, num, out, grad);
    grad->logits_loss = f->chosen.logits_loss;
    f->chosen = (cr_outputs){{NULL}};
    if (num > f->num_host_rows || !f->host_rows) {
        cr_free(f->host_rows);
        f->num_host_rows = num + num / 4 + 1;
        f->host_rows = CR_NEW_ARRAY(float, 2 * CR_NUM_OUTPUTS * f->num_host_rows);
    }
    gradients = f->host_rows + CR_NUM_OUTPUTS * f->num_host_rows;
    for (size_t i = 0; i < CR_NUM_OUTPUTS; i++) {
        if (!cr_model_gives(f->model, (cr_output)i)) continue;
        out->of[i] = f->host_rows + i * f->num_host_rows;
        grad->of[i] = gradients + i * f->num_host_rows;
    }
    memset(gradients, 0, CR_NUM_OUTPUTS * f->num_host_rows * sizeof *gradients);
}

cr_status cr_fsdp_backward(cr_fsdp *f, const cr_batch *batch, cr_loss_fn loss, void *ctx,
                           cr_err *err)
{
    size_t num = num_labels(batch ? batch : dummy_batch()), first = 0, own;
    cr_outputs out, grad;
    cr_logits_loss scaled;
    cr_pass pass;

    if (f->is_grad_complete)
        return cr_fail(err, CR_EARG,
                       "backward: the gradients of this step are complete (update "
                       "comes first)");
    reserve_outputs(f, num, &out, &grad);
    CR_TRY(begin_pass(f, batch, /*with_tape=*/true, &pass, err));
    f->has_grad = true;
    CR_TRY(run_forward(f, batch, &pass, &out, err));
    if (batch) CR_TRY(loss(ctx, &out, num, &grad, err));
    for (int i = 0; i < CR_NUM_OUTPUTS && f->loss_scale > 0; i++)
        if (grad.of[i]) scale_rows(grad.of[i], num, f->loss_scale);
    if (grad.tempered && f->loss_scale > 0) {
        scale_rows(grad.tempered, num * (size_t)grad.num_candidates, f->loss_scale);
        scale_rows(grad.rest, num, f->loss_scale);
    }
    if (grad.logits_loss && f->loss_scale > 0) {
        scaled = *grad.logits_loss;
        scaled.scale *= (float)f->loss_scale;
        grad.logits_loss = &scaled;
    }
    CR_TRY(cri_begin_root_grads(f, err));
    if (f->ulysses) cr_ulysses_rows(f->ulysses, &first, &own);
    grad = cri_outputs_from(&grad, (int64_t)first);
    CR_TRY(cr_model_backward(f->model, &pass, &grad, err));
    return cri_end_pass(f, true, err);
}

void cr_fsdp_set_adapter(cr_fsdp *f, int adapter)
{
    f->adapter = adapter;
}

void cr_fsdp_set_chosen(cr_fsdp *f, const int32_t *ids, int64_t num, float temperature)
{
    f->chosen = (cr_outputs){
        .candidates = ids, .num_candidates = num, .temperature = num ? temperature : 0};
}

void cr_fsdp_set_logits_loss(cr_fsdp *f, const cr_logits_loss *loss)
{
    f->chosen = (cr_outputs){.logits_loss = loss};
}

void cr_fsdp_set_aux_weight(cr_fsdp *f, float weight)
{
    f->aux_weight = weight;
}

double cr_fsdp_aux_loss(const cr_fsdp *f)
{
    return cr_pass_aux_loss(f->model, f->pass_state);
}
