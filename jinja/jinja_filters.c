/* jinja_filters.c -- the filters after "|" and the tests after "is". */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- calls with named parameters ---- */

/* Index of `name` in params; the number of parameters if it is not there. */
static size_t param_index(const char *params, const char *name, size_t *num_required, size_t *num)
{
    size_t found = SIZE_MAX, len;

    *num = 0;
    *num_required = SIZE_MAX;
    for (; *params; params += len + (params[len] == ' ')) {
        len = strcspn(params, " ");
        if (len == 1 && params[0] == '|') {
            *num_required = *num;
            continue;
        }
        if (name && strlen(name) == len && memcmp(name, params, len) == 0) found = *num;
        ++*num;
    }
    if (*num_required == SIZE_MAX) *num_required = *num;
    return found;
}

cr_status cri_jinja_call_bound(cri_run *run, const cri_callable *c, const cri_value *in,
                               const cri_args *args, cri_value *out)
{
    cri_value arg[CRI_MAX_PARAMS];
    size_t num, num_required;

    if (c->call_any) return c->call_any(run, in, args, out);
    memset(arg, 0, sizeof arg);
    param_index(c->params, NULL, &num_required, &num);
    for (size_t k = 0; k < args->num; k++) {
        size_t i = args->name[k] ? param_index(c->params, args->name[k], &num_required, &num) : k;
        if (i >= num && args->name[k])
            return cri_jinja_fail(run, "%s has no parameter %s", c->name, args->name[k]);
        if (i >= num) return cri_jinja_fail(run, "%s takes at most %zu arguments", c->name, num);
        if (arg[i].kind != JV_ABSENT)
            return cri_jinja_fail(run, "%s gets %s twice", c->name, args->name[k]);
        arg[i] = args->value[k];
    }
    for (size_t i = 0; i < num_required; i++)
        if (arg[i].kind == JV_ABSENT)
            return cri_jinja_fail(run, "%s needs %zu arguments", c->name, num_required);
    return c->call(run, in, arg, out);
}

static cr_status flag(cri_run *run, const cri_value *v, bool *out)
{
    return cri_jinja_truth(run, v, out); /* false where absent */
}

/* ---- attributes of items: "a.b" ---- */

static cr_status attr_path(cri_run *run, const cri_value *item, const cri_value *path,
                           const cri_value *by_default, cri_value *out)
{
    cri_value v = *item, part, text;
    size_t start = 0;

    if (path->kind == JV_INT) return cri_jinja_get_item(run, item, path, out);
    CR_TRY(cri_jinja_need_string(run, path, "an attribute"));
    CR_TRY(cri_jinja_string_copy(run, path->s, path->n, &text));
    while (start <= text.n) {
        const char *s = text.s + start;
        size_t n = strcspn(s, "."), digits = strspn(s, "0123456789");
        CR_TRY(cri_jinja_string_copy(run, s, n, &part));
        if (digits == n && n > 0 && n < 10) part = cri_jinja_int(atoi(part.s));
        CR_TRY(cri_jinja_get_item(run, &v, &part, out));
        if (out->kind == JV_UNDEFINED && by_default && by_default->kind != JV_ABSENT)
            *out = *by_default;
        v = *out;
        start += n + 1;
    }
    return CR_OK;
}

/* Sort keys ignore the case of strings by default. */
static cr_status sort_key(cri_run *run, const cri_value *item, const cri_value *path,
                          bool with_case, cri_value *out)
{
    *out = *item;
    if (path->kind != JV_ABSENT && path->kind != JV_NONE) {
        if (path->kind == JV_STRING && memchr(path->s, ',', path->n))
            return cri_jinja_fail(run, "several attributes to sort by are not supported");
        CR_TRY(attr_path(run, item, path, NULL, out));
    }
    if (out->kind == JV_STRING && !with_case) return cri_jinja_change_case(run, out, JC_LOWER, out);
    return CR_OK;
}

