/* configs_effect.c -- no dead key: every key that is read, changed to a legal other value in a file where it
 * applies, changes what the program is given (cr_config, field by field), or draws a diagnostic if the
 * check is its reader. That the fields are then read is scripts/check_keys. */
#include "configs/bind.h"
#include "tests/check_near.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- all that a configuration holds, as text ---- */

static void show_int(cr_buf *out, long long x)
{
    cr_buf_addf(out, "%lld;", x);
}

static void show_real(cr_buf *out, double x)
{
    cr_buf_addf(out, "%.17g;", x);
}

static void show_text(cr_buf *out, const char *x)
{
    cr_buf_addf(out, "%s;", x ? x : "null");
}

static void show_texts(cr_buf *out, char *const *x, size_t num)
{
    for (size_t i = 0; i < num; i++)
        show_text(out, x[i]);
    cr_buf_adds(out, "|");
}

static void show_envs(cr_buf *out, char *const *x)
{
    for (; x && *x; x++)
        show_text(out, *x);
    cr_buf_adds(out, "|");
}

#define SHOW(x) \
    _Generic((x), double         \
             : show_real, char * \
             : show_text, const char * \
             : show_text, default \
             : show_int)(out, x)

static void show_training(cr_buf *out, const cr_training_args *t)
{
    SHOW(t->learning_rate), SHOW(t->weight_decay), SHOW(t->adam_beta1), SHOW(t->adam_beta2);
    SHOW(t->adam_epsilon), SHOW(t->warmup_ratio), SHOW(t->num_train_epochs);
    SHOW(t->lr_scheduler_type);
    for (int i = 0; i < CR_NUM_SCHEDULE_ARGS; i++)
        SHOW(t->lr_scheduler_kwargs.value[i]), SHOW(t->lr_scheduler_kwargs.is_given[i]);
    SHOW(t->per_device_train_batch_size), SHOW(t->gradient_accumulation_steps);
    SHOW(t->warmup_steps);
    for (size_t i = 0; i < t->num_param_groups; i++)
        SHOW(t->param_groups[i].params), SHOW(t->param_groups[i].learning_rate),
            SHOW(t->param_groups[i].weight_decay), SHOW(t->param_groups[i].is_adamw);
    SHOW(t->muon.is_on), SHOW(t->muon.learning_rate), SHOW(t->muon.weight_decay);
    SHOW(t->muon.momentum), SHOW(t->muon.nesterov), SHOW(t->muon.ns_steps), SHOW(t->muon.eps);
    SHOW(t->muon.adjust_lr_fn);
}

static void show_generating(cr_buf *out, const cr_generating_args *g)
{
    SHOW(g->temperature), SHOW(g->top_p), SHOW(g->min_p), SHOW(g->repetition_penalty);
    SHOW(g->top_k), SHOW(g->max_new_tokens), SHOW(g->num_return_sequences);
    show_texts(out, g->stop_strings, g->num_stop_strings);
    SHOW(g->include_stop_str_in_output);
    for (size_t i = 0; i < g->num_stop_token_ids; i++)
        SHOW(g->stop_token_ids[i]);
}

static void show_strategy(cr_buf *out, const cr_worker_config *w)
{
    for (int i = 0; i < w->num_devices; i++)
        SHOW(w->devices[i]);
    SHOW(w->strategy_name), SHOW(w->strategy), SHOW(w->wrap.embeddings), SHOW(w->wrap.lm_output);
    SHOW(w->wrap.nested), SHOW(w->wrap.min_params);
    show_texts(out, w->wrap.classes, w->wrap.num_classes);
    show_texts(out, w->wrap.modules, w->wrap.num_modules);
    show_texts(out, w->wrap.moe_experts, w->wrap.num_moe_experts);
    SHOW(w->engine.max_model_len), SHOW(w->engine.gpu_memory_utilization);
    SHOW(w->engine.sleep_level), SHOW(w->engine.enforce_eager), SHOW(w->ulysses_size);
    SHOW(w->fsdp_size), SHOW(w->ep_size), SHOW(w->efsdp_size), SHOW(w->mlp_tiles),
        SHOW(w->reshard_after_forward);
    SHOW(w->reshard_ranks), SHOW(w->is_offloaded), SHOW(w->is_reduced_once);
    SHOW(w->apply_expert_patch), SHOW(w->save_only_model), SHOW(w->async_save_ckpt);
}

