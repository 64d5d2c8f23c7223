/* clip.h -- a video as its frames come: all of one size, each resized at once, cut into patches when all are there. An image is a clip of one
 * frame that has no rate.
 */
#ifndef CR_CLIP_H
#define CR_CLIP_H

#include "images/processor.h"

typedef struct cr_clip {
    const cr_image_processor *processor; /* borrowed */
    size_t num_frames;                   /* that it will have */
    double fps;                          /* 0: an image */
    cr_image *frames;                    /* [num] so far, in their order; owned */
    size_t num;
    int width, height; /* of its frames as they came */
} cr_clip;

/* num_frames at least 1. {0}: none; cr_clip_free ends it. */
void cr_clip_begin(cr_clip *clip, const cr_image_processor *processor, size_t num_frames,
                   double fps);
void cr_clip_free(cr_clip *clip);
/* The next frame, whose pixels are the clip's then (it is {0}). CR_EARG: another size than the first, or that of cr_image_target and
 * cr_video_target. */
CR_MUST cr_status cr_clip_add(cr_clip *clip, cr_image *frame, cr_err *err);
/* All frames are there, and freed then. Errors: those of cr_image_cut. */
CR_MUST cr_status cr_clip_cut(cr_clip *clip, cr_image_patches *out, cr_err *err);
/* CR_EARG: a frame has another size than the first one. */
CR_MUST cr_status cr_clip_same_size(int width, int height, int first_width, int first_height,
                                    cr_err *err);

#endif
