/* products.c -- GFLOP/s of a Linear's products on the cpu device: `bench_products [threads] [fp32|bf16] [repeats]`,
 * defaults 1 bf16 15. A JSON line for each shape of SmolLM2-135M (N x K 1536x576, 576x1536, 576x576, head 49152x576) and
 * M = 16, 64, 256, 512: y = x W^T with W as it lies and packed, dx = dy W, dw += dy^T x. [best, median]. One thread:
 * its CPU time, so that other programs on the machine count for less; more: the wall clock.
 */
#include "kernels/kernels.h"
#include "tests/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 99 };

typedef struct bench {
    cr_device *dev;
    cr_dtype dtype;
    int threads, repeats;
} bench;

typedef struct shape {
    int64_t m, n, k;
} shape;

static double seconds(const bench *b)
{
    struct timespec t;

    clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* what: 0 y, 1 y with packed weights, 2 dx, 3 dw. */
static cr_status once(const bench *b, int what, const cr_linear_args *y,
                      const cr_linear_grad_args *g, cr_err *err)
{
    cr_linear_grad_args only = *g;

    if (what < 2) return cr_linear(b->dev, y, err);
    if (what == 2) only.dw = NULL;
    if (what == 3) only.dx = NULL;
    return cr_linear_grad(b->dev, &only, err);
}

static cr_status measure(const bench *b, int what, shape s, const cr_linear_args *y,
                         const cr_linear_grad_args *g, cr_err *err)
{
    static const char *const names[] = {"y", "y_packed", "dx", "dw"};
    double gflop = 2e-9 * (double)s.m * (double)s.n * (double)s.k, start, took, times[MOST];
    int calls;

    CR_TRY(once(b, what, y, g, err));
    start = seconds(b);
    CR_TRY(once(b, what, y, g, err));
    took = seconds(b) - start;
    calls = took > 0.01 ? 1 : (int)(0.01 / took) + 1;
    for (int r = 0; r < b->repeats; r++) {
        start = seconds(b);
        for (int i = 0; i < calls; i++)
            CR_TRY(once(b, what, y, g, err));
        times[r] = (seconds(b) - start) / calls;
    }
    qsort(times, (size_t)b->repeats, sizeof *times, cr_by_double);
    printf("%s\"%s\":[%.0f,%.0f]", what ? "," : "", names[what], gflop / times[0],
           gflop / times[b->repeats / 2]);
    return CR_OK;
}

/* An array of num elements, small numbers of both signs. */
static void *fill(const bench *b, int64_t num)
{
    float *x = CR_NEW_ARRAY(float, num);
    void *out = cr_alloc((size_t)num * 4);
    cr_err err;

    for (int64_t i = 0; i < num; i++)
        x[i] = (float)(i * 7919 % 2003 - 1001) * 1e-3f;
    CR_CHECK(cr_cast(b->dev, &(cr_cast_args){b->dtype, out, CR_F32, MEM(x), (size_t)num}, &err) ==
                 CR_OK,
             "cast");
    cr_free(x);
    return out;
}

static cr_status run(const bench *b, shape s, cr_err *err)
{
    void *x = fill(b, s.m * s.k), *w = fill(b, s.n * s.k), *dy = fill(b, s.m * s.n), *packed,
         *y = cr_alloc((size_t)(s.m * s.n) * 4), *dx = cr_alloc((size_t)(s.m * s.k) * 4);
    float *dw = CR_NEW_ARRAY(float, s.n *s.k);
    cr_weight weight = {w, b->dtype, s.n, s.k, NULL}, with = weight;
    cr_linear_args to_y = {x, &weight, NULL, NULL, y, b->dtype, s.m};
    cr_linear_grad_args g = {x, dy, &weight, dx, false, MEM(dw), NULL, s.m};

    packed = cr_alloc(cr_weight_packed_bytes(b->dev, &weight));
    CR_TRY(cr_weight_pack(b->dev, &(cr_weight_pack_args){&weight, packed}, err));
    with.packed = packed;
    printf("{\"peer\":\"croll\",\"variant\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,\"m\":%lld,"
           "\"n\":%lld,\"k\":%lld,",
           cr_device_variant(b->dev), cr_dtype_name(b->dtype), b->threads, (long long)s.m,
           (long long)s.n, (long long)s.k);
    for (int what = 0; what < 4; what++) {
        to_y.w = what == 1 ? &with : &weight;
        CR_TRY(measure(b, what, s, &to_y, &g, err));
    }
    printf("}\n");
    fflush(stdout);
    cr_free(x), cr_free(w), cr_free(dy), cr_free(y), cr_free(dx), cr_free(dw), cr_free(packed);
    return CR_OK;
}

int main(int argc, char **argv)
{
    static const int64_t m[] = {16, 64, 256, 512},
                         nk[][2] = {{1536, 576}, {576, 1536}, {576, 576}, {49152, 576}};
    bench b = {.threads = argc > 1 ? atoi(argv[1]) : 1,
               .dtype = argc > 2 && strcmp(argv[2], "fp32") == 0 ? CR_F32 : CR_BF16,
               .repeats = argc > 3 && atoi(argv[3]) < MOST ? atoi(argv[3]) : 15};
    cr_err err = {0};

    if (cr_device_open("cpu", b.threads, &b.dev, &err) != CR_OK) goto failed;
    for (size_t i = 0; i < CR_COUNT(nk); i++)
        for (size_t j = 0; j < CR_COUNT(m); j++)
            if (run(&b, (shape){m[j], nk[i][0], nk[i][1]}, &err) != CR_OK) goto failed;
    cr_device_close(b.dev);
    return 0;
failed:
    fprintf(stderr, "bench_products: %s\n", err.msg);
    return 1;
}
