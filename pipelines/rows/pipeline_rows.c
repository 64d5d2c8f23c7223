/* pipeline_rows.c -- runs over rows that have their answers (see rows.h): one optimizer update a step, over rows in file order
 * or, with shuffle, in a new order each epoch. */
#include "actors/packing.h"
#include "actors/schedule.h"
#include "base/rng.h"
#include "configs/configs.h"
#include "data/prompts.h"
#include "exchange/record.h"
#include "pipelines/follow/follow.h"
#include "pipelines/pipelines.h"
#include "pipelines/rows/rows.h"
#include "reports/metrics.h"
#include "reports/tracker.h"
#include "reports/view.h"
#include "samples/batch.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

cr_status cr_rows_load(cr_rows *r, const cr_worker_config *from, cr_row_encode encode,
                       cr_dataset *data, cr_err *err)
{
    cr_prompt_maker maker = {
        .config = r->c, .from = from, .tokenizer = r->tokenizer, .chat = r->chat};

    data->image_folder = from->data.image_folder;
    for (size_t i = 0; i < from->data.num_file_names && err->status == CR_OK; i++)
        cr_note(cr_prompt_load(&maker, encode, data, from->data.file_names[i], err));
    if (err->status == CR_OK) cr_prompt_report(&maker, from->name);
    cr_prompt_maker_close(&maker);
    CR_TRY(err->status);
    if (!data->num_rows)
        return cr_fail(err, CR_ECONFIG, "%s: its files (%s%s) have no row to take", from->name,
                       from->data.file_names[0], from->data.num_file_names > 1 ? ", .." : "");
    return CR_OK;
}

/* A projector alone learns from images. */
static cr_status check_stage(const cr_rows *r, cr_err *err)
{
    const char *stage = r->c->train.stage;

    if (!stage || strcmp(stage, "align") != 0) return CR_OK;
    if (cr_dataset_has_images(&r->data)) return CR_OK;
    return cr_fail(err, CR_ECONFIG,
                   "%s: stage align trains the projector alone, which learns from images, and no "
                   "row has one (stage finetune trains the language model, too)",
                   r->c->train.name);
}

static cr_status load(cr_rows *r, cr_err *err)
{
    const cr_worker_config *w = &r->c->train;

    CR_TRY(cr_tokenizer_open(w->model_path, &r->tokenizer, err));
    if (!w->data.prompt || (r->c->has_validation && !r->c->validation.data.prompt))
        CR_TRY(cr_chat_open(w->model_path, &r->chat, err));
    CR_TRY(r->kind->load(r, w, &r->data, err));
    CR_TRY(check_stage(r, err));
    if (cr_dataset_has_images(&r->data)) CR_TRY(cr_work_image_cost(w, &r->images, err));
    if (r->c->has_validation) CR_TRY(r->kind->load(r, &r->c->validation, &r->validation, err));
    r->batch = (size_t)(cr_worker_num_batches(w) * cr_worker_batch_samples(w));
    if (r->data.num_rows < r->batch)
        return cr_fail(err, CR_ECONFIG, "the data has %zu row%s, a step takes %zu",
                       r->data.num_rows, r->data.num_rows == 1 ? "" : "s", r->batch);
    r->order = CR_NEW_ARRAY(uint32_t, r->data.num_rows);
    r->epoch = -1;
    r->schedule = cr_training_schedule(
        w, (int64_t)ceil(w->training.num_train_epochs * (double)(r->data.num_rows / r->batch)));
    r->num_steps =
        r->schedule.max_steps < r->c->max_steps ? r->schedule.max_steps : r->c->max_steps;
    if (r->num_steps < r->schedule.max_steps)
        cr_log(
            CR_LOG_INFO, cr_pipeline_names[r->c->kind],
            "max_steps ends the run after %lld steps; the schedule of the learning rate goes over "
            "the %lld of num_train_epochs",
            (long long)r->num_steps, (long long)r->schedule.max_steps);
    return CR_OK;
}

/* The rows of a step, which depend on nothing but the step: a resumed run goes on where it was. */
static const uint32_t *rows_of(cr_rows *r, int64_t step)
{
    int64_t per_epoch = (int64_t)(r->data.num_rows / r->batch);

    if (r->epoch != step / per_epoch) {
        r->epoch = step / per_epoch;
        for (size_t i = 0; i < r->data.num_rows; i++)
            r->order[i] = (uint32_t)i;
        if (r->c->rows.shuffle)
            cr_rng_shuffle((uint64_t)r->c->seed, (uint64_t)r->epoch, r->order, r->data.num_rows);
    }
    return r->order + (size_t)(step % per_epoch) * r->batch;
}

/* ---- calls ---- */

static double work_of(const cr_rows *r, const struct cr_batch_sample *samples, size_t num)
{
    size_t tokens = 0;
    double images = 0;

    for (size_t i = 0; i < num; i++) {
        tokens += samples[i].num_ids;
        images += cr_work_image_tokens(&r->images, samples[i].items);
    }
    return cr_work_of(tokens, images);
}

