/* engine_batching.c -- the generation engine on a small random Qwen3.
 *
 * What a sample gives must not depend on its company, on limits or on preemption, its log-probs must
 * be those of a packed forward to the bit, a prompt must be computed once for its group, and every
 * block must come back. On cuda with fewer and shorter answers.
 * Not covered: real checkpoints and tokenizers (acceptance), speed (bench).
 * // also on far
 * // also on cuda, long
 */
#include "base/rng.h"
#include "kernels/attention.h"
#include "tests/check_near.h"
#include "tests/engine_bench.h"
#include "tests/memory.h"

#include <stdio.h>
#include <string.h>

enum { VOCAB = 90, MAX_LEN = 320, NUM_GROUPS = 24, MAX_SAMPLES = 64 };
static int num_groups = NUM_GROUPS, longest = 150, preempted = 10; /* asked for; at least */

#define REST                                                                                      \
    "\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"head_dim\":12,\"hidden_size\":32,"       \
    "\"intermediate_size\":48,\"num_attention_heads\":4,\"vocab_size\":90,\"rms_norm_eps\":1e-5," \
    "\"rope_theta\":100,\"initializer_range\":0.3,\"eos_token_id\":[3,80],"                       \
    "\"max_position_embeddings\":320}"
static const char dense[] = "{\"model_type\":\"qwen3\"," REST,
                  sparse[] = "{\"model_type\":\"qwen3_moe\",\"num_experts\":6,"
                             "\"num_experts_per_tok\":2,\"moe_intermediate_size\":20," REST;
static const char *config = dense; /* of the benches to come */

static void must(cr_status status, const cr_err *err)
{
    if (status != CR_OK) fail_msg("%s", err->msg);
}

static bench bench_open(cr_dtype dtype, int threads, cr_engine_limits limits)
{
    bench b = bench_load(config, dtype, threads);

    bench_start(&b, &limits);
    return b;
}

static const cr_generating plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_new_tokens = 20, .seed = 5};

/* Prompts of 1 to 150 tokens (at and around block edges too), 1 to 5 samples, all kinds of settings. */
typedef struct request {
    int32_t prompt[160];
    size_t num_prompt, num_samples;
    uint64_t sample_ids[8];
    cr_generating how;
} request;

static request make_request(int g)
{
    static const size_t lengths[] = {1, 64, 150, 63, 5, 65, 128, 33, 2, 129, 70, 17};
    request q = {.num_prompt = lengths[g % 12], .num_samples = 1 + (size_t)g % 5, .how = plain};
    uint32_t w[4];

    for (size_t t = 0; t < q.num_prompt; t++) {
        cr_rng_philox(7, CR_RNG_TEST, (uint64_t)g, t, w);
        q.prompt[t] = (int32_t)(w[0] % VOCAB);
    }
    for (size_t i = 0; i < q.num_samples; i++)
        q.sample_ids[i] = (uint64_t)g << 32 | i;
    q.how.max_new_tokens = 1 + (g * 37) % longest;
    q.how.seed = 1000 + (uint64_t)(g % 3);
    if (g % 4 == 1) q.how.temperature = 0.7f, q.how.top_k = 20;
    if (g % 4 == 2) q.how.top_p = 0.9f, q.how.repetition_penalty = 1.2f;
    if (g % 8 == 3) q.how.temperature = 0;
    return q;
}

typedef struct answers {
    cr_generated of[NUM_GROUPS][8];
} answers;

static void submit(bench *b, const request *q)
{
    cr_err err = {0};

    must(cr_engine_submit(b->engine, q->prompt, q->num_prompt, q->sample_ids, q->num_samples,
                          &q->how, NULL, &err),
         &err);
}

static void finish(bench *b, answers *a)
{
    cr_err err = {0};
    cr_generated g;

    while (!cr_engine_is_idle(b->engine)) {
        must(cr_engine_step(b->engine, &err), &err);
        while (cr_engine_poll(b->engine, &g))
            a->of[g.sample_id >> 32][g.sample_id & 7] = g;
    }
}

static void free_answers(answers *a)
{
    for (int g = 0; g < NUM_GROUPS; g++)
        for (int i = 0; i < 8; i++)
            cr_generated_free(&a->of[g][i]);
    cr_free(a);
}

