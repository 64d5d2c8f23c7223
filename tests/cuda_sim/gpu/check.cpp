/* check.cpp -- looks at every access that instrumented kernels make (hooks.cpp receives them).
 *
 * Found, independent of the seed:
 *   - a byte outside of every allocation, freed, or read before anything wrote it;
 *   - host memory touched by a kernel;
 *   - two threads of a kernel at one place, one writing, with no barrier between (in shared and in device
 *     memory; __syncwarp orders a warp, shuffles do not), or two blocks of one kernel;
 *   - the same of a bulk copy (TMA) whose mbarrier the reader has not waited for; an mbarrier also orders two warps in shared memory,
 *     but of what several warps have read the next write needs __syncthreads;
 *   - two operations of different streams at one place, one writing, that no event or synchronisation
 *     orders (vector clocks).
 * Shadow: 48 bytes a granule of 2 bytes of device memory, reserved and touched on demand. Of the readers of a place
 * the first one is kept, and whether there were others.
 */
#include "tests/cuda_sim/gpu/async.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

extern char __executable_start, end;

namespace
{
struct visit { /* the last write, or the reads since */
    uint32_t op, time, block;
    uint16_t thread, phase, warp_phase;
    uint8_t stream, is_atomic;
};
struct cell {
    visit w, r;
    uint32_t other_time; /* the last read of another stream than r's */
    uint8_t other_stream, is_written, many_threads, many_warps, many_blocks;
};
struct range { /* where an access is, for messages */
    const void *p;
    bool is_write, is_atomic, is_shared;
};
} // namespace

bool cri_sim_is_checked;
const void *cri_sim_pc;
static cell *shadow; /* of the arena */
enum { SHARED_CELLS = CRI_SIM_SHARED_MAX / CRI_SIM_GRANULE + 8 };
static cell of_shared[SHARED_CELLS];
static uint32_t clock_of_visit[2][SHARED_CELLS]; /* of shared memory's writes, reads (async.h) */
static uint32_t op_count;
static cri_sim_op *op_seen;

static cell *cell_of(uint64_t address)
{
    if (!shadow) {
        size_t n = (cri_sim_arena_end - cri_sim_arena) / CRI_SIM_GRANULE * sizeof(cell);
        void *at = mmap(nullptr, n, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) cri_sim_die("no address space for the shadow of device memory");
        shadow = (cell *)at;
    }
    return &shadow[(address - cri_sim_arena) / CRI_SIM_GRANULE];
}

/* Of inlined functions the first line that is not the wrapper of an instruction. */
std::string cri_sim_line_of_code(void)
{
    char text[300], command[200];
    FILE *f;

    if (!cri_sim_pc) return "a copy";
    snprintf(command, sizeof command, "addr2line -i -s -e /proc/%d/exe %p", (int)getpid(),
             (const void *)((const char *)cri_sim_pc - 1));
    snprintf(text, sizeof text, "%p", cri_sim_pc);
    f = popen(command, "r");
    while (f && fgets(text, sizeof text, f))
        if (strncmp(text, "mma.h:", 6) != 0 && strncmp(text, "hopper.h:", 9) != 0 &&
            strncmp(text, "device.h:", 9) != 0)
            break;
    if (f) pclose(f);
    text[strcspn(text, " \n")] = 0;
    return text;
}

void cri_sim_check_forget(const void *p, size_t n)
{
    char *from = (char *)cell_of((uint64_t)p),
         *to = (char *)cell_of((uint64_t)p + n + CRI_SIM_GRANULE - 1);
    char *first_page = (char *)(((uint64_t)from + 4095) / 4096 * 4096);
    char *last_page = (char *)((uint64_t)to / 4096 * 4096);

    if (first_page >= last_page) {
        memset(from, 0, (size_t)(to - from));
        return;
    }
    memset(from, 0, (size_t)(first_page - from));
    madvise(first_page, (size_t)(last_page - first_page), MADV_DONTNEED);
    memset(last_page, 0, (size_t)(to - last_page));
}

/* Who wrote and read last stays known: that needs an order, too. */
void cri_sim_check_unwritten(const void *p, size_t n)
{
    for (uint64_t a = (uint64_t)p; a < (uint64_t)p + n; a += CRI_SIM_GRANULE)
        cell_of(a)->is_written = 0;
}

