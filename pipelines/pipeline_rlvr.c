/* pipeline_rlvr.c -- reinforcement learning from verifiable rewards.
 *
 * One step (README, ARCHITECTURE): sync weights, validate if due, roll out and score, log-probs
 * of reference and teacher, values, old log-probs, advantages, train, report, checkpoint if due.
 *
 * With async_generation_ratio 1 the rollout of the next step begins before this one trains, with the weights that this
 * one begins with: its samples are one step old when they are trained on. No rollout is under way when a checkpoint is
 * saved after save_steps, so a resumed run has the numbers of one that was not interrupted; the step after it samples
 * with its own weights.
 */
#include "data/prompts.h"
#include "exchange/record.h"
#include "launch/role_call.h"
#include "pipelines/checkpoint.h"
#include "pipelines/eval/eval.h"
#include "pipelines/follow/follow.h"
#include "pipelines/pipelines.h"
#include "pipelines/progress.h"
#include "pipelines/replay/recorded.h"
#include "pipelines/saver.h"
#include "pipelines/validation.h"
#include "pipelines/verdicts.h"
#include "reports/metrics.h"
#include "reports/tracker.h"
#include "reports/view.h"
#include "scorers/code/code.h"
#include "scorers/judge/judge.h"
#include "scorers/reward_program.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rlvr {
    cr_run *run;
    const cr_config *c;
    cr_tokenizer *tokenizer;
    cr_chat *chat;
    cr_dataset data, validation;
    cr_order *orders;   /* [num_rewards] */
    cr_cursor *cursors; /* [num_rewards] */
    cr_curriculum curriculum;
    double *shares;   /* [num_rewards] of a prompt; 1 together */
    int *num_prompts; /* [num_rewards] of the step that runs */
    cr_learning learning;
    cr_saver saver;
    int64_t num_empty;  /* steps in a row, up to the last one, that trained nothing */
    int64_t num_flat;   /* likewise, without any gradient */
    int64_t num_synced; /* the steps up to this number have sent their weights to the engines */
    cr_rollouts *ahead; /* of the next step, which engines work on, or NULL (owned) */
    cr_cursor *cursors_before; /* [num_rewards] before ahead was drawn */
} rlvr;

/* ---- start ---- */

static cr_status load_files(rlvr *s, cr_dataset *data, const cr_worker_config *from,
                            int64_t prompt_length, cr_err *err)
{
    cr_prompt_maker maker = {.config = s->c,
                             .from = from,
                             .tokenizer = s->tokenizer,
                             .chat = s->chat,
                             .prompt_length = prompt_length};

    data->image_folder = from->data.image_folder;
    for (size_t i = 0; i < from->data.num_file_names && err->status == CR_OK; i++)
        cr_note(cr_prompt_load(&maker, cr_prompt_encode_rlvr, data, from->data.file_names[i], err));
    if (err->status == CR_OK) cr_prompt_report(&maker, from->name);
    cr_prompt_maker_close(&maker);
    CR_TRY(err->status);
    return data->num_rows
               ? CR_OK
               : cr_fail(err, CR_ECONFIG, "%s: its files (%s%s) have no row to take", from->name,
                         from->data.file_names[0], from->data.num_file_names > 1 ? ", .." : "");
}

static cr_status watch_run(void *run, cr_err *err)
{
    return cr_run_watch(run, err);
}

/* The judge of a domain answers; of one of the run, which is being started, each process within rpc_timeout. */
static cr_status check_judge(const rlvr *s, const cr_reward_config *r, const json_t *row,
                             cr_err *err)
{
    const int num = s->run ? r->judge_model.num_devices : 1;
    const double limit_s = s->run ? s->c->rpc_timeout : s->c->reward_timeout;

    for (int i = 0; i < num && err->status == CR_OK; i++) {
        cr_judge *judge;
        if (cr_judge_open(s->c, r, i, limit_s, &judge, err) == CR_OK)
            cr_note(cr_judge_check(judge, row, s->run ? watch_run : NULL, s->run, err));
        cr_judge_close(judge);
    }
    return cr_fail_add(err, "rewards.%s.%s", r->domain, r->reward_manager ? "remote" : "judge");
}

