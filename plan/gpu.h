/* gpu.h -- what a process keeps of a GPU beside the run's own memory (`croll plan --device cuda`). Estimates, each with its
 * source: none was measured by croll. Pure functions.
 */
#ifndef CR_PLAN_GPU_H
#define CR_PLAN_GPU_H

#include "plan/plan.h"

enum { CR_GPU_NEEDS = 4 };
typedef struct cr_gpu_need {
    const char *what, *source;
    int64_t bytes;
    bool is_dropped; /* while another role works on the GPU */
} cr_gpu_need;

void cr_gpu_needs(const cr_plan_role *role, cr_gpu_need out[CR_GPU_NEEDS]);
int64_t cr_gpu_need_bytes(const cr_plan_role *role); /* their sum */
int64_t cr_gpu_idle_bytes(const cr_plan_role *role); /* of those that are not dropped */
/* cr_plan_peak with them, and at most a page of 2 MiB more for each kind of bytes, as cudaMalloc reserves. */
int64_t cr_gpu_peak(const cr_plan_role *role);

#endif
