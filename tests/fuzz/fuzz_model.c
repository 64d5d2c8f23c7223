/* fuzz_model.c -- arbitrary bytes as small files of a MODEL folder, apart by NULs: tokenizer_config.json,
 * special_tokens_map.json and the index of its shards, of which one is there. */
#include "models/files/safetensors.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/mutator.h"
#include "text/chat.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char shard[] =
    "\x40\0\0\0\0\0\0\0"
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}          "
    "\0\0\x80\x3f";
static const char tokens[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                             "\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}]}";

static void render(void)
{
    static const char text[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    static const char *const names[] = {NULL, "qwen3", "empty", "longcot_V3"};
    json_t *messages;
    cr_chat *chat;
    cr_buf out = {0};
    cr_err err = {0};

    if (cr_chat_open(fuzz_folder, &chat, &err) != CR_OK) {
        CR_CHECK(strstr(err.msg, ".json"), "%s", err.msg);
        return;
    }
    CR_CHECK(cr_json_parse(text, sizeof text - 1, "fuzz", &messages, &err) == CR_OK, "%s", err.msg);
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        err = (cr_err){0};
        cr_buf_clear(&out);
        if (cr_chat_render(chat, names[i], messages, true, &out, &err) == CR_OK)
            CR_CHECK(!out.num_bytes || cr_utf8_valid(out.data, out.num_bytes), "rendered text");
    }
    json_decref(messages);
    cr_buf_free(&out);
    cr_chat_close(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "model.safetensors.index.json"};
    cr_tokenizer *tokenizer;
    cr_tensors *tensors;
    cr_err err = {0};

    if (!fuzz_folder[0]) {
        fuzz_begin("");
        fuzz_put("one.safetensors", shard, sizeof shard - 1);
        fuzz_put("tokenizer.json", tokens, sizeof tokens - 1);
    }
    fuzz_put_all(names, CR_COUNT(names), data, size);
    render();
    if (cr_tokenizer_open(fuzz_folder, &tokenizer, &err) == CR_OK) cr_tokenizer_close(tokenizer);
    err = (cr_err){0};
    if (cr_tensors_open(fuzz_folder, &tensors, &err) == CR_OK) {
        const cr_tensor *a = cr_tensors_find(tensors, "a");
        float x = 0;
        CR_CHECK(a && cr_tensor_read_f32(a, 0, 1, &x, &err) == CR_OK && x > 0.5F, "%g", (double)x);
        cr_tensors_close(tensors);
    } else {
        CR_CHECK(err.msg[0] && !strchr(err.msg, '\n'), "%s", err.msg);
    }
    return 0;
}
