/* pipelines_verdicts.c -- what the blocks of rewards say of a sample as one verdict: sums by weight, blocks that
 * abstain or fail, rewards of tokens; means of each reward. Not covered: how verdicts come (e2e/run_several.sh).
 */
#include "pipelines/verdicts.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

static cr_reward_config blocks[] = {
    {.domain = (char[]){"math"}, .weight = 1},
    {.domain = (char[]){"format"}, .weight = 0.25},
    {.domain = (char[]){"length"}, .weight = -2, .is_failure_left_out = true}};
static const cr_config config = {.rewards = blocks, .num_rewards = 3};

/* A sample of two tokens: of each block "ok REWARD" (the score is its half), or another status; NULL: not asked. */
static cr_sample sample_of(const char *const says[3])
{
    cr_sample s = {.id = 7, .num_ids = 2};

    s.rewards = CR_NEW_ARRAY(cr_sample_reward, 3);
    for (int k = 0; k < 3; k++) {
        cr_sample_reward *x = &s.rewards[s.num_rewards];
        if (!says[k]) continue;
        *x = (cr_sample_reward){.block = k, .num_ids = 2, .has_come = true};
        x->detail = cr_asprintf("of %d", k);
        x->outcome = strncmp(says[k], "ok ", 3) == 0 ? CR_OUTCOME_OK : cr_outcome_find(says[k]);
        if (sscanf(says[k], "ok %lf", &x->reward) == 1) x->score = x->reward / 2;
        s.num_rewards++;
    }
    return s;
}

static void free_sample(cr_sample *s)
{
    for (size_t k = 0; k < s->num_rewards; k++) {
        cr_free(s->rewards[k].detail);
        cr_free(s->rewards[k].token_rewards);
    }
    cr_free(s->rewards);
    cr_free(s->token_rewards);
}

