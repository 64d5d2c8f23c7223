/* The models of tensor-core products, ldmatrix, cp.async and shuffles, against plain loops over what the PTX ISA and the
 * CUDA guide say of their operands; the same bits under every seed. Small integers: sums are exact. */
#include "tests/check_near.h"
#include "tests/cuda_sim/wrong.h"

#include "tests/cuda_sim/child.h"

#include <stdbool.h>

enum { M = 16, N = 8, K = 16, NUM_SEEDS = 8 };

static uint16_t to_bf16(int i)
{
    float f = (float)i;
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

static void test_mma(void **state)
{
    cudaStream_t s = new_stream();

    (void)state;
    for (int seed = 0; seed < NUM_SEEDS; seed++)
        for (int is_turned = 0; is_turned < 2; is_turned++) {
            int a[M][K], b[N][K];
            uint16_t bits_a[M * K], bits_b[N * K];
            float c[M * N];
            uint16_t *d_a, *d_b;
            float *d_c;
            cri_sim_seed((uint64_t)seed);
            for (int i = 0; i < M * K; i++)
                bits_a[i] = to_bf16(a[i / K][i % K] = (i * 7 + seed) % 23 - 11);
            for (int i = 0; i < N * K; i++)
                b[i / K][i % K] = (i * 5 + seed) % 19 - 9;
            for (int i = 0; i < N * K; i++)
                bits_b[i] = to_bf16(is_turned ? b[i % N][i / N] : b[i / K][i % K]);
            for (int i = 0; i < M * N; i++)
                c[i] = (float)i;
            d_a = on_device(bits_a, sizeof bits_a);
            d_b = on_device(bits_b, sizeof bits_b);
            d_c = on_device(c, sizeof c);
            MUST((is_turned ? right_mma_trans : right_mma)(d_a, d_b, d_c, s));
            MUST(cudaStreamSynchronize(s));
            MUST(cudaMemcpy(c, d_c, sizeof c, cudaMemcpyDeviceToHost));
            for (int i = 0; i < M * N; i++) {
                int want = i;
                for (int k = 0; k < K; k++)
                    want += a[i / N][k] * b[i % N][k];
                assert_true(c[i] == (float)want);
            }
            MUST(cudaFree(d_a));
            MUST(cudaFree(d_b));
            MUST(cudaFree(d_c));
        }
}

static void test_shuffles(void **state)
{
    int got[6 * 32];
    int *d = new_memory(sizeof got);
    cudaStream_t s = new_stream();

    (void)state;
    for (int seed = 0; seed < NUM_SEEDS; seed++) {
        cri_sim_seed((uint64_t)seed);
        MUST(right_shuffles(d, s));
        MUST(cudaStreamSynchronize(s));
        MUST(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        for (int l = 0; l < 32; l++) {
            int index = l / 8 * 8 + 5, up = l < 3 ? l : l - 3, down = l % 16 > 13 ? l : l + 2;
            assert_int_equal(got[l], index * index);
            assert_int_equal(got[32 + l], up * up);
            assert_int_equal(got[64 + l], down * down);
            assert_int_equal(got[96 + l], (l ^ 9) * (l ^ 9));
            assert_int_equal((unsigned)got[128 + l], 0x49249249u);
            assert_int_equal(got[160 + l], 31 * 32 * 63 / 6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma),
        cmocka_unit_test(test_shuffles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
