/* assemble.c -- see assemble.h. */
#include "actors/assemble.h"
#include "actors/packing.h"
#include "actors/phases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cr_learning_init(cr_learning *l, const cr_config *c)
{
    int64_t dp = c->train.num_devices / c->train.ulysses_size;

    *l = (cr_learning){.config = c, .kl_coef = c->algorithm.init_kl_coef};
    l->moments = CR_NEW_ARRAY(cr_moments, c->num_rewards);
    for (size_t d = 0; d < c->num_rewards; d++)
        l->moments[d] = (cr_moments){0, 1, 1e-24};
    l->mini_size = dp * c->train.per_device_train_batch_size * c->train.gradient_accumulation_steps;
    l->schedule_steps = c->max_steps * c->rollout_batch_size * c->group_size *
                        c->algorithm.ppo_epochs / l->mini_size;
    if (l->schedule_steps < 1) l->schedule_steps = 1;
    l->warmup_steps = c->train.warmup_steps
                          ? c->train.warmup_steps
                          : (int64_t)ceil((double)l->schedule_steps * c->train.warmup_ratio);
    for (int k = 0; k < CR_NUM_SCHEDULES; k++)
        if (strcmp(cr_schedule_names[k], c->train.lr_scheduler_type) == 0)
            l->schedule = (cr_schedule)k;
}

void cr_learning_free(cr_learning *l)
{
    cr_free(l->moments);
    *l = (cr_learning){0};
}

/* ---- the batch: per response token, samples in the order of the rollout ---- */

typedef struct batch {
    cr_rollout *r;
    const cr_dataset *data;
    size_t *start; /* [num_samples + 1] */
    size_t num_tokens;
    double *infer, *old, *ref, *entropy, *mask, *final, *advantages, *raw, *returns, *token_rewards,
        *kl, *rewards; /* owned as one */
    double *memory;
    cr_old_log_probs old_from;
    bool has_ref;
} batch;

static void batch_init(batch *b, cr_rollout *r, const cr_dataset *data)
{
    size_t n;

    *b = (batch){.r = r, .data = data};
    b->start = CR_NEW_ARRAY(size_t, r->num_samples + 1);
    for (size_t i = 0; i < r->num_samples; i++)
        b->start[i + 1] = b->start[i] + r->samples[i].num_ids;
    n = b->num_tokens = b->start[r->num_samples];
    b->memory = CR_NEW_ARRAY(double, 11 * n + r->num_samples);
    double **arrays[] = {&b->infer,   &b->old,           &b->ref,        &b->entropy,
                         &b->mask,    &b->final,         &b->advantages, &b->raw,
                         &b->returns, &b->token_rewards, &b->kl,         &b->rewards};
    for (size_t k = 0; k < CR_COUNT(arrays); k++)
        *arrays[k] = b->memory + k * n;
    for (size_t i = 0; i < r->num_samples; i++)
        for (size_t t = 0; t < r->samples[i].num_ids; t++) {
            b->infer[b->start[i] + t] = r->samples[i].log_prob_infer[t];
            b->mask[b->start[i] + t] = 1;
        }
}

static void batch_free(batch *b)
{
    cr_free(b->start);
    cr_free(b->memory);
}

/* ---- records for ranks ---- */

typedef struct shipment {
    cr_record record;
    cr_buf buffers[16];
    size_t num_buffers;
    size_t *samples; /* of the batch, in the order sent */
    size_t num;
} shipment;

static void shipment_free(shipment *s)
{
    cr_record_free(&s->record);
    for (size_t i = 0; i < s->num_buffers; i++)
        cr_buf_free(&s->buffers[i]);
    cr_free(s->samples);
}

static cr_buf *add_buffer(shipment *s)
{
    return &s->buffers[s->num_buffers++];
}

static void attach(shipment *s, const char *name, cr_record_kind kind, const cr_buf *b)
{
    cr_record_add(&s->record, name, kind, b->data ? b->data : "", b->num_bytes / 4);
}

