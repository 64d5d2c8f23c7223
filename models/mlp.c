/* mlp.c -- the dense gated block: down(h) with h = silu(gate x) * up x (SwiGLU), or gelu for silu (GeGLU).
 * Keeps gate and up; h is made again in backward, and the gradients of the two take their place on the tape.
 *
 * As an expert, each row's output is multiplied by a weight later (sparse.c):
 * the gradient of that weight is grad_out . down(h) = (down^T grad_out) . h: no output is needed.
 *
 * With pass->mlp_tiles > 1 it runs tile by tile of its rows (TiledMLP) and keeps nothing:
 * backward makes gate and up of a tile again. Weights are there for all tiles of a call (one pair of
 * hooks each), and gradients of all tiles are added in float32 where they belong.
 */
#include "kernels/vision.h"
#include "models/parts/adapters.h"
#include "models/pass_impl.h"

/* *h: of the rows of the pass, on scratch. */
static cr_status push_product(const cri_mlp *parts, cr_pass *p, const cr_mem *gate,
                              const cr_mem *up, cr_mem **h, cr_err *err)
{
    size_t num = (size_t)(p->num_rows * parts->width);

    CR_TRY(cri_push(p->scratch, p, p->num_rows, parts->width, h, err));
    if (parts->is_geglu)
        return cr_geglu(p->dev, &(cr_geglu_args){CR_GELU_TANH, p->dtype, gate, up, *h, num}, err);
    return cr_swiglu(p->dev, &(cr_swiglu_args){p->dtype, gate, up, *h, num}, err);
}

/* gate and up become their gradients, from that of h. */
static cr_status back_product(const cri_mlp *parts, const cr_pass *p, const cr_mem *dh,
                              cr_mem *gate, cr_mem *up, cr_err *err)
{
    size_t num = (size_t)(p->num_rows * parts->width);

    if (parts->is_geglu)
        return cr_geglu_grad(
            p->dev, &(cr_geglu_grad_args){CR_GELU_TANH, p->dtype, gate, up, dh, gate, up, num},
            err);
    return cr_swiglu_grad(p->dev,
                          &(cr_swiglu_grad_args){p->dtype, gate, up, dh, gate, up, NULL, num}, err);
}

/* Is the backward of down and of SwiGLU one pass over gate and up? Not where something stands between the two. */
static bool is_fused(const cri_mlp *parts, const cr_pass *p)
{
    return !parts->is_geglu && !p->expert_rows && !cri_is_adapted(parts->down, p);
}

/* Backward of down and SwiGLU. h is made again in the place of its gradient, between dx and dw of down. */
static cr_status back_fused(const cri_mlp *parts, cr_pass *p, const cr_mem *grad_out, cr_mem *gate,
                            cr_mem *up, cr_err *err)
{
    const cr_module *down = parts->down;
    size_t num = (size_t)(p->num_rows * parts->width);
    cr_linear_grad_args a;
    cr_mem *h;

    CR_TRY(cri_push(p->scratch, p, p->num_rows, parts->width, &h, err));
    CR_TRY(cri_enter(down, p, err));
    a = (cr_linear_grad_args){
        .dy = grad_out, .w = &cri_own(down->weight)->weight, .dx = h, .num_rows = p->num_rows};
    CR_TRY(cr_linear_grad(p->dev, &a, err));
    CR_TRY(cr_swiglu_grad(p->dev, &(cr_swiglu_grad_args){p->dtype, gate, up, h, gate, up, h, num},
                          err));
    a.dx = NULL;
    a.x = h;
    a.dw = cri_grad_of_rows(down->weight, p->num_rows, &a.is_dw_set);
    a.dbias = down->bias ? cri_grad(down->bias) : NULL;
    if (a.dw || a.dbias) CR_TRY(cr_linear_grad(p->dev, &a, err));
    return cri_leave(down, p, err);
}

