/* attention_grad_wgmma.cu -- backward of attention for bf16 heads of 64 and 128 by wgmma and TMA: for GPUs of compute capability 9.0 alone
 * (compiled for sm_90a; attention_grad.cu chooses, and says what is computed).
 *
 * Mapping: two kernels of one warpgroup a block, which keeps 64 rows while tiles of 32 rows of the other side pass by, in two stages of
 * TMA that thread 0 asks for, each with an mbarrier; a tile that has fewer rows, at a sequence's end, comes by cp.async of all threads
 * with zeros after them. __syncthreads gives a stage back.
 *   dK and dV: 64 keys of a sequence and kv head; q and dO pass, head after head of the group, rows upwards; K and V are A from
 *   registers for D 64, from shared memory for D 128;
 *   dq: 64 rows of a head, q and dO in registers; K and V pass, upwards.
 * S and dP (or their transposes): wgmma.m64n32k16 over ascending head_dim; the products that are summed: wgmma.m64nDk16, A in registers, what
 * passes as B turned by its descriptor. Which tiles, P and dS, what is rounded and all sums are in the order of attention_grad_mma.cu: in the
 * simulation both have the same bits (tests/cuda_sim/attention.c).
 *
 * FLOPs 14 D a pair of query and key: 8 D for dK and dV, 6 D for dq. Bytes from L2 a row that passes: 4 D (and 8 for dK, dV): 128 and
 * 96 FLOPs a byte. Shared memory: stages of 128 D bytes, and K and V of D 128 (32 KiB): 65 KiB (dK, dV) and 33 KiB (dq) for D 128,
 * 17 KiB for D 64. Registers of D 128: 128 of sums, 32 of S and dP, 16 of P and dS a thread (dK, dV), 64, 64, 32 and 8 (dq): at most
 * 255, two blocks an SM. Limit of an H100 or H200: L2, 0.74 (dK, dV) and 0.56 (dq) of tensor cores (bench/gpu_static), if one block of an SM
 * multiplies while the other one weighs, which nothing enforces; a batch with few kv heads has few blocks of dK and dV: T / 64 x
 * kv heads.
 */
#include "kernels/cuda/attention/attention_grad_rows.h"
#include "kernels/cuda/attention/attention_wgmma.h"

enum { STAGES = 2, BOX = PASS * ROW_BYTES };

/* A matrix [T, heads, D]: one sequence and head. */
struct source {
    head_rows<bf16> rows;
    const CUtensorMap *map;
    int column, row; /* of the sequence's first row in the map's matrix */
};

/* Bytes of two tiles, each as D / 64 tiles of 64 columns. */
template <int D, int ROWS> constexpr int PAIR_BYTES = 2 * D / 64 * ROWS *ROW_BYTES;

template <int D, int ROWS>
static __device__ __forceinline__ unsigned char *columns_of(unsigned char *pair, int which, int d)
{
    return pair + (which * (D / 64) + d / 64) * ROWS * ROW_BYTES;
}

/* ROWS rows of x and y from `first` of the sequence of len on. True: not all are there, they come by cp.async, and settle() is due before
 * the next __syncthreads. */
template <int D, int ROWS>
static __device__ __forceinline__ bool load_pair(unsigned char *pair, barrier *full,
                                                 const source (&from)[2], int first, int len)
{
    int some = len - first;

    if (some >= ROWS) {
        if (threadIdx.x > 0) return false;
        barrier_expect(full, PAIR_BYTES<D, ROWS>);
#pragma unroll
        for (int i = 0; i < 2 * D / 64 * ROWS / PASS; i++) {
            int r = i % (ROWS / PASS) * PASS, d = i / (ROWS / PASS) % (D / 64) * 64,
                which = i / (ROWS / PASS) / (D / 64);
            load_box(columns_of<D, ROWS>(pair, which, d) + r * ROW_BYTES, from[which].map,
                     from[which].column + d, from[which].row + first + r, full);
        }
        return false;
    }
#pragma unroll
    for (int i = 0; i < 2 * D / 64; i++) {
        int which = i / (D / 64), d = i % (D / 64) * 64;
        const head_rows<bf16> &rows = from[which].rows;
        load_tile<ROWS, 64>((bf16 *)(void *)columns_of<D, ROWS>(pair, which, d),
                            {rows.x + first * rows.stride + d, rows.stride}, some);
    }
    cp_async_commit();
    if (threadIdx.x == 0) barrier_arrive(full);
    return true;
}

