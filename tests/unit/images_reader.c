/* images_reader.c -- images of chats: every way to name one, places and their order, placeholders; paths that lead out of their folder, what is
 * no file, missing or damaged, too many: refused with the message and the image, and memory stays bounded.
 */
#include "base/children.h"
#include "images/ahead.h"
#include "images/reader.h"
#include "images/source.h"

#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include "tests/ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES  "tests/parity/images/"
#define VISION "<|vision_start|><|image_pad|><|vision_end|>"
static cr_buf png;       /* 9 x 30 */
static char *png_base64; /* with quotes */
static const cr_image_processor small = {.patch_size = 2,
                                         .merge_size = 2,
                                         .temporal_patch_size = 2,
                                         .min_pixels = 64,
                                         .max_pixels = 1024,
                                         .has_resize = true};

static json_t *parse(const char *format, ...)
{
    va_list args;
    char *text = NULL;
    json_t *out;

    va_start(args, format);
    assert_true(vasprintf(&text, format, args) > 0);
    va_end(args);
    OK(cr_json_parse(text, strlen(text), NULL, &out, &err));
    free(text);
    return out;
}

static int setup(void **state)
{
    cr_buf text = {0};

    OK(cr_file_read(FILES "png_rgb.png", &png, &err));
    cr_json_add_base64(&text, png.data, png.num_bytes);
    png_base64 = text.data;
    return make_temp_folder(state);
}

static int teardown(void **state)
{
    cr_buf_free(&png);
    cr_free(png_base64);
    return remove_temp_folder(state);
}

/* The folder images/ with a file and ways out of it. */
static char *make_folder(void)
{
    char *folder = cr_path_join(temp_folder, "images"), path[300];

    OK(cr_mkdirs(folder, &err));
    snprintf(path, sizeof path, "%s/a.png", folder);
    OK(cr_file_write_atomic(path, png.data, png.num_bytes, &err));
    snprintf(path, sizeof path, "%s/secret.png", temp_folder);
    OK(cr_file_write_atomic(path, png.data, png.num_bytes, &err));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(symlink(path, "absolute.png"), 0);
    assert_int_equal(symlink("../secret.png", "relative.png"), 0);
    assert_int_equal(symlink("a.png", "inside.png"), 0);
    assert_int_equal(symlink("..", "up"), 0);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(mkdir("folder", 0700), 0);
    return folder;
}

static void sources(void **state)
{
    char here[400], *folder;
    const struct {
        const char *value, *why; /* $: base64 with quotes, @: the folder */
    } cases[] = {{"\"a.png\"", NULL},
                 {"\"inside.png\"", NULL},
                 {"\"@/a.png\"", NULL},
                 {"\"folder/../a.png\"", NULL},
                 {"$", NULL},
                 {"{\"bytes\":$,\"path\":\"none.png\"}", NULL},
                 {"{\"bytes\":null,\"path\":\"a.png\"}", NULL},
                 {"{\"url\":\"data:image/png;base64,#\"}", NULL},
                 {"\"none.png\"", "none.png: No such file"},
                 {"\"absolute.png\"", "absolute.png: it leads out of image_folder"},
                 {"\"relative.png\"", "relative.png: it leads out of image_folder"},
                 {"\"../secret.png\"", "it leads out of image_folder"},
                 {"\"up/secret.png\"", "it leads out of image_folder"},
                 {"\"/etc/passwd\"", "it leads out of image_folder"},
                 {"\"@/../secret.png\"", "it leads out of image_folder"},
                 {"\"folder\"", "folder is no file"},
                 {"\"pipe\"", "pipe is no file"},
                 {"\"\"", "No such file"},
                 {"\"http://127.0.0.1/a.png\"", "nothing is fetched"},
                 {"\"data:image/png,abc\"", "no data URI with base64"},
                 {"\"data:image/png;base64,iVBOR*==\"", "base64 is not valid"},
                 {"\"iVBORw0KGgo\"", "base64 is not valid"},
                 {"{\"bytes\":\"abc\"}", "base64 is not valid"},
                 {"{\"bytes\":3}", "neither text nor an object"},
                 {"[]", "neither text nor an object"},
                 {"null", "neither text nor an object"},
                 {"\"a\\u0000b\"", "has a NUL"}};

    assert_non_null(getcwd(here, sizeof here));
    (void)state;
    folder = make_folder();
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_buf text = {0}, out = {0};
        json_t *value = NULL;
        for (const char *c = cases[i].value; *c; c++)
            if (*c == '$')
                cr_buf_adds(&text, png_base64);
            else if (*c == '#')
                cr_buf_add(&text, png_base64 + 1, strlen(png_base64) - 2);
            else if (*c == '@')
                cr_buf_adds(&text, folder);
            else
                cr_buf_addc(&text, *c);
        OK(cr_json_parse(text.data, text.num_bytes, NULL, &value, &err));
        err = (cr_err){0};
        cr_note(cr_image_source_read(value, folder, &out, &err));
        if (cases[i].why ? !err.status || !strstr(err.msg, cases[i].why) : err.status != CR_OK)
            fail_msg("%s: %s", cases[i].value, err.msg);
        if (!cases[i].why) {
            assert_int_equal(out.num_bytes, png.num_bytes);
            assert_memory_equal(out.data, png.data, png.num_bytes);
        }
        json_decref(value);
        cr_buf_free(&text);
        cr_buf_free(&out);
    }
    err = (cr_err){0};
    assert_int_equal(chdir(here), 0);
    cr_free(folder);
}

