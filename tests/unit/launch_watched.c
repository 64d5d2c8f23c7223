/* launch_watched.c -- what croll run makes of the words and the end of its mpirun. mpirun is played by sh, Open MPI's
 * lines are its real ones. Not covered: ranks that die (tests/e2e/run_deaths.sh). */
#include "launch/mpirun/watched.h"
#include "tests/check_near.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENDS_WITHIN_SECONDS = 20 };

/* Runs the script until cr_watched_pump says that it is over; seconds it took. */
static double watch(cr_watched *child, const char *script)
{
    char *argv[] = {cr_word("sh"), cr_word("-c"), cr_word(script), NULL};
    double start = cr_now_s();
    cr_err err = {0};

    if (cr_watched_start(child, "sh", argv, &err) != CR_OK) fail_msg("%s", err.msg);
    while (cr_watched_pump(child) && cr_now_s() - start < ENDS_WITHIN_SECONDS)
        cr_sleep_s(0.01);
    return cr_now_s() - start;
}

/* One rank has failed before MPI_Init was through, the other waits in it, and mpirun does not end them. */
static void start_that_hangs(void **state)
{
    cr_watched child;

    (void)state;
    assert_true(
        watch(&child,
              "echo '[host:1] PMIX ERROR: OUT-OF-RESOURCE in file client.c at line 323' >&2; "
              "echo '[host:1] Local abort before MPI_INIT completed completed successfully, but am "
              "not able to "
              "aggregate error messages, and not able to guarantee that all other processes were "
              "killed!' >&2; "
              "exec sleep 60") < ENDS_WITHIN_SECONDS);
    assert_true(child.child.is_running);
    assert_non_null(strstr(cr_watched_reason(&child), "no room for its files in shared memory"));
    cr_child_stop(&child.child, 0);
}

/* A program's own last line is the reason, before what MPI says. */
static void own_words(void **state)
{
    cr_watched child;
    char fate[CR_FATE];

    (void)state;
    watch(&child,
          "echo 'actor_train rank 1 on h2: weights are cut off' >&2; echo 'mpirun noticed that' "
          ">&2; exit 2");
    assert_false(child.child.is_running);
    assert_string_equal(cr_watched_reason(&child), "actor_train rank 1 on h2: weights are cut off");
    assert_string_equal(cr_child_fate(&child.child, fate), "ended with exit code 2");
    cr_child_stop(&child.child, 0);
}

/* mpirun's ruler may come before the end of a rank's line has. */
static void words_and_ruler(void **state)
{
    static const char script[] =
        "echo 'actor_infer rank 0 on h1: out of GPU memory (1 of 2 are free)"
        "--------------------------------------------------------------------------' >&2; exit 1";
    cr_watched child;

    (void)state;
    watch(&child, script);
    assert_string_equal(cr_watched_reason(&child),
                        "actor_infer rank 0 on h1: out of GPU memory (1 of 2 are free)");
    cr_child_stop(&child.child, 0);
}

/* What Open MPI and ssh write when a host is gone is no text for users: only which host it was. */
static void lost_host(void **state)
{
    static const char by_mpi[] =
        "cat >&2 <<'E'\n"
        "actor_train rank 0 on h1: transfer: rank 1 on h2 does not answer\n"
        "(null): Forwarding signal 18 to job\n"
        "--------------------------------------------------------------------------\n"
        "ORTE has lost communication with a remote daemon.\n"
        "\n"
        "  HNP daemon   : [[34912,0],0] on node h1\n"
        "  Remote daemon: [[34912,0],1] on node h2\n"
        "\n"
        "This is usually due to either a failure of the TCP network\n"
        "connection to the node, or possibly an internal failure of\n"
        "--------------------------------------------------------------------------\n"
        "E\n"
        "exit 1";
    cr_watched child;

    (void)state;
    watch(&child, by_mpi);
    assert_string_equal(child.lost_host, "h2");
    assert_string_equal(child.paragraph, "");
    cr_child_stop(&child.child, 0);
    watch(&child, "echo 'Connection to h3 closed by remote host.' >&2; exit 255");
    assert_string_equal(child.lost_host, "h3");
    assert_string_equal(child.paragraph, "");
    cr_child_stop(&child.child, 0);
    watch(&child, "echo 'mpirun noticed that process rank 2 with PID 427 on node h2 exited on "
                  "signal 9 (Killed).' >&2; exit 137");
    assert_int_equal(child.dead_rank, 2);
    assert_string_equal(child.dead_host, "h2");
    assert_string_equal(child.lost_host, "");
    cr_child_stop(&child.child, 0);
}

