/* vision_block.c -- what blocks of a vision tower compute otherwise than decoder layers: attention over
 * whole frames or windows with a fused qkv, and the MLP with GELU.
 *
 * Kept for backward: rotated q, k, v, attention's output and lse; fc1's output.
 */
#include "models/vision/vision_impl.h"

#include <math.h>

/* ---- attention ---- */

typedef struct activations {
    cr_mem *q, *k, *v, *o; /* [patches, d] */
    cr_mem *lse;           /* [patches, heads] float32 or NULL */
} activations;

/* Rows which d .. which d + d - 1 of the fused weight: that of q, k or v. */
static cr_weight third(const cr_module *qkv, int which)
{
    cr_weight w = qkv->weight->weight;
    int64_t d = w.num_cols;

    w.num_rows = d;
    w.data = cr_at_const(w.dtype, w.data, which * d * d);
    w.packed = NULL;
    return w;
}

static cr_status project(const cr_module *qkv, cr_pass *p, const cr_mem *in, const activations *a,
                         cr_err *err)
{
    cr_mem *const y[] = {a->q, a->k, a->v};
    int64_t d = qkv->weight->weight.num_cols;

    CR_TRY(cri_enter(qkv, p, err));
    for (int i = 0; i < 3; i++) {
        cr_weight w = third(qkv, i);
        cr_linear_args l = {.x = in,
                            .w = &w,
                            .bias = cr_at_const(w.dtype, qkv->bias->weight.data, i * d),
                            .y = y[i],
                            .out_dtype = p->dtype,
                            .num_rows = p->num_rows};
        CR_TRY(cr_linear(p->dev, &l, err));
    }
    return cri_leave(qkv, p, err);
}

static cr_status project_back(const cr_module *qkv, cr_pass *p, const cr_mem *in,
                              cr_mem *const dy[3], cr_mem *grad_in, cr_err *err)
{
    int64_t d = qkv->weight->weight.num_cols;
    cr_mem *dw = cri_grad(qkv->weight), *dbias = cri_grad(qkv->bias);

    CR_TRY(cri_enter(qkv, p, err));
    for (int i = 0; i < 3; i++) {
        cr_weight w = third(qkv, i);
        cr_linear_grad_args l = {.x = in,
                                 .dy = dy[i],
                                 .w = &w,
                                 .dx = grad_in,
                                 .is_dx_added = i > 0,
                                 .dw = dw ? cr_at(CR_F32, dw, i * d * d) : NULL,
                                 .dbias = dbias ? cr_at(CR_F32, dbias, i * d) : NULL,
                                 .num_rows = p->num_rows};
        CR_TRY(cr_linear_grad(p->dev, &l, err));
    }
    return cri_leave(qkv, p, err);
}

static int64_t width_of(const cri_vision_attention *parts)
{
    return parts->qkv->weight->shape[1];
}

static cr_status rotate(const cri_vision_attention *parts, const cr_pass *p, cr_mem *x, int sign,
                        cr_err *err)
{
    cr_rope_args a = {.x = x,
                      .dtype = p->dtype,
                      .scaling = 1,
                      .sign = sign,
                      .num_tokens = p->num_rows,
                      .num_heads = parts->num_heads,
                      .head_dim = width_of(parts) / parts->num_heads,
                      .angles = p->patches->on_device.angles};

    if (!a.angles) return CR_OK;
    return cr_rope(p->dev, &a, err);
}

static cr_attention_args attention_args(const cr_module *m, const cr_pass *p, const activations *a)
{
    const cri_vision_attention *parts = m->impl;
    const cr_patches *r = p->patches;
    int64_t dim = width_of(parts) / parts->num_heads;

    return (cr_attention_args){.q = a->q,
                               .k = a->k,
                               .v = a->v,
                               .o = a->o,
                               .lse = a->lse,
                               .dtype = p->dtype,
                               .cu_seqlens =
                                   parts->is_full ? r->on_device.frames : r->on_device.windows,
                               .sizes = parts->is_full ? r->frame_sizes : r->window_sizes,
                               .num_seqs = parts->is_full ? r->num_frames : r->num_windows,
                               .num_heads = parts->num_heads,
                               .num_kv_heads = parts->num_heads,
                               .head_dim = dim,
                               .scale = 1.0f / sqrtf((float)dim),
                               .is_bidirectional = true};
}

