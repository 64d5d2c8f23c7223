/* correction.c -- weights and filters against the difference of sampler and trainer, and weights of
 * samples (see assemble_impl.h). Both are of the whole batch, before it is distributed over ranks. */
#include "pipelines/assemble_impl.h"
#include "reports/metrics.h"
#include "rl/loss.h"

#include <math.h>
#include <string.h>

bool cri_has_correction(const cr_config *c)
{
    return c->algorithm.correction.has_weight || c->algorithm.correction.num_filters > 0;
}

double cri_sample_mean(const cri_learn_batch *b, const double *x, const double *mask)
{
    double sum = 0, samples = 0;

    for (size_t i = 0; i < b->r->num_samples; i++) {
        double row = 0, count = 0;
        for (size_t t = b->batch.start[i]; t < b->batch.start[i + 1]; t++) {
            row += mask[t] != 0 ? x[t] : 0;
            count += mask[t];
        }
        if (count > 0) sum += row / count, samples++;
    }
    return samples > 0 ? sum / samples : 0;
}

/* Share of the mask's tokens with low <= x <= high. */
static double share_within(const cri_learn_batch *b, const double *x, const double *mask,
                           double low, double high)
{
    double within = 0, tokens = 0;

    for (size_t t = 0; t < b->batch.num_tokens; t++) {
        within += mask[t] != 0 && x[t] >= low && x[t] <= high;
        tokens += mask[t];
    }
    return tokens > 0 ? within / tokens : 1;
}

/* ROLL's names. Of two filters of one grain the last one is shown. */
static void correction_metrics(const cr_correction_config *c, const cri_learn_batch *b,
                               const double *mask, double *const *ratio, double *const *diff,
                               const double *keep, cr_metrics *m)
{
    const double *share[CR_NUM_GRAINS][2] = {{NULL}};
    double shares[CR_NUM_GRAINS][2];

    for (size_t g = 0; g < CR_NUM_GRAINS; g++) {
        cr_metrics_set(m, cri_sample_mean(b, ratio[g], mask), "actor/train_infer_ratio_%s_mean",
                       cr_grain_names[g]);
        cr_metrics_set(m, cri_sample_mean(b, diff[g], mask), "actor/train_infer_diff_%s_mean",
                       cr_grain_names[g]);
    }
    if (c->has_weight && c->upper_bound > 0)
        cr_metrics_set(m,
                       1 - share_within(b, ratio[c->weight_type], mask, -HUGE_VAL, c->upper_bound),
                       "actor/is_weight_clipfrac");
    for (size_t i = 0; i < c->num_filters; i++) {
        const struct cr_correction_filter *f = &c->filters[i];
        for (int k = 0; k < 2; k++) {
            if (!f->is_enabled || !(k ? f->is_diff : f->is_ratio)) continue;
            share[f->agg_type][k] = &shares[f->agg_type][k];
            shares[f->agg_type][k] =
                share_within(b, (k ? diff : ratio)[f->agg_type], mask,
                             k ? f->diff_low : f->ratio_low, k ? f->diff_high : f->ratio_high);
        }
    }
    for (size_t g = 0; g < CR_NUM_GRAINS; g++)
        for (int k = 0; k < 2; k++)
            if (share[g][k])
                cr_metrics_set(m, *share[g][k], "actor/train_infer_%s_%s_mask_mean",
                               cr_grain_names[g], k ? "diff" : "ratio");
    if (c->num_filters)
        cr_metrics_set(m, share_within(b, keep, mask, 1, 1), "actor/train_infer_final_mask_mean");
}

