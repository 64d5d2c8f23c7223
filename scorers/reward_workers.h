/* reward_workers.h -- the reward workers that `croll run` starts: one process each, watched and replaced.
 *
 * A worker that ends is started again under its name and takes over what it held. One that is frozen
 * (its key hb:WORKER stands still for collective_timeout and 5 s, while Redis answers) is killed first. One that ends
 * before it gave a sign of life, or with samples and no answer, is started again after a pause of 0.5 s, which
 * doubles; the fifth such end in a row, or exit code 2, ends the run. So does the fifth freeze in a row without an answer
 * between.
 */
#ifndef CR_REWARD_WORKERS_H
#define CR_REWARD_WORKERS_H

#include "base/children.h"
#include "configs/configs.h"
#include "exchange/exchange.h"

typedef struct cr_reward_worker {
    cr_child child;
    const char *domain; /* borrowed from the configuration */
    char name[128], count[32];
    double moved_s;        /* when its count moved, as far as was seen */
    double start_s;        /* it has ended and is started again then; 0: it runs */
    int number, num_early; /* ends in a row before it did anything */
} cr_reward_worker;

typedef struct cr_reward_workers {
    cr_reward_worker *items; /* owned */
    size_t num, next;        /* next: whose count is looked at next */
    double looked_s, limit_s;
    const char *words[3]; /* program, configuration, prefix: borrowed */
} cr_reward_workers;

/* All words are borrowed until the workers are stopped. */
CR_MUST cr_status cr_reward_workers_start(cr_reward_workers *w, const cr_config *config,
                                          const char *config_path, const char *self,
                                          const char *prefix, cr_err *err);
/* Look after them; fails when one cannot be kept running. */
CR_MUST cr_status cr_reward_workers_watch(cr_reward_workers *w, cr_exchange *x, cr_err *err);
void cr_reward_workers_stop(cr_reward_workers *w); /* {0} is fine */

#endif
