/* models_impl.h -- shared inside models/: memory of a tree, frames of the pass under way, and the
 * modules' own structs. */
#ifndef CR_MODELS_IMPL_H
#define CR_MODELS_IMPL_H

#include "kernels/attention.h"
#include "kernels/experts.h"
#include "models/config_impl.h"
#include "models/dispatch.h"
#include "models/models.h"

/* What one module's forward left for its backward. Frames are a stack like the tape: pushed at the
 * end of a forward, popped at the start of the backward. They live on the host because the tape
 * may be memory of a device. */
typedef struct cri_frame {
    const cr_module *module;
    cr_mem *kept[10];
} cri_frame;

typedef struct cri_model {
    cr_arena *arena; /* the tree */
    cri_frame *frames;
    size_t num_frames, capacity_frames;

    /* the pass under way, between forward and backward */
    bool is_kept;         /* a forward with a tape waits for its backward */
    int64_t lowest;       /* first stage with a trainable parameter, see decoder.c */
    cr_mem **hidden;      /* [num_layers + 1] input of each layer, then of the last norm */
    size_t *marks;        /* [num_layers + 1] the tape before layer i */
    size_t start;         /* the tape before the pass */
    int32_t *rows;        /* [num_rows] rows with labels, or the chosen ones */
    int32_t *labels;      /* [num_rows] */
    size_t capacity_rows; /* of both */
    int64_t num_rows;
    cr_mem *head_in; /* [num_rows, h] input of the last norm, gathered */
    cr_mem *head_rstd, *head_lse, *head_mean_z;

    /* of images in this pass: the tokens that take the tower's features, and those (on scratch) */
    int32_t *placed; /* [num_placed] */
    size_t capacity_placed;
    int64_t num_placed, first_placed; /* the feature that the first of them takes */
    cr_mem *features, *deepstack[CR_MAX_DEEPSTACK];
    struct cr_vision_input *idle; /* cr_vision_idle; NULL: text families */

    /* of the routers in this forward, all layers together, if the model has an aux_weight */
    int64_t router_rows;
    int32_t *places; /* host copy of the last cri_routing.place */
    size_t capacity_places;
    double *router_picks, *router_probs; /* [E] */
    float *router_grad;                  /* [E] */
} cri_model;

/* ---- the tree ---- */

void *cri_alloc(cr_model *model, size_t num_bytes); /* zeroed, lives as long as the model */
/* A child appended to parent (NULL: the root). name is the last part of its full name. */
cr_module *cri_module_add(cr_model *model, cr_module *parent, const char *name, const char *cls,
                          size_t max_children, size_t max_params);
cr_param *cri_param_add(cr_module *m, const char *name, cr_init_kind init, int64_t rows,
                        int64_t cols); /* cols 0: a vector */
/* Rows of four-dimensional footprints, as Conv3d keeps them. */
cr_param *cri_conv_add(cr_module *m, const char *name, const int64_t shape[CR_PARAM_MAX_DIMS]);
cr_module *cri_linear_add(cr_module *parent, const char *name, int64_t in, int64_t out,
                          bool has_bias);
cr_module *cri_norm_add(cr_module *parent, const char *name, const char *cls, int64_t cols);
/* "Qwen3" + "MLP", lives as long as the model. */
const char *cri_class(cr_model *model, const char *prefix, const char *suffix);

/* stacked.c: sets param->stacked of all experts. */
void cri_stack_experts(cr_model *model);

/* ---- passes ---- */

void cri_frame_push(cr_module *m, const cri_frame *frame); /* copied */
cri_frame cri_frame_pop(cr_module *m);

static inline cr_status cri_enter(cr_module *m, cr_pass *p, cr_err *err)
{
    return p->hooks ? p->hooks->before(p->hooks->ctx, m, p->phase, err) : CR_OK;
}
static inline cr_status cri_leave(cr_module *m, cr_pass *p, cr_err *err)
{
    return p->hooks ? p->hooks->after(p->hooks->ctx, m, p->phase, err) : CR_OK;
}
/* The parameter whose storage is used. */
static inline cr_param *cri_own(cr_param *param)
{
    return param->tied_to ? param->tied_to : param;
}
/* Where gradients of a parameter go: NULL if it is frozen. */
static inline cr_mem *cri_grad(cr_param *param)
{
    return cri_own(param)->is_trainable ? cri_own(param)->grad : NULL;
}
/* What a module keeps goes on the tape; without one it lives until the caller releases scratch. */
static inline cr_stack *cri_keep(const cr_pass *p)
{
    return p->tape ? p->tape : p->scratch;
}
/* [num_rows, num_cols] in the dtype of the pass. */
static inline cr_status cri_push(cr_stack *stack, const cr_pass *p, int64_t num_rows,
                                 int64_t num_cols, cr_mem **out, cr_err *err)
{
    return cr_stack_push(stack, (size_t)(num_rows * num_cols) * cr_dtype_bytes(p->dtype), out, err);
}

/* Linear: y = add + x W^T + b on T rows, between its hooks. */
CR_MUST cr_status cri_linear(cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *add,
                             cr_mem *y, cr_err *err);
typedef enum cri_dx { CRI_DX_SET, CRI_DX_ADD } cri_dx;
/* dx may be NULL; frozen parameters get nothing. */
CR_MUST cr_status cri_linear_back(cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *dy,
                                  cr_mem *dx, cri_dx how, cr_err *err);