static void show_worker(cr_buf *out, const cr_worker_config *w)
{
    if (!w->name) return;
    SHOW(w->name), SHOW(w->model_path), SHOW(w->dtype), SHOW(w->master_dtype);
    SHOW(w->reduce_dtype), SHOW(w->freeze_module_prefix), SHOW(w->stage);
    SHOW(w->lora.target), SHOW(w->lora.rank), SHOW(w->lora.alpha), SHOW(w->lora.use_rslora);
    SHOW(w->lora.folder), SHOW(w->lora.dropout), SHOW(w->lora.saved);
    SHOW(w->should_recompute), SHOW(w->moe_aux_loss_coef), SHOW(w->infer_batch_size);
    show_training(out, &w->training);
    show_texts(out, w->data.file_names, w->data.num_file_names);
    SHOW(w->data.template), SHOW(w->data.messages), SHOW(w->data.prompt), SHOW(w->data.tag);
    SHOW(w->data.drops_unknown_tags), SHOW(w->data.drops_broken_images),
        SHOW(w->data.has_white_alpha);
    SHOW(w->data.image_folder), SHOW(w->data.image_min_pixels), SHOW(w->data.image_max_pixels);
    SHOW(w->data.video_min_pixels), SHOW(w->data.video_max_pixels), SHOW(w->data.video_fps);
    for (size_t i = 0; i < w->data.num_columns; i++) {
        const cr_data_column *c = &w->data.columns[i];
        SHOW(c->name), SHOW(c->is_list);
        for (size_t k = 0; k < c->num_parts; k++)
            SHOW(c->parts[k].path), SHOW(c->parts[k].value), SHOW(c->parts[k].after),
                SHOW(c->parts[k].role);
    }
    show_generating(out, &w->generating);
    for (size_t i = 0; i < w->num_domains; i++) {
        SHOW(w->domains[i].domain);
        show_generating(out, &w->domains[i].args);
    }
    show_envs(out, w->envs);
    SHOW(w->batching.train_tokens), SHOW(w->batching.infer_tokens);
    SHOW(w->service.url), SHOW(w->service.model), SHOW(w->service.key_file);
    SHOW(w->service.key_env), SHOW(w->service.ca_file), SHOW(w->service.expect_weights);
    SHOW(w->service.timeout), SHOW(w->service.connections);
    show_strategy(out, w);
}

static void show_reward(cr_buf *out, const cr_reward_config *r)
{
    SHOW(r->domain), SHOW(r->rule), SHOW(r->exec), SHOW(r->world_size), SHOW(r->max_in_flight);
    show_texts(out, r->tags, r->num_tags);
    show_envs(out, r->envs);
    SHOW(r->probability), SHOW(r->reward_type), SHOW(r->response_length_penalty_coef);
    SHOW(r->filter.type), SHOW(r->filter.threshold_down);
    SHOW(r->weight), SHOW(r->is_failure_left_out), SHOW(r->terms.format_pattern);
    show_texts(out, r->terms.format_tags, r->terms.num_format_tags);
    SHOW(r->terms.overlong_tokens), SHOW(r->terms.max_response_tokens);
    SHOW(r->terms.overlong_factor), SHOW(r->terms.repetition_n_grams);
    SHOW(r->terms.repetition_max_penalty), SHOW(r->terms.iou_threshold), SHOW(r->terms.num_steps);
    SHOW(r->filter.threshold_up), SHOW(r->filter.std_threshold);
    SHOW(r->judge.url), SHOW(r->judge.model), SHOW(r->judge.key_file), SHOW(r->judge.key_env);
    SHOW(r->judge.ca_file), SHOW(r->judge.connections), SHOW(r->judge_prompt);
    SHOW(r->judge_fields), SHOW(r->judge_answer.pattern), SHOW(r->judge_answer.field);
    show_worker(out, &r->judge_model);
    show_worker(out, &r->model);
    SHOW(r->reward_manager);
    SHOW(r->judge_answer.min), SHOW(r->judge_answer.max), SHOW(r->judge_answer.is_number);
    SHOW(r->code.service.url), SHOW(r->code.use_local), SHOW(r->code.is_open);
    SHOW(r->code.interpreter), SHOW(r->code.case_timeout), SHOW(r->code.case_memory_mb);
}

static void show_correction(cr_buf *out, const cr_correction_config *k)
{
    SHOW(k->has_weight), SHOW(k->weight_type), SHOW(k->upper_bound);
    for (size_t i = 0; i < k->num_filters; i++) {
        const struct cr_correction_filter *f = &k->filters[i];
        SHOW(f->is_enabled), SHOW(f->is_ratio), SHOW(f->is_diff), SHOW(f->agg_type);
        SHOW(f->ratio_low), SHOW(f->ratio_high), SHOW(f->diff_low), SHOW(f->diff_high);
    }
}

