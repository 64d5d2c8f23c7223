/* cut.h -- the gradient of a tiny model, however model and batch are cut: shared by ulysses.c and
 * cut_matrix.c. Every rank of the world may call cut_run; those outside the cut do nothing. */
#ifndef CUT_H
#define CUT_H

#include "tests/mesh/cut_data.h"

typedef struct cut_loss {
    const cut *c;
    const cut_batch *x;
    cut_result *r;
    double total;
} cut_loss;

/* Cross entropy, a little entropy, and a weight that differs from row to row: a gradient that went
 * to another row would show. */
static cr_status cut_loss_fn(void *ctx, const float *log_prob, const float *entropy, size_t num,
                             float *grad_log_prob, float *grad_entropy, cr_err *e)
{
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

static cr_status cut_keep(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    cut_result *r = ctx;
    size_t old = r->num_grad * sizeof(float), bytes = (size_t)param->num_elems * sizeof(float);

    (void)e;
    r->grad = cr_realloc(r->grad, old, old + bytes);
    memcpy(r->grad + r->num_grad, grad, bytes);
    r->num_grad += (size_t)param->num_elems;
    return CR_OK;
}

/* Forward and backward over all sequences, dealt to the dp ranks in turn. */
static void cut_pass(const cut *c, cr_fsdp *f, cut_result *r)
{
    cr_group *dp = f->mesh->group[CR_AXIS_DP];
    int ranks = cr_group_num_ranks(dp), next = cr_group_rank(dp);
    int64_t mine = (NUM_SEQS - next + ranks - 1) / ranks, most;
    cut_batch *x = CR_NEW(cut_batch);
    cut_loss l = {c, x, r, 0};
    double norm;

    for (int s = 0; s < NUM_SEQS; s++)
        l.total += cut_num_labels(c, s);
    OK(cr_fsdp_agree_num(f, (mine + c->micro - 1) / c->micro, &most, &err));
    for (int64_t m = 0; m < most; m++) {
        x->b = (cr_batch){0};
        for (int k = 0; k < c->micro && next < NUM_SEQS; k++, next += ranks)
            cut_append(c, x, next);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, cut_loss_fn, &l, &err));
    }
    OK(cr_all_reduce_f64(dp, "loss", CR_OP_SUM, &r->loss, 1, &err));
    OK(cr_fsdp_visit_grads(f, cut_keep, r, &norm, &err));
}

/* first: world rank of the cut's first rank. */
static cut_result cut_run(const cut *c, int first)
{
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = c->dtype,
                         .reshard = c->reshard,
                         .should_recompute = c->is_recomputed,
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
    OK(cr_device_open("cpu", 1, &dev, &err));
    model = cut_model(c);
    OK(cr_mesh_shape_init(&shape, c->ranks, fsdp, c->ulysses, 1, 0, &err));
    OK(cr_mesh_create(world, "cut", ranks, &shape, &mesh, &err));
    OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
    cut_pass(c, f, &r);
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
