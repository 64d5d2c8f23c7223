/* The models of mbarriers, bulk copies by a tensor map and wgmma, against plain loops over what the PTX ISA says of swizzled tiles
 * and of the sums' places, and against a pipeline with one error at a time: each ends with a sentence that names it, under
 * every seed, and the right one with the right numbers. Small integers: sums are exact. Not covered: speed, other
 * swizzles and clusters, which have no model. */
#include "tests/cuda_sim/hopper.h"
#include "tests/check_near.h"

#include "tests/cuda_sim/child.h"

#include <stdbool.h>
#include <stdlib.h>

extern bool cri_sim_is_checked;

enum { NUM_SEEDS = 8, MAX_N = 256 };

static uint16_t to_bf16(int i)
{
    float f = (float)i;
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* ---- boxes ---- */

/* 100 rows of 72 in a matrix whose rows are 80 apart: boxes inside, over each edge, before the first row and column. */
static void test_box(void **state)
{
    enum { ROWS = 100, COLS = 72, LD = 80 };
    static const int places[][2] = {{0, 0}, {8, 36}, {64, 0}, {0, 64}, {64, 64}, {-3, -5}, {72, 0}};
    static uint16_t matrix[ROWS * LD], got[64 * 64];
    cudaStream_t s = new_stream();
    uint16_t *d, *d_out = new_memory(sizeof got);

    (void)state;
    for (int i = 0; i < ROWS * LD; i++)
        matrix[i] = (uint16_t)(i + 1);
    d = on_device(matrix, sizeof matrix);
    for (size_t p = 0; p < CR_COUNT(places); p++)
        for (int seed = 0; seed < 4; seed++) {
            cri_sim_seed((uint64_t)seed);
            MUST(hopper_box(d, ROWS, COLS, LD, places[p][0], places[p][1], d_out, s));
            MUST(cudaStreamSynchronize(s));
            MUST(cudaMemcpy(got, d_out, sizeof got, cudaMemcpyDeviceToHost));
            for (int r = 0; r < 64; r++)
                for (int c = 0; c < 64; c++) {
                    int x = places[p][0] + c, y = places[p][1] + r;
                    bool is_in = x >= 0 && x < COLS && y >= 0 && y < ROWS;
                    /* the ISA's drawing: the 16-byte piece c / 8 of row r changes places with (c / 8) xor (r mod 8) */
                    int place = r * 64 + (c / 8 ^ (r & 7)) * 8 + c % 8;
                    assert_int_equal(got[place], is_in ? matrix[y * LD + x] : 0);
                }
        }
}

/* ---- products ---- */

/* The ISA's figure of D the other way round: which thread has (row, col), and as which of its sums. */
static int thread_of(int row, int col)
{
    return row / 16 * 32 + row % 8 * 4 + col % 8 / 2;
}
static int sum_of(int row, int col)
{
    return col / 8 * 4 + row % 16 / 8 * 2 + col % 2;
}

static void check_product(int n, hopper_form form, uint64_t seed)
{
    static int a[64][64], b[MAX_N][64];
    static uint16_t bits_a[64 * 64], bits_b[MAX_N * 64];
    static float got[128 * MAX_N / 2];
    cudaStream_t s = new_stream();
    uint16_t *d_a, *d_b;
    float *d_out = new_memory(sizeof got);

    cri_sim_seed(seed);
    for (int i = 0; i < 64 * 64; i++)
        bits_a[i] = to_bf16(a[i / 64][i % 64] = (i * 7 + i / 64) % 23 - 11);
    for (int i = 0; i < n * 64; i++)
        bits_b[form == B_TURNED ? i % 64 * n + i / 64 : i] =
            to_bf16(b[i / 64][i % 64] = (i * 5 + i / 64 * 3) % 19 - 9);
    d_a = on_device(bits_a, sizeof bits_a);
    d_b = on_device(bits_b, (size_t)n * 128);
    MUST(hopper_product(d_a, d_b, n, form, NO_ERROR, d_out, s));
    MUST(cudaStreamSynchronize(s));
    MUST(cudaMemcpy(got, d_out, (size_t)n * 64 * sizeof *got, cudaMemcpyDeviceToHost));
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < n; c++) {
            int want = 0;
            for (int k = 0; k < 64; k++)
                want += 2 * a[r][k] * b[c][k];
            assert_true(got[thread_of(r, c) * (n / 2) + sum_of(r, c)] == (float)want);
        }
    MUST(cudaFree(d_a));
    MUST(cudaFree(d_b));
    MUST(cudaFree(d_out));
    MUST(cudaStreamDestroy(s));
}

static void test_product(void **state)
{
    static const int sizes[] = {8, 64, 128, 192, 256};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(sizes); i++)
        for (hopper_form form = BY_COPIES; form <= B_TURNED; form++)
            for (uint64_t seed = 0; seed < 4; seed++)
                if (form != B_TURNED || sizes[i] % 64 == 0) check_product(sizes[i], form, seed);
}

