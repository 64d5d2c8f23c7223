/* y = x w^T by cuBLASLt of the simulation: with the heuristic asked anew for each number of rows a row's bits change, as
 * they may on a GPU; with one algorithm a weight they do not. */
#include "tests/check_near.h"
#include "tests/cuda_sim/wrong.h"

#include "tests/cuda_sim/child.h"

#include <cublasLt.h>
#include <stdbool.h>
#include <stdlib.h>

enum { N = 192, K = 512, MAX_ROWS = 257 };

static const int num_rows[] = {1, 2, 17, 64, 130, MAX_ROWS};

static cublasLtHandle_t handle;
static cublasLtMatmulDesc_t desc;
static uint16_t *x, *w, *d_x, *d_w;
static float *d_y;
static cudaStream_t stream;

static float from_bf16(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t *numbers(size_t num)
{
    uint16_t *v = malloc(num * sizeof *v);
    uint32_t state = 7;

    for (size_t i = 0; i < num; i++) {
        float f;
        uint32_t u;
        state = state * 1664525u + 1013904223u;
        f = (float)(state >> 8) / 8388608.0F - 1.0F;
        memcpy(&u, &f, sizeof u);
        v[i] = (uint16_t)(u >> 16);
    }
    return v;
}

typedef struct layouts {
    cublasLtMatrixLayout_t w, x, y;
} layouts;

static layouts layouts_of(int rows)
{
    layouts l;

    assert_int_equal(cublasLtMatrixLayoutCreate(&l.w, CUDA_R_16BF, K, N, K), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&l.x, CUDA_R_16BF, K, (uint64_t)rows, K), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&l.y, CUDA_R_32F, N, (uint64_t)rows, N), 0);
    return l;
}

static void free_layouts(layouts *l)
{
    cublasLtMatrixLayoutDestroy(l->w);
    cublasLtMatrixLayoutDestroy(l->x);
    cublasLtMatrixLayoutDestroy(l->y);
}

/* is_free: with a workspace and all reduction schemes. */
static cublasLtMatmulAlgo_t ask(int rows, bool is_free)
{
    layouts l = layouts_of(rows);
    cublasLtMatmulPreference_t p;
    cublasLtMatmulHeuristicResult_t r;
    uint64_t bytes = is_free ? 32 << 20 : 0;
    uint32_t schemes = is_free ? 7 : 0;
    int num;

    cublasLtMatmulPreferenceCreate(&p);
    cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, 8);
    cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                         4);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, l.w, l.x, l.y, l.y, p, 1, &r, &num), 0);
    assert_int_equal(num, 1);
    cublasLtMatmulPreferenceDestroy(p);
    free_layouts(&l);
    return r.algo;
}

static void multiply(int rows, const cublasLtMatmulAlgo_t *algo, float first[N])
{
    static const float one = 1, zero = 0;
    layouts l = layouts_of(rows);

    assert_int_equal(cublasLtMatmul(handle, desc, &one, d_w, l.w, d_x, l.x, &zero, d_y, l.y, d_y,
                                    l.y, algo, NULL, 0, stream),
                     0);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(first, d_y, N * sizeof(float), cudaMemcpyDeviceToHost));
    free_layouts(&l);
}

static int num_other_bits(bool is_kept)
{
    cublasLtMatmulAlgo_t kept = ask(4096, false);
    float first[N], y[N];
    int num = 0;

    for (size_t i = 0; i < CR_COUNT(num_rows); i++) {
        cublasLtMatmulAlgo_t asked = ask(num_rows[i], true);
        double want = 0;
        multiply(num_rows[i], is_kept ? &kept : &asked, y);
        for (int k = 0; k < K; k++)
            want += (double)from_bf16(x[k]) * from_bf16(w[3 * K + k]);
        check_near(y[3], want, 1e-4);
        if (i == 0) memcpy(first, y, sizeof y);
        num += memcmp(first, y, sizeof y) != 0;
    }
    return num;
}

static void test_rows(void **state)
{
    (void)state;
    assert_true(num_other_bits(false) > 0);
    assert_int_equal(num_other_bits(true), 0);
}

static int set_up(void **state)
{
    const cublasOperation_t turned = CUBLAS_OP_T;

    (void)state;
    stream = new_stream();
    x = numbers((size_t)MAX_ROWS * K);
    w = numbers((size_t)N * K);
    d_x = on_device(x, (size_t)MAX_ROWS * K * sizeof *x);
    d_w = on_device(w, (size_t)N * K * sizeof *w);
    d_y = new_memory((size_t)MAX_ROWS * N * sizeof *d_y);
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
    free(x);
    free(w);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
