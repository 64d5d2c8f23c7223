/* pipelines.h -- the step loops. Each drives a cr_run until max_steps, a failure or a signal; on a
 * signal the state is saved first. resume_path: checkpoint to go on from, or NULL.
 */
#ifndef CR_PIPELINES_H
#define CR_PIPELINES_H

#include "actors/run.h"

CR_MUST cr_status cr_pipeline_rlvr(cr_run *run, const char *resume_path, cr_err *err);
CR_MUST cr_status cr_pipeline_sft(cr_run *run, const char *resume_path, cr_err *err);

#endif
