/* plan_memory.c -- croll plan against the memory that the kernel counts: the PSS of two ranks after an update
 * of two micro-batches is within 2 % of what the plan says of the same, for 17 settings with experts,
 * offload, Ulysses, adapters, a value head, a loss over all logits, frozen parts and a Prismatic model by stages, with an image in each sample, among them (B4; sums of our own arenas are compared exactly in plan.c).
 *
 * What is added to the plan's bytes: the process before its first unit (program, libraries, MPI, the flight
 * recorder), measured once, before all settings; what the kernels keep for themselves; and, where it was touched, what stacks have
 * reserved beyond their peak. What is taken off: ranks of one host share gathered units,
 * so two of them have one copy. PSS (of pages that are not of files) counts a shared page for each by its share, so sums over ranks compare.
 * With an argument, the config.json of any model: that one alone, with adapters of rank 16 on all Linears.
 * Not covered: more than one host, actor_infer's cache (filled by samples).
 */
#include "kernels/cpu/cpu.h"
#include "mesh/collectives.h"
#include "strategies/fsdp_impl.h"
#include "tests/mesh/plan_run.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 128 };

static cr_group *both;
static double base_bytes; /* of both processes */
static double own_bytes;  /* of both ranks' kernels, in the last run */
static double slack; /* of both ranks' stacks, beyond their peak: in memory where it was touched */

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

/* The towers are half of it. (Without images, units and gradients of a tower that trains are in the plan, and nothing touches them.) */
static const char prismatic[] =
    "{\"model_type\":\"prismatic\",\"architectures\":[\"PrismaticForConditionalGeneration\"],"
    "\"image_token_id\":4095,\"arch_specifier\":\"linear\",\"text_config\":{\"model_type\":"
    "\"llama\",\"vocab_size\":4096,"
    "\"hidden_size\":512,\"intermediate_size\":1280,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":8},\"vision_towers\":[{\"model_type\":\"dinov2\",\"hidden_size\":384,"
    "\"num_hidden_layers\":7,\"num_attention_heads\":6,\"image_size\":112},{\"model_type\":"
    "\"siglip_vision_model\",\"hidden_size\":384,\"intermediate_size\":1536,"
    "\"num_hidden_layers\":5,\"num_attention_heads\":6,\"image_size\":128}]}";

static bool is_far(void)
{
    return strcmp(cr_device_default(), "far") == 0;
}

/* PSS of both ranks, taken while neither moves. Without pages of files: those of programs and libraries are shared
 * with whatever else runs on the machine. */
static double pss_bytes(void)
{
    char line[256];
    double kb = 0;
    FILE *f;

    must(cr_barrier(both, "before PSS", &err), "barrier");
    f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "Pss_Anon:", 9) == 0 || strncmp(line, "Pss_Shmem:", 10) == 0)
            kb += atof(strchr(line, ':') + 1);
    if (f) fclose(f);
    must(cr_all_reduce_f64(both, "PSS", CR_OP_SUM, &kb, 1, &err), "sum");
    return 1024 * kb;
}

static double scratch_bytes(const cr_device *dev)
{
    size_t sum = 0;

    for (int i = 0; i < CRI_NUM_SCRATCH && !is_far(); i++)
        sum += cri_cpu_of(dev)->scratch[i].num_bytes;
    return (double)sum;
}

static double slack_bytes(const cr_fsdp *f)
{
    return (double)(cr_stack_reserved_bytes(f->tape) - cr_stack_peak_bytes(f->tape) +
                    cr_stack_reserved_bytes(f->scratch) - cr_stack_peak_bytes(f->scratch));
}

/* PSS of both after an update of two micro-batches. */
static double run(const char *text, const cr_worker_config *w)
{
    static trained t;
    double pss;

    trained_open(&t, text, w, LENGTH);
    trained_update(&t);
    pss = pss_bytes();
    own_bytes = scratch_bytes(t.dev);
    slack = slack_bytes(t.f);
    must(cr_all_reduce_f64(both, "own", CR_OP_SUM, &own_bytes, 1, &err), "sum");
    must(cr_all_reduce_f64(both, "slack", CR_OP_SUM, &slack, 1, &err), "sum");
    trained_close(&t);
    malloc_trim(0);
    return pss;
}