/* RMSNorm, or LayerNorm if it has a bias, over num_rows rows of the weight's length, without hooks. Its
 * impl is its eps (a float), or NULL: rms_norm_eps. rstd [num_rows] is for the backward, and has the means
 * of a LayerNorm after it: cri_norm_floats in all. */
CR_MUST cr_status cri_norm(cr_module *m, cr_pass *p, const cr_mem *x, int64_t num_rows, cr_mem *y,
                           cr_mem *rstd, cr_err *err);
CR_MUST cr_status cri_norm_back(cr_module *m, cr_pass *p, const cr_mem *x, const cr_mem *rstd,
                                const cr_mem *dy, int64_t num_rows, cr_mem *dx, cri_dx how,
                                cr_err *err);
static inline int64_t cri_norm_floats(const cr_module *m, int64_t num_rows)
{
    return (int64_t)m->num_params * num_rows;
}

/* inject.c: features of images in the stream of the decoder. All do nothing in a batch without images. */
CR_MUST cr_status cri_check_images(const cr_model *model, const cr_pass *p, cr_err *err);
/* Does the tower have a backward in this pass? */
bool cri_is_tower_back(const cr_model *model, const cr_pass *p);
/* Is this token's embedding replaced? */
bool cri_is_placed(const cr_model *model, const cr_batch *b, int64_t token);
/* Before the embedding; after it; after layer `at`. x: the stream. */
CR_MUST cr_status cri_run_tower(cr_model *model, cr_pass *p, cr_err *err);
CR_MUST cr_status cri_place_features(cr_model *model, cr_pass *p, cr_mem *x, cr_err *err);
CR_MUST cr_status cri_add_features(cr_model *model, cr_pass *p, int64_t at, cr_mem *x, cr_err *err);
/* Backward of the last two, from the gradient of the stream there; then of the tower. */
CR_MUST cr_status cri_reserve_features(cr_model *model, cr_pass *p, cr_err *err);
CR_MUST cr_status cri_back_features(cr_model *model, cr_pass *p, int64_t at, const cr_mem *grad,
                                    cr_err *err);
CR_MUST cr_status cri_back_tower(cr_model *model, cr_pass *p, cr_err *err);

/* positions.c: [T, head_dim / 2] from batch->mrope, host to host. */
void cri_rope_angles(const cr_model_config *c, const cr_batch *b, float *angles);

/* Rows of one call of a block of experts, in the memory that keeps them (cri_keep): by token and by slot
 * (kernels/experts.h), and those here by expert, which are the slots unless the pass has a dispatch. */
typedef struct cri_routing {
    cr_mem *prob, *weight;         /* float32 */
    cr_mem *expert, *slot, *token; /* int32 */
    cr_mem *place; /* int32 [num_here] of a row that arrived, by expert; NULL: no dispatch */
    int64_t num_tokens, top_k, num_slots, num_experts, cols, num_here;
} cri_routing;

/* Float32 or int32. */
CR_MUST cr_status cri_push_words(cr_stack *stack, int64_t num, cr_mem **out, cr_err *err);
/* dispatch.c, for a pass with a dispatch. Rows have num_cols elements.
 * Counts are exchanged: parts->here and r->num_here; place is written if it is wanted. */
void cri_count_here(cr_module *m, const cr_pass *p, cri_routing *r);
CR_MUST cr_status cri_agree_rows(cr_module *m, cr_pass *p, cri_routing *r, cr_err *err);
/* From rows by slot to rows here by expert, and back. */
CR_MUST cr_status cri_send_rows(cr_module *m, cr_pass *p, const cri_routing *r, cr_dtype dtype,
                                int64_t num_cols, const cr_mem *slots, cr_mem *here, cr_err *err);
CR_MUST cr_status cri_give_back_rows(cr_module *m, cr_pass *p, const cri_routing *r, cr_dtype dtype,
                                     int64_t num_cols, const cr_mem *here, cr_mem *slots,
                                     cr_err *err);

extern const cr_module_ops cri_attention_ops, cri_mlp_ops, cri_sparse_ops, cri_layer_ops,
    cri_embedding_ops;

/* What the ops of these modules need, as `impl`. */
typedef struct cri_attention {
    cr_module *q, *k, *v, *o;
    cr_module *q_norm, *k_norm; /* NULL: none */
} cri_attention;
typedef struct cri_mlp {
    cr_module *gate, *up, *down;
    int64_t width;
    /* of an expert, for its backward: the factor of each row's output, and where its gradient goes
     * (NULL: not wanted) */
    const cr_mem *row_weight; /* float32 */
    cr_mem *row_grad;
} cri_mlp;
typedef struct cri_sparse {
    cr_module *gate, *list; /* the router's weight; the experts are children of the list */
    /* [E] of the forward that was last: rows of this rank's tokens for each expert, rows that came
     * from other ranks (dispatch.h), rows that each expert runs here */
    int64_t *count, *arriving, *here;
} cri_sparse;
typedef struct cri_layer {
    cr_module *attention, *mlp, *norm1, *norm2;
} cri_layer;
/* impl of the root. */
typedef struct cri_root {
    cr_module *base, *embed, *norm, *lm_head;
    cr_module *visual, *text; /* NULL in text families, whose base is the text */
} cri_root;

#endif
