/* fuzz_png.c -- arbitrary bytes as a PNG file, whose check sums are made right so that what they protect is read. */
#include "tests/fuzz/image.h"

#include <zlib.h>

static void mend(uint8_t *data, size_t size)
{
    size_t at = 8;

    while (size - at >= 12) {
        size_t num = (size_t)data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3];
        uint32_t sum;
        if (num > size - at - 12) return;
        sum = (uint32_t)crc32(0, data + at + 4, (uInt)num + 4);
        for (int i = 0; i < 4; i++)
            data[at + 8 + num + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += 12 + num;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy;

    if (size < 8) return 0;
    copy = with_magic(data, size, "\x89PNG\r\n\x1a\n", 8);
    mend(copy, size);
    try_image(copy, size, CR_IMAGE_PNG);
    free(copy);
    return 0;
}
