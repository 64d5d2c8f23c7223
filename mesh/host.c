/* host.c -- the ranks that share a host's memory (see host.h). Entries: a ring and a flag a rank. Windows: two counters
 * a slot and rank, uses written and uses ended; one rank alone has private pages. */
#include "mesh/host.h"

#include <stdio.h>
#include <sys/statvfs.h>

static const double poll_interval_s =
    0.05; /* while asleep: has a rank failed or done something else? */
static const double progress_interval_s = 0.002;

/* Until the flag or until_s. What this rank has sent to other hosts may be waiting inside MPI, for a connection or for room,
 * though its requests are complete: whoever waits for it would wait for ever if this rank slept without calling MPI. */
static bool wait_for(const cr_group *g, cri_flag *flag, uint32_t target, double until_s)
{
    cr_world *w = g->world;
    int is_there;

    while (w->has_links) {
        double next_s = cr_now_s() + progress_interval_s;
        if (next_s >= until_s) break;
        if (cri_flag_wait(flag, target, next_s, w->should_spin)) return true;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w->comm, &is_there, MPI_STATUS_IGNORE);
    }
    return cri_flag_wait(flag, target, until_s, w->should_spin);
}

cri_host *cri_host_create(cr_group *group, const int *rank, int num, int num_places, MPI_Comm mpi)
{
    cri_host *h = CR_NEW(cri_host);

    h->group = group;
    h->num = num;
    h->num_places = num_places;
    h->mpi = mpi;
    h->rank = CR_NEW_ARRAY(int, num);
    h->seen = CR_NEW_ARRAY(uint32_t, num);
    for (int i = 0; i < num; i++) {
        h->rank[i] = rank[i];
        if (rank[i] == group->rank) h->own = i;
    }
    return h;
}

void cri_host_destroy(cri_host *host)
{
    if (!host) return;
    cr_free(host->rank);
    cr_free(host->seen);
    cr_free(host);
}

const cri_entry *cri_host_entry(const cri_host *host, uint32_t sequence)
{
    return &host->members[host->own].ring[sequence % CRI_RING];
}

bool cri_host_is_done(const cri_host *host, uint32_t sequence)
{
    for (int i = 0; i < host->num; i++)
        if (!cri_flag_reached(&host->members[i].posted, sequence)) return false;
    return true;
}

/* Compare with a member all entries that it has posted up to `sequence`. */
static cr_status compare_up_to(cri_host *h, int member, uint32_t sequence, cr_err *err)
{
    uint32_t there = atomic_load_explicit(&h->members[member].posted.value, memory_order_acquire);

    if ((int32_t)(there - sequence) > 0) there = sequence;
    while ((int32_t)(there - h->seen[member]) > 0) {
        uint32_t s = h->seen[member] + 1;
        CR_TRY(cri_compare(h->group, cri_host_entry(h, s), &h->members[member].ring[s % CRI_RING],
                           h->rank[member], err));
        h->seen[member] = s;
    }
    return CR_OK;
}

cr_status cri_host_wait_flag(cri_host *host, int member, cri_flag *flag, uint32_t target,
                             double until_s, bool *is_reached, cr_err *err)
{
    cr_group *g = host->group;
    const cri_board *b = cri_board_of(g->world, g->world_ranks[host->rank[member]]);

    *is_reached = false;
    for (double now_s = cr_now_s();; now_s = cr_now_s()) {
        double slice_s = now_s + poll_interval_s < until_s ? now_s + poll_interval_s : until_s;
        *is_reached = wait_for(g, flag, target, slice_s);
        if (*is_reached) return CR_OK;
        /* it may never come: the slots of ranks that do different things are used differently */
        for (int i = 0; i < host->num; i++)
            CR_TRY(compare_up_to(host, i, g->sequence, err));
        if (slice_s == until_s) return CR_OK;
        if (b && (atomic_load(&b->has_failed) || cri_board_is_gone(g->world, b))) return CR_OK;
    }
}

