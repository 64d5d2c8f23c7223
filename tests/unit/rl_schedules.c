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

/* Both are a few float64 operations: 1e-12 of the rate; the conformance list asks for 1e-7. */
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
        const json_t *values = json_object_get(one, "values");
        for (size_t k = 0; k < json_array_size(values); k++, num++)
            check_near(cr_learning_rate(&(cr_lr_schedule){kind, lr, warmup, steps}, (int64_t)k),
                       json_number_value(json_array_get(values, k)), 1e-12 * lr);
        met |= 1u << kind;
    }
    assert_int_equal(met, (1u << CR_NUM_SCHEDULES) - 1);
    assert_true(num > 500);
    json_decref(all);
}

/* Transformers divides by zero where the warm-up is as long as the run; a rate is a number always. */
static void c23_every_rate_is_a_number(void **state)
{
    (void)state;
    for (int kind = 0; kind < CR_NUM_SCHEDULES; kind++)
        for (int64_t warmup = 0; warmup < 5; warmup++)
            for (int64_t steps = 0; steps < 5; steps++)
                for (int64_t k = 0; k < 8; k++) {
                    double lr = cr_learning_rate(
                        &(cr_lr_schedule){(cr_schedule)kind, 1e-3, warmup, steps}, k);
                    assert_true(lr >= 0 && lr <= 1e-3);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c23_schedules_are_transformers),
        cmocka_unit_test(c23_every_rate_is_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
