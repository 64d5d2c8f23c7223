/* pipelines_best.c -- which validation is the best, and when a run ends early: what Transformers' Trainer and its
 * EarlyStoppingCallback make of the same numbers.
 */
#include "pipelines/best/best.h"

#include "tests/check_near.h"

#include <string.h>

typedef struct seen {
    double value;
    int is_new, should_stop;
} seen;

static void follow(const cr_best_keys *keys, const seen *all, size_t num)
{
    cr_best b = {0};
    cr_err err = {0};

    for (size_t i = 0; i < num; i++) {
        cr_metrics m = {0};
        bool is_new;
        cr_metrics_set(&m, all[i].value, "%s", keys->metric);
        if (cr_best_see(&b, keys, &m, "", (int64_t)i - 1, true, &is_new, &err) != CR_OK)
            fail_msg("%s", err.msg);
        if (is_new != all[i].is_new || cr_best_should_stop(&b, keys) != all[i].should_stop)
            fail_msg("validation %zu: new %d, stop %d", i, is_new, cr_best_should_stop(&b, keys));
        if (is_new) assert_int_equal(b.step, (int64_t)i - 1);
        cr_metrics_free(&m);
    }
}

static void as_transformers(void **state)
{
    const cr_best_keys up = {(char[]){"score"}, true, 2, 0}, down = {(char[]){"loss"}, false, 2, 0},
                       far = {(char[]){"score"}, true, 2, 0.1},
                       no_stop = {(char[]){"score"}, true, 0, 0};
    static const seen rises[] = {{0.5, 1, 0}, {0.5, 0, 0}, {0.6, 1, 0},
                                 {0.4, 0, 0}, {0.6, 0, 1}, {0.7, 1, 0}},
                      falls[] = {{0.5, 1, 0}, {0.6, 0, 0}, {0.4, 1, 0}, {0.45, 0, 0}, {0.41, 0, 1}},
                      /* better, but by too little: the best all the same, and it counts */
        little[] = {{0.5, 1, 0}, {0.55, 1, 0}, {0.6, 1, 1}, {0.75, 1, 0}},
                      never[] = {{0.5, 1, 0}, {0.4, 0, 0}, {0.4, 0, 0}, {0.4, 0, 0}};

    (void)state;
    follow(&up, rises, CR_COUNT(rises));
    follow(&down, falls, CR_COUNT(falls));
    follow(&far, little, CR_COUNT(little));
    follow(&no_stop, never, CR_COUNT(never));
}

static void unknown_metrics(void **state)
{
    const cr_best_keys keys = {(char[]){"score"}, true, 2, 0};
    cr_metrics m = {0};
    cr_best b = {0};
    cr_err err = {0};
    bool is_new;

    (void)state;
    cr_metrics_set(&m, 1, "final/score");
    assert_int_equal(cr_best_see(&b, &keys, &m, "", 0, true, &is_new, &err), CR_ECONFIG);
    assert_non_null(strstr(err.msg, "a validation has no number score"));
    err = (cr_err){0};
    assert_int_equal(cr_best_see(&b, &keys, &m, "final/", 4, false, &is_new, &err), CR_OK);
    assert_true(is_new && b.step == 4 && b.num_worse == 0);
    cr_metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_transformers),
                                       cmocka_unit_test(unknown_metrics)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
