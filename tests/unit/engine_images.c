/* engine_images.c -- the generation engine on small vision-language models: windows; deepstack; deepstack and experts.
 *
 * What a sample gives must not depend on its company, on limits, on preemption or on kept prefixes, its log-probs must be those of a
 * packed forward to the bit, placeholders that were sampled among them, the tower must run once for a prompt, and prompts with
 * equal ids and other images must share nothing. On far and cuda with fewer requests.
 * Not covered: images from files (e2e/generate_images), the numbers themselves (models_vl_numbers).
 * // also on far
 * // also on cuda, long
 */
#include "base/rng.h"
#include "strategies/packed_images.h"
#include "tests/check_near.h"
#include "tests/engine_bench.h"
#include "tests/memory.h"
#include "tests/vl_keys.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LEN = 320, GROUPS = 12, SAMPLES = 4, PIXELS = 96, IMAGE = 90, VIDEO = 91, START = 92 };
static int num_groups = GROUPS, longest = 60;
static bool is_framed; /* frames of the model at hand have placeholders of their own */

#define EXPERTS                                                                                \
    ",\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"moe_intermediate_" \
    "size\":18"
static const char *const families[] = {
    "{\"model_type\":\"qwen2_5_vl\"," IDS ",\"text_config\":{" TEXT MROPE
    "},\"vision_config\":{" VISION
    ",\"window_size\":16,\"fullatt_block_indexes\":[1],\"tokens_per_second\":2}}",
    "{\"model_type\":\"qwen3_vl\"," IDS ",\"text_config\":{" TEXT MROPE
    "},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}",
    "{\"model_type\":\"qwen3_vl_moe\"," IDS ",\"text_config\":{" TEXT MROPE EXPERTS
    "},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}"};

static cr_err err;

static void must(cr_status status)
{
    if (status != CR_OK) fail_msg("%s", err.msg);
}

/* How a set of requests is run. */
typedef struct way {
    const char *family;
    cr_dtype dtype;
    int threads;
    int64_t running, rows, num_blocks; /* num_blocks 0: as many as are needed */
    bool keeps_prefixes;
} way;

static bench open_bench(const way *w)
{
    cr_engine_limits limits = {.max_running = w->running,
                               .max_rows = w->rows,
                               .max_model_len = MAX_LEN,
                               .keeps_prefixes = w->keeps_prefixes};
    bench b = bench_load(w->family, w->dtype, w->threads);

    is_framed = !strstr(w->family, "tokens_per_second");

    limits.kv_bytes = w->num_blocks * (int64_t)cr_kv_block_bytes(b.dev, w->dtype, 2, 12) * 3;
    bench_start(&b, &limits);
    return b;
}

/* ---- requests ---- */

typedef struct request {
    int32_t prompt[MAX_LEN], grid[3][3];
    float second[3]; /* 0: an image */
    size_t num_prompt, num_images, num_samples;
    uint64_t first_image; /* what its pixels are made from */
    cr_generating how;
} request;

static void put_text(request *q, size_t num, int g)
{
    for (size_t t = 0; t < num; t++)
        q->prompt[q->num_prompt++] = (int32_t)((7 * t + 11 * (size_t)g) % 80);
}

static void put_image(request *q, int32_t rows, int32_t cols)
{
    int32_t *grid = q->grid[q->num_images++];

    grid[0] = 1;
    grid[1] = 2 * rows;
    grid[2] = 2 * cols;
    q->prompt[q->num_prompt++] = START;
    for (int32_t i = 0; i < rows * cols; i++)
        q->prompt[q->num_prompt++] = IMAGE;
    q->prompt[q->num_prompt++] = 93;
}

/* Three frames, each with placeholders of its own if the model wants it so. */
static void put_video(request *q)
{
    int32_t *grid = q->grid[q->num_images];
    int runs = is_framed ? 3 : 1;

    q->second[q->num_images++] = 1.5f;
    grid[0] = 3;
    grid[1] = 4;
    grid[2] = 6;
    for (int r = 0; r < runs; r++) {
        q->prompt[q->num_prompt++] = START;
        for (int i = 0; i < 18 / runs; i++)
            q->prompt[q->num_prompt++] = VIDEO;
        q->prompt[q->num_prompt++] = 93;
    }
}

