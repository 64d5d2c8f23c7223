/* fuzz_metrics.c -- arbitrary bytes as metrics.jsonl and, after a NUL, as samples of a rollout: what a
 * resumed run keeps are lines of steps before it, and run.html is written. */
#include "base/json.h"
#include "reports/report.h"
#include "reports/tracker.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"rollouts/step-000000.jsonl", "metrics.jsonl"};
    const cr_config config = {.track_with = CR_TRACK_NONE};
    cr_tracker *tracker;
    cr_buf kept = {0};
    cr_err err = {0};
    char *path;
    size_t at = 0, n;

    if (!fuzz_folder[0]) fuzz_begin("rollouts");
    fuzz_put_all(names, CR_COUNT(names), data, size);
    CR_CHECK(cr_report_write(fuzz_folder, "<fuzz>", NULL, &err) == CR_OK, "%s", err.msg);
    CR_CHECK(cr_tracker_open(&config, fuzz_folder, 5, &tracker, &err) == CR_OK, "%s", err.msg);
    cr_tracker_close(tracker);
    path = cr_path_join(fuzz_folder, "metrics.jsonl");
    CR_CHECK(cr_file_read(path, &kept, &err) == CR_OK, "%s", err.msg);
    for (const char *line; (line = cr_line_next(&kept, &at, &n));) {
        json_t *row;
        CR_CHECK(line[n] == '\n' && cr_json_parse(line, n, path, &row, &err) == CR_OK &&
                     json_integer_value(json_object_get(row, "step")) < 5,
                 "%s", line);
        json_decref(row);
    }
    cr_buf_free(&kept);
    cr_free(path);
    return 0;
}
