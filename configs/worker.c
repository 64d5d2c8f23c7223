/* worker.c -- a worker block: its models, its training, its strategy and its devices. */
#include "base/hub.h"
#include "configs/bind.h"

#include <stdio.h>
#include <string.h>

/* A dtype of the file; `otherwise` where none is given. fp16 is for computing only. */
static cr_choice_dtype dtype_of(const char *block, const cr_node *map, const char *key,
                                cr_choice_dtype otherwise, cr_diagnostics *d)
{
    bool is_compute = strcmp(key, "dtype") == 0 || strcmp(key, "param_dtype") == 0;
    cr_choice_dtype dtype;

    if (!cri_is_given(map, key)) return otherwise;
    dtype = (cr_choice_dtype)(cri_choice_of(block, map, key) - !cri_find_key(block, key)->standard);
    if (dtype == CR_CHOICE_FP64 || (dtype == CR_CHOICE_FP16 && !is_compute)) {
        cr_diagnose(d, CR_ERROR, cr_node_get(map, key)->place,
                    "%s: %s is not available (fp32 and bf16 are%s)", key,
                    cr_node_get(map, key)->text, is_compute ? ", and fp16" : "");
        return CR_CHOICE_FP32;
    }
    return dtype;
}

static void bind_training(cr_config *c, cr_node *block, cr_training_args *t, cr_diagnostics *d)
{
    t->learning_rate = cri_real_of(block, "learning_rate");
    cri_bind_schedule(block, t, d);
    cri_bind_optimizer(c, block, t, d);
    cri_bind_param_groups(block, t, d);
    t->weight_decay = cri_real_of(block, "weight_decay");
    t->adam_beta1 = cri_real_of(block, "adam_beta1");
    t->adam_beta2 = cri_real_of(block, "adam_beta2");
    t->adam_epsilon = cri_real_of(block, "adam_epsilon");
    t->warmup_steps = cri_int_of(block, "warmup_steps");
    t->warmup_ratio = cri_real_of(block, "warmup_ratio");
    t->per_device_train_batch_size = cri_int_of(block, "per_device_train_batch_size");
    t->gradient_accumulation_steps = cri_int_of(block, "gradient_accumulation_steps");
    t->num_train_epochs = cri_real_of(block, "num_train_epochs");
    const struct {
        const char *key;
        bool is_wrong;
        const char *range;
    } checks[] = {{"adam_beta1", t->adam_beta1 >= 1, "below 1"},
                  {"adam_beta2", t->adam_beta2 >= 1, "below 1"},
                  {"warmup_ratio", t->warmup_ratio > 1, "of at most 1"}};
    for (size_t i = 0; i < CR_COUNT(checks); i++)
        if (checks[i].is_wrong)
            cr_diagnose(d, CR_ERROR, cr_node_get(block, checks[i].key)->place,
                        "%s: a number %s is expected", checks[i].key, checks[i].range);
}

/* max 0: the processor's. */
static void check_pixels(const cr_node *block, const char *role, const char *of, int64_t min,
                         int64_t max, cr_diagnostics *d)
{
    char name[sizeof "image_min_pixels"];

    if (!max || min <= max) return;
    snprintf(name, sizeof name, "%.5s_min_pixels", of);
    cr_diagnose(d, CR_ERROR, cr_node_get(block, name)->place,
                "data_args of %s: %s is above %s_max_pixels", role, name, of);
}

static void bind_data(const cr_node *block, const char *role, cr_data_args *a, cr_diagnostics *d)
{
    a->file_names = cri_texts_of(block, "file_name", &a->num_file_names);
    a->template = cri_text_of(block, "template");
    a->messages = cri_text_of(block, "messages");
    a->prompt = cri_text_of(block, "prompt");
    a->tag = cri_text_of(block, "tag");
    a->columns = cri_columns_of(block, &a->num_columns, d);
    a->drops_unknown_tags = cri_choice_of("data_args", block, "unknown_tag") == 1;
    a->drops_broken_images = cri_choice_of("data_args", block, "broken_image") == 1;
    a->has_white_alpha = cri_choice_of("data_args", block, "image_alpha") == 1;
    a->image_folder = cri_text_of(block, "image_folder");
    a->image_min_pixels = cri_int_of(block, "image_min_pixels");
    a->image_max_pixels = cri_int_of(block, "image_max_pixels");
    check_pixels(block, role, "image", a->image_min_pixels, a->image_max_pixels, d);
    a->video_min_pixels = cri_int_of(block, "video_min_pixels");
    a->video_max_pixels = cri_int_of(block, "video_max_pixels");
    check_pixels(block, role, "video", a->video_min_pixels, a->video_max_pixels, d);
    a->video_fps = cri_real_of(block, "video_fps");
    if (a->messages && a->prompt)
        cr_diagnose(d, CR_ERROR, cr_node_get(block, "prompt")->place,
                    "data_args of %s: messages and prompt exclude each other", role);
}

