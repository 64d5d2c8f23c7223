/* plan.c -- croll plan against the run: two updates of two micro-batches on 2 ranks, and what the plan
 * says of the same: bytes of shards, buffers, tape and scratch, and every collective, exactly (B4, B5). With
 * experts the plan takes tokens as spread evenly: rows of an expert are padded to 64 bytes, so the tape may
 * differ a little and scratch, of the largest expert, by 15 %, and with expert parallelism by what the router sends to this rank; all else is exact.
 * Not covered: what kernels keep for themselves (plan_memory.c).
 */
#include "tests/mesh/plan_run.h"

enum { LENGTH = 20 };

static const char images[] =
    "{\"model_type\":\"qwen3_vl\",\"architectures\":[\"Qwen3VLForConditionalGeneration\"],"
    "\"image_token_id\":90,\"video_token_id\":91,\"vision_start_token_id\":92,\"text_config\":{"
    "\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"rms_norm_eps\":1e-6,"
    "\"rope_scaling\":{\"mrope_section\":[4,2,2]}},\"vision_config\":{\"depth\":3,"
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_heads\":2,\"patch_size\":4,"
    "\"out_hidden_size\":64,\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}";

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
    static trained t;
    cr_fsdp_stats now;

    trained_open(&t, text, w, LENGTH);
    trained_update(&t);
    *then = cr_fsdp_get_stats(t.f);
    trained_update(&t);
    now = cr_fsdp_get_stats(t.f);
    trained_close(&t);
    return now;
}

/* routed: share of the tape and of scratch that may depend on the router. */
static void check(const char *text, const cr_worker_config *w, double routed, const char *name)
{
    cr_plan_role plan = plan_of(text, w, LENGTH);
    cr_fsdp_stats then, now = run(text, w, &then);
    const cr_plan_bytes *b;

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
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    char low[] = "model.layers.0", align[] = "align";
    cr_worker_config base = usual, w;

    must(cr_world_open(&args, &world, &err), "world");
    base.wrap.embeddings = true, w = base;
    check(dense, &w, 0, "usual");
    w.should_recompute = false;
    check(dense, &w, 0, "no recompute");
    w = base, w.dtype = CR_CHOICE_FP32;
    check(dense, &w, 0, "fp32");
    w = base, w.reshard_after_forward = 0;
    check(dense, &w, 0, "no reshard");
    w = base, w.reshard_after_forward = 1, w.reduce_dtype = CR_CHOICE_BF16;
    check(dense, &w, 0, "the root, too");
    w = base, w.is_reduced_once = true;
    check(dense, &w, 0, "reduced once");
    w = base, w.is_offloaded = true;
    check(dense, &w, 0, "offload");
    w = base, w.master_dtype = CR_CHOICE_BF16;
    check(dense, &w, 0, "bf16 masters");
    w = base, w.ulysses_size = 2;
    check(dense, &w, 0, "ulysses");
    w = base, w.mlp_tiles = 4;
    check(dense, &w, 0, "tiles");
    w = base, w.reduce_dtype = CR_CHOICE_BF16;
    wide = "model.layers.1";
    check(dense, &w, 0, "a layer in float32");
    wide = "model.layers.0.mlp", w.freeze_module_prefix = low;
    check(dense, &w, 0, "a frozen MLP in float32");
    w.ulysses_size = 2;
    wide = "model.layers.2.self_attn", w.freeze_module_prefix = NULL;
    check(dense, &w, 0, "attention in float32, ulysses");
    wide = NULL;
    w = base;
    check(images, &w, 0, "a tower in float32, text alone");
    w.stage = align, w.reduce_dtype = CR_CHOICE_BF16;
    check(images, &w, 0, "a frozen tower, text alone");
    w = base, w.dtype = CR_CHOICE_FP32;
    check(sparse, &w, 0.15, "blocks of experts");
    w.apply_expert_patch = true, w.wrap.moe_experts = experts, w.wrap.num_moe_experts = 1;
    check(sparse, &w, 0.15, "a unit for each expert");
    w.ep_size = 2;
    check(sparse, &w, 0.3, "expert parallel");
    cr_world_close(world);
    return 0;
}
