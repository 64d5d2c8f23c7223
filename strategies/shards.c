/* shards.c -- what a rank keeps between passes (see fsdp_impl.h), and where: on the device, or on the
 * host (offload_policy: always; cr_fsdp_offload: until cr_fsdp_load). */
#include "strategies/fsdp_impl.h"

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

cr_dtype cri_shard_dtype(const cr_fsdp *f, const cr_flat *flat, bool is_trained)
{
    return is_trained && f->args.is_train ? f->args.master_dtype : cri_dtype(f, flat);
}

cr_mem *cri_shard(const cr_fsdp *f, const cr_flat *flat, bool is_trained)
{
    if (is_trained && f->args.is_train)
        return cr_at(f->args.master_dtype, f->master, flat->first.elems);
    return cr_mem_add(is_trained ? f->values : f->frozen,
                      (size_t)cr_extent_bytes(flat->first, f->args.param_dtype));
}

cr_mem *cri_weights(const cr_fsdp *f, const cri_flat *s)
{
    return s->weight_at < 0 ? NULL : cr_at(f->args.param_dtype, f->weights, s->weight_at);
}

cr_status cri_weights_renew(cr_fsdp *f, cr_err *err)
{
    if (!f->weights || !f->has_old_weights) return CR_OK;
    for (size_t i = 0; i < f->units.num; i++) {
        const cri_flat *s = &f->state[i].flat[0];
        if (s->weight_at < 0) continue;
        CR_TRY(cr_cast(f->dev,
                       &(cr_cast_args){f->args.param_dtype, cri_weights(f, s), CR_F32,
                                       cri_shard(f, s->flat, true), (size_t)s->flat->shard_elems},
                       err));
    }
    f->has_old_weights = false;
    return CR_OK;
}

cr_mem *cri_kept(const cr_fsdp *f, bool is_trained, cr_mem *masters)
{
    return !is_trained ? f->frozen : f->args.is_train ? masters : f->values;
}

cr_dtype cri_kept_dtype(const cr_fsdp *f, const cr_param *param)
{
    if (param->is_trainable && f->args.is_train) return f->args.master_dtype;
    return param->is_fp32 ? CR_F32 : f->args.param_dtype;
}

/* A shard of a flat, which is at `at` there. copies: originals, too. */
static void map_flat(const cr_flat *flat, int shard, int holder, int64_t at, cr_dtype dtype,
                     bool copies, cr_weight_map *out)
{
    cr_weight_range r = {.holder = holder, .elem_bytes = (int64_t)cr_dtype_bytes(dtype)};
    int64_t first;

    for (size_t i = 0; i < flat->num_params; i++) {
        if (!copies && flat->params[i]->copy_of) continue;
        if (!cri_shard_range(flat, i, shard, &r.begin, &r.end, &first)) continue;
        r.param = (int32_t)flat->params[i]->index;
        r.at = at + first * r.elem_bytes;
        cr_weight_map_add(out, &r);
    }
}

static const cr_flat *flat_of(const cr_unit *u, bool is_trained)
{
    return is_trained ? &u->trained : &u->frozen;
}

void cri_map_kept(const cr_fsdp *f, bool is_trained, bool is_written, cr_weight_map *out)
{
    bool are_masters = is_trained && f->args.is_train;
    int64_t master_bytes = (int64_t)cr_dtype_bytes(f->args.master_dtype);

    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = flat_of(&f->units.unit[i], is_trained);
        int64_t at = are_masters ? flat->first.elems * master_bytes
                                 : cr_extent_bytes(flat->first, f->args.param_dtype);
        if (!is_written || cri_is_writer(f, flat))
            map_flat(flat, cri_shard_of(f, flat), f->mesh->rank, at,
                     cri_shard_dtype(f, flat, is_trained), /*copies=*/true, out);
    }
}

