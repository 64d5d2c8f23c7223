/* plan.c -- see plan.h. One rank's micro-batches, updates and forwards, counted.
 *
 * Micro-batches of an update differ in one way only: the first gathers what later ones still have.
 * So one update of two micro-batches is run, after one that is not counted (it meets the units for
 * the first time), and the rest is multiplied.
 */
#include "plan/plan.h"
#include "kernels/memory.h"
#include "models/pass.h"
#include "models/vision/vision.h"
#include "strategies/packed.h"

#include <stdio.h>
#include <string.h>

typedef struct bench {
    cr_world *world;
    cr_mesh *mesh;
    cr_device *dev;
    cr_fsdp *f;
    cr_packed packed;
    cr_vision_input images; /* of the batch; arrays are owned, pixels have no values */
    int32_t (*grids)[3], *seq_items, *mrope;
    float *pixels;
    uint64_t *drop_keys; /* of its tokens */
    size_t capacity_drop_keys;
    int32_t *chosen;             /* ids of its rows, of no meaning */
    cr_fsdp_stats after_forward; /* of the training micro-batch */
    cr_plan_role *role;
    cr_plan_bytes standing; /* beside what a moment has */
    double first_flops;
    int stride, num_in_last; /* moments of a place, and of the last one so far */
    const cr_worker_config *worker;
    const cr_model *model;
    cr_plan_pass pass; /* CR_PLAN_PASSES: it is not counted */
} bench;

/* Everything that is counted, to be subtracted. */
typedef struct counts {
    cr_traffic t;
    cr_flight_count all_to_alls, smalls;
    cr_device_stats work;
} counts;

/* ---- a batch of full samples ---- */

static void images_free(bench *b)
{
    cr_free(b->grids);
    cr_free(b->seq_items);
    cr_free(b->mrope);
    cr_free(b->pixels);
    b->grids = NULL;
    b->seq_items = b->mrope = NULL;
    b->pixels = NULL;
}

/* Placeholders of the images of each sequence of the batch, after its first token. */
static cr_status add_images(bench *b, const cr_plan_images *images, cr_err *err)
{
    const cr_model_config *c = &b->model->config;
    cr_batch *batch = &b->packed.batch;
    int64_t num = 0, patches = (int64_t)images->grid[1] * images->grid[2], all;

    images_free(b);
    if (!images->num || !c->vision) return CR_OK;
    b->seq_items = CR_NEW_ARRAY(int32_t, batch->num_seqs + 1);
    b->grids = cr_alloc((size_t)(batch->num_seqs * images->num) * sizeof *b->grids);
    for (int64_t s = 0; s < batch->num_seqs; s++) {
        int32_t *at = b->packed.ids + batch->cu_seqlens[s] + 1,
                room = batch->cu_seqlens[s + 1] - batch->cu_seqlens[s] - 1;
        for (int64_t i = 0; i < images->num && (i + 1) * images->num_tokens <= room; i++) {
            memcpy(b->grids[num++], images->grid, sizeof images->grid);
            for (int64_t t = 0; t < images->num_tokens; t++)
                *at++ = c->vision->image_id;
        }
        b->seq_items[s + 1] = (int32_t)num;
    }
    if (!num) return CR_OK;
    all = num * patches * c->vision->patch_dim * (int64_t)sizeof(float);
    if (all > b->role->pixel_bytes) b->role->pixel_bytes = all;
    b->pixels = cr_alloc((size_t)all);
    b->images = (cr_vision_input){.pixels = b->pixels,
                                  .grid = (const int32_t(*)[3])b->grids,
                                  .seq_items = b->seq_items,
                                  .num_items = num,
                                  .num_patches = num * patches};
    if (c->rope_axis) b->mrope = CR_NEW_ARRAY(int32_t, 3 * batch->num_tokens);
    batch->vision = &b->images;
    batch->mrope = b->mrope;
    return cr_vision_positions(c, batch, &b->images, b->mrope, err);
}

