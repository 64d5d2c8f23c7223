/* rows.h -- a run over rows that have their answers: what the pipelines sft, dpo and distill share (pipelines/rows/ only).
 *
 * pipeline_rows.c is the loop: rows of a step, one optimizer update each, validation before step 0, every eval_steps and after the last
 * step, checkpoints. sft.c, dpo.c and distill.c are what is trained on: which samples a row is, its loss, its metrics. A kind more is one
 * cr_rows_kind.
 */
#ifndef CR_ROWS_H
#define CR_ROWS_H

#include "actors/work.h"
#include "launch/role_call.h"
#include "pipelines/best/best.h"
#include "rl/rl.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct cr_rows cr_rows;

typedef struct cr_rows_kind {
    cr_ask ask;           /* of an update */
    const char *score;    /* the metric that the terminal's curve shows */
    const char *val_loss; /* of sft and distill: the metric of the validation */
    size_t num_samples;   /* of a row */
    /* Append the rows of the files that `from` names; CR_ECONFIG: they have none to learn from. */
    cr_status (*load)(cr_rows *r, const cr_worker_config *from, cr_dataset *data, cr_err *err);

    cr_status (*train)(cr_rows *r, const uint32_t *rows, double lr, cr_metrics *m, cr_err *err);
    /* Over the whole validation set; is_final: after the last step. */
    cr_status (*validate)(cr_rows *r, bool is_final, cr_metrics *m, cr_err *err);
    /* Once before the loop, ranks are there, and once after it; NULL: nothing to do. */
    cr_status (*begin)(cr_rows *r, cr_err *err);
    void (*end)(cr_rows *r);
} cr_rows_kind;
extern const cr_rows_kind cr_rows_sft, cr_rows_dpo, cr_rows_distill;

struct cr_rows {
    cr_run *run;
    const cr_config *c;
    const cr_rows_kind *kind;
    cr_tokenizer *tokenizer;
    cr_chat *chat;
    cr_dataset data, validation;
    cr_image_cost images;
    size_t batch;    /* rows of a step: dp * b * GA */
    uint32_t *order; /* rows of the epoch that runs */
    int64_t epoch;   /* that order is of, -1: none yet */
    int64_t num_steps;
    cr_lr_schedule schedule;
    cr_saver saver;
    cr_best best;
    void *own; /* of the kind */
};

/* Rows of the files of `from`, each through `encode`. */
CR_MUST cr_status cr_rows_load(cr_rows *r, const cr_worker_config *from, cr_row_encode encode,
                               cr_dataset *data, cr_err *err);
/* Images of rows [num] of the data (rows NULL: from `first` on), which ranks will ask for. */
CR_MUST cr_status cr_rows_put_images(cr_rows *r, const cr_dataset *data, const uint32_t *rows,
                                     size_t first, size_t num, cr_err *err);
/* One update over the batch, which is emptied: counts of it, and what the replies add up to. */
CR_MUST cr_status cr_rows_update(cr_rows *r, cr_sample_batch *b,
                                 const uint64_t counts[CR_MINI_COUNTS], double lr,
                                 cr_train_sums *sums, cr_err *err);
/* Log-probs over the batch, of the role that trains into CR_COLUMN_LOG_PROBS, of the reference into CR_COLUMN_REF. */
CR_MUST cr_status cr_rows_log_probs(cr_rows *r, cr_sample_batch *b, cr_batch_column column,
                                    cr_err *err);
/* Rows of the validation set that are computed at a time. */
size_t cr_rows_num_at_once(const cr_rows *r);

/* ---- sft.c, also of distill: rows with one answer ---- */

CR_MUST cr_status cr_rows_load_answers(cr_rows *r, const cr_worker_config *from, cr_dataset *data,
                                       cr_err *err);
/* Rows of a step as samples, with CR_COLUMN_MASK where some tokens are not learnt; *num: how many are, at least 1. Their images are
 * put. */
CR_MUST cr_status cr_rows_answers(cr_rows *r, const uint32_t *rows, uint64_t *num,
                                  cr_sample_batch *b, cr_err *err);
/* Mean loss of a learnt token over the whole validation set. */
CR_MUST cr_status cr_rows_validate_answers(cr_rows *r, bool is_final, cr_metrics *m, cr_err *err);

#endif
