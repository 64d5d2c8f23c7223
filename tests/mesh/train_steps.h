/* train_steps.h -- the gradients of one step of a plan (see train.h). */
#ifndef TRAIN_STEPS_H
#define TRAIN_STEPS_H

#include "tests/mesh/train_data.h"

/* LAYER_THRICE: the first layer is called in the place of all. BRANCHES: sequences of even and of odd
 * number go through different layers (micro-batches are one sequence then). */
static void choose_layers(const plan *p, cr_model *model, cr_module *const *layers, int64_t seq)
{
    for (int i = 0; i < 3; i++)
        model->layers[i] = p->calls == ONCE           ? layers[i]
                           : p->calls == LAYER_THRICE ? layers[0]
                                                      : layers[i == 2 ? 2 : seq % 2];
}

static void cycle(cr_fsdp *f, unsigned states)
{
    size_t here = cr_device_get_stats(f->dev).bytes_now,
           there = cr_device_get_stats(f->host).bytes_now;

    OK(cr_fsdp_offload(f, states, &err));
    OK(cr_fsdp_offload(f, states, &err)); /* nothing is left to move */
    OK(cr_fsdp_load(f, states, &err));
    CR_CHECK(cr_device_get_stats(f->dev).bytes_now <= here && /* scratch is made again when used */
                 cr_device_get_stats(f->host).bytes_now == there,
             "%zu bytes of %zu on the device, %zu of %zu on the host",
             cr_device_get_stats(f->dev).bytes_now, here, cr_device_get_stats(f->host).bytes_now,
             there);
}

static void step_grads(const plan *p, cr_fsdp *f, int rank, int step, loss_ctx *l, result *r)
{
    batch *x = CR_NEW(batch);
    int64_t mine = 0, next = rank;
    cr_module *layers[3];

    memcpy(layers, f->model->layers, sizeof layers);
    for (int i = 0; i < p->num_seqs; i++) {
        x->b = (cr_batch){0};
        l->total += append(x, step, i);
    }
    for (int i = rank; i < p->num_seqs; i += p->ranks)
        mine++;
    OK(cr_fsdp_agree_num(f, (mine + p->micro - 1) / p->micro, &r->num_micro, &err));
    for (int64_t m = 0; m < r->num_micro; m++) {
        x->b = (cr_batch){0};
        choose_layers(p, f->model, layers, next);
        for (int k = 0; k < p->micro && next < p->num_seqs; k++, next += p->ranks)
            append(x, step, (int)next);
        if (p->is_cycled && m == 1) cycle(f, CR_STATE_MOMENTS);
        OK(cr_fsdp_backward(f, x->b.num_seqs ? &x->b : NULL, loss, l, &err));
        if (p->is_cycled) cycle(f, p->is_reduced_once ? 15 - CR_STATE_BUFFERS : CR_STATE_ALL);
        if (p->calls != ONCE) { /* a pass without gradient in between changes nothing */
            static float log_prob[MAX_SEQS * MAX_LEN], entropy[MAX_SEQS * MAX_LEN];
            OK(cr_fsdp_forward(f, x->b.num_seqs ? &x->b : NULL, &(cr_outputs){{log_prob, entropy}},
                               &err));
        }
    }
    memcpy(f->model->layers, layers, sizeof layers);
    cr_free(x);
}

static cr_status keep_grad(void *ctx, const cr_param *param, const float *grad, cr_err *e)
{
    result *r = ctx;
    size_t at = 0;

    (void)e;
    r->num_grad = 0;
    for (size_t i = 0; i < r->model->num_params; i++) {
        const cr_param *p = r->model->params[i];
        if (p == param) at = r->num_grad;
        r->num_grad += p->is_trainable ? (size_t)p->num_elems : 0;
    }
    if (!r->grad) r->grad = CR_NEW_ARRAY(float, r->num_grad);
    memcpy(r->grad + at, grad, (size_t)param->num_elems * sizeof(float));
    return CR_OK;
}

#endif
