/* processor.c -- smart_resize, values and the order of patches (see processor.h). */
#include "images/processor_impl.h"

#include <math.h>
#include <string.h>

enum { MAX_RATIO = 200 };

cr_status cr_image_processor_limit(cr_image_processor *p, int64_t min_pixels, int64_t max_pixels,
                                   cr_err *err)
{
    if (p->num_views && (min_pixels || max_pixels))
        return cr_fail(err, CR_ECONFIG,
                       "images of this model all become %d x %d pixels: no least and no most",
                       p->views[0].side, p->views[0].side);
    if (min_pixels) p->min_pixels = min_pixels;
    if (max_pixels) p->max_pixels = max_pixels;
    if (p->min_pixels <= p->max_pixels) return CR_OK;
    return cr_fail(err, CR_ECONFIG, "images have at least %lld pixels and at most %lld",
                   (long long)p->min_pixels, (long long)p->max_pixels);
}

cr_status cr_video_processor_limit(cr_image_processor *p, int64_t min_pixels, int64_t max_pixels,
                                   cr_err *err)
{
    cr_video_rules *v = &p->video;

    if (!v->is_taken && (min_pixels || max_pixels))
        return cr_fail(err, CR_ECONFIG, "this model takes no videos, and their size is given");
    if (min_pixels) v->min_pixels = min_pixels;
    if (max_pixels) v->max_pixels = max_pixels;
    if (v->min_pixels <= v->max_pixels) return CR_OK;
    return cr_fail(err, CR_ECONFIG, "videos have at least %lld pixels and at most %lld",
                   (long long)v->min_pixels, (long long)v->max_pixels);
}

static void name_channels(const double mean[3], const double std[3], cr_buf *out)
{
    for (int i = 0; i < 3; i++)
        cr_buf_addf(out, " %.17g %.17g", mean[i], std[i]);
}

void cr_image_processor_name(const cr_image_processor *p, cr_buf *out)
{
    cr_buf_addf(out, "%d %d %d %d %d %d%d%d %.17g", (int)p->form, (int)p->alpha, p->patch_size,
                p->merge_size, p->temporal_patch_size, p->has_resize, p->has_rescale,
                p->has_normalize, p->rescale_factor);
    name_channels(p->mean, p->std, out);
    for (int i = 0; i < p->num_views; i++) {
        const cr_image_view *v = &p->views[i];
        cr_buf_addf(out, " view %d %d %d", v->to, v->side, v->patch_size);
        name_channels(v->mean, v->std, out);
    }
    if (p->video.is_taken)
        cr_buf_addf(out, " video %d %d", p->video.has_joint_limits, p->video.has_times);
    if (p->num_views)
        cr_buf_addf(out, " fit %d %d %d %d %d", (int)p->fit, p->is_prismatic, p->fill[0],
                    p->fill[1], p->fill[2]);
}

/* Without do_resize. */
static cr_status keep_sides(double factor, int width, int height, int *to_width, int *to_height,
                            cr_err *err)
{
    *to_width = width;
    *to_height = height;
    if (fmod(width, factor) == 0 && fmod(height, factor) == 0) return CR_OK;
    return cr_fail(err, CR_EARG,
                   "%d x %d pixels: without do_resize sides must be multiples of %.0f", width,
                   height, factor);
}

/* smart_resize of `num` frames whose area together is limited; 1 where that of each is. */
static cr_status smart_resize(const cr_image_processor *p, size_t num, int64_t min_pixels,
                              int64_t max_pixels, double h, double w, int *to_width, int *to_height,
                              cr_err *err)
{
    double factor = p->patch_size * p->merge_size, n = (double)num, beta;
    double max = (double)max_pixels, min = (double)min_pixels;
    double t = num > 1 ? rint(n / p->temporal_patch_size) * p->temporal_patch_size : 1;
    double to_h = rint(h / factor) * factor, to_w = rint(w / factor) * factor;

    if (fmax(h, w) / fmin(h, w) > MAX_RATIO)
        return cr_fail(err, CR_EARG, "%.0f x %.0f pixels: one side is more than %d times the other",
                       w, h, MAX_RATIO);
    if (t * to_h * to_w > max) {
        beta = sqrt(n * h * w / max);
        to_h = fmax(factor, floor(h / beta / factor) * factor);
        to_w = fmax(factor, floor(w / beta / factor) * factor);
    } else if (t * to_h * to_w < min) {
        beta = sqrt(min / (n * h * w));
        to_h = ceil(h * beta / factor) * factor;
        to_w = ceil(w * beta / factor) * factor;
    }
    *to_height = (int)to_h;
    *to_width = (int)to_w;
    return CR_OK;
}