/* Every request at once under these limits. */
static answers *ask_all(cr_dtype dtype, int threads, cr_engine_limits limits,
                        cr_engine_stats *stats)
{
    bench b = bench_open(dtype, threads, limits);
    answers *a = CR_NEW(answers);

    for (int g = 0; g < num_groups; g++) {
        request q = make_request(g);
        submit(&b, &q);
    }
    finish(&b, a);
    *stats = cr_engine_get_stats(b.engine);
    bench_close(&b);
    return a;
}

static void check_same(const answers *got, const answers *want)
{
    for (int g = 0; g < NUM_GROUPS; g++)
        for (int i = 0; i < 8; i++) {
            const cr_generated *x = &got->of[g][i], *y = &want->of[g][i];
            assert_int_equal(x->num_ids, y->num_ids);
            if (x->num_ids == 0) continue;
            assert_memory_equal(x->ids, y->ids, x->num_ids * sizeof *x->ids);
            assert_memory_equal(x->log_probs, y->log_probs, x->num_ids * sizeof *x->log_probs);
            assert_string_equal(x->finish, y->finish);
        }
}

static cr_engine_limits blocks(int64_t running, int64_t rows, int64_t num_blocks)
{
    cr_err err = {0};
    cr_device *dev;
    size_t bytes;

    must(cr_device_open(cr_device_default(), 1, &dev, &err), &err);
    bytes = cr_kv_block_bytes(dev, CR_F32, 1, 12);
    cr_device_close(dev);
    return (cr_engine_limits){.max_running = running,
                              .max_rows = rows,
                              .max_model_len = MAX_LEN,
                              .kv_bytes = num_blocks * (int64_t)bytes * 2};
}

static void test_company_changes_nothing(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        cr_dtype dtype = d ? CR_BF16 : CR_F32;
        cr_engine_stats stats;
        answers *want = ask_all(dtype, 1, blocks(MAX_SAMPLES, 512, 1000), &stats), *got;
        assert_int_equal(stats.num_preempted, 0);
        got = ask_all(dtype, 1, blocks(3, 16, 1000), &stats); /* few at a time, prompts in chunks */
        check_same(got, want);
        free_answers(got);
        got = ask_all(dtype, 1, blocks(MAX_SAMPLES, 40, 9), &stats); /* blocks run out */
        assert_true(stats.num_preempted > preempted);
        check_same(got, want);
        free_answers(got);
        got = ask_all(dtype, 3, blocks(40, 60, 1000), &stats); /* cut over lanes */
        check_same(got, want);
        free_answers(got);
        got = ask_all(dtype, 1, blocks(1, 512, 5), &stats); /* each alone */
        check_same(got, want);
        free_answers(got);
        free_answers(want);
    }
}

static void test_lanes_run_experts(void **state)
{
    cr_engine_stats stats;
    answers *want, *got;

    (void)state;
    if (strcmp(cr_device_default(), "far") == 0) skip(); /* many small calls: minutes */
    config = sparse;
    want = ask_all(CR_F32, 1, blocks(MAX_SAMPLES, 512, 1000), &stats);
    got = ask_all(CR_F32, 3, blocks(40, 60, 1000), &stats);
    check_same(got, want);
    free_answers(got);
    free_answers(want);
    config = dense;
}

