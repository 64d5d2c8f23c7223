/* causes.h -- why samples have the verdicts that they have, counted for metrics and run.html. Pure functions. */
#ifndef CR_CAUSES_H
#define CR_CAUSES_H

#include "pipelines/rollout.h"

/* DOMAIN/verdict/right and its kin: numbers of samples, which together are all samples of the domain (docs/metrics.md);
 * time/verdict/DOMAIN/mean, /max and /slowest, which is the draw times 65536 plus the index of that sample's id. */
void cr_cause_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m);

#endif
