/* cut_matrix.c -- the gradient does not depend on how model and batch are cut: 240 combinations, drawn
 * from a fixed seed, of {1, 2, 4, 8 ranks} x {fsdp, HSDP} x {ulysses 1, 2, 4} x {recompute} x {reshard}
 * x {expert parallel 1, 2, 4 with experts cut or not} x {tiled} x {offload} x {micro-batch 1, 2, all}
 * x {one sequence each, packed} x {units} x {one reduction a step} x {Qwen3, Qwen3-MoE} x {key/value
 * heads} x {tied embeddings}, each against the same model on one rank
 * with nothing cut. Smaller worlds are parts of the 8 ranks that run at the same time. Every value of
 * every dimension is met at least 20 times, or the test fails. Then 30 more in which adapters are trained (LoRA), of all Linears, of
 * some by name and of some by a regular expression, experts and routers among them, alone, with one of the embedding table, or with modules that are
 * trained in full.
 * CUT_SEED, CUT_NUM and CUT_ADAPTED in the environment draw others; run on 1, 2 or 4 ranks it draws from these. Not covered: bf16 (its
 * gradient depends on the order of sums by 2^-8). On cuda and on pretended hosts 30 are drawn, and 10 with adapters (all of them there in
 * e2e/hosts_mesh). The last line has a number of all gradients' bits, the same on any hosts.
 * // ranks: 8
 * // also on hosts: 0,0,0,1
 * // also on cuda, long
 */
#include "tests/mesh/cut.h"

#include <stdlib.h>

enum { RANKS = 8 };
static int num_ranks; /* of the world: RANKS, or 1, 2, 4 */

static uint64_t seed = 4, draw_index;

static int draw(int num)
{
    uint32_t w[4];

    cr_rng_philox(seed, CR_RNG_TEST, 9, draw_index++, w);
    return (int)(w[0] % (uint32_t)num);
}

/* ---- how often each value was met ---- */

typedef struct tally {
    const char *name;
    int value, num;
} tally;

static tally met[64];
static int num_met;

static void count(const char *name, int value)
{
    int i = 0;

    while (i < num_met && (strcmp(met[i].name, name) != 0 || met[i].value != value))
        i++;
    CR_CHECK(i < (int)CR_COUNT(met), "too many values");
    if (i == num_met) met[num_met++] = (tally){name, value, 0};
    met[i].num++;
}

/* ---- drawing ---- */

static const char *const of_parts[] = {"Qwen3Attention", "Qwen3MLP", "Qwen3RMSNorm"};
static const char *const of_moe_parts[] = {"Qwen3MoeAttention", "Qwen3MoeSparseMoeBlock"};
static const char *const of_experts[] = {"Qwen3MoeMLP"}, *const of_lists[] = {"Qwen3MoeExperts"};

static int one_of(const char *name, int num, const int *values)
{
    int value = values[draw(num)];

    count(name, value);
    return value;
}

/* Experts of other ranks need units of their own (rule M9). */
static void draw_experts(cut *c)
{
    c->ep = c->ranks >= 4 ? one_of("ep", 4, (const int[]){1, 2, 4, 4})
                          : one_of("ep", c->ranks, (const int[]){1, 2});
    if (c->ep == 1) return;
    c->efsdp = c->ranks / c->ep;
    if (c->efsdp > 1 && draw(3) == 0) c->efsdp /= 2;
    count("experts cut", c->efsdp > 1);
    c->wrap.expert_classes = draw(2) ? of_experts : of_lists;
    c->wrap.num_expert_classes = 1;
}

static cr_wrap_policy draw_wrap(bool is_moe)
{
    int kind = draw(3);
    cr_wrap_policy p = {.should_wrap_embeddings = kind == 1, .should_wrap_lm_output = kind == 1};

    count("units", kind);
    if (kind != 2) return p;
    p.classes = is_moe ? of_moe_parts : of_parts;
    p.num_classes = is_moe ? 2 : 3;
    if (is_moe && draw(2)) {
        p.expert_classes = of_experts;
        p.num_expert_classes = 1;
    }
    return p;
}

