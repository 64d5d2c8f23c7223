/* scorer.c -- see scorer.h. */
#include "actors/scorer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST_ANSWER = 1 << 20 };

void cr_scorer_init(cr_scorer *s, char **argv, double limit_s)
{
    *s = (cr_scorer){.argv = argv, .limit_s = limit_s, .to_fd = -1, .from_fd = -1};
}

void cr_scorer_close(cr_scorer *s)
{
    if (s->to_fd >= 0) close(s->to_fd);
    if (s->from_fd >= 0) close(s->from_fd);
    if (s->pid > 0) {
        kill(-s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    cr_buf_free(&s->pending);
    s->pid = 0;
    s->to_fd = s->from_fd = -1;
}

static cr_status start(cr_scorer *s, cr_err *err)
{
    int to[2], from[2];
    pid_t worker = getpid();

    if (pipe2(to, O_CLOEXEC) != 0)
        return cr_fail(err, CR_EIO, "cannot make a pipe: %s", strerror(errno));
    if (pipe2(from, O_CLOEXEC) != 0) {
        close(to[0]);
        close(to[1]);
        return cr_fail(err, CR_EIO, "cannot make a pipe: %s", strerror(errno));
    }
    fflush(NULL);
    s->pid = fork();
    if (s->pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != worker) _exit(127);
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        signal(SIGPIPE, SIG_DFL);
        execvp(s->argv[0], s->argv);
        fprintf(stderr, "cannot start %s: %s\n", s->argv[0], strerror(errno));
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    if (s->pid < 0) {
        close(to[1]);
        close(from[0]);
        s->pid = 0;
        return cr_fail(err, CR_EIO, "cannot start %s: %s", s->argv[0], strerror(errno));
    }
    setpgid(s->pid, s->pid);
    s->to_fd = to[1];
    s->from_fd = from[0];
    fcntl(s->to_fd, F_SETFL, O_NONBLOCK);
    fcntl(s->from_fd, F_SETFL, O_NONBLOCK);
    return CR_OK;
}

typedef enum talk { TALK_ANSWERED, TALK_TIMEOUT, TALK_ENDED } talk;

/* Write the question while reading, until one whole line is there. */
static talk exchange_line(cr_scorer *s, const cr_buf *question, cr_buf *answer)
{
    double until = cr_now_s() + s->limit_s;
    size_t written = 0;

    for (;;) {
        struct pollfd fds[2] = {{s->from_fd, POLLIN, 0}, {s->to_fd, POLLOUT, 0}};
        char *end =
            s->pending.num_bytes ? memchr(s->pending.data, '\n', s->pending.num_bytes) : NULL;
        double left = until - cr_now_s();
        char text[65536];
        ssize_t n;
        if (end) {
            size_t line = (size_t)(end - s->pending.data), rest = s->pending.num_bytes - line - 1;
            cr_buf_add(answer, s->pending.data, line);
            memmove(s->pending.data, end + 1, rest);
            s->pending.num_bytes = rest;
            return TALK_ANSWERED;
        }
        if (left <= 0) return TALK_TIMEOUT;
        if (s->pending.num_bytes > LONGEST_ANSWER) return TALK_ENDED;
        if (poll(fds, written < question->num_bytes ? 2 : 1, (int)(left * 1000) + 1) < 0 &&
            errno != EINTR)
            return TALK_ENDED;
        if (fds[1].revents && written < question->num_bytes) {
            n = write(s->to_fd, question->data + written, question->num_bytes - written);
            if (n > 0)
                written += (size_t)n;
            else if (n < 0 && errno != EAGAIN && errno != EINTR)
                return TALK_ENDED;
        }
        if (fds[0].revents) {
            n = read(s->from_fd, text, sizeof text);
            if (n > 0)
                cr_buf_add(&s->pending, text, (size_t)n);
            else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                return TALK_ENDED;
        }
    }
}

void cr_verdict_read(const cr_buf *answer, cr_verdict *out)
{
    json_t *root = NULL, *score, *reward, *status, *detail, *error;
    cr_err bad = {0};

    *out = (cr_verdict){.score = 0};
    snprintf(out->status, sizeof out->status, "error");
    if (cr_json_parse(answer->data, answer->num_bytes, "the scorer's answer", &root, &bad) !=
        CR_OK) {
        snprintf(out->detail, sizeof out->detail, "%.190s", bad.msg);
        return;
    }
    score = json_object_get(root, "score");
    reward = json_object_get(root, "reward");
    status = json_object_get(root, "status");
    detail = json_object_get(root, "detail");
    error = json_object_get(root, "error");
    if (json_is_string(error))
        snprintf(out->detail, sizeof out->detail, "%.190s", json_string_value(error));
    else if (!json_is_number(score) || !isfinite(json_number_value(score)))
        snprintf(out->detail, sizeof out->detail, "the answer has no number \"score\"");
    else {
        out->score = json_number_value(score);
        out->reward = json_is_number(reward) ? json_number_value(reward) : out->score;
        snprintf(out->status, sizeof out->status, "%.11s",
                 json_is_string(status) ? json_string_value(status) : "ok");
        if (json_is_string(detail))
            snprintf(out->detail, sizeof out->detail, "%.190s", json_string_value(detail));
    }
    json_decref(root);
}

static cr_status make_question(const char *row, size_t row_bytes, const char *id,
                               const char *response, size_t response_bytes, size_t response_tokens,
                               cr_buf *out, cr_err *err)
{
    json_t *root;
    cr_status status;

    CR_TRY(cr_json_parse(row, row_bytes, "a sample's row", &root, err));
    if (!json_is_object(root)) {
        json_decref(root);
        return cr_fail(err, CR_EFORMAT, "a sample's row is not a JSON object");
    }
    json_object_set_new(root, "id", json_string(id));
    json_object_set_new(root, "response_tokens", json_integer((json_int_t)response_tokens));
    json_object_del(root, "response");
    status = cr_json_add_value(out, root, err);
    json_decref(root);
    out->num_bytes--; /* the closing brace: malformed UTF-8 in a response is written as U+FFFD */
    cr_buf_adds(out, ",\"response\":");
    cr_json_add_string(out, response, response_bytes);
    cr_buf_adds(out, "}\n");
    return status;
}

cr_status cr_scorer_ask(cr_scorer *s, const char *row, size_t row_bytes, const char *id,
                        const char *response, size_t response_bytes, size_t response_tokens,
                        cr_verdict *out, cr_err *err)
{
    cr_buf question = {0}, answer = {0};
    talk how = TALK_ENDED;

    *out = (cr_verdict){.score = 0};
    CR_TRY(make_question(row, row_bytes, id, response, response_bytes, response_tokens, &question,
                         err));
    for (int attempt = 0; attempt < 2 && how == TALK_ENDED; attempt++) { /* it may have died idle */
        if (s->pid == 0 && start(s, err) != CR_OK) break;
        how = exchange_line(s, &question, &answer);
        if (how != TALK_ANSWERED) cr_scorer_close(s);
    }
    if (err->status == CR_OK && how == TALK_ANSWERED) cr_verdict_read(&answer, out);
    if (err->status == CR_OK && how != TALK_ANSWERED) {
        snprintf(out->status, sizeof out->status, how == TALK_TIMEOUT ? "timeout" : "error");
        if (how == TALK_TIMEOUT)
            snprintf(out->detail, sizeof out->detail, "no answer within %g s", s->limit_s);
        else
            snprintf(out->detail, sizeof out->detail, "%.150s ended without an answer", s->argv[0]);
    }
    cr_buf_free(&question);
    cr_buf_free(&answer);
    return err->status;
}
