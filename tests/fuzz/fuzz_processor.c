/* fuzz_processor.c -- arbitrary text as preprocessor_config.json: a processor that can cut an image, or a refusal that names the file. */
#include "images/processor.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_buf text = {0};
    cr_image_processor p;
    cr_err err = {0};
    int width, height;

    cr_buf_add(&text, data, size);
    if (cr_image_processor_parse(text.data ? text.data : "", size, "p.json", &p, &err) == CR_OK) {
        if (cr_image_target(&p, 300, 77, &width, &height, &err) == CR_OK) {
            int factor = p.patch_size * p.merge_size;
            CR_CHECK(width > 0 && height > 0 && width % factor == 0 && height % factor == 0,
                     "%d x %d", width, height);
        }
    } else {
        CR_CHECK(strncmp(err.msg, "p.json: ", 8) == 0, "%s", err.msg);
    }
    cr_buf_free(&text);
    return 0;
}