/* Classes of ROLL's own; one of the user's own has a loss that croll cannot know. */
static void check_class(const cr_node *block, const char *role, cr_diagnostics *d)
{
    static const char *const known[] = {"ActorWorker", "ActorPGWorker", "InferWorker", "SFTWorker",
                                        "CriticWorker"};
    const cr_node *n = cr_node_get(block, "worker_cls");
    const char *last = cri_is_given(block, "worker_cls") ? strrchr(n->text, '.') : NULL;

    if (!cri_is_given(block, "worker_cls")) return;
    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (strcmp(last ? last + 1 : n->text, known[i]) == 0 &&
            (!last || strncmp(n->text, "roll.", 5) == 0))
            return;
    cr_diagnose(d, CR_ERROR, n->place,
                "worker_cls of %s: croll runs no class of one's own, and %.80s is none of ROLL's "
                "(ActorWorker; ActorPGWorker with pg_variant)",
                role, n->text);
}

static void bind_engine(const cr_node *config, cr_worker_config *w, cr_diagnostics *d)
{
    cr_engine_args *e = &w->engine;

    e->max_model_len = cri_int_of(config, "max_model_len");
    e->sleep_level = cri_int_of(config, "sleep_level");
    e->enforce_eager = cri_flag_of(config, "enforce_eager");
    e->gpu_memory_utilization = cri_real_of(config, "gpu_memory_utilization");
    if (e->gpu_memory_utilization > 1)
        cr_diagnose(d, CR_ERROR, cr_node_get(config, "gpu_memory_utilization")->place,
                    "gpu_memory_utilization: a share of at most 1 is expected");
}

/* The strategy_config of another engine: what means something to ours, the rest in one note. */
static void bind_other_engine(cr_config *c, cr_node *strategy, cr_worker_config *w,
                              cr_diagnostics *d)
{
    cr_node *config = cr_node_get(strategy, "strategy_config"),
            *known = cr_node_new(&c->yaml, CR_NODE_MAP, strategy->place);
    cr_buf rest = {0};

    for (size_t i = 0; config && config->kind == CR_NODE_MAP && i < config->num; i++) {
        struct cr_item *item = &config->items[i];
        if (cri_find_key("engine", item->key))
            cr_node_set(&c->yaml, known, item->key, item->place, item->value);
        else
            cr_buf_addf(&rest, "%s%s", rest.num_bytes ? ", " : "", item->key);
    }
    cr_diagnose(d, CR_NOTE, cr_node_get(strategy, "strategy_name")->place,
                "%s: croll's own %s instead%s%s", w->strategy_name,
                w->task == CR_TASK_GENERATE ? "generation engine runs" : "fsdp2_infer runs",
                rest.num_bytes ? "; without effect: " : "", rest.num_bytes ? rest.data : "");
    cr_buf_free(&rest);
    config = cri_check_block(&c->yaml, "engine", known, d);
    cr_node_set(&c->yaml, strategy, "strategy_config", config->place, config);
    bind_engine(config, w, d);
}

