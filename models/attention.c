/* attention.c -- self attention of every family: q, k, v, optional norms per head, rotary embedding,
 * causal attention (packed, or over the cache when the pass has one), output projection.
 *
 * Kept for backward: q and k before their norms with rstd (families with qk-norm), rotated q, k, v,
 * attention's output and lse. The input is the caller's: it makes the norm's output again.
 *
 * With a split (ulysses/) attention itself works on all tokens and some of the heads; q, k, v are
 * kept in that layout only, its output in both.
 */
#include "models/parts/adapters.h"
#include "models/pass_impl.h"
#include "models/split.h"

/* Activations of one call. T: tokens of the batch, H: heads of the model; with a split attention
 * works on A tokens and fewer heads, else the two sets are the same memory. */
typedef struct activations {
    cr_mem *q, *k, *v, *o;                     /* [A, H', D], [A, K', D] twice, [A, H', D] */
    cr_mem *q_rows, *k_rows, *v_rows, *o_rows; /* [T, H, D], [T, K, D] twice, [T, H, D] */
    cr_mem *q_raw, *k_raw;               /* before the norms; q_rows, k_rows if there are none */
    cr_mem *q_rstd, *k_rstd, *lse;       /* float32 [T, H], [T, K], [A, H']; NULL without a tape */
    int64_t num_tokens, q_cols, kv_cols; /* T, H D, K D */
    int64_t all_tokens, q_all_cols, kv_all_cols; /* A, H' D, K' D */
} activations;

static activations shapes(const cr_model_config *c, const cr_pass *p)
{
    const cr_split *split = p->split;

    return (activations){.num_tokens = p->num_rows,
                         .q_cols = c->num_heads * c->head_dim,
                         .kv_cols = c->num_kv_heads * c->head_dim,
                         .all_tokens = split ? split->num_tokens : p->num_rows,
                         .q_all_cols = (split ? split->num_heads : c->num_heads) * c->head_dim,
                         .kv_all_cols =
                             (split ? split->num_kv_heads : c->num_kv_heads) * c->head_dim};
}

static cr_status reserve(const cr_model_config *c, cr_pass *p, activations *a, cr_err *err)
{
    cr_stack *keep = cri_keep(p);

    *a = shapes(c, p);
    CR_TRY(cri_push(keep, p, a->all_tokens, a->q_all_cols, &a->q, err));
    CR_TRY(cri_push(keep, p, a->all_tokens, a->kv_all_cols, &a->k, err));
    CR_TRY(cri_push(keep, p, a->all_tokens, a->kv_all_cols, &a->v, err));
    CR_TRY(cri_push(keep, p, a->all_tokens, a->q_all_cols, &a->o, err));
    a->q_rows = a->q;
    a->k_rows = a->k;
    a->v_rows = a->v;
    a->o_rows = a->o;
    if (p->split) {
        CR_TRY(cri_push(keep, p, a->num_tokens, a->q_cols, &a->o_rows, err));
        CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->q_cols, &a->q_rows, err));
        CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->kv_cols, &a->k_rows, err));
        CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->kv_cols, &a->v_rows, err));
    }
    a->q_raw = a->q_rows;
    a->k_raw = a->k_rows;
    if (!p->tape) return CR_OK;
    CR_TRY(cri_push_numbers(keep, a->all_tokens * a->q_all_cols / c->head_dim, &a->lse, err));
    if (!c->has_qk_norm) return CR_OK;
    CR_TRY(cri_push(keep, p, a->num_tokens, a->q_cols, &a->q_raw, err));
    CR_TRY(cri_push(keep, p, a->num_tokens, a->kv_cols, &a->k_raw, err));
    CR_TRY(cri_push_numbers(keep, a->num_tokens * c->num_heads, &a->q_rstd, err));
    return cri_push_numbers(keep, a->num_tokens * c->num_kv_heads, &a->k_rstd, err);
}

typedef enum direction { ROTATE = 1, ROTATE_BACK = -1 } direction;