/* The first row that a block scores, or NULL; *num: rows of training whose domain it is. */
static const cr_row *first_row(const rlvr *s, int block, size_t *num)
{
    const cr_dataset *const sets[] = {&s->data, &s->validation};
    const cr_row *first = NULL;

    *num = 0;
    for (size_t k = 0; k < CR_COUNT(sets); k++)
        for (size_t i = 0; i < sets[k]->num_rows; i++) {
            const cr_row *row = &sets[k]->rows[i];
            for (size_t j = 0; !first && j < row->num_rewards; j++)
                if (row->rewards[j] == block) first = row;
            *num += k == 0 && row->domain == block;
        }
    return first;
}

/* Models that score: those that the run has started, and that workers will have. */
static cr_status check_judges(const rlvr *s, cr_err *err)
{
    for (size_t d = 0; d < s->c->num_rewards; d++) {
        size_t num;
        const cr_row *first = first_row(s, (int)d, &num);
        if (s->c->rewards[d].judge_model.is_given && first)
            CR_TRY(check_judge(s, &s->c->rewards[d], first->json, err));
        if (s->c->rewards[d].model.is_given && first)
            CR_TRY(cr_reward_program_check(s->c, s->run->config_path, &s->c->rewards[d],
                                           first->text, err));
    }
    return CR_OK;
}

/* Programs can be run here, or the run is refused. */
static cr_status check_code(const cr_config *c, const cr_reward_config *r, cr_err *err)
{
    const cr_code_settings settings = {
        .keys = &r->code, .num_at_once = 1, .limit_s = c->reward_timeout};
    cr_code *code;

    if (cr_code_open(&settings, &code, err) == CR_OK) cr_code_close(code);
    return cr_fail_add(err, "rewards.%s", r->domain);
}

/* Judges and programs of one's own are tried with the first row that they score; a warning counts rows that no step draws. */
static cr_status check_rewards(rlvr *s, cr_err *err)
{
    for (size_t d = 0; d < s->c->num_rewards && err->status == CR_OK; d++) {
        const cr_reward_config *r = &s->c->rewards[d];
        size_t num;
        const cr_row *first = first_row(s, (int)d, &num);
        if (num && r->probability <= 0)
            cr_log(CR_LOG_WARN, "data",
                   "%zu row%s of %s will never be drawn: domain_interleave_probs gives it no share",
                   num, num == 1 ? "" : "s", r->domain);
        if (!first) cr_log(CR_LOG_INFO, "data", "no row has the reward %s", r->domain);
        if (r->exec && first) cr_note(cr_reward_program_check(s->c, "", r, first->text, err));
        if (r->judge.url && !r->judge_model.is_given && first)
            cr_note(check_judge(s, r, first->json, err));
        if (r->rule && strcmp(r->rule, "code") == 0) cr_note(check_code(s->c, r, err));
        if (r->model.is_given && cr_vocabulary_check(s->c, &r->model, s->tokenizer, err) != CR_OK)
            cr_fail_add(err, "rewards");
    }
    return err->status;
}

/* The share of each domain, as fractions of one prompt a prompt. */
static cr_status split_domains(rlvr *s, cr_err *err)
{
    const cr_config *c = s->c;
    double sum = 0;

    for (size_t d = 0; d < c->num_rewards; d++)
        sum += c->rewards[d].probability;
    if (!(sum > 0))
        return cr_fail(err, CR_ECONFIG, "no domain has a share (domain_interleave_probs)");
    if (fabs(sum - 1) > 1e-9)
        cr_log(CR_LOG_INFO, "data",
               "domain_interleave_probs add up to %g: each share is divided by that", sum);
    for (size_t d = 0; d < c->num_rewards; d++) {
        const char *name = c->rewards[d].domain;
        double prompts = c->rewards[d].probability / sum * (double)c->rollout_batch_size;
        cr_order_init(&s->orders[d], &s->data, (int)d, (uint64_t)c->seed);
        s->shares[d] = c->rewards[d].probability / sum;
        if (s->shares[d] <= 0) continue;
        if ((double)s->orders[d].num < ceil(prompts - 1e-9))
            return cr_fail(err, CR_ECONFIG,
                           "the domain %s has %zu row%s, a step takes %.0f (rollout_batch_size)",
                           name, s->orders[d].num, s->orders[d].num == 1 ? "" : "s",
                           ceil(prompts - 1e-9));
        if (s->shares[d] < 1)
            cr_log(CR_LOG_INFO, "data", "domain %s: %g of %lld prompts a step, %zu row%s", name,
                   prompts, (long long)c->rollout_batch_size, s->orders[d].num,
                   s->orders[d].num == 1 ? "" : "s");
    }
    return CR_OK;
}

