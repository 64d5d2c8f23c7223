/* traffic.h -- what the ranks of a planned role send each other, how much of it enters a host, and how long that and
 * their computing take.
 *
 * A role's calls (plan.h) are those of the run itself, counted pass by pass. Where its ranks are is the caller's. What
 * enters a host by shared memory and MPI is a formula of mesh/hosts/links.h; NCCL moves as comm_nccl.c asks it to:
 *     gathers       a host's ranks receive each part once
 *     reductions    each rank receives its part from every other rank
 *     replicas      both, one after the other
 * Inside a host, of B bytes of a call, m of its n ranks on the host:
 *     gathers       m B (n - 1) / n, less what enters the host
 *     reductions    (m - 1) B; replicas twice that
 *     exchanges     what its ranks send each other
 * Of several hosts the numbers are of the one that most enters.
 *
 * Time of a flow: the larger of its bytes into a host over the link and of its bytes inside over the devices' links, and
 * two latencies a call. Gathers and reductions run under compute; what does not fit, and at least the first
 * gather and the last reduction, is not hidden. All else is waited for.
 * Pure functions; any thread.
 */
#ifndef CR_PLAN_TRAFFIC_H
#define CR_PLAN_TRAFFIC_H

#include "plan/plan.h"
#include "plan/rates.h"

typedef enum cr_flow {
    CR_FLOW_GATHERS,
    CR_FLOW_REDUCTIONS,
    CR_FLOW_REPLICAS,
    CR_FLOW_EXCHANGES,
    CR_FLOW_SMALL, /* agreements, norms */
    CR_NUM_FLOWS
} cr_flow;
extern const char *const cr_flow_names[CR_NUM_FLOWS];

typedef struct cr_plan_place {
    const int *host_of; /* [ranks of the role] borrowed */
    int num_hosts;
    bool is_nccl; /* units, gradients and exchanges are memory of GPUs */
} cr_plan_place;

typedef struct cr_moved {
    int64_t num_calls;
    double inside_bytes, into_bytes,
        num_messages; /* messages: into the host, with those of meetings */
    int ranks_here;
} cr_moved;

cr_moved cr_plan_moved(const cr_plan_role *role, const cr_plan_place *place, cr_flow flow,
                       cr_plan_pass pass);

/* 0 where a rate that it needs is not known (is_known false). */
typedef struct cr_pass_time {
    cr_moved moved[CR_NUM_FLOWS];
    double compute_s, flow_s[CR_NUM_FLOWS], exposed_s, all_s;
    bool is_compute_known, is_network_known;
} cr_pass_time;
cr_pass_time cr_plan_time(const cr_plan_role *role, const cr_plan_place *place,
                          const cr_rates *rates, cr_plan_pass pass);
/* Of all its passes in a step; 0: not known. */
double cr_plan_step_s(const cr_plan_role *role, const cr_plan_place *place, const cr_rates *rates);

/* Into a host in a step, all flows. */
double cr_plan_into_bytes(const cr_plan_role *role, const cr_plan_place *place);

/* Weights from the ranks of `train` to the engines of `infer`: each shard enters a host once, if it has no replica. */
typedef struct cr_sync_moved {
    int64_t engine_bytes;
    double into_bytes; /* into the host that most enters */
} cr_sync_moved;
cr_sync_moved cr_plan_sync(const cr_plan_role *train, const cr_plan_place *senders,
                           const cr_plan_role *infer, const cr_plan_place *receivers);

#endif
