/* math_text.c -- where the answer stands in a text, and what of it matters (see math_impl.h). */
#include "rl/rules/math_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    LONGEST_RUN = 500,       /* of a calculation in free text */
    LONGEST_FORMULA = 20000, /* in free text */
    FARTHEST_UNIT = 1000,    /* bytes before the end */
    MOST_UNCLOSED = 100
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

char *cri_math_last_box(const char *region)
{
    const char *start = last_of(region, "\\boxed\\{"), *end;

    if (start) {
        start += 8;
    } else {
        start = last_of(region, "\\boxed{");
        if (!start) return NULL;
        start += 7;
    }
    end = closing(start, true);
    return end ? cr_strndup(start, (size_t)(end - start)) : NULL;
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

/* What stands in boxes inside the text, joined by commas. */
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

/* "1 and 2", "x = 1 or x = 2": commas. */
static void separate_words(char **text)
{
    static const char *const words[] = {"and", "or"};
    cr_buf out = {0};
    const char *p = *text;

    while (*p) {
        size_t n = 0;
        if (p == *text || !(isalpha((unsigned char)p[-1]) || p[-1] == '\\'))
            for (size_t i = 0; i < CR_COUNT(words); i++)
                if (strncmp(p, words[i], strlen(words[i])) == 0 &&
                    !isalpha((unsigned char)p[strlen(words[i])]))
                    n = strlen(words[i]);
        if (n) {
            size_t k = out.num_bytes;
            while (k && (isspace((unsigned char)out.data[k - 1])))
                k--;
            if (k && out.data[k - 1] == ',') out.num_bytes = k - 1;
            cr_buf_addc(&out, ',');
            p += n;
        } else {
            cr_buf_addc(&out, *p++);
        }
    }
    cr_buf_adds(&out, "");
    cr_free(*text);
    *text = out.data ? out.data : cr_strdup("");
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
            cr_buf_adds(&out, ",");
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
        if (n && (isspace((unsigned char)text[n - 1]) || text[n - 1] == '.' || text[n - 1] == ',' ||
                  text[n - 1] == ';'))
            n--;
        else if (n > 1 && text[n - 2] == '\\' && strchr(",;: !\\", text[n - 1]))
            n -= 2;
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

/* 5 cm, 3 hours: words of units behind a number. Single letters only if no variable is there. */
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

char *cri_math_clean(const char *raw)
{
    static const char *const gone[] = {"\\$", "$", "\"", "'", "\\displaystyle", "\\,\\!", NULL};
    char *text = cr_strdup(raw);

    unbox(&text);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' ';
    for (int i = 0; i < 3; i++)
        replace_all(&text, "\\! ", "\\!"); /* it takes back the spaces behind it */
    for (size_t i = 0; gone[i]; i++)
        replace_all(&text, gone[i], "");
    replace_all(&text, "\\!", "");
    replace_all(&text, "{,}", ",");
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

/* ---- free text ---- */

typedef struct candidate {
    size_t start, end; /* of the whole match, marks included */
    size_t from, to;   /* of its content */
    bool is_latex;
    char *joined; /* contents of formulas in a row, owned; NULL: one formula */
} candidate;

typedef struct finder {
    const char *s;
    size_t n;
    candidate *found;
    size_t num, capacity;
    bool has_no_dollars, has_no_bracket, has_no_paren; /* no closing mark from here on */
} finder;

static void add(finder *f, size_t start, size_t from, size_t to, size_t end, bool is_latex)
{
    if (to <= from) return;
    if (f->num == f->capacity) {
        size_t wider = f->capacity ? 2 * f->capacity : 64;
        f->found = cr_realloc(f->found, f->capacity * sizeof *f->found, wider * sizeof *f->found);
        f->capacity = wider;
    }
    f->found[f->num++] = (candidate){start, end, from, to, is_latex, NULL};
}

/* open .. close from i on; *none remembers that no close is left. */
static size_t enclosed(finder *f, size_t i, size_t open, const char *close, bool *none)
{
    const char *end = *none ? NULL : strstr(f->s + i + open, close);

    if (!end) {
        *none = true;
        return 0;
    }
    add(f, i, i + open, (size_t)(end - f->s), (size_t)(end - f->s) + strlen(close), true);
    return (size_t)(end - f->s) + strlen(close);
}

static size_t inline_dollars(finder *f, size_t i)
{
    for (size_t k = i + 1; k < f->n && f->s[k] != '\n'; k++) {
        if (f->s[k] == '\\' && k + 1 < f->n) {
            k++;
        } else if (f->s[k] == '$') {
            add(f, i, i + 1, k, k + 1, true);
            return k + 1;
        }
    }
    return 0;
}

/* \frac{3}{4} without dollars. */
static size_t bare_fraction(finder *f, size_t i)
{
    size_t k = i + 5, start = i && f->s[i - 1] == '-' ? i - 1 : i;

    for (int part = 0; part < 2; part++) {
        if (f->s[k] != '{') return 0;
        k++;
        k += f->s[k] == '-';
        if (!isdigit((unsigned char)f->s[k])) return 0;
        k += strspn(f->s + k, "0123456789.,");
        if (f->s[k] != '}') return 0;
        k++;
    }
    add(f, start, start, k, k, true);
    return k;
}

/* $1$, $2$ and $3$: one answer, a set. */
static bool is_joint(const char *s, size_t n)
{
    char word[16] = "";
    size_t k = 0;

    if (n > 12) return false;
    for (size_t i = 0; i < n; i++)
        if (!isspace((unsigned char)s[i])) word[k++] = s[i];
    return strcmp(word, ",") == 0 || strcmp(word, "and") == 0 || strcmp(word, "or") == 0 ||
           strcmp(word, ",and") == 0 || strcmp(word, ",or") == 0;
}

static void join_formulas(finder *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->num; i++) {
        candidate *c = &f->found[i], *last = n ? &f->found[n - 1] : NULL;
        if (last && c->start >= last->end && c->to - c->from < LONGEST_FORMULA / 2 &&
            last->to - last->from < LONGEST_FORMULA / 2 &&
            is_joint(f->s + last->end, c->start - last->end)) {
            char *first = last->joined;
            last->joined = cr_asprintf(
                "%.*s,%.*s", first ? LONGEST_FORMULA : (int)(last->to - last->from),
                first ? first : f->s + last->from, (int)(c->to - c->from), f->s + c->from);
            cr_free(first);
            last->end = c->end;
        } else {
            f->found[n++] = *c;
        }
    }
    f->num = n;
}

static void find_latex(finder *f)
{
    for (size_t i = 0; i < f->n;) {
        const char *s = f->s + i;
        bool is_escaped = i && s[-1] == '\\';
        size_t next = 0;
        if (is_escaped)
            next = 0;
        else if (s[0] == '$' && s[1] == '$')
            next = enclosed(f, i, 2, "$$", &f->has_no_dollars);
        else if (s[0] == '$' && !(i && isdigit((unsigned char)s[-1])))
            next = inline_dollars(f, i);
        else if (s[0] == '\\' && s[1] == '[')
            next = enclosed(f, i, 2, "\\]", &f->has_no_bracket);
        else if (s[0] == '\\' && s[1] == '(')
            next = enclosed(f, i, 2, "\\)", &f->has_no_paren);
        else if (strncmp(s, "\\frac", 5) == 0)
            next = bare_fraction(f, i);
        else if (s[0] == '[' && i && isspace((unsigned char)s[-1])) {
            size_t k = strcspn(s + 1, "\n][");
            if (s[1 + k] == ']' && (s[2 + k] == 0 || isspace((unsigned char)s[2 + k]))) {
                add(f, i, i + 1, i + 1 + k, i + 2 + k, true);
                next = i + 2 + k;
            } else {
                next = i + 1 + k;
            }
        }
        i = next > i ? next : i + 1;
    }
}

/* A number or a calculation with numbers at i; 0: none. */
static size_t number_at(finder *f, size_t start, size_t i)
{
    const char *s = f->s;
    size_t k = i + strspn(s + i, "-("), n, end, op;

    if (!isdigit((unsigned char)s[k]) &&
        !(s[k] == '.' && isdigit((unsigned char)s[k + 1]) && k <= i + 1))
        return 0;
    for (n = 0; n < LONGEST_RUN && s[k + n] && strchr("0123456789. +-*/^()", s[k + n]);)
        n++;
    end = k + n;
    while (end > k && !isdigit((unsigned char)s[end - 1]) && s[end - 1] != ')')
        end--;
    op = k + strcspn(s + k, "+*/^");
    for (size_t c = k + 1; c < end && op >= end; c++)
        if (s[c] == '-') op = c;
    if (op < end) { /* a calculation; its letters or commas would make it a part of something */
        add(f, start, i, end, end, false);
        return end;
    }
    if (s[i] == '(') return 0;
    end = k + strspn(s + k, "0123456789");
    while (s[end] == ',' && isdigit((unsigned char)s[end + 1]) &&
           isdigit((unsigned char)s[end + 2]) && isdigit((unsigned char)s[end + 3]) &&
           !isdigit((unsigned char)s[end + 4]))
        end += 4;
    if (s[end] == '.' && isdigit((unsigned char)s[end + 1]))
        end += 1 + strspn(s + end + 1, "0123456789");
    add(f, start, i, end, end, false);
    return end;
}

static void find_numbers(finder *f)
{
    for (size_t i = 0; i < f->n;) {
        size_t k = i, next;
        uint32_t c;
        bool is_start = i == 0 || f->s[i - 1] == '=' || isspace((unsigned char)f->s[i - 1]);
        if (is_start && strncmp(f->s + k, "**", 2) == 0) k += 2;
        if (is_start && f->s[k] == '$') k++;
        if (is_start && cr_utf8_decode(f->s + k, f->n - k, &c) == 3 && c >= 0x20A0 && c <= 0x20CF)
            k += 3;
        next = is_start ? number_at(f, i, k) : 0;
        i = next > i ? next : i + 1;
    }
}

static int by_end(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->end != y->end) return x->end < y->end ? 1 : -1;
    return x->start > y->start ? 1 : x->start < y->start ? -1 : 0;
}

static cri_math *read_candidate(cri_question *q, const char *s, const candidate *c)
{
    char *part, *clean;
    cri_math *m;

    if (c->to - c->from > LONGEST_FORMULA) return NULL;
    part = c->joined ? cr_strdup(c->joined) : cr_strndup(s + c->from, c->to - c->from);
    clean = cri_math_clean(part);
    m = *clean ? cri_math_parse(q, clean) : NULL;

    cr_free(part);
    cr_free(clean);
    return m;
}

/* The candidates that stand within 50 bytes behind the word, the last of them first. */
static cri_math *find_behind(cri_question *q, finder *f, const char *word, size_t reach)
{
    size_t n = strlen(word), at = f->n;

    for (size_t i = f->n; i-- > 0 && cri_math_goes_on(q);) {
        const candidate *best = NULL;
        if (strncasecmp(f->s + i, word, n) != 0) continue;
        for (size_t k = 0; k < f->num; k++) {
            const candidate *c = &f->found[k];
            if (c->start < i + n || c->start > i + n + reach || c->start >= at) continue;
            if (!best || c->start < best->start || (c->start == best->start && c->is_latex))
                best = c;
        }
        at = i;
        if (best) {
            cri_math *m = read_candidate(q, f->s, best);
            if (m || q->trouble) return m;
        }
    }
    return NULL;
}

cri_math *cri_math_find(cri_question *q, const char *text)
{
    finder f = {.s = text, .n = strlen(text)};
    cri_math *m = NULL;
    size_t num;

    find_latex(&f);
    join_formulas(&f);
    find_numbers(&f);
    if (f.num) qsort(f.found, f.num, sizeof *f.found, by_end);
    num = f.num;
    if (f.num > 1000) f.num = 1000; /* the last ones */
    if (f.num) m = find_behind(q, &f, "final answer is", 3);
    if (!m && !q->trouble && f.num) m = find_behind(q, &f, "answer", 50);
    for (size_t i = 0; i < f.num && !m && !q->trouble && cri_math_goes_on(q); i++)
        m = read_candidate(q, text, &f.found[i]);
    for (size_t i = 0; i < num; i++)
        cr_free(f.found[i].joined);
    cr_free(f.found);
    return m;
}
