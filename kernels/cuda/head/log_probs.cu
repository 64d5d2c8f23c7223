/* log_probs.cu -- rows of logits are reduced tile by tile of 1024 tokens: log-prob of the label, entropy, log-sum, rank of the
 * label, the largest tokens, chosen tokens.
 *
 * A tile is a block of 128 threads, a thread 8 tokens, 128 apart, which are loaded together before they are edited; sums and maxima by
 * fixed shuffles. The sums of a tile are relative to the largest token of all tiles up to it, and join the row's in the order of tiles. So the
 * bits of a row depend on its logits alone, and training (tiles made by products in head.cu) and generation (whole rows) agree.
 *
 * Training: a block takes one row of each tile that it is given, and thread 0 brings the row's state up to date. The largest tokens of
 * a tile are taken one by one by the block, and put into a sorted list that is the result itself; after the first tiles hardly one is taken.
 * Whole rows: a block a tile in two launches, first the largest token of each tile, then the sums, for which it looks at the largest tokens
 * of the tiles before it; a third launch joins the tiles of a row, one thread three FMA a tile, factors by all threads before. The largest
 * tokens are lists of tiles, from which a block a row takes the first ones. A row of 152k tokens: 149 blocks, 20 bytes of scratch a tile.
 * Bytes: 4 a logit, twice for whole rows, which the product has left in L2 (16 MB for 4096 rows); about 20 FLOPs a logit: below a
 * hundredth of the product of 2048 columns. Shared memory below 200 bytes (joining: 16 KiB), below 64 registers.
 */
#include "kernels/cuda/head/log_probs.h"

#include <math.h>

enum { BLOCK = 128, MINE = CRI_TILE_TOKENS / BLOCK };

row_processors cri_cuda_processors(const cr_row_processors_mem *e)
{
    row_processors w = {};

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

static __global__ void begin_rows(cri_log_prob_rows w, log_prob_state *state)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = w.first_row + r;

    if (r >= w.num_rows) return;
    state[r] = log_prob_state{-INFINITY, 0.0f, 0.0f, 0.0f, 0, 1};
    for (int64_t i = 0; i < w.num_chosen; i++)
        w.chosen_log_prob[row * w.num_chosen + i] = -INFINITY;
}

/* Largest over the block, in every thread. NaN: infinity, so that sums become NaN. */
static __device__ __forceinline__ float block_max(float x, float *shared)
{
    float max = -INFINITY;

    x = warp_max(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCK / 32; i++)
        max = fmaxf(max, shared[i]);
    __syncthreads(); /* shared may be used again */
    return max;
}

/* The state takes in a tile whose sums are relative to `max`, the larger of both; scale: e^(state's - max). The products are
 * fused by name: two kernels join tiles, and their bits must not depend on the compiler. */
static __device__ __forceinline__ void join(log_prob_state *s, float max, float scale, float sum,
                                            float moment)
{
    if (!(s->sum > 0.0f)) scale = 0.0f;
    if (scale > 0.0f) moment = fmaf(scale, fmaf(s->max - max, s->sum, s->moment), moment);
    s->moment = moment;
    s->sum = fmaf(s->sum, scale, sum);
    s->max = max;
}

/* A thread's tokens of a tile. id -1: not kept, or past the tile. */
struct tile_logits {
    float z[MINE];
    int32_t ids[MINE];
};

/* Tokens v0 .. v0 + cols - 1 of row `row`, whose logits begin at z0 with token v0; cols up to CRI_TILE_TOKENS. */
static __device__ __forceinline__ tile_logits load_tile(const row_processors &e, int64_t row,
                                                        const float *z0, int64_t v0, int64_t cols)
{
    tile_logits t;
    float slope;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int64_t c = threadIdx.x + (int64_t)i * BLOCK;
        t.z[i] = c < cols ? z0[c] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        int64_t c = threadIdx.x + (int64_t)i * BLOCK;
        int32_t id = (int32_t)(v0 + c);
        t.ids[i] = c < cols && process_logit(e, row, id, t.z[i], slope) ? id : -1;
    }
    return t;
}

