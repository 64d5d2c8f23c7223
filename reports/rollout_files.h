/* rollout_files.h -- what a run's folder has of its steps: the files of rollouts/, the lines of metrics.jsonl. */
#ifndef CR_ROLLOUT_FILES_H
#define CR_ROLLOUT_FILES_H

#include "base/json.h"

/* Paths of rollouts/step-*.jsonl of a run (or of its folder rollouts), in order of steps; the list and its texts are owned by the caller.
 * Returns their number. */
size_t cr_rollout_files(const char *folder, char ***paths);
/* Lines of metrics.jsonl as an array, owned by the caller; one that a death has cut short is left out. */
json_t *cr_metrics_lines(const char *output_dir);

#endif