/* Tokens of the samples: prompts, lengths, mini, ids. mini NULL: all 0. */
static void ship_tokens(shipment *s, const batch *b, const int32_t *mini)
{
    cr_buf *prompts = add_buffer(s), *lengths = add_buffer(s), *minis = add_buffer(s),
           *ids = add_buffer(s);

    for (size_t k = 0; k < s->num; k++) {
        const cr_sample *x = &b->r->samples[s->samples[k]];
        const cr_row *row = &b->data->rows[x->row];
        int32_t prompt = (int32_t)row->num_ids, length = (int32_t)x->num_ids,
                m = mini ? mini[s->samples[k]] : 0;
        cr_buf_add(prompts, &prompt, 4);
        cr_buf_add(lengths, &length, 4);
        cr_buf_add(minis, &m, 4);
        cr_buf_add(ids, row->ids, row->num_ids * 4);
        cr_buf_add(ids, x->ids, x->num_ids * 4);
    }
    attach(s, "prompts", CR_RECORD_INT32, prompts);
    attach(s, "lengths", CR_RECORD_INT32, lengths);
    attach(s, "mini", CR_RECORD_INT32, minis);
    attach(s, "ids", CR_RECORD_INT32, ids);
}

static void ship_floats(shipment *s, const batch *b, const char *name, const double *x)
{
    cr_buf *out = add_buffer(s);

    for (size_t k = 0; k < s->num; k++)
        for (size_t t = b->start[s->samples[k]]; t < b->start[s->samples[k] + 1]; t++) {
            float f = (float)x[t];
            cr_buf_add(out, &f, 4);
        }
    attach(s, name, CR_RECORD_FLOAT32, out);
}

/* Numbers per token that a rank answered, in the order of its samples. */
static cr_status unship_floats(const cr_record *reply, const char *name, const shipment *ship,
                               const batch *b, double *to, cr_err *err)
{
    const void *from;
    size_t num, want = 0, at = 0;

    CR_TRY(cr_record_get(reply, name, CR_RECORD_FLOAT32, &from, &num, err));
    for (size_t k = 0; k < ship->num; k++)
        want += b->r->samples[ship->samples[k]].num_ids;
    if (num != want)
        return cr_fail(err, CR_EFORMAT, "%zu numbers of %s for %zu tokens", num, name, want);
    for (size_t k = 0; k < ship->num; k++)
        for (size_t t = b->start[ship->samples[k]]; t < b->start[ship->samples[k] + 1]; t++)
            to[t] = ((const float *)from)[at++];
    return CR_OK;
}

/* ---- log-probs of a role over the whole batch ---- */

static cr_status ask_log_probs(cr_run *run, cr_role role, const batch *b, double *log_probs,
                               double *entropy, cr_metrics *m, cr_err *err)
{
    int num = run->layout.role[role].num,
        same = (int)run->layout.role[role].worker->ulysses_size; /* ranks that get one batch */
    size_t n = b->r->num_samples;
    shipment *ships = CR_NEW_ARRAY(shipment, num);
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);

    for (int r = 0; r < num && err->status == CR_OK; r++) {
        ships[r].samples = CR_NEW_ARRAY(size_t, n);
        for (size_t i = (size_t)(r / same); i < n; i += (size_t)(num / same))
            ships[r].samples[ships[r].num++] = i;
        ship_tokens(&ships[r], b, NULL);
        if (role == CR_ROLE_TRAIN) /* it trains next */
            cr_record_set_int(&ships[r].record, "is_offload_states", 0);
        cr_note(cr_run_send(run, role, r, "log_probs", &ships[r].record, &requests[r], err));
    }
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        if (cr_run_wait(run, &requests[r], &reply, err) != CR_OK) break;
        if (r == 0) cr_phase_metrics(m, run->layout.role[role].name, "compute_log_probs", &reply);
        cr_note(unship_floats(&reply, "log_probs", &ships[r], b, log_probs, err));
        if (entropy && err->status == CR_OK)
            cr_note(unship_floats(&reply, "entropy", &ships[r], b, entropy, err));
        cr_record_free(&reply);
    }
    for (int r = 0; r < num; r++)
        shipment_free(&ships[r]);
    cr_free(ships);
    cr_free(requests);
    return err->status;
}

/* ---- advantages, domain by domain ---- */

static cr_norm norm_of(const char *name)
{
    return !name                        ? CR_NORM_NONE
           : strcmp(name, "batch") == 0 ? CR_NORM_BATCH
           : strcmp(name, "group") == 0 ? CR_NORM_GROUP
                                        : CR_NORM_RUNNING;
}

