/* adapters.c -- LoRA: products of adapters. */
#include "models/parts/adapters.h"

#include "kernels/dropout.h"

/* ---- products ---- */

/* to (dtype of the pass) = scale x; x is float32 and may be to. */
static cr_status put_scaled(const cr_adapter *a, const cr_pass *p, cr_mem *x, cr_mem *to,
                            size_t num, cr_err *err)
{
    CR_TRY(cr_scale(p->dev, &(cr_scale_args){x, a->scale, num}, err));
    if (x == to) return CR_OK;
    return cr_cast(p->dev, &(cr_cast_args){p->dtype, to, CR_F32, x, num}, err);
}

/* [num_rows, rank] on scratch, and the same in float32, which is the same memory if the pass is in it. */
static cr_status push_inner(const cr_adapter *a, cr_pass *p, cr_mem **h, cr_mem **wide, cr_err *err)
{
    int64_t rank = a->a->weight->shape[0];

    CR_TRY(cri_push(p->scratch, p, p->num_rows, rank, h, err));
    *wide = *h;
    return p->dtype == CR_F32 ? CR_OK : cri_push_32bit(p->scratch, p->num_rows * rank, wide, err);
}

/* *h = scale A x. */
static cr_status multiply_inner(const cr_adapter *a, cr_pass *p, const cr_mem *x, cr_mem **h,
                                cr_err *err)
{
    cr_linear_args l = {
        .x = x, .w = &a->a->weight->weight, .out_dtype = CR_F32, .num_rows = p->num_rows};
    cr_mem *wide;

    CR_TRY(push_inner(a, p, h, &wide, err));
    l.y = wide;
    CR_TRY(cr_linear(p->dev, &l, err));
    return put_scaled(a, p, wide, *h, (size_t)(p->num_rows * a->a->weight->shape[0]), err);
}

static bool is_dropped(const cr_adapter *a, const cr_pass *p)
{
    return p->index.drop_keys && a->dropout > 0;
}

/* y = add + x with dropout, [num_rows, in]. */
static cr_status drop(const cr_adapter *a, const cr_pass *p, const cr_mem *x, const cr_mem *add,
                      cr_mem *y, cr_err *err)
{
    return cr_rows_drop(p->dev,
                        &(cr_rows_drop_args){.dtype = p->dtype,
                                             .x = x,
                                             .add = add,
                                             .keys = p->index.drop_keys,
                                             .module_key = a->key,
                                             .rate = a->dropout,
                                             .num_rows = p->num_rows,
                                             .num_cols = a->a->weight->shape[1],
                                             .y = y},
                        err);
}

/* *to: what A is given for x: the same in forward, recompute and backward. */
static cr_status input_of(const cr_adapter *a, cr_pass *p, const cr_mem *x, const cr_mem **to,
                          cr_err *err)
{
    cr_mem *dropped;

    *to = x;
    if (!is_dropped(a, p) || !x) return CR_OK;
    CR_TRY(cri_push(p->scratch, p, p->num_rows, a->a->weight->shape[1], &dropped, err));
    *to = dropped;
    return drop(a, p, x, NULL, dropped, err);
}

cr_status cri_adapter_forward(const cr_module *m, cr_pass *p, const cr_mem *x, cr_mem *y,
                              cr_err *err)
{
    const cr_adapter *a = m->adapter;
    size_t mark = cr_stack_mark(p->scratch);
    cr_linear_args l = {.w = &a->b->weight->weight,
                        .add = y,
                        .y = y,
                        .out_dtype = p->dtype,
                        .num_rows = p->num_rows};
    cr_mem *h;

    CR_TRY(input_of(a, p, x, &x, err));
    CR_TRY(multiply_inner(a, p, x, &h, err));
    l.x = h;
    CR_TRY(cr_linear(p->dev, &l, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* dA += dh^T x; dx += dh A, where x was not dropped. */
static cr_status back_inner(const cr_adapter *a, cr_pass *p, const cr_mem *x, const cr_mem *dh,
                            cr_mem *dx, cr_err *err)
{
    const cr_param *w = a->a->weight;
    bool has_own = is_dropped(a, p) && dx; /* the gradient of what A was given */
    cr_linear_grad_args inner = {.x = x,
                                 .dy = dh,
                                 .w = &w->weight,
                                 .dx = dx,
                                 .is_dx_added = !has_own,
                                 .dw = cri_grad(w),
                                 .num_rows = p->num_rows};

    if (has_own) CR_TRY(cri_push(p->scratch, p, p->num_rows, w->shape[1], &inner.dx, err));
    CR_TRY(cr_linear_grad(p->dev, &inner, err));
    return has_own ? drop(a, p, inner.dx, dx, dx, err) : CR_OK;
}

cr_status cri_adapter_backward(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                               cr_mem *dx, cr_err *err)
{
    const cr_adapter *a = m->adapter;
    size_t mark = cr_stack_mark(p->scratch), num;
    cr_mem *h = NULL, *dh, *wide;
    cr_linear_grad_args outer;

    num = (size_t)(p->num_rows * a->a->weight->shape[0]);
    CR_TRY(input_of(a, p, m->has_trainable ? x : NULL, &x, err));
    if (m->has_trainable) CR_TRY(multiply_inner(a, p, x, &h, err));
    CR_TRY(push_inner(a, p, &dh, &wide, err));
    outer = (cr_linear_grad_args){.x = h,
                                  .dy = dy,
                                  .w = &a->b->weight->weight,
                                  .dx = dh,
                                  .dw = cri_grad(a->b->weight),
                                  .num_rows = p->num_rows};
    CR_TRY(cr_linear_grad(p->dev, &outer, err));
    if (wide != dh) CR_TRY(cr_cast(p->dev, &(cr_cast_args){CR_F32, wide, p->dtype, dh, num}, err));
    CR_TRY(put_scaled(a, p, wide, dh, num, err));
    CR_TRY(back_inner(a, p, x, dh, dx, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}