void cri_correct(const cr_learning *l, cri_learn_batch *b, cr_metrics *m)
{
    const cr_correction_config *c = &l->config->algorithm.correction;
    bool *is_after = cr_sample_batch_after_observed(&b->batch);
    cr_ragged rows = {b->r->num_samples, b->batch.start, is_after};
    size_t n = b->batch.num_tokens;
    double *mask = b->batch.of[CR_COLUMN_MASK], *final = b->batch.of[CR_COLUMN_FINAL];
    double *memory = CR_NEW_ARRAY(double, (2 * CR_NUM_GRAINS + 2) * n + 1), *ratio[CR_NUM_GRAINS],
           *diff[CR_NUM_GRAINS], *weight = memory + 2 * CR_NUM_GRAINS * n, *keep = weight + n;

    for (size_t g = 0; g < CR_NUM_GRAINS; g++) {
        ratio[g] = memory + g * n;
        diff[g] = memory + (CR_NUM_GRAINS + g) * n;
    }
    cr_correction(c, &rows, b->batch.of[CR_COLUMN_OLD], b->batch.of[CR_COLUMN_INFER], mask, ratio,
                  diff, weight, keep);
    correction_metrics(c, b, mask, ratio, diff, keep, m);
    if (c->has_weight)
        memcpy(cr_sample_batch_add(&b->batch, CR_COLUMN_IS_WEIGHT), weight, n * sizeof *weight);
    if (c->num_filters) { /* the entropy bonus is of all tokens */
        memcpy(cr_sample_batch_add(&b->batch, CR_COLUMN_ENTROPY_MASK), mask, n * sizeof *mask);
        for (size_t t = 0; t < n; t++) {
            mask[t] *= keep[t];
            final[t] *= keep[t];
        }
    }
    cr_free(memory);
    cr_free(is_after);
}

/* ---- weights of samples ---- */

/* Of the samples of mini-batch `which`; those that do not train have none. */
static void weigh_mini(const cr_algorithm *k, cri_learn_batch *b, const int32_t *mini,
                       int32_t which)
{
    size_t n = b->r->num_samples, num = 0;
    size_t *sample = CR_NEW_ARRAY(size_t, n);
    double *x = CR_NEW_ARRAY(double, 4 * n), *difficulty = x, *length = x + n,
           *is_trained = x + 2 * n, *weight = x + 3 * n;

    for (size_t i = 0; i < n; i++) {
        if (mini[i] != which) continue;
        difficulty[num] = b->data->rows[b->r->samples[i].row].difficulty;
        for (size_t t = b->batch.start[i]; t < b->batch.start[i + 1]; t++) {
            length[num] += b->batch.of[CR_COLUMN_MASK][t];
            is_trained[num] = is_trained[num] != 0 || b->batch.of[CR_COLUMN_FINAL][t] != 0;
        }
        sample[num++] = i;
    }
    cr_sample_weights(num, k->difficulty_loss_weight ? difficulty : NULL,
                      k->length_loss_weight ? length : NULL, is_trained, weight);
    for (size_t j = 0; j < num; j++)
        b->batch.of[CR_COLUMN_WEIGHTS][sample[j]] = weight[j];
    cr_free(sample);
    cr_free(x);
}

void cri_weigh_samples(const cr_learning *l, cri_learn_batch *b, const int32_t *mini,
                       int64_t num_minis)
{
    const cr_algorithm *k = &l->config->algorithm;

    if (!k->difficulty_loss_weight && !k->length_loss_weight) return;
    cr_sample_batch_add(&b->batch, CR_COLUMN_WEIGHTS);
    for (int64_t which = 0; which < num_minis; which++)
        weigh_mini(k, b, mini, (int32_t)which);
}

void cri_weight_metrics(const cri_learn_batch *b, cr_metrics *m)
{
    const double *weights = b->batch.of[CR_COLUMN_WEIGHTS], *final = b->batch.of[CR_COLUMN_FINAL];
    double *x, trained = 0;
    size_t num = 0;

    if (!weights) return;
    x = CR_NEW_ARRAY(double, b->r->num_samples);
    for (size_t i = 0; i < b->r->num_samples; i++, trained = 0) {
        for (size_t t = b->batch.start[i]; t < b->batch.start[i + 1]; t++)
            trained += final[t];
        if (trained > 0) x[num++] = weights[i];
    }
    for (size_t i = 0; i < num; i++)
        trained += x[i];
    cr_metrics_set(m, num ? trained / (double)num : 1, "actor/sample_weights_mean");
    for (int k = 0; k < 2 && num; k++) {
        double best = x[0];
        for (size_t i = 1; i < num; i++)
            best = k ? fmax(best, x[i]) : fmin(best, x[i]);
        cr_metrics_set(m, best, "actor/sample_weights_%s", k ? "max" : "min");
    }
    cr_free(x);
}
