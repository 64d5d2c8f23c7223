/* rl.h -- rewards to advantages, log-probs to a loss and its gradient: pure functions.
 *
 * Flow 6 and 7 of 9. No I/O, no device, no state. Batches are ragged: sample i has the response
 * tokens start[i] .. start[i+1]-1 of every per-token array, no padding. Samples of a group (one
 * prompt) are adjacent. Everything is float64: what is summed here is small.
 *
 * Losses are sums divided by counts over the whole mini-batch, which the caller passes in, so a loss
 * may be computed on any part of the mini-batch and the parts add up; so do the metric sums.
 *
 * Formulas and names of settings are ROLL's (its mistakes put right: masks count in every mode, no
 * value leaks in from behind a row, a group of one has standard deviation 0). docs/formulas.md.
 *
 * Ownership: every array belongs to the caller. Threads: any. Errors: CR_EARG names the setting.
 */
#ifndef CR_RL_H
#define CR_RL_H

#include "base/base.h"

typedef struct cr_ragged {
    size_t num_samples;
    const size_t *start; /* [num_samples + 1] */
} cr_ragged;

/* ---- sample masks (before rewards) ---- */

typedef struct cr_mask_config {
    bool max_len_mask, difficulty_mask, error_max_len_clip;
    double difficulty_low_threshold, difficulty_high_threshold;
    double error_max_len_threshold;
} cr_mask_config;
/* keep[i] 1 or 0: not cut off (length < response_length); group mean inside the open thresholds;
 * wrong answers not too long. lengths in tokens. */
void cr_sample_mask(const cr_mask_config *c, size_t num_samples, size_t group,
                    const double *lengths, double response_length, const double *scores,
                    double *keep);

/* ---- rewards, KL, advantages ---- */

typedef enum cr_norm { CR_NORM_NONE, CR_NORM_BATCH, CR_NORM_GROUP, CR_NORM_RUNNING } cr_norm;
typedef enum cr_kl { CR_KL_K1, CR_KL_ABS, CR_KL_MSE, CR_KL_K3 } cr_kl; /* kl, abs, mse, k3 */
typedef enum cr_estimator { CR_ADV_REINFORCE, CR_ADV_GRPO, CR_ADV_GAE } cr_estimator;

typedef struct cr_moments { /* of all rewards so far; starts as {0, 1, 1e-24} */
    double mean, var, count;
} cr_moments;

typedef struct cr_advantage_config {
    cr_estimator adv_estimator;
    cr_norm norm_mean_type, norm_std_type; /* grpo: both group */
    double gamma, lambd;
    double reward_clip, advantage_clip; /* 0: off */
    bool whiten_rewards, whiten_advantages, add_token_level_kl;
    cr_kl kl_penalty;
    double kl_coef; /* the controller's value */
} cr_advantage_config;

typedef struct cr_advantage_args {
    cr_ragged rows;
    size_t group;
    const double *scores;                        /* [N] response-level rewards */
    const double *old_log_probs, *ref_log_probs; /* per token; NULL: no KL */
    const double *values;                        /* per token, gae only */
    const double *final_mask;                    /* per token */
    cr_moments *moments;                         /* running normalisation only: updated */
    /* out */
    double *rewards; /* [N] after normalisation and clip */
    double *token_rewards, *advantages, *raw_advantages, *returns, *kl; /* per token */
    double kl_mean; /* mean over rows of each row's masked mean */
    double reward_clip_frac, advantage_clip_frac;
} cr_advantage_args;
CR_MUST cr_status cr_advantage(const cr_advantage_config *c, cr_advantage_args *a, cr_err *err);

/* Adaptive controller: value *= 1 + clip(current / target - 1, -0.2, 0.2) * rows / horizon. */
double cr_kl_controller(double value, double target_kl, double kl_horizon, double current,
                        double rows);

/* ---- train / infer correction ---- */

typedef enum cr_grain {
    CR_GRAIN_TOKEN,
    CR_GRAIN_GEOMETRIC,
    CR_GRAIN_SEQUENCE,
    CR_GRAIN_SEGMENT,
    CR_NUM_GRAINS
} cr_grain;

typedef struct cr_correction_config {
    bool has_weight;
    cr_grain weight_type;
    double upper_bound; /* 0: none */
    struct cr_correction_filter {
        bool is_enabled, is_ratio, is_diff;
        cr_grain agg_type;
        double ratio_low, ratio_high, diff_low, diff_high;
    } filters[8];
    size_t num_filters;
} cr_correction_config;
/* ratio and diff: [CR_NUM_GRAINS] arrays of all tokens, or NULL. weight and keep: per token. */
void cr_correction(const cr_correction_config *c, const cr_ragged *rows,
                   const double *old_log_probs, const double *infer_log_probs, const double *mask,
                   double *const *ratio, double *const *diff, double *weight, double *keep);

