/* formula.h -- one formula of training on numbers that were written down, so that any number of a
 * run can be checked by hand.
 *
 * A request is one JSON object: rows of different lengths, settings under ROLL's names. It is checked
 * in full, then the very functions of rl/ and kernels/ are called that training calls, then the
 * answer is one JSON object.
 *
 * Ownership: the text is borrowed during the call. Threads: any. Errors: CR_EFORMAT, CR_EARG with
 * the key and index; also for a result that is not finite.
 */
#ifndef CR_FORMULA_H
#define CR_FORMULA_H

#include "base/json.h"

/* Names of all formulas, NULL-terminated. */
extern const char *const cr_formula_names[];
/* Append the answer, without a newline, to out. After a failure out is as before. */
CR_MUST cr_status cr_formula(const char *name, const char *text, size_t num_bytes, cr_buf *out,
                             cr_err *err);

#endif
