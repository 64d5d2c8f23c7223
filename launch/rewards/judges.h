/* judges.h -- the judges that `croll run` starts: `croll serve` for each device of a domain with judge_model_type:
 * inference, on a socket in output_dir/judges.
 *
 * Reward workers ask them as they ask any service. One that ends is started again after a pause that doubles from 0.5 s;
 * the fifth end in a row within a minute of its first answer ends the run. One that does not answer /health for
 * collective_timeout and 5 s is frozen: it is killed, which is such an end. Until it is back its chats are tried again; those whose deadline passes are
 * samples without a verdict.
 *
 * One thread (the launcher's).
 */
#ifndef CR_JUDGES_H
#define CR_JUDGES_H

#include "configs/configs.h"
#include "launch/mpirun/watched.h"
#include "scorers/service.h"

typedef struct cr_judge_process {
    cr_watched process;
    cr_pulse *pulse;
    const cr_reward_config *reward; /* borrowed */
    int number;                     /* of its device in device_mapping */
    double start_s;                 /* it has ended and is started again then; 0: it runs */
    int num_early;                  /* ends in a row soon after its start */
} cr_judge_process;

typedef struct cr_judges {
    cr_judge_process *items; /* owned */
    size_t num;
    double limit_s;                 /* without a sign of life */
    char *folder;                   /* owned: of the sockets */
    const char *self, *config_path; /* borrowed */
} cr_judges;

/* Words are borrowed until the judges are stopped. Nothing is started for a run without such a judge. */
CR_MUST cr_status cr_judges_start(cr_judges *j, const cr_config *config, const char *config_path,
                                  const char *self, cr_err *err);
/* Look after them; fails when one cannot be kept running. */
CR_MUST cr_status cr_judges_watch(cr_judges *j, cr_err *err);
void cr_judges_stop(cr_judges *j); /* {0} is fine */

#endif
