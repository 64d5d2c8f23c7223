/* failures.cpp -- settings of the simulated GPU in the environment, and what it can be told to fail at:
 *   CROLL_SIM_FAIL=alloc:N  the N-th allocation, of the device or pinned, finds no memory
 *   CROLL_SIM_FAIL=work:N   the N-th copy, kernel or zeroing meets an uncorrectable ECC error: nothing runs any more, and
 *                           all calls return it, as CUDA's do until the process ends
 *   CROLL_SIM_FAIL=ipc:N    the N-th memory of another process cannot be opened
 *   CROLL_SIM_FAIL=nccl:N   the N-th operation of NCCL does not end, and its communicator has an asynchronous error
 * N counts in each process from 1. */
#include "tests/cuda_sim/gpu/impl.h"

#include <errno.h>
#include <stdlib.h>

uint64_t cri_sim_setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t x;
    char *end;

    if (!text) return otherwise;
    errno = 0;
    x = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        cri_sim_die("%s=%s: it is a whole number", name, text);
    return x;
}

cudaError_t cri_sim_lost;

static const char *const kinds[] = {"alloc", "work", "nccl", "ipc"};
static uint64_t counts[CRI_SIM_FAIL_IPC + 1];

static bool is_of(const char *text, const char *kind)
{
    size_t n = strlen(kind);
    char *end;

    if (strncmp(text, kind, n) != 0 || text[n] != ':') return false;
    return strtoull(text + n + 1, &end, 10) > 0 && !*end;
}

bool cri_sim_fails(cri_sim_fail kind)
{
    const char *text = getenv("CROLL_SIM_FAIL");
    bool is_known = false;

    if (!text) return false;
    for (const char *name : kinds)
        is_known = is_known || is_of(text, name);
    if (!is_known)
        cri_sim_die("CROLL_SIM_FAIL=%s: alloc:N, work:N, nccl:N or ipc:N, N from 1", text);
    if (!is_of(text, kinds[kind])) return false;
    return ++counts[kind] == strtoull(strchr(text, ':') + 1, nullptr, 10);
}
