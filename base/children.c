/* children.c -- see children.h. mpirun's own banners are read for the one fact they hold (which rank
 * died first) and kept out of the terminal. */
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

enum {
    FAILED_SECONDS = 5, /* mpirun ends the other ranks in less */
    KILLED_SECONDS = 20 /* what was killed ends at once, unless it hangs in the kernel */
};

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

cr_status cr_child_start(cr_child *child, const char *what, char *const argv[], bool is_watched,
                         cr_err *err)
{
    int fd[2] = {-1, -1};
    pid_t launcher = getpid();

    *child = (cr_child){.err_fd = -1, .dead_rank = -1};
    snprintf(child->what, sizeof child->what, "%s", what);
    if (is_watched && pipe2(fd, O_CLOEXEC) != 0)
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

/* mpirun itself may crash while it is being ended ("[host:pid] *** Process received signal ***"). */
static bool is_own_crash(const cr_child *child, const char *line)
{
    const char *colon = line[0] == '[' ? strchr(line, ':') : NULL;

    return colon && atol(colon + 1) == (long)child->pid;
}

/* Lines of Open MPI and PMIx that tell a cause, and what it is to a user. */
static const struct {
    const char *text, *meaning;
} causes[] = {
    {"unable to find network interfaces",
     "Open MPI finds no network interface: the loopback has to be up (ip link set lo up)"},
    {"Unable to start listen thread",
     "Open MPI cannot start a thread: memory or processes are limited (ulimit -v, ulimit -u)"},
    {"OUT-OF-RESOURCE",
     "Open MPI has no room for its files in shared memory (df /dev/shm; docker: --shm-size; "
     "ulimit -f; ulimit -n)"},
    {"connect() to ",
     "ranks of two hosts cannot connect by TCP: a port is closed between them, or the network is "
     "bad (croll doctor --hosts)"},
};

static bool begins_with(const char *line, const char *const *start, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (strncmp(line, start[i], strlen(start[i])) == 0) return true;
    return false;
}

/* Advice of Open MPI over many lines, up to the next ruler. */
static bool begins_advice(const char *line)
{
    static const char *const start[] = {"mpirun has exited due to",
                                        "ORTE has lost communication",
                                        "PRTE has lost communication",
                                        "ORTE was unable to reliably start",
                                        "An ORTE daemon has unexpectedly failed",
                                        "ORTE is unable to establish",
                                        "WARNING: Open MPI",
                                        "An MPI communication peer process"};

    return begins_with(line, start, CR_COUNT(start));
}

/* mpirun's own talk, which says nothing to our users beyond the rank that died. */
static bool is_banner(const char *line)
{
    static const char *const start[] = {"(null): Forwarding signal",
                                        "------",
                                        "mpirun",
                                        "Primary job",
                                        "a non-zero",
                                        "prterun",
                                        "by the application",
                                        "exiting improperly",
                                        "[warn]",
                                        "Child job",
                                        "Per user-direction",
                                        "MPI_ABORT was invoked",
                                        "with errorcode",
                                        "NOTE: invoking MPI_ABORT",
                                        "You may or may not",
                                        "exactly when Open MPI",
                                        "The first process to do so",
                                        "  Process name",
                                        "  Exit code",
                                        "to exit before",
                                        "* ",
                                        "While processing",
                                        "the job to be terminated"};

    return begins_with(line, start, CR_COUNT(start)) || strstr(line, " closed by remote host") ||
           (line[0] == '[' && strstr(line, "btl_tcp_")) || strstr(line, "ORTE_ERROR_LOG");
}

/* "croll run: ..", "actor_train rank 1: ..": what our own programs say. */
static bool is_own(const char *line)
{
    const char *colon = strstr(line, ": "), *rank = strstr(line, " rank ");

    return strncmp(line, "croll ", 6) == 0 ||
           (colon && rank && rank < colon && !strchr(" [", line[0]));
}

/* What the line tells of a failure. */
static void learn(cr_child *child, const char *line, bool is_noise)
{
    const char *rank = strstr(line, "process rank "), *host = strstr(line, " on node ");
    bool is_death = rank && strstr(line, "exited on signal");
    size_t used = strlen(child->paragraph);

    if (child->is_in_advice && strncmp(line, "  Remote daemon: ", 17) == 0 && host)
        sscanf(host, " on node %63s", child->lost_host);
    else if (strstr(line, " closed by remote host") && !child->lost_host[0]) /* by ssh */
        sscanf(line, "Connection to %63s", child->lost_host);
    if (is_death && child->dead_rank < 0) {
        child->dead_rank = atoi(rank + 13);
        if (host) sscanf(host, " on node %63s", child->dead_host);
    }
    if (is_death || strstr(line, "processes exited with non-zero status") ||
        strstr(line, "abort before MPI_INIT completed") || /* the others may wait in it forever */
        child->lost_host[0] || strncmp(line, "mpirun has exited due to", 24) == 0)
        child->failed_s = child->failed_s ? child->failed_s : cr_now_s();
    for (size_t i = 0; i < CR_COUNT(causes) && !child->meaning; i++)
        if (strstr(line, causes[i].text)) child->meaning = causes[i].meaning;
    if (is_own(line))
        snprintf(child->own, sizeof child->own, "%.*s", (int)sizeof child->own - 1, line);
    else if (!is_noise && line[0] != '[')
        snprintf(child->paragraph + used, sizeof child->paragraph - used, "%s%s", used ? " " : "",
                 line);
}

/* The ruler around mpirun's talk, which may come before the end of a rank's line has. */
static void cut_ruler(char *line)
{
    static const char ruler[] = "----------------------------------------------------------------";
    char *at = strstr(line, ruler);

    if (at && at > line) *at = 0;
}

/* Does another rank say what the last one has said, word for word? */
static bool is_said(const cr_child *child, const char *line)
{
    const char *said = strstr(child->own, ": "), *says = strstr(line, ": ");

    return is_own(line) && strstr(line, " rank ") && said && says && strcmp(said, says) == 0;
}

static void show_line(cr_child *child)
{
    const char *line = child->line;
    bool was_in_advice = child->is_in_advice, is_noise, is_repeated;

    child->line[child->line_bytes] = 0;
    child->line_bytes = 0;
    cut_ruler(child->line);
    if (begins_advice(line)) child->is_in_advice = true;
    if (strncmp(line, "------", 6) == 0) child->is_in_advice = false;
    is_noise = ((was_in_advice || child->is_in_advice) && !is_own(line)) || line[0] == 0 ||
               is_own_crash(child, line) || is_banner(line);
    is_repeated = is_said(child, line);
    learn(child, line, is_noise);
    if (!is_noise && !is_repeated) cr_log_line(line);
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
    return child->is_running && !(child->failed_s && cr_now_s() - child->failed_s > FAILED_SECONDS);
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
    if (child->is_running)
        cr_kill_children(
            child->pid);        /* of the ranks and the ssh of mpirun each has a group of its own */
    kill(-child->pid, SIGKILL); /* also what the child left in its group */
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

const char *cr_child_reason(const cr_child *child)
{
    if (child->own[0]) return child->own;
    return child->meaning ? child->meaning : child->paragraph;
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
