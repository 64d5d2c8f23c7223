/* experts.cu -- the router, the order of tokens by expert, sums over a token's experts, and dropout.
 *
 * Mapping: router and its gradient: a warp a token, lane e takes the experts e, e + 32, ..; the k largest are found one after the
 * other by fixed shuffles. expert_sort: a block an expert walks over all choices and counts, or places, those of its expert in
 * order (ballots), so that the order is that of the tokens, without atomics; E T k reads of 4 bytes from L2 (128 experts, 8192
 * tokens, 8 choices: 34 MB). Rows: a block a row, as in moves.cu. A token's result does not depend on other tokens.
 * Bytes an element in bf16: rows_combine 2 k + 2 (4 with add), rows_scale 4, rows_dot 4, rows_drop 4 (6 with add): bound by memory on H100 and H200.
 * Products of experts: grouped.cu. Shared memory below 200 bytes, below 64 registers.
 * Column sums of prob: float64, columns.h.
 */
#include "kernels/cuda/columns.h"

#include <math.h>

enum { WIDTH = 128, WARPS = WIDTH / 32 };

/* ---- router ---- */

template <class T> struct router_args {
    const T *logits;
    bool should_norm;
    int64_t num_rows;
    int num_experts, top_k;
    float *prob, *weight;
    int32_t *expert;
};

/* The largest value of the warp and its expert, the lower one in a tie. */
static __device__ __forceinline__ void warp_first(float &p, int32_t &e)
{
    for (int d = 16; d > 0; d /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, p, d);
        int32_t other_e = __shfl_xor_sync(0xffffffffu, e, d);
        if (other > p || (other == p && other_e < e)) p = other, e = other_e;
    }
}

/* Chosen ones have been written by lane 0. */
static __device__ __forceinline__ bool is_chosen(const int32_t *expert, int num, int e)
{
    for (int j = 0; j < num; j++)
        if (expert[j] == e) return true;
    return false;
}

template <class T> static __global__ void __launch_bounds__(WIDTH) route(router_args<T> a)
{
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, E = a.num_experts, k = a.top_k;
    float max = -INFINITY, sum = 0.0f;

    if (t >= a.num_rows) return; /* a warp at a time */
    const T *logits = a.logits + t * E;
    float *prob = a.prob + t * E, *weight = a.weight + t * k;
    int32_t *expert = a.expert + t * k;
    for (int e = lane; e < E; e += 32)
        max = fmaxf(max, to_float(logits[e]));
    max = warp_max(max);
    for (int e = lane; e < E; e += 32)
        sum += expf(to_float(logits[e]) - max);
    float scale = 1.0f / warp_sum(sum);
    for (int e = lane; e < E; e += 32)
        prob[e] = expf(to_float(logits[e]) - max) * scale;
    sum = 0.0f;
    for (int j = 0; j < k; j++) { /* k different ones, also if prob is NaN */
        float best = -3.0f;
        int32_t first = INT32_MAX;
        for (int e = lane; e < E; e += 32) {
            float p = is_chosen(expert, j, e) ? -2.0f : prob[e] >= 0.0f ? prob[e] : -1.0f;
            if (p > best) best = p, first = e;
        }
        warp_first(best, first);
        if (lane == 0) expert[j] = first;
        __syncwarp();
        sum += prob[first];
    }
    if (lane == 0)
        for (int j = 0; j < k; j++)
            weight[j] = rounded<T>(a.should_norm ? prob[expert[j]] / sum : prob[expert[j]]);
}

static cr_status add_prob_sum(cr_device *dev, const cr_router_args *a, cr_err *err)
{
    int64_t num_parts = num_stretches(a->num_rows), E = a->num_experts;
    double *host = CR_NEW_ARRAY(double, E);
    void *mem;
    cr_status status =
        cri_cuda_scratch(dev, (size_t)((num_parts + 1) * E) * sizeof(double), &mem, err);

    if (status == CR_OK) {
        double *sums = (double *)mem;
        status = launched("router",
                          sum_columns(in<float>(a->prob), a->num_rows, E, sums + E, sums,
                                      /*should_add=*/false, cri_cuda_stream(dev)),
                          err);
        if (status == CR_OK)
            status = dev->kernels->download(dev, host, cr_mem_of_host(sums),
                                            (size_t)E * sizeof *host, err);
    }
    for (int64_t e = 0; status == CR_OK && e < E; e++)
        a->prob_sum[e] += host[e];
    cr_free(host);
    return status;
}

