/* request_parse.c -- bodies read by the tables of fields into a draft (see request.h, fields.h). */
#include "http/server.h"
#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

cr_status cr_serve_fail(cr_serve_error *error, int status, const char *code, const char *param,
                        const char *fmt, ...)
{
    va_list args;

    if (error->status) return CR_EARG; /* the first one wins */
    *error = (cr_serve_error){.status = status, .type = cr_http_error_type(status), .code = code};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return CR_EARG;
}

/* ---- values ---- */

typedef struct parse {
    cri_reader reader;
    cri_draft *draft;
    int64_t max_ids, max_lists; /* of a prompt, of a body: what is kept */
    char path[160];             /* of the field that is read */
    cr_buf text;
    cr_serve_error *error;
} parse;

static cr_status bad_json(parse *p)
{
    return cr_serve_fail(p->error, 400, "invalid_json", p->path, "the body is not valid JSON: %s",
                         p->reader.why);
}

static cr_status bad_value(parse *p, const char *expected)
{
    return cr_serve_fail(p->error, 400, "invalid_value", p->path, "%s: expected %s", p->path,
                         expected);
}

/* CR_OK if the next value begins with one of these characters. */
static cr_status check_type(parse *p, const char *begins, const char *expected)
{
    char c = cri_peek(&p->reader);
    const char *begin;
    size_t num;

    if (c && strchr(begins, c)) return CR_OK;
    if (!cri_read_any(&p->reader, &begin, &num)) return bad_json(p);
    return bad_value(p, expected);
}

static cr_status read_number(parse *p, const cri_field *f, void *to)
{
    bool is_integer = f->type == CRI_INTEGER;
    char range[64];
    cri_number x;

    CR_TRY(check_type(p, "0", is_integer ? "an integer" : "a number"));
    if (!cri_read_number(&p->reader, &x)) return bad_json(p);
    if (!(x.value >= f->min && x.value <= f->max)) {
        if (x.value > f->max)
            snprintf(range, sizeof range, "at most %.16g", f->max);
        else
            snprintf(range, sizeof range, "at least %.16g", f->min);
        return cr_serve_fail(p->error, 400, "invalid_value", p->path, "%s is %g, expected %s",
                             p->path, x.value, range);
    }
    if (is_integer && !x.is_integer) return bad_value(p, "an integer");
    if (is_integer)
        *(int64_t *)to = x.integer;
    else
        *(float *)to = (float)x.value;
    return CR_OK;
}

static cr_status read_text(parse *p, size_t max_bytes, char **to)
{
    char expected[64];

    CR_TRY(check_type(p, "\"", "a string"));
    if (!cri_read_string(&p->reader, &p->text)) return bad_json(p);
    snprintf(expected, sizeof expected, "at most %zu bytes", max_bytes);
    if (p->text.num_bytes > max_bytes) return bad_value(p, expected);
    if (p->text.num_bytes && memchr(p->text.data, 0, p->text.num_bytes))
        return bad_value(p, "a string without NUL");
    cr_free(*to);
    *to = cr_strndup(p->text.data ? p->text.data : "", p->text.num_bytes);
    return CR_OK;
}

static cr_status add_text(parse *p, cri_texts *to)
{
    size_t capacity = to->capacity;

    if (!cri_read_string(&p->reader, &p->text)) return bad_json(p);
    to->text = cr_grow(to->text, to->num, &to->capacity, sizeof *to->text);
    to->num_bytes = cr_grow(to->num_bytes, to->num, &capacity, sizeof *to->num_bytes);
    to->text[to->num] = cr_strndup(p->text.data ? p->text.data : "", p->text.num_bytes);
    to->num_bytes[to->num++] = p->text.num_bytes;
    return CR_OK;
}

static cr_status too_many(parse *p, double max)
{
    return cr_serve_fail(p->error, 400, "invalid_value", p->path, "%s: more than %.0f entries",
                         p->path, max);
}

