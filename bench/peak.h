/* peak.h -- the multiply-adds that one core makes a second out of its registers, with an instruction set of device cpu: what
 * no product of that variant can exceed.
 *
 * A loop of independent sums, with the instruction that the variant's products are made of (kernels/cpu/variant/gemm.c): avx2
 * and avx512 widen bfloat16 and multiply float32.
 */
#ifndef CR_BENCH_PEAK_H
#define CR_BENCH_PEAK_H

#include "bench/lab.h"

/* turns x num multiply-adds of vectors of `bytes`; the numbers are 0, which take as long as others. */
#define PEAK(name, isa, bytes, reg, num, instructions)                                 \
    static __attribute__((noinline, target(isa))) void peak_##name(int64_t turns)      \
    {                                                                                  \
        typedef float vector __attribute__((vector_size(bytes)));                      \
        vector a = {0}, b = {0}, free = {0}, acc[num] = {{0}};                         \
        for (; turns > 0; turns--)                                                     \
            _Pragma("GCC unroll 24") for (int i = 0; i < (num); i++) __asm__ volatile( \
                instructions : "+" reg(acc[i]), "+" reg(free) : reg(a), reg(b));       \
    }

/* What the products of a variant are made of, and the FLOPs of a turn. */
typedef struct peak {
    const char *variant;
    cr_dtype dtype;
    void (*run)(int64_t turns);
    int flops;
} peak;

#if defined(__x86_64__)
PEAK(x86_64, "sse2", 16, "x", 8, "movaps %2, %1\n\tmulps %3, %1\n\taddps %1, %0")
PEAK(avx2, "avx2,fma", 32, "x", 12, "vfmadd231ps %2, %3, %0")
PEAK(avx512, "avx512f", 64, "v", 24, "vfmadd231ps %2, %3, %0")
PEAK(pairs, "avx512f,avx512bf16", 64, "v", 24, "vdpbf16ps %2, %3, %0")
static const peak peaks[] = {{"x86_64", CR_F32, peak_x86_64, 8 * 4 * 2},
                             {"x86_64", CR_BF16, peak_x86_64, 8 * 4 * 2},
                             {"avx2", CR_F32, peak_avx2, 12 * 8 * 2},
                             {"avx2", CR_BF16, peak_avx2, 12 * 8 * 2},
                             {"avx512", CR_F32, peak_avx512, 24 * 16 * 2},
                             {"avx512", CR_BF16, peak_avx512, 24 * 16 * 2},
                             {"avx512bf16", CR_F32, peak_avx512, 24 * 16 * 2},
                             {"avx512bf16", CR_BF16, peak_pairs, 24 * 16 * 4},
                             {"amx", CR_F32, peak_avx512, 24 * 16 * 2}};
#elif defined(__aarch64__)
PEAK(neon, "+simd", 16, "w", 24, "fmla %0.4s, %2.4s, %3.4s")
static const peak peaks[] = {{"neon", CR_F32, peak_neon, 24 * 4 * 2},
                             {"neon", CR_BF16, peak_neon, 24 * 4 * 2},
                             {"neonbf16", CR_F32, peak_neon, 24 * 4 * 2}};
#else
static const peak peaks[] = {{"none", CR_F32, NULL, 0}};
#endif

/* GFLOP/s of one core, the median of runs of about a millisecond, so that the clock is what products beside it have. 0: not
 * known here (tiles of AMX, pairs of NEON, a GPU). */
static inline double peak_gflops(const lab *l, cr_dtype dtype)
{
    enum { TURNS = 100000, REPEATS = 9 };
    const lab one = {.dev = l->dev, .threads = 1};
    double rates[REPEATS], start;

    for (size_t i = 0; i < CR_COUNT(peaks); i++) {
        const peak *p = &peaks[i];
        if (strcmp(p->variant, cr_device_variant(l->dev)) != 0 || p->dtype != dtype) continue;
        for (int r = 0; r < REPEATS; r++) {
            start = lab_seconds(&one);
            p->run(TURNS);
            rates[r] = 1e-9 * TURNS * p->flops / (lab_seconds(&one) - start);
        }
        qsort(rates, REPEATS, sizeof *rates, cr_by_double);
        return rates[REPEATS / 2];
    }
    return 0;
}

#endif
