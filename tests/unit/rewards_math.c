/* rewards_math.c -- answers of mathematics in the forms that models write them.
 *
 * rewards_math_pairs.jsonl has pairs of each form that docs/math.md names, with our judgement: 1, 0, or that the ground
 * truth cannot be read. Of the others, here:
 *
 * Each row has a ground truth, an answer that is right and one that is wrong but near: it holds the
 * ground truth, or would be taken for it by a comparison that ignores just this form.
 */
#include "base/json.h"
#include "rewards/math/math.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
    const char *gold, *right, *wrong;
} row;

static double score(const char *gold, const char *response, const char *status)
{
    cr_rule_result r;

    cr_math_rule("", response, strlen(response), gold, cr_now_s() + 5, NULL, &r);
    if (strcmp(cr_outcome_name(r.outcome), status) != 0)
        print_error("gold %s, response %s: %s %s\n", gold, response, cr_outcome_name(r.outcome),
                    r.detail);
    assert_string_equal(cr_outcome_name(r.outcome), status);
    check_near(r.reward, r.score, 0);
    return r.score;
}

/* format: where the answer is in the response, with one %s */
static void check_rows(const char *format, const row *rows, size_t num)
{
    for (size_t i = 0; i < num; i++)
        for (int is_right = 0; is_right < 2; is_right++) {
            char text[1024], *at = strstr(format, "%s");
            const char *answer = is_right ? rows[i].right : rows[i].wrong;
            double got;
            snprintf(text, sizeof text, "%.*s%s%s", (int)(at - format), format, answer, at + 2);
            got = score(rows[i].gold, text, "ok");
            if (got != is_right)
                print_error("gold %s, response %s: %g, expected %d\n", rows[i].gold, text, got,
                            is_right);
            check_near(got, is_right, 0);
        }
}

static void boxed(const row *rows, size_t num)
{
    check_rows("So it is $\\boxed{%s}$.", rows, num);
}

static void matrices(void **state)
{
#define M(a, b, c, d) "\\begin{pmatrix}" #a "&" #b "\\\\" #c "&" #d "\\end{pmatrix}"
    static const row rows[] = {
        {M(4, 6, 2, 5), M(1, 2, 0, 5) " + " M(3, 4, 2, 0), M(1, 2, 0, 5) " - " M(3, 4, 2, 0)},
        {M(1, 4, 3, 2), M(1, 2, 0, 1) "\\cdot " M(-5, 0, 3, 2),
         M(1, 2, 0, 1) "\\cdot " M(1, 4, 3, 2)},
        {M(-5, 0, 3, 2) M(1, 2, 0, 1), M(-5, -10, 3, 8), M(1, 4, 3, 2)}, /* the order matters */
        {M(3, 6, 0, 9), "3" M(1, 2, 0, 3), "3" M(1, 2, 0, 3) "+" M(0, 0, 0, 1)},
        {"\\frac{1}{2}" M(1, 2, 0, 3), M(0.5, 1, 0, 1.5), M(0.5, 1, 1.5, 0)},
        {"\\frac{1}{3}" M(1, 2, 0, 3), M(0.333333, 0.666667, 0, 1), M(0.333, 0.667, 0, 1)},
        {M(1, 40, 0, 1), M(1, 1, 0, 1) "^{40}", M(1, 1, 0, 1) "^{39}"},
        {M(1, 3, 2, 4), M(1, 2, 3, 4) "^T", M(1, 2, 3, 4)},
        {"-" M(1, -x, 0, 3), M(-1, x, 0, -3), M(-1, x, 0, 3)},
        {"\\begin{pmatrix}3\\\\7\\end{pmatrix}",
         M(1, 2, 3, 4) "\\begin{pmatrix}1\\\\1\\end{pmatrix}", "\\begin{pmatrix}3&7\\end{pmatrix}"},
        {"5",
         "|"
         "-5"
         "|",
         "\\begin{pmatrix}5\\end{pmatrix}"},
    };
#undef M

    (void)state;
    boxed(rows, CR_COUNT(rows));
    check_near(score("1",
                     "\\boxed{\\begin{pmatrix}1&2\\end{pmatrix}\\begin{pmatrix}1&2\\end{pmatrix}}",
                     "ok"),
               0, 0); /* dimensions that do not fit */
}

