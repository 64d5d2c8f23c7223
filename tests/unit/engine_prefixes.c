/* engine_prefixes.c -- prompts whose beginning an earlier request has computed: how much is taken from the cache, what
 * is not (another salt, other weights, what had to make room), and the same bits of every sample with and without, for
 * random requests with a small cache, preemption and cancelled requests (on cuda fewer of them).
 * Not covered: what the service says of it (e2e/serve_numbers).
 * // also on cuda, long
 */
#include "base/rng.h"
#include "tests/check_near.h"
#include "tests/small_engine.h"

#include <string.h>

static const char config[] =
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"hidden_size\":16,"
    "\"intermediate_size\":24,\"num_attention_heads\":2,\"vocab_size\":256,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":100,"
    "\"initializer_range\":0.3,\"eos_token_id\":[3],\"max_position_embeddings\":512}";
static int32_t prompt[512];

/* blocks: of the cache; 0: what max_running samples need. */
static void open_engine(bool keeps_prefixes, int64_t blocks, int64_t max_model_len)
{
    cr_engine_limits limits = {.max_running = 4,
                               .max_rows = 80,
                               .max_model_len = max_model_len,
                               .keeps_prefixes = keeps_prefixes,
                               .kv_bytes =
                                   blocks * 2 * (int64_t)cr_kv_block_bytes(dev, CR_F32, 1, 8)};

    small_engine_open(&limits);
}

static cr_generating plain(int64_t max_new_tokens)
{
    return (cr_generating){.temperature = 1,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .max_new_tokens = max_new_tokens,
                           .ignores_eos = true,
                           .seed = 5};
}

/* One sample of ids[num]; how many tokens were reused. */
static int64_t run(const int32_t *ids, size_t num, const cr_generating *how, cr_generated *out)
{
    int64_t before = cr_engine_get_stats(engine).num_reused;
    const uint64_t id = 7;
    cr_err err = {0};

    must(cr_engine_submit(engine, ids, num, &id, 1, how, NULL, &err), &err);
    while (!cr_engine_is_idle(engine))
        must(cr_engine_step(engine, &err), &err);
    assert_true(cr_engine_poll(engine, out));
    assert_int_equal(cr_engine_get_stats(engine).blocks_used, 0);
    return cr_engine_get_stats(engine).num_reused - before;
}

static int64_t run_and_forget(const int32_t *ids, size_t num, const cr_generating *how)
{
    cr_generated g;
    int64_t num_reused = run(ids, num, how, &g);

    cr_generated_free(&g);
    return num_reused;
}

static void what_is_reused(void **state)
{
    cr_generating how = plain(70);
    cr_generated first, again;
    int32_t swapped[130] = {0};
    int64_t rows;
    cr_err err = {0};

    (void)state;
    open_engine(true, 0, 512);
    assert_int_equal(run(prompt, 200, &how, &first), 0);
    rows = cr_engine_get_stats(engine).num_prompt_rows;
    assert_int_equal(run(prompt, 200, &how, &again), 192);
    assert_int_equal(cr_engine_get_stats(engine).num_prompt_rows - rows, 8);
    assert_memory_equal(again.ids, first.ids, 70 * sizeof *again.ids);
    assert_memory_equal(again.log_probs, first.log_probs, 70 * sizeof *again.log_probs);
    cr_generated_free(&again);
    assert_int_equal(run_and_forget(prompt, 193, &how), 192);
    assert_int_equal(run_and_forget(prompt, 192, &how), 128); /* the last row is needed */
    assert_int_equal(run_and_forget(prompt, 64, &how), 0);
    /* the next turn of a chat: what was sampled is there, too; its last token was never computed */
    memcpy(prompt + 200, first.ids, 70 * sizeof *prompt);
    assert_int_equal(run_and_forget(prompt, 300, &how), 256);
    prompt[70]++; /* other tokens before it: only the first block is the same */
    assert_int_equal(run_and_forget(prompt, 200, &how), 64);
    prompt[70]--;
    memcpy(swapped, prompt + 64, 64 * sizeof *prompt); /* the same blocks in another order */
    memcpy(swapped + 64, prompt, 64 * sizeof *prompt);
    assert_int_equal(run_and_forget(swapped, 128 + 2, &how), 0);
    how.cache_salt = 1;
    assert_int_equal(run_and_forget(prompt, 200, &how), 0);
    assert_int_equal(run_and_forget(prompt, 200, &how), 192);
    how.cache_salt = 0;
    must(cr_engine_set_weights(engine, &err), &err);
    assert_int_equal(run_and_forget(prompt, 200, &how), 0);
    open_engine(false, 0, 512);
    assert_int_equal(run_and_forget(prompt, 200, &how), 0);
    assert_int_equal(run_and_forget(prompt, 200, &how), 0);
    cr_generated_free(&first);
}

