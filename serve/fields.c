/* fields.c -- the tables of fields of every route (see fields.h). */
#include "serve/fields.h"
#include "kernels/sampling_ranges.h"

#include <string.h>

#define AT(member)     offsetof(cri_draft, member)
#define HOW(member)    AT(request.sampling.member)
#define WANTED(member) AT(request.wanted.member)
/* a table's row is {name, state, type, at, min, max, choices, groups, help} */
/* clang-format off */
#define FLAG(name, at, help)                  {name, CRI_BUILT, CRI_FLAG, at, 0, 0, NULL, NULL, help}
#define INTEGER(name, at, min, max, help)  {name, CRI_BUILT, CRI_INTEGER, at, min, max, NULL, NULL, help}
/* range: a row of kernels/sampling_ranges.h */
#define INTEGER_IN(name, at, range, help)     {name, CRI_BUILT, CRI_INTEGER, at, CR_MIN_OF(range), CR_MAX_OF(range), NULL, NULL, \
                                               help "; default " CR_DEFAULT_TEXT(range)}
#define NUMBER_IN(name, at, range, help)      {name, CRI_BUILT, CRI_NUMBER, at, CR_MIN_OF(range), CR_MAX_OF(range), NULL, NULL, \
                                               help "; default " CR_DEFAULT_TEXT(range)}
#define TEXT(name, at, max, help)            {name, CRI_BUILT, CRI_TEXT, at, 0, max, NULL, NULL, help}
#define TEXTS(name, at, max, help)           {name, CRI_BUILT, CRI_TEXTS, at, 0, max, NULL, NULL, help}
#define IDS(name, at, min, max, help)      {name, CRI_BUILT, CRI_IDS, at, min, max, NULL, NULL, help}
#define BIAS(name, at, help)                  {name, CRI_BUILT, CRI_BIAS, at, -100, 100, NULL, NULL, help}
#define ID_LISTS(name, at, help)              {name, CRI_BUILT, CRI_ID_LISTS, at, 0, 0, NULL, NULL, help}
#define PROMPT(name, help)                    {name, CRI_BUILT, CRI_PROMPT, 0, 0, 0, NULL, NULL, help}
#define TREE(name, at, is_object, help)       {name, CRI_BUILT, CRI_TREE, at, 0, is_object, NULL, NULL, help}
#define CHOICE(name, at, choices, help)       {name, CRI_BUILT, CRI_CHOICE, at, 0, 0, choices, NULL, help}
#define OBJECT(name, groups, help)            {name, CRI_BUILT, CRI_OBJECT, 0, 0, 0, NULL, groups, help}
#define NEUTRAL(name, values)                 {name, CRI_NEUTRAL, 0, 0, 0, 0, values, NULL, NULL}
#define IGNORED(name)                         {name, CRI_IGNORED, 0, 0, 0, 0, NULL, NULL, NULL}
#define GROUP(fields)                         {fields, CR_COUNT(fields)}
/* clang-format on */
#define MAX_INT 9007199254740992.0 /* 2^53 */
#define MIN_TOKENS                                                                                 \
    "fewer are not sampled: end-of-text and stop_token_ids not before, stop texts are not looked " \
    "for before; default 0"
enum { MAX_IDS = INT32_MAX };

#define OWN        "what no other server has; a field that it does not know is refused"
#define CACHE_SALT "only requests with the same one share computed beginnings of prompts"

static const char
    *const none[] = {NULL},
           *const one[] = {"1", NULL}, *const empty_text[] = {"\"\"", NULL},
           *const is_flag[] = {"true", "false", NULL}, *const is_true[] = {"true", NULL},
           *const is_false[] = {"false", NULL}, *const auto_format[] = {"\"auto\"", NULL},
           *const empty_list[] = {"[]", NULL}, *const text_format[] = {"{\"type\":\"text\"}", NULL};
const char *const cri_tool_choices[] = {"none", "auto", NULL};
const char *const cri_formats[] = {"float", "base64", NULL};
const char *const cri_modes[] = {"raw", "processed", NULL};

