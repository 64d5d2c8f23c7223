/* moe_traffic.c -- a rank of a world that only counts (meta) runs forward and backward with experts distributed over
 * ranks: the bytes of the all-to-alls are those of the closed formula, with and without recompute, a rank
 * computes what it would alone, and no number is ever touched.
 * Not covered: numbers (mesh/cut_matrix.c).
 */
#include "tests/traffic.h"

#include <stdio.h>

enum { NUM_LAYERS = 3, NUM_EXPERTS = 16, TOP_K = 4, HIDDEN = 64, NUM_TOKENS = 80 };

static traffic run(int ep, int efsdp, cr_dtype dtype, bool is_recomputed)
{
    static const char *const experts[] = {"Qwen3MoeMLP"};
    const cr_fsdp_args args = {.is_train = true,
                               .param_dtype = dtype,
                               .should_recompute = is_recomputed,
                               .wrap = {.expert_classes = experts, .num_expert_classes = 1}};
    char text[600];

    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen3_moe\",\"vocab_size\":100,\"hidden_size\":%d,"
             "\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
             "\"num_experts\":%d,\"num_experts_per_tok\":%d,\"max_position_embeddings\":512}",
             HIDDEN, NUM_LAYERS, NUM_EXPERTS, TOP_K);
    return count_traffic(text, NUM_TOKENS, /*ulysses=*/1, ep, efsdp, &args);
}

/* Rows for other ranks, evenly: there and back in forward, their gradients there and back in backward
 * with 4 bytes for the weight of each; there once more when they are made again. The counts before. */
static void bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    for (int ep = 2; ep <= 8; ep *= 2)
        for (int mode = 0; mode < 4; mode++) {
            bool is_recomputed = mode & 1;
            cr_dtype dtype = mode & 2 ? CR_BF16 : CR_F32;
            int64_t row = HIDDEN * (int64_t)cr_dtype_bytes(dtype),
                    rows = NUM_TOKENS * TOP_K * (ep - 1) / ep,
                    counts = NUM_EXPERTS * 8 * (ep - 1) / ep,
                    want = counts + 2 * rows * row + 2 * rows * (row + 4);
            traffic alone = run(1, 0, dtype, is_recomputed),
                    spread = run(ep, mode / 2 ? 8 / ep : 1, dtype, is_recomputed);
            if (is_recomputed) want += counts + rows * row;
            assert_int_equal(alone.sent.num, 0);
            assert_int_equal(spread.sent.num_bytes, NUM_LAYERS * want);
            assert_true(spread.flops == alone.flops);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_of_the_formula)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
