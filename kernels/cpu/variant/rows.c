/* rows.c -- what computes on rows or flat ranges: casts, norms, rotary embedding, SwiGLU, the
 * embedding's gradient, AdamW. Memory-bound: each reads its inputs once and writes its outputs once.
 */
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/simd_exp.h"
#include "kernels/cpu/variant/simd_rows.h"

#include <math.h>

cr_status CR_V(cast)(cr_device *dev, const cr_cast_args *a, cr_err *err)
{
    int64_t n = (int64_t)a->num, i = 0;
    cr_dtype to = a->to, from = a->from;
    void *dst = cr_mem_to_host(a->dst);
    const void *src = cr_mem_to_host(a->src);

    (void)dev;
    (void)err;
    if (to == from) {
        memcpy(dst, src, a->num * cr_dtype_bytes(to));
        return CR_OK;
    }
    for (; i + V_LANES <= n; i += V_LANES)
        v_put(to, dst, i, v_get(from, src, i));
    if (i < n) v_put_some(to, dst, i, v_get_some(from, src, i, n - i), n - i);
    return CR_OK;
}

cr_status CR_V(scale)(cr_device *dev, const cr_scale_args *a, cr_err *err)
{
    float *values = cr_mem_to_host(a->x), factor = a->factor;

    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->num; i++)
        values[i] *= factor;
    return CR_OK;
}

cr_status CR_V(sum_parts)(cr_device *dev, const cr_sum_parts_args *a, cr_err *err)
{
    float *y = cr_mem_to_host(a->y);
    const char *x = cr_mem_to_host(a->x);
    size_t part_bytes = a->stride * cr_dtype_bytes(a->dtype);
    int64_t n = (int64_t)a->num;

    (void)dev;
    (void)err;
    for (int64_t i = 0; i < n; i += V_LANES) {
        int64_t left = n - i < V_LANES ? n - i : V_LANES;
        vf of_bit[16],
            sum = {0}; /* of 2^k parts, where bit k of the number of parts so far is set */
        size_t p = 0, bit = 0;
        for (; p < a->num_parts; p++) {
            sum = v_get_left(a->dtype, x + p * part_bytes, i, left);
            for (bit = 0; p >> bit & 1; bit++)
                sum = of_bit[bit] + sum;
            of_bit[bit] = sum;
        }
        for (bit++; p >> bit; bit++) /* the last sum has all lower bits */
            if (p >> bit & 1) sum = of_bit[bit] + sum;
        if (a->is_added) sum += v_get_left(CR_F32, y, i, left);
        v_put_left(CR_F32, y, i, sum, left);
    }
    return CR_OK;
}

cr_status CR_V(square_sum)(cr_device *dev, const cr_square_sum_args *a, cr_err *err)
{
    enum { BLOCK = 4096, LANES = 8 };
    const float *values = cr_mem_to_host(a->x);

    (void)dev;
    (void)err;
    *a->out = 0;
    for (size_t first = 0; first < a->num; first += BLOCK) {
        size_t n = a->num - first < BLOCK ? a->num - first : BLOCK, i = 0;
        double lane[LANES] = {0}, sum = 0;
        for (; i + LANES <= n; i += LANES)
            for (size_t k = 0; k < LANES; k++)
                lane[k] += (double)values[first + i + k] * (double)values[first + i + k];
        for (size_t k = 0; k < LANES; k++)
            sum += lane[k];
        for (; i < n; i++)
            sum += (double)values[first + i] * (double)values[first + i];
        *a->out += sum;
    }
    return CR_OK;
}

/* p -= lr wd p; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr / (1 - b1^t) m / (sqrt(v /
 * (1 - b2^t)) + eps), as torch.optim.AdamW. */
