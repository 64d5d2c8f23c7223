/* models.h -- a model is a tree of modules.
 *
 * A module has a name ("model.layers.3.mlp"), a class name as in Transformers ("Qwen3MLP": wrap policies and freeze prefixes name
 * them), parameters with shapes, children, and two functions, forward and backward. cr_model_build makes the tree from
 * config.json without storage; everything else walks it: loading, wrapping in units, freezing, planning, printing, exporting.
 *
 * Who owns what: the model owns modules and parameter descriptors. Storage belongs to whoever
 * executes the model (strategies, or the generation engine): before a module runs, that owner has
 * set `weight` of its parameters (and `grad` of the trainable ones before backward). The hooks of a
 * pass are the moments to do so: before(module) ... after(module).
 *
 * Threads: one caller a model; passes that run beside each other: see pass.h.
 */
#ifndef CR_MODELS_H
#define CR_MODELS_H

#include "kernels/kernels.h"
#include "models/config.h"

typedef struct cr_module cr_module;
typedef struct cr_model cr_model;
typedef struct cr_pass cr_pass;

typedef enum cr_init_kind {
    CR_INIT_NORMAL,
    CR_INIT_UNIFORM,
    CR_INIT_ONES,
    CR_INIT_ZEROS
} cr_init_kind;

enum { CR_PARAM_MAX_DIMS = 5 };

typedef struct cr_param {
    char *name;   /* Hugging Face name, e.g. "model.norm.weight" (owned by the model) */
    char *alias;  /* its other spelling in files, e.g. "visual.merger.ln_q.weight", or NULL */
    size_t index; /* in model->params */
    const char *file_name;            /* the one of the two that files of the hub have */
    const struct cr_stacked *stacked; /* files have it in a tensor with others (weights.h) */
    int num_dims;
    int64_t shape[CR_PARAM_MAX_DIMS];
    int64_t num_elems;
    cr_init_kind init; /* for random weights */
    float init_std;    /* of NORMAL; of UNIFORM the largest */
    bool is_trainable;
    bool is_added;   /* by cr_model_options: a checkpoint may lack it (cr_weights_fill) */
    bool is_adapter; /* of PEFT's file: A or B of a cr_adapter, is_added, or trained in full */
    int adapter;     /* of which one of the model's */
    struct cr_param *copy_of; /* it is that one's original (cr_module.original), or NULL */
    bool is_fp32;             /* of a module that is */
    bool is_product; /* a kernel multiplies by it: a Linear's, or a table that is one's, too */
    struct cr_param *tied_to; /* this is another name of that parameter's storage, or NULL */
    bool is_shared;           /* it is tied, or another is tied to it */
    cr_weight weight; /* full tensor in the dtype of the pass; valid while its unit is unsharded */
    cr_mem *grad;     /* full float32 gradient to add to, or NULL: none wanted */
    bool can_be_set;  /* it comes from a Linear alone, which can write where others add */
    bool is_grad_unset; /* can_be_set: the next backward writes grad, whatever is there */
} cr_param;

typedef struct cr_module_ops {
    /* out [T, out_cols] = add + module(in [T, in_cols]), act dtype, memory of the caller. add is the
     * residual stream or NULL; out may be add, and a decoder layer's out may be in. out NULL (only
     * when recomputing): the result is not wanted, just what backward needs. */
    cr_status (*forward)(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *add,
                         cr_mem *out, cr_err *err);
    /* in: the values that forward had (kept or made again by the caller). grad_out [T, out_cols] ->
     * grad_in [T, in_cols], overwritten, may be grad_out; NULL: not wanted. The part that flows
     * through add is the caller's. */
    cr_status (*backward)(const cr_module *m, cr_pass *p, const cr_mem *in, const cr_mem *grad_out,
                          cr_mem *grad_in, cr_err *err);
} cr_module_ops;

/* LoRA of a Linear: y = W x + b + scale B (A x). A and B are children of the Linear, in its unit whatever the wrap
 * policy says, and have no hooks: those of the Linear bring their weights, too. Of an embedding table, likewise: row i + scale B A[i]. A model
 * may have several adapters, of other ranks and in other modules, of which a pass has one (cr_pass.adapter): they share the base. Names of
 * all but the first have their number at the end ("lora_A_1"), and PEFT's as alias. */
typedef struct cr_adapter {
    /* "lora_A" [rank, in], "lora_B" [out, rank]. gate_proj and up_proj of an expert have one A, a child of the expert: they are
     * one parameter for PEFT. Of a table "lora_embedding_A" [rows, rank], in files transposed, and "lora_embedding_B" [cols, rank]. */
    cr_module *a, *b;
    float scale;
    double dropout; /* of x in front of A, in passes whose batch has keys for it */
    uint64_t key;   /* of it: a hash of the Linear's name */
} cr_adapter;

struct cr_module {
    char *name;      /* "" for the root */
    const char *cls; /* Transformers' class: "LlamaDecoderLayer", "Linear", "ModuleList", ... */
    cr_module *parent, **children;
    size_t num_children;
    cr_param *params; /* own parameters, not those of children */
    size_t num_params;
    cr_param *weight, *bias;    /* those of params with these names; NULL: none */
    const cr_module_ops *ops;   /* NULL for containers and what their parent computes */
    const void *impl;           /* what the ops need (owned by the model) */
    const cr_adapter *adapters; /* [model->num_adapters], without A: not that one; NULL: none */
    cr_module *original;        /* of one in full: a child, for passes with adapters off; or NULL */
    const cr_model *model;
    int layer, expert; /* index of the decoder layer and of the expert it is in, -1 outside */
    /* What it is, whatever its class is called; set when the tree is built. */
    bool is_container; /* a list: never runs, has no hooks */
    bool is_lookup;    /* a table of rows: its backward needs their numbers, not the table */
    bool is_attention; /* of a decoder layer: its keys and values are cached in generation */
    bool is_lm_head;
    bool is_checkpointed; /* recomputed when the pass asks for it: decoder layers */
    bool is_fp32;         /* see cr_module_set_fp32 */
    bool has_trainable;   /* a parameter in or below it is (cr_model_mark_trainable) */
    void *unit;           /* set by strategies when the module is the root of a unit */
};

