/* engine_adapters.c -- samples of several adapters and of their base in one engine: each has the bits that it has in an engine whose
 * model has this adapter alone (or none), with and without prefixes in the cache, when blocks run out and some are preempted, in float32
 * and bf16, with experts, too; a prefix is reused by samples of its own adapter alone; steps that a device records.
 * Not covered: what the service says of them (e2e/adapters).
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "tests/check_near.h"
#include "tests/small_engine.h"

#include <math.h>
#include <string.h>

#define REST                                                                                       \
    "\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"head_dim\":8,\"hidden_size\":16,"         \
    "\"intermediate_size\":24,\"num_attention_heads\":2,\"vocab_size\":256,\"rms_norm_eps\":1e-5," \
    "\"rope_theta\":100,\"initializer_range\":0.3,\"max_position_embeddings\":512}"
static const char dense[] = "{\"model_type\":\"qwen3\"," REST,
                  sparse[] = "{\"model_type\":\"qwen3_moe\",\"num_experts\":4,"
                             "\"num_experts_per_tok\":2,\"moe_intermediate_size\":20," REST;

enum { ADAPTERS = 2, REQUESTS = 15, SAMPLES = 2, PREFIX = 130 };
static int num_requests = REQUESTS;

/* Beside the one of all Linears and the embedding table one of another rank, scale and choice of Linears. */
static cr_adapter_options options_of(int adapter)
{
    return adapter == 0
               ? (cr_adapter_options){.target = "v_proj,o_proj", .rank = 5, .alpha = 20}
               : (cr_adapter_options){.target = "all-linear,all-embedding", .rank = 3, .alpha = 6};
}

/* The values of this adapter, whatever its number in the model is. */
static void fill(const cr_param *p, int adapter)
{
    size_t num_bytes = (size_t)p->num_elems * cr_dtype_bytes(p->weight.dtype);
    float *values = CR_NEW_ARRAY(float, p->num_elems);
    void *stored = cr_alloc(num_bytes);
    uint32_t w[4];

    for (int64_t e = 0; e < p->num_elems; e++) {
        cr_rng_philox(cr_hash64(p->file_name, strlen(p->file_name)), CR_RNG_TEST, (uint64_t)adapter,
                      (uint64_t)e, w);
        values[e] = 0.3f * ((float)w[0] / 4294967296.0f - 0.5f);
    }
    cr_cast_host(p->weight.dtype, stored, CR_F32, values, (size_t)p->num_elems);
    refill(dev, p->weight.data, stored, num_bytes);
    cr_free(values);
    cr_free(stored);
}

/* A model with these adapters in this order. */
static void open_model(const char *config, cr_dtype dtype, int num, const int *adapters)
{
    cr_adapter_options all[ADAPTERS];
    cr_model_options options = {0};
    cr_err err = {0};

    for (int i = 0; i < num; i++) {
        all[i] = options_of(adapters[i]);
        if (i) all[i - 1].next = &all[i];
    }
    if (num) options.adapters = all[0];
    must(build_model_with(config, &options, &model, &err), &err);
    assert_int_equal(model->num_adapters, num);
    must(cr_device_open(cr_device_default(), 1, &dev, &err), &err);
    must(cr_full_weights_init(&full, model, dev, dtype, NULL, 11, &err), &err);
    for (size_t i = 0; i < model->num_params; i++)
        if (model->params[i]->is_adapter)
            fill(model->params[i], adapters[model->params[i]->adapter]);
}

static void open_engine(cr_dtype dtype, bool keeps_prefixes, int64_t blocks)
{
    small_engine_open(
        &(cr_engine_limits){.max_running = 6,
                            .max_rows = 90,
                            .max_model_len = 256,
                            .keeps_prefixes = keeps_prefixes,
                            .kv_bytes = blocks * 2 * (int64_t)cr_kv_block_bytes(dev, dtype, 1, 8)});
}

static void close_all(void)
{
    small_engine_close();
    engine = NULL;
}

/* Three after each other have one prompt; the others' begin as it does. */
static void make_prompt(int request, int32_t *ids, size_t *num)
{
    *num = (size_t)(PREFIX + 5 * (request / 3));
    for (size_t t = 0; t < *num; t++)
        ids[t] = (int32_t)((t < PREFIX ? t * 37 : t * 11 + (size_t)(request / 3)) % 250);
}

typedef struct answers {
    cr_generated of[REQUESTS][SAMPLES];
} answers;

/* Requests with adapter `only` (or all: -2), which is number `number` of the model. */
static cr_engine_stats run(int only, int number, int64_t length, answers *out)
{
    cr_generating how = {
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_new_tokens = length, .seed = 5};
    int32_t ids[256];
    cr_generated g;
    cr_err err = {0};
    size_t num;

    for (int r = 0; r < num_requests; r++) {
        const uint64_t samples[SAMPLES] = {(uint64_t)(8 * r), (uint64_t)(8 * r + 1)};
        how.adapter = r % 3 - 1;
        if (only > -2 && how.adapter != only) continue;
        if (only > -2) how.adapter = number;
        make_prompt(r, ids, &num);
        must(cr_engine_submit(engine, ids, num, samples, SAMPLES, &how, NULL, &err), &err);
        if (r % 2) must(cr_engine_step(engine, &err), &err);
    }
    while (!cr_engine_is_idle(engine))
        must(cr_engine_step(engine, &err), &err);
    while (cr_engine_poll(engine, &g))
        out->of[g.sample_id / 8][g.sample_id % 8] = g;
    assert_int_equal(cr_engine_get_stats(engine).blocks_used, 0);
    return cr_engine_get_stats(engine);
}

