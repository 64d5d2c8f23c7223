/* device.c -- the cpu device: memory, copies of rows, and the choice of the instruction set.
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

cr_status cri_cpu_open(cr_device *dev, cr_err *err)
{
    static const char *const names[] = {"x86_64", "avx2", "avx512", "avx512bf16", "amx"};
    const cr_kernels *const tables[] = {&cri_cpu_kernels_base, &cri_cpu_kernels_avx2,
                                        &cri_cpu_kernels_avx512, &cri_cpu_kernels_avx512bf16,
                                        &cri_cpu_kernels_amx};
    const char *wanted = getenv("CROLL_CPU");
    size_t best = 0;
    int denied = 0;

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
            denied = errno;
    }
    if (wanted && wanted[0]) {
        size_t i = 0;
        while (i < CR_COUNT(names) && strcmp(names[i], wanted) != 0)
            i++;
        if (i == 4 && denied)
            return cr_fail(
                err, CR_EABSENT,
                "CROLL_CPU=amx: the CPU has it, but the kernel does not give its tiles to "
                "this process (arch_prctl: %s); Linux 5.16 or later is needed",
                strerror(denied));
        if (i > best)
            return cr_fail(err, CR_EABSENT, "CROLL_CPU=%s: this CPU has x86_64 to %s", wanted,
                           names[best]);
        best = i;
    }
    dev->kernels = tables[best];
    dev->variant = names[best];
    return CR_OK;
}

cr_status cri_cpu_alloc(cr_device *dev, size_t num_bytes, void **out, cr_err *err)
{
    enum { HUGE_PAGE = 1 << 21 };
    size_t rounded = num_bytes ? (num_bytes + 63) / 64 * 64 : 64;

    (void)dev;
    *out = NULL;
    if (posix_memalign(out, rounded >= HUGE_PAGE ? HUGE_PAGE : 64, rounded) != 0)
        return cr_fail(err, CR_EIO, "out of memory asking for %zu bytes", num_bytes);
    if (rounded >=
        HUGE_PAGE) /* fewer misses of the TLB; it is only a wish, so its result is ignored */
        (void)madvise(*out, rounded / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return CR_OK;
}

void cri_cpu_release(cr_device *dev, void *ptr, size_t num_bytes)
{
    (void)dev;
    (void)num_bytes;
    free(ptr);
}

void cri_cpu_close(cr_device *dev)
{
    struct cri_rope_table *tables[] = {&dev->rope, &dev->turns};

    for (size_t i = 0; i < CR_COUNT(tables); i++) {
        cr_free(tables[i]->cos);
        cr_free(tables[i]->sin);
        cr_free(tables[i]->inv_freq);
    }
}

cr_status cri_cpu_zero(cr_device *dev, void *dst, size_t num_bytes, cr_err *err)
{
    (void)dev;
    (void)err;
    memset(dst, 0, num_bytes);
    return CR_OK;
}

cr_status cri_cpu_copy(cr_device *dev, void *dst, const void *src, size_t num_bytes, cr_err *err)
{
    (void)dev;
    (void)err;
    memmove(dst, src, num_bytes);
    return CR_OK;
}

cr_status cri_cpu_embedding(cr_device *dev, const cr_weight *w, const int32_t *ids,
                            int64_t num_tokens, void *y, cr_err *err)
{
    return cri_cpu_rows_gather(dev, w->dtype, w->data, ids, num_tokens, w->num_cols, y, err);
}

cr_status cri_cpu_rows_gather(cr_device *dev, cr_dtype dtype, const void *src, const int32_t *index,
                              int64_t num_rows, int64_t num_cols, void *dst, cr_err *err)
{
    size_t bytes = (size_t)num_cols * cr_dtype_bytes(dtype);

    (void)dev;
    (void)err;
    for (int64_t i = 0; i < num_rows; i++)
        memcpy((char *)dst + (size_t)i * bytes, (const char *)src + (size_t)index[i] * bytes,
               bytes);
    return CR_OK;
}

cr_status cri_cpu_rows_scatter(cr_device *dev, cr_dtype dtype, const void *src,
                               const int32_t *index, int64_t num_rows, int64_t num_cols, void *dst,
                               cr_err *err)
{
    size_t bytes = (size_t)num_cols * cr_dtype_bytes(dtype);

    (void)dev;
    (void)err;
    for (int64_t i = 0; i < num_rows; i++)
        memcpy((char *)dst + (size_t)index[i] * bytes, (const char *)src + (size_t)i * bytes,
               bytes);
    return CR_OK;
}

int cri_thread(const cr_device *dev)
{
    return dev->num_threads == 1 ? 0 : omp_get_thread_num(); /* a lane runs on any thread */
}