/* Parts and tags in their order; data are gone from what the template sees. */
static void chats(void **state)
{
    cr_image_reader *reader = cr_image_reader_create(&small, FILES);
    json_t *messages =
        parse("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":["
              "{\"type\":\"image\",\"image\":\"jpeg_420.jpeg\"},{\"type\":\"text\",\"text\":\"x "
              "<image>y\"},"
              "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,%.*s\"}},"
              "{\"type\":\"image\",\"image\":null}]},{\"role\":\"user\",\"content\":\"<image>z\"}]",
              (int)strlen(png_base64) - 2, png_base64 + 1);
    json_t *column = parse("[{\"bytes\":%s},\"png_rgb.png\",\"jpeg_420.jpeg\"]", png_base64);
    json_t *want = parse("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":["
                         "{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"x " VISION "y\"},"
                         "{\"type\":\"image\"},{\"type\":\"image\"}]},"
                         "{\"role\":\"user\",\"content\":\"" VISION "z\"}]");
    const int widths[] = {19, 9, 9, 9, 19}, tokens[] = {15, 16, 16, 16, 15};
    cr_image_items items;
    cr_buf text = {0};

    (void)state;
    OK(cr_image_reader_read(reader, messages, &(cr_image_columns){column, NULL}, &items, &err));
    assert_int_equal(items.num, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(items.item[i].width, widths[i]);
        assert_int_equal(items.item[i].num_tokens, tokens[i]);
        assert_int_equal(items.item[i].grid[1] * items.item[i].grid[2], 4 * tokens[i]);
        assert_true((strcmp(items.item[i].digest, items.item[0].digest) == 0) == (widths[i] == 19));
    }
    assert_true(json_equal(items.messages, want));
    items.num = 2;
    items.item[0].num_tokens = 2;
    items.item[1].num_tokens = 3;
    OK(cr_image_items_expand(&items, "a<|image_pad|>b<|image_pad|>", 28, &text, &err));
    assert_string_equal(text.data,
                        "a<|image_pad|><|image_pad|>b<|image_pad|><|image_pad|><|image_pad|>");
    assert_int_equal(cr_image_items_expand(&items, "<|image_pad|>", 13, &text, &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "has 1 placeholders <|image_pad|> or <|video_pad|> for 2"));
    cr_buf_free(&text);
    cr_image_items_free(&items);
    /* without a column a tag is text */
    json_decref(messages);
    messages = parse("[{\"role\":\"user\",\"content\":\"<image>z\"}]");
    err = (cr_err){0};
    OK(cr_image_reader_read(reader, messages, NULL, &items, &err));
    assert_true(items.num == 0 && json_equal(items.messages, messages));
    cr_image_items_free(&items);
    json_decref(messages);
    json_decref(column);
    json_decref(want);
    cr_image_reader_destroy(reader);
}

static void check_text(const json_t *messages, const char *want)
{
    const json_t *content = json_object_get(json_array_get(messages, 0), "content");

    assert_string_equal(json_string_value(content), want);
}

/* A model of one size of image: texts without places, placeholders after the first id, one image. */
static void inserted(void **state)
{
    const cr_image_processor one = {.patch_size = 3,
                                    .merge_size = 1,
                                    .temporal_patch_size = 1,
                                    .num_views = 1,
                                    .views = {{6, 6, 3, {0}, {1, 1, 1}}},
                                    .placeholder = 7};
    cr_image_reader *reader = cr_image_reader_create(&one, NULL);
    json_t *messages = parse("[{\"role\":\"user\",\"content\":\" <image>\\n Which? \"}]"),
           *image = parse("[%s]", png_base64),
           *parts = parse("[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"image\":%s},"
                          "{\"type\":\"text\",\"text\":\"a <|image_pad|>\"},"
                          "{\"type\":\"text\",\"text\":\"b\"}]}]",
                          png_base64),
           *two = parse("[{\"role\":\"user\",\"content\":\"<image><image>\"}]");
    int32_t *ids = CR_NEW_ARRAY(int32_t, 3);
    uint8_t *learns = cr_alloc(3);
    size_t num = 3, num_in, next = 0;
    cr_image_items items;
    cr_buf text = {0};

    (void)state;
    OK(cr_image_reader_read(reader, messages, &(cr_image_columns){image, NULL}, &items, &err));
    check_text(items.messages, "Which?");
    assert_true(items.num == 1 && items.item[0].num_tokens == 4);
    for (int i = 0; i < 3; i++)
        ids[i] = i + 1, learns[i] = (uint8_t)(i + 1);
    OK(cr_image_items_insert(&items, &ids, &learns, &num, &num_in, &err));
    assert_true(num == 7 && num_in == 4);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(ids[i], i == 0 ? 1 : i < 5 ? 7 : i - 3);
        assert_int_equal(learns[i], i == 0 ? 1 : i < 5 ? 0 : i - 3);
    }
    cr_image_items_free(&items);
    OK(cr_image_reader_read(reader, parts, NULL, &items, &err));
    check_text(items.messages, "a <|image_pad|>b"); /* which is text here */
    OK(cr_image_items_expand_part(&items, "<|image_pad|>", 13, &next, &text, &err));
    OK(cr_image_items_end(&items, next, &err));
    assert_int_equal(text.num_bytes, 13);
    num = 0;
    assert_int_equal(cr_image_items_insert(&items, &ids, &learns, &num, &num_in, &err), CR_EFORMAT);
    cr_image_items_free(&items);
    err = (cr_err){0};
    json_array_append(image, json_array_get(image, 0));
    assert_int_equal(
        cr_image_reader_read(reader, two, &(cr_image_columns){image, NULL}, &items, &err),
        CR_EFORMAT);
    assert_non_null(strstr(err.msg, "message 1 has a second image"));
    err = (cr_err){0};
    cr_buf_free(&text);
    cr_free(ids);
    cr_free(learns);
    json_decref(messages);
    json_decref(image);
    json_decref(parts);
    json_decref(two);
    cr_image_reader_destroy(reader);
}

static void refused(void **state)
{
    const struct {
        const char *messages, *column, *why;
    } cases[] = {
        {"[{'content':[{'type':'image','image':'png_rgb.png'},{'type':'image','image':'none'}]}]",
         NULL, "message 1, image 2: none: No such file"},
        {"[{'content':'a'},{'content':[{'type':'image'}]}]", NULL,
         "message 2: a place without an image"},
        {"[{'content':'<image><image>'}]", "['png_rgb.png']", "the column has no further one"},
        {"[{'content':'<image>'}]", "['png_rgb.png','png_rgb.png']",
         "the column has 2 images, the messages have places for 1"},
        {"[{'content':'a'}]", "'png_rgb.png'", "the column has 1 images"},
        {"[{'content':[{'type':'audio','audio':'x'}]}]", NULL, "a part of type 'audio'"},
        {"[{'content':[{'type':'video','video':['png_rgb.png']}]}]", NULL,
         "message 1 has a video, and this model takes images"},
        {"[{'content':'a'},{'content':[{'type':'image','image':'png_rgb.png'},"
         "{'type':'image','image':'images.json'}]}]",
         NULL, "message 2, image 2: it is something else"},
    };
    cr_image_reader *reader = cr_image_reader_create(&small, FILES);
    json_t *known = parse("[{\"content\":\"<image>\"}]"), *name = json_string("png_rgb.png");
    cr_image_items items;

    (void)state;
    OK(cr_image_reader_read(reader, known, &(cr_image_columns){name, NULL}, &items, &err));
    cr_image_items_free(&items);
    json_decref(known);
    json_decref(name);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        json_t *messages, *column = NULL;
        char *text = cr_strdup(cases[i].messages);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        messages = parse("%s", text);
        cr_free(text);
        text = cr_strdup(cases[i].column ? cases[i].column : "null");
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        OK(cr_json_parse(text, strlen(text), NULL, &column, &err));
        cr_free(text);
        assert_int_not_equal(
            cr_image_reader_read(reader, messages, &(cr_image_columns){column, NULL}, &items, &err),
            CR_OK);
        if (!strstr(err.msg, cases[i].why)) fail_msg("case %zu: %s", i, err.msg);
        assert_true(!items.item && !items.messages);
        err = (cr_err){0};
        json_decref(messages);
        json_decref(column);
    }
    cr_image_reader_destroy(reader);
}

