/* chat.c -- see chat.h: finds the templates of a checkpoint, makes the variables that Transformers
 * gives them, and writes the fixed forms. */
#include "text/chat.h"
#include "base/hub.h"
#include "jinja/jinja.h"

#include <string.h>

typedef struct named_template {
    char *name;
    cr_jinja *jinja; /* NULL: why says what is wrong with it */
    cr_err why;
} named_template;

struct cr_chat {
    named_template *template; /* [num_templates] */
    size_t num_templates;
    json_t *tokens; /* "bos_token": its text, .. */
};

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

/* ---- opening ---- */

static void add_template(cr_chat *c, const char *name, const char *text, size_t num_bytes,
                         const char *what)
{
    size_t old = c->num_templates * sizeof *c->template;
    named_template *t;

    c->template = cr_realloc(c->template, old, old + sizeof *t);
    t = &c->template[c->num_templates++];
    t->name = cr_strdup(name);
    cr_note(cr_jinja_parse(text, num_bytes, what, &t->jinja, &t->why));
}

static cr_status add_file(cr_chat *c, const char *folder, const char *name, const char *file,
                          cr_err *err)
{
    char *path = cr_path_join(folder, file);
    cr_buf text = {0};
    cr_status status = CR_OK;

    if (cr_file_exists(path)) {
        status = cr_file_read(path, &text, err);
        if (status == CR_OK) add_template(c, name, text.data, text.num_bytes, path);
    }
    cr_buf_free(&text);
    cr_free(path);
    return status;
}

static cr_status add_value(cr_chat *c, const char *name, const json_t *text, const char *path,
                           cr_err *err)
{
    char *what = cr_asprintf("%s: chat_template", path);
    cr_status status = CR_OK;

    if (!json_is_string(text) || !name)
        status = cr_fail(err, CR_EFORMAT,
                         "%s must be a string, or a list of objects with name and template", what);
    else
        add_template(c, name, json_string_value(text), json_string_length(text), what);
    cr_free(what);
    return status;
}

/* chat_template of tokenizer_config.json: a text, a list of {name, template}, or {name: text}. */
static cr_status add_config(cr_chat *c, json_t *value, const char *path, cr_err *err)
{
    const char *name;
    json_t *entry;
    size_t i;

    if (!value || json_is_null(value)) return CR_OK;
    if (json_is_object(value)) {
        json_object_foreach(value, name, entry) CR_TRY(add_value(c, name, entry, path, err));
        return CR_OK;
    }
    if (!json_is_array(value)) return add_value(c, "default", value, path, err);
    json_array_foreach(value, i, entry)
        CR_TRY(add_value(c, json_string_value(json_object_get(entry, "name")),
                         json_object_get(entry, "template"), path, err));
    return CR_OK;
}

/* Special tokens are texts or {"content": text}; those already known stay. */
static void add_tokens(cr_chat *c, const json_t *config)
{
    for (size_t i = 0; i < CR_COUNT(token_names); i++) {
        json_t *value = json_object_get(config, token_names[i]);
        if (json_is_object(value)) value = json_object_get(value, "content");
        if (json_is_string(value) && !json_object_get(c->tokens, token_names[i]))
            json_object_set(c->tokens, token_names[i], value);
    }
}

static cr_status open_json(cr_chat *c, const char *folder, const char *file, bool with_template,
                           cr_err *err)
{
    char *path = cr_path_join(folder, file);
    json_t *config = NULL;
    cr_status status = CR_OK;

    if (cr_file_exists(path)) status = cr_json_read_file(path, &config, err);
    if (config) add_tokens(c, config);
    if (config && with_template)
        status = add_config(c, json_object_get(config, "chat_template"), path, err);
    json_decref(config);
    cr_free(path);
    return status;
}

