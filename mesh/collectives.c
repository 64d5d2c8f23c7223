/* collectives.c -- collectives (see collectives.h): checks, the record of the call, and the transport's function. */
#include "mesh/comm.h"

#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 64 }; /* slots of big buffers begin on a cache line */

/* ---- big buffers ---- */

static size_t align_up(size_t x)
{
    return (x + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static cr_status check_slot(const cr_group *g, const cri_slot *slots, int num_slots, int index,
                            cri_state expected, cr_err *err)
{
    static const char *const words[] = {"free", "announced", "begun", "published"};

    if (index < 0 || index >= num_slots)
        return cr_fail(err, CR_EARG, "group %s: slot %d of %d", g->name, index, num_slots);
    if (slots[index].state != expected)
        return cr_fail(err, CR_EARG, "group %s: slot %d (%s) is %s, not %s", g->name, index,
                       slots[index].name, words[slots[index].state], words[expected]);
    return CR_OK;
}

static void free_slots(cri_slot *slots, int num_slots)
{
    for (int i = 0; i < num_slots; i++) {
        cr_free(slots[i].requests);
        cr_event_destroy(slots[i].moved);
    }
    cr_free(slots);
}

/* The transport's buffer as memory of the group's device; on a GPU it is there. */
static cr_status view_add(const cr_group *g, void *data, size_t num_bytes, cr_mem **view,
                          cr_err *err)
{
    if (cri_is_on_gpu(g)) return CR_OK;
    if (g->dev) return cr_device_share(g->dev, data, num_bytes, view, err);
    *view = cr_mem_of_host(data);
    return CR_OK;
}

static void view_drop(const cr_group *g, cr_mem *view, size_t num_bytes)
{
    if (g->dev && view && !cri_is_on_gpu(g)) cr_device_unshare(g->dev, view, num_bytes);
}

/* Before data moves on the host: what was queued on the stream has run. */
static cr_status settle(const cr_group *g, cr_stream stream, cr_err *err)
{
    if (!g->dev || cri_is_on_gpu(g)) return CR_OK;
    return cr_device_sync(cr_device_stream(g->dev, stream), err);
}

/* Device memory as the transport has it. */
static void *address_of(const cr_group *g, const cr_mem *mem)
{
    return cri_is_on_gpu(g) ? cr_mem_to_host(mem) : cr_host_address(mem);
}

/* And after data has moved on the host. */
static cr_status wrote(const cr_group *g, cr_stream stream, cr_mem *mem, size_t num_bytes,
                       cr_err *err)
{
    if (!g->dev || cri_is_on_gpu(g)) return CR_OK;
    return cr_host_wrote(cr_device_stream(g->dev, stream), mem, num_bytes, err);
}

/* ---- all-gather in place ---- */

static size_t gather_bytes_of(const cr_gather *g)
{
    return g->slot_bytes * (size_t)g->num_slots;
}

cr_status cr_gather_create(cr_group *group, int num_slots, size_t capacity_bytes, cr_gather **out,
                           cr_err *err)
{
    cr_gather *g = CR_NEW(cr_gather);

    *out = NULL;
    g->group = group;
    g->num_slots = num_slots;
    g->slot_bytes = align_up(capacity_bytes);
    g->slots = CR_NEW_ARRAY(cri_slot, num_slots);
    if (group->comm->gather_open(g, err) == CR_OK &&
        view_add(group, g->data, gather_bytes_of(g), &g->view, err) == CR_OK)
        *out = g;
    else
        cr_gather_destroy(g);
    return err->status;
}

void cr_gather_destroy(cr_gather *gather)
{
    if (!gather) return;
    view_drop(gather->group, gather->view, gather_bytes_of(gather));
    gather->group->comm->gather_close(gather);
    free_slots(gather->slots, gather->num_slots);
    cr_free(gather);
}

cr_status cr_gather_announce(cr_gather *gather, int slot, const char *name, size_t part_bytes,
                             cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, slot, CRI_FREE, err));
    if (part_bytes * (size_t)g->num_ranks > gather->slot_bytes)
        return cr_fail(err, CR_EARG, "%s: %d parts of %zu bytes do not fit the gather's %zu bytes",
                       name, g->num_ranks, part_bytes, gather->slot_bytes);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->event = cri_event_begin(g->world, CR_COLL_ALL_GATHER, g, name);
    s->part_bytes = part_bytes;
    CR_TRY(cri_post(g, CR_COLL_ALL_GATHER, name, part_bytes, /*is_equal=*/true, slot, &s->sequence,
                    err));
    cri_event_posted(g->world, s->event, s->sequence, part_bytes * (size_t)g->num_ranks);
    s->state = CRI_ANNOUNCED;
    return CR_OK;
}

