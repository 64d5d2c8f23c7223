/* math_primary.c -- what stands between operators: numbers, names, brackets, functions, commands. */
#include "rewards/math/math_parse_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- primaries ---- */

static cri_math *text_symbol(cri_math_parser *p)
{
    size_t n, k = 0, digits = 0;
    const char *s = cri_take(p, "{") ? cri_braces(p, &n) : NULL;

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
        cri_math *m = cri_leaf(p, CRI_NUM, s + is_minus, n - is_minus);
        return is_minus ? cri_math_node(p->q, CRI_NEG, 1, m, NULL) : m;
    }
    return cri_symbol(p, s, n);
}

/* Up to the bracket or comma that ends it, as one symbol: sums, integrals, limits. */
static cri_math *opaque(cri_math_parser *p, size_t start)
{
    int depth = 0;

    for (; p->s[p->at]; p->at++) {
        char c = p->s[p->at];
        if (depth == 0 && strchr(")]},;=", c)) break;
        depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
        if ((c == '_' || c == '^') && p->s[p->at + 1] == '{') { /* bounds may hold = */
            size_t n;
            p->at += 2;
            if (!cri_braces(p, &n)) return NULL;
            p->at--;
        }
    }
    return cri_symbol(p, p->s + start, p->at - start);
}

/* The bracket before this place is that of P(A|B). */
static bool is_after_probability(const cri_math_parser *p)
{
    const char *s = p->s + p->at - 1;

    if (p->at > 5 && memcmp(s - 5, "\\left", 5) == 0) s -= 5;
    while (s > p->s && s[-1] == ' ')
        s--;
    return s > p->s &&
           (s[-1] == 'P' || s[-1] == 'E' || (s - p->s > 1 && memcmp(s - 2, "Pr", 2) == 0));
}

/* After the bracket that opens: one value, a tuple or an interval, which ]2,5[ closes and opens the other way. */
static cri_math *bracket(cri_math_parser *p, char open)
{
    const bool was_interval = p->is_interval, was_given = p->is_given, was_set = p->is_set;
    cri_math *m;
    char close;

    p->is_interval = p->is_set = false;
    p->is_given = is_after_probability(p);
    m = cri_parse_list(p, CRI_TUPLE, true);
    p->is_interval = was_interval;
    p->is_given = was_given;
    p->is_set = was_set;
    if (!m) return NULL;
    cri_skip(p);
    close = p->s[p->at];
    if (!close || !strchr(")][", close)) return NULL;
    p->at++;
    if (m->kind == CRI_TUPLE && m->op < 0) {
        if ((open == ']' || close == '[') && m->num_args != 2) return NULL;
        m->op = (open != '[' ? CRI_OPEN_LEFT : 0) | (close != ']' ? CRI_OPEN_RIGHT : 0);
    } else if (close != (open == '(' ? ')' : ']') || open == ']') {
        return NULL; /* (5] */
    }
    return m;
}

/* x, or x \in \mathbb{Z}, before the sign of \{x \mid x > 2\}; NULL: it is something else. */
static cri_math *set_builder_name(cri_math_parser *p)
{
    static const char *const signs[] = {"\\mid", "\\vert", "|", ":", "\\colon", NULL};
    static const char *const in[] = {"\\in", "\xE2\x88\x88", NULL};
    const size_t at = p->at;
    cri_math *name, *domain = NULL;

    cri_skip(p);
    name = isalpha((unsigned char)p->s[p->at]) ? cri_primary(p) : NULL;
    if (name && name->kind == CRI_SYM && cri_take_any(p, in)) domain = cri_primary(p);
    if (name && name->kind == CRI_SYM && (!domain || domain->kind == CRI_NAMED) &&
        cri_take_any(p, signs)) {
        if (!domain || strcmp(domain->text, "R") == 0) return name;
        name = cri_math_node(p->q, CRI_REL, 2, name, domain);
        if (name) name->text = "i";
        return name;
    }
    p->at = at;
    return NULL;
}

