/* devices.c -- ROLL's device_mapping: a Python expression of integers, lists, range(), list() and +.
 *
 *     sum  = term ('+' term)*          term = '[' [item (',' item)*] ']' | 'list' '(' sum ')'
 *     item = integer                          | 'range' '(' integer [',' integer [',' integer]] ')' | '(' sum ')'
 */
#include "configs/configs.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 65536, MAX_DEPTH = 50 };

typedef struct scan {
    const char *p;
    int *items, num, depth;
    bool is_bad;
} scan;

static void skip(scan *s)
{
    while (isspace((unsigned char)*s->p))
        s->p++;
}

static bool take(scan *s, const char *word)
{
    size_t n = strlen(word);

    skip(s);
    if (strncmp(s->p, word, n) != 0) return false;
    s->p += n;
    return true;
}

static long integer(scan *s)
{
    char *end;
    long x;

    skip(s);
    x = strtol(s->p, &end, 10);
    if (end == s->p || x < -1000000 || x > 1000000) s->is_bad = true;
    s->p = end;
    return x;
}

static void add(scan *s, long x)
{
    if (s->num >= MAX_DEVICES || x < 0) {
        s->is_bad = true;
        return;
    }
    s->items[s->num++] = (int)x;
}

static void sum(scan *s);

static void term(scan *s)
{
    if (++s->depth > MAX_DEPTH) s->is_bad = true;
    if (s->is_bad) return;
    if (take(s, "list")) {
        if (!take(s, "(")) s->is_bad = true;
        sum(s);
        if (!take(s, ")")) s->is_bad = true;
    } else if (take(s, "range")) {
        long a[3] = {0, 0, 1};
        int n = 0;
        if (!take(s, "(")) s->is_bad = true;
        do
            a[n++] = integer(s);
        while (n < 3 && take(s, ","));
        if (!take(s, ")") || (n == 3 && a[2] == 0)) s->is_bad = true;
        if (n == 1) a[1] = a[0], a[0] = 0;
        if (n < 3) a[2] = 1;
        for (long x = a[0]; !s->is_bad && (a[2] > 0 ? x < a[1] : x > a[1]); x += a[2])
            add(s, x);
    } else if (take(s, "[")) {
        while (!s->is_bad && !take(s, "]")) {
            add(s, integer(s));
            skip(s);
            if (*s->p != ']' && !take(s, ",")) s->is_bad = true;
        }
    } else if (take(s, "(")) {
        sum(s);
        if (!take(s, ")")) s->is_bad = true;
    } else {
        s->is_bad = true;
    }
    s->depth--;
}

static void sum(scan *s)
{
    do
        term(s);
    while (!s->is_bad && take(s, "+"));
}

cr_status cr_device_mapping(const char *text, int **out, int *num, cr_err *err)
{
    scan s = {.p = text, .items = CR_NEW_ARRAY(int, MAX_DEVICES)};

    *out = NULL;
    *num = 0;
    sum(&s);
    skip(&s);
    if (s.is_bad || *s.p)
        cr_fail(err, CR_ECONFIG, "'%.60s' is not a list of devices (as list(range(0,8)) + [9])",
                text);
    else if (s.num == 0)
        cr_fail(err, CR_ECONFIG, "'%.60s' lists no device", text);
    else {
        *num = s.num;
        *out = CR_NEW_ARRAY(int, s.num);
        memcpy(*out, s.items, (size_t)s.num * sizeof(int));
    }
    cr_free(s.items);
    return err->status;
}
