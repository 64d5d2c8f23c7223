/* math_digits.c -- how numbers are written: 12 000, 0.8\overline{3}, 0.333\ldots, 1e-3, 1011_2. */
#include "rewards/math/math_parse_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPEATED = 40 };

/* The n digits that repeat after those of head (with a point), as a fraction: 83 - 8 over 90 for 0.8 and 3. */
static cri_math *fraction_of_period(cri_math_parser *p, const char *head_text, size_t num_head,
                                    const char *period, size_t n)
{
    size_t before, num = 0;
    char *all, *head, *below;
    const char *point = memchr(head_text, '.', num_head);
    cri_math *a, *b;

    if (n == 0 || n > MAX_REPEATED || num_head > MAX_REPEATED || !point) return NULL;
    before = num_head - (size_t)(point - head_text) - 1;
    all = cr_arena_alloc(p->q->arena, 3 * 100);
    head = all + 100;
    below = head + 100;
    memset(all, 0, 3 * 100);
    for (size_t i = 0; i < num_head; i++)
        if (head_text[i] != '.') all[num] = head[num] = head_text[i], num++;
    memcpy(all + num, period, n);
    memset(below, '9', n);
    memset(below + n, '0', before);
    a = cri_math_node(
        p->q, CRI_ADD, 2, cri_leaf(p, CRI_NUM, all, strlen(all)),
        cri_math_node(p->q, CRI_NEG, 1, cri_leaf(p, CRI_NUM, head, strlen(head)), NULL));
    b = cri_leaf(p, CRI_NUM, below, strlen(below));
    return cri_math_node(p->q, CRI_DIV, 2, a, b);
}

/* \dot{3} or \dot3: one more digit of a period. */
static bool take_dotted(cri_math_parser *p, char *period, size_t *n)
{
    bool has_braces;

    if (*n == MAX_REPEATED || !cri_take(p, "\\dot")) return false;
    has_braces = cri_take(p, "{");
    cri_skip(p);
    if (!isdigit((unsigned char)p->s[p->at])) return false;
    period[(*n)++] = p->s[p->at++];
    return !has_braces || cri_take(p, "}");
}

static void take_digits(cri_math_parser *p, char *period, size_t *n)
{
    while (*n < MAX_REPEATED && isdigit((unsigned char)p->s[p->at]))
        period[(*n)++] = p->s[p->at++];
}

/* 0.8\overline{3}, 0.8\dot{3}, 0.\dot{1}4\dot{2}: the digits after those up to end. */
static cri_math *marked_period(cri_math_parser *p, size_t start, size_t end)
{
    char period[MAX_REPEATED];
    size_t n = 0, at;

    if (take_dotted(p, period, &n)) {
        at = p->at;
        take_digits(p, period, &n);
        if (!take_dotted(p, period, &n)) n = 1, p->at = at;
    } else {
        if (!cri_take(p, "\\overline{") && !cri_take(p, "\\bar{")) return NULL;
        take_digits(p, period, &n);
        if (!cri_take(p, "}")) return NULL;
    }
    return fraction_of_period(p, p->s + start, end - start, period, n);
}

/* 0.1666\ldots: the last digits repeat, three times if it is one digit, else twice; 3.14\ldots: only the digits. */
static cri_math *shown_period(cri_math_parser *p, size_t start, size_t end)
{
    static const char *const dots[] = {"\\ldots", "\\dots", "\\cdots", NULL};
    const char *s = p->s + end, *point = memchr(p->s + start, '.', end - start);
    size_t decimals = point ? (size_t)(s - point) - 1 : 0;

    if (!cri_take_any(p, dots)) return NULL;
    for (size_t n = 1; n <= MAX_REPEATED; n++) {
        size_t shown = n == 1 ? 3 : 2 * n;
        if (shown > decimals) break;
        if (memcmp(s - shown, s - shown + n, shown - n) == 0)
            return fraction_of_period(p, p->s + start, end - start - shown, s - n, n);
    }
    return cri_leaf(p, CRI_NUM, p->s + start, end - start);
}

/* Bytes of a space between thousands at s, if three digits follow; 0: none. */
static size_t thousands_space(const char *s)
{
    size_t n = *s == ' ' || *s == '~' ? 1 : *s == '\\' && (s[1] == ',' || s[1] == ' ') ? 2 : 0;

    if (n == 0 && (strncmp(s, "\xC2\xA0", 2) == 0 || strncmp(s, "\xE2\x80\xAF", 3) == 0 ||
                   strncmp(s, "\xE2\x80\x89", 3) == 0))
        n = *s == '\xC2' ? 2 : 3;
    return n && strspn(s + n, "0123456789") == 3 ? n : 0;
}

/* 12 000 and 1\,234\,567.8: digits from start to p->at, then groups of three; NULL: none. */
static cri_math *spaced_number(cri_math_parser *p, size_t start)
{
    const char *s = p->s;
    size_t n = p->at - start, end = p->at, decimals, space;
    char *digits, *to;

    if (n == 0 || s[start] == '0' || !thousands_space(s + end)) return NULL;
    for (int i = 0; i < 12 && (space = thousands_space(s + end)); i++)
        end += space + 3;
    decimals = s[end] == '.' ? strspn(s + end + 1, "0123456789") : 0;
    if (decimals) end += 1 + decimals;
    to = digits = cr_arena_alloc(p->q->arena, end - start);
    for (const char *c = s + start; c < s + end; c++)
        if (isdigit((unsigned char)*c) || *c == '.') *to++ = *c;
    p->at = end;
    return cri_leaf(p, CRI_NUM, digits, (size_t)(to - digits));
}