static void show_loss(cr_buf *out, const cr_loss_config *l)
{
    SHOW(l->pg_variant), SHOW(l->topr_positive_weight), SHOW(l->topr_negative_weight);
    SHOW(l->tis_lower_bound), SHOW(l->tis_upper_bound), SHOW(l->cispo_epsilon_low);
    SHOW(l->cispo_epsilon_high), SHOW(l->kimi15_tau), SHOW(l->dppo_mask_low);
    SHOW(l->dppo_mask_high), SHOW(l->dppo_clip_ratio_c), SHOW(l->sapo_temperature_pos);
    SHOW(l->sapo_temperature_neg), SHOW(l->cispo_use_unified_mask);
    SHOW(l->is_sequence_ratio), SHOW(l->loss_agg_mode), SHOW(l->pg_clip), SHOW(l->pg_clip_low);
    SHOW(l->pg_clip_high), SHOW(l->use_pg_clip_range), SHOW(l->dual_clip_loss);
    SHOW(l->use_kl_loss), SHOW(l->kl_loss_coef), SHOW(l->rl_loss_coef);
    SHOW(l->entropy_loss_coef);
}

static void show_advantage(cr_buf *out, const cr_advantage_config *a)
{
    SHOW(a->adv_estimator), SHOW(a->norm_mean_type), SHOW(a->norm_std_type), SHOW(a->gamma);
    SHOW(a->lambd);
    SHOW(a->reward_clip), SHOW(a->advantage_clip), SHOW(a->whiten_rewards);
    SHOW(a->whiten_advantages), SHOW(a->add_token_level_kl), SHOW(a->kl_penalty), SHOW(a->kl_coef);
    SHOW(a->opd), SHOW(a->opd_kl_coef), SHOW(a->aggregation);
}

static void show_algorithm(cr_buf *out, const cr_algorithm *a)
{
    const cr_mask_config *m = &a->masks;

    show_advantage(out, &a->advantage);
    SHOW(m->max_len_mask), SHOW(m->difficulty_mask), SHOW(m->error_max_len_clip);
    SHOW(m->difficulty_low_threshold), SHOW(m->difficulty_high_threshold);
    SHOW(m->error_max_len_threshold);
    show_loss(out, &a->loss);
    show_correction(out, &a->correction);
    SHOW(a->target_kl), SHOW(a->kl_horizon), SHOW(a->max_grad_norm), SHOW(a->ppo_epochs);
    SHOW(a->critic_warmup), SHOW(a->has_target_kl), SHOW(a->difficulty_loss_weight);
    SHOW(a->length_loss_weight), SHOW(a->value_clip);
}

static void show(cr_buf *out, const cr_config *c)
{
    SHOW(c->kind), SHOW(c->exp_name), SHOW(c->output_dir), SHOW(c->checkpoint_dir);
    SHOW(c->checkpoint_hosts);
    SHOW(c->logging_dir), SHOW(c->tracker_log_dir), SHOW(c->pretrain), SHOW(c->track_with);
    SHOW(c->track_program), SHOW(c->seed), SHOW(c->max_steps), SHOW(c->save_steps);
    SHOW(c->eval_steps), SHOW(c->logging_steps), SHOW(c->max_ckpt_to_keep);
    SHOW(c->device), SHOW(c->num_gpus_per_node);
    SHOW(c->max_failed_reward_steps), SHOW(c->resume), SHOW(c->rollout_batch_size);
    SHOW(c->group_size), SHOW(c->prompt_length), SHOW(c->sequence_length);
    SHOW(c->max_running_requests), SHOW(c->val_prompt_length), SHOW(c->model_update_frequency);
    SHOW(c->reference.is_needed), SHOW(c->enable_old_logprobs_recompute), SHOW(c->old_log_probs);
    for (size_t i = 0; i < c->templates.num_tags; i++)
        SHOW(c->templates.of_tag[i].tag), SHOW(c->templates.of_tag[i].template);
    SHOW(c->logprobs_mode), SHOW(c->global_template), SHOW(c->rows.prompt_key);
    SHOW(c->rows.response_key), SHOW(c->rows.query_key), SHOW(c->rows.system_key);
    SHOW(c->rows.question_template);
    SHOW(c->rows.chosen_key), SHOW(c->rows.rejected_key), SHOW(c->rows.keeps_reference);
    SHOW(c->pairs.loss_type), SHOW(c->pairs.beta), SHOW(c->pairs.label_smoothing);
    SHOW(c->pairs.rpo_alpha);
    SHOW(c->distill.kd.kd_objective), SHOW(c->distill.kd.logits_topk), SHOW(c->distill.kd.is_tail);
    SHOW(c->distill.kd.kd_temperature), SHOW(c->distill.kd.teacher_temperature);
    SHOW(c->distill.kd.adaptive_kl_alpha), SHOW(c->distill.kd.skew_lambda);
    SHOW(c->distill.distill_loss_weight), SHOW(c->distill.distill_on_prompt);
    SHOW(c->best.metric), SHOW(c->best.is_greater_better), SHOW(c->best.patience);
    SHOW(c->best.threshold), SHOW(c->follow.steps), SHOW(c->follow.alpha);
    SHOW(c->curriculum.max_solved), SHOW(c->curriculum.solved_score);
    SHOW(c->curriculum.easy_threshold), SHOW(c->curriculum.easy_fraction);
    SHOW(c->curriculum.hard_threshold), SHOW(c->curriculum.hard_fraction);
    SHOW(c->rows.shuffle), SHOW(c->reference.is_given), SHOW(c->has_validation);
    show_algorithm(out, &c->algorithm);
    show_envs(out, c->envs);
    show_worker(out, &c->train);
    show_worker(out, &c->infer);
    show_worker(out, &c->reference);
    show_worker(out, &c->teacher);
    SHOW(c->teachers[0].num_tags);
    show_worker(out, &c->critic);
    show_worker(out, &c->validation);
    for (size_t i = 0; i < c->num_rewards; i++)
        show_reward(out, &c->rewards[i]);
    SHOW(c->exchange.url), SHOW(c->exchange.prefix), SHOW(c->exchange.ca_file);
    SHOW(c->exchange.timeout), SHOW(c->exchange.cert_file), SHOW(c->exchange.key_file),
        SHOW(c->collective_timeout);
    SHOW(c->reward_timeout), SHOW(c->rpc_timeout), SHOW(c->val_only), SHOW(c->val_adapter),
        SHOW(c->rollouts_from);
}

