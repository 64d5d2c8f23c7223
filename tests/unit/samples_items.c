/* samples_items.c -- images between the pipeline and ranks over a real redis-server: digests as numbers, a store that drops what steps no
 * longer need, a loader whose patches are those of the file, which refuses other bytes, other grids and broken files, and
 * forgets the least recently used.
 */
#include "images/pool.h"
#include "images/videos/clip.h"
#include "images/videos/frames.h"
#include "samples/items/loader.h"
#include "samples/protocol.h"

#include "tests/ok.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FOLDER "tests/parity/images/"
enum { NUM = 3 };
static const char *const names[NUM] = {FOLDER "jpeg_420.jpeg", FOLDER "png_exif.png",
                                       FOLDER "webp_alpha.webp"};

static cr_server_plan plan;
static pid_t server;
static char folder[] = "/tmp/croll-test-XXXXXX";
static cr_exchange *x;
static const cr_image_processor processor = {.form = CR_RESIZE_PIL,
                                             .patch_size = 4,
                                             .merge_size = 2,
                                             .temporal_patch_size = 2,
                                             .min_pixels = 64,
                                             .max_pixels = 1024,
                                             .alpha = CR_ALPHA_WHITE,
                                             .has_resize = true,
                                             .has_rescale = true,
                                             .rescale_factor = 1.0 / 255};

static cr_buf file[NUM];
static cr_image_patches want[NUM];
static uint64_t digest[NUM][CR_ITEM_DIGEST];

static int set_up(void **state)
{
    cr_exchange_args args = {.prefix = "t:", .deadline_s = 60, .may_be_starting = true};

    (void)state;
    if (!mkdtemp(folder) || cr_server_plan_make(folder, NULL, &plan, &err) != CR_OK) return -1;
    server = fork();
    if (server == 0) {
        execvp(plan.argv[0], plan.argv);
        _exit(127);
    }
    args.url = plan.url;
    if (cr_exchange_open(&args, &x, &err) != CR_OK) return -1;
    for (int i = 0; i < NUM; i++) {
        char hex[CR_DIGEST_TEXT], again[CR_DIGEST_TEXT];
        cr_image image;
        OK(cr_file_read(names[i], &file[i], &err));
        OK(cr_image_decode_alpha(file[i].data, file[i].num_bytes, CR_IMAGE_MAX_PIXELS,
                                 processor.alpha, &image, &err));
        OK(cr_image_cut(&processor, &image, &want[i], &err));
        cr_image_free(&image);
        cr_digest_bytes(file[i].data, file[i].num_bytes, hex);
        cr_item_digest_of(hex, digest[i]);
        cr_item_digest_text(digest[i], again);
        assert_string_equal(hex, again);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < NUM; i++) {
        cr_buf_free(&file[i]);
        cr_image_patches_free(&want[i]);
    }
    cr_exchange_close(x);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    cr_server_plan_free(&plan);
    return cr_remove_tree(folder, &err) == CR_OK ? 0 : -1;
}

static cr_item_refs ref(int i)
{
    return (cr_item_refs){digest[i], want[i].grid, 1};
}

static bool is_there(int i)
{
    char text[CR_DIGEST_TEXT];
    const char *name = text;
    cr_buf found = {0};
    bool is;

    cr_item_digest_text(digest[i], text);
    OK(cr_table_get(x, CR_TABLE_ITEMS, &name, 1, &found, &err));
    is = found.num_bytes == file[i].num_bytes &&
         memcmp(found.data, file[i].data, found.num_bytes) == 0;
    assert_true(is || !found.num_bytes);
    cr_buf_free(&found);
    return is;
}

static void store(cr_item_store *s, int i)
{
    if (!cr_item_store_need(s, digest[i]))
        cr_item_store_put(s, x, digest[i], file[i].data, file[i].num_bytes);
}

/* 0 is of step 0 and 1, 1 of step 0, 2 of step 1, put before step 0 is over. */
static void steps(void **state)
{
    cr_item_store *s = cr_item_store_create();

    (void)state;
    store(s, 0);
    store(s, 1);
    store(s, 2);
    assert_true(cr_item_store_need(s, digest[1]) && is_there(0) && is_there(1));
    cr_item_store_end_step(s, x);
    assert_true(cr_item_store_need(s, digest[0]));
    assert_true(is_there(0) && is_there(1) && is_there(2));
    cr_item_store_end_step(s, x);
    assert_true(is_there(0) && !is_there(1) && !is_there(2));
    assert_false(cr_item_store_need(s, digest[1]));
    cr_item_store_end_step(s, x);
    cr_item_store_end_step(s, x);
    assert_false(is_there(0));
    cr_item_store_destroy(s);
}