/* true, false, null, to how many ranks, or, of a trained role, auto. */
static void bind_reshard(const cr_node *n, cr_worker_config *w, cr_diagnostics *d)
{
    w->reshard_after_forward = n->kind == CR_NODE_BOOL ? n->flag : -1;
    w->is_reshard_auto =
        w->task == CR_TASK_TRAIN && n->kind == CR_NODE_TEXT && strcmp(n->text, "auto") == 0;
    if (w->is_reshard_auto) return;
    if (n->kind == CR_NODE_INT && n->integer >= 1 && n->integer <= INT32_MAX)
        w->reshard_ranks = (int)n->integer;
    else if (n->kind != CR_NODE_BOOL && n->kind != CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, n->place,
                    "U8: reshard_after_forward is true, false, null or a number of ranks from 1%s",
                    w->task == CR_TASK_TRAIN ? ", or auto" : "");
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

    for (size_t i = 0; i < CR_COUNT(fixed); i++)
        if (cri_is_given(config, fixed[i].key) &&
            cri_choice_of("fsdp2", config, fixed[i].key) - 1 != CR_CHOICE_FP32)
            cr_diagnose(d, CR_ERROR, cr_node_get(config, fixed[i].key)->place,
                        "%s: %s is not available: %s (leave the key out)", fixed[i].key,
                        cr_node_get(config, fixed[i].key)->text, fixed[i].why);
}

static void bind_wrap(cr_config *c, cr_node *config, cr_worker_config *w, cr_diagnostics *d)
{
    cr_node *wrap = cri_block_of(c, config, "wrap_policy", "wrap_policy", d);
    cr_wrap_args *a = &w->wrap;

    a->embeddings = cri_flag_of(wrap, "wrap_embeddings");
    a->lm_output = cri_flag_of(wrap, "wrap_lm_output");
    a->nested = cri_flag_of(wrap, "nested");
    a->min_params = cri_int_of(wrap, "min_num_params");
    a->classes = cri_texts_of(wrap, "transformer_layer_cls_to_wrap", &a->num_classes);
    a->moe_experts = cri_texts_of(wrap, "moe_experts", &a->num_moe_experts);
    a->modules = cri_texts_of(wrap, "modules", &a->num_modules);
    if (a->num_moe_experts && !w->apply_expert_patch && w->ep_size == 1 && w->num_devices > 1)
        cr_diagnose(d, CR_WARNING, cr_node_get(wrap, "moe_experts")->place,
                    "moe_experts: experts without tokens are not gathered, so ranks that route "
                    "differently stop with an error (apply_expert_patch: true calls every expert)");
}

static void bind_dtypes(const cr_node *config, cr_worker_config *w, bool is_train,
                        cr_diagnostics *d)
{
    w->dtype = dtype_of("fsdp2", config, "param_dtype", w->dtype, d);
    check_precision(config, d);
    w->reduce_dtype = dtype_of("fsdp2", config, "reduce_dtype", CR_CHOICE_FP32, d);
    w->master_dtype =
        dtype_of("fsdp2", config, "master_dtype", is_train ? CR_CHOICE_FP32 : w->dtype, d);
    if (is_train && w->master_dtype != CR_CHOICE_FP32)
        cr_diagnose(
            d, CR_WARNING, cr_node_get(config, "master_dtype")->place,
            "master_dtype: bf16 masters lose every update below 1/256 to 1/512 of a weight: of a "
            "weight of 0.02 all below %.1e, while AdamW's are about the learning rate "
            "(leave master_dtype out for fp32)",
            0x1p-14);
}

static void bind_fsdp2(cr_config *c, cr_node *strategy, cr_worker_config *w, bool is_train,
                       cr_diagnostics *d)
{
    cr_node *config = cr_node_get(strategy, "strategy_config");

    if (!config || config->kind != CR_NODE_MAP)
        config =
            cr_node_new(&c->yaml, CR_NODE_MAP, config ? config->place : (cr_place){c->path, 0, 0});
    config = cri_check_block(&c->yaml, "fsdp2", config, d);
    cr_node_set(&c->yaml, strategy, "strategy_config", config->place, config);
    w->fsdp_size = cri_int_of(config, "fsdp_size");
    if (w->fsdp_size == 0) w->fsdp_size = 1;
    w->mlp_tiles =
        cri_flag_of(config, "apply_tiled_mlp") ? cri_int_of(config, "tiled_num_shards") : 0;
    bind_reshard(cr_node_get(config, "reshard_after_forward"), w, d);
    w->is_offloaded = cri_flag_of(config, "offload_policy");
    bind_engine(config, w, d);
    w->is_reduced_once = !cri_flag_of(config, "reduce_scatter_during_grad_accumulation");
    w->save_only_model = cri_flag_of(config, "save_only_model");
    w->async_save_ckpt = cri_flag_of(config, "async_save_ckpt");
    w->apply_expert_patch = cri_flag_of(config, "apply_expert_patch");
    w->ep_size = cri_int_of(config, "ep_size");
    w->efsdp_size = cri_int_of(config, "efsdp_size");
    bind_wrap(c, config, w, d);
    bind_dtypes(config, w, is_train, d);
}