static const cri_field sampling_fields[] = {
    INTEGER_IN("n", HOW(n), CR_NUM_SAMPLES, "samples of each prompt"),
    NUMBER_IN("temperature", HOW(temperature), CR_TEMPERATURE, "0 takes the most likely token"),
    NUMBER_IN("top_p", HOW(top_p), CR_TOP_P, "1: off"),
    INTEGER_IN("top_k", HOW(top_k), CR_TOP_K, "0 and -1: off"),
    NUMBER_IN("min_p", HOW(min_p), CR_MIN_P, "0: off"),
    NUMBER_IN("repetition_penalty", HOW(repetition_penalty), CR_REPETITION_PENALTY, "1: off"),
    TEXTS("stop", AT(stop), CR_SERVE_MAX_STOP, "texts that end a sample and are left out"),
    IDS("stop_token_ids", AT(stop_ids), 0, CR_SERVE_MAX_STOP,
        "ids that end a sample; their text is left out"),
    FLAG("ignore_eos", HOW(ignore_eos),
         "the end-of-text token does not end a sample; default false"),
    FLAG("skip_special_tokens", HOW(skips_special), "special tokens have no text; default true"),
    NUMBER_IN("presence_penalty", HOW(presence_penalty), CR_PRESENCE_PENALTY,
              "subtracted from the logits of tokens that were sampled before"),
    NUMBER_IN("frequency_penalty", HOW(frequency_penalty), CR_FREQUENCY_PENALTY,
              "the same for each time that the token was sampled"),
    BIAS("logit_bias", AT(bias), "token ids and what is added to their logits"),
    IDS("allowed_token_ids", AT(allowed), 1, MAX_IDS, "only these ids are sampled"),
    TEXTS(
        "bad_words", AT(bad_words), CR_SERVE_MAX_BAD_WORDS,
        "texts that are not sampled, with or without a space before them: their last token is not "
        "drawn after the others"),
    NEUTRAL("logits_processors", empty_list),
    NEUTRAL("structured_outputs", none),
    NEUTRAL("spaces_between_special_tokens", is_flag)}; /* tokenizers of tokenizer.json put none */
static const cri_field_group sampling = GROUP(sampling_fields);

/* Of vLLM, for completions, chat and ids in, beside OpenAI's. */
static const cri_field vllm_fields[] = {
    {"seed", CRI_BUILT, CRI_INTEGER, HOW(seed), -9.3e18, 9.3e18, NULL, NULL,
     "the same seed, the same samples; default: another one for each request, in croll.seed of the "
     "answer"},
    FLAG("include_stop_str_in_output", HOW(keeps_stop),
         "what ends a sample, a stop text or the text of an id, stays in the text; default false"),
    INTEGER("prompt_logprobs", WANTED(prompt_logprobs), -1, MAX_INT,
            "log-probs of the prompt's tokens with this number of alternatives; -1: all ids"),
    INTEGER("prompt_logprob_start", AT(prompt_start), 0, MAX_INT,
            "first place with an entry; default 0"),
    ID_LISTS("prompt_logprob_token_ids", AT(candidates),
             "ids whose log-probs are wanted at each place of the prompt but the first, or a list "
             "for each place"),
    INTEGER("min_tokens", HOW(min_tokens), 0, MAX_INT, MIN_TOKENS),
    NEUTRAL("logprob_token_ids", none),
    NEUTRAL("logit_processor", none),
    NEUTRAL("truncate_prompt_tokens", none),
    NEUTRAL("use_beam_search", is_false),
    NEUTRAL("length_penalty", one),
    NEUTRAL("early_stopping", is_false),
    NEUTRAL("detokenize", is_true),
    NEUTRAL("guided_json", none),
    NEUTRAL("guided_regex", none),
    NEUTRAL("guided_choice", none),
    NEUTRAL("guided_grammar", none),
    NEUTRAL("logits_processor", none)};
static const cri_field_group vllm = GROUP(vllm_fields);

static const cri_field identity_fields[] = {
    TEXT("expect_weights", AT(expect_weights), 256,
         "sha256 of the weights, or its beginning; others: 409"),
    TEXT("expect_tokenizer", AT(expect_tokenizer), 256, "the same of the tokenizer"),
    INTEGER("deadline_ms", AT(request.deadline_ms), 1, 1e12, "time that the answer may take")};
