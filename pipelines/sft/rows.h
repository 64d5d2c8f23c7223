/* rows.h -- rows of supervised fine-tuning: what of them is learnt, and rows as samples of a batch.
 *
 * What follows a row's prompt is the response; tokens of it that `learns` leaves out have no loss. The first token has nothing to be
 * predicted from, so it is always of the prompt.
 */
#ifndef CR_SFT_ROWS_H
#define CR_SFT_ROWS_H

#include "configs/configs.h"
#include "data/prompts.h"
#include "launch/role_call.h"
#include "samples/batch.h"

/* Append the rows of the files that the block `from` of config names. The other arguments are borrowed during the call. CR_ECONFIG:
 * the files have no row, or no row has a token to learn within sequence_length. */
CR_MUST cr_status cr_sft_load(cr_dataset *data, const cr_config *config,
                              const cr_worker_config *from, cr_tokenizer *tokenizer, cr_chat *chat,
                              cr_err *err);
/* Tokens of a row that have a loss. */
size_t cr_sft_num_learnt(const cr_row *row);
/* rows [num]: which of `from`; NULL: its first num. A sample's id is its place in rows; a row without any token is no sample. The
 * batch borrows ids of the rows; it has CR_COLUMN_MASK where a row has `learns`. */
void cr_sft_batch(const cr_row *from, const uint32_t *rows, size_t num, cr_sample_batch *b);
/* Which samples of the batch go to which rank of w, so that tokens balance: the gradient does not depend on it. order, part [b->num]
 * are filled and borrowed. */
cr_deal cr_sft_deal(const cr_worker_config *w, const cr_sample_batch *b, uint32_t *order,
                    int32_t *part);

#endif
