/* processor.h -- from pixels to what a vision tower takes, as the model folder's processor of Transformers does it: size, values, order.
 *
 * Read from processor_config.json, or preprocessor_config.json and video_preprocessor_config.json. There are two kinds. Qwen-VL's: a frame is resized to sides that are multiples of
 * patch_size x merge_size (smart_resize), its levels become (level x rescale_factor - mean) / std, and it is cut into patches, whose
 * merge_size x merge_size blocks become tokens. An image is one frame that is repeated temporal_patch_size times.
 * A video is frames of one size, of which temporal_patch_size in a row make a patch; its limits are its own (video_preprocessor_config.json).
 * Prismatic's: an image becomes a square of one size, once for each tower (a view), with the tower's own mean and std; a patch
 * is a token, and its values are those of the first view and then those of the second.
 *
 * Which form of resizing (images/resize.h): the file's class says it. `Qwen2VLImageProcessor` is Pillow's, as in Transformers 4 and
 * in ROLL; `Qwen2VLImageProcessorFast` is torchvision's; likewise SiglipImageProcessor and BitImageProcessor. PrismaticImageProcessor
 * has Pillow's alone. (Transformers 5 takes torchvision's for both where it is installed.)
 * The values after it differ in their last bit, too: Pillow's form rescales first, torchvision's folds both steps.
 * Videos have torchvision's form, whatever images have: Transformers 5 has no other.
 *
 * Threads: any; a processor is not changed after it was read.
 */
#ifndef CR_IMAGE_PROCESSOR_H
#define CR_IMAGE_PROCESSOR_H

#include "images/resize.h"

/* How an image becomes a square. */
typedef enum cr_image_fit {
    CR_FIT_NAIVE,    /* whatever its shape was */
    CR_FIT_CROP,     /* its shorter side fits, and the middle is cut out */
    CR_FIT_LETTERBOX /* the same after it was padded to a square */
} cr_image_fit;

/* What one tower takes. */
typedef struct cr_image_view {
    int to,
        side; /* the shorter side, or both, after resizing; the side of the square in its middle that is kept */
    int patch_size;
    double mean[3], std[3];
} cr_image_view;
enum { CR_MAX_VIEWS = 2 };

/* What is a video's own. */
typedef struct cr_video_rules {
    bool is_taken; /* false: the model takes images alone */
    bool
        is_other; /* its processor is another class, or differs from that of images in more than limits: not available */
    bool has_joint_limits; /* Qwen3VLVideoProcessor: of all frames together, else of each */
    bool has_times;        /* Qwen3-VL: the text has the time of each patch of frames */
    bool
        is_capped; /* cap_pixels_per_frame, by max_tokens (of a video, or, with joint limits, of a frame) */
    int64_t min_pixels, max_pixels, max_tokens;
    double fps; /* of frames that do not say theirs */
} cr_video_rules;
#define CR_VIDEO_FPS 2.0 /* ROLL's video_fps, and what qwen-vl-utils takes for frames */

typedef struct cr_image_processor {
    cr_resize_form form;
    int patch_size, merge_size, temporal_patch_size;
    cr_image_alpha alpha;           /* of files; not in the processor's file */
    int64_t min_pixels, max_pixels; /* of a resized image */
    cr_video_rules video;
    bool has_resize, has_rescale, has_normalize;
    double rescale_factor, mean[3], std[3];
    /* images of one size; patch_size is that of the first view, merge_size and temporal_patch_size are 1 */
    int num_views; /* 0: the shape of an image decides its size */
    cr_image_view views[CR_MAX_VIEWS];
    cr_image_fit fit;
    uint8_t fill[3];     /* the colour of padding */
    bool is_prismatic;   /* PrismaticImageProcessor */
    int32_t placeholder; /* the id that stands for a patch, after the first of a sequence */
} cr_image_processor;

bool cr_image_processor_exists(const char *folder); /* a file of one, whatever is in it */
/* CR_EABSENT: a processor that is not available. CR_EIO: there is no file. CR_EFORMAT: it is wrong. */
CR_MUST cr_status cr_image_processor_read(const char *folder, cr_image_processor *out, cr_err *err);
/* The same from the text of such a file; `what` is its name in errors. */
CR_MUST cr_status cr_image_processor_parse(const char *text, size_t num_bytes, const char *what,
                                           cr_image_processor *out, cr_err *err);

/* A run's own limits of a resized image; 0: as the file has it. CR_ECONFIG: min is above max, or images have one size. */
CR_MUST cr_status cr_image_processor_limit(cr_image_processor *p, int64_t min_pixels,
                                           int64_t max_pixels, cr_err *err);

/* Append a line of all that values depend on beside an image's bytes and grid. */
void cr_image_processor_name(const cr_image_processor *p, cr_buf *out);

/* The same of videos. CR_ECONFIG: min is above max, or there are no videos. */
CR_MUST cr_status cr_video_processor_limit(cr_image_processor *p, int64_t min_pixels,
                                           int64_t max_pixels, cr_err *err);

/* An image's sides after resizing, of an image of one size those that its first view's patches cover. CR_EARG: one side is more
 * than 200 times the other, or, without resizing, not a multiple; the shape of an image of one size makes it too large on its way. */
CR_MUST cr_status cr_image_target(const cr_image_processor *p, int width, int height, int *to_width,
                                  int *to_height, cr_err *err);

/* Sides of each of a video's frames. CR_EARG: likewise; fewer frames than limits of all together are defined for; no videos. */
CR_MUST cr_status cr_video_target(const cr_image_processor *p, size_t num_frames, int width,
                                  int height, int *to_width, int *to_height, cr_err *err);

typedef struct cr_image_patches {
    float *
        values; /* [t h w, patch_dim], a patch as [3, temporal_patch_size, patch_size, patch_size] for each view; owned */
    int32_t grid[3]; /* t, h, w: patches along each axis */
    int64_t num_patches, patch_dim;
    int64_t num_tokens;    /* of the language model */
    float second_per_grid; /* 0: an image; of a video, temporal_patch_size / fps */
} cr_image_patches;

/* Of an image, which is resized in place. Of a video: images/videos/clip.h. */
CR_MUST cr_status cr_image_cut(const cr_image_processor *p, cr_image *image, cr_image_patches *out,
                               cr_err *err);
void cr_image_patches_free(cr_image_patches *patches);

#endif
