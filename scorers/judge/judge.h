/* judge.h -- the rule llm_judge: a model says whether a response gives the right answer.
 *
 * Flow 4 of 7. Each line of `croll score` becomes a chat of one message to a service with OpenAI's /v1/chat/completions;
 * several are under way at once. A reply without a clear verdict (reply.h), an error of the service and a deadline
 * that passes are no verdict (status "error", "timeout"): such a sample is left out, never scored 0.
 *
 * One thread. The configuration is borrowed.
 */
#ifndef CR_JUDGE_H
#define CR_JUDGE_H

#include "configs/configs.h"
#include "scorers/score_line.h"

#include <stdio.h>

typedef struct cr_judge cr_judge;
/* number: of a judge of the run (cr_judge_url). limit_s: for one line, with all tries. CR_EUSAGE: its URL, key or
 * authorities cannot be used. */
CR_MUST cr_status cr_judge_open(const cr_config *config, const cr_reward_config *reward, int number,
                                double limit_s, cr_judge **out, cr_err *err);
void cr_judge_close(cr_judge *j); /* accepts NULL */
/* Ask it about a row with an empty response: CR_ECONFIG if the service does not answer with a chat. watch (or NULL) is
 * called meanwhile, and its failure ends it. */
CR_MUST cr_status cr_judge_check(cr_judge *j, const json_t *row,
                                 cr_status (*watch)(void *ctx, cr_err *err), void *ctx,
                                 cr_err *err);
/* Answer the lines of a descriptor until it ends. CR_EFORMAT: some lines were wrong. */
CR_MUST cr_status cr_judge_lines(cr_judge *j, int from_fd, cr_score_form form, FILE *to,
                                 cr_err *err);

/* ---- pure functions ---- */

/* The body of a request. CR_EFORMAT: the row has no question. */
CR_MUST cr_status cr_judge_write(const cr_config *config, const cr_reward_config *reward,
                                 const json_t *row, cr_buf *out, cr_err *err);

#endif
