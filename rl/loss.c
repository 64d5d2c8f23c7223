/* loss.c -- correction, policy loss, value loss (see loss.h). */
#include "rl/loss.h"

#include <math.h>

const char *const cr_grain_names[] = {"token", "geometric", "sequence", "segment", NULL};
const char *const cr_agg_names[] = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                    "seq-mean-token-sum-norm", NULL};
const char *const cr_variant_names[] = {"ppo",    "vanilla", "tis",  "topr", "cispo",
                                        "kimi15", "dppo_tv", "sapo", NULL};

/* ---- train / infer correction ---- */

/* One quantity of a row in the four grains: token as is, mean, sum, mean of each run of 1s up to where something was
 * observed. */
static void grains(const double *x, const double *m, const bool *is_after, size_t n,
                   double *out[CR_NUM_GRAINS], double (*finish)(double))
{
    double sum = 0, count = 0;

    for (size_t t = 0; t < n; t++)
        sum += x[t] * m[t], count += m[t];
    for (size_t t = 0; t < n; t++) {
        out[CR_GRAIN_TOKEN][t] = finish(x[t]);
        out[CR_GRAIN_GEOMETRIC][t] = finish(count > 0 ? sum / (count + 1e-8) : 0);
        out[CR_GRAIN_SEQUENCE][t] = finish(sum);
        out[CR_GRAIN_SEGMENT][t] = finish(0);
    }
    for (size_t t = 0, end; t < n; t = end) {
        double run = 0;
        for (end = t; end < n && m[end] != 0 && (end == t || !is_after || !is_after[end]); end++)
            run += x[end];
        for (size_t k = t; k < end; k++)
            out[CR_GRAIN_SEGMENT][k] = finish(run / ((double)(end - t) + 1e-8));
        if (end == t) end++;
    }
}

static double same(double x)
{
    return x;
}

/* Of a log ratio: at most 1e30, which a float holds, so that 0 times it is 0. */
static double ratio_of(double log_ratio)
{
    return fmin(exp(log_ratio), 1e30);
}

void cr_correction(const cr_correction_config *c, const cr_ragged *rows,
                   const double *old_log_probs, const double *infer_log_probs, const double *mask,
                   double *const *ratio, double *const *diff, double *weight, double *keep)
{
    size_t longest = 0;
    double *work, *x;

    for (size_t i = 0; i < rows->num_samples; i++)
        if (rows->start[i + 1] - rows->start[i] > longest)
            longest = rows->start[i + 1] - rows->start[i];
    work = CR_NEW_ARRAY(double, (2 * CR_NUM_GRAINS + 1) * longest);
    x = work + 2 * CR_NUM_GRAINS * longest;
    for (size_t i = 0; i < rows->num_samples; i++) {
        size_t first = rows->start[i], n = rows->start[i + 1] - first;
        const bool *is_after = rows->is_after ? rows->is_after + first : NULL;
        double *r[CR_NUM_GRAINS], *d[CR_NUM_GRAINS];
        for (size_t g = 0; g < CR_NUM_GRAINS; g++)
            r[g] = work + g * longest, d[g] = work + (CR_NUM_GRAINS + g) * longest;
        for (size_t t = 0; t < n; t++)
            x[t] = old_log_probs[first + t] - infer_log_probs[first + t];
        grains(x, mask + first, is_after, n, r, ratio_of);
        for (size_t t = 0; t < n; t++)
            x[t] = exp(old_log_probs[first + t]) - exp(infer_log_probs[first + t]);
        grains(x, mask + first, is_after, n, d, same);
        for (size_t t = 0; t < n; t++) {
            double w = 1, k = 1;
            if (c->has_weight)
                w = c->upper_bound > 0 ? fmin(r[c->weight_type][t], c->upper_bound)
                                       : r[c->weight_type][t];
            for (size_t f = 0; f < c->num_filters; f++) {
                const struct cr_correction_filter *q = &c->filters[f];
                if (!q->is_enabled) continue;
                if (q->is_ratio &&
                    !(r[q->agg_type][t] >= q->ratio_low && r[q->agg_type][t] <= q->ratio_high))
                    k = 0;
                if (q->is_diff &&
                    !(d[q->agg_type][t] >= q->diff_low && d[q->agg_type][t] <= q->diff_high))
                    k = 0;
            }
            weight[first + t] = w;
            keep[first + t] = k;
            for (size_t g = 0; g < CR_NUM_GRAINS && ratio; g++)
                ratio[g][first + t] = r[g][t], diff[g][first + t] = d[g][t];
        }
    }
    cr_free(work);
}

