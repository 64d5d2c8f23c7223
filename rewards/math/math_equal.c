/* math_equal.c -- is the answer right? Two trees compared as Math-Verify does (see math_impl.h).
 *
 * The gold answer decides the form: x = 5 answers 5, and 5 answers x = 5; 1 < x < 2 and (1,2) are
 * the same; (1,2) is a point or an open interval, whichever the other side is. A decimal of six
 * places and six digits or more stands for what is rounded to it, everything else is exact.
 */
#include "rewards/math/math_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 200 };

/* ---- expressions ---- */

static bool is_same_tree(const cri_math *a, const cri_math *b)
{
    if (a->kind != b->kind || a->op != b->op || a->num_args != b->num_args ||
        strcmp(a->text, b->text) != 0)
        return false;
    for (int i = 0; i < a->num_args; i++)
        if (!is_same_tree(a->arg[i], b->arg[i])) return false;
    return true;
}

static bool is_letter(const cri_math *m)
{
    return m->kind == CRI_SYM || m->kind == CRI_E || m->kind == CRI_I;
}

/* A word: \text{yes} is one symbol, Yes a product of letters. False: it is not a word. */
static bool word_of(const cri_math *m, char *out, size_t size)
{
    size_t n = strlen(out);

    if (is_letter(m)) {
        if (n + strlen(m->text) >= size) return false;
        memcpy(out + n, m->text, strlen(m->text) + 1);
        return true;
    }
    if (m->kind != CRI_MUL) return false;
    for (int i = 0; i < m->num_args; i++)
        if (!word_of(m->arg[i], out, size)) return false;
    return true;
}

static bool is_decimal(const cri_math *m)
{
    if (m->kind == CRI_NEG) m = m->arg[0];
    return m->kind == CRI_NUM && strchr(m->text, '.');
}

int cri_math_places(const cri_math *m)
{
    enum { ENOUGH = 6 }; /* places, and digits that are not zeros before them */
    const char *text, *point;
    size_t num_digits = 0, places;

    if (!is_decimal(m)) return 0;
    text = m->kind == CRI_NEG ? m->arg[0]->text : m->text;
    point = strchr(text, '.');
    places = strlen(point + 1);
    for (const char *c = text; *c; c++)
        num_digits += isdigit((unsigned char)*c) && (num_digits || *c != '0');
    return places >= ENOUGH && num_digits >= ENOUGH && places < 40 ? (int)places : 0;
}

/* Places to which two numbers have to agree, one of which is rounded; 0: neither is, or both are exact. */
static int common_places(const cri_math *a, const cri_math *b)
{
    const int x = cri_math_places(a), y = cri_math_places(b);

    if ((is_decimal(a) && !x) || (is_decimal(b) && !y)) return 0;
    return x && (x < y || !y) ? x : y;
}

/* 3:30 or 12:05 by its form; 12:25 may be a ratio, too */
static bool is_time(const cri_math *m)
{
    return m->kind == CRI_DIV && m->op == 1 && m->arg[0]->kind == CRI_NUM &&
           m->arg[1]->kind == CRI_NUM && strlen(m->arg[0]->text) <= 2 &&
           strlen(m->arg[1]->text) == 2 && *m->arg[1]->text < '6';
}

/* Of a time: its parts have no common factor, as in a ratio that someone has simplified. */
static bool is_reduced(const cri_math *m)
{
    int a = atoi(m->arg[0]->text), b = atoi(m->arg[1]->text);

    while (a) {
        int rest = b % a;
        b = a;
        a = rest;
    }
    return b == 1;
}

static bool is_infinite(const cri_math *m)
{
    return m->kind == CRI_INF || (m->kind == CRI_NEG && m->arg[0]->kind == CRI_INF);
}

/* A set, a tuple or a matrix among numbers: it has no value, and only the same text equals it. */
static bool has_alien(const cri_math *m)
{
    bool has = !cri_math_is_expression(m) || m->kind == CRI_INF;

    for (int i = 0; i < m->num_args && !has; i++)
        has = has_alien(m->arg[i]);
    return has;
}

