/* serve_answer.c -- results to the bodies that clients read: the worked examples of each route, events of
 * streams whose parts put together are the whole answer, token strings of bytes and of two ids with one
 * text, base64 read back, numbers that are not finite.
 * Not covered: where the numbers come from (unit/serve_scoring.c), HTTP. */
#include "base/json.h"
#include "serve/answer.h"
#include "serve/texts.h"
#include "tests/check_near.h"
#include "tests/serve_model.h"
#include "tests/temp_folder.h"

#include <stdio.h>

static cr_serve_request request;
static cr_serve_result result;

static void open_request(cr_serve_route route, const char *body)
{
    cr_serve_error error;

    cr_serve_request_free(&request);
    if (cr_serve_request_parse(route, body, strlen(body), &serve_service, &request, &error) !=
        CR_OK)
        fail_msg("%s\n%s", body, error.message);
    result = (cr_serve_result){.request = &request, .id = "1", .created = 1, .latency_s = 0.001};
}

/* A part of the text of an answer; the answer is JSON. */
static void check_has(const cr_buf *answer, const char *part)
{
    json_t *value;
    cr_err err = {0};

    if (cr_json_parse(answer->data, answer->num_bytes, "the answer", &value, &err) != CR_OK)
        fail_msg("%s\n%s", err.msg, answer->data);
    json_decref(value);
    if (!strstr(answer->data, part)) fail_msg("no %s\nin %s", part, answer->data);
}

static void check_answer(const char *part)
{
    cr_buf out = {0};
    cr_err err = {0};

    if (cr_serve_answer(&result, &out, &err) != CR_OK) fail_msg("%s", err.msg);
    check_has(&out, part);
    cr_buf_free(&out);
}

/* Of the prompt <s> " Once" " upon" and the sampled " a". */
static const float log_probs[] = {-2.5f, -0.25f}, top_log_probs[] = {-0.5f, -1.5f, -0.25f, -3};
static const int32_t top_ids[] = {77, 78, 281, 77}, ranks[] = {4, 1};
static const cr_serve_scores prompt_scores[] = {{.num = 2,
                                                 .log_probs = log_probs,
                                                 .ranks = ranks,
                                                 .num_top = 2,
                                                 .top_ids = top_ids,
                                                 .top_log_probs = top_log_probs}};
static const int32_t sampled[] = {90}, sampled_top[] = {90, 20}, sampled_rank[] = {1};
static const float sampled_log_prob[] = {-0.0625f}, sampled_top_log_probs[] = {-0.0625f, -4};
static const cr_serve_sample samples[] = {{.ids = sampled,
                                           .num_ids = 1,
                                           .text = " a",
                                           .text_bytes = 2,
                                           .scores = {.num = 1,
                                                      .log_probs = sampled_log_prob,
                                                      .ranks = sampled_rank,
                                                      .num_top = 2,
                                                      .top_ids = sampled_top,
                                                      .top_log_probs = sampled_top_log_probs},
                                           .finish = "length",
                                           .stop_id = -1}};

static void take_scores(void)
{
    result.prompt_scores = prompt_scores;
    result.samples = samples;
}

static void lm_eval(void **state)
{
    (void)state;
    open_request(CR_SERVE_COMPLETIONS,
                 "{\"model\":\"s\",\"prompt\":[[1,403,281]],\"temperature\":0,\"max_tokens\":1,"
                 "\"logprobs\":1,\"seed\":1234,\"echo\":true}");
    take_scores();
    check_answer("{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"s\","
                 "\"system_fingerprint\":\"croll-0123456789ab\",");
    check_answer("\"weight_version\":\"1\",\"tokenizer_sha256\":\"fedcba9876543210\",\"dtype\":"
                 "\"fp32\",\"seed\":1234}");
    check_answer(
        "\"choices\":[{\"index\":0,\"text\":\"Once upon "
        "a\",\"finish_reason\":\"length\",\"stop_reason\":null,"
        "\"logprobs\":{\"tokens\":[\"<s>\",\" Once\",\" upon\",\" a\"],\"text_offset\":[0,3,8,13],"
        "\"token_logprobs\":[null,-2.5,-0.25,-0.0625],\"top_logprobs\":[null,{\" One\":-0.5,\" "
        "Once\":-2.5},"
        "{\" upon\":-0.25},{\" a\":-0.0625}]},\"prompt_logprobs\":null}],"
        "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,\"prompt_tokens_"
        "details\":{\"cached_tokens\":0}}}");
}

