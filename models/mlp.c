/* mlp.c -- the dense SwiGLU block: down(silu(gate x) * up x). Keeps gate and up; the product of the
 * two is made again in backward, and their gradients take their place on the tape.
 *
 * As an expert, each row's output is multiplied by a weight later (sparse.c). With h = silu(gate x) * up x,
 * the gradient of that weight is grad_out . down(h) = (down^T grad_out) . h: no output is needed. */
#include "models/models_impl.h"

static cr_status swiglu(cr_module *m, cr_pass *p, const void *gate, const void *up, void **h,
                        cr_err *err)
{
    const cri_mlp *parts = m->impl;
    int64_t tokens = p->batch->num_tokens;

    CR_TRY(cri_push(p->scratch, p, tokens, parts->width, h, err));
    return cr_swiglu(p->dev, p->dtype, gate, up, *h, (size_t)(tokens * parts->width), err);
}

static cr_status forward(cr_module *m, cr_pass *p, const void *in, const void *add, void *out,
                         cr_err *err)
{
    const cri_mlp *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    cri_frame frame = {0};
    void *h;

    CR_TRY(cri_push(cri_keep(p), p, p->batch->num_tokens, parts->width, &frame.kept[0], err));
    CR_TRY(cri_push(cri_keep(p), p, p->batch->num_tokens, parts->width, &frame.kept[1], err));
    CR_TRY(cri_linear(parts->gate, p, in, NULL, frame.kept[0], err));
    CR_TRY(cri_linear(parts->up, p, in, NULL, frame.kept[1], err));
    if (out) {
        CR_TRY(swiglu(m, p, frame.kept[0], frame.kept[1], &h, err));
        CR_TRY(cri_linear(parts->down, p, h, add, out, err));
    }
    if (p->tape) cri_frame_push(m, &frame);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status backward(cr_module *m, cr_pass *p, const void *in, const void *grad_out,
                          void *grad_in, cr_err *err)
{
    const cri_mlp *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    int64_t tokens = p->batch->num_tokens;
    size_t num = (size_t)(tokens * parts->width);
    cri_frame frame = cri_frame_pop(m);
    void *gate = frame.kept[0], *up = frame.kept[1], *h = NULL, *weighted, *dh = NULL;
    bool is_needed = grad_in || parts->gate->has_trainable || parts->up->has_trainable;

    if (parts->down->has_trainable || parts->row_grad) CR_TRY(swiglu(m, p, gate, up, &h, err));
    weighted = h;
    if (parts->row_weight && parts->down->has_trainable) {
        CR_TRY(cri_push(p->scratch, p, tokens, parts->width, &weighted, err));
        CR_TRY(cr_rows_scale(p->dev, p->dtype, h, parts->row_weight, tokens, parts->width, weighted,
                             err));
    }
    if (is_needed || parts->row_grad)
        CR_TRY(cri_push(p->scratch, p, tokens, parts->width, &dh, err));
    CR_TRY(cri_linear_back(parts->down, p, weighted, grad_out, dh, CRI_DX_SET, err));
    if (parts->row_grad)
        CR_TRY(cr_rows_dot(p->dev, p->dtype, dh, h, tokens, parts->width, parts->row_grad, err));
    if (is_needed) {
        if (parts->row_weight)
            CR_TRY(cr_rows_scale(p->dev, p->dtype, dh, parts->row_weight, tokens, parts->width, dh,
                                 err));
        CR_TRY(cr_swiglu_grad(p->dev, p->dtype, gate, up, dh, gate, up, num, err));
        CR_TRY(cri_linear_back(parts->gate, p, in, gate, grad_in, CRI_DX_SET, err));
        CR_TRY(cri_linear_back(parts->up, p, in, up, grad_in, CRI_DX_ADD, err));
    }
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_mlp_ops = {forward, backward};