/* 0 to 3 images, small ones and such that go over the edge of a block of the cache, perhaps a video after them. */
static request make_request(int g)
{
    static const int32_t sides[][2] = {{1, 1}, {3, 2}, {6, 7}, {2, 12}, {5, 5}};
    request q = {.num_samples = 1 + (size_t)g % SAMPLES, .first_image = 100 * (uint64_t)g};

    put_text(&q, (size_t)(3 + 17 * g) % 70, g);
    for (int i = 0; i < g % 4; i++) {
        put_image(&q, sides[(g + i) % 5][0], sides[(g + i) % 5][1]);
        put_text(&q, (size_t)(5 * g) % 9 + (size_t)(i == g % 4 - 1), g + i);
    }
    if (g % 3 == 1 && g % 4 < 3) put_video(&q);
    if (g % 4 == 0 || g % 3 == 1) put_text(&q, 2, g);
    q.how = (cr_generating){.temperature = g % 3 ? 1 : 0,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .max_new_tokens = 1 + (g * 37) % longest,
                            .seed = 5};
    return q;
}

static cr_prompt_images make_images(const request *q)
{
    cr_prompt_images im = {.grid = CR_NEW_ARRAY(int32_t, 9),
                           .digest = cr_alloc(q->num_images * sizeof *im.digest)};
    size_t num = 0;

    for (size_t i = 0; i < q->num_images; i++)
        num += (size_t)(q->grid[i][0] * q->grid[i][1] * q->grid[i][2]) * PIXELS;
    im.pixels = CR_NEW_ARRAY(float, num);
    im.second_per_grid = CR_NEW_ARRAY(float, q->num_images);
    im.seq = (cr_seq_images){im.grid, q->num_images, im.pixels, num, im.second_per_grid};
    num = 0;
    for (size_t i = 0; i < q->num_images; i++) {
        size_t n = (size_t)(q->grid[i][0] * q->grid[i][1] * q->grid[i][2]) * PIXELS;
        im.second_per_grid[i] = q->second[i];
        memcpy(im.grid + 3 * i, q->grid[i], sizeof q->grid[i]);
        snprintf(im.digest[i], sizeof *im.digest, "%llu", (unsigned long long)q->first_image + i);
        for (size_t k = 0; k < n; k++)
            im.pixels[num++] = (float)cr_rng_normal(9, CR_RNG_TEST, q->first_image + i, k);
    }
    return im;
}

static void submit(bench *b, const request *q, int g)
{
    cr_prompt_images images = make_images(q);
    uint64_t ids[SAMPLES];

    for (size_t i = 0; i < q->num_samples; i++)
        ids[i] = (uint64_t)g << 8 | i;
    must(cr_engine_submit_images(b->engine, q->prompt, q->num_prompt, &images, ids, q->num_samples,
                                 &q->how, NULL, &err));
    if (!q->num_images) {
        cr_prompt_images_free(&images);
        return;
    }
    assert_null(images.pixels);
}

/* ---- answers ---- */

typedef struct answers {
    cr_generated of[GROUPS][SAMPLES];
} answers;

static void finish(bench *b, answers *a)
{
    cr_generated g;

    while (!cr_engine_is_idle(b->engine)) {
        must(cr_engine_step(b->engine, &err));
        while (cr_engine_poll(b->engine, &g))
            a->of[g.sample_id >> 8][g.sample_id & 255] = g;
    }
}

static void free_answers(answers *a)
{
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < SAMPLES; i++)
            cr_generated_free(&a->of[g][i]);
    cr_free(a);
}

/* All requests at once. */
static answers *ask_all(const way *w, cr_engine_stats *stats)
{
    bench b = open_bench(w);
    answers *a = CR_NEW(answers);

    for (int g = 0; g < num_groups; g++) {
        request q = make_request(g);
        submit(&b, &q, g);
    }
    finish(&b, a);
    *stats = cr_engine_get_stats(b.engine);
    bench_close(&b);
    return a;
}

static void check_same(const answers *got, const answers *want)
{
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < SAMPLES; i++) {
            const cr_generated *x = &got->of[g][i], *y = &want->of[g][i];
            assert_int_equal(x->num_ids, y->num_ids);
            if (x->num_ids == 0) continue;
            assert_memory_equal(x->ids, y->ids, x->num_ids * sizeof *x->ids);
            assert_memory_equal(x->log_probs, y->log_probs, x->num_ids * sizeof *x->log_probs);
        }
}

static int num_with_images(void)
{
    int num = 0;

    for (int g = 0; g < num_groups; g++)
        num += make_request(g).num_images > 0;
    return num;
}

static void company_changes_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        const way ways[] = {
            {families[f], f % 2 ? CR_BF16 : CR_F32, 1, 64, 512, 0, false},
            {families[f], f % 2 ? CR_BF16 : CR_F32, 1, 3, 16, 0, false},  /* prompts in chunks */
            {families[f], f % 2 ? CR_BF16 : CR_F32, 1, 64, 40, 6, false}, /* blocks run out */
            {families[f], f % 2 ? CR_BF16 : CR_F32, 3, 40, 60, 0, true},  /* cut over lanes */
            {families[f], f % 2 ? CR_BF16 : CR_F32, 1, 1, 512, 5, false}, /* each alone */
        };
        answers *want = NULL;
        for (size_t i = 0; i < CR_COUNT(ways); i++) {
            cr_engine_stats stats;
            answers *got = ask_all(&ways[i], &stats);
            if (i == 2 && num_groups == GROUPS) assert_true(stats.num_preempted > 0);
            if (i == 0) {
                assert_int_equal(stats.num_towers, num_with_images());
                want = got;
                continue;
            }
            check_same(got, want);
            free_answers(got);
        }
        free_answers(want);
    }
}