/* ---- the policy loss ---- */

void cr_sample_weights(size_t num, const double *difficulty, const double *lengths,
                       const double *is_trained, double *out)
{
    double min = HUGE_VAL, largest = -HUGE_VAL, sum = 0, count = 0;

    for (size_t i = 0; i < num && lengths; i++)
        if (is_trained[i] != 0) {
            min = fmin(min, lengths[i]);
            largest = fmax(largest, lengths[i]);
        }
    for (size_t i = 0; i < num; i++) {
        out[i] = 0;
        if (is_trained[i] == 0) continue;
        out[i] = difficulty ? 0.5 + 1.5 * fmin(fmax(difficulty[i], 0), 1) : 1;
        if (lengths) out[i] *= 1.5 - (lengths[i] - min) / (largest - min + 1e-8);
        sum += out[i];
        count++;
    }
    for (size_t i = 0; i < num; i++)
        out[i] *= count / (sum + 1e-8);
}

void cr_count_masks(const cr_ragged *rows, const double *mask, double *num_tokens,
                    double *num_samples)
{
    for (size_t i = 0; i < rows->num_samples; i++) {
        double count = 0;
        for (size_t t = rows->start[i]; t < rows->start[i + 1]; t++)
            count += mask[t];
        *num_tokens += count;
        *num_samples += count > 0;
    }
}

static double or_one(double x)
{
    return x > 0 ? x : 1;
}

/* What one unmasked token of row i counts in the mean: the weight of its loss. */
static double coefficient(cr_agg mode, double row_count, double tokens, double samples,
                          double width)
{
    switch (mode) {
    case CR_AGG_TOKEN_MEAN:
        return 1 / or_one(tokens);
    case CR_AGG_SEQ_MEAN_TOKEN_SUM:
        return 1 / (or_one(samples) + 1e-8);
    case CR_AGG_SEQ_MEAN_TOKEN_MEAN:
        return 1 / (row_count + 1e-8) / (or_one(samples) + 1e-8);
    case CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM:
        return 1 / or_one(width) / or_one(samples);
    case CR_NUM_AGGS:
        break;
    }
    return 0;
}

typedef struct token_loss {
    double loss, grad; /* d loss / d log_prob; for a sequence ratio d loss / d log ratio */
    double factor;     /* sg(..) of the variants that have one, else 0 */
    bool is_masked;    /* the variant leaves the token out */
} token_loss;

static double clamp(double x, double low, double high)
{
    return fmin(fmax(x, low), high);
}

/* What the loss of a token reads. */
typedef struct token {
    double log_prob, old, rho, A, score; /* rho: exp(log_prob - old), or of the whole sequence */
} token;

static double clip_low_of(const cr_loss_config *c)
{
    return 1 - (c->use_pg_clip_range ? c->pg_clip_low : c->pg_clip);
}

static double clip_high_of(const cr_loss_config *c)
{
    return 1 + (c->use_pg_clip_range ? c->pg_clip_high : c->pg_clip);
}

static token_loss ppo(const cr_loss_config *c, const token *x)
{
    double A = x->A, clipped = clamp(x->rho, clip_low_of(c), clip_high_of(c));
    token_loss t = {-fmin(x->rho * A, clipped * A), 0};

    if (x->rho * A <= clipped * A) t.grad = -A * x->rho;
    if (c->dual_clip_loss && A < 0) {
        double bound = -(1 + 2 * c->pg_clip) * A;
        if (t.loss > bound) t = (token_loss){bound, 0};
    }
    return t;
}

