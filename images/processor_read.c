/* processor_read.c -- processor_config.json and preprocessor_config.json. */
#include "images/processor_impl.h"

#include <math.h>
#include <string.h>

enum { MAX_MERGE = 16, MAX_TEMPORAL = 16, BICUBIC = 3 };

const json_t *cri_image_key(const cri_image_keys *k, const char *name)
{
    const json_t *value = json_object_get(k->object, name);

    return json_is_null(value) ? NULL : value;
}

void cri_image_key_int(const cri_image_keys *k, const char *name, int64_t min, int64_t max,
                       int64_t *out)
{
    const json_t *value = cri_image_key(k, name);

    if (!value) return;
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        cr_fail(k->err, CR_EFORMAT, "%s: %s: an integer from %lld to %lld is expected", k->what,
                name, (long long)min, (long long)max);
    else
        *out = json_integer_value(value);
}

static void read_side(const cri_image_keys *k, const char *name, int max, int *out)
{
    int64_t value = *out;

    cri_image_key_int(k, name, 1, max, &value);
    *out = (int)value;
}

void cri_image_key_bool(const cri_image_keys *k, const char *name, bool *out)
{
    const json_t *value = cri_image_key(k, name);

    if (value && !json_is_boolean(value))
        cr_fail(k->err, CR_EFORMAT, "%s: %s: true or false is expected", k->what, name);
    else if (value)
        *out = json_is_true(value);
}

static bool is_number(const json_t *value, bool is_positive)
{
    double x = json_number_value(value);

    return json_is_number(value) && isfinite(x) && fabs(x) < 1e6 && (!is_positive || x > 1e-6);
}

void cri_image_key_channels(const cri_image_keys *k, const char *name, const json_t *value,
                            bool is_positive, double out[3])
{
    for (size_t c = 0; c < 3 && value; c++) {
        const json_t *x = json_is_array(value) ? json_array_get(value, c) : value;
        if (!is_number(x, is_positive) || (json_is_array(value) && json_array_size(value) != 3)) {
            cr_fail(k->err, CR_EFORMAT, "%s: %s: three %snumbers are expected", k->what, name,
                    is_positive ? "positive " : "");
            return;
        }
        out[c] = json_number_value(x);
    }
}

void cri_image_key_areas(const cri_image_keys *k, bool in_size_alone, int64_t max,
                         int64_t *min_pixels, int64_t *max_pixels)
{
    const cri_image_keys size = {
        .object = cri_image_key(k, "size"), .what = k->what, .err = k->err};
    const cri_image_keys *places[] = {&size, k};
    size_t num_places = in_size_alone ? 1 : CR_COUNT(places);

    if (size.object && !json_is_object(size.object))
        cr_fail(k->err, CR_EFORMAT, "%s: size: an object is expected", k->what);
    cri_image_key_int(&size, "shortest_edge", 1, max, min_pixels);
    cri_image_key_int(&size, "longest_edge", 1, max, max_pixels);
    for (size_t i = 0; i < num_places; i++) {
        cri_image_key_int(places[i], "min_pixels", 1, max, min_pixels);
        cri_image_key_int(places[i], "max_pixels", 1, max, max_pixels);
    }
    if (!k->err->status && *min_pixels > *max_pixels)
        cr_fail(k->err, CR_EFORMAT, "%s: at least %lld pixels and at most %lld", k->what,
                (long long)*min_pixels, (long long)*max_pixels);
}

/* Of an image whose shape decides its size. */
static void read_patches(const cri_image_keys *k, cr_image_processor *out)
{
    out->patch_size = 14;
    out->merge_size = out->temporal_patch_size = 2;
    out->min_pixels = 56 * 56;
    out->max_pixels = 28 * 28 * 1280;
    read_side(k, "patch_size", CRI_IMAGE_MAX_PATCH, &out->patch_size);
    read_side(k, "merge_size", MAX_MERGE, &out->merge_size);
    read_side(k, "temporal_patch_size", MAX_TEMPORAL, &out->temporal_patch_size);
    cri_image_key_areas(k, /*in_size_alone=*/false, CR_IMAGE_MAX_PIXELS, &out->min_pixels,
                        &out->max_pixels);
}

/* What a class has where its file is silent, and how its other keys are read. */
typedef struct image_class {
    const char *name;
    void (*read)(const cri_image_keys *k, cr_image_processor *out);
    cr_resize_form form;
    bool is_cropped; /* do_center_crop */
    double mean[3], std[3];
} image_class;

#define CLIP                               \
    {0.48145466, 0.4578275, 0.40821073},   \
    {                                      \
        0.26862954, 0.26130258, 0.27577711 \
    }
#define HALF          \
    {0.5, 0.5, 0.5},  \
    {                 \
        0.5, 0.5, 0.5 \
    }
