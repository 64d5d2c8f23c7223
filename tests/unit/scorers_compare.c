/* scorers_compare.c -- croll score --compare: samples of rollouts files as lines for a program, what changes between two versions, and
 * files that are no rollouts.
 *
 * Not covered: the command and files of a run (e2e/score_compare); any bytes (fuzz_metrics).
 */
#include "scorers/compare/compare.h"
#include "scorers/compare/recorded.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Answers with the column `s` of the row as the score; without one with an error. */
static char *const by_column[] = {
    (char[]){"sh"}, (char[]){"-c"},
    (char[]){"while IFS= read -r l; do id=${l#*'\"id\":\"'}; id=${id%%'\"'*}; case $l in "
             "*'\"s\":'*) s=${l#*'\"s\":'}; "
             "echo \"{\\\"id\\\":\\\"$id\\\",\\\"score\\\":${s%%[,\\}]*}}\" ;; *) "
             "echo \"{\\\"id\\\":\\\"$id\\\",\\\"status\\\":\\\"error\\\",\\\"detail\\\":\\\"no "
             "s\\\"}\" ;; esac; done"},
    NULL};

#define SAMPLE(id, domain, group, rest)                                                       \
    "{\"id\":\"" id "\",\"domain\":\"" domain "\",\"group\":" #group                          \
    ",\"prompt\":\"1+1=\",\"ground_truth\":\"2\",\"response\":\"\\u001b[1m2\",\"ids\":[5,6]," \
    "\"prompt_ids\":[1],\"finish\":\"stop\"," rest "}\n"
#define OK(score, reward) \
    "\"score\":" #score ",\"reward\":" #reward ",\"status\":\"ok\",\"detail\":\"\""

static const char rollouts[] =
    SAMPLE("0000020000000000", "a", 0, OK(1, 1) ",\"row\":{\"s\":1,\"x\":[2]}")
        SAMPLE("0000020000000001", "a", 0, OK(0, 0)) /* wrong -> right */
    SAMPLE("0000020000000002", "a", 0,
           "\"score\":null,\"reward\":null,\"status\":\"timeout\",\"detail\":\"late\"")
        SAMPLE("0000020000010000", "b", 1, OK(0, 0) ",\"row\":{\"s\":1}")  /* another domain */
    SAMPLE("0000020000020000", "a", 2, OK(1, 0.5) ",\"row\":{\"s\":0.25}") /* right -> in part */
    SAMPLE("0000020000020001", "a", 2, OK(0.25, 0.75))                     /* another reward */
    SAMPLE("0000020000030000", "a", 3, OK(1, 1));                          /* no row: error */

static char *put(const char *name, const char *text)
{
    char *path = cr_path_join(temp_folder, name);
    cr_err err = {0};

    assert_int_equal(cr_file_write_atomic(path, text, strlen(text), &err), CR_OK);
    return path;
}

/* What a comparison prints; *status: of its end. */
static char *compared(const char *domain, const char *text, bool is_json, int64_t num_shown,
                      cr_status *status, cr_err *err)
{
    cr_compare_args args = {.before = {.name = "recorded"},
                            .after = {"column", {by_column, NULL, 5, 1}},
                            .domain = domain,
                            .num_shown = num_shown,
                            .is_json = is_json};
    char *path = put("step-000002.jsonl", text), *printed = NULL;
    size_t n;
    cr_compare *c;

    args.to = open_memstream(&printed, &n);
    c = cr_compare_open(&args);
    if (cr_compare_file(c, path, err) == CR_OK) cr_note(cr_compare_end(c, err));
    *status = err->status;
    cr_compare_close(c);
    fclose(args.to);
    cr_free(path);
    return printed;
}

static void changes(void **state)
{
    cr_err err = {0};
    cr_status status;
    char *text = compared("a", rollouts, /*is_json=*/false, 1, &status, &err);

    (void)state;
    assert_int_equal(status, CR_OK);
    assert_non_null(strstr(text, "5 of 6 samples of a change from recorded to column\n"));
    assert_non_null(strstr(text, "         1  wrong -> right\n"));
    assert_non_null(strstr(text, "         1  right -> in part\n"));
    assert_non_null(strstr(text, "         1  in part -> in part, another score or reward\n"));
    assert_non_null(strstr(text, "         1  right -> error\n"));
    assert_non_null(strstr(text, "         1  time-out -> right\n"));
    assert_non_null(strstr(
        text,
        "mean score 0.5625 -> 0.6250, mean reward 0.5625 -> 0.6250, of 4 with a score in both\n"));
    assert_non_null(strstr(text, "    after         error \"no s\"\n"));
    assert_non_null(strstr(text, "    response      \"\\u001b[1m2\"\n"));
    free(text);
}

static void changes_as_json(void **state)
{
    cr_err err = {0};
    cr_status status;
    char *text = compared("a", rollouts, /*is_json=*/true, 1, &status, &err), *last;
    json_t *counts = NULL, *wanted;

    (void)state;
    assert_int_equal(status, CR_OK);
    last = strstr(text, "{\"samples\"");
    assert_int_equal(cr_json_parse(last, strlen(last), "counts", &counts, &err), CR_OK);
    wanted = json_pack("{s:i, s:i, s:{s:i, s:i, s:i, s:i, s:i}, s:i, s:[f,f], s:[f,f]}", "samples",
                       6, "changed", 5, "changes", "right -> in part", 1, "right -> error", 1,
                       "wrong -> right", 1, "in part -> in part", 1, "time-out -> right", 1,
                       "with_both", 4, "score", 0.5625, 0.625, "reward", 0.5625, 0.625);
    assert_true(json_equal(counts, wanted));
    assert_non_null(strstr(text, "{\"id\":\"0000020000000001\",\"before\":{\"score\":0,\"reward\":"
                                 "0,\"status\":\"ok\",\"detail\":\"\"},\"after\":{\"score\":1,"));
    assert_null(strstr(text, "\"id\":\"0000020000000000\"")); /* as it was */
    json_decref(counts);
    json_decref(wanted);
    free(text);
}

