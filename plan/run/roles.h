/* roles.h -- what a rank of each role and a process of each judge takes, counted without starting them: for `croll plan`, and
 * for what `croll run` looks at first (plan/run/deep.h).
 */
#ifndef CR_PLAN_ROLES_H
#define CR_PLAN_ROLES_H

#include "plan/devices.h"

/* p->batch, num_dp, ..; p->role and p->worker of all roles, the trained one first. p->config is loaded; p->memory, p->is_gpu,
 * p->num_gpus and p->with_moments are the caller's wish. cr_plan_roles_free also after a failure. CR_ECONFIG: gpu_memory_utilization
 * of p->memory, or of its part for a number of device_mapping, leaves no room for one sequence. */
CR_MUST cr_status cr_plan_roles(cr_plan *p, cr_err *err);
/* The trained role with other micro-batches; owned by the caller (cr_plan_role_free). */
CR_MUST cr_status cr_plan_train(const cr_plan *p, const cr_plan_batch *batch, cr_plan_role *out,
                                cr_err *err);
void cr_plan_roles_free(cr_plan *p);

#endif
