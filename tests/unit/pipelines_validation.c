/* pipelines_validation.c -- numbers of a validation (pass@k, maj@k, by tag and by domain), answers that count as
 * the same vote, and shares of domains. Not covered: the samples themselves (e2e/run_domains.sh).
 */
#include "pipelines/validation.h"
#include "rewards/rules.h"
#include "tests/check_near.h"

#include <stdlib.h>
#include <string.h>

/* Of all subsets of k of n samples, the first c of which are right: the share that holds a right one. */
static double count_subsets(unsigned n, unsigned c, unsigned k)
{
    double num = 0, found = 0;

    for (unsigned set = 0; set < 1u << n; set++) {
        if ((unsigned)__builtin_popcount(set) != k) continue;
        num++;
        found += (set & ((1u << c) - 1)) != 0;
    }
    return found / num;
}

static void pass_at_k(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 9; n++)
        for (unsigned c = 0; c <= n; c++)
            for (unsigned k = 1; k <= n; k++)
                check_near(cr_pass_at_k(n, c, k), count_subsets(n, c, k), 1e-12);
    check_near(cr_pass_at_k(60000, 1, 2), 2.0 / 60000, 1e-12);
}

static void maj_at_k(void **state)
{
    static const char *const votes[] = {"a", "b", "b", NULL, "c", "d", NULL, NULL};
    static const bool is_right[] = {true, false, false, true, true, false, true, true};

    (void)state;
    check_near(cr_maj_at_k(votes, is_right, 4, 4), 0, 0);         /* b has two votes */
    check_near(cr_maj_at_k(votes, is_right, 2, 2), 0.5, 0);       /* a tie */
    check_near(cr_maj_at_k(votes, is_right, 8, 4), 0.25, 0);      /* b; c and d */
    check_near(cr_maj_at_k(votes, is_right, 7, 4), 0, 0);         /* whole blocks only */
    check_near(cr_maj_at_k(votes + 6, is_right + 6, 2, 2), 0, 0); /* no votes */
    check_near(cr_maj_at_k(votes, is_right, 8, 2), (0.5 + 0 + 0.5 + 0) / 4, 0);
}

static void check_same(const char *rule, const char *a, const char *b, bool is_same)
{
    cr_rule_args x = {.response = a, .response_bytes = strlen(a), .deadline_s = cr_now_s() + 10},
                 y = {.response = b, .response_bytes = strlen(b), .deadline_s = cr_now_s() + 10};
    char *one = cr_rule_answer(rule, &x), *other = cr_rule_answer(rule, &y);

    if (!one || !other || (strcmp(one, other) == 0) != is_same)
        fail_msg("%s and %s: %s and %s", a, b, one ? one : "none", other ? other : "none");
    cr_free(one);
    cr_free(other);
}

static void answers(void **state)
{
    cr_rule_args none = {.response = "", .deadline_s = cr_now_s() + 10};

    (void)state;
    check_same("math_rule", "so \\boxed{1/2}", "The answer is 0.5", true);
    check_same("math_rule", "\\boxed{x = 5}", "\\boxed{\\frac{10}{2}}", true);
    check_same("math_rule", "\\boxed{5}", "\\boxed{6}", false);
    check_same("math_rule", "\\boxed{(1, 2)}", "\\boxed{(1,2)}", true);
    check_same("math_rule", "\\boxed{(1, 2)}", "\\boxed{(2,1)}", false);
    check_same("general_val", "The answer is B.", "\\boxed{B}", true);
    check_same("multiple_choice_boxed", "\\boxed{A}", "\\boxed{B}", false);
    check_same(NULL, " x y\n", "x y", true);
    check_same(NULL, "x y", "x  y", false);
    assert_null(cr_rule_answer(NULL, &none));
    assert_null(cr_rule_answer("math_rule", &none));
    assert_null(cr_rule_answer("general_val", &none));
}

static double at(const cr_metrics *m, const char *name)
{
    const double *x = cr_metrics_get(m, name);

    if (!x) fail_msg("%s is missing", name);
    return *x;
}

/* Three prompts of four samples: one of two domains each, one tag of its own and one called all, samples
 * without a verdict. */
