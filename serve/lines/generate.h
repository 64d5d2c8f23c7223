/* generate.h -- `croll generate`: completions of prompts, line by line, on one rank or several.
 *
 * Errors: of a line in its answer (exit code 2), of all else as cr_session_leave has it. Arguments are borrowed. The thread
 * that opens the world calls.
 */
#ifndef CR_GENERATE_H
#define CR_GENERATE_H

#include "kernels/sampling_ranges.h" /* defaults, for the command's options */
#include "serve/lines/line_images.h"
#include "serve/lines/lines_run.h"

/* What options say; what they leave out comes from generating_args of the keys. */
typedef struct cr_generate_args {
    const char *prompt;                            /* the only one, or NULL: lines */
    double temperature, top_p, repetition_penalty; /* NAN: not given */
    int64_t max_new_tokens, top_k, num, seed;      /* CR_NOT_GIVEN, but for seed */
    double presence_penalty, frequency_penalty;
    int64_t min_new_tokens;
    cr_words stop;
    bool has_json; /* an object a completion, else its text */
    cr_line_image_words images;
} cr_generate_args;

/* Returns the exit code of the command. */
int cr_generate_run(const cr_session_call *call, const cr_generate_args *args);

#endif
