/* ulysses_traffic.c -- a rank of a world that only counts (meta) runs forward and backward with
 * sequence parallel: the bytes of the all-to-alls are those of the closed formula, with
 * and without recompute, heads that divide and that are repeated, and no number is ever touched.
 * Not covered: numbers (mesh/ulysses.c).
 */
#include "tests/traffic.h"
#include "ulysses/ulysses.h"

#include <stdio.h>

enum { NUM_LAYERS = 3, HEADS = 8, HEAD_DIM = 16, NUM_TOKENS = 64 };

static void check(int size, int kv_heads, cr_dtype dtype, bool is_recomputed)
{
    const cr_fsdp_args args = {
        .is_train = true, .param_dtype = dtype, .should_recompute = is_recomputed};
    char text[500];
    traffic t;
    int64_t one = /* (P - 1) / P s d (2 Hq + 2 max(Hkv, P)) elements */
        NUM_TOKENS / size * HEAD_DIM * (size - 1) *
        (2 * HEADS + 2 * (kv_heads > size ? kv_heads : size)) / size *
        (int64_t)cr_dtype_bytes(dtype);

    snprintf(
        text, sizeof text,
        "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":100,"
        "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":%d,"
        "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
        "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":512}",
        NUM_LAYERS, HEADS, kv_heads, HEAD_DIM);
    t = count_traffic(text, NUM_TOKENS, size, /*ep=*/1, /*efsdp=*/0, &args);
    assert_int_equal(t.sent.num_bytes, NUM_LAYERS * one * (is_recomputed ? 3 : 2));
    assert_int_equal(t.sent.num, NUM_LAYERS * 4 * (is_recomputed ? 3 : 2));
}

static void bytes_are_those_of_the_formula(void **state)
{
    (void)state;
    for (int size = 2; size <= 8; size *= 2)
        for (int kv = 1; kv <= 8; kv *= 2) {
            check(size, kv, CR_F32, false);
            check(size, kv, CR_BF16, true);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_of_the_formula)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
