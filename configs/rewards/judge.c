/* judge.c -- the judge of a domain: which service it is, what it is asked, and how its reply says the verdict. */
#include "base/pattern.h"
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

enum { JUDGE_CONNECTIONS = 32, MAX_CONNECTIONS = 512 }; /* of 1024 open files */

/* ---- what it is asked ---- */

static const char same_answer[] =
    "You compare the final answer of a response with a reference answer. The response may show its "
    "work and may be cut off: only the answer that it ends with counts. An answer may be the "
    "letter of an option, a number, an expression, a text, or several of them if several things "
    "were asked. It is right if it means the same as the reference answer, in any language, "
    "notation or order of words. It is wrong if it means something else, if it is ambiguous or "
    "unclear, and if there is no answer.\n\n"
    "Question:\n{question}\n\nReference answer:\n{reference}\n\nResponse:\n{response}\n\n"
    "Is the answer of the response right? Reply with YES or NO and nothing else.";

static const char ten_points[] =
    "You grade a response to a question. 10 means that it is right and complete, 0 that it is "
    "wrong, empty or about something else; numbers between them are for answers that are right in "
    "part. The reference answer says what is right.\n\n"
    "Question:\n{question}\n\nReference answer:\n{reference}\n\nResponse:\n{response}\n\n"
    "Reply with a number from 0 to 10 and nothing else.";

static const struct {
    const char *name, *text; /* the first: of ROLL, and the default */
    double max;              /* of numbers; 0: YES or NO */
} prompts[] = {{"Qwen2.5-7B-Instruct-RLVR-prompt", same_answer, 0}, {"score-0-10", ten_points, 10}};

static void bind_prompt(const cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    char *text = cri_text_of(block, "judge_prompt");
    size_t i = 0;

    while (text && i < CR_COUNT(prompts) && strcmp(text, prompts[i].name) != 0)
        i++;
    if (i < CR_COUNT(prompts)) {
        cr_free(text);
        text = cr_strdup(prompts[i].text);
        r->judge_answer.max = prompts[i].max;
        r->judge_answer.is_number = prompts[i].max > 0;
    } else if (!strstr(text, "{response}")) {
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "judge_prompt")->place,
                    "judge_prompt: a text with {response} is expected, and {question} and "
                    "{reference} where they belong; or a name: %s, %s",
                    prompts[0].name, prompts[1].name);
    }
    r->judge_prompt = text;
}

/* ---- what its reply says ---- */

static void check_pattern(const cr_judge_answer *a, cr_place place, cr_diagnostics *d)
{
    cr_pattern *p = NULL;
    cr_err err = {0};

    if (cr_pattern_open(a->pattern, &p, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, place, "judge_answer.pattern: %s", err.msg);
    else if (a->is_number ? !cr_pattern_has(p, "score")
                          : !cr_pattern_has(p, "yes") || !cr_pattern_has(p, "no"))
        cr_diagnose(d, CR_ERROR, place,
                    "judge_answer.pattern: its groups say what a match means: (?<yes>..) and "
                    "(?<no>..), or (?<score>..) with least and most");
    cr_pattern_close(p);
}

static void bind_answer(const cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    const cr_node *n =
        cri_is_given(block, "judge_answer") ? cr_node_get(block, "judge_answer") : NULL;
    cr_judge_answer *a = &r->judge_answer;

    if (!n) return;
    a->pattern = cri_text_of(n, "pattern");
    a->field = cri_text_of(n, "field");
    a->min = cri_real_of(n, "least");
    if (cri_is_given(n, "most")) {
        a->max = cri_real_of(n, "most");
        a->is_number = true;
    }
    if (a->field && (!*a->field || *a->field == '.' || strstr(a->field, "..") ||
                     a->field[strlen(a->field) - 1] == '.'))
        cr_diagnose(d, CR_ERROR, cr_node_get(n, "field")->place,
                    "judge_answer.field: a name is expected, or names with dots between them");
    if (a->pattern && a->field)
        cr_diagnose(d, CR_ERROR, n->place, "judge_answer: pattern and field exclude each other");
    if (a->is_number ? a->min >= a->max : a->min != 0)
        cr_diagnose(d, CR_ERROR, n->place,
                    "judge_answer: least and most are the bounds of a number, least below most");
    if (a->pattern) check_pattern(a, cr_node_get(n, "pattern")->place, d);
}

/* ---- which service it is ---- */

/* One key in two places: the block's, or ROLL's beside it. */
static char *either(const cr_node *judge, const char *key, const cr_node *block, const char *roll,
                    cr_diagnostics *d)
{
    char *own = cri_text_of(judge, key), *other = cri_text_of(block, roll);

    if (own && other)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, roll)->place,
                    "%s: judge.%s says it, too (leave one of them out)", roll, key);
    if (!own) return other;
    cr_free(other);
    return own;
}

