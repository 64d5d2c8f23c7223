/* reshard.h -- reshard_after_forward: auto of the trained role becomes null or false: weights stay gathered until they change where the plan says
 * that memory allows it, with a tenth of a device's memory left for what no plan counts. Results do not depend on it.
 */
#ifndef CR_PLAN_RESHARD_H
#define CR_PLAN_RESHARD_H

#include "kernels/memory.h"
#include "plan/whole.h"

/* p: its roles are planned. limit: bytes of a device; 0: not known, the key becomes null. p->config.train has the key then, p->role[0] is planned with
 * it, p->kept_bytes is what the fullest device has if weights stay. */
CR_MUST cr_status cr_reshard_choose(cr_plan *p, int64_t limit, cr_err *err);
/* Of a run, in its configuration and file; says what was chosen. A run that cannot be planned gets null: cr_deep_check (deep.h) says why. */
void cr_reshard_fix(cr_config *config, bool is_one_host, const cr_device_memory *gpu);

#endif