/* Roles that give log-probs or values: their tokens are the run's, their services answer. */
static cr_status open_scored(rlvr *s, cr_err *err)
{
    const cr_worker_config *const workers[CR_NUM_ROLES] = {
        [CR_ROLE_REFERENCE] = &s->c->reference,
        [CR_ROLE_TEACHER] = &s->c->teacher,
        [CR_ROLE_TEACHER_2] = &s->c->more_teachers[0],
        [CR_ROLE_TEACHER_3] = &s->c->more_teachers[1],
        [CR_ROLE_TEACHER_4] = &s->c->more_teachers[2],
        [CR_ROLE_CRITIC] = &s->c->critic};

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = workers[r];
        if (!w || !w->is_needed || w->is_of_trainer) continue;
        CR_TRY(w->service.url ? cr_role_service_open(s->c, w, 0, &s->learning.services[r], err)
                              : cr_vocabulary_check(s->c, w, s->tokenizer, err));
    }
    return CR_OK;
}

/* With teachers each row has one. */
static cr_status check_teachers(const rlvr *s, cr_err *err)
{
    for (size_t i = 0; i < s->data.num_rows && s->c->teacher.is_needed; i++) {
        const cr_row *row = &s->data.rows[i];
        bool has_one = row->domain < 0;
        for (int k = 0; k < CR_MAX_TEACHERS; k++)
            has_one = has_one || cr_teacher_answers(s->c, k, row);
        if (!has_one)
            return cr_fail(err, CR_ECONFIG,
                           "no teacher answers for the row of line %d (tag_included of a teacher "
                           "must have its tag; a teacher without tags answers for all)",
                           row->line);
    }
    return CR_OK;
}

static cr_status load(rlvr *s, cr_err *err)
{
    s->orders = CR_NEW_ARRAY(cr_order, s->c->num_rewards);
    s->cursors = CR_NEW_ARRAY(cr_cursor, s->c->num_rewards);
    s->cursors_before = CR_NEW_ARRAY(cr_cursor, s->c->num_rewards);
    s->shares = CR_NEW_ARRAY(double, s->c->num_rewards);
    s->num_prompts = CR_NEW_ARRAY(int, s->c->num_rewards);
    CR_TRY(cr_tokenizer_open(s->c->train.model_path, &s->tokenizer, err));
    if ((!s->c->val_only && !s->c->train.data.prompt) ||
        (s->c->has_validation && !s->c->validation.data.prompt))
        CR_TRY(cr_chat_open(s->c->train.model_path, &s->chat, err));
    if (!s->c->val_only) CR_TRY(load_files(s, &s->data, &s->c->train, s->c->prompt_length, err));
    if (s->c->has_validation)
        CR_TRY(load_files(s, &s->validation, &s->c->validation, s->c->val_prompt_length, err));
    if (s->c->val_only) return check_rewards(s, err);
    cr_curriculum_init(&s->curriculum, &s->c->curriculum, &s->data, (uint64_t)s->c->seed);
    CR_TRY(split_domains(s, err));
    CR_TRY(check_teachers(s, err));
    if (!s->c->rollouts_from) CR_TRY(check_rewards(s, err));
    cr_learning_init(&s->learning, s->c);
    if (cr_dataset_has_images(&s->data)) CR_TRY(cr_learning_weigh_images(&s->learning, err));
    return open_scored(s, err);
}

