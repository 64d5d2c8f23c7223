/* serve_request.c -- bodies to requests: what real clients send, every kind of wrong value with the status,
 * code and place that it is answered with, malformed JSON, and a schema that agrees with the parser.
 * Not covered: numbers and texts of answers (unit/serve_answer.c). */
#include "serve/answer.h"
#include "serve/fields.h"
#include "tests/check_near.h"
#include "tests/serve_model.h"
#include "tests/temp_folder.h"

#include <stdio.h>

static cr_serve_request request;
static cr_serve_error error;

static cr_status parse(cr_serve_route route, const char *body)
{
    cr_serve_request_free(&request);
    return cr_serve_request_parse(route, body, strlen(body), &serve_service, &request, &error);
}

static void accept(cr_serve_route route, const char *body)
{
    if (parse(route, body) != CR_OK) fail_msg("%s\n%s", body, error.message);
}

static void check_ids(size_t prompt, const int32_t *want, size_t num)
{
    assert_true(prompt < request.num_prompts);
    assert_int_equal(request.prompts[prompt].num_ids, num);
    assert_memory_equal(request.prompts[prompt].ids, want, num * sizeof *want);
}
#define CHECK_IDS(prompt, ...)                        \
    check_ids(prompt, (const int32_t[]){__VA_ARGS__}, \
              sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* ---- clients ---- */

static void lm_eval(void **state)
{
    (void)state;
    accept(CR_SERVE_COMPLETIONS,
           "{\"model\":\"s\",\"prompt\":[[1,403,281],[1,9]],\"temperature\":0,\"max_tokens\":1,"
           "\"logprobs\":1,\"seed\":1234,\"echo\":true}");
    assert_int_equal(request.num_prompts, 2);
    CHECK_IDS(0, 1, 403, 281);
    CHECK_IDS(1, 1, 9);
    assert_int_equal(request.sampling.max_tokens, 1);
    assert_int_equal(request.sampling.seed, 1234);
    check_near(request.sampling.temperature, 0, 0);
    assert_int_equal(request.wanted.logprobs, 1);
    assert_int_equal(request.wanted.prompt_logprobs, -1);
    assert_int_equal(request.wanted.prompt_top, 1);
    assert_true(request.wanted.echo && cr_serve_is_scoring(&request));
    assert_null(request.ignored.data);
    accept(CR_SERVE_COMPLETIONS, /* generate_until */
           "{\"prompt\":[\"abc\"],\"model\":\"s\",\"max_tokens\":20,\"temperature\":0,"
           "\"stop\":[\"\\n\\n\",\"</s>\"],\"seed\":1234,\"do_sample\":false}");
    CHECK_IDS(0, 1, 20, 21, 22); /* with the tokenizer's own special token */
    assert_string_equal(request.sampling.stop[0], "\n\n");
    assert_int_equal(request.sampling.num_stop, 2);
    assert_string_equal(request.ignored.data, "do_sample");
    assert_false(cr_serve_is_scoring(&request));
    accept(CR_SERVE_COMPLETIONS, "{\"prompt\":\"a\",\"stop\":[]}");
    accept(CR_SERVE_TOKENIZE, "{\"prompt\":\"abc\",\"add_special_tokens\":false}");
    CHECK_IDS(0, 20, 21, 22);
    accept(CR_SERVE_DETOKENIZE, "{\"tokens\":[403,281]}");
    CHECK_IDS(0, 403, 281);
}

static void trl(void **state)
{
    (void)state;
    accept(CR_SERVE_COMPLETIONS,
           "{\"model\":\"s\",\"prompt\":[[1,2,3],[4]],\"return_token_ids\":true,"
           "\"return_tokens_as_token_ids\":true,\"n\":2,\"repetition_penalty\":1.0,\"temperature\":"
           "0.7,"
           "\"top_p\":1.0,\"top_k\":0,\"min_p\":0.0,\"max_tokens\":16,\"logprobs\":0}");
    assert_true(request.wanted.token_ids && request.wanted.tokens_as_ids);
    assert_int_equal(request.wanted.logprobs, 0);
    assert_int_equal(request.sampling.n, 2);
    check_near(request.sampling.temperature, 0.7, 1e-7);
    accept(CR_SERVE_COMPLETIONS,
           "{\"model\":\"s\",\"prompt\":[[1,2,3]],\"max_tokens\":1,\"temperature\":1.0,"
           "\"prompt_logprobs\":100}");
    assert_int_equal(request.wanted.prompt_logprobs, 100);
    assert_int_equal(request.wanted.prompt_top, 100);
    assert_int_equal(request.wanted.logprobs, -1);
}

static void prime_rl_slime_verl(void **state)
{
    (void)state;
    accept(CR_SERVE_TOKENS_IN,
           "{\"model\":\"s\",\"token_ids\":[1,403,281],\"sampling_params\":{\"max_tokens\":1,"
           "\"temperature\":1.0,\"top_p\":1.0,\"prompt_logprobs\":1}}");
    CHECK_IDS(0, 1, 403, 281);
    assert_int_equal(request.wanted.prompt_logprobs, 1);
    assert_int_equal(request.wanted.prompt_first, 1);
    accept(CR_SERVE_GENERATE,
           "{\"input_ids\":[1,403,281],\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":0,"
           "\"skip_special_tokens\":false},\"return_logprob\":true,\"logprob_start_len\":0}");
    assert_int_equal(request.wanted.prompt_logprobs, 0);
    assert_int_equal(request.wanted.logprobs, 0);
    assert_int_equal(request.sampling.max_tokens, 0);
    assert_false(request.sampling.skips_special || request.wanted.is_list);
    accept(CR_SERVE_GENERATE, "{\"input_ids\":[[1,2,3,4],[5,6,7]],\"return_logprob\":true,"
                              "\"logprob_start_len\":2,\"top_logprobs_num\":3}");
    assert_int_equal(request.wanted.prompt_first, 3); /* the first entry has no number */
    assert_int_equal(request.wanted.prompt_logprobs, 3);
    assert_true(request.wanted.is_list);
    assert_int_equal(request.sampling.max_tokens, 128);
    assert_int_equal(request.prompts[0].max_tokens, 28); /* a default is cut to what fits */
    accept(CR_SERVE_COMPLETIONS,                         /* AReaL */
           "{\"prompt\":[1,2],\"return_tokens_as_token_ids\":true,\"logprobs\":0,\"use_beam_"
           "search\":false}");
    accept(CR_SERVE_TOKENS_IN,
           "{\"token_ids\":[1,2,3,4],\"sampling_params\":{\"max_tokens\":1,\"prompt_logprobs\":0,"
           "\"prompt_logprob_start\":2,\"prompt_logprob_token_ids\":[[5,6],[7,8]]}}");
    assert_int_equal(request.wanted.prompt_first, 2);
    assert_int_equal(request.wanted.candidates.num_places, 2);
    assert_int_equal(request.wanted.candidates.num_each, 2);
    assert_int_equal(request.wanted.candidates.ids.id[3], 8);
}

static void langchain_and_roll(void **state)
{
    (void)state;
    accept(CR_SERVE_COMPLETIONS, "{\"model\":\"s\",\"prompt\":[\"a\",\"b\"],\"temperature\":0.7,"
                                 "\"max_tokens\":8,\"n\":1,\"top_p\":1,"
                                 "\"frequency_penalty\":0,\"presence_penalty\":0.0,\"logprobs\":"
                                 "null,\"seed\":null,\"logit_bias\":null,"
                                 "\"unknown\":null}");
    assert_int_equal(request.wanted.logprobs, -1);
    assert_false(request.sampling.has_seed);
    assert_null(request.ignored.data); /* null is absent */
    accept(CR_SERVE_CHAT,
           "{\"model\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_string_equal(request.prompts[0].text, "uhia");
    assert_int_equal(request.prompts[0].max_tokens, 32 - (int)request.prompts[0].num_ids);
    accept(CR_SERVE_CHAT,
           "{\"model\":\"s\",\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
           "\"text\":\"a\"},"
           "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"hi\"}],"
           "\"temperature\":0.7,"
           "\"top_p\":0.8,\"max_tokens\":8,\"tools\":[],\"tool_choice\":\"none\",\"logprobs\":true,"
           "\"top_logprobs\":1,\"top_k\":20,\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    assert_string_equal(request.prompts[0].text, "sabuhiia");
    assert_int_equal(request.wanted.logprobs, 1);
    accept(CR_SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{"
                          "\"type\":\"function\"}],"
                          "\"max_completion_tokens\":5,\"max_tokens\":9}");
    assert_string_equal(request.prompts[0].text, "uhit1a");
    assert_int_equal(request.sampling.max_tokens, 5);
}

static void changes_of_samples(void **state)
{
    cr_buf body = {0};

    (void)state;
    accept(CR_SERVE_COMPLETIONS,
           "{\"prompt\":[1],\"min_tokens\":3,\"presence_penalty\":-2,\"frequency_penalty\":0.5,"
           "\"logit_bias\":{\"0\":-100,\"511\":1.5},\"allowed_token_ids\":[5,6]}");
    assert_int_equal(request.sampling.min_tokens, 3);
    check_near(request.sampling.presence_penalty, -2, 0);
    check_near(request.sampling.frequency_penalty, 0.5, 0);
    assert_int_equal(request.sampling.biased.num, 2);
    assert_int_equal(request.sampling.biased.id[1], 511);
    check_near(request.sampling.bias[1], 1.5, 0);
    assert_int_equal(request.sampling.allowed.num, 2);
    accept(CR_SERVE_GENERATE, "{\"input_ids\":[1],\"sampling_params\":{\"min_new_tokens\":2,"
                              "\"logit_bias\":{\"7\":1}}}");
    assert_int_equal(request.sampling.min_tokens, 2);
    assert_int_equal(request.sampling.biased.id[0], 7);
    cr_buf_adds(&body, "{\"prompt\":[1],\"allowed_token_ids\":[0"); /* more than a prompt has */
    for (int i = 1; i < 300; i++)
        cr_buf_addf(&body, ",%d", i);
    cr_buf_adds(&body, "]}");
    accept(CR_SERVE_COMPLETIONS, body.data);
    assert_int_equal(request.sampling.allowed.num, 300);
    cr_buf_free(&body);
}

/* Each without the blanks before it, and with a space where that is as many tokens. */
static void bad_words(void **state)
{
    static const int32_t ids[] = {24, 27, 20, 21}, lengths[] = {1, 1, 2};
    const cr_serve_sampling *s = &request.sampling;

    (void)state;
    accept(CR_SERVE_COMPLETIONS, "{\"prompt\":[1],\"bad_words\":[\"  h\",\"ab\"]}");
    assert_int_equal(s->bad_ids.num, 4);
    assert_memory_equal(s->bad_ids.id, ids, sizeof ids);
    assert_int_equal(s->bad_lengths.num, 3);
    assert_memory_equal(s->bad_lengths.id, lengths, sizeof lengths);
    accept(CR_SERVE_GENERATE, "{\"input_ids\":[1],\"sampling_params\":{\"bad_words\":[]}}");
    assert_int_equal(s->bad_lengths.num, 0);
}

/* ---- wrong bodies ---- */

#define P "{\"prompt\":[1,2],"
static const struct {
    cr_serve_route route;
    const char *body;
    int status;
    const char *code, *param;
} bad[] = {
    {CR_SERVE_COMPLETIONS, "", 400, "invalid_json", ""},
    {CR_SERVE_COMPLETIONS, "[]", 400, "invalid_json", ""},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[1,2]", 400, "invalid_json", ""},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[1,2]} x", 400, "invalid_json", ""},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[1,2,]}", 400, "invalid_json", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[01]}", 400, "invalid_json", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":\"\\ud800\"}", 400, "invalid_json", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":\"\xff\"}", 400, "invalid_json", ""},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[1],\"prompt\":[2]}", 400, "invalid_json", "prompt"},
    {CR_SERVE_COMPLETIONS, P "\"n\":nul}", 400, "invalid_json", "n"},
    {CR_SERVE_COMPLETIONS, P "\"n\":1e999}", 400, "invalid_value", "n"},
    {CR_SERVE_COMPLETIONS, "{}", 400, "missing_required_parameter", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":null}", 400, "missing_required_parameter", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[]}", 400, "invalid_value", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[[]]}", 400, "invalid_value", "prompt[0]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":7}", 400, "invalid_value", "prompt"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", 400, "invalid_value", "prompt[1]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[\"a\",1]}", 400, "invalid_value", "prompt[1]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[[1],2]}", 400, "invalid_value", "prompt[1]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[18446744073709551617]}", 400, "invalid_value",
     "prompt[0]"}, /* 2^64 + 1 */
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[[1],[2,-3]]}", 400, "invalid_value", "prompt[1][1]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[[1],[2,1.5]]}", 400, "invalid_value", "prompt[1][1]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[[1],[2,3,4,5,6,512]]}", 400, "invalid_value",
     "prompt[1][5]"},
    {CR_SERVE_COMPLETIONS, "{\"prompt\":[4294967296]}", 400, "invalid_value", "prompt[0]"},
    {CR_SERVE_COMPLETIONS, P "\"model\":\"x\"}", 404, "model_not_found", "model"},
    {CR_SERVE_COMPLETIONS, P "\"model\":5}", 400, "invalid_value", "model"},
    {CR_SERVE_COMPLETIONS, P "\"max_tokens\":-1}", 400, "invalid_value", "max_tokens"},
    {CR_SERVE_COMPLETIONS, P "\"max_tokens\":1.5}", 400, "invalid_value", "max_tokens"},
    {CR_SERVE_COMPLETIONS, P "\"max_tokens\":0}", 400, "invalid_value", "max_tokens"},
    {CR_SERVE_COMPLETIONS, P "\"max_tokens\":31}", 400, "context_length_exceeded", "prompt"},
    {CR_SERVE_COMPLETIONS,
     "{\"prompt\":[[1],[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]]}",
     400, "context_length_exceeded", "prompt[1]"},
    {CR_SERVE_COMPLETIONS, P "\"n\":9}", 400, "invalid_value", "n"},
    {CR_SERVE_COMPLETIONS, P "\"n\":0}", 400, "invalid_value", "n"},
    {CR_SERVE_COMPLETIONS, P "\"n\":2,\"best_of\":3}", 400, "unsupported_parameter", "best_of"},
    {CR_SERVE_COMPLETIONS, P "\"temperature\":-1}", 400, "invalid_value", "temperature"},
    {CR_SERVE_COMPLETIONS, P "\"temperature\":\"1\"}", 400, "invalid_value", "temperature"},
    {CR_SERVE_COMPLETIONS, P "\"top_p\":0}", 400, "invalid_value", "top_p"},
    {CR_SERVE_COMPLETIONS, P "\"top_p\":1.1}", 400, "invalid_value", "top_p"},
    {CR_SERVE_COMPLETIONS, P "\"logprobs\":129}", 400, "invalid_value", "logprobs"},
    {CR_SERVE_COMPLETIONS, P "\"logprobs\":-1}", 400, "invalid_value", "logprobs"}, /* all 512 */
    {CR_SERVE_COMPLETIONS, P "\"logprobs\":true}", 400, "invalid_value", "logprobs"},
    {CR_SERVE_COMPLETIONS, P "\"echo\":1}", 400, "invalid_value", "echo"},
    {CR_SERVE_COMPLETIONS, P "\"stop\":[\"a\",\"\"]}", 400, "invalid_value", "stop"},
    {CR_SERVE_COMPLETIONS, P "\"stop\":[1]}", 400, "invalid_value", "stop[0]"},
    {CR_SERVE_COMPLETIONS, P "\"stop_token_ids\":[600]}", 400, "invalid_value", "stop_token_ids"},
    {CR_SERVE_COMPLETIONS, P "\"temperature\":1e-30}", 400, "invalid_value", "temperature"},
    {CR_SERVE_COMPLETIONS, P "\"presence_penalty\":2.5}", 400, "invalid_value", "presence_penalty"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"5\":101}}", 400, "invalid_value", "logit_bias.5"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"05\":1}}", 400, "invalid_value", "logit_bias"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"-1\":1}}", 400, "invalid_value", "logit_bias"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"4294967301\":1}}", 400, "invalid_value",
     "logit_bias"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"512\":1}}", 400, "invalid_value", "logit_bias"},
    {CR_SERVE_COMPLETIONS, P "\"logit_bias\":{\"5\":1,\"6\":1,\"5\":2}}", 400, "invalid_json",
     "logit_bias"},
    {CR_SERVE_COMPLETIONS, P "\"allowed_token_ids\":[]}", 400, "invalid_value",
     "allowed_token_ids"},
    {CR_SERVE_COMPLETIONS, P "\"allowed_token_ids\":[512]}", 400, "invalid_value",
     "allowed_token_ids"},
    {CR_SERVE_COMPLETIONS,
     P "\"allowed_token_ids\":[7,2],\"stop_token_ids\":[7,2],\"min_tokens\":1}", 400,
     "invalid_value", "min_tokens"},
    {CR_SERVE_COMPLETIONS, P "\"bad_words\":[1]}", 400, "invalid_value", "bad_words[0]"},
    {CR_SERVE_COMPLETIONS, P "\"bad_words\":[\"a\",\" \"]}", 400, "invalid_value", "bad_words"},
    {CR_SERVE_COMPLETIONS, P "\"allowed_token_ids\":[20],\"bad_words\":[\"ba\"]}", 400,
     "invalid_value", "bad_words"},
    {CR_SERVE_COMPLETIONS, P "\"max_tokens\":4,\"min_tokens\":5}", 400, "invalid_value",
     "min_tokens"},
    {CR_SERVE_COMPLETIONS, P "\"suffix\":\"x\"}", 400, "unsupported_parameter", "suffix"},
    {CR_SERVE_COMPLETIONS, P "\"response_format\":{\"type\":\"json_object\"}}", 400,
     "unsupported_parameter", "response_format"},
    {CR_SERVE_COMPLETIONS, P "\"stream\":true,\"prompt_logprobs\":1}", 400, "invalid_value",
     "stream"},
    {CR_SERVE_COMPLETIONS, P "\"stream_options\":{\"include_usage\":true}}", 400, "invalid_value",
     "stream_options"},
    {CR_SERVE_COMPLETIONS, P "\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400,
     "invalid_value", "stream_options.include_usage"},
    {CR_SERVE_COMPLETIONS, P "\"prompt_logprobs\":0,\"prompt_logprob_start\":2}", 400,
     "invalid_value", "prompt_logprob_start"},
    {CR_SERVE_COMPLETIONS, P "\"prompt_logprob_token_ids\":[[1],[2]]}", 400, "invalid_value",
     "prompt_logprob_token_ids"},
    {CR_SERVE_COMPLETIONS, P "\"prompt_logprob_token_ids\":[512]}", 400, "invalid_value",
     "prompt_logprob_token_ids"},
    {CR_SERVE_COMPLETIONS, P "\"encoding_format\":\"hex\"}", 400, "invalid_value",
     "encoding_format"},
    {CR_SERVE_COMPLETIONS, P "\"expect_weights\":\"0123456799\"}", 400, "invalid_value",
     "expect_weights"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"expect_weights\":\"0123456799\"}}", 409,
     "weights_mismatch", "expect_weights"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"expect_weights\":\"0123\"}}", 409, "weights_mismatch",
     "expect_weights"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"expect_tokenizer\":\"0123456789\"}}", 409,
     "tokenizer_mismatch", "expect_tokenizer"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"expect_weight\":\"0123456789\"}}", 400,
     "unknown_parameter", "croll.expect_weight"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"entropy\":true,\"typo\":null}}", 400,
     "unknown_parameter", "croll.typo"},
    {CR_SERVE_TOKENIZE, "{\"prompt\":\"a\",\"croll\":{\"entropy\":true}}", 400, "unknown_parameter",
     "croll.entropy"},
    {CR_SERVE_DETOKENIZE, "{\"tokens\":[1],\"croll\":{\"expect_tokenizer\":\"0123456789\"}}", 409,
     "tokenizer_mismatch", "expect_tokenizer"},
    {CR_SERVE_UPDATE, "{\"model_path\":\"m\",\"croll\":{\"expect_weight\":\"0123456789\"}}", 400,
     "unknown_parameter", "croll.expect_weight"},
    {CR_SERVE_COMPLETIONS, P "\"croll\":{\"deadline_ms\":1e18}}", 400, "invalid_value",
     "croll.deadline_ms"},
    {CR_SERVE_DETOKENIZE, "{\"tokens\":[1,512]}", 400, "invalid_value", "tokens[1]"},
    {CR_SERVE_DETOKENIZE, "{\"tokens\":[1,-3]}", 400, "invalid_value", "tokens[1]"},
    {CR_SERVE_CHAT, "{\"messages\":[]}", 400, "invalid_value", "messages"},
    {CR_SERVE_CHAT, "{\"messages\":\"hi\"}", 400, "invalid_value", "messages"},
    {CR_SERVE_CHAT, "{\"messages\":[{\"role\":\"robot\",\"content\":\"a\"}]}", 400, "invalid_value",
     "messages[0].role"},
    {CR_SERVE_CHAT, "{\"messages\":[7]}", 400, "invalid_value", "messages[0].role"},
    {CR_SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
     400, "invalid_value", "messages[0].content[0]"},
    {CR_SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}",
     400, "invalid_value", "top_logprobs"},
    {CR_SERVE_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\"}", 400,
     "invalid_value", "tool_choice"},
    {CR_SERVE_GENERATE, "{\"text\":\"a\",\"input_ids\":[1]}", 400, "invalid_value", "text"},
    {CR_SERVE_GENERATE, "{\"input_ids\":[1],\"sampling_params\":[{}]}", 400, "invalid_value",
     "sampling_params"},
    {CR_SERVE_GENERATE, "{\"input_ids\":[1],\"sampling_params\":{\"n\":\"2\"}}", 400,
     "invalid_value", "sampling_params.n"},
    {CR_SERVE_TOKENS_IN, "{\"token_ids\":[1],\"sampling_params\":{\"min_tokens\":-4}}", 400,
     "invalid_value", "sampling_params.min_tokens"},
    {CR_SERVE_TOKENS_IN, "{\"token_ids\":[[1]]}", 400, "invalid_value", "token_ids[0]"},
    {CR_SERVE_TOKENIZE, "{\"prompt\":[\"a\",\"b\"]}", 400, "invalid_value", "prompt"},
    {CR_SERVE_DETOKENIZE, "{\"tokens\":\"a\"}", 400, "invalid_value", "tokens"},
    {CR_SERVE_UPDATE, "{\"weight_version\":\"7\"}", 400, "missing_required_parameter",
     "model_path"},
    {CR_SERVE_UPDATE, "{\"model_path\":\"m\",\"weight_version\":\"\"}", 400, "invalid_value",
     "weight_version"},
    {CR_SERVE_UPDATE, "{\"model_path\":\"m\",\"weight_version\":\"7\\r\\nx-evil: 1\"}", 400,
     "invalid_value", "weight_version"},
};

