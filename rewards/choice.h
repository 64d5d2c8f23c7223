/* choice.h -- multiple choice: is the first capital letter of the answer the right one?
 *
 * The answer is the last non-empty \boxed{..}, else what follows the last "answer is", else all of
 * the text after its thinking. Right is the first letter of the ground truth: "B", "(b)", "B. two".
 */
#ifndef CR_CHOICE_H
#define CR_CHOICE_H

#include "rewards/rule.h"

/* CR_EFORMAT: no letter in it. */
CR_MUST cr_status cr_choice_check_gold(const char *gold, cr_err *err);
/* 1 for the right letter in a box. ROLL's reward is a constant 0; here it is the score. */
void cr_multiple_choice_rule(const cr_rule_args *a, cr_rule_result *out);
/* Needs reward_type: what an answer without a box is worth. Rewards also length and variety. */
void cr_crossthink_rule(const cr_rule_args *a, cr_rule_result *out);
/* 1 for the right letter, boxed or not; the tags ceval, race_high, mmlu_pro, commonsense_qa. */
CR_MUST cr_status cr_general_val_check_row(const json_t *row, cr_err *err);
void cr_general_val_rule(const cr_rule_args *a, cr_rule_result *out);

/* The letter that a response chooses; NULL: none. Owned by the caller. */
char *cr_choice_answer(const char *response, size_t response_bytes);

#endif
