/* reports_tracker.c -- a tracker that does not read for a while gets whole lines, as many as the buffer holds, and is
 * informed of the others; the run never waits for it.
 * Not covered: programs that end, and what they get (e2e/run_tracker.sh).
 */
#include "reports/track_program.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 1000, NUM_LINES = 6000, BUFFER = 4 << 20, PIPE = 1 << 16 };

static size_t count(const char *path, const char *text)
{
    cr_buf all = {0};
    cr_err err = {0};
    size_t num = 0, at = 0, n;

    assert_int_equal(cr_file_read(path, &all, &err), CR_OK);
    for (const char *line; (line = cr_line_next(&all, &at, &n));)
        num += n >= strlen(text) && memmem(line, n, text, strlen(text)) != NULL;
    cr_buf_free(&all);
    return num;
}

static void lines_are_dropped_not_cut(void **state)
{
    char folder[] = "/tmp/croll_tracker_XXXXXX", line[LINE + 1], log_path[80], got_path[80],
         go_path[80], program[250], says[80];
    cr_config config = {.exp_name = says};
    cr_track_program *p;
    cr_err err = {0};
    FILE *log;
    struct stat got;
    size_t num_got;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(says, sizeof says, "test");
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(got_path, sizeof got_path, "%s/got", folder);
    snprintf(program, sizeof program,
             "sh -c 'until [ -e %s/go ]; do sleep 0.05; done; exec cat >%s'", folder, got_path);
    config.track_program = program;
    log = fopen(log_path, "w");
    cr_log_tee(fileno(log));
    assert_int_equal(cr_track_program_open(&config, folder, 0, &p, &err), CR_OK);
    memset(line, 'x', LINE - 1);
    line[LINE - 1] = '\n';
    for (int i = 0; i < NUM_LINES; i++) {
        snprintf(line, LINE, "%06d", i);
        line[6] = 'x';
        cr_track_program_add(p, line, LINE);
    }
    snprintf(go_path, sizeof go_path, "%s/go", folder); /* the program has read nothing until now */
    assert_int_equal(cr_file_write_atomic(go_path, "", 0, &err), CR_OK);
    cr_track_program_close(p);
    cr_log_tee(-1);
    fclose(log);
    assert_int_equal(stat(got_path, &got), 0);
    num_got = count(got_path, "xxx");
    assert_int_equal(got.st_size, num_got * LINE); /* whole lines */
    assert_in_range(got.st_size, BUFFER - LINE, BUFFER + PIPE);
    assert_int_equal(count(log_path, "does not read: lines are dropped"), 1);
    snprintf(says, sizeof says, "did not get %zu lines", NUM_LINES - num_got);
    assert_int_equal(count(log_path, says), 1);
    assert_int_equal(cr_remove_tree(folder, &err), CR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_are_dropped_not_cut)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
