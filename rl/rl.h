/* rl.h -- rewards to advantages, schedules, filters: pure functions. Losses are in loss.h.
 *
 * Flow 6 of 7. No I/O, no device, no state. Batches are ragged: sample i has the response
 * tokens start[i] .. start[i+1]-1 of every per-token array, no padding. Samples of a group (one
 * prompt) are adjacent. Everything is float64: what is summed here is small.
 *
 * Formulas and names of settings are ROLL's (its mistakes put right: masks count in every mode, no
 * value leaks in from beyond a row, a group of one has standard deviation 0).
 *
 * Ownership: every array belongs to the caller. Threads: any. Errors: CR_EARG names the setting.
 */
#ifndef CR_RL_H
#define CR_RL_H

#include "base/base.h"

typedef struct cr_ragged {
    size_t num_samples;
    const size_t *start;  /* [num_samples + 1] */
    const bool *is_after; /* [tokens] something was observed right before it; NULL: nowhere */
} cr_ragged;

/* ---- sample masks (before rewards) ---- */

typedef struct cr_mask_config {
    bool max_len_mask, difficulty_mask, error_max_len_clip;
    double difficulty_low_threshold, difficulty_high_threshold;
    double error_max_len_threshold; /* a whole number */
} cr_mask_config;
/* keep[i] 1 or 0: not cut off (length < response_length); group mean inside the open thresholds;
 * wrong answers not too long. lengths in tokens. verdict [N]: 0 where a sample has no score, which is
 * then neither kept nor part of its group's mean; NULL: all have one. */
void cr_sample_mask(const cr_mask_config *c, size_t num_samples, size_t group,
                    const double *lengths, double response_length, const double *scores,
                    const double *verdict, double *keep);

/* ---- rewards, KL, advantages ---- */

typedef enum cr_norm { CR_NORM_NONE, CR_NORM_BATCH, CR_NORM_GROUP, CR_NORM_RUNNING } cr_norm;
typedef enum cr_kl { CR_KL_K1, CR_KL_ABS, CR_KL_MSE, CR_KL_K3 } cr_kl; /* kl, abs, mse, k3 */
typedef enum cr_estimator { CR_ADV_REINFORCE, CR_ADV_GRPO, CR_ADV_GAE } cr_estimator;

/* Several rewards of a sample: one number for all of them, or each normalised by itself first (TRL's names). */
typedef enum cr_aggregation { CR_SUM_THEN_NORMALIZE, CR_NORMALIZE_THEN_SUM } cr_aggregation;

/* On-policy distillation: the advantage of a token loses opd_kl_coef * d(student, teacher), or is nothing else. */
typedef enum cr_opd { CR_OPD_NONE, CR_OPD_MIXED, CR_OPD_PURE } cr_opd;

typedef struct cr_moments { /* of all rewards so far; starts as {0, 1, 1e-24} */
    double mean, var, count;
} cr_moments;

typedef struct cr_advantage_config {
    cr_estimator adv_estimator;
    cr_norm norm_mean_type, norm_std_type; /* grpo: both group */
    cr_aggregation aggregation;
    double gamma, lambd;
    double reward_clip, advantage_clip; /* 0: off */
    bool whiten_rewards, whiten_advantages, add_token_level_kl;
    cr_kl kl_penalty;
    double kl_coef; /* the controller's value; in a configuration its first (init_kl_coef) */
    cr_opd opd;     /* d is the estimator kl_penalty; between the estimator above and whitening */
    double opd_kl_coef;
} cr_advantage_config;

/* The rewards of each sample, of `num` kinds. */
typedef struct cr_reward_kinds {
    size_t num;
    const double *values;  /* [num][N] */
    const double *has;     /* [num][N]: 0 where a sample has no reward of this kind */
    const double *weights; /* [num] */
} cr_reward_kinds;
/* sums[i]: of sample i's rewards, each times its weight; has[i] 0: it has none. */
void cr_rewards_sum(const cr_reward_kinds *k, size_t num_samples, double *sums, double *has);

/* One of several teachers. */
typedef struct cr_teacher_args {
    const double *log_probs; /* per token */
    const double
        *coefs; /* [N] instead of opd_kl_coef; below 0: it does not answer for the sample */
} cr_teacher_args;

