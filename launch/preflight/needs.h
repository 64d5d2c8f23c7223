/* needs.h -- what a run asks of its hosts, for the checks before it starts (`croll run`, `croll doctor --hosts`). */
#ifndef CR_NEEDS_H
#define CR_NEEDS_H

#include "launch/preflight/preflight.h"
#include "samples/roles.h"

typedef struct cr_needs {
    cr_preflight_needs all;
    const char *model[CR_NUM_ROLES]; /* of its roles; borrowed from the configuration */
} cr_needs;

/* Files that a process of a run has to be able to open. */
int cr_needs_files(int num_ranks);
/* What a run on these hosts needs; config NULL: only what any run does. network: the user's, or NULL.
 * has_gpus: its ranks compute on GPUs. */
void cr_needs_init(cr_needs *needs, const cr_config *config, const cr_hosts *hosts,
                   const char *network, bool has_gpus);

#endif
