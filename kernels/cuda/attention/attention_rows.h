/* attention_rows.h -- rows of a warp and their online softmax, for attention_mma.cu and attention_wgmma.cu: what one does to a row, the
 * other does in the same order. Inside kernels/cuda only.
 *
 * Of `first` on are a warp's 16 rows of a block's; scores are sums of tensor cores, c[n][e] of mma.m16n8k16 for keys 8 n ..
 */
#ifndef CR_CUDA_ATTENTION_ROWS_H
#define CR_CUDA_ATTENTION_ROWS_H

#include "kernels/cuda/attention/attention_mma.h"

#include <math.h>

enum { KEYS = CR_KV_BLOCK };

/* A warp's 16 rows: lane 4 g + t has rows g and g + 8. */
template <int D> struct warp_rows {
    uint32_t q[D / 16][4];
    float o[D / 8][4], max[2], sum[2]; /* sum: of this lane's columns */
};

template <int D> static __device__ __forceinline__ void start(warp_rows<D> &w)
{
    set_zero(w.o);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.max[h] = -INFINITY;
        w.sum[h] = 0.0f;
    }
}

/* Scores of the keys from k0 on become -inf where a row does not see the key. */
static __device__ __forceinline__ void hide(float (&s)[KEYS / 8][4], const block_rows &rows,
                                            int first, int k0)
{
    int lane = (int)threadIdx.x % 32, end = rows.num_keys + first * rows.step; /* of `first` */

    if (k0 + KEYS <= end && (rows.window == 0 || k0 >= end + 15 * rows.step - rows.window)) return;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = k0 + 8 * n + lane % 4 * 2 + e % 2,
                past = end + (lane / 4 + 8 * (e / 2)) * rows.step;
            bool is_seen = key < past && (rows.window == 0 || key >= past - rows.window);
            if (!is_seen) s[n][e] = -INFINITY;
        }
}

/* s becomes 2^(scale (s - max)), max the largest so far; what was summed before is scaled to it. */
template <int D>
static __device__ __forceinline__ void weigh(float (&s)[KEYS / 8][4], warp_rows<D> &w, float scale)
{
    float factor[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = w.max[h], part = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            max = fmaxf(max, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        float shift = max == -INFINITY ? 0.0f : max; /* no key seen yet */
        factor[h] = exp2_or_zero((w.max[h] - shift) * scale);
        w.max[h] = max;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                s[n][e] = exp2_or_zero((s[n][e] - shift) * scale);
                part += s[n][e];
            }
        w.sum[h] = w.sum[h] * factor[h] + part;
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[d][e] *= factor[e / 2];
}

/* Row i goes to o + i stride, and its logsumexp to lse[i lse_stride]. */
template <int D>
static __device__ __forceinline__ void finish(const warp_rows<D> &w, int first, int num, bf16 *o,
                                              int64_t stride, float *lse, int64_t lse_stride,
                                              float scale)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first + lane / 4 + 8 * h;
        float sum = w.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row >= num) continue;
        store_row<D>(o + row * stride, w.o, h, 1.0f / sum);
        if (lse && lane % 4 == 0) lse[row * lse_stride] = w.max[h] * scale + logf(sum);
    }
}

/* `most` rows of a tile, from row `first` of it on, and where their keys end; num <= 0: it has none there. */
struct tile_rows {
    int64_t row; /* of the call: the first */
    int slot, end;
    block_rows rows;
};
template <class T>
static __device__ __forceinline__ tile_rows rows_of_tile(const cached_args<T> &a, int64_t tile,
                                                         int first, int max)
{
    const cr_row_tile t = a.tiles[tile];
    int left = t.num - first, num = left < max ? left : max, pos = a.row_pos[t.first] + first;

    return tile_rows{t.first + first, a.row_slot[t.first], pos + num,
                     block_rows{num, pos + 1, 1, a.window}};
}

/* ---- where keys lie, by positions that are multiples of KEYS ---- */

struct packed_keys {
    const bf16 *k, *v;
    int64_t stride;
    int end;

    __device__ __forceinline__ head_rows<bf16> keys(int k0) const
    {
        return head_rows<bf16>{k + k0 * stride, stride};
    }
    __device__ __forceinline__ head_rows<bf16> values(int k0) const
    {
        return head_rows<bf16>{v + k0 * stride, stride};
    }
};

struct cached_keys {
    const cached_args<bf16> *a;
    int slot, kv, end;

    __device__ __forceinline__ head_rows<bf16> keys(int k0) const
    {
        return head_rows<bf16>{tiles_of(*a, slot, k0, kv), a->head_dim};
    }
    __device__ __forceinline__ head_rows<bf16> values(int k0) const
    {
        return head_rows<bf16>{tiles_of(*a, slot, k0, kv) + KEYS * a->head_dim, a->head_dim};
    }
};

#endif
