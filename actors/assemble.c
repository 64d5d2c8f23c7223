/* assemble.c -- see assemble.h. */
#include "actors/assemble_impl.h"
#include "actors/packing.h"
#include "actors/verdicts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cr_learning_init(cr_learning *l, const cr_config *c)
{
    int64_t dp = c->train.num_devices / c->train.ulysses_size;

    *l = (cr_learning){.config = c, .kl_coef = c->algorithm.init_kl_coef};
    l->moments = CR_NEW_ARRAY(cr_moments, c->num_rewards);
    for (size_t d = 0; d < c->num_rewards; d++)
        l->moments[d] = (cr_moments){0, 1, 1e-24};
    l->mini_size = dp * c->train.training.per_device_train_batch_size *
                   c->train.training.gradient_accumulation_steps;
    l->schedule_steps = c->max_steps * c->rollout_batch_size * c->group_size *
                        c->algorithm.ppo_epochs / l->mini_size;
    if (l->schedule_steps < 1) l->schedule_steps = 1;
    l->warmup_steps =
        c->train.training.warmup_steps
            ? c->train.training.warmup_steps
            : (int64_t)ceil((double)l->schedule_steps * c->train.training.warmup_ratio);
    l->schedule = (cr_schedule)c->train.training.lr_scheduler_type;
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

    for (size_t i = 0; i < r->num_samples && from == CR_OLD_OF_SAMPLER; i++)
        if (r->samples[i].version != l->updates) {
            cr_log(CR_LOG_WARN, "rlvr",
                   "step %lld: sample %016llx is of weights after %lld updates, training has had "
                   "%lld: old log-probs are computed",
                   (long long)step, (unsigned long long)r->samples[i].id,
                   (long long)r->samples[i].version, (long long)l->updates);
            from = CR_OLD_COMPUTED;
        }
    return from;
}

cr_status cr_learn(cr_learning *l, cr_run *run, cr_rollout *rollout, const cr_dataset *data,
                   int64_t step, cr_metrics *m, cr_err *err)
{
    const cr_config *c = l->config;
    double at = cr_now_s(), valid = 0, entropy = 0;
    cr_train_sums s = {0};
    cri_learn_batch b;

    cri_learn_batch_init(&b, rollout, data);
    if (c->enable_reference) {
        CR_TRY_GOTO(out, cri_ask_log_probs(run, CR_ROLE_REFERENCE, &b, b.ref, NULL, m, err));
        b.has_ref = true;
        cr_metrics_set(m, cr_now_s() - at, "time/ref_log_probs_values");
    }
    at = cr_now_s();
    memcpy(b.old, b.infer,
           b.num_tokens * sizeof(double)); /* the same bits, unless training says no */
    b.old_from = choose_old(l, rollout, step);
    if (b.old_from == CR_OLD_COMPUTED) {
        CR_TRY_GOTO(out, cri_ask_log_probs(run, CR_ROLE_TRAIN, &b, b.old, b.entropy, m, err));
        for (size_t t = 0; t < b.num_tokens; t++)
            entropy += b.entropy[t];
        cr_metrics_set(m, entropy / (double)(b.num_tokens ? b.num_tokens : 1),
                       "critic/entropy/mean");
        cr_metrics_set(m, cr_now_s() - at, "time/old_log_probs");
    }
    for (size_t first = 0, end; first < rollout->num_samples; first = end) {
        int domain = rollout->samples[first].domain;
        for (end = first; end < rollout->num_samples && rollout->samples[end].domain == domain;
             end++)
            continue;
        CR_TRY_GOTO(out, cri_domain_advantages(l, &b, first, end, domain, m, err));
    }
    for (size_t t = 0; t < b.num_tokens; t++)
        valid += b.final[t];
    at = cr_now_s();
    if (valid > 0)
        for (int64_t e = 0; e < c->algorithm.ppo_epochs; e++)
            CR_TRY_GOTO(out, cri_train_epoch(l, run, &b, step, e, &s, m, err));
    cr_metrics_set(m, cr_now_s() - at, "time/step_train");
    cri_token_metrics(l, &b, m);
    cri_group_metrics(&b, m);
    if (valid > 0)
        cri_train_metrics(l, &b, &s, m);
    else
        cr_metrics_set(m, 1, "mask/final_mask_sum_eq_0");
    if (s.num_skipped)
        cr_log(CR_LOG_WARN, "rlvr", "step %lld: %lld updates skipped: the gradient is not finite",
               (long long)step, (long long)s.num_skipped);
    if (s.num_different && b.old_from == CR_OLD_OF_SAMPLER)
        cr_log(
            CR_LOG_WARN, "rlvr",
            "step %lld: %lld of %lld log-probs of actor_infer are not those of actor_train (by up "
            "to %g): old log-probs were computed",
            (long long)step, (long long)s.num_different, (long long)s.num_compared,
            s.infer_diff_max);
    cr_metrics_set(m, (double)step, "system/global_step");
    cr_metrics_set(m, (double)rollout->num_samples, "system/batch_size");
    cr_metrics_set(m, (double)((size_t)(step + 1) * rollout->num_samples), "system/samples");
    cr_metrics_set(m, (double)rollout->num_filtered, "scheduler/filtered_groups");
    cr_verdict_metrics(c, rollout, m);
    cr_metrics_set(m,
                   (double)rollout->num_response_tokens /
                       (rollout->generate_s > 0 ? rollout->generate_s : 1),
                   "system/actor_infer/response/tps");
out:
    cri_learn_batch_free(&b);
    return err->status;
}
