/* fsdp_impl.h -- a cr_fsdp from inside (strategies/ only).
 *
 * shards.c what a rank keeps, and moving it to the host; gather.c gathered copies around modules, gradients
 * of units, hooks; fsdp.c life, passes; lanes.c forwards with a thread for each part of a batch; replicas.c equal bits over ddp; finite.c
 * parameters that are not finite; update.c complete gradients, loss scale, AdamW; muon.c Muon */
#ifndef CR_FSDP_IMPL_H
#define CR_FSDP_IMPL_H

#include "kernels/kernels.h"
#include "moe/moe.h"
#include "strategies/checkpoint.h"
#include "strategies/gather.h"
#include "strategies/optim/optimizer.h"
#include "strategies/weight_map.h"
#include "ulysses/ulysses.h"

/* What a rank keeps, in buffers that can be moved to the host and back. */
typedef enum cri_kind {
    CRI_MASTER,
    CRI_GRAD,
    CRI_M,
    CRI_V,
    CRI_VALUES,
    CRI_WEIGHTS,
    CRI_FROZEN,
    CRI_NUM_KINDS
} cri_kind;
enum { CRI_NUM_STAGINGS = 2, CRI_BASE_TEXT = 32 };

typedef struct cri_arena {
    cr_mem *on_device,
        *on_host; /* on_host stays from the first offload on; with is_offloaded it is all there is */
    size_t num_bytes;
    bool is_away;   /* on the host only */
    bool is_copied; /* on_host has the same, until cri_states_changed */
} cri_arena;

struct cr_fsdp {
    cr_model *model;
    cr_device *dev, *host; /* host: a cpu (meta on meta) */
    cr_mesh *mesh;
    cr_group *slice_group; /* reshard to num_slices ranks after forward; NULL: not */
    int num_slices;
    cr_fsdp_args args;
    cr_units units;
    cri_unit *state; /* [units.num] */
    cri_arena arena[CRI_NUM_KINDS];
    /* own shards of all trained flats, one after another: masters and moments in master_dtype
     * (train), or values (infer). Values and frozen flats have their own dtypes (cr_flat_dtype).
     * Pointers into arenas; NULL while they are away. */
    cr_mem *master, *m, *v, *values, *frozen;
    cr_mem *
        weights; /* masters in param_dtype, where passes read them (cri_flat.weight_at); NULL: none */
    bool has_old_weights; /* masters were written since */
    cr_mem *grad;         /* float32 */
    cr_mem *whole_grad;   /* float32, with is_reduced_once: unreduced gradients of all units */
    int64_t whole_elems;
    cr_mem *staging; /* is_offloaded: [CRI_NUM_STAGINGS, staged_elems] pieces of shards */
    cr_event *is_cast
        [CRI_NUM_STAGINGS]; /* on the gather stream: the piece that was there has been read */
    int64_t staged_elems;
    unsigned next_staging;
    cr_mem *part;             /* is_offloaded: [part_elems] the sum of a gradient */
    int64_t part_elems;       /* of the largest unit's shard */
    char base[CRI_BASE_TEXT]; /* of cri_base_text, once it is known */
    bool has_whole_grad, is_grad_complete;
    bool has_grad; /* a backward since the last update: else there are no gradients */
    cr_mem *slices;
    int64_t slice_bytes;
    cri_pool root_pool, pool, slice_pool, ep_pool;
    cri_reduces root_reduces, reduces, ep_reduces;
    cri_unit *ahead;        /* announced */
    cri_unit *pending;      /* published a reduction whose slot is not given back, */
    int pending_slot;       /* this one, */
    bool is_pending_summed; /* which may have ended before its turn */
    cri_order orders[4],
        *order;            /* without and with backward, then with images; the one under way */
    bool is_with_backward; /* the pass under way */
    bool has_images;       /* a rank has some in the pass under way: all run the tower */
    cr_batch idle;         /* this rank's batch, if it has none of them */
    cr_stack *tape, *scratch, *host_scratch;
    cr_hooks hooks;
    cr_pass_state *pass_state;
    struct cri_lanes *lanes;  /* with the buffers */
    cr_param_choice *choices; /* [model->num_params] of training (owned) */
    int64_t *seconds; /* [model->num_params] own second moments: first element; -1: none (owned) */
    int64_t num_seconds, num_common_seconds; /* elements; of flats that are not expert-parallel */
    float aux_weight;
    int adapter;         /* of passes from now on */
    cr_ulysses *ulysses; /* NULL: ulysses_size 1 */
    cr_moe *moe;         /* NULL: ep_size 1 */
    float *host_rows;    /* outputs and their gradients, [2, CR_NUM_OUTPUTS, num_host_rows] */
    size_t num_host_rows;
    cr_outputs chosen; /* of the next backward: cr_fsdp_set_chosen, cr_fsdp_set_logits_loss */
    float *host_chosen;
    size_t num_host_chosen;
    int64_t frozen_version; /* how often frozen parameters were read: a sync's receivers have one */
    cr_weight_map senders;  /* of a sync: what each rank sends; made at the first one */
    int64_t num_updates;
    double loss_scale;        /* 0: none */
    int64_t num_good_updates; /* since the scale changed */
    int num_alive;
    cr_fsdp_stats stats;
    int64_t gathered_now, reduced_now; /* bytes of units */
    cr_fsdp_watcher watcher;           /* or NULL */
    void *watcher_ctx;
    struct cri_save *save; /* under way, or NULL */
    cr_saved saved;        /* by the last one that has ended: it may end before it is asked for */
    cr_group *parts_group; /* of parts.c; NULL: not needed yet */
};

