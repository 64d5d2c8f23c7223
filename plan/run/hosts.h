/* hosts.h -- `croll plan --hosts ..`: the hosts, what is known of their speed, and where each role's ranks are. */
#ifndef CR_PLAN_HOSTS_H
#define CR_PLAN_HOSTS_H

#include "plan/plan_print.h"

/* HOSTSxDEVICES stands for as many ranks a device as the roles that share it need; a list says how many ranks. */
typedef struct cr_plan_options {
    /* as typed, or NULL; borrowed */
    const char *memory, *hosts, *hostfile, *link, *device, *rates, *topology;
} cr_plan_options;

/* Before the roles are planned: p->hosts, and p->memory if only --device says it. config is loaded. */
CR_MUST cr_status cr_plan_hosts_open(cr_plan *p, const cr_plan_options *o, cr_err *err);
/* And threads and cores of ranks on hosts of this topology: as --topology describes it, or this machine's for a run here. */
CR_MUST cr_status cr_plan_cores_open(cr_plan *p, const cr_plan_options *o, cr_err *err);
/* After it: the ranks of all roles, where `croll run` would have them. Judges are on the first host. */
void cr_plan_hosts_place(cr_plan *p);
void cr_plan_hosts_free(cr_plan *p);

#endif
