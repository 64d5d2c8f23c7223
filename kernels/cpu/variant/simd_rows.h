/* simd_rows.h -- loops over rows whose length is not a multiple of V_LANES. */
#ifndef CR_SIMD_ROWS_H
#define CR_SIMD_ROWS_H

#include "kernels/cpu/variant/simd_io.h"

/* The block for each vector of n elements: from element i on, of which `left` are in it. Whole vectors are a loop
 * of their own, so that what the last ones need (arrays on the stack) is not in it. */
#define V_EACH(i, left, n, ...)                    \
    do {                                           \
        int64_t i = 0;                             \
        for (; i + V_LANES <= (n); i += V_LANES) { \
            const int64_t left = V_LANES;          \
            __VA_ARGS__                            \
        }                                          \
        if (i < (n)) {                             \
            const int64_t left = (n)-i;            \
            __VA_ARGS__                            \
        }                                          \
    } while (0)

/* Of n elements that are left: V_LANES, or those. */
CR_INLINE vf v_get_left(cr_dtype dtype, const void *p, int64_t i, int64_t n)
{
    return n >= V_LANES ? v_get(dtype, p, i) : v_get_some(dtype, p, i, n);
}

CR_INLINE void v_put_left(cr_dtype dtype, void *p, int64_t i, vf v, int64_t n)
{
    if (n >= V_LANES)
        v_put(dtype, p, i, v);
    else
        v_put_some(dtype, p, i, v, n);
}

#endif
