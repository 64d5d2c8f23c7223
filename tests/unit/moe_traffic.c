/* moe_traffic.c -- a rank of a world that only counts (meta) runs forward and backward with experts dealt to
 * ranks: the bytes of the all-to-alls are those of the closed formula, with and without recompute, a rank
 * computes what it would alone, and no number is ever touched.
 * Not covered: numbers (mesh/cut_matrix.c).
 */
#include "mesh/flight.h"
#include "moe/moe.h"
#include "strategies/strategies.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

enum { NUM_LAYERS = 3, NUM_EXPERTS = 16, TOP_K = 4, HIDDEN = 64, NUM_TOKENS = 80 };

static cr_model *make_model(void)
{
    char text[600];
    json_t *json;
    cr_model *model = NULL;
    cr_err err = {0};

    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen3_moe\",\"vocab_size\":100,\"hidden_size\":%d,"
             "\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
             "\"num_experts\":%d,\"num_experts_per_tok\":%d,\"max_position_embeddings\":512}",
             HIDDEN, NUM_LAYERS, NUM_EXPERTS, TOP_K);
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

typedef struct result {
    cr_flight_count sent;
    double flops;
} result;

static result run(int ep, int efsdp, cr_dtype dtype, bool is_recomputed)
{
    static const char *const experts[] = {"Qwen3MoeMLP"};
    cr_world_args meta = {.kind = CR_WORLD_META, .meta_rank = 5, .meta_num_ranks = 8};
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = dtype,
                         .should_recompute = is_recomputed,
                         .wrap = {.expert_classes = experts, .num_expert_classes = 1}};
    int32_t zeros[NUM_TOKENS] = {0}, cu[3] = {0, 21, NUM_TOKENS};
    cr_batch batch = {zeros, zeros, zeros, cu, NUM_TOKENS, 2};
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    cr_model *model = make_model();
    cr_world *world = NULL;
    cr_mesh *mesh = NULL;
    cr_device *dev = NULL;
    cr_fsdp *f = NULL;
    cr_mesh_shape shape;
    cr_err err = {0};
    result r;

    if (cr_world_open(&meta, &world, &err) != CR_OK ||
        cr_device_open("meta", 1, &dev, &err) != CR_OK ||
        cr_mesh_shape_init(&shape, 8, 8, 1, ep, efsdp, &err) != CR_OK ||
        cr_mesh_create(world, "train", ranks, &shape, &mesh, &err) != CR_OK ||
        cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK ||
        cr_fsdp_backward(f, &batch, no_loss, NULL, &err) != CR_OK)
        fail_msg("%s", err.msg);
    r.sent = cr_flight_get_count(world, CR_COLL_ALL_TO_ALL);
    r.flops = cr_device_get_stats(dev).flops;
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_device_close(dev);
    cr_world_close(world);
    cr_model_free(model);
    return r;
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
            result alone = run(1, 0, dtype, is_recomputed),
                   dealt = run(ep, mode / 2 ? 8 / ep : 1, dtype, is_recomputed);
            if (is_recomputed) want += counts + rows * row;
            assert_int_equal(alone.sent.num, 0);
            assert_int_equal(dealt.sent.num_bytes, NUM_LAYERS * want);
            assert_true(dealt.flops == alone.flops);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_of_the_formula)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