/* ---- a judge that the run starts ---- */

enum { JUDGE_TOKENS = 256, SOCKET_BYTES = 100, MAX_JUDGES = 1000 };

/* generating_args as fields of a request. */
static char *fields_of(const cr_node *block, const cr_generating_args *g)
{
    const cr_node *given = cr_node_get(block, "generating_args");
    bool is_given = cri_is_in_file(given, "max_new_tokens");
    cr_buf out = {0};

    cr_buf_addf(&out,
                "{\"temperature\":%.9g,\"top_p\":%.9g,\"top_k\":%lld,\"min_p\":%.9g,"
                "\"repetition_penalty\":%.9g,\"max_tokens\":%lld",
                g->temperature, g->top_p, (long long)g->top_k, g->min_p, g->repetition_penalty,
                (long long)(is_given ? g->max_new_tokens : JUDGE_TOKENS));
    if (g->num_stop_strings) {
        cr_buf_addf(&out, ",\"include_stop_str_in_output\":%s,\"stop\":",
                    g->include_stop_str_in_output ? "true" : "false");
        cr_node_write_json(cr_node_get(given, "stop_strings"), &out);
    }
    if (g->num_stop_token_ids) {
        cr_buf_adds(&out, ",\"stop_token_ids\":");
        cr_node_write_json(cr_node_get(given, "stop_token_ids"), &out);
    }
    cr_buf_addc(&out, '}');
    return out.data;
}

static void check_model(const cr_config *c, const cr_node *block, const cr_reward_config *r,
                        cr_diagnostics *d)
{
    const cr_worker_config *w = &r->judge_model;
    const char *missing = !w->model_path  ? "model_args.model_name_or_path"
                          : !w->is_mapped ? "device_mapping"
                                          : NULL;
    size_t num = strlen(c->output_dir);

    if (missing)
        cr_diagnose(d, CR_ERROR, block->place,
                    "rewards.%s.%s is missing: judge_model_type: inference starts a judge of its "
                    "own (or take a service: judge: URL)",
                    r->domain, missing);
    if (num > SOCKET_BYTES - strlen("/judges/000-000.sock"))
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "output_dir"),
                    "output_dir: a path of %zu characters has no room for the socket of "
                    "rewards.%s's judge (a shorter one)",
                    num, r->domain);
    if (w->num_devices > MAX_JUDGES)
        cr_diagnose(d, CR_ERROR, block->place, "rewards.%s: a judge has at most %d devices",
                    r->domain, MAX_JUDGES);
    if (w->generating.num_return_sequences != 1)
        cr_diagnose(d, CR_NOTE, block->place,
                    "rewards.%s: num_return_sequences has no effect (a judge replies once)",
                    r->domain);
    if (w->fsdp_size > 1 || w->ulysses_size > 1 || w->ep_size > 1)
        cr_diagnose(d, CR_NOTE, block->place,
                    "rewards.%s: each device of a judge has the whole model: fsdp_size, "
                    "ulysses_size and ep_size have no effect",
                    r->domain);
}

static void bind_model(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    cr_worker_config *w = &r->judge_model;

    w->task = CR_TASK_GENERATE;
    w->infer_batch_size = 1;
    cri_bind_reward_worker(c, block, r->domain, w, d);
    check_model(c, block, r, d);
    w->fsdp_size = w->ulysses_size = w->ep_size = w->efsdp_size = 1;
    if (r->judge.url) {
        cr_diagnose(d, CR_ERROR, block->place,
                    "rewards.%s: judge_model_type: inference and a judge elsewhere exclude each "
                    "other",
                    r->domain);
        return;
    }
    r->judge.url = cr_asprintf("unix:%s/judges/%d", c->output_dir, (int)(r - c->rewards));
    r->judge_fields = fields_of(block, &w->generating);
    if (cri_is_in_file(block, "world_size") || w->num_devices < 1) return;
    r->world_size = w->num_devices;
    cri_set_int(c, block, "world_size", r->world_size);
}

