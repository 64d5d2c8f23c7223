/* attention_grad.c -- backward of attention, as products (gemm.h).
 *
 * For each tile of 64 keys and each block of the rows that see it: S = q K^T, P from lse, dP = dO V^T,
 * dS = scale P (dP - delta), and dV += P^T dO, dK += dS^T q, dq += dS K. In bfloat16 P and dS are
 * rounded to it before they are multiplied; sums are float32. One task owns a kv head of a sequence, so
 * every sum has one order, which no other sequence changes.
 */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/gemm.h"
#include "kernels/cpu/variant/simd_exp.h"

enum { TILE = CR_KV_BLOCK, ROWS = 8 * CRI_ROWS };

/* One task's memory. Panels and groups are B and A of gemm.h. */
typedef struct work {
    float *dq, *delta;               /* [group, len, wide], [group, len] */
    float *dk, *dv;                  /* [D, TILE] of the tile, transposed */
    float *s, *dp;                   /* [ROWS, TILE] of the block */
    gemm_unit *p_panels, *ds_panels; /* P and dS, rows along k */
    void *ds;                        /* dS as rows [ROWS, TILE] in the dtype of products */
    gemm_unit *kt, *vt, *k;          /* panels of the tile: K^T, V^T, K */
    gemm_unit *q, *d_o;              /* groups of the block: q^T, dO^T */
    gemm_unit *rows;                 /* rows of q or dO, where they cannot be read in place */
} work;

/* Shapes of a call. */
typedef struct shape {
    const cr_attention_grad_args *g;
    const cr_attention_args *a;
    cr_device *dev;
    cr_dtype inner; /* of P and dS: bfloat16 where it is multiplied in pairs, else float32 */
    bool is_pairs;
    int64_t d, d_units, group;
    int64_t wide; /* D in whole panels: row stride of sums */
} shape;

#if V_HAS_PAIRS
/* Units of two rows, rounded to bfloat16. */
CR_INLINE vf pairs_of(vf low, vf high)
{
    return (vf)((vu)v_rounded(CR_BF16, low) >> 16 | (vu)v_rounded(CR_BF16, high));
}
#endif

static int64_t whole_panels(int64_t cols)
{
    return (cols + CRI_PANEL - 1) / CRI_PANEL * CRI_PANEL;
}

static int64_t lay_out(const shape *z, int64_t len, gemm_unit *base, work *w)
{
    int64_t tile_units = gemm_units(z->inner, TILE), row_units = gemm_units(z->inner, ROWS);
    struct {
        void *to;
        int64_t num;
    } parts[] = {
        {&w->dq, z->group * len * z->wide},
        {&w->delta, z->group * len},
        {&w->dk, TILE * z->d},
        {&w->dv, TILE * z->d},
        {&w->s, ROWS * TILE},
        {&w->dp, ROWS * TILE},
        {&w->p_panels, TILE * row_units},
        {&w->ds_panels, TILE * row_units},
        {&w->ds, ROWS * TILE},
        {&w->kt, TILE * z->d_units},
        {&w->vt, TILE * z->d_units},
        {&w->k, z->wide * tile_units},
        {&w->q, gemm_groups_units(z->inner, z->d, row_units)},
        {&w->d_o, gemm_groups_units(z->inner, z->d, row_units)},
        {&w->rows, ROWS * z->d_units},
    };
    int64_t at = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        gemm_unit *here = base ? base + at : NULL;
        memcpy(parts[i].to, &here, sizeof here);
        at += (parts[i].num + 31) / 16 * 16;
    }
    return at;
}

/* C[m, n] (+)= A B in float32, n in whole panels, of the dtype. */
static void product(const shape *z, cr_dtype dtype, int64_t m, int64_t n, int64_t units,
                    const gemm_unit *a, int64_t row_stride, const gemm_unit *panels, float *c,
                    int64_t ldc, bool is_added)
{
    gemm_out out = {.c = c, .ldc = ldc, .add = is_added ? c : NULL, .ldadd = ldc};

    CR_V(gemm)(z->dev, dtype, m, whole_panels(n), units, a, row_stride, panels, &out);
}

/* Rows of q or dO from element `at` as A. */
static const gemm_unit *rows_of(const shape *z, const work *w, const void *x, int64_t at,
                                int64_t num, int64_t *row_stride)
{
    int64_t ld = z->a->num_heads * z->d;
    const char *first = (const char *)x + (size_t)at * cr_dtype_bytes(z->a->dtype);

    if (gemm_in_place(z->a->dtype, z->d)) {
        *row_stride = z->is_pairs ? ld / 2 : ld;
        return (const gemm_unit *)(const void *)first;
    }
    *row_stride = z->d_units;
    CR_V(pack_a)(z->a->dtype, first, ld, num, z->d, w->rows);
    return w->rows;
}

