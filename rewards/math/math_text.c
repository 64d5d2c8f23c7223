/* math_text.c -- where the answer is in a text, and which part of it matters (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    FARTHEST_UNIT = 1000, /* bytes before the end */
    MOST_UNCLOSED = 100,
    MOST_BOXES = 50 /* of one answer */
};

/* ---- boxes ---- */

/* The } that closes what begins at p; quotes hide braces if asked. NULL: none. */
static const char *closing(const char *p, bool has_quotes)
{
    bool is_quoted = false;

    for (int depth = 1; *p; p++) {
        if (has_quotes && *p == '"') is_quoted = !is_quoted;
        if (is_quoted) continue;
        depth += (*p == '{') - (*p == '}');
        if (depth == 0) return p;
    }
    return NULL;
}

static const char *last_of(const char *text, const char *part)
{
    const char *best = NULL;

    for (const char *p = text; (p = strstr(p, part)); p++)
        best = p;
    return best;
}

/* The \\boxed{ that begins last before end; NULL: none. */
static const char *box_before(const char *text, const char *end)
{
    for (const char *p = end; p > text; p--)
        if (p[-1] == '\\' && strncmp(p, "boxed{", 6) == 0) return p - 1;
    return NULL;
}

/* Bytes at the start that mean nothing between two boxes; 0: none. */
static size_t filler(const char *p)
{
    static const char *const marks[] = {"\\text{", "\\mathrm{", "\\textbf{",
                                        "\\mbox{", "\\quad",    "\\qquad"};

    if (strchr(" \t$}*~&\n", *p)) return 1;
    for (size_t i = 0; i < CR_COUNT(marks); i++)
        if (strncmp(p, marks[i], strlen(marks[i])) == 0) return strlen(marks[i]);
    return *p == '\\' && p[1] && strchr("()[],;:! \\", p[1]) ? 2 : 0;
}

/* Bytes of a mark or word that joins two boxes; 0: none here. */
static size_t separator(const char *p)
{
    static const char *const marks[] = {",", ";", "and", "or"};

    for (size_t i = 0; i < CR_COUNT(marks); i++) {
        size_t n = strlen(marks[i]);
        if (strncmp(p, marks[i], n) == 0 && (n == 1 || !isalpha((unsigned char)p[n]))) return n;
    }
    return 0;
}

/* The text between two boxes makes one answer of them: "and" or a comma; after it perhaps
 * "y =", which belongs to the second: name and n. */
static bool is_joint(const char *p, const char *end, const char **name, size_t *n)
{
    bool has_separator = false;
    size_t k;

    *n = 0;
    while (p < end) {
        if ((k = separator(p))) {
            has_separator = true;
        } else if (!(k = filler(p))) {
            k = strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_{}()'\\");
            *name = p;
            *n = k;
            k += strspn(p + k, " ");
            if (*n == 0 || *n > 16 || !has_separator || p[k] != '=') return false;
            k++;
            for (p += k; p < end; p++)
                if (!strchr(" $", *p)) return false;
            return true;
        }
        p += k;
    }
    return p == end && has_separator;
}

/* The boxes before the one at first that are one answer with it, in front of its content. */
static char *with_joined(const char *region, const char *first, char *content)
{
    const char *box, *end, *name;
    size_t n;

    for (int i = 0; i < MOST_BOXES && (box = box_before(region, first)); i++) {
        char *all;
        end = closing(box + 7, true);
        if (!end || end >= first || !is_joint(end + 1, first, &name, &n)) break;
        all = cr_asprintf("%.*s,%.*s%s%s", (int)(end - box - 7), box + 7, (int)n, n ? name : "",
                          n ? "=" : "", content);
        cr_free(content);
        content = all;
        first = box;
    }
    return content;
}

char *cri_math_last_box(const char *region)
{
    const char *start = last_of(region, "\\boxed\\{"), *end;

    if (start) {
        start += 8;
        end = closing(start, true);
        return end ? cr_strndup(start, (size_t)(end - start)) : NULL;
    }
    start = last_of(region, "\\boxed{");
    end = start ? closing(start + 7, true) : NULL;
    if (!end) return NULL;
    return with_joined(region, start, cr_strndup(start + 7, (size_t)(end - start - 7)));
}

/* ---- cleaning ---- */

static void replace_all(char **text, const char *from, const char *to)
{
    cr_buf out = {0};
    const char *p = *text, *next = strstr(p, from);

    if (!next) return;
    for (; next; next = strstr(p, from)) {
        cr_buf_add(&out, p, (size_t)(next - p));
        cr_buf_adds(&out, to);
        p = next + strlen(from);
    }
    cr_buf_adds(&out, p);
    cr_free(*text);
    *text = out.data;
}

