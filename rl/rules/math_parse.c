/* math_parse.c -- LaTeX and plain text to trees, by recursive descent (see math_impl.h).
 *
 *     list     element (, or ; element)*             a set, if more than one
 *     element  operand (relation operand)*           read twice if it holds +-: both signs
 *     operand  sum (cup, cap or minus sum)*
 *     sum      product (+ or - product)*
 *     product  run (* or / run)*
 *     run      postfix postfix ..                    2x, 1 1/2, 3(x-2)
 *     postfix  primary with ^, _, !, percent, degree
 *
 * What follows a bracket decides what it is: (x) groups, (1,2) is a tuple or an open interval.
 */
#include "rl/rules/math_impl.h"

#include <ctype.h>
#include <string.h>

typedef struct parser {
    cri_question *q;
    const char *s; /* NUL-terminated */
    size_t at;
    int depth, bars;     /* open | */
    bool is_minus;       /* which sign +- has */
    bool has_plus_minus; /* one was read */
    bool is_angle;       /* inside a trigonometric argument: degrees count */
} parser;

static cri_math *parse_list(parser *p, cri_kind kind, bool is_group);
static cri_math *parse_sum(parser *p);
static cri_math *parse_postfix(parser *p);
static cri_math *parse_tex_argument(parser *p);

/* ---- nodes ---- */

/* What walks a tree recurses: its height is bounded, whatever made it. */
static cri_math *with_height(cri_question *q, cri_math *m)
{
    for (int i = 0; i < m->num_args; i++)
        if (m->arg[i]->height >= m->height) m->height = m->arg[i]->height + 1;
    if (m->height <= 2 * CRI_MATH_MAX_DEPTH) return m;
    if (!q->trouble) q->trouble = "the expression is nested too deeply";
    return NULL;
}

cri_math *cri_math_node(cri_question *q, cri_kind kind, int num_args, cri_math *a, cri_math *b)
{
    cri_math *m;

    if (++q->num_nodes > CRI_MATH_MAX_NODES) {
        if (!q->trouble) q->trouble = "the expression is too long";
        return NULL;
    }
    if (num_args >= 1 && (!a || (num_args == 2 && !b))) return NULL;
    m = cr_arena_alloc(q->arena, sizeof *m + 2 * sizeof(cri_math *));
    *m = (cri_math){.kind = kind, .num_args = num_args, .arg = (cri_math **)(m + 1), .text = ""};
    m->arg[0] = a;
    m->arg[1] = b;
    return with_height(q, m);
}

bool cri_math_goes_on(cri_question *q)
{
    if (++q->num_steps % 256 == 0 && cr_now_s() > q->deadline_s) q->is_late = true;
    return !q->is_late;
}

static cri_math *leaf(parser *p, cri_kind kind, const char *text, size_t n)
{
    cri_math *m = cri_math_node(p->q, kind, 0, NULL, NULL);
    char *copy = cr_arena_strndup(p->q->arena, text, n);

    if (m) m->text = copy;
    return m;
}

/* Lower case; spaces and braces are left out. */
static cri_math *symbol(parser *p, const char *text, size_t n)
{
    char *name = cr_arena_alloc(p->q->arena, n + 1);
    size_t k = 0;
    cri_math *m;

    for (size_t i = 0; i < n; i++)
        if (!strchr(" {}~()", text[i])) name[k++] = (char)tolower((unsigned char)text[i]);
    name[k] = 0;
    m = cri_math_node(p->q, CRI_SYM, 0, NULL, NULL);
    if (m) m->text = name;
    return k ? m : NULL;
}

typedef struct nodes {
    cri_math **item;
    int num, capacity;
} nodes;

static bool push(parser *p, nodes *l, cri_math *m)
{
    if (!m) return false;
    if (l->num == l->capacity) {
        int wider = l->capacity ? 2 * l->capacity : 4;
        cri_math **item = cr_arena_alloc(p->q->arena, (size_t)wider * sizeof(cri_math *));
        if (l->num) memcpy(item, l->item, (size_t)l->num * sizeof(cri_math *));
        l->item = item;
        l->capacity = wider;
    }
    l->item[l->num++] = m;
    return true;
}

static cri_math *from_nodes(parser *p, cri_kind kind, const nodes *l)
{
    cri_math *m = cri_math_node(p->q, kind, 0, NULL, NULL);

    if (!m) return NULL;
    m->num_args = l->num;
    m->arg = l->item;
    return with_height(p->q, m);
}

/* ---- tokens ---- */

static const char *const skipped[] = {
    "left",         "right",     "mleft",       "mright",   "big",  "Big",   "bigg",
    "Bigg",         "bigl",      "bigr",        "Bigl",     "Bigr", "biggl", "biggr",
    "quad",         "qquad",     "limits",      "rm",       "it",   "bf",    "mathstrut",
    "displaystyle", "textstyle", "scriptstyle", "nolimits", "strut"};

static size_t name_bytes(const char *s)
{
    size_t n = 0;

    while (n < 64 && isalpha((unsigned char)s[n])) /* no name is longer */
        n++;
    return n;
}

