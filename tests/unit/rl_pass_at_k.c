/* rl_pass_at_k.c -- exact fractions of pass@k against Python's Fraction and against sums of fractions in 128
 * bits; Wilson's intervals. Not covered: an evaluation's own fractions (e2e/eval.sh, against Python).
 */
#include "rl/pass_at_k.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

static wide choose(unsigned n, unsigned k)
{
    wide c = 1;

    if (k > n) return 0;
    for (unsigned i = 1; i <= k; i++)
        c = c * (n - k + i) / i;
    return c;
}

static wide divisor(wide a, wide b)
{
    while (b) {
        wide r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* All counts of one n: the fraction has few digits. */
static void one_n(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 12; n++)
        for (unsigned k = 1; k <= n; k++)
            for (unsigned seed = 0; seed < 20; seed++) {
                cr_pass_count counts[13];
                wide numerator = 0, denominator, by;
                unsigned prompts = 0;
                char expected[80], *got;
                for (unsigned c = 0; c <= n; c++) {
                    counts[c] = (cr_pass_count){n, c, (seed * 7 + c * 13 + n) % 9};
                    prompts += (unsigned)counts[c].num;
                    numerator += counts[c].num * (choose(n, k) - choose(n - c, k));
                }
                denominator = prompts * choose(n, k);
                by = divisor(numerator, denominator);
                snprintf(expected, sizeof expected, "%llu/%llu",
                         (unsigned long long)(numerator / by),
                         (unsigned long long)(denominator / by));
                got = cr_pass_fraction(counts, n + 1, k);
                assert_string_equal(got, expected);
                cr_free(got);
            }
}

/* From Python: sum(num * (1 - Fraction(comb(n - c, k), comb(n, k)))) / sum(num). */
static void python(void **state)
{
    static const cr_pass_count few[] = {{4, 1, 3}, {3, 2, 1}, {4, 4, 2}, {1, 1, 5}, {4, 0, 1}},
                               none[] = {{8, 0, 7}}, all[] = {{8, 8, 7}},
                               many[] = {{64, 5, 3}, {63, 60, 2}, {61, 1, 97}, {50, 25, 1}};
    static const struct {
        const cr_pass_count *counts;
        size_t num, k;
        const char *expected;
    } cases[] = {
        {few, CR_COUNT(few), 2, "9/14"},
        {few, CR_COUNT(few), 1, "101/144"},
        {few, CR_COUNT(few), 4, "5/6"},
        {few, CR_COUNT(few), 5, NULL},
        {none, CR_COUNT(none), 4, "0/1"},
        {all, CR_COUNT(all), 2, "1/1"},
        {many, CR_COUNT(many), 16, "104889622531079/351121945291068"},
        {many, CR_COUNT(many), 32, "20791/37698"},
        {many, CR_COUNT(many), 51, "1195727/1416576"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        char *got = cr_pass_fraction(cases[i].counts, cases[i].num, cases[i].k);
        if (!cases[i].expected)
            assert_null(got);
        else
            assert_string_equal(got, cases[i].expected);
        cr_free(got);
    }
}

/* Roots of (p - x)^2 = z^2 x (1 - x) / n. */
static void wilson(void **state)
{
    const double z = 1.959963984540054;

    (void)state;
    for (int n = 1; n < 200; n += 7)
        for (int c = 0; c <= n; c++) {
            double p = (double)c / n, ends[2];
            cr_wilson(p, n, &ends[0], &ends[1]);
            assert_true(ends[0] >= 0 && ends[0] <= p && p <= ends[1] && ends[1] <= 1);
            for (int i = 0; i < 2; i++)
                check_near((p - ends[i]) * (p - ends[i]), z * z * ends[i] * (1 - ends[i]) / n,
                           1e-12);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_n),
        cmocka_unit_test(python),
        cmocka_unit_test(wilson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
