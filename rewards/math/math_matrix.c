/* math_matrix.c -- what a sum, product, power or transpose of matrices is worth.
 *
 * Elements are values (see math_value.c), so a power of a matrix costs no more than its products.
 */
#include "rewards/math/math_impl.h"

#include <string.h>

enum { MAX_MATRIX = 64 /* elements */, MAX_MATRIX_POWER = 1000 };

typedef struct matrix {
    int rows, columns; /* 0, 0: a number, in x[0] */
    int places; /* of an element written as a decimal (cri_math_places), the fewest; 0: none */
    cri_math_value x[MAX_MATRIX];
} matrix;

static matrix *new_matrix(cri_question *q, int rows, int columns)
{
    matrix *m = cr_arena_alloc(q->arena, sizeof *m);

    m->rows = rows;
    m->columns = columns;
    m->places = 0;
    return m;
}

static int num_elements(const matrix *m)
{
    return m->rows ? m->rows * m->columns : 1;
}

static matrix *add(cri_question *q, const matrix *a, const matrix *b)
{
    matrix *m;

    if (a->rows != b->rows || a->columns != b->columns) return NULL;
    m = new_matrix(q, a->rows, a->columns);
    for (int i = 0; i < num_elements(a); i++)
        m->x[i] = cri_value_add(&a->x[i], &b->x[i], 1);
    return m;
}

static matrix *times(cri_question *q, const matrix *a, const matrix *b)
{
    matrix *m;

    if (!a->rows || !b->rows) { /* a number and perhaps a matrix */
        const matrix *number = a->rows ? b : a, *other = a->rows ? a : b;
        m = new_matrix(q, other->rows, other->columns);
        for (int i = 0; i < num_elements(other); i++)
            m->x[i] = cri_value_mul(&number->x[0], &other->x[i]);
        return m;
    }
    if (a->columns != b->rows || a->rows * b->columns > MAX_MATRIX) return NULL;
    m = new_matrix(q, a->rows, b->columns);
    for (int r = 0; r < a->rows; r++)
        for (int c = 0; c < b->columns; c++) {
            cri_math_value *sum = &m->x[r * m->columns + c];
            *sum = cri_value_mul(&a->x[r * a->columns], &b->x[c]);
            for (int k = 1; k < a->columns; k++) {
                cri_math_value v =
                    cri_value_mul(&a->x[r * a->columns + k], &b->x[k * b->columns + c]);
                *sum = cri_value_add(sum, &v, 1);
            }
        }
    return m;
}

static matrix *transpose(cri_question *q, const matrix *a)
{
    matrix *m = new_matrix(q, a->columns, a->rows);

    for (int r = 0; r < a->rows; r++)
        for (int c = 0; c < a->columns; c++)
            m->x[c * m->columns + r] = a->x[r * a->columns + c];
    return m;
}

static const matrix *power(cri_question *q, const matrix *a, const cri_math *exponent)
{
    const matrix *m = NULL, *square = a;
    cri_math_value v;

    if (exponent->kind == CRI_SYM &&
        (strcmp(exponent->text, "t") == 0 || strcmp(exponent->text, "top") == 0))
        return transpose(q, a);
    v = cri_math_eval(q, exponent, 0);
    if (!v.is_small || v.den != 1 || v.num < 1 || v.num > MAX_MATRIX_POWER) return NULL;
    for (int64_t n = v.num; square && n; n >>= 1) {
        if (n & 1) m = m ? times(q, m, square) : square;
        if (n > 1) square = times(q, square, square);
    }
    return m;
}

static int fewer(int a, int b)
{
    return a && (a < b || !b) ? a : b;
}

static const matrix *from_tree(cri_question *q, const cri_math *m);

/* A sum or a product of values that may be matrices, in their order. */
static const matrix *fold(cri_question *q, const cri_math *m)
{
    const matrix *all = from_tree(q, m->arg[0]);

    for (int i = 1; i < m->num_args && all && cri_math_goes_on(q); i++) {
        const matrix *x = from_tree(q, m->arg[i]);
        if (!x) return NULL;
        all = m->kind == CRI_ADD ? add(q, all, x) : times(q, all, x);
    }
    return all;
}

static const matrix *number(cri_question *q, cri_math_value v)
{
    matrix *m = new_matrix(q, 0, 0);

    m->x[0] = v;
    return v.is_undefined ? NULL : m;
}

static const matrix *from_tree(cri_question *q, const cri_math *m)
{
    cri_math_value zero;
    const matrix *a, *b;
    matrix *out;

    switch (m->kind) {
    case CRI_MATRIX:
        if (m->num_args > MAX_MATRIX) return NULL;
        out = new_matrix(q, m->num_args / m->op, m->op);
        for (int i = 0; i < m->num_args; i++) {
            out->x[i] = cri_math_eval(q, m->arg[i], 0);
            out->places = fewer(out->places, cri_math_places(m->arg[i]));
        }
        return out;
    case CRI_ADD:
    case CRI_MUL:
        return fold(q, m);
    case CRI_NEG:
        if (!(a = from_tree(q, m->arg[0]))) return NULL;
        zero = cri_value_add(&a->x[0], &a->x[0], -1);
        out = new_matrix(q, a->rows, a->columns);
        for (int i = 0; i < num_elements(a); i++)
            out->x[i] = cri_value_add(&zero, &a->x[i], -1);
        return out;
    case CRI_DIV:
        a = from_tree(q, m->arg[0]);
        b = from_tree(q, m->arg[1]);
        if (!a || !b || b->rows) return NULL;
        out = new_matrix(q, a->rows, a->columns);
        for (int i = 0; i < num_elements(a); i++)
            out->x[i] = cri_value_div(&a->x[i], &b->x[0]);
        return out;
    case CRI_POW:
        a = from_tree(q, m->arg[0]);
        if (a && a->rows) return power(q, a, m->arg[1]);
        return number(q, cri_math_eval(q, m, 0));
    default:
        return cri_math_is_expression(m) ? number(q, cri_math_eval(q, m, 0)) : NULL;
    }
}

cri_answer cri_matrices_equal(cri_question *q, const cri_math *a, const cri_math *b)
{
    const matrix *x = from_tree(q, a), *y = from_tree(q, b);
    int places;

    if (!x || !y) return CRI_UNKNOWN;
    places = fewer(x->places, y->places);
    if (x->rows != y->rows || x->columns != y->columns) return CRI_NO;
    for (int i = 0; i < num_elements(x); i++)
        if (cri_value_equal(&x->x[i], &y->x[i]) != CRI_YES &&
            !(places && cri_value_near(&x->x[i], &y->x[i], places)))
            return CRI_NO;
    return CRI_YES;
}