static bool is_one_of(const char *s, size_t n, const char *const *names, size_t num)
{
    for (size_t i = 0; i < num; i++)
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0) return true;
    return false;
}

static void skip(parser *p)
{
    for (;;) {
        const char *s = p->s + p->at;
        if (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r' || *s == '~') {
            p->at++;
        } else if (strncmp(s, "\xC2\xA0", 2) == 0) {
            p->at += 2;
        } else if (*s == '\\' && s[1] && strchr(",;:!> ", s[1])) {
            p->at += 2;
        } else if (*s == '\\' && is_one_of(s + 1, name_bytes(s + 1), skipped, CR_COUNT(skipped))) {
            bool is_size = strncmp(s, "\\left", 5) == 0 || strncmp(s, "\\right", 6) == 0;
            p->at += 1 + name_bytes(s + 1);
            if (is_size && p->s[p->at] == '.') p->at++; /* an invisible bracket */
        } else {
            return;
        }
    }
}

/* The next bytes, if they are this text; a command must end where the text does. */
static bool sees(parser *p, const char *text)
{
    size_t n = strlen(text);

    skip(p);
    if (strncmp(p->s + p->at, text, n) != 0) return false;
    return text[0] != '\\' || !isalpha((unsigned char)text[n - 1]) ||
           !isalpha((unsigned char)p->s[p->at + n]);
}

static bool take(parser *p, const char *text)
{
    if (!sees(p, text)) return false;
    p->at += strlen(text);
    return true;
}

static bool take_any(parser *p, const char *const *texts)
{
    for (; *texts; texts++)
        if (take(p, *texts)) return true;
    return false;
}

/* ---- primaries ---- */

static bool deeper(parser *p)
{
    if (++p->depth <= CRI_MATH_MAX_DEPTH && cri_math_goes_on(p->q)) return true;
    if (p->depth > CRI_MATH_MAX_DEPTH && !p->q->trouble)
        p->q->trouble = "the expression is nested too deeply";
    return false;
}

/* 0.8\overline{3}: the digits that repeat, as a fraction: 83 - 8 over 90. */
static cri_math *repeating(parser *p, size_t start, size_t end)
{
    size_t before = 0, n, from, point = end;
    char *all, *head, *below;
    cri_math *a, *b;

    if (!(take(p, "\\overline{") || take(p, "\\bar{"))) return NULL;
    from = p->at;
    while (isdigit((unsigned char)p->s[p->at]))
        p->at++;
    n = p->at - from;
    if (n == 0 || n > 40 || end - start > 40 || !take(p, "}")) return NULL;
    for (size_t i = start; i < end; i++)
        if (p->s[i] == '.') point = i;
    before = point < end ? end - point - 1 : 0;
    all = cr_arena_alloc(p->q->arena, 200);
    head = all + 100;
    memset(all, 0, 200);
    for (size_t i = start, k = 0; i < end; i++)
        if (p->s[i] != '.') all[k] = head[k] = p->s[i], k++;
    strncat(all, p->s + from, n);
    below = cr_arena_alloc(p->q->arena, 100);
    memset(below, 0, 100);
    memset(below, '9', n);
    memset(below + n, '0', before);
    a = cri_math_node(p->q, CRI_ADD, 2, leaf(p, CRI_NUM, all, strlen(all)),
                      cri_math_node(p->q, CRI_NEG, 1, leaf(p, CRI_NUM, head, strlen(head)), NULL));
    b = leaf(p, CRI_NUM, below, strlen(below));
    return cri_math_node(p->q, CRI_DIV, 2, a, b);
}

static cri_math *number(parser *p)
{
    size_t start = p->at, end;
    const char *s = p->s;
    cri_math *m, *ten, *power;

    while (isdigit((unsigned char)s[p->at]))
        p->at++;
    while (p->at > start && p->at - start <= 3 && /* 1\,000 */
           s[p->at] == '\\' && (s[p->at + 1] == ',' || s[p->at + 1] == ' ') &&
           isdigit((unsigned char)s[p->at + 2]) && isdigit((unsigned char)s[p->at + 3]) &&
           isdigit((unsigned char)s[p->at + 4]) && !isdigit((unsigned char)s[p->at + 5])) {
        char *joined = cr_arena_alloc(p->q->arena, 8);
        memset(joined, 0, 8);
        memcpy(joined, s + start, p->at - start);
        memcpy(joined + (p->at - start), s + p->at + 2, 3);
        p->at += 5;
        return leaf(p, CRI_NUM, joined, strlen(joined));
    }
    if (s[p->at] == '.' && (isdigit((unsigned char)s[p->at + 1]) || s[p->at + 1] == '\\')) {
        p->at++;
        while (isdigit((unsigned char)s[p->at]))
            p->at++;
    }
    end = p->at;
    if (memchr(s + start, '.', end - start) && (m = repeating(p, start, end))) return m;
    p->at = end;
    m = leaf(p, CRI_NUM, s + start, end - start);
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
    ten = leaf(p, CRI_NUM, "10", 2);
    power = leaf(p, CRI_NUM, s + start + (s[start] == '-' || s[start] == '+'),
                 p->at - start - (s[start] == '-' || s[start] == '+'));
    if (s[start] == '-') power = cri_math_node(p->q, CRI_NEG, 1, power, NULL);
    return cri_math_node(p->q, CRI_MUL, 2, m, cri_math_node(p->q, CRI_POW, 2, ten, power));
}

