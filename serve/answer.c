/* answer.c -- numbers and strings of answers (see answer.h, answer_impl.h). */
#include "http/server.h"
#include "serve/answer_impl.h"

#include <math.h>
#include <string.h>

cr_status cri_add_log_prob(cr_buf *out, float x, cr_err *err)
{
    if (x == -INFINITY) {
        cr_buf_adds(out, "-9999.0");
        return CR_OK;
    }
    return cr_json_add_float(out, x, err);
}

/* ---- strings ---- */

void cri_add_text(cr_buf *out, const char *text, size_t num_bytes)
{
    cr_json_add_string(out, text ? text : "", num_bytes);
}

void cri_add_token(const cr_serve_request *r, int32_t id, cr_buf *out)
{
    cr_buf scratch = {0};
    cr_serve_text text = cr_serve_text_of(r->model, id, r->wanted.tokens_as_ids, &scratch);

    cr_buf_add(out, text.json, text.num_bytes);
    cr_buf_free(&scratch);
}

void cri_add_finish(const char *finish, cr_buf *out)
{
    cr_buf_addf(out, finish ? "\"finish_reason\":\"%s\"" : "\"finish_reason\":null", finish);
}

void cri_add_stop_reason(const cr_serve_sample *s, cr_buf *out)
{
    cr_buf_adds(out, "\"stop_reason\":");
    if (s->stop_text)
        cri_add_text(out, s->stop_text, strlen(s->stop_text));
    else if (s->stop_id >= 0)
        cr_buf_addf(out, "%d", s->stop_id);
    else
        cr_buf_adds(out, "null");
}

void cri_add_prompt_text(const cr_serve_result *result, size_t prompt, cr_buf *out)
{
    const cr_serve_request *r = result->request;
    const cr_serve_prompt *p = &r->prompts[prompt];
    const cr_buf *decoded = result->prompt_texts ? &result->prompt_texts[prompt] : NULL;

    if (p->text)
        cr_buf_add(out, p->text, p->text_bytes);
    else if (decoded && decoded->num_bytes)
        cr_buf_add(out, decoded->data, decoded->num_bytes);
    else if (r->model->tokenizer)
        cr_tokenizer_decode(r->model->tokenizer, p->ids, p->num_ids, r->sampling.skips_special,
                            out);
}

/* ---- usage and identity ---- */