bool cr_gather_is_free(const cr_gather *gather, int slot)
{
    return gather->group->comm->gather_is_free(gather, slot);
}

cr_status cr_gather_begin(cr_gather *gather, int slot, cr_mem **own_part, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, slot, CRI_ANNOUNCED, err));
    CR_TRY(g->comm->gather_begin(gather, slot, err));
    s->state = CRI_BEGUN;
    *own_part = cr_mem_add(gather->view,
                           gather->slot_bytes * (size_t)slot + s->part_bytes * (size_t)g->rank);
    return CR_OK;
}

cr_status cr_gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, slot, CRI_BEGUN, err));
    if (g->num_ranks > 1) CR_TRY(settle(g, CR_STREAM_GATHER, err)); /* others read the own part */
    gather->slots[slot].state = CRI_PUBLISHED;
    return g->comm->gather_publish(gather, slot, err);
}

cr_status cr_gather_wait(cr_gather *gather, int slot, const cr_mem **whole, cr_err *err)
{
    cr_group *g = gather->group;
    const cri_slot *s = &gather->slots[slot];

    CR_TRY(check_slot(g, gather->slots, gather->num_slots, slot, CRI_PUBLISHED, err));
    CR_TRY(cri_complete(g, s->sequence, s->event, err));
    CR_TRY(g->comm->gather_wait(gather, slot, err));
    cri_event_end(g->world, s->event);
    *whole = cr_mem_add(gather->view, gather->slot_bytes * (size_t)slot);
    return CR_OK;
}

cr_status cr_gather_release(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];

    CR_CHECK(s->state == CRI_PUBLISHED, "released %s before it was published", s->name);
    if (g->num_ranks > 1) CR_TRY(settle(g, CR_STREAM_GATHER, err)); /* others write their parts */
    s->state = CRI_FREE;
    g->comm->gather_release(gather, slot);
    return CR_OK;
}

/* ---- reduce-scatter ---- */

cr_status cr_reduce_create(cr_group *group, int num_slots, size_t capacity_elems, cr_reduce **out,
                           cr_err *err)
{
    cr_reduce *r = CR_NEW(cr_reduce);

    *out = NULL;
    r->group = group;
    r->num_slots = num_slots;
    r->slot_elems = align_up(capacity_elems * sizeof(float)) / sizeof(float);
    r->slots = CR_NEW_ARRAY(cri_slot, num_slots);
    if (group->comm->reduce_open(r, err) == CR_OK &&
        view_add(group, r->data, r->data_bytes, &r->view, err) == CR_OK)
        *out = r;
    else
        cr_reduce_destroy(r);
    return err->status;
}

void cr_reduce_destroy(cr_reduce *reduce)
{
    if (!reduce) return;
    view_drop(reduce->group, reduce->view, reduce->data_bytes);
    reduce->group->comm->reduce_close(reduce);
    free_slots(reduce->slots, reduce->num_slots);
    cr_free(reduce);
}

cr_status cr_reduce_begin(cr_reduce *reduce, int slot, cr_mem **data, cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];
    size_t at;

    CR_TRY(check_slot(g, reduce->slots, reduce->num_slots, slot, CRI_FREE, err));
    s->event = cri_event_begin(g->world, CR_COLL_REDUCE_SCATTER, g, "a reduction");
    CR_TRY(g->comm->reduce_begin(reduce, slot, &at, err));
    *data = cr_at(CR_F32, reduce->view, (int64_t)at);
    s->state = CRI_BEGUN;
    return CR_OK;
}

cr_status cr_reduce_publish(cr_reduce *reduce, int slot, const char *name, size_t part_elems,
                            cr_reduce_dtype dtype, cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];
    size_t elem_bytes = dtype == CR_REDUCE_BF16 ? sizeof(uint16_t) : sizeof(float),
           num = part_elems * (size_t)g->num_ranks;

    CR_TRY(check_slot(g, reduce->slots, reduce->num_slots, slot, CRI_BEGUN, err));
    if (num > reduce->slot_elems)
        return cr_fail(err, CR_EARG, "%s: %d parts of %zu floats do not fit the reduction's %zu",
                       name, g->num_ranks, part_elems, reduce->slot_elems);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->part_elems = part_elems;
    s->part_bytes = part_elems * elem_bytes;
    s->dtype = dtype;
    CR_TRY(settle(g, CR_STREAM_REDUCE, err));
    if (g->comm->reduce_fetch) CR_TRY(g->comm->reduce_fetch(reduce, slot, err));
    CR_TRY(cri_post(g, CR_COLL_REDUCE_SCATTER, name, s->part_bytes, /*is_equal=*/true, slot,
                    &s->sequence, err));
    cri_event_named(g->world, s->event, name);
    cri_event_posted(g->world, s->event, s->sequence, num * elem_bytes);
    s->state = CRI_PUBLISHED;
    return g->comm->reduce_publish(reduce, slot, err);
}

