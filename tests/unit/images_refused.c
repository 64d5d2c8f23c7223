/* images_refused.c -- files that are no images, damaged, cut off at any byte, or bombs: refused by name, and no memory is taken for
 * what a header claims. Processor files that are wrong.
 */
#include "images/processor.h"

#include "tests/ok.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FOLDER "tests/parity/images/"

static void refused(const void *data, size_t num_bytes, int64_t limit, const char *why)
{
    cr_image image;

    err = (cr_err){0};
    assert_int_equal(cr_image_decode(data, num_bytes, limit, &image, &err), CR_EFORMAT);
    assert_null(image.pixels);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
}

static void read_file(const char *name, cr_buf *out)
{
    char path[300];

    snprintf(path, sizeof path, FOLDER "%s", name);
    OK(cr_file_read(path, out, &err));
}

static void types(void **state)
{
    const struct {
        const char *text, *why;
    } cases[] = {{"", "0 bytes"},
                 {"hello", "it is something else; images that are read are JPEG, PNG and WebP"},
                 {"GIF89a\1\1\1", "it is GIF"},
                 {"<!DOCTYPE html><html>", "it is HTML"},
                 {"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS"},
                 {"\377\330\377", "JPEG: "},
                 {"\211PNG\r\n\032\n", "PNG: the file is cut off"},
                 {"RIFF\1\1\1\1WEBP", "WebP: the file is cut off"}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        refused(cases[i].text, strlen(cases[i].text), CR_IMAGE_MAX_PIXELS, cases[i].why);
}

/* Each file at every length that is shorter than its own. */
static void cut(void **state)
{
    struct dirent *entry;
    DIR *folder = opendir(FOLDER);
    int num = 0;

    (void)state;
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        cr_buf file = {0};
        if (entry->d_name[0] == '.' || strstr(entry->d_name, ".json")) continue;
        read_file(entry->d_name, &file);
        for (size_t n = 12; n < file.num_bytes; n += 1 + n / 97) {
            char *copy = malloc(n); /* so that a sanitizer sees a read beyond it */
            memcpy(copy, file.data, n);
            refused(copy, n, CR_IMAGE_MAX_PIXELS, "");
            free(copy);
        }
        refused(file.data, file.num_bytes - 1, CR_IMAGE_MAX_PIXELS, "");
        cr_buf_free(&file);
        num++;
    }
    closedir(folder);
    assert_true(num >= 40);
}

