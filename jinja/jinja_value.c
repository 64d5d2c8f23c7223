/* jinja_value.c -- values with Python's rules: truth, equality, order, lookups, arithmetic. */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <string.h>

const char *cri_jinja_kind_name(const cri_value *v)
{
    static const char *const names[] = {[JV_ABSENT] = "nothing",
                                        [JV_UNDEFINED] = "undefined",
                                        [JV_NONE] = "none",
                                        [JV_BOOL] = "bool",
                                        [JV_INT] = "int",
                                        [JV_FLOAT] = "float",
                                        [JV_STRING] = "str",
                                        [JV_SEQ] = "list",
                                        [JV_DICT] = "dict",
                                        [JV_LOOP] = "loop",
                                        [JV_NAMESPACE] = "namespace",
                                        [JV_MACRO] = "macro",
                                        [JV_METHOD] = "method",
                                        [JV_FUNCTION] = "function"};
    static const char *const seqs[] = {[JQ_LIST] = "list",
                                       [JQ_TUPLE] = "tuple",
                                       [JQ_RANGE] = "range",
                                       [JQ_VIEW] = "dictionary view",
                                       [JQ_ITERATOR] = "iterator"};
    return v->kind == JV_SEQ ? seqs[v->seq->kind] : names[v->kind];
}

/* ---- making values ---- */

cr_status cri_jinja_string_copy(cri_run *run, const char *s, size_t n, cri_value *out)
{
    char *copy = cri_jinja_alloc(run, n + 1);

    if (!copy) return run->err->status;
    if (n) memcpy(copy, s, n);
    copy[n] = 0;
    *out = cri_jinja_string(copy, n);
    return CR_OK;
}

cr_status cri_jinja_string_take(cri_run *run, cr_buf *buf, cri_value *out)
{
    cr_status status = cri_jinja_string_copy(run, buf->data, buf->num_bytes, out);
    cr_buf_free(buf);
    return status;
}

cr_status cri_jinja_seq_new(cri_run *run, cri_seq_kind kind, size_t capacity, cri_value *out)
{
    cri_jinja_seq *seq = cri_jinja_alloc(run, sizeof *seq);

    if (!seq) return run->err->status;
    *seq = (cri_jinja_seq){.kind = kind, .capacity = capacity};
    seq->item = cri_jinja_alloc(run, capacity * sizeof *seq->item);
    if (!seq->item) return run->err->status;
    *out = (cri_value){.kind = JV_SEQ, .seq = seq};
    return CR_OK;
}

cr_status cri_jinja_seq_add(cri_run *run, cri_jinja_seq *seq, const cri_value *item)
{
    if (seq->num == seq->capacity) {
        cri_value *grown;
        seq->capacity = seq->capacity ? 2 * seq->capacity : 4;
        grown = cri_jinja_alloc(run, seq->capacity * sizeof *grown);
        if (!grown) return run->err->status;
        if (seq->num) memcpy(grown, seq->item, seq->num * sizeof *grown);
        seq->item = grown;
    }
    seq->item[seq->num++] = *item;
    return CR_OK;
}

cr_status cri_jinja_dict_new(cri_run *run, cri_value *out)
{
    cri_dict *dict = cri_jinja_alloc(run, sizeof *dict);

    if (!dict) return run->err->status;
    *dict = (cri_dict){0};
    *out = (cri_value){.kind = JV_DICT, .dict = dict};
    return CR_OK;
}

cr_status cri_jinja_dict_find(cri_run *run, const cri_dict *dict, const cri_value *key,
                              const cri_value **out)
{
    *out = NULL;
    if (key->kind == JV_DICT || key->kind == JV_NAMESPACE ||
        (key->kind == JV_SEQ && key->seq->kind != JQ_TUPLE))
        return cri_jinja_fail(run, "a %s cannot be a key", cri_jinja_kind_name(key));
    CR_TRY(cri_jinja_spend(run, dict->num / 8));
    for (size_t i = 0; i < dict->num && !*out; i++) {
        bool is_equal;
        CR_TRY(cri_jinja_equal(run, &dict->pair[i].key, key, &is_equal));
        if (is_equal) *out = &dict->pair[i].value;
    }
    return CR_OK;
}

const cri_value *cri_jinja_dict_text(const cri_dict *dict, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < dict->num; i++) {
        const cri_value *k = &dict->pair[i].key;
        if (k->kind == JV_STRING && k->n == n && memcmp(k->s, key, n) == 0)
            return &dict->pair[i].value;
    }
    return NULL;
}

