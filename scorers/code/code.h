/* code.h -- the rule code: does a program pass the test cases of its row?
 *
 * Flow 4 of 7. Each line of `croll score` is a response with a program; several are under way at once, each case in a sandbox of its
 * own (sandbox/sandbox.h) or, with code_url, at a service over HTTP. A program that fails a case, ends badly or exceeds a limit is
 * score 0; a case that could not be run, and a deadline that passes before all cases were, are no verdict (status "error", "timeout").
 * Answers come as lines end, not in their order; each has its id.
 *
 * One thread. The keys are borrowed.
 */
#ifndef CR_CODE_H
#define CR_CODE_H

#include "configs/configs.h"
#include "scorers/score_line.h"

#include <stdio.h>

typedef struct cr_code cr_code;
typedef struct cr_code_settings {
    const cr_code_keys *keys;
    size_t num_at_once; /* lines, and so programs */
    double limit_s;     /* for one line */
    /* Explained, an answer has the "program" that was found, and "cases" up to the first that did not pass: {"case": from 1,
     * "status": "passed", "wrong", "error" (of the program), "late", "large", "loud", "killed" or "broken" (of the sandbox),
     * "time_s", "cpu_s", "memory_mb", "detail"}. */
    cr_score_form form;
} cr_code_settings;

/* CR_EABSENT: programs cannot be run safely here, says why; CR_ECONFIG, CR_EUSAGE: the interpreter or URL cannot be used. */
CR_MUST cr_status cr_code_open(const cr_code_settings *settings, cr_code **out, cr_err *err);
void cr_code_close(cr_code *c); /* accepts NULL */
/* Answer the lines of a descriptor until it ends. CR_EFORMAT: some lines were wrong. */
CR_MUST cr_status cr_code_lines(cr_code *c, int from_fd, FILE *to, cr_err *err);

/* ---- pure functions ---- */

/* What a service says of a case: 1 passed, 0 not, -1 it is no verdict (detail: why). */
int cr_code_read_answer(const char *body, size_t num_bytes, const char *want, char detail[160]);

#endif
