/* request_check.c -- a draft to a request: names, prompts, what fits and what goes together. */
#include "base/digest.h"
#include "engine/sampling.h"
#include "images/reader.h"
#include "kernels/sampling_ranges.h"
#include "serve/fields.h"

#include <stdlib.h>
#include <string.h>

enum { ABSENT = -2 };
#define NO_SEED INT64_MIN

void cri_draft_init(cri_draft *draft, cr_serve_route route)
{
    *draft = (cri_draft){
        .request = {.route = route,
                    .sampling = {.n = CR_DEFAULT_OF(CR_NUM_SAMPLES),
                                 .max_tokens = -1,
                                 .temperature = CR_DEFAULT_OF(CR_TEMPERATURE),
                                 .top_p = CR_DEFAULT_OF(CR_TOP_P),
                                 .min_p = CR_DEFAULT_OF(CR_MIN_P),
                                 .top_k = CR_DEFAULT_OF(CR_TOP_K),
                                 .repetition_penalty = CR_DEFAULT_OF(CR_REPETITION_PENALTY),
                                 .presence_penalty = CR_DEFAULT_OF(CR_PRESENCE_PENALTY),
                                 .frequency_penalty = CR_DEFAULT_OF(CR_FREQUENCY_PENALTY),
                                 .seed = NO_SEED,
                                 .skips_special = true},
                    .wanted = {.logprobs = ABSENT, .prompt_logprobs = ABSENT, .prompt_top = -1}},
        .max_completion_tokens = -1,
        .best_of = -1,
        .top_logprobs = -1,
        .prompt_start = -1,
        .tool_choice = -1,
        .add_generation_prompt = true,
        .add_special = route != CR_SERVE_CHAT};
}

static void free_lists(cri_id_lists *lists)
{
    cr_ids_free(&lists->ids);
    cr_free(lists->num_ids);
}

static void free_texts(cri_texts *texts)
{
    for (size_t i = 0; i < texts->num; i++)
        cr_free(texts->text[i]);
    cr_free(texts->text);
    cr_free(texts->num_bytes);
}

void cri_draft_free(cri_draft *d)
{
    cr_free(d->model);
    cr_free(d->expect_weights);
    cr_free(d->expect_tokenizer);
    free_texts(&d->texts);
    free_texts(&d->stop);
    free_texts(&d->bad_words);
    free_lists(&d->lists);
    free_lists(&d->stop_ids);
    free_lists(&d->candidates);
    free_lists(&d->allowed);
    cr_ids_free(&d->bias.ids);
    cr_buf_free(&d->bias.numbers);
    json_decref(d->messages);
    json_decref(d->tools);
    json_decref(d->template_vars);
}

/* ---- which model ---- */

const cr_serve_model *cr_serve_find_model(const cr_serve_service *service, const char *name)
{
    for (size_t i = 0; i < service->num_models; i++) {
        const cr_serve_model *m = &service->models[i];
        size_t num = strlen(m->name);
        if (strcmp(name, m->name) == 0) return m;
        if (strncmp(name, m->name, num) == 0 && name[num] == '@' &&
            strcmp(name + num + 1, m->weight_version) == 0)
            return m;
    }
    return NULL;
}

void cr_serve_no_model(const cr_serve_service *service, const char *name, char *text,
                       size_t num_bytes)
{
    size_t used =
        (size_t)snprintf(text, num_bytes, "the model %.100s does not exist; there is", name);

    for (size_t i = 0; i < service->num_models && used < num_bytes; i++)
        used += (size_t)snprintf(text + used, num_bytes - used, "%s %s", i ? "," : "",
                                 service->models[i].name);
}

static cr_status find_model(cri_draft *d, const cr_serve_service *service, cr_serve_error *error)
{
    cr_serve_request *r = &d->request;
    char text[sizeof error->message];

    r->model = &service->models[0];
    if (!d->model || !*d->model) return CR_OK;
    r->model = cr_serve_find_model(service, d->model);
    if (r->model) return CR_OK;
    cr_serve_no_model(service, d->model, text, sizeof text);
    return cr_serve_fail(error, 404, "model_not_found", "model", "%s", text);
}

static cr_status check_identity(const char *want, const char *has, const char *what,
                                const char *code, cr_serve_error *error)
{
    if (!want || cr_digest_is(has, want)) return CR_OK;
    return cr_serve_fail(error, 409, code, what,
                         "%s is %.80s, but the service has %s (at least 8 digits are compared)",
                         what, want, has ? has : "none");
}

