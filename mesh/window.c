/* window.c -- shared memory of a group with slots, and private pages (see mesh_impl.h). A slot's
 * next use begins when every rank has ended the last one: two counters a rank and slot, uses written and
 * uses ended. */
#include "mesh/mesh.h"
#include "mesh/mesh_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

void *cri_map(size_t num_bytes, bool is_meta)
{
    void *ptr = mmap(NULL, num_bytes ? num_bytes : 1, is_meta ? PROT_NONE : PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | (is_meta ? MAP_NORESERVE : 0), -1, 0);

    CR_CHECK(ptr != MAP_FAILED, "no address space for %zu bytes", num_bytes);
    return ptr;
}

void cri_unmap(void *ptr, size_t num_bytes)
{
    if (ptr) munmap(ptr, num_bytes ? num_bytes : 1);
}

/* A full /dev/shm would be a SIGBUS at the first touch; say so here instead. */
static cr_status check_room(const cr_group *g, size_t num_bytes, cr_err *err)
{
    struct statvfs fs;

    if (g->rank == 0 && statvfs("/dev/shm", &fs) == 0 &&
        (double)fs.f_bavail * (double)fs.f_frsize < (double)num_bytes)
        return cr_fail(err, CR_EIO,
                       "group %s needs %.1f MB of shared memory, /dev/shm has %.1f MB (make it "
                       "larger, e.g. docker run --shm-size, or set CROLL_TRANSPORT=mpi)",
                       g->name, (double)num_bytes / 1e6,
                       (double)fs.f_bavail * (double)fs.f_frsize / 1e6);
    return CR_OK;
}

/* Making a window blocks inside MPI, where nothing is compared: compare before. */
static cr_status meet_first(cr_group *g, size_t num_bytes, cr_err *err)
{
    uint64_t event = cri_event_begin(g->world, CR_COLL_BARRIER, g, "shared buffers");
    uint32_t sequence;

    CR_TRY(cri_enter(g, CR_COLL_BARRIER, "shared buffers", num_bytes, /*is_equal=*/true, 0,
                     &sequence, err));
    cri_event_entered(g->world, event, sequence, num_bytes);
    CR_TRY(cri_meet(g, sequence, event, err));
    cri_event_end(g->world, event);
    return CR_OK;
}

cr_status cri_window_create(cr_group *group, int num_slots, size_t num_bytes, cri_window **out,
                            cr_err *err)
{
    cri_window *w = CR_NEW(cri_window);
    size_t num_flags = (size_t)num_slots * (size_t)group->num_ranks,
           flag_bytes = 2 * num_flags * sizeof(cri_flag);
    MPI_Aint bytes = group->rank == 0 ? (MPI_Aint)(flag_bytes + num_bytes) : 0;
    char *base = NULL;
    int unit = 1;

    *out = NULL;
    w->group = group;
    w->num_slots = num_slots;
    w->win = MPI_WIN_NULL;
    w->uses = CR_NEW_ARRAY(uint32_t, num_slots);
    CR_TRY_GOTO(failed, check_room(group, flag_bytes + num_bytes, err));
    if (group->stage) CR_TRY_GOTO(failed, meet_first(group, num_bytes, err));
    cri_guard_begin(group->world, "making a shared window (did all ranks of the group come?)");
    cri_mpi(group->world,
            MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, group->comm, &base, &w->win),
            "making a shared window", err);
    if (err->status == CR_OK)
        cri_mpi(group->world, MPI_Win_shared_query(w->win, 0, &bytes, &unit, &base),
                "finding a shared window", err);
    cri_guard_end(group->world);
    if (err->status != CR_OK) goto failed;
    w->ended = (cri_flag *)(void *)base;
    w->written = w->ended + num_flags;
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
    if (window->win != MPI_WIN_NULL && !window->group->world->is_broken) {
        cri_guard_begin(window->group->world, "ending a shared window");
        MPI_Win_free(&window->win);
        cri_guard_end(window->group->world);
    }
    cr_free(window->uses);
    cr_free(window);
}

bool cri_window_is_free(const cri_window *window, int slot)
{
    int n = window->group->num_ranks;

    for (int r = 0; r < n; r++)
        if (!cri_flag_reached(&window->ended[slot * n + r], window->uses[slot])) return false;
    return true;
}

/* Wait until every rank's flag of the slot has come to the uses begun here. */
static cr_status wait_flags(cri_window *window, cri_flag *flags, int slot, const char *what,
                            const char *name, uint64_t event, cr_err *err)
{
    cr_group *g = window->group;
    double begin_s = cr_now_s(), until_s = begin_s + g->world->deadline_s;
    char text[200];
    bool has_come;

    for (int r = 0; r < g->num_ranks; r++) {
        CR_TRY(cri_flag_wait_rank(g, r, &flags[slot * g->num_ranks + r], window->uses[slot],
                                  until_s, &has_come, err));
        if (has_come) continue;
        snprintf(text, sizeof text, what, name, slot, g->name);
        return cri_fail_late(g, text, r, err);
    }
    cri_event_waited(g->world, event, cr_now_s() - begin_s);
    return CR_OK;
}

cr_status cri_window_begin(cri_window *window, int slot, const char *name, uint64_t event,
                           cr_err *err)
{
    CR_TRY(wait_flags(window, window->ended, slot,
                      "beginning %.63s: slot %d (group %s) is still read", name, event, err));
    window->uses[slot]++;
    return CR_OK;
}

void cri_window_write(cri_window *window, int slot)
{
    cr_group *g = window->group;

    cri_flag_set(&window->written[slot * g->num_ranks + g->rank], window->uses[slot]);
}

cr_status cri_window_wait_written(cri_window *window, int slot, const char *name, uint64_t event,
                                  cr_err *err)
{
    return wait_flags(window, window->written, slot,
                      "%.63s: a part of slot %d (group %s) is not written", name, event, err);
}

void cri_window_end(cri_window *window, int slot)
{
    cr_group *g = window->group;

    cri_flag_set(&window->ended[slot * g->num_ranks + g->rank], window->uses[slot]);
}
