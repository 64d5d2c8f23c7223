/* table.h -- a model's vocabulary head without the rest of it: logits from states (cr_outputs.states), with the bits of its own head.
 *
 * Ownership: a cr_vocab_table owns its memory of the device. One thread.
 */
#ifndef CR_WORDS_TABLE_H
#define CR_WORDS_TABLE_H

#include "models/models.h"

typedef struct cr_vocab_table cr_vocab_table;
/* Of a MODEL folder, in the dtype of its passes. The whole table is on this device. */
CR_MUST cr_status cr_vocab_table_open(const char *folder, cr_device *dev, cr_dtype dtype,
                                      cr_vocab_table **out, cr_err *err);
/* What it takes of the device, with the logits of num rows at a time. */
int64_t cr_vocab_table_bytes(int64_t num_ids, int64_t num_states, cr_dtype dtype, int64_t num);
void cr_vocab_table_close(cr_vocab_table *t); /* accepts NULL */
int64_t cr_vocab_table_num_ids(const cr_vocab_table *t);
int64_t cr_vocab_table_num_states(const cr_vocab_table *t);
/* states [num, num_states], host; logits [num, num_ids], host. */
CR_MUST cr_status cr_vocab_table_logits(cr_vocab_table *t, const float *states, int64_t num,
                                        float *logits, cr_err *err);

#endif
