/* fuzz_processor.c -- arbitrary text as preprocessor_config.json: a processor that can cut an image, or a refusal that names the file; and as
 * video_preprocessor_config.json of the same folder: sides of frames, or none. */
#include "images/processor_impl.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sides(const cr_image_processor *p, int width, int height)
{
    int factor = p->patch_size * p->merge_size;

    CR_CHECK(width > 0 && height > 0 && width % factor == 0 && height % factor == 0, "%d x %d",
             width, height);
}

static void try_videos(const char *text, size_t size, cr_image_processor *p)
{
    static const char *const types[] = {NULL, "qwen2_5_vl", "qwen3_vl", "llama"};
    int width, height;

    for (size_t i = 0; i < CR_COUNT(types); i++) {
        cr_err err = {0};
        cri_image_keys k = {.what = "v.json", .err = &err};
        json_t *json;
        if (cr_json_parse(text, size, "v.json", &json, &err) != CR_OK) return;
        k.object = json;
        p->video = (cr_video_rules){.is_taken = true};
        cri_video_keys(&k, types[i], p);
        json_decref(json);
        CR_CHECK(!err.status || strncmp(err.msg, "v.json: ", 8) == 0, "%s", err.msg);
        for (size_t num = 1; num < 2000 && !err.status; num = num * 2 + 1)
            if (cr_video_target(p, num, 300, 3, &width, &height, &(cr_err){0}) == CR_OK)
                check_sides(p, width, height);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_buf text = {0};
    cr_image_processor p;
    cr_err err = {0};
    int width, height;

    cr_buf_add(&text, data, size);
    if (cr_image_processor_parse(text.data ? text.data : "", size, "p.json", &p, &err) == CR_OK) {
        if (cr_image_target(&p, 300, 77, &width, &height, &err) == CR_OK)
            check_sides(&p, width, height);
        if (!p.num_views) try_videos(text.data, size, &p);
    } else {
        CR_CHECK(strncmp(err.msg, "p.json: ", 8) == 0, "%s", err.msg);
    }
    cr_buf_free(&text);
    return 0;
}
