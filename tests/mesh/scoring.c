/* scoring.c -- rounds of serve/scoring.h: the numbers of random prompts are the same bits alone, among 63 others, on 1
 * (with two threads), 2 and 4 ranks, with sharded weights and under sequence parallel, fp32 and bf16; the bits of cr_fsdp_forward and of
 * logits that cr_draw draws from; one number for one id wherever it stands. A refused prompt leaves the mesh whole.
 * Not covered: several hosts, what the numbers are (unit/kernels_sampled).
 * // ranks: 4
 * // also on far
 * // also on cuda, long
 */
#include "serve/scoring.h"
#include "base/rng.h"
#include "tests/model_bench.h"

#include <math.h>
#include <string.h>

#define OK(expr) CR_CHECK((expr) == CR_OK, "%s", err.msg)

static const char config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":61,"
    "\"hidden_size\":32,\"intermediate_size\":44,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"
    "\"rope_theta\":10000.0,\"initializer_range\":0.1,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"float32\"}";

static cr_err err;
static cr_world *world;
static cr_group *everyone;
static int me;

enum { NUM = 64, MAX_NUM = 40, TOP = 5, CANDIDATES = 3, PLACE = 2 };

typedef struct prompt {
    int32_t ids[MAX_NUM], candidates[MAX_NUM * CANDIDATES];
    cr_draw_row draw;
    cr_score_ask ask;
} prompt;

typedef struct bench {
    cr_device *dev;
    cr_model *model;
    cr_mesh *mesh;
    cr_fsdp *f;
    cr_scoring *scoring;
} bench;

static uint32_t number(uint64_t a, uint64_t b)
{
    uint32_t w[4];

    cr_rng_philox(77, CR_RNG_TEST, a, b, w);
    return w[0];
}

/* All kinds of wishes among them. */
static void make_prompts(prompt *all, int32_t vocab)
{
    static const int32_t biased[] = {4, 9}, allowed[] = {1, 4, 9, 17, 22, 30, 31, 40},
                         banned[] = {9, 17, 30, 2, 5};
    static const float bias[] = {2, -1.5f};

    for (uint64_t i = 0; i < NUM; i++) {
        prompt *p = &all[i];
        size_t num = 1 + number(i, 0) % MAX_NUM, first = 1 + number(i, 1) % num;
        for (size_t t = 0; t < num; t++)
            p->ids[t] = (int32_t)(number(i, 100 + t) % (uint32_t)vocab);
        for (size_t k = 0; k < MAX_NUM * CANDIDATES; k++)
            p->candidates[k] = (int32_t)(number(i, 200 + k) % (uint32_t)vocab);
        p->draw = (cr_draw_row){.temperature = i % 3 ? 0.9f : 0,
                                .penalty = i % 4 == 3 ? 0.2f : 1, /* words of the prompt, then */
                                .top_p = i % 5 ? 1 : 0.8f,
                                .top_k = i % 7 ? 0 : 6,
                                .is_raw = true,
                                .u = (float)(number(i, 2) % 1000) / 1000};
        if (i % 4 == 1) /* half of the draws */
            p->draw.processors = (cr_token_processors){
                biased, bias, 2, 0, 0, allowed + i % 3, banned + i % 3, i % 8 == 1 ? 5 : 0, 3};
        p->ask = (cr_score_ask){.ids = p->ids,
                                .num_ids = num,
                                .first = i % 2 ? 1 : first,
                                .has_entropy = i % 3 == 0,
                                .has_rank = i % 4 != 1,
                                .num_top = i % 5 == 2 ? 0 : 1 + (int64_t)(i % TOP),
                                .candidates = p->candidates,
                                .num_candidates = i % 6 == 1 ? 0 : 1 + i % CANDIDATES,
                                .temperature = i % 4 == 2 ? 0.7f : 0,
                                .draw = i % 2 ? &p->draw : NULL};
        p->ask.num_lists = i % 4 ? 1 : num - p->ask.first;
        if (p->ask.num_lists == 0) p->ask.num_candidates = 0;
    }
}

static bench bench_open(int size, int fsdp, int ulysses, cr_dtype dtype)
{
    cr_fsdp_args args = {.param_dtype = dtype, .seed = 11};
    cr_mesh_shape shape;
    int ranks[4] = {0, 1, 2, 3};
    bench b = {0};

    OK(build_model(config, &b.model, &err));
    OK(cr_device_open(cr_device_default(), /*num_threads=*/size == 1 ? 2 : 1, &b.dev, &err));
    OK(cr_mesh_shape_init(&shape, size, fsdp, ulysses, 1, 0, &err));
    OK(cr_mesh_create(world, b.dev, "scoring", ranks, &shape, &b.mesh, &err));
    OK(cr_fsdp_create(b.model, b.dev, b.mesh, &args, &b.f, &err));
    b.scoring = cr_scoring_create(world, b.mesh);
    cr_scoring_set(b.scoring, PLACE, b.model, b.f);
    return b;
}

