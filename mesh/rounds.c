/* rounds.c -- entries by messages (see rounds.h). */
#include "mesh/rounds.h"

#include <sched.h>
#include <stdio.h>

/* A wait for messages gives its core away at once, then sleeps: MPI has no blocking wait with a deadline. */
static const double yield_s = 200e-6, short_s = 0.01, short_sleep_s = 50e-6, long_sleep_s = 500e-6,
                    notice_s = 0.05;

cri_rounds *cri_rounds_create(cr_group *group, const int *rank, int num, double patience)
{
    cri_rounds *x = CR_NEW(cri_rounds);

    x->group = group;
    x->num = num;
    x->patience = patience;
    x->rank = CR_NEW_ARRAY(int, num);
    for (int i = 0; i < num; i++) {
        x->rank[i] = rank[i];
        if (rank[i] == group->rank) x->own = i;
    }
    for (int k = 0; k < CRI_ROUNDS; k++) {
        x->round[k].theirs = CR_NEW_ARRAY(cri_message, num);
        x->round[k].requests = CR_NEW_ARRAY(MPI_Request, 2 * num);
    }
    group->last = CR_NEW_ARRAY(cri_entry, group->num_ranks);
    return x;
}

void cri_rounds_destroy(cri_rounds *rounds)
{
    if (!rounds) return;
    for (int k = 0; k < CRI_ROUNDS; k++) {
        cr_free(rounds->round[k].theirs);
        cr_free(rounds->round[k].requests);
    }
    cr_free(rounds->rank);
    cr_free(rounds->group->last);
    cr_free(rounds);
}

/* ---- waiting ---- */

static bool test_all(MPI_Request *requests, int num_requests, int *code)
{
    int is_done = 0;

    *code = MPI_Testall(num_requests, requests, &is_done, MPI_STATUSES_IGNORE);
    return is_done || *code != MPI_SUCCESS;
}

/* CR_ETIMEOUT without a message. */
static cr_status wait_requests(cr_group *g, double deadline_s, MPI_Request *requests,
                               int num_requests, const char *what, cr_err *err)
{
    double begin_s = cr_now_s(), now_s = begin_s;
    int code;

    while (!test_all(requests, num_requests, &code)) {
        now_s = cr_now_s();
        if (now_s - begin_s > deadline_s) return CR_ETIMEOUT;
        if (now_s - begin_s < yield_s)
            sched_yield();
        else
            cr_sleep_s(now_s - begin_s < short_s ? short_sleep_s : long_sleep_s);
    }
    return cri_mpi(g->world, code, what, err);
}

cr_status cri_wait_requests(cr_group *group, MPI_Request *requests, int num_requests,
                            const char *what, uint64_t event, cr_err *err)
{
    double begin_s = cr_now_s();
    char text[400], last[256];
    cr_status status =
        wait_requests(group, group->world->deadline_s, requests, num_requests, what, err);

    cri_event_waited(group->world, event, cr_now_s() - begin_s);
    if (status != CR_ETIMEOUT) return status;
    cri_describe(group->world, group, group->world_ranks[(group->rank + 1) % group->num_ranks],
                 last, sizeof last);
    snprintf(
        text, sizeof text,
        "%.120s (group %s): the data did not arrive within %.3g s although every rank came; %.160s",
        what, group->name, group->world->deadline_s, last);
    return cri_fail_group(group, CR_ETIMEOUT, text, err);
}

cr_status cri_mpi_count(size_t num_bytes, int *count, MPI_Datatype *type, cr_err *err)
{
    bool is_big = num_bytes > INT32_MAX;

    *type = is_big ? MPI_DOUBLE : MPI_BYTE;
    if (is_big && (num_bytes % sizeof(double) != 0 || num_bytes / sizeof(double) > INT32_MAX))
        return cr_fail(err, CR_EARG, "a part of %zu bytes: over 2 GiB it must be a multiple of 8",
                       num_bytes);
    *count = (int)(is_big ? num_bytes / sizeof(double) : num_bytes);
    return CR_OK;
}

/* ---- rounds ---- */

