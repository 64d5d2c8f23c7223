/* collectives.c -- small and occasional collectives (see collectives.h).
 *
 * They pass through the group's staging area in rounds of CRI_STAGE_BYTES a rank: put my next piece,
 * enter, meet, read the others' pieces. Two staging slots alternate, so that one meeting a round is
 * enough. Over MPI the pieces of a round are
 * all-gathered where every rank needs all of them, and sent directly otherwise. */
#include "mesh/collectives.h"
#include "mesh/flight.h"
#include "mesh/mesh_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct call {
    cr_group *group;
    cr_coll coll;
    const char *name;
    uint64_t event;
    int slot;
} call;

static bool is_alone(const cr_group *g)
{
    return g->transport == CRI_SELF || g->transport == CRI_META;
}

static call call_begin(cr_group *group, cr_coll coll, const char *name)
{
    return (call){.group = group,
                  .coll = coll,
                  .name = name,
                  .event = cri_event_begin(group->world, coll, group, name)};
}

/* Enter and meet; called once a round. */
static cr_status call_meet(call *c, size_t num_bytes, bool is_equal, cr_err *err)
{
    uint32_t sequence;
    cr_status status =
        cri_enter(c->group, c->coll, c->name, num_bytes, is_equal, 0, &sequence, err);

    cri_event_round(c->group->world, c->event, c->group->sequence, num_bytes);
    CR_TRY(status);
    return cri_meet(c->group, sequence, c->event, err);
}

static void call_end(call *c, size_t payload_bytes)
{
    cri_event_entered(c->group->world, c->event, c->group->sequence, payload_bytes);
    cri_event_end(c->group->world, c->event);
}

/* SHARED: rank's area of the slot in use. */
static char *stage_of(const call *c, int rank)
{
    size_t at = (size_t)c->slot * (size_t)c->group->num_ranks + (size_t)rank;

    return c->group->stage->data + at * CRI_STAGE_BYTES;
}

/* The other half: nobody reads it any more, because a rank enters a round only after it has read the
 * round before, and this rank has met everybody in that one. */
static void stage_begin(call *c)
{
    c->slot = (int)(c->group->stage_uses++ % 2);
}

static cr_status check_int(const call *c, size_t num_bytes, cr_err *err)
{
    if (num_bytes > INT32_MAX)
        return cr_fail(err, CR_EARG, "%s %s: %zu bytes between hosts in one call, at most 2 GiB",
                       cr_coll_name(c->coll), c->name, num_bytes);
    return CR_OK;
}

cr_status cr_barrier(cr_group *group, const char *name, cr_err *err)
{
    call c = call_begin(group, CR_COLL_BARRIER, name);

    CR_TRY(call_meet(&c, 0, /*is_equal=*/true, err));
    call_end(&c, 0);
    return CR_OK;
}

/* ---- all-reduce ---- */

#define DEFINE_COMBINE(suffix, type)                                                   \
    static void combine_##suffix(cr_op op, type *acc, const type *x, size_t num)       \
    {                                                                                  \
        for (size_t i = 0; i < num; i++) {                                             \
            if (op == CR_OP_SUM)                                                       \
                acc[i] += x[i];                                                        \
            else if (isnan(x[i]) || (op == CR_OP_MAX ? x[i] > acc[i] : x[i] < acc[i])) \
                acc[i] = x[i];                                                         \
        }                                                                              \
    }
DEFINE_COMBINE(f64, double)
DEFINE_COMBINE(f32, float)

typedef struct vector { /* what is reduced, of either type */
    cr_op op;
    bool is_double;
    char *data;
    size_t num, elem_bytes;
} vector;

/* What the ranks gave is at g->parts. */
static void combine(const cr_group *g, const vector *v, size_t at, size_t num)
{
    void *acc = v->data + at * v->elem_bytes;

    if (!v->is_double && v->op == CR_OP_SUM) {
        cri_sum(CRI_SUM_F32, acc, g->parts, g->num_ranks, num, /*is_added=*/false);
        return;
    }
    memcpy(acc, g->parts[0], num * v->elem_bytes);
    for (int r = 1; r < g->num_ranks; r++)
        if (v->is_double)
            combine_f64(v->op, acc, g->parts[r], num);
        else
            combine_f32(v->op, acc, g->parts[r], num);
}

