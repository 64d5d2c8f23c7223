/* sparse.c -- the block of experts: each token goes through the k experts that the router chooses, and
 * their outputs are summed with the router's weights.
 *
 * Tokens are sorted by expert, so that an expert's rows are one range, and every expert is a module of
 * its own that runs between its hooks, also with no rows at all: which collectives a rank meets does
 * not depend on its data (model->skips_idle_experts leaves the idle ones out, as Transformers does).
 * Experts whose weights come and go one by one (units of their own) run one after the other; else all run as one
 * group, whose products are one operation each. Bits are the same.
 *
 * Kept for backward: probabilities, choices, weights and the order of rows; an expert keeps gate and
 * up of its rows. Where experts run on other ranks (dispatch.h) so does all of this, and the rows that
 * came are kept. Else the rows are gathered again. An expert's output is never kept: the
 * gradient of a token's weight is taken before down_proj, where the output would be (see mlp.c).
 */
#include "models/pass_impl.h"

#include <string.h>

static cri_routing routing_of(const cr_module *m, const cr_pass *p)
{
    const cr_model_config *c = &m->model->config;
    int64_t tokens = p->num_rows, num = c->num_experts;
    int64_t *counts = p->state->routers.counts + 3 * num * m->layer;

    return (cri_routing){.count = counts,
                         .recv_counts = counts + num,
                         .here = counts + 2 * num,
                         .num_tokens = tokens,
                         .top_k = c->num_experts_per_tok,
                         .num_slots = tokens * c->num_experts_per_tok,
                         .num_experts = num,
                         .cols = c->hidden_size};
}

static cr_status reserve(cr_pass *p, cri_routing *r, cr_err *err)
{
    cr_stack *keep = cri_keep(p);

    CR_TRY(cri_push_numbers(keep, r->num_tokens * r->num_experts, &r->prob, err));
    CR_TRY(cri_push_numbers(keep, r->num_slots, &r->weight, err));
    CR_TRY(cri_push_numbers(keep, r->num_slots, &r->expert, err));
    CR_TRY(cri_push_numbers(keep, r->num_slots, &r->slot, err));
    return cri_push_numbers(keep, r->num_slots, &r->token, err);
}

static cr_router_args router_args(const cr_module *m, const cr_pass *p, const cri_routing *r)
{
    return (cr_router_args){.dtype = p->dtype,
                            .should_norm = m->model->config.should_norm_topk,
                            .num_rows = r->num_tokens,
                            .num_experts = r->num_experts,
                            .top_k = r->top_k,
                            .prob = r->prob,
                            .expert = r->expert,
                            .weight = r->weight};
}

/* ---- the auxiliary loss ---- */

static bool is_counted(const cr_pass *p)
{
    return p->aux_weight != 0 && p->phase == CR_FORWARD;
}

static void count_picks(const cr_pass *p, const cri_routing *r)
{
    cri_routers *all = &p->state->routers;

    if (!is_counted(p)) return;
    all->rows += r->num_tokens;
    for (int64_t e = 0; e < r->num_experts; e++)
        all->picks[e] += (double)r->count[e];
}

/* With F_e = picks / rows and P_e = mean prob: aux = E sum F_e P_e, F constant. */
double cr_pass_aux_loss(const cr_model *model, const cr_pass_state *state)
{
    const cri_routers *all = &state->routers;
    double sum = 0, rows = (double)all->rows;

    if (all->rows == 0) return 0;
    for (int64_t e = 0; e < model->config.num_experts; e++)
        sum += all->picks[e] / rows * (all->probs[e] / rows);
    return (double)model->config.num_experts * sum;
}

/* *out: on scratch; NULL: no auxiliary loss. */
static cr_status grad_of_prob(const cr_pass *p, const cri_routing *r, cr_mem **out, cr_err *err)
{
    cri_routers *all = &p->state->routers;
    double rows = (double)all->rows;

    *out = NULL;
    if (p->aux_weight == 0 || all->rows == 0) return CR_OK;
    for (int64_t e = 0; e < r->num_experts; e++)
        all->grad[e] =
            (float)(p->aux_weight * (double)r->num_experts * all->picks[e] / rows / rows);
    return cr_stack_push_copy(p->scratch, all->grad, (size_t)r->num_experts * sizeof *all->grad,
                              out, err);
}

/* ---- forward ---- */