static void bind_in_flight(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    if (r->max_in_flight > MAX_CONNECTIONS) {
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "max_in_flight")->place,
                    "rewards.%s.max_in_flight: a worker has at most %d connections (world_size is "
                    "the number of workers)",
                    r->domain, MAX_CONNECTIONS);
        r->max_in_flight = MAX_CONNECTIONS;
    }
    if (!cri_is_in_file(block, "max_in_flight")) {
        cri_set_int(c, block, "max_in_flight", JUDGE_CONNECTIONS);
        r->max_in_flight = JUDGE_CONNECTIONS;
    }
    r->judge.connections = r->max_in_flight;
}

/* ---- a service of one's own ---- */

static void bind_remote(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    cr_node *n = cr_node_get(block, "remote");
    char where[160];
    cr_buf manager = {0};

    if (r->judge.url) {
        cr_diagnose(d, CR_ERROR, n->place, "rewards.%s: remote and a judge exclude each other",
                    r->domain);
        return;
    }
    r->judge = (cr_service_keys){.url = cri_text_of(n, "url"),
                                 .key_file = cri_text_of(n, "key_file"),
                                 .key_env = cri_text_of(n, "key_env"),
                                 .ca_file = cri_text_of(n, "ca_file")};
    snprintf(where, sizeof where, "rewards.%.100s.remote", r->domain);
    cri_check_service_keys(n, &r->judge, where, d);
    cr_node_write_json(cr_node_get(block, "reward_manager_config"), &manager);
    r->reward_manager = manager.data;
    bind_in_flight(c, block, r, d);
}

/* ---- the block ---- */

static void write_extra(const cr_node *extra, cr_buf *out, cr_diagnostics *d)
{
    static const char *const own[] = {"messages", "model", "stream", "n"};

    for (size_t i = 0; i < CR_COUNT(own); i++)
        if (cr_node_get(extra, own[i]))
            cr_diagnose(d, CR_ERROR, cr_node_get(extra, own[i])->place,
                        "extra_body: %s is croll's to say (judge.model names the model)", own[i]);
    cr_node_write_json(extra, out);
}

void cri_bind_judge(cr_config *c, cr_node *block, cr_reward_config *r, cr_diagnostics *d)
{
    bool is_given = cri_is_given(block, "judge");
    cr_node *n = is_given ? cr_node_get(block, "judge") : NULL;
    char where[160];
    cr_buf fields = {0};

    if (cri_is_given(block, "judge_api_key"))
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "judge_api_key")->place,
                    "judge_api_key: a key stays out of the file (judge: {url: .., key_file: FILE}, "
                    "or key_env: VARIABLE)");
    r->judge = (cr_service_keys){.url = either(n, "url", block, "judge_api_url", d),
                                 .model = either(n, "model", block, "judge_model_name", d),
                                 .key_file = cri_text_of(n, "key_file"),
                                 .key_env = cri_text_of(n, "key_env"),
                                 .ca_file = cri_text_of(n, "ca_file")};
    bind_prompt(block, r, d);
    bind_answer(block, r, d);
    if (cri_choice_of("reward", block, "judge_model_type") == 1) bind_model(c, block, r, d);
    if (r->judge_model.is_given) bind_in_flight(c, block, r, d);
    if (cri_is_given(block, "remote")) bind_remote(c, block, r, d);
    if (r->judge_model.is_given || r->reward_manager || (!is_given && !r->judge.url)) return;
    snprintf(where, sizeof where, "rewards.%.100s.%s", r->domain,
             is_given ? "judge" : "judge_api_url");
    cri_check_service_keys(is_given ? n : cr_node_get(block, "judge_api_url"), &r->judge, where, d);
    if (is_given) write_extra(cr_node_get(n, "extra_body"), &fields, d);
    r->judge_fields = fields.data ? fields.data : cr_strdup("{\"temperature\":0}");
    bind_in_flight(c, block, r, d);
}
