/* fields.c -- see fields.h. */
#include "samples/fields.h"

#include <string.h>

static const char *const type_names[CR_NUM_TYPES] = {"integer", "number",    "text",
                                                     "int32[]", "float32[]", "uint64[]"};

static bool is_array(const cr_field *f)
{
    return f->type >= CR_TYPE_INT32S;
}

static cr_record_kind kind_of(const cr_field *f)
{
    return f->type == CR_TYPE_INT32S   ? CR_RECORD_INT32
           : f->type == CR_TYPE_FLOATS ? CR_RECORD_FLOAT32
                                       : CR_RECORD_UINT64;
}

static void write_number(const cr_field *f, const char *member, cr_record *r)
{
    int64_t i = f->type == CR_TYPE_INT ? *(const int64_t *)(const void *)member : 0;
    double x = f->type == CR_TYPE_REAL ? *(const double *)(const void *)member : 0;

    if (f->is_optional && i == 0 && x == 0) return;
    if (f->type == CR_TYPE_INT)
        cr_record_set_int(r, f->name, i);
    else
        cr_record_set_real(r, f->name, x);
}

void cr_message_write(const cr_message *m, const void *from, cr_record *r)
{
    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const char *member = (const char *)from + f->at;
        if (is_array(f)) {
            const cr_field_array *a = (const cr_field_array *)(const void *)member;
            if (a->data || !f->is_optional) cr_record_add(r, f->name, kind_of(f), a->data, a->num);
        } else if (f->type == CR_TYPE_TEXT) {
            const cr_field_text *t = (const cr_field_text *)(const void *)member;
            if (t->data) cr_record_set_text(r, f->name, t->data, t->num_bytes);
            CR_CHECK(t->data || f->is_optional, "a %s without %s", m->name, f->name);
        } else {
            write_number(f, member, r);
        }
    }
}

static cr_status read_field(const cr_field *f, const cr_record *r, char *member, cr_err *err)
{
    cr_field_array *a = (cr_field_array *)(void *)member;
    cr_field_text *t = (cr_field_text *)(void *)member;

    if (is_array(f)) {
        *a = (cr_field_array){0};
        if (f->is_optional && !cr_record_has(r, f->name)) return CR_OK;
        return cr_record_get(r, f->name, kind_of(f), &a->data, &a->num, err);
    }
    if (f->type == CR_TYPE_TEXT) *t = (cr_field_text){0};
    if (f->type == CR_TYPE_INT) *(int64_t *)(void *)member = 0;
    if (f->type == CR_TYPE_REAL) *(double *)(void *)member = 0;
    if (f->is_optional && !cr_record_has_value(r, f->name)) return CR_OK;
    if (f->type == CR_TYPE_TEXT)
        return cr_record_get_text(r, f->name, &t->data, &t->num_bytes, err);
    if (f->type == CR_TYPE_INT)
        return cr_record_get_int(r, f->name, (int64_t *)(void *)member, err);
    return cr_record_get_real(r, f->name, (double *)(void *)member, err);
}

cr_status cr_message_read(const cr_message *m, const cr_record *r, void *to, cr_err *err)
{
    const cr_field_array *ids = NULL;

    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        CR_TRY(read_field(f, r, (char *)to + f->at, err));
        if (strcmp(f->name, "ids") == 0)
            ids = (const cr_field_array *)(const void *)((char *)to + f->at);
    }
    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const cr_field_array *a = (const cr_field_array *)(const void *)((char *)to + f->at);
        if (!is_array(f) || f->length != CR_LENGTH_PER_TOKEN || !a->data || !ids) continue;
        if (a->num != ids->num)
            return cr_fail(err, CR_EFORMAT, "%s has %zu numbers, expected %zu", f->name, a->num,
                           ids->num);
    }
    return CR_OK;
}

void cr_message_describe(const cr_message *m, cr_buf *out)
{
    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        cr_buf_addf(out, "| `%s` | `%s` | %s%s%s | %s |\n", m->stream, f->name, type_names[f->type],
                    f->length == CR_LENGTH_PER_TOKEN ? ", one a token" : "",
                    f->is_optional ? ", optional" : "", f->what);
    }
}
