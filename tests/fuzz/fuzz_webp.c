/* fuzz_webp.c -- arbitrary bytes as a WebP file, whose length is made right. */
#include "tests/fuzz/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy;

    if (size < 12) return 0;
    copy = with_magic(data, size, "RIFF", 4);
    memcpy(copy + 8, "WEBP", 4);
    for (int i = 0; i < 4; i++)
        copy[4 + i] = (uint8_t)((size - 8) >> 8 * i);
    try_image(copy, size, CR_IMAGE_WEBP);
    free(copy);
    return 0;
}
