/* comm_nccl.c -- memory of GPUs by NCCL, on the streams of the group's device (see comm.h).
 *
 * Order: a communicator's operations are queued in the order of the control plane on every rank: publish follows announce
 * at once (a slot is always free), and finish sends nothing.
 * Sums: NCCL adds in the order of a ring or a tree, which depends on the number of ranks and on the size. Here the parts
 * travel as they are, as many bytes a rank as in a ring's reduce-scatter, and cr_sum_parts adds them along the tree of comm.h:
 * gradients have the same bits on every transport and in every run.
 * Waits: the host waits for what an operation has moved, and looks for ranks that failed, NCCL's asynchronous error and
 * the deadline meanwhile. A failure aborts all communicators of this rank (cr_world_fail), which ends what is queued.
 * Sizes are compared by the base before anything is queued, where they may differ.
 */
#include "mesh/gpu/nccl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { ROOM_ELEMS = 8 << 20, NUM_ROOMS = 2, SLICE_ELEMS = 4, WHAT_BYTES = 160 };
static const double yield_s = 200e-6, short_s = 10e-3, short_sleep_s = 20e-6, long_sleep_s = 200e-6,
                    look_s = 20e-3;

/* ---- a group ---- */

enum { GPU_BYTES = 64 };

/* Ranks of a host whose GPU has one name share it. */
static void number_gpus(cr_group *g, char (*gpu)[GPU_BYTES])
{
    struct cri_nccl *x = g->nccl;
    const int *host_of = g->world->host_of;

    for (int r = 0; r < g->num_ranks; r++) {
        int first = 0;
        while (host_of[g->world_ranks[first]] != host_of[g->world_ranks[r]] ||
               strcmp(gpu[first], gpu[r]) != 0)
            first++;
        x->first[r] = first;
        x->member[r] = first == r ? x->num_members++ : x->member[first];
    }
}

static cr_status share_id(cr_group *g, cr_err *err)
{
    struct {
        ncclUniqueId id;
        int is_there;
    } offer = {.is_there = 0};

    if (g->rank == 0) offer.is_there = ncclGetUniqueId(&offer.id) == ncclSuccess;
    CR_TRY(cr_broadcast(g, "meeting of NCCL", 0, &offer, sizeof offer, err));
    g->nccl->id = offer.id;
    if (offer.is_there) return CR_OK;
    return cr_fail(err, CR_EIO, "NCCL finds no network interface for its ranks to meet");
}

static void nccl_free(cr_group *g)
{
    struct cri_nccl *x = g->nccl;

    for (int k = 0; k < NUM_ROOMS; k++) {
        cr_event_destroy(x->came[k]);
        cr_event_destroy(x->summed[k]);
    }
    cr_event_destroy(x->moved);
    cr_free(x->is_missing);
    cr_free(x->member);
    cr_free(x->first);
    cr_free(x);
    g->nccl = NULL;
}

