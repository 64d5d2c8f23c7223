/* rule.c -- see rule.h. */
#include "rewards/rule.h"

#include <stdio.h>
#include <string.h>

void cr_rule_error(cr_rule_result *out, const char *fmt, ...)
{
    va_list ap;

    *out = (cr_rule_result){.outcome = CR_OUTCOME_ERROR};
    va_start(ap, fmt);
    vsnprintf(out->detail, sizeof out->detail, fmt, ap);
    va_end(ap);
}

void cr_explain_value(json_t *explain, const char *key, json_t *value)
{
    if (explain)
        json_object_set_new(explain, key, value);
    else
        json_decref(value);
}

/* The first of text[n] that is at most `most` bytes and ends with a character. */
static size_t whole_characters(const char *text, size_t n, size_t max)
{
    if (n <= max) return n;
    while (max && ((unsigned char)text[max] & 0xC0) == 0x80)
        max--;
    return max;
}

void cr_explain_text(json_t *explain, const char *key, const char *text, size_t num_bytes)
{
    size_t n = whole_characters(text, num_bytes, CR_EXPLAINED);
    cr_buf out = {0};

    if (!explain) return;
    cr_buf_add(&out, text, n);
    if (n < num_bytes) cr_buf_addf(&out, " .. (%zu bytes in all)", num_bytes);
    json_object_set_new(explain, key, json_stringn(out.data ? out.data : "", out.num_bytes));
    cr_buf_free(&out);
}

void cr_explain_format(json_t *explain, const char *key, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cr_explain_text(explain, key, text, whole_characters(text, strlen(text), sizeof text - 4));
}

void cr_explain_found(json_t *explain, const char *text, const char *found, size_t num_bytes)
{
    enum { AROUND = 60 };
    const char *start = found, *end = found + num_bytes;
    cr_buf out = {0};

    if (!explain) return;
    cr_explain_text(explain, "found", found, num_bytes);
    while (start > text && (found - start < AROUND || ((unsigned char)*start & 0xC0) == 0x80))
        start--;
    end += whole_characters(end, strlen(end), AROUND);
    cr_buf_addf(&out, "%s%.*s[[%.*s]]%.*s%s", start > text ? ".." : "", (int)(found - start), start,
                (int)whole_characters(found, num_bytes, CR_EXPLAINED), found,
                (int)(end - found - (ptrdiff_t)num_bytes), found + num_bytes, *end ? ".." : "");
    json_object_set_new(explain, "context", json_stringn(out.data, out.num_bytes));
    cr_buf_free(&out);
}

const char *cr_rule_text(const json_t *row, const char *column)
{
    return json_string_value(json_object_get(row, column));
}
