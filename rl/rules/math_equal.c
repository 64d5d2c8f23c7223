/* math_equal.c -- is the answer right? Two trees compared as Math-Verify does (see math_impl.h).
 *
 * The gold answer decides the form: x = 5 answers 5, and 5 answers x = 5; 1 < x < 2 and (1,2) are
 * the same; (1,2) is a point or an open interval, whichever the other side is. Decimals count to
 * six places against other numbers that are no integers, everything else is exact.
 */
#include "rl/rules/math_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 200, MAX_SEGMENTS = 256 };

/* ---- sets of real numbers ---- */

typedef struct segment {
    long double low, high;
    bool is_low_open, is_high_open;
} segment;

typedef struct segments {
    segment item[MAX_SEGMENTS];
    int num;
} segments;

static bool is_same_real(long double a, long double b)
{
    if (isinf(a) || isinf(b)) return a == b;
    return fabsl(a - b) <= 1e-15L * fmaxl(1, fmaxl(fabsl(a), fabsl(b)));
}

static bool put(segments *s, long double low, long double high, bool low_open, bool high_open)
{
    if (s->num == MAX_SEGMENTS) return false;
    if (low > high || (is_same_real(low, high) && (low_open || high_open))) return true; /* empty */
    s->item[s->num++] = (segment){low, high, low_open || isinf(low), high_open || isinf(high)};
    return true;
}

static int by_low(const void *a, const void *b)
{
    const segment *x = a, *y = b;

    if (!is_same_real(x->low, y->low)) return x->low < y->low ? -1 : 1;
    return x->is_low_open - y->is_low_open;
}

/* In order, those that touch joined. */
static void tidy(segments *s)
{
    int n = 0;

    if (s->num) qsort(s->item, (size_t)s->num, sizeof *s->item, by_low);
    for (int i = 0; i < s->num; i++) {
        segment *last = n ? &s->item[n - 1] : NULL, x = s->item[i];
        bool is_beside = last && is_same_real(last->high, x.low);
        if (last && (is_beside ? !(last->is_high_open && x.is_low_open) : x.low < last->high)) {
            if (is_same_real(last->high, x.high))
                last->is_high_open = last->is_high_open && x.is_high_open;
            else if (x.high > last->high)
                last->high = x.high, last->is_high_open = x.is_high_open;
        } else {
            s->item[n++] = x;
        }
    }
    s->num = n;
}

static bool complement(const segments *a, segments *out)
{
    long double low = -INFINITY;
    bool is_open = true;

    *out = (segments){.num = 0};
    for (int i = 0; i < a->num; i++) {
        if (!put(out, low, a->item[i].low, is_open, !a->item[i].is_low_open)) return false;
        low = a->item[i].high;
        is_open = !a->item[i].is_high_open;
    }
    return isinf(low) && low > 0 ? true : put(out, low, INFINITY, is_open, true);
}

static bool meet(const segments *a, const segments *b, segments *out)
{
    *out = (segments){.num = 0};
    for (int i = 0; i < a->num; i++)
        for (int k = 0; k < b->num; k++) {
            segment x = a->item[i], y = b->item[k], low = x, high = x;
            if (is_same_real(x.low, y.low))
                low.is_low_open = x.is_low_open || y.is_low_open;
            else if (y.low > x.low)
                low = y;
            if (is_same_real(x.high, y.high))
                high.is_high_open = x.is_high_open || y.is_high_open;
            else if (y.high < x.high)
                high = y;
            if (!put(out, low.low, high.high, low.is_low_open, high.is_high_open)) return false;
        }
    tidy(out);
    return true;
}

/* x < 3, 1 <= x < 2: one variable alone on one side of each sign. */
static bool from_relation(cri_question *q, const cri_math *m, const char **name, segments *out)
{
    segments all = {.num = 0};

    put(&all, -INFINITY, INFINITY, true, true);
    *name = NULL;
    for (int i = 0; i + 1 < m->num_args; i++) {
        const cri_math *a = m->arg[i], *b = m->arg[i + 1], *x = a->kind == CRI_SYM ? a : b;
        char sign = m->text[i];
        bool is_open = sign == '<' || sign == '>', is_up = (sign == '>' || sign == 'g');
        long double bound;
        segments one = {.num = 0}, next;
        if (x->kind != CRI_SYM || (*name && strcmp(*name, x->text) != 0)) return false;
        *name = x->text;
        if (!cri_math_real(q, x == a ? b : a, &bound)) return false;
        if (x == b) is_up = !is_up;
        if (sign == 'n') {
            put(&one, -INFINITY, bound, true, true);
            put(&one, bound, INFINITY, true, true);
        } else if (!strchr("<>lg", sign)) {
            return false;
        } else if (is_up) {
            put(&one, bound, INFINITY, is_open, true);
        } else {
            put(&one, -INFINITY, bound, true, is_open);
        }
        if (!meet(&all, &one, &next)) return false;
        all = next;
    }
    *out = all;
    return true;
}

