/* messages.c -- see messages.h. */
#include "data/messages.h"

#include <string.h>

/* Chats of ShareGPT's form: {"from": "human", "value": ..}. A new reference; other lists are as they are. */
static json_t *with_roles(json_t *list)
{
    static const char *const roles[][2] = {{"human", "user"},
                                           {"gpt", "assistant"},
                                           {"function_call", "assistant"},
                                           {"observation", "tool"}};
    json_t *first = json_array_get(list, 0), *out, *message;
    size_t i;

    if (!json_object_get(first, "from") || json_object_get(first, "role")) return json_incref(list);
    out = json_array();
    json_array_foreach(list, i, message)
    {
        json_t *from = json_object_get(message, "from"), *copy = json_object();
        const char *name = json_string_value(from);
        for (size_t k = 0; name && k < CR_COUNT(roles); k++)
            if (strcmp(name, roles[k][0]) == 0) from = json_string(roles[k][1]);
        if (from == json_object_get(message, "from")) json_incref(from);
        json_object_set_new(copy, "role", from);
        json_object_set(copy, "content", json_object_get(message, "value"));
        json_array_append_new(out, copy);
    }
    return out;
}

/* `messages`: a list, or a list written as JSON text. */
static cr_status read_messages(const json_t *column, const char *name, json_t **out, cr_err *err)
{
    const char *text;

    *out = NULL;
    if (json_is_array(column)) {
        *out = json_incref((json_t *)(uintptr_t)column);
        return CR_OK;
    }
    if (!json_is_string(column))
        return cr_fail(err, CR_EFORMAT,
                       "the column %s is %s, a list of messages is expected (data_args.messages "
                       "names the column)",
                       name, column ? "no list" : "missing");
    text = json_string_value(column);
    if (!strchr("[{", text[strspn(text, " \t\r\n")]))
        return cr_fail(err, CR_EFORMAT,
                       "the column %s is plain text, a list of messages is expected "
                       "(data_args.columns: {%s: {path: %s, "
                       "role: user}} makes a chat of a question)",
                       name, name, name);
    CR_TRY(cr_json_parse(text, json_string_length(column), name, out, err));
    if (json_is_array(*out)) return CR_OK;
    json_decref(*out);
    *out = NULL;
    return cr_fail(err, CR_EFORMAT, "the column %s holds no list of messages", name);
}

cr_status cri_messages_read(const json_t *column, const char *name, json_t **out, cr_err *err)
{
    json_t *list;

    *out = NULL;
    CR_TRY(read_messages(column, name, &list, err));
    *out = with_roles(list);
    json_decref(list);
    return CR_OK;
}
