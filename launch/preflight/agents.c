/* agents.c -- see agents.h. */
#include "launch/preflight/agents.h"
#include "base/children.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BYTES = 8 << 20, SAID_BYTES = 4096, NOT_FOUND = 127, SSH_FAILED = 255 };
static const double END_S = 1;
extern char **environ;

/* ---- starting ---- */

/* As a word of the shell that ssh starts. */
static char *quote(const char *text)
{
    cr_buf out = {0};
    char *word;

    cr_buf_addc(&out, '\'');
    for (; *text; text++)
        if (*text == '\'')
            cr_buf_adds(&out, "'\\''");
        else
            cr_buf_addc(&out, *text);
    cr_buf_addc(&out, '\'');
    word = cr_strndup(out.data, out.num_bytes);
    cr_buf_free(&out);
    return word;
}

static int spawn(cr_agent *a, char *const argv[], const int in[2], const int out[2],
                 const int errors[2])
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t usual;
    int code;

    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigdefault(&how, &usual);
    posix_spawnattr_setpgroup(&how, 0); /* Ctrl-C is the launcher's */
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, errors[1], STDERR_FILENO);
    code = posix_spawnp(&a->pid, argv[0], &files, &how, argv, environ);
    if (code) a->pid = 0;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    return code;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void start(cr_agent *a, char *const argv[])
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, errors[2] = {-1, -1}, code = 0;

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0)
        code = errno;
    else
        code = spawn(a, argv, in, out, errors);
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&errors[1]);
    a->in_fd = in[1];
    a->out_fd = out[0];
    a->err_fd = errors[0];
    if (code) {
        char why[200];
        snprintf(why, sizeof why, "cannot start %s: %s", argv[0], strerror(code));
        cr_agent_drop(a, why);
        return;
    }
    fcntl(a->in_fd, F_SETFL, O_NONBLOCK);
    fcntl(a->out_fd, F_SETFL, O_NONBLOCK);
    fcntl(a->err_fd, F_SETFL, O_NONBLOCK);
}

void cr_agent_start(cr_agent *a, const char *name, const cr_hosts *hosts, size_t i,
                    const char *self)
{
    char *words[CR_HOST_WORDS + 3] = {NULL}, *quoted = quote(self);
    size_t num = hosts && i < hosts->num ? cr_hosts_command(hosts, i, words) : 0;
    cr_buf command = {0};

    *a = (cr_agent){.name = name, .in_fd = -1, .out_fd = -1, .err_fd = -1};
    words[num] = num && hosts->by == CR_HOSTS_BY_SSH ? quoted : cr_word(self);
    words[num + 1] = cr_word("agent");
    for (size_t k = 0; words[k]; k++)
        cr_buf_addf(&command, "%s%s", k ? " " : "", words[k]);
    a->command = cr_strndup(command.data, command.num_bytes);
    start(a, words);
    cr_buf_free(&command);
    cr_free(quoted);
}

/* ---- the end of one ---- */

void cr_agent_drop(cr_agent *a, const char *why)
{
    if (!a->is_out) snprintf(a->fault, sizeof a->fault, "%s", why);
    a->is_out = true;
    a->is_asked = false;
    cr_buf_clear(&a->line);
    close_fd(&a->in_fd); /* which ends it */
}

/* What its stderr said last. */
static void read_said(cr_agent *a)
{
    char text[1024];
    ssize_t n;

    while (a->err_fd >= 0 && (n = read(a->err_fd, text, sizeof text)) > 0) {
        if (a->said.num_bytes > SAID_BYTES) cr_buf_clear(&a->said);
        cr_buf_add(&a->said, text, (size_t)n);
    }
}

static void last_line(const cr_agent *a, char *out, size_t size)
{
    size_t at = 0, n;

    out[0] = 0;
    for (const char *line; (line = cr_line_next(&a->said, &at, &n));)
        if (n && strncmp(line, "srun: error: ", 13) != 0)
            snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), line);
    out[strcspn(out, "\r")] = 0;
}

/* It has closed its stdout: why? */
static void learn_why(cr_agent *a)
{
    double until_s = cr_now_s() + END_S;
    int status = 0, code;
    char said[200], why[400];
    bool has_ended;

    while (!(has_ended = waitpid(a->pid, &status, WNOHANG) == a->pid) && cr_now_s() < until_s)
        cr_sleep_s(0.002);
    read_said(a);
    if (has_ended) a->pid = 0;
    code = has_ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    last_line(a, said, sizeof said);
    if (code == NOT_FOUND)
        snprintf(why, sizeof why,
                 "croll is not at this path there (%s): install the same program at the same path "
                 "on all hosts",
                 said);
    else if (code == SSH_FAILED && strncmp(a->command, "ssh ", 4) == 0)
        snprintf(why, sizeof why, "cannot be reached: %s (tried: %.150s)", said, a->command);
    else
        snprintf(why, sizeof why, "its agent ended%s%s (tried: %.150s)", said[0] ? ": " : "", said,
                 a->command);
    cr_agent_drop(a, why);
}