/* ---- the state that a checkpoint keeps ---- */

static const char scores_file[] = "state/curriculum.json";

static cr_status save(rlvr *s, int64_t step, cr_err *err)
{
    const char *folder;
    char *path, *scores;

    CR_TRY(cr_saver_begin(&s->saver, step, &folder, err));
    path = cr_path_join(folder, "state/pipeline.json");
    scores = cr_path_join(folder, scores_file);
    if (cr_progress_write(path, step, &s->learning, s->ahead ? s->cursors_before : s->cursors,
                          err) == CR_OK &&
        (!s->c->curriculum.is_on || cr_curriculum_write(&s->curriculum, scores, err) == CR_OK))
        cr_note(cr_saver_start(&s->saver, err));
    cr_free(path);
    cr_free(scores);
    return err->status;
}

static cr_status resume(rlvr *s, const char *checkpoint, cr_err *err)
{
    char *path = cr_path_join(checkpoint, "state/pipeline.json"),
         *scores = cr_path_join(checkpoint, scores_file);

    if (cr_progress_read(path, &s->learning, s->cursors, err) == CR_OK)
        cr_note(cr_saver_resume(&s->saver, checkpoint, err));
    if (err->status == CR_OK && s->c->curriculum.is_on && cr_file_exists(scores))
        cr_note(cr_curriculum_read(&s->curriculum, scores, err));
    cr_free(path);
    cr_free(scores);
    return err->status;
}

/* ---- phases of a step ---- */

/* Train ranks send, engines receive: all are asked before any is waited for. m: or NULL. */
static cr_status sync_weights(rlvr *s, cr_metrics *m, cr_err *err)
{
    cr_role_call call = {.role = CR_NUM_ROLES, .ask = CR_ASK_SYNC};
    int64_t num_bytes = 0; /* into the last engine: all get as many */

    cr_note(cr_role_call_run(s->run, &call, err));
    if (err->status == CR_OK)
        cr_note(cr_record_get_int(&call.replies[call.num - 1], CR_FIELD_BYTES, &num_bytes, err));
    if (m) cr_metrics_set(m, (double)num_bytes, "system/actor_infer/sync_bytes");
    cr_role_call_free(&call);
    return err->status;
}

/* head: what stands before the names of the metrics. */
static cr_status validate(rlvr *s, int64_t step, const char *head, bool is_followed, cr_metrics *m,
                          cr_err *err)
{
    cr_rollout_args args = {.data = &s->validation,
                            .group_size = (size_t)s->c->validation.generating.num_return_sequences,
                            .step = step,
                            .is_validation = true,
                            .is_followed = is_followed};
    cr_rollout rollout;
    double start = cr_now_s();

    CR_TRY(cr_rollout_collect(s->run, &args, &rollout, m, err));
    cr_verdict_warn(&rollout, "validation of step", step);
    cr_note(cr_rollout_write(s->run, &rollout, &s->validation, step, true, err));
    cr_validation_metrics(s->c, &rollout, &s->validation, head, m);
    if (!cr_metrics_get(m, "time/val_step")) cr_metrics_set(m, cr_now_s() - start, "time/val_step");
    cr_rollout_free(&rollout);
    return err->status;
}

static void show_samples(const rlvr *s, const cr_rollout *r, int64_t step)
{
    for (size_t i = 0; i < 3 && i * r->group_size < r->num_samples; i++) {
        const cr_sample *x = &r->samples[i * r->group_size];
        const char *prompt = json_string_value(s->data.rows[x->row].asked);
        cr_buf line = {0};
        cr_buf_addf(&line, "  step %lld, ", (long long)step);
        if (cr_sample_has_verdict(x))
            cr_buf_addf(&line, "score %g: ", x->score);
        else
            cr_buf_addf(&line, "no score (%s): ", cr_outcome_name(x->outcome));
        cr_json_add_string(&line, prompt ? prompt : "", prompt ? strlen(prompt) : 0);
        cr_buf_adds(&line, " -> ");
        cr_json_add_string(&line, x->response, x->response_bytes);
        cr_log_line(line.data);
        cr_buf_free(&line);
    }
}

