/* assemble.c -- see assemble.h. */
#include "actors/packing.h"
#include "actors/schedule.h"
#include "data/row_images.h"
#include "pipelines/assemble_impl.h"
#include "pipelines/verdicts.h"
#include "pipelines/why/terms.h"
#include "reports/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cr_learner learner_of(cr_role role, const cr_worker_config *w, const cr_config *c)
{
    return (cr_learner){.role = role,
                        .worker = w,
                        .schedule = cr_training_schedule(w, cr_rlvr_num_updates(c, w)),
                        .mini_size = cr_worker_num_batches(w) * cr_worker_batch_samples(w)};
}

void cr_learning_init(cr_learning *l, const cr_config *c)
{
    *l = (cr_learning){.config = c, .kl_coef = c->algorithm.advantage.kl_coef};
    l->moments = CR_NEW_ARRAY(cr_moments, c->num_rewards);
    for (size_t d = 0; d < c->num_rewards; d++)
        l->moments[d] = (cr_moments){0, 1, 1e-24};
    l->actor = learner_of(CR_ROLE_TRAIN, &c->train, c);
    if (c->critic.is_needed) l->critic = learner_of(CR_ROLE_CRITIC, &c->critic, c);
}

cr_status cr_learning_weigh_images(cr_learning *l, cr_err *err)
{
    CR_TRY(cr_work_image_cost(l->actor.worker, &l->actor.images, err));
    return l->critic.worker ? cr_work_image_cost(l->critic.worker, &l->critic.images, err) : CR_OK;
}

void cr_learning_free(cr_learning *l)
{
    cr_free(l->moments);
    *l = (cr_learning){0};
}

/* ---- one step ---- */

/* As the configuration says, if the samples are of the weights that train now. */
static cr_old_log_probs choose_old(const cr_learning *l, const cr_rollout *r, int64_t step)
{
    cr_old_log_probs from = l->config->old_log_probs;
    bool is_corrected = cri_has_correction(l->config); /* it needs them before training */
    bool is_distilled = l->config->algorithm.advantage.opd != CR_OPD_NONE; /* so does this */

    if (from == CR_OLD_RECORDED) return is_corrected ? CR_OLD_COMPUTED : from;
    if (from == CR_OLD_OF_PASS && !is_corrected) return from;
    if ((is_corrected || is_distilled) && l->has_differed) return CR_OLD_COMPUTED;
    for (size_t i = 0; i < r->num_samples && from != CR_OLD_COMPUTED; i++)
        if (r->samples[i].version != l->actor.updates) {
            if (from == CR_OLD_OF_SAMPLER)
                cr_log(CR_LOG_WARN, "rlvr",
                       "step %lld: sample %016llx is of weights after %lld updates, training has "
                       "had %lld: old log-probs are computed",
                       (long long)step, (unsigned long long)r->samples[i].id,
                       (long long)r->samples[i].version, (long long)l->actor.updates);
            from = CR_OLD_COMPUTED;
        }
    return from;
}

/* Log-probs of a role that is not trained, or values of the critic; time: the name of the metric. */
static cr_status ask_role(const cr_learning *l, cr_run *run, cr_role role, cri_learn_batch *b,
                          cr_batch_column column, const char *time, cr_metrics *m, cr_err *err)
{
    double at = cr_now_s();

    CR_TRY(l->services[role] ? cr_role_service_ask(l->services[role], run, &b->batch, column, err)
                             : cri_ask_role(run, role, b, column, m, err));
    cr_metrics_set(m, cr_now_s() - at, "%s", time);
    return CR_OK;
}

static void copy_column(cri_learn_batch *b, cr_batch_column to, cr_batch_column from)
{
    memcpy(cr_sample_batch_add(&b->batch, to), b->batch.of[from],
           b->batch.num_tokens * sizeof(double));
}

/* A teacher, over the samples that it answers for. */
static cr_status ask_teacher(const cr_learning *l, cr_run *run, int k, cri_learn_batch *b,
                             cr_metrics *m, cr_err *err)
{
    const cr_role role = (cr_role)(CR_ROLE_TEACHER + k);
    const cr_batch_column column = (cr_batch_column)(CR_COLUMN_TEACHER + k);
    double *to = cr_sample_batch_add(&b->batch, column);
    size_t *of = CR_NEW_ARRAY(size_t, b->batch.num + 1), num = 0;
    cri_learn_batch part = {.r = b->r, .data = b->data};
    char time[64];

    for (size_t i = 0; i < b->batch.num; i++)
        if (cr_teacher_answers(l->config, k, &b->data->rows[b->r->samples[i].row])) of[num++] = i;
    cr_sample_batch_init(&part.batch, num);
    part.batch.has_ids = true;
    for (size_t i = 0; i < num; i++)
        part.batch.samples[i] = b->batch.samples[of[i]];
    cr_sample_batch_count(&part.batch);
    snprintf(time, sizeof time, "time/%s_log_probs", cr_role_kinds[role].name);
    if (num) cr_note(ask_role(l, run, role, &part, column, time, m, err));
    for (size_t i = 0; i < num && err->status == CR_OK; i++)
        memcpy(to + b->batch.start[of[i]], part.batch.of[column] + part.batch.start[i],
               part.batch.samples[i].num_response * sizeof *to);
    cr_sample_batch_free(&part.batch);
    cr_free(of);
    return err->status;
}

