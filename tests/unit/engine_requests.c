/* engine_requests.c -- what one request asks of the generation engine, on a small random Qwen3: one that is
 * cancelled in any state leaves the bits of the others and no block; which stop ended a sample; eos ids that
 * end none; texts that go on where the prompt ends.
 * Not covered: numbers of samples (unit/engine_batching). */
#include "base/json.h"
#include "tests/byte_tokenizer.h"
#include "tests/check_near.h"
#include "tests/serve_model.h"
#include "tests/small_engine.h"

#include <string.h>

static const char config[] =
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":1,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"hidden_size\":16,"
    "\"intermediate_size\":24,\"num_attention_heads\":2,\"vocab_size\":256,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":100,"
    "\"initializer_range\":0.3,\"eos_token_id\":[3,80],\"max_position_embeddings\":256}";
static cr_tokenizer *tokenizer;
static int32_t prompt[100];

static void open_engine(cr_engine_limits limits)
{
    small_engine_open(&limits);
    cr_engine_set_tokenizer(engine, tokenizer);
}

static cr_generating plain(int64_t max_new_tokens)
{
    return (cr_generating){.temperature = 1,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .max_new_tokens = max_new_tokens,
                           .should_cut_stop = true,
                           .ignores_eos = true,
                           .seed = 5};
}

/* One request of 3 samples for each user. */
static void submit(int *user, size_t num_prompt, const cr_generating *how)
{
    uint64_t ids[] = {(uint64_t)*user * 8, (uint64_t)*user * 8 + 1, (uint64_t)*user * 8 + 2};
    cr_err err = {0};

    must(cr_engine_submit(engine, prompt, num_prompt, ids, 3, how, user, &err), &err);
}

static cr_generated run_one(const cr_generating *how, size_t num_prompt)
{
    uint64_t id = 7;
    cr_generated g;
    cr_err err = {0};

    must(cr_engine_submit(engine, prompt, num_prompt, &id, 1, how, NULL, &err), &err);
    while (!cr_engine_is_idle(engine))
        must(cr_engine_step(engine, &err), &err);
    assert_true(cr_engine_poll(engine, &g));
    return g;
}

/* The sum of ids of each user's samples; how many there are. */
static int finish(const int *users, int64_t sum[4])
{
    cr_generated g;
    cr_err err = {0};
    int num = 0;

    memset(sum, 0, 4 * sizeof *sum);
    while (!cr_engine_is_idle(engine))
        must(cr_engine_step(engine, &err), &err);
    for (; cr_engine_poll(engine, &g); num++) {
        for (size_t i = 0; i < g.num_ids; i++)
            sum[(const int *)g.user - users] += (int64_t)(i + 1) * g.ids[i];
        cr_generated_free(&g);
    }
    assert_int_equal(cr_engine_get_stats(engine).blocks_used, 0);
    return num;
}

/* After any number of steps: some samples of the cancelled request wait, fill, follow, run or are done. */
static void cancel_of_one(void **state)
{
    int users[4] = {0, 1, 2, 3};
    int64_t want[4], got[4];

    (void)state;
    for (int round = 0; round < 40; round++) {
        open_engine((cr_engine_limits){.max_running = 5, .max_rows = 48});
        for (int u = 0; u < 4; u++) {
            cr_generating how = plain(4 + 9 * u);
            submit(&users[u], (size_t)(10 + 30 * u), &how);
        }
        if (round == 0) {
            assert_int_equal(finish(users, want), 12);
            continue;
        }
        for (int step = 1; step < round; step++) {
            cr_err err = {0};
            must(cr_engine_step(engine, &err), &err);
        }
        cr_engine_cancel(engine, &users[round % 4]);
        assert_int_equal(finish(users, got), 9);
        for (int u = 0; u < 4; u++)
            assert_true(got[u] == (u == round % 4 ? 0 : want[u]));
    }
}

