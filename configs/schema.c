/* schema.c -- the table of keys (reference: ROLL's configuration), and the check against it. */
#include "configs/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B(block, name, standard)                        \
    {                                                   \
        block, name, CRI_BOOL, standard, NULL, CRI_HAVE \
    }
#define I(block, name, standard, least)                 \
    {                                                   \
        block, name, CRI_INT, standard, least, CRI_HAVE \
    }
#define R(block, name, standard, least)                  \
    {                                                    \
        block, name, CRI_REAL, standard, least, CRI_HAVE \
    }
#define T(block, name, standard)                        \
    {                                                   \
        block, name, CRI_TEXT, standard, NULL, CRI_HAVE \
    }
#define C(block, name, standard, words)                    \
    {                                                      \
        block, name, CRI_CHOICE, standard, words, CRI_HAVE \
    }
#define K(block, name, inner)                         \
    {                                                 \
        block, name, CRI_BLOCK, NULL, inner, CRI_HAVE \
    }
#define LATER(block, name, type, standard)           \
    {                                                \
        block, name, type, standard, NULL, CRI_LATER \
    }
#define DEAD(block, name)                          \
    {                                              \
        block, name, CRI_ANY, NULL, NULL, CRI_DEAD \
    }

#define TEMPLATES \
    "native|native_nonthinking|qwen2_5|qwen3|chatml|base|empty|longCOT_qwen2.5|longcot_V3"

