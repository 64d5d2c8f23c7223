/* configs_engines.c -- strategy blocks of Megatron-Core and DeepSpeed as fsdp2: an update has the same samples, what the
 * blocks become, a note for each key that loses its meaning, and the error without as_fsdp2.
 * Not covered: what a run of such a file computes (e2e/roll_runs); the lines that are printed (e2e/roll_files).
 */
#include "configs/configs.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <string.h>

/* actor_train.strategy_args and training_args, reference.strategy_args, more keys of the run */
static const char file[] = "pretrain: somewhere\n"
                           "prompt_length: 16\n"
                           "response_length: 16\n"
                           "rollout_batch_size: 4096\n"
                           "adv_estimator: grpo\n"
                           "%s\n"
                           "actor_train:\n"
                           "  data_args: {file_name: [a.jsonl], messages: messages}\n"
                           "  strategy_args: %s\n"
                           "  training_args: %s\n"
                           "  device_mapping: list(range(0,64))\n"
                           "actor_infer: {device_mapping: '[0]'}\n"
                           "reference:\n"
                           "  strategy_args: %s\n"
                           "  device_mapping: list(range(0,64))\n"
                           "rewards: {math_rule: {tag_included: [a]}}\n";

#define MEGATRON_INFER \
    "{strategy_name: megatron_infer, strategy_config: {context_parallel_size: 2}}"

static cr_status load(cr_config *c, cr_diagnostics *d, const char *run, const char *strategy,
                      const char *training, const char *reference)
{
    char *text = cr_asprintf(file, run, strategy, training, reference);
    const cr_buf bytes = {.data = text, .num_bytes = strlen(text)};
    cr_err err = {0};
    cr_status status = cr_config_load_text("test.yaml", &bytes, c, d, &err);

    for (size_t i = 0; i < d->num; i++)
        if (d->items[i].severity == CR_ERROR) print_message("%s\n", d->items[i].text);
    cr_free(text);
    return status;
}

static bool is_said(const cr_diagnostics *d, cr_severity severity, const char *text)
{
    for (size_t i = 0; i < d->num; i++)
        if (d->items[i].severity == severity && strstr(d->items[i].text, text)) return true;
    return false;
}

static void fini(cr_config *c, cr_diagnostics *d)
{
    cr_config_free(c);
    cr_diagnostics_free(d);
}

static void an_update_has_the_same_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 4 * 3 * 6; i++) {
        const int tensor = 1 << i % 4, pipeline = 1 << i / 4 % 4, context = 1 << i / 16 % 3;
        const int samples[] = {1, 1, 2, 3, 8, 4}, steps[] = {1, 32, 4, 2, 6, 64};
        const int of_rank = samples[i / 48], of_update = steps[i / 48] * of_rank,
                  model = tensor * pipeline * context;
        char strategy[300], training[200];
        cr_diagnostics d = {0};
        cr_config c;
        if (model > 64) continue;
        snprintf(
            strategy, sizeof strategy,
            "{strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: %d, "
            "pipeline_model_parallel_size: %d, context_parallel_size: %d}}",
            tensor, pipeline, context);
        snprintf(training, sizeof training,
                 "{per_device_train_batch_size: %d, gradient_accumulation_steps: %d}", of_rank,
                 of_update / of_rank);
        assert_int_equal(load(&c, &d, "as_fsdp2: true\nnum_return_sequences_in_group: 12", strategy,
                              training, MEGATRON_INFER),
                         CR_OK);
        assert_int_equal(c.train.strategy, CR_STRATEGY_FSDP2_TRAIN);
        assert_int_equal(c.train.fsdp_size, 64);
        assert_int_equal(cr_worker_batch_samples(&c.train) * cr_worker_num_batches(&c.train),
                         of_update * (64 / model));
        assert_true(c.train.training.per_device_train_batch_size <= of_rank);
        assert_true(c.train.ulysses_size >= context);
        if (of_update % (tensor * pipeline) == 0) assert_int_equal(c.train.ulysses_size, context);
        assert_int_equal(c.reference.ulysses_size, 2);
        assert_int_equal(c.reference.strategy, CR_STRATEGY_FSDP2_INFER);
        fini(&c, &d);
    }
}

