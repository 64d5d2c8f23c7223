/* grad.h -- `croll grad`: the full gradient of the cross entropy of given lines, on one rank or several.
 *
 * Errors and ownership as in generate.h.
 */
#ifndef CR_GRAD_H
#define CR_GRAD_H

#include "serve/lines/line_images.h"
#include "serve/lines/lines_run.h"

/* path: of a safetensors file for the gradient. Returns the exit code of the command. */
int cr_grad_run(const cr_session_call *call, const char *path, const cr_line_image_words *images);

#endif
