/* library.c -- products by cuBLASLt on device cuda: taken where its kept algorithm gives a row the same bits in any company, left to
 * croll's own kernels where it splits k, has no algorithm or fails the probe, and an error where it refuses later what it
 * has taken; few rows by another algorithm or by few.cu where these have the same bits; a bias at an odd address; types. Numbers are checked against the cpu in tests/unit/kernels_devices.c.
 */
#include "kernels/gpu.h"
#include "kernels/linears.h"
#include "tests/cuda_sim/operands.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 130, MANY = 8193, N = 72, K = 200 };

typedef struct place {
    cr_device *dev;
    cr_mem *x, *w, *bias, *y;
    cr_dtype dtype;
    bool has_bias, has_add;
    cr_gpu_products products; /* when it was closed */
} place;

/* products: CROLL_CUDA_PRODUCTS; how: what cuBLASLt does wrong, or NULL. */
static void place_open(place *p, cr_dtype dtype, const char *products, const char *how)
{
    *p = (place){.dtype = dtype};
    if (how)
        setenv("CROLL_SIM_CUBLASLT", how, 1);
    else
        unsetenv("CROLL_SIM_CUBLASLT");
    setenv("CROLL_CUDA_PRODUCTS", products, 1);
    OK(cr_device_open("cuda", 1, &p->dev, &err));
    p->x = numbers(p->dev, dtype, MANY * K);
    p->w = numbers(p->dev, dtype, N * K);
    p->bias = numbers(p->dev, dtype, N + 1);
    p->y = numbers(p->dev, dtype, 2 * MANY * N); /* of 4 bytes */
}

static void place_close(place *p)
{
    p->products = cr_gpu_get_products(p->dev);
    cr_device_free(p->dev, p->x, MANY * K * 2);
    cr_device_free(p->dev, p->w, N * K * 2);
    cr_device_free(p->dev, p->bias, (N + 1) * 2);
    cr_device_free(p->dev, p->y, MANY * N * 4);
    cr_device_close(p->dev);
}

/* y of `num` rows from `first` on, into out [num][N]: float32, or 16-bit numbers with a bias or an addend. */
static cr_status rows_of(place *p, int64_t first, int64_t num, void *out)
{
    const cr_dtype to = p->has_bias || p->has_add ? p->dtype : CR_F32;
    const size_t num_bytes = (size_t)(num * N) * cr_dtype_bytes(to);
    const cr_weight w = {p->w, p->dtype, N, K, NULL};
    const cr_linear_args a = {.x = cr_at(p->dtype, p->x, first * K),
                              .w = &w,
                              .bias = p->has_bias ? cr_at(p->dtype, p->bias, 1)
                                                  : NULL, /* at an odd address */
                              .add = p->has_add ? p->y : NULL,
                              .y = p->y,
                              .out_dtype = to,
                              .num_rows = num};

    if (p->has_add) OK(cr_copy(p->dev, p->y, cr_at(p->dtype, p->x, first * N), num_bytes, &err));
    CR_TRY(cr_linear(p->dev, &a, &err));
    return cr_download(p->dev, out, p->y, num_bytes, &err);
}

static void all_rows(cr_dtype dtype, const char *products, const char *how, float *y, place *p)
{
    place_open(p, dtype, products, how);
    OK(rows_of(p, 0, M, y));
}

/* The same numbers but for roundings. */
static void check_close(cr_dtype dtype, const void *a, const void *b)
{
    static float x[M * N], y[M * N];

    cr_cast_host(CR_F32, x, dtype, a, CR_COUNT(x));
    cr_cast_host(CR_F32, y, dtype, b, CR_COUNT(y));
    for (size_t i = 0; i < CR_COUNT(x); i++)
        check_near(x[i], y[i], 0.02 * (1 + (x[i] < 0 ? -x[i] : x[i])));
}

static void set_option(place *p, int option)
{
    p->has_bias = option & 1;
    p->has_add = option & 2;
}

/* By both, with the options on one device each, which must not mix them up. */
static void taken_with_the_same_rows_in_any_company(void **state)
{
    static const cr_dtype dtypes[] = {CR_BF16, CR_F16};
    static char library[M * N * 4], own[M * N * 4], part[M * N * 4];

    (void)state;
    for (int t = 0; t < 2; t++) {
        place p, q;
        place_open(&p, dtypes[t], "library", NULL);
        place_open(&q, dtypes[t], "own", NULL);
        for (int option = 0; option < 4; option++) {
            size_t row_bytes = N * (option ? 2 : sizeof(float));
            set_option(&p, option);
            set_option(&q, option);
            OK(rows_of(&p, 0, M, library));
            OK(rows_of(&q, 0, M, own));
            for (int64_t step = 1; step < M; step = 3 * step + 4)
                for (int64_t i = 0; i < M; i += step) {
                    int64_t num = i + step < M ? step : M - i;
                    OK(rows_of(&p, i, num, part));
                    assert_memory_equal(part, library + (size_t)i * row_bytes,
                                        (size_t)num * row_bytes);
                }
            check_close(p.has_bias || p.has_add ? p.dtype : CR_F32, own, library);
            if (option == 0) assert_memory_not_equal(own, library, sizeof own); /* it was taken */
        }
        place_close(&p);
        place_close(&q);
        assert_int_equal(p.products.num_sizes, 4);
        assert_int_equal(p.products.num_taken, 4);
        assert_int_equal(p.products.num_few + p.products.num_fitted, 0); /* other sums */
        assert_int_equal(q.products.num_sizes, 0);
        assert_int_equal(q.products.num_few, t == 0 ? 3 : 0);
    }
}