/* The file of the rollout has the advantages, and is there also when learning fails. */
static cr_status learn(rlvr *s, cr_rollout *rollout, int64_t step, cr_metrics *m, cr_err *err)
{
    cr_err unwritten = {0};
    cr_status status = cr_learn(&s->learning, s->run, rollout, &s->data, step, m, err);

    if (cr_rollout_write(s->run, rollout, &s->data, step, false, &unwritten) == CR_OK ||
        status != CR_OK)
        return status;
    return cr_fail(err, unwritten.status, "%s", unwritten.msg);
}

/* Once a step: its weights go to the engines, and are validated. */
static cr_status renew_engines(rlvr *s, int64_t step, cr_metrics *m, cr_err *err)
{
    double start = cr_now_s();
    bool is_last;

    if (step < s->num_synced || s->c->rollouts_from) return CR_OK;
    s->num_synced = step + 1;
    if (step % s->c->model_update_frequency == 0 || step == s->run->first_step) {
        CR_TRY(sync_weights(s, m, err));
        cr_metrics_set(m, cr_now_s() - start, "time/step_model_update");
    }
    if (!s->c->has_validation || step % s->c->eval_steps) return CR_OK;
    CR_TRY(validate(s, step, "", /*is_followed=*/true, m, err));
    CR_TRY(cr_best_validated(&s->learning.best, &s->saver, m, "", step - 1, &is_last, err));
    if (is_last) s->run->end_step = step + 1;
    return CR_OK;
}

static cr_status poll_ahead(void *pipeline, cr_err *err)
{
    rlvr *s = pipeline;

    return s->ahead ? cr_rollouts_poll(s->ahead, err) : CR_OK;
}

static cr_status begin_rollout(rlvr *s, int64_t step, cr_err *err)
{
    const cr_rollout_args args = {.data = &s->data,
                                  .orders = s->orders,
                                  .cursors = s->cursors,
                                  .curriculum = s->c->curriculum.is_on ? &s->curriculum : NULL,
                                  .num_prompts = s->num_prompts,
                                  .group_size = (size_t)s->c->group_size,
                                  .step = step};

    memcpy(s->cursors_before, s->cursors, s->c->num_rewards * sizeof *s->cursors);
    cr_cursors_deal(s->cursors, s->shares, s->c->num_rewards, s->c->rollout_batch_size,
                    s->num_prompts);
    return cr_rollouts_begin(s->run, &args, &s->ahead, err);
}

/* Cursors go where that run's were after the step, so that a checkpoint has them. */
static void follow_cursors(rlvr *s, const cr_rollout *rollout, int64_t step)
{
    cr_cursors_deal(s->cursors, s->shares, s->c->num_rewards, s->c->rollout_batch_size,
                    s->num_prompts);
    if (cr_recorded_follow(rollout, &s->data, s->orders, s->cursors, s->c->num_rewards)) return;
    if (step == s->run->first_step)
        cr_log(CR_LOG_WARN, "rlvr",
               "rollouts_from: its samples were not drawn in the order of this seed: checkpoints "
               "keep the place in the data from which this run began");
}

/* The samples that another run had in this step (rollouts_from). */
static cr_status take_recorded(rlvr *s, int64_t step, cr_rollout *rollout, cr_metrics *m,
                               cr_err *err)
{
    double at = cr_now_s();
    const char *folder = s->c->rollouts_from;

    CR_TRY(cr_recorded_rollout(folder, step, s->c, &s->data, rollout, err));
    follow_cursors(s, rollout, step);
    if (s->run->change) CR_TRY(s->run->change(s->run->change_context, rollout, err));
    cr_metrics_set(m, cr_now_s() - at, "time/step_generate");
    if (s->c->is_async)
        cr_metrics_set(m, rollout->samples[0].version < s->learning.actor.updates,
                       "scheduler/off_policy_ratio");
    return CR_OK;
}

