/* configs.c -- from the checked tree to derived values, rules across keys, and plain structs. */
#include "configs/configs.h"
#include "configs/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading the tree ---- */

static char *text_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);
    cr_buf out = {0};

    if (!n || n->kind == CR_NODE_NULL) return NULL;
    if (n->kind == CR_NODE_TEXT) return cr_strdup(n->text);
    cr_node_write_json(n, &out);
    return out.data;
}

static int64_t int_of(const cr_node *map, const char *key, int64_t otherwise)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_INT ? n->integer : otherwise;
}

static double real_of(const cr_node *map, const char *key, double otherwise)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_REAL  ? n->real
           : n && n->kind == CR_NODE_INT ? (double)n->integer
                                         : otherwise;
}

static bool flag_of(const cr_node *map, const char *key)
{
    const cr_node *n = cr_node_get(map, key);

    return n && n->kind == CR_NODE_BOOL && n->flag;
}

static char **texts_of(const cr_node *map, const char *key, size_t *num)
{
    const cr_node *n = cr_node_get(map, key);
    char **out;

    *num = 0;
    if (!n || n->kind == CR_NODE_NULL) return NULL;
    if (n->kind != CR_NODE_LIST) {
        out = CR_NEW_ARRAY(char *, 1);
        out[(*num)++] = text_of(map, key);
        return out;
    }
    out = CR_NEW_ARRAY(char *, n->num + 1);
    for (size_t i = 0; i < n->num; i++) {
        cr_buf b = {0};
        if (n->items[i].value->kind == CR_NODE_TEXT)
            cr_buf_adds(&b, n->items[i].value->text);
        else
            cr_node_write_json(n->items[i].value, &b);
        out[(*num)++] = b.data ? b.data : cr_strdup("");
    }
    return out;
}

static cr_place place_of(const cr_config *c, const char *dotted)
{
    const cr_node *n = cr_node_at(c->yaml.root, dotted);

    return n && n->place.line ? n->place : (cr_place){c->path, 1, 1};
}

static void set_int(cr_config *c, cr_node *map, const char *key, int64_t value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_INT, (cr_place){c->path, 0, 0});

    n->integer = value;
    cr_node_set(&c->yaml, map, key, n->place, n);
}

static void set_flag(cr_config *c, cr_node *map, const char *key, bool value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_BOOL, (cr_place){c->path, 0, 0});

    n->flag = value;
    cr_node_set(&c->yaml, map, key, n->place, n);
}

static void set_text(cr_config *c, cr_node *map, const char *key, const char *value)
{
    cr_node *n = cr_node_new(&c->yaml, CR_NODE_TEXT, (cr_place){c->path, 0, 0});

    n->text = cr_arena_strndup(c->yaml.arena, value, strlen(value));
    cr_node_set(&c->yaml, map, key, n->place, n);
}

/* A block that was left out, with all its defaults. */
static cr_node *block_of(cr_config *c, cr_node *map, const char *key, const char *block,
                         cr_diagnostics *d)
{
    cr_node *n = cr_node_get(map, key);

    if (n && n->kind == CR_NODE_MAP) return n;
    n = cri_check_block(&c->yaml, block,
                        cr_node_new(&c->yaml, CR_NODE_MAP, (cr_place){c->path, 0, 0}), d);
    cr_node_set(&c->yaml, map, key, n->place, n);
    return n;
}

/* ---- worker blocks ---- */

static const char *short_dtype(const char *name)
{
    if (!name) return NULL;
    if (strncmp(name, "b", 1) == 0) return "bf16";
    if (strncmp(name, "fp16", 4) == 0 || strncmp(name, "float16", 7) == 0 ||
        strcmp(name, "half") == 0)
        return "fp16";
    if (strcmp(name, "fp64") == 0 || strcmp(name, "float64") == 0) return "fp64";
    return "fp32";
}

static char *dtype_of(const cr_node *map, const char *key, const char *otherwise, cr_diagnostics *d)
{
    char *text = text_of(map, key);
    const char *name = text ? short_dtype(text) : otherwise;
    bool is_compute = strcmp(key, "dtype") == 0 || strcmp(key, "param_dtype") == 0;

    if (text && strcmp(name, "fp32") != 0 && strcmp(name, "bf16") != 0 &&
        !(is_compute && strcmp(name, "fp16") == 0)) {
        cr_diagnose(d, CR_ERROR, cr_node_get(map, key)->place,
                    "%s: %s is not available (fp32 and bf16 are%s)", key, name,
                    is_compute ? ", and fp16" : "");
        name = "fp32";
    }
    cr_free(text);
    return name ? cr_strdup(name) : NULL;
}

