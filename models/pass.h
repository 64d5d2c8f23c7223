/* pass.h -- a pass runs a model forward over a packed batch, and back.
 *
 * A pass is a stack. Batches are packed. Forward pushes on `tape` what backward will need; backward
 * pops in reverse. Temporaries live on `scratch` and are released inside the function that made
 * them. A layer keeps its input, the residual stream between its halves, q, k, v, attention's
 * output, gate and up; outputs of norms and silu(gate) * up are made again from them.
 * With pass->should_recompute it keeps only its input and runs its forward again on
 * the way back, giving the same bits: hooks see before/after(CR_RECOMPUTE), then CR_BACKWARD.
 *
 * A model is const while a pass runs: no field of the model, of a module or of its impl is written, so
 * several passes may be under way over one model, in any order, each with a state, a tape and scratch of
 * its own, and on threads of their own if the devices are, too. What does change belongs to others:
 * weights are where the hooks put them (passes that share hooks take turns as those ask for it), and
 * backward adds to the memory that param->grad points to (not from two threads at once).
 *
 * Ownership: a pass borrows what it points to.
 */
#ifndef CR_PASS_H
#define CR_PASS_H

#include "kernels/attention.h"
#include "models/models.h"

/* Packed tokens. labels[t] is the id whose log-prob row t must give (normally ids[t+1]), or -1:
 * no log-prob is computed for that row. */
typedef struct cr_batch {
    const int32_t *ids, *positions, *labels; /* [T]; labels may be NULL: none wanted */
    const int32_t *cu_seqlens;               /* [num_seqs + 1] */
    int64_t num_tokens, num_seqs;
    const int32_t
        *mrope; /* [3][T] positions along t, h and w (vision.h); NULL: `positions` thrice */
    const struct cr_vision_input *vision; /* images and videos (vision.h); NULL: none */
    const cr_row_processors
        *processors;                  /* how labels were sampled, by labelled row (attention.h) */
    const uint64_t *drop_keys;        /* [T] of dropout in adapters (dropout.h); NULL: it is off */
    const struct cr_vision_run *runs; /* [num_runs] over the cache, features of images (vision.h) */
    int64_t num_runs;
} cr_batch;

typedef enum cr_phase { CR_FORWARD, CR_RECOMPUTE, CR_BACKWARD } cr_phase;

typedef struct cr_hooks {
    cr_status (*before)(void *ctx, const cr_module *module, cr_phase phase, cr_err *err);
    cr_status (*after)(void *ctx, const cr_module *module, cr_phase phase, cr_err *err);
    void *ctx;
} cr_hooks;

/* Generation's view of the cache: see cr_attention_cached_args. NULL in a pass: packed attention. */
typedef struct cr_kv_view {
    cr_mem **layer_blocks;                           /* [num_layers] */
    const int32_t *row_slot, *row_pos, *block_table; /* host */
    int64_t num_slots, max_blocks;
    int64_t num_blocks; /* of each layer */
} cr_kv_view;

/* Arrays of a batch in memory of the device: uploaded in one piece when a pass begins, and there until its
 * end (on the tape, or else on scratch). What was not given is NULL. */
typedef struct cr_pass_index {
    const cr_mem *ids, *positions;        /* [T] */
    const cr_mem *inv_freq[CR_MAX_ROPES]; /* [head_dim / 2] float32, of the model's ropes */
    const cr_mem
        *embed_scales; /* [T] float32, all the model's embed_scale in the dtype of the pass */
    const cr_mem
        *table_scales; /* [T] float32, all the scale of the adapter that the embedding table has */
    const cr_mem *cu_seqlens; /* of attention: of the split, if there is one */
    cr_seq_sizes sizes;       /* of the same, or of the rows of the cache */
    const cr_mem *row_slot, *row_pos, *block_table; /* of kv */
    const cr_mem *row_tiles;                        /* of its rows, unless the pass is captured */
    int64_t num_tiles, num_alone;
    const cr_mem *split_lists;        /* split.h */
    const cr_mem *head_rows, *labels; /* of the head's rows: which, and their labels */
    cr_row_processors_mem processors; /* of the batch */
    const cr_mem *drop_keys;          /* [num_rows] of the module at hand, if it runs on tokens */
} cr_pass_index;

