/* attention_grad_rows.h -- what attention_grad_mma.cu and attention_grad_wgmma.cu do alike, in the same order: the sides that stay and pass,
 * P and dS from S and dP, and what is stored. Inside kernels/cuda only.
 *
 * Of a warp's 16 rows or keys that stay and PASS that pass, S and dP are s[0] and s[1], sums of tensor cores as c[n][e] of mma.m16n8k16
 * has them.
 */
#ifndef CR_CUDA_ATTENTION_GRAD_ROWS_H
#define CR_CUDA_ATTENTION_GRAD_ROWS_H

#include "kernels/cuda/attention/attention_grad.h"
#include "kernels/cuda/attention/attention_mma.h"

#include <math.h>

enum { STAY = 64, PASS = 32, WARP_ROWS = 16 };

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

/* ---- dK and dV: keys stay ---- */

/* lse and delta of a tile's rows. */
struct row_sums {
    float lse[PASS], delta[PASS];
};

/* A tile of rows that pass: of which head, from which row on. */
struct tile_rows {
    int head, row;
};

/* The rows that pass, in their order: tiles of the sequence, for each head of the group. */
struct rows_to_come {
    int first_head, first_row, tiles_a_head, num; /* tiles, of all heads */

    __device__ __forceinline__ int head(int tile) const
    {
        return first_head + tile / tiles_a_head;
    }
    __device__ __forceinline__ int row(int tile) const
    {
        return first_row + tile % tiles_a_head * PASS;
    }
    /* Without a division, whose registers a loop may lack. */
    __device__ __forceinline__ tile_rows after(const tile_rows &tile) const
    {
        bool is_last = tile.row == first_row + (tiles_a_head - 1) * PASS;

        return {is_last ? tile.head + 1 : tile.head, is_last ? first_row : tile.row + PASS};
    }
};

/* Those that see keys of the piece. */
static __device__ __forceinline__ rows_to_come rows_of_keys(const grad_args<bf16> &a,
                                                            const seq_piece &piece, int kv)
{
    int group = a.num_heads / a.num_kv_heads, k0 = piece.first, first = a.is_bidirectional ? 0 : k0,
        last = k0 + STAY < piece.len ? k0 + STAY - 1 : piece.len - 1,
        end = a.window > 0 && a.window < piece.len - last ? last + a.window : piece.len,
        tiles = (end - first + PASS - 1) / PASS;

    return rows_to_come{kv * group, first, tiles, tiles * group};
}

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

/* Of the warp's keys from `key` on. */
template <int D>
static __device__ __forceinline__ void store_keys(const grad_args<bf16> &a, const seq_piece &piece,
                                                  int kv, int key, const float (&dk)[D / 8][4],
                                                  const float (&dv)[D / 8][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int j = key + (int)threadIdx.x % 32 / 4 + 8 * h;
        if (j >= piece.len) continue;
        int64_t at = ((int64_t)(piece.begin + j) * a.num_kv_heads + kv) * D;
        store_row<D>(a.dk + at, dk, h, a.scale);
        store_row<D>(a.dv + at, dv, h, 1.0f);
    }
}

/* ---- dq: rows stay ---- */

/* The tiles of keys that pass. */
struct keys_to_come {
    int first, num;
};
static __device__ __forceinline__ keys_to_come keys_of_rows(const grad_args<bf16> &a,
                                                            const seq_piece &piece)
{
    const block_rows block = rows_of_piece(piece, STAY, a.window, a.is_bidirectional);
    int first = first_key(block) / PASS * PASS;

    return keys_to_come{first, (last_key(block) - first + PASS - 1) / PASS};
}

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

/* Of the warp's rows from `row` on. */
template <int D>
static __device__ __forceinline__ void store_rows(const grad_args<bf16> &a, const seq_piece &piece,
                                                  int head, int row, const float (&dq)[D / 8][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = row + (int)threadIdx.x % 32 / 4 + 8 * h;
        if (i >= piece.len) continue;
        store_row<D>(a.dq + ((int64_t)(piece.begin + i) * a.num_heads + head) * D, dq, h, a.scale);
    }
}

#endif
