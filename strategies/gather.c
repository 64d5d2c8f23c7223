/* gather.c -- gathered copies of units around the modules that use them, and the gradients of units.
 *
 * Gathered copies are slots of pools: the root's, which stays until the weights change; the units', of
 * which two are alive (the one that runs and the one that comes next) plus one for each unit that
 * nests in the same layer; and, to gather again after a reshard to fewer ranks, a pool over those. A
 * rank without a batch walks the tree and meets the same hooks.
 */
#include "strategies/fsdp_impl.h"
#include "strategies/lanes.h"

#include <string.h>

void cri_count(cr_fsdp *f, cri_traffic kind, size_t num_bytes)
{
    cr_traffic *t = &f->stats.traffic;
    cr_traffic_count *counts[] = {&t->gathers, &t->reduces, &t->all_reduces};

    counts[kind]->num++;
    counts[kind]->num_bytes += (int64_t)num_bytes;
}

/* ---- slots ---- */

static void slots_create(cri_slots *s, int num)
{
    s->free = CR_NEW_ARRAY(int, num);
    s->num = num;
    while (s->num_free < num) {
        s->free[s->num_free] = num - 1 - s->num_free;
        s->num_free++;
    }
}

static int slots_take(cri_slots *s, const cr_unit *u)
{
    CR_CHECK(s->num_free > 0, "no slot is left for %s", u->name);
    return s->free[--s->num_free];
}

static void slots_give(cri_slots *s, int slot)
{
    s->free[s->num_free++] = slot;
}

/* ---- where a unit's values are ---- */

static bool is_cut(const cri_unit *u)
{
    return cri_is_cut(u->f, &u->unit->trained);
}

static cri_pool *pool_of(cri_unit *u)
{
    cr_fsdp *f = u->f;

    return u->index == 0    ? &f->root_pool
           : u->unit->is_ep ? &f->ep_pool
           : u->is_sliced   ? &f->slice_pool
                            : &f->pool;
}

/* Its gradient is accumulated in a slot of its own, not in the shard. */
static bool is_reduced(const cri_unit *u)
{
    return is_cut(u) || u->f->args.is_offloaded;
}

/* Its shard is the whole flat in its dtype already, on the device. */
static bool is_resident(const cri_unit *u, int kind)
{
    const cri_flat *s = &u->flat[kind];

    return !is_cut(u) && !u->f->args.is_offloaded &&
           (s->weight_at >= 0 ||
            cri_shard_dtype(u->f, s->flat, kind == 0) == cri_dtype(u->f, s->flat));
}

static bool is_gathered(const cri_unit *u, int kind)
{
    return u->flat[kind].flat->num_params > 0 && !is_resident(u, kind);
}

static int slots_needed(const cri_unit *u)
{
    return is_gathered(u, 0) + is_gathered(u, 1);
}

/* ---- unshard ---- */

cr_status cri_fill_from_host(cr_fsdp *f, cr_dtype to, cr_mem *own, cr_dtype from,
                             const cr_mem *shard, int64_t num, cr_err *err)
{
    cr_device *gather = cri_stream(f, CR_STREAM_GATHER), *upload = cri_stream(f, CR_STREAM_UPLOAD);

    if (to == from)
        return cr_upload_async(gather, own, shard, (size_t)num * cr_dtype_bytes(to), err);
    for (int64_t first = 0; first < num; first += f->staged_elems) {
        int k = f->next_staging++ % CRI_NUM_STAGINGS;
        size_t n = (size_t)(num - first < f->staged_elems ? num - first : f->staged_elems);
        cr_mem *piece = cr_at(CR_F32, f->staging, f->staged_elems * k);
        CR_TRY(cr_event_wait(f->is_cast[k], upload, err));
        CR_TRY(cr_upload_async(upload, piece, cr_at_const(from, shard, first),
                               n * cr_dtype_bytes(from), err));
        CR_TRY(cr_stream_join(gather, upload, err));
        CR_TRY(cr_cast(gather, &(cr_cast_args){to, cr_at(to, own, first), from, piece, n}, err));
        CR_TRY(cr_event_record(f->is_cast[k], gather, err));
    }
    return CR_OK;
}