cr_status cri_choose_nccl(cr_group *group, const cri_comm **out, cr_err *err)
{
    size_t *offsets = CR_NEW_ARRAY(size_t, group->num_ranks + 1);
    struct cri_nccl *x = group->nccl = CR_NEW(struct cri_nccl);
    char mine[GPU_BYTES] = "";
    cr_buf all = {0};

    x->member = CR_NEW_ARRAY(int, group->num_ranks);
    x->first = CR_NEW_ARRAY(int, group->num_ranks);
    CR_TRY_GOTO(out, cr_gpu_identity(group->dev, mine, sizeof mine, err));
    CR_TRY_GOTO(out, cr_all_gather_bytes(group, "GPUs", mine, sizeof mine, &all, offsets, err));
    number_gpus(group, (char(*)[GPU_BYTES])all.data);
    if (x->num_members > 1) CR_TRY_GOTO(out, share_id(group, err));
    *out = x->num_members == group->num_ranks ? &cri_comm_nccl : cri_comm_ipc();
out:
    if (err->status != CR_OK) nccl_free(group);
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

static cudaStream_t stream_of(const cr_group *g, cr_stream stream)
{
    return (cudaStream_t)cr_gpu_stream(cr_device_stream(g->dev, stream));
}

cr_status cri_nccl_open(cr_group *g, cr_err *err)
{
    struct cri_nccl *x = g->nccl;
    ncclResult_t code;

    x->is_missing = CR_NEW_ARRAY(bool, g->num_ranks);
    for (int r = 0; r < g->num_ranks; r++)
        x->is_missing[r] = r != g->rank;
    CR_TRY(cr_event_create(g->dev, &x->moved, err));
    for (int k = 0; k < NUM_ROOMS; k++) {
        CR_TRY(cr_event_create(g->dev, &x->came[k], err));
        CR_TRY(cr_event_create(g->dev, &x->summed[k], err));
    }
    if (x->num_members == 1 || !cri_is_member(g)) return CR_OK;
    (void)stream_of(g, CR_STREAM_COMPUTE); /* makes the GPU this thread's */
    code = ncclCommInitRank(&x->comm, x->num_members, x->id, x->member[g->rank]);
    if (code == ncclSuccess) return CR_OK;
    x->comm = NULL;
    return cr_fail(err, CR_EPEER,
                   "NCCL makes no communicator of %d GPUs: %s (NCCL_DEBUG=INFO says why)",
                   x->num_members, ncclGetErrorString(code));
}

void cri_nccl_abort(cr_group *group, const cr_err *failure)
{
    struct cri_nccl *x = group->nccl;

    (void)failure;
    if (x->comm) (void)ncclCommAbort(x->comm);
    x->comm = NULL;
    x->is_ended = true;
}

void cri_nccl_close(cr_group *group)
{
    struct cri_nccl *x = group->nccl;
    cr_err err = {0};

    if (!x) return;
    if (group->world->is_broken) cri_nccl_abort(group, &err);
    for (int s = 0; x->comm && s < CR_NUM_STREAMS; s++)
        if (cr_device_sync(cr_device_stream(group->dev, (cr_stream)s), &err) != CR_OK)
            cri_nccl_abort(group, &err);
    if (x->comm) (void)ncclCommDestroy(x->comm);
    cr_device_free(group->dev, x->rooms, NUM_ROOMS * x->room_elems * sizeof(float));
    nccl_free(group);
}

/* ---- operations, and the host's wait for them ---- */

static cr_status check(cr_group *g, const char *what, ncclResult_t code, cr_err *err)
{
    char text[CRI_FAILURE_BYTES];

    if (code == ncclSuccess) return CR_OK;
    snprintf(text, sizeof text, "%.100s (group %s): NCCL says: %s (NCCL_DEBUG=INFO shows more)",
             what, g->name, ncclGetErrorString(code));
    return cri_fail_group(g, CR_EPEER, text, err);
}

/* NCCL calls may wait for other ranks, which make their first connections then. */
cr_status cri_nccl_begin(cr_group *g, const char *what, cr_err *err)
{
    if (!g->nccl->comm)
        return cr_fail(err, CR_EPEER, "%.100s: group %s has been ended by a failure", what,
                       g->name);
    cri_guard_begin(g->world, what);
    (void)ncclGroupStart();
    return CR_OK;
}

cr_status cri_nccl_end(cr_group *g, const char *what, ncclResult_t code, cr_err *err)
{
    ncclResult_t end = ncclGroupEnd();

    cri_guard_end(g->world);
    return check(g, what, code == ncclSuccess ? end : code, err);
}

void cri_nccl_send(cr_group *g, const void *data, size_t num_bytes, int peer, cr_stream stream,
                   ncclResult_t *code)
{
    if (*code == ncclSuccess && (num_bytes || peer == g->nccl->member[g->rank]))
        *code = ncclSend(data, num_bytes, ncclInt8, peer, g->nccl->comm, stream_of(g, stream));
}

void cri_nccl_receive(cr_group *g, void *data, size_t num_bytes, int peer, cr_stream stream,
                      ncclResult_t *code)
{
    if (*code == ncclSuccess && (num_bytes || peer == g->nccl->member[g->rank]))
        *code = ncclRecv(data, num_bytes, ncclInt8, peer, g->nccl->comm, stream_of(g, stream));
}

static cr_status look(cr_group *g, const char *what, double waited_s, cr_err *err)
{
    const struct cri_nccl *x = g->nccl;
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_check_failed(g, what, x->is_missing, err));
    if (x->is_ended) return cr_fail(err, CR_EPEER, "%s: ended by a failure", what);
    if (x->comm && ncclCommGetAsyncError(x->comm, &code) == ncclSuccess && code != ncclInProgress)
        CR_TRY(check(g, what, code, err));
    if (waited_s > g->world->deadline_s)
        return cri_fail_missing(g, what, x->is_missing, waited_s, err);
    return CR_OK;
}

