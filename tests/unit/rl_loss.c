/* rl_loss.c -- policy loss, correction and value loss against sums written out here, one row at a
 * time, and their gradients against central differences of those sums (not of rl/'s).
 * Not covered: metrics other than those below; the schedules and the rest of rl/ (rl_advantage.c).
 */
#include "rl/loss.h"
#include "tests/check_near.h"
#include "tests/draws.h"

#include <stdio.h>
#include <string.h>

enum { N = 5, T = 24 };
static const size_t start[N + 1] = {0, 7, 8, 8, 15, 24}; /* a row of one token, an empty row */

typedef struct batch {
    double lp[T], old[T], ref[T], infer[T], entropy[T], adv[T], mask[T], final[T];
    double scores[N], weights[N];
} batch;

static void make_batch(batch *b, uint64_t seed)
{
    for (size_t t = 0; t < T; t++) {
        b->old[t] = -0.1 - fabs(normal(seed, t));
        b->lp[t] = b->old[t] + 0.4 * normal(seed, 100 + t);
        b->ref[t] = b->old[t] + 0.5 * normal(seed, 200 + t);
        b->infer[t] = b->old[t] + 0.2 * normal(seed, 300 + t);
        b->entropy[t] = fabs(normal(seed, 400 + t));
        b->adv[t] = normal(seed, 500 + t);
        b->mask[t] = uniform(seed, 600 + t) < 0.8;
        b->final[t] = t == 7 ? 0 : b->mask[t]; /* row 1 has no token in the final mask */
    }
    for (size_t i = 0; i < N; i++) {
        b->scores[i] = uniform(seed, 700 + i) < 0.5;
        b->weights[i] = 0.5 + uniform(seed, 800 + i);
    }
}

/* ---- the same loss, written as the formulas read ---- */

static double min(double a, double b)
{
    return a < b ? a : b;
}

