/* fuzz_serve.c -- arbitrary bytes as the body of every route of a service: refused with a status, a type and a
 * code, or a request whose ids are in the vocabulary and fit the context, and that is answered in JSON. */
#include "base/json.h"
#include "serve/answer.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"
#include "tests/serve_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const cr_serve_error *e)
{
    cr_buf body = {0};
    json_t *value;
    cr_err err = {0};

    CR_CHECK((e->status == 400 || e->status == 404 || e->status == 409) && e->type && e->code,
             "%d %s", e->status, e->message);
    cr_serve_error_body(e, &body);
    CR_CHECK(body.num_bytes < 4096 &&
                 cr_json_parse(body.data, body.num_bytes, "error", &value, &err) == CR_OK,
             "%s", err.msg);
    json_decref(value);
    cr_buf_free(&body);
}

/* With no token sampled and no place scored. */
static void check_answer(const cr_serve_request *r)
{
    static const cr_serve_sample none = {.text = "", .finish = "length", .stop_id = -1};
    size_t num = r->num_prompts * (size_t)r->sampling.n;
    cr_serve_sample *samples = CR_NEW_ARRAY(cr_serve_sample, num);
    cr_serve_scores *scores = CR_NEW_ARRAY(cr_serve_scores, r->num_prompts);
    cr_serve_result result = {.request = r, .id = "1", .prompt_scores = scores, .samples = samples};
    cr_buf body = {0};
    json_t *value;
    cr_err err = {0};

    if (!r->wanted.echo) {
        for (size_t i = 0; i < num; i++)
            samples[i] = none;
        CR_CHECK(cr_serve_answer(&result, &body, &err) == CR_OK &&
                     cr_json_parse(body.data, body.num_bytes, "answer", &value, &err) == CR_OK,
                 "%s", err.msg);
        json_decref(value);
    }
    cr_buf_free(&body);
    cr_free(samples);
    cr_free(scores);
}

static void check_request(const cr_serve_request *r)
{
    const cr_serve_model *m = r->model;
    bool is_text = r->route == CR_SERVE_TOKENIZE || r->route == CR_SERVE_DETOKENIZE;

    if (r->route == CR_SERVE_UPDATE) {
        CR_CHECK(m && r->update.path && *r->update.path, "no folder");
        return;
    }
    CR_CHECK(m && r->num_prompts > 0, "%zu prompts", r->num_prompts);
    for (size_t i = 0; i < r->num_prompts && !is_text; i++) {
        const cr_serve_prompt *p = &r->prompts[i];
        CR_CHECK(p->num_ids > 0 && (int64_t)p->num_ids + p->max_tokens <= m->max_model_len,
                 "%zu ids, %lld tokens", p->num_ids, (long long)p->max_tokens);
        for (size_t t = 0; t < p->num_ids; t++)
            CR_CHECK(p->ids[t] >= 0 && p->ids[t] < m->vocab_size, "id %d", p->ids[t]);
    }
    CR_CHECK(r->sampling.max_tokens >= 0 && r->sampling.n >= 1 &&
                 r->wanted.prompt_top <= serve_service.max_logprobs,
             "%lld tokens", (long long)r->sampling.max_tokens);
    check_answer(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!serve_models[0].tokenizer) {
        fuzz_begin("chat");
        serve_model_open(fuzz_folder);
    }
    for (int route = 0; route < CR_SERVE_NUM_ROUTES; route++) {
        cr_serve_request request;
        cr_serve_error error;
        if (cr_serve_request_parse((cr_serve_route)route, (const char *)data, size, &serve_service,
                                   &request, &error) == CR_OK)
            check_request(&request);
        else
            check_error(&error);
        cr_serve_request_free(&request);
    }
    return 0;
}
