/* vision_impl.h -- the vision tower inside models/: which modules it computes. `impl` of the module
 * model->config.vision speaks of ("model.visual"). All pointers are borrowed from the tree.
 *
 * Norms are RMSNorm (a weight) or LayerNorm (a weight and a bias). */
#ifndef CR_VISION_IMPL_H
#define CR_VISION_IMPL_H

#include "models/models_impl.h"
#include "models/vision.h"

typedef struct cri_vision_block {
    cr_module *module, *norm1, *norm2;
    cr_module *attention, *qkv, *proj;
    cr_module *mlp;
    cr_module *gate, *up, *down; /* SwiGLU: Qwen2.5-VL; else NULL */
    cr_module *fc1, *fc2;        /* tanh GELU: Qwen3-VL; else NULL */
} cri_vision_block;

/* Four rows to one: fc2(gelu(fc1(.))), exact GELU. The norm runs over rows of its weight's length: before
 * the four become one (the merger), or after (those of deepstack). */
typedef struct cri_vision_merger {
    cr_module *module, *norm, *fc1, *fc2;
    cr_module *sequential; /* what holds fc1 and fc2, if it is not the module; else NULL */
} cri_vision_merger;

typedef struct cri_vision {
    const cr_vision_config *config;
    cr_module *patch_embed, *patch_proj; /* the second is the Conv3d: a Linear on rows of pixels */
    cr_module *pos_embed;                /* NULL: no learned positions */
    cr_module *list;                     /* of the blocks */
    cri_vision_block *blocks;            /* [depth] */
    cri_vision_merger merger;
    cr_module *deepstack_list;    /* NULL: none */
    cri_vision_merger *deepstack; /* [num_deepstack] */
} cri_vision;

/* build_vision.c: "visual" below parent, with its parts. */
cr_module *cri_vision_add(cr_module *parent, const cri_family *family);

#endif
