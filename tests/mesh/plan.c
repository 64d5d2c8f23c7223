/* plan.c -- croll plan against the run: two updates of two micro-batches on 2 ranks, and what the plan
 * says of the same: bytes of shards, buffers, tape and scratch, and every collective with its group and bytes, exactly (B4, B5). With
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

/* What the run posts in its second update, by axis, kind and bytes; of gathered bytes, which a world of one rank
 * knows of itself alone, by axis and kind. */
typedef struct posted {
    char axis[24];
    cr_coll coll;
    uint64_t num_bytes;
    int64_t times;
} posted;
static posted seen[256];
static size_t num_seen;

static uint64_t compared(cr_coll coll, uint64_t num_bytes)
{
    return coll == CR_COLL_GATHER_BYTES ? 0 : num_bytes;
}

static void see(void *ctx, const cr_flight_event *e)
{
    const char *axis = strrchr(e->group, '.');
    uint64_t num_bytes = compared((cr_coll)e->coll, e->num_bytes);
    size_t i = 0;

    (void)ctx;
    if (!axis || e->num_ranks < 2) return;
    while (i < num_seen && (strcmp(seen[i].axis, axis + 1) != 0 || seen[i].coll != e->coll ||
                            seen[i].num_bytes != num_bytes))
        i++;
    CR_CHECK(i < CR_COUNT(seen), "too many kinds of calls");
    if (i == num_seen) {
        seen[num_seen] = (posted){.coll = (cr_coll)e->coll, .num_bytes = num_bytes};
        snprintf(seen[num_seen++].axis, sizeof seen[0].axis, "%s", axis + 1);
    }
    seen[i].times++;
}

/* The plan's calls are those. routed: all-to-alls are what a router decides. */
static void equal_calls(const cr_plan_role *plan, bool routed, const char *name)
{
    const cr_plan_passes *p = &plan->passes;
    int64_t all = 0, planned = 0;

    for (size_t i = 0; i < num_seen; i++) {
        int64_t times = 0;
        if (routed && seen[i].coll == CR_COLL_ALL_TO_ALL) continue;
        for (size_t k = 0; k < p->num_calls; k++)
            if (strcmp(cr_axis_name(p->call[k].axis), seen[i].axis) == 0 &&
                p->call[k].call.coll == seen[i].coll &&
                compared(seen[i].coll, p->call[k].call.num_bytes) == seen[i].num_bytes)
                for (cr_plan_pass pass = 0; pass < CR_PLAN_PASSES; pass++)
                    times += p->times[pass] * p->call[k].times[pass];
        equal(times, seen[i].times, cr_coll_name(seen[i].coll), name);
        all += times;
    }
    for (size_t k = 0; k < p->num_calls; k++)
        for (cr_plan_pass pass = 0; pass < CR_PLAN_PASSES; pass++)
            if (!routed || p->call[k].call.coll != CR_COLL_ALL_TO_ALL)
                planned += p->times[pass] * p->call[k].times[pass];
    equal(planned, all, "calls", name);
}

/* An update of two micro-batches, twice; what the second one moved is in now - *then. */
static cr_fsdp_stats run(const char *text, const cr_worker_config *w, cr_fsdp_stats *then)
{
    static trained t;
    cr_fsdp_stats now;

    trained_open(&t, text, w, LENGTH);
    trained_update(&t);
    *then = cr_fsdp_get_stats(t.f);
    num_seen = 0;
    cr_flight_watch(world, see, NULL);
    trained_update(&t);
    cr_flight_watch(world, NULL, NULL);
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
    equal(plan.max_units_alive, now.max_units_alive, "units alive", name);
    equal_count(plan.step.gathers, now.traffic.gathers, then.traffic.gathers, "gathers", name);
    equal_count(plan.step.reduces, now.traffic.reduces, then.traffic.reduces, "reduces", name);
    equal_count(plan.step.all_reduces, now.traffic.all_reduces, then.traffic.all_reduces,
                "all-reduces", name);
    equal_calls(&plan, w->ep_size > 1, name);
    CR_CHECK(now.tape_peak_bytes > 0 && now.traffic.gathers.num > 0, "%s: nothing happened", name);
    printf("%s: %lld bytes of tape, %lld gathers\n", name, (long long)b->tape,
           (long long)plan.step.gathers.num);
    cr_plan_role_free(&plan);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    char low[] = "model.layers.0", align[] = "align", all[] = "all-linear",
         words[] = "all-linear,all-embedding", saved[] = "lm_head,norm";
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
    chosen = 16;
    check(dense, &w, 0, "ulysses, likeliest ids");
    chosen = 0, has_states = true;
    check(dense, &w, 0, "ulysses, all logits");
    has_states = false;
    w = base, w.lora = (cr_lora_keys){.target = all, .rank = 5, .alpha = 10};
    check(dense, &w, 0, "adapters");
    w.is_offloaded = true, w.ulysses_size = 2, w.should_recompute = false;
    check(dense, &w, 0, "adapters, offload, ulysses");
    w = base;
    w.lora = (cr_lora_keys){.target = words, .saved = saved, .keeps_originals = true};
    w.lora.rank = 5, w.lora.alpha = 10;
    check(dense, &w, 0, "adapters, and words");
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