const cri_key cri_keys[] = {
    /* ---- every pipeline ---- */
    T("run", "exp_name", "croll"),
    I("run", "seed", "42", "0"),
    T("run", "output_dir", "./output"),
    T("run", "logging_dir", "./output/logs"),
    C("run", "track_with", "tensorboard", "tensorboard|stdout|none|wandb|swanlab|trackio"),
    {"run", "tracker_kwargs", CRI_MAP, "{}", NULL, CRI_HAVE},
    I("run", "max_steps", "500", "1"),
    I("run", "save_steps", "50", "1"),
    I("run", "max_ckpt_to_keep", "0", "0"),
    I("run", "logging_steps", "1", "1"),
    I("run", "eval_steps", "10", "1"),
    {"run", "resume_from_checkpoint", CRI_ANY, "false", NULL, CRI_HAVE},
    {"run", "checkpoint_config", CRI_MAP, "{}", NULL, CRI_HAVE},
    {"run", "system_envs", CRI_MAP, "{}", NULL, CRI_HAVE},
    T("run", "pretrain", NULL),
    R("run", "max_grad_norm", "1.0", "0"),
    C("run", "global_template", NULL, TEMPLATES),
    I("run", "sequence_length", NULL, "1"),
    K("run", "exchange", "exchange"),
    R("run", "collective_timeout", "30", "1"),
    R("run", "reward_timeout", "10", "0.1"),
    I("run", "rpc_timeout", "3600", "1"),
    I("run", "model_update_buffer_size_mb", "1024", "1"),
    {"run", "profiler_timeline", CRI_BOOL, "false", NULL, CRI_LATER},
    {"run", "profiler_memory", CRI_BOOL, "false", NULL, CRI_LATER},
    T("run", "profiler_output_dir", "./output/profiler"),
    LATER("run", "rollout_dump_dir", CRI_TEXT, NULL),
    LATER("run", "save_logging_board_dir", CRI_TEXT, NULL),
    LATER("run", "rollout_mock", CRI_ANY, NULL),
    LATER("run", "transfer_backend", CRI_ANY, NULL),
    LATER("run", "model_download_type", CRI_TEXT, NULL),
    DEAD("run", "base_dir"),
    DEAD("run", "length_profiler_dir"),
    DEAD("run", "report_length_and_rewards"),
    DEAD("run", "otlp_output_dir"),
    DEAD("run", "num_nodes"),
    DEAD("run", "num_gpus_per_node"),
    DEAD("run", "is_offload_states"),
    DEAD("run", "is_offload_optimizer_states_in_train_step"),
    DEAD("run", "local_rank"),
    DEAD("run", "val_batch_size"),
    DEAD("run", "num_train_epochs"),
    DEAD("run", "pg_variant"),
    DEAD("run", "reward_norm"),
    DEAD("run", "reward_shift"),
    DEAD("run", "reward_scale"),
    DEAD("run", "positive_loss_coef"),
    DEAD("run", "lora_target"),
    DEAD("run", "lora_rank"),
    DEAD("run", "lora_alpha"),
    DEAD("run", "flash_attn"),
    DEAD("run", "use_remove_padding"),
    T("exchange", "url", NULL),

    /* ---- rlvr ---- */
    I("rlvr", "prompt_length", "1024", "1"),
    I("rlvr", "response_length", NULL, "1"),
    I("rlvr", "val_prompt_length", NULL, "1"),
    I("rlvr", "val_sequence_length", NULL, "1"),
    I("rlvr", "rollout_batch_size", "128", "1"),
    I("rlvr", "num_return_sequences_in_group", "1", "1"),
    B("rlvr", "is_num_return_sequences_expand", "false"),
    I("rlvr", "generate_opt_level", "1", "0"),
    I("rlvr", "max_running_requests", "128", "1"),
    LATER("rlvr", "is_use_additional_prompts", CRI_BOOL, "false"),
    I("rlvr", "max_additional_running_prompts", "16", "0"),
    LATER("rlvr", "user_defined_rollout_loop_cls", CRI_TEXT, NULL),
    LATER("rlvr", "router_args", CRI_ANY, NULL),
    R("rlvr", "async_generation_ratio", "0", "0"),
    C("rlvr", "adv_estimator", "gae", "gae|reinforce|grpo|gigpo|step_reinforce"),
    I("rlvr", "ppo_epochs", "1", "1"),
    R("rlvr", "gamma", "1", "0"),
    R("rlvr", "lambd", "0.95", "0"),
    R("rlvr", "pg_clip", "0.2", "0"),
    B("rlvr", "use_pg_clip_range", "false"),
    R("rlvr", "pg_clip_low", "0.2", "0"),
    R("rlvr", "pg_clip_high", "0.2", "0"),
    B("rlvr", "dual_clip_loss", "false"),
    R("rlvr", "value_clip", NULL, "0"),
    C("rlvr", "kl_penalty", "kl", "kl|abs|mse|full"),
    R("rlvr", "init_kl_coef", "0.2", "0"),
    R("rlvr", "target_kl", NULL, "0"),
    R("rlvr", "kl_horizon", "10000", "1"),
    B("rlvr", "add_token_level_kl", "false"),
    B("rlvr", "use_kl_loss", "false"),
    R("rlvr", "kl_loss_coef", "0", "0"),
    R("rlvr", "entropy_loss_coef", "0", "0"),
    C("rlvr", "loss_agg_mode", "seq-mean-token-mean",
      "token-mean|seq-mean-token-sum|seq-mean-token-mean|seq-mean-token-sum-norm"),
    R("rlvr", "reward_clip", NULL, "0"),
    R("rlvr", "advantage_clip", NULL, "0"),
    B("rlvr", "whiten_rewards", "false"),
    B("rlvr", "whiten_advantages", "false"),
    C("rlvr", "norm_mean_type", NULL, "batch|group|running"),
    C("rlvr", "norm_std_type", NULL, "batch|group|running"),
    I("rlvr", "critic_warmup", "0", "0"),
    B("rlvr", "enable_reference", "false"),
    B("rlvr", "enable_old_logprobs_recompute", "false"),
    B("rlvr", "force_disable_old_logprobs_recompute", "false"),
    K("rlvr", "train_infer_correction", "correction"),
    T("rlvr", "reward_pretrain", NULL),
    {"rlvr", "tag_to_template", CRI_MAP, "{}", NULL, CRI_LATER},
    C("rlvr", "importance_sampling", "token", "token|seq"),
    R("rlvr", "rl_loss_coef", "1.0", "0"),
    B("rlvr", "max_len_mask", "false"),
    B("rlvr", "difficulty_mask", "false"),
    R("rlvr", "difficulty_low_threshold", "0.0", NULL),
    R("rlvr", "difficulty_high_threshold", "1.0", NULL),
    B("rlvr", "error_max_len_clip", "false"),
    I("rlvr", "error_max_len_threshold", "9999999999", "0"),
    LATER("rlvr", "difficulty_loss_weight", CRI_BOOL, "false"),
    LATER("rlvr", "length_loss_weight", CRI_BOOL, "false"),
    K("rlvr", "actor_train", "worker"),
    K("rlvr", "actor_infer", "worker"),
    K("rlvr", "reference", "worker"),
    K("rlvr", "validation", "worker"),
    LATER("rlvr", "critic", CRI_ANY, NULL),
    LATER("rlvr", "reward_model", CRI_ANY, NULL),
    LATER("rlvr", "teacher", CRI_ANY, NULL),
    LATER("rlvr", "student_train", CRI_ANY, NULL),
    LATER("rlvr", "student_infer", CRI_ANY, NULL),
    LATER("rlvr", "is_pure_opd", CRI_BOOL, "false"),
    LATER("rlvr", "use_opd", CRI_BOOL, "false"),
    LATER("rlvr", "pure_opd_pipeline_type", CRI_TEXT, NULL),
    {"rlvr", "rewards", CRI_BLOCKS, NULL, "reward", CRI_HAVE},
    DEAD("rlvr", "l2"),
    DEAD("rlvr", "use_reward_scaling"),
    DEAD("rlvr", "use_reward_norm"),
    DEAD("rlvr", "add_len_reward"),
    DEAD("rlvr", "dataset_filter"),
    DEAD("rlvr", "mask_type"),
    DEAD("rlvr", "balance_length"),
    DEAD("rlvr", "minibatch_data_iter_num"),
    DEAD("rlvr", "postive_loss_coef"),
    DEAD("rlvr", "use_topr_neg_loss_coef"),
    DEAD("rlvr", "use_policy_loss_type"),
    DEAD("rlvr", "use_topr_loss"),
    DEAD("rlvr", "val_greedy"),
    DEAD("rlvr", "val_n_sample"),
    {"correction", "is_weight", CRI_MAP, "{}", NULL, CRI_LATER},
    {"correction", "filters", CRI_ANY, "[]", NULL, CRI_LATER},

    /* ---- sft ---- */
    T("sft", "system_key", NULL),
    T("sft", "prompt_key", "instruction"),
    T("sft", "query_key", NULL),
    T("sft", "response_key", "output"),
    K("sft", "sft_train", "worker"),
    B("sft", "shuffle", "false"),
    K("sft", "validation", "worker"),

    /* ---- worker blocks ---- */
    T("worker", "name", NULL),
    T("worker", "worker_cls", NULL),
    LATER("worker", "pg_variant", CRI_TEXT, NULL),
    I("worker", "world_size", NULL, "1"),
    {"worker", "device_mapping", CRI_DEVICES, NULL, NULL, CRI_HAVE},
    I("worker", "num_gpus_per_worker", "1", "1"),
    I("worker", "model_update_frequency", "1", "1"),
    I("worker", "infer_batch_size", "16", "1"),
    I("worker", "backend_timeout", "30", "1"),
    {"worker", "system_envs", CRI_MAP, "{}", NULL, CRI_HAVE},
    I("worker", "max_concurrency", "1", "1"),
    K("worker", "model_args", "model_args"),
    K("worker", "training_args", "training_args"),
    K("worker", "data_args", "data_args"),
    K("worker", "generating_args", "generating_args"),
    K("worker", "strategy_args", "strategy_args"),
    LATER("worker", "use_dynamic_batching_in_train", CRI_BOOL, "false"),
    LATER("worker", "use_dynamic_batching_in_infer", CRI_BOOL, "false"),
    I("worker", "max_tokens_per_microbatch_in_train", "0", "0"),
    I("worker", "max_tokens_per_microbatch_in_infer", NULL, "0"),
    I("worker", "sequence_length_round_in_train", "4", "1"),
    I("worker", "sequence_length_round_in_infer", "4", "1"),
    B("worker", "use_sequence_packing", "false"), /* sequences are always packed here */
    {"worker", "sequence_packing_args", CRI_MAP, "{}", NULL, CRI_HAVE},
    B("worker", "logits_in_fp32", "true"),
    LATER("worker", "router_replay", CRI_ANY, NULL),
    LATER("worker", "mtp_training_mode", CRI_ANY, NULL),
    B("worker", "apply_loss_scale", "true"),
    LATER("worker", "opd_kl_coef", CRI_ANY, NULL),
    {"worker", "tag_included", CRI_TEXTS, "[]", NULL, CRI_HAVE},
    R("worker", "topr_positive_weight", "1.0", "0"),
    R("worker", "topr_negative_weight", "1.0", "0"),
    DEAD("worker", "offload_nccl"),
    DEAD("worker", "use_remove_padding"),
    DEAD("worker", "eval_steps"),
    DEAD("worker", "tis_lower_bound"),
    DEAD("worker", "tis_upper_bound"),
    DEAD("worker", "cispo_epsilon_low"),
    DEAD("worker", "cispo_epsilon_high"),
    DEAD("worker", "kimi15_tau"),

    T("model_args", "model_name_or_path", NULL),
    {"model_args", "dtype", CRI_DTYPE, "bf16", NULL, CRI_HAVE},
    T("model_args", "attn_implementation", NULL),
    B("model_args", "disable_gradient_checkpointing", "false"),
    T("model_args", "gradient_checkpointing_use_reentrant", NULL),
    T("model_args", "model_type", NULL),
    I("model_args", "num_labels", "1", "1"),
    R("model_args", "moe_aux_loss_coef", NULL, "0"),
    {"model_args", "model_config_kwargs", CRI_MAP, "{}", NULL, CRI_LATER},
    T("model_args", "freeze_module_prefix", NULL),
    C("model_args", "stage", NULL, /* croll's own: which parts of a vision-language model train */
      "align|finetune|full-finetune|last-layer-finetune|vla-train|vla-full-train|"
      "vla-sandwich-train"),
    I("model_args", "ulysses_size", "1", "1"),
    LATER("model_args", "lora_target", CRI_TEXT, NULL),
    I("model_args", "lora_rank", "8", "1"),
    I("model_args", "lora_alpha", NULL, "1"),
    R("model_args", "lora_dropout", "0.0", "0"),
    LATER("model_args", "additional_target", CRI_TEXT, NULL),
    LATER("model_args", "adapter_name_or_path", CRI_TEXT, NULL),
    T("model_args", "autocast_adapter_dtype", NULL),
    T("model_args", "device_map", NULL),
    DEAD("model_args", "flash_attn"),

    R("training_args", "learning_rate", "5.0e-5", "0"),
    C("training_args", "lr_scheduler_type", "linear",
      "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt"),
    R("training_args", "weight_decay", "0.0", "0"),
    R("training_args", "adam_beta1", "0.9", "0"),
    R("training_args", "adam_beta2", "0.999", "0"),
    I("training_args", "per_device_train_batch_size", "8", "1"),
    I("training_args", "gradient_accumulation_steps", "1", "1"),
    I("training_args", "warmup_steps", "0", "0"),
    R("training_args", "warmup_ratio", "0.0", "0"),
    I("training_args", "num_train_epochs", "1", "1"),
    I("training_args", "max_steps", "-1", NULL),
    I("training_args", "seed", NULL, "0"),
    I("training_args", "dataloader_num_workers", "0", "0"),
    DEAD("training_args", "data_seed"),
    DEAD("training_args", "tf32"),
    DEAD("training_args", "fp16"),
    DEAD("training_args", "bf16"),
    DEAD("training_args", "save_hf_model"),
    DEAD("training_args", "output_dir"),
    DEAD("training_args", "logging_steps"),

    C("data_args", "template", "native", TEMPLATES),
    {"data_args", "file_name", CRI_TEXTS, NULL, NULL, CRI_HAVE},
    T("data_args", "messages", NULL),
    T("data_args", "prompt", NULL),
    {"data_args", "domain_interleave_probs", CRI_NUMBERS, NULL, NULL, CRI_HAVE},
    I("data_args", "preprocessing_num_workers", NULL, "1"),
    T("data_args", "tag", "tag"),
    C("data_args", "unknown_tag", "error", "error|drop"),
    LATER("data_args", "image_folder", CRI_TEXT, NULL),
    DEAD("data_args", "id"),
    DEAD("data_args", "response"),
    DEAD("data_args", "dataset_type"),
    DEAD("data_args", "eval_file_name"),
    DEAD("data_args", "dataset_dir"),
    DEAD("data_args", "interleave_probs"),

    B("generating_args", "do_sample", "true"),
    R("generating_args", "temperature", "0.95", "0"),
    R("generating_args", "top_p", "0.7", "0"),
    I("generating_args", "top_k", "50", "-1"),
    R("generating_args", "min_p", "0", "0"),
    LATER("generating_args", "num_beams", CRI_INT, "1"),
    I("generating_args", "max_length", "8192", "1"),
    I("generating_args", "max_new_tokens", "8192", "1"),
    R("generating_args", "repetition_penalty", "1.0", "0.000001"),
    R("generating_args", "length_penalty", "1.0", NULL),
    I("generating_args", "num_return_sequences", "1", "1"),
    {"generating_args", "stop_strings", CRI_TEXTS, NULL, NULL, CRI_HAVE},
    B("generating_args", "include_stop_str_in_output", NULL),
    I("generating_args", "logprobs", "0", "0"),

    C("strategy_args", "strategy_name", NULL,
      "fsdp2_train|fsdp2_infer|vllm|sglang|hf_infer|megatron_infer|megatron_train|deepspeed_train|"
      "deepspeed_infer"),
    {"strategy_args", "strategy_config", CRI_ANY, NULL, NULL,
     CRI_HAVE}, /* checked as one of the next two */

    I("fsdp2", "fsdp_size", "1", NULL),
    I("fsdp2", "sleep_level", "1", "1"), /* of the engine, as in vllm's config */
    {"fsdp2", "param_dtype", CRI_DTYPE, NULL, NULL, CRI_HAVE},
    {"fsdp2", "master_dtype", CRI_DTYPE, NULL, NULL, CRI_HAVE},
    {"fsdp2", "reduce_dtype", CRI_DTYPE, "float32", NULL, CRI_HAVE},
    {"fsdp2", "output_dtype", CRI_DTYPE, NULL, NULL, CRI_HAVE}, /* PyTorch's, not ROLL's: */
    {"fsdp2", "buffer_dtype", CRI_DTYPE, NULL, NULL, CRI_HAVE}, /* only fp32, which they are */
    B("fsdp2", "cast_forward_inputs", NULL),
    {"fsdp2", "reshard_after_forward", CRI_ANY, NULL, NULL, CRI_HAVE}, /* true, false, a number */
    B("fsdp2", "offload_policy", "false"),
    B("fsdp2", "reduce_scatter_during_grad_accumulation", "true"),
    K("fsdp2", "wrap_policy", "wrap_policy"),
    I("fsdp2", "ep_size", "1", "1"),
    I("fsdp2", "efsdp_size", "1", "1"),
    B("fsdp2", "moe_use_grouped_mm", "false"),
    B("fsdp2", "apply_expert_patch", "false"),
    B("fsdp2", "apply_tiled_mlp", "false"),
    I("fsdp2", "tiled_num_shards", "4", "1"),
    T("fsdp2", "model_type", NULL), /* whose MLP classes ROLL patches for tiles */
    B("fsdp2", "async_save_ckpt", "true"),
    B("fsdp2", "save_only_model", "false"),
    DEAD("fsdp2", "use_batched_model_update"),
    DEAD("fsdp2", "use_remove_padding"),
    {"wrap_policy", "transformer_layer_cls_to_wrap", CRI_TEXTS, NULL, NULL, CRI_HAVE},
    B("wrap_policy", "wrap_embeddings", "false"),
    B("wrap_policy", "wrap_lm_output", "false"),
    {"wrap_policy", "moe_experts", CRI_TEXTS, NULL, NULL, CRI_HAVE},
    {"wrap_policy", "modules", CRI_TEXTS, NULL, NULL, CRI_HAVE}, /* croll's own from here */
    I("wrap_policy", "min_num_params", "0", "0"),
    B("wrap_policy", "nested", "false"),

    /* ---- reward blocks: a worker block and these ---- */
    T("reward", "code_url", NULL),
    B("reward", "use_local", "true"),
    T("reward", "judge_prompt", NULL),
    T("reward", "judge_model_type", NULL),
    T("reward", "judge_model_name", NULL),
    T("reward", "judge_api_url", NULL),
    T("reward", "judge_api_key", NULL),
    T("reward", "format_pattern", NULL),
    C("reward", "reward_type", NULL, "loose|soft|strict"),
    R("reward", "response_length_penalty_coef", "0.0", NULL),
    K("reward", "query_filter_config", "query_filter"),
    T("reward", "exec", NULL),
    {"reward", "reward_manager_config", CRI_ANY, NULL, NULL, CRI_LATER},
    DEAD("reward", "response_filter_config"),
    C("query_filter", "type", "no_filter", "no_filter|mean_filter|std_filter"),
    {"query_filter", "filter_args", CRI_MAP, "{}", NULL, CRI_HAVE},
};
const size_t cri_num_keys = CR_COUNT(cri_keys);