/* With another process, whose writes are not seen here. */
static bool is_shared(const cri_sim_allocation *m)
{
    return m && (m->fd >= 0 || m->num_opens);
}

std::vector<size_t> cri_sim_check_fill_holes(const void *p, size_t n)
{
    std::vector<size_t> holes;

    if (is_shared(cri_sim_memory_of(p))) return holes;
    for (size_t at = 0; at < n; at += CRI_SIM_GRANULE) {
        cell *c = cell_of((uint64_t)p + at);
        if (c->is_written) continue;
        c->is_written = 1;
        holes.push_back(at);
    }
    return holes;
}

void cri_sim_check_new_block(void)
{
    memset((void *)of_shared, 0, sizeof of_shared[0] * (cri_sim_shared_used / CRI_SIM_GRANULE + 1));
    cri_sim_chunks_new_block();
}

void cri_sim_check_new_op(void)
{
    op_seen = nullptr;
}

/* ---- rules ---- */

static bool is_ordered(int stream, uint32_t time)
{
    return cri_sim_running->clock.at[stream] >= time;
}

/* Two accesses of one kernel: true if a barrier comes between them, or one thread made both. clock: of the visit, NULL in
 * device memory. A bulk copy is a visit of a thread after all others: CRI_SIM_MAX_WARPS + its mbarrier is its warp. */
static bool is_apart(const visit *a, const uint32_t *clock, bool many_threads, bool many_warps,
                     bool many_blocks)
{
    const cri_sim_where *h = &cri_sim_here;
    int warp = a->thread / CRI_SIM_WARP;

    if (!clock && (a->block != h->block || many_blocks)) return false;
    if (a->thread >= CRI_SIM_MAX_THREADS) return cri_sim_is_acquired(warp, *clock);
    if (a->phase != (uint16_t)h->block_phase) return true;
    if (many_warps) return false;
    if (warp != (int)h->thread / CRI_SIM_WARP) return clock && cri_sim_is_acquired(warp, *clock);
    if (a->warp_phase != (uint16_t)h->warp_phase) return true;
    return a->thread == h->thread && !many_threads;
}

static void fill(visit *a, bool is_atomic)
{
    *a = {};
    a->op = op_count;
    if (cri_sim_running && cri_sim_running->stream) {
        a->stream = (uint8_t)cri_sim_running->stream->number;
        a->time = cri_sim_running->clock.at[a->stream];
    }
    a->block = cri_sim_here.block;
    a->thread = (uint16_t)cri_sim_here.thread;
    a->phase = (uint16_t)cri_sim_here.block_phase;
    a->warp_phase = (uint16_t)cri_sim_here.warp_phase;
    a->is_atomic = is_atomic;
}

/* A place of device memory that nothing has written: is it memory at all? */
static void check_first(const range &at)
{
    const cri_sim_allocation *m = cri_sim_memory_of(at.p);
    const char *what = at.is_write ? "write" : "read";
    uint64_t p = (uint64_t)at.p;

    if (!m || p + CRI_SIM_GRANULE <= m->base || p >= m->base + m->num_bytes)
        cri_sim_die("%s of %p outside of every allocation, at %s", what, at.p,
                    cri_sim_line_of_code().c_str());
    if (m->is_freed)
        cri_sim_die("%s of freed device memory %p, at %s", what, at.p,
                    cri_sim_line_of_code().c_str());
    if (!at.is_write && !is_shared(m))
        cri_sim_die("read of device memory %p that nothing has written, at %s", at.p,
                    cri_sim_line_of_code().c_str());
}

static void check_state(const cell *c, const range &at)
{
    if (c->is_written) return;
    if (!at.is_shared)
        check_first(at);
    else if (!at.is_write)
        cri_sim_die("read of shared memory that nothing has written (or a copy under way "
                    "writes), offset %ld, at %s",
                    (long)((const unsigned char *)at.p - cri_sim_shared_arena),
                    cri_sim_line_of_code().c_str());
}

/* NULL: device memory. */
static uint32_t *clock_of(const range &at, bool is_write)
{
    size_t i = (size_t)((const unsigned char *)at.p - cri_sim_shared_arena) / CRI_SIM_GRANULE;

    return at.is_shared ? &clock_of_visit[!is_write][i] : nullptr;
}

