/* verdicts.c -- see verdicts.h. */
#include "pipelines/verdicts.h"
#include "reports/metrics.h"
#include "rewards/rule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FLAT_STEPS = 3 };

/* What a block of rewards said of the samples of a domain; values[num] has room for all of them. */
typedef struct kind {
    double *values;
    size_t num, num_asked, num_abstained, num_failed;
} kind;

static kind collect(const cr_rollout *r, int domain, int block, double *values)
{
    kind out = {.values = values};

    for (size_t i = 0; i < r->num_samples; i++) {
        const cr_sample *s = &r->samples[i];
        for (size_t k = 0; s->domain == domain && k < s->num_rewards; k++) {
            const cr_sample_reward *x = &s->rewards[k];
            if (x->block != block) continue;
            out.num_asked++;
            out.num_abstained += x->outcome == CR_OUTCOME_ABSTAIN;
            out.num_failed += !cr_reward_is_answer(x);
            if (cr_sample_has_verdict(s) && x->outcome == CR_OUTCOME_OK)
                values[out.num++] = x->reward;
        }
    }
    return out;
}

/* Of a sample; 0 for a single one. */
static double std_of(const double *x, size_t num)
{
    double mean = 0, sum = 0;

    for (size_t i = 0; i < num; i++)
        mean += x[i] / (double)num;
    for (size_t i = 0; i < num; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return num > 1 ? sqrt(sum / (double)(num - 1)) : 0;
}

static void kind_metrics(const cr_config *config, const kind *x, int domain, int block,
                         cr_metrics *m)
{
    char name[160];

    snprintf(name, sizeof name, "%.60s/rewards/%.60s", config->rewards[domain].domain,
             config->rewards[block].domain);
    cr_metrics_set_summary(m, name, x->values, x->num);
    if (x->num) cr_metrics_set(m, std_of(x->values, x->num), "%s/std", name);
    cr_metrics_set(m, (double)x->num_abstained / (double)x->num_asked, "%s/abstain_ratio", name);
    cr_metrics_set(m, (double)x->num_failed, "%s/failures", name);
}

static bool has_several(const cr_rollout *r, int domain)
{
    for (size_t i = 0; i < r->num_samples; i++)
        if (r->samples[i].domain == domain && r->samples[i].num_rewards > 1) return true;
    return false;
}

/* Each reward of each domain that has samples of several. */
static void several_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m)
{
    double *values = CR_NEW_ARRAY(double, r->num_samples);

    for (int d = 0; d < (int)config->num_rewards; d++)
        for (int b = 0; has_several(r, d) && b < (int)config->num_rewards; b++) {
            kind x = collect(r, d, b, values);
            if (x.num_asked) kind_metrics(config, &x, d, b, m);
        }
    cr_free(values);
}

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

/* Those that its program gave, under the name of its block. */
static void add_own_metrics(const cr_config *config, const cr_sample_reward *x, mean **means,
                            size_t *num)
{
    const char *key;
    json_t *value;

    json_object_foreach(x->metrics, key, value)
    {
        char name[96];
        snprintf(name, sizeof name, "%s/reward/%s", config->rewards[x->block].domain, key);
        add_to_mean(means, num, name, json_number_value(value));
    }
}

typedef enum cause {
    RIGHT,
    IN_PART,
    WRONG,
    NO_ANSWER,
    CUT_OFF,
    ABSTAIN,
    TIMED_OUT,
    FAILED,
    NUM_CAUSES
} cause;

static const char *const cause_names[NUM_CAUSES] = {"right",   "in_part", "wrong",   "no_answer",
                                                    "cut_off", "abstain", "timeout", "error"};

static cause cause_of(const cr_sample *s)
{
    if (s->outcome == CR_OUTCOME_TIMEOUT) return TIMED_OUT;
    if (s->outcome == CR_OUTCOME_ABSTAIN) return ABSTAIN;
    if (!cr_sample_has_verdict(s)) return FAILED;
    if (s->score > 0) return s->score == 1 ? RIGHT : IN_PART;
    if (strcmp(s->finish, "length") == 0) return CUT_OFF;
    return strncmp(s->detail, CR_NO_ANSWER, strlen(CR_NO_ANSWER)) == 0 ? NO_ANSWER : WRONG;
}

/* Of the reward that took longest. */
static double seconds_of(const cr_sample *s)
{
    double max = 0;

    for (size_t k = 0; k < s->num_rewards; k++)
        if (s->rewards[k].seconds > max) max = s->rewards[k].seconds;
    return max;
}