static cr_status fill_part(cri_unit *u, int kind, cr_mem *own, cr_err *err)
{
    cr_fsdp *f = u->f;
    cr_device *gather = cri_stream(f, CR_STREAM_GATHER);
    const cri_flat *s = &u->flat[kind];
    const cr_flat *flat = s->flat;
    cr_dtype to = cri_dtype(f, flat), from = cri_shard_dtype(f, flat, kind == 0);

    if (u->is_sliced)
        return cr_copy(gather, own, cr_mem_add(f->slices, (size_t)s->slice_at),
                       cri_gathered_bytes(f, flat) / (size_t)f->num_slices, err);
    if (f->args.is_offloaded)
        return cri_fill_from_host(f, to, own, from, cri_shard(f, flat, kind == 0),
                                  flat->shard_elems, err);
    return cr_cast(
        gather,
        &(cr_cast_args){to, own, from, cri_shard(f, flat, kind == 0), (size_t)flat->shard_elems},
        err);
}

/* Take slots, and the place in the order of collectives. */
static cr_status announce(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    cri_pool *pool = pool_of(u);
    int num_parts = u->is_sliced ? f->num_slices : u->unit->num_shards;

    for (int k = 0; k < 2; k++) {
        cri_flat *s = &u->flat[k];
        size_t part_bytes = cri_gathered_bytes(f, s->flat) / (size_t)num_parts;
        if (!is_gathered(u, k)) continue;
        s->pool = pool;
        s->slot = slots_take(&pool->slots, u->unit);
        f->gathered_now += (int64_t)part_bytes * num_parts;
        CR_TRY(cr_gather_announce(pool->gather, s->slot, u->unit->name, part_bytes, err));
        if (is_cut(u)) cri_count(f, CRI_GATHERS, part_bytes * (size_t)num_parts);
    }
    u->state = CRI_ANNOUNCED;
    if (u->index && slots_needed(u) && ++f->num_alive > f->stats.max_units_alive)
        f->stats.max_units_alive = f->num_alive;
    return CR_OK;
}

/* Write the own part into the gathered buffer (when the others have stopped reading what was there) and
 * signal that to them; does not wait for theirs. */
static cr_status publish(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;

    for (int k = 0; k < 2; k++) {
        const cri_flat *s = &u->flat[k];
        cr_mem *own;
        if (!s->pool) continue;
        CR_TRY(cr_gather_begin(s->pool->gather, s->slot, &own, err));
        CR_TRY(fill_part(u, k, own, err));
        CR_TRY(cr_gather_publish(s->pool->gather, s->slot, err));
    }
    u->state = CRI_PUBLISHED;
    return cr_event_record(u->ready, cri_stream(f, CR_STREAM_GATHER), err);
}

static bool is_free(const cri_unit *u)
{
    for (int k = 0; k < 2; k++)
        if (u->flat[k].pool && !cr_gather_is_free(u->flat[k].pool->gather, u->flat[k].slot))
            return false;
    return true;
}

static cr_status unshard(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;

    if (u->state == CRI_UNSHARDED) return CR_OK;
    if (u->state == CRI_SHARDED) CR_TRY(announce(u, err));
    if (u->state == CRI_ANNOUNCED) CR_TRY(publish(u, err));
    if (f->ahead == u) f->ahead = NULL;
    CR_TRY(cr_event_wait(u->ready, f->dev, err));
    for (int k = 0; k < 2; k++) {
        const cri_flat *s = &u->flat[k];
        const cr_flat *flat = s->flat;
        cr_dtype dtype = cri_dtype(f, flat);
        const cr_mem *whole;
        if (flat->num_params == 0) continue;
        if (is_resident(u, k))
            whole = s->weight_at >= 0 ? cri_weights(f, s) : cri_shard(f, flat, k == 0);
        else
            CR_TRY(cr_gather_wait(s->pool->gather, s->slot, &whole, err));
        for (size_t i = 0; i < flat->num_params; i++) {
            cr_param *p = flat->params[i];
            p->weight.data = cr_at_const(dtype, whole, flat->offset[i]);
            p->weight.dtype = dtype;
            p->weight.num_rows = p->shape[0];
            p->weight.num_cols = p->num_elems / p->shape[0];
            p->weight.packed = NULL;
        }
    }
    u->state = CRI_UNSHARDED;
    return CR_OK;
}

