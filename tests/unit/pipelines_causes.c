/* pipelines_causes.c -- verdicts by cause: which cause a sample is counted under, and the times of a domain. Not covered: how the
 * times are measured (unit/scorers_scorer), what the page shows of it (unit/reports_verdicts).
 */
#include "pipelines/verdicts.h"
#include "tests/check_near.h"

#include <stdio.h>

static void causes(void **state)
{
    cr_reward_config blocks[] = {
        {.domain = (char[]){"sums"}}, {.domain = (char[]){"other"}}, {.domain = (char[]){"idle"}}};
    const cr_config config = {.rewards = blocks, .num_rewards = 3};
    static const struct {
        int domain;
        const char *status, *finish, *detail;
        double score, seconds;
    } cases[] = {
        {0, "ok", "stop", "", 1, 0.5},
        {0, "ok", "length", "", 1, 0.25}, /* right, though cut off */
        {0, "ok", "stop", "", 0.5, 0},
        {0, "ok", "stop", "", 3, 0},
        {0, "ok", "stop", "no", 0, 2},
        {0, "ok", "stop", "", -1, 0},
        {0, "ok", "stop", "no answer was found in the response", 0, 0},
        {0, "ok", "length", "no answer was found in the response", 0, 0},
        {0, "abstain", "stop", "", 0, 0},
        {0, "timeout", "stop", "", 0, 0},
        {0, "error", "length", "no answer", 0, 0.25},
        {1, "ok", "stop", "", 1, 0},
    };
    static const struct {
        const char *name;
        double value;
    } wanted[] = {
        {"sums/verdict/right", 2},
        {"sums/verdict/in_part", 2},
        {"sums/verdict/wrong", 2},
        {"sums/verdict/no_answer", 1},
        {"sums/verdict/cut_off", 1},
        {"sums/verdict/abstain", 1},
        {"sums/verdict/timeout", 1},
        {"sums/verdict/error", 1},
        {"other/verdict/right", 1},
        {"other/verdict/wrong", 0},
        {"time/verdict/sums/mean", 3.0 / 11},
        {"time/verdict/sums/max", 2},
        {"time/verdict/sums/slowest", (300 << 16) + 4},
    };
    cr_sample samples[CR_COUNT(cases)];
    cr_sample_reward rewards[CR_COUNT(cases)][2];
    cr_rollout r = {.samples = samples, .num_samples = CR_COUNT(cases)};
    cr_metrics m = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        rewards[i][0] = (cr_sample_reward){.seconds = cases[i].seconds / 2};
        rewards[i][1] = (cr_sample_reward){.seconds = cases[i].seconds};
        samples[i] = (cr_sample){.id = 7ULL << 40 | 300 << 16 | i,
                                 .domain = cases[i].domain,
                                 .score = cases[i].score,
                                 .detail = cases[i].detail,
                                 .rewards = rewards[i],
                                 .num_rewards = 2};
        samples[i].outcome = cr_outcome_find(cases[i].status);
        snprintf(samples[i].finish, sizeof samples[i].finish, "%s", cases[i].finish);
    }
    cr_verdict_causes(&config, &r, &m);
    for (size_t i = 0; i < CR_COUNT(wanted); i++) {
        const double *x = cr_metrics_get(&m, wanted[i].name);
        if (!x) fail_msg("no metric %s", wanted[i].name);
        check_near(*x, wanted[i].value, 1e-12);
    }
    assert_null(cr_metrics_get(&m, "time/verdict/other/max")); /* nothing was measured */
    assert_null(cr_metrics_get(&m, "idle/verdict/right"));     /* no sample */
    cr_metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(causes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
