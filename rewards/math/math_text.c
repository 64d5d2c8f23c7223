/* math_text.c -- where the answer is in a text, and which part of it matters (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    FARTHEST_UNIT = 1000, /* bytes before the end */
    MAX_UNCLOSED = 100,
    MAX_BOXES = 50 /* of one answer */
};

/* ---- boxes ---- */

/* The } that closes what begins at p; \{ and \} are none, quotes hide braces if asked. NULL: none. */
static const char *closing(const char *p, bool has_quotes)
{
    bool is_quoted = false;

    for (int depth = 1; *p; p++) {
        if (has_quotes && *p == '"') is_quoted = !is_quoted;
        if (is_quoted) continue;
        if (*p == '\\' && p[1] && strchr("{}\\", p[1])) {
            p++;
            continue;
        }
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

/* Words of one formula between two boxes: \\text{ for part (a) and }, or another last word or mark that joins. */
static bool is_text_that_joins(const char *p, const char *end)
{
    const char *last;

    p += strspn(p, " ");
    if (strncmp(p, "\\text{", 6) != 0 || !(last = closing(p + 6, false)) || last >= end)
        return false;
    for (const char *after = last + 1; after < end; after++)
        if (*after != ' ') return false;
    while (last > p + 6 && last[-1] == ' ')
        last--;
    for (const char *word = last - 1; word >= p + 6 && last - word <= 3; word--)
        if (separator(word) == (size_t)(last - word) &&
            !(isalpha((unsigned char)*word) && isalpha((unsigned char)word[-1])))
            return true;
    return false;
}

/* The text between two boxes makes one answer of them: "and" or a comma; after it perhaps
 * "y =", which belongs to the second: name and n. */
static bool is_joint(const char *p, const char *end, const char **name, size_t *n)
{
    bool has_separator = false;
    size_t k;

    *n = 0;
    if (is_text_that_joins(p, end)) return true;
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

    for (int i = 0; i < MAX_BOXES && (box = box_before(region, first)); i++) {
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
        end = strstr(start, "\\}");
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
            if (box && !end && !out.data) end = p + strlen(p); /* to the end of the text */
            if (!end) break;
            if (out.num_bytes == 0)
                cr_buf_add(&out, box + 7, (size_t)(end - box - 7));
            else if (out.num_bytes - last != (size_t)(end - box - 7) ||
                     memcmp(out.data + last, box + 7, out.num_bytes - last) != 0) {
                cr_buf_addc(&out, ',');
                last = out.num_bytes;
                cr_buf_add(&out, box + 7, (size_t)(end - box - 7));
            }
            p = end + (*end != 0);
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

static bool is_word(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* What was written last is a number, or may be one. */
static bool ends_with_number(const cr_buf *out)
{
    size_t n = out->num_bytes;

    while (n && strchr(" ~", out->data[n - 1]))
        n--;
    return n && (isdigit((unsigned char)out->data[n - 1]) || out->data[n - 1] == '}');
}

/* "1 and 2", "x = 1 or x = 2": separators. 2 million: a product. */
static void separate_words(char **text)
{
    cr_buf out = {0};
    const char *p = *text, *latex;

    while (*p) {
        size_t is_command = *p == '\\', n = is_command;
        while (isalpha((unsigned char)p[n]))
            n++;
        if (is_word(p, n, "or") || is_word(p, n, "and"))
            put_separator(&out, n == 2);
        else if (n && !is_command && ends_with_number(&out) && cri_math_size_word(p, &latex))
            cr_buf_adds(&out, latex);
        else
            cr_buf_add(&out, p, n + !n);
        p += n + !n;
    }
    cr_buf_adds(&out, "");
    cr_free(*text);
    *text = out.data;
}

/* The content of a text command: a separator, a word of size, a constant. False: it stays as it is. */
static bool put_word(cr_buf *out, const char *s, size_t n, bool is_roman)
{
    static const char *const separators[] = {"and", "where", "for", "with"};
    const char *latex;
    size_t size;

    for (size_t i = 0; i < CR_COUNT(separators); i++)
        if (is_word(s, n, separators[i])) return put_separator(out, false), true;
    if (is_word(s, n, "or")) return put_separator(out, true), true;
    if (n == 0) return cr_buf_addc(out, ' '), true;
    if (n == 1 && is_roman && strchr("edi", *s)) return cr_buf_addc(out, *s), true;
    size = ends_with_number(out) ? cri_math_size_word(s, &latex) : 0;
    if (size) cr_buf_adds(out, latex);
    if (size && size < n) cr_buf_addf(out, "\\text{%.*s}", (int)(n - size), s + size);
    return size;
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
             *p == '\\' && num_unclosed < MAX_UNCLOSED && i < CR_COUNT(commands) && !n; i++)
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
        if (!put_word(&out, s, k, strncmp(p, "\\mathrm", 7) == 0))
            cr_buf_add(&out, p, (size_t)(end + 1 - p));
        p = end + 1;
    }
    cr_buf_adds(&out, "");
    cr_free(*text);
    *text = out.data;
}

/* ---- marks that say nothing of the value ---- */

/* \\color{red}, \\textcolor{red}: goes, what is coloured stays. */
static void drop_colors(char *text)
{
    static const char *const commands[] = {"\\color{", "\\textcolor{", "\\colorbox{"};

    for (size_t i = 0; i < CR_COUNT(commands); i++)
        for (char *p = text; (p = strstr(p, commands[i]));) {
            const char *end = closing(p + strlen(commands[i]), false);
            if (!end) break;
            memmove(p, end + 1, strlen(end + 1) + 1);
        }
}

/* Signs of currencies go, and quotes; what follows a name or a bracket is a prime and stays. */
static void drop_signs(char *text)
{
    const char *from = text, *end = text + strlen(text);
    char *to = text;
    bool is_quoted = false;

    while (from < end) {
        uint32_t c = 0;
        int n = (unsigned char)*from < 0x80 ? 1 : cr_utf8_decode(from, (size_t)(end - from), &c);
        const char before = to > text ? to[-1] : ' ';
        bool is_prime = !is_quoted && (isalpha((unsigned char)before) || strchr(")}'", before));
        bool is_gone =
            cri_math_is_currency(c) || *from == '"' || *from == '$' || (*from == '\'' && !is_prime);
        if (*from == '\'' && !is_prime) is_quoted = !is_quoted;
        n += !n;
        for (int i = 0; i < n && !is_gone; i++)
            *to++ = from[i];
        from += n;
    }
    *to = 0;
}

/* \\text{red, blue}, \\text{3:30}: a list of words, and what has digits, is read as if it were not in a command. */
static void open_whole_text(char **text)
{
    static const char *const commands[] = {"\\text{", "\\mbox{", "\\textbf{", "\\mathrm{",
                                           "\\textit{"};
    const char *s = *text + strspn(*text, " "), *end = NULL, *next;
    cr_buf out = {0};

    for (size_t i = 0; i < CR_COUNT(commands) && !end; i++)
        if (strncmp(s, commands[i], strlen(commands[i])) == 0) {
            s += strlen(commands[i]);
            end = closing(s, false);
            if (!end || end[1 + strspn(end + 1, " .")] || !strpbrk(s, ",;0123456789")) return;
        }
    for (; end && s <= end; s = next + 1) {
        bool has_digits;
        next = s + strcspn(s, ",;");
        if (next > end) next = end;
        has_digits = strcspn(s, "0123456789\\") < (size_t)(next - s);
        if (out.data) cr_buf_addc(&out, ',');
        cr_buf_addf(&out, has_digits ? "%.*s" : "\\text{%.*s}", (int)(next - s), s);
    }
    if (!out.data) return;
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
    size_t n = trim_end(text), k, end;
    bool is_raised = false;

    if (n > 3 &&
        (memcmp(text + n - 2, "\xC2\xB2", 2) == 0 || memcmp(text + n - 2, "\xC2\xB3", 2) == 0))
        is_raised = true, n -= 2; /* m² */
    else if (n > 3 && text[n - 2] == '^' && strchr("23", text[n - 1]) &&
             isalpha((unsigned char)text[n - 4]))
        is_raised = true, n -= 2; /* cm^2; m^2 is a power of m */
    k = n;
    while (k && isalpha((unsigned char)text[k - 1]))
        k--;
    end = k;
    while (end && (isspace((unsigned char)text[end - 1]) || text[end - 1] == '~'))
        end--;
    if (k == n || end == 0 || text[k - 1] == '\\') return;
    if (!isdigit((unsigned char)text[end - 1]) && text[end - 1] != '}') return;
    for (size_t i = 0; i < CR_COUNT(units); i++) {
        size_t m = strlen(units[i]), word = n - k;
        bool is_same = strncasecmp(text + k, units[i], m) == 0 && (m < 4 || !is_raised) &&
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

static void cut_units(char *text)
{
    for (int i = 0; i < 2; i++) {
        cut_unit_text(text);
        cut_unit_word(text);
    }
    trim_end(text);
}

char *cri_math_clean(const char *raw)
{
    static const char *const gone[] = {"\\$", "\\pounds", "\\displaystyle", "\\,\\!"};
    static const char *const primes[] = {"^{\\prime\\prime}", "^{\\prime}", "^\\prime", "\\prime"};
    char *text = cr_strdup(raw), *signs;

    halve_backslashes(text);
    unbox(&text);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' ';
    for (int i = 0; i < 3; i++)
        replace_all(&text, "\\! ", "\\!"); /* it takes back the spaces after it */
    for (size_t i = 0; i < CR_COUNT(gone); i++)
        replace_all(&text, gone[i], "");
    for (size_t i = 0; i < CR_COUNT(primes); i++)
        replace_all(&text, primes[i], i ? "'" : "''");
    drop_colors(text);
    drop_signs(text);
    replace_all(&text, "\\!", "");
    replace_all(&text, "...", "\\ldots ");
    replace_all(&text, "{,}", ",");
    replace_all(&text, " {, }", ",");
    replace_all(&text, "{, }", ",");
    replace_all(&text, "infinity", "\\infty ");
    open_texts(&text);
    separate_words(&text);
    open_whole_text(&text);
    cut_units(text);
    signs = cri_math_signs(text);
    cut_units(signs); /* of a number that ended with a sign */
    cr_free(text);
    return signs;
}