cr_status cri_jinja_sort(cri_run *run, cri_jinja_seq *items, const cri_jinja_seq *keys,
                         bool is_reverse)
{
    cri_value *key = cri_jinja_alloc(run, items->num * sizeof *key);

    if (!key) return run->err->status;
    for (size_t i = 0; i < items->num; i++) {
        cri_value item = items->item[i];
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            CR_TRY(cri_jinja_order(run, &keys->item[i], &key[at - 1], &order));
            if (is_reverse ? order <= 0 : order >= 0) break;
            key[at] = key[at - 1];
            items->item[at] = items->item[at - 1];
        }
        key[at] = keys->item[i];
        items->item[at] = item;
    }
    return CR_OK;
}

/* ---- filters on text ---- */

static cr_status f_case(cri_run *run, const cri_value *in, cri_case to, cri_value *out)
{
    cri_value text;
    CR_TRY(cri_jinja_to_text(run, in, &text));
    return cri_jinja_change_case(run, &text, to, out);
}

static cr_status f_upper(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    return f_case(run, in, JC_UPPER, out);
}

static cr_status f_lower(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    return f_case(run, in, JC_LOWER, out);
}

static cr_status f_capitalize(cri_run *run, const cri_value *in, const cri_value *arg,
                              cri_value *out)
{
    (void)arg;
    return f_case(run, in, JC_CAPITALIZE, out);
}

static cr_status f_title(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    return f_case(run, in, JC_FILTER_TITLE, out);
}

static cr_status f_string(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    CR_TRY(cri_jinja_to_text(run, in, out));
    out->is_safe = in->kind == JV_STRING && in->is_safe;
    return CR_OK;
}

static cr_status f_safe(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    CR_TRY(cri_jinja_to_text(run, in, out));
    out->is_safe = true;
    return CR_OK;
}

static cr_status f_trim(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    bool has_chars = arg[0].kind != JV_ABSENT && arg[0].kind != JV_NONE;
    cri_value text;

    CR_TRY(cri_jinja_to_text(run, in, &text));
    if (has_chars) CR_TRY(cri_jinja_need_string(run, &arg[0], "the characters to trim"));
    cri_jinja_strip(&text.s, &text.n, has_chars ? &arg[0] : NULL, true, true);
    return cri_jinja_string_copy(run, text.s, text.n, out);
}

static cr_status f_replace(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value text, from, to;
    int64_t max = -1;

    CR_TRY(cri_jinja_to_text(run, in, &text));
    CR_TRY(cri_jinja_to_text(run, &arg[0], &from));
    CR_TRY(cri_jinja_to_text(run, &arg[1], &to));
    if (arg[2].kind != JV_ABSENT && arg[2].kind != JV_NONE)
        CR_TRY(cri_jinja_need_int(run, &arg[2], "the number of replacements", &max));
    return cri_jinja_replace(run, &text, &from, &to, max, out);
}

static cr_status f_indent(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value by = cri_jinja_string(" ", 1), text, lines, four = cri_jinja_int(4),
              newline = cri_jinja_string("\n", 1);
    bool first, blank;

    CR_TRY(cri_jinja_need_string(run, in, "what is indented"));
    CR_TRY(flag(run, &arg[1], &first));
    CR_TRY(flag(run, &arg[2], &blank));
    if (arg[0].kind == JV_STRING)
        by = arg[0];
    else
        CR_TRY(cri_jinja_binary(run, JO_MUL, &by, arg[0].kind == JV_ABSENT ? &four : &arg[0], &by));
    CR_TRY(cri_jinja_binary(run, JO_ADD, in, &newline, &text));
    CR_TRY(cri_jinja_split_lines(run, &text, false, &lines));
    for (size_t i = 0; i < lines.seq->num; i++)
        if (i == 0 ? first : blank || lines.seq->item[i].n)
            CR_TRY(cri_jinja_binary(run, JO_ADD, &by, &lines.seq->item[i], &lines.seq->item[i]));
    return cri_jinja_join(run, &newline, lines.seq, true, out);
}

static cr_status f_format(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    CR_TRY(cri_jinja_need_string(run, in, "a format"));
    for (size_t i = 0; i < args->num; i++)
        if (args->name[i]) return cri_jinja_fail(run, "named values of format are not supported");
    return cri_jinja_format_percent(run, in, args->value, args->num, out);
}