/* All samples as one packed batch, log-probs of outputs by the training forward. */
static void test_log_probs_are_those_of_training(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        cr_engine_stats stats;
        cr_dtype dtype = d ? CR_BF16 : CR_F32;
        answers *a = ask_all(dtype, 1, blocks(16, 50, 30), &stats);
        bench b = bench_open(dtype, 1, blocks(1, 1, 5));
        cr_stack *scratch = cr_stack_create(b.dev);
        enum { MAX_NUM = 72 * 300 };
        int32_t *ids = CR_NEW_ARRAY(int32_t, MAX_NUM), *pos = CR_NEW_ARRAY(int32_t, MAX_NUM),
                *labels = CR_NEW_ARRAY(int32_t, MAX_NUM), cu[NUM_GROUPS * 8 + 1] = {0};
        float *want = CR_NEW_ARRAY(float, MAX_NUM), *entropy = CR_NEW_ARRAY(float, MAX_NUM);
        cr_batch batch = {ids, pos, labels, cu, 0, 0};
        int64_t at = 0, num = 0;
        cr_err err = {0};
        for (int g = 0; g < num_groups; g++) {
            request q = make_request(g);
            for (size_t i = 0; i < q.num_samples; i++) {
                const cr_generated *x = &a->of[g][i];
                for (size_t t = 0; t < q.num_prompt + x->num_ids; t++, at++) {
                    ids[at] = t < q.num_prompt ? q.prompt[t] : x->ids[t - q.num_prompt];
                    pos[at] = (int32_t)t;
                    labels[at] = -1;
                    if (t >= q.num_prompt) labels[at - 1] = ids[at];
                }
                cu[++batch.num_seqs] = (int32_t)at;
            }
        }
        batch.num_tokens = at;
        cr_pass pass = {.state = cr_pass_state_create(),
                        .dev = b.dev,
                        .dtype = dtype,
                        .scratch = scratch,
                        .batch = &batch};
        cr_outputs out = {{want, entropy}};
        must(cr_model_forward(b.model, &pass, &out, &err), &err);
        for (int g = 0; g < NUM_GROUPS; g++)
            for (int i = 0; i < 8; i++) {
                const cr_generated *x = &a->of[g][i];
                if (x->num_ids)
                    assert_memory_equal(x->log_probs, want + num, x->num_ids * sizeof(float));
                num += (int64_t)x->num_ids;
            }
        assert_true(num > num_groups * 20);
        cr_free(ids);
        cr_free(pos);
        cr_free(labels);
        cr_free(want);
        cr_free(entropy);
        cr_stack_destroy(scratch);
        cr_pass_state_destroy(pass.state);
        bench_close(&b);
        free_answers(a);
    }
}

/* A group's prompt is computed once, also for samples that come when others of the group run: those
 * compute the last row of the prompt again, for its logits. */
static void test_prompt_is_computed_once(void **state)
{
    int32_t ends[12];
    request q = make_request(0);

    (void)state;
    q.num_prompt = 100;
    q.num_samples = 8;
    for (int i = 0; i < 160; i++)
        q.prompt[i] = 10 + i % 60;
    for (int i = 0; i < 12; i++)
        ends[i] = 7 * i;
    for (size_t i = 0; i < 8; i++)
        q.sample_ids[i] = i;
    q.how = plain;
    q.how.max_new_tokens = 80, q.how.seed = 7; /* with it no running samples end together */
    q.how.stop_ids = ends; /* answers of many lengths, so that slots become free one by one */
    q.how.num_stop_ids = 12;
    for (int running = 8; running >= 3; running -= 5) {
        bench b = bench_open(CR_F32, 1, blocks(running, 512, 100));
        answers *a = CR_NEW(answers);
        submit(&b, &q);
        finish(&b, a);
        for (int s = 0; s < 8; s++)
            assert_true(a->of[0][s].num_ids > 0);
        assert_int_equal(cr_engine_get_stats(b.engine).num_prompt_rows, 100 + 8 - running);
        free_answers(a);
        bench_close(&b);
    }
}

/* ---- ends ---- */

/* Token i is two letters. */
static void letters(const int32_t *ids, size_t num, cr_buf *text)
{
    for (size_t i = 0; i < num; i++)
        cr_buf_addf(text, "%c%c", 'a' + ids[i] % 26, 'a' + ids[i] / 26);
}

static cr_tokenizer *letter_tokenizer(void)
{
    cr_buf json = {0};
    cr_tokenizer *t;
    cr_err err = {0};

    cr_buf_adds(&json, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
                       "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                       "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
                       "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                       "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
                       "\"dropout\":null,\"unk_token\":null,\"merges\":[],\"vocab\":{");
    for (int i = 0; i < VOCAB; i++)
        cr_buf_addf(&json, "%s\"%c%c\":%d", i ? "," : "", 'a' + i % 26, 'a' + i / 26, i);
    cr_buf_adds(&json, "}}}");
    must(cr_tokenizer_parse(json.data, json.num_bytes, NULL, "test", &t, &err), &err);
    cr_buf_free(&json);
    return t;
}

