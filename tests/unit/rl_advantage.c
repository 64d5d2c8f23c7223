/* rl_advantage.c -- sample masks, normalisation, KL, advantages and the KL controller against their
 * definitions as sums (no recursions, no running values), and what must not depend on the batch.
 * Not covered: losses (rl_loss.c); schedules (rl_schedules.c).
 */
#include "rl/advantage_trace.h"
#include "rl/rl.h"
#include "tests/check_near.h"
#include "tests/draws.h"

#include <stdio.h>
#include <string.h>

enum { N = 12, GROUP = 4, MAX_T = 120 };

typedef struct batch {
    size_t start[N + 1];
    double scores[N], old[MAX_T], ref[MAX_T], values[MAX_T], final[MAX_T];
    double teacher[MAX_T], opd_kl[MAX_T];
    double rewards[N], token[MAX_T], adv[MAX_T], raw[MAX_T], returns[MAX_T], kl[MAX_T];
    double kl_mean, reward_frac, adv_frac;
    cr_moments moments;
} batch;

static void make_batch(batch *b, uint64_t seed)
{
    *b = (batch){.moments = {0, 1, 1e-24}};
    for (size_t i = 0; i < N; i++) { /* 0 to 9 tokens; row 3 is empty */
        b->scores[i] = floor(4 * uniform(seed, i)) / 2 - 0.5;
        b->start[i + 1] = b->start[i] + (i == 3 ? 0 : (size_t)(1 + 9 * uniform(seed, 50 + i)));
    }
    for (size_t t = 0; t < MAX_T; t++) {
        b->old[t] = -fabs(normal(seed, 100 + t));
        b->ref[t] = -fabs(normal(seed, 300 + t));
        b->teacher[t] = -fabs(normal(seed, 900 + t));
        b->values[t] = normal(seed, 500 + t);
        b->final[t] = uniform(seed, 700 + t) < 0.8;
    }
}

static cr_advantage_args args_of(batch *b, size_t num, size_t group)
{
    return (cr_advantage_args){.rows = {num, b->start},
                               .group = group,
                               .scores = b->scores,
                               .old_log_probs = b->old,
                               .ref_log_probs = b->ref,
                               .teacher_log_probs = b->teacher,
                               .values = b->values,
                               .final_mask = b->final,
                               .moments = &b->moments,
                               .rewards = b->rewards,
                               .token_rewards = b->token,
                               .advantages = b->adv,
                               .raw_advantages = b->raw,
                               .returns = b->returns,
                               .kl = b->kl,
                               .opd_kl = b->opd_kl};
}

/* Each step of the configuration is there, and what it left is what came out. */
static void check_trace(const cr_advantage_config *c, const cr_advantage_args *a)
{
    const cr_advantage_trace *t = a->trace;
    const size_t num = a->rows.start[a->rows.num_samples], bytes = num * sizeof(double);
    const double *last = t->after[c->advantage_clip > 0 ? CR_ADVANTAGE_CLIP : CR_ADVANTAGE_MASK];

    assert_int_equal(t->has[CR_ADVANTAGE_KL], c->add_token_level_kl);
    assert_int_equal(t->has[CR_ADVANTAGE_CLIP_REWARD], c->reward_clip > 0);
    assert_int_equal(t->has[CR_ADVANTAGE_DISTIL], c->opd != CR_OPD_NONE);
    assert_int_equal(t->has[CR_ADVANTAGE_CLIP], c->advantage_clip > 0);
    assert_int_equal(t->has[CR_ADVANTAGE_WHITEN] && !c->whiten_advantages, false);
    if (a->rows.start[0]) return; /* the first rows are others */
    assert_memory_equal(last, a->advantages, bytes);
    assert_memory_equal(t->after[CR_ADVANTAGE_MASK_REWARD], a->token_rewards, bytes);
    if (c->opd != CR_OPD_PURE)
        assert_memory_equal(t->after[CR_ADVANTAGE_ESTIMATE], a->raw_advantages, bytes);
    for (size_t i = 0; i < a->rows.num_samples && c->reward_clip <= 0; i++)
        check_near(t->normalised[i], a->rewards[i], 0);
}

