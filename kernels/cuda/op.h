/* op.h -- what the sources of the cuda kernels share: sums over a row, and how an entry of the table launches and
 * reports.
 *
 * A source has `static __global__` kernels, then the entries, cri_cuda_linear and so on, with the arguments of ops.h.
 * An entry queues on the stream of its handle and allocates nothing but the stream's scratch, which grows only while
 * shapes do. Scratch is free again when the operation that took it has run, since the next one is on the same stream.
 */
#ifndef CR_CUDA_OP_H
#define CR_CUDA_OP_H

#include "kernels/cuda/elements.h"
#include "kernels/cuda/entries.h"

/* ---- sums over the G threads of a row, 32 or a whole block: the same bits in every thread ---- */

template <int G, class S> static __device__ __forceinline__ S group_sum(S x, S *shared)
{
    S sum = 0;

    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    if (G == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < G / 32; i++)
        sum += shared[i];
    __syncthreads(); /* shared may be used again */
    return sum;
}

/* ---- entries ---- */

template <class T> static inline const T *in(const cr_mem *mem)
{
    return (const T *)cr_mem_to_host(mem);
}
template <class T> static inline T *out(cr_mem *mem)
{
    return (T *)cr_mem_to_host(mem);
}

static inline bool is_wide(const cr_mem *mem)
{
    return (uintptr_t)mem % 16 == 0;
}

/* The next array of num in scratch that begins at `base`; NULL: only `at` moves. */
template <class T> static inline void carve(char *base, size_t *at, T **array, int64_t num)
{
    *array = base ? (T *)(void *)(base + *at) : NULL;
    *at += ((size_t)num * sizeof(T) + 255) / 256 * 256;
}

/* Blocks for num pieces of work, `per` a block; at most `most`, which then go round. */
static inline dim3 blocks_for(int64_t num, int64_t per, int64_t max = 2112)
{
    int64_t blocks = (num + per - 1) / per;

    return dim3((unsigned)(blocks < 1 ? 1 : blocks > max ? max : blocks));
}

/* op(i, num) for the 8 elements from each i on. */
enum { THREADS = 256 };
template <class Op> static __global__ void __launch_bounds__(THREADS) each(Op op, int64_t num)
{
    int64_t stride = (int64_t)gridDim.x * THREADS * PER;

    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PER; i < num; i += stride)
        op(i, num);
}

template <class Op> static cudaError_t on_each(cr_device *dev, const Op &op, size_t num)
{
    auto kernel = each<Op>;

    return CUDA_LAUNCH(kernel, blocks_for((int64_t)num, THREADS * PER), dim3(THREADS), 0,
                       cri_cuda_stream(dev), op, (int64_t)num);
}

static inline cr_status launched(const char *op, cudaError_t code, cr_err *err)
{
    if (code == cudaSuccess) return CR_OK;
    return cr_fail(err, CR_EIO, "%s on device cuda: %s", op, cudaGetErrorString(code));
}

/* call<T>(..) for the type of dtype, which kernels.c has checked. */
#define CRI_BY_DTYPE(dtype, call, ...)             \
    ((dtype) == CR_BF16  ? call<bf16>(__VA_ARGS__) \
     : (dtype) == CR_F16 ? call<f16>(__VA_ARGS__)  \
                         : call<float>(__VA_ARGS__))

#endif
