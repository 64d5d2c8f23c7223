/* formula_loss.c -- `croll formula loss` against torch's autograd in float64 (tests/parity/losses.py
 * makes losses.json): every pg_variant, aggregation, grain of correction and filter; `croll formula
 * advantage` with distillation against torch in float64 (tests/parity/opd.py makes opd.json): every
 * estimator of the distance, with and without rewards, whitening and clip; and with several rewards of a sample
 * (tests/parity/rewards.py makes rewards.json); `croll formula dpo` and `distill` (dpo.py, distill.py).
 */
#include "formula/formula.h"
#include "rl/loss.h"
#include "tests/check_near.h"

#include <string.h>

static json_t *load(const char *path)
{
    json_t *all;
    cr_err err = {0};

    if (cr_json_read_file(path, &all, &err) != CR_OK) fail_msg("%s", err.msg);
    return all;
}

/* The answer to the batch with these settings. */
static json_t *ask(const char *formula, json_t *batch, json_t *config)
{
    json_t *body = json_copy(batch), *answer;
    cr_buf out = {0};
    cr_err err = {0};
    char *text;

    json_object_set(body, "config", config);
    text = json_dumps(body, JSON_REAL_PRECISION(17));
    if (cr_formula(formula, text, strlen(text), &out, &err) != CR_OK) fail_msg("%s", err.msg);
    answer = json_loadb(out.data, out.num_bytes, 0, NULL);
    assert_non_null(answer);
    free(text);
    json_decref(body);
    cr_buf_free(&out);
    return answer;
}

/* The program prints 9 digits: 1e-8 of the number, and of 1 for those near 0. */
static void check_same(const json_t *got, const json_t *want, const char *key)
{
    if (json_is_array(want)) {
        assert_int_equal(json_array_size(got), json_array_size(want));
        for (size_t i = 0; i < json_array_size(want); i++)
            check_same(json_array_get(got, i), json_array_get(want, i), key);
        return;
    }
    if (!json_is_number(got)) fail_msg("no %s in the answer", key);
    check_near(json_number_value(got), json_number_value(want),
               1e-8 * (1 + fabs(json_number_value(want))));
}

static void losses_are_those_of_torch(void **state)
{
    static const char *const keys[] = {"total_loss",   "pg_loss",        "kl_loss",
                                       "entropy_loss", "grad_log_probs", "grad_entropy"};
    json_t *all = load("tests/parity/losses.json"), *one;
    unsigned met = 0;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        json_t *config = json_object_get(one, "config"), *want = json_object_get(one, "want"),
               *got = ask("loss", json_object_get(all, "batch"), config);
        const char *name = json_string_value(json_object_get(config, "pg_variant"));
        for (size_t k = 0; k < CR_COUNT(keys); k++)
            check_same(json_object_get(got, keys[k]), json_object_get(want, keys[k]), keys[k]);
        check_same(json_object_get(json_object_get(got, "metrics"), "actor/approxkl"),
                   json_object_get(want, "approxkl"), "actor/approxkl");
        for (unsigned v = 0; v < CR_NUM_VARIANTS; v++)
            if (strcmp(cr_variant_names[v], name) == 0) met |= 1u << v;
        json_decref(got);
    }
    assert_int_equal(met, (1u << CR_NUM_VARIANTS) - 1);
    assert_true(i > 70);
    json_decref(all);
}

static void distilled_advantages_are_those_of_torch(void **state)
{
    json_t *all = load("tests/parity/opd.json"), *one, *want;
    const char *key;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        json_t *got =
            ask("advantage", json_object_get(all, "batch"), json_object_get(one, "config"));
        json_object_foreach(json_object_get(one, "want"), key, want)
            check_same(json_object_get(got, key), want, key);
        json_decref(got);
    }
    assert_int_equal(i, 36);
    json_decref(all);
}

static void several_rewards_are_those_of_torch(void **state)
{
    json_t *all = load("tests/parity/rewards.json"), *batch = json_object_get(all, "batch"), *one,
           *want;
    const char *key;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        json_t *got;
        json_object_set(batch, "reward_weights", json_object_get(one, "reward_weights"));
        got = ask("advantage", batch, json_object_get(one, "config"));
        json_object_foreach(json_object_get(one, "want"), key, want)
            check_same(json_object_get(got, key), want, key);
        json_decref(got);
    }
    assert_int_equal(i, 6);
    json_decref(all);
}

/* Flat numbers as rows of these lengths. */
static json_t *rows_of(const json_t *flat, const json_t *lengths)
{
    json_t *rows = json_array(), *n;
    size_t at = 0, i;

    json_array_foreach((json_t *)(uintptr_t)lengths, i, n)
    {
        json_t *row = json_array();
        for (json_int_t k = json_integer_value(n); k > 0; k--)
            json_array_append(row, json_array_get(flat, at++));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Keys of `from` that the configuration may have. */
static json_t *config_of(const json_t *from, const char *const *keys, json_t *config)
{
    for (; *keys; keys++)
        if (json_object_get(from, *keys))
            json_object_set(config, *keys, json_object_get(from, *keys));
    return config;
}

static void pairs_are_those_of_torch(void **state)
{
    static const char *const keys[] = {"loss_type", "beta", "label_smoothing", "rpo_alpha", NULL};
    json_t *all = load("tests/parity/dpo.json"), *one;
    const json_t *lengths = json_object_get(all, "lengths");
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "losses"), i, one)
    {
        json_t *batch = json_pack("{s:o,s:o}", "log_probs",
                                  rows_of(json_object_get(one, "log_probs"), lengths),
                                  "ref_log_probs", rows_of(json_object_get(one, "ref"), lengths)),
               *config = config_of(one, keys, json_object()), *got = ask("dpo", batch, config),
               *grad = rows_of(json_object_get(one, "grad"), lengths);
        check_same(json_object_get(got, "loss"), json_object_get(one, "loss"), "loss");
        check_same(json_object_get(got, "nll_loss"), json_object_get(one, "nll"), "nll_loss");
        check_same(json_object_get(got, "grad_log_probs"), grad, "grad_log_probs");
        json_decref(grad);
        json_decref(got);
        json_decref(config);
        json_decref(batch);
    }
    assert_true(i > 10);
    json_decref(all);
}

static void distances_are_those_of_torch(void **state)
{
    static const char *const of_all[] = {"kd_temperature", "teacher_temperature",
                                         "adaptive_kl_alpha", "skew_lambda", NULL},
                             *const of_case[] = {"kd_objective", "logits_topk", "is_tail", NULL};
    json_t *all = load("tests/parity/distill.json"), *one;
    json_t *batch = json_pack("{s:[O],s:[O]}", "teacher", json_object_get(all, "teacher"),
                              "student", json_object_get(all, "student"));
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        json_t *config = config_of(one, of_case, config_of(all, of_all, json_object())),
               *got = ask("distill", batch, config);
        check_same(json_array_get(json_object_get(got, "losses"), 0), json_object_get(one, "loss"),
                   "losses");
        check_same(json_array_get(json_object_get(got, "grad_student"), 0),
                   json_object_get(one, "grad"), "grad_student");
        json_decref(got);
        json_decref(config);
    }
    assert_int_equal(i, 30);
    json_decref(batch);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_torch),
        cmocka_unit_test(pairs_are_those_of_torch),
        cmocka_unit_test(distances_are_those_of_torch),
        cmocka_unit_test(distilled_advantages_are_those_of_torch),
        cmocka_unit_test(several_rewards_are_those_of_torch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