static void bench_close(bench *b)
{
    cr_scoring_destroy(b->scoring);
    cr_fsdp_destroy(b->f);
    cr_mesh_destroy(b->mesh);
    cr_device_close(b->dev);
    cr_model_free(b->model);
}

/* All numbers of a score, one after another. */
static void keep(cr_buf *to, const cr_score *x)
{
    size_t top = x->num * (size_t)x->num_top;

    cr_buf_add(to, x->log_probs, x->num * 4);
    if (x->entropy) cr_buf_add(to, x->entropy, x->num * 4);
    if (x->ranks) cr_buf_add(to, x->ranks, x->num * 4);
    if (top) cr_buf_add(to, x->top_ids, top * 4);
    if (top) cr_buf_add(to, x->top_log_probs, top * 4);
    if (x->candidates) cr_buf_add(to, x->candidates, x->num * x->num_candidates * 4);
    cr_buf_add(to, &x->drawn, sizeof x->drawn);
}

/* One id at one place has one number; ranks and the largest agree. */
static void check_one(const prompt *p, const cr_score *x)
{
    const cr_score_ask *a = &p->ask;

    CR_CHECK(x->num == a->num_ids - a->first + (a->draw != NULL) && !x->is_broken, "places");
    CR_CHECK((x->entropy != NULL) == a->has_entropy && (x->ranks != NULL) == a->has_rank, "wishes");
    for (size_t t = 0; t < x->num; t++) {
        bool is_drawn = a->first + t == a->num_ids;
        int32_t id = is_drawn ? x->drawn : a->ids[a->first + t];
        const int32_t *ids = a->candidates + (a->num_lists == 1 ? 0 : t * a->num_candidates);
        bool is_found = false;
        for (int64_t k = 0; k < x->num_top; k++) {
            size_t at = t * (size_t)x->num_top + (size_t)k;
            CR_CHECK(k == 0 || x->top_log_probs[at] <= x->top_log_probs[at - 1], "order");
            if (x->top_ids[at] != id) continue;
            is_found = true;
            CR_CHECK(x->top_log_probs[at] == x->log_probs[t], "two numbers of id %d", id);
        }
        if (x->ranks && x->num_top)
            CR_CHECK(is_found == (x->ranks[t] <= x->num_top), "rank %d of the token", x->ranks[t]);
        for (size_t k = 0; k < x->num_candidates; k++) {
            float got = x->candidates[t * x->num_candidates + k];
            if (is_drawn && a->num_lists != 1)
                CR_CHECK(got == -INFINITY, "a candidate of a place without a list");
            else if (ids[k] == id)
                CR_CHECK(got == x->log_probs[t], "two numbers of id %d", id);
            else
                CR_CHECK(got < 0 && isfinite(got), "candidate %d", ids[k]);
        }
    }
}

/* On one rank: what the strategies and the sampler give for the same tokens. */
static void check_plain(bench *b, const prompt *p, const cr_score *x)
{
    const cr_score_ask *a = &p->ask;
    int64_t vocab = b->model->config.vocab_size;
    int32_t last = (int32_t)a->num_ids - 1;
    cr_packed packed = {0};
    float *logits = CR_NEW_ARRAY(float, vocab), log_prob[MAX_NUM];
    int32_t *labels = cr_packed_add(&packed, a->ids, a->num_ids);
    cr_drawn drawn = {0};
    cr_draw_row how = p->draw;
    const cr_row_processors processors = {.temperature = a->temperature, .penalty = 1};
    cr_mem *mem;

    for (size_t t = 1; t < a->num_ids; t++)
        labels[t - 1] = a->ids[t];
    if (a->temperature > 0) packed.batch.processors = &processors;
    OK(cr_fsdp_forward(b->f, &packed.batch, &(cr_outputs){{log_prob}}, &err));
    CR_CHECK(memcmp(log_prob + a->first - 1, x->log_probs, (a->num_ids - a->first) * 4) == 0,
             "log-probs are not those of a forward");
    if (a->draw) {
        OK(cr_fsdp_logits(b->f, &packed.batch, &last, 1, logits, &err));
        OK(cr_device_alloc(b->dev, (size_t)vocab * 4, &mem, &err));
        OK(cr_upload(b->dev, mem, logits, (size_t)vocab * 4, &err));
        how.history[0] = a->ids;
        how.num_history[0] = a->num_ids;
        OK(cr_draw(b->dev, &(cr_draw_args){mem, 1, vocab, &how, &drawn}, &err));
        cr_device_free(b->dev, mem, (size_t)vocab * 4);
        CR_CHECK(drawn.id == x->drawn && drawn.log_prob == x->log_probs[x->num - 1],
                 "drawn %d with %.9g, not %d", x->drawn, (double)x->log_probs[x->num - 1],
                 drawn.id);
    }
    cr_free(logits);
    cr_packed_free(&packed);
}

