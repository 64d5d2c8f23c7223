/* terms.h -- rules about the form of a response, which need no right answer: terms of a sum of rewards.
 *
 *   format       reward 1 if the text matches format_pattern from its start (as Python's re.match with DOTALL and
 *                MULTILINE), or consists of the format_tags one after the other; else 0
 *   length       overlong_buffer: 0 up to max_response_tokens - len tokens, then falling on a line to -penalty_factor
 *                at max_response_tokens (the soft overlong punishment of DAPO, arXiv:2503.14476); and
 *                response_length_penalty_coef for short ones, as ROLL's CrossThinkQA has it
 *   repetition   repetition_max_penalty x the share of word n-grams that have occurred before
 *
 * Scores are 1 where nothing is to be found fault with, else 0. Special tokens are left out of the text.
 */
#ifndef CR_TERMS_H
#define CR_TERMS_H

#include "configs/configs.h"
#include "rewards/rule.h"

void cr_format_rule(const cr_rule_args *a, cr_rule_result *out);
void cr_length_rule(const cr_rule_args *a, cr_rule_result *out);
void cr_repetition_rule(const cr_rule_args *a, cr_rule_result *out);

/* length_coef x (-0.5 below 100 tokens, up to 0 at 400), of the row's response_tokens; 0 without a length_coef. False: the
 * row has none, out says so. ROLL measures the padded row of ids, hence a constant. */
bool cr_short_penalty(const cr_rule_args *a, double *penalty, cr_rule_result *out);

#endif
