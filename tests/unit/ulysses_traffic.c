/* ulysses_traffic.c -- a rank of a world that only counts (meta) runs forward and backward with
 * sequence parallel: the bytes of the all-to-alls are those of the closed formula (fsdp2.md 6.1), with
 * and without recompute, heads that divide and that are repeated, and no number is ever touched.
 * Not covered: numbers (mesh/ulysses.c).
 */
#include "mesh/flight.h"
#include "strategies/strategies.h"
#include "tests/check_near.h"
#include "ulysses/ulysses.h"

#include <stdio.h>
#include <string.h>

enum { NUM_LAYERS = 3, HEADS = 8, HEAD_DIM = 16, NUM_TOKENS = 64 };

static cr_model *make_model(int kv_heads)
{
    char text[500];
    json_t *json;
    cr_model *model = NULL;
    cr_err err = {0};

    snprintf(
        text, sizeof text,
        "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":100,"
        "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":%d,"
        "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
        "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":512}",
        NUM_LAYERS, HEADS, kv_heads, HEAD_DIM);
    if (cr_json_parse(text, strlen(text), "config", &json, &err) != CR_OK ||
        cr_model_build(json, NULL, &model, &err) != CR_OK)
        fail_msg("%s", err.msg);
    json_decref(json);
    return model;
}

static cr_status no_loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                         float *grad_log_prob, float *grad_entropy, cr_err *err)
{
    (void)ctx, (void)log_prob, (void)entropy, (void)num, (void)grad_log_prob, (void)grad_entropy;
    (void)err;
    return CR_OK;
}

static void check(int size, int kv_heads, cr_dtype dtype, bool is_recomputed)
{
    cr_world_args meta = {.kind = CR_WORLD_META, .meta_rank = 5, .meta_num_ranks = 8};
    cr_fsdp_args args = {.is_train = true, .param_dtype = dtype, .should_recompute = is_recomputed};
    int32_t zeros[NUM_TOKENS] = {0}, cu[3] = {0, 21, NUM_TOKENS};
    cr_batch batch = {zeros, zeros, zeros, cu, NUM_TOKENS, 2};
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cr_model *model = make_model(kv_heads);
    cr_world *world = NULL;
    cr_mesh *mesh = NULL;
    cr_device *dev = NULL;
    cr_fsdp *f = NULL;
    cr_mesh_shape shape;
    cr_flight_count count;
    cr_err err = {0};
    int64_t one = cr_ulysses_bytes(&model->config, size, NUM_TOKENS / size, dtype),
            /* (P - 1) / P s d (2 Hq + 2 max(Hkv, P)) elements */
        formula = NUM_TOKENS / size * HEAD_DIM * (size - 1) *
                  (2 * HEADS + 2 * (kv_heads > size ? kv_heads : size)) / size *
                  (int64_t)cr_dtype_bytes(dtype);

    assert_int_equal(one, formula);
    if (cr_world_open(&meta, &world, &err) != CR_OK ||
        cr_device_open("meta", 1, &dev, &err) != CR_OK ||
        cr_mesh_shape_init(&shape, 8, 8, size, 1, 0, &err) != CR_OK ||
        cr_mesh_create(world, "train", ranks, &shape, &mesh, &err) != CR_OK ||
        cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK ||
        cr_fsdp_backward(f, &batch, no_loss, NULL, &err) != CR_OK)
        fail_msg("%s", err.msg);
    count = cr_flight_get_count(world, CR_COLL_ALL_TO_ALL);
    assert_int_equal(count.num_bytes, NUM_LAYERS * one * (is_recomputed ? 3 : 2));
    assert_int_equal(count.num, NUM_LAYERS * 4 * (is_recomputed ? 3 : 2));
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_device_close(dev);
    cr_world_close(world);
    cr_model_free(model);
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
