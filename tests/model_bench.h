/* model_bench.h -- for tests: a model from the text of its config.json, and one on the device with random
 * weights, gradients, a tape and scratch. */
#ifndef CR_TEST_MODEL_BENCH_H
#define CR_TEST_MODEL_BENCH_H

#include "base/json.h"
#include "models/pass.h"
#include "models/weights.h"
#include "tests/memory.h"

#include <string.h>

/* The caller frees the model; NULL with an error. options NULL: none. */
static inline cr_status build_model_with(const char *text, const cr_model_options *options,
                                         cr_model **model, cr_err *err)
{
    json_t *json = NULL;

    *model = NULL;
    if (cr_json_parse(text, strlen(text), "config.json", &json, err) == CR_OK)
        cr_note(cr_model_build_with(json, NULL, options, model, err));
    json_decref(json);
    return err->status;
}

static inline cr_status build_model(const char *text, cr_model **model, cr_err *err)
{
    return build_model_with(text, NULL, model, err);
}

typedef struct model_bench {
    cr_device *dev;
    cr_model *model;
    cr_full_weights full;
    cr_stack *tape, *scratch;
    cr_pass_state *state;
} model_bench;

static inline cr_status model_bench_open_with(model_bench *b, const char *text,
                                              const cr_model_options *options, cr_dtype dtype,
                                              cr_err *err)
{
    *b = (model_bench){0};
    CR_TRY(build_model_with(text, options, &b->model, err));
    CR_TRY(cr_device_open(cr_device_default(), 1, &b->dev, err));
    CR_TRY(cr_full_weights_init(&b->full, b->model, b->dev, dtype, NULL, 11, err));
    CR_TRY(cr_full_weights_add_grads(&b->full, b->model, err));
    b->tape = cr_stack_create(b->dev);
    b->scratch = cr_stack_create(b->dev);
    b->state = cr_pass_state_create();
    return CR_OK;
}

static inline cr_status model_bench_open(model_bench *b, const char *text, cr_dtype dtype,
                                         cr_err *err)
{
    return model_bench_open_with(b, text, NULL, dtype, err);
}

/* A parameter's values, rounded to its dtype. */
static inline void model_bench_fill(const model_bench *b, const cr_param *p, const float *values)
{
    size_t num = (size_t)p->num_elems, num_bytes = num * cr_dtype_bytes(p->weight.dtype);
    void *narrow = cr_alloc(num_bytes);

    cr_cast_host(p->weight.dtype, narrow, CR_F32, values, num);
    refill(b->dev, p->weight.data, narrow, num_bytes);
    cr_free(narrow);
}

/* All gradients (weights) on the host, owned by the caller; those of a parameter are in_copy of full.grad (full.data). */
static inline float *model_bench_grads(const model_bench *b)
{
    return downloaded(b->dev, b->full.grad, b->full.grad_bytes);
}

static inline void *model_bench_weights(const model_bench *b)
{
    char *copy = cr_alloc(b->full.data_bytes); /* between parameters there is nothing to read */
    cr_err err = {0};

    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        CR_CHECK(cr_download(b->dev, in_copy(copy, b->full.data, p->weight.data), p->weight.data,
                             (size_t)p->num_elems * cr_dtype_bytes(p->weight.dtype), &err) == CR_OK,
                 "%s", err.msg);
    }
    return copy;
}

static inline void model_bench_close(model_bench *b)
{
    cr_stack_destroy(b->tape);
    cr_stack_destroy(b->scratch);
    cr_pass_state_destroy(b->state);
    cr_full_weights_fini(&b->full);
    cr_model_free(b->model);
    cr_device_close(b->dev);
}

#endif
