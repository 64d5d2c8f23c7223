/* dropout.h -- which elements of a row are dropped: a pure function, the same on every device. C11 and C++17. */
#ifndef CR_KERNELS_DROPOUT_H
#define CR_KERNELS_DROPOUT_H

#include "kernels/memory.h"

#ifdef __CUDACC__
#define CRI_ON_BOTH __host__ __device__
#else
#define CRI_ON_BOTH
#endif

/* Every bit of x has a part in every bit of what comes out (multiply and shift, by the constants of "lowbias32"). */
static inline CRI_ON_BOTH uint32_t cr_dropout_mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Is element `col` of a row kept? threshold: rate 2^32; 0 keeps all. */
static inline CRI_ON_BOTH bool cr_dropout_keeps(uint64_t row_key, uint64_t module_key, uint32_t col,
                                                uint32_t threshold)
{
    uint64_t key = row_key ^ module_key;

    return cr_dropout_mix(cr_dropout_mix(col + (uint32_t)key) ^ (uint32_t)(key >> 32)) >= threshold;
}

/* y[r, c] = add[r, c] + x[r, c] / (1 - rate) where cr_dropout_keeps(keys[r], module_key, c), else add[r, c]. add NULL: zeros.
 * y may be x or add. */
typedef struct cr_rows_drop_args {
    cr_dtype dtype;
    const cr_mem *x, *add;
    const cr_mem *keys; /* [num_rows] uint64 */
    uint64_t module_key;
    double rate; /* at least 0, below 1 */
    int64_t num_rows, num_cols;
    cr_mem *y;
} cr_rows_drop_args;

static inline uint32_t cr_dropout_threshold(double rate)
{
    return (uint32_t)(rate * 4294967296.0);
}

#endif
