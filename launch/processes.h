/* processes.h -- the processes that a run starts, from the words that it gives them (run.c, scorers/reward_workers.c) to
 * their end: an actor rank, a reward worker.
 *
 * Arguments are borrowed. The process's only thread calls.
 */
#ifndef CR_PROCESSES_H
#define CR_PROCESSES_H

#include "exchange/exchange.h"

/* `croll actor`. */
typedef struct cr_actor_args {
    const char *path;   /* of the resolved configuration */
    const char *prefix; /* of the run's keys; NULL: that of the run beside the configuration */
    const char *mark;   /* what the launcher wrote into the run's folders; NULL: nothing */
    const char *digest; /* of the configuration, which the exchange has; NULL: the file is read */
    cr_exchange_args exchange; /* url NULL: the variable CR_EXCHANGE_VARIABLE */
} cr_actor_args;
/* Returns 0. After a failure, which may have come before the call, it says why and ends the process. */
int cr_actor_run(const cr_actor_args *args, cr_err *err);

/* `croll reward`. */
typedef struct cr_reward_args {
    const char *file, *domain, *url, *prefix, *exec, *name;
    double limit_s;
} cr_reward_args;
/* Work until it is stopped by a signal. CR_EUSAGE: file, domain or url (of the run that started it: the variable
 * CR_EXCHANGE_VARIABLE) are missing. */
CR_MUST cr_status cr_reward_run(const cr_reward_args *args, cr_err *err);

#endif
