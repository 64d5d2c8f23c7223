/* compare.c -- is what a program gave what it should have given? (cases.h) */
#include "rewards/code/cases.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_near(double a, double b, double tolerance, double min)
{
    double max = fabs(a) > fabs(b) ? fabs(a) : fabs(b);

    return a == b || (isfinite(a) && isfinite(b) && fabs(a - b) <= fmax(tolerance * max, min)) ||
           (isnan(a) && isnan(b));
}

enum { WORD_BYTES = 64 };

/* A number in decimal, as text[WORD_BYTES], not only of digits; false: another word. */
static bool is_number(const char *word, size_t n, char *text, double *x, bool *is_integer)
{
    char *end;

    if (n == 0 || n >= WORD_BYTES) return false;
    memcpy(text, word, n);
    text[n] = '\0';
    if (strpbrk(text, "xXpP(")) return false; /* of C alone */
    *is_integer = text[strspn(text, "+-0123456789")] == '\0';
    *x = strtod(text, &end);
    return end != text && *end == '\0';
}

/* Is x the integer, without rounding? As == of Python compares a float with an int. */
static bool is_integer_of(double x, const char *integer)
{
    char digits[400];
    bool is_negative = *integer == '-';

    if (!isfinite(x) || x != trunc(x) || (x != 0 && (x < 0) != is_negative)) return false;
    integer += is_negative || *integer == '+';
    integer += strspn(integer, "0");
    snprintf(digits, sizeof digits, "%.0f", fabs(x));
    return strcmp(integer, x == 0 ? "" : digits) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

static bool same_word(const char *a, size_t num_a, const char *b, size_t num_b)
{
    char text_a[WORD_BYTES], text_b[WORD_BYTES];
    bool is_integer_a, is_integer_b;
    double x, y;

    if (num_a == num_b && memcmp(a, b, num_a) == 0) return true;
    if (!is_number(a, num_a, text_a, &x, &is_integer_a) ||
        !is_number(b, num_b, text_b, &y, &is_integer_b) || (is_integer_a && is_integer_b))
        return false;
    if (is_integer_a) return is_integer_of(y, text_a);
    return is_integer_b ? is_integer_of(x, text_b) : is_near(x, y, 1e-6, 1e-6);
}

static size_t word_at(const char *line, size_t num)
{
    size_t n = 0;

    while (n < num && !is_blank(line[n]))
        n++;
    return n;
}

static bool same_line(const char *a, size_t num_a, const char *b, size_t num_b)
{
    while (num_a && is_blank(a[num_a - 1]))
        num_a--;
    while (num_b && is_blank(b[num_b - 1]))
        num_b--;
    if (num_a == num_b && memcmp(a, b, num_a) == 0) return true;
    for (;;) {
        size_t n, m;
        while (num_a && is_blank(*a))
            a++, num_a--;
        while (num_b && is_blank(*b))
            b++, num_b--;
        if (!num_a || !num_b) return num_a == num_b;
        n = word_at(a, num_a);
        m = word_at(b, num_b);
        if (!same_word(a, n, b, m)) return false;
        a += n, num_a -= n;
        b += m, num_b -= m;
    }
}

/* Without blank lines at its ends. */
static size_t trim(const char **text)
{
    const char *line = *text;
    size_t n;

    for (const char *p = line; isspace((unsigned char)*p); p++)
        if (*p == '\n') *text = p + 1;
    n = strlen(*text);
    while (n && isspace((unsigned char)(*text)[n - 1]))
        n--;
    return n;
}

bool cr_code_same_output(const char *a, const char *b)
{
    size_t num_a = trim(&a), num_b = trim(&b);

    for (;;) {
        const char *end_a = memchr(a, '\n', num_a), *end_b = memchr(b, '\n', num_b);
        size_t n = end_a ? (size_t)(end_a - a) : num_a, m = end_b ? (size_t)(end_b - b) : num_b;
        if (!same_line(a, n, b, m)) return false;
        if (!end_a || !end_b) return !end_a && !end_b;
        a += n + 1, num_a -= n + 1;
        b += m + 1, num_b -= m + 1;
    }
}

static bool same_number(const json_t *a, const json_t *b)
{
    char integer[32];

    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_real(a) && json_is_real(b))
        return is_near(json_real_value(a), json_real_value(b), 1e-9, 1e-12);
    snprintf(integer, sizeof integer, "%lld",
             (long long)json_integer_value(json_is_integer(a) ? a : b));
    return is_integer_of(json_real_value(json_is_integer(a) ? b : a), integer);
}

static bool same_json(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;

    if (json_is_number(a) && json_is_number(b)) return same_number(a, b);
    if (json_is_array(a) && json_is_array(b)) {
        for (size_t i = 0; i < json_array_size(a) && json_array_size(a) == json_array_size(b); i++)
            if (!same_json(json_array_get(a, i), json_array_get(b, i))) return false;
        return json_array_size(a) == json_array_size(b);
    }
    if (!json_is_object(a) || !json_is_object(b)) return json_equal(a, b) == 1;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)(uintptr_t)a, key, v)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !same_json(v, other)) return false;
    }
    return true;
}

bool cr_code_same_value(const char *got, const char *want)
{
    json_t *a = NULL, *b = NULL;
    cr_err bad_a = {0}, bad_b = {0};
    bool is_same;

    cr_note(cr_json_parse_integers(got, strlen(got), NULL, CR_JSON_OF_64_BITS, &a, &bad_a));
    cr_note(cr_json_parse_integers(want, strlen(want), NULL, CR_JSON_OF_64_BITS, &b, &bad_b));
    if (a && b)
        is_same = same_json(a, b);
    else if (!b && json_is_string(a)) /* a text that is written without its quotes */
        is_same = strcmp(json_string_value(a), want) == 0;
    else
        is_same = cr_code_same_output(got, want); /* as integers of any size */
    json_decref(a);
    json_decref(b);
    return is_same;
}
