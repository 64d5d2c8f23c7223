/* verdicts.c -- see verdicts.h. */
#include "pipelines/verdicts.h"

#include <stdio.h>

typedef struct mean {
    char name[96];
    double sum, num;
} mean;

static void add_to_mean(mean **means, size_t *num, const char *name, double x)
{
    size_t i = 0;

    while (i < *num && strcmp((*means)[i].name, name) != 0)
        i++;
    if (i == *num) {
        *means = cr_realloc(*means, *num * sizeof **means, (*num + 1) * sizeof **means);
        snprintf((*means)[(*num)++].name, sizeof(*means)->name, "%s", name);
    }
    (*means)[i].sum += x;
    (*means)[i].num++;
}

void cr_verdict_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m)
{
    mean *means = NULL;
    size_t num = 0;

    for (size_t i = 0; i < r->num_samples; i++) {
        const cr_sample *s = &r->samples[i];
        const char *key;
        json_t *value;
        if (!s->metrics || !cr_sample_has_verdict(s)) continue;
        json_object_foreach(s->metrics, key, value)
        {
            char name[96];
            snprintf(name, sizeof name, "%s/reward/%s", config->rewards[s->domain].domain, key);
            add_to_mean(&means, &num, name, json_number_value(value));
        }
    }
    for (size_t i = 0; i < num; i++)
        cr_metrics_set(m, means[i].sum / means[i].num, "%s", means[i].name);
    cr_free(means);
    cr_metrics_set(m, (double)r->num_timeouts, "scheduler/reward_timeouts");
    cr_metrics_set(m, (double)r->num_errors, "scheduler/reward_errors");
    cr_metrics_set(m, (double)r->num_retries, "scheduler/reward_retries");
    cr_metrics_set(m, (double)r->num_redrawn, "scheduler/redrawn_groups");
}

void cr_verdict_warn(const cr_rollout *r, const char *what, int64_t step)
{
    if (!r->failure) return;
    cr_log(CR_LOG_WARN, "reward",
           "%s %lld: %zu samples have no verdict (%zu time-outs, %zu errors; %zu were asked twice, "
           "%zu groups drawn again); the first: %s",
           what, (long long)step, r->num_timeouts + r->num_errors, r->num_timeouts, r->num_errors,
           r->num_retries, r->num_redrawn, r->failure);
}

static const char *reason(const cr_config *config, const cr_rollout *r, char out[480])
{
    const cr_mask_config *a = &config->algorithm.masks;

    for (size_t i = 0; i < r->num_samples; i++)
        if (cr_sample_has_verdict(&r->samples[i])) {
            snprintf(out, 480, "no token is left by%s%s%s%s",
                     a->max_len_mask ? " max_len_mask" : "",
                     a->difficulty_mask ? " difficulty_mask" : "",
                     a->error_max_len_clip ? " error_max_len_clip" : "",
                     config->algorithm.correction.num_filters ? " train_infer_correction" : "");
            return out;
        }
    snprintf(out, 480, "no sample has a verdict: %s", r->failure ? r->failure : "no reason given");
    return out;
}

cr_status cr_verdict_end_step(const cr_config *config, const cr_rollout *r, const cr_metrics *m,
                              int64_t step, int64_t *num_empty, cr_err *err)
{
    char why[480];

    if (!cr_metrics_get(m, "mask/final_mask_sum_eq_0")) {
        *num_empty = 0;
        return CR_OK;
    }
    cr_log(CR_LOG_WARN, "rlvr", "step %lld trained nothing: %s", (long long)step,
           reason(config, r, why));
    if (++*num_empty < config->max_failed_reward_steps || config->max_failed_reward_steps == 0)
        return CR_OK;
    return cr_fail(
        err, CR_EPEER,
        "step %lld: %lld step%s in a row trained nothing (max_failed_reward_steps): %.360s",
        (long long)step, (long long)*num_empty, *num_empty > 1 ? "s" : "", why);
}
