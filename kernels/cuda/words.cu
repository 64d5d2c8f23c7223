/* words.cu -- rows of logits are reduced tile by tile of 1024 words: log-prob of the label, entropy, log-sum, rank of the
 * label, the largest words, chosen words.
 *
 * Mapping: a block of 128 threads takes one row, tile by tile, a thread 8 words, 128 apart; sums and maxima by fixed
 * shuffles, then the row's state is brought up to date by thread 0. So the bits of a row depend on its logits alone, and training
 * (tiles made by products in head.cu) and generation (whole rows) agree. The largest words of a tile are taken one by one by the
 * block, and put into a sorted list that is the result itself; after the first tiles hardly one is taken.
 * Bytes: 4 a logit, which the product has left in L2 (16 MB for 4096 rows); about 20 FLOPs a logit: below a hundredth of the
 * product of 2048 columns. Shared memory below 200 bytes, below 64 registers.
 */
#include "kernels/cuda/words.h"

#include <math.h>

enum { BLOCK = 128, MINE = CRI_WORDS / BLOCK };

word_edits cri_cuda_edits(const cr_row_edits_mem *e)
{
    word_edits w = {};

    if (!e) return w;
    w.is_on = true;
    w.temperature = e->temperature;
    w.penalty = e->penalty;
    w.temperatures = in<float>(e->temperatures);
    w.kept_first = in<size_t>(e->kept_first);
    w.seen_first = in<size_t>(e->seen_first);
    w.kept_num = in<int32_t>(e->kept_num);
    w.kept_ids = in<int32_t>(e->kept_ids);
    w.seen_list = in<int32_t>(e->seen_list);
    w.seen_until = in<int32_t>(e->seen_until);
    w.seen_ids = in<int32_t>(e->seen_ids);
    w.seen_place = in<int32_t>(e->seen_place);
    return w;
}

static __global__ void begin_rows(cri_word_rows w, word_state *state)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = w.first_row + r;

    if (r >= w.num_rows) return;
    state[r] = word_state{-INFINITY, 0.0f, 0.0f, 0.0f, 0, 1};
    for (int64_t i = 0; i < w.num_chosen; i++)
        w.chosen_log_prob[row * w.num_chosen + i] = -INFINITY;
}

/* Largest over the block, in every thread. NaN: infinity, so that sums become NaN. */
static __device__ __forceinline__ float block_max(float x, float *shared)
{
    float most = -INFINITY;

    x = warp_max(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCK / 32; i++)
        most = fmaxf(most, shared[i]);
    __syncthreads(); /* shared may be used again */
    return most;
}

/* The words of this tile that belong into the row's list. z, ids: this thread's, id -1: not kept. */
static __device__ void take_top(const cri_word_rows &w, word_state *state, int64_t row,
                                const float (&z)[MINE], const int32_t (&ids)[MINE], float *zs,
                                int32_t *first_ids, int32_t *is_full)
{
    float *list_z = w.top_log_prob + row * w.num_top;
    int32_t *list_id = w.top_ids + row * w.num_top;
    uint32_t taken = 0;

    for (int64_t n = 0; n < w.num_top; n++) {
        float best = -INFINITY;
        int32_t id = INT32_MAX;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (ids[i] >= 0 && !(taken >> i & 1) && is_before(z[i], ids[i], best, id))
                best = z[i], id = ids[i];
        block_first<BLOCK>(best, id, zs, first_ids);
        if (id == INT32_MAX) return; /* the same in all threads */
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (ids[i] == id) taken |= 1u << i;
        if (threadIdx.x == 0) {
            int64_t num = state->num_top, at;
            *is_full = num == w.num_top && !(best > list_z[num - 1]);
            if (!*is_full) {
                at = num < w.num_top ? num : num - 1;
                for (; at > 0 && best > list_z[at - 1]; at--) {
                    list_z[at] = list_z[at - 1];
                    list_id[at] = list_id[at - 1];
                }
                list_z[at] = best;
                list_id[at] = id;
                if (num < w.num_top) state->num_top = (int32_t)(num + 1);
            }
        }
        __syncthreads();
        if (*is_full) return;
        __syncthreads(); /* is_full is written again */
    }
}

/* The state takes in a tile with the largest `most` and its sums relative to the larger of both. */
static __device__ __forceinline__ void join(word_state *s, float most, float sum, float moment)
{
    float scale = s->sum > 0.0f ? expf(s->most - most) : 0.0f;

    s->moment = scale > 0.0f ? scale * (s->moment + (s->most - most) * s->sum) : 0.0f;
    s->sum = s->sum * scale + sum;
    s->moment += moment;
    s->most = most;
}

