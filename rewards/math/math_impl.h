/* math_impl.h -- the parts of math_rule: text -> tree -> values -> verdict. Inside rewards/math only.
 *
 * Trees live in the arena of one question and die with it. Every step is bounded: bytes, nodes,
 * depth, and the question's deadline; what goes past a bound sets trouble, and the rule then says
 * "error" or "timeout" instead of a verdict. One thread a question.
 */
#ifndef CR_MATH_IMPL_H
#define CR_MATH_IMPL_H

#include "rewards/rule.h"
#include <complex.h>

enum {
    CRI_MATH_MAX_BYTES = 1 << 18,
    CRI_MATH_MAX_NODES = 60000,
    CRI_MATH_MAX_DEPTH = 200,
    CRI_MATH_POINTS = 4, /* numeric samples of each variable */
    CRI_MATH_PRIMES = 2
};

typedef struct cri_question {
    cr_arena *arena;
    double deadline_s;
    long num_nodes, num_steps, num_terms; /* terms of sums and products */
    const char *trouble;                  /* a sentence; NULL: none */
    bool is_late, has_matrix;
    const struct cri_binding *bound; /* of the sums and products around what is evaluated */
    json_t *explain;                 /* where an answer that is found is shown, or NULL */
} cri_question;

/* ---- trees ---- */

typedef enum cri_math_kind {
    CRI_NUM,   /* text: digits, with a point if it is a decimal */
    CRI_SYM,   /* text: lower-case name */
    CRI_PI,    /* the constants */
    CRI_E,     /* */
    CRI_I,     /* */
    CRI_INF,   /* */
    CRI_ADD,   /* from here on: args */
    CRI_NEG,   /* */
    CRI_MUL,   /* */
    CRI_DIV,   /* op: 1 if written with a colon */
    CRI_POW,   /* base, exponent */
    CRI_FUNC,  /* text: name; args; op: 1 if it may be a point, A(1,2) */
    CRI_FACT,  /* */
    CRI_ABS,   /* */
    CRI_FLOOR, /* */
    CRI_CEIL,  /* */
    CRI_BINOM, /* */
    CRI_MOD,   /* op: 1 if written in brackets, as \pmod */
    CRI_UNIT, /* a number and how many of its dimension one is; text: the dimension, "%" or of amounts */
    CRI_MATRIX, /* args row by row, op: columns */
    CRI_SET,    /* op: 1 if written without braces */
    CRI_TUPLE,  /* op: CRI_OPEN_* of its brackets; of two elements: an interval, too */
    CRI_UNION,  /* */
    CRI_MEET,   /* */
    CRI_MINUS,  /* sets */
    CRI_EMPTY,  /* */
    CRI_NAMED,  /* text: R, Q, Z, N, C */
    CRI_REL,   /* a chain: args[0] rel[0] args[1] rel[1] ..; text: one letter of "=<lg>niam" each */
    CRI_CASES, /* value, condition, value, condition .. */
    CRI_CONGRUENT /* left side (or none), remainder, modulus */
} cri_math_kind;

enum { CRI_OPEN_LEFT = 1, CRI_OPEN_RIGHT = 2 };

typedef struct cri_math cri_math;
struct cri_math {
    cri_math_kind kind;
    int op, num_args, height;
    cri_math **arg;
    const char *text;
};

cri_math *cri_math_node(cri_question *q, cri_math_kind kind, int num_args, cri_math *a,
                        cri_math *b);
/* False if the question has run out of time (looked at now and then). */
bool cri_math_goes_on(cri_question *q);

/* ---- text ---- */