void cri_map_seconds(const cr_fsdp *f, bool is_written, cr_weight_map *out)
{
    const int64_t bytes = (int64_t)cr_dtype_bytes(f->args.master_dtype);
    cr_weight_range r = {.holder = f->mesh->rank, .elem_bytes = bytes};
    int64_t at;

    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = &f->units.unit[i].trained;
        if (is_written && !cri_is_writer(f, flat)) continue;
        for (size_t k = 0; k < flat->num_params; k++) {
            r.param = (int32_t)flat->params[k]->index;
            if (f->seconds[r.param] < 0 ||
                !cri_shard_range(flat, k, cri_shard_of(f, flat), &r.begin, &r.end, &at))
                continue;
            r.at = f->seconds[r.param] * bytes;
            cr_weight_map_add(out, &r);
        }
    }
}

void cri_map_sent(const cr_fsdp *f, bool is_trained, cr_dtype dtype, cr_weight_map *out)
{
    int64_t before = is_trained ? 0 : cr_extent_bytes(f->units.trained_shard, dtype);

    for (size_t i = 0; i < f->units.num; i++) {
        const cr_flat *flat = flat_of(&f->units.unit[i], is_trained);
        map_flat(flat, cri_shard_of(f, flat), f->mesh->rank,
                 before + cr_extent_bytes(flat->first, dtype), cr_flat_dtype(flat, dtype),
                 /*copies=*/false, out);
    }
}

void cri_map_all_sent(const cr_fsdp *f, cr_dtype dtype, cr_weight_map *out)
{
    const cr_mesh_shape *m = &f->mesh->shape;

    for (size_t i = 0; i < f->units.num; i++)
        for (int is_trained = 0; is_trained < 2; is_trained++) {
            const cr_flat *flat = flat_of(&f->units.unit[i], is_trained);
            const int first = flat->is_ep ? m->num_fsdp : 0;
            for (int s = 0; s < (flat->is_ep ? m->num_efsdp : m->num_fsdp); s++)
                map_flat(flat, s, first + s, 0, cr_flat_dtype(flat, dtype), /*copies=*/false, out);
        }
}

/* ---- arenas ---- */

static const unsigned state_of[CRI_NUM_KINDS] = {
    [CRI_MASTER] = CR_STATE_PARAMS, [CRI_GRAD] = CR_STATE_GRADS,    [CRI_M] = CR_STATE_MOMENTS,
    [CRI_V] = CR_STATE_MOMENTS,     [CRI_VALUES] = CR_STATE_PARAMS, [CRI_WEIGHTS] = CR_STATE_PARAMS,
    [CRI_FROZEN] = CR_STATE_PARAMS};

cr_mem *cri_arena_at(const cr_fsdp *f, cri_kind kind)
{
    const cri_arena *a = &f->arena[kind];

    return a->is_away ? NULL : f->args.is_offloaded ? a->on_host : a->on_device;
}

static void point(cr_fsdp *f)
{
    f->master = cri_arena_at(f, CRI_MASTER);
    f->grad = cri_arena_at(f, CRI_GRAD);
    f->m = cri_arena_at(f, CRI_M);
    f->v = cri_arena_at(f, CRI_V);
    f->values = cri_arena_at(f, CRI_VALUES);
    f->weights = cri_arena_at(f, CRI_WEIGHTS);
    f->frozen = cri_arena_at(f, CRI_FROZEN);
}

cr_device *cri_home(const cr_fsdp *f)
{
    return f->args.is_offloaded ? f->host : f->dev;
}

static cr_status allocate(cr_fsdp *f, cri_kind kind, size_t num_bytes, cr_err *err)
{
    cri_arena *a = &f->arena[kind];

    CR_TRY(f->args.is_offloaded ? cr_host_alloc(f->dev, num_bytes, &a->on_host, err)
                                : cr_device_alloc(f->dev, num_bytes, &a->on_device, err));
    a->num_bytes = num_bytes;
    f->stats.shard_bytes += (int64_t)num_bytes;
    return cr_zero(cri_home(f), cri_arena_at(f, kind), num_bytes, err);
}

/* Gradients without a sum, and weights, which come from the masters: nothing is kept of them. */
static cr_status move_none(cr_fsdp *f, cri_kind kind, bool is_away, cr_err *err)
{
    cri_arena *a = &f->arena[kind];

    if (!is_away) CR_TRY(cr_device_alloc(f->dev, a->num_bytes, &a->on_device, err));
    f->has_old_weights = f->has_old_weights || kind == CRI_WEIGHTS;
    a->is_away = is_away;
    return CR_OK;
}

