/* rlvr.c -- the rlvr pipeline: rewards, lengths, the algorithm, and rules across keys. */
#include "base/args.h"
#include "configs/bind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- rewards ---- */

/* A judge has a service, and a service is asked by no other rule. */
static void check_judge(const struct cr_item *item, const cr_reward_config *r, cr_place place,
                        cr_diagnostics *d)
{
    static const char *const of_judges[] = {"judge_prompt", "judge_answer", "judge_model_type",
                                            "judge_model_name"};
    bool is_judge = r->rule && strcmp(r->rule, "llm_judge") == 0,
         is_remote = r->rule && strcmp(r->rule, "remote") == 0;
    const struct cr_item *manager = cr_node_item(item->value, "reward_manager_config");

    for (size_t i = 0; i < CR_COUNT(of_judges) && !is_judge; i++)
        if (cri_is_in_file(item->value, of_judges[i]))
            cr_diagnose_unused(d, cr_node_get(item->value, of_judges[i])->place, of_judges[i],
                               "rewards.%s is no judge", item->key);
    if (is_judge && !r->judge.url)
        cr_diagnose(d, CR_ERROR, place,
                    "rewards.%s: which judge? (judge: URL of a chat service, or judge_model_type: "
                    "inference with model_args and device_mapping)",
                    item->key);
    if (is_remote && !r->reward_manager)
        cr_diagnose(d, CR_ERROR, place,
                    "rewards.%s: which service? (remote: URL; docs/rewards.md has its requests)",
                    item->key);
    if (!is_remote && manager && manager->value->kind != CR_NODE_NULL && manager->value->num)
        cr_diagnose(d, CR_NOTE, manager->place,
                    "reward_manager_config has no effect (rewards.%s has no service: remote)",
                    item->key);
    if (r->judge.url && (r->reward_manager ? !is_remote : !is_judge))
        cr_diagnose(d, CR_ERROR, place, "rewards.%s: %s and %s exclude each other", item->key,
                    r->reward_manager ? "remote" : "judge",
                    r->exec             ? "exec"
                    : r->reward_manager ? "another worker_cls than RemoteRewardSystemWorker"
                                        : "another worker_cls than LLMJudgeRewardWorker");
}

/* The rule that worker_cls names; without one the domain's own name may be a rule's. */
static void find_rule(struct cr_item *item, cr_reward_config *r, cr_diagnostics *d)
{
    cr_node *block = item->value;
    char *cls = cri_text_of(block, "worker_cls");
    const char *last = cls ? strrchr(cls, '.') : NULL;
    cr_place place = cls ? cr_node_get(block, "worker_cls")->place : item->place;

    last = last ? last + 1 : cls;
    if (r->judge.url && !cls && !r->exec) r->rule = r->reward_manager ? "remote" : "llm_judge";
    for (size_t i = 0; i < cri_num_reward_classes && !r->exec && !r->rule; i++) {
        const cri_reward_class *k = &cri_reward_classes[i];
        if (last ? strcmp(last, k->cls) != 0 : strcmp(item->key, k->rule) != 0) continue;
        r->rule = k->rule;
    }
    if (!r->rule && !r->exec)
        cr_diagnose(
            d, CR_ERROR, place,
            "rewards.%s: worker_cls %s is not a reward class we know (a ROLL rule's class, or "
            "exec: PROGRAM)",
            item->key, cls ? cls : "is missing and the domain's name");
    check_judge(item, r, place, d);
    if (r->rule && strcmp(r->rule, "crossthinkqa") == 0 && !r->reward_type)
        cr_diagnose(d, CR_ERROR, item->place,
                    "rewards.%s: reward_type is needed (loose, soft or strict)", item->key);
    cr_free(cls);
}

/* The words of exec can be separated; built-in rules take one line at a time. */
static void check_program(const cr_node *block, const cr_reward_config *r, cr_diagnostics *d)
{
    char **words = NULL;
    cr_err err = {0};

    if (r->exec && cr_split_words(r->exec, &words, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "exec")->place, "rewards.%s.exec: %s",
                    r->domain, err.msg);
    if (!r->exec && !cr_reward_takes_many(r) && r->max_in_flight > 1)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "max_in_flight")->place,
                    "rewards.%s.max_in_flight: a built-in rule takes one line at a time "
                    "(world_size is the number of its processes)",
                    r->domain);
    cr_free(words);
}

