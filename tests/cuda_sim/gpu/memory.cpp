/* memory.cpp -- memory of the simulated device, and pinned memory.
 *
 * Device memory is one range of addresses without access. A window opens where an operation touches it, and all are
 * shut when host code goes on; the guard page between two allocations never opens. Memory is 0xff at
 * allocation: NaN in every float format. Addresses are not used again.
 */
#include "tests/cuda_sim/gpu/ipc.h"

#include <map>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256, WINDOW = 256 * 1024, ALT_STACK_BYTES = 64 * 1024 };
static const uint64_t ARENA_BYTES = 256ull << 30, MEMORY_MIB = 64 << 10; /* of a GPU, unless said */

uint64_t cri_sim_arena, cri_sim_arena_end;

static uint64_t arena_next, memory_count;
static std::map<uint64_t, cri_sim_allocation> memory; /* by map_base; freed ones stay */
static std::map<uint64_t, size_t> pinned;
static bool is_open;
static std::vector<std::pair<uint64_t, size_t>> windows; /* where device memory is accessible now */
static uint64_t device_bytes;                            /* allocated now */
static struct sigaction handler_before[2]; /* of SIGSEGV and SIGBUS: gets the faults of others */

/* ---- windows ---- */

void cri_sim_open_memory(void)
{
    is_open = true;
}

void cri_sim_close_memory(void)
{
    is_open = false;
    for (auto &w : windows)
        mprotect((void *)w.first, w.second, PROT_NONE);
    cri_sim_counts.windows += windows.size();
    windows.clear();
}

const cri_sim_allocation *cri_sim_memory_of(const void *p)
{
    static const cri_sim_allocation *last; /* the next question is about the same one, most often */

    if (last && (uint64_t)p - last->map_base < last->map_bytes) return last;
    auto it = memory.upper_bound((uint64_t)p);
    if (it == memory.begin()) return nullptr;
    --it;
    if ((uint64_t)p - it->second.map_base >= it->second.map_bytes) return nullptr;
    return last = &it->second;
}

static bool open_window(const cri_sim_allocation *m, uint64_t p)
{
    uint64_t from = p & ~(uint64_t)(WINDOW - 1), to = from + WINDOW;

    if (from < m->map_base) from = m->map_base;
    if (to > m->map_base + m->map_bytes) to = m->map_base + m->map_bytes;
    if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE)) return false;
    windows.push_back({from, to - from});
    return true;
}

/* Not of the device: the handler before this one, as if it were the only one. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction *before = &handler_before[number == SIGBUS];

    if (before->sa_flags & SA_SIGINFO && before->sa_sigaction)
        before->sa_sigaction(number, info, context);
    else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN)
        before->sa_handler(number);
    else
        signal(number, SIG_DFL); /* and the instruction faults again */
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    char text[400];
    const void *p = info->si_addr;
    const cri_sim_allocation *m = nullptr;
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    const char *by = cri_sim_runs_here ? cri_sim_running->name.c_str() : "host code";
    int n;

    if (!cri_sim_in_arena(p)) {
        if (cri_sim_runs_here && cri_sim_here.is_in_kernel) {
            n = snprintf(text, sizeof text,
                         "sim: %s touched %p, which is no memory, code at %#lx\n", by, p, pc);
            if (write(STDERR_FILENO, text, (size_t)n) >= 0) _exit(86);
        }
        pass_on(number, info, context);
        return;
    }
    m = cri_sim_memory_of(p);
    if (m && is_open && cri_sim_runs_here && !m->is_freed && open_window(m, (uint64_t)p)) return;
    if (m)
        n = snprintf(text, sizeof text,
                     "sim: %s touched %sdevice memory: byte %ld of allocation %lu (%lu bytes), "
                     "code at %#lx\n",
                     by, m->is_freed ? "freed " : "", (long)((uint64_t)p - m->base),
                     (unsigned long)m->number, (unsigned long)m->num_bytes, pc);
    else
        n = snprintf(text, sizeof text,
                     "sim: %s touched %p, which is between device allocations, code at %#lx\n", by,
                     p, pc);
    if (write(STDERR_FILENO, text, (size_t)n) >= 0) _exit(86);
}

/* Tests' frameworks and device `far` install handlers of their own, so the first place is taken at each call. */
static void take_handler(int number)
{
    struct sigaction now, sa = {};

    sigaction(number, nullptr, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) return;
    handler_before[number == SIGBUS] = now;
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(number, &sa, nullptr);
}