static void which_stop(void **state)
{
    cr_generating how = plain(60);
    cr_generated all, g;
    char text[2] = "";
    const char *stop[] = {"not there", text};
    int32_t ids[] = {300, 0};
    size_t first;

    (void)state;
    open_engine((cr_engine_limits){.max_running = 2});
    all = run_one(&how, 20);
    assert_string_equal(all.finish, "length");
    assert_true(all.stop == -1 && all.stop_id == -1 && all.num_ids == 60);
    for (first = 0; first < 60 && (all.ids[first] < 32 || all.ids[first] > 126); first++)
        ;
    assert_true(first < 60); /* a letter */
    text[0] = (char)all.ids[first];
    how.stop = stop;
    how.num_stop = 2;
    g = run_one(&how, 20);
    assert_true(g.num_ids == first + 1 && g.stop == 1 && g.stop_id == -1);
    assert_string_equal(g.finish, "stop");
    cr_generated_free(&g);
    how.num_stop = 0;
    ids[1] = all.ids[30];
    how.stop_ids = ids;
    how.num_stop_ids = 2;
    g = run_one(&how, 20);
    assert_true(g.stop == -1 && g.stop_id == all.ids[30] && g.num_ids <= 31);
    cr_generated_free(&g);
    cr_generated_free(&all);
}

/* The text of an id that ends a sample is left out, or kept, as a stop text is: of a stop id, and of an eos id. */
static void text_of_ending_ids(void **state)
{
    cr_generating how = plain(60), shorter = plain(0);
    cr_generated all, g, want;
    size_t at = 20;

    (void)state;
    open_engine((cr_engine_limits){.max_running = 2});
    all = run_one(&how, 20);
    while (at < 60 && (all.ids[at] < 32 || all.ids[at] > 126)) /* a letter */
        at++;
    assert_true(at < 60);
    for (int is_eos = 0; is_eos < 2; is_eos++)
        for (int cut = 0; cut < 2; cut++) {
            int32_t old = model->config.eos_ids[0];
            how.should_cut_stop = cut;
            how.ignores_eos = !is_eos;
            how.stop_ids = &all.ids[at];
            how.num_stop_ids = !is_eos;
            if (is_eos) model->config.eos_ids[0] = all.ids[at];
            g = run_one(&how, 20);
            model->config.eos_ids[0] = old;
            shorter.max_new_tokens = g.num_ids - cut;
            want = run_one(&shorter, 20);
            assert_string_equal(g.finish, "stop");
            assert_int_equal(g.text_bytes, want.text_bytes);
            assert_memory_equal(g.text, want.text, g.text_bytes);
            cr_generated_free(&g);
            cr_generated_free(&want);
        }
    cr_generated_free(&all);
}

static void eos_ids_that_end_none(void **state)
{
    cr_generating how = plain(200);
    cr_generated g;
    size_t first = 0;

    (void)state;
    how.temperature = 3; /* all ids are drawn */
    open_engine((cr_engine_limits){.max_running = 2});
    for (how.seed = 1; first == 0 && how.seed < 50; how.seed++) {
        g = run_one(&how, 20);
        assert_int_equal(g.num_ids, 200);
        for (size_t i = g.num_ids; i-- > 0;)
            if (g.ids[i] == 3 || g.ids[i] == 80) first = i + 1;
        cr_generated_free(&g);
    }
    assert_true(first > 0);
    how.seed--;
    how.ignores_eos = false;
    g = run_one(&how, 20);
    assert_true(g.num_ids == first && g.stop_id == -1 && g.stop == -1);
    assert_string_equal(g.finish, "stop");
    cr_generated_free(&g);
}

/* No end before min_new_tokens, neither by an id nor by a text, and what was not drawn for that has no other effect; ids
 * that are not allowed are never drawn. */
