/* scorers_scorer.c -- scoring programs that behave and that do not: every line asked comes back with a verdict
 * of its own, whatever the program writes, when it ends and when it hangs.
 * Not covered: arbitrary bytes (fuzz/fuzz_score.c); reward workers (e2e/run_verdicts.sh, run_chaos.sh).
 */
#include "scorers/scorer.h"
#include "base/args.h"
#include "tests/check_near.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads lines and runs BODY with $id and the line in $l. */
#define LOOP(body) "while read -r l; do id=${l#*'\"id\":\"'}; id=${id%%'\"'*}; " body "; done"
#define OK         "echo \"{\\\"id\\\":\\\"$id\\\",\\\"score\\\":1,\\\"detail\\\":\\\"$$\\\"}\""

enum { MAX_NUM = 16 };

typedef struct bench {
    cr_scorer *s;
    char *argv[4];
    char id[MAX_NUM][16], status[MAX_NUM][12], detail[MAX_NUM][400]; /* in the order of verdicts */
    size_t num, num_put;
} bench;

static void begin(bench *b, const char *script, double limit_s, size_t max_in_flight)
{
    cr_scorer_args args;

    *b = (bench){.argv = {(char *)(uintptr_t) "bash", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)script, NULL}};
    args = (cr_scorer_args){.argv = b->argv, .limit_s = limit_s, .max_in_flight = max_in_flight};
    b->s = cr_scorer_create(&args);
}

static void put(bench *b, const char *id)
{
    cr_buf line = {0};

    cr_buf_addf(&line, "{\"id\":\"%s\"}\n", id);
    cr_scorer_put(b->s, id, &line, 2);
    b->num_put++;
    cr_buf_free(&line);
}

static void take_all(bench *b)
{
    double until = cr_now_s() + 60;

    while (b->num < b->num_put) {
        cr_verdict v;
        char *id;
        if (cr_now_s() > until) fail_msg("no verdict after 60 s");
        if (!cr_scorer_next(b->s, 0.2, &id, &v)) continue;
        assert_true(b->num < MAX_NUM);
        snprintf(b->id[b->num], sizeof b->id[0], "%s", id);
        snprintf(b->status[b->num], sizeof b->status[0], "%s", cr_outcome_name(v.outcome));
        memcpy(b->detail[b->num++], v.detail, sizeof v.detail);
        cr_free(id);
        cr_verdict_free(&v);
    }
}

static size_t of(const bench *b, const char *id)
{
    size_t found = MAX_NUM;

    for (size_t i = 0; i < b->num; i++)
        if (strcmp(b->id[i], id) == 0) {
            assert_true(found == MAX_NUM); /* one verdict a line */
            found = i;
        }
    if (found == MAX_NUM) fail_msg("no verdict of %s", id);
    return found;
}

static void want(const bench *b, const char *id, const char *status, const char *says)
{
    size_t i = of(b, id);

    if (strcmp(b->status[i], status) != 0 || !strstr(b->detail[i], says))
        fail_msg("%s: %s, %s", id, b->status[i], b->detail[i]);
}

static void any_order(void **state)
{
    bench b;

    (void)state;
    begin(&b, LOOP("all=\"$id $all\"; [ $id = c ] && for id in $all; do " OK "; done"), 20, 3);
    put(&b, "a"), put(&b, "b"), put(&b, "c");
    take_all(&b);
    assert_string_equal(b.id[0], "c");
    assert_string_equal(b.id[2], "a");
    want(&b, "b", "ok", "");
    cr_scorer_destroy(b.s);
}

/* As many wrong lines as lines asked make these errors; a real answer that comes later is dropped. */
static void wrong_lines(void **state)
{
    static const struct {
        const char *script, *says;
    } cases[] = {{LOOP("echo debug; " OK), "not JSON): debug"},
                 {LOOP("echo '[1]'"), "not a JSON object): [1]"},
                 {LOOP("echo '{\"score\":1}'"), "without the \"id\""},
                 {LOOP("echo '{\"id\":7,\"score\":1}'"), "without the \"id\""},
                 {LOOP("echo \"{\\\"id\\\":\\\"$id\\u0000x\\\",\\\"score\\\":1}\""), "has a NUL"},
                 {LOOP("echo '{\"id\":\"other\",\"score\":1}'"), "nothing with its id is asked"}};

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++)
        for (size_t flights = 1; flights <= (k ? 3 : 1); flights += 2) {
            bench b;
            begin(&b, cases[k].script, 20, flights);
            put(&b, "a"), put(&b, "b"), put(&b, "c");
            take_all(&b);
            want(&b, "a", "error", cases[k].says);
            want(&b, "b", "error", cases[k].says);
            want(&b, "c", "error", cases[k].says);
            cr_scorer_destroy(b.s);
        }
}

