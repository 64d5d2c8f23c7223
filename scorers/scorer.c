/* scorer.c -- see scorer.h. */
#include "scorers/scorer.h"

#include "scorers/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LONGEST_ANSWER = 16 << 20,
    SHOWN = 160,
    ANSWERED = 256,
    LAST_WORDS = 200, /* bytes of the program's stderr that go into a message */
    MAX_DEATHS = 8    /* in a row, when it has never answered */
};
/* Before a program that answered nothing is started again; doubled each time. */
#define FIRST_PAUSE_S 0.05
#define LAST_PAUSE_S  1.0

typedef struct question {
    char *id;
    cr_buf line;
    size_t num_tokens;
    double asked_s;
    bool has_ended_one; /* the program ended while this line was alone with it */
} question;

typedef struct result {
    char *id;
    cr_verdict verdict;
} result;

struct cr_scorer {
    cr_scorer_args args;
    pid_t pid; /* of its keeper; 0: not running */
    int to_fd, from_fd, err_fd;
    cr_buf to_write, pending; /* not yet written; bytes read after the last line */
    double answered_s;        /* when the program last answered or was started */
    question *questions;      /* the first num_asked are with the program */
    size_t num, num_asked, capacity, window;
    result *results; /* from first_result on */
    size_t num_results, first_result, results_capacity;
    char **late; /* ids whose answer is not waited for any more */
    size_t num_late;
    uint64_t answered[ANSWERED]; /* hashes of the ids answered last */
    size_t num_answered;
    size_t num_wrong;  /* lines that were no answers */
    char wrong[400];   /* the last of them, and why */
    bool has_answered; /* since it was started */
    bool has_ever_answered, has_told;
    size_t num_deaths; /* in a row, without an answer */
    double start_s;    /* not before then */
    cr_buf last_words; /* of its stderr */
    char broken[400];  /* why it is not started any more; "": it is */
};

cr_scorer *cr_scorer_create(const cr_scorer_args *args)
{
    cr_scorer *s = CR_NEW(cr_scorer);

    s->args = *args;
    s->to_fd = s->from_fd = s->err_fd = -1;
    s->window = args->max_in_flight;
    return s;
}

/* ---- the process ---- */

static void forget_late(cr_scorer *s)
{
    for (size_t i = 0; i < s->num_late; i++)
        cr_free(s->late[i]);
    cr_free(s->late);
    s->late = NULL;
    s->num_late = 0;
}

/* What it writes to stderr goes to ours; the end of it is kept. */
static void pass_errors(cr_scorer *s)
{
    char text[4096];
    ssize_t n;

    while (s->err_fd >= 0 && (n = read(s->err_fd, text, sizeof text)) > 0) {
        cr_buf *last = &s->last_words;
        if (write(STDERR_FILENO, text, (size_t)n) < 0) continue; /* no reader */
        cr_buf_add(last, text, (size_t)n);
        if (last->num_bytes <= LAST_WORDS) continue;
        memmove(last->data, last->data + last->num_bytes - LAST_WORDS, LAST_WORDS);
        last->num_bytes = LAST_WORDS;
    }
}

/* ": its last line | ..", or "". */
static void add_last_words(const cr_scorer *s, char *text, size_t num_bytes)
{
    size_t at = strlen(text), n = s->last_words.num_bytes;
    const char *from = s->last_words.data;

    while (n > 0 && from[n - 1] == '\n')
        n--;
    if (n == 0 || at + 3 >= num_bytes) return;
    snprintf(text + at, num_bytes - at, ": %.*s", (int)n, from);
    for (char *p = text + at; *p; p++)
        if (*p == '\n') *p = '|';
}