static void trl(void **state)
{
    (void)state;
    open_request(CR_SERVE_COMPLETIONS,
                 "{\"prompt\":[[1,403,281]],\"max_tokens\":1,\"prompt_logprobs\":2,"
                 "\"return_token_ids\":true}");
    take_scores();
    check_answer("\"logprobs\":null,\"prompt_logprobs\":[null,"
                 "{\"403\":{\"logprob\":-2.5,\"rank\":4,\"decoded_token\":\" Once\"},"
                 "\"77\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\" One\"},"
                 "\"78\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":\" The\"}},"
                 "{\"281\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\" upon\"},"
                 "\"77\":{\"logprob\":-3,\"rank\":2,\"decoded_token\":\" One\"}}],"
                 "\"token_ids\":[90],\"prompt_token_ids\":[1,403,281]}");
    open_request(CR_SERVE_COMPLETIONS, "{\"prompt\":[[1,403,281]],\"max_tokens\":1,\"logprobs\":0,"
                                       "\"return_tokens_as_token_ids\":true}");
    take_scores();
    check_answer("\"tokens\":[\"token_id:90\"],\"text_offset\":[0],\"token_logprobs\":[-0.0625],"
                 "\"top_logprobs\":[{\"token_id:90\":-0.0625}]");
}

static void slime_and_prime_rl(void **state)
{
    static const cr_serve_sample nothing[] = {{.text = "", .finish = "length", .stop_id = -1}};

    (void)state;
    open_request(CR_SERVE_GENERATE,
                 "{\"input_ids\":[1,403,281],\"sampling_params\":{\"temperature\":0,"
                 "\"max_new_tokens\":0},\"return_logprob\":true,\"logprob_start_len\":0}");
    result.prompt_scores = prompt_scores;
    result.samples = nothing;
    check_answer("{\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"id\":\"1\",\"finish_reason\":{"
                 "\"type\":\"length\","
                 "\"length\":0},\"prompt_tokens\":3,\"completion_tokens\":0,\"cached_tokens\":0,"
                 "\"weight_version\":\"1\","
                 "\"input_token_logprobs\":[[null,1,null],[-2.5,403,null],[-0.25,281,null]],"
                 "\"output_token_logprobs\":[],\"e2e_latency\":0.001,");
    open_request(CR_SERVE_TOKENS_IN,
                 "{\"token_ids\":[1,403,281],\"sampling_params\":{\"max_tokens\":1,"
                 "\"prompt_logprobs\":0,\"logprobs\":2}}");
    take_scores();
    check_answer(
        "{\"request_id\":\"1\",\"choices\":[{\"index\":0,\"token_ids\":[90],\"finish_reason\":"
        "\"length\","
        "\"stop_reason\":null,\"logprobs\":{\"content\":[{\"token\":\"token_id:90\",\"token_id\":"
        "90,"
        "\"logprob\":-0.0625,\"rank\":1,\"top_logprobs\":[{\"token\":\"token_id:90\",\"token_id\":"
        "90,"
        "\"logprob\":-0.0625,\"rank\":1},{\"token\":\"token_id:20\",\"token_id\":20,\"logprob\":-4,"
        "\"rank\":2}]"
        "}]},\"weight_versions\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,"
        "\"total_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":0}},\"prompt_logprobs\":["
        "null,{\"403\":");
    check_answer("{\"281\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\" "
                 "upon\"}}],\"prompt_token_ids\":[1,403,281],");
}

static void chat(void **state)
{
    (void)state;
    open_request(CR_SERVE_CHAT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true,"
                 "\"top_logprobs\":2}");
    take_scores();
    check_answer("\"object\":\"chat.completion\"");
    check_answer("\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\" "
                 "a\",\"refusal\":null},"
                 "\"finish_reason\":\"length\",\"stop_reason\":null,\"logprobs\":{\"content\":[{"
                 "\"token\":\" a\","
                 "\"logprob\":-0.0625,\"bytes\":[32,97],\"top_logprobs\":[{\"token\":\" "
                 "a\",\"logprob\":-0.0625,"
                 "\"bytes\":[32,97]},{\"token\":\"a\",\"logprob\":-4,\"bytes\":[97]}]}],"
                 "\"refusal\":null}}]");
}

