/* math_parse.c -- LaTeX and plain text to trees, by recursive descent (see math_impl.h).
 *
 *     list     element (, or ; or \lor element)*     a set, if more than one; 1,2;3,4: of tuples
 *     element  operand (relation operand)*           read twice if it holds +-: both signs
 *     operand  sum (cup, cap or minus sum)*
 *     sum      product (+ or - product)*
 *     product  run (* or / run)*
 *     run      postfix postfix ..                    2x, 1 1/2, 3(x-2)
 *     postfix  primary with ^, _, !, percent, degree
 *
 * What follows a bracket decides what it is: (x) groups, (1,2) is a tuple or an open interval.
 */
#include "rewards/math/math_parse_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- operators ---- */

/* TeX's argument: a group, a command or one character; numbers in exponents are whole. */
cri_math *cri_parse_tex_argument(cri_math_parser *p)
{
    cri_math *m;

    cri_skip(p);
    if (isdigit((unsigned char)p->s[p->at])) {
        p->at++;
        return cri_leaf(p, CRI_NUM, p->s + p->at - 1, 1);
    }
    if (p->s[p->at] == '-' || p->s[p->at] == '+') {
        bool is_minus = p->s[p->at++] == '-';
        m = cri_primary(p);
        return is_minus ? cri_math_node(p->q, CRI_NEG, 1, m, NULL) : m;
    }
    return cri_primary(p);
}

static bool take_degree(cri_math_parser *p)
{
    static const char *const signs[] = {"^\\circ",  "^{\\circ}", "\\circ", "\xC2\xB0",
                                        "\\degree", "^\\degree", NULL};
    size_t at = p->at;

    if (cri_take_any(p, signs)) return true;
    if (cri_take(p, "^") && cri_take(p, "{") && cri_take(p, "\\circ") && cri_take(p, "}"))
        return true;
    p->at = at;
    return false;
}

static cri_math *with_subscript(cri_math_parser *p, cri_math *m)
{
    size_t start = p->at, n;
    char *name;

    if (cri_take(p, "{")) {
        start = p->at;
        if (!cri_braces(p, &n)) return NULL;
    } else {
        cri_math *ignored = cri_parse_tex_argument(p);
        if (!ignored) return NULL;
        while (isdigit((unsigned char)p->s[p->at]))
            p->at++; /* x_12 */
        n = p->at - start;
    }
    if (m->kind == CRI_NUM) return cri_in_base(p, m->text, p->s + start, n);
    if (m->kind != CRI_SYM && m->kind != CRI_E && m->kind != CRI_I) return m;
    name = cr_arena_alloc(p->q->arena, strlen(m->text) + n + 2);
    memcpy(name, m->text, strlen(m->text));
    name[strlen(m->text)] = '_';
    memcpy(name + strlen(m->text) + 1, p->s + start, n);
    return cri_symbol(p, name, strlen(m->text) + 1 + n);
}

/* f': another name; (fg)': a function of fg. */
static cri_math *with_prime(cri_math_parser *p, cri_math *m)
{
    char *name;

    if (m->kind == CRI_SYM) {
        name = cr_arena_alloc(p->q->arena, strlen(m->text) + 2);
        memcpy(name, m->text, strlen(m->text));
        memcpy(name + strlen(m->text), "'", 2);
        return cri_leaf(p, CRI_SYM, name, strlen(name));
    }
    if ((m = cri_math_node(p->q, CRI_FUNC, 1, m, NULL))) m->text = "'";
    return m;
}

/* 25%: a hundredth of 25, or 25. */
static cri_math *percent(cri_math_parser *p, cri_math *m)
{
    m = cri_math_node(p->q, CRI_UNIT, 2, m, cri_leaf(p, CRI_NUM, "0.01", 4));
    if (m) m->text = "%";
    return m;
}

