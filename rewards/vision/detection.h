/* detection.h -- the rule "detection": boxes of objects against those of the row, as ROLL's DetectionRewardWorker scores
 * them (docs/rewards.md). What it needs is in the row's column reward_model.
 */
#ifndef CR_DETECTION_H
#define CR_DETECTION_H

#include "rewards/rule.h"

/* The score is the accuracy, the reward a mean of accuracy and format. */
void cr_detection_rule(const cr_rule_args *a, cr_rule_result *out);
/* The row's weights are there and within their bounds. */
CR_MUST cr_status cr_detection_check_row(const json_t *row, cr_err *err);
/* Its ground truth has boxes. */
CR_MUST cr_status cr_detection_check_ground_truth(const char *gold, cr_err *err);

#endif
