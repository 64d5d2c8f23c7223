/* math_find.c -- the answer in free text: formulas, numbers, tuples (see math_impl.h).
 *
 * A candidate is a formula in dollars or brackets, a bare fraction, a number, a calculation or a
 * tuple of numbers. Those after "final answer is" and "answer" come first, then the last one.
 */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    LONGEST_RUN = 500,       /* of a calculation in free text */
    LONGEST_FORMULA = 20000, /* in free text */
    MAX_CANDIDATES = 1000,
    MAX_JOINED = 100 /* formulas or numbers of one answer */
};

typedef struct candidate {
    size_t start, end; /* of the whole match, marks included */
    size_t from, to;   /* of its content */
    size_t tail;       /* where the content of the last one joined ends */
    bool is_latex;
    int num_joined;
    char *joined; /* what is read in its place, owned: contents of formulas in a row; NULL: none */
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
    f->found = cr_grow(f->found, f->num, &f->capacity, sizeof *f->found);
    f->found[f->num++] = (candidate){start, end, from, to, to, is_latex, 0, NULL};
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

/* The content of b after that of a. */
static void join(finder *f, candidate *a, const candidate *b)
{
    const char *s = f->s;
    size_t n = a->to - a->from, m = b->to - b->from;
    char *first = a->joined;

    if (first) n = strnlen(first, LONGEST_FORMULA);
    if (n && (first ? first[n - 1] : s[a->to - 1]) == ',') n--;
    a->joined = cr_asprintf("%.*s,%.*s", (int)n, first ? first : s + a->from, (int)m, s + b->from);
    cr_free(first);
    a->end = b->end;
    a->tail = b->to;
    a->num_joined++;
}

static bool can_join(const finder *f, const candidate *a, const candidate *b)
{
    size_t gap = b->start - a->end;

    if (b->start < a->end || a->num_joined == MAX_JOINED ||
        a->to - a->from >= LONGEST_FORMULA / 2 || b->to - b->from >= LONGEST_FORMULA / 2)
        return false;
    if (is_joint(f->s + a->end, gap)) return true;
    return gap < 4 && strspn(f->s + a->end, " ") >= gap && f->s[a->tail - 1] == ','; /* $1,$ $2$ */
}

static void join_formulas(finder *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->num; i++) {
        candidate *c = &f->found[i], *last = n ? &f->found[n - 1] : NULL;
        if (last && can_join(f, last, c))
            join(f, last, c);
        else
            f->found[n++] = *c;
    }
    f->num = n;
}