/* ---- prompts ---- */

static const char *prompt_name(const cri_draft *d)
{
    switch (d->request.route) {
    case CR_SERVE_CHAT:
        return "messages";
    case CR_SERVE_GENERATE:
        return d->texts.num ? "text" : "input_ids";
    case CR_SERVE_TOKENS_IN:
        return "token_ids";
    case CR_SERVE_DETOKENIZE:
        return "tokens";
    default:
        return d->messages ? "messages" : "prompt";
    }
}

/* prompt, or prompt[2] if a list was sent. */
static const char *place_name(const cri_draft *d, size_t i, char out[64])
{
    const char *name = prompt_name(d);
    bool is_list = d->texts.num ? d->texts.is_list : d->lists.is_list;

    if (is_list)
        snprintf(out, 64, "%s[%zu]", name, i);
    else
        snprintf(out, 64, "%s", name);
    return out;
}

static cr_status encode(cri_draft *d, size_t i, bool add_special, cr_serve_error *error)
{
    cr_serve_prompt *p = &d->request.prompts[i];
    cr_ids ids = {0};
    cr_err err = {0};
    char name[64];

    if (!d->request.model->tokenizer)
        return cr_serve_fail(error, 400, "invalid_value", place_name(d, i, name),
                             "the model has no tokenizer: send token ids");
    if (cr_tokenizer_encode(d->request.model->tokenizer, p->text, p->text_bytes, add_special, &ids,
                            &err) != CR_OK) {
        cr_ids_free(&ids);
        return cr_serve_fail(error, 400, "invalid_value", place_name(d, i, name), "%s", err.msg);
    }
    p->ids = ids.id;
    p->num_ids = ids.num;
    return CR_OK;
}

static cr_status take_texts(cri_draft *d, cr_serve_error *error)
{
    cr_serve_request *r = &d->request;

    r->prompts = CR_NEW_ARRAY(cr_serve_prompt, d->texts.num);
    r->num_prompts = d->texts.num;
    for (size_t i = 0; i < d->texts.num; i++) {
        r->prompts[i].text = d->texts.text[i];
        r->prompts[i].text_bytes = d->texts.num_bytes[i];
        d->texts.text[i] = NULL;
    }
    for (size_t i = 0; i < r->num_prompts; i++)
        CR_TRY(encode(d, i, d->add_special, error));
    return CR_OK;
}

/* Lists may be longer than what was kept of them; they are refused later. */
static void take_lists(cri_draft *d, int64_t max_kept)
{
    cr_serve_request *r = &d->request;
    const int32_t *at = d->lists.ids.id;

    r->prompts = CR_NEW_ARRAY(cr_serve_prompt, d->lists.num);
    r->num_prompts = d->lists.num;
    for (size_t i = 0; i < d->lists.num; i++) {
        cr_serve_prompt *p = &r->prompts[i];
        size_t kept = d->lists.num_ids[i];
        if ((int64_t)kept > max_kept) kept = (size_t)max_kept;
        p->num_ids = d->lists.num_ids[i];
        p->ids = CR_NEW_ARRAY(int32_t, kept);
        if (kept) memcpy(p->ids, at, kept * sizeof *at);
        at += kept;
    }
}

/* ---- chats ---- */

/* A part with an image, of which only the data URI is left. */
static cr_status take_image(cri_draft *d, json_t *content, size_t k, const json_t *url,
                            const char *param, cr_serve_error *error)
{
    json_t *part;

    if (!d->request.model->images)
        return cr_serve_fail(error, 400, "invalid_value", param,
                             "%s: the model %.100s takes no images", param, d->request.model->name);
    if (!url)
        return cr_serve_fail(error, 400, "invalid_value", param,
                             "%s: an image is a data URI, data:image/png;base64,..: nothing is "
                             "fetched, and no file is read",
                             param);
    part = json_object();
    json_object_set_new(part, "type", json_string("image_url"));
    json_object_set(part, "image_url", (json_t *)(uintptr_t)url);
    json_array_set_new(content, k, part);
    d->has_images = true;
    return CR_OK;
}

/* A list of text parts becomes one string: templates print lists in ways that no model was trained on. One with images stays a
 * list. */
