/* control.c -- the control plane of a group: sequence numbers, comparing entries, and errors that name who is
 * missing or calls something else (see comm.h). How entries travel is the transport's. */
#include "mesh/comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_RANKS = 3, MAX_TAG = 32749 };

cr_status cri_open_mpi(cr_group *g, cr_err *err)
{
    cr_world *w = g->world;
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    cr_status status;

    MPI_Comm_group(w->comm, &all);
    MPI_Group_incl(all, g->num_ranks, g->world_ranks, &members);
    status = cri_mpi(w, MPI_Comm_create_group(w->comm, members, (int)(g->tag % MAX_TAG), &g->mpi),
                     "making a group's communicator", err);
    MPI_Group_free(&members);
    MPI_Group_free(&all);
    if (status == CR_OK) MPI_Comm_set_errhandler(g->mpi, MPI_ERRORS_RETURN);
    return status;
}

void cri_close_mpi(cr_group *group)
{
    if (group->mpi != MPI_COMM_NULL && !group->world->is_broken) MPI_Comm_free(&group->mpi);
}

/* ---- saying what happened ---- */

void cri_describe(const cr_world *world, const cr_group *group, int world_rank, char *text,
                  size_t capacity_bytes)
{
    const cri_board *b = cri_board_of(world, world_rank);
    char who[CRI_RANK_BYTES];

    if (b && b->group[0]) {
        snprintf(text, capacity_bytes,
                 "rank %d%s%.23s%s, which %s %s %.63s (group %.23s, sequence %u) %.1f s ago%s%.47s",
                 world_rank, b->role[0] ? " (" : "", b->role, b->role[0] ? ")" : "",
                 b->is_inside ? "entered" : "left", cr_coll_name((cr_coll)b->coll), b->name,
                 b->group, b->sequence, cr_now_s() - b->since_s, b->phase[0] ? ", phase " : "",
                 b->phase);
        return;
    }
    if (b) {
        snprintf(text, capacity_bytes,
                 "rank %d%s%.23s%s, which has been in no collective yet%s%.47s", world_rank,
                 b->role[0] ? " (" : "", b->role, b->role[0] ? ")" : "",
                 b->phase[0] ? ", phase " : "", b->phase);
        return;
    }
    for (int i = 0; group && group->last && i < group->num_ranks; i++)
        if (group->world_ranks[i] == world_rank && group->last[i].sequence > 0) {
            const cri_entry *e = &group->last[i];
            snprintf(text, capacity_bytes, "%s, last seen in %s %.63s (sequence %u)",
                     cri_rank_text(world, world_rank, who), cr_coll_name((cr_coll)e->coll), e->name,
                     e->sequence);
            return;
        }
    snprintf(text, capacity_bytes, "%s, not seen here yet", cri_rank_text(world, world_rank, who));
}

cr_status cri_fail_group(cr_group *g, cr_status status, const char *message, cr_err *err)
{
    cr_fail(err, status, "%s", message);
    cr_world_fail(g->world, err);
    return err->status;
}

cr_status cri_fail_missing(cr_group *g, const char *what, const bool *is_missing, double waited_s,
                           cr_err *err)
{
    cr_buf b = {0};
    char text[320];
    int num = 0;

    cr_buf_addf(&b, "%s: rank %d waited %.3g s for ", what, g->world->rank, waited_s);
    for (int r = 0; r < g->num_ranks; r++) {
        if (!is_missing[r]) continue;
        cri_describe(g->world, g, g->world_ranks[r], text, sizeof text);
        cr_log(CR_LOG_ERROR, "mesh", "%s: waiting for %s", what, text);
        if (num++ < SHOWN_RANKS) cr_buf_addf(&b, "%s%s", num > 1 ? "; " : "", text);
    }
    if (num > SHOWN_RANKS) cr_buf_addf(&b, "; and %d more", num - SHOWN_RANKS);
    cri_fail_group(g, CR_ETIMEOUT, b.data, err);
    cr_buf_free(&b);
    return err->status;
}

cr_status cri_status_of_failure(uint32_t status)
{
    return status == CR_EDIVERGED || status == CR_ETIMEOUT ? (cr_status)status : CR_EPEER;
}

cr_status cri_check_failed(cr_group *g, const char *what, const bool *is_missing, cr_err *err)
{
    for (int r = 0; r < g->num_ranks; r++) {
        cri_board *b = is_missing[r] ? cri_board_of(g->world, g->world_ranks[r]) : NULL;
        bool is_gone = b && cri_board_is_gone(g->world, b);
        uint32_t status = b ? atomic_load(&b->has_failed) : 0; /* it may have said why */
        char text[400];

        if (status) {
            snprintf(text, sizeof text, "%s: rank %d failed: %.239s", what, g->world_ranks[r],
                     b->failure);
            return cri_fail_group(g, cri_status_of_failure(status), text, err);
        }
        if (is_gone) {
            snprintf(text, sizeof text, "%s: rank %d was killed (its process %d has ended)", what,
                     g->world_ranks[r], (int)b->process);
            return cri_fail_group(g, CR_EPEER, text, err);
        }
    }
    return CR_OK;
}

cr_status cri_fail_late(cr_group *group, const char *what, int rank, cr_err *err)
{
    bool *is_missing = CR_NEW_ARRAY(bool, group->num_ranks);

    is_missing[rank] = true;
    if (cri_check_failed(group, what, is_missing, err) == CR_OK)
        cri_fail_missing(group, what, is_missing, group->world->deadline_s, err);
    cr_free(is_missing);
    return err->status;
}