/* As many as are allowed, of which one is decoded; 10,000. */
static void many(void **state)
{
    cr_image_reader *reader = cr_image_reader_create(&small, FILES);
    struct rusage before, after;
    cr_image_items items;

    (void)state;
    getrusage(RUSAGE_SELF, &before);
    for (size_t num = 512; num <= 10000; num += 10000 - 512) {
        json_t *messages = parse("[{\"role\":\"user\",\"content\":[]}]");
        json_t *parts = json_object_get(json_array_get(messages, 0), "content");
        for (size_t i = 0; i < num; i++)
            json_array_append_new(parts, parse("{\"type\":\"image\",\"image\":\"png_rgb.png\"}"));
        if (num == 512) {
            OK(cr_image_reader_read(reader, messages, NULL, &items, &err));
            assert_true(items.num == num && items.item[511].num_tokens == 16);
            cr_image_items_free(&items);
            cr_kill_children(getpid()); /* the size is known: no worker is asked */
            OK(cr_image_reader_read(reader, messages, NULL, &items, &err));
            cr_image_items_free(&items);
        } else {
            assert_int_equal(cr_image_reader_read(reader, messages, NULL, &items, &err),
                             CR_EFORMAT);
            assert_string_equal(err.msg, "more than 512 images");
        }
        json_decref(messages);
    }
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB */
    cr_image_reader_destroy(reader);
}