/* num samples of full length, or, if most is not 0, as many as fit and a shorter one. */
static cr_status batch_make(bench *b, const cr_plan_batch *p, int64_t num, int64_t max, cr_err *err)
{
    int64_t len = p->sample_tokens, tokens = max ? max : num * len;

    cr_packed_clear(&b->packed);
    for (int64_t at = 0; at < tokens; at += len) {
        int64_t n = tokens - at < len ? tokens - at : len,
                first = len > p->sample_rows ? len - p->sample_rows : 0;
        int32_t *labels = cr_packed_add(&b->packed, NULL, (size_t)n);
        for (int64_t t = first > 0 ? first - 1 : 0; t + 1 < n; t++)
            labels[t] = 0;
    }
    return add_images(b, &p->images, err);
}

/* ---- counting ---- */

static counts count(const bench *b)
{
    counts c = {.t = cr_fsdp_get_stats(b->f).traffic, .work = cr_device_get_stats(b->dev)};

    for (int k = 0; k < CR_NUM_COLLS; k++) {
        cr_flight_count n = cr_flight_get_count(b->world, (cr_coll)k);
        if (k == CR_COLL_ALL_TO_ALL)
            c.all_to_alls = n;
        else if (k == CR_COLL_ALL_REDUCE || k == CR_COLL_AGREE || k == CR_COLL_GATHER_BYTES)
            c.smalls.num += n.num, c.smalls.num_bytes += n.num_bytes;
    }
    return c;
}

static void add_count(cr_traffic_count *to, const cr_traffic_count *now,
                      const cr_traffic_count *then, int64_t times)
{
    to->num += (now->num - then->num) * times;
    to->num_bytes += (now->num_bytes - then->num_bytes) * times;
}

static void add_flight(cr_flight_count *to, const cr_flight_count *now, const cr_flight_count *then,
                       int64_t times)
{
    to->num += (now->num - then->num) * (uint64_t)times;
    to->num_bytes += (now->num_bytes - then->num_bytes) * (uint64_t)times;
}

/* A collective's reduced element; gathers and bytes have none. */
static size_t elem_bytes_of(const bench *b, const cr_flight_event *e)
{
    const cr_units *u = cr_fsdp_units(b->f);
    bool is_rounded = b->worker->reduce_dtype == CR_CHOICE_BF16;

    if (e->coll == CR_COLL_ALL_REDUCE)
        return strcmp(e->name, "gradients") == 0 ? sizeof(float) : sizeof(double);
    if (e->coll != CR_COLL_REDUCE_SCATTER) return 0;
    for (size_t i = 0; i < u->num && is_rounded; i++)
        if (u->unit[i].trained.is_fp32 &&
            strncmp(u->unit[i].name, e->name, sizeof e->name - 1) == 0)
            is_rounded = false;
    return is_rounded ? 2 : sizeof(float);
}

/* The axis that a group is named after (cr_mesh_create): "actor_train.fsdp". */
static cr_axis axis_of(const char *group)
{
    const char *dot = strrchr(group, '.');
    cr_axis axis = CR_AXIS_ALL;

    while (axis < CR_NUM_AXES && strcmp(dot ? dot + 1 : "", cr_axis_name(axis)) != 0)
        axis++;
    CR_CHECK(axis < CR_NUM_AXES, "group %s has no axis", group);
    return axis;
}

static void see_call(void *ctx, const cr_flight_event *e)
{
    bench *b = ctx;
    cr_plan_passes *p = &b->role->passes;
    cr_plan_call c = {.call = {.coll = (cr_coll)e->coll, .num_bytes = e->num_bytes}};
    size_t i = 0;

    if (b->pass == CR_PLAN_PASSES || e->num_ranks < 2) return;
    c.axis = axis_of(e->group);
    c.call.elem_bytes = elem_bytes_of(b, e);
    while (i < p->num_calls && (p->call[i].axis != c.axis || p->call[i].call.coll != c.call.coll ||
                                p->call[i].call.num_bytes != c.call.num_bytes ||
                                p->call[i].call.elem_bytes != c.call.elem_bytes))
        i++;
    if (i == p->num_calls) {
        p->call = cr_realloc(p->call, i * sizeof c, (i + 1) * sizeof c);
        p->call[p->num_calls++] = c;
    }
    p->call[i].times[b->pass]++;
}

/* What follows is a pass of a step. */
static counts begin(bench *b, cr_plan_pass pass)
{
    b->pass = pass;
    return count(b);
}

