/* engine_graphs.c -- what is recorded on device `cuda` and queued again: by the device alone, and by the engine, whose samples are the
 * same bits with graphs as without, in fp32 and bf16, while samples come and go, grow over several widths of the block
 * table, share prompts, are preempted, and over sleep, wake and new weights, in their place or elsewhere. On the simulated GPU
 * ctest runs it under four seeds. Ends with 77 where there is no GPU.
 *
 * Not covered: captures that CUDA refuses and memory that runs out (tests/cuda_sim/graphs.c); the gain in time.
 */
#include "base/rng.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <string.h>

#define OK(call) assert_int_equal((call), CR_OK)

static cr_device *dev;
static cr_err err;

/* ---- the device ---- */

enum { NUM = 300 };

/* x *= factor, then y = bf16 of x. */
typedef struct halving {
    cr_mem *x, *y;
    float factor;
    int num_calls;
    cr_mem *extra; /* copied to y instead, if it is there */
} halving;

static cr_status halve(void *ctx, cr_err *e)
{
    halving *h = ctx;

    h->num_calls++;
    CR_TRY(cr_scale(dev, &(cr_scale_args){h->x, h->factor, NUM}, e));
    if (h->extra) return cr_copy(dev, h->y, h->extra, (size_t)NUM * 2, e);
    return cr_cast(dev, &(cr_cast_args){CR_BF16, h->y, CR_F32, h->x, NUM}, e);
}

static void put_ones(halving *h)
{
    float ones[NUM];

    for (int i = 0; i < NUM; i++)
        ones[i] = 1;
    OK(cr_upload(dev, h->x, ones, sizeof ones, &err));
}

static float first_of(const halving *h)
{
    float x[NUM];

    OK(cr_download(dev, x, h->x, sizeof x, &err));
    for (int i = 1; i < NUM; i++)
        assert_true(x[i] == x[0]);
    return x[0];
}

static int64_t replayed(void)
{
    return cr_device_get_stats(dev).num_graph_launches;
}

static halving new_halving(void)
{
    halving h = {.factor = 0.5f};

    OK(cr_device_alloc(dev, NUM * sizeof(float), &h.x, &err));
    OK(cr_device_alloc(dev, NUM * sizeof(float), &h.y, &err));
    put_ones(&h);
    return h;
}

static void free_halving(halving *h)
{
    cr_device_free(dev, h->x, NUM * sizeof(float));
    cr_device_free(dev, h->y, NUM * sizeof(float));
}

/* Called, recorded, queued again; anew with another key and after memory was freed, which is not replayed before that. */
static void test_device(void **state)
{
    static const struct {
        uint64_t key;
        bool is_freed;         /* memory, before */
        int num_calls, replay; /* in all, after */
    } runs[] = {
        {7, false, 1, 0}, {7, false, 2, 1}, {7, false, 2, 2}, {7, false, 2, 3},
        {8, false, 3, 3}, {8, false, 4, 4}, {8, false, 4, 5}, {8, true, 5, 5},
        {8, false, 6, 6}, {8, false, 6, 7}, {7, false, 7, 7}, {7, true, 8, 7},
    };
    halving h = new_halving();
    cr_graph *r = NULL;
    int64_t before = replayed();
    float want = 1;

    (void)state;
    assert_true(cr_device_has_graphs(dev));
    for (size_t i = 0; i < CR_COUNT(runs); i++) {
        cr_mem *other;
        if (runs[i].is_freed) {
            OK(cr_device_alloc(dev, 64, &other, &err));
            cr_device_free(dev, other, 64);
        }
        OK(cr_graph_run(dev, &r, runs[i].key, halve, &h, &err));
        assert_int_equal(h.num_calls, runs[i].num_calls);
        assert_int_equal(replayed() - before, runs[i].replay);
        assert_true(first_of(&h) == (want /= 2));
    }
    OK(cr_graph_run(dev, &r, 7, halve, &h, &err)); /* destroyed while it may still run */
    cr_graph_destroy(dev, r);
    assert_true(first_of(&h) == want / 2);
    free_halving(&h);
}

