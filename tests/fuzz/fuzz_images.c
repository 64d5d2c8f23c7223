/* fuzz_images.c -- arbitrary JSON as [messages, images, videos]: items with sizes and as many places, or a refusal; text that is expanded. */
#include "images/reader.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_items(const cr_image_items *items)
{
    cr_buf text = {0}, out = {0};
    cr_err err = {0};
    size_t num_tokens = 0;

    for (size_t i = 0; i < items->num; i++) {
        const cr_image_item *item = &items->item[i];
        CR_CHECK(item->width > 0 && item->height > 0 && item->num_tokens > 0, "image %zu", i);
        num_tokens += (size_t)item->num_tokens;
        cr_buf_adds(&text, item->fps > 0 ? "a" CR_VIDEO_PLACEHOLDER : "a" CR_IMAGE_PLACEHOLDER);
    }
    cr_buf_adds(&text, "b");
    cr_note(cr_image_items_expand(items, text.data, text.num_bytes, &out, &err));
    CR_CHECK(err.status == CR_OK &&
                 out.num_bytes == items->num + 1 + num_tokens * (sizeof CR_IMAGE_PLACEHOLDER - 1),
             "%zu tokens", num_tokens);
    cr_buf_free(&text);
    cr_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const cr_image_processor p = {
        .patch_size = 2,
        .merge_size = 2,
        .temporal_patch_size = 2,
        .min_pixels = 64,
        .max_pixels = 1024,
        .has_resize = true,
        .video = {.is_taken = true, .min_pixels = 64, .max_pixels = 1024, .fps = 2}};
    static cr_image_reader *reader;
    cr_image_columns columns;
    cr_image_items items;
    cr_err err = {0};
    json_t *json;

    if (!reader) reader = cr_image_reader_create(&p, "tests/parity/images");
    if (cr_json_parse((const char *)data, size, NULL, &json, &err) != CR_OK) return 0;
    columns = (cr_image_columns){json_array_get(json, 1), json_array_get(json, 2)};
    if (cr_image_reader_read(reader, json_array_get(json, 0), &columns, &items, &err) == CR_OK)
        check_items(&items);
    else
        CR_CHECK(*err.msg, "a refusal without words");
    cr_image_items_free(&items);
    json_decref(json);
    return 0;
}