static void run(const cr_advantage_config *c, batch *b, size_t first, size_t end, size_t group)
{
    cr_err err = {0};
    cr_advantage_args a = args_of(b, end - first, group);
    double mean[N], std[N], normalised[N], after[CR_NUM_ADVANTAGE_STEPS][MAX_T];
    cr_advantage_trace trace = {.mean = mean, .std = std, .normalised = normalised};

    for (int s = 0; s < CR_NUM_ADVANTAGE_STEPS; s++)
        trace.after[s] = after[s];
    a.trace = &trace;
    a.rows.start += first;
    a.scores += first;
    a.rewards += first;
    if (cr_advantage(c, &a, &err) != CR_OK) fail_msg("%s", err.msg);
    check_trace(c, &a);
    b->kl_mean = a.kl_mean;
    b->reward_frac = a.reward_clip_frac;
    b->adv_frac = a.advantage_clip_frac;
}

/* ---- definitions ---- */

/* Mean and unbiased deviation of x over what w counts. */
static void moments_of(const double *x, const double *w, size_t n, double *mean, double *std)
{
    double sum = 0, num = 0, squares = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * (w ? w[i] : 1), num += w ? w[i] : 1;
    *mean = sum / num;
    for (size_t i = 0; i < n; i++)
        squares += (w ? w[i] : 1) * pow(x[i] - *mean, 2);
    *std = num > 1 ? sqrt(squares / (num - 1)) : 0;
}

static double cut(double x, double limit)
{
    return limit <= 0 ? x : x > limit ? limit : x < -limit ? -limit : x;
}

static double want_reward(const cr_advantage_config *c, const batch *b, size_t i)
{
    double mean[4] = {0}, std[4] = {0};
    cr_norm m = c->norm_mean_type, s = c->norm_std_type;

    if (c->adv_estimator == CR_ADV_GRPO) m = s = CR_NORM_GROUP;
    moments_of(b->scores, NULL, N, &mean[CR_NORM_BATCH], &std[CR_NORM_BATCH]);
    moments_of(b->scores + i / GROUP * GROUP, NULL, GROUP, &mean[CR_NORM_GROUP],
               &std[CR_NORM_GROUP]);
    mean[CR_NORM_RUNNING] = mean[CR_NORM_BATCH]; /* of the first batch */
    std[CR_NORM_RUNNING] = std[CR_NORM_BATCH];
    return cut((b->scores[i] - mean[m]) / (s == CR_NORM_NONE ? 1 : std[s] + 1e-6), c->reward_clip);
}

static double kl_of(cr_kl kind, double d)
{
    return kind == CR_KL_K1 ? d : kind == CR_KL_ABS ? fabs(d) : kind == CR_KL_MSE ? d * d / 2 : NAN;
}

static void whitened(double *x, const double *w, size_t n)
{
    double mean, std;

    moments_of(x, w, n, &mean, &std);
    for (size_t t = 0; t < n; t++)
        x[t] = (x[t] - mean) / sqrt(std * std + 1e-8);
}

/* sum_k decay^k x[t + k] to the end of the row. */
static double tail(const double *x, size_t t, size_t end, double decay)
{
    double sum = 0;

    for (size_t k = t; k < end; k++)
        sum += pow(decay, (double)(k - t)) * x[k];
    return sum;
}

static void check_batch(const cr_advantage_config *c, const batch *b)
{
    double token[MAX_T], delta[MAX_T], adv[MAX_T], kl_mean = 0, size = 1;
    size_t num = b->start[N];
    bool is_gae = c->adv_estimator == CR_ADV_GAE;

    for (size_t i = 0; i < N; i++) {
        double sum = 0, reward = want_reward(c, b, i);
        size = fmax(size, fabs(reward));
        check_near(b->rewards[i], reward, 1e-12 * (1 + fabs(reward)));
        for (size_t t = b->start[i]; t < b->start[i + 1]; t++) {
            double kl = kl_of(c->kl_penalty, b->old[t] - b->ref[t]);
            check_near(b->kl[t], kl, 1e-14);
            sum += kl;
            token[t] = (t + 1 == b->start[i + 1] ? b->rewards[i] : 0) -
                       (c->add_token_level_kl ? c->kl_coef * kl : 0);
            token[t] = cut(token[t], c->reward_clip);
        }
        if (b->start[i + 1] > b->start[i])
            kl_mean += sum / (double)(b->start[i + 1] - b->start[i]) / N;
    }
    check_near(b->kl_mean, kl_mean, 1e-7);
    if (c->whiten_rewards) whitened(token, b->final, num);
    for (size_t i = 0; i < N; i++)
        for (size_t t = b->start[i]; t < b->start[i + 1]; t++) {
            bool is_last = t + 1 == b->start[i + 1];
            token[t] *= b->final[t];
            check_near(b->token[t], token[t],
                       1e-6); /* 1e-8 of masked means, divided by a deviation */
            delta[t] = b->token[t];
            if (is_gae) delta[t] += (is_last ? 0 : c->gamma * b->values[t + 1]) - b->values[t];
        }
    for (size_t i = 0; i < N; i++)
        for (size_t t = b->start[i]; t < b->start[i + 1]; t++) {
            adv[t] = tail(delta, t, b->start[i + 1], c->gamma * (is_gae ? c->lambd : 1));
            check_near(b->raw[t], adv[t], 1e-12 * size);
            check_near(b->returns[t], adv[t] + (is_gae ? b->values[t] : 0), 1e-12 * size);
        }
    if (c->whiten_advantages) whitened(adv, b->final, num);
    for (size_t t = 0; t < num; t++)
        check_near(b->adv[t], cut(adv[t] * b->final[t], c->advantage_clip), 1e-6);
}

