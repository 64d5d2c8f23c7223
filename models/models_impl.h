/* models_impl.h -- shared inside models/: building a tree, and the modules' own structs. */
#ifndef CR_MODELS_IMPL_H
#define CR_MODELS_IMPL_H

#include "models/config_impl.h"
#include "models/models.h"

typedef struct cr_model_parts {
    cr_arena *arena;
    struct cr_vision_input *idle; /* cr_vision_idle; NULL: text families */
} cr_model_parts;

/* ---- the tree ---- */

void *cri_alloc(const cr_model *model, size_t num_bytes); /* zeroed, lives as long as the model */
/* A child appended to parent (NULL: the root). name is the last part of its full name. */
cr_module *cri_module_add(const cr_model *model, cr_module *parent, const char *name,
                          const char *cls, size_t max_children, size_t max_params);
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
const char *cri_class(const cr_model *model, const char *prefix, const char *suffix);

/* The parameter whose storage is used. */
/* Where the gradient of a Linear's weight goes, as cri_grad (pass_impl.h); *is_set: these rows' product writes it. */
cr_mem *cri_grad_of_rows(cr_param *param, int64_t num_rows, bool *is_set);
static inline const cr_param *cri_own(const cr_param *param)
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
    bool is_geglu; /* else SwiGLU */
} cri_mlp;
typedef struct cri_sparse {
    cr_module *gate, *list; /* the router's weight; the experts are children of the list */
} cri_sparse;
/* Of a decoder layer or a block of a tower: stream + part(norm(stream)), or stream + after(part(norm(stream))). */
typedef struct cri_half {
    cr_module *norm, *part, *after; /* after: a norm, or NULL */
    bool is_scaled;                 /* after has a factor a column, its only parameter, instead */
} cri_half;
enum { CRI_HALVES = 2 };
typedef struct cri_layer {
    cri_half half[CRI_HALVES]; /* attention, then the MLP */
} cri_layer;
/* impl of the root. */
typedef struct cri_root {
    cr_module *base, *embed, *norm, *head;
    const struct cri_head_ops *head_ops;   /* parts/head.h */
    cr_module *visual, *text;              /* NULL in text families, whose base is the text */
    const struct cri_tower_ops *tower_ops; /* of visual */
    /* Prismatic: the projector is beside visual, and text and head are in a module of their own; base is NULL. */
    cr_module *projector, *language;
} cri_root;

#endif
