/* prompt_images.h -- the images and videos of a prompt as an engine takes them: their values, and what each was made from.
 *
 * Values are large, so they change their owner.
 */
#ifndef CR_PROMPT_IMAGES_H
#define CR_PROMPT_IMAGES_H

#include "images/reader.h"
#include "models/vision/seq_images.h"

/* Memory is owned. {0}: none. */
typedef struct cr_prompt_images {
    cr_seq_images seq; /* of the three arrays below */
    int32_t *grid;
    float *pixels, *second_per_grid;
    char (*digest)[CR_DIGEST_TEXT]; /* [seq.num] of what they were made from */
} cr_prompt_images;

/* From items with values. */
void cr_prompt_images_make(const cr_image_item *items, size_t num, cr_prompt_images *out);
/* Between processes: a multiple of 8 bytes is appended; a copy is taken from those, and their number returned. */
void cr_prompt_images_put(const cr_prompt_images *images, cr_buf *to);
size_t cr_prompt_images_get(const char *data, cr_prompt_images *out);
void cr_prompt_images_copy(const cr_prompt_images *images, cr_prompt_images *out);
void cr_prompt_images_free(cr_prompt_images *images);

#endif
