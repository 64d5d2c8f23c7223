/* decode.c -- the type of a file by its first bytes, its size, its orientation (see image.h). */
#include "images/image_impl.h"

#include <string.h>

typedef cr_status (*decoder)(cri_image_file *, cr_image *, cr_err *);
static const struct {
    const char *name;
    decoder decode;
} types[] = {{"JPEG", cri_jpeg_decode}, {"PNG", cri_png_decode}, {"WebP", cri_webp_decode}};

const char *cr_image_type_name(cr_image_type type)
{
    return types[type].name;
}

static bool begins(const cri_image_file *f, size_t at, const char *with, size_t num)
{
    return f->num_bytes >= at + num && memcmp(f->data + at, with, num) == 0;
}

static cr_status find_type(const cri_image_file *f, cr_image_type *out, cr_err *err)
{
    static const struct {
        size_t at;
        const char *text, *name;
    } others[] = {{0, "GIF8", "GIF"},       {0, "BM", "BMP"},
                  {0, "II*", "TIFF"},       {0, "MM", "TIFF"},
                  {4, "ftypavif", "AVIF"},  {4, "ftyphei", "HEIC"},
                  {4, "ftypmif1", "HEIF"},  {4, "ftyp", "a video of MP4's family"},
                  {0, "<svg", "SVG"},       {0, "<?xml", "XML"},
                  {0, "<!DOCTYPE", "HTML"}, {0, "<html", "HTML"},
                  {0, "%PDF", "PDF"},       {0, "\x1f\x8b", "gzip"},
                  {0, "PK\x03\x04", "ZIP"}, {0, "version https://git-lfs", "a pointer of Git LFS"}};
    const char *what = "something else";

    if (begins(f, 0, "\xff\xd8\xff", 3)) {
        *out = CR_IMAGE_JPEG;
    } else if (begins(f, 0, "\x89PNG\r\n\x1a\n", 8)) {
        *out = CR_IMAGE_PNG;
    } else if (begins(f, 0, "RIFF", 4) && begins(f, 8, "WEBP", 4)) {
        *out = CR_IMAGE_WEBP;
    } else {
        if (!f->num_bytes) return cr_fail(err, CR_EFORMAT, "an image of 0 bytes");
        for (size_t i = CR_COUNT(others); i-- > 0;)
            if (begins(f, others[i].at, others[i].text, strlen(others[i].text)))
                what = others[i].name;
        return cr_fail(err, CR_EFORMAT, "it is %s; images that are read are JPEG, PNG and WebP",
                       what);
    }
    return CR_OK;
}

cr_status cri_image_reserve(const cri_image_file *f, int64_t width, int64_t height, cr_image *out,
                            cr_err *err)
{
    /* sides of each type are below 2^31, so that the product fits */
    if (width <= 0 || height <= 0 || width > INT32_MAX || height > INT32_MAX)
        return cr_fail(err, CR_EFORMAT, "its size is %lld x %lld", (long long)width,
                       (long long)height);
    if (width * height > f->max_pixels)
        return cr_fail(err, CR_EFORMAT,
                       "it has %lld x %lld pixels, more than the %lld that are read: make it "
                       "smaller",
                       (long long)width, (long long)height, (long long)f->max_pixels);
    out->width = (int)width;
    out->height = (int)height;
    out->pixels = cr_alloc((size_t)(width * height * 3));
    return CR_OK;
}

cr_status cr_image_alpha_find(const char *name, cr_image_alpha *out, cr_err *err)
{
    static const char *const names[] = {"drop", "white"};

    for (size_t i = 0; i < CR_COUNT(names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (cr_image_alpha)i;
        return CR_OK;
    }
    return cr_fail(err, CR_EUSAGE, "alpha of images: drop or white, not %.40s", name);
}

void cri_image_blend(const uint8_t *rgba, cr_image *out)
{
    size_t num = (size_t)out->width * (size_t)out->height;

    for (size_t i = 0; i < num; i++, rgba += 4)
        for (size_t c = 0; c < 3; c++) {
            int sum =
                rgba[c] * rgba[3] + 255 * (255 - rgba[3]) + 128; /* a rounded division by 255 */
            out->pixels[i * 3 + c] = (uint8_t)((sum + (sum >> 8)) >> 8);
        }
}

cr_status cr_image_decode(const void *data, size_t num_bytes, int64_t max_pixels, cr_image *out,
                          cr_err *err)
{
    return cr_image_decode_alpha(data, num_bytes, max_pixels, CR_ALPHA_DROP, out, err);
}

cr_status cr_image_decode_alpha(const void *data, size_t num_bytes, int64_t max_pixels,
                                cr_image_alpha alpha, cr_image *out, cr_err *err)
{
    cri_image_file file = {
        .data = data, .num_bytes = num_bytes, .max_pixels = max_pixels, .alpha = alpha};

    *out = (cr_image){.orientation = 1};
    CR_CHECK(max_pixels >= 1 && max_pixels <= CR_IMAGE_MAX_PIXELS, "a limit of %lld pixels",
             (long long)max_pixels);
    CR_TRY_GOTO(out, find_type(&file, &out->type, err));
    if (types[out->type].decode(&file, out, err) != CR_OK) {
        cr_fail_add(err, "%s", types[out->type].name);
        goto out;
    }
    out->orientation = file.exif ? file.exif : file.xmp ? file.xmp : 1;
    if (out->orientation > 1) cri_image_turn(out, out->orientation);
out:
    if (err->status) cr_image_free(out);
    return err->status;
}

void cr_image_free(cr_image *image)
{
    cr_free(image->pixels);
    *image = (cr_image){0};
}