bool cr_fsdp_lend(const cr_fsdp *f, cr_model *to)
{
    size_t num = 0;

    if (f->weights) return false; /* a trainer's: each pass may cast them anew */
    for (size_t i = 0; i < f->units.num; i++)
        for (int k = 0; k < 2; k++) {
            const cr_flat *flat = f->state[i].flat[k].flat;
            if (flat->num_params && !is_resident(&f->state[i], k)) return false;
            for (size_t j = 0; j < flat->num_params; j++, num++) {
                const cr_param *own = flat->params[j];
                cr_param *p = cr_model_find_param(to, own->name);
                cr_dtype dtype = cri_dtype(f, flat);
                if (!p || p->num_elems != own->num_elems || p->is_fp32 != own->is_fp32)
                    return false;
                p->weight.data = cr_at_const(dtype, cri_shard(f, flat, k == 0), flat->offset[j]);
                p->weight.dtype = dtype;
                p->weight.packed = NULL;
            }
        }
    return num == to->num_params;
}

/* Drop the gathered copy, if there is one. */
static cr_status reshard(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;

    if (u->state != CRI_UNSHARDED) return CR_OK;
    CR_TRY(cr_stream_join(cri_stream(f, CR_STREAM_GATHER), f->dev, err));
    for (int k = 0; k < 2; k++) {
        cri_flat *s = &u->flat[k];
        for (size_t i = 0; i < s->flat->num_params; i++)
            s->flat->params[i]->weight.data = NULL;
        if (!s->pool) continue;
        CR_TRY(cr_gather_release(s->pool->gather, s->slot, err));
        slots_give(&s->pool->slots, s->slot);
        f->gathered_now -= (int64_t)cri_gathered_bytes(f, s->flat);
        s->pool = NULL;
    }
    u->state = CRI_SHARDED;
    f->num_alive -= u->index && slots_needed(u);
    return CR_OK;
}

cr_status cri_reshard_all(cr_fsdp *f, cr_err *err)
{
    for (size_t i = 0; i < f->units.num; i++) {
        CR_TRY(reshard(&f->state[i], err));
        f->state[i].is_sliced = false;
    }
    return CR_OK;
}

/* After forward with a reshard to fewer ranks: keep this rank's slice of the gathered copy. */
static cr_status keep_slice(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;

    if (!f->slice_group || u->unit->is_ep || u->is_sliced || u->state != CRI_UNSHARDED)
        return CR_OK;
    for (int k = 0; k < 2; k++) {
        const cri_flat *s = &u->flat[k];
        size_t part = cri_gathered_bytes(f, s->flat) / (size_t)f->num_slices;
        const cr_mem *whole;
        if (!s->pool) continue;
        CR_TRY(cr_gather_wait(s->pool->gather, s->slot, &whole, err));
        CR_TRY(cr_copy(f->dev, cr_mem_add(f->slices, (size_t)s->slice_at),
                       cr_mem_add_const(whole, part * (size_t)cr_group_rank(f->slice_group)), part,
                       err));
    }
    u->is_sliced = true;
    return CR_OK;
}

bool cri_is_resident(const cr_fsdp *f)
{
    for (size_t i = 0; i < f->units.num; i++)
        if (slots_needed(&f->state[i])) return false;
    return true;
}

cr_status cri_show_all(cr_fsdp *f, cr_err *err)
{
    for (size_t i = 0; i < f->units.num; i++)
        CR_TRY(unshard(&f->state[i], err));
    return CR_OK;
}

static cri_reduces *reduces_of(cri_unit *u)
{
    return u->index == 0    ? &u->f->root_reduces
           : u->unit->is_ep ? &u->f->ep_reduces
                            : &u->f->reduces;
}

