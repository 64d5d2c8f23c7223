/* comm_mpi.c -- every rank of the group on a host of its own: MPI messages.
 *
 * Data moves by non-blocking MPI collectives after the call's entry. What is summed is gathered (or, for parts,
 * exchanged) first and then summed here, so the bits are those of shared memory. */
#include "mesh/host.h"
#include "mesh/rounds.h"

#include <stdio.h>

enum { MESSAGE_BYTES = 1 << 30 }; /* at most, of a piece */

/* ---- control plane: every rank exchanges entries with every other one ---- */

cr_status cri_mpi_open(cr_group *group, cr_err *err)
{
    group->stage =
        cri_pages_map((size_t)CRI_STAGE_BYTES * (size_t)group->num_ranks, /*is_meta=*/false);
    return cri_open_mpi(group, err);
}

void cri_mpi_close(cr_group *group)
{
    cri_close_mpi(group);
    cri_pages_unmap(group->stage, (size_t)CRI_STAGE_BYTES * (size_t)group->num_ranks);
}

static cr_status mpi_open(cr_group *group, cr_err *err)
{
    int *rank = CR_NEW_ARRAY(int, group->num_ranks);

    for (int r = 0; r < group->num_ranks; r++)
        rank[r] = r;
    group->rounds = cri_rounds_create(group, rank, group->num_ranks, /*patience=*/1);
    cr_free(rank);
    return cri_mpi_open(group, err);
}

static void mpi_close(cr_group *group)
{
    cri_mpi_close(group);
    cri_rounds_destroy(group->rounds);
}

static cr_status post(cr_group *group, const cri_entry *entry, cr_err *err)
{
    return cri_rounds_post(group->rounds, entry, err);
}

static cr_status complete(cr_group *group, uint32_t sequence, cr_err *err)
{
    return cri_rounds_complete(group->rounds, sequence, err);
}

static bool is_done(const cr_group *group, uint32_t sequence)
{
    return cri_rounds_is_done(group->rounds, sequence);
}

static void mpi_abort(cr_group *group, const cr_err *failure)
{
    cri_rounds_abort(group->rounds, failure);
}

/* ---- small collectives ---- */

/* Wait for one request that MPI has made with `code`. */
static cr_status wait_one(cri_call *call, int code, MPI_Request *request, cr_err *err)
{
    CR_TRY(cri_mpi(call->group->world, code, call->name, err));
    return cri_wait_requests(call->group, request, 1, call->name, call->event, err);
}

static cr_status check_int(const cri_call *call, size_t num_bytes, cr_err *err)
{
    if (num_bytes > INT32_MAX)
        return cr_fail(err, CR_EARG, "%s %s: %zu bytes between hosts in one call, at most 2 GiB",
                       cr_coll_name(call->coll), call->name, num_bytes);
    return CR_OK;
}

cr_status cri_mpi_all_reduce(cri_call *call, const cri_vector *v, cr_err *err)
{
    cr_group *g = call->group;
    size_t round_elems = CRI_STAGE_BYTES / v->elem_bytes;
    MPI_Request request;

    for (size_t at = 0; at < v->num || at == 0; at += round_elems) {
        size_t num = v->num - at < round_elems ? v->num - at : round_elems;
        int num_bytes = (int)(num * v->elem_bytes), code;
        CR_TRY(cri_call_round(call, v->num * v->elem_bytes, /*is_equal=*/true, err));
        if (num == 0) break;
        code = MPI_Iallgather(v->data + at * v->elem_bytes, num_bytes, MPI_BYTE, g->stage,
                              num_bytes, MPI_BYTE, g->mpi, &request);
        CR_TRY(wait_one(call, code, &request, err));
        for (int r = 0; r < g->num_ranks; r++)
            g->parts[r] = g->stage + (size_t)r * (size_t)num_bytes;
        cri_combine(v, g->parts, g->merges, g->num_ranks, v->data + at * v->elem_bytes, num);
    }
    return CR_OK;
}