static void claim_png(cr_buf *file, uint32_t width, uint32_t height)
{
    static const uint8_t crc_table_polynomial[] = {0xed, 0xb8, 0x83, 0x20};
    uint8_t *head = (uint8_t *)file->data + 16;
    uint32_t crc = 0xffffffff, polynomial = 0;

    for (size_t i = 0; i < 4; i++) {
        head[i] = (uint8_t)(width >> (24 - 8 * i));
        head[4 + i] = (uint8_t)(height >> (24 - 8 * i));
        polynomial = polynomial << 8 | crc_table_polynomial[i];
    }
    for (int i = 0; i < 17; i++) { /* "IHDR" and its 13 bytes */
        crc ^= head[i - 4];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    for (int i = 0; i < 4; i++)
        head[13 + i] = (uint8_t)(~crc >> (24 - 8 * i));
}

/* KiB of addresses that were in use at once, touched or not. */
static long max_addresses(void)
{
    char line[200];
    long num = 0;
    FILE *f = fopen("/proc/self/status", "r");

    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmPeak: %ld", &num) == 1) break;
    fclose(f);
    assert_true(num > 0);
    return num;
}

/* A chunk says that it has 2 GB, and the file ends. */
static void long_chunk(void **state)
{
    static const char name[] = "\x7e\0\0\0iTXt0123456789abcdef";
    long before = max_addresses();
    cr_buf png = {0};

    (void)state;
    read_file("png_rgb.png", &png);
    png.num_bytes = 33; /* the signature and IHDR */
    cr_buf_add(&png, name, sizeof name);
    refused(png.data, png.num_bytes, CR_IMAGE_MAX_PIXELS, "PNG: the file is cut off");
    assert_true(max_addresses() - before < 1 << 20);
    cr_buf_free(&png);
}

/* A container of WebP with these bytes in it. */
static void put_in_webp(const cr_buf *inner, cr_buf *out)
{
    uint32_t num = (uint32_t)inner->num_bytes + 4;
    uint8_t size[4] = {(uint8_t)num, (uint8_t)(num >> 8), (uint8_t)(num >> 16),
                       (uint8_t)(num >> 24)};

    cr_buf_clear(out);
    cr_buf_add(out, "RIFF", 4);
    cr_buf_add(out, size, 4);
    cr_buf_add(out, "WEBP", 4);
    cr_buf_add(out, inner->data, inner->num_bytes);
}

/* WebP files inside of one another, a canvas of 2^24 x 2^24 around a small image, chunks of 4 GB. */
static void nested_webp(void **state)
{
    static const uint8_t canvas[18] = {'V', 'P', '8', 'X',  10,   0,    0,    0,    0x10,
                                       0,   0,   0,   0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                         large[8] = {'A', 'L', 'P', 'H', 0xfe, 0xff, 0xff, 0xff};
    cr_buf image = {0}, file = {0}, inner = {0};
    struct rusage before, after;
    long addresses = max_addresses();

    (void)state;
    getrusage(RUSAGE_SELF, &before);
    read_file("webp_lossy.webp", &image);
    for (int i = 0; i < 500; i++) {
        put_in_webp(i ? &file : &image, &inner);
        cr_buf_clear(&file);
        cr_buf_add(&file, inner.data, inner.num_bytes);
        refused(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, "WebP: ");
    }
    for (int i = 0; i < 2; i++) {
        cr_buf_clear(&inner);
        cr_buf_add(&inner, i ? large : canvas, i ? sizeof large : sizeof canvas);
        cr_buf_add(&inner, image.data + 12, image.num_bytes - 12);
        put_in_webp(&inner, &file);
        refused(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, "WebP: ");
    }
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB */
    assert_true(max_addresses() - addresses < 1 << 20);
    cr_buf_free(&image);
    cr_buf_free(&file);
    cr_buf_free(&inner);
}

static void bombs(void **state)
{
    struct rusage before, after;
    cr_buf png = {0}, jpeg = {0}, webp = {0};
    char *at;

    (void)state;
    getrusage(RUSAGE_SELF, &before);
    read_file("png_rgb.png", &png); /* 9 x 30 */
    refused(png.data, png.num_bytes, 269, "PNG: it has 9 x 30 pixels, more than the 269");
    claim_png(&png, 60000, 60000);
    refused(png.data, png.num_bytes, CR_IMAGE_MAX_PIXELS,
            "PNG: it has 60000 x 60000 pixels, more than the 89478485 that are read");
    claim_png(&png, 0x7fffffff, 0x7fffffff);
    refused(png.data, png.num_bytes, CR_IMAGE_MAX_PIXELS, "2147483647 x 2147483647 pixels");
    claim_png(&png, 0xffffffff, 1);
    refused(png.data, png.num_bytes, CR_IMAGE_MAX_PIXELS, "PNG: ");
    read_file("jpeg_420.jpeg", &jpeg);
    at = memmem(jpeg.data, jpeg.num_bytes, "\377\300", 2); /* start of frame */
    assert_non_null(at);
    memcpy(at + 5, "\376\376\376\376", 4);
    refused(jpeg.data, jpeg.num_bytes, CR_IMAGE_MAX_PIXELS,
            "JPEG: it has 65278 x 65278 pixels, more than");
    read_file("webp_lossy.webp", &webp);
    memcpy(webp.data + 26, "\377\077\377\077", 4);
    refused(webp.data, webp.num_bytes, CR_IMAGE_MAX_PIXELS,
            "WebP: it has 16383 x 16383 pixels, more than");
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB */
    cr_buf_free(&png);
    cr_buf_free(&jpeg);
    cr_buf_free(&webp);
}

/* Where Pillow goes on with what libjpeg made up, the file is refused. */
static void damaged(void **state)
{
    cr_buf file = {0};
    char *at;

    (void)state;
    read_file("jpeg_444.jpeg", &file);
    at = memmem(file.data, file.num_bytes, "\377\332", 2); /* start of scan */
    assert_non_null(at);
    memcpy(at + 40, "\377\320", 2); /* a marker inside of the data */
    refused(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, "JPEG: Corrupt JPEG data");
    cr_buf_clear(&file);
    read_file("png_rgb.png", &file);
    file.data[60] ^= 1;
    refused(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, "PNG: ");
    cr_buf_clear(&file);
    read_file("webp_alpha.webp", &file);
    file.data[20] |= 2; /* VP8X says that it is an animation */
    refused(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, "WebP: it is an animation");
    cr_buf_free(&file);
}

static void processors(void **state)
{
    const struct {
        const char *text, *why;
        cr_status status;
    } cases[] = {
        {"[]", "p: an object is expected", CR_EFORMAT},
        {"{", "p: not valid JSON", CR_EFORMAT},
        {"{}", "image_processor_type", CR_EABSENT},
        {"{'image_processor_type':'CLIPImageProcessor'}", "CLIPImageProcessor is not available",
         CR_EABSENT},
        {"{Q,'patch_size':0}", "p: patch_size: an integer from 1 to 512 is expected", CR_EFORMAT},
        {"{Q,'size':{'shortest_edge':100,'longest_edge':50}}", "at least 100 pixels and at most 50",
         CR_EFORMAT},
        {"{Q,'size':3}", "p: size: an object", CR_EFORMAT},
        {"{Q,'max_pixels':1e30}", "p: max_pixels: an integer", CR_EFORMAT},
        {"{Q,'image_mean':[0.5,0.5]}", "p: image_mean: three numbers", CR_EFORMAT},
        {"{Q,'image_std':[0.5,0,1]}", "p: image_std: three positive numbers", CR_EFORMAT},
        {"{Q,'rescale_factor':0}", "p: rescale_factor", CR_EFORMAT},
        {"{Q,'resample':2}", "p: resample: an integer from 3 to 3", CR_EFORMAT},
        {"{Q,'do_resize':1}", "p: do_resize: true or false", CR_EFORMAT},
        {"{P,'input_sizes':[[3,8,9]]}", "p: input_sizes[0]: [3, side, side] is expected",
         CR_EFORMAT},
        {"{P,'input_sizes':[[3,8,8],[3,8,8],[3,8,8]]}", "one or two sizes", CR_EFORMAT},
        {"{P,'use_fused_vision_backbone':true}", "but input_sizes has 1", CR_EFORMAT},
        {"{P,'image_resize_strategy':'stretch'}", "stretch is none of letterbox", CR_EFORMAT},
        {"{P,'interpolations':['bilinear']}", "interpolations[0]: bicubic", CR_EFORMAT},
        {"{P,'means':[[0,0,0],[1,1,1]]}", "means has 2 members, input_sizes 1", CR_EFORMAT},
        {"{P,'tvf_resize_params':[{'size':[224,224]}]}", "tvf_resize_params[0]", CR_EFORMAT},
        {"{P,'tvf_crop_params':[{'output_size':[9,9]}]}", "tvf_crop_params[0]", CR_EFORMAT},
        {"{P,'tvf_normalize_params':[{'mean':[0.5,0.5,0.4]}]}", "means and stds", CR_EFORMAT},
        {"{P,'tvf_do_letterbox':false}", "tvf_do_letterbox", CR_EFORMAT},
        {"{'image_processor_type':'SiglipImageProcessor','size':{'height':9,'width':8}}",
         "height and width that are equal", CR_EABSENT},
        {"{'image_processor_type':'BitImageProcessor','do_center_crop':false}",
         "more than one size", CR_EABSENT},
        {"{'image_processor_type':'BitImageProcessor','size':{'shortest_edge':200}}",
         "crop_size within it", CR_EABSENT},
        {"{'image_processor':{Q,'min_pixels':4,'size':{'min_pixels':9,'max_pixels':200}}}", "",
         CR_OK},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_image_processor p;
        cr_buf text = {0};
        for (const char *c = cases[i].text; *c; c++) {
            if (*c == 'P' && c[1] == ',')
                cr_buf_adds(&text, "\"image_processor_type\":\"PrismaticImageProcessor\"");
            else if (*c == 'Q')
                cr_buf_adds(&text, "\"image_processor_type\":\"Qwen2VLImageProcessorFast\"");
            else
                cr_buf_addc(&text, *c == '\'' ? '"' : *c);
        }
        err = (cr_err){0};
        if (cr_image_processor_parse(text.data, text.num_bytes, "p", &p, &err) != cases[i].status)
            fail_msg("case %zu: status %d", i, err.status);
        if (!strstr(err.msg, cases[i].why)) fail_msg("case %zu: %s", i, err.msg);
        if (cases[i].status == CR_OK)
            assert_true(p.form == CR_RESIZE_TORCHVISION && p.min_pixels == 4 &&
                        p.max_pixels == 200);
        cr_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(types),       cmocka_unit_test(cut),
                                       cmocka_unit_test(bombs),       cmocka_unit_test(long_chunk),
                                       cmocka_unit_test(nested_webp), cmocka_unit_test(damaged),
                                       cmocka_unit_test(processors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
