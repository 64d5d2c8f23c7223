/* models_precision.c -- modules that compute in float32 in a pass of halves (C11): with rows of halves
 * widened by hand, a pass in float32 gives the same bits of output, of weight gradients and of the input's
 * gradient, each rounded once at the border.
 * Not covered: vision towers (they switch by themselves), units (mesh/precision.c).
 */
#include "base/rng.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"

enum { TOKENS = 23, COLS = 64, NUM = TOKENS * COLS };

static const char dense[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":70,"
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"head_dim\":16,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":128,"
    "\"rms_norm_eps\":1e-6,\"initializer_range\":0.2}";
static const char sparse[] =
    "{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"vocab_size\":70,"
    "\"hidden_size\":64,\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"num_hidden_layers\":2,\"head_dim\":16,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":128,"
    "\"rms_norm_eps\":1e-6,\"initializer_range\":0.2}";

typedef struct side {
    model_bench b;
    cr_pass pass;
    char in[4 * NUM], add[4 * NUM], out[4 * NUM], grad_out[4 * NUM], grad_in[4 * NUM];
} side;

static int32_t cu[] = {0, 9, TOKENS}, ids[TOKENS], positions[TOKENS];
static const cr_batch batch = {ids, positions, NULL, cu, TOKENS, 2};
static cr_err err;

static void must(cr_status status)
{
    if (status != CR_OK) fail_msg("%s", err.msg);
}

static void trainable(cr_module *m)
{
    m->has_trainable = true;
    for (size_t i = 0; i < m->num_children; i++)
        trainable(m->children[i]);
}

/* fp32: a module of a model of halves; NULL: the whole pass in float32. */
static side *open_side(const char *text, cr_dtype dtype, const char *fp32)
{
    side *s = CR_NEW(side);

    must(build_model(text, &s->b.model, &err));
    if (fp32) cr_module_set_fp32(cr_model_find_module(s->b.model, fp32));
    must(cr_device_open("cpu", 1, &s->b.dev, &err));
    must(cr_full_weights_init(&s->b.full, s->b.model, s->b.dev, dtype, NULL, 11, &err));
    must(cr_full_weights_add_grads(&s->b.full, s->b.model, &err));
    s->b.tape = cr_stack_create(s->b.dev);
    s->b.scratch = cr_stack_create(s->b.dev);
    s->pass = (cr_pass){.dev = s->b.dev,
                        .dtype = dtype,
                        .tape = s->b.tape,
                        .scratch = s->b.scratch,
                        .batch = &batch};
    trainable(s->b.model->root);
    return s;
}

static void close_side(side *s)
{
    model_bench_close(&s->b);
    cr_free(s);
}

/* Forward and backward of one module. */
static void run(side *s, const char *name, bool has_add, bool is_recomputed)
{
    cr_module *m = cr_model_find_module(s->b.model, name);

    s->pass.should_recompute = is_recomputed;
    s->pass.phase = CR_FORWARD;
    must(cr_module_forward(m, &s->pass, s->in, has_add ? s->add : NULL, s->out, &err));
    s->pass.phase = CR_BACKWARD;
    must(cr_module_backward(m, &s->pass, s->in, s->grad_out, s->grad_in, &err));
    assert_true(s->pass.dtype != CR_F32 || !m->is_fp32);
}

static void same_rounded(side *half, const void *got, const void *wide, const char *what)
{
    char want[4 * NUM];

    must(cr_cast(half->b.dev, half->pass.dtype, want, CR_F32, wide, NUM, &err));
    if (memcmp(got, want, NUM * cr_dtype_bytes(half->pass.dtype)) != 0) fail_msg("%s", what);
}

static void c11_module_in_float32(void **state)
{
    const struct {
        const char *text, *name;
        cr_dtype dtype;
        bool has_add, is_recomputed;
    } cases[] = {
        {dense, "model.layers.1", CR_BF16},
        {dense, "model.layers.1", CR_BF16, .is_recomputed = true},
        {dense, "model.layers.0", CR_F16},
        {dense, "model.layers.1.mlp", CR_BF16, .has_add = true},
        {dense, "model.layers.0.self_attn", CR_BF16, .has_add = true},
        {dense, "model.layers.0.self_attn", CR_F16},
        {sparse, "model.layers.1.mlp", CR_BF16, .has_add = true},
    };

    (void)state;
    for (int t = 0; t < TOKENS; t++)
        positions[t] = t < 9 ? t : t - 9;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        cr_dtype dtype = cases[i].dtype;
        side *half = open_side(cases[i].text, dtype, cases[i].name),
             *wide = open_side(cases[i].text, CR_F32, NULL);
        float rows[3][NUM];
        char *halves[] = {half->in, half->add, half->grad_out},
             *wides[] = {wide->in, wide->add, wide->grad_out};
        for (int k = 0; k < 3; k++) {
            for (int e = 0; e < NUM; e++)
                rows[k][e] = (float)cr_rng_normal(7, CR_RNG_TEST, (uint64_t)k, (uint64_t)e);
            must(cr_cast(half->b.dev, dtype, halves[k], CR_F32, rows[k], NUM, &err));
            must(cr_cast(half->b.dev, CR_F32, wides[k], dtype, halves[k], NUM, &err));
        }
        run(half, cases[i].name, cases[i].has_add, cases[i].is_recomputed);
        run(wide, cases[i].name, cases[i].has_add, false);
        same_rounded(half, half->out, wide->out, "output");
        same_rounded(half, half->grad_in, wide->grad_in, "gradient of the input");
        for (size_t k = 0; k < half->b.model->num_params; k++) {
            const cr_param *p = half->b.model->params[k], *q = wide->b.model->params[k];
            assert_int_equal(p->weight.dtype, p->is_fp32 ? CR_F32 : dtype);
            if (memcmp(p->grad, q->grad, (size_t)p->num_elems * sizeof(float)) != 0)
                fail_msg("case %zu: gradient of %s", i, p->name);
        }
        close_side(half);
        close_side(wide);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(c11_module_in_float32)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