static cr_status join_parts(cri_draft *d, json_t *message, size_t i, cr_serve_error *error)
{
    json_t *content = json_object_get(message, "content"), *part;
    bool has_images = false;
    cr_buf text = {0};
    char param[64];
    size_t k;

    if (!json_is_array(content)) return CR_OK;
    json_array_foreach(content, k, part)
    {
        const json_t *words = json_object_get(part, "text"), *url;
        const char *type = json_string_value(json_object_get(part, "type"));
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", i, k);
        if (cr_serve_image_part(part, &url)) {
            has_images = true;
            CR_TRY_GOTO(out, take_image(d, content, k, url, param, error));
        } else if (!type || strcmp(type, "text") != 0 || !json_is_string(words)) {
            cr_serve_fail(error, 400, "invalid_value", param,
                          "%s: only parts with type text and a text%s are supported", param,
                          d->request.model->images ? ", and with type image_url," : "");
            goto out;
        } else {
            cr_buf_add(&text, json_string_value(words), json_string_length(words));
        }
    }
    if (!has_images)
        json_object_set_new(message, "content",
                            json_stringn(text.data ? text.data : "", text.num_bytes));
out:
    cr_buf_free(&text);
    return error->status ? CR_EARG : CR_OK;
}

static cr_status check_message(cri_draft *d, json_t *message, size_t i, cr_serve_error *error)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(message, "role"));
    char param[64];
    size_t k = 0;

    snprintf(param, sizeof param, "messages[%zu].role", i);
    if (role && strcmp(role, "developer") == 0) {
        json_object_set_new(message, "role", json_string("system"));
        role = "system";
    }
    while (role && k < CR_COUNT(roles) && strcmp(role, roles[k]) != 0)
        k++;
    if (!role || k == CR_COUNT(roles))
        return cr_serve_fail(error, 400, "invalid_value", param,
                             "%s: expected system, developer, user, assistant or tool", param);
    return join_parts(d, message, i, error);
}

/* Messages by the template; on a failure there is no text. */
static cr_status write_chat(cri_draft *d, const json_t *messages, cr_buf *text,
                            cr_serve_error *error)
{
    const cr_serve_model *m = d->request.model;
    cr_err err = {0};

    if (cr_chat_render_with(m->chat, m->template, messages, d->template_vars,
                            d->add_generation_prompt, text, &err) == CR_OK)
        return CR_OK;
    cr_buf_free(text);
    if (err.status == CR_EABSENT)
        return cr_serve_fail(error, 400, "no_chat_template", "messages",
                             "the model %.100s has no chat template; croll serve takes one: "
                             "data_args.template=chatml",
                             m->name);
    return cr_serve_fail(error, 400, "invalid_value", "messages", "%s", err.msg);
}

/* Takes the text. */
static cr_status encode_chat(cri_draft *d, cr_buf *text, cr_serve_error *error)
{
    cr_serve_prompt *p = &d->request.prompts[0];

    p->text = text->data ? text->data : cr_strdup("");
    p->text_bytes = text->num_bytes;
    *text = (cr_buf){0};
    /* the template writes the special tokens itself */
    return encode(d, 0, d->request.route == CR_SERVE_CHAT && d->add_special, error);
}

static cr_status wrong_images(const cr_err *err, cr_serve_error *error)
{
    if (err->status == CR_EABSENT) /* no memory */
        return cr_serve_fail(error, 503, "overloaded", "messages", "%s", err->msg);
    if (err->status == CR_EIO)
        return cr_serve_fail(error, 500, "internal_error", "messages", "%s", err->msg);
    return cr_serve_fail(error, 400, "invalid_value", "messages", "%s", err->msg);
}

/* A chat with images: its text, in which each placeholder is as often as its image has tokens, and values. */
static cr_status render_images(cri_draft *d, cr_serve_error *error)
{
    const cr_serve_model *m = d->request.model;
    cr_serve_prompt *p = &d->request.prompts[0];
    cr_buf text = {0}, with = {0};
    cr_image_items items;
    size_t num_inserted;
    cr_err err = {0};

    if (cr_serve_images_read(m->images, d->messages, m->max_model_len, &items, &err) != CR_OK)
        return wrong_images(&err, error);
    if (write_chat(d, items.messages, &text, error) == CR_OK &&
        cr_image_items_expand(&items, text.data ? text.data : "", text.num_bytes, &with, &err) ==
            CR_OK &&
        encode_chat(d, &with, error) == CR_OK &&
        cr_image_items_insert(&items, &p->ids, NULL, &p->num_ids, &num_inserted, &err) == CR_OK)
        cr_note(cr_serve_images_take(m->images, &items, p->ids, p->num_ids, &p->images,
                                     &p->image_bytes, &err));
    cr_buf_free(&text);
    cr_buf_free(&with);
    cr_image_items_free(&items);
    if (err.status) return wrong_images(&err, error);
    return error->status ? CR_EARG : CR_OK;
}

