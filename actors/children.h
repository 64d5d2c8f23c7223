/* children.h -- the processes that `croll run` starts: spawn, watch, end.
 *
 * Every child gets its own process group and dies with the launcher (PR_SET_PDEATHSIG), whatever
 * kills the launcher. Nothing here waits without a deadline. One thread (the launcher's) calls.
 */
#ifndef CR_CHILDREN_H
#define CR_CHILDREN_H

#include "base/base.h"
#include <sys/types.h>

typedef struct cr_child {
    pid_t pid; /* 0: none */
    char what[64];
    bool is_running;
    int wait_status; /* as waitpid gives it, once it ended */
    int err_fd;      /* read end of its stderr when it is watched, else -1 */
    char line[512];  /* the incomplete last line of its stderr */
    size_t line_bytes;
    bool is_in_advice; /* of mpirun, which goes on over many lines */
    int dead_rank;     /* rank that mpirun named as the first to die, -1: none */
    char last[400];    /* last complete line that was no banner */
} cr_child;

/* argv[0] is searched in PATH. stdin is /dev/null, stdout goes to our stderr. With is_watched its
 * stderr is read through cr_child_pump and shown line by line, else it is ours. */
CR_MUST cr_status cr_child_start(cr_child *child, const char *what, char *const argv[],
                                 bool is_watched, cr_err *err);
/* Show what it wrote, notice its end. False once it has ended (and all was shown). */
bool cr_child_pump(cr_child *child);
/* SIGTERM to its process group, SIGKILL after grace_s; waits for the end. Accepts what never ran. */
void cr_child_stop(cr_child *child, double grace_s);
/* "ended with exit code 3", "was killed by signal 9"; static text, valid until the next call. */
const char *cr_child_fate(const cr_child *child);

#endif