template <class T> static cudaError_t router(cr_device *dev, const cr_router_args *a)
{
    const router_args<T> r = {in<T>(a->logits),      a->should_norm,         a->num_rows,
                              (int)a->num_experts,   (int)a->top_k,          out<float>(a->prob),
                              out<float>(a->weight), out<int32_t>(a->expert)};
    auto kernel = route<T>;

    return CUDA_LAUNCH(kernel, blocks_for(a->num_rows, WARPS, INT32_MAX), dim3(WIDTH), 0,
                       cri_cuda_stream(dev), r);
}

cr_status cri_cuda_router(cr_device *dev, const cr_router_args *a, cr_err *err)
{
    if (a->num_rows <= 0) return CR_OK;
    CR_TRY(launched("router", CRI_BY_DTYPE(a->dtype, router, dev, a), err));
    return a->prob_sum ? add_prob_sum(dev, a, err) : CR_OK;
}

/* With s the sum of the chosen p: weight w = p / s, dz = w (dw - sum w dw) on the chosen ones. Without the norm, dz = p (dw -
 * sum p dw), dw 0 where not chosen. And p (of_prob - sum p of_prob) for the term on prob. */
template <class T>
static __global__ void __launch_bounds__(WIDTH)
    route_grad(router_args<T> a, const float *grad_weight, const float *of_prob, T *dlogits)
{
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, E = a.num_experts, k = a.top_k;
    float sum = 0.0f, mean = 0.0f, aux = 0.0f;

    if (t >= a.num_rows) return;
    const float *prob = a.prob + t * E, *dw = grad_weight + t * k;
    const int32_t *expert = a.expert + t * k;
    for (int j = 0; j < k; j++) {
        sum += prob[expert[j]];
        mean += prob[expert[j]] * dw[j];
    }
    if (a.should_norm) mean /= sum;
    for (int e = lane; of_prob && e < E; e += 32)
        aux += prob[e] * of_prob[e];
    aux = warp_sum(aux);
    for (int e = lane; e < E; e += 32) {
        float p = prob[e], dz = a.should_norm ? 0.0f : -p * mean;
        for (int j = 0; j < k; j++)
            if (expert[j] == e) dz = (a.should_norm ? p / sum : p) * (dw[j] - mean);
        if (of_prob) dz += p * (of_prob[e] - aux);
        dlogits[t * E + e] = from_float<T>(dz);
    }
}

template <class T> static cudaError_t router_grad(cr_device *dev, const cr_router_grad_args *a)
{
    const cr_router_args *f = &a->fwd;
    const router_args<T> r = {
        NULL,          f->should_norm,      f->num_rows, (int)f->num_experts,
        (int)f->top_k, out<float>(f->prob), NULL,        out<int32_t>(f->expert)};
    auto kernel = route_grad<T>;

    return CUDA_LAUNCH(kernel, blocks_for(f->num_rows, WARPS, INT32_MAX), dim3(WIDTH), 0,
                       cri_cuda_stream(dev), r, in<float>(a->grad_weight), in<float>(a->of_prob),
                       out<T>(a->dlogits));
}

cr_status cri_cuda_router_grad(cr_device *dev, const cr_router_grad_args *a, cr_err *err)
{
    return launched("router_grad", CRI_BY_DTYPE(a->fwd.dtype, router_grad, dev, a), err);
}

/* ---- order by expert ---- */

/* Choices of expert blockIdx.x among expert[num], in order. is_placing: they get the slots from first[e] on; else they are
 * counted. */
static __global__ void __launch_bounds__(WIDTH)
    walk_choices(const int32_t *expert, int64_t num, int top_k, const int64_t *first,
                 int64_t *count, int32_t *slot, int32_t *token, bool is_placing)
{
    SHARED(int32_t, warps, WARPS);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, e = (int)blockIdx.x;
    int64_t at = is_placing ? first[e] : 0;

    for (int64_t i0 = 0; i0 < num; i0 += WIDTH) {
        int64_t i = i0 + threadIdx.x;
        bool is_mine = i < num && expert[i] == e;
        uint32_t all = __ballot_sync(0xffffffffu, is_mine);
        int before = __popc(all & ((1u << lane) - 1));
        if (lane == 0) warps[warp] = __popc(all);
        __syncthreads();
        int total = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) before += warps[w];
            total += warps[w];
        }
        if (is_mine && is_placing) {
            slot[i] = (int32_t)(at + before);
            token[at + before] = (int32_t)(i / top_k);
        }
        at += total;
        __syncthreads(); /* warps is written again */
    }
    if (!is_placing && threadIdx.x == 0) count[e] = at;
}

