/* wgmma.h -- products of a warpgroup, four warps whose first number is a multiple of 4, on sm_90a, each instruction with a model in
 * sim/wgmma.cpp. Tiles: dev/hopper.h. Sums of m64nNk16, with g = lane / 4 and t = lane % 4 of warp w of the warpgroup:
 *     d[j][e] row 16 w + g + 8 (e / 2), column 8 j + 2 t + e % 2
 * which is c[e] of mma.m16n8k16 (dev/mma.h) for rows 16 w .. and columns 8 j ..; A in registers is as a there, of the same rows.
 */
#ifndef CR_CUDA_WGMMA_H
#define CR_CUDA_WGMMA_H

#include "kernels/cuda/dev/hopper.h"

/* Of a tile. An operand whose rows lie along k: its k from 16 i on, + 2 i. B whose rows are k, of 64 columns each: its k from
 * 16 i on, + 128 i, and the tile of the next 64 columns is `next` bytes further. Bits: address / 16, `next` / 16, 8 rows are
 * 1024 bytes, SWIZZLE_128B. */
static __device__ __forceinline__ uint64_t tile_descriptor(const void *tile, int next = 16)
{
    return (uint64_t)((shared_address(tile) & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Keeps the compiler from moving what it does with sums or with A over a fence or a wait. */
template <int N> static __device__ __forceinline__ void stay(float (&d)[N][4])
{
#ifdef __CUDACC__
#pragma unroll
    for (int j = 0; j < N; j++)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
#else
    (void)d;
#endif
}
template <int N> static __device__ __forceinline__ void stay(uint32_t (&a)[N][4])
{
#ifdef __CUDACC__
#pragma unroll
    for (int j = 0; j < N; j++)
        asm volatile("" : "+r"(a[j][0]), "+r"(a[j][1]), "+r"(a[j][2]), "+r"(a[j][3])::"memory");
#else
    (void)a;
#endif
}

/* Before the first product, and before one whose sums or A in registers were touched since wgmma_wait; those are named. */
static __device__ __forceinline__ void wgmma_fence(void)
{
#ifdef __CUDACC__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    cri_sim_wgmma_fence();
#endif
}
template <class Of, class... More>
static __device__ __forceinline__ void wgmma_fence(Of &of, More &...more)
{
    stay(of);
    (stay(more), ...);
    wgmma_fence();
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
template <int N, class... Sums> static __device__ __forceinline__ void wgmma_wait(Sums &...d)
{
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#else
    cri_sim_wgmma_wait(N);
#endif
    (stay(d), ...);
}

#define CRI_SUMS_8(j)                                                              \
    "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]), "+f"(d[j + 1][0]), \
        "+f"(d[j + 1][1]), "+f"(d[j + 1][2]), "+f"(d[j + 1][3])
#define CRI_SUMS_32(j) CRI_SUMS_8(j), CRI_SUMS_8(j + 2), CRI_SUMS_8(j + 4), CRI_SUMS_8(j + 6)
#define CRI_NAMES_32                                         \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CRI_NAMES_64                                                                    \
    CRI_NAMES_32 ","                                                                    \
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48," \
                 "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CRI_NAMES_96                                                                    \
    CRI_NAMES_64 ","                                                                    \
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80," \
                 "%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

/* d = a b, or d += a b: 64 x 192 x 16, bf16 with float32 sums, rows of both along k; asynchronously. */
static __device__ __forceinline__ void wgmma(float (&d)[24][4], uint64_t a, uint64_t b, bool adds)
{
#ifdef __CUDACC__
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" CRI_NAMES_96
                 "}, %96, %97, p, 1, 1, 0, 0;\n}"
                 : CRI_SUMS_32(0), CRI_SUMS_32(8), CRI_SUMS_32(16)
                 : "l"(a), "l"(b), "r"((int)adds));
#else
    cri_sim_wgmma(&d[0][0], 192, a, b, adds);
#endif
}

/* The same of 64 columns. */
static __device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool adds)
{
#ifdef __CUDACC__
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CRI_NAMES_32
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : CRI_SUMS_32(0)
                 : "l"(a), "l"(b), "r"((int)adds));
#else
    cri_sim_wgmma(&d[0][0], 64, a, b, adds);
#endif
}

/* Of 64 and 128 columns, a in registers, which nothing touches until wgmma_wait; a b that is turned has rows of 64 columns (tile_descriptor). */
template <bool IS_B_TURNED>
static __device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                             bool adds)
{
#ifdef __CUDACC__
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CRI_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : CRI_SUMS_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds),
                   "n"((int)IS_B_TURNED));
#else
    cri_sim_wgmma_a(&d[0][0], 64, a, b, IS_B_TURNED, adds);
#endif
}

template <bool IS_B_TURNED>
static __device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                             bool adds)
{
#ifdef __CUDACC__
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" CRI_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : CRI_SUMS_32(0), CRI_SUMS_32(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds),
                   "n"((int)IS_B_TURNED));
#else
    cri_sim_wgmma_a(&d[0][0], 128, a, b, IS_B_TURNED, adds);
#endif
}

#undef CRI_NAMES_96
#undef CRI_NAMES_64
#undef CRI_NAMES_32
#undef CRI_SUMS_32
#undef CRI_SUMS_8

#endif