/* 1A3_{16}, FF_{16}: digits and capital letters before this base; A_{16} is a name. */
cri_math *cri_hexadecimal(cri_math_parser *p, size_t start)
{
    const char *s = p->s + start;
    size_t n = strspn(s, "0123456789ABCDEF");

    if (n < 2 || start + n == p->at ||
        (strncmp(s + n, "_{16}", 5) != 0 && strncmp(s + n, "_16", 3) != 0))
        return NULL;
    p->at = start + n;
    return cri_leaf(p, CRI_NUM, s, n);
}

cri_math *cri_number(cri_math_parser *p)
{
    size_t start = p->at, end;
    const char *s = p->s;
    cri_math *m, *ten, *power;

    while (isdigit((unsigned char)s[p->at]))
        p->at++;
    if (p->at - start <= 3 && (m = spaced_number(p, start))) return m;
    if (s[p->at] == '.' && (isdigit((unsigned char)s[p->at + 1]) || s[p->at + 1] == '\\')) {
        p->at++;
        while (isdigit((unsigned char)s[p->at]))
            p->at++;
    }
    end = p->at;
    if (memchr(s + start, '.', end - start)) {
        if ((m = marked_period(p, start, end))) return m;
        p->at = end;
        if ((m = shown_period(p, start, end))) return m;
        p->at = end;
    } else if ((m = cri_hexadecimal(p, start))) {
        return m;
    }
    m = cri_leaf(p, CRI_NUM, s + start, end - start);
    if ((s[end] != 'e' && s[end] != 'E') || end == start) return m;
    p->at++; /* 1e-3 */
    p->at += s[p->at] == '-' || s[p->at] == '+';
    if (!isdigit((unsigned char)s[p->at])) {
        p->at = end;
        return m;
    }
    start = end + 1;
    while (isdigit((unsigned char)s[p->at]))
        p->at++;
    ten = cri_leaf(p, CRI_NUM, "10", 2);
    power = cri_leaf(p, CRI_NUM, s + start + (s[start] == '-' || s[start] == '+'),
                     p->at - start - (s[start] == '-' || s[start] == '+'));
    if (s[start] == '-') power = cri_math_node(p->q, CRI_NEG, 1, power, NULL);
    return cri_math_node(p->q, CRI_MUL, 2, m, cri_math_node(p->q, CRI_POW, 2, ten, power));
}

/* ---- bases ---- */

/* 2 .. 36, in digits or as a word, perhaps in \text; 0: none. */
static int base_of(const char *s, size_t n)
{
    static const char *const words[] = {"two",   "three", "four", "five",   "six",   "seven",
                                        "eight", "nine",  "ten",  "eleven", "twelve"};
    const char *open = memchr(s, '{', n);
    char text[16];
    int base;

    if (open) n -= (size_t)(open + 1 - s), s = open + 1;
    while (n && (*s == ' ' || *s == '('))
        s++, n--;
    while (n && strchr(" })", s[n - 1]))
        n--;
    if (n == 0 || n >= sizeof text) return 0;
    snprintf(text, sizeof text, "%.*s", (int)n, s);
    for (int i = 0; i < (int)CR_COUNT(words); i++)
        if (strcmp(words[i], text) == 0) return i + 2;
    if (strspn(text, "0123456789") != n || n > 2) return strcmp(text, "sixteen") == 0 ? 16 : 0;
    base = atoi(text);
    return base >= 2 && base <= 36 ? base : 0;
}

static int digit_value(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

/* The number as a sum of parts that fit. */
static cri_math *value_in_base(cri_math_parser *p, const char *digits, int base)
{
    cri_math *m = NULL;
    char text[24];

    while (*digits) {
        int64_t part = 0, size = 1;
        for (; *digits && size < INT64_C(1000000000000000); digits++, size *= base)
            part = part * base + digit_value(*digits);
        snprintf(text, sizeof text, "%lld", (long long)part);
        cri_math *low = cri_leaf(p, CRI_NUM, text, strlen(text));
        if (m) {
            snprintf(text, sizeof text, "%lld", (long long)size);
            m = cri_math_node(p->q, CRI_MUL, 2, m, cri_leaf(p, CRI_NUM, text, strlen(text)));
            m = cri_math_node(p->q, CRI_ADD, 2, m, low);
        } else {
            m = low;
        }
        if (!m) return NULL;
    }
    return m;
}

cri_math *cri_in_base(cri_math_parser *p, const char *digits, const char *base_text,
                      size_t num_base)
{
    const int base = base_of(base_text, num_base);
    bool is_number = base > 0 && *digits;
    char *name;
    cri_math *m;

    for (const char *c = digits; *c && is_number; c++)
        is_number = digit_value(*c) < base;
    if (is_number) return value_in_base(p, digits, base);
    name = cr_asprintf("%s_%.*s", digits, (int)num_base, base_text);
    m = cri_symbol(p, name, strlen(name));
    cr_free(name);
    return m;
}
