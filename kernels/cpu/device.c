/* device.c -- the cpu device: memory, and the choice of the instruction set.
 *
 * Five variants of the same code: baseline x86-64, AVX2 + FMA, AVX-512, AVX-512 with bfloat16
 * products, AMX. CROLL_CPU=x86_64|avx2|avx512|avx512bf16|amx forces one (tests compare them).
 */
#include "kernels/cpu/cpu.h"

#include <cpuid.h>
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const cr_kernels cri_cpu_kernels_base, cri_cpu_kernels_avx2, cri_cpu_kernels_avx512,
    cri_cpu_kernels_avx512bf16, cri_cpu_kernels_amx;

/* clang 14 does not know "f16c" in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_amx(void)
{
    unsigned a, b, c, d, tile_and_bf16 = 1u << 24 | 1u << 22;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile_and_bf16) == tile_and_bf16;
}

/* Tiles are 8 KB of a thread's registers, and Linux (since 5.16) gives them to processes that ask. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static const char *const names[] = {"x86_64", "avx2", "avx512", "avx512bf16", "amx"};
static const cr_kernels *const kernels[] = {&cri_cpu_kernels_base, &cri_cpu_kernels_avx2,
                                            &cri_cpu_kernels_avx512, &cri_cpu_kernels_avx512bf16,
                                            &cri_cpu_kernels_amx};

/* Index of the widest one that this CPU has. *denied: why the kernel does not give AMX that the CPU has, or
 * 0. */
static size_t find_best(int *denied)
{
    size_t best = 0;

    *denied = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) best = 1;
    if (best == 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        best = 2;
    if (best == 2 && __builtin_cpu_supports("avx512bf16")) best = 3;
    if (best == 3 && has_amx()) {
        if (may_use_tiles())
            best = 4;
        else
            *denied = errno;
    }
    return best;
}

/* What CROLL_CPU names; CR_COUNT(names): an unknown name. */
static size_t find_wanted(size_t best)
{
    const char *wanted = getenv("CROLL_CPU");
    size_t i = 0;

    if (!wanted || !wanted[0]) return best;
    while (i < CR_COUNT(names) && strcmp(names[i], wanted) != 0)
        i++;
    return i;
}

cr_status cri_cpu_open(cr_device *dev, cr_err *err)
{
    int denied;
    size_t best = find_best(&denied), wanted = find_wanted(best);

    if (wanted == 4 && denied)
        return cr_fail(err, CR_EABSENT,
                       "CROLL_CPU=amx: the CPU has it, but the kernel does not give its tiles to "
                       "this process (arch_prctl: %s); Linux 5.16 or later is needed",
                       strerror(denied));
    if (wanted > best)
        return cr_fail(
            err, CR_EABSENT,
            "CROLL_CPU=%s is not one of x86_64, avx2, avx512, avx512bf16 and amx, or this "
            "CPU, which has up to %s, lacks it",
            getenv("CROLL_CPU"), names[best]);
    dev->kernels = kernels[wanted];
    dev->variant = names[wanted];
    dev->impl = CR_NEW(cri_cpu);
    return CR_OK;
}

const cr_kernels *cri_cpu_best(void)
{
    static _Thread_local size_t best; /* 1 more than the index; 0: not looked for yet */
    size_t wanted;
    int denied;

    if (!best) best = find_best(&denied) + 1;
    wanted = find_wanted(best - 1);
    return kernels[wanted < best ? wanted : best - 1];
}

void cri_cpu_open_lane(const cr_device *dev, cr_device *lane)
{
    (void)dev;
    lane->impl = CR_NEW(cri_cpu);
}

void *cri_scratch(cr_device *dev, int slot, size_t num_bytes)
{
    struct cri_scratch *s = &cri_cpu_of(dev)->scratch[slot];

    if (s->num_bytes < num_bytes) {
        cr_free(s->data);
        s->num_bytes = num_bytes + num_bytes / 4;
        s->data = cr_alloc(s->num_bytes);
    }
    return s->data;
}

void cri_cpu_drop_scratch(cr_device *dev)
{
    for (int i = 0; i < CRI_NUM_SCRATCH; i++) {
        cr_free(cri_cpu_of(dev)->scratch[i].data);
        cri_cpu_of(dev)->scratch[i] = (struct cri_scratch){0};
    }
}

cr_status cri_cpu_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    enum { HUGE_PAGE = 1 << 21 };
    size_t rounded = num_bytes ? (num_bytes + 63) / 64 * 64 : 64;

    void *data;

    (void)dev;
    *out = NULL;
    if (posix_memalign(&data, rounded >= HUGE_PAGE ? HUGE_PAGE : 64, rounded) != 0)
        return cr_fail(err, CR_EIO, "out of memory asking for %zu bytes", num_bytes);
    if (rounded >=
        HUGE_PAGE) /* fewer misses of the TLB; it is only a wish, so its result is ignored */
        (void)madvise(data, rounded / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    *out = cr_mem_of_host(data);
    return CR_OK;
}

void cri_cpu_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    (void)dev;
    (void)num_bytes;
    free(cr_mem_to_host(mem));
}

void cri_cpu_close(cr_device *dev)
{
    cri_cpu *cpu = cri_cpu_of(dev);
    cri_rope_table *tables[] = {&cpu->by_position, &cpu->by_row};

    for (size_t i = 0; i < CR_COUNT(tables); i++) {
        cr_free(tables[i]->cos);
        cr_free(tables[i]->sin);
        cr_free(tables[i]->angles);
    }
    cri_cpu_drop_scratch(dev);
    cr_free(cpu);
}

cr_status cri_cpu_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                         cr_err *err)
{
    (void)dev;
    (void)err;
    memcpy(cr_mem_to_host(dst), src, num_bytes);
    return CR_OK;
}

cr_status cri_cpu_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                           cr_err *err)
{
    (void)dev;
    (void)err;
    memcpy(dst, cr_mem_to_host(src), num_bytes);
    return CR_OK;
}

cr_status cri_cpu_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    (void)dev;
    (void)err;
    memset(cr_mem_to_host(dst), 0, num_bytes);
    return CR_OK;
}

cr_status cri_cpu_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                       cr_err *err)
{
    (void)dev;
    (void)err;
    memmove(cr_mem_to_host(dst), cr_mem_to_host(src), num_bytes);
    return CR_OK;
}

int cri_thread(const cr_device *dev)
{
    return dev->num_threads == 1 ? 0 : omp_get_thread_num(); /* a lane runs on any thread */
}