/* A filter without a threshold of its own keeps every group. */
static void check_filter(const cr_query_filter *f, const char *domain, const cr_node *block,
                         cr_diagnostics *d)
{
    bool has_std = f->std_threshold >= 0,
         has_mean = f->threshold_down > -1 || f->threshold_up < INFINITY;

    if (f->type == CR_FILTER_STD ? !has_std : f->type == CR_FILTER_MEAN && !has_mean)
        cr_diagnose(d, CR_WARNING, block->place,
                    "rewards.%s.query_filter_config rejects nothing: filter_args needs %s", domain,
                    f->type == CR_FILTER_STD
                        ? "std_threshold from 0 (0 rejects groups of equal rewards)"
                        : "threshold_down or threshold_up");
    if (has_std && f->type != CR_FILTER_STD)
        cr_diagnose(d, CR_NOTE, block->place,
                    "rewards.%s.query_filter_config: std_threshold has no effect without type: "
                    "std_filter",
                    domain);
    if (has_mean && f->type != CR_FILTER_MEAN)
        cr_diagnose(d, CR_NOTE, block->place,
                    "rewards.%s.query_filter_config: threshold_down and threshold_up have no "
                    "effect without type: mean_filter",
                    domain);
}

static void bind_reward(cr_config *c, struct cr_item *item, cr_reward_config *r, cr_diagnostics *d)
{
    cr_node *block = item->value,
            *filter = cri_block_of(c, block, "query_filter_config", "query_filter", d),
            *args = cri_block_of(c, filter, "filter_args", "filter_args", d);

    r->domain = cr_strdup(item->key);
    r->exec = cri_text_of(block, "exec");
    r->tags = cri_texts_of(block, "tag_included", &r->num_tags);
    r->world_size = cri_int_of(block, "world_size");
    r->max_in_flight = cri_int_of(block, "max_in_flight");
    r->reward_type = cri_text_of(block, "reward_type");
    r->response_length_penalty_coef = cri_real_of(block, "response_length_penalty_coef");
    r->filter.type = (cr_filter)cri_choice_of("query_filter", filter, "type");
    r->filter.threshold_down = cri_real_of(args, "threshold_down");
    r->filter.threshold_up =
        cri_is_given(args, "threshold_up") ? cri_real_of(args, "threshold_up") : INFINITY;
    r->filter.std_threshold = cri_real_of(args, "std_threshold");
    check_filter(&r->filter, r->domain, filter, d);
    cri_bind_judge(c, block, r, d);
    r->weight = cri_real_of(block, "reward_weight");
    r->is_failure_left_out = cri_choice_of("reward", block, "on_failure") == 1;
    r->envs = cri_envs_of(block, false, d);
    find_rule(item, r, d);
    if (r->rule && strcmp(r->rule, CRI_REWARD_MODEL) == 0) cri_bind_reward_model(c, block, r, d);
    cri_bind_code(c, block, r, d);
    check_program(block, r, d);
    cri_bind_terms(c, block, r, d);
}

/* Shares that do not add up to 1 are divided by their sum. */
static void check_shares(const cr_node *probs, cr_diagnostics *d)
{
    double sum = 0;

    if (!probs || probs->kind != CR_NODE_MAP) return;
    for (size_t i = 0; i < probs->num; i++) {
        double share = cri_real_of(probs, probs->items[i].key);
        if (!(share >= 0 && share < INFINITY))
            cr_diagnose(d, CR_ERROR, probs->items[i].place,
                        "domain_interleave_probs: the share of %s is not a number from 0",
                        probs->items[i].key);
        sum += share;
    }
    if (!(sum > 0))
        cr_diagnose(d, CR_ERROR, probs->place,
                    "domain_interleave_probs: all shares are 0: no domain has prompts");
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
            c->rewards[i].probability = cri_real_of(probs, c->rewards[i].domain);
    }
    check_shares(probs, d);
    for (size_t i = 0; probs && probs->kind == CR_NODE_MAP && i < probs->num; i++)
        if (!cr_node_get(rewards, probs->items[i].key))
            cr_diagnose(d, CR_ERROR, probs->items[i].place,
                        "domain_interleave_probs: the domain %s has no block in rewards",
                        probs->items[i].key);
}

