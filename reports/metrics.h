/* metrics.h -- the numbers of one step, and where they go: metrics.jsonl and the trackers.
 *
 * Flow 7 of 7. A step's metrics are a list of (name, value); names are ROLL's. Adding a name twice
 * is a broken invariant. Non-finite values are left out of the files and reported once by a warning
 * and by "system/nonfinite_metrics", because JSON has no NaN and a plot must not hide one.
 */
#ifndef CR_METRICS_H
#define CR_METRICS_H

#include "base/base.h"
#include "configs/configs.h"

typedef struct cr_metrics {
    struct cr_metric {
        char name[160];
        double value;
    } * items; /* owned */
    size_t num, capacity;
} cr_metrics;

void cr_metrics_set(cr_metrics *m, double value, const char *name_fmt, ...) CR_PRINTF(3, 4);
const double *cr_metrics_get(const cr_metrics *m, const char *name); /* NULL: none */
/* NAME/mean, NAME/max, NAME/min of num values; nothing when num is 0. */
void cr_metrics_set_summary(cr_metrics *m, const char *name, const double *values, size_t num);
void cr_metrics_clear(cr_metrics *m);
void cr_metrics_free(cr_metrics *m);

/* metrics.jsonl in output_dir, and the tracker that config->track_with names. Opening for a resumed run cuts
 * lines of steps >= first_step, so that each step has exactly one line. */
typedef struct cr_tracker cr_tracker;
CR_MUST cr_status cr_tracker_open(const cr_config *config, const char *output_dir,
                                  int64_t first_step, cr_tracker **out, cr_err *err);
CR_MUST cr_status cr_tracker_log(cr_tracker *tracker, int64_t step, cr_metrics *m, cr_err *err);
void cr_tracker_close(cr_tracker *tracker); /* accepts NULL */

#endif
