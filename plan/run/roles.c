/* roles.c -- see roles.h. */
#include "plan/run/roles.h"
#include "actors/phases.h"
#include "actors/strategy_args.h"
#include "configs/configs.h"
#include "configs/worker.h"
#include "engine/engine.h"
#include "kernels/attention.h"
#include "models/models.h"
#include "models/parts/table.h"
#include "plan/images.h"
#include "plan/shapes.h"
#include "samples/roles.h"
#include "strategies/strategies.h"

#include <stdio.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Micro-batches of a pass for log-probs over num samples of full length. */
static int64_t num_forwards(const cr_plan *p, const cr_worker_config *w, int64_t samples)
{
    return ceil_div(samples, w->batching.infer_tokens
                                 ? w->batching.infer_tokens / p->config.sequence_length
                                 : w->infer_batch_size);
}

/* Of a role that trains; epochs over the samples of a step. */
static cr_plan_batch batch_of(const cr_plan *p, const cr_worker_config *w, int64_t epochs)
{
    const cr_config *c = &p->config;
    int64_t mini = cr_worker_batch_samples(w),
            samples = ceil_div(p->num_samples, cr_worker_num_batches(w));
    cr_plan_batch batch = {.num_samples = w->training.per_device_train_batch_size * p->row_samples,
                           .num_infer = w->infer_batch_size,
                           .sample_tokens = c->sequence_length,
                           .sample_rows = c->sequence_length - (p->is_rlvr ? c->prompt_length : 1),
                           .train_tokens = w->batching.train_tokens,
                           .infer_tokens = w->batching.infer_tokens,
                           .micros = w->training.gradient_accumulation_steps,
                           .updates = p->is_rlvr ? epochs * ceil_div(samples, mini) : 1};

    if (batch.train_tokens) /* at most: if every sample has full length */
        batch.micros = ceil_div(mini * p->row_samples, batch.train_tokens / c->sequence_length);
    return batch;
}

/* Its weights are gone between rollouts (actors/generator.c): each sync is like the first. */
static bool gives_weights_up(const cr_plan *p)
{
    cr_layout layout;

    cr_layout_init(&layout, &p->config);
    return p->config.infer.engine.sleep_level > 1 && cr_phase_is_shared(&layout, CR_ROLE_INFER);
}

static void arithmetic(cr_plan *p)
{
    const cr_config *c = &p->config;
    const cr_worker_config *w = &c->train;

    p->is_rlvr = c->kind == CR_PIPELINE_RLVR;
    p->row_samples = c->kind == CR_PIPELINE_DPO ? 2 : 1;
    p->num_dp = cr_worker_num_batches(w);
    p->num_samples = !p->is_rlvr ? p->num_dp * cr_worker_batch_samples(w) * p->row_samples
                                 : c->rollout_batch_size * c->group_size;
    p->rank_samples = ceil_div(p->num_samples, p->num_dp);
    p->batch = batch_of(p, w, c->algorithm.ppo_epochs < 1 ? 1 : c->algorithm.ppo_epochs);
    if (p->is_rlvr && c->old_log_probs == CR_OLD_COMPUTED)
        p->batch.forwards = num_forwards(p, w, p->rank_samples);
    if (c->reference.is_of_trainer) p->batch.base_forwards = num_forwards(p, w, p->rank_samples);
    p->batch.sends = p->hosts.num > 0 && cr_role_in_run(CR_ROLE_INFER, c);
    p->batch.sends_frozen = gives_weights_up(p);
    p->batch.sent_dtype = cr_dtype_of(c->infer.dtype);
}

/* A model of the role, from its folder or from its published shape. */
static cr_status open_model(const char *folder, const cr_worker_config *train, cr_task task,
                            cr_model **out, cr_err *err)
{
    const bool should_freeze = !cr_task_scores(task);
    const cr_model_options options = cr_model_options_of(train, task == CR_TASK_TRAIN),
                           *with = should_freeze ? &options : NULL;
    json_t *known = cr_dir_exists(folder) ? NULL : cr_shape_config(folder);

    if (known)
        cr_note(cr_model_build_with(known, NULL, with, out, err));
    else if (cr_model_open_with(folder, with, out, err) != CR_OK && err->status != CR_ECONFIG)
        cr_fail_add(err,
                    "the plan needs the model's config.json (pretrain=FOLDER; known by name are "
                    "Qwen/Qwen3-0.6B to 235B-A22B, Qwen/Qwen2.5-0.5B to 72B, "
                    "meta-llama/Meta-Llama-3-8B and 70B)");
    json_decref(known);
    CR_TRY(err->status);
    return cr_model_prepare(*out, train, should_freeze, err);
}

