/* images_golden.c -- one small file of each kind: pixels and values are, to the bit, those of Transformers (tests/parity/images.py
 * makes the files of tests/parity/images and the digests). Sides after resizing, patches of a video.
 */
#include "base/digest.h"
#include "base/json.h"
#include "images/processor.h"
#include "images/videos/clip.h"

#include "tests/temp_folder.h"

#include "tests/ok.h"

#include <string.h>

#define FOLDER "tests/parity/images/"
static const char *const forms[] = {CR_RESIZE_FORMS};

static void read_image(const char *name, cr_image_alpha alpha, cr_image *out)
{
    cr_buf file = {0};
    char path[200];

    snprintf(path, sizeof path, FOLDER "%s", name);
    OK(cr_file_read(path, &file, &err));
    OK(cr_image_decode_alpha(file.data, file.num_bytes, CR_IMAGE_MAX_PIXELS, alpha, out, &err));
    cr_buf_free(&file);
}

static void same_digest(const char *what, const void *data, size_t num_bytes, const json_t *want)
{
    char hex[CR_DIGEST_TEXT];

    cr_digest_bytes(data, num_bytes, hex);
    if (strcmp(hex, json_string_value(want)) != 0) fail_msg("%s differ", what);
}

/* Patches of the towers, which another file of a folder says. */
static void set_patches(cr_image_processor *p, const json_t *sizes)
{
    for (int i = 0; i < p->num_views; i++)
        p->views[i].patch_size = (int)json_integer_value(json_array_get(sizes, (size_t)i));
    if (p->num_views) p->patch_size = p->views[0].patch_size;
}

static void check_values(const char *file, const json_t *processor, const json_t *patch_sizes,
                         const json_t *want)
{
    const char *form = json_string_value(json_object_get(want, "form"));
    cr_image_processor p = {0};
    cr_image_patches patches;
    cr_image image;
    cr_buf text = {0};
    char what[200];

    OK(cr_json_add_value(&text, processor, &err));
    OK(cr_image_processor_parse(text.data, text.num_bytes, file, &p, &err));
    set_patches(&p, patch_sizes);
    p.form = strcmp(form, forms[0]) == 0 ? CR_RESIZE_PIL : CR_RESIZE_TORCHVISION;
    read_image(file, CR_ALPHA_DROP, &image);
    OK(cr_image_cut(&p, &image, &patches, &err));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(patches.grid[i],
                         json_integer_value(json_array_get(json_object_get(want, "grid"), i)));
    assert_int_equal(patches.num_tokens, patches.num_patches / (p.merge_size * p.merge_size));
    snprintf(what, sizeof what, "%s: values of %s, patches of %d,", file, form, p.patch_size);
    same_digest(what, patches.values,
                (size_t)(patches.num_patches * patches.patch_dim) * sizeof(float),
                json_object_get(want, "values"));
    cr_image_patches_free(&patches);
    cr_image_free(&image);
    cr_buf_free(&text);
}

static void goldens(void **state)
{
    json_t *root, *c, *want;
    size_t i, j;

    (void)state;
    OK(cr_json_read_file(FOLDER "images.json", &root, &err));
    assert_true(json_array_size(json_object_get(root, "cases")) >= 40);
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const char *file = json_string_value(json_object_get(c, "file"));
        cr_image image;
        char what[200];
        read_image(file, CR_ALPHA_DROP, &image);
        assert_int_equal(image.width, json_integer_value(json_object_get(c, "width")));
        assert_int_equal(image.height, json_integer_value(json_object_get(c, "height")));
        snprintf(what, sizeof what, "%s: pixels", file);
        same_digest(what, image.pixels, (size_t)image.width * (size_t)image.height * 3,
                    json_object_get(c, "pixels"));
        cr_image_free(&image);
        read_image(file, CR_ALPHA_WHITE, &image);
        snprintf(what, sizeof what, "%s: pixels over white", file);
        same_digest(what, image.pixels, (size_t)image.width * (size_t)image.height * 3,
                    json_object_get(c, "white"));
        cr_image_free(&image);
        json_array_foreach(json_object_get(c, "processed"), j, want)
        {
            const char *model = json_string_value(json_object_get(want, "model"));
            check_values(file, json_object_get(json_object_get(root, "models"), model),
                         json_object_get(json_object_get(root, "patches"), model), want);
        }
    }
    json_decref(root);
}