static void check(const cr_item_loader *l, int i)
{
    const cr_image_patches *p = cr_item_loader_get(l, digest[i]);

    assert_non_null(p);
    assert_memory_equal(p->grid, want[i].grid, sizeof p->grid);
    assert_true(p->num_patches == want[i].num_patches && p->patch_dim == want[i].patch_dim);
    assert_memory_equal(p->values, want[i].values,
                        (size_t)(p->num_patches * p->patch_dim) * sizeof *p->values);
}

/* One kept byte: each load forgets what it did not ask for. */
static void loads(void **state)
{
    cr_item_store *s = cr_item_store_create();
    cr_item_loader *small = cr_item_loader_create(&processor, 1),
                   *large = cr_item_loader_create(&processor, CR_ITEM_CACHE_BYTES);
    const cr_item_refs all[] = {ref(0), {0}, ref(1), ref(0), ref(2)}, one = ref(1);

    (void)state;
    for (int i = 0; i < NUM; i++)
        store(s, i);
    for (int k = 0; k < 2; k++) {
        cr_item_loader *l = k ? large : small;
        OK(cr_item_loader_load(l, x, all, CR_COUNT(all), &err));
        for (int i = 0; i < NUM; i++)
            check(l, i);
        OK(cr_item_loader_load(l, x, &one, 1, &err));
        check(l, 1);
        assert_int_equal(cr_item_loader_get(l, digest[0]) != NULL, k);
    }
    assert_int_equal(cr_item_loader_bytes(small), want[1].num_patches * want[1].patch_dim * 4);
    cr_table_clear(x, CR_TABLE_ITEMS);
    OK(cr_item_loader_load(large, x, all, CR_COUNT(all), &err));
    for (int i = 0; i < NUM; i++)
        check(large, i);
    assert_int_equal(cr_item_loader_load(small, x, all, CR_COUNT(all), &err), CR_EFORMAT);
    assert_non_null(strstr(err.msg, "not in the exchange"));
    err = (cr_err){0};
    OK(cr_item_loader_load(small, x, NULL, 0, &err));
    cr_item_loader_destroy(small);
    cr_item_loader_destroy(large);
    cr_item_store_destroy(s);
}

static void refuse(const cr_item_refs *refs, size_t num, const char *why)
{
    cr_item_loader *l = cr_item_loader_create(&processor, CR_ITEM_CACHE_BYTES);

    for (int i = 0; i < 2; i++, err = (cr_err){0}) { /* nothing of a failure is kept */
        assert_int_equal(cr_item_loader_load(l, x, refs, num, &err), CR_EFORMAT);
        if (!strstr(err.msg, why)) fail_msg("%s", err.msg);
    }
    cr_item_loader_destroy(l);
}

static void refused(void **state)
{
    int32_t turned[] = {1, want[0].grid[2], want[0].grid[1] + 2};
    uint64_t of_text[CR_ITEM_DIGEST];
    char hex[CR_DIGEST_TEXT];
    cr_item_store *s = cr_item_store_create();
    cr_item_refs other = {digest[0], turned, 1}, text = {of_text, turned, 1}, bad = ref(1);
    const cr_item_refs two[] = {ref(0), other};

    (void)state;
    store(s, 0);
    refuse(&other, 1, "another processor");
    refuse(two, 2, "patches here");
    cr_item_store_put(s, x, digest[1], file[2].data, file[2].num_bytes);
    refuse(&bad, 1, "other bytes");
    cr_digest_bytes("no image", 8, hex);
    cr_item_digest_of(hex, of_text);
    cr_item_store_put(s, x, of_text, "no image", 8);
    refuse(&text, 1, "JPEG");
    cr_table_clear(x, CR_TABLE_ITEMS);
    cr_item_store_destroy(s);
}