/* Its sum is added to the shard, or is the first there. If that is on the host, what it has comes to the device before, and goes back. */
static cr_status sum_pending(cr_fsdp *f, cr_err *err)
{
    cr_device *reduce = cri_stream(f, CR_STREAM_REDUCE), *copy = cri_stream(f, CR_STREAM_COPY);
    cri_unit *u = f->pending;
    cri_reduces *r = reduces_of(u);
    size_t num_bytes = (size_t)u->unit->trained.shard_elems * sizeof(float);
    cr_mem *shard = cr_at(CR_F32, f->grad, u->unit->trained.first.elems), *sum = shard;

    f->is_pending_summed = true;
    if (f->args.is_offloaded) {
        sum = f->part;
        if (u->has_grad) CR_TRY(cr_upload_async(copy, sum, shard, num_bytes, err));
        CR_TRY(
            cr_stream_join(reduce, copy, err)); /* also after the last sum has gone to the host */
    }
    CR_TRY(cr_reduce_finish(r->reduce, f->pending_slot, sum,
                            u->has_grad ? CR_REDUCE_ADD : CR_REDUCE_SET, err));
    CR_TRY(cr_event_record(r->done[f->pending_slot], reduce, err));
    u->has_grad = true;
    if (!f->args.is_offloaded) return CR_OK;
    CR_TRY(cr_stream_join(copy, reduce, err));
    return cr_download_async(copy, shard, sum, num_bytes, err);
}

/* Advance the outstanding collectives of this rank as far as possible without waiting; called between modules. A rank that is a
 * little ahead so goes on computing, instead of meeting the others at every unit. */
static cr_status progress(cr_fsdp *f, cr_err *err)
{
    cri_unit *u = f->pending;

    if (u && !f->is_pending_summed && cr_reduce_is_ready(reduces_of(u)->reduce, f->pending_slot))
        CR_TRY(sum_pending(f, err));
    u = f->ahead;
    if (!u || !is_free(u)) return CR_OK;
    f->ahead = NULL;
    return publish(u, err);
}

/* Announce the next unit of the recorded order, if a slot is free for it. */
static cr_status prefetch(cr_fsdp *f, cr_err *err)
{
    cri_order *o = f->order;
    cri_unit *u;

    if (o->at == o->num) return CR_OK;
    u = o->units[o->at];
    if (u->state != CRI_SHARDED || slots_needed(u) == 0 ||
        pool_of(u)->slots.num_free < slots_needed(u))
        return CR_OK;
    CR_TRY(announce(u, err));
    f->ahead = u;
    return progress(f, err);
}

/* A module of the unit is about to run. The order in which a pass comes to gather units is recorded,
 * and what came next the last time is gathered under the compute of this one. */
static cr_status need(cri_unit *u, cr_err *err)
{
    cri_order *o = u->f->order;

    if (u->state == CRI_UNSHARDED) return CR_OK;
    if (o->at == o->num || o->units[o->at] != u) {
        o->units = cr_grow(o->units, o->at, &o->capacity, sizeof *o->units);
        o->units[o->at] = u;
        o->num = o->at + 1;
    }
    o->at++;
    CR_TRY(unshard(u, err));
    return prefetch(u->f, err);
}

/* ---- gradients of a unit ---- */

static cr_status begin_reduce(cri_unit *u, cr_mem **data, cr_err *err)
{
    cri_reduces *r = reduces_of(u);

    u->reduce_slot = slots_take(&r->slots, u->unit);
    u->f->reduced_now += (int64_t)sizeof(float) * u->unit->trained.padded_elems;
    CR_TRY(cr_reduce_begin(r->reduce, u->reduce_slot, data, err));
    return cr_event_wait(r->done[u->reduce_slot], u->f->dev, err);
}

static cr_status finish_pending(cr_fsdp *f, cr_err *err)
{
    if (!f->pending) return CR_OK;
    if (!f->is_pending_summed) CR_TRY(sum_pending(f, err));
    /* here, not after the sum: every rank takes slots in the same order */
    slots_give(&reduces_of(f->pending)->slots, f->pending_slot);
    f->reduced_now -= (int64_t)sizeof(float) * f->pending->unit->trained.padded_elems;
    f->pending = NULL;
    return CR_OK;
}

/* Of all units: the shards are complete for what comes after on compute. */
static cr_status finish_reductions(cr_fsdp *f, cr_err *err)
{
    CR_TRY(finish_pending(f, err));
    return cr_stream_join(f->dev, cri_stream(f, CR_STREAM_REDUCE), err);
}

