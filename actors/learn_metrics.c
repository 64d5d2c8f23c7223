/* learn_metrics.c -- metrics of a step under ROLL's names (see assemble_impl.h). */
#include "actors/assemble_impl.h"

#include <math.h>

void cri_token_metrics(const cr_learning *l, const cri_learn_batch *b, cr_metrics *m)
{
    size_t n = b->r->num_samples;
    double *x = CR_NEW_ARRAY(double, 5 * n), *prompt = x, *response = x + n, *total = x + 2 * n,
           *score = x + 3 * n, *reward = x + 4 * n, clip = 0, right = 0, wrong = 0;
    double most = (double)(l->config->sequence_length - l->config->prompt_length);

    for (size_t i = 0; i < n; i++) {
        const cr_sample *s = &b->r->samples[i];
        prompt[i] = (double)b->data->rows[s->row].num_ids;
        response[i] = (double)s->num_ids;
        total[i] = prompt[i] + response[i];
        score[i] = s->score;
        reward[i] = b->rewards[i];
        clip += response[i] >= most;
        right += s->score == 1;
        wrong += s->score == 0;
    }
    cr_metrics_set_summary(m, "token/prompt_length", prompt, n);
    cr_metrics_set_summary(m, "token/response_length", response, n);
    cr_metrics_set_summary(m, "token/total_length", total, n);
    cr_metrics_set(m, clip / (double)n, "token/total_response_length/clip");
    cr_metrics_set_summary(m, "critic/score", score, n);
    cr_metrics_set_summary(m, "critic/rewards", reward, n);
    cr_metrics_set_summary(m, "critic/advantages", b->advantages, b->num_tokens);
    cr_metrics_set_summary(m, "critic/raw_advantages", b->raw, b->num_tokens);
    cr_metrics_set_summary(m, "critic/returns", b->returns, b->num_tokens);
    cr_metrics_set(m, right / (double)n, "critic/correct/mean");
    cr_metrics_set(m, right / (double)n, "critic/score_distribution/correct_samples_ratio");
    cr_metrics_set(m, wrong / (double)n, "critic/score_distribution/incorrect_samples_ratio");
    cr_free(x);
}

void cri_group_metrics(const cri_learn_batch *b, cr_metrics *m)
{
    double all = 0, none = 0;
    size_t g = b->r->group_size;

    if (g < 2) return;
    for (size_t first = 0; first < b->r->num_samples; first += g) {
        size_t right = 0;
        for (size_t i = 0; i < g; i++)
            right += b->r->samples[first + i].score == 1;
        all += right == g;
        none += right == 0;
    }
    cr_metrics_set(m, all / (double)b->r->num_groups, "group/all_correct_groups_ratio");
    cr_metrics_set(m, none / (double)b->r->num_groups, "group/all_incorrect_groups_ratio");
    cr_metrics_set(m, 1 - (all + none) / (double)b->r->num_groups, "group/mixed_groups_ratio");
}

void cri_train_metrics(const cr_learning *l, const cri_learn_batch *b, const cri_update_sums *s,
                       cr_metrics *m)
{
    double updates = (double)(s->num_updates > 0 ? s->num_updates : 1),
           tokens = s->num_tokens > 0 ? s->num_tokens : 1, diff = 0;

    cr_metrics_set(m,
                   cr_learning_rate(l->schedule, l->config->train.learning_rate, l->warmup_steps,
                                    l->schedule_steps, l->updates > 0 ? l->updates - 1 : 0),
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
    cr_metrics_set(m, s->grad_norm / ((double)l->config->algorithm.ppo_epochs),
                   "actor_train/grad_norm");
    cr_metrics_set(m, (double)s->skipped, "actor_train/skipped_updates");
    /* before any update of this rollout: all rows if they were computed, else those of its first update */
    if (b->old_from == CR_OLD_COMPUTED)
        for (size_t t = 0; t < b->num_tokens; t++)
            diff = fmax(diff, fabs(b->old[t] - b->infer[t]));
    else
        cr_metrics_set(m, s->entropy / fmax((double)s->num_compared, 1), "critic/entropy/mean");
    cr_metrics_set(m, fmax(diff, s->infer_diff_max), "actor/train_infer_diff_max");
    cr_metrics_set(
        m, (double)(b->old_from == CR_OLD_COMPUTED ? (int64_t)b->num_tokens : s->num_compared),
        "actor/train_infer_compared_tokens");
    if (b->old_from == CR_OLD_OF_SAMPLER)
        cr_metrics_set(m, s->num_different > 0, "actor/old_log_probs_recomputed");
}
