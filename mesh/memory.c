/* memory.c -- zero pages, and counters in shared memory that other processes wait for: spin, yield, then
 * sleep in a futex (see mesh_impl.h). */
#include "base/isa.h"
#include "mesh/mesh_impl.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void *cri_pages_map(size_t num_bytes, bool is_meta)
{
    void *ptr = mmap(NULL, num_bytes ? num_bytes : 1, is_meta ? PROT_NONE : PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | (is_meta ? MAP_NORESERVE : 0), -1, 0);

    CR_CHECK(ptr != MAP_FAILED, "no address space for %zu bytes", num_bytes);
    return ptr;
}

void cri_pages_unmap(void *ptr, size_t num_bytes)
{
    if (ptr) munmap(ptr, num_bytes ? num_bytes : 1);
}

/* ---- flags ---- */

static const double spin_s = 2e-6, yield_s = 200e-6;
enum { LOOKS = 16 }; /* at the flag, for one at the clock */

bool cri_flag_reached(const cri_flag *flag, uint32_t target)
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
        for (int i = 0; i < LOOKS; i++) {
            if (cri_flag_reached(flag, target)) return true;
            cr_pause();
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
