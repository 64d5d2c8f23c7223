/* columns.h -- sums over the rows of a matrix, for each column: of stretches of 256 rows, then of the stretches, both in
 * ascending order. A stretch does not depend on how many rows there are.
 */
#ifndef CR_CUDA_COLUMNS_H
#define CR_CUDA_COLUMNS_H

#include "kernels/cuda/op.h"

enum { COLUMN_STRETCH = 256, COLUMN_WIDTH = 128 };

static inline int64_t num_stretches(int64_t num_rows)
{
    return (num_rows + COLUMN_STRETCH - 1) / COLUMN_STRETCH;
}

template <class T, class S>
static __global__ void __launch_bounds__(COLUMN_WIDTH)
    sum_stretches(const T *x, int64_t num_rows, int64_t num_cols, S *parts)
{
    int64_t c = (int64_t)blockIdx.y * COLUMN_WIDTH + threadIdx.x,
            begin = (int64_t)blockIdx.x * COLUMN_STRETCH,
            end = begin + COLUMN_STRETCH < num_rows ? begin + COLUMN_STRETCH : num_rows;
    S sum = 0;

    if (c >= num_cols) return;
    for (int64_t r = begin; r < end; r++)
        sum += (S)to_float(x[r * num_cols + c]);
    parts[blockIdx.x * num_cols + c] = sum;
}

template <class S>
static __global__ void __launch_bounds__(COLUMN_WIDTH)
    add_stretches(const S *parts, int64_t num_parts, int64_t num_cols, S *out, bool should_add)
{
    int64_t c = (int64_t)blockIdx.x * COLUMN_WIDTH + threadIdx.x;
    S sum = 0;

    if (c >= num_cols) return;
    for (int64_t p = 0; p < num_parts; p++)
        sum += parts[p * num_cols + c];
    out[c] = should_add ? out[c] + sum : sum;
}

/* out[num_cols] = the sums in S, or += them. parts: scratch [num_stretches(num_rows)][num_cols]. */
template <class T, class S>
static cudaError_t sum_columns(const T *x, int64_t num_rows, int64_t num_cols, S *parts, S *out,
                               bool should_add, cudaStream_t stream)
{
    int64_t num_parts = num_stretches(num_rows),
            width = (num_cols + COLUMN_WIDTH - 1) / COLUMN_WIDTH;
    auto sum = sum_stretches<T, S>;
    auto add = add_stretches<S>;
    cudaError_t code = CUDA_LAUNCH(sum, dim3((unsigned)num_parts, (unsigned)width),
                                   dim3(COLUMN_WIDTH), 0, stream, x, num_rows, num_cols, parts);

    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(add, dim3((unsigned)width), dim3(COLUMN_WIDTH), 0, stream, (const S *)parts,
                       num_parts, num_cols, out, should_add);
}

#endif