static token_loss sapo(const cr_loss_config *c, const token *x)
{
    double tau = x->A > 0 ? c->sapo_temperature_pos : c->sapo_temperature_neg,
           gate = 1 / (1 + exp(-tau * (x->rho - 1)));

    return (token_loss){-4 / tau * gate * x->A, -4 * gate * (1 - gate) * x->rho * x->A};
}

/* Where the variant cuts the token: -1 below, 1 above, 0 not. */
static int side(const cr_loss_config *c, const token *x)
{
    double low = -HUGE_VAL, high = HUGE_VAL, of = x->rho;

    switch (c->pg_variant) {
    case CR_PG_PPO:
        low = clip_low_of(c);
        high = clip_high_of(c);
        break;
    case CR_PG_TIS:
        low = c->tis_lower_bound;
        high = c->tis_upper_bound;
        break;
    case CR_PG_TOPR:
        if (!(x->score > 0)) high = 1;
        break;
    case CR_PG_CISPO:
        low = 1 - c->cispo_epsilon_low;
        high = 1 + c->cispo_epsilon_high;
        break;
    case CR_PG_DPPO_TV:
        of = exp(x->log_prob) - exp(x->old);
        if (x->A > 0)
            high = c->dppo_mask_high;
        else
            low = -c->dppo_mask_low;
        break;
    case CR_PG_VANILLA:
    case CR_PG_KIMI15:
    case CR_PG_SAPO:
    case CR_NUM_VARIANTS:
        break;
    }
    return (of > high) - (of < low);
}

static token_loss loss_of(const cr_loss_config *c, const token *x, int cut)
{
    double d = x->log_prob - x->old, factor = 1;

    switch (c->pg_variant) {
    case CR_PG_PPO:
        return ppo(c, x);
    case CR_PG_SAPO:
        return sapo(c, x);
    case CR_PG_KIMI15:
        return (token_loss){-x->A * x->log_prob + 0.5 * c->kimi15_tau * d * d,
                            -x->A + c->kimi15_tau * d};
    case CR_PG_TIS:
        factor = clamp(x->rho, c->tis_lower_bound, c->tis_upper_bound);
        break;
    case CR_PG_TOPR:
        factor =
            x->score > 0 ? c->topr_positive_weight : c->topr_negative_weight * clamp(x->rho, 0, 1);
        break;
    case CR_PG_CISPO:
        factor = clamp(x->rho, 1 - c->cispo_epsilon_low, 1 + c->cispo_epsilon_high);
        if (c->cispo_use_unified_mask && cut * x->A > 0) return (token_loss){0, 0, factor, true};
        break;
    case CR_PG_DPPO_TV:
        if (cut) return (token_loss){.is_masked = true};
        factor = fmin(x->rho, c->dppo_clip_ratio_c);
        break;
    case CR_PG_VANILLA:
    case CR_NUM_VARIANTS:
        break;
    }
    return (token_loss){-factor * x->A * x->log_prob, -factor * x->A, factor, false};
}

static void take_metrics(cr_loss_args *a, size_t t, double rho, int cut, const token_loss *l)
{
    const double *log_probs = a->of[CR_COLUMN_LOG_PROBS], *infer = a->of[CR_COLUMN_INFER];
    cr_loss_metrics *m = &a->metrics;
    double d = log_probs[t] - a->of[CR_COLUMN_OLD][t];

    if (infer && a->of[CR_COLUMN_MASK][t] != 0)
        m->infer_diff_max = fmax(m->infer_diff_max, fabs(log_probs[t] - infer[t]));
    if (a->of[CR_COLUMN_FINAL][t] == 0) return;
    m->ratio_max = m->num_tokens > 0 ? fmax(m->ratio_max, rho) : rho;
    m->ratio_min = m->num_tokens > 0 ? fmin(m->ratio_min, rho) : rho;
    m->ratio_sum += rho;
    m->num_tokens++;
    m->clip_low += (cut < 0) / or_one(a->all.final_tokens);
    m->clip_high += (cut > 0) / or_one(a->all.final_tokens);
    m->factor_sum += l->factor;
    m->masked_low += cut < 0 && l->is_masked;
    m->masked_high += cut > 0 && l->is_masked;
    m->log_ratio_sum += d;
    m->log_ratio_abs += fabs(d);
    m->log_ratio_squares += d * d;
    m->policy_abs += fabs(a->of[CR_COLUMN_ADVANTAGES][t] * d);
}