static __device__ __forceinline__ void settle(bool is_due)
{
    if (!is_due) return;
    cp_async_wait<0>();
    fence_async();
}

/* For thread 0 at once, for the others after the next __syncthreads. */
static __device__ __forceinline__ void make_barriers(barrier *full, int num)
{
    if (threadIdx.x > 0) return;
    for (int i = 0; i < num; i++)
        barrier_init(full + i, 1);
    fence_async();
}

/* What stays, as A: in registers or in shared memory. */
template <int D, bool IS_KEPT> struct staying {
    uint32_t kept[2][IS_KEPT ? D / 16 : 1][4];
    unsigned char *pair;

    __device__ __forceinline__ void take(const source (&from)[2], int first, int len)
    {
        if constexpr (IS_KEPT) {
#pragma unroll
            for (int which = 0; which < 2; which++)
                take_a<D>(kept[which], from[which].rows, first, len);
        }
    }
    /* s[0] and s[1]: products of the rows that stay and the pair that passes. */
    __device__ __forceinline__ void multiply(float (&s)[2][PASS / 8][4],
                                             unsigned char *passing) const
    {
        wgmma_fence(s[0], s[1]);
#pragma unroll
        for (int i = 0; i < 2 * D / 16; i++) {
            int which = i / (D / 16), k = i % (D / 16);
            uint64_t b = tile_descriptor(columns_of<D, PASS>(passing, which, 16 * k)) + 2 * (k % 4);
            if constexpr (IS_KEPT)
                wgmma<false>(s[which], kept[which][k], b, k > 0);
            else
                wgmma(s[which],
                      tile_descriptor(columns_of<D, STAY>(pair, which, 16 * k)) + 2 * (k % 4), b,
                      k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>(s[0], s[1]);
    }
};

/* One after the other: 16 rows that pass at a time. Between a fence and a commit. */
template <int D>
static __device__ __forceinline__ void add_product(float (&c)[D / 8][4],
                                                   const uint32_t (&a)[PASS / 16][4],
                                                   unsigned char *passing, int which)
{
#pragma unroll
    for (int i = 0; i < PASS / 16; i++)
        wgmma<true>(c, a[i], tile_descriptor(columns_of<D, PASS>(passing, which, 0), BOX) + 128 * i,
                    true);
}

/* ---- dK and dV ---- */

/* lse of the thread's row of a tile, or delta for the next PASS threads. */
static __device__ __forceinline__ float sum_of_row(const grad_args<bf16> &a, const seq_piece &piece,
                                                   const rows_to_come &rows, int tile)
{
    if ((int)threadIdx.x >= 2 * PASS || tile >= rows.num) return 0.0f;
    const sequence<bf16> seq = sequence_of(a, piece, rows.head(tile));
    int row = rows.row(tile) + (int)threadIdx.x % PASS;

    return (int)threadIdx.x < PASS ? lse_of(seq, row) : delta_of(seq, row);
}
static __device__ __forceinline__ void put_sum(row_sums *sums, float x)
{
    int i = (int)threadIdx.x;

    if (i < PASS)
        sums->lse[i] = x;
    else if (i < 2 * PASS)
        sums->delta[i - PASS] = x;
}

struct grad_maps {
    CUtensorMap q, d_o, k, v;
};

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    grad_of_keys_wgmma(const __grid_constant__ grad_maps maps, grad_args<bf16> a)
{
    constexpr int PAIR = PAIR_BYTES<D, PASS>;
    constexpr bool IS_KEPT = D == 64;
    DYNAMIC_SHARED(memory);
    SHARED(row_sums, sums, STAGES);
    SHARED(barrier, full, STAGES + 1);
    unsigned char *stages = first_tile(memory);
    int kv = (int)blockIdx.y;
    const seq_piece piece = piece_of_block(a.cu_seqlens, (a.max_seqlen + STAY - 1) / STAY, STAY);
    if (piece.first >= piece.len) return;
    const rows_to_come rows = rows_of_keys(a, piece, kv);
    const sight see = {piece.len, a.window, a.is_bidirectional};
    int key = piece.first + (int)threadIdx.x / 32 * WARP_ROWS; /* the warp's first */
    float dk[D / 8][4], dv[D / 8][4];
    staying<D, IS_KEPT> stay;
    auto load = [&](int i) {
        const sequence<bf16> seq = sequence_of(a, piece, rows.head(i));
        const source from[2] = {{seq.q, &maps.q, rows.head(i) * D, piece.begin},
                                {seq.d_o, &maps.d_o, rows.head(i) * D, piece.begin}};
        return load_pair<D, PASS>(stages + i % STAGES * PAIR, full + i % STAGES, from, rows.row(i),
                                  piece.len);
    };

    set_zero(dk);
    set_zero(dv);
    make_barriers(full, STAGES + 1);
    const sequence<bf16> seq = sequence_of(a, piece, rows.first_head);
    const source keys[2] = {{seq.k, &maps.k, kv * D, piece.begin},
                            {seq.v, &maps.v, kv * D, piece.begin}};
    bool is_due = load(0);
    stay.pair = stages + STAGES * PAIR;
    if constexpr (!IS_KEPT)
        is_due |= load_pair<D, STAY>(stay.pair, full + STAGES, keys, piece.first, piece.len);
    if (rows.num > 1) is_due |= load(1);
    stay.take(keys, key, piece.len);
    for (int i = 0; i < STAGES; i++)
        put_sum(sums + i, sum_of_row(a, piece, rows, i));
    settle(is_due);
    __syncthreads();
    if constexpr (!IS_KEPT) barrier_wait(full + STAGES, 0);
    for (int i = 0; i < rows.num; i++) {
        unsigned char *pair = stages + i % STAGES * PAIR;
        float s[2][PASS / 8][4], ahead = sum_of_row(a, piece, rows, i + STAGES);
        uint32_t f[2][PASS / 16][4];
        barrier_wait(full + i % STAGES, i / STAGES & 1);
        stay.multiply(s, pair);
        weigh_keys(s, sums + i % STAGES, see, key, rows.row(i), in_base_2(a.scale));
#pragma unroll
        for (int j = 0; j < PASS / 16; j++) {
            a_of_sums(f[0][j], s[0], j);
            a_of_sums(f[1][j], s[1], j);
        }
        wgmma_fence(f[0], f[1], dk, dv);
        add_product<D>(dv, f[0], pair, 1);
        add_product<D>(dk, f[1], pair, 0);
        wgmma_commit();
        wgmma_wait<0>(dk, dv);
        settle(is_due); /* of the next tile */
        __syncthreads();
        is_due = i + STAGES < rows.num && load(i + STAGES);
        put_sum(sums + i % STAGES, ahead);
    }
    store_keys<D>(a, piece, kv, key, dk, dv);
}

/* ---- dq ---- */

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    grad_of_rows_wgmma(const __grid_constant__ grad_maps maps, grad_args<bf16> a)
{
    constexpr int PAIR = PAIR_BYTES<D, PASS>;
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, STAGES);
    unsigned char *stages = first_tile(memory);
    int head = (int)blockIdx.y, kv = head / (a.num_heads / a.num_kv_heads),
        lane = (int)threadIdx.x % 32;
    const seq_piece piece = piece_of_block(a.cu_seqlens, (a.max_seqlen + STAY - 1) / STAY, STAY);
    if (piece.first >= piece.len) return;
    const sequence<bf16> seq = sequence_of(a, piece, head);
    const keys_to_come keys = keys_of_rows(a, piece);
    int row = piece.first + (int)threadIdx.x / 32 * WARP_ROWS; /* the warp's first */
    const float lse[2] = {lse_of(seq, row + lane / 4), lse_of(seq, row + lane / 4 + 8)},
                delta[2] = {delta_of(seq, row + lane / 4), delta_of(seq, row + lane / 4 + 8)};
    const source from[2] = {{seq.k, &maps.k, kv * D, piece.begin},
                            {seq.v, &maps.v, kv * D, piece.begin}},
                 mine[2] = {{seq.q, &maps.q, 0, 0}, {seq.d_o, &maps.d_o, 0, 0}};
    float dq[D / 8][4];
    staying<D, true> stay;
    auto load = [&](int i) {
        return load_pair<D, PASS>(stages + i % STAGES * PAIR, full + i % STAGES, from,
                                  keys.first + i * PASS, piece.len);
    };

    set_zero(dq);
    make_barriers(full, STAGES);
    bool is_due = load(0);
    if (keys.num > 1) is_due |= load(1);
    stay.take(mine, row, piece.len);
    settle(is_due);
    __syncthreads();
    for (int i = 0; i < keys.num; i++) {
        unsigned char *pair = stages + i % STAGES * PAIR;
        float s[2][PASS / 8][4];
        uint32_t f[PASS / 16][4];
        barrier_wait(full + i % STAGES, i / STAGES & 1);
        stay.multiply(s, pair);
        weigh_rows(s, lse, delta, seq.see, row, keys.first + i * PASS, in_base_2(a.scale));
#pragma unroll
        for (int j = 0; j < PASS / 16; j++)
            a_of_sums(f[j], s[1], j);
        wgmma_fence(f, dq);
        add_product<D>(dq, f, pair, 0);
        wgmma_commit();
        wgmma_wait<0>(dq);
        settle(is_due); /* of the next tile */
        __syncthreads();
        is_due = i + STAGES < keys.num && load(i + STAGES);
    }
    store_rows<D>(a, piece, head, row, dq);
}

template <int D> static cudaError_t gradient(cr_device *dev, const grad_args<bf16> &a)
{
    const int stages = STAGES * PAIR_BYTES<D, PASS> + TILE_ATOM,
              stays = D == 64 ? 0 : PAIR_BYTES<D, STAY>;
    const unsigned pieces = (unsigned)((a.max_seqlen + STAY - 1) / STAY * a.num_seqs);
    const int64_t cols = (int64_t)a.num_heads * D, kv_cols = (int64_t)a.num_kv_heads * D;
    grad_maps maps;
    cudaError_t code = map_of_rows(dev, &maps.q, a.q, a.num_rows, cols, PASS);

    if (code == cudaSuccess) code = map_of_rows(dev, &maps.d_o, a.d_o, a.num_rows, cols, PASS);
    if (code == cudaSuccess) code = map_of_rows(dev, &maps.k, a.k, a.num_rows, kv_cols, PASS);
    if (code == cudaSuccess) code = map_of_rows(dev, &maps.v, a.v, a.num_rows, kv_cols, PASS);
    if (code == cudaSuccess)
        code = launch_shared(dev, grad_of_keys_wgmma<D>, dim3(pieces, (unsigned)a.num_kv_heads),
                             MMA_THREADS, stages + stays, maps, a);
    if (code != cudaSuccess) return code;
    return launch_shared(dev, grad_of_rows_wgmma<D>, dim3(pieces, (unsigned)a.num_heads),
                         MMA_THREADS, stages, maps, a);
}

cudaError_t grad_by_wgmma(cr_device *dev, const grad_args<bf16> &a)
{
    return a.head_dim == 64 ? gradient<64>(dev, a) : gradient<128>(dev, a);
}
