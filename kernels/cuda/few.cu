/* few.cu -- products of few rows, bf16, C = A B^T (decoding), which read each weight once: up to CRI_FEW_ROWS rows, up to CRI_FEW_PRODUCTS
 * products of the same rows in one launch (q, k and v; gate and up), each with its rows, weight, bias and C. And the products of adapters (A: few
 * columns; B: few of k), of any number of rows, in blocks of 32 and 64.
 *
 * Mapping: a warp makes 16 columns of C for all rows by mma.m16n8k16, the rows as A, the weight's as B, as mma_product of linear.cu; a block is
 * one warp, or four that share the rows. 128 of k at a time by cp.async, 16 bytes a thread, in stages, as many as keep memory busy: rows of the
 * weight come in pieces of 256 bytes. An element's sum is one chain over ascending k, 16 at a time, in one warp: k is never split, so
 * that the number of rows, blocks and warps changes no bit, and the order is that of the kernels of many rows. Which instruction makes those
 * differs (wgmma, cuBLASLt's): library.c takes this kernel where a probe finds the same bits.
 *
 * Bytes: the weight once, and the rows once a block from L2, 1/16 of the weight's bytes a row and one warp, 1/64 and four. FLOPs do not count.
 * Shared memory: 64 KiB (one warp, 28 KiB of weights under way), 80 KiB (four warps, 48 KiB), 96 KiB (more than 16 rows, 32 KiB), 48 KiB (few columns).
 * Limit: memory, if blocks are as many as multiprocessors; and the chain: 512 bytes of weights a warp for each mma that waits for
 * the one before, about 33 cycles on an H100 (published), 27 GB/s a warp, where 25 GB/s a multiprocessor are all of its memory.
 */
#include "kernels/cuda/dev/mma.h"
#include "kernels/cuda/ending.h"

enum {
    TK = 128,
    CHUNKS = TK / 8, /* of a row */
    COLS = 16,       /* of a warp */
    WIDE_FROM = 132  /* blocks of four warps, from which they are taken: a GPU's multiprocessors */
};

struct few_product {
    const bf16 *rows, *w, *bias, *add;
    bf16 *c;
    int64_t n, num_k, ld, ldw, ldc;
    float factor;
};

struct few_products {
    few_product of[CRI_FEW_PRODUCTS];
    int last[CRI_FEW_PRODUCTS]; /* block after the product's last */
    int64_t num_rows;
    bool is_rounded; /* before the addend comes to it */
};

/* Of ending_row. */
struct few_sum {
    const bf16 *bias, *add; /* add: of this row */
    int64_t num_cols;
    float factor;
    bool is_rounded;

    __device__ __forceinline__ float at(int64_t col, float x) const
    {
        x *= factor;
        if (bias) x += to_float(bias[col]);
        if (add) x = (is_rounded ? rounded<bf16>(x) : x) + to_float(add[col]);
        return x;
    }
};

/* WARPS of a block, TILES of 16 rows of A. */
template <int WARPS_, int TILES_, int STAGES_> struct few_shape {
    enum {
        WARPS = WARPS_,
        TILES = TILES_,
        STAGES = STAGES_,
        THREADS_A_BLOCK = 32 * WARPS,
        TILE = 16 * TK, /* elements: of 16 rows */
        STAGE = (TILES + WARPS) * TILE,
        BYTES = STAGES * STAGE * 2,
        STEP = THREADS_A_BLOCK / CHUNKS, /* rows that a block loads at once */
        LOADS = TILES * 16 / STEP        /* of a thread and stage, of the rows */
    };
};
typedef few_shape<1, 1, 8> narrow;
typedef few_shape<4, 1, 4> wide;
typedef few_shape<4, 4, 3> tall;
typedef few_shape<1, 2, 4> slim;
enum { WARP_STEP = 32 / CHUNKS, WARP_LOADS = 16 / WARP_STEP /* TK / 16, too */ };

/* Element of a tile where chunk c of row first + add is (dev/mma.h's swizzled): first is below, add a multiple of, a power of two, which costs
 * one operation if add is a constant. */
static __device__ __forceinline__ int place(int first, int add, int c)
{
    return 8 * ((first + add) * CHUNKS + (c ^ (first & 7) ^ (add & 7)));
}

/* What a thread loads: chunk `chunk` of these rows, of the weight those of its own warp. Rows of the weight that are not there are the last one:
 * what they give is not stored. */
