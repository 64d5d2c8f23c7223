/* fields.c -- see fields.h. */
#include "samples/fields.h"
#include "samples/protocol.h"

#include <math.h>
#include <string.h>

static const char *const type_names[CR_NUM_TYPES] = {
    [CR_TYPE_INT] = "integer",     [CR_TYPE_REAL] = "number",    [CR_TYPE_TEXT] = "text",
    [CR_TYPE_JSON] = "text",       [CR_TYPE_INT32S] = "int32[]", [CR_TYPE_FLOATS] = "float32[]",
    [CR_TYPE_UINT64S] = "uint64[]"};

static bool is_array(const cr_field *f)
{
    return f->type >= CR_TYPE_INT32S;
}

static cr_record_kind kind_of(const cr_field *f)
{
    return f->type == CR_TYPE_UINT64S ? CR_RECORD_UINT64
           : f->type < CR_TYPE_FLOATS ? CR_RECORD_INT32
                                      : CR_RECORD_FLOAT32;
}

/* Numbers are there unless they are 0. */
static bool is_there(const cr_field *f, const void *member)
{
    const cr_field_array *a = member;
    const cr_field_json *x = member;

    if (f->type == CR_TYPE_JSON) return x->value || x->text.data;
    if (f->type == CR_TYPE_INT) return *(const int64_t *)member != 0;
    if (f->type == CR_TYPE_REAL) return *(const double *)member != 0;
    if (f->type == CR_TYPE_LISTS) a--;
    return is_array(f) ? a->data != NULL : ((const cr_field_text *)member)->data != NULL;
}

/* Arrays with a number for each token have as many as ids. */
static cr_status check_lengths(const cr_message *m, const void *of, cr_err *err)
{
    const cr_field_array *ids = NULL;

    for (size_t i = 0; i < m->num_fields; i++)
        if (strcmp(m->fields[i].name, CR_FIELD_IDS) == 0)
            ids = (const void *)((const char *)of + m->fields[i].at);
    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const cr_field_array *a = (const void *)((const char *)of + f->at);
        if (!is_array(f) || f->length != CR_LENGTH_PER_TOKEN || !a->data || !ids) continue;
        if (a->num != ids->num)
            return cr_fail(err, CR_EFORMAT, "%s has %zu numbers, expected %zu", f->name, a->num,
                           ids->num);
    }
    return CR_OK;
}

/* ---- records ---- */

static void write_text(const cr_field *f, const json_t *value, cr_record *r)
{
    cr_buf text = {0};
    cr_err err = {0};

    CR_CHECK(cr_json_add_value(&text, value, &err) == CR_OK, "%s: %s", f->name, err.msg);
    cr_record_set_text(r, f->name, text.data, text.num_bytes);
    cr_buf_free(&text);
}

void cr_message_write(const cr_message *m, const void *from, cr_record *r)
{
    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const void *member = (const char *)from + f->at;
        const cr_field_array *a = member;
        const cr_field_text *t = member;
        if (f->is_optional && !is_there(f, member)) continue;
        if (is_array(f)) {
            cr_record_add(r, f->name, kind_of(f), a->data, a->num);
        } else if (f->type == CR_TYPE_INT) {
            cr_record_set_int(r, f->name, *(const int64_t *)member);
        } else if (f->type == CR_TYPE_REAL) {
            cr_record_set_real(r, f->name, *(const double *)member);
        } else if (f->type == CR_TYPE_JSON) {
            write_text(f, ((const cr_field_json *)member)->value, r);
        } else {
            CR_CHECK(t->data, "a %s without %s", m->name, f->name);
            cr_record_set_text(r, f->name, t->data, t->num_bytes);
        }
    }
}

static cr_status read_field(const cr_field *f, const cr_record *r, void *member, cr_err *err)
{
    json_t *x = json_object_get(r->head, f->name);
    const bool is_given = is_array(f) ? cr_record_has(r, f->name) : x != NULL;
    cr_field_array *a = member;
    cr_field_text *t = member;

    if (is_array(f)) *a = (cr_field_array){0};
    if (f->type == CR_TYPE_INT) *(int64_t *)member = 0;
    if (f->type == CR_TYPE_REAL) *(double *)member = json_is_null(x) ? (double)NAN : 0;
    if (f->type == CR_TYPE_TEXT) *t = (cr_field_text){0};
    if (f->type == CR_TYPE_JSON) *(cr_field_json *)member = (cr_field_json){.value = x};
    if (f->is_optional && !is_given) return CR_OK;
    if (is_array(f)) return cr_record_get(r, f->name, kind_of(f), &a->data, &a->num, err);
    if (f->type == CR_TYPE_INT) return cr_record_get_int(r, f->name, member, err);
    if (f->type == CR_TYPE_TEXT)
        return cr_record_get_text(r, f->name, &t->data, &t->num_bytes, err);
    return x && (f->type == CR_TYPE_JSON || json_is_null(x))
               ? CR_OK
               : cr_record_get_real(r, f->name, member, err);
}

cr_status cr_message_read(const cr_message *m, const cr_record *r, void *to, cr_err *err)
{
    for (size_t i = 0; i < m->num_fields; i++)
        CR_TRY(read_field(&m->fields[i], r, (char *)to + m->fields[i].at, err));
    return check_lengths(m, to, err);
}

