/* train.h -- what train ranks and references get of samples, and what they answer (docs/exchange.md).
 *
 * Everything is checked before it is used: CR_EFORMAT says what is wrong. What is read borrows from the record unless it
 * is said to be owned.
 */
#ifndef CR_TRAIN_RECORDS_H
#define CR_TRAIN_RECORDS_H

#include "exchange/record.h"
#include "rl/batch_columns.h"
#include "rl/loss.h"
#include "rl/pairs.h"
#include "samples/items/items.h"

/* `cmd:*` of train ranks and references: samples to pass over. */
typedef struct cr_samples {
    const int32_t *ids, *mini;
    const uint64_t *sample_ids; /* for errors; NULL: they have none (sft) */
    const float *temperatures;  /* [num] that they were sampled with; NULL: that of the file */
    size_t num, num_tokens;     /* samples; tokens of their responses */
    size_t *first_id;           /* [num + 1] (owned) of its sequence, all segments joined, in ids */
    size_t *first_token;        /* [num + 1] (owned) of its response, in all tokens */
    int32_t *place;             /* [num_tokens] (owned) of a token in its sequence, at least 1 */
    int32_t *all_ids;           /* ids, where samples share prompts in the record (owned) */
    const int32_t *num_kept, *kept_ids; /* of response tokens (cr_kept); NULL: they have none */
    size_t *first_kept;                 /* [num_tokens] (owned) */
    cr_item_refs *items; /* [num] images of their prompts (owned); NULL: none has any */
} cr_samples;

/* Ids are below vocab_size. Free with cr_samples_free, also after a failure. */
CR_MUST cr_status cr_samples_read(const cr_record *r, int64_t vocab_size, cr_samples *s,
                                  cr_err *err);
void cr_samples_free(cr_samples *s);
/* Of a sample: ids of its sequence, and tokens of its response. */
static inline size_t cr_samples_num_ids(const cr_samples *s, size_t i)
{
    return s->first_id[i + 1] - s->first_id[i];
}
static inline size_t cr_samples_num_tokens(const cr_samples *s, size_t i)
{
    return s->first_token[i + 1] - s->first_token[i];
}

/* ---- train_step, sft_step, dpo_step and distill_step: what both sides of the stream share ---- */

/* Of a distill_step: what the teacher says of each response token. */
typedef struct cr_teacher_outputs {
    size_t num; /* ids of a token, or numbers of its state; at least 1 */
    const int32_t *
        ids; /* below the vocabulary's size and each once in a token; -1: one that the student does not have; NULL: states */
    const float *numbers; /* log-probs (of -1: -inf), or states */
} cr_teacher_outputs;
/* What a teacher says of one token: ids [num], each once, below vocab_size, with a finite log-prob, or -1 with -inf; sorted [num] is scratch.
 * CR_EFORMAT, CR_ENUMERIC. */
CR_MUST cr_status cr_chosen_check(const int32_t *ids, const float *log_probs, size_t num,
                                  int64_t vocab_size, int32_t *sorted, cr_err *err);
CR_MUST cr_status cr_teacher_outputs_read(const cr_record *r, const cr_samples *s,
                                          int64_t vocab_size, cr_teacher_outputs *out, cr_err *err);

/* The columns that travel (rl/batch_columns.h), of s. NULL: an optional one that did not come, or one whose numbers are all 1. */
CR_MUST cr_status cr_step_columns_read(const cr_record *r, const cr_samples *s,
                                       const float *out[CR_NUM_COLUMNS], cr_err *err);

/* `counts`: numbers of each mini-batch over all ranks. */
typedef enum cr_mini_count {
    CR_MINI_FINAL_TOKENS,  /* of dpo: of chosen answers */
    CR_MINI_FINAL_SAMPLES, /* of dpo: pairs */
    CR_MINI_TOKENS,
    CR_MINI_SAMPLES,
    CR_MINI_ENTROPY_TOKENS,
    CR_MINI_ENTROPY_SAMPLES,
    CR_MINI_WIDTH, /* the longest response that may be */
    CR_MINI_COUNTS
} cr_mini_count;
/* [num_minis][CR_MINI_COUNTS], borrowed. */
CR_MUST cr_status cr_counts_read(const cr_record *r, size_t num_minis, const uint64_t **out,
                                 cr_err *err);

cr_denominators cr_mini_denominators(const uint64_t counts[CR_MINI_COUNTS]);

/* The reply: sums over micro-batches (of this rank's part) and numbers of updates (the same on every
 * rank). A number that is not finite cannot be written as JSON: it is left out, and read as NaN. */
typedef struct cr_train_sums {
    cr_loss_metrics loss; /* infer_diff_max: before the first update */
    cr_value_metrics value;
    cr_pair_metrics pairs;
    double distill_loss, student_loss; /* of a distill_step: parts of loss.total_loss, unweighted */
    double entropy_sum;
    double grad_norm; /* sum over the updates that were not skipped */
    int64_t num_compared, num_different, num_updates, num_skipped;
} cr_train_sums;
void cr_train_sums_write(const cr_train_sums *s, cr_record *r);
CR_MUST cr_status cr_train_sums_read(const cr_record *r, cr_train_sums *s, cr_err *err);
/* is_same_update: from is another rank's part of the updates that to has already. */
void cr_train_sums_add(cr_train_sums *to, const cr_train_sums *from, bool is_same_update);

/* An array of exactly num numbers. */
CR_MUST cr_status cr_floats_read(const cr_record *r, const char *name, size_t num,
                                 const float **out, cr_err *err);

#endif
