/* processor_impl.h -- keys of a processor's file, and processors of images of one size. Inside images/ only.
 */
#ifndef CR_IMAGE_PROCESSOR_IMPL_H
#define CR_IMAGE_PROCESSOR_IMPL_H

#include "base/json.h"
#include "images/processor.h"

/* An object of the file. Functions below leave *out as it is where a key is absent or null; the first wrong key is in err. */
typedef struct cri_image_keys {
    const json_t *object;
    const char *what;
    cr_err *err;
} cri_image_keys;

enum { CRI_IMAGE_MAX_PATCH = 512 };

const json_t *cri_image_key(const cri_image_keys *k, const char *name); /* NULL: absent or null */
void cri_image_key_int(const cri_image_keys *k, const char *name, int64_t min, int64_t max,
                       int64_t *out);
void cri_image_key_bool(const cri_image_keys *k, const char *name, bool *out);
/* Three numbers, or one for all channels; value NULL: nothing. `name` is for errors. */
void cri_image_key_channels(const cri_image_keys *k, const char *name, const json_t *value,
                            bool is_positive, double out[3]);

/* views_read.c: the keys of PrismaticImageProcessor; those of SiglipImageProcessor and BitImageProcessor, after the ones that
 * they share with others (`out` has the usual values of the class). */
void cri_prismatic_keys(const cri_image_keys *k, cr_image_processor *out);
void cri_view_keys(const cri_image_keys *k, cr_image_processor *out);
/* What the towers of the same folder's config.json want: patches, and the id that stands for one. */
CR_MUST cr_status cri_views_fit(const char *folder, cr_image_processor *out, cr_err *err);

/* Patches of frames (images of one size: of one) that have their sides already, the last repeated to fill a patch. fps 0: an image. */
void cri_image_cut(const cr_image_processor *p, cr_image *frames, size_t num_frames, double fps,
                   cr_image_patches *out);

/* videos/read.c: the rules of videos of a model folder, whose images' are read. */
CR_MUST cr_status cri_video_read(const char *folder, cr_image_processor *out, cr_err *err);
/* The keys of such a file; model_type of config.json, or NULL. */
void cri_video_keys(const cri_image_keys *k, const char *model_type, cr_image_processor *out);
/* Areas, whatever their names say: in `size`, and those of the file itself come before these. */
void cri_image_key_areas(const cri_image_keys *k, bool in_size_alone, int64_t max,
                         int64_t *min_pixels, int64_t *max_pixels);

/* views.c: cr_image_target and cr_image_cut of them. */
CR_MUST cr_status cri_views_target(const cr_image_processor *p, int width, int height, cr_err *err);
/* The image becomes what view i takes. */
void cri_view_make(const cr_image_processor *p, int i, cr_image *image);

#endif