static void bind_generating(const cr_node *g, cr_generating_args *out)
{
    const cr_node *include = cr_node_get(g, "include_stop_str_in_output");

    out->temperature = flag_of(g, "do_sample") ? real_of(g, "temperature", 1) : 0;
    out->top_p = real_of(g, "top_p", 1);
    out->min_p = real_of(g, "min_p", 0);
    out->top_k = int_of(g, "top_k", -1);
    out->repetition_penalty = real_of(g, "repetition_penalty", 1);
    out->max_new_tokens = int_of(g, "max_new_tokens", 8192);
    out->num_return_sequences = int_of(g, "num_return_sequences", 1);
    out->stop_strings = texts_of(g, "stop_strings", &out->num_stop_strings);
    out->include_stop_str_in_output = !include || include->kind != CR_NODE_BOOL || include->flag;
}

/* The strategy_config of another engine: what means something to ours, the rest in one note. */
static void map_engine(cr_config *c, cr_node *strategy, const char *name, cr_worker_config *w,
                       cr_diagnostics *d)
{
    static const char *const known[] = {"max_model_len", "gpu_memory_utilization", "load_format",
                                        "enforce_eager", "sleep_level"};
    cr_node *config = cr_node_get(strategy, "strategy_config");
    cr_buf rest = {0};

    for (size_t i = 0; config && config->kind == CR_NODE_MAP && i < config->num; i++) {
        bool is_known = false;
        for (size_t k = 0; k < CR_COUNT(known); k++)
            is_known = is_known || strcmp(config->items[i].key, known[k]) == 0;
        if (!is_known) cr_buf_addf(&rest, "%s%s", rest.num_bytes ? ", " : "", config->items[i].key);
    }
    cr_diagnose(d, CR_NOTE, cr_node_get(strategy, "strategy_name")->place,
                "%s: croll's own generation engine runs instead%s%s", name,
                rest.num_bytes ? "; without effect: " : "", rest.num_bytes ? rest.data : "");
    cr_buf_free(&rest);
    w->max_model_len = int_of(config, "max_model_len", 0);
    w->gpu_memory_utilization = real_of(config, "gpu_memory_utilization", 0);
    (void)c;
}

/* true, false, null, or to how many ranks. */
static void bind_reshard(const cr_node *n, cr_worker_config *w, cr_diagnostics *d)
{
    w->reshard_after_forward = n->kind == CR_NODE_BOOL ? n->flag : -1;
    if (n->kind == CR_NODE_INT && n->integer >= 1 && n->integer <= INT32_MAX)
        w->reshard_ranks = (int)n->integer;
    else if (n->kind != CR_NODE_BOOL && n->kind != CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, n->place,
                    "U8: reshard_after_forward is true, false, null or a number of ranks from 1");
}

/* The rest of PyTorch's mixed precision policy, as far as it has a meaning here. */
static void check_precision(const cr_node *config, cr_diagnostics *d)
{
    static const struct {
        const char *key, *why;
    } fixed[] = {
        {"output_dtype", "log-probs, entropies, values and logits leave the model in fp32, and a "
                         "unit hands the next one param_dtype"},
        {"buffer_dtype", "the only buffers are rotary tables, computed in fp32"},
    };
    const cr_node *cast = cr_node_get(config, "cast_forward_inputs");

    for (size_t i = 0; i < CR_COUNT(fixed); i++) {
        char *name = text_of(config, fixed[i].key);
        const char *dtype = short_dtype(name);
        if (dtype && strcmp(dtype, "fp32") != 0)
            cr_diagnose(d, CR_ERROR, cr_node_get(config, fixed[i].key)->place,
                        "%s: %s is not available: %s (leave the key out)", fixed[i].key, dtype,
                        fixed[i].why);
        cr_free(name);
    }
    if (cast && cast->kind == CR_NODE_BOOL)
        cr_diagnose(d, CR_NOTE, cast->place,
                    "cast_forward_inputs: true and false are the same: what enters a unit is in "
                    "param_dtype already (ids and positions are whole numbers)");
}

