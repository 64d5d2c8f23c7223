/* serve_job.c -- requests on their way through the engine and rounds of scoring, on a small random Qwen3: events put
 * together are the whole answer, samples do not depend on other prompts or requests, stop texts over several tokens
 * are never sent, scores go where they belong, a cancelled job leaves the others alone, places for
 * samples where there are several tenants.
 * The rounds are a table of numbers here. Not covered: rounds of a model (unit/serve_scoring), HTTP. */
#include "base/json.h"
#include "serve/compute.h"
#include "tests/byte_tokenizer.h"
#include "tests/check_near.h"
#include "tests/serve_model.h"
#include "tests/small_engine.h"

#include <stdlib.h>
#include <string.h>

static const char config[] =
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":1,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"hidden_size\":16,"
    "\"intermediate_size\":24,\"num_attention_heads\":2,\"vocab_size\":256,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":100,"
    "\"initializer_range\":0.3,\"eos_token_id\":[3],\"max_position_embeddings\":128}";
static const int32_t eos[] = {3};

static cr_job *make_job(cr_serve_route route, const char *body)
{
    cr_serve_request request;
    cr_serve_error error;

    if (cr_serve_request_parse(route, body, strlen(body), &serve_service, &request, &error) !=
        CR_OK)
        fail_msg("%s\n%s", body, error.message);
    return cr_job_create(&request, "x", 1234567);
}

static void submit(cr_job *job)
{
    while (job->num_submitted < job->request.num_prompts)
        cr_job_submit_next(job, engine);
}

static void run_engine(void)
{
    cr_generated g;
    cr_err err = {0};

    while (!cr_engine_is_idle(engine)) {
        must(cr_engine_step(engine, &err), &err);
        while (cr_engine_poll(engine, &g))
            cr_job_take_sample(&g);
    }
}

/* Answer a round with numbers that differ by ask, place and alternative. */
static void answer_round(cr_job *job)
{
    static float log_probs[400], tops[4000], candidates[4000];
    static int32_t ranks[400], ids[4000];
    const cr_score_ask *asks;
    size_t num = cr_job_asks(job, &asks), at = 0;
    cr_score *scores = CR_NEW_ARRAY(cr_score, num);

    for (size_t i = 0; i < num; i++) {
        size_t places = asks[i].num_ids - asks[i].first + (asks[i].draw ? 1 : 0);
        size_t top = (size_t)asks[i].num_top, k = asks[i].num_candidates;
        assert_true(at + places <= 400 && top <= 10 && k <= 10);
        scores[i] = (cr_score){.num = places,
                               .log_probs = log_probs + at,
                               .ranks = asks[i].has_rank ? ranks + at : NULL,
                               .num_top = (int64_t)top,
                               .top_ids = top ? ids + at * 10 : NULL,
                               .top_log_probs = top ? tops + at * 10 : NULL,
                               .num_candidates = k,
                               .candidates = k ? candidates + at * 10 : NULL,
                               .drawn = asks[i].draw ? 65 + (int32_t)i : -1};
        for (size_t t = 0; t < places; t++) {
            log_probs[at + t] = -(float)(100 * (i + 1) + asks[i].first + t);
            ranks[at + t] = (int32_t)(i + 7);
            for (size_t j = 0; j < top; j++) {
                ids[at * 10 + t * top + j] = (int32_t)(100 + j);
                tops[at * 10 + t * top + j] = -(float)j;
            }
            for (size_t j = 0; j < k; j++)
                candidates[at * 10 + t * k + j] = -(float)(1 + 10 * t + j);
        }
        at += places;
    }
    for (size_t i = 0; i < num; i++) /* as rounds of one prompt */
        cr_job_take_scores(job, scores + i, 1);
    cr_free(scores);
}

static json_t *parse(const cr_buf *text)
{
    json_t *value;
    cr_err err = {0};

    if (cr_json_parse(text->data, text->num_bytes, "answer", &value, &err) != CR_OK)
        fail_msg("%s\n%s", err.msg, text->data);
    return value;
}

static const char *text_of(const json_t *answer, size_t choice)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(answer, "choices"), choice), "text"));
}

/* The answer of a job that is sampled, scored if it wants that. */
static json_t *run(cr_job *job)
{
    json_t *answer;

    if (!cr_serve_is_scoring(&job->request)) submit(job);
    run_engine();
    answer_round(job);
    if (!job->is_done || job->error.status)
        fail_msg("%d %s", job->error.status, job->error.message);
    answer = parse(&job->out);
    cr_job_destroy(job);
    return answer;
}

static json_t *ask(cr_serve_route route, const char *body)
{
    return run(make_job(route, body));
}

/* ---- sampling ---- */