static const image_class classes[] = {
    {"Qwen2VLImageProcessor", read_patches, CR_RESIZE_PIL, false, CLIP},
    {"Qwen2_5_VLImageProcessor", read_patches, CR_RESIZE_PIL, false, CLIP},
    {"Qwen2VLImageProcessorPil", read_patches, CR_RESIZE_PIL, false, CLIP},
    {"Qwen2VLImageProcessorFast", read_patches, CR_RESIZE_TORCHVISION, false, CLIP},
    {"PrismaticImageProcessor", cri_prismatic_keys, CR_RESIZE_PIL, false, HALF},
    {"SiglipImageProcessor", cri_view_keys, CR_RESIZE_PIL, false, HALF},
    {"SiglipImageProcessorPil", cri_view_keys, CR_RESIZE_PIL, false, HALF},
    {"SiglipImageProcessorFast", cri_view_keys, CR_RESIZE_TORCHVISION, false, HALF},
    {"BitImageProcessor", cri_view_keys, CR_RESIZE_PIL, true, CLIP},
    {"BitImageProcessorPil", cri_view_keys, CR_RESIZE_PIL, true, CLIP},
    {"BitImageProcessorFast", cri_view_keys, CR_RESIZE_TORCHVISION, true, CLIP},
};

/* NULL: not available. */
static const image_class *find_class(const cri_image_keys *k)
{
    const char *name = json_string_value(cri_image_key(k, "image_processor_type"));

    for (size_t i = 0; i < CR_COUNT(classes) && name; i++)
        if (strcmp(classes[i].name, name) == 0) return &classes[i];
    cr_fail(k->err, CR_EABSENT, "%s: image_processor_type: %.60s is not available, %s is", k->what,
            name ? name : "without a name it", classes[0].name);
    return NULL;
}

static void read_all(const cri_image_keys *k, cr_image_processor *out)
{
    const image_class *class = find_class(k);
    const json_t *scale = cri_image_key(k, "rescale_factor");
    int64_t resample = BICUBIC;

    *out = (cr_image_processor){.has_resize = true,
                                .has_rescale = true,
                                .has_normalize = true,
                                .rescale_factor = 1.0 / 255};
    if (!class) return;
    out->form = class->form;
    out->fit = class->is_cropped ? CR_FIT_CROP : CR_FIT_NAIVE;
    memcpy(out->mean, class->mean, sizeof out->mean);
    memcpy(out->std, class->std, sizeof out->std);
    cri_image_key_bool(k, "do_resize", &out->has_resize);
    cri_image_key_bool(k, "do_rescale", &out->has_rescale);
    cri_image_key_bool(k, "do_normalize", &out->has_normalize);
    cri_image_key_channels(k, "image_mean", cri_image_key(k, "image_mean"), false, out->mean);
    cri_image_key_channels(k, "image_std", cri_image_key(k, "image_std"), true, out->std);
    if (scale && !is_number(scale, true))
        cr_fail(k->err, CR_EFORMAT, "%s: rescale_factor: a positive number is expected", k->what);
    if (scale) out->rescale_factor = json_number_value(scale);
    cri_image_key_int(k, "resample", BICUBIC, BICUBIC, &resample);
    class->read(k, out);
}

cr_status cr_image_processor_parse(const char *text, size_t num_bytes, const char *what,
                                   cr_image_processor *out, cr_err *err)
{
    cri_image_keys k = {.what = what, .err = err};
    const json_t *inner;
    json_t *json;

    CR_TRY(cr_json_parse(text, num_bytes, what, &json, err));
    inner = json_object_get(json, "image_processor"); /* of processor_config.json */
    k.object = inner ? inner : json;
    if (!json_is_object(k.object))
        cr_fail(err, CR_EFORMAT, "%s: an object is expected", what);
    else
        read_all(&k, out);
    json_decref(json);
    return err->status;
}

/* Whether the file is there with an image processor in it. */
static cr_status read_file(const char *path, bool is_needed, bool *is_read, cr_image_processor *out,
                           cr_err *err)
{
    cr_buf text = {0};

    *is_read = false;
    if (!cr_file_exists(path) && !is_needed) return CR_OK;
    CR_TRY_GOTO(out, cr_file_read(path, &text, err));
    *is_read = is_needed || memmem(text.data, text.num_bytes, "\"image_processor\"", 17) != NULL;
    if (*is_read)
        CR_TRY_GOTO(out, cr_image_processor_parse(text.data, text.num_bytes, path, out, err));
out:
    cr_buf_free(&text);
    return err->status;
}

static char *file_of(const char *folder, bool is_newer)
{
    return cr_path_join(folder, is_newer ? "processor_config.json" : "preprocessor_config.json");
}

bool cr_image_processor_exists(const char *folder)
{
    char *newer = file_of(folder, true), *older = file_of(folder, false);
    bool exists = cr_file_exists(newer) || cr_file_exists(older);

    cr_free(newer);
    cr_free(older);
    return exists;
}

cr_status cr_image_processor_read(const char *folder, cr_image_processor *out, cr_err *err)
{
    char *newer = file_of(folder, true);
    char *older = file_of(folder, false);
    bool is_read = false;

    *out = (cr_image_processor){0};
    CR_TRY_GOTO(out, read_file(newer, false, &is_read, out, err));
    if (!is_read) CR_TRY_GOTO(out, read_file(older, true, &is_read, out, err));
    if (out->num_views)
        cr_note(cri_views_fit(folder, out, err));
    else
        cr_note(cri_video_read(folder, out, err));
out:
    cr_free(newer);
    cr_free(older);
    return err->status;
}
