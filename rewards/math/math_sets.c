/* math_sets.c -- sets of real numbers as segments: intervals, unions, inequalities, sets of numbers.
 *
 * An inequality is one of a x + b, or of |a x + b| and a number, where x is a variable or a product
 * of names, as f(x). A list of them is their union after "or" or where none holds with the others,
 * else where all hold.
 */
#include "rewards/math/math_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 256 };

typedef struct segment {
    long double low, high;
    bool is_low_open, is_high_open;
} segment;

typedef struct segments {
    segment item[MAX_SEGMENTS];
    int num;
    const cri_math *name; /* what lies there; NULL: nothing is said */
} segments;

static void clear(segments *s)
{
    s->num = 0;
    s->name = NULL;
}

static bool append(segments *to, const segments *from)
{
    if (to->num + from->num > MAX_SEGMENTS) return false;
    memcpy(to->item + to->num, from->item, (size_t)from->num * sizeof *from->item);
    to->num += from->num;
    return true;
}

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

    clear(out);
    for (int i = 0; i < a->num; i++) {
        if (!put(out, low, a->item[i].low, is_open, !a->item[i].is_low_open)) return false;
        low = a->item[i].high;
        is_open = !a->item[i].is_high_open;
    }
    return isinf(low) && low > 0 ? true : put(out, low, INFINITY, is_open, true);
}