/* It has ended; a step has it so often. */
static void add(cr_plan_role *out, bench *b, const counts *then, int64_t times)
{
    counts now = count(b);
    struct cr_plan_work *w = &out->passes.work[b->pass];

    add_count(&out->step.gathers, &now.t.gathers, &then->t.gathers, times);
    add_count(&out->step.reduces, &now.t.reduces, &then->t.reduces, times);
    add_count(&out->step.all_reduces, &now.t.all_reduces, &then->t.all_reduces, times);
    add_flight(&out->all_to_alls, &now.all_to_alls, &then->all_to_alls, times);
    add_flight(&out->smalls, &now.smalls, &then->smalls, times);
    w->flops = now.work.flops - then->work.flops;
    w->attention_flops = now.work.attention_flops - then->work.attention_flops;
    w->moved_bytes = now.work.moved_bytes - then->work.moved_bytes;
    out->step_flops += w->flops * (double)times;
    out->passes.times[b->pass] = times;
    b->pass = CR_PLAN_PASSES;
}

/* ---- bytes ---- */

int64_t cr_plan_sum(const cr_plan_bytes *b)
{
    return b->masters + b->gradients + b->moments + b->values + b->gathered + b->reduction +
           b->kept + b->tape + b->scratch;
}

int64_t cr_plan_peak(const cr_plan_role *role)
{
    int64_t max = 0;

    for (size_t i = 0; i < role->num_phases; i++) {
        int64_t n = cr_plan_sum(&role->phase[i].bytes);
        if (n > max) max = n;
    }
    return max;
}

/* kept: what the device holds beside shards, measured before the first pass. */
static cr_plan_bytes bytes_of(const bench *b, const cr_worker_config *w, const cr_plan_role *role,
                              const cr_fsdp_stats *s, int64_t kept)
{
    const cr_units *u = cr_fsdp_units(b->f);
    int64_t master = role->is_train ? (int64_t)cr_dtype_bytes(cr_dtype_of(w->master_dtype)) : 0,
            trained = u->trained_shard.elems;
    cr_dtype dtype = cr_dtype_of(w->dtype);
    cr_plan_bytes p = {.gathered = s->gather_bytes + cr_fsdp_get_stats(b->f).weight_bytes,
                       .reduction = s->reduce_bytes,
                       .kept = kept,
                       .tape = s->tape_peak_bytes,
                       .scratch = s->scratch_peak_bytes};

    if (w->is_offloaded) return p;
    p.masters = trained * master;
    p.gradients = role->is_train ? 4 * trained : 0;
    p.moments = cr_fsdp_get_stats(b->f).moment_elems * master;
    p.values = cr_extent_bytes(u->frozen_shard, dtype) +
               (role->is_train ? 0 : cr_extent_bytes(u->trained_shard, dtype));
    return p;
}

static void add_phase(cr_plan_role *out, const char *name, cr_plan_bytes bytes)
{
    CR_CHECK(out->num_phases < CR_PLAN_MAX_PHASES, "too many phases");
    out->phase[out->num_phases++] = (struct cr_plan_phase){name, bytes};
}

/* ---- a role ---- */

static cr_status bench_open(bench *b, cr_model *model, const cr_worker_config *w,
                            cr_plan_role *role, cr_err *err)
{
    cr_fsdp_args args = cr_fsdp_args_of(w, role->is_train);
    cr_world_args meta = {.kind = CR_WORLD_META, .meta_num_ranks = role->mesh.num_ranks};
    int *ranks = CR_NEW_ARRAY(int, role->mesh.num_ranks);

    for (int r = 0; r < role->mesh.num_ranks; r++)
        ranks[r] = r;
    args.max_grad_norm = 1;
    *b = (bench){.role = role, .worker = w, .model = model, .pass = CR_PLAN_PASSES};
    if (cr_world_open(&meta, &b->world, err) == CR_OK &&
        cr_device_open("meta", 1, &b->dev, err) == CR_OK &&
        cr_mesh_create(b->world, b->dev, role->name, ranks, &role->mesh, &b->mesh, err) == CR_OK)
        cr_note(cr_fsdp_create(model, b->dev, b->mesh, &args, &b->f, err));
    if (err->status == CR_OK) cr_flight_watch(b->world, see_call, b);
    cr_free(ranks);
    return err->status;
}