/* k3 of a token, r: the reference's log-prob less the policy's; grad: of the loss. */
static double kl_of(const cr_loss_config *c, double r, double weight, double *grad)
{
    double k3 = exp(r) - r - 1;

    *grad =
        c->use_kl_loss && k3 < 10 ? c->rl_loss_coef * c->kl_loss_coef * weight * (1 - exp(r)) : 0;
    return weight * clamp(k3, -10, 10);
}

/* Of one token: the weight of its loss, that loss, kl with its own weight, the weight of its entropy. */
typedef struct term {
    double weight, loss, kl, kl_grad, entropy;
    int cut;
} term;

static void take_terms(const cr_loss_config *c, const cr_loss_args *a, size_t t, const term *x)
{
    const double *entropy = a->of[CR_COLUMN_ENTROPY];

    a->terms->weight[t] = x->weight;
    a->terms->pg[t] = x->weight != 0 ? c->rl_loss_coef * x->weight * x->loss : 0;
    a->terms->kl[t] = c->use_kl_loss ? c->rl_loss_coef * c->kl_loss_coef * x->kl : 0;
    a->terms->grad_kl[t] = x->kl_grad;
    a->terms->entropy[t] = entropy ? -c->entropy_loss_coef * x->entropy * entropy[t] : 0;
    a->terms->cut[t] = x->cut;
}

static void row_loss(const cr_loss_config *c, cr_loss_args *a, size_t i)
{
    const double *log_probs = a->of[CR_COLUMN_LOG_PROBS], *old = a->of[CR_COLUMN_OLD],
                 *ref = a->of[CR_COLUMN_REF], *entropy = a->of[CR_COLUMN_ENTROPY],
                 *advantages = a->of[CR_COLUMN_ADVANTAGES], *mask = a->of[CR_COLUMN_MASK],
                 *final = a->of[CR_COLUMN_FINAL], *is_weight = a->of[CR_COLUMN_IS_WEIGHT],
                 *weights = a->of[CR_COLUMN_WEIGHTS], *scores = a->of[CR_COLUMN_SCORES],
                 *entropy_mask =
                     a->of[CR_COLUMN_ENTROPY_MASK] ? a->of[CR_COLUMN_ENTROPY_MASK] : mask;
    size_t first = a->rows.start[i], end = a->rows.start[i + 1];
    double w = weights ? weights[i] : 1, score = scores ? scores[i] : 0, count = 0, total = 0,
           entropy_total = 0, log_ratio = 0, sequence_grad = 0;
    double cf, cm, ce;
    bool is_sequence = c->pg_variant == CR_PG_PPO && c->is_sequence_ratio;
    cr_loss_metrics *m = &a->metrics;

    for (size_t t = first; t < end; t++) {
        count += final[t];
        total += mask[t];
        entropy_total += entropy_mask[t];
        log_ratio += (log_probs[t] - old[t]) * final[t];
    }
    log_ratio = count > 0 ? log_ratio / (count + 1e-8) : 0;
    cf = coefficient(c->loss_agg_mode, count, a->all.final_tokens, a->all.final_samples,
                     a->all.width);
    cm = coefficient(c->loss_agg_mode, total, a->all.tokens, a->all.samples, a->all.width);
    ce = a->of[CR_COLUMN_ENTROPY_MASK]
             ? coefficient(c->loss_agg_mode, entropy_total, a->all.entropy_tokens,
                           a->all.entropy_samples, a->all.width)
             : cm;
    for (size_t t = first; t < end; t++) {
        double F = final[t], M = mask[t], d = log_probs[t] - old[t],
               rho = ratio_of(is_sequence ? log_ratio : d);
        token x = {log_probs[t], old[t], rho, advantages[t], score};
        int cut = side(c, &x);
        token_loss l = loss_of(c, &x, cut);
        double is = is_weight ? is_weight[t] : 1, g = c->rl_loss_coef * w * cf * F * is * l.grad;
        double kl = 0, kl_grad = 0, at_entropy = ce * entropy_mask[t];
        a->grad_log_probs[t] = is_sequence || F == 0 ? 0 : g;
        if (F != 0) { /* outside the mask anything may stand, and 0 times infinity is no 0 */
            m->pg_loss += cf * F * is * l.loss;
            m->weighted_pg_loss += w * cf * F * is * l.loss;
            if (is_sequence) sequence_grad += g;
        }
        if (ref && F != 0) {
            m->kl_loss += kl = kl_of(c, ref[t] - log_probs[t], cf * F, &kl_grad);
            a->grad_log_probs[t] += kl_grad;
        }
        m->approxkl += cm * M * 0.5 * d * d;
        m->policykl += cm * M * d;
        if (entropy) m->entropy_loss += at_entropy * entropy[t];
        if (a->grad_entropy) a->grad_entropy[t] = -c->entropy_loss_coef * at_entropy;
        if (a->ratio) a->ratio[t] = rho;
        take_metrics(a, t, rho, cut, &l);
        if (a->terms)
            take_terms(c, a, t,
                       &(term){w * cf * F * is, l.loss, kl, kl_grad, at_entropy, F != 0 ? cut : 0});
    }
    for (size_t t = first; t < end && is_sequence; t++) /* through the mean of the log ratio */
        a->grad_log_probs[t] += sequence_grad * final[t] / (count + 1e-8);
}