static cr_status route(const cr_module *m, cr_pass *p, const cr_mem *in, cri_routing *r,
                       cr_err *err)
{
    const cri_sparse *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    cr_router_args router = router_args(m, p, r);
    cr_expert_sort_args sort = {.expert = r->expert,
                                .num_rows = r->num_tokens,
                                .top_k = r->top_k,
                                .num_experts = r->num_experts,
                                .slot = r->slot,
                                .token = r->token,
                                .count = r->count};
    cr_mem *logits;

    CR_TRY(cri_push(p->scratch, p, r->num_tokens, r->num_experts, &logits, err));
    CR_TRY(cri_linear(parts->gate, p, in, NULL, logits, err));
    router.logits = logits;
    router.prob_sum = is_counted(p) ? p->state->routers.probs : NULL;
    CR_TRY(cr_router(p->dev, &router, err));
    CR_TRY(cr_expert_sort(p->dev, &sort, err));
    count_picks(p, r);
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_mem *row_at(const cr_pass *p, const cri_routing *r, cr_mem *rows, int64_t at)
{
    return rows ? cr_at(p->dtype, rows, at * r->cols) : NULL;
}

/* Experts of other ranks have no weights here. */
static bool is_called(const cr_module *m, const cr_pass *p, const cri_routing *r, int64_t expert)
{
    const cr_dispatch *d = p->experts;

    if (d) return expert * d->num_ranks / r->num_experts == d->rank;
    return r->here[expert] > 0 || !m->model->skips_idle_experts;
}

/* Those that may run here. */
static cr_pass_group group_here(const cr_module *m, const cr_pass *p, const cri_routing *r)
{
    const cri_sparse *parts = m->impl;
    const cr_dispatch *d = p->experts;
    int64_t num = d ? r->num_experts / d->num_ranks : r->num_experts, first = d ? d->rank * num : 0;

    return (cr_pass_group){parts->list->children + first, r->here + first, num};
}

/* May the experts run together? The same in forward and backward of a pass. */
static bool is_one(const cr_pass *p, const cr_pass_group *g)
{
    const cr_module *first = g->experts[0];

    for (int64_t e = 0; e < g->num; e++) {
        const cr_module *expert = g->experts[e];
        if (expert->unit || expert->is_fp32 || expert->is_checkpointed) return false;
        for (size_t i = 0; i < expert->num_children; i++) {
            const cr_module *child = expert->children[i];
            if (child->unit || child->bias || child->is_fp32 ||
                child->has_trainable != first->children[i]->has_trainable)
                return false;
        }
    }
    return p->mlp_tiles <= 1;
}

/* The hooks of all of them: before or after; in backward the other way round. */
static cr_status call_hooks(const cr_module *m, cr_pass *p, const cr_pass_group *g,
                            cr_status (*hook)(const cr_module *m, cr_pass *p, cr_err *err),
                            cr_err *err)
{
    for (int64_t i = 0; i < g->num; i++) {
        int64_t e = p->phase == CR_BACKWARD ? g->num - 1 - i : i;
        if (cri_is_run(m->model, p, e)) CR_TRY(hook(g->experts[e], p, err));
    }
    return CR_OK;
}

static cr_status forward_group(const cr_module *m, cr_pass *p, const cr_pass_group *g, cr_mem *x,
                               cr_mem *y, cr_err *err)
{
    const cr_module *first = g->experts[0];

    CR_TRY(call_hooks(m, p, g, cri_enter, err));
    CR_TRY(first->ops->forward(first, p, x, NULL, y, err));
    return call_hooks(m, p, g, cri_leave, err);
}

/* x [here, cols] through their experts to y, which may be x; NULL: the result is not wanted. */
static cr_status run_experts(const cr_module *m, cr_pass *p, const cri_routing *r, cr_mem *x,
                             cr_mem *y, cr_err *err)
{
    const cri_sparse *parts = m->impl;
    cr_pass_group all = group_here(m, p, r), alone = {.num = 1};
    cr_pass part = *p;
    int64_t at = 0;

    CR_TRY(cri_enter(parts->list, p, err));
    if (is_one(p, &all)) {
        part.group = &all;
        part.num_rows = r->num_here;
        CR_TRY(forward_group(m, &part, &all, x, y, err));
        return cri_leave(parts->list, p, err);
    }
    part.group = &alone;
    for (int64_t e = 0; e < r->num_experts; e++) {
        part.num_rows = r->here[e];
        alone.experts = &parts->list->children[e];
        if (is_called(m, p, r, e))
            CR_TRY(cr_module_forward(parts->list->children[e], &part, row_at(p, r, x, at), NULL,
                                     row_at(p, r, y, at), err));
        at += part.num_rows;
    }
    return cri_leave(parts->list, p, err);
}

/* rows [slots, cols] become the outputs of their experts, which may be on other ranks. *kept: their
 * inputs here, for backward. */
static cr_status forward_expert_parallel(const cr_module *m, cr_pass *p, cri_routing *r,
                                         cr_mem *rows, bool is_wanted, cr_mem **kept, cr_err *err)
{
    cr_mem *y = NULL;

    CR_TRY(cri_exchange_counts(m, p, r, err));
    CR_TRY(cri_push(cri_keep(p), p, r->num_here, r->cols, kept, err));
    CR_TRY(cri_dispatch_rows(m, p, r, p->dtype, r->cols, rows, *kept, err));
    if (is_wanted) {
        y = *kept;
        if (p->tape) CR_TRY(cri_push(p->scratch, p, r->num_here, r->cols, &y, err));
    }
    CR_TRY(run_experts(m, p, r, *kept, y, err));
    return y ? cri_combine_rows(m, p, r, p->dtype, r->cols, y, rows, err) : CR_OK;
}

/* here: rows that came from other ranks, with a dispatch. */
typedef struct frame {
    cri_routing routing;
    cr_mem *here;
} frame;

static cr_status forward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                         cr_mem *out, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    cri_routing r = routing_of(m, p);
    cr_rows_combine_args combine;
    cr_mem *rows, *kept = NULL;

    CR_TRY(reserve(p, &r, err));
    CR_TRY(route(m, p, in, &r, err));
    CR_TRY(cri_push(p->scratch, p, r.num_slots, r.cols, &rows, err));
    CR_TRY(cr_rows_gather(
        p->dev, &(cr_rows_move_args){p->dtype, in, r.token, r.num_slots, r.cols, rows}, err));
    if (p->experts) {
        CR_TRY(forward_expert_parallel(m, p, &r, rows, out != NULL, &kept, err));
    } else {
        cri_count_here(p, &r);
        CR_TRY(run_experts(m, p, &r, rows, out ? rows : NULL, err));
    }
    combine = (cr_rows_combine_args){.x = rows,
                                     .add = add,
                                     .slot = r.slot,
                                     .weight = r.weight,
                                     .y = out,
                                     .dtype = p->dtype,
                                     .num_rows = r.num_tokens,
                                     .top_k = r.top_k,
                                     .num_cols = r.cols};
    if (out) CR_TRY(cr_rows_combine(p->dev, &combine, err));
    if (p->tape) cri_frame_push(m, p, &(frame){r, kept}, sizeof(frame));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* ---- backward ---- */

/* By slot or by expert here: rows in and their gradients, the weight of each and its gradient (NULL: not
 * wanted). */
typedef struct slots {
    cr_mem *in, *grad;            /* grad: of the output, then of the input */
    cr_mem *weight, *grad_weight; /* float32 */
} slots;

static cr_status backward_group(const cr_module *m, cr_pass *p, const cr_pass_group *g,
                                const slots *s, bool is_dx_wanted, cr_err *err)
{
    const cr_module *first = g->experts[0];
    const cr_expert_rows rows = {.weight = s->weight, .grad = s->grad_weight};

    p->expert_rows = &rows;
    CR_TRY(call_hooks(m, p, g, cri_enter, err));
    CR_TRY(first->ops->backward(first, p, s->in, s->grad, is_dx_wanted ? s->grad : NULL, err));
    return call_hooks(m, p, g, cri_leave, err);
}

static cr_status backward_experts(const cr_module *m, cr_pass *p, const cri_routing *r,
                                  const slots *s, bool is_dx_wanted, cr_err *err)
{
    const cri_sparse *parts = m->impl;
    cr_pass_group all = group_here(m, p, r), alone = {.num = 1};
    cr_pass part = *p;
    int64_t at = r->num_here;

    CR_TRY(cri_enter(parts->list, p, err));
    if (is_one(p, &all)) {
        part.group = &all;
        part.num_rows = r->num_here;
        CR_TRY(backward_group(m, &part, &all, s, is_dx_wanted, err));
        return cri_leave(parts->list, p, err);
    }
    part.group = &alone;
    for (int64_t e = r->num_experts - 1; e >= 0; e--) {
        const cr_module *expert = parts->list->children[e];
        cr_expert_rows rows;
        cr_mem *grad;
        part.num_rows = r->here[e];
        alone.experts = &parts->list->children[e];
        if (!is_called(m, p, r, e)) continue;
        at -= part.num_rows;
        grad = row_at(p, r, s->grad, at);
        rows = (cr_expert_rows){.weight = cr_at_const(CR_F32, s->weight, at),
                                .grad = s->grad_weight ? cr_at(CR_F32, s->grad_weight, at) : NULL};
        part.expert_rows = &rows;
        CR_TRY(cr_module_backward(expert, &part, row_at(p, r, s->in, at), grad,
                                  is_dx_wanted ? grad : NULL, err));
    }
    return cri_leave(parts->list, p, err);
}

/* The same through experts that may be on other ranks: s is by slot, and so are the gradients after it. */
static cr_status backward_expert_parallel(const cr_module *m, cr_pass *p, const cri_routing *r,
                                          const slots *s, bool is_dx_wanted, cr_err *err)
{
    size_t mark = cr_stack_mark(p->scratch);
    slots here = {.in = s->in};

    CR_TRY(cri_push(p->scratch, p, r->num_here, r->cols, &here.grad, err));
    CR_TRY(cri_push_numbers(p->scratch, r->num_here, &here.weight, err));
    if (s->grad_weight) CR_TRY(cri_push_numbers(p->scratch, r->num_here, &here.grad_weight, err));
    CR_TRY(cri_dispatch_rows(m, p, r, p->dtype, r->cols, s->grad, here.grad, err));
    CR_TRY(cri_dispatch_rows(m, p, r, CR_F32, 1, s->weight, here.weight, err));
    CR_TRY(backward_experts(m, p, r, &here, is_dx_wanted, err));
    if (is_dx_wanted) CR_TRY(cri_combine_rows(m, p, r, p->dtype, r->cols, here.grad, s->grad, err));
    if (s->grad_weight)
        CR_TRY(cri_combine_rows(m, p, r, CR_F32, 1, here.grad_weight, s->grad_weight, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

/* grad_in += that of the router's logits times its weight. */
static cr_status back_router(const cr_module *m, cr_pass *p, const cri_routing *r, const slots *s,
                             const cr_mem *in, cr_mem *grad_in, cr_err *err)
{
    const cri_sparse *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    cr_router_grad_args grad = {.fwd = router_args(m, p, r)};
    cr_mem *grad_weight, *of_prob;

    CR_TRY(grad_of_prob(p, r, &of_prob, err));
    grad.of_prob = of_prob;
    CR_TRY(cri_push_numbers(p->scratch, r->num_slots, &grad_weight, err));
    CR_TRY(cri_push(p->scratch, p, r->num_tokens, r->num_experts, &grad.dlogits, err));
    CR_TRY(cr_rows_gather(
        p->dev, &(cr_rows_move_args){CR_F32, s->grad_weight, r->slot, r->num_slots, 1, grad_weight},
        err));
    grad.grad_weight = grad_weight;
    CR_TRY(cr_router_grad(p->dev, &grad, err));
    CR_TRY(cri_linear_back(parts->gate, p, in, grad.dlogits, grad_in, CRI_DX_ADD, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

static cr_status gather_slots(const cr_module *m, cr_pass *p, const cri_routing *r,
                              const cr_mem *in, const cr_mem *grad_out, bool is_router_wanted,
                              slots *s, cr_err *err)
{
    const cri_sparse *parts = m->impl;

    *s = (slots){0};
    CR_TRY(cri_push_numbers(p->scratch, r->num_slots, &s->weight, err));
    CR_TRY(cr_rows_scatter(
        p->dev, &(cr_rows_move_args){CR_F32, r->weight, r->slot, r->num_slots, 1, s->weight}, err));
    if (is_router_wanted) CR_TRY(cri_push_numbers(p->scratch, r->num_slots, &s->grad_weight, err));
    CR_TRY(cri_push(p->scratch, p, r->num_slots, r->cols, &s->grad, err));
    CR_TRY(cr_rows_gather(
        p->dev, &(cr_rows_move_args){p->dtype, grad_out, r->token, r->num_slots, r->cols, s->grad},
        err));
    if (p->experts || !(parts->list->has_trainable || p->mlp_tiles > 1)) return CR_OK;
    CR_TRY(cri_push(p->scratch, p, r->num_slots, r->cols, &s->in, err));
    return cr_rows_gather(
        p->dev, &(cr_rows_move_args){p->dtype, in, r->token, r->num_slots, r->cols, s->in}, err);
}

static cr_status backward(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                          cr_mem *grad_in, cr_err *err)
{
    const cri_sparse *parts = m->impl;
    size_t mark = cr_stack_mark(p->scratch);
    bool is_router_wanted = grad_in || parts->gate->has_trainable;
    cr_rows_combine_args combine;
    frame kept;
    cri_routing r;
    slots s;

    cri_frame_pop(m, p, &kept, sizeof kept);
    r = kept.routing;
    CR_TRY(gather_slots(m, p, &r, in, grad_out, is_router_wanted, &s, err));
    if (p->experts) {
        s.in = kept.here;
        CR_TRY(backward_expert_parallel(m, p, &r, &s, grad_in != NULL, err));
    } else {
        CR_TRY(backward_experts(m, p, &r, &s, grad_in != NULL, err));
    }
    combine = (cr_rows_combine_args){.x = s.grad,
                                     .slot = r.slot,
                                     .y = grad_in,
                                     .dtype = p->dtype,
                                     .num_rows = r.num_tokens,
                                     .top_k = r.top_k,
                                     .num_cols = r.cols};
    if (grad_in) CR_TRY(cr_rows_combine(p->dev, &combine, err));
    if (is_router_wanted) CR_TRY(back_router(m, p, &r, &s, in, grad_in, err));
    cr_stack_release(p->scratch, mark);
    return CR_OK;
}

const cr_module_ops cri_sparse_ops = {forward, backward};
