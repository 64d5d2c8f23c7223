/* golden_vision.h -- a case of vision_models.py or prismatic.py (tests/parity) and the ways to run it: log-probs of all rows, and the gradient of
 * every parameter, against the file's. Tests only; each file that includes it has its own copy.
 */
#ifndef CR_TESTS_GOLDEN_VISION_H
#define CR_TESTS_GOLDEN_VISION_H

#include "tests/golden_models.h"

#include <stdlib.h>

/* SLACK: what float32 may be off by: another order of sums errs by as much again, a few times. */
enum { MAX_TOKENS = 128, SLACK = 8 };

/* How a case is run. */
typedef struct way {
    cr_pass pass;
    const char *stage; /* NULL: all is trained */
    bool has_fp32_tower, is_idle;
} way;

/* model and its tower are the bench's from now on. */
static inline void open_bench(cr_model *model, cr_module *tower, const way *w, model_bench *b)
{
    cr_err err = {0};

    *b = (model_bench){.model = model};
    if (w->has_fp32_tower) cr_module_set_fp32(tower);
    if (w->stage) must(cr_model_freeze_stage(model, w->stage, &err), &err);
    must(cr_device_open(cr_device_default(), 1, &b->dev, &err), &err);
    must(cr_full_weights_init(&b->full, model, b->dev, w->pass.dtype, NULL, 11, &err), &err);
    must(cr_full_weights_add_grads(&b->full, model, &err), &err);
    b->tape = cr_stack_create(b->dev);
    b->scratch = cr_stack_create(b->dev);
    b->state = cr_pass_state_create();
    cr_model_mark_trainable(model);
    set_weights(b);
}

/* In 16 bits the median: a token that is routed to other experts is off by far more. */
static inline void check_log_probs(const json_t *c, const way *w, const float *log_prob)
{
    const json_t *want = json_object_get(c, "log_prob"), *entry;
    double own = json_number_value(json_object_get(c, "own_log_prob")),
           own_bf16 = json_number_value(json_object_get(c, "own_bf16")), off[MAX_TOKENS];
    size_t at, num = json_array_size(want);

    json_array_foreach(want, at, entry)
    {
        off[at] = fabs(log_prob[at] - json_number_value(entry));
        if (w->pass.dtype == CR_F32)
            check_near(log_prob[at], json_number_value(entry), allowed_error(SLACK * own));
    }
    qsort(off, num, sizeof *off, cr_by_double);
    if (!(off[num / 2] <= 2 * own_bf16))
        fail_msg("off by %g, PyTorch in bfloat16 by %g", off[num / 2], own_bf16);
}

/* A forward and a backward of the batch; closes the bench. */
static inline void check_bench(const json_t *c, const way *w, model_bench *b, const cr_batch *batch)
{
    size_t num = json_array_size(json_object_get(c, "log_prob"));
    double own_grad = json_number_value(json_object_get(c, "own_grad"));
    float log_prob[MAX_TOKENS], grad[MAX_TOKENS], *grads;
    cr_outputs out = {{log_prob, NULL}};
    cr_pass pass = w->pass;
    cr_err err = {0};

    pass.state = b->state;
    pass.dev = b->dev;
    pass.tape = b->tape;
    pass.scratch = b->scratch;
    pass.batch = batch;
    must(cr_model_forward(b->model, &pass, &out, &err), &err);
    check_log_probs(c, w, log_prob);
    for (size_t i = 0; i < num; i++)
        grad[i] = (float)noise("grad", "", (int64_t)i);
    must(cr_model_backward(b->model, &pass, &(cr_outputs){{grad, NULL}}, &err), &err);
    grads = model_bench_grads(b);
    for (size_t i = 0; i < b->model->num_params && w->pass.dtype == CR_F32; i++) {
        const cr_param *p = b->model->params[i];
        if (p->is_trainable)
            check_grad(p, in_copy(grads, b->full.grad, p->grad),
                       json_object_get(json_object_get(c, "grad"), p->name),
                       allowed_error(SLACK * own_grad));
        else
            assert_null(p->grad);
    }
    assert_int_equal(cr_stack_mark(b->tape) + cr_stack_mark(b->scratch), 0);
    cr_free(grads);
    model_bench_close(b);
}

#endif
