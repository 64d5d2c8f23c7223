/* messages.h -- the records of a sample's life on the streams (docs/exchange.md), from and to any process that
 * reaches Redis, and the line that rollouts/ keeps of it: everything is checked before it is used, and CR_EFORMAT says what is
 * wrong. What is read borrows from the record or the line unless it is said to be owned.
 *
 * Another number for each token in the files: a row of the line's table for its column (rl/batch_columns.h).
 */
#ifndef CR_MESSAGES_H
#define CR_MESSAGES_H

#include "rl/batch_columns.h"
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
extern const cr_message cr_sample_lines;

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
    cr_field_text status, detail;
    cr_field_json metrics;
    cr_field_array token_rewards;
} cr_scored;

/* A line of rollouts/. */
typedef struct cr_sample_line {
    cr_field_text id, domain;
    int64_t group;
    cr_field_json tag, prompt, ground_truth, row; /* of its data row */
    cr_field_array prompt_ids;
    cr_response response;
    cr_scored verdict;
    cr_field_json
        rewards; /* what each block said, where there are several: its name and its cr_scored */
    cr_field_array of[CR_NUM_COLUMNS]; /* what the step made; most are in no line */
} cr_sample_line;

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

/* The line of a sample, with its newline; line: what is of its row, the rest is set. has_ids: kept ids, too. */
CR_MUST cr_status cr_sample_line_write(const cr_sample *s, const cr_config *config, bool has_ids,
                                       cr_sample_line *line, cr_buf *out, cr_err *err);
/* A line as a sample of the configuration, without row and group, which is owned, also after a failure; line is in memory. */
CR_MUST cr_status cr_sample_line_read(json_t *from, const cr_config *config, cr_arena *memory,
                                      cr_sample_line *line, cr_sample *out, cr_err *err);
void cr_sample_reward_free(cr_sample_reward *x);
void cr_sample_free(cr_sample *s);

#endif
