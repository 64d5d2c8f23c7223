/* configs_keys.c -- every key of the schema has a state and what goes with it, a default that the check
 * accepts, and, if it is a choice, words in the order of their enum. */
#include "configs/bind.h"
#include "tests/check_near.h"

#include <string.h>

static void every_key_has_a_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < cri_num_keys; i++) {
        const cri_key *k = &cri_keys[i];
        const char *text = k->text ? k->text : "";
        if (k->state == CRI_STATELESS) fail_msg("%s.%s has no state", k->block, k->name);
        if (k->state == CRI_READ && strlen(text) < 4)
            fail_msg("%s.%s: read, but by whom?", k->block, k->name);
        if (k->state == CRI_NO_EFFECT && strlen(text) < 10)
            fail_msg("%s.%s: without effect, but why?", k->block, k->name);
        for (size_t j = 0; j < i; j++)
            if (strcmp(cri_keys[j].block, k->block) == 0 && strcmp(cri_keys[j].name, k->name) == 0)
                fail_msg("%s.%s stands twice", k->block, k->name);
    }
}

static void all_defaults_are_accepted(void **state)
{
    cr_yaml yaml = {.arena = cr_arena_create(1 << 12)};
    cr_diagnostics d = {0};
    cr_node *empty = cr_node_new(&yaml, CR_NODE_MAP, (cr_place){"test", 1, 1});

    (void)state;
    for (size_t i = 0; i < cri_num_keys; i++) {
        const char *block = cri_keys[i].block;
        cr_node *once = cri_check_block(&yaml, block, empty, &d),
                *again = cri_check_block(&yaml, block, once, &d);
        cr_buf a = {0}, b = {0};
        cr_node_write_json(once, &a);
        cr_node_write_json(again, &b);
        if (d.num) fail_msg("%s: %s", block, d.items[0].text);
        assert_string_equal(a.data, b.data);
        cr_buf_free(&a);
        cr_buf_free(&b);
    }
    cr_diagnostics_free(&d);
    cr_yaml_free(&yaml);
}

