/* reader.c -- see reader.h. */
#include "serve/reader.h"
#include "serve/request.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 15 /* digits: exact as a double */ };

cri_reader cri_reader_of(const char *text, size_t num_bytes)
{
    const char *begin = text ? text : "";

    return (cri_reader){.begin = begin, .at = begin, .end = begin + num_bytes};
}

static bool wrong(cri_reader *r, const char *why)
{
    if (!r->why[0])
        snprintf(r->why, sizeof r->why, "%s at byte %zu", why, (size_t)(r->at - r->begin));
    return false;
}

static bool skip_blanks(cri_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
    return r->at < r->end;
}

char cri_peek(cri_reader *r)
{
    if (r->why[0] || !skip_blanks(r)) return 0;
    return *r->at == '-' || (*r->at >= '0' && *r->at <= '9') ? '0' : *r->at;
}

/* Only words that are values begin with these letters. */
static bool read_word(cri_reader *r, const char *word)
{
    size_t num = strlen(word);

    if ((size_t)(r->end - r->at) < num || memcmp(r->at, word, num) != 0)
        return wrong(r, "an unknown word");
    r->at += num;
    return true;
}

bool cri_read_null(cri_reader *r)
{
    return cri_peek(r) == 'n' && read_word(r, "null");
}

bool cri_read_flag(cri_reader *r, bool *out)
{
    char c = cri_peek(r);

    *out = c == 't';
    return c == 't' || c == 'f' ? read_word(r, *out ? "true" : "false")
                                : wrong(r, "expected true or false");
}