static void bind_fsdp2(cr_config *c, cr_node *strategy, cr_worker_config *w, bool is_train,
                       cr_diagnostics *d)
{
    const struct {
        const char *key;
        char ***texts;
        size_t *num;
    } lists[] = {
        {"transformer_layer_cls_to_wrap", &w->wrap_classes, &w->num_wrap_classes},
        {"moe_experts", &w->moe_experts, &w->num_moe_experts},
        {"modules", &w->wrap_modules, &w->num_wrap_modules},
    };
    cr_node *config = cr_node_get(strategy, "strategy_config"), *reshard, *wrap;
    char *given;

    if (!config || config->kind != CR_NODE_MAP)
        config =
            cr_node_new(&c->yaml, CR_NODE_MAP, config ? config->place : (cr_place){c->path, 0, 0});
    config = cri_check_block(&c->yaml, "fsdp2", config, d);
    cr_node_set(&c->yaml, strategy, "strategy_config", config->place, config);
    w->fsdp_size = int_of(config, "fsdp_size", 1);
    w->mlp_tiles = flag_of(config, "apply_tiled_mlp") ? int_of(config, "tiled_num_shards", 4) : 0;
    reshard = cr_node_get(config, "reshard_after_forward");
    bind_reshard(reshard, w, d);
    w->is_offloaded = flag_of(config, "offload_policy");
    w->is_reduced_once = !flag_of(config, "reduce_scatter_during_grad_accumulation");
    w->save_only_model = flag_of(config, "save_only_model");
    w->async_save_ckpt = flag_of(config, "async_save_ckpt");
    wrap = cr_node_get(config, "wrap_policy");
    w->wrap_embeddings = flag_of(wrap, "wrap_embeddings");
    w->wrap_lm_output = flag_of(wrap, "wrap_lm_output");
    w->wrap_nested = flag_of(wrap, "nested");
    w->wrap_min_params = int_of(wrap, "min_num_params", 0);
    for (size_t i = 0; i < CR_COUNT(lists); i++) {
        cr_node *n = cr_node_get(wrap, lists[i].key);
        if (n && n->kind != CR_NODE_NULL)
            *lists[i].texts = texts_of(wrap, lists[i].key, lists[i].num);
    }
    w->apply_expert_patch = flag_of(config, "apply_expert_patch");
    w->ep_size = int_of(config, "ep_size", 1);
    w->efsdp_size = int_of(config, "efsdp_size", 1);
    if (w->num_moe_experts && !w->apply_expert_patch && w->ep_size == 1 && w->num_devices > 1)
        cr_diagnose(d, CR_WARNING, cr_node_get(wrap, "moe_experts")->place,
                    "moe_experts: experts without tokens are not gathered, so ranks that route "
                    "differently stop with an error (apply_expert_patch: true calls every expert)");
    given = dtype_of(config, "param_dtype", NULL, d);
    if (given) {
        cr_free(w->dtype);
        w->dtype = given;
    }
    check_precision(config, d);
    w->reduce_dtype = dtype_of(config, "reduce_dtype", "fp32", d);
    w->master_dtype = dtype_of(config, "master_dtype", is_train ? "fp32" : w->dtype, d);
    if (is_train && strcmp(w->master_dtype, "fp32") != 0)
        cr_diagnose(
            d, CR_WARNING, cr_node_get(config, "master_dtype")->place,
            "master_dtype: bf16 masters lose every update below 1/256 to 1/512 of a weight: of a "
            "weight of 0.02 all below %.1e, while AdamW's are about the learning rate "
            "(leave master_dtype out for fp32)",
            0x1p-14);
}

/* The name of a chat template; two of ROLL's are long prompts that croll does not carry. */
static char *template_of(const cr_node *map, const char *key, cr_diagnostics *d)
{
    char *name = text_of(map, key);

    if (name && (strcmp(name, "base") == 0 || strcmp(name, "longCOT_qwen2.5") == 0))
        cr_diagnose(d, CR_ERROR, cr_node_get(map, key)->place,
                    "%s: %s is not available yet (native takes the checkpoint's own template)", key,
                    name);
    return name;
}

