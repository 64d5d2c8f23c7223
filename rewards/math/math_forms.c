/* math_forms.c -- forms of which one side may leave out a part: the unit, the name of a point, where n lies, what
 * constants are called (see math_impl.h).
 */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <string.h>

/* ---- amounts ---- */

/* 25%, -25%: the unit outside; NULL: it is none. */
static cri_math *unit_of(cri_question *q, cri_math *m)
{
    cri_math *unit = m->kind == CRI_NEG ? m->arg[0] : m, *copy;

    if (unit->kind != CRI_UNIT || m == unit) return unit->kind == CRI_UNIT ? unit : NULL;
    copy = cri_math_node(q, CRI_UNIT, 2, cri_math_node(q, CRI_NEG, 1, unit->arg[0], NULL),
                         unit->arg[1]);
    if (copy) copy->text = unit->text;
    return copy;
}

/* In the smallest unit of its dimension; a percentage as a number. */
static cri_math *in_small_units(cri_question *q, const cri_math *unit)
{
    return cri_math_node(q, CRI_MUL, 2, unit->arg[0], unit->arg[1]);
}

static bool are_both_equal(cri_question *q, cri_math *gold, cri_math *answer)
{
    return gold && answer && cri_math_equal(q, gold, answer);
}

/* x and y: the sides as amounts, NULL: a side is none. */
static cri_answer are_amounts_equal(cri_question *q, cri_math *gold, cri_math *x, cri_math *answer,
                                    cri_math *y)
{
    const cri_math *other = x ? answer : gold;

    if (x && y) {
        if (strcmp(x->text, y->text) != 0) return CRI_NO;
        if (strcmp(x->arg[1]->text, y->arg[1]->text) == 0)
            return cri_math_equal(q, x->arg[0], y->arg[0]) ? CRI_YES : CRI_NO;
        return are_both_equal(q, in_small_units(q, x), in_small_units(q, y)) ? CRI_YES : CRI_NO;
    }
    if (!cri_math_is_expression(other)) return CRI_UNKNOWN;
    if (are_both_equal(q, x ? x->arg[0] : gold, y ? y->arg[0] : answer)) return CRI_YES;
    if (strcmp((x ? x : y)->text, "%") != 0) return CRI_NO;
    return are_both_equal(q, x ? in_small_units(q, x) : gold, y ? in_small_units(q, y) : answer)
               ? CRI_YES
               : CRI_NO;
}

/* ---- points ---- */

/* A(1,2) as (1,2) for a tuple, and as A = (1,2) for an equation; else what it is. */
static cri_math *point_for(cri_question *q, cri_math *m, const cri_math *other)
{
    cri_math *tuple, *name;

    if (m->kind != CRI_FUNC || m->op != 1 || m->num_args < 2) return m;
    if (other->kind != CRI_TUPLE && other->kind != CRI_REL) return m;
    if (!(tuple = cri_math_node(q, CRI_TUPLE, 0, NULL, NULL))) return m;
    tuple->arg = m->arg;
    tuple->num_args = m->num_args;
    tuple->height = m->height;
    tuple->op = CRI_OPEN_LEFT | CRI_OPEN_RIGHT;
    if (other->kind == CRI_TUPLE) return tuple;
    if (!(name = cri_math_node(q, CRI_SYM, 0, NULL, NULL))) return m;
    name->text = m->text;
    if (!(name = cri_math_node(q, CRI_REL, 2, name, tuple))) return m;
    name->text = "=";
    return name;
}

/* ---- where a variable lies ---- */

static bool is_domain(const cri_math *m)
{
    return m->kind == CRI_REL && strcmp(m->text, "i") == 0 && m->arg[0]->kind == CRI_SYM &&
           m->arg[1]->kind == CRI_NAMED;
}

/* Of "x = n pi, n \in Z" what is not n \in Z, which goes to *domain; m, if it is no such list. */
static cri_math *without_domain(cri_question *q, cri_math *m, const cri_math **domain)
{
    cri_math *rest;
    int num = 0;

    *domain = NULL;
    if (m->kind != CRI_SET || m->op != 1) return m;
    for (int i = 0; i < m->num_args; i++) {
        if (is_domain(m->arg[i])) *domain = m->arg[i];
        num += !is_domain(m->arg[i]);
    }
    if (!*domain || num == 0 || num + 1 != m->num_args) return *domain = NULL, m;
    if (!(rest = cri_math_node(q, CRI_SET, 0, NULL, NULL))) return m;
    rest->op = 1;
    rest->text = m->text;
    rest->height = m->height;
    rest->arg = cr_arena_alloc(q->arena, (size_t)num * sizeof *rest->arg);
    for (int i = 0; i < m->num_args; i++)
        if (m->arg[i] != *domain) rest->arg[rest->num_args++] = m->arg[i];
    return num == 1 ? rest->arg[0] : rest;
}

static bool has_symbol(const cri_math *m, const char *name)
{
    bool has = m->kind == CRI_SYM && strcmp(m->text, name) == 0;

    for (int i = 0; i < m->num_args && !has; i++)
        has = has_symbol(m->arg[i], name);
    return has;
}

static void rename_symbol(cri_math *m, const char *from, const char *to)
{
    for (int i = 0; i < m->num_args; i++)
        rename_symbol(m->arg[i], from, to);
    if (m->kind == CRI_SYM && strcmp(m->text, from) == 0) m->text = to;
}

