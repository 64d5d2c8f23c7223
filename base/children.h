/* children.h -- the processes that `croll run` starts: spawn, watch, end.
 *
 * Every child gets its own process group and dies with the launcher (PR_SET_PDEATHSIG), whatever
 * kills the launcher. Nothing here waits without a deadline. One thread (the launcher's) calls.
 */
#ifndef CR_CHILDREN_H
#define CR_CHILDREN_H

#include "base/base.h"
#include <sys/types.h>

/* A line of a child's stderr, without its newline; it may be written to. True: show it. */
typedef bool (*cr_child_on_line)(void *ctx, char *line);

typedef struct cr_child {
    pid_t pid; /* 0: none */
    char what[64];
    bool is_running;
    int wait_status; /* as waitpid gives it, once it ended */
    int err_fd;      /* read end of its stderr when it is watched, else -1 */
    char line[512];  /* the incomplete last line of its stderr */
    size_t line_bytes;
    cr_child_on_line on_line; /* NULL: it is not watched */
    void *ctx;
} cr_child;

/* argv[0] is searched in PATH. stdin is /dev/null, stdout goes to our stderr. With on_line (ctx: borrowed) its stderr is
 * read by cr_child_pump, else (NULL) it is ours. */
CR_MUST cr_status cr_child_start(cr_child *child, const char *what, char *const argv[],
                                 cr_child_on_line on_line, void *ctx, cr_err *err);
/* Read what it wrote, notice its end. False once it has ended and all was read. */
bool cr_child_pump(cr_child *child);
/* SIGTERM to its process group, SIGKILL after grace_s; waits for the end. Accepts what never ran. */
void cr_child_stop(cr_child *child, double grace_s);
/* SIGKILL to the children of a process that has one thread. */
void cr_kill_children(pid_t pid);
/* "ended with exit code 3", "was killed by signal 9". */
enum { CR_FATE = 64 };
const char *cr_child_fate(const cr_child *child, char text[CR_FATE]);

/* The path of this program, owned by the caller; and a word of argv, which is never written to. */
char *cr_self_path(void);
char *cr_word(const char *text);
/* The file that a shell would run by that name, without links; owned by the caller. NULL: it is not in PATH. */
char *cr_find_program(const char *name);
/* The first 63 bytes of this machine's name, for messages; in the thread's own buffer. */
const char *cr_host_name(void);

#endif
