/* simd_lanes.h -- what moves or joins the lanes of a vector. */
#ifndef CR_SIMD_LANES_H
#define CR_SIMD_LANES_H

#include "kernels/cpu/variant/simd.h"

typedef float v4 __attribute__((vector_size(4 * sizeof(float))));
typedef float v8 __attribute__((vector_size(8 * sizeof(float))));

#if V_LANES == 16
CR_INLINE v8 v_low(vf v)
{
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
}

CR_INLINE v8 v_high(vf v)
{
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

/* A fixed tree (i and i + 8, then 4, 2, 1 apart), so that every caller adds alike. */
CR_INLINE float v_sum(vf v)
{
    v4 y;

#if V_LANES == 16
    v8 x = v_low(v) + v_high(v);
#elif V_LANES == 8
    v8 x = v;
#endif
#if V_LANES == 4
    y = v;
#else
    y = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#endif
    y = y + __builtin_shufflevector(y, y, 2, 3, 0, 1);
    return y[0] + y[1];
}

CR_INLINE float v_greatest(vf v)
{
#if V_LANES == 16
    v = v_max(v,
              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = v_max(v,
              __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = v_max(v,
              __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = v_max(v,
              __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif V_LANES == 8
    v = v_max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
    v = v_max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
    v = v_max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
    v = v_max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    v = v_max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
    return v[0];
}

/* Blocks of `step` lanes beside the diagonal of x change places. */
#define V_LIST(...) __VA_ARGS__
#define V_SWAP_BLOCKS(x, step, low, high)                               \
    for (int i = 0; i < V_LANES; i++)                                   \
        if (!(i & (step))) {                                            \
            vf a = x[i], b = x[i + (step)];                             \
            x[i] = __builtin_shufflevector(a, b, V_LIST low);           \
            x[i + (step)] = __builtin_shufflevector(a, b, V_LIST high); \
        }

/* x[i][j] and x[j][i] change places: blocks of 8, 4, 2 and 1 lanes beside the diagonal do so. */
CR_INLINE void v_transpose(vf x[V_LANES])
{
#if V_LANES == 16
    V_SWAP_BLOCKS(x, 8, (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                  (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    V_SWAP_BLOCKS(x, 4, (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                  (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    V_SWAP_BLOCKS(x, 2, (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                  (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    V_SWAP_BLOCKS(x, 1, (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                  (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif V_LANES == 8 /* the cheap shuffles are those within 16 bytes */
    V_SWAP_BLOCKS(x, 4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    V_SWAP_BLOCKS(x, 2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    V_SWAP_BLOCKS(x, 1, (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15))
#else
    V_SWAP_BLOCKS(x, 2, (0, 1, 4, 5), (2, 3, 6, 7))
    V_SWAP_BLOCKS(x, 1, (0, 4, 2, 6), (1, 5, 3, 7))
#endif
}

/* Neighbouring groups of `half` lanes change places, half below V_LANES: 4 or 8. */
CR_INLINE vf v_swapped(vf x, int64_t half)
{
#if V_LANES == 16
    if (half == 4)
        return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
#elif V_LANES == 8
    (void)half;
    return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
#else
    (void)half;
    return x;
#endif
}

typedef vf v_join(vf a, vf b);

CR_INLINE vf v_add(vf a, vf b)
{
    return a + b;
}

/* The lanes of each of eight vectors joined in v_sum's order. */
CR_INLINE void v_join_lanes(v_join *both, const vf x[8], float out[8])
{
#if V_LANES == 16
    vf a[4], b[2], c;
    v8 all;

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        a[i] = both(__builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17,
                                            18, 19, 20, 21, 22, 23),
                    __builtin_shufflevector(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15,
                                            24, 25, 26, 27, 28, 29, 30, 31));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        b[i] = both(__builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16,
                                            17, 18, 19, 24, 25, 26, 27),
                    __builtin_shufflevector(a[2 * i], a[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20,
                                            21, 22, 23, 28, 29, 30, 31));
    c = both(__builtin_shufflevector(b[0], b[1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25,
                                     28, 29),
             __builtin_shufflevector(b[0], b[1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27,
                                     30, 31));
    all = v_low(
        both(__builtin_shufflevector(c, c, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14),
             __builtin_shufflevector(c, c, 1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15)));
    memcpy(out, &all, sizeof all);
#else /* the same tree, lane by lane of transposed squares */
    for (int i = 0; i < 8; i += V_LANES) {
        vf t[V_LANES];
        for (int j = 0; j < V_LANES; j++)
            t[j] = x[i + j];
        v_transpose(t);
        for (int n = V_LANES / 2; n > 0; n /= 2)
            for (int j = 0; j < n; j++)
                t[j] = both(t[j], t[j + n]);
        v_store(out + i, t[0]);
    }
#endif
}

#endif
