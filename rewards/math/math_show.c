/* math_show.c -- how a tree was read, for people (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <string.h>

enum { LONGEST = 1000 };

static void show(const cri_math *m, cr_buf *out);

static bool is_compound(const cri_math *m)
{
    return (m->kind >= CRI_ADD && m->kind <= CRI_POW) || m->kind == CRI_MOD ||
           m->kind == CRI_UNIT || m->kind == CRI_REL ||
           (m->kind >= CRI_UNION && m->kind <= CRI_MINUS);
}

/* Arguments; in_brackets: those that are themselves of several. */
static void show_arguments(const cri_math *m, const char *between, bool in_brackets, cr_buf *out)
{
    for (int i = 0; i < m->num_args && out->num_bytes < LONGEST; i++) {
        const bool is_inside = in_brackets && is_compound(m->arg[i]),
                   is_row = m->kind == CRI_MATRIX && m->op && i % m->op == 0;
        if (i) cr_buf_adds(out, is_row ? "; " : between);
        if (is_inside) cr_buf_addc(out, '(');
        show(m->arg[i], out);
        if (is_inside) cr_buf_addc(out, ')');
    }
}

/* The sign before each argument but the first is one letter of text. */
static void show_relations(const cri_math *m, cr_buf *out)
{
    static const char letters[] = "=<lg>niam", *const names[] = {"=",  "<",  "<=", ">=",   ">",
                                                                 "!=", "in", "~",  "given"};

    for (int i = 0; i < m->num_args && out->num_bytes < LONGEST; i++) {
        const char *at = i && m->text[i - 1] ? strchr(letters, m->text[i - 1]) : NULL;
        const bool is_inside = is_compound(m->arg[i]);
        if (i) cr_buf_addf(out, " %s ", at ? names[at - letters] : "?");
        cr_buf_adds(out, is_inside ? "(" : "");
        show(m->arg[i], out);
        cr_buf_adds(out, is_inside ? ")" : "");
    }
}

static void show(const cri_math *m, cr_buf *out)
{
    static const struct {
        const char *open, *between, *close;
        bool in_brackets; /* arguments of several parts */
    } forms[] = {[CRI_PI] = {"pi", "", "", false},
                 [CRI_E] = {"e", "", "", false},
                 [CRI_I] = {"i", "", "", false},
                 [CRI_INF] = {"oo", "", "", false},
                 [CRI_EMPTY] = {"{}", "", "", false},
                 [CRI_ADD] = {"", " + ", "", true},
                 [CRI_NEG] = {"-", "", "", true},
                 [CRI_MUL] = {"", "*", "", true},
                 [CRI_DIV] = {"", "/", "", true},
                 [CRI_POW] = {"", "^", "", true},
                 [CRI_FACT] = {"", "", "!", true},
                 [CRI_MOD] = {"", " mod ", "", true},
                 [CRI_UNIT] = {"", " of ", "", true},
                 [CRI_CASES] = {"cases(", ", ", ")", false},
                 [CRI_CONGRUENT] = {"congruent(", ", ", ")", false},
                 [CRI_UNION] = {"", " or ", "", true},
                 [CRI_MEET] = {"", " and ", "", true},
                 [CRI_MINUS] = {"", " without ", "", true},
                 [CRI_ABS] = {"abs(", ", ", ")", false},
                 [CRI_FLOOR] = {"floor(", ", ", ")", false},
                 [CRI_CEIL] = {"ceil(", ", ", ")", false},
                 [CRI_BINOM] = {"binom(", ", ", ")", false},
                 [CRI_FUNC] = {"(", ", ", ")", false},
                 [CRI_MATRIX] = {"[", ", ", "]", false},
                 [CRI_SET] = {"{", ", ", "}", false},
                 [CRI_TUPLE] = {"[", ", ", "]", false}};

    if (out->num_bytes >= LONGEST) return;
    if (m->kind == CRI_NUM || m->kind == CRI_SYM || m->kind == CRI_NAMED || m->kind == CRI_FUNC)
        cr_buf_adds(out, m->text);
    if (m->kind == CRI_NUM || m->kind == CRI_SYM || m->kind == CRI_NAMED) return;
    if (m->kind == CRI_REL) {
        show_relations(m, out);
        return;
    }
    cr_buf_adds(out, m->kind == CRI_TUPLE && m->op & CRI_OPEN_LEFT ? "(" : forms[m->kind].open);
    show_arguments(m, forms[m->kind].between, forms[m->kind].in_brackets, out);
    cr_buf_adds(out, m->kind == CRI_TUPLE && m->op & CRI_OPEN_RIGHT ? ")" : forms[m->kind].close);
}

void cri_math_explain(cri_question *q, const cri_math *m, const cri_math *part, const char *key,
                      json_t *explain)
{
    json_t *side = json_object();
    cr_buf text = {0};
    long double x;

    show(m, &text);
    cr_explain_text(side, "read_as", text.data ? text.data : "", text.num_bytes);
    cr_buf_free(&text);
    if (cri_math_is_expression(part)) {
        cri_math_value v = cri_math_eval(q, part, 1);
        if (v.is_small && !v.is_undefined && v.den != 1)
            cr_explain_format(side, "value", "%lld/%lld", (long long)v.num, (long long)v.den);
        else if (v.is_small && !v.is_undefined)
            cr_explain_format(side, "value", "%lld", (long long)v.num);
        else if (cri_math_real(q, part, &x))
            cr_explain_format(side, "value", "%.12Lg", x);
    }
    cr_explain_value(explain, key, side);
}