static cr_status render(cri_draft *d, cr_serve_error *error)
{
    cr_serve_request *r = &d->request;
    cr_buf text = {0};
    json_t *message;
    size_t i;

    if (!r->model->chat)
        return cr_serve_fail(error, 400, "no_chat_template", "messages",
                             "the model %.100s has no chat template", r->model->name);
    json_array_foreach(d->messages, i, message) CR_TRY(check_message(d, message, i, error));
    if (!d->template_vars) d->template_vars = json_object();
    if (json_array_size(d->tools)) json_object_set(d->template_vars, "tools", d->tools);
    if (json_object_size(d->template_vars) && !cr_chat_has_vars(r->model->template))
        return cr_serve_fail(error, 400, "unsupported_parameter",
                             json_array_size(d->tools) ? "tools" : "chat_template_kwargs",
                             "the chats of this model have the template %s, which takes neither "
                             "tools nor other variables",
                             r->model->template);
    r->prompts = CR_NEW_ARRAY(cr_serve_prompt, 1);
    r->num_prompts = 1;
    if (d->has_images) return render_images(d, error);
    CR_TRY(write_chat(d, d->messages, &text, error));
    return encode_chat(d, &text, error);
}

static cr_status take_prompts(cri_draft *d, const cr_serve_service *service, cr_serve_error *error)
{
    bool has_many = (d->texts.num > 0) + (d->lists.num > 0) + (d->messages != NULL) > 1;
    int64_t max_kept = 0;

    if (has_many)
        return cr_serve_fail(error, 400, "invalid_value", prompt_name(d),
                             "the prompt was sent in two ways");
    for (size_t i = 0; i < service->num_models; i++) /* as the parser kept them */
        max_kept = cr_max64(max_kept, service->models[i].max_model_len);
    if (d->messages) return render(d, error);
    if (d->texts.num) return take_texts(d, error);
    if (d->lists.num == 0)
        return cr_serve_fail(error, 400, "missing_required_parameter", prompt_name(d),
                             "%s is missing", prompt_name(d));
    take_lists(d, d->request.route == CR_SERVE_DETOKENIZE ? INT32_MAX : max_kept);
    return CR_OK;
}

/* ---- what fits ---- */

static cr_status check_ids(const cri_draft *d, size_t i, cr_serve_error *error)
{
    const cr_serve_prompt *p = &d->request.prompts[i];
    int64_t vocab = d->request.model->vocab_size;
    char name[64], param[120];

    if (d->request.route == CR_SERVE_DETOKENIZE) /* no row of the model is needed */
        vocab = cr_max64(vocab, cr_tokenizer_num_ids(d->request.model->tokenizer));
    for (size_t t = 0; t < p->num_ids; t++)
        if (p->ids[t] >= vocab) {
            snprintf(param, sizeof param, "%s[%zu]", place_name(d, i, name), t);
            return cr_serve_fail(error, 400, "invalid_value", param,
                                 "%s is %d, outside the vocabulary of %lld ids", param, p->ids[t],
                                 (long long)vocab);
        }
    return CR_OK;
}

static cr_status fit_prompt(cri_draft *d, const cr_serve_service *service, size_t i,
                            cr_serve_error *error)
{
    cr_serve_prompt *p = &d->request.prompts[i];
    int64_t max = d->request.model->max_model_len, room = max - (int64_t)p->num_ids;
    int64_t wants = d->request.sampling.max_tokens, min = wants;
    char name[64];

    place_name(d, i, name);
    if (p->num_ids == 0)
        return cr_serve_fail(error, 400, "invalid_value", name, "%s is empty", name);
    if ((service->clamps_max_tokens || d->has_default_max) && min > 1) min = 1;
    if (room < min)
        return cr_serve_fail(error, 400, "context_length_exceeded", name,
                             "This model's maximum context length is %lld tokens; the prompt has "
                             "%zu and max_tokens is %lld.",
                             (long long)max, p->num_ids, (long long)wants);
    CR_TRY(check_ids(d, i, error));
    p->max_tokens = wants < room ? wants : room;
    return CR_OK;
}

