/* attention_grad_mma.cu -- backward of attention for bf16 heads of 64 and 128 on tensor cores (attention_grad.cu says what is computed).
 *
 * Mapping: blocks of 4 warps, two kernels. A block keeps 64 rows, a warp 16 of them, while tiles of 32 rows of the other side
 * pass by in two stages of cp.async:
 *   dK and dV: 64 keys of a sequence and kv head; q and dO pass, head after head of the group, rows upwards;
 *   dq: 64 rows of a head; K and V pass, upwards.
 * S and dP (or their transposes) are mma.m16n8k16 over ascending head_dim; P from lse in float32; P and P (dP - delta), rounded to
 * bf16, are the next products' A from the registers they are in. The scale is multiplied at the end. Each sum is taken in one order, in
 * float32, by mma over ascending rows or keys from the beginning of the sequence: no atomics, and no other sequence, head or
 * row in it. Where a row sees no key of its block's tiles it adds zeros.
 *
 * FLOPs 14 D a pair of query and key (S and dP are made twice): 8 D for dK and dV, 6 D for dq. Bytes from L2 a row that passes: 4 D (and 8 for dK,
 * dV): 128 and 96 FLOPs a byte. Shared memory 2 x 64 x D and two stages of 2 x 32 x D: 64 KiB for D 128, 32 KiB for D 64. Registers
 * (dK, dV: 2 x 16 x D sums a warp): below 256, two blocks an SM. Limit of an H100 or H200: ldmatrix, since a warp reads
 * each fragment for 16 rows alone; dK and dV of D 128 read K and V anew for each tile, all others keep them in
 * registers: 0.72 (dK, dV) and 0.88 (dq) of tensor cores on sm_80 by the loop's instructions, 0.36 and 0.43 of wgmma's rate on sm_90, where
 * mma.sync itself stops at about 0.62 (bench/gpu_static). A batch with few kv heads has few blocks of dK and dV: T / 64 x kv heads.
 */
#include "kernels/cuda/attention/attention_grad.h"
#include "kernels/cuda/attention/attention_mma.h"

#include <math.h>

enum { STAY = 64, PASS = 32, WARP_ROWS = 16, TILES_OF = 2 * (STAY + 2 * PASS) };

/* The block's two tiles that stay, and fragments of a warp's rows of them: in registers where they have room. */
template <int D, bool IS_KEPT> struct staying {
    const bf16 *tiles; /* [2][STAY, D] */
    uint32_t kept[IS_KEPT ? D / 8 : 1][4];

    __device__ __forceinline__ void fragment(uint32_t (&a)[4], int which, int i) const
    {
        a_fragment<D>(a, tiles + which * STAY * D, (int)threadIdx.x / 32 * WARP_ROWS, i);
    }
    __device__ __forceinline__ void take(const bf16 *from)
    {
        tiles = from;
        if constexpr (IS_KEPT) {
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                fragment(kept[i], i / (D / 16), i % (D / 16));
        }
    }
};

/* s[0] and s[1]: products of the rows that stay and those that pass. passing: [2][PASS, D]. */
template <int D, bool IS_KEPT>
static __device__ __forceinline__ void
two_products(float (&s)[2][PASS / 8][4], const staying<D, IS_KEPT> &stay, const bf16 *passing)
{
#pragma unroll
    for (int which = 0; which < 2; which++) {
        set_zero(s[which]);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t a[4];
            if constexpr (IS_KEPT) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[e] = stay.kept[which * (D / 16) + i][e];
            } else {
                stay.fragment(a, which, i);
            }
#pragma unroll
            for (int n = 0; n < PASS / 8; n += 2)
                multiply_rows<D>(s[which], a, passing + which * PASS * D, n, i);
        }
    }
}

/* c += s X, X the rows that pass. */
template <int D>
static __device__ __forceinline__ void add_product(float (&c)[D / 8][4],
                                                   const float (&s)[PASS / 8][4], const bf16 *x)
{
#pragma unroll
    for (int i = 0; i < PASS / 16; i++) {
        uint32_t a[4];
        a_of_sums(a, s, i);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2)
            multiply_cols<D>(c, a, x, d, i);
    }
}

/* S -inf and dP 0 where a row does not see a key; is_seen of a row that stays, of the warp, and one that passes. */
template <class Seen>
static __device__ __forceinline__ void hide(float (&s)[2][PASS / 8][4], const Seen &is_seen)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < PASS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!is_seen(lane / 4 + 8 * (e / 2), 8 * n + lane % 4 * 2 + e % 2)) {
                s[0][n][e] = -INFINITY;
                s[1][n][e] = 0.0f;
            }
}

