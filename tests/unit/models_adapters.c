/* models_adapters.c -- LoRA: log-probs, gradients of every A and B and of modules in full beside them, and 20 steps of AdamW against
 * PEFT (lora.json, by tests/parity/lora.py); first values; which modules a target takes; dropout; with adapters off, the bits of a model without
 * them.
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "kernels/dropout.h"
#include "strategies/units.h"
#include "tests/golden_texts.h"
#include "tests/memory.h"
#include "tests/vl_models.h"

static const char *path =
    "tests/parity/lora.json"; /* or of the command line, with cases of other seeds and shapes */

static cr_model_options options_of(const json_t *c)
{
    const json_t *a = json_object_get(c, "adapters");
    const char *saved = json_string_value(json_object_get(a, "saved"));

    return (cr_model_options){
        .adapters = {.target = json_string_value(json_object_get(a, "target")),
                     .rank = json_integer_value(json_object_get(a, "rank")),
                     .alpha = json_number_value(json_object_get(a, "alpha")),
                     .use_rslora = json_is_true(json_object_get(a, "use_rslora")),
                     .saved = saved && *saved ? saved : NULL}};
}

/* A simulated one takes minutes for 20 steps. */
static bool is_cuda(void)
{
    return strcmp(cr_device_default(), "cuda") == 0;
}

static double number(const json_t *c, const char *key)
{
    return json_number_value(json_object_get(c, key));
}

static float *values_of(const model_bench *b, const cr_param *p)
{
    return downloaded(b->dev, p->weight.data, (size_t)p->num_elems * sizeof(float));
}

/* AdamW over all A and B; each begins at a multiple of 64 bytes of the gradients. */
static void adam_step(const model_bench *b, const json_t *adam, cr_mem *m, cr_mem *v, int64_t step)
{
    const json_t *betas = json_object_get(adam, "betas");
    cr_err err = {0};

    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        size_t at;
        if (!p->is_trainable) continue;
        at = (size_t)((const char *)p->grad - (const char *)b->full.grad);
        must(cr_adamw(b->dev,
                      &(cr_adamw_args){.param = (cr_mem *)(uintptr_t)p->weight.data,
                                       .m = cr_mem_add(m, at),
                                       .v = cr_mem_add(v, at),
                                       .grad = p->grad,
                                       .num = (size_t)p->num_elems,
                                       .lr = number(adam, "lr"),
                                       .beta1 = json_number_value(json_array_get(betas, 0)),
                                       .beta2 = json_number_value(json_array_get(betas, 1)),
                                       .eps = number(adam, "eps"),
                                       .weight_decay = number(adam, "weight_decay"),
                                       .grad_scale = 1,
                                       .t = step},
                      &err),
             &err);
    }
}

/* Log-probs of the golden's batch, and gradients of their sum with its weights. */
static void step_back(const model_bench *b, const cr_pass *like, float *log_prob)
{
    float grad[MAX_TOKENS];
    cr_outputs out = {{log_prob}}, grads = {{grad}};
    cr_err err = {0};
    cr_pass pass;
    inputs in;

    make_inputs(&in);
    for (int t = 0; t < 21; t++)
        grad[t] = (float)noise("grad", "", t);
    pass = pass_of(b, &in, like);
    must(cr_zero(b->dev, b->full.grad, b->full.grad_bytes, &err), &err);
    must(cr_model_forward(b->model, &pass, &out, &err), &err);
    must(cr_model_backward(b->model, &pass, &grads, &err), &err);
}