cr_status cri_mpi_broadcast(cri_call *call, int root, char *data, size_t num_bytes, cr_err *err)
{
    MPI_Datatype type;
    MPI_Request request;
    int count;

    CR_TRY(cri_call_round(call, num_bytes, /*is_equal=*/true, err));
    CR_TRY(cri_mpi_count(num_bytes, &count, &type, err));
    return wait_one(call, MPI_Ibcast(data, count, type, root, call->group->mpi, &request), &request,
                    err);
}

cr_status cri_mpi_all_gather(cri_call *call, const char *data, size_t num_bytes, cr_buf *out,
                             size_t *offsets, cr_err *err)
{
    cr_group *g = call->group;
    int n = g->num_ranks, *counts = CR_NEW_ARRAY(int, 2 * n), *starts = counts + n, code;
    MPI_Request request;

    CR_TRY_GOTO(out, cri_call_round(call, num_bytes, /*is_equal=*/false, err));
    code = MPI_Iallgather(&num_bytes, sizeof num_bytes, MPI_BYTE, offsets + 1, sizeof num_bytes,
                          MPI_BYTE, g->mpi, &request);
    CR_TRY_GOTO(out, wait_one(call, code, &request, err));
    offsets[0] = 0;
    for (int r = 0; r < n; r++) {
        CR_TRY_GOTO(out, check_int(call, offsets[r + 1], err));
        counts[r] = (int)offsets[r + 1];
        starts[r] = (int)offsets[r];
        offsets[r + 1] += offsets[r];
        CR_TRY_GOTO(out, check_int(call, offsets[r + 1], err));
    }
    cr_buf_reserve(out, offsets[n] + 1);
    out->num_bytes = offsets[n];
    out->data[out->num_bytes] = 0;
    code = MPI_Iallgatherv(data, counts[g->rank], MPI_BYTE, out->data, counts, starts, MPI_BYTE,
                           g->mpi, &request);
    cr_note(wait_one(call, code, &request, err));
out:
    cr_free(counts);
    return err->status;
}

/* The sizes travel first: a wrong one must be an error here, not inside MPI. */
cr_status cri_mpi_all_to_all(cri_call *call, const cri_exchange *x, cr_err *err)
{
    cr_group *g = call->group;
    int n = g->num_ranks, *counts = CR_NEW_ARRAY(int, 4 * n), code;
    size_t *theirs = CR_NEW_ARRAY(size_t, n);
    MPI_Request request;

    CR_TRY_GOTO(out, cri_call_round(call, x->send_offsets[n], /*is_equal=*/false, err));
    code = MPI_Ialltoall(x->send_bytes, sizeof(size_t), MPI_BYTE, theirs, sizeof(size_t), MPI_BYTE,
                         g->mpi, &request);
    CR_TRY_GOTO(out, wait_one(call, code, &request, err));
    for (int r = 0; r < n; r++) {
        if (theirs[r] != x->recv_bytes[r]) {
            cr_fail(err, CR_EPEER, "all_to_all %s: rank %d sends %zu bytes, rank %d expects %zu",
                    call->name, g->world_ranks[r], theirs[r], g->world->rank, x->recv_bytes[r]);
            goto out;
        }
        counts[r] = (int)x->send_bytes[r];
        counts[n + r] = (int)x->send_offsets[r];
        counts[2 * n + r] = (int)x->recv_bytes[r];
        counts[3 * n + r] = (int)x->recv_offsets[r];
    }
    CR_TRY_GOTO(out, check_int(call, x->send_offsets[n], err));
    CR_TRY_GOTO(out, check_int(call, x->recv_offsets[n], err));
    code = MPI_Ialltoallv(x->send, counts, counts + n, MPI_BYTE, x->recv, counts + 2 * n,
                          counts + 3 * n, MPI_BYTE, g->mpi, &request);
    cr_note(wait_one(call, code, &request, err));
out:
    cr_free(counts);
    cr_free(theirs);
    return err->status;
}

