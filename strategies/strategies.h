/* strategies.h -- fsdp2_train and fsdp2_infer: a model as flat, sharded units on a mesh.
 *
 * Flow 1 and 6 of 7. A wrap policy marks modules as units; a unit owns the parameters below it
 * that no inner unit owns, one after another in one flat buffer (a second one for frozen parameters),
 * cut evenly over the fsdp axis:
 *
 *     shard   master and AdamW moments in master_dtype and a float32 gradient of the same cut
 *             (train), or the values in param_dtype (infer); frozen parameters: values only
 *     unshard cast own shard to param_dtype straight into the gathered buffer; parameters are views
 *     reduce  one reduce-scatter of the unit's float32 gradient in reduce_dtype, added to the shard;
 *             one all-reduce of the shard over ddp, float32, before the update
 *
 * Units are unsharded one ahead of their use in both directions. Each micro-batch gathers every unit
 * twice (forward; recompute or backward), but tables of embeddings and what has no backward once;
 * with reshard "never" each unit once a step, with an int the second time among that many ranks; the
 * root once a step, or once a micro-batch with "always" (it is kept from its forward to its backward,
 * because nothing lies between). Each micro-batch reduces every unit with trained parameters once. Losses are sums: gradients of all
 * ranks are SUMMED, and the caller's loss has already divided by global counts, so the gradient does
 * not depend on how the batch is cut or on the mesh.
 *
 * Ownership: a cr_fsdp borrows model, device and mesh and owns everything else. Threads: one.
 * "Collective" is over the ranks of the mesh; all else is local. Ranks fail together.
 */
#ifndef CR_STRATEGIES_H
#define CR_STRATEGIES_H

#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/pass.h"
#include "models/weights.h"
#include "strategies/optim/optimizer.h"
#include "strategies/units.h"

/* ---- a model on a mesh ---- */

typedef enum cr_reshard { CR_RESHARD_DEFAULT, CR_RESHARD_ALWAYS, CR_RESHARD_NEVER } cr_reshard;

typedef struct cr_fsdp_args {
    bool is_train;
    cr_dtype param_dtype; /* gathered parameters, activations; log-probs and logits are float32 */
    cr_reduce_dtype reduce_dtype;
    cr_reshard reshard; /* default: units after forward, never the root */
    bool should_recompute;
    int64_t mlp_tiles; /* TiledMLP: parts of each MLP's rows; 0, 1: off */
    cr_wrap_policy wrap;
    const char *source; /* MODEL folder; NULL: random weights of `seed` */
    uint64_t seed;
    double beta1, beta2, eps, weight_decay, max_grad_norm; /* train; max_grad_norm 0: no clip */
    cr_optimizer_options optimizer;
    /* 0: as `reshard`. Else it decides: 1 never, F default, k: to k neighbours after forward. */
    int reshard_ranks;
    bool is_reduced_once;  /* gradients are kept whole and reduced before the update, once a step */
    cr_dtype master_dtype; /* train. CR_BF16: updates below 1/512 of a weight are lost */
    bool is_offloaded;     /* masters, gradients and moments live on the host */
    double loss_scale;     /* the first one; 0: none (fp16 asks for 65536) */
    int64_t loss_scale_interval; /* good updates until it doubles */
} cr_fsdp_args;

typedef struct cr_fsdp cr_fsdp;

/* Collective. Each rank reads exactly its own elements of the source. */
CR_MUST cr_status cr_fsdp_create(cr_model *model, cr_device *dev, cr_mesh *mesh,
                                 const cr_fsdp_args *args, cr_fsdp **out, cr_err *err);
void cr_fsdp_destroy(cr_fsdp *f); /* collective; accepts NULL */
const cr_units *cr_fsdp_units(const cr_fsdp *f);

/* The largest of the ranks' numbers: how many micro-batches each must run. Collective. */
CR_MUST cr_status cr_fsdp_agree_num(cr_fsdp *f, int64_t mine, int64_t *max, cr_err *err);

/* Outputs of a batch's labelled rows (as cr_model_forward; the same ones on all ranks), without gradient.
 * batch NULL: this rank has none left but takes part. The ranks of a ulysses group are given the same
 * batch, here and below, and all get the values of all its rows. Collective. */
CR_MUST cr_status cr_fsdp_forward(cr_fsdp *f, const cr_batch *batch, const cr_outputs *out,
                                  cr_err *err);
