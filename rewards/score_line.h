/* score_line.h -- one line of `croll score`: a row with its response in, a verdict out. */
#ifndef CR_SCORE_LINE_H
#define CR_SCORE_LINE_H

#include "rewards/rules.h"

/* line[n] is changed; out is replaced by a line with the verdict, or with why the line is wrong: then
 * false. The settings' deadline counts from now. */
bool cr_score_line(cr_rule rule, const cr_rule_args *settings, char *line, size_t n, long number,
                   cr_buf *out);

#endif