static cr_status wait_for(cr_group *g, const cr_event *moved, cr_coll coll, const char *name,
                          uint32_t sequence, uint64_t event, cr_err *err)
{
    double begin_s = cr_now_s(), now_s = begin_s, looked_s = begin_s;
    cri_entry entry = {.sequence = sequence, .coll = coll};
    char what[WHAT_BYTES];
    bool is_over = false;

    snprintf(entry.name, sizeof entry.name, "%s", name);
    cri_entry_text(g, &entry, what, sizeof what);
    for (;;) {
        CR_TRY(cr_event_is_over(moved, &is_over, err));
        if (is_over) break;
        now_s = cr_now_s();
        if (now_s - looked_s > look_s) {
            CR_TRY(look(g, what, now_s - begin_s, err));
            looked_s = now_s;
        }
        if (now_s - begin_s < yield_s)
            sched_yield();
        else
            cr_sleep_s(now_s - begin_s < short_s ? short_sleep_s : long_sleep_s);
    }
    cri_event_waited(g->world, event, now_s - begin_s);
    return CR_OK;
}

cr_status cri_nccl_wait(const cri_call *call, cr_err *err)
{
    cr_group *g = call->group;

    CR_TRY(cr_event_record(g->nccl->moved, g->dev, err));
    return wait_for(g, g->nccl->moved, call->coll, call->name, call->sequence, call->event, err);
}

/* ---- small collectives ---- */

typedef struct slices { /* of a chunk: rank r sums [r * each, + num_of(r)) */
    char *data;
    size_t num, each; /* elements */
} slices;

static size_t num_of(const slices *s, int rank)
{
    size_t begin = s->each * (size_t)rank, left = begin < s->num ? s->num - begin : 0;

    return left < s->each ? left : s->each;
}

static char *slice_at(const slices *s, int rank)
{
    return s->data + (num_of(s, rank) ? s->each * (size_t)rank * sizeof(float) : 0);
}

static char *room(const cr_group *g, size_t chunk)
{
    const struct cri_nccl *x = g->nccl;

    return cr_mem_to_host(cr_at(CR_F32, x->rooms, (int64_t)(chunk % NUM_ROOMS * x->room_elems)));
}

/* This rank's slice of every rank comes to the chunk's room. */
static cr_status exchange_slices(cr_group *g, const char *name, const slices *s, size_t chunk,
                                 cr_err *err)
{
    size_t mine = num_of(s, g->rank) * sizeof(float), place = s->each * sizeof(float);
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_nccl_begin(g, name, err));
    for (int r = 0; r < g->num_ranks; r++) {
        cri_nccl_send(g, slice_at(s, r), num_of(s, r) * sizeof(float), r, CR_STREAM_COMPUTE, &code);
        cri_nccl_receive(g, room(g, chunk) + (size_t)r * place, mine, r, CR_STREAM_COMPUTE, &code);
    }
    CR_TRY(cri_nccl_end(g, name, code, err));
    return cr_event_record(g->nccl->came[chunk % NUM_ROOMS], g->dev, err);
}

/* On reduce, while the next chunk comes. */
static cr_status sum_slices(cr_group *g, const slices *s, size_t chunk, cr_err *err)
{
    cr_device *on = cr_device_stream(g->dev, CR_STREAM_REDUCE);
    struct cri_nccl *x = g->nccl;

    CR_TRY(cr_event_wait(x->came[chunk % NUM_ROOMS], on, err));
    CR_TRY(cr_sum_parts(on,
                        &(cr_sum_parts_args){.y = cr_mem_of_host(slice_at(s, g->rank)),
                                             .dtype = CR_F32,
                                             .x = cr_mem_of_host(room(g, chunk)),
                                             .stride = s->each,
                                             .num = num_of(s, g->rank),
                                             .num_parts = (size_t)g->num_ranks},
                        err));
    return cr_event_record(x->summed[chunk % NUM_ROOMS], on, err);
}

