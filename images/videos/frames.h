/* frames.h -- the files of a video's frames as one run of bytes, which is stored and sent where an image is its file.
 *
 * An image's digest is that of its file; a video's is that of its frames' digests and its rate, so it is known without the bytes at hand.
 */
#ifndef CR_FRAMES_H
#define CR_FRAMES_H

#include "base/digest.h"

/* Read from such bytes, or from the file of an image, which is one frame of no rate. */
typedef struct cr_frames {
    double fps;        /* 0: an image */
    size_t num;        /* at least 1 */
    const void **data; /* [num] files, in what was read; the array is owned */
    size_t *num_bytes; /* [num] owned */
} cr_frames;

/* Append num files with their rate (above 0). */
void cr_frames_put(double fps, const cr_buf *files, size_t num, cr_buf *out);
/* CR_EFORMAT: it begins like a video and is none. */
CR_MUST cr_status cr_frames_get(const void *data, size_t num_bytes, cr_frames *out, cr_err *err);
void cr_frames_free(cr_frames *frames);
void cr_frames_digest(const cr_frames *frames, char hex[CR_DIGEST_TEXT]);
/* Of a video whose frames have these digests. */
void cr_video_digest(double fps, const char (*digests)[CR_DIGEST_TEXT], size_t num,
                     char hex[CR_DIGEST_TEXT]);

#endif
