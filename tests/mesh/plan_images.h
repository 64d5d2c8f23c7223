/* plan_images.h -- an image in each sample of a batch (see plan_run.h). */
#ifndef CR_TESTS_PLAN_IMAGES_H
#define CR_TESTS_PLAN_IMAGES_H

#include "models/vision/vision.h"
#include "plan/plan.h"

#include <string.h>

typedef struct trained_images {
    cr_vision_input vision;
    int32_t (*grid)[3]; /* owned, as pixels */
    float *pixels;
} trained_images;

static cr_plan_images images_of(const cr_model *model)
{
    int32_t side = (int32_t)model->config.vision->vit[0].side;

    return (cr_plan_images){1, {1, side, side}, (int64_t)side * side};
}

/* Placeholders after the first token of each sequence of ids, the batch's, and pixels. */
static void add_images(trained_images *t, const cr_model *model, int32_t *ids, cr_batch *batch)
{
    const cr_plan_images one = images_of(model);
    int64_t num = batch->num_seqs * one.num_tokens;
    size_t num_pixels = (size_t)(num * model->config.vision->patch_dim);

    t->grid = cr_alloc((size_t)batch->num_seqs * sizeof *t->grid);
    t->pixels = CR_NEW_ARRAY(float, num_pixels);
    for (size_t i = 0; i < num_pixels; i++)
        t->pixels[i] = (float)(i % 101) / 50 - 1;
    for (int64_t s = 0; s < batch->num_seqs; s++) {
        memcpy(t->grid[s], one.grid, sizeof one.grid);
        for (int64_t k = 0; k < one.num_tokens; k++)
            ids[batch->cu_seqlens[s] + 1 + k] = model->config.vision->image_id;
    }
    t->vision = (cr_vision_input){.pixels = t->pixels,
                                  .grid = (const int32_t(*)[3])t->grid,
                                  .num_items = batch->num_seqs,
                                  .num_patches = num};
    batch->vision = &t->vision;
}

static void free_images(trained_images *t)
{
    cr_free(t->grid);
    cr_free(t->pixels);
    *t = (trained_images){.pixels = NULL};
}

#endif