/* What a pass keeps between forward and backward, and host memory that it uses again in the next one.
 * Owned by whoever makes passes; one pass at a time. */
typedef struct cr_pass_state cr_pass_state;

/* Of cr_model_logits: all that it queues, copies of the batch's arrays too, is captured, and queued from there (cr_graph_run). Without
 * hooks, images and experts. The host waits for a pass before it begins the next one with the same memory. */
typedef struct cr_graph_pass {
    cr_graph **graph;
    cr_mem *
        host; /* of cr_host_alloc: the arrays; NULL at first, grown by passes, freed by the owner */
    size_t host_bytes;
    cr_work then; /* queued after the logits; NULL: nothing */
    void *ctx;
    uint64_t key; /* of what that is */
} cr_graph_pass;
cr_pass_state *cr_pass_state_create(void);
void cr_pass_state_destroy(cr_pass_state *state); /* accepts NULL */

struct cr_pass {
    cr_pass_state *state;
    cr_device *dev;
    cr_dtype dtype; /* activations and gathered weights */
    cr_stack *tape; /* NULL: nothing is kept, no backward */
    cr_stack *scratch;
    const cr_batch *batch;
    const cr_kv_view *kv;
    const struct cr_split *split;      /* NULL: the batch has its sequences whole (split.h) */
    const struct cr_dispatch *experts; /* NULL: all experts run here (dispatch.h) */
    const cr_hooks *hooks;             /* NULL: parameters are always there */
    bool should_recompute;
    int adapter;       /* of the model's; CR_NO_ADAPTER: as if it had none */
    int64_t mlp_tiles; /* MLPs run in this many parts of their rows and keep nothing; 0, 1: whole */
    cr_graph_pass *graph; /* NULL: it is not */
    float aux_weight; /* factor of the routers' auxiliary loss in what backward derives; 0: none */
    /* set by the pass itself */
    cr_phase phase;
    cr_pass_index index;
    int64_t num_rows; /* that the module at hand runs on: tokens, patches, or rows of one expert */
    const cr_mem
        *angles; /* [T, head_dim / 2] float32 from mrope, of the rotation; NULL: one axis */
    const struct cr_patches *patches;         /* a vision tower's rows; NULL: not in one */
    const struct cr_expert_rows *expert_rows; /* in the backward of experts, else NULL */
    const struct cr_pass_group *group;        /* the experts that run together, else NULL */
};

/* What begins every pass: cr_model_forward and cr_model_logits do it. For modules that are run by
 * themselves; num_rows is that of the batch, if there is one, whose arrays are uploaded. */
CR_MUST cr_status cr_pass_begin(const cr_model *model, cr_pass *p, cr_err *err);

/* Run one module with its hooks, and (decoder layers) the recompute rule. Every call of a child goes
 * through these two; children without ops (Linear, norms) are computed by their parent between
 * the same hooks. Arguments as in cr_module_ops. */
CR_MUST cr_status cr_module_forward(const cr_module *m, cr_pass *p, const cr_mem *in,
                                    const cr_mem *add, cr_mem *out, cr_err *err);
CR_MUST cr_status cr_module_backward(const cr_module *m, cr_pass *p, const cr_mem *in,
                                     const cr_mem *grad_out, cr_mem *grad_in, cr_err *err);

/* What each row with a label gets from the head that the model has. A loss is given those and answers with the gradient of
 * each, so another one is a line here and what computes it in parts/head.c. */
