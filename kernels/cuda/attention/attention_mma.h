/* attention_mma.h -- tiles of bf16 rows in shared memory, and products of them by tensor cores, for the sources of attention that use
 * those. Blocks of MMA_THREADS threads, or what is said. Inside kernels/cuda only.
 */
#ifndef CR_CUDA_ATTENTION_MMA_H
#define CR_CUDA_ATTENTION_MMA_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/dev/mma.h"

enum { MMA_THREADS = 128 };

/* ROWS rows from the first of `from` on, of which `some` are there, into a swizzled tile; zeros after them. By NUM threads: the block's,
 * or a warp's. */
template <int ROWS, int D, int NUM = MMA_THREADS>
static __device__ __forceinline__ void load_tile(bf16 *tile, const head_rows<bf16> &from, int some)
{
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / NUM; i++) {
        int at = (NUM < MMA_THREADS ? (int)threadIdx.x % NUM : (int)threadIdx.x) + i * NUM,
            row = at / CHUNKS, chunk = at % CHUNKS;
        bool is_in = row < some;
        cp_async16(tile + 8 * swizzled(row, chunk, CHUNKS),
                   from.x + (is_in ? row * from.stride : 0) + chunk * 8, is_in);
    }
}

/* A: rows row .. row + 15 of the tile, columns 16 i .. 16 i + 15. */
template <int D>
static __device__ __forceinline__ void a_fragment(uint32_t (&a)[4], const bf16 *tile, int row,
                                                  int i)
{
    int lane = (int)threadIdx.x % 32;

    ldmatrix_x4(a, tile + 8 * swizzled(row + lane % 16, 2 * i + lane / 16, D / 8));
}

/* c[n], c[n + 1] += A B: B's columns 8 n .. 8 n + 15 are rows of the tile, its 16 of k the tile's columns from 16 i on. */
template <int D, int N>
static __device__ __forceinline__ void multiply_rows(float (&c)[N][4], const uint32_t (&a)[4],
                                                     const bf16 *tile, int n, int i)
{
    int lane = (int)threadIdx.x % 32;
    uint32_t b[4];

    ldmatrix_x4(
        b, tile + 8 * swizzled(8 * n + lane % 8 + lane / 16 * 8, 2 * i + (lane / 8 & 1), D / 8));
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    mma_16816(c[n], a, low);
    mma_16816(c[n + 1], a, high);
}

/* The same where B's columns are those of the tile, and its 16 of k the tile's rows from 16 i on. */
template <int D, int N>
static __device__ __forceinline__ void multiply_cols(float (&c)[N][4], const uint32_t (&a)[4],
                                                     const bf16 *tile, int n, int i)
{
    int lane = (int)threadIdx.x % 32;
    uint32_t b[4];

    ldmatrix_x4_trans(b, tile + 8 * swizzled(16 * i + lane % 16, n + lane / 16, D / 8));
    const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    mma_16816(c[n], a, low);
    mma_16816(c[n + 1], a, high);
}

/* Sums s[2 i] and s[2 i + 1], two neighbouring tiles, as a fragment of A. */
template <int N>
static __device__ __forceinline__ void a_of_sums(uint32_t (&a)[4], const float (&s)[N][4], int i)
{
    a[0] = pack_bf16(s[2 * i][0], s[2 * i][1]);
    a[1] = pack_bf16(s[2 * i][2], s[2 * i][3]);
    a[2] = pack_bf16(s[2 * i + 1][0], s[2 * i + 1][1]);
    a[3] = pack_bf16(s[2 * i + 1][2], s[2 * i + 1][3]);
}

template <int N> static __device__ __forceinline__ void set_zero(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = 0.0f;
}

/* Row `half` (0: lane / 4, 1: 8 further) of sums of D columns times factor. */
template <int D>
static __device__ __forceinline__ void store_row(bf16 *row, const float (&c)[D / 8][4], int half,
                                                 float factor)
{
    uint32_t *to = (uint32_t *)(void *)row;

#pragma unroll
    for (int d = 0; d < D / 8; d++)
        to[4 * d + (int)threadIdx.x % 4] =
            pack_bf16(c[d][2 * half] * factor, c[d][2 * half + 1] * factor);
}

static __device__ __forceinline__ float in_base_2(float x)
{
    return x * 1.44269504f; /* e^x = 2^(x log2 e) */
}

#endif