/* ---- strings ---- */

static void strings_of_tokens(void **state)
{
    static const int32_t ids[] = {11, 12, 26, 500, 10};
    static const char *const want[] = {"\"bytes:\\\\xe2\"", "\"a\"", "\"\xc3\xa9\"",
                                       "\"token_id:500\"", "\"\\n\""};
    /* <0x61> is the letter a, too; the sampled one keeps the name */
    static const int32_t one[] = {12}, tops[] = {20, 11, 12};
    static const float x[] = {-3}, top[] = {-1, -2, -3};
    const cr_serve_sample collides[] = {{.ids = one,
                                         .num_ids = 1,
                                         .text = "a",
                                         .text_bytes = 1,
                                         .scores = {.num = 1,
                                                    .log_probs = x,
                                                    .ranks = one,
                                                    .num_top = 3,
                                                    .top_ids = tops,
                                                    .top_log_probs = top},
                                         .finish = "length",
                                         .stop_id = -1}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(ids); i++) {
        cr_buf out = {0};
        cr_serve_text text = cr_serve_text_of(&serve_models[0], ids[i], false, &out);
        assert_int_equal(text.num_bytes, strlen(want[i]));
        assert_memory_equal(text.json, want[i], text.num_bytes);
        cr_buf_free(&out);
    }
    open_request(CR_SERVE_COMPLETIONS, "{\"prompt\":[1],\"max_tokens\":1,\"logprobs\":3}");
    result.samples = collides;
    check_answer("\"tokens\":[\"a\"],\"text_offset\":[0],\"token_logprobs\":[-3],"
                 "\"top_logprobs\":[{\"token_id:20\":-1,\"bytes:\\\\xe2\":-2,\"a\":-3}]");
    open_request(CR_SERVE_COMPLETIONS, "{\"prompt\":[1],\"max_tokens\":1,\"logprobs\":1}");
    result.samples = collides;
    check_answer("\"top_logprobs\":[{\"token_id:20\":-1,\"a\":-3}]");
}

/* Those of a whole vocabulary are what is made for one id; with them answers are the same. */
static void strings_of_a_vocabulary(void **state)
{
    cr_serve_texts *texts = cr_serve_texts_create(serve_models[0].tokenizer);
    cr_serve_model with = serve_models[0];
    int num_kept = 0;

    with.texts = texts;
    for (int32_t id = -1; id < 600; id++)
        for (int as_id = 0; as_id < 2; as_id++) {
            cr_buf out = {0}, unused = {0};
            cr_serve_text a = cr_serve_text_of(&serve_models[0], id, as_id, &out),
                          b = cr_serve_text_of(&with, id, as_id, &unused);
            assert_int_equal(a.num_bytes, b.num_bytes);
            assert_memory_equal(a.json, b.json, a.num_bytes);
            assert_true(a.hash == b.hash && a.num_code_points == b.num_code_points);
            num_kept += unused.num_bytes == 0;
            cr_buf_free(&out);
            cr_buf_free(&unused);
        }
    assert_int_equal(num_kept, cr_tokenizer_num_ids(with.tokenizer));
    serve_models[0].texts = texts;
    strings_of_tokens(state);
    serve_models[0].texts = NULL;
    cr_serve_texts_free(texts);
}

static void offsets_are_code_points(void **state)
{
    static const int32_t ids[] = {26, 11, 20};
    static const float x[] = {-1, -2, -INFINITY};
    const cr_serve_sample sample[] = {{.ids = ids,
                                       .num_ids = 3,
                                       .text = "",
                                       .scores = {.num = 3, .log_probs = x},
                                       .finish = "stop",
                                       .stop_id = 20}};

    (void)state;
    open_request(CR_SERVE_COMPLETIONS, "{\"prompt\":[1],\"max_tokens\":3,\"logprobs\":0}");
    result.samples = sample;
    check_answer("\"text_offset\":[0,1,11],\"token_logprobs\":[-1,-2,-9999.0]");
    check_answer("\"finish_reason\":\"stop\",\"stop_reason\":20");
}

/* ---- numbers ---- */

