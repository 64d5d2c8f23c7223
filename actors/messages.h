/* messages.h -- reading the records that travel on the streams (docs/exchange.md).
 *
 * A record may come from any process that reaches Redis: everything is checked before it is used. CR_EFORMAT
 * says what is wrong. What is read borrows from the record unless it is said to be owned.
 */
#ifndef CR_MESSAGES_H
#define CR_MESSAGES_H

#include "actors/rollout.h"
#include "exchange/record.h"

/* `prompts`: one prompt and the ids of the samples that are wanted of it, at least one. */
typedef struct cr_prompt {
    const char *domain, *row;
    size_t domain_bytes, row_bytes;
    bool is_validation;
    const int32_t *ids;
    const uint64_t *samples;
    size_t num_ids, num_samples;
} cr_prompt;
CR_MUST cr_status cr_prompt_read(const cr_record *r, cr_prompt *out, cr_err *err);

/* `scored`: fills the sample that it is of. What it has is owned, also after a failure. */
CR_MUST cr_status cr_sample_read(const cr_record *r, cr_sample *s, cr_err *err);
void cr_sample_free(cr_sample *s);

/* `cmd:*` of train ranks and references: samples to pass over. */
typedef struct cr_samples {
    const int32_t *prompts, *lengths, *ids, *mini;
    size_t num, num_ids, num_tokens;
    size_t *first_id, *first_token; /* [num] (owned) */
    const float *old, *ref, *infer, *advantages, *mask, *final, *scores, *weights;
} cr_samples;

/* Ids are below vocab_size. Free with cr_samples_free, also after a failure. */
CR_MUST cr_status cr_samples_read(const cr_record *r, int64_t vocab_size, cr_samples *s,
                                  cr_err *err);
void cr_samples_free(cr_samples *s);
/* An array of exactly num numbers. */
CR_MUST cr_status cr_floats_read(const cr_record *r, const char *name, size_t num,
                                 const float **out, cr_err *err);

#endif