/* Messages with the ranks of other hosts. *requests: array of MPI_Request. from or to is NULL. */
static cr_status post_pieces(const cri_call *call, const cr_piece *pieces, size_t num_pieces,
                             const char *from, char *to, cr_buf *requests, cr_err *err)
{
    const cr_group *g = call->group;
    const int *host_of = g->world->host_of;

    for (const cr_piece *p = pieces; p < pieces + num_pieces; p++) {
        if (host_of[g->world_ranks[p->peer]] == host_of[g->world->rank]) continue;
        for (size_t at = 0; at < p->num_bytes; at += MESSAGE_BYTES) {
            size_t left = p->num_bytes - at, offset = p->offset_bytes + at;
            int num = (int)(left < MESSAGE_BYTES ? left : MESSAGE_BYTES), code;
            MPI_Request request = MPI_REQUEST_NULL;

            code = from ? MPI_Isend(from + offset, num, MPI_BYTE, p->peer, CRI_TRANSFER_TAG, g->mpi,
                                    &request)
                        : MPI_Irecv(to + offset, num, MPI_BYTE, p->peer, CRI_TRANSFER_TAG, g->mpi,
                                    &request);
            cr_buf_add(requests, &request, sizeof request);
            CR_TRY(cri_mpi(g->world, code, call->name, err));
        }
    }
    return CR_OK;
}

cr_status cri_mpi_transfer(cri_call *call, const cri_pieces *x, cr_err *err)
{
    cr_group *g = call->group;
    size_t *sent_bytes = CR_NEW_ARRAY(size_t, g->num_ranks * g->num_ranks);
    cr_buf requests = {0};

    CR_TRY_GOTO(out, cri_transfer_begin(call, x, sent_bytes, err));
    CR_TRY_GOTO(out, post_pieces(call, x->recvs, x->num_recvs, NULL, x->recv, &requests, err));
    CR_TRY_GOTO(out, post_pieces(call, x->sends, x->num_sends, x->send, NULL, &requests, err));
    if (g->host) CR_TRY_GOTO(out, cri_host_transfer(g->host, call, x, sent_bytes, err));
    cr_note(cri_wait_requests(g, (MPI_Request *)(void *)requests.data,
                              (int)(requests.num_bytes / sizeof(MPI_Request)), call->name,
                              call->event, err));
out:
    cr_buf_free(&requests);
    cr_free(sent_bytes);
    return err->status;
}

/* ---- big buffers: private pages ---- */

static cr_status gather_open(cr_gather *gather, cr_err *err)
{
    gather->data = cri_pages_map(gather->slot_bytes * (size_t)gather->num_slots, /*is_meta=*/false);
    for (int s = 0; s < gather->num_slots; s++)
        gather->slots[s].requests = CR_NEW(MPI_Request);
    (void)err;
    return CR_OK;
}

/* MPI's collectives come in one order on all ranks: begin and publish follow announce at once. */
static cr_status gather_publish(cr_gather *gather, int slot, cr_err *err)
{
    cr_group *g = gather->group;
    cri_slot *s = &gather->slots[slot];
    MPI_Datatype type;
    int count;

    CR_TRY(cri_mpi_count(s->part_bytes, &count, &type, err));
    return cri_mpi(g->world,
                   MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL,
                                  gather->data + gather->slot_bytes * (size_t)slot, count, type,
                                  g->mpi, s->requests),
                   s->name, err);
}

static cr_status gather_wait(cr_gather *gather, int slot, cr_err *err)
{
    const cri_slot *s = &gather->slots[slot];

    return cri_wait_requests(gather->group, s->requests, 1, s->name, s->event, err);
}