static double between(double low, double x, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double row_sum(const double *x, const double *m, size_t i)
{
    double sum = 0;

    for (size_t t = start[i]; t < start[i + 1]; t++)
        if (m[t] != 0) sum += x[t];
    return sum;
}

static double row_count(const double *m, size_t i)
{
    double sum = 0;

    for (size_t t = start[i]; t < start[i + 1]; t++)
        sum += m[t];
    return sum;
}

/* Aggregate over the mask, from the definitions: counts are the batch's own. */
static double aggregate(cr_agg mode, const double *x, const double *m, const double *w)
{
    double tokens = 0, rows = 0, sum = 0, width = 0;

    for (size_t i = 0; i < N; i++) {
        double k = row_count(m, i), len = (double)(start[i + 1] - start[i]);
        tokens += k;
        rows += k > 0;
        width = len > width ? len : width;
        if (k == 0) continue;
        sum +=
            (w ? w[i] : 1) * row_sum(x, m, i) / (mode == CR_AGG_SEQ_MEAN_TOKEN_MEAN ? k + 1e-8 : 1);
    }
    switch (mode) {
    case CR_AGG_TOKEN_MEAN:
        return sum / tokens;
    case CR_AGG_SEQ_MEAN_TOKEN_SUM:
    case CR_AGG_SEQ_MEAN_TOKEN_MEAN:
        return sum / (rows + 1e-8);
    case CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM:
        return sum / width / rows;
    case CR_NUM_AGGS:
        break;
    }
    return NAN;
}

/* lp is what is differentiated; factors that are detached see `fixed`. */
static double token_loss(const cr_loss_config *c, const batch *b, const double *lp,
                         const double *fixed, size_t i, size_t t)
{
    double A = b->adv[t], rho = exp(lp[t] - b->old[t]), held = exp(fixed[t] - b->old[t]), l;
    double low = c->use_pg_clip_range ? c->pg_clip_low : c->pg_clip,
           high = c->use_pg_clip_range ? c->pg_clip_high : c->pg_clip;

    switch (c->pg_variant) {
    case CR_PG_PPO:
        if (c->is_sequence_ratio) {
            double sum = 0;
            for (size_t k = start[i]; k < start[i + 1]; k++)
                sum += b->final[k] * (lp[k] - b->old[k]);
            rho = exp(sum / (row_count(b->final, i) + 1e-8));
        }
        l = -min(rho * A, between(1 - low, rho, 1 + high) * A);
        return c->dual_clip_loss && A < 0 ? min(l, -(1 + 2 * c->pg_clip) * A) : l;
    case CR_PG_VANILLA:
        return -A * lp[t];
    case CR_PG_TIS:
        return -between(c->tis_lower_bound, held, c->tis_upper_bound) * A * lp[t];
    case CR_PG_TOPR:
        return (b->scores[i] > 0 ? -c->topr_positive_weight
                                 : -c->topr_negative_weight * between(0, held, 1)) *
               A * lp[t];
    case CR_PG_CISPO:
        if (c->cispo_use_unified_mask && ((A > 0 && held > 1 + c->cispo_epsilon_high) ||
                                          (A < 0 && held < 1 - c->cispo_epsilon_low)))
            return 0;
        return -between(1 - c->cispo_epsilon_low, held, 1 + c->cispo_epsilon_high) * A * lp[t];
    case CR_PG_KIMI15:
        return -A * lp[t] + 0.5 * c->kimi15_tau * pow(lp[t] - b->old[t], 2);
    case CR_PG_DPPO_TV: {
        double moved = exp(fixed[t]) - exp(b->old[t]);
        if (A > 0 ? moved > c->dppo_mask_high : moved < -c->dppo_mask_low) return 0;
        return -min(held, c->dppo_clip_ratio_c) * A * lp[t];
    }
    case CR_PG_SAPO: {
        double tau = A > 0 ? c->sapo_temperature_pos : c->sapo_temperature_neg;
        return -4 / tau / (1 + exp(-tau * (rho - 1))) * A;
    }
    case CR_NUM_VARIANTS:
        break;
    }
    return NAN;
}

static double total_loss(const cr_loss_config *c, const batch *b, const double *lp,
                         const double *fixed, const double *entropy, const double *is_weight)
{
    double l[T], kl[T];

    for (size_t i = 0; i < N; i++)
        for (size_t t = start[i]; t < start[i + 1]; t++) {
            double r = b->ref[t] - lp[t];
            l[t] = token_loss(c, b, lp, fixed, i, t) * (is_weight ? is_weight[t] : 1);
            kl[t] = between(-10, exp(r) - r - 1, 10);
        }
    return c->rl_loss_coef * (aggregate(c->loss_agg_mode, l, b->final, b->weights) +
                              (c->use_kl_loss ? c->kl_loss_coef : 0) *
                                  aggregate(c->loss_agg_mode, kl, b->final, NULL)) -
           c->entropy_loss_coef * aggregate(c->loss_agg_mode, entropy, b->mask, NULL);
}

/* ---- rl/'s ---- */

typedef struct result {
    double grad[T], grad_entropy[T], ratio[T];
    cr_loss_metrics metrics;
} result;

/* Samples [first, end) of the batch, with the counts of all of it. Terms of tokens add up to the loss. */
static void run_rows(const cr_loss_config *c, const batch *b, const double *is_weight, size_t first,
                     size_t end, result *out)
{
    double pg[T], kl[T], entropy[T], grad_kl[T], weight[T], cut[T], sum = 0, size = 1;
    const cr_loss_terms terms = {pg, kl, entropy, grad_kl, weight, cut};
    cr_loss_args a = {.rows = {end - first, start + first},
                      .of[CR_COLUMN_LOG_PROBS] = b->lp,
                      .of[CR_COLUMN_OLD] = b->old,
                      .of[CR_COLUMN_REF] = b->ref,
                      .of[CR_COLUMN_INFER] = b->infer,
                      .of[CR_COLUMN_ENTROPY] = b->entropy,
                      .of[CR_COLUMN_ADVANTAGES] = b->adv,
                      .of[CR_COLUMN_MASK] = b->mask,
                      .of[CR_COLUMN_FINAL] = b->final,
                      .of[CR_COLUMN_SCORES] = b->scores + first,
                      .of[CR_COLUMN_WEIGHTS] = b->weights + first,
                      .of[CR_COLUMN_IS_WEIGHT] = is_weight,
                      .all = {.width = 9},
                      .grad_log_probs = out->grad,
                      .grad_entropy = out->grad_entropy,
                      .ratio = out->ratio,
                      .terms = &terms};
    cr_ragged all = {N, start};

    cr_count_masks(&all, b->final, &a.all.final_tokens, &a.all.final_samples);
    cr_count_masks(&all, b->mask, &a.all.tokens, &a.all.samples);
    cr_policy_loss(c, &a);
    for (size_t t = start[first]; t < start[end]; t++) {
        sum += pg[t] + kl[t] + entropy[t];
        size += fabs(pg[t]) + fabs(kl[t]) + fabs(entropy[t]);
    }
    check_near(sum / size, a.metrics.total_loss / size, 1e-13);
    out->metrics = a.metrics;
}

static const cr_loss_config standard = {.pg_clip = 0.2,
                                        .pg_clip_low = 0.1,
                                        .pg_clip_high = 0.3,
                                        .rl_loss_coef = 0.7,
                                        .kl_loss_coef = 0.3,
                                        .entropy_loss_coef = 0.05,
                                        .topr_positive_weight = 0.8,
                                        .topr_negative_weight = 0.6,
                                        .tis_lower_bound = 0.7,
                                        .tis_upper_bound = 1.4,
                                        .cispo_epsilon_low = 0.2,
                                        .cispo_epsilon_high = 0.4,
                                        .kimi15_tau = 0.4,
                                        .dppo_mask_low = 0.05,
                                        .dppo_mask_high = 0.1,
                                        .dppo_clip_ratio_c = 1.2,
                                        .sapo_temperature_pos = 1.5,
                                        .sapo_temperature_neg = 2.5};

/* Values are sums of 24 numbers near 1: 1e-13 is 500 roundings. A central difference with h has an
 * error of h^2 times the third derivative (near 1) and 1e-16 / h of rounding: 1e-9 with h = 1e-5. */
static void check_case(const cr_loss_config *c, const batch *b, const double *is_weight)
{
    const double h = 1e-5;
    double lp[T], entropy[T];
    result got;

    memcpy(lp, b->lp, sizeof lp);
    memcpy(entropy, b->entropy, sizeof entropy);
    run_rows(c, b, is_weight, 0, N, &got);
    check_near(got.metrics.total_loss, total_loss(c, b, lp, lp, entropy, is_weight), 1e-13);
    for (size_t t = 0; t < T; t++) {
        double up, down;
        lp[t] = b->lp[t] + h;
        up = total_loss(c, b, lp, b->lp, entropy, is_weight);
        lp[t] = b->lp[t] - h;
        down = total_loss(c, b, lp, b->lp, entropy, is_weight);
        lp[t] = b->lp[t];
        check_near(got.grad[t], (up - down) / (2 * h), 2e-9);
        entropy[t] += 1;
        up = total_loss(c, b, lp, lp, entropy, is_weight);
        entropy[t] = b->entropy[t];
        check_near(got.grad_entropy[t], up - total_loss(c, b, lp, lp, entropy, is_weight), 1e-13);
    }
}

static void values_and_gradients(void **state)
{
    batch b;

    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++)
        for (int mode = 0; mode <= CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM; mode++)
            for (int variant = 0; variant < CR_NUM_VARIANTS; variant++)
                for (int flags = 0; flags < 8; flags++) {
                    cr_loss_config c = standard;
                    c.loss_agg_mode = (cr_agg)mode;
                    c.pg_variant = (cr_variant)variant;
                    c.is_sequence_ratio = flags & 1;
                    c.dual_clip_loss = c.cispo_use_unified_mask = flags & 2;
                    c.use_pg_clip_range = c.use_kl_loss = flags & 4;
                    make_batch(&b, seed);
                    check_case(&c, &b, NULL);
                    check_case(&c, &b, b.entropy); /* any weights of tokens */
                }
}

