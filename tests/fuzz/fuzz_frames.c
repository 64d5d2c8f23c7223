/* fuzz_frames.c -- arbitrary bytes as a video's frames, and after the words that they begin with: files inside of what was read, or a refusal. */
#include "images/videos/frames.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_frames(const char *data, size_t size)
{
    char hex[CR_DIGEST_TEXT];
    cr_frames f;
    cr_err err = {0};

    if (cr_frames_get(data, size, &f, &err) != CR_OK) {
        CR_CHECK(*err.msg && !f.data, "a refusal without words");
        return;
    }
    CR_CHECK(f.num >= 1 && f.num <= size + 1, "%zu frames of %zu bytes", f.num, size);
    for (size_t i = 0; i < f.num; i++)
        CR_CHECK((const char *)f.data[i] >= data &&
                     (const char *)f.data[i] + f.num_bytes[i] <= data + size,
                 "frame %zu", i);
    cr_frames_digest(&f, hex);
    cr_frames_free(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_buf whole = {0}, file = {0};

    cr_buf_add(&file, data, size);
    cr_buf_addc(&file, 0);
    try_frames(file.data, size);
    cr_frames_put(2, &(cr_buf){.data = file.data, .num_bytes = size}, 1, &whole);
    try_frames(whole.data, whole.num_bytes);
    memcpy(whole.data + 16, file.data, size < whole.num_bytes - 16 ? size : whole.num_bytes - 16);
    try_frames(whole.data, whole.num_bytes);
    cr_buf_free(&whole);
    cr_buf_free(&file);
    return 0;
}