/* Rank 0 asks; all numbers go to *numbers. */
static void ask_all(bench *b, prompt *all, cr_buf *numbers)
{
    cr_score_ask asks[NUM], wrong;
    cr_score scores[NUM];
    cr_buf alone = {0};
    cr_err refused = {0};
    int32_t bad = (int32_t)b->model->config.vocab_size;

    for (int i = 0; i < NUM; i++)
        asks[i] = all[i].ask;
    wrong = asks[1];
    wrong.ids = &bad;
    wrong.num_ids = 1;
    CR_CHECK(cr_scoring_round(b->scoring, PLACE, 0, &wrong, 1, scores, &refused) == CR_EARG &&
                 strstr(refused.msg, "token 0 is"),
             "a wrong prompt: %s", refused.msg);
    OK(cr_scoring_round(b->scoring, PLACE, 0, asks, NUM, scores, &err));
    for (int i = 0; i < NUM; i++) {
        check_one(&all[i], &scores[i]);
        keep(numbers, &scores[i]);
    }
    for (int i = 0; i < NUM; i++) {
        OK(cr_scoring_round(b->scoring, PLACE, 0, &asks[i], 1, scores, &err));
        keep(&alone, &scores[0]);
        if (cr_group_num_ranks(b->mesh->group[CR_AXIS_ALL]) == 1) check_plain(b, &all[i], scores);
    }
    CR_CHECK(alone.num_bytes == numbers->num_bytes &&
                 memcmp(alone.data, numbers->data, alone.num_bytes) == 0,
             "other numbers among 63 prompts than alone");
    cr_buf_free(&alone);
}

static void run(int size, int fsdp, int ulysses, cr_dtype dtype, prompt *all, cr_buf *want)
{
    cr_buf numbers = {0};

    if (me < size) {
        bench b = bench_open(size, fsdp, ulysses, dtype);
        make_prompts(all, (int32_t)b.model->config.vocab_size);
        if (me == 0) {
            ask_all(&b, all, &numbers);
            OK(cr_scoring_send(b.scoring, "news", &err));
            OK(cr_scoring_end(b.scoring, &err));
        } else {
            cr_buf text = {0};
            OK(cr_scoring_follow(b.scoring, &text, &err));
            CR_CHECK(text.num_bytes == 4 && memcmp(text.data, "news", 4) == 0, "another text");
            OK(cr_scoring_follow(b.scoring, &text, &err));
            CR_CHECK(text.num_bytes == 0, "no end");
            cr_buf_free(&text);
        }
        bench_close(&b);
    }
    if (me == 0 && want->num_bytes == 0) cr_buf_add(want, numbers.data, numbers.num_bytes);
    CR_CHECK(me != 0 || (numbers.num_bytes == want->num_bytes &&
                         memcmp(numbers.data, want->data, want->num_bytes) == 0),
             "other numbers on %d ranks, fsdp %d, ulysses %d than on one", size, fsdp, ulysses);
    cr_buf_free(&numbers);
    OK(cr_barrier(everyone, "a mesh", &err));
}

int main(void)
{
    static const int shapes[][3] = {{1, 1, 1}, {2, 2, 1}, {4, 4, 1},
                                    {4, 2, 1}, {2, 2, 2}, {4, 4, 2}};
    cr_world_args args = {.kind = CR_WORLD_MPI, .deadline_s = 60};
    prompt *all = CR_NEW_ARRAY(prompt, NUM);
    int ranks[4] = {0, 1, 2, 3};

    OK(cr_world_open(&args, &world, &err));
    me = cr_world_rank(world);
    OK(cr_group_create(world, NULL, "everyone", ranks, 4, &everyone, &err));
    for (int t = 0; t < 2; t++) {
        cr_buf want = {0};
        for (size_t i = 0; i < CR_COUNT(shapes); i++)
            run(shapes[i][0], shapes[i][1], shapes[i][2], t ? CR_BF16 : CR_F32, all, &want);
        cr_buf_free(&want);
    }
    cr_free(all);
    cr_group_destroy(everyone);
    cr_world_close(world);
    return 0;
}
