/* image_impl.h -- a decoder a type, and the orientation that their files may say. */
#ifndef CR_IMAGE_IMPL_H
#define CR_IMAGE_IMPL_H

#include "images/image.h"

/* A file in memory and what it says of itself. */
typedef struct cri_image_file {
    const uint8_t *data;
    size_t num_bytes;
    int64_t max_pixels;
    cr_image_alpha alpha;
    int exif, xmp; /* orientations, 1 to 8; 0: it says none */
} cri_image_file;

/* Sizes are those of the file; out->pixels is there after a failure, too, if it was allocated. */
CR_MUST cr_status cri_jpeg_decode(cri_image_file *file, cr_image *out, cr_err *err);
CR_MUST cr_status cri_png_decode(cri_image_file *file, cr_image *out, cr_err *err);
CR_MUST cr_status cri_webp_decode(cri_image_file *file, cr_image *out, cr_err *err);

/* Checks the size and allocates pixels. */
CR_MUST cr_status cri_image_reserve(const cri_image_file *file, int64_t width, int64_t height,
                                    cr_image *out, cr_err *err);

/* Pixels of RGBA, as many as out has, over white into out. */
void cri_image_blend(const uint8_t *rgba, cr_image *out);

/* orientation.c: a TIFF header with its first directory, perhaps with "Exif\0\0" before it; a packet of XMP. Kept if they say one. */
void cri_exif_read(cri_image_file *file, const uint8_t *data, size_t num_bytes);
void cri_xmp_read(cri_image_file *file, const uint8_t *data, size_t num_bytes);
/* Pixels, width and height from orientation `how` (2 to 8) to upright. */
void cri_image_turn(cr_image *image, int how);

#endif
