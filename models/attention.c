/* attention.c -- self attention of every family: q, k, v, optional norms per head, rotary embedding,
 * causal attention (packed, or over the cache when the pass has one), output projection.
 *
 * Kept for backward: q and k before their norms with rstd (families with qk-norm), rotated q, k, v,
 * attention's output and lse. The input is the caller's: it makes the norm's output again.
 */
#include "models/models_impl.h"

#include <math.h>

/* Activations of one call, all in memory of `keep`. */
typedef struct activations {
    void *q, *k, *v, *o;          /* [T, H, D], [T, K, D] twice, [T, H, D] */
    void *q_raw, *k_raw;          /* before the norms; q, k themselves if there are none */
    float *q_rstd, *k_rstd, *lse; /* [T, H], [T, K], [T, H]; NULL without a tape */
    int64_t num_tokens, q_cols, kv_cols;
} activations;

static cr_status push_floats(cr_stack *stack, int64_t num, float **out, cr_err *err)
{
    void *ptr;

    CR_TRY(cr_stack_push(stack, (size_t)num * sizeof(float), &ptr, err));
    *out = ptr;
    return CR_OK;
}

static cr_status reserve(const cr_model_config *c, cr_pass *p, activations *a, cr_err *err)
{
    cr_stack *keep = cri_keep(p);
    int64_t tokens = p->batch->num_tokens;

    *a = (activations){.num_tokens = tokens,
                       .q_cols = c->num_heads * c->head_dim,
                       .kv_cols = c->num_kv_heads * c->head_dim};
    CR_TRY(cri_push(keep, p, tokens, a->q_cols, &a->q, err));
    CR_TRY(cri_push(keep, p, tokens, a->kv_cols, &a->k, err));
    CR_TRY(cri_push(keep, p, tokens, a->kv_cols, &a->v, err));
    CR_TRY(cri_push(keep, p, tokens, a->q_cols, &a->o, err));
    a->q_raw = a->q;
    a->k_raw = a->k;
    if (!p->tape) return CR_OK;
    CR_TRY(push_floats(keep, tokens * c->num_heads, &a->lse, err));
    if (!c->has_qk_norm) return CR_OK;
    CR_TRY(cri_push(keep, p, tokens, a->q_cols, &a->q_raw, err));
    CR_TRY(cri_push(keep, p, tokens, a->kv_cols, &a->k_raw, err));
    CR_TRY(push_floats(keep, tokens * c->num_heads, &a->q_rstd, err));
    return push_floats(keep, tokens * c->num_kv_heads, &a->k_rstd, err);
}

static cr_status norm_heads(cr_module *norm, cr_pass *p, const void *x, int64_t num_heads, void *y,
                            float *rstd, cr_err *err)
{
    CR_TRY(cri_enter(norm, p, err));
    CR_TRY(cri_norm(norm, p, x, p->batch->num_tokens * num_heads, y, rstd, err));
    return cri_leave(norm, p, err);
}

typedef enum direction { ROTATE = 1, ROTATE_BACK = -1 } direction;

static cr_status rotate(const cr_model_config *c, cr_pass *p, void *x, int64_t num_heads,
                        direction sign, cr_err *err)
{
    cr_rope_args a = {.x = x,
                      .dtype = p->dtype,
                      .positions = p->batch->positions,
                      .inv_freq = c->inv_freq,
                      .scaling = c->rope_scaling,
                      .sign = sign,
                      .num_tokens = p->batch->num_tokens,
                      .num_heads = num_heads,
                      .head_dim = c->head_dim};

    return cr_rope(p->dev, &a, err);
}

static cr_attention_args packed_args(const cr_module *m, const cr_pass *p, const activations *a)
{
    const cr_model_config *c = &m->model->config;

    return (cr_attention_args){.q = a->q,
                               .k = a->k,
                               .v = a->v,
                               .o = a->o,
                               .lse = a->lse,
                               .dtype = p->dtype,
                               .cu_seqlens = p->batch->cu_seqlens,
                               .num_seqs = p->batch->num_seqs,
                               .num_heads = c->num_heads,
                               .num_kv_heads = c->num_kv_heads,
                               .head_dim = c->head_dim,
                               .scale = 1.0f / sqrtf((float)c->head_dim),
                               .window = c->layer_window[m->layer]};
}

static cr_status attend(const cr_module *m, cr_pass *p, const activations *a, cr_err *err)
{
    cr_attention_args packed = packed_args(m, p, a);
    cr_attention_cached_args cached;

    if (!p->kv) return cr_attention(p->dev, &packed, err);
    cached = (cr_attention_cached_args){.q = a->q,
                                        .k = a->k,
                                        .v = a->v,
                                        .o = a->o,
                                        .blocks = p->kv->layer_blocks[m->layer],
                                        .dtype = p->dtype,
                                        .row_slot = p->kv->row_slot,
                                        .row_pos = p->kv->row_pos,
                                        .block_table = p->kv->block_table,
                                        .num_rows = a->num_tokens,
                                        .max_blocks = p->kv->max_blocks,
                                        .num_heads = packed.num_heads,
                                        .num_kv_heads = packed.num_kv_heads,
                                        .head_dim = packed.head_dim,
                                        .scale = packed.scale,
                                        .window = packed.window};
    return cr_attention_cached(p->dev, &cached, err);
}

