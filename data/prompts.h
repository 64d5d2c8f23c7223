/* prompts.h -- from a data row to token ids: columns, templates, domains, labels (docs/data.md).
 *
 * Flow 2 of 7. RLVR: `messages` (a list, or a list as JSON text) through the chat template with the
 * generation prompt, or `prompt` (ready text); kept when 5 < length <= prompt_length. SFT: prompt and
 * answer columns, labels on the answer only; or `messages` of any number of turns, labels on every turn
 * of the assistant, its end-of-turn token included. Longer than sequence_length is cut; a row whose images would be is left out. Pairs (DPO): a prompt and two
 * answers, as texts, as messages, or as ready text (data_args.prompt); where an answer makes the row longer than sequence_length,
 * the pair is left out.
 */
#ifndef CR_PROMPTS_H
#define CR_PROMPTS_H

#include "configs/configs.h"
#include "data/row_images.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct cr_prompt_maker {
    const cr_config *config;
    const cr_worker_config *from; /* its data_args name the columns */
    cr_tokenizer *tokenizer;      /* borrowed */
    cr_chat *chat;                /* borrowed */
    int64_t prompt_length;
    /* counted: rows left out, and rows cut */
    size_t num_short, num_long, num_unknown, num_cut;
    size_t num_long_pairs; /* left out: longer than sequence_length */
    size_t num_same_pairs; /* whose answers are the same ids: their gradient is 0, or rpo_alpha's */
    size_t num_merged;     /* whose answers begin before the end of the prompt's ids */
    size_t num_unread; /* RLVR: rows left out because their rule can judge none of their samples */
    char first_unread[300]; /* of these, the line and the reason */
    size_t num_answered;    /* RLVR: chats that end with a turn of the assistant */
    size_t num_cut_images;  /* SFT: left out, sequence_length would cut their images */
    cr_row_images images;   /* of the row at hand; owned */
} cr_prompt_maker;

void cr_prompt_maker_close(cr_prompt_maker *maker); /* what it owns */

/* Append the rows of a file (cr_dataset_load), each through one of the encoders below; images of many rows are decoded at a time. */
CR_MUST cr_status cr_prompt_load(cr_prompt_maker *maker, cr_row_encode encode, cr_dataset *data,
                                 const char *path, cr_err *err);
/* cr_row_encode functions; ctx is a cr_prompt_maker. */
CR_MUST cr_status cr_prompt_encode_rlvr(void *ctx, cr_row *row, cr_err *err);
CR_MUST cr_status cr_prompt_encode_sft(void *ctx, cr_row *row, cr_err *err);
CR_MUST cr_status cr_prompt_encode_pair(void *ctx, cr_row *row, cr_err *err);
/* Says what was left out or cut, if anything was. */
void cr_prompt_report(const cr_prompt_maker *maker, const char *what);

#endif