/* The contents of boxes inside the text, joined by commas. */
static void unbox(char **text)
{
    for (int level = 0; level < 4; level++) {
        cr_buf out = {0};
        const char *p = *text;
        size_t last = 0;
        for (;;) {
            const char *box = strstr(p, "\\boxed{"), *end = NULL;
            if (box) end = closing(box + 7, false);
            if (!end) break;
            if (out.num_bytes == 0)
                cr_buf_add(&out, box + 7, (size_t)(end - box - 7));
            else if (out.num_bytes - last != (size_t)(end - box - 7) ||
                     memcmp(out.data + last, box + 7, out.num_bytes - last) != 0) {
                cr_buf_addc(&out, ',');
                last = out.num_bytes;
                cr_buf_add(&out, box + 7, (size_t)(end - box - 7));
            }
            p = end + 1;
        }
        if (!out.data) return;
        cr_free(*text);
        *text = out.data;
    }
}

/* A comma or \lor in place of a word; a comma before the word goes. */
static void put_separator(cr_buf *out, bool is_or)
{
    while (out->num_bytes && isspace((unsigned char)out->data[out->num_bytes - 1]))
        out->num_bytes--;
    if (out->num_bytes && out->data[out->num_bytes - 1] == ',') out->num_bytes--;
    cr_buf_adds(out, is_or ? "\\lor " : ",");
}

/* "1 and 2", "x = 1 or x = 2": separators. */
static void separate_words(char **text)
{
    static const char *const words[] = {"or", "and"};
    cr_buf out = {0};
    const char *p = *text;

    if (!strstr(p, "and") && !strstr(p, "or")) return;
    while (*p) {
        size_t i = CR_COUNT(words);
        if ((*p == 'a' || *p == 'o') &&
            (p == *text || !(isalpha((unsigned char)p[-1]) || p[-1] == '\\')))
            for (i = 0; i < CR_COUNT(words); i++)
                if (strncmp(p, words[i], strlen(words[i])) == 0 &&
                    !isalpha((unsigned char)p[strlen(words[i])]))
                    break;
        if (i < CR_COUNT(words)) {
            put_separator(&out, i == 0);
            p += strlen(words[i]);
        } else {
            cr_buf_addc(&out, *p++);
        }
    }
    cr_buf_adds(&out, "");
    cr_free(*text);
    *text = out.data;
}

/* \text{ and } -> , and \mathrm{e} -> e. */
static void open_texts(char **text)
{
    static const char *const commands[] = {"\\text{", "\\mathrm{", "\\textbf{", "\\mathbf{",
                                           "\\mbox{", "\\rm{",     "\\text {",  "\\textrm{"};
    cr_buf out = {0};
    const char *p = *text;
    int num_unclosed = 0;

    while (*p) {
        size_t n = 0, k;
        const char *s, *end = NULL;
        for (size_t i = 0;
             *p == '\\' && num_unclosed < MOST_UNCLOSED && i < CR_COUNT(commands) && !n; i++)
            if (strncmp(p, commands[i], strlen(commands[i])) == 0) n = strlen(commands[i]);
        if (n && !(end = closing(p + n, false))) num_unclosed++;
        if (!end) {
            cr_buf_addc(&out, *p++);
            continue;
        }
        s = p + n;
        k = (size_t)(end - s);
        while (k && (isspace((unsigned char)*s) || *s == ','))
            s++, k--;
        while (k && (isspace((unsigned char)s[k - 1]) || s[k - 1] == ','))
            k--;
        if ((k == 3 && memcmp(s, "and", 3) == 0) || (k == 2 && memcmp(s, "or", 2) == 0))
            put_separator(&out, k == 2);
        else if (k == 0)
            cr_buf_addc(&out, ' ');
        else if (k == 1 && strncmp(p, "\\mathrm", 7) == 0 && strchr("edi", *s))
            cr_buf_addc(&out, *s);
        else
            cr_buf_add(&out, p, (size_t)(end + 1 - p));
        p = end + 1;
    }
    cr_buf_adds(&out, "");
    cr_free(*text);
    *text = out.data;
}

static size_t trim_end(char *text)
{
    size_t n = strlen(text);

    for (;;) {
        if (n > 1 && text[n - 2] == '\\' && strchr(",;: !\\", text[n - 1]))
            n -= 2;
        else if (n && (isspace((unsigned char)text[n - 1]) || strchr(".,;", text[n - 1])))
            n--;
        else
            break;
    }
    text[n] = 0;
    return n;
}

