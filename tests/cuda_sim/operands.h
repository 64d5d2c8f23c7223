/* operands.h -- for tests of products on the simulated GPU: matrices on a device. */
#ifndef CR_TEST_OPERANDS_H
#define CR_TEST_OPERANDS_H

#include "kernels/kernels.h"
#include "tests/ok.h"

/* num numbers of -1 to 1, the same each time for one seed; owned by the caller. */
static inline float *numbers_on_host(int64_t num, uint32_t seed)
{
    float *f = CR_NEW_ARRAY(float, num);

    for (int64_t i = 0; i < num; i++)
        f[i] = (float)(((uint32_t)i + seed) * 2654435761u >> 8) / 8388608.0F - 1.0F;
    return f;
}

/* On the device, in a dtype of 16 bits. */
static inline cr_mem *narrowed(cr_device *dev, cr_dtype dtype, const float *f, int64_t num)
{
    uint16_t *narrow = CR_NEW_ARRAY(uint16_t, num);
    cr_mem *mem;

    cr_cast_host(dtype, narrow, CR_F32, f, (size_t)num);
    OK(cr_device_alloc(dev, (size_t)num * 2, &mem, &err));
    OK(cr_upload(dev, mem, narrow, (size_t)num * 2, &err));
    cr_free(narrow);
    return mem;
}

static inline cr_mem *numbers(cr_device *dev, cr_dtype dtype, int64_t num)
{
    float *f = numbers_on_host(num, 0);
    cr_mem *mem = narrowed(dev, dtype, f, num);

    cr_free(f);
    return mem;
}

#endif