/* ---- sampling ---- */

/* ids, which are taken, to *to. */
static cr_status take_ids(const cri_draft *d, cr_ids *ids, const char *name, cr_ids *to,
                          cr_serve_error *error)
{
    for (size_t i = 0; i < ids->num; i++)
        if (ids->id[i] >= d->request.model->vocab_size)
            return cr_serve_fail(error, 400, "invalid_value", name,
                                 "%s: %d is outside the vocabulary of %lld ids", name, ids->id[i],
                                 (long long)d->request.model->vocab_size);
    *to = *ids;
    *ids = (cr_ids){0};
    return CR_OK;
}

static cr_status take_stop(cri_draft *d, cr_serve_error *error)
{
    cr_serve_sampling *how = &d->request.sampling;

    for (size_t i = 0; i < d->stop.num; i++) {
        size_t num = d->stop.num_bytes[i];
        if (num == 0 || memchr(d->stop.text[i], 0, num))
            return cr_serve_fail(error, 400, "invalid_value", "stop",
                                 "stop[%zu] is empty or has a NUL", i);
    }
    if (d->stop.num && !d->request.model->tokenizer)
        return cr_serve_fail(error, 400, "invalid_value", "stop",
                             "stop texts need a tokenizer, and the model has none");
    CR_TRY(take_ids(d, &d->stop_ids.ids, "stop_token_ids", &how->stop_ids, error));
    how->stop = d->stop.text;
    how->num_stop = d->stop.num;
    d->stop.text = NULL;
    d->stop.num = 0;
    return CR_OK;
}

static cr_status encode_word(const cri_draft *d, const char *text, size_t num_bytes, cr_ids *ids,
                             cr_serve_error *error)
{
    cr_err err = {0};

    if (cr_tokenizer_encode(d->request.model->tokenizer, text, num_bytes, false, ids, &err) ==
        CR_OK)
        return CR_OK;
    return cr_serve_fail(error, 400, "invalid_value", "bad_words", "%s", err.msg);
}

static void add_word(cr_serve_sampling *how, const cr_ids *ids)
{
    for (size_t i = 0; i < ids->num; i++)
        cr_ids_add(&how->bad_ids, ids->id[i]);
    cr_ids_add(&how->bad_lengths, (int32_t)ids->num);
}

/* A word without the blanks before it and, as in vLLM, with a space if its tokens are as many and begin in another way:
 * what a tokenizer makes of a word inside a text. */
static cr_status take_bad_word(cri_draft *d, size_t i, cr_serve_error *error)
{
    static const char blanks[] = " \t\n\v\f\r";
    const char *text = d->bad_words.text[i];
    size_t num = d->bad_words.num_bytes[i];
    cr_ids plain = {0}, spaced = {0};
    cr_buf with_space = {0};

    while (num && *text && strchr(blanks, *text)) {
        text++;
        num--;
    }
    cr_buf_addc(&with_space, ' ');
    cr_buf_add(&with_space, text, num);
    if (encode_word(d, text, num, &plain, error) == CR_OK &&
        encode_word(d, with_space.data, with_space.num_bytes, &spaced, error) == CR_OK) {
        if (plain.num == 0)
            cr_serve_fail(error, 400, "invalid_value", "bad_words", "bad_words[%zu] has no tokens",
                          i);
        else
            add_word(&d->request.sampling, &plain);
        if (plain.num && spaced.num == plain.num && spaced.id[0] != plain.id[0])
            add_word(&d->request.sampling, &spaced);
    }
    cr_buf_free(&with_space);
    cr_ids_free(&plain);
    cr_ids_free(&spaced);
    return error->status ? CR_EARG : CR_OK;
}

static cr_status take_bad_words(cri_draft *d, cr_serve_error *error)
{
    if (d->bad_words.num && !d->request.model->tokenizer)
        return cr_serve_fail(error, 400, "invalid_value", "bad_words",
                             "bad_words need a tokenizer, and the model has none");
    for (size_t i = 0; i < d->bad_words.num; i++)
        CR_TRY(take_bad_word(d, i, error));
    return CR_OK;
}

