/* json.c -- strict JSON reading through jansson, and our writer (see json.h). */
#include "base/json.h"

#include "base/print_float.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Before the digits of a large integer, as it is in the tree and as JSON writes it. */
#define MARK         "\x1A"
#define ESCAPED_MARK "\\u001A"

/* Bytes of an integer at s that 64 bits cannot hold; 0: no such. */
static size_t large_integer(const char *s, const char *end)
{
    static const char max[] = "9223372036854775807";
    const size_t max_num = sizeof max - 1;
    const char *p = s + (s < end && *s == '-');
    size_t digits = 0;

    while (p + digits < end && isdigit((unsigned char)p[digits]))
        digits++;
    if (digits < max_num || (digits == max_num && memcmp(p, max, digits) <= 0)) return 0;
    p += digits;
    return p < end && (*p == '.' || *p == 'e' || *p == 'E') ? 0 : (size_t)(p - s);
}

/* The text with each large integer marked as a string, or as a real. */
static void with_large_integers(const char *text, size_t num_bytes, bool are_exact, cr_buf *out)
{
    const char *end = text + num_bytes;
    bool is_string = false;

    while (text < end) {
        size_t n = is_string ? 0 : large_integer(text, end);
        if (n) {
            cr_buf_adds(out, are_exact ? "\"" ESCAPED_MARK : "");
            cr_buf_add(out, text, n);
            cr_buf_adds(out, are_exact ? "\"" : ".0");
        } else {
            n = is_string && *text == '\\' && text + 1 < end ? 2 : 1;
            if (*text == '"') is_string = !is_string;
            if (!is_string &&
                (isdigit((unsigned char)*text) || *text == '.')) /* a number: as it is */
                while (text + n < end &&
                       (isalnum((unsigned char)text[n]) || strchr("+-.", text[n])))
                    n++;
            cr_buf_add(out, text, n);
        }
        text += n;
    }
}

static json_t *load(const char *text, size_t num_bytes, json_error_t *why)
{
    return json_loadb(text ? text : "", num_bytes,
                      JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, why);
}

static cr_status parse(const char *text, size_t num_bytes, const char *what, bool has_large,
                       bool are_exact, json_t **out, cr_err *err)
{
    json_error_t why;
    cr_buf large = {0};

    *out = load(text, num_bytes, &why);
    if (!*out && has_large && json_error_code(&why) == json_error_numeric_overflow) {
        with_large_integers(text, num_bytes, are_exact, &large);
        *out = load(large.data, large.num_bytes, &why);
        cr_buf_free(&large);
    }
    if (*out) return CR_OK;
    if (num_bytes == 0 || !memchr(text, '\n', num_bytes - 1)) /* the caller names its one line */
        cr_fail(err, CR_EFORMAT, "not valid JSON: column %d: %s", why.column, why.text);
    else
        cr_fail(err, CR_EFORMAT, "not valid JSON: line %d column %d: %s", why.line, why.column,
                why.text);
    return what ? cr_fail_add(err, "%s", what) : err->status;
}

cr_status cr_json_parse(const char *text, size_t num_bytes, const char *what, json_t **out,
                        cr_err *err)
{
    return parse(text, num_bytes, what, /*has_large=*/true, /*are_exact=*/false, out, err);
}

cr_status cr_json_parse_integers(const char *text, size_t num_bytes, const char *what,
                                 cr_json_integers how, json_t **out, cr_err *err)
{
    return parse(text, num_bytes, what, how == CR_JSON_EXACT, /*are_exact=*/true, out, err);
}

const char *cr_json_digits(const json_t *value)
{
    const char *text = json_string_value(value), *digits;

    if (!text || *text != *MARK) return NULL;
    digits = text + 1 + (text[1] == '-');
    if (!*digits || digits[strspn(digits, "0123456789")] ||
        strlen(text) != json_string_length(value))
        return NULL;
    return text + 1;
}

cr_status cr_json_read_file(const char *path, json_t **out, cr_err *err)
{
    cr_buf buf = {0};
    cr_status status;

    *out = NULL;
    status = cr_file_read(path, &buf, err);
    if (status == CR_OK) status = cr_json_parse(buf.data, buf.num_bytes, path, out, err);
    cr_buf_free(&buf);
    return status;
}

/* What stands for a character in JSON; NULL: it does itself. */
static const char *escape_of(unsigned char c, char out[8])
{
    if (c == '"') return "\\\"";
    if (c == '\\') return "\\\\";
    if (c == '\n') return "\\n";
    if (c == '\t') return "\\t";
    if (c == '\r') return "\\r";
    if (c >= 0x20) return NULL;
    snprintf(out, 8, "\\u%04x", c);
    return out;
}

void cr_json_add_string(cr_buf *buf, const char *text, size_t num_bytes)
{
    size_t plain = 0, i = 0; /* text[plain .. i) goes out as it is */
    char code[8];

    cr_buf_addc(buf, '"');
    while (i < num_bytes) {
        unsigned char c = (unsigned char)text[i];
        uint32_t code_point;
        int n = c < 0x80 ? 1 : cr_utf8_decode(text + i, num_bytes - i, &code_point);
        const char *instead = n == 0 ? "\xEF\xBF\xBD" : c < 0x80 ? escape_of(c, code) : NULL;
        if (instead) {
            cr_buf_add(buf, text + plain, i - plain);
            cr_buf_adds(buf, instead);
        }
        i += n ? (size_t)n : 1;
        if (instead) plain = i;
    }
    cr_buf_add(buf, text + plain, i - plain);
    cr_buf_addc(buf, '"');
}