/* The largest kept token, in every thread, and how many kept tokens are above label_z, of this one. */
static __device__ __forceinline__ float find_max(const tile_logits &t, float label_z, float &above,
                                                 float *shared)
{
    float max = -INFINITY;

#pragma unroll
    for (int i = 0; i < MINE; i++) {
        if (t.ids[i] < 0) continue;
        max = fmaxf(max, isnan(t.z[i]) ? INFINITY : t.z[i]);
        above += t.z[i] > label_z ? 1.0f : 0.0f;
    }
    return block_max(max, shared);
}

/* The sums of a tile relative to `max`, in every thread. */
static __device__ __forceinline__ void add_logits(const tile_logits &t, float max, float &sum,
                                                  float &moment, float *shared)
{
    sum = moment = 0.0f;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        if (t.ids[i] < 0) continue;
        float d = t.z[i] - max, e = expf(d);
        sum += e;
        moment = fmaf(d, e, moment);
    }
    sum = group_sum<BLOCK>(sum, shared);
    moment = group_sum<BLOCK>(moment, shared);
}

/* The tokens of this tile that belong into the row's list. */
static __device__ void take_top(const cri_log_prob_rows &w, log_prob_state *state, int64_t row,
                                const tile_logits &t, float *zs, int32_t *first_ids,
                                int32_t *is_full)
{
    float *list_z = w.top_log_prob + row * w.num_top;
    int32_t *list_id = w.top_ids + row * w.num_top;
    uint32_t taken = 0;

    for (int64_t n = 0; n < w.num_top; n++) {
        float best = -INFINITY;
        int32_t id = INT32_MAX;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (t.ids[i] >= 0 && !(taken >> i & 1) && is_before(t.z[i], t.ids[i], best, id))
                best = t.z[i], id = t.ids[i];
        block_first<BLOCK>(best, id, zs, first_ids);
        if (id == INT32_MAX) return; /* the same in all threads */
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (t.ids[i] == id) taken |= 1u << i;
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
        if (*is_full) return; /* it is written again after block_first's barriers */
    }
}

static __device__ __forceinline__ void take_tile(const cri_log_prob_rows &w, log_prob_state *s,
                                                 int64_t row, const float *z0, int64_t v0,
                                                 int64_t cols, float *shared, int32_t *shared_ids,
                                                 int32_t *is_full)
{
    int32_t label = w.labels[row];
    float before = s->max, above = 0.0f, sum, moment, slope;
    const tile_logits t = load_tile(w.processors, row, z0, v0, cols);
    float max = find_max(t, s->label, above, shared); /* after its barriers all have read s */

#pragma unroll
    for (int i = 0; i < MINE; i++)
        if (t.ids[i] == label) s->label = t.z[i];
    if (w.rank) above = group_sum<BLOCK>(above, shared);
    if (max > -INFINITY) {
        float top = fmaxf(max, before);
        add_logits(t, top, sum, moment, shared);
        if (threadIdx.x == 0) join(s, top, expf(before - top), sum, moment);
    }
    if (threadIdx.x == 0 && w.rank) s->rank += (int32_t)above;
    if (w.num_top) take_top(w, s, row, t, shared, shared_ids, is_full);
    for (int64_t i = threadIdx.x; i < w.num_chosen; i += BLOCK) {
        int32_t id = w.chosen_ids[row * w.num_chosen + i];
        if (id < v0 || id >= v0 + cols) continue;
        float x = z0[id - v0];
        if (process_logit(w.processors, row, id, x, slope))
            w.chosen_log_prob[row * w.num_chosen + i] = x;
    }
}

