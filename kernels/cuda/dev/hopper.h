/* hopper.h -- the PTX of sm_90 that kernels use beside dev/mma.h, each instruction with a model in sim/async.cpp: mbarriers and bulk
 * copies by a tensor map (TMA). Products: dev/wgmma.h.
 *
 * Tiles in shared memory have rows of 64 bf16, 128 bytes, and begin at multiples of TILE_ATOM bytes; the 16-byte chunk c of row r is
 * at place c ^ (r % 8) of its row: SWIZZLE_128B of the tensor map and of wgmma's descriptor.
 */
#ifndef CR_CUDA_HOPPER_H
#define CR_CUDA_HOPPER_H

#include "kernels/cuda/dev/mma.h"

#include <cuda.h>

enum { TILE_ATOM = 1024 };

/* The first tile of dynamic shared memory, which has TILE_ATOM bytes more than its tiles. */
static __device__ __forceinline__ unsigned char *first_tile(unsigned char *memory)
{
    return memory + (-shared_address(memory) & (TILE_ATOM - 1));
}

/* In shared memory. Counts phases from 0; one is over when as many threads have arrived as barrier_init said, and all bytes that
 * they said to expect have come. */
struct barrier {
    uint64_t bits;
};

/* Followed by fence_async of the same thread and a barrier of the block. */
static __device__ __forceinline__ void barrier_init(barrier *b, uint32_t num_arrivals)
{
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)),
                 "r"(num_arrivals)
                 : "memory");
#else
    cri_sim_mbarrier_init(b, num_arrivals);
#endif
}

static __device__ __forceinline__ void barrier_arrive(barrier *b)
{
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#else
    cri_sim_mbarrier_arrive(b, 0);
#endif
}

/* Arrives, and the phase lasts until num_bytes more have come. */
static __device__ __forceinline__ void barrier_expect(barrier *b, uint32_t num_bytes)
{
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(num_bytes)
                 : "memory");
#else
    cri_sim_mbarrier_arrive(b, num_bytes);
#endif
}

/* Until a phase of this parity is over: at once if the last one that was over has it, or if none was and it is 1. */
static __device__ __forceinline__ void barrier_wait(barrier *b, uint32_t parity)
{
#ifdef __CUDACC__
    uint32_t is_over;

    do
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(is_over)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    while (!is_over);
#else
    cri_sim_mbarrier_wait(b, parity);
#endif
}

/* What this thread has written to shared memory is there for copies and products that come after a barrier. */
static __device__ __forceinline__ void fence_async(void)
{
#ifdef __CUDACC__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    cri_sim_fence_async();
#endif
}

/* The map's box from column x and row y on, zeros outside of the matrix; its bytes arrive at the barrier. map: a parameter
 * of the kernel that is __grid_constant__. */
static __device__ __forceinline__ void load_box(void *tile, const CUtensorMap *map, int x, int y,
                                                barrier *b)
{
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(tile)),
                 "l"(map), "r"(shared_address(b)), "r"(x), "r"(y)
                 : "memory");
#else
    cri_sim_load_box(tile, map, x, y, b);
#endif
}

/* From here on a thread of this warpgroup has N registers, more or fewer than the launch gave it; all warpgroups of a block together have
 * no more than that, and who wants more waits until others have given them back. */
template <int N, bool IS_MORE> static __device__ __forceinline__ void set_registers(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "what setmaxnreg takes");
#ifdef __CUDACC__
    if constexpr (IS_MORE)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#else
    cri_sim_set_registers(N, IS_MORE);
#endif
}

/* True in one lane of the warp. */
static __device__ __forceinline__ bool is_elected(void)
{
#ifdef __CUDACC__
    uint32_t is_it;

    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(is_it));
    return is_it;
#else
    return cri_sim_elect();
#endif
}

#endif
