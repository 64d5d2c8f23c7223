/* plan_memory.c -- croll plan against the memory that the kernel counts: the PSS of two ranks after an update
 * of two micro-batches is within 5 % of what the plan says of the same, for eight settings with experts,
 * offload, Ulysses and frozen parts among them (B4; sums of our own arenas are compared exactly in plan.c).
 *
 * What is added to the plan's bytes: the process before its first unit (program, libraries, MPI, the flight
 * recorder), measured once, before all settings. What is taken off: ranks of one host share gathered units,
 * so two of them have one copy. PSS counts a shared page for each by its share, so sums over ranks compare.
 * Not covered: more than one host, actor_infer's cache (filled by samples).
 */
#include "actors/plan.h"
#include "mesh/collectives.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 3, LENGTH = 128, TOKENS = SAMPLES * LENGTH, MICROS = 2, VOCAB = 4096 };

static cr_err err;
static cr_world *world;
static cr_group *both;
static double base_bytes; /* of both processes */

static void must(cr_status status, const char *what)
{
    CR_CHECK(status == CR_OK, "%s: %s", what, err.msg);
}

static const char dense[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":4096,"
    "\"hidden_size\":512,\"intermediate_size\":1280,\"num_hidden_layers\":6,\"num_attention_"
    "heads\":8,"
    "\"num_key_value_heads\":4,\"head_dim\":64,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":"
    "512}";
static const char sparse[] =
    "{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":4096,"
    "\"hidden_size\":512,\"intermediate_size\":1280,\"moe_intermediate_size\":320,\"num_experts\":"
    "8,"
    "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":64,\"rms_norm_eps\":1e-6,"
    "\"max_position_embeddings\":512}";

static cr_model *make_model(const char *text, const cr_worker_config *w)
{
    cr_model *model = NULL;
    json_t *json;

    must(cr_json_parse(text, strlen(text), "config", &json, &err), "config");
    must(cr_model_build(json, NULL, &model, &err), "model");
    json_decref(json);
    if (w->freeze_module_prefix)
        must(cr_model_freeze(model, w->freeze_module_prefix, &err), "freeze");
    return model;
}

/* PSS of both ranks, taken while neither moves. */
static double pss_bytes(void)
{
    char line[256];
    double kb = 0;
    FILE *f;

    must(cr_barrier(both, "before PSS", &err), "barrier");
    f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "Pss:", 4) == 0) kb = atof(line + 4);
    if (f) fclose(f);
    must(cr_all_reduce_f64(both, "PSS", CR_OP_SUM, &kb, 1, &err), "sum");
    return 1024 * kb;
}

static cr_status mean_loss(void *ctx, const float *log_prob, const float *entropy, size_t num,
                           float *grad_log_prob, float *grad_entropy, cr_err *e)
{
    (void)ctx, (void)log_prob, (void)entropy, (void)grad_entropy, (void)e;
    for (size_t i = 0; i < num; i++)
        grad_log_prob[i] = -0.01F;
    return CR_OK;
}

/* PSS of both after an update of two micro-batches. */
static double run(const char *text, const cr_worker_config *w)
{
    static int32_t ids[TOKENS], positions[TOKENS], labels[TOKENS], cu[SAMPLES + 1];
    cr_batch batch = {ids, positions, labels, cu, TOKENS, SAMPLES};
    cr_fsdp_args args = cr_fsdp_args_of(w, true);
    cr_model *model = make_model(text, w);
    cr_mesh *mesh = NULL;
    cr_device *dev = NULL;
    cr_fsdp *f = NULL;
    int ranks[2] = {0, 1};
    cr_mesh_shape shape;
    cr_update result;
    double pss;

    for (int t = 0; t < TOKENS; t++) {
        ids[t] = (t * 7919 + cr_world_rank(world) * 31) % VOCAB;
        positions[t] = t % LENGTH;
        labels[t] = t % LENGTH + 1 < LENGTH ? (t * 31) % VOCAB : -1;
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
    for (int m = 0; m < MICROS; m++)
        must(cr_fsdp_backward(f, &batch, mean_loss, NULL, &err), "backward");
    must(cr_fsdp_update(f, 1e-3, &result, &err), "update");
    pss = pss_bytes();
    cr_fsdp_destroy(f);
    cr_device_close(dev);
    cr_mesh_destroy(mesh);
    cr_model_free(model);
    malloc_trim(0);
    return pss;
}

static void check(const char *text, const cr_worker_config *w, const char *name)
{
    const cr_plan_batch batch = {.num_samples = SAMPLES,
                                 .sample_tokens = LENGTH,
                                 .sample_rows = LENGTH - 1,
                                 .micros = MICROS,
                                 .updates = 1};
    cr_plan_role plan = {.name = "train", .is_train = true};
    cr_model *model = make_model(text, w);
    double got = run(text, w), want;

    must(cr_plan_run(model, w, 2, &batch, &plan, &err), "plan");
    want = base_bytes + 2.0 * (double)(cr_plan_peak(&plan) + plan.host_bytes) -
           (double)plan.phase[0].bytes.gathered * (plan.mesh.num_fsdp == 2 ? 1 : 0);
    if (cr_world_rank(world) == 0)
        printf("%-14s plan %.1f MB (of it %.1f process), PSS %.1f MB: %+.1f %%\n", name, want / 2e6,
               base_bytes / 2e6, got / 2e6, 100 * (want - got) / got);
    CR_CHECK(getenv("CROLL_SHOW_ONLY") || (want < 1.05 * got && want > 0.95 * got),
             "%s: the plan has %.1f MB a rank, the kernel %.1f MB", name, want / 2e6, got / 2e6);
    cr_plan_role_free(&plan);
    cr_model_free(model);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    char bf16[] = "bf16", fp32[] = "fp32",
         frozen[] = "model.embed_tokens,model.layers.0,model.layers.1";
    char expert[] = "Qwen3MoeMLP", *experts[] = {expert};
    const cr_worker_config usual = {.dtype = bf16,
                                    .master_dtype = fp32,
                                    .reduce_dtype = fp32,
                                    .fsdp_size = 2,
                                    .ulysses_size = 1,
                                    .ep_size = 1,
                                    .reshard_after_forward = -1,
                                    .should_recompute = true,
                                    .adam_beta1 = 0.9,
                                    .adam_beta2 = 0.999,
                                    .moe_aux_loss_coef = -1};
    cr_worker_config w = usual;
    int ranks[2] = {0, 1};

    must(cr_world_open(&args, &world, &err), "world");
    must(cr_group_create(world, "both", ranks, 2, &both, &err), "group");
    mallopt(M_MMAP_THRESHOLD, 1 << 17); /* what a setting frees is gone before the next one */
    base_bytes = pss_bytes();
    check(dense, &w, "usual");
    w.should_recompute = false, w.dtype = fp32;
    check(dense, &w, "fp32, no recompute");
    w = usual, w.is_offloaded = true;
    check(dense, &w, "offload");
    w = usual, w.ulysses_size = 2;
    check(dense, &w, "ulysses");
    w = usual, w.reshard_after_forward = 0;
    check(dense, &w, "no reshard");
    w = usual, w.freeze_module_prefix = frozen;
    check(dense, &w, "frozen");
    w = usual;
    check(sparse, &w, "experts");
    w = usual, w.ep_size = 2, w.moe_experts = experts, w.num_moe_experts = 1;
    check(sparse, &w, "dealt experts");
    cr_group_destroy(both);
    cr_world_close(world);
    return 0;
}
