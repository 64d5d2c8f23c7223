/* simd_io.h -- V_LANES elements of an array in float32, bfloat16 or float16, read and written as a vf. */
#ifndef CR_SIMD_IO_H
#define CR_SIMD_IO_H

#include "kernels/cpu/variant/scalar_io.h"
#include "kernels/cpu/variant/simd_lanes.h"

/* ---- bfloat16 ---- */

CR_INLINE vf v_load_bf16(const uint16_t *p)
{
#if defined(CR_FLOAT64)
    vf v;
    for (int i = 0; i < V_LANES; i++)
        v[i] = bf16_get(p[i]);
    return v;
#else
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(v_widened(h) << 16);
#endif
}

CR_INLINE void v_store_bf16(uint16_t *p, vf v)
{
#if defined(__AVX512BF16__) /* denormals become 0, as they do in products of pairs */
    __m256bh b = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &b, sizeof b);
#elif defined(V_NEON_BF16)
    vst1_bf16((bfloat16_t *)p, vcvt_bf16_f32((float32x4_t)v));
#elif defined(CR_FLOAT64)
    for (int i = 0; i < V_LANES; i++)
        p[i] = bf16_of((cr_float32)v[i]);
#else
    vu u = (vu)v, rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    vu is_nan = (vu)(v != v);
    vh h = v_narrowed((is_nan & (u >> 16 | 0x40)) | (~is_nan & rounded));
    memcpy(p, &h, sizeof h);
#endif
}

/* ---- float16 ---- */

CR_INLINE vf v_load_f16(const uint16_t *p)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    float x[V_LANES];
    for (int i = 0; i < V_LANES; i++)
        x[i] = f16_get(p[i]);
    return v_load(x);
#endif
}

CR_INLINE void v_store_f16(uint16_t *p, vf v)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
    for (int i = 0; i < V_LANES; i++)
        p[i] = f16_of(v[i]);
#endif
}

/* ---- either ---- */

/* V_LANES elements from element i on. */
CR_INLINE vf v_get(cr_dtype dtype, const void *p, int64_t i)
{
    return dtype == CR_BF16  ? v_load_bf16((const uint16_t *)p + i)
           : dtype == CR_F16 ? v_load_f16((const uint16_t *)p + i)
                             : v_load((const float *)p + i);
}

CR_INLINE void v_put(cr_dtype dtype, void *p, int64_t i, vf v)
{
    if (dtype == CR_BF16)
        v_store_bf16((uint16_t *)p + i, v);
    else if (dtype == CR_F16)
        v_store_f16((uint16_t *)p + i, v);
    else
        v_store((float *)p + i, v);
}

/* As if it had been stored and read. */
CR_INLINE vf v_rounded(cr_dtype dtype, vf x)
{
    uint16_t h[V_LANES];

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

/* The last n < V_LANES elements; the rest of the vector is zero. */
CR_INLINE vf v_get_some(cr_dtype dtype, const void *p, int64_t i, int64_t n)
{
    float x[V_LANES] = {0};
#if defined(__AVX512F__)
    if (dtype == CR_F32)
        return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), (const float *)p + i);
#elif defined(__AVX2__)
    if (dtype == CR_F32)
        return (vf)_mm256_maskload_ps((const float *)p + i, (__m256i)(v_lanes() < (int32_t)n));
#endif
    for (int64_t k = 0; k < n; k++)
        x[k] = e_get(dtype, p, i + k);
    return v_load(x);
}

CR_INLINE void v_put_some(cr_dtype dtype, void *p, int64_t i, vf v, int64_t n)
{
    float x[V_LANES];
#if defined(__AVX512F__)
    if (dtype == CR_F32) {
        _mm512_mask_storeu_ps((float *)p + i, (__mmask16)((1u << n) - 1), (__m512)v);
        return;
    }
#elif defined(__AVX2__)
    if (dtype == CR_F32) {
        _mm256_maskstore_ps((float *)p + i, (__m256i)(v_lanes() < (int32_t)n), (__m256)v);
        return;
    }
#endif
    v_store(x, v);
    for (int64_t k = 0; k < n; k++)
        e_put(dtype, p, i + k, x[k]);
}

#endif
