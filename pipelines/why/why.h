/* why.h -- `croll why RUN --step N [--sample ID ..]`: of what the loss and the gradient of single samples were made.
 *
 * The step is trained once more from its files (croll replay), while train ranks say what each token's loss read (terms.h). A
 * folder of croll replay --terms needs no other replay. The terms of all samples add up to the step's losses.
 */
#ifndef CR_WHY_H
#define CR_WHY_H

#include "base/args.h"
#include "launch/hosts.h"

typedef struct cr_why_args {
    const char *run; /* output_dir of an rlvr run, or of a replay with terms */
    int64_t step;
    cr_words samples;   /* ids; none: a table of the step's samples */
    const char *out;    /* of the replay, or NULL: output/why/NAME-step-N */
    const char *device; /* or NULL: the file's */
    bool should_overwrite, has_json;
    bool
        has_gradient; /* of each sample that is asked for, the norm of its gradient alone: one more replay */
    cr_hosts_args hosts;
} cr_why_args;

/* Prints to stdout. CR_EUSAGE: no such run, step or sample; CR_ENUMERIC: a loss with a term that is not known here. */
CR_MUST cr_status cr_why_run(const cr_why_args *args, cr_err *err);

#endif