static cr_status forward(cr_module *m, cr_pass *p, const void *in, const void *add, void *out,
                         cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    size_t mark = cr_stack_mark(p->scratch);
    activations a;

    CR_TRY(reserve(c, p, &a, err));
    CR_TRY(cri_linear(parts->q, p, in, NULL, a.q_raw, err));
    CR_TRY(cri_linear(parts->k, p, in, NULL, a.k_raw, err));
    CR_TRY(cri_linear(parts->v, p, in, NULL, a.v, err));
    if (parts->q_norm) {
        CR_TRY(norm_heads(parts->q_norm, p, a.q_raw, c->num_heads, a.q, a.q_rstd, err));
        CR_TRY(norm_heads(parts->k_norm, p, a.k_raw, c->num_kv_heads, a.k, a.k_rstd, err));
    }
    CR_TRY(rotate(c, p, a.q, c->num_heads, ROTATE, err));
    CR_TRY(rotate(c, p, a.k, c->num_kv_heads, ROTATE, err));
    CR_TRY(attend(m, p, &a, err));
    CR_TRY(cri_linear(parts->o, p, a.o, add, out, err));
    if (p->tape) {
        cri_frame frame = {
            .kept = {a.q, a.k, a.v, a.o, a.lse, a.q_raw, a.k_raw, a.q_rstd, a.k_rstd}};
        cri_frame_push(m, &frame);
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static activations take_frame(cr_module *m, const cr_pass *p)
{
    const cr_model_config *c = &m->model->config;
    cri_frame f = cri_frame_pop(m);

    return (activations){.q = f.kept[0],
                         .k = f.kept[1],
                         .v = f.kept[2],
                         .o = f.kept[3],
                         .lse = f.kept[4],
                         .q_raw = f.kept[5],
                         .k_raw = f.kept[6],
                         .q_rstd = f.kept[7],
                         .k_rstd = f.kept[8],
                         .num_tokens = p->batch->num_tokens,
                         .q_cols = c->num_heads * c->head_dim,
                         .kv_cols = c->num_kv_heads * c->head_dim};
}

/* Gradient through the rotation and the norm of q (or k): dx becomes the gradient of the product. */
static cr_status back_heads(cr_module *m, cr_module *norm, cr_pass *p, const void *raw,
                            const float *rstd, int64_t num_heads, void *dx, cr_err *err)
{
    CR_TRY(rotate(&m->model->config, p, dx, num_heads, ROTATE_BACK, err));
    if (!norm) return CR_OK;
    CR_TRY(cri_enter(norm, p, err));
    CR_TRY(cri_norm_back(norm, p, raw, rstd, dx, p->batch->num_tokens * num_heads, dx, CRI_DX_SET,
                         err));
    return cri_leave(norm, p, err);
}

static bool needs_qkv(const cri_attention *parts, const void *grad_in)
{
    return grad_in || parts->q->has_trainable || parts->k->has_trainable ||
           parts->v->has_trainable || (parts->q_norm && parts->q_norm->has_trainable) ||
           (parts->k_norm && parts->k_norm->has_trainable);
}

static cr_status backward(cr_module *m, cr_pass *p, const void *in, const void *grad_out,
                          void *grad_in, cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    size_t mark = cr_stack_mark(p->scratch);
    activations a = take_frame(m, p);
    bool is_needed = needs_qkv(parts, grad_in);
    cr_attention_grad_args g = {.fwd = packed_args(m, p, &a)};
    void *d_o = NULL;

    if (is_needed) CR_TRY(cri_push(p->scratch, p, a.num_tokens, a.q_cols, &d_o, err));
    CR_TRY(cri_linear_back(parts->o, p, a.o, grad_out, d_o, CRI_DX_SET, err));
    if (is_needed) {
        CR_TRY(cri_push(p->scratch, p, a.num_tokens, a.q_cols, &g.dq, err));
        CR_TRY(cri_push(p->scratch, p, a.num_tokens, a.kv_cols, &g.dk, err));
        CR_TRY(cri_push(p->scratch, p, a.num_tokens, a.kv_cols, &g.dv, err));
        g.d_o = d_o;
        CR_TRY(cr_attention_grad(p->dev, &g, err));
        CR_TRY(back_heads(m, parts->q_norm, p, a.q_raw, a.q_rstd, c->num_heads, g.dq, err));
        CR_TRY(back_heads(m, parts->k_norm, p, a.k_raw, a.k_rstd, c->num_kv_heads, g.dk, err));
        CR_TRY(cri_linear_back(parts->q, p, in, g.dq, grad_in, CRI_DX_SET, err));
        CR_TRY(cri_linear_back(parts->k, p, in, g.dk, grad_in, CRI_DX_ADD, err));
        CR_TRY(cri_linear_back(parts->v, p, in, g.dv, grad_in, CRI_DX_ADD, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_attention_ops = {forward, backward};
