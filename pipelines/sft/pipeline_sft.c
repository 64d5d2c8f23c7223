/* pipeline_sft.c -- supervised fine-tuning: one optimizer update a step, over rows in file order or, with
 * shuffle, in a new order each epoch; the loss of a validation set before step 0, every eval_steps and
 * after the last step. */
#include "actors/schedule.h"
#include "base/rng.h"
#include "configs/worker.h"
#include "exchange/record.h"
#include "launch/role_call.h"
#include "pipelines/assemble.h"
#include "pipelines/pipelines.h"
#include "pipelines/saver.h"
#include "pipelines/sft/rows.h"
#include "reports/metrics.h"
#include "reports/tracker.h"
#include "reports/view.h"
#include "rl/rl.h"
#include "samples/train.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <math.h>
#include <string.h>

typedef struct sft {
    cr_run *run;
    const cr_config *c;
    cr_tokenizer *tokenizer;
    cr_chat *chat;
    cr_dataset data, validation;
    size_t batch;    /* rows of a step: dp * b * GA */
    uint32_t *order; /* rows of the epoch that runs */
    int64_t epoch;   /* that order is of, -1: none yet */
    int64_t num_steps;
    cr_lr_schedule schedule;
    cr_saver saver;
} sft;

static cr_status load(sft *s, cr_err *err)
{
    const cr_worker_config *w = &s->c->train;

    CR_TRY(cr_tokenizer_open(w->model_path, &s->tokenizer, err));
    CR_TRY(cr_chat_open(w->model_path, &s->chat, err));
    CR_TRY(cr_sft_load(&s->data, s->c, w, s->tokenizer, s->chat, err));
    if (s->c->has_validation)
        CR_TRY(cr_sft_load(&s->validation, s->c, &s->c->validation, s->tokenizer, s->chat, err));
    s->batch = (size_t)(cr_worker_num_batches(w) * cr_worker_batch_samples(w));
    if (s->data.num_rows < s->batch)
        return cr_fail(err, CR_ECONFIG, "the data has %zu row%s, a step takes %zu",
                       s->data.num_rows, s->data.num_rows == 1 ? "" : "s", s->batch);
    s->order = CR_NEW_ARRAY(uint32_t, s->data.num_rows);
    s->epoch = -1;
    s->schedule = cr_training_schedule(
        w, (int64_t)ceil(w->training.num_train_epochs * (double)(s->data.num_rows / s->batch)));
    s->num_steps =
        s->schedule.max_steps < s->c->max_steps ? s->schedule.max_steps : s->c->max_steps;
    if (s->num_steps < s->schedule.max_steps)
        cr_log(
            CR_LOG_INFO, "sft",
            "max_steps ends the run after %lld steps; the schedule of the learning rate goes over "
            "the %lld of num_train_epochs",
            (long long)s->num_steps, (long long)s->schedule.max_steps);
    return CR_OK;
}

/* The rows of a step, which depend on nothing but the step: a resumed run goes on where it was. */
static const uint32_t *rows_of(sft *s, int64_t step)
{
    int64_t per_epoch = (int64_t)(s->data.num_rows / s->batch);

    if (s->epoch != step / per_epoch) {
        s->epoch = step / per_epoch;
        for (size_t i = 0; i < s->data.num_rows; i++)
            s->order[i] = (uint32_t)i;
        if (s->c->sft.shuffle)
            cr_rng_shuffle((uint64_t)s->c->seed, (uint64_t)s->epoch, s->order, s->data.num_rows);
    }
    return s->order + (size_t)(step % per_epoch) * s->batch;
}

/* ---- validation ---- */