/* \{x \mid x > 2\}: the condition, with x \in \mathbb{Z} if it says so. */
static cri_math *set_builder(cri_math_parser *p, cri_math *name)
{
    cri_math *m = cri_parse_list(p, CRI_SET, false);
    cri_math_nodes all = {0};

    if (!m) return NULL;
    if (m->kind == CRI_SET && m->op < 0) m->op = 1;
    if (m->kind != CRI_REL && !(m->kind == CRI_SET && m->arg[0]->kind == CRI_REL)) return NULL;
    if (name->kind == CRI_SYM) return m;
    if (m->kind == CRI_SET && strcmp(m->text, "or") == 0) return NULL;
    for (int i = 0; i < (m->kind == CRI_SET ? m->num_args : 1); i++)
        if (!cri_push(p, &all, m->kind == CRI_SET ? m->arg[i] : m)) return NULL;
    if (!cri_push(p, &all, name) || !(m = cri_from_nodes(p, CRI_SET, &all))) return NULL;
    m->op = 1;
    return m;
}

/* After \{ or \lbrace, up to close. */
static cri_math *braced_set(cri_math_parser *p, const char *close)
{
    cri_math *m, *name;
    bool was_set;

    if (cri_take(p, close)) return cri_math_node(p->q, CRI_EMPTY, 0, NULL, NULL);
    if (cri_sees(p, "\\begin")) { /* \left\{ \begin{array} .. \right. */
        m = cri_take(p, "\\begin{array}") ? cri_rows(p, "array", 5) : cri_primary(p);
        cri_take(p, close);
        return m;
    }
    if ((name = set_builder_name(p))) {
        m = set_builder(p, name);
        return m && cri_take(p, close) ? m : NULL;
    }
    was_set = p->is_set;
    p->is_set = true;
    m = cri_parse_list(p, CRI_SET, false);
    p->is_set = was_set;
    if (!m || !cri_take(p, close)) return NULL;
    if (m->kind != CRI_SET || m->op >= 0) return cri_math_node(p->q, CRI_SET, 1, m, NULL);
    m->op = 0;
    return m;
}

