/* validation.h -- what a validation of several samples a prompt says: docs/metrics.md.
 *
 * Over all prompts, by tag and by domain: the share of samples with score 1, the mean score, and for k = 2,
 * 4, .. up to n samples a prompt pass@k and maj@k. Samples without a verdict are left out; a prompt with
 * less than k of the others is left out of pass@k and maj@k.
 */
#ifndef CR_VALIDATION_H
#define CR_VALIDATION_H

#include "pipelines/rollout.h"

/* Probability that at least one of k samples drawn without replacement from n, of which c are right, is
 * right: 1 - C(n - c, k) / C(n, k), the unbiased estimator of M. Chen et al., Evaluating Large Language
 * Models Trained on Code (2021). k is at most n. */
double cr_pass_at_k(size_t n, size_t c, size_t k);
/* Mean, over the n / k blocks of k neighbours, of the share of right samples among those with the most common
 * answer of their block; answers that are equally common share the vote. Samples without an answer (NULL) do
 * not vote; a block without any vote counts 0. */
double cr_maj_at_k(const char *const *answer, const bool *is_right, size_t n, size_t k);

/* Adds val_correct/.., val_score/.., val_pass@K/.., val_maj@K/.. with `head` in front ("" or "final/"). */
void cr_validation_metrics(const cr_config *config, const cr_rollout *rollout,
                           const cr_dataset *data, const char *head, cr_metrics *m);

#endif
