/* plan_run.h -- a trained role on two ranks, run and planned: shared by plan.c, which compares what both count, and
 * plan_memory.c, which looks at what the kernel counts. Both ranks call; any error ends the program. */
#ifndef PLAN_RUN_H
#define PLAN_RUN_H

#include "tests/mesh/plan_images.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = 3, MAX_LENGTH = 128, MICROS = 2 };

static cr_err err;
static cr_world *world;

static void must(cr_status status, const char *what)
{
    CR_CHECK(status == CR_OK, "%s: %s", what, err.msg);
}

static char expert[] = "Qwen3MoeMLP", *experts[] = {expert};
static const cr_worker_config usual = {
    .dtype = CR_CHOICE_BF16,
    .master_dtype = CR_CHOICE_FP32,
    .reduce_dtype = CR_CHOICE_FP32,
    .fsdp_size = 2,
    .ulysses_size = 1,
    .ep_size = 1,
    .reshard_after_forward = -1,
    .should_recompute = true,
    .training = {.adam_beta1 = 0.9, .adam_beta2 = 0.999, .adam_epsilon = 1e-8},
    .moe_aux_loss_coef = -1};

static bool has_images; /* one in each sample, of a Prismatic model */

static const char *wide; /* a module in float32, or NULL */
/* What the loss is over, beside the outputs of the model's head: ids of each row, or all logits. */
static int64_t chosen;
static bool has_states;

static cr_model *make_model(const char *text, const cr_worker_config *w)
{
    const cr_model_options options = cr_model_options_of(w, w->task == CR_TASK_TRAIN);
    cr_model *model = NULL;

    must(build_model_with(text, &options, &model, &err), "model");
    must(cr_model_prepare(model, w, true, &err), "freeze");
    if (wide) cr_module_set_fp32(cr_model_find_module(model, wide));
    return model;
}

/* ---- the run ---- */

typedef struct trained {
    cr_model *model;
    cr_mesh *mesh;
    cr_device *dev;
    cr_fsdp *f;
    int32_t ids[SAMPLES * MAX_LENGTH], positions[SAMPLES * MAX_LENGTH],
        labels[SAMPLES * MAX_LENGTH], cu[SAMPLES + 1];
    cr_batch batch;
    int32_t *chosen; /* [SAMPLES * MAX_LENGTH, chosen] */
    trained_images images;
} trained;

/* Tokens differ between ranks, so that routers choose differently. */
static void fill_batch(trained *t, int length)
{
    int vocab = (int)t->model->config.vocab_size, num = SAMPLES * length;

    for (int i = 0; i < num; i++) {
        t->ids[i] = (i * 7919 + cr_world_rank(world) * 31) % vocab;
        t->positions[i] = i % length;
        t->labels[i] = i % length + 1 < length ? (i * 31) % vocab : -1;
    }
    for (int s = 0; s <= SAMPLES; s++)
        t->cu[s] = s * length;
    t->batch = (cr_batch){t->ids, t->positions, t->labels, t->cu, num, SAMPLES};
    if (has_images) add_images(&t->images, t->model, t->ids, &t->batch);
}

static void trained_open(trained *t, const char *text, const cr_worker_config *w, int length)
{
    cr_fsdp_args args = cr_fsdp_args_of(w, true);
    int ranks[2] = {0, 1};
    cr_mesh_shape shape;

    t->model = make_model(text, w);
    fill_batch(t, length);
    args.max_grad_norm = 1;
    must(cr_mesh_shape_of(w, 2, &shape, &err), "mesh");
    cr_experts_set(t->model, w);
    must(cr_device_open(cr_device_default(), 1, &t->dev, &err), "device");
    must(cr_mesh_create(world, t->dev, "train", ranks, &shape, &t->mesh, &err), "mesh");
    must(cr_fsdp_create(t->model, t->dev, t->mesh, &args, &t->f, &err), "units");
    cr_fsdp_set_aux_weight(t->f, cr_aux_weight(t->model, w, 1));
}

static cr_status mean_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                           cr_err *e)
{
    float *grad_head = grad->of[CR_LOG_PROB] ? grad->of[CR_LOG_PROB] : grad->of[CR_VALUE];

    (void)out;
    (void)ctx, (void)e;
    for (size_t i = 0; i < num; i++)
        grad_head[i] = -0.01F;
    return CR_OK;
}

static cr_status loss_of_logits(void *ctx, int64_t first_row, int64_t num_rows, const float *logits,
                                float *grad, cr_err *e)
{
    const trained *t = ctx;

    (void)first_row, (void)e;
    for (int64_t i = 0; i < num_rows * t->model->config.vocab_size; i++)
        grad[i] = 1e-6F * logits[i];
    return CR_OK;
}

static void set_loss(trained *t, cr_logits_loss *whole)
{
    int32_t *ids = t->chosen;
    int64_t rows = SAMPLES * MAX_LENGTH;

    *whole = (cr_logits_loss){loss_of_logits, t, 1};
    if (has_states) cr_fsdp_set_logits_loss(t->f, whole);
    if (!chosen) return;
    if (!ids) ids = t->chosen = CR_NEW_ARRAY(int32_t, (size_t)(rows * chosen));
    for (int64_t i = 0; i < rows * chosen; i++)
        ids[i] = (int32_t)(i % chosen);
    cr_fsdp_set_chosen(t->f, ids, chosen, 1);
}

static void trained_update(trained *t)
{
    cr_logits_loss whole;
    cr_update result;

    for (int m = 0; m < MICROS; m++) {
        set_loss(t, &whole);
        must(cr_fsdp_backward(t->f, &t->batch, mean_loss, NULL, &err), "backward");
    }
    must(cr_fsdp_update(t->f, 1e-3, &result, &err), "update");
    CR_CHECK(!result.is_skipped, "skipped");
}

static void trained_close(trained *t)
{
    cr_fsdp_destroy(t->f);
    cr_mesh_destroy(t->mesh);
    cr_device_close(t->dev);
    cr_model_free(t->model);
    cr_free(t->chosen);
    t->chosen = NULL;
    free_images(&t->images);
}

/* ---- the plan of the same ---- */

static cr_plan_role plan_of(const char *text, const cr_worker_config *w, int length)
{
    cr_plan_batch batch = {.num_samples = SAMPLES,
                           .sample_tokens = length,
                           .sample_rows = length - 1,
                           .micros = MICROS,
                           .updates = 1,
                           .chosen = chosen,
                           .has_states = has_states};
    cr_plan_role plan = {.name = "train", .is_train = true};
    cr_model *model = make_model(text, w);

    if (has_images) batch.images = images_of(model);
    must(cr_plan_run(model, w, 2, &batch, &plan, &err), "plan");
    cr_model_free(model);
    return plan;
}

#endif
