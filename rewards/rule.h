/* rule.h -- what every reward rule takes and gives (rules.h is the table of them). Threads: any.
 */
#ifndef CR_RULE_H
#define CR_RULE_H

#include "base/json.h"

typedef struct cr_rule_result {
    double score, reward;
    char status[12]; /* "ok", "timeout", "error" */
    char detail[200];
} cr_rule_result;

typedef struct cr_rule_args {
    const json_t *row;    /* an object */
    const char *response; /* as generated, special tokens and NUL bytes included */
    size_t response_bytes;
    const char *reward_type; /* "loose", "soft", "strict", or NULL */
    double length_coef;      /* response_length_penalty_coef */
    double deadline_s;
} cr_rule_args;

typedef void (*cr_rule)(const cr_rule_args *a, cr_rule_result *out);

void cr_rule_error(cr_rule_result *out, const char *fmt, ...) CR_PRINTF(2, 3);
/* Text of a column; NULL: none. */
const char *cr_rule_text(const json_t *row, const char *column);

#endif
