/* stream.c -- answers as events, a part of a sample at a time (see answer.h).
 *
 * The parts of a sample put together are its answer without streaming. /generate sends all of a sample
 * so far in each event, so its parts are kept.
 */
#include "serve/answer_impl.h"

#include <string.h>

static const char DONE[] = "data: [DONE]\n\n";

static size_t num_samples(const cr_serve_request *r)
{
    return r->num_prompts * (size_t)r->sampling.n;
}

void cr_serve_stream_open(cr_serve_stream *s, const cr_serve_result *result)
{
    *s = (cr_serve_stream){.result = *result};
    s->samples = CR_NEW_ARRAY(cr_serve_stream_sample, num_samples(result->request));
}

void cr_serve_stream_close(cr_serve_stream *s)
{
    if (!s->samples) return;
    for (size_t i = 0; i < num_samples(s->result.request); i++) {
        cr_serve_stream_sample *x = &s->samples[i];
        cr_buf *mine[] = {&x->ids,   &x->text,    &x->log_probs,
                          &x->ranks, &x->top_ids, &x->top_log_probs};
        for (size_t k = 0; k < CR_COUNT(mine); k++)
            cr_buf_free(mine[k]);
    }
    cr_free(s->samples);
    *s = (cr_serve_stream){0};
}

/* ---- one event ---- */

static void add_head(cr_serve_stream *s, const char *prefix, const char *object, cr_buf *out)
{
    cr_buf_addf(out, "data: {\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,", prefix,
                s->result.id, object, (long long)s->result.created);
    (s->has_identity ? cri_add_model : cri_add_identity)(s->result.request, out);
    s->has_identity = true;
    cr_buf_adds(out, ",\"choices\":[");
}

static size_t num_sent(const cr_serve_stream *s)
{
    size_t num = 0;

    for (size_t i = 0; i < num_samples(s->result.request); i++)
        num += s->samples[i].num_ids;
    return num;
}

static void add_tail(const cr_serve_stream *s, cr_buf *out)
{
    const cr_serve_wanted *w = &s->result.request->wanted;

    cr_buf_addc(out, ']');
    if (w->has_usage_in_chunks) {
        cr_buf_addc(out, ',');
        cri_add_usage(&s->result, num_sent(s), out);
    } else if (w->has_usage) {
        cr_buf_adds(out, ",\"usage\":null");
    }
    cr_buf_adds(out, "}\n\n");
}

static void add_ids(const char *name, const int32_t *ids, size_t num, cr_buf *out)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_ids(out, ids, num);
}

static cr_status add_completion(cr_serve_stream *s, size_t index, const cr_serve_sample *part,
                                cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = s->result.request;
    cr_serve_stream_sample *x = &s->samples[index];
    size_t prompt = index / (size_t)r->sampling.n;
    bool has_prompt = r->wanted.echo && !x->has_begun;
    cr_buf text = {0};

    if (has_prompt) cri_add_prompt_text(&s->result, prompt, &text);
    cr_buf_add(&text, part->text ? part->text : "", part->text_bytes);
    add_head(s, "cmpl-", "text_completion", out);
    cr_buf_addf(out, "{\"index\":%zu,\"text\":", index);
    cri_add_text(out, text.data, text.num_bytes);
    cr_buf_free(&text);
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_completion_logprobs(&s->result, prompt, part, has_prompt, &x->num_code_points,
                                       out, err));
    cr_buf_addc(out, ',');
    cri_add_finish(part->finish, out);
    cr_buf_addc(out, ',');
    cri_add_stop_reason(part, out);
    if (r->wanted.token_ids) add_ids("token_ids", part->ids, part->num_ids, out);
    if (r->wanted.token_ids && !x->has_begun)
        add_ids("prompt_token_ids", r->prompts[prompt].ids, r->prompts[prompt].num_ids, out);
    cr_buf_addc(out, '}');
    x->num_ids += part->num_ids;
    add_tail(s, out);
    return CR_OK;
}