static void bench_close(bench *b)
{
    cr_packed_free(&b->packed);
    images_free(b);
    cr_free(b->drop_keys);
    cr_free(b->chosen);
    cr_fsdp_destroy(b->f);
    cr_mesh_destroy(b->mesh);
    if (b->dev) cr_device_close(b->dev);
    if (b->world) cr_world_close(b->world);
}

static cr_status at_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                         cr_err *err)
{
    bench *b = ctx;

    (void)out;
    (void)grad;
    (void)num, (void)err;
    b->after_forward = cr_fsdp_get_stats(b->f);
    return CR_OK;
}

static cr_status no_loss(void *ctx, int64_t first_row, int64_t num_rows, const float *logits,
                         float *grad, cr_err *err)
{
    (void)ctx, (void)first_row, (void)num_rows, (void)logits, (void)grad;
    return err->status;
}

/* What the next backward's loss is over, beside labels. */
static void set_teacher(bench *b, const cr_plan_batch *p)
{
    static const cr_logits_loss whole = {no_loss, NULL, 1};

    if (p->has_states) cr_fsdp_set_logits_loss(b->f, &whole);
    if (p->chosen == 0) return;
    if (!b->chosen)
        b->chosen = CR_NEW_ARRAY(int32_t, (size_t)(b->packed.batch.num_tokens * p->chosen));
    cr_fsdp_set_chosen(b->f, b->chosen, p->chosen, 1);
}

static cr_status micro(bench *b, const cr_plan_batch *p, cr_err *err)
{
    const cr_adapter_options *adapters = b->model->adapters;
    cr_batch batch = b->packed.batch;

    if (adapters && adapters->dropout > 0)
        batch.drop_keys = b->drop_keys = cr_reserve(b->drop_keys, &b->capacity_drop_keys,
                                                    (size_t)batch.num_tokens, sizeof *b->drop_keys);
    set_teacher(b, p);
    return cr_fsdp_backward(b->f, &batch, at_loss, b, err);
}

static cr_status update(bench *b, cr_err *err)
{
    cr_update result;

    return cr_fsdp_update(b->f, 1e-6, &result, err);
}

/* ---- moments ---- */

/* Keeps the fuller of two neighbours; their width is that of both. */
static void merge(cr_plan_moment *a, const cr_plan_moment *b)
{
    double flops = b->flops;

    if (cr_plan_sum(&b->bytes) > cr_plan_sum(&a->bytes)) *a = *b;
    a->flops = flops;
}

/* Each place stands for b->stride moments; when all places are full, for twice as many. */
static void add_moment(bench *b, const cr_plan_moment *x)
{
    cr_plan_role *r = b->role;

    if (!r->moment) r->moment = CR_NEW_ARRAY(cr_plan_moment, CR_PLAN_MAX_MOMENTS);
    if (b->num_in_last < b->stride) {
        merge(&r->moment[r->num_moments - 1], x);
        b->num_in_last++;
        return;
    }
    if (r->num_moments == CR_PLAN_MAX_MOMENTS) {
        for (size_t i = 0; i < CR_PLAN_MAX_MOMENTS / 2; i++) {
            if (i) r->moment[i] = r->moment[2 * i];
            merge(&r->moment[i], &r->moment[2 * i + 1]);
        }
        r->num_moments /= 2;
        b->stride *= 2;
    }
    r->moment[r->num_moments++] = *x;
    b->num_in_last = 1;
}

static void see(void *ctx, const cr_fsdp_moment *m)
{
    static const char *const phases[] = {"forward", "recompute of", "backward"};
    bench *b = ctx;
    cr_plan_moment x = {.bytes = b->standing};

    x.bytes.gathered += m->gathered;
    x.bytes.reduction = m->reduction;
    x.bytes.tape = m->tape;
    x.bytes.scratch = m->scratch;
    x.flops = cr_device_get_stats(b->dev).flops - b->first_flops;
    snprintf(x.what, sizeof x.what, "%s %s", phases[m->phase],
             m->module->parent ? m->module->name : "the model");
    add_moment(b, &x);
}

static void watch(bench *b, const cr_worker_config *w, const cr_plan_role *out, int64_t kept)
{
    const cr_fsdp_stats none = {0};

    if (!out->with_moments) return;
    b->standing = bytes_of(b, w, out, &none, kept);
    b->first_flops = cr_device_get_stats(b->dev).flops;
    b->stride = b->num_in_last = 1;
    cr_fsdp_watch(b->f, see, b);
}