static void bind_devices(cr_node *block, cr_worker_config *w, cr_diagnostics *d)
{
    cr_node *n = cr_node_get(block, "device_mapping");
    cr_buf text = {0};
    cr_err err = {0};

    w->is_mapped = n && n->kind != CR_NODE_NULL;
    if (!w->is_mapped) return;
    if (n->kind == CR_NODE_TEXT)
        cr_buf_adds(&text, n->text);
    else
        cr_node_write_json(n, &text);
    if (cr_device_mapping(text.data ? text.data : "", &w->devices, &w->num_devices, &err) != CR_OK)
        cr_diagnose(d, CR_ERROR, n->place, "device_mapping: %s", err.msg);
    for (int i = 0; i < w->num_devices; i++)
        for (int k = 0; k < i; k++)
            if (w->devices[i] == w->devices[k]) {
                cr_diagnose(d, CR_ERROR, n->place,
                            "device_mapping: device %d stands twice (a rank has a device of its "
                            "own)",
                            w->devices[i]);
                i = k = w->num_devices;
            }
    cr_buf_free(&text);
}

/* A name at Hugging Face becomes the folder of its snapshot, for every rank the same. */
static void bind_model_path(cr_config *c, cr_node *model, cr_worker_config *w)
{
    char *name = cri_text_of(model, "model_name_or_path"),
         *folder = name ? cr_hub_find(name) : NULL;

    w->model_path = folder ? folder : name;
    if (!folder || strcmp(folder, name) == 0) {
        if (folder) cr_free(name);
        return;
    }
    cri_set_text(c, model, "model_name_or_path", folder);
    cr_free(name);
}

