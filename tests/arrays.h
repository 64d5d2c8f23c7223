/* arrays.h -- for tests of kernels: random arrays in a dtype with the same values in double, and how far
 * a result may be from a sum in double. dev and err are those of the test that includes it. */
#ifndef CR_TEST_ARRAYS_H
#define CR_TEST_ARRAYS_H

#include "base/rng.h"
#include "kernels/kernels.h"
#include "tests/check_near.h"

static cr_device *dev;
static cr_err err;
static uint64_t salt;

#define OK(call) assert_int_equal((call), CR_OK)

typedef struct array { /* values in the dtype, and the same in double */
    void *data;
    double *x;
    int64_t n;
    cr_dtype dtype;
} array;

static inline float narrow(cr_dtype dtype, double x)
{
    float f = (float)x;
    uint16_t h;

    if (dtype == CR_F32) return f;
    OK(cr_cast(dev, dtype, &h, CR_F32, &f, 1, &err));
    OK(cr_cast(dev, CR_F32, &f, dtype, &h, 1, &err));
    return f;
}

static inline array make(cr_dtype dtype, int64_t n, double scale)
{
    array a = {cr_alloc((size_t)n * 4), CR_NEW_ARRAY(double, n), n, dtype};
    float *f = CR_NEW_ARRAY(float, n);

    salt++;
    for (int64_t i = 0; i < n; i++) {
        f[i] = narrow(dtype, scale * cr_rng_normal(salt, CR_RNG_TEST, 0, (uint64_t)i));
        a.x[i] = f[i];
    }
    OK(cr_cast(dev, dtype, a.data, CR_F32, f, (size_t)n, &err));
    cr_free(f);
    return a;
}

static inline void drop(array a)
{
    cr_free(a.data);
    cr_free(a.x);
}

static inline double get(const void *data, cr_dtype dtype, int64_t i)
{
    float f;

    if (dtype == CR_F32) return ((const float *)data)[i];
    OK(cr_cast(dev, CR_F32, &f, dtype, (const uint16_t *)data + i, 1, &err));
    return f;
}

/* bf16 has 8 bits, fp16 11: half an ulp is 2^-9 (2^-12) relative; float32 sums of k terms of size s err about k 2^-24 s. */
static inline double tolerance(cr_dtype dtype, double want, double sum)
{
    return (dtype == CR_BF16  ? fabs(want) * 0x1p-8 + 1e-6
            : dtype == CR_F16 ? fabs(want) * 0x1p-11 + 1e-6
                              : 0) +
           1e-6 * (1 + sum) + 2e-6 * fabs(want);
}

static const cr_dtype both[] = {CR_F32, CR_BF16, CR_F16};

#endif
