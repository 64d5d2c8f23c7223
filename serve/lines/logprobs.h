/* logprobs.h -- `croll logprobs`: log-probs of given tokens, line by line, on one rank or several.
 *
 * Errors and ownership as in generate.h.
 */
#ifndef CR_LOGPROBS_H
#define CR_LOGPROBS_H

#include "serve/lines/line_images.h"
#include "serve/lines/lines_run.h"

typedef struct cr_logprobs_args {
    bool has_entropy, has_rank;
    int64_t num_top;
    const char *logits; /* a safetensors file for the logits of all lines, or NULL */
    cr_line_image_words images;
} cr_logprobs_args;

/* Returns the exit code of the command. */
int cr_logprobs_run(const cr_session_call *call, const cr_logprobs_args *args);

#endif