const cri_reward_class cri_reward_classes[] = {
    {"MathRuleRewardWorker", "math_rule", true},
    {"GeneralRuleRewardWorker", "ifeval", true},
    {"MultipleChoiceBoxedRuleRewardWorker", "multiple_choice_boxed", true},
    {"CrossThinkQARuleRewardWorker", "crossthinkqa", true},
    {"GeneralValRuleRewardWorker", "general_val", true},
    {"CodeSandboxRewardWorker", "code", false},
    {"LLMJudgeRewardWorker", "llm_judge", false},
    {"RemoteRewardSystemWorker", "remote", false},
    {"DetectionRewardWorker", "detection", false},
    {"VideoR1RewardWorker", "video_r1", false},
    {"MultipleChoiceBoxedRewardWorker", "multiple_choice_boxed", false},
};
const size_t cri_num_reward_classes = CR_COUNT(cri_reward_classes);

/* ---- the check ---- */

/* A block may extend others: rlvr and sft have the keys of run, a reward those of a worker. */
static bool is_in(const char *block, const cri_key *key)
{
    if (strcmp(key->block, block) == 0) return true;
    if (strcmp(block, "rlvr") == 0 || strcmp(block, "sft") == 0)
        return strcmp(key->block, "run") == 0;
    return strcmp(block, "reward") == 0 && strcmp(key->block, "worker") == 0;
}