/* A \text{..} at the end, with its power, is a unit if a value stands before it. */
static void cut_unit_text(char *text)
{
    size_t n = trim_end(text);
    const char *start = NULL;

    if (n > 3 && text[n - 1] == '}' && isdigit((unsigned char)text[n - 2]) &&
        memcmp(text + n - 4, "^{", 2) == 0)
        n -= 4;
    else if (n > 2 && isdigit((unsigned char)text[n - 1]) && text[n - 2] == '^')
        n -= 2;
    if (n == 0 || text[n - 1] != '}') return;
    for (char *p = n > FARTHEST_UNIT ? text + n - FARTHEST_UNIT : text; p < text + n; p++)
        if (*p == '\\' && (strncmp(p, "\\text", 5) == 0 || strncmp(p, "\\mathrm", 7) == 0 ||
                           strncmp(p, "\\mbox", 5) == 0 || strncmp(p, "\\mathit", 7) == 0 ||
                           strncmp(p, "\\mathbf", 7) == 0 || strncmp(p, "\\rm", 3) == 0)) {
            const char *open = strchr(p, '{');
            if (open && closing(open + 1, false) == text + n - 1) start = p;
        }
    if (start) {
        size_t k = (size_t)(start - text);
        for (;;) {
            if (k && (isspace((unsigned char)text[k - 1]) || text[k - 1] == '~'))
                k--;
            else if (k > 1 && text[k - 2] == '\\' && strchr(",;:! ", text[k - 1]))
                k -= 2;
            else
                break;
        }
        if (k && !strchr("=+-*/^_(,{[<>", text[k - 1])) text[start - text] = 0;
    }
}

/* 5 cm, 3 hours: words of units after a number. Single letters only if no variable is there. */
static void cut_unit_word(char *text)
{
    static const char *const units[] = {
        "degree", "deg",     "point",      "feet",   "foot",    "ft",       "inch",     "inches",
        "in",     "pound",   "lb",         "mile",   "mph",     "kmph",     "km",       "cm",
        "mm",     "dm",      "kg",         "gm",     "hr",      "hour",     "min",      "minute",
        "sec",    "second",  "day",        "week",   "month",   "year",     "yr",       "cent",
        "dollar", "rupee",   "rs",         "unit",   "meter",   "metre",    "liter",    "litre",
        "gallon", "gal",     "yard",       "acre",   "hectare", "student",  "men",      "man",
        "women",  "woman",   "people",     "person", "child",   "children", "apple",    "coin",
        "tile",   "edge",    "digit",      "way",    "time",    "sq",       "square",   "cubic",
        "number", "percent", "percentage", "pct",    "ohm",     "gram",     "kilogram", "pm",
        "am",     "th",      "st",         "m",      "g",       "s",        "h",        "L",
        "l"};
    size_t n = trim_end(text), k = n, end;

    while (k && isalpha((unsigned char)text[k - 1]))
        k--;
    end = k;
    while (end && (isspace((unsigned char)text[end - 1]) || text[end - 1] == '~'))
        end--;
    if (k == n || end == 0 || text[k - 1] == '\\') return;
    if (!isdigit((unsigned char)text[end - 1]) && text[end - 1] != '}') return;
    for (size_t i = 0; i < CR_COUNT(units); i++) {
        size_t m = strlen(units[i]), word = n - k;
        bool is_same = strncasecmp(text + k, units[i], m) == 0 &&
                       (word == m || (m > 1 && word == m + 1 && text[n - 1] == 's') ||
                        (m > 2 && word == m + 2 && memcmp(text + n - 2, "es", 2) == 0));
        bool is_plain = true;
        for (size_t c = 0; m < 3 && c < end; c++) {
            if (text[c] == '\\') {
                c++;
                while (isalpha((unsigned char)text[c + 1]))
                    c++;
            } else if (isalpha((unsigned char)text[c])) {
                is_plain = false;
            }
        }
        if (is_same && is_plain) {
            text[end] = 0;
            return;
        }
    }
}

/* \\frac, \\left( of a text that was escaped twice: one backslash for two, if all come in pairs and
 * one pair stands before a word. */
static void halve_backslashes(char *text)
{
    bool is_double = false;
    char *to;

    for (const char *p = text; (p = strchr(p, '\\'));) {
        size_t n = strspn(p, "\\");
        if (n % 2) return;
        p += n;
        is_double = is_double || (isalpha((unsigned char)*p) && isalpha((unsigned char)p[1]));
    }
    if (!is_double) return;
    to = text;
    for (const char *p = text; *p; p++) {
        *to++ = *p;
        if (*p == '\\') p++;
    }
    *to = 0;
}

char *cri_math_clean(const char *raw)
{
    static const char *const gone[] = {"\\$", "$", "\"", "'", "\\displaystyle", "\\,\\!", NULL};
    char *text = cr_strdup(raw);

    halve_backslashes(text);
    unbox(&text);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' ';
    for (int i = 0; i < 3; i++)
        replace_all(&text, "\\! ", "\\!"); /* it takes back the spaces after it */
    for (size_t i = 0; gone[i]; i++)
        replace_all(&text, gone[i], "");
    replace_all(&text, "\\!", "");
    replace_all(&text, "{,}", ",");
    replace_all(&text, " {, }", ",");
    replace_all(&text, "{, }", ",");
    replace_all(&text, "infinity", "\\infty ");
    open_texts(&text);
    separate_words(&text);
    for (int i = 0; i < 2; i++) {
        cut_unit_text(text);
        cut_unit_word(text);
    }
    trim_end(text);
    return text;
}
