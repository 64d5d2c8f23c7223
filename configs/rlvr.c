/* rlvr.c -- the rlvr pipeline: rewards, lengths, the algorithm, and rules across keys. */
#include "configs/bind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- rewards ---- */

static void bind_reward(cr_config *c, struct cr_item *item, cr_reward_config *r, cr_diagnostics *d)
{
    cr_node *block = item->value, *filter = cr_node_get(block, "query_filter_config"),
            *args = cr_node_get(filter, "filter_args");
    char *cls = cri_text_of(block, "worker_cls"), *type = cri_text_of(filter, "type");
    const char *last = cls ? strrchr(cls, '.') : NULL;

    r->domain = cr_strdup(item->key);
    r->exec = cri_text_of(block, "exec");
    r->tags = cri_texts_of(block, "tag_included", &r->num_tags);
    r->world_size = cri_int_of(block, "world_size", 1);
    r->reward_type = cri_text_of(block, "reward_type");
    r->format_pattern = cri_text_of(block, "format_pattern");
    r->response_length_penalty_coef = cri_real_of(block, "response_length_penalty_coef", 0);
    r->filter.type = !type || strcmp(type, "no_filter") == 0 ? CR_FILTER_NONE
                     : strcmp(type, "mean_filter") == 0      ? CR_FILTER_MEAN
                                                             : CR_FILTER_STD;
    r->filter.threshold_down = cri_real_of(args, "threshold_down", -1);
    r->filter.threshold_up = cri_real_of(args, "threshold_up", INFINITY);
    r->filter.std_threshold = cri_real_of(args, "std_threshold", -1);
    last = last ? last + 1 : cls;
    for (size_t i = 0; i < cri_num_reward_classes && !r->exec; i++) {
        const cri_reward_class *k = &cri_reward_classes[i];
        if (last ? strcmp(last, k->cls) != 0 : strcmp(item->key, k->rule) != 0) continue;
        if (!k->is_there) {
            cr_diagnose(d, CR_ERROR, cls ? cr_node_get(block, "worker_cls")->place : item->place,
                        "rewards.%s: %s is not available yet", item->key, k->cls);
            r->rule = "?";
        } else {
            r->rule = k->rule;
        }
    }
    if (!r->rule && !r->exec)
        cr_diagnose(d, CR_ERROR, cls ? cr_node_get(block, "worker_cls")->place : item->place,
                    "rewards.%s: worker_cls %s is no reward class we know (a ROLL rule's class, or "
                    "exec: PROGRAM)",
                    item->key, cls ? cls : "is missing and the domain's name");
    if (r->rule && strcmp(r->rule, "crossthinkqa") == 0 && !r->reward_type)
        cr_diagnose(d, CR_ERROR, item->place,
                    "rewards.%s: reward_type is needed (loose, soft or strict)", item->key);
    cr_free(cls);
    cr_free(type);
    (void)c;
}

static void bind_rewards(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_node *rewards = cr_node_get(root, "rewards"),
            *probs = cr_node_at(root, "actor_train.data_args.domain_interleave_probs");

    if (!rewards || rewards->kind != CR_NODE_MAP) return;
    c->rewards = CR_NEW_ARRAY(cr_reward_config, rewards->num);
    c->num_rewards = rewards->num;
    for (size_t i = 0; i < rewards->num; i++) {
        if (rewards->items[i].value->kind == CR_NODE_MAP)
            bind_reward(c, &rewards->items[i], &c->rewards[i], d);
        else
            c->rewards[i].domain = cr_strdup(rewards->items[i].key);
        if (!probs || probs->kind != CR_NODE_MAP)
            c->rewards[i].probability = i == 0;
        else
            c->rewards[i].probability = cri_real_of(probs, c->rewards[i].domain, 0);
    }
    for (size_t i = 0; probs && probs->kind == CR_NODE_MAP && i < probs->num; i++)
        if (!cr_node_get(rewards, probs->items[i].key))
            cr_diagnose(d, CR_ERROR, probs->items[i].place,
                        "domain_interleave_probs: the domain %s has no block in rewards",
                        probs->items[i].key);
}

/* ---- rlvr ---- */