/* Its reduce-scatter is finished when the next one is published: the others have time to come. */
static cr_status publish_reduce(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    const cr_flat *flat = u->flat[0].flat;
    cr_reduce_dtype dtype = flat->is_fp32 || !is_cut(u) ? CR_REDUCE_F32 : f->args.reduce_dtype;
    size_t bytes = dtype == CR_REDUCE_F32 ? 4 : 2;

    CR_TRY(cr_stream_join(cri_stream(f, CR_STREAM_REDUCE), f->dev, err));
    CR_TRY(cr_reduce_publish(reduces_of(u)->reduce, u->reduce_slot, u->unit->name,
                             (size_t)flat->shard_elems, dtype, err));
    if (is_cut(u)) cri_count(f, CRI_REDUCES, (size_t)flat->padded_elems * bytes);
    CR_TRY(finish_pending(f, err));
    f->pending = u;
    f->pending_slot = u->reduce_slot;
    f->is_pending_summed = false;
    u->reduce_slot = -1;
    return CR_OK;
}

static cr_status zero_range(cr_fsdp *f, cr_mem *grad, int64_t begin, int64_t end, cr_err *err)
{
    if (begin == end) return CR_OK;
    return cr_zero(f->dev, cr_at(CR_F32, grad, begin), (size_t)(end - begin) * sizeof(float), err);
}

/* The first gradients of a unit since the last update: zero, but for those that a product will write. */
static cr_status clear_grads(cri_unit *u, cr_mem *grad, cr_err *err)
{
    const cr_flat *flat = u->flat[0].flat;
    int64_t cleared = 0;

    for (size_t i = 0; i < flat->num_params; i++) {
        cr_param *p = flat->params[i];
        if (!p->can_be_set) continue;
        p->is_grad_unset = true;
        CR_TRY(zero_range(u->f, grad, cleared, flat->offset[i], err));
        cleared = flat->offset[i] + p->num_elems;
    }
    return zero_range(u->f, grad, cleared, flat->padded_elems, err);
}

static cr_status begin_grads(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    const cr_flat *flat = u->flat[0].flat;
    bool is_whole = is_cut(u) && f->whole_grad;
    cr_mem *grad;

    if (flat->num_params == 0) return CR_OK;
    grad = is_whole ? cr_at(CR_F32, f->whole_grad, u->flat[0].first_whole)
                    : cr_at(CR_F32, f->grad, flat->first.elems);
    if (is_reduced(u) && !is_whole) CR_TRY(begin_reduce(u, &grad, err));
    if (is_reduced(u) ? !is_whole : !u->has_grad) CR_TRY(clear_grads(u, grad, err));
    for (size_t i = 0; i < flat->num_params; i++)
        flat->params[i]->grad = cr_at(CR_F32, grad, flat->offset[i]);
    return CR_OK;
}

static cr_status end_grads(cri_unit *u, cr_err *err)
{
    cr_fsdp *f = u->f;
    const cr_flat *flat = u->flat[0].flat;

    if (flat->num_params == 0) return CR_OK;
    for (size_t i = 0; i < flat->num_params; i++) {
        cr_param *p = flat->params[i];
        if (p->is_grad_unset) CR_TRY(zero_range(f, p->grad, 0, p->num_elems, err)); /* no rows */
        p->is_grad_unset = false;
        p->grad = NULL;
    }
    f->has_whole_grad = f->whole_grad != NULL;
    if (is_reduced(u)) return is_cut(u) && f->whole_grad ? CR_OK : publish_reduce(u, err);
    u->has_grad = true;
    return CR_OK;
}

cr_status cri_reduce_whole(cr_fsdp *f, cr_err *err)
{
    if (!f->has_whole_grad) return CR_OK;
    for (size_t i = 0; i < f->units.num; i++) {
        cri_unit *u = &f->state[i];
        const cr_flat *flat = u->flat[0].flat;
        cr_mem *data;
        if (flat->num_params == 0 || !is_cut(u)) continue;
        CR_TRY(begin_reduce(u, &data, err));
        CR_TRY(cr_copy(f->dev, data, cr_at(CR_F32, f->whole_grad, u->flat[0].first_whole),
                       (size_t)flat->padded_elems * sizeof(float), err));
        CR_TRY(publish_reduce(u, err));
    }
    CR_TRY(finish_reductions(f, err));
    f->has_whole_grad = false;
    return cr_zero(f->dev, f->whole_grad, (size_t)f->whole_elems * sizeof(float), err);
}

/* ---- passes and hooks ---- */