/* The n-th of 4 * 4 * 3 * 8 settings, with the KL penalty k1. */
static cr_advantage_config setting(uint64_t n)
{
    return (cr_advantage_config){.adv_estimator = (cr_estimator)(n / 16 % 3),
                                 .norm_mean_type = (cr_norm)(n % 4),
                                 .norm_std_type = (cr_norm)(n / 4 % 4),
                                 .gamma = n & 1 ? 1 : 0.9,
                                 .lambd = 0.95,
                                 .reward_clip = n / 48 & 1 ? 0.7 : 0,
                                 .advantage_clip = n / 48 & 2 ? 0.6 : 0,
                                 .whiten_rewards = n / 48 & 1,
                                 .whiten_advantages = n / 48 & 4,
                                 .add_token_level_kl = n / 48 & 2,
                                 .kl_coef = 0.3};
}

static void all_settings(void **state)
{
    batch b;

    (void)state;
    for (uint64_t n = 0; n < 4 * 4 * 3 * 8; n++) {
        cr_advantage_config c = setting(n);
        c.kl_penalty = (cr_kl)(n % 3);
        make_batch(&b, n);
        run(&c, &b, 0, N, GROUP);
        check_batch(&c, &b);
    }
}

/* Distilled advantages are the others less the distance to the teacher, whitened and cut afterwards; the pure form
 * is that distance, whatever the rewards and their settings are. */
static void distilled(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 4 * 4 * 3 * 8; n++) {
        cr_advantage_config c = setting(n), plain;
        double adv[MAX_T], mean = 0;
        cr_err err = {0};
        cr_advantage_args a;
        batch b;
        make_batch(&b, n);
        a = args_of(&b, N, GROUP);
        c.kl_penalty = (cr_kl)(n % 3);
        plain = c;
        plain.whiten_advantages = false, plain.advantage_clip = 0;
        assert_int_equal(cr_advantage(&plain, &a, &err), CR_OK);
        memcpy(adv, b.raw, sizeof adv);
        b.moments = (cr_moments){0, 1, 1e-24};
        c.opd = n & 1 ? CR_OPD_PURE : CR_OPD_MIXED;
        c.opd_kl_coef = 0.25 * (double)(1 + n % 5);
        assert_int_equal(cr_advantage(&c, &a, &err), CR_OK);
        for (size_t i = 0; i < N; i++) {
            double sum = 0;
            for (size_t t = b.start[i]; t < b.start[i + 1]; t++) {
                double d = kl_of(c.kl_penalty, b.old[t] - b.teacher[t]),
                       rest = c.opd == CR_OPD_PURE ? 0 : adv[t];
                check_near(b.opd_kl[t], d, 1e-14);
                sum += d;
                adv[t] = rest - c.opd_kl_coef * d;
                check_near(b.raw[t], c.opd == CR_OPD_PURE ? adv[t] : rest, 1e-12);
                check_near(b.returns[t], c.opd == CR_OPD_PURE ? adv[t] : b.returns[t], 1e-12);
            }
            if (b.start[i + 1] > b.start[i])
                mean += sum / (double)(b.start[i + 1] - b.start[i]) / N;
        }
        check_near(a.opd_kl_mean, mean, 1e-7);
        if (c.whiten_advantages) whitened(adv, b.final, b.start[N]);
        for (size_t t = 0; t < b.start[N]; t++)
            check_near(b.adv[t], cut(adv[t] * b.final[t], c.advantage_clip), 1e-6);
    }
}