static void wrong_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        if (parse(bad[i].route, bad[i].body) == CR_OK) fail_msg("accepted: %s", bad[i].body);
        if (error.status != bad[i].status || strcmp(error.code, bad[i].code) ||
            strcmp(error.param, bad[i].param))
            fail_msg("%s\n  is %d %s at \"%s\" (%s), expected %d %s at \"%s\"", bad[i].body,
                     error.status, error.code, error.param, error.message, bad[i].status,
                     bad[i].code, bad[i].param);
        assert_true(cr_utf8_valid(error.message, strlen(error.message)));
    }
    assert_int_equal(parse(CR_SERVE_COMPLETIONS, P "\"max_tokens\":31}"), CR_EARG);
    assert_non_null(strstr(error.message, "This model's maximum context length is 32 tokens"));
    parse(CR_SERVE_COMPLETIONS,
          P "\"croll\":{\"deadline_ms\":1e18}}"); /* the bound that it passed */
    assert_string_equal(error.message,
                        "croll.deadline_ms is 1e+18, expected at most 1000000000000");
    parse(CR_SERVE_COMPLETIONS, P "\"croll\":{\"deadline_ms\":0}}");
    assert_non_null(strstr(error.message, "is 0, expected at least 1"));
    parse(CR_SERVE_COMPLETIONS, P "\"croll\":{\"typo\":1}}");
    assert_non_null(strstr(error.message, "expect_weights, expect_tokenizer"));
}