/* Behind {: the bytes up to its }, which is taken; n: how many. */
static const char *braces(parser *p, size_t *n)
{
    const char *start = p->s + p->at;
    int depth = 1;

    for (; p->s[p->at]; p->at++) {
        depth += (p->s[p->at] == '{') - (p->s[p->at] == '}');
        if (depth == 0) {
            *n = (size_t)(p->s + p->at - start);
            p->at++;
            return start;
        }
    }
    return NULL;
}

static cri_math *text_symbol(parser *p)
{
    size_t n, k = 0, digits = 0;
    const char *s = take(p, "{") ? braces(p, &n) : NULL;

    if (!s) return NULL;
    while (n && isspace((unsigned char)*s))
        s++, n--;
    while (n && (isspace((unsigned char)s[n - 1]) || s[n - 1] == '.'))
        n--;
    bool is_minus = n && *s == '-';
    size_t num_points = 0;
    for (k = is_minus; k < n && (isdigit((unsigned char)s[k]) || s[k] == '.'); k++) {
        digits += s[k] != '.';
        num_points += s[k] == '.';
    }
    if (k == n && digits && num_points < 2) {
        cri_math *m = leaf(p, CRI_NUM, s + is_minus, n - is_minus);
        return is_minus ? cri_math_node(p->q, CRI_NEG, 1, m, NULL) : m;
    }
    return symbol(p, s, n);
}

/* Up to the bracket or comma that ends it, as one symbol: sums, integrals, limits. */
static cri_math *opaque(parser *p, size_t start)
{
    int depth = 0;

    for (; p->s[p->at]; p->at++) {
        char c = p->s[p->at];
        if (depth == 0 && strchr(")]},;=", c)) break;
        depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
        if ((c == '_' || c == '^') && p->s[p->at + 1] == '{') { /* bounds may hold = */
            size_t n;
            p->at += 2;
            if (!braces(p, &n)) return NULL;
            p->at--;
        }
    }
    return symbol(p, p->s + start, p->at - start);
}

static cri_math *bracket(parser *p, char close, char other)
{
    cri_math *m = parse_list(p, CRI_TUPLE, true);
    bool is_round = false;

    if (!m) return NULL;
    skip(p);
    if (p->s[p->at] == close)
        is_round = close == ')';
    else if (other && p->s[p->at] == other)
        is_round = other == ')';
    else
        return NULL;
    p->at++;
    if (m->kind == CRI_TUPLE && m->op < 0)
        m->op = (close == ')' ? CRI_OPEN_LEFT : 0) | (is_round ? CRI_OPEN_RIGHT : 0);
    else if ((p->s[p->at - 1]) != close)
        return NULL; /* (5] */
    return m;
}

static cri_math *braced_set(parser *p)
{
    cri_math *m;

    if (take(p, "\\}")) return cri_math_node(p->q, CRI_EMPTY, 0, NULL, NULL);
    m = parse_list(p, CRI_SET, false);
    if (!m || !take(p, "\\}")) return NULL;
    if (m->kind == CRI_SET && m->op < 0) {
        m->op = 0;
        return m;
    }
    m = cri_math_node(p->q, CRI_SET, 1, m, NULL);
    return m;
}

static cri_math *matrix(parser *p)
{
    nodes all = {0};
    size_t n;
    const char *name = braces(p, &n);
    bool is_det;
    int columns = -1, in_row = 0;
    cri_math *m;

    if (!name || n < 5) return NULL;
    is_det = name[0] == 'v';
    if (!(n == 5 && memcmp(name, "array", 5) == 0) &&
        (n < 6 || memcmp(name + n - 6, "matrix", 6) != 0))
        return NULL;
    if (n == 5 && take(p, "{") && !braces(p, &n)) return NULL; /* columns of an array */
    while (!sees(p, "\\end")) {
        if (!push(p, &all, parse_sum(p))) return NULL;
        in_row++;
        if (take(p, "&")) continue;
        if (!take(p, "\\\\") && !sees(p, "\\end")) return NULL;
        if (columns >= 0 && columns != in_row) return NULL;
        columns = in_row;
        in_row = 0;
    }
    if (!take(p, "\\end{") || !braces(p, &n) || columns <= 0 || in_row) return NULL;
    m = from_nodes(p, CRI_MATRIX, &all);
    if (m) m->op = columns;
    if (is_det && m) {
        cri_math *det = cri_math_node(p->q, CRI_FUNC, 1, m, NULL);
        if (det) det->text = "det";
        return det;
    }
    return m;
}

/* ---- functions ---- */

