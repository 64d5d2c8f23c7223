/* cut.h -- the gradient of a tiny model, however model and batch are cut: shared by ulysses.c and
 * cut_matrix.c. Every rank of the world may call cut_run; those outside the cut do nothing. */
#ifndef CUT_H
#define CUT_H

#include "actors/packing.h"
#include "tests/mesh/cut_data.h"

typedef struct cut_loss {
    const cut *c;
    const cut_batch *x;
    cut_result *r;
    double total;
} cut_loss;

/* Cross entropy, a little entropy, and a weight that differs from row to row: a gradient that went
 * to another row would show. */
static cr_status cut_loss_fn(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                             cr_err *e)
{
    const float *log_prob = out->of[CR_LOG_PROB];
    const float *entropy = out->of[CR_ENTROPY];
    float *grad_log_prob = grad->of[CR_LOG_PROB];
    float *grad_entropy = grad->of[CR_ENTROPY];
    cut_loss *l = ctx;
    size_t i = 0;

    (void)e;
    for (int64_t s = 0; s < l->x->b.num_seqs; s++) {
        int label = l->x->first_label[s];
        for (int32_t t = l->x->cu[s]; t < l->x->cu[s + 1]; t++) {
            double weight;
            if (l->x->labels[t] < 0) continue;
            weight = (1 + 0.5 * (label % 5)) / l->total;
            l->r->log_prob[label] = log_prob[i];
            l->r->entropy[label] = entropy[i];
            l->r->loss -= weight * ((double)log_prob[i] + 0.1 * (double)entropy[i]);
            grad_log_prob[i] = (float)-weight;
            grad_entropy[i] = (float)(-0.1 * weight);
            i++, label++;
        }
    }
    CR_CHECK(i == num, "%zu labels of %zu", i, num);
    return CR_OK;
}

static size_t cut_num_trained(const cr_param *param)
{
    return param->is_trainable ? (size_t)param->num_elems : 0;
}

/* Parameters come unit by unit; they are kept in the order of the model. */
static cr_status cut_keep(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    cut_result *r = ctx;
    size_t at = 0;

    (void)e;
    if (!r->grad) {
        for (size_t i = 0; i < r->model->num_params; i++)
            r->num_grad += cut_num_trained(r->model->params[i]);
        r->grad = CR_NEW_ARRAY(float, r->num_grad);
        for (size_t i = 0; i < r->num_grad; i++)
            r->grad[i] = NAN;
    }
    for (size_t i = 0; r->model->params[i] != param; i++)
        at += cut_num_trained(r->model->params[i]);
    memcpy(r->grad + at, grad, (size_t)param->num_elems * sizeof(float));
    return CR_OK;
}

/* Likewise with micro-batches by tokens. */
static void cut_pass_by_tokens(const cut *c, cr_fsdp *f, cut_loss *l, cut_batch *x)
{
    cr_group *dp = f->mesh->group[CR_AXIS_DP];
    size_t tokens[NUM_SEQS], micro[NUM_SEQS], num = 0;
    int seq[NUM_SEQS];
    int64_t max;

    for (int s = cr_group_rank(dp); s < NUM_SEQS; s += cr_group_num_ranks(dp)) {
        seq[num] = s;
        tokens[num++] = (size_t)cut_length(c, s);
    }
    OK(cr_fsdp_agree_num(f, (int64_t)cr_packing_cut(tokens, num, (size_t)c->budget, 0, micro), &max,
                         &err));
    cr_packing_cut(tokens, num, (size_t)c->budget, (size_t)max, micro);
    for (size_t m = 0; m < (size_t)max; m++) {
        x->b = (cr_batch){0};
        for (size_t k = 0; k < num; k++)
            if (micro[k] == m) cut_append(c, x, seq[k]);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, l->c->loss ? l->c->loss : cut_loss_fn,
                            l, &err));
    }
}

/* Forward and backward over all samples, distributed over the dp ranks in turn. */
static void cut_pass(const cut *c, cr_fsdp *f, cut_result *r)
{
    cr_group *dp = f->mesh->group[CR_AXIS_DP];
    int ranks = cr_group_num_ranks(dp), next = cr_group_rank(dp), pack = c->pack ? c->pack : 1,
        num = (NUM_SEQS + pack - 1) / pack;
    int64_t mine = (num - next + ranks - 1) / ranks, max;
    cut_batch *x = CR_NEW(cut_batch);
    cut_loss l = {c, x, r, 0};

    for (int s = 0; s < NUM_SEQS; s++)
        l.total += cut_num_labels(c, s);
    if (c->budget) cut_pass_by_tokens(c, f, &l, x);
    OK(cr_fsdp_agree_num(f, (mine + c->micro - 1) / c->micro, &max, &err));
    for (int64_t m = 0; m < max && !c->budget; m++) {
        x->b = (cr_batch){0};
        for (int k = 0; k < c->micro && next < num; k++, next += ranks)
            for (int s = next * pack; s < (next + 1) * pack && s < NUM_SEQS; s++)
                cut_append(c, x, s);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, c->loss ? c->loss : cut_loss_fn, &l,
                            &err));
    }
    cr_free(x);
    OK(cr_all_reduce_f64(dp, "loss", CR_OP_SUM, &r->loss, 1, &err));
    OK(cr_fsdp_visit_grads(f, cut_keep, r, &r->norm, &err));
}

/* first: world rank of the cut's first rank. */
static cut_result cut_run(const cut *c, int first)
{
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = c->dtype,
                         .reshard = c->reshard,
                         .should_recompute = c->is_recomputed,
                         .mlp_tiles = c->num_tiles,
                         .is_offloaded = c->is_offloaded,
                         .is_reduced_once = c->is_reduced_once,
                         .wrap = c->wrap,
                         .seed = 11};
    int ranks[64], fsdp = c->fsdp ? c->fsdp : c->ranks;
    cut_result r = {0};
    cr_mesh_shape shape;
    cr_device *dev;
    cr_model *model;
    cr_mesh *mesh;
    cr_fsdp *f;

    for (int i = 0; i < MAX_LABELS; i++)
        r.log_prob[i] = r.entropy[i] = NAN;
    if (me < first || me >= first + c->ranks) return r;
    for (int i = 0; i < c->ranks; i++)
        ranks[i] = first + i;
    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    model = cut_model(c);
    OK(cr_mesh_shape_init(&shape, c->ranks, fsdp, c->ulysses, c->ep > 1 ? c->ep : 1, c->efsdp,
                          &err));
    OK(cr_mesh_create(world, dev, "cut", ranks, &shape, &mesh, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    r.model = model;
    cut_pass(c, f, &r);
    r.model = NULL;
    r.stats = cr_fsdp_get_stats(f);
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    cr_device_close(dev);
    return r;
}

/* |a - b| / |b| */
static double cut_distance(const cut_result *a, const cut_result *b)
{
    double far = 0, size = 0;

    CR_CHECK(a->num_grad == b->num_grad && a->num_grad > 0, "%zu and %zu gradients", a->num_grad,
             b->num_grad);
    for (size_t i = 0; i < a->num_grad; i++) {
        far +=
            ((double)a->grad[i] - (double)b->grad[i]) * ((double)a->grad[i] - (double)b->grad[i]);
        size += (double)b->grad[i] * (double)b->grad[i];
    }
    return sqrt(far / size);
}

#endif
