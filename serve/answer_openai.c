/* answer_openai.c -- /v1/completions and /v1/chat/completions (see answer_impl.h). */
#include "serve/answer_impl.h"

#include <string.h>

/* ---- one place of logprobs of completions ---- */

/* The strings of a place so far, by their hashes. */
typedef struct names {
    uint64_t *hash; /* [num] */
    size_t num, capacity;
    cr_buf actual, scratch; /* strings that the model does not have */
} names;

/* Of the next id; token_id:N where an earlier one has the same. */
static cr_serve_text name_of(names *n, const cr_serve_request *r, int32_t id, cr_buf *scratch)
{
    cr_serve_text text = cr_serve_text_of(r->model, id, r->wanted.tokens_as_ids, scratch);

    for (size_t i = 0; i < n->num; i++)
        if (n->hash[i] == text.hash) {
            text = cr_serve_text_of(r->model, id, /*as_id=*/true, scratch);
            break;
        }
    n->hash = cr_grow(n->hash, n->num, &n->capacity, sizeof *n->hash);
    n->hash[n->num++] = text.hash;
    return text;
}

static cr_status add_named(const cr_serve_text *name, float log_prob, cr_buf *out, cr_err *err)
{
    cr_buf_add(out, name->json, name->num_bytes);
    cr_buf_addc(out, ':');
    return cri_add_log_prob(out, log_prob, err);
}

