/* pipeline_sft.c -- supervised fine-tuning: rows in file order, one optimizer update a step. */
#include "actors/messages.h"
#include "actors/packing.h"
#include "actors/pipelines.h"
#include "actors/prompts.h"
#include "actors/saver.h"
#include "rl/rl.h"

#include <math.h>
#include <string.h>

typedef struct sft {
    cr_run *run;
    const cr_config *c;
    cr_tokenizer *tokenizer;
    cr_chat *chat;
    cr_dataset data;
    size_t batch; /* rows of a step: dp * b * GA */
    int64_t num_steps, schedule_steps, warmup;
    cr_schedule schedule;
    cr_saver saver;
} sft;

/* Rows that are cut before their answer begins have nothing to learn. */
static cr_status check_answers(const sft *s, cr_err *err)
{
    size_t num_empty = 0;

    for (size_t i = 0; i < s->data.num_rows; i++)
        num_empty +=
            s->data.rows[i].num_ids <= s->data.rows[i].num_prompt || s->data.rows[i].num_ids < 2;
    if (num_empty && num_empty == s->data.num_rows)
        return cr_fail(err, CR_ECONFIG,
                       "no row has a token of its answer within sequence_length %lld (raise it)",
                       (long long)s->c->sequence_length);
    if (num_empty)
        cr_log(CR_LOG_WARN, "sft",
               "%zu of %zu rows have no token of their answer within sequence_length %lld",
               num_empty, s->data.num_rows, (long long)s->c->sequence_length);
    return CR_OK;
}

static cr_status load(sft *s, cr_err *err)
{
    cr_prompt_maker maker = {.config = s->c};

    CR_TRY(cr_tokenizer_open(s->c->train.model_path, &s->tokenizer, err));
    CR_TRY(cr_chat_open(s->c->train.model_path, &s->chat, err));
    maker.tokenizer = s->tokenizer;
    maker.chat = s->chat;
    for (size_t i = 0; i < s->c->train.num_file_names; i++)
        CR_TRY(cr_dataset_load(&s->data, s->c->train.file_names[i], cr_prompt_encode_sft, &maker,
                               err));
    CR_TRY(check_answers(s, err));
    s->batch =
        (size_t)(s->c->train.num_devices / s->c->train.ulysses_size *
                 s->c->train.per_device_train_batch_size * s->c->train.gradient_accumulation_steps);
    if (s->data.num_rows < s->batch)
        return cr_fail(err, CR_ECONFIG, "the data has %zu rows, a step takes %zu", s->data.num_rows,
                       s->batch);
    s->schedule_steps = s->c->train.num_train_epochs * (int64_t)(s->data.num_rows / s->batch);
    s->num_steps = s->schedule_steps < s->c->max_steps ? s->schedule_steps : s->c->max_steps;
    s->warmup = s->c->train.warmup_steps
                    ? s->c->train.warmup_steps
                    : (int64_t)ceil((double)s->schedule_steps * s->c->train.warmup_ratio);
    for (int k = 0; k < CR_NUM_SCHEDULES; k++)
        if (strcmp(cr_schedule_names[k], s->c->train.lr_scheduler_type) == 0)
            s->schedule = (cr_schedule)k;
    return CR_OK;
}

/* Which rows of the step's batch go to which rank, so that tokens balance: the gradient does not depend on it. */
typedef struct deal {
    const cr_row *rows;
    uint32_t *order;
    int32_t *rank; /* [batch] of a row */
} deal;

static deal deal_rows(const sft *s, int64_t step, int num_dp)
{
    size_t per_epoch = s->data.num_rows / s->batch, *tokens = CR_NEW_ARRAY(size_t, s->batch);
    deal d = {.rows = s->data.rows + (size_t)step % per_epoch * s->batch,
              .order = CR_NEW_ARRAY(uint32_t, s->batch),
              .rank = CR_NEW_ARRAY(int32_t, s->batch)};

    for (size_t k = 0; k < s->batch; k++) {
        tokens[k] = d.rows[k].num_ids;
        d.order[k] = (uint32_t)k;
    }
    cr_packing_deal_mini(tokens, num_dp, (size_t)s->c->train.per_device_train_batch_size, d.order,
                         s->batch, d.rank);
    cr_free(tokens);
    return d;
}

/* The rows of a rank as one record. */
static void fill(const sft *s, int64_t step, const deal *d, int rank, cr_record *r,
                 cr_buf buffers[4], float lr[1], uint64_t counts[CR_MINI_COUNTS])
{
    for (size_t k = 0; k < s->batch; k++) {
        const cr_row *row = &d->rows[d->order[k]];
        int32_t prompt = (int32_t)row->num_prompt,
                length = (int32_t)(row->num_ids - row->num_prompt), mini = 0;
        /* the first token has nothing to be predicted from */
        counts[CR_MINI_TOKENS] += (uint64_t)(prompt > 0 ? length : length - 1);
        if (d->rank[d->order[k]] != rank) continue;
        if (prompt == 0) prompt = 1, length--;
        cr_buf_add(&buffers[0], &prompt, 4);
        cr_buf_add(&buffers[1], &length, 4);
        cr_buf_add(&buffers[2], &mini, 4);
        cr_buf_add(&buffers[3], row->ids, row->num_ids * 4);
    }
    if (counts[CR_MINI_TOKENS] < 1) counts[CR_MINI_TOKENS] = 1;
    lr[0] = (float)cr_learning_rate(s->schedule, s->c->train.learning_rate, s->warmup,
                                    s->schedule_steps, step);
    static const char *const names[] = {"prompts", "lengths", "mini", "ids"};
    for (int i = 0; i < 4; i++)
        cr_record_add(r, names[i], CR_RECORD_INT32, buffers[i].data ? buffers[i].data : "",
                      buffers[i].num_bytes / 4);
    cr_record_add(r, "lr", CR_RECORD_FLOAT32, lr, 1);
    cr_record_add(r, "counts", CR_RECORD_UINT64, counts, CR_MINI_COUNTS);
    cr_record_set_int(r, "minis", 1);
}

