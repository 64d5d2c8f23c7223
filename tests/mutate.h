/* mutate.h -- broken copies of a text or binary file, the same for a seed on every machine: one to four
 * of: bits flipped, a piece cut, the end cut off, bytes put in, a piece repeated, two tokens swapped, a
 * number replaced by an extreme one, a token by one that parsers stumble over, deep nesting.
 */
#ifndef CR_MUTATE_H
#define CR_MUTATE_H

#include "base/base.h"
#include "base/rng.h"

#include <ctype.h>
#include <string.h>

typedef struct mutator {
    uint64_t seed, at;
} mutator;

/* A number in [0, num). */
static inline size_t mutate_draw(mutator *m, size_t num)
{
    uint32_t w[4];

    cr_rng_philox(m->seed, CR_RNG_TEST, 7, m->at++, w);
    return num ? (size_t)((((uint64_t)w[0] << 32) | w[1]) % num) : 0;
}

static inline void mutate_replace(cr_buf *b, size_t at, size_t num_gone, const char *text,
                                  size_t num_new)
{
    cr_buf out = {0};

    cr_buf_add(&out, b->data, at);
    cr_buf_add(&out, text, num_new);
    cr_buf_add(&out, b->data + at + num_gone, b->num_bytes - at - num_gone);
    cr_buf_free(b);
    *b = out;
}

/* The token around a place: a run of letters, digits, '.', '_', '-' and '+', or one other byte. */
static inline void mutate_token(const cr_buf *b, size_t near, size_t *first, size_t *end)
{
#define CR_IS_WORD(c) (isalnum((unsigned char)(c)) || (c) == '.' || (c) == '_' || (c) == '-')
    *first = near;
    *end = near + 1;
    if (!CR_IS_WORD(b->data[near])) return;
    while (*first > 0 && CR_IS_WORD(b->data[*first - 1]))
        (*first)--;
    while (*end < b->num_bytes && CR_IS_WORD(b->data[*end]))
        (*end)++;
#undef CR_IS_WORD
}

/* A digit from a random place on, or any place. */
static inline size_t mutate_find_number(mutator *m, const cr_buf *b)
{
    size_t from = mutate_draw(m, b->num_bytes);

    for (size_t i = 0; i < b->num_bytes; i++) {
        size_t at = (from + i) % b->num_bytes;
        if (isdigit((unsigned char)b->data[at])) return at;
    }
    return from;
}

static inline void mutate_swap(mutator *m, cr_buf *b)
{
    size_t a, a_end, z, z_end;
    cr_buf out = {0};

    mutate_token(b, mutate_draw(m, b->num_bytes), &a, &a_end);
    mutate_token(b, mutate_draw(m, b->num_bytes), &z, &z_end);
    if (z < a) {
        size_t x = a, y = a_end;
        a = z, a_end = z_end, z = x, z_end = y;
    }
    if (z < a_end) return; /* the same one */
    cr_buf_add(&out, b->data, a);
    cr_buf_add(&out, b->data + z, z_end - z);
    cr_buf_add(&out, b->data + a_end, z - a_end);
    cr_buf_add(&out, b->data + a, a_end - a);
    cr_buf_add(&out, b->data + z_end, b->num_bytes - z_end);
    cr_buf_free(b);
    *b = out;
}

static inline void mutate_once(mutator *m, cr_buf *b)
{
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "1e999",
                                          "-1e308",
                                          "1e-320",
                                          "2147483648",
                                          "4294967297",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551616",
                                          "-9223372036854775808",
                                          "0.5",
                                          "NaN",
                                          "Infinity",
                                          "1.0000000000000000000000000000000000000001",
                                          "00",
                                          "0x7fffffff",
                                          "1e18",
                                          "1000000000"};
    static const char *const tokens[] = {
        "null", "true", "{}",     "[]",      "\"\"",  "{",        "}",       "[",       "]",
        ":",    ",",    "\"",     "\\",      "\n",    "\t",       "\\u0000", "\\ud800", "\xff\xfe",
        "&a",   "*a",   "<<: *a", "!!int x", "? ",    "${a.b}",   "${",      "|",       "- ",
        "#",    "'",    "%",      "\r\n",    "---\n", "\\boxed{", "\\frac",  "^{",      "@"};
    size_t n = b->num_bytes, at = mutate_draw(m, n), num, first, end;
    char piece[64];
    const char *text;

    if (n == 0) return;
    switch (mutate_draw(m, 13)) {
    case 0:
        for (num = 1 + mutate_draw(m, 4); num > 0; num--)
            b->data[mutate_draw(m, n)] ^= (char)(1 << mutate_draw(m, 8));
        return;
    case 1: /* mostly short */
        num = mutate_draw(m, mutate_draw(m, 4) ? 20 : n);
        mutate_replace(b, at, num < n - at ? num : n - at, "", 0);
        return;
    case 2:
        mutate_replace(b, at, n - at, "", 0);
        return;
    case 3:
        num = 1 + mutate_draw(m, sizeof piece);
        for (size_t i = 0; i < num; i++)
            piece[i] = (char)mutate_draw(m, 256);
        mutate_replace(b, at, 0, piece, num);
        return;
    case 4: /* a piece again and again: doubled keys, long lists */
        num = mutate_draw(m, n - at < 200 ? n - at : 200);
        for (size_t i = 1 + mutate_draw(m, 40); i > 0 && num > 0; i--) {
            char *copy = cr_strndup(b->data + at, num);
            mutate_replace(b, at, 0, copy, num);
            cr_free(copy);
        }
        return;
    case 5:
        mutate_swap(m, b);
        return;
    case 6:
    case 7:
    case 8:
    case 9:
    case 10:
        text = numbers[mutate_draw(m, CR_COUNT(numbers))];
        mutate_token(b, mutate_find_number(m, b), &first, &end);
        mutate_replace(b, first, end - first, text, strlen(text));
        return;
    case 11:
        text = tokens[mutate_draw(m, CR_COUNT(tokens))];
        mutate_token(b, at, &first, &end);
        mutate_replace(b, first, mutate_draw(m, 2) ? end - first : 0, text, strlen(text));
        return;
    default: /* nesting, seldom deep */
        text = (const char *[]){"[", "{\"a\":", "- ", "{", "("}[mutate_draw(m, 5)];
        for (num = mutate_draw(m, mutate_draw(m, 20) ? 12 : 4000); num > 0; num--)
            mutate_replace(b, at, 0, text, strlen(text));
        return;
    }
}

/* Copy number `number` of a base, broken. out is overwritten. */
static inline void mutate(const void *base, size_t num_bytes, uint64_t number, cr_buf *out)
{
    mutator m = {number, 0};

    cr_buf_clear(out);
    cr_buf_add(out, base, num_bytes);
    for (size_t num = 1 + mutate_draw(&m, 1 + mutate_draw(&m, 4)); num > 0; num--)
        mutate_once(&m, out);
}

#endif