static cr_status spread_sums(cr_group *g, const char *name, const slices *s, size_t chunk,
                             cr_err *err)
{
    size_t mine = num_of(s, g->rank) * sizeof(float);
    ncclResult_t code = ncclSuccess;

    CR_TRY(cr_event_wait(g->nccl->summed[chunk % NUM_ROOMS], g->dev, err));
    CR_TRY(cri_nccl_begin(g, name, err));
    for (int r = 0; r < g->num_ranks; r++) {
        bool is_own = r == g->rank; /* its sum is in its place */
        cri_nccl_send(g, slice_at(s, g->rank), is_own ? 0 : mine, r, CR_STREAM_COMPUTE, &code);
        cri_nccl_receive(g, slice_at(s, r), is_own ? 0 : num_of(s, r) * sizeof(float), r,
                         CR_STREAM_COMPUTE, &code);
    }
    return cri_nccl_end(g, name, code, err);
}

static slices slices_of(const cr_group *g, const cri_vector *v, size_t chunk)
{
    size_t at = chunk * ROOM_ELEMS, num = v->num - at < ROOM_ELEMS ? v->num - at : ROOM_ELEMS,
           n = (size_t)g->num_ranks;

    return (slices){v->data + at * v->elem_bytes, num,
                    ((num + n - 1) / n + SLICE_ELEMS - 1) / SLICE_ELEMS * SLICE_ELEMS};
}

static cr_status make_rooms(cr_group *g, size_t num, cr_err *err)
{
    struct cri_nccl *x = g->nccl;
    size_t need = (num < ROOM_ELEMS ? num : ROOM_ELEMS) + SLICE_ELEMS * (size_t)g->num_ranks;

    if (x->room_elems >= need) return CR_OK;
    cr_device_free(g->dev, x->rooms, NUM_ROOMS * x->room_elems * sizeof(float));
    x->rooms = NULL;
    x->room_elems = 0;
    CR_TRY(cr_device_alloc(g->dev, NUM_ROOMS * need * sizeof(float), &x->rooms, err));
    x->room_elems = need;
    return CR_OK;
}

/* Two chunks are under way: while one is summed, the slices of the next one come. */
static cr_status all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    size_t num_chunks = (v->num + ROOM_ELEMS - 1) / ROOM_ELEMS;
    slices now, next;

    CR_TRY(cri_call_round(call, v->num * v->elem_bytes, /*is_equal=*/true, err));
    if (v->num == 0) return CR_OK;
    CR_TRY(make_rooms(g, v->num, err));
    next = slices_of(g, v, 0);
    CR_TRY(exchange_slices(g, call->name, &next, 0, err));
    for (size_t chunk = 0; chunk < num_chunks; chunk++) {
        now = next;
        if (chunk + 1 < num_chunks) {
            next = slices_of(g, v, chunk + 1);
            CR_TRY(exchange_slices(g, call->name, &next, chunk + 1, err));
        }
        CR_TRY(sum_slices(g, &now, chunk, err));
        CR_TRY(spread_sums(g, call->name, &now, chunk, err));
    }
    return cri_nccl_wait(call, err);
}

/* Own pieces are copied by cri_transfer_begin. */
static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    cr_group *g = call->group;
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_transfer_begin(call, x, NULL, err));
    CR_TRY(cri_nccl_begin(g, call->name, err));
    cri_nccl_send(g, NULL, 0, g->rank, CR_STREAM_COMPUTE, &code);
    cri_nccl_receive(g, NULL, 0, g->rank, CR_STREAM_COMPUTE, &code);
    for (const cr_piece *p = x->sends; p < x->sends + x->num_sends; p++)
        if (p->peer != g->rank)
            cri_nccl_send(g, x->send + p->offset_bytes, p->num_bytes, p->peer, CR_STREAM_COMPUTE,
                          &code);
    for (const cr_piece *p = x->recvs; p < x->recvs + x->num_recvs; p++)
        if (p->peer != g->rank)
            cri_nccl_receive(g, x->recv + p->offset_bytes, p->num_bytes, p->peer, CR_STREAM_COMPUTE,
                             &code);
    CR_TRY(cri_nccl_end(g, call->name, code, err));
    return cri_nccl_wait(call, err);
}

/* A transfer of one piece to each rank. */
static cr_status all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    int n = call->group->num_ranks;
    cr_piece *pieces = CR_NEW_ARRAY(cr_piece, 2 * n);

    for (int r = 0; r < n; r++) {
        pieces[r] = (cr_piece){r, x->send_offsets[r], x->send_bytes[r]};
        pieces[n + r] = (cr_piece){r, x->recv_offsets[r], x->recv_bytes[r]};
    }
    cr_note(transfer(
        call,
        &(cri_pieces){x->send, x->recv, pieces, pieces + n, (size_t)n, (size_t)n, call->group->dev},
        err));
    cr_free(pieces);
    return err->status;
}