/* dw [N, K] and dx [num, K] of the first rows, whose gradients are the numbers of x. */
static void gradients_of(place *p, int64_t num, float *dw, void *dx)
{
    const cr_weight w = {p->w, p->dtype, N, K, NULL};
    const size_t num_bytes = (size_t)(num * K) * 2;
    cr_mem *mem;

    OK(cr_device_alloc(p->dev, N * K * 4 + num_bytes, &mem, &err));
    OK(cr_zero(p->dev, mem, N * K * 4, &err));
    OK(cr_linear_grad(p->dev,
                      &(cr_linear_grad_args){.x = p->x,
                                             .dy = p->x,
                                             .w = &w,
                                             .dx = cr_mem_add(mem, N * K * 4),
                                             .dw = mem,
                                             .num_rows = num},
                      &err));
    OK(cr_download(p->dev, dw, mem, N * K * 4, &err));
    OK(cr_download(p->dev, dx, cr_mem_add(mem, N * K * 4), num_bytes, &err));
    cr_device_free(p->dev, mem, N * K * 4 + num_bytes);
}

/* One description of the matrices serves all numbers of rows. */
static void gradients_of_any_rows(void **state)
{
    static const int64_t nums[] = {130, 7, 64, 130, 1};
    static float library[N * K], own[N * K], first[N * K];
    static uint16_t dx[M * K], own_dx[M * K], first_dx[M * K];
    place p, q;

    (void)state;
    place_open(&p, CR_BF16, "library", NULL);
    place_open(&q, CR_BF16, "own", NULL);
    for (size_t i = 0; i < CR_COUNT(nums); i++) {
        gradients_of(&p, nums[i], library, dx);
        gradients_of(&q, nums[i], own, own_dx);
        for (size_t j = 0; j < CR_COUNT(own); j++)
            check_near(library[j], own[j], 1e-4 * (double)nums[i]);
        if (i == 0) memcpy(first, library, sizeof first), memcpy(first_dx, dx, sizeof dx);
        assert_memory_equal(dx, first_dx, (size_t)(nums[i] * K) * 2);
        if (nums[i] == nums[0]) assert_memory_equal(library, first, sizeof first);
    }
    place_close(&p);
    place_close(&q);
    assert_int_equal(p.products.num_taken, 2);
}

static void left_to_own_kernels(void **state)
{
    static const char *const wrong[][2] = {
        {"split", "its algorithm splits k into 2 parts"},
        {"none", "it has no algorithm without workspace"},
        {"product", "a product of cuBLASLt: cuBLAS status 15"},
        {"matrix", "a matrix of cuBLASLt: cuBLAS status 7"},
        {"choice", "what cuBLASLt may choose: cuBLAS status 15"},
        {"parts", "its algorithm does not say into how many parts it splits k: cuBLAS status 7"},
        {"fickle", "row 0 of 257 has other bits than the same row alone"}};
    static float own[M * N], y[M * N];
    place p;

    (void)state;
    all_rows(CR_BF16, "own", NULL, own, &p);
    place_close(&p);
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        all_rows(CR_BF16, "library", wrong[i][0], y, &p);
        place_close(&p);
        assert_int_equal(p.products.num_sizes, 1);
        assert_int_equal(p.products.num_taken, 0);
        assert_string_equal(p.products.refusal, wrong[i][1]);
        assert_memory_equal(y, own, sizeof y);
    }
}