static void add_delta(size_t index, const char *role, const cr_serve_sample *part, cr_buf *out)
{
    cr_buf_addf(out, "{\"index\":%zu,\"delta\":{", index);
    if (role) cr_buf_addf(out, "\"role\":\"%s\",", role);
    if (part) {
        cr_buf_adds(out, "\"content\":");
        cri_add_text(out, part->text, part->text_bytes);
    }
    cr_buf_adds(out, "},");
}

/* The role, the text, and the finish reason are events of their own, as in OpenAI's streams. */
static cr_status add_chat(cr_serve_stream *s, size_t index, const cr_serve_sample *part,
                          cr_buf *out, cr_err *err)
{
    static const cr_serve_sample nothing = {.stop_id = -1};
    static const char head[] = "chat.completion.chunk", id[] = "chatcmpl-";
    const cr_serve_request *r = s->result.request;
    cr_serve_stream_sample *x = &s->samples[index];
    bool has_numbers = part->num_ids && (r->wanted.logprobs >= 0 || r->wanted.token_ids);

    if (!x->has_begun) {
        add_head(s, id, head, out);
        add_delta(index, "assistant", &nothing, out);
        cr_buf_adds(out, "\"logprobs\":null,\"finish_reason\":null");
        if (r->wanted.token_ids)
            add_ids("prompt_token_ids", r->prompts[0].ids, r->prompts[0].num_ids, out);
        cr_buf_addc(out, '}');
        add_tail(s, out);
    }
    x->num_ids += part->num_ids;
    if (part->text_bytes || has_numbers) {
        add_head(s, id, head, out);
        add_delta(index, NULL, part, out);
        CR_TRY(cri_add_chat_logprobs(r, part, out, err));
        cr_buf_adds(out, ",\"finish_reason\":null");
        if (r->wanted.token_ids) add_ids("token_ids", part->ids, part->num_ids, out);
        cr_buf_addc(out, '}');
        add_tail(s, out);
    }
    if (!part->finish) return CR_OK;
    add_head(s, id, head, out);
    add_delta(index, NULL, NULL, out);
    cr_buf_adds(out, "\"logprobs\":null,");
    cri_add_finish(part->finish, out);
    cr_buf_addc(out, ',');
    cri_add_stop_reason(part, out);
    cr_buf_addc(out, '}');
    add_tail(s, out);
    return CR_OK;
}

static cr_status add_ids_event(cr_serve_stream *s, size_t index, const cr_serve_sample *part,
                               cr_buf *out, cr_err *err)
{
    cr_buf_adds(out, "data: {\"request_id\":");
    cri_add_text(out, s->result.id, strlen(s->result.id));
    cr_buf_addf(out, ",\"choices\":[{\"index\":%zu", index);
    add_ids("token_ids", part->ids, part->num_ids, out);
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_ids_logprobs(s->result.request, part, out, err));
    cr_buf_addc(out, ',');
    cri_add_finish(part->finish, out);
    cr_buf_adds(out, "}]}\n\n");
    s->samples[index].num_ids += part->num_ids;
    return CR_OK;
}

/* ---- /generate: all so far ---- */

static void keep(cr_buf *buf, const void *data, size_t num_bytes)
{
    if (data) cr_buf_add(buf, data, num_bytes);
}