/* The ranks that a unit is cut over, and this one's place among them: expert-parallel experts have their own. */
static inline cr_group *cri_group_of(const cr_fsdp *f, const cr_flat *flat)
{
    return f->mesh->group[flat->is_ep ? CR_AXIS_EFSDP : CR_AXIS_FSDP];
}
static inline int cri_shard_of(const cr_fsdp *f, const cr_flat *flat)
{
    return cr_group_rank(cri_group_of(f, flat));
}

static inline int cri_rank(const cr_fsdp *f)
{
    return cr_group_rank(f->mesh->group[CR_AXIS_FSDP]);
}
static inline cr_dtype cri_dtype(const cr_fsdp *f, const cr_flat *flat)
{
    return cr_flat_dtype(flat, f->args.param_dtype);
}
static inline size_t cri_gathered_bytes(const cr_fsdp *f, const cr_flat *flat)
{
    return (size_t)flat->padded_elems * cr_dtype_bytes(cri_dtype(f, flat));
}

/* A shard is cut and has to be gathered and reduced. */
static inline bool cri_is_cut(const cr_fsdp *f, const cr_flat *flat)
{
    return cr_group_num_ranks(cri_group_of(f, flat)) > 1;
}
/* Ranks that have the same: the first of them writes checkpoints. */
static inline bool cri_is_writer(const cr_fsdp *f, const cr_flat *flat)
{
    return cr_mesh_axis_rank(&f->mesh->shape, flat->is_ep ? CR_AXIS_EDDP : CR_AXIS_DDP,
                             f->mesh->rank) == 0;
}
/* ---- shards.c ---- */

/* This rank's elements of a flat that belong to parameter i: [*begin, *end), and where they are in the shard. False: none. */
bool cri_shard_range(const cr_flat *flat, size_t i, int shard, int64_t *begin, int64_t *end,
                     int64_t *at);
/* The dtype of a flat's shards, and where this rank's begins. */
cr_dtype cri_shard_dtype(const cr_fsdp *f, const cr_flat *flat, bool is_trained);
cr_mem *cri_shard(const cr_fsdp *f, const cr_flat *flat, bool is_trained);
/* Where a trained flat's shard is in param_dtype, beside its master; NULL: it is not kept. */
cr_mem *cri_weights(const cr_fsdp *f, const cri_flat *s);
/* Weights older than the masters are cast anew, on compute. */
CR_MUST cr_status cri_weights_renew(cr_fsdp *f, cr_err *err);
/* Add what this rank has, where cri_kept is; of f->v, which Muon's matrices have not. is_written: unless another replica writes it. */
void cri_map_kept(const cr_fsdp *f, bool is_trained, bool is_written, cr_weight_map *out);
void cri_map_seconds(const cr_fsdp *f, bool is_written, cr_weight_map *out);
/* As it is in the buffer of a sync in dtype, the trained ones first; of all ranks, each shard once, as cr_fsdp_sync_bytes counts. */
void cri_map_sent(const cr_fsdp *f, bool is_trained, cr_dtype dtype, cr_weight_map *out);
void cri_map_all_sent(const cr_fsdp *f, cr_dtype dtype, cr_weight_map *out);
/* Where all of them are, and the dtype of one. masters: f->master, or a copy of it. */
cr_mem *cri_kept(const cr_fsdp *f, bool is_trained, cr_mem *masters);
cr_dtype cri_kept_dtype(const cr_fsdp *f, const cr_param *param);
static inline cr_device *cri_stream(const cr_fsdp *f, cr_stream stream)
{
    return cr_device_stream(f->dev, stream);
}
/* Where arenas are that are not away: the device, or the host with is_offloaded. */
cr_device *cri_home(const cr_fsdp *f);
/* NULL: away. */
cr_mem *cri_arena_at(const cr_fsdp *f, cri_kind kind);
/* To be called by who writes masters, moments, values or frozen shards: the host's copies, and weights, are old now. */
void cri_states_changed(cr_fsdp *f);
CR_MUST cr_status cri_shards_create(cr_fsdp *f, cr_err *err);
/* Frozen parameters, and values of one that does not train, from another MODEL. */
CR_MUST cr_status cri_shards_read_model(cr_fsdp *f, const char *folder, cr_err *err);
void cri_shards_destroy(cr_fsdp *f);
/* CR_EARG if one of the states (enum cr_states) is on the host. */
CR_MUST cr_status cri_need_states(const cr_fsdp *f, unsigned states, const char *what, cr_err *err);
/* The most units below the root that are unsharded together: those of one layer (after its recompute all of them are), or the
 * last norm and the head, and units around them. are_trained: of those with a gradient. */
int cri_max_alive(const cr_fsdp *f, bool are_trained);

/* ---- fsdp.c ---- */

/* From labelled row `first` on. */
cr_outputs cri_outputs_from(const cr_outputs *all, int64_t first);

/* ---- muon.c ---- */

/* The matrices of Muon in a unit, once gradients are complete. Collective over the ranks that it is cut over. */
CR_MUST cr_status cri_muon_update(cr_fsdp *f, const cri_flat *s, double lr, double grad_scale,
                                  cr_err *err);

void cri_save_abandon(struct cr_fsdp *f); /* wait for the writer and forget its result */

#endif
