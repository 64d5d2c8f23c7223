/* seq_images.c -- see seq_images.h. */
#include "models/vision/seq_images.h"

typedef const int32_t grid_of_item[3];

/* Patches of a grid; 0: none can have it. */
static int64_t count_patches(const cr_model_config *c, const int32_t *g, bool is_video)
{
    int64_t merge = c->vision->merge, max_frames = is_video ? (1 << 15) - 1 : 1;
    bool is_sound = g[0] > 0 && g[0] <= max_frames && g[1] > 0 && g[2] > 0 && g[1] % merge == 0 &&
                    g[2] % merge == 0 && g[1] < 1 << 15 && g[2] < 1 << 15;

    return is_sound ? (int64_t)g[0] * g[1] * g[2] : 0;
}

cr_vision_input cr_seq_images_input(const cr_model_config *c, const cr_seq_images *images)
{
    return (cr_vision_input){.pixels = images->pixels,
                             .grid = (grid_of_item *)(uintptr_t)images->grid,
                             .second_per_grid = images->second_per_grid,
                             .num_items = (int64_t)images->num,
                             .num_patches = (int64_t)images->num_pixels / c->vision->patch_dim};
}

void cr_seq_images_put_times(const cr_seq_images *images, cr_buf *to)
{
    for (size_t i = 0; i < images->num; i++)
        cr_buf_add(to, images->second_per_grid ? &images->second_per_grid[i] : &(float){0},
                   sizeof(float));
}

cr_status cr_seq_images_check(const cr_model_config *c, const int32_t *ids, size_t num_ids,
                              const cr_seq_images *images, cr_err *err)
{
    const int32_t cu_seqlens[] = {0, (int32_t)num_ids}, items[] = {0, (int32_t)images->num};
    const cr_batch batch = {
        .ids = ids, .cu_seqlens = cu_seqlens, .num_tokens = (int64_t)num_ids, .num_seqs = 1};
    cr_vision_input input;
    int64_t num_patches = 0;

    if (!images->num) return CR_OK;
    if (!c->vision) return cr_fail(err, CR_EARG, "a %s has no images", c->model_type);
    for (size_t i = 0; i < images->num; i++) {
        const int32_t *g = images->grid + 3 * i;
        bool is_video = images->second_per_grid && images->second_per_grid[i] > 0;
        int64_t num = count_patches(c, g, is_video);
        if (!num)
            return cr_fail(err, CR_EARG, "%s %zu has a grid of %d x %d x %d patches",
                           is_video ? "video" : "image", i, g[0], g[1], g[2]);
        num_patches += num;
    }
    input = cr_seq_images_input(c, images);
    input.num_patches = num_patches;
    input.seq_items = items;
    CR_TRY(cr_vision_positions(c, &batch, &input, NULL, err));
    if ((int64_t)images->num_pixels == num_patches * c->vision->patch_dim) return CR_OK;
    return cr_fail(err, CR_EARG,
                   "the images have patches of %lld numbers, this model's have %lld (its processor "
                   "is another one's)",
                   (long long)((int64_t)images->num_pixels / num_patches),
                   (long long)c->vision->patch_dim);
}