cr_status cr_chat_open(const char *name, cr_chat **out, cr_err *err)
{
    char *found = cr_hub_find(name);
    const char *folder = found ? found : name;
    cr_chat *c = CR_NEW(cr_chat);
    cr_status status;

    *out = NULL;
    c->tokens = json_object();
    status = add_file(c, folder, "default", "chat_template.jinja", err);
    if (status == CR_OK)
        status = add_file(c, folder, "tool_use", "additional_chat_templates/tool_use.jinja", err);
    if (status == CR_OK)
        status = open_json(c, folder, "tokenizer_config.json", c->num_templates == 0, err);
    if (status == CR_OK) status = open_json(c, folder, "special_tokens_map.json", false, err);
    cr_free(found);
    if (status == CR_OK)
        *out = c;
    else
        cr_chat_close(c);
    return status;
}

void cr_chat_close(cr_chat *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->num_templates; i++) {
        cr_free(c->template[i].name);
        cr_jinja_free(c->template[i].jinja);
    }
    cr_free(c->template);
    json_decref(c->tokens);
    cr_free(c);
}

/* ---- messages ---- */

static cr_status check_message(const json_t *m, size_t i, cr_err *err)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
    bool has_content = content && !json_is_null(content);

    if (!json_is_object(m) || !json_is_string(role))
        return cr_fail(err, CR_EFORMAT,
                       "message %zu must be an object with a role that is a string", i);
    if (has_content && !json_is_string(content) && !json_is_array(content))
        return cr_fail(err, CR_EFORMAT, "message %zu: content must be a string or a list of parts",
                       i);
    if (!has_content && !json_array_size(json_object_get(m, "tool_calls")))
        return cr_fail(err, CR_EFORMAT, "message %zu has neither content nor tool_calls", i);
    return CR_OK;
}

static const json_t *find_reasoning(const json_t *m)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        const json_t *value = json_object_get(m, names[i]);
        if (value && !json_is_null(value)) return value;
    }
    return NULL;
}

static json_t *share(const json_t *value) /* a reference; reading alone follows */
{
    return json_incref((json_t *)(uintptr_t)value);
}

/* As Transformers hands it over: no null entries, reasoning under its newer and older name. */
static json_t *prepared(const json_t *message)
{
    const json_t *reasoning = find_reasoning(message);
    json_t *made = json_object(), *value;
    const char *key;

    if (reasoning) json_object_set_new(made, "thinking", share(reasoning));
    json_object_foreach((json_t *)(uintptr_t)message, key, value) if (!json_is_null(value))
        json_object_set(made, key, value);
    if (reasoning) json_object_set_new(made, "reasoning_content", share(reasoning));
    return made;
}

static cr_status check_messages(const json_t *messages, cr_err *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return cr_fail(err, CR_EFORMAT, "messages must be a list of at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++)
        CR_TRY(check_message(json_array_get(messages, i), i, err));
    return CR_OK;
}

/* ---- forms ---- */

static cr_status add_turn(const json_t *m, size_t i, cr_buf *out, cr_err *err)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");

    if (!json_is_string(content))
        return cr_fail(err, CR_EFORMAT, "message %zu: this template takes content as a string", i);
    cr_buf_adds(out, "<|im_start|>");
    cr_buf_add(out, json_string_value(role), json_string_length(role));
    cr_buf_adds(out, "\n");
    cr_buf_add(out, json_string_value(content), json_string_length(content));
    cr_buf_adds(out, "<|im_end|>\n");
    return CR_OK;
}

static cr_status chatml(const json_t *messages, bool is_single, bool add_generation_prompt,
                        cr_buf *out, cr_err *err)
{
    const json_t *first = json_array_get(messages, 0);

    if (is_single && (json_array_size(messages) != 1 ||
                      strcmp(json_string_value(json_object_get(first, "role")), "user") != 0))
        return cr_fail(err, CR_EFORMAT, "the template empty takes one user message and no other");
    for (size_t i = 0; i < json_array_size(messages); i++)
        CR_TRY(add_turn(json_array_get(messages, i), i, out, err));
    if (add_generation_prompt || is_single) cr_buf_adds(out, "<|im_start|>assistant\n");
    return CR_OK;
}

static const named_template *find_template(const cr_chat *c, const char *name)
{
    for (size_t i = 0; i < c->num_templates; i++)
        if (strcmp(c->template[i].name, name) == 0) return &c->template[i];
    return NULL;
}

