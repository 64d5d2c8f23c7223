/* models_interleaved.c -- two passes under way over one model: forward of A, forward of B, logits of A's batch,
 * backward of B, backward of A, against B and A one after the other. Log-probs, entropies, gradients, the
 * auxiliary loss and logits are the same bits, for a dense model, one with experts, and two with images
 * (windows; deepstack and experts); kept whole and recomputed. States serve several passes, larger and
 * smaller. Not covered: passes on threads (unit/engine_batching), the numbers themselves (other models_*).
 * // also on cuda, long
 */
#include "base/rng.h"
#include "models/vision/vision.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"
#include "tests/vl_keys.h"

enum { MAX_NUM = 96, PATCHES = 32, PIXELS = 96, IMAGE = 90, START = 92, CHOSEN = 2 };

#define EXPERTS                                                                                \
    ",\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"moe_intermediate_" \
    "size\":18"

static const char *const families[] = {
    "{\"model_type\":\"qwen3\"," TEXT "}", "{\"model_type\":\"qwen3_moe\"," TEXT EXPERTS "}",
    "{\"model_type\":\"qwen2_5_vl\"," IDS ",\"text_config\":{" TEXT MROPE
    "},\"vision_config\":{" VISION
    ",\"window_size\":16,\"fullatt_block_indexes\":[1],\"tokens_per_second\":2}}",
    "{\"model_type\":\"qwen3_vl_moe\"," IDS ",\"text_config\":{" TEXT MROPE EXPERTS
    "},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}"};

/* A batch and its pass. */
typedef struct side {
    int32_t ids[MAX_NUM], positions[MAX_NUM], labels[MAX_NUM], cu[3], mrope[3 * MAX_NUM],
        grid[1][3];
    float pixels[PATCHES * PIXELS];
    cr_vision_input vision;
    cr_batch batch;
    cr_pass pass;
    float log_prob[MAX_NUM], entropy[MAX_NUM], grad_log_prob[MAX_NUM], grad_entropy[MAX_NUM];
    double aux;
} side;

static cr_err err;

static void must(cr_status status)
{
    if (status != CR_OK) fail_msg("%s", err.msg);
}

static void put(side *s, int32_t id)
{
    int64_t t = s->batch.num_tokens++;

    s->ids[t] = id;
    s->positions[t] = (int32_t)(t - s->cu[s->batch.num_seqs]);
    s->labels[t] = t % 5 ? (int32_t)(t * 7 % 80) : -1;
}

/* Two sequences of `num` tokens of text each, the first with an image of 4 x `width` patches. */
static void fill(side *s, const cr_model *model, int num, int width, cr_device *dev, cr_dtype dtype,
                 bool should_recompute)
{
    *s = (side){.grid = {{1, 4, width}}, .vision = {.num_items = 1, .num_patches = 4 * width}};
    s->vision.pixels = s->pixels;
    s->vision.grid = (const int32_t(*)[3])s->grid;
    for (size_t i = 0; i < PATCHES * PIXELS; i++)
        s->pixels[i] = (float)cr_rng_normal(9, CR_RNG_TEST, (uint64_t)width, i);
    for (int q = 0; q < 2; q++) {
        for (int t = 0; t < num; t++)
            put(s, (t * 7 + num + q * 3) % 80);
        if (q == 0 && model->tower) {
            put(s, START);
            for (int i = 0; i < width; i++)
                put(s, IMAGE);
            put(s, 93);
        }
        s->cu[++s->batch.num_seqs] = (int32_t)s->batch.num_tokens;
    }
    s->batch.ids = s->ids;
    s->batch.positions = s->positions;
    s->batch.labels = s->labels;
    s->batch.cu_seqlens = s->cu;
    if (model->tower) {
        must(cr_vision_positions(&model->config, &s->batch, &s->vision, s->mrope, &err));
        s->batch.mrope = s->mrope;
        s->batch.vision = &s->vision;
    }
    for (int i = 0; i < MAX_NUM; i++) {
        s->grad_log_prob[i] = (float)cr_rng_normal(3, CR_RNG_TEST, (uint64_t)num, (uint64_t)i);
        s->grad_entropy[i] = (float)cr_rng_normal(4, CR_RNG_TEST, (uint64_t)num, (uint64_t)i);
    }
    s->pass = (cr_pass){.state = cr_pass_state_create(),
                        .dev = dev,
                        .dtype = dtype,
                        .tape = cr_stack_create(dev),
                        .scratch = cr_stack_create(dev),
                        .batch = &s->batch,
                        .should_recompute = should_recompute,
                        .aux_weight = 0.3f};
}

