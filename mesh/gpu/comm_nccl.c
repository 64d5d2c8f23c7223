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
#include "kernels/gpu.h"
#include "kernels/kernels.h"
#include "mesh/comm.h"

#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_ELEMS = 1 << 21, SLICE_ELEMS = 4, WHAT_BYTES = 160 }; /* of an all-reduce */
static const double yield_s = 200e-6, short_s = 10e-3, short_sleep_s = 20e-6, long_sleep_s = 200e-6,
                    look_s = 20e-3;

struct cri_nccl {
    ncclUniqueId id;
    ncclComm_t comm;  /* NULL: not open, or aborted */
    cr_event *moved;  /* of calls that wait before they return */
    bool *is_missing; /* [num_ranks] all but this rank */
    cr_mem *chunk;    /* of an all-reduce; made by the first one */
    size_t chunk_bytes;
};

/* ---- a group ---- */

typedef struct identity { /* of a rank */
    char gpu[64];
    ncclUniqueId id; /* of the first one */
} identity;

static bool is_gpu_shared(const cr_group *g, const identity *of)
{
    const int *host_of = g->world->host_of;

    for (int i = 1; i < g->num_ranks; i++)
        for (int j = 0; j < i; j++)
            if (host_of[g->world_ranks[i]] == host_of[g->world_ranks[j]] &&
                strcmp(of[i].gpu, of[j].gpu) == 0)
                return true;
    return false;
}

cr_status cri_choose_nccl(cr_group *group, const cri_comm **out, cr_err *err)
{
    size_t *offsets = CR_NEW_ARRAY(size_t, group->num_ranks + 1);
    identity mine = {.gpu = ""};
    cr_buf all = {0};

    CR_TRY_GOTO(out, cr_gpu_identity(group->dev, mine.gpu, sizeof mine.gpu, err));
    if (group->rank == 0 && ncclGetUniqueId(&mine.id) != ncclSuccess) {
        cr_fail(err, CR_EIO, "NCCL finds no network interface for its ranks to meet");
        goto out;
    }
    CR_TRY_GOTO(out, cr_all_gather_bytes(group, "GPUs", &mine, sizeof mine, &all, offsets, err));
    if (is_gpu_shared(group, (const identity *)(const void *)all.data)) {
        *out = &cri_comm_staged;
    } else {
        *out = &cri_comm_nccl;
        group->nccl = CR_NEW(struct cri_nccl);
        group->nccl->id = ((const identity *)(const void *)all.data)->id;
    }
out:
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}

static cudaStream_t stream_of(const cr_group *g, cr_stream stream)
{
    return (cudaStream_t)cr_gpu_stream(cr_device_stream(g->dev, stream));
}

static cr_status nccl_open(cr_group *g, cr_err *err)
{
    struct cri_nccl *x = g->nccl;
    ncclResult_t code;

    x->is_missing = CR_NEW_ARRAY(bool, g->num_ranks);
    for (int r = 0; r < g->num_ranks; r++)
        x->is_missing[r] = r != g->rank;
    CR_TRY(cr_event_create(g->dev, &x->moved, err));
    (void)stream_of(g, CR_STREAM_COMPUTE); /* makes the GPU this thread's */
    code = ncclCommInitRank(&x->comm, g->num_ranks, x->id, g->rank);
    if (code == ncclSuccess) return CR_OK;
    x->comm = NULL;
    return cr_fail(err, CR_EPEER,
                   "NCCL makes no communicator of %d ranks: %s (NCCL_DEBUG=INFO says why)",
                   g->num_ranks, ncclGetErrorString(code));
}

static void nccl_abort(cr_group *group, const cr_err *failure)
{
    struct cri_nccl *x = group->nccl;

    (void)failure;
    if (x->comm) (void)ncclCommAbort(x->comm);
    x->comm = NULL;
}