static cr_status f_tojson(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_json_style style = {.item_separator = cri_jinja_string(", ", 2),
                            .key_separator = cri_jinja_string(": ", 2)};
    cri_value by = cri_jinja_string(" ", 1);
    cr_buf text = {0};
    cr_status status;

    CR_TRY(flag(run, &arg[0], &style.ascii_only));
    CR_TRY(flag(run, &arg[3], &style.sort_keys));
    if (arg[1].kind == JV_STRING)
        by = arg[1];
    else if (arg[1].kind != JV_ABSENT && arg[1].kind != JV_NONE)
        CR_TRY(cri_jinja_binary(run, JO_MUL, &by, &arg[1], &by));
    if (arg[1].kind != JV_ABSENT && arg[1].kind != JV_NONE) {
        style.indent = by.s;
        style.num_indent = by.n;
        style.item_separator = cri_jinja_string(",", 1);
    }
    if (arg[2].kind != JV_ABSENT && arg[2].kind != JV_NONE) {
        if (arg[2].kind != JV_SEQ || arg[2].seq->num != 2 ||
            arg[2].seq->item[0].kind != JV_STRING || arg[2].seq->item[1].kind != JV_STRING)
            return cri_jinja_fail(run, "separators of tojson must be two strings");
        style.item_separator = arg[2].seq->item[0];
        style.key_separator = arg[2].seq->item[1];
    }
    status = cri_jinja_to_json(run, in, &style, 0, &text);
    if (status == CR_OK) return cri_jinja_string_take(run, &text, out);
    cr_buf_free(&text);
    return status;
}

/* ---- filters on numbers ---- */

/* The number that a whole text is, in plain decimal form. */
static bool plain_number(const char *s, size_t n, bool *is_int, double *out)
{
    size_t sign = n && (*s == '+' || *s == '-'), digits = strspn(s + sign, "0123456789");
    char *end;

    *is_int = digits > 0 && digits < 18 && sign + digits == n;
    if (strspn(s, "0123456789+-.eE") != n || !memchr("0123456789.", s[sign], 12)) return false;
    *out = strtod(s, &end);
    return n > 0 && end == s + n;
}

static cr_status f_int(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value text = *in;
    bool is_int = false;
    double x = in->f;

    *out = arg[0].kind == JV_ABSENT ? cri_jinja_int(0) : arg[0];
    if (arg[1].kind != JV_ABSENT) return cri_jinja_fail(run, "the base of int is not supported");
    if (in->kind == JV_INT || in->kind == JV_BOOL)
        return cri_jinja_binary(run, JO_ADD, in, &(cri_value){.kind = JV_INT}, out);
    if (in->kind == JV_UNDEFINED) return cri_jinja_fail(run, "int of an undefined value");
    if (in->kind == JV_STRING) {
        cri_jinja_strip(&text.s, &text.n, NULL, true, true);
        CR_TRY(cri_jinja_string_copy(run, text.s, text.n, &text));
        if (memchr(text.s, '_', text.n) || strcspn(text.s, "nN") < text.n)
            return cri_jinja_fail(run, "int of this text is not supported");
        if (!plain_number(text.s, text.n, &is_int, &x)) return CR_OK;
        if (is_int) {
            *out = cri_jinja_int(strtoll(text.s, NULL, 10));
            return CR_OK;
        }
    } else if (in->kind != JV_FLOAT) {
        return CR_OK;
    }
    if (!(fabs(x) < 9e15)) return cri_jinja_fail(run, "a number is too great");
    *out = cri_jinja_int((int64_t)x);
    return CR_OK;
}

static cr_status f_float(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    *out = arg[0].kind == JV_ABSENT ? cri_jinja_float(0) : arg[0];
    if (in->kind == JV_INT || in->kind == JV_BOOL || in->kind == JV_FLOAT)
        return cri_jinja_binary(run, JO_ADD, in, &(cri_value){.kind = JV_FLOAT}, out);
    if (in->kind == JV_STRING || in->kind == JV_UNDEFINED)
        return cri_jinja_fail(run, "float of a %s is not supported", cri_jinja_kind_name(in));
    return CR_OK;
}