static __global__ void __launch_bounds__(BLOCK, 8)
    take_tiles(cri_log_prob_rows w, log_prob_state *states, const float *logits, int64_t ld,
               int64_t v0, int64_t cols)
{
    SHARED(float, shared, BLOCK / 32);
    SHARED(int32_t, shared_ids, BLOCK / 32);
    SHARED(int32_t, is_full, 1);
    int64_t r = blockIdx.x, row = w.first_row + r;
    const float *z = logits + r * ld;

    for (int64_t c = 0; c < cols; c += CRI_TILE_TOKENS) {
        if (c) __syncthreads(); /* the state of the tile before is complete */
        take_tile(w, states + r, row, z + c, v0 + c,
                  cols - c < CRI_TILE_TOKENS ? cols - c : (int64_t)CRI_TILE_TOKENS, shared,
                  shared_ids, is_full);
    }
}

static __device__ __forceinline__ void put_numbers(const cri_log_prob_rows &w, int64_t row,
                                                   const log_prob_state &s)
{
    float log_sum = logf(s.sum);

    if (w.log_prob) w.log_prob[row] = (s.label - s.max) - log_sum;
    if (w.entropy) w.entropy[row] = log_sum - s.moment / s.sum;
    if (w.lse) w.lse[row] = s.max + log_sum;
    if (w.mean_z) w.mean_z[row] = s.max + s.moment / s.sum;
    if (w.rank) w.rank[row] = s.rank;
}

static __global__ void __launch_bounds__(BLOCK)
    end_rows(cri_log_prob_rows w, const log_prob_state *states)
{
    int64_t r = blockIdx.x, row = w.first_row + r;
    const log_prob_state s = states[r];
    float log_sum = logf(s.sum);

    if (threadIdx.x == 0) put_numbers(w, row, s);
    for (int64_t i = threadIdx.x; i < w.num_top; i += BLOCK) {
        int64_t at = row * w.num_top + i;
        w.top_log_prob[at] = i < s.num_top ? (w.top_log_prob[at] - s.max) - log_sum : -INFINITY;
        if (i >= s.num_top) w.top_ids[at] = -1;
    }
    for (int64_t i = threadIdx.x; i < w.num_chosen; i += BLOCK) {
        int64_t at = row * w.num_chosen + i;
        w.chosen_log_prob[at] = (w.chosen_log_prob[at] - s.max) - log_sum;
    }
}

/* ---- whole rows ---- */

/* Numbers of each tile, [num_rows, num]. */
struct tile_rows {
    int64_t num;                     /* tiles of a row */
    float *max, *top, *sum, *moment; /* top: the largest token up to its end */
    int32_t *above;
    float *top_z; /* [num_rows, num, num_top], falling; id INT32_MAX: no more */
    int32_t *top_ids;
    log_prob_state *states; /* [num_rows] */
};

static __device__ __forceinline__ const float *row_of(const cri_log_prob_rows &w,
                                                      const logit_source &s, int64_t row)
{
    return (s.flags && s.flags[row] ? s.edited : s.logits) + row * w.vocab_size;
}

static __device__ __forceinline__ tile_logits tile_of(const cri_log_prob_rows &w, const float *z)
{
    int64_t row = blockIdx.y, v0 = (int64_t)blockIdx.x * CRI_TILE_TOKENS, left = w.vocab_size - v0;

    return load_tile(w.processors, row, z + v0, v0,
                     left < CRI_TILE_TOKENS ? left : (int64_t)CRI_TILE_TOKENS);
}

/* As tokens are taken in one by one: 0 if the label is not kept and no rank is wanted. */
static __device__ __forceinline__ float label_of(const cri_log_prob_rows &w, int64_t row,
                                                 const float *z)
{
    float x = z[w.labels[row]], slope;

    return process_logit(w.processors, row, w.labels[row], x, slope) || w.rank ? x : 0.0f;
}

/* (x, n) becomes the next one after (z, id) in the order of the largest, if it is before the one found so far. */
static __device__ __forceinline__ void see_next(float x, int32_t n, float z, int32_t id,
                                                float &next_z, int32_t &next_id)
{
    if (is_before(z, id, x, n) && is_before(x, n, next_z, next_id)) next_z = x, next_id = n;
}