static __global__ void first_slots(const int64_t *count, int64_t num_experts, int64_t *first)
{
    int64_t at = 0;

    for (int64_t e = 0; e < num_experts; e++) {
        first[e] = at;
        at += count[e];
    }
}

cr_status cri_cuda_expert_sort(cr_device *dev, const cr_expert_sort_args *a, cr_err *err)
{
    int64_t num = a->num_rows * a->top_k, E = a->num_experts;
    size_t bytes = (size_t)E * sizeof(int64_t);
    cudaStream_t stream = cri_cuda_stream(dev);
    cudaError_t code;
    void *mem;

    CR_TRY(cri_cuda_scratch(dev, 2 * bytes, &mem, err));
    int64_t *count = (int64_t *)mem, *first = count + E;
    code = CUDA_LAUNCH(walk_choices, dim3((unsigned)E), dim3(WIDTH), 0, stream,
                       in<int32_t>(a->expert), num, (int)a->top_k, (const int64_t *)NULL, count,
                       (int32_t *)NULL, (int32_t *)NULL, false);
    if (code == cudaSuccess)
        code =
            CUDA_LAUNCH(first_slots, dim3(1), dim3(1), 0, stream, (const int64_t *)count, E, first);
    if (code == cudaSuccess)
        code = CUDA_LAUNCH(walk_choices, dim3((unsigned)E), dim3(WIDTH), 0, stream,
                           in<int32_t>(a->expert), num, (int)a->top_k, (const int64_t *)first,
                           count, out<int32_t>(a->slot), out<int32_t>(a->token), true);
    CR_TRY(launched("expert_sort", code, err));
    return dev->kernels->download(dev, a->count, cr_mem_of_host(count), bytes, err);
}

/* ---- rows ---- */

template <class T> struct combine_args {
    const T *x, *add;
    const int32_t *slot;
    const float *weight;
    T *y;
    int64_t top_k, num_cols;
    bool is_fast;
};