template <class S> struct few_loads {
    const bf16 *rows[S::LOADS], *w[WARP_LOADS];
    int chunk, row, w_row; /* first ones */
    int64_t num_rows, num_k;

    __device__ __forceinline__ few_loads(const few_product &mine, int64_t row0, int64_t rows_left,
                                         int64_t col0)
    {
        int lane = (int)threadIdx.x % 32;

        chunk = lane % CHUNKS, row = (int)threadIdx.x / CHUNKS, w_row = lane / CHUNKS;
        num_rows = rows_left, num_k = mine.num_k;
#pragma unroll
        for (int i = 0; i < S::LOADS; i++)
            rows[i] = mine.rows + (row0 + row + i * S::STEP) * mine.ld + chunk * 8;
#pragma unroll
        for (int i = 0; i < WARP_LOADS; i++) {
            int64_t col = col0 + w_row + i * WARP_STEP;
            w[i] = mine.w + (col < mine.n ? col : mine.n - 1) * mine.ldw + chunk * 8;
        }
    }

    /* Rows that are not there are zeros in all stages. */
    __device__ __forceinline__ void clear(bf16 *shared) const
    {
#pragma unroll 1
        for (int at = 0; at < S::STAGES; at++)
#pragma unroll
            for (int i = 0; i < S::LOADS; i++)
                if (row + i * S::STEP >= num_rows)
                    *(uint4 *)(void *)(shared + at * S::STAGE + place(row, i * S::STEP, chunk)) =
                        uint4{0, 0, 0, 0};
    }

    /* The i-th of them, k0 ..; zeros past num_k. */
    __device__ __forceinline__ void load(bf16 *stage, int64_t k0, int i) const
    {
        bf16 *w_tile = stage + (S::TILES + threadIdx.x / 32) * S::TILE;
        bool is_in = k0 + chunk * 8 < num_k;

        cp_async16(w_tile + place(w_row, i * WARP_STEP, chunk), w[i] + k0, is_in);
#pragma unroll
        for (int j = i; j < S::LOADS; j += WARP_LOADS)
            if (row + j * S::STEP < num_rows)
                cp_async16(stage + place(row, j * S::STEP, chunk), rows[j] + k0, is_in);
    }
};

template <class S> struct fragments {
    uint32_t rows[S::TILES][4], w[4];

    /* 16 of k from one stage. */
    __device__ __forceinline__ void load(const bf16 *stage, int k)
    {
        const bf16 *w_tile = stage + (S::TILES + threadIdx.x / 32) * S::TILE;
        int lane = (int)threadIdx.x % 32;

        ldmatrix_x4(w, w_tile + place(lane % 8, lane / 16 * 8, (lane / 8 & 1) ^ 2 * k));
#pragma unroll
        for (int t = 0; t < S::TILES; t++)
            ldmatrix_x4(rows[t], stage + t * S::TILE + place(lane % 16, 0, lane / 16 ^ 2 * k));
    }

    __device__ __forceinline__ void multiply(float (&acc)[S::TILES][2][4]) const
    {
        const uint32_t low[2] = {w[0], w[1]}, high[2] = {w[2], w[3]};

#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            mma_16816(acc[t][0], rows[t], low);
            mma_16816(acc[t][1], rows[t], high);
        }
    }
};

/* A stage's products. While one waits for the one before, the fragments of the one after it and a part of what comes to `next` are asked for. */
template <class S>
static __device__ __forceinline__ void multiply(float (&acc)[S::TILES][2][4], const bf16 *stage,
                                                const few_loads<S> &loads, bf16 *next, int64_t k0)
{
    fragments<S> f[2];

    f[0].load(stage, 0);
#pragma unroll
    for (int k = 0; k < TK / 16; k++) {
        if (k + 1 < TK / 16) f[(k + 1) % 2].load(stage, k + 1);
        f[k % 2].multiply(acc);
        loads.load(next, k0, k);
    }
}

template <class S>
static __device__ __forceinline__ void put(const float (&acc)[S::TILES][2][4],
                                           const few_product &mine, bool is_rounded, int64_t row0,
                                           int64_t rows_left, int64_t col0)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int64_t row = 16 * t + lane / 4 + 8 * (e / 2);
            if (row >= rows_left) continue;
            const int64_t at = (row0 + row) * mine.ldc;
            const ending_row<bf16, few_sum> to = {
                mine.c + at,
                {mine.bias, mine.add ? mine.add + at : NULL, mine.n, mine.factor, is_rounded}};
