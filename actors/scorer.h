/* scorer.h -- one scoring program: a child that reads a JSON line and answers with one.
 *
 * Built-in rules and anybody's own program are the same to a reward worker: `croll score DOMAIN` or
 * `--exec PROGRAM`, each given {"id", row columns.., "response_tokens", "response"} and answering
 * {"score", "reward", "status", "detail"} (docs/rewards.md). A program that gives no answer within the
 * limit is killed and started again; the sample gets status "timeout", never a silent zero.
 * One thread a scorer.
 */
#ifndef CR_SCORER_H
#define CR_SCORER_H

#include "base/json.h"
#include <sys/types.h>

typedef struct cr_scorer {
    char **argv; /* borrowed, NULL-terminated */
    double limit_s;
    pid_t pid; /* 0: not running */
    int to_fd, from_fd;
    cr_buf pending; /* bytes read behind the last answer */
} cr_scorer;

typedef struct cr_verdict {
    double score, reward;
    char status[12]; /* "ok", "timeout", "error" */
    char detail[200];
} cr_verdict;

void cr_scorer_init(cr_scorer *s, char **argv, double limit_s);
void cr_scorer_close(cr_scorer *s);
/* row: one JSON object as text; response is put into it as "response", id as "id", the number of its
 * tokens as "response_tokens". A program that cannot be started is CR_EIO; everything else that goes
 * wrong is in the verdict. */
CR_MUST cr_status cr_scorer_ask(cr_scorer *s, const char *row, size_t row_bytes, const char *id,
                                const char *response, size_t response_bytes, size_t response_tokens,
                                cr_verdict *out, cr_err *err);

/* The answer of a program, without its newline: any bytes. */
void cr_verdict_read(const cr_buf *answer, cr_verdict *out);

#endif
