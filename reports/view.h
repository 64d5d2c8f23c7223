/* view.h -- what a person sees of a running job: one line a step, always in the same order (step,
 * reward, loss, kl, clip fraction, grad norm, lr, tokens/s, time by phase), with a small curve of
 * the score and the time that is left when stderr is a terminal.
 */
#ifndef CR_VIEW_H
#define CR_VIEW_H

#include "reports/metrics.h"

typedef struct cr_view cr_view;
/* score_name: the metric that the curve shows ("critic/score/mean"). */
cr_view *cr_view_create(int64_t first_step, int64_t max_steps, const char *score_name);
void cr_view_free(cr_view *view);
/* One line for a finished step; step_s is its duration in seconds. */
void cr_view_step(cr_view *view, int64_t step, const cr_metrics *m, double step_s);
/* Progress inside a step: a transient line under the last one on a terminal, else a line of the log every 30 s. */
void cr_view_progress(cr_view *view, const char *fmt, ...) CR_PRINTF(2, 3);

#endif
