/* comm_staged.c -- memory of GPUs through host memory and the group's base: for ranks that share a GPU, which NCCL refuses.
 *
 * The base has a gather or a reduction of its own, in host memory. Publish downloads this rank's part into it; wait and
 * finish upload the result. All of it is host-synchronous: the stream has run what was queued before data is read, and
 * what comes after finds the data there. Sums are the base's: the same bits. */
#include "mesh/comm.h"

#include <string.h>

static cr_device *stream_of(const cr_group *g, cr_stream stream)
{
    return cr_device_stream(g->dev, stream);
}

/* Uploads, and waits: work on other streams needs no event after that. */
static cr_status put(cr_device *on, cr_mem *dst, const void *src, size_t num_bytes, cr_err *err)
{
    CR_TRY(cr_upload(on, dst, src, num_bytes, err));
    return cr_device_sync(on, err);
}

/* ---- small collectives: a copy on the host ---- */

/* *out: num_bytes of the device's memory; of cr_alloc. */
static cr_status take(const cr_group *g, const char *device_data, size_t num_bytes, char **out,
                      cr_err *err)
{
    *out = cr_alloc(num_bytes + 1);
    return cr_download(g->dev, *out, (const cr_mem *)(const void *)device_data, num_bytes, err);
}

static cr_status all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    const cr_group *g = call->group;
    size_t num_bytes = v->num * v->elem_bytes;
    cri_vector host = *v;

    CR_TRY_GOTO(out, take(g, v->data, num_bytes, &host.data, err));
    CR_TRY_GOTO(out, g->base->all_reduce(call, &host, err));
    cr_note(put(g->dev, cr_mem_of_host(v->data), host.data, num_bytes, err));
out:
    cr_free(host.data);
    return err->status;
}

static cr_status all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    const cr_group *g = call->group;
    size_t num_bytes = x->recv_offsets[g->num_ranks];
    cri_exchange host = *x;
    char *sent;

    host.recv = cr_alloc(num_bytes + 1);
    CR_TRY_GOTO(out, take(g, x->send, x->send_offsets[g->num_ranks], &sent, err));
    host.send = sent;
    CR_TRY_GOTO(out, g->base->all_to_all(call, &host, err));
    cr_note(put(g->dev, cr_mem_of_host(x->recv), host.recv, num_bytes, err));
out:
    cr_free(sent);
    cr_free(host.recv);
    return err->status;
}

static size_t end_of(const cr_piece *pieces, size_t num)
{
    size_t end = 0;

    for (size_t i = 0; i < num; i++)
        if (pieces[i].offset_bytes + pieces[i].num_bytes > end)
            end = pieces[i].offset_bytes + pieces[i].num_bytes;
    return end;
}

static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    const cr_group *g = call->group;
    size_t recv_bytes = end_of(x->recvs, x->num_recvs);
    cri_pieces host = *x;
    char *sent;

    host.recv = cr_alloc(recv_bytes + 1);
    CR_TRY_GOTO(out, take(g, x->send, end_of(x->sends, x->num_sends), &sent, err));
    host.send = sent;
    host.dev = NULL;
    cr_note(g->base->transfer(call, &host, err));
    for (size_t i = 0; i < x->num_recvs && err->status == CR_OK; i++)
        cr_note(cr_upload(g->dev, cr_mem_of_host(x->recv + x->recvs[i].offset_bytes),
                          host.recv + x->recvs[i].offset_bytes, x->recvs[i].num_bytes, err));
    if (err->status == CR_OK) cr_note(cr_device_sync(g->dev, err));
out:
    cr_free(sent);
    cr_free(host.recv);
    return err->status;
}

/* ---- gathers ---- */

static cr_status gather_open(cr_gather *gather, cr_err *err)
{
    CR_TRY(gather->group->base->gather_open(gather, err));
    return cri_device_gather_open(gather, err);
}

static void gather_close(cr_gather *gather)
{
    gather->group->base->gather_close(gather);
    cri_device_gather_close(gather);
}

static bool gather_is_free(const cr_gather *gather, int slot)
{
    return gather->group->base->gather_is_free(gather, slot);
}