static const cri_field_group identity = GROUP(identity_fields);
static const cri_field_group *const identity_groups[] = {&identity, NULL};

static const cri_field numbers_fields[] = {
    FLAG("entropy", WANTED(entropy),
         "entropy at the places of the prompt, in croll of each choice"),
    CHOICE(
        "logprobs_mode", AT(mode), cri_modes,
        "processed: log-probs of prompts at the temperature, of samples those that they were drawn "
        "with; default raw")};
static const cri_field_group numbers = GROUP(numbers_fields);
static const cri_field_group *const croll_groups[] = {&identity, &numbers, NULL};

static const cri_field croll_object_fields[] = {
    OBJECT("croll", croll_groups, OWN),
    CHOICE("encoding_format", AT(format), cri_formats,
           "base64: numbers of the prompt as arrays in croll of each choice; default float"),
    IGNORED("priority")};
static const cri_field_group croll_object = GROUP(croll_object_fields);

static const cri_field model_fields[] = {
    TEXT("model", AT(model), 4096, "default: the first of /v1/models")};
static const cri_field_group model = GROUP(model_fields);

static const cri_field stream_option_fields[] = {
    FLAG("include_usage", WANTED(has_usage), "a last chunk with usage; default false"),
    FLAG("continuous_usage_stats", WANTED(has_usage_in_chunks),
         "usage in every chunk; default false"),
    NEUTRAL("include_obfuscation", is_false)};
static const cri_field_group stream_options = GROUP(stream_option_fields);
static const cri_field_group *const stream_option_groups[] = {&stream_options, NULL};

static const cri_field openai_fields[] = {
    FLAG("stream", WANTED(is_stream), "events; default false"),
    {"stream_options", CRI_BUILT, CRI_OBJECT, AT(has_stream_options), 0, 0, NULL,
     stream_option_groups, "only with stream"},
    FLAG("return_token_ids", WANTED(token_ids), "prompt_token_ids and token_ids in the answer"),
    FLAG("return_tokens_as_token_ids", WANTED(tokens_as_ids), "token strings are token_id:N"),
    FLAG("add_special_tokens", AT(add_special),
         "texts get the tokenizer's special tokens; default true, for chats false"),
    TEXT("request_id", AT(request.request_id), 128, "of the answer"),
    NEUTRAL("response_format", text_format),
    NEUTRAL("echo", is_false), /* a route's own field comes first */
    TEXT("cache_salt", HOW(cache_salt), 256, CACHE_SALT),
    IGNORED("user"),
    IGNORED("metadata"),
    IGNORED("store"),
    IGNORED("service_tier")};
static const cri_field_group openai = GROUP(openai_fields);

static const cri_field completion_fields[] = {
    PROMPT("prompt", "a text, a list of texts, a list of ids or a list of such lists"),
    INTEGER("max_tokens", HOW(max_tokens), 0, MAX_INT,
            "default 16; 0 only with echo or prompt_logprobs: nothing is sampled"),
    INTEGER("best_of", AT(best_of), 1, MAX_INT, "only the value of n"),
    INTEGER("logprobs", WANTED(logprobs), -1, MAX_INT,
            "log-probs of tokens with this number of alternatives; -1: all ids"),
    FLAG("echo", WANTED(echo),
         "the prompt before the completion, with its log-probs; default false"),
    NEUTRAL("suffix", empty_text)};
static const cri_field_group completion = GROUP(completion_fields);

static const cri_field chat_fields[] = {
    TREE("messages", AT(messages), 0, "objects with role and content"),
    INTEGER("max_tokens", HOW(max_tokens), 1, MAX_INT, "default: what is left of the context"),
    INTEGER("max_completion_tokens", AT(max_completion_tokens), 1, MAX_INT, "the same; it wins"),
    FLAG("logprobs", AT(has_logprobs), "log-probs of tokens; default false"),
    INTEGER("top_logprobs", AT(top_logprobs), 0, MAX_INT, "alternatives a token; needs logprobs"),
    NEUTRAL("chat_template", none),
    NEUTRAL("functions", empty_list),
    NEUTRAL("function_call", none),
    NEUTRAL("modalities", none),
    NEUTRAL("audio", none),
    IGNORED("parallel_tool_calls")};
