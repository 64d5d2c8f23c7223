/* units.h -- from a tree and a policy to units: a pure function, the same on every rank.
 *
 * A policy marks modules; the root is always marked. A unit owns the parameters below its module that
 * no inner unit owns, in one flat buffer for trained and one for frozen parameters. Two kinds of
 * policy:
 *
 *     ROLL's       `classes` (NULL: the model's no-split list). Where a class stands above another one
 *                  the children win. Untied embeddings are a unit of their own. Prismatic's list is of the
 *                  other kind.
 *     the seeds'   with is_nested, `modules` or `min_elems`: any rule that says yes makes a unit (an
 *                  "or" of policies; class or size is the "hybrid"), inside each other if need be.
 *                  min_elems is asked from the leaves up, of what no inner unit has taken.
 *
 * Lists of modules (ModuleList) never run, so they never are units. A tied pair stays in the root.
 * An adapter (cr_adapter) is in the unit of its Linear, as its trained parameters, however small; the Linear's frozen ones
 * are gathered and never reduced. So is the original of a module (cr_module). Whatever the policy, a module that computes in float32 inside one that does not is a unit
 * (cr_module_set_fp32): all parameters of a unit have one dtype.
 *
 * Ownership: cr_units owns its arrays and borrows the model. Threads: any. Errors: CR_ECONFIG for a
 * name that matches nothing, with the names there are.
 */
#ifndef CR_UNITS_H
#define CR_UNITS_H

#include "kernels/memory.h"
#include "models/models.h"

/* ---- freezing: before units are built ---- */

/* Mark params as frozen whose name, in either of its spellings, begins with one of the comma-separated
 * prefixes (NULL: none).
 * CR_ECONFIG for a prefix that matches nothing, with the nearest module names. */
CR_MUST cr_status cr_model_freeze(cr_model *model, const char *prefixes, cr_err *err);

/* Which parts of the model (model->towers) a stage trains: align, finetune, full-finetune,
 * last-layer-finetune, vla-train, vla-full-train or vla-sandwich-train. "Last layer" is
 * the last decoder layer. CR_ECONFIG for another name, and for a stage that trains a part which the
 * model has not. */
CR_MUST cr_status cr_model_freeze_stage(cr_model *model, const char *stage, cr_err *err);

/* A vision tower with a trained parameter computes in float32 (its norms and residual sums lose accuracy in
 * 16 bits); one that is frozen in the dtype of the pass, projector and language model in any case. After
 * freezing. */
void cr_model_set_precision(cr_model *model);

/* ---- units ---- */

typedef struct cr_wrap_policy {
    const char *const *classes; /* exact class names */
    size_t num_classes;
    bool should_wrap_embeddings, should_wrap_lm_output;
    bool is_nested;             /* a marked module above another one stays marked */
    const char *const *modules; /* full names; a part "*" is any: "model.layers.*.mlp" */
    size_t num_modules;
    int64_t min_elems;                 /* > 0: size rule */
    const char *const *expert_classes; /* one unit each, whatever stands above them (moe_experts) */
    size_t num_expert_classes;
} cr_wrap_policy;

enum { CR_FLAT_ALIGN = 32 /* elements between starts of parameters */ };

/* Elements of several flats, and how many of them are in float32 whatever param_dtype is. */
typedef struct cr_extent {
    int64_t elems, fp32;
} cr_extent;
static inline int64_t cr_extent_bytes(cr_extent x, cr_dtype param_dtype)
{
    return (x.elems - x.fp32) * (int64_t)cr_dtype_bytes(param_dtype) +
           x.fp32 * (int64_t)sizeof(float);
}

/* Parameters one after another: offset[i] of params[i]; padded_elems is a multiple of the cut. */
typedef struct cr_flat {
    cr_param **params; /* owned array */
    int64_t *offset;   /* owned */
    size_t num_params;
    int64_t num_elems, padded_elems, shard_elems;
    bool is_ep;      /* of an expert-parallel unit */
    bool is_fp32;    /* of a module that is (models.h) */
    cr_extent first; /* before its shard in the rank's buffers of all flats of its kind */
} cr_flat;

/* dtype of its gathered copy, of its shard if it is frozen, and of the exported file. */
static inline cr_dtype cr_flat_dtype(const cr_flat *flat, cr_dtype param_dtype)
{
    return flat->is_fp32 ? CR_F32 : param_dtype;
}

typedef struct cr_unit {
    cr_module *module; /* the root's unit comes first */
    char *name;        /* of the module, "root" for the root */
    bool is_expert;
    bool is_ep; /* expert-parallel: of this rank's experts */
    int num_shards;
    cr_flat trained, frozen;
} cr_unit;

typedef struct cr_units {
    cr_unit *unit; /* in order of execution */
    size_t num;
    int num_shards;                          /* of units that are not expert-parallel */
    cr_extent trained_shard, frozen_shard;   /* sums over units */
    cr_extent common_trained, common_frozen; /* the first of these */
    int64_t num_trained, num_frozen;         /* elements without padding */
} cr_units;

/* num_shards: length of the fsdp axis. */
CR_MUST cr_status cr_units_build(cr_model *model, const cr_wrap_policy *policy, int num_shards,
                                 cr_units *out, cr_err *err);

/* Expert parallel: each expert's parameters are on one of the ranks of the ep axis (moe.h), in units of
 * expert_classes that are cut over the efsdp axis. A module with experts of several ranks is a unit
 * on each. */
typedef struct cr_ep_layout {
    int num_ranks, num_shards; /* lengths of the ep and the efsdp axis */
    int rank;                  /* only units of this ep rank and of all */
} cr_ep_layout;
/* ep NULL or of one rank: as above. CR_ECONFIG (M9): an expert is in no unit of its own. */
CR_MUST cr_status cr_units_build_ep(cr_model *model, const cr_wrap_policy *policy, int num_shards,
                                    const cr_ep_layout *ep, cr_units *out, cr_err *err);
void cr_units_free(cr_units *units);
/* Ranks will gather units that the others do not, where their tokens go to other experts: experts are
 * units, and idle ones are not called. */
bool cr_units_can_diverge(const cr_units *units, const cr_model *model);

/* The wrapped tree as text: every module, equal neighbours once; units with their number, elements,
 * MiB in param_dtype and of a shard in float32; totals; a warning for a wrap that wastes. */
void cr_units_write_tree(const cr_units *units, const cr_model *model, cr_dtype param_dtype,
                         cr_buf *out);

#endif
