/* plan.c -- croll plan against the run: two updates of two micro-batches on 2 ranks, and what the plan
 * says of the same: bytes of shards, buffers, tape and scratch, and every collective, exactly (B4, B5). With
 * experts the plan takes tokens as spread evenly: rows of an expert are padded to 64 bytes, so the tape may
 * differ a little and scratch, of the largest expert, by 15 %, and with dealt experts by what the router sends to this rank; all else is exact.
 * Not covered: what kernels keep for themselves (plan_memory.c).
 */
#include "actors/plan.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = 3, LENGTH = 20, TOKENS = SAMPLES * LENGTH, MICROS = 2 };

static cr_err err;
static cr_world *world;

static void must(cr_status status, const char *what)
{
    CR_CHECK(status == CR_OK, "%s: %s", what, err.msg);
}

static const char dense[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":100,"
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":512}";
static const char sparse[] =
    "{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":100,"
    "\"hidden_size\":64,\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":512}";

static cr_model *make_model(const char *text)
{
    cr_model *model = NULL;

    must(build_model(text, &model, &err), "model");
    return model;
}

static cr_status mean_loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                           float *grad_log_prob, float *grad_entropy, cr_err *e)
{
    (void)ctx, (void)log_prob, (void)entropy, (void)grad_entropy, (void)e;
    for (size_t i = 0; i < num; i++)
        grad_log_prob[i] = -0.01F;
    return CR_OK;
}

static void equal(int64_t got, int64_t want, const char *what, const char *name)
{
    CR_CHECK(got == want, "%s: %s: the plan has %lld, the run %lld", name, what, (long long)got,
             (long long)want);
}

/* Within a share of it: what a router decides. */
static void near(int64_t got, int64_t want, double share, const char *what, const char *name)
{
    CR_CHECK((double)(got > want ? got - want : want - got) <= share * (double)want,
             "%s: %s: the plan has %lld, the run %lld", name, what, (long long)got,
             (long long)want);
}

static void equal_count(cr_traffic_count got, cr_traffic_count now, cr_traffic_count then,
                        const char *what, const char *name)
{
    equal(got.num, now.num - then.num, what, name);
    equal(got.num_bytes, now.num_bytes - then.num_bytes, what, name);
}

/* An update of two micro-batches, twice; what the second one moved is in now - *then. */
static cr_fsdp_stats run(const char *text, const cr_worker_config *w, cr_fsdp_stats *then)
{
    cr_fsdp_args args = cr_fsdp_args_of(w, true);
    cr_model *model = make_model(text);
    cr_mesh *mesh = NULL;
    cr_device *dev = NULL;
    cr_fsdp *f = NULL;
    int32_t ids[TOKENS], positions[TOKENS], labels[TOKENS], cu[SAMPLES + 1];
    cr_batch batch = {ids, positions, labels, cu, TOKENS, SAMPLES};
    int ranks[2] = {0, 1};
    cr_mesh_shape shape;
    cr_fsdp_stats now;
    cr_update result;

    for (int t = 0; t < TOKENS; t++) {
        ids[t] = t % 97;
        positions[t] = t % LENGTH;
        labels[t] = t % LENGTH + 1 < LENGTH ? 5 : -1;
    }
    for (int s = 0; s <= SAMPLES; s++)
        cu[s] = s * LENGTH;
    args.max_grad_norm = 1;
    must(cr_mesh_shape_of(w, 2, &shape, &err), "mesh");
    cr_experts_set(model, w);
    model->aux_weight = cr_aux_weight(model, w, 1);
    must(cr_mesh_create(world, "train", ranks, &shape, &mesh, &err), "mesh");
    must(cr_device_open("cpu", 1, &dev, &err), "device");
    must(cr_fsdp_create(model, dev, mesh, &args, &f, &err), "units");
    for (int update = 0; update < 2; update++) {
        *then = cr_fsdp_get_stats(f);
        for (int m = 0; m < MICROS; m++)
            must(cr_fsdp_backward(f, &batch, mean_loss, NULL, &err), "backward");
        must(cr_fsdp_update(f, 1e-3, &result, &err), "update");
        CR_CHECK(!result.is_skipped, "skipped");
    }
    now = cr_fsdp_get_stats(f);
    cr_fsdp_destroy(f);
    cr_device_close(dev);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    return now;
}