static void bind_devices(cr_node *block, cr_worker_config *w, cr_diagnostics *d)
{
    cr_node *n = cr_node_get(block, "device_mapping");
    cr_buf text = {0};
    cr_err err = {0};

    if (!n || n->kind == CR_NODE_NULL) return;
    if (n->kind == CR_NODE_TEXT)
        cr_buf_adds(&text, n->text);
    else
        cr_node_write_json(n, &text);
    if (cr_device_mapping(text.data ? text.data : "", &w->devices, &w->num_devices, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, n->place, "device_mapping: %s", err.msg);
    cr_buf_free(&text);
}

static void bind_worker(cr_config *c, cr_node *root, const char *name, cr_worker_config *w,
                        bool is_train, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, name), *model, *training, *data, *strategy;
    char *strategy_name;

    w->name = name;
    if (!block || block->kind != CR_NODE_MAP) return;
    model = block_of(c, block, "model_args", "model_args", d);
    training = block_of(c, block, "training_args", "training_args", d);
    data = block_of(c, block, "data_args", "data_args", d);
    block_of(c, block, "generating_args", "generating_args", d);
    strategy = block_of(c, block, "strategy_args", "strategy_args", d);
    w->model_path = text_of(model, "model_name_or_path");
    w->dtype = dtype_of(model, "dtype", "bf16", d);
    w->should_recompute = is_train && !flag_of(model, "disable_gradient_checkpointing");
    w->freeze_module_prefix = text_of(model, "freeze_module_prefix");
    w->moe_aux_loss_coef = real_of(model, "moe_aux_loss_coef", -1);
    w->ulysses_size = int_of(model, "ulysses_size", 1);
    w->learning_rate = real_of(training, "learning_rate", 5e-5);
    w->lr_scheduler_type = text_of(training, "lr_scheduler_type");
    w->weight_decay = real_of(training, "weight_decay", 0);
    w->adam_beta1 = real_of(training, "adam_beta1", 0.9);
    w->adam_beta2 = real_of(training, "adam_beta2", 0.999);
    w->warmup_steps = int_of(training, "warmup_steps", 0);
    w->warmup_ratio = real_of(training, "warmup_ratio", 0);
    w->per_device_train_batch_size = int_of(training, "per_device_train_batch_size", 8);
    w->gradient_accumulation_steps = int_of(training, "gradient_accumulation_steps", 1);
    w->num_train_epochs = int_of(training, "num_train_epochs", 1);
    w->file_names = texts_of(data, "file_name", &w->num_file_names);
    w->template = template_of(data, "template", d);
    w->messages = text_of(data, "messages");
    w->prompt = text_of(data, "prompt");
    w->infer_batch_size = int_of(block, "infer_batch_size", 16);
    w->world_size = int_of(block, "world_size", 1);
    bind_devices(block, w, d);
    strategy_name = text_of(strategy, "strategy_name");
    w->strategy_name =
        strategy_name ? strategy_name : cr_strdup(is_train ? "fsdp2_train" : "fsdp2_infer");
    w->ep_size = w->efsdp_size = 1;
    if (strncmp(w->strategy_name, "fsdp2", 5) == 0) {
        bind_fsdp2(c, strategy, w, is_train, d);
    } else if (is_train) {
        cr_diagnose(d, CR_ERROR, cr_node_get(strategy, "strategy_name")->place,
                    "strategy_name: %s is another engine's; %s needs fsdp2_train", w->strategy_name,
                    name);
    } else {
        map_engine(c, strategy, w->strategy_name, w, d);
    }
    if (!w->reduce_dtype) w->reduce_dtype = cr_strdup("fp32");
    if (!w->master_dtype) w->master_dtype = cr_strdup(w->dtype);
    if (w->fsdp_size == 0) w->fsdp_size = 1;
    cri_check_mesh(w, block, d);
    if (w->messages && w->prompt)
        cr_diagnose(d, CR_ERROR, cr_node_get(data, "prompt")->place,
                    "data_args of %s: messages and prompt exclude each other", name);
}

/* ---- rewards ---- */

static void bind_reward(cr_config *c, struct cr_item *item, cr_reward_config *r, cr_diagnostics *d)
{
    cr_node *block = item->value, *filter = cr_node_get(block, "query_filter_config"),
            *args = cr_node_get(filter, "filter_args");
    char *cls = text_of(block, "worker_cls"), *type = text_of(filter, "type");
    const char *last = cls ? strrchr(cls, '.') : NULL;

    r->domain = cr_strdup(item->key);
    r->exec = text_of(block, "exec");
    r->tags = texts_of(block, "tag_included", &r->num_tags);
    r->world_size = int_of(block, "world_size", 1);
    r->reward_type = text_of(block, "reward_type");
    r->format_pattern = text_of(block, "format_pattern");
    r->response_length_penalty_coef = real_of(block, "response_length_penalty_coef", 0);
    r->filter.type = !type || strcmp(type, "no_filter") == 0 ? CR_FILTER_NONE
                     : strcmp(type, "mean_filter") == 0      ? CR_FILTER_MEAN
                                                             : CR_FILTER_STD;
    r->filter.threshold_down = real_of(args, "threshold_down", -1);
    r->filter.threshold_up = real_of(args, "threshold_up", INFINITY);
    r->filter.std_threshold = real_of(args, "std_threshold", -1);
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
            c->rewards[i].probability = real_of(probs, c->rewards[i].domain, 0);
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
    int64_t response = int_of(root, "response_length", 0),
            total = int_of(root, "sequence_length", 0);
    bool has_prompt = int_of(root, "val_prompt_length", 0) > 0,
         has_total = int_of(root, "val_sequence_length", 0) > 0;

    c->prompt_length = int_of(root, "prompt_length", 1024);
    if (!response && !total)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1},
                    "response_length or sequence_length must be given");
    c->sequence_length = total ? total : c->prompt_length + response;
    if ((response || total) && c->sequence_length <= c->prompt_length)
        cr_diagnose(d, CR_ERROR, place_of(c, "sequence_length"),
                    "sequence_length %lld leaves no room for an answer behind prompt_length %lld",
                    (long long)c->sequence_length, (long long)c->prompt_length);
    set_int(c, root, "sequence_length", c->sequence_length);
    if (has_prompt != has_total)
        cr_diagnose(d, CR_ERROR,
                    place_of(c, has_prompt ? "val_prompt_length" : "val_sequence_length"),
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
            args = block_of(c, block, "model_args", "model_args", d);
        if (path && path->kind == CR_NODE_TEXT)
            continue; /* ROLL loses a reference path of its own here */
        if (has_pretrain)
            set_text(c, args, "model_name_or_path", pretrain->text);
        else
            cr_diagnose(d, CR_ERROR, block->place,
                        "%s has no model: give pretrain, or %s.model_args.model_name_or_path",
                        roles[i], roles[i]);
    }
}