static void min_length(void **state)
{
    cr_generating how = plain(40);
    cr_generated all, g;
    char text[2] = "";
    const char *stop[] = {text};
    int32_t allowed[] = {40, 41, 42, 3};
    size_t first;

    (void)state;
    open_engine((cr_engine_limits){.max_running = 2});
    how.processors.biased =
        (const int32_t[]){3, 80}; /* so that it is the same draw whether they may end it */
    how.processors.bias = (const float[]){-200, -200};
    how.processors.num_biased = 2;
    all = run_one(&how, 20);
    for (first = 4; first < 40 && (all.ids[first] < 32 || all.ids[first] > 126); first++)
        ;
    assert_true(first < 39);
    text[0] = (char)all.ids[first];
    how.stop = stop;
    how.num_stop = 1;
    for (how.min_new_tokens = (int64_t)first; how.min_new_tokens < 40; how.min_new_tokens++) {
        size_t at = (size_t)how.min_new_tokens; /* the first place that may have it */
        while (at < 40 && all.ids[at] != text[0])
            at++;
        g = run_one(&how, 20);
        assert_int_equal(g.num_ids, at < 40 ? at + 1 : 40);
        assert_string_equal(g.finish, at < 40 ? "stop" : "length");
        assert_memory_equal(g.ids, all.ids, g.num_ids * sizeof *g.ids);
        cr_generated_free(&g);
    }
    how = plain(200);
    how.ignores_eos = false;
    how.temperature = 3;
    how.min_new_tokens = 150;
    how.stop_ids = (const int32_t[]){5};
    how.num_stop_ids = 1;
    for (how.seed = 0; how.seed < 20; how.seed++) {
        g = run_one(&how, 20);
        assert_in_range(g.num_ids, 151, 200);
        cr_generated_free(&g);
    }
    how.processors.allowed = allowed;
    how.processors.num_allowed = 4;
    g = run_one(&how, 20);
    for (size_t i = 0; i < g.num_ids; i++)
        assert_true((g.ids[i] >= 40 && g.ids[i] <= 42) || (g.ids[i] == 3 && i >= 150));
    cr_generated_free(&g);
    cr_generated_free(&all);
}

/* The last id of a bad word is not drawn after its others, in the response alone; until then samples are the same. */
static void bad_words(void **state)
{
    enum { SEED = 6 }; /* with it the two ids at 10 follow each other nowhere before */
    static const int32_t twice[] = {2, 1};
    cr_generating how = plain(40);
    cr_generated all, g;

    (void)state;
    open_engine((cr_engine_limits){.max_running = 2});
    how.seed = SEED;
    all = run_one(&how, 20);
    for (int32_t num = 1; num < 6; num++) {
        how.bad_words = (cr_bad_words){all.ids + 10, &num, 1};
        g = run_one(&how, 20);
        assert_int_equal(g.num_ids, 40);
        for (int32_t t = 0; t + num <= 40; t++)
            assert_memory_not_equal(g.ids + t, all.ids + 10, (size_t)num * sizeof *g.ids);
        if (num > 1) assert_memory_equal(g.ids, all.ids, (size_t)(9 + num) * sizeof *g.ids);
        cr_generated_free(&g);
    }
    for (how.seed = 0; how.seed < 20; how.seed++) { /* beside ids that may not end it */
        how.min_new_tokens = 40;
        how.stop_ids = all.ids;
        how.num_stop_ids = 1;
        how.bad_words = (cr_bad_words){all.ids + 1, twice, 2};
        g = run_one(&how, 20);
        for (size_t t = 0; t < 40; t++)
            assert_true(g.ids[t] != all.ids[0] && g.ids[t] != all.ids[3]);
        cr_generated_free(&g);
    }
    how = plain(40),
    how.seed = SEED; /* its first id is the prompt's last: that is not part of a response */
    const int32_t before[] = {prompt[19], all.ids[0]}, two = 2;
    how.bad_words = (cr_bad_words){before, &two, 1};
    g = run_one(&how, 20);
    assert_int_equal(g.ids[0], all.ids[0]);
    cr_generated_free(&g);
    cr_generated_free(&all);
}

