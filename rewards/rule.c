/* rule.c -- see rule.h. */
#include "rewards/rule.h"

#include <stdio.h>
#include <string.h>

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
