/* engine_impl.h -- what a generation engine holds; inside engine/ only.
 *
 * engine.c       life, weights and cache; requests come in, samples go out; the lists of samples
 * engine_step.c  one step: who is taken in, blocks of the cache, the rows of a forward, tokens
 * graphs.c       steps of one row a sample, whose operations a device captures
 * images.c       images of prompts: their features, and where the tokens around them stand
 *
 * A sequence waits, then fills (chunks of its prompt and, after preemption, of its output are
 * computed), then runs (one row a step). A request's prompt is filled once: samples that are let in
 * while a sibling fills follow it, and fork when it is done, drawing their first token from its row
 * of logits; samples let in later share the blocks of any sibling that runs. Blocks that the prompt
 * fills are shared and counted, the last partial one is copied, so a block that is written to has
 * one owner.
 *
 * Blocks that a sample has filled are kept by their content (prefix.h) at the end of the step; those that no sample uses
 * are idle, and count as free. A sample that begins to fill takes over kept blocks as far as they go, but for the
 * last position, whose row of logits is needed.
 *
 * Samples of all adapters share slots, blocks and limits; a step has a forward for each of those adapters, one after the other, whose
 * rows are those of its samples alone: to them it is as if the others had not been there.
 *
 * `running` is in order of admission. When blocks run out, its last sample goes back to the head of
 * `waiting`; the first one always gets what it needs, because one sequence always fits the pool.
 *
 * Ownership: the engine owns all that its pointers show to but model, dev, tokenizer and user.
 */
#ifndef CR_ENGINE_IMPL_H
#define CR_ENGINE_IMPL_H

#include "engine/engine.h"
#include "engine/prefix.h"
#include "engine/sampling.h"
#include "kernels/attention.h"
#include "kernels/lanes.h"
#include "models/pass.h"

typedef enum cri_seq_state { CRI_WAITING, CRI_FOLLOWING, CRI_FILLING, CRI_RUNNING } cri_seq_state;

typedef struct cri_seq cri_seq;

typedef struct cri_group {
    int32_t *prompt;
    int64_t num_prompt;
    cr_generating how; /* its lists are copies */
    cr_ends ends;
    struct cri_request_images *images; /* images.h; NULL: none */
    void *user;
    size_t num_alive;   /* sequences that refer to it */
    cri_seq *donor;     /* one of them that fills or runs, NULL: none */
    int64_t num_reused; /* of the prompt, by the first that filled */
    bool has_begun;     /* one has begun to fill */
} cri_group;

struct cri_seq {
    cri_seq *prev, *next; /* in its list */
    cri_group *group;
    uint64_t id;
    cri_seq_state state;
    int slot;                /* row of the block table, -1: none */
    int64_t num_blocks;      /* held, in its row of the table */
    int64_t num_cached;      /* positions in the cache */
    int64_t num_kept_blocks; /* that were kept, or found to be */
    uint64_t chain;          /* after these */
    int32_t *output;         /* [max_new_tokens] */
    float *log_probs;
    float *log_mass;   /* [max_new_tokens], as are num_kept; NULL: no filter (cr_generated) */
    int32_t *num_kept; /* of the next token, too, once it is drawn */
    cr_buf kept;       /* int32_t */
    int32_t *ranks;    /* [max_new_tokens] or NULL */
    int32_t *banned;   /* [ends and bad words] of the next draw; NULL: there are no bad words */
    cr_buf top_ids, top_log_probs; /* [num_output, num_top] */
    int64_t num_output;
    cr_buf text;
    cr_token_stream stream;
    const char *finish;
    int stop;        /* as in cr_generated */
    int32_t stop_id; /* the same */
};

typedef struct cri_seq_list {
    cri_seq *first, *last;
    int64_t num;
} cri_seq_list;

/* Steps of one shape (graphs.c). */
typedef struct cri_step_graph {
    int64_t num_rows, max_blocks; /* 0: none yet */
    int adapter;
    uint64_t draw; /* key of its draw */
    cr_graph *graph;
    uint64_t last_used; /* number of the step */
} cri_step_graph;
enum { CRI_MAX_CAPTURED = 32, CRI_ROW_STEP = 8 /* fewer rows than that are added to a step */ };

