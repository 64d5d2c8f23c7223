/* fuzz_formula.c -- the first byte chooses a formula, the rest is its request: an answer, which is
 * JSON again, or a sentence. */
#include "formula/formula.h"
#include "tests/fuzz/mutator.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t num = 0;
    cr_buf out = {0};
    cr_err err = {0};
    json_t *json = NULL;

    while (cr_formula_names[num])
        num++;
    if (size == 0) return 0;
    if (cr_formula(cr_formula_names[data[0] % num], (const char *)data + 1, size - 1, &out, &err) ==
        CR_OK)
        CR_CHECK(cr_json_parse(out.data, out.num_bytes, "answer", &json, &err) == CR_OK, "%s",
                 err.msg);
    else
        CR_CHECK(cr_exit_code(err.status) == 2 && strlen(err.msg) > 10 && !strchr(err.msg, '\n'),
                 "%s", err.msg);
    json_decref(json);
    cr_buf_free(&out);
    return 0;
}
