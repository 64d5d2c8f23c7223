/* adapters.c -- LoRA: products of adapters. */
#include "models/parts/adapters.h"

#include "kernels/dropout.h"

/* ---- products ---- */

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

/* Also what A is given for x, on scratch, if it is dropped: the same in forward, recompute and backward. */
static cr_status low_rank_of(const cr_module *m, cr_pass *p, const cr_mem *x, cr_low_rank *out,
                             cr_err *err)
{
    const cr_adapter *a = cri_adapter_of(m, p);

    *out = (cr_low_rank){0};
    if (!a) return CR_OK;
    *out = (cr_low_rank){a->a->weight->weight, a->b->weight->weight, a->scale, NULL};
    if (!is_dropped(a, p)) return CR_OK;
    CR_TRY(cri_push(p->scratch, p, p->num_rows, a->a->weight->shape[1], &out->x, err));
    return drop(a, p, x, NULL, out->x, err);
}

cr_status cri_adapted_linears(const cr_module *const *m, const cr_linears_args *base,
                              const cr_mem *add, bool is_base_made, cr_pass *p, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cr_adapted_linears_args a = {.base = *base, .add = add, .is_base_made = is_base_made};

    for (int i = 0; i < base->num; i++)
        CR_TRY(low_rank_of(m[i], p, base->x, &a.low[i], err));
    CR_TRY(cri_push(p->scratch, p, p->num_rows, cr_low_ranks(a.low, base->num), &a.h, err));
    CR_TRY(cr_adapted_linears(p->dev, &a, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

cr_status cri_adapted_linears_back(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                                   const cr_mem *const *dy, cr_mem *dx, cri_dx how,
                                   bool is_base_made, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cr_adapted_linears_grad_args a = {.x = x,
                                      .dx = dx,
                                      .is_dx_added = how == CRI_DX_ADD,
                                      .num = num,
                                      .num_rows = p->num_rows,
                                      .is_base_made = is_base_made};
    int64_t cols;

    for (int i = 0; i < num; i++) {
        a.dy[i] = dy[i];
        a.w[i] = cri_own(m[i]->weight)->weight;
        CR_TRY(low_rank_of(m[i], p, x, &a.low[i], err));
        if (!a.low[i].a.data) continue;
        a.da[i] = cri_grad(cri_adapter_of(m[i], p)->a->weight);
        a.db[i] = cri_grad(cri_adapter_of(m[i], p)->b->weight);
    }
    cols = cr_low_ranks(a.low, num);
    CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &a.h, err));
    CR_TRY(cri_push(p->scratch, p, p->num_rows, cols, &a.dh, err));
    CR_TRY(cr_adapted_linears_grad(p->dev, &a, err));
    for (int i = 0; i < num && dx; i++)
        if (a.low[i].x) CR_TRY(drop(cri_adapter_of(m[i], p), p, a.low[i].x, dx, dx, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}