/* k3 is cut at 10 and has no gradient there; in a ratio beyond the dual clip neither. */
static void clamps_have_no_gradient(void **state)
{
    cr_loss_config c = standard;
    batch b;
    result got;

    (void)state;
    make_batch(&b, 1);
    memcpy(b.final, b.mask, sizeof b.final);
    b.final[0] = b.mask[0] = 1;
    b.lp[0] = -9;
    b.old[0] = b.infer[0] = -12; /* ratio e^3 */
    b.ref[0] = -0.5;             /* k3 = e^8.5 - 9.5 */
    b.adv[0] = -1;
    c.dual_clip_loss = c.use_kl_loss = true;
    c.loss_agg_mode = CR_AGG_TOKEN_MEAN;
    check_case(&c, &b, NULL);
    run_rows(&c, &b, NULL, 0, N, &got);
    assert_true(got.grad[0] == 0);
}

/* On policy every ratio is 1: the gradient is -A times the token's weight, no matter the clip. */
static void on_policy(void **state)
{
    cr_loss_config c = standard;
    batch b;
    result got;
    double tokens = 0;

    (void)state;
    make_batch(&b, 2);
    memcpy(b.lp, b.old, sizeof b.lp);
    c.loss_agg_mode = CR_AGG_TOKEN_MEAN;
    c.use_kl_loss = false;
    run_rows(&c, &b, NULL, 0, N, &got);
    for (size_t t = 0; t < T; t++)
        tokens += b.final[t];
    for (size_t i = 0; i < N; i++)
        for (size_t t = start[i]; t < start[i + 1]; t++)
            check_near(got.grad[t], -0.7 * b.weights[i] * b.adv[t] * b.final[t] / tokens, 1e-15);
    check_near(got.metrics.ratio_max, 1, 0);
    check_near(got.metrics.clip_high + got.metrics.clip_low, 0, 0);
}

