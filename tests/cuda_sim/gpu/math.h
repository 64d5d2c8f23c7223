/* math.h -- arithmetic that CUDA names and C does not; part of sim.h. Last bits differ from a GPU's. */
#ifndef CR_SIM_MATH_H
#define CR_SIM_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __expf expf
#define __logf logf

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
/* Rounded once, whatever the compiler contracts. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

#endif
