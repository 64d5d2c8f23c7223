/* phase_metrics.h -- what a role's turns on shared devices took, under ROLL's names. */
#ifndef CR_PHASE_METRICS_H
#define CR_PHASE_METRICS_H

#include "reports/metrics.h"
#include "samples/phase.h"

/* time/ROLE/NAME/{total,onload,execute,offload} and memory/ROLE/NAME/{start,end}/{offload,onload}/
 * allocated (GiB) from the reply of one rank; several commands of a step: times add up, memory is that
 * before the first and after the last. */
void cr_phase_metrics(cr_metrics *m, const char *role, const char *name, const cr_record *reply);

#endif
