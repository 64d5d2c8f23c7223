/* tracker.h -- where the metrics of a step go: metrics.jsonl, and the tracker that config->track_with names.
 *
 * Flow 7 of 7. Non-finite values are left out of the files and reported once by a warning and by
 * "system/nonfinite_metrics", because JSON has no NaN and a plot must not hide one.
 */
#ifndef CR_TRACKER_H
#define CR_TRACKER_H

#include "configs/configs.h"
#include "reports/metrics.h"

typedef struct cr_tracker cr_tracker;
/* For a resumed run, cuts the lines of steps >= first_step of metrics.jsonl in output_dir, so that each step has
 * exactly one line. */
CR_MUST cr_status cr_tracker_open(const cr_config *config, const char *output_dir,
                                  int64_t first_step, cr_tracker **out, cr_err *err);
CR_MUST cr_status cr_tracker_log(cr_tracker *tracker, int64_t step, cr_metrics *m, cr_err *err);
void cr_tracker_close(cr_tracker *tracker); /* accepts NULL */

#endif
