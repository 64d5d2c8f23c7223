/* products.c -- croll's own products of bf16 on a simulated GPU of compute capability 9.0, which multiplies by wgmma and TMA
 * (linear_wgmma.cu), and of 8.0, by mma.sync (linear.cu): which one ran, and that they have the same bits, at the edges of tiles, of k
 * and of stages, under seeds that order copies and warps differently; on 9.0 rows alone and in company. Numbers are
 * checked against the cpu in tests/unit/kernels_devices.c. Bits are equal by the simulation's order of sums alone, which is both
 * kernels' order; the tensor cores of real GPUs round in their own ways. */
#include "tests/cuda_sim/operands.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { M = 300, N = 600, K = 648, NUM_SEEDS = 2, FEW = 64, MAX_Y = 66 * 8456 };

typedef struct place {
    cr_device *dev;
    cr_mem *x, *w, *bias, *y;
} place;

static void place_open(place *p, const char *capability)
{
    setenv("CROLL_SIM_CAPABILITY", capability, 1);
    setenv("CROLL_CUDA_PRODUCTS", "own", 1);
    OK(cr_device_open("cuda", 1, &p->dev, &err));
    p->x = numbers(p->dev, CR_BF16, M * K);
    p->w = numbers(p->dev, CR_BF16, N * K);
    p->bias = numbers(p->dev, CR_BF16, N);
    p->y = numbers(p->dev, CR_BF16, MAX_Y); /* or as many of 4 bytes as x [M, N] */
}

static void place_close(place *p)
{
    cr_device_free(p->dev, p->x, M * K * 2);
    cr_device_free(p->dev, p->w, N * K * 2);
    cr_device_free(p->dev, p->bias, N * 2);
    cr_device_free(p->dev, p->y, MAX_Y * 2);
    cr_device_close(p->dev);
}

typedef struct shape {
    int64_t m, n, k;
    bool is_wide, has_bias, has_add; /* wide: float32 */
} shape;

static size_t bytes_of(const shape *s)
{
    return (size_t)(s->m * s->n) * (s->is_wide ? 4 : 2);
}

/* y of `num` rows from `first` on, into out. y ends where its memory does. */
static void rows_of(const place *p, const shape *s, int64_t first, int64_t num, void *out)
{
    const cr_weight w = {p->w, CR_BF16, s->n, s->k, NULL};
    const cr_dtype to = s->is_wide ? CR_F32 : CR_BF16;
    size_t num_bytes = (size_t)(num * s->n) * cr_dtype_bytes(to);
    cr_mem *y = cr_mem_add(p->y, MAX_Y * 2 - num_bytes);
    const cr_linear_args a = {.x = cr_at(CR_BF16, p->x, first * s->k),
                              .w = &w,
                              .bias = s->has_bias ? p->bias : NULL,
                              .add = s->has_add ? y : NULL,
                              .y = y,
                              .out_dtype = to,
                              .num_rows = num};

    if (s->has_add) OK(cr_copy(p->dev, y, cr_at(CR_BF16, p->x, first * s->n), num_bytes, &err));
    OK(cr_linear(p->dev, &a, &err));
    OK(cr_download(p->dev, out, y, num_bytes, &err));
}

static const shape shapes[] = {
    {1, 8, 8, false, false, false},     {3, 257, 64, true, false, false},
    {129, 192, 72, false, true, false}, {256, 191, 320, false, true, true},
    {65, 520, 256, true, true, false},  {257, 40, 648, false, false, true},
    {64, 600, 192, true, false, false}, {300, 16, 584, true, false, false},
};

/* All shapes, one after the other; checks which instructions ran. */
static void run_shapes(const char *capability, uint64_t seed, char *out)
{
    place p;

    place_open(&p, capability);
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        const shape *s = &shapes[i];
        const bool is_few = s->m <= FEW && s->n % 8 == 0 && !s->is_wide;
        cri_sim_stats before;
        rows_of(&p, s, 0, s->m, out); /* with the probe */
        before = cri_sim_counts;
        cri_sim_seed(seed);
        rows_of(&p, s, 0, s->m, out);
        out += bytes_of(s);
        assert_true((cri_sim_counts.wgmma > before.wgmma) == (capability[0] == '9' && !is_few));
        assert_true((cri_sim_counts.mma > before.mma) == (capability[0] == '8' || is_few));
    }
    place_close(&p);
}

