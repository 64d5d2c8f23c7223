/* record.c -- see record.h. */
#include "exchange/record.h"

#include <string.h>

static const size_t kind_bytes[] = {4, sizeof(float), 8, 1};

void cr_record_free(cr_record *r)
{
    json_decref(r->head);
    cr_free(r->owned);
    *r = (cr_record){0};
}

static void set(cr_record *r, const char *key, json_t *value)
{
    if (!r->head) r->head = json_object();
    CR_CHECK(value && json_object_set_new(r->head, key, value) == 0, "record head %s cannot be set",
             key);
}

void cr_record_set_int(cr_record *r, const char *key, int64_t value)
{
    set(r, key, json_integer(value));
}

void cr_record_set_real(cr_record *r, const char *key, double value)
{
    set(r, key, json_real(value));
}

void cr_record_set_text(cr_record *r, const char *key, const char *text, size_t num_bytes)
{
    set(r, key, json_stringn_nocheck(text, num_bytes));
}

void cr_record_add(cr_record *r, const char *name, cr_record_kind kind, const void *data,
                   size_t num)
{
    struct cr_record_array *a = &r->arrays[r->num_arrays];

    CR_CHECK(r->num_arrays < CR_RECORD_ARRAYS && strlen(name) < sizeof a->name,
             "record array %s does not fit", name);
    memcpy(a->name, name, strlen(name) + 1);
    a->kind = kind;
    a->data = data;
    a->num = num;
    r->num_arrays++;
}

cr_status cr_record_pack(const cr_record *r, cr_buf *out, cr_err *err)
{
    cr_buf head = {0};
    uint32_t n;
    cr_status status = CR_OK;

    cr_buf_clear(out);
    if (r->head)
        status = cr_json_add_value(&head, r->head, err);
    else
        cr_buf_adds(&head, "{}");
    cr_buf_add(out, "CRR1", 4);
    n = (uint32_t)head.num_bytes;
    cr_buf_add(out, &n, 4);
    cr_buf_add(out, head.data, head.num_bytes);
    n = (uint32_t)r->num_arrays;
    cr_buf_add(out, &n, 4);
    for (size_t i = 0; i < r->num_arrays; i++) {
        const struct cr_record_array *a = &r->arrays[i];
        uint64_t num = a->num;
        cr_buf_addc(out, (char)a->kind);
        cr_buf_addc(out, (char)strlen(a->name));
        cr_buf_adds(out, a->name);
        cr_buf_add(out, &num, 8);
        cr_buf_add(out, a->data, a->num * kind_bytes[a->kind]);
    }
    cr_buf_free(&head);
    return status;
}

/* The next num_bytes of a message, or NULL when it is shorter. */
static const char *take(const char **at, const char *end, size_t num_bytes)
{
    const char *here = *at;

    if ((size_t)(end - here) < num_bytes) return NULL;
    *at = here + num_bytes;
    return here;
}

