/* rule.h -- what every reward rule takes and gives (rules.h is the table of them). Threads: any.
 */
#ifndef CR_RULE_H
#define CR_RULE_H

#include "base/json.h"
#include "samples/outcome.h"

typedef struct cr_rule_result {
    double score, reward;
    cr_outcome outcome;
    char detail[200];
} cr_rule_result;

/* What the detail begins with where a response has no answer at all (its score is 0). */
#define CR_NO_ANSWER "no answer"

struct cr_reward_terms; /* configs/configs.h */

typedef struct cr_rule_args {
    const json_t *row;    /* an object */
    const char *response; /* as generated, special tokens and NUL bytes included */
    size_t response_bytes;
    const char *reward_type; /* "loose", "soft", "strict", or NULL */
    double length_coef;      /* response_length_penalty_coef */
    const struct cr_reward_terms
        *terms; /* of format, length, repetition, detection; NULL: their defaults */
    double deadline_s;
    json_t *explain; /* an object for what was looked at and found, or NULL (borrowed) */
} cr_rule_args;

typedef void (*cr_rule)(const cr_rule_args *a, cr_rule_result *out);

void cr_rule_error(cr_rule_result *out, const char *fmt, ...) CR_PRINTF(2, 3);
/* ---- members of explain, an object or NULL: then nothing happens ---- */

/* A text, cut after CR_EXPLAINED bytes. */
enum { CR_EXPLAINED = 2000 };
void cr_explain_text(json_t *explain, const char *key, const char *text, size_t num_bytes);
void cr_explain_format(json_t *explain, const char *key, const char *fmt, ...) CR_PRINTF(3, 4);
void cr_explain_value(json_t *explain, const char *key, json_t *value); /* value is taken over */
/* `found`, num_bytes of text, and `context`: these in [[ ]] with some text around them. */
void cr_explain_found(json_t *explain, const char *text, const char *found, size_t num_bytes);

/* Text of a column; NULL: none. */
const char *cr_rule_text(const json_t *row, const char *column);

#endif
