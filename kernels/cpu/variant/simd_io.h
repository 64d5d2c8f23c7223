/* simd_io.h -- sixteen elements of an array in float32 or bfloat16, read and written as a v16. */
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
    return (v16)(__builtin_convertvector(h, u16x32) << 16);
}

CR_INLINE void v_store_bf16(uint16_t *p, v16 v)
{
    u16x32 u = (u16x32)v, rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    u16x32 is_nan = (u16x32)((u & 0x7FFFFFFFu) > 0x7F800000u);
    u16x16 h = __builtin_convertvector((is_nan & (u >> 16 | 0x40)) | (~is_nan & rounded), u16x16);
    memcpy(p, &h, sizeof h);
}

/* Element i of an array of either dtype; whole groups of sixteen. */
CR_INLINE v16 v_get(cr_dtype dtype, const void *p, int64_t i)
{
    return dtype == CR_BF16 ? v_load_bf16((const uint16_t *)p + i) : v_load((const float *)p + i);
}

CR_INLINE void v_put(cr_dtype dtype, void *p, int64_t i, v16 v)
{
    if (dtype == CR_BF16)
        v_store_bf16((uint16_t *)p + i, v);
    else
        v_store((float *)p + i, v);
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
        x[k] =
            dtype == CR_BF16 ? bf16_get(((const uint16_t *)p)[i + k]) : ((const float *)p)[i + k];
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
        if (dtype == CR_BF16)
            ((uint16_t *)p)[i + k] = bf16_of(x[k]);
        else
            ((float *)p)[i + k] = x[k];
}

#endif
