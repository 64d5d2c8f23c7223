/* math.h -- math_rule: is the boxed answer equal to the ground truth? (rlvr.md 4.2) */
#ifndef CR_MATH_H
#define CR_MATH_H

#include "rl/rules/rules.h"

/* prompt: whether it ends with <think> decides how the response may think. */
void cr_math_rule(const char *prompt, const char *response, size_t response_bytes,
                  const char *ground_truth, double deadline_s, cr_rule_result *out);

#endif
