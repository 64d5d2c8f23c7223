/* assemble_impl.h -- parts of a learning step, shared by assemble.c, learn_batch.c, advantages.c,
 * correction.c, train_request.c and learn_metrics.c only.
 *
 * The batch holds everything per response token in the order of the rollout's samples. A payload is
 * what one rank gets of it: the tokens and numbers of some samples as arrays of one record.
 */
#ifndef CR_ASSEMBLE_IMPL_H
#define CR_ASSEMBLE_IMPL_H

#include "pipelines/assemble.h"
#include "samples/train.h"

typedef struct cri_learn_batch {
    cr_rollout *r;
    const cr_dataset *data;
    size_t *start; /* [num_samples + 1] */
    size_t num_tokens;
    double *infer, *old, *ref, *teacher, *entropy, *mask, *final, *advantages, *raw, *returns,
        *token_rewards, *kl, *opd_kl, *rewards; /* owned as one */
    double *memory;
    /* NULL unless the step needs them: mask before the filters of the correction; weights of tokens, of
     * samples (owned) */
    double *entropy_mask, *is_weight, *weights;
    cr_old_log_probs old_from;
    bool has_ref;
} cri_learn_batch;

typedef struct cri_payload {
    cr_record record;
    cr_buf buffers[24];
    size_t num_buffers;
    size_t *samples; /* of the batch, in the order sent */
    size_t num;
} cri_payload;

void cri_learn_batch_init(cri_learn_batch *b, cr_rollout *r, const cr_dataset *data);
void cri_learn_batch_free(cri_learn_batch *b);
void cri_payload_free(cri_payload *s);
cr_buf *cri_payload_buffer(cri_payload *s);
void cri_payload_attach(cri_payload *s, const char *name, cr_record_kind kind, const cr_buf *b);
/* prompts, lengths, mini, ids (and kept words) of the payload's samples. mini NULL: all 0. */
void cri_payload_add_tokens(cri_payload *s, const cri_learn_batch *b, const int32_t *mini);
/* x: per token of the batch. */
void cri_payload_add_floats(cri_payload *s, const cri_learn_batch *b, const char *name,
                            const double *x);
/* Numbers per token that a rank replied, in the order of its payload, into to: per token of the batch. */
CR_MUST cr_status cri_payload_read_floats(const cr_record *reply, const char *name,
                                          const cri_payload *payload, const cri_learn_batch *b,
                                          double *to, cr_err *err);
/* Log-probs (and entropies, unless NULL) of a role's weights over the whole batch. */
CR_MUST cr_status cri_ask_log_probs(cr_run *run, cr_role role, const cri_learn_batch *b,
                                    double *log_probs, double *entropy, cr_metrics *m, cr_err *err);
/* The same from its service. A failure ends its use: only cr_role_service_close may follow. */
CR_MUST cr_status cri_ask_service(cr_role_service *r, cr_run *run, const cri_learn_batch *b,
                                  double *log_probs, cr_err *err);
/* Samples first .. end-1, all of one domain: final masks, rewards, advantages. */
CR_MUST cr_status cri_domain_advantages(cr_learning *l, cri_learn_batch *b, size_t first,
                                        size_t end, int domain, cr_metrics *m, cr_err *err);
/* All mini-batches of one of ppo_epochs: asks every train rank and adds up their replies. */
CR_MUST cr_status cri_train_epoch(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                                  int64_t epoch_of_step, cr_train_sums *s, cr_metrics *m,
                                  cr_err *err);
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
