/* formula_request.c -- reading requests by tables, writing answers (see formula_impl.h). */
#include "formula/formula_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers ---- */

static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text (string)";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    }
    return "nothing";
}

/* What a person wrote, short and on one line. */
static const char *shown(const char *text, char out[64])
{
    size_t n = 0;

    for (; text[n] && n < 60; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7F ? '?' : text[n];
    out[n] = 0;
    return out;
}

/* rules for the number, and whether it is one; at names it: "old_log_probs[0][3]". */
static cr_status read_number(const json_t *v, const char *at, int rules, double *x, cr_err *err)
{
    if (!json_is_number(v))
        return cr_fail(err, CR_EARG, "%s is %s, but a number is needed", at, kind_of(v));
    *x = json_number_value(v);
    if (!isfinite(*x)) return cr_fail(err, CR_EARG, "%s is not a finite number", at);
    if ((rules & CRI_F_WHOLE) && (*x != floor(*x) || *x < 0 || *x > 9007199254740992.0))
        return cr_fail(err, CR_EARG, "%s is %.9g, but a whole number of at least 0 is needed", at,
                       *x);
    if ((rules & CRI_F_POSITIVE) && *x <= 0)
        return cr_fail(err, CR_EARG, "%s is %.9g, but must be greater than 0%s", at, *x,
                       rules & CRI_F_NULLABLE ? " (null switches it off)" : "");
    if ((rules & CRI_F_NONNEGATIVE) && *x < 0)
        return cr_fail(err, CR_EARG, "%s is %.9g, but must not be less than 0", at, *x);
    return CR_OK;
}

double *cri_numbers(cri_formula_request *r, size_t num)
{
    double *x = cr_arena_alloc(r->arena, num * sizeof(double));

    memset(x, 0, num * sizeof(double));
    return x;
}

size_t cri_num_tokens(const cri_formula_request *r)
{
    return r->has_rows ? r->rows.start[r->rows.num_samples] : 0;
}

double *cri_tokens(cri_formula_request *r)
{
    return cri_numbers(r, cri_num_tokens(r));
}

/* Numbers of a list to x; index: "" or "[3]", between key and place. */
static cr_status read_numbers(const json_t *list, const char *key, const char *index, int rules,
                              double *x, cr_err *err)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        char at[120];
        if (json_is_real(v) && rules == 0) { /* nearly all; the parser refused what is not finite */
            x[i] = json_real_value(v);
            continue;
        }
        snprintf(at, sizeof at, "%s%s[%zu]", key, index, i);
        CR_TRY(read_number(v, at, rules, &x[i], err));
    }
    return CR_OK;
}

cr_status cri_read_list(cri_formula_request *r, const json_t *list, const char *key, int rules,
                        size_t *num, double **out, cr_err *err)
{
    if (!json_is_array(list))
        return cr_fail(err, CR_EARG, "%s is %s, but a list of numbers is needed", key,
                       kind_of(list));
    if (*num == SIZE_MAX) *num = json_array_size(list);
    if (json_array_size(list) != *num)
        return cr_fail(err, CR_EARG, "%s has %zu numbers, expected %zu", key, json_array_size(list),
                       *num);
    *out = cri_numbers(r, *num);
    return read_numbers(list, key, "", rules, *out, err);
}

/* ---- rows ---- */

/* The number of samples that all per-sample fields share. */
static cr_status agree_on_samples(cri_formula_request *r, const char *key, size_t num, cr_err *err)
{
    if (r->has_samples && r->num_samples != num)
        return cr_fail(err, CR_EARG, "%s has %zu samples, but %s has %zu", key, num, r->samples_key,
                       r->num_samples);
    if (!r->has_samples) r->samples_key = key;
    r->has_samples = true;
    r->num_samples = num;
    return CR_OK;
}

static cr_status take_shape(cri_formula_request *r, const json_t *list, const char *key,
                            cr_err *err)
{
    size_t num = json_array_size(list), *start, i;
    const json_t *row;

    CR_TRY(agree_on_samples(r, key, num, err));
    start = cr_arena_alloc(r->arena, (num + 1) * sizeof *start);
    start[0] = 0;
    json_array_foreach(list, i, row)
    {
        if (!json_is_array(row))
            return cr_fail(err, CR_EARG,
                           "%s[%zu] is %s, but %s is a list of rows, one list of numbers a sample",
                           key, i, kind_of(row), key);
        start[i + 1] = start[i] + json_array_size(row);
    }
    r->rows = (cr_ragged){num, start};
    r->rows_key = key;
    r->has_rows = true;
    return CR_OK;
}