static cr_status all_reduce_round(call *c, const vector *v, size_t at, size_t num, cr_err *err)
{
    cr_group *g = c->group;
    size_t num_bytes = num * v->elem_bytes;
    char *mine = v->data + at * v->elem_bytes;
    MPI_Request request;

    if (g->transport == CRI_SHARED) {
        stage_begin(c);
        memcpy(stage_of(c, g->rank), mine, num_bytes);
        CR_TRY(call_meet(c, num_bytes, /*is_equal=*/true, err));
        for (int r = 0; r < g->num_ranks; r++)
            g->parts[r] = stage_of(c, r);
        combine(g, v, at, num);
        return CR_OK;
    }
    CR_TRY(call_meet(c, num_bytes, /*is_equal=*/true, err));
    CR_TRY(cri_mpi(g->world,
                   MPI_Iallgather(mine, (int)num_bytes, MPI_BYTE, g->stage_all, (int)num_bytes,
                                  MPI_BYTE, g->comm, &request),
                   c->name, err));
    CR_TRY(cri_wait_requests(g, &request, 1, c->name, c->event, err));
    for (int r = 0; r < g->num_ranks; r++)
        g->parts[r] = g->stage_all + (size_t)r * num_bytes;
    combine(g, v, at, num);
    return CR_OK;
}

static cr_status all_reduce(cr_group *group, const char *name, const vector *v, cr_err *err)
{
    size_t round_elems = CRI_STAGE_BYTES / v->elem_bytes, at = 0;
    call c;

    c = call_begin(group, CR_COLL_ALL_REDUCE, name);
    if (is_alone(group)) CR_TRY(call_meet(&c, 0, /*is_equal=*/true, err));
    while (!is_alone(group) && at < v->num) {
        size_t num = v->num - at < round_elems ? v->num - at : round_elems;
        CR_TRY(all_reduce_round(&c, v, at, num, err));
        at += num;
    }
    call_end(&c, v->num * v->elem_bytes);
    return CR_OK;
}

cr_status cr_all_reduce_f64(cr_group *group, const char *name, cr_op op, double *x, size_t num,
                            cr_err *err)
{
    vector v = {op, true, (char *)x, num, sizeof *x};

    return all_reduce(group, name, &v, err);
}

cr_status cr_all_reduce_f32(cr_group *group, const char *name, cr_op op, float *x, size_t num,
                            cr_err *err)
{
    vector v = {op, false, (char *)x, num, sizeof *x};

    return all_reduce(group, name, &v, err);
}

/* ---- broadcast ---- */

cr_status cr_broadcast(cr_group *group, const char *name, int root, void *data, size_t num_bytes,
                       cr_err *err)
{
    char *bytes = data;
    MPI_Datatype type;
    MPI_Request request;
    int count;
    call c;

    if (root < 0 || root >= group->num_ranks)
        return cr_fail(err, CR_EARG, "broadcast %s: root %d of %d ranks", name, root,
                       group->num_ranks);
    c = call_begin(group, CR_COLL_BROADCAST, name);
    if (group->transport == CRI_SHARED) {
        for (size_t at = 0; at < num_bytes || at == 0; at += CRI_STAGE_BYTES) {
            size_t num = num_bytes - at < CRI_STAGE_BYTES ? num_bytes - at : CRI_STAGE_BYTES;
            stage_begin(&c);
            if (group->rank == root) memcpy(stage_of(&c, root), bytes + at, num);
            CR_TRY(call_meet(&c, num_bytes, /*is_equal=*/true, err));
            if (group->rank != root) memcpy(bytes + at, stage_of(&c, root), num);
        }
    } else {
        CR_TRY(call_meet(&c, num_bytes, /*is_equal=*/true, err));
        CR_TRY(cri_mpi_count(num_bytes, &count, &type, err));
        if (group->transport == CRI_MPI) {
            CR_TRY(cri_mpi(group->world,
                           MPI_Ibcast(bytes, count, type, root, group->comm, &request), name, err));
            CR_TRY(cri_wait_requests(group, &request, 1, name, c.event, err));
        }
    }
    call_end(&c, num_bytes);
    return CR_OK;
}

