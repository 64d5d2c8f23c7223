/* reward_worker.h -- one elastic reward worker.
 *
 * Flow 4 of 7. Takes samples of one block of rewards from the exchange, asks a scoring program (scorer.h), moves each to
 * `scored`. It may be killed at any moment: its successor of the same name gets what it held, and a sample that two workers scored
 * is appended once. Any number may run, on any host that reaches Redis. Its key hb:NAME is "PROCESS COUNT STATE":
 * COUNT moves at least once in two seconds (one that stands still is frozen), STATE is idle, asked (samples are with the
 * program, which has not answered yet), answered, or failed and why.
 */
#ifndef CR_REWARD_WORKER_H
#define CR_REWARD_WORKER_H

#include "configs/configs.h"
#include "exchange/exchange.h"

#include <signal.h>

/* All borrowed until cr_reward_worker_run returns. */
typedef struct cr_reward_worker_args {
    const cr_config *config;
    const char *path, *domain; /* of the configuration; a domain of its rewards */
    const char *name;
    const char *exec; /* score with this program; NULL: as the file says */
    double limit_s;   /* for one sample; 0: as the file says */
    const cr_exchange_args *exchange;
    const volatile sig_atomic_t *should_stop;
} cr_reward_worker_args;

/* Score until *should_stop, or until the run that was there has ended. CR_EUSAGE: the file has no such domain;
 * CR_ECONFIG: the program cannot be used; errors of the exchange. */
CR_MUST cr_status cr_reward_worker_run(const cr_reward_worker_args *args, cr_err *err);

#endif
