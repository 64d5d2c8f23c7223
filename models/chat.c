/* chat.c -- see chat.h. The ChatML family is rendered directly: a template is taken for one of its
 * forms only when its text is that form's. */
#include "models/chat.h"

#include <string.h>

typedef enum form { FORM_NONE, FORM_CHATML, FORM_OTHER } form;

struct cr_chat {
    form form;
    char *default_system; /* inserted when the first message is no system turn; NULL: none */
    char *template;
};

/* The template of plain ChatML: every turn alike, an opener at the end. */
static bool is_chatml(const char *t)
{
    return strstr(t,
                  "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'") &&
           !strstr(t, "tool") && !strstr(t, "think") && !strstr(t, "trim");
}

/* A default system turn: {% if loop.first and messages[0]['role'] != 'system' %}{{ '..' }}. */
static char *find_default_system(const char *t)
{
    const char *start = strstr(t, "{{ '<|im_start|>system\\n"), *end;

    if (!start || !strstr(t, "messages[0]['role'] != 'system'")) return NULL;
    start += strlen("{{ '<|im_start|>system\\n");
    end = strstr(start, "<|im_end|>");
    return end ? cr_strndup(start, (size_t)(end - start)) : NULL;
}

cr_status cr_chat_open(const char *folder, cr_chat **out, cr_err *err)
{
    cr_chat *c = CR_NEW(cr_chat);
    char *jinja = cr_path_join(folder, "chat_template.jinja"),
         *config = cr_path_join(folder, "tokenizer_config.json");
    cr_buf text = {0};
    json_t *root = NULL;

    *out = NULL;
    if (cr_file_exists(jinja)) {
        if (cr_file_read(jinja, &text, err) == CR_OK) c->template = cr_strdup(text.data);
    } else if (cr_file_exists(config) && cr_json_read_file(config, &root, err) == CR_OK) {
        const char *t = json_string_value(json_object_get(root, "chat_template"));
        if (t) c->template = cr_strdup(t);
    }
    if (c->template) {
        c->form = is_chatml(c->template) ? FORM_CHATML : FORM_OTHER;
        c->default_system = find_default_system(c->template);
    }
    json_decref(root);
    cr_buf_free(&text);
    cr_free(jinja);
    cr_free(config);
    if (err->status == CR_OK)
        *out = c;
    else
        cr_chat_close(c);
    return err->status;
}

void cr_chat_close(cr_chat *c)
{
    if (!c) return;
    cr_free(c->template);
    cr_free(c->default_system);
    cr_free(c);
}

static cr_status chatml(const char *default_system, const json_t *messages,
                        bool add_generation_prompt, cr_buf *out, cr_err *err)
{
    size_t i;
    json_t *m;

    json_array_foreach(messages, i, m)
    {
        json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
        if (!json_is_string(role) || !json_is_string(content))
            return cr_fail(err, CR_EFORMAT, "message %zu has no text role and content", i);
        if (i == 0 && default_system && strcmp(json_string_value(role), "system") != 0)
            cr_buf_addf(out, "<|im_start|>system\n%s<|im_end|>\n", default_system);
        cr_buf_addf(out, "<|im_start|>%s\n", json_string_value(role));
        cr_buf_add(out, json_string_value(content), json_string_length(content));
        cr_buf_adds(out, "<|im_end|>\n");
    }
    if (add_generation_prompt) cr_buf_adds(out, "<|im_start|>assistant\n");
    return CR_OK;
}

cr_status cr_chat_render(const cr_chat *c, const char *name, const json_t *messages,
                         bool add_generation_prompt, cr_buf *out, cr_err *err)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return cr_fail(err, CR_EFORMAT, "messages must be a list of at least one message");
    if (name && strcmp(name, "chatml") == 0)
        return chatml(NULL, messages, add_generation_prompt, out, err);
    if (name && strcmp(name, "native") != 0 && strcmp(name, "qwen2_5") != 0 &&
        strcmp(name, "qwen3") != 0)
        return cr_fail(err, CR_EABSENT, "the template %s is not available yet", name);
    if (c->form == FORM_NONE)
        return cr_fail(err, CR_EABSENT,
                       "the model has no chat template (tokenizer_config.json: chat_template); use "
                       "data_args.prompt, or template: chatml");
    if (c->form == FORM_OTHER)
        return cr_fail(err, CR_EABSENT,
                       "the model's chat template is not ChatML and not available yet");
    return chatml(c->default_system, messages, add_generation_prompt, out, err);
}
