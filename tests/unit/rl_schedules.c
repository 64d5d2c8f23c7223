/* rl_schedules.c -- learning-rate schedules against Transformers' own numbers (C23), from
 * tests/parity/formulas.json, which formulas.py beside it makes.
 */
#include "base/json.h"
#include "rl/rl.h"
#include "tests/check_near.h"

#include <string.h>

static cr_schedule kind_of(const char *name)
{
    for (int k = 0; k < CR_NUM_SCHEDULES; k++)
        if (strcmp(cr_schedule_names[k], name) == 0) return (cr_schedule)k;
    fail_msg("no schedule %s", name);
    return CR_LR_LINEAR;
}

static cr_schedule_args args_of(cr_schedule kind, json_t *kwargs)
{
    cr_schedule_args args = {{0}, {0}};
    const char *key;
    json_t *value;
    cr_err err = {0};

    json_object_foreach(kwargs, key, value)
    {
        if (cr_schedule_set(kind, key, json_number_value(value), json_string_value(value), &args,
                            &err) != CR_OK)
            fail_msg("%s", err.msg);
    }
    return args;
}

/* Both are the same float64 operations in the same order: within 1e-12 of the value itself, or 1e-15 of the
 * rate where a factor is the difference of nearly equal numbers. */
static void c23_schedules_are_transformers(void **state)
{
    json_t *all, *list, *one;
    size_t i, num = 0;
    unsigned met = 0;
    cr_err err = {0};

    (void)state;
    if (cr_json_read_file("tests/parity/formulas.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    list = json_object_get(all, "schedules");
    json_array_foreach(list, i, one)
    {
        cr_schedule kind = kind_of(json_string_value(json_object_get(one, "kind")));
        double lr = json_number_value(json_object_get(one, "learning_rate"));
        int64_t warmup = json_integer_value(json_object_get(one, "warmup_steps")),
                steps = json_integer_value(json_object_get(one, "steps"));
        const json_t *values = json_object_get(one, "values"), *at = json_object_get(one, "at");
        const cr_lr_schedule s = {kind, lr, warmup, steps,
                                  args_of(kind, json_object_get(one, "kwargs"))};
        if (at && cr_schedule_check(&s, &err) != CR_OK) fail_msg("%s", err.msg);
        for (size_t k = 0; k < json_array_size(values); k++, num++) {
            double want = json_number_value(json_array_get(values, k));
            check_near(
                cr_learning_rate(&s, at ? json_integer_value(json_array_get(at, k)) : (int64_t)k),
                want, fmax(1e-12 * want, 1e-15 * lr));
        }
        met |= 1u << kind;
    }
    assert_int_equal(met, (1u << CR_NUM_SCHEDULES) - 1);
    assert_true(num > 2000);
    json_decref(all);
}

/* Transformers divides by zero where the warm-up is as long as the run; a rate is a number always. */
static void c23_every_rate_is_a_number(void **state)
{
    (void)state;
    for (int kind = 0; kind < CR_NUM_SCHEDULES; kind++)
        for (int64_t warmup = 0; warmup < 5; warmup++)
            for (int64_t steps = 0; steps < 5; steps++)
                for (int64_t k = 0; k < 8; k++)
                    for (int decay = 0; decay < 8; decay++) {
                        cr_lr_schedule s = {(cr_schedule)kind, 1e-3, warmup, steps, {{0}, {0}}};
                        double lr;
                        s.args.value[CR_LR_NUM_DECAY_STEPS] = decay;
                        s.args.is_given[CR_LR_NUM_DECAY_STEPS] = true;
                        s.args.value[CR_LR_DECAY_TYPE] = decay % 3;
                        s.args.is_given[CR_LR_DECAY_TYPE] = true;
                        lr = cr_learning_rate(&s, k);
                        assert_true(lr >= 0 && lr <= 1e-3);
                    }
}

/* What is wrong is refused with a sentence, and nothing else is. */
static void arguments_are_checked(void **state)
{
    static const struct {
        cr_schedule kind;
        const char *name, *word;
        double number;
        const char *said; /* NULL: fine */
    } cases[] = {
        {CR_LR_COSINE, "num_cycles", NULL, 2, NULL},
        {CR_LR_COSINE, "min_lr", NULL, 1e-6, "cosine has no argument min_lr (it has num_cycles)"},
        {CR_LR_CONSTANT, "power", NULL, 1, "constant has no argument power (it has none)"},
        {CR_LR_POLYNOMIAL, "power", NULL, NAN, "power: a number from 0 to 1000 is expected"},
        {CR_LR_POLYNOMIAL, "power", "two", NAN, "power: a number from 0 to 1000 is expected"},
        {CR_LR_COSINE_WITH_MIN_LR, "min_lr_rate", NULL, 1.5, "a number from 0 to 1 is expected"},
        {CR_LR_WARMUP_STABLE_DECAY, "num_decay_steps", NULL, 2.5, "a whole number from 0"},
        {CR_LR_WARMUP_STABLE_DECAY, "decay_type", "1-sqrt", NAN, NULL},
        {CR_LR_WARMUP_STABLE_DECAY, "decay_type", NULL, 1, "linear, cosine or 1-sqrt is expected"},
        {CR_LR_WARMUP_STABLE_DECAY, "warmup_type", "sqrt", NAN, "linear, cosine or 1-sqrt"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_schedule_args args = {{0}, {0}};
        cr_err err = {0};
        cr_status status = cr_schedule_set(cases[i].kind, cases[i].name, cases[i].number,
                                           cases[i].word, &args, &err);
        if (!cases[i].said && status != CR_OK) fail_msg("%s", err.msg);
        if (cases[i].said && (status != CR_EARG || !strstr(err.msg, cases[i].said)))
            fail_msg("%s: '%s' is said", cases[i].name, err.msg);
    }
}

/* Arguments that belong together. */
static void a_schedule_is_checked_as_a_whole(void **state)
{
    static const struct {
        cr_schedule kind;
        cr_schedule_arg arg, second;
        double value;
        const char *said;
    } cases[] = {
        {CR_LR_COSINE_WITH_MIN_LR, CR_LR_MIN, CR_LR_MIN, 1e-4, NULL},
        {CR_LR_COSINE_WITH_MIN_LR, CR_LR_MIN, CR_LR_MIN, 2e-3, "at most the learning rate"},
        {CR_LR_COSINE_WITH_MIN_LR, CR_LR_MIN, CR_LR_MIN_RATE, 1e-4, "min_lr or min_lr_rate, one"},
        {CR_LR_COSINE_WARMUP_WITH_MIN_LR, CR_LR_WARMUP_RATE, CR_LR_WARMUP_RATE, 0.1,
         "cosine_warmup_with_min_lr needs min_lr or min_lr_rate"},
        {CR_LR_POLYNOMIAL, CR_LR_END, CR_LR_END, 1e-3, "less than the learning rate, 0.001"},
        {CR_LR_WARMUP_STABLE_DECAY, CR_LR_MIN_RATIO, CR_LR_MIN_RATIO, 0.1,
         "warmup_stable_decay needs num_decay_steps"},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_lr_schedule s = {cases[i].kind, 1e-3, 0, 10, {{0}, {0}}};
        cr_err err = {0};
        s.args.value[cases[i].arg] = s.args.value[cases[i].second] = cases[i].value;
        s.args.is_given[cases[i].arg] = s.args.is_given[cases[i].second] = true;
        if (cr_schedule_check(&s, &err) != (cases[i].said ? CR_EARG : CR_OK) ||
            (cases[i].said && !strstr(err.msg, cases[i].said)))
            fail_msg("case %zu: '%s' is said", i, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c23_schedules_are_transformers),
        cmocka_unit_test(c23_every_rate_is_a_number),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(a_schedule_is_checked_as_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