static void test_same_bits(void **state)
{
    size_t num_bytes = 0;
    char *want, *got;

    (void)state;
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        num_bytes += bytes_of(&shapes[i]);
    want = cr_alloc(num_bytes);
    got = cr_alloc(num_bytes);
    run_shapes("8.0", 0, want);
    for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
        memset(got, 0, num_bytes);
        run_shapes("9.0", seed, got);
        assert_memory_equal(got, want, num_bytes);
    }
    cr_free(want);
    cr_free(got);
}

static void test_rows_alone(void **state)
{
    static const shape s = {M, 264, 136, true, true, false};
    static const int64_t firsts[] = {0, 63, 64, 127, 128, 299};
    char *all = cr_alloc(bytes_of(&s)), *one = cr_alloc(bytes_of(&s));
    place p;

    (void)state;
    place_open(&p, "9.0");
    rows_of(&p, &s, 0, M, all);
    for (size_t i = 0; i < CR_COUNT(firsts); i++)
        for (int64_t num = 1; num <= M - firsts[i]; num += 130) {
            rows_of(&p, &s, firsts[i], num, one);
            assert_memory_equal(one, all + firsts[i] * s.n * 4, (size_t)(num * s.n) * 4);
        }
    place_close(&p);
    cr_free(all);
    cr_free(one);
}

/* Few rows by the kernel for them, by bytes as among more: over the edges of tiles, stages and k, blocks of one warp and of four, and at the ends of
 * x's and the weight's memory. */
static void test_few_rows(void **state)
{
    static const shape few[] = {
        {66, 8, 8, false, false, false},    {66, 24, 120, false, true, true},
        {66, 72, 1288, false, false, true}, {66, 600, 648, false, false, false},
        {66, 40, 128, false, true, false},  {66, 16, 136, false, false, false},
        {66, 8456, 40, false, false, false}};
    static const int64_t nums[] = {1, 8, 15, 16, 17, 33, 63, 64};
    char *all = cr_alloc(MAX_Y * 2), *part = cr_alloc(MAX_Y * 2);

    (void)state;
    for (int on = 0; on < 2; on++) {
        place p;
        place_open(&p, on ? "9.0" : "8.0");
        for (size_t i = 0; i < CR_COUNT(few); i++) {
            const shape *s = &few[i];
            rows_of(&p, s, M * K / s->k - FEW, FEW, part);
            rows_of(&p, s, M * K / s->k - s->m, s->m, all);
            for (size_t j = 0; j < CR_COUNT(nums); j++) {
                cri_sim_stats before = cri_sim_counts;
                if (s->n > N && nums[j] % 16) continue;
                cri_sim_seed(i + j + 1);
                rows_of(&p, s, M * K / s->k - nums[j], nums[j], part);
                assert_int_equal(cri_sim_counts.wgmma, before.wgmma);
                assert_true(cri_sim_counts.mma > before.mma);
                assert_memory_equal(part, all + (s->m - nums[j]) * s->n * 2,
                                    (size_t)(nums[j] * s->n) * 2);
            }
        }
        place_close(&p);
    }
    cr_free(all);
    cr_free(part);
}

/* A product is rounded before the addend comes to it: the sum of two roundings, by bytes. */
static void test_rounding(void **state)
{
    static const shape bare = {70, 130, 64, false, false, false};
    enum { NUM = 70 * 130 };
    static uint16_t y[NUM], x[NUM], got[NUM], want[NUM];
    static float sum[NUM], addend[NUM];
    shape with = bare;
    place p;

    (void)state;
    with.has_add = true;
    for (int i = 0; i < 2; i++) {
        place_open(&p, i ? "9.0" : "8.0");
        rows_of(&p, &bare, 0, bare.m, y);
        rows_of(&p, &with, 0, with.m, got);
        OK(cr_download(p.dev, x, p.x, sizeof x, &err));
        place_close(&p);
        cr_cast_host(CR_F32, sum, CR_BF16, y, NUM);
        cr_cast_host(CR_F32, addend, CR_BF16, x, NUM);
        for (int j = 0; j < NUM; j++)
            sum[j] += addend[j];
        cr_cast_host(CR_BF16, want, CR_F32, sum, NUM);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* Rows of k elements that are no whole 16 bytes have no tensor map: other kernels, on both. */
static void test_odd(void **state)
{
    static const shape s = {5, 9, 33, false, false, false};
    char out[2][5 * 9 * 2];
    cri_sim_stats before = cri_sim_counts;
    place p;

    (void)state;
    for (int i = 0; i < 2; i++) {
        place_open(&p, i ? "9.0" : "8.0");
        rows_of(&p, &s, 0, s.m, out[i]);
        place_close(&p);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_true(cri_sim_counts.wgmma == before.wgmma && cri_sim_counts.mma == before.mma);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_few_rows),  cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_odd),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
