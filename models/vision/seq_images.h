/* seq_images.h -- the images and videos of one sequence, as pixels, and whether they fit it.
 */
#ifndef CR_SEQ_IMAGES_H
#define CR_SEQ_IMAGES_H

#include "models/vision/vision.h"

/* In the order of the sequence's placeholders; borrowed. {0}: none. */
typedef struct cr_seq_images {
    const int32_t *grid; /* [num, 3] */
    size_t num;
    const float *pixels;          /* [patches of all, patch_dim] */
    size_t num_pixels;            /* numbers */
    const float *second_per_grid; /* [num] as in cr_vision_input; NULL: images only */
} cr_seq_images;

/* The tower's input, which borrows the same arrays. */
cr_vision_input cr_seq_images_input(const cr_model_config *config, const cr_seq_images *images);
/* Append second_per_grid, [num] whether they have it or not. */
void cr_seq_images_put_times(const cr_seq_images *images, cr_buf *to);
/* CR_EARG: the model takes no images, or these do not fit the sequence's placeholders, of which those after their own are text. */
CR_MUST cr_status cr_seq_images_check(const cr_model_config *config, const int32_t *ids,
                                      size_t num_ids, const cr_seq_images *images, cr_err *err);

#endif
