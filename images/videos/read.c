/* read.c -- what a model folder says of videos: `video_processor` in processor_config.json, else video_preprocessor_config.json, else
 * the file of its images, as Transformers looks for them. */
#include "images/processor_impl.h"

#include <string.h>

enum { MAX_JOINT_PIXELS = 1 << 30 };

/* What a class has where its file is silent. */
typedef struct video_class {
    const char *name, *of_images; /* whose file is read where the folder has no file of videos */
    const char *model_type;       /* begins so, if neither says it */
    bool has_joint_limits;
    int patch_size;
    int64_t min_pixels, max_pixels, max_tokens;
    double mean[3], std[3];
} video_class;

static const video_class classes[] = {
    {"Qwen2VLVideoProcessor",
     "Qwen2VLImageProcessor",
     "qwen2",
     false,
     14,
     128 * 28 * 28,
     768 * 28 * 28,
     128000,
     {0.48145466, 0.4578275, 0.40821073},
     {0.26862954, 0.26130258, 0.27577711}},
    {"Qwen3VLVideoProcessor",
     "Qwen3VLImageProcessor",
     "qwen3",
     true,
     16,
     128 * 32 * 32,
     768 * 32 * 32,
     768,
     {0.5, 0.5, 0.5},
     {0.5, 0.5, 0.5}},
};

static bool begins(const char *text, const char *with)
{
    return text && strncmp(text, with, strlen(with)) == 0;
}

/* NULL: not available. */
static const video_class *find_class(const cri_image_keys *k, const char *model_type)
{
    const char *name = json_string_value(cri_image_key(k, "video_processor_type")),
               *of_images = json_string_value(cri_image_key(k, "image_processor_type"));

    for (size_t i = 0; i < CR_COUNT(classes); i++)
        if (name ? strcmp(name, classes[i].name) == 0
                 : of_images && strcmp(of_images, classes[i].of_images) == 0)
            return &classes[i];
    for (size_t i = 0; i < CR_COUNT(classes) && !name; i++)
        if (begins(model_type, classes[i].model_type)) return &classes[i];
    return name || model_type ? NULL : &classes[0];
}

/* The keys that a video shares with images; is_other: they are not the same. */
static void compare(const cri_image_keys *k, const video_class *class, cr_image_processor *out)
{
    int64_t patch = class->patch_size, merge = 2, temporal = 2;
    double mean[3], std[3];
    bool resize = true, rescale = true, normalize = true;
    const json_t *scale = cri_image_key(k, "rescale_factor");

    memcpy(mean, class->mean, sizeof mean);
    memcpy(std, class->std, sizeof std);
    cri_image_key_int(k, "patch_size", 1, CRI_IMAGE_MAX_PATCH, &patch);
    cri_image_key_int(k, "merge_size", 1, CRI_IMAGE_MAX_PATCH, &merge);
    cri_image_key_int(k, "temporal_patch_size", 1, CRI_IMAGE_MAX_PATCH, &temporal);
    cri_image_key_channels(k, "image_mean", cri_image_key(k, "image_mean"), false, mean);
    cri_image_key_channels(k, "image_std", cri_image_key(k, "image_std"), true, std);
    cri_image_key_bool(k, "do_resize", &resize);
    cri_image_key_bool(k, "do_rescale", &rescale);
    cri_image_key_bool(k, "do_normalize", &normalize);
    out->video.is_other = patch != out->patch_size || merge != out->merge_size ||
                          temporal != out->temporal_patch_size || resize != out->has_resize ||
                          rescale != out->has_rescale || normalize != out->has_normalize ||
                          memcmp(mean, out->mean, sizeof mean) != 0 ||
                          memcmp(std, out->std, sizeof std) != 0 ||
                          (scale && json_number_value(scale) != out->rescale_factor);
}

void cri_video_keys(const cri_image_keys *k, const char *model_type, cr_image_processor *out)
{
    const video_class *class = find_class(k, model_type);
    cr_video_rules *v = &out->video;

    v->is_other = !class;
    if (!class) return;
    v->has_joint_limits = class->has_joint_limits;
    v->min_pixels = class->min_pixels;
    v->max_pixels = class->max_pixels;
    v->max_tokens = class->max_tokens;
    cri_image_key_bool(k, "cap_pixels_per_frame", &v->is_capped);
    cri_image_key_int(k, "max_video_tokens", 1, MAX_JOINT_PIXELS, &v->max_tokens);
    cri_image_key_areas(k, /*in_size_alone=*/v->has_joint_limits, MAX_JOINT_PIXELS, &v->min_pixels,
                        &v->max_pixels);
    if (cri_image_key(k, "video_processor_type")) compare(k, class, out);
}

/* An object of a file of the folder, owned: `inner` of it if that is not NULL. NULL: the folder has no such object. */
static json_t *read_object(const char *folder, const char *name, const char *inner, char **path,
                           cr_err *err)
{
    json_t *json = NULL, *object;

    cr_free(*path);
    *path = cr_path_join(folder, name);
    if (!cr_file_exists(*path) || cr_json_read_file(*path, &json, err) != CR_OK) return NULL;
    object = inner ? json_object_get(json, inner) : json;
    if (json_is_object(object))
        json_incref(object);
    else
        object = NULL;
    json_decref(json);
    return object;
}

cr_status cri_video_read(const char *folder, cr_image_processor *out, cr_err *err)
{
    static const char *const places[][2] = {{"processor_config.json", "video_processor"},
                                            {"video_preprocessor_config.json", NULL},
                                            {"preprocessor_config.json", NULL},
                                            {"processor_config.json", "image_processor"}};
    char *path = NULL;
    json_t *config = read_object(folder, "config.json", NULL, &path, err), *object = NULL;
    const char *model_type = json_string_value(json_object_get(config, "model_type"));

    out->video = (cr_video_rules){.is_taken = true, .fps = CR_VIDEO_FPS};
    out->video.has_times = begins(model_type, "qwen3");
    for (size_t i = 0; i < CR_COUNT(places) && !object && !err->status; i++)
        object = read_object(folder, places[i][0], places[i][1], &path, err);
    if (object) cri_video_keys(&(cri_image_keys){object, path, err}, model_type, out);
    json_decref(object);
    json_decref(config);
    cr_free(path);
    return err->status;
}
