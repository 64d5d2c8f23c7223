/* head.c -- the vocabulary head: log-prob, entropy and their gradients, tile by tile.
 *
 * Logits of a block of rows against 512 vocabulary entries at a time stay in L2; a running maximum M, A = sum
 * e^(z - M) and C = sum (z - M) e^(z - M) are rescaled when M grows. Generation has whole rows of
 * logits and reduces them with the same functions over the same tiles.
 */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/gemm.h"
#include "kernels/cpu/variant/head_more.h"
#include "kernels/cpu/variant/simd_exp.h"
#include "kernels/cpu/variant/simd_rows.h"

enum { TILE = CRI_TILE, ROWS = 96 };

typedef struct row_state {
    float max, sum, moment; /* M, A, C */
} row_state;

/* z[at ..], of which n <= 0 or more are left; -inf after them. */
CR_INLINE vf v_get_words(const float *z, int64_t at, int64_t n)
{
    if (n >= V_LANES) return v_load(z + at);
    if (n <= 0) return v_set(-INFINITY);
    return v_select(v_lanes() < (int32_t)n, v_get_some(CR_F32, z, at, n), v_set(-INFINITY));
}

/* Take in z[0 .. n-1], n <= TILE. */
static void take_tile(row_state *s, const float *z, int64_t n)
{
    vf best = v_set(-INFINITY), sum = v_set(0), moment = v_set(0), shift;
    float max, scale;

    for (int64_t i = 0; i < n; i += V_LANES) {
        best = v_max(v_get_words(z, i, n - i), best);
    }
    max = v_greatest(best);
    if (s->max > max) max = s->max;
    shift = v_set(max);
    V_EACH(i, some, n, {
        vf d = v_get_left(CR_F32, z, i, some) - shift, e;
        vi is_in = v_lanes() < (int32_t)some;
        if (some < V_LANES) d = v_select(is_in, d, v_set(0));
        e = v_exp(d);
        if (some < V_LANES) e = v_select(is_in, e, v_set(0));
        sum = sum + e;
        moment = v_fma(d, e, moment);
    });
    scale = s->sum > 0 ? expf(s->max - max) : 0;
    s->moment = scale * (s->moment + (s->max - max) * s->sum);
    if (scale == 0) s->moment = 0;
    s->sum = s->sum * scale + v_sum(sum);
    s->moment += v_sum(moment);
    s->max = max;
}

static float log_prob_of(const row_state *s, float z, float log_sum)
{
    return (z - s->max) - log_sum;
}

static void finish(const row_state *s, float z_label, float *log_prob, float *entropy, float *lse,
                   float *mean_z)
{
    float log_sum = logf(s->sum);

    if (log_prob) *log_prob = log_prob_of(s, z_label, log_sum);
    if (entropy) *entropy = log_sum - s->moment / s->sum;
    if (lse) *lse = s->max + log_sum;
    if (mean_z) *mean_z = s->max + s->moment / s->sum;
}

/* Panels of W^T for tokens v0 .. v0 + cols - 1, v0 a multiple of the panel's columns. */
static const void *tile_panels(cr_device *dev, const cr_weight *w, int64_t v0, int64_t cols)
{
    int64_t units = gemm_units(w->dtype, w->num_cols);
    void *panels;

    if (w->packed)
        return (const char *)cr_mem_to_host(w->packed) +
               v0 / CRI_PANEL * gemm_panel_bytes(w->dtype, units);
    panels = cri_scratch(dev, CRI_SLOT_PANELS, gemm_panels_bytes(w->dtype, cols, units));
    CR_V(pack_rows)
    (w->dtype, (const char *)w->data + (size_t)(v0 * w->num_cols) * cr_dtype_bytes(w->dtype),
     w->num_cols, cols, w->num_cols, panels);
    return panels;
}

