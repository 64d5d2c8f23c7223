/* rules.h -- built-in reward rules: one response to one score. Pure functions, text in, number out.
 *
 * Flow 4 of 7. `row` is a line of a ROLL data file. A score is what accuracy and masks look at (1
 * right, 0 wrong), a reward is what training uses. Every rule is bounded in time by its deadline
 * (seconds on cr_now_s's clock); a rule that cannot judge says status "error", never a silent zero.
 * Threads: any.
 */
#ifndef CR_RULES_H
#define CR_RULES_H

#include "rewards/rule.h"

/* NULL: no rule of that name. */
cr_rule cr_rule_find(const char *name);
/* Rows of most rules have the right answer; those of terms (terms/terms.h) need none. */
bool cr_rule_has_ground_truth(cr_rule rule);
/* What a response answers, as a text by which equal answers can be counted: of math_rule the value, of the
 * rules of choices the letter, of video_r1 the answer's text, of any other rule (or NULL: a program) the response without blanks around it.
 * NULL: no answer. Owned by the caller. */
char *cr_rule_answer(const char *rule, const cr_rule_args *a);
/* Names of all rules, NULL-terminated. */
extern const char *const cr_rule_names[];

/* ground_truth of a row is text; a number becomes its text. Without one it is reward_model.ground_truth; a reward_model in
 * JSON text becomes its object. CR_EFORMAT: it is missing or neither. */
CR_MUST cr_status cr_rule_take_ground_truth(json_t *row, cr_err *err);
/* The row has what the rule of this name needs to judge any response; as above for ground_truth. */
CR_MUST cr_status cr_rule_check_row(const char *name, json_t *row, cr_err *err);
/* A checked row of which this rule can judge no response at all: CR_EFORMAT with the reason. */
CR_MUST cr_status cr_rule_can_judge(const char *name, const json_t *row, cr_err *err);

#endif