static const cri_key *find_key(const char *block, const char *name)
{
    for (size_t i = 0; i < cri_num_keys; i++)
        if (is_in(block, &cri_keys[i]) && strcmp(cri_keys[i].name, name) == 0) return &cri_keys[i];
    return NULL;
}

static void unknown_key(const char *block, const struct cr_item *item, cr_diagnostics *d)
{
    const char **names = CR_NEW_ARRAY(const char *, cri_num_keys);
    const char *near = NULL;
    size_t num = 0;

    for (size_t i = 0; i < cri_num_keys; i++)
        if (is_in(block, &cri_keys[i]) && cri_keys[i].have != CRI_DEAD)
            names[num++] = cri_keys[i].name;
    for (size_t i = 0; i < num && !near;
         i++) /* a part of a longer name, as use_additional_prompts */
        if (strlen(item->key) > 5 && strstr(names[i], item->key)) near = names[i];
    if (!near) near = cr_nearest(item->key, names, num);
    cr_diagnose(d, CR_ERROR, item->place, "unknown key '%.60s'%s%s%s", item->key,
                near ? " (did you mean " : " in this block", near ? near : "", near ? "?)" : "");
    cr_free(names);
}

static const char *shown(const cr_node *n, char text[80])
{
    cr_buf out = {0};

    cr_node_write_json(n, &out);
    snprintf(text, 80, "%.70s%s", out.data, out.num_bytes > 70 ? ".." : "");
    cr_buf_free(&out);
    return text;
}

