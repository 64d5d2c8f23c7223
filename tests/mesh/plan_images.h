/* plan_images.h -- an image in each sample of a batch (see plan_run.h). */
#ifndef CR_TESTS_PLAN_IMAGES_H
#define CR_TESTS_PLAN_IMAGES_H

#include "models/vision/vision.h"
#include "plan/plan.h"

#include <string.h>

enum { SAMPLES = 3 };

typedef struct trained_images {
    cr_vision_input vision;
    int32_t grid[SAMPLES][3];
    float *pixels; /* owned */
} trained_images;

static cr_plan_images images_of(const cr_model *model)
{
    int32_t side = (int32_t)model->config.vision->vit[0].side;

    return (cr_plan_images){1, {1, side, side}, (int64_t)side * side};
}

/* Placeholders after the first token of each sample, and pixels. */
static void add_images(trained_images *t, const cr_model *model, int32_t *ids, int length,
                       cr_batch *batch)
{
    const cr_plan_images one = images_of(model);
    int64_t num = SAMPLES * one.num_tokens;
    size_t num_pixels = (size_t)(num * model->config.vision->patch_dim);

    t->pixels = CR_NEW_ARRAY(float, num_pixels);
    for (size_t i = 0; i < num_pixels; i++)
        t->pixels[i] = (float)(i % 101) / 50 - 1;
    for (int s = 0; s < SAMPLES; s++) {
        memcpy(t->grid[s], one.grid, sizeof one.grid);
        for (int64_t k = 0; k < one.num_tokens; k++)
            ids[s * length + 1 + k] = model->config.vision->image_id;
    }
    t->vision = (cr_vision_input){.pixels = t->pixels,
                                  .grid = (const int32_t(*)[3])t->grid,
                                  .num_items = SAMPLES,
                                  .num_patches = num};
    batch->vision = &t->vision;
}

#endif
