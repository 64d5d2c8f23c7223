/* packed_images.c -- see packed_images.h. */
#include "strategies/packed_images.h"

typedef const int32_t grid[3];

/* Patches of a grid; 0: none can have it. */
static int64_t count_patches(const int32_t *g)
{
    bool is_sound = g[0] == 1 && g[1] > 0 && g[2] > 0 && g[1] % 2 == 0 && g[2] % 2 == 0 &&
                    g[1] < 1 << 15 && g[2] < 1 << 15;

    return is_sound ? (int64_t)g[1] * g[2] : 0;
}

static cr_status check_fit(const cr_model_config *c, const int32_t *ids, size_t num_ids,
                           size_t num_pixels, const cr_vision_input *input, cr_err *err)
{
    const int32_t cu_seqlens[] = {0, (int32_t)num_ids};
    const cr_batch batch = {
        .ids = ids, .cu_seqlens = cu_seqlens, .num_tokens = (int64_t)num_ids, .num_seqs = 1};

    CR_TRY(cr_vision_positions(c, &batch, input, NULL, err));
    if ((int64_t)num_pixels == input->num_patches * c->vision->patch_dim) return CR_OK;
    return cr_fail(err, CR_EARG,
                   "the images have patches of %lld numbers, this model's have %lld (its processor "
                   "is another one's)",
                   (long long)((int64_t)num_pixels / input->num_patches),
                   (long long)c->vision->patch_dim);
}

cr_status cr_seq_images_check(const cr_model_config *c, const int32_t *ids, size_t num_ids,
                              const cr_seq_images *images, cr_err *err)
{
    cr_packed_images one = {0};
    cr_status status = CR_OK;

    if (!images->num) return CR_OK;
    cr_packed_images_add(&one, images);
    one.input.grid = (grid *)(void *)one.grid.data;
    one.input.num_items = (int64_t)images->num;
    for (size_t i = 0; i < images->num && status == CR_OK; i++) {
        const int32_t *g = images->grid + 3 * i;
        int64_t num = count_patches(g);
        if (!num)
            status = cr_fail(err, CR_EARG, "image %zu has a grid of %d x %d x %d patches", i, g[0],
                             g[1], g[2]);
        one.input.num_patches += num;
    }
    if (status == CR_OK) status = check_fit(c, ids, num_ids, images->num_pixels, &one.input, err);
    cr_packed_images_free(&one);
    return status;
}

void cr_packed_images_clear(cr_packed_images *p)
{
    cr_buf_clear(&p->grid);
    cr_buf_clear(&p->pixels);
}

void cr_packed_images_add(cr_packed_images *p, const cr_seq_images *images)
{
    cr_buf_add(&p->grid, images->grid, images->num * sizeof(grid));
    cr_buf_add(&p->pixels, images->pixels, images->num_pixels * sizeof(float));
}

cr_status cr_packed_images_end(cr_packed_images *p, const cr_model_config *c, cr_batch *batch,
                               cr_err *err)
{
    if (!p->grid.num_bytes) return CR_OK;
    p->input = (cr_vision_input){.pixels = (const float *)(const void *)p->pixels.data,
                                 .grid = (grid *)(void *)p->grid.data,
                                 .num_items = (int64_t)(p->grid.num_bytes / sizeof(grid)),
                                 .num_patches = (int64_t)(p->pixels.num_bytes / sizeof(float)) /
                                                c->vision->patch_dim};
    cr_free(p->mrope);
    p->mrope = CR_NEW_ARRAY(int32_t, 3 * batch->num_tokens);
    batch->vision = &p->input;
    batch->mrope = p->mrope;
    return cr_vision_positions(c, batch, &p->input, p->mrope, err);
}

void cr_packed_images_free(cr_packed_images *p)
{
    cr_buf_free(&p->grid);
    cr_buf_free(&p->pixels);
    cr_free(p->mrope);
    *p = (cr_packed_images){0};
}