static void check_trajectory(const json_t *c, const cr_model_options *options, const cr_pass *like)
{
    const json_t *adam = json_object_get(c, "adam"), *after = json_object_get(c, "after");
    double allowed = allowed_error(fmin(SLACK * number(c, "own_trained"), 1e-5));
    float log_prob[MAX_TOKENS];
    cr_mem *m, *v;
    cr_err err = {0};
    model_bench b;

    open_bench(c, options, CR_F32, &b);
    must(cr_device_alloc(b.dev, b.full.grad_bytes, &m, &err), &err);
    must(cr_device_alloc(b.dev, b.full.grad_bytes, &v, &err), &err);
    must(cr_zero(b.dev, m, b.full.grad_bytes, &err), &err);
    must(cr_zero(b.dev, v, b.full.grad_bytes, &err), &err);
    for (int64_t step = 1; step <= (int64_t)number(adam, "steps"); step++) {
        step_back(&b, like, log_prob);
        adam_step(&b, adam, m, v, step);
    }
    step_back(&b, like, log_prob);
    for (size_t t = 0; t < json_array_size(after); t++)
        check_near(log_prob[t], json_number_value(json_array_get(after, t)),
                   allowed_error(fmin(SLACK * number(c, "own_after") + 1e-6, 1e-4)));
    for (size_t i = 0; i < b.model->num_params; i++) {
        const cr_param *p = b.model->params[i];
        float *values = p->is_trainable ? values_of(&b, p) : NULL;
        if (values)
            check_grad(p, values, json_object_get(json_object_get(c, "trained"), p->name), allowed);
        cr_free(values);
    }
    cr_device_free(b.dev, m, b.full.grad_bytes);
    cr_device_free(b.dev, v, b.full.grad_bytes);
    model_bench_close(&b);
}

/* As many trained parameters as PEFT has, each one's gradient, and where 20 steps of AdamW take it. */
static void numbers_of_peft(void **state)
{
    static const cr_pass ways[] = {{.dtype = CR_F32},
                                   {.dtype = CR_F32, .should_recompute = true, .mlp_tiles = 3}};
    json_t *all = read_cases(path), *c;
    size_t at;

    (void)state;
    json_array_foreach(all, at, c)
    {
        const cr_model_options options = options_of(c);
        size_t num = 0;
        model_bench b;
        noise_seed = (int64_t)number(c, "seed");
        for (size_t i = 0; i < (is_cuda() && at % 3 ? 1 : CR_COUNT(ways)); i++)
            check_case(c, &options, CR_LOG_PROB, &ways[i]);
        if (!is_cuda()) check_trajectory(c, &options, &ways[0]);
        open_bench(c, &options, CR_F32, &b);
        for (size_t i = 0; i < b.model->num_params; i++)
            num += b.model->params[i]->is_trainable;
        assert_int_equal(num, json_object_size(json_object_get(c, "grad")));
        model_bench_close(&b);
    }
    assert_int_equal(at, 13);
    json_decref(all);
}

static void run(const model_bench *b, const cr_pass *like, float *log_prob)
{
    cr_outputs out = {{log_prob}};
    cr_err err = {0};
    cr_pass pass;
    inputs in;

    make_inputs(&in);
    pass = pass_of(b, &in, like);
    pass.tape = NULL;
    must(cr_model_forward(b->model, &pass, &out, &err), &err);
}

/* Parameters with this in their names, or modules in full (NULL): their values times a factor. */
static void fill_like(const model_bench *b, const char *name, double factor)
{
    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        float *values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
        for (int64_t e = 0; e < p->num_elems; e++)
            values[e] = (float)((double)value_of(p, e) * factor);
        if (name ? strstr(p->name, name) != NULL : p->is_adapter && !p->is_added)
            model_bench_fill(b, p, values);
        cr_free(values);
    }
}

/* Off, and on with B (of the embedding table, A) zero: the bits without adapters; in 16 bits near the numbers in 32. What is trained in full
 * has other values, and with adapters off those that it had. */
static void check_bits(const json_t *c, const cr_model_options *options)
{
    static const cr_dtype dtypes[] = {CR_F32, CR_BF16};
    float wide[MAX_TOKENS] = {0};

    for (int d = 0; d < 2 && is_computed(dtypes[d]); d++) {
        float base[MAX_TOKENS] = {0}, off[MAX_TOKENS] = {0}, on[MAX_TOKENS] = {0};
        cr_pass pass = {.dtype = dtypes[d]};
        size_t num = 0;
        model_bench b;
        open_bench(c, NULL, dtypes[d], &b);
        run(&b, &pass, base);
        model_bench_close(&b);
        open_bench(c, options, dtypes[d], &b);
        fill_like(&b, NULL, 1.25);
        run(&b, &pass, on);
        assert_memory_not_equal(base, on, sizeof on);
        if (d == 0) memcpy(wide, on, sizeof on);
        for (int t = 0; t < 21; t++)
            num += fabsf(on[t] - wide[t]) < 0.25f * fabsf(base[t] - wide[t]) + 0.1f;
        assert_true(num > 18);
        pass.adapter = CR_NO_ADAPTER;
        run(&b, &pass, off);
        assert_memory_equal(base, off, sizeof off);
        pass.adapter = 0;
        fill_like(&b, "lora_B", 0);
        fill_like(&b, "lora_embedding_A", 0);
        fill_like(&b, NULL, 1);
        run(&b, &pass, on);
        assert_memory_equal(base, on, sizeof on);
        model_bench_close(&b);
    }
}

