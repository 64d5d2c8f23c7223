/* learn_metrics.c -- metrics of a step under ROLL's names (see assemble_impl.h). */
#include "pipelines/assemble_impl.h"
#include "reports/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Samples first .. end-1: of all domains, or of one, whose name then stands before its metrics. */
typedef struct scope {
    const cr_learning *l;
    const cri_learn_batch *b;
    size_t first, end;
    const char *domain; /* NULL: all */
    cr_metrics *m;
    double *x; /* [tokens or samples of the scope]: values that are collected */
    size_t num;
} scope;

static void put(const scope *s, double value, const char *name)
{
    cr_metrics_set(s->m, value, "%s%s%s", s->domain ? s->domain : "", s->domain ? "/" : "", name);
}

/* NAME/mean, /max, /min of what was collected; nothing if that is nothing. Begins anew. */
static void put_summary(scope *s, const char *name)
{
    char whole[160];

    snprintf(whole, sizeof whole, "%s%s%s", s->domain ? s->domain : "", s->domain ? "/" : "", name);
    cr_metrics_set_summary(s->m, whole, s->x, s->num);
    s->num = 0;
}

/* The same, and one more: "diff" (max - min) or "std" (of a sample; 0 for a single value). */
static void put_summary_and(scope *s, const char *name, const char *more)
{
    double sum = 0, squares = 0, min = INFINITY, max = -INFINITY, mean;
    char whole[160];

    if (s->num == 0) return;
    for (size_t i = 0; i < s->num; i++) {
        sum += s->x[i];
        min = fmin(min, s->x[i]);
        max = fmax(max, s->x[i]);
    }
    mean = sum / (double)s->num;
    for (size_t i = 0; i < s->num; i++)
        squares += (s->x[i] - mean) * (s->x[i] - mean);
    snprintf(whole, sizeof whole, "%s/%s", name, more);
    put(s,
        strcmp(more, "diff") == 0 ? max - min
        : s->num > 1              ? sqrt(squares / (double)(s->num - 1))
                                  : 0,
        whole);
    put_summary(s, name);
}

static const cr_sample *sample_of(const scope *s, size_t i)
{
    return &s->b->r->samples[i];
}

static double longest_response(const scope *s)
{
    return (double)(s->l->config->sequence_length - s->l->config->prompt_length);
}

/* ---- lengths ---- */

static void put_lengths(scope *s)
{
    double cut = 0;

    for (size_t i = s->first; i < s->end; i++)
        s->x[s->num++] = (double)s->b->data->rows[sample_of(s, i)->row].num_ids;
    put_summary(s, "token/prompt_length");
    for (size_t i = s->first; i < s->end; i++) {
        s->x[s->num++] = (double)sample_of(s, i)->num_ids;
        cut += (double)sample_of(s, i)->num_ids >= longest_response(s);
    }
    put_summary_and(s, "token/response_length", "diff");
    put(s, cut / (double)(s->end - s->first), "token/total_response_length/clip");
    for (size_t i = s->first; i < s->end; i++)
        s->x[s->num++] = (double)s->b->data->rows[sample_of(s, i)->row].num_ids +
                         (double)sample_of(s, i)->num_ids;
    put_summary_and(s, "token/total_length", "diff");
}

/* Of samples with that score: lengths of those that ended by themselves, and how many did not. */
static void put_lengths_of(scope *s, double score, const char *name)
{
    char whole[80];
    double cut = 0, num = 0;

    for (size_t i = s->first; i < s->end; i++) {
        const cr_sample *x = sample_of(s, i);
        if (!cr_sample_has_verdict(x) || fabs(x->score - score) > 0) continue;
        num++;
        if ((double)x->num_ids >= longest_response(s))
            cut++;
        else
            s->x[s->num++] = (double)x->num_ids;
    }
    snprintf(whole, sizeof whole, "%s/clip", name);
    if (num > 0) put(s, cut / num, whole);
    put_summary(s, name);
}

/* ---- scores and advantages ---- */