static __device__ __forceinline__ float lse_of(const sequence<bf16> &seq, int row)
{ /* in base 2; of no row: P is 0 */
    return row < seq.see.len ? in_base_2(seq.lse[row * seq.num_heads]) : INFINITY;
}
static __device__ __forceinline__ float delta_of(const sequence<bf16> &seq, int row)
{
    return row < seq.see.len ? seq.delta[row * seq.num_heads] : 0.0f;
}

template <int ROWS, int D>
static __device__ __forceinline__ void load_two(bf16 *tiles, const head_rows<bf16> &x,
                                                const head_rows<bf16> &y, int first, int len)
{
    load_tile<ROWS, D>(tiles, {x.x + first * x.stride, x.stride}, len - first);
    load_tile<ROWS, D>(tiles + ROWS * D, {y.x + first * y.stride, y.stride}, len - first);
}

/* ---- dK and dV ---- */

/* lse and delta of a tile's rows. */
struct row_sums {
    float lse[PASS], delta[PASS];
};

/* The rows that pass, in their order: tiles of the sequence, for each head of the group. */
template <int D> struct rows_to_come {
    const grad_args<bf16> *a;
    seq_piece piece;
    int first_head, first_row, tiles_a_head;

    __device__ __forceinline__ int row(int tile) const
    {
        return first_row + tile % tiles_a_head * PASS;
    }
    __device__ __forceinline__ void load(bf16 *tiles, row_sums *sums, int tile) const
    {
        const sequence<bf16> seq = sequence_of(*a, piece, first_head + tile / tiles_a_head);
        int i0 = row(tile), i = (int)threadIdx.x % PASS;

        load_two<PASS, D>(tiles, seq.q, seq.d_o, i0, piece.len);
        if ((int)threadIdx.x < PASS)
            sums->lse[i] = lse_of(seq, i0 + i);
        else if ((int)threadIdx.x < 2 * PASS)
            sums->delta[i] = delta_of(seq, i0 + i);
    }
};

/* s: S^T and dP^T of the warp's keys from `key` on and the tile's rows become P^T and P^T (dP^T - delta). */
static __device__ __forceinline__ void weigh_keys(float (&s)[2][PASS / 8][4], const row_sums *sums,
                                                  const sight &see, int key, int row, float scale)
{
    int lane = (int)threadIdx.x % 32;

    if (!see.is_all_seen(row, PASS, key, WARP_ROWS))
        hide(s, [&](int stay, int pass) { return see.is_seen(row + pass, key + stay); });
#pragma unroll
    for (int n = 0; n < PASS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = 8 * n + lane % 4 * 2 + e % 2;
            s[0][n][e] = exp2f(fmaf(s[0][n][e], scale, -sums->lse[i]));
            s[1][n][e] = s[0][n][e] * (s[1][n][e] - sums->delta[i]);
        }
}

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grad_of_keys_mma(grad_args<bf16> a)
{
    constexpr int PAIR = 2 * PASS * D;
    DYNAMIC_SHARED(memory);
    SHARED(row_sums, sums, 2);
    bf16 *stays = (bf16 *)(void *)memory, *stages = stays + 2 * STAY * D;
    int kv = (int)blockIdx.y, group = a.num_heads / a.num_kv_heads, lane = (int)threadIdx.x % 32;
    const seq_piece piece = piece_of_block(a.cu_seqlens, (a.max_seqlen + STAY - 1) / STAY, STAY);
    if (piece.first >= piece.len) return;
    const sequence<bf16> seq = sequence_of(a, piece, kv * group);
    int k0 = piece.first, key = k0 + (int)threadIdx.x / 32 * WARP_ROWS, /* the warp's first */
        first = a.is_bidirectional ? 0 : k0,
        last = k0 + STAY < piece.len ? k0 + STAY - 1 : piece.len - 1,
        end = a.window > 0 && a.window < piece.len - last ? last + a.window : piece.len,
        tiles = (end - first + PASS - 1) / PASS;
    const rows_to_come<D> rows = {&a, piece, kv * group, first, tiles};
    float dk[D / 8][4], dv[D / 8][4];
    staying<D, D == 64> stay;

    set_zero(dk);
    set_zero(dv);
    load_two<STAY, D>(stays, seq.k, seq.v, k0, piece.len);
    cp_async_commit();
    rows.load(stages, sums, 0);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    stay.take(stays);
    for (int i = 0; i < tiles * group; i++) {
        if (i + 1 < tiles * group) rows.load(stages + (~i & 1) * PAIR, sums + (~i & 1), i + 1);
        cp_async_commit(); /* empty at the end */
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *q = stages + (i & 1) * PAIR, *d_o = q + PASS * D;
        float s[2][PASS / 8][4];
        two_products<D>(s, stay, q);
        weigh_keys(s, sums + (i & 1), seq.see, key, rows.row(i), in_base_2(a.scale));
        add_product<D>(dv, s[0], d_o);
        add_product<D>(dk, s[1], q);
        __syncthreads(); /* the load after next overwrites this stage */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int j = key + lane / 4 + 8 * h;
        if (j >= piece.len) continue;
        int64_t at = ((int64_t)(piece.begin + j) * a.num_kv_heads + kv) * D;
        store_row<D>(a.dk + at, dk, h, a.scale);
        store_row<D>(a.dv + at, dv, h, 1.0f);
    }
}