static void collect_text(void *ctx, void *user, const cr_new_token *token)
{
    (void)user;
    cr_buf_add(ctx, token->text, token->num_bytes);
}

static void test_ends(void **state)
{
    bench b = bench_open(CR_F32, 1, blocks(4, 64, 100));
    answers *a = CR_NEW(answers);
    request q = make_request(4);
    cr_err err = {0};
    char stop[4] = {0};
    const char *stops[] = {"no such text", stop};
    cr_buf text = {0}, streamed = {0};
    cr_tokenizer *tokenizer = letter_tokenizer();
    size_t at = 0;

    (void)state;
    q.num_samples = 1;
    q.how = plain;
    q.how.max_new_tokens = 30;
    q.how.seed = 21;
    q.how.num_stop = 1;
    q.how.stop = stops;
    assert_int_equal(cr_engine_submit(b.engine, q.prompt, 1, q.sample_ids, 1, &q.how, NULL, &err),
                     CR_EARG); /* no tokenizer */
    q.how.num_stop = 0;
    cr_engine_set_tokenizer(b.engine, tokenizer);
    cr_engine_set_on_token(b.engine, collect_text, &streamed);
    submit(&b, &q);
    finish(&b, a);
    cr_engine_set_on_token(b.engine, NULL, NULL);
    cr_generated *whole = &a->of[4][0];
    assert_true(whole->num_ids > 8);
    letters(whole->ids, whole->num_ids, &text);
    assert_string_equal(streamed.data, text.data);
    assert_int_equal(whole->text_bytes, text.num_bytes);
    assert_memory_equal(whole->text, text.data, text.num_bytes);

    /* the second half of a token and the next one: found when that has come */
    do
        memcpy(stop, text.data + ++at * 2 + 1, 3);
    while (strstr(text.data, stop) != text.data + at * 2 + 1);
    assert_in_range(at, 1, 20);
    for (int cut = 0; cut < 2; cut++) {
        q.how.num_stop = 2;
        q.how.should_cut_stop = cut;
        submit(&b, &q);
        q.sample_ids[0]++; /* another draw for another sample, then back */
        submit(&b, &q);
        q.sample_ids[0]--;
        answers *s = CR_NEW(answers);
        finish(&b, s);
        assert_int_equal(s->of[4][0].num_ids, at + 2);
        assert_string_equal(s->of[4][0].finish, "stop");
        assert_memory_equal(s->of[4][0].ids, whole->ids, (at + 2) * sizeof(int32_t));
        assert_int_equal(s->of[4][0].text_bytes, 2 * at + (cut ? 1 : 4));
        assert_memory_equal(s->of[4][0].text, text.data, s->of[4][0].text_bytes);
        assert_int_equal(s->of[4][0].text[s->of[4][0].text_bytes], 0);
        assert_true(s->of[4][1].num_ids > 0);
        assert_memory_not_equal(s->of[4][1].ids, whole->ids, sizeof(int32_t));
        free_answers(s);
    }
    /* an extra end id, the model's own, and the length; the end token belongs to the answer */
    for (int how = 0; how < 3; how++) {
        answers *s = CR_NEW(answers);
        int32_t end = whole->ids[4];
        q.how.num_stop = 0;
        q.how.num_stop_ids = how == 0;
        q.how.stop_ids = &end;
        q.how.max_new_tokens = how == 2 ? 5 : 30;
        if (how == 1) b.model->config.eos_ids[1] = end;
        submit(&b, &q);
        finish(&b, s);
        b.model->config.eos_ids[1] = 80;
        size_t first = 0;
        while (whole->ids[first] != end)
            first++;
        assert_int_equal(s->of[4][0].num_ids, how == 2 ? 5 : first + 1);
        assert_string_equal(s->of[4][0].finish, how == 2 ? "length" : "stop");
        free_answers(s);
    }
    cr_buf_free(&text);
    cr_buf_free(&streamed);
    free_answers(a);
    bench_close(&b);
    cr_tokenizer_close(tokenizer);
}