/* The rollout of this step; if the engines may go on, that of the next one begins. */
static cr_status take_rollout(rlvr *s, int64_t step, bool is_next_begun, cr_rollout *rollout,
                              cr_metrics *m, cr_err *err)
{
    bool is_old = s->ahead; /* by one step */
    double at;

    if (s->c->rollouts_from) return take_recorded(s, step, rollout, m, err);
    if (!is_old) CR_TRY(renew_engines(s, step, m, err));
    at = cr_now_s();
    if (!is_old) CR_TRY(begin_rollout(s, step, err));
    cr_note(cr_rollouts_take(s->ahead, rollout, m, err));
    cr_rollouts_free(s->ahead);
    s->ahead = NULL;
    CR_TRY(err->status);
    cr_metrics_set(m, cr_now_s() - at, "time/step_generate");
    if (s->c->is_async) cr_metrics_set(m, is_old, "scheduler/off_policy_ratio");
    if (s->c->is_async) CR_TRY(renew_engines(s, step, m, err));
    return is_next_begun && step + 1 < s->run->end_step ? begin_rollout(s, step + 1, err) : CR_OK;
}

/* Of all rows after the step's samples, and what its draws passed over. */
static void curriculum_metrics(rlvr *s, cr_metrics *m)
{
    static const char *const names[CR_NUM_POOLS] = {"normal", "easy", "hard", "solved"};
    size_t num[CR_NUM_POOLS];

    if (!s->c->curriculum.is_on) return;
    cr_curriculum_count(&s->curriculum, num);
    for (int p = 0; p < CR_NUM_POOLS; p++)
        cr_metrics_set(m, (double)num[p], "scheduler/curriculum/%s", names[p]);
    cr_metrics_set(m, (double)s->curriculum.num_skipped, "scheduler/curriculum/skipped");
    s->curriculum.num_skipped = 0;
}

static cr_status one_step(rlvr *s, int64_t step, cr_metrics *m, bool *is_saved, cr_err *err)
{
    cr_run *run = s->run;
    double start = cr_now_s();
    cr_rollout rollout = {0};
    bool is_last = step == run->end_step - 1, is_ended;

    *is_saved = is_last || cr_run_should_stop() || (step > 0 && step % s->c->save_steps == 0) ||
                cr_best_needs_save(s->c, step);
    CR_TRY_GOTO(out, take_rollout(s, step, s->c->is_async && !*is_saved, &rollout, m, err));
    curriculum_metrics(s, m);
    is_last = step == run->end_step - 1; /* it may have ended early */
    *is_saved = *is_saved || is_last;
    cr_verdict_warn(&rollout, "step", step);
    if (step % s->c->logging_steps == 0) show_samples(s, &rollout, step);
    CR_TRY_GOTO(out, learn(s, &rollout, step, m, err));
    CR_TRY_GOTO(out, cr_follow(run, step, m, err));
    if (is_last &&
        s->c->has_validation) { /* what came out of it: ROLL leaves that to the next run */
        CR_TRY_GOTO(out, sync_weights(s, NULL, err));
        CR_TRY_GOTO(out, validate(s, step + 1, "final/", false, m, err));
    }
    cr_item_store_end_step(run->items, run->x);
    *is_saved = *is_saved || cr_run_should_stop();
    CR_TRY_GOTO(out, cr_saver_poll(&s->saver, err));
    if (*is_saved) CR_TRY_GOTO(out, save(s, step, err));
    cr_metrics_set(m, cr_now_s() - start, "time/step_total");
    cr_metrics_set(
        m, (double)(rollout.num_prompt_tokens + rollout.num_response_tokens) / (cr_now_s() - start),
        "system/tps/tps");
    CR_TRY_GOTO(out, cr_tracker_log(run->tracker, step, m, err));
    cr_view_step(run->view, step, m, cr_now_s() - start);
    cr_verdict_warn_flat(m, step, &s->num_flat);
    CR_TRY_GOTO(out, cr_verdict_end_step(s->c, &rollout, m, step, &s->num_empty, err));
    CR_TRY_GOTO(out, cr_saver_end_step(&s->saver, is_last || cr_run_should_stop(), err));
    if (is_last && s->c->has_validation)
        CR_TRY_GOTO(out, cr_best_validated(&s->learning.best, &s->saver, m, "final/", step,
                                           &is_ended, err));
    if (cr_metrics_get(m, "final/val_correct/all/mean"))
        cr_log(CR_LOG_INFO, "rlvr", "validation after the last step: %.4f",
               *cr_metrics_get(m, "final/val_correct/all/mean"));
out:
    cr_rollout_free(&rollout);
    return err->status;
}

