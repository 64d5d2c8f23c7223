/* model_bench.h -- for tests: a model from the text of its config.json, and one on the cpu with random
 * weights, gradients, a tape and scratch. */
#ifndef CR_TEST_MODEL_BENCH_H
#define CR_TEST_MODEL_BENCH_H

#include "base/json.h"
#include "models/pass.h"
#include "models/weights.h"

#include <string.h>

/* The caller frees the model; NULL with an error. */
static inline cr_status build_model(const char *text, cr_model **model, cr_err *err)
{
    json_t *json = NULL;

    *model = NULL;
    if (cr_json_parse(text, strlen(text), "config.json", &json, err) == CR_OK)
        cr_note(cr_model_build(json, NULL, model, err));
    json_decref(json);
    return err->status;
}

typedef struct model_bench {
    cr_device *dev;
    cr_model *model;
    cr_full_weights full;
    cr_stack *tape, *scratch;
    cr_pass_state *state;
} model_bench;

static inline cr_status model_bench_open(model_bench *b, const char *text, cr_dtype dtype,
                                         cr_err *err)
{
    *b = (model_bench){0};
    CR_TRY(build_model(text, &b->model, err));
    CR_TRY(cr_device_open(cr_device_default(), 1, &b->dev, err));
    CR_TRY(cr_full_weights_init(&b->full, b->model, b->dev, dtype, NULL, 11, err));
    CR_TRY(cr_full_weights_add_grads(&b->full, b->model, err));
    b->tape = cr_stack_create(b->dev);
    b->scratch = cr_stack_create(b->dev);
    b->state = cr_pass_state_create();
    return CR_OK;
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