static cr_advantage_config advantage_config(const cr_learning *l)
{
    const cr_algorithm *a = &l->config->algorithm;

    return (cr_advantage_config){
        .adv_estimator = strcmp(a->adv_estimator, "grpo") == 0 ? CR_ADV_GRPO : CR_ADV_REINFORCE,
        .norm_mean_type = norm_of(a->norm_mean_type),
        .norm_std_type = norm_of(a->norm_std_type),
        .gamma = a->gamma,
        .lambd = a->lambd,
        .reward_clip = a->reward_clip,
        .advantage_clip = a->advantage_clip,
        .whiten_rewards = a->whiten_rewards,
        .whiten_advantages = a->whiten_advantages,
        .add_token_level_kl = a->add_token_level_kl,
        .kl_penalty = strcmp(a->kl_penalty, "abs") == 0   ? CR_KL_ABS
                      : strcmp(a->kl_penalty, "mse") == 0 ? CR_KL_MSE
                                                          : CR_KL_K1,
        .kl_coef = l->kl_coef};
}

static cr_status domain_advantages(cr_learning *l, batch *b, size_t first, size_t end, int domain,
                                   cr_metrics *m, cr_err *err)
{
    const cr_algorithm *alg = &l->config->algorithm;
    cr_mask_config masks = {alg->max_len_mask,
                            alg->difficulty_mask,
                            alg->error_max_len_clip,
                            alg->difficulty_low_threshold,
                            alg->difficulty_high_threshold,
                            (double)alg->error_max_len_threshold};
    cr_advantage_config config = advantage_config(l);
    size_t n = end - first, base = b->start[first], *start = CR_NEW_ARRAY(size_t, n + 1);
    double *scores = CR_NEW_ARRAY(double, 4 * n), *lengths = scores + n, *keep = scores + 2 * n,
           *raw = scores + 3 * n, kept = 0;
    const char *name = l->config->rewards[domain].domain;

    for (size_t i = 0; i < n; i++) {
        scores[i] = b->r->samples[first + i].score;
        raw[i] = b->r->samples[first + i].reward;
        lengths[i] = (double)b->r->samples[first + i].num_ids;
        start[i] = b->start[first + i] - base;
    }
    start[n] = b->start[end] - base;
    cr_sample_mask(&masks, n, b->r->group_size, lengths,
                   (double)(l->config->sequence_length - l->config->prompt_length), scores, keep);
    for (size_t i = 0; i < n; i++) {
        /* a sample without a verdict teaches nothing */
        if (strcmp(b->r->samples[first + i].status, "ok") != 0) keep[i] = 0;
        kept += keep[i];
        for (size_t t = b->start[first + i]; t < b->start[first + i + 1]; t++)
            b->final[t] = b->mask[t] * keep[i];
    }
    cr_advantage_args args = {.rows = {n, start},
                              .group = b->r->group_size,
                              .scores = raw,
                              .old_log_probs = b->has_ref ? b->old + base : NULL,
                              .ref_log_probs = b->has_ref ? b->ref + base : NULL,
                              .final_mask = b->final + base,
                              .moments = &l->moments[domain],
                              .rewards = b->rewards + first,
                              .token_rewards = b->token_rewards + base,
                              .advantages = b->advantages + base,
                              .raw_advantages = b->raw + base,
                              .returns = b->returns + base,
                              .kl = b->kl + base};
    if (cr_advantage(&config, &args, err) == CR_OK) {
        cr_metrics_set(m, kept / (double)n, "%s/actor/final_mask_ratio", name);
        if (b->has_ref) {
            cr_metrics_set(m, args.kl_mean, "%s/critic/kl", name);
            cr_metrics_set(m, alg->add_token_level_kl ? l->kl_coef : 0, "%s/critic/kl_coef", name);
            if (alg->has_target_kl)
                l->kl_coef = cr_kl_controller(l->kl_coef, alg->target_kl, alg->kl_horizon,
                                              args.kl_mean, (double)n);
        }
        if (alg->reward_clip > 0)
            cr_metrics_set(m, args.reward_clip_frac, "%s/critic/reward_clip_frac", name);
        if (alg->advantage_clip > 0)
            cr_metrics_set(m, args.advantage_clip_frac, "%s/critic/advantage_clip_frac", name);
    }
    cr_free(start);
    cr_free(scores);
    return err->status;
}