enum { KINDS = 3 };

/* Rewards of three kinds, some of which are missing; sample 5 has none, sample 6 has them all and no verdict. */
static void make_kinds(uint64_t seed, double *values, double *has, double *verdict)
{
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < N; i++) {
            values[k * N + i] = floor(3 * uniform(seed, 2000 + k * N + i)) - (double)k;
            has[k * N + i] = i == 6 || (i != 5 && uniform(seed, 3000 + k * N + i) < 0.7);
        }
    for (size_t i = 0; i < N; i++)
        verdict[i] = i != 6 && has[i] + has[N + i] + has[2 * N + i] > 0;
}

/* One kind's part of a sample's reward: over the samples that have it, of its group or of all. */
static double want_kind(const cr_advantage_config *c, const double *values, const double *has,
                        const double *verdict, size_t i)
{
    double w[N], mean[4] = {0}, std[4] = {0}, one[1];
    size_t first = i / GROUP * GROUP;

    for (size_t j = 0; j < N; j++)
        w[j] = has[j] * verdict[j];
    if (w[i] == 0) return 0;
    moments_of(values, w, N, &mean[CR_NORM_BATCH], &std[CR_NORM_BATCH]);
    moments_of(values + first, w + first, GROUP, &mean[CR_NORM_GROUP], &std[CR_NORM_GROUP]);
    one[0] = values[i] - mean[c->norm_mean_type];
    return c->norm_std_type == CR_NORM_NONE ? one[0] : one[0] / (std[c->norm_std_type] + 1e-6);
}

/* normalize_then_sum: each kind by itself, the sum by weight over its deviation. Groups without a difference are
 * exactly 0. */
static void several_rewards(void **state)
{
    static const double weights[KINDS] = {1, 0.5, -2};

    (void)state;
    for (uint64_t n = 0; n < 60; n++) {
        double values[KINDS * N], has[KINDS * N], verdict[N], want[N], mean, std;
        const cr_reward_kinds kinds = {KINDS, values, has, weights};
        cr_advantage_config c = {.adv_estimator = CR_ADV_REINFORCE,
                                 .norm_mean_type = n % 2 ? CR_NORM_GROUP : CR_NORM_BATCH,
                                 .norm_std_type = (cr_norm)(n / 2 % 3),
                                 .aggregation = CR_NORMALIZE_THEN_SUM,
                                 .gamma = 1};
        cr_err err = {0};
        cr_advantage_args a;
        batch b;
        make_batch(&b, n);
        make_kinds(n, values, has, verdict);
        for (size_t k = 0; k < KINDS; k++)
            for (size_t i = 0; i < GROUP; i++)
                values[k * N + i] = 0.1; /* the first group has no difference */
        a = args_of(&b, N, GROUP);
        a.kinds = &kinds, a.verdict = verdict, a.scores = NULL;
        assert_int_equal(cr_advantage(&c, &a, &err), CR_OK);
        for (size_t i = 0; i < N; i++) {
            want[i] = 0;
            for (size_t k = 0; k < KINDS; k++)
                want[i] += weights[k] * want_kind(&c, values + k * N, has + k * N, verdict, i);
        }
        moments_of(want, verdict, N, &mean, &std);
        for (size_t i = 0; i < N; i++)
            check_near(b.rewards[i], want[i] / (std + 1e-6), 1e-9);
        for (size_t i = 0; i < GROUP && c.norm_mean_type == CR_NORM_GROUP; i++)
            assert_true(b.rewards[i] == 0);
    }
}

static void sums_by_weight(void **state)
{
    static const double weights[KINDS] = {1, 0.5, -2};
    double values[KINDS * N], has[KINDS * N], verdict[N], sums[N], any[N];
    const cr_reward_kinds kinds = {KINDS, values, has, weights};

    (void)state;
    make_kinds(1, values, has, verdict);
    cr_rewards_sum(&kinds, N, sums, any);
    for (size_t i = 0; i < N; i++) {
        double want = has[i] * values[i] + 0.5 * has[N + i] * values[N + i] -
                      2 * has[2 * N + i] * values[2 * N + i];
        check_near(sums[i], want, 1e-12);
        assert_true(any[i] == (has[i] + has[N + i] + has[2 * N + i] > 0));
    }
}

