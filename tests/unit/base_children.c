/* base_children.c -- what croll run makes of the words and the end of its mpirun. mpirun is played by sh, Open MPI's
 * lines are its real ones. Not covered: ranks that die (tests/e2e/run_deaths.sh). */
#include "base/children.h"
#include "tests/check_near.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

enum { ENDS_WITHIN_SECONDS = 20 };

/* Runs the script until cr_child_pump says that it is over; seconds it took. */
static double watch(cr_child *child, const char *script)
{
    char *argv[] = {cr_word("sh"), cr_word("-c"), cr_word(script), NULL};
    double start = cr_now_s();
    cr_err err = {0};

    if (cr_child_start(child, "sh", argv, true, &err) != CR_OK) fail_msg("%s", err.msg);
    while (cr_child_pump(child) && cr_now_s() - start < ENDS_WITHIN_SECONDS)
        cr_sleep_s(0.01);
    return cr_now_s() - start;
}

/* One rank has failed before MPI_Init was through, the other waits in it, and mpirun does not end them. */
static void start_that_hangs(void **state)
{
    cr_child child;

    (void)state;
    assert_true(
        watch(&child,
              "echo '[host:1] PMIX ERROR: OUT-OF-RESOURCE in file client.c at line 323' >&2; "
              "echo '[host:1] Local abort before MPI_INIT completed completed successfully, but am "
              "not able to "
              "aggregate error messages, and not able to guarantee that all other processes were "
              "killed!' >&2; "
              "exec sleep 60") < ENDS_WITHIN_SECONDS);
    assert_true(child.is_running);
    assert_non_null(strstr(cr_child_reason(&child), "no room for its files in shared memory"));
    cr_child_stop(&child, 0);
}

/* A program's own last line is the reason, before what MPI says. */
static void own_words(void **state)
{
    cr_child child;
    char fate[CR_FATE];

    (void)state;
    watch(&child,
          "echo 'actor_train rank 1 on h2: weights are cut off' >&2; echo 'mpirun noticed that' "
          ">&2; exit 2");
    assert_false(child.is_running);
    assert_string_equal(cr_child_reason(&child), "actor_train rank 1 on h2: weights are cut off");
    assert_string_equal(cr_child_fate(&child, fate), "ended with exit code 2");
    cr_child_stop(&child, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(start_that_hangs),
                                       cmocka_unit_test(own_words)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
