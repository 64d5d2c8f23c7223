/* product_mma.h -- a tile of a bf16 product on tensor cores, which linear.cu and grouped.cu share: C [m, n] = A B as product.h says, sums
 * by mma.m16n8k16 over ascending k. Inside kernels/cuda only.
 */
#ifndef CR_CUDA_PRODUCT_MMA_H
#define CR_CUDA_PRODUCT_MMA_H

#include "kernels/cuda/dev/mma.h"
#include "kernels/cuda/ending.h"

enum {
    TM = 64,
    TN = 128,
    TK = 64,
    STAGES = 3,
    MMA_THREADS = 128,
    STAGE = (TM + TN) * TK,
    MMA_SHARED = STAGES * STAGE * 2
};

/* Matrix as it is in memory: rows of `cols` elements. */
struct lying {
    const bf16 *x;
    int64_t rows, cols, ld;
};

/* Rows row0 .. row0 + ROWS - 1, columns col0 .. col0 + COLS - 1, into a swizzled tile; zeros outside. */
template <int ROWS, int COLS>
static __device__ __forceinline__ void load_tile(bf16 *tile, const lying &a, int64_t row0,
                                                 int64_t col0)
{
    constexpr int CHUNKS = COLS / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / MMA_THREADS; i++) {
        int at = (int)threadIdx.x + i * MMA_THREADS, row = at / CHUNKS, chunk = at % CHUNKS;
        bool is_in = row0 + row < a.rows && col0 + chunk * 8 < a.cols;
        cp_async16(tile + 8 * swizzled(row, chunk, CHUNKS),
                   a.x + (is_in ? (row0 + row) * a.ld + col0 + chunk * 8 : 0), is_in);
    }
}

template <bool IS_A_TURNED, bool IS_B_TURNED>
static __device__ __forceinline__ void load_stage(bf16 *stage, const lying &a, const lying &b,
                                                  int64_t row0, int64_t col0, int64_t k)
{
    if (IS_A_TURNED)
        load_tile<TK, TM>(stage, a, k, row0);
    else
        load_tile<TM, TK>(stage, a, row0, k);
    if (IS_B_TURNED)
        load_tile<TK, TN>(stage + TM * TK, b, k, col0);
    else
        load_tile<TN, TK>(stage + TM * TK, b, col0, k);
}

/* Fragments of 16 of k from one stage. A: rows 32 (warp % 2) + 16 m; B: columns 64 (warp / 2) + 8 n and + 8. */
template <bool IS_TURNED>
static __device__ __forceinline__ void a_fragment(uint32_t (&f)[4], const bf16 *tile, int kk,
                                                  int row)
{
    int lane = (int)threadIdx.x % 32;

    if (IS_TURNED) /* [k, m]: 8 x 8 tiles (k, m), (k, m + 8), (k + 8, m), .. */
        ldmatrix_x4_trans(f, tile + 8 * swizzled(16 * kk + lane % 8 + lane / 16 * 8,
                                                 row / 8 + (lane / 8 & 1), TM / 8));
    else
        ldmatrix_x4(f, tile + 8 * swizzled(row + lane % 16, 2 * kk + lane / 16, TK / 8));
}

template <bool IS_TURNED>
static __device__ __forceinline__ void b_fragments(uint32_t (&f)[4], const bf16 *tile, int kk,
                                                   int col)
{
    int lane = (int)threadIdx.x % 32;

    if (IS_TURNED) /* [k, n] */
        ldmatrix_x4_trans(f, tile + 8 * swizzled(16 * kk + lane % 16, col / 8 + lane / 16, TN / 8));
    else
        ldmatrix_x4(f, tile + 8 * swizzled(col + lane % 8 + lane / 16 * 8, 2 * kk + (lane / 8 & 1),
                                           TK / 8));
}

/* The tile of C from row0 and col0 on, with MMA_SHARED bytes of dynamic shared memory. */
template <bool IS_A_TURNED, bool IS_B_TURNED, class End>
static __device__ __forceinline__ void mma_tile(const lying &a, const lying &b, int64_t num_k,
                                                const End &end, int64_t row0, int64_t col0)
{
    DYNAMIC_SHARED(memory);
    bf16 *shared = (bf16 *)(void *)memory;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int steps = (int)((num_k + TK - 1) / TK);
    float acc[2][8][4] = {};

#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            load_stage<IS_A_TURNED, IS_B_TURNED>(shared + i * STAGE, a, b, row0, col0,
                                                 (int64_t)i * TK);
        cp_async_commit();
    }
    for (int i = 0; i < steps; i++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        int ahead = i + STAGES - 1;
        if (ahead < steps)
            load_stage<IS_A_TURNED, IS_B_TURNED>(shared + ahead % STAGES * STAGE, a, b, row0, col0,
                                                 (int64_t)ahead * TK);
        cp_async_commit();
        const bf16 *as = shared + i % STAGES * STAGE, *bs = as + TM * TK;
#pragma unroll
        for (int kk = 0; kk < TK / 16; kk++) {
            uint32_t af[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++)
                a_fragment<IS_A_TURNED>(af[m], as, kk, warp % 2 * 32 + 16 * m);
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                uint32_t bf[4];
                b_fragments<IS_B_TURNED>(bf, bs, kk, warp / 2 * 64 + 8 * n);
                const uint32_t low[2] = {bf[0], bf[1]}, high[2] = {bf[2], bf[3]};
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_16816(acc[m][n], af[m], low);
                    mma_16816(acc[m][n + 1], af[m], high);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const auto row = end.row(row0 + warp % 2 * 32 + 16 * m + lane / 4 + 8 * (e / 2));
#pragma unroll
            for (int n = 0; n < 8; n++)
                row.put_two(col0 + warp / 2 * 64 + 8 * n + lane % 4 * 2, acc[m][n][e],
                            acc[m][n][e + 1]);
        }
}

#endif