static size_t read_base64(const char *text, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t num = 0;
    uint32_t bits = 0;
    int have = 0;

    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *text) - digits);
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[num++] = (unsigned char)(bits >> have);
        }
    }
    return num;
}

/* Every digit of base64 and every length of its last group. */
static void base64_reads_back(void **state)
{
    enum { NUM = 31 };
    float x[NUM], back[NUM + 1];
    int32_t rank[NUM];
    cr_serve_scores scores = {.log_probs = x, .ranks = rank, .entropy = x};
    cr_serve_sample sample = {.text = "", .finish = "length", .stop_id = -1};
    cr_buf body = {0}, out = {0};
    cr_err err = {0};

    (void)state;
    for (size_t i = 0; i < NUM; i++) {
        x[i] = -(float)(i + 1) * 0.7182818f;
        rank[i] = (int32_t)i * 65537;
    }
    x[3] = -INFINITY;
    for (size_t num = 1; num <= NUM; num++) {
        json_t *value, *scored;
        cr_buf_clear(&body);
        cr_buf_clear(&out);
        cr_buf_adds(&body, "{\"prompt\":[1");
        for (size_t i = 0; i < num; i++)
            cr_buf_adds(&body, ",20");
        cr_buf_adds(
            &body,
            "],\"max_tokens\":0,\"prompt_logprobs\":0,\"encoding_format\":\"base64\",\"croll\":"
            "{\"entropy\":true}}");
        open_request(CR_SERVE_COMPLETIONS, body.data);
        scores.num = num;
        result.prompt_scores = &scores;
        result.samples = &sample;
        if (cr_serve_answer(&result, &out, &err) != CR_OK ||
            cr_json_parse(out.data, out.num_bytes, "answer", &value, &err) != CR_OK)
            fail_msg("%s", err.msg);
        scored =
            json_object_get(json_array_get(json_object_get(value, "choices"), 0), "croll_scores");
        assert_int_equal(json_integer_value(json_object_get(scored, "start")), 1);
        assert_int_equal(read_base64(json_string_value(json_object_get(scored, "log_probs")),
                                     (unsigned char *)back),
                         num * sizeof *x);
        assert_memory_equal(back, x, num * sizeof *x);
        read_base64(json_string_value(json_object_get(scored, "ranks")), (unsigned char *)back);
        assert_memory_equal(back, rank, num * sizeof *rank);
        json_decref(value);
    }
    cr_buf_free(&body);
    cr_buf_free(&out);
}

static void nan_is_an_error(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    cr_serve_sample sample = samples[0];
    cr_buf out = {0};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++)
        for (int route = 0; route < CR_SERVE_TOKENIZE; route++) {
            const char *bodies[] = {
                "{\"prompt\":[1],\"max_tokens\":1,\"logprobs\":0}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true}",
                "{\"input_ids\":[1],\"return_logprob\":true}",
                "{\"token_ids\":[1],\"sampling_params\":{\"logprobs\":0}}"};
            cr_err err = {0};
            open_request((cr_serve_route)route, bodies[route]);
            sample.scores.log_probs = &bad[i];
            result.samples = &sample;
            assert_int_equal(cr_serve_answer(&result, &out, &err), CR_ENUMERIC);
        }
    cr_buf_free(&out);
}

/* ---- streams ---- */

static void stream(const char *body, cr_serve_route route, const cr_serve_sample *parts, size_t num,
                   cr_buf *out)
{
    cr_serve_stream s;
    cr_err err = {0};

    open_request(route, body);
    cr_serve_stream_open(&s, &result);
    for (size_t i = 0; i < num; i++)
        if (cr_serve_stream_part(&s, 0, &parts[i], out, &err) != CR_OK) fail_msg("%s", err.msg);
    cr_serve_stream_end(&s, out);
    cr_serve_stream_close(&s);
}