/* Log-probs of rows [first, end) of the validation set; nll: [end - first] zeros, then sums of each row. */
static cr_status ask_log_probs(sft *s, size_t first, size_t end, double *nll, cr_err *err)
{
    cr_sample_batch batch;
    cr_role_call call = {.role = CR_ROLE_TRAIN, .ask = CR_ASK_LOG_PROBS, .batch = &batch};

    cr_sft_batch(s->validation.rows + first, NULL, end - first, &batch);
    if (cr_role_call_run(s->run, &call, err) == CR_OK)
        cr_note(cr_role_call_read(&call, CR_FIELD_LOG_PROBS, CR_COLUMN_LOG_PROBS, err));
    for (size_t k = 0; k < batch.num && err->status == CR_OK; k++) {
        const double *mask = batch.of[CR_COLUMN_MASK];
        for (size_t t = batch.start[k]; t < batch.start[k + 1]; t++)
            if (!mask || mask[t] > 0) nll[batch.samples[k].id] -= batch.of[CR_COLUMN_LOG_PROBS][t];
    }
    cr_role_call_free(&call);
    cr_sample_batch_free(&batch);
    return err->status;
}

/* Mean loss of a learnt token over the whole validation set. Rows are summed in their order, so the number
 * does not depend on how they are cut into ranks and micro-batches. */
static cr_status validate(sft *s, const char *name, cr_metrics *m, cr_err *err)
{
    size_t n = s->validation.num_rows,
           per = 8 * (size_t)(s->c->train.num_devices * s->c->train.infer_batch_size);
    double *nll = CR_NEW_ARRAY(double, n), start = cr_now_s(), sum = 0, tokens = 0;

    for (size_t first = 0; first < n && err->status == CR_OK; first += per)
        cr_note(ask_log_probs(s, first, n - first < per ? n : first + per, nll + first, err));
    for (size_t i = 0; i < n; i++) {
        sum += nll[i];
        tokens += (double)cr_sft_num_learnt(&s->validation.rows[i]);
    }
    cr_free(nll);
    CR_TRY(err->status);
    cr_metrics_set(m, sum / tokens, "%s", name);
    if (!cr_metrics_get(m, "time/val")) cr_metrics_set(m, cr_now_s() - start, "time/val");
    return CR_OK;
}

/* ---- training ---- */

/* One update over these rows, of which num_learnt tokens are learnt. */
static cr_status update(sft *s, const uint32_t *rows, uint64_t num_learnt, float lr,
                        cr_train_sums *sums, cr_err *err)
{
    const uint64_t counts[CR_MINI_COUNTS] = {[CR_MINI_TOKENS] = num_learnt};
    uint32_t *order = CR_NEW_ARRAY(uint32_t, s->batch);
    int32_t *part = CR_NEW_ARRAY(int32_t, s->batch);
    cr_sample_batch batch;
    cr_record command = {0};
    cr_role_call call = {
        .role = CR_ROLE_TRAIN, .ask = CR_ASK_SFT_STEP, .command = &command, .batch = &batch};

    cr_sft_batch(s->data.rows, rows, s->batch, &batch);
    call.deal = cr_sft_deal(&s->c->train, &batch, order, part);
    call.columns = cr_sample_batch_columns(&batch);
    cr_record_add(&command, CR_FIELD_LR, CR_RECORD_FLOAT32, &lr, 1);
    cr_record_add(&command, CR_FIELD_COUNTS, CR_RECORD_UINT64, counts, CR_MINI_COUNTS);
    cr_record_set_int(&command, CR_FIELD_MINIS, 1);
    if (cr_role_call_run(s->run, &call, err) == CR_OK)
        cr_note(cr_role_call_add_sums(&call, sums, err));
    cr_role_call_free(&call);
    cr_record_free(&command);
    cr_sample_batch_free(&batch);
    cr_free(order);
    cr_free(part);
    return err->status;
}