static cr_status open_pipeline(const cr_config *config, void **out, cr_err *err)
{
    rlvr *s = CR_NEW(rlvr);

    s->c = config;
    *out = s;
    return load(s, err);
}

/* The steps to come have samples; each file is read in its step. */
static cr_status check_recorded(const rlvr *s, cr_err *err)
{
    for (int64_t step = s->run->first_step; step < s->run->end_step && err->status == CR_OK;
         step++) {
        char *path = cr_recorded_path(s->c->rollouts_from, step);
        if (!cr_file_exists(path))
            cr_fail(err, CR_EABSENT,
                    "rollouts_from: %s is not there: it has no samples of step %lld", path,
                    (long long)step);
        cr_free(path);
    }
    return err->status;
}

static cr_status run_pipeline(void *pipeline, cr_run *run, const char *resume_path, cr_err *err)
{
    rlvr *s = pipeline;
    cr_metrics m = {0};
    bool is_saved = false;

    s->saver.run = s->run = run;
    s->saver.data = &s->data;
    CR_TRY(s->c->rollouts_from ? check_recorded(s, err) : check_judges(s, err));
    if (s->c->val_only) return cr_evaluate(run, &s->validation, err);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        if (s->learning.services[r])
            CR_TRY(cr_role_service_record(s->learning.services[r], run->output_dir, err));
    CR_TRY(cr_tracker_open(s->c, run->output_dir, run->first_step, &run->tracker, err));
    run->view = cr_view_create(run->first_step, s->c->max_steps, "critic/score/mean");
    if (resume_path) CR_TRY(resume(s, resume_path, err));
    if (cr_best_has_ended(&s->learning.best, s->c)) run->end_step = run->first_step;
    run->on_wait = poll_ahead;
    run->on_wait_context = s;
    for (run->step = run->first_step; run->step < run->end_step && err->status == CR_OK;
         run->step++) {
        cr_metrics_clear(&m);
        if (one_step(s, run->step, &m, &is_saved, err) == CR_OK && is_saved &&
            run->step < run->end_step - 1)
            cr_note(cr_run_stopped(run, err));
    }
    cr_metrics_free(&m);
    return err->status;
}

static cr_status find_image(void *pipeline, const char *sha256, cr_buf *out, cr_err *err)
{
    const rlvr *s = pipeline;

    return cr_row_images_find(&s->data, sha256, out, err);
}

static void close_pipeline(void *pipeline)
{
    rlvr *s = pipeline;

    if (!s) return;
    for (size_t d = 0; s->orders && d < s->c->num_rewards; d++)
        cr_order_free(&s->orders[d]);
    cr_rollouts_free(s->ahead);
    cr_saver_fini(&s->saver);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        cr_role_service_close(s->learning.services[r]);
    cr_learning_free(&s->learning);
    cr_curriculum_free(&s->curriculum);
    cr_free(s->orders);
    cr_free(s->cursors);
    cr_free(s->cursors_before);
    cr_free(s->shares);
    cr_free(s->num_prompts);
    cr_dataset_free(&s->data);
    cr_dataset_free(&s->validation);
    cr_chat_close(s->chat);
    cr_tokenizer_close(s->tokenizer);
    cr_free(s);
}

const cr_pipeline_ops cr_pipeline_rlvr = {open_pipeline, run_pipeline, find_image, close_pipeline};