/* Lines that are no samples are left out and counted; a domain that is not there names those that are. */
static void wrong_files(void **state)
{
    static const struct {
        const char *domain, *text, *says;
    } cases[] = {
        {"c", rollouts, "no sample is of c (there are samples of a, b: "},
        {"a", "", "the files have no samples"},
        {"a", "[1]\n{\n", "2 lines are no samples"},
        {"a", "{\"id\":\"1\",\"domain\":\"a\",\"response\":\"\",\"ids\":[]}\n",
         "1 lines are no samples"}, /* no verdict */
        {"a", SAMPLE("", "a", 0, OK(1, 1)), "1 lines are no samples"},
        {"a", "{\"id\":\"1\",\"domain\":\"a\",\"response\":\"\",\"ids\":[-1]," OK(1, 1) "}\n",
         "1 lines are no samples"},
        {"a", "{\"id\":\"1\",\"domain\":\"a\",\"response\":\"\",\"ids\":[\"1\"]," OK(1, 1) "}\n",
         "1 lines are no samples"},
        {"a", "{\"id\":\"1\",\"domain\":\"a\",\"response\":\"\",\"ids\":[1]," OK(1e9, 1) "}\n",
         "1 lines are no samples"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_err err = {0};
        cr_status status;
        char *text = compared(cases[i].domain, cases[i].text, /*is_json=*/false, 1, &status, &err);
        if (!strstr(err.msg, cases[i].says)) fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(cr_exit_code(status), 2);
        assert_int_equal(strlen(text), 0);
        free(text);
    }
}

/* The line of a program has the row's columns and the sample's; of several rewards the verdict is that of the one that is meant. */
static void lines(void **state)
{
    static const char text[] =
        SAMPLE("0000020000000000", "a", 0,
               OK(1, 1) ",\"rewards\":{\"a\":{" OK(1, 1) "},\"brief\":{" OK(0, 0.5) "}}");
    json_t *row = json_pack("{s:i, s:s}", "s", 1, "ground_truth", "two"), *line = NULL, *wanted;
    cr_recorded r;
    cr_buf out = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_recorded_read(text, strlen(text), "brief", &r, &err), CR_OK);
    check_near(r.verdict.reward, 0.5, 0);
    assert_true(cr_recorded_is_of(&r, "brief") && cr_recorded_is_of(&r, "a") &&
                !cr_recorded_is_of(&r, "c"));
    assert_int_equal(cr_recorded_write(&r, row, &out, &err), CR_OK);
    assert_int_equal(cr_json_parse(out.data, out.num_bytes, "line", &line, &err), CR_OK);
    wanted = json_pack("{s:s, s:i, s:s, s:i, s:b, s:s, s:i, s:[i], s:[i,i], s:s}", "id",
                       "0000020000000000", "s", 1, "ground_truth", "two", "step", 2, "validation",
                       0, "finish", "stop", "response_tokens", 2, "prompt_ids", 1, "response_ids",
                       5, 6, "response", "\x1b[1m2");
    assert_true(json_equal(line, wanted));
    json_decref(line);
    cr_buf_clear(&out);
    assert_int_equal(cr_recorded_write(&r, NULL, &out, &err), CR_OK);
    assert_int_equal(cr_json_parse(out.data, out.num_bytes, "line", &line, &err), CR_OK);
    assert_string_equal(json_string_value(json_object_get(line, "prompt")), "1+1=");
    assert_string_equal(json_string_value(json_object_get(line, "ground_truth")), "2");
    json_decref(line);
    json_decref(wanted);
    json_decref(row);
    cr_recorded_free(&r);
    cr_buf_free(&out);
}

static void programs_that_cannot_go_on(void **state)
{
    char *const absent[] = {(char[]){"/nonexistent"}, NULL},
                *const ends[] = {(char[]){"false"}, NULL}, *const wrong[] = {(char[]){"cat"}, NULL};
    const struct {
        char *const *words;
        const char *says;
    } cases[] = {
        {absent, "cannot start /nonexistent: No such file"},
        {ends, "none of the first 8 lines: false ended with exit code 1 without an answer"},
        {wrong, "none of the first 8 lines: the program's answer is wrong: score is missing"}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_compare_args args = {
            .after = {"x", {cases[i].words, NULL, 5, 1}}, .domain = "a", .to = stdout};
        cr_compare *c = cr_compare_open(&args);
        char *twice = cr_asprintf("%s%s", rollouts, rollouts),
             *path = put("step-000002.jsonl", twice);
        cr_err err = {0};
        if (cr_compare_file(c, path, &err) == CR_OK) cr_note(cr_compare_end(c, &err));
        assert_int_equal(err.status, CR_ECONFIG);
        assert_non_null(strstr(err.msg, cases[i].says));
        cr_compare_close(c);
        cr_free(path);
        cr_free(twice);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes),
        cmocka_unit_test(changes_as_json),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(lines),
        cmocka_unit_test(programs_that_cannot_go_on),
    };

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