void cr_policy_loss(const cr_loss_config *c, cr_loss_args *a)
{
    cr_loss_metrics *m = &a->metrics;

    *m = (cr_loss_metrics){0};
    for (size_t i = 0; i < a->rows.num_samples; i++)
        row_loss(c, a, i);
    m->total_loss = c->rl_loss_coef * (m->weighted_pg_loss +
                                       (c->use_kl_loss ? c->kl_loss_coef * m->kl_loss : 0)) -
                    c->entropy_loss_coef * m->entropy_loss;
}

/* ---- value loss ---- */

/* Of one token; the derivative with respect to v. */
static double value_error(const cr_value_args *a, size_t t, double *grad, bool *is_clipped)
{
    double v = a->values[t], e = v - a->returns[t];

    *grad = e;
    *is_clipped = false;
    if (a->value_clip > 0) {
        double c = clamp(v, a->old_values[t] - a->value_clip, a->old_values[t] + a->value_clip),
               f = c - a->returns[t];
        if (f * f > e * e) {
            *is_clipped = true;
            *grad = c == v ? f : 0;
            return 0.5 * f * f;
        }
    }
    return 0.5 * e * e;
}

void cr_value_loss(cr_value_args *a)
{
    cr_value_metrics *m = &a->metrics;

    *m = (cr_value_metrics){0};
    for (size_t i = 0; i < a->rows.num_samples; i++) {
        double count = 0, share;
        for (size_t t = a->rows.start[i]; t < a->rows.start[i + 1]; t++)
            count += a->mask[t];
        share = 1 / ((count + 1e-8) * (a->num_samples > 0 ? a->num_samples : 1));
        for (size_t t = a->rows.start[i]; t < a->rows.start[i + 1]; t++) {
            double w = a->mask[t] * share, grad, e = a->values[t] - a->returns[t];
            bool is_clipped;
            double part = w * value_error(a, t, &grad, &is_clipped);
            m->loss += part;
            if (a->terms) a->terms[t] = part;
            m->clipfrac += w * is_clipped;
            m->value += w * a->values[t];
            m->error += w * e * e;
            if (a->old_values) m->old_value += w * a->old_values[t];
            a->grad_values[t] = w * grad;
        }
    }
}