[[noreturn]] static void die_of_race(const visit *a, const range &at, const char *did)
{
    const char *memory = at.is_shared ? "shared" : "device", *does = at.is_write ? "write" : "read";

    if (a->thread >= CRI_SIM_MAX_THREADS)
        cri_sim_die(
            "race in shared memory: %s after a copy by a tensor map without a wait for that "
            "phase of its mbarrier, at %s",
            does, cri_sim_line_of_code().c_str());
    cri_sim_die(
        "race in %s memory: %s after a %s by block %u, thread %u without a barrier between, "
        "at %s",
        memory, does, did, a->block, a->thread, cri_sim_line_of_code().c_str());
}

static void check_race(const cell *c, const range &at)
{
    if (c->w.op == op_count && !(at.is_atomic && c->w.is_atomic) &&
        !is_apart(&c->w, clock_of(at, true), false, false, false))
        die_of_race(&c->w, at, "write");
    if (at.is_write && c->r.op == op_count &&
        !is_apart(&c->r, clock_of(at, false), c->many_threads, c->many_warps, c->many_blocks))
        die_of_race(&c->r, at, "read");
}

[[noreturn]] static void die_of_order(const range &at, int stream, uint32_t time, const char *did)
{
    cri_sim_die("%s (stream %d) %s %p, which %s %s: no event or synchronisation orders them",
                cri_sim_running->name.c_str(), cri_sim_running->stream->number,
                at.is_write ? "writes" : "reads", at.p, cri_sim_op_name(stream, time).c_str(), did);
}

static void check_order(const cell *c, const range &at)
{
    if (c->w.op && c->w.op != op_count && !is_ordered(c->w.stream, c->w.time))
        die_of_order(at, c->w.stream, c->w.time, "wrote");
    if (!at.is_write) return;
    if (c->r.op && c->r.op != op_count && !is_ordered(c->r.stream, c->r.time))
        die_of_order(at, c->r.stream, c->r.time, "reads");
    if (c->other_time && !is_ordered(c->other_stream, c->other_time))
        die_of_order(at, c->other_stream, c->other_time, "reads");
}

/* ---- what is remembered ---- */

static void keep_read(cell *c, const range &at)
{
    const cri_sim_where *h = &cri_sim_here;
    visit old = c->r;
    bool is_again = old.op == op_count;

    if (is_again && old.block == h->block && old.phase == (uint16_t)h->block_phase) {
        if (old.thread / CRI_SIM_WARP != h->thread / CRI_SIM_WARP) {
            c->many_warps = 1;
        } else if (old.warp_phase != (uint16_t)h->warp_phase) {
            fill(&c->r, false);
            if (at.is_shared) *clock_of(at, false) = cri_sim_clock_of(h->thread / CRI_SIM_WARP);
            c->many_threads = 0;
        } else if (old.thread != h->thread) {
            c->many_threads = 1;
        }
        return;
    }
    if (is_again && old.block != h->block && !at.is_shared) {
        c->many_blocks = 1;
        return;
    }
    fill(&c->r, false);
    if (at.is_shared) *clock_of(at, false) = cri_sim_clock_of(h->thread / CRI_SIM_WARP);
    if (old.op && !is_again && old.stream != c->r.stream) {
        c->other_stream = old.stream;
        c->other_time = old.time;
    }
    c->many_threads = c->many_warps = 0;
    if (!is_again) c->many_blocks = 0;
}

/* A read of what this block has read since its last barrier, and has not written since: that read has passed the checks. */
static bool is_read_again(cell *c)
{
    const cri_sim_where *h = &cri_sim_here;
    uint16_t phase = (uint16_t)h->block_phase;

    if (c->r.op != op_count || c->r.block != h->block || c->r.phase != phase) return false;
    if (c->w.op == op_count &&
        (c->w.block != h->block || c->w.phase == phase || c->w.thread >= CRI_SIM_MAX_THREADS))
        return false;
    if (c->r.thread / CRI_SIM_WARP != h->thread / CRI_SIM_WARP) {
        c->many_warps = 1;
        return true;
    }
    if (c->r.warp_phase != (uint16_t)h->warp_phase) return false;
    if (c->r.thread != h->thread) c->many_threads = 1;
    return true;
}