cri_math *cri_parse_postfix(cri_math_parser *p)
{
    cri_math *m = cri_primary(p);

    while (m) {
        cri_skip(p);
        if (take_degree(p)) {
            if (p->is_angle) {
                cri_math *turn = cri_math_node(p->q, CRI_DIV, 2, cri_leaf(p, CRI_PI, "pi", 2),
                                               cri_leaf(p, CRI_NUM, "180", 3));
                m = cri_math_node(p->q, CRI_MUL, 2, m, turn);
            }
        } else if (cri_take(p, "^") || cri_take(p, "**")) {
            cri_skip(p);
            m = cri_math_node(p->q, CRI_POW, 2, m,
                              isdigit((unsigned char)p->s[p->at]) ? cri_number(p)
                                                                  : cri_parse_tex_argument(p));
        } else if (cri_take(p, "_")) {
            m = with_subscript(p, m);
        } else if (p->s[p->at] == '!' && p->s[p->at + 1] != '=') {
            p->at++;
            m = cri_math_node(p->q, CRI_FACT, 1, m, NULL);
        } else if (cri_take(p, "'")) {
            m = with_prime(p, m);
        } else if (cri_take(p, "\\%") || cri_take(p, "%")) {
            m = percent(p, m);
        } else {
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

static bool is_whole(const cri_math *m)
{
    return m->kind == CRI_NUM && strlen(m->text) < 10 && !strchr(m->text, '.');
}

/* 1/2 after the 5 of 5 1/2, where m is the 1: the fraction. NULL: it is not one, or not below 1. */
static cri_math *fraction_of_mixed(cri_math_parser *p, const cri_math *whole, cri_math *m)
{
    size_t at = p->at;
    cri_math *below;

    if (is_whole(whole) && is_whole(m) && cri_take(p, "/")) {
        cri_skip(p);
        below = isdigit((unsigned char)p->s[p->at]) ? cri_number(p) : NULL;
        if (below && is_whole(below) && atoi(m->text) < atoi(below->text) &&
            !(p->s[p->at] && strchr("/^_!", p->s[p->at])))
            return cri_math_node(p->q, CRI_DIV, 2, m, below);
    }
    p->at = at;
    return NULL;
}

/* U(0,1) after U, P(X=2) after P: the application; NULL: m is no argument. end: of the name in the text. */
static cri_math *application(cri_math_parser *p, const cri_math *name, cri_math *m, size_t end)
{
    const char *s = p->s + end;
    cri_math *f;

    if (end > 5 && memcmp(s - 5, "\\left", 5) == 0) s -= 5;
    while (s > p->s && s[-1] == ' ')
        s--;
    if (name->kind != CRI_SYM) return NULL;
    if (m->kind == CRI_TUPLE) {
        f = m;
        f->kind = CRI_FUNC; /* N and U are distributions */
        f->op = s > p->s && isupper((unsigned char)s[-1]) && strlen(name->text) == 1 &&
                !strchr("nu", *name->text);
    } else {
        f = m->kind == CRI_REL ? cri_math_node(p->q, CRI_FUNC, 1, m, NULL) : NULL;
    }
    if (f) f->text = name->text;
    return f;
}

static cri_math *parse_run(cri_math_parser *p)
{
    cri_math_nodes all = {0};
    size_t end = 0; /* of the factor before */

    cri_skip(p);
    if (p->s[p->at] == '+' || p->s[p->at] == '-' || strncmp(p->s + p->at, "\xE2\x88\x92", 3) == 0) {
        bool is_plus = p->s[p->at] == '+';
        cri_math *m;
        p->at += p->s[p->at] == '+' || p->s[p->at] == '-' ? 1 : 3;
        if (!cri_deeper(p)) return NULL;
        m = parse_run(p);
        p->depth--;
        return is_plus ? m : cri_math_node(p->q, CRI_NEG, 1, m, NULL);
    }
    do {
        size_t at = p->at;
        bool is_fraction =
            cri_sees(p, "\\frac") || cri_sees(p, "\\dfrac") || cri_sees(p, "\\tfrac");
        cri_math *m = cri_parse_postfix(p), **last = all.num ? &all.item[all.num - 1] : NULL, *f;
        if (at == p->at) return NULL;
        if (m && last && (f = application(p, *last, m, end))) {
            *last = f;
        } else if (m && last && (f = fraction_of_mixed(p, *last, m))) {
            *last = cri_math_node(p->q, CRI_ADD, 2, *last, f);
        } else if (m && last && is_fraction && is_mixed(*last, m)) {
            *last = cri_math_node(p->q, CRI_ADD, 2, *last, m);
        } else if (!cri_push(p, &all, m)) {
            return NULL;
        }
        if (last && !*last) return NULL;
        end = p->at;
    } while (cri_starts_primary(p));
    return all.num == 1 ? all.item[0] : cri_from_nodes(p, CRI_MUL, &all);
}

/* 3 \\pmod{7}, 3 (\\text{mod } 7) */
static cri_math *with_modulus(cri_math_parser *p, cri_math *m)
{
    size_t n = cri_modulus_at(p);
    cri_math *modulus;

    p->at += n;
    if (n) {
        modulus = cri_parse_sum(p);
        if (!modulus || !cri_take(p, ")")) return NULL;
    } else {
        cri_take(p, "\\pmod");
        cri_skip(p);
        modulus = isdigit((unsigned char)p->s[p->at]) ? cri_number(p) : cri_parse_tex_argument(p);
    }
    m = cri_math_node(p->q, CRI_MOD, 2, m, modulus);
    if (m) m->op = 1;
    return m;
}

cri_math *cri_parse_product(cri_math_parser *p)
{
    static const char *const times[] = {"\\times",  "\\cdot",   "*", "\\ast",
                                        "\xC3\x97", "\xC2\xB7", NULL},
                             *const over[] = {"/", "\\div", ":", "\xC3\xB7", NULL},
                             *const mod[] = {"\\bmod", "\\mod", NULL};
    cri_math *m = parse_run(p);

    while (m) {
        bool is_ratio = cri_sees(p, ":");
        if (is_ratio && p->is_set) break;
        if (cri_sees(p, "**")) return m;
        if (cri_take_any(p, times)) {
            m = cri_math_node(p->q, CRI_MUL, 2, m, parse_run(p));
        } else if (cri_take_any(p, over)) {
            m = cri_math_node(p->q, CRI_DIV, 2, m, parse_run(p));
            if (m) m->op = is_ratio;
        } else if (cri_modulus_at(p) || cri_sees(p, "\\pmod")) {
            m = with_modulus(p, m);
        } else if (cri_take_any(p, mod)) {
            m = cri_math_node(p->q, CRI_MOD, 2, m, parse_run(p));
        } else {
            break;
        }
    }
    return m;
}

cri_math *cri_parse_sum(cri_math_parser *p)
{
    static const char *const plus_minus[] = {"\\pm", "\xC2\xB1", NULL};
    cri_math_nodes all = {0};
    bool is_minus = false;

    if (!cri_deeper(p)) return NULL;
    for (;;) {
        bool is_signed = true;
        cri_math *m;
        if (cri_take_any(p, plus_minus)) {
            p->has_plus_minus = true;
            is_minus = p->is_minus;
        } else if (cri_take(p, "\\mp")) {
            p->has_plus_minus = true;
            is_minus = !p->is_minus;
        } else if (all.num && cri_take(p, "+")) {
            is_minus = false;
        } else if (all.num && (cri_take(p, "-") || cri_take(p, "\xE2\x88\x92"))) {
            is_minus = true;
        } else {
            is_signed = false;
        }
        if (all.num && !is_signed) break;
        m = cri_parse_product(p);
        if (m && is_minus) m = cri_math_node(p->q, CRI_NEG, 1, m, NULL);
        if (!cri_push(p, &all, m)) return NULL;
    }
    p->depth--;
    return all.num == 1 ? all.item[0] : cri_from_nodes(p, CRI_ADD, &all);
}

static cri_math *parse_operand(cri_math_parser *p)
{
    static const char *const joins[] = {"\\cup", "\xE2\x88\xAA", NULL},
                             *const meets[] = {"\\cap", "\xE2\x88\xA9", NULL},
                             *const minus[] = {"\\setminus", "\\backslash", "\\\\", NULL};
    cri_math *m = cri_parse_sum(p);

    while (m) {
        if (cri_take_any(p, joins))
            m = cri_math_node(p->q, CRI_UNION, 2, m, cri_parse_sum(p));
        else if (cri_take_any(p, meets))
            m = cri_math_node(p->q, CRI_MEET, 2, m, cri_parse_sum(p));
        else if (!(p->has_rows && cri_sees(p, "\\\\")) && cri_take_any(p, minus))
            m = cri_math_node(p->q, CRI_MINUS, 2, m, cri_parse_sum(p));
        else
            break;
    }
    return m;
}

/* One letter a relation: = < > l(e) g(e) n(e) i(n) a(pprox) c(ongruent) m(id). 0: none here. */
static char take_relation(cri_math_parser *p)
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
                 {"\\equiv", 'c'},
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
        if (cri_take(p, signs[i].text)) return signs[i].letter;
    return p->is_given && (cri_take(p, "|") || cri_take(p, "\\mid")) ? 'm' : 0;
}

/* x, f(x), |AB|, A/B: it has no value of its own. */
static bool is_name(const cri_math *m)
{
    if (m->kind == CRI_SYM) return true;
    if (m->kind != CRI_MUL && m->kind != CRI_DIV && m->kind != CRI_ABS) return false;
    for (int i = 0; i < m->num_args; i++)
        if (!is_name(m->arg[i])) return false;
    return true;
}

/* x \\equiv 3 \\pmod 7, 3 \\pmod 7; NULL: it is something else. */
static cri_math *congruence(cri_math_parser *p, const cri_math_nodes *l, char sign)
{
    cri_math *last = l->item[l->num - 1], *m;
    cri_math_nodes all = {0};

    if (last->kind != CRI_MOD || l->num > 2 || !(last->op || sign == 'c')) return NULL;
    if (l->num == 2 && (!cri_push(p, &all, l->item[0]) || sign == '<' || sign == '>')) return NULL;
    if (!cri_push(p, &all, last) || !cri_push(p, &all, last->arg[1])) return NULL;
    m = cri_from_nodes(p, CRI_CONGRUENT, &all);
    return m;
}

/* In rows: the sign at the beginning of the next one goes on with this one. */
static char take_sign(cri_math_parser *p)
{
    size_t at = p->at;
    char sign = take_relation(p);

    if (sign || !p->has_rows || !cri_take(p, "\\\\")) return sign;
    sign = take_relation(p);
    if (!sign) p->at = at;
    return sign;
}

cri_math *cri_parse_relation(cri_math_parser *p)
{
    cri_math_nodes all = {0};
    cr_buf signs = {0};
    cri_math *m;
    char sign, last = 0;

    if (!cri_push(p, &all, parse_operand(p))) return NULL;
    while ((sign = take_sign(p))) {
        cri_math *right = parse_operand(p);
        if (!right) {
            cr_buf_free(&signs);
            return NULL;
        }
        if (sign == 'a') { /* x is about 11; elsewhere what is about the same adds nothing */
            if (all.num > 1 || !is_name(all.item[0])) continue;
            sign = '=';
        }
        last = sign;
        cri_push(p, &all, right);
        cr_buf_addc(&signs, sign == 'c' ? '=' : sign);
    }
    m = congruence(p, &all, last);
    if (!m && all.num == 1) return all.item[0];
    if (!m) m = cri_from_nodes(p, CRI_REL, &all);
    if (m && m->kind == CRI_REL)
        m->text = cr_arena_strndup(p->q->arena, signs.data, signs.num_bytes);
    cr_buf_free(&signs);
    return m;
}

/* , or ; or \lor, which is remembered; 0: none here. */
static char take_separator(cri_math_parser *p, cri_math_nodes *l)
{
    char c;

    cri_skip(p);
    c = p->s[p->at];
    if (c == ',' || c == ';') {
        p->at++;
        if (p->has_rows) cri_take(p, "\\\\");
        return c;
    }
    if (c != '\\') return 0;
    if (p->has_rows && cri_take(p, "\\\\")) return ',';
    if (cri_take(p, "\\lor")) return l->has_or = true, ',';
    return cri_take(p, "\\land") ? ',' : 0;
}

/* The elements from the group_start-th on are one: p=5,q=2 of p=5,q=2;p=7,q=2. */
static bool close_group(cri_math_parser *p, cri_math_nodes *l, int group_start)
{
    cri_math_nodes group = {.item = l->item + group_start, .num = l->num - group_start};
    cri_math *m;

    if (group.num < 2) return true;
    if (!(m = cri_from_nodes(p, CRI_TUPLE, &group))) return false;
    m->arg = cr_arena_alloc(p->q->arena, (size_t)group.num * sizeof *m->arg);
    memcpy(m->arg, group.item, (size_t)group.num * sizeof *m->arg);
    m->op = CRI_OPEN_LEFT | CRI_OPEN_RIGHT;
    l->item[group_start] = m;
    l->num = group_start + 1;
    return true;
}

/* One element; with +- in it both. False: no element. */
static bool push_element(cri_math_parser *p, cri_math_nodes *l, cri_math *m, size_t at)
{
    if (!p->has_plus_minus) return cri_push(p, l, m);
    for (int sign = 0; sign < 2; sign++) {
        p->at = at;
        p->is_minus = sign;
        if (!cri_push(p, l, cri_parse_relation(p))) return false;
    }
    return true;
}

/* One element stays itself; more become a node of that kind with op -1. A group of one element
 * leaves +- to the list around it, else each +- makes two elements. */
cri_math *cri_parse_list(cri_math_parser *p, cri_math_kind kind, bool is_group)
{
    cri_math_nodes all = {0};
    cri_math *m;
    bool is_minus = p->is_minus, had = p->has_plus_minus, has_groups = false;
    int group_start = 0;
    char separator = 0;

    do {
        size_t at = p->at;
        p->has_plus_minus = false;
        m = cri_parse_relation(p);
        if (!m) return NULL;
        if (p->has_plus_minus && is_group && !separator) { /* alone in it? */
            size_t end = p->at;
            if (!take_separator(p, &all)) {
                p->has_plus_minus = true;
                return m;
            }
            p->at = end;
        }
        if (!push_element(p, &all, m, at)) return NULL;
        separator = take_separator(p, &all);
        if (separator && cri_sees(p, "\\end")) separator = 0; /* after the last row */
        p->is_interval = p->is_interval || (separator && kind == CRI_TUPLE);
        if (kind == CRI_SET && (separator == ';' || (has_groups && !separator))) {
            has_groups = has_groups || all.num - group_start > 1;
            if (has_groups && !close_group(p, &all, group_start)) return NULL;
            group_start = all.num;
        }
    } while (separator);
    p->is_minus = is_minus;
    p->has_plus_minus = had;
    if (all.num == 1) return all.item[0];
    m = cri_from_nodes(p, kind, &all);
    if (m) m->op = -1;
    if (m && all.has_or) m->text = "or";
    return m;
}

/* 12,345.6 as a whole, perhaps after "x =": a number, not a set. */
static char *without_thousands(const char *clean)
{
    const char *start = strrchr(clean, '='), *p;
    char *out, *to;
    int groups = 0, digits = 0;

    start = start ? start + 1 : clean;
    p = start + strspn(start, " -+");
    while (isdigit((unsigned char)*p))
        p++, digits++;
    if (digits == 0 || digits > 3 || p[-digits] == '0') return NULL;
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
    cri_math_parser p = {.q = q, .s = number ? number : clean};
    cri_math *m = NULL;

    if (strlen(clean) > CRI_MATH_MAX_BYTES)
        q->trouble = "the expression is too long";
    else
        m = cri_parse_list(&p, CRI_SET, false);
    cri_skip(&p);
    if (m && p.s[p.at]) m = NULL; /* something is left */
    if (m && m->kind == CRI_SET && m->op < 0) m->op = 1;
    cr_free(number);
    return m;
}