cr_status cri_begin_pass(cr_fsdp *f, bool is_with_backward, cr_err *err)
{
    cri_unit *root = &f->state[0];

    f->is_with_backward = is_with_backward;
    f->order = &f->orders[2 * f->has_images + is_with_backward];
    f->order->at = 0;
    CR_TRY(cri_weights_renew(f, err));
    CR_TRY(cr_stream_join(cri_stream(f, CR_STREAM_GATHER), f->dev, err)); /* weights are updated */
    if (root->state == CRI_SHARDED) {
        CR_TRY(announce(root, err));
        if (is_free(root)) CR_TRY(publish(root, err));
    }
    CR_TRY(prefetch(f, err)); /* before the wait for the root */
    return unshard(root, err);
}

cr_status cri_begin_root_grads(cr_fsdp *f, cr_err *err)
{
    return begin_grads(&f->state[0], err);
}

/* A unit that was gathered ahead and that this pass did not come to. */
static cr_status drain(cr_fsdp *f, cr_err *err)
{
    cri_order *o = f->order;
    cri_unit *u = o->at < o->num ? o->units[o->at] : NULL;

    o->num = o->at;
    if (!u || (u->state != CRI_ANNOUNCED && u->state != CRI_PUBLISHED)) return CR_OK;
    CR_TRY(unshard(u, err));
    return reshard(u, err);
}

cr_status cri_end_pass(cr_fsdp *f, bool is_with_backward, cr_err *err)
{
    CR_TRY(drain(f, err));
    if (is_with_backward) {
        CR_TRY(end_grads(&f->state[0], err));
        CR_TRY(finish_reductions(f, err));
    }
    return f->args.reshard == CR_RESHARD_ALWAYS ? reshard(&f->state[0], err) : CR_OK;
}

static void notify_watcher(cr_fsdp *f, const cr_module *module, cr_phase phase)
{
    cr_fsdp_moment moment = {module, phase, f->gathered_now, f->reduced_now, 0, 0};

    if (!f->watcher) return;
    moment.tape = (int64_t)cr_stack_take_high(f->tape);
    moment.scratch = (int64_t)cr_stack_take_high(f->scratch);
    f->watcher(f->watcher_ctx, &moment);
}

cr_status cri_before(void *ctx, const cr_module *module, cr_phase phase, cr_err *err)
{
    cri_unit *u = module->unit;

    CR_TRY(progress(ctx, err));
    if (u && u->index) { /* the root is unsharded before the pass */
        if (phase != CR_BACKWARD || !module->is_lookup) CR_TRY(need(u, err));
        if (phase == CR_BACKWARD) CR_TRY(begin_grads(u, err));
    }
    notify_watcher(ctx, module, phase);
    return CR_OK;
}

/* After recompute a unit stays for its backward. Experts do not: all of a layer would be alive. */
cr_status cri_after(void *ctx, const cr_module *module, cr_phase phase, cr_err *err)
{
    cr_fsdp *f = ctx;
    cri_unit *u = module->unit;

    CR_TRY(progress(f, err));
    notify_watcher(f, module, phase);
    if (!u || u->index == 0) return CR_OK;
    if (phase == CR_RECOMPUTE && !u->unit->is_expert) return CR_OK;
    if (phase == CR_BACKWARD) CR_TRY(end_grads(u, err));
    if (f->args.reshard == CR_RESHARD_NEVER) return CR_OK; /* until the weights change */
    if (phase == CR_FORWARD && f->is_with_backward) CR_TRY(keep_slice(u, err));
    CR_TRY(reshard(u, err));
    if (phase == CR_BACKWARD) u->is_sliced = false;
    return CR_OK;
}

/* ---- buffers ---- */

static cr_status pool_create(cr_fsdp *f, cri_pool *pool, cr_group *group, int num_slots,
                             size_t bytes, cr_err *err)
{
    if (bytes == 0) return CR_OK;
    CR_TRY(cr_gather_create(group, num_slots, bytes, &pool->gather, err));
    slots_create(&pool->slots, num_slots);
    f->stats.gather_bytes += (int64_t)bytes * num_slots;
    return CR_OK;
}

static void pool_destroy(cri_pool *pool)
{
    cr_gather_destroy(pool->gather);
    cr_free(pool->slots.free);
    *pool = (cri_pool){0};
}

/* The largest of some units: bytes of a gathered flat, trained elements, and how many flats of one are
 * gathered. num_trained: of the units, those that are reduced, one slot each at most. */
