/* columns.c -- see columns.h. */
#include "data/columns.h"

#include <stdlib.h>
#include <string.h>

/* A list or an object that is written as JSON text; NULL: it is neither. */
static json_t *read_text(const json_t *text)
{
    const char *s = json_string_value(text);
    json_t *out = NULL;
    cr_err ignored = {0};

    if (!s || cr_json_digits(text) ||
        (s[strspn(s, " \t\r\n")] != '{' && s[strspn(s, " \t\r\n")] != '['))
        return NULL;
    cr_note(
        cr_json_parse_integers(s, json_string_length(text), NULL, CR_JSON_EXACT, &out, &ignored));
    return out;
}

/* The members that there are, as many as fit. */
static void list_members(const json_t *at, char *out, size_t size)
{
    const char *key;
    json_t *ignored;
    size_t n = 0;

    out[0] = 0;
    json_object_foreach((json_t *)(uintptr_t)at, key, ignored)
    {
        if (n >= size) break;
        n += (size_t)snprintf(out + n, size - n, "%s%.40s", n ? ", " : "", key);
    }
}

static cr_status not_there(const char *path, size_t done, const json_t *at, cr_err *err)
{
    const char *what = json_is_array(at)    ? "is a list"
                       : json_is_object(at) ? "has"
                                            : "is no object";
    char members[160], where[100] = "the row";

    list_members(at, members, sizeof members);
    if (done) snprintf(where, sizeof where, "%.*s", (int)done - 1, path);
    return cr_fail(err, CR_EFORMAT, "%s: there is no %.60s, %s %s%s%s", path, path + done, where,
                   what, *members ? " " : "", members);
}

/* One step along path[*done ..], to the member with the longest name; *done moves past it. NULL: the path leads no further. */
static json_t *step(const json_t *at, const char *path, size_t *done)
{
    const char *rest = path + *done;
    json_t *to = NULL;

    for (size_t n = strlen(rest); n && !to; n--) {
        char *name = rest[n] == '.' || !rest[n] ? cr_strndup(rest, n) : NULL, *end;
        if (name && json_is_object(at)) {
            to = json_object_get(at, name);
        } else if (name && json_is_array(at)) {
            unsigned long i = strtoul(name, &end, 10);
            to = *end || strspn(name, "0123456789") == 0 ? NULL : json_array_get(at, i);
        }
        if (to) *done += n + (rest[n] == '.');
        cr_free(name);
    }
    return to;
}

/* What a path leads to: a new reference. */
static cr_status follow(const json_t *row, const char *path, json_t **out, cr_err *err)
{
    json_t *at = json_incref((json_t *)(uintptr_t)row);
    size_t done = 0;

    *out = NULL;
    while (path[done]) {
        json_t *read = read_text(at), *to = step(read ? read : at, path, &done);
        if (!to) not_there(path, done, read ? read : at, err);
        json_incref(to);
        json_decref(read);
        json_decref(at);
        at = to;
        if (!to) return err->status;
    }
    *out = at;
    return CR_OK;
}

/* A part as text, for `after` and `role`: *out is borrowed from value or in buf. */
static cr_status text_of(const cr_data_column_part *p, const json_t *value, const char **out,
                         cr_buf *buf, cr_err *err)
{
    if (json_is_string(value) && !cr_json_digits(value)) {
        *out = json_string_value(value);
        return CR_OK;
    }
    if (!json_is_number(value) && !cr_json_digits(value))
        return cr_fail(err, CR_EFORMAT, "%s: a text is expected for %s", p->path,
                       p->after ? "after" : "role");
    CR_TRY(cr_json_add_value(buf, value, err));
    *out = buf->data;
    return CR_OK;
}

/* The text after the last place where `after` stands, without blanks around it. */
static cr_status cut(const cr_data_column_part *p, const char **text, size_t *num, cr_err *err)
{
    const char *last = NULL;

    *num = strlen(*text);
    if (!p->after) return CR_OK;
    for (const char *at = *text; (at = strstr(at, p->after)) != NULL; at++)
        last = at;
    if (!last)
        return cr_fail(err, CR_EFORMAT, "%s: the text has no \"%.40s\" (after): %.60s", p->path,
                       p->after, *text);
    last += strlen(p->after);
    last += strspn(last, " \t\r\n");
    for (*num = strlen(last); *num && strchr(" \t\r\n", last[*num - 1]); --*num)
        continue;
    *text = last;
    return CR_OK;
}

