/* math_show.c -- how a tree was read, for people (see math_impl.h). */
#include "rewards/math/math_impl.h"

#include <string.h>

enum { LONGEST = 1000 };

static void show(const cri_math *m, cr_buf *out);

static bool is_compound(const cri_math *m)
{
    return (m->kind >= CRI_ADD && m->kind <= CRI_POW) || m->kind == CRI_MOD || m->kind == CRI_REL ||
           (m->kind >= CRI_UNION && m->kind <= CRI_MINUS);
}

static void show_part(const cri_math *m, cr_buf *out)
{
    cr_buf_adds(out, is_compound(m) ? "(" : "");
    show(m, out);
    cr_buf_adds(out, is_compound(m) ? ")" : "");
}

/* a SEPARATOR b SEPARATOR c, in brackets where an argument is itself of several. */
static void show_joined(const cri_math *m, const char *separator, cr_buf *out)
{
    for (int i = 0; i < m->num_args && out->num_bytes < LONGEST; i++) {
        if (i) cr_buf_adds(out, separator);
        show_part(m->arg[i], out);
    }
}

static void show_list(const cri_math *m, const char *open, const char *close, cr_buf *out)
{
    cr_buf_adds(out, open);
    for (int i = 0; i < m->num_args && out->num_bytes < LONGEST; i++) {
        if (i) cr_buf_adds(out, m->kind == CRI_MATRIX && m->op && i % m->op == 0 ? "; " : ", ");
        show(m->arg[i], out);
    }
    cr_buf_adds(out, close);
}

static void show_relations(const cri_math *m, cr_buf *out)
{
    static const char letters[] = "=<lg>nia", *const names[] = {
                                                  "=", "<", "<=", ">=", ">", "!=", "in", "~"};

    for (int i = 0; i < m->num_args && out->num_bytes < LONGEST; i++) {
        const char *at = i && m->text[i - 1] ? strchr(letters, m->text[i - 1]) : NULL;
        if (i) cr_buf_addf(out, " %s ", at ? names[at - letters] : "?");
        show_part(m->arg[i], out);
    }
}

static void show(const cri_math *m, cr_buf *out)
{
    static const char *const names[] = {
        [CRI_PI] = "pi",           [CRI_E] = "e",        [CRI_I] = "i",
        [CRI_INF] = "oo",          [CRI_ADD] = " + ",    [CRI_MUL] = "*",
        [CRI_DIV] = "/",           [CRI_POW] = "^",      [CRI_ABS] = "abs(",
        [CRI_FLOOR] = "floor(",    [CRI_CEIL] = "ceil(", [CRI_BINOM] = "binom(",
        [CRI_MOD] = " mod ",       [CRI_UNION] = " or ", [CRI_MEET] = " and ",
        [CRI_MINUS] = " without ", [CRI_EMPTY] = "{}"};

    if (out->num_bytes >= LONGEST) return;
    switch (m->kind) {
    case CRI_NUM:
    case CRI_SYM:
    case CRI_NAMED:
        cr_buf_adds(out, m->text);
        break;
    case CRI_PI:
    case CRI_E:
    case CRI_I:
    case CRI_INF:
    case CRI_EMPTY:
        cr_buf_adds(out, names[m->kind]);
        break;
    case CRI_ADD:
    case CRI_MUL:
    case CRI_DIV:
    case CRI_POW:
    case CRI_MOD:
    case CRI_UNION:
    case CRI_MEET:
    case CRI_MINUS:
        show_joined(m, names[m->kind], out);
        break;
    case CRI_NEG:
        cr_buf_addc(out, '-');
        show_part(m->arg[0], out);
        break;
    case CRI_FACT:
        show_part(m->arg[0], out);
        cr_buf_addc(out, '!');
        break;
    case CRI_FUNC:
        cr_buf_adds(out, m->text);
        show_list(m, "(", ")", out);
        break;
    case CRI_ABS:
    case CRI_FLOOR:
    case CRI_CEIL:
    case CRI_BINOM:
        show_list(m, names[m->kind], ")", out);
        break;
    case CRI_MATRIX:
        show_list(m, "[", "]", out);
        break;
    case CRI_SET:
        show_list(m, "{", "}", out);
        break;
    case CRI_TUPLE:
        show_list(m, m->op & CRI_OPEN_LEFT ? "(" : "[", m->op & CRI_OPEN_RIGHT ? ")" : "]", out);
        break;
    case CRI_REL:
        show_relations(m, out);
        break;
    }
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
        cri_value v = cri_math_eval(q, part, 1);
        if (v.is_small && !v.is_undefined && v.den != 1)
            cr_explain_format(side, "value", "%lld/%lld", (long long)v.num, (long long)v.den);
        else if (v.is_small && !v.is_undefined)
            cr_explain_format(side, "value", "%lld", (long long)v.num);
        else if (cri_math_real(q, part, &x))
            cr_explain_format(side, "value", "%.12Lg", x);
    }
    cr_explain_value(explain, key, side);
}