static void bind_algorithm(cr_node *root, cr_algorithm *a)
{
    a->adv_estimator = text_of(root, "adv_estimator");
    a->loss_agg_mode = text_of(root, "loss_agg_mode");
    a->importance_sampling = text_of(root, "importance_sampling");
    a->kl_penalty = text_of(root, "kl_penalty");
    a->norm_mean_type = text_of(root, "norm_mean_type");
    a->norm_std_type = text_of(root, "norm_std_type");
    a->gamma = real_of(root, "gamma", 1);
    a->lambd = real_of(root, "lambd", 0.95);
    a->pg_clip = real_of(root, "pg_clip", 0.2);
    a->pg_clip_low = real_of(root, "pg_clip_low", 0.2);
    a->pg_clip_high = real_of(root, "pg_clip_high", 0.2);
    a->kl_loss_coef = real_of(root, "kl_loss_coef", 0);
    a->init_kl_coef = real_of(root, "init_kl_coef", 0.2);
    a->has_target_kl = cr_node_get(root, "target_kl")->kind == CR_NODE_REAL;
    a->target_kl = real_of(root, "target_kl", 0);
    a->kl_horizon = real_of(root, "kl_horizon", 10000);
    a->entropy_loss_coef = real_of(root, "entropy_loss_coef", 0);
    a->rl_loss_coef = real_of(root, "rl_loss_coef", 1);
    a->reward_clip = real_of(root, "reward_clip", 0);
    a->advantage_clip = real_of(root, "advantage_clip", 0);
    a->difficulty_low_threshold = real_of(root, "difficulty_low_threshold", 0);
    a->difficulty_high_threshold = real_of(root, "difficulty_high_threshold", 1);
    a->ppo_epochs = int_of(root, "ppo_epochs", 1);
    a->error_max_len_threshold = int_of(root, "error_max_len_threshold", 9999999999);
    a->use_pg_clip_range = flag_of(root, "use_pg_clip_range");
    a->dual_clip_loss = flag_of(root, "dual_clip_loss");
    a->add_token_level_kl = flag_of(root, "add_token_level_kl");
    a->use_kl_loss = flag_of(root, "use_kl_loss");
    a->whiten_rewards = flag_of(root, "whiten_rewards");
    a->whiten_advantages = flag_of(root, "whiten_advantages");
    a->max_len_mask = flag_of(root, "max_len_mask");
    a->difficulty_mask = flag_of(root, "difficulty_mask");
    a->error_max_len_clip = flag_of(root, "error_max_len_clip");
}

