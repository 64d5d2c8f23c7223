/* configs.c -- loading a run's file: which pipeline it is, the keys of every run, and what frees it all. */
#include "configs/configs.h"
#include "base/hub.h"
#include "configs/bind.h"

#include <string.h>

static void bind_tracker(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    char *text = cri_text_of(root, "track_with");

    c->track_with = (cr_choice_track)cri_choice_of("run", root, "track_with");
    if (c->track_with == CR_TRACK_EXEC) c->track_program = cr_strdup(text + strlen("exec "));
    if (c->track_with > CR_TRACK_EXEC)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "track_with"),
                    "track_with: %s needs its own Python package: give \"exec python3 "
                    "examples/track_%s\", which hands every line of metrics.jsonl to it",
                    text,
                    c->track_with == CR_TRACK_TRACKIO   ? "wandb.py trackio"
                    : c->track_with == CR_TRACK_SWANLAB ? "swanlab.py"
                    : c->track_with == CR_TRACK_MLFLOW  ? "mlflow.py"
                                                        : "wandb.py");
    c->tracker_log_dir = cri_text_of(cr_node_get(root, "tracker_kwargs"), "log_dir");
    cr_free(text);
}

static void bind_resume(cr_config *c, const cr_node *root, cr_diagnostics *d)
{
    const cr_node *resume = cr_node_get(root, "resume_from_checkpoint");

    if (resume->kind == CR_NODE_BOOL && resume->flag)
        c->resume = cr_strdup("");
    else if (resume->kind == CR_NODE_TEXT)
        c->resume = cr_strdup(resume->text);
    else if (resume->kind != CR_NODE_BOOL && resume->kind != CR_NODE_NULL)
        cr_diagnose(d, CR_ERROR, resume->place,
                    "resume_from_checkpoint: true, false or a path is expected");
}

/* A file that is resumed without the key goes on on the device of the run before, which its config.yaml names. */
static void bind_device(cr_config *c, cr_node *root)
{
    char *path = cr_path_join(c->output_dir, "config.yaml");
    cr_diagnostics d = {0}; /* croll run says if that file cannot be read */
    cr_yaml before = {0};

    c->device = cri_text_of(root, "device");
    if (!c->device && c->resume && cr_file_exists(path)) {
        cr_yaml_load(&before, path, NULL, NULL, 0, &d);
        if (d.num_errors == 0) c->device = cri_text_of(before.root, "device");
        cr_yaml_free(&before);
    }
    if (!c->device) c->device = cr_strdup("cpu");
    cri_set_text(c, root, "device", c->device);
    cr_diagnostics_free(&d);
    cr_free(path);
}

static void load_run(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_node *exchange, *checkpoint;

    c->exp_name = cri_text_of(root, "exp_name");
    c->output_dir = cri_text_of(root, "output_dir");
    bind_resume(c, root, d);
    c->logging_dir = cri_text_of(root, "logging_dir");
    bind_tracker(c, root, d);
    c->pretrain = cri_text_of(root, "pretrain");
    c->global_template = cri_text_of(root, "global_template");
    c->seed = cri_int_of(root, "seed");
    c->max_steps = cri_int_of(root, "max_steps");
    c->save_steps = cri_int_of(root, "save_steps");
    c->eval_steps = cri_int_of(root, "eval_steps");
    c->logging_steps = cri_int_of(root, "logging_steps");
    c->max_ckpt_to_keep = cri_int_of(root, "max_ckpt_to_keep");
    bind_device(c, root);
    c->num_gpus_per_node = cri_int_of(root, "num_gpus_per_node");
    c->collective_timeout = cri_real_of(root, "collective_timeout");
    c->reward_timeout = cri_real_of(root, "reward_timeout");
    c->rpc_timeout = cri_real_of(root, "rpc_timeout");
    c->algorithm.max_grad_norm = cri_real_of(root, "max_grad_norm");
    checkpoint = cri_block_of(c, root, "checkpoint_config", "checkpoint", d);
    c->checkpoint_dir = cri_is_given(checkpoint, "output_dir")
                            ? cri_text_of(checkpoint, "output_dir")
                            : cr_strdup(c->output_dir);
    c->checkpoint_hosts = (cr_choice_files)cri_choice_of("checkpoint", checkpoint, "hosts");
    c->envs = cri_envs_of(root, true, d);
    exchange = cri_block_of(c, root, "exchange", "exchange", d);
    c->exchange =
        (cr_exchange_keys){cri_text_of(exchange, "url"),      cri_text_of(exchange, "prefix"),
                           cri_text_of(exchange, "ca_file"),  cri_text_of(exchange, "cert_file"),
                           cri_text_of(exchange, "key_file"), cri_real_of(exchange, "timeout")};
    if (c->exchange.prefix && !c->exchange.prefix[0])
        cr_diagnose(d, CR_ERROR, exchange->place,
                    "exchange.prefix is empty: the keys of the run would be among all others");
}