/* Arguments are those of the graph: that is what keys are for. */
static void test_arguments(void **state)
{
    halving h = new_halving();
    cr_graph *r = NULL;

    (void)state;
    for (int i = 0; i < 2; i++)
        OK(cr_graph_run(dev, &r, 1, halve, &h, &err));
    h.factor = 3;
    OK(cr_graph_run(dev, &r, 1, halve, &h, &err));
    assert_true(first_of(&h) == 0.125f);
    OK(cr_graph_run(dev, &r, 2, halve, &h, &err));
    assert_true(first_of(&h) == 0.375f);
    cr_graph_destroy(dev, r);
    free_halving(&h);
}

/* x comes from the host, is halved, and goes back there. */
typedef struct there_and_back {
    halving h;
    cr_mem *host; /* [2][NUM] */
} there_and_back;

static cr_status halve_of_host(void *ctx, cr_err *e)
{
    there_and_back *t = ctx;
    size_t num_bytes = NUM * sizeof(float);

    CR_TRY(cr_upload_async(dev, t->h.x, t->host, num_bytes, e));
    CR_TRY(halve(&t->h, e));
    return cr_download_async(dev, cr_mem_add(t->host, num_bytes), t->h.x, num_bytes, e);
}

/* Asynchronous copies are recorded: the host's memory is read, and written, each time. */
static void test_host_copies(void **state)
{
    there_and_back t = {.h = new_halving()};
    cr_graph *r = NULL;
    int64_t before = replayed();
    float *host;

    (void)state;
    OK(cr_host_alloc(dev, 2 * NUM * sizeof(float), &t.host, &err));
    host = cr_host_address(t.host);
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < NUM; i++)
            host[i] = (float)(turn * NUM + i);
        OK(cr_graph_run(dev, &r, 1, halve_of_host, &t, &err));
        OK(cr_device_sync(dev, &err));
        for (int i = 0; i < NUM; i++)
            assert_true(host[NUM + i] == host[i] / 2);
    }
    assert_int_equal(replayed() - before, 4);
    cr_graph_destroy(dev, r);
    cr_host_free(dev, t.host, 2 * NUM * sizeof(float));
    free_halving(&t.h);
}

/* ---- what is refused while a graph is made ---- */

typedef enum forbidden {
    UPLOAD,
    DOWNLOAD,
    WAIT,
    RECORD_EVENT,
    WAIT_EVENT,
    ALLOCATION,
    HOST_ALLOCATION,
    HOST_RESULT,
    CAPTURE,
    FAILURE,
    NUM_FORBIDDEN
} forbidden;

typedef struct try_one {
    halving *h;
    forbidden what;
    bool is_on; /* in the call that is recorded, not in the first one */
    cr_event *event;
} try_one;

static cr_status do_it(const try_one *t, cr_err *e)
{
    cr_mem *mem = t->h->y;
    float x[4] = {0};
    double sum;
    cr_graph *r = NULL;
    cr_status status;

    switch (t->what) {
    case UPLOAD:
        return cr_upload(dev, mem, x, sizeof x, e);
    case DOWNLOAD:
        return cr_download(dev, x, mem, sizeof x, e);
    case WAIT:
        return cr_device_sync(dev, e);
    case RECORD_EVENT:
        return cr_event_record(t->event, dev, e);
    case WAIT_EVENT:
        return cr_stream_join(dev, cr_device_stream(dev, CR_STREAM_COPY), e);
    case ALLOCATION:
        return cr_device_alloc(dev, 64, &mem, e);
    case HOST_ALLOCATION:
        return cr_host_alloc(dev, 64, &mem, e);
    case HOST_RESULT:
        return cr_square_sum(dev, &(cr_square_sum_args){t->h->x, NUM, &sum}, e);
    case CAPTURE:
        status = cr_graph_run(dev, &r, 1, halve, t->h, e);
        cr_graph_destroy(dev, r);
        return status;
    default:
        return cr_fail(e, CR_EABSENT, "this one fails by itself");
    }
}

static cr_status halve_and(void *ctx, cr_err *e)
{
    const try_one *t = ctx;

    CR_TRY(halve(t->h, e));
    if (t->is_on && t->what != WAIT_EVENT) CR_TRY(do_it(t, e));
    return halve(t->h, e);
}

