/* line_images.h -- images of a line's messages, on their way from the encoder into a batch or an engine.
 */
#ifndef CR_LINE_IMAGES_H
#define CR_LINE_IMAGES_H

#include "engine/prompt_images.h"
#include "launch/session.h"

/* Messages of lines may have images if the model has a vision tower; image_folder: borrowed, or NULL. */
void cr_line_images_expect(cr_session *session, const char *image_folder);
/* Those of the line that was read last; a line that they do not fit has failed. */
void cr_line_images_take(cr_session *session, cr_line *line, cr_prompt_images *out);

#endif