/* With the counts of the whole, the parts add up, and each token's gradient is the same bits. */
static void parts_add_up(void **state)
{
    cr_loss_config c = standard;
    batch b;
    result whole, part[3];
    static const size_t cut[] = {0, 2, 4, 5};
    double sum = 0, kl = 0, entropy = 0;

    (void)state;
    make_batch(&b, 3);
    c.use_kl_loss = true;
    for (int mode = 0; mode <= CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM; mode++) {
        c.loss_agg_mode = (cr_agg)mode;
        run_rows(&c, &b, NULL, 0, N, &whole);
        sum = kl = entropy = 0;
        for (size_t k = 0; k < 3; k++) {
            run_rows(&c, &b, NULL, cut[k], cut[k + 1], &part[k]);
            sum += part[k].metrics.total_loss;
            kl += part[k].metrics.kl_loss;
            entropy += part[k].metrics.entropy_loss;
            for (size_t t = start[cut[k]]; t < start[cut[k + 1]]; t++)
                assert_true(part[k].grad[t] == whole.grad[t]);
        }
        check_near(sum, whole.metrics.total_loss, 1e-14);
        check_near(kl, whole.metrics.kl_loss, 1e-14);
        check_near(entropy, whole.metrics.entropy_loss, 1e-14);
    }
}

/* docs/losses.md, "Where ROLL differs": seq-mean-token-sum-norm there is sum_i w_i sum_t l / (S - 1), S the width of the padded batch with
 * its prompts, and nothing of the number of samples. Ours for the same batch, and what the same samples twice do to each. */
static void sum_norm_in_roll(void **state)
{
    enum { PROMPT = 6 }; /* tokens */
    cr_loss_config c = standard;
    batch b;
    result got;
    double roll = 0, longest = 0, samples = 0, width = 9; /* of run_rows */

    (void)state;
    make_batch(&b, 5);
    c.loss_agg_mode = CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM;
    c.entropy_loss_coef = 0;
    c.rl_loss_coef = 1;
    for (size_t i = 0; i < N; i++) {
        for (size_t t = start[i]; t < start[i + 1]; t++)
            if (b.final[t] != 0) roll += b.weights[i] * token_loss(&c, &b, b.lp, b.lp, i, t);
        longest = fmax(longest, (double)(start[i + 1] - start[i]));
        samples += row_count(b.final, i) > 0;
    }
    roll /= PROMPT + longest - 1;
    run_rows(&c, &b, NULL, 0, N, &got);
    check_near(got.metrics.total_loss, roll * (PROMPT + longest - 1) / (width * samples), 1e-13);
    for (size_t i = 0; i < N; i++) /* twice the samples: twice the loss there, the same here */
        b.weights[i] *= 2;
    run_rows(&c, &b, NULL, 0, N, &got);
    check_near(got.metrics.total_loss / 2, roll * (PROMPT + longest - 1) / (width * samples),
               1e-13);
}

