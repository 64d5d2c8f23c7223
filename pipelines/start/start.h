/* start.h -- a run from its configuration to its end: the checks before it, its processes, its pipeline, its report.
 *
 * Nothing is started or written before all checks have passed. Errors name the key, the file or the host. Arguments are
 * borrowed. One thread.
 */
#ifndef CR_START_H
#define CR_START_H

#include "configs/configs.h"
#include "launch/hosts.h"

struct cr_rollout;

typedef struct cr_start_args {
    bool should_overwrite; /* a folder that holds a run */
    cr_hosts_args hosts;
    const char *network; /* between them, or NULL: it is found out */
    int64_t
        end_step; /* the run ends after the step before this one, which is saved; 0: max_steps */
    /* changes to recorded samples (rollouts_from) before anything is learned from them; NULL: none */
    cr_status (*change)(void *context, struct cr_rollout *rollout, cr_err *err);
    void *change_context;
    /* of the last step: */
    bool has_terms;       /* what each sample's loss was made of is written: terms/ (docs/why.md) */
    const uint64_t *only; /* id of the sample whose gradient alone is derived; NULL: all */
} cr_start_args;

/* `croll run`. */
CR_MUST cr_status cr_start_run(cr_config *config, const cr_start_args *args, cr_err *err);
/* `croll config --deep`: all that a run looks at before it writes anything, but the other hosts. d: what is wrong at a key. */
CR_MUST cr_status cr_start_look(const cr_config *config, cr_diagnostics *d, cr_err *err);

#endif
