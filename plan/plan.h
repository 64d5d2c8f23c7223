/* plan.h -- one rank of a role, run on a world and a device that only count (`croll plan`).
 *
 * The tree, the units, the passes and the collectives are those of the run itself: a meta world plays
 * rank 0 of any number of ranks, a meta device hands out addresses that are never read. So bytes are
 * those that the run asks its device and its groups for; what a kernel keeps for itself, programs,
 * libraries and Redis are not in them.
 *
 * Ownership: the caller's structs, texts of the config borrowed. Threads: one.
 */
#ifndef CR_PLAN_H
#define CR_PLAN_H

#include "actors/strategy_args.h"
#include "mesh/hosts/links.h"

/* Images of each sample, of one size; those of a shorter sample are as many as fit. */
typedef struct cr_plan_images {
    int64_t num; /* 0: text */
    int32_t grid[3];
    int64_t num_tokens; /* of each */
} cr_plan_images;

/* What a micro-batch is made of, at its worst: samples of full length. */
typedef struct cr_plan_batch {
    int64_t num_samples;                /* of a training micro-batch */
    int64_t num_infer;                  /* of a forward for log-probs */
    int64_t sample_tokens, sample_rows; /* all tokens; those with a log-prob */
    int64_t train_tokens,
        infer_tokens;          /* of either micro-batch; 0: micro-batches of a number of samples */
    int64_t micros;            /* of an update, per rank (gradient_accumulation_steps) */
    int64_t updates, forwards; /* of a step, per rank; forwards for log-probs */
    cr_plan_images images;     /* of roles whose model has a vision tower */
    int64_t base_forwards;     /* with adapters off: of a reference without ranks of its own */
    int64_t
        chosen; /* distillation: ids of each row that the teacher gives and the student's loss is over; 0: none */
    bool
        has_states; /* of its whole distributions: the teacher gives states, the student's loss is over all logits, */
    int64_t table_bytes; /* and the student keeps the teacher's head */
    bool sends,
        sends_frozen; /* weights to engines, whose ranks are on hosts; frozen ones each time */
    cr_dtype sent_dtype;
} cr_plan_batch;

typedef struct cr_plan_bytes {
    int64_t masters, gradients, moments, values; /* values: frozen, or those of fsdp2_infer */
    int64_t gathered, reduction;                 /* buffers of units */
    int64_t kept;                                /* slices, unreduced gradients; a KV cache */
    int64_t tape, scratch;
} cr_plan_bytes;

enum { CR_PLAN_MAX_PHASES = 5, CR_PLAN_MAX_MOMENTS = 16384 };

/* Bytes in use at one point of a step. Neighbours are merged when there are too many: the fuller stays. */
typedef struct cr_plan_moment {
    cr_plan_bytes bytes;
    double flops;  /* since the step began */
    char what[80]; /* "backward model.layers.3.mlp" */
} cr_plan_moment;

/* A step is made of these, each some times: the first micro-batch of an update gathers what the next ones have. */
typedef enum cr_plan_pass {
    CR_PLAN_FIRST,
    CR_PLAN_NEXT,
    CR_PLAN_UPDATE,
    CR_PLAN_FORWARD, /* for log-probs */
    CR_PLAN_BASE,    /* with adapters off */
    CR_PLAN_PASSES
} cr_plan_pass;

/* Calls that are alike: of this rank's group along an axis. */
typedef struct cr_plan_call {
    cr_axis axis;
    cr_link_call call;
    int64_t times[CR_PLAN_PASSES]; /* in one pass */
} cr_plan_call;

typedef struct cr_plan_passes {
    int64_t times[CR_PLAN_PASSES]; /* in a step */
    struct cr_plan_work {
        double flops, attention_flops, moved_bytes; /* as in cr_device_stats */
    } work[CR_PLAN_PASSES];
    cr_plan_call *call; /* owned */
    size_t num_calls;
} cr_plan_passes;

typedef struct cr_plan_role {
    const char *name;
    bool is_train, is_judge; /* a judge keeps its device */
    cr_mesh_shape mesh;
    int64_t num_elems, num_trained, shard_elems; /* shard: of trained parameters, with padding */
    /* modules with an adapter; in full: parameters trained beside them, or kept as they were (copied_elems, not of num_elems) */
    int64_t num_adapters, num_trained_tensors, full_elems, copied_elems;
    int64_t num_graphs;  /* steps of an engine, at most */
    int64_t hidden_size; /* 0: no pass of it makes log-probs */
    size_t num_units;
    int max_units_alive;
    int64_t host_bytes;  /* offloaded states */
    int64_t pixel_bytes; /* likewise on the host: patches of a micro-batch's images */
    int64_t cache_bytes; /* of an engine, a part of kept */
    struct cr_plan_phase {
        const char *name;
        cr_plan_bytes bytes; /* at its peak; masters to values are 0 when they are offloaded */
    } phase[CR_PLAN_MAX_PHASES];
    size_t num_phases;
    cr_traffic step;                     /* of one step of the pipeline */
    cr_flight_count all_to_alls, smalls; /* likewise; smalls: all others */
    cr_traffic_count synced;             /* weights received by an engine in a step */
    int64_t first_sync_bytes;            /* likewise, by the first sync of a run */
    int64_t *sent_bytes; /* of a trained role that sends: cr_fsdp_sync_bytes (owned) */
    double step_flops;   /* of this rank */
    cr_plan_passes passes;
    int64_t max_elems;        /* of one array of any operation: its largest index + 1 */
    const char *max_elems_in; /* that operation */
    cr_buf tree;              /* owned: the wrapped tree, with warnings */
    cr_buf groups;            /* owned: a line for each group of parameters, if there are some */
    cr_plan_moment *
        moment; /* owned; if they are asked for: two micro-batches and their update, or a forward */
    size_t num_moments;
    bool with_moments; /* the caller's wish */
} cr_plan_role;

int64_t cr_plan_sum(const cr_plan_bytes *b);
/* The most bytes of any phase. */
int64_t cr_plan_peak(const cr_plan_role *role);

/* Run rank 0 of a role with `num_ranks` ranks. out->name, is_train and with_moments come from the caller. */
CR_MUST cr_status cr_plan_run(cr_model *model, const cr_worker_config *w, int num_ranks,
                              const cr_plan_batch *batch, cr_plan_role *out, cr_err *err);
void cr_plan_role_free(cr_plan_role *role);

#endif