static void derive_lengths(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    int64_t response = cri_int_of(root, "response_length", 0),
            total = cri_int_of(root, "sequence_length", 0);
    bool has_prompt = cri_int_of(root, "val_prompt_length", 0) > 0,
         has_total = cri_int_of(root, "val_sequence_length", 0) > 0;

    c->prompt_length = cri_int_of(root, "prompt_length", 1024);
    c->val_prompt_length = cri_int_of(root, "val_prompt_length", c->prompt_length);
    if (!response && !total)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1},
                    "response_length or sequence_length must be given");
    c->sequence_length = total ? total : c->prompt_length + response;
    if ((response || total) && c->sequence_length <= c->prompt_length)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sequence_length"),
                    "sequence_length %lld leaves no room for an answer behind prompt_length %lld",
                    (long long)c->sequence_length, (long long)c->prompt_length);
    cri_set_int(c, root, "sequence_length", c->sequence_length);
    if (has_prompt != has_total)
        cr_diagnose(d, CR_ERROR,
                    cri_place_of(c, has_prompt ? "val_prompt_length" : "val_sequence_length"),
                    "val_prompt_length and val_sequence_length are given both or neither");
}

static void derive_models(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    static const char *const roles[] = {"actor_train", "actor_infer", "reference"};
    char dotted[80];
    const cr_node *pretrain = cr_node_get(root, "pretrain");
    bool has_pretrain = pretrain && pretrain->kind == CR_NODE_TEXT;

    for (size_t i = 0; i < CR_COUNT(roles); i++) {
        cr_node *args =
            (snprintf(dotted, sizeof dotted, "%s.model_args", roles[i]), cr_node_at(root, dotted));
        cr_node *block = cr_node_get(root, roles[i]),
                *path = cr_node_get(args, "model_name_or_path");
        if (!block || block->kind != CR_NODE_MAP) continue;
        if (!args || args->kind != CR_NODE_MAP)
            args = cri_block_of(c, block, "model_args", "model_args", d);
        if (path && path->kind == CR_NODE_TEXT)
            continue; /* ROLL loses a reference path of its own here */
        if (has_pretrain)
            cri_set_text(c, args, "model_name_or_path", pretrain->text);
        else
            cr_diagnose(d, CR_ERROR, block->place,
                        "%s has no model: give pretrain, or %s.model_args.model_name_or_path",
                        roles[i], roles[i]);
    }
}

static void bind_algorithm(cr_node *root, cr_algorithm *a)
{
    a->adv_estimator = cri_text_of(root, "adv_estimator");
    a->loss_agg_mode = cri_text_of(root, "loss_agg_mode");
    a->importance_sampling = cri_text_of(root, "importance_sampling");
    a->kl_penalty = cri_text_of(root, "kl_penalty");
    a->norm_mean_type = cri_text_of(root, "norm_mean_type");
    a->norm_std_type = cri_text_of(root, "norm_std_type");
    a->gamma = cri_real_of(root, "gamma", 1);
    a->lambd = cri_real_of(root, "lambd", 0.95);
    a->pg_clip = cri_real_of(root, "pg_clip", 0.2);
    a->pg_clip_low = cri_real_of(root, "pg_clip_low", 0.2);
    a->pg_clip_high = cri_real_of(root, "pg_clip_high", 0.2);
    a->kl_loss_coef = cri_real_of(root, "kl_loss_coef", 0);
    a->init_kl_coef = cri_real_of(root, "init_kl_coef", 0.2);
    a->has_target_kl = cr_node_get(root, "target_kl")->kind == CR_NODE_REAL;
    a->target_kl = cri_real_of(root, "target_kl", 0);
    a->kl_horizon = cri_real_of(root, "kl_horizon", 10000);
    a->entropy_loss_coef = cri_real_of(root, "entropy_loss_coef", 0);
    a->rl_loss_coef = cri_real_of(root, "rl_loss_coef", 1);
    a->reward_clip = cri_real_of(root, "reward_clip", 0);
    a->advantage_clip = cri_real_of(root, "advantage_clip", 0);
    a->difficulty_low_threshold = cri_real_of(root, "difficulty_low_threshold", 0);
    a->difficulty_high_threshold = cri_real_of(root, "difficulty_high_threshold", 1);
    a->ppo_epochs = cri_int_of(root, "ppo_epochs", 1);
    a->error_max_len_threshold = cri_int_of(root, "error_max_len_threshold", 9999999999);
    a->use_pg_clip_range = cri_flag_of(root, "use_pg_clip_range");
    a->dual_clip_loss = cri_flag_of(root, "dual_clip_loss");
    a->add_token_level_kl = cri_flag_of(root, "add_token_level_kl");
    a->use_kl_loss = cri_flag_of(root, "use_kl_loss");
    a->whiten_rewards = cri_flag_of(root, "whiten_rewards");
    a->whiten_advantages = cri_flag_of(root, "whiten_advantages");
    a->max_len_mask = cri_flag_of(root, "max_len_mask");
    a->difficulty_mask = cri_flag_of(root, "difficulty_mask");
    a->error_max_len_clip = cri_flag_of(root, "error_max_len_clip");
}

