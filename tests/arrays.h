/* arrays.h -- for tests of kernels: random arrays in a dtype with the same values in double, and how far
 * a result may be from a sum in double. dev and err are those of the test that includes it. */
#ifndef CR_TEST_ARRAYS_H
#define CR_TEST_ARRAYS_H

#include "base/rng.h"
#include "kernels/kernels.h"
#include "tests/check_near.h"
#include "tests/memory.h"

static cr_device *dev;
static cr_err err;
static uint64_t salt;

#define OK(call) assert_int_equal((call), CR_OK)

typedef struct array { /* values in the dtype, and the same in double */
    cr_mem *data;
    double *x;
    int64_t n;
    cr_dtype dtype;
} array;

static inline float narrow(cr_dtype dtype, double x)
{
    float f = (float)x;
    float h; /* its first bytes */

    if (dtype == CR_F32) return f;
    cr_cast_host(dtype, &h, CR_F32, &f, 1);
    cr_cast_host(CR_F32, &f, dtype, &h, 1);
    return f;
}

/* A copy in the memory of dev; the caller frees it. */
static inline cr_mem *push(const void *host, size_t num_bytes)
{
    cr_mem *mem;

    OK(cr_device_alloc(dev, num_bytes, &mem, &err));
    OK(cr_upload(dev, mem, host, num_bytes, &err));
    return mem;
}

static inline array make(cr_dtype dtype, int64_t n, double scale)
{
    array a = {NULL, CR_NEW_ARRAY(double, n), n, dtype};
    float *f = CR_NEW_ARRAY(float, n), *narrowed = CR_NEW_ARRAY(float, n);

    salt++;
    for (int64_t i = 0; i < n; i++) {
        f[i] = narrow(dtype, scale * cr_rng_normal(salt, CR_RNG_TEST, 0, (uint64_t)i));
        a.x[i] = f[i];
    }
    cr_cast_host(dtype, narrowed, CR_F32, f, (size_t)n);
    a.data = push(narrowed, (size_t)n * 4);
    cr_free(narrowed);
    cr_free(f);
    return a;
}

static inline void drop(array a)
{
    cr_device_free(dev, a.data, (size_t)a.n * 4);
    cr_free(a.x);
}

static inline double get(const cr_mem *data, cr_dtype dtype, int64_t i)
{
    float f;

    if (dtype == CR_F32) return F32(data)[i];
    cr_cast_host(CR_F32, &f, dtype, cr_host_view(cr_at_const(dtype, data, i)), 1);
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