/* Rules that tie the keys of an rlvr file together. */
static void check_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_algorithm *a = &c->algorithm;
    double async = real_of(root, "async_generation_ratio", 0);
    int64_t rows = c->rollout_batch_size * c->group_size,
            dp = c->train.num_devices / (c->train.ulysses_size ? c->train.ulysses_size : 1);
    int64_t mini = c->train.per_device_train_batch_size * c->train.gradient_accumulation_steps;

    if (async > 0 && async < 1)
        cr_diagnose(d, CR_ERROR, place_of(c, "async_generation_ratio"),
                    "async_generation_ratio must be 0 or at least 1");
    else if (async > 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "async_generation_ratio"),
                    "async_generation_ratio: asynchronous rollouts are not available yet");
    if (a->adv_estimator && strcmp(a->adv_estimator, "gae") == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "adv_estimator"),
                    "adv_estimator: gae needs a critic, which is not available yet (use grpo or "
                    "reinforce)");
    if (a->kl_penalty && strcmp(a->kl_penalty, "full") == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "kl_penalty"),
                    "kl_penalty: full needs whole distributions and is not available yet");
    if (a->norm_std_type && strcmp(a->norm_std_type, "group") == 0 && a->norm_mean_type &&
        strcmp(a->norm_mean_type, "group") != 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "norm_std_type"),
                    "norm_std_type: group goes with norm_mean_type group");
    if (flag_of(root, "is_use_additional_prompts") &&
        int_of(root, "max_additional_running_prompts", 16) < 1)
        cr_diagnose(
            d, CR_ERROR, place_of(c, "max_additional_running_prompts"),
            "max_additional_running_prompts must be at least 1 with is_use_additional_prompts");
    if (c->enable_reference && !c->has_reference)
        cr_diagnose(d, CR_ERROR,
                    place_of(c, a->use_kl_loss                      ? "use_kl_loss"
                                : flag_of(root, "enable_reference") ? "enable_reference"
                                                                    : "init_kl_coef"),
                    "%s needs a reference model: add a reference block, or set init_kl_coef: 0.0 "
                    "and use_kl_loss: false",
                    a->use_kl_loss ? "use_kl_loss" : "init_kl_coef above 0 (default 0.2)");
    if (c->train.num_devices == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "actor_train"),
                    "actor_train.device_mapping is missing");
    if (c->infer.num_devices == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "actor_infer"),
                    "actor_infer.device_mapping is missing");
    if (c->has_reference && c->reference.num_devices == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "reference"), "reference.device_mapping is missing");
    if (c->train.num_file_names == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "actor_train"),
                    "actor_train.data_args.file_name is missing");
    else if (!c->train.messages && !c->train.prompt)
        cr_diagnose(
            d, CR_ERROR, place_of(c, "actor_train.data_args"),
            "actor_train.data_args needs messages (the column of the chat) or prompt (ready text)");
    if (c->num_rewards == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "rewards"), "rewards has no domain");
    if (dp > 0 && mini > 0 && (rows % dp != 0 || rows / dp % mini != 0))
        cr_diagnose(d, CR_ERROR, place_of(c, "rollout_batch_size"),
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

static void load_rlvr(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_algorithm *a = &c->algorithm;
    int64_t dp, mini;

    derive_lengths(c, root, d);
    derive_models(c, root, d);
    bind_algorithm(root, a);
    bind_worker(c, root, "actor_train", &c->train, true, d);
    bind_worker(c, root, "actor_infer", &c->infer, false, d);
    c->has_reference = cr_node_get(root, "reference")->kind == CR_NODE_MAP;
    if (c->has_reference) bind_worker(c, root, "reference", &c->reference, false, d);
    c->has_validation = cr_node_get(root, "validation")->kind == CR_NODE_MAP;
    if (c->has_validation) {
        bind_worker(c, root, "validation", &c->validation, false, d);
        c->has_validation = c->validation.num_file_names > 0;
        bind_generating(cr_node_at(root, "validation.generating_args"), &c->validation.generating);
    }
    bind_rewards(c, root, d);
    c->rollout_batch_size = int_of(root, "rollout_batch_size", 128);
    c->group_size = int_of(root, "num_return_sequences_in_group", 1);
    c->max_running_requests = int_of(root, "max_running_requests", 128);
    c->enable_reference =
        flag_of(root, "enable_reference") || a->use_kl_loss || a->init_kl_coef > 0;
    dp = c->train.num_devices / (c->train.ulysses_size ? c->train.ulysses_size : 1);
    mini = c->train.per_device_train_batch_size * c->train.gradient_accumulation_steps;
    c->enable_old_logprobs_recompute =
        flag_of(root, "enable_old_logprobs_recompute") || a->init_kl_coef > 0;
    if (dp > 0 && mini > 0 && c->rollout_batch_size * c->group_size / dp / mini > 1)
        c->enable_old_logprobs_recompute = true;
    if (flag_of(root, "force_disable_old_logprobs_recompute"))
        c->enable_old_logprobs_recompute = false;
    c->old_log_probs = choose_old_log_probs(c, flag_of(root, "enable_old_logprobs_recompute"));
    set_flag(c, root, "enable_reference", c->enable_reference);
    set_flag(c, root, "enable_old_logprobs_recompute", c->enable_old_logprobs_recompute);
    if (cr_node_get(root, "actor_infer")->kind == CR_NODE_MAP) {
        cr_node *g = cr_node_at(root, "actor_infer.generating_args");
        set_int(c, g, "num_return_sequences", c->group_size);
        set_int(c, g, "max_new_tokens", c->sequence_length - c->prompt_length);
        bind_generating(g, &c->infer.generating);
    }
    if (c->has_validation) {
        c->validation.generating.max_new_tokens = c->sequence_length - c->prompt_length;
        if (int_of(root, "val_sequence_length", 0))
            c->validation.generating.max_new_tokens =
                int_of(root, "val_sequence_length", 0) - int_of(root, "val_prompt_length", 0);
        set_int(c, cr_node_at(root, "validation.generating_args"), "max_new_tokens",
                c->validation.generating.max_new_tokens);
    }
    check_rlvr(c, root, d);
}

static void load_sft(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_node *args = cr_node_at(root, "sft_train.model_args"),
            *path = cr_node_get(args, "model_name_or_path"),
            *pretrain = cr_node_get(root, "pretrain");

    if (cr_node_get(root, "sft_train")->kind != CR_NODE_MAP) return;
    args = block_of(c, cr_node_get(root, "sft_train"), "model_args", "model_args", d);
    if (!path || path->kind != CR_NODE_TEXT) {
        if (pretrain->kind == CR_NODE_TEXT)
            set_text(c, args, "model_name_or_path", pretrain->text);
        else
            cr_diagnose(d, CR_ERROR, place_of(c, "sft_train"),
                        "sft_train has no model: give pretrain");
    }
    bind_worker(c, root, "sft_train", &c->train, true, d);
    c->sequence_length = int_of(root, "sequence_length", 0);
    if (!c->sequence_length)
        cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1}, "sequence_length must be given");
    c->prompt_key = text_of(root, "prompt_key");
    c->query_key = text_of(root, "query_key");
    c->response_key = text_of(root, "response_key");
    c->system_key = text_of(root, "system_key");
    if (c->train.num_devices == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "sft_train"), "sft_train.device_mapping is missing");
    if (c->train.num_file_names == 0)
        cr_diagnose(d, CR_ERROR, place_of(c, "sft_train"),
                    "sft_train.data_args.file_name is missing");
}

