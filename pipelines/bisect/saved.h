/* saved.h -- where two checkpoints of a step differ first (pipelines/ only). */
#ifndef CR_BISECT_SAVED_H
#define CR_BISECT_SAVED_H

#include "pipelines/bisect/values.h"

/* folder: of checkpoint-N in each run. In this order: what the pipeline keeps (has_state), first moments, second moments, masters, weights, other
 * files. *is_found: at->path is "ROLE.m MODEL's tensor [index]", or a file and a byte. */
CR_MUST cr_status cri_saved_differ(const char *const folder[2], bool has_state, double tolerance,
                                   bool *is_found, cri_difference *at, cr_err *err);

#endif
