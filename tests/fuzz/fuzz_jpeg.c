/* fuzz_jpeg.c -- arbitrary bytes as a JPEG file. */
#include "tests/fuzz/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy;

    if (size < 3) return 0;
    copy = with_magic(data, size, "\xff\xd8\xff", 3);
    try_image(copy, size, CR_IMAGE_JPEG);
    free(copy);
    return 0;
}
