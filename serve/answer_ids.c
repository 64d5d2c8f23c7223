/* answer_ids.c -- /generate, /inference/v1/generate, /tokenize and /detokenize (see answer_impl.h). */
#include "serve/answer_impl.h"

#include <string.h>

/* ---- /generate ---- */

/* [log-prob, id, string or null]; at < 0: null as log-prob. */
static cr_status add_triple(const cr_serve_request *r, int32_t id, const float *log_prob,
                            cr_buf *out, cr_err *err)
{
    cr_buf_addc(out, '[');
    if (log_prob)
        CR_TRY(cri_add_log_prob(out, *log_prob, err));
    else
        cr_buf_adds(out, "null");
    cr_buf_addc(out, ',');
    cr_json_add_int(out, id);
    cr_buf_addc(out, ',');
    if (r->wanted.token_strings)
        cri_add_token(r, id, out);
    else
        cr_buf_adds(out, "null");
    cr_buf_addc(out, ']');
    return CR_OK;
}

/* For each place a list of num triples, after a null for the first one. */
static cr_status add_tops(const cr_serve_request *r, const int32_t *ids, bool is_same_ids,
                          const float *log_probs, size_t num_places, size_t num, bool has_first,
                          cr_buf *out, cr_err *err)
{
    cr_buf_adds(out, has_first ? "[null" : "[");
    for (size_t i = 0; i < num_places; i++) {
        if (i || has_first) cr_buf_addc(out, ',');
        cr_buf_addc(out, '[');
        for (size_t k = 0; k < num && ids[is_same_ids ? k : i * num + k] >= 0; k++) {
            if (k) cr_buf_addc(out, ',');
            CR_TRY(add_triple(r, ids[is_same_ids ? k : i * num + k], &log_probs[i * num + k], out,
                              err));
        }
        cr_buf_addc(out, ']');
    }
    cr_buf_addc(out, ']');
    return CR_OK;
}

static cr_status add_input(const cr_serve_result *result, size_t prompt, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;
    const cr_serve_wanted *w = &r->wanted;
    const cr_serve_scores *s = &result->prompt_scores[prompt];
    const int32_t *ids = r->prompts[prompt].ids + w->prompt_start;

    cr_buf_adds(out, ",\"input_token_logprobs\":[");
    CR_TRY(add_triple(r, ids[0], NULL, out, err));
    for (size_t i = 0; i < s->num; i++) {
        cr_buf_addc(out, ',');
        CR_TRY(add_triple(r, ids[i + 1], &s->log_probs[i], out, err));
    }
    cr_buf_addc(out, ']');
    if (w->prompt_logprobs > 0) {
        cr_buf_adds(out, ",\"input_top_logprobs\":");
        CR_TRY(
            add_tops(r, s->top_ids, false, s->top_log_probs, s->num, s->num_top, true, out, err));
    }
    if (s->num_candidates) {
        cr_buf_adds(out, ",\"input_token_ids_logprobs\":");
        CR_TRY(add_tops(r, w->candidates.ids.id, w->candidates.num_places == 1, s->candidates,
                        s->num, s->num_candidates, true, out, err));
    }
    return CR_OK;
}

static cr_status add_output(const cr_serve_request *r, const cr_serve_sample *sample, cr_buf *out,
                            cr_err *err)
{
    const cr_serve_scores *s = &sample->scores;

    cr_buf_adds(out, ",\"output_token_logprobs\":[");
    for (size_t i = 0; i < sample->num_ids; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(add_triple(r, sample->ids[i], &s->log_probs[i], out, err));
    }
    cr_buf_addc(out, ']');
    if (r->wanted.logprobs < 1) return CR_OK;
    cr_buf_adds(out, ",\"output_top_logprobs\":");
    return add_tops(r, s->top_ids, false, s->top_log_probs, sample->num_ids, s->num_top, false, out,
                    err);
}

static void add_generate_finish(const cr_serve_sample *s, cr_buf *out)
{
    cr_buf_adds(out, "\"finish_reason\":");
    if (!s->finish) {
        cr_buf_adds(out, "null");
    } else if (strcmp(s->finish, "stop") != 0) {
        cr_buf_addf(out, "{\"type\":\"length\",\"length\":%zu}", s->num_ids);
    } else {
        cr_buf_adds(out, "{\"type\":\"stop\",\"matched\":");
        if (s->stop_text)
            cri_add_text(out, s->stop_text, strlen(s->stop_text));
        else
            cr_buf_addf(out, "%d",
                        s->stop_id >= 0 ? s->stop_id
                        : s->num_ids    ? s->ids[s->num_ids - 1]
                                        : -1);
        cr_buf_addc(out, '}');
    }
}

