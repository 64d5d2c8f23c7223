/* vision.c -- LayerNorm, GELU, GeGLU and rows of vision towers (see kernels/vision.h). */
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/simd_exp.h"
#include "kernels/cpu/variant/simd_rows.h"

#include <math.h>

/* ---- LayerNorm ---- */

/* x - mean, 0 after the end of the row. */
CR_INLINE vf centred(cr_dtype dtype, const void *x, int64_t at, int64_t left, vf mean)
{
    vf v = v_get_left(dtype, x, at, left) - mean;

    return left >= V_LANES ? v : v_select(v_lanes() < (int32_t)left, v, v_set(0));
}

CR_INLINE void layernorm_rows(cr_dtype dtype, const cr_layernorm_args *a)
{
    int64_t n = a->num_cols;
    float *kept_mean = cr_mem_to_host(a->mean), *kept_rstd = cr_mem_to_host(a->rstd);

    for (int64_t r = 0; r < a->num_rows; r++) {
        int64_t at = r * n;
        vf sum = v_set(0), squares = v_set(0), mean, scale;
        float rstd;
        for (int64_t i = 0; i < n; i += V_LANES)
            sum = sum + v_get_left(dtype, a->x, at + i, n - i);
        mean = v_set(v_sum(sum) / (float)n);
        for (int64_t i = 0; i < n; i += V_LANES) {
            vf x = centred(dtype, a->x, at + i, n - i, mean);
            squares = v_fma(x, x, squares);
        }
        rstd = 1.0f / sqrtf(v_sum(squares) / (float)n + a->eps);
        scale = v_set(rstd);
        if (kept_mean) kept_mean[r] = mean[0];
        if (kept_rstd) kept_rstd[r] = rstd;
        for (int64_t i = 0; i < n; i += V_LANES) {
            vf x = v_get_left(dtype, a->x, at + i, n - i) - mean;
            vf w = v_get_left(dtype, a->weight, i, n - i), b = v_get_left(dtype, a->bias, i, n - i);
            v_put_left(dtype, a->y, at + i, v_fma(x * scale, w, b), n - i);
        }
    }
}

cr_status CR_V(layernorm)(cr_device *dev, const cr_layernorm_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, layernorm_rows, a);
    return CR_OK;
}

CR_INLINE void add_to(float *sums, int64_t i, vf v, int64_t left)
{
    v_put_left(CR_F32, sums, i, v_get_left(CR_F32, sums, i, left) + v, left);
}

/* With u = dy w and n = (x - mean) r: dx = r (u - mean(u) - n mean(u n)); dw += dy n; db += dy. */
CR_INLINE void layernorm_grad_rows(cr_dtype dtype, const cr_layernorm_grad_args *a)
{
    int64_t n = a->num_cols;
    const float *means = cr_mem_to_host(a->mean), *rstd = cr_mem_to_host(a->rstd);
    float *dweight = cr_mem_to_host(a->dweight), *dbias = cr_mem_to_host(a->dbias);

    for (int64_t row = 0; row < a->num_rows; row++) {
        int64_t at = row * n;
        vf sum = v_set(0), dot = v_set(0), mean = v_set(means[row]), r = v_set(rstd[row]);
        V_EACH(i, left, n, {
            vf x = centred(dtype, a->x, at + i, left, mean) * r,
               dy = v_get_left(dtype, a->dy, at + i, left),
               u = dy * v_get_left(dtype, a->weight, i, left);
            sum = sum + u;
            dot = v_fma(u, x, dot);
            if (dweight) add_to(dweight, i, dy * x, left);
            if (dbias) add_to(dbias, i, dy, left);
        });
        sum = v_set(v_sum(sum) / (float)n);
        dot = v_set(v_sum(dot) / (float)n);
        V_EACH(i, left, n, {
            vf x = centred(dtype, a->x, at + i, left, mean) * r,
               u = v_get_left(dtype, a->dy, at + i, left) * v_get_left(dtype, a->weight, i, left),
               dx = r * (u - sum - x * dot);
            if (a->is_dx_added) dx = dx + v_get_left(dtype, a->dx, at + i, left);
            v_put_left(dtype, a->dx, at + i, dx, left);
        });
    }
}

cr_status CR_V(layernorm_grad)(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, layernorm_grad_rows, a);
    return CR_OK;
}

/* ---- GELU ---- */

/* Phi(x), the distribution function of the normal distribution, and e = exp(-x^2 / 2). With z = |x| /
 * sqrt 2, erfc(z) exp(z^2) is t times a polynomial in t = 1 / (1 + 0.4 z), within 7e-8 of itself for
 * z < 10 (fitted); beyond, e is 0. */