/* Ends the program; how it ended is in fate. Lines that were with it wait again. */
static void stop(cr_scorer *s, char *fate, size_t fate_bytes)
{
    int status = 0;

    if (s->to_fd >= 0) close(s->to_fd);
    if (s->from_fd >= 0) close(s->from_fd);
    if (s->pid > 0) {
        double until = cr_now_s() + 0.2; /* it may be ending by itself: say how */
        pid_t ended = 0;
        while (fate && (ended = waitpid(s->pid, &status, WNOHANG)) == 0 && cr_now_s() < until)
            cr_sleep_s(0.002);
        kill(s->pid, SIGTERM); /* the keeper kills the program and what it has started */
        if (ended == 0) waitpid(s->pid, &status, 0);
        pass_errors(s);
    }
    if (s->err_fd >= 0) close(s->err_fd);
    if (fate && WIFEXITED(status))
        snprintf(fate, fate_bytes, "ended with exit code %d", WEXITSTATUS(status));
    else if (fate)
        snprintf(fate, fate_bytes, "was killed by signal %d", WTERMSIG(status));
    s->pid = 0;
    s->to_fd = s->from_fd = s->err_fd = -1;
    s->num_asked = s->num_wrong = 0;
    cr_buf_clear(&s->pending);
    cr_buf_clear(&s->to_write);
    forget_late(s);
}