static bool meet(const segments *a, const segments *b, segments *out)
{
    clear(out);
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

/* ---- inequalities ---- */

typedef struct line {
    const cri_math *name; /* NULL: a constant */
    long double a, b;     /* a name + b */
} line;

/* x, f(x) */
static bool is_name(const cri_math *m)
{
    if (m->kind == CRI_SYM) return true;
    if (m->kind != CRI_MUL) return false;
    for (int i = 0; i < m->num_args; i++)
        if (m->arg[i]->kind != CRI_SYM) return false;
    return true;
}

static bool is_same_name(const cri_math *a, const cri_math *b)
{
    if (a->kind != b->kind || a->num_args != b->num_args || strcmp(a->text, b->text) != 0)
        return false;
    for (int i = 0; i < a->num_args; i++)
        if (strcmp(a->arg[i]->text, b->arg[i]->text) != 0) return false;
    return true;
}

static bool line_of(cri_question *q, const cri_math *m, line *out);

/* out = out + sign m, or out * m, or out / m. */
static bool combine(cri_question *q, cri_math_kind kind, const cri_math *m, line *out)
{
    line x;

    if (!line_of(q, m, &x) || isinf(x.b)) return false;
    if (out->name && x.name && (kind != CRI_ADD || !is_same_name(out->name, x.name))) return false;
    if (kind == CRI_ADD) {
        out->a += x.a;
        out->b += x.b;
    } else if (kind == CRI_MUL) {
        out->a = out->a * x.b + out->b * x.a;
        out->b *= x.b;
    } else if (x.name || x.b == 0) {
        return false;
    } else {
        out->a /= x.b;
        out->b /= x.b;
    }
    if (x.name) out->name = x.name;
    return true;
}

static bool line_of(cri_question *q, const cri_math *m, line *out)
{
    *out = (line){.name = NULL};
    if (is_name(m)) {
        out->name = m;
        out->a = 1;
        return true;
    }
    if (cri_math_real(q, m, &out->b)) return true;
    if (m->kind != CRI_ADD && m->kind != CRI_MUL && m->kind != CRI_DIV && m->kind != CRI_NEG)
        return false;
    if (!line_of(q, m->arg[0], out)) return false;
    for (int i = 1; i < m->num_args; i++)
        if (!combine(q, m->kind, m->arg[i], out)) return false;
    if (m->kind == CRI_NEG) out->a = -out->a, out->b = -out->b;
    return true;
}

static char flipped(char sign)
{
    static const char from[] = "<>lg", to[] = "><gl";
    const char *at = strchr(from, sign);

    return at ? to[at - from] : sign;
}

/* name sign bound */
static bool from_sign(char sign, long double bound, segments *out)
{
    bool is_open = sign == '<' || sign == '>';

    clear(out);
    if (sign == 'n')
        return put(out, -INFINITY, bound, true, true) && put(out, bound, INFINITY, true, true);
    if (sign == '>' || sign == 'g') return put(out, bound, INFINITY, is_open, true);
    if (sign == '<' || sign == 'l') return put(out, -INFINITY, bound, true, is_open);
    return false;
}

/* |x| sign bound, for x = a name + b */
static bool from_absolute(char sign, long double bound, const line *x, segments *out)
{
    long double low = (-bound - x->b) / x->a, high = (bound - x->b) / x->a;
    bool is_inside = sign == '<' || sign == 'l', is_open = sign == '<' || sign == '>';

    clear(out);
    if (bound < 0 || isinf(bound) || (bound == 0 && (is_inside || is_open)) || sign == 'n')
        return false; /* odd enough */
    if (low > high) {
        long double t = low;
        low = high;
        high = t;
    }
    if (is_inside) return put(out, low, high, is_open, is_open);
    return put(out, -INFINITY, low, true, is_open) && put(out, high, INFINITY, is_open, true);
}

/* One sign of a chain. */
static bool from_pair(cri_question *q, const cri_math *a, char sign, const cri_math *b,
                      segments *out)
{
    line x, y;

    if (b->kind == CRI_ABS) {
        const cri_math *t = a;
        a = b;
        b = t;
        sign = flipped(sign);
    }
    if (!strchr("<>lgn", sign) || !line_of(q, b, &y)) return false;
    if (a->kind == CRI_ABS && !is_name(a) && line_of(q, a->arg[0], &x) && x.name) {
        if (y.name || x.a == 0 || !from_absolute(sign, y.b, &x, out)) return false;
        out->name = x.name;
        return true;
    }
    if (!line_of(q, a, &x) || (x.name && y.name && !is_same_name(x.name, y.name))) return false;
    if (isinf(x.b)) { /* -oo < x */
        line t = x;
        x = y;
        y = t;
        sign = flipped(sign);
    }
    if (isinf(x.b)) return false;
    x.a -= y.a;
    if (x.a == 0 || (y.name && isinf(y.b))) return false;
    if (!from_sign(x.a > 0 ? sign : flipped(sign), (y.b - x.b) / x.a, out)) return false;
    out->name = x.name ? x.name : y.name;
    return true;
}

/* Both hold, of the same name. */
static bool join(segments *all, const segments *one)
{
    segments next;

    if (all->name && one->name && !is_same_name(all->name, one->name)) return false;
    if (!meet(all, one, &next)) return false;
    all->num = 0;
    if (one->name) all->name = one->name;
    return append(all, &next);
}

/* x < 3, 1 <= x < 2, |x - 1| > 2 */
static bool from_relation(cri_question *q, const cri_math *m, segments *out)
{
    segments one;

    clear(out);
    put(out, -INFINITY, INFINITY, true, true);
    for (int i = 0; i + 1 < m->num_args; i++)
        if (!from_pair(q, m->arg[i], m->text[i], m->arg[i + 1], &one) || !join(out, &one))
            return false;
    return true;
}

/* x < 1 or x > 2 */
static bool from_relations(cri_question *q, const cri_math *m, segments *out)
{
    segments all, any, one;

    clear(&all);
    clear(&any);
    put(&all, -INFINITY, INFINITY, true, true);
    for (int i = 0; i < m->num_args; i++) {
        if (m->arg[i]->kind != CRI_REL || !from_relation(q, m->arg[i], &one)) return false;
        if (!join(&all, &one)) return false;
        if (!append(&any, &one)) return false;
    }
    tidy(&any);
    clear(out);
    out->name = all.name;
    return append(
        out, strcmp(m->text, "and") == 0 || (all.num && strcmp(m->text, "or") != 0) ? &all : &any);
}

/* ---- sets ---- */

static bool from_tree(cri_question *q, const cri_math *m, segments *out, int depth);

static bool from_two(cri_question *q, const cri_math *m, segments *out, int depth)
{
    segments a, b, c;

    if (!from_tree(q, m->arg[0], &a, depth + 1) || !from_tree(q, m->arg[1], &b, depth + 1))
        return false;
    if (a.name && b.name && !is_same_name(a.name, b.name)) return false;
    if (m->kind == CRI_MEET) {
        if (!meet(&a, &b, out)) return false;
    } else if (m->kind == CRI_MINUS) {
        if (!complement(&b, &c) || !meet(&a, &c, out)) return false;
    } else {
        clear(out);
        if (!append(out, &a) || !append(out, &b)) return false;
        tidy(out);
    }
    out->name = a.name ? a.name : b.name;
    return true;
}

static bool from_numbers(cri_question *q, const cri_math *m, segments *out)
{
    long double x;

    for (int i = 0; i < m->num_args; i++)
        if (!cri_math_real(q, m->arg[i], &x) || isinf(x) || !put(out, x, x, false, false))
            return false;
    tidy(out);
    return true;
}

static bool from_tree(cri_question *q, const cri_math *m, segments *out, int depth)
{
    long double low, high;

    clear(out);
    if (depth > 8) return false; /* each level holds three lists on the stack */
    switch (m->kind) {
    case CRI_EMPTY:
        return true;
    case CRI_NAMED:
        return strcmp(m->text, "R") == 0 && put(out, -INFINITY, INFINITY, true, true);
    case CRI_REL:
        return from_relation(q, m, out);
    case CRI_TUPLE:
        return m->num_args == 2 && cri_math_real(q, m->arg[0], &low) &&
               cri_math_real(q, m->arg[1], &high) && low <= high &&
               put(out, low, high, m->op & CRI_OPEN_LEFT, m->op & CRI_OPEN_RIGHT);
    case CRI_SET:
        if (m->op == 1 && m->arg[0]->kind == CRI_REL) return from_relations(q, m, out);
        return from_numbers(q, m, out);
    case CRI_UNION:
    case CRI_MEET:
    case CRI_MINUS:
        return from_two(q, m, out, depth);
    default:
        return false;
    }
}

cri_answer cri_sets_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    segments x, y;

    if (!from_tree(q, a, &x, 0) || !from_tree(q, b, &y, 0)) return CRI_UNKNOWN;
    if (x.num != y.num || (x.name && y.name && !is_same_name(x.name, y.name))) return CRI_NO;
    for (int i = 0; i < x.num; i++)
        if (!is_same_real(x.item[i].low, y.item[i].low) ||
            !is_same_real(x.item[i].high, y.item[i].high) ||
            x.item[i].is_low_open != y.item[i].is_low_open ||
            x.item[i].is_high_open != y.item[i].is_high_open)
            return CRI_NO;
    return CRI_YES;
}
