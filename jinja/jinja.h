/* jinja.h -- an interpreter of the part of Jinja2 that chat templates are written in.
 *
 * The text is that of Transformers' renderer: jinja2 3.1 with trim_blocks and lstrip_blocks, break
 * and continue, {% generation %}, its tojson, raise_exception and strftime_now, and Python's rules
 * for values (truth, str(), slices, comparisons, characters as code points). Values cannot be
 * changed but for namespaces, as in its sandbox. What is not known here (recursive loops, imports,
 * rare filters) is an error where it is met, never left out.
 *
 * A template is code of a stranger: depth, steps, memory and output are bounded, so it ends with a
 * text or an error. SOURCE_DATE_EPOCH, if set, is the time of strftime_now, in UTC.
 *
 * Ownership: a template copies its text. Threads: it is read-only, any number may render it.
 * Errors: CR_EFORMAT, "WHAT: line N: why".
 */
#ifndef CR_JINJA_H
#define CR_JINJA_H

#include "base/json.h"

typedef struct cr_jinja cr_jinja;

/* what: how errors name the template; copied. *out is NULL after a failure. */
CR_MUST cr_status cr_jinja_parse(const char *text, size_t num_bytes, const char *what,
                                 cr_jinja **out, cr_err *err);
void cr_jinja_free(cr_jinja *jinja); /* accepts NULL */
/* Append the text to out. vars: an object of the variables that the template can name. */
CR_MUST cr_status cr_jinja_render(const cr_jinja *jinja, const json_t *vars, cr_buf *out,
                                  cr_err *err);

#endif
