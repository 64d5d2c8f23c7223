/* prompts.c -- see prompts.h. */
#include "actors/prompts.h"
#include "actors/encoder.h"

#include <string.h>

/* `messages`: a list, or a list written as JSON text. */
static cr_status get_messages(const json_t *column, const char *name, json_t **out, cr_err *err)
{
    *out = NULL;
    if (json_is_array(column)) {
        *out = json_incref((json_t *)(uintptr_t)column);
        return CR_OK;
    }
    if (!json_is_string(column))
        return cr_fail(err, CR_EFORMAT, "the column %s is %s, a list of messages is expected", name,
                       column ? "no list" : "missing");
    CR_TRY(cr_json_parse(json_string_value(column), json_string_length(column), name, out, err));
    if (json_is_array(*out)) return CR_OK;
    json_decref(*out);
    *out = NULL;
    return cr_fail(err, CR_EFORMAT, "the column %s holds no list of messages", name);
}

/* Domain of a row: its own column, else the reward block that includes its tag. */
static cr_status find_domain(const cr_config *c, cr_row *row, cr_err *err)
{
    json_t *domain = json_object_get(row->json, "domain"), *tag = json_object_get(row->json, "tag");

    if (json_is_string(domain)) {
        for (size_t i = 0; i < c->num_rewards; i++)
            if (strcmp(c->rewards[i].domain, json_string_value(domain)) == 0) row->domain = (int)i;
        return CR_OK;
    }
    for (size_t i = 0; i < c->num_rewards && json_is_string(tag); i++)
        for (size_t k = 0; k < c->rewards[i].num_tags; k++)
            if (strcmp(c->rewards[i].tags[k], json_string_value(tag)) == 0) row->domain = (int)i;
    if (row->domain < 0 && json_is_string(tag))
        return cr_fail(err, CR_EFORMAT, "no reward block includes the tag '%.60s' (tag_included)",
                       json_string_value(tag));
    if (row->domain < 0 && c->num_rewards == 1) row->domain = 0;
    if (row->domain < 0) return cr_fail(err, CR_EFORMAT, "the row has neither domain nor tag");
    return CR_OK;
}

static const char *template_of(const cr_config *c)
{
    return c->global_template ? c->global_template : c->train.template;
}

cr_status cr_prompt_encode_rlvr(void *ctx, cr_row *row, cr_err *err)
{
    cr_prompt_maker *m = ctx;
    const cr_worker_config *w = &m->config->train;
    json_t *messages = NULL, *prompt;
    cr_buf text = {0};

    CR_TRY(find_domain(m->config, row, err));
    if (w->prompt) {
        prompt = json_object_get(row->json, w->prompt);
        if (!json_is_string(prompt))
            return cr_fail(err, CR_EFORMAT, "the column %s is no text", w->prompt);
        CR_TRY(cr_encode_text(m->tokenizer, json_string_value(prompt), json_string_length(prompt),
                              /*add_special=*/true, &row->ids, &row->num_ids, err));
    } else {
        CR_TRY(get_messages(json_object_get(row->json, w->messages), w->messages, &messages, err));
        if (cr_chat_render(m->chat, template_of(m->config), messages,
                           /*add_generation_prompt=*/true, &text, err) == CR_OK)
            cr_note(cr_encode_text(m->tokenizer, text.data ? text.data : "", text.num_bytes,
                                   /*add_special=*/false, &row->ids, &row->num_ids, err));
        json_decref(messages);
        cr_buf_free(&text);
        CR_TRY(err->status);
    }
    row->num_prompt = row->num_ids;
    if (row->num_ids <= 5 ||
        (int64_t)row->num_ids > m->prompt_length) { /* as ROLL: dropped, never cut */
        cr_free(row->ids);
        row->ids = NULL;
    }
    return CR_OK;
}

static void add_message(json_t *list, const char *role, const json_t *content)
{
    json_array_append_new(list, json_pack("{s:s,s:O}", "role", role, "content", content));
}

static cr_status encode_chat(cr_prompt_maker *m, json_t *messages, bool is_prompt, int32_t **ids,
                             size_t *num, cr_err *err)
{
    cr_buf text = {0};

    if (cr_chat_render(m->chat, template_of(m->config), messages, is_prompt, &text, err) == CR_OK) {
        if (!is_prompt && text.num_bytes && text.data[text.num_bytes - 1] == '\n')
            text.num_bytes--; /* less one newline, as ROLL */
        cr_note(cr_encode_text(m->tokenizer, text.data ? text.data : "", text.num_bytes,
                               /*add_special=*/true, ids, num, err));
    }
    cr_buf_free(&text);
    return err->status;
}

cr_status cr_prompt_encode_sft(void *ctx, cr_row *row, cr_err *err)
{
    cr_prompt_maker *m = ctx;
    const cr_config *c = m->config;
    json_t *prompt = json_object_get(row->json, c->prompt_key),
           *query = c->query_key ? json_object_get(row->json, c->query_key) : NULL,
           *answer = json_object_get(row->json, c->response_key);
    json_t *system = c->system_key ? json_object_get(row->json, c->system_key) : NULL, *messages,
           *joined = NULL;
    int32_t *prompt_ids = NULL;
    size_t num_prompt = 0;

    if (!json_is_string(prompt))
        return cr_fail(err, CR_EFORMAT, "the column %s (prompt_key) is no text", c->prompt_key);
    if (!json_is_string(answer))
        return cr_fail(err, CR_EFORMAT, "the column %s (response_key) is no text", c->response_key);
    if (json_is_string(query) && json_string_length(query)) {
        cr_buf text = {0};
        cr_buf_add(&text, json_string_value(prompt), json_string_length(prompt));
        cr_buf_addc(&text, '\n');
        cr_buf_add(&text, json_string_value(query), json_string_length(query));
        joined = json_stringn(text.data, text.num_bytes);
        cr_buf_free(&text);
    }
    messages = json_array();
    if (json_is_string(system)) add_message(messages, "system", system);
    add_message(messages, "user", joined ? joined : prompt);
    if (encode_chat(m, messages, true, &prompt_ids, &num_prompt, err) == CR_OK) {
        add_message(messages, "assistant", answer);
        cr_note(encode_chat(m, messages, false, &row->ids, &row->num_ids, err));
    }
    cr_free(prompt_ids);
    json_decref(messages);
    json_decref(joined);
    CR_TRY(err->status);
    if ((int64_t)row->num_ids > c->sequence_length) row->num_ids = (size_t)c->sequence_length;
    row->num_prompt = num_prompt < row->num_ids ? num_prompt : row->num_ids;
    row->domain = 0;
    return CR_OK;
}