/* Names the place in p->path while an item is read; take_place(.., at) takes the name off again. */
static size_t add_place(parse *p, size_t place)
{
    size_t at = strlen(p->path);

    snprintf(p->path + at, sizeof p->path - at, "[%zu]", place);
    return at;
}

static cr_status read_texts(parse *p, cri_texts *to, double max)
{
    CR_TRY(check_type(p, "\"[", "a string or a list of strings"));
    if (cri_peek(&p->reader) == '"') return add_text(p, to);
    to->is_list = true;
    if (!cri_read_begin(&p->reader, '[')) return bad_json(p);
    for (size_t i = 0; cri_next_item(&p->reader); i++) {
        size_t at = add_place(p, i);
        CR_TRY(check_type(p, "\"", "a string"));
        CR_TRY(add_text(p, to));
        p->path[at] = '\0';
        if ((double)to->num > max) return too_many(p, max);
    }
    return p->reader.why[0] ? bad_json(p) : CR_OK;
}

/* The items of a list whose [ was read. */
static cr_status read_items(parse *p, cri_id_lists *to, int64_t max_kept)
{
    size_t num = 0;
    cri_number x;

    for (; cri_next_item(&p->reader); num++) {
        if (cri_peek(&p->reader) != '0') {
            add_place(p, num);
            return check_type(p, "0", "a token id");
        }
        if (!cri_read_number(&p->reader, &x)) return bad_json(p);
        if (!x.is_integer || x.integer < 0 || x.integer > INT32_MAX) {
            add_place(p, num);
            return bad_value(p, "a token id");
        }
        if ((int64_t)num < max_kept) cr_ids_add(&to->ids, (int32_t)x.integer);
    }
    if (p->reader.why[0]) return bad_json(p);
    to->num_ids = cr_grow(to->num_ids, to->num, &to->capacity, sizeof *to->num_ids);
    to->num_ids[to->num++] = num;
    return CR_OK;
}

static cr_status read_ids(parse *p, const cri_field *f, cri_id_lists *to)
{
    int64_t max_kept = f->at == offsetof(cri_draft, lists) ? p->max_ids : INT32_MAX;

    CR_TRY(check_type(p, "[", "a list of token ids"));
    if (!cri_read_begin(&p->reader, '[')) return bad_json(p);
    CR_TRY(read_items(p, to, max_kept));
    return (double)to->num_ids[to->num - 1] > f->max ? too_many(p, f->max) : CR_OK;
}

/* [int] or [[int]]; with texts: or strings. Of a list at most max_kept ids are kept. */
static cr_status read_lists(parse *p, cri_id_lists *to, cri_texts *texts, int64_t max_lists,
                            int64_t max_kept)
{
    static const char expected[] = "a list of token ids, or of such lists";
    cri_reader ahead;

    if (texts && cri_peek(&p->reader) == '"') return add_text(p, texts);
    CR_TRY(check_type(p, "[", texts ? "a string, a list of strings or of token ids" : expected));
    ahead = p->reader;
    cri_read_begin(&ahead, '[');
    if (texts && cri_peek(&ahead) == '"') return read_texts(p, texts, (double)max_lists);
    if (!cri_read_begin(&p->reader, '[')) return bad_json(p);
    if (cri_peek(&ahead) == ']') {
        cri_next_item(&p->reader);
        return bad_value(p, "at least one entry");
    }
    if (cri_peek(&ahead) != '[') return read_items(p, to, max_kept);
    to->is_list = true;
    for (size_t i = 0; cri_next_item(&p->reader); i++) {
        size_t at = add_place(p, i);
        if ((int64_t)i == max_lists) return too_many(p, (double)max_lists);
        CR_TRY(check_type(p, "[", "a list of token ids"));
        if (!cri_read_begin(&p->reader, '[')) return bad_json(p);
        CR_TRY(read_items(p, to, max_kept));
        p->path[at] = '\0';
    }
    return p->reader.why[0] ? bad_json(p) : CR_OK;
}