static const struct {
    const char *block, *key, *word;
    int value;
} choices[] = {
    {"run", "track_with", "tensorboard", CR_TRACK_TENSORBOARD},
    {"run", "track_with", "stdout", CR_TRACK_STDOUT},
    {"run", "track_with", "none", CR_TRACK_NONE},
    {"run", "track_with", "exec cat", CR_TRACK_EXEC},
    {"run", "track_with", "wandb", CR_TRACK_WANDB},
    {"run", "track_with", "swanlab", CR_TRACK_SWANLAB},
    {"run", "track_with", "trackio", CR_TRACK_TRACKIO},
    {"run", "track_with", "mlflow", CR_TRACK_MLFLOW},
    {"model_args", "dtype", "fp32", CR_CHOICE_FP32},
    {"model_args", "dtype", "bf16", CR_CHOICE_BF16},
    {"model_args", "dtype", "fp16", CR_CHOICE_FP16},
    {"fsdp2", "param_dtype", "fp16", CR_CHOICE_FP16 + 1}, /* no default: 0 is none */
    {"rlvr", "adv_estimator", "reinforce", CR_ADV_REINFORCE},
    {"rlvr", "adv_estimator", "grpo", CR_ADV_GRPO},
    {"rlvr", "adv_estimator", "gae", CR_ADV_GAE},
    {"rlvr", "norm_mean_type", "batch", CR_NORM_BATCH},
    {"rlvr", "norm_std_type", "group", CR_NORM_GROUP},
    {"rlvr", "norm_std_type", "running", CR_NORM_RUNNING},
    {"rlvr", "multi_objective_aggregation", "sum_then_normalize", CR_SUM_THEN_NORMALIZE},
    {"rlvr", "multi_objective_aggregation", "normalize_then_sum", CR_NORMALIZE_THEN_SUM},
    {"reward", "on_failure", "abstain", 1},
    {"rlvr", "kl_penalty", "kl", CR_KL_K1},
    {"rlvr", "kl_penalty", "abs", CR_KL_ABS},
    {"rlvr", "kl_penalty", "mse", CR_KL_MSE},
    {"rlvr", "loss_agg_mode", "token-mean", CR_AGG_TOKEN_MEAN},
    {"rlvr", "loss_agg_mode", "seq-mean-token-sum", CR_AGG_SEQ_MEAN_TOKEN_SUM},
    {"rlvr", "loss_agg_mode", "seq-mean-token-mean", CR_AGG_SEQ_MEAN_TOKEN_MEAN},
    {"rlvr", "loss_agg_mode", "seq-mean-token-sum-norm", CR_AGG_SEQ_MEAN_TOKEN_SUM_NORM},
    {"rlvr", "importance_sampling", "seq", CR_RATIO_SEQ},
    {"dpo", "loss_type", "sigmoid", CR_PAIR_SIGMOID},
    {"dpo", "loss_type", "ipo", CR_PAIR_IPO},
    {"dpo", "loss_type", "hinge", CR_PAIR_HINGE},
    {"dpo", "loss_type", "robust", CR_PAIR_ROBUST},
    {"dpo", "loss_type", "apo_zero", CR_PAIR_APO_ZERO},
    {"rlvr", "logprobs_mode", "sampled", CR_LOGPROBS_SAMPLED},
    {"rlvr", "logprobs_mode", "raw", CR_LOGPROBS_RAW},
    {"worker", "pg_variant", "ppo", CR_PG_PPO + 1}, /* 0: none */
    {"worker", "pg_variant", "vanilla", CR_PG_VANILLA + 1},
    {"worker", "pg_variant", "tis", CR_PG_TIS + 1},
    {"worker", "pg_variant", "topr", CR_PG_TOPR + 1},
    {"worker", "pg_variant", "cispo", CR_PG_CISPO + 1},
    {"worker", "pg_variant", "kimi15", CR_PG_KIMI15 + 1},
    {"worker", "pg_variant", "dppo_tv", CR_PG_DPPO_TV + 1},
    {"worker", "pg_variant", "sapo", CR_PG_SAPO + 1},
    {"is_weight", "weight_type", "token", CR_GRAIN_TOKEN},
    {"is_weight", "weight_type", "geometric", CR_GRAIN_GEOMETRIC},
    {"filter", "agg_type", "sequence", CR_GRAIN_SEQUENCE},
    {"filter", "agg_type", "segment", CR_GRAIN_SEGMENT},
    {"training_args", "lr_scheduler_type", "linear", CR_LR_LINEAR},
    {"training_args", "lr_scheduler_type", "cosine", CR_LR_COSINE},
    {"training_args", "lr_scheduler_type", "constant", CR_LR_CONSTANT},
    {"training_args", "lr_scheduler_type", "inverse_sqrt", CR_LR_INVERSE_SQRT},
    {"training_args", "lr_scheduler_type", "cosine_with_min_lr", CR_LR_COSINE_WITH_MIN_LR},
    {"training_args", "lr_scheduler_type", "warmup_stable_decay", CR_LR_WARMUP_STABLE_DECAY},
    {"strategy_args", "strategy_name", "fsdp2_train", CR_STRATEGY_FSDP2_TRAIN},
    {"strategy_args", "strategy_name", "fsdp2_infer", CR_STRATEGY_FSDP2_INFER},
    {"strategy_args", "strategy_name", "vllm", CR_STRATEGY_OTHER},
    {"query_filter", "type", "no_filter", CR_FILTER_NONE},
    {"query_filter", "type", "mean_filter", CR_FILTER_MEAN},
    {"query_filter", "type", "std_filter", CR_FILTER_STD},
};

static void words_are_in_the_order_of_enums(void **state)
{
    cr_yaml yaml = {.arena = cr_arena_create(1 << 12)};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(choices); i++) {
        cr_node *map = cr_node_new(&yaml, CR_NODE_MAP, (cr_place){"test", 1, 1}),
                *text = cr_node_new(&yaml, CR_NODE_TEXT, map->place);
        int value;
        text->text = cr_arena_strndup(yaml.arena, choices[i].word, strlen(choices[i].word));
        cr_node_set(&yaml, map, choices[i].key, map->place, text);
        value = cri_choice_of(choices[i].block, map, choices[i].key);
        if (value != choices[i].value)
            fail_msg("%s: %s is %d, not %d", choices[i].key, choices[i].word, value,
                     choices[i].value);
    }
    cr_yaml_free(&yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_has_a_state),
        cmocka_unit_test(all_defaults_are_accepted),
        cmocka_unit_test(words_are_in_the_order_of_enums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