/* What was used last stays. */
static void what_makes_room(void **state)
{
    cr_generating how = plain(2);

    (void)state;
    open_engine(true, 9, 256); /* three prompts fill eight blocks and need one to write to */
    for (int32_t k = 0; k < 3; k++) {
        prompt[0] = k;
        assert_int_equal(run_and_forget(prompt, 130, &how), 0);
    }
    prompt[0] = 0;
    assert_int_equal(run_and_forget(prompt, 130, &how), 128);
    prompt[0] = 9; /* takes a block of 1, that of the end of its prompt */
    assert_int_equal(run_and_forget(prompt, 250, &how), 0);
    prompt[0] = 0;
    assert_int_equal(run_and_forget(prompt, 130, &how), 128);
    prompt[0] = 1;
    assert_int_equal(run_and_forget(prompt, 130, &how), 64);
}

enum { REQUESTS = 30, MAX_LENGTH = 400 };
static size_t num_requests = REQUESTS;

typedef struct request {
    int32_t ids[MAX_LENGTH];
    size_t num, num_samples;
    int64_t length, step;
    uint64_t salt;
    bool is_cancelled;
} request;

static uint32_t number(uint64_t a, uint64_t b)
{
    uint32_t w[4];

    cr_rng_philox(3, CR_RNG_TEST, a, b, w);
    return w[0];
}

/* Trees of prompts: each goes on where an earlier one was left, or is new. */
static void make_requests(request *all, uint64_t salt)
{
    for (uint64_t i = 0; i < REQUESTS; i++) {
        request *r = &all[i], *from = i ? &all[number(salt, 10 * i) % i] : NULL;
        size_t same =
            from && number(salt, 10 * i + 1) % 4 ? number(salt, 10 * i + 2) % from->num : 0;
        *r = (request){.num = same + 1 + number(salt, 10 * i + 3) % 150,
                       .num_samples = 1 + number(salt, 10 * i + 4) % 3,
                       .length = 1 + number(salt, 10 * i + 5) % 90,
                       .step = number(salt, 10 * i + 6) % 200,
                       .salt = number(salt, 10 * i + 7) % 5 == 0,
                       .is_cancelled = number(salt, 10 * i + 8) % 6 == 0};
        if (r->num > 300) r->num = 300;
        for (size_t t = 0; t < r->num; t++)
            r->ids[t] = t < same ? from->ids[t] : (int32_t)(number(salt + i + 1, 1000 + t) % 256);
    }
}

/* A number of all ids and log-probs of each request. */
static cr_engine_stats run_all(const request *all, uint64_t out[REQUESTS])
{
    cr_generated g;
    cr_err err = {0};
    int64_t step = 0;
    size_t num_sent = 0;

    memset(out, 0, REQUESTS * sizeof *out);
    for (; num_sent < num_requests || !cr_engine_is_idle(engine); step++) {
        for (size_t i = 0; i < num_requests; i++) {
            cr_generating how = plain(all[i].length);
            const uint64_t ids[] = {8 * i, 8 * i + 1, 8 * i + 2};
            how.cache_salt = all[i].salt;
            if (all[i].step == step) {
                must(cr_engine_submit(engine, all[i].ids, all[i].num, ids, all[i].num_samples, &how,
                                      (void *)(uintptr_t)&all[i], &err),
                     &err);
                num_sent++;
            }
            if (all[i].is_cancelled && step == all[i].step + 20) cr_engine_cancel(engine, &all[i]);
        }
        must(cr_engine_step(engine, &err), &err);
    }
    while (cr_engine_poll(engine, &g)) {
        const request *r = g.user;
        if (!r->is_cancelled)
            out[r - all] += cr_hash64(g.ids, g.num_ids * sizeof *g.ids) +
                            3 * cr_hash64(g.log_probs, g.num_ids * sizeof *g.log_probs);
        cr_generated_free(&g);
    }
    assert_int_equal(cr_engine_get_stats(engine).blocks_used, 0);
    return cr_engine_get_stats(engine);
}

static void same_bits(void **state)
{
    static request all[REQUESTS];
    uint64_t want[REQUESTS], got[REQUESTS];
    int64_t num_reused = 0, num_preempted = 0;
    bool is_small = strcmp(cr_device_default(), "cuda") == 0;

    (void)state;
    if (is_small) num_requests = 10;
    for (uint64_t salt = 0; salt < (is_small ? 1 : 6); salt++) {
        make_requests(all, salt * 1000);
        open_engine(false, 0, 400);
        run_all(all, want);
        for (int64_t blocks = 7; blocks <= 28; blocks += 7) {
            open_engine(true, blocks, 400);
            cr_engine_stats stats = run_all(all, got);
            num_reused += stats.num_reused;
            num_preempted += stats.num_preempted;
            for (size_t i = 0; i < num_requests; i++)
                if (got[i] != want[i]) fail_msg("salt %d, request %zu", (int)salt, i);
        }
    }
    assert_true(num_reused > (is_small ? 500 : 5000));
    assert_true(num_preempted > (is_small ? 0 : 20));
}

static int begin(void **state)
{
    (void)state;
    small_model_open(config);
    for (size_t i = 0; i < 512; i++)
        prompt[i] = (int32_t)(i * 37 % 250);
    return 0;
}

static int end(void **state)
{
    (void)state;
    small_engine_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_reused),
        cmocka_unit_test(what_makes_room),
        cmocka_unit_test(same_bits),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
