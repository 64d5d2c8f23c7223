/* vision.h -- images and videos of a batch, as the vision tower of a vision-language model takes them:
 * patches are cut and ordered already.
 *
 * An item is an image or a video; its grid says how many frames (t) of how many rows (h) and columns
 * (w) of patches it has, h and w even. A patch is a row of pixels, in_channels x temporal_patch_size x
 * patch_size x patch_size of them, and the patches of a frame come in blocks of 2 x 2: four rows in a
 * row are one token of the language model.
 *
 * Prismatic: an item is an image, (1, side, side), and a patch a token; patches come row by row, each with the pixels
 * [3][patch_size][patch_size] of the first tower and then those of the second (config.vision->vit). A sequence has one image or
 * none, and its placeholders after the first token; positions have one axis (batch.mrope NULL).
 *
 * Ownership: the arrays belong to the caller and live as long as the pass. Threads: those of the pass.
 */
#ifndef CR_VISION_H
#define CR_VISION_H

#include "models/pass.h"

typedef struct cr_vision_input {
    const float *pixels;          /* [num_patches, patch_dim] */
    const int32_t (*grid)[3];     /* (t, h, w) of each item, in the order of placeholders */
    const bool *is_video;         /* [num_items]; NULL: images only */
    const float *second_per_grid; /* [num_items] of videos; NULL: 1 */
    int64_t num_items, num_patches;
    bool is_idle; /* the tower runs because it runs on other ranks: no token takes what it gives */
} cr_vision_input;

/* A black image that is idle; the model owns it. NULL: the model has no vision tower. */
const cr_vision_input *cr_vision_idle(const cr_model *model);

/* Position ids of the axes t, h and w for a batch's `mrope`: [3][num_tokens], as get_rope_index of
 * Transformers 4.x gives them to each sequence (a video's temporal ids are truncated products, not
 * products of truncated factors). Reads ids and cu_seqlens of the batch; vision NULL: text only. CR_EARG
 * says which placeholders and which item do not fit. */
CR_MUST cr_status cr_vision_positions(const cr_model_config *config, const cr_batch *batch,
                                      const cr_vision_input *vision, int32_t *mrope, cr_err *err);

/* Placeholders of an image of Prismatic; 0: they depend on its size, or there are no images. */
int64_t cr_vision_image_tokens(const cr_model_config *config);
/* Puts them after the first of num ids (at least one): arrays of num + cr_vision_image_tokens elements. labels may be NULL: what the
 * rows of cr_batch give; the first id's goes to the last placeholder, and what comes before has none. */
void cr_vision_insert_image(const cr_model_config *config, const int32_t *ids,
                            const int32_t *labels, int64_t num, int32_t *out_ids,
                            int32_t *out_labels);

#endif