cr_status CR_V(adamw)(cr_device *dev, const cr_adamw_args *a, cr_err *err)
{
    float decay = (float)(1 - a->lr * a->weight_decay), b1 = (float)a->beta1, b2 = (float)a->beta2;
    float c1 = (float)(1 - a->beta1), c2 = (float)(1 - a->beta2), eps = (float)a->eps;
    float step = (float)(a->lr / (1 - pow(a->beta1, (double)a->t)));
    float root = (float)(1 / sqrt(1 - pow(a->beta2, (double)a->t))), scale = (float)a->grad_scale;
    float *restrict p = cr_mem_to_host(a->param), *restrict m = cr_mem_to_host(a->m),
                    *restrict v = cr_mem_to_host(a->v);
    const float *restrict g = cr_mem_to_host(a->grad);

    for (size_t i = 0; i < a->num; i++) {
        float x = g[i] * scale;
        m[i] = b1 * m[i] + c1 * x;
        v[i] = b2 * v[i] + c2 * x * x;
        p[i] = p[i] * decay - step * (m[i] / (sqrtf(v[i]) * root + eps));
    }
    if (!a->rounded) return CR_OK;
    return CR_V(cast)(dev, &(cr_cast_args){a->rounded_dtype, a->rounded, CR_F32, a->param, a->num},
                      err);
}

cr_status CR_V(blend)(cr_device *dev, const cr_blend_args *args, cr_err *err)
{
    float *y = cr_mem_to_host(args->y), a = args->a, b = args->b;
    const float *x = cr_mem_to_host(args->x);

    (void)dev;
    (void)err;
    for (size_t i = 0; i < args->num; i++)
        y[i] = a * x[i] + b * y[i];
    return CR_OK;
}

/* ---- RMSNorm ---- */

CR_INLINE float square_mean_root(cr_dtype dtype, const void *x, int64_t at, int64_t n, float eps)
{
    vf sum = v_set(0);
    int64_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        vf a = v_get(dtype, x, at + i);
        sum = v_fma(a, a, sum);
    }
    if (i < n) {
        vf a = v_get_some(dtype, x, at + i, n - i);
        sum = v_fma(a, a, sum);
    }
    return 1.0f / sqrtf(v_sum(sum) / (float)n + eps);
}

/* Some elements of a row, divided by its root, times the weight, onto the stream. */
CR_INLINE vf scaled_some(cr_dtype dtype, const cr_rmsnorm_args *a, vf x, vf w, int64_t at,
                         int64_t some)
{
    vf y = a->offset == 0 ? v_rounded(dtype, x) * w : x * (v_set(a->offset) + w);

    return a->add ? v_get_left(dtype, a->add, at, some) + v_rounded(dtype, y) : y;
}

CR_INLINE void rmsnorm_rows(cr_dtype dtype, const cr_rmsnorm_args *a)
{
    int64_t n = a->num_cols;
    float *kept = cr_mem_to_host(a->rstd);

    for (int64_t r = 0; r < a->num_rows; r++) {
        int64_t at = r * n, i = 0;
        float rstd = square_mean_root(dtype, a->x, at, n, a->eps);
        vf s = v_set(rstd);
        if (kept) kept[r] = rstd;
        for (; i + V_LANES <= n; i += V_LANES)
            v_put(dtype, a->y, at + i,
                  scaled_some(dtype, a, v_get(dtype, a->x, at + i) * s, v_get(dtype, a->weight, i),
                              at + i, V_LANES));
        if (i < n)
            v_put_some(dtype, a->y, at + i,
                       scaled_some(dtype, a, v_get_some(dtype, a->x, at + i, n - i) * s,
                                   v_get_some(dtype, a->weight, i, n - i), at + i, n - i),
                       n - i);
    }
}

cr_status CR_V(rmsnorm)(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, rmsnorm_rows, a);
    return CR_OK;
}

CR_INLINE vf weight_some(cr_dtype dtype, const cr_rmsnorm_grad_args *a, int64_t i, int64_t some)
{
    vf w = v_get_left(dtype, a->weight, i, some);

    return a->offset == 0 ? w : v_set(a->offset) + w;
}

