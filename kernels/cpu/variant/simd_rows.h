/* simd_rows.h -- loops over rows whose length is not a multiple of sixteen. */
#ifndef CR_SIMD_ROWS_H
#define CR_SIMD_ROWS_H

#include "kernels/cpu/variant/simd_io.h"

/* Of n elements that are left: sixteen, or those. */
CR_INLINE v16 v_get_left(cr_dtype dtype, const void *p, int64_t i, int64_t n)
{
    return n >= 16 ? v_get(dtype, p, i) : v_get_some(dtype, p, i, n);
}

CR_INLINE void v_put_left(cr_dtype dtype, void *p, int64_t i, v16 v, int64_t n)
{
    if (n >= 16)
        v_put(dtype, p, i, v);
    else
        v_put_some(dtype, p, i, v, n);
}

#endif
