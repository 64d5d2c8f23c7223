/* remote.h -- the rule remote: a service of one's own gives the reward, in two requests (docs/rewards.md).
 *
 *     POST /submit        the sample                 -> {"task_id": "17"}, or at once the result
 *     GET  /result/17     until it is there          -> {"status": "pending"}, or the result
 *
 * A result is what a reward program answers: score, reward, status, detail. Pure functions of any bytes.
 */
#ifndef CR_REMOTE_H
#define CR_REMOTE_H

#include "configs/configs.h"
#include "rewards/rule.h"

#define CR_REMOTE_SUBMIT "/submit"
/* The body of a submission. prompt: what the user asked last, or "". */
void cr_remote_write(const cr_config *config, const cr_reward_config *reward, const json_t *row,
                     const char *prompt, cr_buf *out);
/* Read an answer with status 200. True: the result, or why it is no result, is in *out. False: it is asked for later;
 * *path: where (owned by the caller), NULL: where it was asked for. was_submitted: this answers a GET. */
bool cr_remote_read(const char *body, size_t num_bytes, bool was_submitted, char **path,
                    cr_rule_result *out);

#endif
