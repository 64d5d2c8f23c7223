/* configs.h -- the configuration of a run: one ROLL YAML file, checked as a whole before anything
 * starts.
 *
 * schema.c lists every key once: type, default, range, and whether croll has it yet. Loading composes
 * the file (yaml.h), checks it against that list and across keys, fills in defaults and derived
 * values, and copies what the program needs into the plain structs below. Keys keep ROLL's names.
 * Keys that ROLL itself ignores are accepted with a note; unknown keys are errors.
 *
 * A cr_config owns everything it points to (cr_config_free). Read-only after loading: any thread.
 */
#ifndef CR_CONFIGS_H
#define CR_CONFIGS_H

#include "configs/yaml.h"

typedef struct cr_generating_args {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, max_new_tokens, num_return_sequences;
    char **stop_strings;
    size_t num_stop_strings;
    bool include_stop_str_in_output;
} cr_generating_args;

typedef struct cr_worker_config {
    const char *name;   /* "actor_train" */
    char *model_path;   /* model_args.model_name_or_path */
    char *dtype;        /* "fp32", "bf16", "fp16": of compute (param_dtype if given) */
    char *master_dtype; /* "fp32" or "bf16" */
    char *reduce_dtype; /* "fp32" or "bf16" */
    char *freeze_module_prefix, *stage; /* or NULL, and not both */
    bool should_recompute;
    int64_t ulysses_size, fsdp_size;
    int64_t mlp_tiles;                  /* tiled_num_shards if apply_tiled_mlp, else 0 */
    int reshard_after_forward;          /* -1: default (null), 0, 1 */
    int reshard_ranks;                  /* a whole number was given; 0: none */
    bool is_offloaded, is_reduced_once; /* reduce_scatter_during_grad_accumulation: false */
    bool wrap_embeddings, wrap_lm_output, wrap_nested, save_only_model, async_save_ckpt;
    char **wrap_classes, **wrap_modules, **moe_experts;
    size_t num_wrap_classes, num_wrap_modules, num_moe_experts; /* 0: the model's own; none */
    int64_t wrap_min_params;
    int64_t ep_size, efsdp_size;
    bool apply_expert_patch;  /* experts without tokens are called, too */
    double moe_aux_loss_coef; /* -1: as config.json says */
    double learning_rate, weight_decay, adam_beta1, adam_beta2, warmup_ratio;
    char *lr_scheduler_type;
    int64_t per_device_train_batch_size, gradient_accumulation_steps, warmup_steps,
        num_train_epochs;
    char **file_names;
    size_t num_file_names;
    char *template, *messages, *prompt, *tag; /* column names; NULL: none */
    bool drops_unknown_tags;
    cr_generating_args generating;
    char *strategy_name;
    int *devices; /* device_mapping evaluated */
    int num_devices;
    int64_t infer_batch_size, world_size;
    int64_t max_model_len; /* of the engine; 0: from lengths */
    double gpu_memory_utilization;
    int64_t sleep_level; /* of an idle engine: 1 drops cache and packed weights, 2 all weights */
} cr_worker_config;

typedef struct cr_query_filter {
    enum { CR_FILTER_NONE, CR_FILTER_MEAN, CR_FILTER_STD } type;
    double threshold_down, threshold_up, std_threshold;
} cr_query_filter;

typedef struct cr_reward_config {
    char *domain;
    const char *rule; /* "math_rule": the built-in that worker_cls names; NULL with exec */
    char *exec;       /* a program of one's own, or NULL */
    char **tags;
    size_t num_tags;
    int64_t world_size;
    double probability; /* share of prompts, 0: validation only */
    char *reward_type;  /* "loose", "soft", "strict", or NULL */
    double response_length_penalty_coef;
    char *format_pattern;
    cr_query_filter filter;
} cr_reward_config;

typedef struct cr_algorithm {
    char *adv_estimator, *loss_agg_mode, *importance_sampling, *kl_penalty;
    char *norm_mean_type, *norm_std_type; /* NULL: none */
    double gamma, lambd, pg_clip, pg_clip_low, pg_clip_high, kl_loss_coef, init_kl_coef, target_kl,
        kl_horizon;
    double entropy_loss_coef, rl_loss_coef, reward_clip, advantage_clip; /* clips: 0 is off */
    double difficulty_low_threshold, difficulty_high_threshold, max_grad_norm;
    int64_t ppo_epochs, error_max_len_threshold;
    bool use_pg_clip_range, dual_clip_loss, add_token_level_kl, use_kl_loss, whiten_rewards,
        whiten_advantages;
    bool max_len_mask, difficulty_mask, error_max_len_clip, has_target_kl;
} cr_algorithm;

/* Where the log-probs before the updates of a step come from. */
typedef enum cr_old_log_probs {
    CR_OLD_OF_PASS,    /* each update's own first pass: one update a step, or recompute disabled */
    CR_OLD_OF_SAMPLER, /* the sampler's, when the first update finds them equal to its own */
    CR_OLD_COMPUTED    /* a pass over the whole batch before training */
} cr_old_log_probs;

typedef enum cr_pipeline { CR_PIPELINE_RLVR, CR_PIPELINE_SFT } cr_pipeline;

typedef struct cr_config {
    cr_yaml yaml; /* the resolved tree */
    cr_pipeline kind;
    char *path, *exp_name, *output_dir, *logging_dir, *track_with, *tracker_log_dir, *pretrain;
    int64_t seed, max_steps, save_steps, eval_steps, logging_steps, max_ckpt_to_keep;
    char *resume; /* NULL: no; "": the newest; else a path */
    int64_t rollout_batch_size, group_size, prompt_length, sequence_length, max_running_requests;
    int64_t val_prompt_length; /* of validation rows */
    int64_t model_update_frequency;
    bool enable_reference, enable_old_logprobs_recompute; /* the latter as ROLL derives it */
    cr_old_log_probs old_log_probs;
    char *prompt_key, *response_key, *query_key, *system_key, *global_template;
    bool should_shuffle; /* sft: rows in another order each epoch */
    cr_algorithm algorithm;
    cr_worker_config train, infer, reference, validation;
    bool has_reference, has_validation;
    cr_reward_config *rewards;
    size_t num_rewards;
    char *exchange_url; /* NULL: an embedded server */
    double collective_timeout, reward_timeout;
} cr_config;

/* Load, check, resolve. Everything there is to say is in d; the config is usable iff d has no error
 * and CR_OK is returned (else CR_ECONFIG). */
CR_MUST cr_status cr_config_load(const char *path, const char *const *overrides,
                                 size_t num_overrides, cr_config *out, cr_diagnostics *d,
                                 cr_err *err);
void cr_config_free(cr_config *config);
/* A worker block from key=value words, as `croll logprobs MODEL` takes them; block is "actor_train"
 * or "reference". */
CR_MUST cr_status cr_config_worker(const char *block, const char *model,
                                   const char *const *overrides, size_t num_overrides,
                                   cr_config *out, cr_diagnostics *d, cr_err *err);
/* The resolved file, secrets masked, atomically. */
CR_MUST cr_status cr_config_write(const cr_config *config, const char *path, cr_err *err);
const cr_reward_config *cr_config_find_reward(const cr_config *config,
                                              const char *domain); /* NULL: none */
const cr_node *cr_config_at(const cr_config *config, const char *dotted);

/* "list(range(0,8)) + [9]": integers, lists, range, list, +, parentheses. Owned array. */
CR_MUST cr_status cr_device_mapping(const char *text, int **out, int *num, cr_err *err);

#endif