/* ---- JSON objects ---- */

static cr_status write_column(const float *x, size_t num, cr_buf *out, cr_err *err)
{
    for (size_t i = 1; i < num; i++)
        if (x[i] != x[0]) return cr_json_add_floats(out, x, num, err);
    return cr_json_add_float(out, x[0], err);
}

static void write_lists(const cr_field_array *num, const int32_t *ids, cr_buf *out)
{
    const int32_t *n = num->data;

    for (size_t t = 0; t < num->num; ids += n[t++]) {
        cr_buf_addc(out, t ? ',' : '[');
        cr_json_add_ids(out, ids, (size_t)n[t]);
    }
    cr_buf_addc(out, ']');
}

static cr_status write_value(const cr_field *f, const void *member, cr_buf *out, cr_err *err)
{
    const cr_field_array *a = member;
    const cr_field_text *t =
        f->type == CR_TYPE_JSON ? &((const cr_field_json *)member)->text : member;
    const json_t *value = f->type == CR_TYPE_JSON ? ((const cr_field_json *)member)->value : NULL;
    const double number = f->type == CR_TYPE_REAL ? *(const double *)member : 0;

    if (f->type == CR_TYPE_REAL && !isnan(number)) return cr_json_add_double(out, number, err);
    if (f->type == CR_TYPE_FLOATS) return cr_json_add_floats(out, a->data, a->num, err);
    if (f->type == CR_TYPE_COLUMN) return write_column(a->data, a->num, out, err);
    if (value) return cr_json_add_value(out, value, err);
    if (f->type == CR_TYPE_INT)
        cr_json_add_int(out, *(const int64_t *)member);
    else if (f->type == CR_TYPE_INT32S)
        cr_json_add_ids(out, a->data, a->num);
    else if (f->type == CR_TYPE_LISTS)
        write_lists(&a[-1], a->data, out);
    else if (f->type == CR_TYPE_REAL || !t->data)
        cr_buf_adds(out, "null");
    else if (f->type == CR_TYPE_TEXT)
        cr_json_add_string(out, t->data, t->num_bytes);
    else
        cr_buf_add(out, t->data, t->num_bytes);
    return CR_OK;
}

cr_status cr_message_write_json(const cr_message *m, const void *from, cr_buf *out, cr_err *err)
{
    const char *between = "";

    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const void *member = (const char *)from + f->at;
        if (f->type == CR_TYPE_COUNTS || (f->is_optional && !is_there(f, member))) continue;
        cr_buf_addf(out, "%s\"%s\":", between, f->name);
        CR_TRY(write_value(f, member, out, err));
        between = ",";
    }
    return CR_OK;
}

/* False: there is something else than ids, or numbers, in it. */
static bool add_numbers(const json_t *list, bool is_float, cr_buf *out)
{
    const json_t *x;
    size_t i;

    json_array_foreach(list, i, x)
    {
        const json_int_t id = json_integer_value(x);
        const float real = (float)json_number_value(x);
        if (is_float ? !json_is_number(x) : !json_is_integer(x) || id < 0 || id > INT32_MAX)
            return false;
        cr_buf_add(out, is_float ? (const void *)&real : &(int32_t){(int32_t)id}, sizeof real);
    }
    return json_is_array(list);
}

/* The list of a field as an array of the record; lists one after the other, and their lengths as that of the field before. */
static bool add_list(const cr_field *f, const json_t *list, cr_arena *memory, cr_record *r)
{
    cr_buf numbers = {0}, lengths = {0};
    bool is_right = json_is_array(list);
    const json_t *one;
    size_t i;

    if (f->type != CR_TYPE_LISTS)
        is_right = add_numbers(list, f->type == CR_TYPE_FLOATS, &numbers);
    else
        json_array_foreach(list, i, one)
        {
            is_right = is_right && add_numbers(one, false, &numbers);
            cr_buf_add(&lengths, &(int32_t){(int32_t)json_array_size(one)}, sizeof(int32_t));
        }
    for (int k = f->type == CR_TYPE_LISTS ? 1 : 0; k >= 0; k--) {
        const cr_buf *from = k ? &lengths : &numbers;
        cr_record_add(r, f[-k].name, kind_of(f),
                      cr_arena_strndup(memory, from->data ? from->data : "", from->num_bytes),
                      from->num_bytes / sizeof(int32_t));
    }
    cr_buf_free(&numbers);
    cr_buf_free(&lengths);
    return is_right;
}

cr_status cr_message_read_json(const cr_message *m, json_t *from, cr_arena *memory, void *to,
                               cr_err *err)
{
    cr_record r = {.head = from};

    for (size_t i = 0; i < m->num_fields; i++) {
        const cr_field *f = &m->fields[i];
        const json_t *x = json_object_get(from, f->name);
        if (f->type == CR_TYPE_COUNTS || f->type == CR_TYPE_COLUMN) continue;
        if (x && is_array(f) && !add_list(f, x, memory, &r))
            return cr_fail(err, CR_EFORMAT, "%s is not a list of numbers", f->name);
    }
    return cr_message_read(m, &r, to, err);
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