/* What every chunk says of the model is cut out, with the identity that the first one has. */
static void check_events(cr_buf *events, const char *want)
{
    enum { MAX_BYTES = 400 }; /* of an event with a few characters, after the first */
    static const char same[] = ",\"system_fingerprint\":\"croll-0123456789ab\"",
                      identity[] = ",\"croll\":{\"object\":\"identity\",";
    cr_buf out = {0};
    const char *at = events->data, *begin;

    for (const char *event = events->data, *end; (end = strstr(event, "\n\n")); event = end + 2)
        if (event != events->data && end - event > MAX_BYTES)
            fail_msg("an event of %td bytes: %s", end - event, event);
    for (int i = 0; (begin = strstr(at, same)); i++) {
        cr_buf_add(&out, at, (size_t)(begin - at));
        at = begin + strlen(same);
        if (i == 0) assert_memory_equal(at, identity, strlen(identity));
        if (i == 0) at = strchr(at, '}') + 1;
    }
    cr_buf_adds(&out, at);
    assert_string_equal(out.data, want);
    cr_buf_free(&out);
    cr_buf_clear(events);
}

#define CHAT_HEAD                                                                                \
    "data: "                                                                                     \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"s\"," \
    "\"choices\":["
#define TEXT_HEAD                                                                                  \
    "data: "                                                                                       \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"s\",\"choices\":" \
    "["

static void streams(void **state)
{
    static const int32_t ids[] = {24, 25, 2};
    static const float x[] = {-1, -2, -3};
    const cr_serve_sample parts[] = {
        {.ids = ids, .num_ids = 1, .text = "", .scores = {.num = 1, .log_probs = x}, .stop_id = -1},
        {.ids = ids + 1,
         .num_ids = 1,
         .text = "Hi",
         .text_bytes = 2,
         .scores = {.num = 1, .log_probs = x + 1},
         .stop_id = -1},
        {.ids = ids + 2,
         .num_ids = 1,
         .text = "",
         .scores = {.num = 1, .log_probs = x + 2},
         .finish = "stop",
         .stop_id = -1}};
    cr_buf out = {0};

    (void)state;
    stream("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"stream_"
           "options\":{\"include_usage\":true}}",
           CR_SERVE_CHAT, parts, 3, &out);
    check_events(&out, CHAT_HEAD
                 "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":"
                 "null,\"finish_reason\":null}],\"usage\":null}\n\n" CHAT_HEAD
                 "{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"logprobs\":null,\"finish_reason\":"
                 "null}],\"usage\":null}\n\n" CHAT_HEAD
                 "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_"
                 "reason\":null}],\"usage\":null}\n\n" CHAT_HEAD
                 "],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\"total_tokens\":7,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n"
                 "data: [DONE]\n\n");
    stream("{\"prompt\":[20],\"max_tokens\":1,\"stream\":true,\"echo\":true,\"logprobs\":0}",
           CR_SERVE_COMPLETIONS, parts, 3, &out);
    check_events(&out, TEXT_HEAD
                 "{\"index\":0,\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\",\"h\"],\"text_"
                 "offset\":[0,1],\"token_logprobs\":[null,-1],\"top_logprobs\":[null,{\"h\":-1}]},"
                 "\"finish_reason\":null,\"stop_reason\":null}]}\n\n" TEXT_HEAD
                 "{\"index\":0,\"text\":\"Hi\",\"logprobs\":{\"tokens\":[\"i\"],\"text_offset\":[2]"
                 ",\"token_logprobs\":[-2],\"top_logprobs\":[{\"i\":-2}]},\"finish_reason\":null,"
                 "\"stop_reason\":null}]}\n\n" TEXT_HEAD
                 "{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[\"</"
                 "s>\"],\"text_offset\":[3],\"token_logprobs\":[-3],\"top_logprobs\":[{\"</"
                 "s>\":-3}]},\"finish_reason\":\"stop\",\"stop_reason\":null}]}\n\n"
                 "data: [DONE]\n\n");
    stream("{\"prompt\":[20],\"stream\":true}", CR_SERVE_COMPLETIONS, parts, 3, &out);
    assert_null(strstr(
        out.data, "\"text\":\"\",\"logprobs\":null,\"finish_reason\":null")); /* no empty chunk */
    assert_null(strstr(out.data, "usage"));
    cr_buf_clear(&out);
    stream("{\"input_ids\":[20],\"stream\":true,\"return_logprob\":true}", CR_SERVE_GENERATE, parts,
           3, &out);
    assert_non_null(strstr(out.data, "\"text\":\"Hi\",\"output_ids\":[24,25,2]"));
    assert_non_null(strstr(out.data, "\"output_token_logprobs\":[[-1,24,null],[-2,25,null]]"));
    cr_buf_free(&out);
}