static cr_status read_rows(cri_formula_request *r, const json_t *list, const char *key,
                           bool is_mask, const double **out, cr_err *err)
{
    const json_t *row;
    double *x;
    size_t i;

    if (!json_is_array(list))
        return cr_fail(err, CR_EARG, "%s is %s, but a list of rows is needed", key, kind_of(list));
    if (!r->has_rows) CR_TRY(take_shape(r, list, key, err));
    CR_TRY(agree_on_samples(r, key, json_array_size(list), err));
    *out = x = cri_tokens(r);
    json_array_foreach(list, i, row)
    {
        size_t first = r->rows.start[i], num = r->rows.start[i + 1] - first;
        char index[32];
        snprintf(index, sizeof index, "[%zu]", i);
        if (!json_is_array(row))
            return cr_fail(err, CR_EARG,
                           "%s%s is %s, but %s is a list of rows, one list of numbers a sample",
                           key, index, kind_of(row), key);
        if (json_array_size(row) != num)
            return cr_fail(err, CR_EARG, "%s%s has %zu numbers, but %s%s has %zu", key, index,
                           json_array_size(row), r->rows_key, index, num);
        CR_TRY(read_numbers(row, key, index, 0, x + first, err));
        for (size_t t = first; t < first + num && is_mask; t++)
            if (x[t] != 0 && x[t] != 1)
                return cr_fail(err, CR_EARG, "%s%s[%zu] is %.9g, but a mask holds 0 and 1", key,
                               index, t - first, x[t]);
    }
    return CR_OK;
}

/* ---- fields ---- */

static cr_status read_flags(cri_formula_request *r, const json_t *list, const char *key,
                            const double **out, cr_err *err)
{
    const json_t *v;
    double *x;
    size_t i;

    if (!json_is_array(list))
        return cr_fail(err, CR_EARG, "%s is %s, but a list of true and false is needed", key,
                       kind_of(list));
    CR_TRY(agree_on_samples(r, key, json_array_size(list), err));
    *out = x = cri_numbers(r, json_array_size(list));
    json_array_foreach(list, i, v)
    {
        double flag = json_is_number(v) ? json_number_value(v) : json_is_true(v);
        if (!json_is_boolean(v) && !json_is_number(v))
            return cr_fail(err, CR_EARG, "%s[%zu] is %s, but true or false is needed", key, i,
                           kind_of(v));
        if (flag != 0 && flag != 1)
            return cr_fail(err, CR_EARG, "%s[%zu] is %.9g, but true or false (1 or 0) is needed",
                           key, i, flag);
        x[i] = flag;
    }
    return CR_OK;
}

static cr_status read_choice(const json_t *v, const char *at, const char *const *choices, int *to,
                             cr_err *err)
{
    const char *text = json_string_value(v), *near;
    char short_text[64];
    cr_buf all = {0};
    size_t num = 0;

    for (; choices[num]; num++) {
        if (text && *text && strlen(text) == json_string_length(v) &&
            strcmp(choices[num], text) == 0) {
            cr_buf_free(&all);
            *to = (int)num;
            return CR_OK;
        }
        cr_buf_addf(&all, "%s%s", num ? ", " : "", *choices[num] ? choices[num] : "null");
    }
    near = text ? cr_nearest(shown(text, short_text), choices, num) : NULL;
    cr_fail(err, CR_EARG, "%s is %s%s%s, expected one of %s%s%s%s", at, text ? "\"" : "",
            text ? shown(text, short_text) : kind_of(v), text ? "\"" : "", all.data,
            near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    cr_buf_free(&all);
    return err->status;
}

static void set_null(const cri_formula_field *f)
{
    if (f->kind == CRI_F_CHOICE)
        *(int *)f->to = 0;
    else if (f->kind == CRI_F_NUMBER || f->kind == CRI_F_COUNT)
        *(double *)f->to = 0;
}

static cr_status read_field(cri_formula_request *r, const json_t *v, const char *where,
                            const cri_formula_field *f, cr_err *err)
{
    char at[120];
    size_t num;

    if ((f->rules & CRI_F_NULLABLE) && json_is_null(v)) {
        set_null(f);
        return CR_OK;
    }
    snprintf(at, sizeof at, "%s%s", where, f->key);
    switch (f->kind) {
    case CRI_F_ROWS:
    case CRI_F_MASK:
        return read_rows(r, v, f->key, f->kind == CRI_F_MASK, f->to, err);
    case CRI_F_SAMPLES:
        num = r->has_samples ? r->num_samples : SIZE_MAX;
        if (json_is_array(v)) CR_TRY(agree_on_samples(r, f->key, json_array_size(v), err));
        return cri_read_list(r, v, at, f->rules, &num, f->to, err);
    case CRI_F_FLAGS:
        return read_flags(r, v, f->key, f->to, err);
    case CRI_F_NUMBER:
        return read_number(v, at, f->rules, f->to, err);
    case CRI_F_COUNT:
        return read_number(v, at, f->rules | CRI_F_WHOLE, f->to, err);
    case CRI_F_FLAG:
        if (!json_is_boolean(v))
            return cr_fail(err, CR_EARG, "%s is %s, but true or false is needed", at, kind_of(v));
        *(bool *)f->to = json_is_true(v);
        return CR_OK;
    case CRI_F_CHOICE:
        return read_choice(v, at, f->choices, f->to, err);
    case CRI_F_VALUE:
        *(const json_t **)f->to = v;
        return CR_OK;
    }
    return CR_OK;
}

static cr_status refuse_unknown(const json_t *object, const char *where,
                                const cri_formula_field *fields, size_t num_fields, cr_err *err)
{
    const char *names[32], *key, *near;
    char short_key[64];
    json_t *v;

    CR_CHECK(num_fields <= CR_COUNT(names), "%zu fields", num_fields);
    for (size_t i = 0; i < num_fields; i++)
        names[i] = fields[i].key;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        bool is_known = false;
        for (size_t i = 0; i < num_fields; i++)
            is_known = is_known || strcmp(key, names[i]) == 0;
        if (is_known) continue;
        near = cr_nearest(shown(key, short_key), names, num_fields);
        return cr_fail(err, CR_EARG, "unknown key %s%s%s%s%s%s", where, shown(key, short_key),
                       near ? " (did you mean " : "", near ? where : "", near ? near : "",
                       near ? "?)" : "");
    }
    return CR_OK;
}