typedef struct widths {
    size_t gathered;
    int64_t trained;
    int num_units, num_trained, kinds;
} widths;

static cr_status reduces_create(cr_fsdp *f, cri_reduces *r, cr_group *group, int num_slots,
                                const widths *of, cr_err *err)
{
    int64_t num_elems = of->trained;
    bool is_needed = cr_group_num_ranks(group) > 1 || f->args.is_offloaded;

    if (!f->args.is_train || !is_needed || num_elems == 0) return CR_OK;
    /* with is_reduced_once only those in flight; units that are not cut have no other place */
    if (cr_group_num_ranks(group) > 1 && f->args.is_reduced_once && num_slots > 2) num_slots = 2;
    if (num_slots > of->num_trained) num_slots = of->num_trained;
    CR_TRY(cr_reduce_create(group, num_slots, (size_t)num_elems, &r->reduce, err));
    slots_create(&r->slots, num_slots);
    r->done = CR_NEW_ARRAY(cr_event *, num_slots);
    for (int i = 0; i < num_slots; i++)
        CR_TRY(cr_event_create(f->dev, &r->done[i], err));
    f->stats.reduce_bytes += (int64_t)sizeof(float) * num_slots * num_elems;
    return CR_OK;
}

static void reduces_destroy(cri_reduces *r)
{
    cr_reduce_destroy(r->reduce);
    for (int i = 0; i < r->slots.num; i++)
        cr_event_destroy(r->done[i]);
    cr_free(r->done);
    cr_free(r->slots.free);
    *r = (cri_reduces){0};
}

/* Gradients of all units, unreduced; slices of all units but the root. */
static cr_status wide_create(cr_fsdp *f, cr_err *err)
{
    cr_mem *data;

    f->whole_elems = f->slice_bytes = 0;
    for (size_t i = 0; i < f->units.num; i++)
        for (int k = 0; k < 2; k++) {
            cri_flat *s = &f->state[i].flat[k];
            s->first_whole = f->whole_elems;
            if (k == 0 && cri_is_cut(f, s->flat)) f->whole_elems += s->flat->padded_elems;
            s->slice_at = f->slice_bytes;
            if (i && f->num_slices && !s->flat->is_ep)
                f->slice_bytes += (int64_t)cri_gathered_bytes(f, s->flat) / f->num_slices;
        }
    if (f->slice_group) {
        CR_TRY(cr_device_alloc(f->dev, (size_t)f->slice_bytes, &data, err));
        f->slices = data;
    }
    if (!f->args.is_train || !f->args.is_reduced_once) return CR_OK;
    if (f->mesh->shape.num_fsdp == 1 && f->mesh->shape.num_efsdp == 1) return CR_OK;
    CR_TRY(cr_device_alloc(f->dev, (size_t)f->whole_elems * sizeof(float), &data, err));
    f->whole_grad = data;
    return cr_zero(f->dev, data, (size_t)f->whole_elems * sizeof(float), err);
}

cr_status cri_staging_create(cr_fsdp *f, cr_err *err)
{
    enum { PIECE_ELEMS = 4 << 20 };

    f->staged_elems = 1;
    for (size_t i = 0; i < f->units.num; i++)
        f->staged_elems = cr_max64(f->staged_elems, cr_max64(f->units.unit[i].trained.shard_elems,
                                                             f->units.unit[i].frozen.shard_elems));
    if (f->staged_elems > PIECE_ELEMS) f->staged_elems = PIECE_ELEMS;
    for (int k = 0; k < CRI_NUM_STAGINGS; k++)
        CR_TRY(cr_event_create(f->dev, &f->is_cast[k], err));
    return cr_device_alloc(f->dev, CRI_NUM_STAGINGS * (size_t)f->staged_elems * sizeof(float),
                           &f->staging, err);
}

void cri_staging_destroy(cr_fsdp *f)
{
    cr_device_free(f->dev, f->staging, CRI_NUM_STAGINGS * (size_t)f->staged_elems * sizeof(float));
    for (int k = 0; k < CRI_NUM_STAGINGS; k++) {
        cr_event_destroy(f->is_cast[k]);
        f->is_cast[k] = NULL;
    }
    f->staging = NULL;
}