/* Rows as units, where they lie if possible. */
static const gemm_unit *row_units(cr_device *dev, enum cri_cpu_slot slot, cr_dtype dtype,
                                  const void *x, int64_t num_rows, int64_t k)
{
    gemm_unit *a;

    if (gemm_in_place(dtype, k)) return x;
    a = cri_scratch(dev, slot, (size_t)(num_rows * gemm_units(dtype, k)) * sizeof(gemm_unit));
    CR_V(pack_a)(dtype, x, k, num_rows, k, a);
    return a;
}

/* Labels and processors of the rows, where the host finds them. */
typedef struct row_tokens {
    const int32_t *labels;
    const cr_row_processors *processors;
    cr_row_processors view;
} row_tokens;

static void find_tokens(const cr_head_args *a, row_tokens *tokens)
{
    tokens->labels = cr_mem_to_host(a->labels);
    tokens->processors = view_processors(a->processors, &tokens->view);
}

/* What the head keeps of R rows while it goes over the vocabulary, in scratch. */
typedef struct head_rows {
    row_state *state;
    float *z_label;
    head_more *more; /* NULL: nothing more is wanted */
} head_rows;

static head_rows start_rows(cr_device *dev, const cr_head_args *a)
{
    bool has_more = a->rank || a->num_top || a->num_chosen;
    size_t num = (size_t)a->num_rows, row = sizeof(row_state) + sizeof(float);
    char *memory =
        cri_scratch(dev, CRI_SLOT_HEAD, num * (row + (has_more ? sizeof(head_more) : 0)));
    head_rows h = {.more = has_more ? (head_more *)(void *)memory : NULL};
    int32_t *rank = cr_mem_to_host(a->rank), *top_ids = cr_mem_to_host(a->top_ids);
    const int32_t *chosen_ids = cr_mem_to_host(a->chosen_ids);
    float *top_z = cr_mem_to_host(a->top_log_prob), *chosen_z = cr_mem_to_host(a->chosen_log_prob);

    h.state = (row_state *)(void *)(memory + (has_more ? num * sizeof(head_more) : 0));
    h.z_label = (float *)(h.state + num);
    for (size_t r = 0; r < num; r++) {
        size_t top = r * (size_t)a->num_top, chosen = r * (size_t)a->num_chosen;
        h.state[r] = (row_state){-INFINITY, 0, 0};
        if (!has_more) continue;
        h.more[r] = (head_more){.rank = rank ? rank + r : NULL,
                                .top_z = a->num_top ? top_z + top : NULL,
                                .top_ids = a->num_top ? top_ids + top : NULL,
                                .max_top = a->num_top,
                                .chosen_z = a->num_chosen ? chosen_z + chosen : NULL,
                                .chosen_ids = a->num_chosen ? chosen_ids + chosen : NULL,
                                .num_chosen = a->num_chosen};
        if (rank) rank[r] = 1;
        for (size_t i = 0; i < (size_t)a->num_chosen; i++)
            chosen_z[chosen + i] = -INFINITY;
    }
    return h;
}

/* The logit of each row's label before all others, for its rank: the product with the panel that the label is in. */
static void find_labels(cr_device *dev, const cr_head_args *a, const row_tokens *tokens,
                        const gemm_unit *x, float *z_label)
{
    const cr_weight *w = a->w;
    int64_t units = gemm_units(w->dtype, w->num_cols);
    float z[CRI_PANEL];
    gemm_out out = {.c = z, .ldc = CRI_PANEL};

    for (int64_t r = 0; r < a->num_rows; r++) {
        int64_t v0 = tokens->labels[r] / CRI_PANEL * CRI_PANEL,
                cols = w->num_rows - v0 < CRI_PANEL ? w->num_rows - v0 : CRI_PANEL;
        const void *panel = tile_panels(dev, w, v0, cols);
        CR_V(gemm)(dev, w->dtype, 1, cols, units, x + r * units, units, panel, &out);
        processed_tile t =
            process_tile(tokens->processors, r, tokens->labels[r], v0, cols, z, NULL);
        if (t.label >= 0) z_label[r] = z[t.label];
    }
}