/* Queued on the device's stream. The host's memory stays, and what has not changed since it came from there does not go back. */
static cr_status move(cr_fsdp *f, cri_kind kind, bool is_away, cr_err *err)
{
    cri_arena *a = &f->arena[kind];

    if (a->num_bytes == 0 || a->is_away == is_away || f->args.is_offloaded) return CR_OK;
    if (kind == CRI_WEIGHTS || (kind == CRI_GRAD && !f->has_grad))
        return move_none(f, kind, is_away, err);
    if (!a->on_host) CR_TRY(cr_host_alloc(f->dev, a->num_bytes, &a->on_host, err));
    if (!is_away) {
        CR_TRY(cr_device_alloc(f->dev, a->num_bytes, &a->on_device, err));
        CR_TRY(cr_upload_async(f->dev, a->on_device, a->on_host, a->num_bytes, err));
    } else if (!a->is_copied) {
        CR_TRY(cr_download_async(f->dev, a->on_host, a->on_device, a->num_bytes, err));
    }
    a->is_copied = kind != CRI_GRAD;
    a->is_away = is_away;
    return CR_OK;
}

/* When all copies to the host are queued: waits for them, and frees what was copied. */
static cr_status leave(cr_fsdp *f, cr_err *err)
{
    CR_TRY(cr_device_sync(f->dev, err));
    for (int kind = 0; kind < CRI_NUM_KINDS; kind++) {
        cri_arena *a = &f->arena[kind];
        if (!a->is_away) continue;
        cr_device_free(f->dev, a->on_device, a->num_bytes);
        a->on_device = NULL;
    }
    return CR_OK;
}

/* A load is not waited for: what computes with the states comes after it on the stream, and the host goes on. */
static cr_status move_states(cr_fsdp *f, unsigned states, bool is_away, cr_err *err)
{
    for (int kind = 0; kind < CRI_NUM_KINDS && err->status == CR_OK; kind++)
        if (state_of[kind] & states) cr_note(move(f, (cri_kind)kind, is_away, err));
    if (is_away && err->status == CR_OK) cr_note(leave(f, err));
    point(f);
    return cr_agree(f->mesh->group[CR_AXIS_ALL], is_away ? "offload" : "load", err);
}

void cri_states_changed(cr_fsdp *f)
{
    f->has_old_weights = true;
    for (int kind = 0; kind < CRI_NUM_KINDS; kind++)
        f->arena[kind].is_copied = false;
}

cr_status cr_fsdp_offload(cr_fsdp *f, unsigned states, cr_err *err)
{
    if (f->save && states & CR_STATE_PARAMS) /* its writer reads frozen shards */
        CR_TRY(cr_fsdp_save_wait(f, NULL, err));
    if (states & CR_STATE_PARAMS) CR_TRY(cri_reshard_all(f, err));
    CR_TRY(move_states(f, states, true, err));
    if (states & CR_STATE_BUFFERS && !f->has_whole_grad) {
        CR_TRY(cri_reshard_all(f, err));
        cri_buffers_destroy(f);
        cr_free(f->host_rows);
        f->host_rows = NULL;
        f->num_host_rows = 0;
        cr_free(f->host_chosen);
        f->host_chosen = NULL;
        f->num_host_chosen = 0;
    }
    return CR_OK;
}

cr_status cr_fsdp_load(cr_fsdp *f, unsigned states, cr_err *err)
{
    CR_TRY(move_states(f, states, false, err));
    return states & CR_STATE_BUFFERS && !f->tape ? cri_buffers_create(f, err) : CR_OK;
}

cr_status cri_need_states(const cr_fsdp *f, unsigned states, const char *what, cr_err *err)
{
    static const char *const names[] = {"parameters", "gradients", "moments", "buffers"};

    for (int kind = 0; kind < CRI_NUM_KINDS; kind++)
        if (state_of[kind] & states && f->arena[kind].is_away)
            return cr_fail(err, CR_EARG, "%s: the %s are offloaded (load them first)", what,
                           names[__builtin_ctz(state_of[kind])]);
    if (states & CR_STATE_BUFFERS && !f->tape)
        return cr_fail(err, CR_EARG, "%s: the buffers are offloaded (load them first)", what);
    return CR_OK;
}