/* ---- big buffers ---- */

static cr_status events_create(cr_group *g, cri_slot *slots, int num_slots, cr_err *err)
{
    for (int s = 0; s < num_slots; s++)
        CR_TRY(cr_event_create(g->dev, &slots[s].moved, err));
    return CR_OK;
}

static cr_status gather_open(cr_gather *gather, cr_err *err)
{
    CR_TRY(events_create(gather->group, gather->slots, gather->num_slots, err));
    return cri_device_gather_open(gather, err);
}

static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];
    char *whole = cr_mem_to_host(cri_device_gather_at(gather, slot));

    if (s->part_bytes > 0) {
        CR_TRY(cri_nccl_begin(g, s->name, err));
        CR_TRY(cri_nccl_end(g, s->name,
                            ncclAllGather(whole + s->part_bytes * (size_t)g->rank, whole,
                                          s->part_bytes, ncclInt8, g->nccl->comm,
                                          stream_of(g, CR_STREAM_GATHER)),
                            err));
    }
    return cr_event_record(s->moved, cr_device_stream(g->dev, CR_STREAM_GATHER), err);
}

static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    const cri_slot *s = &gather->slots[slot];

    return wait_for(gather->group, s->moved, CR_COLL_ALL_GATHER, s->name, s->sequence, s->event,
                    err);
}

static cr_status reduce_open(cr_reduce *reduce, cr_err *err)
{
    CR_TRY(events_create(reduce->group, reduce->slots, reduce->num_slots, err));
    CR_TRY(cri_device_reduce_open(reduce, err));
    return cri_device_came_open(reduce, err);
}

static cr_status reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];
    char *came = cr_mem_to_host(cri_device_came_at(reduce, slot));
    ncclResult_t code = ncclSuccess;
    const cr_mem *mine;

    if (s->part_bytes > 0) {
        CR_TRY(cri_device_contribution(reduce, slot, &mine, err));
        CR_TRY(cri_nccl_begin(g, s->name, err));
        for (int r = 0; r < g->num_ranks; r++) {
            size_t at = s->part_bytes * (size_t)r;
            cri_nccl_send(g, cr_mem_add_const(mine, at), s->part_bytes, r, CR_STREAM_REDUCE, &code);
            cri_nccl_receive(g, came + at, s->part_bytes, r, CR_STREAM_REDUCE, &code);
        }
        CR_TRY(cri_nccl_end(g, s->name, code, err));
    }
    return cr_event_record(s->moved, cr_device_stream(g->dev, CR_STREAM_REDUCE), err);
}

static cr_status reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                               cr_err *err)
{
    cr_group *g = reduce->group;
    const cri_slot *s = &reduce->slots[slot];

    CR_TRY(wait_for(g, s->moved, CR_COLL_REDUCE_SCATTER, s->name, s->sequence, s->event, err));
    return cr_sum_parts(cr_device_stream(g->dev, CR_STREAM_REDUCE),
                        &(cr_sum_parts_args){.y = cr_mem_of_host(shard),
                                             .dtype = s->dtype == CR_REDUCE_BF16 ? CR_BF16 : CR_F32,
                                             .x = cri_device_came_at(reduce, slot),
                                             .stride = s->part_elems,
                                             .num = s->part_elems,
                                             .num_parts = (size_t)g->num_ranks,
                                             .is_added = is_added},
                        err);
}

const cri_comm cri_comm_nccl = {.name = "nccl",
                                .sum_order = CRI_SUM_BY_TREE,
                                .open = cri_nccl_open,
                                .close = cri_nccl_close,
                                .abort = cri_nccl_abort,
                                .all_reduce = all_reduce,
                                .all_to_all = all_to_all,
                                .transfer = transfer,
                                .gather_open = gather_open,
                                .gather_close = cri_device_gather_close,
                                .gather_is_free = cri_pages_gather_is_free,
                                .gather_begin = cri_pages_gather_step,
                                .gather_publish = gather_publish,
                                .gather_wait = gather_wait,
                                .gather_release = cri_pages_gather_release,
                                .reduce_open = reduce_open,
                                .reduce_close = cri_device_reduce_close,
                                .reduce_begin = cri_pages_reduce_begin,
                                .reduce_publish = reduce_publish,
                                .reduce_is_ready = cri_pages_reduce_is_ready,
                                .reduce_finish = reduce_finish};
