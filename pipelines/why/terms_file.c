/* terms_file.c -- terms/step-N.jsonl: reading and checks (see terms_file.h). */
#include "pipelines/why/terms_file.h"

#include <string.h>

static cr_status bad(const char *name, cr_err *err)
{
    return cr_fail(err, CR_EFORMAT, "%s is missing or is not what croll replay --terms writes",
                   name);
}

static bool is_number(const json_t *x)
{
    return json_is_number(x) || json_is_null(x);
}

/* A number for all tokens, or one each. */
static bool is_column(const json_t *x, size_t num)
{
    const json_t *one;
    size_t i;

    if (is_number(x)) return true;
    if (!json_is_array(x) || json_array_size(x) != num) return false;
    json_array_foreach(x, i, one) if (!is_number(one)) return false;
    return true;
}

static cr_status check_columns(const json_t *object, size_t num, const char *but, cr_err *err)
{
    const char *name;
    json_t *value;

    if (!json_is_object(object)) return bad("an object of columns", err);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (strcmp(name, but) != 0 && !is_column(value, num)) return bad(name, err);
    }
    return CR_OK;
}

static cr_status check_sums(const json_t *of, cr_err *err)
{
    static const char *const names[] = {"updates", "pg", "kl", "entropy", "total", "gradient"};
    const json_t *sums = json_object_get(of, "sums");

    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (!is_number(json_object_get(sums, names[i])) || !json_object_get(sums, names[i]))
            return bad(names[i], err);
    return check_columns(sums, 0, "", err);
}

static cr_status check_updates(const json_t *sample, const char *name, size_t num, cr_err *err)
{
    const json_t *updates = json_object_get(sample, name), *one;
    size_t i;

    if (!updates && strcmp(name, "critic") == 0) return CR_OK;
    if (!json_is_array(updates)) return bad(name, err);
    json_array_foreach(updates, i, one) CR_TRY(check_columns(one, num, "", err));
    return CR_OK;
}

static cr_status check_advantage(const json_t *sample, size_t num, cr_err *err)
{
    static const char *const names[] = {"reward", "used"};
    const json_t *of = json_object_get(sample, "advantage"), *one;
    size_t i;

    for (i = 0; i < CR_COUNT(names); i++)
        if (!json_object_get(of, names[i]) || !is_number(json_object_get(of, names[i])))
            return bad(names[i], err);
    if (!json_is_array(json_object_get(of, "rewards"))) return bad("rewards", err);
    json_array_foreach(json_object_get(of, "rewards"), i, one)
    {
        if (!json_is_string(json_object_get(one, "block"))) return bad("block", err);
        if (!json_is_string(json_object_get(one, "status"))) return bad("status", err);
    }
    return check_columns(json_object_get(of, "steps"), num, "", err);
}

static cr_status check_sample(const json_t *sample, cr_err *err)
{
    static const char *const texts[] = {"domain", "status", "response"};
    const json_t *ids = json_object_get(json_object_get(sample, "tokens"), "ids"), *id;
    const char *name = json_string_value(json_object_get(sample, "id"));
    size_t i, num = json_array_size(ids);

    if (!name || strlen(name) != 16 || strspn(name, "0123456789abcdef") != 16)
        return bad("id", err);
    if (!json_is_integer(json_object_get(sample, "group"))) return bad("group", err);
    for (i = 0; i < CR_COUNT(texts); i++)
        if (!json_is_string(json_object_get(sample, texts[i]))) return bad(texts[i], err);
    if (!json_is_array(ids)) return bad("ids", err);
    json_array_foreach(ids, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return bad("ids", err);
    }
    CR_TRY(check_sums(sample, err));
    CR_TRY(check_advantage(sample, num, err));
    CR_TRY(check_columns(json_object_get(sample, "tokens"), num, "ids", err));
    CR_TRY(check_updates(sample, "updates", num, err));
    return check_updates(sample, "critic", num, err);
}

static cr_status check_head(const cri_terms_file *f, cr_err *err)
{
    const json_t *num = json_object_get(f->head, "samples");

    if (!json_is_integer(json_object_get(f->head, "step"))) return bad("step", err);
    if (!json_is_integer(num) || json_integer_value(num) != (json_int_t)json_array_size(f->samples))
        return cr_fail(err, CR_EFORMAT, "it has %zu samples, not what its first line says",
                       json_array_size(f->samples));
    return check_sums(f->head, err);
}

cr_status cri_terms_read(const cr_buf *text, const char *name, cri_terms_file *out, cr_err *err)
{
    size_t at = 0, num, number = 0;

    *out = (cri_terms_file){.samples = json_array()};
    for (const char *line; err->status == CR_OK && (line = cr_line_next(text, &at, &num));) {
        json_t *one;
        if (cr_json_parse(line, num, NULL, &one, err) == CR_OK && number++ == 0) {
            out->head = one;
        } else if (one) {
            cr_note(check_sample(one, err));
            json_array_append_new(out->samples, one);
        }
        if (err->status != CR_OK) return cr_fail_add(err, "%s, line %zu", name, number);
    }
    cr_note(check_head(out, err));
    return cr_fail_add(err, "%s", name);
}

void cri_terms_file_free(cri_terms_file *f)
{
    json_decref(f->head);
    json_decref(f->samples);
    *f = (cri_terms_file){0};
}

json_t *cri_terms_find(const cri_terms_file *f, const char *id)
{
    json_t *sample;
    size_t i;

    json_array_foreach(f->samples, i, sample)
    {
        if (strcmp(json_string_value(json_object_get(sample, "id")), id) == 0) return sample;
    }
    return NULL;
}