/* Rules that tie the keys of an rlvr file together. */
static void check_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_algorithm *a = &c->algorithm;
    double async = cri_real_of(root, "async_generation_ratio", 0);
    int64_t rows = c->rollout_batch_size * c->group_size,
            dp = c->train.num_devices / (c->train.ulysses_size ? c->train.ulysses_size : 1);
    int64_t mini = c->train.per_device_train_batch_size * c->train.gradient_accumulation_steps;

    if (async > 0 && async < 1)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "async_generation_ratio"),
                    "async_generation_ratio must be 0 or at least 1");
    else if (async > 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "async_generation_ratio"),
                    "async_generation_ratio: asynchronous rollouts are not available yet");
    if (a->adv_estimator && strcmp(a->adv_estimator, "gae") == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "adv_estimator"),
                    "adv_estimator: gae needs a critic, which is not available yet (use grpo or "
                    "reinforce)");
    if (a->kl_penalty && strcmp(a->kl_penalty, "full") == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "kl_penalty"),
                    "kl_penalty: full needs whole distributions and is not available yet");
    if (a->norm_std_type && strcmp(a->norm_std_type, "group") == 0 && a->norm_mean_type &&
        strcmp(a->norm_mean_type, "group") != 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "norm_std_type"),
                    "norm_std_type: group goes with norm_mean_type group");
    if (cri_flag_of(root, "is_use_additional_prompts") &&
        cri_int_of(root, "max_additional_running_prompts", 16) < 1)
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "max_additional_running_prompts"),
            "max_additional_running_prompts must be at least 1 with is_use_additional_prompts");
    if (c->enable_reference && !c->has_reference)
        cr_diagnose(d, CR_ERROR,
                    cri_place_of(c, a->use_kl_loss                          ? "use_kl_loss"
                                    : cri_flag_of(root, "enable_reference") ? "enable_reference"
                                                                            : "init_kl_coef"),
                    "%s needs a reference model: add a reference block, or set init_kl_coef: 0.0 "
                    "and use_kl_loss: false",
                    a->use_kl_loss ? "use_kl_loss" : "init_kl_coef above 0 (default 0.2)");
    if (c->train.num_devices == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "actor_train.device_mapping is missing");
    if (c->infer.num_devices == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_infer"),
                    "actor_infer.device_mapping is missing");
    if (c->has_reference && c->reference.num_devices == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "reference"),
                    "reference.device_mapping is missing");
    if (c->train.num_file_names == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "actor_train.data_args.file_name is missing");
    else if (!c->train.messages && !c->train.prompt)
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "actor_train.data_args"),
            "actor_train.data_args needs messages (the column of the chat) or prompt (ready text)");
    if (c->infer.sleep_level > 2 || (c->infer.sleep_level == 2 && c->model_update_frequency != 1))
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "actor_infer"),
            "actor_infer: sleep_level %lld is not possible: 1 drops the cache between rollouts, 2 "
            "also the weights, which model_update_frequency 1 sends again before the next one",
            (long long)c->infer.sleep_level);
    if (c->num_rewards == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rewards"), "rewards has no domain");
    if (dp > 0 && mini > 0 && (rows % dp != 0 || rows / dp % mini != 0))
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rollout_batch_size"),
                    "rollout_batch_size %lld x %lld samples are %lld rows; on %lld ranks they are "
                    "not whole mini-batches of %lld x %lld (per_device_train_batch_size x "
                    "gradient_accumulation_steps)",
                    (long long)c->rollout_batch_size, (long long)c->group_size, (long long)rows,
                    (long long)dp, (long long)c->train.per_device_train_batch_size,
                    (long long)c->train.gradient_accumulation_steps);
}