/* Rows r0 .. r0 + rows - 1 take in a tile of the vocabulary, z [rows, TILE]. */
static void take_rows(const row_tokens *tokens, head_rows *h, int64_t r0, int64_t rows, int64_t v0,
                      int64_t cols, float *z)
{
    for (int64_t r = r0; r < r0 + rows; r++, z += TILE) {
        processed_tile t =
            process_tile(tokens->processors, r, tokens->labels[r], v0, cols, z, NULL);
        if (t.label >= 0) h->z_label[r] = z[t.label];
        if (t.num) take_tile(&h->state[r], z, t.num);
        if (h->more) take_more(&h->more[r], &t, v0, cols, z, h->z_label[r]);
    }
}

static void finish_more(const row_state *s, head_more *m)
{
    float log_sum = logf(s->sum);

    sort_top(m);
    for (int64_t i = 0; i < m->max_top; i++)
        m->top_z[i] = log_prob_of(s, m->top_z[i], log_sum);
    for (int64_t i = 0; i < m->num_chosen; i++)
        m->chosen_z[i] = log_prob_of(s, m->chosen_z[i], log_sum);
}

cr_status CR_V(head)(cr_device *dev, const cr_head_args *a, cr_err *err)
{
    const cr_weight *w = a->w;
    int64_t units = gemm_units(w->dtype, w->num_cols), num = a->num_rows;
    const gemm_unit *x = row_units(dev, CRI_SLOT_ROWS, w->dtype, a->x, num, w->num_cols);
    head_rows h = start_rows(dev, a);
    row_tokens tokens;
    float *z = cri_scratch(dev, CRI_SLOT_LOGITS, (size_t)ROWS * TILE * sizeof(float));
    float *log_prob = cr_mem_to_host(a->log_prob), *entropy = cr_mem_to_host(a->entropy),
          *lse = cr_mem_to_host(a->lse), *mean_z = cr_mem_to_host(a->mean_z);

    (void)err;
    find_tokens(a, &tokens);
    if (a->rank) find_labels(dev, a, &tokens, x, h.z_label);
    for (int64_t v0 = 0; v0 < w->num_rows; v0 += TILE) {
        int64_t cols = w->num_rows - v0 < TILE ? w->num_rows - v0 : TILE;
        const void *panels = tile_panels(dev, w, v0, cols);
        gemm_out out = {.c = z, .ldc = TILE};
        for (int64_t r0 = 0; r0 < num; r0 += ROWS) {
            int64_t rows = num - r0 < ROWS ? num - r0 : ROWS;
            CR_V(gemm)(dev, w->dtype, rows, cols, units, x + r0 * units, units, panels, &out);
            take_rows(&tokens, &h, r0, rows, v0, cols, z);
        }
    }
    for (int64_t r = 0; r < num; r++) {
        finish(&h.state[r], h.z_label[r], log_prob ? log_prob + r : NULL,
               entropy ? entropy + r : NULL, lse ? lse + r : NULL, mean_z ? mean_z + r : NULL);
        if (h.more) finish_more(&h.state[r], &h.more[r]);
    }
    return CR_OK;
}

/* One row of dz over a tile, from its logits. */
CR_INLINE void dz_row(cr_dtype dtype, const float *z, int64_t cols, float lse, float mean_z,
                      float g, float ge, int64_t label, void *dz, int64_t at)
{
    V_EACH(i, some, cols, {
        vf x = v_get_left(CR_F32, z, i, some);
        vf p = v_exp(x - v_set(lse));
        vf d = -(p * v_fma(v_set(ge), x - v_set(mean_z), v_set(g)));
        if (label >= i && label < i + V_LANES)
            d = v_select(v_lanes() == (int32_t)(label - i), d + v_set(g), d);
        v_put_left(dtype, dz, at + i, d, some);
    });
}

/* A tile of the vocabulary and its panels: W^T to make logits, W to make dx. */
typedef struct head_tile {
    int64_t v0, cols;
    const void *forward, *back;
} head_tile;