static void twice(void **state)
{
    bench b;

    (void)state;
    begin(&b, LOOP(OK "; " OK), 20, 1);
    put(&b, "a"), put(&b, "b"), put(&b, "c");
    take_all(&b);
    want(&b, "a", "ok", ""), want(&b, "b", "ok", ""), want(&b, "c", "ok", "");
    cr_scorer_destroy(b.s);
}

/* A line that is late beside others times out alone; its answer is dropped, the program goes on. */
static void late(void **state)
{
    bench b;
    char pid[400];

    (void)state;
    begin(&b,
          LOOP("[ $id = slow ] && { keep=$id; continue; }; " OK "; id=$keep; [ $id ] && [ $l = "
               "'{\"id\":\"d\"}' ] && " OK "; sleep 0.3"),
          1, 4);
    put(&b, "slow"), put(&b, "a"), put(&b, "b"), put(&b, "c");
    take_all(&b);
    want(&b, "slow", "timeout", "no answer within 1 s");
    want(&b, "a", "ok", "");
    snprintf(pid, sizeof pid, "%s", b.detail[of(&b, "a")]);
    put(&b, "d"), put(&b, "e"); /* the answer of "slow" comes with d's */
    take_all(&b);
    want(&b, "d", "ok", pid);
    want(&b, "e", "ok", pid); /* the same process: it was not started again */
    cr_scorer_destroy(b.s);
}

/* One that answers nothing any more is started again. */
static void hangs(void **state)
{
    bench b;

    (void)state;
    begin(&b, LOOP("[ $id = h ] && sleep 100; " OK), 0.5, 1);
    put(&b, "a"), put(&b, "h"), put(&b, "b");
    take_all(&b);
    want(&b, "a", "ok", ""), want(&b, "h", "timeout", ""), want(&b, "b", "ok", "");
    assert_string_not_equal(b.detail[of(&b, "a")], b.detail[of(&b, "b")]);
    cr_scorer_destroy(b.s);
}

/* The line that ends the program is found among others; they have their verdicts. The second program answers
 * when nothing more comes, so that it takes what it has with it. */
static void ends(void **state)
{
    static const char *const scripts[] = {
        LOOP("[ $id = f ] && exit 3; " OK),
        "while :; do if read -t 0.2 -r l; then id=${l#*'\"id\":\"'}; id=${id%%'\"'*}; "
        "[ $id = f ] && exit 3; all=\"$all $id\"; else for id in $all; do " OK
        "; done; all=; fi; done"};
    bench b;
    char id[2] = "a";

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        begin(&b, scripts[k], 20, k ? 8 : 1);
        for (id[0] = 'a'; id[0] <= 'l'; id[0]++)
            put(&b, id);
        take_all(&b);
        for (id[0] = 'a'; id[0] <= 'l'; id[0]++)
            if (id[0] == 'f')
                want(&b, id, "error", "ended with exit code 3 without an answer");
            else
                want(&b, id, "ok", "");
        cr_scorer_destroy(b.s);
    }
}

/* One that never answers is started 8 times, with pauses, and its last words are reported. One that has answered is
 * started again for ever. */
