/* lines_run.c -- see lines_run.h. */
#include "serve/lines/lines_run.h"

int cr_lines_run(const cr_session_call *call, const cr_lines_task *task)
{
    cr_session session = {0};
    cr_lines lines;
    cr_err err = {0};
    int code = 0;

    cr_lines_init(&lines, stdin, stdout);
    cr_note(cr_session_read(&session, task->kind, &call->words, &err));
    cr_session_adapt(&session, &call->adapter, call->adapter != NULL);
    if (err.status == CR_OK &&
        (!task->settle || task->settle(task->ctx, &session, &err) == CR_OK) &&
        !cr_session_launch(&session, call, &code))
        cr_note(task->work(task->ctx, &session, call->device, &lines, &err));
    if (lines.has_failed) code = 2;
    task->close(task->ctx);
    cr_lines_fini(&lines);
    return cr_session_leave(&session, call->command, code, &err);
}
