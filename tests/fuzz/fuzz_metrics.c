/* fuzz_metrics.c -- arbitrary bytes as metrics.jsonl and, after a NUL, as samples of a rollout: what a
 * resumed run keeps are lines of steps before it, run.html is written, and samples can be scored again or are no samples. */
#include "base/json.h"
#include "reports/report.h"
#include "reports/tracker.h"
#include "samples/messages.h"
#include "scorers/compare/recorded.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A line as a sample that is trained on again. */
static void train_again(const cr_config *config, const char *text, size_t num)
{
    cr_arena *memory = cr_arena_create(1 << 12);
    cr_sample_line of;
    cr_sample sample = {0};
    json_t *line = NULL;
    cr_err err = {0};

    if (cr_json_parse_integers(text, num, NULL, CR_JSON_EXACT, &line, &err) == CR_OK &&
        cr_sample_line_read(line, config, memory, &of, &sample, &err) == CR_OK)
        CR_CHECK(sample.num_rewards > 0 && sample.detail, "%.*s", (int)num, text);
    cr_sample_free(&sample);
    cr_arena_destroy(memory);
    json_decref(line);
}

/* Each line as a sample that is scored again: the line for the program is one line of JSON with its id. */
static void score_again(void)
{
    cr_reward_config rewards[] = {{.domain = (char[]){"a"}}, {.domain = (char[]){"b"}}};
    const cr_config config = {.rewards = rewards, .num_rewards = CR_COUNT(rewards)};
    char *path = cr_path_join(fuzz_folder, "rollouts/step-000000.jsonl");
    cr_buf text = {0}, line = {0};
    cr_err ignored = {0};
    size_t at = 0, n;

    cr_note(cr_file_read(path, &text, &ignored));
    for (const char *from; (from = cr_line_next(&text, &at, &n));) {
        cr_recorded r;
        cr_err err = {0};
        json_t *root = NULL;
        if (cr_recorded_read(from, n, "a", &r, &err) == CR_OK &&
            cr_recorded_write(&r, r.row, &line, &err) == CR_OK) {
            CR_CHECK(memchr(line.data, '\n', line.num_bytes) == line.data + line.num_bytes - 1,
                     "%s", line.data);
            CR_CHECK(cr_json_parse(line.data, line.num_bytes, "line", &root, &err) == CR_OK, "%s",
                     err.msg);
            CR_CHECK(strcmp(json_string_value(json_object_get(root, "id")), r.id) == 0, "%s",
                     line.data);
            (void)cr_recorded_is_of(&r, "a");
        }
        json_decref(root);
        cr_recorded_free(&r);
        train_again(&config, from, n);
    }
    cr_buf_free(&text);
    cr_buf_free(&line);
    cr_free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"rollouts/step-000000.jsonl", "metrics.jsonl"};
    const cr_config config = {.track_with = CR_TRACK_NONE};
    const cr_image_files images = {0};
    cr_tracker *tracker;
    cr_buf kept = {0};
    cr_err err = {0};
    char *path;
    size_t at = 0, n;

    if (!fuzz_folder[0]) fuzz_begin("rollouts");
    fuzz_put_all(names, CR_COUNT(names), data, size);
    CR_CHECK(cr_report_write(fuzz_folder, "<fuzz>", NULL, &images, &err) == CR_OK, "%s", err.msg);
    score_again();
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
