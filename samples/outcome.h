/* outcome.h -- what became of the question for a reward: the "status" of answers, records and files. */
#ifndef CR_OUTCOME_H
#define CR_OUTCOME_H

typedef enum cr_outcome {
    CR_OUTCOME_NONE,    /* no answer yet */
    CR_OUTCOME_OK,      /* score and reward are there */
    CR_OUTCOME_ABSTAIN, /* the reward does not apply to this sample */
    CR_OUTCOME_TIMEOUT,
    CR_OUTCOME_ERROR,
    CR_NUM_OUTCOMES
} cr_outcome;

/* Scores, rewards and rewards of tokens are finite and within +-CR_SCORE_LIMIT. */
#define CR_SCORE_LIMIT 1e6

/* "ok", "abstain", "timeout", "error"; "" of CR_OUTCOME_NONE. */
const char *cr_outcome_name(cr_outcome outcome);
/* CR_OUTCOME_NONE: the text, or NULL, is no such name. */
cr_outcome cr_outcome_find(const char *text);

#endif
