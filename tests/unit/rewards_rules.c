/* rewards_rules.c -- verdicts of the built-in reward rules, each pair settled by hand.
 *
 * Not covered: agreement with Math-Verify and the Python definitions of ifeval, and speed; forms of
 * mathematical answers are in rewards_math.c. Every wrong answer stands beside a right one that a
 * loose comparison would take for the same.
 */
#include "configs/configs.h"
#include "rewards/math/math.h"
#include "rewards/rules.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

static cr_rule_result ask(const char *rule, const char *gold, const char *response, size_t n,
                          const char *tag)
{
    json_t *row = json_pack("{s:s, s:s, s:s}", "ground_truth", gold, "prompt", "p", "tag", tag);
    cr_rule_args a = {.row = row,
                      .response = response,
                      .response_bytes = n,
                      .reward_type = "soft",
                      .deadline_s = cr_now_s() + 5};
    cr_rule_result r;

    assert_non_null(row);
    cr_rule_find(rule)(&a, &r);
    json_decref(row);
    return r;
}

static cr_rule_result boxed(const char *gold, const char *answer)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "So\n\n$\\boxed{%s}$.", answer);

    assert_true(n > 0 && (size_t)n < sizeof text);
    return ask("math_rule", gold, text, (size_t)n, "math");
}

static void math_pairs(void **state)
{
    static const struct {
        const char *gold, *right, *wrong;
    } pairs[] = {
        {"42", "42.0", "42.0001"},
        {"123456789012345678901234567890", "123456789012345678901234567890.0",
         "123456789012345678901234567891"},
        {"\\frac{1}{3}", "0.3333333", "0.333333 + 0.000001"},
        {"\\frac{3}{2}", "1\\frac12", "1 \\cdot \\frac12"},
        {"1,234,567", "1234567", "1,234,568"},
        {"1999^{1999}", "1999 \\cdot 1999^{1998}", "1999 \\cdot 1999^{1998} + 1"},
        {"\\binom{99}{49}", "\\frac{99!}{49! \\, 50!}", "\\binom{99}{48}"},
        {"\\sqrt{8}", "2\\sqrt2", "2\\sqrt{2.000001}"},
        {"\\frac{1}{\\sqrt2 - 1}", "1+\\sqrt2", "1-\\sqrt2"},
        {"2\\pi", "\\pi \\cdot 2", "6.2831"},
        {"\\ln 4", "2\\ln 2", "\\ln 2"},
        {"x^2-1", "(x-1)(x+1)", "(x-1)^2"},
        {"\\sqrt{x^2}", "|x|", "x"}, /* differ for x < 0 only */
        {"2^{n+1}", "2 \\cdot 2^n", "2^n + 2"},
        {"\\{1,2,3\\}", "3, 2, 1", "1, 2, 3, 4"},
        {"(1,2)", "(1, 2)", "(2, 1)"},
        {"[0,1)", "\\left[0,1\\right)", "(0,1]"},
        {"(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)",
         "(-\\infty,3)\\cup(3,\\infty)"},
        {"(0,3)", "(0,2)\\cup[2,3)", "(0,2)\\cup(2,3)"},
        {"1 \\pm \\sqrt5", "1-\\sqrt5, 1+\\sqrt5", "1+\\sqrt5"},
        {"y = 2x+1", "2x - y + 1 = 0", "2x + y + 1 = 0"},
        {"x > 3", "3 < x", "x < 3"},
        {"x = 5", "5", "y = 5"},
        {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}",
         "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}"},
        {"\\text{Monday}", "monday", "\\text{Sunday}"},
        {"20", "20\\,\\text{cm}^2", "20\\text{ cm} + 1"},
        {"\\$1,234.50", "1234.5", "1234.05"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(pairs); i++) {
        cr_rule_result right = boxed(pairs[i].gold, pairs[i].right),
                       wrong = boxed(pairs[i].gold, pairs[i].wrong);
        if (right.score != 1 || wrong.score != 0 ||
            strcmp(cr_outcome_name(wrong.outcome), "ok") != 0)
            print_error("%s: right %s %g %s, wrong %s %g %s %s\n", pairs[i].gold, pairs[i].right,
                        right.score, right.detail, pairs[i].wrong, wrong.score,
                        cr_outcome_name(wrong.outcome), wrong.detail);
        check_near(right.score, 1, 0);
        check_near(right.reward, 1, 0);
        check_near(wrong.score, 0, 0);
        assert_string_equal(cr_outcome_name(wrong.outcome), "ok");
    }
}