static cr_status ask_teachers(const cr_learning *l, cr_run *run, cri_learn_batch *b, cr_metrics *m,
                              cr_err *err)
{
    if (cri_is_one_teacher(l->config))
        return ask_role(l, run, CR_ROLE_TEACHER, b, CR_COLUMN_TEACHER, "time/teacher_log_probs", m,
                        err);
    for (int k = 0; k < CR_MAX_TEACHERS; k++)
        if (cri_has_teacher(l->config, k)) CR_TRY(ask_teacher(l, run, k, b, m, err));
    return CR_OK;
}

/* The first teacher of each sample takes the place of the reference. */
static void copy_teachers(const cr_config *c, cri_learn_batch *b)
{
    copy_column(b, CR_COLUMN_REF, CR_COLUMN_TEACHER);
    for (size_t i = 0; i < b->batch.num && !cri_is_one_teacher(c); i++) {
        const cr_row *row = &b->data->rows[b->r->samples[i].row];
        size_t first = b->batch.start[i];
        int k = 0;
        while (k + 1 < CR_MAX_TEACHERS && !cr_teacher_answers(c, k, row))
            k++;
        memcpy(b->batch.of[CR_COLUMN_REF] + first, b->batch.of[CR_COLUMN_TEACHER + k] + first,
               b->batch.samples[i].num_response * sizeof(double));
    }
}

/* Log-probs of reference and teacher, values, and log-probs of the weights before the step's updates. */
static cr_status get_log_probs(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                               cr_metrics *m, cr_err *err)
{
    const cr_config *c = l->config;
    size_t n = b->batch.num_tokens;
    double at, entropy = 0;

    if (c->reference.is_needed)
        CR_TRY(ask_role(l, run, CR_ROLE_REFERENCE, b, CR_COLUMN_REF, "time/ref_log_probs_values", m,
                        err));
    if (c->teacher.is_needed) CR_TRY(ask_teachers(l, run, b, m, err));
    if (c->critic.is_needed)
        CR_TRY(ask_role(l, run, CR_ROLE_CRITIC, b, CR_COLUMN_VALUES, "time/values", m, err));
    if (c->is_teacher_reference) copy_teachers(c, b);
    at = cr_now_s();
    copy_column(b, CR_COLUMN_OLD, CR_COLUMN_INFER); /* the same bits, unless training says no */
    b->old_from = choose_old(l, b->r, step);
    if (b->old_from != CR_OLD_COMPUTED) return CR_OK;
    CR_TRY(cri_ask_role(run, CR_ROLE_TRAIN, b, CR_COLUMN_OLD, m, err));
    for (size_t t = 0; t < n; t++)
        entropy += b->batch.of[CR_COLUMN_ENTROPY][t];
    cr_metrics_set(m, entropy / (double)(n ? n : 1), "critic/entropy/mean");
    cr_metrics_set(m, cr_now_s() - at, "time/old_log_probs");
    return CR_OK;
}

/* Domain by domain. */
static cr_status get_advantages(cr_learning *l, cri_learn_batch *b, cr_metrics *m, cr_err *err)
{
    const cr_rollout *r = b->r;
    const double *mask = b->batch.of[CR_COLUMN_MASK];

    for (size_t first = 0, end; first < r->num_samples; first = end) {
        int domain = r->samples[first].domain;
        for (end = first; end < r->num_samples && r->samples[end].domain == domain; end++)
            continue;
        CR_TRY(cri_domain_advantages(l, b, first, end, domain, m, err));
    }
    if (l->config->algorithm.advantage.add_token_level_kl)
        cr_metrics_set(m, cri_sample_mean(b, b->batch.of[CR_COLUMN_KL], mask), "critic/kl");
    if (l->config->algorithm.advantage.opd != CR_OPD_NONE)
        cr_metrics_set(m, cri_sample_mean(b, b->batch.of[CR_COLUMN_OPD_KL], mask), "critic/opd_kl");
    return CR_OK;
}

/* Tokens a second: of all ranks, of one, and of one batch. */
static void set_speed(cr_metrics *m, const char *what, double tps, const cr_worker_config *w)
{
    double ranks = (double)(w->num_devices > 0 ? w->num_devices : 1);

    cr_metrics_set(m, tps, "system/%s/tps", what);
    cr_metrics_set(m, tps / ranks, "system/%s/tps_gpu", what);
    cr_metrics_set(m, tps / ranks * (double)w->ulysses_size, "system/%s/tps_dp", what);
}