static void bits_of_the_base(void **state)
{
    static const cr_model_options words = {.adapters = {.target = "all-linear,all-embedding",
                                                        .rank = 3,
                                                        .alpha = 5,
                                                        .saved = "lm_head,norm,layers.1.mlp",
                                                        .keeps_originals = true}},
                                  table = {.adapters = {.target = "q_proj,v_proj",
                                                        .rank = 3,
                                                        .alpha = 5,
                                                        .saved =
                                                            "embed_tokens,k_proj,q_norm,k_norm",
                                                        .keeps_originals = true}},
                                  router = {.adapters = {.target = "all-linear",
                                                         .rank = 3,
                                                         .alpha = 5,
                                                         .saved = "mlp.gate",
                                                         .keeps_originals = true}};
    json_t *all = read_cases(path), *c = json_array_get(all, 1);
    const cr_model_options options = options_of(c);

    (void)state;
    check_bits(c, &words);
    if (!is_cuda()) {
        check_bits(c, &options);
        check_bits(find_case(all, "qwen3 untied"), &table);
        check_bits(find_case(all, "qwen3_moe all"), &router);
    }
    json_decref(all);
}

/* ---- dropout ---- */

static uint64_t drop_keys[MAX_TOKENS];

static void make_drop_keys(uint64_t seed)
{
    for (uint64_t t = 0; t < MAX_TOKENS; t++) {
        uint32_t words[4];
        cr_rng_philox(seed, CR_RNG_TEST, 0, t, words);
        drop_keys[t] = (uint64_t)words[0] << 32 | words[1];
    }
}

/* Of rows, modules and columns: as many kept as the rate says, and pairs of neighbours as of independent ones. */
static void kept_elements(void **state)
{
    enum { ROWS = 60, MODULES = 8, COLS = 512 };
    static bool kept[ROWS][MODULES][COLS];
    const double rate = 0.3, num = (double)ROWS * MODULES * COLS;
    double sum = 0, cols = 0, rows = 0, modules = 0;

    (void)state;
    make_drop_keys(3);
    for (int r = 0; r < ROWS; r++)
        for (int m = 0; m < MODULES; m++) {
            char name[40];
            snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj", m);
            for (int c = 0; c < COLS; c++)
                kept[r][m][c] = cr_dropout_keeps(drop_keys[r], cr_hash64(name, strlen(name)),
                                                 (uint32_t)c, cr_dropout_threshold(rate));
        }
    for (int r = 0; r < ROWS; r++)
        for (int m = 0; m < MODULES; m++)
            for (int c = 0; c < COLS; c++) {
                bool is = kept[r][m][c];
                sum += is;
                cols += is && kept[r][m][(c + 1) % COLS];
                rows += is && kept[(r + 1) % ROWS][m][c];
                modules += is && kept[r][(m + 1) % MODULES][c];
            }
    check_near(sum / num, 0.7, 4 * sqrt(0.21 / num));
    check_near(cols / num, 0.49, 6 * sqrt(0.25 / num));
    check_near(rows / num, 0.49, 6 * sqrt(0.25 / num));
    check_near(modules / num, 0.49, 6 * sqrt(0.25 / num));
}

