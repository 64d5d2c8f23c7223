/* reward_model.h -- the scoring program of the rule reward_model: a sequence classification checkpoint of Transformers with one label
 * gives each sample a score, the reward.
 *
 * Flow 4 of 7. A line's prompt_ids and response_ids, as the policy had them, go through the model; the score is what its head says of
 * the last token that is not config.json's pad_token_id (of the last one, without such an id). It has the same bits in any company.
 */
#ifndef CR_REWARD_MODEL_H
#define CR_REWARD_MODEL_H

#include "scorers/score_line.h"

typedef struct cr_reward_model_args {
    const char *path, *domain; /* a run's file, a domain of it */
    int number;                /* of the reward worker, which has that device of device_mapping */
    cr_score_form form;
} cr_reward_model_args;

/* Answer the lines of stdin until it ends. CR_EFORMAT: some lines were wrong. */
CR_MUST cr_status cr_reward_model_lines(const cr_reward_model_args *args, cr_err *err);

#endif