static head_tile pack_tile(cr_device *dev, const cr_weight *w, int64_t v0)
{
    head_tile t = {v0, w->num_rows - v0 < TILE ? w->num_rows - v0 : TILE, NULL, NULL};
    int64_t k = w->num_cols, units = gemm_units(w->dtype, k),
            dz_units = gemm_units(w->dtype, t.cols);
    const char *rows = (const char *)w->data + (size_t)(v0 * k) * cr_dtype_bytes(w->dtype);
    size_t bytes = gemm_panels_bytes(w->dtype, t.cols, units),
           bytes_back = gemm_panels_bytes(w->dtype, k, dz_units);
    char *panels = cri_scratch(dev, CRI_SLOT_TILE, bytes + bytes_back);

    CR_V(pack_rows)(w->dtype, rows, k, t.cols, k, panels);
    CR_V(pack_cols)(w->dtype, rows, k, t.cols, k, panels + bytes);
    t.forward = panels;
    t.back = panels + bytes;
    return t;
}

CR_INLINE void put_row(cr_dtype dtype, void *to, int64_t at, const float *x, int64_t num)
{
    V_EACH(i, some, num, v_put_left(dtype, to, at + i, v_load(x + i), some););
}

/* What the gradient of row r is made of. */
typedef struct row_grad {
    float lse, mean_z, log_prob, entropy;
} row_grad;

static row_grad row_grad_of(const cr_head_grad_args *a, int64_t r)
{
    const float *lse = cr_mem_to_host(a->fwd.lse), *mean_z = cr_mem_to_host(a->fwd.mean_z),
                *log_prob = cr_mem_to_host(a->grad_log_prob),
                *entropy = cr_mem_to_host(a->grad_entropy);

    return (row_grad){lse[r], mean_z[r], log_prob[r], entropy ? entropy[r] : 0};
}

/* One row of dz over a tile, from its logits, which are overwritten. */
static void dz_processed(const cr_head_grad_args *a, const row_tokens *tokens, const head_tile *t,
                         int64_t r, float *z, void *dz, int64_t at)
{
    float slope[TILE], d[TILE], wide[TILE] = {0};
    cr_dtype dtype = a->fwd.w->dtype;
    processed_tile e =
        process_tile(tokens->processors, r, tokens->labels[r], t->v0, t->cols, z, slope);
    row_grad g = row_grad_of(a, r);

    dz_row(CR_F32, z, e.num, g.lse, g.mean_z, g.log_prob, g.entropy, e.label, d, 0);
    for (int64_t i = 0; e.kept && i < e.num; i++)
        wide[e.kept[i] - t->v0] = d[i] * slope[e.kept[i] - t->v0];
    for (int64_t i = 0; !e.kept && i < e.num; i++)
        wide[i] = d[i] * slope[i];
    CR_BY_DTYPE(dtype, put_row, dz, at, wide, t->cols);
}

/* Of a loss over tokens: what row r of dz gets beside what `wide` has, from its logits z. */
static __attribute__((noinline)) void add_logits(const cr_head_grad_args *a, const head_tile *t,
                                                 int64_t r, const float *z, float *wide)
{
    const cr_head_chosen *chosen = a->chosen;
    const int64_t num = a->fwd.num_chosen;
    const int32_t *ids = (const int32_t *)cr_mem_to_host(a->fwd.chosen_ids) + r * num;
    const float *dz = (const float *)cr_mem_to_host(chosen->dz) + r * num,
                rest = ((const float *)cr_mem_to_host(chosen->rest))[r],
                log_sum = ((const float *)cr_mem_to_host(chosen->log_sum))[r];
    float own[TILE];

    memcpy(own, wide, (size_t)t->cols * sizeof *own);
    if (rest < 0 || rest > 0)
        V_EACH(i, some, t->cols, {
            vf x = v_get_left(CR_F32, z, i, some) / v_set(chosen->temperature) - v_set(log_sum);
            vf d = v_fma(v_set(rest), v_exp(x), v_get_left(CR_F32, wide, i, some));
            v_put_left(CR_F32, wide, i, d, some);
        });
    for (int64_t i = 0; i < num; i++) {
        int64_t at = ids[i] - t->v0;
        if (ids[i] >= 0 && at >= 0 && at < t->cols) wide[at] = own[at] + dz[i];
    }
}

