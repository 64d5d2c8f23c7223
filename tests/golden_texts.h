/* golden_texts.h -- cases of text_models.py and lora.py (tests/parity): two packed sequences through a model from the case's
 * config.json, outputs and gradients against the file's. Tests only; each file that includes it has its own copy.
 */
#ifndef CR_TESTS_GOLDEN_TEXTS_H
#define CR_TESTS_GOLDEN_TEXTS_H

#include "tests/golden_models.h"

#include <stdlib.h>

/* What float32 may be off by: another order of sums errs by as much again, a few times. */
enum { MAX_TOKENS = 64, SLACK = 8 };

typedef struct inputs {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu[3];
    cr_batch batch;
} inputs;

/* words of vision_models.py: sequences of 9 and 14 tokens. */
static inline void make_inputs(inputs *in)
{
    static const int lengths[] = {9, 14};
    int32_t at = 0;

    *in = (inputs){0};
    for (int s = 0; s < 2; s++) {
        char name[24];
        snprintf(name, sizeof name, "ids plain %d", s);
        for (int t = 0; t < lengths[s]; t++, at++) {
            in->ids[at] = (int32_t)((noise(name, "", t) + 1) * 45) % 90;
            in->positions[at] = t;
            in->labels[at] = -1;
            if (t > 0) in->labels[at - 1] = in->ids[at];
        }
        in->cu[s + 1] = at;
    }
    in->batch = (cr_batch){.ids = in->ids,
                           .positions = in->positions,
                           .labels = in->labels,
                           .cu_seqlens = in->cu,
                           .num_tokens = at,
                           .num_seqs = 2};
}

static inline json_t *find_case(const json_t *all, const char *name)
{
    json_t *c;
    size_t at;

    json_array_foreach(
        all, at, c) if (strcmp(json_string_value(json_object_get(c, "name")), name) == 0) return c;
    fail_msg("no case %s", name);
    return NULL;
}

static inline void open_bench(const json_t *c, const cr_model_options *options, cr_dtype dtype,
                              model_bench *b)
{
    char *text = json_dumps(json_object_get(c, "config"), JSON_COMPACT);
    cr_err err = {0};

    must(model_bench_open_with(b, text, options, dtype, &err), &err);
    free(text);
    set_weights(b);
}

static inline cr_pass pass_of(const model_bench *b, const inputs *in, const cr_pass *like)
{
    cr_pass pass = *like;

    pass.state = b->state;
    pass.dev = b->dev;
    pass.tape = b->tape;
    pass.scratch = b->scratch;
    pass.batch = &in->batch;
    return pass;
}

static inline void check_grads(const json_t *c, const model_bench *b)
{
    double own = json_number_value(json_object_get(c, "own_grad")),
           allowed = allowed_error(fmin(SLACK * own, 1e-5));
    float *grads = model_bench_grads(b);

    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        if (p->is_trainable)
            check_grad(p, in_copy(grads, b->full.grad, p->grad),
                       json_object_get(json_object_get(c, "grad"), p->name), allowed);
    }
    cr_free(grads);
}

static inline void check_case(const json_t *c, const cr_model_options *options, cr_output kind,
                              const cr_pass *like)
{
    const json_t *want = json_object_get(c, "out");
    double own = json_number_value(json_object_get(c, "own"));
    float out[MAX_TOKENS], grad[MAX_TOKENS];
    cr_outputs outputs = {0}, grads = {0};
    cr_err err = {0};
    model_bench b;
    cr_pass pass;
    inputs in;

    outputs.of[kind] = out;
    grads.of[kind] = grad;
    open_bench(c, options, like->dtype, &b);
    make_inputs(&in);
    pass = pass_of(&b, &in, like);
    must(cr_model_forward(b.model, &pass, &outputs, &err), &err);
    for (size_t t = 0; t < json_array_size(want); t++) {
        check_near(out[t], json_number_value(json_array_get(want, t)), allowed_error(SLACK * own));
        grad[t] = (float)noise("grad", "", (int64_t)t);
    }
    must(cr_model_backward(b.model, &pass, &grads, &err), &err);
    check_grads(c, &b);
    assert_int_equal(cr_stack_mark(b.tape) + cr_stack_mark(b.scratch), 0);
    model_bench_close(&b);
}

static inline json_t *read_cases(const char *path)
{
    json_t *all = NULL;
    cr_err err = {0};

    must(cr_json_read_file(path, &all, &err), &err);
    return all;
}

#endif