static void check(const char *text, const cr_worker_config *w, const char *name)
{
    /* device far gives each tensor pages of its own, which no plan knows */
    const double limit = is_far() ? 0.1 : 0.02;
    double got = run(text, w), want;
    cr_plan_role plan = plan_of(text, w, LENGTH);

    want = base_bytes + own_bytes +
           2.0 * (double)(cr_plan_peak(&plan) + plan.host_bytes + plan.pixel_bytes) -
           (double)plan.phase[0].bytes.gathered * (plan.mesh.num_fsdp == 2 ? 1 : 0);
    if (cr_world_rank(world) == 0)
        printf("%-14s plan %.1f MB (of it %.1f process, %.1f kernels) to %.1f, PSS %.1f MB: %+.1f "
               "%%\n",
               name, want / 2e6, base_bytes / 2e6, own_bytes / 2e6, (want + slack) / 2e6, got / 2e6,
               100 * (want - got) / got);
    CR_CHECK(getenv("CROLL_SHOW_ONLY") ||
                 (got > (1 - limit) * want && got < (1 + limit) * (want + slack)),
             "%s: the plan has %.1f MB a rank, the kernel %.1f MB", name, want / 2e6, got / 2e6);
    cr_plan_role_free(&plan);
}

static void check_file(const char *path, const cr_worker_config *w)
{
    cr_buf text = {0};

    must(cr_file_read(path, &text, &err), path);
    check(text.data, w, "adapters");
    cr_buf_free(&text);
}

static void check_all(void)
{
    char all[] = "all-linear", words[] = "q_proj,embed_tokens", saved[] = "lm_head,norm,mlp";
    char frozen[] = "model.embed_tokens,model.layers.0,model.layers.1", finetune[] = "finetune";
    char align[] = "align", last[] = "last-layer-finetune", sandwich[] = "vla-sandwich-train";
    char *stages[] = {align, last, sandwich};
    cr_worker_config w = usual;

    check(dense, &w, "usual");
    w.should_recompute = false, w.dtype = CR_CHOICE_FP32;
    check(dense, &w, "fp32, no recompute");
    w = usual, w.is_offloaded = true;
    check(dense, &w, "offload");
    w = usual, w.ulysses_size = 2;
    check(dense, &w, "ulysses");
    w = usual, w.reshard_after_forward = 0;
    check(dense, &w, "no reshard");
    w = usual, w.freeze_module_prefix = frozen;
    check(dense, &w, "frozen");
    w = usual, w.lora = (cr_lora_keys){.target = all, .rank = 16, .alpha = 32};
    check(dense, &w, "adapters");
    w.lora.target = words, w.lora.saved = saved, w.lora.keeps_originals = true;
    check(dense, &w, "and in full");
    w = usual, w.task = CR_TASK_VALUE, w.value_head = CR_VALUE_HEAD_TOKENS;
    check(dense, &w, "critic");
    w = usual, has_states = true;
    check(dense, &w, "all logits");
    has_states = false;
    has_images = true;
    w = usual, w.stage = finetune;
    check(prismatic, &w, "frozen towers");
    w.is_offloaded = true;
    check(prismatic, &w, "and offloaded");
    for (size_t i = 0; i < CR_COUNT(stages); i++) {
        w = usual, w.stage = stages[i];
        check(prismatic, &w, stages[i]);
    }
    has_images = false;
    w = usual;
    check(sparse, &w, "experts");
    w = usual, w.ep_size = 2, w.wrap.moe_experts = experts, w.wrap.num_moe_experts = 1;
    check(sparse, &w, "expert parallel");
}

int main(int argc, char **argv)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    char all[] = "all-linear";
    cr_worker_config w = usual;
    int ranks[2] = {0, 1};

    must(cr_world_open(&args, &world, &err), "world");
    must(cr_group_create(world, NULL, "both", ranks, 2, &both, &err), "group");
    mallopt(M_MMAP_THRESHOLD, 1 << 17); /* what a setting frees is gone before the next one */
    base_bytes = pss_bytes();
    w.lora = (cr_lora_keys){.target = all, .rank = 16, .alpha = 32};
    if (argc > 1)
        check_file(argv[1], &w);
    else
        check_all();
    cr_group_destroy(both);
    cr_world_close(world);
    return 0;
}
