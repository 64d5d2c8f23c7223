/* base_log.c -- lines of the log and the text that a terminal shows below them: a line replaces that text.
 * Not covered: when a run shows one (reports/view.h); messages of other processes.
 */
#include "base/base.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void lines_replace_a_transient_text(void **state)
{
    char path[] = "/tmp/croll_log_XXXXXX";
    int file = mkstemp(path), kept = dup(STDERR_FILENO);
    cr_buf got = {0};
    cr_err err = {0};

    (void)state;
    assert_true(file >= 0 && kept >= 0);
    dup2(file, STDERR_FILENO);
    cr_log_transient("1 of 2");
    cr_log_transient("2 of 2");
    cr_log_line("a line");
    cr_log_line("another");
    cr_log_transient("3");
    cr_log_transient("");
    cr_log_line("the last");
    dup2(kept, STDERR_FILENO);
    assert_int_equal(cr_file_read(path, &got, &err), CR_OK);
    assert_string_equal(got.data,
                        "1 of 2\r\033[K2 of 2\r\033[Ka line\nanother\n3\r\033[Kthe last\n");
    cr_buf_free(&got);
    close(file);
    close(kept);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_replace_a_transient_text)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
