/* plan_print.h -- a finished plan as text for people or as one JSON object. Pure functions. */
#ifndef CR_PLAN_PRINT_H
#define CR_PLAN_PRINT_H

#include "actors/plan.h"

typedef struct cr_plan {
    const char *path;      /* borrowed */
    int64_t world, memory; /* as asked for; 0: not */
    char *override[4];     /* owned */
    cr_config config;
    cr_diagnostics d;
    bool is_sft;
    int64_t num_dp, num_samples; /* of the trained role; of a step */
    cr_plan_batch batch;
    cr_plan_role role[3]; /* the trained one first */
    const cr_worker_config *worker[3];
    size_t num_roles;
    int64_t device_peak; /* of the fullest device, all its roles */
    int64_t largest;     /* micro-batch that fits memory; 0: none does */
    bool is_limit;       /* nothing larger was looked at */
} cr_plan;

void cr_plan_text(const cr_plan *plan, bool with_tree, cr_buf *out);
void cr_plan_json(const cr_plan *plan, bool with_tree, cr_buf *out);

#endif
