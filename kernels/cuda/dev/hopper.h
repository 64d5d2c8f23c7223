/* hopper.h -- the PTX of sm_90a that kernels use, each instruction with a model in sim/async.cpp or sim/wgmma.cpp: mbarriers,
 * bulk copies by a tensor map (TMA) and products of a warpgroup, four warps whose first number is a multiple of 4.
 *
 * Tiles in shared memory have rows of 64 bf16, 128 bytes, and begin at multiples of 1024 bytes; the 16-byte chunk c of row r is at
 * place c ^ (r % 8) of its row: SWIZZLE_128B of the tensor map and of the descriptor. Sums of wgmma, m64nNk16, with g = lane / 4
 * and t = lane % 4 of warp w of the warpgroup:
 *     d[4 j + e] row 16 w + g + 8 (e / 2), column 8 j + 2 t + e % 2
 */
#ifndef CR_CUDA_HOPPER_H
#define CR_CUDA_HOPPER_H

#include "kernels/cuda/dev/mma.h"

#include <cuda.h>

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

/* ---- products ---- */

/* Of a tile, or of the k from 16 i on of its rows: + 2 i. Bits: address / 16, 8 rows are 1024 bytes, SWIZZLE_128B. */
static __device__ __forceinline__ uint64_t tile_descriptor(const void *tile)
{
    return (uint64_t)((shared_address(tile) & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Before the first product, and before one whose sums were touched since wgmma_wait. */
static __device__ __forceinline__ void wgmma_fence(void)
{
#ifdef __CUDACC__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    cri_sim_wgmma_fence();
#endif
}

static __device__ __forceinline__ void wgmma_commit(void)
{
#ifdef __CUDACC__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    cri_sim_wgmma_commit();
#endif
}

/* Until at most N groups are under way; d: the sums, so that their readers stay after it. */
template <int N, int NUM> static __device__ __forceinline__ void wgmma_wait(float (&d)[NUM])
{
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int i = 0; i < NUM; i++)
        asm volatile("" : "+f"(d[i])::"memory");
#else
    (void)d;
    cri_sim_wgmma_wait(N);
#endif
}

#define CRI_SUMS_8(i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define CRI_SUMS_32(i) CRI_SUMS_8(i), CRI_SUMS_8(i + 8), CRI_SUMS_8(i + 16), CRI_SUMS_8(i + 24)

/* d = a b, or d += a b: 64 x 256 x 16, bf16 with float32 sums, b by its columns; asynchronously. */
static __device__ __forceinline__ void wgmma_256(float (&d)[128], uint64_t a, uint64_t b, bool adds)
{
#ifdef __CUDACC__
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"
        "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,"
        "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,"
        "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"
        "%126,%127}, %128, %129, p, 1, 1, 0, 0;\n}"
        : CRI_SUMS_32(0), CRI_SUMS_32(32), CRI_SUMS_32(64), CRI_SUMS_32(96)
        : "l"(a), "l"(b), "r"((int)adds));
#else
    cri_sim_wgmma(d, 256, a, b, adds);
#endif
}

#undef CRI_SUMS_32
#undef CRI_SUMS_8

#endif
