/* views_read.c -- files of processors that make images of one size, and what the folder's config.json says of towers and places. */
#include "images/processor_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SIDE = 2048, USUAL_SIDE = 224, USUAL_VOCAB = 32000 };

static void wrong(const cri_image_keys *k, const char *name, int i, const char *expected)
{
    cr_fail(k->err, CR_EFORMAT, "%s: %s[%d]: %s is expected", k->what, name, i, expected);
}

/* A side, 1 to MAX_SIDE, or a list whose last two members are the same one; 0: neither. */
static int side_of(const json_t *value)
{
    size_t num = json_array_size(value);
    const json_t *last = num >= 2 ? json_array_get(value, num - 1) : value;

    if (!json_is_integer(last) || json_integer_value(last) < 1 ||
        json_integer_value(last) > MAX_SIDE)
        return 0;
    if (num >= 2 && !json_equal(json_array_get(value, num - 2), last)) return 0;
    return (int)json_integer_value(last);
}

static void one_patch_a_pixel(cr_image_processor *out)
{
    out->patch_size = out->merge_size = out->temporal_patch_size = 1; /* until cri_views_fit */
    for (int i = 0; i < out->num_views; i++)
        out->views[i].patch_size = 1;
}

/* ---- PrismaticImageProcessor ---- */

/* Member i of a list that has one for each view; NULL: there is no list. */
static const json_t *member(const cri_image_keys *k, const cr_image_processor *p, const char *name,
                            int i)
{
    const json_t *list = cri_image_key(k, name);

    if (!list) return NULL;
    if (json_array_size(list) != (size_t)p->num_views)
        cr_fail(k->err, CR_EFORMAT, "%s: %s has %zu members, input_sizes %d", k->what, name,
                json_array_size(list), p->num_views);
    return json_array_get(list, (size_t)i);
}

static void read_strategy(const cri_image_keys *k, cr_image_processor *out)
{
    static const char *const names[] = {"resize-naive", "resize-crop", "letterbox"};
    const json_t *value = cri_image_key(k, "image_resize_strategy");
    const char *name = value ? json_string_value(value) : names[CR_FIT_LETTERBOX];

    for (size_t i = 0; name && i < CR_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            out->fit = (cr_image_fit)i;
            return;
        }
    cr_fail(k->err, CR_EFORMAT,
            "%s: image_resize_strategy: %.40s is none of letterbox, resize-naive, resize-crop",
            k->what, name ? name : "what is no text");
}

static void read_view(const cri_image_keys *k, cr_image_processor *p, int i)
{
    cr_image_view *v = &p->views[i];
    const json_t *size = member(k, p, "input_sizes", i), *how = member(k, p, "interpolations", i);

    memcpy(v->mean, p->mean, sizeof v->mean);
    memcpy(v->std, p->std, sizeof v->std);
    v->to = v->side = size ? side_of(size) : USUAL_SIDE;
    if (!v->side || (size && json_array_size(size) != 3))
        wrong(k, "input_sizes", i, "[3, side, side]");
    if (how && (!json_is_string(how) || strcmp(json_string_value(how), "bicubic") != 0))
        wrong(k, "interpolations", i, "bicubic");
    cri_image_key_channels(k, "means", member(k, p, "means", i), false, v->mean);
    cri_image_key_channels(k, "stds", member(k, p, "stds", i), true, v->std);
}

static bool are_same(const double a[3], const double b[3])
{
    return (float)a[0] == (float)b[0] && (float)a[1] == (float)b[1] && (float)a[2] == (float)b[2];
}

