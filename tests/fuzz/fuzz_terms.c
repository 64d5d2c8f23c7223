/* fuzz_terms.c -- arbitrary bytes as terms/step-N.jsonl of croll why: refused with a sentence that names the file, or all of it is
 * shown: the step and each sample, which is found by its id. */
#include "pipelines/why/terms_file.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_buf text = {0}, out = {0};
    cri_terms_file f;
    cr_err err = {0};
    json_t *sample;
    size_t i;

    cr_buf_add(&text, data, size);
    if (cri_terms_read(&text, "terms", &f, &err) == CR_OK) {
        cri_terms_show_step(&f, 3, &out);
        CR_CHECK(strncmp(out.data, "step ", 5) == 0, "%s", out.data);
        json_array_foreach(f.samples, i, sample)
        {
            CR_CHECK(cri_terms_find(&f, json_string_value(json_object_get(sample, "id"))), "%zu",
                     i);
            cri_terms_show_sample(&f, sample, NULL, &out);
        }
    } else {
        CR_CHECK(strstr(err.msg, "terms"), "%s", err.msg);
    }
    cri_terms_file_free(&f);
    cr_buf_free(&out);
    cr_buf_free(&text);
    return 0;
}