template <class T> static __global__ void __launch_bounds__(WIDTH) combine(combine_args<T> a)
{
    int64_t t = blockIdx.x;

    for (int64_t c = threadIdx.x * PER; c < a.num_cols; c += WIDTH * PER) {
        float sum[PER] = {}, x[PER];
        for (int64_t j = t * a.top_k; j < (t + 1) * a.top_k; j++) {
            float weight = a.weight ? a.weight[j] : 1.0f;
            load8(x, a.x + a.slot[j] * a.num_cols, c, a.num_cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                sum[e] = fmaf(weight, x[e], sum[e]);
        }
        if (a.add) {
            load8(x, a.add + t * a.num_cols, c, a.num_cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                sum[e] += x[e];
        }
        store8(a.y + t * a.num_cols, c, a.num_cols, a.is_fast, sum);
    }
}

template <class T> static cudaError_t rows_combine(cr_device *dev, const cr_rows_combine_args *a)
{
    const combine_args<T> c = {
        in<T>(a->x),
        in<T>(a->add),
        in<int32_t>(a->slot),
        in<float>(a->weight),
        out<T>(a->y),
        a->top_k,
        a->num_cols,
        a->num_cols % PER == 0 && is_wide(a->x) && is_wide(a->add) && is_wide(a->y)};
    auto kernel = combine<T>;

    return CUDA_LAUNCH(kernel, dim3((unsigned)a->num_rows), dim3(WIDTH), 0, cri_cuda_stream(dev),
                       c);
}

cr_status cri_cuda_rows_combine(cr_device *dev, const cr_rows_combine_args *a, cr_err *err)
{
    return launched("rows_combine", CRI_BY_DTYPE(a->dtype, rows_combine, dev, a), err);
}

template <class T>
static __global__ void __launch_bounds__(WIDTH)
    scale_rows(const T *x, const float *factor, T *y, int64_t num_cols, bool is_fast)
{
    int64_t at = blockIdx.x * num_cols;
    float f = factor[blockIdx.x];

    for (int64_t c = threadIdx.x * PER; c < num_cols; c += WIDTH * PER) {
        float v[PER];
        load8(v, x + at, c, num_cols, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            v[e] *= f;
        store8(y + at, c, num_cols, is_fast, v);
    }
}

template <class T> static cudaError_t rows_scale(cr_device *dev, const cr_rows_scale_args *a)
{
    auto kernel = scale_rows<T>;

    return CUDA_LAUNCH(kernel, dim3((unsigned)a->num_rows), dim3(WIDTH), 0, cri_cuda_stream(dev),
                       in<T>(a->x), in<float>(a->factor), out<T>(a->y), a->num_cols,
                       a->num_cols % PER == 0 && is_wide(a->x) && is_wide(a->y));
}

cr_status cri_cuda_rows_scale(cr_device *dev, const cr_rows_scale_args *a, cr_err *err)
{
    return launched("rows_scale", CRI_BY_DTYPE(a->dtype, rows_scale, dev, a), err);
}

template <class T>
static __global__ void __launch_bounds__(WIDTH)
    drop_rows(const T *x, const T *add, const uint64_t *keys, uint64_t module_key,
              uint32_t threshold, float factor, T *y, int64_t num_cols, bool is_fast)
{
    int64_t at = blockIdx.x * num_cols;
    uint64_t row_key = keys[blockIdx.x];

    for (int64_t c = threadIdx.x * PER; c < num_cols; c += WIDTH * PER) {
        float v[PER], sum[PER];
        load8(v, x + at, c, num_cols, is_fast);
        if (add) load8(sum, add + at, c, num_cols, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++) {
            bool is_kept = cr_dropout_keeps(row_key, module_key, (uint32_t)(c + e), threshold);
            v[e] = (add ? sum[e] : 0.0f) + (is_kept ? v[e] * factor : 0.0f);
        }
        store8(y + at, c, num_cols, is_fast, v);
    }
}

template <class T> static cudaError_t rows_drop(cr_device *dev, const cr_rows_drop_args *a)
{
    auto kernel = drop_rows<T>;

    return CUDA_LAUNCH(kernel, dim3((unsigned)a->num_rows), dim3(WIDTH), 0, cri_cuda_stream(dev),
                       in<T>(a->x), in<T>(a->add), in<uint64_t>(a->keys), a->module_key,
                       cr_dropout_threshold(a->rate), (float)(1 / (1 - a->rate)), out<T>(a->y),
                       a->num_cols,
                       a->num_cols % PER == 0 && is_wide(a->x) && is_wide(a->y) && is_wide(a->add));
}

cr_status cri_cuda_rows_drop(cr_device *dev, const cr_rows_drop_args *a, cr_err *err)
{
    return launched("rows_drop", CRI_BY_DTYPE(a->dtype, rows_drop, dev, a), err);
}

template <class T>
static __global__ void __launch_bounds__(WIDTH)
    dot_rows(const T *x, const T *y, float *dot, int64_t num_cols, bool is_fast)
{
    SHARED(float, sums, WARPS);
    int64_t at = blockIdx.x * num_cols;
    float sum = 0.0f;

    for (int64_t c = threadIdx.x * PER; c < num_cols; c += WIDTH * PER) {
        float a[PER], b[PER];
        load8(a, x + at, c, num_cols, is_fast);
        load8(b, y + at, c, num_cols, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            sum = fmaf(a[e], b[e], sum);
    }
    sum = group_sum<WIDTH>(sum, sums);
    if (threadIdx.x == 0) dot[blockIdx.x] = sum;
}

template <class T> static cudaError_t rows_dot(cr_device *dev, const cr_rows_dot_args *a)
{
    auto kernel = dot_rows<T>;

    return CUDA_LAUNCH(kernel, dim3((unsigned)a->num_rows), dim3(WIDTH), 0, cri_cuda_stream(dev),
                       in<T>(a->x), in<T>(a->y), out<float>(a->dot), a->num_cols,
                       a->num_cols % PER == 0 && is_wide(a->x) && is_wide(a->y));
}

cr_status cri_cuda_rows_dot(cr_device *dev, const cr_rows_dot_args *a, cr_err *err)
{
    return launched("rows_dot", CRI_BY_DTYPE(a->dtype, rows_dot, dev, a), err);
}
