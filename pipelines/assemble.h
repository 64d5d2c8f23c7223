/* assemble.h -- what a step does with its rollout: log-probs, advantages, mini-batches, updates.
 *
 * Flow 5 and 6 of 7, on the pipeline's side: everything per token is kept here in the order of the
 * rollout's samples; actors get what they need and answer with log-probs and sums.
 */
#ifndef CR_ASSEMBLE_H
#define CR_ASSEMBLE_H

#include "actors/work.h"
#include "pipelines/best/best.h"
#include "pipelines/rollout.h"
#include "pipelines/service/service.h"
#include "rl/rl.h"

/* A role that is trained. */
typedef struct cr_learner {
    cr_role role;
    const cr_worker_config *worker; /* borrowed; NULL: it is not in the run */
    int64_t updates;                /* of its optimizer so far; of actor_train the weight version */
    cr_lr_schedule schedule;
    int64_t mini_size;    /* samples of an update */
    cr_image_cost images; /* of its model */
} cr_learner;

/* What learning remembers from step to step: kept in checkpoints. */
typedef struct cr_learning {
    const cr_config *config; /* borrowed */
    cr_role_service *services
        [CR_NUM_ROLES]; /* borrowed until cr_learning_free; NULL: ranks, or not in the run */
    cr_learner actor, critic;
    double kl_coef;
    cr_best best;
    bool has_differed;   /* log-probs of the sampler from those of training, in this process */
    cr_moments *moments; /* [num_rewards] */
} cr_learning;

void cr_learning_init(cr_learning *l, const cr_config *config);
/* Samples have images, whose cost counts when they are distributed. CR_ECONFIG and the like: a model cannot be built. */
CR_MUST cr_status cr_learning_weigh_images(cr_learning *l, cr_err *err);
void cr_learning_free(cr_learning *l);

/* One rollout into updates of actor_train; metrics of the step are added to m. */
CR_MUST cr_status cr_learn(cr_learning *l, cr_run *run, cr_rollout *rollout, const cr_dataset *data,
                           int64_t step, cr_metrics *m, cr_err *err);

/* Does a teacher (0: `teacher`, 1: `teacher_2`, ..) answer for a row? By the row's tag; of a row without one by those of its domain. */
bool cr_teacher_answers(const cr_config *config, int teacher, const cr_row *row);

#endif
