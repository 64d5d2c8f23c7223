/* ending.h -- how the kernels of products (product.h) put sums into C. Inside kernels/cuda only. */
#ifndef CR_CUDA_ENDING_H
#define CR_CUDA_ENDING_H

#include "kernels/cuda/op.h"
#include "kernels/cuda/product.h"

static __device__ __forceinline__ void store_two(float *p, float x, float y)
{
    *(float2 *)(void *)p = make_float2(x, y);
}
static __device__ __forceinline__ void store_two(bf16 *p, float x, float y)
{
    *(uint32_t *)(void *)p = pack_bf16(x, y);
}

/* Where C goes. Aux: of bias and add. */
template <class To, class Aux> struct ending {
    To *c;
    const Aux *bias, *add;
    int64_t m, n, ldc;

    __device__ __forceinline__ float ended(int64_t at, int64_t col, float x) const
    {
        if (bias) x += to_float(bias[col]);
        if (add) x = rounded<To>(x) + to_float(add[at]);
        return x;
    }

    __device__ __forceinline__ void put(int64_t row, int64_t col, float x) const
    {
        int64_t at = row * ldc + col;

        if (row >= m || col >= n) return;
        c[at] = from_float<To>(ended(at, col, x));
    }

    /* The columns col and col + 1: one store, if their address allows it. */
    __device__ __forceinline__ void put_two(int64_t row, int64_t col, float x, float y) const
    {
        int64_t at = row * ldc + col;

        if (row >= m || col >= n) return;
        x = ended(at, col, x);
        if (col + 1 < n) {
            y = ended(at + 1, col + 1, y);
            if ((uintptr_t)(c + at) % (2 * sizeof(To)) == 0) {
                store_two(c + at, x, y);
                return;
            }
            c[at + 1] = from_float<To>(y);
        }
        c[at] = from_float<To>(x);
    }
};

#endif