static cr_status f_abs(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value zero = cri_jinja_int(0);
    int order;

    (void)arg;
    CR_TRY(cri_jinja_order(run, in, &zero, &order));
    return order < 0 ? cri_jinja_binary(run, JO_SUB, &zero, in, out)
                     : cri_jinja_binary(run, JO_ADD, &zero, in, out);
}

static cr_status f_round(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    int64_t precision = 0;
    char text[400];

    if (arg[0].kind != JV_ABSENT)
        CR_TRY(cri_jinja_need_int(run, &arg[0], "a precision", &precision));
    if (precision < 0 || precision > 15 || arg[1].kind != JV_ABSENT)
        return cri_jinja_fail(run, "this way to round is not supported");
    *out = *in;
    if (in->kind == JV_INT) return CR_OK;
    if (in->kind != JV_FLOAT) return cri_jinja_fail(run, "%s is rounded", cri_jinja_kind_name(in));
    snprintf(text, sizeof text, "%.*f", (int)precision, in->f);
    *out = cri_jinja_float(strtod(text, NULL));
    return CR_OK;
}

/* ---- filters on lists ---- */

static cr_status f_length(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    size_t n;
    (void)arg;
    CR_TRY(cri_jinja_length(run, in, &n));
    *out = cri_jinja_int((int64_t)n);
    return CR_OK;
}

static cr_status f_default(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    bool by_truth, truth = true;

    CR_TRY(flag(run, &arg[1], &by_truth));
    if (by_truth) CR_TRY(cri_jinja_truth(run, in, &truth));
    *out = *in;
    if (in->kind == JV_UNDEFINED || !truth)
        *out = arg[0].kind == JV_ABSENT ? cri_jinja_string("", 0) : arg[0];
    return CR_OK;
}

/* A fresh sequence of in's items. */
static cr_status copy_items(cri_run *run, const cri_value *in, cri_seq_kind kind, cri_value *out)
{
    cri_jinja_seq *items;

    CR_TRY(cri_jinja_items(run, in, &items));
    CR_TRY(cri_jinja_seq_new(run, kind, items->num, out));
    for (size_t i = 0; i < items->num; i++)
        CR_TRY(cri_jinja_seq_add(run, out->seq, &items->item[i]));
    return cri_jinja_spend(run, items->num / 8);
}

static cr_status f_list(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    return copy_items(run, in, JQ_LIST, out);
}

static cr_status f_first(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_jinja_seq *items;

    (void)arg;
    *out = cri_jinja_undefined("the first item");
    if (in->kind == JV_SEQ && in->seq->kind == JQ_ITERATOR) { /* takes one item out of it */
        if (in->seq->is_spent || in->seq->num == 0) return CR_OK;
        *out = *in->seq->item++;
        in->seq->num--;
        in->seq->capacity = in->seq->num;
        return CR_OK;
    }
    CR_TRY(cri_jinja_items(run, in, &items));
    if (items->num) *out = items->item[0];
    return CR_OK;
}

static cr_status f_last(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_jinja_seq *items;
    (void)arg;
    if (in->kind == JV_UNDEFINED || (in->kind == JV_SEQ && in->seq->kind == JQ_ITERATOR))
        return cri_jinja_fail(run, "a %s has no last item", cri_jinja_kind_name(in));
    CR_TRY(cri_jinja_items(run, in, &items));
    *out = items->num ? items->item[items->num - 1] : cri_jinja_undefined("the last item");
    return CR_OK;
}

static cr_status f_reverse(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value empty = cri_jinja_string("", 0);

    (void)arg;
    CR_TRY(copy_items(run, in, JQ_ITERATOR, out));
    for (size_t i = 0, n = out->seq->num; i < n / 2; i++) {
        cri_value swap = out->seq->item[i];
        out->seq->item[i] = out->seq->item[n - 1 - i];
        out->seq->item[n - 1 - i] = swap;
    }
    return in->kind == JV_STRING ? cri_jinja_join(run, &empty, out->seq, true, out) : CR_OK;
}