typedef enum cr_output {
    CR_LOG_PROB, /* of the label */
    CR_ENTROPY,  /* of the distribution of the next token */
    CR_VALUE,    /* of the state after this row's token */
    CR_NUM_OUTPUTS
} cr_output;
/* A loss over all logits of a row: run gets some rows at a time from the backward, and gives their gradient, without scale. */
typedef struct cr_logits_loss {
    cr_status (*run)(void *ctx, int64_t first_row, int64_t num_rows, const float *logits,
                     float *grad, cr_err *err);
    void *ctx;
    float scale;
} cr_logits_loss;
/* Rows that run gets at a time, at most, of a micro-batch with num_rows labels. */
int64_t cr_logits_loss_rows(int64_t vocab_size, int64_t num_rows);

/* Values of a batch's rows with labels, in row order, or the gradients of a loss with respect to them: host
 * arrays [n]; NULL: not wanted, and as a gradient zero. The others have no gradient; the log-probs that one
 * id of a row has in several of them have the same bits. Equal logits: the lower id comes first. */
typedef struct cr_outputs {
    float *of[CR_NUM_OUTPUTS];
    int32_t *rank;    /* [n] of the label: 1 + ids with a larger logit */
    int64_t num_top;  /* ids with the largest logits, falling; 0: none, at most the vocabulary */
    int32_t *top_ids; /* [n, num_top] */
    float *top_log_probs;   /* [n, num_top] */
    int64_t num_candidates; /* ids of a row that are asked for; 0: none */
    const int32_t
        *candidates; /* [n, num_candidates], -1: fewer in this row, whose log-prob is -inf */
    float *candidate_log_probs; /* [n, num_candidates] */
    /* For a loss over ids, in a pass with a tape: the softmax of logits / temperature (0: no such loss). A gradient has its
     * candidates, each at most once in a row, their candidate_log_probs, and log_sum. */
    float temperature;
    float *tempered; /* [n, num_candidates] log-probs in it; as a gradient by their logits */
    float *log_sum;  /* [n] of logits / temperature */
    float *rest;     /* [n] as a gradient by each other logit, divided by its probability */
    float *states;   /* [n, num_states] what the head computes from; NULL: not wanted */
    int64_t num_states;
    const cr_logits_loss *logits_loss; /* of a gradient: beside all others; NULL: none */
    int64_t first_row;                 /* its number of this pass's first row */
    /* Rows whose label is drawn from their logits before all else (in the batch it is any id). Without a tape. */
    const cr_draw_row *const *draw; /* [n], NULL: this one has its label; NULL: all have */
    int32_t *drawn;                 /* [n] labels after that; -1: the logits are not finite */
} cr_outputs;

/* Does the model's head compute it? Nothing else may be asked for. */
bool cr_model_gives(const cr_model *model, cr_output output);

/* ids -> outputs of labelled rows. With a tape, backward may follow exactly once, with
 * the same pass, before its state serves another one. What lies below the lowest trainable parameter
 * keeps nothing and gets no backward (and no hooks of it). */
CR_MUST cr_status cr_model_forward(const cr_model *model, cr_pass *p, const cr_outputs *out,
                                   cr_err *err);
/* Load-balancing loss of that forward, all layers jointly, without factor; 0 if aux_weight was 0. */
double cr_pass_aux_loss(const cr_model *model, const cr_pass_state *state);
/* From the gradients of a scalar loss with respect to out of the last forward (that of log-probs is there).
 * Adds to param->grad of every trainable parameter. */
CR_MUST cr_status cr_model_backward(const cr_model *model, cr_pass *p, const cr_outputs *grad,
                                    cr_err *err);
/* Logits [num_rows, V] float32 of the chosen rows of the batch (generation, --logits). The tape is
 * not used; num_rows may be 0 (a prompt's first parts); labels are ignored. */
CR_MUST cr_status cr_model_logits(const cr_model *model, cr_pass *p, const int32_t *rows,
                                  int64_t num_rows, cr_mem *logits, cr_err *err);

#endif