static void dies_at_once(void **state)
{
    char script[200], path[] = "/tmp/croll_starts_XXXXXX";
    struct stat starts;
    double began = cr_now_s();
    bench b;
    char id[2] = "a";

    (void)state;
    close(mkstemp(path));
    snprintf(script, sizeof script, "printf x >>%s; echo one >&2; echo 'no such model' >&2; exit 3",
             path);
    begin(&b, script, 20, 4);
    for (id[0] = 'a'; id[0] <= 'l'; id[0]++)
        put(&b, id);
    take_all(&b);
    want(&b, "a", "error", "ended with exit code 3 without an answer: one|no such model");
    want(&b, "l", "error", "8 times in a row and without any answer: one|no such model");
    assert_non_null(cr_scorer_broken(b.s));
    assert_int_equal(stat(path, &starts), 0);
    assert_int_equal(starts.st_size, 8);
    if (cr_now_s() - began < 3) fail_msg("8 starts in %g s", cr_now_s() - began);
    cr_scorer_destroy(b.s);
    unlink(path);

    begin(&b, LOOP("[ $id = a ] || exit 3; " OK), 20, 1);
    for (id[0] = 'a'; id[0] <= 'j'; id[0]++)
        put(&b, id);
    take_all(&b);
    want(&b, "a", "ok", "");
    want(&b, "j", "error", "without an answer");
    assert_null(cr_scorer_broken(b.s));
    cr_scorer_destroy(b.s);
}

/* A daemon of a program: two forks and a session of its own, deaf to signals that can be ignored; the inner one is a child of it. */
#define DAEMON                                                                                \
    "had=$(wc -l <%s); (setsid bash -c 'trap \"\" TERM HUP INT; (sleep 1000 & echo $! >>%s; " \
    "wait) & echo $$ >>%s; "                                                                  \
    "while :; do sleep 1; done' &); until [ $(wc -l <%s) -ge $((had + 2)) ]; do sleep 0.05; " \
    "done; "

/* The processes whose numbers are in the file end; they were there. */
static void are_gone(const char *path)
{
    double until = cr_now_s() + 60;
    FILE *file = fopen(path, "r");
    int num = 0;

    assert_non_null(file);
    for (int pid; fscanf(file, "%d", &pid) == 1; num++)
        while (kill(pid, 0) == 0 || errno != ESRCH) {
            if (cr_now_s() > until) fail_msg("a daemon is left: %d", pid);
            cr_sleep_s(0.02);
        }
    assert_true(num >= 2);
    fclose(file);
    unlink(path);
}

/* Nothing of a program is left when it ends by itself, is ended, or the process that asks it is killed, also where it does not mind the
 * end of its input. */
static void daemons(void **state)
{
    static const char *const scripts[] = {DAEMON LOOP("exit 3"),
                                          DAEMON LOOP(OK) "; exec sleep 1000"};
    bench b;

    (void)state;
    for (int how = 0; how < 3; how++) {
        char path[] = "/tmp/croll_daemons_XXXXXX", script[1000];
        pid_t pid;
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        snprintf(script, sizeof script, scripts[how > 0], path, path, path, path);
        pid = how == 2 ? fork() : 0;
        if (pid == 0) {
            begin(&b, script, 60, 1);
            put(&b, "a");
            take_all(&b);
            want(&b, "a", how ? "ok" : "error", how ? "" : "ended with exit code 3");
            if (how == 2) kill(getpid(), SIGKILL);
        } else {
            waitpid(pid, NULL, 0);
        }
        if (how == 1) cr_scorer_destroy(b.s);
        are_gone(path);
        if (how == 0) cr_scorer_destroy(b.s);
    }
}

static void cannot_start(void **state)
{
    bench b;

    (void)state;
    begin(&b, "", 20, 2);
    b.argv[0] = (char *)(uintptr_t) "/no/such/program";
    put(&b, "a"), put(&b, "b"), put(&b, "c");
    take_all(&b);
    want(&b, "a", "error", "cannot start /no/such/program: No such file");
    want(&b, "c", "error", "cannot start");
    cr_scorer_destroy(b.s);
}

