/* lines_run.h -- a command that answers lines of JSON from a model, on one rank or several: rank 0 has stdin and stdout.
 *
 * Callbacks get the ctx of their task. What a task opens is its own, and it is closed before the session is.
 */
#ifndef CR_LINES_RUN_H
#define CR_LINES_RUN_H

#include "launch/session.h"
#include "text/lines.h"

typedef struct cr_lines_task {
    cr_session_kind kind;
    /* Check what options say, once the keys are read; nothing is opened. NULL: nothing to check. */
    cr_status (*settle)(void *ctx, const cr_session *session, cr_err *err);
    /* On every rank: open the session, and answer. */
    cr_status (*work)(void *ctx, cr_session *session, const char *device, cr_lines *lines,
                      cr_err *err);
    void (*close)(void *ctx); /* also after a failure of settle */
    void *ctx;
} cr_lines_task;

/* Returns the exit code of the command: 2 if a line was answered with an error. */
int cr_lines_run(const cr_session_call *call, const cr_lines_task *task);

#endif
