/* experts.c -- router and rows of experts, and several products one after the other (see kernels/experts.h, linears.h). */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/simd_exp.h"
#include "kernels/cpu/variant/simd_rows.h"

static float rounded(cr_dtype dtype, float x)
{
    return dtype == CR_BF16 ? bf16_get(bf16_of(x)) : dtype == CR_F16 ? f16_get(f16_of(x)) : x;
}

/* ---- router ---- */

CR_INLINE void softmax_row(cr_dtype dtype, const void *logits, int64_t at, int64_t n, float *prob)
{
    float max = -__builtin_inff(), scale;
    vf sum = v_set(0);

    for (int64_t i = 0; i < n; i += V_LANES) {
        int64_t some = n - i;
        vf z = v_get_left(dtype, logits, at + i, some);
        if (some < V_LANES) z = v_select(v_lanes() < (int32_t)some, z, v_set(-__builtin_inff()));
        max = v_greatest(v_max(z, v_set(max)));
    }
    for (int64_t i = 0; i < n; i += V_LANES) {
        int64_t some = n - i;
        vf e = v_exp(v_get_left(dtype, logits, at + i, some) - v_set(max));
        if (some < V_LANES) e = v_select(v_lanes() < (int32_t)some, e, v_set(0));
        v_put_left(CR_F32, prob, i, e, some);
        sum = sum + e;
    }
    scale = 1.0f / v_sum(sum);
    for (int64_t i = 0; i < n; i += V_LANES)
        v_put_left(CR_F32, prob, i, v_get_left(CR_F32, prob, i, n - i) * v_set(scale), n - i);
}

/* k distinct indices whatever prob holds, also if it is not a number. */
static void choose(const float *prob, int64_t num_experts, int64_t k, int32_t *expert)
{
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < num_experts; e++) {
            bool is_taken = false;
            if (best >= 0 && !(prob[e] > prob[best])) continue;
            for (int64_t i = 0; i < j; i++)
                is_taken |= expert[i] == (int32_t)e;
            if (!is_taken) best = e;
        }
        expert[j] = (int32_t)best;
    }
}

cr_status CR_V(router)(cr_device *dev, const cr_router_args *a, cr_err *err)
{
    int64_t n = a->num_experts, k = a->top_k;

    (void)dev;
    (void)err;
    for (int64_t t = 0; t < a->num_rows; t++) {
        float *prob = (float *)cr_mem_to_host(a->prob) + t * n,
              *weight = (float *)cr_mem_to_host(a->weight) + t * k, sum = 0;
        int32_t *expert = (int32_t *)cr_mem_to_host(a->expert) + t * k;
        CR_BY_DTYPE(a->dtype, softmax_row, a->logits, t * n, n, prob);
        choose(prob, n, k, expert);
        for (int64_t j = 0; j < k; j++)
            sum += prob[expert[j]];
        for (int64_t j = 0; j < k; j++)
            weight[j] = rounded(a->dtype, a->should_norm ? prob[expert[j]] / sum : prob[expert[j]]);
        for (int64_t e = 0; a->prob_sum && e < n; e++)
            a->prob_sum[e] += (double)prob[e];
    }
    return CR_OK;
}

/* With s the sum of the chosen p: weight w = p / s, dz = w (dw - sum w dw) on the chosen ones. Without
 * the norm, dz = p (dw - sum p dw), dw 0 where not chosen. */
static void router_grad_row(const cr_router_grad_args *a, int64_t t, float *dz)
{
    int64_t n = a->fwd.num_experts, k = a->fwd.top_k;
    const float *prob = (const float *)cr_mem_to_host(a->fwd.prob) + t * n,
                *dw = (const float *)cr_mem_to_host(a->grad_weight) + t * k;
    const int32_t *expert = (const int32_t *)cr_mem_to_host(a->fwd.expert) + t * k;
    const float *of_prob = cr_mem_to_host(a->of_prob);
    float sum = 0, mean = 0, aux = 0;

    for (int64_t j = 0; j < k; j++) {
        sum += prob[expert[j]];
        mean += prob[expert[j]] * dw[j];
    }
    if (a->fwd.should_norm) mean /= sum;
    for (int64_t e = 0; e < n; e++)
        dz[e] = a->fwd.should_norm ? 0 : -prob[e] * mean;
    for (int64_t j = 0; j < k; j++) {
        float p = prob[expert[j]];
        if (a->fwd.should_norm)
            dz[expert[j]] = p / sum * (dw[j] - mean);
        else
            dz[expert[j]] = p * (dw[j] - mean);
    }
    if (!of_prob) return;
    for (int64_t e = 0; e < n; e++)
        aux += prob[e] * of_prob[e];
    for (int64_t e = 0; e < n; e++)
        dz[e] += prob[e] * (of_prob[e] - aux);
}

cr_status CR_V(router_grad)(cr_device *dev, const cr_router_grad_args *a, cr_err *err)
{
    int64_t n = a->fwd.num_experts;
    float *dz = cri_scratch(dev, CRI_SLOT_EXPERTS, (size_t)n * sizeof(float));

    (void)err;
    for (int64_t t = 0; t < a->fwd.num_rows; t++) {
        router_grad_row(a, t, dz);
        for (int64_t i = 0; i < n; i += V_LANES)
            v_put_left(a->fwd.dtype, a->dlogits, t * n + i, v_get_left(CR_F32, dz, i, n - i),
                       n - i);
    }
    return CR_OK;
}

