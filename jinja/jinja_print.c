/* jinja_print.c -- values as text: str(), repr() and json.dumps() of Python. */
#include "jinja/jinja_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The shortest digits that read back, with an exponent below 1e-4 and from 1e16. */
void cri_jinja_add_float(cr_buf *out, double x)
{
    char digits[40], *e;
    int num = 1, exponent, len;

    if (!isfinite(x)) {
        cr_buf_adds(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", num - 1, x);
    while (strtod(digits, NULL) != x && ++num <= 17);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 16) {
        int after = num - 1 - exponent;
        cr_buf_addf(out, "%.*f", after < 1 ? 1 : after, x);
        return;
    }
    len = (int)(e - digits);
    cr_buf_addf(out, "%.*se%c%02d", len, digits, exponent < 0 ? '-' : '+', abs(exponent));
}

static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

void cri_jinja_add_repr(cr_buf *out, const char *s, size_t n)
{
    char quote = memchr(s, '\'', n) && !memchr(s, '"', n) ? '"' : '\'';
    uint32_t c;
    size_t num;

    cr_buf_addc(out, quote);
    for (size_t i = 0; i < n; i += num) {
        num = (size_t)cr_utf8_decode(s + i, n - i, &c);
        if (c == (uint32_t)quote || c == '\\')
            cr_buf_addf(out, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            cr_buf_adds(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (is_printable(c))
            cr_buf_add(out, s + i, num);
        else
            cr_buf_addf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    cr_buf_addc(out, quote);
}

static cr_status add_text(cri_run *run, const cri_value *v, bool is_repr, cr_buf *out);

static cr_status add_seq(cri_run *run, const cri_jinja_seq *seq, cr_buf *out)
{
    bool is_tuple = seq->kind == JQ_TUPLE;

    cr_buf_addc(out, is_tuple ? '(' : '[');
    for (size_t i = 0; i < seq->num; i++) {
        if (i) cr_buf_adds(out, ", ");
        CR_TRY(add_text(run, &seq->item[i], true, out));
    }
    if (is_tuple && seq->num == 1) cr_buf_addc(out, ',');
    cr_buf_addc(out, is_tuple ? ')' : ']');
    return CR_OK;
}

static cr_status add_dict(cri_run *run, const cri_dict *dict, cr_buf *out)
{
    cr_buf_addc(out, '{');
    for (size_t i = 0; i < dict->num; i++) {
        if (i) cr_buf_adds(out, ", ");
        CR_TRY(add_text(run, &dict->pair[i].key, true, out));
        cr_buf_adds(out, ": ");
        CR_TRY(add_text(run, &dict->pair[i].value, true, out));
    }
    cr_buf_addc(out, '}');
    return CR_OK;
}

static cr_status add_text(cri_run *run, const cri_value *v, bool is_repr, cr_buf *out)
{
    if (out->num_bytes > CRI_MAX_BYTES) return cri_jinja_fail(run, "a text is too long");
    CR_TRY(cri_jinja_spend(run, 1));
    CR_TRY(cri_jinja_enter(run));
    switch (v->kind) {
    case JV_UNDEFINED:
        if (is_repr) cr_buf_adds(out, "Undefined");
        break;
    case JV_NONE:
        cr_buf_adds(out, "None");
        break;
    case JV_BOOL:
        cr_buf_adds(out, v->b ? "True" : "False");
        break;
    case JV_INT:
        cr_buf_addf(out, "%lld", (long long)v->i);
        break;
    case JV_FLOAT:
        cri_jinja_add_float(out, v->f);
        break;
    case JV_STRING:
        if (is_repr && v->is_safe) return cri_jinja_fail(run, "a safe string in a list as text");
        if (is_repr)
            cri_jinja_add_repr(out, v->s, v->n);
        else
            cr_buf_add(out, v->s, v->n);
        break;
    case JV_DICT:
        CR_TRY(add_dict(run, v->dict, out));
        break;
    case JV_SEQ:
        if (v->seq->kind <= JQ_TUPLE) {
            CR_TRY(add_seq(run, v->seq, out));
            break;
        } /* fall through */
    default:
        return cri_jinja_fail(run, "a %s has no text", cri_jinja_kind_name(v));
    }
    run->depth--;
    return CR_OK;
}

cr_status cri_jinja_to_text(cri_run *run, const cri_value *v, cri_value *out)
{
    cr_buf text = {0};
    cr_status status;

    if (v->kind == JV_STRING) {
        *out = cri_jinja_string(v->s, v->n);
        return CR_OK;
    }
    status = add_text(run, v, false, &text);
    if (status == CR_OK) return cri_jinja_string_take(run, &text, out);
    cr_buf_free(&text);
    return status;
}

/* ---- JSON ---- */

static void add_json_string(cr_buf *out, const char *s, size_t n, bool ascii_only)
{
    static const char plain[] = "\"\\\n\r\t\f\b", escaped[] = "\"\\nrtfb";
    uint32_t c;
    size_t num;

    cr_buf_addc(out, '"');
    for (size_t i = 0; i < n; i += num) {
        const char *found;
        num = (size_t)cr_utf8_decode(s + i, n - i, &c);
        found = c && c < 128 ? strchr(plain, (int)c) : NULL;
        if (found)
            cr_buf_addf(out, "\\%c", escaped[found - plain]);
        else if (ascii_only && c >= 0x10000)
            cr_buf_addf(out, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
        else if (c < 0x20 || (ascii_only && c > '~'))
            cr_buf_addf(out, "\\u%04x", c);
        else
            cr_buf_add(out, s + i, num);
    }
    cr_buf_addc(out, '"');
}

static void new_line(const cri_json_style *style, int level, cr_buf *out)
{
    if (!style->indent) return;
    cr_buf_addc(out, '\n');
    for (int i = 0; i < level; i++)
        cr_buf_add(out, style->indent, style->num_indent);
}

static cr_status json_key(cri_run *run, const cri_value *key, const cri_json_style *style,
                          cr_buf *out)
{
    if (key->kind == JV_STRING) {
        add_json_string(out, key->s, key->n, style->ascii_only);
        return CR_OK;
    }
    if (key->kind != JV_BOOL && key->kind != JV_INT && key->kind != JV_NONE &&
        key->kind != JV_FLOAT)
        return cri_jinja_fail(run, "a %s cannot be a key of JSON", cri_jinja_kind_name(key));
    cr_buf_addc(out, '"');
    CR_TRY(cri_jinja_to_json(run, key, style, 0, out));
    cr_buf_addc(out, '"');
    return CR_OK;
}

/* order[i]: the pair that comes i-th, by key if sort_keys. */
static cr_status sort_keys(cri_run *run, const cri_dict *dict, size_t *order)
{
    for (size_t i = 0; i < dict->num; i++) {
        size_t at = i;
        CR_TRY(cri_jinja_spend(run, i / 4));
        for (int cmp = 1; at > 0; at--) {
            CR_TRY(cri_jinja_order(run, &dict->pair[order[at - 1]].key, &dict->pair[i].key, &cmp));
            if (cmp <= 0) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return CR_OK;
}

static cr_status json_dict(cri_run *run, const cri_dict *dict, const cri_json_style *style,
                           int level, cr_buf *out)
{
    size_t *order = NULL;

    if (style->sort_keys) {
        order = cri_jinja_alloc(run, dict->num * sizeof *order);
        if (!order) return run->err->status;
        CR_TRY(sort_keys(run, dict, order));
    }
    cr_buf_addc(out, '{');
    for (size_t i = 0; i < dict->num; i++) {
        const struct cri_pair *p = &dict->pair[order ? order[i] : i];
        if (i) cr_buf_add(out, style->item_separator.s, style->item_separator.n);
        new_line(style, level + 1, out);
        CR_TRY(json_key(run, &p->key, style, out));
        cr_buf_add(out, style->key_separator.s, style->key_separator.n);
        CR_TRY(cri_jinja_to_json(run, &p->value, style, level + 1, out));
    }
    if (dict->num) new_line(style, level, out);
    cr_buf_addc(out, '}');
    return CR_OK;
}

static cr_status json_seq(cri_run *run, const cri_jinja_seq *seq, const cri_json_style *style,
                          int level, cr_buf *out)
{
    cr_buf_addc(out, '[');
    for (size_t i = 0; i < seq->num; i++) {
        if (i) cr_buf_add(out, style->item_separator.s, style->item_separator.n);
        new_line(style, level + 1, out);
        CR_TRY(cri_jinja_to_json(run, &seq->item[i], style, level + 1, out));
    }
    if (seq->num) new_line(style, level, out);
    cr_buf_addc(out, ']');
    return CR_OK;
}

cr_status cri_jinja_to_json(cri_run *run, const cri_value *v, const cri_json_style *style,
                            int level, cr_buf *out)
{
    if (out->num_bytes > CRI_MAX_BYTES) return cri_jinja_fail(run, "a JSON text is too long");
    CR_TRY(cri_jinja_spend(run, 1));
    CR_TRY(cri_jinja_enter(run));
    switch (v->kind) {
    case JV_NONE:
        cr_buf_adds(out, "null");
        break;
    case JV_BOOL:
        cr_buf_adds(out, v->b ? "true" : "false");
        break;
    case JV_INT:
        cr_buf_addf(out, "%lld", (long long)v->i);
        break;
    case JV_FLOAT:
        if (!isfinite(v->f))
            return cri_jinja_fail(run, "JSON has no number for what is not finite");
        cri_jinja_add_float(out, v->f);
        break;
    case JV_STRING:
        add_json_string(out, v->s, v->n, style->ascii_only);
        break;
    case JV_DICT:
        CR_TRY(json_dict(run, v->dict, style, level, out));
        break;
    case JV_SEQ:
        if (v->seq->kind <= JQ_TUPLE) {
            CR_TRY(json_seq(run, v->seq, style, level, out));
            break;
        } /* fall through */
    default:
        return cri_jinja_fail(run, "a %s has no JSON", cri_jinja_kind_name(v));
    }
    run->depth--;
    return CR_OK;
}
