/* op.h -- what the sources of the cuda kernels share: elements of the act dtypes, sums over a row, and how an entry
 * of the table launches and reports.
 *
 * A source has `static __global__` kernels, then the entries, cri_cuda_linear and so on, with the arguments of ops.h.
 * An entry queues on the stream of its handle and allocates nothing but the stream's scratch, which grows only while
 * shapes do. Scratch is free again when the operation that took it has run, since the next one is on the same stream.
 */
#ifndef CR_CUDA_OP_H
#define CR_CUDA_OP_H

#include "kernels/cuda/dev/device.h"
#include "kernels/cuda/entries.h"

#include <string.h>

/* ---- elements ---- */

struct f16 {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(f16 x)
{
#ifdef __CUDACC__
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
#else
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31u,
             bits = x.bits & 1023u;
    if (exponent == 0) return as_float(sign | as_uint((float)bits * 0x1p-24f));
    return as_float(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | bits << 13);
#endif
}

static __device__ __forceinline__ f16 to_f16(float x)
{
#ifdef __CUDACC__
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
#else
    uint32_t u = as_uint(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        a = 0x7fff;
    else if (a >= 0x477ff000u) /* rounds to 65536 */
        a = 0x7c00;
    else if (a <
             0x38800000u) /* a multiple of 2^-24, which is the last bit of numbers from 0.5 on */
        a = as_uint(as_float(a) + 0.5f) - as_uint(0.5f);
    else
        a = (a - (112u << 23) + 0xfffu + (a >> 13 & 1u)) >> 13;
    return f16{(uint16_t)(sign | a)};
#endif
}

template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
    return to_bf16(x);
}
template <> __device__ __forceinline__ f16 from_float<f16>(float x)
{
    return to_f16(x);
}
template <class T> static __device__ __forceinline__ float rounded(float x)
{
    return to_float(from_float<T>(x));
}

/* Eight neighbouring elements. is_wide: all rows begin at 16-byte boundaries, and elements are loaded as such; what
 * lies at `end` or after is 0, and is not stored. */
enum { PER = 8 };
template <class T>
static __device__ __forceinline__ void load8(float (&f)[PER], const T *p, int64_t at, int64_t end,
                                             bool is_wide)
{
    if (is_wide && at + PER <= end) {
        uint4 wide[sizeof(T) * PER / 16];
        T t[PER];
#pragma unroll
        for (int i = 0; i < (int)sizeof t / 16; i++)
            wide[i] = ((const uint4 *)(const void *)(p + at))[i];
        memcpy(t, wide, sizeof t);
#pragma unroll
        for (int i = 0; i < PER; i++)
            f[i] = to_float(t[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        f[i] = at + i < end ? to_float(p[at + i]) : 0.0f;
}

template <class T>
static __device__ __forceinline__ void store8(T *p, int64_t at, int64_t end, bool is_wide,
                                              const float (&f)[PER])
{
    if (is_wide && at + PER <= end) {
        uint4 wide[sizeof(T) * PER / 16];
        T t[PER];
#pragma unroll
        for (int i = 0; i < PER; i++)
            t[i] = from_float<T>(f[i]);
        memcpy(wide, t, sizeof t);
#pragma unroll
        for (int i = 0; i < (int)sizeof t / 16; i++)
            ((uint4 *)(void *)(p + at))[i] = wide[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (at + i < end) p[at + i] = from_float<T>(f[i]);
}

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

/* Blocks for num pieces of work, `per` a block; at most `most`, which then go round. */
static inline dim3 blocks_for(int64_t num, int64_t per, int64_t most = 2112)
{
    int64_t blocks = (num + per - 1) / per;

    return dim3((unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks));
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
