/* jinja_lex.c -- a template's text to tokens, with Jinja's whitespace control: "-" strips, "+" keeps,
 * a tag or comment alone on its line leaves nothing (lstrip_blocks, trim_blocks). */
#include "jinja/jinja_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    const char *s; /* newlines normalised */
    size_t n, pos;
    int line;
    bool line_starting;
    char closers[CRI_MAX_NESTING]; /* the brackets that are open */
    size_t num_closers;
    const char *what;
    cr_arena *arena;
    cri_token *token;
    size_t num, capacity;
    cr_err *err;
} lexer;

static cr_status fail(lexer *x, const char *why)
{
    return cr_fail(x->err, CR_EFORMAT, "%s: line %d: %s", x->what, x->line, why);
}

static bool at(const lexer *x, size_t pos, const char *text)
{
    size_t n = strlen(text);
    return pos + n <= x->n && memcmp(x->s + pos, text, n) == 0;
}

static size_t skip_space(const lexer *x, size_t pos)
{
    uint32_t c;
    int n;
    while (pos < x->n && (n = cr_utf8_decode(x->s + pos, x->n - pos, &c)) > 0 &&
           cri_jinja_is_space(c))
        pos += (size_t)n;
    return pos;
}

static void advance(lexer *x, size_t to)
{
    for (; x->pos < to; x->pos++)
        if (x->s[x->pos] == '\n') x->line++;
    if (to) x->line_starting = x->s[to - 1] == '\n';
}

static cri_token *add(lexer *x, cri_token_kind kind, const char *s, size_t n)
{
    cri_token *t;
    if (x->num == x->capacity) {
        size_t old = x->capacity * sizeof *x->token;
        x->capacity = x->capacity ? 2 * x->capacity : 256;
        x->token = cr_realloc(x->token, old, x->capacity * sizeof *x->token);
    }
    t = &x->token[x->num++];
    *t = (cri_token){.kind = kind, .line = x->line, .n = n};
    t->s = s ? cr_arena_strndup(x->arena, s, n) : "";
    return t;
}

/* The end of a tag that begins at pos: "-%}" and all space, "+%}", "%}" and a newline. 0: none. */
static size_t tag_end(const lexer *x, size_t pos, const char *end, bool trims)
{
    if (pos < x->n && x->s[pos] == '-' && at(x, pos + 1, end)) return skip_space(x, pos + 3);
    if (trims && pos < x->n && x->s[pos] == '+' && at(x, pos + 1, end)) return pos + 3;
    if (!at(x, pos, end)) return 0;
    pos += 2;
    return trims && pos < x->n && x->s[pos] == '\n' ? pos + 1 : pos;
}

/* Text before a tag: the part of [pos, end) that remains. sign: the character after the tag's opener. */
static size_t strip_before(const lexer *x, size_t end, char sign, bool is_variable)
{
    const char *s = x->s + x->pos;
    size_t n = end - x->pos, start = n;

    if (sign == '-') {
        cri_jinja_strip(&s, &n, NULL, false, true);
        return x->pos + n;
    }
    if (sign == '+' || is_variable) return end;
    while (start > 0 && s[start - 1] != '\n')
        start--;
    if (start == n || (start == 0 && !x->line_starting)) return end;
    return skip_space(x, x->pos + start) >= end ? x->pos + start : end;
}

/* {% raw %} at pos: the end of the tag; 0: it is another tag. */
static size_t raw_begin(const lexer *x, size_t pos)
{
    pos += 2;
    if (pos < x->n && (x->s[pos] == '-' || x->s[pos] == '+')) pos++;
    pos = skip_space(x, pos);
    if (!at(x, pos, "raw")) return 0;
    pos = skip_space(x, pos + 3);
    if (at(x, pos, "-%}")) return skip_space(x, pos + 3);
    return at(x, pos, "%}") ? pos + 2 : 0;
}

static cr_status lex_raw(lexer *x)
{
    for (size_t i = x->pos; i < x->n; i++) {
        size_t p = i + 2, end;
        char sign;
        if (!at(x, i, "{%")) continue;
        sign = p < x->n ? x->s[p] : 0;
        if (sign == '-' || sign == '+') p++;
        p = skip_space(x, p);
        if (!at(x, p, "endraw")) continue;
        end = tag_end(x, skip_space(x, p + 6), "%}", true);
        if (!end) continue;
        p = strip_before(x, i, sign, false);
        if (p > x->pos) add(x, JT_DATA, x->s + x->pos, p - x->pos);
        advance(x, end);
        return CR_OK;
    }
    return fail(x, "a raw block without its end");
}

