/* advantage.c -- masks, normalisation, KL and advantages (see rl.h). */
#include "rl/rl.h"

#include <math.h>
#include <string.h>

static double mean_of(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : 0;
}

/* Unbiased; 0 for fewer than two. */
static double std_of(const double *x, size_t n)
{
    double mean = mean_of(x, n), sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : 0;
}

bool cr_filter_mean(const double *rewards, size_t num, double down, double up)
{
    double mean = mean_of(rewards, num);

    return num < 2 || (mean > down && mean < up);
}

bool cr_filter_std(const double *rewards, size_t num, double threshold)
{
    return num < 2 || std_of(rewards, num) > threshold;
}

void cr_sample_mask(const cr_mask_config *c, size_t num_samples, size_t group,
                    const double *lengths, double response_length, const double *scores,
                    double *keep)
{
    for (size_t i = 0; i < num_samples; i++) {
        double mean = mean_of(scores + i / group * group, group);
        bool is_kept = true;
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
static void take_in(cr_moments *m, const double *x, size_t n)
{
    double mean = mean_of(x, n), var = 0, delta = mean - m->mean, total = m->count + (double)n;

    for (size_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    m->var = (var * (double)n + m->var * m->count + delta * delta * m->count * (double)n / total) /
             total;
    m->mean += delta * (double)n / total;
    m->count = total;
}

static cr_status normalise(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err)
{
    size_t n = a->rows.num_samples;
    cr_norm mean_type = c->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : c->norm_mean_type;
    cr_norm std_type = c->adv_estimator == CR_ADV_GRPO ? CR_NORM_GROUP : c->norm_std_type;

    if (a->group == 0 || n % a->group)
        return cr_fail(err, CR_EARG, "group %zu does not divide the %zu samples", a->group, n);
    if ((mean_type == CR_NORM_RUNNING || std_type == CR_NORM_RUNNING) && !a->moments)
        return cr_fail(err, CR_EARG, "norm_mean_type: running needs moments");
    if (a->moments && (mean_type == CR_NORM_RUNNING || std_type == CR_NORM_RUNNING))
        take_in(a->moments, a->scores, n);
    for (size_t i = 0; i < n; i++) {
        const double *g = a->scores + i / a->group * a->group;
        double mean = 0, std = 1, x = a->scores[i];
        if (mean_type == CR_NORM_BATCH) mean = mean_of(a->scores, n);
        if (mean_type == CR_NORM_GROUP) mean = mean_of(g, a->group);
        if (mean_type == CR_NORM_RUNNING) mean = a->moments->mean;
        if (std_type == CR_NORM_BATCH) std = std_of(a->scores, n) + 1e-6;
        if (std_type == CR_NORM_GROUP) std = std_of(g, a->group) + 1e-6;
        if (std_type == CR_NORM_RUNNING)
            std = sqrt(a->moments->var * a->moments->count / fmax(a->moments->count - 1, 1)) + 1e-6;
        a->rewards[i] = (x - mean) / std;
    }
    /* equal rewards of a group are exactly 0: the mean of equal numbers may miss them by an ulp */
    for (size_t first = 0; first < n && mean_type == CR_NORM_GROUP; first += a->group) {
        bool is_equal = true;
        for (size_t i = 1; i < a->group; i++)
            is_equal = is_equal && a->scores[first + i] == a->scores[first];
        for (size_t i = 0; i < a->group && is_equal; i++)
            a->rewards[first + i] = 0;
    }
    a->reward_clip_frac = 0;
    for (size_t i = 0; i < n && c->reward_clip > 0; i++) {
        a->reward_clip_frac += fabs(a->rewards[i]) > c->reward_clip;
        a->rewards[i] = fmin(fmax(a->rewards[i], -c->reward_clip), c->reward_clip);
    }
    if (n) a->reward_clip_frac /= (double)n;
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

/* Rewards of tokens: each sample's at its last token, less the KL of every token. */
static void token_rewards(const cr_advantage_config *c, cr_advantage_args *a)
{
    size_t num_tokens = a->rows.start[a->rows.num_samples];
    bool has_kl = a->old_log_probs && a->ref_log_probs;

    a->kl_mean = 0;
    for (size_t i = 0; i < a->rows.num_samples; i++) {
        size_t first = a->rows.start[i], end = a->rows.start[i + 1];
        double sum = 0;
        for (size_t t = first; t < end; t++) {
            a->kl[t] =
                has_kl ? estimate_kl(c->kl_penalty, a->old_log_probs[t], a->ref_log_probs[t]) : 0;
            sum += a->kl[t];
            a->token_rewards[t] = t + 1 == end ? a->rewards[i] : 0;
            if (c->add_token_level_kl) a->token_rewards[t] -= c->kl_coef * a->kl[t];
        }
        if (end > first) a->kl_mean += sum / ((double)(end - first) + 1e-8);
    }
    if (a->rows.num_samples) a->kl_mean /= (double)a->rows.num_samples;
    for (size_t t = 0; t < num_tokens && c->reward_clip > 0; t++)
        a->token_rewards[t] = fmin(fmax(a->token_rewards[t], -c->reward_clip), c->reward_clip);
}

cr_status cr_advantage(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err)
{
    size_t num_tokens = a->rows.start[a->rows.num_samples];
    double valid = 0;

    if (c->adv_estimator == CR_ADV_GAE && !a->values)
        return cr_fail(err, CR_EARG, "adv_estimator gae needs values");
    CR_TRY(normalise(c, a, err));
    token_rewards(c, a);
    for (size_t t = 0; t < num_tokens; t++)
        valid += a->final_mask[t];
    if (c->whiten_rewards && valid > 1) whiten(a->token_rewards, a->final_mask, num_tokens);
    for (size_t t = 0; t < num_tokens; t++)
        a->token_rewards[t] *= a->final_mask[t];
    for (size_t i = 0; i < a->rows.num_samples; i++) {
        double carry = 0, next_value = 0; /* nothing comes behind the last token */
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
    if (c->whiten_advantages && valid > 1) whiten(a->advantages, a->final_mask, num_tokens);
    a->advantage_clip_frac = 0;
    for (size_t t = 0; t < num_tokens; t++) {
        a->advantages[t] *= a->final_mask[t];
        if (c->advantage_clip <= 0) continue;
        a->advantage_clip_frac += fabs(a->advantages[t]) > c->advantage_clip;
        a->advantages[t] = fmin(fmax(a->advantages[t], -c->advantage_clip), c->advantage_clip);
    }
    if (num_tokens) a->advantage_clip_frac /= (double)num_tokens;
    return CR_OK;
}

double cr_kl_controller(double value, double target_kl, double kl_horizon, double current,
                        double rows)
{
    return value * (1 + fmin(fmax(current / target_kl - 1, -0.2), 0.2) * rows / kl_horizon);
}