#pragma unroll
            for (int j = 0; j < 2; j++)
                to.put_two(col0 + 8 * j + lane % 4 * 2, acc[t][j][e], acc[t][j][e + 1]);
        }
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS_A_BLOCK)
    few_rows(const __grid_constant__ few_products p)
{
    DYNAMIC_SHARED(memory);
    bf16 *shared = (bf16 *)(void *)memory;
    int warp = (int)threadIdx.x / 32, which = 0;
    const int64_t row0 = (int64_t)blockIdx.y * (16 * S::TILES), rows_left = p.num_rows - row0;
    float acc[S::TILES][2][4] = {};

    while ((int)blockIdx.x >= p.last[which])
        which++;
    const few_product mine = p.of[which];
    int64_t block = (int)blockIdx.x - (which ? p.last[which - 1] : 0),
            col0 = (block * S::WARPS + warp) * COLS;
    const int steps = (int)((mine.num_k + TK - 1) / TK);
    const few_loads<S> loads(mine, row0, rows_left, col0);
    loads.clear(shared);
#pragma unroll 1
    for (int i = 0; i < S::STAGES - 1; i++) {
#pragma unroll
        for (int j = 0; j < WARP_LOADS; j++)
            loads.load(shared + i * S::STAGE, i * TK, j);
        cp_async_commit();
    }
    for (int i = 0, at = 0, next = S::STAGES - 1; i < steps; i++) {
        cp_async_wait<S::STAGES - 2>();
        __syncthreads();
        multiply<S>(acc, shared + at * S::STAGE, loads, shared + next * S::STAGE,
                    (int64_t)(i + S::STAGES - 1) * TK);
        cp_async_commit();
        next = at;
        at = at + 1 < S::STAGES ? at + 1 : 0;
    }
    put<S>(acc, mine, p.is_rounded, row0, rows_left, col0);
}

template <class S>
static cudaError_t launch(cr_device *dev, few_products &p, const cri_product *from, int num)
{
    auto kernel = few_rows<S>;
    int blocks = 0;
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);

    if (code != cudaSuccess) return code;
    for (int i = 0; i < num; i++) {
        blocks += (int)((from[i].n + COLS * S::WARPS - 1) / (COLS * S::WARPS));
        p.last[i] = blocks;
    }
    return CUDA_LAUNCH(
        kernel,
        dim3((unsigned)blocks, (unsigned)((p.num_rows + 16 * S::TILES - 1) / (16 * S::TILES))),
        dim3(S::THREADS_A_BLOCK), S::BYTES, cri_cuda_stream(dev), p);
}

bool cri_cuda_is_for_few(const cri_product *p)
{
    return p->dtype == CR_BF16 && p->c_dtype == CR_BF16 && p->aux_dtype == CR_BF16 &&
           !p->is_a_turned && !p->is_b_turned && !p->dz && (p->k | p->lda | p->ldb) % 8 == 0;
}

cr_status cri_cuda_product_few(cr_device *dev, const char *op, const cri_product *p, int num,
                               bool is_rounded, cr_err *err)
{
    few_products all = {};
    int64_t cols = 0, max = 0;

    all.num_rows = p->m;
    all.is_rounded = is_rounded;
    for (int i = 0; i < num; i++) {
        all.of[i] = {(const bf16 *)p[i].a,
                     (const bf16 *)p[i].b,
                     (const bf16 *)p[i].bias,
                     (const bf16 *)p[i].add,
                     (bf16 *)p[i].c,
                     p[i].n,
                     p[i].k,
                     p[i].lda,
                     p[i].ldb,
                     p[i].ldc,
                     p[i].factor};
        cols += p[i].n;
        max = p[i].n > max ? p[i].n : max;
    }
    return launched(op,
                    p->m > 16 * narrow::TILES ? max <= 2 * COLS ? launch<slim>(dev, all, p, num)
                                                                : launch<tall>(dev, all, p, num)
                    : cols >= (int64_t)WIDE_FROM * COLS * wide::WARPS
                        ? launch<wide>(dev, all, p, num)
                        : launch<narrow>(dev, all, p, num),
                    err);
}