void cri_add_usage(const cr_serve_result *result, size_t num_ids, cr_buf *out)
{
    const cr_serve_request *r = result->request;
    size_t num_prompt = 0;
    int64_t num_cached = 0;

    for (size_t i = 0; i < r->num_prompts; i++) {
        num_prompt += r->prompts[i].num_ids;
        if (result->cached) num_cached += result->cached[i];
    }
    cr_buf_addf(out,
                "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                num_prompt, num_ids, num_prompt + num_ids, (long long)num_cached);
}

static void add_member(cr_buf *out, const char *name, const char *text)
{
    cr_buf_addf(out, ",\"%s\":", name);
    if (text)
        cri_add_text(out, text, strlen(text));
    else
        cr_buf_adds(out, "null");
}

static void add_model_identity(const cr_serve_model *m, cr_buf *out)
{
    cr_buf_adds(out, "\"object\":\"identity\"");
    add_member(out, "weights_sha256", m->weights_sha256);
    add_member(out, "weight_version", m->weight_version);
    add_member(out, "tokenizer_sha256", m->tokenizer_sha256);
    add_member(out, "dtype", m->dtype);
}

void cri_add_model(const cr_serve_request *r, cr_buf *out)
{
    const cr_serve_model *m = r->model;

    cr_buf_adds(out, "\"model\":");
    cri_add_text(out, m->name, strlen(m->name));
    cr_buf_addf(out, ",\"system_fingerprint\":\"croll-%.12s\"",
                m->weights_sha256 ? m->weights_sha256 : "");
}

void cri_add_identity(const cr_serve_request *r, cr_buf *out)
{
    cri_add_model(r, out);
    cr_buf_adds(out, ",\"croll\":{");
    add_model_identity(r->model, out);
    cr_buf_addf(out, ",\"seed\":%lld}", (long long)r->sampling.seed);
}

/* ---- numbers of prompts ---- */

static cr_status add_entry(const cr_serve_request *r, int32_t id, float log_prob, int32_t rank,
                           cr_buf *out, cr_err *err)
{
    cr_buf_addc(out, '"');
    cr_json_add_int(out, id);
    cr_buf_adds(out, "\":{\"logprob\":");
    CR_TRY(cri_add_log_prob(out, log_prob, err));
    cr_buf_adds(out, ",\"rank\":");
    cr_json_add_int(out, rank);
    cr_buf_adds(out, ",\"decoded_token\":");
    cri_add_token(r, id, out);
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* The actual token first, then the most likely ones without it. Equal log-probs have one rank. */
static cr_status add_prompt_place(const cr_serve_request *r, const cri_place *place, size_t num_top,
                                  cr_buf *out, cr_err *err)
{
    const cr_serve_scores *s = place->scores;
    const int32_t *ids = s->top_ids ? s->top_ids + place->at * s->num_top : NULL;
    const float *log_probs = s->top_log_probs ? s->top_log_probs + place->at * s->num_top : NULL;
    int32_t rank = 1;

    cr_buf_addc(out, '{');
    CR_TRY(add_entry(r, place->id, s->log_probs[place->at], s->ranks[place->at], out, err));
    for (size_t k = 0; k < num_top; k++) {
        if (k && log_probs[k] != log_probs[k - 1]) rank = (int32_t)k + 1;
        if (ids[k] == place->id) continue;
        cr_buf_addc(out, ',');
        CR_TRY(add_entry(r, ids[k], log_probs[k], rank, out, err));
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

static cr_status add_prompt_logprobs(const cr_serve_result *result, size_t prompt, cr_buf *out,
                                     cr_err *err)
{
    const cr_serve_request *r = result->request;
    const cr_serve_scores *s = &result->prompt_scores[prompt];
    const int32_t *ids = r->prompts[prompt].ids + r->wanted.prompt_first;
    size_t num_top = (size_t)r->wanted.prompt_logprobs;

    if (num_top > s->num_top) num_top = s->num_top;
    cr_buf_adds(out, r->wanted.prompt_first > r->wanted.prompt_start ? "[null" : "[");
    for (size_t i = 0; i < s->num; i++) {
        cri_place place = {.id = ids[i], .scores = s, .at = i};
        if (out->data[out->num_bytes - 1] != '[') cr_buf_addc(out, ',');
        CR_TRY(add_prompt_place(r, &place, num_top, out, err));
    }
    cr_buf_addc(out, ']');
    return CR_OK;
}

/* ---- arrays, as lists or as base64 ---- */

static cr_status check_numbers(const float *x, size_t num, cr_err *err)
{
    for (size_t i = 0; i < num; i++)
        if (isnan(x[i]) || x[i] == INFINITY)
            return cr_fail(err, CR_ENUMERIC, "number %zu of %zu of an answer is %g", i, num,
                           (double)x[i]);
    return CR_OK;
}

/* ,"name":[..]; num 0: nothing. */
static cr_status add_floats(const cr_serve_request *r, const char *name, const float *x, size_t num,
                            cr_buf *out, cr_err *err)
{
    if (!x) return CR_OK;
    cr_buf_addf(out, ",\"%s\":", name);
    if (r->wanted.is_base64) {
        CR_TRY(check_numbers(x, num, err));
        cr_json_add_base64(out, x, num * sizeof *x);
        return CR_OK;
    }
    cr_buf_addc(out, '[');
    for (size_t i = 0; i < num; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(cri_add_log_prob(out, x[i], err));
    }
    cr_buf_addc(out, ']');
    return CR_OK;
}

static void add_ints(const char *name, const int32_t *x, size_t num, cr_buf *out)
{
    if (!x) return;
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_base64(out, x, num * sizeof *x);
}

cr_status cri_add_croll_scores(const cr_serve_result *result, size_t prompt, cr_buf *out,
                               cr_err *err)
{
    const cr_serve_request *r = result->request;
    const cr_serve_wanted *w = &r->wanted;
    const cr_serve_scores *s = result->prompt_scores ? &result->prompt_scores[prompt] : NULL;
    size_t top = s ? s->num * s->num_top : 0;

    if (!s || !(w->is_base64 || w->entropy || w->candidates.num_each)) return CR_OK;
    cr_buf_addf(out, ",\"croll_scores\":{\"start\":%lld,\"num\":%zu", (long long)w->prompt_first,
                s->num);
    if (w->is_base64) {
        CR_TRY(add_floats(r, "log_probs", s->log_probs, s->num, out, err));
        add_ints("ranks", s->ranks, s->num, out);
        add_ints("top_ids", top ? s->top_ids : NULL, top, out);
        CR_TRY(add_floats(r, "top_log_probs", top ? s->top_log_probs : NULL, top, out, err));
    }
    CR_TRY(add_floats(r, "candidates", s->candidates, s->num * s->num_candidates, out, err));
    CR_TRY(add_floats(r, "entropy", s->entropy, s->num, out, err));
    cr_buf_addc(out, '}');
    return CR_OK;
}

cr_status cri_add_prompt_scores(const cr_serve_result *result, size_t prompt, cr_buf *out,
                                cr_err *err)
{
    const cr_serve_wanted *w = &result->request->wanted;

    cr_buf_adds(out, "\"prompt_logprobs\":");
    if (w->prompt_logprobs < 0 || w->is_base64 || !result->prompt_scores)
        cr_buf_adds(out, "null");
    else
        CR_TRY(add_prompt_logprobs(result, prompt, out, err));
    return cri_add_croll_scores(result, prompt, out, err);
}

/* ---- the whole ---- */

cr_status cr_serve_answer(const cr_serve_result *result, cr_buf *out, cr_err *err)
{
    switch (result->request->route) {
    case CR_SERVE_COMPLETIONS:
        return cri_answer_completions(result, out, err);
    case CR_SERVE_CHAT:
        return cri_answer_chat(result, out, err);
    case CR_SERVE_GENERATE:
        return cri_answer_generate(result, out, err);
    case CR_SERVE_TOKENS_IN:
        return cri_answer_ids(result, out, err);
    case CR_SERVE_TOKENIZE:
        cri_answer_tokenize(result->request, out);
        return CR_OK;
    case CR_SERVE_DETOKENIZE:
        cri_answer_detokenize(result->request, out);
        return CR_OK;
    case CR_SERVE_UPDATE:
    case CR_SERVE_NUM_ROUTES:
        break;
    }
    return cr_fail(err, CR_EARG, "an answer of no route");
}

void cr_serve_error_body(const cr_serve_error *e, cr_buf *out)
{
    cr_http_error_body(e->type, e->code, e->param[0] ? e->param : NULL, e->message, out);
}

void cr_serve_model_body(const cr_serve_model *m, cr_buf *out)
{
    cr_buf_adds(out, "{\"id\":");
    cri_add_text(out, m->name, strlen(m->name));
    cr_buf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"croll\"",
                (long long)m->created);
    add_member(out, "root", m->root);
    if (m->parent)
        add_member(out, "parent", m->parent);
    else
        cr_buf_adds(out, ",\"parent\":null");
    cr_buf_addf(out, ",\"max_model_len\":%lld,\"permission\":[],\"croll\":{",
                (long long)m->max_model_len);
    add_model_identity(m, out);
    if (m->self_check) add_member(out, "self_check", m->self_check);
    cr_buf_addf(out, ",\"vocab_size\":%lld}}", (long long)m->vocab_size);
}

void cr_serve_models_body(const cr_serve_service *service, cr_buf *out)
{
    cr_buf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < service->num_models; i++) {
        if (i) cr_buf_addc(out, ',');
        cr_serve_model_body(&service->models[i], out);
    }
    cr_buf_adds(out, "]}");
}

static void add_version(const cr_serve_model *m, cr_buf *out)
{
    cr_buf_adds(out, "\"weight_version\":");
    cri_add_text(out, m->weight_version, strlen(m->weight_version));
    add_member(out, "weights_sha256", m->weights_sha256);
}

void cr_serve_update_body(const cr_serve_model *m, cr_buf *out)
{
    cr_buf_adds(out, "{\"success\":true,\"message\":\"the weights were replaced\","
                     "\"num_paused_requests\":0,\"model\":");
    cri_add_text(out, m->name, strlen(m->name));
    cr_buf_addc(out, ',');
    add_version(m, out);
    cr_buf_addc(out, '}');
}

void cr_serve_versions_body(const cr_serve_service *service, cr_buf *out)
{
    cr_buf_addc(out, '{');
    add_version(&service->models[0], out);
    cr_buf_adds(out, ",\"models\":{");
    for (size_t i = 0; i < service->num_models; i++) {
        const cr_serve_model *m = &service->models[i];
        if (i) cr_buf_addc(out, ',');
        cri_add_text(out, m->name, strlen(m->name));
        cr_buf_adds(out, ":{");
        add_version(m, out);
        cr_buf_addc(out, '}');
    }
    cr_buf_adds(out, "}}");
}

/* Added tokens are objects in some files: clients want their text. */
cr_status cr_serve_tokenizer_info(const cr_serve_model *m, cr_buf *out, cr_err *err)
{
    json_t *config = NULL, *value, *content;
    const char *key;
    void *next;
    cr_status status = CR_OK;

    if (m->tokenizer_config)
        status = cr_json_parse(m->tokenizer_config, strlen(m->tokenizer_config),
                               "tokenizer_config.json", &config, err);
    if (!json_is_object(config)) {
        json_decref(config);
        config = json_object();
    }
    json_object_foreach_safe(config, next, key, value)
    {
        content = json_is_object(value) ? json_object_get(value, "content") : NULL;
        if (json_is_string(content)) json_object_set(config, key, content);
    }
    if (!json_object_get(config, "tokenizer_class"))
        json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    if (!json_object_get(config, "chat_template"))
        json_object_set_new(config, "chat_template", json_null());
    if (status == CR_OK) status = cr_json_add_value(out, config, err);
    json_decref(config);
    return status;
}