/* Of a distillation: what the student's micro-batch has of its teacher. */
static cr_status add_teacher(cr_plan *p, cr_err *err)
{
    const cr_worker_config *t = &p->config.teacher;
    const int64_t top = (int64_t)p->config.distill.kd.logits_topk;
    cr_model *student = NULL, *teacher = NULL;
    cr_plan_batch *b = &p->batch;

    if (p->config.kind != CR_PIPELINE_DISTILL) return CR_OK;
    CR_TRY(open_model(p->config.train.model_path, t, CR_TASK_SCORE, &student, err));
    b->has_states = top == 0;
    b->chosen = top < student->config.vocab_size ? top : student->config.vocab_size;
    if (b->has_states && open_model(t->model_path, t, CR_TASK_SCORE, &teacher, err) == CR_OK)
        b->table_bytes = cr_vocab_table_bytes(
            teacher->config.vocab_size, teacher->config.hidden_size, cr_dtype_of(t->dtype),
            cr_logits_loss_rows(student->config.vocab_size,
                                cr_max64(b->num_samples * b->sample_rows, b->train_tokens)));
    cr_model_free(student);
    cr_model_free(teacher);
    return err->status;
}

static cr_status plan_learner(const cr_worker_config *w, const cr_plan_batch *batch,
                              bool with_moments, cr_plan_role *out, cr_err *err)
{
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = w->name, .is_train = true, .with_moments = with_moments};
    if (open_model(w->model_path, w, w->task, &model, err) == CR_OK)
        cr_note(cr_plan_run(model, w, w->num_devices, batch, out, err));
    cr_model_free(model);
    return err->status;
}

cr_status cr_plan_train(const cr_plan *p, const cr_plan_batch *batch, cr_plan_role *out,
                        cr_err *err)
{
    return plan_learner(&p->config.train, batch, p->with_moments && batch == &p->batch, out, err);
}

static cr_status plan_critic(const cr_plan *p, const cr_worker_config *w, cr_plan_role *out,
                             cr_err *err)
{
    cr_plan_batch batch = batch_of(p, w, 1);

    batch.images = p->batch.images;
    batch.forwards = num_forwards(p, w, ceil_div(p->num_samples, cr_worker_num_batches(w)));
    return plan_learner(w, &batch, p->with_moments, out, err);
}

/* Of a reference that follows: the policy's values come beside its own (cr_weight_sync_blend). */
static void add_following(const cr_worker_config *w, cr_plan_role *out)
{
    const int64_t values = out->phase[0].bytes.values;
    cr_plan_bytes bytes = {.values = values, .kept = w->is_offloaded ? out->host_bytes : values};

    if (w->task != CR_TASK_FOLLOW) return;
    if (!w->is_offloaded) bytes.kept += CR_BLEND_BYTES;
    out->phase[out->num_phases++] = (struct cr_plan_phase){"sync", bytes};
}

/* A role with a model of its own that is run forward over the samples of a step. */
static cr_status plan_score(cr_plan *p, const cr_worker_config *w, cr_plan_role *out, cr_err *err)
{
    int64_t dp = cr_worker_num_batches(w);
    cr_plan_batch batch = p->batch;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = w->name, .with_moments = p->with_moments};
    batch.num_infer = w->infer_batch_size;
    batch.infer_tokens = w->batching.infer_tokens;
    batch.forwards = num_forwards(p, w, ceil_div(p->num_samples, dp));
    batch.base_forwards = 0;
    if (open_model(w->model_path, &p->config.train, CR_TASK_SCORE, &model, err) == CR_OK)
        cr_note(cr_plan_run(model, w, w->num_devices, &batch, out, err));
    if (err->status == CR_OK) add_following(w, out);
    cr_model_free(model);
    return err->status;
}

/* The part of p->memory that an engine has, of its fullest GPU (actors/generator.c). */
static int64_t engine_memory(const cr_plan *p)
{
    cr_layout layout;
    int max = 1;

    cr_layout_init(&layout, &p->config);
    for (int i = 0; i < layout.role[CR_ROLE_INFER].num && p->num_gpus; i++) {
        int num = cr_layout_num_on_gpu(&layout, layout.role[CR_ROLE_INFER].first + i,
                                       (int)p->num_gpus, p->hosts.all_hosts);
        if (num > max) max = num;
    }
    return p->memory / max;
}

/* The engine's cache: what max_running_requests sequences need, or what gpu_memory_utilization of --memory leaves
 * beside the weights. Without --memory nothing is known of the devices: a plan is often for another machine. */
