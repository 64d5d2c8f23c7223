/* prismatic.h -- the vision backbone and the projector of a Prismatic model. Inside models/ only.
 *
 * One or two vision transformers, named as timm names them, over square images of one size. Their features are what the
 * last block but one gives, patches only and without the last norm; those of two lie side by side. The projector makes a row
 * of the language model's width of each patch.
 *
 * A row of pixels (cr_vision_input) is a patch of the first tower, [3][patch_size][patch_size], and then that of the second,
 * which has other sizes and another normalisation; patches of an image come row by row.
 */
#ifndef CR_MODELS_PRISMATIC_H
#define CR_MODELS_PRISMATIC_H

#include "models/vision/vision_impl.h"

/* A table of rows that is added to some tokens of each image. */
typedef struct cri_vit_table {
    cr_param *param;
    int64_t first,
        num; /* tokens of an image that have one, and row r of it is of token first + r */
} cri_vit_table;
enum { CRI_VIT_TABLES = 3 };

typedef struct cri_vit {
    const cr_vit_config *c;
    cr_module *module, *patch_embed, *patch_proj, *list, **blocks;
    cri_vit_table tables[CRI_VIT_TABLES]; /* class token, registers, positions */
    int num_tables;
} cri_vit;

/* impl of the module "vision_backbone". */
typedef struct cri_prismatic {
    cri_vit vit[CR_MAX_VITS];
    int num_vits, num_linears;
    cr_module *projector, *linears[3];
} cri_prismatic;

/* build_prismatic.c: "vision_backbone" and "projector", with the names of the port; what it names, model->towers. */
void cri_prismatic_add(cr_model *model, cri_root *root);

extern const cri_tower_ops cri_prismatic_ops;

#endif