static void keys_of_megatron(void **state)
{
    cr_diagnostics d = {0};
    cr_config c;

    (void)state;
    assert_int_equal(
        load(&c, &d, "as_fsdp2: true",
             "{strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 1, "
             "pipeline_model_parallel_size: 2, expert_model_parallel_size: 8, sequence_parallel: "
             "true, recompute_granularity: full, moe_aux_loss_coeff: 0.5, "
             "use_distributed_optimizer: "
             "true, moe_grouped_gemm: true, virtual_pipeline_model_parallel_size: 4, no_such: 1}}",
             "{gradient_accumulation_steps: 2}", MEGATRON_INFER),
        CR_OK);
    assert_true(c.train.should_recompute);
    assert_true(c.train.moe_aux_loss_coef == 0.5);
    assert_int_equal(c.train.ep_size, 1);
    assert_false(is_said(&d, CR_NOTE, "tensor_model_parallel_size has no effect")); /* it is 1 */
    assert_false(is_said(&d, CR_NOTE, "moe_aux_loss_coeff has no effect"));
    assert_true(is_said(&d, CR_NOTE, "pipeline_model_parallel_size has no effect (fsdp2 cuts"));
    assert_true(is_said(&d, CR_NOTE, "expert_model_parallel_size has no effect (experts are cut"));
    assert_true(is_said(&d, CR_NOTE, "sequence_parallel has no effect (it belongs to tensor"));
    assert_true(is_said(&d, CR_NOTE, "use_distributed_optimizer has no effect (fsdp2 always"));
    assert_true(is_said(&d, CR_NOTE, "moe_grouped_gemm has no effect (croll has one way"));
    assert_true(
        is_said(&d, CR_NOTE, "virtual_pipeline_model_parallel_size has no effect (there is"));
    assert_true(is_said(&d, CR_NOTE, "no_such has no effect (fsdp2 has nothing of the kind)"));
    assert_true(is_said(&d, CR_NOTE,
                        "actor_train: megatron_train becomes fsdp2_train with fsdp_size 64; "
                        "per_device_train_batch_size 8 x gradient_accumulation_steps 2 become 8 x "
                        "1, so that an update has the same samples; layers are recomputed"));
    assert_true(is_said(&d, CR_NOTE,
                        "reference: megatron_infer becomes fsdp2_infer with fsdp_size "
                        "64; ulysses_size is 2"));
    fini(&c, &d);
}

static void keys_of_deepspeed(void **state)
{
    static const char zero[] =
        "as_fsdp2: true\n"
        "deepspeed_zero2: {zero_optimization: {stage: 2, overlap_comm: true}, bf16: {enabled: "
        "true}}\n"
        "deepspeed_zero3: {zero_optimization: {stage: 3, offload_optimizer: {device: cpu}, "
        "offload_param: {device: none}}, gradient_clipping: auto}\n";
    cr_diagnostics d = {0};
    cr_config c;

    (void)state;
    assert_int_equal(
        load(&c, &d, zero,
             "{strategy_name: deepspeed_train, strategy_config: '${deepspeed_zero2}'}", "{}",
             "{strategy_name: deepspeed_infer, strategy_config: '${deepspeed_zero3}'}"),
        CR_OK);
    assert_int_equal(c.train.reshard_after_forward, 0);
    assert_false(c.train.is_offloaded);
    assert_int_equal(c.reference.reshard_after_forward, -1);
    assert_true(c.reference.is_offloaded);
    assert_int_equal(c.train.ulysses_size, 1);
    assert_true(is_said(&d, CR_NOTE, "overlap_comm has no effect (fsdp2"));
    assert_true(is_said(&d, CR_NOTE, "bf16 has no effect (model_args.dtype"));
    assert_true(is_said(&d, CR_NOTE, "gradient_clipping has no effect (training_args"));
    assert_true(is_said(&d, CR_NOTE, "deepspeed_zero2 has no effect (a definition"));
    fini(&c, &d);
}

static void without_the_key_the_error_names_it(void **state)
{
    cr_diagnostics d = {0};
    cr_config c;

    (void)state;
    assert_int_equal(load(&c, &d, "", "{strategy_name: deepspeed_train}", "{}", MEGATRON_INFER),
                     CR_ECONFIG);
    assert_true(is_said(&d, CR_ERROR,
                        "deepspeed_train is another engine's; actor_train needs "
                        "fsdp2_train (--as-fsdp2, or as_fsdp2: true"));
    fini(&c, &d);
    d = (cr_diagnostics){0};
    assert_int_equal(load(&c, &d, "", "{strategy_name: vllm}", "{}", MEGATRON_INFER), CR_ECONFIG);
    assert_false(is_said(&d, CR_ERROR, "--as-fsdp2")); /* it would not help */
    fini(&c, &d);
    d = (cr_diagnostics){0};
    assert_int_equal(load(&c, &d, "as_fsdp2: true",
                          "{strategy_name: megatron_train, strategy_config: "
                          "{tensor_model_parallel_size: two}}",
                          "{}", MEGATRON_INFER),
                     CR_ECONFIG);
    assert_true(is_said(&d, CR_ERROR, "tensor_model_parallel_size: a whole number of at least 1"));
    fini(&c, &d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_has_the_same_samples),
        cmocka_unit_test(keys_of_megatron),
        cmocka_unit_test(keys_of_deepspeed),
        cmocka_unit_test(without_the_key_the_error_names_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