static bool are_expressions_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    char x[256] = "", y[256] = "";
    cri_math_value va, vb;
    cri_answer answer;
    long double ra, rb;
    int places;

    if (is_infinite(a) || is_infinite(b)) return a->kind == b->kind && is_same_tree(a, b);
    if ((a->kind == CRI_SYM || b->kind == CRI_SYM) && word_of(a, x, sizeof x) &&
        word_of(b, y, sizeof y))
        return strcmp(x, y) == 0;
    va = cri_math_eval(q, a, 0);
    vb = cri_math_eval(q, b, 0);
    if (va.is_undefined || vb.is_undefined || (is_time(a) && (is_time(b) || !is_reduced(a))))
        return is_same_tree(a, b); /* 12:00 */
    answer = cri_value_equal(&va, &vb);
    if (answer != CRI_YES && (places = common_places(a, b)) && !(va.is_small && va.den == 1) &&
        !(vb.is_small && vb.den == 1) && cri_math_real(q, a, &ra) && cri_math_real(q, b, &rb))
        return cri_value_near(&va, &vb, places);
    if (answer == CRI_UNKNOWN && is_same_tree(a, b)) return true;
    if (answer == CRI_UNKNOWN && !q->trouble && !has_alien(a) && !has_alien(b))
        q->trouble = "an expression is too large or too unusual to be compared";
    return answer == CRI_YES;
}

/* ---- relations ---- */

static bool is_of_symbols(const cri_math *m)
{
    if (m->num_args == 0) return is_letter(m) || m->kind == CRI_PI;
    for (int i = 0; i < m->num_args; i++)
        if (!is_of_symbols(m->arg[i])) return false;
    return true;
}

static bool is_equation(const cri_math *m)
{
    return m->kind == CRI_REL && strspn(m->text, "=i") == strlen(m->text);
}

/* P(X=2), f(2): a name and what it is taken of */
static bool is_application(const cri_math *m)
{
    if (m->kind == CRI_FUNC) return strlen(m->text) == 1 && isalpha((unsigned char)*m->text);
    return m->kind == CRI_MUL && m->num_args == 2 && m->arg[0]->kind == CRI_SYM &&
           m->arg[1]->kind == CRI_NUM;
}

static bool is_assignment(const cri_math *m)
{
    return is_equation(m) && (is_of_symbols(m->arg[0]) || is_application(m->arg[0]));
}

static cri_math *last_of(const cri_math *m)
{
    return m->arg[m->num_args - 1];
}

static char flipped(char sign)
{
    static const char from[] = "<>lg", to[] = "><gl";
    const char *at = strchr(from, sign);

    return at ? to[at - from] : sign;
}

static cri_math *difference(cri_question *q, cri_math *a, cri_math *b)
{
    return cri_math_node(q, CRI_ADD, 2, a, cri_math_node(q, CRI_NEG, 1, b, NULL));
}

/* a sign_a 0 and b sign_b 0 hold together if b = c a for a constant c: of any sign for equations,
 * of the right one for inequalities. */
static bool are_proportional(cri_question *q, const cri_math *a, char sign_a, const cri_math *b,
                             char sign_b)
{
    cri_math_value va = cri_math_eval(q, a, 0), vb = cri_math_eval(q, b, 0), zero, r, s;
    long double c;

    r = cri_value_div(&vb, &va);
    va = cri_math_eval(q, a, 1);
    vb = cri_math_eval(q, b, 1);
    s = cri_value_div(&vb, &va);
    if (r.is_undefined || s.is_undefined || !r.is_number[0]) return false;
    if (cri_value_equal(&r, &s) != CRI_YES) return false;
    zero = cri_value_div(&vb, &vb); /* 1, if b is not zero */
    if (zero.is_undefined) return false;
    for (int k = 1; k < CRI_MATH_POINTS; k++) /* the same at every point, too */
        if (r.is_number[k] && cabsl(r.z[k] - r.z[0]) > 1e-9L * cabsl(r.z[0])) return false;
    c = creall(r.z[0]);
    if (c == 0 || fabsl(cimagl(r.z[0])) > 1e-12L * fabsl(c)) return false;
    return strchr("=ni", sign_a) ? sign_a == sign_b : sign_b == (c > 0 ? sign_a : flipped(sign_a));
}