/* What Open MPI's TCP says of a connection is not shown and is no reason, but for one that could not be made. */
static void tcp_lines(void **state)
{
    static const char broken[] =
        "cat >&2 <<'E'\n"
        "step 3 is shown\n"
        "[h1][[35261,1],0][btl_tcp_frag.c:135:mca_btl_tcp_frag_send] writev failed: Broken pipe\n"
        "[[35261,1],0][../../../../../../opal/mca/btl/tcp/"
        "btl_tcp_frag.c:242:mca_btl_tcp_frag_recv] "
        "from h1 to: h2 mca_btl_tcp_frag_recv: readv failed: Connection reset by peer (104)\n"
        "--------------------------------------------------------------------------\n"
        "An MPI communication peer process has unexpectedly disconnected.  This\n"
        "usually indicates a failure in the peer process (e.g., a crash or\n"
        "\n"
        "  Local host: h1\n"
        "  Peer host:  h2\n"
        "--------------------------------------------------------------------------\n"
        "E\n"
        "exit 1",
                      closed[] =
                          "cat >&2 <<'E'\n"
                          "------------------------------------------------------------\n"
                          "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\n"
                          "should not happen.\n"
                          "\n"
                          "  Local host: h1\n"
                          "  Message:    connect() to 10.77.0.2:1027 failed\n"
                          "  Error:      No route to host (113)\n"
                          "------------------------------------------------------------\n"
                          "E\n"
                          "exit 1";
    FILE *shown = tmpfile();
    char text[400] = "";
    cr_watched child;

    (void)state;
    assert_non_null(shown);
    cr_log_tee(fileno(shown));
    watch(&child, broken);
    assert_string_equal(cr_watched_reason(&child), "step 3 is shown");
    assert_string_equal(child.lost_host, "");
    cr_child_stop(&child.child, 0);
    watch(&child, closed);
    assert_non_null(strstr(cr_watched_reason(&child), "ranks of two hosts cannot connect by TCP"));
    cr_child_stop(&child.child, 0);
    cr_log_tee(-1);
    rewind(shown);
    text[fread(text, 1, sizeof text - 1, shown)] = 0;
    fclose(shown);
    assert_non_null(strstr(text, " step 3 is shown\n"));
    assert_ptr_equal(strchr(text, '\n'), strrchr(text, '\n')); /* that line alone */
}

/* Each of many ranks says the same: once. Their lines are lines, whoever else writes: each is one write. */
static void same_words(void **state)
{
    static const char script[] =
        "for i in 0 1 2; do echo \"actor_infer rank $i on h1: no room: 5 bytes\" >&2; done;"
        "echo 'actor_infer rank 3 on h1: no room: 6 bytes' >&2; exit 2";
    FILE *shown = tmpfile();
    cr_watched child;
    char text[1000];
    size_t num = 0;
    int fd[2];

    (void)state;
    cr_log_tee(fileno(shown));
    watch(&child, script);
    cr_log_tee(-1);
    rewind(shown);
    while (fgets(text, sizeof text, shown))
        num += strstr(text, "no room") != NULL;
    fclose(shown);
    assert_int_equal(num, 2);
    cr_child_stop(&child.child, 0);
    assert_int_equal(pipe2(fd, O_DIRECT), 0); /* a read gives what one write gave */
    cr_put_line(fd[1], "a \x1b line");
    assert_int_equal(read(fd[0], text, sizeof text), strlen("a \\x1b line\n"));
    close(fd[0]);
    close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_that_hangs), cmocka_unit_test(own_words),
        cmocka_unit_test(words_and_ruler),  cmocka_unit_test(lost_host),
        cmocka_unit_test(tcp_lines),        cmocka_unit_test(same_words)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