/* ---- files where keys apply ---- */

static const char rlvr[] =
    "exp_name: keys\n"
    "rollout_batch_size: 8\n"
    "num_return_sequences_in_group: 4\n"
    "prompt_length: 16\n"
    "response_length: 16\n"
    "adv_estimator: reinforce\n"
    "pretrain: somewhere\n"
    "actor_train:\n"
    "  data_args: {file_name: [a.jsonl], messages: messages, domain_interleave_probs: {math_rule: "
    "1}}\n"
    "  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 1}\n"
    "  strategy_args: {strategy_name: fsdp2_train}\n"
    "  device_mapping: \"[0, 1, 2, 3]\"\n"
    "actor_infer:\n"
    "  strategy_args: {strategy_name: vllm}\n"
    "  device_mapping: \"[4]\"\n"
    "reference: {device_mapping: \"[5]\"}\n"
    "validation: {data_args: {file_name: [b.jsonl]}}\n"
    "rewards:\n"
    "  math_rule: {tag_included: [x]}\n"
    "  ifeval: {world_size: 2}\n";

static const char sft[] = "pretrain: somewhere\n"
                          "sequence_length: 32\n"
                          "sft_train:\n"
                          "  data_args: {file_name: [a.jsonl]}\n"
                          "  device_mapping: \"[0]\"\n"
                          "validation: {data_args: {file_name: [b.jsonl]}}\n";

static const char dpo[] = "pretrain: somewhere\n"
                          "sequence_length: 32\n"
                          "beta: 0.1\n"
                          "actor_train:\n"
                          "  data_args: {file_name: [a.jsonl]}\n"
                          "  device_mapping: \"[0]\"\n"
                          "reference: {device_mapping: \"[0]\"}\n";

static const char distill[] = "student_pretrain: somewhere\n"
                              "teacher_pretrain: elsewhere\n"
                              "sequence_length: 32\n"
                              "student:\n"
                              "  data_args: {file_name: [a.jsonl]}\n"
                              "  device_mapping: \"[0]\"\n"
                              "teacher: {device_mapping: \"[0]\"}\n";

/* Where a block stands. */
static const struct {
    const char *block, *prefix;
} places[] = {
    {"run", ""},
    {"rlvr", ""},
    {"sft", ""},
    {"dpo", ""},
    {"distill", ""},
    {"exchange", "exchange."},
    {"checkpoint", "checkpoint_config."},
    {"router", "router_args."},
    {"correction", "train_infer_correction."},
    {"curriculum", "curriculum."},
    {"is_weight", "train_infer_correction.is_weight."},
    {"worker", "actor_train."},
    {"model_args", "actor_train.model_args."},
    {"training_args", "actor_train.training_args."},
    {"muon", "actor_train.training_args.muon_args."},
    {"data_args", "actor_train.data_args."},
    {"generating_args", "actor_infer.generating_args."},
    {"strategy_args", "actor_infer.strategy_args."},
    {"engine", "actor_infer.strategy_args.strategy_config."},
    {"fsdp2", "actor_train.strategy_args.strategy_config."},
    {"wrap_policy", "actor_train.strategy_args.strategy_config.wrap_policy."},
    {"teacher", "teacher."},
    {"service", "reference.service."},
    {"reward", "rewards.math_rule."},
    {"judge", "rewards.math_rule.judge."},
    {"judge_answer", "rewards.math_rule.judge_answer."},
    {"judge_model", "rewards.ifeval."},
    {"reward_model", "rewards.ifeval."},
    {"remote", "rewards.math_rule.remote."},
    {"overlong", "rewards.math_rule.overlong_buffer."},
    {"query_filter", "rewards.math_rule.query_filter_config."},
    {"filter_args", "rewards.math_rule.query_filter_config.filter_args."},
};