/* k3 never is less than 0, and is cut at 10. */
static void k3(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_REINFORCE, .gamma = 1, .kl_penalty = CR_KL_K3};
    batch b;

    (void)state;
    make_batch(&b, 1);
    b.old[0] = -9, b.ref[0] = 0;
    run(&c, &b, 0, N, GROUP);
    check_near(b.kl[0], 10, 0);
    for (size_t t = 1; t < b.start[N]; t++) {
        double d = b.ref[t] - b.old[t], k = exp(d) - d - 1;
        check_near(b.kl[t], k > 10 ? 10 : k, 1e-13);
        assert_true(b.kl[t] >= 0);
    }
}

/* A group of equal rewards says nothing: exact zeros, also where their mean is an ulp off. */
static void equal_rewards(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_GRPO, .gamma = 1};
    batch b;

    (void)state;
    make_batch(&b, 2);
    for (size_t i = 0; i < GROUP; i++)
        b.scores[i] = 0.1;
    run(&c, &b, 0, N, GROUP);
    for (size_t t = 0; t < b.start[GROUP]; t++)
        assert_true(b.adv[t] == 0);
    run(&c, &b, 0, N, 1); /* groups of one: no deviation, no NaN */
    for (size_t t = 0; t < b.start[N]; t++)
        assert_true(b.adv[t] == 0);
}

/* A row alone has the bits that it has among others: nothing leaks over its ends. */
static void rows_alone(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_GAE, .gamma = 0.9, .lambd = 0.8};
    batch whole, alone;

    (void)state;
    make_batch(&whole, 3);
    alone = whole;
    run(&c, &whole, 0, N, GROUP);
    for (size_t i = 0; i < N; i++) {
        run(&c, &alone, i, i + 1, 1);
        for (size_t t = whole.start[i]; t < whole.start[i + 1]; t++)
            assert_true(alone.adv[t] == whole.adv[t] && alone.returns[t] == whole.returns[t]);
    }
}

/* Running moments of batch after batch are the moments of all that was seen. */
static void running_moments(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_REINFORCE,
                             .norm_mean_type = CR_NORM_RUNNING,
                             .norm_std_type = CR_NORM_RUNNING,
                             .gamma = 1};
    double seen[5 * N], mean, std;
    cr_moments moments = {0, 1, 1e-24};
    batch b;

    (void)state;
    for (size_t k = 0; k < 5; k++) {
        make_batch(&b, k);
        b.moments = moments;
        memcpy(seen + k * N, b.scores, sizeof b.scores);
        run(&c, &b, 0, N, GROUP);
        moments = b.moments;
        moments_of(seen, NULL, (k + 1) * N, &mean, &std);
        for (size_t i = 0; i < N; i++)
            check_near(b.rewards[i], (b.scores[i] - mean) / (std + 1e-6), 1e-12);
    }
}

static void refusals(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_GAE};
    cr_err err = {0};
    batch b;
    cr_advantage_args a = {.rows = {N, b.start}, .group = 5, .values = b.values};

    (void)state;
    make_batch(&b, 4);
    a.scores = b.scores;
    assert_int_equal(cr_advantage(&c, &a, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "group 5"));
    err = (cr_err){0};
    c.opd = CR_OPD_MIXED;
    assert_int_equal(cr_advantage(&c, &a, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "teacher"));
    err = (cr_err){0};
    c.opd = CR_OPD_NONE;
    a.values = NULL;
    assert_int_equal(cr_advantage(&c, &a, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "values"));
    for (int k = 0; k < 3;
         k++) { /* nothing to normalise by, running moments, no rewards of several kinds */
        static const cr_reward_kinds kinds = {0};
        err = (cr_err){0};
        c = (cr_advantage_config){.aggregation = CR_NORMALIZE_THEN_SUM,
                                  .norm_mean_type = k == 0   ? CR_NORM_NONE
                                                    : k == 1 ? CR_NORM_RUNNING
                                                             : CR_NORM_GROUP};
        a.group = GROUP, a.moments = &b.moments, a.kinds = k == 2 ? NULL : &kinds;
        assert_int_equal(cr_advantage(&c, &a, &err), CR_EARG);
        assert_non_null(strstr(err.msg, "normalize_then_sum"));
    }
}