static const char *const angles[] = {"sin", "cos", "tan", "cot", "sec", "csc"};
static const char *const functions[] = {
    "sin",  "cos",    "tan",    "cot",    "sec",     "csc",     "sinh",    "cosh", "tanh",
    "coth", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "ln",   "log",
    "lg",   "exp",    "max",    "min",    "gcd",     "lcm",     "det"};
static const char *const opaques[] = {"sum", "prod", "int", "lim", "iint", "oint", "iiint"};

static bool is_function_next(parser *p)
{
    const char *s;

    skip(p);
    s = p->s + p->at;
    if (*s == '\\') s++;
    return is_one_of(s, name_bytes(s), functions, CR_COUNT(functions)) ||
           strncmp(s, "operatorname", 12) == 0;
}

static bool starts_primary(parser *p);

/* sin 2x, ln 2: what stands behind up to an operator or the next function. */
static cri_math *bare_argument(parser *p, bool is_angle)
{
    cri_math *m = NULL, *next;

    while (starts_primary(p) && !(m && is_function_next(p))) {
        next = parse_postfix(p);
        m = m ? cri_math_node(p->q, CRI_MUL, 2, m, next) : next;
        if (!m) return NULL;
    }
    if (m && is_angle && take(p, "/")) m = cri_math_node(p->q, CRI_DIV, 2, m, parse_postfix(p));
    return m;
}

static cri_math *function(parser *p, const char *name, size_t n)
{
    cri_math *power = NULL, *base = NULL, *m, *f;
    bool was_angle = p->is_angle, is_angle = is_one_of(name, n, angles, CR_COUNT(angles));
    bool is_inverse = false;

    for (;;) {
        if (!power && take(p, "^"))
            power = parse_tex_argument(p);
        else if (!base && take(p, "_"))
            base = parse_tex_argument(p);
        else
            break;
        if (!power && !base) return NULL;
    }
    is_inverse = is_angle && power && power->kind == CRI_NEG && power->arg[0]->kind == CRI_NUM &&
                 strcmp(power->arg[0]->text, "1") == 0;
    p->is_angle = is_angle && !is_inverse;
    if (sees(p, "(") || sees(p, "{"))
        m = parse_postfix(p); /* f(x)^2 is (f(x))^2 for no reader of sin(x)^2 but TeX's */
    else
        m = bare_argument(p, is_angle);
    p->is_angle = was_angle;
    if (!m) return NULL;
    f = cri_math_node(p->q, CRI_FUNC, base ? 2 : 1, m, base);
    if (!f) return NULL;
    if (m->kind == CRI_TUPLE) f->arg = m->arg, f->num_args = m->num_args;
    if (is_inverse) {
        char *arc = cr_arena_alloc(p->q->arena, n + 4);
        memcpy(arc, "arc", 3);
        memcpy(arc + 3, name, n);
        arc[n + 3] = 0;
        f->text = arc;
        return f;
    }
    f->text = cr_arena_strndup(p->q->arena, name, n);
    return power ? cri_math_node(p->q, CRI_POW, 2, f, power) : f;
}

static cri_math *root(parser *p)
{
    cri_math *n = NULL, *m, *one;

    if (take(p, "[")) {
        n = parse_sum(p);
        if (!n || !take(p, "]")) return NULL;
    }
    m = sees(p, "(") ? parse_postfix(p) : parse_tex_argument(p);
    one = leaf(p, CRI_NUM, "1", 1);
    if (!n) n = leaf(p, CRI_NUM, "2", 1);
    return cri_math_node(p->q, CRI_POW, 2, m, cri_math_node(p->q, CRI_DIV, 2, one, n));
}

static cri_math *two_arguments(parser *p, cri_kind kind)
{
    cri_math *a = parse_tex_argument(p), *b = a ? parse_tex_argument(p) : NULL;

    return cri_math_node(p->q, kind, 2, a, b);
}

static cri_math *until(parser *p, cri_kind kind, const char *close)
{
    cri_math *m = parse_sum(p);

    return m && take(p, close) ? cri_math_node(p->q, kind, 1, m, NULL) : NULL;
}