/* Nothing of such a graph runs, and the device goes on. */
static void test_refusals(void **state)
{
    cr_event *event;

    (void)state;
    OK(cr_event_create(dev, &event, &err));
    for (forbidden what = 0; what < NUM_FORBIDDEN; what++) {
        halving h = new_halving();
        try_one t = {&h, what, false, event};
        cr_graph *r = NULL;
        cr_err e = {0};
        OK(cr_graph_run(dev, &r, 1, halve_and, &t, &err));
        t.is_on = true;
        if (what != WAIT_EVENT) {
            assert_int_equal(cr_graph_run(dev, &r, 1, halve_and, &t, &e),
                             what == FAILURE ? CR_EABSENT : CR_EARG);
            if (!strstr(e.msg,
                        what == FAILURE ? "fails by itself" : "while operations are captured"))
                fail_msg("case %d: \"%s\"", (int)what, e.msg);
            assert_true(first_of(&h) == 0.25f);
            t.is_on = false;
        }
        for (int i = 0; i < 2; i++)
            OK(cr_graph_run(dev, &r, 1, halve_and, &t, &err));
        assert_true(first_of(&h) == 0.25f / 16);
        cr_graph_destroy(dev, r);
        free_halving(&h);
    }
    cr_event_destroy(event);
}

/* Other devices call. */
static void test_cpu(void **state)
{
    cr_device *gpu = dev;
    cr_graph *r = NULL;
    halving h;

    (void)state;
    OK(cr_device_open("cpu", 1, &dev, &err));
    assert_false(cr_device_has_graphs(dev));
    h = new_halving();
    for (int i = 1; i < 4; i++) {
        OK(cr_graph_run(dev, &r, 1, halve, &h, &err));
        assert_int_equal(h.num_calls, i);
    }
    assert_null(r);
    assert_int_equal(replayed(), 0);
    cr_graph_destroy(dev, r);
    free_halving(&h);
    cr_device_close(dev);
    dev = gpu;
}

/* ---- the engine ---- */

enum { VOCAB = 60, MAX_LEN = 200, NUM_REQUESTS = 8, MAX_SAMPLES = 8 };

#define REST                                                                               \
    "\"num_key_value_heads\":1,\"num_attention_heads\":2,"                                 \
    "\"hidden_size\":16,\"intermediate_size\":24,\"vocab_size\":60,\"rms_norm_eps\":1e-5," \
    "\"rope_theta\":100,\"initializer_range\":0.3,\"eos_token_id\":[3],\"max_position_"    \
    "embeddings\":200"
static const struct shape {
    const char *config;
    cr_dtype dtype;
} fp32 = {"{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"head_dim\":8," REST "}", CR_F32},
  bf16 = {"{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"head_dim\":8," REST "}", CR_BF16},
  tensor_cores = {"{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"head_dim\":64," REST "}",
                  CR_BF16},
  one_layer = {"{\"model_type\":\"qwen3\",\"num_hidden_layers\":1,\"head_dim\":8," REST "}",
               CR_F32},
  sparse = {
      "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"head_dim\":8,\"num_experts\":4,"
      "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16," REST "}",
      CR_F32};

typedef struct answers {
    cr_generated of[NUM_REQUESTS][MAX_SAMPLES];
    int64_t num_graph_launches, num_steps, num_preempted;
} answers;

typedef struct bench {
    cr_model *model;
    cr_full_weights full;
    cr_engine *engine;
    answers *got;
} bench;

static void submit(const bench *b, int number, size_t num_prompt, size_t num_samples,
                   int64_t num_new)
{
    int32_t prompt[MAX_LEN];
    uint64_t ids[MAX_SAMPLES];
    uint32_t w[4];
    const cr_generating how = {.temperature = number % 3 ? 1 : 0,
                               .top_p = number == 4 ? 0.9f : 1,
                               .top_k = number == 2 ? 9 : 0,
                               .repetition_penalty = number % 2 ? 1.1f : 1,
                               .max_new_tokens = num_new,
                               .ignores_eos = true,
                               .seed = 5};

    for (size_t t = 0; t < num_prompt; t++) {
        cr_rng_philox(7, CR_RNG_TEST, (uint64_t)number, t, w);
        prompt[t] = (int32_t)(w[0] % VOCAB);
    }
    for (size_t i = 0; i < num_samples; i++)
        ids[i] = (uint64_t)number << 32 | i;
    OK(cr_engine_submit(b->engine, prompt, num_prompt, ids, num_samples, &how, NULL, &err));
}

static void step(const bench *b, int num)
{
    cr_generated g;

    for (int i = 0; i < num && !cr_engine_is_idle(b->engine); i++) {
        OK(cr_engine_step(b->engine, &err));
        while (cr_engine_poll(b->engine, &g))
            b->got->of[g.sample_id >> 32][g.sample_id & 7] = g;
    }
}

