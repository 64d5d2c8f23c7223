/* ifeval.h -- ifeval: does the response follow an instruction that a program can check? */
#ifndef CR_IFEVAL_H
#define CR_IFEVAL_H

#include "rewards/rule.h"

/* ground_truth is JSON: {"func_name": .., arguments}. */
CR_MUST cr_status cr_ifeval_check_row(const char *ground_truth, cr_err *err);
void cr_ifeval_rule(const cr_rule_args *a, cr_rule_result *out);

#endif
