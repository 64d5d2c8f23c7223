/* advantage.c -- masks, normalisation, KL and advantages (see rl.h). */
#include "rl/advantage_trace.h"
#include "rl/rl.h"

#include <math.h>
#include <string.h>

const char *const cr_advantage_step_names[CR_NUM_ADVANTAGE_STEPS] = {
#define X(value, name) name,
    CR_ADVANTAGE_STEPS(X)
#undef X
};

/* x [tokens]: the numbers after a step. */
static void trace(const cr_advantage_args *a, cr_advantage_step step, const double *x)
{
    if (!a->trace) return;
    a->trace->has[step] = true;
    memcpy(a->trace->after[step], x, a->rows.start[a->rows.num_samples] * sizeof *x);
}

/* Samples without a verdict count nowhere. */
static bool counts(const double *verdict, size_t i)
{
    return !verdict || verdict[i] != 0;
}

static double mean_of(const double *x, const double *verdict, size_t n)
{
    double sum = 0, num = 0;

    for (size_t i = 0; i < n; i++)
        if (counts(verdict, i)) sum += x[i], num++;
    return num > 0 ? sum / num : 0;
}

/* Unbiased; 0 for fewer than two. */
static double std_of(const double *x, const double *verdict, size_t n)
{
    double mean = mean_of(x, verdict, n), sum = 0, num = 0;

    for (size_t i = 0; i < n; i++)
        if (counts(verdict, i)) sum += (x[i] - mean) * (x[i] - mean), num++;
    return num > 1 ? sqrt(sum / (num - 1)) : 0;
}

bool cr_query_filter_keeps(const cr_query_filter *f, const double *rewards, size_t num)
{
    double mean = mean_of(rewards, NULL, num);

    if (num == 0 || f->type == CR_FILTER_NONE) return true;
    if (f->type == CR_FILTER_STD) return std_of(rewards, NULL, num) > f->std_threshold;
    return mean > f->threshold_down && mean < f->threshold_up;
}

void cr_rewards_sum(const cr_reward_kinds *k, size_t num_samples, double *sums, double *has)
{
    for (size_t i = 0; i < num_samples; i++) {
        sums[i] = has[i] = 0;
        for (size_t j = i; j < k->num * num_samples; j += num_samples)
            if (k->has[j] != 0) sums[i] += k->weights[j / num_samples] * k->values[j], has[i] = 1;
    }
}

void cr_sample_mask(const cr_mask_config *c, size_t num_samples, size_t group,
                    const double *lengths, double response_length, const double *scores,
                    const double *verdict, double *keep)
{
    for (size_t i = 0; i < num_samples; i++) {
        size_t first = i / group * group;
        double mean = mean_of(scores + first, verdict ? verdict + first : NULL, group);
        bool is_kept = counts(verdict, i);
        if (c->max_len_mask && lengths[i] == response_length) is_kept = false;
        if (c->difficulty_mask && group > 1 &&
            !(mean > c->difficulty_low_threshold && mean < c->difficulty_high_threshold))
            is_kept = false;
        if (c->error_max_len_clip &&
            !(scores[i] == 1 || (scores[i] == 0 && lengths[i] < c->error_max_len_threshold)))
            is_kept = false;
        keep[i] = is_kept;
    }
}

/* Chan's merge of a batch into the running moments. */
static void take_in(cr_moments *m, const double *x, const double *verdict, size_t n)
{
    double mean = mean_of(x, verdict, n), var = 0, delta = mean - m->mean, num = 0, total;

    for (size_t i = 0; i < n; i++)
        if (counts(verdict, i)) var += (x[i] - mean) * (x[i] - mean), num++;
    if (num == 0) return;
    total = m->count + num;
    m->var = (var + m->var * m->count + delta * delta * m->count * num / total) / total;
    m->mean += delta * num / total;
    m->count = total;
}

/* Equal rewards of a group are exactly 0: the mean of equal numbers may miss them by an ulp. */
static void zero_equal_group(const double *x, const double *verdict, size_t num, double *out)
{
    const double *one = NULL;

    for (size_t i = 0; i < num; i++) {
        if (!counts(verdict, i)) continue;
        if (one && *one != x[i]) return;
        one = &x[i];
    }
    for (size_t i = 0; i < num; i++)
        out[i] = 0;
}

