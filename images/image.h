/* image.h -- JPEG, PNG and WebP files as pixels: what `load_image` of Transformers makes of them with Pillow.
 *
 * Pixels are RGB of 8 bits a channel, the image stands upright (EXIF or XMP orientation is applied), gray is three equal channels. Alpha is
 * dropped, and colours below it stay as they are stored, or the image is blended with white, as Pillow's alpha_composite does it
 * (a transparent colour is alpha, too; gray of 16 bits has none). 16 bit: of colours and of gray with alpha the high
 * byte; gray alone is clipped at 255, as Pillow does it. CMYK and YCCK are as Adobe stores them (inverted).
 *
 * Sizes are checked before memory is taken. A file that is cut off, damaged (also where Pillow would go on), of another type, or
 * an animation is refused with a sentence that names the type and the reason.
 *
 * Threads: any; nothing is shared.
 */
#ifndef CR_IMAGE_H
#define CR_IMAGE_H

#include "base/base.h"

/* Pillow warns of a bomb from here on: 268 MB of pixels. */
enum { CR_IMAGE_MAX_PIXELS = 89478485 };

typedef enum cr_image_type { CR_IMAGE_JPEG, CR_IMAGE_PNG, CR_IMAGE_WEBP } cr_image_type;

typedef enum cr_image_alpha { CR_ALPHA_DROP, CR_ALPHA_WHITE } cr_image_alpha;
/* "drop", "white". CR_EUSAGE: another name. */
CR_MUST cr_status cr_image_alpha_find(const char *name, cr_image_alpha *out, cr_err *err);

typedef struct cr_image {
    uint8_t *pixels; /* [height, width, 3]; owned */
    int width, height;
    cr_image_type type;
    int orientation; /* of the file, 1 to 8; it is applied */
} cr_image;

/* CR_EFORMAT: not an image that is read, damaged, or more than max_pixels (1 to CR_IMAGE_MAX_PIXELS). out is zero after a failure. */
CR_MUST cr_status cr_image_decode(const void *data, size_t num_bytes, int64_t max_pixels,
                                  cr_image *out, cr_err *err);
/* The same with its alpha treated so. */
CR_MUST cr_status cr_image_decode_alpha(const void *data, size_t num_bytes, int64_t max_pixels,
                                        cr_image_alpha alpha, cr_image *out, cr_err *err);
/* Append a WebP file of its pixels, for people to look at: exact if that takes at most 8 KiB (drawings do), else at quality 80. CR_EARG: a
 * side of more than 16,383. */
CR_MUST cr_status cr_image_write_webp(const cr_image *image, cr_buf *out, cr_err *err);
void cr_image_free(cr_image *image);
const char *cr_image_type_name(cr_image_type type);

#endif
