/* device.c -- the cpu device: memory, and the choice of the instruction set.
 *
 * Variants of the same code, of which CROLL_CPU=NAME forces one (tests compare them): on x86-64 the
 * baseline, AVX2 + FMA, AVX-512, AVX-512 with bfloat16 products and AMX; on aarch64 NEON, and NEON with
 * bfloat16 products.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu_variants.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

/* A CPU that has one of these has all before it. */
typedef struct variant {
    const char *name;
    const cr_kernels *kernels;
    bool (*has)(void);
    /* CPUs have it, but a process has to ask for it: 0, or errno, with what it needs. NULL: no need to ask */
    int (*ask)(void);
    const char *needs;
} variant;

static bool has_always(void)
{
    return true;
}

#if defined(CR_FLOAT64)
extern const cr_kernels cri_cpu_kernels_base;

static const variant variants[] = {{"x86_64", &cri_cpu_kernels_base, has_always, NULL, NULL}};
#elif defined(__x86_64__)
extern const cr_kernels cri_cpu_kernels_base, cri_cpu_kernels_avx2, cri_cpu_kernels_avx512,
    cri_cpu_kernels_avx512bf16, cri_cpu_kernels_amx;

/* clang 14 does not know "f16c" in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512bf16(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

static bool has_amx(void)
{
    unsigned a, b, c, d, tile_and_bf16 = 1u << 24 | 1u << 22;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile_and_bf16) == tile_and_bf16;
}

/* Tiles are 8 KB of a thread's registers, and Linux (since 5.16) gives them to processes that ask. */
static int ask_for_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? 0 : errno;
}

static const variant variants[] = {
    {"x86_64", &cri_cpu_kernels_base, has_always, NULL, NULL},
    {"avx2", &cri_cpu_kernels_avx2, has_avx2, NULL, NULL},
    {"avx512", &cri_cpu_kernels_avx512, has_avx512, NULL, NULL},
    {"avx512bf16", &cri_cpu_kernels_avx512bf16, has_avx512bf16, NULL, NULL},
    {"amx", &cri_cpu_kernels_amx, has_amx, ask_for_tiles, "Linux 5.16 or later for its tiles"}};
#elif defined(__aarch64__)
extern const cr_kernels cri_cpu_kernels_neon, cri_cpu_kernels_neonbf16;

static bool has_bf16(void)
{
    enum { BF16 = 1 << 14 }; /* HWCAP2_BF16 */

    return getauxval(AT_HWCAP2) & BF16;
}

static const variant variants[] = {{"neon", &cri_cpu_kernels_neon, has_always, NULL, NULL},
                                   {"neonbf16", &cri_cpu_kernels_neonbf16, has_bf16, NULL, NULL}};
#else
#error "device cpu: x86-64 and aarch64"
#endif

const char *cri_cpu_variant(size_t i)
{
    return i < CR_COUNT(variants) ? variants[i].name : NULL;
}

/* Index of the widest one that this CPU has. *denied: errno of the kernel that does not give the one after it, or 0. */
static size_t find_best(int *denied)
{
    size_t best = 0;

    *denied = 0;
    while (best + 1 < CR_COUNT(variants) && variants[best + 1].has()) {
        if (variants[best + 1].ask && (*denied = variants[best + 1].ask()) != 0) break;
        best++;
    }
    return best;
}

/* What CROLL_CPU names; CR_COUNT(variants): an unknown name. */
static size_t find_wanted(size_t best)
{
    const char *wanted = getenv("CROLL_CPU");
    size_t i = 0;

    if (!wanted || !wanted[0]) return best;
    while (i < CR_COUNT(variants) && strcmp(variants[i].name, wanted) != 0)
        i++;
    return i;
}

cr_status cri_cpu_open(cr_device *dev, cr_err *err)
{
    int denied;
    size_t best = find_best(&denied), wanted = find_wanted(best);
    char known[120] = "";

    if (denied && wanted == best + 1)
        return cr_fail(err, CR_EABSENT,
                       "CROLL_CPU=%s: the CPU has it, but the kernel does not give it to this "
                       "process (%s); it needs %s",
                       variants[wanted].name, strerror(denied), variants[wanted].needs);
    for (size_t i = 0; i < CR_COUNT(variants); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 variants[i].name);
    if (wanted > best)
        return cr_fail(err, CR_EABSENT,
                       "CROLL_CPU=%s is not one of %s, or this CPU, which has up to %s, lacks it",
                       getenv("CROLL_CPU"), known, variants[best].name);
    dev->kernels = variants[wanted].kernels;
    dev->variant = variants[wanted].name;
    dev->impl = CR_NEW(cri_cpu);
    return CR_OK;
}

const char *cr_cpu_variant_here(size_t i)
{
    int denied;
    size_t best = find_best(&denied), wanted = find_wanted(best);

    return i <= best && i <= wanted ? variants[i].name : NULL;
}

const cr_kernels *cri_cpu_best(void)
{
    static _Thread_local size_t best; /* 1 more than the index; 0: not looked for yet */
    size_t wanted;
    int denied;

    if (!best) best = find_best(&denied) + 1;
    wanted = find_wanted(best - 1);
    return variants[wanted < best ? wanted : best - 1].kernels;
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