cr_status cri_jinja_dict_put(cri_run *run, cri_dict *dict, const cri_value *key,
                             const cri_value *value)
{
    const cri_value *found;

    CR_TRY(cri_jinja_dict_find(run, dict, key, &found));
    if (found) {
        dict->pair[(const struct cri_pair *)((const char *)found -
                                             offsetof(struct cri_pair, value)) -
                   dict->pair]
            .value = *value;
        return CR_OK;
    }
    if (dict->num == dict->capacity) {
        struct cri_pair *grown;
        dict->capacity = dict->capacity ? 2 * dict->capacity : 4;
        grown = cri_jinja_alloc(run, dict->capacity * sizeof *grown);
        if (!grown) return run->err->status;
        if (dict->num) memcpy(grown, dict->pair, dict->num * sizeof *grown);
        dict->pair = grown;
    }
    dict->pair[dict->num++] = (struct cri_pair){*key, *value};
    return CR_OK;
}

static cr_status json_children(cri_run *run, const json_t *json, cri_value *out)
{
    json_t *root = (json_t *)(uintptr_t)json, *child; /* the iteration does not write */
    const char *key;
    size_t i;
    cri_value k, v;

    if (json_is_array(json)) {
        CR_TRY(cri_jinja_seq_new(run, JQ_LIST, json_array_size(json), out));
        json_array_foreach(root, i, child)
        {
            CR_TRY(cri_jinja_from_json(run, child, &v));
            CR_TRY(cri_jinja_seq_add(run, out->seq, &v));
        }
        return CR_OK;
    }
    CR_TRY(cri_jinja_dict_new(run, out));
    json_object_foreach(root, key, child)
    {
        CR_TRY(cri_jinja_from_json(run, child, &v));
        k = cri_jinja_string(key, strlen(key));
        CR_TRY(cri_jinja_dict_put(run, out->dict, &k, &v));
    }
    return CR_OK;
}

