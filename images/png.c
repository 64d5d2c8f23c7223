/* png.c -- PNG by libpng: all colour types and depths, interlaced or not. An animation gives its first image. */
#include "images/image_impl.h"

#include <png.h>
#include <setjmp.h>
#include <string.h>

enum { MAX_CHUNK_BYTES = 8 << 20, MAX_CHUNKS = 200 };

typedef struct reader {
    const cri_image_file *file;
    size_t at;
    cr_err *err;
    png_bytepp rows;
    uint8_t *gray; /* 16 bit, [height, width, 2], big endian */
    uint8_t *rgba; /* to be blended, [height, width, 4] */
} reader;

static void on_error(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);

    cr_fail(r->err, CR_EFORMAT, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t num)
{
    reader *r = png_get_io_ptr(png);

    if (num > r->file->num_bytes - r->at) png_error(png, "the file is cut off");
    memcpy(to, r->file->data + r->at, num);
    r->at += num;
}

/* Each chunk ends within the file: libpng takes memory for the length that a chunk claims, before it reads it. */
static bool has_whole_chunks(const cri_image_file *f)
{
    enum { SIGNATURE = 8, FRAME = 12 }; /* length, name and check sum of a chunk */

    for (size_t at = SIGNATURE; f->num_bytes - at >= FRAME;) {
        const uint8_t *head = f->data + at;
        size_t num = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (num > f->num_bytes - at - FRAME) return false;
        if (memcmp(head + 4, "IEND", 4) == 0) return true;
        at += FRAME + num;
    }
    return false;
}

static void read_orientation(png_structp png, png_infop info, cri_image_file *file)
{
    png_uint_32 num_bytes;
    png_bytep exif;
    png_textp texts;
    int num = 0;

    if (png_get_eXIf_1(png, info, &num_bytes, &exif)) cri_exif_read(file, exif, num_bytes);
    png_get_text(png, info, &texts, &num);
    for (int i = 0; i < num; i++)
        if (strcmp(texts[i].key, "XML:com.adobe.xmp") == 0)
            cri_xmp_read(file, (const uint8_t *)texts[i].text, strlen(texts[i].text));
}

/* Rows of RGB of 8 bits into out->pixels; of gray of 16 bits into r->gray, because Pillow does not scale them; with alpha that is
 * blended into r->rgba. */
static void read_pixels(png_structp png, png_infop info, reader *r, cr_image *out)
{
    int type = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
    size_t row_bytes = (size_t)out->width * 3, num = (size_t)out->width * (size_t)out->height;
    uint8_t *pixels = out->pixels;

    if (type == PNG_COLOR_TYPE_GRAY && depth == 16) {
        row_bytes = (size_t)out->width * 2;
        pixels = r->gray = cr_alloc(num * 2);
    } else {
        bool is_blended = r->file->alpha == CR_ALPHA_WHITE &&
                          (type & PNG_COLOR_MASK_ALPHA || png_get_valid(png, info, PNG_INFO_tRNS));
        if (is_blended) {
            row_bytes = (size_t)out->width * 4;
            pixels = r->rgba = cr_alloc(num * 4);
            png_set_tRNS_to_alpha(png);
        }
        if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
        if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
        png_set_strip_16(png);
        if (!is_blended) png_set_strip_alpha(png);
        png_set_gray_to_rgb(png);
    }
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != row_bytes) png_error(png, "rows of an unexpected length");
    r->rows = CR_NEW_ARRAY(png_bytep, out->height);
    for (int y = 0; y < out->height; y++)
        r->rows[y] = pixels + (size_t)y * row_bytes;
    png_read_image(png, r->rows);
    if (r->rgba) cri_image_blend(r->rgba, out);
    for (size_t i = 0; i < num && r->gray; i++)
        memset(out->pixels + i * 3, r->gray[i * 2] ? 255 : r->gray[i * 2 + 1], 3);
}

cr_status cri_png_decode(cri_image_file *file, cr_image *out, cr_err *err)
{
    reader r = {.file = file, .err = err};
    png_structp png;
    png_infop info, end;

    if (!has_whole_chunks(file)) return cr_fail(err, CR_EFORMAT, "the file is cut off");
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    info = png ? png_create_info_struct(png) : NULL;
    end = png ? png_create_info_struct(png) : NULL;
    CR_CHECK(png && info && end, "libpng cannot be used");
    if (setjmp(png_jmpbuf(png)) == 0) {
        png_set_read_fn(png, &r, on_read);
        png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* cri_image_reserve checks */
        png_set_chunk_malloc_max(png, MAX_CHUNK_BYTES);
        png_set_chunk_cache_max(png, MAX_CHUNKS);
        png_read_info(png, info);
        if (cri_image_reserve(file, png_get_image_width(png, info), png_get_image_height(png, info),
                              out, err) == CR_OK) {
            read_pixels(png, info, &r, out);
            png_read_end(png, end);
            read_orientation(png, info, file);
            read_orientation(png, end, file);
        }
    }
    png_destroy_read_struct(&png, &info, &end);
    cr_free(r.rows);
    cr_free(r.gray);
    cr_free(r.rgba);
    return err->status;
}