/* Behind the name of a command. */
static cri_math *command(parser *p, const char *name, size_t n, size_t start)
{
    static const char *const texts[] = {"text",   "mbox",       "mathrm",     "mathbf", "mathit",
                                        "textbf", "textit",     "textrm",     "mathsf", "texttt",
                                        "mathtt", "textnormal", "boldsymbol", "bm",     "hbox"};
    static const char *const accents[] = {
        "vec",      "hat",       "bar",       "overline",          "tilde", "dot",
        "ddot",     "widehat",   "mathcal",   "mathscr",           "check", "overrightarrow",
        "mathfrak", "widetilde", "underline", "overleftrightarrow"};
    static const char *const refused[] = {
        "to",  "mid", "Rightarrow", "rightarrow", "forall", "exists", "implies", "iff", "cases",
        "end", "mod", "equiv",      "cdots",      "dots",   "ldots",  "vdots",   "pmod"};
    const char *s;
    size_t k;

#define IS(word) (n == strlen(word) && memcmp(name, word, n) == 0)
    if (IS("frac") || IS("dfrac") || IS("tfrac") || IS("cfrac")) return two_arguments(p, CRI_DIV);
    if (IS("binom") || IS("dbinom") || IS("tbinom")) return two_arguments(p, CRI_BINOM);
    if (IS("sqrt")) return root(p);
    if (IS("pi")) return leaf(p, CRI_PI, "pi", 2);
    if (IS("imath")) return leaf(p, CRI_I, "i", 1);
    if (IS("infty")) return leaf(p, CRI_INF, "oo", 2);
    if (IS("emptyset") || IS("varnothing")) return leaf(p, CRI_EMPTY, "", 0);
    if (IS("lfloor")) return until(p, CRI_FLOOR, "\\rfloor");
    if (IS("lceil")) return until(p, CRI_CEIL, "\\rceil");
    if (IS("lvert") || IS("vert")) return until(p, CRI_ABS, IS("vert") ? "\\vert" : "\\rvert");
    if (IS("lbrace")) {
        cri_math *m = parse_list(p, CRI_SET, false);
        if (!m || !take(p, "\\rbrace")) return NULL;
        return m->kind == CRI_SET && m->op < 0 ? m : cri_math_node(p->q, CRI_SET, 1, m, NULL);
    }
    if (IS("begin")) return take(p, "{") ? matrix(p) : NULL;
    if (IS("mathbb")) {
        s = take(p, "{") ? braces(p, &k) : NULL;
        if (!s) return NULL;
        if (k == 1 && strchr("RQZNC", *s) && !sees(p, "_") && !sees(p, "^"))
            return leaf(p, CRI_NAMED, s, 1);
        return symbol(p, s, k);
    }
    if (is_one_of(name, n, texts, CR_COUNT(texts))) return text_symbol(p);
    if (IS("operatorname")) {
        if (!take(p, "{") || !(s = braces(p, &k))) return NULL;
        if (is_one_of(s, k, functions, CR_COUNT(functions))) return function(p, s, k);
        return symbol(p, s, k);
    }
    if (is_one_of(name, n, accents, CR_COUNT(accents))) {
        if (!take(p, "{") || !braces(p, &k)) return NULL;
        return symbol(p, p->s + start, p->at - start);
    }
    if (is_one_of(name, n, functions, CR_COUNT(functions))) return function(p, name, n);
    if (is_one_of(name, n, opaques, CR_COUNT(opaques))) return opaque(p, start);
    if (is_one_of(name, n, refused, CR_COUNT(refused)) || n == 0) return NULL;
    return symbol(p, name, n);
#undef IS
}

/* A run of letters: a function's name, pi, or one variable a letter. */
static cri_math *letters(parser *p)
{
    const char *s = p->s + p->at;
    size_t n = name_bytes(s);
    uint32_t c;

    if (n >= 2 && is_one_of(s, n, functions, CR_COUNT(functions)) && n != 2) {
        p->at += n;
        return function(p, s, n);
    }
    if (n == 2 && (strncmp(s, "ln", 2) == 0) && (s[2] == '(' || s[2] == ' ')) {
        p->at += 2;
        return function(p, s, n);
    }
    if (n == 4 && strncmp(s, "sqrt", 4) == 0) {
        p->at += n;
        return root(p);
    }
    if (n == 2 && strncmp(s, "pi", 2) == 0) {
        p->at += 2;
        return leaf(p, CRI_PI, "pi", 2);
    }
    if (n) {
        p->at++;
        if (*s == 'e') return leaf(p, CRI_E, "e", 1);
        if (*s == 'i') return leaf(p, CRI_I, "i", 1);
        return symbol(p, s, 1);
    }
    n = (size_t)cr_utf8_decode(s, strlen(s), &c);
    if (n < 2) return NULL;
    p->at += n;
    if (c == 0x3C0) return leaf(p, CRI_PI, "pi", 2);
    if (c == 0x221E) return leaf(p, CRI_INF, "oo", 2);
    if (c == 0x2205) return leaf(p, CRI_EMPTY, "", 0);
    if (c == 0x221A) return root(p);
    return symbol(p, s, n);
}

static cri_math *primary(parser *p)
{
    const char *s;
    cri_math *m = NULL;
    size_t start;

    if (!deeper(p)) return NULL;
    skip(p);
    start = p->at;
    s = p->s + start;
    if (isdigit((unsigned char)*s) || (*s == '.' && isdigit((unsigned char)s[1]))) {
        m = number(p);
    } else if (*s == '(') {
        p->at++;
        m = bracket(p, ')', ']');
    } else if (*s == '[') {
        p->at++;
        m = bracket(p, ']', ')');
    } else if (*s == '{') {
        p->at++;
        m = parse_list(p, CRI_SET, true);
        if (m && !take(p, "}")) m = NULL;
        if (m && m->kind == CRI_SET && m->op < 0) m->op = 1;
    } else if (strncmp(s, "\\{", 2) == 0) {
        p->at += 2;
        m = braced_set(p);
    } else if (*s == '|' || strncmp(s, "\\|", 2) == 0) {
        const char *bar = *s == '|' ? "|" : "\\|";
        p->at += strlen(bar);
        p->bars++;
        m = parse_sum(p);
        p->bars--;
        m = m && take(p, bar) ? cri_math_node(p->q, CRI_ABS, 1, m, NULL) : NULL;
    } else if (*s == '\\') {
        size_t n = name_bytes(s + 1);
        p->at += 1 + n;
        m = command(p, s + 1, n, start);
    } else {
        m = letters(p);
    }
    p->depth--;
    return m;
}

