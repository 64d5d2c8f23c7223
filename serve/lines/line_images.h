/* line_images.h -- images of a line's messages, on their way from the encoder into a batch or an engine.
 */
#ifndef CR_LINE_IMAGES_H
#define CR_LINE_IMAGES_H

#include "engine/prompt_images.h"
#include "launch/session.h"

typedef struct cr_line_image_words {
    const char *folder, *alpha; /* --image-folder, --image-alpha: borrowed, or NULL */
} cr_line_image_words;
#define CR_LINE_IMAGE_OPTIONS(words)                                                       \
    {"image-folder", CR_OPT_STRING, &(words).folder, "DIR",                                \
     "where paths of images begin, which parts of messages may have (default: no paths)"}, \
    {                                                                                      \
        "image-alpha", CR_OPT_STRING, &(words).alpha, "drop|white",                        \
            "drop alpha of images, or blend them with white (default drop)"                \
    }

/* Messages of lines may have images if the model has a vision tower. */
CR_MUST cr_status cr_line_images_expect(cr_session *session, const cr_line_image_words *words,
                                        cr_err *err);
/* Those of the line that was read last; a line that they do not fit has failed. */
void cr_line_images_take(cr_session *session, cr_line *line, cr_prompt_images *out);

#endif