static void load_run(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    const cr_node *resume = cr_node_get(root, "resume_from_checkpoint");

    c->exp_name = text_of(root, "exp_name");
    c->output_dir = text_of(root, "output_dir");
    c->logging_dir = text_of(root, "logging_dir");
    c->track_with = text_of(root, "track_with");
    c->tracker_log_dir = text_of(cr_node_get(root, "tracker_kwargs"), "log_dir");
    c->pretrain = text_of(root, "pretrain");
    c->global_template = template_of(root, "global_template", d);
    c->seed = int_of(root, "seed", 42);
    c->max_steps = int_of(root, "max_steps", 500);
    c->save_steps = int_of(root, "save_steps", 50);
    c->eval_steps = int_of(root, "eval_steps", 10);
    c->logging_steps = int_of(root, "logging_steps", 1);
    c->max_ckpt_to_keep = int_of(root, "max_ckpt_to_keep", 0);
    c->model_update_frequency =
        int_of(cr_node_get(root, "actor_infer"), "model_update_frequency", 1);
    c->collective_timeout = real_of(root, "collective_timeout", 30);
    c->reward_timeout = real_of(root, "reward_timeout", 10);
    c->algorithm.max_grad_norm = real_of(root, "max_grad_norm", 1);
    c->exchange_url = text_of(cr_node_get(root, "exchange"), "url");
    if (resume->kind == CR_NODE_BOOL && resume->flag)
        c->resume = cr_strdup("");
    else if (resume->kind == CR_NODE_TEXT)
        c->resume = cr_strdup(resume->text);
    else if (resume->kind != CR_NODE_BOOL && resume->kind != CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, resume->place,
                    "resume_from_checkpoint: true, false or a path is expected");
    if (c->track_with &&
        (strcmp(c->track_with, "wandb") == 0 || strcmp(c->track_with, "swanlab") == 0 ||
         strcmp(c->track_with, "trackio") == 0))
        cr_diagnose(d, CR_ERROR, place_of(c, "track_with"),
                    "track_with: %s is not available yet (tensorboard, stdout and none are)",
                    c->track_with);
    if (flag_of(root, "profiler_timeline") && flag_of(root, "profiler_memory"))
        cr_diagnose(d, CR_ERROR, place_of(c, "profiler_memory"),
                    "profiler_timeline and profiler_memory exclude each other");
}

/* ---- entry ---- */

/* Blocks of pipelines that we do not have. */
static bool is_other_pipeline(const cr_node *root, cr_diagnostics *d)
{
    static const char *const marks[] = {"student", "train_env_manager", "val_env_manager",
                                        "custom_envs"};

    for (size_t i = 0; i < CR_COUNT(marks); i++) {
        struct cr_item *item = cr_node_item(root, marks[i]);
        if (!item) continue;
        cr_diagnose(d, CR_ERROR, item->place,
                    "the pipeline that %s belongs to is not available yet (rlvr and sft are)",
                    marks[i]);
        return true;
    }
    return false;
}

cr_status cr_config_load(const char *path, const char *const *overrides, size_t num_overrides,
                         cr_config *c, cr_diagnostics *d, cr_err *err)
{
    cr_node *root;

    *c = (cr_config){0};
    c->path = cr_strdup(path);
    cr_yaml_load(&c->yaml, path, overrides, num_overrides, d);
    root = c->yaml.root;
    if (d->num_errors == 0 && !is_other_pipeline(root, d)) {
        bool is_sft = cr_node_get(root, "sft_train") != NULL,
             is_rlvr = cr_node_get(root, "rewards") || cr_node_get(root, "actor_train") ||
                       cr_node_get(root, "actor_infer");
        if (!is_sft && !is_rlvr) {
            cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1},
                        "no pipeline: the file has neither rewards and actor_train (rlvr) nor "
                        "sft_train (sft)");
            cri_check_block(&c->yaml, "rlvr", root, d);
        } else {
            c->kind = is_sft ? CR_PIPELINE_SFT : CR_PIPELINE_RLVR;
            c->yaml.root = root = cri_check_block(&c->yaml, is_sft ? "sft" : "rlvr", root, d);
            load_run(c, root, d);
            if (is_sft)
                load_sft(c, root, d);
            else
                load_rlvr(c, root, d);
        }
    }
    if (d->num_errors)
        return cr_fail(err, CR_ECONFIG, "%zu error%s in %s", d->num_errors,
                       d->num_errors > 1 ? "s" : "", path);
    return CR_OK;
}