static bool is_dtype(const char *s)
{
    static const char *const names[] = {"bf16", "bfloat16", "fp16",  "float16", "half",
                                        "fp32", "float32",  "float", "fp64",    "float64"};

    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(s, names[i]) == 0) return true;
    return false;
}

static bool is_choice(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = words; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strcspn(p, "|") == n && strncmp(p, word, n) == 0) return true;
    return false;
}

static void wrong(const cri_key *key, const cr_node *n, const char *expected, cr_diagnostics *d)
{
    char text[80];

    cr_diagnose(d, CR_ERROR, n->place, "%s: %s is expected, not %s", key->name, expected,
                shown(n, text));
}

static void check_number(const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    double x = n->kind == CR_NODE_INT ? (double)n->integer : n->real;
    char expected[64];

    if (key->type == CRI_REAL && n->kind == CR_NODE_INT) n->real = x, n->kind = CR_NODE_REAL;
    if (key->range && x < atof(key->range)) {
        snprintf(expected, sizeof expected, "a number of at least %s", key->range);
        wrong(key, n, expected, d);
    }
}

/* Whole numbers are counted with and multiplied later on: what fits in 31 bits cannot overflow there. */
static void check_whole(const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    static const char *const wide[] = {"seed",
                                       "error_max_len_threshold"}; /* only compared, copied */
    const int64_t most = INT32_MAX;

    for (size_t i = 0; i < CR_COUNT(wide); i++)
        if (strcmp(key->name, wide[i]) == 0) return;
    if (n->integer >= -most && n->integer <= most) return;
    if (n->integer > most || !key->range) /* else it was said */
        wrong(key, n, "a whole number of at most 2147483647 (31 bits)", d);
    n->integer =
        n->integer > 0 ? most : -most; /* what is derived from it is checked all the same */
}