static void clip_rewards(double reward_clip, cr_advantage_args *a)
{
    double num = 0;

    a->reward_clip_frac = 0;
    for (size_t i = 0; i < a->rows.num_samples && reward_clip > 0; i++) {
        if (!counts(a->verdict, i)) continue;
        a->reward_clip_frac += fabs(a->rewards[i]) > reward_clip;
        a->rewards[i] = fmin(fmax(a->rewards[i], -reward_clip), reward_clip);
        num++;
    }
    if (num > 0) a->reward_clip_frac /= num;
}

/* out[i] = (x[i] - mean) / std over the samples that v counts; 0 for others. kind: of rewards, 0 if there is one. */
static void normalise_one(cr_norm mean_type, cr_norm std_type, const cr_advantage_args *a,
                          size_t kind, const double *x, const double *v, double *out)
{
    size_t n = a->rows.num_samples, at = kind * n;
    double batch_mean = mean_of(x, v, n), batch_std = std_of(x, v, n);

    for (size_t i = 0; i < n; i++) {
        size_t first = i / a->group * a->group;
        const double *g = x + first, *of_group = v ? v + first : NULL;
        double mean = 0, std = 1;
        out[i] = 0;
        if (!counts(v, i)) continue;
        if (mean_type == CR_NORM_BATCH) mean = batch_mean;
        if (mean_type == CR_NORM_GROUP) mean = mean_of(g, of_group, a->group);
        if (mean_type == CR_NORM_RUNNING) mean = a->moments->mean;
        if (std_type == CR_NORM_BATCH) std = batch_std + 1e-6;
        if (std_type == CR_NORM_GROUP) std = std_of(g, of_group, a->group) + 1e-6;
        if (std_type == CR_NORM_RUNNING)
            std = sqrt(a->moments->var * a->moments->count / fmax(a->moments->count - 1, 1)) + 1e-6;
        out[i] = (x[i] - mean) / std;
        if (!a->trace) continue;
        a->trace->mean[at + i] = mean;
        a->trace->std[at + i] = std;
    }
    for (size_t first = 0; first < n && mean_type == CR_NORM_GROUP; first += a->group)
        zero_equal_group(x + first, v ? v + first : NULL, a->group, out + first);
    if (a->trace) memcpy(a->trace->normalised + at, out, n * sizeof *out);
}

/* Each kind by itself, their weighted sum, which has mean 0, over its deviation in the batch (GDPO). */
static void normalise_kinds(cr_norm mean_type, cr_norm std_type, cr_advantage_args *a)
{
    size_t n = a->rows.num_samples;
    double *has = CR_NEW_ARRAY(double, 2 * n), *one = has + n, std;

    for (size_t i = 0; i < n; i++)
        a->rewards[i] = 0;
    for (size_t k = 0; k < a->kinds->num; k++) {
        for (size_t i = 0; i < n; i++)
            has[i] = counts(a->verdict, i) && a->kinds->has[k * n + i] != 0;
        normalise_one(mean_type, std_type, a, k, a->kinds->values + k * n, has, one);
        for (size_t i = 0; i < n; i++)
            a->rewards[i] += a->kinds->weights[k] * one[i];
    }
    std = std_of(a->rewards, a->verdict, n) + 1e-6;
    for (size_t i = 0; i < n; i++)
        a->rewards[i] /= std;
    cr_free(has);
}

static cr_status normalise(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err)
{
    size_t n = a->rows.num_samples;
    cr_norm mean_type = c->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : c->norm_mean_type;
    cr_norm std_type = c->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : c->norm_std_type;
    const bool is_running = mean_type == CR_NORM_RUNNING || std_type == CR_NORM_RUNNING;

    if (a->group == 0 || n % a->group)
        return cr_fail(err, CR_EARG, "group %zu does not divide the %zu samples", a->group, n);
    if (is_running && !a->moments)
        return cr_fail(err, CR_EARG, "norm_mean_type: running needs moments");
    if (c->aggregation == CR_NORMALIZE_THEN_SUM) {
        if (is_running || mean_type == CR_NORM_NONE || !a->kinds)
            return cr_fail(err, CR_EARG,
                           "normalize_then_sum normalises each of the rewards within its group or "
                           "batch (adv_estimator: grpo, or norm_mean_type: group or batch)");
        normalise_kinds(mean_type, std_type, a);
    } else {
        if (is_running) take_in(a->moments, a->scores, a->verdict, n);
        normalise_one(mean_type, std_type, a, 0, a->scores, a->verdict, a->rewards);
    }
    clip_rewards(c->reward_clip, a);
    return CR_OK;
}

