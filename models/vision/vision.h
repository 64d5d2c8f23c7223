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
    const float *second_per_grid; /* [num_items] 0: an image; of a video, the time from one frame of
                                     its grid to the next, above 0. NULL: images only */
    const int32_t *
        seq_items; /* [num_seqs + 1] first item of each sequence, whose placeholders after those of its items are
                                 text (they were sampled); NULL: all placeholders are of items */
    int64_t num_items, num_patches;
    bool is_idle; /* the tower runs because it runs on other ranks: no token takes what it gives */
} cr_vision_input;

/* What the tower gives, computed before the passes whose tokens take it (generation): rows of the merger, then those
 * of each deepstack feature, [num_tokens, hidden_size] in the dtype of passes. */
typedef struct cr_vision_features {
    cr_mem *rows[1 + CR_MAX_DEEPSTACK];
    int64_t num_tokens;
} cr_vision_features;
/* Bytes of one of its arrays, and how many there are. */
size_t cr_vision_feature_bytes(const cr_model *model, cr_dtype dtype, int64_t num_tokens);
int64_t cr_vision_num_features(const cr_model *model);
/* Fills them: num_tokens is that of `in`. The pass has no batch and no tape. */
CR_MUST cr_status cr_vision_compute(const cr_model *model, cr_pass *p, const cr_vision_input *in,
                                    const cr_vision_features *out, cr_err *err);
/* Tokens of a batch that follow each other and take rows of features that do, too. */
typedef struct cr_vision_run {
    const cr_vision_features *of;
    int64_t from, first_token, num_tokens; /* from: the first one's row */
} cr_vision_run;

/* Tokens of the language model that an item of this grid becomes. */
int64_t cr_vision_item_tokens(const cr_model_config *config, const int32_t grid[3]);

/* A black image that is idle; the model owns it. NULL: the model has no vision tower. */
const cr_vision_input *cr_vision_idle(const cr_model *model);

/* Position ids of the axes t, h and w for a batch's `mrope`: [3][num_tokens], as get_rope_index of
 * Transformers 4.x gives them to each sequence (a video's temporal ids are truncated products, not
 * products of truncated factors). Reads ids and cu_seqlens of the batch; vision NULL: text only. CR_EARG
 * says which placeholders and which item do not fit. */
CR_MUST cr_status cr_vision_positions(const cr_model_config *config, const cr_batch *batch,
                                      const cr_vision_input *vision, int32_t *mrope, cr_err *err);

#endif