static cr_status f_join(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_value sep = cri_jinja_string("", 0), parts;
    bool has_attr = arg[1].kind != JV_ABSENT && arg[1].kind != JV_NONE;

    if (arg[0].kind != JV_ABSENT) CR_TRY(cri_jinja_to_text(run, &arg[0], &sep));
    CR_TRY(copy_items(run, in, JQ_LIST, &parts));
    for (size_t i = 0; has_attr && i < parts.seq->num; i++)
        CR_TRY(attr_path(run, &parts.seq->item[i], &arg[1], NULL, &parts.seq->item[i]));
    return cri_jinja_join(run, &sep, parts.seq, false, out);
}

static cr_status f_sort(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    bool is_reverse, with_case;
    cri_value keys, key;

    CR_TRY(flag(run, &arg[0], &is_reverse));
    CR_TRY(flag(run, &arg[1], &with_case));
    CR_TRY(copy_items(run, in, JQ_LIST, out));
    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, out->seq->num, &keys));
    for (size_t i = 0; i < out->seq->num; i++) {
        CR_TRY(sort_key(run, &out->seq->item[i], &arg[2], with_case, &key));
        CR_TRY(cri_jinja_seq_add(run, keys.seq, &key));
    }
    return cri_jinja_sort(run, out->seq, keys.seq, is_reverse);
}

static cr_status f_unique(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    bool with_case;
    cri_value seen, key;
    cri_jinja_seq *items;

    CR_TRY(flag(run, &arg[0], &with_case));
    CR_TRY(cri_jinja_items(run, in, &items));
    CR_TRY(cri_jinja_seq_new(run, JQ_ITERATOR, 0, out));
    CR_TRY(cri_jinja_dict_new(run, &seen));
    for (size_t i = 0; i < items->num; i++) {
        const cri_value *found;
        CR_TRY(sort_key(run, &items->item[i], &arg[1], with_case, &key));
        CR_TRY(cri_jinja_dict_find(run, seen.dict, &key, &found));
        if (found) continue;
        CR_TRY(cri_jinja_dict_put(run, seen.dict, &key, &key));
        CR_TRY(cri_jinja_seq_add(run, out->seq, &items->item[i]));
    }
    return CR_OK;
}

static cr_status extreme(cri_run *run, const cri_value *in, const cri_value *arg, int sign,
                         cri_value *out)
{
    bool with_case;
    cri_value best, key;
    cri_jinja_seq *items;

    CR_TRY(flag(run, &arg[0], &with_case));
    CR_TRY(cri_jinja_items(run, in, &items));
    *out = cri_jinja_undefined("the extreme of no items");
    for (size_t i = 0; i < items->num; i++) {
        int order = -1;
        CR_TRY(sort_key(run, &items->item[i], &arg[1], with_case, &key));
        if (i) CR_TRY(cri_jinja_order(run, &key, &best, &order));
        if (i && order * sign >= 0) continue;
        best = key;
        *out = items->item[i];
    }
    return CR_OK;
}

static cr_status f_min(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    return extreme(run, in, arg, 1, out);
}

static cr_status f_max(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    return extreme(run, in, arg, -1, out);
}

static cr_status f_sum(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    cri_jinja_seq *items;
    cri_value v, sum = arg[1].kind == JV_ABSENT ? cri_jinja_int(0) : arg[1];

    CR_TRY(cri_jinja_items(run, in, &items));
    for (size_t i = 0; i < items->num; i++) {
        v = items->item[i];
        if (arg[0].kind != JV_ABSENT && arg[0].kind != JV_NONE)
            CR_TRY(attr_path(run, &v, &arg[0], NULL, &v));
        CR_TRY(cri_jinja_binary(run, JO_ADD, &sum, &v, &sum));
    }
    *out = sum;
    return CR_OK;
}