/* Texts stay in the JSON, which lives longer than the rendering. */
cr_status cri_jinja_from_json(cri_run *run, const json_t *json, cri_value *out)
{
    CR_TRY(cri_jinja_enter(run));
    switch (json_typeof(json)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        CR_TRY(json_children(run, json, out));
        break;
    case JSON_STRING:
        *out = cri_jinja_string(json_string_value(json), json_string_length(json));
        break;
    case JSON_INTEGER:
        *out = cri_jinja_int(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = cri_jinja_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = cri_jinja_bool(json_is_true(json));
        break;
    default:
        *out = cri_jinja_none();
    }
    run->depth--;
    return CR_OK;
}

/* ---- questions ---- */

cr_status cri_jinja_truth(cri_run *run, const cri_value *v, bool *out)
{
    (void)run;
    switch (v->kind) {
    case JV_BOOL:
        *out = v->b;
        break;
    case JV_INT:
        *out = v->i != 0;
        break;
    case JV_FLOAT:
        *out = v->f != 0;
        break;
    case JV_STRING:
        *out = v->n != 0;
        break;
    case JV_SEQ:
        *out = v->seq->kind == JQ_ITERATOR || v->seq->num != 0;
        break;
    case JV_DICT:
        *out = v->dict->num != 0;
        break;
    case JV_ABSENT:
    case JV_UNDEFINED:
    case JV_NONE:
        *out = false;
        break;
    default:
        *out = true;
    }
    return CR_OK;
}

static bool is_number(const cri_value *v)
{
    return v->kind == JV_BOOL || v->kind == JV_INT || v->kind == JV_FLOAT;
}

static int64_t as_int(const cri_value *v)
{
    return v->kind == JV_BOOL ? v->b : v->i;
}

static double as_float(const cri_value *v)
{
    return v->kind == JV_FLOAT ? v->f : (double)as_int(v);
}

static cr_status equal_items(cri_run *run, const cri_value *a, const cri_value *b, bool *out)
{
    *out = false;
    CR_TRY(cri_jinja_enter(run));
    if (a->kind == JV_SEQ) {
        *out = a->seq == b->seq;
        if (!*out && a->seq->kind > JQ_TUPLE)
            return cri_jinja_fail(run, "a %s cannot be compared", cri_jinja_kind_name(a));
        if (!*out && a->seq->kind == b->seq->kind && a->seq->num == b->seq->num) {
            *out = true;
            for (size_t i = 0; i < a->seq->num && *out; i++)
                CR_TRY(cri_jinja_equal(run, &a->seq->item[i], &b->seq->item[i], out));
        }
    } else if (a->dict->num == b->dict->num) {
        const cri_value *found;
        *out = true;
        for (size_t i = 0; i < a->dict->num && *out; i++) {
            CR_TRY(cri_jinja_dict_find(run, b->dict, &a->dict->pair[i].key, &found));
            *out = found != NULL;
            if (found) CR_TRY(cri_jinja_equal(run, &a->dict->pair[i].value, found, out));
        }
    }
    run->depth--;
    return CR_OK;
}

cr_status cri_jinja_equal(cri_run *run, const cri_value *a, const cri_value *b, bool *out)
{
    CR_TRY(cri_jinja_spend(run, 1));
    if (is_number(a) && is_number(b)) {
        *out = a->kind == JV_FLOAT || b->kind == JV_FLOAT ? as_float(a) == as_float(b)
                                                          : as_int(a) == as_int(b);
        return CR_OK;
    }
    if (a->kind != b->kind) {
        *out = false;
        return CR_OK;
    }
    switch (a->kind) {
    case JV_STRING:
        *out = a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
        return cri_jinja_spend(run, a->n / 16);
    case JV_SEQ:
    case JV_DICT:
        return equal_items(run, a, b, out);
    case JV_NAMESPACE:
        *out = a->dict == b->dict;
        return CR_OK;
    case JV_MACRO:
        *out = a->macro == b->macro;
        return CR_OK;
    case JV_METHOD:
    case JV_FUNCTION:
    case JV_LOOP:
        return cri_jinja_fail(run, "a %s cannot be compared", cri_jinja_kind_name(a));
    default:
        *out = true; /* none, undefined */
        return CR_OK;
    }
}

cr_status cri_jinja_order(cri_run *run, const cri_value *a, const cri_value *b, int *out)
{
    CR_TRY(cri_jinja_spend(run, 1));
    if (is_number(a) && is_number(b)) {
        if (a->kind == JV_FLOAT || b->kind == JV_FLOAT)
            *out = as_float(a) < as_float(b) ? -1 : as_float(a) > as_float(b);
        else
            *out = as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
        return CR_OK;
    }
    if (a->kind == JV_STRING && b->kind == JV_STRING) {
        size_t n = a->n < b->n ? a->n : b->n; /* the order of UTF-8 is that of code points */
        *out = memcmp(a->s, b->s, n);
        if (*out == 0) *out = a->n < b->n ? -1 : a->n > b->n;
        return cri_jinja_spend(run, n / 16);
    }
    if (a->kind == JV_SEQ && b->kind == JV_SEQ && a->seq->kind == b->seq->kind &&
        a->seq->kind <= JQ_TUPLE) {
        bool is_equal = true;
        CR_TRY(cri_jinja_enter(run));
        *out = a->seq->num < b->seq->num ? -1 : a->seq->num > b->seq->num;
        for (size_t i = 0; i < a->seq->num && i < b->seq->num; i++) {
            CR_TRY(cri_jinja_equal(run, &a->seq->item[i], &b->seq->item[i], &is_equal));
            if (is_equal) continue;
            CR_TRY(cri_jinja_order(run, &a->seq->item[i], &b->seq->item[i], out));
            break;
        }
        run->depth--;
        return CR_OK;
    }
    return cri_jinja_fail(run, "%s and %s have no order", cri_jinja_kind_name(a),
                          cri_jinja_kind_name(b));
}

/* ---- items ---- */

static cr_status string_items(cri_run *run, const cri_value *v, cri_jinja_seq **out)
{
    cri_value list, item;
    uint32_t c;

    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, cri_jinja_num_chars(v->s, v->n), &list));
    for (size_t i = 0; i < v->n; i += item.n) {
        item = cri_jinja_string(v->s + i, (size_t)cr_utf8_decode(v->s + i, v->n - i, &c));
        CR_TRY(cri_jinja_seq_add(run, list.seq, &item));
    }
    *out = list.seq;
    return CR_OK;
}