static void samples_of_seeds(void **state)
{
    json_t *one =
        ask(CR_SERVE_COMPLETIONS, "{\"prompt\":[5,6,7],\"max_tokens\":12,\"n\":2,\"seed\":3}");
    json_t *two = ask(CR_SERVE_COMPLETIONS,
                      "{\"prompt\":[[9,9],[5,6,7],[5,6,7]],\"max_tokens\":12,\"n\":2,\"seed\":3}");
    json_t *free = ask(CR_SERVE_COMPLETIONS, "{\"prompt\":[[5,6,7],[5,6,7]],\"max_tokens\":12}");

    (void)state;
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(text_of(two, 2 + i), text_of(one, i % 2));
    assert_string_not_equal(text_of(one, 0), text_of(one, 1));
    assert_string_not_equal(text_of(free, 0), text_of(free, 1));
    json_decref(one);
    json_decref(two);
    json_decref(free);
}

/* Text, numbers and the reason of each choice, taken out of events. */
typedef struct joined {
    cr_buf text, numbers;
    char finish[16];
} joined;

/* Log-probs of a choice and of its alternatives, token by token. */
static void add_numbers(const json_t *choice, cr_buf *out)
{
    const json_t *logprobs = json_object_get(choice, "logprobs"),
                 *tops = json_object_get(logprobs, "top_logprobs"), *number;
    size_t i;

    json_array_foreach(json_object_get(logprobs, "token_logprobs"), i, number)
    {
        char *top = json_dumps(json_array_get(tops, i), JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
        cr_buf_addf(out, "%.9g %s\n", json_real_value(number), top);
        free(top);
    }
}

static void join(const cr_buf *events, joined out[4], size_t *num_events)
{
    const char *at = events->data;

    for (*num_events = 0; strncmp(at, "data: [DONE]", 12) != 0; ++*num_events) {
        const char *end = strstr(at, "\n\n");
        cr_buf one = {(char *)(uintptr_t)at + 6, (size_t)(end - at) - 6, 0};
        json_t *value = parse(&one), *choice = json_array_get(json_object_get(value, "choices"), 0);
        joined *j = &out[json_integer_value(json_object_get(choice, "index"))];
        const json_t *finish = json_object_get(choice, "finish_reason");
        cr_buf_adds(&j->text, json_string_value(json_object_get(choice, "text")));
        add_numbers(choice, &j->numbers);
        if (json_is_string(finish))
            snprintf(j->finish, sizeof j->finish, "%s", json_string_value(finish));
        json_decref(value);
        at = end + 2;
    }
    assert_string_equal(at, "data: [DONE]\n\n");
}

static void check_events(const char *body, const char *stream_body)
{
    json_t *whole = ask(CR_SERVE_COMPLETIONS, body), *choice;
    cr_job *job = make_job(CR_SERVE_COMPLETIONS, stream_body);
    joined parts[4] = {0};
    cr_buf numbers = {0};
    size_t i, num_events;

    submit(job);
    run_engine();
    assert_true(job->is_done && job->error.status == 0);
    join(&job->out, parts, &num_events);
    json_array_foreach(json_object_get(whole, "choices"), i, choice)
    {
        cr_buf_clear(&numbers);
        add_numbers(choice, &numbers);
        assert_string_equal(parts[i].text.data, text_of(whole, i));
        if (numbers.num_bytes) assert_string_equal(parts[i].numbers.data, numbers.data);
        assert_string_equal(parts[i].finish,
                            json_string_value(json_object_get(choice, "finish_reason")));
        cr_buf_free(&parts[i].text);
        cr_buf_free(&parts[i].numbers);
    }
    assert_true(num_events > 3);
    cr_buf_free(&numbers);
    json_decref(whole);
    cr_job_destroy(job);
}

static void events_are_the_answer(void **state)
{
    json_t *answer = ask(CR_SERVE_COMPLETIONS,
                         "{\"prompt\":[5,6,7],\"max_tokens\":60,\"seed\":1,\"ignore_eos\":true}");
    const char *text = text_of(answer, 0);
    cr_buf body = {0}, stream = {0};
    char stop[4] = "";

    (void)state;
    check_events(
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"n\":3,\"seed\":3,\"logprobs\":0}",
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"n\":3,\"seed\":3,\"logprobs\":0,\"stream\":true}");
    check_events(
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"n\":3,\"seed\":3,\"logprobs\":4}",
        "{\"prompt\":[5,6,7],\"max_tokens\":30,\"n\":3,\"seed\":3,\"logprobs\":4,\"stream\":true}");
    for (size_t i = 10; !stop[0] && i + 2 < strlen(text);
         i++) /* two letters, one after the other */
        if (text[i] > 47 && text[i] < 123 && text[i] != 92 && text[i + 1] > 47 &&
            text[i + 1] < 123 && text[i + 1] != 92)
            memcpy(stop, text + i, 2);
    assert_true(stop[0] != 0);
    cr_buf_addf(
        &body,
        "{\"prompt\":[5,6,7],\"max_tokens\":60,\"seed\":1,\"ignore_eos\":true,\"stop\":[\"%s\"]}",
        stop);
    cr_buf_addf(&stream, "%.*s,\"stream\":true}", (int)body.num_bytes - 1, body.data);
    check_events(body.data, stream.data);
    json_decref(answer);
    answer = ask(CR_SERVE_COMPLETIONS, body.data);
    assert_null(strstr(text_of(answer, 0), stop));
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(answer, "choices"), 0), "stop_reason")),
                        stop);
    json_decref(answer);
    cr_buf_free(&body);
    cr_buf_free(&stream);
}