cr_status cr_config_worker(const char *block, const char *model, const char *const *overrides,
                           size_t num_overrides, cr_config *c, cr_diagnostics *d, cr_err *err)
{
    bool is_train = strcmp(block, "actor_train") == 0;
    cr_node *checked, *root;

    *c = (cr_config){0};
    c->path = cr_strdup("command line");
    cr_yaml_load(&c->yaml, NULL, overrides, num_overrides, d);
    c->yaml.root->place = (cr_place){c->path, 1, 1};
    if (d->num_errors == 0) {
        checked = cri_check_block(&c->yaml, "worker", c->yaml.root, d);
        root = cr_node_new(&c->yaml, CR_NODE_MAP, c->yaml.root->place);
        cr_node_set(&c->yaml, root, block, root->place, checked);
        c->yaml.root = root;
        if (d->num_errors == 0) {
            bind_worker(c, root, block, &c->train, is_train, d);
            bind_generating(cr_node_get(cr_node_get(root, block), "generating_args"),
                            &c->train.generating);
        }
        if (!c->train.model_path) c->train.model_path = cr_strdup(model);
        c->collective_timeout = 60;
    }
    if (d->num_errors)
        return cr_fail(err, CR_ECONFIG, "%zu error%s in the worker keys", d->num_errors,
                       d->num_errors > 1 ? "s" : "");
    return CR_OK;
}

cr_status cr_config_write(const cr_config *config, const char *path, cr_err *err)
{
    cr_buf out = {0};
    cr_status status;

    cr_buf_adds(
        &out, "# The resolved configuration of this run, written by croll. Secrets are masked.\n");
    cr_node_write_yaml(config->yaml.root, &out);
    status = cr_file_write_atomic(path, out.data, out.num_bytes, err);
    cr_buf_free(&out);
    return status;
}

const cr_reward_config *cr_config_find_reward(const cr_config *config, const char *domain)
{
    for (size_t i = 0; i < config->num_rewards; i++)
        if (strcmp(config->rewards[i].domain, domain) == 0) return &config->rewards[i];
    return NULL;
}

const cr_node *cr_config_at(const cr_config *config, const char *dotted)
{
    return cr_node_at(config->yaml.root, dotted);
}

static void texts_free(char **texts, size_t num)
{
    for (size_t i = 0; i < num; i++)
        cr_free(texts[i]);
    cr_free(texts);
}

static void worker_free(cr_worker_config *w)
{
    char *const texts[] = {w->model_path,
                           w->dtype,
                           w->master_dtype,
                           w->reduce_dtype,
                           w->freeze_module_prefix,
                           w->lr_scheduler_type,
                           w->template,
                           w->messages,
                           w->prompt,
                           w->strategy_name};

    for (size_t i = 0; i < CR_COUNT(texts); i++)
        cr_free(texts[i]);
    texts_free(w->wrap_classes, w->num_wrap_classes);
    texts_free(w->wrap_modules, w->num_wrap_modules);
    texts_free(w->moe_experts, w->num_moe_experts);
    texts_free(w->file_names, w->num_file_names);
    texts_free(w->generating.stop_strings, w->generating.num_stop_strings);
    cr_free(w->devices);
}

void cr_config_free(cr_config *c)
{
    char *const texts[] = {c->path,
                           c->exp_name,
                           c->output_dir,
                           c->logging_dir,
                           c->track_with,
                           c->tracker_log_dir,
                           c->pretrain,
                           c->resume,
                           c->prompt_key,
                           c->response_key,
                           c->query_key,
                           c->system_key,
                           c->global_template,
                           c->exchange_url,
                           c->algorithm.adv_estimator,
                           c->algorithm.loss_agg_mode,
                           c->algorithm.importance_sampling,
                           c->algorithm.kl_penalty,
                           c->algorithm.norm_mean_type,
                           c->algorithm.norm_std_type};

    for (size_t i = 0; i < CR_COUNT(texts); i++)
        cr_free(texts[i]);
    worker_free(&c->train);
    worker_free(&c->infer);
    worker_free(&c->reference);
    worker_free(&c->validation);
    for (size_t i = 0; i < c->num_rewards; i++) {
        cr_free(c->rewards[i].domain);
        cr_free(c->rewards[i].exec);
        cr_free(c->rewards[i].reward_type);
        cr_free(c->rewards[i].format_pattern);
        texts_free(c->rewards[i].tags, c->rewards[i].num_tags);
    }
    cr_free(c->rewards);
    cr_yaml_free(&c->yaml);
    *c = (cr_config){0};
}