static void relations(void **state)
{
    static const row rows[] = {
        {"17", "x \\approx 17", "x \\approx 18"},
        {"\\frac{2}{3}", "x = \\frac23 \\approx 0.7", "x = 0.7 \\approx \\frac23"},
        {"\\sqrt{3}", "\\sqrt3 \\approx 1.7", "1.7 \\approx \\sqrt3"},
        {"9", "n = 4 + 5 = 9", "9 = 4 + n"},
        {"4 + 5 = 9", "9", "4"},
        {"2 = y = t = 8", "8", "2"},
        {"3x + y = 8", "y = 8 - 3x", "8"}, /* not every last side is an answer */
        {"7 = 3x + y", "3x + y = 7", "3x + y"},
        {"6", "6 = x", "x = 6 + x"},
        {"6 = x", "6", "7"},
        {"12:00", "12:00 \\text{ PM}", "11:00 \\text{ PM}"},
    };

    (void)state;
    boxed(rows, CR_COUNT(rows));
}

static void intervals_and_inequalities(void **state)
{
    static const row rows[] = {
        {"(-\\infty,-2)\\cup(5,\\infty)", "x<-2 \\text{ or } x>5", "-2<x<5"},
        {"(-\\infty,-2)\\cup(5,\\infty)", "x < -2, x > 5", "x \\le -2, x > 5"},
        {"x<-2 \\text{ or } x>5", "x \\in (-\\infty,-2)\\cup(5,\\infty)", "(-2,5)"},
        {"(-2,5)", "x>-2 \\text{ and } x<5", "x>-2 \\text{ or } x<5"},
        {"2 \\le |t| \\le 3", "t \\in [-3,-2]\\cup[2,3]", "t \\in [2,3]"},
        {"|x-4| < 1", "3 < x < 5", "-5 < x < 5"},
        {"|x| < 2", "-2 < x < 2", "-2 < y < 2"},
        {"|2x+1| \\ge 7", "(-\\infty,-4]\\cup[3,\\infty)", "(-\\infty,-4)\\cup[3,\\infty)"},
        {"(-\\infty,3]", "5x - 4 \\le 11", "5x - 4 < 11"},
        {"[-3,\\infty)", "1 - 2x \\le 7", "1 - 2x \\ge 7"},
        {"1 < g(x) < 4", "(1,4)", "1 < h(x) < 4"},
        {"1 < x < 4", "x > 1, x < 4", "y > 1, y < 4"},
        {"x \\ne 3", "(-\\infty,3)\\cup(3,\\infty)", "\\mathbb{R}"},
        {"[0,6]", "[0,2]\\cup[2,6]", "[0,2]\\cup(2,6)"},
    };

    (void)state;
    boxed(rows, CR_COUNT(rows));
}

static void lists(void **state)
{
    static const row rows[] = {
        {"8, 15, and 21", "8, 15, \\text{ and } 21", "8, 15"},
        {"8, 15 or 21", "21, 8, 15", "21 - 8, 15"},
        {"a=2,b=9;a=4,b=6", "(2,9),(4,6)", "(9,2),(4,6)"},
        {"a=2,b=9;a=4,b=6", "b=6,a=4;a=2,b=9", "2,9,4,6"},
        {"5;6;7", "7, 6, 5", "(5,6,7,8)"},
        {"x_1=2,\\quadx_2=3", "x_2=3,x_1=2", "x_1=3,x_2=2"},
        {"\\frac34", "\\\\frac{3}{4}", "\\\\frac{4}{3}"}, /* escaped twice */
        {"(\\frac34, \\pi)", "\\\\left( \\\\frac{3}{4}, \\\\pi \\\\right)",
         "\\\\left( \\\\pi, \\\\frac{3}{4} \\\\right)"},
        {"25000", "25 000", "25\\cdot 000"},
        {"250", "+250", "0 250"},
        {"3456789.5", "3\\,456\\,789.5", "3\\,456\\,789{,}5"},
        {"0,250", "250, 0", "250"}, /* no thousands after a zero */
        {"\\frac{9}{4}", "\\dfrac{9}{4}\\,\\mathrm{miles}", "\\dfrac{9}{4}\\,\\mathrm{miles} + 1"},
    };

    (void)state;
    boxed(rows, CR_COUNT(rows));
}