cr_status cri_mpi_reduce_open(cr_reduce *reduce, cr_err *err)
{
    reduce->data_bytes = reduce->slot_elems * sizeof(float) * (size_t)reduce->num_slots;
    reduce->data = cri_pages_map(reduce->data_bytes, /*is_meta=*/false);
    reduce->wire = cri_pages_map(reduce->data_bytes, /*is_meta=*/false);
    reduce->arrived = cri_pages_map(reduce->data_bytes, /*is_meta=*/false);
    for (int s = 0; s < reduce->num_slots; s++)
        reduce->slots[s].requests = CR_NEW(MPI_Request);
    (void)err;
    return CR_OK;
}

void cri_mpi_reduce_close(cr_reduce *reduce)
{
    cri_pages_unmap(reduce->data, reduce->data_bytes);
    cri_pages_unmap(reduce->wire, reduce->data_bytes);
    cri_pages_unmap(reduce->arrived, reduce->data_bytes);
}

cr_status cri_mpi_reduce_publish(cr_reduce *reduce, int slot, cr_err *err)
{
    cr_group *g = reduce->group;
    cri_slot *s = &reduce->slots[slot];
    size_t at = (size_t)slot * reduce->slot_elems;
    float *data = reduce->data + at;
    MPI_Datatype type;
    int count;

    if (s->dtype == CR_REDUCE_BF16) {
        cri_round_bf16((uint16_t *)(void *)(reduce->wire + at), data,
                       s->part_elems * (size_t)g->num_ranks);
        data = reduce->wire + at;
    }
    CR_TRY(cri_mpi_count(s->part_bytes, &count, &type, err));
    return cri_mpi(
        g->world,
        MPI_Ialltoall(data, count, type, reduce->arrived + at, count, type, g->mpi, s->requests),
        s->name, err);
}

cr_status cri_mpi_reduce_finish(cr_reduce *reduce, int slot, float *shard, bool is_added,
                                cr_err *err)
{
    cr_group *g = reduce->group;
    const cri_slot *s = &reduce->slots[slot];
    const char *arrived = (const char *)(reduce->arrived + (size_t)slot * reduce->slot_elems);

    CR_TRY(cri_wait_requests(g, s->requests, 1, s->name, s->event, err));
    for (int r = 0; r < g->num_ranks; r++)
        g->parts[r] = arrived + (size_t)r * s->part_bytes;
    cri_sum(s->dtype == CR_REDUCE_BF16 ? CRI_SUM_BF16 : CRI_SUM_F32, shard, g->parts, g->merges,
            g->num_ranks, s->part_elems, is_added);
    return CR_OK;
}

const cri_comm cri_comm_mpi = {.name = "mpi",
                               .sum_order = CRI_SUM_BY_TREE,
                               .max_posted = CRI_ROUNDS,
                               .open = mpi_open,
                               .close = mpi_close,
                               .post = post,
                               .complete = complete,
                               .is_done = is_done,
                               .abort = mpi_abort,
                               .all_reduce = cri_mpi_all_reduce,
                               .broadcast = cri_mpi_broadcast,
                               .all_gather = cri_mpi_all_gather,
                               .all_to_all = cri_mpi_all_to_all,
                               .transfer = cri_mpi_transfer,
                               .gather_open = gather_open,
                               .gather_close = cri_pages_gather_close,
                               .gather_is_free = cri_pages_gather_is_free,
                               .gather_begin = cri_pages_gather_step,
                               .gather_publish = gather_publish,
                               .gather_wait = gather_wait,
                               .gather_release = cri_pages_gather_release,
                               .reduce_open = cri_mpi_reduce_open,
                               .reduce_close = cri_mpi_reduce_close,
                               .reduce_begin = cri_pages_reduce_begin,
                               .reduce_publish = cri_mpi_reduce_publish,
                               .reduce_is_ready = cri_pages_reduce_is_ready,
                               .reduce_finish = cri_mpi_reduce_finish};
