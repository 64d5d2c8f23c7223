/* keeper.c -- see keeper.h. */
#include "scorers/keeper.h"

#include "base/children.h"

#include <errno.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILLED_S 20 /* what was killed ends at once, unless it hangs in the kernel */
#define LOOK_S   0.002

/* Takes the ends of children; that of the program goes to *status. False: there is no child any more. */
static bool reap(pid_t program, int *status, bool *has_ended)
{
    pid_t pid;
    int now;

    while ((pid = waitpid(-1, &now, WNOHANG)) > 0)
        if (pid == program) *has_ended = true, *status = now;
    return pid == 0;
}

/* Each round kills all children; theirs are children of the keeper in the next. */
static void end_all(pid_t program, int *status)
{
    double until_s = cr_now_s() + KILLED_S;
    bool has_ended;

    kill(-program, SIGKILL);
    while (reap(program, status, &has_ended) && cr_now_s() < until_s) {
        cr_kill_children(getpid());
        cr_sleep_s(LOOK_S);
    }
}

/* With that status of waitpid. */
static void end_as(int status)
{
    const struct rlimit none = {0, 0};
    sigset_t all;

    if (WIFSIGNALED(status)) {
        setrlimit(RLIMIT_CORE, &none);
        signal(WTERMSIG(status), SIG_DFL);
        sigfillset(&all);
        kill(getpid(), WTERMSIG(status));
        sigprocmask(SIG_UNBLOCK, &all, NULL);
    }
    _exit(WEXITSTATUS(status));
}

bool cr_keep(pid_t parent)
{
    const int handled[] = {SIGCHLD, SIGTERM, SIGHUP, SIGINT};
    sigset_t set, before;
    pid_t keeper = getpid(), program;
    int number = 0, status = 0;
    bool has_ended = false;

    sigemptyset(&set);
    for (size_t i = 0; i < CR_COUNT(handled); i++)
        sigaddset(&set, handled[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127); /* it died before the line above */
    signal(SIGCHLD, SIG_DFL);
    program = fork();
    if (program == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != keeper) _exit(127);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return true;
    }
    if (program < 0) return false;
    setpgid(program, program); /* both sides: whoever comes first */
    close_range(0, ~0u, 0);    /* the ends of the program's pipes, too */
    while (!has_ended && sigwait(&set, &number) == 0 && number == SIGCHLD)
        reap(program, &status, &has_ended);
    end_all(program, &status);
    end_as(status);
    return false;
}
