/* video_r1.h -- the rule "video_r1": the answer of a response by the kind of its question, as ROLL's VideoR1RewardWorker
 * scores it (docs/rewards.md). The kind is the row's column problem_type, or reward_model where that is a text.
 */
#ifndef CR_VIDEO_R1_H
#define CR_VIDEO_R1_H

#include "rewards/rule.h"

/* The score is the accuracy, the reward 1 more if the response is <think>..</think> <answer>..</answer>. */
void cr_video_r1_rule(const cr_rule_args *a, cr_rule_result *out);
/* The row, whose ground_truth is a text, has a known kind and an answer of it. */
CR_MUST cr_status cr_video_r1_check_row(const json_t *row, cr_err *err);
/* The text of the answer, for counting equal ones; owned by the caller, NULL: it is empty. */
char *cr_video_r1_answer(const char *response, size_t response_bytes);

#endif
