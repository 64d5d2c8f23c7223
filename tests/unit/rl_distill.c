/* rl_distill.c -- distillation at one position against torch's autograd in float64 (tests/parity/distill.py makes distill.json): six
 * objectives, top-k and the whole vocabulary, divided by the sum over the k or with an entry for the rest; equal models have loss 0 and
 * gradient 0; only the entry for the rest sees what the student does outside the k. */
#include "base/json.h"
#include "rl/distill.h"
#include "tests/check_near.h"

#include <math.h>
#include <string.h>

enum { VOCAB = 70 };

typedef struct both {
    double teacher[VOCAB], student[VOCAB], grad[VOCAB];
} both;

static json_t *load(both *b, cr_kd_config *c)
{
    json_t *all;
    cr_err err = {0};

    if (cr_json_read_file("tests/parity/distill.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(json_array_size(json_object_get(all, "teacher")), VOCAB);
    for (size_t i = 0; i < VOCAB; i++) {
        b->teacher[i] = json_number_value(json_array_get(json_object_get(all, "teacher"), i));
        b->student[i] = json_number_value(json_array_get(json_object_get(all, "student"), i));
    }
    *c = (cr_kd_config){
        .kd_temperature = json_number_value(json_object_get(all, "kd_temperature")),
        .teacher_temperature = json_number_value(json_object_get(all, "teacher_temperature")),
        .adaptive_kl_alpha = json_number_value(json_object_get(all, "adaptive_kl_alpha")),
        .skew_lambda = json_number_value(json_object_get(all, "skew_lambda"))};
    return all;
}

static void losses_are_those_of_torch(void **state)
{
    cr_kd_config c;
    both b;
    json_t *all = load(&b, &c), *one;
    unsigned met = 0;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        const char *name = json_string_value(json_object_get(one, "kd_objective"));
        c.kd_objective = 0;
        while (cr_kd_names[c.kd_objective] && strcmp(cr_kd_names[c.kd_objective], name) != 0)
            c.kd_objective++;
        assert_true(c.kd_objective < CR_NUM_KDS);
        c.logits_topk = (size_t)json_integer_value(json_object_get(one, "logits_topk"));
        c.is_tail = json_is_true(json_object_get(one, "is_tail"));
        check_near(cr_kd_position(&c, VOCAB, b.teacher, b.student, b.grad),
                   json_number_value(json_object_get(one, "loss")), 1e-12);
        for (size_t j = 0; j < VOCAB; j++)
            check_near(b.grad[j],
                       json_number_value(json_array_get(json_object_get(one, "grad"), j)), 1e-12);
        met |= 1U << c.kd_objective;
    }
    assert_int_equal(i, 30);
    assert_int_equal(met, (1U << CR_NUM_KDS) - 1);
    json_decref(all);
}

/* At equal temperatures; logits that differ by a constant are the same model. */
static void equal_models(void **state)
{
    cr_kd_config c;
    both b;

    (void)state;
    json_decref(load(&b, &c));
    c.teacher_temperature = 1;
    for (int kind = 0; kind < 2 * CR_NUM_KDS; kind++)
        for (int form = 0; form < 4; form++) {
            for (size_t j = 0; j < VOCAB; j++)
                b.student[j] = b.teacher[j] + (kind % 2 ? 2.5 : 0);
            c.kd_objective = (cr_kd)(kind / 2);
            c.logits_topk = form < 2 ? 4 : form == 2 ? 64 : 0;
            c.is_tail = form % 2 == 1;
            check_near(cr_kd_position(&c, VOCAB, b.teacher, b.student, b.grad), 0, 1e-9);
            for (size_t j = 0; j < VOCAB; j++)
                check_near(b.grad[j], 0, 1e-9);
        }
}

/* A student that moves probability out of the k: ROLL's form does not see it. */
static void what_is_outside(void **state)
{
    cr_kd_config c;
    both b;
    double sum = 0;

    (void)state;
    json_decref(load(&b, &c));
    c.teacher_temperature = 1;
    c.logits_topk = 4;
    memcpy(b.student, b.teacher, sizeof b.student);
    for (size_t j = 0; j < VOCAB; j++)
        if (b.teacher[j] < 0) b.student[j] += 6;
    check_near(cr_kd_position(&c, VOCAB, b.teacher, b.student, b.grad), 0, 1e-9);
    c.is_tail = true;
    assert_true(cr_kd_position(&c, VOCAB, b.teacher, b.student, b.grad) > 0.1);
    for (size_t j = 0; j < VOCAB; j++)
        sum += b.grad[j];
    check_near(sum, 0, 1e-12);
}

/* ---- ids that travel as float32 log-probs ---- */

static void soften(const double *logits, double temperature, double *out)
{
    double sum = 0;

    for (int v = 0; v < VOCAB; v++)
        sum += exp(logits[v] / temperature);
    for (int v = 0; v < VOCAB; v++)
        out[v] = logits[v] / temperature - log(sum);
}

/* The k largest ids of the teacher, by log-prob. */
static void largest(const double *log_p, size_t k, size_t *ids)
{
    bool taken[VOCAB] = {false};

    for (size_t i = 0; i < k; i++) {
        size_t best = VOCAB;
        for (size_t v = 0; v < VOCAB; v++)
            if (!taken[v] && (best == VOCAB || log_p[v] > log_p[best])) best = v;
        taken[ids[i] = best] = true;
    }
}

/* How near: log-probs are float32, and a tail is what sums of them leave of 1. */
static double nearness(const double *log_p, const double *log_q, const size_t *ids, size_t k)
{
    double p = 1, q = 1;

    for (size_t i = 0; i < k; i++)
        p -= exp(log_p[ids[i]]), q -= exp(log_q[ids[i]]);
    return k < VOCAB ? 1e-6 * (3 + p / q + q / p) : 3e-6;
}

/* cr_kd_chosen against cr_kd_position, for every objective, k and form. */
static void words_are_those_of_positions(void **state)
{
    static const size_t tops[] = {1, 4, 64, VOCAB};
    double log_p[VOCAB], log_q[VOCAB], by[VOCAB], rest;
    float p[VOCAB], q[VOCAB];
    size_t ids[VOCAB];
    cr_kd_config c;
    both b;

    (void)state;
    json_decref(load(&b, &c));
    soften(b.teacher, c.kd_temperature * c.teacher_temperature, log_p);
    soften(b.student, c.kd_temperature, log_q);
    for (int kind = 0; kind < CR_NUM_KDS; kind++)
        for (size_t t = 0; t < CR_COUNT(tops); t++)
            for (int tail = 0; tail < 2; tail++) {
                size_t k = tops[t];
                double loss, near;
                c.kd_objective = (cr_kd)kind;
                c.logits_topk = k;
                c.is_tail = tail;
                largest(log_p, k, ids);
                near = nearness(log_p, log_q, ids, k);
                for (size_t i = 0; i < k; i++)
                    p[i] = (float)log_p[ids[i]], q[i] = (float)log_q[ids[i]];
                loss = cr_kd_position(&c, VOCAB, b.teacher, b.student, b.grad);
                check_near(cr_kd_chosen(&c, k, VOCAB, p, q, by, &rest), loss, near);
                for (size_t i = 0; i < k; i++)
                    check_near(by[i], b.grad[ids[i]], near);
                for (size_t i = 0; i < k; i++)
                    b.grad[ids[i]] = rest * exp(log_q[ids[i]]);
                for (size_t v = 0; v < VOCAB; v++)
                    check_near(rest * exp(log_q[v]), b.grad[v], near);
            }
}

/* Loss and gradient are 0, not nearly: the teacher is the student. Words that the student lacks count to the tail. */
static void equal_words_and_none(void **state)
{
    double log_p[VOCAB], by[8], want[8], rest, loss;
    size_t ids[8];
    float p[8], more[8], q[8];
    cr_kd_config c;
    both b;

    (void)state;
    json_decref(load(&b, &c));
    soften(b.teacher, 1, log_p);
    largest(log_p, 8, ids);
    for (size_t i = 0; i < 8; i++)
        p[i] = (float)log_p[ids[i]];
    for (int kind = 0; kind < CR_NUM_KDS; kind++)
        for (int tail = 0; tail < 2; tail++) {
            c.kd_objective = (cr_kd)kind;
            c.is_tail = tail;
            check_near(cr_kd_chosen(&c, 8, VOCAB, p, p, by, &rest), 0, 1e-15);
            for (size_t i = 0; i < 8; i++)
                check_near(by[i], 0, 1e-15);
            check_near(rest, 0, 1e-14);
            for (size_t i = 0; i < 8; i++) {
                q[i] = (float)(log_p[ids[i]] - 0.3 + 0.05 * (double)i);
                more[i] = p[i];
            }
            loss = cr_kd_chosen(&c, 6, VOCAB, p, q, want, &rest);
            more[6] = more[7] = q[6] = q[7] = -INFINITY;
            check_near(cr_kd_chosen(&c, 8, VOCAB, more, q, by, &rest), loss, 1e-12);
            for (size_t i = 0; i < 8; i++)
                check_near(by[i], i < 6 ? want[i] : 0, 1e-12);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_torch), cmocka_unit_test(equal_models),
        cmocka_unit_test(words_are_those_of_positions), cmocka_unit_test(equal_words_and_none),
        cmocka_unit_test(what_is_outside)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
