/* score_line.h -- one line of `croll score`: a row with its response in, a verdict out. */
#ifndef CR_SCORE_LINE_H
#define CR_SCORE_LINE_H

#include "rewards/rules.h"

/* The row of a line, an object with the text "response" and ground_truth; line[n] is changed. *row is owned, also after a
 * failure (NULL: no JSON). */
CR_MUST cr_status cr_score_row(char *line, size_t n, long number, json_t **row, cr_err *err);
/* The same without ground_truth, which not every row has; a NUL in a text stays one. */
CR_MUST cr_status cr_score_row_any(char *line, size_t n, long number, json_t **row, cr_err *err);
/* What an answer looks like: a line of JSON, without or with the member "explain", or a paragraph for people. */
typedef enum cr_score_form { CR_SCORE_PLAIN, CR_SCORE_EXPLAINED, CR_SCORE_PARAGRAPH } cr_score_form;

/* Replace out by the answer: a verdict with what explains it (an object or NULL), or why the line is wrong (error, or
 * NULL). */
void cr_score_answer(const json_t *row, const cr_rule_result *r, const json_t *explain,
                     cr_score_form form, const char *error, cr_buf *out);
/* Both, with a rule: line[n] is changed; out is replaced by a line with the verdict, or with why the line is wrong: then
 * false. The settings' deadline counts from now. */
bool cr_score_line(cr_rule rule, const cr_rule_args *settings, cr_score_form form, char *line,
                   size_t n, long number, cr_buf *out);

#endif
