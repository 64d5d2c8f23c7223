/* simd_exp.h -- powers of e and of 2, lane by lane. */
#ifndef CR_SIMD_EXP_H
#define CR_SIMD_EXP_H

#include "kernels/cpu/variant/simd.h"

#include <math.h>

/* exp, relative error below 2e-7 in [-87, 88]; 0 below -87.3; NaN stays. (Cephes' polynomial.) */
CR_INLINE vf v_exp(vf x)
{
#if defined(CR_FLOAT64)
    for (int i = 0; i < V_LANES; i++)
        x[i] = exp(x[i]);
    return x;
#else
    V_CONSTANTS(x, c, V_ALL(-87.33654f), V_ALL(88.3762626f), V_ALL(1.44269504088896341f),
                V_ALL(12582912.0f), V_ALL(-0.693359375f), V_ALL(2.12194440e-4f),
                V_ALL(1.9875691500e-4f), V_ALL(1.3981999507e-3f), V_ALL(8.3334519073e-3f),
                V_ALL(4.1665795894e-2f), V_ALL(1.6666665459e-1f), V_ALL(5.0000001201e-1f),
                V_ALL(1.0f));
    const vf min = c[0], max = c[1];
    vi is_low = x < min;
    vf n, r, y;
    x = v_max(min, x);
    x = v_select(x > max, max, x);
    n = v_fma(x, c[2], c[3]) - c[3];
    r = v_fma(n, c[4], x);
    r = v_fma(n, c[5], r);
    y = c[6];
    y = v_fma(y, r, c[7]);
    y = v_fma(y, r, c[8]);
    y = v_fma(y, r, c[9]);
    y = v_fma(y, r, c[10]);
    y = v_fma(y, r, c[11]);
    y = v_fma(y, r * r, r) + c[12];
    vi exponent =
        (__builtin_convertvector(n, vi) << 23) + (vi)c[12]; /* 127 << 23 are the bits of 1 */
    y = y * (vf)exponent;
    return v_select(is_low, v_set(0.0f), y);
#endif
}

/* 2^x for x <= 0, relative error below 2e-7; 0 from -127 down; NaN stays. */
CR_INLINE vf exp2_below(vf x)
{
#if defined(CR_FLOAT64)
    for (int i = 0; i < V_LANES; i++)
        x[i] = exp2(x[i]);
    return x;
#else
    V_CONSTANTS(x, c, V_ALL(12582912.0f + 127.0f), V_ALL(0x1.5bba14p-10f), V_ALL(-127.0f),
                V_ALL(0x1.3cea88p-7f), V_ALL(0x1.c6b752p-5f), V_ALL(0x1.ebf9bcp-3f),
                V_ALL(0x1.62e42ap-1f), V_ALL(1.0f));
    const vf magic = c[0]; /* 1.5 2^23: the sum's last bits are x + 127 */
    vf y = c[1], biased;

    x = v_max(c[2], x);
    biased = x + magic;
    x = x - (biased - magic);
    y = v_fma(y, x, c[3]);
    y = v_fma(y, x, c[4]);
    y = v_fma(y, x, c[5]);
    y = v_fma(y, x, c[6]);
    y = v_fma(y, x, c[7]);
    return y * (vf)((vi)biased << 23);
#endif
}

#endif
