/* cost.h -- what an image costs in training, counted in tokens of text.
 *
 * FLOPs of products and attention (multiply-add = 2) of the vision tower and the projector over an image, divided by those of all Linears
 * of the language model but the head over a token. Forward is one pass; backward is two more where weights train, one where gradients
 * only go through them (a frozen language model), none below the lowest trained weight (a frozen tower). Attention among tokens of text
 * is not in it: it depends on the sequence.
 */
#ifndef CR_COST_H
#define CR_COST_H

#include "models/models.h"

typedef struct cr_image_cost {
    double patch, merged; /* Linears of a patch, and of the token that merge^2 patches become */
    double frame_pair, window_pair; /* of patches that attend to each other, all blocks */
    int64_t merge, window;          /* of patches, along a side; window 0: none */
} cr_image_cost;

/* Of a model whose parameters say which of them train. A model without a tower: all 0. */
void cr_image_cost_of(const cr_model *model, cr_image_cost *out);
/* Tokens; grid: frames, rows and columns of patches. */
double cr_image_cost_tokens(const cr_image_cost *cost, const int32_t grid[3]);

#endif