static void where_the_answer_is(void **state)
{
    static const struct {
        const char *response;
        double score;
    } cases[] = {
        {"The answer is \\boxed{5}.", 1}, /* ROLL asks for a blank line */
        {"a\n\n\\boxed{4}, no: \\boxed{5}", 1},
        {"a\n\n\\boxed{5}, no: \\boxed{4}", 0},
        {"<think>\\boxed{5}</think>I am done.", 0},
        {"\\boxed{4}</think>\\boxed{5}", 1},
        {"a</think>b</think>\\boxed{5}", 0},
        {"x<think>a</think>\\boxed{5}", 0},
        {"The final answer is 5, for 2 reasons.", 1},
        {"It is $5$.", 1},
        {"We get 5 + 1 = 6", 0},
        {"I do not know.", 0},
        {"", 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_rule_result r =
            ask("math_rule", "5", cases[i].response, strlen(cases[i].response), "math");
        if (r.score != cases[i].score) print_error("%s\n", cases[i].response);
        check_near(r.score, cases[i].score, 0);
        assert_string_equal(cr_outcome_name(r.outcome), "ok");
    }
    check_near(ask("math_rule", "5", "a\0b \\boxed{5}", 13, "math").score, 1, 0);
}

static void what_cannot_be_judged_says_so(void **state)
{
    static const struct {
        const char *gold, *answer;
    } cases[] = {{"9", "9^{9^{9^9}}"}, {"9", "99999999!"}, {"\\frac{", "5"}, {"", "5"}};
    char *deep = cr_alloc(20001);
    cr_rule_result r;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        r = boxed(cases[i].gold, cases[i].answer);
        assert_string_equal(cr_outcome_name(r.outcome), "error");
        assert_true(strlen(r.detail) > 10 && r.score == 0);
    }
    memset(deep, '(', 10000);
    memset(deep + 10000, ')', 10000);
    memcpy(deep, "\\boxed{(", 8);
    deep[19999] = '}';
    r = ask("math_rule", "5", deep, 20000, "math");
    assert_true(r.score == 0);
    cr_math_rule("", "\\boxed{(x+1)^2+(x+2)^2}", 23, "2x^2+6x+5", cr_now_s() - 1, NULL, &r);
    assert_true(strcmp(cr_outcome_name(r.outcome), "ok") == 0 ||
                strcmp(cr_outcome_name(r.outcome), "timeout") == 0);
    cr_free(deep);
}

