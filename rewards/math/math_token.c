/* math_token.c -- nodes, and tokens of LaTeX (see math_parse_impl.h). */
#include "rewards/math/math_parse_impl.h"

#include <ctype.h>
#include <string.h>

/* ---- nodes ---- */

/* What walks a tree recurses: its height is bounded, whatever made it. */
static cri_math *with_height(cri_question *q, cri_math *m)
{
    for (int i = 0; i < m->num_args; i++)
        if (m->arg[i]->height >= m->height) m->height = m->arg[i]->height + 1;
    if (m->height <= 2 * CRI_MATH_MAX_DEPTH) return m;
    if (!q->trouble) q->trouble = "the expression is nested too deeply";
    return NULL;
}

cri_math *cri_math_node(cri_question *q, cri_math_kind kind, int num_args, cri_math *a, cri_math *b)
{
    cri_math *m;

    if (++q->num_nodes > CRI_MATH_MAX_NODES) {
        if (!q->trouble) q->trouble = "the expression is too long";
        return NULL;
    }
    if (num_args >= 1 && (!a || (num_args == 2 && !b))) return NULL;
    m = cr_arena_alloc(q->arena, sizeof *m + 2 * sizeof(cri_math *));
    *m = (cri_math){.kind = kind, .num_args = num_args, .arg = (cri_math **)(m + 1), .text = ""};
    m->arg[0] = a;
    m->arg[1] = b;
    return with_height(q, m);
}

bool cri_math_goes_on(cri_question *q)
{
    if (++q->num_steps % 256 == 0 && cr_now_s() > q->deadline_s) q->is_late = true;
    return !q->is_late;
}

cri_math *cri_leaf(cri_math_parser *p, cri_math_kind kind, const char *text, size_t n)
{
    cri_math *m = cri_math_node(p->q, kind, 0, NULL, NULL);
    char *copy = cr_arena_strndup(p->q->arena, text, n);

    if (m) m->text = copy;
    return m;
}

/* Lower case; spaces and braces are left out. */
cri_math *cri_symbol(cri_math_parser *p, const char *text, size_t n)
{
    char *name = cr_arena_alloc(p->q->arena, n + 1);
    size_t k = 0;
    cri_math *m;

    for (size_t i = 0; i < n; i++)
        if (!strchr(" {}~()", text[i])) name[k++] = (char)tolower((unsigned char)text[i]);
    name[k] = 0;
    m = cri_math_node(p->q, CRI_SYM, 0, NULL, NULL);
    if (m) m->text = name;
    return k ? m : NULL;
}

bool cri_push(cri_math_parser *p, cri_math_nodes *l, cri_math *m)
{
    if (!m) return false;
    if (l->num == l->capacity) {
        int wider = l->capacity ? 2 * l->capacity : 4;
        cri_math **item = cr_arena_alloc(p->q->arena, (size_t)wider * sizeof(cri_math *));
        if (l->num) memcpy(item, l->item, (size_t)l->num * sizeof(cri_math *));
        l->item = item;
        l->capacity = wider;
    }
    l->item[l->num++] = m;
    return true;
}

cri_math *cri_from_nodes(cri_math_parser *p, cri_math_kind kind, const cri_math_nodes *l)
{
    cri_math *m = cri_math_node(p->q, kind, 0, NULL, NULL);

    if (!m) return NULL;
    m->num_args = l->num;
    m->arg = l->item;
    return with_height(p->q, m);
}

/* ---- tokens ---- */

static const char *const skipped[] = {
    "left",         "right",     "mleft",       "mright",   "big",   "Big",   "bigg",
    "Bigg",         "bigl",      "bigr",        "Bigl",     "Bigr",  "biggl", "biggr",
    "quad",         "qquad",     "limits",      "rm",       "it",    "bf",    "mathstrut",
    "displaystyle", "textstyle", "scriptstyle", "nolimits", "strut", "middle"};

size_t cri_name_bytes(const char *s)
{
    size_t n = 0;

    while (n < 64 && isalpha((unsigned char)s[n])) /* no name is longer */
        n++;
    return n;
}

bool cri_is_one_of(const char *s, size_t n, const char *const *names, size_t num)
{
    if (n == 0) return false;
    for (size_t i = 0; i < num; i++)
        if (names[i][0] == *s && strncmp(names[i], s, n) == 0 && !names[i][n]) return true;
    return false;
}

void cri_skip(cri_math_parser *p)
{
    for (;;) {
        const char *s = p->s + p->at;
        if (*s > ' ' && *s < '~' && *s != '\\' && *s != '&') return;
        if (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r' || *s == '~') {
            p->at++;
        } else if (*s == '&' && p->skips_columns) {
            p->at++;
        } else if (strncmp(s, "\xC2\xA0", 2) == 0) {
            p->at += 2;
        } else if (*s == '\\' && s[1] && strchr(",;:!> ", s[1])) {
            p->at += 2;
        } else if (*s == '\\' &&
                   cri_is_one_of(s + 1, cri_name_bytes(s + 1), skipped, CR_COUNT(skipped))) {
            bool is_size = strncmp(s, "\\left", 5) == 0 || strncmp(s, "\\right", 6) == 0;
            p->at += 1 + cri_name_bytes(s + 1);
            if (is_size && p->s[p->at] == '.') p->at++; /* an invisible bracket */
        } else if (strncmp(s, "\\quad", 5) == 0) {
            p->at += 5; /* \quadx, as some write it */
        } else {
            return;
        }
    }
}

/* The next bytes, if they are this text; a command must end where the text does. */
bool cri_sees(cri_math_parser *p, const char *text)
{
    size_t n;

    cri_skip(p);
    if (p->s[p->at] != text[0] || strncmp(p->s + p->at, text, n = strlen(text)) != 0) return false;
    return text[0] != '\\' || !isalpha((unsigned char)text[n - 1]) ||
           !isalpha((unsigned char)p->s[p->at + n]);
}

bool cri_take(cri_math_parser *p, const char *text)
{
    if (!cri_sees(p, text)) return false;
    p->at += strlen(text);
    return true;
}

bool cri_take_any(cri_math_parser *p, const char *const *texts)
{
    for (; *texts; texts++)
        if (cri_take(p, *texts)) return true;
    return false;
}

bool cri_deeper(cri_math_parser *p)
{
    if (++p->depth <= CRI_MATH_MAX_DEPTH && cri_math_goes_on(p->q)) return true;
    if (p->depth > CRI_MATH_MAX_DEPTH && !p->q->trouble)
        p->q->trouble = "the expression is nested too deeply";
    return false;
}

/* After {: the bytes up to its }, which is taken; n: how many. */
const char *cri_braces(cri_math_parser *p, size_t *n)
{
    const char *start = p->s + p->at;
    int depth = 1;

    for (; p->s[p->at]; p->at++) {
        depth += (p->s[p->at] == '{') - (p->s[p->at] == '}');
        if (depth == 0) {
            *n = (size_t)(p->s + p->at - start);
            p->at++;
            return start;
        }
    }
    return NULL;
}