/* An id as a name: digits without a zero before them. */
static bool read_id(const cr_buf *name, int32_t *id)
{
    const char *text = name->data ? name->data : "";
    size_t num = name->num_bytes;
    long long x;

    if (num < 1 || num > 10 || strspn(text, "0123456789") != num || (num > 1 && *text == '0'))
        return false;
    x = strtoll(text, NULL, 10);
    *id = (int32_t)x;
    return x <= INT32_MAX;
}

static cr_status read_bias(parse *p, const cri_field *f, cri_sent_bias *to)
{
    size_t at = strlen(p->path);
    int32_t id;
    float number;

    CR_TRY(check_type(p, "{", "an object of token ids and numbers"));
    if (!cri_read_begin(&p->reader, '{')) return bad_json(p);
    while (cri_next_member(&p->reader, &p->text)) {
        if (!read_id(&p->text, &id)) return bad_value(p, "token ids as names");
        snprintf(p->path + at, sizeof p->path - at, ".%d", id);
        CR_TRY(read_number(p, f, &number));
        p->path[at] = '\0';
        cr_ids_add(&to->ids, id);
        cr_buf_add(&to->numbers, &number, sizeof number);
    }
    return p->reader.why[0] ? bad_json(p) : CR_OK;
}

static cr_status read_tree(parse *p, bool is_object, json_t **to)
{
    const char *begin;
    size_t num;
    cr_err err = {0};

    CR_TRY(check_type(p, is_object ? "{" : "[", is_object ? "an object" : "a list"));
    p->reader.num_values = 0;
    if (!cri_read_any(&p->reader, &begin, &num)) return bad_json(p);
    if (p->reader.num_values > CR_SERVE_MAX_TREE) return too_many(p, CR_SERVE_MAX_TREE);
    if (cr_json_parse(begin, num, NULL, to, &err) != CR_OK)
        return cr_serve_fail(p->error, 400, "invalid_json", p->path, "%s: %s", p->path, err.msg);
    return CR_OK;
}

static cr_status read_choice(parse *p, const cri_field *f, int64_t *to)
{
    const char *begin;
    char expected[80] = "";
    size_t num;

    if (!cri_read_any(&p->reader, &begin, &num)) return bad_json(p);
    for (size_t i = 0; f->choices[i]; i++) {
        size_t at = strlen(expected), len = strlen(f->choices[i]);
        *to = (int64_t)i;
        if (num == len + 2 && *begin == '"' && memcmp(begin + 1, f->choices[i], len) == 0)
            return CR_OK;
        snprintf(expected + at, sizeof expected - at, "%s%s", i ? " or " : "", f->choices[i]);
    }
    return bad_value(p, expected);
}

/* ---- fields that are not built ---- */

static bool is_same(const char *value, size_t num, const char *neutral)
{
    size_t i = 0, at = 0, len = strlen(neutral);
    char number[64], *end;

    if (*neutral >= '0' && *neutral <= '9' && num < sizeof number) {
        memcpy(number, value, num);
        number[num] = '\0';
        return strtod(number, &end) == strtod(neutral, NULL) && end == number + num;
    }
    for (; i < num; i++) { /* blanks between the parts are the same value */
        if (strchr(" \t\r\n", value[i])) continue;
        if (at == len || value[i] != neutral[at++]) return false;
    }
    return at == len;
}

static cr_status read_neutral(parse *p, const cri_field *f)
{
    const char *begin;
    size_t num;

    if (!cri_read_any(&p->reader, &begin, &num)) return bad_json(p);
    for (const char *const *value = f->choices; *value; value++)
        if (is_same(begin, num, *value)) return CR_OK;
    return cr_serve_fail(p->error, 400, "unsupported_parameter", p->path,
                         "%s is not supported: leave it out%s%s", p->path,
                         *f->choices ? " or send " : "", *f->choices ? *f->choices : "");
}

/* For the header that lists them: printable names only. */
static void add_ignored(parse *p)
{
    cr_buf *out = &p->draft->request.ignored;

    if (out->num_bytes + strlen(p->path) > 512) return;
    if (out->num_bytes) cr_buf_adds(out, ", ");
    for (const char *c = p->path; *c; c++)
        cr_buf_addc(out, *c > ' ' && *c < 127 && *c != ',' && *c != '"' ? *c : '?');
}

