/* exchange_chaos.c -- workers killed with SIGKILL at random moments 50 times, and the Redis server
 * three times, while 400 samples move from one stream to the next: each arrives exactly once and
 * nothing remains. The seed is fixed, the moments are not: they depend on the machine.
 * Not covered: the power going out (the append-only file is synced once a second). */
#include "base/rng.h"
#include "exchange/exchange.h"
#include "tests/check_near.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, SAMPLES = 400, KILLS = 50 };

static cr_server_plan plan;
static char folder[] = "/tmp/croll-test-XXXXXX";
static pid_t server, workers[WORKERS];
static const char *const in[] = {"in"}, *const out[] = {"out"};

static pid_t start_server(void)
{
    pid_t pid = fork();

    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(plan.argv[0], plan.argv);
    _exit(127);
}

static void work(int worker, int life)
{
    const cr_exchange_args args = {
        .url = plan.url, .prefix = "c:", .deadline_s = 20, .may_be_starting = true};
    cr_exchange *x;
    cr_err err = {0};
    char name[24];
    uint32_t w[4];
    uint64_t draw = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(name, sizeof name, "worker-%d", worker);
    if (cr_exchange_open(&args, &x, &err) != CR_OK) _exit(1);
    for (;;) {
        cr_entries got;
        if (cr_stream_take(x, in, 1, "g", name, 4, 0.2, 0.5, &got, &err) != CR_OK) break;
        for (size_t i = 0; i < got.num; i++) {
            cr_rng_philox(1, CR_RNG_TEST, (uint64_t)(worker * 1000 + life), draw++, w);
            cr_sleep_s(0.02 * (double)cr_rng_float(w[0]));
            const cr_stream_message moved = {"out", got.items[i].id, got.items[i].data,
                                             got.items[i].num_bytes};
            if (cr_stream_move(x, &got.items[i], "g", &moved, 1, NULL, &err) != CR_OK) break;
        }
        cr_entries_free(&got);
        if (err.status != CR_OK) break;
    }
    fprintf(stderr, "worker %d: %s\n", worker, err.msg);
    _exit(1);
}

static pid_t start_worker(int worker, int life)
{
    pid_t pid = fork();

    if (pid == 0) work(worker, life);
    return pid;
}

static void end(pid_t pid)
{
    int status = 0;

    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status)); /* it was alive: nothing else ended it */
}

/* Counts what arrives; every id may come once. */
static size_t drain(cr_exchange *x, bool *has_come, cr_err *err)
{
    cr_entries got;
    size_t num = 0;

    assert_int_equal(cr_stream_take(x, out, 1, "g", "parent", 1000, 0, 60, &got, err), CR_OK);
    for (size_t i = 0; i < got.num; i++) {
        int id = atoi(got.items[i].id), value;
        assert_in_range(id, 0, SAMPLES - 1);
        memcpy(&value, got.items[i].data, sizeof value);
        assert_int_equal(value, id * 7);
        assert_false(has_come[id]);
        has_come[id] = true;
        num++;
        cr_stream_done(x, &got.items[i], 1, "g");
    }
    cr_entries_free(&got);
    assert_int_equal(cr_exchange_flush(x, err), CR_OK);
    return num;
}

static void every_sample_arrives_once(void **state)
{
    const cr_exchange_args args = {
        .url = plan.url, .prefix = "c:", .deadline_s = 20, .may_be_starting = true};
    bool has_come[SAMPLES] = {false};
    double begin_s = cr_now_s();
    size_t num = 0;
    cr_exchange *x;
    cr_err err = {0};
    int64_t left;
    uint32_t w[4];

    (void)state;
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "in", "g", &err), CR_OK);
    assert_int_equal(cr_stream_make(x, "out", "g", &err), CR_OK);
    for (int i = 0; i < SAMPLES; i++) {
        char id[16];
        int value = i * 7;
        snprintf(id, sizeof id, "%d", i);
        assert_int_equal(cr_stream_put(x, "in", id, &value, sizeof value, NULL, &err), CR_OK);
    }
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker(i, 0);
    for (int k = 1; k <= KILLS; k++) {
        int victim;
        cr_rng_philox(2, CR_RNG_TEST, 0, (uint64_t)k, w);
        cr_sleep_s(0.05 * (double)cr_rng_float(w[0]));
        victim = (int)(w[1] % WORKERS);
        end(workers[victim]);
        if (k % 15 == 0) {
            end(server);
            server = start_server();
        }
        workers[victim] = start_worker(victim, k);
        num += drain(x, has_come, &err);
    }
    while (num < SAMPLES && cr_now_s() - begin_s < 60) {
        num += drain(x, has_come, &err);
        cr_sleep_s(0.02);
    }
    for (int i = 0; i < WORKERS; i++)
        end(workers[i]);
    assert_int_equal(num, SAMPLES);
    assert_int_equal(drain(x, has_come, &err), 0);
    assert_int_equal(cr_stream_length(x, "in", &left, &err), CR_OK);
    assert_int_equal(left, 0);
    cr_exchange_close(x);
}

static int set_up(void **state)
{
    cr_err err = {0};

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(folder) || cr_server_plan_make(folder, NULL, &plan, &err) != CR_OK) return -1;
    server = start_server();
    return 0;
}

static int tear_down(void **state)
{
    cr_err err = {0};

    (void)state;
    for (int i = 0; i < WORKERS; i++)
        if (workers[i] > 0) kill(workers[i], SIGKILL);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    cr_server_plan_free(&plan);
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_sample_arrives_once)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