cr_status cri_rounds_post(cri_rounds *rounds, const cri_entry *entry, cr_err *err)
{
    cr_group *g = rounds->group;
    cri_round *round = &rounds->round[entry->sequence % CRI_ROUNDS];
    int n = rounds->num, code = MPI_SUCCESS;

    CR_CHECK(entry->sequence == rounds->posted + 1 &&
                 entry->sequence - rounds->verified <= CRI_ROUNDS,
             "group %s: round %u after %u, complete up to %u", g->name, entry->sequence,
             rounds->posted, rounds->verified);
    rounds->posted = entry->sequence;
    cri_count_received(g->world, (cr_coll)entry->coll, n - 1, 0);
    round->mine = (cri_message){.entry = *entry};
    for (int i = 0; i < 2 * n; i++)
        round->requests[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < n && code == MPI_SUCCESS; i++) {
        if (i == rounds->own) continue;
        code = MPI_Irecv(&round->theirs[i], sizeof(cri_message), MPI_BYTE, rounds->rank[i],
                         CRI_ENTRY_TAG, g->mpi, &round->requests[i]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(&round->mine, sizeof(cri_message), MPI_BYTE, rounds->rank[i],
                             CRI_ENTRY_TAG, g->mpi, &round->requests[n + i]);
    }
    return cri_mpi(g->world, code, "sending an entry", err);
}

void cri_rounds_abort(cri_rounds *rounds, const cr_err *failure)
{
    cr_group *g = rounds->group;
    MPI_Request *requests = CR_NEW_ARRAY(MPI_Request, rounds->num);
    double until_s = cr_now_s() + notice_s;
    int code;

    rounds->failure_notice = (cri_message){.failure_status = (uint32_t)failure->status};
    snprintf(rounds->failure_notice.failure, sizeof rounds->failure_notice.failure, "%.*s",
             CRI_FAILURE_BYTES - 1, failure->msg);
    for (int i = 0; i < rounds->num; i++) {
        requests[i] = MPI_REQUEST_NULL;
        if (i != rounds->own &&
            MPI_Isend(&rounds->failure_notice, sizeof(cri_message), MPI_BYTE, rounds->rank[i],
                      CRI_ENTRY_TAG, g->mpi, &requests[i]) != MPI_SUCCESS)
            requests[i] = MPI_REQUEST_NULL;
    }
    while (!test_all(requests, rounds->num, &code) && cr_now_s() < until_s)
        sched_yield();
    cr_free(requests); /* what was not sent by now has no receiver */
}

/* An entry or a failure has come from i. */
static cr_status check_message(cri_rounds *x, const cri_round *round, int i, cr_err *err)
{
    cr_group *g = x->group;
    const cri_message *m = &round->theirs[i];
    char what[160], text[480];

    if (m->failure_status == 0) {
        g->last[x->rank[i]] = m->entry;
        return cri_compare(g, &round->mine.entry, &m->entry, x->rank[i], err);
    }
    cri_entry_text(g, &round->mine.entry, what, sizeof what);
    snprintf(text, sizeof text, "%s: rank %d failed: %.*s", what, g->world_ranks[x->rank[i]],
             CRI_FAILURE_BYTES - 1, m->failure);
    return cri_fail_group(g, cri_status_of_failure(m->failure_status), text, err);
}

/* The deadline has passed: what did not come is missing, what came may say why. */
static cr_status fail_round(cri_rounds *x, cri_round *round, const char *what, cr_err *err)
{
    cr_group *g = x->group;
    bool *is_missing = CR_NEW_ARRAY(bool, g->num_ranks);

    for (int i = 0; i < x->num && err->status == CR_OK; i++) {
        int is_reached = 1;
        if (i == x->own) continue;
        if (round->requests[i] != MPI_REQUEST_NULL)
            MPI_Test(&round->requests[i], &is_reached, MPI_STATUS_IGNORE);
        is_missing[x->rank[i]] = !is_reached;
        if (is_reached) cr_note(check_message(x, round, i, err));
    }
    if (err->status == CR_OK)
        cri_fail_missing(g, what, is_missing, g->world->deadline_s * x->patience, err);
    cr_free(is_missing);
    return err->status;
}

static cr_status complete_round(cri_rounds *x, cri_round *round, cr_err *err)
{
    cr_group *g = x->group;
    char what[160];
    cr_status status;

    cri_entry_text(g, &round->mine.entry, what, sizeof what);
    status = wait_requests(g, g->world->deadline_s * x->patience, round->requests, 2 * x->num, what,
                           err);
    if (status == CR_ETIMEOUT) return fail_round(x, round, what, err);
    CR_TRY(status);
    for (int i = 0; i < x->num; i++)
        if (i != x->own) CR_TRY(check_message(x, round, i, err));
    return CR_OK;
}

cr_status cri_rounds_complete(cri_rounds *rounds, uint32_t sequence, cr_err *err)
{
    while ((int32_t)(sequence - rounds->verified) > 0) {
        uint32_t next = rounds->verified + 1;
        CR_CHECK((int32_t)(rounds->posted - next) >= 0, "group %s: no round %u",
                 rounds->group->name, next);
        CR_TRY(complete_round(rounds, &rounds->round[next % CRI_ROUNDS], err));
        rounds->verified = next;
    }
    return CR_OK;
}