/* What stands outside the masks reaches nothing, not even as infinity times 0. */
static void outside_the_mask(void **state)
{
    cr_loss_config c = standard;
    batch b;
    result clean, dirty;

    (void)state;
    make_batch(&b, 4);
    c.use_kl_loss = true;
    run_rows(&c, &b, NULL, 0, N, &clean);
    for (size_t t = 0; t < T; t++)
        if (b.mask[t] == 0) b.lp[t] = 5000, b.ref[t] = -3000, b.adv[t] = -1e6;
    run_rows(&c, &b, NULL, 0, N, &dirty);
    check_near(dirty.metrics.total_loss, clean.metrics.total_loss, 0);
    check_near(dirty.metrics.approxkl, clean.metrics.approxkl, 0);
    check_near(dirty.metrics.ratio_max, clean.metrics.ratio_max, 0);
    for (size_t t = 0; t < T; t++)
        check_near(dirty.grad[t], clean.grad[t], 0);
}

/* With one epsilon away from the clip bounds, each variant cuts the tokens its definition names. */
static void tokens_that_are_cut(void **state)
{
    static const double rho[] = {0.4, 0.95, 1.3, 1.6}, low = 0.7, high = 1.4;
    static const int want[CR_NUM_VARIANTS][2] = {/* below, above, of the four with A = 1, -1 */
                                                 [CR_PG_PPO] = {1, 2},
                                                 [CR_PG_TIS] = {1, 1},
                                                 [CR_PG_TOPR] = {0, 2},
                                                 [CR_PG_CISPO] = {1, 1},
                                                 [CR_PG_DPPO_TV] = {1, 1}};
    /* of the eight: the factor's sum; what the unified mask of cispo leaves out counts with its cut ratio */
    static const double factors[CR_NUM_VARIANTS] = {[CR_PG_VANILLA] = 8,
                                                    [CR_PG_TIS] = 2 * (0.7 + 0.95 + 1.3 + 1.4),
                                                    [CR_PG_TOPR] = 0.6 * 2 * (0.4 + 0.95 + 1 + 1),
                                                    [CR_PG_CISPO] = 2 * (0.8 + 0.95 + 1.3 + 1.4),
                                                    [CR_PG_DPPO_TV] = 0.4 + 2 * 0.95 + 3 * 1.2};

    (void)state;
    for (int v = 0; v < CR_NUM_VARIANTS; v++) {
        static const size_t one_row[] = {0, 8};
        double lp[8], old[8], adv[8], ones[8], grad[8], grad_entropy[8], score = 0;
        cr_loss_config c = standard;
        cr_loss_args a = {.rows = {1, one_row},
                          .of[CR_COLUMN_LOG_PROBS] = lp,
                          .of[CR_COLUMN_OLD] = old,
                          .of[CR_COLUMN_ADVANTAGES] = adv,
                          .of[CR_COLUMN_MASK] = ones,
                          .of[CR_COLUMN_FINAL] = ones,
                          .of[CR_COLUMN_SCORES] = &score,
                          .all = {8, 1, 8, 1, 0, 0, 8},
                          .grad_log_probs = grad,
                          .grad_entropy = grad_entropy};
        c.pg_variant = (cr_variant)v;
        c.tis_lower_bound = low;
        c.tis_upper_bound = high;
        c.dppo_mask_low = c.dppo_mask_high = 0.25; /* of probabilities near 0.5 */
        c.cispo_use_unified_mask = true;
        for (int t = 0; t < 8; t++) {
            old[t] = log(0.5);
            lp[t] = old[t] + log(rho[t % 4]);
            adv[t] = t < 4 ? 1 : -1;
            ones[t] = 1;
        }
        cr_policy_loss(&c, &a);
        check_near(a.metrics.clip_low * 8, want[v][0] * (v == CR_PG_DPPO_TV ? 1 : 2), 1e-12);
        check_near(a.metrics.clip_high * 8, want[v][1] * (v == CR_PG_DPPO_TV ? 1 : 2), 1e-12);
        check_near(a.metrics.factor_sum, factors[v], 1e-12);
        if (v == CR_PG_CISPO || v == CR_PG_DPPO_TV) {
            check_near(a.metrics.masked_low, 1, 0);
            check_near(a.metrics.masked_high, 1, 0);
        }
        check_near(a.metrics.log_ratio_sum, 2 * log(0.4 * 0.95 * 1.3 * 1.6), 1e-12);
        check_near(a.metrics.log_ratio_abs, 2 * log(1.3 * 1.6 / 0.4 / 0.95), 1e-12);
        check_near(a.metrics.log_ratio_squares,
                   2 * (pow(log(0.4), 2) + pow(log(0.95), 2) + pow(log(1.3), 2) + pow(log(1.6), 2)),
                   1e-12);
        check_near(a.metrics.policy_abs, a.metrics.log_ratio_abs, 1e-12);
    }
}

