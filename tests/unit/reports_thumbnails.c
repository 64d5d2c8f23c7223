/* reports_thumbnails.c -- pictures of images in a run's pages: how large one is and all together, made once and found again, names of
 * strangers as text, what is no reference, images that are not there or are none. Not covered: what they look like (e2e/run_images_rlvr
 * has a page of a run).
 */
#include "reports/thumbnails/thumbnails.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 160, HEIGHT = 120 };

/* Noise, which is what takes most bytes; of one that begins with 'f' no image; *context counts. */
static cr_status read_noise(void *context, const char *sha256, cr_buf *out, cr_err *err)
{
    cr_image image = {.width = WIDTH, .height = HEIGHT};
    uint32_t x = 1;

    ++*(int *)context;
    if (sha256[0] == 'e') return cr_fail(err, CR_EABSENT, "it is gone");
    if (sha256[0] == 'f') {
        cr_buf_adds(out, "<svg/>");
        return CR_OK;
    }
    for (const char *c = sha256; *c; c++)
        x = x * 31 + (uint32_t)*c;
    image.pixels = cr_alloc((size_t)WIDTH * HEIGHT * 3);
    for (size_t i = 0; i < (size_t)WIDTH * HEIGHT * 3; i++)
        image.pixels[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    cr_note(cr_image_write_webp(&image, out, err));
    cr_image_free(&image);
    return err->status;
}

/* A row whose num images have digests that begin with this digit; owned. */
static json_t *row_of(char digit, int num, const char *path)
{
    json_t *images = json_array();
    char sha256[65];

    for (int i = 0; i < num; i++) {
        snprintf(sha256, sizeof sha256, "%c%063x", digit, i);
        json_array_append_new(
            images, json_pack("{s:s,s:i,s:s}", "sha256", sha256, "num_bytes", 9, "path", path));
    }
    return json_pack("{s:o}", "images", images);
}

static int num_of(const char *text, const char *what)
{
    int num = 0;

    for (; text && (text = strstr(text, what)); text++)
        num++;
    return num;
}

/* The page's part for one row; owned. */
static char *part_of(cr_thumbnails *t, json_t *row)
{
    cr_buf out = {0};

    cr_buf_adds(&out, "");
    cr_thumbnails_add(t, row, &out);
    json_decref(row);
    return out.data;
}

static void check_size(const char *name, int width, int height)
{
    char *path = cr_path_join(temp_folder, name);
    cr_image image = {0};
    cr_buf file = {0};
    cr_err err = {0};

    assert_int_equal(cr_file_read(path, &file, &err), CR_OK);
    assert_int_equal(cr_image_decode(file.data, file.num_bytes, 1 << 20, &image, &err), CR_OK);
    assert_int_equal(image.width, width);
    assert_int_equal(image.height, height);
    cr_image_free(&image);
    cr_buf_free(&file);
    cr_free(path);
}

static void made_once(void **state)
{
    int num_read = 0;
    const cr_image_files files = {read_noise, &num_read, CR_ALPHA_DROP}, none = {0};
    cr_thumbnails *t = cr_thumbnails_open(temp_folder, &files), *again;
    char *first = part_of(t, row_of('1', 3, "\"><script>.png")),
         *second = part_of(t, row_of('1', 3, "\"><script>.png")), *third;

    (void)state;
    assert_int_equal(num_read, 3);
    assert_int_equal(num_of(first, "<img src=\"data:image/webp;base64,"), 3);
    assert_int_equal(num_of(first, "alt=\"&quot;&gt;&lt;script&gt;.png\""), 3);
    assert_int_equal(num_of(first, "<script"), 0);
    assert_string_equal(first, second);
    check_size("thumbnails/1000000000000000000000000000000000000000000000000000000000000002.webp",
               128, 96);
    again = cr_thumbnails_open(temp_folder, &none); /* croll report */
    third = part_of(again, row_of('1', 3, "\"><script>.png"));
    assert_string_equal(first, third);
    cr_thumbnails_close(again);
    cr_thumbnails_close(t);
    cr_free(first);
    cr_free(second);
    cr_free(third);
}

static void bounded(void **state)
{
    int num_read = 0;
    const cr_image_files files = {read_noise, &num_read, CR_ALPHA_DROP};
    cr_thumbnails *t = cr_thumbnails_open(temp_folder, &files);
    cr_buf page = {0};

    (void)state;
    for (int i = 0; i < 60; i++) { /* other images each time, and one of 10,000 */
        json_t *row = row_of("123456789abcd"[i % 13], i == 30 ? 10000 : 1 + i / 4, "p.png");
        cr_thumbnails_add(t, row, &page);
        json_decref(row);
    }
    assert_true(num_read <= 48);
    assert_true(page.num_bytes > 100 << 10 && page.num_bytes < 600 << 10);
    assert_int_equal(num_of(page.data, "and 9994 more"), 1);
    assert_true(num_of(page.data, "<small>p.png</small>") > 10);
    cr_buf_free(&page);
    cr_thumbnails_close(t);
}

static void not_there(void **state)
{
    int num_read = 0;
    const cr_image_files files = {read_noise, &num_read, CR_ALPHA_DROP};
    cr_thumbnails *t = cr_thumbnails_open(temp_folder, &files);
    char *gone = part_of(t, row_of('e', 1, "gone.png")),
         *html = part_of(t, row_of('f', 1, "x.svg")),
         *outside = part_of(
             t, json_pack("{s:{s:s,s:i}}", "images", "sha256",
                          "../../../../../../../../../../../../../../../../../../etc/passwd",
                          "num_bytes", 1));

    (void)state;
    assert_string_equal(gone, "<div class=\"images\"><small>gone.png</small> </div>");
    assert_string_equal(html, "<div class=\"images\"><small>x.svg</small> </div>");
    assert_string_equal(outside, "");
    assert_int_equal(num_read, 2);
    assert_false(cr_thumbnails_add(t, NULL, NULL));
    cr_thumbnails_close(t);
    cr_free(gone);
    cr_free(html);
    cr_free(outside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(made_once), cmocka_unit_test(bounded),
                                       cmocka_unit_test(not_there)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