/* Height, width and limits to height and width: smart_resize of Transformers. */
static void sides(void **state)
{
    const struct {
        int factor;
        int64_t min, max;
        int height, width, to_height, to_width;
    } cases[] = {{28, 3136, 12845056, 480, 640, 476, 644},
                 {28, 3136, 12845056, 1080, 1920, 1092, 1932},
                 {28, 3136, 1003520, 1080, 1920, 728, 1316},
                 {28, 3136, 12845056, 42, 70, 56, 56}, /* 1.5 and 2.5 to even */
                 {28, 3136, 12845056, 70, 42, 56, 56},
                 {28, 3136, 12845056, 14, 14, 56, 56},
                 {28, 3136, 12845056, 1, 200, 28, 812},
                 {28, 784, 1568, 20, 4000, 28, 560}, /* a side of at least one block */
                 {32, 65536, 16777216, 480, 640, 480, 640},
                 {32, 65536, 16777216, 100, 100, 256, 256},
                 {32, 65536, 16777216, 4000, 6000, 3328, 4992},
                 {32, 65536, 16777216, 48, 80, 224, 352}};
    int width, height;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_image_processor p = {.patch_size = cases[i].factor / 2,
                                .merge_size = 2,
                                .has_resize = true,
                                .min_pixels = cases[i].min,
                                .max_pixels = cases[i].max};
        OK(cr_image_target(&p, cases[i].width, cases[i].height, &width, &height, &err));
        if (width != cases[i].to_width || height != cases[i].to_height)
            fail_msg("case %zu: %d x %d", i, height, width);
    }
}

/* Block, limits of all frames together, frames, height and width to height and width: smart_resize of Qwen3VLVideoProcessor. */
static void joint_sides(void **state)
{
    const struct {
        int factor;
        int64_t min, max;
        size_t num_frames;
        int height, width, to_height, to_width;
    } cases[] = {{4, 1200, 2900, 5, 13, 19, 16, 20}, /* 2.5 patches along t to even */
                 {4, 1200, 2900, 6, 13, 19, 12, 20},
                 {4, 100, 1900, 7, 30, 9, 28, 8},
                 {4, 100, 1000, 3, 13, 19, 12, 20},
                 {4, 64, 5000, 2, 3, 50, 4, 64}, /* a side below a block */
                 {32, 4096, 25165824, 2, 1, 3, 32, 96},
                 {32, 4096, 25165824, 9, 1080, 1920, 1088, 1920},
                 {32, 4096, 25165824, 768, 1080, 1920, 128, 224},
                 {32, 4096, 25165824, 5, 480, 640, 480, 640}};
    int width, height;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_image_processor p = {.patch_size = cases[i].factor / 2,
                                .merge_size = 2,
                                .temporal_patch_size = 2,
                                .has_resize = true,
                                .video = {.is_taken = true,
                                          .has_joint_limits = true,
                                          .min_pixels = cases[i].min,
                                          .max_pixels = cases[i].max}};
        OK(cr_video_target(&p, cases[i].num_frames, cases[i].width, cases[i].height, &width,
                           &height, &err));
        if (width != cases[i].to_width || height != cases[i].to_height)
            fail_msg("case %zu: %d x %d", i, height, width);
    }
}

/* Three frames make two along t, the last with the third frame twice; a patch is [3, t, rows, columns]. */
static void frames(void **state)
{
    cr_image_processor p = {
        .patch_size = 1, .merge_size = 2, .temporal_patch_size = 2, .video = {.is_taken = true}};
    cr_image f[3];
    cr_image_patches patches;
    cr_clip clip;

    (void)state;
    cr_clip_begin(&clip, &p, 3, 4.0);
    for (int i = 0; i < 3; i++) {
        cr_image one = {.pixels = cr_alloc(2 * 4 * 3), .width = 4, .height = 2};
        for (int j = 0; j < 2 * 4 * 3; j++)
            one.pixels[j] = (uint8_t)(100 * (i + 1) / 2 + j);
        f[i] = one;
        f[i].pixels = memcpy(cr_alloc(2 * 4 * 3), one.pixels, 2 * 4 * 3);
        OK(cr_clip_add(&clip, &one, &err));
        assert_null(one.pixels);
    }
    OK(cr_clip_cut(&clip, &patches, &err));
    assert_true(patches.grid[0] == 2 && patches.grid[1] == 2 && patches.grid[2] == 4);
    assert_true(patches.num_tokens == 4 && patches.patch_dim == 6);
    assert_true(patches.second_per_grid == 0.5f);
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 8; i++)
            for (int e = 0; e < 6; e++) {
                int row = i % 4 / 2, column = i / 4 * 2 + i % 2, c = e / 2;
                int frame = 2 * t + e % 2 < 3 ? 2 * t + e % 2 : 2;
                float want = f[frame].pixels[(row * 4 + column) * 3 + c];
                assert_true(patches.values[(t * 8 + i) * 6 + e] == want);
            }
    cr_image_patches_free(&patches);
    cr_clip_begin(&clip, &p, 2, 4.0);
    OK(cr_clip_add(&clip, &f[0], &err));
    f[1].height = 1;
    assert_int_equal(cr_clip_add(&clip, &f[1], &err), CR_EARG);
    assert_non_null(strstr(err.msg, "it has 4 x 1 pixels, and the first frame 4 x 2"));
    err = (cr_err){0};
    cr_clip_free(&clip);
    for (int i = 1; i < 3; i++)
        cr_image_free(&f[i]);
}