static bool starts_primary(parser *p)
{
    static const char *const ends[] = {
        "times",     "cdot",  "div", "le",       "leq",        "ge",         "geq",    "neq",
        "ne",        "lt",    "gt",  "in",       "notin",      "cup",        "cap",    "setminus",
        "backslash", "pm",    "mp",  "rfloor",   "rceil",      "rvert",      "rbrace", "end",
        "approx",    "bmod",  "mod", "leqslant", "geqslant",   "circ",       "degree", "subset",
        "subseteq",  "equiv", "mid", "to",       "rightarrow", "Rightarrow", "ast",    "sim",
        "vert",      "land",  "lor", "wedge",    "vee"};
    const char *s;
    uint32_t c;

    skip(p);
    s = p->s + p->at;
    if (*s == '|') return p->bars == 0;
    if (isalnum((unsigned char)*s) || (*s && strchr("([{", *s))) return true;
    if (*s == '.') return isdigit((unsigned char)s[1]);
    if (*s == '\\') {
        size_t n = name_bytes(s + 1);
        if (n == 0) return s[1] == '{' || (s[1] == '|' && p->bars == 0);
        return !is_one_of(s + 1, n, ends, CR_COUNT(ends));
    }
    /* signs that are no letters: operators, relations, punctuation */
    if ((unsigned char)*s < 0x80 || !cr_utf8_decode(s, strlen(s), &c)) return false;
    return c == 0x3C0 || c == 0x221E || c == 0x2205 || c == 0x221A || (c >= 0x370 && c < 0x400) ||
           c >= 0x3040;
}

/* ---- operators ---- */

/* TeX's argument: a group, a command or one character; numbers in exponents are whole. */
static cri_math *parse_tex_argument(parser *p)
{
    cri_math *m;

    skip(p);
    if (isdigit((unsigned char)p->s[p->at])) {
        p->at++;
        return leaf(p, CRI_NUM, p->s + p->at - 1, 1);
    }
    if (p->s[p->at] == '-' || p->s[p->at] == '+') {
        bool is_minus = p->s[p->at++] == '-';
        m = primary(p);
        return is_minus ? cri_math_node(p->q, CRI_NEG, 1, m, NULL) : m;
    }
    return primary(p);
}

static bool take_degree(parser *p)
{
    static const char *const signs[] = {"^\\circ",  "^{\\circ}", "\\circ", "\xC2\xB0",
                                        "\\degree", "^\\degree", NULL};
    size_t at = p->at;

    if (take_any(p, signs)) return true;
    if (take(p, "^") && take(p, "{") && take(p, "\\circ") && take(p, "}")) return true;
    p->at = at;
    return false;
}

static cri_math *with_subscript(parser *p, cri_math *m)
{
    size_t start = p->at, n;
    char *name;

    if (take(p, "{")) {
        start = p->at;
        if (!braces(p, &n)) return NULL;
    } else {
        cri_math *ignored = parse_tex_argument(p);
        if (!ignored) return NULL;
        while (isdigit((unsigned char)p->s[p->at]))
            p->at++; /* x_12 */
        n = p->at - start;
    }
    if (m->kind != CRI_SYM && m->kind != CRI_E && m->kind != CRI_I) return m; /* base of a number */
    name = cr_arena_alloc(p->q->arena, strlen(m->text) + n + 2);
    memcpy(name, m->text, strlen(m->text));
    name[strlen(m->text)] = '_';
    memcpy(name + strlen(m->text) + 1, p->s + start, n);
    return symbol(p, name, strlen(m->text) + 1 + n);
}

static cri_math *parse_postfix(parser *p)
{
    cri_math *m = primary(p);

    while (m) {
        skip(p);
        if (take_degree(p)) {
            if (p->is_angle) {
                cri_math *turn = cri_math_node(p->q, CRI_DIV, 2, leaf(p, CRI_PI, "pi", 2),
                                               leaf(p, CRI_NUM, "180", 3));
                m = cri_math_node(p->q, CRI_MUL, 2, m, turn);
            }
        } else if (take(p, "^") || take(p, "**")) {
            skip(p);
            m = cri_math_node(p->q, CRI_POW, 2, m,
                              isdigit((unsigned char)p->s[p->at]) ? number(p)
                                                                  : parse_tex_argument(p));
        } else if (take(p, "_")) {
            m = with_subscript(p, m);
        } else if (p->s[p->at] == '!' && p->s[p->at + 1] != '=') {
            p->at++;
            m = cri_math_node(p->q, CRI_FACT, 1, m, NULL);
        } else if (!take(p, "\\%") && !take(p, "%")) {
            break;
        }
    }
    return m;
}