/* routed: share of the tape and of scratch that may depend on the router. */
static void check(const char *text, const cr_worker_config *w, double routed, const char *name)
{
    const cr_plan_batch batch = {.num_samples = SAMPLES,
                                 .sample_tokens = LENGTH,
                                 .sample_rows = LENGTH - 1,
                                 .micros = MICROS,
                                 .updates = 1};
    cr_plan_role plan = {.name = "train", .is_train = true};
    cr_model *model = make_model(text);
    cr_fsdp_stats then, now = run(text, w, &then);
    const cr_plan_bytes *b;

    must(cr_plan_run(model, w, 2, &batch, &plan, &err), "plan");
    CR_CHECK(strcmp(plan.phase[2].name, "backward") == 0, "phase %s", plan.phase[2].name);
    b = &plan.phase[2].bytes;
    equal(b->masters + b->gradients + b->moments + b->values + plan.host_bytes, now.shard_bytes,
          "shards", name);
    equal(plan.host_bytes, now.host_bytes, "host", name);
    equal(b->gathered, now.gather_bytes, "gathered units", name);
    equal(b->reduction, now.reduce_bytes, "reductions", name);
    if (cr_world_rank(world) == 0) /* whose part of a sequence the plan plays */
        near(b->tape, now.tape_peak_bytes, routed, "tape", name);
    if (cr_world_rank(world) == 0)
        near(plan.phase[3].bytes.scratch, now.scratch_peak_bytes, routed, "scratch", name);
    equal(plan.most_units_alive, now.most_units_alive, "units alive", name);
    equal_count(plan.step.gathers, now.traffic.gathers, then.traffic.gathers, "gathers", name);
    equal_count(plan.step.reduces, now.traffic.reduces, then.traffic.reduces, "reduces", name);
    equal_count(plan.step.all_reduces, now.traffic.all_reduces, then.traffic.all_reduces,
                "all-reduces", name);
    CR_CHECK(now.tape_peak_bytes > 0 && now.traffic.gathers.num > 0, "%s: nothing happened", name);
    printf("%s: %lld bytes of tape, %lld gathers\n", name, (long long)b->tape,
           (long long)plan.step.gathers.num);
    cr_plan_role_free(&plan);
    cr_model_free(model);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    char bf16[] = "bf16", fp32[] = "fp32", expert[] = "Qwen3MoeMLP", *experts[] = {expert};
    const cr_worker_config usual = {.dtype = bf16,
                                    .master_dtype = fp32,
                                    .reduce_dtype = fp32,
                                    .fsdp_size = 2,
                                    .ulysses_size = 1,
                                    .ep_size = 1,
                                    .reshard_after_forward = -1,
                                    .wrap_embeddings = true,
                                    .should_recompute = true,
                                    .adam_beta1 = 0.9,
                                    .adam_beta2 = 0.999,
                                    .moe_aux_loss_coef = -1};
    cr_worker_config w = usual;

    must(cr_world_open(&args, &world, &err), "world");
    check(dense, &w, 0, "usual");
    w.should_recompute = false;
    check(dense, &w, 0, "no recompute");
    w = usual, w.dtype = fp32;
    check(dense, &w, 0, "fp32");
    w = usual, w.reshard_after_forward = 0;
    check(dense, &w, 0, "no reshard");
    w = usual, w.reshard_after_forward = 1, w.reduce_dtype = bf16;
    check(dense, &w, 0, "the root, too");
    w = usual, w.is_reduced_once = true;
    check(dense, &w, 0, "reduced once");
    w = usual, w.is_offloaded = true;
    check(dense, &w, 0, "offload");
    w = usual, w.master_dtype = bf16;
    check(dense, &w, 0, "bf16 masters");
    w = usual, w.ulysses_size = 2;
    check(dense, &w, 0, "ulysses");
    w = usual, w.mlp_tiles = 4;
    check(dense, &w, 0, "tiles");
    w = usual, w.dtype = fp32;
    check(sparse, &w, 0.15, "blocks of experts");
    w.apply_expert_patch = true, w.moe_experts = experts, w.num_moe_experts = 1;
    check(sparse, &w, 0.15, "a unit for each expert");
    w.ep_size = 2;
    check(sparse, &w, 0.3, "dealt experts");
    cr_world_close(world);
    return 0;
}
