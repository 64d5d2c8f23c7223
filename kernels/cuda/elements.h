/* elements.h -- elements of the act dtypes as floats, one or eight neighbours at a time. Inside kernels/cuda only.
 */
#ifndef CR_CUDA_ELEMENTS_H
#define CR_CUDA_ELEMENTS_H

#include "kernels/cuda/dev/device.h"

#include <string.h>

struct f16 {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(f16 x)
{
#ifdef __CUDACC__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31u,
             bits = x.bits & 1023u;
    if (exponent == 0) return as_float(sign | as_uint((float)bits * 0x1p-24f));
    return as_float(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | bits << 13);
#endif
}

static __device__ __forceinline__ f16 to_f16(float x)
{
#ifdef __CUDACC__
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
#else
    uint32_t u = as_uint(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        a = 0x7fff;
    else if (a >= 0x477ff000u) /* rounds to 65536 */
        a = 0x7c00;
    else if (a <
             0x38800000u) /* a multiple of 2^-24, which is the last bit of numbers from 0.5 on */
        a = as_uint(as_float(a) + 0.5f) - as_uint(0.5f);
    else
        a = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
    return f16{(uint16_t)(sign | a)};
#endif
}

template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
    return to_bf16(x);
}
template <> __device__ __forceinline__ f16 from_float<f16>(float x)
{
    return to_f16(x);
}
template <class T> static __device__ __forceinline__ float rounded(float x)
{
    return to_float(from_float<T>(x));
}

/* Eight neighbouring elements. is_wide: all rows begin at 16-byte boundaries, and elements are loaded as such; what
 * lies at `end` or after is 0, and is not stored. */
enum { PER = 8 };
template <class T> struct wide8 {
    uint4 of[sizeof(T) * PER / 16];
};

/* p[0 .. 7] of a row that begins at a 16-byte boundary. Several of these before the first of them is unpacked are
 * under way together. */
template <class T> static __device__ __forceinline__ wide8<T> load_wide(const T *p)
{
    wide8<T> wide;

#pragma unroll
    for (int i = 0; i < (int)(sizeof wide / 16); i++)
        wide.of[i] = ((const uint4 *)(const void *)p)[i];
    return wide;
}

template <class T>
static __device__ __forceinline__ void unpack(float (&f)[PER], const wide8<T> &wide)
{
    T t[PER];

    memcpy(t, wide.of, sizeof t);
#pragma unroll
    for (int i = 0; i < PER; i++)
        f[i] = to_float(t[i]);
}

template <class T>
static __device__ __forceinline__ void load8(float (&f)[PER], const T *p, int64_t at, int64_t end,
                                             bool is_wide)
{
    if (is_wide && at + PER <= end) {
        unpack(f, load_wide(p + at));
        return;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        f[i] = at + i < end ? to_float(p[at + i]) : 0.0f;
}

template <class T>
static __device__ __forceinline__ void store8(T *p, int64_t at, int64_t end, bool is_wide,
                                              const float (&f)[PER])
{
    if (is_wide && at + PER <= end) {
        uint4 wide[sizeof(T) * PER / 16];
        T t[PER];
#pragma unroll
        for (int i = 0; i < PER; i++)
            t[i] = from_float<T>(f[i]);
        memcpy(wide, t, sizeof t);
#pragma unroll
        for (int i = 0; i < (int)sizeof t / 16; i++)
            ((uint4 *)(void *)(p + at))[i] = wide[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (at + i < end) p[at + i] = from_float<T>(f[i]);
}

#endif