/* Where few rows have the bits of many: bf16 by croll's own kernel, fp16 and float32 by an algorithm of cuBLASLt for few rows. */
static void few_rows_by_what_is_for_them(void **state)
{
    static const int64_t nums[] = {1, 16, 17, 64, 65};
    static const cr_dtype dtypes[] = {CR_BF16, CR_F16};
    static char all[M * N * 4], part[M * N * 4];

    (void)state;
    for (int t = 0; t < 2; t++) {
        place p;
        place_open(&p, dtypes[t], "library", "chain");
        for (int option = 0; option < 4; option++) {
            const bool is_own = t == 0 && option > 0;
            size_t row_bytes = N * (option ? 2 : sizeof(float));
            set_option(&p, option);
            OK(rows_of(&p, 0, M, all));
            for (size_t i = 0; i < CR_COUNT(nums); i++) {
                cri_sim_stats before = cri_sim_counts;
                OK(rows_of(&p, 0, nums[i], part));
                assert_int_equal(cri_sim_counts.mma > before.mma, is_own && nums[i] <= 64);
                assert_int_equal(cri_sim_counts.few - before.few, !is_own && nums[i] <= 16);
                assert_memory_equal(part, all, (size_t)nums[i] * row_bytes);
            }
        }
        place_close(&p);
        assert_int_equal(p.products.num_taken, 4);
        assert_int_equal(p.products.num_few, t == 0 ? 3 : 0);
        assert_int_equal(p.products.num_fitted, t == 0 ? 2 : 8);
    }
}

/* q, k and v: one launch for few rows, if all three are few.cu's, with the bits of each alone. */
static void products_of_the_same_rows(void **state)
{
    enum { NUM = 3 };
    static const int64_t sizes[NUM] = {N, 8, 24}, nums[] = {1, 17, 64, 65};
    static const struct {
        const char *products, *how;
        bool is_few;
    } ways[] = {{"library", "chain", true}, {"own", NULL, true}, {"library", NULL, false}};
    static char together[M * N * 2], alone[M * N * 2];

    (void)state;
    for (size_t way = 0; way < CR_COUNT(ways); way++) {
        place p;
        place_open(&p, CR_BF16, ways[way].products, ways[way].how);
        for (size_t j = 0; j < CR_COUNT(nums); j++) {
            const bool is_few = ways[way].is_few && nums[j] <= 64;
            cr_linears_args a = {.x = p.x, .num = NUM, .num_rows = nums[j]};
            uint64_t before;
            for (int i = 0; i < NUM; i++) {
                a.w[i] = (cr_weight){cr_at(CR_BF16, p.w, i * 8 * K), CR_BF16, sizes[i], K, NULL};
                a.bias[i] = i == 1 ? cr_at(CR_BF16, p.bias, 8) : NULL;
                a.y[i] = cr_at(CR_BF16, p.y, i * M * N);
            }
            a.w[0].data = p.w;
            OK(cr_linears(p.dev, &a, &err)); /* with the probe */
            before = cri_sim_counts.submitted;
            OK(cr_linears(p.dev, &a, &err));
            assert_int_equal(cri_sim_counts.submitted - before, is_few ? 1 : NUM);
            for (int i = 0; i < NUM; i++) {
                const size_t num_bytes = (size_t)(nums[j] * sizes[i]) * 2;
                const cr_linear_args one = cr_linear_of(&a, i);
                OK(cr_download(p.dev, together, a.y[i], num_bytes, &err));
                OK(cr_zero(p.dev, a.y[i], num_bytes, &err));
                OK(cr_linear(p.dev, &one, &err));
                OK(cr_download(p.dev, alone, a.y[i], num_bytes, &err));
                assert_memory_equal(together, alone, num_bytes);
            }
        }
        place_close(&p);
    }
}

/* Of the heuristic's algorithms the first splits k, the second breaks its word. */
static void third_algorithm(void **state)
{
    static float y[M * N];
    place p;

    (void)state;
    all_rows(CR_BF16, "library", "third", y, &p);
    place_close(&p);
    assert_int_equal(p.products.num_taken, 1);
}

static void refused_later(void **state)
{
    static float y[MANY * N];
    place p;

    (void)state;
    place_open(&p, CR_BF16, "library", "late");
    OK(rows_of(&p, 0, 64, y));
    assert_int_equal(rows_of(&p, 0, MANY, y), CR_EIO);
    assert_non_null(strstr(err.msg, "a product that cuBLASLt has accepted before"));
    err = (cr_err){0};
    place_close(&p);
}

static void other_words(void **state)
{
    cr_device *dev;

    (void)state;
    setenv("CROLL_CUDA_PRODUCTS", "fast", 1);
    assert_int_equal(cr_device_open("cuda", 1, &dev, &err), CR_EUSAGE);
    assert_non_null(strstr(err.msg, "use library or own"));
    err = (cr_err){0};
    unsetenv("CROLL_CUDA_PRODUCTS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(taken_with_the_same_rows_in_any_company),
                                       cmocka_unit_test(gradients_of_any_rows),
                                       cmocka_unit_test(left_to_own_kernels),
                                       cmocka_unit_test(few_rows_by_what_is_for_them),
                                       cmocka_unit_test(products_of_the_same_rows),
                                       cmocka_unit_test(third_algorithm),
                                       cmocka_unit_test(refused_later),
                                       cmocka_unit_test(other_words)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