static void choices(void **state)
{
    static const struct {
        const char *response;
        double boxed, soft; /* score of multiple_choice_boxed, reward of crossthinkqa */
    } cases[] = {
        {"\\boxed{A}, no: \\boxed{(B)}", 1, 1},
        {"the answer is A; no, Answer is b: B", 0, 0.5},
        {"\\boxed{B}, no: \\boxed{A}", 0, -0.5},
        {"<think>\\boxed{B}</think>\nA", 0, -1},
        {"\xC3\x9C"
         "bung: B",
         0, -1}, /* a capital U with dots comes first */
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const char *text = cases[i].response;
        size_t n = strlen(text);
        check_near(ask("multiple_choice_boxed", "B. two", text, n, "gpqa").score, cases[i].boxed,
                   0);
        check_near(ask("crossthinkqa", "B", text, n, "crossthinkqa").reward, cases[i].soft, 0);
        check_near(ask("general_val", "B", text, n, "ceval").score, cases[i].soft > 0, 0);
    }
    /* 8 words, 6 threes of which 3 differ: -0.5 (1 - 3/6) */
    check_near(ask("crossthinkqa", "B", "a b B a b B a b", 15, "x").reward, 0.5 - 0.25, 1e-12);
    assert_string_equal(cr_outcome_name(ask("general_val", "B", "B", 1, "nonsense").outcome),
                        "error");
    assert_string_equal(cr_outcome_name(ask("general_val", "", "B", 1, "ceval").outcome), "error");
    assert_string_equal(cr_outcome_name(ask("general_val", "2", "B", 1, "ceval").outcome), "error");
    for (int i = 0; i < 2; i++) {
        json_t *row = json_pack("{s:s}", "ground_truth", i ? "b)" : "2");
        cr_err err = {0};
        cr_status s = cr_rule_check_row("multiple_choice_boxed", row, &err);
        assert_int_equal(s, i ? CR_OK : CR_EFORMAT);
        s = cr_rule_check_row("math_rule", row, &err);
        assert_true(i || s == CR_OK);
        json_decref(row);
    }
    for (int i = 0; i < 2; i++) {
        check_near(ask("general_val", i ? "(b)" : "b) two", "It is B", 7, "ceval").score, 0, 0);
        check_near(ask("general_val", i ? "(b)" : "b) two", "B it is", 7, "ceval").score, 1, 0);
    }
}

/* Rows at which a shorter check goes wrong. */
static void ifeval_odd_rows(void **state)
{
    static const struct {
        const char *gold, *response;
        double score; /* -1: an error */
    } cases[] = {
#define KEYWORD(word, N) \
    "{\"func_name\":\"verify_keyword_frequency\",\"word\":\"" word "\",\"N\":" #N "}"
        {KEYWORD("two words", 2), "Two words, two wordsmiths; my two words", 1}, /* a phrase */
        {KEYWORD("two words", 3), "Two words, two wordsmiths; my two words", 0},
        {KEYWORD("cat", 1), "cat concat cats", 1},
        {KEYWORD("\xC3\xA9t\xC3\xA9", 1), "\xC3\x89t\xC3\xA9 \xC3\xA0\xC3\xA9t\xC3\xA9", 1},
        {KEYWORD("c++", 1), "C++ and xc++", 1},
        {KEYWORD("", 0), "x", -1},
#undef KEYWORD
        {"{\"func_name\":\"validate_choice\",\"options\":[\"yes\",\"no\"]}", "no", 1},
        {"{\"func_name\":\"validate_choice\",\"options\":[\"yes\",\"no\"]}", "", 0},
        {"{\"func_name\":\"validate_choice\",\"options\":[\"a b\",\"no\"]}", " ", 0},
        {"{\"func_name\":\"validate_choice\",\"options\":[1,2]}", "1", -1},
        {"{\"func_name\":\"verify_keywords\",\"keyword_list\":[\"a\",7]}", "a 7", -1},
        {"{\"func_name\":\"validate_forbidden_words\",\"forbidden_words\":[7]}", "a", -1},
        {"{\"func_name\":\"validate_json_format\"}", "[123456789012345678901234567890]", 1},
        {"{\"func_name\":\"validate_json_format\"}", "[1234567890123456789012345678,]", 0},
        {"{\"func_name\":\"verify_sentence_constraint\",\"N\":3,\"quantifier\":\"at least\"}",
         "It is.\nIt was?\n\nIt will.", 1},
        {"{\"func_name\":\"verify_sentence_constraint\",\"N\":4,\"quantifier\":\"at least\"}",
         "It is.\nIt was?\n\nIt will.", 0},
        {"{\"func_name\":\"validate_sections\",\"N\":1,\"section_splitter\":\"\"}", "x", -1},
        {"{\"func_name\":\"validate_two_responses\"}", "same\xE3\x80\x80******same", 0},
        {"{\"func_name\":\"validate_two_responses\"}", "\xC3\x85******\xC3\x85\xC2\xA0", 0},
        {"{\"func_name\":\"validate_frequency_capital_words\",\"N\":2,\"quantifier\":\"at most\"}",
         "NASA A1 \xC3\x89"
         "A ESA",
         1},
        {"{\"func_name\":\"validate_frequency_capital_words\",\"N\":2,\"quantifier\":\"at most\"}",
         "NASA (ESA) X", 0},
        {"{\"func_name\":\"validate_frequency_capital_words\",\"N\":2,\"quantifier\":\"at least\"}",
         "NASA A1 ESA", 1},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_rule_result r =
            ask("ifeval", cases[i].gold, cases[i].response, strlen(cases[i].response), "ifeval");
        double got = strcmp(cr_outcome_name(r.outcome), "ok") == 0 ? r.score : -1;
        if (got != cases[i].score) print_error("%s: %s\n", cases[i].gold, cases[i].response);
        check_near(got, cases[i].score, 0);
    }
}

