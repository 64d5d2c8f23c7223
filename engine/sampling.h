/* sampling.h -- what settings of generation mean for one row of logits (cr_draw, kernels/attention.h).
 */
#ifndef CR_SAMPLING_H
#define CR_SAMPLING_H

#include "engine/engine.h"
#include "kernels/attention.h"

/* Ids that end a sample: the model's and how->stop_ids; owned by the caller. */
typedef struct cr_ends {
    int32_t *ids;
    size_t num;
} cr_ends;
cr_ends cr_ends_of(const cr_generating *how, const int32_t *eos_ids, size_t num_eos);
size_t cr_bad_words_num_ids(const cr_bad_words *words); /* of all together */
/* Is an id left to draw at every place: one that is allowed, ends no sample (before min_new_tokens) and is the last of no
 * bad word? */
bool cr_any_id_left(const cr_generating *how, const cr_ends *ends, int64_t vocab_size);
/* CR_EARG: an id of how->processors or of how->bad_words is outside the vocabulary, or no id is left to draw. */
CR_MUST cr_status cr_processors_check(const cr_generating *how, const cr_ends *ends,
                                      int64_t vocab_size, cr_err *err);

/* The number in [0, 1) that draws the token at `position` of a sequence, counted from the prompt's first token: a turn that goes on
 * from ids that were drawn before draws anew, and what is continued draws what the whole would have drawn. */
float cr_draw_number(uint64_t seed, uint64_t sample_id, uint64_t position);
/* u: in [0, 1). prompt and output are the history that penalties look at. All is borrowed; ends are read while
 * min_new_tokens are not there. */
cr_draw_row cr_draw_row_of(const cr_generating *how, const cr_ends *ends, float u,
                           const int32_t *prompt, size_t num_prompt, const int32_t *output,
                           size_t num_output);
/* Also ban the last id of each of how->bad_words whose other ids the output of `row` ends with. memory
 * [row->processors.num_banned + how->bad_words.num] is borrowed by the row. */
void cr_draw_row_ban_words(cr_draw_row *row, const cr_generating *how, int32_t *memory);

#endif