/* ---- rlvr ---- */

static void derive_lengths(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    int64_t response = cri_int_of(root, "response_length"),
            total = cri_int_of(root, "sequence_length");
    bool has_prompt = cri_is_given(root, "val_prompt_length"),
         has_total = cri_is_given(root, "val_sequence_length");

    c->prompt_length = cri_int_of(root, "prompt_length");
    c->val_prompt_length = has_prompt ? cri_int_of(root, "val_prompt_length") : c->prompt_length;
    if (!response && !total)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1},
                    "response_length or sequence_length must be given");
    c->sequence_length = total ? total : c->prompt_length + response;
    if ((response || total) && c->sequence_length <= c->prompt_length)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "sequence_length"),
                    "sequence_length %lld leaves no room for an answer after prompt_length %lld",
                    (long long)c->sequence_length, (long long)c->prompt_length);
    if (c->sequence_length > INT32_MAX)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "prompt_length"),
                    "prompt_length + response_length are %lld tokens, at most 2147483647 (31 bits) "
                    "are possible",
                    (long long)c->sequence_length);
    cri_set_int(c, root, "sequence_length", c->sequence_length);
    if (has_prompt != has_total)
        cr_diagnose(d, CR_ERROR,
                    cri_place_of(c, has_prompt ? "val_prompt_length" : "val_sequence_length"),
                    "val_prompt_length and val_sequence_length are given both or neither");
}

void cri_derive_models(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    char dotted[80];
    const cr_node *pretrain = cr_node_get(root, "pretrain");
    const cr_node *of_reward = cr_node_get(root, "reward_pretrain"), *from;

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const char *role = cr_role_kinds[r].name;
        cr_node *args =
            (snprintf(dotted, sizeof dotted, "%s.model_args", role), cr_node_at(root, dotted));
        cr_node *block = cr_node_get(root, role), *path = cr_node_get(args, "model_name_or_path");
        if (!block || block->kind != CR_NODE_MAP || cri_is_given(block, "service")) continue;
        if (!args || args->kind != CR_NODE_MAP)
            args = cri_block_of(c, block, "model_args", "model_args", d);
        if (path && path->kind == CR_NODE_TEXT)
            continue; /* ROLL loses a reference path of its own here */
        if (r >= CR_ROLE_TEACHER && r <= CR_ROLE_TEACHER_4) { /* pretrain is the student */
            cr_diagnose(d, CR_ERROR, block->place,
                        "%s has no model: give %s.model_args.model_name_or_path", role, role);
            continue;
        }
        from = r == CR_ROLE_CRITIC && of_reward->kind == CR_NODE_TEXT ? of_reward : pretrain;
        if (from && from->kind == CR_NODE_TEXT)
            cri_set_text(c, args, "model_name_or_path", from->text);
        else
            cr_diagnose(d, CR_ERROR, block->place,
                        "%s has no model: give pretrain, or %s.model_args.model_name_or_path", role,
                        role);
    }
}

static void bind_masks(const cr_node *root, cr_mask_config *m)
{
    m->max_len_mask = cri_flag_of(root, "max_len_mask");
    m->difficulty_mask = cri_flag_of(root, "difficulty_mask");
    m->difficulty_low_threshold = cri_real_of(root, "difficulty_low_threshold");
    m->difficulty_high_threshold = cri_real_of(root, "difficulty_high_threshold");
    m->error_max_len_clip = cri_flag_of(root, "error_max_len_clip");
    m->error_max_len_threshold = (double)cri_int_of(root, "error_max_len_threshold");
}