static cr_status unpack(const char *at, const char *end, cr_record *r, cr_err *err)
{
    const char *p = take(&at, end, 8);
    uint32_t n;
    size_t used = 0, rest;

    if (!p || memcmp(p, "CRR1", 4) != 0)
        return cr_fail(err, CR_EFORMAT, "a record does not begin with CRR1");
    memcpy(&n, p + 4, 4);
    p = take(&at, end, n);
    if (!p) return cr_fail(err, CR_EFORMAT, "a record's head of %u bytes is cut off", n);
    CR_TRY(cr_json_parse(p, n, "a record's head", &r->head, err));
    if (!json_is_object(r->head))
        return cr_fail(err, CR_EFORMAT, "a record's head is not an object");
    p = take(&at, end, 4);
    if (!p) return cr_fail(err, CR_EFORMAT, "a record ends after its head");
    memcpy(&n, p, 4);
    if (n > CR_RECORD_ARRAYS)
        return cr_fail(err, CR_EFORMAT, "a record has %u arrays, at most %d", n, CR_RECORD_ARRAYS);
    rest = (size_t)(end - at);
    r->owned = cr_alloc(rest + 64 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
        struct cr_record_array *a = &r->arrays[i];
        uint64_t num;
        unsigned char kind, name_bytes;
        p = take(&at, end, 2);
        kind = p ? (unsigned char)p[0] : 255;
        name_bytes = p ? (unsigned char)p[1] : 255;
        if (kind >= CR_COUNT(kind_bytes) || name_bytes >= sizeof a->name)
            return cr_fail(err, CR_EFORMAT, "array %u of a record has a wrong kind or name", i);
        p = take(&at, end, name_bytes + 8u);
        if (!p || memchr(p, 0, name_bytes))
            return cr_fail(err, CR_EFORMAT, "array %u of a record has a wrong name", i);
        memcpy(a->name, p, name_bytes);
        memcpy(&num, p + name_bytes, 8);
        if (num > (uint64_t)(end - at) / kind_bytes[kind])
            return cr_fail(err, CR_EFORMAT, "array %s of a record is cut off", a->name);
        p = take(&at, end, num * kind_bytes[kind]);
        a->kind = (cr_record_kind)kind;
        a->num = num;
        a->data = (char *)r->owned + used;
        memcpy((char *)r->owned + used, p, num * kind_bytes[kind]);
        used += (num * kind_bytes[kind] + 63) / 64 * 64;
        r->num_arrays = i + 1;
    }
    if (at != end) return cr_fail(err, CR_EFORMAT, "%zu bytes follow a record", (size_t)(end - at));
    return CR_OK;
}

cr_status cr_record_unpack(const void *data, size_t num_bytes, cr_record *r, cr_err *err)
{
    *r = (cr_record){0};
    if (unpack(data, (const char *)data + num_bytes, r, err) != CR_OK) cr_record_free(r);
    return err->status;
}

cr_status cr_record_get_int(const cr_record *r, const char *key, int64_t *out, cr_err *err)
{
    json_t *v = json_object_get(r->head, key);

    if (!json_is_integer(v))
        return cr_fail(err, CR_EFORMAT, "a record has no whole number \"%s\"", key);
    *out = json_integer_value(v);
    return CR_OK;
}

cr_status cr_record_get_real(const cr_record *r, const char *key, double *out, cr_err *err)
{
    json_t *v = json_object_get(r->head, key);

    if (!json_is_number(v)) return cr_fail(err, CR_EFORMAT, "a record has no number \"%s\"", key);
    *out = json_number_value(v);
    return CR_OK;
}

cr_status cr_record_get_text(const cr_record *r, const char *key, const char **out,
                             size_t *num_bytes, cr_err *err)
{
    json_t *v = json_object_get(r->head, key);

    if (!json_is_string(v)) return cr_fail(err, CR_EFORMAT, "a record has no text \"%s\"", key);
    *out = json_string_value(v);
    *num_bytes = json_string_length(v);
    return CR_OK;
}

static const struct cr_record_array *find(const cr_record *r, const char *name)
{
    for (size_t i = 0; i < r->num_arrays; i++)
        if (strcmp(r->arrays[i].name, name) == 0) return &r->arrays[i];
    return NULL;
}

cr_status cr_record_get(const cr_record *r, const char *name, cr_record_kind kind, const void **out,
                        size_t *num, cr_err *err)
{
    const struct cr_record_array *a = find(r, name);

    if (!a || a->kind != kind)
        return cr_fail(err, CR_EFORMAT, "a record has no array \"%s\" of the right kind", name);
    *out = a->data;
    *num = a->num;
    return CR_OK;
}

bool cr_record_has(const cr_record *r, const char *name)
{
    return find(r, name) != NULL;
}

bool cr_record_has_value(const cr_record *r, const char *key)
{
    return json_object_get(r->head, key) != NULL;
}