static __global__ void __launch_bounds__(BLOCK, 8)
    find_tiles(cri_log_prob_rows w, logit_source from, tile_rows to)
{
    SHARED(float, shared, BLOCK / 32);
    SHARED(int32_t, shared_ids, BLOCK / 32);
    int64_t row = blockIdx.y, tile = row * to.num + blockIdx.x;
    const float *tokens = row_of(w, from, row);
    float above = 0.0f, label_z = w.rank ? label_of(w, row, tokens) : 0.0f, z = INFINITY;
    const tile_logits t = tile_of(w, tokens);
    float max = find_max(t, label_z, above, shared);
    int32_t id = -1;

    if (w.rank) above = group_sum<BLOCK>(above, shared);
    if (threadIdx.x == 0) {
        to.max[tile] = max;
        to.above[tile] = (int32_t)above;
    }
    for (int64_t n = 0; n < w.num_top; n++) {
        float next_z = -INFINITY;
        int32_t next_id = INT32_MAX;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (t.ids[i] >= 0) see_next(t.z[i], t.ids[i], z, id, next_z, next_id);
        block_first<BLOCK>(next_z, next_id, shared, shared_ids);
        z = next_z, id = next_id;
        if (threadIdx.x) continue;
        to.top_z[tile * w.num_top + n] = z;
        to.top_ids[tile * w.num_top + n] = id;
    }
}

static __global__ void __launch_bounds__(BLOCK, 8)
    sum_tiles(cri_log_prob_rows w, logit_source from, tile_rows to)
{
    SHARED(float, shared, BLOCK / 32);
    int64_t row = blockIdx.y, first = row * to.num, tile = first + blockIdx.x;
    const tile_logits t = tile_of(w, row_of(w, from, row));
    float top = -INFINITY, sum, moment;

    for (int64_t i = first + threadIdx.x; i <= tile; i += BLOCK)
        top = fmaxf(top, to.max[i]);
    top = block_max(top, shared);
    add_logits(t, top, sum, moment, shared);
    if (threadIdx.x) return;
    to.top[tile] = top;
    to.sum[tile] = sum;
    to.moment[tile] = moment;
}

/* Joins the tiles of a row in their order. Of a tile without kept tokens the factor is -1. */
static __global__ void __launch_bounds__(BLOCK)
    join_tiles(cri_log_prob_rows w, logit_source from, tile_rows t)
{
    enum { SOME = 1024 };
    SHARED(float, scale, SOME);
    SHARED(float, top, SOME);
    SHARED(float, sum, SOME);
    SHARED(float, moment, SOME);
    SHARED(int32_t, ranks, BLOCK / 32);
    int64_t row = blockIdx.x, first = row * t.num;
    log_prob_state s = {-INFINITY, 0.0f, 0.0f, label_of(w, row, row_of(w, from, row)), 0, 1};
    int32_t above = 0;

    for (int64_t i0 = 0; i0 < t.num; i0 += SOME) {
        int64_t num = t.num - i0 < SOME ? t.num - i0 : (int64_t)SOME;
        for (int64_t i = threadIdx.x; i < num; i += BLOCK) {
            int64_t tile = first + i0 + i;
            float before = i0 + i ? t.top[tile - 1] : -INFINITY;
            top[i] = t.top[tile];
            sum[i] = t.sum[tile];
            moment[i] = t.moment[tile];
            scale[i] = t.max[tile] == -INFINITY ? -1.0f : expf(before - top[i]);
            above += t.above[tile];
        }
        __syncthreads();
        for (int64_t i = 0; threadIdx.x == 0 && i < num; i++)
            if (!(scale[i] < 0.0f)) join(&s, top[i], scale[i], sum[i], moment[i]);
        __syncthreads(); /* all are written again */
    }
    s.rank += group_sum<BLOCK>(above, ranks);
    if (threadIdx.x) return;
    put_numbers(w, row, s);
    t.states[row] = s;
}