/* ---- log-probs ---- */

/* Samples of some requests as one packed batch. */
typedef struct packed {
    int32_t ids[GROUPS * SAMPLES * MAX_LEN], pos[GROUPS * SAMPLES * MAX_LEN],
        labels[GROUPS * SAMPLES * MAX_LEN], cu[GROUPS * SAMPLES + 1];
    cr_batch batch;
    cr_packed_images images;
} packed;

static void pack(packed *p, const request *q, const cr_generated *x, const cr_seq_images *images)
{
    int64_t at = p->batch.num_tokens;

    for (size_t t = 0; t < q->num_prompt + x->num_ids; t++, at++) {
        p->ids[at] = t < q->num_prompt ? q->prompt[t] : x->ids[t - q->num_prompt];
        p->pos[at] = (int32_t)t;
        p->labels[at] = -1;
        if (t >= q->num_prompt) p->labels[at - 1] = p->ids[at];
    }
    p->batch.num_tokens = at;
    p->cu[++p->batch.num_seqs] = (int32_t)at;
    cr_packed_images_add(&p->images, images);
    cr_packed_images_end_seq(&p->images);
}

/* Of what was asked for, by the forward of training; how many placeholders were sampled. */
static int check_log_probs(const bench *b, cr_dtype dtype, const answers *a,
                           request (*request_of)(int g))
{
    packed *p = CR_NEW(packed);
    float *want = CR_NEW_ARRAY(float, GROUPS *SAMPLES *MAX_LEN);
    cr_pass pass = {.state = cr_pass_state_create(),
                    .dev = b->dev,
                    .dtype = dtype,
                    .scratch = cr_stack_create(b->dev),
                    .batch = &p->batch};
    int64_t num = 0;
    int num_placeholders = 0;

    cr_packed_images_clear(&p->images);
    p->batch.ids = p->ids, p->batch.positions = p->pos, p->batch.labels = p->labels;
    p->batch.cu_seqlens = p->cu;
    for (int g = 0; g < num_groups; g++) {
        request q = request_of(g);
        cr_prompt_images images = make_images(&q);
        for (size_t i = 0; i < q.num_samples; i++)
            pack(p, &q, &a->of[g][i], &images.seq);
        cr_prompt_images_free(&images);
    }
    must(cr_packed_images_end(&p->images, &b->model->config, &p->batch, &err));
    must(cr_model_forward(b->model, &pass, &(cr_outputs){{want, NULL}}, &err));
    for (int g = 0; g < num_groups; g++)
        for (size_t i = 0; i < request_of(g).num_samples; i++) {
            const cr_generated *x = &a->of[g][i];
            assert_memory_equal(x->log_probs, want + num, x->num_ids * sizeof(float));
            num += (int64_t)x->num_ids;
            for (size_t t = 0; t < x->num_ids; t++)
                num_placeholders += x->ids[t] == IMAGE || x->ids[t] == VIDEO;
        }
    cr_packed_images_free(&p->images);
    cr_stack_destroy(pass.scratch);
    cr_pass_state_destroy(pass.state);
    cr_free(want);
    cr_free(p);
    return num_placeholders;
}

/* Half of the sampled tokens are placeholders, which are text there. */
static request sampled_placeholders(int g)
{
    static const int32_t allowed[] = {IMAGE, VIDEO, START, 7};
    request q = make_request(g);

    q.how.temperature = 1;
    q.how.processors.allowed = allowed;
    q.how.processors.num_allowed = CR_COUNT(allowed);
    return q;
}

static void log_probs_are_those_of_training(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++)
        for (int i = 0; i < 3; i++) {
            const way w = {families[f], i == 1 ? CR_BF16 : CR_F32, 1, 16, 50, 30, false};
            request (*request_of)(int) = i == 2 ? sampled_placeholders : make_request;
            answers *a = CR_NEW(answers);
            bench b = open_bench(&w);
            int num_placeholders;
            for (int g = 0; g < num_groups; g++) {
                request q = request_of(g);
                submit(&b, &q, g);
            }
            finish(&b, a);
            num_placeholders = check_log_probs(&b, w.dtype, a, request_of);
            if (i == 2) assert_true(num_placeholders > num_groups);
            free_answers(a);
            bench_close(&b);
        }
}

