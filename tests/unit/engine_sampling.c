/* engine_sampling.c -- draws from one row of logits against the exact distribution in double.
 *
 * Chi-square over fixed draws (so a pass is a pass for ever), and no draw of what a filter takes
 * away; rows of a batch beside each other; biases, penalties, allowed and banned ids against the logits processors of
 * Transformers (tests/parity/sampling.py makes sampling.json). On cuda fewer draws. Not covered: speed.
 * // also on far
 * // also on cuda, long
 */
#include "base/json.h"
#include "base/rng.h"
#include "engine/sampling.h"
#include "tests/check_near.h"
#include "tests/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NUM = 3000 };

static const cr_ends none;
static const cr_generating plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* On the simulated GPU a draw takes milliseconds. */
static int num_draws(int usual)
{
    return strcmp(cr_device_default(), "cuda") == 0 ? usual / 100 : usual;
}

/* z has ties (rounded to 1/8) when asked for. */
static void make_logits(float *z, int n, double spread, bool has_ties, int salt)
{
    for (int i = 0; i < n; i++) {
        z[i] = (float)(spread * cr_rng_normal(3, CR_RNG_TEST, (uint64_t)salt, (uint64_t)i));
        if (has_ties) z[i] = roundf(8 * z[i]) / 8;
    }
}

static const double *sort_by;

static int falling(const void *a, const void *b)
{
    double x = sort_by[*(const int *)a], y = sort_by[*(const int *)b];

    return x != y ? (x < y) - (x > y) : *(const int *)a - *(const int *)b;
}

/* What Hugging Face's processors leave, in double. Ties at the top_k threshold stay; among equal
 * ones at the edge of top_p the lower ids stay. */
static void exact(const float *logits, int n, const cr_generating *how, const int32_t *history,
                  size_t num_history, double *p)
{
    int *order = CR_NEW_ARRAY(int, n), keep = n;
    double total = 0, mass = 0, max;

    for (int i = 0; i < n; i++) {
        order[i] = i;
        p[i] = logits[i];
    }
    for (size_t h = 0; h < num_history; h++) {
        double z = logits[history[h]];
        p[history[h]] =
            z < 0 ? z * (double)how->repetition_penalty : z / (double)how->repetition_penalty;
    }
    for (int i = 0; i < n; i++)
        p[i] /= (double)how->temperature;
    sort_by = p;
    qsort(order, (size_t)n, sizeof *order, falling);
    max = p[order[0]];
    if (how->top_k > 0 && how->top_k < n)
        for (keep = (int)how->top_k; keep < n && p[order[keep]] == p[order[keep - 1]];)
            keep++;
    for (int i = 0; i < n; i++) {
        p[order[i]] = i < keep ? exp(p[order[i]] - max) : 0;
        total += p[order[i]];
    }
    if (how->top_p < 1) {
        int i = 0;
        for (; i < keep && (i == 0 || mass < (double)how->top_p * total); i++)
            mass += p[order[i]];
        keep = i;
    }
    for (int i = 0; i < n; i++)
        if (i >= keep || p[order[i]] < (double)how->min_p) p[order[i]] = 0;
    total = 0;
    for (int i = 0; i < n; i++)
        total += p[i];
    for (int i = 0; i < n; i++)
        p[i] /= total;
    cr_free(order);
}

/* Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal. */
static double deviations(const int *counts, int num_counts, const double *p, int n)
{
    double sum = 0, rare = 0, freedom = -1;
    int rare_counts = 0;

    for (int i = 0; i < n; i++) {
        double want = p[i] * num_counts;
        assert_true(p[i] > 0 || counts[i] == 0);
        if (want < 5) {
            rare += want;
            rare_counts += counts[i];
            continue;
        }
        sum += (counts[i] - want) * (counts[i] - want) / want;
        freedom++;
    }
    if (rare > 1) {
        sum += (rare_counts - rare) * (rare_counts - rare) / rare;
        freedom++;
    }
    if (freedom < 1) return 0;
    return (cbrt(sum / freedom) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom));
}