static void by_tag_and_domain(void **state)
{
    static char one[] = "1", two[] = "2",
                three[] = "3", *const responses[] = {one, two, two, three};
    static const double scores[3][4] = {{1, 0, 0, 0}, {0.5, 1, 1, 0}, {1, 1, 1, 1}};
    cr_reward_config rewards[] = {{.domain = (char[]){"all"}}, {.domain = (char[]){"b"}}};
    const cr_config config = {.rewards = rewards,
                              .num_rewards = 2,
                              .reward_timeout = 10,
                              .validation = {.data = {.tag = (char[]){"source"}}}};
    cr_row rows[3] = {{.json = json_pack("{s:s}", "source", "all")},
                      {.json = json_pack("{s:s}", "source", "t/1")},
                      {.json = json_pack("{s:s,s:n}", "tag", "no", "source")}};
    const cr_dataset data = {.rows = rows, .num_rows = 3};
    cr_sample samples[12] = {{0}};
    const cr_rollout rollout = {.samples = samples, .num_samples = 12, .group_size = 4};
    cr_metrics m = {0};

    (void)state;
    for (size_t i = 0; i < 12; i++)
        samples[i] = (cr_sample){.row = (uint32_t)(i / 4),
                                 .domain = i >= 8,
                                 .response = responses[i % 4],
                                 .response_bytes = 1,
                                 .outcome = CR_OUTCOME_OK,
                                 .score = scores[i / 4][i % 4]};
    samples[9].outcome = CR_OUTCOME_ERROR;
    samples[11].outcome = CR_OUTCOME_TIMEOUT;
    cr_validation_metrics(&config, &rollout, &data, "final/", &m);
    check_near(at(&m, "final/val_correct/all/mean"), 5.0 / 10, 1e-12);
    check_near(at(&m, "final/val_score/all/mean"), 5.5 / 10, 1e-12);
    check_near(at(&m, "final/val_correct/t/1/mean"), 0.5, 1e-12);
    check_near(at(&m, "final/all/val_correct/mean"), 3.0 / 8, 1e-12);
    check_near(at(&m, "final/b/val_correct/mean"), 1, 1e-12);
    check_near(at(&m, "final/val_pass@2/all"), (0.5 + 5.0 / 6 + 1) / 3, 1e-12);
    check_near(at(&m, "final/val_pass@4/all"), 1, 1e-12); /* of two prompts */
    check_near(at(&m, "final/all/val_maj@4"), 0.5, 1e-12);
    check_near(at(&m, "final/b/val_maj@2"), 1, 1e-12);
    assert_null(cr_metrics_get(&m, "final/b/val_pass@4"));
    assert_null(cr_metrics_get(&m, "final/val_correct/no/mean"));
    cr_metrics_free(&m);
    for (size_t i = 0; i < 3; i++)
        json_decref(rows[i].json);
}

/* ---- shares of domains ---- */

static void shares_are_exact(void **state)
{
    static const double shares[][6] = {{0.9, 0.1},
                                       {0.7, 0.3},
                                       {1},
                                       {0, 0.25, 0.75},
                                       {0.5, 0.25, 0.25},
                                       {0.97, 0.01, 0.01, 0.01},
                                       {0.4, 0.3, 0.2, 0.1},
                                       {0.19, 0.17, 0.16, 0.16, 0.16, 0.16}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(shares); i++)
        for (int64_t total = 1; total < 40; total += 3) {
            cr_cursor cursors[6] = {{0}};
            int64_t had[6] = {0};
            for (int64_t step = 1; step <= 200; step++) {
                int num[6], sum = 0;
                cr_cursors_deal(cursors, shares[i], 6, total, num);
                for (int d = 0; d < 6; d++) {
                    double want = shares[i][d] * (double)(step * total);
                    sum += num[d];
                    had[d] += num[d];
                    if (num[d] < 0 || fabs((double)had[d] - want) >= 1)
                        fail_msg(
                            "shares %zu, %lld prompts, step %lld: domain %d has had %lld of %g", i,
                            (long long)total, (long long)step, d, (long long)had[d], want);
                    check_near(cursors[d].deficit, want - (double)had[d], 1e-8);
                }
                assert_int_equal(sum, total);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pass_at_k), cmocka_unit_test(maj_at_k), cmocka_unit_test(answers),
        cmocka_unit_test(by_tag_and_domain), cmocka_unit_test(shares_are_exact)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