static const cri_field_group chat = GROUP(chat_fields);

static const cri_field template_fields[] = {
    TREE("tools", AT(tools), 0, "handed to the template; calls stay text"),
    CHOICE("tool_choice", AT(tool_choice), cri_tool_choices, "default auto"),
    TREE("chat_template_kwargs", AT(template_vars), 1, "variables of the template"),
    FLAG("add_generation_prompt", AT(add_generation_prompt), "default true"),
    NEUTRAL("continue_final_message", is_false)};
static const cri_field_group template = GROUP(template_fields);

static const cri_field ids_in_sampling_fields[] = {
    INTEGER("max_tokens", HOW(max_tokens), 0, MAX_INT, "default 16; 0 only with prompt_logprobs"),
    INTEGER("logprobs", WANTED(logprobs), -1, MAX_INT, "alternatives of a token; -1: all ids")};
static const cri_field_group ids_in_sampling = GROUP(ids_in_sampling_fields);
static const cri_field_group *const ids_in_sampling_groups[] = {&ids_in_sampling, &sampling, &vllm,
                                                                NULL};

static const cri_field ids_in_fields[] = {
    IDS("token_ids", AT(lists), 1, MAX_IDS, "the prompt"),
    OBJECT("sampling_params", ids_in_sampling_groups, "how to sample"),
    TEXT("request_id", AT(request.request_id), 128, "of the answer"),
    FLAG("stream", WANTED(is_stream), "events; default false"),
    NEUTRAL("features", none),
    NEUTRAL("kv_transfer_params", none),
    TEXT("cache_salt", HOW(cache_salt), 256, CACHE_SALT)};
static const cri_field_group ids_in = GROUP(ids_in_fields);

static const cri_field sglang_sampling_fields[] = {
    INTEGER("max_new_tokens", HOW(max_tokens), 0, MAX_INT, "default 128; 0: nothing is sampled"),
    {"sampling_seed", CRI_BUILT, CRI_INTEGER, HOW(seed), -9.3e18, 9.3e18, NULL, NULL,
     "the same seed, the same samples"},
    FLAG("no_stop_trim", HOW(keeps_stop), "the same as include_stop_str_in_output; default false"),
    INTEGER("min_new_tokens", HOW(min_tokens), 0, MAX_INT, MIN_TOKENS),
    NEUTRAL("json_schema", none),
    NEUTRAL("regex", none),
    NEUTRAL("ebnf", none),
    NEUTRAL("stop_regex", none)};
static const cri_field_group sglang_sampling = GROUP(sglang_sampling_fields);
static const cri_field_group *const sglang_sampling_groups[] = {&sglang_sampling, &sampling, NULL};

static const cri_field sglang_fields[] = {
    TEXTS("text", AT(texts), 1024, "a prompt or a list of prompts"),
    ID_LISTS("input_ids", AT(lists), "the same as ids; one of both is needed"),
    OBJECT("sampling_params", sglang_sampling_groups, "how to sample"),
    FLAG("return_logprob", AT(has_logprobs), "log-probs of tokens; default false"),
    INTEGER(
        "logprob_start_len", AT(prompt_start), -1, MAX_INT,
        "first place of the prompt with an entry, which is null; default -1: sampled tokens only"),
    INTEGER("top_logprobs_num", AT(top_logprobs), 0, MAX_INT, "alternatives a token; default 0"),
    ID_LISTS("token_ids_logprob", AT(candidates),
             "ids whose log-probs are wanted at each place of the prompt but the first"),
    FLAG("return_text_in_logprobs", WANTED(token_strings), "default false"),
    FLAG("stream", WANTED(is_stream), "events, each with all so far; default false"),
    TEXT("rid", AT(request.request_id), 128, "of the answer"),
    TEXT("lora_path", AT(model), 4096,
         "name of an adapter, or of a model; default: the first of /v1/models"),
    NEUTRAL("input_embeds", none),
    NEUTRAL("image_data", empty_list),
    NEUTRAL("return_hidden_states", is_false)};
static const cri_field_group sglang = GROUP(sglang_fields);