/* One lane, and not always the first. */
static void test_elect(void **state)
{
    int got[32], *d = new_memory(sizeof got), num_first = 0;
    cudaStream_t s = new_stream();

    (void)state;
    for (uint64_t seed = 0; seed < 16; seed++) {
        int num = 0;
        cri_sim_seed(seed);
        MUST(hopper_elect(d, s));
        MUST(cudaStreamSynchronize(s));
        MUST(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (int l = 0; l < 32; l++)
            num += got[l];
        assert_int_equal(num, 1);
        num_first += got[0];
    }
    assert_true(num_first < 16);
}

/* ---- errors ---- */

static void run_registers(const void *kind)
{
    cudaStream_t s = new_stream();

    MUST(hopper_registers(*(const registers_kind *)kind, s));
    MUST(cudaStreamSynchronize(s));
}

static void test_registers(void **state)
{
    static const char *const says[NUM_REGISTERS_KINDS] = {
        NULL, "want 2528 registers a lane together, and have 2016", "160 registers are fewer",
        "176 registers are more", "some warps of a warpgroup"};
    char said[SAID_BYTES];

    (void)state;
    for (registers_kind kind = REGISTERS_RIGHT; kind < NUM_REGISTERS_KINDS; kind++) {
        int code = run_child(run_registers, &kind, said);
        assert_int_equal(code, says[kind] ? SIM_DIED : 0);
        if (says[kind] && !strstr(said, says[kind]))
            fail_msg("\"%s\", not \"%s\"", said, says[kind]);
    }
}

typedef struct hopper_run {
    hopper_kind kind;
    uint64_t seed;
} hopper_run;

/* Exits with 1 if the numbers are wrong. */
static void run_pipeline(const void *args)
{
    enum { NUM = HOPPER_ROWS * HOPPER_K };
    const hopper_run *run = args;
    static uint16_t bits[2][NUM];
    static float got[HOPPER_ROWS * HOPPER_ROWS];
    static int x[2][NUM];
    cudaStream_t s = new_stream();
    float *d_out = new_memory(sizeof got);
    uint16_t *d[2];

    cri_sim_seed(run->seed);
    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < NUM; i++)
            bits[m][i] = to_bf16(x[m][i] = (i * (5 + 2 * m) + i / HOPPER_K) % 23 - 11);
        d[m] = on_device(bits[m], sizeof bits[m]);
    }
    MUST(hopper_pipeline(d[0], d[1], run->kind, d_out, s));
    MUST(cudaStreamSynchronize(s));
    MUST(cudaMemcpy(got, d_out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < HOPPER_ROWS * HOPPER_ROWS; i++) {
        int want = 0;
        for (int k = 0; k < HOPPER_K; k++)
            want += x[0][i / HOPPER_ROWS * HOPPER_K + k] * x[1][i % HOPPER_ROWS * HOPPER_K + k];
        if (got[i] != (float)want) _exit(1);
    }
}

static const struct hopper_case {
    hopper_kind kind;
    const char *says[4]; /* one of them, by seed */
    bool needs_checked;  /* else numbers alone, if at all */
} cases[] = {
    {HOPPER_RIGHT, {NULL}, false},
    {NO_FULL_WAIT, {"a copy under way writes", "without a wait for that phase"}, true},
    {NO_EMPTY_WAIT,
     {"that a wgmma under way reads", "has read: no barrier", "an arrival too many at",
      "write after a copy"},
     true},
    {FULL_PARITY, {"a copy under way writes", "without a wait for that phase", "never ends"}, true},
    {EMPTY_PARITY, {"for parity 0 of the mbarrier"}, false},
    {EXPECT_MORE, {"0 arrivals of 1 are missing and 16 bytes"}, false},
    {EXPECT_LESS, {"16 bytes came unexpected"}, false},
    {EXPECT_HALF,
     {"a copy under way writes", "without a wait for that phase", "race in shared"},
     true},
    {EXPECT_TWICE, {"an arrival too many at the mbarrier"}, false},
    {ARRIVAL_SHORT, {"1 arrivals of 4 are missing and no bytes"}, false},
    {ARRIVAL_MORE, {"has read: no barrier", "that a wgmma under way reads", "never ends"}, true},
    {EARLY_RELEASE, {"that a wgmma under way reads", "has read: no barrier"}, true},
    {NO_WGMMA_WAIT, {"read of a sum of a wgmma that is under way"}, true},
    {WAIT_TOO_FEW,
     {"that a wgmma under way reads", "has read: no barrier", "sum of a wgmma that is under way"},
     true},
    {NO_COMMIT,
     {"that a wgmma under way reads", "has read: no barrier", "sum of a wgmma that is under way"},
     true},
    {NO_WGMMA_FENCE, {"wgmma without wgmma.fence before it"}, false},
    {TOUCH_WITHOUT_FENCE, {"wgmma without wgmma.fence after an access of its sums"}, true},
    {NO_INIT_FENCE, {"initialised without a fence.proxy.async"}, false},
    {NO_INIT_BARRIER, {"race in shared memory", "which is no mbarrier"}, true},
    {TILE_MISALIGNED, {"no multiple of 1024"}, false},
    {WARPS_DIFFER, {"the warps of a warpgroup make different products"}, false},
    {LANES_DIFFER, {"lanes 0 and 7 of a warp make different products"}, false},
    {NO_SWIZZLE, {"the descriptor of A"}, false},
    {STORE_UNDER_WAY, {"that a wgmma under way reads"}, true},
    {STORE_AFTER_READ,
     {"that a wgmma of warp", "that a wgmma under way reads",
      "read after a write by block 0, thread 96"},
     true},
    {COPY_NOT_WAITED, {"nothing has waited for a copy by a tensor map"}, false},
    {NO_INIT, {"which is no mbarrier"}, false},
};