static bool are_same_texts(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool are_same_adapters(const cr_lora_keys *a, const cr_lora_keys *b)
{
    return are_same_texts(a->target, b->target) && are_same_texts(a->folder, b->folder) &&
           are_same_texts(a->saved, b->saved) && a->rank == b->rank &&
           !(a->alpha < b->alpha || a->alpha > b->alpha) && a->use_rslora == b->use_rslora;
}

/* What a folder says is left to it, unless the file says it, too. */
static void read_lora(cr_node *model, cr_lora_keys *l)
{
    l->target = cri_text_of(model, "lora_target");
    l->folder = cri_text_of(model, "adapter_name_or_path");
    l->saved = cri_text_of(model, "additional_target");
    l->use_rslora = cri_flag_of(model, "use_rslora");
    l->dropout = cri_is_given(model, "lora_dropout") ? cri_real_of(model, "lora_dropout")
                 : l->folder                         ? -1
                                                     : 0;
    if (cri_is_given(model, "lora_rank"))
        l->rank = cri_int_of(model, "lora_rank");
    else if (!l->folder)
        l->rank = 8;
    if (cri_is_given(model, "lora_alpha"))
        l->alpha = cri_real_of(model, "lora_alpha");
    else if (!l->folder)
        l->alpha = 2 * (double)l->rank;
}

static void lora_free(cr_lora_keys *l)
{
    cr_free(l->target);
    cr_free(l->folder);
    cr_free(l->saved);
    l->target = l->folder = l->saved = NULL;
}

/* Adapters are trained, and the engine has those that are trained: its keys may repeat them, as ROLL wants it. */
static void bind_lora(cr_config *c, cr_node *model, cr_worker_config *w, cr_diagnostics *d)
{
    static const char *const with[] = {"lora_rank", "lora_alpha", "use_rslora", "lora_dropout",
                                       "additional_target"};
    cr_lora_keys *l = &w->lora;
    const char *key;
    cr_place place;

    read_lora(model, l);
    for (size_t i = 0; i < CR_COUNT(with) && !cr_is_lora(l); i++)
        if (cri_is_in_file(model, with[i]))
            cr_diagnose_unused(d, cr_node_get(model, with[i])->place, with[i],
                               "there is no lora_target beside it");
    if (!cr_is_lora(l)) return;
    key = l->target ? "lora_target" : "adapter_name_or_path";
    place = cr_node_get(model, key)->place;
    if (w == &c->train) {
        if (w->stage || w->freeze_module_prefix)
            cr_diagnose(d, CR_ERROR, place, "%s: all but the adapters is frozen (leave %s out)",
                        key, w->stage ? "stage" : "freeze_module_prefix");
    } else if (w->value_head == CR_VALUE_HEAD_SCORE) {
        cr_diagnose(d, CR_ERROR, place,
                    "rewards.%s: adapters of a reward model are not available yet (croll export "
                    "--merge makes one model of both)",
                    w->name);
    } else if (w == &c->infer) {
        if (!are_same_adapters(l, &c->train.lora))
            cr_diagnose_unused(d, place, key,
                               "the engine has the adapters of actor_train, and these are others");
    } else {
        if (w->task == CR_TASK_VALUE)
            cr_diagnose(d, CR_ERROR, place, "%s: adapters of a critic are not available yet", key);
        else
            cr_diagnose_unused(d, place, key, "%s has no adapters", w->name);
        lora_free(l);
    }
}

static void bind_model(cr_config *c, cr_node *model, bool is_train, cr_worker_config *w,
                       cr_diagnostics *d)
{
    bind_model_path(c, model, w);
    w->dtype = dtype_of("model_args", model, "dtype", CR_CHOICE_BF16, d);
    w->should_recompute = is_train && !cri_flag_of(model, "disable_gradient_checkpointing");
    w->freeze_module_prefix = cri_text_of(model, "freeze_module_prefix");
    w->stage = cri_text_of(model, "stage");
    if (w->freeze_module_prefix && strstr(w->freeze_module_prefix, "vision_model"))
        cr_diagnose(d, CR_NOTE, cr_node_get(model, "freeze_module_prefix")->place,
                    "freeze_module_prefix: vision_model means the vision tower, as visual does (in "
                    "ROLL it matches no parameter and freezes nothing)");
    if (w->stage && w->freeze_module_prefix)
        cr_diagnose(d, CR_ERROR, cr_node_get(model, "stage")->place,
                    "stage: freeze_module_prefix says what is frozen, too (leave one of them out)");
    bind_lora(c, model, w, d);
    cri_bind_value_head(model, w, d);
    w->moe_aux_loss_coef =
        cri_is_given(model, "moe_aux_loss_coef") ? cri_real_of(model, "moe_aux_loss_coef") : -1;
    w->ulysses_size = cri_int_of(model, "ulysses_size");
}

static void bind_strategy(cr_config *c, cr_node *strategy, cr_worker_config *w, bool is_train,
                          cr_diagnostics *d)
{
    const cr_node *name = cr_node_get(strategy, "strategy_name");
    int choice = cri_choice_of("strategy_args", strategy, "strategy_name");

    w->strategy = choice >= CR_STRATEGY_OTHER ? CR_STRATEGY_OTHER : (cr_choice_strategy)choice;
    if (w->strategy == CR_STRATEGY_NONE)
        w->strategy = is_train ? CR_STRATEGY_FSDP2_TRAIN : CR_STRATEGY_FSDP2_INFER;
    w->strategy_name = cri_is_given(strategy, "strategy_name")
                           ? cri_text_of(strategy, "strategy_name")
                           : cr_strdup(is_train ? "fsdp2_train" : "fsdp2_infer");
    w->ep_size = w->efsdp_size = w->fsdp_size = 1;
    w->reshard_after_forward = -1;
    w->reduce_dtype = CR_CHOICE_FP32;
    w->master_dtype = is_train ? CR_CHOICE_FP32 : w->dtype;
    if (is_train && w->strategy == CR_STRATEGY_FSDP2_INFER)
        cr_diagnose(d, CR_ERROR, name->place,
                    "strategy_name: %s needs fsdp2_train, not fsdp2_infer", w->name);
    if (is_train && w->strategy == CR_STRATEGY_OTHER)
        cr_diagnose(d, CR_ERROR, name->place,
                    "strategy_name: %s is another engine's; %s needs fsdp2_train%s",
                    w->strategy_name, w->name,
                    cri_is_mappable(w->strategy_name)
                        ? " (--as-fsdp2, or as_fsdp2: true in the file, maps it)"
                        : "");
    else if (w->strategy == CR_STRATEGY_OTHER)
        bind_other_engine(c, strategy, w, d);
    else
        bind_fsdp2(c, strategy, w, is_train, d);
}

static void note_unused(const cr_node *root, const char *name, const char *key, const char *why,
                        cr_diagnostics *d)
{
    const cr_node *block = cr_node_get(root, name);
    char dotted[80];

    if (!block || block->kind != CR_NODE_MAP || !cri_is_in_file(block, key)) return;
    snprintf(dotted, sizeof dotted, "%s.%s", name, key);
    cr_diagnose_unused(d, cr_node_get(block, key)->place, dotted, "%s", why);
}

void cri_note_unused(const cr_node *root, cr_diagnostics *d)
{
    static const struct {
        cr_task task;
        const char *key, *why;
    } of_role[] = {
        {CR_TASK_TRAIN, "generating_args", "actor_infer generates"},
        {CR_TASK_TRAIN, "domain_generating_args", "actor_infer generates"},
        {CR_TASK_GENERATE, "training_args", "actor_train trains"},
        {CR_TASK_GENERATE, "data_args", "prompts are actor_train's"},
        {CR_TASK_VALUE, "generating_args", "it does not generate"},
        {CR_TASK_VALUE, "domain_generating_args", "it does not generate"},
        {CR_TASK_VALUE, "data_args", "prompts are actor_train's"},
        {CR_TASK_SCORE, "training_args", "it does not train"},
        {CR_TASK_SCORE, "generating_args", "it does not generate"},
        {CR_TASK_SCORE, "domain_generating_args", "it does not generate"},
        {CR_TASK_SCORE, "data_args", "prompts are actor_train's"},
    };

    const bool is_distill = cr_node_get(root, "student") != NULL;

    for (int r = 0; r < CR_NUM_ROLES; r++)
        for (size_t i = 0; i < CR_COUNT(of_role); i++)
            if (of_role[i].task == cr_role_kinds[r].task && !is_distill)
                note_unused(root, cr_role_kinds[r].name, of_role[i].key, of_role[i].why, d);
    if (is_distill) { /* rows.c says which of the teacher's training_args counts */
        note_unused(root, "student", "generating_args", "nothing generates", d);
        note_unused(root, "teacher", "generating_args", "nothing generates", d);
        note_unused(root, "teacher", "data_args", "rows and template are the student's", d);
    }
    note_unused(root, "sft_train", "generating_args", "nothing generates", d);
    note_unused(root, "sft_train", "domain_generating_args", "nothing generates", d);
    note_unused(root, "validation", "training_args", "it does not train", d);
    note_unused(root, "validation", "model_args", "the model that trains is validated", d);
    note_unused(root, "validation", "strategy_args", "the ranks of the run validate", d);
}

void cri_bind_worker(cr_config *c, cr_node *root, const char *name, cr_worker_config *w,
                     cr_task task, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, name);
    bool is_train = cr_task_trains(task);

    w->name = name;
    w->task = task;
    w->is_given = block && block->kind == CR_NODE_MAP;
    w->is_needed = w->is_given;
    if (!w->is_given || cri_bind_service(block, w, d)) return;
    bind_model(c, cri_block_of(c, block, "model_args", "model_args", d), is_train, w, d);
    bind_training(c, cri_block_of(c, block, "training_args", "training_args", d), &w->training, d);
    bind_data(cri_block_of(c, block, "data_args", "data_args", d), name, &w->data, d);
    cri_block_of(c, block, "generating_args", "generating_args", d);
    w->infer_batch_size = cri_int_of(block, "infer_batch_size");
    check_class(block, name, d);
    w->envs = cri_envs_of(block, false, d);
    if (task != CR_TASK_TRAIN || c->kind != CR_PIPELINE_RLVR) cri_note_loss(block, name, d);
    cri_bind_batching(block, w, d);
    bind_devices(block, w, d);
    bind_strategy(c, cri_block_of(c, block, "strategy_args", "strategy_args", d), w, is_train, d);
    cri_check_mesh(w, block, d);
    if (is_train) cri_check_optimizer(w, block, d);
}

