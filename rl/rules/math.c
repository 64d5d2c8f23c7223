/* math.c -- see math.h. Numbers and texts for now: the last \boxed{..} against the ground truth. */
#include "rl/rules/math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Content of the last \boxed{..}, braces matched; NULL: none. Owned by the caller. */
static char *last_box(const char *text)
{
    const char *best = NULL, *p = text;
    int depth = 1;

    while ((p = strstr(p, "\\boxed{"))) {
        best = p + 7;
        p = best;
    }
    if (!best) return NULL;
    for (p = best; *p; p++) {
        depth += (*p == '{') - (*p == '}');
        if (depth == 0) return cr_strndup(best, (size_t)(p - best));
    }
    return NULL;
}

static char *without_spaces(const char *text)
{
    char *out = cr_strdup(text), *to = out;

    for (const char *p = text; *p; p++)
        if (!strchr(" \t\n$,", *p)) *to++ = *p;
    *to = 0;
    return out;
}

static bool is_number(const char *text, double *x)
{
    char *end;

    *x = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*x);
}

void cr_math_rule(const char *prompt, const char *response, size_t response_bytes,
                  const char *ground_truth, double deadline_s, cr_rule_result *out)
{
    char *box = last_box(response), *a, *b;
    double x, y;
    bool is_right = false;

    (void)prompt;
    (void)response_bytes;
    (void)deadline_s;
    *out = (cr_rule_result){.status = "ok"};
    if (!box) return;
    a = without_spaces(box);
    b = without_spaces(ground_truth);
    if (is_number(a, &x) && is_number(b, &y))
        is_right = fabs(x - y) <= 5e-7 * fmax(1, fabs(y));
    else
        is_right = *a && strcmp(a, b) == 0;
    out->score = out->reward = is_right;
    cr_free(box);
    cr_free(a);
    cr_free(b);
}