static cr_status dict_pairs(cri_run *run, const cri_value *in, cri_seq_kind kind, cri_value *out)
{
    cri_value pair;

    if (in->kind != JV_DICT) return cri_jinja_fail(run, "%s has no items", cri_jinja_kind_name(in));
    CR_TRY(cri_jinja_seq_new(run, kind, in->dict->num, out));
    for (size_t i = 0; i < in->dict->num; i++) {
        CR_TRY(cri_jinja_seq_new(run, JQ_TUPLE, 2, &pair));
        CR_TRY(cri_jinja_seq_add(run, pair.seq, &in->dict->pair[i].key));
        CR_TRY(cri_jinja_seq_add(run, pair.seq, &in->dict->pair[i].value));
        CR_TRY(cri_jinja_seq_add(run, out->seq, &pair));
    }
    return CR_OK;
}

static cr_status f_items(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    (void)arg;
    if (in->kind == JV_UNDEFINED) return cri_jinja_seq_new(run, JQ_ITERATOR, 0, out);
    return dict_pairs(run, in, JQ_ITERATOR, out);
}

static cr_status f_dictsort(cri_run *run, const cri_value *in, const cri_value *arg, cri_value *out)
{
    bool with_case, is_reverse;
    cri_value keys, key;
    size_t by = 0;

    CR_TRY(flag(run, &arg[0], &with_case));
    CR_TRY(flag(run, &arg[2], &is_reverse));
    if (arg[1].kind != JV_ABSENT) {
        CR_TRY(cri_jinja_need_string(run, &arg[1], "by of dictsort"));
        by = arg[1].n == 5 && memcmp(arg[1].s, "value", 5) == 0;
        if (!by && (arg[1].n != 3 || memcmp(arg[1].s, "key", 3) != 0))
            return cri_jinja_fail(run, "dictsort sorts by key or value");
    }
    CR_TRY(dict_pairs(run, in, JQ_LIST, out));
    CR_TRY(cri_jinja_seq_new(run, JQ_LIST, out->seq->num, &keys));
    for (size_t i = 0; i < out->seq->num; i++) {
        CR_TRY(sort_key(run, &out->seq->item[i].seq->item[by], &(cri_value){0}, with_case, &key));
        CR_TRY(cri_jinja_seq_add(run, keys.seq, &key));
    }
    return cri_jinja_sort(run, out->seq, keys.seq, is_reverse);
}

/* ---- filters that take a filter or a test by name ---- */

static cr_status text_name(cri_run *run, const cri_value *v, const char **out)
{
    cri_value copy;
    CR_TRY(cri_jinja_need_string(run, v, "the name of a filter or test"));
    CR_TRY(cri_jinja_string_copy(run, v->s, v->n, &copy));
    *out = copy.s;
    return CR_OK;
}

static cr_status f_map(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    cri_value attr = {0}, by_default = {0}, v;
    const char *filter = NULL;
    cri_args rest = *args;
    cri_jinja_seq *items;

    if (args->num && !args->name[0]) {
        CR_TRY(text_name(run, &args->value[0], &filter));
        rest = (cri_args){args->value + 1, args->name + 1, args->num - 1};
    }
    for (size_t i = 0; i < args->num && !filter; i++) {
        bool is_attr = strcmp(args->name[i], "attribute") == 0;
        if (!is_attr && strcmp(args->name[i], "default") != 0)
            return cri_jinja_fail(run, "map has no parameter %s", args->name[i]);
        *(is_attr ? &attr : &by_default) = args->value[i];
    }
    if (!filter && attr.kind == JV_ABSENT)
        return cri_jinja_fail(run, "map needs a filter or an attribute");
    CR_TRY(cri_jinja_items(run, in, &items));
    CR_TRY(cri_jinja_seq_new(run, JQ_ITERATOR, items->num, out));
    for (size_t i = 0; i < items->num; i++) {
        if (filter)
            CR_TRY(cri_jinja_filter(run, filter, &items->item[i], &rest, &v));
        else
            CR_TRY(attr_path(run, &items->item[i], &attr, &by_default, &v));
        CR_TRY(cri_jinja_seq_add(run, out->seq, &v));
    }
    return CR_OK;
}

