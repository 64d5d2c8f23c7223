/* launch_last_words.c -- the records of ranks that fail: by a real redis-server, or beside the flight record, and which
 * of several is the cause. Not covered: ranks that die with and without one (tests/e2e/run_deaths.sh, hosts_killed.sh). */
#include "base/children.h"
#include "launch/last_words.h"
#include "tests/check_near.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/croll-test-XXXXXX";
static cr_layout layout;

static int set_up(void **state)
{
    char path[64];
    cr_err err = {0};

    (void)state;
    layout.num_ranks = 3;
    layout.role[CR_ROLE_TRAIN].name = "actor_train";
    layout.role[CR_ROLE_TRAIN].num = 2;
    layout.role[CR_ROLE_INFER].name = "actor_infer";
    layout.role[CR_ROLE_INFER].first = 2;
    layout.role[CR_ROLE_INFER].num = 1;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/flight", folder);
    return cr_mkdirs(path, &err) == CR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    cr_err err = {0};

    (void)state;
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

static bool put(cr_exchange *x, int rank, cr_status status, const char *message)
{
    cr_err why = {0};

    (void)!cr_fail(&why, status, "%s", message);
    return cr_last_words_put(x, &layout, rank, folder, &why);
}

/* Whose words are found, and which. */
static void expect(cr_exchange *x, int rank, cr_status status, const char *message)
{
    cr_last_words words;
    cr_err err = {0};

    assert_int_equal(cr_last_words_find(x, &layout, folder, &words, &err), CR_OK);
    assert_int_equal(words.why.status, status);
    assert_int_equal(words.world_rank, rank);
    assert_string_equal(words.why.msg, message);
    if (status != CR_OK) assert_string_equal(words.host, cr_host_name());
}

/* A failure of another rank, then a wait that was in vain, then what was the cause of both. */
static void in_turn(cr_exchange *x, bool is_reported)
{
    expect(x, 0, CR_OK, "");
    assert_int_equal(put(x, 0, CR_EPEER, "all_gather: rank 2 has failed"), is_reported);
    expect(x, 0, CR_EPEER, "all_gather: rank 2 has failed");
    assert_int_equal(put(x, 1, CR_ETIMEOUT, "rank 2 has not come for 12 s"), is_reported);
    expect(x, 1, CR_ETIMEOUT, "rank 2 has not come for 12 s");
    assert_int_equal(put(x, 2, CR_ENUMERIC, "a: b c, 5 %"), is_reported);
    expect(x, 2, CR_ENUMERIC, "a: b c, 5 %");
}

static void by_exchange(void **state)
{
    cr_server_plan plan;
    cr_exchange *x;
    cr_err err = {0};
    pid_t server;

    (void)state;
    assert_int_equal(cr_server_plan_make(folder, NULL, &plan, &err), CR_OK);
    fflush(NULL);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(plan.argv[0], plan.argv);
        _exit(127);
    }
    const cr_exchange_args args = {
        .url = plan.url, .prefix = "t:", .deadline_s = 60, .may_be_starting = true};
    assert_int_equal(cr_exchange_open(&args, &x, &err), CR_OK);
    in_turn(x, true);
    expect(NULL, 0, CR_OK, ""); /* no file beside it */
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    assert_false(put(x, 1, CR_EIO, "the server is gone"));
    expect(NULL, 1, CR_EIO, "the server is gone");
    cr_exchange_close(x);
    cr_server_plan_free(&plan);
}

static void by_file(void **state)
{
    char path[64];
    cr_err err = {0};

    (void)state;
    snprintf(path, sizeof path, "%s/flight/rank-01.last", folder);
    assert_int_equal(cr_remove_tree(path, &err), CR_OK);
    in_turn(NULL, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_exchange), cmocka_unit_test(by_file)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