/* ---- objects ---- */

static cr_status read_object(parse *p, const cri_field_group *const *groups);

static cr_status read_field(parse *p, const cri_field *f)
{
    void *to = (char *)p->draft + f->at;
    const char *begin;
    size_t num;

    if (cri_read_null(&p->reader)) return CR_OK;
    if (f->state == CRI_NEUTRAL) return read_neutral(p, f);
    if (f->state == CRI_IGNORED)
        return cri_read_any(&p->reader, &begin, &num) ? CR_OK : bad_json(p);
    switch (f->type) {
    case CRI_FLAG:
        CR_TRY(check_type(p, "tf", "true or false"));
        return cri_read_flag(&p->reader, to) ? CR_OK : bad_json(p);
    case CRI_INTEGER:
    case CRI_NUMBER:
        return read_number(p, f, to);
    case CRI_TEXT:
        return read_text(p, (size_t)f->max, to);
    case CRI_TEXTS:
        return read_texts(p, to, f->max);
    case CRI_IDS:
        return read_ids(p, f, to);
    case CRI_ID_LISTS:
        return f->at == offsetof(cri_draft, lists)
                   ? read_lists(p, to, NULL, p->max_lists, p->max_ids)
                   : read_lists(p, to, NULL, cr_max64(1024, p->max_ids), INT32_MAX);
    case CRI_PROMPT:
        return read_lists(p, &p->draft->lists, &p->draft->texts, p->max_lists, p->max_ids);
    case CRI_BIAS:
        return read_bias(p, f, to);
    case CRI_TREE:
        return read_tree(p, f->max > 0, to);
    case CRI_CHOICE:
        return read_choice(p, f, to);
    case CRI_OBJECT:
        if (f->at) *(bool *)to = true;
        return read_object(p, f->groups);
    }
    return CR_OK;
}

/* A misspelt check must not look like one that passed. */
static cr_status unknown_in_croll(parse *p, const cri_field_group *const *groups)
{
    cr_buf names = {0};
    cr_status status;

    for (; *groups; groups++)
        for (size_t i = 0; i < (*groups)->num_fields; i++)
            cr_buf_addf(&names, "%s%s", names.num_bytes ? ", " : "", (*groups)->fields[i].name);
    status = cr_serve_fail(p->error, 400, "unknown_parameter", p->path,
                           "%s is no field of croll here; it has %s", p->path, names.data);
    cr_buf_free(&names);
    return status;
}

static cr_status read_member(parse *p, const cri_field_group *const *groups, const cri_field **seen,
                             size_t *num_seen)
{
    const char *name = p->text.data ? p->text.data : "";
    const cri_field *f = strlen(name) == p->text.num_bytes ? cri_find_field(groups, name) : NULL;
    size_t at = strlen(p->path);
    cri_reader *r = &p->reader;
    const char *begin;
    size_t num;

    snprintf(p->path + at, sizeof p->path - at, "%s%.*s", at ? "." : "",
             (int)(p->text.num_bytes < 60 ? p->text.num_bytes : 60), name);
    if (!cr_utf8_valid(p->path, strlen(p->path))) snprintf(p->path + at, 4, "...");
    if (!f) {
        if (!cri_read_any(r, &begin, &num)) return bad_json(p);
        if (cri_is_croll(groups)) return unknown_in_croll(p, groups);
        if (cri_belongs_in_croll(p->path))
            return cr_serve_fail(p->error, 400, "invalid_value", p->path,
                                 "%s belongs in croll: {\"croll\": {\"%s\": ..}}", p->path,
                                 p->path);
        if (num != 4 || memcmp(begin, "null", 4) != 0) add_ignored(p);
    } else {
        for (size_t i = 0; i < *num_seen; i++)
            if (seen[i] == f)
                return cr_serve_fail(p->error, 400, "invalid_json", p->path, "%s is there twice",
                                     p->path);
        seen[(*num_seen)++] = f;
        CR_TRY(read_field(p, f));
    }
    p->path[at] = '\0';
    return CR_OK;
}