cr_status cri_jinja_items(cri_run *run, const cri_value *v, cri_jinja_seq **out)
{
    cri_value list;

    if (v->kind == JV_STRING) return string_items(run, v, out);
    if (v->kind == JV_SEQ && v->seq->kind != JQ_ITERATOR) {
        *out = v->seq;
        return CR_OK;
    }
    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, 0, &list));
    *out = list.seq;
    if (v->kind == JV_SEQ) { /* what an iterator had, once */
        if (!v->seq->is_spent) list.seq->item = v->seq->item, list.seq->num = v->seq->num;
        list.seq->capacity = list.seq->num;
        v->seq->is_spent = true;
        return CR_OK;
    }
    if (v->kind == JV_DICT) {
        for (size_t i = 0; i < v->dict->num; i++)
            CR_TRY(cri_jinja_seq_add(run, list.seq, &v->dict->pair[i].key));
        return CR_OK;
    }
    if (v->kind == JV_UNDEFINED) return CR_OK;
    return cri_jinja_fail(run, "a %s cannot be walked", cri_jinja_kind_name(v));
}

cr_status cri_jinja_length(cri_run *run, const cri_value *v, size_t *out)
{
    *out = 0;
    switch (v->kind) {
    case JV_STRING:
        *out = cri_jinja_num_chars(v->s, v->n);
        return cri_jinja_spend(run, v->n / 16);
    case JV_DICT:
        *out = v->dict->num;
        return CR_OK;
    case JV_UNDEFINED:
        return CR_OK;
    case JV_SEQ:
        if (v->seq->kind == JQ_ITERATOR) break;
        *out = v->seq->num;
        return CR_OK;
    default:
        break;
    }
    return cri_jinja_fail(run, "a %s has no length", cri_jinja_kind_name(v));
}

cr_status cri_jinja_contains(cri_run *run, const cri_value *v, const cri_value *item, bool *out)
{
    cri_jinja_seq *items;

    *out = false;
    if (v->kind == JV_STRING) {
        CR_TRY(cri_jinja_need_string(run, item, "what is looked for in a string"));
        CR_TRY(cri_jinja_spend(run, v->n / 16));
        *out = cri_jinja_find(v->s, v->n, item->s, item->n) != NULL;
        return CR_OK;
    }
    if (v->kind == JV_DICT) {
        const cri_value *found;
        CR_TRY(cri_jinja_dict_find(run, v->dict, item, &found));
        *out = found != NULL;
        return CR_OK;
    }
    CR_TRY(cri_jinja_items(run, v, &items));
    for (size_t i = 0; i < items->num && !*out; i++)
        CR_TRY(cri_jinja_equal(run, &items->item[i], item, out));
    return CR_OK;
}

/* ---- lookups ---- */

static cr_status loop_attr(cri_run *run, const cri_value *v, const char *name, cri_value *out)
{
    static const char *const names[] = {"index",  "index0",   "revindex", "revindex0",
                                        "first",  "last",     "length",   "depth",
                                        "depth0", "previtem", "nextitem"};
    const cri_loop *l = v->loop;
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->num;
    size_t which = 0;

    while (which < CR_COUNT(names) && strcmp(names[which], name) != 0)
        which++;
    if (which < 4)
        *out = cri_jinja_int(which == 0 ? i + 1 : which == 1 ? i : which == 2 ? n - i : n - i - 1);
    else if (which < 6)
        *out = cri_jinja_bool(which == 4 ? i == 0 : i == n - 1);
    else if (which < 9)
        *out = cri_jinja_int(which == 6 ? n : (int64_t)l->depth - (which == 8));
    else if (which == 9)
        *out = i > 0 ? l->items->item[i - 1] : cri_jinja_undefined("loop.previtem");
    else if (which == 10)
        *out = i + 1 < n ? l->items->item[i + 1] : cri_jinja_undefined("loop.nextitem");
    else
        return cri_jinja_fail(run, "loop.%s is not supported", name);
    return CR_OK;
}

/* Python's own attribute of that name, as a method; *has false: it has no such attribute. */
static cr_status bound_method(cri_run *run, const cri_value *v, const char *name, bool *has,
                              cri_value *out)
{
    const cri_callable *c = cri_jinja_find_method(v, name, has);
    cri_method *method;

    if (!*has) return CR_OK;
    method = cri_jinja_alloc(run, sizeof *method);
    if (!method) return run->err->status;
    *method = (cri_method){.self = *v, .callable = c, .name = name};
    *out = (cri_value){.kind = JV_METHOD, .method = method};
    return CR_OK;
}