/* Over samples with a verdict. */
static void put_scores(scope *s)
{
    double right = 0, wrong = 0, judged = 0;

    for (size_t i = s->first; i < s->end; i++) {
        if (!cr_sample_has_verdict(sample_of(s, i))) continue;
        s->x[s->num++] = sample_of(s, i)->score;
        right += sample_of(s, i)->score == 1;
        wrong += sample_of(s, i)->score == 0;
        judged++;
    }
    put_summary(s, "critic/score");
    for (size_t i = s->first; i < s->end; i++)
        if (cr_sample_has_verdict(sample_of(s, i)))
            s->x[s->num++] = s->b->batch.of[CR_COLUMN_REWARDS][i];
    put_summary(s, "critic/rewards");
    for (size_t i = s->first; i < s->end; i++)
        if (cr_sample_has_verdict(sample_of(s, i))) s->x[s->num++] = sample_of(s, i)->reward;
    put_summary(s, "critic/raw_rewards");
    if (judged == 0) return;
    put(s, right / judged, "critic/correct/mean");
    put(s, right / judged, "critic/score_distribution/correct_samples_ratio");
    put(s, wrong / judged, "critic/score_distribution/incorrect_samples_ratio");
}

/* Over tokens that the loss uses, of all samples or of those with one score. */
static void collect_tokens(scope *s, const double *values, const double *score)
{
    for (size_t i = s->first; i < s->end; i++) {
        const cr_sample *x = sample_of(s, i);
        if (score && (!cr_sample_has_verdict(x) || fabs(x->score - *score) > 0)) continue;
        for (size_t t = s->b->batch.start[i]; t < s->b->batch.start[i + 1]; t++)
            if (s->b->batch.of[CR_COLUMN_FINAL][t] > 0) s->x[s->num++] = values[t];
    }
}

static void put_advantages(scope *s)
{
    const struct {
        const char *name;
        const double *values;
    } arrays[] = {{"advantages", s->b->batch.of[CR_COLUMN_ADVANTAGES]},
                  {"raw_advantages", s->b->batch.of[CR_COLUMN_RAW_ADVANTAGES]},
                  {"returns", s->b->batch.of[CR_COLUMN_RETURNS]},
                  {"values", s->b->batch.of[CR_COLUMN_VALUES]}};
    static const struct {
        const char *name;
        double score;
    } kinds[] = {{"right", 1}, {"error", 0}};
    char name[80];

    for (size_t k = 0; k < CR_COUNT(arrays) && arrays[k].values; k++) {
        collect_tokens(s, arrays[k].values, NULL);
        snprintf(name, sizeof name, "critic/%s", arrays[k].name);
        put_summary(s, name);
        for (size_t j = 0; k < 2 && j < CR_COUNT(kinds); j++) {
            collect_tokens(s, arrays[k].values, &kinds[j].score);
            snprintf(name, sizeof name, "critic/%s_response/%s", kinds[j].name, arrays[k].name);
            put_summary_and(s, name, "std");
        }
    }
}

/* ---- groups ---- */

/* Groups with a verdict, by what their verdicts say. */
static void put_groups(scope *s)
{
    double all = 0, none = 0;
    size_t g = s->b->r->group_size;

    if (g < 2) return;
    for (size_t first = s->first; first < s->end; first += g) {
        double min = INFINITY, max = 0;
        for (size_t i = first; i < first + g; i++) {
            min = fmin(min, (double)sample_of(s, i)->num_ids);
            max = fmax(max, (double)sample_of(s, i)->num_ids);
        }
        s->x[s->num++] = max - min;
    }
    put_summary(s, "group/response_length_diff");
    for (size_t first = s->first; first < s->end; first += g) {
        double right = 0, judged = 0;
        for (size_t i = first; i < first + g; i++) {
            judged += cr_sample_has_verdict(sample_of(s, i));
            right += cr_sample_has_verdict(sample_of(s, i)) && sample_of(s, i)->score == 1;
        }
        if (judged == 0) continue;
        all += right == judged;
        none += right == 0;
        s->x[s->num++] = right / judged;
    }
    if (s->num == 0) return;
    put(s, all / (double)s->num, "group/all_correct_groups_ratio");
    put(s, none / (double)s->num, "group/all_incorrect_groups_ratio");
    put(s, 1 - (all + none) / (double)s->num, "group/mixed_groups_ratio");
    put_summary_and(s, "group/correct_ratio", "std");
}

/* Samples that the loss uses at least a token of. */
static void put_used(const scope *s)
{
    double num = 0, total = (double)(s->end - s->first);

    for (size_t i = s->first; i < s->end; i++) {
        size_t t = s->b->batch.start[i];
        while (t < s->b->batch.start[i + 1] && !(s->b->batch.of[CR_COLUMN_FINAL][t] > 0))
            t++;
        num += t < s->b->batch.start[i + 1];
    }
    put(s, num, s->domain ? "actor/samples_used" : "actor/valid_samples");
    put(s, total, s->domain ? "actor/samples_total" : "actor/total_samples");
    if (!s->domain) put(s, num / total, "actor/valid_sample_ratio");
}