/* The engine's log-probs are those of a training pass, bit for bit, if both compute with one dtype and
 * the weights of one version. The pass that ROLL derives is then not run; one that the file asks for
 * is, and so is one whose result is needed before training. */
static cr_old_log_probs choose_old_log_probs(const cr_config *c, bool is_asked_for)
{
    const cr_algorithm *a = &c->algorithm;

    if (!c->enable_old_logprobs_recompute && a->ppo_epochs <= 1) return CR_OLD_OF_PASS;
    if (is_asked_for || a->add_token_level_kl || c->model_update_frequency != 1 ||
        !c->train.dtype || !c->infer.dtype || strcmp(c->train.dtype, c->infer.dtype) != 0)
        return CR_OLD_COMPUTED;
    return CR_OLD_OF_SAMPLER;
}

void cri_load_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_algorithm *a = &c->algorithm;
    int64_t dp, mini;

    derive_lengths(c, root, d);
    derive_models(c, root, d);
    bind_algorithm(root, a);
    cri_bind_worker(c, root, "actor_train", &c->train, true, d);
    cri_bind_worker(c, root, "actor_infer", &c->infer, false, d);
    c->has_reference = cr_node_get(root, "reference")->kind == CR_NODE_MAP;
    if (c->has_reference) cri_bind_worker(c, root, "reference", &c->reference, false, d);
    c->has_validation = cr_node_get(root, "validation")->kind == CR_NODE_MAP;
    if (c->has_validation) {
        cri_bind_validation(c, root, "actor_train", d);
        cri_bind_generating(cr_node_at(root, "validation.generating_args"),
                            &c->validation.generating);
    }
    bind_rewards(c, root, d);
    c->rollout_batch_size = cri_int_of(root, "rollout_batch_size", 128);
    c->group_size = cri_int_of(root, "num_return_sequences_in_group", 1);
    c->max_running_requests = cri_int_of(root, "max_running_requests", 128);
    c->enable_reference =
        cri_flag_of(root, "enable_reference") || a->use_kl_loss || a->init_kl_coef > 0;
    dp = c->train.num_devices / (c->train.ulysses_size ? c->train.ulysses_size : 1);
    mini = c->train.per_device_train_batch_size * c->train.gradient_accumulation_steps;
    c->enable_old_logprobs_recompute =
        cri_flag_of(root, "enable_old_logprobs_recompute") || a->init_kl_coef > 0;
    if (dp > 0 && mini > 0 && c->rollout_batch_size * c->group_size / dp / mini > 1)
        c->enable_old_logprobs_recompute = true;
    if (cri_flag_of(root, "force_disable_old_logprobs_recompute"))
        c->enable_old_logprobs_recompute = false;
    c->old_log_probs = choose_old_log_probs(c, cri_flag_of(root, "enable_old_logprobs_recompute"));
    cri_set_flag(c, root, "enable_reference", c->enable_reference);
    cri_set_flag(c, root, "enable_old_logprobs_recompute", c->enable_old_logprobs_recompute);
    if (cr_node_get(root, "actor_infer")->kind == CR_NODE_MAP) {
        cr_node *g = cr_node_at(root, "actor_infer.generating_args");
        cri_set_int(c, g, "num_return_sequences", c->group_size);
        cri_set_int(c, g, "max_new_tokens", c->sequence_length - c->prompt_length);
        cri_bind_generating(g, &c->infer.generating);
    }
    if (c->has_validation) {
        c->validation.generating.max_new_tokens = c->sequence_length - c->prompt_length;
        if (cri_int_of(root, "val_sequence_length", 0))
            c->validation.generating.max_new_tokens = cri_int_of(root, "val_sequence_length", 0) -
                                                      cri_int_of(root, "val_prompt_length", 0);
        cri_set_int(c, cr_node_at(root, "validation.generating_args"), "max_new_tokens",
                    c->validation.generating.max_new_tokens);
        if (c->infer.max_model_len == 0 && /* the engine holds the longer of both */
            c->val_prompt_length + c->validation.generating.max_new_tokens > c->sequence_length)
            c->infer.max_model_len = c->val_prompt_length + c->validation.generating.max_new_tokens;
    }
    check_rlvr(c, root, d);
}
