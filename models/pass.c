/* pass.c -- running one module: hooks, recompute, frames, and the two operations that every parent
 * computes for its children, Linear and RMSNorm. */
#include "models/models_impl.h"

/* ---- frames ---- */

void cri_frame_push(cr_module *m, const cri_frame *frame)
{
    cri_model *own = m->model->own;

    if (own->num_frames == own->capacity_frames) { /* warm-up only */
        size_t capacity = own->capacity_frames ? 2 * own->capacity_frames : 256;
        own->frames = cr_realloc(own->frames, own->capacity_frames * sizeof *own->frames,
                                 capacity * sizeof *own->frames);
        own->capacity_frames = capacity;
    }
    own->frames[own->num_frames] = *frame;
    own->frames[own->num_frames++].module = m;
}

cri_frame cri_frame_pop(cr_module *m)
{
    cri_model *own = m->model->own;

    CR_CHECK(own->num_frames > 0, "backward of %s without its forward", m->name);
    own->num_frames--;
    CR_CHECK(own->frames[own->num_frames].module == m, "backward of %s, but %s ran forward last",
             m->name, own->frames[own->num_frames].module->name);
    return own->frames[own->num_frames];
}

/* ---- one module ---- */

cr_status cr_module_forward(cr_module *m, cr_pass *p, const void *in, const void *add, void *out,
                            cr_err *err)
{
    cr_stack *tape = p->tape;
    cr_status status;

    CR_TRY(cri_enter(m, p, err));
    if (m->is_checkpointed && p->should_recompute && p->phase == CR_FORWARD) p->tape = NULL;
    status = m->ops->forward(m, p, in, add, out, err);
    p->tape = tape;
    CR_TRY(status);
    return cri_leave(m, p, err);
}

/* Run the forward again, this time keeping what backward needs; the result itself is not wanted. */
static cr_status recompute(cr_module *m, cr_pass *p, const void *in, cr_err *err)
{
    cr_status status;

    p->phase = CR_RECOMPUTE;
    status = cr_module_forward(m, p, in, NULL, NULL, err);
    p->phase = CR_BACKWARD;
    return status;
}

cr_status cr_module_backward(cr_module *m, cr_pass *p, const void *in, const void *grad_out,
                             void *grad_in, cr_err *err)
{
    size_t mark = cr_stack_mark(p->tape);
    bool is_again = m->is_checkpointed && p->should_recompute;

    if (is_again) CR_TRY(recompute(m, p, in, err));
    CR_TRY(cri_enter(m, p, err));
    CR_TRY(m->ops->backward(m, p, in, grad_out, grad_in, err));
    CR_TRY(cri_leave(m, p, err));
    if (is_again) cr_stack_release(p->tape, mark);
    return CR_OK;
}

/* ---- Linear ---- */

cr_status cri_linear(cr_module *m, cr_pass *p, const void *x, const void *add, void *y, cr_err *err)
{
    cr_linear_args a = {.x = x,
                        .w = &cri_own(&m->params[0])->weight,
                        .bias = m->num_params > 1 ? m->params[1].weight.data : NULL,
                        .add = add,
                        .y = y,
                        .out_dtype = p->dtype,
                        .num_rows = p->batch->num_tokens};

    CR_TRY(cri_enter(m, p, err));
    CR_TRY(cr_linear(p->dev, &a, err));
    return cri_leave(m, p, err);
}

cr_status cri_linear_back(cr_module *m, cr_pass *p, const void *x, const void *dy, void *dx,
                          cri_dx how, cr_err *err)
{
    cr_linear_grad_args a;

    if (!dx && !m->has_trainable) return CR_OK;
    CR_TRY(cri_enter(m, p, err));
    a = (cr_linear_grad_args){.x = x,
                              .dy = dy,
                              .w = &cri_own(&m->params[0])->weight,
                              .dx = dx,
                              .is_dx_added = how == CRI_DX_ADD,
                              .dw = cri_grad(&m->params[0]),
                              .dbias = m->num_params > 1 ? cri_grad(&m->params[1]) : NULL,
                              .num_rows = p->batch->num_tokens};
    CR_TRY(cr_linear_grad(p->dev, &a, err));
    return cri_leave(m, p, err);
}

/* ---- RMSNorm ---- */

cr_status cri_norm(cr_module *m, cr_pass *p, const void *x, int64_t num_rows, void *y, float *rstd,
                   cr_err *err)
{
    cr_rmsnorm_args a = {.x = x,
                         .weight = m->params[0].weight.data,
                         .y = y,
                         .rstd = rstd,
                         .dtype = p->dtype,
                         .num_rows = num_rows,
                         .num_cols = m->params[0].num_elems,
                         .eps = m->model->config.rms_norm_eps};

    return cr_rmsnorm(p->dev, &a, err);
}

cr_status cri_norm_back(cr_module *m, cr_pass *p, const void *x, const float *rstd, const void *dy,
                        int64_t num_rows, void *dx, cri_dx how, cr_err *err)
{
    cr_rmsnorm_grad_args a = {.x = x,
                              .weight = m->params[0].weight.data,
                              .dy = dy,
                              .rstd = rstd,
                              .dx = dx,
                              .dweight = cri_grad(&m->params[0]),
                              .is_dx_added = how == CRI_DX_ADD,
                              .dtype = p->dtype,
                              .num_rows = num_rows,
                              .num_cols = m->params[0].num_elems};

    return cr_rmsnorm_grad(p->dev, &a, err);
}
