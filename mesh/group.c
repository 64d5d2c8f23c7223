/* group.c -- how the ranks of a group meet: entries, comparing them, waiting, and saying who is
 * missing (see mesh_impl.h for the two transports). */
#include "mesh/mesh.h"
#include "mesh/mesh_impl.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ENTRY_TAG = 1, SHOWN_RANKS = 3 };
static const double spin_s = 2e-6, yield_s = 200e-6, look_around_s = 0.05;

/* ---- flags ---- */

static void sleep_ns(long ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};

    nanosleep(&t, NULL);
}

bool cri_flag_reached(cri_flag *flag, uint32_t target)
{
    return (int32_t)(atomic_load_explicit(&flag->value, memory_order_acquire) - target) >= 0;
}

/* Sequentially consistent on both sides: either the setter sees the waiter or the waiter sees the
 * value. */
void cri_flag_set(cri_flag *flag, uint32_t value)
{
    atomic_store(&flag->value, value);
    if (atomic_load(&flag->num_waiters) > 0)
        syscall(SYS_futex, &flag->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void flag_sleep(cri_flag *flag, uint32_t target, double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    uint32_t value;

    atomic_fetch_add(&flag->num_waiters, 1);
    value = atomic_load(&flag->value);
    if ((int32_t)(value - target) < 0)
        syscall(SYS_futex, &flag->value, FUTEX_WAIT, value, &t, NULL, 0);
    atomic_fetch_sub(&flag->num_waiters, 1);
}

bool cri_flag_wait(cri_flag *flag, uint32_t target, double until_s, bool should_spin)
{
    double begin_s, now_s;

    if (cri_flag_reached(flag, target)) return true;
    begin_s = now_s = cr_now_s();
    while (should_spin && now_s - begin_s < spin_s) {
        for (int i = 0; i < 16; i++) {
            if (cri_flag_reached(flag, target)) return true;
            __builtin_ia32_pause();
        }
        now_s = cr_now_s();
    }
    while (now_s - begin_s < yield_s) {
        sched_yield();
        if (cri_flag_reached(flag, target)) return true;
        now_s = cr_now_s();
    }
    while (now_s < until_s) {
        flag_sleep(flag, target, until_s - now_s < 1 ? until_s - now_s : 1);
        if (cri_flag_reached(flag, target)) return true;
        now_s = cr_now_s();
    }
    return false;
}

/* ---- opening ---- */

/* One window for what every group needs: the staging slots, then the control pages. It is made here
 * and not when first used, because making it cannot notice that ranks do different things. */
cr_status cri_group_open_shared(cr_group *g, cr_err *err)
{
    size_t n = (size_t)g->num_ranks, stage_bytes = 2 * CRI_STAGE_BYTES * n;

    CR_TRY(cri_window_create(g, 0, stage_bytes + n * sizeof(cri_member), &g->stage, err));
    g->members = (cri_member *)(void *)(g->stage->data + stage_bytes);
    return CR_OK;
}

cr_status cri_group_open_mpi(cr_group *g, cr_err *err)
{
    (void)err;
    g->stage_all = cri_map((size_t)CRI_STAGE_BYTES * (size_t)g->num_ranks, /*is_meta=*/false);
    g->last = CR_NEW_ARRAY(cri_entry, g->num_ranks);
    g->rounds = CR_NEW_ARRAY(cri_round, CRI_ROUNDS);
    for (int i = 0; i < CRI_ROUNDS; i++) {
        g->rounds[i].theirs = CR_NEW_ARRAY(cri_entry, g->num_ranks);
        g->rounds[i].requests = CR_NEW_ARRAY(MPI_Request, 2 * g->num_ranks);
    }
    return CR_OK;
}

/* ---- saying what happened ---- */

static cri_board *board_of(const cr_world *w, int world_rank)
{
    if (world_rank == w->rank) return w->own_board;
    if (!w->board || w->host_of[world_rank] != w->host_of[w->rank]) return NULL;
    return &w->board[w->board_of[world_rank]];
}

void cri_describe(const cr_group *group, const cr_world *world, int world_rank, char *text,
                  size_t capacity_bytes)
{
    const cri_board *b = board_of(world, world_rank);

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
            snprintf(text, capacity_bytes, "rank %d, last seen in %s %.63s (sequence %u)",
                     world_rank, cr_coll_name((cr_coll)e->coll), e->name, e->sequence);
            return;
        }
    snprintf(text, capacity_bytes, "rank %d, not seen here yet", world_rank);
}

static cr_status fail_group(cr_group *g, cr_status status, const char *message, cr_err *err)
{
    cr_fail(err, status, "%s", message);
    cr_world_fail(g->world, err);
    return err->status;
}

/* is_missing[r]: rank r of the group has not come to `what`. Or it has said that it failed. */
static cr_status fail_missing(cr_group *g, const char *what, const bool *is_missing,
                              double waited_s, cr_err *err)
{
    cr_buf b = {0};
    char text[320];
    int num = 0;

    cr_buf_addf(&b, "%s: rank %d waited %.3g s for ", what, g->world->rank, waited_s);
    for (int r = 0; r < g->num_ranks; r++) {
        if (!is_missing[r]) continue;
        cri_describe(g, g->world, g->world_ranks[r], text, sizeof text);
        cr_log(CR_LOG_ERROR, "mesh", "%s: waiting for %s", what, text);
        if (num++ < SHOWN_RANKS) cr_buf_addf(&b, "%s%s", num > 1 ? "; " : "", text);
    }
    if (num > SHOWN_RANKS) cr_buf_addf(&b, "; and %d more", num - SHOWN_RANKS);
    fail_group(g, CR_ETIMEOUT, b.data, err);
    cr_buf_free(&b);
    return err->status;
}

/* Has a rank that is waited for said that it failed? */
static cr_status check_failed(cr_group *g, const char *what, const bool *is_missing, cr_err *err)
{
    for (int r = 0; r < g->num_ranks; r++) {
        cri_board *b = is_missing[r] ? board_of(g->world, g->world_ranks[r]) : NULL;

        uint32_t status = b ? atomic_load(&b->has_failed) : 0;

        if (status) {
            char text[400];
            snprintf(text, sizeof text, "%s: rank %d failed: %.239s", what, g->world_ranks[r],
                     b->failure);
            return fail_group(
                g, status == CR_EDIVERGED || status == CR_ETIMEOUT ? (cr_status)status : CR_EPEER,
                text, err);
        }
    }
    return CR_OK;
}

cr_status cri_fail_late(cr_group *group, const char *what, int rank, cr_err *err)
{
    bool *is_missing = CR_NEW_ARRAY(bool, group->num_ranks);

    is_missing[rank] = true;
    if (check_failed(group, what, is_missing, err) == CR_OK)
        fail_missing(group, what, is_missing, group->world->deadline_s, err);
    cr_free(is_missing);
    return err->status;
}

static void say_what(const cr_group *g, const cri_entry *e, char *text, size_t capacity_bytes)
{
    snprintf(text, capacity_bytes, "%s %.63s (group %s, sequence %u)",
             cr_coll_name((cr_coll)e->coll), e->name, g->name, e->sequence);
}

/* Every pair of ranks compares: whoever sees a difference fails at once. */
static cr_status compare(cr_group *g, const cri_entry *mine, const cri_entry *theirs, int rank,
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
    return fail_group(g, CR_EDIVERGED, text, err);
}

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

/* ---- meeting in shared memory ---- */

/* Compare with rank all entries that it has made up to `sequence`. */
static cr_status compare_up_to(cr_group *g, int rank, uint32_t sequence, cr_err *err)
{
    uint32_t there = atomic_load_explicit(&g->members[rank].entered.value, memory_order_acquire);

    if ((int32_t)(there - sequence) > 0) there = sequence;
    while ((int32_t)(there - g->seen[rank]) > 0) {
        uint32_t s = g->seen[rank] + 1;
        CR_TRY(compare(g, &g->members[g->rank].ring[s % CRI_RING],
                       &g->members[rank].ring[s % CRI_RING], rank, err));
        g->seen[rank] = s;
    }
    return CR_OK;
}

cr_status cri_flag_wait_rank(cr_group *group, int rank, cri_flag *flag, uint32_t target,
                             double until_s, bool *has_come, cr_err *err)
{
    cri_board *b = board_of(group->world, group->world_ranks[rank]);

    *has_come = false;
    for (double now_s = cr_now_s();; now_s = cr_now_s()) {
        double slice_s = now_s + look_around_s < until_s ? now_s + look_around_s : until_s;
        *has_come = cri_flag_wait(flag, target, slice_s, group->world->should_spin);
        if (*has_come) return CR_OK;
        /* it may never come: the slots of ranks that do different things are used differently */
        for (int p = 0; p < group->num_ranks; p++)
            CR_TRY(compare_up_to(group, p, group->sequence, err));
        if (slice_s == until_s || (b && atomic_load(&b->has_failed))) return CR_OK;
    }
}

static cr_status meet_shared(cr_group *g, uint32_t sequence, const char *what, cr_err *err)
{
    double begin_s = 0, until_s = 0;
    bool *is_missing = NULL;
    cr_status status = CR_OK;

    if ((int32_t)(g->verified - sequence) >= 0) return CR_OK;
    for (int r = 0; r < g->num_ranks && status == CR_OK; r++) {
        cri_flag *flag = &g->members[r].entered;

        while (!cri_flag_reached(flag, sequence)) {
            double now_s = cr_now_s(), slice_s;
            if (begin_s == 0) {
                begin_s = now_s;
                until_s = now_s + g->world->deadline_s;
            }
            slice_s = now_s + look_around_s < until_s ? now_s + look_around_s : until_s;
            if (cri_flag_wait(flag, sequence, slice_s, g->world->should_spin)) break;
            if (!is_missing) is_missing = CR_NEW_ARRAY(bool, g->num_ranks);
            for (int p = 0; p < g->num_ranks && status == CR_OK; p++) {
                is_missing[p] = !cri_flag_reached(&g->members[p].entered, sequence);
                status = compare_up_to(g, p, sequence, err);
            }
            if (status == CR_OK) status = check_failed(g, what, is_missing, err);
            if (status == CR_OK && cr_now_s() >= until_s && is_missing[r])
                status = fail_missing(g, what, is_missing, g->world->deadline_s, err);
            if (status != CR_OK) break;
        }
        if (status == CR_OK) status = compare_up_to(g, r, sequence, err);
    }
    cr_free(is_missing);
    if (status != CR_OK) return status;
    g->verified = sequence;
    cri_flag_set(&g->members[g->rank].verified, sequence);
    return CR_OK;
}

/* The ring may not be written over what a slow rank has not compared yet. */
static cr_status wait_for_ring(cr_group *g, uint32_t sequence, cr_err *err)
{
    double until_s = cr_now_s() + g->world->deadline_s;

    for (int r = 0; r < g->num_ranks; r++)
        if (!cri_flag_wait(&g->members[r].verified, sequence - CRI_RING, until_s,
                           g->world->should_spin))
            return cri_fail_late(g, "running ahead of the group", r, err);
    return CR_OK;
}

/* ---- meeting by messages ---- */

static bool test_all(MPI_Request *requests, int num_requests, int *code)
{
    int is_done = 0;

    *code = MPI_Testall(num_requests, requests, &is_done, MPI_STATUSES_IGNORE);
    return is_done || *code != MPI_SUCCESS;
}

static cr_status wait_requests(cr_group *g, MPI_Request *requests, int num_requests,
                               const char *what, cr_err *err)
{
    double begin_s = cr_now_s(), now_s = begin_s;
    int code;

    while (!test_all(requests, num_requests, &code)) {
        now_s = cr_now_s();
        if (now_s - begin_s > g->world->deadline_s) return CR_ETIMEOUT;
        if (now_s - begin_s < yield_s)
            sched_yield();
        else
            sleep_ns(now_s - begin_s < 0.01 ? 50000 : 500000);
    }
    return cri_mpi(g->world, code, what, err);
}

cr_status cri_wait_requests(cr_group *group, MPI_Request *requests, int num_requests,
                            const char *what, uint64_t event, cr_err *err)
{
    double begin_s = cr_now_s();
    char text[400], last[256];
    cr_status status = wait_requests(group, requests, num_requests, what, err);

    cri_event_waited(group->world, event, cr_now_s() - begin_s);
    if (status != CR_ETIMEOUT) return status;
    cri_describe(group, group->world, group->world_ranks[(group->rank + 1) % group->num_ranks],
                 last, sizeof last);
    snprintf(
        text, sizeof text,
        "%.120s (group %s): the data did not arrive within %.3g s although every rank came; %.160s",
        what, group->name, group->world->deadline_s, last);
    return fail_group(group, CR_ETIMEOUT, text, err);
}

static cr_status meet_round(cr_group *g, cri_round *round, const char *what, cr_err *err)
{
    int n = g->num_ranks;
    cr_status status = wait_requests(g, round->requests, 2 * n, what, err);

    for (int r = 0; r < n && status == CR_OK; r++) {
        if (r == g->rank) continue;
        g->last[r] = round->theirs[r];
        status = compare(g, &round->mine, &round->theirs[r], r, err);
    }
    if (status == CR_ETIMEOUT && err->status == CR_OK) {
        bool *is_missing = CR_NEW_ARRAY(bool, n);
        for (int r = 0; r < n; r++) {
            int has_come = 1;
            if (r != g->rank && round->requests[r] != MPI_REQUEST_NULL)
                MPI_Test(&round->requests[r], &has_come, MPI_STATUS_IGNORE);
            is_missing[r] = !has_come;
            if (has_come && r != g->rank)
                status = compare(g, &round->mine, &round->theirs[r], r, err);
        }
        if (err->status == CR_OK) fail_missing(g, what, is_missing, g->world->deadline_s, err);
        cr_free(is_missing);
    }
    round->is_open = false;
    return err->status;
}

static cr_status meet_mpi(cr_group *g, uint32_t sequence, const char *what, cr_err *err)
{
    while ((int32_t)(sequence - g->verified) > 0) {
        cri_round *round = &g->rounds[(g->verified + 1) % CRI_ROUNDS];
        CR_CHECK(round->is_open && round->sequence == g->verified + 1, "group %s: no round %u",
                 g->name, g->verified + 1);
        CR_TRY(meet_round(g, round, what, err));
        g->verified++;
    }
    return CR_OK;
}

static cr_status enter_mpi(cr_group *g, const cri_entry *entry, cr_err *err)
{
    cri_round *round = &g->rounds[entry->sequence % CRI_ROUNDS];
    int n = g->num_ranks, code = MPI_SUCCESS;

    if (round->is_open) CR_TRY(meet_mpi(g, round->sequence, "an earlier collective", err));
    round->sequence = entry->sequence;
    round->mine = *entry;
    round->is_open = true;
    for (int i = 0; i < 2 * n; i++)
        round->requests[i] = MPI_REQUEST_NULL;
    for (int r = 0; r < n && code == MPI_SUCCESS; r++) {
        if (r == g->rank) continue;
        code = MPI_Irecv(&round->theirs[r], sizeof(cri_entry), MPI_BYTE, r, ENTRY_TAG, g->comm,
                         &round->requests[r]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(&round->mine, sizeof(cri_entry), MPI_BYTE, r, ENTRY_TAG, g->comm,
                             &round->requests[n + r]);
    }
    return cri_mpi(g->world, code, "sending an entry", err);
}

cr_status cri_mpi_count(size_t num_bytes, int *count, MPI_Datatype *type, cr_err *err)
{
    bool is_big = num_bytes > INT32_MAX;

    *type = is_big ? MPI_DOUBLE : MPI_BYTE;
    if (is_big && (num_bytes % 8 != 0 || num_bytes / 8 > INT32_MAX))
        return cr_fail(err, CR_EARG, "a part of %zu bytes: over 2 GiB it must be a multiple of 8",
                       num_bytes);
    *count = (int)(is_big ? num_bytes / 8 : num_bytes);
    return CR_OK;
}

/* ---- both ---- */

cr_status cri_enter(cr_group *group, cr_coll coll, const char *name, size_t num_bytes,
                    bool is_equal, int slot, uint32_t *sequence, cr_err *err)
{
    cri_entry entry = {.sequence = ++group->sequence,
                       .coll = coll,
                       .num_bytes = num_bytes,
                       .is_equal = is_equal,
                       .slot = (uint32_t)slot};

    *sequence = entry.sequence;
    snprintf(entry.name, sizeof entry.name, "%s", name);
    board_enter(group, &entry);
    if (group->transport == CRI_SHARED) {
        cri_member *m = &group->members[group->rank];
        if (entry.sequence - group->verified > CRI_RING / 2)
            CR_TRY(meet_shared(group, entry.sequence - CRI_RING / 2, "an earlier collective", err));
        if (entry.sequence > CRI_RING) CR_TRY(wait_for_ring(group, entry.sequence, err));
        m->ring[entry.sequence % CRI_RING] = entry;
        cri_flag_set(&m->entered, entry.sequence);
    } else if (group->transport == CRI_MPI) {
        CR_TRY(enter_mpi(group, &entry, err));
    } else {
        group->verified = entry.sequence;
    }
    return CR_OK;
}

cr_status cri_meet(cr_group *group, uint32_t sequence, uint64_t event, cr_err *err)
{
    char what[160];
    double begin_s;
    cr_status status;

    if (group->transport == CRI_SELF || group->transport == CRI_META) {
        group->world->own_board->is_inside = 0;
        return CR_OK;
    }
    if (group->transport == CRI_SHARED)
        say_what(group, &group->members[group->rank].ring[sequence % CRI_RING], what, sizeof what);
    else
        say_what(group, &group->rounds[sequence % CRI_ROUNDS].mine, what, sizeof what);
    begin_s = cr_now_s();
    status = group->transport == CRI_SHARED ? meet_shared(group, sequence, what, err)
                                            : meet_mpi(group, sequence, what, err);
    cri_event_waited(group->world, event, cr_now_s() - begin_s);
    group->world->own_board->is_inside = 0;
    return status;
}

size_t cri_met_bytes(const cr_group *group, int rank)
{
    if (group->transport == CRI_SHARED)
        return group->members[rank].ring[group->verified % CRI_RING].num_bytes;
    if (group->transport == CRI_MPI && rank != group->rank) return group->last[rank].num_bytes;
    return 0; /* callers know their own */
}