/* ---- training ---- */

typedef struct sums {
    double pg_loss, weighted_pg_loss, kl_loss, total_loss, approxkl, policykl, clip_low, clip_high,
        ratio_sum, num_tokens, ratio_max, ratio_min, infer_diff_max, entropy, grad_norm;
    int64_t num_updates, skipped, num_compared, num_different;
} sums;

static cr_status take_reply(const cr_record *reply, sums *s, bool is_first, cr_err *err)
{
    const struct {
        const char *name;
        double *to;
    } added[] = {{"pg_loss", &s->pg_loss},     {"weighted_pg_loss", &s->weighted_pg_loss},
                 {"kl_loss", &s->kl_loss},     {"total_loss", &s->total_loss},
                 {"approxkl", &s->approxkl},   {"policykl", &s->policykl},
                 {"clip_low", &s->clip_low},   {"clip_high", &s->clip_high},
                 {"ratio_sum", &s->ratio_sum}, {"num_tokens", &s->num_tokens},
                 {"entropy_sum", &s->entropy}};
    double x, most, least;
    int64_t n;

    for (size_t i = 0; i < CR_COUNT(added); i++) {
        CR_TRY(cr_record_get_real(reply, added[i].name, &x, err));
        *added[i].to += x;
    }
    CR_TRY(cr_record_get_real(reply, "ratio_max", &most, err));
    CR_TRY(cr_record_get_real(reply, "ratio_min", &least, err));
    CR_TRY(cr_record_get_real(reply, "num_tokens", &x, err));
    if (x > 0) {
        s->ratio_max = fmax(s->ratio_max, most);
        s->ratio_min = s->ratio_min > 0 ? fmin(s->ratio_min, least) : least;
    }
    CR_TRY(cr_record_get_real(reply, "infer_diff_max", &x, err));
    s->infer_diff_max = fmax(s->infer_diff_max, x);
    CR_TRY(cr_record_get_int(reply, "compared", &n, err));
    s->num_compared += n;
    CR_TRY(cr_record_get_int(reply, "different", &n, err));
    s->num_different += n;
    if (!is_first) return CR_OK; /* the same on every rank */
    CR_TRY(cr_record_get_real(reply, "grad_norm", &x, err));
    s->grad_norm += x;
    return cr_record_get_int(reply, "skipped", &s->skipped, err);
}

/* Counts of every mini-batch over all ranks: final tokens and samples, tokens and samples, width. */
static float *count_minis(const cr_learning *l, const batch *b, const int32_t *mini,
                          int64_t num_minis)
{
    float *counts = CR_NEW_ARRAY(float, 5 * num_minis);

    for (size_t i = 0; i < b->r->num_samples; i++) {
        size_t start[2] = {0, b->start[i + 1] - b->start[i]};
        cr_ragged one = {1, start};
        double c[4] = {0};
        cr_count_masks(&one, b->final + b->start[i], &c[0], &c[1]);
        cr_count_masks(&one, b->mask + b->start[i], &c[2], &c[3]);
        for (int k = 0; k < 4; k++)
            counts[5 * mini[i] + k] += (float)c[k];
    }
    for (int64_t m = 0; m < num_minis; m++)
        counts[5 * m + 4] = (float)(l->config->sequence_length - l->config->prompt_length);
    return counts;
}