static bool are_signs_equal(cri_question *q, cri_math *a, int i, cri_math *b, int k)
{
    cri_math *x, *y;
    char sa = a->text[i] == 'i' ? '=' : a->text[i], sb = b->text[k] == 'i' ? '=' : b->text[k];

    if (sa == sb && is_same_tree(a->arg[i], b->arg[k]) &&
        cri_math_equal(q, a->arg[i + 1], b->arg[k + 1]))
        return true;
    if (!cri_math_is_expression(a->arg[i + 1]) || !cri_math_is_expression(b->arg[k + 1]) ||
        !cri_math_is_expression(a->arg[i]) || !cri_math_is_expression(b->arg[k]))
        return sa == sb && cri_math_equal(q, a->arg[i], b->arg[k]) &&
               cri_math_equal(q, a->arg[i + 1], b->arg[k + 1]);
    if (is_infinite(a->arg[i + 1]) || is_infinite(b->arg[k + 1])) /* x = oo */
        return sa == sb && cri_math_equal(q, a->arg[i], b->arg[k]) &&
               cri_math_equal(q, a->arg[i + 1], b->arg[k + 1]);
    x = difference(q, a->arg[i], a->arg[i + 1]);
    y = difference(q, b->arg[k], b->arg[k + 1]);
    if (!x || !y) return false;
    if (sa == sb && is_same_tree(x, y)) return true;
    return are_proportional(q, x, sa, y, sb);
}

static bool are_relations_equal(cri_question *q, cri_math *a, cri_math *b)
{
    int n = a->num_args - 1;
    bool is_same = n == b->num_args - 1, is_turned = is_same;
    cri_answer answer;
    if (n == 1 && b->num_args == 2) return are_signs_equal(q, a, 0, b, 0);
    if ((answer = cri_sets_equal(q, a, b)) != CRI_UNKNOWN) return answer == CRI_YES;
    for (int i = 0; i < n && is_same; i++)
        is_same = are_signs_equal(q, a, i, b, i);
    for (int i = 0; i < n && is_turned && !is_same; i++)
        is_turned = are_signs_equal(q, a, i, b, n - 1 - i);
    return is_same || is_turned;
}

static bool is_constant(cri_question *q, const cri_math *m)
{
    long double x;

    return cri_math_real(q, m, &x);
}

/* 3 + 4 = 7, 1 = x = 0: what stands before the last side are names and numbers. */
static bool is_calculation(cri_question *q, const cri_math *m)
{
    if (!is_equation(m) || !is_constant(q, last_of(m))) return false;
    for (int i = 0; i + 1 < m->num_args; i++)
        if (!is_of_symbols(m->arg[i]) && !is_constant(q, m->arg[i])) return false;
    return true;
}

/* What matters of an equation: x = a = b is x = b, 5 = x is x = 5. */
static cri_math *shortened(cri_question *q, cri_math *m)
{
    bool is_turned = m->num_args == 2 && m->arg[1]->kind == CRI_SYM && is_constant(q, m->arg[0]);
    cri_math *s;

    if (!is_turned && (m->num_args == 2 || !is_assignment(m))) return m;
    s = cri_math_node(q, CRI_REL, 2, is_turned ? m->arg[1] : m->arg[0],
                      is_turned ? m->arg[0] : last_of(m));
    if (s) s->text = "=";
    return s;
}

/* ---- sets and tuples ---- */

/* (2,1) and [2,1] are not intervals, nor is what has not two elements: their brackets mean nothing. */
static int brackets(cri_question *q, const cri_math *m)
{
    long double low, high;

    if (m->num_args != 2 || m->op == (CRI_OPEN_LEFT | CRI_OPEN_RIGHT))
        return CRI_OPEN_LEFT | CRI_OPEN_RIGHT;
    if (cri_math_real(q, m->arg[0], &low) && cri_math_real(q, m->arg[1], &high) && high < low &&
        m->op == 0)
        return CRI_OPEN_LEFT | CRI_OPEN_RIGHT;
    return m->op;
}

static bool are_in_order(cri_question *q, const cri_math *a, const cri_math *b)
{
    if (a->num_args != b->num_args) return false;
    for (int i = 0; i < a->num_args; i++)
        if (!cri_math_equal(q, a->arg[i], b->arg[i])) return false;
    return true;
}

/* Elements that were written before are left out. */
static int distinct(cri_question *q, const cri_math *m, cri_math **out)
{
    int n = 0;

    for (int i = 0; i < m->num_args; i++) {
        bool is_new = true;
        for (int k = 0; k < n && is_new; k++)
            is_new = m->arg[i]->kind != out[k]->kind || !cri_math_equal(q, m->arg[i], out[k]);
        if (is_new) out[n++] = m->arg[i];
    }
    return n;
}