static cr_status train(sft *s, int64_t step, cr_metrics *m, cr_err *err)
{
    const uint32_t *rows = rows_of(s, step);
    double start = cr_now_s(), tokens = 0;
    cr_train_sums sums = {0};
    float lr = (float)cr_learning_rate(&s->schedule, step);

    for (size_t i = 0; i < s->batch; i++)
        tokens += (double)cr_sft_num_learnt(&s->data.rows[rows[i]]);
    if (tokens < 1) tokens = 1;
    CR_TRY(update(s, rows, (uint64_t)tokens, lr, &sums, err));
    if (sums.num_skipped)
        cr_log(CR_LOG_WARN, "sft", "step %lld: the gradient is not finite; the update was skipped",
               (long long)step);
    cr_metrics_set(m, sums.loss.total_loss, "sft_train/loss");
    cr_metrics_set(m, sums.num_skipped ? (double)NAN : sums.grad_norm, "sft_train/grad_norm");
    cr_metrics_set(m, lr, "sft_train/lr");
    cr_metrics_set(m, tokens, "sft_train/tokens");
    cr_metrics_set(m, cr_now_s() - start, "time/step_train");
    cr_metrics_set(m, tokens / (cr_now_s() - start), "system/tps/tps");
    return CR_OK;
}

static cr_status steps(sft *s, const char *resume_path, cr_err *err)
{
    cr_run *run = s->run;
    const char *folder;
    cr_metrics m = {0};

    if (resume_path) cr_note(cr_saver_resume(&s->saver, resume_path, err));
    for (run->step = run->first_step; run->step < s->num_steps && err->status == CR_OK;
         run->step++) {
        double start = cr_now_s();
        bool is_last = run->step == s->num_steps - 1, should_save;
        cr_metrics_clear(&m);
        if (s->c->has_validation && run->step % s->c->eval_steps == 0)
            CR_TRY_GOTO(out, validate(s, "sft_train/val_loss", &m, err));
        CR_TRY_GOTO(out, train(s, run->step, &m, err));
        if (s->c->has_validation && is_last)
            CR_TRY_GOTO(out, validate(s, "final/sft_train/val_loss", &m, err));
        should_save =
            is_last || cr_run_should_stop() || (run->step > 0 && run->step % s->c->save_steps == 0);
        CR_TRY_GOTO(out, cr_saver_poll(&s->saver, err));
        if (should_save) {
            CR_TRY_GOTO(out, cr_saver_begin(&s->saver, run->step, &folder, err));
            CR_TRY_GOTO(out, cr_saver_start(&s->saver, err));
        }
        cr_metrics_set(&m, cr_now_s() - start, "time/step_total");
        CR_TRY_GOTO(out, cr_tracker_log(run->tracker, run->step, &m, err));
        cr_view_step(run->view, run->step, &m, cr_now_s() - start);
        CR_TRY_GOTO(out, cr_saver_end_step(&s->saver, is_last || cr_run_should_stop(), err));
        CR_TRY_GOTO(out, cr_run_watch(run, err));
        if (should_save && !is_last) CR_TRY_GOTO(out, cr_run_stopped(run, err));
    }
out:
    cr_metrics_free(&m);
    return err->status;
}

static cr_status open_pipeline(const cr_config *config, void **out, cr_err *err)
{
    sft *s = CR_NEW(sft);

    s->c = config;
    *out = s;
    return load(s, err);
}

static cr_status run_pipeline(void *pipeline, cr_run *run, const char *resume_path, cr_err *err)
{
    sft *s = pipeline;

    s->saver.run = s->run = run;
    s->saver.data = &s->data;
    CR_TRY(cr_tracker_open(s->c, run->output_dir, run->first_step, &run->tracker, err));
    run->view = cr_view_create(run->first_step, s->num_steps, "sft_train/loss");
    return steps(s, resume_path, err);
}

static void close_pipeline(void *pipeline)
{
    sft *s = pipeline;

    if (!s) return;
    cr_saver_fini(&s->saver);
    cr_dataset_free(&s->data);
    cr_dataset_free(&s->validation);
    cr_free(s->order);
    cr_chat_close(s->chat);
    cr_tokenizer_close(s->tokenizer);
    cr_free(s);
}

const cr_pipeline_ops cr_pipeline_sft = {open_pipeline, run_pipeline, close_pipeline};