/* That of the next passes (0 at first; cr_pass.adapter). Local. */
void cr_fsdp_set_adapter(cr_fsdp *f, int adapter);
/* Logits of chosen rows (in ascending order), likewise. */
CR_MUST cr_status cr_fsdp_logits(cr_fsdp *f, const cr_batch *batch, const int32_t *rows,
                                 int64_t num_rows, float *logits, cr_err *err);

/* The loss of one micro-batch: from [num] outputs to their gradients, which come zeroed. */
typedef cr_status (*cr_loss_fn)(void *ctx, const cr_outputs *out, size_t num,
                                const cr_outputs *grad, cr_err *err);
/* Forward, loss, backward of one micro-batch; gradients are added to the shards. Collective. */
CR_MUST cr_status cr_fsdp_backward(cr_fsdp *f, const cr_batch *batch, cr_loss_fn loss, void *ctx,
                                   cr_err *err);
/* Words that the loss of the next backward is over, beside labels: ids [num labels, num], each at most once in a row, -1: none; borrowed.
 * Its outputs then have log-probs of them by the softmax of logits / temperature (cr_outputs.tempered), and its gradients what follows
 * from them. Local. */
void cr_fsdp_set_chosen(cr_fsdp *f, const int32_t *ids, int64_t num, float temperature);
/* A loss over all logits of the next backward's rows (of ulysses: this rank's, numbered as in the batch); borrowed. Local. */
void cr_fsdp_set_logits_loss(cr_fsdp *f, const cr_logits_loss *loss);
/* Factor of the routers' auxiliary loss in the next backwards (0, as it is at first: none), and that loss
 * of the last of them, without the factor. Local. */
void cr_fsdp_set_aux_weight(cr_fsdp *f, float weight);
double cr_fsdp_aux_loss(const cr_fsdp *f);

typedef struct cr_update {
    double grad_norm;  /* before the clip */
    bool is_skipped;   /* the norm was not finite: nothing was changed but the loss scale */
    double loss_scale; /* of the next step */
} cr_update;
/* All-reduce over ddp, clip, AdamW with learning rate lr; the next backward begins gradients anew. Collective. */
CR_MUST cr_status cr_fsdp_update(cr_fsdp *f, double lr, cr_update *out, cr_err *err);
int64_t cr_fsdp_num_updates(const cr_fsdp *f); /* AdamW's t */

/* Full gradient, one parameter at a time, to rank 0 of the role (visit is called there only; grad has
 * param->num_elems elements, borrowed during the call). Collective. */
typedef cr_status (*cr_grad_visit)(void *ctx, const cr_param *param, const float *grad,
                                   cr_err *err);
CR_MUST cr_status cr_fsdp_visit_grads(cr_fsdp *f, cr_grad_visit visit, void *ctx, double *norm,
                                      cr_err *err);

/* Replicas along ddp hold the same bits, or CR_EPEER names the one that does not. With should_repair
 * those of the first replica are taken before (sync_module_states). cr_fsdp_resume checks. Collective. */
CR_MUST cr_status cr_fsdp_check_replicas(cr_fsdp *f, bool should_repair, cr_err *err);

/* Point the parameters of `to`, another tree of the same model, at the values here, where each is whole on this rank in the
 * dtype that it computes in; until this is destroyed or its values are moved. False: it is not so; those of `to` are not to be
 * used then. Local. */
bool cr_fsdp_lend(const cr_fsdp *f, cr_model *to);

/* CR_EFORMAT on all ranks, naming a parameter that has a NaN or an infinity. Collective. */
CR_MUST cr_status cr_fsdp_check_finite(cr_fsdp *f, cr_err *err);

/* ---- moving states between phases (colocated roles) ---- */

enum cr_states {
    CR_STATE_PARAMS = 1, /* masters or values, frozen ones */
    CR_STATE_GRADS = 2,
    CR_STATE_MOMENTS = 4,
    CR_STATE_BUFFERS = 8, /* gathered copies, reductions, tape, scratch: freed, not copied */
    CR_STATE_ALL = 15
};
/* To the host and back; what is there already stays. Gradients that there are none of (no backward since the
 * last update) are freed and made again. A call that needs what is away is CR_EARG.
 * Between steps only. With args.is_offloaded only buffers move. Collective. */