void cri_bind_reward_worker(cr_config *c, cr_node *block, const char *domain, cr_worker_config *w,
                            cr_diagnostics *d)
{
    w->name = domain;
    w->is_given = w->is_needed = true;
    bind_model(c, cri_block_of(c, block, "model_args", "model_args", d), false, w, d);
    if (w->task == CR_TASK_GENERATE)
        cri_bind_generating(cri_block_of(c, block, "generating_args", "generating_args", d),
                            &w->generating, d);
    w->envs = cri_envs_of(block, false, d);
    bind_devices(block, w, d);
    bind_strategy(c, cri_block_of(c, block, "strategy_args", "strategy_args", d), w, false, d);
    cri_check_mesh(w, block, d);
}

const char *cr_worker_runs(const cr_worker_config *w)
{
    return cr_task_trains(w->task)       ? "fsdp2_train"
           : w->task == CR_TASK_GENERATE ? "engine"
                                         : "fsdp2_infer";
}

bool cr_workers_share(const cr_worker_config *a, const cr_worker_config *b, int *device)
{
    for (int i = 0; i < a->num_devices; i++)
        for (int k = 0; k < b->num_devices; k++) {
            if (a->devices[i] != b->devices[k]) continue;
            if (device) *device = a->devices[i];
            return true;
        }
    return false;
}