/* ---- first values ---- */

/* Fill this rank's elements of trained or frozen parameters, from the source or from random numbers. */
static cr_status fill(cr_fsdp *f, const cr_weights *source, bool is_trained, cr_err *err)
{
    enum { CHUNK = 1 << 20 };
    cr_mem *kept = cri_kept(f, is_trained, f->master);
    cr_weight_map map = {0};
    float *chunk = CR_NEW_ARRAY(float, CHUNK);
    void *stored = CR_NEW_ARRAY(float, CHUNK);

    cri_map_kept(f, is_trained, /*is_written=*/false, &map);
    for (size_t i = 0; i < map.num; i++) {
        const cr_weight_range *r = &map.range[i];
        cr_param *p = f->model->params[r->param];
        cr_dtype dtype = cri_kept_dtype(f, p);
        for (int64_t e = r->begin; e < r->end && err->status == CR_OK; e += CHUNK) {
            int64_t stop = r->end - e < CHUNK ? r->end : e + CHUNK;
            size_t num = (size_t)(stop - e);
            if (cr_weights_fill(source, f->model, p, f->args.seed, e, stop, chunk, err) != CR_OK)
                break;
            if (dtype != CR_F32) cr_cast_host(dtype, stored, CR_F32, chunk, num);
            cr_note(cr_upload(cri_home(f),
                              cr_mem_add(kept, (size_t)(r->at + (e - r->begin) * r->elem_bytes)),
                              dtype == CR_F32 ? chunk : stored, num * cr_dtype_bytes(dtype), err));
        }
    }
    cr_weight_map_free(&map);
    cr_free(chunk);
    cr_free(stored);
    return err->status;
}

static cr_status fill_all(cr_fsdp *f, cr_err *err)
{
    cr_weights *source = NULL;

    if (f->args.source) CR_TRY(cr_weights_open(f->args.source, f->model, &source, err));
    if (fill(f, source, true, err) == CR_OK) cr_note(fill(f, source, false, err));
    cr_weights_close(source);
    return err->status;
}

cr_status cri_shards_read_model(cr_fsdp *f, const char *model_folder, cr_err *err)
{
    cr_weights *source;

    cri_states_changed(f);
    f->frozen_version++;
    CR_TRY(cr_weights_open(model_folder, f->model, &source, err));
    if (f->args.is_train || fill(f, source, true, err) == CR_OK)
        cr_note(fill(f, source, false, err));
    cr_weights_close(source);
    return err->status;
}

/* With reshard never, a shard that is a whole flat is kept in param_dtype beside its master: no pass gathers it. Returns the bytes of all. */
static size_t place_weights(cr_fsdp *f)
{
    int64_t elems = 0;

    if (!f->args.is_train || f->args.reshard != CR_RESHARD_NEVER || f->args.is_offloaded ||
        f->args.master_dtype != CR_F32 || f->args.param_dtype == CR_F32)
        return 0;
    for (size_t i = 0; i < f->units.num; i++) {
        cri_flat *s = &f->state[i].flat[0];
        if (s->flat->num_params == 0 || s->flat->is_fp32 || cri_is_cut(f, s->flat)) continue;
        s->weight_at = elems;
        elems += s->flat->shard_elems;
    }
    f->stats.weight_bytes = elems * (int64_t)cr_dtype_bytes(f->args.param_dtype);
    return (size_t)f->stats.weight_bytes;
}