/* The port's file repeats, under tvf_.., what its class makes of the keys above; it must say the same. */
static void check_steps(const cri_image_keys *k, const cr_image_processor *p, int i)
{
    const cr_image_view *v = &p->views[i];
    const json_t *resize = member(k, p, "tvf_resize_params", i),
                 *crop = member(k, p, "tvf_crop_params", i),
                 *normalize = member(k, p, "tvf_normalize_params", i),
                 *size = json_object_get(resize, "size"),
                 *kind = json_object_get(resize, "interpolation");
    double mean[3], std[3];

    memcpy(mean, v->mean, sizeof mean);
    memcpy(std, v->std, sizeof std);
    if (resize && (side_of(size) != v->to || json_is_array(size) != (p->fit == CR_FIT_NAIVE) ||
                   (kind && json_integer_value(kind) != 3) ||
                   json_is_integer(json_object_get(resize, "max_size"))))
        wrong(k, "tvf_resize_params", i,
              "the size of image_resize_strategy and input_sizes, interpolation 3, no max_size");
    if (crop && side_of(json_object_get(crop, "output_size")) != v->side)
        wrong(k, "tvf_crop_params", i, "the output_size of input_sizes");
    cri_image_key_channels(k, "tvf_normalize_params: mean", json_object_get(normalize, "mean"),
                           false, mean);
    cri_image_key_channels(k, "tvf_normalize_params: std", json_object_get(normalize, "std"), true,
                           std);
    if (!are_same(mean, v->mean) || !are_same(std, v->std))
        wrong(k, "tvf_normalize_params", i, "what means and stds say");
}

void cri_prismatic_keys(const cri_image_keys *k, cr_image_processor *out)
{
    const json_t *sizes = cri_image_key(k, "input_sizes");
    size_t num = sizes ? json_array_size(sizes) : 1;
    bool is_fused = num > 1, has_letterbox;

    if (num < 1 || num > CR_MAX_VIEWS) {
        cr_fail(k->err, CR_EFORMAT, "%s: input_sizes: one or two sizes are expected", k->what);
        return;
    }
    out->num_views = (int)num;
    out->is_prismatic = true;
    cri_image_key_bool(k, "use_fused_vision_backbone", &is_fused);
    if (is_fused != (num > 1))
        cr_fail(k->err, CR_EFORMAT, "%s: use_fused_vision_backbone is %s, but input_sizes has %zu",
                k->what, is_fused ? "true" : "false", num);
    read_strategy(k, out);
    has_letterbox = out->fit == CR_FIT_LETTERBOX;
    cri_image_key_bool(k, "tvf_do_letterbox", &has_letterbox);
    if (has_letterbox != (out->fit == CR_FIT_LETTERBOX))
        cr_fail(k->err, CR_EFORMAT, "%s: tvf_do_letterbox is not what image_resize_strategy says",
                k->what);
    for (int i = 0; i < out->num_views && !k->err->status; i++) {
        read_view(k, out, i);
        if (!k->err->status) check_steps(k, out, i);
    }
    for (int c = 0; c < 3; c++) {
        double level = out->views[num - 1].mean[c] * 255;
        out->fill[c] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
    }
    one_patch_a_pixel(out);
}

/* ---- SiglipImageProcessor, BitImageProcessor ---- */

/* Sides of an object of the file, which must be the same; *out stays as it is without the object. */
static void read_square(const cri_image_keys *k, const char *name, int *out)
{
    const cri_image_keys in = {.object = cri_image_key(k, name), .what = k->what, .err = k->err};
    int64_t height = *out, width = *out;

    cri_image_key_int(&in, "height", 1, MAX_SIDE, &height);
    cri_image_key_int(&in, "width", 1, MAX_SIDE, &width);
    if (height != width || (in.object && !json_is_object(in.object)))
        cr_fail(k->err, CR_EABSENT, "%s: %s is available with height and width that are equal",
                k->what, name);
    *out = (int)height;
}

void cri_view_keys(const cri_image_keys *k, cr_image_processor *out)
{
    const cri_image_keys size = {
        .object = cri_image_key(k, "size"), .what = k->what, .err = k->err};
    cr_image_view *v = &out->views[0];
    bool is_bit = out->fit == CR_FIT_CROP, is_cropped = is_bit;
    int64_t shortest = size.object || !is_bit ? 0 : USUAL_SIDE;

    *v = (cr_image_view){.to = USUAL_SIDE};
    out->num_views = 1;
    memcpy(v->mean, out->mean, sizeof v->mean);
    memcpy(v->std, out->std, sizeof v->std);
    cri_image_key_bool(k, "do_center_crop", &is_cropped);
    cri_image_key_int(&size, "shortest_edge", 1, MAX_SIDE, &shortest);
    read_square(k, "size", &v->to);
    if (shortest) v->to = (int)shortest;
    v->side = is_cropped ? USUAL_SIDE : v->to;
    if (is_cropped) read_square(k, "crop_size", &v->side);
    out->fit = shortest ? CR_FIT_CROP : CR_FIT_NAIVE;
    if (!out->has_resize || (shortest && !is_cropped) || v->side > v->to)
        cr_fail(k->err, CR_EABSENT,
                "%s: images of more than one size are not available: do_resize, do_center_crop "
                "with a shortest_edge, and a crop_size within it",
                k->what);
    one_patch_a_pixel(out);
}