typedef struct cr_advantage_args {
    cr_ragged rows;
    size_t group;
    const double *scores; /* [N] response-level rewards */
    const cr_reward_kinds
        *kinds; /* with CR_NORMALIZE_THEN_SUM, instead of scores: each kind is normalised over
                                   the samples that have it, then sum by weight / (its std over the batch + 1e-6) */
    const double *verdict; /* [N]: 0 where there is no score; such samples are left out of every
                                   mean and clip fraction, and get 0. NULL: all have one */
    const double *token_scores; /* per token, added to the token's reward; NULL: none */
    const double *old_log_probs, *ref_log_probs; /* per token; NULL: no KL */
    const double *teacher_log_probs;             /* per token, with an opd, as old_log_probs */
    const cr_teacher_args *teachers; /* or of several, whose distances add up; d is their sum */
    size_t num_teachers;
    const double *values;     /* per token, gae only */
    const double *final_mask; /* per token */
    cr_moments *moments;      /* running normalisation only: updated */
    /* out */
    double *rewards; /* [N] after normalisation and clip */
    double *token_rewards, *advantages, *raw_advantages, *returns, *kl; /* per token */
    double *opd_kl; /* per token, with an opd: d */
    double kl_mean; /* mean over rows with a verdict of each row's mean */
    double opd_kl_mean;
    double reward_clip_frac, advantage_clip_frac;
    struct cr_advantage_trace *trace; /* advantage_trace.h; NULL: not wanted */
} cr_advantage_args;
CR_MUST cr_status cr_advantage(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err);

/* Adaptive controller: value *= 1 + clip(current / target - 1, -0.2, 0.2) * rows / horizon. */
double cr_kl_controller(double value, double target_kl, double kl_horizon, double current,
                        double rows);

/* ---- small things ---- */

typedef enum cr_schedule {
    CR_LR_LINEAR,
    CR_LR_COSINE,
    CR_LR_COSINE_WITH_RESTARTS,
    CR_LR_POLYNOMIAL,
    CR_LR_CONSTANT,
    CR_LR_CONSTANT_WITH_WARMUP,
    CR_LR_INVERSE_SQRT,
    CR_LR_COSINE_WITH_MIN_LR,
    CR_LR_COSINE_WARMUP_WITH_MIN_LR,
    CR_LR_WARMUP_STABLE_DECAY,
    CR_NUM_SCHEDULES
} cr_schedule;
extern const char *const cr_schedule_names[CR_NUM_SCHEDULES];

/* lr_scheduler_kwargs, by Transformers' names. */
typedef enum cr_schedule_arg {
    CR_LR_NUM_CYCLES,
    CR_LR_END,
    CR_LR_POWER,
    CR_LR_TIMESCALE,
    CR_LR_MIN,
    CR_LR_MIN_RATE,
    CR_LR_WARMUP_RATE,
    CR_LR_NUM_DECAY_STEPS,
    CR_LR_NUM_STABLE_STEPS,
    CR_LR_MIN_RATIO,
    CR_LR_WARMUP_TYPE, /* 0 linear, 1 cosine, 2 1-sqrt, and the next */
    CR_LR_DECAY_TYPE,
    CR_NUM_SCHEDULE_ARGS
} cr_schedule_arg;
typedef struct cr_schedule_args {
    double value[CR_NUM_SCHEDULE_ARGS];
    bool is_given[CR_NUM_SCHEDULE_ARGS]; /* else Transformers' default */
} cr_schedule_args;
/* The learning rate over a run of max_steps updates. */
typedef struct cr_lr_schedule {
    cr_schedule kind;
    double learning_rate; /* its maximum */
    int64_t warmup_steps, max_steps;
    cr_schedule_args args;
} cr_lr_schedule;
/* One argument: a number, or a word if word is not NULL. CR_EARG: the schedule has no such argument, or
 * what is expected. */
CR_MUST cr_status cr_schedule_set(cr_schedule kind, const char *name, double number,
                                  const char *word, cr_schedule_args *args, cr_err *err);
/* CR_EARG: arguments that are missing, exclude each other, or are above the learning rate. */
CR_MUST cr_status cr_schedule_check(const cr_lr_schedule *s, cr_err *err);
/* Of update k (from 0) of a schedule that cr_schedule_check takes: Transformers' own operations in their
 * order. */
double cr_learning_rate(const cr_lr_schedule *s, int64_t k);

typedef enum cr_filter { CR_FILTER_NONE, CR_FILTER_MEAN, CR_FILTER_STD } cr_filter;
typedef struct cr_query_filter {
    cr_filter type;
    double threshold_down, threshold_up, std_threshold;
} cr_query_filter;
/* Whether a group stays, by its rewards (those with a verdict; without any it stays): mean inside
 * (down, up), or unbiased std, 0 of a single one, above the threshold. */
bool cr_query_filter_keeps(const cr_query_filter *f, const double *rewards, size_t num);

#endif