CR_INLINE vf normal_below(vf x, vf *e)
{
#if defined(CR_FLOAT64)
    *e = v_exp(x * x * v_set(-0.5));
    for (int i = 0; i < V_LANES; i++)
        x[i] = erfc(-x[i] * 0.70710678118654752) / 2;
    return x;
#else
    vf z = (vf)((vi)x & 0x7FFFFFFF) * v_set(0.70710678118654752f),
       t = v_set(1.0f) / v_fma(z, v_set(0.4f), v_set(1.0f)), y = v_set(0.041253421f);

    *e = v_exp(x * x * v_set(-0.5f));
    y = v_fma(y, t, v_set(-0.140321086f));
    y = v_fma(y, t, v_set(0.0839910500f));
    y = v_fma(y, t, v_set(0.0879601656f));
    y = v_fma(y, t, v_set(0.0797592358f));
    y = v_fma(y, t, v_set(0.193392120f));
    y = v_fma(y, t, v_set(0.201887843f));
    y = v_fma(y, t, v_set(0.226443080f));
    y = v_fma(y, t, v_set(0.225634233f));
    y = y * t * *e * v_set(0.5f);
    return v_select(x < 0, y, v_set(1.0f) - y);
#endif
}

/* (1 + tanh u) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3), which is the logistic function of 2 u. */
CR_INLINE vf tanh_below(vf x)
{
    vf u = x * v_fma(x * x, v_set((float)0.071354816272600248), v_set((float)1.5957691216057308));

    return v_set(1.0f) / (v_set(1.0f) + v_exp(-u));
}

CR_INLINE vf gelu_of(cr_gelu_kind kind, vf x)
{
    vf e;

    return x * (kind == CR_GELU_ERF ? normal_below(x, &e) : tanh_below(x));
}

CR_INLINE vf gelu_slope(cr_gelu_kind kind, vf x)
{
    vf e, s;

    if (kind == CR_GELU_ERF) {
        s = normal_below(x, &e);
        return v_fma(x * e, v_set((float)0.3989422804014327), s);
    }
    s = tanh_below(x);
    return v_fma(x * s * (v_set(1.0f) - s),
                 v_fma(x * x, v_set((float)0.21406444881780073), v_set((float)1.5957691216057308)),
                 s);
}

CR_INLINE void gelu_range(cr_dtype dtype, cr_gelu_kind kind, const void *x, void *y, int64_t n)
{
    V_EACH(i, left, n,
           v_put_left(dtype, y, i, gelu_of(kind, v_get_left(dtype, x, i, left)), left););
}

cr_status CR_V(gelu)(cr_device *dev, const cr_gelu_args *a, cr_err *err)
{
    int64_t n = (int64_t)a->num;

    (void)dev;
    (void)err;
    if (a->kind == CR_GELU_ERF)
        CR_BY_DTYPE(a->dtype, gelu_range, CR_GELU_ERF, a->x, a->y, n);
    else
        CR_BY_DTYPE(a->dtype, gelu_range, CR_GELU_TANH, a->x, a->y, n);
    return CR_OK;
}

CR_INLINE void gelu_grad_range(cr_dtype dtype, cr_gelu_kind kind, const void *x, const void *dy,
                               void *dx, int64_t n)
{
    V_EACH(
        i, left, n,
        v_put_left(dtype, dx, i,
                   v_get_left(dtype, dy, i, left) * gelu_slope(kind, v_get_left(dtype, x, i, left)),
                   left););
}

cr_status CR_V(gelu_grad)(cr_device *dev, const cr_gelu_grad_args *a, cr_err *err)
{
    int64_t n = (int64_t)a->num;

    (void)dev;
    (void)err;
    if (a->kind == CR_GELU_ERF)
        CR_BY_DTYPE(a->dtype, gelu_grad_range, CR_GELU_ERF, a->x, a->dy, a->dx, n);
    else
        CR_BY_DTYPE(a->dtype, gelu_grad_range, CR_GELU_TANH, a->x, a->dy, a->dx, n);
    return CR_OK;
}

CR_INLINE void geglu_range(cr_dtype dtype, cr_gelu_kind kind, const cr_geglu_args *a)
{
    int64_t n = (int64_t)a->num;

    V_EACH(i, left, n, {
        vf gate = v_get_left(dtype, a->gate, i, left), up = v_get_left(dtype, a->up, i, left);
        v_put_left(dtype, a->h, i, v_rounded(dtype, gelu_of(kind, gate)) * up, left);
    });
}

