/* reports_verdicts.c -- verdicts in run.html: counts and shares by cause, the slowest samples in order, the rows that fail, also by their images, and metrics
 * and files that are not as they should be. Not covered: what it looks like; any bytes (fuzz_metrics).
 */
#include "reports/verdicts_html.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <string.h>

#define METRICS(step, right, wrong, max, slowest)                                          \
    "{\"step\":" #step ",\"sums/verdict/right\":" #right ",\"sums/verdict/wrong\":" #wrong \
    ",\"scheduler/redrawn_groups\":1,\"time/verdict/sums/max\":" #max                      \
    ",\"time/verdict/sums/slowest\":" #slowest "}"
#define SAMPLE(id, prompt, score, status, detail)                              \
    "{\"id\":\"" id "\",\"domain\":\"sums\",\"prompt\":\"" prompt              \
    "\",\"ground_truth\":\"gold\",\"response\":\"of " id "\",\"score\":" score \
    ",\"status\":\"" status "\",\"detail\":\"" detail "\"}\n"

static void put(const char *name, const char *text)
{
    char *path = cr_path_join(temp_folder, name), *folder = cr_path_join(temp_folder, "rollouts");
    cr_err err = {0};

    assert_int_equal(cr_mkdirs(folder, &err), CR_OK);
    assert_int_equal(cr_file_write_atomic(path, text, strlen(text), &err), CR_OK);
    cr_free(path);
    cr_free(folder);
}

/* The page's part for these lines of metrics; owned. */
static char *part_of(const char *lines)
{
    cr_thumbnails *images = cr_thumbnails_open(temp_folder, &(cr_image_files){0});
    json_t *rows = NULL;
    cr_buf out = {0};
    cr_err err = {0};

    assert_int_equal(cr_json_parse(lines, strlen(lines), "metrics", &rows, &err), CR_OK);
    cr_buf_adds(&out, "");
    cr_verdicts_html(&out, rows, images, temp_folder);
    cr_thumbnails_close(images);
    json_decref(rows);
    return out.data;
}

/* Each text comes after the one before it. */
static void check_order(const char *page, const char *const texts[])
{
    for (const char *at = page; *texts; texts++) {
        const char *next = strstr(at, *texts);
        if (!next) fail_msg("%s is not after what is before it in\n%s", *texts, page);
        at = next + strlen(*texts);
    }
}

static void page(void **state)
{
    static const char *const texts[] = {
        "Verdicts by cause",
        "error</span>",
        "<h3>sums</h3><svg",
        "height=\"30.00\" fill=\"#3b9b57\"",
        "steps 0 to 1",
        "<td>sums</td><td class=\"n\">6</td><td class=\"n\">3<br/><small>50.0 "
        "%</small><br/><small>last step 66.7 %</small>",
        "Not among these: 2 groups",
        "Slowest verdicts",
        "2.00 s",
        "of 0000010000000000",
        "1.00 s",
        "of 0000000000000001",
        "Rows that fail",
        "step-000000.jsonl",
        "<td>sums</td><td class=\"n\">2</td><td class=\"n\">1</td><td "
        "class=\"n\">1</td><td><pre>late</pre>",
        "of 0000010000000001",
        "no &lt;answer&gt;",
        "<td class=\"n\">0.5</td><td><pre>half</pre>",
        "of 0000000000000000",
        NULL};
    char *html;

    (void)state;
    put("rollouts/step-000000.jsonl", SAMPLE("0000000000000001", "half", "1", "ok", "")
                                          SAMPLE("0000000000000000", "half", "0", "ok", "")
                                              SAMPLE("0000000000000002", "all", "1", "ok", ""));
    put("rollouts/step-000001.jsonl",
        SAMPLE("0000010000000000", "late", "1", "ok", "")
            SAMPLE("0000010000000001", "late", "null", "error", "no <answer>"));
    html = part_of("[" METRICS(0, 1, 2, 1, 1) "," METRICS(1, 2, 1, 2, 0) "]");
    check_order(html, texts);
    assert_null(strstr(html, "<pre>all</pre>")); /* its samples are right */
    cr_free(html);
}

/* Rows that ask the same of other images are others; the second sample of a group has no row of its own. */
static void other_images(void **state)
{
    char *html, *at;

#define WITH_ROW(id, score, image)                                                       \
    "{\"id\":\"" id "\",\"domain\":\"sums\",\"prompt\":\"which?\",\"response\":\"of " id \
    "\",\"score\":" score                                                                \
    ",\"status\":\"ok\",\"row\":{\"images\":[{\"num_bytes\":9,\"path\":\"" image         \
    ".png\",\"sha256\":\"" image "\"}]}}\n"
#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    (void)state;
    put("rollouts/step-000001.jsonl",
        WITH_ROW("0000010000000000", "0", A) SAMPLE("0000010000000001", "which?", "0", "ok", "")
            WITH_ROW("0000010000000002", "0.5", B)
                SAMPLE("0000010000000003", "which?", "0.5", "ok", ""));
    html = part_of("[" METRICS(1, 0, 2, 1, 1) "]");
    at = strstr(html, "Rows that fail");
    assert_non_null(at);
    check_order(at, (const char *const[]){
                        "<td class=\"n\">2</td><td class=\"n\">0</td><td class=\"n\">0</td>",
                        A ".png</small>",
                        "<td class=\"n\">2</td><td class=\"n\">0</td><td class=\"n\">0.5</td>",
                        B ".png</small>", NULL});
    cr_free(html);
}

static void odd_files(void **state)
{
    char *html = part_of("[{\"step\":0}]");

    (void)state;
    assert_string_equal(html, ""); /* no verdicts, no heading */
    cr_free(html);
    html = part_of(
        "[" METRICS(0, -5, 1e300, 1,
                    1e15) ",{\"step\":-1,\"sums/verdict/right\":\"x\",\"time/verdict/sums/max\":1},"
                          "{\"sums/verdict/right\":2},[],3,{\"step\":99999999999,\"time/verdict/"
                          "sums/max\":5,\"time/verdict/sums/slowest\":5}]");
    assert_non_null(strstr(html, "<td>sums</td><td class=\"n\">2</td><td class=\"n\">2<br/>"));
    assert_null(strstr(html, "Slowest verdicts"));
    assert_null(strstr(html, "nan"));
    cr_free(html);
    put("rollouts/step-000001.jsonl",
        "[]\n{\n{\"domain\":1}\n{\"domain\":\"sums\",\"prompt\":[]}\n\n");
    html = part_of("[" METRICS(0, 1, 1, 1, 1) "]");
    assert_non_null(strstr(html, "of 0000000000000001"));
    cr_free(html);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(page), cmocka_unit_test(other_images),
                                       cmocka_unit_test(odd_files)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
