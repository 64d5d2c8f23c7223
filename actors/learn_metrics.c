/* learn_metrics.c -- metrics of a step under ROLL's names (see assemble_impl.h). */
#include "actors/assemble_impl.h"

#include <math.h>

/* Over tokens that the loss uses. */
static void kept_summary(const cri_learn_batch *b, const char *name, const double *x, cr_metrics *m)
{
    double *kept = CR_NEW_ARRAY(double, b->num_tokens);
    size_t num = 0;

    for (size_t t = 0; t < b->num_tokens; t++)
        if (b->final[t] != 0) kept[num++] = x[t];
    cr_metrics_set_summary(m, name, kept, num);
    cr_free(kept);
}

/* Scores and rewards: over samples with a verdict. */
void cri_token_metrics(const cr_learning *l, const cri_learn_batch *b, cr_metrics *m)
{
    size_t n = b->r->num_samples;
    double *x = CR_NEW_ARRAY(double, 5 * n), *prompt = x, *response = x + n, *total = x + 2 * n,
           *score = x + 3 * n, *reward = x + 4 * n, clip = 0, right = 0, wrong = 0;
    double most = (double)(l->config->sequence_length - l->config->prompt_length);
    size_t judged = 0;

    for (size_t i = 0; i < n; i++) {
        const cr_sample *s = &b->r->samples[i];
        prompt[i] = (double)b->data->rows[s->row].num_ids;
        response[i] = (double)s->num_ids;
        total[i] = prompt[i] + response[i];
        clip += response[i] >= most;
        if (!cr_sample_has_verdict(s)) continue;
        score[judged] = s->score;
        reward[judged++] = b->rewards[i];
        right += s->score == 1;
        wrong += s->score == 0;
    }
    cr_metrics_set_summary(m, "token/prompt_length", prompt, n);
    cr_metrics_set_summary(m, "token/response_length", response, n);
    cr_metrics_set_summary(m, "token/total_length", total, n);
    cr_metrics_set(m, clip / (double)n, "token/total_response_length/clip");
    cr_metrics_set_summary(m, "critic/score", score, judged);
    cr_metrics_set_summary(m, "critic/rewards", reward, judged);
    kept_summary(b, "critic/advantages", b->advantages, m);
    kept_summary(b, "critic/raw_advantages", b->raw, m);
    kept_summary(b, "critic/returns", b->returns, m);
    if (judged) {
        right /= (double)judged;
        wrong /= (double)judged;
        cr_metrics_set(m, right, "critic/correct/mean");
        cr_metrics_set(m, right, "critic/score_distribution/correct_samples_ratio");
        cr_metrics_set(m, wrong, "critic/score_distribution/incorrect_samples_ratio");
    }
    cr_free(x);
}

/* Groups with a verdict, by what their verdicts say. */
void cri_group_metrics(const cri_learn_batch *b, cr_metrics *m)
{
    double all = 0, none = 0, num = 0;
    size_t g = b->r->group_size;

    if (g < 2) return;
    for (size_t first = 0; first < b->r->num_samples; first += g) {
        size_t right = 0, judged = 0;
        for (size_t i = 0; i < g; i++) {
            const cr_sample *s = &b->r->samples[first + i];
            judged += cr_sample_has_verdict(s);
            right += cr_sample_has_verdict(s) && s->score == 1;
        }
        if (judged == 0) continue;
        all += right == judged;
        none += right == 0;
        num++;
    }
    if (num == 0) return;
    cr_metrics_set(m, all / num, "group/all_correct_groups_ratio");
    cr_metrics_set(m, none / num, "group/all_incorrect_groups_ratio");
    cr_metrics_set(m, 1 - (all + none) / num, "group/mixed_groups_ratio");
}

void cri_train_metrics(const cr_learning *l, const cri_learn_batch *b, const cr_train_sums *s,
                       cr_metrics *m)
{
    double updates = (double)(s->num_updates > 0 ? s->num_updates : 1),
           tokens = s->num_tokens > 0 ? s->num_tokens : 1, diff = 0;

    cr_metrics_set(m,
                   cr_learning_rate(l->schedule, l->config->train.training.learning_rate,
                                    l->warmup_steps, l->schedule_steps,
                                    l->updates > 0 ? l->updates - 1 : 0),
                   "actor/lr");
    cr_metrics_set(m, updates, "actor/backward_steps");
    cr_metrics_set(m, s->pg_loss / updates, "actor/pg_loss");
    cr_metrics_set(m, s->weighted_pg_loss / updates, "actor/weighted_pg_loss");
    if (b->has_ref) cr_metrics_set(m, s->kl_loss / updates, "actor/kl_loss");
    cr_metrics_set(m, s->total_loss / updates, "actor/total_loss");
    cr_metrics_set(m, s->approxkl / updates, "actor/approxkl");
    cr_metrics_set(m, s->policykl / updates, "actor/policykl");
    cr_metrics_set(m, s->ratio_sum / tokens, "actor/ratio_mean");
    cr_metrics_set(m, s->ratio_max, "actor/ratio_max");
    cr_metrics_set(m, s->ratio_min, "actor/ratio_min");
    cr_metrics_set(m, (s->clip_low + s->clip_high) / updates, "actor/clipfrac");
    cr_metrics_set(m, s->clip_low / updates, "actor/ppo_ratio_low_clipfrac");
    cr_metrics_set(m, s->clip_high / updates, "actor/ppo_ratio_high_clipfrac");
    cr_metrics_set(m, s->grad_norm / (double)(s->num_updates - s->num_skipped),
                   "actor_train/grad_norm");
    cr_metrics_set(m, (double)s->num_skipped, "actor_train/skipped_updates");
    /* before any update of this rollout: all rows if they were computed, else those of its first update */
    if (b->old_from == CR_OLD_COMPUTED)
        for (size_t t = 0; t < b->num_tokens; t++)
            diff = fmax(diff, fabs(b->old[t] - b->infer[t]));
    else
        cr_metrics_set(m, s->entropy_sum / fmax((double)s->num_compared, 1), "critic/entropy/mean");
    cr_metrics_set(m, fmax(diff, s->infer_diff_max), "actor/train_infer_diff_max");
    cr_metrics_set(
        m, (double)(b->old_from == CR_OLD_COMPUTED ? (int64_t)b->num_tokens : s->num_compared),
        "actor/train_infer_compared_tokens");
    if (b->old_from == CR_OLD_OF_SAMPLER)
        cr_metrics_set(m, s->num_different > 0, "actor/old_log_probs_recomputed");
}
