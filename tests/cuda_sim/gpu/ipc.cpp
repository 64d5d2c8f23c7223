/* ipc.cpp -- memory of a simulated GPU in several processes (CROLL_SIM_GPUS). A handle names a file without a name of the process whose
 * allocation it is; the allocation's pages are those of the file from the first handle on. After them the file has a page with the
 * processes that have it open, for the rule that it is not freed meanwhile.
 *
 * Accesses are checked in each process alone: what another one writes counts as written, and is in no order. */
#include "tests/cuda_sim/gpu/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <map>

enum { PAGE = 4096, MAX_OPENS = 64 };

namespace
{
struct openers {
    std::atomic<int> pid[MAX_OPENS];
};
struct handle {           /* in a cudaIpcMemHandle_t */
    int64_t pid, fd, gpu; /* no holes: two handles of one allocation are the same bytes */
    uint64_t num_bytes, map_bytes, number;
};
} // namespace

static_assert(sizeof(handle) <= sizeof(cudaIpcMemHandle_t), "a handle");
static std::map<uint64_t, openers *> openers_of; /* by map_base; own memory and that of others */
static std::map<uint64_t, handle> opened;        /* by map_base */

static openers *map_openers(int fd, uint64_t map_bytes)
{
    void *at = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)map_bytes);

    if (at == MAP_FAILED) cri_sim_die("no page for the openers of device memory");
    return (openers *)at;
}

/* The pages become those of a file, with the same content at the same addresses. */
static void begin_sharing(cri_sim_allocation *m)
{
    int fd = memfd_create("croll-sim", MFD_CLOEXEC);

    mprotect((void *)m->map_base, m->map_bytes, PROT_READ);
    for (uint64_t at = 0; fd >= 0 && at < m->map_bytes;) {
        ssize_t n = pwrite(fd, (void *)(m->map_base + at), m->map_bytes - at, (off_t)at);
        if (n <= 0) cri_sim_die("device memory for other processes: %s", strerror(errno));
        at += (uint64_t)n;
    }
    if (fd < 0 || ftruncate(fd, (off_t)m->map_bytes + PAGE) ||
        mmap((void *)m->map_base, m->map_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
        cri_sim_die("device memory for other processes: %s", strerror(errno));
    m->fd = fd;
    openers_of[m->map_base] = map_openers(fd, m->map_bytes);
}

bool cri_sim_is_alone(const cri_sim_allocation *m)
{
    if (m->fd < 0) return true;
    for (std::atomic<int> &pid : openers_of[m->map_base]->pid)
        if (pid && (kill(pid, 0) == 0 || errno != ESRCH)) return false;
    return true;
}

void cri_sim_end_sharing(cri_sim_allocation *m)
{
    if (m->fd < 0) return;
    munmap(openers_of[m->map_base], PAGE);
    openers_of.erase(m->map_base);
    close(m->fd);
    m->fd = -1;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *ptr)
{
    cri_sim_enter enter;
    cri_sim_allocation *m = const_cast<cri_sim_allocation *>(cri_sim_memory_of(ptr));
    handle h;

    if (cri_sim_lost) return cri_sim_lost;
    if (!m || m->is_freed || m->num_opens || m->base != (uint64_t)ptr)
        return cri_sim_keep_error(cudaErrorInvalidValue);
    if (m->fd < 0) begin_sharing(m);
    h = {getpid(), m->fd, cri_sim_gpu(), m->num_bytes, m->map_bytes, m->number};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

static void add_opener(openers *o, int from, int to)
{
    for (std::atomic<int> &pid : o->pid) {
        int expected = from;
        if (pid.compare_exchange_strong(expected, to)) return;
    }
    cri_sim_die("device memory that more than %d processes open", MAX_OPENS);
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t of, unsigned flags)
{
    cri_sim_enter enter;
    cri_sim_allocation *m;
    char path[64];
    struct stat st;
    handle h;
    int fd;

    memcpy(&h, &of, sizeof h);
    if (cri_sim_lost) return cri_sim_lost;
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cri_sim_keep_error(cudaErrorInvalidValue);
    if (h.pid == getpid()) return cri_sim_keep_error(cudaErrorDeviceUninitialized);
    if (h.gpu != cri_sim_gpu() || cri_sim_fails(CRI_SIM_FAIL_IPC))
        return cri_sim_keep_error(cudaErrorMapBufferObjectFailed);
    for (auto &x : opened)
        if (!memcmp(&x.second, &h, sizeof h)) {
            m = const_cast<cri_sim_allocation *>(cri_sim_memory_of((void *)x.first));
            m->num_opens++;
            *out = (void *)m->base;
            return cudaSuccess;
        }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h.pid, (int)h.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size != h.map_bytes + PAGE) {
        if (fd >= 0) close(fd);
        return cri_sim_keep_error(cudaErrorInvalidResourceHandle);
    }
    m = cri_sim_new_pages(h.num_bytes, fd);
    if (!m) cri_sim_die("no address space for device memory of another process");
    m->num_opens = 1;
    opened[m->map_base] = h;
    openers_of[m->map_base] = map_openers(fd, h.map_bytes);
    add_opener(openers_of[m->map_base], 0, (int)getpid());
    close(fd);
    *out = (void *)m->base;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
    cri_sim_enter enter;
    cri_sim_allocation *m = const_cast<cri_sim_allocation *>(cri_sim_memory_of(ptr));

    if (!m || m->base != (uint64_t)ptr || !m->num_opens)
        cri_sim_die("cudaIpcCloseMemHandle of %p, which is not open", ptr);
    if (--m->num_opens) return cri_sim_lost;
    add_opener(openers_of[m->map_base], (int)getpid(), 0);
    munmap(openers_of[m->map_base], PAGE);
    openers_of.erase(m->map_base);
    opened.erase(m->map_base);
    cri_sim_free_pages(m);
    return cri_sim_lost;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *num_bytes, CUdeviceptr ptr)
{
    cri_sim_enter enter;
    const cri_sim_allocation *m = cri_sim_memory_of((void *)ptr);

    if (!m || m->is_freed) return CUDA_ERROR_INVALID_VALUE;
    *base = m->base;
    *num_bytes = m->num_bytes;
    return CUDA_SUCCESS;
}
