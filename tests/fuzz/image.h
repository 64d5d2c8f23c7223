/* image.h -- for the targets of images: bytes as an image of one type, upright pixels or a refusal that names the type. */
#ifndef CR_FUZZ_IMAGE_H
#define CR_FUZZ_IMAGE_H

#include "images/processor.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_image(const uint8_t *data, size_t size, cr_image_type type)
{
    const cr_image_processor p = {.patch_size = 3,
                                  .merge_size = 2,
                                  .temporal_patch_size = 2,
                                  .min_pixels = 40,
                                  .max_pixels = 400,
                                  .has_resize = true};
    const char *name = cr_image_type_name(type);
    cr_image_patches patches;
    cr_image image;
    cr_err err = {0};
    uint32_t sum = 0;

    if (cr_image_decode_alpha(data, size, 1 << 18, size % 2 ? CR_ALPHA_WHITE : CR_ALPHA_DROP,
                              &image, &err) != CR_OK) {
        CR_CHECK(strncmp(err.msg, name, strlen(name)) == 0, "%s", err.msg);
        return;
    }
    CR_CHECK(image.type == type && image.orientation >= 1 && image.orientation <= 8, "%s", name);
    for (size_t i = 0; i < (size_t)image.width * (size_t)image.height * 3; i++)
        sum += image.pixels[i];
    (void)sum;
    if (cr_image_cut(&p, &image, &patches, &err) == CR_OK) {
        CR_CHECK(patches.num_tokens * 4 == patches.num_patches, "%lld patches",
                 (long long)patches.num_patches);
        cr_image_patches_free(&patches);
    }
    cr_image_free(&image);
}

/* A copy that begins as the type does. */
static uint8_t *with_magic(const uint8_t *data, size_t size, const char *magic, size_t num)
{
    uint8_t *copy = malloc(size);

    memcpy(copy, data, size);
    memcpy(copy, magic, num);
    return copy;
}

#endif
