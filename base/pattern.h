/* pattern.h -- regular expressions that a user wrote (PCRE2, UTF-8), for texts of any origin.
 *
 * A match takes a bounded number of steps and of memory: a pattern that goes wrong on a text is an error, never a wait.
 * One thread a pattern.
 */
#ifndef CR_PATTERN_H
#define CR_PATTERN_H

#include "base/base.h"

typedef struct cr_pattern cr_pattern;
/* CR_EFORMAT: "character 3: missing closing parenthesis". */
CR_MUST cr_status cr_pattern_open(const char *text, cr_pattern **out, cr_err *err);
void cr_pattern_close(cr_pattern *p); /* accepts NULL */
/* Has it a group (?<name>..)? */
bool cr_pattern_has(const cr_pattern *p, const char *name);
/* The next match of a text from *at (first 0, then what it was left at; CR_EFORMAT at 0 if it is not UTF-8), which goes past it; *is_found: is there one? CR_EFORMAT: it takes too many
 * steps. */
CR_MUST cr_status cr_pattern_next(cr_pattern *p, const char *text, size_t num_bytes, size_t *at,
                                  bool *is_found, cr_err *err);
/* What a group of the last match took, borrowed from its text; NULL: it took no part. */
const char *cr_pattern_group(const cr_pattern *p, const char *name, size_t *num_bytes);

#endif