static void nccl_close(cr_group *group)
{
    struct cri_nccl *x = group->nccl;
    cr_err err = {0};

    if (!x) return;
    if (group->world->is_broken) nccl_abort(group, &err);
    for (int s = 0; x->comm && s < CR_NUM_STREAMS; s++)
        if (cr_device_sync(cr_device_stream(group->dev, (cr_stream)s), &err) != CR_OK)
            nccl_abort(group, &err);
    if (x->comm) (void)ncclCommDestroy(x->comm);
    cr_device_free(group->dev, x->chunk, x->chunk_bytes);
    cr_event_destroy(x->moved);
    cr_free(x->is_missing);
    cr_free(x);
    group->nccl = NULL;
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
static cr_status ops_begin(cr_group *g, const char *what, cr_err *err)
{
    if (!g->nccl->comm)
        return cr_fail(err, CR_EPEER, "%.100s: group %s has been ended by a failure", what,
                       g->name);
    cri_guard_begin(g->world, what);
    (void)ncclGroupStart();
    return CR_OK;
}

static cr_status ops_end(cr_group *g, const char *what, ncclResult_t code, cr_err *err)
{
    ncclResult_t end = ncclGroupEnd();

    cri_guard_end(g->world);
    return check(g, what, code == ncclSuccess ? end : code, err);
}

/* Every rank takes part in each exchange: it has at least one message to itself. */
static void add_send(cr_group *g, const void *data, size_t num_bytes, int peer, cr_stream stream,
                     ncclResult_t *code)
{
    if (*code == ncclSuccess && (num_bytes || peer == g->rank))
        *code = ncclSend(data, num_bytes, ncclInt8, peer, g->nccl->comm, stream_of(g, stream));
}

static void add_receive(cr_group *g, void *data, size_t num_bytes, int peer, cr_stream stream,
                        ncclResult_t *code)
{
    if (*code == ncclSuccess && (num_bytes || peer == g->rank))
        *code = ncclRecv(data, num_bytes, ncclInt8, peer, g->nccl->comm, stream_of(g, stream));
}

static cr_status look(cr_group *g, const char *what, double waited_s, cr_err *err)
{
    const struct cri_nccl *x = g->nccl;
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_check_failed(g, what, x->is_missing, err));
    if (!x->comm) return cr_fail(err, CR_EPEER, "%s: ended by a failure", what);
    if (ncclCommGetAsyncError(x->comm, &code) == ncclSuccess && code != ncclInProgress)
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

/* Of a call whose operations are all queued on compute. */
static cr_status wait_for_call(const cri_call *call, cr_err *err)
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

/* This rank's slice of every rank comes to the chunk's room. */
static cr_status exchange_slices(cr_group *g, const char *name, const slices *s, cr_err *err)
{
    size_t mine = num_of(s, g->rank) * sizeof(float), place = s->each * sizeof(float);
    char *came = cr_mem_to_host(g->nccl->chunk);
    ncclResult_t code = ncclSuccess;

    CR_TRY(ops_begin(g, name, err));
    for (int r = 0; r < g->num_ranks; r++) {
        add_send(g, slice_at(s, r), num_of(s, r) * sizeof(float), r, CR_STREAM_COMPUTE, &code);
        add_receive(g, came + (size_t)r * place, mine, r, CR_STREAM_COMPUTE, &code);
    }
    return ops_end(g, name, code, err);
}

static cr_status spread_sums(cr_group *g, const char *name, const slices *s, cr_err *err)
{
    size_t mine = num_of(s, g->rank) * sizeof(float);
    ncclResult_t code = ncclSuccess;

    CR_TRY(ops_begin(g, name, err));
    for (int r = 0; r < g->num_ranks; r++) {
        bool is_own = r == g->rank; /* its sum is in its place */
        add_send(g, slice_at(s, g->rank), is_own ? 0 : mine, r, CR_STREAM_COMPUTE, &code);
        add_receive(g, slice_at(s, r), is_own ? 0 : num_of(s, r) * sizeof(float), r,
                    CR_STREAM_COMPUTE, &code);
    }
    return ops_end(g, name, code, err);
}

static cr_status reduce_chunk(cr_group *g, const char *name, char *data, size_t num, cr_err *err)
{
    size_t n = (size_t)g->num_ranks;
    slices s = {data, num, ((num + n - 1) / n + SLICE_ELEMS - 1) / SLICE_ELEMS * SLICE_ELEMS};
    cr_mem *own = cr_mem_of_host(slice_at(&s, g->rank));

    CR_TRY(exchange_slices(g, name, &s, err));
    CR_TRY(cr_sum_parts(g->dev,
                        &(cr_sum_parts_args){.y = own,
                                             .dtype = CR_F32,
                                             .x = g->nccl->chunk,
                                             .stride = s.each,
                                             .num = num_of(&s, g->rank),
                                             .num_parts = n},
                        err));
    return spread_sums(g, name, &s, err);
}

static cr_status all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    struct cri_nccl *x = g->nccl;

    CR_TRY(cri_call_round(call, v->num * v->elem_bytes, /*is_equal=*/true, err));
    if (v->num == 0) return CR_OK;
    if (!x->chunk) {
        x->chunk_bytes = (CHUNK_ELEMS + SLICE_ELEMS * (size_t)g->num_ranks) * sizeof(float);
        CR_TRY(cr_device_alloc(g->dev, x->chunk_bytes, &x->chunk, err));
    }
    for (size_t at = 0; at < v->num; at += CHUNK_ELEMS)
        CR_TRY(reduce_chunk(g, call->name, v->data + at * v->elem_bytes,
                            v->num - at < CHUNK_ELEMS ? v->num - at : CHUNK_ELEMS, err));
    return wait_for_call(call, err);
}