static cr_status lex_comment(lexer *x)
{
    for (size_t i = x->pos; i + 1 < x->n; i++) {
        size_t end = tag_end(x, i, "#}", true);
        if (end) {
            advance(x, end);
            return CR_OK;
        }
    }
    return fail(x, "a comment without its end");
}

/* ---- inside a tag ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The escape at s (after the backslash) to out; returns the bytes read, 0 if it is malformed. */
static size_t unescape(const char *s, size_t n, cr_buf *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *found = strchr(from, s[0]);
    char utf8[4];
    uint32_t c = 0;
    size_t num = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0, i = 0;

    if (s[0] == '\n') return 1;
    if (s[0] && found) {
        cr_buf_addc(out, to[found - from]);
        return 1;
    }
    if (s[0] == 'N') return 0;
    if (num) {
        for (i = 1; i <= num; i++) {
            if (i >= n || hex_digit(s[i]) < 0 || c > 0x10FFFF) return 0;
            c = c * 16 + (uint32_t)hex_digit(s[i]);
        }
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    } else if (s[0] >= '0' && s[0] <= '7') {
        for (; i < 3 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            c = c * 8 + (uint32_t)(s[i] - '0');
    } else {
        cr_buf_addc(out, '\\'); /* no escape: stays as it is */
        return (size_t)-1;
    }
    cr_buf_add(out, utf8, (size_t)cr_utf8_encode(c, utf8));
    return i;
}

static cr_status lex_string(lexer *x)
{
    char quote = x->s[x->pos];
    size_t i = x->pos + 1;
    cr_buf text = {0};

    for (; i < x->n && x->s[i] != quote; i++) {
        size_t num;
        if (x->s[i] != '\\' || i + 1 >= x->n) {
            cr_buf_addc(&text, x->s[i]);
            continue;
        }
        num = unescape(x->s + i + 1, x->n - i - 1, &text);
        if (num == (size_t)-1) continue;
        if (num == 0) {
            cr_buf_free(&text);
            return fail(x, "a string has an escape that is malformed or not supported");
        }
        i += num;
    }
    if (i < x->n) {
        add(x, JT_STRING, text.data ? text.data : "", text.num_bytes);
        advance(x, i + 1);
    }
    cr_buf_free(&text);
    return i < x->n ? CR_OK : fail(x, "a string without its end");
}

static size_t digits_end(const lexer *x, size_t pos)
{
    while (pos < x->n && x->s[pos] >= '0' && x->s[pos] <= '9')
        pos++;
    return pos;
}

static cr_status lex_number(lexer *x)
{
    size_t start = x->pos, end = digits_end(x, start), exponent;
    bool is_float = false, after_dot = start > 0 && x->s[start - 1] == '.';
    cri_token *t;
    char *rest;

    if (!after_dot && end + 1 < x->n && x->s[end] == '.' && digits_end(x, end + 1) > end + 1)
        is_float = true, end = digits_end(x, end + 1);
    if (!after_dot && end < x->n && (x->s[end] == 'e' || x->s[end] == 'E')) {
        exponent = end + 1;
        if (exponent < x->n && (x->s[exponent] == '+' || x->s[exponent] == '-')) exponent++;
        if (digits_end(x, exponent) > exponent) is_float = true, end = digits_end(x, exponent);
    }
    if (end < x->n && (x->s[end] == '_' || (x->s[end] | 0x20) == 'x' || (x->s[end] | 0x20) == 'o' ||
                       (x->s[end] | 0x20) == 'b'))
        return fail(x, "this form of a number is not supported");
    if (!is_float && x->s[start] == '0' && strspn(x->s + start, "0") < end - start)
        return fail(x, "a whole number begins with 0");
    if (end - start > 18 + (is_float ? 200 : 0)) return fail(x, "a number is too long");
    t = add(x, is_float ? JT_FLOAT : JT_INT, x->s + start, end - start);
    if (is_float)
        t->f = strtod(t->s, &rest);
    else
        t->i = strtoll(t->s, &rest, 10);
    advance(x, end);
    return CR_OK;
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static cr_status lex_operator(lexer *x)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const char *op = NULL;

    for (size_t i = 0; i < CR_COUNT(operators) && !op; i++)
        if (at(x, x->pos, operators[i])) op = operators[i];
    if (!op) return fail(x, "a character that has no place in a tag");
    if (strchr("({[", op[0])) {
        if (x->num_closers == CRI_MAX_NESTING) return fail(x, "brackets are nested too deep");
        x->closers[x->num_closers++] = op[0] == '(' ? ')' : op[0] == '{' ? '}' : ']';
    } else if (strchr(")}]", op[0])) {
        if (!x->num_closers || x->closers[--x->num_closers] != op[0])
            return fail(x, "a bracket is closed that is not open");
    }
    add(x, JT_OP, op, strlen(op));
    advance(x, x->pos + strlen(op));
    return CR_OK;
}

static cr_status lex_tag(lexer *x, const char *end_text, cri_token_kind end_kind)
{
    x->num_closers = 0;
    while (x->pos < x->n) {
        size_t start = x->pos, end;
        char c;
        if (!x->num_closers && (end = tag_end(x, start, end_text, end_kind == JT_BLOCK_END))) {
            add(x, end_kind, NULL, 0);
            advance(x, end);
            return CR_OK;
        }
        end = skip_space(x, start);
        c = x->s[start];
        if (end > start) {
            advance(x, end);
        } else if (c >= '0' && c <= '9') {
            CR_TRY(lex_number(x));
        } else if (is_name_char(c)) {
            while (end < x->n && is_name_char(x->s[end]))
                end++;
            add(x, JT_NAME, x->s + start, end - start);
            advance(x, end);
        } else if (c == '\'' || c == '"') {
            CR_TRY(lex_string(x));
        } else {
            CR_TRY(lex_operator(x));
        }
    }
    return fail(x, "a tag without its end");
}

static cr_status lex_root(lexer *x)
{
    while (x->pos < x->n) {
        const char *brace = memchr(x->s + x->pos, '{', x->n - x->pos);
        size_t i = brace ? (size_t)(brace - x->s) : x->n, keep, raw;
        char kind, sign;
        while (i + 1 < x->n && (x->s[i] != '{' || !memchr("{%#", x->s[i + 1], 3)))
            i++;
        if (i + 1 >= x->n) { /* no tag any more */
            add(x, JT_DATA, x->s + x->pos, x->n - x->pos);
            return CR_OK;
        }
        kind = x->s[i + 1];
        sign = i + 2 < x->n ? x->s[i + 2] : 0;
        raw = kind == '%' ? raw_begin(x, i) : 0;
        keep = strip_before(x, i, sign, kind == '{');
        if (keep > x->pos) add(x, JT_DATA, x->s + x->pos, keep - x->pos);
        advance(x, raw ? raw : i + 2 + (sign == '-' || sign == '+'));
        if (raw) {
            CR_TRY(lex_raw(x));
        } else if (kind == '#') {
            CR_TRY(lex_comment(x));
        } else if (kind == '%') {
            add(x, JT_BLOCK_BEGIN, NULL, 0);
            CR_TRY(lex_tag(x, "%}", JT_BLOCK_END));
        } else {
            add(x, JT_VAR_BEGIN, NULL, 0);
            CR_TRY(lex_tag(x, "}}", JT_VAR_END));
        }
    }
    return CR_OK;
}

/* All newlines become "\n"; one at the very end goes. */
static char *normalise(const char *text, size_t num_bytes, size_t *num)
{
    char *s = cr_alloc(num_bytes + 1);
    size_t n = 0;

    for (size_t i = 0; i < num_bytes; i++) {
        if (text[i] == '\r') {
            s[n++] = '\n';
            if (i + 1 < num_bytes && text[i + 1] == '\n') i++;
        } else {
            s[n++] = text[i];
        }
    }
    if (n && s[n - 1] == '\n') n--;
    *num = n;
    return s;
}

cr_status cri_jinja_lex(const char *text, size_t num_bytes, const char *what, cr_arena *arena,
                        cri_token **tokens, size_t *num, cr_err *err)
{
    lexer x = {.line = 1, .line_starting = true, .what = what, .arena = arena, .err = err};
    char *s;
    cr_status status = CR_OK;

    *tokens = NULL;
    if (!cr_utf8_valid(text, num_bytes))
        return cr_fail(err, CR_EFORMAT, "%s: the template is not valid UTF-8", what);
    x.s = s = normalise(text, num_bytes, &x.n);
    status = lex_root(&x);
    add(&x, JT_EOF, NULL, 0);
    cr_free(s);
    *tokens = x.token;
    *num = x.num;
    return status;
}