static void check_choice(const cri_key *key, const cr_node *n, cr_diagnostics *d)
{
    const char *names[32], *near;
    char *copy;
    size_t num = 0;

    if (n->kind == CR_NODE_TEXT && is_choice(key->range, n->text)) return;
    copy = cr_strdup(key->range);
    for (char *p = copy, *next; p && num < CR_COUNT(names); p = next) {
        next = strchr(p, '|');
        if (next) *next++ = 0;
        names[num++] = p;
    }
    near = n->kind == CR_NODE_TEXT ? cr_nearest(n->text, names, num) : NULL;
    cr_diagnose(d, CR_ERROR, n->place, "%s: '%.60s' is none of %s%s%s%s", key->name,
                n->kind == CR_NODE_TEXT ? n->text : "this", key->range,
                near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    cr_free(copy);
}

static bool same_value(cr_yaml *yaml, const cri_key *key, const cr_node *n)
{
    cr_diagnostics none = {0};
    cr_node *standard =
        cr_yaml_parse_value(yaml, key->standard ? key->standard : "null", n->place, &none);
    cr_buf a = {0}, b = {0};
    bool is_same;

    cr_node_write_json(n, &a);
    cr_node_write_json(standard, &b);
    is_same = strcmp(a.data, b.data) == 0 ||
              (standard->kind == CR_NODE_INT && n->kind == CR_NODE_REAL &&
               n->real == (double)standard->integer) ||
              (n->kind == CR_NODE_MAP && n->num == 0);
    cr_buf_free(&a);
    cr_buf_free(&b);
    cr_diagnostics_free(&none);
    return is_same;
}

/* One value; may be replaced (blocks). */
static cr_node *check_value(cr_yaml *yaml, const cri_key *key, cr_node *n, cr_diagnostics *d)
{
    size_t before = d->num_errors;

    switch (key->type) {
    case CRI_BOOL:
        if (n->kind != CR_NODE_BOOL) wrong(key, n, "true or false", d);
        break;
    case CRI_INT:
        if (n->kind != CR_NODE_INT)
            wrong(key, n, "a whole number", d);
        else {
            check_number(key, n, d);
            check_whole(key, n, d);
        }
        break;
    case CRI_REAL:
        if (n->kind != CR_NODE_INT && n->kind != CR_NODE_REAL)
            wrong(key, n, "a number", d);
        else
            check_number(key, n, d);
        break;
    case CRI_TEXT:
        if (n->kind == CR_NODE_LIST || n->kind == CR_NODE_MAP) wrong(key, n, "a text", d);
        break;
    case CRI_CHOICE:
        check_choice(key, n, d);
        break;
    case CRI_DTYPE:
        if (n->kind != CR_NODE_TEXT || !is_dtype(n->text))
            wrong(key, n, "a dtype (fp32, bf16, ..)", d);
        break;
    case CRI_TEXTS:
        if (n->kind == CR_NODE_MAP ||
            (n->kind == CR_NODE_LIST && n->num && n->items[0].value->kind == CR_NODE_MAP))
            wrong(key, n, "a text or a list of texts", d);
        break;
    case CRI_MAP:
        if (n->kind != CR_NODE_MAP) wrong(key, n, "a map", d);
        break;
    case CRI_NUMBERS:
        if (n->kind != CR_NODE_MAP) wrong(key, n, "a map of numbers", d);
        for (size_t i = 0; n->kind == CR_NODE_MAP && i < n->num; i++)
            if (n->items[i].value->kind != CR_NODE_INT && n->items[i].value->kind != CR_NODE_REAL)
                wrong(key, n->items[i].value, "a number", d);
        break;
    case CRI_DEVICES:
        if (n->kind != CR_NODE_TEXT && n->kind != CR_NODE_LIST)
            wrong(key, n, "a list of devices, as list(range(0,8)),", d);
        break;
    case CRI_BLOCK:
        if (n->kind != CR_NODE_MAP)
            wrong(key, n, "a block of keys", d);
        else
            n = cri_check_block(yaml, key->range, n, d);
        break;
    case CRI_BLOCKS:
        if (n->kind != CR_NODE_MAP) {
            wrong(key, n, "a map of blocks", d);
            break;
        }
        for (size_t i = 0; i < n->num; i++)
            if (n->items[i].value->kind == CR_NODE_MAP)
                n->items[i].value = cri_check_block(yaml, key->range, n->items[i].value, d);
            else
                wrong(key, n->items[i].value, "a block of keys", d);
        break;
    case CRI_ANY:
        break;
    }
    if (key->have == CRI_LATER && d->num_errors == before && !same_value(yaml, key, n)) {
        char text[80];
        cr_diagnose(d, CR_ERROR, n->place, "%s: %s is not available yet", key->name,
                    n->kind == CR_NODE_MAP ? "this block" : shown(n, text));
    }
    return n;
}

cr_node *cri_check_block(cr_yaml *yaml, const char *block, const cr_node *map, cr_diagnostics *d)
{
    cr_node *out = cr_node_new(yaml, CR_NODE_MAP, map->place);

    for (size_t i = 0; i < map->num; i++)
        if (!find_key(block, map->items[i].key)) unknown_key(block, &map->items[i], d);
    for (size_t i = 0; i < cri_num_keys; i++) {
        const cri_key *key = &cri_keys[i];
        struct cr_item *item;
        cr_node *value;
        if (!is_in(block, key) || find_key(block, key->name) != key) continue;
        item = cr_node_item(map, key->name);
        if (item && item->value->kind != CR_NODE_NULL) {
            if (key->have == CRI_DEAD) {
                cr_diagnose(d, CR_NOTE, item->place, "%s has no effect (ROLL ignores it, too)",
                            key->name);
                continue;
            }
            value = check_value(yaml, key, item->value, d);
            cr_node_set(yaml, out, key->name, item->place, value);
        } else if (key->have != CRI_DEAD) {
            cr_place place = item ? item->place : (cr_place){map->place.file, 0, 0};
            value = cr_yaml_parse_value(yaml, key->standard ? key->standard : "null", place, d);
            if (key->type == CRI_REAL && value->kind == CR_NODE_INT)
                value->real = (double)value->integer, value->kind = CR_NODE_REAL;
            cr_node_set(yaml, out, key->name, place, value);
        }
    }
    return out;
}