/* ---- entry ---- */

/* ROLL's launcher knows that a file is of DPO; here its own keys say so. NULL: it has none of them. */
static const struct cr_item *item_of_dpo(const cr_node *root)
{
    static const char *const keys[] = {"beta",         "ipo",       "label_smoothing", "chosen_key",
                                       "rejected_key", "loss_type", "rpo_alpha"};
    const struct cr_item *item = NULL;

    for (size_t i = 0; i < CR_COUNT(keys) && !item; i++)
        item = cr_node_item(root, keys[i]);
    return item;
}

/* False: a file of no pipeline. */
static bool find_kind(const cr_node *root, cr_pipeline *kind)
{
    *kind = cr_node_get(root, "student")     ? CR_PIPELINE_DISTILL
            : cr_node_get(root, "sft_train") ? CR_PIPELINE_SFT
            : item_of_dpo(root)              ? CR_PIPELINE_DPO
                                             : CR_PIPELINE_RLVR;
    return *kind != CR_PIPELINE_RLVR || cr_node_get(root, "rewards") ||
           cr_node_get(root, "actor_train") || cr_node_get(root, "actor_infer");
}

/* Blocks of pipelines that we do not have, or of two. */
static bool is_other_pipeline(const cr_node *root, cr_diagnostics *d)
{
    static const struct {
        const char *key, *pipeline;
    } marks[] = {{"train_env_manager", "agentic"},
                 {"val_env_manager", "agentic"},
                 {"custom_envs", "agentic"},
                 {"custom_env", "agentic"},
                 {"env_manager_cls", "agentic"}};
    const struct cr_item *of_dpo = item_of_dpo(root);

    for (size_t i = 0; i < CR_COUNT(marks); i++) {
        struct cr_item *item = cr_node_item(root, marks[i].key);
        if (!item) continue;
        cr_diagnose(d, CR_ERROR, item->place,
                    "%s belongs to the %s pipeline, which is not available yet (rlvr, sft, dpo "
                    "and distill are)",
                    marks[i].key, marks[i].pipeline);
        return true;
    }
    if (of_dpo && !cr_node_get(root, "sft_train") &&
        (cr_node_get(root, "rewards") || cr_node_get(root, "actor_infer"))) {
        cr_diagnose(d, CR_ERROR, of_dpo->place,
                    "%s belongs to the dpo pipeline, %s to rlvr: a file is of one of them",
                    of_dpo->key, cr_node_get(root, "rewards") ? "rewards" : "actor_infer");
        return true;
    }
    return false;
}

/* The roles of such a file, for `croll plan`. What is wrong with the rest is not ours to say. */
static void load_roles(cr_config *c, cr_node *root, cr_diagnostics *d)
{
    cr_diagnostics all = {0};

    cri_map_engines(c, &all);
    c->yaml.root = root = cri_check_block(&c->yaml, "rlvr", root, &all);
    load_run(c, root, &all);
    cri_note_unused(root, &all);
    cri_load_rlvr(c, root, &all);
    for (size_t i = 0; i < all.num; i++)
        if (all.items[i].severity != CR_ERROR)
            cr_diagnose(d, all.items[i].severity, all.items[i].place, "%s", all.items[i].text);
    cr_diagnostics_free(&all);
}

/* ROLL refuses a file that asks for both, also where, as here, every run has both. */
static void check_profilers(const cr_node *given, cr_diagnostics *d)
{
    const struct cr_item *memory = cr_node_item(given, "profiler_memory");

    if (memory && cri_flag_of(given, "profiler_memory") && cri_flag_of(given, "profiler_timeline"))
        cr_diagnose(d, CR_ERROR, memory->place,
                    "profiler_timeline and profiler_memory exclude each other");
}

