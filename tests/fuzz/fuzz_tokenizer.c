/* fuzz_tokenizer.c -- arbitrary bytes as a tokenizer.json: refused with a sentence, or a tokenizer whose
 * ids of a text are below its number of ids and decode to valid UTF-8, streamed or not. */
#include "tests/fuzz/mutator.h"
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "Once upon a time, 123 caf\xc3\xa9s\n <s></s><|im_start|> \xf0\x9f\xa4\x97";
    cr_buf whole = {0}, pieces = {0};
    cr_token_stream stream;
    cr_tokenizer *t;
    cr_ids ids = {0};
    cr_err err = {0};

    if (cr_tokenizer_parse((const char *)data, size, NULL, "fuzz", &t, &err) != CR_OK) {
        CR_CHECK(err.msg[0] && !strchr(err.msg, '\n'), "%s", err.msg);
        return 0;
    }
    if (cr_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err) == CR_OK) {
        cr_token_stream_init(&stream, t, false);
        for (size_t i = 0; i < ids.num; i++) {
            CR_CHECK(ids.id[i] >= 0 && ids.id[i] < cr_tokenizer_num_ids(t), "id %d", ids.id[i]);
            cr_token_stream_push(&stream, ids.id[i], &pieces);
        }
        cr_token_stream_end(&stream, &pieces);
        cr_tokenizer_decode(t, ids.id, ids.num, false, &whole);
        CR_CHECK(whole.num_bytes == 0 || cr_utf8_valid(whole.data, whole.num_bytes),
                 "decoded text");
        CR_CHECK(whole.num_bytes == pieces.num_bytes &&
                     (!whole.num_bytes || memcmp(whole.data, pieces.data, whole.num_bytes) == 0),
                 "streamed text differs");
    }
    cr_buf_free(&whole);
    cr_buf_free(&pieces);
    cr_ids_free(&ids);
    cr_tokenizer_close(t);
    return 0;
}