static cr_status gather_begin(cr_gather *gather, int slot, cr_err *err)
{
    gather->slots[slot].is_here = false;
    return gather->group->base->gather_begin(gather, slot, err);
}

static char *host_slot(const cr_gather *gather, int slot)
{
    return gather->data + gather->slot_bytes * (size_t)slot;
}

static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    const cr_group *g = gather->group;
    size_t part_bytes = gather->slots[slot].part_bytes, at = part_bytes * (size_t)g->rank;

    CR_TRY(cr_download(stream_of(g, CR_STREAM_GATHER), host_slot(gather, slot) + at,
                       cr_mem_add(cri_device_gather_at(gather, slot), at), part_bytes, err));
    return g->base->gather_publish(gather, slot, err);
}

/* A slot that is waited for again is not uploaded again. */
static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    const cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    if (s->is_here) return CR_OK;
    CR_TRY(g->base->gather_wait(gather, slot, err));
    s->is_here = true;
    return put(stream_of(g, CR_STREAM_GATHER), cri_device_gather_at(gather, slot),
               host_slot(gather, slot), s->part_bytes * (size_t)g->num_ranks, err);
}

static void gather_release(cr_gather *gather, int slot)
{
    gather->group->base->gather_release(gather, slot);
}

/* ---- reductions ---- */

static cr_status reduce_open(cr_reduce *reduce, cr_err *err)
{
    CR_TRY(reduce->group->base->reduce_open(reduce, err));
    return cri_device_reduce_open(reduce, err);
}

static void reduce_close(cr_reduce *reduce)
{
    reduce->group->base->reduce_close(reduce);
    cri_device_reduce_close(reduce);
}

static cr_status reduce_begin(cr_reduce *reduce, int slot, size_t *at, cr_err *err)
{
    *at = (size_t)slot * reduce->slot_elems;
    return reduce->group->base->reduce_begin(reduce, slot, &reduce->slots[slot].base_at, err);
}

/* The post signals to the ranks of this host that it can be read. */
static cr_status reduce_fetch(cr_reduce *reduce, int slot, cr_err *err)
{
    const cr_group *g = reduce->group;
    const cri_slot *s = &reduce->slots[slot];

    return cr_download(stream_of(g, CR_STREAM_REDUCE), reduce->data + s->base_at,
                       cri_device_reduce_at(reduce, slot),
                       s->part_elems * (size_t)g->num_ranks * sizeof(float), err);
}

static cr_status reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    return reduce->group->base->reduce_publish(reduce, slot, err);
}

static bool reduce_is_ready(const cr_reduce *reduce, int slot)
{
    return reduce->group->base->reduce_is_ready(reduce, slot);
}

static cr_status reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err)
{
    const cr_group *g = reduce->group;
    size_t num_bytes = reduce->slots[slot].part_elems * sizeof(float);
    cr_device *on = stream_of(g, CR_STREAM_REDUCE);
    float *sum = cr_alloc(num_bytes + 1);

    if (is_added) CR_TRY_GOTO(out, cr_download(on, sum, cr_mem_of_host(shard), num_bytes, err));
    CR_TRY_GOTO(out, g->base->reduce_finish(reduce, slot, sum, is_added, err));
    cr_note(put(on, cr_mem_of_host(shard), sum, num_bytes, err));
out:
    cr_free(sum);
    return err->status;
}

const cri_comm cri_comm_staged = {.name = "staged",
                                  .sum_order = CRI_SUM_BY_TREE,
                                  .open = cri_open_none,
                                  .close = cri_close_none,
                                  .all_reduce = all_reduce,
                                  .all_to_all = all_to_all,
                                  .transfer = transfer,
                                  .gather_open = gather_open,
                                  .gather_close = gather_close,
                                  .gather_is_free = gather_is_free,
                                  .gather_begin = gather_begin,
                                  .gather_publish = gather_publish,
                                  .gather_wait = gather_wait,
                                  .gather_release = gather_release,
                                  .reduce_open = reduce_open,
                                  .reduce_close = reduce_close,
                                  .reduce_begin = reduce_begin,
                                  .reduce_fetch = reduce_fetch,
                                  .reduce_publish = reduce_publish,
                                  .reduce_is_ready = reduce_is_ready,
                                  .reduce_finish = reduce_finish};