bool cr_reduce_is_ready(const cr_reduce *reduce, int slot)
{
    return reduce->slots[slot].state == CRI_PUBLISHED &&
           reduce->group->comm->reduce_is_ready(reduce, slot);
}

cr_status cr_reduce_finish(cr_reduce *reduce, int slot, cr_mem *shard, cr_reduce_mode mode,
                           cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];

    CR_TRY(check_slot(g, reduce->slots, reduce->num_slots, slot, CRI_PUBLISHED, err));
    CR_TRY(cri_complete(g, s->sequence, s->event, err));
    CR_TRY(settle(g, CR_STREAM_REDUCE, err));
    CR_TRY(g->comm->reduce_finish(reduce, slot, address_of(g, shard), mode == CR_REDUCE_ADD, err));
    CR_TRY(wrote(g, CR_STREAM_REDUCE, shard, s->part_elems * sizeof(float), err));
    s->state = CRI_FREE;
    cri_event_end(g->world, s->event);
    return CR_OK;
}

/* ---- small and occasional ---- */

static cri_call call_begin(cr_group *group, cr_coll coll, const char *name)
{
    return (cri_call){.group = group,
                      .coll = coll,
                      .name = name,
                      .event = cri_event_begin(group->world, coll, group, name)};
}

static void call_end(const cri_call *call, size_t payload_bytes)
{
    cri_event_posted(call->group->world, call->event, call->sequence, payload_bytes);
    cri_event_end(call->group->world, call->event);
}

cr_status cr_barrier(cr_group *group, const char *name, cr_err *err)
{
    cri_call call = call_begin(group, CR_COLL_BARRIER, name);

    CR_TRY(cri_call_round(&call, 0, /*is_equal=*/true, err));
    call_end(&call, 0);
    return CR_OK;
}

static cr_status all_reduce(cr_group *group, const cri_comm *comm, const char *name,
                            const cri_vector *v, cr_err *err)
{
    cri_call call = call_begin(group, CR_COLL_ALL_REDUCE, name);

    CR_TRY(comm->all_reduce(&call, v, err));
    call_end(&call, v->num * v->elem_bytes);
    return CR_OK;
}

cr_status cr_all_reduce_f64(cr_group *group, const char *name, cr_op op, double *x, size_t num,
                            cr_err *err)
{
    cri_vector v = {op, true, (char *)x, num, sizeof *x};

    return all_reduce(group, group->base, name, &v, err);
}

cr_status cr_all_reduce_f32(cr_group *group, const char *name, cr_mem *x, size_t num, cr_err *err)
{
    cri_vector v = {CR_OP_SUM, false, address_of(group, x), num, sizeof(float)};

    CR_TRY(settle(group, CR_STREAM_COMPUTE, err));
    CR_TRY(all_reduce(group, group->comm, name, &v, err));
    return wrote(group, CR_STREAM_COMPUTE, x, num * sizeof(float), err);
}

cr_status cr_broadcast(cr_group *group, const char *name, int root, void *data, size_t num_bytes,
                       cr_err *err)
{
    cri_call call;

    if (root < 0 || root >= group->num_ranks)
        return cr_fail(err, CR_EARG, "broadcast %s: root %d of %d ranks", name, root,
                       group->num_ranks);
    call = call_begin(group, CR_COLL_BROADCAST, name);
    CR_TRY(group->base->broadcast(&call, root, data, num_bytes, err));
    call_end(&call, num_bytes);
    return CR_OK;
}

static cr_status gather_bytes(cr_group *group, cr_coll coll, const char *name, const void *data,
                              size_t num_bytes, cr_buf *out, size_t *offsets, cr_err *err)
{
    cri_call call = call_begin(group, coll, name);

    cr_buf_clear(out);
    CR_TRY(group->base->all_gather(&call, data, num_bytes, out, offsets, err));
    call_end(&call, offsets[group->num_ranks]);
    return CR_OK;
}

cr_status cr_all_gather_bytes(cr_group *group, const char *name, const void *data, size_t num_bytes,
                              cr_buf *out, size_t *offsets, cr_err *err)
{
    return gather_bytes(group, CR_COLL_GATHER_BYTES, name, data, num_bytes, out, offsets, err);
}