/* The same as dz_row, with those. */
static void dz_chosen(const cr_head_grad_args *a, const row_tokens *tokens, const head_tile *t,
                      int64_t r, const float *z, void *dz, int64_t at)
{
    row_grad g = row_grad_of(a, r);
    float wide[TILE];

    dz_row(CR_F32, z, t->cols, g.lse, g.mean_z, g.log_prob, g.entropy, tokens->labels[r] - t->v0,
           wide, 0);
    add_logits(a, t, r, z, wide);
    CR_BY_DTYPE(a->fwd.w->dtype, put_row, dz, at, wide, t->cols);
}

/* dz of rows r0 .. r0 + rows - 1 (<= ROWS) over a tile, and what it adds to their dx. */
static void grad_rows(cr_device *dev, const cr_head_grad_args *a, const row_tokens *tokens,
                      const head_tile *t, int64_t r0, int64_t rows, void *dz, float *dx)
{
    const cr_weight *w = a->fwd.w;
    int64_t k = w->num_cols, units = gemm_units(w->dtype, k),
            dz_units = gemm_units(w->dtype, t->cols);
    float *z = cri_scratch(dev, CRI_SLOT_LOGITS, (size_t)ROWS * TILE * sizeof(float));
    const char *x = (const char *)a->fwd.x + (size_t)(r0 * k) * cr_dtype_bytes(w->dtype);
    const gemm_unit *xu = row_units(dev, CRI_SLOT_HEAD_X, w->dtype, x, rows, k), *dzu;
    gemm_out to_z = {.c = z, .ldc = TILE};
    gemm_out to_dx = {.c = dx, .ldc = k, .add = dx, .ldadd = k};

    CR_V(gemm)(dev, w->dtype, rows, t->cols, units, xu, units, t->forward, &to_z);
    for (int64_t r = 0; r < rows; r++) {
        row_grad g = row_grad_of(a, r0 + r);
        if (tokens->processors)
            dz_processed(a, tokens, t, r0 + r, z + r * TILE, dz, r * t->cols);
        else if (a->chosen)
            dz_chosen(a, tokens, t, r0 + r, z + r * TILE, dz, r * t->cols);
        else
            CR_BY_DTYPE(w->dtype, dz_row, z + r * TILE, t->cols, g.lse, g.mean_z, g.log_prob,
                        g.entropy, tokens->labels[r0 + r] - t->v0, dz, r * t->cols);
    }
    dzu = row_units(dev, CRI_SLOT_HEAD_DZ, w->dtype, dz, rows, t->cols);
    CR_V(gemm)(dev, w->dtype, rows, k, dz_units, dzu, dz_units, t->back, &to_dx);
}

/* A tile's sum of dx begins at 0: 152k terms one by one lose 5 bits. dz of up to BLOCK rows is kept
 * for one product with their x. */