static void merged(void **state)
{
    static const struct {
        const char *says[3], *status, *detail;
        double score, reward;
        const char *reason;
    } cases[] = {
        {{"ok 4", NULL, NULL}, "ok", "of 0", 2, 4, NULL},
        {{"ok 4", "ok 8", "ok 1"}, "ok", "of 0", 2, 4, NULL},
        {{"abstain", "ok 8", "ok 1"}, "ok", "of 1", 4, 0, NULL},
        {{"ok 4", "abstain", "abstain"}, "ok", "of 0", 2, 4, NULL},
        {{"abstain", "abstain", "abstain"},
         "abstain",
         "of 0",
         0,
         0,
         "math, sample 0000000000000007: no reward"},
        {{"abstain", NULL, NULL}, "abstain", "of 0", 0, 0, "has anything to say of it"},
        {{"ok 4", "timeout", "ok 1"},
         "timeout",
         "of 1",
         0,
         0,
         "timeout of format, sample 0000000000000007: of 1"},
        {{"error", "timeout", "error"}, "error", "of 0", 0, 0, "error of math"},
        {{"abstain", "error", "ok 1"}, "error", "of 1", 0, 0, "error of format"},
        {{"ok 4", "ok 8", "timeout"},
         "ok",
         "of 0",
         2,
         6,
         "timeout of length"}, /* on_failure: abstain */
        {{"ok 4", "error", "timeout"}, "error", "of 1", 0, 0, "error of format"},
        {{NULL, NULL, "error"}, "abstain", "of 2", 0, 0, "error of length"},
        {{"timeout", "abstain", "error"}, "timeout", "of 0", 0, 0, "timeout of math"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_sample s = sample_of(cases[i].says);
        cr_sample_merge(&config, &s);
        if (strcmp(cr_outcome_name(s.outcome), cases[i].status) != 0 ||
            strcmp(s.detail, cases[i].detail) != 0)
            fail_msg("case %zu: %s, %s", i, cr_outcome_name(s.outcome), s.detail);
        check_near(s.score, cases[i].score, 0);
        check_near(s.reward, cases[i].reward, 1e-12);
        if (cases[i].reason) {
            char *reason = cr_sample_reason(&config, &s);
            if (!strstr(reason, cases[i].reason)) fail_msg("case %zu: %s", i, reason);
            cr_free(reason);
        }
        free_sample(&s);
    }
}

/* Exactly the tokens that are named, by weight; those of a block that counts nowhere do not count. */
static void tokens(void **state)
{
    static const char *const all[] = {"ok 1", "ok 1", "ok 1"}, *const failed[] = {"ok 1", "error",
                                                                                  "ok 1"};
    cr_sample s = sample_of(all), t = sample_of(failed);

    (void)state;
    for (int k = 0; k < 3; k++) {
        if (k == 0) continue;
        s.rewards[k].token_rewards = CR_NEW_ARRAY(float, 2);
        s.rewards[k].token_rewards[k == 1] = 3;
    }
    cr_sample_merge(&config, &s);
    check_near(s.token_rewards[0], -6, 0);
    check_near(s.token_rewards[1], 0.75, 0);
    t.rewards[0].token_rewards = CR_NEW_ARRAY(float, 2);
    cr_sample_merge(&config, &t);
    assert_null(t.token_rewards);
    free_sample(&s);
    free_sample(&t);
}

static double at(const cr_metrics *m, const char *name)
{
    const double *x = cr_metrics_get(m, name);

    if (!x) fail_msg("%s is missing", name);
    return *x;
}

/* Means are over samples with a verdict that the block gave a reward; shares over those that it was asked of. */
static void metrics(void **state)
{
    static const char *const says[][3] = {{"ok 1", "ok 8", "ok 1"},
                                          {"ok 0", "abstain", "ok 3"},
                                          {"ok 1", "error", "ok 9"},
                                          {"ok 1", "ok 2", "timeout"}};
    cr_sample samples[5];
    const cr_rollout r = {.samples = samples, .num_samples = 5};
    cr_metrics m = {0};

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        static const char *const alone[] = {NULL, "ok 5", NULL};
        samples[i] = sample_of(i < 4 ? says[i] : alone);
        samples[i].domain = i == 4; /* of a domain with one reward */
        samples[i].rewards[0].metrics = json_pack("{s:f}", "own", (double)i);
        cr_sample_merge(&config, &samples[i]);
    }
    cr_verdict_metrics(&config, &r, &m);
    check_near(at(&m, "math/rewards/math/mean"), 2.0 / 3, 1e-12);
    check_near(at(&m, "math/rewards/math/std"), sqrt(1.0 / 3), 1e-12);
    check_near(at(&m, "math/rewards/format/mean"), 5, 1e-12);
    check_near(at(&m, "math/rewards/format/max"), 8, 0);
    check_near(at(&m, "math/rewards/format/min"), 2, 0);
    check_near(at(&m, "math/rewards/format/abstain_ratio"), 0.25, 1e-12);
    check_near(at(&m, "math/rewards/format/failures"), 1, 0);
    check_near(at(&m, "math/rewards/length/mean"), 2, 1e-12);
    check_near(at(&m, "math/rewards/length/failures"), 1, 0);
    check_near(at(&m, "math/reward/own"), (0 + 1 + 3) / 3.0, 1e-12);
    check_near(at(&m, "format/reward/own"), 4, 0);
    assert_null(cr_metrics_get(&m, "format/rewards/format/mean"));
    cr_metrics_free(&m);
    for (size_t i = 0; i < 5; i++) {
        json_decref(samples[i].rewards[0].metrics);
        free_sample(&samples[i]);
    }
}

/* The third step in a row without any gradient is said, once. */
static void flat(void **state)
{
    static const double norms[] = {0, 0, 0.5, 0, 0, 0, 0};
    static const size_t lines[] = {0, 0, 0, 0, 0, 1, 1};
    FILE *file = tmpfile();
    int64_t num_flat = 0;
    cr_metrics m = {0};

    (void)state;
    assert_non_null(file);
    cr_log_tee(fileno(file));
    for (size_t i = 0; i < CR_COUNT(norms); i++) {
        char line[512];
        size_t num = 0;
        cr_metrics_clear(&m);
        cr_metrics_set(&m, norms[i], "actor_train/grad_norm");
        cr_metrics_set(&m, 1e10, "actor/lr");
        cr_verdict_warn_flat(&m, (int64_t)i, &num_flat);
        rewind(file);
        while (fgets(line, sizeof line, file)) {
            num++;
            assert_non_null(strstr(line, "steps 3 to 5 have a gradient of 0"));
            assert_non_null(strstr(line, "learning_rate (1e+10)"));
        }
        fseek(file, 0, SEEK_END);
        assert_int_equal(num, lines[i]);
    }
    cr_log_tee(-1);
    fclose(file);
    cr_metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(merged), cmocka_unit_test(flat),
                                       cmocka_unit_test(tokens), cmocka_unit_test(metrics)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