static bench bench_open(const struct shape *shape, cr_engine_limits limits)
{
    bench b = {.got = CR_NEW(answers)};

    OK(build_model(shape->config, &b.model, &err));
    OK(cr_full_weights_init(&b.full, b.model, dev, shape->dtype, NULL, 11, &err));
    limits.max_model_len = MAX_LEN;
    OK(cr_engine_create(b.model, dev, &limits, &b.engine, &err));
    OK(cr_engine_set_weights(b.engine, &err));
    b.got->num_graph_launches = replayed();
    return b;
}

static answers *bench_close(bench *b)
{
    answers *got = b->got;
    cr_engine_stats stats = cr_engine_get_stats(b->engine);

    assert_int_equal(stats.blocks_used, 0);
    got->num_graph_launches = replayed() - got->num_graph_launches;
    got->num_steps = stats.num_steps;
    got->num_preempted = stats.num_preempted;
    cr_engine_destroy(b->engine);
    cr_full_weights_fini(&b->full);
    cr_model_free(b->model);
    return got;
}

/* Both have the same samples, bit for bit; a was made without graphs, b with at least `least` of them. */
static void check_same(answers *a, answers *b, int64_t min)
{
    int num = 0;

    assert_int_equal(a->num_graph_launches, 0);
    assert_int_equal(a->num_steps, b->num_steps);
    if (b->num_graph_launches < min)
        fail_msg("%d of %d steps were recorded", (int)b->num_graph_launches, (int)b->num_steps);
    for (int r = 0; r < NUM_REQUESTS; r++)
        for (int i = 0; i < MAX_SAMPLES; i++) {
            cr_generated *x = &a->of[r][i], *y = &b->of[r][i];
            assert_int_equal(x->num_ids, y->num_ids);
            if (x->num_ids && (memcmp(x->ids, y->ids, x->num_ids * sizeof *x->ids) != 0 ||
                               memcmp(x->log_probs, y->log_probs, x->num_ids * sizeof(float)) != 0))
                fail_msg("request %d, sample %d has other bits", r, i);
            num += x->num_ids > 0;
            cr_generated_free(x);
            cr_generated_free(y);
        }
    assert_true(num > 0);
    cr_free(a);
    cr_free(b);
}

/* Samples come and go: 1 to 11 rows, tables of 1, 2 and 4 blocks, prompts of a group and at the edges of blocks. */
static answers *come_and_go(const struct shape *shape, bool is_eager)
{
    bench b = bench_open(shape, (cr_engine_limits){.max_running = 11, .is_eager = is_eager});

    submit(&b, 0, 5, 3, 40);
    step(&b, 9);
    submit(&b, 1, 62, 4, 9);
    step(&b, 6);
    submit(&b, 2, 1, 1, 5);
    submit(&b, 3, 64, 2, 4);
    step(&b, 20);
    submit(&b, 4, 125, 1, 9); /* its 5th token begins a third block */
    step(&b, 1000);
    return bench_close(&b);
}

static void test_generation(void **state)
{
    (void)state;
    check_same(come_and_go(&fp32, true), come_and_go(&fp32, false), 25);
}

static answers *some_rows(const struct shape *shape, bool is_eager)
{
    bench b = bench_open(shape, (cr_engine_limits){.max_running = 5, .is_eager = is_eager});

    submit(&b, 0, 60, 5, 8);
    step(&b, 1000);
    return bench_close(&b);
}

static void test_bf16(void **state)
{
    (void)state;
    check_same(some_rows(&bf16, true), some_rows(&bf16, false), 4);
    check_same(some_rows(&tensor_cores, true), some_rows(&tensor_cores, false), 4);
}

/* Penalties take the ids so far, one more each step, to the device: the same graph serves them. */
static answers *longer_histories(bool is_eager)
{
    bench b = bench_open(&one_layer, (cr_engine_limits){.max_running = 1, .is_eager = is_eager});

    submit(&b, 1, 5, 1, 55);
    step(&b, 1000);
    return bench_close(&b);
}

static void test_histories(void **state)
{
    (void)state;
    check_same(longer_histories(true), longer_histories(false), 52);
}

/* Routing is read by the host: never recorded. */
static void test_experts(void **state)
{
    answers *got = some_rows(&sparse, false);

    (void)state;
    assert_int_equal(got->num_graph_launches, 0);
    check_same(some_rows(&sparse, true), got, 0);
}