static void limits(void **state)
{
    cr_buf body = {0};

    (void)state;
    cr_buf_adds(&body, P "\"unknown\":");
    for (int i = 0; i < CR_SERVE_MAX_DEPTH + 1; i++)
        cr_buf_addc(&body, '[');
    assert_int_equal(parse(CR_SERVE_COMPLETIONS, body.data), CR_EARG);
    assert_non_null(strstr(error.message, "levels"));
    cr_buf_clear(&body);
    cr_buf_adds(&body, "{\"prompt\":[");
    for (int i = 0; i < 17; i++)
        cr_buf_addf(&body, "%s[%d]", i ? "," : "", i);
    cr_buf_adds(&body, "]}");
    assert_int_equal(parse(CR_SERVE_COMPLETIONS, body.data), CR_EARG);
    assert_string_equal(error.param, "prompt[16]");
    cr_buf_clear(&body); /* counted, not kept */
    cr_buf_adds(&body, "{\"prompt\":[[1],[");
    for (int i = 0; i < 100000; i++)
        cr_buf_adds(&body, "1,");
    cr_buf_adds(&body, "1]]}");
    assert_int_equal(parse(CR_SERVE_COMPLETIONS, body.data), CR_EARG);
    assert_string_equal(error.code, "context_length_exceeded");
    assert_non_null(strstr(error.message, "100001"));
    cr_buf_clear(&body);
    cr_buf_adds(&body, "{\"messages\":[");
    for (int i = 0; i < CR_SERVE_MAX_TREE; i++)
        cr_buf_adds(&body, "0,");
    cr_buf_adds(&body, "0]}");
    assert_int_equal(parse(CR_SERVE_CHAT, body.data), CR_EARG);
    assert_string_equal(error.param, "messages");
    cr_buf_free(&body);
}