static cr_status make_part(const cr_data_column_part *p, const json_t *row, json_t **out,
                           cr_err *err)
{
    json_t *value = NULL;
    cr_buf buf = {0};
    const char *text = p->value;
    size_t num;

    *out = NULL;
    if (p->path) CR_TRY(follow(row, p->path, &value, err));
    if (p->path && !p->after && !p->role) {
        *out = value;
        return CR_OK;
    }
    if (p->path) CR_TRY_GOTO(out, text_of(p, value, &text, &buf, err));
    CR_TRY_GOTO(out, cut(p, &text, &num, err));
    *out = json_stringn(text, num);
    if (*out && p->role) *out = json_pack("[{s:s, s:o}]", "role", p->role, "content", *out);
    if (!*out) cr_fail(err, CR_EFORMAT, "%s: the text is not UTF-8", p->path ? p->path : "value");
out:
    json_decref(value);
    cr_buf_free(&buf);
    return err->status;
}

/* Lists, one after the other. */
static cr_status join(const cr_data_column *c, const json_t *row, json_t **out, cr_err *err)
{
    *out = json_array();
    for (size_t k = 0; k < c->num_parts && err->status == CR_OK; k++) {
        json_t *part, *read;
        if (make_part(&c->parts[k], row, &part, err) != CR_OK) break;
        read = read_text(part);
        if (json_array_extend(*out, read ? read : part) != 0)
            cr_fail(err, CR_EFORMAT,
                    "%s: a list is expected, as of all parts of a list (role makes "
                    "one of a text)",
                    c->parts[k].path ? c->parts[k].path : "value");
        json_decref(part);
        json_decref(read);
    }
    if (err->status == CR_OK) return CR_OK;
    json_decref(*out);
    *out = NULL;
    return err->status;
}

/* row->text is what row->json has; a row without text stays so. */
static cr_status write_text(cr_row *row, cr_err *err)
{
    cr_buf text = {0};

    if (!row->text) return CR_OK;
    if (cr_json_add_value(&text, row->json, err) == CR_OK) {
        cr_free(row->text);
        row->text = text.data;
    } else {
        cr_buf_free(&text);
    }
    return err->status;
}

cr_status cr_columns_add_tag(const cr_config *c, const cr_data_args *from, cr_row *row, cr_err *err)
{
    json_t *tag = json_object_get(row->json, "tag"),
           *source = json_object_get(row->json, "data_source");
    int32_t *blocks;
    size_t num;

    if ((from->tag && strcmp(from->tag, "tag") != 0) || (tag && !json_is_null(tag)) ||
        !json_is_string(source))
        return CR_OK;
    blocks = CR_NEW_ARRAY(int32_t, c->num_rewards);
    num = cr_config_rewards_of(c, json_string_value(source), blocks);
    cr_free(blocks);
    if (num == 0 && c->num_rewards == 1) return CR_OK;
    json_object_set(row->json, "tag", source);
    return write_text(row, err);
}

cr_status cr_columns_make(const cr_data_args *from, cr_row *row, cr_err *err)
{
    json_t *made;
    const char *name;
    json_t *value;

    if (from->num_columns == 0) return CR_OK;
    made = json_object();
    for (size_t i = 0; i < from->num_columns && err->status == CR_OK; i++) {
        const cr_data_column *c = &from->columns[i];
        cr_note(c->is_list ? join(c, row->json, &value, err)
                           : make_part(&c->parts[0], row->json, &value, err));
        if (err->status == CR_OK)
            json_object_set_new(made, c->name, value);
        else
            cr_fail_add(err, "data_args.columns: %s", c->name);
    }
    if (err->status == CR_OK) {
        json_object_foreach(made, name, value) json_object_set(row->json, name, value);
        cr_note(write_text(row, err));
    }
    json_decref(made);
    return err->status;
}
