/* small_engine.h -- for tests: a small random Qwen3 on the cpu, and the engine that generates with it. */
#ifndef CR_TEST_SMALL_ENGINE_H
#define CR_TEST_SMALL_ENGINE_H

#include "engine/engine.h"
#include "models/weights.h"
#include "tests/model_bench.h"

static cr_device *dev;
static cr_model *model;
static cr_full_weights full;
static cr_engine *engine;

static inline void must(cr_status status, const cr_err *err)
{
    CR_CHECK(status == CR_OK, "%s", err->msg);
}

static inline void small_model_open(const char *config)
{
    cr_err err = {0};

    must(build_model(config, &model, &err), &err);
    must(cr_device_open(cr_device_default(), 1, &dev, &err), &err);
    must(cr_full_weights_init(&full, model, dev, CR_F32, NULL, 11, &err), &err);
}

/* In place of the one before. */
static inline void small_engine_open(const cr_engine_limits *limits)
{
    cr_err err = {0};

    cr_engine_destroy(engine);
    must(cr_engine_create(model, dev, limits, &engine, &err), &err);
    must(cr_engine_set_weights(engine, &err), &err);
}

static inline void small_engine_close(void)
{
    cr_engine_destroy(engine);
    cr_full_weights_fini(&full);
    cr_model_free(model);
    cr_device_close(dev);
}

#endif
