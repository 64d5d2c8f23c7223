/* plan_experts.c -- the engine's copy of the weights in a plan is the one that a rank allocates (actors/generator.c), and the bytes of a sync
 * are those of the parameters, also where experts are cut over ranks of their own. Not covered: what trains (mesh/plan). */
#include "actors/strategy_args.h"
#include "plan/run/roles.h"
#include "strategies/strategies.h"
#include "tests/check_near.h"
#include "tests/temp_folder.h"

#include <stdio.h>
#include <string.h>

static const char model_json[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"vocab_size\":264,"
    "\"hidden_size\":48,\"intermediate_size\":96,\"moe_intermediate_size\":20,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"mlp_only_layers\":[1],"
    "\"max_position_embeddings\":512,\"eos_token_id\":258,\"torch_dtype\":\"float32\"}";

static void must(cr_status status, const cr_err *err)
{
    if (status != CR_OK) fail_msg("%s", err->msg);
}

/* What a rank of the engine allocates for weights; *num_bytes: what a sync brings there. */
static int64_t allocated(const cr_worker_config *train, int64_t *num_bytes)
{
    cr_weight_copy *copy;
    cr_device *dev;
    cr_model *model;
    cr_err err = {0};
    int64_t all_bytes;

    must(cr_device_open("meta", 1, &dev, &err), &err);
    must(cr_model_open(train->model_path, &model, &err), &err);
    must(cr_model_prepare(model, train, true, &err), &err);
    must(cr_weight_copy_create(model, dev, CR_BF16, &copy, &err), &err);
    all_bytes = (int64_t)cr_device_get_stats(dev).bytes_now;
    *num_bytes = cr_weight_copy_sync_bytes(copy, /*is_first=*/false);
    cr_weight_copy_destroy(copy);
    cr_model_free(model);
    cr_device_close(dev);
    return all_bytes;
}

static void check(const char *ep_size)
{
    char *pretrain = cr_asprintf("pretrain=%s", temp_folder),
         *ep = cr_asprintf("actor_train.strategy_args.strategy_config.ep_size=%s", ep_size);
    const char *const words[] = {
        pretrain,
        ep,
        "actor_train.strategy_args.strategy_config.fsdp_size=4",
        "actor_train.strategy_args.strategy_config.wrap_policy.moe_experts=[Qwen3MoeMLP]",
        "actor_train.device_mapping=list(range(0,4))",
        "actor_train.training_args.gradient_accumulation_steps=1",
        "actor_infer.model_args.dtype=bf16",
        "actor_infer.strategy_args.strategy_config.param_dtype=bf16"};
    cr_diagnostics d = {0};
    cr_config config;
    cr_err err = {0};
    cr_plan p = {0};
    int64_t synced;

    if (cr_config_load("configs/quickstart/rlvr.yaml", words, CR_COUNT(words), &config, &d, &err)) {
        cr_diagnostics_print(&d);
        fail_msg("%s", err.msg);
    }
    p.path = config.path;
    p.config = config;
    must(cr_plan_roles(&p, &err), &err);
    assert_string_equal(p.role[1].name, "actor_infer");
    assert_int_equal(p.role[1].phase[0].bytes.values, allocated(&config.train, &synced));
    assert_int_equal(p.role[1].synced.num_bytes, synced);
    assert_int_equal(2 * p.role[1].num_elems, synced); /* bf16 */
    cr_plan_roles_free(&p);
    cr_config_free(&config);
    cr_diagnostics_free(&d);
    cr_free(pretrain);
    cr_free(ep);
}

static void weights_of_an_engine(void **state)
{
    char *path = cr_path_join(temp_folder, "config.json");
    cr_err err = {0};

    (void)state;
    must(cr_file_write_atomic(path, model_json, sizeof model_json - 1, &err), &err);
    cr_free(path);
    check("1");
    check("2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_of_an_engine)};

    return cmocka_run_group_tests(tests, make_temp_folder, remove_temp_folder);
}