static bool are_same_elements(cri_question *q, const cri_math *a, const cri_math *b)
{
    cri_math *x[MAX_ELEMENTS], *y[MAX_ELEMENTS];
    bool is_used[MAX_ELEMENTS] = {false};
    int n, m;

    if (a->num_args > MAX_ELEMENTS || b->num_args > MAX_ELEMENTS) {
        if (abs(a->num_args - b->num_args) > MAX_ELEMENTS) return false;
        if (are_in_order(q, a, b)) return true;
        if (!q->trouble) q->trouble = "a set has too many elements to be compared";
        return false;
    }
    n = distinct(q, a, x);
    m = distinct(q, b, y);
    if (n != m) return false;
    for (int i = 0; i < n; i++) {
        bool is_found = false;
        for (int k = 0; k < m && !is_found; k++)
            if (!is_used[k] && cri_math_equal(q, x[i], y[k])) is_found = is_used[k] = true;
        if (!is_found) return false;
    }
    return true;
}

static bool is_collection(const cri_math *m)
{
    return m->kind >= CRI_SET && m->kind <= CRI_NAMED;
}

/* x < 1 or x > 2 */
static bool has_inequalities(const cri_math *m)
{
    return m->kind == CRI_SET && m->num_args && m->arg[0]->kind == CRI_REL &&
           !is_equation(m->arg[0]);
}

/* (p = 5, q = 2) */
static bool are_assignments(const cri_math *m)
{
    for (int i = 0; i < m->num_args; i++)
        if (!is_assignment(m->arg[i])) return false;
    return true;
}

/* A list of relations that all hold, or of which one does: whether both say the same. */
static bool is_same_word(const cri_math *a, const cri_math *b)
{
    return (strcmp(a->text, "or") == 0) == (strcmp(b->text, "or") == 0);
}

static bool is_list(const cri_math *m)
{
    return m->kind == CRI_TUPLE || m->kind == CRI_SET;
}

static int by_name(const void *a, const void *b)
{
    const cri_math *const *x = a, *const *y = b;

    return strcmp((*x)->arg[0]->text, (*y)->arg[0]->text);
}

/* x = 1, y = 2, each name once */
static bool has_names(const cri_math *m)
{
    if (!is_list(m) || m->num_args < 2 || m->num_args > MAX_ELEMENTS || !are_assignments(m))
        return false;
    for (int i = 0; i < m->num_args; i++)
        for (int k = 0; k < i; k++)
            if (is_same_tree(m->arg[i]->arg[0], m->arg[k]->arg[0])) return false;
    return true;
}

/* The values of these assignments, in this order, are those of the other side. */
static bool are_values(cri_question *q, cri_math *const *item, const cri_math *values, bool is_gold)
{
    for (int i = 0; i < values->num_args; i++)
        if (!cri_math_equal(q, is_gold ? item[i] : values->arg[i],
                            is_gold ? values->arg[i] : item[i]))
            return false;
    return true;
}

/* y = 2, x = 1 against values without names: names of one letter by the alphabet, others as they are written; a list
 * of values may also follow what is written. */
static bool are_values_in_order(cri_question *q, const cri_math *named, const cri_math *values,
                                bool is_gold)
{
    const int n = named->num_args;
    cri_math **item = cr_arena_alloc(q->arena, (size_t)n * sizeof *item);
    bool are_letters = true;

    if (!is_list(values) || values->num_args != n) return false;
    if (values->kind == CRI_TUPLE && brackets(q, values) != (CRI_OPEN_LEFT | CRI_OPEN_RIGHT))
        return false;
    if (values->kind == CRI_SET && are_values(q, named->arg, values, is_gold)) return true;
    memcpy(item, named->arg, (size_t)n * sizeof *item);
    for (int i = 0; i < n; i++)
        are_letters = are_letters && item[i]->arg[0]->kind == CRI_SYM && !item[i]->arg[0]->text[1];
    if (are_letters) qsort(item, (size_t)n, sizeof *item, by_name);
    return are_values(q, item, values, is_gold);
}