static cr_status read_object(parse *p, const cri_field_group *const *groups)
{
    const cri_field **seen;
    size_t num_fields = 0, num_seen = 0;
    cr_status status = check_type(p, "{", "an object");

    if (status != CR_OK) return status;
    if (!cri_read_begin(&p->reader, '{')) return bad_json(p);
    for (const cri_field_group *const *g = groups; *g; g++)
        num_fields += (*g)->num_fields;
    seen = CR_NEW_ARRAY(const cri_field *, num_fields);
    while (status == CR_OK && cri_next_member(&p->reader, &p->text))
        status = read_member(p, groups, seen, &num_seen);
    cr_free(seen);
    return status == CR_OK && p->reader.why[0] ? bad_json(p) : status;
}

/* ---- the whole ---- */

static cr_status read_body(parse *p, const char *body, size_t num_bytes, cr_serve_route route)
{
    if (!cr_utf8_valid(body ? body : "", num_bytes))
        return cr_serve_fail(p->error, 400, "invalid_json", NULL, "the body is not valid UTF-8");
    p->reader = cri_reader_of(body, num_bytes);
    if (cri_peek(&p->reader) != '{')
        return cr_serve_fail(p->error, 400, "invalid_json", NULL, "the body is not a JSON object");
    CR_TRY(read_object(p, cri_route_groups(route)));
    return cri_at_end(&p->reader) ? CR_OK : bad_json(p);
}

cr_status cr_serve_request_parse(cr_serve_route route, const char *body, size_t num_bytes,
                                 const cr_serve_service *service, cr_serve_request *out,
                                 cr_serve_error *error)
{
    cri_draft draft;
    parse p = {.draft = &draft, .max_lists = service->max_prompts, .error = error};
    cr_status status;

    *error = (cr_serve_error){0};
    cri_draft_init(&draft, route);
    for (size_t i = 0; i < service->num_models; i++)
        p.max_ids = cr_max64(p.max_ids, service->models[i].max_model_len);
    if (route == CR_SERVE_DETOKENIZE) p.max_ids = INT32_MAX;
    status = read_body(&p, body, num_bytes, route);
    if (status == CR_OK) status = cri_draft_finish(&draft, service, error);
    cr_buf_free(&p.text);
    cri_draft_free(&draft);
    if (status != CR_OK) cr_serve_request_free(&draft.request);
    *out = draft.request;
    return status;
}

void cr_serve_request_free(cr_serve_request *r)
{
    for (size_t i = 0; i < r->num_prompts; i++) {
        cr_free(r->prompts[i].ids);
        cr_free(r->prompts[i].text);
        cr_serve_images_drop(&r->prompts[i].images, r->prompts[i].image_bytes);
    }
    for (size_t i = 0; i < r->sampling.num_stop; i++)
        cr_free(r->sampling.stop[i]);
    cr_free(r->prompts);
    cr_free(r->sampling.stop);
    cr_ids_free(&r->sampling.stop_ids);
    cr_ids_free(&r->sampling.biased);
    cr_ids_free(&r->sampling.allowed);
    cr_ids_free(&r->sampling.bad_ids);
    cr_ids_free(&r->sampling.bad_lengths);
    cr_free(r->sampling.bias);
    cr_free(r->sampling.cache_salt);
    cr_ids_free(&r->wanted.candidates.ids);
    cr_free(r->update.path);
    cr_free(r->update.version);
    cr_free(r->update.sha256);
    cr_free(r->request_id);
    cr_buf_free(&r->ignored);
    *r = (cr_serve_request){0};
}

bool cr_serve_is_scoring(const cr_serve_request *r)
{
    return cr_serve_is_for_model(r->route) &&
           (r->sampling.max_tokens == 0 ||
            (r->sampling.max_tokens == 1 && !r->wanted.is_processed));
}