/* Own pieces are copied by cri_transfer_begin. */
static cr_status transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    cr_group *g = call->group;
    struct cri_nccl *own = g->nccl;
    ncclResult_t code = ncclSuccess;

    CR_TRY(cri_transfer_begin(call, x, NULL, err));
    CR_TRY(ops_begin(g, call->name, err));
    add_send(g, own->chunk, 0, g->rank, CR_STREAM_COMPUTE, &code);
    add_receive(g, own->chunk, 0, g->rank, CR_STREAM_COMPUTE, &code);
    for (const cr_piece *p = x->sends; p < x->sends + x->num_sends; p++)
        if (p->peer != g->rank)
            add_send(g, x->send + p->offset_bytes, p->num_bytes, p->peer, CR_STREAM_COMPUTE, &code);
    for (const cr_piece *p = x->recvs; p < x->recvs + x->num_recvs; p++)
        if (p->peer != g->rank)
            add_receive(g, x->recv + p->offset_bytes, p->num_bytes, p->peer, CR_STREAM_COMPUTE,
                        &code);
    CR_TRY(ops_end(g, call->name, code, err));
    return wait_for_call(call, err);
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
        CR_TRY(ops_begin(g, s->name, err));
        CR_TRY(ops_end(g, s->name,
                       ncclAllGather(whole + s->part_bytes * (size_t)g->rank, whole, s->part_bytes,
                                     ncclInt8, g->nccl->comm, stream_of(g, CR_STREAM_GATHER)),
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
        CR_TRY(ops_begin(g, s->name, err));
        for (int r = 0; r < g->num_ranks; r++) {
            size_t at = s->part_bytes * (size_t)r;
            add_send(g, cr_mem_add_const(mine, at), s->part_bytes, r, CR_STREAM_REDUCE, &code);
            add_receive(g, came + at, s->part_bytes, r, CR_STREAM_REDUCE, &code);
        }
        CR_TRY(ops_end(g, s->name, code, err));
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
                                .open = nccl_open,
                                .close = nccl_close,
                                .abort = nccl_abort,
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