static bool is_digit(const cri_reader *r)
{
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static bool read_digits(cri_reader *r)
{
    if (!is_digit(r)) return wrong(r, "expected a digit");
    while (is_digit(r))
        r->at++;
    return true;
}

bool cri_read_number(cri_reader *r, cri_number *out)
{
    const char *from;
    bool is_plain = true;
    char text[64];
    size_t num;

    *out = (cri_number){0};
    if (cri_peek(r) != '0') return wrong(r, "expected a number");
    from = r->at;
    if (*r->at == '-') r->at++;
    if (r->at < r->end && *r->at == '0' && r->at + 1 < r->end && r->at[1] >= '0' && r->at[1] <= '9')
        return wrong(r, "a number with a leading zero");
    if (!read_digits(r)) return false;
    if (r->at < r->end && *r->at == '.') {
        is_plain = false;
        r->at++;
        if (!read_digits(r)) return false;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        is_plain = false;
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        if (!read_digits(r)) return false;
    }
    num = (size_t)(r->at - from);
    if (is_plain && num <= SHORT && *from != '-') { /* most are ids */
        for (; from < r->at; from++)
            out->integer = 10 * out->integer + (*from - '0');
        out->value = (double)out->integer;
        out->is_integer = true;
        return true;
    }
    if (num >= sizeof text) return wrong(r, "a number of more than 63 characters");
    memcpy(text, from, num);
    text[num] = '\0';
    out->value = strtod(text, NULL);
    errno = 0;
    if (is_plain) {
        out->integer = strtoll(text, NULL, 10);
        out->is_integer = errno == 0;
    } else if (fabs(out->value) < 9007199254740992.0 && out->value == floor(out->value)) {
        out->integer = (int64_t)out->value;
        out->is_integer = true;
    }
    return true;
}

static bool read_hex(cri_reader *r, uint32_t *out)
{
    *out = 0;
    if (r->end - r->at < 4) return wrong(r, "an unfinished \\u");
    for (int i = 0; i < 4; i++, r->at++) {
        char c = *r->at;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return wrong(r, "a \\u without four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* What follows a backslash. */
static bool read_escape(cri_reader *r, cr_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t code_point, low;
    const char *found;
    char bytes[4];

    if (r->at == r->end) return wrong(r, "an unfinished string");
    found = *r->at ? strchr(from, *r->at) : NULL;
    if (found) {
        cr_buf_addc(out, to[found - from]);
        r->at++;
        return true;
    }
    if (*r->at++ != 'u') return wrong(r, "an unknown escape");
    if (!read_hex(r, &code_point)) return false;
    if (code_point >= 0xD800 && code_point < 0xE000) {
        bool is_pair = code_point < 0xDC00 && r->end - r->at >= 2 && memcmp(r->at, "\\u", 2) == 0;
        if (is_pair) r->at += 2;
        if (is_pair && !read_hex(r, &low)) return false;
        if (!is_pair || low < 0xDC00 || low > 0xDFFF) return wrong(r, "half of a surrogate pair");
        code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
    }
    cr_buf_add(out, bytes, (size_t)cr_utf8_encode(code_point, bytes));
    return true;
}

bool cri_read_string(cri_reader *r, cr_buf *out)
{
    cr_buf_clear(out);
    if (cri_peek(r) != '"') return wrong(r, "expected a string");
    for (r->at++;;) {
        const char *from = r->at;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20)
            r->at++;
        cr_buf_add(out, from, (size_t)(r->at - from));
        if (r->at == r->end) return wrong(r, "an unfinished string");
        if ((unsigned char)*r->at < 0x20) return wrong(r, "a control character in a string");
        if (*r->at++ == '"') return true;
        if (!read_escape(r, out)) return false;
    }
}

bool cri_read_begin(cri_reader *r, char open)
{
    if (cri_peek(r) != open) return wrong(r, open == '{' ? "expected {" : "expected [");
    if (r->depth == CR_SERVE_MAX_DEPTH) return wrong(r, "too many levels of objects and arrays");
    r->at++;
    r->depth++;
    r->is_first = true;
    return true;
}

/* The end of an object or array, or the comma before its next part. */
static bool next(cri_reader *r, char close)
{
    bool is_first = r->is_first;

    r->is_first = false;
    if (r->why[0]) return false;
    if (!skip_blanks(r)) return wrong(r, "the text ends inside an object or array");
    if (*r->at == close) {
        r->at++;
        r->depth--;
        return false;
    }
    if (is_first) return true;
    if (*r->at != ',') return wrong(r, close == '}' ? "expected , or }" : "expected , or ]");
    r->at++;
    if (skip_blanks(r) && *r->at == close) return wrong(r, "a comma before the end");
    return true;
}

bool cri_next_item(cri_reader *r)
{
    return next(r, ']');
}

bool cri_next_member(cri_reader *r, cr_buf *key)
{
    if (!next(r, '}')) return false;
    if (!cri_read_string(r, key)) return false;
    if (!skip_blanks(r) || *r->at != ':') return wrong(r, "expected :");
    r->at++;
    return true;
}

static bool pass_over(cri_reader *r, cr_buf *text)
{
    cri_number number;
    bool flag;

    r->num_values++;
    switch (cri_peek(r)) {
    case '{':
        if (!cri_read_begin(r, '{')) return false;
        while (cri_next_member(r, text))
            if (!pass_over(r, text)) return false;
        return !r->why[0];
    case '[':
        if (!cri_read_begin(r, '[')) return false;
        while (cri_next_item(r))
            if (!pass_over(r, text)) return false;
        return !r->why[0];
    case '"':
        return cri_read_string(r, text);
    case '0':
        return cri_read_number(r, &number);
    case 't':
    case 'f':
        return cri_read_flag(r, &flag);
    case 'n':
        return cri_read_null(r);
    default:
        return wrong(r, "expected a value");
    }
}

bool cri_read_any(cri_reader *r, const char **begin, size_t *num_bytes)
{
    cr_buf text = {0};
    bool is_fine;

    cri_peek(r);
    *begin = r->at;
    is_fine = pass_over(r, &text);
    *num_bytes = (size_t)(r->at - *begin);
    cr_buf_free(&text);
    return is_fine;
}

bool cri_at_end(cri_reader *r)
{
    if (r->why[0]) return false;
    return !skip_blanks(r) || wrong(r, "more text after the value");
}