static cr_status cache_bytes(const cr_plan *p, const cr_model *model, cr_device *dev,
                             int64_t length, int64_t weights, int64_t *out, cr_err *err)
{
    const cr_worker_config *w = &p->config.infer;
    const double share = w->engine.gpu_memory_utilization;
    const int64_t block = model->config.num_layers *
                          (int64_t)cr_kv_block_bytes(dev, cr_dtype_of(w->dtype),
                                                     model->config.num_kv_heads,
                                                     model->config.head_dim),
                  one = ceil_div(length, CR_KV_BLOCK) * block;
    int64_t memory = engine_memory(p), budget;
    char raise[48];
    double min;

    *out = p->config.max_running_requests * one;
    if (share <= 0 || memory == 0) return CR_OK;
    budget = cr_engine_cache_budget(share, memory, weights);
    min = 1.001 * (double)(weights + one) / (double)memory;
    snprintf(raise, sizeof raise, min <= 1 ? "raise it to %.3g" : "it does not fit", min);
    if (budget < one)
        return cr_fail(err, CR_ECONFIG,
                       "actor_infer: gpu_memory_utilization %g of %lld bytes leaves %lld beside "
                       "%lld bytes of weights, and one sequence of %lld tokens needs %lld (%s, or "
                       "shorten max_model_len)",
                       share, (long long)memory, (long long)(budget > 0 ? budget : 0),
                       (long long)weights, (long long)length, (long long)one, raise);
    if (budget < *out) *out = budget / block * block;
    return CR_OK;
}

/* Of an engine; GPUs read weights as they lie. */
static int64_t packed_bytes(const cr_plan *p, const cr_model *model, cr_device *dev, cr_dtype dtype)
{
    return p->is_gpu ? 0 : cr_engine_packed_bytes(model, dev, dtype);
}

/* The engine has the whole model and a cache for its samples. */
static cr_status plan_infer(cr_plan *p, cr_plan_role *out, cr_err *err)
{
    const cr_config *c = &p->config;
    const cr_worker_config *w = &c->infer;
    int64_t length = w->engine.max_model_len ? w->engine.max_model_len : c->sequence_length, packed;
    cr_plan_bytes bytes = {0};
    cr_weight_copy *weights = NULL;
    cr_device *dev = NULL;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = cr_role_name(CR_ROLE_INFER, &p->config)};
    out->mesh = (cr_mesh_shape){w->num_devices, 1, 1, w->num_devices, 1, 1, 1, 1, false};
    CR_TRY_GOTO(out, open_model(w->model_path, &c->train, CR_TASK_GENERATE, &model, err));
    CR_TRY_GOTO(out, cr_device_open("meta", 1, &dev, err));
    CR_TRY_GOTO(out, cr_weight_copy_create(model, dev, cr_dtype_of(w->dtype), &weights, err));
    bytes.values = (int64_t)cr_device_get_stats(dev).bytes_now;
    if (model->config.position_limit && length > model->config.position_limit)
        length = model->config.position_limit;
    packed = packed_bytes(p, model, dev, cr_dtype_of(w->dtype));
    CR_TRY_GOTO(out, cache_bytes(p, model, dev, length, bytes.values + packed, &bytes.kept, err));
    out->cache_bytes = bytes.kept;
    bytes.kept += packed;
    for (size_t i = 0; i < model->num_params; i++)
        out->num_elems += model->params[i]->num_elems;
    out->num_graphs = cr_engine_max_captured(model, w->engine.enforce_eager);
    out->phase[out->num_phases++] = (struct cr_plan_phase){"rollout", bytes};
    out->synced.num = 1;
    out->first_sync_bytes = cr_weight_copy_sync_bytes(weights, /*is_first=*/true);
    out->synced.num_bytes = cr_weight_copy_sync_bytes(weights, gives_weights_up(p));
out:
    cr_weight_copy_destroy(weights);
    if (dev) cr_device_close(dev);
    cr_model_free(model);
    return err->status;
}

