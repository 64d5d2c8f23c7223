/* assemble_impl.h -- parts of a learning step, shared by assemble.c, learn_batch.c, advantages.c,
 * correction.c, train_request.c, critic.c and learn_metrics.c only.
 *
 * The batch holds everything per response token in the order of the rollout's samples.
 */
#ifndef CR_ASSEMBLE_IMPL_H
#define CR_ASSEMBLE_IMPL_H

#include "launch/role_call.h"
#include "pipelines/assemble.h"
#include "samples/train.h"

typedef struct cri_learn_batch {
    cr_sample_batch
        batch; /* owned; REF only with a reference, ENTROPY_MASK, IS_WEIGHT and WEIGHTS where keys ask for them */
    cr_rollout *r;
    const cr_dataset *data;
    cr_old_log_probs old_from;
    const uint64_t *only;    /* the sample whose gradient alone is derived; NULL: all */
    struct cri_terms *terms; /* pipelines/why/terms.h; NULL: not wanted (owned) */
} cri_learn_batch;

void cri_learn_batch_init(cri_learn_batch *b, cr_rollout *r, const cr_dataset *data,
                          const cr_config *config);
/* Log-probs of a role's weights over the whole batch, into the column; entropies, too, if it is actor_train; of the critic
 * values. The ranks of actor_train are asked for those of a reference that is_of_trainer. */
CR_MUST cr_status cri_ask_role(cr_run *run, cr_role role, cri_learn_batch *b,
                               cr_batch_column column, cr_metrics *m, cr_err *err);
/* advantages.c: which teachers the run has; is it one that answers for every row? */
bool cri_has_teacher(const cr_config *c, int teacher);
bool cri_is_one_teacher(const cr_config *c);
/* Samples first .. end-1, all of one domain: final masks, rewards, advantages. */
CR_MUST cr_status cri_domain_advantages(cr_learning *l, cri_learn_batch *b, size_t first,
                                        size_t end, int domain, cr_metrics *m, cr_err *err);
/* All mini-batches of one pass of a learner over the batch, one of num_epochs of the step. _begin asks all of its ranks; _finish
 * adds up their replies, for which it does not wait after a failure, and frees the epoch. */
typedef struct cri_epoch cri_epoch;
typedef struct cri_epoch_args {
    cr_learning *l;
    cr_learner *who;
    cri_learn_batch *b;
    int64_t step, epoch, num_epochs;
} cri_epoch_args;
CR_MUST cr_status cri_epoch_begin(const cri_epoch_args *args, cr_run *run, cr_metrics *m,
                                  cri_epoch **out, cr_err *err);
CR_MUST cr_status cri_epoch_finish(cri_epoch *e, cr_run *run, cr_train_sums *s, cr_err *err);
/* critic.c. Its one epoch, which ends before _begin returns where it shares devices with actor_train. */
CR_MUST cr_status cri_critic_begin(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                                   cr_metrics *m, cri_epoch **out, cr_err *err);
/* e: of _begin, or NULL. */
CR_MUST cr_status cri_critic_finish(cr_learning *l, cr_run *run, cri_epoch *e, int64_t step,
                                    cr_metrics *m, cr_err *err);
/* Mean over samples of each one's mean over its mask; x and mask per token. */
double cri_sample_mean(const cri_learn_batch *b, const double *x, const double *mask);
/* correction.c. Whether train_infer_correction has anything to do. */
bool cri_has_correction(const cr_config *c);
/* Weights and filters from the old log-probs: is_weight, and both masks without what is filtered. */
void cri_correct(const cr_learning *l, cri_learn_batch *b, cr_metrics *m);
/* difficulty_loss_weight and length_loss_weight, of each mini-batch: weights. */
void cri_weigh_samples(const cr_learning *l, cri_learn_batch *b, const int32_t *mini,
                       int64_t num_minis);
void cri_weight_metrics(const cri_learn_batch *b, cr_metrics *m);
/* Of samples first .. end-1: token/.., critic/.., group/.., actor/.. samples. domain: NULL, or what stands
 * before the names. */
void cri_sample_metrics(const cr_learning *l, const cri_learn_batch *b, size_t first, size_t end,
                        const char *domain, cr_metrics *m);
/* global_seqlen/actor_train/..; rank[num_samples]: which of num_dp batches a sample is in. */
void cri_balance_metrics(const cri_learn_batch *b, const int32_t *rank, int num_dp, cr_metrics *m);
void cri_train_metrics(const cr_learning *l, const cri_learn_batch *b, const cr_train_sums *s,
                       cr_metrics *m);

#endif