cr_status cri_add_generated(const cr_serve_result *result, size_t prompt, const cr_serve_sample *s,
                            cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;
    const char *version = r->model->weight_version ? r->model->weight_version : "default";

    cr_buf_adds(out, "{\"text\":");
    cri_add_text(out, s->text, s->text_bytes);
    cr_buf_adds(out, ",\"output_ids\":");
    cr_json_add_ids(out, s->ids, s->num_ids);
    cr_buf_adds(out, ",\"meta_info\":{\"id\":");
    cri_add_text(out, result->id, strlen(result->id));
    cr_buf_addc(out, ',');
    add_generate_finish(s, out);
    cr_buf_addf(out, ",\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"cached_tokens\":%lld",
                r->prompts[prompt].num_ids, s->num_ids,
                (long long)(result->cached ? result->cached[prompt] : 0));
    cr_buf_adds(out, ",\"weight_version\":");
    cri_add_text(out, version, strlen(version));
    if (r->wanted.prompt_logprobs >= 0 && !r->wanted.is_base64)
        CR_TRY(add_input(result, prompt, out, err));
    if (r->wanted.logprobs >= 0) CR_TRY(add_output(r, s, out, err));
    CR_TRY(cri_add_croll_scores(result, prompt, out, err));
    cr_buf_addf(out, ",\"e2e_latency\":%.6g,", result->latency_s);
    cri_add_identity(r, out);
    cr_buf_adds(out, "}}");
    return CR_OK;
}

cr_status cri_answer_generate(const cr_serve_result *result, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;
    size_t num = r->num_prompts * (size_t)r->sampling.n;
    bool is_list = r->wanted.is_list || num > 1;

    if (is_list) cr_buf_addc(out, '[');
    for (size_t i = 0; i < num; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(cri_add_generated(result, i / (size_t)r->sampling.n, &result->samples[i], out, err));
    }
    if (is_list) cr_buf_addc(out, ']');
    return CR_OK;
}

/* ---- /inference/v1/generate ---- */

static cr_status add_ids_token(const cr_serve_request *r, int32_t id, float log_prob, int64_t rank,
                               cr_buf *out, cr_err *err)
{
    (void)r;
    cr_buf_addf(out, "{\"token\":\"token_id:%d\",\"token_id\":%d,\"logprob\":", id, id);
    CR_TRY(cri_add_log_prob(out, log_prob, err));
    cr_buf_addf(out, ",\"rank\":%lld", (long long)rank);
    return CR_OK;
}

cr_status cri_add_ids_logprobs(const cr_serve_request *r, const cr_serve_sample *sample,
                               cr_buf *out, cr_err *err)
{
    return cri_add_content(r, sample, add_ids_token, "}", out, err);
}

cr_status cri_answer_ids(const cr_serve_result *result, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;
    size_t num_ids = 0;

    cr_buf_adds(out, "{\"request_id\":");
    cri_add_text(out, result->id, strlen(result->id));
    cr_buf_adds(out, ",\"choices\":[");
    for (size_t i = 0; i < (size_t)r->sampling.n; i++) {
        const cr_serve_sample *s = &result->samples[i];
        cr_buf_addf(out, "%s{\"index\":%zu,\"token_ids\":", i ? "," : "", i);
        cr_json_add_ids(out, s->ids, s->num_ids);
        cr_buf_addc(out, ',');
        cri_add_finish(s->finish, out);
        cr_buf_addc(out, ',');
        cri_add_stop_reason(s, out);
        cr_buf_addc(out, ',');
        CR_TRY(cri_add_ids_logprobs(r, s, out, err));
        cr_buf_adds(out, ",\"weight_versions\":null}");
        num_ids += s->num_ids;
    }
    cr_buf_adds(out, "],");
    cri_add_usage(result, num_ids, out);
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_prompt_scores(result, 0, out, err));
    cr_buf_adds(out, ",\"prompt_token_ids\":");
    cr_json_add_ids(out, r->prompts[0].ids, r->prompts[0].num_ids);
    cr_buf_addc(out, ',');
    cri_add_identity(r, out);
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* ---- tokens ---- */

void cri_answer_tokenize(const cr_serve_request *r, cr_buf *out)
{
    const cr_serve_prompt *p = &r->prompts[0];

    cr_buf_addf(out, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":", p->num_ids,
                (long long)r->model->max_model_len);
    cr_json_add_ids(out, p->ids, p->num_ids);
    cr_buf_adds(out, ",\"token_strs\":");
    cr_buf_adds(out, r->wanted.token_strings ? "[" : "null");
    for (size_t i = 0; r->wanted.token_strings && i < p->num_ids; i++) {
        if (i) cr_buf_addc(out, ',');
        cri_add_token(r, p->ids[i], out);
    }
    cr_buf_adds(out, r->wanted.token_strings ? "]}" : "}");
}

void cri_answer_detokenize(const cr_serve_request *r, cr_buf *out)
{
    cr_buf text = {0};

    cr_tokenizer_decode(r->model->tokenizer, r->prompts[0].ids, r->prompts[0].num_ids,
                        /*skip_special=*/false, &text);
    cr_buf_adds(out, "{\"prompt\":");
    cri_add_text(out, text.data, text.num_bytes);
    cr_buf_addc(out, '}');
    cr_buf_free(&text);
}
