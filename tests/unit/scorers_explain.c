/* scorers_explain.c -- what croll score --explain says: the members of "explain" for responses of each rule, and that a verdict is
 * the same with and without them.
 *
 * Not covered: a judge's reply (e2e/run_judge); the paragraph's look (here only its parts and that nothing in it moves a terminal).
 */
#include "scorers/score_line.h"
#include "tests/check_near.h"

#include <string.h>

typedef struct explained {
    const char *rule, *gold, *response; /* gold and response as JSON has them */
    const char *wanted;                 /* members of explain: all of them must be there */
} explained;

static const explained cases[] = {
    {"math_rule", "\\\\frac12", "a\\n\\nso \\\\boxed{\\\\frac{2}{4}}.",
     "{\"looked_in\":\"the last paragraph\",\"by\":\"the last "
     "\\\\boxed{..}\",\"found\":\"\\\\frac{2}{4}\","
     "\"context\":\"so "
     "\\\\boxed{[[\\\\frac{2}{4}]]}.\",\"answer\":{\"read_as\":\"2/4\",\"value\":\"1/2\"},"
     "\"ground_truth\":{\"read_as\":\"1/2\",\"value\":\"1/2\"}}"},
    {"math_rule", "7", "<think>8</think>The answer is $x = 3+5$.",
     "{\"looked_in\":\"what comes after </think>\",\"by\":\"what follows "
     "\\\"answer\\\"\",\"found\":\"x = 3+5\","
     "\"answer\":{\"read_as\":\"x = (3 + 5)\",\"value\":\"8\"}}"},
    {"math_rule", "7", "7",
     "{\"looked_in\":\"the response\",\"by\":\"the last formula or number\",\"found\":\"7\"}"},
    {"math_rule", "7", "\\\\boxed{7}",
     "{\"found\":\"7\",\"compared\":\"as text: they are the same\"}"},
    {"math_rule", "(2,7]", "\\\\boxed{2 < x \\\\le 7}",
     "{\"answer\":{\"read_as\":\"2 < x <= 7\"},\"ground_truth\":{\"read_as\":\"(2, 7]\"}}"},
    {"math_rule", "\\\\sqrt{8}", "\\\\boxed{-3!}",
     "{\"answer\":{\"read_as\":\"-3!\",\"value\":\"-6\"},\"ground_truth\":{\"read_as\":\"8^(1/"
     "2)\",\"value\":\"2.82842712475\"}}"},
    {"math_rule", "so $7$ (", "\\\\boxed{8}",
     "{\"found\":\"8\",\"ground_truth\":{\"read_as\":\"7\",\"value\":\"7\"}}"},
    {"math_rule", "7", "none", "{\"looked_in\":\"the response\"}"},
    {"multiple_choice_boxed", "(b)", "It is \\\\boxed{x: B}",
     "{\"looked_in\":\"the last \\\\boxed{..}\",\"found\":\"B\",\"context\":\"It is \\\\boxed{x: "
     "[[B]]}\",\"letter\":\"B\","
     "\"right_letter\":\"B\",\"boxed\":true}"},
    {"crossthinkqa", "B", "the answer is C",
     "{\"looked_in\":\"what follows \\\"answer is\\\"\",\"letter\":\"C\",\"boxed\":false,"
     "\"reward\":\"-1 of soft, 0 of repetition, 0 of the length\"}"},
    {"ifeval",
     "{\\\"func_name\\\":\\\"validate_word_constraint\\\",\\\"N\\\":5,\\\"quantifier\\\":\\\"at "
     "least\\\"}",
     "one two",
     "{\"instruction\":\"validate_word_constraint\",\"found\":\"2 words, wanted at least "
     "5\",\"holds\":false}"},
    {"ifeval",
     "{\\\"func_name\\\":\\\"verify_keywords\\\",\\\"keyword_list\\\":[\\\"cat\\\",\\\"dog\\\"]}",
     "a cat",
     "{\"found\":\"no "
     "\\\"dog\\\"\",\"holds\":false,\"arguments\":{\"func_name\":\"verify_keywords\",\"keyword_"
     "list\":[\"cat\",\"dog\"]}}"},
    {"ifeval", "{\\\"func_name\\\":\\\"verify_bullet_points\\\",\\\"N\\\":2}", "- a\\n- b",
     "{\"found\":\"2 bullet points, wanted 2\",\"holds\":true}"},
    {"ifeval", "{\\\"func_name\\\":\\\"validate_response_language\\\",\\\"language\\\":\\\"en\\\"}",
     "Es regnete, und wir.", "{\"votes\":{\"de\":2.5,\"es\":0.5},\"holds\":false}"},
};

static bool has_members(const json_t *explain, const json_t *wanted)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)wanted, key,
                        value) if (!json_equal(json_object_get(explain, key), value)) return false;
    return true;
}

