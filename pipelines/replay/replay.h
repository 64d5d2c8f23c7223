/* replay.h -- `croll replay RUN --step N`: one step of a run once more, from its files.
 *
 * The newest checkpoint before the step is taken, the steps since then are trained on their recorded samples (rollouts_from), and so is
 * step N. Nothing is sampled or scored. On the same mesh and machine every number is the run's to the bit. With changes, which count in
 * step N alone, what it would have been: loss, gradient norm, next weights.
 */
#ifndef CR_REPLAY_H
#define CR_REPLAY_H

#include "base/args.h"
#include "launch/hosts.h"

typedef struct cr_replay_args {
    const char *run; /* output_dir of an rlvr run */
    int64_t step;
    const char *out;    /* or NULL: output/replay/NAME-step-N */
    const char *device; /* or NULL: the file's */
    cr_words changes;   /* "reward.ID=X" (sample ID gets this reward), or key=value of the file */
    bool should_overwrite, has_json;
    bool is_quiet;  /* nothing is printed */
    bool has_terms; /* OUT/terms/step-N.jsonl is written (docs/why.md) */
    const uint64_t
        *only; /* id of the sample whose gradient alone is derived in the step; NULL: all */
    cr_hosts_args hosts;
} cr_replay_args;

/* output/KIND/NAME-step-N, owned by the caller. */
char *cr_replay_default_out(const char *kind, const char *run, int64_t step);
/* Prints what was compared to stdout. *differ: a number or a weight is not the recorded one. CR_EUSAGE, CR_ECONFIG: nothing was
 * started. */
CR_MUST cr_status cr_replay_run(const cr_replay_args *args, bool *differ, cr_err *err);

#endif