/* Groups of 6 of which 4 have a verdict are, bit for bit, the groups of those 4 alone. */
static void verdicts_alone(void **state)
{
    static const double verdict[N] = {1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0};
    double tokens[MAX_T];
    const double *values[] = {NULL, tokens};

    (void)state;
    for (size_t t = 0; t < MAX_T; t++)
        tokens[t] = normal(9, t);
    for (uint64_t n = 0; n < 4 * 4 * 3 * 16; n++) {
        cr_advantage_config c = setting(n);
        batch all, some = {.moments = {0, 1, 1e-24}};
        double all_tokens[MAX_T], some_tokens[MAX_T];
        cr_advantage_args a, s;
        cr_err err = {0};
        size_t k = 0, u = 0;
        make_batch(&all, n);
        for (size_t i = 0; i < N; i++)
            if (verdict[i] == 0) all.scores[i] = 1e5; /* whatever the value is */
        memcpy(all_tokens, tokens, sizeof tokens);
        for (size_t i = 0; i < N; i++) {
            if (verdict[i] == 0) continue;
            some.scores[k] = all.scores[i];
            for (size_t t = all.start[i]; t < all.start[i + 1]; t++, u++) {
                some.old[u] = all.old[t], some.ref[u] = all.ref[t];
                some.values[u] = all.values[t], some.final[u] = all.final[t];
                some_tokens[u] = all_tokens[t];
            }
            some.start[++k] = u;
        }
        a = args_of(&all, N, 6);
        a.verdict = verdict;
        a.token_scores = values[n / 384 & 1] ? all_tokens : NULL;
        s = args_of(&some, k, 4);
        s.token_scores = a.token_scores ? some_tokens : NULL;
        assert_int_equal(cr_advantage(&c, &a, &err), CR_OK);
        assert_int_equal(cr_advantage(&c, &s, &err), CR_OK);
        check_near(a.kl_mean, s.kl_mean, 0);
        check_near(a.reward_clip_frac, s.reward_clip_frac, 0);
        check_near(a.advantage_clip_frac, s.advantage_clip_frac, 0);
        check_near(all.moments.mean, some.moments.mean, 0);
        check_near(all.moments.var, some.moments.var, 0);
        check_near(all.moments.count, some.moments.count, 0);
        k = u = 0;
        for (size_t i = 0; i < N; i++) {
            check_near(all.rewards[i], verdict[i] != 0 ? some.rewards[k++] : 0, 0);
            for (size_t t = all.start[i]; t < all.start[i + 1]; t++) {
                check_near(all.adv[t], verdict[i] != 0 ? some.adv[u] : 0, 0);
                if (verdict[i] != 0) check_near(all.token[t], some.token[u++], 0);
            }
        }
    }
}

/* A token's own reward counts from its place on, the sample's from the last one. */
static void rewards_of_tokens(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_REINFORCE, .gamma = 0.9};
    double tokens[MAX_T], sum[MAX_T];
    cr_advantage_args a;
    cr_err err = {0};
    batch b;

    (void)state;
    make_batch(&b, 6);
    for (size_t t = 0; t < MAX_T; t++)
        tokens[t] = sum[t] = normal(10, t), b.final[t] = 1;
    for (size_t i = 0; i < N; i++)
        if (b.start[i + 1] > b.start[i]) sum[b.start[i + 1] - 1] += b.scores[i];
    a = args_of(&b, N, GROUP);
    a.token_scores = tokens;
    assert_int_equal(cr_advantage(&c, &a, &err), CR_OK);
    for (size_t i = 0; i < N; i++)
        for (size_t t = b.start[i]; t < b.start[i + 1]; t++)
            check_near(b.adv[t], tail(sum, t, b.start[i + 1], 0.9), 1e-12);
}