/* 1\frac{1}{2}: an integer and a fraction of integers beside it are added. */
static bool is_mixed(const cri_math *whole, const cri_math *fraction)
{
    return whole->kind == CRI_NUM && !strchr(whole->text, '.') && fraction->kind == CRI_DIV &&
           fraction->arg[0]->kind == CRI_NUM && fraction->arg[1]->kind == CRI_NUM &&
           !strchr(fraction->arg[0]->text, '.') && !strchr(fraction->arg[1]->text, '.');
}

static cri_math *parse_run(parser *p)
{
    nodes all = {0};

    skip(p);
    if (p->s[p->at] == '+' || p->s[p->at] == '-' || strncmp(p->s + p->at, "\xE2\x88\x92", 3) == 0) {
        bool is_plus = p->s[p->at] == '+';
        cri_math *m;
        p->at += p->s[p->at] == '+' || p->s[p->at] == '-' ? 1 : 3;
        if (!deeper(p)) return NULL;
        m = parse_run(p);
        p->depth--;
        return is_plus ? m : cri_math_node(p->q, CRI_NEG, 1, m, NULL);
    }
    do {
        size_t at = p->at;
        bool is_fraction = sees(p, "\\frac") || sees(p, "\\dfrac") || sees(p, "\\tfrac");
        cri_math *m = parse_postfix(p);
        if (at == p->at) return NULL;
        if (m && all.num && m->kind == CRI_TUPLE && all.item[all.num - 1]->kind == CRI_SYM) {
            const char *name = all.item[all.num - 1]->text; /* U(0,1) */
            m->kind = CRI_FUNC;
            m->text = name;
            all.num--;
        }
        if (m && all.num && is_fraction && is_mixed(all.item[all.num - 1], m))
            all.item[all.num - 1] = cri_math_node(p->q, CRI_ADD, 2, all.item[all.num - 1], m);
        else if (!push(p, &all, m))
            return NULL;
    } while (starts_primary(p));
    return all.num == 1 ? all.item[0] : from_nodes(p, CRI_MUL, &all);
}

static cri_math *parse_product(parser *p)
{
    static const char *const times[] = {"\\times",  "\\cdot",   "*", "\\ast",
                                        "\xC3\x97", "\xC2\xB7", NULL},
                             *const over[] = {"/", "\\div", ":", "\xC3\xB7", NULL},
                             *const mod[] = {"\\bmod", "\\mod", NULL};
    cri_math *m = parse_run(p);

    while (m) {
        if (sees(p, "**")) return m;
        if (take_any(p, times))
            m = cri_math_node(p->q, CRI_MUL, 2, m, parse_run(p));
        else if (take_any(p, over))
            m = cri_math_node(p->q, CRI_DIV, 2, m, parse_run(p));
        else if (take_any(p, mod))
            m = cri_math_node(p->q, CRI_MOD, 2, m, parse_run(p));
        else
            break;
    }
    return m;
}

static cri_math *parse_sum(parser *p)
{
    static const char *const plus_minus[] = {"\\pm", "\xC2\xB1", NULL};
    nodes all = {0};
    bool is_minus = false;

    if (!deeper(p)) return NULL;
    for (;;) {
        bool is_signed = true;
        cri_math *m;
        if (take_any(p, plus_minus)) {
            p->has_plus_minus = true;
            is_minus = p->is_minus;
        } else if (take(p, "\\mp")) {
            p->has_plus_minus = true;
            is_minus = !p->is_minus;
        } else if (all.num && take(p, "+")) {
            is_minus = false;
        } else if (all.num && (take(p, "-") || take(p, "\xE2\x88\x92"))) {
            is_minus = true;
        } else {
            is_signed = false;
        }
        if (all.num && !is_signed) break;
        m = parse_product(p);
        if (m && is_minus) m = cri_math_node(p->q, CRI_NEG, 1, m, NULL);
        if (!push(p, &all, m)) return NULL;
    }
    p->depth--;
    return all.num == 1 ? all.item[0] : from_nodes(p, CRI_ADD, &all);
}

static cri_math *parse_operand(parser *p)
{
    static const char *const joins[] = {"\\cup", "\xE2\x88\xAA", NULL},
                             *const meets[] = {"\\cap", "\xE2\x88\xA9", NULL},
                             *const minus[] = {"\\setminus", "\\backslash", "\\\\", NULL};
    cri_math *m = parse_sum(p);

    while (m) {
        if (take_any(p, joins))
            m = cri_math_node(p->q, CRI_UNION, 2, m, parse_sum(p));
        else if (take_any(p, meets))
            m = cri_math_node(p->q, CRI_MEET, 2, m, parse_sum(p));
        else if (take_any(p, minus))
            m = cri_math_node(p->q, CRI_MINUS, 2, m, parse_sum(p));
        else
            break;
    }
    return m;
}

