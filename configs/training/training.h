/* training.h -- training_args of a role that trains. Part of configs.h.
 */
#ifndef CR_TRAINING_KEYS_H
#define CR_TRAINING_KEYS_H

#include "base/base.h"
#include "rl/rl.h"

/* Parameters with a learning rate or a weight decay of their own (strategies/optim/optimizer.h). */
typedef struct cr_param_group {
    char *params;
    double learning_rate, weight_decay; /* below 0: as all others */
    bool is_adamw;                      /* also with optim: muon */
} cr_param_group;

/* optim: muon; its numbers are those of torch.optim.Muon. */
typedef enum cr_choice_adjust_lr {
    CR_CHOICE_MATCH_RMS_ADAMW,
    CR_CHOICE_ORIGINAL,
    CR_CHOICE_SPECTRAL_UNCLAMPED
} cr_choice_adjust_lr;
typedef struct cr_muon_keys {
    bool is_on, nesterov;
    double learning_rate, weight_decay; /* of its matrices; below 0: as all others */
    double momentum, eps;
    int64_t ns_steps;
    cr_choice_adjust_lr adjust_lr_fn;
} cr_muon_keys;

typedef struct cr_training_args {
    double learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon, warmup_ratio,
        num_train_epochs;
    cr_schedule lr_scheduler_type;
    cr_schedule_args lr_scheduler_kwargs;
    int64_t per_device_train_batch_size, gradient_accumulation_steps, warmup_steps;
    cr_param_group *param_groups;
    size_t num_param_groups;
    cr_muon_keys muon;
} cr_training_args;

/* Which validation is the best, and when a run ends early. */
typedef struct cr_best_keys {
    char *metric; /* NULL: none is looked for */
    bool is_greater_better;
    int64_t patience; /* 0: no early stop */
    double threshold;
} cr_best_keys;

/* Which rows are drawn (docs/data.md, "Curriculum"). */
typedef struct cr_curriculum_keys {
    bool is_on;
    int64_t max_solved; /* groups in a row after which a row leaves; 0: none leaves */
    double solved_score, easy_threshold, hard_threshold; /* infinite: there is no such pool */
    double easy_fraction, hard_fraction;
} cr_curriculum_keys;

/* A reference that follows the policy: TRL's sync_ref_model. */
typedef struct cr_follow_keys {
    int64_t steps; /* from a sync to the next one; 0: it stays as it is */
    double alpha;  /* ref_model_mixup_alpha: share of the policy */
} cr_follow_keys;

#endif