/* One verdict in a group: no deviation, nothing to learn. None: nothing at all, and no NaN. */
static void few_verdicts(void **state)
{
    cr_advantage_config c = {.adv_estimator = CR_ADV_GRPO, .gamma = 1};
    double verdict[N] = {[2] = 1, [8] = 1, [9] = 1}, keep[N], lengths[N] = {0};
    cr_mask_config masks = {.difficulty_mask = true, .difficulty_high_threshold = 0.5};
    cr_advantage_args a;
    cr_query_filter std = {.type = CR_FILTER_STD},
                    mean = {.type = CR_FILTER_MEAN, .threshold_up = 1};
    cr_err err = {0};
    batch b;

    (void)state;
    make_batch(&b, 5);
    b.scores[8] = 0, b.scores[9] = 0.5;
    a = args_of(&b, N, GROUP);
    a.verdict = verdict;
    assert_int_equal(cr_advantage(&c, &a, &err), CR_OK);
    for (size_t t = 0; t < b.start[8]; t++)
        check_near(b.adv[t], 0, 0);
    check_near(b.rewards[9], 0.25 / (sqrt(0.125) + 1e-6), 1e-12);
    cr_sample_mask(&masks, N, GROUP, lengths, 8, b.scores, verdict, keep);
    for (size_t i = 0; i < N; i++)
        check_near(keep[i], i == 8 || i == 9 || (i == 2 && b.scores[2] > 0 && b.scores[2] < 0.5),
                   0);
    assert_false(cr_query_filter_keeps(&std, (double[]){1}, 1));
    assert_true(cr_query_filter_keeps(&std, (double[]){1, 0.5}, 2));
    assert_true(cr_query_filter_keeps(&mean, (double[]){0.5}, 1));
    assert_false(cr_query_filter_keeps(&mean, (double[]){1}, 1));
    assert_true(cr_query_filter_keeps(&mean, NULL, 0));
}

/* Thresholds are open; a group of one has no difficulty; scores between 0 and 1 count as wrong. */
static void sample_masks(void **state)
{
    const double lengths[] = {8, 7, 8, 3, 5, 4, 1, 8}, scores[] = {0, 1, 0, 1, 1, 1, 0.5, 0};
    const struct {
        cr_mask_config config;
        size_t group;
        double keep[8];
    } cases[] = {
        {{0}, 4, {1, 1, 1, 1, 1, 1, 1, 1}},
        {{.max_len_mask = true}, 4, {0, 1, 0, 1, 1, 1, 1, 0}},
        {{.difficulty_mask = true, .difficulty_low_threshold = 0.5, .difficulty_high_threshold = 1},
         4,
         {0, 0, 0, 0, 1, 1, 1, 1}},
        {{.difficulty_mask = true, .difficulty_high_threshold = 0.625},
         4,
         {1, 1, 1, 1, 0, 0, 0, 0}},
        {{.difficulty_mask = true, .difficulty_low_threshold = 2}, 1, {1, 1, 1, 1, 1, 1, 1, 1}},
        {{.error_max_len_clip = true, .error_max_len_threshold = 8}, 4, {0, 1, 0, 1, 1, 1, 0, 0}},
        {{.error_max_len_clip = true, .error_max_len_threshold = 9}, 4, {1, 1, 1, 1, 1, 1, 0, 1}},
    };
    double keep[8];

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        cr_sample_mask(&cases[k].config, 8, cases[k].group, lengths, 8, scores, NULL, keep);
        for (size_t i = 0; i < 8; i++)
            if (keep[i] != cases[k].keep[i]) fail_msg("case %zu, sample %zu", k, i);
    }
}

/* value *= 1 + clip(current / target - 1) * rows / horizon, by hand. */
static void kl_controller(void **state)
{
    (void)state;
    check_near(cr_kl_controller(0.2, 4, 1000, 4.4, 100), 0.2 * 1.01, 1e-16);
    check_near(cr_kl_controller(0.2, 4, 1000, 400, 100), 0.2 * 1.02, 1e-16);
    check_near(cr_kl_controller(0.2, 4, 1000, 0, 100), 0.2 * 0.98, 1e-16);
    check_near(cr_kl_controller(0.2, 4, 1000, 4, 100), 0.2, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_settings),      cmocka_unit_test(k3),
        cmocka_unit_test(equal_rewards),     cmocka_unit_test(rows_alone),
        cmocka_unit_test(running_moments),   cmocka_unit_test(refusals),
        cmocka_unit_test(sample_masks),      cmocka_unit_test(kl_controller),
        cmocka_unit_test(verdicts_alone),    cmocka_unit_test(few_verdicts),
        cmocka_unit_test(rewards_of_tokens), cmocka_unit_test(distilled),
        cmocka_unit_test(several_rewards),   cmocka_unit_test(sums_by_weight),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