void cr_agents_stop(cr_agent *agents, size_t num)
{
    double until_s = cr_now_s() + END_S;
    bool is_any = true;

    for (size_t i = 0; i < num; i++) {
        close_fd(&agents[i].in_fd);
        if (agents[i].is_out && agents[i].pid) kill(-agents[i].pid, SIGKILL);
    }
    while (is_any) {
        bool is_late = cr_now_s() > until_s;
        is_any = false;
        for (size_t i = 0; i < num; i++) {
            if (!agents[i].pid) continue;
            if (is_late) kill(-agents[i].pid, SIGKILL);
            if (waitpid(agents[i].pid, NULL, is_late ? 0 : WNOHANG) == agents[i].pid)
                agents[i].pid = 0;
            is_any |= agents[i].pid != 0;
        }
        if (is_any) cr_sleep_s(0.002);
    }
    for (size_t i = 0; i < num; i++) {
        close_fd(&agents[i].out_fd);
        close_fd(&agents[i].err_fd);
        cr_buf_free(&agents[i].line);
        cr_buf_free(&agents[i].said);
        cr_free(agents[i].command);
        agents[i].command = NULL;
    }
}

/* ---- questions ---- */

static void put(cr_agent *a, cr_buf *question)
{
    ssize_t n = write(a->in_fd, question->data, question->num_bytes);

    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {
        learn_why(a);
        cr_buf_clear(question);
        return;
    }
    memmove(question->data, question->data + n, question->num_bytes - (size_t)n);
    question->num_bytes -= (size_t)n;
    if (!question->num_bytes) a->asked_s = cr_now_s();
}

/* Is the last line whole and one of ours? What a shell of the host prints before it goes. */
static bool has_answer(cr_agent *a)
{
    size_t at = a->line.num_bytes - 1;

    if (a->line.data[at] != '\n') return false;
    while (at > 0 && a->line.data[at - 1] != '\n')
        at--;
    memmove(a->line.data, a->line.data + at, a->line.num_bytes - at + 1);
    a->line.num_bytes -= at;
    if (a->line.data[0] == '{') return true;
    cr_buf_clear(&a->said);
    cr_buf_add(&a->said, a->line.data, a->line.num_bytes); /* it may be why there is no answer */
    cr_buf_clear(&a->line);
    return false;
}

static void take(cr_agent *a)
{
    char text[4096];
    ssize_t n;

    while ((n = read(a->out_fd, text, sizeof text)) > 0) {
        cr_buf_add(&a->line, text, (size_t)n);
        if (has_answer(a)) {
            a->heard_s = cr_now_s();
            a->is_asked = false;
            return;
        }
        if (a->line.num_bytes > MAX_BYTES) {
            cr_agent_drop(a, "its answer does not end: is something printed by the shell that ssh "
                             "starts?");
            return;
        }
    }
    if (n == 0) learn_why(a);
}

static bool ask_some(cr_agent *agents, size_t num, cr_buf *question, struct pollfd *fds)
{
    bool is_any = false;

    for (size_t i = 0; i < num; i++) {
        cr_agent *a = &agents[i];
        fds[2 * i] = (struct pollfd){a->is_asked ? a->out_fd : -1, POLLIN, 0};
        fds[2 * i + 1] =
            (struct pollfd){a->is_asked && question[i].num_bytes ? a->in_fd : -1, POLLOUT, 0};
        is_any |= a->is_asked;
    }
    if (!is_any) return false;
    if (poll(fds, 2 * (nfds_t)num, 50) < 0) return true;
    for (size_t i = 0; i < num; i++) {
        if (fds[2 * i].revents) take(&agents[i]);
        if (agents[i].is_asked && fds[2 * i + 1].revents) put(&agents[i], &question[i]);
        read_said(&agents[i]);
    }
    return true;
}

void cr_agents_ask(cr_agent *agents, size_t num, cr_buf *question, double seconds,
                   const volatile sig_atomic_t *stop)
{
    struct pollfd *fds = CR_NEW_ARRAY(struct pollfd, 2 * num);
    double until_s = cr_now_s() + seconds;

    for (size_t i = 0; i < num; i++) {
        cr_buf_clear(&agents[i].line);
        agents[i].is_asked = question[i].num_bytes && !agents[i].is_out;
        if (agents[i].is_asked) put(&agents[i], &question[i]);
    }
    while (!*stop && cr_now_s() < until_s && ask_some(agents, num, question, fds))
        continue;
    for (size_t i = 0; i < num; i++) {
        char why[400], said[120];
        cr_buf_clear(&question[i]);
        if (!agents[i].is_asked) continue;
        read_said(&agents[i]);
        last_line(&agents[i], said, sizeof said);
        snprintf(why, sizeof why, "no answer within %.0f s%s%s (tried: %.150s)", seconds,
                 said[0] ? ": " : "", said, agents[i].command);
        cr_agent_drop(&agents[i], why);
    }
    cr_free(fds);
}
