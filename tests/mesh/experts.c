/* experts.c -- expert parallel keeps what it promises of memory and traffic: expert-parallel experts are gathered only
 * over the ranks that share them, and a rank keeps no more than without. That gradients do not change
 * is in cut_matrix.c, training, checkpoints and weight sync in tests/e2e/run_experts.sh.
 * // ranks: 4
 * // also on far
 * // also on cuda, long
 */
#include "tests/mesh/cut.h"

static const char *const of_experts[] = {"Qwen3MoeMLP"};

static cut_result run(int ep, int efsdp)
{
    cut c = {.ranks = 4,
             .ulysses = 1,
             .micro = 3,
             .heads = 4,
             .kv_heads = 2,
             .shortest = 2,
             .is_moe = true,
             .ep = ep,
             .efsdp = efsdp,
             .wrap = {.expert_classes = of_experts, .num_expert_classes = 1}};

    return cut_run(&c, 0);
}

/* Two layers of 8 experts of three matrices of 32 x 24 float32 each: no padding is needed. */
enum { EXPERT_BYTES = 3 * 32 * 24 * 4, NUM_EXPERTS = 2 * 8 };

/* A micro-batch gathers each unit in forward and backward: 9 sequences on 4 ranks are one each. */
static void c31_gathers_are_those_of_own_experts(void)
{
    cut_result all = run(1, 0);

    for (int ep = 2; ep <= 4; ep += 2)
        for (int efsdp = 1; efsdp <= 4 / ep; efsdp++) {
            cut_result spread = run(ep, efsdp);
            int64_t saved = all.stats.traffic.gathers.num_bytes -
                            spread.stats.traffic.gathers.num_bytes,
                    own = efsdp > 1 ? NUM_EXPERTS / ep : 0,
                    want = 2LL * EXPERT_BYTES * (NUM_EXPERTS - own);
            CR_CHECK(saved == want, "ep %d x %d: %lld bytes are saved, want %lld", ep, efsdp,
                     (long long)saved, (long long)want);
            /* experts held by 4 / (ep * efsdp) ranks each; ep 1: by none twice */
            saved = spread.stats.shard_bytes - all.stats.shard_bytes;
            want = 4LL * EXPERT_BYTES * NUM_EXPERTS * (4 / (ep * efsdp) - 1) / 4;
            CR_CHECK(saved == want, "ep %d x %d: %lld bytes more are kept, want %lld", ep, efsdp,
                     (long long)saved, (long long)want);
            if (me == 0) CR_CHECK(cut_distance(&spread, &all) <= 1e-6, "ep %d x %d", ep, efsdp);
            cr_free(spread.grad);
        }
    cr_free(all.grad);
}

/* Every row of a rank has one route: of 4 ranks with 2 experts each at most 2 are sent something, and
 * at least 6 of 8 experts are empty for it. */
static void c31_nothing_for_a_peer(void)
{
    cut c = {.ranks = 1,
             .ulysses = 1,
             .micro = 1,
             .heads = 4,
             .kv_heads = 2,
             .shortest = 4,
             .is_moe = true,
             .is_one_token = true,
             .wrap = {.expert_classes = of_experts, .num_expert_classes = 1}};
    cut_result one = cut_run(&c, 0), got;

    c.ranks = 4;
    for (int ep = 2; ep <= 4; ep += 2)
        for (int efsdp = 1; efsdp <= 4 / ep; efsdp++) {
            c.ep = ep;
            c.efsdp = efsdp;
            got = cut_run(&c, 0);
            if (me == 0)
                CR_CHECK(cut_distance(&got, &one) <= 1e-6 &&
                             fabs(got.norm - one.norm) <= 1e-6 * one.norm,
                         "ep %d x %d: gradient off by %.3g", ep, efsdp, cut_distance(&got, &one));
            cr_free(got.grad);
        }
    cr_free(one.grad);
}

/* Adapters of attention, experts and routers, experts on other ranks or not, together or one by one, and in tiles. */
static void adapters_of_experts(void)
{
    static const char *const of_lists[] = {"Qwen3MoeExperts"};
    cut c = {.ranks = 1,
             .ulysses = 1,
             .micro = 3,
             .heads = 4,
             .kv_heads = 2,
             .shortest = 2,
             .is_moe = true,
             .adapters = "all-linear,all-router",
             .rank = 3,
             .wrap = {.num_expert_classes = 0}};
    cut_result one = cut_run(&c, 0), got;

    for (int i = 0; i < 5; i++) {
        c.ranks = i == 0 ? 2 : 4;
        c.ep = i < 2 ? 1 : i == 4 ? 4 : 2;
        c.efsdp = c.ranks / c.ep;
        c.is_recomputed = i % 2;
        c.num_tiles = i == 3 ? 3 : 0;
        c.wrap.expert_classes = i == 2 ? of_lists : of_experts;
        c.wrap.num_expert_classes = i > 0;
        got = cut_run(&c, 0);
        if (me == 0)
            CR_CHECK(cut_distance(&got, &one) <= 1e-6 &&
                         fabs(got.norm - one.norm) <= 1e-6 * one.norm,
                     "adapters, case %d: gradient off by %.3g", i, cut_distance(&got, &one));
        cr_free(got.grad);
    }
    cr_free(one.grad);
}

static void wrong_numbers_are_sentences(void)
{
    cr_mesh_shape shape;
    cr_err e = {0};
    cr_model *model = cut_model(&(cut){.heads = 4, .kv_heads = 2, .is_moe = true});
    cr_ep_layout layout = {.num_ranks = 2, .num_shards = 1, .rank = 0};
    cr_wrap_policy none = {0};
    cr_units units;

    OK(cr_mesh_shape_init(&shape, 6, 6, 1, 3, 2, &err));
    CR_CHECK(cr_mesh_check_experts(&shape, 8, &e) == CR_ECONFIG && strstr(e.msg, "M8"), "%s",
             e.msg);
    e = (cr_err){0};
    CR_CHECK(cr_units_build_ep(model, &none, 2, &layout, &units, &e) == CR_ECONFIG &&
                 strstr(e.msg, "M9"),
             "%s", e.msg);
    cr_model_free(model);
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    int ranks[] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    OK(cr_group_create(world, NULL, "everyone", ranks, 4, &everyone, &err));
    c31_gathers_are_those_of_own_experts();
    c31_nothing_for_a_peer();
    adapters_of_experts();
    wrong_numbers_are_sentences();
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
