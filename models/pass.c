/* pass.c -- running one module: hooks, recompute, casts around modules in float32, and the two
 * operations that every parent computes for its children, Linear and norms. */
#include "kernels/vision.h"
#include "models/parts/adapters.h"
#include "models/pass_impl.h"

/* ---- modules in float32 ---- */

static void mark_fp32(cr_module *m)
{
    m->is_fp32 = true;
    for (size_t i = 0; i < m->num_params; i++)
        m->params[i].is_fp32 = true;
    for (size_t i = 0; i < m->num_children; i++)
        mark_fp32(m->children[i]);
}

void cr_module_set_fp32(cr_module *m)
{
    CR_CHECK(m->parent && (m->ops || m->impl), "%s cannot compute in float32 by itself", m->name);
    mark_fp32(m);
}

static bool is_border(const cr_module *m, const cr_pass *p)
{
    return m->is_fp32 && p->dtype != CR_F32;
}

static size_t num_at_border(const cr_module *m, const cr_pass *p)
{
    return (size_t)(p->num_rows * m->model->config.hidden_size);
}

/* *wide: rows in float32, on scratch; NULL stays NULL. */
static cr_status widen(const cr_module *m, cr_pass *p, const cr_mem *rows, cr_mem **wide,
                       cr_err *err)
{
    size_t num = num_at_border(m, p);

    *wide = NULL;
    if (!rows) return CR_OK;
    CR_TRY(cr_stack_push(p->scratch, num * sizeof(float), wide, err));
    return cr_cast(p->dev, &(cr_cast_args){CR_F32, *wide, p->dtype, rows, num}, err);
}

