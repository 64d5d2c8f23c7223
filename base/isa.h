/* isa.h -- what code outside kernels/cpu has to know of the CPU's architecture: x86-64 or aarch64. */
#ifndef CR_ISA_H
#define CR_ISA_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

/* X(name, attribute of functions), narrowest first; the first one runs on every CPU of the architecture. */
#if defined(__x86_64__)
/* clang-format off */
#define CR_ISAS(X)                                   \
    X(any, )                                         \
    X(avx2, __attribute__((target("avx2"))))         \
    X(avx512, __attribute__((target("avx512f"))))
/* clang-format on */
#else
#define CR_ISAS(X) X(any, ) /* aarch64: NEON */
#endif

/* Which of CR_ISAS is the widest that this CPU has. */
static inline int cr_isa_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return __builtin_cpu_supports("avx512f") ? 2 : 1;
#endif
    return 0;
}

/* For loops that wait for another core: leaves the execution units to the other thread of this core. */
static inline void cr_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* "yield" does nothing on most CPUs */
#endif
}

/* Of a handler of SIGSEGV: did the instruction write? Where the kernel does not say: false. */
static inline bool cr_fault_is_write(const ucontext_t *u)
{
#if defined(__x86_64__)
    return u->uc_mcontext.gregs[REG_ERR] & 2;
#elif defined(__aarch64__)
    const char *at = (const char *)u->uc_mcontext.__reserved;
    struct esr_context record; /* one of several, which begin alike */

    for (;; at += record.head.size) {
        memcpy(&record, at, sizeof record);
        if (record.head.magic == ESR_MAGIC) return record.esr >> 6 & 1;
        if (record.head.size == 0) return false;
    }
#endif
}

#endif
