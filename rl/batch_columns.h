/* batch_columns.h -- the numbers that a batch has for each response token, or for each sample: one list for the pipeline, the
 * records of train_step and the loss.
 *
 * Another column: a row here, the place where it is made and the places that read it. What travels is written and
 * checked by this list (samples/batch.h, samples/train.h).
 */
#ifndef CR_BATCH_COLUMNS_H
#define CR_BATCH_COLUMNS_H

#include "base/base.h"

/* How a column travels in a train_step; in a value_step values, returns and final do. */
typedef enum cr_batch_travel {
    CR_TRAVEL_NEVER,
    CR_TRAVEL_ALWAYS,
    CR_TRAVEL_IF_THERE, /* absent: the loss goes without it */
    CR_TRAVEL_UNLESS_1  /* absent: every number is 1 */
} cr_batch_travel;

/* X(value, name, is_per_sample, travel) */
#define CR_COLUMN_LIST(X)                                                                          \
    X(LOG_PROBS, "log_probs", false, NEVER) /* under the weights that train */                     \
    X(ENTROPY, "entropy", false, NEVER)     /* of the distribution under these weights */          \
    X(INFER, "infer", false, ALWAYS)        /* log-probs as the engine sampled them */             \
    X(OLD, "old", false, IF_THERE)          /* log-probs under the weights before the step */      \
    X(USED_OLD, "used_old", false, NEVER)   /* old as the loss of an update read it */             \
    X(REF, "ref", false, IF_THERE)          /* log-probs of the reference */                       \
    X(TEACHER, "teacher", false, NEVER)     /* log-probs of the teacher, */                        \
    X(TEACHER_2, "teacher_2", false, NEVER) /* and of others */                                    \
    X(TEACHER_3, "teacher_3", false, NEVER)                                                        \
    X(TEACHER_4, "teacher_4", false, NEVER)                                                        \
    X(MASK, "mask", false, UNLESS_1)                 /* 1: the token is of the response */         \
    X(FINAL, "final", false, UNLESS_1)               /* mask without what masks of samples drop */ \
    X(ENTROPY_MASK, "entropy_mask", false, IF_THERE) /* absent: mask */                            \
    X(IS_WEIGHT, "is_weight", false, UNLESS_1)       /* of the train / infer correction */         \
    X(TOKEN_REWARDS, "token_level_rewards", false, NEVER)                                          \
    X(KL, "kl", false, NEVER)                   /* to the reference */                             \
    X(OPD_KL, "opd_kl", false, NEVER)           /* to the teacher */                               \
    X(VALUES, "values", false, NEVER)           /* of the critic before the step */                \
    X(PASS_VALUES, "pass_values", false, NEVER) /* under the weights of the critic that train */   \
    X(RETURNS, "returns", false, NEVER)                                                            \
    X(RAW_ADVANTAGES, "raw_advantages", false, NEVER) /* before they are whitened */               \
    X(ADVANTAGES, "advantages", false, ALWAYS)                                                     \
    X(SCORES, "scores", true, ALWAYS)                                                              \
    X(REWARDS, "rewards", true, NEVER)                                                             \
    X(WEIGHTS, "weights", true, UNLESS_1) /* of a sample's policy loss */

typedef enum cr_batch_column {
#define X(value, name, is_per_sample, travel) CR_COLUMN_##value,
    CR_COLUMN_LIST(X)
#undef X
        CR_NUM_COLUMNS
} cr_batch_column;

extern const struct cr_batch_column_row {
    const char *name;
    bool is_per_sample;
    cr_batch_travel travel;
} cr_batch_columns[CR_NUM_COLUMNS];

#endif