static void load_kind(cr_config *c, cr_diagnostics *d)
{
    cr_node *root = c->yaml.root;

    check_profilers(root, d);
    cri_map_engines(c, d);
    c->yaml.root = root = cri_check_block(&c->yaml, cr_pipeline_names[c->kind], root, d);
    load_run(c, root, d);
    cri_note_unused(root, d);
    if (c->kind == CR_PIPELINE_SFT)
        cri_load_sft(c, root, d);
    else if (c->kind == CR_PIPELINE_DPO)
        cri_load_dpo(c, root, d);
    else if (c->kind == CR_PIPELINE_DISTILL)
        cri_load_distill(c, root, d);
    else
        cri_load_rlvr(c, root, d);
}

static cr_status load(const char *path, const cr_buf *text, const char *const *overrides,
                      size_t num_overrides, cr_config *c, cr_diagnostics *d, cr_err *err)
{
    cr_node *root;

    *c = (cr_config){0};
    c->path = cr_strdup(path);
    cr_yaml_load(&c->yaml, path, text, overrides, num_overrides, d);
    root = c->yaml.root;
    if (d->num_errors == 0 && is_other_pipeline(root, d)) {
        if (cr_node_get(root, "actor_train")) load_roles(c, root, d);
    } else if (d->num_errors == 0) {
        bool is_known = find_kind(root, &c->kind);
        if (c->kind == CR_PIPELINE_RLVR) {
            cri_read_opd(&c->yaml, d);
            is_known = find_kind(root, &c->kind);
        }
        if (!is_known)
            cr_diagnose(d, CR_ERROR, (cr_place){c->path, 1, 1},
                        "no pipeline: the file has neither rewards and actor_train (rlvr) nor "
                        "sft_train (sft) nor beta and actor_train (dpo) nor student and teacher "
                        "(distill)");
        if (is_known)
            load_kind(c, d);
        else
            cri_check_block(&c->yaml, "rlvr", root, d);
    }
    if (c->checkpoint_hosts == CR_FILES_EACH && c->train.save_only_model)
        cr_diagnose(d, CR_ERROR, cri_place_of(c, "checkpoint_config.hosts"),
                    "hosts: each keeps parts to resume from, save_only_model has none (gather, or "
                    "no save_only_model)");
    if (d->num_errors)
        return cr_fail(err, CR_ECONFIG, "%zu error%s in %s", d->num_errors,
                       d->num_errors > 1 ? "s" : "", path);
    return CR_OK;
}

cr_status cr_config_load(const char *path, const char *const *overrides, size_t num_overrides,
                         cr_config *c, cr_diagnostics *d, cr_err *err)
{
    return load(path, NULL, overrides, num_overrides, c, d, err);
}

cr_status cr_config_load_text(const char *path, const cr_buf *text, cr_config *c, cr_diagnostics *d,
                              cr_err *err)
{
    return load(path, text, NULL, 0, c, d, err);
}