/* Parts of a vision-language tree as comma-separated prefixes of names, NULL: it has none. The vision tower is what `vision`
 * names and `projector` does not; the rest is the language model. unused: tensors of files that the tree has not. */
typedef struct cr_towers {
    const char *vision, *projector, *unused;
} cr_towers;
bool cr_is_named(const char *name, const char *prefixes); /* does one of them begin it? */

struct cr_model {
    cr_model_config config;
    cr_module *root;
    cr_module **layers; /* [num_layers] decoder layers, borrowed from the tree */
    cr_param **params;  /* every parameter once, in the order of the tree; tied ones left out */
    size_t num_params;
    bool skips_idle_experts;     /* experts without tokens are not called, nor their hooks */
    const char *const *no_split; /* class names of the default wrap policy, NULL-terminated */
    bool is_no_split_nested;     /* of which each one is a unit, inside each other, too */
    cr_towers towers;
    cr_module *tower; /* what runs over images, with its projector if that is inside; NULL: none */
    const struct cr_adapter_options *adapters; /* [num_adapters] as it was built; NULL: none */
    int num_adapters;
    struct cr_model_parts *own; /* memory of the tree */
};

/* LoRA in Linears of decoder layers: attention, MLPs, experts (all of a layer or none) and routers; and in the embedding table. All else is
 * frozen, but for a head that was added, and `saved`. */
typedef struct cr_adapter_options {
    /* As PEFT's target_modules: "all-linear" (all but routers), "all-router", "all-embedding", names or ends of them after a dot, with
     * commas between; or, with one of * $ | ( in it, a regular expression of whole names. NULL: no adapters, or as folder says. */
    const char *target;
    int64_t rank;    /* 0: as folder says */
    double alpha;    /* scale: alpha / rank; 0: as folder says */
    bool use_rslora; /* alpha / sqrt(rank); also if folder says so */
    /* PEFT's, with the values (models/files/peft.h), which the numbers above do not contradict; NULL: first values */
    const char *folder;
    double dropout; /* below 1; below 0: as folder says */
    /* As PEFT's target_parameters, of experts and routers: names or ends of them after a dot, with commas between:
     * "mlp.experts.gate_up_proj,down_proj,gate.weight"; or NULL. */
    const char *parameters;
    bool is_gate_up_twice; /* experts' gate_up_proj: rank and alpha, as where both are named */
    /* Of a model: names of the Linears that have one, with commas between, where target would say others to PEFT; or NULL. */
    const char *modules;
    /* As PEFT's modules_to_save: ends of names of modules trained in full beside the adapter, the model's only one; or NULL. */
    const char *saved;
    bool keeps_originals;                  /* of those; without, no pass has adapters off */
    const struct cr_adapter_options *next; /* another adapter, beside this one; NULL: no more */
} cr_adapter_options;
enum { CR_NO_ADAPTER = -1 }; /* in place of the number of one: the base */
static inline bool cr_has_adapters(const cr_adapter_options *o)
{
    return o->target || o->parameters || o->folder;
}
/* Is the target a regular expression? */
bool cr_adapter_is_pattern(const char *target);
typedef struct cr_model_options {
    cr_head_kind head;
    cr_adapter_options adapters;
} cr_model_options;

/* Build from a MODEL folder's config.json (and generation_config.json), or from JSON. No weights are
 * needed. options NULL: none. CR_ECONFIG: a target that matches nothing, with the nearest name. CR_EFORMAT / CR_EABSENT name the key or the family. The model is owned by the caller. */
CR_MUST cr_status cr_model_open_with(const char *folder, const cr_model_options *options,
                                     cr_model **out, cr_err *err);
CR_MUST cr_status cr_model_build_with(const json_t *config, const json_t *generation_config,
                                      const cr_model_options *options, cr_model **out, cr_err *err);
/* The same without options. */
CR_MUST cr_status cr_model_open(const char *folder, cr_model **out, cr_err *err);
CR_MUST cr_status cr_model_build(const json_t *config, const json_t *generation_config,
                                 cr_model **out, cr_err *err);
void cr_model_free(cr_model *model);
cr_param *cr_model_find_param(const cr_model *model,
                              const char *name); /* NULL: none; tied names resolve */
cr_module *cr_model_find_module(const cr_model *model, const char *name); /* NULL: none */
/* Depth first, parents before children. Stops at the first failure. */
typedef cr_status (*cr_module_visit)(void *ctx, cr_module *module, cr_err *err);
CR_MUST cr_status cr_module_walk(cr_module *module, cr_module_visit visit, void *ctx, cr_err *err);
/* It and all below compute in float32 whatever the dtype of the pass, with float32 weights: what comes
 * in, what goes out and their gradients are cast at its border. For decoder layers, attention, MLPs, and
 * parts that switch by themselves (vision towers). Set before anyone lays out weights. */
void cr_module_set_fp32(cr_module *m);
/* To be called when is_trainable of parameters has changed, before the next pass with a tape; strategies do when they take a model. */
void cr_model_mark_trainable(cr_model *model);

#endif
