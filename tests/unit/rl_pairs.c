/* rl_pairs.c -- losses over pairs and their gradients against torch's autograd in float64, and what they say of rewards
 * (tests/parity/dpo.py makes dpo.json); each key of the loss counts; parts of a mini-batch add up; large log-ratios stay finite. */
#include "base/json.h"
#include "rl/pairs.h"
#include "tests/check_near.h"

#include <stdlib.h>
#include <string.h>

enum { MAX = 64 };

typedef struct batch {
    size_t start[MAX], num;
    double log_probs[MAX], ref[MAX], grad[MAX];
} batch;

static json_t *load(void)
{
    json_t *all;
    cr_err err = {0};

    if (cr_json_read_file("tests/parity/dpo.json", &all, &err) != CR_OK) fail_msg("%s", err.msg);
    return all;
}

static double number(const json_t *one, const char *key)
{
    const json_t *x = json_object_get(one, key);

    if (!json_is_number(x)) fail_msg("no %s", key);
    return json_number_value(x);
}

static batch batch_of(const json_t *lengths, const json_t *one)
{
    batch b = {.num = json_array_size(lengths)};

    for (size_t i = 0; i < b.num; i++)
        b.start[i + 1] = b.start[i] + (size_t)json_integer_value(json_array_get(lengths, i));
    assert_int_equal(json_array_size(json_object_get(one, "ref")), b.start[b.num]);
    for (size_t t = 0; t < b.start[b.num]; t++) {
        b.log_probs[t] = json_number_value(json_array_get(json_object_get(one, "log_probs"), t));
        b.ref[t] = json_number_value(json_array_get(json_object_get(one, "ref"), t));
    }
    return b;
}

static cr_pair_config config_of(const json_t *one)
{
    const char *name = json_string_value(json_object_get(one, "loss_type"));
    cr_pair_config c = {.beta = number(one, "beta"),
                        .label_smoothing = number(one, "label_smoothing"),
                        .rpo_alpha = number(one, "rpo_alpha")};

    while (cr_pair_loss_names[c.loss_type] && strcmp(cr_pair_loss_names[c.loss_type], name) != 0)
        c.loss_type++;
    assert_true(c.loss_type < CR_NUM_PAIR_LOSSES);
    return c;
}

/* Pairs first .. end - 1; the denominators are of all. */
static cr_pair_metrics loss_of(const cr_pair_config *c, batch *b, size_t first, size_t end)
{
    cr_pair_args a = {.rows = {2 * (end - first), b->start + 2 * first},
                      .log_probs = b->log_probs,
                      .ref = b->ref,
                      .grad = b->grad,
                      .num_pairs = (double)b->num / 2};

    for (size_t i = 0; i < b->num; i += 2)
        a.num_chosen_tokens += (double)(b->start[i + 1] - b->start[i]);
    cr_pair_losses(c, &a);
    return a.metrics;
}

static void losses_are_those_of_torch(void **state)
{
    json_t *all = load(), *one;
    unsigned met = 0;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "losses"), i, one)
    {
        cr_pair_config c = config_of(one);
        batch b = batch_of(json_object_get(all, "lengths"), one);
        cr_pair_metrics m = loss_of(&c, &b, 0, b.num / 2);
        check_near(m.loss, number(one, "loss"), 1e-12);
        check_near(m.nll, number(one, "nll"), 1e-12);
        check_near(m.chosen, number(one, "chosen"), 1e-12);
        check_near(m.rejected, number(one, "rejected"), 1e-12);
        check_near(m.margins, number(one, "chosen") - number(one, "rejected"), 1e-12);
        check_near(m.accuracies, number(one, "accuracies"), 1e-12);
        check_near(m.chosen_log_probs, number(one, "chosen_log_probs"), 1e-12);
        check_near(m.rejected_log_probs, number(one, "rejected_log_probs"), 1e-12);
        for (size_t t = 0; t < b.start[b.num]; t++)
            check_near(b.grad[t],
                       json_number_value(json_array_get(json_object_get(one, "grad"), t)), 1e-12);
        met |= 1U << c.loss_type;
    }
    assert_int_equal(met, (1U << CR_NUM_PAIR_LOSSES) - 1);
    json_decref(all);
}

