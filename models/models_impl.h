/* models_impl.h -- shared inside models/: building a tree, and the modules' own structs. */
#ifndef CR_MODELS_IMPL_H
#define CR_MODELS_IMPL_H

#include "models/config_impl.h"
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
/* A table of rows, and a ModuleList. */
cr_module *cri_lookup_add(cr_module *parent, const char *name, int64_t rows, int64_t cols);
cr_module *cri_list_add(cr_module *parent, const char *name, size_t max_children);
cr_module *cri_norm_add(cr_module *parent, const char *name, const char *cls, int64_t cols);
/* "Qwen3" + "MLP", lives as long as the model. */
const char *cri_class(cr_model *model, const char *prefix, const char *suffix);

/* The parameter whose storage is used. */
static inline cr_param *cri_own(cr_param *param)
{
    return param->tied_to ? param->tied_to : param;
}

/* stacked.c: sets param->stacked of all experts. */
void cri_stack_experts(cr_model *model);

/* ---- modules ---- */

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