static void what_cannot_be_drawn(void **state)
{
    const uint64_t id = 0;
    const int32_t eos[] = {3, 80}, outside[] = {5, 1000000};
    const float bias[] = {1, 1};
    cr_generating how = plain(5);
    cr_err err = {0};

    (void)state;
    open_engine((cr_engine_limits){.max_running = 2});
    how.min_new_tokens = 1;
    how.processors.allowed = eos;
    how.processors.num_allowed = 2;
    assert_int_equal(cr_engine_submit(engine, prompt, 5, &id, 1, &how, NULL, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "no id is left to draw"));
    how = plain(5);
    how.processors.biased = outside;
    how.processors.bias = bias;
    how.processors.num_biased = 2;
    err = (cr_err){0};
    assert_int_equal(cr_engine_submit(engine, prompt, 5, &id, 1, &how, NULL, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "id 1000000"));
    how = plain(5);
    how.processors.allowed = eos;
    how.processors.num_allowed = 2;
    how.bad_words = (cr_bad_words){eos, (const int32_t[]){1, 1}, 2};
    err = (cr_err){0};
    assert_int_equal(cr_engine_submit(engine, prompt, 5, &id, 1, &how, NULL, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "no id is left to draw"));
    how.bad_words = (cr_bad_words){outside, (const int32_t[]){2}, 1};
    err = (cr_err){0};
    assert_int_equal(cr_engine_submit(engine, prompt, 5, &id, 1, &how, NULL, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "id 1000000"));
    how = plain(5);
    how.temperature = 1e-9f;
    err = (cr_err){0};
    assert_int_equal(cr_engine_submit(engine, prompt, 5, &id, 1, &how, NULL, &err), CR_EARG);
}

/* " upon" after a prompt begins with a space, by itself it does not. */
static void texts_that_go_on(void **state)
{
    cr_generating how = plain(5);
    cr_tokenizer *pieces;
    cr_generated g;
    cr_buf whole = {0}, before = {0};
    cr_err err = {0};
    int32_t all[30];

    (void)state;
    must(cr_tokenizer_parse(serve_tokenizer_json, strlen(serve_tokenizer_json), NULL, "pieces",
                            &pieces, &err),
         &err);
    open_engine((cr_engine_limits){.max_running = 2});
    cr_engine_set_tokenizer(engine, pieces);
    for (size_t i = 0; i < 20; i++)
        all[i] = prompt[i] = 90; /* " a" */
    how.continues_text = true;
    for (how.seed = 0; how.seed < 200; how.seed++) {
        g = run_one(&how, 20);
        memcpy(all + 20, g.ids, 5 * sizeof *all);
        cr_buf_clear(&whole);
        cr_buf_clear(&before);
        cr_tokenizer_decode(pieces, all, 25, true, &whole);
        cr_tokenizer_decode(pieces, all, 20, true, &before);
        assert_string_equal(g.text, whole.data + before.num_bytes);
        cr_generated_free(&g);
    }
    cr_buf_free(&whole);
    cr_buf_free(&before);
    cr_engine_set_tokenizer(engine, tokenizer);
    cr_tokenizer_close(pieces);
}

static int begin(void **state)
{
    (void)state;
    small_model_open(config);
    tokenizer = byte_tokenizer();
    for (size_t i = 0; i < 100; i++)
        prompt[i] = (int32_t)(i * 37 % 250);
    return 0;
}

static int end(void **state)
{
    (void)state;
    small_engine_close();
    cr_tokenizer_close(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_of_one),        cmocka_unit_test(which_stop),
        cmocka_unit_test(text_of_ending_ids),   cmocka_unit_test(eos_ids_that_end_none),
        cmocka_unit_test(min_length),           cmocka_unit_test(bad_words),
        cmocka_unit_test(what_cannot_be_drawn), cmocka_unit_test(texts_that_go_on),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