/* What a read of a chat says: grids, digests, or the error; owned. */
static char *said(cr_image_reader *reader, const json_t *messages, const json_t *column)
{
    cr_image_items items;
    cr_err why = {0};
    cr_buf out = {0};

    if (cr_image_reader_read(reader, messages, &(cr_image_columns){column, NULL}, &items, &why) !=
        CR_OK)
        return cr_asprintf("%d %s", (int)why.status, why.msg);
    for (size_t i = 0; i < items.num; i++)
        cr_buf_addf(&out, "%s %dx%d %d %d, ", items.item[i].digest, items.item[i].width,
                    items.item[i].height, items.item[i].grid[1], items.item[i].grid[2]);
    cr_image_items_free(&items);
    cr_buf_addc(&out, 0);
    return out.data;
}

/* Chats that are looked at together say what each says alone, and no worker is asked after the look; images that several have, files that are
 * none, and none there. */
static void looked_at_before(void **state)
{
    static const char *const columns[] = {"[\"png_rgb.png\"]",
                                          "[\"jpeg_420.jpeg\",\"png_rgb.png\"]",
                                          "[\"png_rgb.png\",\"none\"]",
                                          "[\"images.json\"]",
                                          "[\"images.json\",\"jpeg_420.jpeg\"]",
                                          "[{\"bytes\":%s}]",
                                          "[\"webp_alpha.webp\"]",
                                          "[\"none\",\"png_rgb.png\"]",
                                          "[]",
                                          "[{\"bytes\":%s}]",
                                          "[\"jpeg_420.jpeg\",\"webp_alpha.webp\"]",
                                          "[\"png_rgb.png\"]"};
    cr_image_reader *together = cr_image_reader_create(&small, FILES);
    json_t *messages[CR_COUNT(columns)], *column[CR_COUNT(columns)];
    size_t num_errors = 0;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(columns); i++) {
        column[i] = parse(columns[i], png_base64);
        messages[i] =
            parse("[{\"content\":\"%s\"}]", json_array_size(column[i]) == 2   ? "<image><image>"
                                            : json_array_size(column[i]) == 1 ? "<image>"
                                                                              : "a");
        cr_image_reader_add(together, messages[i], &(cr_image_columns){column[i], NULL});
    }
    cr_image_reader_look(together);
    cr_kill_children(getpid());
    for (size_t i = 0; i < CR_COUNT(columns); i++) {
        cr_image_reader *alone = cr_image_reader_create(&small, FILES);
        char *is = said(together, messages[i], column[i]),
             *want = said(alone, messages[i], column[i]);
        assert_string_equal(is, want);
        num_errors += strstr(is, "image") != NULL;
        cr_free(is);
        cr_free(want);
        cr_image_reader_destroy(alone);
        json_decref(messages[i]);
        json_decref(column[i]);
    }
    assert_int_equal(num_errors, 4);
    cr_image_reader_destroy(together);
}

