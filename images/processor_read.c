/* processor_read.c -- processor_config.json and preprocessor_config.json. */
#include "base/json.h"
#include "images/processor.h"

#include <math.h>
#include <string.h>

enum { MAX_PATCH = 512, MAX_MERGE = 16, MAX_TEMPORAL = 16, BICUBIC = 3 };

typedef struct keys {
    const json_t *object;
    const char *what;
    cr_err *err;
} keys;

/* NULL: absent or null. */
static const json_t *get(const keys *k, const char *name)
{
    const json_t *value = json_object_get(k->object, name);

    return json_is_null(value) ? NULL : value;
}

static void read_int(const keys *k, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const json_t *value = get(k, name);

    if (!value) return;
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        cr_fail(k->err, CR_EFORMAT, "%s: %s: an integer from %lld to %lld is expected", k->what,
                name, (long long)min, (long long)max);
    else
        *out = json_integer_value(value);
}

static void read_side(const keys *k, const char *name, int max, int *out)
{
    int64_t value = *out;

    read_int(k, name, 1, max, &value);
    *out = (int)value;
}

static void read_bool(const keys *k, const char *name, bool *out)
{
    const json_t *value = get(k, name);

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

static void read_channels(const keys *k, const char *name, bool is_positive, double *out)
{
    const json_t *value = get(k, name);

    if (!value) return;
    for (size_t c = 0; c < 3; c++) {
        const json_t *x = json_is_array(value) ? json_array_get(value, c) : value;
        if (!is_number(x, is_positive) || (json_is_array(value) && json_array_size(value) != 3)) {
            cr_fail(k->err, CR_EFORMAT, "%s: %s: three %snumbers are expected", k->what, name,
                    is_positive ? "positive " : "");
            return;
        }
        out[c] = json_number_value(x);
    }
}

/* Areas, whatever their names say; those of the file itself come before those in `size`. */
static void read_areas(const keys *k, cr_image_processor *out)
{
    const keys size = {.object = get(k, "size"), .what = k->what, .err = k->err};
    const keys *places[] = {&size, k};

    if (size.object && !json_is_object(size.object))
        cr_fail(k->err, CR_EFORMAT, "%s: size: an object is expected", k->what);
    read_int(&size, "shortest_edge", 1, CR_IMAGE_MAX_PIXELS, &out->min_pixels);
    read_int(&size, "longest_edge", 1, CR_IMAGE_MAX_PIXELS, &out->max_pixels);
    for (size_t i = 0; i < CR_COUNT(places); i++) {
        read_int(places[i], "min_pixels", 1, CR_IMAGE_MAX_PIXELS, &out->min_pixels);
        read_int(places[i], "max_pixels", 1, CR_IMAGE_MAX_PIXELS, &out->max_pixels);
    }
    if (!k->err->status && out->min_pixels > out->max_pixels)
        cr_fail(k->err, CR_EFORMAT, "%s: at least %lld pixels and at most %lld", k->what,
                (long long)out->min_pixels, (long long)out->max_pixels);
}

static void read_form(const keys *k, cr_image_processor *out)
{
    static const struct {
        const char *name;
        cr_resize_form form;
    } types[] = {{"Qwen2VLImageProcessor", CR_RESIZE_PIL},
                 {"Qwen2_5_VLImageProcessor", CR_RESIZE_PIL},
                 {"Qwen2VLImageProcessorPil", CR_RESIZE_PIL},
                 {"Qwen2VLImageProcessorFast", CR_RESIZE_TORCHVISION}};
    const char *name = json_string_value(get(k, "image_processor_type"));

    for (size_t i = 0; i < CR_COUNT(types) && name; i++)
        if (strcmp(types[i].name, name) == 0) {
            out->form = types[i].form;
            return;
        }
    if (!k->err->status)
        cr_fail(k->err, CR_EABSENT, "%s: image_processor_type: %.60s is not available, %s is",
                k->what, name ? name : "without a name it", types[0].name);
}

static void read_all(const keys *k, cr_image_processor *out)
{
    const json_t *scale = get(k, "rescale_factor");
    int64_t resample = BICUBIC;

    *out = (cr_image_processor){.patch_size = 14,
                                .merge_size = 2,
                                .temporal_patch_size = 2,
                                .min_pixels = 56 * 56,
                                .max_pixels = 28 * 28 * 1280,
                                .has_resize = true,
                                .has_rescale = true,
                                .has_normalize = true,
                                .rescale_factor = 1.0 / 255,
                                .mean = {0.48145466, 0.4578275, 0.40821073},
                                .std = {0.26862954, 0.26130258, 0.27577711}};
    read_form(k, out);
    read_side(k, "patch_size", MAX_PATCH, &out->patch_size);
    read_side(k, "merge_size", MAX_MERGE, &out->merge_size);
    read_side(k, "temporal_patch_size", MAX_TEMPORAL, &out->temporal_patch_size);
    read_bool(k, "do_resize", &out->has_resize);
    read_bool(k, "do_rescale", &out->has_rescale);
    read_bool(k, "do_normalize", &out->has_normalize);
    read_channels(k, "image_mean", false, out->mean);
    read_channels(k, "image_std", true, out->std);
    read_areas(k, out);
    if (scale && !is_number(scale, true))
        cr_fail(k->err, CR_EFORMAT, "%s: rescale_factor: a positive number is expected", k->what);
    if (scale) out->rescale_factor = json_number_value(scale);
    read_int(k, "resample", BICUBIC, BICUBIC, &resample);
}

cr_status cr_image_processor_parse(const char *text, size_t num_bytes, const char *what,
                                   cr_image_processor *out, cr_err *err)
{
    keys k = {.what = what, .err = err};
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
out:
    cr_free(newer);
    cr_free(older);
    return err->status;
}