static void words(void **state)
{
    static const row rows[] = {
        {"Yes", "yes", "Yse"},          {"Yes", "\\text{YES}", "Sye"},
        {"abc", "cab", "cabc"}, /* a product */
        {"Pxy^2", "xy^2 P", "(Pxy)^2"}, {"R\\sin t", "Rsin(t)", "R\\cos t"},
    };

    (void)state;
    boxed(rows, CR_COUNT(rows));
}

static void series(void **state)
{
    static const row rows[] = {
        {"30", "\\sum_{k=1}^{4} k^2", "\\sum_{k=1}^{5} k^2"},
        {"\\sum_{k=1}^{4} k^2", "30", "4^2"},
        {"720", "\\prod_{i=1}^{6} i", "\\prod_{i=2}^{5} i"},
        {"\\sum_{i=0}^{m} a_i b_i", "\\sum_{i=0}^{m} b_i a_i", "\\sum_{i=1}^{m} b_i a_i"},
        {"\\sum_{i=0}^{m} i^3", "\\sum_{k=0}^{m} k^3", "\\sum_{k=0}^{m} k^2"},
        {"2 + \\sum_{n=1}^{\\infty} \\frac{1}{n^3}", "\\sum_{k=1}^{\\infty} \\frac{1}{k^3} + 2",
         "\\sum_{k=1}^{\\infty} \\frac{1}{k^2} + 2"},
        {"10", "\\sum_{i=1}^{3} \\sum_{j=1}^{i} j", "\\sum_{i=1}^{3} \\sum_{j=1}^{3} j"},
    };

    (void)state;
    boxed(rows, CR_COUNT(rows));
    check_near(
        score("1", "\\boxed{\\sum_{i=1}^{999} \\sum_{j=1}^{999} \\sum_{k=1}^{999} ijk}", "error"),
        0, 0);
}

static void boxes_that_are_one_answer(void **state)
{
    static const row rows[] = {
        {"4, 7", "$\\boxed{4}$ and $\\boxed{7}$", "$\\boxed{4}$. No: $\\boxed{7}$"},
        {"7", "$\\boxed{4}$. No: $\\boxed{7}$", "$\\boxed{4}$ and $\\boxed{7}$"},
        {"7", "$\\boxed{7}$, $\\boxed{7}$", "$\\boxed{4}$, $\\boxed{7}$"},
        {"4", "$\\boxed{5}$\n$\\boxed{4}$", "$\\boxed{4}$ or $\\boxed{5}$"},
        {"x=4,y=7", "$x = \\boxed{4}$ and $y = \\boxed{7}$",
         "$x = \\boxed{7}$ and $y = \\boxed{4}$"},
        {"(1,2),(3,4)", "$$\\boxed{(3,4)} \\quad \\text{and} \\quad \\boxed{(1,2)}$$",
         "$$\\boxed{(4,3)} \\quad \\text{and} \\quad \\boxed{(1,2)}$$"},
    };

    (void)state;
    check_rows("So: %s.", rows, CR_COUNT(rows));
}