/* Samples 1 and 3 of 5 do not train: they have no weight and no part in the mean or the range. */
static void sample_weights(void **state)
{
    static const double difficulty[] = {0, 7, 0.5, 0.2, 2}, lengths[] = {10, 1, 20, 900, 30},
                        is_trained[] = {1, 0, 1, 0, 1};
    double w[5], d[] = {0.5, 1.25, 2}, l[] = {1.5, 1, 0.5}, sum = 0;

    (void)state;
    cr_sample_weights(5, difficulty, lengths, is_trained, w);
    for (int k = 0; k < 3; k++)
        sum += d[k] * l[k];
    check_near(w[1] + w[3], 0, 0);
    for (int k = 0; k < 3; k++)
        check_near(w[2 * k], 3 * d[k] * l[k] / sum, 1e-8);
    cr_sample_weights(5, difficulty, NULL, is_trained, w);
    for (int k = 0; k < 3; k++)
        check_near(w[2 * k], 3 * d[k] / 3.75, 1e-8);
    cr_sample_weights(5, NULL, NULL, is_trained, w);
    check_near(w[0], 1, 1e-8);
}

/* ---- correction ---- */

/* Ratio or difference of token t, from the definition of the grain. */
static double grain_of(const batch *b, cr_grain g, bool is_ratio, size_t i, size_t t,
                       const bool *is_after)
{
    double sum = 0, num = 0;
    size_t first = start[i], end = start[i + 1];

    if (g == CR_GRAIN_TOKEN) first = t, end = t + 1;
    if (g == CR_GRAIN_SEGMENT) {
        for (first = t; first > start[i] && b->mask[first - 1] != 0 && !is_after[first];)
            first--;
        for (end = t; end < start[i + 1] && b->mask[end] != 0 && (end == t || !is_after[end]);)
            end++;
    }
    for (size_t k = first; k < end; k++)
        if (b->mask[k] != 0 || g == CR_GRAIN_TOKEN) {
            sum += is_ratio ? b->old[k] - b->infer[k] : exp(b->old[k]) - exp(b->infer[k]);
            num++;
        }
    if (g == CR_GRAIN_GEOMETRIC || g == CR_GRAIN_SEGMENT) sum /= num + 1e-8;
    return is_ratio ? exp(sum) : sum;
}

