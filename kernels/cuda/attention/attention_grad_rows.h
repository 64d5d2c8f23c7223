/* attention_grad_rows.h -- what attention_grad_mma.cu and attention_grad_wgmma.cu do alike, in the same order: the sides that stay and pass,
 * P and dS from S and dP, and what is stored. Inside kernels/cuda only.
 *
 * Of a warp's 16 rows or keys that stay and 8 N that pass, S and dP are sums of tensor cores, as c[n][e] of mma.m16n8k16 has them.
 */
#ifndef CR_CUDA_ATTENTION_GRAD_ROWS_H
#define CR_CUDA_ATTENTION_GRAD_ROWS_H

#include "kernels/cuda/attention/attention_grad.h"
#include "kernels/cuda/attention/attention_mma.h"

#include <math.h>

enum { WARP_ROWS = 16 };

/* S -inf and dP 0 where a row does not see a key. seen(half): of that one of the lane's two rows or keys that stay, which of those that
 * pass. */
template <int N, class Seen>
static __device__ __forceinline__ void hide(float (&s)[N][4], float (&d)[N][4], const Seen &seen)
{
    int first = (int)threadIdx.x % 4 * 2;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const pass_range range = seen(half);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                if (!range.has(8 * n + first + e % 2)) {
                    s[n][e] = -INFINITY;
                    d[n][e] = 0.0f;
                }
    }
}
/* The lane's two of the warp's from `first` on. */
static __device__ __forceinline__ int of_lane(int first, int half)
{
    return first + (int)threadIdx.x % 32 / 4 + 8 * half;
}

static __device__ __forceinline__ float lse_of(const sequence<bf16> &seq, int row)
{ /* in base 2; of no row: P is 0 */
    return row < seq.see.len ? in_base_2(seq.lse[row]) : INFINITY;
}
static __device__ __forceinline__ float delta_of(const sequence<bf16> &seq, int row)
{
    return row < seq.see.len ? seq.delta[row] : 0.0f;
}

/* ---- dK and dV: keys stay ---- */

/* lse and delta of a tile's rows. */
template <int ROWS> struct row_sums {
    float lse[ROWS], delta[ROWS];
};

/* The rows that see some of num_keys keys from the piece's first on: from `first` to before `end`, of each head of the group. */
struct row_range {
    int first, end;
};
static __device__ __forceinline__ row_range rows_of_keys(const grad_args<bf16> &a,
                                                         const seq_piece &piece, int num_keys)
{
    int k0 = piece.first, last = num_keys < piece.len - k0 ? k0 + num_keys - 1 : piece.len - 1;

    return row_range{a.is_bidirectional ? 0 : k0,
                     a.window > 0 && a.window < piece.len - last ? last + a.window : piece.len};
}

/* Tiles of 8 N of them, in their order: a head's, upwards, then the next head's. */
template <int N> struct rows_to_come {
    row_range rows;
    int head, row, num; /* of the next tile; tiles, of all heads */

    __device__ __forceinline__ void step(void)
    {
        row += 8 * N;
        if (row < rows.end) return;
        row = rows.first;
        head++;
    }
};
template <int N>
static __device__ __forceinline__ rows_to_come<N> tiles_of_rows(const grad_args<bf16> &a,
                                                                const row_range &rows, int kv)
{
    int group = a.num_heads / a.num_kv_heads;

    return rows_to_come<N>{rows, kv * group, rows.first,
                           (rows.end - rows.first + 8 * N - 1) / (8 * N) * group};
}

/* s: S^T of the warp's keys from `key` on and the tile's rows, becomes P^T; d: dP^T, becomes P^T (dP^T - delta). */
template <int N>
static __device__ __forceinline__ void weigh_keys(float (&s)[N][4], float (&d)[N][4],
                                                  const row_sums<8 * N> &sums, const sight &see,
                                                  int key, int row, float scale)
{
    int first = (int)threadIdx.x % 4 * 2;

    if (!see.is_all_seen(row, 8 * N, key, WARP_ROWS))
        hide(s, d, [&](int half) { return see.rows_of(of_lane(key, half), row); });
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = 8 * n + first + e % 2;
            s[n][e] = exp2_or_zero(fmaf(s[n][e], scale, -sums.lse[i]));
            d[n][e] = s[n][e] * (d[n][e] - sums.delta[i]);
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
        int j = of_lane(key, h);
        if (j >= piece.len) continue;
        int64_t at = ((int64_t)(piece.begin + j) * a.num_kv_heads + kv) * D;
        store_row<D>(a.dk + at, dk, h, a.scale);
        store_row<D>(a.dv + at, dv, h, 1.0f);
    }
}

/* ---- dq: rows stay ---- */

/* Of the warp's rows from `row` on, those of this lane. */
struct lane_sums {
    float lse[2], delta[2];
};
static __device__ __forceinline__ lane_sums sums_of_lane(const sequence<bf16> &seq, int row)
{
    int first = of_lane(row, 0), second = of_lane(row, 1);

    return lane_sums{{lse_of(seq, first), lse_of(seq, second)},
                     {delta_of(seq, first), delta_of(seq, second)}};
}

/* s: S of the warp's rows from `row` on and the tile's keys, becomes P; d: dP, becomes P (dP - delta). */
template <int N>
static __device__ __forceinline__ void weigh_rows(float (&s)[N][4], float (&d)[N][4],
                                                  const lane_sums &sums, const sight &see, int row,
                                                  int key, float scale)
{
    if (!see.is_all_seen(row, WARP_ROWS, key, 8 * N))
        hide(s, d, [&](int half) { return see.keys_of(of_lane(row, half), key); });
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_or_zero(fmaf(s[n][e], scale, -sums.lse[e / 2]));
            d[n][e] = s[n][e] * (d[n][e] - sums.delta[e / 2]);
        }
}

/* Of the warp's rows from `row` on. */
template <int D>
static __device__ __forceinline__ void store_rows(const grad_args<bf16> &a, const seq_piece &piece,
                                                  int head, int row, const float (&dq)[D / 8][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = of_lane(row, h);
        if (i >= piece.len) continue;
        store_row<D>(a.dq + ((int64_t)(piece.begin + i) * a.num_heads + head) * D, dq, h, a.scale);
    }
}

#endif