static cr_status need_defined(cri_run *run, const cri_value *v)
{
    if (v->kind != JV_UNDEFINED) return CR_OK;
    return cri_jinja_fail(run, "%s is undefined", v->s ? v->s : "the value");
}

cr_status cri_jinja_get_attr(cri_run *run, const cri_value *v, const char *name, cri_value *out)
{
    const cri_value *found = NULL;
    bool has = false;

    CR_TRY(need_defined(run, v));
    if (strncmp(name, "__", 2) == 0)
        return cri_jinja_fail(run, "the attribute %s is not for templates", name);
    *out = cri_jinja_undefined(name);
    if (v->kind == JV_LOOP && strcmp(name, "cycle") != 0 && strcmp(name, "changed") != 0)
        return loop_attr(run, v, name, out);
    CR_TRY(bound_method(run, v, name, &has, out));
    if (has) return CR_OK;
    if (v->kind == JV_MACRO || v->kind == JV_METHOD || v->kind == JV_FUNCTION)
        return cri_jinja_fail(run, "attributes of a %s are not supported", cri_jinja_kind_name(v));
    if (v->kind == JV_DICT || v->kind == JV_NAMESPACE) found = cri_jinja_dict_text(v->dict, name);
    if (found) *out = *found;
    return CR_OK;
}

cr_status cri_jinja_get_item(cri_run *run, const cri_value *v, const cri_value *key, cri_value *out)
{
    const cri_value *found = NULL;

    CR_TRY(need_defined(run, v));
    *out = cri_jinja_undefined(key->kind == JV_STRING ? key->s : "an item");
    if (v->kind == JV_DICT) {
        if (key->kind == JV_SEQ || key->kind == JV_DICT) return CR_OK;
        CR_TRY(cri_jinja_dict_find(run, v->dict, key, &found));
        if (found) *out = *found;
    } else if (key->kind == JV_INT || key->kind == JV_BOOL) {
        size_t n;
        int64_t i = as_int(key);
        bool is_seq = v->kind == JV_SEQ && v->seq->kind <= JQ_RANGE;
        if (!is_seq && v->kind != JV_STRING) return CR_OK;
        CR_TRY(cri_jinja_length(run, v, &n));
        if (i < 0) i += (int64_t)n;
        if (i < 0 || i >= (int64_t)n) return CR_OK;
        if (is_seq) {
            *out = v->seq->item[i];
        } else {
            uint32_t c;
            size_t at = cri_jinja_char_at(v->s, v->n, (size_t)i);
            *out = cri_jinja_string(v->s + at, (size_t)cr_utf8_decode(v->s + at, v->n - at, &c));
        }
        return CR_OK;
    }
    if (found || key->kind != JV_STRING) return CR_OK;
    for (size_t i = 0; i < key->n; i++)
        if (key->s[i] == 0) return CR_OK;
    /* Texts in JSON and in the arena end with NUL; a character of a string does not. */
    CR_TRY(cri_jinja_string_copy(run, key->s, key->n, out));
    return cri_jinja_get_attr(run, v, out->s, out);
}

static cr_status slice_bound(cri_run *run, const cri_value *v, int64_t n, int64_t min, int64_t max,
                             int64_t by_default, int64_t *out)
{
    *out = by_default;
    if (v->kind == JV_ABSENT || v->kind == JV_NONE) return CR_OK;
    CR_TRY(cri_jinja_need_int(run, v, "a bound of a slice", out));
    if (*out < 0) *out = *out < -n ? min : *out + n;
    if (*out < min) *out = min;
    if (*out > max) *out = max;
    return CR_OK;
}