/* 2k pi, k \in Z and 2n pi, n \in Z: what is left of both, of which each variable may have its own name. */
static bool are_equal_in(cri_question *q, cri_math *a, const cri_math *in_a, cri_math *b,
                         const cri_math *in_b)
{
    const char *name_a = in_a ? in_a->arg[0]->text : "", *name_b = in_b ? in_b->arg[0]->text : "";
    bool is_equal;

    if (!in_a || !in_b || strcmp(name_a, name_b) == 0) return cri_math_equal(q, a, b);
    if (has_symbol(b, name_a)) return false;
    rename_symbol(b, name_b, name_a);
    is_equal = cri_math_equal(q, a, b);
    rename_symbol(b, name_a, name_b);
    return is_equal;
}

/* ---- functions in parts, congruences ---- */

static bool are_cases_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    enum { MAX_NUM = 64 };
    bool is_used[MAX_NUM] = {false};

    if (a->kind != b->kind || a->num_args != b->num_args || a->num_args > MAX_NUM) return false;
    for (int i = 0; i < a->num_args; i += 2) {
        bool is_found = false;
        for (int k = 0; k < b->num_args && !is_found; k += 2)
            if (!is_used[k] && cri_math_equal(q, a->arg[i], b->arg[k]) &&
                cri_math_equal(q, a->arg[i + 1], b->arg[k + 1]))
                is_found = is_used[k] = true;
        if (!is_found) return false;
    }
    return true;
}

/* What is congruent may be left out: 3 (mod 7). */
static bool are_congruences_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    if (a->kind != b->kind) return false;
    for (int i = 1; i <= (a->num_args < b->num_args ? a->num_args : b->num_args); i++)
        if (!cri_math_equal(q, a->arg[a->num_args - i], b->arg[b->num_args - i])) return false;
    return true;
}

cri_answer cri_forms_equal(cri_question *q, cri_math *gold, cri_math *answer)
{
    cri_math *x = unit_of(q, gold), *y = unit_of(q, answer), *a, *b;
    const cri_math *in_a, *in_b;

    if (x || y) return are_amounts_equal(q, gold, x, answer, y);
    if (gold->kind == CRI_REL || answer->kind == CRI_REL)
        ; /* f(x) = .. */
    else if (gold->kind == CRI_CASES || answer->kind == CRI_CASES)
        return are_cases_equal(q, gold, answer) ? CRI_YES : CRI_NO;
    if (gold->kind == CRI_CONGRUENT || answer->kind == CRI_CONGRUENT)
        return are_congruences_equal(q, gold, answer) ? CRI_YES : CRI_NO;
    a = point_for(q, gold, answer);
    b = point_for(q, answer, gold);
    if (a != gold || b != answer) return cri_math_equal(q, a, b) ? CRI_YES : CRI_NO;
    a = without_domain(q, gold, &in_a);
    b = without_domain(q, answer, &in_b);
    if (in_a && in_b && strcmp(in_a->arg[1]->text, in_b->arg[1]->text) != 0) return CRI_NO;
    if (a != gold || b != answer) return are_equal_in(q, a, in_a, b, in_b) ? CRI_YES : CRI_NO;
    return CRI_UNKNOWN;
}

/* ---- constants of another name ---- */

enum { MAX_NAMES = 3, MAX_LEAVES = 100 };

typedef struct names {
    const char *text[MAX_NAMES + 1];
    int num;
    bool has_index; /* one is c_1, c_2 .. */
    cri_math *leaf[MAX_LEAVES + 1];
    int of[MAX_LEAVES + 1], num_leaves; /* which name each leaf has */
    bool has_others;                    /* another symbol is there */
} names;

static bool is_indexed(const char *s)
{
    return (*s == 'c' || *s == 'k') && s[1] == '_' && isdigit((unsigned char)s[2]) && !s[3];
}

/* Constants of m: c_1, k_2; a, b, c, d, k, if the other side does not have them. */
static void collect(cri_math *m, const cri_math *other, names *out)
{
    int i = 0;

    for (int k = 0; k < m->num_args; k++)
        collect(m->arg[k], other, out);
    if (m->kind != CRI_SYM) return;
    if (!is_indexed(m->text) &&
        !(strchr("abcdk", *m->text) && !m->text[1] && !has_symbol(other, m->text))) {
        out->has_others = true;
        return;
    }
    out->has_index = out->has_index || is_indexed(m->text);
    while (i < out->num && strcmp(out->text[i], m->text) != 0)
        i++;
    if (i == out->num && out->num <= MAX_NAMES) out->text[out->num++] = m->text;
    if (i > MAX_NAMES || out->num_leaves > MAX_LEAVES) return;
    out->of[out->num_leaves] = i;
    out->leaf[out->num_leaves++] = m;
}

bool cri_math_equal_renamed(cri_question *q, cri_math *gold, cri_math *answer)
{
    static const int orders[][MAX_NAMES] = {{0, 1, 2}, {1, 0, 2}, {2, 1, 0},
                                            {0, 2, 1}, {1, 2, 0}, {2, 0, 1}};
    static const int num_orders[] = {0, 1, 2, 6};
    names x = {.num = 0}, y = {.num = 0};
    bool is_equal = false;

    collect(gold, answer, &x);
    collect(answer, gold, &y);
    if (x.num == 0 || x.num != y.num || x.num > MAX_NAMES || !(x.has_index || y.has_index) ||
        !x.has_others || x.num_leaves > MAX_LEAVES || y.num_leaves > MAX_LEAVES)
        return false;
    for (int i = 0; i < num_orders[x.num] && !is_equal; i++) {
        for (int k = 0; k < y.num_leaves; k++)
            y.leaf[k]->text = x.text[orders[i][y.of[k]]];
        is_equal = cri_math_equal(q, gold, answer);
    }
    for (int k = 0; k < y.num_leaves; k++)
        y.leaf[k]->text = y.text[y.of[k]];
    return is_equal;
}
