/* comm_local.c -- transports without a peer: a group of one rank, and a rank of a world that is only counted. */
#include "mesh/comm.h"

#include <string.h>

cr_status cri_open_none(cr_group *group, cr_err *err)
{
    (void)group;
    (void)err;
    return CR_OK;
}

void cri_close_none(cr_group *group)
{
    (void)group;
}

static cr_status post(cr_group *group, const cri_entry *entry, cr_err *err)
{
    group->completed = entry->sequence;
    (void)err;
    return CR_OK;
}

static cr_status complete(cr_group *group, uint32_t sequence, cr_err *err)
{
    (void)group;
    (void)sequence;
    (void)err;
    return CR_OK;
}

static bool is_done(const cr_group *group, uint32_t sequence)
{
    (void)group;
    (void)sequence;
    return true;
}

static void abort_none(cr_group *group, const cr_err *failure)
{
    (void)group;
    (void)failure;
}

/* ---- small collectives ---- */

cr_status cri_self_all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    return cri_call_round(call, v->num * v->elem_bytes, /*is_equal=*/true, err);
}

static cr_status broadcast(cri_call *call, int root, char *data, size_t num_bytes, cr_err *err)
{
    (void)root;
    (void)data;
    return cri_call_round(call, num_bytes, /*is_equal=*/true, err);
}

/* The other ranks of a counted world give nothing. */
static cr_status all_gather(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                            size_t *offsets, cr_err *err)
{
    cr_group *g = call->group;

    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/false, err));
    for (int r = 0; r <= g->num_ranks; r++)
        offsets[r] = r > g->rank ? num_bytes : 0;
    cr_buf_add(out, data, num_bytes);
    return CR_OK;
}

cr_status cri_self_all_to_all_begin(cri_call *call, const cri_exchange *x, cr_err *err)
{
    CR_TRY(cri_call_round(call, 0, /*is_equal=*/false, err));
    if (x->send_bytes[0] != x->recv_bytes[0])
        return cr_fail(err, CR_EARG, "all_to_all %s: sends %zu bytes to itself, expects %zu",
                       call->name, x->send_bytes[0], x->recv_bytes[0]);
    return CR_OK;
}

static cr_status all_to_all_self(cri_call *call, const cri_exchange *x, cr_err *err)
{
    CR_TRY(cri_self_all_to_all_begin(call, x, err));
    if (x->send_bytes[0] > 0) memcpy(x->recv, x->send, x->send_bytes[0]);
    return CR_OK;
}

static cr_status all_to_all_meta(cri_call *call, const cri_exchange *x, cr_err *err)
{
    (void)x;
    return cri_call_round(call, 0, /*is_equal=*/false, err);
}

static cr_status transfer_self(cri_call *call, const cri_pieces *x, cr_err *err)
{
    return cri_transfer_begin(call, x, NULL, err);
}

static cr_status transfer_meta(cri_call *call, const cri_pieces *x, cr_err *err)
{
    (void)x;
    return cri_call_round(call, 0, /*is_equal=*/false, err);
}

/* ---- big buffers ---- */

static cr_status map_gather(cr_gather *g, bool is_meta)
{
    g->data = cri_pages_map(g->slot_bytes * (size_t)g->num_slots, is_meta);
    return CR_OK;
}

static cr_status gather_open_self(cr_gather *gather, cr_err *err)
{
    (void)err;
    return map_gather(gather, /*is_meta=*/false);
}

static cr_status gather_open_meta(cr_gather *gather, cr_err *err)
{
    (void)err;
    return map_gather(gather, /*is_meta=*/true);
}

static void gather_close(cr_gather *gather)
{
    cri_pages_unmap(gather->data, gather->slot_bytes * (size_t)gather->num_slots);
}

bool cri_pages_gather_is_free(const cr_gather *gather, int slot)
{
    (void)gather;
    (void)slot;
    return true;
}

