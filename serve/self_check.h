/* self_check.h -- what a service computes before it answers: a model that was loaded wrongly must not look like one
 * that works.
 *
 * A fixed line of tokens is scored. Its log-probs must be finite, and the model must know more than nothing: where the
 * mean entropy is that of equal chances for all ids, to 1 %, there are no weights (or only small random ones). The
 * digest of the log-probs is the same on any number of ranks.
 */
#ifndef CR_SELF_CHECK_H
#define CR_SELF_CHECK_H

#include "base/digest.h"
#include "serve/scoring.h"

typedef struct cr_self_check {
    char digest[CR_DIGEST_TEXT]; /* of the float32 */
    double entropy;              /* mean over the places, 1: all ids have equal chances */
} cr_self_check;

/* On rank 0, as a round. max_len: longest line of the model. CR_EFORMAT: the model is refused. */
CR_MUST cr_status cr_self_check_run(cr_scoring *scoring, size_t place, int adapter,
                                    int64_t vocab_size, int64_t max_len, bool may_be_random,
                                    cr_self_check *out, cr_err *err);

#endif