static void become_program(const cr_scorer *s, const int to[2], const int from[2],
                           const int errors[2], const int failed[2], pid_t worker)
{
    int why;

    if (!cr_keep(worker)) {
        why = errno;
        if (write(failed[1], &why, sizeof why) < 0) _exit(126);
        _exit(127);
    }
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(errors[1], STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    for (size_t i = 0; s->args.env && s->args.env[i]; i++)
        putenv(s->args.env[i]);
    execvp(s->args.argv[0], s->args.argv);
    why = errno;
    if (write(failed[1], &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

static void close_pair(const int fd[2])
{
    if (fd[0] >= 0) close(fd[0]);
    if (fd[1] >= 0) close(fd[1]);
}

/* CR_OK: the program runs (a failed exec comes through a pipe that a successful one closes). */
static cr_status start(cr_scorer *s, cr_err *err)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1}, errors[2] = {-1, -1}, failed[2] = {-1, -1}, why = 0;
    pid_t worker = getpid();

    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0 ||
        pipe2(failed, O_CLOEXEC) != 0) {
        cr_fail(err, CR_EIO, "cannot make a pipe: %s", strerror(errno));
    } else {
        fflush(NULL);
        s->pid = fork();
        if (s->pid == 0) become_program(s, to, from, errors, failed, worker);
        if (s->pid < 0) why = errno;
        close(failed[1]);
        failed[1] = -1;
        while (s->pid > 0 && read(failed[0], &why, sizeof why) < 0 && errno == EINTR)
            continue;
        if (why)
            cr_fail(err, CR_EIO, CR_CANNOT_START " %s: %s%s", s->args.argv[0], strerror(why),
                    why == ENOENT && cr_file_exists(s->args.argv[0])
                        ? " (the program that its first line, #!, names; an end of line of Windows "
                          "belongs to the name)"
                        : "");
    }
    if (err->status == CR_OK) {
        s->to_fd = to[1];
        s->from_fd = from[0];
        s->err_fd = errors[0];
        to[1] = from[0] = errors[0] = -1;
        fcntl(s->to_fd, F_SETFL, O_NONBLOCK);
        fcntl(s->from_fd, F_SETFL, O_NONBLOCK);
        fcntl(s->err_fd, F_SETFL, O_NONBLOCK);
        cr_buf_clear(&s->last_words);
        s->answered_s = cr_now_s();
        s->has_answered = false;
    } else if (s->pid > 0) {
        waitpid(s->pid, NULL, 0);
    }
    if (err->status != CR_OK) s->pid = 0;
    close_pair(to);
    close_pair(from);
    close_pair(errors);
    close_pair(failed);
    return err->status;
}

void cr_scorer_destroy(cr_scorer *s)
{
    if (!s) return;
    stop(s, NULL, 0);
    for (size_t i = 0; i < s->num; i++) {
        cr_free(s->questions[i].id);
        cr_buf_free(&s->questions[i].line);
    }
    for (size_t i = s->first_result; i < s->num_results; i++) {
        cr_free(s->results[i].id);
        cr_verdict_free(&s->results[i].verdict);
    }
    cr_free(s->questions);
    cr_free(s->results);
    cr_buf_free(&s->to_write);
    cr_buf_free(&s->pending);
    cr_buf_free(&s->last_words);
    cr_free(s);
}

/* ---- lines and their verdicts ---- */

void cr_scorer_put(cr_scorer *s, const char *id, const cr_buf *line, size_t num_tokens)
{
    question *q;

    s->questions = cr_grow(s->questions, s->num, &s->capacity, sizeof *s->questions);
    q = &s->questions[s->num++];
    *q = (question){.id = cr_strdup(id), .num_tokens = num_tokens};
    cr_buf_add(&q->line, line->data, line->num_bytes);
}

/* Question i has its verdict, which is taken over. */
static void finish(cr_scorer *s, size_t i, const cr_verdict *verdict)
{
    question q = s->questions[i];
    double seconds = i < s->num_asked ? cr_now_s() - q.asked_s : 0;

    memmove(s->questions + i, s->questions + i + 1, (s->num - i - 1) * sizeof q);
    s->num--;
    if (i < s->num_asked) s->num_asked--;
    if (s->first_result == s->num_results) s->first_result = s->num_results = 0;
    s->results = cr_grow(s->results, s->num_results, &s->results_capacity, sizeof *s->results);
    s->results[s->num_results] = (result){q.id, *verdict};
    s->results[s->num_results++].verdict.seconds = seconds;
    cr_buf_free(&q.line);
}

static void fail_question(cr_scorer *s, size_t i, cr_outcome outcome, const char *detail)
{
    cr_verdict v = {.is_fault = true, .outcome = outcome};

    snprintf(v.detail, sizeof v.detail, "%.399s", detail);
    finish(s, i, &v);
}

/* The same, for one that the program may still answer. */
static void abandon_question(cr_scorer *s, size_t i, cr_outcome outcome, const char *detail)
{
    s->late =
        cr_realloc(s->late, s->num_late * sizeof *s->late, (s->num_late + 1) * sizeof *s->late);
    s->late[s->num_late++] = cr_strdup(s->questions[i].id);
    fail_question(s, i, outcome, detail);
}

/* ---- what the program writes ---- */

static uint64_t hash_of(const char *id) /* FNV-1a */
{
    uint64_t h = 14695981039346656037u;

    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 1099511628211u;
    return h;
}

static bool was_answered(const cr_scorer *s, const char *id)
{
    uint64_t h = hash_of(id);

    for (size_t i = 0; i < s->num_answered && i < ANSWERED; i++)
        if (s->answered[i] == h) return true;
    return false;
}

static void wake(cr_scorer *s)
{
    if (!s->has_told) cr_log(CR_LOG_WARN, "reward", "%s: %s", s->args.argv[0], s->wrong);
    s->has_told = true;
}

/* A line that answers no question. It cannot be attributed to a sample: each counts against one of
 * the lines that are asked. */
static void take_wrong_line(cr_scorer *s, const char *why, const char *line, size_t n)
{
    snprintf(s->wrong, sizeof s->wrong,
             "the program wrote a line that is not an answer (%.180s): %.*s", why,
             (int)(n < SHOWN ? n : SHOWN), line);
    if (s->num_asked == 0) {
        wake(s);
        return;
    }
    if (++s->num_wrong < s->num_asked) return;
    while (s->num_asked > 0)
        abandon_question(s, 0, CR_OUTCOME_ERROR, s->wrong);
    s->num_wrong = 0;
}

static bool take_late(cr_scorer *s, const char *id)
{
    for (size_t i = 0; i < s->num_late; i++)
        if (strcmp(s->late[i], id) == 0) {
            cr_free(s->late[i]);
            s->late[i] = s->late[--s->num_late];
            return true;
        }
    return false;
}

static void take_line(cr_scorer *s, const char *line, size_t n)
{
    json_t *root = NULL;
    const char *id;
    cr_err bad = {0};
    size_t i = 0;

    if (cr_answer_parse(line, n, &root, &id, &bad) != CR_OK) {
        take_wrong_line(s, bad.msg, line, n);
        return;
    }
    while (i < s->num_asked && strcmp(s->questions[i].id, id) != 0)
        i++;
    if (i < s->num_asked) {
        cr_verdict v;
        cr_verdict_read(root, s->questions[i].num_tokens, &v);
        if (v.is_fault) {
            size_t at = strlen(v.detail);
            snprintf(v.detail + at, sizeof v.detail - at, ": %.*s", (int)(n < SHOWN ? n : SHOWN),
                     line);
        }
        s->answered_s = cr_now_s();
        s->has_answered = s->has_ever_answered = true;
        s->num_deaths = 0;
        s->answered[s->num_answered++ % ANSWERED] = hash_of(id);
        if (s->window < s->args.max_in_flight) s->window++;
        finish(s, i, &v);
    } else if (was_answered(s, id)) {
        snprintf(s->wrong, sizeof s->wrong, "the program answered a line twice: %.*s",
                 (int)(n < SHOWN ? n : SHOWN), line);
        wake(s);
    } else if (!take_late(s, id)) {
        take_wrong_line(s, "nothing with its id is asked", line, n);
    }
    json_decref(root);
}

static void take_lines(cr_scorer *s)
{
    size_t at = 0;
    char *end;

    while (s->pending.num_bytes > at &&
           (end = memchr(s->pending.data + at, '\n', s->pending.num_bytes - at))) {
        size_t n = (size_t)(end - s->pending.data) - at;
        take_line(s, s->pending.data + at, n);
        at += n + 1;
    }
    if (at == 0) return;
    memmove(s->pending.data, s->pending.data + at, s->pending.num_bytes - at);
    s->pending.num_bytes -= at;
}

/* ---- one round ---- */

/* One that ends before it answers is started again after a pause; one that never answered, not for ever. */
static void count_death(cr_scorer *s, const char *fate)
{
    double pause_s = FIRST_PAUSE_S;

    s->num_deaths++;
    for (size_t i = 1; i < s->num_deaths && pause_s < LAST_PAUSE_S; i++)
        pause_s *= 2;
    s->start_s = cr_now_s() + (pause_s < LAST_PAUSE_S ? pause_s : LAST_PAUSE_S);
    if (s->num_deaths < MAX_DEATHS || s->has_ever_answered) return;
    snprintf(s->broken, sizeof s->broken, "%.120s %s, %zu times in a row and without any answer",
             s->args.argv[0], fate, s->num_deaths);
    add_last_words(s, s->broken, sizeof s->broken);
}

/* The program is gone: its lines are asked again, fewer at once, so that one that ends it is found. */
static void take_end(cr_scorer *s)
{
    size_t num_asked = s->num_asked;
    bool is_fresh = !s->has_answered;
    char fate[64], why[400];

    stop(s, fate, sizeof fate);
    if (is_fresh) count_death(s, fate);
    if (num_asked == 0) return; /* started again with the next line */
    s->window = num_asked > 1 ? num_asked / 2 : 1;
    if (num_asked > 1) return;
    if (is_fresh || s->questions[0].has_ended_one) {
        snprintf(why, sizeof why, "%.120s %s without an answer", s->args.argv[0], fate);
        add_last_words(s, why, sizeof why);
        fail_question(s, 0, CR_OUTCOME_ERROR, why);
    } else {
        s->questions[0].has_ended_one = true; /* it may have ended before that */
    }
}

static void take_timeouts(cr_scorer *s)
{
    double now = cr_now_s();
    bool has_timed_out = false;
    char why[64];

    snprintf(why, sizeof why, "no answer within %g s", s->args.limit_s);
    for (size_t i = 0; i < s->num_asked;) {
        if (now - s->questions[i].asked_s < s->args.limit_s) {
            i++;
            continue;
        }
        has_timed_out = true;
        if (s->num_wrong > 0)
            abandon_question(s, i, CR_OUTCOME_ERROR, s->wrong);
        else
            abandon_question(s, i, CR_OUTCOME_TIMEOUT, why);
    }
    if (has_timed_out && (now - s->answered_s >= s->args.limit_s || /* it does nothing any more */
                          s->num_late >= s->args.max_in_flight))
        stop(s, NULL, 0);
}

static void ask_lines(cr_scorer *s)
{
    while (s->num_asked < s->num && s->num_asked < s->window) {
        question *q = &s->questions[s->num_asked++];
        cr_buf_add(&s->to_write, q->line.data, q->line.num_bytes);
        q->asked_s = cr_now_s();
    }
}

/* Returns whether the program is still there. */
static bool read_and_write(cr_scorer *s, double wait_s)
{
    struct pollfd fds[3] = {
        {s->from_fd, POLLIN, 0}, {s->err_fd, POLLIN, 0}, {s->to_fd, POLLOUT, 0}};
    char text[65536];
    ssize_t n;

    if (poll(fds, s->to_write.num_bytes ? 3 : 2, (int)(wait_s * 1000) + 1) < 0)
        return errno == EINTR;
    if (fds[1].revents) {
        pass_errors(s);
        if (fds[1].revents & POLLHUP) { /* it has closed its stderr */
            close(s->err_fd);
            s->err_fd = -1;
        }
    }
    if (fds[0].revents) {
        n = read(s->from_fd, text, sizeof text);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n > 0) cr_buf_add(&s->pending, text, (size_t)n);
    }
    if (s->to_write.num_bytes && fds[2].revents) {
        n = write(s->to_fd, s->to_write.data, s->to_write.num_bytes);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return fds[0].revents & POLLIN; /* what it said before is still read */
        if (n > 0) {
            memmove(s->to_write.data, s->to_write.data + n, s->to_write.num_bytes - (size_t)n);
            s->to_write.num_bytes -= (size_t)n;
        }
    }
    return true;
}