/* Backward of down and of the product, each by itself. is_needed: gate and up become their gradients. */
static cr_status back_apart(const cri_mlp *parts, cr_pass *p, const cr_mem *grad_out, cr_mem *gate,
                            cr_mem *up, bool is_needed, cr_err *err)
{
    const cr_mem *row_weight = p->expert_rows ? p->expert_rows->weight : NULL;
    cr_mem *row_grad = p->expert_rows ? p->expert_rows->grad : NULL;
    int64_t tokens = p->num_rows;
    cr_mem *h = NULL, *weighted, *dh = NULL;

    if (parts->down->has_trainable || row_grad) CR_TRY(push_product(parts, p, gate, up, &h, err));
    weighted = h;
    if (row_weight && parts->down->has_trainable) {
        CR_TRY(cri_push(p->scratch, p, tokens, parts->width, &weighted, err));
        CR_TRY(cr_rows_scale(
            p->dev, &(cr_rows_scale_args){p->dtype, h, row_weight, tokens, parts->width, weighted},
            err));
    }
    if (is_needed || row_grad) CR_TRY(cri_push(p->scratch, p, tokens, parts->width, &dh, err));
    CR_TRY(cri_linear_back(parts->down, p, weighted, grad_out, dh, CRI_DX_SET, err));
    if (row_grad)
        CR_TRY(cr_rows_dot(
            p->dev, &(cr_rows_dot_args){p->dtype, dh, h, tokens, parts->width, row_grad}, err));
    if (!is_needed) return CR_OK;
    if (row_weight)
        CR_TRY(cr_rows_scale(
            p->dev, &(cr_rows_scale_args){p->dtype, dh, row_weight, tokens, parts->width, dh},
            err));
    return back_product(parts, p, dh, gate, up, err);
}

/* Backward of the rows of the pass from gate and up, which become their own gradients. */
static cr_status back_rows(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                           cr_mem *grad_in, cr_mem *gate, cr_mem *up, cr_err *err)
{
    const cri_mlp *parts = m->impl;
    bool is_needed = grad_in || parts->gate->has_trainable || parts->up->has_trainable;

    CR_TRY(is_needed && is_fused(parts, p)
               ? back_fused(parts, p, grad_out, gate, up, err)
               : back_apart(parts, p, grad_out, gate, up, is_needed, err));
    if (!is_needed) return CR_OK;
    return cri_linears_back((const cr_module *const[]){parts->gate, parts->up}, 2, p, in,
                            (const cr_mem *const[]){gate, up}, grad_in, CRI_DX_SET, err);
}

/* ---- tiles ---- */

/* Rows [first, first + num) of a tiled call, as a pass without hooks. */
typedef struct tile {
    cr_pass pass;
    int64_t first;
    cr_expert_rows expert_rows;
} tile;

static bool is_tiled(const cr_pass *p)
{
    return p->mlp_tiles > 1;
}

/* The next one: as many rows as the others, the last the rest. False: no more. */
static bool next_tile(const cr_pass *p, tile *t)
{
    int64_t total = p->num_rows, max = (total + p->mlp_tiles - 1) / p->mlp_tiles,
            first = t->first + t->pass.num_rows;

    if (first >= total) return false;
    *t = (tile){.pass = *p, .first = first};
    t->pass.num_rows = total - first < max ? total - first : max;
    t->pass.hooks = NULL;
    if (p->index.drop_keys)
        t->pass.index.drop_keys =
            cr_mem_add_const(p->index.drop_keys, (size_t)first * sizeof(uint64_t));
    return true;
}

/* Of rows of num_cols elements, those that begin at the tile; NULL stays NULL. */
static const cr_mem *at_const(const tile *t, const cr_mem *rows, int64_t num_cols)
{
    return rows ? cr_at_const(t->pass.dtype, rows, t->first * num_cols) : NULL;
}

static cr_mem *at(const tile *t, cr_mem *rows, int64_t num_cols)
{
    return rows ? cr_at(t->pass.dtype, rows, t->first * num_cols) : NULL;
}

static void find_expert_rows(const cr_expert_rows *all, tile *t)
{
    t->expert_rows =
        (cr_expert_rows){.weight = cr_at_const(CR_F32, all->weight, t->first),
                         .grad = all->grad ? cr_at(CR_F32, all->grad, t->first) : NULL};
    t->pass.expert_rows = &t->expert_rows;
}

static int64_t in_cols(const cri_mlp *parts)
{
    return parts->gate->weight->shape[1];
}

static cr_status multiply(const cri_mlp *parts, cr_pass *p, const cr_mem *in, cr_mem *gate,
                          cr_mem *up, cr_err *err)
{
    return cri_linears((const cr_module *const[]){parts->gate, parts->up}, 2, p, in,
                       (cr_mem *const[]){gate, up}, err);
}