static cri_math *matrix(cri_math_parser *p)
{
    cri_math_nodes all = {0};
    size_t n;
    const char *name = cri_braces(p, &n);
    bool is_det, skipped = p->skips_columns;
    int columns = -1, in_row = 0;
    cri_math *m;

    if (!name || n < 5) return NULL;
    is_det = name[0] == 'v';
    if (!(n == 5 && memcmp(name, "array", 5) == 0) &&
        (n < 6 || memcmp(name + n - 6, "matrix", 6) != 0))
        return cri_rows(p, name, n);
    p->skips_columns = false;
    if (n == 5 && cri_take(p, "{") && !cri_braces(p, &n)) return NULL; /* columns of an array */
    while (!cri_sees(p, "\\end")) {
        if (!cri_push(p, &all, cri_parse_sum(p))) return NULL;
        in_row++;
        if (cri_take(p, "&")) continue;
        if (!cri_take(p, "\\\\") && !cri_sees(p, "\\end")) return NULL;
        if (columns >= 0 && columns != in_row) return NULL;
        columns = in_row;
        in_row = 0;
    }
    p->skips_columns = skipped;
    if (!cri_take(p, "\\end{") || !cri_braces(p, &n) || columns <= 0 || in_row) return NULL;
    m = cri_from_nodes(p, CRI_MATRIX, &all);
    if (m) m->op = columns;
    p->q->has_matrix = true;
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

/* k becomes the name of the bound variable. */
static void rename_symbol(cri_math *m, const char *from, const char *to)
{
    bool is_same =
        (m->kind == CRI_SYM || m->kind == CRI_I || m->kind == CRI_E) && strcmp(m->text, from) == 0;

    if (is_same) m->kind = CRI_SYM, m->text = to;
    for (int i = 0; i < m->num_args; i++)
        rename_symbol(m->arg[i], from, to);
}

/* After \sum or \prod: _{k=1}^{n} and a product that holds k; NULL: it is written otherwise. */
static cri_math *series(cri_math_parser *p, const char *name, size_t n)
{
    cri_math_nodes all = {0};
    cri_math *index, *low, *high, *body, *m;
    char *bound;

    if (!cri_take(p, "_") || !cri_take(p, "{") || !(index = cri_primary(p))) return NULL;
    if (index->num_args || !cri_take(p, "=") || !(low = cri_parse_sum(p))) return NULL;
    if (!cri_take(p, "}") || !cri_take(p, "^") || !(high = cri_parse_tex_argument(p))) return NULL;
    p->num_series++;
    body = cri_parse_product(p);
    p->num_series--;
    if (!body) return NULL;
    bound = cr_arena_alloc(p->q->arena, 16);
    snprintf(bound, 16, "#%d", p->num_series); /* the same for every name of k */
    rename_symbol(body, index->text, bound);
    if (!cri_push(p, &all, body) || !cri_push(p, &all, low) || !cri_push(p, &all, high) ||
        !cri_push(p, &all, cri_leaf(p, CRI_SYM, bound, strlen(bound))))
        return NULL;
    m = cri_from_nodes(p, CRI_FUNC, &all);
    if (m) m->text = cr_arena_strndup(p->q->arena, name, n);
    return m;
}

static bool is_function_next(cri_math_parser *p)
{
    const char *s;

    cri_skip(p);
    s = p->s + p->at;
    if (*s == '\\') s++;
    return cri_is_one_of(s, cri_name_bytes(s), functions, CR_COUNT(functions)) ||
           strncmp(s, "operatorname", 12) == 0;
}

/* sin 2x, ln 2: everything up to an operator or the next function. */
static cri_math *bare_argument(cri_math_parser *p, bool is_angle)
{
    cri_math *m = NULL, *next;

    while (cri_starts_primary(p) && !(m && is_function_next(p))) {
        next = cri_parse_postfix(p);
        m = m ? cri_math_node(p->q, CRI_MUL, 2, m, next) : next;
        if (!m) return NULL;
    }
    if (m && is_angle && cri_take(p, "/"))
        m = cri_math_node(p->q, CRI_DIV, 2, m, cri_parse_postfix(p));
    return m;
}

static cri_math *function(cri_math_parser *p, const char *name, size_t n)
{
    cri_math *power = NULL, *base = NULL, *m, *f;
    bool was_angle = p->is_angle, is_angle = cri_is_one_of(name, n, angles, CR_COUNT(angles));
    bool is_inverse = false;

    for (;;) {
        if (!power && cri_take(p, "^"))
            power = cri_parse_tex_argument(p);
        else if (!base && cri_take(p, "_"))
            base = cri_parse_tex_argument(p);
        else
            break;
        if (!power && !base) return NULL;
    }
    is_inverse = is_angle && power && power->kind == CRI_NEG && power->arg[0]->kind == CRI_NUM &&
                 strcmp(power->arg[0]->text, "1") == 0;
    p->is_angle = is_angle && !is_inverse;
    if (cri_sees(p, "(") || cri_sees(p, "{"))
        m = cri_parse_postfix(p); /* f(x)^2 is (f(x))^2 for no reader of sin(x)^2 but TeX's */
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

static cri_math *root(cri_math_parser *p)
{
    cri_math *n = NULL, *m, *one;

    if (cri_take(p, "[")) {
        n = cri_parse_sum(p);
        if (!n || !cri_take(p, "]")) return NULL;
    }
    cri_skip(p);
    if (isdigit((unsigned char)p->s[p->at]))
        m = cri_number(p); /* all its digits, as people mean it, not TeX */
    else
        m = cri_sees(p, "(") ? cri_parse_postfix(p) : cri_parse_tex_argument(p);
    one = cri_leaf(p, CRI_NUM, "1", 1);
    if (!n) n = cri_leaf(p, CRI_NUM, "2", 1);
    return cri_math_node(p->q, CRI_POW, 2, m, cri_math_node(p->q, CRI_DIV, 2, one, n));
}

static cri_math *two_arguments(cri_math_parser *p, cri_math_kind kind)
{
    cri_math *a = cri_parse_tex_argument(p), *b = a ? cri_parse_tex_argument(p) : NULL;

    return cri_math_node(p->q, kind, 2, a, b);
}

static cri_math *until(cri_math_parser *p, cri_math_kind kind, const char *close)
{
    cri_math *m = cri_parse_sum(p);

    return m && cri_take(p, close) ? cri_math_node(p->q, kind, 1, m, NULL) : NULL;
}

/* \langle 1,2,3 \rangle */
static cri_math *angle_tuple(cri_math_parser *p)
{
    cri_math *m = cri_parse_list(p, CRI_TUPLE, true);

    if (!m || m->kind != CRI_TUPLE || m->op >= 0 || !cri_take(p, "\\rangle")) return NULL;
    m->op = CRI_OPEN_LEFT | CRI_OPEN_RIGHT;
    return m;
}

/* After \mathbb: R, Q, Z, N, C, also Z^+ or N_0; elsewhere a name. */
static cri_math *blackboard(cri_math_parser *p)
{
    const size_t is_braced = cri_take(p, "{");
    const char *s, *letter;
    char name[4] = "";
    size_t k = 1, at;

    cri_skip(p);
    s = letter = p->s + p->at;
    if (is_braced)
        s = cri_braces(p, &k);
    else if (isalpha((unsigned char)*s))
        p->at++;
    else
        return NULL;
    if (!s) return NULL;
    if (k != 1 || !strchr("RQZNC", *letter)) return cri_symbol(p, s, k);
    at = p->at;
    if (!cri_sees(p, "_") && !cri_sees(p, "^")) return cri_leaf(p, CRI_NAMED, s, 1);
    name[0] = *letter;
    p->at++;
    const bool has_braces = cri_take(p, "{");
    name[1] = p->s[p->at];
    if (name[1] && strchr("+-*0", name[1])) {
        p->at++;
        if (!has_braces || cri_take(p, "}")) return cri_leaf(p, CRI_NAMED, name, 2);
    }
    p->at = at;
    return cri_symbol(p, s, k);
}

/* AB} of \overline{AB}: its two ends or more. */
static bool is_segment(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ' ");

    return n >= 2 && s[n] == '}';
}

/* After the name of a command. */
static cri_math *command(cri_math_parser *p, const char *name, size_t n, size_t start)
{
    static const char *const texts[] = {"text",   "mbox",       "mathrm",     "mathbf", "mathit",
                                        "textbf", "textit",     "textrm",     "mathsf", "texttt",
                                        "mathtt", "textnormal", "boldsymbol", "bm",     "hbox"};
    static const char *const accents[] = {
        "vec",      "hat",       "bar",       "overline",          "tilde", "dot",
        "ddot",     "widehat",   "mathcal",   "mathscr",           "check", "overrightarrow",
        "mathfrak", "widetilde", "underline", "overleftrightarrow"};
    static const char *const refused[] = {"to",     "mid",     "Rightarrow", "rightarrow", "forall",
                                          "exists", "implies", "iff",        "cases",      "end",
                                          "mod",    "equiv",   "vdots",      "pmod"};
    const char *s;
    size_t k;

#define IS(word) (n == strlen(word) && memcmp(name, word, n) == 0)
    if (IS("frac") || IS("dfrac") || IS("tfrac") || IS("cfrac")) return two_arguments(p, CRI_DIV);
    if (IS("binom") || IS("dbinom") || IS("tbinom")) return two_arguments(p, CRI_BINOM);
    if (IS("sqrt")) return root(p);
    if (IS("pi")) return cri_leaf(p, CRI_PI, "pi", 2);
    if (IS("imath")) return cri_leaf(p, CRI_I, "i", 1);
    if (IS("infty")) return cri_leaf(p, CRI_INF, "oo", 2);
    if (IS("emptyset") || IS("varnothing")) return cri_leaf(p, CRI_EMPTY, "", 0);
    if (IS("lfloor")) return until(p, CRI_FLOOR, "\\rfloor");
    if (IS("lceil")) return until(p, CRI_CEIL, "\\rceil");
    if (IS("lvert") || IS("vert")) return until(p, CRI_ABS, IS("vert") ? "\\vert" : "\\rvert");
    if (IS("lbrace")) return braced_set(p, "\\rbrace");
    if (IS("langle")) return angle_tuple(p);
    if (IS("ldots") || IS("dots") || IS("cdots")) return cri_leaf(p, CRI_SYM, "...", 3);
    if (IS("begin")) return cri_take(p, "{") ? matrix(p) : NULL;
    if (IS("mathbb")) return blackboard(p);
    if (cri_is_one_of(name, n, texts, CR_COUNT(texts))) return text_symbol(p);
    if (IS("operatorname")) {
        if (!cri_take(p, "{") || !(s = cri_braces(p, &k))) return NULL;
        if (cri_is_one_of(s, k, functions, CR_COUNT(functions))) return function(p, s, k);
        return cri_symbol(p, s, k);
    }
    if (cri_is_one_of(name, n, accents, CR_COUNT(accents))) {
        if (!cri_take(p, "{")) return NULL;
        if (IS("overline") && is_segment(p->s + p->at)) {
            p->at--;
            return cri_primary(p);
        }
        if (!cri_braces(p, &k)) return NULL;
        return cri_symbol(p, p->s + start, p->at - start);
    }
    if (cri_is_one_of(name, n, functions, CR_COUNT(functions))) return function(p, name, n);
    if (IS("sum") || IS("prod")) {
        size_t at = p->at;
        cri_math *m = series(p, name, n);
        if (m || p->q->trouble) return m;
        p->at = at;
    }
    if (cri_is_one_of(name, n, opaques, CR_COUNT(opaques))) return opaque(p, start);
    if (cri_is_one_of(name, n, refused, CR_COUNT(refused)) || n == 0) return NULL;
    return cri_symbol(p, name, n);
#undef IS
}

/* DNA, ABCD: no product of one letter each. */
static bool is_name_of_capitals(const cri_math_parser *p, const char *s, size_t n)
{
    if (n < 3 || isalnum((unsigned char)s[n]) || (s[n] && strchr("^_({'", s[n]))) return false;
    for (size_t i = 0; i < n; i++)
        if (!isupper((unsigned char)s[i])) return false;
    return s == p->s || !isalnum((unsigned char)s[-1]);
}

/* Yes, Monday: a capital letter and small ones, alone. No order of a product's letters counts. */
static bool is_word(const cri_math_parser *p, const char *s, size_t n)
{
    const char *before = s;

    if (n < 3 || !isupper((unsigned char)*s) || (s[n] && strchr("^_({", s[n])) ||
        cri_is_one_of(s + 1, n - 1, functions, CR_COUNT(functions)))
        return false;
    for (size_t i = 1; i < n; i++)
        if (!islower((unsigned char)s[i])) return false;
    while (before > p->s && before[-1] == ' ')
        before--;
    return before == p->s || !(isalnum((unsigned char)before[-1]) || strchr("})]", before[-1]));
}

/* A run of letters: a function's name, pi, a word, or one variable a letter. */
static cri_math *letters(cri_math_parser *p)
{
    const char *s = p->s + p->at;
    size_t n = cri_name_bytes(s);
    uint32_t c;

    if (n >= 2 && cri_is_one_of(s, n, functions, CR_COUNT(functions)) && n != 2) {
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
        return cri_leaf(p, CRI_PI, "pi", 2);
    }
    if (is_word(p, s, n) || is_name_of_capitals(p, s, n)) {
        p->at += n;
        return cri_symbol(p, s, n);
    }
    if (n) {
        p->at++;
        if (*s == 'e') return cri_leaf(p, CRI_E, "e", 1);
        if (*s == 'i') return cri_leaf(p, CRI_I, "i", 1);
        return cri_symbol(p, s, 1);
    }
    n = (size_t)cr_utf8_decode(s, strlen(s), &c);
    if (n < 2) return NULL;
    p->at += n;
    if (c == 0x3C0) return cri_leaf(p, CRI_PI, "pi", 2);
    if (c == 0x221E) return cri_leaf(p, CRI_INF, "oo", 2);
    if (c == 0x2205) return cri_leaf(p, CRI_EMPTY, "", 0);
    return cri_symbol(p, s, n);
}

cri_math *cri_primary(cri_math_parser *p)
{
    const char *s;
    cri_math *m = NULL;
    size_t start;

    if (!cri_deeper(p)) return NULL;
    cri_skip(p);
    start = p->at;
    s = p->s + start;
    if (isdigit((unsigned char)*s) || (*s == '.' && isdigit((unsigned char)s[1]))) {
        m = cri_number(p);
    } else if ((m = cri_hexadecimal(p, start))) {
        ;
    } else if (*s == '(') {
        p->at++;
        m = bracket(p, '(');
    } else if (*s == '[' || *s == ']') {
        p->at++;
        m = bracket(p, *s);
    } else if (*s == '{') {
        p->at++;
        m = cri_parse_list(p, CRI_SET, true);
        if (m && !cri_take(p, "}")) m = NULL;
        if (m && m->kind == CRI_SET && m->op < 0) m->op = 1;
    } else if (strncmp(s, "\\{", 2) == 0) {
        p->at += 2;
        m = braced_set(p, "\\}");
    } else if (*s == '|' || strncmp(s, "\\|", 2) == 0) {
        const char *bar = *s == '|' ? "|" : "\\|";
        p->at += strlen(bar);
        p->bars++;
        m = cri_parse_sum(p);
        p->bars--;
        m = m && cri_take(p, bar) ? cri_math_node(p->q, CRI_ABS, 1, m, NULL) : NULL;
    } else if (*s == '\\') {
        size_t n = cri_name_bytes(s + 1);
        p->at += 1 + n;
        m = command(p, s + 1, n, start);
    } else {
        m = letters(p);
    }
    p->depth--;
    return m;
}

size_t cri_modulus_at(cri_math_parser *p)
{
    static const char *const words[] = {
        "\\bmod",        "\\mod",          "\\text{mod}",         "\\text{mod }", "\\text{ mod }",
        "\\mathrm{mod}", "\\mathrm{mod }", "\\operatorname{mod}", "mod ",         NULL};
    const size_t at = p->at;
    size_t n = 0;

    if (cri_take(p, "(") && cri_take_any(p, words)) n = p->at - at;
    p->at = at;
    return n;
}

bool cri_starts_primary(cri_math_parser *p)
{
    static const char *const ends[] = {
        "times",     "cdot",  "div", "le",       "leq",        "ge",         "geq",    "neq",
        "ne",        "lt",    "gt",  "in",       "notin",      "cup",        "cap",    "setminus",
        "backslash", "pm",    "mp",  "rfloor",   "rceil",      "rvert",      "rbrace", "end",
        "approx",    "bmod",  "mod", "leqslant", "geqslant",   "circ",       "degree", "subset",
        "subseteq",  "equiv", "mid", "to",       "rightarrow", "Rightarrow", "ast",    "sim",
        "vert",      "land",  "lor", "wedge",    "vee",        "pmod",       "rangle"};
    const char *s;
    uint32_t c;

    cri_skip(p);
    s = p->s + p->at;
    if (*s == '|') return p->bars == 0 && !p->is_given;
    if ((*s == '[' && p->is_interval) || (*s == '(' && cri_modulus_at(p))) return false;
    if (isalnum((unsigned char)*s) || (*s && strchr("([{", *s))) return true;
    if (*s == '.') return isdigit((unsigned char)s[1]);
    if (*s == '\\') {
        size_t n = cri_name_bytes(s + 1);
        if (n == 0) return s[1] == '{' || (s[1] == '|' && p->bars == 0);
        return !cri_is_one_of(s + 1, n, ends, CR_COUNT(ends));
    }
    /* signs that are not letters: operators, relations, punctuation */
    if ((unsigned char)*s < 0x80 || !cr_utf8_decode(s, strlen(s), &c)) return false;
    return c == 0x3C0 || c == 0x221E || c == 0x2205 || (c >= 0x370 && c < 0x400) || c >= 0x3040;
}