/* ---- all-gather of bytes ---- */

/* After the first meeting every rank knows all lengths, and so the number of rounds. */
static void lay_out(const call *c, size_t num_bytes, cr_buf *out, size_t *offsets)
{
    cr_group *g = c->group;

    offsets[0] = 0;
    for (int r = 0; r < g->num_ranks; r++)
        offsets[r + 1] = offsets[r] + (r == g->rank ? num_bytes : cri_met_bytes(g, r));
    cr_buf_reserve(out, offsets[g->num_ranks] + 1);
    out->num_bytes = offsets[g->num_ranks];
    out->data[out->num_bytes] = 0;
}

static size_t piece(size_t total, size_t at)
{
    if (at >= total) return 0;
    return total - at < CRI_STAGE_BYTES ? total - at : CRI_STAGE_BYTES;
}

static cr_status gather_bytes_shared(call *c, const char *data, size_t num_bytes, cr_buf *out,
                                     size_t *offsets, cr_err *err)
{
    cr_group *g = c->group;
    size_t longest = 0;

    for (size_t at = 0; at == 0 || at < longest; at += CRI_STAGE_BYTES) {
        stage_begin(c);
        if (piece(num_bytes, at) > 0) memcpy(stage_of(c, g->rank), data + at, piece(num_bytes, at));
        CR_TRY(call_meet(c, num_bytes, /*is_equal=*/false, err));
        if (at == 0) lay_out(c, num_bytes, out, offsets);
        for (int r = 0; r < g->num_ranks; r++) {
            size_t total = offsets[r + 1] - offsets[r];
            if (total > longest) longest = total;
            memcpy(out->data + offsets[r] + (at < total ? at : 0), stage_of(c, r),
                   piece(total, at));
        }
    }
    return CR_OK;
}

static cr_status gather_bytes_mpi(call *c, const char *data, size_t num_bytes, cr_buf *out,
                                  size_t *offsets, cr_err *err)
{
    cr_group *g = c->group;
    int n = g->num_ranks, *counts = CR_NEW_ARRAY(int, 2 * n), *starts = counts + n;
    MPI_Request request;

    CR_TRY_GOTO(out, call_meet(c, num_bytes, /*is_equal=*/false, err));
    lay_out(c, num_bytes, out, offsets);
    CR_TRY_GOTO(out, check_int(c, offsets[n], err));
    for (int r = 0; r < n; r++) {
        counts[r] = (int)(offsets[r + 1] - offsets[r]);
        starts[r] = (int)offsets[r];
    }
    CR_TRY_GOTO(out, cri_mpi(g->world,
                             MPI_Iallgatherv(data, (int)num_bytes, MPI_BYTE, out->data, counts,
                                             starts, MPI_BYTE, g->comm, &request),
                             c->name, err));
    cri_wait_requests(g, &request, 1, c->name, c->event, err);
out:
    cr_free(counts);
    return err->status;
}

static cr_status gather_bytes(cr_group *group, cr_coll coll, const char *name, const void *data,
                              size_t num_bytes, cr_buf *out, size_t *offsets, cr_err *err)
{
    call c;

    cr_buf_clear(out);
    c = call_begin(group, coll, name);
    if (group->transport == CRI_SHARED) {
        CR_TRY(gather_bytes_shared(&c, data, num_bytes, out, offsets, err));
    } else if (group->transport == CRI_MPI) {
        CR_TRY(gather_bytes_mpi(&c, data, num_bytes, out, offsets, err));
    } else {
        CR_TRY(call_meet(&c, num_bytes, /*is_equal=*/false, err));
        lay_out(&c, num_bytes, out, offsets); /* meta: the other ranks give nothing */
        memcpy(out->data + offsets[group->rank], data, num_bytes);
    }
    call_end(&c, offsets[group->num_ranks]);
    return CR_OK;
}

