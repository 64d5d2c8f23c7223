/* attention_wgmma.h -- for the sources of attention by wgmma: tensor maps of rows, rows as A in registers, and
 * tiles that one warp loads for others. Inside kernels/cuda only. */
#ifndef CR_CUDA_ATTENTION_WGMMA_H
#define CR_CUDA_ATTENTION_WGMMA_H

#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/dev/wgmma.h"

enum { ROW_BYTES = 64 * (int)sizeof(bf16) }; /* of a row of a box */

/* `num` rows of `cols` elements, one after the other, in boxes of box_rows. */
static inline cudaError_t map_of_rows(cr_device *dev, CUtensorMap *out, const bf16 *x, int64_t num,
                                      int64_t cols, int box_rows)
{
    return cri_cuda_tensor_map(dev, out, x, num, cols, cols, box_rows);
}

/* Rows first .. first + 15 of num, straight into the fragments of A that they are; zeros after them. */
template <int D>
static __device__ __forceinline__ void take_a(uint32_t (&a)[D / 16][4], const head_rows<bf16> &rows,
                                              int first, int num)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int e = 0; e < 4; e++) {
        int row = first + lane / 4 + 8 * (e % 2);
        const uint32_t *from = (const uint32_t *)(const void *)(rows.x + row * rows.stride);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            a[i][e] = row < num ? from[8 * i + lane % 4 + 4 * (e / 2)] : 0;
    }
}

/* ---- pairs of tiles that pass by: one warp loads them, warpgroups multiply ---- */

enum {
    GROUP_THREADS = 128,
    TILE_ROWS = 64,
    BOX = TILE_ROWS * ROW_BYTES
}; /* box: bytes of one, 64 columns */

/* The warpgroup; a shuffle, so that the compiler knows that all lanes have one. */
static __device__ __forceinline__ int group_of_warp(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0);
}

/* Warpgroups begin their products in turns, so that one multiplies while the other one weighs: the tensor cores do products in the order in
 * which they were begun. Each has two turns a tile that passes, 0 and 1, also of a tile that it does not see. */
template <int GROUPS> struct turns {
    barrier *of; /* each warpgroup: the one before it has passed */
    int group;   /* this warpgroup */

    /* By thread 0, before a __syncthreads. */
    __device__ __forceinline__ void init(void) const
    {
        for (int i = 0; i < GROUPS; i++)
            barrier_init(of + i, GROUP_THREADS / 32);
    }
    __device__ __forceinline__ void wait(int turn) const
    {
        if (GROUPS > 1) barrier_wait(of + group, (turn + (group == 0)) & 1); /* the first at once */
    }
    __device__ __forceinline__ void pass(void) const
    {
        if (GROUPS > 1 && threadIdx.x % 32 == 0) barrier_arrive(of + (group + 1) % GROUPS);
    }
    __device__ __forceinline__ void skip_tile(void) const
    {
        wait(0);
        pass();
        wait(1);
        pass();
    }
};

/* Rows of two matrices, K and V or q and dO. */
struct pair_rows {
    head_rows<bf16> x, y;
    const CUtensorMap *map_x, *map_y;
    int column, row_x, row_y; /* of the first in the maps' matrices */
    int num;                  /* that are there: if fewer than TILE_ROWS, zeros come after them */
};

/* In shared memory: NUM stages, of two tiles each. full: K and V are there; empty: WARPS warps have read them. */
template <int D, int NUM> struct stages {
    static constexpr int TILE = D / 64 * BOX, BYTES = NUM * 2 * TILE;
    unsigned char *memory;
    barrier *full, *empty;

    __device__ __forceinline__ unsigned char *x(int at) const
    {
        return memory + at * 2 * TILE;
    }
    __device__ __forceinline__ unsigned char *y(int at) const
    {
        return x(at) + TILE;
    }
    /* By thread 0, before a __syncthreads. */
    __device__ __forceinline__ void init(int warps) const
    {
        for (int i = 0; i < NUM; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, (uint32_t)warps);
        }
    }
};

template <int D>
static __device__ __forceinline__ void load_by_rows(unsigned char *tile,
                                                    const head_rows<bf16> &from, int some)
{
    enum { ROWS = 16 };
#pragma unroll 1 /* more of it would take the registers of those that multiply */
    for (int r = 0; r < TILE_ROWS; r += ROWS)
#pragma unroll
        for (int d = 0; d < D; d += 64)
            load_tile<ROWS, 64, 32>((bf16 *)(void *)(tile + d / 64 * BOX) + r * 64,
                                    {from.x + r * from.stride + d, from.stride}, some - r);
}

/* By a warp, of which one lane is_it: a whole tile by TMA, of others nothing past their rows is read. */
template <int D>
static __device__ __forceinline__ void load_pair(unsigned char *x, unsigned char *y, barrier *full,
                                                 const pair_rows &p, bool is_it)
{
    if (p.num < TILE_ROWS) {
        load_by_rows<D>(x, p.x, p.num);
        load_by_rows<D>(y, p.y, p.num);
        cp_async_commit();
        cp_async_wait<0>();
        fence_async();
        __syncwarp();
        if (is_it) barrier_arrive(full);
    } else if (is_it) {
        barrier_expect(full, 2 * D / 64 * BOX);
#pragma unroll
        for (int d = 0; d < D; d += 64) {
            load_box(x + d / 64 * BOX, p.map_x, p.column + d, p.row_x, full);
            load_box(y + d / 64 * BOX, p.map_y, p.column + d, p.row_y, full);
        }
    }
}

/* By the warp that loads: pair(i) of num. */
template <int D, int NUM, class Pair>
static __device__ __forceinline__ void load_stages(const stages<D, NUM> &s, int num,
                                                   const Pair &pair)
{
    bool is_it = is_elected();

    for (int i = 0; i < num; i++) {
        int at = i % NUM;
        barrier_wait(s.empty + at, ~(i / NUM) & 1); /* the first round at once */
        load_pair<D>(s.x(at), s.y(at), s.full + at, pair(i), is_it);
    }
}

#endif
