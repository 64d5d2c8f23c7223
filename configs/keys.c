/* keys.c -- every key: its type, its default, its range, and who reads it or why it has no reader.
 *
 * Names are ROLL's; croll's own say so. Words of choices are in the order of their enum (choices.h).
 */
#include "configs/schema.h"
#include "kernels/sampling_ranges.h"

#define B(block, name, standard, who)                        \
    {                                                        \
        block, name, CRI_BOOL, standard, NULL, CRI_READ, who \
    }
#define I(block, name, standard, min, who)                 \
    {                                                      \
        block, name, CRI_INT, standard, min, CRI_READ, who \
    }
#define R(block, name, standard, min, who)                  \
    {                                                       \
        block, name, CRI_REAL, standard, min, CRI_READ, who \
    }
#define T(block, name, standard, who)                        \
    {                                                        \
        block, name, CRI_TEXT, standard, NULL, CRI_READ, who \
    }
#define C(block, name, standard, words, who)                    \
    {                                                           \
        block, name, CRI_CHOICE, standard, words, CRI_READ, who \
    }
#define K(block, name, inner)                                               \
    {                                                                       \
        block, name, CRI_BLOCK, NULL, inner, CRI_READ, "see the keys in it" \
    }
#define READ(block, name, type, standard, who)           \
    {                                                    \
        block, name, type, standard, NULL, CRI_READ, who \
    }
/* range: a row of kernels/sampling_ranges.h */
#define RANGED(name, type, range, who)                                                             \
    {                                                                                              \
        "generating_args", name, type, CR_DEFAULT_TEXT(range), CR_RANGE_TEXT(range), CRI_READ, who \
    }
#define LATER(block, name, type, standard, range)           \
    {                                                       \
        block, name, type, standard, range, CRI_LATER, NULL \
    }
#define NONE(block, name, why)                               \
    {                                                        \
        block, name, CRI_ANY, NULL, NULL, CRI_NO_EFFECT, why \
    }
#define DEAD(block, name) NONE(block, name, "ROLL ignores it, too")

#define TEMPLATES                                                                     \
    "native|native_nonthinking|qwen2_5|qwen2-vl|qwen3|chatml|empty|longcot_V3|!base|" \
    "!longCOT_qwen2.5"
#define DTYPES   "fp32|bf16|fp16|fp64" /* and their other names, see cri_dtype_of */
#define VARIANTS "ppo|vanilla|tis|topr|cispo|kimi15|dppo_tv|sapo"
#define PAIR_LOSSES                                                                    \
    "sigmoid|ipo|hinge|robust|apo_zero|!exo_pair|!nca_pair|!bco_pair|!sppo_hard|!aot|" \
    "!aot_unpaired|!apo_down|!discopop|!sft|!sigmoid_norm"
#define GRAINS      "token|geometric|sequence|segment"
#define OWN_MASTERS "adapters have float32 masters, and compute in the dtype of the role"
#define NO_JUDGE \
    "only a judge of the run's own (judge_model_type: inference) and a RewardWorker have a model"
#define NOT_LOADED \
    "with metric_for_best_model the link best in output_dir leads to the best checkpoint"
#define MAX_64      "9223372036854775807"
#define MAX_RUNNING "1..65536" /* sequences of one engine */
#define DEFINED     "a definition: what refers to it counts"
#define PACKED      "sequences are always packed, without padding"

