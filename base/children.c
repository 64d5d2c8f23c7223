/* children.c -- see children.h. */
#include "base/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLED_SECONDS = 20 }; /* what was killed ends at once, unless it hangs in the kernel */

static void become_child(char *const argv[], int err_fd, pid_t launcher)
{
    int null_fd = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(127); /* it died before the line above */
    if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
    if (err_fd >= 0) dup2(err_fd, STDERR_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    execvp(argv[0], argv);
    fprintf(stderr, "cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

cr_status cr_child_start(cr_child *child, const char *what, char *const argv[],
                         cr_child_on_line on_line, void *ctx, cr_err *err)
{
    int fd[2] = {-1, -1};
    pid_t launcher = getpid();

    *child = (cr_child){.err_fd = -1, .on_line = on_line, .ctx = ctx};
    snprintf(child->what, sizeof child->what, "%s", what);
    if (on_line && pipe2(fd, O_CLOEXEC) != 0)
        return cr_fail(err, CR_EIO, "cannot make a pipe for %s: %s", what, strerror(errno));
    fflush(NULL);
    child->pid = fork();
    if (child->pid == 0) become_child(argv, fd[1], launcher);
    if (fd[1] >= 0) close(fd[1]);
    if (child->pid < 0) {
        if (fd[0] >= 0) close(fd[0]);
        child->pid = 0;
        return cr_fail(err, CR_EIO, "cannot start %s: %s", what, strerror(errno));
    }
    setpgid(child->pid, child->pid); /* both sides: whoever comes first */
    if (fd[0] >= 0) fcntl(fd[0], F_SETFL, O_NONBLOCK);
    child->err_fd = fd[0];
    child->is_running = true;
    return CR_OK;
}

static void show_line(cr_child *child)
{
    child->line[child->line_bytes] = 0;
    child->line_bytes = 0;
    if (child->on_line(child->ctx, child->line)) cr_log_line(child->line);
}

/* Show what it wrote up to now. */
static void drain(cr_child *child)
{
    char text[4096];
    ssize_t n = 0;

    while (child->err_fd >= 0 && (n = read(child->err_fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] == '\n')
                show_line(child);
            else if (child->line_bytes < sizeof child->line - 1)
                child->line[child->line_bytes++] = text[i];
        }
    if (child->err_fd >= 0 && n == 0) {
        if (child->line_bytes) show_line(child);
        close(child->err_fd);
        child->err_fd = -1;
    }
}

bool cr_child_pump(cr_child *child)
{
    if (child->pid == 0) return false;
    drain(child);
    if (child->is_running && waitpid(child->pid, &child->wait_status, WNOHANG) == child->pid) {
        child->is_running = false;
        drain(child);
    }
    return child->is_running;
}

void cr_kill_children(pid_t pid)
{
    char *path = cr_asprintf("/proc/%d/task/%d/children", (int)pid, (int)pid), *rest, *word;
    cr_buf list = {0};
    cr_err ignored = {0};

    if (cr_file_read(path, &list, &ignored) == CR_OK)
        for (rest = list.data; (word = strsep(&rest, " "));)
            if (atoi(word) > 1) kill(atoi(word), SIGKILL);
    cr_buf_free(&list);
    cr_free(path);
}

void cr_child_stop(cr_child *child, double grace_s)
{
    double until = cr_now_s() + grace_s;

    if (child->pid == 0) return;
    if (child->is_running) {
        kill(-child->pid, SIGCONT);
        kill(-child->pid, SIGTERM);
        while (child->is_running && cr_now_s() < until) {
            cr_child_pump(child);
            cr_sleep_s(0.005);
        }
    }
    if (child->is_running) cr_kill_children(child->pid); /* each may have a group of its own */
    kill(-child->pid, SIGKILL);                          /* also what the child left in its group */
    until = cr_now_s() + KILLED_SECONDS;
    while (child->is_running && cr_now_s() < until) {
        cr_child_pump(child);
        if (child->is_running) cr_sleep_s(0.002);
    }
    cr_child_pump(child);
    if (child->is_running)
        cr_log(CR_LOG_WARN, "run", "%s (process %d) does not end: the kernel waits for a device",
               child->what, (int)child->pid);
    if (child->err_fd >= 0) close(child->err_fd);
    child->err_fd = -1;
    child->pid = 0;
}

const char *cr_child_fate(const cr_child *child, char text[CR_FATE])
{
    if (child->is_running)
        snprintf(text, CR_FATE, "is running");
    else if (WIFSIGNALED(child->wait_status))
        snprintf(text, CR_FATE, "was killed by signal %d", WTERMSIG(child->wait_status));
    else
        snprintf(text, CR_FATE, "ended with exit code %d", WEXITSTATUS(child->wait_status));
    return text;
}

char *cr_self_path(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    CR_CHECK(n > 0, "cannot read /proc/self/exe: %s", strerror(errno));
    return cr_strndup(path, (size_t)n);
}

char *cr_find_program(const char *name)
{
    const char *path = getenv("PATH");
    char *found, *real;

    if (strchr(name, '/')) return realpath(name, NULL);
    for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        found = cr_asprintf("%.*s/%s", (int)n, p, name);
        real = access(found, X_OK) == 0 ? realpath(found, NULL) : NULL;
        cr_free(found);
        if (real) return real;
        p += n + (p[n] == ':');
    }
    return NULL;
}

char *cr_word(const char *text)
{
    return (char *)(uintptr_t)text;
}

const char *cr_host_name(void)
{
    static _Thread_local char name[64];

    if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "unknown");
    return name;
}
