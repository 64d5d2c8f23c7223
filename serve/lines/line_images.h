/* line_images.h -- images of a line's messages, on their way from the encoder into a batch.
 */
#ifndef CR_LINE_IMAGES_H
#define CR_LINE_IMAGES_H

#include "launch/session.h"
#include "strategies/packed_images.h"

typedef struct cr_line_images {
    cr_seq_images seq; /* of the arrays below */
    int32_t *grid;     /* owned, as are pixels */
    float *pixels;
} cr_line_images;

/* Messages of lines may have images if the model has a vision tower; image_folder: borrowed, or NULL. */
void cr_line_images_expect(cr_session *session, const char *image_folder);
/* Those of the line that was read last; a line that they do not fit has failed. */
void cr_line_images_take(cr_session *session, cr_line *line, cr_line_images *out);
void cr_line_images_free(cr_line_images *images);

#endif
