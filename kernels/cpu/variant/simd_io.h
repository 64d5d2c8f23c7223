/* simd_io.h -- sixteen elements of an array in float32, bfloat16 or float16, read and written as a v16. */
#ifndef CR_SIMD_IO_H
#define CR_SIMD_IO_H

#include "kernels/cpu/variant/simd.h"

/* ---- bfloat16 ---- */

CR_INLINE float bf16_get(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Round to nearest even; NaN stays a NaN. */
CR_INLINE uint16_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

CR_INLINE v16 v_load_bf16(const uint16_t *p)
{
    u16x16 h;
    memcpy(&h, p, sizeof h);
    return (v16)(v_widened(h) << 16);
}

CR_INLINE void v_store_bf16(uint16_t *p, v16 v)
{
#if defined(__AVX512BF16__) /* denormals become 0, as they do in products of pairs */
    __m256bh b = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &b, sizeof b);
#else
    u16x32 u = (u16x32)v, rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    u16x32 is_nan = (u16x32)((u & 0x7FFFFFFFu) > 0x7F800000u);
    u16x16 h = __builtin_convertvector((is_nan & (u >> 16 | 0x40)) | (~is_nan & rounded), u16x16);
    memcpy(p, &h, sizeof h);
#endif
}

/* ---- float16 ---- */

CR_INLINE float f16_get(uint16_t h)
{
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7FFF) << 13, u;
    float x;
    if (rest >= 0x7C00u << 13) {
        u = sign | 0x7F800000u | (rest & 0x7FFFFF) | (rest & 0x7FFFFF ? 0x400000u : 0);
    } else { /* 2^112 brings the exponent's bias from 15 to 127, of denormals, too */
        memcpy(&x, &rest, 4);
        x *= 0x1p112f;
        memcpy(&u, &x, 4);
        u |= sign;
    }
    memcpy(&x, &u, 4);
    return x;
#endif
}

/* Round to nearest even, past 65519 to infinity; NaN stays a NaN. */
CR_INLINE uint16_t f16_of(float x)
{
#if defined(__F16C__)
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t u, sign, h;
    memcpy(&u, &x, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7FFFFFFF;
    if (u > 0x7F800000u) {
        h = 0x7E00 | (u >> 13 & 0x3FF);
    } else if (u >= 0x477FF000u) {
        h = 0x7C00;
    } else if (u < 0x38800000u) { /* denormal: the sum rounds at its last bit */
        float f;
        memcpy(&f, &u, 4);
        f += 0.5f;
        memcpy(&h, &f, 4);
        h -= 0x3F000000u;
    } else {
        u += 0xFFFu + (u >> 13 & 1);
        h = (u - 0x38000000u) >> 13;
    }
    return (uint16_t)(sign | h);
#endif
}

CR_INLINE v16 v_load_f16(const uint16_t *p)
{
#if defined(__AVX512F__)
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#else
    float x[16];
    for (int i = 0; i < 16; i++)
        x[i] = f16_get(p[i]);
    return v_load(x);
#endif
}

CR_INLINE void v_store_f16(uint16_t *p, v16 v)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < 16; i++)
        p[i] = f16_of(v[i]);
#endif
}

/* ---- either ---- */

CR_INLINE float e_get(cr_dtype dtype, const void *p, int64_t i)
{
    return dtype == CR_BF16  ? bf16_get(((const uint16_t *)p)[i])
           : dtype == CR_F16 ? f16_get(((const uint16_t *)p)[i])
                             : ((const float *)p)[i];
}

CR_INLINE void e_put(cr_dtype dtype, void *p, int64_t i, float x)
{
    if (dtype == CR_BF16)
        ((uint16_t *)p)[i] = bf16_of(x);
    else if (dtype == CR_F16)
        ((uint16_t *)p)[i] = f16_of(x);
    else
        ((float *)p)[i] = x;
}

/* Element i of an array; whole groups of sixteen. */
CR_INLINE v16 v_get(cr_dtype dtype, const void *p, int64_t i)
{
    return dtype == CR_BF16  ? v_load_bf16((const uint16_t *)p + i)
           : dtype == CR_F16 ? v_load_f16((const uint16_t *)p + i)
                             : v_load((const float *)p + i);
}

CR_INLINE void v_put(cr_dtype dtype, void *p, int64_t i, v16 v)
{
    if (dtype == CR_BF16)
        v_store_bf16((uint16_t *)p + i, v);
    else if (dtype == CR_F16)
        v_store_f16((uint16_t *)p + i, v);
    else
        v_store((float *)p + i, v);
}

/* As if it had been stored and read. */
CR_INLINE v16 v_rounded(cr_dtype dtype, v16 x)
{
    uint16_t h[16];

    if (dtype == CR_BF16) {
        v_store_bf16(h, x);
        return v_load_bf16(h);
    }
    if (dtype == CR_F16) {
        v_store_f16(h, x);
        return v_load_f16(h);
    }
    return x;
}

/* The last n < 16 elements; the rest of the vector is zero. */
CR_INLINE v16 v_get_some(cr_dtype dtype, const void *p, int64_t i, int64_t n)
{
    float x[16] = {0};
#if defined(__AVX512F__)
    if (dtype == CR_F32)
        return (v16)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), (const float *)p + i);
#endif
    for (int64_t k = 0; k < n; k++)
        x[k] = e_get(dtype, p, i + k);
    return v_load(x);
}

CR_INLINE void v_put_some(cr_dtype dtype, void *p, int64_t i, v16 v, int64_t n)
{
    float x[16];
#if defined(__AVX512F__)
    if (dtype == CR_F32) {
        _mm512_mask_storeu_ps((float *)p + i, (__mmask16)((1u << n) - 1), (__m512)v);
        return;
    }
#endif
    v_store(x, v);
    for (int64_t k = 0; k < n; k++)
        e_put(dtype, p, i + k, x[k]);
}

#endif
