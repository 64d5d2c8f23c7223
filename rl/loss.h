/* loss.h -- log-probs to a loss and its gradient: pure functions, in float64.
 *
 * Flow 6 of 7. Batches are ragged as in rl.h. Losses are sums divided by counts over the whole
 * mini-batch, which the caller passes in, so a loss may be computed on any part of the mini-batch and
 * the parts add up; so do the metric sums. Formulas are below.
 *
 * Ownership: every array belongs to the caller. Threads: any.
 */
#ifndef CR_LOSS_H
#define CR_LOSS_H

#include "rl/batch_columns.h"
#include "rl/rl.h"

/* ---- train / infer correction ---- */

typedef enum cr_grain {
    CR_GRAIN_TOKEN,
    CR_GRAIN_GEOMETRIC,
    CR_GRAIN_SEQUENCE,
    CR_GRAIN_SEGMENT,
    CR_NUM_GRAINS
} cr_grain;
extern const char *const cr_grain_names[CR_NUM_GRAINS + 1]; /* lists of names end with NULL */

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
    CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM,
    CR_NUM_AGGS
} cr_agg;
extern const char *const cr_agg_names[CR_NUM_AGGS + 1];

/* Loss of a token with advantage A, log-prob lp, ratio rho = exp(lp - old), at most 1e30; sg() has no gradient.
 *   ppo      -min(rho A, clip(rho, 1 - low, 1 + high) A), dual clip; arXiv:1707.06347, 1912.09729.
 *            With a sequence ratio GSPO, arXiv:2507.18071
 *   vanilla  -A lp (REINFORCE)
 *   tis      -sg(clip(rho, lower, upper)) A lp: truncated importance sampling
 *   topr     -w+ A lp where the score is > 0, else -w- sg(clip(rho, 0, 1)) A lp; arXiv:2503.14286
 *   cispo    -sg(clip(rho, 1 - low, 1 + high)) A lp; arXiv:2506.13585 (equation 7: unified mask)
 *   kimi15   -A lp + tau / 2 (lp - old)^2; arXiv:2501.12599, equation 3
 *   dppo_tv  -sg(min(rho, c)) A lp where the token's probability has not moved more than the mask
 *            allows in the direction of A, else 0; arXiv:2602.04879 (DPPO, binary TV)
 *   sapo     -4 / tau sigmoid(tau (rho - 1)) A, tau by the sign of A; arXiv:2511.20347 */
typedef enum cr_variant {
    CR_PG_PPO,
    CR_PG_VANILLA,
    CR_PG_TIS,
    CR_PG_TOPR,
    CR_PG_CISPO,
    CR_PG_KIMI15,
    CR_PG_DPPO_TV,
    CR_PG_SAPO,
    CR_NUM_VARIANTS
} cr_variant;
extern const char *const cr_variant_names[CR_NUM_VARIANTS + 1];

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
    double dppo_mask_low, dppo_mask_high, dppo_clip_ratio_c;
    double sapo_temperature_pos, sapo_temperature_neg;
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
    double clip_low, clip_high; /* tokens that the variant cuts below, above, / final_tokens */
    double infer_diff_max;      /* max |log_prob - infer_log_prob| over the mask */
    /* sums over the final mask: the factor on A lp of tis, topr, cispo (before its unified mask), dppo_tv; tokens below
     * and above that the variant leaves out; d = lp - old, |d|, d^2, |A d| */
    double factor_sum, masked_low, masked_high;
    double log_ratio_sum, log_ratio_abs, log_ratio_squares, policy_abs;
} cr_loss_metrics;

/* What each token adds to total_loss and to the gradient: all arrays are set, per token. */
typedef struct cr_loss_terms {
    double *pg, *kl, *entropy; /* they add up to total_loss */
    double *grad_kl;           /* what the KL adds to grad_log_probs */
    double *weight;            /* of its policy loss in the mean */
    double *cut;               /* -1, 1: the variant cuts its ratio below, above; 0: not */
} cr_loss_terms;

typedef struct cr_loss_args {
    cr_ragged rows;
    /* Those it needs: LOG_PROBS, OLD, ADVANTAGES, MASK, FINAL. Those that may be NULL: REF (no KL), INFER, ENTROPY, SCORES (0),
     * WEIGHTS (1), IS_WEIGHT (1), ENTROPY_MASK (MASK; filters of the correction leave it as it is). */
    const double *of[CR_NUM_COLUMNS];
    cr_denominators all;
    /* out, per token; ratio may be NULL */
    double *grad_log_probs, *grad_entropy, *ratio;
    const cr_loss_terms *terms; /* or NULL: not wanted */
    cr_loss_metrics metrics;
} cr_loss_args;
void cr_policy_loss(const cr_loss_config *c, cr_loss_args *a);
/* Weight of each sample's policy loss: 0.5 + 1.5 clip(difficulty, 0, 1), times 1.5 - (length - min)
 * / (max - min), scaled so that the mean over the samples with is_trained != 0 is 1; min and
 * max are of those. difficulty NULL, lengths NULL: without that factor. */
void cr_sample_weights(size_t num, const double *difficulty, const double *lengths,
                       const double *is_trained, double *out);
/* Counts of one part, to be added up into cr_denominators. */
void cr_count_masks(const cr_ragged *rows, const double *mask, double *num_tokens,
                    double *num_samples);

/* ---- the value loss ---- */

/* Means over the samples of the mini-batch of each one's mean over its mask; they add up over parts. */
typedef struct cr_value_metrics {
    double loss;                    /* 0.5 (v - return)^2, or what the clip makes of it */
    double clipfrac;                /* tokens whose clipped error is the greater */
    double old_value, value, error; /* before the step; now; (v - return)^2 */
} cr_value_metrics;

/* Loss of a token: 0.5 (v - return)^2, with value_clip c the greater one of it and of
 * 0.5 (clip(v, old - c, old + c) - return)^2. */
typedef struct cr_value_args {
    cr_ragged rows;
    const double *values, *returns, *mask; /* per token */
    const double *old_values;              /* NULL: no clip, and no metric of them */
    double value_clip;                     /* 0: off */
    double
        num_samples; /* of the whole mini-batch, with at least a token of the mask; 0 is taken as 1 */
    /* out */
    double *grad_values; /* per token */
    double *terms;       /* per token, what it adds to the loss; NULL: not wanted */
    cr_value_metrics metrics;
} cr_value_args;
void cr_value_loss(cr_value_args *a);

#endif