static cr_status train(sft *s, int64_t step, cr_metrics *m, cr_err *err)
{
    int num = s->run->layout.role[CR_ROLE_TRAIN].num,
        same = (int)s->c->train.ulysses_size; /* ranks that get one batch */
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);
    deal dealt = deal_rows(s, step, num / same);
    double start = cr_now_s(), tokens = 0, lr_now = 0;
    cr_train_sums sums = {0};

    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record record = {0};
        cr_buf buffers[4] = {{0}, {0}, {0}, {0}};
        float lr[1];
        uint64_t counts[CR_MINI_COUNTS] = {0};
        fill(s, step, &dealt, r / same, &record, buffers, lr, counts);
        lr_now = lr[0];
        if (r == 0) tokens = (double)counts[CR_MINI_TOKENS];
        cr_note(cr_run_send(s->run, CR_ROLE_TRAIN, r, "sft_step", &record, &requests[r], err));
        cr_record_free(&record);
        for (int i = 0; i < 4; i++)
            cr_buf_free(&buffers[i]);
    }
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        cr_train_sums part = {0};
        if (cr_run_wait(s->run, &requests[r], &reply, err) != CR_OK) break;
        cr_note(cr_train_sums_read(&reply, &part, err));
        if (r % same == 0) cr_train_sums_add(&sums, &part, r > 0);
        cr_record_free(&reply);
    }
    cr_free(requests);
    cr_free(dealt.order);
    cr_free(dealt.rank);
    CR_TRY(err->status);
    if (sums.num_skipped)
        cr_log(CR_LOG_WARN, "sft", "step %lld: the gradient is not finite; the update was skipped",
               (long long)step);
    cr_metrics_set(m, sums.total_loss, "sft_train/loss");
    cr_metrics_set(m, sums.num_skipped ? (double)NAN : sums.grad_norm, "sft_train/grad_norm");
    cr_metrics_set(m, lr_now, "sft_train/lr");
    cr_metrics_set(m, tokens, "sft_train/tokens");
    cr_metrics_set(m, cr_now_s() - start, "time/step_train");
    cr_metrics_set(m, tokens / (cr_now_s() - start), "system/tps/tps");
    return CR_OK;
}

static cr_status save(sft *s, int64_t step, cr_err *err)
{
    const char *folder;

    CR_TRY(cr_saver_begin(&s->saver, step, &folder, err));
    return cr_saver_start(&s->saver, err);
}

static cr_status steps(sft *s, const char *resume_path, cr_err *err)
{
    cr_run *run = s->run;
    cr_metrics m = {0};
    cr_record command = {0};

    if (resume_path) {
        cr_record_set_text(&command, "folder", resume_path, strlen(resume_path));
        cr_note(cr_run_call(run, CR_ROLE_TRAIN, "resume", &command, NULL, err));
        cr_record_free(&command);
    }
    for (run->step = run->first_step; run->step < s->num_steps && err->status == CR_OK;
         run->step++) {
        double start = cr_now_s();
        bool is_last = run->step == s->num_steps - 1, should_save;
        cr_metrics_clear(&m);
        CR_TRY_GOTO(out, train(s, run->step, &m, err));
        should_save = is_last || cr_run_should_stop(run) ||
                      (run->step > 0 && run->step % s->c->save_steps == 0);
        CR_TRY_GOTO(out, cr_saver_poll(&s->saver, err));
        if (should_save) CR_TRY_GOTO(out, save(s, run->step, err));
        cr_metrics_set(&m, cr_now_s() - start, "time/step_total");
        CR_TRY_GOTO(out, cr_tracker_log(run->tracker, run->step, &m, err));
        cr_view_step(run->view, run->step, &m, cr_now_s() - start);
        CR_TRY_GOTO(out, cr_saver_end_step(&s->saver, is_last || cr_run_should_stop(run), err));
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
    CR_TRY(cr_tracker_open(run->output_dir, s->c->track_with,
                           s->c->tracker_log_dir ? s->c->tracker_log_dir : run->output_dir,
                           run->first_step, &run->tracker, err));
    run->view = cr_view_create(run->first_step, s->num_steps, "sft_train/loss");
    return steps(s, resume_path, err);
}

static void close_pipeline(void *pipeline)
{
    sft *s = pipeline;

    if (!s) return;
    cr_saver_fini(&s->saver);
    cr_dataset_free(&s->data);
    cr_chat_close(s->chat);
    cr_tokenizer_close(s->tokenizer);
    cr_free(s);
}

const cr_pipeline_ops cr_pipeline_sft = {open_pipeline, run_pipeline, close_pipeline};
