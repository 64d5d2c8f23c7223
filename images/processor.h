/* processor.h -- from pixels to what a vision tower takes, as the model folder's processor of Transformers does it: size, values, order.
 *
 * Read from processor_config.json or preprocessor_config.json. A frame is resized to sides that are multiples of
 * patch_size x merge_size (smart_resize), its levels become (level x rescale_factor - mean) / std, and it is cut into patches, whose
 * merge_size x merge_size blocks become tokens. An image is one frame that is repeated temporal_patch_size times.
 *
 * Which form of resizing (images/resize.h): the file's class says it. `Qwen2VLImageProcessor` is Pillow's, as in Transformers 4 and
 * in ROLL; `Qwen2VLImageProcessorFast` is torchvision's. (Transformers 5 takes torchvision's for both where it is installed.)
 * The values after it differ in their last bit, too: Pillow's form rescales first, torchvision's folds both steps.
 *
 * Threads: any; a processor is not changed after it was read.
 */
#ifndef CR_IMAGE_PROCESSOR_H
#define CR_IMAGE_PROCESSOR_H

#include "images/resize.h"

typedef struct cr_image_processor {
    cr_resize_form form;
    int patch_size, merge_size, temporal_patch_size;
    cr_image_alpha alpha;           /* of files; not in the processor's file */
    int64_t min_pixels, max_pixels; /* of a resized frame */
    bool has_resize, has_rescale, has_normalize;
    double rescale_factor, mean[3], std[3];
} cr_image_processor;

bool cr_image_processor_exists(const char *folder); /* a file of one, whatever is in it */
/* CR_EABSENT: a processor that is not available. CR_EIO: there is no file. CR_EFORMAT: it is wrong. */
CR_MUST cr_status cr_image_processor_read(const char *folder, cr_image_processor *out, cr_err *err);
/* The same from the text of such a file; `what` is its name in errors. */
CR_MUST cr_status cr_image_processor_parse(const char *text, size_t num_bytes, const char *what,
                                           cr_image_processor *out, cr_err *err);

/* A run's own limits of a resized frame; 0: as the file has it. CR_ECONFIG: min is above max. */
CR_MUST cr_status cr_image_processor_limit(cr_image_processor *p, int64_t min_pixels,
                                           int64_t max_pixels, cr_err *err);

/* A frame's sides after resizing. CR_EARG: one side is more than 200 times the other, or, without resizing, not a multiple. */
CR_MUST cr_status cr_image_target(const cr_image_processor *p, int width, int height, int *to_width,
                                  int *to_height, cr_err *err);

typedef struct cr_image_patches {
    float *
        values; /* [t h w, patch_dim], a patch as [3, temporal_patch_size, patch_size, patch_size]; owned */
    int32_t grid[3]; /* t, h, w: patches along each axis */
    int64_t num_patches, patch_dim;
    int64_t num_tokens; /* of the language model */
} cr_image_patches;

/* Of an image (one frame), or a video: frames of the same size, the last of which is repeated to fill a patch. Frames are resized
 * in place. */
CR_MUST cr_status cr_image_cut(const cr_image_processor *p, cr_image *frames, size_t num_frames,
                               cr_image_patches *out, cr_err *err);
void cr_image_patches_free(cr_image_patches *patches);

#endif
