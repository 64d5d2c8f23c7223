/* mutator.h -- for targets of text that a library parses, whose branches libFuzzer cannot see: every second
 * mutation is one of tests/mutate.h, which knows tokens and numbers. */
#ifndef CR_FUZZ_MUTATOR_H
#define CR_FUZZ_MUTATOR_H

#include "tests/mutate.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    cr_buf out = {0};

    if (seed % 2 || size == 0) return LLVMFuzzerMutate(data, size, max);
    mutate(data, size, seed, &out);
    size = out.num_bytes < max ? out.num_bytes : max;
    if (size) memcpy(data, out.data, size);
    cr_buf_free(&out);
    return size;
}

#endif