/* What a lane does of a step. */
typedef struct cri_part {
    cr_stack *scratch;
    cr_pass_state *pass_state;
    int64_t row0, row1, pick0, pick1, run0, run1;
    cri_step_graph *
        graph; /* the step's, all of whose rows are picked; those after row1 belong to no sample. Or NULL */
    int32_t *row_slot, *table, *mrope; /* of its rows and their samples alone; grown */
    size_t capacity_rows, capacity_table, capacity_mrope;
} cri_part;

struct cr_engine {
    cr_model *model;
    cr_device *dev;
    cr_engine_limits limits;
    cr_lanes *lanes;
    cri_part *parts; /* [lanes]; the first one's is also that of a step that is not cut */
    cri_seq_list waiting, running, finished; /* running: FOLLOWING, FILLING and RUNNING */
    /* cache */
    cr_mem **layer_blocks; /* [num_layers], reserved with the first weights */
    cr_dtype dtype;        /* of passes, known with the first weights */
    size_t block_bytes;
    int64_t num_blocks, max_blocks; /* of the pool; of one sequence */
    int32_t *free_block, *ref;
    int64_t num_free, num_unkept; /* all; those in free_block, the others are idle */
    cri_prefixes *prefixes;       /* NULL: none are kept */
    int32_t *table;               /* [max_running + 1, max_blocks]; the last: of added rows */
    int *free_slot;
    int num_free_slots;
    /* one forward */
    int adapter;
    int32_t *ids, *row_slot, *row_pos, *pick; /* [cri_max_rows] */
    int32_t (*row_axes)[3];                   /* as many: positions; NULL: the model has one axis */
    cr_vision_run *runs;                      /* as many: rows that take features */
    int64_t num_runs;
    cri_seq **picked;
    cr_draw_row *draw_rows; /* as many */
    cr_drawn *drawn;
    cr_mem *logits; /* [logits_rows, vocab] float32, grown */
    int64_t logits_rows;
    cri_step_graph graphs[CRI_MAX_CAPTURED];
    cr_graph_pass graph_pass; /* of all of them */
    uint64_t num_graph_steps;
    /* packed weights */
    struct {
        cr_mem *data;
        size_t num_bytes;
    } * packed; /* [num_params] */
    size_t packed_bytes;
    const cr_tokenizer *tokenizer;
    cr_engine_on_token on_token;
    void *on_token_ctx;
    cr_engine_stats stats;
};

static inline int64_t cri_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Blocks that hold positions 0 .. num-1. */
static inline int64_t cri_blocks_of(int64_t num)
{
    return (num + CR_KV_BLOCK - 1) / CR_KV_BLOCK;
}

/* Of one step. */
static inline int64_t cri_max_rows(const cr_engine *e)
{
    return e->limits.max_rows + e->limits.max_running + CRI_ROW_STEP;
}

static inline size_t cri_logits_bytes(const cr_engine *e, int64_t rows)
{
    return (size_t)(rows * e->model->config.vocab_size) * sizeof(float);
}
void cri_drop_logits(cr_engine *e);

/* How num samples draw their next token, and where their numbers go. */
void cri_prepare_draws(cri_seq *const *seqs, int64_t num, cr_draw_row *rows, cr_drawn *out);
/* What the step is captured in, with rows added to those of its shape, and all rows put for their draws; NULL: it is not. */
CR_MUST cr_status cri_graph_of_step(cr_engine *e, int64_t num_rows, int64_t num_picks,
                                    cri_step_graph **out, cr_err *err);
void cri_graphs_drop(cr_engine *e); /* all */

/* before NULL: at the end. */
void cri_seq_insert(cri_seq_list *l, cri_seq *s, cri_seq *before);
void cri_seq_take_out(cri_seq_list *l, cri_seq *s);
/* s leaves `running`: its slot and its blocks are free again, or its siblings' alone. */
void cri_seq_leave(cr_engine *e, cri_seq *s);

#endif
