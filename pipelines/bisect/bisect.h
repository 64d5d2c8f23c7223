/* bisect.h -- `croll bisect A B`: the first step, phase, sample and value in which two runs differ.
 *
 * Read from what both folders have: rollouts/, metrics.jsonl and checkpoints. Within a step the order is that of the run:
 * validation, prompts, generation, rewards, what is computed of them (advantages), metrics, then moments, masters and weights of
 * the step's checkpoint. Metrics of clocks and of
 * the number of ranks (time/, memory/, system/, global_seqlen/) are left out. Files are
 * outside input. One thread.
 */
#ifndef CR_BISECT_H
#define CR_BISECT_H

#include "base/base.h"

typedef struct cr_bisect_args {
    const char *folder[2]; /* output_dir of two runs */
    double tolerance;      /* of numbers that are not integers, relative; 0: every bit counts */
} cr_bisect_args;

typedef struct cr_bisect_result {
    bool is_found;
    int64_t step;
    const char *phase;           /* static; "validation", "prompts", .., "checkpoint" */
    char sample[32], place[256]; /* its id, or ""; member, metric or tensor, with an index */
    char value[2][80];           /* what is there, or "absent" */
    int64_t num_steps, num_samples, num_checkpoints; /* that both have and that were compared */
    int64_t end[2];                                  /* the last step of each; -1: none */
} cr_bisect_result;

/* CR_EUSAGE: not the folder of a run. CR_EIO, CR_EFORMAT: a checkpoint that cannot be read. */
CR_MUST cr_status cr_bisect(const cr_bisect_args *args, cr_bisect_result *out, cr_err *err);

#endif