/* select, reject, and with an attribute first: selectattr, rejectattr. */
static cr_status choose(cri_run *run, const cri_value *in, const cri_args *args, bool by_attr,
                        bool wanted, cri_value *out)
{
    const char *test = NULL;
    size_t skip = by_attr;
    cri_args rest;
    cri_jinja_seq *items;

    if (args->num < skip) return cri_jinja_fail(run, "an attribute is missing");
    if (args->num > skip) CR_TRY(text_name(run, &args->value[skip++], &test));
    rest = (cri_args){args->value + skip, args->name + skip, args->num - skip};
    CR_TRY(cri_jinja_items(run, in, &items));
    CR_TRY(cri_jinja_seq_new(run, JQ_ITERATOR, 0, out));
    for (size_t i = 0; i < items->num; i++) {
        cri_value v = items->item[i];
        bool holds;
        if (by_attr) CR_TRY(attr_path(run, &v, &args->value[0], NULL, &v));
        CR_TRY(test ? cri_jinja_test(run, test, &v, &rest, &holds)
                    : cri_jinja_truth(run, &v, &holds));
        if (holds == wanted) CR_TRY(cri_jinja_seq_add(run, out->seq, &items->item[i]));
    }
    return CR_OK;
}

static cr_status f_select(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    return choose(run, in, args, false, true, out);
}

static cr_status f_reject(cri_run *run, const cri_value *in, const cri_args *args, cri_value *out)
{
    return choose(run, in, args, false, false, out);
}

static cr_status f_selectattr(cri_run *run, const cri_value *in, const cri_args *args,
                              cri_value *out)
{
    return choose(run, in, args, true, true, out);
}

static cr_status f_rejectattr(cri_run *run, const cri_value *in, const cri_args *args,
                              cri_value *out)
{
    return choose(run, in, args, true, false, out);
}

static const cri_callable filters[] = {
    {"abs", "", f_abs, NULL},
    {"capitalize", "", f_capitalize, NULL},
    {"count", "", f_length, NULL},
    {"d", "| default_value boolean", f_default, NULL},
    {"default", "| default_value boolean", f_default, NULL},
    {"dictsort", "| case_sensitive by reverse", f_dictsort, NULL},
    {"first", "", f_first, NULL},
    {"float", "| default", f_float, NULL},
    {"format", NULL, NULL, f_format},
    {"indent", "| width first blank", f_indent, NULL},
    {"int", "| default base", f_int, NULL},
    {"items", "", f_items, NULL},
    {"join", "| d attribute", f_join, NULL},
    {"last", "", f_last, NULL},
    {"length", "", f_length, NULL},
    {"list", "", f_list, NULL},
    {"lower", "", f_lower, NULL},
    {"map", NULL, NULL, f_map},
    {"max", "| case_sensitive attribute", f_max, NULL},
    {"min", "| case_sensitive attribute", f_min, NULL},
    {"reject", NULL, NULL, f_reject},
    {"rejectattr", NULL, NULL, f_rejectattr},
    {"replace", "old new | count", f_replace, NULL},
    {"reverse", "", f_reverse, NULL},
    {"round", "| precision method", f_round, NULL},
    {"safe", "", f_safe, NULL},
    {"select", NULL, NULL, f_select},
    {"selectattr", NULL, NULL, f_selectattr},
    {"sort", "| reverse case_sensitive attribute", f_sort, NULL},
    {"string", "", f_string, NULL},
    {"sum", "| attribute start", f_sum, NULL},
    {"title", "", f_title, NULL},
    {"tojson", "| ensure_ascii indent separators sort_keys", f_tojson, NULL},
    {"trim", "| chars", f_trim, NULL},
    {"unique", "| case_sensitive attribute", f_unique, NULL},
    {"upper", "", f_upper, NULL},
};

cr_status cri_jinja_filter(cri_run *run, const char *name, const cri_value *in,
                           const cri_args *args, cri_value *out)
{
    for (size_t i = 0; i < CR_COUNT(filters); i++) {
        cr_status status;
        if (strcmp(filters[i].name, name) != 0) continue;
        CR_TRY(cri_jinja_enter(run));
        status = cri_jinja_call_bound(run, &filters[i], in, args, out);
        run->depth--;
        return status;
    }
    return cri_jinja_fail(run, "the filter %s is not known", name);
}