int64_t cr_worker_num_batches(const cr_worker_config *w)
{
    return w->num_devices / (w->ulysses_size ? w->ulysses_size : 1);
}

int64_t cr_worker_batch_samples(const cr_worker_config *w)
{
    return w->training.per_device_train_batch_size * w->training.gradient_accumulation_steps;
}

static void inherit(cr_config *c, cr_node *to, const cr_node *from, const char *key)
{
    cr_node *value = cr_node_get(from, key);

    if (!cri_is_in_file(to, key) && cri_is_given(from, key))
        cr_node_set(&c->yaml, to, key, (cr_place){c->path, 0, 0}, value);
}

/* One processor cuts the images of a run. */
static void check_limits(const cr_config *c, const cr_node *block, cr_diagnostics *d)
{
    static const char *const keys[] = {"image_min_pixels", "image_max_pixels", "image_alpha",
                                       "video_min_pixels", "video_max_pixels"};
    const cr_data_args *a = &c->train.data, *b = &c->validation.data;
    const bool differs[] = {
        a->image_min_pixels != b->image_min_pixels, a->image_max_pixels != b->image_max_pixels,
        a->has_white_alpha != b->has_white_alpha, a->video_min_pixels != b->video_min_pixels,
        a->video_max_pixels != b->video_max_pixels};

    for (size_t i = 0; i < CR_COUNT(keys) && c->has_validation; i++)
        if (differs[i])
            cr_diagnose(d, CR_ERROR, cr_node_get(block, keys[i])->place,
                        "validation: %s is another one than in training, and images of a run are "
                        "cut in one way",
                        keys[i]);
}

void cri_bind_validation(cr_config *c, cr_node *root, const char *train, cr_diagnostics *d)
{
    cr_node *block = cr_node_get(root, "validation"), *to,
            *from = cr_node_get(cr_node_get(root, train), "data_args");

    if (!block || block->kind != CR_NODE_MAP) return;
    to = cri_block_of(c, block, "data_args", "data_args", d);
    if (!cri_is_given(to, "messages") && !cri_is_given(to, "prompt")) {
        inherit(c, to, from, "messages");
        inherit(c, to, from, "prompt");
    }
    inherit(c, to, from, "template");
    inherit(c, to, from, "tag");
    inherit(c, to, from, "unknown_tag");
    inherit(c, to, from, "broken_image");
    inherit(c, to, from, "image_alpha");
    inherit(c, to, from, "image_folder");
    inherit(c, to, from, "image_min_pixels");
    inherit(c, to, from, "image_max_pixels");
    inherit(c, to, from, "video_min_pixels");
    inherit(c, to, from, "video_max_pixels");
    inherit(c, to, from, "video_fps");
    inherit(c, to, from, "columns");
    cri_bind_worker(c, root, "validation", &c->validation, CR_TASK_SCORE, d);
    c->has_validation = c->validation.data.num_file_names > 0;
    check_limits(c, to, d);
}