/* An id must be left at every place, whatever was sampled before it. */
static cr_status check_ids_left(const cri_draft *d, cr_serve_error *error)
{
    const cr_serve_model *m = d->request.model;
    const cr_serve_sampling *s = &d->request.sampling;
    const cr_generating how = {
        .processors = {.allowed = s->allowed.id, .num_allowed = s->allowed.num},
        .bad_words = {s->bad_ids.id, s->bad_lengths.id, s->bad_lengths.num},
        .min_new_tokens = s->min_tokens,
        .stop_ids = s->stop_ids.id,
        .num_stop_ids = s->stop_ids.num};
    cr_ends ends = cr_ends_of(&how, m->eos_ids, m->num_eos);
    bool is_left = cr_any_id_left(&how, &ends, m->vocab_size);

    cr_free(ends.ids);
    if (is_left) return CR_OK;
    return cr_serve_fail(error, 400, "invalid_value",
                         s->bad_lengths.num ? "bad_words" : "min_tokens",
                         "every id that may be sampled ends a sample before min_tokens or is the "
                         "last token of a bad word: none is left");
}

static int by_id(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Ids and numbers of logit_bias and allowed_token_ids, ids of bad_words. */
static cr_status take_processors(cri_draft *d, cr_serve_error *error)
{
    cr_serve_sampling *how = &d->request.sampling;
    size_t num_biased = d->bias.ids.num;
    int32_t *sorted;

    if (d->allowed.num && d->allowed.ids.num == 0)
        return cr_serve_fail(error, 400, "invalid_value", "allowed_token_ids",
                             "allowed_token_ids is empty: no id could be sampled");
    CR_TRY(take_ids(d, &d->allowed.ids, "allowed_token_ids", &how->allowed, error));
    CR_TRY(take_ids(d, &d->bias.ids, "logit_bias", &how->biased, error));
    how->bias = (float *)(void *)d->bias.numbers.data;
    d->bias.numbers = (cr_buf){0};
    sorted = CR_NEW_ARRAY(int32_t, num_biased);
    if (num_biased) memcpy(sorted, how->biased.id, num_biased * sizeof *sorted);
    qsort(sorted, num_biased, sizeof *sorted, by_id);
    for (size_t i = 1; i < num_biased; i++)
        if (sorted[i] == sorted[i - 1])
            cr_serve_fail(error, 400, "invalid_json", "logit_bias", "logit_bias: %d is there twice",
                          sorted[i]);
    cr_free(sorted);
    if (error->status) return CR_EARG;
    CR_TRY(take_bad_words(d, error));
    return check_ids_left(d, error);
}

static int64_t default_max_tokens(const cri_draft *d, const cr_serve_service *service)
{
    if (d->request.route == CR_SERVE_GENERATE) return 128;
    if (d->request.route != CR_SERVE_CHAT) return 16;
    return service->max_chat_tokens > 0 ? service->max_chat_tokens
                                        : d->request.model->max_model_len;
}

static cr_status check_sampling(cri_draft *d, const cr_serve_service *service,
                                cr_serve_error *error)
{
    cr_serve_sampling *how = &d->request.sampling;

    if (d->max_completion_tokens >= 0) how->max_tokens = d->max_completion_tokens;
    how->has_seed = how->seed != NO_SEED;
    d->has_default_max = how->max_tokens < 0;
    if (d->has_default_max) how->max_tokens = default_max_tokens(d, service);
    if (how->n > service->max_samples)
        return cr_serve_fail(error, 400, "invalid_value", "n", "n is %lld, at most %lld",
                             (long long)how->n, (long long)service->max_samples);
    if (d->best_of >= 0 && d->best_of != how->n)
        return cr_serve_fail(error, 400, "unsupported_parameter", "best_of",
                             "best_of is not supported: leave it out or send the value of n");
    if (service->only_scores && how->max_tokens > 1)
        return cr_serve_fail(error, 400, "unsupported_parameter", "max_tokens",
                             "this service scores prompts: max_tokens may be 0 or 1");
    d->request.wanted.is_processed = d->mode == 1;
    if (service->only_scores && how->max_tokens == 1 && d->mode == 1)
        return cr_serve_fail(error, 400, "unsupported_parameter", "croll.logprobs_mode",
                             "this service scores prompts: processed log-probs need max_tokens 0");
    if (how->min_tokens > how->max_tokens)
        return cr_serve_fail(error, 400, "invalid_value", "min_tokens",
                             "min_tokens is %lld, and max_tokens %lld", (long long)how->min_tokens,
                             (long long)how->max_tokens);
    if (how->temperature != 0 && how->temperature < CR_MIN_TEMPERATURE)
        return cr_serve_fail(error, 400, "invalid_value", "temperature",
                             "temperature is %g, expected 0 or at least %g",
                             (double)how->temperature, (double)CR_MIN_TEMPERATURE);
    CR_TRY(take_stop(d, error));
    return take_processors(d, error);
}

/* ---- what is answered ---- */

static cr_status take_count(const cri_draft *d, const cr_serve_service *service, int64_t *k,
                            const char *name, cr_serve_error *error)
{
    int64_t wanted = *k;

    if (*k == -1) *k = d->request.model->vocab_size;
    if (*k > d->request.model->vocab_size) *k = d->request.model->vocab_size;
    if (*k > service->max_logprobs)
        return cr_serve_fail(error, 400, "invalid_value", name,
                             "%s is %lld, at most %lld alternatives are given", name,
                             (long long)wanted, (long long)service->max_logprobs);
    if (*k == ABSENT) *k = -1;
    return CR_OK;
}

/* The names that a route has for the same wishes. */
static void merge_wanted(cri_draft *d)
{
    cr_serve_wanted *w = &d->request.wanted;
    int64_t top = d->top_logprobs < 0 ? 0 : d->top_logprobs;

    if (d->has_logprobs) w->logprobs = top;
    if (d->request.route == CR_SERVE_GENERATE) {
        w->is_list = d->texts.is_list || d->lists.is_list;
        if (d->has_logprobs && d->prompt_start >= 0) w->prompt_logprobs = top;
    }
    w->prompt_start = d->prompt_start < 0 ? 0 : d->prompt_start;
    w->prompt_first =
        d->request.route == CR_SERVE_GENERATE ? w->prompt_start + 1 : cr_max64(1, w->prompt_start);
    w->is_base64 = d->format == 1;
}

static cr_status take_candidates(cri_draft *d, const cr_serve_service *service,
                                 cr_serve_error *error)
{
    static const char name[] = "prompt_logprob_token_ids";
    cr_serve_candidates *c = &d->request.wanted.candidates;
    const cr_serve_prompt *p = &d->request.prompts[0];
    size_t first = (size_t)d->request.wanted.prompt_first;
    size_t num_places = p->num_ids > first ? p->num_ids - first : 0;

    if (d->candidates.num == 0) return CR_OK;
    c->num_each = d->candidates.num_ids[0];
    c->num_places = d->candidates.num;
    for (size_t i = 0; i < c->num_places; i++)
        if (d->candidates.num_ids[i] != c->num_each)
            return cr_serve_fail(error, 400, "invalid_value", name,
                                 "%s[%zu] has %zu ids, the first list has %zu", name, i,
                                 d->candidates.num_ids[i], c->num_each);
    if (c->num_each == 0 || (int64_t)c->num_each > service->max_logprobs)
        return cr_serve_fail(error, 400, "invalid_value", name, "%s: %zu ids, expected 1 to %lld",
                             name, c->num_each, (long long)service->max_logprobs);
    if (d->candidates.is_list && (d->request.num_prompts > 1 || c->num_places != num_places))
        return cr_serve_fail(
            error, 400, "invalid_value", name,
            "%s: %zu lists; a list for each place is for one prompt, here of %zu places", name,
            c->num_places, num_places);
    return take_ids(d, &d->candidates.ids, name, &c->ids, error);
}

static cr_status check_stream(const cri_draft *d, cr_serve_error *error)
{
    const cr_serve_wanted *w = &d->request.wanted;

    if (d->has_stream_options && !w->is_stream)
        return cr_serve_fail(error, 400, "invalid_value", "stream_options",
                             "stream_options is only for stream: true");
    if (w->is_stream && (w->prompt_logprobs >= 0 || w->entropy || w->candidates.ids.num))
        return cr_serve_fail(error, 400, "invalid_value", "stream",
                             "log-probs of the prompt cannot be streamed: leave stream out");
    if (w->is_stream && w->prompt_top >= 0 && !cr_serve_is_scoring(&d->request))
        return cr_serve_fail(error, 400, "unsupported_parameter", "stream",
                             "log-probs of the prompt cannot be streamed with samples: leave "
                             "stream, echo or logprobs out");
    return CR_OK;
}

static cr_status check_wanted(cri_draft *d, const cr_serve_service *service, cr_serve_error *error)
{
    cr_serve_request *r = &d->request;
    cr_serve_wanted *w = &r->wanted;
    bool is_generate = r->route == CR_SERVE_GENERATE;

    if (d->top_logprobs > 0 && !d->has_logprobs)
        return cr_serve_fail(
            error, 400, "invalid_value", is_generate ? "top_logprobs_num" : "top_logprobs",
            "%s has to be true for alternatives", is_generate ? "return_logprob" : "logprobs");
    merge_wanted(d);
    CR_TRY(
        take_count(d, service, &w->logprobs, d->has_logprobs ? "top_logprobs" : "logprobs", error));
    CR_TRY(take_count(d, service, &w->prompt_logprobs, "prompt_logprobs", error));
    CR_TRY(take_candidates(d, service, error));
    w->prompt_top = w->prompt_logprobs;
    if (w->echo && w->logprobs > w->prompt_top) w->prompt_top = w->logprobs;
    if (w->prompt_top < 0 && (w->entropy || w->candidates.ids.num)) w->prompt_top = 0;
    CR_TRY(check_stream(d, error));
    if (w->prompt_start > 0 && w->echo)
        return cr_serve_fail(error, 400, "invalid_value", "prompt_logprob_start",
                             "prompt_logprob_start cannot be given with echo");
    for (size_t i = 0; w->prompt_start > 0 && i < r->num_prompts; i++)
        if (w->prompt_start >= (int64_t)r->prompts[i].num_ids)
            return cr_serve_fail(error, 400, "invalid_value", "prompt_logprob_start",
                                 "the first place is %lld, prompt %zu has %zu tokens",
                                 (long long)w->prompt_start, i, r->prompts[i].num_ids);
    if (r->sampling.max_tokens == 0 && w->prompt_top < 0 && !w->echo && !is_generate)
        return cr_serve_fail(error, 400, "invalid_value", "max_tokens",
                             "max_tokens 0 needs echo or prompt_logprobs");
    return CR_OK;
}

/* A version is a word: it is in logs, metrics and names like NAME@VERSION. */
static cr_status check_update(const cr_serve_update *u, cr_serve_error *error)
{
    bool is_word = !u->version || *u->version;

    for (const char *c = u->version ? u->version : ""; *c; c++)
        is_word = is_word && *c > ' ' && *c < 127;
    if (!u->path || !*u->path)
        return cr_serve_fail(error, 400, "missing_required_parameter", "model_path",
                             "model_path is missing: the folder of the new weights");
    if (!is_word)
        return cr_serve_fail(
            error, 400, "invalid_value", "weight_version",
            "weight_version is a word of printable ASCII characters, and not empty");
    return CR_OK;
}

cr_status cri_draft_finish(cri_draft *d, const cr_serve_service *service, cr_serve_error *error)
{
    cr_serve_request *r = &d->request;

    CR_TRY(find_model(d, service, error));
    CR_TRY(check_identity(d->expect_weights, r->model->weights_sha256, "expect_weights",
                          "weights_mismatch", error));
    CR_TRY(check_identity(d->expect_tokenizer, r->model->tokenizer_sha256, "expect_tokenizer",
                          "tokenizer_mismatch", error));
    if (r->route == CR_SERVE_UPDATE) return check_update(&r->update, error);
    if (r->route == CR_SERVE_TOKENIZE || r->route == CR_SERVE_DETOKENIZE) {
        if (!r->model->tokenizer)
            return cr_serve_fail(error, 400, "invalid_value", "model",
                                 "the model has no tokenizer");
        CR_TRY(take_prompts(d, service, error));
        return r->route == CR_SERVE_DETOKENIZE ? check_ids(d, 0, error) : CR_OK;
    }
    CR_TRY(check_sampling(d, service, error));
    CR_TRY(take_prompts(d, service, error));
    for (size_t i = 0; i < r->num_prompts; i++)
        CR_TRY(fit_prompt(d, service, i, error));
    return check_wanted(d, service, error);
}