static void bind_advantage(const cr_node *root, cr_advantage_config *a)
{
    a->adv_estimator = (cr_estimator)cri_choice_of("rlvr", root, "adv_estimator");
    a->norm_mean_type = (cr_norm)cri_choice_of("rlvr", root, "norm_mean_type");
    a->norm_std_type = (cr_norm)cri_choice_of("rlvr", root, "norm_std_type");
    a->aggregation = (cr_aggregation)cri_choice_of("rlvr", root, "multi_objective_aggregation");
    a->gamma = cri_real_of(root, "gamma");
    a->reward_clip = cri_real_of(root, "reward_clip");
    a->advantage_clip = cri_real_of(root, "advantage_clip");
    a->whiten_rewards = cri_flag_of(root, "whiten_rewards");
    a->whiten_advantages = cri_flag_of(root, "whiten_advantages");
    a->add_token_level_kl = cri_flag_of(root, "add_token_level_kl");
    a->kl_penalty = (cr_kl)cri_choice_of("rlvr", root, "kl_penalty");
    a->kl_coef = cri_real_of(root, "init_kl_coef");
}

static void bind_algorithm(const cr_node *root, cr_algorithm *a)
{
    bind_advantage(root, &a->advantage);
    bind_masks(root, &a->masks);
    a->has_target_kl = cri_is_given(root, "target_kl");
    a->target_kl = cri_real_of(root, "target_kl");
    a->kl_horizon = cri_real_of(root, "kl_horizon");
    a->ppo_epochs = cri_int_of(root, "ppo_epochs");
    a->critic_warmup = cri_int_of(root, "critic_warmup");
    a->difficulty_loss_weight = cri_flag_of(root, "difficulty_loss_weight");
    a->length_loss_weight = cri_flag_of(root, "length_loss_weight");
}

/* A sample's id has 23 bits for its step, 24 for its group's draw in the step, 16 for its place in the
 * group. */
static void check_ids(const cr_config *c, cr_diagnostics *d)
{
    const struct {
        const char *key;
        int64_t value, max;
    } limits[] = {
        {"max_steps", c->max_steps, (1 << 23) - 1}, /* validation of the last step: the next */
        {"rollout_batch_size", c->rollout_batch_size, 1 << 24},
        {"num_return_sequences_in_group", c->group_size, 1 << 16},
        {"validation.generating_args.num_return_sequences",
         c->validation.generating.num_return_sequences, 1 << 16}};

    for (size_t i = 0; i < CR_COUNT(limits); i++)
        if (limits[i].value > limits[i].max)
            cr_diagnose(d, CR_ERROR, cri_place_of(c, limits[i].key),
                        "%s is %lld, but the ids of samples have room for %lld", limits[i].key,
                        (long long)limits[i].value, (long long)limits[i].max);
}

/* Rewards that are compared within a group teach nothing if its samples are one or all the same. */
static void check_groups(const cr_config *c, cr_diagnostics *d)
{
    const cr_advantage_config *a = &c->algorithm.advantage;

    if (a->adv_estimator != CR_ADV_GRPO && a->norm_mean_type != CR_NORM_GROUP) return;
    if (a->opd != CR_OPD_NONE) return; /* the teacher's log-probs differ by sample */
    if (c->group_size == 1)
        cr_diagnose(d, CR_WARNING, cri_place_of(c, "num_return_sequences_in_group"),
                    "num_return_sequences_in_group is 1 and rewards are compared within a group: "
                    "every advantage is 0 (give 2 or more, or adv_estimator: reinforce without "
                    "norm_mean_type: group)");
    else if (c->infer.generating.temperature == 0)
        cr_diagnose(d, CR_WARNING, cri_place_of(c, "actor_infer.generating_args"),
                    "actor_infer: without temperature all samples of a prompt are the same, and "
                    "rewards are compared within a group: every advantage is 0");
}