static void take_alt_stack(void)
{
    static thread_local bool has_one;
    stack_t ss = {};

    if (has_one) return;
    has_one = true;
    ss.ss_sp =
        mmap(nullptr, ALT_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ss.ss_size = ALT_STACK_BYTES;
    if (ss.ss_sp != MAP_FAILED) sigaltstack(&ss, nullptr);
}

/* CROLL_SIM_LEAKS: memory or a graph that is there at the end of the process is an error. */
static void report_leaks(void)
{
    if (getenv("CROLL_SIM_LEAKS") && (device_bytes || !pinned.empty() || cri_sim_num_graphs))
        cri_sim_die(
            "at exit %lu bytes of device memory, %zu pinned buffers and %zu graphs are allocated",
            (unsigned long)device_bytes, pinned.size(), cri_sim_num_graphs);
}

void cri_sim_memory_begin(void)
{
    take_handler(SIGSEGV);
    take_handler(SIGBUS);
    take_alt_stack();
    if (cri_sim_arena) return;
    void *at = mmap((void *)0x200000000000ull, ARENA_BYTES, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) cri_sim_die("no address space for device memory");
    cri_sim_arena = arena_next = (uint64_t)at;
    cri_sim_arena_end = cri_sim_arena + ARENA_BYTES;
    windows.reserve(1 << 16);
    atexit(report_leaks);
}

/* ---- allocations ---- */

uint64_t cri_sim_memory_bytes(void)
{
    uint64_t mib = cri_sim_setting("CROLL_SIM_MEMORY_MIB", MEMORY_MIB);

    if (mib > ARENA_BYTES >> 20)
        cri_sim_die("CROLL_SIM_MEMORY_MIB: at most %lu", (unsigned long)(ARENA_BYTES >> 20));
    return mib << 20;
}

cri_sim_allocation *cri_sim_new_pages(size_t num_bytes, int fd)
{
    size_t pages = (num_bytes + PAGE - 1) / PAGE * PAGE;
    uint64_t map =
        arena_next + PAGE; /* one guard page before each; the data ends near the next one */

    if (num_bytes > ARENA_BYTES || map + pages + PAGE > cri_sim_arena_end) return nullptr;
    if (fd >= 0 && mmap((void *)map, pages, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return nullptr;
    arena_next = map + pages;
    memory[map] = {
        (map + pages - num_bytes) / ALIGN * ALIGN, num_bytes, map, pages, memory_count++, false};
    return &memory[map];
}

void cri_sim_free_pages(cri_sim_allocation *m)
{
    if (mmap((void *)m->map_base, m->map_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        cri_sim_die("a release of %lu bytes", (unsigned long)m->num_bytes);
    m->is_freed = true;
    if (cri_sim_is_checked) cri_sim_check_forget((void *)m->base, m->num_bytes);
}

cudaError_t cudaMalloc(void **out, size_t num_bytes)
{
    cri_sim_enter enter;
    size_t size = num_bytes ? num_bytes : 1;
    cri_sim_allocation *m;

    if (cri_sim_lost) return cri_sim_lost;
    if (cri_sim_unless_captured(nullptr) != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (cri_sim_fails(CRI_SIM_FAIL_ALLOC) || device_bytes + size > cri_sim_memory_bytes())
        return cri_sim_keep_error(cudaErrorMemoryAllocation);
    m = cri_sim_new_pages(size, -1);
    if (!m || mprotect((void *)m->map_base, m->map_bytes, PROT_READ | PROT_WRITE))
        return cri_sim_keep_error(cudaErrorMemoryAllocation);
    memset((void *)m->map_base, 0xff, m->map_bytes);
    mprotect((void *)m->map_base, m->map_bytes, PROT_NONE);
    device_bytes += size;
    cri_sim_counts.device_allocs++;
    cri_sim_counts.device_bytes += size;
    *out = (void *)m->base;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
    cri_sim_enter enter;
    cri_sim_allocation *m;

    if (!ptr) return cudaSuccess;
    if (cri_sim_unless_captured(nullptr) != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    cri_sim_run_all();
    m = const_cast<cri_sim_allocation *>(cri_sim_memory_of(ptr));
    if (!m || m->base != (uint64_t)ptr || m->is_freed || m->num_opens)
        cri_sim_die("cudaFree of %p, which cudaMalloc did not give or which is freed", ptr);
    if (!cri_sim_is_alone(m))
        cri_sim_die("cudaFree of allocation %lu, which another process has open",
                    (unsigned long)m->number);
    cri_sim_end_sharing(m);
    cri_sim_free_pages(m);
    device_bytes -= m->num_bytes;
    return cri_sim_lost;
}

cudaError_t cudaMallocHost(void **out, size_t num_bytes)
{
    cri_sim_enter enter;
    size_t size = num_bytes ? num_bytes : 1;
    void *at;

    if (cri_sim_lost) return cri_sim_lost;
    if (cri_sim_unless_captured(nullptr) != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || cri_sim_fails(CRI_SIM_FAIL_ALLOC))
        return cri_sim_keep_error(cudaErrorMemoryAllocation);
    memset(at, 0xff, size);
    pinned[(uint64_t)at] = size;
    cri_sim_counts.pinned_allocs++;
    cri_sim_counts.pinned_bytes += size;
    *out = at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *ptr)
{
    cri_sim_enter enter;
    auto it = pinned.find((uint64_t)ptr);

    if (!ptr) return cudaSuccess;
    if (cri_sim_unless_captured(nullptr) != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    if (it == pinned.end())
        cri_sim_die("cudaFreeHost of %p, which cudaMallocHost did not give", ptr);
    for (CUstream_st *s : cri_sim_streams())
        if (s->is_alive && !s->queue.empty())
            cri_sim_die("cudaFreeHost while operations are queued: a copy may still use it");
    munmap(ptr, it->second);
    pinned.erase(it);
    return cri_sim_lost;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cri_sim_enter enter;

    *total_bytes = cri_sim_memory_bytes();
    *free_bytes = *total_bytes - device_bytes;
    return cri_sim_lost;
}

bool cri_sim_is_pinned(const void *p, size_t n)
{
    auto it = pinned.upper_bound((uint64_t)p);

    if (it == pinned.begin()) return false;
    --it;
    return (uint64_t)p + n <= it->first + it->second;
}

void cri_sim_touch(const void *p, size_t n, bool is_write)
{
    const cri_sim_allocation *m;
    const char *by = cri_sim_running ? cri_sim_running->name.c_str() : "a copy";
    const char *what = is_write ? "writes" : "reads";

    if (!n || !cri_sim_in_arena(p)) return;
    m = cri_sim_memory_of(p);
    if (!m || (uint64_t)p < m->base || (uint64_t)p + n > m->base + m->num_bytes)
        cri_sim_die("%s %s %zu bytes at %p, past its allocation", by, what, n, p);
    if (m->is_freed) cri_sim_die("%s %s freed device memory", by, what);
    if (cri_sim_is_checked) cri_sim_check_access(p, n, is_write, false);
}