/* A member has not posted `sequence` yet: wait for it. */
static cr_status wait_posted(cri_host *h, int member, uint32_t sequence, cr_err *err)
{
    cr_group *g = h->group;
    cri_flag *flag = &h->members[member].posted;
    double until_s = cr_now_s() + g->world->deadline_s;
    bool *is_missing = CR_NEW_ARRAY(bool, g->num_ranks);
    cr_status status = CR_OK;
    char what[160];

    cri_entry_text(g, cri_host_entry(h, sequence), what, sizeof what);
    while (status == CR_OK) {
        double now_s = cr_now_s(), slice_s = now_s + poll_interval_s;
        if (slice_s > until_s) slice_s = until_s;
        if (wait_for(g, flag, sequence, slice_s)) break;
        for (int i = 0; i < h->num && status == CR_OK; i++) {
            is_missing[h->rank[i]] = !cri_flag_reached(&h->members[i].posted, sequence);
            status = compare_up_to(h, i, sequence, err);
        }
        if (status == CR_OK) status = cri_check_failed(g, what, is_missing, err);
        if (status == CR_OK && cr_now_s() >= until_s && is_missing[h->rank[member]])
            status = cri_fail_missing(g, what, is_missing, g->world->deadline_s, err);
    }
    cr_free(is_missing);
    return status;
}

cr_status cri_host_complete(cri_host *host, uint32_t sequence, cr_err *err)
{
    if ((int32_t)(host->verified - sequence) >= 0) return CR_OK;
    for (int i = 0; i < host->num; i++) {
        if (!cri_flag_reached(&host->members[i].posted, sequence))
            CR_TRY(wait_posted(host, i, sequence, err));
        CR_TRY(compare_up_to(host, i, sequence, err));
    }
    host->verified = sequence;
    cri_flag_set(&host->members[host->own].verified, sequence);
    return CR_OK;
}

/* The ring may not be written over what a slow rank has not compared yet. */
static cr_status wait_for_ring(cri_host *h, uint32_t sequence, cr_err *err)
{
    cr_group *g = h->group;
    double until_s = cr_now_s() + g->world->deadline_s;

    for (int i = 0; i < h->num; i++)
        if (!wait_for(g, &h->members[i].verified, sequence - CRI_RING, until_s))
            return cri_fail_late(g, "running ahead of the group", h->rank[i], err);
    return CR_OK;
}

cr_status cri_host_post(cri_host *host, const cri_entry *entry, cr_err *err)
{
    cri_member *m = &host->members[host->own];

    if (entry->sequence > CRI_RING) CR_TRY(wait_for_ring(host, entry->sequence, err));
    m->ring[entry->sequence % CRI_RING] = *entry;
    cri_flag_set(&m->posted, entry->sequence);
    return CR_OK;
}

/* ---- windows ---- */

/* A full /dev/shm would be a SIGBUS at the first touch; say so here instead. */
static cr_status check_shm_space(const cr_group *g, size_t num_bytes, cr_err *err)
{
    struct statvfs fs;

    if (statvfs("/dev/shm", &fs) == 0 &&
        (double)fs.f_bavail * (double)fs.f_frsize < (double)num_bytes)
        return cr_fail(err, CR_EIO,
                       "group %s needs %.1f MB of shared memory, /dev/shm has %.1f MB (make it "
                       "larger, e.g. docker run --shm-size, or set CROLL_TRANSPORT=mpi)",
                       g->name, (double)num_bytes / 1e6,
                       (double)fs.f_bavail * (double)fs.f_frsize / 1e6);
    return CR_OK;
}

/* Making a window blocks inside MPI, where nothing is compared: compare before. */
static cr_status agree_first(cr_group *g, size_t num_bytes, cr_err *err)
{
    uint64_t event = cri_event_begin(g->world, CR_COLL_BARRIER, g, "shared buffers");
    uint32_t sequence;

    CR_TRY(cri_post(g, CR_COLL_BARRIER, "shared buffers", num_bytes, /*is_equal=*/true, 0,
                    &sequence, err));
    cri_event_posted(g->world, event, sequence, num_bytes);
    CR_TRY(cri_complete(g, sequence, event, err));
    cri_event_end(g->world, event);
    return CR_OK;
}

static cr_status map_shared(cri_window *w, char **base, cr_err *err)
{
    cri_host *h = w->host;
    cr_world *world = h->group->world;
    MPI_Aint bytes = h->own == 0 ? (MPI_Aint)w->num_bytes : 0;
    cr_status status;
    int unit = 1;

    cri_guard_begin(world, "making a shared window (did all ranks of the group come?)");
    status = cri_mpi(world, MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, h->mpi, base, &w->win),
                     "making a shared window", err);
    if (status == CR_OK)
        status = cri_mpi(world, MPI_Win_shared_query(w->win, 0, &bytes, &unit, base),
                         "finding a shared window", err);
    cri_guard_end(world);
    return status;
}

