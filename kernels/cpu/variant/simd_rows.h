/* simd_rows.h -- loops over rows whose length is not a multiple of V_LANES. */
#ifndef CR_SIMD_ROWS_H
#define CR_SIMD_ROWS_H

#include "kernels/cpu/variant/simd_io.h"

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