static cr_status train_epoch(cr_learning *l, cr_run *run, batch *b, int64_t step, int64_t epoch,
                             sums *s, cr_metrics *m, cr_err *err)
{
    int64_t num_epochs = l->config->algorithm.ppo_epochs;
    bool is_again = epoch > 0, is_last = epoch == num_epochs - 1;
    int num = run->layout.role[CR_ROLE_TRAIN].num,
        same = (int)l->config->train.ulysses_size; /* ranks that get one batch */
    size_t n = b->r->num_samples, *tokens = CR_NEW_ARRAY(size_t, n);
    uint32_t *order = CR_NEW_ARRAY(uint32_t, n);
    int32_t *mini = CR_NEW_ARRAY(int32_t, n), *rank = CR_NEW_ARRAY(int32_t, n);
    int64_t num_minis = ((int64_t)n + l->mini_size - 1) / l->mini_size;
    float *counts, *lr = CR_NEW_ARRAY(float, num_minis);
    cr_old_log_probs old_from = is_again ? CR_OLD_COMPUTED : b->old_from;
    shipment *ships = CR_NEW_ARRAY(shipment, num);
    cr_request *requests = CR_NEW_ARRAY(cr_request, num);

    for (size_t i = 0; i < n; i++)
        tokens[i] = b->data->rows[b->r->samples[i].row].num_ids + b->r->samples[i].num_ids;
    cr_packing_deal(tokens, n, b->r->group_size, num / same,
                    (size_t)l->config->train.per_device_train_batch_size, (size_t)l->mini_size,
                    (uint64_t)l->config->seed, (uint64_t)(step * num_epochs + epoch), order, mini,
                    rank);
    counts = count_minis(l, b, mini, num_minis);
    for (int64_t k = 0; k < num_minis; k++)
        lr[k] = (float)cr_learning_rate(l->schedule, l->config->train.learning_rate,
                                        l->warmup_steps, l->schedule_steps, l->updates + k);
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        shipment *ship = &ships[r];
        cr_buf *scores = add_buffer(ship), *weights = add_buffer(ship);
        float one = 1;
        ship->samples = CR_NEW_ARRAY(size_t, n);
        for (size_t k = 0; k < n; k++)
            if (rank[order[k]] == r / same) ship->samples[ship->num++] = order[k];
        ship_tokens(ship, b, mini);
        ship_floats(ship, b, "infer", b->infer);
        ship_floats(ship, b, "advantages", b->advantages);
        ship_floats(ship, b, "mask", b->mask);
        ship_floats(ship, b, "final", b->final);
        if (old_from == CR_OLD_COMPUTED) ship_floats(ship, b, "old", b->old);
        if (b->has_ref) ship_floats(ship, b, "ref", b->ref);
        for (size_t k = 0; k < ship->num; k++) {
            float score = (float)b->r->samples[ship->samples[k]].score;
            cr_buf_add(scores, &score, 4);
            cr_buf_add(weights, &one, 4);
        }
        attach(ship, "scores", CR_RECORD_FLOAT32, scores);
        attach(ship, "weights", CR_RECORD_FLOAT32, weights);
        cr_record_add(&ship->record, "lr", CR_RECORD_FLOAT32, lr, (size_t)num_minis);
        cr_record_add(&ship->record, "counts", CR_RECORD_FLOAT32, counts, 5 * (size_t)num_minis);
        cr_record_set_int(&ship->record, "minis", num_minis);
        cr_record_set_int(&ship->record, "old_from", old_from);
        cr_record_set_int(&ship->record, "is_again", is_again);
        cr_record_set_int(&ship->record, "is_offload_states", is_last);
        cr_note(cr_run_send(run, CR_ROLE_TRAIN, r, "train_step", &ship->record, &requests[r], err));
    }
    for (int r = 0; r < num && err->status == CR_OK; r++) {
        cr_record reply;
        if (cr_run_wait(run, &requests[r], &reply, err) != CR_OK) break;
        if (r == 0) cr_phase_metrics(m, "actor_train", "train_step", &reply);
        if (r % same == 0) cr_note(take_reply(&reply, s, r == 0, err));
        if (cr_record_has(&reply, "old"))
            cr_note(unship_floats(&reply, "old", &ships[r], b, b->old, err));
        cr_record_free(&reply);
    }
    l->updates += num_minis - s->skipped;
    s->num_updates += num_minis;
    for (int r = 0; r < num; r++)
        shipment_free(&ships[r]);
    cr_free(ships);
    cr_free(requests);
    cr_free(tokens);
    cr_free(order);
    cr_free(mini);
    cr_free(rank);
    cr_free(lr);
    cr_free(counts);
    return err->status;
}

/* ---- metrics ---- */

static void token_metrics(const cr_learning *l, const batch *b, cr_metrics *m)
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

static void group_metrics(const batch *b, cr_metrics *m)
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

static void train_metrics(const cr_learning *l, const batch *b, const sums *s, cr_metrics *m)
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