void cri_sample_metrics(const cr_learning *l, const cri_learn_batch *b, size_t first, size_t end,
                        const char *domain, cr_metrics *m)
{
    scope s = {.l = l, .b = b, .first = first, .end = end, .domain = domain, .m = m};

    if (first == end) return;
    s.x = CR_NEW_ARRAY(double, b->batch.start[end] - b->batch.start[first] + end - first);
    put_lengths(&s);
    put_lengths_of(&s, 1, "token/right_response_length");
    put_lengths_of(&s, 0, "token/error_response_length");
    put_scores(&s);
    put_advantages(&s);
    put_groups(&s);
    put_used(&s);
    cr_free(s.x);
}

/* Tokens of the train ranks' batches: as they were distributed, and cut in the order of the samples. */
void cri_balance_metrics(const cri_learn_batch *b, const int32_t *rank, int num_dp, cr_metrics *m)
{
    double *actual = CR_NEW_ARRAY(double, 2 * num_dp), *cut = actual + num_dp, sum = 0;
    double low[2] = {INFINITY, INFINITY}, high[2] = {0, 0};
    size_t n = b->r->num_samples;

    for (size_t i = 0; i < n; i++) {
        double tokens = (double)b->batch.samples[i].num_ids;
        actual[rank[i]] += tokens;
        cut[i * (size_t)num_dp / n] += tokens;
        sum += tokens;
    }
    for (int r = 0; r < 2 * num_dp; r++) {
        low[r / num_dp] = fmin(low[r / num_dp], actual[r]);
        high[r / num_dp] = fmax(high[r / num_dp], actual[r]);
    }
    cr_metrics_set(m, low[1], "global_seqlen/actor_train/min");
    cr_metrics_set(m, high[1], "global_seqlen/actor_train/max");
    cr_metrics_set(m, high[1] - low[1], "global_seqlen/actor_train/minmax_diff");
    cr_metrics_set(m, low[0], "global_seqlen/actor_train/balanced_min");
    cr_metrics_set(m, high[0], "global_seqlen/actor_train/balanced_max");
    cr_metrics_set(m, sum / num_dp, "global_seqlen/actor_train/mean");
    cr_free(actual);
}

/* ---- of one pg_variant ---- */

/* tis, cispo: what the variant makes of ratios. */
static void factor_metrics(const cr_loss_metrics *x, const char *name, double updates,
                           cr_metrics *m)
{
    cr_metrics_set(m, x->clip_low / updates, "actor/%s_lower_clipfrac", name);
    cr_metrics_set(m, x->clip_high / updates, "actor/%s_upper_clipfrac", name);
    cr_metrics_set(m, (x->clip_low + x->clip_high) / updates, "actor/%s_total_clipfrac", name);
    cr_metrics_set(m, x->factor_sum / x->num_tokens, "actor/%s_clipped_ratio_mean", name);
}

static void topr_metrics(const cri_learn_batch *b, const cr_loss_metrics *x, double updates,
                         cr_metrics *m)
{
    double num[2] = {0};

    for (size_t i = 0; i < b->r->num_samples; i++) {
        size_t t = b->batch.start[i];
        while (t < b->batch.start[i + 1] && !(b->batch.of[CR_COLUMN_FINAL][t] > 0))
            t++;
        if (t < b->batch.start[i + 1]) num[b->r->samples[i].score > 0]++;
    }
    cr_metrics_set(m, num[1], "actor/topr_positive_samples");
    cr_metrics_set(m, num[0], "actor/topr_negative_samples");
    cr_metrics_set(m, num[1] / (num[0] + num[1]), "actor/topr_positive_ratio");
    cr_metrics_set(m, num[0] / (num[0] + num[1]), "actor/topr_negative_ratio");
    cr_metrics_set(m, x->clip_high / updates, "actor/topr_negative_upper_clipfrac");
}

static void kimi15_metrics(const cr_loss_metrics *x, double tau, cr_metrics *m)
{
    double mean = x->log_ratio_sum / x->num_tokens, squares = x->log_ratio_squares / x->num_tokens,
           policy = x->policy_abs / x->num_tokens, kl = 0.5 * tau * squares;

    cr_metrics_set(m, mean, "actor/kimi15_log_ratio_mean");
    cr_metrics_set(m, sqrt(fmax(squares - mean * mean, 0)), "actor/kimi15_log_ratio_std");
    cr_metrics_set(m, x->log_ratio_abs / x->num_tokens, "actor/kimi15_log_ratio_abs_mean");
    cr_metrics_set(m, policy, "actor/kimi15_policy_grad_magnitude");
    cr_metrics_set(m, kl, "actor/kimi15_kl_reg_magnitude");
    cr_metrics_set(m, kl / (policy + 1e-8), "actor/kimi15_reg_ratio");
}

