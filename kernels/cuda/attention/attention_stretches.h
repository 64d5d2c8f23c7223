/* attention_stretches.h -- sums of rows over stretches of SPLIT keys (attention.h), for attention_mma.cu and attention_wgmma.cu: kept in
 * shared memory by a block that takes several, in device memory by blocks that share a row's keys. Inside kernels/cuda only.
 */
#ifndef CR_CUDA_ATTENTION_STRETCHES_H
#define CR_CUDA_ATTENTION_STRETCHES_H

#include "kernels/cuda/attention/attention_rows.h"

/* A thread's sums of a warp's rows, in memory: those of a warp lie together, [NUM, 32]. */
template <int D> struct kept_rows {
    static constexpr int NUM = D / 2 + 4;
    float *memory; /* of this thread */

    __device__ __forceinline__ float &at(int e) const
    {
        return memory[e * 32];
    }
    __device__ __forceinline__ float &max(int half) const
    {
        return at(D / 2 + half);
    }
    __device__ __forceinline__ float &sum(int half) const
    {
        return at(D / 2 + 2 + half);
    }
};
/* Those of warp `warp` of many. */
template <int D>
static __device__ __forceinline__ kept_rows<D> kept_of_warp(void *memory, int64_t warp)
{
    return {(float *)memory + warp * kept_rows<D>::NUM * 32 + threadIdx.x % 32};
}
/* Shared memory of a block whose NUM threads keep rows. */
template <int D, int NUM> static constexpr int kept_bytes(void)
{
    return NUM * kept_rows<D>::NUM * (int)sizeof(float);
}

template <int D>
static __device__ __forceinline__ void keep(const kept_rows<D> &kept, const warp_rows<D> &w)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        kept.max(h) = w.max[h];
        kept.sum(h) = w.sum[h];
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            kept.at(4 * d + e) = w.o[d][e];
}

template <int D>
static __device__ __forceinline__ void take_back(warp_rows<D> &w, const kept_rows<D> &kept)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.max[h] = kept.max(h);
        w.sum[h] = kept.sum(h);
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[d][e] = kept.at(4 * d + e);
}

/* w becomes the stretches before it, which are kept, and itself; both scaled to the larger of the largest scores. */
template <int D>
static __device__ __forceinline__ void add_to(const kept_rows<D> &before, warp_rows<D> &w,
                                              float scale)
{
    float of_before[2], of_w[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = fmaxf(before.max(h), w.max[h]), shift = max == -INFINITY ? 0.0f : max;
        of_before[h] = exp2_or_zero((before.max(h) - shift) * scale);
        of_w[h] = exp2_or_zero((w.max[h] - shift) * scale);
        w.max[h] = max;
        w.sum[h] = fmaf(before.sum(h), of_before[h], w.sum[h] * of_w[h]);
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[d][e] = fmaf(before.at(4 * d + e), of_before[e / 2], w.o[d][e] * of_w[e / 2]);
}

/* After the tile of keys before `next`, of those from the tile `first` on: a stretch that ends there joins those before it, and w begins
 * anew. */
template <int D>
static __device__ __forceinline__ void end_tile(warp_rows<D> &w, const kept_rows<D> &kept,
                                                int first, int next, int end, float scale)
{
    if (next % SPLIT != 0 || next >= end) return;
    if (next - SPLIT > first) add_to(kept, w, scale);
    keep(kept, w);
    start(w);
}

/* After the last tile. */
template <int D>
static __device__ __forceinline__ void end_tiles(warp_rows<D> &w, const kept_rows<D> &kept,
                                                 int first, int end, float scale)
{
    if ((end - 1) / SPLIT > first / SPLIT) add_to(kept, w, scale);
}

/* The block's stretch of a row's keys, if blocks share them; false: it has none. */
static __device__ __forceinline__ bool take_share(block_rows *rows, const shares &s)
{
    if (!s.sums) return true;
    rows->begin = (int)blockIdx.z * SPLIT;
    rows->end = rows->begin + SPLIT;
    return first_key(*rows) < last_key(*rows);
}

/* Where a thread of the block leaves its sums of the stretch. */
template <int D>
static __device__ __forceinline__ kept_rows<D> kept_share(const shares &s, int stretch)
{
    int64_t part = (int64_t)blockIdx.x * gridDim.y + blockIdx.y;

    return kept_of_warp<D>(s.sums, (part * s.num + stretch) * s.warps + threadIdx.x / 32);
}

/* Of a block of cached rows, `num` of them: to o, or its stretch to the sums of all. */
template <int D>
static __device__ __forceinline__ void finish_cached(const warp_rows<D> &w, int num, bf16 *o,
                                                     const shares &s, float scale)
{
    int first = (int)threadIdx.x / 32 * 16;

    if (!s.sums)
        finish<D>(w, first, num, o, D, NULL, 0, scale);
    else if (first < num)
        keep(kept_share<D>(s, (int)blockIdx.z), w);
}

#endif