/* As the configuration says, if the samples are of the weights that train now. */
static cr_old_log_probs choose_old(const cr_learning *l, const cr_rollout *r, int64_t step)
{
    cr_old_log_probs from = l->config->old_log_probs;

    for (size_t i = 0; i < r->num_samples && from == CR_OLD_OF_SAMPLER; i++)
        if (r->samples[i].version != l->updates) {
            cr_log(CR_LOG_WARN, "rlvr",
                   "step %lld: sample %016llx is of weights after %lld updates, training has had "
                   "%lld: old log-probs are computed",
                   (long long)step, (unsigned long long)r->samples[i].id,
                   (long long)r->samples[i].version, (long long)l->updates);
            from = CR_OLD_COMPUTED;
        }
    return from;
}

cr_status cr_learn(cr_learning *l, cr_run *run, cr_rollout *rollout, const cr_dataset *data,
                   int64_t step, cr_metrics *m, cr_err *err)
{
    const cr_config *c = l->config;
    double at = cr_now_s(), valid = 0, entropy = 0;
    sums s = {0};
    batch b;

    batch_init(&b, rollout, data);
    if (c->enable_reference) {
        CR_TRY_GOTO(out, ask_log_probs(run, CR_ROLE_REFERENCE, &b, b.ref, NULL, m, err));
        b.has_ref = true;
        cr_metrics_set(m, cr_now_s() - at, "time/ref_log_probs_values");
    }
    at = cr_now_s();
    memcpy(b.old, b.infer,
           b.num_tokens * sizeof(double)); /* the same bits, unless training says no */
    b.old_from = choose_old(l, rollout, step);
    if (b.old_from == CR_OLD_COMPUTED) {
        CR_TRY_GOTO(out, ask_log_probs(run, CR_ROLE_TRAIN, &b, b.old, b.entropy, m, err));
        for (size_t t = 0; t < b.num_tokens; t++)
            entropy += b.entropy[t];
        cr_metrics_set(m, entropy / (double)(b.num_tokens ? b.num_tokens : 1),
                       "critic/entropy/mean");
        cr_metrics_set(m, cr_now_s() - at, "time/old_log_probs");
    }
    for (size_t first = 0, end; first < rollout->num_samples; first = end) {
        int domain = rollout->samples[first].domain;
        for (end = first; end < rollout->num_samples && rollout->samples[end].domain == domain;
             end++)
            continue;
        CR_TRY_GOTO(out, domain_advantages(l, &b, first, end, domain, m, err));
    }
    for (size_t t = 0; t < b.num_tokens; t++)
        valid += b.final[t];
    at = cr_now_s();
    if (valid > 0)
        for (int64_t e = 0; e < c->algorithm.ppo_epochs; e++)
            CR_TRY_GOTO(out, train_epoch(l, run, &b, step, e, &s, m, err));
    cr_metrics_set(m, cr_now_s() - at, "time/step_train");
    token_metrics(l, &b, m);
    group_metrics(&b, m);
    if (valid > 0)
        train_metrics(l, &b, &s, m);
    else
        cr_metrics_set(m, 1, "mask/final_mask_sum_eq_0");
    if (s.skipped)
        cr_log(CR_LOG_WARN, "rlvr", "step %lld: %lld updates skipped: the gradient is not finite",
               (long long)step, (long long)s.skipped);
    if (s.num_different && b.old_from == CR_OLD_OF_SAMPLER)
        cr_log(
            CR_LOG_WARN, "rlvr",
            "step %lld: %lld of %lld log-probs of actor_infer are not those of actor_train (by up "
            "to %g): old log-probs were computed",
            (long long)step, (long long)s.num_different, (long long)s.num_compared,
            s.infer_diff_max);
    cr_metrics_set(m, (double)step, "system/global_step");
    cr_metrics_set(m, (double)rollout->num_samples, "system/batch_size");
    cr_metrics_set(m, (double)((size_t)(step + 1) * rollout->num_samples), "system/samples");
    cr_metrics_set(m, (double)rollout->num_filtered, "scheduler/filtered_groups");
    cr_metrics_set(m, (double)rollout->num_timeouts, "scheduler/reward_timeouts");
    cr_metrics_set(m, (double)rollout->num_errors, "scheduler/reward_errors");
    cr_metrics_set(m,
                   (double)rollout->num_response_tokens /
                       (rollout->generate_s > 0 ? rollout->generate_s : 1),
                   "system/actor_infer/response/tps");
out:
    batch_free(&b);
    return err->status;
}