static cut draw_cut(void)
{
    cut c = {.heads = 4, .shortest = 2};
    int sizes[4] = {1, 2, 4, 8}, num = 0;

    while (num < 4 && sizes[num] <= num_ranks)
        num++;
    c.ranks = one_of("ranks", num, sizes);
    c.fsdp = c.ranks;
    if (c.ranks >= 4) c.fsdp = draw(2) ? c.ranks : c.ranks == 8 && draw(2) ? 4 : 2;
    count("hsdp", c.fsdp < c.ranks);
    num = c.fsdp >= 4 ? 3 : c.fsdp; /* rule M3 */
    c.ulysses = one_of("ulysses", num, sizes);
    c.kv_heads = one_of("kv_heads", 3, sizes);
    c.micro = one_of("micro", 3, (const int[]){1, 2, NUM_SEQS});
    c.pack = one_of("pack", 2, (const int[]){1, 3});
    c.is_recomputed = one_of("recompute", 2, (const int[]){0, 1});
    c.reshard = (cr_reshard)one_of("reshard", 3, (const int[]){0, 1, 2});
    c.num_tiles = one_of("tiles", 3, (const int[]){0, 3, 4});
    c.is_offloaded = one_of("offload", 2, (const int[]){0, 1});
    c.is_reduced_once = one_of("reduced once", 2, (const int[]){0, 1});
    c.is_moe = one_of("moe", 2, (const int[]){0, 1});
    c.is_tied = one_of("tied", 2, (const int[]){0, 1});
    c.wrap = draw_wrap(c.is_moe);
    if (c.is_moe) draw_experts(&c);
    return c;
}

/* words: 1 with one of the embedding table, 2 with modules that are trained in full, which tied embeddings are not. */
static cut draw_adapted(void)
{
    static const char *const targets[2][3][2] = {
        {{"all-linear", "all-linear,all-embedding"},
         {"q_proj,o_proj,up_proj", "q_proj,o_proj,up_proj,embed_tokens"},
         {"model\\.layers\\.1\\..*(q|v|down)_proj",
          "model\\.(embed_tokens|layers\\.1\\..*(q|v|down)_proj)"}},
        {{"all-linear,all-router", "all-linear,all-embedding"},
         {"q_proj,experts.gate_up_proj", "q_proj,gate_proj,up_proj,embed_tokens"},
         {"model\\.layers\\.1\\..*(q|v|down)_proj",
          "model\\.(embed_tokens|layers\\.1\\..*(q|v|down)_proj)"}}};
    cut c = draw_cut();

    c.target = one_of("adapters", 3, (const int[]){0, 1, 2});
    c.words = c.is_tied ? one_of("words", 2, (const int[]){0, 2})
                        : one_of("words", 4, (const int[]){0, 1, 1, 2});
    c.adapters = targets[c.is_moe][c.target][c.words == 1];
    if (c.words == 2)
        c.saved = c.is_tied ? "norm,v_proj" : c.target ? "lm_head,norm" : "embed_tokens,k_proj";
    c.rank = 3;
    return c;
}

static char *describe(const cut *c)
{
    return cr_asprintf("%d ranks, fsdp %d, ulysses %d, kv %d, micro %d of %d%s, reshard %d, tiles "
                       "%d%s%s%s%s, ep %d x %d, units %s%s%s%s%s",
                       c->ranks, c->fsdp, c->ulysses, c->kv_heads, c->micro, c->pack,
                       c->is_recomputed ? ", recompute" : "", (int)c->reshard, c->num_tiles,
                       c->is_offloaded ? ", offload" : "",
                       c->is_reduced_once ? ", reduced once" : "", c->is_moe ? ", moe" : "",
                       c->is_tied ? ", tied" : "", c->ep, c->efsdp,
                       c->wrap.num_expert_classes       ? "of experts"
                       : c->wrap.num_classes            ? "of parts"
                       : c->wrap.should_wrap_embeddings ? "with embeddings"
                                                        : "of layers",
                       c->adapters ? ", adapters of " : "", c->adapters ? c->adapters : "",
                       c->saved ? ", in full " : "", c->saved ? c->saved : "");
}

/* ---- comparing ---- */