/* Engines that sample while others work are on devices of their own. */
static void check_async(const cr_config *c, double ratio, cr_diagnostics *d)
{
    static const char key[] = "async_generation_ratio";
    const cr_worker_config *other;
    int device;

    if (ratio > 0 && ratio < 1)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, key), "%s must be 0 or at least 1", key);
    else if (ratio > 1)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, key),
                    "%s is %g: more than one step ahead is not available yet (use 1)", key, ratio);
    for (int r = 0; r < CR_NUM_ROLES; r++) {
        other = r == CR_ROLE_INFER ? NULL : cr_role_in_run((cr_role)r, c);
        if (!c->is_async || !other || !cr_workers_share(other, &c->infer, &device)) continue;
        cr_diagnose(d, CR_ERROR, cri_place_of(c, key),
                    "%s: actor_infer samples while %s works, and both have device %d "
                    "(give actor_infer a device_mapping of its own)",
                    key, other->name, device);
        return;
    }
}

/* Rules of the algorithm's keys. */
static void check_algorithm(const cr_config *c, cr_node *root, cr_diagnostics *d)
{
    const cr_algorithm *a = &c->algorithm;

    check_async(c, cri_real_of(root, "async_generation_ratio"), d);
    if (a->advantage.norm_std_type == CR_NORM_GROUP &&
        a->advantage.norm_mean_type != CR_NORM_NONE && a->advantage.norm_mean_type != CR_NORM_GROUP)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "norm_std_type"),
                    "norm_std_type: group goes with norm_mean_type group");
    if (a->has_target_kl && a->kl_horizon < 0.2 * (double)(c->rollout_batch_size * c->group_size))
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "kl_horizon"),
            "kl_horizon is %g: with %lld samples a step the KL coefficient could fall below "
            "0 (at least 0.2 x samples)",
            a->kl_horizon, (long long)(c->rollout_batch_size * c->group_size));
    if (c->reference.is_needed && !c->reference.is_given && !c->reference.is_of_trainer)
        cr_diagnose(d, CR_ERROR,
                    cri_place_of(c, a->loss.use_kl_loss                     ? "use_kl_loss"
                                    : cri_flag_of(root, "enable_reference") ? "enable_reference"
                                                                            : "init_kl_coef"),
                    "%s needs a reference model: add a reference block, or set init_kl_coef: 0.0 "
                    "and use_kl_loss: false",
                    a->loss.use_kl_loss ? "use_kl_loss" : "init_kl_coef above 0 (default 0.2)");
}

/* Engines and a validation; nothing that only training needs. Adapters are val_adapter's, not those that the file would
 * train. */
static void check_val_only(cr_config *c, cr_diagnostics *d)
{
    cr_worker_config *const workers[] = {&c->train, &c->infer};

    c->reference.is_needed = c->teacher.is_needed = c->critic.is_needed = false;
    for (int k = 1; k < CR_MAX_TEACHERS; k++)
        c->more_teachers[k - 1].is_needed = false;
    for (size_t i = 0; i < CR_COUNT(workers); i++) {
        cr_free(workers[i]->lora.target);
        cr_free(workers[i]->lora.folder);
        cr_free(workers[i]->lora.saved);
        workers[i]->lora = (cr_lora_keys){0};
    }
    if (c->val_adapter)
        c->train.lora = (cr_lora_keys){.folder = cr_strdup(c->val_adapter), .dropout = -1};
    if (!c->infer.is_mapped)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_infer"),
                    "actor_infer.device_mapping is missing");
    if (!c->has_validation)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "validation"),
                    "val_only: validation.data_args.file_name is missing");
    else if (!c->validation.data.messages && !c->validation.data.prompt)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "validation.data_args"),
                    "validation.data_args needs messages (the column of the chat) or prompt (ready "
                    "text)");
    if (c->num_rewards == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rewards"), "rewards has no domain");
}

/* The samples of a step are whole mini-batches of a trained role. */
static void check_minis(const cr_config *c, const cr_worker_config *w, cr_diagnostics *d)
{
    int64_t rows = c->rollout_batch_size * c->group_size, dp = cr_worker_num_batches(w),
            mini = cr_worker_batch_samples(w);

    if (dp <= 0 || mini <= 0 || rows <= 0 || (rows % dp == 0 && rows / dp % mini == 0)) return;
    cr_diagnose(d, CR_ERROR, cri_place_of(c, "rollout_batch_size"),
                "rollout_batch_size %lld x %lld samples are %lld rows; on %lld ranks of %s they "
                "are not whole mini-batches of %lld x %lld (per_device_train_batch_size x "
                "gradient_accumulation_steps)",
                (long long)c->rollout_batch_size, (long long)c->group_size, (long long)rows,
                (long long)dp, w->name, (long long)w->training.per_device_train_batch_size,
                (long long)w->training.gradient_accumulation_steps);
}