cr_status cr_all_gather_bytes(cr_group *group, const char *name, const void *data, size_t num_bytes,
                              cr_buf *out, size_t *offsets, cr_err *err)
{
    return gather_bytes(group, CR_COLL_GATHER_BYTES, name, data, num_bytes, out, offsets, err);
}

/* ---- all-to-all ---- */

/* The stream of a rank in shared memory is its table of num_ranks + 1 offsets, then its data; the
 * table is in the first round. A receiver copies the overlap of each round with its own piece. */
typedef struct exchange {
    const char *send;
    char *recv;
    const size_t *recv_bytes;
    size_t *sends; /* [num_ranks + 1] offsets of my pieces */
    size_t *table; /* [num_ranks][2] begin and end of my piece in each peer's stream */
    size_t table_bytes, total, longest; /* of streams, table included */
} exchange;

static void put_stream(const exchange *x, size_t at, char *stage)
{
    size_t skip = at == 0 ? x->table_bytes : 0, num = piece(x->total, at);

    if (at == 0) memcpy(stage, x->sends, x->table_bytes);
    if (num > skip) memcpy(stage + skip, x->send + at + skip - x->table_bytes, num - skip);
}

static cr_status read_table(const call *c, exchange *x, int r, cr_err *err)
{
    cr_group *g = c->group;
    const size_t *offsets = (const size_t *)(const void *)stage_of(c, r);
    size_t begin = offsets[g->rank], end = offsets[g->rank + 1];
    size_t total = x->table_bytes + offsets[g->num_ranks];

    if (end - begin != x->recv_bytes[r])
        return cr_fail(err, CR_EPEER, "all_to_all %s: rank %d sends %zu bytes, rank %d expects %zu",
                       c->name, g->world_ranks[r], end - begin, g->world->rank, x->recv_bytes[r]);
    x->table[2 * r] = x->table_bytes + begin;
    x->table[2 * r + 1] = x->table_bytes + end;
    if (total > x->longest) x->longest = total;
    return CR_OK;
}

static void take_stream(const exchange *x, size_t at, const char *stage, int r, size_t recv_at)
{
    size_t begin = x->table[2 * r], end = x->table[2 * r + 1], last = at + CRI_STAGE_BYTES;
    size_t from = begin > at ? begin : at, to = end < last ? end : last;

    if (from < to) memcpy(x->recv + recv_at + (from - begin), stage + (from - at), to - from);
}

static cr_status all_to_all_shared(call *c, exchange *x, cr_err *err)
{
    cr_group *g = c->group;

    for (size_t at = 0; at == 0 || at < x->longest; at += CRI_STAGE_BYTES) {
        size_t recv_at = 0;
        stage_begin(c);
        put_stream(x, at, stage_of(c, g->rank));
        CR_TRY(call_meet(c, x->total, /*is_equal=*/false, err));
        for (int r = 0; r < g->num_ranks; r++) {
            if (at == 0) CR_TRY(read_table(c, x, r, err));
            take_stream(x, at, stage_of(c, r), r, recv_at);
            recv_at += x->recv_bytes[r];
        }
    }
    return CR_OK;
}

