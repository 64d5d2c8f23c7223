/* worker.h -- MODEL and worker keys of a command (`croll logprobs MODEL model_args.dtype=fp32 ..`): the
 * model, its weights and its device, ready to run on one rank.
 *
 * Keys are those of a YAML worker block without its name (reference/cli.md 2). Keys of meshes and
 * strategies are refused as not available yet.
 *
 * Ownership: a cr_worker owns everything in it but `folder`. Threads: one caller.
 */
#ifndef CR_WORKER_H
#define CR_WORKER_H

#include "actors/lines.h"
#include "base/args.h"
#include "models/weights.h"

typedef enum cr_worker_kind { CR_WORKER_INFER, CR_WORKER_GENERATE, CR_WORKER_TRAIN } cr_worker_kind;

typedef struct cr_worker {
    const char *folder; /* borrowed from words */
    cr_device *dev;
    cr_model *model;
    cr_full_weights full; /* with gradients if it trains */
    cr_stack *tape, *scratch;
    cr_dtype dtype;
    int64_t batch_size; /* lines of one forward; samples at a time if it generates */
    bool should_recompute;
} cr_worker;

/* words: MODEL, then key=value. device_name: "cpu", or NULL for the best one here. */
CR_MUST cr_status cr_worker_open(cr_worker *worker, cr_worker_kind kind, const cr_words *words,
                                 const char *device_name, cr_err *err);
void cr_worker_close(cr_worker *worker); /* {0} is fine */
/* What lines this model takes. */
cr_line_rules cr_worker_rules(const cr_worker *worker);
/* A pass over batch with the worker's memory; tape: whether a backward follows. */
cr_pass cr_worker_pass(cr_worker *worker, const cr_batch *batch, bool has_tape);

/* ---- lines as one packed batch ---- */

typedef struct cr_packed {
    int32_t *ids, *positions, *labels, *cu_seqlens; /* owned, grow only */
    size_t capacity_tokens, capacity_seqs;
    cr_batch batch; /* of the arrays above */
} cr_packed;

void cr_packed_clear(cr_packed *packed);
void cr_packed_free(cr_packed *packed);
/* Append a good line. Row t has label labels[t + 1] (ids[t + 1] if the line has none); the last row
 * has no label. Returns the number of labelled rows. */
int64_t cr_packed_add(cr_packed *packed, const cr_line *line);

#endif