/* What the roles need, and what their numbers must be whole multiples of. */
static void check_roles(cr_config *c, cr_diagnostics *d)
{

    for (int r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = cr_role_worker((cr_role)r, c);
        if (w->service.url || w->is_of_trainer) continue;
        if (!w->is_mapped &&
            (w->is_given || w->task == CR_TASK_TRAIN || w->task == CR_TASK_GENERATE))
            cr_diagnose(d, CR_ERROR, cri_place_of(c, w->name), "%s.device_mapping is missing",
                        w->name);
        if (w->is_given && w->task != CR_TASK_GENERATE) cri_check_batching(c, w, d);
        if (w->is_needed && cr_task_trains(w->task)) check_minis(c, w, d);
    }
    if (c->train.data.num_file_names == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "actor_train"),
                    "actor_train.data_args.file_name is missing");
    else if (!c->train.data.messages && !c->train.data.prompt)
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "actor_train.data_args"),
            "actor_train.data_args needs messages (the column of the chat) or prompt (ready text)");
    if (c->infer.engine.sleep_level > 2 ||
        (c->infer.engine.sleep_level == 2 && c->model_update_frequency != 1))
        cr_diagnose(
            d, CR_ERROR, cri_place_of(c, "actor_infer"),
            "actor_infer: sleep_level %lld is not possible: 1 drops the cache between rollouts, 2 "
            "also the weights, which model_update_frequency 1 sends again before the next one",
            (long long)c->infer.engine.sleep_level);
    if (c->num_rewards == 0)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rewards"), "rewards has no domain");
    if (c->infer.batching.infer_tokens)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "actor_infer"),
                    "actor_infer.use_dynamic_batching_in_infer has no effect: the engine batches "
                    "by max_running_requests; log-probs of a batch are actor_train's");
}

/* ROLL reads it in actor_train. */
static void bind_update_frequency(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    static const char key[] = "model_update_frequency";
    const cr_node *train = cr_node_get(root, "actor_train");
    cr_node *infer = cr_node_get(root, "actor_infer");

    c->model_update_frequency = cri_is_given(train, key) ? cri_int_of(train, key) : 1;
    if (cri_is_in_file(infer, key) && cri_int_of(infer, key) != c->model_update_frequency)
        cr_diagnose(d, CR_ERROR, cr_node_get(infer, key)->place,
                    "actor_infer.%s is %lld and actor_train's, which counts, is %lld (leave this "
                    "one out)",
                    key, (long long)cri_int_of(infer, key), (long long)c->model_update_frequency);
    if (infer->kind == CR_NODE_MAP) cri_set_int(c, infer, key, c->model_update_frequency);
}

/* Which log-probs are the old ones. The engine's log-probs are those of a training pass, bit for bit,
 * if both compute with one dtype and the weights of one version. The pass that ROLL derives is then
 * not run; one that the file asks for is, and so is one whose result is needed before training. Training passes with dropout
 * are not the policy that sampled. use_rollout_log_probs says in the written file whether the pass was asked for. */