/* As cr_module_ops, the module in float32. */
static cr_status forward_wide(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                              cr_mem *out, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch), num = num_at_border(m, p);
    cr_dtype dtype = p->dtype;
    cr_mem *x, *stream, *y = NULL;
    cr_status status;

    CR_TRY(widen(m, p, in, &x, err));
    CR_TRY(widen(m, p, add, &stream, err));
    if (out) CR_TRY(cr_stack_push(p->scratch, num * sizeof(float), &y, err));
    p->dtype = CR_F32;
    status = m->ops->forward(m, p, x, stream, y, err);
    p->dtype = dtype;
    CR_TRY(status);
    if (out) CR_TRY(cr_cast(p->dev, &(cr_cast_args){dtype, out, CR_F32, y, num}, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status backward_wide(const cr_module *m, cr_pass *p, const cr_mem *in,
                               const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch), num = num_at_border(m, p);
    cr_dtype dtype = p->dtype;
    cr_mem *x, *dy;
    cr_status status;

    CR_TRY(widen(m, p, in, &x, err));
    CR_TRY(widen(m, p, grad_out, &dy, err));
    p->dtype = CR_F32;
    status = m->ops->backward(m, p, x, dy, grad_in ? dy : NULL, err);
    p->dtype = dtype;
    CR_TRY(status);
    if (grad_in) CR_TRY(cr_cast(p->dev, &(cr_cast_args){dtype, grad_in, CR_F32, dy, num}, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- one module ---- */

cr_status cr_module_forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                            cr_mem *out, cr_err *err)
{
    cr_stack *tape = p->tape;
    cr_status status;

    CR_TRY(cri_enter(m, p, err));
    if (m->is_checkpointed && p->should_recompute && p->phase == CR_FORWARD) p->tape = NULL;
    status = is_border(m, p) ? forward_wide(m, p, in, add, out, err)
                             : m->ops->forward(m, p, in, add, out, err);
    p->tape = tape;
    CR_TRY(status);
    return cri_leave(m, p, err);
}

/* Run the forward again, this time keeping what backward needs; the result itself is not wanted. */
static cr_status recompute(const cr_module *m, cr_pass *p, const cr_mem *in, cr_err *err)
{
    cr_status status;

    p->phase = CR_RECOMPUTE;
    status = cr_module_forward(m, p, in, NULL, NULL, err);
    p->phase = CR_BACKWARD;
    return status;
}

cr_status cr_module_backward(const cr_module *m, cr_pass *p, const cr_mem *in,
                             const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    size_t mark = cr_stack_mark(p->tape);
    bool is_again = m->is_checkpointed && p->should_recompute;

    if (is_again) CR_TRY(recompute(m, p, in, err));
    CR_TRY(cri_enter(m, p, err));
    CR_TRY(is_border(m, p) ? backward_wide(m, p, in, grad_out, grad_in, err)
                           : m->ops->backward(m, p, in, grad_out, grad_in, err));
    CR_TRY(cri_leave(m, p, err));
    if (is_again) cr_stack_release(p->tape, mark);
    return CR_OK;
}

/* ---- Linear of experts ---- */

/* The module of expert e in the place of m, which is one of the first expert's. */
static const cr_module *in_expert(const cr_pass_group *g, const cr_module *m, int64_t e)
{
    size_t i = 0;

    while (g->experts[0]->children[i] != m)
        CR_CHECK(++i < g->experts[0]->num_children, "%s is not of the group's first expert",
                 m->name);
    return g->experts[e]->children[i];
}

/* What has a bias is a group of one (sparse.c). */
static bool is_grouped(const cr_module *m, const cr_pass *p)
{
    return p->group && !m->bias;
}

/* Some experts of a group and one of their modules. */
typedef struct piece {
    const cr_weight *w[CR_EXPERTS_A_CALL];
    cr_mem *dw[CR_EXPERTS_A_CALL];
    const int64_t *rows;
    int64_t num, num_rows, first_row;
} piece;

/* Those from `first` on; false: no more. */
static bool next_piece(const cr_module *m, const cr_pass *p, int64_t first, piece *out)
{
    const cr_pass_group *g = p->group;
    int64_t left = g->num - first;

    if (left <= 0) return false;
    out->first_row = first ? out->first_row + out->num_rows : 0;
    out->rows = g->num == 1 ? &p->num_rows : g->rows + first;
    out->num = left < CR_EXPERTS_A_CALL ? left : CR_EXPERTS_A_CALL;
    out->num_rows = 0;
    for (int64_t e = 0; e < out->num; e++) {
        const cr_param *weight = in_expert(g, m, first + e)->weight;
        out->w[e] = &cri_own(weight)->weight;
        out->dw[e] = cri_grad(weight);
        out->num_rows += out->rows[e];
    }
    return true;
}

static cr_status enter_group(const cr_module *m, cr_pass *p, cr_err *err)
{
    for (int64_t e = 0; e < p->group->num; e++)
        if (cri_is_run(m->model, p, e)) CR_TRY(cri_enter(in_expert(p->group, m, e), p, err));
    return CR_OK;
}

static cr_status leave_group(const cr_module *m, cr_pass *p, cr_err *err)
{
    for (int64_t e = 0; e < p->group->num; e++)
        if (cri_is_run(m->model, p, e)) CR_TRY(cri_leave(in_expert(p->group, m, e), p, err));
    return CR_OK;
}

/* What an expert's adapter adds to y. */
static cr_status adapt(const cr_module *m, cr_pass *p, const cr_mem *x, cr_mem *y, cr_err *err)
{
    cr_linears_args base = {.x = x, .num = 1, .num_rows = p->num_rows};

    base.w[0] = cri_own(m->weight)->weight;
    base.y[0] = y;
    return cri_adapted_linears(&m, &base, NULL, /*is_base_made=*/true, p, err);
}

/* What the experts' adapters add to y, or, with dy, to the gradients: each over its own rows. */
static cr_status adapt_group(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                             cr_mem *y, cr_err *err)
{
    const cr_pass_group *g = p->group;
    int64_t n = m->weight->shape[0], k = m->weight->shape[1], row = 0;
    cr_pass part = *p;

    part.group = NULL;
    for (int64_t e = 0; e < g->num; e++, row += part.num_rows) {
        const cr_module *own = in_expert(g, m, e);
        const cr_mem *in = cr_at_const(p->dtype, x, row * k);
        part.num_rows = g->num == 1 ? p->num_rows : g->rows[e];
        if (!part.num_rows || !cri_is_adapted(own, p)) continue;
        if (!dy) {
            CR_TRY(adapt(own, &part, in, cr_at(p->dtype, y, row * n), err));
            continue;
        }
        const cr_mem *out = cr_at_const(p->dtype, dy, row * n);
        cr_mem *dx = y ? cr_at(p->dtype, y, row * k) : NULL;
        CR_TRY(cri_adapted_linears_back(&own, 1, &part, in, &out, dx, CRI_DX_ADD,
                                        /*is_base_made=*/true, err));
    }
    return CR_OK;
}

static cr_status group_linear(const cr_module *m, cr_pass *p, const cr_mem *x, cr_mem *y,
                              cr_err *err)
{
    int64_t n = m->weight->shape[0], k = m->weight->shape[1];
    piece at;

    CR_TRY(enter_group(m, p, err));
    for (int64_t first = 0; next_piece(m, p, first, &at); first += at.num) {
        const cr_expert_linear_args a = {.x = cr_at_const(p->dtype, x, at.first_row * k),
                                         .w = at.w,
                                         .rows = at.rows,
                                         .num_experts = at.num,
                                         .y = cr_at(p->dtype, y, at.first_row * n)};
        CR_TRY(cr_expert_linear(p->dev, &a, err));
    }
    CR_TRY(adapt_group(m, p, x, NULL, y, err));
    return leave_group(m, p, err);
}

static cr_status group_linear_back(const cr_module *m, cr_pass *p, const cr_mem *x,
                                   const cr_mem *dy, cr_mem *dx, cri_dx how, cr_err *err)
{
    int64_t n = m->weight->shape[0], k = m->weight->shape[1];
    bool is_trained = cri_own(m->weight)->is_trainable;
    piece at;

    CR_TRY(enter_group(m, p, err));
    for (int64_t first = 0; (dx || is_trained) && next_piece(m, p, first, &at); first += at.num) {
        const cr_expert_linear_grad_args a = {
            .x = is_trained ? cr_at_const(p->dtype, x, at.first_row * k) : NULL,
            .dy = cr_at_const(p->dtype, dy, at.first_row * n),
            .w = at.w,
            .rows = at.rows,
            .num_experts = at.num,
            .dx = dx ? cr_at(p->dtype, dx, at.first_row * k) : NULL,
            .is_dx_added = how == CRI_DX_ADD,
            .dw = is_trained ? at.dw : NULL};
        CR_TRY(cr_expert_linear_grad(p->dev, &a, err));
    }
    CR_TRY(adapt_group(m, p, x, dy, dx, err));
    return leave_group(m, p, err);
}

/* ---- Linear ---- */

/* add: of one alone, or NULL. */
static cr_status linears(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                         const cr_mem *add, cr_mem *const *y, cr_err *err)
{
    cr_linears_args a = {.x = x, .num = num, .num_rows = p->num_rows};

    for (int i = 0; i < num; i++) {
        const cr_module *now = cri_now(m[i], p);
        CR_TRY(cri_enter(m[i], p, err)); /* now the weights are there */
        a.w[i] = cri_own(now->weight)->weight;
        a.bias[i] = now->bias ? now->bias->weight.data : NULL;
        a.y[i] = y[i];
    }
    CR_TRY(cri_are_adapted(m, num, p) ? cri_adapted_linears(m, &a, add, false, p, err)
                                      : cr_linears(p->dev, &a, err));
    for (int i = num; i-- > 0;)
        CR_TRY(cri_leave(m[i], p, err));
    return CR_OK;
}

cr_mem *cri_grad_of_rows(cr_param *param, int64_t num_rows, bool *is_set)
{
    *is_set = param->is_grad_unset && num_rows > 0;
    if (*is_set) param->is_grad_unset = false;
    return cri_grad(param);
}

cr_status cri_linear_back(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                          cr_mem *dx, cri_dx how, cr_err *err)
{
    cr_linear_grad_args a;

    if (!dx && !m->has_trainable) return CR_OK;
    if (is_grouped(m, p)) return group_linear_back(m, p, x, dy, dx, how, err);
    if (cri_is_adapted(m, p)) return cri_linears_back(&m, 1, p, x, &dy, dx, how, err);
    CR_TRY(cri_enter(m, p, err));
    a = (cr_linear_grad_args){.x = x,
                              .dy = dy,
                              .w = &cri_own(m->weight)->weight,
                              .dx = dx,
                              .is_dx_added = how == CRI_DX_ADD,
                              .dbias = m->bias ? cri_grad(m->bias) : NULL,
                              .num_rows = p->num_rows};
    a.dw = cri_grad_of_rows(m->weight, p->num_rows, &a.is_dw_set);
    if (a.dx || a.dw || a.dbias) CR_TRY(cr_linear_grad(p->dev, &a, err));
    return cri_leave(m, p, err);
}

cr_status cri_linear(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *add, cr_mem *y,
                     cr_err *err)
{
    const cr_module *now = cri_now(m, p);
    cr_linear_args a;

    if (is_grouped(m, p)) return group_linear(m, p, x, y, err);
    if (cri_is_adapted(m, p)) return linears(&m, 1, p, x, add, &y, err);
    CR_TRY(cri_enter(m, p, err)); /* now the weights are there */
    a = (cr_linear_args){.x = x,
                         .w = &cri_own(now->weight)->weight,
                         .bias = now->bias ? now->bias->weight.data : NULL,
                         .add = add,
                         .y = y,
                         .out_dtype = p->dtype,
                         .num_rows = p->num_rows};
    CR_TRY(cr_linear(p->dev, &a, err));
    return cri_leave(m, p, err);
}

cr_status cri_linears(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                      cr_mem *const *y, cr_err *err)
{
    if (!is_grouped(m[0], p)) return linears(m, num, p, x, NULL, y, err);
    for (int i = 0; i < num; i++)
        CR_TRY(group_linear(m[i], p, x, y[i], err));
    return CR_OK;
}

cr_status cri_linears_back(const cr_module *const *m, int num, cr_pass *p, const cr_mem *x,
                           const cr_mem *const *dy, cr_mem *dx, cri_dx how, cr_err *err)
{
    bool is_one = !is_grouped(m[0], p) && cri_are_adapted(m, num, p);

    for (int i = 0; i < num; i++) /* one that is trained itself */
        is_one = is_one && (cri_is_adapted(m[i], p) || !m[i]->has_trainable);
    for (int i = 0; i < num && !is_one; i++)
        CR_TRY(cri_linear_back(m[i], p, x, dy[i], dx, i ? CRI_DX_ADD : how, err));
    if (!is_one) return CR_OK;
    for (int i = 0; i < num; i++)
        CR_TRY(cri_enter(m[i], p, err));
    CR_TRY(cri_adapted_linears_back(m, num, p, x, dy, dx, how, false, err));
    for (int i = num; i-- > 0;)
        CR_TRY(cri_leave(m[i], p, err));
    return CR_OK;
}

/* ---- norms ---- */

static float eps_of(const cr_module *m)
{
    const float *own = m->impl;

    return own ? *own : m->model->config.rms_norm_eps;
}

static cr_status layer_norm(const cr_module *m, cr_pass *p, const cr_mem *x, int64_t num_rows,
                            cr_mem *y, cr_mem *rstd, cr_err *err)
{
    cr_layernorm_args a = {.x = x,
                           .weight = m->weight->weight.data,
                           .bias = m->bias->weight.data,
                           .y = y,
                           .mean = rstd ? cr_at(CR_F32, rstd, num_rows) : NULL,
                           .rstd = rstd,
                           .dtype = p->dtype,
                           .num_rows = num_rows,
                           .num_cols = m->weight->num_elems,
                           .eps = eps_of(m)};

    return cr_layernorm(p->dev, &a, err);
}

cr_status cri_norm(const cr_module *m, cr_pass *p, const cr_mem *x, int64_t num_rows,
                   const cr_mem *add, cr_mem *y, cr_mem *rstd, cr_err *err)
{
    cr_rmsnorm_args a = {.x = x,
                         .weight = cri_now(m, p)->weight->weight.data,
                         .y = y,
                         .rstd = rstd,
                         .dtype = p->dtype,
                         .num_rows = num_rows,
                         .num_cols = m->weight->num_elems,
                         .eps = eps_of(m),
                         .offset = m->model->config.norm_offset,
                         .add = add};

    CR_CHECK(!m->bias || !add, "a LayerNorm adds to nothing");
    if (m->bias) return layer_norm(m, p, x, num_rows, y, rstd, err);
    return cr_rmsnorm(p->dev, &a, err);
}

static cr_status layer_norm_back(const cr_module *m, cr_pass *p, const cr_mem *x,
                                 const cr_mem *rstd, const cr_mem *dy, int64_t num_rows, cr_mem *dx,
                                 cri_dx how, cr_err *err)
{
    cr_layernorm_grad_args a = {.x = x,
                                .weight = m->weight->weight.data,
                                .dy = dy,
                                .mean = cr_at_const(CR_F32, rstd, num_rows),
                                .rstd = rstd,
                                .dx = dx,
                                .dweight = cri_grad(m->weight),
                                .dbias = cri_grad(m->bias),
                                .is_dx_added = how == CRI_DX_ADD,
                                .dtype = p->dtype,
                                .num_rows = num_rows,
                                .num_cols = m->weight->num_elems};

    return cr_layernorm_grad(p->dev, &a, err);
}

cr_status cri_norm_back(const cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *rstd,
                        const cr_mem *dy, int64_t num_rows, cr_mem *dx, cri_dx how, cr_err *err)
{
    cr_rmsnorm_grad_args a = {.x = x,
                              .weight = m->weight->weight.data,
                              .dy = dy,
                              .rstd = rstd,
                              .dx = dx,
                              .dweight = cri_grad(m->weight),
                              .is_dx_added = how == CRI_DX_ADD,
                              .dtype = p->dtype,
                              .num_rows = num_rows,
                              .num_cols = m->weight->num_elems,
                              .offset = m->model->config.norm_offset};

    if (m->bias) return layer_norm_back(m, p, x, rstd, dy, num_rows, dx, how, err);
    return cr_rmsnorm_grad(p->dev, &a, err);
}