/* Three frames as one item: what their clip is, in order, with a rate that is part of the digest. */
static void video(void **state)
{
    cr_image_processor takes = processor;
    cr_buf blob = {0}, frames[3] = {file[1], file[1], file[1]};
    uint64_t digests[2][CR_ITEM_DIGEST];
    cr_item_store *s = cr_item_store_create();
    char hex[2][CR_DIGEST_TEXT], files[3][CR_DIGEST_TEXT];
    cr_image_patches made;
    cr_clip clip;

    (void)state;
    takes.video = (cr_video_rules){.is_taken = true, .min_pixels = 64, .max_pixels = 1024};
    cr_clip_begin(&clip, &takes, 3, 4.0);
    for (int i = 0; i < 3; i++) {
        cr_image image;
        OK(cr_image_decode_alpha(frames[i].data, frames[i].num_bytes, CR_IMAGE_MAX_PIXELS,
                                 takes.alpha, &image, &err));
        if (i == 1) image.pixels[5] ^= 255; /* the frames that are sent are all the same */
        OK(cr_clip_add(&clip, &image, &err));
        cr_digest_bytes(frames[i].data, frames[i].num_bytes, files[i]);
    }
    OK(cr_clip_cut(&clip, &made, &err));
    for (int k = 0; k < 2; k++) {
        cr_video_digest(k ? 3.0 : 4.0, (const char(*)[CR_DIGEST_TEXT])files, 3, hex[k]);
        cr_item_digest_of(hex[k], digests[k]);
    }
    assert_string_not_equal(hex[0], hex[1]);
    cr_frames_put(4.0, frames, 3, &blob);
    cr_item_store_put(s, x, digests[0], blob.data, blob.num_bytes);
    cr_item_store_put(s, x, digests[1], blob.data, blob.num_bytes);
    store(s, 0);
    {
        cr_item_loader *l = cr_item_loader_create(&takes, CR_ITEM_CACHE_BYTES);
        const cr_item_refs all[] = {{digests[0], made.grid, 1}, ref(0)},
                           bad = {digests[1], made.grid, 1};
        const cr_image_patches *got;
        OK(cr_item_loader_load(l, x, all, 2, &err));
        check(l, 0);
        got = cr_item_loader_get(l, digests[0]);
        assert_true(got->grid[0] == 2 && got->second_per_grid == 0.5f);
        assert_memory_not_equal(got->values, made.values,
                                (size_t)(made.num_patches * made.patch_dim) * sizeof(float));
        assert_memory_equal(got->values + made.num_patches / 2 * made.patch_dim,
                            made.values + made.num_patches / 2 * made.patch_dim,
                            (size_t)(made.num_patches / 2 * made.patch_dim) * sizeof(float));
        assert_int_equal(cr_item_loader_load(l, x, &bad, 1, &err), CR_EFORMAT);
        assert_non_null(strstr(err.msg, "other bytes"));
        err = (cr_err){0};
        cr_item_loader_destroy(l);
    }
    cr_table_clear(x, CR_TABLE_ITEMS);
    cr_image_patches_free(&made);
    cr_item_store_destroy(s);
    cr_buf_free(&blob);
}

/* The bytes of a video, cut off anywhere, or with more frames than there can be. */
static void frames_that_are_not_sound(void **state)
{
    cr_buf blob = {0};
    cr_frames read;

    (void)state;
    cr_frames_put(4.0, file, NUM, &blob);
    OK(cr_frames_get(blob.data, blob.num_bytes, &read, &err));
    assert_true(read.num == NUM && read.fps == 4.0 && read.num_bytes[2] == file[2].num_bytes);
    assert_memory_equal(read.data[2], file[2].data, file[2].num_bytes);
    cr_frames_free(&read);
    for (size_t n = 16; n < blob.num_bytes; n += n < 64 ? 1 : 997) { /* cut off */
        assert_int_equal(cr_frames_get(blob.data, n, &read, &err), CR_EFORMAT);
        err = (cr_err){0};
    }
    memset(blob.data + 24, 255, 8); /* as many frames as there can be */
    assert_int_equal(cr_frames_get(blob.data, blob.num_bytes, &read, &err), CR_EFORMAT);
    err = (cr_err){0};
    cr_buf_free(&blob);
}

static void references(void **state)
{
    int32_t grid[] = {1, 2, 4, 1, 4, 0};
    const uint64_t digests[8] = {0};
    cr_item_refs out;

    (void)state;
    assert_int_equal(cr_item_refs_make(digests, 8, grid, 6, &out, &err), CR_EFORMAT);
    err = (cr_err){0};
    grid[5] = 4;
    OK(cr_item_refs_make(digests, 8, grid, 6, &out, &err));
    assert_int_equal(out.num, 2);
    assert_int_equal(cr_item_refs_make(digests, 7, grid, 6, &out, &err), CR_EFORMAT);
    err = (cr_err){0};
    assert_int_equal(cr_item_refs_make(digests, 8, grid, 5, &out, &err), CR_EFORMAT);
    err = (cr_err){0};
    OK(cr_item_refs_make(NULL, 0, NULL, 0, &out, &err));
    assert_int_equal(out.num, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(references),
                                       cmocka_unit_test(steps),
                                       cmocka_unit_test(loads),
                                       cmocka_unit_test(video),
                                       cmocka_unit_test(frames_that_are_not_sound),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