static void parts_add_up(void **state)
{
    json_t *all = load(), *one;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "losses"), i, one)
    {
        cr_pair_config c = config_of(one);
        batch b = batch_of(json_object_get(all, "lengths"), one), parts = b;
        cr_pair_metrics whole = loss_of(&c, &b, 0, b.num / 2), left = loss_of(&c, &parts, 0, 1),
                        right = loss_of(&c, &parts, 1, b.num / 2);
        check_near(left.loss + right.loss, whole.loss, 1e-12);
        check_near(left.nll + right.nll, whole.nll, 1e-12);
        check_near(left.margins + right.margins, whole.margins, 1e-12);
        check_near(left.accuracies + right.accuracies, whole.accuracies, 1e-12);
        for (size_t t = 0; t < b.start[b.num]; t++)
            check_near(parts.grad[t], b.grad[t], 1e-15);
    }
    json_decref(all);
}

/* beta and rpo_alpha of every loss, label_smoothing of those that have it; no two losses are the same. */
static void every_key_counts(void **state)
{
    json_t *all = load();
    batch b = batch_of(json_object_get(all, "lengths"),
                       json_array_get(json_object_get(all, "losses"), 0));
    double seen[CR_NUM_PAIR_LOSSES];

    (void)state;
    for (int k = 0; k < CR_NUM_PAIR_LOSSES; k++) {
        cr_pair_config c = {(cr_pair_loss)k, 0.3, 0, 0};
        double loss = seen[k] = loss_of(&c, &b, 0, b.num / 2).loss;
        c.beta = 0.4;
        assert_true(fabs(loss_of(&c, &b, 0, b.num / 2).loss - loss) > 1e-3);
        c = (cr_pair_config){(cr_pair_loss)k, 0.3, 0, 0.1};
        assert_true(fabs(loss_of(&c, &b, 0, b.num / 2).loss - loss) > 1e-3);
        c = (cr_pair_config){(cr_pair_loss)k, 0.3, 0.2, 0};
        if (k == CR_PAIR_SIGMOID || k == CR_PAIR_ROBUST)
            assert_true(fabs(loss_of(&c, &b, 0, b.num / 2).loss - loss) > 1e-4);
        for (int j = 0; j < k; j++) /* without smoothing robust is sigmoid */
            assert_true((k == CR_PAIR_ROBUST && j == CR_PAIR_SIGMOID) ||
                        fabs(seen[j] - loss) > 1e-3);
    }
    json_decref(all);
}

static void large_ratios_stay_finite(void **state)
{
    batch b = {.start = {0, 1, 2, 3, 4}, .num = 4, .log_probs = {-1e5, 0, 0, -1e5}};

    (void)state;
    for (int k = 0; k < CR_NUM_PAIR_LOSSES; k++) {
        cr_pair_config c = {(cr_pair_loss)k, 1, k == CR_PAIR_ROBUST ? 0.1 : 0, 0};
        cr_pair_metrics m = loss_of(&c, &b, 0, 2);
        assert_true(isfinite(m.loss) && m.loss >= 0);
        check_near(m.accuracies, 0.5, 0);
        for (size_t t = 0; t < 4; t++)
            assert_true(isfinite(b.grad[t]));
        if (k == CR_PAIR_SIGMOID) { /* the wrong pair counts in full, the right one not at all */
            check_near(m.loss, 5e4, 1e-6);
            check_near(b.grad[0], -0.5, 1e-12);
            check_near(b.grad[2], 0, 1e-12);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_torch), cmocka_unit_test(parts_add_up),
        cmocka_unit_test(every_key_counts), cmocka_unit_test(large_ratios_stay_finite)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
