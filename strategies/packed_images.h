/* packed_images.h -- the images of the sequences of a packed batch together.
 *
 *     cr_packed_images_clear; for each sequence in its order cr_packed_images_add as often as it has images, cr_packed_images_end_seq;
 *     cr_packed_images_end
 */
#ifndef CR_PACKED_IMAGES_H
#define CR_PACKED_IMAGES_H

#include "models/vision/seq_images.h"

/* Those of a batch; memory is owned. */
typedef struct cr_packed_images {
    cr_vision_input input;
    cr_buf grid, pixels, second_per_grid, seq_items;
    int32_t *mrope; /* [3][tokens] */
} cr_packed_images;

void cr_packed_images_clear(cr_packed_images *p);
void cr_packed_images_add(cr_packed_images *p, const cr_seq_images *images);
/* Its further placeholders are text. */
void cr_packed_images_end_seq(cr_packed_images *p);
/* The batch has them, and positions along their axes; borrowed until p is cleared. Without images it stays as it is. */
CR_MUST cr_status cr_packed_images_end(cr_packed_images *p, const cr_model_config *config,
                                       cr_batch *batch, cr_err *err);
void cr_packed_images_free(cr_packed_images *p);

#endif