static void correction(void **state)
{
    cr_ragged rows = {N, start};
    double ratio[CR_NUM_GRAINS][T], diff[CR_NUM_GRAINS][T], weight[T], keep[T], *r[CR_NUM_GRAINS],
        *d[CR_NUM_GRAINS];
    size_t num_dropped = 0, num_cut = 0;
    bool is_after[T];
    batch b;

    (void)state;
    for (size_t g = 0; g < CR_NUM_GRAINS; g++)
        r[g] = ratio[g], d[g] = diff[g];
    for (int k = 0; k < 4 * CR_NUM_GRAINS; k++) {
        cr_grain grain = (cr_grain)(k % CR_NUM_GRAINS), other = (cr_grain)(k / CR_NUM_GRAINS);
        cr_correction_config c = {
            .has_weight = true,
            .weight_type = grain,
            .upper_bound = 1.05,
            .filters = {{true, true, false, other, 0.9, 1.1, 2, 3},
                        {true, false, true, grain, 2, 3, -0.05, 0.08},
                        {false, true, true, grain, 2, 3, 2, 3}}, /* not enabled: drops nothing */
            .num_filters = 3};
        make_batch(&b, (uint64_t)k);
        rows.is_after = k % 2 ? is_after : NULL;
        for (size_t t = 0; t < T; t++)
            is_after[t] = k % 2 && t % 3 == 2;
        cr_correction(&c, &rows, b.old, b.infer, b.mask, r, d, weight, keep);
        for (size_t i = 0; i < N; i++)
            for (size_t t = start[i]; t < start[i + 1]; t++) {
                double x = grain_of(&b, other, true, i, t, is_after),
                       y = grain_of(&b, grain, false, i, t, is_after);
                bool is_kept = x >= 0.9 && x <= 1.1 && y >= -0.05 && y <= 0.08;
                if (b.mask[t] == 0) continue;
                for (int g = 0; g < CR_NUM_GRAINS; g++) {
                    check_near(ratio[g][t], grain_of(&b, (cr_grain)g, true, i, t, is_after), 1e-13);
                    check_near(diff[g][t], grain_of(&b, (cr_grain)g, false, i, t, is_after), 1e-13);
                }
                check_near(weight[t], min(1.05, grain_of(&b, grain, true, i, t, is_after)), 1e-13);
                assert_true(keep[t] == is_kept);
                num_dropped += !is_kept;
                num_cut += weight[t] == 1.05;
            }
    }
    assert_true(num_dropped > 50 && num_cut > 50); /* both ways were taken */
}

/* Coefficients at both ends of what croll config accepts, and ratios whose exponential is 0 or no double: loss and
 * gradient stay finite, also with advantage 0 and with weights of tokens without an upper bound. */
static void extremes_are_finite(void **state)
{
    static const double ends[2][3] = {{0, 1e-6, 1e-6},
                                      {1e6, 1e6, 1e30}}; /* weights, temperatures, bounds */
    const cr_correction_config unbounded = {.has_weight = true, .weight_type = CR_GRAIN_SEQUENCE};
    cr_ragged rows = {N, start};
    double weight[T], keep[T];
    batch b;
    result got;

    (void)state;
    for (int k = 0; k < 4 * CR_NUM_VARIANTS; k++) {
        const double *end = ends[k & 1];
        cr_loss_config c = standard;
        c.pg_variant = (cr_variant)(k / 4);
        c.is_sequence_ratio = k & 2;
        c.use_kl_loss = true;
        c.rl_loss_coef = c.kl_loss_coef = c.entropy_loss_coef = c.topr_positive_weight =
            c.topr_negative_weight = c.kimi15_tau = end[0];
        c.sapo_temperature_pos = c.sapo_temperature_neg = end[1];
        c.dppo_clip_ratio_c = c.tis_upper_bound = c.pg_clip = c.cispo_epsilon_high = end[2];
        make_batch(&b, (uint64_t)k);
        for (size_t t = 0; t < T; t++) {
            b.lp[t] = t % 4 < 2 ? -1000 : -0.1;
            b.old[t] = t % 2 ? -1000 : -0.1;
            b.infer[t] = t % 3 ? -1000 : -0.1;
            b.ref[t] = t % 5 ? -1000 : -0.1;
            b.adv[t] = (double)(t % 3) - 1;
        }
        cr_correction(&unbounded, &rows, b.old, b.infer, b.mask, NULL, NULL, weight, keep);
        run_rows(&c, &b, weight, 0, N, &got);
        assert_true(isfinite(got.metrics.total_loss) && isfinite(got.metrics.pg_loss) &&
                    isfinite(got.metrics.ratio_sum));
        for (size_t t = 0; t < T; t++)
            assert_true(isfinite(got.grad[t]) && isfinite(got.grad_entropy[t]));
    }
}

/* ---- value loss ---- */