static void test_errors(void **state)
{
    char said[SAID_BYTES];

    (void)state;
    assert_int_equal(CR_COUNT(cases), NUM_HOPPER_KINDS);
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const struct hopper_case *c = &cases[i];
        if (c->needs_checked && !cri_sim_is_checked) continue;
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            const hopper_run run = {c->kind, seed};
            int code = run_child(run_pipeline, &run, said);
            bool is_named = !c->says[0] && code == 0;
            for (int j = 0; j < 4 && c->says[j]; j++)
                is_named |= code == SIM_DIED && strstr(said, c->says[j]);
            if (!is_named)
                fail_msg("case %d, seed %d: code %d, \"%s\" instead of \"%s\"", (int)c->kind,
                         (int)seed, code, said, c->says[0] ? c->says[0] : "");
        }
    }
}

typedef struct product_run {
    hopper_form form;
    hopper_error error;
} product_run;

/* Exits with 1 if the sums are no numbers. */
static void run_product(const void *args)
{
    enum { COLS = 128 };
    const product_run *run = args;
    static const uint16_t zeros[64 * COLS];
    static float got[64 * COLS];
    uint16_t *a = on_device(zeros, sizeof zeros), *b = on_device(zeros, sizeof zeros);
    float *out = new_memory(sizeof got);
    cudaStream_t s = new_stream();

    MUST(hopper_product(a, b, COLS, run->form, run->error, out, s));
    MUST(cudaStreamSynchronize(s));
    MUST(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < CR_COUNT(got); i++)
        if (!(got[i] == 0.0F)) _exit(1);
}

static void run_odd_map(const void *args)
{
    static const uint16_t zeros[64 * 72];
    uint16_t *x = on_device(zeros, sizeof zeros);

    (void)args;
    (void)hopper_map(x + 4, 64, 64, 72, 64);
}

static void run_on_sm_80(const void *args)
{
    setenv("CROLL_SIM_CAPABILITY", "8.0", 1);
    run_pipeline(args);
}

static void test_rules(void **state)
{
    static const hopper_run right = {HOPPER_RIGHT, 0};
    static const product_run none = {BY_STORES, NO_ERROR}, early = {BY_STORES, EARLY_SUMS};
    static const struct product_case {
        product_run run;
        const char *says;
        bool needs_checked;
    } wrong[] = {
        {{B_TURNED, TURNED_MISALIGNED}, "turned B begins at offset", false},
        {{B_TURNED, TURNED_NOWHERE}, "its next 64 columns 16 further", false},
        {{BY_STORES, NO_STORE_FENCE}, "no fence.proxy.async after it", true},
        {{A_HERE, A_UNDER_WAY}, "of A of a wgmma that is under way", true},
        {{A_HERE, A_UNFENCED}, "wgmma without wgmma.fence after an access of its A", true},
    };
    char said[SAID_BYTES];

    (void)state;
    assert_int_equal(run_child(run_on_sm_80, &right, said), SIM_DIED);
    assert_non_null(strstr(said, "mbarrier on a GPU of compute capability 8.0"));
    assert_int_equal(run_child(run_odd_map, NULL, said), SIM_DIED);
    assert_non_null(strstr(said, "no tensor map"));
    assert_int_equal(run_child(run_product, &none, said), 0);
    assert_int_equal(run_child(run_product, &early, said), cri_sim_is_checked ? SIM_DIED : 1);
    if (cri_sim_is_checked)
        assert_non_null(strstr(said, "read of a sum of a wgmma that is under way"));
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        if (wrong[i].needs_checked && !cri_sim_is_checked) continue;
        assert_int_equal(run_child(run_product, &wrong[i].run, said), SIM_DIED);
        if (!strstr(said, wrong[i].says)) fail_msg("\"%s\", not \"%s\"", said, wrong[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_box),   cmocka_unit_test(test_product),
        cmocka_unit_test(test_elect), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_rules), cmocka_unit_test(test_registers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