static void empty(side *s)
{
    cr_stack_destroy(s->pass.tape);
    cr_stack_destroy(s->pass.scratch);
    cr_pass_state_destroy(s->pass.state);
}

static void forward(const cr_model *model, side *s)
{
    must(cr_model_forward(model, &s->pass, &(cr_outputs){{s->log_prob, s->entropy}}, &err));
    s->aux = cr_pass_aux_loss(model, s->pass.state);
}

static void backward(const cr_model *model, side *s)
{
    must(cr_model_backward(model, &s->pass, &(cr_outputs){{s->grad_log_prob, s->grad_entropy}},
                           &err));
}

static void logits(const cr_model *model, side *s, const cr_batch *batch, cr_mem *out)
{
    static const int32_t rows[CHOSEN] = {3, 17};

    s->pass.batch = batch;
    must(cr_model_logits(model, &s->pass, rows, CHOSEN, out, &err));
}

static void check_family(const char *family, cr_dtype dtype, bool should_recompute)
{
    side *a = CR_NEW(side), *b = CR_NEW(side), *c = CR_NEW(side), *want_a = CR_NEW(side),
         *want_b = CR_NEW(side);
    float chosen[2][CHOSEN * 99] = {0};
    model_bench m;
    float *grads, *now;

    must(model_bench_open(&m, family, dtype, &err));
    fill(a, m.model, 20, 4, m.dev, dtype, should_recompute);
    fill(b, m.model, 31, 6, m.dev, dtype, should_recompute);
    fill(c, m.model, 5, 2, m.dev, dtype, should_recompute);
    logits(m.model, c, &a->batch, TO_DEVICE(m.dev, chosen[0]));
    to_host();
    forward(m.model, b);
    backward(m.model, b);
    forward(m.model, a);
    backward(m.model, a);
    *want_a = *a;
    *want_b = *b;
    grads = model_bench_grads(&m);
    for (int again = 0; again < 2; again++) { /* the second time a's state served b */
        cr_pass_state *state = a->pass.state;
        must(cr_zero(m.dev, m.full.grad, m.full.grad_bytes, &err));
        memset(a->log_prob, 0, sizeof a->log_prob);
        memset(b->log_prob, 0, sizeof b->log_prob);
        forward(m.model, a);
        forward(m.model, b);
        logits(m.model, c, &a->batch, TO_DEVICE(m.dev, chosen[1]));
        backward(m.model, b);
        backward(m.model, a);
        to_host();
        assert_memory_equal(chosen[1], chosen[0], sizeof chosen[0]);
        assert_memory_equal(a->log_prob, want_a->log_prob, sizeof a->log_prob);
        assert_memory_equal(b->log_prob, want_b->log_prob, sizeof b->log_prob);
        assert_memory_equal(a->entropy, want_a->entropy, sizeof a->entropy);
        assert_memory_equal(b->entropy, want_b->entropy, sizeof b->entropy);
        assert_true(a->aux == want_a->aux && b->aux == want_b->aux);
        now = model_bench_grads(&m);
        assert_memory_equal(now, grads, m.full.grad_bytes);
        cr_free(now);
        a->pass.state = b->pass.state;
        b->pass.state = state;
    }
    cr_free(grads);
    empty(a);
    empty(b);
    empty(c);
    model_bench_close(&m);
    cr_free(a);
    cr_free(b);
    cr_free(c);
    cr_free(want_a);
    cr_free(want_b);
}

static void passes_do_not_meet(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++)
        for (int way = 0; way < 3; way++)
            check_family(families[f], way == 2 ? CR_BF16 : CR_F32, way == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_do_not_meet)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