static void derive_old_log_probs(cr_config *c, cr_node *root)
{
    static const char key[] = "enable_old_logprobs_recompute", sampled[] = "use_rollout_log_probs";
    const cr_algorithm *a = &c->algorithm;
    int64_t dp = cr_worker_num_batches(&c->train), mini = cr_worker_batch_samples(&c->train);
    bool is_asked_for =
             cri_is_given(root, sampled) ? !cri_flag_of(root, sampled) : cri_flag_of(root, key),
         is_derived = is_asked_for || a->advantage.kl_coef > 0,
         is_exact =
             c->model_update_frequency == 1 && c->train.dtype == c->infer.dtype && !c->is_async,
         is_dropped = cr_is_lora(&c->train.lora) &&
                      (c->train.lora.dropout < 0 || c->train.lora.dropout > 0); /* in training */

    if (dp > 0 && mini > 0 && c->rollout_batch_size * c->group_size / dp / mini > 1)
        is_derived = true;
    if (a->advantage.opd != CR_OPD_NONE &&
        !is_exact) /* else advantages have the difference in them */
        is_derived = true;
    if (cri_flag_of(root, "force_disable_old_logprobs_recompute")) is_derived = false;
    is_derived |= is_dropped;
    if (c->is_async && !is_asked_for && !a->advantage.add_token_level_kl &&
        a->advantage.opd == CR_OPD_NONE)
        c->old_log_probs = CR_OLD_RECORDED;
    else if (!is_derived && a->ppo_epochs <= 1)
        c->old_log_probs = CR_OLD_OF_PASS;
    else if (is_asked_for || a->advantage.add_token_level_kl || !is_exact || is_dropped)
        c->old_log_probs = CR_OLD_COMPUTED;
    else
        c->old_log_probs = CR_OLD_OF_SAMPLER;
    c->enable_old_logprobs_recompute = is_derived;
    cri_set_flag(c, root, key, is_derived);
    cri_set_flag(c, root, sampled, !is_asked_for);
}

/* Put a derived length or count into generating_args; a note names a different one in the file. */
static void derive_int(cr_config *c, cr_node *map, const char *key, int64_t value, const char *from,
                       cr_diagnostics *d)
{
    if (cri_is_in_file(map, key) && cri_int_of(map, key) != value)
        cr_diagnose(d, CR_NOTE, cr_node_get(map, key)->place,
                    "%s has no effect (it is %lld, which follows from %s)", key, (long long)value,
                    from);
    cri_set_int(c, map, key, value);
}

static void derive_generating(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    int64_t length = c->sequence_length - c->prompt_length;
    cr_node *g = cr_node_at(root, "actor_infer.generating_args");

    if (g) {
        derive_int(c, g, "num_return_sequences", c->group_size, "num_return_sequences_in_group", d);
        derive_int(c, g, "max_new_tokens", length, "sequence_length", d);
        cri_bind_generating(g, &c->infer.generating, d);
        cri_bind_domains(c, root, &c->infer, d);
        cri_check_domains(c, d);
    }
    if (!c->has_validation) return;
    if (cri_is_given(root, "val_sequence_length"))
        length = cri_int_of(root, "val_sequence_length") - cri_int_of(root, "val_prompt_length");
    g = cr_node_at(root, "validation.generating_args");
    derive_int(c, g, "max_new_tokens", length, "sequence_length or val_sequence_length", d);
    cri_bind_generating(g, &c->validation.generating, d);
    cri_bind_domains(c, root, &c->validation, d);
    length += c->val_prompt_length;
    if (c->infer.engine.max_model_len == 0 && length > c->sequence_length)
        c->infer.engine.max_model_len = length; /* the engine holds the longer of both */
}

static void bind_rollouts(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_node *router = cri_block_of(c, root, "router_args", "router", d);

    c->rollout_batch_size = cri_int_of(root, "rollout_batch_size");
    c->group_size = cri_int_of(root, "num_return_sequences_in_group");
    c->max_running_requests =
        cri_int_of(cri_is_given(router, "max_running_requests") ? router : root,
                   "max_running_requests"); /* as in ROLL, the router's counts if it is given */
    c->max_failed_reward_steps = cri_int_of(root, "max_failed_reward_steps");
    c->logprobs_mode = (cr_choice_logprobs)cri_choice_of("rlvr", root, "logprobs_mode");
    bind_update_frequency(c, root, d);
}