static void test_refusals(void **state)
{
    bench b = bench_open(CR_F32, 1, blocks(4, 64, 100));
    cr_engine_limits small = blocks(4, 64, 4);
    request q = make_request(0);
    cr_engine *e;

    (void)state;
    for (int i = 0; i < 8; i++) {
        cr_err err = {0};
        request bad = q;
        int32_t prompt[MAX_LEN] = {0};
        memcpy(prompt, q.prompt, sizeof q.prompt);
        if (i == 0) bad.num_prompt = 0;
        if (i == 1) bad.num_prompt = MAX_LEN;
        if (i == 2) prompt[0] = VOCAB;
        if (i == 3) prompt[0] = -1;
        if (i == 4) bad.how.max_new_tokens = 0;
        if (i == 5) bad.how.temperature = NAN;
        if (i == 6) bad.how.top_p = 0;
        if (i == 7) bad.how.repetition_penalty = 0;
        assert_int_equal(cr_engine_submit(b.engine, prompt, bad.num_prompt, bad.sample_ids, 1,
                                          &bad.how, NULL, &err),
                         CR_EARG);
        assert_true(cr_engine_is_idle(b.engine));
    }
    /* weights that are not numbers are an error, not a token */
    cr_err err = {0};
    float *nans = CR_NEW_ARRAY(float, b.model->params[0]->num_elems);
    for (int64_t i = 0; i < b.model->params[0]->num_elems; i++)
        nans[i] = NAN;
    refill(b.dev, b.model->params[0]->weight.data, nans,
           (size_t)b.model->params[0]->num_elems * sizeof *nans);
    cr_free(nans);
    must(cr_engine_set_weights(b.engine, &err), &err);
    for (int greedy = 0; greedy < 2; greedy++) {
        err = (cr_err){0};
        q.how.temperature = greedy ? 0 : 1;
        submit(&b, &q);
        assert_int_equal(cr_engine_step(b.engine, &err), CR_ENUMERIC);
        cr_engine_abort(b.engine);
    }
    /* a cache that holds no sequence */
    err = (cr_err){0};
    must(cr_engine_create(b.model, b.dev, &small, &e, &err), &err);
    assert_int_equal(cr_engine_set_weights(e, &err), CR_EARG);
    cr_engine_destroy(e);
    bench_close(&b);
}

/* A prompt that ends with a sample's first tokens goes on as the sample did: draws depend on positions in the sequence. */
static void test_continued_samples(void **state)
{
    enum { WHOLE = 20, FIRST = 7 };
    answers *whole = CR_NEW(answers), *rest = CR_NEW(answers);
    bench b = bench_open(CR_F32, 1, (cr_engine_limits){.max_running = 8});

    (void)state;
    for (int g = 0; g < 4; g++) {
        request q = make_request(g);
        q.num_samples = 1, q.how.max_new_tokens = WHOLE, q.how.ignores_eos = true;
        if (q.how.temperature == 0) q.how.temperature = 1.3f;
        submit(&b, &q);
        finish(&b, whole);
        memcpy(q.prompt + q.num_prompt, whole->of[g][0].ids, FIRST * sizeof *q.prompt);
        q.num_prompt += FIRST, q.how.max_new_tokens -= FIRST;
        submit(&b, &q);
        finish(&b, rest);
        assert_int_equal(rest->of[g][0].num_ids, WHOLE - FIRST);
        assert_memory_equal(rest->of[g][0].ids, whole->of[g][0].ids + FIRST,
                            (WHOLE - FIRST) * sizeof *q.prompt);
        assert_memory_equal(rest->of[g][0].log_probs, whole->of[g][0].log_probs + FIRST,
                            (WHOLE - FIRST) * sizeof(float));
    }
    bench_close(&b);
    free_answers(whole);
    free_answers(rest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_lanes_run_experts),
        cmocka_unit_test(test_log_probs_are_those_of_training),
        cmocka_unit_test(test_prompt_is_computed_once),
        cmocka_unit_test(test_continued_samples),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
    };

    if (strcmp(cr_device_default(), "cuda") == 0) num_groups = 9, longest = 40, preempted = 0;

    return cmocka_run_group_tests(tests, NULL, NULL);
}
