/* sampling_ranges.c -- a value of a parameter of sampling is good for keys of a file, for the engine and for a request, or
 * for none of them; defaults are the same. Not covered: what generate --help says (e2e/help_examples). */
#include "kernels/sampling_ranges.h"
#include "configs/configs.h"
#include "engine/engine.h"
#include "serve/request.h"
#include "tests/check_near.h"
#include "tests/serve_model.h"
#include "tests/temp_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_good_key(const char *key, const char *value)
{
    char *word = cr_asprintf("generating_args.%s=%s", key, value);
    const char *const words[] = {word};
    cr_config config = {0};
    cr_diagnostics d = {0};
    cr_err err = {0};
    bool is_good = cr_config_worker("reference", "model", words, 1, &config, &d, &err) == CR_OK;

    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_free(word);
    return is_good;
}

static bool is_good_field(const char *field, const char *value)
{
    char *body = cr_asprintf("{\"prompt\":[1],\"%s\":%s}", field, value);
    cr_serve_request request = {0};
    cr_serve_error error = {0};
    bool is_good = cr_serve_request_parse(CR_SERVE_COMPLETIONS, body, strlen(body), &serve_service,
                                          &request, &error) == CR_OK;

    cr_serve_request_free(&request);
    cr_free(body);
    return is_good;
}

static cr_generating plain(void)
{
    return (cr_generating){.temperature = CR_DEFAULT_OF(CR_TEMPERATURE),
                           .top_p = CR_DEFAULT_OF(CR_TOP_P),
                           .min_p = CR_DEFAULT_OF(CR_MIN_P),
                           .top_k = CR_DEFAULT_OF(CR_TOP_K),
                           .repetition_penalty = CR_DEFAULT_OF(CR_REPETITION_PENALTY),
                           .max_new_tokens = CR_DEFAULT_OF(CR_MAX_NEW_TOKENS)};
}

typedef void (*set_fn)(cr_generating *how, double x);
static void set_temperature(cr_generating *how, double x)
{
    how->temperature = (float)x;
}
static void set_top_p(cr_generating *how, double x)
{
    how->top_p = (float)x;
}
static void set_min_p(cr_generating *how, double x)
{
    how->min_p = (float)x;
}
static void set_top_k(cr_generating *how, double x)
{
    how->top_k = (int64_t)x;
}
static void set_repetition(cr_generating *how, double x)
{
    how->repetition_penalty = (float)x;
}
static void set_presence(cr_generating *how, double x)
{
    how->processors.presence = (float)x;
}
static void set_frequency(cr_generating *how, double x)
{
    how->processors.frequency = (float)x;
}
static void set_max_new(cr_generating *how, double x)
{
    how->max_new_tokens = (int64_t)x;
}

/* Bounds as they are written here, a second time: a change of the table is one of what files and clients may say. */
static const struct parameter {
    const char *key, *field; /* NULL: it is none */
    set_fn set;
    const char *good[6], *bad[6];
} parameters[] = {
    {"temperature",
     "temperature",
     set_temperature,
     {"0", "1e-6", "0.7", "1e6"},
     {"-1", "1e-7", "9e-7", "1.1e6"}},
    {"top_p", "top_p", set_top_p, {"1e-9", "0.9", "1"}, {"0", "1e-10", "1.1", "-1"}},
    {"min_p", "min_p", set_min_p, {"0", "1"}, {"-0.1", "1.1"}},
    {"top_k", "top_k", set_top_k, {"-1", "0", "2147483647"}, {"-2", "2147483648"}},
    {"repetition_penalty",
     "repetition_penalty",
     set_repetition,
     {"1e-6", "1.1", "1e6"},
     {"0", "1e-7", "1.1e6", "-1"}},
    {NULL, "presence_penalty", set_presence, {"-2", "2"}, {"-2.1", "2.1"}},
    {NULL, "frequency_penalty", set_frequency, {"-2", "2"}, {"-2.1", "2.1"}},
    {"max_new_tokens", NULL, set_max_new, {"1", "2147483647"}, {"0", "2147483648"}},
};

static void check_value(const struct parameter *p, const char *value, bool is_good)
{
    cr_generating how = plain();
    cr_err err = {0};
    const char *by = NULL;

    p->set(&how, strtod(value, NULL));
    if ((cr_generating_check(&how, &err) == CR_OK) != is_good) by = "the engine";
    if (p->key && is_good_key(p->key, value) != is_good) by = "a file";
    if (p->field && is_good_field(p->field, value) != is_good) by = "a request";
    if (by)
        fail_msg("%s %s is %s %s", p->key ? p->key : p->field, value,
                 is_good ? "refused by" : "let through by", by);
}

static void one_answer(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(parameters); i++)
        for (size_t k = 0; k < 6; k++) {
            if (parameters[i].good[k]) check_value(&parameters[i], parameters[i].good[k], true);
            if (parameters[i].bad[k]) check_value(&parameters[i], parameters[i].bad[k], false);
        }
    cr_generating how = plain();
    cr_err err = {0};
    how.temperature = NAN;
    assert_int_equal(cr_generating_check(&how, &err), CR_EARG);
}

static void one_default(void **state)
{
    static const char body[] = "{\"prompt\":[1]}";
    cr_serve_request request = {0};
    cr_serve_error error = {0};
    cr_config config = {0};
    cr_diagnostics d = {0};
    cr_err err = {0};
    const cr_generating_args *g = &config.train.generating;
    const cr_serve_sampling *s = &request.sampling;

    (void)state;
    assert_int_equal(cr_config_worker("reference", "model", NULL, 0, &config, &d, &err), CR_OK);
    assert_int_equal(cr_serve_request_parse(CR_SERVE_COMPLETIONS, body, strlen(body),
                                            &serve_service, &request, &error),
                     CR_OK);
    check_near(g->temperature, CR_DEFAULT_OF(CR_TEMPERATURE), 0);
    check_near(g->top_p, CR_DEFAULT_OF(CR_TOP_P), 0);
    check_near(g->min_p, CR_DEFAULT_OF(CR_MIN_P), 0);
    check_near(g->repetition_penalty, CR_DEFAULT_OF(CR_REPETITION_PENALTY), 0);
    assert_int_equal(g->top_k, CR_DEFAULT_OF(CR_TOP_K));
    assert_int_equal(g->max_new_tokens, CR_DEFAULT_OF(CR_MAX_NEW_TOKENS));
    assert_int_equal(g->num_return_sequences, CR_DEFAULT_OF(CR_NUM_SAMPLES));
    check_near(s->temperature, g->temperature, 0);
    check_near(s->top_p, g->top_p, 0);
    check_near(s->min_p, g->min_p, 0);
    check_near(s->repetition_penalty, g->repetition_penalty, 0);
    assert_int_equal(s->top_k, g->top_k);
    assert_int_equal(s->n, g->num_return_sequences);
    cr_serve_request_free(&request);
    cr_config_free(&config);
    cr_diagnostics_free(&d);
}

static int begin(void **state)
{
    int status = make_temp_folder(state);

    if (status == 0) serve_model_open(temp_folder);
    return status;
}

static int end(void **state)
{
    serve_model_close();
    return remove_temp_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_answer), cmocka_unit_test(one_default)};

    return cmocka_run_group_tests(tests, begin, end);
}