/* What a reference has that is not actor_train's; NULL: nothing. */
static const char *difference(const cr_worker_config *reference, const cr_worker_config *train)
{
    bool is_elsewhere = reference->is_mapped && reference->num_devices != train->num_devices;

    for (int i = 0; !is_elsewhere && reference->is_mapped && i < train->num_devices; i++)
        is_elsewhere = reference->devices[i] != train->devices[i];
    if (!reference->is_given) return NULL;
    return !reference->model_path || !train->model_path ||
                   strcmp(reference->model_path, train->model_path) != 0
               ? "model"
           : reference->dtype != train->dtype ? "dtype"
           : is_elsewhere                     ? "device_mapping"
                                              : NULL;
}

/* With adapters it is actor_train without them, as in ROLL, unless the file says otherwise. */
void cri_place_reference(cr_config *c, cr_diagnostics *d)
{
    cr_worker_config *w = &c->reference;
    const char *own = difference(w, &c->train);

    w->is_of_trainer = w->is_needed && cr_is_lora(&c->train.lora) && !w->service.url && !own;
    c->train.lora.keeps_originals = w->is_of_trainer;
    if (w->is_of_trainer)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, w->is_given ? "reference" : "actor_train"),
                    "reference: actor_train computes its log-probs with adapters off, on the same "
                    "ranks and by its own keys (a device_mapping of its own gives it ranks and a "
                    "copy of the model)");
    else if (w->is_needed && cr_is_lora(&c->train.lora) && !w->service.url)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "reference"),
                    "reference has ranks and a model of its own: its %s is not that of "
                    "actor_train, which could compute it with adapters off",
                    own);
}

static void derive_reference(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_worker_config *w = &c->reference;

    w->is_needed = !c->is_teacher_reference &&
                   (cri_flag_of(root, "enable_reference") || c->algorithm.loss.use_kl_loss ||
                    c->algorithm.advantage.kl_coef > 0);
    cri_set_flag(c, root, "enable_reference", w->is_needed || c->is_teacher_reference);
    if (w->is_given && !w->is_needed)
        cr_diagnose(d, CR_NOTE, cri_place_of(c, "reference"),
                    "reference has no effect (init_kl_coef and use_kl_loss are off, and "
                    "enable_reference is not set)");
    cri_place_reference(c, d);
}

void cri_load_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_algorithm *a = &c->algorithm;

    c->val_only = cri_flag_of(root, "val_only");
    c->val_adapter = cri_text_of(root, "val_adapter");
    c->rollouts_from = cri_text_of(root, "rollouts_from");
    derive_lengths(c, root, d);
    cri_derive_models(c, root, d);
    cri_fix_pure_opd(c, root, d);
    bind_algorithm(root, a);
    cri_bind_loss(root, &a->loss, d);
    cri_bind_correction(c, root, &a->correction, d);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        cri_bind_worker(c, root, cr_role_kinds[r].name, cr_role_worker((cr_role)r, c),
                        cr_role_kinds[r].task, d);
    cri_bind_validation(c, root, "actor_train", d);
    cri_bind_templates(c, root, d);
    bind_rewards(c, root, d);
    bind_rollouts(c, root, d);
    cri_bind_opd(c, root, d);
    cri_bind_critic(c, root, d);
    cri_check_shared(c, root, d);
    if (!c->val_only) {
        derive_reference(c, root, d);
        cri_bind_follow(c, root, d);
    }
    c->is_async = cri_real_of(root, "async_generation_ratio") > 0;
    derive_old_log_probs(c, root);
    derive_generating(c, root, d);
    cri_bind_best(c, root, d);
    cri_bind_curriculum(c, root, d);
    cri_check_service(c, d);
    check_ids(c, d);
    cri_check_sizes(c, d);
    cri_check_positions(c, d);
    if (c->val_adapter && !c->val_only)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "val_adapter"),
                    "val_adapter is for an evaluation (val_only: true)");
    if (c->val_only) {
        check_val_only(c, d);
        return;
    }
    if (c->rollouts_from && c->has_validation)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "rollouts_from"),
                    "samples are those of %s, no engine is started: there is no validation "
                    "(validation=null)",
                    c->rollouts_from);
    check_algorithm(c, root, d);
    check_groups(c, d);
    cri_check_loss(c, d);
    check_roles(c, d);
}