cr_status cri_window_create(cri_host *host, int num_slots, size_t num_bytes, cri_window **out,
                            cr_err *err)
{
    cri_window *w = CR_NEW(cri_window);
    size_t num_ended = (size_t)num_slots * (size_t)host->num,
           num_written = (size_t)num_slots * (size_t)host->group->num_ranks,
           flag_bytes = (num_ended + num_written) * sizeof(cri_flag);
    char *base = NULL;

    *out = NULL;
    w->host = host;
    w->num_slots = num_slots;
    w->win = MPI_WIN_NULL;
    w->num_bytes = flag_bytes + num_bytes;
    w->uses = CR_NEW_ARRAY(uint32_t, num_slots);
    if (host->num > 1 && host->own == 0)
        CR_TRY_GOTO(failed, check_shm_space(host->group, w->num_bytes, err));
    if (host->members) CR_TRY_GOTO(failed, agree_first(host->group, num_bytes, err));
    if (host->num > 1)
        CR_TRY_GOTO(failed, map_shared(w, &base, err));
    else
        base = cri_pages_map(w->num_bytes, /*is_meta=*/false);
    w->ended = (cri_flag *)(void *)base;
    w->written = w->ended + num_ended;
    w->data = base + flag_bytes;
    *out = w;
    return CR_OK;
failed:
    cri_window_destroy(w);
    return err->status;
}

void cri_window_destroy(cri_window *window)
{
    if (!window) return;
    if (window->host->num == 1) cri_pages_unmap(window->ended, window->num_bytes);
    if (window->win != MPI_WIN_NULL && !window->host->group->world->is_broken) {
        cri_guard_begin(window->host->group->world, "ending a shared window");
        MPI_Win_free(&window->win);
        cri_guard_end(window->host->group->world);
    }
    cr_free(window->uses);
    cr_free(window);
}

static cri_flag *ended(const cri_window *w, int slot, int member)
{
    return &w->ended[slot * w->host->num + member];
}

static cri_flag *written(const cri_window *w, int slot, int rank)
{
    return &w->written[slot * w->host->group->num_ranks + rank];
}

bool cri_window_is_free(const cri_window *window, int slot)
{
    for (int i = 0; i < window->host->num; i++)
        if (!cri_flag_reached(ended(window, slot, i), window->uses[slot])) return false;
    return true;
}

/* Wait until a flag that member sets has come to the slot's uses begun here. what: format of name, slot, group. */
static cr_status wait_flag(cri_window *w, int member, cri_flag *flag, int slot, const char *what,
                           const char *name, uint64_t event, cr_err *err)
{
    cr_group *g = w->host->group;
    double begin_s;
    char text[200];
    bool is_reached;

    if (cri_flag_reached(flag, w->uses[slot])) return CR_OK;
    begin_s = cr_now_s();
    CR_TRY(cri_host_wait_flag(w->host, member, flag, w->uses[slot], begin_s + g->world->deadline_s,
                              &is_reached, err));
    cri_event_waited(g->world, event, cr_now_s() - begin_s);
    if (is_reached) return CR_OK;
    snprintf(text, sizeof text, what, name, slot, g->name);
    return cri_fail_late(g, text, w->host->rank[member], err);
}

cr_status cri_window_begin(cri_window *window, int slot, const char *name, uint64_t event,
                           cr_err *err)
{
    for (int i = 0; i < window->host->num; i++)
        CR_TRY(wait_flag(window, i, ended(window, slot, i), slot,
                         "beginning %.63s: slot %d (group %s) is still read", name, event, err));
    window->uses[slot]++;
    return CR_OK;
}

void cri_window_write(cri_window *window, int slot, int rank)
{
    cri_flag_set(written(window, slot, rank), window->uses[slot]);
}

cr_status cri_window_wait_written(cri_window *window, int slot, int rank, int member,
                                  const char *name, uint64_t event, cr_err *err)
{
    return wait_flag(window, member, written(window, slot, rank), slot,
                     "%.63s: a part of slot %d (group %s) is not written", name, event, err);
}

void cri_window_end(cri_window *window, int slot)
{
    cri_flag_set(ended(window, slot, window->host->own), window->uses[slot]);
}
