/* models_tiled.c -- TiledMLP against the same MLP at once (C34): outputs and input gradients have the
 * same bits, weight gradients differ by the order of float32 sums, memory is that of the formulas, and hooks see each weight once a call.
 * Not covered: experts (tests of sparse.c), ranks (mesh/cut_matrix.c).
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <string.h>

enum { H = 64, I = 96, MAX_TOKENS = 64 };

typedef struct bench {
    model_bench m;
    cr_module *mlp;
    int64_t num_tokens;
    float x[MAX_TOKENS * H], dy[MAX_TOKENS * H], y[MAX_TOKENS * H], dx[MAX_TOKENS * H];
    int num_calls[3][2]; /* gate, up, down; forward, backward */
} bench;

static float random_at(uint64_t what, int64_t i)
{
    return (float)cr_rng_normal(3, CR_RNG_TEST, what, (uint64_t)i);
}

static bench *bench_open(cr_dtype dtype, int64_t num_tokens)
{
    static const char text[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":70,"
        "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":128,"
        "\"rms_norm_eps\":1e-6,\"initializer_range\":0.2,\"mlp_bias\":true}";
    bench *b = CR_NEW(bench);
    cr_err err = {0};

    if (model_bench_open(&b->m, text, dtype, &err) != CR_OK) fail_msg("%s", err.msg);
    b->mlp = cr_model_find_module(b->m.model, "model.layers.1.mlp");
    b->num_tokens = num_tokens;
    for (int64_t i = 0; i < num_tokens * H; i++) {
        b->x[i] = random_at(1, i);
        b->dy[i] = random_at(2, i);
    }
    return b;
}

static void bench_close(bench *b)
{
    model_bench_close(&b->m);
    cr_free(b);
}

static cr_status see(void *ctx, const cr_module *m, cr_phase phase, cr_err *err)
{
    bench *b = ctx;

    (void)err;
    for (size_t i = 0; i < 3; i++)
        if (b->mlp->children[i] == m) b->num_calls[i][phase == CR_BACKWARD]++;
    return CR_OK;
}

/* Gradients start at 0.5 each. x is read as the dtype says: float32 bits as bf16 pairs are fine. */
static void run(bench *b, cr_dtype dtype, int64_t num_tiles, bool is_dx_wanted)
{
    cr_hooks hooks = {see, see, b};
    cr_pass p = {.state = b->m.state,
                 .dev = b->m.dev,
                 .dtype = dtype,
                 .tape = b->m.tape,
                 .scratch = b->m.scratch,
                 .num_rows = b->num_tokens,
                 .hooks = &hooks,
                 .mlp_tiles = num_tiles};
    size_t num_bytes = sizeof b->x;
    float *half = cr_alloc(b->m.full.grad_bytes);
    cr_mem *x = to_device(b->m.dev, b->x, num_bytes), *dy = to_device(b->m.dev, b->dy, num_bytes),
           *y, *dx;
    cr_err err = {0};

    memset(b->num_calls, 0, sizeof b->num_calls);
    memset(b->y, 0, sizeof b->y);
    memset(b->dx, 0, sizeof b->dx);
    y = to_device(b->m.dev, b->y, num_bytes);
    dx = to_device(b->m.dev, is_dx_wanted ? b->dx : NULL, num_bytes);
    for (size_t i = 0; i < b->m.full.grad_bytes / sizeof(float); i++)
        half[i] = 0.5f;
    refill(b->m.dev, b->m.full.grad, half, b->m.full.grad_bytes);
    cr_free(half);
    cr_model_mark_trainable(b->m.model);
    if (cr_pass_begin(b->m.model, &p, &err) != CR_OK) fail_msg("%s", err.msg);
    if (cr_module_forward(b->mlp, &p, x, NULL, y, &err) != CR_OK) fail_msg("%s", err.msg);
    p.phase = CR_BACKWARD;
    if (cr_module_backward(b->mlp, &p, x, dy, dx, &err) != CR_OK) fail_msg("%s", err.msg);
    to_host();
    cr_stack_release(b->m.tape, 0);
    assert_int_equal(cr_stack_mark(b->m.scratch), 0);
}

static double distance(const float *a, const float *b, size_t num)
{
    double far = 0, size = 0;

    for (size_t i = 0; i < num; i++) {
        far += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    return sqrt(far / size);
}

static void check_equal(int64_t tokens, int64_t tiles, bool is_dx_wanted, bool is_down_frozen)
{
    bench *b = bench_open(CR_F32, tokens);
    float *want, *got, y[MAX_TOKENS * H], dx[MAX_TOKENS * H];

    if (is_down_frozen)
        for (size_t i = 0; i < 2; i++)
            cr_model_find_module(b->m.model, "model.layers.1.mlp.down_proj")
                ->params[i]
                .is_trainable = false;
    run(b, CR_F32, 0, is_dx_wanted);
    want = model_bench_grads(&b->m);
    memcpy(y, b->y, sizeof y);
    memcpy(dx, b->dx, sizeof dx);
    run(b, CR_F32, tiles, is_dx_wanted);
    assert_memory_equal(b->y, y, sizeof y);
    assert_memory_equal(b->dx, dx, sizeof dx);
    /* sums of up to 64 rows in another order: 4 ulp */
    got = model_bench_grads(&b->m);
    check_near(distance(got, want, b->m.full.grad_bytes / sizeof(float)), 0, 5e-7);
    cr_free(got);
    cr_free(want);
    bench_close(b);
}

static void c34_tiles_change_nothing(void **state)
{
    static const int64_t tokens[] = {1, 3, 5, 64}, tiles[] = {1, 3, 4, 8};

    (void)state;
    for (size_t t = 0; t < CR_COUNT(tokens); t++)
        for (size_t n = 0; n < CR_COUNT(tiles); n++) {
            check_equal(tokens[t], tiles[n], true, false);
            check_equal(tokens[t], tiles[n], false, false);
            check_equal(tokens[t], tiles[n], true, true);
        }
}

/* Nothing on the tape; on scratch gate, up and h of one tile, on the way back dh in the place of h. The layer above
 * has x and dx. The bounds are 3 (forward) and 7 (backward) T/n I e. */
static void c34_memory_is_that_of_one_tile(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int64_t tiles = 2; tiles <= 8; tiles *= 2) {
            cr_dtype dtype = type ? CR_BF16 : CR_F32;
            bench *b = bench_open(dtype, 64);
            int64_t part = 64 / tiles * I * (int64_t)cr_dtype_bytes(dtype);
            for (int i = 0; i < 2; i++) { /* the second time each stack is one block */
                run(b, dtype, tiles, true);
                assert_int_equal(cr_stack_peak_bytes(b->m.tape), 0);
            }
            assert_int_equal(cr_stack_peak_bytes(b->m.scratch), 3 * part);
            bench_close(b);
            b = bench_open(dtype, 64);
            run(b, dtype, 0, true);
            assert_int_equal(cr_stack_peak_bytes(b->m.tape), 2 * part * tiles);
            bench_close(b);
        }
}

static void c34_hooks_see_each_weight_once(void **state)
{
    bench *b = bench_open(CR_F32, 64);

    (void)state;
    run(b, CR_F32, 4, true);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            assert_int_equal(b->num_calls[i][k], 2); /* before and after */
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c34_tiles_change_nothing),
        cmocka_unit_test(c34_memory_is_that_of_one_tile),
        cmocka_unit_test(c34_hooks_see_each_weight_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
