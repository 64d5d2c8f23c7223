/* log_probs.h -- what a row of logits becomes before it is reduced (cr_row_processors), token by token, and the reduction of rows that
 * head, logits_log_prob and draw share (head.cu). Inside kernels/cuda only.
 */
#ifndef CR_CUDA_LOG_PROBS_H
#define CR_CUDA_LOG_PROBS_H

#include "kernels/cuda/op.h"

/* In the order of tokens by falling z, equal ones by id: the last token that a filter has kept. */
struct token_limit {
    uint32_t key; /* of its z */
    int32_t id;
};

/* Grows as z falls; -0 is 0. */
static __device__ __forceinline__ uint32_t falling_key(float z)
{
    uint32_t bits = as_uint(z + 0.0f);

    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

/* cr_row_processors_mem as kernels read it. */
struct row_processors {
    bool is_on;
    float temperature, penalty;
    const float *temperatures;
    const size_t *kept_first, *seen_first;
    const int32_t *kept_num, *kept_ids, *seen_list, *seen_until, *seen_ids, *seen_place;
    const token_limit *limits; /* of each row, instead of a list of kept tokens; NULL: none */
};

row_processors cri_cuda_processors(const cr_row_processors_mem *e);

/* Where id is in ids[0 .. num - 1], which ascend, or -1. */
static __device__ __forceinline__ int64_t find_id(const int32_t *ids, int64_t num, int32_t id)
{
    int64_t low = 0, high = num;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < num && ids[low] == id ? low : -1;
}

/* The logit of a token of row `row`, edited. False: the token is not kept. slope: dz'/dz. */
static __device__ __forceinline__ bool process_logit(const row_processors &e, int64_t row,
                                                     int32_t id, float &z, float &slope)
{
    slope = 1.0f;
    if (!e.is_on) return true;
    int32_t num_kept = e.kept_first ? e.kept_num[row] : 0;
    if (num_kept && find_id(e.kept_ids + e.kept_first[row], num_kept, id) < 0) return false;
    if (e.penalty != 1.0f) {
        size_t first = e.seen_first[e.seen_list[row]], end = e.seen_first[e.seen_list[row] + 1];
        int64_t at = find_id(e.seen_ids + first, (int64_t)(end - first), id);
        if (at >= 0 && e.seen_place[first + at] <= e.seen_until[row]) {
            slope = z < 0.0f ? e.penalty : 1.0f / e.penalty;
            z = z < 0.0f ? z * e.penalty : z / e.penalty;
        }
    }
    float temperature = e.temperatures ? e.temperatures[row] : e.temperature;
    slope /= temperature;
    if (temperature != 1.0f) z /= temperature;
    if (!e.limits) return true;
    const token_limit last = e.limits[row];
    uint32_t key = falling_key(z);
    return key < last.key || (key == last.key && id <= last.id);
}

/* (z, id) goes before (other_z, other_id) in the list of the largest. */
static __device__ __forceinline__ bool is_before(float z, int32_t id, float other_z,
                                                 int32_t other_id)
{
    return z > other_z || (z == other_z && id < other_id);
}

/* The first of the (z, id) of all G threads in that order; id INT32_MAX: none. */
template <int G>
static __device__ __forceinline__ void block_first(float &z, int32_t &id, float *zs, int32_t *ids)
{
    for (int d = 16; d > 0; d /= 2) {
        float other_z = __shfl_xor_sync(0xffffffffu, z, d);
        int32_t other_id = __shfl_xor_sync(0xffffffffu, id, d);
        if (is_before(other_z, other_id, z, id)) z = other_z, id = other_id;
    }
    if (threadIdx.x % 32 == 0) zs[threadIdx.x / 32] = z, ids[threadIdx.x / 32] = id;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < G / 32; i++)
        if (is_before(zs[i], ids[i], z, id)) z = zs[i], id = ids[i];
    __syncthreads(); /* zs and ids may be used again */
}

/* Rows of logits to be reduced, and the results, as in cr_head_args; NULL: not wanted. */
typedef struct cri_log_prob_rows {
    int64_t num_rows,
        first_row; /* first_row: number of the first one in labels, processors and results */
    int64_t vocab_size;
    const int32_t *labels;
    row_processors processors;
    float *log_prob, *entropy, *lse, *mean_z;
    int32_t *rank;
    int64_t num_top;
    int32_t *top_ids;
    float *top_log_prob;
    int64_t num_chosen;
    const int32_t *chosen_ids;
    float *chosen_log_prob;
} cri_log_prob_rows;

/* Of one row, while tiles are taken in. */
struct log_prob_state {
    float max, sum, moment, label; /* M, sum e^(z - M), sum (z - M) e^(z - M), z of the label */
    int32_t num_top, rank;
};

enum { CRI_TILE_TOKENS = 1024 }; /* of a tile */

/* Begin; take in tokens v0 .. v0 + cols - 1, z [num_rows] with row stride ld from token v0 on, v0 where a
 * tile begins; end. state: [num_rows] scratch. If the rank is wanted, state.label is filled in between begin and the first
 * tile. */
cudaError_t cri_cuda_log_probs_begin(const cri_log_prob_rows *w, log_prob_state *state,
                                     cudaStream_t stream);
cudaError_t cri_cuda_log_probs_take(const cri_log_prob_rows *w, log_prob_state *state,
                                    const float *z, int64_t ld, int64_t v0, int64_t cols,
                                    cudaStream_t stream);
cudaError_t cri_cuda_log_probs_end(const cri_log_prob_rows *w, log_prob_state *state,
                                   cudaStream_t stream);

/* The same bits of rows whose logits are all there, many blocks a row; without chosen tokens and first_row. A row with flags[row] has its
 * logits in `edited`; flags NULL: none has. tiles: cri_cuda_log_probs_tiles bytes of scratch. */
struct logit_source {
    const float *logits, *edited; /* [num_rows, vocab_size] */
    const int32_t *flags;
};
size_t cri_cuda_log_probs_tiles(const cri_log_prob_rows *w);
cudaError_t cri_cuda_log_probs_whole(const cri_log_prob_rows *w, logit_source from, void *tiles,
                                     cudaStream_t stream);

#endif
