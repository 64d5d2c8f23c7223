/* recorded.h -- a step's rollout from the files of a run (rollouts_from), in place of engines and rewards.
 *
 * Flow 5 of 7, as rollout.h: what cr_rollout_write wrote is read back, with the same floats. A line's prompt is looked for among the rows of
 * the data files, which have to be those of that run. Files are outside input: CR_EFORMAT names file, line and member.
 */
#ifndef CR_RECORDED_ROLLOUT_H
#define CR_RECORDED_ROLLOUT_H

#include "pipelines/rollout.h"

/* folder/rollouts/step-N.jsonl; owned by the caller. */
char *cr_recorded_path(const char *folder, int64_t step);
/* folder: output_dir of the run that wrote rollouts/step-N.jsonl. out: owned by the caller, also after a failure. What the file
 * does not have is 0: groups that were filtered or drawn again, retries, seconds. Call after
 * cr_recorded_path names a file. */
CR_MUST cr_status cr_recorded_rollout(const char *folder, int64_t step, const cr_config *config,
                                      const cr_dataset *data, cr_rollout *out, cr_err *err);
/* Cursors after the step drew these groups, whose places were distributed (cr_cursors_deal): past those that it rejected, too. False: the
 * orders are not those in which that run drew, as with another seed; cursors are then as they were. */
bool cr_recorded_follow(const cr_rollout *r, const cr_dataset *data, cr_order *orders,
                        cr_cursor *cursors, size_t num_domains);

#endif