/* The gradient of one rank and nothing cut, of each model; made when it is first needed. */
static const cut_result *whole_of(const cut *c)
{
    static cut_result whole[2][2][5][4][3];
    cut_result *w =
        &whole[c->is_moe][c->is_tied][c->kv_heads][c->adapters ? 1 + c->target : 0][c->words];
    cut alone = {.ranks = 1,
                 .ulysses = 1,
                 .micro = NUM_SEQS,
                 .heads = c->heads,
                 .kv_heads = c->kv_heads,
                 .is_moe = c->is_moe,
                 .is_tied = c->is_tied,
                 .adapters = c->adapters,
                 .saved = c->saved,
                 .rank = c->rank,
                 .shortest = c->shortest};

    if (!w->grad) *w = cut_run(&alone, me);
    return w;
}

static double bits; /* of the gradients that this rank had */

/* Gradients are sums of about 90 rows in another order: sqrt(90) ulp = 6e-7 of their size. */
static double c21_c31_compare(const cut *c, int first)
{
    cut_result got = cut_run(c, first);
    double far = 0;

    if (me == first) {
        const cut_result *want = whole_of(c);
        char *what = describe(c);
        far = cut_distance(&got, want);
        bits += (double)(uint32_t)cr_hash64(got.grad, got.num_grad * sizeof *got.grad);
        CR_CHECK(far <= 1e-6, "%s: gradient off by %.3g", what, far);
        /* C21: one norm, however shards and experts lie: float64 sums of rounded gradients */
        CR_CHECK(fabs(got.norm - want->norm) <= 1e-6 * want->norm, "%s: norm %.9g, whole %.9g",
                 what, got.norm, want->norm);
        CR_CHECK(fabs(got.loss - want->loss) <= 1e-6 * fabs(want->loss), "%s: loss %.9g, %.9g",
                 what, got.loss, want->loss);
        for (int i = 0; i < MAX_LABELS; i++)
            CR_CHECK(isnan(got.log_prob[i]) || got.log_prob[i] == want->log_prob[i],
                     "%s: label %d has log-prob %.9g, whole %.9g", what, i, (double)got.log_prob[i],
                     (double)want->log_prob[i]);
        cr_free(what);
    }
    cr_free(got.grad);
    return far;
}

static int from_environment(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text ? atoi(text) : otherwise;
}

int main(void)
{
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    bool is_long = strcmp(cr_device_default(), "cuda") != 0 && !getenv("CROLL_TEST_HOSTS");
    int ranks[RANKS], next = 0, num = from_environment("CUT_NUM", is_long ? 240 : 30),
                      num_adapted = from_environment("CUT_ADAPTED", is_long ? 30 : 10);
    double worst = 0, start;

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    num_ranks = cr_world_num_ranks(world);
    CR_CHECK(num_ranks == 1 || num_ranks == 2 || num_ranks == 4 || num_ranks == RANKS, "%d ranks",
             num_ranks);
    seed = (uint64_t)from_environment("CUT_SEED", 4);
    for (int i = 0; i < num_ranks; i++)
        ranks[i] = i;
    OK(cr_group_create(world, NULL, "everyone", ranks, num_ranks, &everyone, &err));
    start = cr_now_s();
    for (int i = 0; i < num + num_adapted; i++) {
        cut c = i < num ? draw_cut() : draw_adapted();
        if (next + c.ranks > num_ranks) { /* the parts of the world are used up */
            OK(cr_barrier(everyone, "round", &err));
            next = 0;
        }
        worst = fmax(worst, c21_c31_compare(&c, next));
        next += c.ranks;
    }
    OK(cr_all_reduce_f64(everyone, "worst", CR_OP_MAX, &worst, 1, &err));
    OK(cr_all_reduce_f64(everyone, "bits", CR_OP_SUM, &bits, 1, &err)); /* whole numbers: exact */
    for (int i = 0; i < num_met && num >= 240 && num_ranks == RANKS; i++)
        CR_CHECK(met[i].num >=
                     (strcmp(met[i].name, "adapters") && strcmp(met[i].name, "words") ? 20 : 5),
                 "%s %d was met %d times only", met[i].name, met[i].value, met[i].num);
    if (me == 0)
        printf(
            "%d combinations, %d of adapters, worst difference %.2g of the gradient's norm, %.1f "
            "s\nbits %.0f\n",
            num, num_adapted, worst, cr_now_s() - start, bits);
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