static const cri_field tokenize_fields[] = {
    TEXTS("prompt", AT(texts), 1, "the text; this or messages"),
    TREE("messages", AT(messages), 0, "a chat"),
    FLAG("add_special_tokens", AT(add_special), "default true, for chats false"),
    FLAG("return_token_strs", WANTED(token_strings), "default false")};
static const cri_field_group tokenize = GROUP(tokenize_fields);

/* Of the routes without a model's numbers. */
static const cri_field croll_identity_fields[] = {OBJECT("croll", identity_groups, OWN)};
static const cri_field_group croll_identity = GROUP(croll_identity_fields);

static const cri_field detokenize_fields[] = {IDS("tokens", AT(lists), 0, MAX_IDS, "ids")};
static const cri_field_group detokenize = GROUP(detokenize_fields);

static const cri_field update_fields[] = {
    TEXT("model_path", AT(request.update.path), 4096,
         "folder of the new weights on the service's machine: a model of the same shape"),
    TEXT("weight_version", AT(request.update.version), 128,
         "a word; default: the number of updates so far and one"),
    TEXT("weights_sha256", AT(request.update.sha256), 64,
         "sha256 that the new weights must have, or its beginning; others: 409"),
    NEUTRAL("load_format", auto_format),
    NEUTRAL("abort_all_requests", is_false),
    NEUTRAL("is_async", is_false),
    NEUTRAL("keep_pause", is_false),
    NEUTRAL("flush_cache", is_true),
    IGNORED("torch_empty_cache")};
static const cri_field_group update = GROUP(update_fields);

static const struct {
    const char *path, *help;
    const cri_field_group *groups[8]; /* an earlier group's field hides a later one's */
} routes[CR_SERVE_NUM_ROUTES] = {
    [CR_SERVE_COMPLETIONS] = {"/v1/completions",
                              "complete or score texts or ids",
                              {&model, &completion, &openai, &sampling, &vllm, &croll_object}},
    [CR_SERVE_CHAT] = {"/v1/chat/completions",
                       "answer a chat",
                       {&model, &chat, &template, &openai, &sampling, &vllm, &croll_object}},
    [CR_SERVE_GENERATE] = {"/generate",
                           "complete or score, in SGLang's shape",
                           {&sglang, &croll_object}},
    [CR_SERVE_TOKENS_IN] = {"/inference/v1/generate",
                            "complete or score ids, in vLLM's shape",
                            {&model, &ids_in, &croll_object}},
    [CR_SERVE_TOKENIZE] = {"/tokenize",
                           "ids of a text or a chat",
                           {&model, &tokenize, &template, &croll_identity}},
    [CR_SERVE_DETOKENIZE] = {"/detokenize", "text of ids", {&model, &detokenize, &croll_identity}},
    [CR_SERVE_UPDATE] = {"/update_weights_from_disk",
                         "other weights for a model, between rounds; needs the scope admin",
                         {&model, &update, &croll_identity}},
};

const char *cr_serve_route_path(cr_serve_route route)
{
    return routes[route].path;
}

bool cr_serve_is_for_model(cr_serve_route route)
{
    return route != CR_SERVE_TOKENIZE && route != CR_SERVE_DETOKENIZE && route != CR_SERVE_UPDATE;
}

const cri_field_group *const *cri_route_groups(cr_serve_route route)
{
    return routes[route].groups;
}

const char *cri_route_help(cr_serve_route route)
{
    return routes[route].help;
}

const cri_field *cri_find_field(const cri_field_group *const *groups, const char *name)
{
    for (; *groups; groups++)
        for (size_t i = 0; i < (*groups)->num_fields; i++)
            if (strcmp((*groups)->fields[i].name, name) == 0) return &(*groups)->fields[i];
    return NULL;
}

bool cri_is_prompt(const cri_field *f)
{
    return f->state == CRI_BUILT &&
           (f->type == CRI_PROMPT || f->at == AT(texts) || f->at == AT(lists) ||
            f->at == AT(messages) || f->at == AT(request.update.path));
}

bool cri_belongs_in_croll(const char *name)
{
    return cri_find_field(croll_groups, name) != NULL;
}

bool cri_is_croll(const cri_field_group *const *groups)
{
    return groups[0] == &identity;
}