static cr_status add_generate_event(cr_serve_stream *s, size_t index, const cr_serve_sample *part,
                                    cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = s->result.request;
    const cr_serve_scores *from = &part->scores;
    cr_serve_stream_sample *x = &s->samples[index];
    size_t num = part->num_ids, top = num * from->num_top;
    cr_serve_sample all = *part;

    x->num_ids += num;
    keep(&x->ids, part->ids, num * sizeof *part->ids);
    keep(&x->text, part->text, part->text_bytes);
    keep(&x->log_probs, from->log_probs, num * sizeof(float));
    keep(&x->ranks, from->ranks, num * sizeof(int32_t));
    keep(&x->top_ids, from->top_ids, top * sizeof(int32_t));
    keep(&x->top_log_probs, from->top_log_probs, top * sizeof(float));
    all.ids = (const int32_t *)(void *)x->ids.data;
    all.num_ids = x->num_ids;
    all.text = x->text.data;
    all.text_bytes = x->text.num_bytes;
    all.scores = (cr_serve_scores){.num = x->num_ids,
                                   .log_probs = (const float *)(void *)x->log_probs.data,
                                   .ranks = (const int32_t *)(void *)x->ranks.data,
                                   .num_top = from->num_top,
                                   .top_ids = (const int32_t *)(void *)x->top_ids.data,
                                   .top_log_probs = (const float *)(void *)x->top_log_probs.data};
    cr_buf_adds(out, "data: ");
    CR_TRY(cri_add_generated(&s->result, index / (size_t)r->sampling.n, &all, out, err));
    if (num_samples(r) > 1) { /* which one: before the last brace */
        out->num_bytes--;
        cr_buf_addf(out, ",\"index\":%zu}", index);
    }
    cr_buf_adds(out, "\n\n");
    return CR_OK;
}

/* ---- the whole ---- */

cr_status cr_serve_stream_part(cr_serve_stream *s, size_t index, const cr_serve_sample *part,
                               cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = s->result.request;
    cr_serve_stream_sample *x = &s->samples[index];
    bool has_numbers = r->wanted.logprobs >= 0 || r->wanted.token_ids;
    bool begins = !x->has_begun && (r->wanted.echo || r->route == CR_SERVE_CHAT);
    size_t before = out->num_bytes;
    cr_status status;

    if (!begins && !part->finish && part->text_bytes == 0 &&
        (r->route != CR_SERVE_TOKENS_IN && !(has_numbers && part->num_ids))) {
        x->num_ids += part->num_ids;
        keep(&x->ids, part->ids, part->num_ids * sizeof *part->ids);
        return CR_OK;
    }
    if (r->route == CR_SERVE_COMPLETIONS)
        status = add_completion(s, index, part, out, err);
    else if (r->route == CR_SERVE_CHAT)
        status = add_chat(s, index, part, out, err);
    else if (r->route == CR_SERVE_GENERATE)
        status = add_generate_event(s, index, part, out, err);
    else
        status = add_ids_event(s, index, part, out, err);
    x->has_begun = true;
    if (status != CR_OK) out->num_bytes = before;
    return status;
}

void cr_serve_stream_end(cr_serve_stream *s, cr_buf *out)
{
    const cr_serve_request *r = s->result.request;
    bool is_chat = r->route == CR_SERVE_CHAT;

    if (r->wanted.has_usage && (is_chat || r->route == CR_SERVE_COMPLETIONS)) {
        add_head(s, is_chat ? "chatcmpl-" : "cmpl-",
                 is_chat ? "chat.completion.chunk" : "text_completion", out);
        cr_buf_adds(out, "],");
        cri_add_usage(&s->result, num_sent(s), out);
        cr_buf_adds(out, "}\n\n");
    }
    cr_buf_adds(out, DONE);
}

void cr_serve_stream_fail(const cr_serve_error *error, cr_buf *out)
{
    cr_buf_adds(out, "data: ");
    cr_serve_error_body(error, out);
    cr_buf_adds(out, "\n\n");
    cr_buf_adds(out, DONE);
}

size_t cr_serve_sendable(const char *text, size_t num_bytes, char *const *stop, size_t num_stop,
                         bool may_stop)
{
    size_t hold = 0;

    for (size_t i = 0; i < num_stop && may_stop; i++) {
        const char *at = num_bytes ? memmem(text, num_bytes, stop[i], strlen(stop[i])) : NULL;
        if (at) num_bytes = (size_t)(at - text);
    }
    for (size_t i = 0; i < num_stop; i++) {
        size_t len = strlen(stop[i]), max = len - 1 < num_bytes ? len - 1 : num_bytes;
        for (size_t n = max; n > hold; n--)
            if (memcmp(text + num_bytes - n, stop[i], n) == 0) {
                hold = n;
                break;
            }
    }
    return num_bytes - hold;
}