/* ---- passes ---- */

static cr_status plan_training(bench *b, const cr_worker_config *w, const cr_plan_batch *p,
                               int64_t kept, cr_plan_role *out, cr_err *err)
{
    cr_fsdp_stats s;
    counts then;

    CR_TRY(batch_make(b, p, p->num_samples, p->train_tokens, err));
    CR_TRY(micro(b, p, err));
    add_phase(out, "forward", bytes_of(b, w, out, &b->after_forward, kept));
    s = cr_fsdp_get_stats(b->f);
    add_phase(out, "backward", bytes_of(b, w, out, &s, kept));
    CR_TRY(update(b, err));
    watch(b, w, out, kept);
    then = begin(b, CR_PLAN_FIRST);
    CR_TRY(micro(b, p, err));
    add(out, b, &then, p->updates);
    then = begin(b, CR_PLAN_NEXT);
    if (p->micros > 1) CR_TRY(micro(b, p, err));
    add(out, b, &then, p->updates * (p->micros - 1));
    then = begin(b, CR_PLAN_UPDATE);
    CR_TRY(update(b, err));
    add(out, b, &then, p->updates);
    s = cr_fsdp_get_stats(b->f);
    s.tape_peak_bytes = 0; /* its memory stays reserved; an update needs none */
    out->max_units_alive = s.max_units_alive;
    add_phase(out, "update", bytes_of(b, w, out, &s, kept));
    if (out->with_moments) {
        cr_plan_moment last = {.bytes = b->standing, .what = "update"};
        last.flops = cr_device_get_stats(b->dev).flops - b->first_flops;
        b->num_in_last = b->stride; /* a place of its own */
        add_moment(b, &last);
    }
    return CR_OK;
}

static cr_status plan_log_probs(bench *b, const cr_worker_config *w, const cr_plan_batch *p,
                                int64_t kept, cr_plan_role *out, cr_err *err)
{
    size_t rows;
    cr_outputs result = {{NULL}};
    cr_fsdp_stats s;
    counts then;

    CR_TRY(batch_make(b, p, p->num_infer, p->infer_tokens, err));
    rows = (size_t)b->packed.batch.num_tokens;
    for (int i = 0; i < CR_NUM_OUTPUTS; i++)
        if (cr_model_gives(b->model, (cr_output)i)) result.of[i] = CR_NEW_ARRAY(float, rows);
    if (!out->is_train && p->chosen) {
        result.num_top = p->chosen;
        result.top_ids = CR_NEW_ARRAY(int32_t, rows * (size_t)p->chosen);
        result.top_log_probs = CR_NEW_ARRAY(float, rows *(size_t)p->chosen);
    }
    if (!out->is_train && p->has_states) {
        result.num_states = b->model->config.hidden_size;
        result.states = CR_NEW_ARRAY(float, rows *(size_t)result.num_states);
    }
    for (int off = 0; off < 2; off++) {
        const int64_t times = off ? p->base_forwards : p->forwards;
        if (times == 0) continue;
        cr_fsdp_set_adapter(b->f, off ? CR_NO_ADAPTER : 0);
        CR_TRY_GOTO(out, cr_fsdp_forward(b->f, &b->packed.batch, &result, err));
        if (!out->is_train) watch(b, w, out, kept);
        then = begin(b, off ? CR_PLAN_BASE : CR_PLAN_FORWARD);
        CR_TRY_GOTO(out, cr_fsdp_forward(b->f, &b->packed.batch, &result, err));
        add(out, b, &then, times);
    }
    s = cr_fsdp_get_stats(b->f);
    if (!out->is_train) out->max_units_alive = s.max_units_alive;
    add_phase(out, cr_model_gives(b->model, CR_VALUE) ? "values" : "log-probs",
              bytes_of(b, w, out, &s, kept));
out:
    for (int i = 0; i < CR_NUM_OUTPUTS; i++)
        cr_free(result.of[i]);
    cr_free(result.top_ids);
    cr_free(result.top_log_probs);
    cr_free(result.states);
    return err->status;
}