/* thinking: -1 leaves enable_thinking undefined. */
static json_t *make_vars(const cr_chat *c, const json_t *messages, const json_t *more, int thinking,
                         bool add_generation_prompt)
{
    json_t *vars = json_object(), *list = json_array(), *value;
    const char *key;

    for (size_t i = 0; i < CR_COUNT(token_names); i++) { /* copies: chats are shared by threads */
        value = json_object_get(c->tokens, token_names[i]);
        if (value) json_object_set_new(vars, token_names[i], json_copy(value));
    }
    for (size_t i = 0; i < json_array_size(messages); i++)
        json_array_append_new(list, prepared(json_array_get(messages, i)));
    json_object_set_new(vars, "messages", list);
    json_object_set_new(vars, "tools", json_null());
    json_object_set_new(vars, "documents", json_null());
    json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt));
    if (thinking >= 0) json_object_set_new(vars, "enable_thinking", json_boolean(thinking));
    json_object_foreach((json_t *)(uintptr_t)more, key, value) json_object_set(vars, key, value);
    return vars;
}

static cr_status native(const cr_chat *c, const char *template_name, const json_t *messages,
                        const json_t *more, int thinking, bool add_generation_prompt, cr_buf *out,
                        cr_err *err)
{
    const json_t *tools = json_object_get(more, "tools");
    const named_template *t = find_template(c, template_name ? template_name : "default");
    json_t *vars;
    size_t start = out->num_bytes;
    cr_status status;

    if (!template_name && tools && !json_is_null(tools) && find_template(c, "tool_use"))
        t = find_template(c, "tool_use");
    if (!t)
        return cr_fail(err, CR_EABSENT,
                       "the model has no chat template (chat_template.jinja, or chat_template in "
                       "tokenizer_config.json); use data_args.prompt, or template: chatml");
    if (!t->jinja) return cr_fail(err, t->why.status, "%s", t->why.msg);
    vars = make_vars(c, messages, more, thinking, add_generation_prompt);
    status = cr_jinja_render(t->jinja, vars, out, err);
    json_decref(vars);
    if (status != CR_OK && out->data) {
        out->num_bytes = start;
        out->data[start] = 0;
    }
    return status;
}

bool cr_chat_has_vars(const char *name)
{
    return !name || (strcmp(name, "chatml") != 0 && strcmp(name, "empty") != 0);
}

cr_status cr_chat_render_with(const cr_chat *c, const char *name, const json_t *messages,
                              const json_t *vars, bool add_generation_prompt, cr_buf *out,
                              cr_err *err)
{
    static const char *const names[] = {
        "native", "qwen2_5", "qwen2-vl",  "qwen3", "native_nonthinking",
        "chatml", "empty",   "longcot_V3"};
    size_t i = 0;
    const char *near;

    CR_TRY(check_messages(messages, err));
    while (name && i < CR_COUNT(names) && strcmp(names[i], name) != 0)
        i++;
    if (i < 5) {
        int thinking = i == 3 ? 1 : i == 4 ? 0 : -1;
        return native(c, NULL, messages, vars, thinking, add_generation_prompt, out, err);
    }
    if (i < 7) return chatml(messages, i == 6, add_generation_prompt, out, err);
    if (i == 7) {
        CR_TRY(native(c, NULL, messages, vars, -1, add_generation_prompt, out, err));
        cr_buf_adds(out, "<think>\n");
        return CR_OK;
    }
    if (find_template(c, name))
        return native(c, name, messages, vars, -1, add_generation_prompt, out, err);
    if (strcmp(name, "base") == 0 || strcmp(name, "longCOT_qwen2.5") == 0)
        return cr_fail(
            err, CR_EABSENT,
            "the template %s is a prompt text of ROLL that croll does not carry; write it "
            "into the data (data_args.prompt)",
            name);
    near = cr_nearest(name, names, CR_COUNT(names));
    return cr_fail(err, CR_EABSENT, "there is no template %s%s%s", name,
                   near ? "; did you mean " : "", near ? near : "");
}

cr_status cr_chat_render(const cr_chat *c, const char *name, const json_t *messages,
                         bool add_generation_prompt, cr_buf *out, cr_err *err)
{
    return cr_chat_render_with(c, name, messages, NULL, add_generation_prompt, out, err);
}