cr_status cr_image_target(const cr_image_processor *p, int width, int height, int *to_width,
                          int *to_height, cr_err *err)
{
    if (p->num_views) {
        *to_width = *to_height = p->views[0].side - p->views[0].side % p->patch_size;
        return cri_views_target(p, width, height, err);
    }
    if (!p->has_resize)
        return keep_sides(p->patch_size * p->merge_size, width, height, to_width, to_height, err);
    return smart_resize(p, 1, p->min_pixels, p->max_pixels, height, width, to_width, to_height,
                        err);
}

/* max_pixels of a video, with cap_pixels_per_frame. */
static int64_t max_pixels_of(const cr_image_processor *p, size_t num_frames)
{
    const cr_video_rules *v = &p->video;
    int64_t side = p->patch_size * p->merge_size, num = (int64_t)num_frames, share,
            least = (int64_t)((double)v->min_pixels * 1.05);

    if (!v->is_capped) return v->max_pixels;
    if (!v->has_joint_limits) {
        share =
            (int64_t)((double)(v->max_tokens * side * side) * 0.9) * p->temporal_patch_size / num;
        return cr_max64(share < v->max_pixels ? share : v->max_pixels, least);
    }
    share = v->max_pixels / num;
    if (share > v->max_tokens * side * side) share = v->max_tokens * side * side;
    return cr_max64(share, least) * num;
}

cr_status cr_video_target(const cr_image_processor *p, size_t num_frames, int width, int height,
                          int *to_width, int *to_height, cr_err *err)
{
    const cr_video_rules *v = &p->video;
    double factor = p->patch_size * p->merge_size, h = height, w = width, grow;

    if (!v->is_taken) return cr_fail(err, CR_EARG, "this model takes images, and no videos");
    if (v->is_other)
        return cr_fail(err, CR_EARG,
                       "the video processor of this model's folder is not available: it is of "
                       "another class, or differs from the one of images in more than size");
    if (!p->has_resize) return keep_sides(factor, width, height, to_width, to_height, err);
    if (!v->has_joint_limits)
        return smart_resize(p, 1, v->min_pixels, max_pixels_of(p, num_frames), h, w, to_width,
                            to_height, err);
    if (num_frames < (size_t)p->temporal_patch_size || num_frames < 2)
        return cr_fail(err, CR_EARG,
                       "a video of %zu frame%s, and this model's have at least %d (one picture can "
                       "be given as an image)",
                       num_frames, num_frames == 1 ? "" : "s", p->temporal_patch_size);
    if (h < factor || w < factor) {
        grow = fmax(factor / h, factor / w);
        h = trunc(h * grow);
        w = trunc(w * grow);
    }
    return smart_resize(p, num_frames, v->min_pixels, max_pixels_of(p, num_frames), h, w, to_width,
                        to_height, err);
}

/* Values of the 256 levels of each channel. */
static void levels_init(const cr_image_processor *p, const double mean_of[3],
                        const double std_of[3], float values[3][256])
{
    bool is_folded = p->form == CR_RESIZE_TORCHVISION && p->has_rescale && p->has_normalize;
    float fold = is_folded ? (float)(1.0 / p->rescale_factor) : 1;

    for (int c = 0; c < 3; c++)
        for (int x = 0; x < 256; x++) {
            float mean = (float)mean_of[c] * fold, std = (float)std_of[c] * fold;
            float value = p->has_rescale && !is_folded ? (float)(x * p->rescale_factor) : (float)x;
            values[c][x] = p->has_normalize ? (value - mean) / std : value;
        }
}

/* One patch of temporal x side x side: channel, frame, row, column. */
static void cut_patch(int temporal, int side, const cr_image *frames, size_t num_frames,
                      size_t first_frame, int row, int column, float values[3][256], float *to)
{
    for (int c = 0; c < 3; c++)
        for (int t = 0; t < temporal; t++) {
            size_t at = first_frame + (size_t)t;
            const cr_image *f = &frames[at < num_frames ? at : num_frames - 1];
            for (int y = 0; y < side; y++) {
                const uint8_t *from =
                    f->pixels +
                    ((size_t)(row * side + y) * (size_t)f->width + (size_t)(column * side)) * 3;
                for (int x = 0; x < side; x++)
                    *to++ = values[c][from[x * 3 + c]];
            }
        }
}

