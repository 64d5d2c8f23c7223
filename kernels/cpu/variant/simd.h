/* simd.h -- V_LANES floats at a time, which are one register of the variant: arithmetic (simd_lanes.h: across the
 * lanes of a vector; simd_io.h: memory).
 *
 * The files of this folder are compiled once for each instruction set (CR_VARIANT names it); the device chooses at run
 * time. A loop goes in steps of V_LANES; what is a number of elements for another reason (keys of a tile, words of a
 * group) has a name of its own. A variant's results do not depend on how a loop was cut; other widths add in other orders.
 */
#ifndef CR_SIMD_H
#define CR_SIMD_H

#include "kernels/cpu/cpu.h"

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define V_NEON_BF16 1
#endif
/* Is the sum of two products of bfloat16 one instruction? */
#if defined(__AVX512BF16__) || defined(V_NEON_BF16)
#define V_HAS_PAIRS 1
#else
#define V_HAS_PAIRS 0
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

#if defined(__AVX512F__)
#define V_LANES     16
#define V_REGISTERS 32
#elif defined(__AVX2__)
#define V_LANES     8
#define V_REGISTERS 16
#elif defined(__aarch64__)
#define V_LANES     4
#define V_REGISTERS 32
#else
#define V_LANES     4
#define V_REGISTERS 16
#endif

#if defined(CR_FLOAT64)
typedef int64_t float_int;
typedef uint64_t float_bits;
#else
typedef int32_t float_int; /* as wide as a float */
typedef uint32_t float_bits;
#endif
typedef float vf __attribute__((vector_size(sizeof(float) * V_LANES)));
typedef float_int vi __attribute__((vector_size(sizeof(float) * V_LANES)));
typedef float_bits vu __attribute__((vector_size(sizeof(float) * V_LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * V_LANES)));

CR_INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

CR_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

CR_INLINE vf v_set(float x)
{
#if V_LANES == 16
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif V_LANES == 8
    return (vf){x, x, x, x, x, x, x, x};
#else
    return (vf){x, x, x, x};
#endif
}

CR_INLINE vf v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

CR_INLINE vf v_select(vi mask, vf a, vf b)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
#endif
}

/* a > b ? a : b, and so b if one is not a number. */
CR_INLINE vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v_select(a > b, a, b);
#endif
}

/* gcc makes several instructions of the conversion. */
CR_INLINE vu v_widened(vh h)
{
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
#elif defined(__aarch64__)
    return (vu)vmovl_u16((uint16x4_t)h);
#else
    return __builtin_convertvector(h, vu);
#endif
}

/* Numbers below 2^16. */
CR_INLINE vh v_narrowed(vu u)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    __m256i x = (__m256i)u; /* the halves of the register are packed apart */
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
#elif defined(__aarch64__)
    return (vh)vmovn_u32((uint32x4_t)u);
#else
    return __builtin_convertvector(u, vh);
#endif
}

CR_INLINE vi v_lanes(void)
{
#if V_LANES == 16
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif V_LANES == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
#define V_ALL(x)               \
    {                          \
        x, x, x, x, x, x, x, x \
    }
/* Constants in memory, which are operands of instructions: 16 registers do not hold them beside the sums of a loop, and
 * gcc would keep copies of them on the stack. It does not see that they are the same for every x. */
#define V_CONSTANTS(x, name, ...)                    \
    static const vf name##_values[] = {__VA_ARGS__}; \
    const vf *name = name##_values;                  \
    __asm__("" : "+r"(name) : "x"(x))
#else
#define V_ALL(x)                  v_set(x)
#define V_CONSTANTS(x, name, ...) const vf name[] = {__VA_ARGS__}
#endif

#endif