cr_status cri_read(cri_formula_request *r, const json_t *object, const char *where,
                   const cri_formula_field *fields, size_t num_fields, cr_err *err)
{
    if (object && !json_is_object(object))
        return cr_fail(err, CR_EARG, "%.*s is %s, but an object is needed",
                       where[0] ? (int)strlen(where) - 1 : 11, where[0] ? where : "the request",
                       kind_of(object));
    if (object) CR_TRY(refuse_unknown(object, where, fields, num_fields, err));
    for (size_t i = 0; i < num_fields; i++) {
        const json_t *v = object ? json_object_get(object, fields[i].key) : NULL;
        if (v)
            CR_TRY(read_field(r, v, where, &fields[i], err));
        else if (fields[i].rules & CRI_F_REQUIRED)
            return cr_fail(err, CR_EARG, "%s%s is missing", where, fields[i].key);
    }
    return CR_OK;
}

/* ---- answers ---- */

static void put_key(cri_formula_answer *a, const char *key)
{
    if (a->out->num_bytes && a->out->data[a->out->num_bytes - 1] != '{') cr_buf_addc(a->out, ',');
    cr_buf_addf(a->out, "\"%s\":", key);
}

static void put(cri_formula_answer *a, const char *key, const char *index, double x)
{
    if (a->err->status != CR_OK) return;
    if (!isfinite(x))
        cr_fail(a->err, CR_EARG,
                "%s%s of the answer is not finite: the numbers of the request are too large", key,
                index);
    else
        cr_note(cr_json_add_double(a->out, x, a->err));
}

void cri_put_number(cri_formula_answer *a, const char *key, double x)
{
    put_key(a, key);
    put(a, key, "", x);
}

static void put_items(cri_formula_answer *a, const char *key, const char *row, const double *x,
                      size_t num)
{
    cr_buf_addc(a->out, '[');
    for (size_t i = 0; i < num && a->err->status == CR_OK; i++) {
        char index[80] = "";
        if (i) cr_buf_addc(a->out, ',');
        if (!isfinite(x[i])) snprintf(index, sizeof index, "%s[%zu]", row, i);
        put(a, key, index, x[i]);
    }
    cr_buf_addc(a->out, ']');
}

void cri_put_list(cri_formula_answer *a, const char *key, const double *x, size_t num)
{
    put_key(a, key);
    put_items(a, key, "", x, num);
}

void cri_put_rows(cri_formula_answer *a, const char *key, const cr_ragged *rows, const double *x)
{
    put_key(a, key);
    cr_buf_addc(a->out, '[');
    for (size_t i = 0; i < rows->num_samples; i++) {
        char index[32];
        snprintf(index, sizeof index, "[%zu]", i);
        if (i) cr_buf_addc(a->out, ',');
        put_items(a, key, index, x + rows->start[i], rows->start[i + 1] - rows->start[i]);
    }
    cr_buf_addc(a->out, ']');
}

void cri_open(cri_formula_answer *a, const char *key)
{
    if (key) put_key(a, key);
    cr_buf_addc(a->out, '{');
}

void cri_close(cri_formula_answer *a)
{
    cr_buf_addc(a->out, '}');
}