/* Of all samples, and of each domain's, which are adjacent. */
static void domain_metrics(const cr_learning *l, const cri_learn_batch *b, cr_metrics *m)
{
    const cr_sample *samples = b->r->samples;

    cri_sample_metrics(l, b, 0, b->r->num_samples, NULL, m);
    for (size_t first = 0, end; first < b->r->num_samples; first = end) {
        for (end = first; end < b->r->num_samples && samples[end].domain == samples[first].domain;)
            end++;
        cri_sample_metrics(l, b, first, end, l->config->rewards[samples[first].domain].domain, m);
    }
}

static cr_status train_actor(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                             cr_metrics *m, cr_err *err)
{
    cri_epoch_args args = {l, &l->actor, b, step, 0, l->config->algorithm.ppo_epochs};
    double at = cr_now_s();
    cr_train_sums s = {0};

    for (; args.epoch < args.num_epochs; args.epoch++) {
        cri_epoch *epoch;
        CR_TRY(cri_epoch_begin(&args, run, m, &epoch, err));
        CR_TRY(cri_epoch_finish(epoch, run, &s, err));
    }
    cr_metrics_set(m, cr_now_s() - at, "time/step_train");
    set_speed(m, "actor_train",
              (double)(b->r->num_prompt_tokens + b->r->num_response_tokens) /
                  fmax(cr_now_s() - at, 1e-9),
              &l->config->train);
    cri_train_metrics(l, b, &s, m);
    cri_weight_metrics(b, m);
    if (s.num_skipped)
        cr_log(CR_LOG_WARN, "rlvr", "step %lld: %lld updates skipped: the gradient is not finite",
               (long long)step, (long long)s.num_skipped);
    l->has_differed = l->has_differed || s.num_different > 0;
    if (s.num_different && b->old_from == CR_OLD_OF_SAMPLER)
        cr_log(
            CR_LOG_WARN, "rlvr",
            "step %lld: %lld of %lld log-probs of actor_infer are not those of actor_train (by up "
            "to %g): old log-probs were computed",
            (long long)step, (long long)s.num_different, (long long)s.num_compared,
            s.loss.infer_diff_max);
    return CR_OK;
}

/* All updates of the step, if a token is left to learn from. */
static cr_status make_updates(cr_learning *l, cr_run *run, cri_learn_batch *b, int64_t step,
                              cr_metrics *m, cr_err *err)
{
    cri_epoch *critic;
    double valid = 0;

    for (size_t t = 0; t < b->batch.num_tokens; t++)
        valid += b->batch.of[CR_COLUMN_FINAL][t];
    if (valid <= 0) {
        cr_metrics_set(m, 1, "mask/final_mask_sum_eq_0");
        return CR_OK;
    }
    CR_TRY(cri_critic_begin(l, run, b, step, m, &critic, err));
    if (step >= l->config->algorithm.critic_warmup) cr_note(train_actor(l, run, b, step, m, err));
    return cri_critic_finish(l, run, critic, step, m, err);
}

/* Those of recorded samples; of others they are there. */
static cr_status put_images(cr_run *run, const cr_rollout *rollout, const cr_dataset *data,
                            cr_err *err)
{
    for (size_t i = 0; i < rollout->num_samples; i += rollout->group_size)
        CR_TRY(cr_row_images_put(&data->rows[rollout->samples[i].row], data->image_folder,
                                 run->items, run->x, err));
    return CR_OK;
}

cr_status cr_learn(cr_learning *l, cr_run *run, cr_rollout *rollout, const cr_dataset *data,
                   int64_t step, cr_metrics *m, cr_err *err)
{
    cri_learn_batch b;

    cri_learn_batch_init(&b, rollout, data, l->config);
    if (run->has_terms && step == run->end_step - 1) b.terms = cri_terms_begin(l, &b);
    if (step == run->end_step - 1) b.only = run->only;
    CR_TRY_GOTO(out, put_images(run, rollout, data, err));
    CR_TRY_GOTO(out, get_log_probs(l, run, &b, step, m, err));
    CR_TRY_GOTO(out, get_advantages(l, &b, m, err));
    if (cri_has_correction(l->config) || b.old_from == CR_OLD_COMPUTED) cri_correct(l, &b, m);
    CR_TRY_GOTO(out, make_updates(l, run, &b, step, m, err));
    if (b.terms) CR_TRY_GOTO(out, cri_terms_write(b.terms, run->output_dir, step, m, err));
    domain_metrics(l, &b, m);
    cr_metrics_set(m, (double)step, "system/global_step");
    cr_metrics_set(m, (double)rollout->num_samples, "system/batch_size");
    cr_metrics_set(m, (double)((size_t)(step + 1) * rollout->num_samples), "system/samples");
    cr_metrics_set(m, (double)rollout->num_filtered, "scheduler/filtered_groups");
    cr_verdict_metrics(l->config, rollout, m);
    set_speed(m, "actor_infer/response",
              (double)rollout->num_response_tokens /
                  (rollout->generate_s > 0 ? rollout->generate_s : 1),
              &l->config->infer);
out:
    cri_terms_free(b.terms);
    cr_sample_batch_free(&b.batch);
    return err->status;
}