cr_status cri_jinja_get_slice(cri_run *run, const cri_value *v, const cri_value bounds[3],
                              cri_value *out)
{
    int64_t n, start, stop, step = 1;
    size_t length;
    cri_jinja_seq *items;
    cri_value empty = cri_jinja_string("", 0);

    CR_TRY(need_defined(run, v));
    if (v->kind != JV_STRING && (v->kind != JV_SEQ || v->seq->kind > JQ_RANGE))
        return cri_jinja_fail(run, "a %s cannot be sliced", cri_jinja_kind_name(v));
    CR_TRY(cri_jinja_length(run, v, &length));
    n = (int64_t)length;
    if (bounds[2].kind != JV_ABSENT && bounds[2].kind != JV_NONE)
        CR_TRY(cri_jinja_need_int(run, &bounds[2], "the step of a slice", &step));
    if (step == 0) return cri_jinja_fail(run, "the step of a slice is 0");
    if (step < -n - 1) step = -n - 1;
    if (step > n + 1) step = n + 1;
    CR_TRY(slice_bound(run, &bounds[0], n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n,
                       step < 0 ? n - 1 : 0, &start));
    CR_TRY(slice_bound(run, &bounds[1], n, step < 0 ? -1 : 0, step < 0 ? n - 1 : n,
                       step < 0 ? -1 : n, &stop));
    if (v->kind == JV_STRING && step == 1) {
        size_t from = cri_jinja_char_at(v->s, v->n, (size_t)start),
               to = start < stop ? cri_jinja_char_at(v->s, v->n, (size_t)stop) : from;
        return cri_jinja_string_copy(run, v->s + from, to - from, out);
    }
    CR_TRY(cri_jinja_items(run, v, &items));
    CR_TRY(cri_jinja_seq_new(run, v->kind == JV_SEQ ? v->seq->kind : JQ_LIST, 0, out));
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
        CR_TRY(cri_jinja_seq_add(run, out->seq, &items->item[i]));
    return v->kind == JV_STRING ? cri_jinja_join(run, &empty, out->seq, true, out) : CR_OK;
}

/* ---- arithmetic ---- */

cr_status cri_jinja_need_int(cri_run *run, const cri_value *v, const char *what, int64_t *out)
{
    *out = 0;
    if (v->kind != JV_INT && v->kind != JV_BOOL)
        return cri_jinja_fail(run, "%s must be a whole number, not %s", what,
                              cri_jinja_kind_name(v));
    *out = as_int(v);
    return CR_OK;
}

cr_status cri_jinja_need_string(cri_run *run, const cri_value *v, const char *what)
{
    if (v->kind == JV_STRING) return CR_OK;
    if (v->kind == JV_UNDEFINED) return need_defined(run, v);
    return cri_jinja_fail(run, "%s must be a string, not %s", what, cri_jinja_kind_name(v));
}

static cr_status int_binary(cri_run *run, cri_op op, int64_t a, int64_t b, cri_value *out)
{
    int64_t r = 0;
    bool is_over = false;

    if ((op == JO_FLOORDIV || op == JO_MOD || op == JO_DIV) && b == 0)
        return cri_jinja_fail(run, "division by zero");
    switch (op) {
    case JO_ADD:
        is_over = __builtin_add_overflow(a, b, &r);
        break;
    case JO_SUB:
        is_over = __builtin_sub_overflow(a, b, &r);
        break;
    case JO_MUL:
        is_over = __builtin_mul_overflow(a, b, &r);
        break;
    case JO_DIV:
        *out = cri_jinja_float((double)a / (double)b);
        return CR_OK;
    case JO_FLOORDIV:
    case JO_MOD:
        if (b == -1) { /* INT64_MIN / -1 traps */
            is_over = op == JO_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        if (op == JO_MOD) r = a - r * b;
        break;
    default: /* JO_POW */
        if (b < 0 || b > 64) return cri_jinja_fail(run, "this power is not supported");
        for (r = 1; b > 0 && !is_over; b--)
            is_over = __builtin_mul_overflow(r, a, &r);
    }
    if (is_over) return cri_jinja_fail(run, "a number is too great");
    *out = cri_jinja_int(r);
    return CR_OK;
}

static cr_status float_binary(cri_run *run, cri_op op, double a, double b, cri_value *out)
{
    if ((op == JO_FLOORDIV || op == JO_MOD || op == JO_DIV) && b == 0)
        return cri_jinja_fail(run, "division by zero");
    switch (op) {
    case JO_ADD:
        *out = cri_jinja_float(a + b);
        break;
    case JO_SUB:
        *out = cri_jinja_float(a - b);
        break;
    case JO_MUL:
        *out = cri_jinja_float(a * b);
        break;
    case JO_DIV:
        *out = cri_jinja_float(a / b);
        break;
    default:
        return cri_jinja_fail(run, "this operator is not supported between floats");
    }
    return CR_OK;
}

static const char *html_escape(char c)
{
    return c == '&'   ? "&amp;"
           : c == '<' ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '"' ? "&#34;"
                      : "&#39;";
}

/* Markup + str escapes the str; its result is Markup. */
static cr_status string_add(cri_run *run, const cri_value *a, const cri_value *b, cri_value *out)
{
    bool is_safe = a->is_safe || b->is_safe;
    const cri_value *both[] = {a, b};
    cr_buf text = {0};
    char *s;

    if (is_safe && a->is_safe != b->is_safe) {
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < both[k]->n; i++)
                if (both[k]->is_safe || !both[k]->s[i] || !strchr("&<>\"'", both[k]->s[i]))
                    cr_buf_addc(&text, both[k]->s[i]);
                else
                    cr_buf_adds(&text, html_escape(both[k]->s[i]));
        CR_TRY(cri_jinja_string_take(run, &text, out));
        out->is_safe = true;
        return CR_OK;
    }
    s = cri_jinja_alloc(run, a->n + b->n + 1);
    if (!s) return run->err->status;
    memcpy(s, a->s, a->n);
    memcpy(s + a->n, b->s, b->n);
    s[a->n + b->n] = 0;
    *out = cri_jinja_string(s, a->n + b->n);
    out->is_safe = is_safe;
    return CR_OK;
}