cr_status CR_V(head_grad)(cr_device *dev, const cr_head_grad_args *a, cr_err *err)
{
    enum { BLOCK = 10 * ROWS };
    const cr_weight *w = a->fwd.w;
    int64_t k = w->num_cols, num = a->fwd.num_rows, max = num < BLOCK ? num : BLOCK;
    size_t bytes = cr_dtype_bytes(w->dtype);
    row_tokens tokens;
    float *dx = cri_scratch(dev, CRI_SLOT_HEAD, (size_t)(num * k) * sizeof(float));
    char *dz = cri_scratch(dev, CRI_SLOT_DZ, (size_t)(max * TILE) * bytes);

    find_tokens(&a->fwd, &tokens);
    memset(dx, 0, (size_t)(num * k) * sizeof(float));
    for (int64_t v0 = 0; v0 < w->num_rows; v0 += TILE) {
        head_tile t = pack_tile(dev, w, v0);
        for (int64_t b = 0; b < num; b += BLOCK) {
            int64_t end = num - b < BLOCK ? num : b + BLOCK;
            for (int64_t r = b; r < end; r += ROWS)
                grad_rows(dev, a, &tokens, &t, r, end - r < ROWS ? end - r : ROWS,
                          dz + (size_t)((r - b) * t.cols) * bytes, dx + r * k);
            const gemm_tn dw = {dz, t.cols, t.cols, (float *)cr_mem_to_host(a->dw) + v0 * k};
            if (a->dw) CR_V(product_tn)
            (dev, w->dtype, &dw, 1, (const char *)a->fwd.x + (size_t)(b * k) * bytes, k, end - b,
             k);
        }
    }
    return CR_V(cast)(dev,
                      &(const cr_cast_args){.to = w->dtype,
                                            .dst = a->dx,
                                            .from = CR_F32,
                                            .src = cr_mem_of_host(dx),
                                            .num = (size_t)(num * k)},
                      err);
}

cr_status CR_V(logits)(cr_device *dev, const cr_logits_args *a, cr_err *err)
{
    const cr_linear_args linear = {
        .x = a->x, .w = a->w, .y = a->logits, .out_dtype = CR_F32, .num_rows = a->num_rows};

    return CR_V(linear)(dev, &linear, err);
}

/* What processors make of the label's logit. */
static float processed_label(const float *z, int64_t vocab_size, int32_t label,
                             const cr_row_processors *processors, int64_t r)
{
    int64_t v0 = label / TILE * TILE, cols = vocab_size - v0 < TILE ? vocab_size - v0 : TILE;
    float copy[TILE];
    processed_tile t;

    memcpy(copy, z + v0, (size_t)cols * sizeof *copy);
    t = process_tile(processors, r, label, v0, cols, copy, NULL);
    return t.label >= 0 ? copy[t.label] : z[label];
}

/* log_prob of the label and entropy (may be NULL) from row number r of processors, or from z as it is; more: NULL, or what
 * else is wanted. */
static void reduce_row(const float *z, int64_t vocab_size, int32_t label,
                       const cr_row_processors *processors, int64_t r, float *log_prob,
                       float *entropy, head_more *more)
{
    row_state s = {-INFINITY, 0, 0};
    float copy[TILE], z_label = z[label];

    if (processors && more) z_label = processed_label(z, vocab_size, label, processors, r);
    for (int64_t v0 = 0; v0 < vocab_size; v0 += TILE) {
        int64_t cols = vocab_size - v0 < TILE ? vocab_size - v0 : TILE;
        processed_tile t = {.num = cols, .label = -1};
        if (processors) {
            memcpy(copy, z + v0, (size_t)cols * sizeof *copy);
            t = process_tile(processors, r, label, v0, cols, copy, NULL);
        }
        if (t.label >= 0) z_label = copy[t.label];
        if (t.num) take_tile(&s, processors ? copy : z + v0, t.num);
        if (more) take_more(more, &t, v0, cols, processors ? copy : z + v0, z_label);
    }
    finish(&s, z_label, log_prob, entropy, NULL, NULL);
    if (more) finish_more(&s, more);
}

cr_status CR_V(logits_log_prob)(cr_device *dev, const cr_logits_log_prob_args *a, cr_err *err)
{
    const float *logits = cr_mem_to_host(a->logits);
    const int32_t *labels = cr_mem_to_host(a->labels);
    cr_row_processors view;
    const cr_row_processors *processors = view_processors(a->processors, &view);

    (void)dev;
    (void)err;
    for (int64_t r = 0; r < a->num_rows; r++)
        reduce_row(logits + r * a->vocab_size, a->vocab_size, labels[r], processors, r,
                   a->log_prob ? a->log_prob + r : NULL, a->entropy ? a->entropy + r : NULL, NULL);
    return CR_OK;
}

