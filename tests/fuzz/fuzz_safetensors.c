/* fuzz_safetensors.c -- arbitrary bytes as a safetensors file: parsed or refused, and what is accepted
 * can be read to its last element. */
#include "models/files/safetensors.h"
#include "tests/fuzz/mutator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cr_tensors *tensors;
    cr_err err = {0}, ignored = {0};

    if (cr_tensors_parse(data, size, "fuzz", &tensors, &err) != CR_OK) return 0;
    for (size_t i = 0; i < tensors->num_tensors; i++) {
        const cr_tensor *t = &tensors->tensor[i];
        float last;
        CR_CHECK(cr_tensors_find(tensors, t->name) == t, "%s is not found", t->name);
        if (t->num_elems)
            (void)!cr_tensor_read_f32(t, t->num_elems - 1, t->num_elems, &last, &ignored);
    }
    cr_tensors_close(tensors);
    return 0;
}