#define OWN_JUDGE                                                                            \
    "rewards.ifeval={worker_cls: roll.x.LLMJudgeRewardWorker, judge_model_type: inference, " \
    "model_args: {model_name_or_path: judge}, device_mapping: [5, 6]}"
#define REWARD_MODEL                                    \
    "rewards.ifeval={worker_cls: roll.x.RewardWorker, " \
    "model_args: {model_name_or_path: judge}, device_mapping: [5, 6]}"
#define FORMAT "rewards.math_rule.worker_cls=FormatRuleRewardWorker"
#define LENGTH "rewards.math_rule.worker_cls=LengthRuleRewardWorker"
#define CRITIC           \
    "adv_estimator=gae", \
        "critic={device_mapping: [6], training_args: {gradient_accumulation_steps: 4}}"
#define TEACHER "teacher={model_args: {model_name_or_path: larger}, device_mapping: [6]}"

/* Keys with a value that the type alone does not give, and what else the file must say for them. */
static const struct {
    const char *block, *name, *value, *with[3];
} values[] = {
    {"run", "tracker_kwargs", "{log_dir: there}", {NULL}},
    {"run",
     "as_fsdp2",
     "true",
     {"reference={strategy_args: {strategy_name: megatron_infer}, device_mapping: [6]}"}},
    {"run", "device", "cuda", {NULL}}, /* the first one is what is taken without the key */
    {"run", "resume_from_checkpoint", "true", {NULL}},
    {"run", "system_envs", "{A: b}", {NULL}},
    {"run", "sequence_length", "40", {NULL}},
    {"run", "global_template", "chatml", {NULL}},
    {"rlvr", "response_length", "24", {NULL}},
    {"rlvr", "adv_estimator", "grpo", {NULL}},
    {"rlvr", "lambd", "0.5", {CRITIC}},
    {"rlvr", "value_clip", "0.5", {CRITIC}},
    {"rlvr", "reward_pretrain", "larger", {CRITIC}},
    {"model_args", "model_type", "trl", {NULL}}, /* of actor_train: a note */
    {"rlvr", "gamma", "0.5", {NULL}},
    {"distill", "question_template", "asked {Question}", {NULL}},
    {"run", "greater_is_better", "false", {"metric_for_best_model=val_score/all/mean"}},
    {"run", "early_stopping_threshold", "0.5", {"early_stopping_patience=3"}},
    {"rlvr", "val_adapter", "there", {"val_only=true"}},
    {"rlvr", "rollouts_from", "there", {"validation=null"}},
    {"rlvr", "multi_objective_aggregation", "normalize_then_sum", {"adv_estimator=grpo"}},
    {"filter", "enabled", "true", {NULL}},
    {"rlvr", "val_prompt_length", "24", {"val_prompt_length=20", "val_sequence_length=40"}},
    {"rlvr", "val_sequence_length", "48", {"val_prompt_length=24", "val_sequence_length=40"}},
    {"rlvr", "rollout_batch_size", "16", {NULL}},
    {"rlvr", "num_return_sequences_in_group", "8", {NULL}},
    {"rlvr", "async_generation_ratio", "1", {"actor_infer.device_mapping=[6, 7]"}},
    {"rlvr", "enable_reference", "true", {"init_kl_coef=0"}},
    {"rlvr",
     "force_disable_old_logprobs_recompute",
     "true",
     {"enable_old_logprobs_recompute=true"}},
    {"rlvr", "use_rollout_log_probs", "false", {NULL}},
    {"rlvr", "pure_opd_pipeline_type", "agentic", {NULL}},
    {"teacher", "opd_kl_coef", "0.5", {TEACHER, "use_opd=true"}},
    {"teacher", "tag_included", "[x]", {TEACHER, "use_opd=true"}},
    {"worker", "worker_cls", "my.own.Worker", {NULL}},
    {"worker", "pg_variant", "tis", {NULL}}, /* the first one is the loss without the key */
    {"worker", "device_mapping", "\"[0, 1]\"", {NULL}},
    {"worker", "system_envs", "{A: b}", {NULL}},
    {"worker",
     "max_tokens_per_microbatch_in_train",
     "99",
     {"actor_train.use_dynamic_batching_in_train=true",
      "actor_train.max_tokens_per_microbatch_in_train=64"}},
    {"worker",
     "max_tokens_per_microbatch_in_infer",
     "99",
     {"actor_train.use_dynamic_batching_in_infer=true",
      "actor_train.max_tokens_per_microbatch_in_infer=64"}},
    {"worker",
     "use_dynamic_batching_in_train",
     "true",
     {"actor_train.max_tokens_per_microbatch_in_train=64"}},
    {"worker",
     "use_dynamic_batching_in_infer",
     "true",
     {"actor_train.max_tokens_per_microbatch_in_infer=64"}},
    {"model_args", "ulysses_size", "2", {NULL}},
    {"model_args", "lora_rank", "4", {"actor_train.model_args.lora_target=q_proj"}},
    {"model_args", "lora_alpha", "4", {"actor_train.model_args.lora_target=q_proj"}},
    {"model_args", "use_rslora", "true", {"actor_train.model_args.lora_target=q_proj"}},
    {"model_args", "adapter_name_or_path", "folder", {NULL}},
    {"model_args", "lora_dropout", "0.1", {"actor_train.model_args.lora_target=q_proj"}},
    {"model_args", "additional_target", "norm", {"actor_train.model_args.lora_target=q_proj"}},
    {"training_args", "per_device_train_batch_size", "2", {NULL}},
    {"training_args", "gradient_accumulation_steps", "2", {NULL}},
    {"training_args", "warmup_ratio", "0.5", {NULL}},
    {"training_args", "adam_beta1", "0.5", {NULL}},
    {"training_args",
     "lr_scheduler_kwargs",
     "{num_cycles: 2}",
     {"actor_train.training_args.lr_scheduler_type=cosine"}},
    {"muon", "momentum", "0.5", {NULL}},
    {"training_args", "optim", "muon", {NULL}},
    {"training_args", "param_groups", "[{params: a, weight_decay: 0.5}]", {NULL}},
    {"generating_args", "top_p", "0.5", {NULL}},
    {"training_args", "adam_beta2", "0.5", {NULL}},
    {"data_args",
     "prompt",
     "text",
     {"actor_train.data_args.messages=null", "actor_train.data_args.prompt=first"}},
    {"data_args", "messages", "chat", {NULL}},
    {"data_args", "columns", "{a: [{path: b, after: c}, {value: d, role: e}]}", {NULL}},
    {"data_args", "domain_interleave_probs", "{math_rule: 0.5, ifeval: 0.5}", {NULL}},
    {"generating_args", "max_new_tokens", "5", {NULL}},
    {"generating_args", "num_return_sequences", "5", {NULL}},
    {"generating_args", "stop_token_ids", "[5, 7]", {NULL}},
    {"rlvr", "tag_to_template", "{x: chatml}", {NULL}},
    {"strategy_args", "strategy_name", "sglang", {NULL}},
    {"strategy_args", "strategy_config", "{max_model_len: 50}", {NULL}},
    {"engine", "gpu_memory_utilization", "0.5", {NULL}},
    {"fsdp2", "gpu_memory_utilization", "0.5", {NULL}},
    {"fsdp2", "fsdp_size", "2", {NULL}},
    {"fsdp2",
     "ep_size",
     "2",
     {"actor_train.strategy_args.strategy_config.wrap_policy.moe_experts=[E]"}},
    {"fsdp2", "efsdp_size", "2", {NULL}},
    {"fsdp2", "reshard_after_forward", "2", {NULL}},
    {"fsdp2", "output_dtype", "bf16", {NULL}},
    {"fsdp2", "buffer_dtype", "bf16", {NULL}},
    {"fsdp2", "param_dtype", "fp32", {NULL}},
    {"fsdp2", "master_dtype", "bf16", {NULL}},
    {"fsdp2",
     "tiled_num_shards",
     "8",
     {"actor_train.strategy_args.strategy_config.apply_tiled_mlp=true"}},
    {"service", "url", "https://other", {NULL}},
    {"judge", "url", "https://other", {NULL}},
    {"judge", "extra_body", "{max_tokens: 5}", {NULL}},
    {"remote", "url", "https://other", {NULL}},
    {"reward", "reward_manager_config", "[a]", {"rewards.math_rule.remote=http://host"}},
    {"judge_answer", "pattern", "(?<yes>a)|(?<no>b)", {NULL}},
    {"judge_answer", "least", "2", {"rewards.math_rule.judge_answer.most=5"}},
    {"reward", "judge_prompt", "is {response} right?", {"rewards.math_rule.judge=http://host"}},
    {"reward", "judge_model_type", "inference", {NULL}},
    {"judge_model", "device_mapping", "[7]", {OWN_JUDGE}},
    {"reward_model", "device_mapping", "[7]", {REWARD_MODEL}},
    {"reward_model", "infer_batch_size", "5", {REWARD_MODEL}},
    {"reward",
     "code_url",
     "http://other",
     {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "use_local", "true", {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "sandbox", "none", {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "interpreter", "node", {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "case_timeout", "3", {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "case_memory_mb", "100", {"rewards.math_rule.worker_cls=CodeSandboxRewardWorker"}},
    {"reward", "judge_model_name", "other", {"rewards.math_rule.judge=http://host"}},
    {"reward", "judge_api_url", "http://other", {"rewards.math_rule.judge_api_url=http://host"}},
    {"reward", "worker_cls", "roll.x.MultipleChoiceBoxedRuleRewardWorker", {NULL}},
    {"reward", "exec", "cat", {NULL}},
    {"reward", "format_pattern", "(a|b)+", {FORMAT}},
    {"reward", "format_tags", "[think]", {FORMAT}},
    {"reward", "det_iou_threshold", "0.75", {"rewards.math_rule.worker_cls=DetectionRewardWorker"}},
    {"overlong", "len", "5", {LENGTH, "rewards.math_rule.overlong_buffer.len=4"}},
    {"overlong", "penalty_factor", "2", {LENGTH, "rewards.math_rule.overlong_buffer.len=4"}},
    {"reward", "system_envs", "{A: b}", {NULL}},
    {"reward", "max_in_flight", "2", {"rewards.math_rule.exec=cat"}},
    {"correction", "filters", "[{enabled: true}]", {NULL}},
    {"router", "router_name", "EnvAffinityRouter", {NULL}},
    {"checkpoint", "type", "oss", {NULL}},
};

/* ---- the test ---- */

static const char *const texts[] = {rlvr, sft, dpo, distill};
static char files[CR_COUNT(texts)][64];

typedef struct seen {
    cr_buf config, said;
    size_t num_errors;
    char first_error[300];
} seen;

static seen look(const char *path, const char *const *overrides, size_t num)
{
    cr_config c;
    cr_diagnostics d = {0};
    cr_err err = {0};
    seen s = {0};

    cr_note(cr_config_load(path, overrides, num, &c, &d, &err));
    show(&s.config, &c);
    for (size_t i = 0; i < d.num; i++) {
        cr_buf_addf(&s.said, "%s;", d.items[i].text);
        if (d.items[i].severity == CR_ERROR && s.num_errors++ == 0)
            snprintf(s.first_error, sizeof s.first_error, "%s", d.items[i].text);
    }
    cr_diagnostics_free(&d);
    cr_config_free(&c);
    return s;
}

static bool same(const cr_buf *a, const cr_buf *b)
{
    return a->num_bytes == b->num_bytes &&
           memcmp(a->data ? a->data : "", b->data ? b->data : "", a->num_bytes) == 0;
}

/* A legal value that is not the default. */
static char *other_value(const cri_key *k)
{
    const char *s = k->standard, *p = k->range;

    switch (k->type) {
    case CRI_BOOL:
        return cr_strdup(s && strcmp(s, "true") == 0 ? "false" : "true");
    case CRI_INT:
        return cr_asprintf("%lld", s ? atoll(s) + 1 : 37);
    case CRI_REAL:
    case CRI_OPTIONAL:
        return cr_asprintf("%.17g", s ? atof(s) + 0.125 : 0.625);
    case CRI_CHOICE:
    case CRI_DTYPE:
        for (;; p = strchr(p, '|') + 1) {
            size_t n = strcspn(p, "|");
            if (*p != '!' && !(s && strlen(s) == n && strncmp(p, s, n) == 0))
                return cr_strndup(p, n);
            if (!strchr(p, '|')) return cr_strdup("");
        }
    case CRI_TEXTS:
        return cr_strdup("[Other]");
    default:
        return cr_strdup("other");
    }
}

#define GROUP(keys) "actor_train.training_args.param_groups=[{" keys "}]"

static char *group_with(const char *key, const char *value)
{
    const bool is_params = strcmp(key, "params") == 0, is_rate = strcmp(key, "learning_rate") == 0,
               is_optim = strcmp(key, "optim") == 0;

    return cr_asprintf(GROUP("params: %s, learning_rate: %s, weight_decay: %s, optim: %s"),
                       is_params ? value : "a", is_rate ? value : "0.25",
                       !is_params && !is_rate && !is_optim ? value : "0.25",
                       is_optim ? value : "null");
}

static int num_bad, num_later; /* of blocks that are not available yet */
#define BAD(...) (num_bad++, print_error(__VA_ARGS__), print_error("\n"))

static void check_key(const cri_key *k, const char *prefix)
{
    const char *overrides[5] = {NULL}, *path = files[strcmp(k->block, "distill") == 0 ? 3
                                                     : strcmp(k->block, "dpo") == 0   ? 2
                                                     : strcmp(k->block, "sft") == 0   ? 1
                                                                                      : 0];
    char *value = NULL, *last;
    size_t num = 0;
    bool is_later;
    seen before, after;

    for (size_t i = 0; i < CR_COUNT(values) && !value; i++) {
        if (strcmp(values[i].block, k->block) != 0 || strcmp(values[i].name, k->name) != 0)
            continue;
        value = cr_strdup(values[i].value);
        while (num < 3 && values[i].with[num])
            overrides[num] = values[i].with[num], num++;
    }
    if (!value) value = other_value(k);
    if (strcmp(k->block, "filter") == 0 && strcmp(k->name, "enabled") != 0)
        overrides[num++] = "train_infer_correction.filters=[{enabled: true}]";
    if (strcmp(k->block, "service") == 0)
        overrides[num++] = "reference={service: {url: http://host}}";
    if (strcmp(k->block, "muon") == 0 ||
        (strcmp(k->block, "param_group") == 0 && strcmp(k->name, "optim") == 0))
        overrides[num++] = "actor_train.training_args.optim=muon";
    if (strcmp(k->block, "remote") == 0)
        overrides[num++] = "rewards.math_rule.remote={url: http://host}";
    if (strncmp(k->block, "judge", 5) == 0)
        overrides[num++] = "rewards.math_rule.judge={url: http://host}";
    before = look(path, overrides, num);
    if (strcmp(k->block, "param_group") == 0)
        overrides[num++] = GROUP("params: a, learning_rate: 0.25, weight_decay: 0.25");
    last = strcmp(k->block, "param_group") == 0 ? group_with(k->name, value)
           : strcmp(k->block, "filter") != 0    ? cr_asprintf("%s%s=%s", prefix, k->name, value)
           : num == 0 ? cr_asprintf("train_infer_correction.filters=[{enabled: %s}]", value)
                      : cr_asprintf("train_infer_correction.filters=[{enabled: true, %s: %s}]",
                                    k->name, value);
    overrides[num++] = last;
    after = look(path, overrides, num);
    is_later = strstr(after.first_error, "not available yet") && strncmp(k->text, "the check", 9);
    num_later += is_later;
    if (before.num_errors && !is_later) BAD("%s: the file is wrong: %s", last, before.first_error);
    if (strncmp(k->text, "the check", 9) == 0) {
        if (same(&before.said, &after.said)) BAD("%s: nothing is said of it", last);
    } else if (!is_later) {
        if (after.num_errors) BAD("%s is not a legal value: %s", last, after.first_error);
        if (same(&before.config, &after.config) && same(&before.said, &after.said))
            BAD("%s.%s is said to be read by %s, and %s changes nothing", k->block, k->name,
                k->text, last);
    }
    cr_buf_free(&before.config), cr_buf_free(&before.said);
    cr_buf_free(&after.config), cr_buf_free(&after.said);
    cr_free(last);
    cr_free(value);
}

static void every_key_that_is_read_has_an_effect(void **state)
{
    size_t num = 0;

    (void)state;
    for (size_t i = 0; i < cri_num_keys; i++) {
        const cri_key *k = &cri_keys[i];
        const char *prefix =
            strcmp(k->block, "filter") == 0 || strcmp(k->block, "param_group") == 0 ? "" : NULL;
        if (k->state != CRI_READ || k->type == CRI_BLOCK || k->type == CRI_BLOCKS) continue;
        for (size_t p = 0; p < CR_COUNT(places); p++)
            if (strcmp(places[p].block, k->block) == 0) prefix = places[p].prefix;
        if (!prefix) fail_msg("where does the block %s stand?", k->block);
        check_key(k, prefix);
        num++;
    }
    assert_true(num > 120);
    assert_int_equal(num_bad, 0);
    assert_true(num_later == 0);
}

static int write_files(void **state)
{
    cr_err err = {0};

    (void)state;
    for (int i = 0; i < (int)CR_COUNT(texts); i++) {
        snprintf(files[i], sizeof files[i], "/tmp/configs_effect_%d_%d.yaml", (int)getpid(), i);
        if (cr_file_write_atomic(files[i], texts[i], strlen(texts[i]), &err) != CR_OK) return -1;
    }
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    return unlink(files[0]) | unlink(files[1]) | unlink(files[2]) | unlink(files[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_that_is_read_has_an_effect),
    };

    return cmocka_run_group_tests(tests, write_files, remove_files);
}