/* A process of a judge has its model once, packed once more where the device packs, and a cache. */
static cr_status plan_judge(const cr_plan *p, const cr_worker_config *w, cr_plan_role *out,
                            cr_err *err)
{
    enum {
        SAMPLES = 64,
        SHARE = 4
    }; /* croll serve: at a time; the most of the memory that a cache takes */
    cr_plan_bytes bytes = {0};
    cr_device *dev = NULL;
    cr_model *model = NULL;
    cr_dtype dtype = cr_dtype_of(w->dtype);
    int64_t length = w->engine.max_model_len, packed, left;

    *out = (cr_plan_role){.name = w->name, .is_judge = true};
    out->mesh = (cr_mesh_shape){w->num_devices, 1, 1, w->num_devices, 1, 1, 1, 1, false};
    CR_TRY_GOTO(out, open_model(w->model_path, w, CR_TASK_GENERATE, &model, err));
    CR_TRY_GOTO(out, cr_device_open("meta", 1, &dev, err));
    for (size_t i = 0; i < model->num_params; i++)
        out->num_elems += model->params[i]->num_elems;
    bytes.values = out->num_elems * (int64_t)cr_dtype_bytes(dtype);
    if (!length || length > model->config.max_position_embeddings)
        length = model->config.max_position_embeddings;
    bytes.kept =
        SAMPLES * ceil_div(length, CR_KV_BLOCK) * model->config.num_layers *
        (int64_t)cr_kv_block_bytes(dev, dtype, model->config.num_kv_heads, model->config.head_dim);
    if (p->memory && bytes.kept > p->memory / SHARE) bytes.kept = p->memory / SHARE;
    packed = packed_bytes(p, model, dev, dtype);
    left =
        cr_engine_cache_budget(w->engine.gpu_memory_utilization, p->memory, bytes.values + packed);
    if (p->memory && w->engine.gpu_memory_utilization > 0 && left < bytes.kept) bytes.kept = left;
    if (bytes.kept < 1)
        CR_TRY_GOTO(out,
                    cr_fail(err, CR_ECONFIG,
                            "gpu_memory_utilization %g of %lld bytes leaves nothing for the cache "
                            "beside %lld bytes of weights",
                            w->engine.gpu_memory_utilization, (long long)p->memory,
                            (long long)(bytes.values + packed)));
    out->cache_bytes = bytes.kept;
    bytes.kept += packed;
    out->num_graphs = cr_engine_max_captured(model, /*is_eager=*/false);
    out->phase[out->num_phases++] = (struct cr_plan_phase){"judge", bytes};
out:
    if (dev) cr_device_close(dev);
    cr_model_free(model);
    return cr_fail_add(err, "rewards.%s", w->name);
}

/* Of the rule reward_model: each worker has the model whole. */
static cr_status plan_reward_model(const cr_plan *p, const cr_worker_config *w, cr_plan_role *out,
                                   cr_err *err)
{
    cr_plan_batch batch = p->batch;
    cr_model *model = NULL;

    *out = (cr_plan_role){.name = w->name};
    batch.num_infer = w->infer_batch_size;
    batch.infer_tokens = 0;
    batch.forwards = num_forwards(p, w, ceil_div(p->num_samples, w->num_devices));
    batch.base_forwards = 0;
    if (open_model(w->model_path, w, CR_TASK_VALUE, &model, err) == CR_OK &&
        cr_plan_run(model, w, 1, &batch, out, err) == CR_OK)
        out->mesh = (cr_mesh_shape){w->num_devices, 1, 1, w->num_devices, 1, 1, 1, 1, false};
    cr_model_free(model);
    return cr_fail_add(err, "rewards.%s", w->name);
}

cr_status cr_plan_roles(cr_plan *p, cr_err *err)
{
    const cr_config *c = &p->config;

    arithmetic(p);
    CR_TRY(add_teacher(p, err));
    CR_TRY(cr_plan_images_find(&c->train, p->num_images,
                               (p->is_rlvr ? c->prompt_length : c->sequence_length) - 1,
                               &p->batch.images, err));
    p->role = CR_NEW_ARRAY(cr_plan_role, CR_NUM_ROLES + c->num_rewards);
    p->worker = CR_NEW_ARRAY(const cr_worker_config *, CR_NUM_ROLES + c->num_rewards);
    for (cr_role r = 0; r < CR_NUM_ROLES; r++) {
        const cr_worker_config *w = cr_role_in_run(r, c);
        cr_plan_role *role = &p->role[p->num_roles];
        if (!w || (w->task != CR_TASK_TRAIN && !w->num_devices)) continue;
        p->worker[p->num_roles++] = w;
        CR_TRY(w->task == CR_TASK_TRAIN      ? cr_plan_train(p, &p->batch, role, err)
               : w->task == CR_TASK_VALUE    ? plan_critic(p, w, role, err)
               : w->task == CR_TASK_GENERATE ? plan_infer(p, role, err)
                                             : plan_score(p, w, role, err));
    }
    for (size_t i = 0; i < c->num_rewards; i++) {
        const cr_reward_config *r = &c->rewards[i];
        const cr_worker_config *w = r->model.is_given ? &r->model : &r->judge_model;
        cr_plan_role *role = &p->role[p->num_roles];
        if (!w->is_given || !w->num_devices || !w->model_path) continue;
        p->worker[p->num_roles++] = w;
        CR_TRY(r->model.is_given ? plan_reward_model(p, w, role, err)
                                 : plan_judge(p, w, role, err));
    }
    return CR_OK;
}

void cr_plan_roles_free(cr_plan *p)
{
    for (size_t i = 0; i < p->num_roles; i++)
        cr_plan_role_free(&p->role[i]);
    cr_free(p->role);
    cr_free(p->worker);
    p->role = NULL;
    p->worker = NULL;
    p->num_roles = 0;
}
