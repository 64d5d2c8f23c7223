/* device.h -- what every kernel includes: CUDA under nvcc, the simulation (sim/) under g++.
 *
 * Three rules make one source serve both: kernels are launched with CUDA_LAUNCH, shared memory is declared
 * with SHARED or DYNAMIC_SHARED, and PTX is used only through dev/mma.h. 16-bit numbers are the struct below, so
 * that no header of NVIDIA's is needed where there is no toolkit. Kernels synchronise by barriers, never by the
 * order of lanes in a warp; they use no default stream and no barrier over the grid.
 */
#ifndef CR_CUDA_DEVICE_H
#define CR_CUDA_DEVICE_H

#ifdef __CUDACC__

#include <cuda_runtime.h>
#include <stdint.h>
/* The launch's cudaError_t. */
#define CUDA_LAUNCH(kernel, grid, block, shared, stream, ...) \
    (kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__), cudaGetLastError())
/* type name[num], aligned to 16 bytes. */
#define SHARED(type, name, num) __shared__ __align__(16) type name[num]
/* The bytes that the launch asked for. */
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

#else

#include <cuda_sim.h>
#define CUDA_LAUNCH(kernel, grid, block, shared, stream, ...)                           \
    (cri_sim_launch(#kernel, kernel, (grid), (block), (shared), (stream), __VA_ARGS__), \
     cudaGetLastError())
#define SHARED(type, name, num)      \
    static cri_sim_site name##_site; \
    type *name = (type *)cri_sim_shared(&name##_site, sizeof(type) * (num), 16)
#define DYNAMIC_SHARED(name) unsigned char *name = (unsigned char *)cri_sim_shared_dynamic()

#endif

struct bf16 {
    uint16_t bits;
};

static __device__ __forceinline__ float as_float(uint32_t u)
{
#ifdef __CUDACC__
    return __uint_as_float(u);
#else
    float f;
    memcpy(&f, &u, 4);
    return f;
#endif
}

static __device__ __forceinline__ uint32_t as_uint(float f)
{
#ifdef __CUDACC__
    return __float_as_uint(f);
#else
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
#endif
}

static __device__ __forceinline__ float to_float(bf16 x)
{
    return as_float((uint32_t)x.bits << 16);
}

/* Two floats to two bf16, low one first, nearest even. NaN stays NaN. */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
#ifdef __CUDACC__
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
#else
    uint32_t u[2] = {as_uint(low), as_uint(high)};
    for (int i = 0; i < 2; i++)
        u[i] = (u[i] & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u[i] + 0x7fff + (u[i] >> 16 & 1)) >> 16;
    return u[0] | u[1] << 16;
#endif
}

static __device__ __forceinline__ bf16 to_bf16(float x)
{
    return bf16{(uint16_t)pack_bf16(x, 0.0f)};
}

static __device__ __forceinline__ float low_float(uint32_t two)
{
    return as_float(two << 16);
}

static __device__ __forceinline__ float high_float(uint32_t two)
{
    return as_float(two & 0xffff0000u);
}

/* Sum over the warp, the same bits in every lane. */
static __device__ __forceinline__ float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

#endif
