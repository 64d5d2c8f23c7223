/* math_rows.c -- rows of relations and of values: cases, aligned (see math_impl.h). */
#include "rewards/math/math_parse_impl.h"

#include <ctype.h>
#include <string.h>

/* The first & of the rows stands before a sign, as in x &= 1: it says nothing. */
static bool is_alignment(const cri_math_parser *p)
{
    const char *s = p->s + p->at, *end = strstr(s, "\\end"), *column = strchr(s, '&');

    if (!column || (end && column > end)) return true;
    column += 1 + strspn(column + 1, " ~");
    return strchr("=<>", *column) || strncmp(column, "\\le", 3) == 0 ||
           strncmp(column, "\\ge", 3) == 0 || strncmp(column, "\\ne", 3) == 0;
}

/* {ll} after \begin{array}; true. */
static bool skip_widths(cri_math_parser *p, const char *name)
{
    size_t n;

    if (*name == 'a' && cri_take(p, "{")) cri_braces(p, &n);
    return true;
}

/* "if", "for" before a condition; true: in a text that ends after it. */
static bool take_if(cri_math_parser *p)
{
    static const char *const words[] = {"\\text{if}",
                                        "\\text{if }",
                                        "\\text{ if }",
                                        "\\text{ if}",
                                        "\\mathrm{if}",
                                        "\\mbox{if }",
                                        "if ",
                                        ",",
                                        NULL},
                             *const opened[] = {"\\text{if ", "\\text{for ", "\\mbox{if ", NULL};

    while (cri_take_any(p, words))
        ;
    return cri_take_any(p, opened);
}

/* value & condition, in each row */
static cri_math *piecewise(cri_math_parser *p)
{
    static const char *const ends[] = {",", ";", ".", NULL};
    cri_math_nodes all = {0};
    bool is_text;

    do {
        if (!cri_push(p, &all, cri_parse_sum(p))) return NULL;
        cri_take_any(p, ends);
        if (!cri_take(p, "&")) return NULL;
        is_text = take_if(p);
        if (!cri_push(p, &all, cri_parse_relation(p)) || (is_text && !cri_take(p, "}")))
            return NULL;
        cri_take_any(p, ends);
    } while (cri_take(p, "\\\\") && !cri_sees(p, "\\end"));
    return cri_from_nodes(p, CRI_CASES, &all);
}

static bool is_named(const cri_math *m)
{
    return m->kind == CRI_REL && strcmp(m->text, "=") == 0 && m->arg[0]->kind == CRI_SYM;
}

/* x = 1 and y = 2 in rows is a tuple of both; other relations all hold. */
static cri_math *relations(cri_math_parser *p)
{
    cri_math *m = cri_parse_list(p, CRI_SET, false);
    bool are_named = true;

    if (!m || m->kind != CRI_SET || m->op >= 0) return m;
    for (int i = 0; i < m->num_args; i++)
        are_named = are_named && is_named(m->arg[i]);
    m->kind = are_named ? CRI_TUPLE : CRI_SET;
    m->op = are_named ? CRI_OPEN_LEFT | CRI_OPEN_RIGHT : 1;
    return m;
}

cri_math *cri_rows(cri_math_parser *p, const char *name, size_t n)
{
    static const char *const aligned[] = {"aligned", "align", "gathered",
                                          "gather",  "split", "eqnarray"},
                             *const cases[] = {"cases", "dcases", "array", "rcases"};
    const bool had_rows = p->has_rows, skipped = p->skips_columns;
    cri_math *m;

    n -= n && name[n - 1] == '*';
    if (cri_is_one_of(name, n, aligned, CR_COUNT(aligned)))
        p->skips_columns = true;
    else if (cri_is_one_of(name, n, cases, CR_COUNT(cases)))
        p->skips_columns = skip_widths(p, name) && is_alignment(p);
    else
        return NULL;
    p->has_rows = true;
    m = p->skips_columns ? relations(p) : piecewise(p);
    p->has_rows = had_rows;
    p->skips_columns = skipped;
    return m && cri_take(p, "\\end{") && cri_braces(p, &n) ? m : NULL;
}