/* The gradient of the log-probs' weighted sum, and that sum. */
static double run_back(const model_bench *b, const cr_pass *like, const inputs *in)
{
    float log_prob[MAX_TOKENS], grad[MAX_TOKENS];
    cr_outputs out = {{log_prob}}, grads = {{grad}};
    cr_err err = {0};
    cr_pass pass = pass_of(b, in, like);
    double sum = 0;
    int num = 0;

    for (int64_t t = 0; t < in->batch.num_tokens; t++)
        if (in->labels[t] >= 0) grad[num] = (float)noise("grad", "", num), num++;
    must(cr_zero(b->dev, b->full.grad, b->full.grad_bytes, &err), &err);
    must(cr_model_forward(b->model, &pass, &out, &err), &err);
    for (int t = 0; t < num; t++)
        sum += (double)log_prob[t] * (double)grad[t];
    must(cr_model_backward(b->model, &pass, &grads, &err), &err);
    return sum;
}

/* All A and B step towards a random direction; returns its product with the gradients. */
static double step_all(const model_bench *b, const float *grads, double by)
{
    double product = 0;

    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        const float *grad = p->is_trainable ? in_copy(grads, b->full.grad, p->grad) : NULL;
        float *values;
        if (!grad) continue;
        values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
        for (int64_t e = 0; e < p->num_elems; e++) {
            double way = noise(p->name, "way", e);
            values[e] = (float)(value_of(p, e) + by * way);
            product += way * (double)grad[e];
        }
        model_bench_fill(b, p, values);
        cr_free(values);
    }
    return product;
}

/* Recomputed, in tiles, or a sequence at a time: the same elements are dropped. Finite differences of the log-probs give the gradient. */
static void dropout(void **state)
{
    static const cr_pass ways[] = {{.dtype = CR_F32},
                                   {.dtype = CR_F32, .should_recompute = true},
                                   {.dtype = CR_F32, .mlp_tiles = 3}};
    json_t *all = read_cases(path), *c = json_array_get(all, 1);
    cr_model_options options = options_of(c);
    /* a step short enough for curvature, long enough for rounding */
    double by = sizeof(float) == sizeof(double) ? 1e-6 : 5e-4, first = 0, off, there, back;
    float *grads = NULL;
    model_bench b;
    inputs in;

    (void)state;
    options.adapters.dropout = 0.4;
    make_drop_keys(4);
    make_inputs(&in);
    open_bench(c, &options, CR_F32, &b);
    off = run_back(&b, &ways[0], &in);
    in.batch.drop_keys = drop_keys;
    for (size_t i = 0; i < CR_COUNT(ways); i++) {
        double sum = run_back(&b, &ways[i], &in);
        float *got = model_bench_grads(&b);
        if (i == 0) first = sum, grads = got;
        assert_true(sum == first);
        for (size_t k = 0; i > 0 && k < b.full.grad_bytes / sizeof *got; k++)
            check_near((double)got[k], (double)grads[k], 1e-5 + 1e-4 * fabs((double)grads[k]));
        if (i > 0) cr_free(got);
    }
    assert_true(fabs(first - off) > 1e-3);
    there = step_all(&b, grads, by);
    back = run_back(&b, &ways[0], &in);
    step_all(&b, grads, -by);
    back = (back - run_back(&b, &ways[0], &in)) / (2 * by);
    check_near(back, there, sizeof(float) == sizeof(double) ? 1e-6 : 0.01 * fabs(there) + 0.02);
    in.batch.drop_keys = NULL;
    step_all(&b, grads, 0);
    assert_true(run_back(&b, &ways[0], &in) == off);
    cr_free(grads);
    model_bench_close(&b);
    json_decref(all);
}

#define SIZES                                                                                  \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":4,\"vocab_size\":97," \
    "\"num_key_value_heads\":4,\"head_dim\":16,\"num_hidden_layers\":2}"
static const char qwen3[] = "{\"model_type\":\"qwen3\"," SIZES;
static const char tied[] = "{\"model_type\":\"qwen3\",\"tie_word_embeddings\":true," SIZES;
static const char moe[] = "{\"model_type\":\"qwen3_moe\",\"num_experts\":4,"
                          "\"moe_intermediate_size\":8,\"num_experts_per_tok\":2," SIZES;

static cr_model *open_adapted(const char *config, const char *target)
{
    const cr_model_options options = {.adapters = {target, 4, 8, false}};
    cr_err err = {0};
    cr_model *model;

    must(build_model_with(config, &options, &model, &err), &err);
    return model;
}

