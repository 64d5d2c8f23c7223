/* jpeg.c -- JPEG by libjpeg-turbo: baseline and progressive, gray, YCbCr, RGB, CMYK, YCCK. */
#include "images/image_impl.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

enum { MAX_SCANS = 200, APP1 = JPEG_APP0 + 1 };

typedef struct reader {
    struct jpeg_error_mgr base; /* first: libjpeg gives its address */
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    cr_err *err;
    uint8_t *row; /* of CMYK; owned */
} reader;

static void on_error(j_common_ptr info)
{
    reader *r = (reader *)info->err;
    char text[JMSG_LENGTH_MAX];

    info->err->format_message(info, text);
    cr_fail(r->err, CR_EFORMAT, "%s", text);
    longjmp(r->failed, 1);
}

/* libjpeg fills up what is missing with gray and zeros, and warns: such an image is refused. Some warnings are of no matter. */
static void on_message(j_common_ptr info, int level)
{
    int code = info->err->msg_code;

    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM &&
        code != JWRN_JFIF_MAJOR)
        on_error(info);
}

/* Each scan of a progressive file is work for all pixels. */
static void on_progress(j_common_ptr info)
{
    reader *r = (reader *)info->err;
    int scan = ((j_decompress_ptr)info)->input_scan_number;

    if (scan <= MAX_SCANS) return;
    cr_fail(r->err, CR_EFORMAT, "it has more than %d scans", MAX_SCANS);
    longjmp(r->failed, 1);
}

static void read_orientation(j_decompress_ptr info, cri_image_file *file)
{
    static const char xmp[] = "http://ns.adobe.com/xap/1.0/";

    for (jpeg_saved_marker_ptr m = info->marker_list; m; m = m->next) {
        if (m->data_length > 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            cri_exif_read(file, m->data, m->data_length);
        if (m->data_length > sizeof xmp && memcmp(m->data, xmp, sizeof xmp) == 0)
            cri_xmp_read(file, m->data + sizeof xmp, m->data_length - sizeof xmp);
    }
}

/* Adobe's inverted CMYK: 255 is no ink. */
static void rgb_of_cmyk(const uint8_t *in, int num, uint8_t *out)
{
    for (int x = 0; x < num; x++, in += 4)
        for (int c = 0; c < 3; c++) {
            int ink = 255 - in[c], white = in[3], t = ink * white + 128;
            *out++ = (uint8_t)(white - (((t >> 8) + t) >> 8));
        }
}

static cr_status read_pixels(j_decompress_ptr info, reader *r, cri_image_file *file, cr_image *out)
{
    int num = info->num_components;

    if (num != 1 && num != 3 && num != 4)
        return cr_fail(r->err, CR_EFORMAT, "it has %d components", num);
    CR_TRY(cri_image_reserve(file, info->image_width, info->image_height, out, r->err));
    info->out_color_space = num == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(info);
    if (num == 4) r->row = cr_alloc((size_t)out->width * 4);
    for (int y = 0; y < out->height; y++) {
        uint8_t *to = out->pixels + (size_t)y * (size_t)out->width * 3;
        JSAMPROW row = num == 4 ? r->row : to;
        jpeg_read_scanlines(info, &row, 1);
        if (num == 4) rgb_of_cmyk(r->row, out->width, to);
    }
    jpeg_finish_decompress(info);
    return CR_OK;
}

cr_status cri_jpeg_decode(cri_image_file *file, cr_image *out, cr_err *err)
{
    struct jpeg_decompress_struct info = {0};
    reader r = {.err = err, .progress.progress_monitor = on_progress};

    info.err = jpeg_std_error(&r.base);
    r.base.error_exit = on_error;
    r.base.emit_message = on_message;
    if (setjmp(r.failed) == 0) {
        jpeg_create_decompress(&info);
        info.progress = &r.progress;
        jpeg_save_markers(&info, APP1, 0xffff);
        jpeg_mem_src(&info, file->data, file->num_bytes);
        jpeg_read_header(&info, TRUE);
        read_orientation(&info, file);
        cr_note(read_pixels(&info, &r, file, out));
    }
    jpeg_destroy_decompress(&info);
    cr_free(r.row);
    return err->status;
}