static void free_answers(answers *a)
{
    for (int r = 0; r < num_requests; r++)
        for (int i = 0; i < SAMPLES; i++)
            cr_generated_free(&a->of[r][i]);
}

static void check_same(const answers *got, const answers *want)
{
    for (int r = 0; r < num_requests; r++)
        for (int i = 0; i < SAMPLES; i++) {
            const cr_generated *x = &got->of[r][i], *y = &want->of[r][i];
            assert_true(y->num_ids > 0);
            if (x->num_ids != y->num_ids ||
                memcmp(x->ids, y->ids, x->num_ids * sizeof *x->ids) != 0 ||
                memcmp(x->log_probs, y->log_probs, x->num_ids * sizeof *x->log_probs) != 0)
                fail_msg("sample %d of request %d, of adapter %d: other bits than alone", i, r,
                         r % 3 - 1);
        }
}

/* One prompt, three answers. */
static void check_apart(const answers *a)
{
    for (int r = 0; r < num_requests; r += 3)
        for (int k = 0; k < 3; k++) {
            const cr_generated *x = &a->of[r + k][0], *y = &a->of[r + (k + 1) % 3][0];
            assert_true(fabsf(x->log_probs[0] - y->log_probs[0]) > 1e-4f);
        }
}

static void check(const char *config, cr_dtype dtype, int64_t length)
{
    static const int both[ADAPTERS] = {0, 1};
    answers want = {0}, got = {0};
    size_t num_params[ADAPTERS + 1];
    cr_engine_stats stats;

    for (int only = CR_NO_ADAPTER; only < ADAPTERS; only++) {
        open_model(config, dtype, only >= 0, &only);
        num_params[only + 1] = model->num_params;
        open_engine(dtype, false, 0);
        run(only, only < 0 ? CR_NO_ADAPTER : 0, length, &want);
        close_all();
    }
    check_apart(&want);
    open_model(config, dtype, ADAPTERS, both);
    assert_int_equal(model->num_params, num_params[1] + num_params[2] - num_params[0]);
    open_engine(dtype, true, 14);
    stats = run(-2, 0, length, &got);
    check_same(&got, &want);
    assert_true(stats.num_reused >= 3 * 128); /* whole blocks of the prefix */
    free_answers(&got);
    for (int64_t blocks = 0; blocks <= 5 && num_requests == REQUESTS; blocks += 5) {
        open_engine(dtype, blocks > 0, blocks);
        stats = run(-2, 0, length, &got);
        check_same(&got, &want);
        if (blocks && length > 40) assert_true(stats.num_preempted > 0);
        free_answers(&got);
    }
    close_all();
    free_answers(&want);
}

static void bits(void **state)
{
    (void)state;
    if (strcmp(cr_device_default(), "cpu") != 0) num_requests = 6;
    check(dense, CR_F32, num_requests < REQUESTS ? 4 : 60);
    if (num_requests < REQUESTS) return;
    check(dense, CR_BF16, 60);
    check(sparse, CR_F32, 20);
}

/* What is in the cache of one adapter is no beginning for another. */
static void prefixes(void **state)
{
    static const int both[ADAPTERS] = {0, 1};
    cr_generating how = {
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_new_tokens = 2};
    int32_t ids[256];
    const uint64_t id = 7;
    cr_generated g;
    cr_err err = {0};
    size_t num;

    (void)state;
    open_model(dense, CR_F32, ADAPTERS, both);
    open_engine(CR_F32, true, 0);
    make_prompt(0, ids, &num);
    for (int round = 0; round < 2; round++)
        for (how.adapter = CR_NO_ADAPTER; how.adapter < ADAPTERS; how.adapter++) {
            int64_t before = cr_engine_get_stats(engine).num_reused;
            must(cr_engine_submit(engine, ids, num, &id, 1, &how, NULL, &err), &err);
            while (!cr_engine_is_idle(engine))
                must(cr_engine_step(engine, &err), &err);
            assert_true(cr_engine_poll(engine, &g));
            cr_generated_free(&g);
            assert_int_equal(cr_engine_get_stats(engine).num_reused - before, round ? 128 : 0);
        }
    for (how.adapter = -2; how.adapter <= ADAPTERS; how.adapter += ADAPTERS + 2) {
        assert_int_equal(cr_engine_submit(engine, ids, num, &id, 1, &how, NULL, &err), CR_EARG);
        err = (cr_err){0};
    }
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits),
        cmocka_unit_test(prefixes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