static void text_that_may_be_sent(void **state)
{
    char one[] = "\n\nQ:", two[] = "END";
    char *const stop[] = {one, two};

    (void)state;
    assert_int_equal(cr_serve_sendable("abc", 3, stop, 2, true), 3);
    assert_int_equal(cr_serve_sendable("abc\n", 4, stop, 2, true), 3);
    assert_int_equal(cr_serve_sendable("abc\n\n\n", 6, stop, 2, true), 4);
    assert_int_equal(cr_serve_sendable("EN", 2, stop, 2, true), 0);
    assert_int_equal(cr_serve_sendable("\n\nQ", 3, stop, 2, true), 0);
    assert_int_equal(cr_serve_sendable("", 0, stop, 2, true), 0);
    assert_int_equal(cr_serve_sendable("EN", 2, stop, 1, true), 2);
    assert_int_equal(cr_serve_sendable("aENDb", 5, stop, 2, true), 1);
    assert_int_equal(cr_serve_sendable("aENDb", 5, stop, 2, false), 5);
    assert_int_equal(cr_serve_sendable("aENDbE", 6, stop, 2, false), 5);
}

/* ---- small bodies ---- */

static void small_bodies(void **state)
{
    cr_serve_error error = {0};
    cr_serve_model model = serve_models[0];
    cr_buf out = {0};
    cr_err err = {0};

    (void)state;
    assert_int_equal(cr_serve_fail(&error, 400, "invalid_value", "prompt[1]", "%s", "a \"b\""),
                     CR_EARG);
    cr_serve_error_body(&error, &out);
    assert_string_equal(
        out.data, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"invalid_request_error\","
                  "\"param\":\"prompt[1]\",\"code\":\"invalid_value\"}}");
    cr_buf_clear(&out);
    cr_serve_models_body(&serve_service, &out);
    check_has(
        &out,
        "{\"object\":\"list\",\"data\":[{\"id\":\"s\",\"object\":\"model\",\"created\":1,\"owned_"
        "by\":\"croll\","
        "\"root\":\"stories\",\"parent\":null,\"max_model_len\":32,\"permission\":[],\"croll\":{");
    cr_buf_clear(&out);
    model.tokenizer_config =
        "{\"bos_token\":{\"content\":\"<s>\",\"lstrip\":false},\"eos_token\":\"</s>\",\"x\":1}";
    assert_int_equal(cr_serve_tokenizer_info(&model, &out, &err), CR_OK);
    check_has(&out, "{\"bos_token\":\"<s>\",\"eos_token\":\"</"
                    "s>\",\"x\":1,\"tokenizer_class\":\"PreTrainedTokenizerFast\","
                    "\"chat_template\":null}");
    cr_buf_clear(&out);
    open_request(CR_SERVE_TOKENIZE, "{\"prompt\":\"a b\",\"return_token_strs\":true}");
    assert_int_equal(cr_serve_answer(&result, &out, &err), CR_OK);
    check_has(&out, "{\"count\":4,\"max_model_len\":32,\"tokens\":[1,20,23,21],\"token_strs\":[\"<"
                    "s>\",\"a\",\" \",\"b\"]}");
    cr_buf_clear(&out);
    open_request(CR_SERVE_DETOKENIZE, "{\"tokens\":[1,403,281]}");
    assert_int_equal(cr_serve_answer(&result, &out, &err), CR_OK);
    check_has(&out, "{\"prompt\":\"<s> Once upon\"}");
    cr_buf_free(&out);
}

static int end(void **state)
{
    cr_serve_request_free(&request);
    serve_model_close();
    return remove_temp_folder(state);
}

static int begin(void **state)
{
    int status = make_temp_folder(state);

    if (status == 0) serve_model_open(temp_folder);
    return status;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lm_eval),
        cmocka_unit_test(trl),
        cmocka_unit_test(slime_and_prime_rl),
        cmocka_unit_test(chat),
        cmocka_unit_test(strings_of_tokens),
        cmocka_unit_test(strings_of_a_vocabulary),
        cmocka_unit_test(offsets_are_code_points),
        cmocka_unit_test(base64_reads_back),
        cmocka_unit_test(nan_is_an_error),
        cmocka_unit_test(streams),
        cmocka_unit_test(text_that_may_be_sent),
        cmocka_unit_test(small_bodies),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