static void answers(void **state)
{
    static const struct {
        const char *rest, *status, *says; /* says: NULL: right */
    } cases[] = {
        {"\"score\":1", "ok", NULL},
        {"\"score\":0.5,\"reward\":-1e6,\"status\":\"ok\",\"detail\":\"fine\"", "ok", NULL},
        {"\"score\":1,\"reward\":null,\"detail\":null", "ok", NULL},
        {"\"status\":\"timeout\",\"detail\":\"of its own\"", "timeout", NULL},
        {"\"error\":\"bad row\"", "error", NULL},
        {"\"score\":1,\"metrics\":{\"a/b\":2,\"c\":0.5},\"token_rewards\":[0,1]", "ok", NULL},
        {"\"reward\":1", "error", "score is missing"},
        {"\"score\":\"1.0\"", "error", "score is not a number"},
        {"\"score\":true", "error", "score is not a number"},
        {"\"score\":1e300", "error", "score is outside -1e6 .. 1e6"},
        {"\"score\":1,\"reward\":-1000001", "error", "reward is outside"},
        {"\"score\":1,\"reward\":[1]", "error", "reward is not a number"},
        {"\"status\":\"abstain\",\"detail\":\"no math\"", "abstain", NULL},
        {"\"status\":\"abstain\",\"score\":1", "abstain", NULL},
        {"\"score\":null", "abstain", NULL},
        {"\"score\":null,\"status\":\"ok\"", "abstain", NULL},
        {"\"score\":null,\"status\":\"error\"", "error", NULL},
        {"\"reward\":1", "error", "score is missing"},
        {"\"status\":\"abstain\",\"error\":\"x\"", "error", "but status abstain"},
        {"\"score\":1,\"status\":\"banana\"", "error", "status must be"},
        {"\"score\":1,\"status\":1", "error", "status must be"},
        {"\"score\":1,\"status\":\"ok\",\"error\":\"x\"", "error", "\"error\", but status ok"},
        {"\"score\":1,\"detail\":5", "error", "detail is not a text"},
        {"\"score\":1,\"metrics\":[1]", "error", "metrics is not an object"},
        {"\"score\":1,\"metrics\":{\"a\":\"x\"}", "error", "metrics.a is not a number"},
        {"\"score\":1,\"metrics\":{\"a b\":1}", "error", "a metric's name"},
        {"\"score\":1,\"token_rewards\":[1]", "error", "a list of 2 numbers"},
        {"\"score\":1,\"token_rewards\":[1,\"x\"]", "error",
         "one of token_rewards is not a number"},
    };

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        cr_buf line = {0};
        json_t *root;
        const char *id;
        cr_verdict v;
        cr_err err = {0};
        cr_buf_addf(&line, "{\"id\":\"x\",%s}", cases[k].rest);
        assert_int_equal(cr_answer_parse(line.data, line.num_bytes, &root, &id, &err), CR_OK);
        cr_verdict_read(root, 2, &v);
        if (strcmp(cr_outcome_name(v.outcome), cases[k].status) != 0 ||
            v.is_fault != !!cases[k].says || (cases[k].says && !strstr(v.detail, cases[k].says)))
            fail_msg("%s: %s %s", line.data, cr_outcome_name(v.outcome), v.detail);
        if (k == 0) check_near(v.reward, 1, 0);
        if (k == 1) check_near(v.reward, -1e6, 0);
        if (k == 5) check_near(v.token_rewards[1], 1, 0);
        if (cases[k].says) assert_true(!v.metrics && !v.token_rewards);
        cr_verdict_free(&v);
        json_decref(root);
        cr_buf_free(&line);
    }
}

static void words(void **state)
{
    static const struct {
        const char *text, *words[5];
    } cases[] = {{"rw/ok.py", {"rw/ok.py"}},
                 {"  python3\trw/ok.py  --n 2 ", {"python3", "rw/ok.py", "--n", "2"}},
                 {"a 'b c' \"d e\"f '' g\\ h", {"a", "b c", "d ef", "", "g h"}},
                 {"'a\\b' \"c\\\"d\\e\" $x", {"a\\b", "c\"d\\e", "$x"}},
                 {"a\\", {"a\\"}},
                 {"a 'b", {NULL}},
                 {" ", {NULL}}};

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        char **got;
        cr_err err = {0};
        size_t i = 0;
        if (!cases[k].words[0]) {
            assert_int_equal(cr_split_words(cases[k].text, &got, &err), CR_EUSAGE);
            continue;
        }
        assert_int_equal(cr_split_words(cases[k].text, &got, &err), CR_OK);
        for (; i < 5 && cases[k].words[i]; i++)
            assert_string_equal(got[i], cases[k].words[i]);
        assert_null(got[i]);
        cr_free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order), cmocka_unit_test(wrong_lines),  cmocka_unit_test(twice),
        cmocka_unit_test(late),      cmocka_unit_test(hangs),        cmocka_unit_test(ends),
        cmocka_unit_test(answers),   cmocka_unit_test(words),        cmocka_unit_test(dies_at_once),
        cmocka_unit_test(daemons),   cmocka_unit_test(cannot_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