/* The sizes travel first: a wrong one must be an error here, not inside MPI. */
static cr_status all_to_all_mpi(call *c, const exchange *x, const size_t *send_bytes, cr_err *err)
{
    cr_group *g = c->group;
    int n = g->num_ranks, *counts = CR_NEW_ARRAY(int, 4 * n);
    size_t *theirs = CR_NEW_ARRAY(size_t, n), at = 0;
    MPI_Request request;

    CR_TRY_GOTO(out, call_meet(c, x->total, /*is_equal=*/false, err));
    CR_TRY_GOTO(out, cri_mpi(g->world,
                             MPI_Ialltoall(send_bytes, sizeof(size_t), MPI_BYTE, theirs,
                                           sizeof(size_t), MPI_BYTE, g->comm, &request),
                             c->name, err));
    CR_TRY_GOTO(out, cri_wait_requests(g, &request, 1, c->name, c->event, err));
    for (int r = 0; r < n; r++) {
        if (theirs[r] != x->recv_bytes[r]) {
            cr_fail(err, CR_EPEER, "all_to_all %s: rank %d sends %zu bytes, rank %d expects %zu",
                    c->name, g->world_ranks[r], theirs[r], g->world->rank, x->recv_bytes[r]);
            goto out;
        }
        counts[r] = (int)send_bytes[r];
        counts[n + r] = (int)x->sends[r];
        counts[2 * n + r] = (int)theirs[r];
        counts[3 * n + r] = (int)at;
        at += theirs[r];
    }
    CR_TRY_GOTO(out, check_int(c, x->total > at ? x->total : at, err));
    CR_TRY_GOTO(out,
                cri_mpi(g->world,
                        MPI_Ialltoallv(x->send, counts, counts + n, MPI_BYTE, x->recv,
                                       counts + 2 * n, counts + 3 * n, MPI_BYTE, g->comm, &request),
                        c->name, err));
    cri_wait_requests(g, &request, 1, c->name, c->event, err);
out:
    cr_free(counts);
    cr_free(theirs);
    return err->status;
}

cr_status cr_all_to_all(cr_group *group, const char *name, const void *send,
                        const size_t *send_bytes, void *recv, const size_t *recv_bytes, cr_err *err)
{
    int n = group->num_ranks;
    exchange x = {.send = send, .recv = recv, .recv_bytes = recv_bytes};
    call c;

    c = call_begin(group, CR_COLL_ALL_TO_ALL, name);
    x.sends = CR_NEW_ARRAY(size_t, 3 * n + 1);
    x.table = x.sends + n + 1;
    for (int r = 0; r < n; r++)
        x.sends[r + 1] = x.sends[r] + send_bytes[r];
    x.table_bytes = (size_t)(n + 1) * sizeof(size_t);
    x.total = x.table_bytes + x.sends[n];
    if (group->transport == CRI_SHARED) {
        CR_CHECK(x.table_bytes <= CRI_STAGE_BYTES, "%d ranks on one host", n);
        CR_TRY_GOTO(out, all_to_all_shared(&c, &x, err));
    } else if (group->transport == CRI_MPI) {
        CR_TRY_GOTO(out, all_to_all_mpi(&c, &x, send_bytes, err));
    } else {
        CR_TRY_GOTO(out, call_meet(&c, 0, /*is_equal=*/false, err));
        if (group->transport == CRI_SELF && send_bytes[0] != recv_bytes[0]) {
            cr_fail(err, CR_EARG, "all_to_all %s: sends %zu bytes to itself, expects %zu", name,
                    send_bytes[0], recv_bytes[0]);
            goto out;
        }
        if (group->transport == CRI_SELF && send_bytes[0] > 0) memcpy(recv, send, send_bytes[0]);
    }
    call_end(&c, x.sends[n] - send_bytes[group->rank]);
out:
    cr_free(x.sends);
    return err->status;
}

/* ---- agreement ---- */

cr_status cr_agree(cr_group *group, const char *name, cr_err *err)
{
    size_t *offsets = CR_NEW_ARRAY(size_t, group->num_ranks + 1);
    cr_buf all = {0};
    cr_err talk = {0}; /* of the talking itself: err may hold this rank's failure already */

    gather_bytes(group, CR_COLL_AGREE, name, err->msg, err->status ? strlen(err->msg) + 1 : 0, &all,
                 offsets, &talk);
    if (talk.status != CR_OK) cr_fail(err, talk.status, "%s", talk.msg);
    for (int r = 0; talk.status == CR_OK && r < group->num_ranks; r++)
        if (offsets[r + 1] > offsets[r])
            cr_fail(err, CR_EPEER, "rank %d: %.400s", group->world_ranks[r], all.data + offsets[r]);
    cr_buf_free(&all);
    cr_free(offsets);
    return err->status;
}
