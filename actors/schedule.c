/* schedule.c -- see schedule.h. */
#include "actors/schedule.h"

#include <math.h>

cr_lr_schedule cr_training_schedule(const cr_worker_config *w, int64_t max_steps)
{
    const cr_training_args *t = &w->training;
    int64_t ratio = (int64_t)ceil((double)max_steps * t->warmup_ratio);

    return (cr_lr_schedule){.kind = t->lr_scheduler_type,
                            .learning_rate = t->learning_rate,
                            .warmup_steps = t->warmup_steps ? t->warmup_steps : ratio,
                            .max_steps = max_steps,
                            .args = t->lr_scheduler_kwargs};
}
