/* messages.h -- the records of a sample's life on the streams (docs/exchange.md), from and to any process that
 * reaches Redis: everything is checked before it is used, and CR_EFORMAT says what is wrong. What is read borrows from
 * the record unless it is said to be owned.
 */
#ifndef CR_MESSAGES_H
#define CR_MESSAGES_H

#include "samples/fields.h"
#include "samples/items/items.h"
#include "samples/sample.h"

typedef enum cr_message_kind {
    CR_MESSAGE_PROMPT,   /* pipeline to engines */
    CR_MESSAGE_ROW,      /* pipeline to reward workers, once a prompt */
    CR_MESSAGE_QUESTION, /* engine to reward workers, one for each reward of a sample */
    CR_MESSAGE_RESPONSE, /* engine to pipeline */
    CR_MESSAGE_VERDICT,  /* reward worker to pipeline */
    CR_NUM_MESSAGES
} cr_message_kind;
extern const cr_message cr_messages[CR_NUM_MESSAGES];

typedef struct cr_prompt {
    int64_t is_validation;
    cr_field_array ids, samples, blocks;     /* blocks of rewards: indices into config->rewards */
    cr_field_array item_digests, item_grids; /* of images, in the order of placeholders */
    cr_item_refs items;                      /* the same, as cr_prompt_read checked them */
} cr_prompt;

typedef struct cr_prompt_row {
    cr_field_text text; /* the data row as JSON */
    cr_field_array ids; /* of the prompt */
} cr_prompt_row;

typedef struct cr_question {
    cr_field_text response, finish;
    cr_field_array ids; /* of the response */
} cr_question;

typedef struct cr_response {
    int64_t version;
    cr_field_text text, finish;
    cr_field_array ids, log_probs;               /* at least one token */
    cr_field_array log_mass, num_kept, kept_ids; /* cr_kept; data NULL: no filters */
    cr_field_array spans, observed, versions;    /* samples/segments.h; data NULL: one segment */
} cr_response;

typedef struct cr_scored {
    double score, reward, seconds;
    cr_field_text status, detail, metrics;
    cr_field_array token_rewards;
} cr_scored;

/* A message as the bytes of a record; packed is replaced. */
CR_MUST cr_status cr_message_pack(cr_message_kind kind, const void *message, cr_buf *packed,
                                  cr_err *err);
/* At least one sample and one block. */
CR_MUST cr_status cr_prompt_read(const cr_record *r, cr_prompt *out, cr_err *err);

/* A sample's response, which has room for max_ids tokens. What it has is owned, also after a failure. */
CR_MUST cr_status cr_sample_read(const cr_record *r, size_t max_ids, cr_sample *s, cr_err *err);
/* What a block of rewards says of a sample of num_ids tokens; likewise. */
CR_MUST cr_status cr_sample_reward_read(const cr_record *r, size_t num_ids, cr_sample_reward *x,
                                        cr_err *err);
void cr_sample_reward_free(cr_sample_reward *x);
void cr_sample_free(cr_sample *s);

#endif
