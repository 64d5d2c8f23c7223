/* track_program.c -- see track_program.h. */
#include "reports/track_program.h"
#include "base/args.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20, END_S = 10 };

struct cr_track_program {
    char **argv; /* owned */
    pid_t pid;   /* 0: has ended */
    int to_fd;   /* -1: closed */
    cr_buf pending;
    size_t num_dropped; /* lines */
};

/* In the child; a failure's errno goes to said_fd, which exec closes. */
static void become(const cr_track_program *p, int from_fd, int said_fd, pid_t launcher)
{
    int why;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher) _exit(127); /* it died before the line above */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (dup2(from_fd, STDIN_FILENO) >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0)
        execvp(p->argv[0], p->argv);
    why = errno;
    if (write(said_fd, &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

static cr_status start(cr_track_program *p, cr_err *err)
{
    int in[2] = {-1, -1}, said[2] = {-1, -1}, why = 0;
    pid_t launcher = getpid();

    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(said, O_CLOEXEC) == 0) {
        fflush(NULL);
        p->pid = fork();
        if (p->pid == 0) become(p, in[0], said[1], launcher);
    }
    if (p->pid <= 0) why = errno;
    if (in[0] >= 0) close(in[0]);
    if (said[1] >= 0) close(said[1]);
    if (p->pid > 0 && read(said[0], &why, sizeof why) > 0) waitpid(p->pid, NULL, 0);
    if (said[0] >= 0) close(said[0]);
    p->to_fd = in[1];
    if (why) {
        p->pid = 0;
        return cr_fail(err, CR_ECONFIG, "track_with: cannot start %s: %s", p->argv[0],
                       strerror(why));
    }
    fcntl(p->to_fd, F_SETFL, O_NONBLOCK);
    return CR_OK;
}

cr_status cr_track_program_open(const cr_config *c, const char *output_dir, int64_t first_step,
                                cr_track_program **out, cr_err *err)
{
    cr_track_program *p = CR_NEW(cr_track_program);
    const cr_node *kwargs = c->yaml.root ? cr_node_at(c->yaml.root, "tracker_kwargs") : NULL;
    cr_buf json = {0};
    char step[32];

    *out = NULL;
    p->to_fd = -1;
    if (kwargs && kwargs->kind == CR_NODE_MAP)
        cr_node_write_json(kwargs, &json);
    else
        cr_buf_adds(&json, "{}");
    snprintf(step, sizeof step, "%lld", (long long)first_step);
    setenv("CROLL_TRACKER_KWARGS", json.data, 1);
    setenv("CROLL_EXP_NAME", c->exp_name, 1);
    setenv("CROLL_OUTPUT_DIR", output_dir, 1);
    setenv("CROLL_FIRST_STEP", step, 1);
    cr_buf_free(&json);
    if (cr_split_words(c->track_program, &p->argv, err) == CR_OK)
        cr_note(start(p, err));
    else
        cr_fail_add(err, "track_with");
    if (err->status == CR_OK)
        *out = p;
    else
        cr_track_program_close(p);
    return err->status;
}

/* It reads no more: say so, and end what may be left of it. */
static void give_up(cr_track_program *p, const char *why)
{
    cr_log(CR_LOG_WARN, "metrics",
           "the tracker %s %s; the run goes on without it (metrics.jsonl "
           "has every line)",
           p->argv[0], why);
    close(p->to_fd);
    p->to_fd = -1;
    cr_buf_clear(&p->pending);
}

/* Write what it takes now. */
static void flush(cr_track_program *p)
{
    size_t done = 0;
    ssize_t n = 0;

    while (p->to_fd >= 0 && done < p->pending.num_bytes) {
        n = write(p->to_fd, p->pending.data + done, p->pending.num_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done) {
        memmove(p->pending.data, p->pending.data + done, p->pending.num_bytes - done);
        p->pending.num_bytes -= done;
    }
    if (n < 0 && errno != EAGAIN) give_up(p, "has ended or closed its stdin");
}

void cr_track_program_add(cr_track_program *p, const char *line, size_t num_bytes)
{
    flush(p);
    if (p->to_fd < 0) return;
    if (p->pending.num_bytes + num_bytes > MAX_BYTES) {
        if (p->num_dropped++ == 0)
            cr_log(CR_LOG_WARN, "metrics", "the tracker %s does not read: lines are dropped",
                   p->argv[0]);
        return;
    }
    cr_buf_add(&p->pending, line, num_bytes);
    flush(p);
}

/* Of its process: whether it has ended, within the time that is left. */
static bool wait_for_end(cr_track_program *p, double until_s, int *status)
{
    for (;;) {
        pid_t ended = waitpid(p->pid, status, WNOHANG);
        if (ended != 0) return true;
        if (cr_now_s() >= until_s) return false;
        cr_sleep_s(0.01);
    }
}

void cr_track_program_close(cr_track_program *p)
{
    double until = cr_now_s() + END_S;
    int status = 0;

    if (!p) return;
    while (p->to_fd >= 0 && p->pending.num_bytes && cr_now_s() < until) {
        struct pollfd ready = {.fd = p->to_fd, .events = POLLOUT};
        poll(&ready, 1, 100);
        flush(p);
    }
    if (p->to_fd >= 0) close(p->to_fd);
    if (p->pid && !wait_for_end(p, until, &status)) {
        cr_log(CR_LOG_WARN, "metrics", "the tracker %s has not ended within %d s: it is ended",
               p->argv[0], END_S);
        kill(-p->pid, SIGTERM);
        if (!wait_for_end(p, cr_now_s() + 1, &status)) {
            kill(-p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
        }
    } else if (p->pid && status) {
        cr_log(CR_LOG_WARN, "metrics", "the tracker %s ended with %s %d", p->argv[0],
               WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    if (p->num_dropped)
        cr_log(CR_LOG_WARN, "metrics", "the tracker %s did not get %zu lines", p->argv[0],
               p->num_dropped);
    cr_buf_free(&p->pending);
    cr_free(p->argv);
    cr_free(p);
}