/* The answer to a case, as a JSON value; of a paragraph its text. */
static json_t *answer(const explained *c, cr_score_form form, cr_buf *out)
{
    const cr_rule_args settings = {.deadline_s = 5, .reward_type = "soft"};
    cr_buf line = {0};
    json_t *json = NULL;
    cr_err err = {0};

    cr_buf_addf(&line, "{\"id\":1,\"tag\":\"ceval\",\"ground_truth\":\"%s\",\"response\":\"%s\"}",
                c->gold, c->response);
    assert_true(
        cr_score_line(cr_rule_find(c->rule), &settings, form, line.data, line.num_bytes, 1, out));
    if (form != CR_SCORE_PARAGRAPH)
        assert_int_equal(cr_json_parse(out->data, out->num_bytes - 1, "answer", &json, &err),
                         CR_OK);
    cr_buf_free(&line);
    return json;
}

static void what_is_explained(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_buf out = {0};
        json_t *json = answer(&cases[i], CR_SCORE_EXPLAINED, &out), *wanted = NULL;
        cr_err err = {0};
        assert_int_equal(
            cr_json_parse(cases[i].wanted, strlen(cases[i].wanted), "wanted", &wanted, &err),
            CR_OK);
        if (!has_members(json_object_get(json, "explain"), wanted))
            fail_msg("%s\nwanted %s", out.data, cases[i].wanted);
        json_decref(wanted);
        json_decref(json);
        cr_buf_free(&out);
    }
}

static void verdicts_are_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_buf out = {0};
        json_t *plain = answer(&cases[i], CR_SCORE_PLAIN, &out),
               *shown = answer(&cases[i], CR_SCORE_EXPLAINED, &out);
        assert_null(json_object_get(plain, "explain"));
        assert_int_equal(json_object_del(shown, "explain"), 0);
        assert_true(json_equal(plain, shown));
        json_decref(plain);
        json_decref(shown);
        cr_buf_free(&out);
    }
}

static void paragraphs(void **state)
{
    const explained red = {"math_rule", "7", "\\u001b[31mred\\n\\\\boxed{8}", NULL},
                    cut = {"math_rule", "7", "I do not know", NULL};
    static const char *const lines[] = {"{", "[1]", "{\"response\":1}"}; /* without an id */
    cr_buf out = {0};

    (void)state;
    answer(&cases[0], CR_SCORE_PARAGRAPH, &out);
    assert_non_null(
        strstr(out.data, "id 1: right (score 1, reward 1)\n  looked in      the last paragraph\n"));
    assert_non_null(strstr(out.data, "\n  ground truth   read_as 1/2   value 1/2\n"));
    answer(&red, CR_SCORE_PARAGRAPH, &out);
    assert_non_null(strstr(out.data, "id 1: wrong (score 0, reward 0)\n"));
    assert_non_null(strstr(out.data, "\xEF\xBF\xBD[31mred\xE2\x8F\x8E\\boxed{[[8]]}"));
    assert_null(strchr(out.data, 27));
    answer(&cut, CR_SCORE_PARAGRAPH, &out);
    assert_non_null(strstr(out.data, "detail         no answer was found in the response\n"));
    for (size_t i = 0; i < CR_COUNT(lines); i++) {
        const cr_rule_args settings = {.deadline_s = 5};
        cr_buf line = {0};
        cr_buf_adds(&line, lines[i]);
        cr_score_line(cr_rule_find("math_rule"), &settings, CR_SCORE_PARAGRAPH, line.data,
                      line.num_bytes, 1, &out);
        assert_int_equal(strncmp(out.data, "id : error\n  detail         line 1: ", 35), 0);
        cr_buf_free(&line);
    }
    cr_buf_free(&out);
}

/* Texts are cut between characters, and what is around a text that was found is, too. */
static void long_texts(void **state)
{
    json_t *explain = json_object();
    char *text = cr_alloc(9001);

    (void)state;
    for (size_t i = 0; i < 9000; i += 3)
        memcpy(text + i, "\xE2\x8F\x8E", 3);
    cr_explain_text(explain, "text", text, 9000);
    assert_non_null(
        strstr(json_string_value(json_object_get(explain, "text")), " .. (9000 bytes in all)"));
    cr_explain_found(explain, text, text + 300, 6);
    assert_int_equal(json_string_length(json_object_get(explain, "found")), 6);
    assert_true(json_string_length(json_object_get(explain, "context")) < 150);
    cr_explain_found(explain, text, text, 9000);
    assert_true(json_string_length(json_object_get(explain, "context")) < CR_EXPLAINED + 20);
    cr_explain_found(explain, "", "", 0);
    assert_string_equal(json_string_value(json_object_get(explain, "context")), "[[]]");
    cr_explain_text(NULL, "text", text, 9000);
    cr_explain_value(NULL, "value", json_integer(1));
    json_decref(explain);
    cr_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_explained),
        cmocka_unit_test(verdicts_are_the_same),
        cmocka_unit_test(paragraphs),
        cmocka_unit_test(long_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