static void free_text(void **state)
{
    static const row rows[] = {
        {"58", "Final Answer: The smallest $k$ is 58.",
         "Final Answer: The smallest $k$ is 59, not 58."},
        {"58", "The answer: the area of $PQRS$ is $58$, for 2 reasons.",
         "The answer is $k$, not 58."},
        {"k", "The answer is $k$, for 2 reasons.", "The answer is $k$ = 2."},
        {"3", "The answer: 3 is 5 less than 8", "The answer: $k$ is 5 less than 8"},
        {"2,5,9", "The answers are 2, 5 and 9.", "The answers are 2 and 9."},
        {"9", "The answer is 9, and 5 is none.", "The answers are 5 and 9."},
        {"2,5,9", "They are $2,$ $5,$ and $9.$", "They are $2,$ $5.$"},
        {"(6,-1)", "It lies at (6, -1).", "It lies at (-1, 6)."},
        {"[2,8)", "This holds on [2, 8).", "This holds on [2, 8]."},
        {"2750.5", "It costs 2 750.5 in all.", "It costs 750.5 in all."},
        {"6.4", "It is 6,4 m long.", "It is 6,4,2 m long."},
        {"0.125", "It is 0,125 in all.", "It is 125 in all."},
        {"(4,100)", "It is (4, 100).", "It is (4,100)."},
    };

    (void)state;
    check_rows("We look. %s", rows, CR_COUNT(rows));
    check_near(score("5", "(5,) 5", "ok"), 1, 0); /* no byte before the text is looked at */
}

/* "1", "0", or the status. */
static const char *verdict_of(const char *gold, const char *answer)
{
    char *response = cr_asprintf("So it is $\\boxed{%s}$.", answer);
    cr_rule_result r;

    cr_math_rule("", response, strlen(response), gold, cr_now_s() + 60, NULL, &r);
    cr_free(response);
    return strcmp(cr_outcome_name(r.outcome), "ok") != 0
               ? strcmp(cr_outcome_name(r.outcome), "error") == 0 ? "error" : "timeout"
           : r.score == 1 ? "1"
                          : "0";
}

static void pairs_of_every_form(void **state)
{
    cr_buf text = {0};
    cr_err err = {0};
    size_t at = 0, n, num = 0, num_same = 0, num_false_1 = 0;

    (void)state;
    if (cr_file_read("tests/unit/rewards_math_pairs.jsonl", &text, &err) != CR_OK)
        fail_msg("%s", err.msg);
    for (const char *line; (line = cr_line_next(&text, &at, &n)); num++) {
        json_t *pair;
        const char *gold, *answer, *want, *got;
        int right = 0;
        if (cr_json_parse(line, n, "a pair", &pair, &err) != CR_OK) fail_msg("%s", err.msg);
        want = json_string_value(json_object_get(pair, "verdict"));
        if (json_unpack(pair, "{s:s,s:s}", "ground_truth", &gold, "answer", &answer) != 0 ||
            (!want && json_unpack(pair, "{s:i}", "verdict", &right) != 0))
            fail_msg("line %zu is not a pair", num + 1);
        if (!want) want = right ? "1" : "0";
        got = verdict_of(gold, answer);
        num_same += strcmp(got, want) == 0;
        num_false_1 += strcmp(got, "1") == 0 && strcmp(want, "1") != 0;
        if (strcmp(got, want) != 0)
            print_error("gold %s, answer %s: %s, expected %s\n", gold, answer, got, want);
        json_decref(pair);
    }
    print_message("%zu of %zu pairs as we judge, %zu of the others false 1\n", num_same, num,
                  num_false_1);
    assert_int_equal(num_false_1, 0);
    assert_int_equal(num_same, num);
    cr_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices),
        cmocka_unit_test(relations),
        cmocka_unit_test(intervals_and_inequalities),
        cmocka_unit_test(lists),
        cmocka_unit_test(words),
        cmocka_unit_test(series),
        cmocka_unit_test(boxes_that_are_one_answer),
        cmocka_unit_test(free_text),
        cmocka_unit_test(pairs_of_every_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
