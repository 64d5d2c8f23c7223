/* scalar_io.h -- one bfloat16 or float16, and one element of an array. */
#ifndef CR_SCALAR_IO_H
#define CR_SCALAR_IO_H

#include "kernels/cpu/variant/simd.h"

CR_INLINE float bf16_get(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    cr_float32 x;
    memcpy(&x, &u, 4);
    return x;
}

/* Round to nearest even; NaN stays a NaN. */
CR_INLINE uint16_t bf16_of(cr_float32 x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

CR_INLINE float f16_get(uint16_t h)
{
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    __fp16 x;
    memcpy(&x, &h, 2);
    return x;
#else
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7FFF) << 13, u;
    cr_float32 x;
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
CR_INLINE uint16_t f16_of(cr_float32 x)
{
#if defined(__F16C__)
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
    __fp16 y = (__fp16)x;
    uint16_t h;
    memcpy(&h, &y, 2);
    return h;
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
        cr_float32 f;
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

#endif