/* ---- kept prefixes ---- */

/* Text, an image of 42 tokens from place 41 on, text, another one, text. */
static request long_request(uint64_t first_image)
{
    request q = {.num_samples = 2, .first_image = first_image};

    put_text(&q, 40, 0);
    put_image(&q, 6, 7);
    put_text(&q, 60, 1);
    put_image(&q, 3, 2);
    put_text(&q, 70, 2);
    q.how = (cr_generating){.temperature = 1,
                            .top_p = 1,
                            .repetition_penalty = 1,
                            .max_new_tokens = 12,
                            .ignores_eos = true,
                            .seed = 5};
    return q;
}

/* Tokens that were reused. */
static int64_t run(bench *b, const request *q, answers *a)
{
    int64_t before = cr_engine_get_stats(b->engine).num_reused;

    submit(b, q, 0);
    finish(b, a);
    return cr_engine_get_stats(b->engine).num_reused - before;
}

static void prefixes_hash_images(void **state)
{
    const way kept = {families[1], CR_F32, 1, 4, 80, 0, true},
              fresh = {families[1], CR_F32, 1, 4, 80, 0, false};
    bench b = open_bench(&kept);
    answers *first = CR_NEW(answers), *again = CR_NEW(answers), *other = CR_NEW(answers),
            *alone = CR_NEW(answers);
    request q = long_request(1), o = long_request(7), later = q, text = q;

    (void)state;
    assert_int_equal(q.num_prompt, 222);
    assert_int_equal(run(&b, &q, first), 0);
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 1);
    assert_int_equal(run(&b, &q, again), 192);
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 1); /* its rows were all there */
    check_same(again, first);
    assert_int_equal(run(&b, &o, other), 0); /* the first block holds rows of the other image */
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 2);
    later.prompt[100]++; /* between the images: the second has to be there again */
    free_answers(again);
    again = CR_NEW(answers);
    assert_int_equal(run(&b, &later, again), 64);
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 3);
    text.num_images = 0; /* the same ids as text */
    free_answers(again);
    again = CR_NEW(answers);
    assert_int_equal(run(&b, &text, again), 0);
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 3);
    bench_close(&b);
    b = open_bench(&fresh);
    run(&b, &o, alone);
    check_same(other, alone);
    assert_memory_not_equal(other->of[0][0].log_probs, first->of[0][0].log_probs,
                            12 * sizeof(float));
    bench_close(&b);
    free_answers(first);
    free_answers(again);
    free_answers(other);
    free_answers(alone);
}

/* ---- what is refused, and what ends early ---- */

static void wrong_images(void **state)
{
    const way w = {families[0], CR_F32, 1, 4, 80, 0, false};
    static const char *const sentences[] = {"needs 42 placeholders", "has no placeholders",
                                            "has a grid of 1 x 3 x 14", "patches of",
                                            "a qwen3 has no images"};
    way text = w;

    (void)state;
    text.family = "{\"model_type\":\"qwen3\"," TEXT "}";
    for (size_t i = 0; i < CR_COUNT(sentences); i++) {
        bench b = open_bench(i == 4 ? &text : &w);
        request q = long_request(1);
        cr_prompt_images images = make_images(&q);
        const uint64_t id = 3;
        if (i == 0) q.prompt[50] = 1;
        if (i == 1) q.num_prompt = 100;
        if (i == 2) images.grid[1] = 3;
        if (i == 3) images.seq.num_pixels -= 222;
        assert_int_equal(cr_engine_submit_images(b.engine, q.prompt, q.num_prompt, &images, &id, 1,
                                                 &q.how, NULL, &err),
                         CR_EARG);
        if (!strstr(err.msg, sentences[i])) fail_msg("%s", err.msg);
        err = (cr_err){0};
        assert_non_null(images.pixels);
        cr_prompt_images_free(&images);
        bench_close(&b);
    }
}

/* A request that is dropped between two chunks of its images frees all that it had. */
static void cancelled_between_chunks(void **state)
{
    const way w = {families[1], CR_F32, 1, 4, 48, 0, false};
    bench b = open_bench(&w);
    request q = long_request(1);

    (void)state;
    submit(&b, &q, 0);
    must(cr_engine_step(b.engine, &err));
    must(cr_engine_step(b.engine, &err));
    assert_int_equal(cr_engine_get_stats(b.engine).num_towers, 1);
    cr_engine_cancel(b.engine, NULL);
    assert_true(cr_engine_is_idle(b.engine));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(log_probs_are_those_of_training), cmocka_unit_test(prefixes_hash_images),
        cmocka_unit_test(wrong_images), cmocka_unit_test(cancelled_between_chunks)};

    if (strcmp(cr_device_default(), "cpu") != 0) num_groups = 6, longest = 20;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