static void cancel(void **state)
{
    static const char body[] =
        "{\"prompt\":[5,6,7],\"max_tokens\":40,\"n\":2,\"seed\":3,\"ignore_eos\":true}";
    json_t *want = ask(CR_SERVE_COMPLETIONS, body), *got;
    cr_job *gone = make_job(CR_SERVE_COMPLETIONS,
                            "{\"prompt\":[[5,6,7],[1]],\"max_tokens\":40,\"n\":2,\"stream\":true}");
    cr_job *stays = make_job(CR_SERVE_COMPLETIONS, body);
    cr_err err = {0};

    (void)state;
    submit(gone);
    submit(stays);
    for (int i = 0; i < 5; i++)
        must(cr_engine_step(engine, &err), &err);
    cr_job_cancel(gone, engine);
    cr_job_fail(gone, 503, "shutting_down", "the service ends");
    assert_non_null(strstr(gone->out.data, "data: {\"error\":{\"message\":\"the service ends\""));
    cr_job_destroy(gone);
    run_engine();
    answer_round(stays);
    got = parse(&stays->out);
    assert_string_equal(text_of(got, 0), text_of(want, 0));
    assert_string_equal(text_of(got, 1), text_of(want, 1));
    assert_int_equal(cr_engine_get_stats(engine).blocks_used, 0);
    cr_job_destroy(stays);
    json_decref(want);
    json_decref(got);
}

/* ---- scoring ---- */

static json_t *list_of(json_t *answer, size_t choice, const char *object, const char *name)
{
    json_t *at = json_array_get(json_object_get(answer, "choices"), choice);

    return json_object_get(object ? json_object_get(at, object) : at, name);
}

