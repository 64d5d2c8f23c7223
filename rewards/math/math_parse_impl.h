/* math_parse_impl.h -- what the files of the parser of math_rule share (see math_parse.c). */
#ifndef CR_MATH_PARSE_IMPL_H
#define CR_MATH_PARSE_IMPL_H

#include "rewards/math/math_impl.h"

typedef struct cri_math_parser {
    cri_question *q;
    const char *s; /* NUL-terminated, borrowed */
    size_t at;
    int depth, bars;     /* open | */
    bool is_minus;       /* which sign +- has */
    bool has_plus_minus; /* one was read */
    bool is_angle;       /* inside a trigonometric argument: degrees count */
    int num_series;      /* sums and products around this place */
    bool is_interval;    /* in a bracket, after a comma: [ closes it, as in [2,5[ */
    bool is_set;         /* in \{ \}: a colon is no quotient */
    bool is_given;       /* in P( ): a bar is no absolute value, as in P(A|B) */
    bool has_rows;       /* in cases or aligned: \\ separates .. */
    bool skips_columns;  /* .. and & means nothing */
} cri_math_parser;

typedef struct cri_math_nodes {
    cri_math **item; /* in the arena */
    int num, capacity;
    bool has_or; /* between two of them */
} cri_math_nodes;

/* ---- math_token.c: nodes and tokens; NULL or false: trouble ---- */

cri_math *cri_leaf(cri_math_parser *p, cri_math_kind kind, const char *text, size_t n);
/* Lower case; spaces and braces are left out. */
cri_math *cri_symbol(cri_math_parser *p, const char *text, size_t n);
bool cri_push(cri_math_parser *p, cri_math_nodes *l, cri_math *m);
cri_math *cri_from_nodes(cri_math_parser *p, cri_math_kind kind, const cri_math_nodes *l);
/* One level more; false: too many, or the time is over. */
bool cri_deeper(cri_math_parser *p);
size_t cri_name_bytes(const char *s);
bool cri_is_one_of(const char *s, size_t n, const char *const *names, size_t num);
/* White space and commands of size and space. */
void cri_skip(cri_math_parser *p);
/* The next bytes, if they are this text; a command must end where the text does. */
bool cri_sees(cri_math_parser *p, const char *text);
bool cri_take(cri_math_parser *p, const char *text);
bool cri_take_any(cri_math_parser *p, const char *const *texts); /* ends with NULL */
/* After {: the bytes up to its }, which is taken; n: how many. NULL: it is not closed. */
const char *cri_braces(cri_math_parser *p, size_t *n);

/* ---- math_rows.c ---- */

/* After \begin{: cases, aligned and their like; NULL: it is none, or not of these forms. */
cri_math *cri_rows(cri_math_parser *p, const char *name, size_t n);

/* ---- math_digits.c ---- */

cri_math *cri_number(cri_math_parser *p);
cri_math *cri_hexadecimal(cri_math_parser *p, size_t start);
/* A number written with a base, 1011_2 or 1A_{16}: its value, else a name of its own. */
cri_math *cri_in_base(cri_math_parser *p, const char *digits, const char *base, size_t num_base);

/* ---- math_primary.c ---- */

bool cri_starts_primary(cri_math_parser *p);
cri_math *cri_primary(cri_math_parser *p);
/* Bytes up to the modulus 7 of (mod 7) in LaTeX or not; 0: something else is next. */
size_t cri_modulus_at(cri_math_parser *p);

/* ---- math_parse.c ---- */

cri_math *cri_parse_list(cri_math_parser *p, cri_math_kind kind, bool is_group);
cri_math *cri_parse_relation(cri_math_parser *p);
cri_math *cri_parse_sum(cri_math_parser *p);
cri_math *cri_parse_product(cri_math_parser *p);
cri_math *cri_parse_postfix(cri_math_parser *p);
/* TeX's argument: a group, a command or one character. */
cri_math *cri_parse_tex_argument(cri_math_parser *p);

#endif
