/* scorer.h -- one scoring program: a child that reads JSON lines and answers each with one.
 *
 * Built-in rules and anybody's own program are the same to a reward worker: `croll score DOMAIN`, or
 * the words of `exec` (docs/rewards.md). Up to max_in_flight lines are with the program at once; an
 * answer belongs to the line whose id it has, in any order. What can go wrong is a verdict, too:
 *
 *   no answer within limit_s of writing the line      "timeout"; a later answer is dropped. The program
 *       is started again when it has answered nothing for limit_s, or has as many such lines as
 *       max_in_flight
 *   a line that is not an answer to one that is asked     counts against the lines asked: as many of them as
 *       lines asked make all these "error"
 *   the program ends                                  its lines are asked again, half as many at once;
 *       a line that was alone with a program that had answered nothing, or alone twice, is "error".
 *       One that answered nothing is started again after a pause, which doubles up to 1 s
 *
 * So every line that was put comes back with a verdict. What the program has started ends with it (keeper.h). One thread a scorer.
 */
#ifndef CR_SCORER_H
#define CR_SCORER_H

#include "base/json.h"
#include "samples/outcome.h"
#include <sys/types.h>

/* What the detail begins with where the program is not there, or is none. */
#define CR_CANNOT_START "cannot start"

typedef struct cr_verdict {
    double score, reward; /* 0 unless the outcome is CR_OUTCOME_OK */
    cr_outcome outcome;
    char detail[400];
    double seconds;       /* from writing the line to the answer */
    bool is_fault;        /* of the program: it timed out, ended, or its answer is wrong */
    json_t *metrics;      /* name -> number, or NULL (owned) */
    float *token_rewards; /* [num_tokens] of the response, or NULL (owned) */
    size_t num_tokens;
} cr_verdict;
void cr_verdict_free(cr_verdict *verdict);

typedef struct cr_scorer_args {
    char *const *argv, *const *env; /* NULL-terminated, borrowed; env: NAME=VALUE, may be NULL */
    double limit_s;
    size_t max_in_flight;
} cr_scorer_args;

typedef struct cr_scorer cr_scorer;
cr_scorer *cr_scorer_create(const cr_scorer_args *args);
void cr_scorer_destroy(cr_scorer *s); /* accepts NULL; kills the program */

/* Ask a line (with its newline; copied) whose "id" is id, of a response with num_tokens tokens. */
void cr_scorer_put(cr_scorer *s, const char *id, const cr_buf *line, size_t num_tokens);
/* Work until there is a verdict, at most wait_s: true, id and verdict are the caller's (cr_free,
 * cr_verdict_free). */
bool cr_scorer_next(cr_scorer *s, double wait_s, char **id, cr_verdict *out);
/* Why the program is not started any more: it ended 8 times in a row and has never answered. NULL: it is not so.
 * Borrowed. */
const char *cr_scorer_broken(const cr_scorer *s);

/* ---- answers: any bytes ---- */

/* The JSON object of a line and its text "id", borrowed from it. CR_EFORMAT: it is not an answer. */
CR_MUST cr_status cr_answer_parse(const char *line, size_t num_bytes, json_t **root,
                                  const char **id, cr_err *err);
/* Its verdict; what is wrong with the answer is in there. */
void cr_verdict_read(const json_t *root, size_t num_tokens, cr_verdict *out);

#endif