static void check_list(const json_t *list, const double *want, size_t num)
{
    assert_int_equal(json_array_size(list), num);
    for (size_t i = 0; i < num; i++)
        if (want[i] != 0) /* 0: null */
            check_near(json_number_value(json_array_get(list, i)), want[i], 0);
        else
            assert_true(json_is_null(json_array_get(list, i)));
}
#define CHECK_LIST(list, ...)                       \
    check_list(list, (const double[]){__VA_ARGS__}, \
               sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static void scoring(void **state)
{
    json_t *answer = ask(CR_SERVE_COMPLETIONS,
                         "{\"prompt\":[[5,6,7],[8]],\"max_tokens\":1,\"logprobs\":1,\"echo\":true,"
                         "\"n\":2,\"temperature\":0}");

    (void)state; /* asks 0 and 2 begin at place 1, asks 1 and 3 only draw */
    CHECK_LIST(list_of(answer, 0, "logprobs", "token_logprobs"), 0, -101, -102, -103);
    CHECK_LIST(list_of(answer, 1, "logprobs", "token_logprobs"), 0, -101, -102, -203);
    CHECK_LIST(list_of(answer, 2, "logprobs", "token_logprobs"), 0, -301);
    CHECK_LIST(list_of(answer, 3, "logprobs", "token_logprobs"), 0, -401);
    assert_string_equal(text_of(answer, 1), "\x05\x06\x07"
                                            "B");
    json_decref(answer);
    answer = ask(CR_SERVE_COMPLETIONS, "{\"prompt\":[5,195],\"max_tokens\":1,\"echo\":true}");
    assert_string_equal(text_of(answer, 0), "\x05\xef\xbf\xbd\xef\xbf\xbd" /* half a character */
                                            "A");
    json_decref(answer);
    answer = ask(CR_SERVE_COMPLETIONS, "{\"prompt\":[5,6,7],\"max_tokens\":0,\"prompt_logprobs\":0,"
                                       "\"prompt_logprob_token_ids\":[1,2]}");
    CHECK_LIST(list_of(answer, 0, "croll_scores", "candidates"), -1, -2, -11, -12);
    assert_int_equal(json_array_size(list_of(answer, 0, NULL, "prompt_logprobs")), 3);
    json_decref(answer);
    answer = ask(CR_SERVE_COMPLETIONS, "{\"prompt\":[5,6,7],\"max_tokens\":1,\"stop\":[\"A\"],"
                                       "\"include_stop_str_in_output\":false}");
    assert_string_equal(text_of(answer, 0), "");
    assert_string_equal(json_string_value(list_of(answer, 0, NULL, "stop_reason")), "A");
    json_decref(answer);
    for (int keeps = 0; keeps < 2; keeps++) { /* as the engine does with the text of an id */
        answer =
            ask(CR_SERVE_COMPLETIONS,
                keeps ? "{\"prompt\":[5],\"max_tokens\":1,\"stop_token_ids\":[65],\"echo\":true,"
                        "\"include_stop_str_in_output\":true}"
                      : "{\"prompt\":[5],\"max_tokens\":1,\"stop_token_ids\":[65],\"echo\":true}");
        assert_string_equal(text_of(answer, 0), keeps ? "\x05"
                                                        "A"
                                                      : "\x05");
        assert_int_equal(json_integer_value(list_of(answer, 0, NULL, "stop_reason")), 65);
        json_decref(answer);
    }
    answer = ask(CR_SERVE_GENERATE,
                 "{\"input_ids\":[5,6],\"sampling_params\":{\"max_new_tokens\":0}}"); /* no round */
    assert_string_equal(json_string_value(json_object_get(answer, "text")), "");
    json_decref(answer);
}

/* Prompts are asks of their own, after sampling; the samples' numbers are the engine's. */
static void samples_with_a_prompt(void **state)
{
    json_t *answer = ask(CR_SERVE_COMPLETIONS,
                         "{\"prompt\":[5,6,7],\"max_tokens\":3,\"ignore_eos\":true,\"logprobs\":2,"
                         "\"echo\":true,\"n\":2,\"seed\":4}");
    json_t *plain = ask(CR_SERVE_COMPLETIONS,
                        "{\"prompt\":[5,6,7],\"max_tokens\":3,\"ignore_eos\":true,\"logprobs\":2,"
                        "\"n\":2,\"seed\":4}");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        double want[6] = {0, -101, -102};
        for (size_t t = 0; t < 3; t++)
            want[3 + t] =
                json_real_value(json_array_get(list_of(plain, i, "logprobs", "token_logprobs"), t));
        assert_true(want[3] < 0 && want[3] > -20);
        check_list(list_of(answer, i, "logprobs", "token_logprobs"), want, 6);
    }
    json_decref(answer);
    json_decref(plain);
}

/* Samples of a tenant's request that get a place, of 8. */
static size_t places_for(cr_compute *c, cr_share *share)
{
    cr_job *job = make_job(CR_SERVE_COMPLETIONS,
                           "{\"prompt\":[[1],[1],[1],[1],[1],[1],[1],[1],[1],[1]],\"max_tokens\":9,"
                           "\"ignore_eos\":true}");
    size_t num;
    cr_err err = {0};

    cr_compute_add(c, job, share);
    must(cr_compute_step(c, &err), &err);
    num = job->num_submitted;
    cr_compute_remove(c, job);
    cr_job_destroy(job);
    return num;
}

/* A tenant leaves places free while there is another one, and shortly after. */
static void places_of_tenants(void **state)
{
    cr_share one = {.weight = 1}, two = {.weight = 1};
    cr_compute c;

    (void)state;
    cr_compute_init(&c, NULL, NULL, 1000, 8);
    cr_compute_set_engine(&c, 0, engine);
    c.shared_s = 0.2;
    assert_int_equal(places_for(&c, &one), 8);
    assert_int_equal(places_for(&c, &one), 8);
    assert_int_equal(places_for(&c, &two), 7);
    assert_int_equal(places_for(&c, &two), 7);
    cr_sleep_s(0.3);
    assert_int_equal(places_for(&c, &two), 8);
    cr_compute_free(&c);
}

static int begin(void **state)
{
    (void)state;
    small_model_open(config);
    small_engine_open(&(cr_engine_limits){.max_running = 4});
    serve_models[0].tokenizer = byte_tokenizer();
    serve_models[0].vocab_size = 256;
    serve_models[0].max_model_len = 128;
    serve_models[0].eos_ids = eos;
    serve_models[0].num_eos = 1;
    cr_engine_set_tokenizer(engine, serve_models[0].tokenizer);
    cr_engine_set_on_token(engine, cr_job_on_token, NULL);
    return 0;
}

static int end(void **state)
{
    (void)state;
    small_engine_close();
    serve_model_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_of_seeds),
        cmocka_unit_test(events_are_the_answer),
        cmocka_unit_test(cancel),
        cmocka_unit_test(scoring),
        cmocka_unit_test(samples_with_a_prompt),
        cmocka_unit_test(places_of_tenants),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
