/* best.h -- the checkpoint with the best validation so far, and when a run ends early (docs/config.md, "The best checkpoint").
 *
 * What Transformers' Trainer and its EarlyStoppingCallback do: a validation is better if its number is above the best so far (or
 * below, by greater_is_better); one that is not better by more than early_stopping_threshold counts towards early_stopping_patience.
 */
#ifndef CR_BEST_H
#define CR_BEST_H

#include "pipelines/saver.h"
#include "reports/metrics.h"

/* Kept in checkpoints. */
typedef struct cr_best {
    bool has_value;
    double value;
    int64_t step;      /* of the checkpoint that has it; -1: none has, the run began with it */
    int64_t num_worse; /* validations in a row that were not better */
} cr_best;

/* A validation of the weights of checkpoint `step` (-1: of the beginning), whose metrics have `head` before their names.
 * is_counted: towards patience. *is_new: it is the best. CR_ECONFIG: it has no such metric. */
CR_MUST cr_status cr_best_see(cr_best *b, const cr_best_keys *keys, const cr_metrics *m,
                              const char *head, int64_t step, bool is_counted, bool *is_new,
                              cr_err *err);
bool cr_best_should_stop(const cr_best *b, const cr_best_keys *keys);

/* The same in a run that has the keys (else nothing): the checkpoint gets the link `best`. head "": before a step, which is the last one
 * if *is_last; "final/": after the last step. */
CR_MUST cr_status cr_best_validated(cr_best *b, cr_saver *saver, const cr_metrics *m,
                                    const char *head, int64_t step, bool *is_last, cr_err *err);
/* Of a run that was saved after its patience was exhausted: a warning, and true. */
bool cr_best_has_ended(const cr_best *b, const cr_config *config);
/* Is a checkpoint due, which the validation before the next step is of? */
bool cr_best_needs_save(const cr_config *config, int64_t step);

/* As "best" of a checkpoint's object. CR_EFORMAT: it is no such number. */
void cr_best_put(const cr_best *b, json_t *root);
CR_MUST cr_status cr_best_get(cr_best *b, const json_t *root, cr_err *err);

#endif