/* Words v0 .. v0 + cols - 1 of row `row`, whose logits begin at z0 with word v0; cols up to CRI_WORDS. */
static __device__ __forceinline__ void take_tile(const cri_word_rows &w, word_state *s, int64_t row,
                                                 const float *z0, int64_t v0, int64_t cols,
                                                 float *shared, int32_t *shared_ids,
                                                 int32_t *is_full)
{
    int32_t label = w.labels[row], ids[MINE];
    float z[MINE], slope, most = -INFINITY, before = s->most, label_z = s->label, above = 0.0f;
    float sum = 0.0f, moment = 0.0f;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int64_t c = threadIdx.x + (int64_t)i * BLOCK;
        ids[i] = -1;
        z[i] = -INFINITY;
        if (c >= cols) continue;
        z[i] = z0[c];
        if (edit_word(w.edits, row, (int32_t)(v0 + c), z[i], slope)) ids[i] = (int32_t)(v0 + c);
        if (ids[i] < 0) continue;
        most = fmaxf(most, isnan(z[i]) ? INFINITY : z[i]);
        above += z[i] > label_z ? 1.0f : 0.0f;
    }
    most = block_max(most, shared); /* after its barriers all have read the state */
#pragma unroll
    for (int i = 0; i < MINE; i++)
        if (ids[i] == label) s->label = z[i];
    if (w.rank) above = group_sum<BLOCK>(above, shared);
    if (most > -INFINITY) {
        float top = fmaxf(most, before);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            if (ids[i] < 0) continue;
            float d = z[i] - top, e = expf(d);
            sum += e;
            moment = fmaf(d, e, moment);
        }
        sum = group_sum<BLOCK>(sum, shared);
        moment = group_sum<BLOCK>(moment, shared);
        if (threadIdx.x == 0) join(s, top, sum, moment);
    }
    if (threadIdx.x == 0 && w.rank) s->rank += (int32_t)above;
    if (w.num_top) take_top(w, s, row, z, ids, shared, shared_ids, is_full);
    for (int64_t i = threadIdx.x; i < w.num_chosen; i += BLOCK) {
        int32_t id = w.chosen_ids[row * w.num_chosen + i];
        if (id < v0 || id >= v0 + cols) continue;
        float x = z0[id - v0];
        if (edit_word(w.edits, row, id, x, slope)) w.chosen_log_prob[row * w.num_chosen + i] = x;
    }
}

static __global__ void __launch_bounds__(BLOCK, 8)
    take_words(cri_word_rows w, word_state *states, const float *logits, int64_t ld, int64_t v0,
               int64_t cols)
{
    SHARED(float, shared, BLOCK / 32);
    SHARED(int32_t, shared_ids, BLOCK / 32);
    SHARED(int32_t, is_full, 1);
    int64_t r = blockIdx.x, row = w.first_row + r;
    const float *z = logits ? logits + r * ld : w.sources[row] + v0;

    for (int64_t c = 0; c < cols; c += CRI_WORDS) {
        if (c) __syncthreads(); /* the state of the tile before is complete */
        take_tile(w, states + r, row, z + c, v0 + c,
                  cols - c < CRI_WORDS ? cols - c : (int64_t)CRI_WORDS, shared, shared_ids,
                  is_full);
    }
}

static __global__ void __launch_bounds__(BLOCK) end_rows(cri_word_rows w, const word_state *states)
{
    int64_t r = blockIdx.x, row = w.first_row + r;
    const word_state s = states[r];
    float log_sum = logf(s.sum);

    if (threadIdx.x == 0) {
        if (w.log_prob) w.log_prob[row] = (s.label - s.most) - log_sum;
        if (w.entropy) w.entropy[row] = log_sum - s.moment / s.sum;
        if (w.lse) w.lse[row] = s.most + log_sum;
        if (w.mean_z) w.mean_z[row] = s.most + s.moment / s.sum;
        if (w.rank) w.rank[row] = s.rank;
    }
    for (int64_t i = threadIdx.x; i < w.num_top; i += BLOCK) {
        int64_t at = row * w.num_top + i;
        w.top_log_prob[at] = i < s.num_top ? (w.top_log_prob[at] - s.most) - log_sum : -INFINITY;
        if (i >= s.num_top) w.top_ids[at] = -1;
    }
    for (int64_t i = threadIdx.x; i < w.num_chosen; i += BLOCK) {
        int64_t at = row * w.num_chosen + i;
        w.chosen_log_prob[at] = (w.chosen_log_prob[at] - s.most) - log_sum;
    }
}

cudaError_t cri_cuda_words_begin(const cri_word_rows *w, word_state *state, cudaStream_t stream)
{
    return CUDA_LAUNCH(begin_rows, blocks_for(w->num_rows, BLOCK, INT32_MAX), dim3(BLOCK), 0,
                       stream, *w, state);
}

cudaError_t cri_cuda_words_take(const cri_word_rows *w, word_state *state, const float *z,
                                int64_t ld, int64_t v0, int64_t cols, cudaStream_t stream)
{
    return CUDA_LAUNCH(take_words, dim3((unsigned)w->num_rows), dim3(BLOCK), 0, stream, *w, state,
                       z, ld, v0, cols);
}

cudaError_t cri_cuda_words_end(const cri_word_rows *w, word_state *state, cudaStream_t stream)
{
    return CUDA_LAUNCH(end_rows, dim3((unsigned)w->num_rows), dim3(BLOCK), 0, stream, *w,
                       (const word_state *)state);
}