/* Of q and k in the same places. */
static cr_qk_heads_args rotation(const cr_module *m, const cr_pass *p, cr_mem *q, cr_mem *k,
                                 direction sign)
{
    const cr_model_config *c = &m->model->config;
    int rope = c->layers[m->layer].rope;

    return (cr_qk_heads_args){.q_in = q,
                              .k_in = k,
                              .q = q,
                              .k = k,
                              .dtype = p->dtype,
                              .positions = p->index.positions,
                              .inv_freq = p->index.inv_freq[rope],
                              .angles = p->angles,
                              .scaling = c->ropes[rope].scaling,
                              .sign = sign,
                              .num_tokens = p->num_rows,
                              .num_heads = c->num_heads,
                              .num_kv_heads = c->num_kv_heads,
                              .head_dim = c->head_dim,
                              .eps = c->rms_norm_eps,
                              .offset = c->norm_offset};
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
                               .cu_seqlens = p->index.cu_seqlens,
                               .sizes = p->index.sizes,
                               .num_seqs = p->split ? p->split->num_seqs : p->batch->num_seqs,
                               .num_heads = a->q_all_cols / c->head_dim,
                               .num_kv_heads = a->kv_all_cols / c->head_dim,
                               .head_dim = c->head_dim,
                               .scale = c->layers[m->layer].scale,
                               .window = c->layers[m->layer].window};
}

static cr_status attend_cached(const cr_module *m, cr_pass *p, const activations *a,
                               const cr_qk_heads_args *heads, cr_err *err)
{
    cr_attention_args packed = packed_args(m, p, a);
    cr_attention_cached_args cached = {.q = a->q,
                                       .k = a->k,
                                       .v = a->v,
                                       .o = a->o,
                                       .blocks = p->kv->layer_blocks[m->layer],
                                       .dtype = p->dtype,
                                       .row_slot = p->index.row_slot,
                                       .row_pos = p->index.row_pos,
                                       .block_table = p->index.block_table,
                                       .sizes = p->index.sizes,
                                       .num_rows = a->num_tokens,
                                       .max_blocks = p->kv->max_blocks,
                                       .num_heads = packed.num_heads,
                                       .num_kv_heads = packed.num_kv_heads,
                                       .head_dim = packed.head_dim,
                                       .scale = packed.scale,
                                       .window = packed.window,
                                       .num_blocks = p->kv->num_blocks,
                                       .tiles = p->index.row_tiles,
                                       .num_tiles = p->index.num_tiles,
                                       .num_alone = p->index.num_alone,
                                       .heads = *heads};

    return cr_attention_cached(p->dev, &cached, err);
}

/* Attention between its two exchanges, if there is a split. */
static cr_status exchange_and_attend(const cr_module *m, cr_pass *p, const activations *a,
                                     cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    const cr_split *s = p->split;
    cr_attention_args packed = packed_args(m, p, a);

    if (!s) return cr_attention(p->dev, &packed, err);
    CR_TRY(s->to_heads(s->ctx, parts->q->name, p, a->q_rows, c->num_heads, a->q, err));
    CR_TRY(s->to_heads(s->ctx, parts->k->name, p, a->k_rows, c->num_kv_heads, a->k, err));
    CR_TRY(s->to_heads(s->ctx, parts->v->name, p, a->v_rows, c->num_kv_heads, a->v, err));
    CR_TRY(cr_attention(p->dev, &packed, err));
    return s->to_rows(s->ctx, parts->o->name, p, a->o, c->num_heads, a->o_rows, err);
}

/* From q_raw and k_raw to o_rows. Over the cache all of it is one operation. */
static cr_status norm_rotate_attend(const cr_module *m, cr_pass *p, const activations *a,
                                    cr_err *err)
{
    const cri_attention *parts = m->impl;
    cr_qk_heads_args heads = rotation(m, p, a->q_rows, a->k_rows, ROTATE);

    if (parts->q_norm) {
        CR_TRY(cri_enter(parts->q_norm, p, err));
        CR_TRY(cri_enter(parts->k_norm, p, err));
        heads.q_in = a->q_raw;
        heads.k_in = a->k_raw;
        heads.q_weight = cri_now(parts->q_norm, p)->weight->weight.data;
        heads.k_weight = cri_now(parts->k_norm, p)->weight->weight.data;
        heads.q_rstd = a->q_rstd;
        heads.k_rstd = a->k_rstd;
    }
    CR_TRY(p->kv ? attend_cached(m, p, a, &heads, err) : cr_qk_heads(p->dev, &heads, err));
    if (parts->q_norm) {
        CR_TRY(cri_leave(parts->k_norm, p, err));
        CR_TRY(cri_leave(parts->q_norm, p, err));
    }
    return p->kv ? CR_OK : exchange_and_attend(m, p, a, err);
}

static cr_status forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                         cr_mem *out, cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    size_t mark = cr_stack_mark(p->scratch);
    activations a;

    CR_TRY(reserve(c, p, &a, err));
    CR_TRY(cri_linears((const cr_module *const[]){parts->q, parts->k, parts->v}, 3, p, in,
                       (cr_mem *const[]){a.q_raw, a.k_raw, a.v_rows}, err));
    CR_TRY(norm_rotate_attend(m, p, &a, err));
    CR_TRY(cri_linear(parts->o, p, a.o_rows, add, out, err));
    if (p->tape) cri_frame_push(m, p, &a, sizeof a);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* Gradient through the norm of q (or k): dx becomes the gradient of the product. */
