/* rules.c -- the table of rules (see rules.h). */
#include "rl/rules/rules.h"
#include "rl/rules/choice.h"
#include "rl/rules/ifeval.h"
#include "rl/rules/math.h"

#include <stdio.h>
#include <string.h>

const char *const cr_rule_names[] = {"math_rule",    "ifeval",      "multiple_choice_boxed",
                                     "crossthinkqa", "general_val", NULL};

static void math_rule(const cr_rule_args *a, cr_rule_result *out)
{
    const char *gold = cr_rule_text(a->row, "ground_truth"),
               *prompt = cr_rule_text(a->row, "prompt");

    if (!gold)
        cr_rule_error(out, "the row has no text ground_truth");
    else
        cr_math_rule(prompt ? prompt : "", a->response, a->response_bytes, gold, a->deadline_s,
                     out);
}

cr_rule cr_rule_find(const char *name)
{
    static const cr_rule rules[] = {math_rule, cr_ifeval_rule, cr_multiple_choice_rule,
                                    cr_crossthink_rule, cr_general_val_rule};

    for (size_t i = 0; cr_rule_names[i]; i++)
        if (strcmp(cr_rule_names[i], name) == 0) return rules[i];
    return NULL;
}

void cr_rule_error(cr_rule_result *out, const char *fmt, ...)
{
    va_list ap;

    *out = (cr_rule_result){0};
    memcpy(out->status, "error", 6);
    va_start(ap, fmt);
    vsnprintf(out->detail, sizeof out->detail, fmt, ap);
    va_end(ap);
}

const char *cr_rule_text(const json_t *row, const char *column)
{
    return json_string_value(json_object_get(row, column));
}