static cr_status attention_forward(const cr_module *m, cr_pass *p, const cr_mem *in,
                                   const cr_mem *add, cr_mem *out, cr_err *err)
{
    const cri_vision_attention *parts = m->impl;
    int64_t rows = p->num_rows, d = width_of(parts);
    size_t mark = cr_stack_mark(p->scratch);
    cr_stack *keep = cri_keep(p);
    activations a = {0};
    cr_attention_args args;
    cr_mem *lse = NULL;

    CR_TRY(cri_push(keep, p, rows, d, &a.q, err));
    CR_TRY(cri_push(keep, p, rows, d, &a.k, err));
    CR_TRY(cri_push(keep, p, rows, d, &a.v, err));
    CR_TRY(cri_push(keep, p, rows, d, &a.o, err));
    if (p->tape) CR_TRY(cri_push_numbers(keep, rows * parts->num_heads, &lse, err));
    a.lse = lse;
    CR_TRY(project(parts->qkv, p, in, &a, err));
    CR_TRY(rotate(parts, p, a.q, 1, err));
    CR_TRY(rotate(parts, p, a.k, 1, err));
    args = attention_args(m, p, &a);
    CR_TRY(cr_attention(p->dev, &args, err));
    CR_TRY(cri_linear(parts->proj, p, a.o, add, out, err));
    if (p->tape) cri_frame_push(m, p, &a, sizeof a);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status attention_backward(const cr_module *m, cr_pass *p, const cr_mem *in,
                                    const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    const cri_vision_attention *parts = m->impl;
    int64_t d = width_of(parts);
    activations a;
    bool is_needed = grad_in || parts->qkv->has_trainable;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *d_o = NULL, *d_qkv[3];
    cr_attention_grad_args g;

    cri_frame_pop(m, p, &a, sizeof a);
    if (is_needed) CR_TRY(cri_push(p->scratch, p, p->num_rows, d, &d_o, err));
    CR_TRY(cri_linear_back(parts->proj, p, a.o, grad_out, d_o, CRI_DX_SET, err));
    if (is_needed) {
        for (int i = 0; i < 3; i++)
            CR_TRY(cri_push(p->scratch, p, p->num_rows, d, &d_qkv[i], err));
        g = (cr_attention_grad_args){.fwd = attention_args(m, p, &a),
                                     .d_o = d_o,
                                     .dq = d_qkv[0],
                                     .dk = d_qkv[1],
                                     .dv = d_qkv[2]};
        CR_TRY(cr_attention_grad(p->dev, &g, err));
        CR_TRY(rotate(parts, p, d_qkv[0], -1, err));
        CR_TRY(rotate(parts, p, d_qkv[1], -1, err));
        CR_TRY(project_back(parts->qkv, p, in, d_qkv, grad_in, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_vision_attention_ops = {attention_forward, attention_backward};

/* ---- MLP ---- */

static cr_status mlp_forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                             cr_mem *out, cr_err *err)
{
    const cri_gelu_mlp *parts = m->impl;
    int64_t rows = p->num_rows, width = parts->fc1->weight->weight.num_rows;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *fc1, *h; /* the first is kept */

    CR_TRY(cri_push(cri_keep(p), p, rows, width, &fc1, err));
    CR_TRY(cri_linear(parts->fc1, p, in, NULL, fc1, err));
    if (out) {
        CR_TRY(cri_push(p->scratch, p, rows, width, &h, err));
        CR_TRY(cr_gelu(
            p->dev, &(cr_gelu_args){parts->kind, p->dtype, fc1, h, (size_t)(rows * width)}, err));
        CR_TRY(cri_linear(parts->fc2, p, h, add, out, err));
    }
    if (p->tape) cri_frame_push(m, p, &fc1, sizeof fc1);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status mlp_backward(const cr_module *m, cr_pass *p, const cr_mem *in,
                              const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    const cri_gelu_mlp *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *fc1;

    cri_frame_pop(m, p, &fc1, sizeof fc1);
    CR_TRY(cri_gelu_back(parts->fc1, parts->fc2, parts->kind, p, in, fc1, grad_out, grad_in, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* x: fc1's input, y: its output. */
cr_status cri_gelu_back(const cr_module *fc1, const cr_module *fc2, cr_gelu_kind kind, cr_pass *p,
                        const cr_mem *x, const cr_mem *y, const cr_mem *grad_out, cr_mem *grad_in,
                        cr_err *err)
{
    int64_t rows = p->num_rows, width = fc1->weight->weight.num_rows;
    size_t num = (size_t)(rows * width);
    bool is_needed = grad_in || fc1->has_trainable;
    cr_mem *h = NULL, *dh = NULL;

    if (fc2->has_trainable) {
        CR_TRY(cri_push(p->scratch, p, rows, width, &h, err));
        CR_TRY(cr_gelu(p->dev, &(cr_gelu_args){kind, p->dtype, y, h, num}, err));
    }
    if (is_needed) CR_TRY(cri_push(p->scratch, p, rows, width, &dh, err));
    CR_TRY(cri_linear_back(fc2, p, h, grad_out, dh, CRI_DX_SET, err));
    if (!is_needed) return CR_OK;
    CR_TRY(cr_gelu_grad(p->dev, &(cr_gelu_grad_args){kind, p->dtype, y, dh, dh, num}, err));
    return cri_linear_back(fc1, p, x, dh, grad_in, CRI_DX_SET, err);
}

const cr_module_ops cri_gelu_mlp_ops = {mlp_forward, mlp_backward};