/* With u = dy w (w: offset and all) and r = rstd: dx = r (u - x r^2 mean(u x)); dw += dy (x r). */
CR_INLINE void rmsnorm_grad_rows(cr_dtype dtype, const cr_rmsnorm_grad_args *a)
{
    int64_t n = a->num_cols;
    const float *rstd = cr_mem_to_host(a->rstd);
    float *dweight = cr_mem_to_host(a->dweight);

    for (int64_t r = 0; r < a->num_rows; r++) {
        int64_t at = r * n;
        vf dot = v_set(0), s = v_set(rstd[r]), mean;
        V_EACH(i, some, n, {
            vf x = v_get_left(dtype, a->x, at + i, some);
            vf dy = v_get_left(dtype, a->dy, at + i, some);
            vf w = weight_some(dtype, a, i, some);
            dot = v_fma(dy * w, x, dot);
            if (dweight) {
                vf g = v_get_left(CR_F32, dweight, i, some);
                g = v_fma(dy, a->offset == 0 ? v_rounded(dtype, x * s) : x * s, g);
                v_put_left(CR_F32, dweight, i, g, some);
            }
        });
        mean = v_set(v_sum(dot) / (float)n) * s * s;
        V_EACH(i, some, n, {
            vf x = v_get_left(dtype, a->x, at + i, some);
            vf dy = v_get_left(dtype, a->dy, at + i, some);
            vf w = weight_some(dtype, a, i, some);
            vf dx = s * (dy * w - x * mean);
            if (a->is_dx_added) dx = dx + v_get_left(dtype, a->dx, at + i, some);
            v_put_left(dtype, a->dx, at + i, dx, some);
        });
    }
}

cr_status CR_V(rmsnorm_grad)(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, rmsnorm_grad_rows, a);
    return CR_OK;
}

/* ---- rotary embedding ---- */

/* The table grows to the longest position; entries are a function of position and frequency alone. */
static void rope_table(cr_device *dev, const cr_rope_args *a, int64_t half)
{
    cri_rope_table *t = &cri_cpu_of(dev)->by_position;
    const int32_t *positions = cr_mem_to_host(a->positions);
    const float *inv_freq = cr_mem_to_host(a->inv_freq);
    int64_t max = 0;

    for (int64_t i = 0; i < a->num_tokens; i++)
        if (positions[i] > max) max = positions[i];
    if (t->half != half || t->scaling != a->scaling ||
        memcmp(t->angles, inv_freq, (size_t)half * sizeof(float)) != 0) {
        cr_free(t->cos);
        cr_free(t->sin);
        cr_free(t->angles);
        *t = (cri_rope_table){.half = half, .scaling = a->scaling};
        t->angles = CR_NEW_ARRAY(float, half);
        memcpy(t->angles, inv_freq, (size_t)half * sizeof(float));
    }
    if (max < t->num_positions) return;
    int64_t want = (max + 1024) / 1024 * 1024;
    size_t old_bytes = (size_t)(t->num_positions * half) * sizeof(float),
           bytes = (size_t)(want * half) * sizeof(float);
    t->cos = cr_realloc(t->cos, old_bytes, bytes);
    t->sin = cr_realloc(t->sin, old_bytes, bytes);
    for (int64_t p = t->num_positions; p < want; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * inv_freq[i]; /* float32, as Transformers */
            t->cos[p * half + i] = (float)cos((double)angle) * a->scaling;
            t->sin[p * half + i] = (float)sin((double)angle) * a->scaling;
        }
    t->num_positions = want;
}

/* Angles of each row: made again when they are others than in the last call. Layers of a pass share them. */
static void rope_rows_table(cr_device *dev, const cr_rope_args *a, int64_t half)
{
    cri_rope_table *t = &cri_cpu_of(dev)->by_row;
    const float *angles = cr_mem_to_host(a->angles);
    int64_t num = a->num_tokens * half, old = t->num_positions * t->half;
    size_t bytes = (size_t)num * sizeof(float);

    if (num == old && t->half == half && t->scaling == a->scaling &&
        memcmp(t->angles, angles, bytes) == 0)
        return;
    if (num > t->capacity) {
        size_t old_bytes = (size_t)t->capacity * sizeof(float);
        t->cos = cr_realloc(t->cos, old_bytes, bytes);
        t->sin = cr_realloc(t->sin, old_bytes, bytes);
        t->angles = cr_realloc(t->angles, old_bytes, bytes);
        t->capacity = num;
    }
    memcpy(t->angles, angles, bytes);
    t->half = half;
    t->scaling = a->scaling;
    t->num_positions = a->num_tokens;
    for (int64_t i = 0; i < num; i++) {
        t->cos[i] = (float)cos((double)angles[i]) * a->scaling;
        t->sin[i] = (float)sin((double)angles[i]) * a->scaling;
    }
}