static cr_status gate_and_up(const cri_mlp *parts, cr_pass *p, const cr_mem *in, cr_mem **gate,
                             cr_mem **up, cr_err *err)
{
    CR_TRY(cri_push(p->scratch, p, p->num_rows, parts->width, gate, err));
    CR_TRY(cri_push(p->scratch, p, p->num_rows, parts->width, up, err));
    return multiply(parts, p, in, *gate, *up, err);
}

static cr_status enter_all(const cri_mlp *parts, cr_pass *p, cr_err *err)
{
    CR_TRY(cri_enter(parts->gate, p, err));
    CR_TRY(cri_enter(parts->up, p, err));
    return cri_enter(parts->down, p, err);
}

static cr_status leave_all(const cri_mlp *parts, cr_pass *p, cr_err *err)
{
    CR_TRY(cri_leave(parts->down, p, err));
    CR_TRY(cri_leave(parts->up, p, err));
    return cri_leave(parts->gate, p, err);
}

static cr_status forward_tiles(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                               cr_mem *out, cr_err *err)
{
    const cri_mlp *parts = m->impl;
    int64_t cols = in_cols(parts);
    size_t mark = cr_stack_mark(p->scratch);
    cr_mem *gate, *up, *h;
    tile t = {.first = 0};

    if (!out) return CR_OK; /* nothing is kept, nothing is wanted */
    CR_TRY(enter_all(parts, p, err));
    while (next_tile(p, &t)) {
        CR_TRY(gate_and_up(parts, &t.pass, at_const(&t, in, cols), &gate, &up, err));
        CR_TRY(push_product(parts, &t.pass, gate, up, &h, err));
        CR_TRY(
            cri_linear(parts->down, &t.pass, h, at_const(&t, add, cols), at(&t, out, cols), err));
        cr_stack_release(p->scratch, mark);
    }
    return leave_all(parts, p, err);
}

static cr_status backward_tiles(const cr_module *m, cr_pass *p, const cr_mem *in,
                                const cr_mem *grad_out, cr_mem *grad_in, cr_err *err)
{
    const cri_mlp *parts = m->impl;
    int64_t cols = in_cols(parts);
    size_t mark = cr_stack_mark(p->scratch);
    tile t = {.first = 0};
    cr_mem *gate, *up;

    CR_TRY(enter_all(parts, p, err));
    while (next_tile(p, &t)) {
        if (p->expert_rows) find_expert_rows(p->expert_rows, &t);
        CR_TRY(gate_and_up(parts, &t.pass, at_const(&t, in, cols), &gate, &up, err));
        CR_TRY(back_rows(m, &t.pass, at_const(&t, in, cols), at_const(&t, grad_out, cols),
                         at(&t, grad_in, cols), gate, up, err));
        cr_stack_release(p->scratch, mark);
    }
    return leave_all(parts, p, err);
}

/* ---- all rows at once ---- */

typedef struct frame {
    cr_mem *gate, *up;
} frame;

static cr_status forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                         cr_mem *out, cr_err *err)
{
    const cri_mlp *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    frame kept;
    cr_mem *h;

    if (is_tiled(p)) return forward_tiles(m, p, in, add, out, err);
    CR_TRY(cri_push(cri_keep(p), p, p->num_rows, parts->width, &kept.gate, err));
    CR_TRY(cri_push(cri_keep(p), p, p->num_rows, parts->width, &kept.up, err));
    CR_TRY(multiply(parts, p, in, kept.gate, kept.up, err));
    if (out) {
        CR_TRY(push_product(parts, p, kept.gate, kept.up, &h, err));
        CR_TRY(cri_linear(parts->down, p, h, add, out, err));
    }
    if (p->tape) cri_frame_push(m, p, &kept, sizeof kept);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status backward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                          cr_mem *grad_in, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    frame kept;

    if (is_tiled(p)) return backward_tiles(m, p, in, grad_out, grad_in, err);
    cri_frame_pop(m, p, &kept, sizeof kept);
    CR_TRY(back_rows(m, p, in, grad_out, grad_in, kept.gate, kept.up, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_mlp_ops = {forward, backward};