CR_MUST cr_status cr_fsdp_offload(cr_fsdp *f, unsigned states, cr_err *err);
CR_MUST cr_status cr_fsdp_load(cr_fsdp *f, unsigned states, cr_err *err);

/* ---- weight sync: train shards to full copies of the generation engine, or to shards of a reference ---- */

/* The engine's copy: every parameter whole, in `dtype` (in float32 those of modules that are). */
typedef struct cr_weight_copy cr_weight_copy;
/* model: frozen as the sender's is. Local. */
CR_MUST cr_status cr_weight_copy_create(cr_model *model, cr_device *dev, cr_dtype dtype,
                                        cr_weight_copy **out, cr_err *err);
void cr_weight_copy_destroy(cr_weight_copy *r);
/* Weight version: how many updates the weights had when they were sent; -1: none have come. */
int64_t cr_weight_copy_version(const cr_weight_copy *r);
/* Bytes that the last sync brought; those that a copy's first sync brings, or another. */
int64_t cr_weight_copy_synced_bytes(const cr_weight_copy *r);
int64_t cr_weight_copy_sync_bytes(const cr_weight_copy *r, bool is_first);
/* Of such a sync from all ranks of f's mesh: bytes of each shard over the fsdp axis [num_fsdp], then of each shard over the efsdp axis
 * [num_efsdp] of one rank's experts (owned by the caller). Local. */
int64_t *cr_fsdp_sync_bytes(const cr_fsdp *f, cr_dtype dtype, bool is_first);
/* Both are called together by all ranks of `group`: the ranks of the sender's mesh in order, then the receivers.
 * Send this rank's shards, cast to dtype, which is that of the copies. Of replicas each serves some receivers, those of its host
 * first. Frozen parameters go only if a receiver has not those that are here. */
CR_MUST cr_status cr_weight_sync_send(cr_fsdp *f, cr_group *group, cr_dtype dtype, cr_err *err);
/* Checks every checksum, then points param->weight into the copy. */
CR_MUST cr_status cr_weight_sync_receive(cr_weight_copy *r, cr_group *group, cr_err *err);
enum { CR_BLEND_BYTES = 2 << 20 /* that a blend works in, beside what has come */ };
/* The values of f (fsdp2_infer, on any mesh; nothing frozen) become alpha x the sender's + (1 - alpha) x what they were: computed in float32
 * from what the sender's are in the dtype of each value, and rounded to it once; alpha 1 copies. *num_bytes: that have come to this rank.
 * Each time all parameters go. */
CR_MUST cr_status cr_weight_sync_blend(cr_fsdp *f, cr_group *group, double alpha,
                                       int64_t *num_bytes, cr_err *err);

/* num_bytes: the whole gathered buffer, the whole buffer before its reduction, the shard. */
typedef struct cr_traffic_count {
    int64_t num, num_bytes;
} cr_traffic_count;
typedef struct cr_traffic {
    cr_traffic_count gathers, reduces, all_reduces; /* of units; since create */
} cr_traffic;

typedef struct cr_fsdp_stats {
    int64_t shard_bytes, gather_bytes, reduce_bytes, tape_peak_bytes, scratch_peak_bytes;
    int64_t
        weight_bytes; /* of shard_bytes: masters in param_dtype (reshard never, shards that are whole) */
    int64_t host_bytes;   /* of the device's host memory: offloaded states, copies of a save */
    int64_t moment_elems; /* first and second moments */
    int64_t held_bytes;   /* of the device, and gathered copies and reductions, now */
    int max_units_alive;  /* gathered at the same time, without the root */
    cr_traffic traffic;
} cr_fsdp_stats;
cr_fsdp_stats cr_fsdp_get_stats(const cr_fsdp *f);

/* Bytes in use when a module begins or ends: gathered units and gradients in reduction now; of tape and
 * scratch the most since the last moment. */
typedef struct cr_fsdp_moment {
    const cr_module *module;
    cr_phase phase;
    int64_t gathered, reduction, tape, scratch;
} cr_fsdp_moment;
typedef void (*cr_fsdp_watcher)(void *ctx, const cr_fsdp_moment *moment);
void cr_fsdp_watch(cr_fsdp *f, cr_fsdp_watcher watcher, void *ctx); /* NULL: none */

#endif