cr_status cr_rows_put_images(cr_rows *r, const cr_dataset *data, const uint32_t *rows, size_t first,
                             size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        CR_TRY(cr_row_images_put(&data->rows[rows ? rows[i] : first + i], data->image_folder,
                                 r->run->items, r->run->x, err));
    return CR_OK;
}

/* Which samples go to which rank, so that their work balances; those of a row stay together and in order. The gradient does not depend
 * on it. order, part [b->num] are filled and borrowed. */
static cr_deal deal_of(const cr_rows *r, const cr_sample_batch *b, uint32_t *order, int32_t *part)
{
    const cr_worker_config *w = &r->c->train;
    size_t each = r->kind->num_samples, num = b->num / each;
    double *work = CR_NEW_ARRAY(double, num ? num : 1);
    uint32_t *row = CR_NEW_ARRAY(uint32_t, num ? num : 1);
    int32_t *part_of = CR_NEW_ARRAY(int32_t, num ? num : 1);

    for (size_t i = 0; i < num; i++) {
        work[i] = work_of(r, b->samples + i * each, each);
        row[i] = (uint32_t)i;
    }
    cr_packing_deal_mini(work, (int)cr_worker_num_batches(w),
                         (size_t)w->training.per_device_train_batch_size, row, num, part_of);
    for (size_t i = 0; i < num * each; i++) {
        order[i] = row[i / each] * (uint32_t)each + (uint32_t)(i % each);
        part[i] = part_of[i / each];
    }
    cr_free(part_of);
    cr_free(row);
    cr_free(work);
    return (cr_deal){.order = order, .part = part};
}

cr_status cr_rows_update(cr_rows *r, cr_sample_batch *b, const uint64_t counts[CR_MINI_COUNTS],
                         double lr, cr_train_sums *sums, cr_err *err)
{
    const float rate = (float)lr;
    uint32_t *order = CR_NEW_ARRAY(uint32_t, b->num + 1);
    int32_t *part = CR_NEW_ARRAY(int32_t, b->num + 1);
    cr_record command = {0};
    cr_role_call call = {.role = CR_ROLE_TRAIN,
                         .ask = r->kind->ask,
                         .command = &command,
                         .batch = b,
                         .deal = deal_of(r, b, order, part),
                         .columns = cr_sample_batch_columns(b)};

    cr_record_add(&command, CR_FIELD_LR, CR_RECORD_FLOAT32, &rate, 1);
    cr_record_add(&command, CR_FIELD_COUNTS, CR_RECORD_UINT64, counts, CR_MINI_COUNTS);
    cr_record_set_int(&command, CR_FIELD_MINIS, 1);
    if (cr_role_call_run(r->run, &call, err) == CR_OK)
        cr_note(cr_role_call_add_sums(&call, sums, err));
    if (sums->num_skipped)
        cr_log(CR_LOG_WARN, cr_pipeline_names[r->c->kind],
               "step %lld: the gradient is not finite; the update was skipped",
               (long long)r->run->step);
    cr_role_call_free(&call);
    cr_record_free(&command);
    cr_free(order);
    cr_free(part);
    return err->status;
}

cr_status cr_rows_log_probs(cr_rows *r, cr_sample_batch *b, cr_batch_column column, cr_err *err)
{
    cr_role_call call = {.role = column == CR_COLUMN_REF ? CR_ROLE_REFERENCE : CR_ROLE_TRAIN,
                         .ask = CR_ASK_LOG_PROBS,
                         .batch = b};

    if (cr_role_call_run(r->run, &call, err) == CR_OK)
        cr_note(cr_role_call_read(&call, CR_FIELD_LOG_PROBS, column, err));
    cr_role_call_free(&call);
    return err->status;
}

size_t cr_rows_num_at_once(const cr_rows *r)
{
    return 8 * (size_t)(r->c->train.num_devices * r->c->train.infer_batch_size);
}

/* ---- the state that a checkpoint keeps ---- */

static cr_status save(cr_rows *r, int64_t step, cr_err *err)
{
    json_t *root = json_pack("{s:I}", "step", (json_int_t)step);
    cr_buf text = {0};
    const char *folder;
    char *path;

    cr_best_put(&r->best, root);
    if (cr_saver_begin(&r->saver, step, &folder, err) == CR_OK) {
        path = cr_path_join(folder, "state/pipeline.json");
        if (cr_json_add_value(&text, root, err) == CR_OK &&
            cr_file_write_atomic(path, text.data, text.num_bytes, err) == CR_OK)
            cr_note(cr_saver_start(&r->saver, err));
        cr_free(path);
    }
    cr_buf_free(&text);
    json_decref(root);
    return err->status;
}

static cr_status resume(cr_rows *r, const char *checkpoint, cr_err *err)
{
    char *path = cr_path_join(checkpoint, "state/pipeline.json");
    json_t *root = NULL;

    if (cr_file_exists(path) && /* older checkpoints have none */
        cr_json_read_file(path, &root, err) == CR_OK && cr_best_get(&r->best, root, err) != CR_OK)
        cr_fail_add(err, "%s (damaged?)", path);
    if (err->status == CR_OK) cr_note(cr_saver_resume(&r->saver, checkpoint, err));
    json_decref(root);
    cr_free(path);
    return err->status;
}