/* A look ends when it has decoded more pixels than it may; the next look has the sizes that this one has found. */
static void looks_that_end(void **state)
{
    cr_image_pool *pool = cr_image_pool_create(1, CR_IMAGE_MAX_PIXELS, CR_IMAGE_SECONDS);
    cr_image_ahead *ahead = cr_image_ahead_create(pool, FILES);
    json_t *names = parse("[\"png_rgb.png\",\"jpeg_420.jpeg\",\"webp_alpha.webp\"]");
    const cr_image_look *look;

    (void)state;
    err = (cr_err){0};
    for (size_t i = 0; i < 3; i++)
        cr_image_ahead_add(ahead, json_array_get(names, i));
    OK(cr_image_ahead_look(ahead, 9 * 30, &err));
    for (size_t i = 0; i < 3; i++) {
        look = cr_image_ahead_find(ahead, json_array_get(names, i));
        assert_true((look != NULL) == (i < 2));
        assert_true(!look || (look->is_decoded && look->width == (i ? 19 : 9)));
    }
    cr_image_ahead_add(ahead, json_array_get(names, 2));
    cr_image_ahead_add(ahead, json_array_get(names, 0));
    OK(cr_image_ahead_look(ahead, 1000, &err));
    look = cr_image_ahead_find(ahead, json_array_get(names, 0));
    assert_true(look && !look->is_decoded && look->width == 9);
    assert_non_null(cr_image_ahead_find(ahead, json_array_get(names, 2)));
    assert_null(cr_image_ahead_find(ahead, json_array_get(names, 1)));
    json_decref(names);
    cr_image_ahead_destroy(ahead);
    cr_image_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources),       cmocka_unit_test(chats),
        cmocka_unit_test(inserted),      cmocka_unit_test(refused),
        cmocka_unit_test(many),          cmocka_unit_test(looked_at_before),
        cmocka_unit_test(looks_that_end)};

    return cmocka_run_group_tests(tests, setup, teardown);
}