cr_status cr_config_worker(const char *block, const char *model, const char *const *overrides,
                           size_t num_overrides, cr_config *c, cr_diagnostics *d, cr_err *err)
{
    cr_task task = strcmp(block, "actor_train") == 0 ? CR_TASK_TRAIN : CR_TASK_SCORE;
    cr_node *checked, *root;

    *c = (cr_config){0};
    c->path = cr_strdup("command line");
    cr_yaml_load(&c->yaml, NULL, NULL, overrides, num_overrides, d);
    c->yaml.root->place = (cr_place){c->path, 1, 1};
    if (d->num_errors == 0) {
        checked = cri_check_block(&c->yaml, "worker", c->yaml.root, d);
        root = cr_node_new(&c->yaml, CR_NODE_MAP, c->yaml.root->place);
        cr_node_set(&c->yaml, root, block, root->place, checked);
        c->yaml.root = root;
        if (d->num_errors == 0) {
            cri_bind_worker(c, root, block, &c->train, task, d);
            cri_bind_generating(cr_node_get(cr_node_get(root, block), "generating_args"),
                                &c->train.generating, d);
        }
        if (!c->train.model_path) c->train.model_path = cr_hub_find(model);
        if (!c->train.model_path) c->train.model_path = cr_strdup(model);
        c->collective_timeout = 60;
        c->device = cr_strdup("cpu");
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

bool cr_reward_takes_many(const cr_reward_config *r)
{
    return r->judge.url || r->model.is_given || (r->rule && strcmp(r->rule, "code") == 0);
}

const cr_reward_config *cr_config_find_reward(const cr_config *config, const char *domain)
{
    for (size_t i = 0; i < config->num_rewards; i++)
        if (strcmp(config->rewards[i].domain, domain) == 0) return &config->rewards[i];
    return NULL;
}

char *cr_judge_url(const cr_reward_config *r, int number)
{
    const int num = r->judge_model.num_devices;

    return num ? cr_asprintf("%s-%d.sock", r->judge.url, number % num) : cr_strdup(r->judge.url);
}

/* ---- the end ---- */

static void texts_free(char **texts, size_t num)
{
    for (size_t i = 0; i < num; i++)
        cr_free(texts[i]);
    cr_free(texts);
}

static void envs_free(char **envs)
{
    for (size_t i = 0; envs && envs[i]; i++)
        cr_free(envs[i]);
    cr_free(envs);
}

static void service_free(const cr_service_keys *s)
{
    char *const texts[] = {s->url,     s->model,   s->key_file,
                           s->key_env, s->ca_file, s->expect_weights};

    for (size_t i = 0; i < CR_COUNT(texts); i++)
        cr_free(texts[i]);
}

static void worker_free(cr_worker_config *w)
{
    char *const texts[] = {
        w->model_path,    w->freeze_module_prefix, w->stage,      w->strategy_name,
        w->lora.target,   w->lora.folder,          w->lora.saved, w->data.template,
        w->data.messages, w->data.prompt,          w->data.tag};

    for (size_t i = 0; i < CR_COUNT(texts); i++)
        cr_free(texts[i]);
    service_free(&w->service);
    texts_free(w->wrap.classes, w->wrap.num_classes);
    texts_free(w->wrap.modules, w->wrap.num_modules);
    texts_free(w->wrap.moe_experts, w->wrap.num_moe_experts);
    envs_free(w->envs);
    texts_free(w->data.file_names, w->data.num_file_names);
    cri_columns_free(w->data.columns, w->data.num_columns);
    cri_training_free(&w->training);
    cri_generating_free(&w->generating);
    for (size_t i = 0; i < w->num_domains; i++)
        cri_generating_free(&w->domains[i].args);
    cr_free(w->domains);
    cr_free(w->devices);
}

void cr_config_free(cr_config *c)
{
    char *const texts[] = {c->path,
                           c->exp_name,
                           c->output_dir,
                           c->checkpoint_dir,
                           c->logging_dir,
                           c->track_program,
                           c->tracker_log_dir,
                           c->pretrain,
                           c->resume,
                           c->global_template,
                           c->val_adapter,
                           c->rollouts_from,
                           c->device,
                           c->best.metric,
                           c->rows.prompt_key,
                           c->rows.response_key,
                           c->rows.question_template,
                           c->rows.query_key,
                           c->rows.system_key,
                           c->rows.chosen_key,
                           c->rows.rejected_key,
                           c->exchange.url,
                           c->exchange.prefix,
                           c->exchange.ca_file,
                           c->exchange.cert_file,
                           c->exchange.key_file};

    for (size_t i = 0; i < CR_COUNT(texts); i++)
        cr_free(texts[i]);
    for (int r = 0; r < CR_NUM_ROLES; r++)
        worker_free(cr_role_worker((cr_role)r, c));
    worker_free(&c->validation);
    for (size_t i = 0; i < c->templates.num_tags; i++) {
        cr_free(c->templates.of_tag[i].tag);
        cr_free(c->templates.of_tag[i].template);
    }
    cr_free(c->templates.of_tag);
    for (int k = 0; k < CR_MAX_TEACHERS; k++)
        texts_free(c->teachers[k].tags, c->teachers[k].num_tags);
    for (size_t i = 0; i < c->num_rewards; i++) {
        cr_free(c->rewards[i].domain);
        cr_free(c->rewards[i].exec);
        cr_free(c->rewards[i].judge_prompt);
        cr_free(c->rewards[i].judge_fields);
        cr_free(c->rewards[i].reward_manager);
        cr_free(c->rewards[i].judge_answer.pattern);
        cr_free(c->rewards[i].judge_answer.field);
        service_free(&c->rewards[i].judge);
        worker_free(&c->rewards[i].judge_model);
        worker_free(&c->rewards[i].model);
        service_free(&c->rewards[i].code.service);
        cr_free(c->rewards[i].code.interpreter);
        cr_free(c->rewards[i].reward_type);
        cr_free(c->rewards[i].terms.format_pattern);
        texts_free(c->rewards[i].terms.format_tags, c->rewards[i].terms.num_format_tags);
        envs_free(c->rewards[i].envs);
        texts_free(c->rewards[i].tags, c->rewards[i].num_tags);
    }
    cr_free(c->rewards);
    envs_free(c->envs);
    cr_yaml_free(&c->yaml);
    *c = (cr_config){0};
}