/* With is_offloaded: pieces of shards on their way to the device, and the sum of a unit's gradient. */
static cr_status offloaded_create(cr_fsdp *f, cr_err *err)
{
    f->part_elems = 0;
    if (!f->args.is_offloaded) return CR_OK;
    for (size_t i = 0; i < f->units.num && f->args.is_train; i++)
        f->part_elems = cr_max64(f->part_elems, f->units.unit[i].trained.shard_elems);
    CR_TRY(cri_staging_create(f, err));
    return cr_device_alloc(f->dev, (size_t)f->part_elems * sizeof(float), &f->part, err);
}

static void widen(widths *w, const cri_unit *u)
{
    for (int k = 0; k < 2; k++) {
        size_t bytes = cri_gathered_bytes(u->f, u->flat[k].flat);
        if (is_gathered(u, k) && bytes > w->gathered) w->gathered = bytes;
    }
    w->trained = cr_max64(w->trained, u->flat[0].flat->padded_elems);
    if (slots_needed(u) > w->kinds) w->kinds = slots_needed(u);
    w->num_units++;
    w->num_trained += u->flat[0].flat->padded_elems > 0;
}

cr_status cri_buffers_create(cr_fsdp *f, cr_err *err)
{
    cr_group *group = f->mesh->group[CR_AXIS_FSDP], *ep_group = f->mesh->group[CR_AXIS_EFSDP];
    bool is_kept = f->args.reshard == CR_RESHARD_NEVER;
    widths root = {0}, units = {.kinds = 1}, experts = {.kinds = 1};
    int alive = cri_max_alive(f, false) + 1, in_reduction = cri_max_alive(f, true) + 1;

    for (size_t i = 0; i < f->units.num; i++)
        widen(i == 0 ? &root : f->units.unit[i].is_ep ? &experts : &units, &f->state[i]);
    f->stats.gather_bytes = f->stats.reduce_bytes = 0;
    f->tape = cr_stack_create(f->dev);
    f->scratch = cr_stack_create(f->dev);
    f->lanes = cri_lanes_create(f);
    CR_TRY(pool_create(f, &f->root_pool, group, root.kinds, root.gathered, err));
    CR_TRY(pool_create(f, &f->pool, group, units.kinds * (is_kept ? (int)f->units.num : alive),
                       units.gathered, err));
    if (f->slice_group)
        CR_TRY(pool_create(f, &f->slice_pool, f->slice_group, units.kinds * alive, units.gathered,
                           err));
    CR_TRY(pool_create(f, &f->ep_pool, ep_group, experts.kinds * (is_kept ? experts.num_units : 2),
                       experts.gathered, err));
    CR_TRY(reduces_create(f, &f->root_reduces, group, 1, &root, err));
    CR_TRY(reduces_create(f, &f->reduces, group, in_reduction, &units, err));
    CR_TRY(reduces_create(f, &f->ep_reduces, ep_group, 2, &experts, err));
    CR_TRY(offloaded_create(f, err));
    return wide_create(f, err);
}

void cri_buffers_destroy(cr_fsdp *f)
{
    if (f->tape) {
        f->stats.tape_peak_bytes =
            cr_max64(f->stats.tape_peak_bytes, (int64_t)cr_stack_peak_bytes(f->tape));
        f->stats.scratch_peak_bytes = cr_fsdp_get_stats(f).scratch_peak_bytes;
        cri_lanes_destroy(f->lanes);
        cr_stack_destroy(f->tape);
        cr_stack_destroy(f->scratch);
    }
    reduces_destroy(&f->ep_reduces);
    reduces_destroy(&f->reduces);
    reduces_destroy(&f->root_reduces);
    pool_destroy(&f->ep_pool);
    pool_destroy(&f->slice_pool);
    pool_destroy(&f->pool);
    pool_destroy(&f->root_pool);
    cri_staging_destroy(f);
    cr_device_free(f->dev, f->part, (size_t)f->part_elems * sizeof(float));
    f->part = NULL;
    if (f->slices) cr_device_free(f->dev, f->slices, (size_t)f->slice_bytes);
    if (f->whole_grad)
        cr_device_free(f->dev, f->whole_grad, (size_t)f->whole_elems * sizeof(float));
    f->tape = f->scratch = NULL;
    f->lanes = NULL;
    f->slices = NULL;
    f->whole_grad = NULL;
}
