/* packed_images.h -- images of sequences: whether they fit, and all of a packed batch together.
 *
 *     cr_packed_images_clear, cr_packed_images_add for each sequence in its order, cr_packed_images_end
 */
#ifndef CR_PACKED_IMAGES_H
#define CR_PACKED_IMAGES_H

#include "models/vision/vision.h"

/* Images of one sequence, in the order of its placeholders; borrowed. {0}: none. */
typedef struct cr_seq_images {
    const int32_t *grid; /* [num, 3] */
    size_t num;
    const float *pixels; /* [patches of all, patch_dim] */
    size_t num_pixels;   /* numbers */
} cr_seq_images;

/* Those of a batch; memory is owned. */
typedef struct cr_packed_images {
    cr_vision_input input;
    cr_buf grid, pixels;
    int32_t *mrope; /* [3][tokens] */
} cr_packed_images;

/* CR_EARG: the model takes no images, or these do not fit the sequence's placeholders. */
CR_MUST cr_status cr_seq_images_check(const cr_model_config *config, const int32_t *ids,
                                      size_t num_ids, const cr_seq_images *images, cr_err *err);

void cr_packed_images_clear(cr_packed_images *p);
void cr_packed_images_add(cr_packed_images *p, const cr_seq_images *images);
/* The batch has them, and positions along their axes; borrowed until p is cleared. Without images it stays as it is. */
CR_MUST cr_status cr_packed_images_end(cr_packed_images *p, const cr_model_config *config,
                                       cr_batch *batch, cr_err *err);
void cr_packed_images_free(cr_packed_images *p);

#endif