static int64_t count_adapters(const cr_module *m)
{
    int64_t num = m->adapters != NULL;

    for (size_t i = 0; i < m->num_children; i++)
        num += count_adapters(m->children[i]);
    return num;
}

static void describe(const bench *b, const cr_model *model, const cr_worker_config *w,
                     cr_plan_role *out)
{
    const cr_units *u = cr_fsdp_units(b->f);

    out->num_elems = out->num_trained = out->num_trained_tensors = out->full_elems =
        out->copied_elems =
            0; /* of all ranks: expert-parallel experts of other ranks are not here */
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        *(p->copy_of ? &out->copied_elems : &out->num_elems) += p->num_elems;
        if (!p->is_trainable) continue;
        out->num_trained += p->num_elems;
        out->num_trained_tensors++;
        if (p->is_adapter && !p->is_added) out->full_elems += p->num_elems;
    }
    out->num_adapters = count_adapters(model->root);
    out->shard_elems = u->trained_shard.elems;
    out->hidden_size = model->config.hidden_size;
    out->num_units = u->num;
    out->host_bytes = cr_fsdp_get_stats(b->f).host_bytes;
    cr_units_write_tree(u, model, cr_dtype_of(w->dtype), &out->tree);
}

/* Which parameters have a rate of their own. */
static cr_status describe_groups(const cr_model *model, const cr_worker_config *w,
                                 cr_plan_role *out, cr_err *err)
{
    const cr_optimizer_options options = cr_optimizer_options_of(&w->training);
    cr_param_choice *choices;

    if (!out->is_train || (options.num_rules == 0 && !options.muon.is_on)) return CR_OK;
    choices = CR_NEW_ARRAY(cr_param_choice, model->num_params);
    if (cr_optimizer_choose(model, &options, w->training.weight_decay, choices, err) == CR_OK)
        cr_optimizer_write(model, &options, choices, w->training.learning_rate, &out->groups);
    cr_free(choices);
    return err->status;
}

static void see_largest(const bench *b, cr_plan_role *out)
{
    cr_device_stats s = cr_device_get_stats(b->dev);

    if (s.max_elems <= out->max_elems) return;
    out->max_elems = s.max_elems;
    out->max_elems_in = s.max_elems_in;
}

cr_status cr_plan_run(cr_model *model, const cr_worker_config *w, int num_ranks,
                      const cr_plan_batch *p, cr_plan_role *out, cr_err *err)
{
    bool with_log_probs = p->forwards + p->base_forwards > 0;
    bench b = {0};

    CR_TRY(cr_mesh_shape_of(w, num_ranks, &out->mesh, err));
    cr_experts_set(model, w);
    /* each kind of pass on buffers of its own, so that each phase has its own peaks */
    for (int part = with_log_probs ? 0 : 1; part < (out->is_train ? 2 : 1); part++) {
        int64_t kept;
        cr_fsdp_stats s;
        if (bench_open(&b, model, w, out, err) != CR_OK) break;
        cr_fsdp_set_aux_weight(b.f, cr_aux_weight(model, w, 1));
        s = cr_fsdp_get_stats(b.f);
        kept =
            (int64_t)cr_device_get_stats(b.dev).bytes_now - (w->is_offloaded ? 0 : s.shard_bytes);
        if (out->is_train) kept += p->table_bytes;
        if (out->num_phases == 0) {
            describe(&b, model, w, out);
            if (p->sends && w->task == CR_TASK_TRAIN)
                out->sent_bytes = cr_fsdp_sync_bytes(b.f, p->sent_dtype, p->sends_frozen);
            if (describe_groups(model, w, out, err) != CR_OK) break;
            add_phase(out, "between", bytes_of(&b, w, out, &s, kept));
        }
        cr_note(part ? plan_training(&b, w, p, kept, out, err)
                     : plan_log_probs(&b, w, p, kept, out, err));
        see_largest(&b, out);
        bench_close(&b);
        b = (bench){0};
        if (err->status != CR_OK) break;
    }
    bench_close(&b);
    return err->status;
}

void cr_plan_role_free(cr_plan_role *role)
{
    cr_buf_free(&role->tree);
    cr_buf_free(&role->groups);
    cr_free(role->passes.call);
    cr_free(role->moment);
    cr_free(role->sent_bytes);
}