/* ---- config.json ---- */

/* As the port names them: vit_large_patch14_reg4_dinov2. */
static int64_t patch_in_name(const json_t *name)
{
    const char *at = json_is_string(name) ? strstr(json_string_value(name), "patch") : NULL;

    return at ? strtol(at + 5, NULL, 10) : 0;
}

static void fit_view(const cri_image_keys *k, const json_t *towers, const json_t *ids, size_t i,
                     cr_image_view *v)
{
    const cri_image_keys tower = {
        .object = json_array_get(towers, i), .what = k->what, .err = k->err};
    const char *type = json_string_value(cri_image_key(&tower, "model_type"));
    int64_t patch = type && strcmp(type, "siglip_vision_model") == 0 ? 16 : 14, side = v->side;

    cri_image_key_int(&tower, "patch_size", 1, CRI_IMAGE_MAX_PATCH, &patch);
    cri_image_key_int(&tower, "image_size", 1, MAX_SIDE, &side);
    if (!towers) {
        patch = patch_in_name(json_array_get(ids, i));
        side = side_of(json_array_get(cri_image_key(k, "image_sizes"), i));
    }
    if (patch < 1 || patch > CRI_IMAGE_MAX_PATCH || patch > v->side || side != v->side)
        cr_fail(k->err, CR_EFORMAT,
                "%s: tower %zu has images of %lld x %lld in patches of %lld, the processor makes "
                "them %d x %d",
                k->what, i, (long long)side, (long long)side, (long long)patch, v->side, v->side);
    else
        v->patch_size = (int)patch;
}

/* The row of the table that no text has: image_token_id, or the last one where the port has padded the table. */
static void find_placeholder(const cri_image_keys *k, cr_image_processor *out)
{
    const cri_image_keys text = {
        .object = cri_image_key(k, "text_config"), .what = k->what, .err = k->err};
    int64_t pad = -1, vocab = USUAL_VOCAB, id;

    cri_image_key_int(k, "pad_token_id", 0, INT32_MAX, &pad);
    cri_image_key_int(&text, "vocab_size", 1, INT32_MAX, &vocab);
    id = pad >= 0 && pad < vocab - 1 ? vocab - 1 : -1;
    cri_image_key_int(k, "image_token_id", 0, vocab - 1, &id);
    if (id < 0)
        cr_fail(k->err, CR_EFORMAT, "%s: image_token_id is missing: the id that stands for a patch",
                k->what);
    out->placeholder = (int32_t)id;
}

cr_status cri_views_fit(const char *folder, cr_image_processor *out, cr_err *err)
{
    char *path = cr_path_join(folder, "config.json");
    cri_image_keys k = {.what = path, .err = err};
    const json_t *towers, *ids;
    json_t *config = NULL;
    size_t num;

    CR_TRY_GOTO(out, cr_json_read_file(path, &config, err));
    k.object = config;
    towers = cri_image_key(&k, "vision_towers");
    ids = cri_image_key(&k, "timm_model_ids");
    num = json_array_size(towers ? towers : ids);
    if (num != (size_t)out->num_views) {
        cr_fail(err, CR_EFORMAT, "%s: %zu vision towers, and the processor makes images for %d",
                path, num, out->num_views);
        goto out;
    }
    for (size_t i = 0; i < num; i++)
        fit_view(&k, towers, ids, i, &out->views[i]);
    find_placeholder(&k, out);
    out->patch_size = out->views[0].patch_size;
    if (!err->status && num > 1 &&
        out->views[0].side / out->patch_size != out->views[1].side / out->views[1].patch_size)
        cr_fail(err, CR_EFORMAT, "%s: the towers have patches of different numbers", path);
out:
    json_decref(config);
    cr_free(path);
    return err->status;
}
