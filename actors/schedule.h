/* schedule.h -- from the keys of a worker block to the learning rates of its updates. Pure. */
#ifndef CR_ACTORS_SCHEDULE_H
#define CR_ACTORS_SCHEDULE_H

#include "configs/worker.h"
#include "rl/rl.h"

/* In a run of max_steps updates: warmup_steps, else warmup_ratio of them. */
cr_lr_schedule cr_training_schedule(const cr_worker_config *w, int64_t max_steps);

#endif