/* A bracket, numbers with commas, and the bracket that closes, at i: bytes; 0: none. */
static size_t tuple_at(const finder *f, size_t i)
{
    const char *s = f->s + i;
    size_t k = 1 + strcspn(s + 1, ")](}[{\n"), commas = 0;

    if (!s[k] || !strchr(*s == '{' ? "}" : ")]", s[k])) return 0;
    for (size_t c = 1; c < k; c++) {
        if (!strchr("0123456789.,;+-*/^ ", s[c])) return 0;
        commas += s[c] == ',' || s[c] == ';';
    }
    if (k > 5 && commas == 1 && strcspn(s + 1, ",") <= 3 && s[k - 4] == ',' &&
        isdigit((unsigned char)s[k - 3]))
        return 0; /* (1,000) */
    return commas ? k + 1 : 0;
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
        else if (s[0] == '[' && i && isspace((unsigned char)s[-1]) && !tuple_at(f, i)) {
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

/* A number, a calculation with numbers or a tuple at i: where it ends; 0: none. */
static size_t number_at(finder *f, size_t start, size_t i)
{
    const char *s = f->s;
    size_t k = i + strspn(s + i, "-("), n, end, op;

    if ((s[i] == '(' || s[i] == '[' || s[i] == '{') && (n = tuple_at(f, i))) {
        add(f, start, i, i + n, i + n, false);
        return i + n;
    }
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
    for (n = 0; s[k] != '0' && end - k <= 3 + 4 * n && (s[end] == ',' || s[end] == ' ') &&
                (n == 0 || s[end] == s[end - 4]) && strspn(s + end + 1, "0123456789") == 3;
         n++)
        end += 4; /* 1,000 and 1 000 */
    op = end;
    if ((s[end] == '.' || (s[end] == ',' && n == 0)) && isdigit((unsigned char)s[end + 1]))
        end += 1 + strspn(s + end + 1, "0123456789");
    if (s[op] == ',' && s[end] == ',' && isdigit((unsigned char)s[end + 1])) end = op; /* 1,2,3 */
    add(f, start, i, end, end, false);
    if (s[op] == ',' && end > op) { /* a decimal comma */
        char *text = cr_strndup(s + i, end - i);
        text[op - i] = '.';
        f->found[f->num - 1].joined = text;
    }
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
    if (m && c->joined)
        cr_explain_text(q->explain, "found", part, strlen(part));
    else if (m)
        cr_explain_found(q->explain, s, s + c->from, c->to - c->from);
    cr_free(part);
    cr_free(clean);
    return m;
}

/* Between "the largest $n$" and 34: the text after it is its value. */
static bool is_verb(const char *s, size_t n)
{
    static const char *const verbs[] = {"is", "are", "equals", "is equal to", "="};

    while (n && isspace((unsigned char)*s))
        s++, n--;
    while (n && isspace((unsigned char)s[n - 1]))
        n--;
    for (size_t i = 0; i < CR_COUNT(verbs); i++)
        if (strlen(verbs[i]) == n && memcmp(verbs[i], s, n) == 0) return true;
    return false;
}

/* The candidate that begins first from start on and before end; a formula before a number. */
static candidate *first_from(finder *f, size_t start, size_t end)
{
    candidate *best = NULL;

    for (size_t k = 0; k < f->num; k++) {
        candidate *c = &f->found[k];
        if (c->start < start || c->start >= end) continue;
        if (!best || c->start < best->start || (c->start == best->start && c->is_latex)) best = c;
    }
    return best;
}

/* 1, 2 and 3 in plain text: one answer, if the last is joined by a word. */
static void join_numbers(finder *f, candidate *c)
{
    candidate all = *c, *next;
    const char *end;
    bool has_word = false;

    if (c->joined) return;
    while (!has_word && all.num_joined < MAX_JOINED) {
        next = first_from(f, all.end, all.end + 12);
        if (!next || next->joined || next->is_latex ||
            !is_joint(f->s + all.end, next->start - all.end))
            break;
        has_word = memchr(f->s + all.end, 'a', next->start - all.end) ||
                   memchr(f->s + all.end, 'o', next->start - all.end);
        join(f, &all, next);
    }
    for (end = f->s + all.end; *end == ' ';)
        end++;
    if (has_word && !isalpha((unsigned char)*end) && *end != '=') /* "9, and 5" is not one */
        *c = all;
    else
        cr_free(all.joined);
}

/* The candidates within reach after the word, the last of them first. */
static cri_math *find_behind(cri_question *q, finder *f, const char *word, size_t reach)
{
    size_t n = strlen(word), at = f->n;

    for (size_t i = f->n; i-- > 0 && cri_math_goes_on(q);) {
        candidate *best, *value;
        if ((f->s[i] | 32) != *word || strncasecmp(f->s + i, word, n) != 0) continue;
        best = first_from(f, i + n, i + n + reach + 1 < at ? i + n + reach + 1 : at);
        if (best && best->is_latex && (value = first_from(f, best->end, best->end + 16)) &&
            is_verb(f->s + best->end, value->start - best->end))
            best = value;
        at = i;
        if (best) {
            cri_math *m;
            if (!best->is_latex) join_numbers(f, best);
            m = read_candidate(q, f->s, best);
            if (m) cr_explain_format(q->explain, "by", "what follows \"%s\"", word);
            if (m || q->trouble) return m;
        }
    }
    return NULL;
}

cri_math *cri_math_find(cri_question *q, const char *text, bool formulas_only)
{
    finder f = {.s = text, .n = strlen(text)};
    cri_math *m = NULL;
    size_t num;

    find_latex(&f);
    join_formulas(&f);
    if (!formulas_only) find_numbers(&f);
    if (f.num) qsort(f.found, f.num, sizeof *f.found, by_end);
    num = f.num;
    if (f.num > MAX_CANDIDATES) f.num = MAX_CANDIDATES; /* the last ones */
    if (f.num) m = find_behind(q, &f, "final answer is", 3);
    if (!m && !q->trouble && f.num) m = find_behind(q, &f, "answer", 50);
    for (size_t i = 0;
         i < (formulas_only && f.num ? 1 : f.num) && !m && !q->trouble && cri_math_goes_on(q); i++)
        if ((m = read_candidate(q, text, &f.found[i])))
            cr_explain_format(q->explain, "by", "the last formula or number");
    for (size_t i = 0; i < num; i++)
        cr_free(f.found[i].joined);
    cr_free(f.found);
    return m;
}