static cr_status all_to_all(cr_group *group, const cri_comm *comm, const char *name,
                            const void *send, const size_t *send_bytes, void *recv,
                            const size_t *recv_bytes, cr_err *err)
{
    int n = group->num_ranks;
    cri_exchange x = {
        .send = send, .recv = recv, .send_bytes = send_bytes, .recv_bytes = recv_bytes};
    cri_call call = call_begin(group, CR_COLL_ALL_TO_ALL, name);

    x.send_offsets = CR_NEW_ARRAY(size_t, 2 * (n + 1));
    x.recv_offsets = x.send_offsets + n + 1;
    for (int r = 0; r < n; r++) {
        x.send_offsets[r + 1] = x.send_offsets[r] + send_bytes[r];
        x.recv_offsets[r + 1] = x.recv_offsets[r] + recv_bytes[r];
    }
    if (comm->all_to_all(&call, &x, err) == CR_OK)
        call_end(&call, x.send_offsets[n] - send_bytes[group->rank]);
    cr_free(x.send_offsets);
    return err->status;
}

cr_status cr_all_to_all(cr_group *group, const char *name, const cr_mem *send,
                        const size_t *send_bytes, cr_mem *recv, const size_t *recv_bytes,
                        cr_err *err)
{
    size_t total = 0;

    for (int r = 0; r < group->num_ranks; r++)
        total += recv_bytes[r];
    CR_TRY(settle(group, CR_STREAM_COMPUTE, err));
    CR_TRY(all_to_all(group, group->comm, name, address_of(group, send), send_bytes,
                      address_of(group, recv), recv_bytes, err));
    return wrote(group, CR_STREAM_COMPUTE, recv, total, err);
}

cr_status cr_all_to_all_i64(cr_group *group, const char *name, const int64_t *send, int64_t *recv,
                            size_t num, cr_err *err)
{
    size_t *bytes = CR_NEW_ARRAY(size_t, group->num_ranks);

    for (int r = 0; r < group->num_ranks; r++)
        bytes[r] = num * sizeof *send;
    cr_note(all_to_all(group, group->base, name, send, bytes, recv, bytes, err));
    cr_free(bytes);
    return err->status;
}

static cr_status check_peers(const cr_group *g, const char *name, const cr_piece *pieces,
                             size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        if (pieces[i].peer < 0 || pieces[i].peer >= g->num_ranks)
            return cr_fail(err, CR_EARG, "transfer %s: rank %d is not in group %s of %d ranks",
                           name, pieces[i].peer, g->name, g->num_ranks);
    return CR_OK;
}

cr_status cr_transfer(cr_group *group, const char *name, const cr_mem *send, const cr_piece *sends,
                      size_t num_sends, cr_mem *recv, const cr_piece *recvs, size_t num_recvs,
                      cr_err *err)
{
    cri_pieces x = {NULL, NULL, sends, recvs, num_sends, num_recvs, NULL};
    size_t sent_bytes = 0;
    cri_call call;

    CR_TRY(settle(group, CR_STREAM_COMPUTE, err));
    x.dev = cri_is_on_gpu(group) ? group->dev : NULL;
    x.send = x.dev ? cr_mem_to_host(send) : cr_host_view(send);
    x.recv = x.dev ? cr_mem_to_host(recv) : cr_host_view(recv);
    CR_TRY(check_peers(group, name, sends, num_sends, err));
    CR_TRY(check_peers(group, name, recvs, num_recvs, err));
    for (size_t i = 0; i < num_sends; i++)
        if (sends[i].peer != group->rank) sent_bytes += sends[i].num_bytes;
    call = call_begin(group, CR_COLL_TRANSFER, name);
    CR_TRY(group->comm->transfer(&call, &x, err));
    call_end(&call, sent_bytes);
    return CR_OK;
}

cr_status cr_agree(cr_group *group, const char *name, cr_err *err)
{
    size_t *offsets = CR_NEW_ARRAY(size_t, group->num_ranks + 1);
    cr_buf all = {0};
    char who[CRI_RANK_BYTES];
    cr_err talk = {0}; /* of the call itself: err may hold this rank's failure already */

    cr_note(gather_bytes(group, CR_COLL_AGREE, name, err->msg,
                         err->status ? strlen(err->msg) + 1 : 0, &all, offsets, &talk));
    if (talk.status != CR_OK) cr_fail(err, talk.status, "%s", talk.msg);
    for (int r = 0; talk.status == CR_OK && r < group->num_ranks; r++)
        if (offsets[r + 1] > offsets[r])
            cr_fail(err, CR_EPEER, "%s: %.400s",
                    cri_rank_text(group->world, group->world_ranks[r], who), all.data + offsets[r]);
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}