cr_status CR_V(geglu)(cr_device *dev, const cr_geglu_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    if (a->kind == CR_GELU_ERF)
        CR_BY_DTYPE(a->dtype, geglu_range, CR_GELU_ERF, a);
    else
        CR_BY_DTYPE(a->dtype, geglu_range, CR_GELU_TANH, a);
    return CR_OK;
}

CR_INLINE void geglu_grad_range(cr_dtype dtype, cr_gelu_kind kind, const cr_geglu_grad_args *a)
{
    int64_t n = (int64_t)a->num;

    V_EACH(i, left, n, {
        vf gate = v_get_left(dtype, a->gate, i, left), up = v_get_left(dtype, a->up, i, left);
        vf dh = v_get_left(dtype, a->dh, i, left);
        v_put_left(dtype, a->dgate, i, dh * up * gelu_slope(kind, gate), left);
        v_put_left(dtype, a->dup, i, dh * gelu_of(kind, gate), left);
    });
}

cr_status CR_V(geglu_grad)(cr_device *dev, const cr_geglu_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    if (a->kind == CR_GELU_ERF)
        CR_BY_DTYPE(a->dtype, geglu_grad_range, CR_GELU_ERF, a);
    else
        CR_BY_DTYPE(a->dtype, geglu_grad_range, CR_GELU_TANH, a);
    return CR_OK;
}

/* ---- rows ---- */

CR_INLINE void bag_grad_rows(cr_dtype dtype, const cr_embedding_bag_grad_args *a)
{
    int64_t n = a->num_cols;
    const int32_t *index = cr_mem_to_host(a->index);
    const float *weight = cr_mem_to_host(a->weight);

    for (int64_t k = 0; k < a->num_rows * a->per_row; k++) {
        float *row = (float *)cr_mem_to_host(a->dw) + index[k] * n;
        int64_t at = k / a->per_row * n;
        vf w = v_set(weight[k]);
        for (int64_t i = 0; i < n; i += V_LANES)
            add_to(row, i, w * v_get_left(dtype, a->dy, at + i, n - i), n - i);
    }
}

cr_status CR_V(embedding_bag_grad)(cr_device *dev, const cr_embedding_bag_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, bag_grad_rows, a);
    return CR_OK;
}

CR_INLINE void add_rows(cr_dtype dtype, const void *src, const int32_t *index, int64_t num_rows,
                        int64_t n, void *dst)
{
    for (int64_t r = 0; r < num_rows; r++)
        for (int64_t i = 0; i < n; i += V_LANES) {
            int64_t at = index[r] * n + i;
            v_put_left(dtype, dst, at,
                       v_get_left(dtype, dst, at, n - i) + v_get_left(dtype, src, r * n + i, n - i),
                       n - i);
        }
}

cr_status CR_V(rows_add)(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, add_rows, a->src, cr_mem_to_host(a->index), a->num_rows, a->num_cols,
                a->dst);
    return CR_OK;
}

/* ---- a factor a column ---- */

CR_INLINE void scale_cols(cr_dtype dtype, const cr_cols_scale_args *a)
{
    int64_t n = a->num_cols;

    for (int64_t at = 0; at < a->num_rows * n; at += n)
        V_EACH(i, left, n, {
            vf y = v_get_left(dtype, a->x, at + i, left) * v_get_left(dtype, a->factor, i, left);
            if (a->add) y = y + v_get_left(dtype, a->add, at + i, left);
            v_put_left(dtype, a->y, at + i, y, left);
        });
}

cr_status CR_V(cols_scale)(cr_device *dev, const cr_cols_scale_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, scale_cols, a);
    return CR_OK;
}

CR_INLINE void scale_cols_grad(cr_dtype dtype, const cr_cols_scale_grad_args *a)
{
    int64_t n = a->num_cols;
    float *dfactor = cr_mem_to_host(a->dfactor);

    for (int64_t at = 0; at < a->num_rows * n; at += n)
        V_EACH(i, left, n, {
            vf dy = v_get_left(dtype, a->dy, at + i, left);
            if (dfactor) add_to(dfactor, i, dy * v_get_left(dtype, a->x, at + i, left), left);
            if (a->dx)
                v_put_left(dtype, a->dx, at + i, dy * v_get_left(dtype, a->factor, i, left), left);
        });
}

cr_status CR_V(cols_scale_grad)(cr_device *dev, const cr_cols_scale_grad_args *a, cr_err *err)
{
    (void)dev;
    (void)err;
    CR_BY_DTYPE(a->dtype, scale_cols_grad, a);
    return CR_OK;
}
