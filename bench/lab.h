/* lab.h -- what bench/products.c and bench/ops.c share: memory of a device with numbers in it, and the time of a call.
 *
 * The device is CROLL_DEVICE's. A measured call is queued several times, enough for 10 ms, and the device is waited for at both
 * ends; a call before is not counted. On one thread of cpu it is that thread's CPU time, so that other programs on the
 * machine count for less; elsewhere the wall clock.
 */
#ifndef CR_BENCH_LAB_H
#define CR_BENCH_LAB_H

#include "kernels/memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAB_MAX_REPEATS = 99 };

typedef struct lab {
    cr_device *dev; /* owned by whoever opened it */
    int threads, repeats;
} lab;

/* What one call takes: seconds of the best and the median repetition; what the device counts for it. */
typedef struct lab_cost {
    double best_s, median_s, flops, moved_bytes;
} lab_cost;

typedef cr_status lab_call(lab *l, void *ctx, cr_err *err);

static inline double lab_seconds(const lab *l)
{
    bool is_own = l->threads == 1 && !cr_device_has_own_memory(l->dev);
    struct timespec t;

    clock_gettime(is_own ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline cr_status lab_run(lab *l, int calls, lab_call *call, void *ctx, double *seconds,
                                cr_err *err)
{
    double start;

    CR_TRY(cr_device_sync(l->dev, err));
    start = lab_seconds(l);
    for (int i = 0; i < calls; i++)
        CR_TRY(call(l, ctx, err));
    CR_TRY(cr_device_sync(l->dev, err));
    *seconds = (lab_seconds(l) - start) / calls;
    return CR_OK;
}

static inline cr_status lab_measure(lab *l, lab_call *call, void *ctx, lab_cost *out, cr_err *err)
{
    double times[LAB_MAX_REPEATS], took;
    cr_device_stats before, after;
    int calls;

    CR_TRY(lab_run(l, 1, call, ctx, &took, err)); /* makes scratch */
    before = cr_device_get_stats(l->dev);
    CR_TRY(lab_run(l, 1, call, ctx, &took, err));
    after = cr_device_get_stats(l->dev);
    calls = took > 0.01 ? 1 : (int)(0.01 / (took > 1e-6 ? took : 1e-6)) + 1;
    for (int r = 0; r < l->repeats; r++)
        CR_TRY(lab_run(l, calls, call, ctx, &times[r], err));
    qsort(times, (size_t)l->repeats, sizeof *times, cr_by_double);
    *out = (lab_cost){times[0], times[l->repeats / 2], after.flops - before.flops,
                      after.moved_bytes - before.moved_bytes};
    return CR_OK;
}

/* num elements of the dtype, small numbers of both signs: a pattern, once from the host, and copied on the device. */
static inline cr_status lab_fill(lab *l, cr_dtype dtype, int64_t num, cr_mem **out, cr_err *err)
{
    enum { PATTERN = 2003 * 1024 };
    size_t num_bytes = (size_t)num * cr_dtype_bytes(dtype),
           done = PATTERN < num ? PATTERN * cr_dtype_bytes(dtype) : num_bytes;
    float *x = CR_NEW_ARRAY(float, PATTERN);
    void *narrow = cr_alloc(PATTERN * sizeof *x);

    for (int64_t i = 0; i < PATTERN; i++)
        x[i] = (float)(i * 7919 % 2003 - 1001) * 1e-3f;
    cr_cast_host(dtype, narrow, CR_F32, x, PATTERN);
    if (cr_device_alloc(l->dev, num_bytes, out, err) == CR_OK)
        cr_note(cr_upload(l->dev, *out, narrow, done, err));
    for (size_t more = 0; done < num_bytes && err->status == CR_OK; done += more) {
        more = done < num_bytes - done ? done : num_bytes - done;
        cr_note(cr_copy(l->dev, cr_mem_add(*out, done), *out, more, err));
    }
    cr_free(x), cr_free(narrow);
    return err->status;
}

#endif
