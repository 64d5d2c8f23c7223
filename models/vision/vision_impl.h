/* vision_impl.h -- the vision tower inside models/vision/: which modules it computes, and the rows of a call.
 *
 * Its blocks are cri_layers (models_impl.h) with an attention and an MLP of their own: they run on patches
 * instead of tokens, in passes that the tower makes (the hooks, stacks and device of the caller's, another
 * batch, and float32 if the tower is_fp32). Norms are RMSNorm (a weight) or LayerNorm (a weight and a bias).
 */
#ifndef CR_VISION_IMPL_H
#define CR_VISION_IMPL_H

#include "kernels/vision.h"
#include "models/pass_impl.h"
#include "models/vision/vision.h"

/* impl of a block's attention. */
typedef struct cri_vision_attention {
    cr_module *qkv, *proj;
    int64_t num_heads;
    bool is_full; /* over frames, else over windows */
} cri_vision_attention;

/* impl of an MLP fc2(gelu(fc1 x)). */
typedef struct cri_gelu_mlp {
    cr_module *fc1, *fc2;
    cr_gelu_kind kind;
} cri_gelu_mlp;

extern const cr_module_ops cri_vision_attention_ops, cri_gelu_mlp_ops;

/* Backward of fc2(gelu(fc1 x)) from x and y = fc1 x; grad_in may be NULL. Temporaries stay on scratch. */
CR_MUST cr_status cri_gelu_back(const cr_module *fc1, const cr_module *fc2, cr_gelu_kind kind,
                                cr_pass *p, const cr_mem *x, const cr_mem *y,
                                const cr_mem *grad_out, cr_mem *grad_in, cr_err *err);

/* Four rows to one: fc2(gelu(fc1(.))), exact GELU. The norm runs over rows of its weight's length: before
 * the four become one (the merger), or after (those of deepstack). */
typedef struct cri_vision_merger {
    cr_module *module, *norm, *fc1, *fc2;
    cr_module *sequential; /* what holds fc1 and fc2, if it is not the module; else NULL */
} cri_vision_merger;

/* impl of the module "visual". Pointers are borrowed from the tree. */
typedef struct cri_vision {
    const cr_vision_config *config;
    cr_module *patch_embed, *patch_proj; /* the second is the Conv3d: a Linear on rows of pixels */
    cr_module *pos_embed;                /* NULL: no learned positions */
    cr_module *list, **blocks;           /* [depth] */
    cri_vision_merger merger;
    cr_module *deepstack_list;    /* NULL: none */
    cri_vision_merger *deepstack; /* [num_deepstack] */
} cri_vision;

/* build_vision.c: "visual" below parent, with its parts. */
cr_module *cri_vision_add(cr_module *parent, const cri_family *family);

/* ---- rows ---- */

/* What the grids of a call say of its rows: host arrays, made by its forward. Modules of the tower find it
 * in their pass. In the tower windows lie one after another. */
typedef struct cr_patches {
    int64_t num, num_merged; /* patches; a quarter of them */
    int32_t *order;          /* [merged] merged row j is number order[j] of the caller's; NULL: j */
    int32_t *frames, *windows; /* cu_seqlens of patches; windows: NULL if there are none */
    int64_t num_frames, num_windows;
    float *angles;        /* [patches, D / 2]; without any on the device nothing is rotated */
    int32_t *corner;      /* [patches, 4] rows of the table of positions, or NULL */
    float *corner_weight; /* [patches, 4] */
    /* the same for kernels, from forward to backward */
    struct {
        cr_mem *order, *angles, *corner, *corner_weight, *frames, *windows;
    } on_device;
    cr_seq_sizes frame_sizes, window_sizes;
} cr_patches;

/* r is zero or of an earlier call. CR_EARG: not a grid, or the number of patches is another. */
CR_MUST cr_status cri_patches_init(cr_patches *r, const cr_vision_config *c,
                                   const cr_vision_input *in, cr_err *err);
void cri_patches_fini(cr_patches *r);

/* ---- the tower ---- */

/* Rows of all items in order, [num_patches / 4, out_hidden_size] in the dtype of the pass: what takes the
 * place of placeholders, and one such array for each deepstack feature. `in` must be the same at backward.
 * Nothing is kept where nothing in the tower needs a gradient. */
CR_MUST cr_status cri_vision_forward(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                                     cr_mem *out, cr_mem *const *deepstack, cr_err *err);
/* From the gradients of those arrays; they end here. Call it in every pass with a backward, even if
 * nothing in the tower is trainable. */
CR_MUST cr_status cri_vision_backward(const cr_module *visual, cr_pass *p,
                                      const cr_vision_input *in, const cr_mem *grad_out,
                                      cr_mem *const *grad_deepstack, cr_err *err);

/* What the decoder calls: the two of a family. */
typedef struct cri_tower_ops {
    cr_status (*forward)(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                         cr_mem *out, cr_mem *const *deepstack, cr_err *err);
    cr_status (*backward)(const cr_module *visual, cr_pass *p, const cr_vision_input *in,
                          const cr_mem *grad_out, cr_mem *const *grad_deepstack, cr_err *err);
} cri_tower_ops;
extern const cri_tower_ops cri_qwen_tower_ops;

#endif
