/* terms.h -- what each sample's loss was made of, written while a step trains: terms/step-000000.jsonl (pipelines/ only).
 *
 * Flow 6 of 7. Train ranks answer with log-probs, entropies, old log-probs and values as their losses read them; the
 * same functions of rl/ make the terms of each token again, in float64 and with the same floats, so that the
 * terms of all samples add up to the metrics of the step. docs/why.md has the members of the file.
 *
 *     cri_terms_begin                   before advantages
 *     cri_terms_trace, .._take_trace    of each domain
 *     cri_terms_add                     of each epoch of actor_train or the critic
 *     cri_terms_write, cri_terms_free
 */
#ifndef CR_WHY_TERMS_H
#define CR_WHY_TERMS_H

#include "pipelines/assemble_impl.h"
#include "rl/advantage_trace.h"

typedef struct cri_terms cri_terms;

/* b is borrowed until cri_terms_free. */
cri_terms *cri_terms_begin(const cr_learning *l, const cri_learn_batch *b);
void cri_terms_free(cri_terms *t);

/* For cr_advantage, of one domain's samples; valid until the next call. NULL if t is. */
cr_advantage_trace *cri_terms_trace(cri_terms *t);
/* What it has of samples first .. end-1. */
void cri_terms_take_trace(cri_terms *t, size_t first, size_t end);

typedef struct cri_terms_epoch {
    bool is_critic; /* else of the policy */
    int64_t epoch, num_minis;
    const int32_t *mini;    /* [samples] */
    const uint64_t *counts; /* [num_minis][CR_MINI_COUNTS] */
} cri_terms_epoch;
/* The batch has LOG_PROBS, ENTROPY and USED_OLD of this epoch, or PASS_VALUES. */
void cri_terms_add(cri_terms *t, const cri_terms_epoch *e);

/* folder/terms/step-N.jsonl; owned by the caller. */
char *cri_terms_path(const char *folder, int64_t step);
/* CR_ENUMERIC: the terms do not add up to the losses in m. */
CR_MUST cr_status cri_terms_write(const cri_terms *t, const char *folder, int64_t step,
                                  const cr_metrics *m, cr_err *err);

#endif