/* {string: log-prob} of the most likely ids, and of the actual one, whose name comes first, if it is not among them. */
static cr_status add_top(const cr_serve_request *r, const cri_place *place, names *n, cr_buf *out,
                         cr_err *err)
{
    const cr_serve_scores *s = place->scores;
    size_t num_top = (size_t)r->wanted.logprobs, from = place->at * s->num_top, k = 0;
    bool has_actual = false;
    cr_serve_text actual, name;

    if (num_top > s->num_top) num_top = s->num_top;
    n->num = 0;
    actual = name_of(n, r, place->id, &n->actual);
    cr_buf_addc(out, '{');
    for (; k < num_top && s->top_ids[from + k] >= 0; k++) {
        bool is_actual = s->top_ids[from + k] == place->id;
        has_actual |= is_actual;
        if (k) cr_buf_addc(out, ',');
        name = is_actual ? actual : name_of(n, r, s->top_ids[from + k], &n->scratch);
        CR_TRY(add_named(&name, is_actual ? s->log_probs[place->at] : s->top_log_probs[from + k],
                         out, err));
    }
    if (k && !has_actual) cr_buf_addc(out, ',');
    if (!has_actual) CR_TRY(add_named(&actual, s->log_probs[place->at], out, err));
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* ---- logprobs of completions ---- */

typedef struct places {
    const cr_serve_result *result;
    size_t prompt, num_prompt; /* num_prompt: places of the prompt that are printed */
    const cr_serve_sample *sample;
    size_t num;
} places;

static cri_place place_at(const places *p, size_t t)
{
    const cr_serve_scores *prompt = p->result->prompt_scores;

    if (t < p->num_prompt)
        return (cri_place){.id = p->result->request->prompts[p->prompt].ids[t],
                           .scores = t && prompt ? &prompt[p->prompt] : NULL,
                           .at = t - 1};
    return (cri_place){.id = p->sample->ids[t - p->num_prompt],
                       .scores = &p->sample->scores,
                       .at = t - p->num_prompt};
}

static void add_strings(const places *p, int64_t *offset, cr_buf *out, cr_buf *offsets)
{
    const cr_serve_request *r = p->result->request;
    cr_buf scratch = {0};

    for (size_t t = 0; t < p->num; t++) {
        cr_serve_text text =
            cr_serve_text_of(r->model, place_at(p, t).id, r->wanted.tokens_as_ids, &scratch);
        if (t) cr_buf_addc(out, ',');
        cr_buf_add(out, text.json, text.num_bytes);
        if (t) cr_buf_addc(offsets, ',');
        cr_json_add_int(offsets, *offset);
        *offset += text.num_code_points;
    }
    cr_buf_free(&scratch);
}

static cr_status add_tops(const places *p, cr_buf *out, cr_err *err)
{
    names n = {0};
    cr_status status = CR_OK;

    for (size_t t = 0; status == CR_OK && t < p->num; t++) {
        cri_place place = place_at(p, t);
        if (t) cr_buf_addc(out, ',');
        if (place.scores)
            status = add_top(p->result->request, &place, &n, out, err);
        else
            cr_buf_adds(out, "null");
    }
    cr_free(n.hash);
    cr_buf_free(&n.actual);
    cr_buf_free(&n.scratch);
    return status;
}

cr_status cri_add_completion_logprobs(const cr_serve_result *result, size_t prompt,
                                      const cr_serve_sample *sample, bool has_prompt,
                                      int64_t *offset, cr_buf *out, cr_err *err)
{
    size_t num_prompt = has_prompt ? result->request->prompts[prompt].num_ids : 0;
    places p = {result, prompt, num_prompt, sample, num_prompt + sample->num_ids};
    cr_buf offsets = {0};

    cr_buf_adds(out, "\"logprobs\":");
    if (result->request->wanted.logprobs < 0) {
        cr_buf_adds(out, "null");
        return CR_OK;
    }
    cr_buf_adds(out, "{\"tokens\":[");
    add_strings(&p, offset, out, &offsets);
    cr_buf_adds(out, "],\"text_offset\":[");
    cr_buf_add(out, offsets.data, offsets.num_bytes);
    cr_buf_adds(out, "],\"token_logprobs\":[");
    cr_buf_free(&offsets);
    for (size_t t = 0; t < p.num; t++) {
        cri_place place = place_at(&p, t);
        if (t) cr_buf_addc(out, ',');
        if (place.scores)
            CR_TRY(cri_add_log_prob(out, place.scores->log_probs[place.at], err));
        else
            cr_buf_adds(out, "null");
    }
    cr_buf_adds(out, "],\"top_logprobs\":[");
    CR_TRY(add_tops(&p, out, err));
    cr_buf_adds(out, "]}");
    return CR_OK;
}

/* ---- completions ---- */

static size_t sampled_tokens(const cr_serve_result *result)
{
    const cr_serve_request *r = result->request;
    size_t num = 0;

    for (size_t i = 0; i < r->num_prompts * (size_t)r->sampling.n; i++)
        num += result->samples[i].num_ids;
    return num;
}

static void add_ids_member(const char *name, const int32_t *ids, size_t num, cr_buf *out)
{
    cr_buf_addf(out, ",\"%s\":", name);
    cr_json_add_ids(out, ids, num);
}

static cr_status add_completion(const cr_serve_result *result, size_t index, cr_buf *out,
                                cr_err *err)
{
    const cr_serve_request *r = result->request;
    const cr_serve_sample *s = &result->samples[index];
    size_t prompt = index / (size_t)r->sampling.n;
    int64_t offset = 0;
    cr_buf text = {0};

    if (r->wanted.echo) cri_add_prompt_text(result, prompt, &text);
    cr_buf_add(&text, s->text ? s->text : "", s->text_bytes);
    cr_buf_addf(out, "{\"index\":%zu,\"text\":", index);
    cri_add_text(out, text.data, text.num_bytes);
    cr_buf_free(&text);
    cr_buf_addc(out, ',');
    cri_add_finish(s->finish, out);
    cr_buf_addc(out, ',');
    cri_add_stop_reason(s, out);
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_completion_logprobs(result, prompt, s, r->wanted.echo, &offset, out, err));
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_prompt_scores(result, prompt, out, err));
    if (r->wanted.token_ids) {
        add_ids_member("token_ids", s->ids, s->num_ids, out);
        add_ids_member("prompt_token_ids", r->prompts[prompt].ids, r->prompts[prompt].num_ids, out);
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

cr_status cri_answer_completions(const cr_serve_result *result, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;

    cr_buf_addf(out, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,",
                result->id, (long long)result->created);
    cri_add_identity(r, out);
    cr_buf_adds(out, ",\"choices\":[");
    for (size_t i = 0; i < r->num_prompts * (size_t)r->sampling.n; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(add_completion(result, i, out, err));
    }
    cr_buf_adds(out, "],");
    cri_add_usage(result, sampled_tokens(result), out);
    cr_buf_addc(out, '}');
    return CR_OK;
}

/* ---- chat ---- */

cr_status cri_add_content(const cr_serve_request *r, const cr_serve_sample *sample,
                          cri_add_one *add_one, const char *end, cr_buf *out, cr_err *err)
{
    const cr_serve_scores *s = &sample->scores;
    size_t num_top = r->wanted.logprobs > 0 ? (size_t)r->wanted.logprobs : 0;

    cr_buf_adds(out, "\"logprobs\":");
    if (r->wanted.logprobs < 0) {
        cr_buf_adds(out, "null");
        return CR_OK;
    }
    if (num_top > s->num_top) num_top = s->num_top;
    cr_buf_adds(out, "{\"content\":[");
    for (size_t t = 0; t < sample->num_ids; t++) {
        if (t) cr_buf_addc(out, ',');
        CR_TRY(add_one(r, sample->ids[t], s->log_probs[t], s->ranks ? s->ranks[t] : 0, out, err));
        cr_buf_adds(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < num_top && s->top_ids[t * s->num_top + k] >= 0; k++) {
            size_t at = t * s->num_top + k;
            bool is_actual = s->top_ids[at] == sample->ids[t];
            if (k) cr_buf_addc(out, ',');
            CR_TRY(add_one(r, s->top_ids[at], is_actual ? s->log_probs[t] : s->top_log_probs[at],
                           (int64_t)k + 1, out, err));
            cr_buf_addc(out, '}');
        }
        cr_buf_adds(out, "]}");
    }
    cr_buf_addc(out, ']');
    cr_buf_adds(out, end);
    return CR_OK;
}

static cr_status add_chat_token(const cr_serve_request *r, int32_t id, float log_prob, int64_t rank,
                                cr_buf *out, cr_err *err)
{
    cr_buf piece = {0};

    (void)rank;
    cr_buf_adds(out, "{\"token\":");
    cri_add_token(r, id, out);
    cr_buf_adds(out, ",\"logprob\":");
    CR_TRY(cri_add_log_prob(out, log_prob, err));
    cr_buf_adds(out, ",\"bytes\":[");
    if (r->model->tokenizer) cr_tokenizer_piece(r->model->tokenizer, id, &piece);
    for (size_t i = 0; i < piece.num_bytes; i++)
        cr_buf_addf(out, "%s%d", i ? "," : "", (unsigned char)piece.data[i]);
    cr_buf_free(&piece);
    cr_buf_addc(out, ']');
    return CR_OK;
}

cr_status cri_add_chat_logprobs(const cr_serve_request *r, const cr_serve_sample *sample,
                                cr_buf *out, cr_err *err)
{
    return cri_add_content(r, sample, add_chat_token, ",\"refusal\":null}", out, err);
}

static cr_status add_message(const cr_serve_result *result, size_t index, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;
    const cr_serve_sample *s = &result->samples[index];

    cr_buf_addf(out, "{\"index\":%zu,\"message\":{\"role\":\"assistant\",\"content\":", index);
    cri_add_text(out, s->text, s->text_bytes);
    cr_buf_adds(out, ",\"refusal\":null},");
    cri_add_finish(s->finish, out);
    cr_buf_addc(out, ',');
    cri_add_stop_reason(s, out);
    cr_buf_addc(out, ',');
    CR_TRY(cri_add_chat_logprobs(r, s, out, err));
    if (r->wanted.token_ids) add_ids_member("token_ids", s->ids, s->num_ids, out);
    cr_buf_addc(out, '}');
    return CR_OK;
}

cr_status cri_answer_chat(const cr_serve_result *result, cr_buf *out, cr_err *err)
{
    const cr_serve_request *r = result->request;

    cr_buf_addf(out, "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\",\"created\":%lld,",
                result->id, (long long)result->created);
    cri_add_identity(r, out);
    cr_buf_adds(out, ",\"choices\":[");
    for (size_t i = 0; i < (size_t)r->sampling.n; i++) {
        if (i) cr_buf_addc(out, ',');
        CR_TRY(add_message(result, i, out, err));
    }
    cr_buf_adds(out, "],");
    CR_TRY(cri_add_prompt_scores(result, 0, out, err));
    if (r->wanted.token_ids)
        add_ids_member("prompt_token_ids", r->prompts[0].ids, r->prompts[0].num_ids, out);
    cr_buf_addc(out, ',');
    cri_add_usage(result, sampled_tokens(result), out);
    cr_buf_addc(out, '}');
    return CR_OK;
}
