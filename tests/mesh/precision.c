/* precision.c -- a 16-bit model with modules in float32 (C11): gradients of every cut against a model
 * whose weights are whole, without units; traffic and kept bytes of units of two dtypes; checkpoints.
 * Not covered: what a module in float32 computes (unit/models_precision.c),
 * the plan (plan.c), weight sync (strategies.c).
 * // ranks: 4
 * // also on cuda, long
 */
#include "tests/memory.h"
#include "tests/mesh/train.h"
#include "tests/mesh/train_traffic.h"

/* ---- gradients ---- */

/* The gradient of a step in which one rank has all sequences, from a model without units. */
static result whole(const plan *p)
{
    loss_ctx l = {0};
    batch *x = CR_NEW(batch);
    cr_full_weights full;
    result r = {0};
    cr_outputs out, grad;
    size_t num;
    float *rows;
    cr_pass pass;

    if (me != 0) goto out;
    cr_device *dev;
    cr_model *model = make_model(p);
    OK(cr_device_open(cr_device_default(), 1, &dev, &err));
    OK(cr_full_weights_init(&full, model, dev, p->dtype, NULL, 11, &err));
    OK(cr_full_weights_add_grads(&full, model, &err));
    cr_model_mark_trainable(model);
    for (int i = 0; i < p->num_seqs; i++)
        l.total += append(x, 0, i);
    rows = CR_NEW_ARRAY(float, 4 * (size_t)l.total);
    num = (size_t)l.total;
    out = (cr_outputs){{rows, rows + num}};
    grad = (cr_outputs){{rows + 2 * num, rows + 3 * num}};
    pass = (cr_pass){.state = cr_pass_state_create(),
                     .dev = dev,
                     .dtype = p->dtype,
                     .tape = cr_stack_create(dev),
                     .scratch = cr_stack_create(dev),
                     .batch = &x->b};
    OK(cr_model_forward(model, &pass, &out, &err));
    OK(loss(&l, &out, (size_t)l.total, &grad, &err));
    OK(cr_model_backward(model, &pass, &grad, &err));
    r.model = model;
    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *param = model->params[i];
        float *values;
        if (!param->is_trainable) continue;
        values = downloaded(dev, param->grad, (size_t)param->num_elems * sizeof *values);
        OK(keep_grad(&r, param, values, &err));
        cr_free(values);
    }
    cr_stack_destroy(pass.tape);
    cr_stack_destroy(pass.scratch);
    cr_pass_state_destroy(pass.state);
    cr_full_weights_fini(&full);
    cr_model_free(model);
    cr_device_close(dev);
    cr_free(rows);
out:
    cr_free(x);
    return r;
}

static const char mlp[] = "model.layers.1.mlp", layer[] = "model.layers.1",
                  low[] = "model.embed_tokens,model.layers.0.,model.layers.1.mlp",
                  around[] =
                      "model.embed_tokens,model.layers.0.,model.layers.2.,model.norm,lm_head,"
                      "model.layers.1.self_attn,model.layers.1.input,model.layers.1.post";

