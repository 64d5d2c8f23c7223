/* reply.h -- the verdict in what a judge says; an unclear reply is no verdict.
 *
 * What a model writes up to </think> does not count. Without a pattern or a field of judge_answer a verdict is a line of
 * its own: YES or NO in any case of letters (a number, if judge_answer has bounds), with marks around it or "Verdict:"
 * before it. It is the last line, or the first one, which may go on after a comma or a full stop as long as the other
 * word does not come. Lines that contradict each other are no verdict; nor is one that may have been cut off.
 *
 * Pure but for the pattern's memory; one thread a reader.
 */
#ifndef CR_JUDGE_REPLY_H
#define CR_JUDGE_REPLY_H

#include "base/pattern.h"
#include "configs/configs.h"
#include "rewards/rule.h"

typedef struct cr_judge_reader {
    const cr_judge_answer *form; /* borrowed */
    cr_pattern *pattern;         /* owned, or NULL */
} cr_judge_reader;

/* CR_EFORMAT: the pattern. */
CR_MUST cr_status cr_judge_reader_open(cr_judge_reader *r, const cr_judge_answer *form,
                                       cr_err *err);
void cr_judge_reader_close(cr_judge_reader *r); /* {0} is fine */
/* The verdict of an answer with status 200, any bytes: status "ok" and a score from 0 to 1, or "error". */
void cr_judge_read(const cr_judge_reader *r, const char *body, size_t num_bytes,
                   cr_rule_result *out);

#endif
