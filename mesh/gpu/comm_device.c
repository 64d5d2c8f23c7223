/* comm_device.c -- memory of a GPU: the buffers of gathers and reductions there, for the transports that move it
 * (comm_nccl.c, comm_staged.c), and the transport of a group of one rank or of a world that is only counted. */
#include "mesh/comm.h"

#include "kernels/kernels.h"

/* ---- buffers ---- */

static size_t gather_bytes(const cr_gather *g)
{
    return g->slot_bytes * (size_t)g->num_slots;
}

cr_status cri_device_gather_open(cr_gather *gather, cr_err *err)
{
    return cr_device_alloc(gather->group->dev, gather_bytes(gather), &gather->view, err);
}

void cri_device_gather_close(cr_gather *gather)
{
    cr_device_free(gather->group->dev, gather->view, gather_bytes(gather));
}

cr_mem *cri_device_gather_at(const cr_gather *gather, int slot)
{
    return cr_mem_add(gather->view, gather->slot_bytes * (size_t)slot);
}

static size_t reduce_bytes(const cr_reduce *r)
{
    return r->slot_elems * sizeof(float) * (size_t)r->num_slots;
}

cr_status cri_device_reduce_open(cr_reduce *reduce, cr_err *err)
{
    return cr_device_alloc(reduce->group->dev, reduce_bytes(reduce), &reduce->view, err);
}

cr_status cri_device_came_open(cr_reduce *reduce, cr_err *err)
{
    return reduce->came
               ? CR_OK
               : cr_device_alloc(reduce->group->dev, reduce_bytes(reduce), &reduce->came, err);
}

void cri_device_reduce_close(cr_reduce *reduce)
{
    cr_device_free(reduce->group->dev, reduce->view, reduce_bytes(reduce));
    cr_device_free(reduce->group->dev, reduce->came, reduce_bytes(reduce));
}

static cr_mem *slot_at(const cr_reduce *r, cr_mem *buffer, int slot)
{
    return cr_at(CR_F32, buffer, (int64_t)r->slot_elems * slot);
}

cr_mem *cri_device_reduce_at(const cr_reduce *reduce, int slot)
{
    return slot_at(reduce, reduce->view, slot);
}

/* What came is in the first half of the slot when it is bfloat16, and what is sent in the second. */
cr_mem *cri_device_came_at(const cr_reduce *reduce, int slot)
{
    return slot_at(reduce, reduce->came, slot);
}

cr_status cri_device_contribution(cr_reduce *reduce, int slot, const cr_mem **out, cr_err *err)
{
    const cri_slot *s = &reduce->slots[slot];
    cr_mem *data = cri_device_reduce_at(reduce, slot), *rounded;

    *out = data;
    if (s->dtype == CR_REDUCE_F32) return CR_OK;
    CR_TRY(cri_device_came_open(reduce, err));
    *out = rounded = cr_mem_add(cri_device_came_at(reduce, slot), reduce->slot_elems * 2);
    return cr_cast(cr_device_stream(reduce->group->dev, CR_STREAM_REDUCE),
                   &(cr_cast_args){CR_BF16, rounded, CR_F32, data,
                                   s->part_elems * (size_t)reduce->group->num_ranks},
                   err);
}

/* ---- one rank, or the rank of a counted world, to whom the others give nothing ---- */

static cr_status all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    if (call->group->base == &cri_comm_meta) return call->group->base->all_to_all(call, x, err);
    CR_TRY(cri_self_all_to_all_begin(call, x, err));
    return cr_copy(call->group->dev, cr_mem_of_host(x->recv), (const cr_mem *)(const void *)x->send,
                   x->send_bytes[0], err);
}

static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    return call->group->base->transfer(call, x, err);
}

static cr_status reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err)
{
    const cri_slot *s = &reduce->slots[slot];
    const cr_mem *mine;

    CR_TRY(cri_device_contribution(reduce, slot, &mine, err));
    return cr_sum_parts(cr_device_stream(reduce->group->dev, CR_STREAM_REDUCE),
                        &(cr_sum_parts_args){.y = cr_mem_of_host(shard),
                                             .dtype = s->dtype == CR_REDUCE_BF16 ? CR_BF16 : CR_F32,
                                             .x = mine,
                                             .num_parts = 1,
                                             .num = s->part_elems,
                                             .is_added = is_added},
                        err);
}

const cri_comm cri_comm_device = {.name = "device",
                                  .sum_order = CRI_SUM_BY_TREE,
                                  .open = cri_open_none,
                                  .close = cri_close_none,
                                  .all_reduce = cri_self_all_reduce,
                                  .all_to_all = all_to_all,
                                  .transfer = transfer,
                                  .gather_open = cri_device_gather_open,
                                  .gather_close = cri_device_gather_close,
                                  .gather_is_free = cri_pages_gather_is_free,
                                  .gather_begin = cri_pages_gather_step,
                                  .gather_publish = cri_pages_gather_step,
                                  .gather_wait = cri_pages_gather_step,
                                  .gather_release = cri_pages_gather_release,
                                  .reduce_open = cri_device_reduce_open,
                                  .reduce_close = cri_device_reduce_close,
                                  .reduce_begin = cri_pages_reduce_begin,
                                  .reduce_publish = cri_pages_reduce_publish,
                                  .reduce_is_ready = cri_pages_reduce_is_ready,
                                  .reduce_finish = reduce_finish};