/* A: uniform within 1 / sqrt(in), by seed; B: zero. */
static void first_values(void **state)
{
    cr_model *model = open_adapted(qwen3, "all-linear");
    const cr_param *a = cr_model_find_param(model, "model.layers.1.mlp.down_proj.lora_A.weight"),
                   *b = cr_model_find_param(model, "model.layers.1.mlp.down_proj.lora_B.weight");
    float x[4 * 96], y[4 * 96], bound = (float)(1 / sqrt(96)), largest = 0;
    double sum = 0, squares = 0;

    (void)state;
    assert_int_equal(a->num_elems, CR_COUNT(x));
    assert_int_equal(b->num_elems, 64 * 4);
    cr_param_init(model, a, 1, 0, 4 * 96, x);
    for (size_t i = 0; i < CR_COUNT(x); i++) {
        largest = fmaxf(largest, fabsf(x[i]));
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    assert_true(largest <= bound && largest > 0.95f * bound);
    check_near(sum / 384, 0, 3 * (double)bound / sqrt(3 * 384.0));
    check_near(squares / 384, (double)(bound * bound) / 3, 0.1 * (double)(bound * bound));
    cr_param_init(model, a, 1, 50, 60, y);
    assert_memory_equal(x + 50, y, 10 * sizeof *y);
    cr_param_init(model, a, 2, 0, 4 * 96, y);
    assert_memory_not_equal(x, y, sizeof x);
    cr_param_init(model, b, 1, 0, 64 * 4, y);
    for (int i = 0; i < 64 * 4; i++)
        assert_true(y[i] == 0);
    assert_false(cr_model_find_param(model, "model.norm.weight")->is_trainable);
    check_near(cr_model_find_module(model, "model.layers.0.mlp.up_proj")->adapters->scale, 2, 0);
    cr_model_free(model);
}

/* Of the embedding table: A is zero, B normal with a deviation of 1. What is kept of a trained module begins as it does. */
static void first_values_of_words(void **state)
{
    enum { RANK = 4, COLS = 64 };
    const cr_model_options options = {.adapters = {.target = "all-embedding",
                                                   .rank = RANK,
                                                   .alpha = 8,
                                                   .saved = "lm_head",
                                                   .keeps_originals = true}};
    const cr_param *a, *b;
    float x[RANK * COLS], y[RANK * COLS];
    double sum = 0, squares = 0;
    cr_model *model;
    cr_err err = {0};

    (void)state;
    must(build_model_with(qwen3, &options, &model, &err), &err);
    a = cr_model_find_param(model, "model.embed_tokens.lora_embedding_A.weight");
    b = cr_model_find_param(model, "model.embed_tokens.lora_embedding_B.weight");
    assert_true(a->shape[0] == 97 && a->shape[1] == RANK && b->shape[0] == COLS);
    assert_string_equal(a->file_name, "model.embed_tokens.lora_embedding_A");
    assert_string_equal(b->file_name, "model.embed_tokens.lora_embedding_B");
    cr_param_init(model, a, 1, 0, RANK * COLS, x);
    for (int i = 0; i < RANK * COLS; i++)
        assert_true(x[i] == 0);
    cr_param_init(model, b, 1, 0, RANK * COLS, x);
    for (int i = 0; i < RANK * COLS; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    check_near(sum / (RANK * COLS), 0, 0.2);
    check_near(squares / (RANK * COLS), 1, 0.3);
    cr_param_init(model, cr_model_find_param(model, "lm_head.weight"), 1, 0, RANK * COLS, x);
    cr_param_init(model, cr_model_find_param(model, "lm_head.original_module.weight"), 1, 0,
                  RANK * COLS, y);
    assert_memory_equal(x, y, sizeof x);
    cr_model_free(model);
}

static void targets(void **state)
{
    static const struct {
        const char *config, *target, *sentence; /* sentence NULL: num of them */
        size_t num;
    } cases[] = {
        {qwen3, "q_proj", NULL, 2},
        {qwen3, " q_proj , mlp.up_proj", NULL, 4},
        {qwen3, "q_proj,q_proj,layers.1.self_attn.q_proj", NULL, 2},
        {qwen3, "model.layers.0.mlp.gate_proj", NULL, 1},
        {qwen3, "all-linear", NULL, 14},
        {qwen3, ".*_proj$", NULL, 14},
        {qwen3, "(q|k)_proj", "matches no Linear", 0}, /* of whole names */
        {qwen3, "(.*[.])?(q|k)_proj", NULL, 4},
        {qwen3, "proj", "target 'proj' matches no Linear", 0},
        {qwen3, "q_proj,k_prj", "target 'k_prj' matches no Linear of the model (is it 'k_proj'?)",
         0},
        {qwen3, "lm_head", "adapters of lm_head are not available", 0},
        {qwen3, "model\\..*|lm_head", "adapters of lm_head are not available", 0},
        {qwen3, "q_proj,", "target '' matches no Linear", 0},
        {qwen3, "(q_proj", "parenthesis", 0},
        {qwen3, "embed_tokens", NULL, 1},
        {qwen3, "all-embedding", NULL, 1},
        {qwen3, "model.embed_tokens,all-embedding,q_proj", NULL, 3},
        {qwen3, "model\\..*(embed_tokens|up_proj)", NULL, 3},
        {qwen3, "embed_token", "(is it 'embed_tokens'?)", 0},
        {tied, "all-linear", NULL, 14},
        {tied, "embed_tokens", "target 'embed_tokens': qwen3 has tied word embeddings", 0},
        {tied, "all-embedding", "qwen3 has tied word embeddings", 0},
        {moe, "q_proj,o_proj", NULL, 4},
        {moe, "all-linear", NULL, 2 * (4 + 4 * 2)},
        {moe, "all-router", NULL, 2},
        {moe, "mlp.gate", NULL, 2},
        {moe, "gate_proj", "gate_proj of experts goes with up_proj", 0},
        {moe, "up_proj,gate_proj", NULL, 2 * 4},
        {moe, "layers.1.mlp.experts.gate_up_proj", NULL, 4},
        {moe, "experts.3.down_proj", "adapters of 1 of the 4 experts of model.layers.0.mlp", 0},
        {moe, ".*down_proj", NULL, 2 * 4},
        {moe, "gate_up_prj", "(is it 'gate_up_proj'?)", 0},
        {qwen3, "all-router", "target 'all-router' matches no Linear", 0},
        {qwen2_5_vl, "all-linear", NULL, 2 * 7}, /* towers have none */
        {qwen2_5_vl, "gate_proj", NULL, 2},
        {qwen2_5_vl, "model\\.visual\\..*", "matches no Linear", 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const cr_model_options options = {.adapters = {cases[i].target, 4, 8, false}};
        size_t num = 0;
        cr_err err = {0};
        cr_model *model;
        if (build_model_with(cases[i].config, &options, &model, &err) != CR_OK) {
            if (!cases[i].sentence || !strstr(err.msg, cases[i].sentence))
                fail_msg("%s: %s", cases[i].target, err.msg);
            continue;
        }
        for (size_t k = 0; k < model->num_params; k++)
            num += strstr(model->params[k]->name, "_A.weight") != NULL;
        if (cases[i].sentence || num != cases[i].num)
            fail_msg("%s: %zu adapters", cases[i].target, num);
        cr_model_free(model);
    }
}

/* What is trained in full, and each of its parameters has its original. num: of those parameters. */
static void trained_in_full(void **state)
{
    static const struct {
        const char *config, *target, *saved, *sentence; /* sentence NULL: num of them */
        size_t num;
    } cases[] = {
        {qwen3, "q_proj", "lm_head", NULL, 1},
        {qwen3, "q_proj", "lm_head, model.embed_tokens", NULL, 2},
        {qwen3, "q_proj", "model.norm", NULL, 1},
        {qwen3, "q_proj", "norm", NULL, 1 + 2 * 4}, /* all that end so, as PEFT has it */
        {qwen3, "q_proj", "mlp", NULL, 2 * 3},
        {qwen3, "all-linear", "layers.1.mlp,down_proj", NULL, 3 + 1},
        {qwen3, "q_proj", "lm_haed", "additional_target 'lm_haed' matches no module", 0},
        {qwen3, "q_proj", "lm_haed", "(is it 'lm_head'?)", 0},
        {qwen3, "q_proj", "lm_head,", "additional_target '' matches no module", 0},
        {qwen3, "q_proj", "act_fn", "matches no module of the model that has parameters", 0},
        {qwen3, "q_proj", "proj", "additional_target 'proj' is a part of a name", 0},
        {tied, "q_proj", "norm", NULL, 1 + 2 * 4},
        {tied, "q_proj", "lm_head", "additional_target 'lm_head': qwen3 has tied word embeddings",
         0},
        {tied, "q_proj", "embed_tokens", "qwen3 has tied word embeddings", 0},
        {moe, "all-linear,all-router", "gate", NULL, 2},
        {moe, "q_proj", "experts",
         "experts (model.layers.0.mlp.experts.0.gate_proj) are not trained in full", 0},
        {moe, "q_proj", "mlp", "are not trained in full beside", 0},
        {qwen2_5_vl, "q_proj", "language_model.norm", NULL, 1},
        {qwen2_5_vl, "q_proj", "mlp", "vision towers are not trained beside adapters", 0},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const cr_model_options options = {.adapters = {.target = cases[i].target,
                                                       .rank = 4,
                                                       .alpha = 8,
                                                       .saved = cases[i].saved,
                                                       .keeps_originals = true}};
        size_t num = 0, num_copies = 0;
        bool is_last = true; /* copies come last */
        cr_err err = {0};
        cr_model *model;
        if (build_model_with(cases[i].config, &options, &model, &err) != CR_OK) {
            if (!cases[i].sentence || !strstr(err.msg, cases[i].sentence))
                fail_msg("%s: %s", cases[i].saved, err.msg);
            continue;
        }
        for (size_t k = 0; k < model->num_params; k++) {
            const cr_param *p = model->params[k];
            const bool is_full = p->is_adapter && !p->is_added;
            num += is_full;
            num_copies += p->copy_of != NULL;
            assert_true(p->is_trainable == p->is_adapter);
            assert_true(!p->copy_of ||
                        (p->copy_of->is_trainable && p->num_elems == p->copy_of->num_elems));
            is_last = is_last && (!p->copy_of == (k < model->num_params - cases[i].num));
        }
        if (cases[i].sentence || num != cases[i].num || num_copies != num || !is_last)
            fail_msg("%s: %zu, and %zu originals", cases[i].saved, num, num_copies);
        cr_model_free(model);
    }
}

/* In one list with experts or beside a tower, adapter_config.json has the names of what has an adapter. */
static void names_for_peft(void **state)
{
    cr_model *model = open_adapted(moe, "q_proj,experts.down_proj,mlp.gate");

    (void)state;
    assert_string_equal(model->adapters->modules,
                        "model.layers.0.self_attn.q_proj,model.layers.1.self_attn.q_proj");
    assert_string_equal(model->adapters->parameters,
                        "model.layers.0.mlp.experts.down_proj,model.layers.0.mlp.gate.weight,"
                        "model.layers.1.mlp.experts.down_proj,model.layers.1.mlp.gate.weight");
    cr_model_free(model);
    model = open_adapted(qwen2_5_vl, "gate_proj");
    assert_string_equal(model->adapters->modules, "model.language_model.layers.0.mlp.gate_proj,"
                                                  "model.language_model.layers.1.mlp.gate_proj");
    assert_null(model->adapters->parameters);
    cr_model_free(model);
    model = open_adapted(qwen3, "q_proj,all-embedding");
    assert_string_equal(model->adapters->modules,
                        "model.embed_tokens,model.layers.0.self_attn.q_proj,"
                        "model.layers.1.self_attn.q_proj");
    cr_model_free(model);
    model = open_adapted(qwen3, "q_proj");
    assert_null(model->adapters->modules);
    cr_model_free(model);
}

/* In the unit of its Linear, whatever makes units: A and B trained, the rest frozen. */
static void units(void **state)
{
    static const char *const classes[] = {"Qwen3DecoderLayer", "Linear"};
    static const cr_wrap_policy policies[] = {
        {.classes = &classes[0], .num_classes = 1},
        {.classes = &classes[1], .num_classes = 1},
        {.classes = classes, .num_classes = 2, .is_nested = true},
        {.is_nested = true, .min_elems = 200},
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(policies); i++) {
        cr_model *model = open_adapted(qwen3, "all-linear");
        cr_err err = {0};
        cr_units u;
        must(cr_units_build(model, &policies[i], 2, &u, &err), &err);
        for (size_t k = 0; k < u.num; k++) {
            const cr_unit *unit = &u.unit[k];
            assert_null(strstr(unit->name, "lora_"));
            for (size_t n = 0; n < unit->trained.num_params; n++)
                assert_non_null(strstr(unit->trained.params[n]->name, ".lora_"));
            for (size_t n = 0; n < unit->frozen.num_params; n++)
                assert_null(strstr(unit->frozen.params[n]->name, ".lora_"));
            if (strcmp(unit->module->cls, "Linear") == 0 && unit->module->adapters)
                assert_int_equal(unit->trained.num_params, 2);
        }
        assert_int_equal(u.num_trained, 4 * 2 * (4 * (64 + 64) + 3 * (64 + 96)));
        cr_units_free(&u);
        cr_model_free(model);
    }
}

/* A, B and originals are in the unit of what has them; an original is frozen, and what is trained in full is not. */
static void units_of_words(void **state)
{
    static const char *const classes[] = {"Embedding", "Qwen3RMSNorm", "Linear"};
    static const cr_wrap_policy policies[] = {
        {0},
        {.classes = classes, .num_classes = 3, .is_nested = true},
        {.should_wrap_embeddings = true, .should_wrap_lm_output = true},
        {.is_nested = true, .min_elems = 50},
    };
    const cr_model_options options = {.adapters = {.target = "q_proj,all-embedding",
                                                   .rank = 4,
                                                   .alpha = 8,
                                                   .saved = "lm_head,norm",
                                                   .keeps_originals = true}};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(policies); i++) {
        cr_err err = {0};
        cr_model *model;
        cr_units u;
        must(build_model_with(qwen3, &options, &model, &err), &err);
        must(cr_units_build(model, &policies[i], 2, &u, &err), &err);
        for (size_t k = 0; k < u.num; k++) {
            const cr_unit *unit = &u.unit[k];
            assert_null(strstr(unit->name, "lora_"));
            assert_null(strstr(unit->name, "original"));
            for (size_t n = 0; n < unit->trained.num_params; n++)
                assert_true(unit->trained.params[n]->is_adapter);
            for (size_t n = 0; n < unit->frozen.num_params; n++)
                assert_false(unit->frozen.params[n]->is_adapter);
        }
        assert_int_equal(u.num_trained,
                         4 * (97 + 64) + 97 * 64 + 64 + 2 * (4 * (64 + 64) + 2 * 64 + 2 * 16));
        cr_units_free(&u);
        cr_model_free(model);
    }
}

/* A that two Linears of an expert have is in no unit of its own: they run while their expert's is there. */
static void units_of_experts(void **state)
{
    static const char *const classes[] = {"Linear"};
    static const cr_wrap_policy policy = {.classes = classes, .num_classes = 1, .is_nested = true};
    cr_model *model = open_adapted(moe, "all-linear");
    cr_err err = {0};
    cr_units u;

    (void)state;
    must(cr_units_build(model, &policy, 2, &u, &err), &err);
    for (size_t k = 0; k < u.num; k++)
        assert_null(strstr(u.unit[k].name, "lora_"));
    cr_units_free(&u);
    cr_model_free(model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_peft), cmocka_unit_test(bits_of_the_base),
        cmocka_unit_test(first_values),    cmocka_unit_test(first_values_of_words),
        cmocka_unit_test(targets),         cmocka_unit_test(trained_in_full),
        cmocka_unit_test(units),           cmocka_unit_test(names_for_peft),
        cmocka_unit_test(units_of_words),  cmocka_unit_test(units_of_experts),
        cmocka_unit_test(kept_elements),   cmocka_unit_test(dropout),
    };

    if (argc == 2) path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
