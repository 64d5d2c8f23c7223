/* follow.h -- a reference that follows the policy: sync_ref_model (docs/losses.md, "A reference that follows").
 *
 * What TRL's SyncRefModelCallback does: after every ref_model_sync_steps steps the reference becomes alpha x the trained weights +
 * (1 - alpha) x itself.
 */
#ifndef CR_FOLLOW_H
#define CR_FOLLOW_H

#include "launch/run.h"
#include "reports/metrics.h"

/* After the updates of a step, before its checkpoint: the sync, if one is due, and its metrics. */
CR_MUST cr_status cr_follow(cr_run *run, int64_t step, cr_metrics *m, cr_err *err);

#endif