static void test_c11_units_in_float32(void)
{
    const plan plans[] = {
        {"one", 1, 1, 6, .dtype = CR_BF16, .fp32 = {layer}},
        {"one, a part", 1, 1, 2, .dtype = CR_BF16, .fp32 = {mlp}},
        {"2 ranks", 2, 2, 1, .dtype = CR_BF16, .fp32 = {layer}},
        {"4 ranks", 4, 4, 1, .dtype = CR_BF16, .fp32 = {layer}},
        {"hsdp", 4, 2, 1, .dtype = CR_BF16, .fp32 = {layer}},
        {"a part, 2 ranks", 2, 2, 1, .dtype = CR_BF16, .fp32 = {mlp}},
        {"a part, 4 ranks", 4, 4, 1, .dtype = CR_BF16, .fp32 = {mlp}},
        {"a part, hsdp", 4, 2, 1, .dtype = CR_BF16, .fp32 = {mlp}},
        {"parts of two layers", 4, 2, 1, .dtype = CR_BF16,
         .fp32 = {"model.layers.0.self_attn", mlp}},
        {"always", 2, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .reshard = CR_RESHARD_ALWAYS},
        {"never", 4, 4, 1, .dtype = CR_BF16, .fp32 = {mlp}, .reshard = CR_RESHARD_NEVER},
        {"never, one", 1, 1, 2, .dtype = CR_BF16, .fp32 = {layer}, .reshard = CR_RESHARD_NEVER},
        {"never, one, a part", 1, 1, 2, .dtype = CR_F16, .fp32 = {mlp}, .reshard_ranks = 1},
        {"to 2 ranks", 4, 4, 1, .dtype = CR_BF16, .fp32 = {layer}, .reshard_ranks = 2},
        {"to 2 ranks, a part", 4, 4, 1, .dtype = CR_BF16, .fp32 = {mlp}, .reshard_ranks = 2},
        {"to 2 ranks, hsdp", 4, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .reshard_ranks = 2},
        {"once", 4, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .is_reduced_once = true},
        {"once, to 2 ranks", 4, 4, 1, .dtype = CR_BF16, .fp32 = {mlp}, .is_reduced_once = true,
         .reshard_ranks = 2},
        {"offloaded", 4, 4, 1, .dtype = CR_BF16, .fp32 = {layer}, .is_offloaded = true},
        {"no recompute", 2, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .is_recomputed_off = true},
        {"its own wrap", 2, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .wrap = parts},
        {"inside a unit", 4, 4, 1, .dtype = CR_BF16, .fp32 = {layer}, .wrap = outer},
        {"frozen", 4, 4, 1, .dtype = CR_BF16, .fp32 = {mlp}, .frozen = mlp},
        {"frozen, hsdp", 4, 2, 1, .dtype = CR_BF16, .fp32 = {layer}, .frozen = layer},
        {"frozen, to 2 ranks", 4, 4, 1, .dtype = CR_BF16, .fp32 = {layer}, .frozen = layer,
         .reshard_ranks = 2},
        {"frozen below", 4, 4, 2, .dtype = CR_BF16, .fp32 = {layer, "model.layers.0"},
         .frozen = low},
        {"frozen around", 4, 2, 1, .dtype = CR_BF16, .fp32 = {mlp}, .frozen = around},
        {"frozen around, one", 1, 1, 6, .dtype = CR_BF16, .fp32 = {mlp}, .frozen = around},
        {"fp16", 4, 2, 1, .fp32 = {layer}, .dtype = CR_F16},
        {"all in float32", 4, 4, 1, .fp32 = {layer}},
    };

    for (size_t i = 0; i < CR_COUNT(plans); i++) {
        plan p = plans[i];
        result got, want;
        int lowest = p.frozen == low || p.frozen == around ? 1 : 0;
        p.num_seqs = 6;
        p.last = 2;
        p.inf_step = -1;
        got = train(p);
        want = whole(&p);
        if (me == 0) {
            double far = distance(got.grad, want.grad, want.num_grad);
            CR_CHECK(got.num_grad == want.num_grad && far <= grad_tol, "%s: gradient off by %.3g",
                     p.name, far);
            if (p.ranks > 1) check_traffic(&p, &got, lowest);
        }
        cr_free(got.grad);
        cr_free(want.grad);
    }
}

