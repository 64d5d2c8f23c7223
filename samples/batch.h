/* batch.h -- samples that ranks of a role pass over, with numbers for each response token or sample (rl/batch_columns.h): the
 * pipeline's side of log_probs, train_step, sft_step and dpo_step; samples/train.h is the side of the ranks.
 *
 * Ownership: a batch owns its columns; segments, ids and kept ids are borrowed.
 */
#ifndef CR_SAMPLE_BATCH_H
#define CR_SAMPLE_BATCH_H

#include "exchange/record.h"
#include "rl/batch_columns.h"
#include "samples/items/items.h"
#include "samples/sample.h"

typedef struct cr_sample_batch {
    struct cr_batch_sample {
        uint64_t id;
        const cr_segment *segments; /* the prompt first */
        size_t num_segments;
        const cr_kept *kept; /* NULL: no filters */
        float temperature;   /* with has_temperatures: it was sampled with */
        cr_item_refs items;  /* images of its prompt, the same for the same prompt; borrowed */
        size_t num_ids;      /* of the sequence, and */
        size_t num_response; /* of the response, once they are counted */
    } * samples;             /* [num] */
    cr_segment (*pairs)[2];  /* [num] those of cr_sample_batch_pair (owned) */
    size_t num, num_tokens;
    bool has_ids;               /* of samples, for errors of ranks */
    bool has_temperatures;      /* of samples: domains differ */
    size_t *start;              /* [num + 1] of response tokens */
    double *of[CR_NUM_COLUMNS]; /* [num_tokens] or [num]; NULL: it has none */
    struct
        cr_batch_teacher { /* what a teacher says of each response token: its likeliest ids, or its states */
        size_t num;     /* of a token; 0: there are none */
        int32_t *ids;   /* [num_tokens, num] falling by log-prob; NULL: numbers are states */
        float *numbers; /* [num_tokens, num] log-probs */
    } teacher;
} cr_sample_batch;

/* Room for num samples, which the caller fills before cr_sample_batch_count; columns come after that. */
void cr_sample_batch_init(cr_sample_batch *b, size_t num);
void cr_sample_batch_count(cr_sample_batch *b);
/* The segments of sample i: a prompt and a response. */
void cr_sample_batch_pair(cr_sample_batch *b, size_t i, const int32_t *prompt, size_t num_prompt,
                          const int32_t *response, size_t num_response);
/* [num_tokens] (owned by the caller): tokens that follow an observed one. */
bool *cr_sample_batch_after_observed(const cr_sample_batch *b);
/* The columns infer, of the segments' log-probs, and mask, all 1. */
void cr_sample_batch_add_sampled(cr_sample_batch *b);
void cr_sample_batch_free(cr_sample_batch *b);
/* The column, made of zeros unless it is there. */
double *cr_sample_batch_add(cr_sample_batch *b, cr_batch_column column);
/* Those of its columns that a train_step sends, as bits 1 << cr_batch_column. */
unsigned cr_sample_batch_columns(const cr_sample_batch *b);

/* Which samples go where: `num` parts, one for each batch of a role (ranks of a ulysses group get the same part). */
typedef struct cr_deal {
    int num;
    const uint32_t *order; /* [samples] in which each part has its own; NULL: 0, 1, .. */
    const int32_t *part;   /* [samples] the part of each; NULL: each in turn */
    const int32_t *mini;   /* [samples] mini-batch of each; NULL: 0 */
} cr_deal;

/* The samples of a part, with these columns, into a record that owns its arrays (docs/exchange.md). A prompt that
 * several samples of the part have in common is written once. */
void cr_sample_batch_write(const cr_sample_batch *b, const cr_deal *deal, int part,
                           unsigned columns, cr_record *out);
/* The array `name` of a reply, a number for each response token of the part, into the column. CR_EFORMAT: it has
 * another length, or is not there. */
CR_MUST cr_status cr_sample_batch_read(cr_sample_batch *b, const cr_deal *deal, int part,
                                       const cr_record *reply, const char *name,
                                       cr_batch_column column, cr_err *err);
/* num ids (or numbers of its state) of each response token of the part, which a teacher's reply has, into b->teacher. CR_EFORMAT. */
CR_MUST cr_status cr_sample_batch_read_teacher(cr_sample_batch *b, const cr_deal *deal, int part,
                                               const cr_record *reply, size_t num, bool is_state,
                                               cr_err *err);

#endif