static cr_status repeat(cri_run *run, const cri_value *v, int64_t times, cri_value *out)
{
    size_t n = v->kind == JV_STRING ? v->n : v->seq->num, total;
    char *s;

    if (times < 0) times = 0;
    if (__builtin_mul_overflow(n, (size_t)times, &total) || total > CRI_MAX_BYTES)
        return cri_jinja_fail(run, "a repetition is too long");
    CR_TRY(cri_jinja_spend(run, (size_t)(n ? times : 0)));
    if (v->kind == JV_SEQ) {
        CR_TRY(cri_jinja_seq_new(run, v->seq->kind, total, out));
        for (size_t i = 0; i < total; i++)
            CR_TRY(cri_jinja_seq_add(run, out->seq, &v->seq->item[i % n]));
        return CR_OK;
    }
    s = cri_jinja_alloc(run, total + 1);
    if (!s) return run->err->status;
    for (size_t i = 0; i < total; i += n)
        memcpy(s + i, v->s, n);
    s[total] = 0;
    *out = cri_jinja_string(s, total);
    return CR_OK;
}

cr_status cri_jinja_binary(cri_run *run, cri_op op, const cri_value *a, const cri_value *b,
                           cri_value *out)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};

    CR_TRY(need_defined(run, a));
    if (op == JO_MOD && a->kind == JV_STRING) {
        if (b->kind == JV_SEQ && b->seq->kind == JQ_TUPLE)
            return cri_jinja_format_percent(run, a, b->seq->item, b->seq->num, out);
        return cri_jinja_format_percent(run, a, b, 1, out);
    }
    CR_TRY(need_defined(run, b));
    if (is_number(a) && is_number(b)) {
        if (a->kind == JV_FLOAT || b->kind == JV_FLOAT)
            return float_binary(run, op, as_float(a), as_float(b), out);
        return int_binary(run, op, as_int(a), as_int(b), out);
    }
    if (op == JO_ADD && a->kind == JV_STRING && b->kind == JV_STRING)
        return string_add(run, a, b, out);
    if (op == JO_ADD && a->kind == JV_SEQ && b->kind == JV_SEQ && a->seq->kind == b->seq->kind &&
        a->seq->kind <= JQ_TUPLE) {
        CR_TRY(cri_jinja_seq_new(run, a->seq->kind, a->seq->num + b->seq->num, out));
        for (size_t i = 0; i < a->seq->num; i++)
            CR_TRY(cri_jinja_seq_add(run, out->seq, &a->seq->item[i]));
        for (size_t i = 0; i < b->seq->num; i++)
            CR_TRY(cri_jinja_seq_add(run, out->seq, &b->seq->item[i]));
        return CR_OK;
    }
    if (op == JO_MUL) {
        bool a_int = a->kind == JV_INT || a->kind == JV_BOOL;
        const cri_value *v = a_int ? b : a, *times = a_int ? a : b;
        if ((v->kind == JV_STRING || (v->kind == JV_SEQ && v->seq->kind <= JQ_TUPLE)) &&
            (times->kind == JV_INT || times->kind == JV_BOOL))
            return repeat(run, v, as_int(times), out);
    }
    return cri_jinja_fail(run, "%s %s %s is not possible", cri_jinja_kind_name(a), names[op],
                          cri_jinja_kind_name(b));
}
