/* ahead.h -- digests and sizes of images that a reader is asked for: read, and decoded by all workers of its pool at a time, of any number of
 * chats. (One chat after the other leaves all workers but one idle where each has a single image.)
 *
 * What was found is kept until the next look; it is taken in about the order in which images were added.
 */
#ifndef CR_IMAGE_AHEAD_H
#define CR_IMAGE_AHEAD_H

#include "base/digest.h"
#include "base/json.h"
#include "images/pool.h"

typedef struct cr_image_ahead cr_image_ahead;

/* Of one image. */
typedef struct cr_image_look {
    cr_err err;                  /* why it could not be read or decoded */
    char digest[CR_DIGEST_TEXT]; /* of its file, */
    size_t num_bytes;            /* and its size */
    int width, height;
    bool is_decoded; /* by this look: its size was not known before */
} cr_image_look;

/* folder: image_folder, or NULL; borrowed, as is the pool. */
cr_image_ahead *cr_image_ahead_create(cr_image_pool *pool, const char *folder);
void cr_image_ahead_destroy(cr_image_ahead *ahead); /* accepts NULL */
/* One more to look at. */
void cr_image_ahead_add(cr_image_ahead *ahead, const json_t *value);
/* At all that were added, until those that it has decoded have more than max_pixels together; what the look before has found is
 * forgotten, but sizes by digest. Fails only if there can be no worker. */
CR_MUST cr_status cr_image_ahead_look(cr_image_ahead *ahead, int64_t max_pixels, cr_err *err);
/* NULL: it was not looked at. Borrowed until the next look. */
const cr_image_look *cr_image_ahead_find(cr_image_ahead *ahead, const json_t *value);

#endif