static double estimate_kl(cr_kl kind, double log_prob, double base)
{
    double d = log_prob - base;

    switch (kind) {
    case CR_KL_K1:
        return d;
    case CR_KL_ABS:
        return fabs(d);
    case CR_KL_MSE:
        return 0.5 * d * d;
    case CR_KL_K3:
        return fmin(fmax(exp(-d) + d - 1, -10), 10);
    }
    return d;
}

/* (x - mean) / sqrt(var + 1e-8) over the mask, applied everywhere; var unbiased. */
static void whiten(double *x, const double *mask, size_t n)
{
    double count = 0, mean = 0, var = 0;

    for (size_t t = 0; t < n; t++)
        count += mask[t], mean += x[t] * mask[t];
    mean /= count + 1e-8;
    for (size_t t = 0; t < n; t++)
        var += (x[t] - mean) * (x[t] - mean) * mask[t];
    var = var / (count + 1e-8) * count / (count - 1);
    for (size_t t = 0; t < n; t++)
        x[t] = (x[t] - mean) / sqrt(var + 1e-8);
}

/* Mean over rows that count of each row's mean. */
static double mean_of_rows(const cr_advantage_args *a, const double *x)
{
    double mean = 0, num = 0;

    for (size_t i = 0; i < a->rows.num_samples; i++) {
        size_t first = a->rows.start[i], end = a->rows.start[i + 1];
        double sum = 0;
        if (!counts(a->verdict, i)) continue;
        for (size_t t = first; t < end; t++)
            sum += x[t];
        if (end > first) mean += sum / ((double)(end - first) + 1e-8);
        num++;
    }
    return num > 0 ? mean / num : 0;
}

/* Rewards of tokens: each sample's at its last token, its own token by token, less the KL. */
static void token_rewards(const cr_advantage_config *c, cr_advantage_args *a)
{
    size_t num_tokens = a->rows.start[a->rows.num_samples];
    bool has_kl = a->old_log_probs && a->ref_log_probs;

    for (size_t i = 0; i < a->rows.num_samples; i++) {
        size_t first = a->rows.start[i], end = a->rows.start[i + 1];
        bool is_counted = counts(a->verdict, i);
        for (size_t t = first; t < end; t++) {
            a->kl[t] =
                has_kl ? estimate_kl(c->kl_penalty, a->old_log_probs[t], a->ref_log_probs[t]) : 0;
            a->token_rewards[t] = t + 1 == end ? a->rewards[i] : 0;
            if (a->token_scores && is_counted) a->token_rewards[t] += a->token_scores[t];
        }
    }
    a->kl_mean = mean_of_rows(a, a->kl);
    trace(a, CR_ADVANTAGE_REWARD, a->token_rewards);
    for (size_t t = 0; t < num_tokens && c->add_token_level_kl; t++)
        a->token_rewards[t] -= c->kl_coef * a->kl[t];
    if (c->add_token_level_kl) trace(a, CR_ADVANTAGE_KL, a->token_rewards);
    for (size_t t = 0; t < num_tokens && c->reward_clip > 0; t++)
        a->token_rewards[t] = fmin(fmax(a->token_rewards[t], -c->reward_clip), c->reward_clip);
    if (c->reward_clip > 0) trace(a, CR_ADVANTAGE_CLIP_REWARD, a->token_rewards);
}

/* Discounted sums from the end of each row, or generalised advantage estimation. */
static void estimate(const cr_advantage_config *c, cr_advantage_args *a)
{
    for (size_t i = 0; i < a->rows.num_samples; i++) {
        double carry = 0, next_value = 0; /* nothing follows the last token */
        for (size_t t = a->rows.start[i + 1]; t-- > a->rows.start[i];) {
            if (c->adv_estimator == CR_ADV_GAE) {
                carry = a->token_rewards[t] + c->gamma * next_value - a->values[t] +
                        c->gamma * c->lambd * carry;
                next_value = a->values[t];
                a->returns[t] = carry + a->values[t];
            } else {
                carry = a->token_rewards[t] + c->gamma * carry;
                a->returns[t] = carry;
            }
            a->raw_advantages[t] = a->advantages[t] = carry;
        }
    }
}

/* What the teachers of sample i say of a token: the sum of distances, and of each times its coefficient. */
static double far_from_teachers(const cr_advantage_config *c, const cr_advantage_args *a, size_t i,
                                size_t t, double *cost)
{
    double sum = 0, d;

    *cost = 0;
    for (size_t k = 0; k < a->num_teachers; k++) {
        if (a->teachers[k].coefs[i] < 0) continue;
        d = estimate_kl(c->kl_penalty, a->old_log_probs[t], a->teachers[k].log_probs[t]);
        sum += d;
        *cost += a->teachers[k].coefs[i] * d;
    }
    if (a->num_teachers) return sum;
    d = estimate_kl(c->kl_penalty, a->old_log_probs[t], a->teacher_log_probs[t]);
    *cost = c->opd_kl_coef * d;
    return d;
}