/* Gradients travel in bf16, those of units in float32 do not. */
static void test_c11_reduced_in_float32(void)
{
    plan p = usual;
    result got, want;
    size_t at = 0, first[2] = {0}, end[2] = {0};
    cr_model *model;

    p.name = "reduced in bf16";
    p.ranks = p.fsdp = 4;
    p.micro = 1;
    p.last = 2;
    p.dtype = CR_BF16;
    p.reduce = CR_REDUCE_BF16;
    p.fp32[0] = layer;
    model = make_model(&p);
    for (size_t i = 0; i < model->num_params; at += (size_t)model->params[i++]->num_elems)
        for (int k = 0; k < 2; k++) {
            const char *name = k ? "model.layers.2." : "model.layers.1.";
            if (strncmp(model->params[i]->name, name, strlen(name)) != 0) continue;
            if (!end[k]) first[k] = at;
            end[k] = at + (size_t)model->params[i]->num_elems;
        }
    got = train(p);
    want = whole(&p);
    for (int k = 0; k < 2 && me == 0; k++) {
        double far = distance(got.grad + first[k], want.grad + first[k], end[k] - first[k]);
        CR_CHECK(k ? far > 1e-4 && far < 4e-3 : far <= grad_tol, "layer %d: off by %.3g", k + 1,
                 far);
    }
    if (me == 0) check_traffic(&p, &got, 0);
    cr_model_free(model);
    cr_free(got.grad);
    cr_free(want.grad);
}

/* ---- what is written ---- */

/* A parameter in the MODEL of a checkpoint; returns its dtype there. */
static cr_dtype stored(const char *name, const cr_param *param, float *values)
{
    cr_buf file = read_state(name, "actor_train/model.safetensors");
    const char *data = file.data;
    uint64_t header;
    json_t *root = NULL, *entry;
    cr_dtype dtype;
    int64_t at;

    memcpy(&header, data, 8);
    OK(cr_json_parse(data + 8, header, name, &root, &err));
    entry = json_object_get(root, param->name);
    dtype =
        strcmp(json_string_value(json_object_get(entry, "dtype")), "F32") == 0 ? CR_F32 : CR_BF16;
    at = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    CR_CHECK((at + 8 + (int64_t)header) % (int64_t)cr_dtype_bytes(dtype) == 0, "%s begins at %lld",
             param->name, (long long)at);
    cr_cast_host(CR_F32, values, dtype, data + 8 + header + at, (size_t)param->num_elems);
    json_decref(root);
    cr_buf_free(&file);
    return dtype;
}

/* Frozen and trained, in float32 and not: what is exported is what the model computes with. Steps in
 * memory and with a stop in between have the same bits, whatever the mesh. */
static void test_c11_c46_c47_saved(void)
{
    plan p = usual;

    p.name = "saved";
    p.ranks = 4;
    p.dtype = CR_BF16;
    p.fp32[0] = layer;
    p.frozen = "model.layers.1.mlp,model.layers.2.mlp,model.norm";
    p.save = "mixed";
    cr_free(train(p).grad);
    if (me == 0) {
        cr_model *model = make_model(&p);
        cr_buf master = read_state("mixed", "state/actor_train.master");
        const float *at = (const float *)(const void *)master.data;
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *q = model->params[i];
            size_t n = (size_t)q->num_elems;
            float *values = CR_NEW_ARRAY(float, 2 * n), *want = values + n;
            CR_CHECK(stored("mixed", q, values) == (q->is_fp32 ? CR_F32 : CR_BF16), "dtype of %s",
                     q->name);
            if (q->is_trainable)
                memcpy(want, at, n * sizeof(float)), at += n;
            else
                cr_param_init(model, q, 11, 0, q->num_elems, want);
            for (size_t e = 0; e < n && !q->is_fp32; e++) {
                char half[2];
                cr_cast_host(CR_BF16, half, CR_F32, want + e, 1);
                cr_cast_host(CR_F32, want + e, CR_BF16, half, 1);
            }
            CR_CHECK(memcmp(values, want, n * sizeof(float)) == 0, "values of %s", q->name);
            cr_free(values);
        }
        cr_buf_free(&master);
        cr_model_free(model);
    }
    p.last = 2;
    p.save = "mixed-half";
    cr_free(train(p).grad);
    p.resume = "mixed-half";
    p.first = 2;
    p.last = 4;
    p.save = "mixed-rest";
    train(p);
    same_bytes("mixed", "mixed-rest");
    for (int k = 0; k < 3; k++) { /* 1, 2 and (2, 2) */
        p.ranks = k < 2 ? k + 1 : 4;
        p.fsdp = k < 2 ? 0 : 2;
        p.first = p.last = 2;
        p.save = "mixed-again";
        train(p);
        same_bytes("mixed-half", "mixed-again");
    }
}