/* Content of the last \boxed{..}, else NULL. Owned by the caller. */
char *cri_math_last_box(const char *region);
/* LaTeX without what does not matter: boxes, sizes, dollars, quotes, units. Owned by the caller. */
char *cri_math_clean(const char *text);
/* Signs of Unicode as LaTeX: roots, fractions, raised and lowered digits. Owned by the caller. */
char *cri_math_signs(const char *text);
bool cri_math_is_currency(uint32_t code_point);
/* Bytes of a word of size at s (million, percent), and what it says; 0: none. */
size_t cri_math_size_word(const char *s, const char **latex);
/* 2 hours 30 minutes, 5 cm: numbers with units of one dimension, as CRI_UNIT of the last. NULL: it is none. */
cri_math *cri_math_amount(cri_question *q, const char *text);
/* The value found in free text: the last formula or number, those after "answer" first. NULL: none
 * that can be read. formulas_only: numbers outside of formulas do not count, nor does an earlier formula for one
 * that cannot be read. */
cri_math *cri_math_find(cri_question *q, const char *text, bool formulas_only);

/* ---- parsing ---- */

/* Clean LaTeX or plain text -> tree; NULL: it is no mathematics, or trouble. */
cri_math *cri_math_parse(cri_question *q, const char *clean);

/* ---- values ---- */

/* What an expression is: exact in small rationals and in two prime fields, where pi, e and the
 * variables are random elements, and numeric at CRI_MATH_POINTS values of its variables. */
typedef struct cri_math_value {
    bool is_small, has_field, is_undefined;
    bool is_number[CRI_MATH_POINTS];
    int64_t num, den; /* if is_small: lowest terms, den > 0 */
    uint64_t field[CRI_MATH_PRIMES];
    long double complex z[CRI_MATH_POINTS];
    long double error[CRI_MATH_POINTS]; /* absolute bound */
} cri_math_value;

/* seed: two evaluations with different seeds see different variables. */
cri_math_value cri_math_eval(cri_question *q, const cri_math *m, uint64_t seed);
bool cri_math_is_expression(const cri_math *m);

typedef enum cri_answer { CRI_NO, CRI_YES, CRI_UNKNOWN } cri_answer;
cri_answer cri_value_equal(const cri_math_value *a, const cri_math_value *b);
/* a + sign b; sign: 1 or -1. */
cri_math_value cri_value_add(const cri_math_value *a, const cri_math_value *b, int sign);
cri_math_value cri_value_mul(const cri_math_value *a, const cri_math_value *b);
/* a / b where both are known, else undefined. */
cri_math_value cri_value_div(const cri_math_value *a, const cri_math_value *b);
/* Real, and not farther from each other than half a unit of that decimal place. */
bool cri_value_near(const cri_math_value *a, const cri_math_value *b, int places);
/* A real constant, within its error; false otherwise. Infinities count. */
bool cri_math_real(cri_question *q, const cri_math *m, long double *x);

/* How a tree is read, as plain text, and the value of m or of a part of it if that is a number: into the object `key`
 * of explain. */
void cri_math_explain(cri_question *q, const cri_math *m, const cri_math *part, const char *key,
                      json_t *explain);

/* ---- verdicts ---- */

/* Matrices, one of them or both computed (A + B, 2A, A^2, A^T): CRI_NO or CRI_YES if both have a
 * value, else CRI_UNKNOWN. */
cri_answer cri_matrices_equal(cri_question *q, const cri_math *a, const cri_math *b);
/* Sets of real numbers: CRI_NO or CRI_YES if both are such, else CRI_UNKNOWN. */
cri_answer cri_sets_equal(cri_question *q, const cri_math *a, const cri_math *b);
/* Is the answer right for this gold? Not symmetric. */
bool cri_math_equal(cri_question *q, cri_math *gold, cri_math *answer);
/* Amounts, points with a name, lists that say where a variable lies, functions in parts, congruences:
 * CRI_UNKNOWN if neither side is one. */
cri_answer cri_forms_equal(cri_question *q, cri_math *gold, cri_math *answer);
/* cri_math_equal where constants of an expression have other names: C_1 e^x and A e^x. */
bool cri_math_equal_renamed(cri_question *q, cri_math *gold, cri_math *answer);
/* Decimal places of a number that has enough of them to stand for what it was rounded from; 0: it has not. */
int cri_math_places(const cri_math *m);

#endif
