/* engine_bench.h -- for tests: a random model on a device, and an engine that generates with it; several may be open. */
#ifndef CR_TEST_ENGINE_BENCH_H
#define CR_TEST_ENGINE_BENCH_H

#include "engine/engine.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"

typedef struct bench {
    cr_device *dev;
    cr_model *model;
    cr_full_weights full;
    cr_engine *engine;
} bench;

static inline void bench_must(cr_status status, const cr_err *err)
{
    if (status != CR_OK) fail_msg("%s", err->msg);
}

/* The model of a config, and its weights. */
static inline bench bench_load(const char *config, cr_dtype dtype, int threads)
{
    bench b = {0};
    cr_err err = {0};

    bench_must(build_model(config, &b.model, &err), &err);
    bench_must(cr_device_open(cr_device_default(), threads, &b.dev, &err), &err);
    bench_must(cr_full_weights_init(&b.full, b.model, b.dev, dtype, NULL, 11, &err), &err);
    return b;
}

static inline void bench_start(bench *b, const cr_engine_limits *limits)
{
    cr_err err = {0};

    bench_must(cr_engine_create(b->model, b->dev, limits, &b->engine, &err), &err);
    bench_must(cr_engine_set_weights(b->engine, &err), &err);
}

static inline void bench_close(bench *b)
{
    assert_int_equal(cr_engine_get_stats(b->engine).blocks_used, 0);
    cr_engine_destroy(b->engine);
    cr_full_weights_fini(&b->full);
    cr_model_free(b->model);
    cr_device_close(b->dev);
}

#endif