static bool are_collections_equal(cri_question *q, cri_math *a, cri_math *b)
{
    cri_answer answer;
    cri_math *one;
    bool has_open = (a->kind == CRI_TUPLE && brackets(q, a) != 3) ||
                    (b->kind == CRI_TUPLE && brackets(q, b) != 3);

    if (has_inequalities(a) || has_inequalities(b)) {
        if ((answer = cri_sets_equal(q, a, b)) != CRI_UNKNOWN) return answer == CRI_YES;
        if (a->kind == CRI_SET && b->kind == CRI_SET && !is_same_word(a, b)) return false;
    }
    if (is_list(a) && is_list(b) && are_assignments(a) && are_assignments(b))
        return are_same_elements(q, a, b);
    if (has_names(a) || has_names(b))
        return has_names(a) ? are_values_in_order(q, a, b, true)
                            : are_values_in_order(q, b, a, false);
    if (a->kind == CRI_TUPLE && b->kind == CRI_TUPLE) {
        return (a->num_args != 2 || brackets(q, a) == brackets(q, b)) && are_in_order(q, a, b);
    }
    if (a->kind == CRI_EMPTY || b->kind == CRI_EMPTY) return a->kind == b->kind;
    if (a->kind == CRI_SET && (b->kind == CRI_SET || (b->kind == CRI_TUPLE && !has_open)))
        return are_same_elements(q, a, b);
    if (a->kind == CRI_TUPLE && b->kind == CRI_SET && !has_open) return are_in_order(q, a, b);
    if (cri_math_is_expression(a) || a->kind == CRI_MATRIX || cri_math_is_expression(b) ||
        b->kind == CRI_MATRIX) { /* a set of one element is that element */
        if (a->kind != CRI_SET && b->kind != CRI_SET) return false;
        one = cri_math_node(q, CRI_SET, 1, a->kind == CRI_SET ? b : a, NULL);
        return one &&
               are_same_elements(q, a->kind == CRI_SET ? a : one, a->kind == CRI_SET ? one : b);
    }
    answer = cri_sets_equal(q, a, b);
    if (answer != CRI_UNKNOWN) return answer == CRI_YES;
    if (a->kind != b->kind || a->num_args != b->num_args || strcmp(a->text, b->text) != 0)
        return false;
    if (are_in_order(q, a, b)) return true;
    if (a->kind == CRI_MINUS || a->num_args != 2) return false;
    one = cri_math_node(q, b->kind, 2, b->arg[1], b->arg[0]);
    return one && are_in_order(q, a, one);
}

/* ---- the whole ---- */

bool cri_math_equal(cri_question *q, cri_math *gold, cri_math *answer)
{
    cri_answer verdict;

    if (!cri_math_goes_on(q) || q->trouble) return false;
    if ((verdict = cri_forms_equal(q, gold, answer)) != CRI_UNKNOWN) return verdict == CRI_YES;
    if (is_equation(gold) && !(gold = shortened(q, gold))) return false;
    if (is_equation(answer) && !(answer = shortened(q, answer))) return false;
    if (is_equation(answer) && !is_equation(gold)) return cri_math_equal(q, gold, last_of(answer));
    if (!is_equation(answer) && (is_assignment(gold) || is_calculation(q, gold)))
        return cri_math_equal(q, last_of(gold), answer);
    if (gold->kind == CRI_REL && answer->kind == CRI_REL)
        return are_relations_equal(q, gold, answer);
    if (gold->kind == CRI_REL && answer->kind == CRI_SET && answer->num_args == 1)
        return cri_math_equal(q, gold, answer->arg[0]);
    if (answer->kind == CRI_REL && gold->kind == CRI_SET && gold->num_args == 1)
        return cri_math_equal(q, gold->arg[0], answer);
    if (gold->kind == CRI_REL || answer->kind == CRI_REL)
        return cri_sets_equal(q, gold, answer) == CRI_YES;
    if (is_collection(gold) || is_collection(answer)) return are_collections_equal(q, gold, answer);
    if (q->has_matrix && (verdict = cri_matrices_equal(q, gold, answer)) != CRI_UNKNOWN)
        return verdict == CRI_YES;
    if (gold->kind == CRI_MATRIX && answer->kind == CRI_MATRIX)
        return gold->op == answer->op && are_in_order(q, gold, answer);
    if (gold->kind == CRI_MATRIX || answer->kind == CRI_MATRIX) return false;
    return are_expressions_equal(q, gold, answer);
}
