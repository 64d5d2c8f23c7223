/* orientation.c -- which way up an image is: EXIF's tag, else XMP's, as Pillow reads them. */
#include "images/image_impl.h"

#include <string.h>

enum { TAG_ORIENTATION = 0x112, TYPE_BYTE = 1, TYPE_SHORT = 3, TYPE_LONG = 4, ENTRY_BYTES = 12 };

typedef struct tiff {
    const uint8_t *data;
    size_t num_bytes;
    bool is_big; /* endian */
} tiff;

/* num bytes as a number; 0 beyond the end. */
static uint32_t number(const tiff *t, size_t at, int num)
{
    uint32_t x = 0;

    if (at > t->num_bytes || t->num_bytes - at < (size_t)num) return 0;
    for (int i = 0; i < num; i++)
        x |= (uint32_t)t->data[at + (size_t)i] << 8 * (t->is_big ? num - 1 - i : i);
    return x;
}

static int kept(uint32_t value)
{
    return value >= 1 && value <= 8 ? (int)value : 0;
}

void cri_exif_read(cri_image_file *file, const uint8_t *data, size_t num_bytes)
{
    tiff t = {.data = data, .num_bytes = num_bytes};
    size_t at;

    if (num_bytes > 6 && memcmp(data, "Exif\0\0", 6) == 0) {
        t.data += 6;
        t.num_bytes -= 6;
    }
    if (file->exif || t.num_bytes < 8) return;
    t.is_big = memcmp(t.data, "MM\0*", 4) == 0;
    if (!t.is_big && memcmp(t.data, "II*\0", 4) != 0) return;
    at = number(&t, 4, 4);
    for (uint32_t i = 0, num = number(&t, at, 2); i < num; i++) {
        size_t entry = at + 2 + (size_t)i * ENTRY_BYTES;
        uint32_t type = number(&t, entry + 2, 2);
        if (entry > t.num_bytes) return;
        if (number(&t, entry, 2) != TAG_ORIENTATION) continue;
        if (number(&t, entry + 4, 4) == 1 &&
            (type == TYPE_BYTE || type == TYPE_SHORT || type == TYPE_LONG))
            file->exif = kept(number(&t, entry + 8,
                                     type == TYPE_BYTE    ? 1
                                     : type == TYPE_SHORT ? 2
                                                          : 4));
        return;
    }
}

void cri_xmp_read(cri_image_file *file, const uint8_t *data, size_t num_bytes)
{
    static const char name[] = "tiff:Orientation";
    const uint8_t *at = data, *end = data + num_bytes;
    size_t num = sizeof name - 1;

    while (!file->xmp && (at = memmem(at, (size_t)(end - at), name, num)) != NULL) {
        const char *rest = (const char *)(at += num);
        size_t skip = 0;
        if (end - at >= 2 && rest[0] == '>') skip = 1;
        if (end - at >= 3 && rest[0] == '=' && rest[1] == '"') skip = 2;
        if (skip && rest[skip] >= '0' && rest[skip] <= '9') {
            file->xmp = kept((uint32_t)(rest[skip] - '0'));
            return; /* the first one decides */
        }
    }
}

/* Where the pixel (x, y) of the upright image is in the file's. */
void cri_image_turn(cr_image *image, int how)
{
    bool is_swapped = how >= 5;
    int width = is_swapped ? image->height : image->width;
    int height = is_swapped ? image->width : image->height;
    uint8_t *pixels = cr_alloc((size_t)width * (size_t)height * 3);

    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int from_x = is_swapped ? y : x, from_y = is_swapped ? x : y;
            if (how == 2 || how == 3 || how == 7 || how == 8) from_x = image->width - 1 - from_x;
            if (how == 3 || how == 4 || how == 6 || how == 7) from_y = image->height - 1 - from_y;
            memcpy(pixels + ((size_t)y * (size_t)width + (size_t)x) * 3,
                   image->pixels + ((size_t)from_y * (size_t)image->width + (size_t)from_x) * 3, 3);
        }
    cr_free(image->pixels);
    image->pixels = pixels;
    image->width = width;
    image->height = height;
}