/* P and dS of V_LANES keys from k0 on of a row that sees keys up to position pos. */
CR_INLINE void weigh(const shape *z, const float *s, const float *dp, int64_t pos, int64_t k0,
                     vf lse, vf delta, vf *p, vf *ds)
{
    int64_t first = z->a->window > 0 ? pos + 1 - z->a->window : 0;
    vf scale = v_set(z->a->scale);

    *p = v_exp(v_load(s) * scale - lse);
    *ds = *p * (v_load(dp) - delta) * scale;
    if (k0 + V_LANES - 1 > pos || k0 < first) {
        vi key = v_lanes() + (int32_t)k0;
        vi is_seen = (key <= (int32_t)pos) & (key >= (int32_t)first);
        *p = v_select(is_seen, *p, v_set(0));
        *ds = v_select(is_seen, *ds, v_set(0));
    }
}

/* P and dS of rows i .. i + num - 1 of a sequence of len rows against the keys of a tile. */
CR_INLINE void weigh_rows(int64_t step, const shape *z, const work *w, const float *lse,
                          const float *delta, int64_t len, int64_t i, int64_t num, int64_t k0,
                          int64_t keys)
{
    int64_t units = gemm_units(z->inner, num), stride = z->a->num_heads,
            wide = gemm_units(z->inner, keys) * step;

    for (int64_t r = 0; r < units * step; r += step) {
        vf row_lse[2] = {v_set(0), v_set(0)}, row_delta[2] = {v_set(0), v_set(0)};
#pragma GCC unroll 2
        for (int64_t t = 0; t < step; t++) {
            if (r + t >= num) break;
            row_lse[t] = v_set(lse[(r + t) * stride]);
            row_delta[t] = v_set(delta[r + t]);
        }
        for (int64_t j = 0; j < wide; j += V_LANES) {
            int64_t at = (j / CRI_PANEL * units + r / step) * CRI_PANEL + j % CRI_PANEL;
            vf p[2] = {v_set(0), v_set(0)}, ds[2] = {v_set(0), v_set(0)};
#pragma GCC unroll 2
            for (int64_t t = 0; t < step; t++) {
                if (r + t >= num) break;
                weigh(z, w->s + (r + t) * TILE + j, w->dp + (r + t) * TILE + j,
                      z->a->is_bidirectional ? len - 1 : i + r + t, k0 + j, row_lse[t],
                      row_delta[t], &p[t], &ds[t]);
            }
#if V_HAS_PAIRS
            if (step == 2) {
                v_store((float *)w->p_panels + at, pairs_of(p[0], p[1]));
                v_store((float *)w->ds_panels + at, pairs_of(ds[0], ds[1]));
                v_put(CR_BF16, w->ds, r * TILE + j, ds[0]);
                v_put(CR_BF16, w->ds, (r + 1) * TILE + j, ds[1]);
                continue;
            }
#endif
            v_store((float *)w->p_panels + at, p[0]);
            v_store((float *)w->ds_panels + at, ds[0]);
            v_store((float *)w->ds + r * TILE + j, ds[0]);
        }
    }
}

/* What num rows of head h from position i on give and get at the tile of k0. */
static void take_block(const shape *z, const work *w, int64_t first, int64_t len, int64_t h,
                       int64_t i, int64_t num, int64_t k0, int64_t keys)
{
    const cr_attention_args *a = z->a;
    int64_t row = (first + i) * a->num_heads + h, at = row * z->d, ld = a->num_heads * z->d,
            local = (h % z->group) * len + i, units = gemm_units(z->inner, num), stride;
    size_t bytes = cr_dtype_bytes(a->dtype);
    const gemm_unit *rows = rows_of(z, w, a->q, at, num, &stride);
    const float *lse = (const float *)cr_mem_to_host(a->lse) + row;

    product(z, a->dtype, num, keys, z->d_units, rows, stride, w->kt, w->s, TILE, false);
    rows = rows_of(z, w, z->g->d_o, at, num, &stride);
    product(z, a->dtype, num, keys, z->d_units, rows, stride, w->vt, w->dp, TILE, false);
    if (z->is_pairs)
        weigh_rows(2, z, w, lse, w->delta + local, len, i, num, k0, keys);
    else
        weigh_rows(1, z, w, lse, w->delta + local, len, i, num, k0, keys);
    CR_V(pack_at)(a->dtype, (const char *)a->q + (size_t)at * bytes, ld, num, z->d, w->q);
    CR_V(pack_at)(a->dtype, (const char *)z->g->d_o + (size_t)at * bytes, ld, num, z->d, w->d_o);
    product(z, z->inner, z->d, keys, units, w->d_o, CRI_GROUPS, w->p_panels, w->dv, TILE, true);
    product(z, z->inner, z->d, keys, units, w->q, CRI_GROUPS, w->ds_panels, w->dk, TILE, true);
    product(z, a->dtype, num, z->d, gemm_units(z->inner, keys), w->ds, gemm_units(z->inner, TILE),
            w->k, w->dq + local * z->wide, z->wide, true);
}

/* x [num, d] in rows of TILE, transposed. */
CR_INLINE void put_columns(cr_dtype dtype, const shape *z, const float *xt, int64_t num, void *dst,
                           int64_t at, int64_t ld)
{
    for (int64_t r = 0; r < num; r++)
        for (int64_t i = 0; i < z->d; i++)
            e_put(dtype, dst, at + r * ld + i, xt[i * TILE + r]);
}