cr_status CR_V(expert_sort)(cr_device *dev, const cr_expert_sort_args *a, cr_err *err)
{
    int64_t n = a->num_rows * a->top_k, at = 0;
    int64_t *next = cri_scratch(dev, CRI_SLOT_EXPERTS, (size_t)a->num_experts * sizeof *next);
    const int32_t *expert = cr_mem_to_host(a->expert);
    int32_t *slots = cr_mem_to_host(a->slot), *token = cr_mem_to_host(a->token);

    (void)err;
    memset(a->count, 0, (size_t)a->num_experts * sizeof *a->count);
    for (int64_t i = 0; i < n; i++)
        a->count[expert[i]]++;
    for (int64_t e = 0; e < a->num_experts; e++) {
        next[e] = at;
        at += a->count[e];
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = next[expert[i]]++;
        slots[i] = (int32_t)slot;
        token[slot] = (int32_t)(i / a->top_k);
    }
    return CR_OK;
}

/* ---- rows ---- */

cr_status CR_V(linears)(cr_device *dev, const cr_linears_args *a, cr_err *err)
{
    for (int i = 0; i < a->num; i++) {
        const cr_linear_args one = cr_linear_of(a, i);
        CR_TRY(CR_V(linear)(dev, &one, err));
    }
    return CR_OK;
}

cr_status CR_V(expert_linear)(cr_device *dev, const cr_expert_linear_args *a, cr_err *err)
{
    int64_t row = 0;

    for (int64_t e = 0; e < a->num_experts; row += a->rows[e++]) {
        const cr_linear_args one = cri_linear_of_expert(a, e, row);
        if (one.num_rows) CR_TRY(CR_V(linear)(dev, &one, err));
    }
    return CR_OK;
}

cr_status CR_V(expert_linear_grad)(cr_device *dev, const cr_expert_linear_grad_args *a, cr_err *err)
{
    int64_t row = 0;

    for (int64_t e = 0; e < a->num_experts; row += a->rows[e++]) {
        const cr_linear_grad_args one = cri_linear_grad_of_expert(a, e, row);
        if (one.num_rows) CR_TRY(CR_V(linear_grad)(dev, &one, err));
    }
    return CR_OK;
}

CR_INLINE void combine_rows(cr_dtype dtype, const cr_rows_combine_args *a)
{
    int64_t n = a->num_cols, k = a->top_k;
    const int32_t *slot = cr_mem_to_host(a->slot);
    const float *weight = cr_mem_to_host(a->weight);

    for (int64_t t = 0; t < a->num_rows; t++)
        for (int64_t i = 0; i < n; i += V_LANES) {
            int64_t some = n - i;
            vf sum = v_set(0);
            for (int64_t j = 0; j < k; j++) {
                vf x = v_get_left(dtype, a->x, (int64_t)slot[t * k + j] * n + i, some);
                sum = weight ? v_fma(v_set(weight[t * k + j]), x, sum) : sum + x;
            }
            if (a->add) sum = sum + v_get_left(dtype, a->add, t * n + i, some);
            v_put_left(dtype, a->y, t * n + i, sum, some);
        }
}

cr_status CR_V(rows_combine)(cr_device *dev, const cr_rows_combine_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, combine_rows, a);
    return CR_OK;
}

cr_status CR_V(rows_scale)(cr_device *dev, const cr_rows_scale_args *a, cr_err *err)
{
    const float *factors = cr_mem_to_host(a->factor);

    (void)dev;
    (void)err;
    for (int64_t r = 0; r < a->num_rows; r++)
        for (int64_t i = 0; i < a->num_cols; i += V_LANES) {
            int64_t at = r * a->num_cols + i, some = a->num_cols - i;
            v_put_left(a->dtype, a->y, at, v_get_left(a->dtype, a->x, at, some) * v_set(factors[r]),
                       some);
        }
    return CR_OK;
}

CR_INLINE void drop_row(cr_dtype dtype, const cr_rows_drop_args *a, int64_t r)
{
    uint64_t row_key = ((const uint64_t *)cr_mem_to_host(a->keys))[r];
    uint32_t threshold = cr_dropout_threshold(a->rate);
    float factor = (float)(1 / (1 - a->rate)), factors[V_LANES];

    for (int64_t i = 0; i < a->num_cols; i += V_LANES) {
        int64_t at = r * a->num_cols + i, some = a->num_cols - i;
        vf x;
        for (int k = 0; k < V_LANES; k++)
            factors[k] =
                cr_dropout_keeps(row_key, a->module_key, (uint32_t)(i + k), threshold) ? factor : 0;
        x = v_get_left(dtype, a->x, at, some) * v_load(factors);
        if (a->add) x = v_get_left(dtype, a->add, at, some) + x;
        v_put_left(dtype, a->y, at, x, some);
    }
}

CR_INLINE void drop_rows(cr_dtype dtype, const cr_rows_drop_args *a, int num_threads)
{
    CRI_FOR(num_threads, r, a->num_rows, drop_row(dtype, a, r));
}

cr_status CR_V(rows_drop)(cr_device *dev, const cr_rows_drop_args *a, cr_err *err)
{
    (void)err;
    CR_BY_DTYPE(a->dtype, drop_rows, a, a->num_rows > 1 ? dev->num_threads : 1);
    return CR_OK;
}

cr_status CR_V(rows_dot)(cr_device *dev, const cr_rows_dot_args *a, cr_err *err)
{
    float *sums = cr_mem_to_host(a->dot);

    (void)dev;
    (void)err;
    for (int64_t r = 0; r < a->num_rows; r++) {
        vf sum = v_set(0);
        for (int64_t i = 0; i < a->num_cols; i += V_LANES) {
            int64_t at = r * a->num_cols + i, some = a->num_cols - i;
            sum = v_fma(v_get_left(a->dtype, a->x, at, some), v_get_left(a->dtype, a->y, at, some),
                        sum);
        }
        sums[r] = v_sum(sum);
    }
    return CR_OK;
}