/* The first tokens of the lists of a row's tiles. */
static __global__ void __launch_bounds__(BLOCK) take_first(cri_log_prob_rows w, tile_rows t)
{
    SHARED(float, zs, BLOCK / 32);
    SHARED(int32_t, ids, BLOCK / 32);
    int64_t row = blockIdx.x, num = t.num * w.num_top;
    const float *list_z = t.top_z + row * num;
    const int32_t *list_id = t.top_ids + row * num;
    const log_prob_state s = t.states[row];
    float log_sum = logf(s.sum), z = INFINITY;
    int32_t id = -1;

    for (int64_t n = 0; n < w.num_top; n++) {
        float next_z = -INFINITY;
        int32_t next_id = INT32_MAX;
        for (int64_t i = threadIdx.x; i < num; i += BLOCK)
            see_next(list_z[i], list_id[i], z, id, next_z, next_id);
        block_first<BLOCK>(next_z, next_id, zs, ids);
        z = next_z, id = next_id;
        if (threadIdx.x) continue;
        w.top_ids[row * w.num_top + n] = id < INT32_MAX ? id : -1;
        w.top_log_prob[row * w.num_top + n] = id < INT32_MAX ? (z - s.max) - log_sum : -INFINITY;
    }
}

cudaError_t cri_cuda_log_probs_begin(const cri_log_prob_rows *w, log_prob_state *state,
                                     cudaStream_t stream)
{
    return CUDA_LAUNCH(begin_rows, blocks_for(w->num_rows, BLOCK, INT32_MAX), dim3(BLOCK), 0,
                       stream, *w, state);
}

cudaError_t cri_cuda_log_probs_take(const cri_log_prob_rows *w, log_prob_state *state,
                                    const float *z, int64_t ld, int64_t v0, int64_t cols,
                                    cudaStream_t stream)
{
    return CUDA_LAUNCH(take_tiles, dim3((unsigned)w->num_rows), dim3(BLOCK), 0, stream, *w, state,
                       z, ld, v0, cols);
}

cudaError_t cri_cuda_log_probs_end(const cri_log_prob_rows *w, log_prob_state *state,
                                   cudaStream_t stream)
{
    return CUDA_LAUNCH(end_rows, dim3((unsigned)w->num_rows), dim3(BLOCK), 0, stream, *w,
                       (const log_prob_state *)state);
}

static size_t lay_out(const cri_log_prob_rows *w, char *base, tile_rows *t)
{
    int64_t tiles = (w->vocab_size + CRI_TILE_TOKENS - 1) / CRI_TILE_TOKENS,
            num = w->num_rows * tiles;
    size_t at = 0;

    t->num = tiles;
    carve(base, &at, &t->max, num);
    carve(base, &at, &t->top, num);
    carve(base, &at, &t->sum, num);
    carve(base, &at, &t->moment, num);
    carve(base, &at, &t->above, num);
    carve(base, &at, &t->top_z, num * w->num_top);
    carve(base, &at, &t->top_ids, num * w->num_top);
    carve(base, &at, &t->states, w->num_rows);
    return at;
}

size_t cri_cuda_log_probs_tiles(const cri_log_prob_rows *w)
{
    tile_rows t;

    return lay_out(w, NULL, &t);
}

cudaError_t cri_cuda_log_probs_whole(const cri_log_prob_rows *w, logit_source from, void *tiles,
                                     cudaStream_t stream)
{
    const dim3 rows((unsigned)w->num_rows), block(BLOCK);
    tile_rows t;
    cudaError_t code;

    (void)lay_out(w, (char *)tiles, &t);
    const dim3 grid((unsigned)t.num, (unsigned)w->num_rows);
    code = CUDA_LAUNCH(find_tiles, grid, block, 0, stream, *w, from, t);
    if (code == cudaSuccess) code = CUDA_LAUNCH(sum_tiles, grid, block, 0, stream, *w, from, t);
    if (code == cudaSuccess) code = CUDA_LAUNCH(join_tiles, rows, block, 0, stream, *w, from, t);
    if (code == cudaSuccess && w->num_top)
        code = CUDA_LAUNCH(take_first, rows, block, 0, stream, *w, t);
    return code;
}
