/* rows.h -- which pipeline a file is of, and keys of those whose rows have their answers: sft, dpo and distill. Part of configs.h.
 */
#ifndef CR_ROW_KEYS_H
#define CR_ROW_KEYS_H

#include "rl/distill.h"

typedef enum cr_pipeline {
    CR_PIPELINE_RLVR,
    CR_PIPELINE_SFT,
    CR_PIPELINE_DPO,
    CR_PIPELINE_DISTILL
} cr_pipeline;
extern const char *const cr_pipeline_names[]; /* "rlvr", "sft", .. */

#define CR_QUESTION "{Question}"

/* Columns of a file, and the order of its rows; texts are owned, NULL: none. */
typedef struct cr_row_keys {
    char *prompt_key, *query_key, *system_key;
    char *response_key;      /* sft; of distill answer_key, and prompt_key is question_key */
    char *question_template; /* distill: has CR_QUESTION, which stands for the question */
    char *chosen_key, *rejected_key; /* dpo */
    bool shuffle;
    bool keeps_reference; /* dpo: log-probs of the reference are computed once for each pair */
} cr_row_keys;

/* Of on-policy distillation, each teacher: which rows it answers for, and how much that weighs. */
enum { CR_MAX_TEACHERS = 4 };
typedef struct cr_teacher_keys {
    char **tags; /* of rows; none: all rows */
    size_t num_tags;
    double opd_kl_coef;
} cr_teacher_keys;

/* Of distill (docs/distill.md). */
typedef struct cr_distill_keys {
    cr_kd_config kd;
    double distill_loss_weight; /* of the distance to the teacher; 1 less it, of the answers */
    bool distill_on_prompt;     /* a row learns all its tokens */
} cr_distill_keys;

#endif