CR_INLINE int64_t rope_row(const cr_rope_args *a, int64_t r)
{
    const int32_t *positions = cr_mem_to_host(a->positions);

    return (a->angles ? r : positions[r]) * (a->head_dim / 2);
}

/* Heads of 8 or 16 elements whose halves are shorter than a vector. */
CR_INLINE void rope_short_rows(cr_dtype dtype, const cr_rope_args *a, const cri_rope_table *t)
{
    int64_t half = a->head_dim / 2, cols = a->num_heads * a->head_dim;
    float sign = (float)a->sign, cosine[V_LANES], sine[V_LANES];

    for (int64_t r = 0; r < a->num_tokens; r++) {
        const float *c = t->cos + rope_row(a, r), *s = t->sin + rope_row(a, r);
        vf vc, vs;
        for (int64_t i = 0; i < V_LANES; i++) {
            cosine[i] = c[i % half];
            sine[i] = s[i % half] * (i / half % 2 ? sign : -sign);
        }
        vc = v_load(cosine), vs = v_load(sine);
        for (int64_t at = r * cols; at < (r + 1) * cols; at += V_LANES) {
            vf x = v_get(dtype, a->x, at);
            v_put(dtype, a->x, at, v_fma(x, vc, v_swapped(x, half) * vs));
        }
    }
}

CR_INLINE void rope_rows(cr_dtype dtype, const cr_rope_args *a, const cri_rope_table *t)
{
    int64_t half = a->head_dim / 2;
    float sign = (float)a->sign;

    if ((half == 4 || half == 8) && half < V_LANES && a->num_heads * a->head_dim % V_LANES == 0) {
        rope_short_rows(dtype, a, t);
        return;
    }
    for (int64_t r = 0; r < a->num_tokens; r++) {
        const float *c = t->cos + rope_row(a, r), *s = t->sin + rope_row(a, r);
        for (int64_t h = 0; h < a->num_heads; h++) {
            int64_t at = (r * a->num_heads + h) * a->head_dim;
            for (int64_t i = 0; i < half; i += V_LANES) {
                int64_t some = half - i < V_LANES ? half - i : V_LANES;
                vf vc, vs, x, y;
                if (some == V_LANES) {
                    vc = v_load(c + i), vs = v_load(s + i) * v_set(sign);
                    x = v_get(dtype, a->x, at + i), y = v_get(dtype, a->x, at + half + i);
                    v_put(dtype, a->x, at + i, v_fma(x, vc, -(y * vs)));
                    v_put(dtype, a->x, at + half + i, v_fma(y, vc, x * vs));
                } else {
                    vc = v_get_some(CR_F32, c, i, some),
                    vs = v_get_some(CR_F32, s, i, some) * v_set(sign);
                    x = v_get_some(dtype, a->x, at + i, some),
                    y = v_get_some(dtype, a->x, at + half + i, some);
                    v_put_some(dtype, a->x, at + i, v_fma(x, vc, -(y * vs)), some);
                    v_put_some(dtype, a->x, at + half + i, v_fma(y, vc, x * vs), some);
                }
            }
        }
    }
}

cr_status CR_V(rope)(cr_device *dev, const cr_rope_args *a, cr_err *err)
{
    const cri_cpu *cpu = cri_cpu_of(dev);

    (void)err;
    if (a->num_tokens <= 0) return CR_OK;
    if (a->angles)
        rope_rows_table(dev, a, a->head_dim / 2);
    else
        rope_table(dev, a, a->head_dim / 2);
    CR_BY_DTYPE(a->dtype, rope_rows, a, a->angles ? &cpu->by_row : &cpu->by_position);
    return CR_OK;
}