/* What teachers say of each token; raw_advantages are from before it, unless there is nothing else. */
static void distil(const cr_advantage_config *c, cr_advantage_args *a)
{
    for (size_t i = 0; i < a->rows.num_samples; i++)
        for (size_t t = a->rows.start[i]; t < a->rows.start[i + 1]; t++) {
            double cost;
            a->opd_kl[t] = far_from_teachers(c, a, i, t, &cost);
            if (c->opd == CR_OPD_PURE)
                a->raw_advantages[t] = a->returns[t] = a->advantages[t] = -cost;
            else
                a->advantages[t] -= cost;
        }
    a->opd_kl_mean = mean_of_rows(a, a->opd_kl);
}

/* The final mask with samples without a verdict left out; num: tokens of the others. Owned. */
static double *mask_of_verdicts(const cr_advantage_args *a, size_t *num)
{
    double *mask = CR_NEW_ARRAY(double, a->rows.start[a->rows.num_samples]);

    *num = 0;
    for (size_t i = 0; i < a->rows.num_samples; i++)
        for (size_t t = a->rows.start[i]; t < a->rows.start[i + 1] && counts(a->verdict, i); t++) {
            mask[t] = a->final_mask[t];
            ++*num;
        }
    return mask;
}

/* Whitening, mask and clip of advantages; num_counted: tokens of samples with a verdict. */
static void finish(const cr_advantage_config *c, cr_advantage_args *a, const double *mask,
                   bool are_many, double num_counted)
{
    const size_t num_tokens = a->rows.start[a->rows.num_samples];

    if (c->whiten_advantages && are_many) {
        whiten(a->advantages, mask, num_tokens);
        trace(a, CR_ADVANTAGE_WHITEN, a->advantages);
    }
    for (size_t t = 0; t < num_tokens; t++)
        a->advantages[t] *= mask[t];
    trace(a, CR_ADVANTAGE_MASK, a->advantages);
    a->advantage_clip_frac = 0;
    if (c->advantage_clip <= 0) return;
    for (size_t t = 0; t < num_tokens; t++) {
        a->advantage_clip_frac += fabs(a->advantages[t]) > c->advantage_clip;
        a->advantages[t] = fmin(fmax(a->advantages[t], -c->advantage_clip), c->advantage_clip);
    }
    if (num_counted > 0) a->advantage_clip_frac /= num_counted;
    trace(a, CR_ADVANTAGE_CLIP, a->advantages);
}

cr_status cr_advantage(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err)
{
    size_t num_tokens = a->rows.start[a->rows.num_samples], num_counted;
    double valid = 0, *mask;

    if (c->adv_estimator == CR_ADV_GAE && !a->values)
        return cr_fail(err, CR_EARG, "adv_estimator gae needs values");
    if (c->opd != CR_OPD_NONE && !(a->old_log_probs && (a->teacher_log_probs || a->num_teachers)))
        return cr_fail(err, CR_EARG, "distillation needs log-probs of student and teacher");
    CR_TRY(normalise(c, a, err));
    token_rewards(c, a);
    mask = mask_of_verdicts(a, &num_counted);
    for (size_t t = 0; t < num_tokens; t++)
        valid += mask[t];
    if (c->whiten_rewards && valid > 1) {
        whiten(a->token_rewards, mask, num_tokens);
        trace(a, CR_ADVANTAGE_WHITEN_REWARD, a->token_rewards);
    }
    for (size_t t = 0; t < num_tokens; t++)
        a->token_rewards[t] *= mask[t];
    trace(a, CR_ADVANTAGE_MASK_REWARD, a->token_rewards);
    estimate(c, a);
    trace(a, CR_ADVANTAGE_ESTIMATE, a->advantages);
    if (c->opd != CR_OPD_NONE) {
        distil(c, a);
        trace(a, CR_ADVANTAGE_DISTIL, a->advantages);
    }
    finish(c, a, mask, valid > 1, (double)num_counted);
    cr_free(mask);
    return CR_OK;
}

double cr_kl_controller(double value, double target_kl, double kl_horizon, double current,
                        double rows)
{
    return fmin(value * (1 + fmin(fmax(current / target_kl - 1, -0.2), 0.2) * rows / kl_horizon),
                1e30);
}