static int32_t draw(cr_device *dev, const cr_mem *z, int n, const cr_generating *how,
                    const int32_t *history, size_t num, float u)
{
    cr_draw_row row = cr_draw_row_of(how, &none, u, history, num / 2,
                                     num ? history + num / 2 : NULL, num - num / 2);
    cr_drawn drawn = {0};
    cr_err err = {0};

    if (cr_draw(dev, &(cr_draw_args){z, 1, n, &row, &drawn}, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_in_range(drawn.id, 0, n - 1);
    return drawn.id;
}

static void test_distributions(void **state)
{
    static const struct {
        int n;
        double spread;
        bool has_ties;
        float temperature;
        int64_t top_k;
        float top_p, min_p, penalty;
    } cases[] = {
        {273, 1, false, 1, 0, 1, 0, 1},
        {273, 1, false, 0.7f, 0, 1, 0, 1},
        {273, 1, false, 1, 6, 1, 0, 1},
        {273, 1, true, 1, 40, 1, 0, 1},
        {273, 1, false, 1, 0, 0.7f, 0, 1},
        {273, 1, false, 0.8f, 30, 0.8f, 0, 1},
        {273, 1, true, 0.8f, 30, 0.5f, 0, 1},
        {MAX_NUM, 0.1, false, 1, 0, 0.9f, 0, 1},
        {MAX_NUM, 5, false, 1.3f, 0, 0.99f, 0, 1},
        {MAX_NUM, 1, false, 1, 0, 0.95f, 0.01f, 1},
        {273, 2, false, 1, 0, 1, 0.05f, 1},
        {273, 2, false, 1.5f, 0, 1, 0, 1.3f},
        {273, 2, true, 0.9f, 50, 0.9f, 0.02f, 1.2f},
        {17, 1, false, 1, 17, 1, 0, 1},
        {1, 1, false, 1, 0, 0.5f, 0, 1},
        {273, 1, false, 1, 1, 1, 0, 1},
        {273, 1, false, 1, 0, 1e-6f, 0, 1},
    };
    static const int32_t history[] = {0, 0, 0, 0, 5, 200, 5, 120, 16};
    cr_err err = {0};
    cr_device *dev;
    float *z = calloc(MAX_NUM, sizeof *z);
    int draws = num_draws(20000);
    double *p = calloc(MAX_NUM, sizeof *p);
    int *counts = calloc(MAX_NUM, sizeof *counts);

    (void)state;
    assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
    for (int c = 0; c < (int)CR_COUNT(cases); c++) {
        cr_generating how = plain;
        size_t num_history = cases[c].n > 200 ? CR_COUNT(history) : 4;
        how.temperature = cases[c].temperature;
        how.top_k = cases[c].top_k;
        how.top_p = cases[c].top_p;
        how.min_p = cases[c].min_p;
        how.repetition_penalty = cases[c].penalty;
        make_logits(z, cases[c].n, cases[c].spread, cases[c].has_ties, c);
        exact(z, cases[c].n, &how, history, num_history, p);
        memset(counts, 0, MAX_NUM * sizeof *counts);
        cr_mem *mem = to_device(dev, z, (size_t)cases[c].n * sizeof *z);
        for (int i = 0; i < draws; i++) {
            uint32_t w[4];
            cr_rng_philox(9, CR_RNG_SAMPLE, (uint64_t)c, (uint64_t)i, w);
            counts[draw(dev, mem, cases[c].n, &how, history, num_history, cr_rng_float(w[0]))]++;
        }
        double far = deviations(counts, draws, p, cases[c].n);
        if (!(fabs(far) < 4)) fail_msg("case %d: %g standard deviations", c, far);
        /* the ends of u: the first and the last that is kept, never one that is not */
        assert_true(p[draw(dev, mem, cases[c].n, &how, history, num_history, 0)] > 0);
        assert_true(p[draw(dev, mem, cases[c].n, &how, history, num_history, 0x1.fffffep-1f)] > 0);
        to_host();
    }
    cr_device_close(dev);
    free(z);
    free(p);
    free(counts);
}

static void test_greedy(void **state)
{
    static const int32_t history[] = {40, 41, 40};
    cr_err err = {0};
    cr_device *dev;
    float z[100] = {0};
    cr_mem *mem;
    cr_generating how = plain;

    (void)state;
    assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
    how.temperature = 0;
    how.top_k = 5; /* has no say */
    for (int n = 1; n <= 100; n += 3) {
        for (int i = 0; i < n; i++)
            z[i] = -2;
        z[n / 2] = z[n - 1] = -1; /* the first of the largest */
        assert_int_equal(draw(dev, TO_DEVICE(dev, z), n, &how, NULL, 0, 0.9f), n / 2);
        to_host();
    }
    for (int i = 0; i < 100; i++)
        z[i] = (float)(i == 40 ? 10 : i == 41 ? -1 : i == 42 ? 7 : -1.5);
    mem = TO_DEVICE(dev, z);
    assert_int_equal(draw(dev, mem, 100, &how, history, 3, 0.9f), 40);
    how.repetition_penalty = 1.5f; /* 10 / 1.5 < 7: once, however often it was there */
    assert_int_equal(draw(dev, mem, 100, &how, history, 3, 0.9f), 42);
    how.repetition_penalty = 1.3f; /* twice would be below 7 */
    assert_int_equal(draw(dev, mem, 100, &how, history, 3, 0.9f), 40);
    to_host();
    cr_device_close(dev);
}

/* Each row of a batch as if it were alone, on any number of threads: bits of everything. */
static void test_rows_of_a_batch(void **state)
{
    enum { R = 23, N = 1000 };
    static const int32_t history[] = {1, 5, 999, 5};
    static float z[R * N];
    cr_draw_row rows[R];
    cr_drawn all[R] = {0}, one;
    cr_buf kept[R] = {0}, alone = {0};
    cr_device *devs[2];
    cr_err err = {0};

    (void)state;
    for (int r = 0; r < R; r++) {
        cr_generating how = plain;
        how.log_probs = r % 5 ? CR_LOG_PROBS_SAMPLED : CR_LOG_PROBS_RAW;
        how.temperature = r % 7 ? 0.5f + 0.1f * (float)(r % 9) : 0;
        how.top_k = r % 2 ? 20 + r : 0;
        how.top_p = r % 3 ? 0.9f : 1;
        how.min_p = r % 4 ? 0 : 0.01f;
        how.repetition_penalty = r % 6 ? 1.2f : 1;
        make_logits(z + r * N, N, 2, false, 100 + r);
        rows[r] = cr_draw_row_of(&how, &none, (float)r / R, history, 3, history + 3, 1);
        all[r].kept = &kept[r];
    }
    assert_int_equal(cr_device_open(cr_device_default(), 3, &devs[0], &err), CR_OK);
    assert_int_equal(cr_device_open(cr_device_default(), 1, &devs[1], &err), CR_OK);
    assert_int_equal(
        cr_draw(devs[0], &(cr_draw_args){TO_DEVICE(devs[0], z), R, N, rows, all}, &err), CR_OK);
    for (int r = 0; r < R; r++)
        for (int d = 0; d < 2; d++) {
            cr_buf_clear(&alone);
            one = (cr_drawn){.kept = &alone};
            assert_int_equal(
                cr_draw(devs[d],
                        &(cr_draw_args){cr_at_const(CR_F32, TO_DEVICE(devs[d], z), r * N), 1, N,
                                        &rows[r], &one},
                        &err),
                CR_OK);
            assert_int_equal(one.id, all[r].id);
            assert_memory_equal(&one.log_prob, &all[r].log_prob, sizeof one.log_prob);
            assert_memory_equal(&one.log_mass, &all[r].log_mass, sizeof one.log_mass);
            assert_int_equal(one.num_kept, all[r].num_kept);
            assert_int_equal(alone.num_bytes, one.num_kept * sizeof(int32_t));
            assert_int_equal(kept[r].num_bytes, alone.num_bytes);
            if (one.num_kept) assert_memory_equal(kept[r].data, alone.data, alone.num_bytes);
        }
    rows[4].temperature = -1;
    assert_int_equal(
        cr_draw(devs[0], &(cr_draw_args){TO_DEVICE(devs[0], z), R, N, rows, all}, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "row 4"));
    for (int r = 0; r < R; r++)
        cr_buf_free(&kept[r]);
    cr_buf_free(&alone);
    to_host();
    cr_device_close(devs[0]);
    cr_device_close(devs[1]);
}

/* ---- Transformers ---- */

enum { MAX_IDS = 64 };

/* A case of sampling.json. */
typedef struct row_case {
    cr_generating how;
    int32_t biased[MAX_IDS], allowed[MAX_IDS], ends[MAX_IDS], prompt[MAX_IDS], response[MAX_IDS];
    float bias[MAX_IDS], z[MAX_IDS];
    double want[MAX_IDS]; /* -INFINITY: never */
    size_t num_ends, num_prompt, num_response, num_words, num_left;
} row_case;

static size_t read_ids(const json_t *list, int32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

static size_t read_floats(const json_t *list, float *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
    return json_array_size(list);
}

static float setting(const json_t *c, const char *name, float absent)
{
    const json_t *value = json_object_get(c, name);

    return value ? (float)json_number_value(value) : absent;
}

static void read_case(const json_t *all, const json_t *c, row_case *out)
{
    const json_t *bias = json_object_get(c, "bias"), *want = json_object_get(c, "log_probs");
    cr_token_processors *e = &out->how.processors;

    out->how = (cr_generating){.log_probs = CR_LOG_PROBS_SAMPLED,
                               .temperature = setting(c, "temperature", 1),
                               .top_p = setting(c, "top_p", 1),
                               .min_p = setting(c, "min_p", 0),
                               .top_k = (int64_t)setting(c, "top_k", 0),
                               .repetition_penalty = setting(c, "repetition_penalty", 1),
                               .min_new_tokens = (int64_t)setting(c, "min_new_tokens", 0)};
    e->presence = setting(c, "presence_penalty", 0);
    e->frequency = setting(c, "frequency_penalty", 0);
    e->biased = out->biased;
    e->bias = out->bias;
    e->allowed = out->allowed;
    e->num_biased = read_ids(json_object_get(bias, "ids"), out->biased);
    read_floats(json_object_get(bias, "values"), out->bias);
    e->num_allowed = read_ids(json_object_get(c, "allowed"), out->allowed);
    out->num_ends = read_ids(json_object_get(c, "ends"), out->ends);
    out->num_prompt = read_ids(json_object_get(all, "prompt"), out->prompt);
    out->num_response = read_ids(json_object_get(all, "response"), out->response);
    out->num_words = read_floats(json_object_get(c, "logits"), out->z);
    for (size_t i = 0; i < out->num_words; i++) {
        const json_t *x = json_array_get(want, i);
        out->want[i] = json_is_null(x) ? -INFINITY : json_number_value(x);
        out->num_left += !json_is_null(x);
    }
}

/* One id, with the log-prob that it was drawn with. */
static cr_drawn draw_case(cr_device *dev, const cr_mem *z, const row_case *c, float u)
{
    const cr_ends ends = {(int32_t *)(uintptr_t)c->ends, c->num_ends};
    cr_draw_row row =
        cr_draw_row_of(&c->how, &ends, u, c->prompt, c->num_prompt, c->response, c->num_response);
    cr_drawn drawn = {0};
    cr_err err = {0};

    if (cr_draw(dev, &(cr_draw_args){z, 1, (int64_t)c->num_words, &row, &drawn}, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_in_range(drawn.id, 0, c->num_words - 1);
    return drawn;
}

static void test_transformers(void **state)
{
    const int draws = num_draws(4000);
    json_t *all, *one;
    cr_err err = {0};
    cr_device *dev;
    size_t k;

    (void)state;
    assert_int_equal(cr_device_open(cr_device_default(), 1, &dev, &err), CR_OK);
    if (cr_json_read_file("tests/parity/sampling.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    json_array_foreach(json_object_get(all, "cases"), k, one)
    {
        int counts[MAX_IDS] = {0};
        int32_t best = 0;
        row_case c = {0};
        read_case(all, one, &c);
        cr_mem *z = TO_DEVICE(dev, c.z);
        for (int i = 0; i < draws; i++) {
            float u = i ? ((float)i + 0.5f) / (float)draws : 0;
            cr_drawn d = draw_case(dev, z, &c, i == draws - 1 ? 0x1.fffffep-1f : u);
            if (!(c.want[d.id] > -INFINITY)) fail_msg("case %zu: id %d is drawn", k, d.id);
            check_near(d.log_prob, c.want[d.id], 2e-6);
            if (cr_generating_has_filter(&c.how)) assert_int_equal(d.num_kept, c.num_left);
            counts[d.id]++;
        }
        for (int32_t i = 0; i < (int32_t)c.num_words; i++) {
            double far = counts[i] - exp(c.want[i]) * draws; /* u is a grid */
            if (!(fabs(far) < 2)) fail_msg("case %zu: id %d is drawn %d times", k, i, counts[i]);
            if (c.want[i] > c.want[best]) best = i;
        }
        c.how.temperature = 0;
        assert_int_equal(draw_case(dev, z, &c, 0.5f).id, best);
        to_host();
    }
    assert_int_equal(k, 15);
    json_decref(all);
    cr_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_rows_of_a_batch),
        cmocka_unit_test(test_transformers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
