/* worker.c -- a worker block: its models, its training, its strategy and its devices. */
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

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
    char *text = cri_text_of(map, key);
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

void cri_bind_generating(const cr_node *g, cr_generating_args *out)
{
    const cr_node *include = cr_node_get(g, "include_stop_str_in_output");

    out->temperature = cri_flag_of(g, "do_sample") ? cri_real_of(g, "temperature", 1) : 0;
    out->top_p = cri_real_of(g, "top_p", 1);
    out->min_p = cri_real_of(g, "min_p", 0);
    out->top_k = cri_int_of(g, "top_k", -1);
    out->repetition_penalty = cri_real_of(g, "repetition_penalty", 1);
    out->max_new_tokens = cri_int_of(g, "max_new_tokens", 8192);
    out->num_return_sequences = cri_int_of(g, "num_return_sequences", 1);
    out->stop_strings = cri_texts_of(g, "stop_strings", &out->num_stop_strings);
    out->include_stop_str_in_output = !include || include->kind != CR_NODE_BOOL || include->flag;
}

/* Numbers with an upper end. */
static void check_ranges(const cr_node *training, const cr_worker_config *w, cr_diagnostics *d)
{
    const struct {
        const char *key;
        bool is_wrong;
        const char *range;
    } checks[] = {{"adam_beta1", w->adam_beta1 >= 1, "below 1"},
                  {"adam_beta2", w->adam_beta2 >= 1, "below 1"},
                  {"warmup_ratio", w->warmup_ratio > 1, "of at most 1"}};

    for (size_t i = 0; i < CR_COUNT(checks); i++)
        if (checks[i].is_wrong)
            cr_diagnose(d, CR_ERROR, cr_node_get(training, checks[i].key)->place,
                        "%s: a number %s is expected", checks[i].key, checks[i].range);
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
    w->max_model_len = cri_int_of(config, "max_model_len", 0);
    w->gpu_memory_utilization = cri_real_of(config, "gpu_memory_utilization", 0);
    w->sleep_level = cri_int_of(config, "sleep_level", 1);
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
                         "unit hands the next one param_dtype, a vision tower in fp32, too"},
        {"buffer_dtype", "the only buffers are rotary tables, computed in fp32"},
    };
    const cr_node *cast = cr_node_get(config, "cast_forward_inputs");

    for (size_t i = 0; i < CR_COUNT(fixed); i++) {
        char *name = cri_text_of(config, fixed[i].key);
        const char *dtype = short_dtype(name);
        if (dtype && strcmp(dtype, "fp32") != 0)
            cr_diagnose(d, CR_ERROR, cr_node_get(config, fixed[i].key)->place,
                        "%s: %s is not available: %s (leave the key out)", fixed[i].key, dtype,
                        fixed[i].why);
        cr_free(name);
    }
    if (cast && cast->kind == CR_NODE_BOOL)
        cr_diagnose(
            d, CR_NOTE, cast->place,
            "cast_forward_inputs: true and false are the same: what enters a unit is in its "
            "dtype already (ids and positions are whole numbers, and pixels enter a tower as "
            "they are)");
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
    cr_node *config = cr_node_get(strategy, "strategy_config"), *reshard, *wrap, *tiled;
    char *given;

    if (!config || config->kind != CR_NODE_MAP)
        config =
            cr_node_new(&c->yaml, CR_NODE_MAP, config ? config->place : (cr_place){c->path, 0, 0});
    config = cri_check_block(&c->yaml, "fsdp2", config, d);
    cr_node_set(&c->yaml, strategy, "strategy_config", config->place, config);
    w->fsdp_size = cri_int_of(config, "fsdp_size", 1);
    w->mlp_tiles =
        cri_flag_of(config, "apply_tiled_mlp") ? cri_int_of(config, "tiled_num_shards", 4) : 0;
    if (w->mlp_tiles && (tiled = cr_node_get(config, "model_type")) && tiled->kind != CR_NODE_NULL)
        cr_diagnose(d, CR_NOTE, tiled->place, "model_type: every MLP is tiled, whatever it says");
    reshard = cr_node_get(config, "reshard_after_forward");
    bind_reshard(reshard, w, d);
    w->is_offloaded = cri_flag_of(config, "offload_policy");
    w->sleep_level = cri_int_of(config, "sleep_level", 1);
    w->is_reduced_once = !cri_flag_of(config, "reduce_scatter_during_grad_accumulation");
    w->save_only_model = cri_flag_of(config, "save_only_model");
    w->async_save_ckpt = cri_flag_of(config, "async_save_ckpt");
    wrap = cr_node_get(config, "wrap_policy");
    w->wrap_embeddings = cri_flag_of(wrap, "wrap_embeddings");
    w->wrap_lm_output = cri_flag_of(wrap, "wrap_lm_output");
    w->wrap_nested = cri_flag_of(wrap, "nested");
    w->wrap_min_params = cri_int_of(wrap, "min_num_params", 0);
    for (size_t i = 0; i < CR_COUNT(lists); i++) {
        cr_node *n = cr_node_get(wrap, lists[i].key);
        if (n && n->kind != CR_NODE_NULL)
            *lists[i].texts = cri_texts_of(wrap, lists[i].key, lists[i].num);
    }
    w->apply_expert_patch = cri_flag_of(config, "apply_expert_patch");
    w->ep_size = cri_int_of(config, "ep_size", 1);
    w->efsdp_size = cri_int_of(config, "efsdp_size", 1);
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
char *cri_template_of(const cr_node *map, const char *key, cr_diagnostics *d)
{
    char *name = cri_text_of(map, key);

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

static void inherit(cr_config *c, cr_node *to, const cr_node *from, const char *key)
{
    const cr_node *own = cr_node_get(to, key), *other = cr_node_get(from, key);

    if (own && own->kind != CR_NODE_NULL && own->place.line > 0) return;
    if (other && other->kind == CR_NODE_TEXT) cri_set_text(c, to, key, other->text);
}

void cri_bind_validation(cr_config *c, cr_node *root, const char *train, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, "validation"), *to,
            *from = cr_node_get(cr_node_get(root, train), "data_args");
    bool has_columns;

    if (!block || block->kind != CR_NODE_MAP) return;
    to = cri_block_of(c, block, "data_args", "data_args", d);
    has_columns = cr_node_get(to, "messages")->kind == CR_NODE_TEXT ||
                  cr_node_get(to, "prompt")->kind == CR_NODE_TEXT;
    if (!has_columns) {
        inherit(c, to, from, "messages");
        inherit(c, to, from, "prompt");
    }
    inherit(c, to, from, "template");
    inherit(c, to, from, "tag");
    inherit(c, to, from, "unknown_tag");
    cri_bind_worker(c, root, "validation", &c->validation, false, d);
    c->has_validation = c->validation.num_file_names > 0;
}

