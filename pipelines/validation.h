/* validation.h -- what a validation of several samples a prompt says: docs/metrics.md.
 *
 * Over all prompts, by tag and by domain: the share of samples with score 1, the mean score, and for k = 2,
 * 4, .. up to n samples a prompt pass@k and maj@k. Samples without a verdict are left out; a prompt with
 * less than k of the others is left out of pass@k and maj@k.
 */
#ifndef CR_VALIDATION_H
#define CR_VALIDATION_H

#include "pipelines/rollout.h"
#include "rl/pass_at_k.h"

/* Probability that at least one of k samples drawn without replacement from n, of which c are right, is
 * right: 1 - C(n - c, k) / C(n, k), the unbiased estimator of M. Chen et al., Evaluating Large Language
 * Models Trained on Code (2021). k is at most n. */
double cr_pass_at_k(size_t n, size_t c, size_t k);
/* Mean, over the n / k blocks of k neighbours, of the share of right samples among those with the most common
 * answer of their block; answers that are equally common share the vote. Samples without an answer (NULL) do
 * not vote; a block without any vote counts 0. */
double cr_maj_at_k(const char *const *answer, const bool *is_right, size_t n, size_t k);

/* ---- sums of all prompts, of a tag, of a domain ---- */

enum { CR_MAX_K = 16 }; /* powers of two: k up to 2^16, as an index in a sample's id */

/* One prompt: its samples with a verdict. */
typedef struct cr_validated {
    const char *tag, *domain;  /* tag NULL: none */
    size_t n, num_without;     /* num_without: samples without a verdict */
    const double *score;       /* [n], 1: right */
    const char *const *answer; /* [n], NULL where it has none */
} cr_validated;

typedef struct cr_validation_label {
    char name[64];
    bool is_domain;
    size_t num_prompts, num_without;
    double num, right, score;
    double groups[CR_MAX_K + 1], pass[CR_MAX_K + 1], maj[CR_MAX_K + 1]; /* by log2 of k */
    cr_pass_count *counts; /* prompts by samples and right samples */
    size_t num_counts, counts_capacity;
} cr_validation_label;

/* "all" first, then in order of their first prompt; {0} is empty, cr_validation_free gives it back. */
typedef struct cr_validation {
    cr_validation_label *labels;
    size_t num, capacity;
} cr_validation;
void cr_validation_add(cr_validation *v, const cr_validated *prompt);
void cr_validation_free(cr_validation *v);

/* What counts as its vote (cr_rule_answer), owned by the caller; NULL: none. */
char *cr_sample_answer(const cr_config *config, const cr_sample *sample, const cr_row *row);
/* Of a row of the validation; NULL: none. */
const char *cr_row_tag(const cr_config *config, const cr_row *row);

/* Adds val_correct/.., val_score/.., val_pass@K/.., val_maj@K/.. with `head` in front ("" or "final/"). */
void cr_validation_metrics(const cr_config *config, const cr_rollout *rollout,
                           const cr_dataset *data, const char *head, cr_metrics *m);

#endif