/* ---- the policy loss ---- */

typedef enum cr_agg {
    CR_AGG_TOKEN_MEAN,
    CR_AGG_SEQ_MEAN_TOKEN_SUM,
    CR_AGG_SEQ_MEAN_TOKEN_MEAN,
    CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM
} cr_agg;
typedef enum cr_variant {
    CR_PG_PPO,
    CR_PG_VANILLA,
    CR_PG_TIS,
    CR_PG_TOPR,
    CR_PG_CISPO,
    CR_PG_KIMI15
} cr_variant;

typedef struct cr_loss_config {
    cr_variant pg_variant;
    bool is_sequence_ratio; /* importance_sampling: seq */
    cr_agg loss_agg_mode;
    double pg_clip, pg_clip_low, pg_clip_high;
    bool use_pg_clip_range, dual_clip_loss, use_kl_loss;
    double kl_loss_coef, rl_loss_coef, entropy_loss_coef;
    double topr_positive_weight, topr_negative_weight, tis_lower_bound, tis_upper_bound;
    double cispo_epsilon_low, cispo_epsilon_high, kimi15_tau;
    bool cispo_use_unified_mask;
} cr_loss_config;

/* Denominators over the whole mini-batch and all ranks: tokens, and samples with at least one, of the
 * final mask and of the response mask. 0 is taken as 1. */
typedef struct cr_denominators {
    double final_tokens, final_samples, tokens, samples;
    double entropy_tokens, entropy_samples; /* of entropy_mask, if there is one */
    double width;                           /* longest response (seq-mean-token-sum-norm) */
} cr_denominators;

/* Sums that add up over parts of a mini-batch; every mean is already over the mini-batch. */
typedef struct cr_loss_metrics {
    double total_loss, pg_loss, weighted_pg_loss, kl_loss, entropy_loss, approxkl, policykl;
    double ratio_sum, ratio_max, ratio_min, num_tokens; /* over the final mask */
    double clip_low, clip_high; /* tokens with ratio below, above the range, / final_tokens */
    double infer_diff_max;      /* max |log_prob - infer_log_prob| over the mask */
} cr_loss_metrics;

typedef struct cr_loss_args {
    cr_ragged rows;
    const double *log_probs, *old_log_probs, *ref_log_probs; /* ref NULL: no KL */
    const double *infer_log_probs, *entropy;                 /* may be NULL */
    const double *advantages, *mask, *final_mask;
    const double *scores, *weights; /* [N]; NULL: 0, 1 */
    const double *is_weight;        /* per token, or NULL */
    const double *entropy_mask;     /* NULL: mask. Filters of the correction leave it as it is */
    cr_denominators all;
    /* out, per token; ratio may be NULL */
    double *grad_log_probs, *grad_entropy, *ratio;
    cr_loss_metrics metrics;
} cr_loss_args;
void cr_policy_loss(const cr_loss_config *c, cr_loss_args *a);
/* Counts of one part, to be added up into cr_denominators. */
void cr_count_masks(const cr_ragged *rows, const double *mask, double *num_tokens,
                    double *num_samples);

/* 0.5 * mean over rows of the masked mean of (v - return)^2 or its clipped maximum (clip 0: off);
 * clipfrac: mean over rows of the part of the row whose clipped error is the greater. */
void cr_value_loss(const cr_ragged *rows, const double *values, const double *old_values,
                   const double *returns, const double *mask, double value_clip, double *vf_loss,
                   double *clipfrac, double *grad_values);

/* ---- small things ---- */

typedef enum cr_schedule {
    CR_LR_LINEAR,
    CR_LR_COSINE,
    CR_LR_COSINE_WITH_RESTARTS,
    CR_LR_POLYNOMIAL,
    CR_LR_CONSTANT,
    CR_LR_CONSTANT_WITH_WARMUP,
    CR_LR_INVERSE_SQRT,
    CR_NUM_SCHEDULES
} cr_schedule;
extern const char *const cr_schedule_names[CR_NUM_SCHEDULES];
/* Learning rate of update k (from 0), Hugging Face's schedules. */
double cr_learning_rate(cr_schedule kind, double learning_rate, int64_t warmup_steps,
                        int64_t max_steps, int64_t k);

/* Query filter of a group's rewards: mean inside (down, up), or unbiased std above the threshold. */
bool cr_filter_mean(const double *rewards, size_t num, double down, double up);
bool cr_filter_std(const double *rewards, size_t num, double threshold);

#endif
