/* packed_images.c -- see packed_images.h. */
#include "strategies/packed_images.h"

typedef const int32_t grid[3];

void cr_packed_images_clear(cr_packed_images *p)
{
    cr_buf_clear(&p->grid);
    cr_buf_clear(&p->pixels);
    cr_buf_clear(&p->second_per_grid);
    cr_buf_clear(&p->seq_items);
    cr_buf_add(&p->seq_items, &(int32_t){0}, sizeof(int32_t));
}

void cr_packed_images_add(cr_packed_images *p, const cr_seq_images *images)
{
    cr_buf_add(&p->grid, images->grid, images->num * sizeof(grid));
    cr_buf_add(&p->pixels, images->pixels, images->num_pixels * sizeof(float));
    cr_seq_images_put_times(images, &p->second_per_grid);
}

void cr_packed_images_end_seq(cr_packed_images *p)
{
    cr_buf_add(&p->seq_items, &(int32_t){(int32_t)(p->grid.num_bytes / sizeof(grid))},
               sizeof(int32_t));
}

cr_status cr_packed_images_end(cr_packed_images *p, const cr_model_config *c, cr_batch *batch,
                               cr_err *err)
{
    if (!p->grid.num_bytes) return CR_OK;
    CR_CHECK(p->seq_items.num_bytes == (size_t)(batch->num_seqs + 1) * sizeof(int32_t),
             "images of %zu sequences of %lld", p->seq_items.num_bytes / sizeof(int32_t) - 1,
             (long long)batch->num_seqs);
    p->input = (cr_vision_input){
        .pixels = (const float *)(const void *)p->pixels.data,
        .grid = (grid *)(void *)p->grid.data,
        .second_per_grid = (const float *)(const void *)p->second_per_grid.data,
        .num_items = (int64_t)(p->grid.num_bytes / sizeof(grid)),
        .num_patches = (int64_t)(p->pixels.num_bytes / sizeof(float)) / c->vision->patch_dim,
        .seq_items = (const int32_t *)(const void *)p->seq_items.data};
    cr_free(p->mrope);
    p->mrope = c->rope_axis ? CR_NEW_ARRAY(int32_t, 3 * batch->num_tokens) : NULL;
    batch->vision = &p->input;
    batch->mrope = p->mrope;
    return cr_vision_positions(c, batch, &p->input, p->mrope, err);
}

void cr_packed_images_free(cr_packed_images *p)
{
    cr_buf_free(&p->grid);
    cr_buf_free(&p->pixels);
    cr_buf_free(&p->second_per_grid);
    cr_buf_free(&p->seq_items);
    cr_free(p->mrope);
    *p = (cr_packed_images){0};
}
