/* choices.h -- the keys that take one of a few words, as enums.
 *
 * The values are in the order of the key's words in keys.c (cri_choice_of), as are those of the enums of
 * rl/ that keys choose from. A key without a default has a first value NONE for "not given".
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

typedef enum cr_choice_files { CR_FILES_SHARED, CR_FILES_GATHER, CR_FILES_EACH } cr_choice_files;

typedef enum cr_choice_ratio { CR_RATIO_TOKEN, CR_RATIO_SEQ } cr_choice_ratio;

typedef enum cr_choice_logprobs { CR_LOGPROBS_SAMPLED, CR_LOGPROBS_RAW } cr_choice_logprobs;

/* det_iou_threshold; from CR_IOU_FIRST on 0.5, 0.55 .. 0.95, 0.99. */
typedef enum cr_choice_iou { CR_IOU_AVERAGE, CR_IOU_DYNAMIC, CR_IOU_FIRST } cr_choice_iou;

/* Of a critic: names and first values of its head; of a reward model the last. */
typedef enum cr_choice_value_head {
    CR_VALUE_HEAD_NONE,
    CR_VALUE_HEAD_TRL,
    CR_VALUE_HEAD_TOKENS,
    CR_VALUE_HEAD_SCORE
} cr_choice_value_head;

typedef enum cr_choice_strategy {
    CR_STRATEGY_NONE,
    CR_STRATEGY_FSDP2_TRAIN,
    CR_STRATEGY_FSDP2_INFER,
    CR_STRATEGY_OTHER /* and those that follow: croll's engine runs instead */
} cr_choice_strategy;

#endif