static bool from_tree(cri_question *q, const cri_math *m, segments *out, int depth)
{
    segments a, b, c;
    long double low, high;
    const char *name;

    *out = (segments){.num = 0};
    if (depth > 8) return false; /* each level holds three lists on the stack */
    switch (m->kind) {
    case CRI_EMPTY:
        return true;
    case CRI_NAMED:
        return m->text[0] == 'R' && put(out, -INFINITY, INFINITY, true, true);
    case CRI_REL:
        return from_relation(q, m, &name, out);
    case CRI_TUPLE:
        return m->num_args == 2 && cri_math_real(q, m->arg[0], &low) &&
               cri_math_real(q, m->arg[1], &high) && low <= high &&
               put(out, low, high, m->op & CRI_OPEN_LEFT, m->op & CRI_OPEN_RIGHT);
    case CRI_SET:
        for (int i = 0; i < m->num_args; i++)
            if (!cri_math_real(q, m->arg[i], &low) || isinf(low) ||
                !put(out, low, low, false, false))
                return false;
        tidy(out);
        return true;
    case CRI_UNION:
    case CRI_MEET:
    case CRI_MINUS:
        if (!from_tree(q, m->arg[0], &a, depth + 1) || !from_tree(q, m->arg[1], &b, depth + 1))
            return false;
        if (m->kind == CRI_MEET) return meet(&a, &b, out);
        if (m->kind == CRI_MINUS) return complement(&b, &c) && meet(&a, &c, out);
        for (int i = 0; i < b.num; i++)
            if (!put(&a, b.item[i].low, b.item[i].high, b.item[i].is_low_open,
                     b.item[i].is_high_open))
                return false;
        *out = a;
        tidy(out);
        return true;
    default:
        return false;
    }
}

cri_answer cri_sets_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    segments x, y;

    if (!from_tree(q, a, &x, 0) || !from_tree(q, b, &y, 0)) return CRI_UNKNOWN;
    if (x.num != y.num) return CRI_NO;
    for (int i = 0; i < x.num; i++)
        if (!is_same_real(x.item[i].low, y.item[i].low) ||
            !is_same_real(x.item[i].high, y.item[i].high) ||
            x.item[i].is_low_open != y.item[i].is_low_open ||
            x.item[i].is_high_open != y.item[i].is_high_open)
            return CRI_NO;
    return CRI_YES;
}

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

/* A word: \text{yes} is one symbol, Yes a product of letters. False: it is no word. */
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
    cri_value va, vb;
    cri_answer answer;
    long double ra, rb;

    if (is_infinite(a) || is_infinite(b)) return a->kind == b->kind && is_same_tree(a, b);
    if ((a->kind == CRI_SYM || b->kind == CRI_SYM) && word_of(a, x, sizeof x) &&
        word_of(b, y, sizeof y))
        return strcmp(x, y) == 0;
    va = cri_math_eval(q, a, 0);
    vb = cri_math_eval(q, b, 0);
    if (va.is_undefined || vb.is_undefined) return false;
    if ((is_decimal(a) || is_decimal(b)) && !(va.is_small && va.den == 1) &&
        !(vb.is_small && vb.den == 1) && cri_math_real(q, a, &ra) && cri_math_real(q, b, &rb))
        return fabsl(ra) < 1e12L ? rintl(ra * 1e6L) == rintl(rb * 1e6L) : is_same_real(ra, rb);
    answer = cri_value_equal(&va, &vb);
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

static bool is_assignment(const cri_math *m)
{
    return is_equation(m) && is_of_symbols(m->arg[0]);
}

static const cri_math *last_of(const cri_math *m)
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
    cri_value va = cri_math_eval(q, a, 0), vb = cri_math_eval(q, b, 0), zero, r, s;
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
    const char *x, *y;
    segments s, t;

    if (n == 1 && b->num_args == 2) return are_signs_equal(q, a, 0, b, 0);
    if (from_relation(q, a, &x, &s) && from_relation(q, b, &y, &t))
        return strcmp(x, y) == 0 && cri_sets_equal(q, a, b) == CRI_YES;
    for (int i = 0; i < n && is_same; i++)
        is_same = are_signs_equal(q, a, i, b, i);
    for (int i = 0; i < n && is_turned && !is_same; i++)
        is_turned = are_signs_equal(q, a, i, b, n - 1 - i);
    return is_same || is_turned;
}

