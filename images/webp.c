/* webp.c -- WebP by libwebp: lossy, lossless, with alpha or without; no animations. Small pictures are written. */
#include "images/image_impl.h"

#include <string.h>
#include <webp/decode.h>
#include <webp/encode.h>

/* EXIF and XMP are chunks of the container. */
static void read_orientation(cri_image_file *file)
{
    size_t at = 12;

    while (file->num_bytes - at >= 8) {
        const uint8_t *chunk = file->data + at;
        size_t num =
            chunk[4] | (size_t)chunk[5] << 8 | (size_t)chunk[6] << 16 | (size_t)chunk[7] << 24;
        if (num > file->num_bytes - at - 8) return;
        if (memcmp(chunk, "EXIF", 4) == 0) cri_exif_read(file, chunk + 8, num);
        if (memcmp(chunk, "XMP ", 4) == 0) cri_xmp_read(file, chunk + 8, num);
        at += 8 + num;
        if (num % 2 && at < file->num_bytes) at++;
    }
}

static const char *reason(VP8StatusCode code)
{
    switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return "no memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "a feature that libwebp does not have";
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return "the file is cut off";
    default:
        return "the data are damaged";
    }
}

cr_status cri_webp_decode(cri_image_file *file, cr_image *out, cr_err *err)
{
    WebPDecoderConfig config;
    VP8StatusCode code;
    uint8_t *rgba = NULL;
    size_t channels = 3;

    CR_CHECK(WebPInitDecoderConfig(&config), "libwebp is of another version");
    code = WebPGetFeatures(file->data, file->num_bytes, &config.input);
    if (code != VP8_STATUS_OK) return cr_fail(err, CR_EFORMAT, "%s", reason(code));
    if (config.input.has_animation)
        return cr_fail(err, CR_EFORMAT, "it is an animation: give its frames as images");
    CR_TRY(cri_image_reserve(file, config.input.width, config.input.height, out, err));
    if (config.input.has_alpha && file->alpha == CR_ALPHA_WHITE) {
        channels = 4;
        rgba = cr_alloc((size_t)out->width * (size_t)out->height * channels);
    }
    config.output.colorspace = rgba ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = rgba ? rgba : out->pixels;
    config.output.u.RGBA.stride = out->width * (int)channels;
    config.output.u.RGBA.size = (size_t)out->width * (size_t)out->height * channels;
    code = WebPDecode(file->data, file->num_bytes, &config);
    if (rgba && code == VP8_STATUS_OK) cri_image_blend(rgba, out);
    cr_free(rgba);
    if (code != VP8_STATUS_OK) return cr_fail(err, CR_EFORMAT, "%s", reason(code));
    read_orientation(file);
    return CR_OK;
}

cr_status cr_image_write_webp(const cr_image *image, cr_buf *out, cr_err *err)
{
    enum { MAX_LOSSLESS = 8 << 10 };
    const float quality = 80;
    const int stride = 3 * image->width;
    uint8_t *data = NULL;
    size_t num = WebPEncodeLosslessRGB(image->pixels, image->width, image->height, stride, &data);

    if (num > MAX_LOSSLESS) {
        WebPFree(data);
        num = WebPEncodeRGB(image->pixels, image->width, image->height, stride, quality, &data);
    }
    if (num) cr_buf_add(out, (const char *)data, num);
    WebPFree(data);
    return num ? CR_OK
               : cr_fail(err, CR_EARG, "libwebp writes no picture of %d x %d", image->width,
                         image->height);
}