static void work(cr_scorer *s, double wait_s)
{
    cr_err err = {0};
    double now = cr_now_s();

    if (s->pid == 0 && !s->broken[0] && now < s->start_s) {
        cr_sleep_s(s->start_s - now < wait_s ? s->start_s - now : wait_s);
        return;
    }
    if (s->pid == 0 && (s->broken[0] || start(s, &err) != CR_OK)) {
        while (s->num > 0)
            fail_question(s, 0, CR_OUTCOME_ERROR, s->broken[0] ? s->broken : err.msg);
        return;
    }
    ask_lines(s);
    for (size_t i = 0; i < s->num_asked; i++) {
        double left = s->questions[i].asked_s + s->args.limit_s - now;
        if (left < wait_s) wait_s = left > 0 ? left : 0;
    }
    if (!read_and_write(s, wait_s)) {
        take_end(s);
        return;
    }
    take_lines(s);
    if (s->pending.num_bytes > LONGEST_ANSWER) {
        take_wrong_line(s, "it is longer than 16 MiB", s->pending.data, SHOWN);
        stop(s, NULL, 0);
        return;
    }
    take_timeouts(s);
}

bool cr_scorer_next(cr_scorer *s, double wait_s, char **id, cr_verdict *out)
{
    double until = cr_now_s() + wait_s;

    while (s->first_result == s->num_results) {
        double left = until - cr_now_s();
        if (s->num == 0) return false;
        work(s, left > 0 ? left : 0);
        if (left <= 0 && s->first_result == s->num_results) return false;
    }
    *id = s->results[s->first_result].id;
    *out = s->results[s->first_result++].verdict;
    return true;
}

const char *cr_scorer_broken(const cr_scorer *s)
{
    return s->broken[0] ? s->broken : NULL;
}
