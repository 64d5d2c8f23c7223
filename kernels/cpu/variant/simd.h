/* simd.h -- sixteen floats at a time, on whatever the variant's compiler flags allow.
 *
 * The files of this folder are compiled once for each instruction set (CR_VARIANT names it); the
 * device chooses at run time. One v16 is a zmm register, two ymm or four xmm: the same operations
 * in the same order, so a variant's results do not depend on how a loop was cut.
 */
#ifndef CR_SIMD_H
#define CR_SIMD_H

#include "kernels/cpu/cpu.h"

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define CR_PASTE2(a, b) a##_##b
#define CR_PASTE(a, b)  CR_PASTE2(a, b)
#define CR_V(name)      CR_PASTE(cri_##name, CR_VARIANT)
#define CR_INLINE       static inline __attribute__((always_inline))

/* fn(dtype, ..) with the dtype as a constant. */
#define CR_BY_DTYPE(dtype, fn, ...)                 \
    ((dtype) == CR_BF16  ? fn(CR_BF16, __VA_ARGS__) \
     : (dtype) == CR_F16 ? fn(CR_F16, __VA_ARGS__)  \
                         : fn(CR_F32, __VA_ARGS__))

typedef float v16 __attribute__((vector_size(64)));
typedef double v8d __attribute__((vector_size(64)));
typedef int32_t i16x32 __attribute__((vector_size(64)));
typedef uint32_t u16x32 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

CR_INLINE v16 v_load(const float *p)
{
    v16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

CR_INLINE void v_store(float *p, v16 v)
{
    memcpy(p, &v, sizeof v);
}

CR_INLINE v16 v_set(float x)
{
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* p[0], p[1], p[0], ... */
CR_INLINE v16 v_set2(const float *p)
{
    double x;
    memcpy(&x, p, sizeof x);
    return (v16)(v8d){x, x, x, x, x, x, x, x};
}

CR_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
#if defined(__AVX512F__)
    return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c; /* contracted where the variant has FMA: its flags say so */
#endif
}

CR_INLINE v16 v_select(i16x32 mask, v16 a, v16 b)
{
    return (v16)((mask & (i16x32)a) | (~mask & (i16x32)b));
}

/* a > b ? a : b, and so b if one is not a number. */
CR_INLINE v16 v_max(v16 a, v16 b)
{
#if defined(__AVX512F__)
    return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return v_select(a > b, a, b);
#endif
}

/* gcc makes four instructions of the conversion. */
CR_INLINE u16x32 v_widened(u16x16 h)
{
#if defined(__AVX512F__)
    return (u16x32)_mm512_cvtepu16_epi32((__m256i)h);
#else
    return __builtin_convertvector(h, u16x32);
#endif
}

CR_INLINE i16x32 v_lanes(void)
{
    return (i16x32){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

CR_INLINE v8 v_low(v16 v)
{
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
}

CR_INLINE v8 v_high(v16 v)
{
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* A fixed tree (i and i + 8, then 4, 2, 1 apart), so that every variant and every caller adds alike. */
CR_INLINE float v_sum(v16 v)
{
    v8 x = v_low(v) + v_high(v);
    v4 y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);

    y = y + __builtin_shufflevector(y, y, 2, 3, 0, 1);
    return y[0] + y[1];
}

CR_INLINE float v_greatest(v16 v)
{
    v = v_max(v,
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = v_max(v,
              __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = v_max(v,
              __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = v_max(v,
              __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return v[0];
}

#if defined(__AVX512F__)
/* x[i][j] and x[j][i] change places: blocks of 8, 4, 2 and 1 lanes beside the diagonal do so. */
CR_INLINE void v_transpose(v16 x[16])
{
#define LIST(...) __VA_ARGS__
#define SWAP_BLOCKS(step, low, high)                                  \
    for (int i = 0; i < 16; i++)                                      \
        if (!(i & (step))) {                                          \
            v16 a = x[i], b = x[i + (step)];                          \
            x[i] = __builtin_shufflevector(a, b, LIST low);           \
            x[i + (step)] = __builtin_shufflevector(a, b, LIST high); \
        }
    SWAP_BLOCKS(8, (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    SWAP_BLOCKS(4, (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    SWAP_BLOCKS(2, (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    SWAP_BLOCKS(1, (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef SWAP_BLOCKS
#undef LIST
}
#endif

/* exp, relative error below 2e-7 in [-87, 88]; 0 below -87.3; NaN stays. (Cephes' polynomial.) */
CR_INLINE v16 v_exp(v16 x)
{
    const v16 least = v_set(-87.33654f), most = v_set(88.3762626f);
    i16x32 is_low = x < least;
    v16 n, r, y;
    x = v_max(least, x);
    x = v_select(x > most, most, x);
    n = v_fma(x, v_set(1.44269504088896341f), v_set(12582912.0f)) - v_set(12582912.0f);
    r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    y = v_set(1.9875691500e-4f);
    y = v_fma(y, r, v_set(1.3981999507e-3f));
    y = v_fma(y, r, v_set(8.3334519073e-3f));
    y = v_fma(y, r, v_set(4.1665795894e-2f));
    y = v_fma(y, r, v_set(1.6666665459e-1f));
    y = v_fma(y, r, v_set(5.0000001201e-1f));
    y = v_fma(y, r * r, r) + v_set(1.0f);
    i16x32 exponent = (__builtin_convertvector(n, i16x32) + 127) << 23;
    y = y * (v16)exponent;
    return v_select(is_low, v_set(0.0f), y);
}

#endif