static float row_log_prob(const float *z, int64_t vocab_size, int32_t label,
                          const cr_row_processors *processors, const cr_draw_row *row,
                          cr_drawn *out)
{
    head_more more = {.max_top = row->num_top};
    bool has_more = out && (row->has_rank || row->num_top);
    float log_prob;

    if (has_more) {
        out->rank = 1;
        more.rank = row->has_rank ? &out->rank : NULL;
        more.top_ids = out->top_ids;
        more.top_z = out->top_log_probs;
    }
    reduce_row(z, vocab_size, label, processors, 0, &log_prob, NULL, has_more ? &more : NULL);
    return log_prob;
}

enum { DRAW_GROUP = 16, DRAW_VECTORS = DRAW_GROUP / V_LANES };

/* The weights of a group of tokens, of which n <= 0 or more are left, and their sum. */
CR_INLINE float weigh_group(const float *z, int64_t n, float max, float inverse, float *weight)
{
    vf e[DRAW_VECTORS];

#pragma GCC unroll 4
    for (int64_t i = 0; i < DRAW_VECTORS; i++, n -= V_LANES) {
        e[i] = v_exp((v_get_words(z, i * V_LANES, n) - v_set(max)) * v_set(inverse));
        if (n < V_LANES) e[i] = v_select(v_lanes() < (int32_t)n, e[i], v_set(0));
        v_store(weight + i * V_LANES, e[i]);
    }
#pragma GCC unroll 2
    for (int64_t half = DRAW_VECTORS / 2; half; half /= 2)
#pragma GCC unroll 2
        for (int64_t i = 0; i < half; i++)
            e[i] = e[i] + e[i + half];
    return v_sum(e[0]);
}

/* Weights e^((z - max) / T) are summed in groups of 16 (one tree for every width of vectors), then of all; the draw walks down the same
 * sums, so nothing is added twice in another order. */
static int32_t draw_token(const float *all, int64_t vocab_size, float temperature, float u,
                          float *weight)
{
    enum { GROUP = DRAW_GROUP };
    int64_t num_groups = (vocab_size + GROUP - 1) / GROUP, best = 0;
    float *group = weight + num_groups * GROUP, max = -INFINITY, inverse, sum = 0, left;

    for (int64_t v = 0; v + V_LANES <= vocab_size; v += V_LANES) {
        float here = v_greatest(v_load(all + v));
        if (here > max) max = here, best = v;
    }
    for (int64_t v = vocab_size / V_LANES * V_LANES; v < vocab_size; v++)
        if (all[v] > max) max = all[v], best = v;
    if (temperature == 0) {
        while (best < vocab_size && all[best] != max)
            best++;
        return (int32_t)best;
    }
    inverse = 1 / temperature;
    int64_t g = 0, v, last = 0;
    for (; g < vocab_size / GROUP; g++)
        sum += group[g] = weigh_group(all + g * GROUP, GROUP, max, inverse, weight + g * GROUP);
    if (g < num_groups)
        sum += group[g] =
            weigh_group(all + g * GROUP, vocab_size - g * GROUP, max, inverse, weight + g * GROUP);
    left = u * sum;
    g = 0;
    while (g + 1 < num_groups && left >= group[g])
        left -= group[g++];
    for (v = g * GROUP; v < vocab_size; v++) {
        if (weight[v] == 0) continue;
        last = v;
        if (left < weight[v]) break;
        left -= weight[v];
    }
    /* rounding may leave a little: the last id that can be drawn */
    return (int32_t)(v < vocab_size ? v : last);
}

cr_status CR_V(draw)(cr_device *dev, const cr_draw_args *a, cr_err *err)
{
    (void)err;
    cri_cpu_draw(dev, a, draw_token, row_log_prob);
    return CR_OK;
}
