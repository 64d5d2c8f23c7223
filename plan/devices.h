/* devices.h -- the devices of a plan: which roles add up on them. Roles that share a device take turns: one works, the others
 * keep what they keep while they wait; a judge always has all of its own. Devices that are one GPU (p->num_gpus) add up. Pure functions.
 */
#ifndef CR_PLAN_DEVICES_H
#define CR_PLAN_DEVICES_H

#include "plan/whole.h"

/* Of a role at work, and while another one works there. */
int64_t cr_plan_work_bytes(const cr_plan *p, const cr_plan_role *role);
int64_t cr_plan_idle_bytes(const cr_plan *p, const cr_plan_role *role, const cr_worker_config *w);

/* What a role has for certain at work: not activations, which depend on the samples, and no estimate. A cache counts on a GPU alone: of
 * other memory the system gives what is written. */
int64_t cr_plan_min_bytes(const cr_plan *p, const cr_plan_role *role);
/* Of the host's memory: offloaded states, on a GPU also those of a role that shares its devices, while another one works (phases.h). */
int64_t cr_plan_host_bytes(const cr_plan *p, size_t role);

/* The fullest device, or GPU, and those that follow it with as many bytes. */
typedef struct cr_plan_fullest_device {
    int first, last;
    int64_t bytes;
    size_t working; /* the role that then works, as in p->role */
} cr_plan_fullest_device;

/* train: in place of p->role[0]. without: a worker that is left out, or NULL. */
cr_plan_fullest_device cr_plan_fullest(const cr_plan *p, const cr_plan_role *train,
                                       const cr_worker_config *without);
/* By cr_plan_min_bytes. */
cr_plan_fullest_device cr_plan_fullest_min(const cr_plan *p);
bool cr_plan_is_on(const cr_worker_config *w, int device);

#endif