const cri_key cri_keys[] = {
    /* ---- every pipeline ---- */
    T("run", "exp_name", "croll", "run.html"),
    I("run", "seed", "42", "0.." MAX_64, "rollouts, prompts, trainer"),
    T("run", "output_dir", "./output", "launcher"),
    C("run", "device", NULL, "cpu|cuda", "every rank"), /* croll's own */
    I("run", "num_gpus_per_node", NULL, "1", "placement: with --hosts on GPUs"),
    T("run", "logging_dir", NULL, "launcher: run.log is in logging_dir/exp_name"),
    C("run", "track_with", "tensorboard",
      "tensorboard|stdout|none|exec PROGRAM|wandb|swanlab|trackio|mlflow", "metrics"),
    READ("run", "tracker_kwargs", CRI_MAP, "{}",
         "metrics: log_dir of tensorboard, all of a program"),
    I("run", "max_steps", "500", "1", "pipeline"),
    I("run", "save_steps", "50", "1", "pipeline"),
    I("run", "max_ckpt_to_keep", "0", "0", "checkpoints"),
    I("run", "logging_steps", "1", "1", "pipeline"),
    I("run", "eval_steps", "10", "1", "pipeline"),
    T("run", "metric_for_best_model", NULL, "pipeline"), /* Transformers', and the next */
    B("run", "greater_is_better", NULL, "pipeline"),
    I("run", "early_stopping_patience", NULL, "1", "pipeline"),
    R("run", "early_stopping_threshold", "0", "0..1e30", "pipeline"),
    NONE("run", "load_best_model_at_end", NOT_LOADED),
    NONE("run", "save_total_limit", "max_ckpt_to_keep says how many checkpoints are kept"),
    READ("run", "resume_from_checkpoint", CRI_ANY, "false", "checkpoints"),
    K("run", "checkpoint_config", "checkpoint"),
    READ("run", "system_envs", CRI_MAP, "{}", "launcher: of every process"),
    T("run", "pretrain", NULL, "every role"),
    R("run", "max_grad_norm", "1.0", "0", "trainer"),
    C("run", "global_template", NULL, TEMPLATES, "prompts"),
    I("run", "sequence_length", NULL, "1", "every role"),
    K("run", "exchange", "exchange"),
    R("run", "collective_timeout", "30", "1..1e8", "every rank"), /* croll's own, and the next */
    R("run", "reward_timeout", "10", "0.1..1e8", "reward workers"),
    R("run", "rpc_timeout", "3600", "1..1e8", "launcher: commands and samples that do not come"),
    NONE("run", "model_update_buffer_size_mb", "weights go to the engines without such a buffer"),
    NONE("run", "profiler_timeline", "every run records one: see run.html in output_dir"),
    NONE("run", "profiler_memory",
         "croll plan shows the memory of each role, and metrics.jsonl what a run used"),
    NONE("run", "profiler_output_dir", "the timeline is in run.html in output_dir"),
    NONE("run", "rollout_dump_dir", "every run writes its samples to output_dir/rollouts"),
    NONE("run", "save_logging_board_dir",
         "every run writes its samples, token by token, to output_dir/rollouts"),
    LATER("run", "rollout_mock", CRI_ANY, NULL, NULL),
    LATER("run", "transfer_backend", CRI_ANY, NULL, NULL),
    NONE("run", "model_download_type", "croll downloads no model"),
    DEAD("run", "base_dir"),
    DEAD("run", "length_profiler_dir"),
    DEAD("run", "report_length_and_rewards"),
    DEAD("run", "otlp_output_dir"),
    DEAD("run", "num_nodes"),
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
    NONE("run", "lora_target", DEFINED),
    NONE("run", "lora_rank", DEFINED),
    NONE("run", "lora_alpha", DEFINED),
    DEAD("run", "flash_attn"),
    DEAD("run", "use_remove_padding"),
    NONE("run", "offload_nccl", DEFINED),
    B("run", "as_fsdp2", "false",
      "the check: blocks of other engines become fsdp2"), /* croll's own */
    NONE("run", "deepspeed_zero", DEFINED),
    NONE("run", "deepspeed_zero2", DEFINED),
    NONE("run", "deepspeed_zero3", DEFINED),
    NONE("run", "deepspeed_zero3_cpuoffload", DEFINED),
    C("checkpoint", "type", "file_system", "file_system", "the check"),
    T("checkpoint", "output_dir", NULL, "checkpoints"),
    C("checkpoint", "hosts", "shared", "shared|gather|each",
      "checkpoints: whose folder, with --hosts"),
    NONE("checkpoint", "async_upload",
         "checkpoints are written where they belong; async_save_ckpt lets training go on"),
    NONE("checkpoint", "keep_local_file", "there is no other copy"),
    T("exchange", "url", NULL, "exchange"),
    T("exchange", "prefix", NULL, "exchange"),
    T("exchange", "ca_file", NULL, "exchange"),
    T("exchange", "cert_file", NULL, "exchange"),
    T("exchange", "key_file", NULL, "exchange"),
    R("exchange", "timeout", "30", "1..1e8", "exchange"),

    /* ---- rlvr ---- */
    I("rlvr", "prompt_length", "1024", "1", "prompts, engine"),
    I("rlvr", "response_length", NULL, "1", "sequence_length"),
    I("rlvr", "val_prompt_length", NULL, "1", "prompts, validation"),
    I("rlvr", "val_sequence_length", NULL, "1", "validation"),
    B("rlvr", "val_only", "false",
      "pipeline: croll eval"), /* croll's own, as verl's, and the next */
    T("rlvr", "val_adapter", NULL, "engine: of croll eval"),
    T("rlvr", "rollouts_from", NULL, "pipeline: samples of another run"), /* croll's own */
    K("rlvr", "curriculum", "curriculum"), /* croll's own, and all in it */
    I("rlvr", "rollout_batch_size", "128", "1", "rollouts"),
    I("rlvr", "num_return_sequences_in_group", "1", "1", "rollouts"),
    NONE("rlvr", "is_num_return_sequences_expand",
         "the samples of a group are requests of their own that share their prompt's cache"),
    NONE("rlvr", "generate_opt_level", "the engine always schedules sample by sample"),
    I("rlvr", "max_running_requests", "128", MAX_RUNNING, "engine"),
    C("rlvr", "logprobs_mode", "sampled", "sampled|raw", "engine, trainer"), /* croll's own */
    I("rlvr", "max_failed_reward_steps", "3", "0", "rollouts"),              /* croll's own */
    LATER("rlvr", "is_use_additional_prompts", CRI_BOOL, "false", NULL),
    NONE("rlvr", "max_additional_running_prompts",
         "is_use_additional_prompts is not available yet"),
    LATER("rlvr", "user_defined_rollout_loop_cls", CRI_TEXT, NULL,
          "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"),
    K("rlvr", "router_args", "router"),
    R("rlvr", "async_generation_ratio", "0", "0", "pipeline"),
    C("rlvr", "adv_estimator", "gae",
      "reinforce|grpo|gae|!gigpo|!step_reinforce|!agentic_reinforce", "advantages"),
    I("rlvr", "ppo_epochs", "1", "1..1000", "pipeline"),
    R("rlvr", "gamma", "1", "0..1", "advantages"),
    R("rlvr", "lambd", "0.95", "0..1", "advantages: gae"),
    R("rlvr", "pg_clip", "0.2", "0", "loss"),
    B("rlvr", "use_pg_clip_range", "false", "loss"),
    R("rlvr", "pg_clip_low", "0.2", "0", "loss"),
    R("rlvr", "pg_clip_high", "0.2", "0", "loss"),
    B("rlvr", "dual_clip_loss", "false", "loss"),
    R("rlvr", "value_clip", NULL, "1e-6", "critic"),
    C("rlvr", "kl_penalty", "kl", "kl|abs|mse|!full", "advantages"),
    R("rlvr", "init_kl_coef", "0.2", "0..1e6", "advantages"),
    R("rlvr", "target_kl", NULL, "1e-6", "advantages"),
    R("rlvr", "kl_horizon", "10000", "1", "advantages"),
    B("rlvr", "add_token_level_kl", "false", "advantages"),
    B("rlvr", "use_kl_loss", "false", "loss"),
    R("rlvr", "kl_loss_coef", "0", "0..1e6", "loss"),
    R("rlvr", "entropy_loss_coef", "0", "0..1e6", "loss"),
    C("rlvr", "loss_agg_mode", "seq-mean-token-mean",
      "token-mean|seq-mean-token-sum|seq-mean-token-mean|seq-mean-token-sum-norm", "loss"),
    R("rlvr", "reward_clip", NULL, "0", "advantages"),
    R("rlvr", "advantage_clip", NULL, "0", "advantages"),
    B("rlvr", "whiten_rewards", "false", "advantages"),
    B("rlvr", "whiten_advantages", "false", "advantages"),
    C("rlvr", "norm_mean_type", NULL, "batch|group|running", "advantages"),
    C("rlvr", "norm_std_type", NULL, "batch|group|running", "advantages"),
    C("rlvr", "multi_objective_aggregation", "sum_then_normalize", /* TRL's */
      "sum_then_normalize|normalize_then_sum", "advantages"),
    I("rlvr", "critic_warmup", "0", "0", "pipeline"),
    B("rlvr", "enable_reference", "false", "launcher"),
    B("rlvr", "sync_ref_model", "false", "pipeline"), /* TRL's, and the next two */
    I("rlvr", "ref_model_sync_steps", "512", "1", "pipeline"),
    R("rlvr", "ref_model_mixup_alpha", "0.6", "1e-9..1", "reference"),
    B("rlvr", "enable_old_logprobs_recompute", "false", "pipeline"),
    B("rlvr", "force_disable_old_logprobs_recompute", "false", "pipeline"),
    B("rlvr", "use_rollout_log_probs", NULL, "pipeline"),
    K("rlvr", "train_infer_correction", "correction"),
    T("rlvr", "reward_pretrain", NULL, "critic"),
    {"rlvr", "tag_to_template", CRI_CHOICES, "{}", TEMPLATES, CRI_READ, "prompts"},
    C("rlvr", "importance_sampling", "token", "token|seq", "loss"),
    R("rlvr", "rl_loss_coef", "1.0", "0..1e6", "loss"),
    B("rlvr", "max_len_mask", "false", "advantages"),
    B("rlvr", "difficulty_mask", "false", "advantages"),
    R("rlvr", "difficulty_low_threshold", "0.0", NULL, "advantages"),
    R("rlvr", "difficulty_high_threshold", "1.0", NULL, "advantages"),
    B("rlvr", "error_max_len_clip", "false", "advantages"),
    I("rlvr", "error_max_len_threshold", "9999999999", "0.." MAX_64, "advantages"),
    B("rlvr", "difficulty_loss_weight", "false", "loss"),
    B("rlvr", "length_loss_weight", "false", "loss"),
    K("rlvr", "actor_train", "worker"),
    K("rlvr", "actor_infer", "worker"),
    K("rlvr", "reference", "worker"),
    K("rlvr", "teacher", "teacher"),
    K("rlvr", "teacher_2",
      "teacher"), /* croll's own, and the next: what teacher: {NAME: block, ..} becomes */
    K("rlvr", "teacher_3", "teacher"),
    K("rlvr", "teacher_4", "teacher"),
    B("rlvr", "use_opd", "false", "the check: a teacher goes with it; advantages"),
    B("rlvr", "is_pure_opd", "false", "the check: a teacher goes with it; advantages"),
    C("rlvr", "pure_opd_pipeline_type", "rlvr", "rlvr|!agentic", "the check"),
    K("rlvr", "student_train", "worker"), /* other names of actor_train and actor_infer */
    K("rlvr", "student_infer", "worker"),
    K("rlvr", "validation", "worker"),
    K("rlvr", "critic", "worker"),
    LATER("rlvr", "reward_model", CRI_ANY, NULL, NULL),
    {"rlvr", "rewards", CRI_BLOCKS, NULL, "reward", CRI_READ, "see the keys in it"},
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
    NONE("rlvr", "val_greedy",
         "validation.generating_args say how its samples are drawn; ROLL ignores it, too"),
    NONE("rlvr", "val_n_sample",
         "validation.generating_args.num_return_sequences is the number of samples a prompt; ROLL "
         "ignores it, too"),
    I("curriculum", "max_solved", NULL, "1", "data"),
    R("curriculum", "solved_score", "1", NULL, "data"),
    R("curriculum", "easy_threshold", NULL, NULL, "data"),
    R("curriculum", "easy_fraction", "0.25", "0..1", "data"),
    R("curriculum", "hard_threshold", NULL, NULL, "data"),
    R("curriculum", "hard_fraction", "0.25", "0..1", "data"),
    K("correction", "is_weight", "is_weight"),
    {"correction", "filters", CRI_LIST, "[]", "filter", CRI_READ, "loss"},
    B("is_weight", "enabled", "false", "loss"),
    C("is_weight", "weight_type", "token", GRAINS, "loss"),
    {"is_weight", "upper_bound", CRI_OPTIONAL, "1.2", "1e-6", CRI_READ, "loss"},
    NONE("is_weight", "detach", "weights are of log-probs from before the updates: no gradient"),
    B("filter", "enabled", "false", "loss"),
    C("filter", "agg_type", "token", GRAINS, "loss"),
    B("filter", "ratio_enabled", "true", "loss"),
    R("filter", "ratio_low", "0.8", NULL, "loss"),
    R("filter", "ratio_high", "1.2", NULL, "loss"),
    B("filter", "diff_enabled", "false", "loss"),
    R("filter", "diff_low", "-0.2", NULL, "loss"),
    R("filter", "diff_high", "0.2", NULL, "loss"),
    C("router", "router_name", "PromptAffinityRouter",
      "PromptAffinityRouter|!EnvAffinityRouter|!SglangRouter", "the check"),
    LATER("router", "router_config", CRI_MAP, "{}", NULL),
    I("router", "max_running_requests", NULL, MAX_RUNNING, "engine"),

    /* ---- sft ---- */
    T("sft", "system_key", NULL, "prompts"),
    T("sft", "prompt_key", "instruction", "prompts"),
    T("sft", "query_key", NULL, "prompts"),
    T("sft", "response_key", "output", "prompts"),
    B("sft", "shuffle", "false", "sft pipeline"), /* croll's own */
    K("sft", "sft_train", "worker"),
    K("sft", "validation", "worker"),

    /* ---- dpo ---- */
    R("dpo", "beta", "0.1", "1e-6..1e6", "loss"),
    B("dpo", "ipo", "false", "loss"),
    R("dpo", "label_smoothing", "0.0", "0..1", "loss"),
    C("dpo", "loss_type", "sigmoid", PAIR_LOSSES, "loss"),         /* TRL's */
    R("dpo", "rpo_alpha", "0.0", "0..1e6", "loss"),                /* TRL's */
    B("dpo", "cache_reference_log_probs", "true", "dpo pipeline"), /* croll's own */
    B("dpo", "sync_ref_model", "false", "dpo pipeline"),           /* TRL's, and the next two */
    I("dpo", "ref_model_sync_steps", "512", "1", "dpo pipeline"),
    R("dpo", "ref_model_mixup_alpha", "0.6", "1e-9..1", "reference"),
    T("dpo", "prompt_key", "instruction", "prompts"), /* a fixed name in ROLL */
    T("dpo", "query_key", NULL, "prompts"),           /* as of sft, and the next */
    T("dpo", "system_key", NULL, "prompts"),
    T("dpo", "chosen_key", "chosen", "prompts"),
    T("dpo", "rejected_key", "rejected", "prompts"),
    B("dpo", "shuffle", "true", "dpo pipeline"), /* croll's own */
    K("dpo", "actor_train", "worker"),
    K("dpo", "reference", "worker"),
    K("dpo", "validation", "worker"),

    /* ---- distill ---- */
    T("distill", "student_pretrain", NULL, "student"),
    T("distill", "teacher_pretrain", NULL, "teacher"),
    T("distill", "question_key", "question", "prompts"),
    T("distill", "answer_key", "answer", "prompts"),
    T("distill", "question_template", NULL, "prompts"), /* croll's own */
    T("distill", "query_key", NULL, "prompts"),         /* as of sft, and the next */
    T("distill", "system_key", NULL, "prompts"),
    I("distill", "logits_topk", "64", "0", "loss"),
    R("distill", "distill_loss_weight", "0.5", "0..1", "loss"),
    R("distill", "kd_temperature", "1.0", "1e-3..1e3", "loss"),
    R("distill", "teacher_temperature", "1.0", "1e-3..1e3", "loss"),
    C("distill", "kd_objective", "forward_kl",
      "forward_kl|reverse_kl|adaptive_kl|skewed_forward_kl|skewed_reverse_kl|js_divergence",
      "loss"),
    R("distill", "adaptive_kl_alpha", "0.5", "0..1", "loss"),
    R("distill", "skew_lambda", "0.1", "0..1", "loss"),
    C("distill", "kd_normalize", "tail", "tail|topk", "loss"), /* croll's own; topk is ROLL's */
    B("distill", "distill_on_prompt", "false", "loss"),
    B("distill", "shuffle", "true", "distill pipeline"), /* croll's own */
    NONE("distill", "logits_transfer_backend", "log-probs go through shared memory and Redis"),
    K("distill", "student", "worker"),
    K("distill", "teacher", "worker"),
    K("distill", "validation", "worker"),

    /* ---- worker blocks; teacher has the keys of worker, too ---- */
    R("teacher", "opd_kl_coef", "1.0", "0..1e6", "advantages"),
    READ("teacher", "tag_included", CRI_TEXTS, "[]", "advantages"),
    NONE("worker", "name", "a block's key is its name"),
    T("worker", "worker_cls", NULL, "the check: only ROLL's own classes"),
    C("worker", "pg_variant", NULL, VARIANTS, "loss"),
    NONE("worker", "world_size", "device_mapping says how many ranks there are"),
    READ("worker", "device_mapping", CRI_DEVICES, NULL, "launcher"),
    NONE("worker", "num_gpus_per_worker", "a rank has one device"),
    I("worker", "model_update_frequency", "1", "1", "pipeline"),
    I("worker", "infer_batch_size", "16", "1", "trainer"),
    NONE("worker", "backend_timeout",
         "collective_timeout and heartbeats report a rank that does not answer"),
    READ("worker", "system_envs", CRI_MAP, "{}", "ranks of the role"),
    NONE("worker", "max_concurrency", "max_running_requests says how many samples run at once"),
    K("worker", "model_args", "model_args"),
    K("worker", "training_args", "training_args"),
    K("worker", "data_args", "data_args"),
    K("worker", "generating_args", "generating_args"),
    {"worker", "domain_generating_args", CRI_BLOCKS, NULL, "generating_args", CRI_READ,
     "see the keys in it"}, /* croll's own */
    K("worker", "strategy_args", "strategy_args"),
    B("worker", "use_dynamic_batching_in_train", "false", "trainer"),
    B("worker", "use_dynamic_batching_in_infer", "false", "trainer"),
    I("worker", "max_tokens_per_microbatch_in_train", "0", "0", "use_dynamic_batching_in_train"),
    I("worker", "max_tokens_per_microbatch_in_infer", NULL, "0", "use_dynamic_batching_in_infer"),
    NONE("worker", "sequence_length_round_in_train", PACKED),
    NONE("worker", "sequence_length_round_in_infer", PACKED),
    NONE("worker", "use_sequence_packing", PACKED),
    NONE("worker", "sequence_packing_args", PACKED),
    NONE("worker", "logits_in_fp32", "logits are always fp32"),
    LATER("worker", "router_replay", CRI_ANY, NULL, NULL),
    LATER("worker", "mtp_training_mode", CRI_ANY, NULL, NULL),
    NONE("worker", "apply_loss_scale",
         "losses are divided by counts of the whole mini-batch: there is no scale to put right"),
    NONE("worker", "tag_included", "it belongs into a block of rewards"),
    R("worker", "topr_positive_weight", "1.0", "0..1e6", "loss"),
    R("worker", "topr_negative_weight", "1.0", "0..1e6", "loss"),
    R("worker", "tis_lower_bound", "0.0", "0", "loss"), /* dead keys in ROLL from here */
    R("worker", "tis_upper_bound", "1.0", "0", "loss"),
    R("worker", "cispo_epsilon_low", "0.1", "0", "loss"),
    R("worker", "cispo_epsilon_high", "0.1", "0", "loss"),
    B("worker", "cispo_use_unified_mask", "false", "loss"),
    R("worker", "kimi15_tau", "0.1", "0..1e6", "loss"),
    R("worker", "dppo_mask_low", "0.2", "0", "loss"), /* croll's own from here */
    R("worker", "dppo_mask_high", "0.2", "0", "loss"),
    R("worker", "dppo_clip_ratio_c", "20", "1e-6", "loss"),
    R("worker", "sapo_temperature_pos", "1.0", "1e-6..1e6", "loss"),
    R("worker", "sapo_temperature_neg", "1.05", "1e-6..1e6", "loss"),
    K("worker", "service", "service"),
    DEAD("worker", "offload_nccl"),
    DEAD("worker", "use_remove_padding"),
    DEAD("worker", "eval_steps"),

    T("service", "url", NULL, "reference of a run"), /* croll's own, all of it */
    T("service", "model", NULL, "reference of a run"),
    T("service", "key_file", NULL, "reference of a run"),
    T("service", "key_env", NULL, "reference of a run"),
    T("service", "ca_file", NULL, "reference of a run"),
    T("service", "expect_weights", NULL, "reference of a run"),
    R("service", "timeout", "600", "1..1e8", "reference of a run"),
    I("service", "connections", "4", "1..256", "reference of a run"),

    T("model_args", "model_name_or_path", NULL, "the role"),
    {"model_args", "dtype", CRI_DTYPE, "bf16", DTYPES, CRI_READ, "the role"},
    NONE("model_args", "attn_implementation", "croll has one attention"),
    B("model_args", "disable_gradient_checkpointing", "false", "trainer"),
    NONE("model_args", "gradient_checkpointing_use_reentrant", "a matter of PyTorch"),
    C("model_args", "model_type", NULL,
      "trl|auto_token_classification|auto_sequence_classification|!diffusion_module",
      "critic, reward models"),
    NONE("model_args", "num_labels",
         "a critic and a reward model give one value, no other model has labels"),
    R("model_args", "moe_aux_loss_coef", NULL, "0", "trainer"),
    LATER("model_args", "model_config_kwargs", CRI_MAP, "{}", NULL),
    T("model_args", "freeze_module_prefix", NULL, "trainer"),
    C("model_args", "stage", NULL, /* croll's own: which parts of a vision-language model train */
      "align|finetune|full-finetune|last-layer-finetune|vla-train|vla-full-train|"
      "vla-sandwich-train",
      "trainer"),
    I("model_args", "ulysses_size", "1", "1", "trainer"),
    T("model_args", "lora_target", NULL, "trainer and engine"),
    I("model_args", "lora_rank", NULL, "1..65536", "trainer and engine"),
    R("model_args", "lora_alpha", NULL, "1e-6..1e6", "trainer and engine"),
    B("model_args", "use_rslora", "false", "trainer and engine"), /* croll's own, as PEFT's */
    R("model_args", "lora_dropout", NULL, "0..0.99", "trainer"),
    T("model_args", "additional_target", NULL, "trainer and engine"),
    T("model_args", "adapter_name_or_path", NULL, "trainer and engine"),
    LATER("model_args", "use_dora", CRI_BOOL, "false", NULL), /* PEFT's, and the next */
    LATER("model_args", "init_lora_weights", CRI_ANY, "true", NULL),
    NONE("model_args", "autocast_adapter_dtype", OWN_MASTERS),
    NONE("model_args", "device_map", "device_mapping says where a role's ranks are"),
    DEAD("model_args", "flash_attn"),

    R("training_args", "learning_rate", "5.0e-5", "0", "trainer"),
    C("training_args", "lr_scheduler_type", "linear",
      "linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|"
      "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay|!reduce_lr_on_plateau|"
      "!greedy",
      "trainer"),
    READ("training_args", "lr_scheduler_kwargs", CRI_MAP, "{}", "trainer"),
    R("training_args", "weight_decay", "0.0", "0", "trainer"),
    R("training_args", "adam_beta1", "0.9", "0", "trainer"),
    R("training_args", "adam_beta2", "0.999", "0", "trainer"),
    R("training_args", "adam_epsilon", "1.0e-8", "1e-30", "trainer"),
    C("training_args", "optim", "adamw_torch", "adamw_torch|adamw_torch_fused|muon|!adafactor|!sgd",
      "trainer"), /* Transformers' */
    {"training_args", "muon_args", CRI_BLOCK, NULL, "muon", CRI_READ,
     "see the keys in it"}, /* croll's own, torch.optim.Muon's names */
    R("muon", "learning_rate", NULL, "0", "trainer"),
    R("muon", "weight_decay", NULL, "0", "trainer"),
    R("muon", "momentum", "0.95", "0..0.999999", "trainer"),
    B("muon", "nesterov", "true", "trainer"),
    I("muon", "ns_steps", "5", "1..99", "trainer"),
    R("muon", "eps", "1.0e-7", "1e-30", "trainer"),
    C("muon", "adjust_lr_fn", "match_rms_adamw", "match_rms_adamw|original|spectral_unclamped",
      "trainer"),
    {"training_args", "param_groups", CRI_LIST, "[]", "param_group", CRI_READ,
     "trainer"}, /* croll's own, as torch's */
    T("param_group", "params", NULL, "trainer"),
    R("param_group", "learning_rate", NULL, "0", "trainer"),
    R("param_group", "weight_decay", NULL, "0", "trainer"),
    C("param_group", "optim", NULL, "adamw_torch", "trainer"),
    I("training_args", "per_device_train_batch_size", "8", "1", "trainer"),
    I("training_args", "gradient_accumulation_steps", "1", "1", "trainer"),
    I("training_args", "warmup_steps", "0", "0", "trainer"),
    R("training_args", "warmup_ratio", "0.0", "0", "trainer"),
    R("training_args", "num_train_epochs", "1", "0..1e9", "sft pipeline"),
    NONE("training_args", "max_steps", "max_steps of the run says how long it is"),
    NONE("training_args", "seed", "seed of the run is that of every role"),
    NONE("training_args", "dataloader_num_workers", "rows are read before the first step"),
    DEAD("training_args", "data_seed"),
    DEAD("training_args", "tf32"),
    DEAD("training_args", "fp16"),
    DEAD("training_args", "bf16"),
    DEAD("training_args", "save_hf_model"),
    DEAD("training_args", "output_dir"),
    DEAD("training_args", "logging_steps"),

    C("data_args", "template", "native", TEMPLATES, "prompts"),
    READ("data_args", "file_name", CRI_TEXTS, NULL, "prompts"),
    T("data_args", "messages", NULL, "prompts"),
    T("data_args", "prompt", NULL, "prompts"),
    READ("data_args", "domain_interleave_probs", CRI_NUMBERS, NULL, "prompts"),
    NONE("data_args", "preprocessing_num_workers", "rows are read before the first step"),
    T("data_args", "tag", "tag", "prompts"),
    READ("data_args", "columns", CRI_MAP, NULL, "rows"),             /* croll's own */
    C("data_args", "unknown_tag", "error", "error|drop", "prompts"), /* croll's own */
    T("data_args", "image_folder", NULL, "rows"),
    I("data_args", "image_max_pixels", NULL, "1", "images"),
    I("data_args", "image_min_pixels", NULL, "1", "images"),
    C("data_args", "broken_image", "error", "error|drop", "rows"), /* croll's own */
    C("data_args", "image_alpha", "drop", "drop|white", "images"), /* croll's own */
    LATER("data_args", "video_folder", CRI_TEXT, NULL, NULL),
    I("data_args", "video_max_pixels", NULL, "1", "videos"),
    I("data_args", "video_min_pixels", NULL, "1", "videos"),
    R("data_args", "video_fps", "2.0", "0.01..1000", "videos whose row does not say it"),
    LATER("data_args", "video_total_pixels", CRI_ANY, NULL, NULL),
    LATER("data_args", "video_max_frames", CRI_ANY, NULL, NULL),
    LATER("data_args", "video_resize_chunk_frames", CRI_ANY, NULL, NULL),
    LATER("data_args", "audio_folder", CRI_TEXT, NULL, NULL),
    LATER("data_args", "custom_data_kwargs_func", CRI_TEXT, NULL, NULL),
    DEAD("data_args", "id"),
    DEAD("data_args", "response"),
    DEAD("data_args", "dataset_type"),
    DEAD("data_args", "eval_file_name"),
    DEAD("data_args", "dataset_dir"),
    DEAD("data_args", "interleave_probs"),

    B("generating_args", "do_sample", "true", "engine"),
    RANGED("temperature", CRI_REAL, CR_TEMPERATURE, "engine"),
    RANGED("top_p", CRI_REAL, CR_TOP_P, "engine"),
    RANGED("top_k", CRI_INT, CR_TOP_K, "engine"),
    RANGED("min_p", CRI_REAL, CR_MIN_P, "engine"),
    LATER("generating_args", "num_beams", CRI_INT, "1", NULL),
    NONE("generating_args", "max_length", "max_new_tokens says how long an answer may be"),
    RANGED("max_new_tokens", CRI_INT, CR_MAX_NEW_TOKENS, "croll generate"),
    RANGED("repetition_penalty", CRI_REAL, CR_REPETITION_PENALTY, "engine"),
    NONE("generating_args", "length_penalty", "only beam search reads it"),
    RANGED("num_return_sequences", CRI_INT, CR_NUM_SAMPLES, "croll generate"),
    READ("generating_args", "stop_strings", CRI_TEXTS, NULL, "engine"),
    B("generating_args", "include_stop_str_in_output", "true", "engine"),
    READ("generating_args", "stop_token_ids", CRI_INTS, NULL, "engine"), /* vLLM's */
    NONE("generating_args", "logprobs", "the log-prob of every token is kept"),

    C("strategy_args", "strategy_name", NULL,
      "fsdp2_train|fsdp2_infer|vllm|sglang|hf_infer|megatron_infer|megatron_train|deepspeed_train|"
      "deepspeed_infer",
      "the role"),
    READ("strategy_args", "strategy_config", CRI_ANY, NULL, "the role"), /* fsdp2 or engine: */

    I("engine", "max_model_len", NULL, "1", "engine"),
    R("engine", "gpu_memory_utilization", NULL, "0.000001", "engine: its cache"),
    I("engine", "sleep_level", "1", "1", "engine"),
    NONE(
        "engine", "load_format",
        "weights come from the trainer before the first rollout, those of a judge from its folder"),
    B("engine", "enforce_eager", "false", "engine"),

    I("fsdp2", "fsdp_size", "1", NULL, "trainer"),
    I("fsdp2", "max_model_len", NULL, "1", "engine"), /* as vllm's, and the next three */
    R("fsdp2", "gpu_memory_utilization", NULL, "0.000001", "engine: its cache"),
    I("fsdp2", "sleep_level", "1", "1", "engine"),
    B("fsdp2", "enforce_eager", "false", "engine"),
    {"fsdp2", "param_dtype", CRI_DTYPE, NULL, DTYPES, CRI_READ, "the role"},
    {"fsdp2", "master_dtype", CRI_DTYPE, NULL, DTYPES, CRI_READ, "trainer"},
    {"fsdp2", "reduce_dtype", CRI_DTYPE, "fp32", DTYPES, CRI_READ, "trainer"},
    {"fsdp2", "output_dtype", CRI_DTYPE, NULL, DTYPES, CRI_READ,
     "the check: only fp32"}, /* PyTorch's, not ROLL's */
    {"fsdp2", "buffer_dtype", CRI_DTYPE, NULL, DTYPES, CRI_READ, "the check: only fp32"},
    NONE("fsdp2", "cast_forward_inputs",
         "what enters a unit is in its dtype already: ids and positions are whole numbers, and "
         "pixels enter a tower as they are"),
    READ("fsdp2", "reshard_after_forward", CRI_ANY, NULL,
         "trainer"), /* true, false, a number, auto */
    B("fsdp2", "offload_policy", "false", "trainer"),
    B("fsdp2", "reduce_scatter_during_grad_accumulation", "true", "trainer"),
    K("fsdp2", "wrap_policy", "wrap_policy"),
    I("fsdp2", "ep_size", "1", "1", "trainer"),
    I("fsdp2", "efsdp_size", "1", "1", "trainer"),
    NONE("fsdp2", "moe_use_grouped_mm", "croll has one way to compute experts"),
    B("fsdp2", "apply_expert_patch", "false", "trainer"),
    B("fsdp2", "apply_tiled_mlp", "false", "trainer"),
    I("fsdp2", "tiled_num_shards", "4", "1", "trainer"),
    NONE("fsdp2", "model_type", "every MLP can be tiled"), /* whose MLPs ROLL patches */
    B("fsdp2", "async_save_ckpt", "true", "trainer"),
    B("fsdp2", "save_only_model", "false", "trainer"),
    DEAD("fsdp2", "use_batched_model_update"),
    DEAD("fsdp2", "use_remove_padding"),
    READ("wrap_policy", "transformer_layer_cls_to_wrap", CRI_TEXTS, NULL, "trainer"),
    B("wrap_policy", "wrap_embeddings", "false", "trainer"),
    B("wrap_policy", "wrap_lm_output", "false", "trainer"),
    READ("wrap_policy", "moe_experts", CRI_TEXTS, NULL, "trainer"),
    READ("wrap_policy", "modules", CRI_TEXTS, NULL, "trainer"), /* croll's own from here */
    I("wrap_policy", "min_num_params", "0", "0", "trainer"),
    B("wrap_policy", "nested", "false", "trainer"),

    /* ---- reward blocks; judge_model, with a judge of the run's own, and reward_model, with a RewardWorker, have the keys of reward, too ---- */
    K("judge_model", "model_args", "model_args"),
    K("judge_model", "generating_args", "generating_args"),
    K("judge_model", "strategy_args", "strategy_args"),
    READ("judge_model", "device_mapping", CRI_DEVICES, NULL, "launcher"),
    NONE("judge_model", "data_args", "its chats have the template of its model"),
    NONE("judge_model", "infer_batch_size", "max_in_flight says how many chats it has at once"),
    NONE("judge_model", "num_gpus_per_worker", "each process of a judge has one device"),
    K("reward_model", "model_args", "model_args"),
    K("reward_model", "strategy_args", "strategy_args"),
    READ("reward_model", "device_mapping", CRI_DEVICES, NULL, "reward workers"),
    I("reward_model", "infer_batch_size", "16", "1..65536", "reward workers"),
    NONE("reward_model", "training_args", "it is not trained"),
    NONE("reward_model", "generating_args", "it writes nothing"),
    NONE("reward_model", "data_args", "it reads the token ids of samples as they are"),
    NONE("reward_model", "num_gpus_per_worker", "each of its workers has one device"),
    T("reward", "worker_cls", NULL, "reward workers"),
    I("reward", "world_size", "1", "1..4096", "launcher"),
    READ("reward", "tag_included", CRI_TEXTS, "[]", "prompts"),
    T("reward", "format_pattern", NULL, "reward workers"),
    READ("reward", "format_tags", CRI_TEXTS, "[]", "reward workers"), /* croll's own */
    K("reward", "overlong_buffer", "overlong"),                       /* verl's */
    I("overlong", "len", NULL, "1", "reward workers"),
    R("overlong", "penalty_factor", "1.0", "0..1e6", "reward workers"),
    I("reward", "repetition_n_grams", "3", "1..1000", "reward workers"), /* Open-R1's */
    R("reward", "repetition_max_penalty", "-1.0", "-1e6..0", "reward workers"),
    R("reward", "reward_weight", "1.0", "-1e6..1e6", "rollouts, advantages"), /* croll's own */
    C("reward", "on_failure", "no_verdict", "no_verdict|abstain", "rollouts"),
    C("reward", "reward_type", NULL, "loose|soft|strict", "reward workers"),
    READ("reward", "det_iou_threshold", CRI_ANY, "average",
         "reward workers"), /* ROLL's variable DET_IOU_THRESHOLD */
    R("reward", "response_length_penalty_coef", "0.0", NULL, "reward workers"),
    K("reward", "query_filter_config", "query_filter"),
    T("reward", "exec", NULL, "reward workers"), /* croll's own, and the next */
    I("reward", "max_in_flight", "1", "1", "reward workers"),
    K("reward", "remote", "remote"), /* croll's own */
    T("remote", "url", NULL, "reward workers"),
    T("remote", "key_file", NULL, "reward workers"),
    T("remote", "key_env", NULL, "reward workers"),
    T("remote", "ca_file", NULL, "reward workers"),
    READ("reward", "reward_manager_config", CRI_ANY, "[]", "the service of remote"),
    READ("reward", "system_envs", CRI_MAP, "{}", "reward workers and their programs"),
    T("reward", "code_url", NULL, "reward workers"),
    B("reward", "use_local", "false", "reward workers"),
    C("reward", "sandbox", "namespaces", "namespaces|none",
      "reward workers"), /* croll's own, and the next */
    T("reward", "interpreter", "python3", "reward workers"),
    R("reward", "case_timeout", "4", "0.1..3600", "reward workers"),
    I("reward", "case_memory_mb", "1024", "64..1048576", "reward workers"),
    K("reward", "judge", "judge"), /* croll's own */
    T("reward", "judge_prompt", NULL, "reward workers"),
    K("reward", "judge_answer", "judge_answer"), /* croll's own */
    T("judge_answer", "pattern", NULL, "reward workers"),
    T("judge_answer", "field", NULL, "reward workers"),
    R("judge_answer", "least", "0", "-1e6..1e6", "reward workers"),
    R("judge_answer", "most", NULL, "-1e6..1e6", "reward workers"),
    C("reward", "judge_model_type", "api", "api|inference|!cluster", "the check, launcher"),
    T("reward", "judge_model_name", NULL, "reward workers"),
    T("reward", "judge_api_url", NULL, "reward workers"),
    T("reward", "judge_api_key", NULL, "the check: judge has key_file and key_env"),
    T("judge", "url", NULL, "reward workers"),
    T("judge", "model", NULL, "reward workers"),
    T("judge", "key_file", NULL, "reward workers"),
    T("judge", "key_env", NULL, "reward workers"),
    T("judge", "ca_file", NULL, "reward workers"),
    READ("judge", "extra_body", CRI_MAP, "{temperature: 0}", "reward workers"),
    NONE("reward", "model_args", NO_JUDGE),
    NONE("reward", "training_args", NO_JUDGE),
    NONE("reward", "data_args", NO_JUDGE),
    NONE("reward", "generating_args", NO_JUDGE),
    NONE("reward", "strategy_args", NO_JUDGE),
    NONE("reward", "device_mapping", NO_JUDGE),
    NONE("reward", "num_gpus_per_worker", NO_JUDGE),
    NONE("reward", "infer_batch_size", NO_JUDGE),
    NONE("reward", "name", "a domain's key is its name"),
    NONE("reward", "max_concurrency", "world_size says how many workers a domain has"),
    NONE("reward", "backend_timeout", "reward_timeout is the deadline of a verdict"),
    DEAD("reward", "response_filter_config"),
    C("query_filter", "type", "no_filter", "no_filter|mean_filter|std_filter", "rollouts"),
    K("query_filter", "filter_args", "filter_args"),
    R("filter_args", "threshold_down", "-1", NULL, "rollouts"),
    R("filter_args", "threshold_up", NULL, NULL, "rollouts"),
    R("filter_args", "std_threshold", "-1", NULL, "rollouts"),
};
const size_t cri_num_keys = CR_COUNT(cri_keys);

const cri_reward_class cri_reward_classes[] = {
    {"MathRuleRewardWorker", "math_rule"},
    {"GeneralRuleRewardWorker", "ifeval"},
    {"MultipleChoiceBoxedRuleRewardWorker", "multiple_choice_boxed"},
    {"CrossThinkQARuleRewardWorker", "crossthinkqa"},
    {"GeneralValRuleRewardWorker", "general_val"},
    {"CodeSandboxRewardWorker", "code"},
    {"RewardWorker", CRI_REWARD_MODEL},
    {"LLMJudgeRewardWorker", "llm_judge"},
    {"RemoteRewardSystemWorker", "remote"},
    {"DetectionRewardWorker", "detection"},
    {"VideoR1RewardWorker", "video_r1"},
    {"MultipleChoiceBoxedRewardWorker", "multiple_choice_boxed"},
    {"FormatRuleRewardWorker", "format"}, /* croll's own */
    {"LengthRuleRewardWorker", "length"},
    {"RepetitionRuleRewardWorker", "repetition"},
};
const size_t cri_num_reward_classes = CR_COUNT(cri_reward_classes);
