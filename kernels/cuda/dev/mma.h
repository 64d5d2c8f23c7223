/* mma.h -- the PTX that kernels use, each instruction with a model in sim/warp.cpp. Fragments (PTX ISA, mma.m16n8k16):
 * with g = lane / 4 and t = lane % 4,
 *     a[0] rows g,   k 2t..   a[1] rows g+8, k 2t..   a[2] rows g, k 2t+8..   a[3] rows g+8, k 2t+8..
 *     b[0] k 2t..,   col g    b[1] k 2t+8.., col g
 *     c[0..1] row g, cols 2t, 2t+1    c[2..3] row g+8
 */
#ifndef CR_CUDA_MMA_H
#define CR_CUDA_MMA_H

#include "kernels/cuda/dev/device.h"

#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
#else
static inline uint32_t shared_address(const void *p)
{
    return cri_sim_shared_address(p);
}
#endif

/* c += a b, 16x8x16, bf16 with float32 sums. */
static __device__ __forceinline__ void mma_16816(float (&c)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    cri_sim_mma_16816_bf16(c, a, b);
#endif
}

/* Four 8x8 tiles of 16-bit numbers; lanes 8i..8i+7 name the rows of tile i. */
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    cri_sim_ldmatrix_x4(r, row, false);
#endif
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    cri_sim_ldmatrix_x4(r, row, true);
#endif
}

/* 16 bytes from global to shared memory, asynchronously; zeros where !is_valid (then nothing is read). */
static __device__ __forceinline__ void cp_async16(void *shared, const void *global, bool is_valid)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(is_valid ? 16 : 0)
                 : "memory");
#else
    cri_sim_cp_async16(shared, global, is_valid);
#endif
}

static __device__ __forceinline__ void cp_async_commit(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    cri_sim_cp_async_commit();
#endif
}

/* Waits until at most N groups of this thread are under way. Other threads' copies need a barrier, too. */
template <int N> static __device__ __forceinline__ void cp_async_wait(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
    cri_sim_cp_async_wait(N);
#endif
}

/* 2^x, with zero for what is below the normal numbers: one instruction, where exp2f takes four. */
static __device__ __forceinline__ float exp2_or_zero(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
#endif
}

/* Shared tiles have rows of whole 16-byte chunks; chunk c of row r is at place c ^ (r % 8), so that eight
 * rows of one chunk column fall into eight bank groups. chunks: a row's, at least 8. */
static __device__ __forceinline__ int swizzled(int row, int chunk, int chunks)
{
    return row * chunks + (chunk ^ (row & 7));
}

#endif