/* With Muon second moments are packed; else they are where the masters are. */
static void place_seconds(cr_fsdp *f)
{
    const bool is_packed = f->args.optimizer.muon.is_on;
    int64_t begin, end, at;

    f->seconds = CR_NEW_ARRAY(int64_t, f->model->num_params);
    for (int is_ep = 0; is_ep < 2; is_ep++) {
        for (size_t i = 0; i < f->units.num; i++) {
            const cr_flat *flat = &f->units.unit[i].trained;
            for (size_t k = 0; k < flat->num_params && flat->is_ep == is_ep; k++) {
                const size_t index = flat->params[k]->index;
                const bool is_here =
                    cri_shard_range(flat, k, cri_shard_of(f, flat), &begin, &end, &at);
                f->seconds[index] = -1;
                if (!is_here || f->choices[index].is_muon) continue;
                f->seconds[index] = is_packed ? f->num_seconds : flat->first.elems + at;
                f->num_seconds += (end - begin + CR_FLAT_ALIGN - 1) / CR_FLAT_ALIGN * CR_FLAT_ALIGN;
            }
        }
        if (!is_ep) f->num_common_seconds = f->num_seconds;
    }
    if (is_packed) return;
    f->num_seconds = f->units.trained_shard.elems;
    f->num_common_seconds = f->units.common_trained.elems;
}

cr_status cri_shards_create(cr_fsdp *f, cr_err *err)
{
    const cr_units *u = &f->units;
    size_t trained = (size_t)u->trained_shard.elems,
           master_bytes = cr_dtype_bytes(f->args.master_dtype),
           values = (size_t)cr_extent_bytes(u->trained_shard, f->args.param_dtype),
           frozen = (size_t)cr_extent_bytes(u->frozen_shard, f->args.param_dtype),
           weights = place_weights(f);

    CR_TRY(cr_device_open(cr_device_is_meta(f->dev) ? "meta" : "cpu",
                          cr_device_host_threads(f->dev), &f->host, err));
    f->host_scratch = cr_stack_create(f->host);
    if (f->args.is_train) {
        place_seconds(f);
        f->stats.moment_elems = (int64_t)trained + f->num_seconds;
        CR_TRY(allocate(f, CRI_MASTER, trained * master_bytes, err));
        CR_TRY(allocate(f, CRI_GRAD, trained * sizeof(float), err));
        CR_TRY(allocate(f, CRI_M, trained * master_bytes, err));
        CR_TRY(allocate(f, CRI_V, (size_t)f->num_seconds * master_bytes, err));
        if (weights) CR_TRY(allocate(f, CRI_WEIGHTS, weights, err));
    } else {
        CR_TRY(allocate(f, CRI_VALUES, values, err));
    }
    CR_TRY(allocate(f, CRI_FROZEN, frozen, err));
    point(f);
    f->frozen_version = 1;
    cri_states_changed(f);
    return cr_device_is_meta(f->dev) ? CR_OK : fill_all(f, err);
}

void cri_shards_destroy(cr_fsdp *f)
{
    for (int kind = 0; kind < CRI_NUM_KINDS; kind++) {
        cri_arena *a = &f->arena[kind];
        cr_device_free(f->dev, a->on_device, a->num_bytes);
        cr_host_free(f->dev, a->on_host, a->num_bytes);
    }
    cr_weight_map_free(&f->senders);
    cr_stack_destroy(f->host_scratch);
    cr_device_close(f->host);
}

int cri_max_alive(const cr_fsdp *f, bool are_trained)
{
    int max = 1, num = 0, layer = -1;
    bool has_expert = false;

    for (size_t i = 1; i < f->units.num; i++) {
        const cr_unit *u = &f->units.unit[i];
        const cr_module *m = u->module;
        bool is_block = m->layer < 0 && m->parent && m->parent->is_container;
        bool is_same = m->layer == layer && !is_block && !m->is_lookup;
        int outer = 0;
        if (u->is_ep) continue; /* they have a pool of their own */
        if (are_trained && u->trained.num_params == 0) continue;
        for (const cr_module *up = m->parent; up && up->parent; up = up->parent) {
            const cri_unit *around = up->unit;
            outer += around && up->layer < 0 && (!are_trained || around->unit->trained.num_params);
        }
        if (!is_same) num = 0, has_expert = false;
        if (!u->is_expert || !has_expert) num++;
        has_expert = has_expert || u->is_expert;
        layer = m->layer;
        if (num + outer > max) max = num + outer;
    }
    return max;
}