void cri_entry_text(const cr_group *g, const cri_entry *e, char *text, size_t capacity_bytes)
{
    snprintf(text, capacity_bytes, "%s %.63s (group %s, sequence %u)",
             cr_coll_name((cr_coll)e->coll), e->name, g->name, e->sequence);
}

/* Every pair of ranks compares: whoever sees a difference fails at once. */
cr_status cri_compare(cr_group *g, const cri_entry *mine, const cri_entry *theirs, int rank,
                      cr_err *err)
{
    bool is_same_call = mine->sequence == theirs->sequence && mine->coll == theirs->coll &&
                        strcmp(mine->name, theirs->name) == 0;
    char text[480];

    if (is_same_call && mine->slot == theirs->slot &&
        (!mine->is_equal || mine->num_bytes == theirs->num_bytes))
        return CR_OK;
    if (is_same_call && mine->slot != theirs->slot) /* their parts would be mixed up */
        snprintf(text, sizeof text,
                 "ranks do different things in group %s: at sequence %u rank %d calls %s %.63s in "
                 "slot %u, "
                 "rank %d calls %s %.63s in slot %u (they have released other units before)",
                 g->name, mine->sequence, g->world->rank, cr_coll_name((cr_coll)mine->coll),
                 mine->name, mine->slot, g->world_ranks[rank], cr_coll_name((cr_coll)theirs->coll),
                 theirs->name, theirs->slot);
    else if (is_same_call)
        snprintf(text, sizeof text,
                 "%s %.63s (group %s, sequence %u): rank %d has %llu bytes, rank %d has %llu",
                 cr_coll_name((cr_coll)mine->coll), mine->name, g->name, mine->sequence,
                 g->world->rank, (unsigned long long)mine->num_bytes, g->world_ranks[rank],
                 (unsigned long long)theirs->num_bytes);
    else
        snprintf(text, sizeof text,
                 "ranks do different things in group %s at sequence %u: rank %d calls %s %.63s, "
                 "rank %d calls %s %.63s",
                 g->name, mine->sequence, g->world->rank, cr_coll_name((cr_coll)mine->coll),
                 mine->name, g->world_ranks[rank], cr_coll_name((cr_coll)theirs->coll),
                 theirs->name);
    return cri_fail_group(g, CR_EDIVERGED, text, err);
}

/* ---- post and complete ---- */

static void board_enter(cr_group *g, const cri_entry *e)
{
    cri_board *b = g->world->own_board;

    memcpy(b->name, e->name, sizeof b->name);
    memcpy(b->group, g->name, sizeof b->group);
    b->sequence = e->sequence;
    b->coll = e->coll;
    b->since_s = cr_now_s();
    b->is_inside = 1;
}

cr_status cri_post(cr_group *group, cr_coll coll, const char *name, size_t num_bytes, bool is_equal,
                   int slot, uint32_t *sequence, cr_err *err)
{
    cri_entry entry = {.sequence = ++group->sequence,
                       .coll = coll,
                       .num_bytes = num_bytes,
                       .is_equal = is_equal,
                       .slot = (uint32_t)slot};

    *sequence = entry.sequence;
    snprintf(entry.name, sizeof entry.name, "%s", name);
    board_enter(group, &entry);
    if (entry.sequence - group->completed > group->base->max_posted) {
        CR_TRY(group->base->complete(group, entry.sequence - group->base->max_posted, err));
        group->completed = entry.sequence - group->base->max_posted;
    }
    return group->base->post(group, &entry, err);
}

cr_status cri_complete(cr_group *group, uint32_t sequence, uint64_t event, cr_err *err)
{
    if ((int32_t)(sequence - group->completed) > 0) {
        double begin_s = cr_now_s();
        cr_status status = group->base->complete(group, sequence, err);

        cri_event_waited(group->world, event, cr_now_s() - begin_s);
        CR_TRY(status);
        group->completed = sequence;
    }
    group->world->own_board->is_inside = 0;
    return CR_OK;
}

cr_status cri_call_round(cri_call *call, size_t num_bytes, bool is_equal, cr_err *err)
{
    uint32_t sequence;
    cr_status status =
        cri_post(call->group, call->coll, call->name, num_bytes, is_equal, 0, &sequence, err);

    call->sequence = sequence;
    cri_event_round(call->group->world, call->event, sequence, num_bytes);
    CR_TRY(status);
    return cri_complete(call->group, sequence, call->event, err);
}

/* ---- sums ---- */

static double combine(cr_op op, double x, double y)
{
    if (op == CR_OP_SUM) return x + y;
    return isnan(y) || (op == CR_OP_MAX ? y > x : y < x) ? y : x;
}

/* Of float32 only sums. */
void cri_combine(const cri_vector *v, const void *const *parts, const uint8_t *merges,
                 int num_parts, void *out, size_t num)
{
    double waiting[32], x = 0;

    if (!v->is_double) {
        cri_sum(CRI_SUM_F32, out, parts, merges, num_parts, num, /*is_added=*/false);
        return;
    }
    for (size_t i = 0; i < num; i++) {
        int depth = 0;
        for (int p = 0; p < num_parts; p++) {
            memcpy(&x, (const char *)parts[p] + i * sizeof x, sizeof x);
            for (int m = 0; m < merges[p]; m++)
                x = combine(v->op, waiting[--depth], x);
            waiting[depth++] = x;
        }
        memcpy((char *)out + i * sizeof x, &x, sizeof x); /* the last one has all on its left */
    }
}