static void ifeval_languages(void **state)
{
    static const struct {
        const char *code, *text;
    } cases[] = {
        {"en", "It was raining, and we had not taken an umbrella with us."},
        {"de", "Es regnete, und wir hatten keinen Schirm mit."},
        {"nl", "Het regende en wij hadden geen paraplu bij ons, maar dat was niet erg."},
        {"it", "Pioveva e non avevamo un ombrello con noi, ma non era un problema."},
        {"pt", "Estava a chover e n\xC3\xA3o t\xC3\xADnhamos um guarda-chuva."},
        {"uk", "\xD0\x99\xD1\x88\xD0\xBE\xD0\xB2 \xD0\xB4\xD0\xBE\xD1\x89, \xD1\x96 \xD0\xBC\xD0"
               "\xB8 \xD0\xBD\xD0\xB5 \xD0\xBC\xD0\xB0\xD0\xBB\xD0\xB8 \xD0\xBF\xD0\xB0\xD1\x80"
               "\xD0\xB0\xD1\x81\xD0\xBE\xD0\xBB\xD1\x96."},
        {"th", "\xE0\xB8\x9D\xE0\xB8\x99\xE0\xB8\x95\xE0\xB8\x81"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        for (size_t k = 0; k < CR_COUNT(cases); k++) {
            char gold[128];
            snprintf(gold, sizeof gold,
                     "{\"func_name\": \"validate_response_language\", \"language\": \"%s\"}",
                     cases[k].code);
            cr_rule_result r = ask("ifeval", gold, cases[i].text, strlen(cases[i].text), "ifeval");
            if (r.score != (i == k)) print_error("%s as %s\n", cases[i].text, cases[k].code);
            check_near(r.score, i == k, 0);
        }
    assert_string_equal(
        cr_outcome_name(ask("ifeval",
                            "{\"func_name\": \"validate_response_language\", \"language\": \"xx\"}",
                            "text", 4, "ifeval")
                            .outcome),
        "error");
}

/* What is wrong with a row is known before any response is: says NULL where nothing is. */
static void rows(void **state)
{
    static const struct {
        const char *rule, *row, *gold, *says;
    } cases[] = {
        {"math_rule", "{\"ground_truth\":\"7\"}", "7", NULL},
        {"math_rule", "{\"ground_truth\":29}", "29", NULL},
        {"math_rule", "{\"ground_truth\":0.1}", "0.1", NULL},
        {"math_rule", "{\"ground_truth\":-1e-7}", "-1e-07", NULL},
        {"math_rule", "{\"ground_truth\":0.30000000000000004}", "0.30000000000000004", NULL},
        {"math_rule", "{}", NULL, "ground_truth is missing"},
        {"math_rule", "{\"ground_truth\":null}", NULL, "ground_truth is null"},
        {"math_rule", "{\"ground_truth\":[7]}", NULL, "neither text nor number"},
        {"math_rule", "{\"ground_truth\":true}", NULL, "neither text nor number"},
        {"crossthinkqa", "{\"ground_truth\":\" \\n\"}", NULL, "ground_truth is empty"},
        {"ifeval", "{\"ground_truth\":\"{\\\"func_name\\\":\\\"validate_no_commas\\\"}\"}", NULL,
         NULL},
        {"ifeval", "{\"ground_truth\":\"{\\\"func_name\\\":\\\"validate_nothing\\\"}\"}", NULL,
         "of ifeval: validate_nothing"},
        {"ifeval", "{\"ground_truth\":\"[]\"}", NULL, "of ifeval: (none)"},
        {"ifeval", "{\"ground_truth\":\"{\"}", NULL, "ground_truth"},
        {"general_val", "{\"ground_truth\":\"A\",\"tag\":\"ceval\"}", "A", NULL},
        {"general_val", "{\"ground_truth\":\"A\",\"tag\":\"sums\"}", NULL, "not sums"},
        {"general_val", "{\"ground_truth\":\"A\"}", NULL, "a row without one"},
        {"format", "{}", NULL, NULL},
    };

    (void)state;
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        json_t *row = NULL;
        cr_err err = {0};
        assert_int_equal(cr_json_parse(cases[k].row, strlen(cases[k].row), "row", &row, &err),
                         CR_OK);
        if (cr_rule_check_row(cases[k].rule, row, &err) != (cases[k].says ? CR_EFORMAT : CR_OK) ||
            (cases[k].says && !strstr(err.msg, cases[k].says)))
            fail_msg("%s: %s", cases[k].row, err.msg);
        if (cases[k].gold) assert_string_equal(cr_rule_text(row, "ground_truth"), cases[k].gold);
        json_decref(row);
    }
}

/* ---- terms ---- */

static cr_rule_result ask_term(const char *rule, const char *response, int tokens,
                               double length_coef, const cr_reward_terms *terms)
{
    json_t *row = tokens < 0 ? json_object() : json_pack("{s:i}", "response_tokens", tokens);
    cr_rule_args a = {.row = row,
                      .response = response,
                      .response_bytes = strlen(response),
                      .length_coef = length_coef,
                      .terms = terms,
                      .deadline_s = cr_now_s() + 5};
    cr_rule_result r;

    cr_rule_find(rule)(&a, &r);
    json_decref(row);
    return r;
}

static void formats(void **state)
{
    static char think[] = "think", final[] = "answer", *tags[] = {think, final};
    static const cr_reward_terms by_tags = {.format_tags = tags, .num_format_tags = 2};
    static const struct {
        const char *pattern, *response; /* pattern NULL: ROLL's; "tags": [think, answer] */
        double reward;
    } cases[] = {
        {NULL, "<think>a\nb</think>\n<answer>1</answer>", 1},
        {NULL, "<think>a</think><answer>1</answer><|im_end|>", 1},
        {NULL, " <think>a</think><answer>1</answer>", 0}, /* re.match begins at the start */
        {NULL, "<think>a</think><answer>1</answer> so", 0},
        {NULL, "<think>a</think><answer>1</answer>\nso", 1}, /* $ is an end of a line */
        {NULL, "<answer>1</answer><think>a</think>", 0},
        {"a|b", "xb", 0}, /* both alternatives from the start */
        {"a|b", "bx", 1},
        {"^b", "a\nb", 0},
        {"[\\d]{2}\\Z", "12", 1},
        {"(?P<n>\\w)(?P=n)", "aab", 1},
        {"\xc3\xbc+", "\xc3\xbc\xc3\xbc", 1},
        {"tags", "<think>a</think>\n <answer>1</answer>\n", 1},
        {"tags", "<think></think><answer></answer>", 1},
        {"tags", "<think>a</think><answer>1</answer> so", 0},
        {"tags", "<think>a</think> so <answer>1</answer>", 0},
        {"tags", "<think>a<think>b</think><answer>1</answer>", 0},
        {"tags", "<think>a</think></think><answer>1</answer>", 0},
        {"tags", "<think>a</think><answer>1</answer><think>a</think><answer>1</answer>", 0},
        {"tags", "<answer>1</answer>", 0},
        {"tags", "<think>a</think><answer>1", 0},
        {"tags", "", 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char *pattern = cases[i].pattern ? cr_strdup(cases[i].pattern) : NULL;
        const cr_reward_terms own = {.format_pattern = pattern};
        bool has_tags = pattern && strcmp(pattern, "tags") == 0;
        cr_rule_result r = ask_term("format", cases[i].response, -1, 0,
                                    has_tags  ? &by_tags
                                    : pattern ? &own
                                              : NULL);
        if (strcmp(cr_outcome_name(r.outcome), "ok") != 0 || r.reward != cases[i].reward ||
            r.score != r.reward)
            fail_msg("%s on %s: %s %g %s", pattern ? pattern : "ROLL's", cases[i].response,
                     cr_outcome_name(r.outcome), r.reward, r.detail);
        cr_free(pattern);
    }
}

/* A pattern that goes wrong on a text is an error, and no long wait. */
static void formats_that_take_long(void **state)
{
    char text[4001], pattern[] = "(?:a|aa)+$";
    const cr_reward_terms terms = {.format_pattern = pattern};
    double start = cr_now_s();

    (void)state;
    memset(text, 'a', 4000);
    text[3999] = 'b', text[4000] = 0;
    assert_string_equal(cr_outcome_name(ask_term("format", text, -1, 0, &terms).outcome), "error");
    assert_true(cr_now_s() - start < 60);
}

/* DAPO's soft overlong punishment with L_max 100 and L_cache 20, and ROLL's term for short responses. */
static void lengths(void **state)
{
    static const cr_reward_terms terms = {
        .overlong_tokens = 20, .max_response_tokens = 100, .overlong_factor = 0.5};
    static const struct {
        int tokens;
        double coef, reward;
    } cases[] = {{0, 0, 0},      {80, 0, 0},     {81, 0, -0.5 / 20},         {90, 0, -0.25},
                 {100, 0, -0.5}, {120, 0, -0.5}, {99, 2, -1 - 0.5 * 19 / 20}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_rule_result r = ask_term("length", "", cases[i].tokens, cases[i].coef, &terms);
        check_near(r.reward, cases[i].reward, 1e-12);
        check_near(r.score, cases[i].reward == 0, 0);
    }
    check_near(ask_term("length", "", 250, 1, NULL).reward, -0.25, 1e-12);
    check_near(ask_term("length", "", 401, 1, NULL).reward, 0, 0);
    assert_string_equal(cr_outcome_name(ask_term("length", "", 250, 0, NULL).outcome), "error");
    assert_string_equal(cr_outcome_name(ask_term("length", "", -1, 0, &terms).outcome), "error");
    assert_string_equal(cr_outcome_name(ask_term("length", "", -1, 1, NULL).outcome), "error");
}

/* repetition_max_penalty x (1 - different / all n-grams of words). */
static void repetitions(void **state)
{
    static const struct {
        const char *response;
        int64_t n;
        double reward;
    } cases[] = {{"a b c a b c", 3, -2 * (1 - 3.0 / 4)},
                 {"A b a B", 2, -2 * (1 - 2.0 / 3)},
                 {"a a a a", 1, -2 * (1 - 1.0 / 4)},
                 {"a b", 3, 0},
                 {"a b c d", 3, 0},
                 {"", 1, 0},
                 {"a\xe2\x80\x83"
                  "a<|im_end|>",
                  1, -2 * (1 - 1.0 / 2)}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const cr_reward_terms terms = {.repetition_n_grams = cases[i].n,
                                       .repetition_max_penalty = -2};
        cr_rule_result r = ask_term("repetition", cases[i].response, -1, 0, &terms);
        check_near(r.reward, cases[i].reward, 1e-12);
        check_near(r.score, cases[i].reward == 0, 0);
    }
    check_near(ask_term("repetition", "a b c a b c", -1, 0, NULL).reward, -0.25, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(math_pairs),
        cmocka_unit_test(where_the_answer_is),
        cmocka_unit_test(what_cannot_be_judged_says_so),
        cmocka_unit_test(choices),
        cmocka_unit_test(ifeval_odd_rows),
        cmocka_unit_test(ifeval_languages),
        cmocka_unit_test(rows),
        cmocka_unit_test(formats),
        cmocka_unit_test(formats_that_take_long),
        cmocka_unit_test(lengths),
        cmocka_unit_test(repetitions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