/* x = a = b: the first side and the last. */
static cri_math *shortened(cri_question *q, cri_math *m)
{
    cri_math *s;

    if (m->num_args == 2) return m;
    s = cri_math_node(q, CRI_REL, 2, m->arg[0], m->arg[m->num_args - 1]);
    if (s) s->text = "=";
    return s;
}

/* ---- sets and tuples ---- */

/* (2,1) and [2,1] are no intervals, nor is what has not two elements: their brackets mean nothing. */
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

static bool are_collections_equal(cri_question *q, cri_math *a, cri_math *b)
{
    cri_answer answer;
    cri_math *one;
    bool has_open = (a->kind == CRI_TUPLE && brackets(q, a) != 3) ||
                    (b->kind == CRI_TUPLE && brackets(q, b) != 3);

    if (a->kind == CRI_TUPLE && b->kind == CRI_TUPLE)
        return (a->num_args != 2 || brackets(q, a) == brackets(q, b)) && are_in_order(q, a, b);
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

/* 2 M, M / 2 and -M as matrices: the factor goes to every element. */
static cri_math *spread(cri_question *q, cri_math *m)
{
    cri_math *matrix = NULL, *out, **item;
    int at = 0;

    if (m->kind != CRI_MUL && m->kind != CRI_DIV && m->kind != CRI_NEG) return m;
    for (int i = 0; i < m->num_args; i++) {
        if (m->arg[i]->kind != CRI_MATRIX) continue;
        if (matrix || (m->kind == CRI_DIV && i == 1)) return m;
        matrix = m->arg[i];
        at = i;
    }
    if (!matrix || !(out = cri_math_node(q, CRI_MATRIX, 0, NULL, NULL))) return m;
    out->op = matrix->op;
    out->num_args = matrix->num_args;
    item = cr_arena_alloc(q->arena, (size_t)matrix->num_args * sizeof *item);
    for (int i = 0; i < matrix->num_args; i++) {
        cri_math **args = cr_arena_alloc(q->arena, (size_t)m->num_args * sizeof *args);
        memcpy(args, m->arg, (size_t)m->num_args * sizeof *args);
        args[at] = matrix->arg[i];
        item[i] = cri_math_node(q, m->kind, 0, NULL, NULL);
        if (!item[i]) return m;
        item[i]->arg = args;
        item[i]->num_args = m->num_args;
    }
    out->arg = item;
    return out;
}

bool cri_math_equal(cri_question *q, const cri_math *gold_tree, const cri_math *answer_tree)
{
    cri_math *gold, *answer;
    cri_math *copies[2];

    if (!cri_math_goes_on(q) || q->trouble) return false;
    for (int i = 0; i < 2; i++) { /* nodes that may be rewritten */
        copies[i] = cr_arena_alloc(q->arena, sizeof(cri_math));
        *copies[i] = i ? *answer_tree : *gold_tree;
    }
    gold = copies[0];
    answer = copies[1];
    gold = spread(q, gold);
    answer = spread(q, answer);
    bool is_gold_assignment = is_assignment(gold);
    if (is_gold_assignment && !(gold = shortened(q, gold))) return false;
    if (is_assignment(answer) && !(answer = shortened(q, answer))) return false;
    if (is_equation(answer) && !is_equation(gold)) return cri_math_equal(q, gold, last_of(answer));
    if (is_gold_assignment && !is_equation(answer)) return cri_math_equal(q, last_of(gold), answer);
    if (gold->kind == CRI_REL && answer->kind == CRI_REL)
        return are_relations_equal(q, gold, answer);
    if (gold->kind == CRI_REL && answer->kind == CRI_SET && answer->num_args == 1)
        return cri_math_equal(q, gold, answer->arg[0]);
    if (answer->kind == CRI_REL && gold->kind == CRI_SET && gold->num_args == 1)
        return cri_math_equal(q, gold->arg[0], answer);
    if (gold->kind == CRI_REL || answer->kind == CRI_REL)
        return cri_sets_equal(q, gold, answer) == CRI_YES;
    if (is_collection(gold) || is_collection(answer)) return are_collections_equal(q, gold, answer);
    if (gold->kind == CRI_MATRIX && answer->kind == CRI_MATRIX)
        return gold->op == answer->op && are_in_order(q, gold, answer);
    if (gold->kind == CRI_MATRIX || answer->kind == CRI_MATRIX) return false;
    return are_expressions_equal(q, gold, answer);
}