static void variant_metrics(const cr_learning *l, const cri_learn_batch *b,
                            const cr_loss_metrics *x, double updates, cr_metrics *m)
{
    const cr_loss_config *c = &l->config->algorithm.loss;

    if (x->num_tokens <= 0) return;
    if (c->pg_variant == CR_PG_TIS || c->pg_variant == CR_PG_CISPO)
        factor_metrics(x, cr_variant_names[c->pg_variant], updates, m);
    if (c->pg_variant == CR_PG_TOPR) topr_metrics(b, x, updates, m);
    if (c->pg_variant == CR_PG_KIMI15) kimi15_metrics(x, c->kimi15_tau, m);
    if (c->pg_variant != CR_PG_CISPO || !c->cispo_use_unified_mask) return;
    cr_metrics_set(m, x->masked_high / x->num_tokens, "actor/cispo_masked_positive_tokens");
    cr_metrics_set(m, x->masked_low / x->num_tokens, "actor/cispo_masked_negative_tokens");
    cr_metrics_set(m, 1 - (x->masked_low + x->masked_high) / x->num_tokens,
                   "actor/cispo_kept_tokens");
}

void cri_train_metrics(const cr_learning *l, const cri_learn_batch *b, const cr_train_sums *s,
                       cr_metrics *m)
{
    const cr_loss_metrics *x = &s->loss;
    double updates = (double)(s->num_updates > 0 ? s->num_updates : 1),
           tokens = x->num_tokens > 0 ? x->num_tokens : 1, diff = 0;

    cr_metrics_set(
        m, cr_learning_rate(&l->actor.schedule, l->actor.updates > 0 ? l->actor.updates - 1 : 0),
        "actor/lr");
    cr_metrics_set(m, updates, "actor/backward_steps");
    cr_metrics_set(m, x->pg_loss / updates, "actor/pg_loss");
    cr_metrics_set(m, x->weighted_pg_loss / updates, "actor/weighted_pg_loss");
    if (b->batch.of[CR_COLUMN_REF]) cr_metrics_set(m, x->kl_loss / updates, "actor/kl_loss");
    cr_metrics_set(m, x->total_loss / updates, "actor/total_loss");
    cr_metrics_set(m, x->approxkl / updates, "actor/approxkl");
    cr_metrics_set(m, x->policykl / updates, "actor/policykl");
    cr_metrics_set(m, x->ratio_sum / tokens, "actor/ratio_mean");
    cr_metrics_set(m, x->ratio_max, "actor/ratio_max");
    cr_metrics_set(m, x->ratio_min, "actor/ratio_min");
    cr_metrics_set(m, (x->clip_low + x->clip_high) / updates, "actor/clipfrac");
    cr_metrics_set(m, x->clip_low / updates, "actor/ppo_ratio_low_clipfrac");
    cr_metrics_set(m, x->clip_high / updates, "actor/ppo_ratio_high_clipfrac");
    variant_metrics(l, b, x, updates, m);
    cr_metrics_set(m, s->grad_norm / (double)(s->num_updates - s->num_skipped),
                   "actor_train/grad_norm");
    cr_metrics_set(m, (double)s->num_skipped, "actor_train/skipped_updates");
    /* before any update of this rollout: all rows if they were computed, else those of its first update */
    if (b->old_from == CR_OLD_COMPUTED)
        for (size_t t = 0; t < b->batch.num_tokens; t++)
            diff =
                fmax(diff, fabs(b->batch.of[CR_COLUMN_OLD][t] - b->batch.of[CR_COLUMN_INFER][t]));
    else
        cr_metrics_set(m, s->entropy_sum / fmax((double)s->num_compared, 1), "critic/entropy/mean");
    cr_metrics_set(m, fmax(diff, x->infer_diff_max), "actor/train_infer_diff_max");
    cr_metrics_set(
        m,
        (double)(b->old_from == CR_OLD_COMPUTED ? (int64_t)b->batch.num_tokens : s->num_compared),
        "actor/train_infer_compared_tokens");
    if (b->old_from == CR_OLD_OF_SAMPLER)
        cr_metrics_set(m, s->num_different > 0, "actor/old_log_probs_recomputed");
}