void cr_json_add_base64(cr_buf *buf, const void *data, size_t num_bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = data;

    cr_buf_reserve(buf, buf->num_bytes + num_bytes / 3 * 4 + 8);
    cr_buf_addc(buf, '"');
    for (size_t i = 0; i < num_bytes; i += 3) {
        size_t left = num_bytes - i;
        uint32_t bits = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                        (left > 2 ? in[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], digits[bits >> 6 & 63],
                        digits[bits & 63]};
        if (left < 3) four[3] = '=';
        if (left < 2) four[2] = '=';
        cr_buf_add(buf, four, 4);
    }
    cr_buf_addc(buf, '"');
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool cr_base64_read(const char *text, size_t num_bytes, cr_buf *out)
{
    size_t num_pads = 0;

    if (num_bytes % 4) return false;
    while (num_pads < 2 && num_bytes && text[num_bytes - 1 - num_pads] == '=')
        num_pads++;
    cr_buf_reserve(out, out->num_bytes + num_bytes / 4 * 3 + 1);
    for (size_t i = 0; i < num_bytes; i += 4) {
        size_t n = i + 4 < num_bytes ? 3 : 3 - num_pads;
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            int d = k <= n ? base64_digit(text[i + k]) : 0;
            if (d < 0) return false;
            bits = bits << 6 | (uint32_t)d;
        }
        for (size_t k = 0; k < n; k++)
            cr_buf_addc(out, (char)(bits >> (16 - 8 * k) & 0xff));
    }
    return true;
}

static cr_status check_finite(double x, cr_err *err)
{
    if (isfinite(x)) return CR_OK;
    return cr_fail(err, CR_ENUMERIC, "a number to be written is not finite (%g)", x);
}

cr_status cr_json_add_float(cr_buf *buf, float x, cr_err *err)
{
    char text[CR_FLOAT_TEXT];

    CR_TRY(check_finite((double)x, err));
    cr_buf_add(buf, text, cr_print_float(x, text));
    return CR_OK;
}

cr_status cr_json_add_double(cr_buf *buf, double x, cr_err *err)
{
    CR_TRY(check_finite(x, err));
    cr_buf_addf(buf, "%.17g", x);
    return CR_OK;
}

void cr_json_add_int(cr_buf *buf, int64_t x)
{
    char text[24], *at = text + sizeof text;
    uint64_t left = x < 0 ? -(uint64_t)x : (uint64_t)x;

    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (x < 0) *--at = '-';
    cr_buf_add(buf, at, (size_t)(text + sizeof text - at));
}

void cr_json_add_ids(cr_buf *buf, const int32_t *ids, size_t num)
{
    cr_buf_addc(buf, '[');
    for (size_t i = 0; i < num; i++) {
        if (i) cr_buf_addc(buf, ',');
        cr_json_add_int(buf, ids[i]);
    }
    cr_buf_addc(buf, ']');
}

cr_status cr_json_add_floats(cr_buf *buf, const float *x, size_t num, cr_err *err)
{
    cr_buf_addc(buf, '[');
    for (size_t i = 0; i < num; i++) {
        if (i) cr_buf_addc(buf, ',');
        CR_TRY(cr_json_add_float(buf, x[i], err));
    }
    cr_buf_addc(buf, ']');
    return CR_OK;
}

cr_status cr_json_add_value(cr_buf *buf, const json_t *value, cr_err *err)
{
    const char *key;
    json_t *item;
    size_t i;

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        cr_buf_addc(buf, '{');
        i = 0;
        json_object_foreach((json_t *)(uintptr_t)value, key, item)
        {
            if (i++) cr_buf_addc(buf, ',');
            cr_json_add_string(buf, key, strlen(key));
            cr_buf_addc(buf, ':');
            CR_TRY(cr_json_add_value(buf, item, err));
        }
        cr_buf_addc(buf, '}');
        return CR_OK;
    case JSON_ARRAY:
        cr_buf_addc(buf, '[');
        json_array_foreach(value, i, item)
        {
            if (i) cr_buf_addc(buf, ',');
            CR_TRY(cr_json_add_value(buf, item, err));
        }
        cr_buf_addc(buf, ']');
        return CR_OK;
    case JSON_STRING:
        if (cr_json_digits(value)) {
            cr_buf_adds(buf, cr_json_digits(value));
            return CR_OK;
        }
        cr_json_add_string(buf, json_string_value(value), json_string_length(value));
        return CR_OK;
    case JSON_INTEGER:
        cr_buf_addf(buf, "%lld", (long long)json_integer_value(value));
        return CR_OK;
    case JSON_REAL:
        return cr_json_add_double(buf, json_real_value(value), err);
    case JSON_TRUE:
        cr_buf_adds(buf, "true");
        return CR_OK;
    case JSON_FALSE:
        cr_buf_adds(buf, "false");
        return CR_OK;
    case JSON_NULL:
        break;
    }
    cr_buf_adds(buf, "null");
    return CR_OK;
}
