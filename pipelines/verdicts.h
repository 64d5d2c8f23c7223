/* verdicts.h -- what the verdicts of a rollout come to: means of each reward, the programs' own metrics, counts,
 * warnings, and steps from which nothing was learned.
 */
#ifndef CR_VERDICTS_H
#define CR_VERDICTS_H

#include "pipelines/rollout.h"

/* DOMAIN/verdict/right and its kin: numbers of samples by cause, which together are all of the domain's;
 * time/verdict/DOMAIN/mean, /max and /slowest, the index of that sample in the step (cr_sample_id_in_step). */
void cr_verdict_causes(const cr_config *config, const cr_rollout *r, cr_metrics *m);
/* All metrics of verdicts: those of cr_verdict_causes; scheduler/reward_timeouts and its kin; DOMAIN/reward/NAME, the mean over samples that
 * have NAME; where samples of a domain have several rewards, DOMAIN/rewards/BLOCK/mean and its kin (docs/metrics.md). */
void cr_verdict_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m);
/* Says how many samples have no verdict, and why the first has none; nothing when all have one. */
void cr_verdict_warn(const cr_rollout *r, const char *what, int64_t step);
/* A step that has learned. From one that trained nothing (mask/final_mask_sum_eq_0) the reason is said;
 * *num_empty counts such steps in a row, and CR_EPEER ends the run after max_failed_reward_steps of them. */
CR_MUST cr_status cr_verdict_end_step(const cr_config *config, const cr_rollout *r,
                                      const cr_metrics *m, int64_t step, int64_t *num_empty,
                                      cr_err *err);
/* *num_flat counts steps in a row without any gradient; the third one is a warning. */
void cr_verdict_warn_flat(const cr_metrics *m, int64_t step, int64_t *num_flat);

#endif
