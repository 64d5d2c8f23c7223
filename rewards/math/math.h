/* math.h -- math_rule: is the answer of a response equal to the ground truth?
 *
 * The answer is looked for after </think>, else in the last paragraph: the last \boxed{..}, else
 * the last formula or number. Both sides are read as LaTeX or plain text and compared as values:
 * numbers, roots, constants, sets, intervals, tuples, matrices, equations, expressions, words. The
 * verdicts are those of Math-Verify (a test oracle, never a dependency) where it agrees with plain
 * mathematics; docs/math.md lists the differences. One to ROLL: an answer of one paragraph counts.
 *
 * What is too deep, too long or too large to be judged has status "error", what takes longer than
 * the deadline "timeout"; a response without any answer is wrong: score 0, status "ok".
 */
#ifndef CR_MATH_H
#define CR_MATH_H

#include "rewards/rule.h"

/* prompt: whether it ends with <think> decides how the response may think. explain: of cr_rule_args. */
void cr_math_rule(const char *prompt, const char *response, size_t response_bytes,
                  const char *ground_truth, double deadline_s, json_t *explain,
                  cr_rule_result *out);
/* The ground truth can be read; else CR_EFORMAT with a sentence: of its samples none has a verdict. */
CR_MUST cr_status cr_math_check_ground_truth(const char *ground_truth, cr_err *err);
/* The answer of a response as a text that is the same for answers of the same value (1/2 and 0.5; what is no
 * plain expression only for the same LaTeX). NULL: it has none. Owned by the caller. */
char *cr_math_answer(const char *prompt, const char *response, size_t response_bytes,
                     double deadline_s);

#endif