/* The loss of samples first .. end - 1 of a mini-batch with `all` samples that have a token. */
static double value_loss(const batch *b, double clip, size_t first, size_t end, double all)
{
    const double *v = b->lp, *old = b->old, *returns = b->ref, *mask = b->final;
    double sum = 0;

    for (size_t i = first; i < end; i++) {
        double row = 0, k = row_count(mask, i);
        for (size_t t = start[i]; t < start[i + 1]; t++) {
            double a = pow(v[t] - returns[t], 2),
                   c = pow(between(old[t] - clip, v[t], old[t] + clip) - returns[t], 2);
            row += mask[t] * (clip > 0 && c > a ? c : a);
        }
        sum += k > 0 ? row / (k + 1e-8) : 0;
    }
    return 0.5 * sum / all;
}

/* Values lp, old values old, returns ref. */
static cr_value_metrics run_value_loss(const batch *b, double clip, size_t first, size_t end,
                                       double all, double *grad)
{
    size_t own[N + 1];
    double terms[T], sum = 0;
    cr_value_args a = {.rows = {end - first, own},
                       .values = b->lp + start[first],
                       .returns = b->ref + start[first],
                       .mask = b->final + start[first],
                       .old_values = b->old + start[first],
                       .value_clip = clip,
                       .num_samples = all,
                       .grad_values = grad + start[first],
                       .terms = terms};

    for (size_t i = first; i <= end; i++)
        own[i - first] = start[i] - start[first];
    cr_value_loss(&a);
    for (size_t t = 0; t < own[end - first]; t++)
        sum += terms[t];
    check_near(sum, a.metrics.loss, 1e-13);
    return a.metrics;
}

/* Sample means that the metrics say. */
static void check_value_means(const batch *b, double clip, double all, const cr_value_metrics *m)
{
    double clipped = 0, old = 0, value = 0, error = 0;

    for (size_t i = 0; i < N; i++) {
        double num = row_count(b->final, i);
        for (size_t t = start[i]; t < start[i + 1] && num > 0; t++) {
            double w = b->final[t] / num / all;
            clipped += w * (clip > 0 && fabs(between(b->old[t] - clip, b->lp[t], b->old[t] + clip) -
                                             b->ref[t]) > fabs(b->lp[t] - b->ref[t]));
            old += w * b->old[t];
            value += w * b->lp[t];
            error += w * pow(b->lp[t] - b->ref[t], 2);
        }
    }
    check_near(m->clipfrac, clipped, 1e-8); /* the epsilon of a masked mean */
    check_near(m->old_value, old, 1e-7);
    check_near(m->value, value, 1e-7);
    check_near(m->error, error, 1e-6);
}

static void value_losses(void **state)
{
    static const double clips[] = {0, 0.05, 0.5};
    const double h = 1e-5;
    batch b;

    (void)state;
    for (size_t k = 0; k < 9; k++) {
        double clip = clips[k % 3], grad[T], parts[T], all = 0;
        cr_value_metrics m, low, high;
        make_batch(&b, k);
        for (size_t i = 0; i < N; i++)
            all += row_count(b.final, i) > 0;
        m = run_value_loss(&b, clip, 0, N, all, grad);
        check_near(m.loss, value_loss(&b, clip, 0, N, all), 1e-14);
        check_value_means(&b, clip, all, &m);
        for (size_t t = 0; t < T; t++) {
            double v = b.lp[t], up, down;
            b.lp[t] = v + h;
            up = value_loss(&b, clip, 0, N, all);
            b.lp[t] = v - h;
            down = value_loss(&b, clip, 0, N, all);
            b.lp[t] = v;
            check_near(grad[t], (up - down) / (2 * h), 2e-10);
        }
        low = run_value_loss(&b, clip, 0, N / 2, all, parts);
        high = run_value_loss(&b, clip, N / 2, N, all, parts);
        check_near(low.loss + high.loss, m.loss, 1e-14);
        check_near(low.clipfrac + high.clipfrac, m.clipfrac, 1e-14);
        assert_memory_equal(parts, grad, sizeof grad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients),
        cmocka_unit_test(clamps_have_no_gradient),
        cmocka_unit_test(on_policy),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(sum_norm_in_roll),
        cmocka_unit_test(outside_the_mask),
        cmocka_unit_test(tokens_that_are_cut),
        cmocka_unit_test(sample_weights),
        cmocka_unit_test(correction),
        cmocka_unit_test(extremes_are_finite),
        cmocka_unit_test(value_losses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
