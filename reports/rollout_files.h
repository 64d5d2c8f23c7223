/* rollout_files.h -- the files of rollouts/ in a run's folder. */
#ifndef CR_ROLLOUT_FILES_H
#define CR_ROLLOUT_FILES_H

#include "base/base.h"

/* Paths of rollouts/step-*.jsonl of a run (or of its folder rollouts), in order of steps; the list and its texts are owned by the caller.
 * Returns their number. */
size_t cr_rollout_files(const char *folder, char ***paths);

#endif