cr_status cri_pages_gather_step(cr_gather *gather, int slot, cr_err *err)
{
    (void)gather;
    (void)slot;
    (void)err;
    return CR_OK;
}

void cri_pages_gather_release(cr_gather *gather, int slot)
{
    (void)gather;
    (void)slot;
}

static cr_status map_reduce(cr_reduce *r, bool is_meta)
{
    r->data_bytes = r->slot_elems * sizeof(float) * (size_t)r->num_slots;
    r->data = cri_pages_map(r->data_bytes, is_meta);
    return CR_OK;
}

static cr_status reduce_open_self(cr_reduce *reduce, cr_err *err)
{
    (void)err;
    return map_reduce(reduce, /*is_meta=*/false);
}

static cr_status reduce_open_meta(cr_reduce *reduce, cr_err *err)
{
    (void)err;
    return map_reduce(reduce, /*is_meta=*/true);
}

static void reduce_close(cr_reduce *reduce)
{
    cri_pages_unmap(reduce->data, reduce->data_bytes);
}

cr_status cri_pages_reduce_begin(cr_reduce *reduce, int slot, size_t *at, cr_err *err)
{
    (void)err;
    *at = (size_t)slot * reduce->slot_elems;
    return CR_OK;
}

cr_status cri_pages_reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    (void)reduce;
    (void)slot;
    (void)err;
    return CR_OK;
}

bool cri_pages_reduce_is_ready(const cr_reduce *reduce, int slot)
{
    (void)reduce;
    (void)slot;
    return false; /* there is nothing to overlap with: finish does all of it */
}

static cr_status reduce_finish_self(cr_reduce *reduce, int slot, float *shard, bool is_added,
                                    cr_err *err)
{
    const cri_slot *s = &reduce->slots[slot];

    (void)err;
    reduce->group->parts[0] = reduce->data + (size_t)slot * reduce->slot_elems;
    cri_sum(s->dtype == CR_REDUCE_BF16 ? CRI_SUM_ROUNDED : CRI_SUM_F32, shard, reduce->group->parts,
            reduce->group->merges, 1, s->part_elems, is_added);
    return CR_OK;
}

static cr_status reduce_finish_meta(cr_reduce *reduce, int slot, float *shard, bool is_added,
                                    cr_err *err)
{
    (void)reduce;
    (void)slot;
    (void)shard;
    (void)is_added;
    (void)err;
    return CR_OK;
}

#define COMMON                                                                          \
    .sum_order = CRI_SUM_BY_TREE, .max_posted = UINT32_MAX, .open = cri_open_none,      \
    .close = cri_close_none, .post = post, .complete = complete, .is_done = is_done,    \
    .abort = abort_none, .all_reduce = cri_self_all_reduce, .broadcast = broadcast,     \
    .all_gather = all_gather, .gather_close = gather_close,                             \
    .gather_is_free = cri_pages_gather_is_free, .gather_begin = cri_pages_gather_step,  \
    .gather_publish = cri_pages_gather_step, .gather_wait = cri_pages_gather_step,      \
    .gather_release = cri_pages_gather_release, .reduce_close = reduce_close,           \
    .reduce_begin = cri_pages_reduce_begin, .reduce_publish = cri_pages_reduce_publish, \
    .reduce_is_ready = cri_pages_reduce_is_ready

const cri_comm cri_comm_self = {COMMON,
                                .name = "self",
                                .all_to_all = all_to_all_self,
                                .transfer = transfer_self,
                                .gather_open = gather_open_self,
                                .reduce_open = reduce_open_self,
                                .reduce_finish = reduce_finish_self};

const cri_comm cri_comm_meta = {COMMON,
                                .name = "meta",
                                .all_to_all = all_to_all_meta,
                                .transfer = transfer_meta,
                                .gather_open = gather_open_meta,
                                .reduce_open = reduce_open_meta,
                                .reduce_finish = reduce_finish_meta};