/* ---- the loop ---- */

static cr_status validate(cr_rows *r, bool is_final, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s();

    CR_TRY(r->kind->validate(r, is_final, m, err));
    if (!cr_metrics_get(m, "time/val")) cr_metrics_set(m, cr_now_s() - start, "time/val");
    return CR_OK;
}

static cr_status train(cr_rows *r, int64_t step, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s();

    CR_TRY(r->kind->train(r, rows_of(r, step), cr_learning_rate(&r->schedule, step), m, err));
    cr_metrics_set(m, cr_now_s() - start, "time/step_train");
    return CR_OK;
}

/* Before a step, which may be the last one then. */
static cr_status validate_before(cr_rows *r, int64_t step, cr_metrics *m, cr_err *err)
{
    bool is_last;

    if (!r->c->has_validation || step % r->c->eval_steps) return CR_OK;
    CR_TRY(validate(r, false, m, err));
    CR_TRY(cr_best_validated(&r->best, &r->saver, m, "", step - 1, &is_last, err));
    if (is_last) r->num_steps = step + 1;
    return CR_OK;
}

/* The last step is saved. */
static cr_status see_final(cr_rows *r, int64_t step, const cr_metrics *m, cr_err *err)
{
    bool is_last;

    return r->c->has_validation
               ? cr_best_validated(&r->best, &r->saver, m, "final/", step, &is_last, err)
               : CR_OK;
}

static cr_status steps(cr_rows *r, cr_err *err)
{
    cr_run *run = r->run;
    cr_metrics m = {0};

    for (run->step = run->first_step; run->step < r->num_steps && err->status == CR_OK;
         run->step++) {
        double start = cr_now_s();
        bool is_last, should_save;
        cr_metrics_clear(&m);
        CR_TRY_GOTO(out, validate_before(r, run->step, &m, err));
        is_last = run->step == r->num_steps - 1;
        CR_TRY_GOTO(out, train(r, run->step, &m, err));
        CR_TRY_GOTO(out, cr_follow(run, run->step, &m, err));
        if (r->c->has_validation && is_last) CR_TRY_GOTO(out, validate(r, true, &m, err));
        cr_item_store_end_step(run->items, run->x);
        should_save = is_last || cr_run_should_stop() ||
                      (run->step > 0 && run->step % r->c->save_steps == 0) ||
                      cr_best_needs_save(r->c, run->step);
        CR_TRY_GOTO(out, cr_saver_poll(&r->saver, err));
        if (should_save) CR_TRY_GOTO(out, save(r, run->step, err));
        cr_metrics_set(&m, cr_now_s() - start, "time/step_total");
        CR_TRY_GOTO(out, cr_tracker_log(run->tracker, run->step, &m, err));
        cr_view_step(run->view, run->step, &m, cr_now_s() - start);
        CR_TRY_GOTO(out, cr_saver_end_step(&r->saver, is_last || cr_run_should_stop(), err));
        if (is_last) CR_TRY_GOTO(out, see_final(r, run->step, &m, err));
        CR_TRY_GOTO(out, cr_run_watch(run, err));
        if (should_save && !is_last) CR_TRY_GOTO(out, cr_run_stopped(run, err));
    }
out:
    cr_metrics_free(&m);
    return err->status;
}

static cr_status open_pipeline(const cr_config *config, void **out, cr_err *err)
{
    cr_rows *r = CR_NEW(cr_rows);

    r->c = config;
    r->kind = config->kind == CR_PIPELINE_SFT   ? &cr_rows_sft
              : config->kind == CR_PIPELINE_DPO ? &cr_rows_dpo
                                                : &cr_rows_distill;
    *out = r;
    return load(r, err);
}

static cr_status run_pipeline(void *pipeline, cr_run *run, const char *resume_path, cr_err *err)
{
    cr_rows *r = pipeline;

    r->saver.run = r->run = run;
    r->saver.data = &r->data;
    CR_TRY(cr_tracker_open(r->c, run->output_dir, run->first_step, &run->tracker, err));
    run->view = cr_view_create(run->first_step, r->num_steps, r->kind->score);
    if (resume_path) CR_TRY(resume(r, resume_path, err));
    if (cr_best_has_ended(&r->best, r->c)) r->num_steps = run->first_step;
    if (r->kind->begin) CR_TRY(r->kind->begin(r, err));
    return steps(r, err);
}

static void close_pipeline(void *pipeline)
{
    cr_rows *r = pipeline;

    if (!r) return;
    if (r->kind->end) r->kind->end(r);
    cr_saver_fini(&r->saver);
    cr_dataset_free(&r->data);
    cr_dataset_free(&r->validation);
    cr_free(r->order);
    cr_chat_close(r->chat);
    cr_tokenizer_close(r->tokenizer);
    cr_free(r);
}

const cr_pipeline_ops cr_pipeline_rows = {open_pipeline, run_pipeline, NULL, close_pipeline};