static cr_status back_norm(const cr_module *norm, cr_pass *p, const cr_mem *raw, const cr_mem *rstd,
                           int64_t num_heads, cr_mem *dx, cr_err *err)
{
    if (!norm) return CR_OK;
    CR_TRY(cri_enter(norm, p, err));
    CR_TRY(cri_norm_back(norm, p, raw, rstd, dx, p->num_rows * num_heads, dx, CRI_DX_SET, err));
    return cri_leave(norm, p, err);
}

static bool needs_qkv(const cri_attention *parts, const cr_mem *grad_in)
{
    return grad_in || parts->q->has_trainable || parts->k->has_trainable ||
           parts->v->has_trainable || (parts->q_norm && parts->q_norm->has_trainable) ||
           (parts->k_norm && parts->k_norm->has_trainable);
}

/* From d_o [T, H, D] to the gradients of rotated q, k, v in the same rows; memory on scratch. */
static cr_status back_attend(const cr_module *m, cr_pass *p, const activations *a, cr_mem *d_o,
                             cr_mem *d_qkv[3], cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    const cr_split *s = p->split;
    cr_attention_grad_args g = {.fwd = packed_args(m, p, a), .d_o = d_o};
    cr_mem *d_o_all;

    CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->q_cols, &d_qkv[0], err));
    CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->kv_cols, &d_qkv[1], err));
    CR_TRY(cri_push(p->scratch, p, a->num_tokens, a->kv_cols, &d_qkv[2], err));
    g.dq = d_qkv[0];
    g.dk = d_qkv[1];
    g.dv = d_qkv[2];
    if (!s) return cr_attention_grad(p->dev, &g, err);
    CR_TRY(cri_push(p->scratch, p, a->all_tokens, a->q_all_cols, &d_o_all, err));
    CR_TRY(cri_push(p->scratch, p, a->all_tokens, a->q_all_cols, &g.dq, err));
    CR_TRY(cri_push(p->scratch, p, a->all_tokens, a->kv_all_cols, &g.dk, err));
    CR_TRY(cri_push(p->scratch, p, a->all_tokens, a->kv_all_cols, &g.dv, err));
    CR_TRY(s->to_heads(s->ctx, parts->o->name, p, d_o, c->num_heads, d_o_all, err));
    g.d_o = d_o_all;
    CR_TRY(cr_attention_grad(p->dev, &g, err));
    CR_TRY(s->to_rows(s->ctx, parts->q->name, p, g.dq, c->num_heads, d_qkv[0], err));
    CR_TRY(s->to_rows(s->ctx, parts->k->name, p, g.dk, c->num_kv_heads, d_qkv[1], err));
    return s->to_rows(s->ctx, parts->v->name, p, g.dv, c->num_kv_heads, d_qkv[2], err);
}

static cr_status backward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                          cr_mem *grad_in, cr_err *err)
{
    const cri_attention *parts = m->impl;
    const cr_model_config *c = &m->model->config;
    size_t mark = cr_stack_mark(p->scratch);
    bool is_needed = needs_qkv(parts, grad_in);
    cr_mem *d_o = NULL, *d_qkv[3];
    cr_qk_heads_args back;
    activations a;

    cri_frame_pop(m, p, &a, sizeof a);
    if (is_needed) CR_TRY(cri_push(p->scratch, p, a.num_tokens, a.q_cols, &d_o, err));
    CR_TRY(cri_linear_back(parts->o, p, a.o_rows, grad_out, d_o, CRI_DX_SET, err));
    if (is_needed) {
        CR_TRY(back_attend(m, p, &a, d_o, d_qkv, err));
        back = rotation(m, p, d_qkv[0], d_qkv[1], ROTATE_BACK);
        CR_TRY(cr_qk_heads(p->dev, &back, err));
        CR_TRY(back_norm(parts->q_norm, p, a.q_raw, a.q_rstd, c->num_heads, d_qkv[0], err));
        CR_TRY(back_norm(parts->k_norm, p, a.k_raw, a.k_rstd, c->num_kv_heads, d_qkv[1], err));
        CR_TRY(cri_linears_back((const cr_module *const[]){parts->q, parts->k, parts->v}, 3, p, in,
                                (const cr_mem *const[]){d_qkv[0], d_qkv[1], d_qkv[2]}, grad_in,
                                CRI_DX_SET, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_attention_ops = {forward, backward};