void cri_bind_worker(cr_config *c, cr_node *root, const char *name, cr_worker_config *w,
                     bool is_train, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, name), *model, *training, *data, *strategy;
    char *strategy_name, *unknown_tag;

    w->name = name;
    if (!block || block->kind != CR_NODE_MAP) return;
    model = cri_block_of(c, block, "model_args", "model_args", d);
    training = cri_block_of(c, block, "training_args", "training_args", d);
    data = cri_block_of(c, block, "data_args", "data_args", d);
    cri_block_of(c, block, "generating_args", "generating_args", d);
    strategy = cri_block_of(c, block, "strategy_args", "strategy_args", d);
    w->model_path = cri_text_of(model, "model_name_or_path");
    w->dtype = dtype_of(model, "dtype", "bf16", d);
    w->should_recompute = is_train && !cri_flag_of(model, "disable_gradient_checkpointing");
    w->freeze_module_prefix = cri_text_of(model, "freeze_module_prefix");
    w->stage = cri_text_of(model, "stage");
    if (w->stage && w->freeze_module_prefix)
        cr_diagnose(d, CR_ERROR, cr_node_get(model, "stage")->place,
                    "stage: freeze_module_prefix says what is frozen, too (leave one of them out)");
    w->moe_aux_loss_coef = cri_real_of(model, "moe_aux_loss_coef", -1);
    w->ulysses_size = cri_int_of(model, "ulysses_size", 1);
    w->learning_rate = cri_real_of(training, "learning_rate", 5e-5);
    w->lr_scheduler_type = cri_text_of(training, "lr_scheduler_type");
    w->weight_decay = cri_real_of(training, "weight_decay", 0);
    w->adam_beta1 = cri_real_of(training, "adam_beta1", 0.9);
    w->adam_beta2 = cri_real_of(training, "adam_beta2", 0.999);
    w->warmup_steps = cri_int_of(training, "warmup_steps", 0);
    w->warmup_ratio = cri_real_of(training, "warmup_ratio", 0);
    w->per_device_train_batch_size = cri_int_of(training, "per_device_train_batch_size", 8);
    w->gradient_accumulation_steps = cri_int_of(training, "gradient_accumulation_steps", 1);
    w->num_train_epochs = cri_int_of(training, "num_train_epochs", 1);
    check_ranges(training, w, d);
    w->file_names = cri_texts_of(data, "file_name", &w->num_file_names);
    w->template = cri_template_of(data, "template", d);
    w->messages = cri_text_of(data, "messages");
    w->prompt = cri_text_of(data, "prompt");
    w->tag = cri_text_of(data, "tag");
    unknown_tag = cri_text_of(data, "unknown_tag");
    w->drops_unknown_tags = unknown_tag && strcmp(unknown_tag, "drop") == 0;
    cr_free(unknown_tag);
    w->infer_batch_size = cri_int_of(block, "infer_batch_size", 16);
    w->world_size = cri_int_of(block, "world_size", 1);
    bind_devices(block, w, d);
    strategy_name = cri_text_of(strategy, "strategy_name");
    w->strategy_name =
        strategy_name ? strategy_name : cr_strdup(is_train ? "fsdp2_train" : "fsdp2_infer");
    w->ep_size = w->efsdp_size = 1;
    w->reshard_after_forward = -1;
    if (strncmp(w->strategy_name, "fsdp2", 5) == 0) {
        if (is_train && strcmp(w->strategy_name, "fsdp2_infer") == 0)
            cr_diagnose(d, CR_ERROR, cr_node_get(strategy, "strategy_name")->place,
                        "strategy_name: %s needs fsdp2_train, not fsdp2_infer", name);
        bind_fsdp2(c, strategy, w, is_train, d);
    } else if (is_train) {
        cr_diagnose(d, CR_ERROR, cr_node_get(strategy, "strategy_name")->place,
                    "strategy_name: %s is another engine's; %s needs fsdp2_train", w->strategy_name,
                    name);
    } else {
        map_engine(c, strategy, w->strategy_name, w, d);
    }
    if (!w->reduce_dtype) w->reduce_dtype = cr_strdup("fp32");
    if (!w->master_dtype) w->master_dtype = cr_strdup(is_train ? "fp32" : w->dtype);
    if (w->fsdp_size == 0) w->fsdp_size = 1;
    cri_check_mesh(w, block, d);
    if (w->messages && w->prompt)
        cr_diagnose(d, CR_ERROR, cr_node_get(data, "prompt")->place,
                    "data_args of %s: messages and prompt exclude each other", name);
}