static void strings_of_json(void **state)
{
    (void)state;
    accept(CR_SERVE_COMPLETIONS,
           "{\"prompt\":\"\\u0061\\ud83d\\ude00\\n\\u00e9\",\"add_special_tokens\":false}");
    assert_string_equal(request.prompts[0].text, "a\xf0\x9f\x98\x80\n\xc3\xa9");
    accept(CR_SERVE_COMPLETIONS, " {\"prompt\" : [ 1 , 2.0, 3e0 ] , \"temperature\" : 5e-1 }\n");
    CHECK_IDS(0, 1, 2, 3);
    check_near(request.sampling.temperature, 0.5, 0);
    accept(CR_SERVE_COMPLETIONS,
           P "\"seed\":-9223372036854775807,\"logit_bias\":{ },\"bad name\\u0001,\":1}");
    assert_true(request.sampling.seed == -INT64_MAX);
    assert_string_equal(request.ignored.data, "bad?name??");
}

static void services(void **state)
{
    (void)state;
    serve_service.clamps_max_tokens = true;
    accept(CR_SERVE_COMPLETIONS, P "\"max_tokens\":8192}");
    assert_int_equal(request.prompts[0].max_tokens, 30);
    serve_service.clamps_max_tokens = false;
    serve_service.max_chat_tokens = 7;
    accept(CR_SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_int_equal(request.prompts[0].max_tokens, 7);
    serve_service.max_chat_tokens = 0;
    serve_service.only_scores = true;
    assert_int_equal(parse(CR_SERVE_COMPLETIONS, P "\"max_tokens\":2}"), CR_EARG);
    assert_string_equal(error.code, "unsupported_parameter");
    accept(CR_SERVE_COMPLETIONS, P "\"max_tokens\":1}");
    serve_service.only_scores = false;
}

/* ---- the description ---- */

/* Every field of every route is in the description, that a prompt is needed, too, and a value of a wrong type is refused with its name. */
static void schema_is_the_parser(void **state)
{
    cr_buf text = {0}, body = {0};
    cr_err err = {0};
    json_t *root;
    size_t num = 0;

    (void)state;
    cr_serve_openapi(NULL, 0, &text);
    if (cr_json_parse(text.data, text.num_bytes, "openapi", &root, &err) != CR_OK)
        fail_msg("%s", err.msg);
    for (int route = 0; route < CR_SERVE_NUM_ROUTES; route++) {
        json_t *schema = json_object_get(json_object_get(root, "paths"),
                                         cr_serve_route_path((cr_serve_route)route));
        const char *keys[] = {"post", "requestBody", "content", "application/json", "schema"},
                   *name;
        json_t *field;
        for (size_t i = 0; i < CR_COUNT(keys); i++)
            schema = json_object_get(schema, keys[i]);
        assert_string_equal(json_string_value(json_object_get(schema, "type")), "object");
        assert_true(json_array_size(json_object_get(schema, "oneOf")) > 0);
        assert_int_not_equal(parse((cr_serve_route)route, "{}"), CR_OK);
        schema = json_object_get(schema, "properties");
        assert_true(json_object_size(schema) > 0);
        json_object_foreach(schema, name, field)
        {
            const cri_field *f = cri_find_field(cri_route_groups((cr_serve_route)route), name);
            assert_non_null(f);
            assert_non_null(json_object_get(field, "description"));
            num++;
            if (f->state == CRI_IGNORED) continue;
            cr_buf_clear(&body);
            cr_buf_addf(&body, "{\"%s\":%s}", name,
                        f->state == CRI_BUILT && f->type == CRI_FLAG ? "3" : "[[true]]");
            if (parse((cr_serve_route)route, body.data) == CR_OK)
                fail_msg("%s is accepted", body.data);
            if (strncmp(error.param, name, strlen(name)) != 0 && f->type != CRI_TREE)
                fail_msg("%s: %s", body.data, error.message);
        }
    }
    assert_true(num > 150);
    json_decref(root);
    cr_buf_free(&text);
    cr_buf_free(&body);
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
        cmocka_unit_test(prime_rl_slime_verl),
        cmocka_unit_test(langchain_and_roll),
        cmocka_unit_test(changes_of_samples),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(limits),
        cmocka_unit_test(strings_of_json),
        cmocka_unit_test(services),
        cmocka_unit_test(schema_is_the_parser),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
