/* prompt_images.c -- see prompt_images.h. */
#include "engine/prompt_images.h"

#include <string.h>

enum { ALIGN = 8 };

static void reserve(cr_prompt_images *out, size_t num, size_t num_pixels)
{
    out->grid = CR_NEW_ARRAY(int32_t, 3 * num);
    out->digest = cr_alloc(num * sizeof *out->digest);
    out->pixels = CR_NEW_ARRAY(float, num_pixels);
    out->second_per_grid = CR_NEW_ARRAY(float, num);
    out->seq = (cr_seq_images){out->grid, num, out->pixels, num_pixels, out->second_per_grid};
}

void cr_prompt_images_make(const cr_image_item *items, size_t num, cr_prompt_images *out)
{
    size_t num_pixels = 0;

    *out = (cr_prompt_images){0};
    if (!num) return;
    for (size_t i = 0; i < num; i++)
        num_pixels += (size_t)(items[i].patches.num_patches * items[i].patches.patch_dim);
    reserve(out, num, num_pixels);
    num_pixels = 0;
    for (size_t i = 0; i < num; i++) {
        const cr_image_patches *p = &items[i].patches;
        size_t n = (size_t)(p->num_patches * p->patch_dim);
        memcpy(out->grid + 3 * i, p->grid, sizeof p->grid);
        out->second_per_grid[i] = p->second_per_grid;
        memcpy(out->digest[i], items[i].digest, sizeof *out->digest);
        memcpy(out->pixels + num_pixels, p->values, n * sizeof(float));
        num_pixels += n;
    }
}

void cr_prompt_images_put(const cr_prompt_images *images, cr_buf *to)
{
    const uint64_t sizes[2] = {images->seq.num, images->seq.num_pixels};
    const char zeros[ALIGN] = {0};
    size_t start = to->num_bytes;

    cr_buf_add(to, sizes, sizeof sizes);
    cr_buf_add(to, images->grid, images->seq.num * 3 * sizeof *images->grid);
    cr_buf_add(to, images->second_per_grid, images->seq.num * sizeof(float));
    cr_buf_add(to, images->digest, images->seq.num * sizeof *images->digest);
    cr_buf_add(to, images->pixels, images->seq.num_pixels * sizeof *images->pixels);
    cr_buf_add(to, zeros, (ALIGN - (to->num_bytes - start) % ALIGN) % ALIGN);
}

static const char *copy(void *to, const char *from, size_t num_bytes)
{
    memcpy(to, from, num_bytes);
    return from + num_bytes;
}

size_t cr_prompt_images_get(const char *data, cr_prompt_images *out)
{
    const char *at = data + 2 * sizeof(uint64_t);
    uint64_t sizes[2];

    *out = (cr_prompt_images){0};
    memcpy(sizes, data, sizeof sizes);
    if (sizes[0]) {
        reserve(out, sizes[0], sizes[1]);
        at = copy(out->grid, at, sizes[0] * 3 * sizeof *out->grid);
        at = copy(out->second_per_grid, at, sizes[0] * sizeof(float));
        at = copy(out->digest, at, sizes[0] * sizeof *out->digest);
        at = copy(out->pixels, at, sizes[1] * sizeof *out->pixels);
    }
    return ((size_t)(at - data) + ALIGN - 1) / ALIGN * ALIGN;
}

void cr_prompt_images_copy(const cr_prompt_images *images, cr_prompt_images *out)
{
    *out = (cr_prompt_images){0};
    reserve(out, images->seq.num, images->seq.num_pixels);
    memcpy(out->grid, images->grid, images->seq.num * 3 * sizeof *out->grid);
    memcpy(out->second_per_grid, images->second_per_grid, images->seq.num * sizeof(float));
    memcpy(out->digest, images->digest, images->seq.num * sizeof *out->digest);
    memcpy(out->pixels, images->pixels, images->seq.num_pixels * sizeof *out->pixels);
}

void cr_prompt_images_free(cr_prompt_images *images)
{
    cr_free(images->grid);
    cr_free(images->pixels);
    cr_free(images->second_per_grid);
    cr_free(images->digest);
    *images = (cr_prompt_images){0};
}