static inline void check_cell(cell *c, const range &at)
{
    if (!at.is_write && cri_sim_here.is_in_kernel && is_read_again(c)) return;
    check_state(c, at);
    if (cri_sim_here.is_in_kernel) check_race(c, at);
    if (!at.is_shared && cri_sim_running) check_order(c, at);
    if (!at.is_write) {
        keep_read(c, at);
        return;
    }
    fill(&c->w, at.is_atomic);
    if (at.is_shared) *clock_of(at, true) = cri_sim_clock_of(cri_sim_here.thread / CRI_SIM_WARP);
    c->r.op = 0;
    c->other_time = 0;
    c->is_written = 1;
}

static void check_shared(const void *p, size_t n, bool is_write, bool is_atomic)
{
    size_t at = (size_t)((const unsigned char *)p - cri_sim_shared_arena);

    if (at + n > cri_sim_shared_used)
        cri_sim_die("shared memory of %zu bytes: access at offset %zu, %s", cri_sim_shared_used, at,
                    cri_sim_line_of_code().c_str());
    for (size_t i = at / CRI_SIM_GRANULE; i <= (at + n - 1) / CRI_SIM_GRANULE; i++)
        check_cell(&of_shared[i],
                   {cri_sim_shared_arena + i * CRI_SIM_GRANULE, is_write, is_atomic, true});
    if (is_write) cri_sim_chunks_write(p, n);
}

void cri_sim_check_access(const void *p, size_t n, bool is_write, bool is_atomic)
{
    const uint64_t granule = CRI_SIM_GRANULE;

    if (cri_sim_running != op_seen) {
        op_seen = cri_sim_running;
        op_count++;
    }
    if (cri_sim_in_arena(p)) {
        for (uint64_t a = (uint64_t)p & ~(granule - 1); a < (uint64_t)p + n; a += granule)
            check_cell(cell_of(a), {(const void *)a, is_write, is_atomic, false});
        return;
    }
    if (!cri_sim_here.is_in_kernel) return;
    if ((const unsigned char *)p >= cri_sim_shared_arena &&
        (const unsigned char *)p < cri_sim_shared_arena + CRI_SIM_SHARED_MAX) {
        check_shared(p, n, is_write, is_atomic);
        return;
    }
    if (cri_sim_is_private(p)) {
        cri_sim_wgmma_touch(p, n, is_write);
        return;
    }
    if (cri_sim_is_pinned(p, n) ||
        ((const char *)p >= &__executable_start && (const char *)p < &end))
        return;
    cri_sim_die("a kernel %s host memory at %p, %s", is_write ? "writes" : "reads", p,
                cri_sim_line_of_code().c_str());
}

void cri_sim_check_in_flight(const void *p, size_t n)
{
    size_t at = (size_t)((const unsigned char *)p - cri_sim_shared_arena);

    cri_sim_check_access(p, n, true, false);
    for (size_t i = 0; i < n; i += CRI_SIM_GRANULE)
        of_shared[(at + i) / CRI_SIM_GRANULE].is_written = 0;
}

/* ---- bulk copies and wgmma ---- */

static cell *shared_cell(const void *p, size_t at)
{
    return &of_shared[((size_t)((const unsigned char *)p - cri_sim_shared_arena) + at) /
                      CRI_SIM_GRANULE];
}

void cri_sim_check_copy_begins(const void *p, size_t n, int mbarrier, uint32_t phase)
{
    for (size_t i = 0; i < n; i += CRI_SIM_GRANULE) {
        cell *c = shared_cell(p, i);
        c->w.thread = (uint16_t)((CRI_SIM_MAX_WARPS + mbarrier) * CRI_SIM_WARP);
        clock_of_visit[0][c - of_shared] = phase;
        c->is_written = 0;
    }
}

void cri_sim_check_copy_arrived(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += CRI_SIM_GRANULE)
        shared_cell(p, i)->is_written = 1;
}

/* Who has read it is kept by chunks. */
void cri_sim_check_wgmma_read(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += CRI_SIM_GRANULE) {
        const cell *c = shared_cell(p, i);
        const range at = {(const unsigned char *)p + i, false, false, true};
        check_state(c, at);
        check_race(c, at);
    }
}
