/* choices.h -- the keys that take one of a few words, as enums.
 *
 * The values are in the order of the key's words in keys.c (cri_choice_of). A key without a default has
 * a first value NONE for "not given". Types that rooms below have, too, keep their order there;
 * actors/choices.h checks that and converts.
 */
#ifndef CR_CHOICES_H
#define CR_CHOICES_H

typedef enum cr_choice_track {
    CR_TRACK_TENSORBOARD,
    CR_TRACK_STDOUT,
    CR_TRACK_NONE,
    CR_TRACK_EXEC,  /* exec PROGRAM */
    CR_TRACK_WANDB, /* from here on: named, and refused with the program that does it */
    CR_TRACK_SWANLAB,
    CR_TRACK_TRACKIO,
    CR_TRACK_MLFLOW
} cr_choice_track;

typedef enum cr_choice_dtype {
    CR_CHOICE_FP32,
    CR_CHOICE_BF16,
    CR_CHOICE_FP16,
    CR_CHOICE_FP64 /* known and available nowhere */
} cr_choice_dtype;

typedef enum cr_choice_estimator {
    CR_CHOICE_ADV_REINFORCE,
    CR_CHOICE_ADV_GRPO,
    CR_CHOICE_ADV_GAE
} cr_choice_estimator;

typedef enum cr_choice_norm {
    CR_CHOICE_NORM_NONE,
    CR_CHOICE_NORM_BATCH,
    CR_CHOICE_NORM_GROUP,
    CR_CHOICE_NORM_RUNNING
} cr_choice_norm;

typedef enum cr_choice_kl {
    CR_CHOICE_KL_K1, /* kl */
    CR_CHOICE_KL_ABS,
    CR_CHOICE_KL_MSE
} cr_choice_kl;

typedef enum cr_choice_agg {
    CR_CHOICE_AGG_TOKEN_MEAN,
    CR_CHOICE_AGG_SEQ_MEAN_TOKEN_SUM,
    CR_CHOICE_AGG_SEQ_MEAN_TOKEN_MEAN,
    CR_CHOICE_AGG_SEQ_MEAN_TOKEN_SUM_NORM
} cr_choice_agg;

typedef enum cr_choice_ratio { CR_CHOICE_RATIO_TOKEN, CR_CHOICE_RATIO_SEQ } cr_choice_ratio;

typedef enum cr_choice_variant {
    CR_CHOICE_PG_NONE,
    CR_CHOICE_PG_PPO,
    CR_CHOICE_PG_VANILLA,
    CR_CHOICE_PG_TIS,
    CR_CHOICE_PG_TOPR,
    CR_CHOICE_PG_CISPO,
    CR_CHOICE_PG_KIMI15,
    CR_CHOICE_PG_DPPO_TV,
    CR_CHOICE_PG_SAPO
} cr_choice_variant;

typedef enum cr_choice_grain {
    CR_CHOICE_GRAIN_TOKEN,
    CR_CHOICE_GRAIN_GEOMETRIC,
    CR_CHOICE_GRAIN_SEQUENCE,
    CR_CHOICE_GRAIN_SEGMENT
} cr_choice_grain;

typedef enum cr_choice_logprobs { CR_LOGPROBS_SAMPLED, CR_LOGPROBS_RAW } cr_choice_logprobs;

typedef enum cr_choice_schedule {
    CR_CHOICE_LR_LINEAR,
    CR_CHOICE_LR_COSINE,
    CR_CHOICE_LR_COSINE_WITH_RESTARTS,
    CR_CHOICE_LR_POLYNOMIAL,
    CR_CHOICE_LR_CONSTANT,
    CR_CHOICE_LR_CONSTANT_WITH_WARMUP,
    CR_CHOICE_LR_INVERSE_SQRT
} cr_choice_schedule;

typedef enum cr_choice_strategy {
    CR_STRATEGY_NONE,
    CR_STRATEGY_FSDP2_TRAIN,
    CR_STRATEGY_FSDP2_INFER,
    CR_STRATEGY_OTHER /* and those that follow: croll's engine runs instead */
} cr_choice_strategy;

typedef enum cr_choice_filter { CR_FILTER_NONE, CR_FILTER_MEAN, CR_FILTER_STD } cr_choice_filter;

#endif