CR_INLINE void put_rows(cr_dtype dtype, const shape *z, const float *src, int64_t num, void *dst,
                        int64_t at, int64_t ld)
{
    int64_t d = z->d;

    for (int64_t r = 0; r < num; r++)
        for (int64_t i = 0; i < d; i += V_LANES) {
            if (d - i >= V_LANES)
                v_put(dtype, dst, at + r * ld + i, v_load(src + r * z->wide + i));
            else
                v_put_some(dtype, dst, at + r * ld + i,
                           v_get_some(CR_F32, src, r * z->wide + i, d - i), d - i);
        }
}

/* delta = dO . o of every row of the sequence and head of the group. */
CR_INLINE void sum_deltas(cr_dtype dtype, const shape *z, const work *w, int64_t first, int64_t len,
                          int64_t h0)
{
    const void *o = z->a->o, *d_o = z->g->d_o;

    for (int64_t h = 0; h < z->group; h++)
        for (int64_t i = 0; i < len; i++) {
            int64_t at = ((first + i) * z->a->num_heads + h0 + h) * z->d, end = at + z->d;
            vf sum = v_set(0);
            for (; end - at >= V_LANES; at += V_LANES)
                sum = v_fma(v_get(dtype, o, at), v_get(dtype, d_o, at), sum);
            if (end > at)
                sum = v_fma(v_get_some(dtype, o, at, end - at),
                            v_get_some(dtype, d_o, at, end - at), sum);
            w->delta[h * len + i] = v_sum(sum);
        }
}

static void grad_sequence(const shape *z, int64_t s, int64_t kv, const work *w)
{
    const cr_attention_args *a = z->a;
    const int32_t *cu_seqlens = cr_mem_to_host(a->cu_seqlens);
    int64_t first = cu_seqlens[s], len = cu_seqlens[s + 1] - first, h0 = kv * z->group,
            ld = a->num_kv_heads * z->d;
    size_t bytes = cr_dtype_bytes(a->dtype);

    memset(w->dq, 0, (size_t)(z->group * len * z->wide) * sizeof(float));
    CR_BY_DTYPE(a->dtype, sum_deltas, z, w, first, len, h0);
    for (int64_t k0 = 0; k0 < len; k0 += TILE) {
        int64_t keys = len - k0 < TILE ? len - k0 : TILE, at = (first + k0) * ld + kv * z->d,
                end = a->window > 0 && k0 + keys - 1 + a->window < len ? k0 + keys - 1 + a->window
                                                                       : len;
        const char *k = (const char *)a->k + (size_t)at * bytes,
                   *v = (const char *)a->v + (size_t)at * bytes;

        CR_V(pack_rows)(a->dtype, k, ld, keys, z->d, w->kt);
        CR_V(pack_rows)(a->dtype, v, ld, keys, z->d, w->vt);
        CR_V(pack_cols)(a->dtype, k, ld, keys, z->d, w->k);
        memset(w->dk, 0, (size_t)(TILE * z->d) * sizeof(float));
        memset(w->dv, 0, (size_t)(TILE * z->d) * sizeof(float));
        for (int64_t h = h0; h < h0 + z->group; h++)
            for (int64_t i = a->is_bidirectional ? 0 : k0; i < end; i += ROWS)
                take_block(z, w, first, len, h, i, end - i < ROWS ? end - i : ROWS, k0, keys);
        CR_BY_DTYPE(a->dtype, put_columns, z, w->dk, keys, z->g->dk, at, ld);
        CR_BY_DTYPE(a->dtype, put_columns, z, w->dv, keys, z->g->dv, at, ld);
    }
    for (int64_t h = 0; h < z->group; h++)
        CR_BY_DTYPE(a->dtype, put_rows, z, w->dq + h * len * z->wide, len, z->g->dq,
                    (first * a->num_heads + h0 + h) * z->d, a->num_heads * z->d);
}

cr_status CR_V(attention_grad)(cr_device *dev, const cr_attention_grad_args *g, cr_err *err)
{
    const cr_attention_args *a = &g->fwd;
    bool is_pairs = gemm_has_pairs(a->dtype);
    shape z = {.g = g,
               .a = a,
               .dev = dev,
               .inner = is_pairs ? CR_BF16 : CR_F32,
               .is_pairs = is_pairs,
               .d = a->head_dim,
               .d_units = gemm_units(a->dtype, a->head_dim),
               .group = a->num_heads / a->num_kv_heads,
               .wide = whole_panels(a->head_dim)};
    int64_t max = a->sizes.max_seqlen, per;
    gemm_unit *all;
    work w;

    (void)err;
    per = lay_out(&z, max, NULL, &w);
    all = cri_scratch(dev, CRI_SLOT_TASKS, (size_t)(per * dev->num_threads) * sizeof(float));
    CRI_FOR(dev->num_threads, task, a->num_seqs * a->num_kv_heads, {
        work mine;
        lay_out(&z, max, all + per * cri_thread(dev), &mine);
        grad_sequence(&z, task / a->num_kv_heads, task % a->num_kv_heads, &mine);
    });
    return CR_OK;
}