/* States go to the host and back between all calls. */
static void test_c45_cycled(void)
{
    plan p = usual;

    p.name = "mixed, cycled";
    p.ranks = 4;
    p.fsdp = 2;
    p.dtype = CR_BF16;
    p.fp32[0] = mlp;
    p.frozen = "model.layers.1.mlp.up_proj,model.layers.0";
    p.save = "still";
    cr_free(train(p).grad);
    p.is_cycled = true;
    p.save = "moved";
    cr_free(train(p).grad);
    same_bytes("still", "moved");
}

/* With reshard never shards that are whole are kept in param_dtype beside their masters, by AdamW: the same weights as by casts
 * in each pass, after states were away, and after a resume. */
static void test_weights_beside_masters(void)
{
    plan p = usual;

    p.name = "beside masters";
    p.dtype = CR_BF16;
    p.fp32[0] = mlp;
    p.save = "cast";
    cr_free(train(p).grad);
    p.reshard = CR_RESHARD_NEVER;
    p.save = "beside";
    cr_free(train(p).grad);
    same_bytes("cast", "beside");
    p.is_cycled = true;
    cr_free(train(p).grad);
    same_bytes("cast", "beside");
    p.is_cycled = false;
    p.last = 2;
    p.save = "beside-half";
    cr_free(train(p).grad);
    p.resume = "beside-half";
    p.first = 2;
    p.last = 4;
    p.save = "beside";
    cr_free(train(p).grad);
    same_bytes("cast", "beside");
}

/* Log-probs of fsdp2_infer, whose trained parameters are values of two dtypes, on 1 to 4 ranks. */
static void test_c11_forward(void)
{
    static float first[MAX_LEN], log_prob[MAX_LEN], entropy[MAX_LEN];
    const cr_fsdp_args args = {.param_dtype = CR_BF16, .seed = 11};
    int ranks[RANKS] = {0, 1, 2, 3};
    plan p = usual;

    p.fp32[0] = mlp;
    p.fp32[1] = "model.layers.0";
    for (int n = 1; n <= RANKS; n++) {
        batch *x = CR_NEW(batch);
        cr_model *model = make_model(&p);
        cr_mesh_shape shape;
        cr_device *dev;
        cr_mesh *mesh;
        cr_fsdp *f;
        if (me < n) {
            int num = append(x, 0, 0);
            OK(cr_device_open(cr_device_default(), 1, &dev, &err));
            OK(cr_mesh_shape_init(&shape, n, n, 1, 1, 0, &err));
            OK(cr_mesh_create(world, dev, "reference", ranks, &shape, &mesh, &err));
            OK(cr_fsdp_create(model, dev, mesh, &args, &f, &err));
            OK(cr_fsdp_forward(f, &x->b, &(cr_outputs){{log_prob, entropy}}, &err));
            CR_CHECK(f->arena[CRI_VALUES].num_bytes == (size_t)(2 * f->units.trained_shard.elems +
                                                                2 * f->units.trained_shard.fp32),
                     "bytes of values");
            if (n == 1) memcpy(first, log_prob, sizeof first);
            CR_CHECK(me != 0 || memcmp(first, log_prob, (size_t)num * sizeof(float)) == 0,
                     "log-probs on %d ranks", n);
            cr_fsdp_destroy(f);
            cr_mesh_destroy(mesh);
            cr_device_close(dev);
        }
        cr_model_free(model);
        cr_free(x);
        OK(cr_barrier(everyone, "forward", &err));
    }
}

int main(void)
{
    open_world();
    test_c11_units_in_float32();
    test_c11_reduced_in_float32();
    test_c11_c46_c47_saved();
    test_c45_cycled();
    test_weights_beside_masters();
    test_c11_forward();
    close_world();
    return 0;
}