/* One letter a relation: = < > l(e) g(e) n(e) i(n) a(pprox). 0: none here. */
static char take_relation(parser *p)
{
    static const struct {
        const char *text;
        char letter;
    } signs[] = {{"\\leqslant", 'l'},
                 {"\\geqslant", 'g'},
                 {"\\leq", 'l'},
                 {"\\geq", 'g'},
                 {"\\le", 'l'},
                 {"\\ge", 'g'},
                 {"\\neq", 'n'},
                 {"\\ne", 'n'},
                 {"\\not=", 'n'},
                 {"\\lt", '<'},
                 {"\\gt", '>'},
                 {"\\in", 'i'},
                 {"\\approx", 'a'},
                 {"\\simeq", 'a'},
                 {"\\equiv", '='},
                 {"<=", 'l'},
                 {">=", 'g'},
                 {"!=", 'n'},
                 {"==", '='},
                 {"=", '='},
                 {"<", '<'},
                 {">", '>'},
                 {"\xE2\x89\xA4", 'l'},
                 {"\xE2\x89\xA5", 'g'},
                 {"\xE2\x89\xA0", 'n'},
                 {"\xE2\x88\x88", 'i'},
                 {"\xE2\x89\x88", 'a'}};

    for (size_t i = 0; i < CR_COUNT(signs); i++)
        if (take(p, signs[i].text)) return signs[i].letter;
    return 0;
}

static cri_math *parse_relation(parser *p)
{
    nodes all = {0};
    cr_buf signs = {0};
    cri_math *m;
    char sign;

    if (!push(p, &all, parse_operand(p))) return NULL;
    while ((sign = take_relation(p))) {
        cri_math *right = parse_operand(p);
        if (!right) {
            cr_buf_free(&signs);
            return NULL;
        }
        if (sign == 'a') continue; /* what is approximately so adds nothing */
        push(p, &all, right);
        cr_buf_addc(&signs, sign);
    }
    if (all.num == 1) return all.item[0];
    m = from_nodes(p, CRI_REL, &all);
    if (m) m->text = cr_arena_strndup(p->q->arena, signs.data, signs.num_bytes);
    cr_buf_free(&signs);
    return m;
}

/* One element stays itself; more become a node of that kind with op -1. A group of one element
 * leaves +- to the list around it, else each +- makes two elements. */
static cri_math *parse_list(parser *p, cri_kind kind, bool is_group)
{
    nodes all = {0};
    cri_math *m;
    bool is_minus = p->is_minus, had = p->has_plus_minus, is_more = true;

    for (bool is_first = true; is_more; is_first = false) {
        size_t at = p->at;
        p->has_plus_minus = false;
        m = parse_relation(p);
        if (!m) return NULL;
        is_more = take(p, ",") || take(p, ";");
        if (is_group && is_first && !is_more) {
            p->has_plus_minus = p->has_plus_minus || had;
            return m;
        }
        if (p->has_plus_minus) {
            for (int sign = 0; sign < 2; sign++) {
                p->at = at;
                p->is_minus = sign;
                if (!push(p, &all, parse_relation(p))) return NULL;
            }
            is_more = take(p, ",") || take(p, ";");
        } else if (!push(p, &all, m)) {
            return NULL;
        }
    }
    p->is_minus = is_minus;
    p->has_plus_minus = had;
    if (all.num == 1) return all.item[0];
    m = from_nodes(p, kind, &all);
    if (m) m->op = -1;
    return m;
}

/* 12,345.6 as a whole, perhaps behind "x =": a number, not a set. */
static char *without_thousands(const char *clean)
{
    const char *start = strrchr(clean, '='), *p;
    char *out, *to;
    int groups = 0, digits = 0;

    start = start ? start + 1 : clean;
    p = start + strspn(start, " -+");
    while (isdigit((unsigned char)*p))
        p++, digits++;
    if (digits == 0 || digits > 3) return NULL;
    while (*p == ',' && isdigit((unsigned char)p[1]) && isdigit((unsigned char)p[2]) &&
           isdigit((unsigned char)p[3]) && !isdigit((unsigned char)p[4]))
        p += 4, groups++;
    if (*p == '.') p += 1 + strspn(p + 1, "0123456789");
    p += strspn(p, " ");
    if (groups == 0 || *p) return NULL;
    out = cr_strdup(clean);
    to = out + (start - clean);
    for (const char *c = start; *c; c++)
        if (*c != ',') *to++ = *c;
    *to = 0;
    return out;
}

cri_math *cri_math_parse(cri_question *q, const char *clean)
{
    char *number = without_thousands(clean);
    parser p = {.q = q, .s = number ? number : clean};
    cri_math *m = NULL;

    if (strlen(clean) > CRI_MATH_MAX_BYTES)
        q->trouble = "the expression is too long";
    else
        m = parse_list(&p, CRI_SET, false);
    skip(&p);
    if (m && p.s[p.at]) m = NULL; /* something is left */
    if (m && m->kind == CRI_SET && m->op < 0) m->op = 1;
    cr_free(number);
    return m;
}