/* A model folder with this processor of videos, and one of images that is as it is. */
static void write_processor(const json_t *keys)
{
    json_t *of_images = json_deep_copy(keys);
    char *own = cr_path_join(temp_folder, "video_preprocessor_config.json");
    char *other = cr_path_join(temp_folder, "preprocessor_config.json");

    json_object_del(of_images, "video_processor_type");
    json_object_set_new(of_images, "image_processor_type", json_string("Qwen2VLImageProcessor"));
    assert_int_equal(json_dump_file(keys, own, 0), 0);
    assert_int_equal(json_dump_file(of_images, other, 0), 0);
    json_decref(of_images);
    cr_free(own);
    cr_free(other);
}

/* Lists of 1 to 8 frames: grids and values of Transformers, or as it, refused. */
static void videos(void **state)
{
    json_t *root, *c;
    size_t i;

    (void)state;
    OK(cr_json_read_file("tests/parity/videos.json", &root, &err));
    assert_true(json_array_size(json_object_get(root, "cases")) == 144);
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "processor"));
        const json_t *list = json_object_get(c, "frames"), *grid = json_object_get(c, "grid");
        cr_image_processor p;
        cr_image_patches patches = {0};
        cr_clip clip;
        char what[100];
        write_processor(json_object_get(json_object_get(root, "processors"), name));
        OK(cr_image_processor_read(temp_folder, &p, &err));
        assert_true(p.video.is_taken && !p.video.is_other);
        cr_clip_begin(&clip, &p, json_array_size(list), 2.0);
        for (size_t k = 0; k < json_array_size(list) && !err.status; k++) {
            cr_image frame;
            read_image(json_string_value(json_array_get(list, k)), CR_ALPHA_DROP, &frame);
            cr_note(cr_clip_add(&clip, &frame, &err));
            cr_image_free(&frame);
        }
        snprintf(what, sizeof what, "case %zu (%s, %zu frames)", i, name, json_array_size(list));
        if (!grid) {
            if (!strstr(err.msg, "a video of 1 frame")) fail_msg("%s: %s", what, err.msg);
            err = (cr_err){0};
            cr_clip_free(&clip);
            continue;
        }
        if (err.status) fail_msg("%s: %s", what, err.msg);
        OK(cr_clip_cut(&clip, &patches, &err));
        for (size_t k = 0; k < 3; k++)
            if (patches.grid[k] != json_integer_value(json_array_get(grid, k)))
                fail_msg("%s: %d x %d x %d patches", what, patches.grid[0], patches.grid[1],
                         patches.grid[2]);
        same_digest(what, patches.values,
                    (size_t)(patches.num_patches * patches.patch_dim) * sizeof(float),
                    json_object_get(c, "values"));
        cr_image_patches_free(&patches);
    }
    json_decref(root);
}

/* Whatever changes the values of an image of that size changes the name. */
static void names(void **state)
{
    const cr_image_processor first = {.patch_size = 14,
                                      .merge_size = 1,
                                      .temporal_patch_size = 1,
                                      .has_resize = true,
                                      .num_views = 2,
                                      .views = {{.to = 224, .side = 224, .patch_size = 14},
                                                {.to = 256, .side = 224, .patch_size = 14}}};
    cr_image_processor all[16];
    char *name[CR_COUNT(all)];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(all); i++)
        all[i] = first;
    all[1].form = CR_RESIZE_TORCHVISION;
    all[2].alpha = CR_ALPHA_WHITE;
    all[3].patch_size = 16;
    all[4].merge_size = 2;
    all[5].has_rescale = true;
    all[6].rescale_factor = 1.0 / 255;
    all[7].mean[2] = 0.5;
    all[8].num_views = 1;
    all[9].views[1].to = 255;
    all[10].views[1].side = 210;
    all[11].views[1].mean[0] = 0.5;
    all[12].views[0].std[2] = 0.5;
    all[13].fit = CR_FIT_LETTERBOX;
    all[14].fill[1] = 1;
    all[15].is_prismatic = true;
    for (size_t i = 0; i < CR_COUNT(all); i++) {
        cr_buf text = {0};
        cr_image_processor_name(&all[i], &text);
        name[i] = text.data;
        for (size_t k = 0; k < i; k++)
            if (strcmp(name[k], name[i]) == 0)
                fail_msg("processors %zu and %zu: %s", k, i, name[i]);
    }
    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_free(name[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(goldens),     cmocka_unit_test(sides),
                                       cmocka_unit_test(joint_sides), cmocka_unit_test(frames),
                                       cmocka_unit_test(videos),      cmocka_unit_test(names)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