/* Blocks run out, so that rows cannot always be added; with keeps_prefixes what is free is never empty. */
static answers *few_blocks(bool keeps_prefixes, bool is_eager)
{
    int64_t block = (int64_t)cr_kv_block_bytes(dev, CR_F32, 1, 8);
    bench b = bench_open(&one_layer, (cr_engine_limits){.max_running = 3,
                                                        .kv_bytes = 4 * block,
                                                        .keeps_prefixes = keeps_prefixes,
                                                        .is_eager = is_eager});

    submit(&b, 0, 54, 1,
           20); /* takes the last block at its 11th token, while three rows want a fourth */
    submit(&b, 1, 9, 2, 18);
    step(&b, 1000);
    submit(&b, 2, 60, 3, 6);
    step(&b, 1000);
    return bench_close(&b);
}

static void test_few_blocks(void **state)
{
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        answers *eager = few_blocks(keeps, true), *recorded = few_blocks(keeps, false);
        assert_true(eager->num_preempted > 0);
        check_same(eager, recorded, 10);
    }
}

/* Other values: in the same memory, or a parameter (norms as well as products) in other memory. */
static void change_weights(const bench *b, uint64_t salt, cr_mem **elsewhere, const cr_mem **home)
{
    for (size_t i = 0; i < b->model->num_params; i++) {
        cr_param *p = b->model->params[i];
        size_t num = (size_t)p->num_elems;
        float *values = CR_NEW_ARRAY(float, num);
        for (size_t j = 0; j < num; j++)
            values[j] = (float)cr_rng_normal(salt, CR_RNG_TEST, i, j) * 0.3f;
        if (elsewhere) {
            home[i] = p->weight.data;
            OK(cr_device_alloc(dev, num * sizeof(float), &elsewhere[i], &err));
            p->weight.data = elsewhere[i];
        }
        refill(dev, p->weight.data, values, num * sizeof *values);
        cr_free(values);
    }
    OK(cr_engine_set_weights(b->engine, &err));
}

static answers *weights_change(bool is_eager)
{
    bench b = bench_open(&fp32, (cr_engine_limits){.max_running = 4, .is_eager = is_eager});
    size_t num = b.model->num_params;
    cr_mem **elsewhere = CR_NEW_ARRAY(cr_mem *, num);
    const cr_mem **home = CR_NEW_ARRAY(const cr_mem *, num);

    submit(&b, 0, 10, 4, 8);
    step(&b, 1000);
    change_weights(&b, 1, NULL, NULL);
    submit(&b, 1, 10, 4, 8);
    step(&b, 1000);
    cr_engine_release(b.engine); /* sleep */
    OK(cr_engine_set_weights(b.engine, &err));
    submit(&b, 2, 10, 4, 8);
    step(&b, 1000);
    change_weights(&b, 2, elsewhere, home); /* nothing is freed */
    submit(&b, 3, 10, 4, 8);
    step(&b, 1000);
    cr_device_drop_scratch(dev);
    submit(&b, 4, 10, 4, 8);
    step(&b, 1000);
    for (size_t i = 0; i < num;
         i++) { /* freed while the engine holds graphs with their addresses */
        cr_param *p = b.model->params[i];
        p->weight.data = home[i];
        cr_device_free(dev, elsewhere[i], (size_t)p->num_elems * sizeof(float));
    }
    OK(cr_engine_set_weights(b.engine, &err));
    submit(&b, 5, 10, 4, 8);
    step(&b, 1000);
    cr_free(elsewhere);
    cr_free(home);
    return bench_close(&b);
}

static void test_weights(void **state)
{
    (void)state;
    check_same(weights_change(true), weights_change(false), 25);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device),      cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_host_copies), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cpu),         cmocka_unit_test(test_generation),
        cmocka_unit_test(test_bf16),        cmocka_unit_test(test_histories),
        cmocka_unit_test(test_experts),     cmocka_unit_test(test_few_blocks),
        cmocka_unit_test(test_weights),
    };
    int num_failed;

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (cr_device_open("cuda", 1, &dev, &err) != CR_OK) {
        printf("SKIP: %s\n", err.msg);
        return 77;
    }
    num_failed = cmocka_run_group_tests(tests, NULL, NULL);
    cr_device_close(dev);
    return num_failed ? 1 : 0;
}