static void domain_metrics(const cr_config *config, const cr_rollout *r, int domain, cr_metrics *m)
{
    const char *name = config->rewards[domain].domain;
    size_t counts[NUM_CAUSES] = {0}, num = 0;
    double sum = 0, max = 0;
    uint64_t slowest = 0;

    for (size_t i = 0; i < r->num_samples; i++) {
        const cr_sample *s = &r->samples[i];
        double seconds = seconds_of(s);
        if (s->domain != domain) continue;
        num++;
        counts[cause_of(s)]++;
        sum += seconds;
        if (seconds > max) max = seconds, slowest = s->id;
    }
    for (int c = 0; num && c < NUM_CAUSES; c++)
        cr_metrics_set(m, (double)counts[c], "%s/verdict/%s", name, cause_names[c]);
    if (max <= 0) return;
    cr_metrics_set(m, sum / (double)num, "time/verdict/%s/mean", name);
    cr_metrics_set(m, max, "time/verdict/%s/max", name);
    cr_metrics_set(m, cr_sample_id_in_step(slowest), "time/verdict/%s/slowest", name);
}

void cr_verdict_causes(const cr_config *config, const cr_rollout *r, cr_metrics *m)
{
    for (size_t d = 0; d < config->num_rewards; d++)
        domain_metrics(config, r, (int)d, m);
}

void cr_verdict_metrics(const cr_config *config, const cr_rollout *r, cr_metrics *m)
{
    mean *means = NULL;
    size_t num = 0;

    cr_verdict_causes(config, r, m);
    several_metrics(config, r, m);
    for (size_t i = 0; i < r->num_samples; i++)
        for (size_t k = 0; cr_sample_has_verdict(&r->samples[i]) && k < r->samples[i].num_rewards;
             k++)
            add_own_metrics(config, &r->samples[i].rewards[k], &means, &num);
    for (size_t i = 0; i < num; i++)
        cr_metrics_set(m, means[i].sum / means[i].num, "%s", means[i].name);
    cr_free(means);
    cr_metrics_set(m, (double)r->num_timeouts, "scheduler/reward_timeouts");
    cr_metrics_set(m, (double)r->num_errors, "scheduler/reward_errors");
    cr_metrics_set(m, (double)r->num_abstained, "scheduler/reward_abstained");
    cr_metrics_set(m, (double)r->num_retries, "scheduler/reward_retries");
    cr_metrics_set(m, (double)r->num_redrawn, "scheduler/redrawn_groups");
}

void cr_verdict_warn(const cr_rollout *r, const char *what, int64_t step)
{
    char abstained[60] = "";

    if (r->left_out)
        cr_log(CR_LOG_WARN, "reward",
               "%s %lld: %zu rewards of samples failed and are left out (on_failure: abstain); the "
               "first: %s",
               what, (long long)step, r->num_left_out, r->left_out);
    if (!r->failure) return;
    if (r->num_abstained)
        snprintf(abstained, sizeof abstained, ", %zu without any reward", r->num_abstained);
    cr_log(
        CR_LOG_WARN, "reward",
        "%s %lld: %zu samples have no verdict (%zu time-outs, %zu errors%s; %zu were asked twice, "
        "%zu groups drawn again); the first: %s",
        what, (long long)step, r->num_timeouts + r->num_errors + r->num_abstained, r->num_timeouts,
        r->num_errors, abstained, r->num_retries, r->num_redrawn, r->failure);
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

void cr_verdict_warn_flat(const cr_metrics *m, int64_t step, int64_t *num_flat)
{
    const double *norm = cr_metrics_get(m, "actor_train/grad_norm"),
                 *score = cr_metrics_get(m, "critic/score/mean"),
                 *lr = cr_metrics_get(m, "actor/lr");

    if (!norm || *norm != 0)
        *num_flat = 0;
    else if (++*num_flat == FLAT_STEPS)
        cr_log(
            CR_LOG_WARN, "rlvr",
            "steps %lld to %lld have a gradient of 0: every sample of a group has the same reward "
            "(score %g), so nothing is learned; tasks that are too easy or too hard do that, and "
            "so "
            "does a learning_rate (%g) that has ruined the model",
            (long long)(step - FLAT_STEPS + 1), (long long)step, score ? *score : 0, lr ? *lr : 0);
}