static void cut_frames(const cr_image_processor *p, const cr_image *frames, size_t num_frames,
                       cr_image_patches *out)
{
    int merge = p->merge_size, t, row, column, in_block;
    float values[3][256], *to = out->values;

    levels_init(p, p->mean, p->std, values);
    for (t = 0; t < out->grid[0]; t++)
        for (row = 0; row < out->grid[1]; row += merge)
            for (column = 0; column < out->grid[2]; column += merge)
                for (in_block = 0; in_block < merge * merge; in_block++, to += out->patch_dim)
                    cut_patch(p->temporal_patch_size, p->patch_size, frames, num_frames,
                              (size_t)t * (size_t)p->temporal_patch_size, row + in_block / merge,
                              column + in_block % merge, values, to);
}

/* Patches of each view beside those of the one before it. */
static void cut_views(const cr_image_processor *p, cr_image *image, cr_image_patches *out)
{
    int64_t first = out->patch_dim;

    for (int i = p->num_views - 1; i >= 0; i--) { /* the image itself becomes the first one */
        const cr_image_view *v = &p->views[i];
        size_t num_bytes = (size_t)image->width * (size_t)image->height * 3;
        cr_image copy = *image, *one = i ? &copy : image;
        float values[3][256];
        if (i) copy.pixels = memcpy(cr_alloc(num_bytes), image->pixels, num_bytes);
        cri_view_make(p, i, one);
        levels_init(p, v->mean, v->std, values);
        first -= 3 * (int64_t)v->patch_size * v->patch_size;
        for (int64_t k = 0; k < out->num_patches; k++)
            cut_patch(1, v->patch_size, one, 1, 0, (int)(k / out->grid[2]), (int)(k % out->grid[2]),
                      values, out->values + k * out->patch_dim + first);
        if (i) cr_image_free(&copy);
    }
}

/* Numbers of a patch. */
static int64_t patch_dim(const cr_image_processor *p)
{
    int64_t dim = p->num_views ? 0 : (int64_t)p->patch_size * p->patch_size;

    for (int i = 0; i < p->num_views; i++)
        dim += (int64_t)p->views[i].patch_size * p->views[i].patch_size;
    return 3 * p->temporal_patch_size * dim;
}

void cri_image_cut(const cr_image_processor *p, cr_image *frames, size_t num_frames, double fps,
                   cr_image_patches *out)
{
    size_t per_patch = (size_t)p->temporal_patch_size;
    cr_image_processor as = *p;

    if (fps > 0) as.form = CR_RESIZE_TORCHVISION;
    *out = (cr_image_patches){.patch_dim = patch_dim(p)};
    if (fps > 0) out->second_per_grid = (float)(p->temporal_patch_size / fps);
    out->grid[0] = (int32_t)((num_frames + per_patch - 1) / per_patch);
    out->grid[1] = out->grid[2] = p->num_views ? p->views[0].side / p->patch_size : 0;
    if (!p->num_views) {
        out->grid[1] = frames->height / p->patch_size;
        out->grid[2] = frames->width / p->patch_size;
    }
    out->num_patches = (int64_t)out->grid[0] * out->grid[1] * out->grid[2];
    out->num_tokens = out->num_patches / (p->merge_size * p->merge_size);
    out->values = cr_alloc((size_t)(out->num_patches * out->patch_dim) * sizeof(float));
    if (p->num_views)
        cut_views(p, frames, out);
    else
        cut_frames(&as, frames, num_frames, out);
}

cr_status cr_image_cut(const cr_image_processor *p, cr_image *image, cr_image_patches *out,
                       cr_err *err)
{
    int width, height;

    *out = (cr_image_patches){0};
    CR_TRY(cr_image_target(p, image->width, image->height, &width, &height, err));
    if (!p->num_views) cr_image_resize(image, width, height, p->form);
    cri_image_cut(p, image, 1, 0, out);
    return CR_OK;
}

void cr_image_patches_free(cr_image_patches *patches)
{
    cr_free(patches->values);
    *patches = (cr_image_patches){0};
}
