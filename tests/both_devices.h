/* both_devices.h -- for tests: the same arrays on the device cpu and on the device under test (CROLL_DEVICE), an operation
 * on both, and all arrays compared. A case makes its arrays (floats, ints), calls, and ends with check() or drop_all().
 *
 * Tolerance of FLOATS: one rounding of their dtype (the last bit may fall either way) and `near`.
 */
#ifndef CR_TEST_BOTH_DEVICES_H
#define CR_TEST_BOTH_DEVICES_H

#include "base/rng.h"
#include "kernels/kernels.h"
#include "tests/ok.h"

#include <stdio.h>
#include <string.h>

static cr_device *cpu, *dev;

/* ---- arrays on both devices ---- */

typedef enum elem_kind { FLOATS, INTS } elem_kind;
typedef struct array {
    elem_kind kind;
    cr_dtype dtype; /* of FLOATS */
    int64_t num;
    double near; /* how far FLOATS may be apart, beside the rounding */
    cr_mem *on[2];
} array;

enum { MAX_NUM = 24 };
static array all[MAX_NUM]; /* of the case that runs */
static int num_arrays;
static uint64_t salt;

static inline size_t bytes_of(const array *a)
{
    size_t each = a->kind == FLOATS ? cr_dtype_bytes(a->dtype) : sizeof(int32_t);

    return (size_t)a->num * each;
}

static inline int add(elem_kind elems, cr_dtype dtype, int64_t num, double near, const void *host)
{
    array *a = &all[num_arrays];
    cr_device *devices[] = {cpu, dev};

    assert_true(num_arrays < MAX_NUM);
    *a = (array){elems, dtype, num, near, {NULL, NULL}};
    for (int i = 0; i < 2; i++) {
        OK(cr_device_alloc(devices[i], bytes_of(a), &a->on[i], &err));
        OK(cr_upload(devices[i], a->on[i], host, bytes_of(a), &err));
    }
    return num_arrays++;
}

/* Normal numbers times scale, rounded to dtype. */
static inline int floats(cr_dtype dtype, int64_t num, double scale, double near)
{
    float *f = CR_NEW_ARRAY(float, num), *narrow = CR_NEW_ARRAY(float, num);
    int at;

    salt++;
    for (int64_t i = 0; i < num; i++)
        f[i] = (float)(scale * cr_rng_normal(salt, CR_RNG_TEST, 0, (uint64_t)i));
    cr_cast_host(dtype, narrow, CR_F32, f, (size_t)num);
    at = add(FLOATS, dtype, num, near, narrow);
    cr_free(f);
    cr_free(narrow);
    return at;
}

static inline int ints(const int32_t *host, int64_t num)
{
    return add(INTS, CR_F32, num, 0, host);
}

/* From 0 to below `below`. */
static inline int some_ints(int64_t num, int64_t below)
{
    int32_t *host = CR_NEW_ARRAY(int32_t, num);
    int at;

    for (int64_t i = 0; i < num; i++)
        host[i] = (int32_t)((i * 7 + i * i % 5 + 3) % below);
    at = ints(host, num);
    cr_free(host);
    return at;
}

static inline void compare(const char *what, const array *a, const void *want, const void *got,
                           int index)
{
    float *w = CR_NEW_ARRAY(float, a->num + 1), *g = CR_NEW_ARRAY(float, a->num + 1);
    double bit = a->dtype == CR_BF16 ? 0x1p-7 : a->dtype == CR_F16 ? 0x1p-10 : 0x1p-22;

    cr_cast_host(CR_F32, w, a->dtype, want, (size_t)a->num);
    cr_cast_host(CR_F32, g, a->dtype, got, (size_t)a->num);
    for (int64_t i = 0; i < a->num; i++) {
        double tol = fabs((double)w[i]) * bit + a->near;
        if (w[i] == g[i] || fabs((double)w[i] - (double)g[i]) <= tol) continue;
        fail_msg("%s, %s: element %lld of array %d is %.9g, cpu has %.9g", what,
                 cr_dtype_name(a->dtype), (long long)i, index, (double)g[i], (double)w[i]);
    }
    cr_free(w);
    cr_free(g);
}

/* Compares and frees all arrays. */
static inline void check(const char *what)
{
    cr_device *devices[] = {cpu, dev};
    int num = num_arrays;

    num_arrays = 0; /* where one differs the rest stays allocated */
    for (int i = 0; i < num; i++) {
        array *a = &all[i];
        void *host[2];
        for (int d = 0; d < 2; d++) {
            host[d] = cr_alloc(bytes_of(a) + 64);
            OK(cr_download(devices[d], host[d], a->on[d], bytes_of(a), &err));
        }
        if (a->kind == FLOATS)
            compare(what, a, host[0], host[1], i);
        else if (memcmp(host[0], host[1], bytes_of(a)) != 0)
            fail_msg("%s: array %d of integers differs", what, i);
        for (int d = 0; d < 2; d++) {
            cr_device_free(devices[d], a->on[d], bytes_of(a));
            cr_free(host[d]);
        }
    }
}

static inline void drop_all(void)
{
    for (int i = 0; i < num_arrays; i++) {
        cr_device_free(cpu, all[i].on[0], bytes_of(&all[i]));
        cr_device_free(dev, all[i].on[1], bytes_of(&all[i]));
    }
    num_arrays = 0;
}

/* The operation on both devices; args may use M(array). */
#define M(i) (all[i].on[d])
#define BOTH(op, args, ...)                        \
    do {                                           \
        for (int d = 0; d < 2; d++) {              \
            const args a_ = {__VA_ARGS__};         \
            OK(cr_##op(d ? dev : cpu, &a_, &err)); \
        }                                          \
        check(#op);                                \
    } while (0)

static inline char *fetched(int array_index)
{
    char *host = cr_alloc(bytes_of(&all[array_index]) + 64);

    OK(cr_download(dev, host, all[array_index].on[1], bytes_of(&all[array_index]), &err));
    return host;
}

/* Opens both, and runs; to be returned from main. */
#define on_both_devices(tests) \
    (open_both() ? 1 : close_both(cmocka_run_group_tests(tests, NULL, NULL)))

static inline int open_both(void)
{
    if (cr_device_open("cpu", 1, &cpu, &err) == CR_OK &&
        cr_device_open(cr_device_default(), 1, &dev, &err) == CR_OK)
        return 0;
    printf("%s\n", err.msg);
    return 1;
}

static inline int close_both(int num_failed)
{
    cr_device_close(dev);
    cr_device_close(cpu);
    return num_failed;
}

#endif