/* ---- dq ---- */

/* s: S and dP of the warp's rows from `row` on and the tile's keys; s[1] becomes P (dP - delta). */
static __device__ __forceinline__ void weigh_rows(float (&s)[2][PASS / 8][4], const float (&lse)[2],
                                                  const float (&delta)[2], const sight &see,
                                                  int row, int key, float scale)
{
    if (!see.is_all_seen(row, WARP_ROWS, key, PASS))
        hide(s, [&](int stay, int pass) { return see.is_seen(row + stay, key + pass); });
#pragma unroll
    for (int n = 0; n < PASS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[1][n][e] = exp2f(fmaf(s[0][n][e], scale, -lse[e / 2])) * (s[1][n][e] - delta[e / 2]);
}

template <int D>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grad_of_rows_mma(grad_args<bf16> a)
{
    constexpr int PAIR = 2 * PASS * D;
    DYNAMIC_SHARED(memory);
    bf16 *stays = (bf16 *)(void *)memory, *stages = stays + 2 * STAY * D;
    int head = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const seq_piece piece = piece_of_block(a.cu_seqlens, (a.max_seqlen + STAY - 1) / STAY, STAY);
    if (piece.first >= piece.len) return;
    const sequence<bf16> seq = sequence_of(a, piece, head);
    const block_rows block = rows_of_piece(piece, STAY, a.window, a.is_bidirectional);
    int row = piece.first + (int)threadIdx.x / 32 * WARP_ROWS, /* the warp's first */
        first = first_key(block) / PASS * PASS, tiles = (last_key(block) - first + PASS - 1) / PASS;
    const float lse[2] = {lse_of(seq, row + lane / 4), lse_of(seq, row + lane / 4 + 8)},
                delta[2] = {delta_of(seq, row + lane / 4), delta_of(seq, row + lane / 4 + 8)};
    float dq[D / 8][4];
    staying<D, true> stay;

    set_zero(dq);
    load_two<STAY, D>(stays, seq.q, seq.d_o, piece.first, piece.len);
    cp_async_commit();
    load_two<PASS, D>(stages, seq.k, seq.v, first, piece.len);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    stay.take(stays);
    for (int i = 0; i < tiles; i++) {
        int k0 = first + i * PASS;
        if (i + 1 < tiles)
            load_two<PASS, D>(stages + (~i & 1) * PAIR, seq.k, seq.v, k0 + PASS, piece.len);
        cp_async_commit(); /* empty at the end */
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *k = stages + (i & 1) * PAIR;
        float s[2][PASS / 8][4];
        two_products<D>(s, stay, k);
        weigh_rows(s, lse, delta, seq.see, row, k0, in_base_2(a.scale));
        add_product<D>(dq, s[1], k);
        __syncthreads(); /* the load after next overwrites this stage */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = row + lane / 4 + 8 * h;
        if (i >= piece.len) continue;
        store_row<D>(a.dq + ((int64_t)(piece.begin + i) * a.num_heads + head) * D, dq, h, a.scale);
    }
}

template <int D> static cudaError_t gradient(cr_device *dev, const grad_args<bf16> &a)
{
    const int shared = TILES_OF * D * (int)sizeof(bf16);
    const unsigned pieces = (unsigned)((a.max_seqlen + STAY - 1) / STAY * a.num_seqs);
    cudaError_t code = launch_shared(
        dev, grad_of_keys_mma<D>, dim3(pieces, (unsigned)a.num_kv_heads), MMA_THREADS, shared, a);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, grad_of_rows_mma<D>, dim3(pieces, (unsigned)a.num_heads), MMA_THREADS,
                         shared, a);
}

cudaError_t grad_on_tensor_cores(cr_device *dev, const grad_args<bf16> &a)
{
    return a.head_dim == 64 ? gradient<64>(dev, a) : gradient<128>(dev, a);
}