cr_status CR_V(qk_heads)(cr_device *dev, const cr_qk_heads_args *a, cr_err *err)
{
    for (int is_k = 0; is_k < 2; is_k++) {
        int64_t heads = is_k ? a->num_kv_heads : a->num_heads;
        cr_mem *y = is_k ? a->k : a->q;
        if (a->q_weight)
            CR_TRY(CR_V(rmsnorm)(
                dev,
                &(cr_rmsnorm_args){is_k ? a->k_in : a->q_in, is_k ? a->k_weight : a->q_weight, y,
                                   is_k ? a->k_rstd : a->q_rstd, a->dtype, a->num_tokens * heads,
                                   a->head_dim, a->eps, a->offset},
                err));
        CR_TRY(CR_V(rope)(dev,
                          &(cr_rope_args){y, a->dtype, a->positions, a->inv_freq, a->scaling,
                                          a->sign, a->num_tokens, heads, a->head_dim, a->angles},
                          err));
    }
    return CR_OK;
}

/* ---- SwiGLU ---- */

CR_INLINE vf sigmoid(vf x)
{
    return v_set(1.0f) / (v_set(1.0f) + v_exp(-x));
}

CR_INLINE void swiglu_range(cr_dtype dtype, const void *gate, const void *up, void *h, int64_t n)
{
    V_EACH(i, some, n, {
        vf a = v_get_left(dtype, gate, i, some);
        vf u = v_get_left(dtype, up, i, some);
        vf y = v_rounded(dtype, a * sigmoid(a)) * u;
        v_put_left(dtype, h, i, y, some);
    });
}

cr_status CR_V(swiglu)(cr_device *dev, const cr_swiglu_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, swiglu_range, a->gate, a->up, a->h, (int64_t)a->num);
    return CR_OK;
}

CR_INLINE void swiglu_grad_range(cr_dtype dtype, const void *gate, const void *up, const void *dh,
                                 void *dgate, void *dup, void *h, int64_t n)
{
    V_EACH(i, some, n, {
        vf a = v_get_left(dtype, gate, i, some);
        vf u = v_get_left(dtype, up, i, some);
        vf g = v_get_left(dtype, dh, i, some);
        vf s = sigmoid(a), da = g * u * s * v_fma(a, v_set(1.0f) - s, v_set(1.0f)), du = g * a * s;
        v_put_left(dtype, dgate, i, da, some);
        v_put_left(dtype, dup, i, du, some);
        if (h) v_put_left(dtype, h, i, v_rounded(dtype, a * s) * u, some);
    });
}

cr_status CR_V(swiglu_grad)(cr_device *dev, const cr_swiglu_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, swiglu_grad_range, a->gate, a->up, a->dh, a->dgate, a->dup, a->h,
                (int64_t)a->num);
    return CR_OK;
}

/* ---- embedding ---- */

cr_status CR_V(embedding_grad)(cr_device *dev, const cr_embedding_grad_args *a, cr_err *err)
{
    int64_t num_cols = a->num_cols;
    cr_dtype dtype = a->dtype;
    const void *dy = cr_mem_to_host(a->dy);
    const int32_t *ids = cr_mem_to_host(a->ids);
    float *dw = cr_mem_to_host(a->dw);

    (void)dev;
    (void)err;
    for (int64_t t = 0; t < a->num_tokens; t++) {
        float *row = dw + (int64_t)ids[t] * num_cols;
        for (int64_t i = 0; i < num_cols; i += V_LANES) {
            int64_t some = num_cols - i < V_LANES ? num_cols - i : V_LANES;
            if (some == V_LANES)
                v_store(row + i, v_load(row + i) + v_get(dtype, dy, t * num_cols + i));
            else
                v_put_some(CR_F32, row, i,
                           v_get_some(CR_F32, row, i, some) +
                               v_get_some(dtype, dy, t * num_cols + i, some),
                           some);
        }
    }
    return CR_OK;
}
