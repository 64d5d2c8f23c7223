/* models_experts.c -- the block of experts, with random weights.
 *
 * Outputs and gradients of two blocks with one auxiliary loss, against a slow double-precision loop over
 * tokens and central differences of it; what must hold bit for bit (rows alone, recompute, frozen parts,
 * idle experts called or not); hooks; checkpoints with stacked experts. Not covered: Transformers itself
 * and generation (the acceptance checks do that), accuracy in bf16 (only its bitwise promises).
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "models/files/safetensors.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 20 and 5 experts: whole vectors and a rest. */
#define BASE                                                                                 \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":24,\"intermediate_size\":40,"             \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":12,\"vocab_size\":50," \
    "\"num_hidden_layers\":2,\"moe_intermediate_size\":18,\"rms_norm_eps\":1e-5,"            \
    "\"initializer_range\":0.35,"
static const char *const configs[] = {
    BASE "\"num_experts\":20,\"num_experts_per_tok\":3,\"norm_topk_prob\":true}",
    BASE "\"num_experts\":5,\"num_experts_per_tok\":2,\"norm_topk_prob\":false}",
    BASE "\"num_experts\":5,\"num_experts_per_tok\":5,\"norm_topk_prob\":true}",
};
enum { H = 24, M = 18, NUM_TOKENS = 33, MAX_EXPERTS = 20 };
static const float AUX = 0.7f;

typedef struct bench {
    model_bench m;
    cr_pass pass;
    cr_module *block[2];
    float x[NUM_TOKENS * H], y[2][NUM_TOKENS * H], c[2][NUM_TOKENS * H], dx[2][NUM_TOKENS * H];
} bench;

static void open_bench(bench *b, const char *text, cr_dtype dtype)
{
    cr_err err = {0};

    memset(b, 0, sizeof *b);
    if (model_bench_open(&b->m, text, dtype, &err) != CR_OK) fail_msg("%s", err.msg);
    b->pass.num_rows = NUM_TOKENS;
    b->block[0] = cr_model_find_module(b->m.model, "model.layers.0.mlp");
    b->block[1] = cr_model_find_module(b->m.model, "model.layers.1.mlp");
    for (int i = 0; i < NUM_TOKENS * H; i++) {
        b->x[i] = (float)cr_rng_normal(2, CR_RNG_TEST, 1, (uint64_t)i);
        b->c[0][i] = (float)cr_rng_normal(2, CR_RNG_TEST, 2, (uint64_t)i);
        b->c[1][i] = (float)cr_rng_normal(2, CR_RNG_TEST, 3, (uint64_t)i);
    }
}

/* A pass over the rows of one block, without a tape. */
static void begin_rows(bench *b, cr_dtype dtype)
{
    cr_err err = {0};

    b->pass = (cr_pass){.state = b->m.state,
                        .dev = b->m.dev,
                        .dtype = dtype,
                        .scratch = b->m.scratch,
                        .num_rows = NUM_TOKENS};
    if (cr_pass_begin(b->m.model, &b->pass, &err) != CR_OK) fail_msg("%s", err.msg);
}

/* Both blocks on x, each added to x; then back from c. */
static void run_blocks(bench *b)
{
    cr_mem *x = TO_DEVICE(b->m.dev, b->x);
    cr_err err = {0};

    b->pass = (cr_pass){.state = b->m.state,
                        .dev = b->m.dev,
                        .dtype = CR_F32,
                        .tape = b->m.tape,
                        .scratch = b->m.scratch,
                        .hooks = b->pass.hooks,
                        .aux_weight = b->pass.aux_weight,
                        .num_rows = b->pass.num_rows};
    if (cr_pass_begin(b->m.model, &b->pass, &err) != CR_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < 2; i++)
        if (cr_module_forward(b->block[i], &b->pass, x, x, TO_DEVICE(b->m.dev, b->y[i]), &err) !=
            CR_OK)
            fail_msg("%s", err.msg);
    b->pass.phase = CR_BACKWARD;
    for (int i = 1; i >= 0; i--)
        if (cr_module_backward(b->block[i], &b->pass, x, TO_DEVICE(b->m.dev, b->c[i]),
                               TO_DEVICE(b->m.dev, b->dx[i]), &err) != CR_OK)
            fail_msg("%s", err.msg);
    to_host();
    assert_int_equal(cr_stack_mark(b->m.scratch), 0);
    cr_stack_release(b->m.tape, 0);
}

/* ---- the same in double precision, token by token ---- */

typedef struct slow {
    const bench *b;
    const char *weights;    /* a copy of all */
    const cr_param *bumped; /* one element read as value + bump; x of block 0 if NULL */
    int64_t elem;
    double bump;
    double picks[MAX_EXPERTS], probs[MAX_EXPERTS];
} slow;

static float from_bf16(const void *data, int64_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static double value(const slow *s, const cr_param *p, int64_t e)
{
    const void *w = in_copy(s->weights, s->b->m.full.data, p->weight.data);
    float x = p->weight.dtype == CR_F32 ? ((const float *)w)[e] : from_bf16(w, e);

    return x + (p == s->bumped && e == s->elem ? s->bump : 0);
}

static void product(const slow *s, const cr_module *linear, const double *x, double *y)
{
    const cr_param *w = &linear->params[0];

    for (int64_t n = 0; n < w->shape[0]; n++) {
        y[n] = 0;
        for (int64_t k = 0; k < w->shape[1]; k++)
            y[n] += x[k] * value(s, w, n * w->shape[1] + k);
    }
}

static void slow_expert(const slow *s, const cr_module *e, const double *x, double *y)
{
    double gate[M], up[M];

    product(s, e->children[0], x, gate);
    product(s, e->children[1], x, up);
    for (int i = 0; i < M; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    product(s, e->children[2], gate, y);
}

static void slow_token(slow *s, const cr_module *block, const double *x, double *y)
{
    const cr_model_config *c = &s->b->m.model->config;
    double p[MAX_EXPERTS], sum = 0, of_chosen = 0, out[H];
    bool is_chosen[MAX_EXPERTS] = {0};

    product(s, block->children[0], x, p);
    for (int64_t e = 0; e < c->num_experts; e++)
        sum += p[e] = exp(p[e]);
    for (int64_t e = 0; e < c->num_experts; e++)
        s->probs[e] += p[e] /= sum;
    for (int64_t j = 0; j < c->num_experts_per_tok; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < c->num_experts; e++)
            if (!is_chosen[e] && (best < 0 || p[e] > p[best])) best = e;
        is_chosen[best] = true;
        of_chosen += p[best];
        s->picks[best]++;
    }
    for (int64_t e = 0; e < c->num_experts; e++) {
        if (!is_chosen[e]) continue;
        slow_expert(s, block->children[1]->children[e], x, out);
        for (int i = 0; i < H; i++)
            y[i] += out[i] * p[e] / (c->should_norm_topk ? of_chosen : 1);
    }
}

/* y of both blocks and the auxiliary loss of both together. */
static double slow_blocks(slow *s, double *y)
{
    double aux = 0, rows = 2 * NUM_TOKENS;
    int64_t num = s->b->m.model->config.num_experts;

    memset(s->picks, 0, sizeof s->picks);
    memset(s->probs, 0, sizeof s->probs);
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < NUM_TOKENS; t++) {
            double x[H], *out = y + (i * NUM_TOKENS + t) * H;
            for (int k = 0; k < H; k++) {
                out[k] = x[k] = s->b->x[t * H + k];
                if (!s->bumped && i == 0 && t * H + k == s->elem) x[k] += s->bump;
            }
            slow_token(s, s->b->block[i], x, out);
        }
    for (int64_t e = 0; e < num; e++)
        aux += (double)num * s->picks[e] / rows * s->probs[e] / rows;
    return aux;
}

static double slow_loss(slow *s, double bump)
{
    double y[2 * NUM_TOKENS * H], sum;

    s->bump = bump;
    sum = AUX * slow_blocks(s, y);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < NUM_TOKENS * H; k++)
            sum += s->b->c[i][k] * y[i * NUM_TOKENS * H + k];
    return sum;
}

/* float32 sums of 24 and 18 terms, 20 probabilities: about 1e-6 of values of about 5; 10 times that. */
static void c32_forward_equals_double(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(configs); f++) {
        static bench b;
        double y[2 * NUM_TOKENS * H], aux;
        slow s = {.b = &b, .elem = -1};
        open_bench(&b, configs[f], CR_F32);
        b.pass.aux_weight = AUX;
        run_blocks(&b);
        s.weights = model_bench_weights(&b.m);
        aux = slow_blocks(&s, y);
        check_near(cr_pass_aux_loss(b.m.model, b.m.state), aux, 1e-6 * aux);
        for (int i = 0; i < NUM_TOKENS * H; i++) {
            check_near(b.y[0][i], y[i], 5e-5);
            check_near(b.y[1][i], y[NUM_TOKENS * H + i], 5e-5);
        }
        cr_free((void *)(uintptr_t)s.weights);
        model_bench_close(&b.m);
    }
}

/* All experts are chosen, so that no rounding of a logit changes who is. Rounded are logits, gate, up,
 * their product and the outputs, each by at most 2^-9 of itself: together less than 4 * 2^-9. */
static void c32_bf16_is_near_double(void **state)
{
    static bench b;
    uint16_t x[NUM_TOKENS * H], y[NUM_TOKENS * H];
    double want[2 * NUM_TOKENS * H], far = 0, size = 0;
    slow s = {.b = &b, .elem = -1};
    cr_err err = {0};

    (void)state;
    open_bench(&b, configs[2], CR_BF16);
    cr_cast_host(CR_BF16, x, CR_F32, b.x, NUM_TOKENS * H);
    for (int i = 0; i < NUM_TOKENS * H; i++)
        b.x[i] = from_bf16(x, i);
    s.weights = model_bench_weights(&b.m);
    slow_blocks(&s, want);
    cr_free((void *)(uintptr_t)s.weights);
    begin_rows(&b, CR_BF16);
    assert_int_equal(cr_module_forward(b.block[0], &b.pass, TO_DEVICE(b.m.dev, x),
                                       TO_DEVICE(b.m.dev, x), TO_DEVICE(b.m.dev, y), &err),
                     CR_OK);
    to_host();
    for (int i = 0; i < NUM_TOKENS * H; i++) {
        far += pow(from_bf16(y, i) - want[i], 2);
        size += pow(want[i], 2);
    }
    check_near(sqrt(far / size), 0, 8e-3); /* measured: 3.9e-3 */
    model_bench_close(&b.m);
}

/* Central difference with step 1e-6 in double of a loss of about 100: error about 1e-8. float32 gradients
 * are sums over at most 33 tokens: 1e-5 of the largest element, with a floor. */
static void check_element(slow *s, const float *grad, int64_t num, int64_t elem, const char *name)
{
    double largest = 1e-1, want;

    for (int64_t e = 0; e < num; e++)
        largest = fmax(largest, fabs(grad[e]));
    s->elem = elem;
    want = (slow_loss(s, 1e-6) - slow_loss(s, -1e-6)) / 2e-6;
    if (!(fabs(want - grad[elem]) <= 2e-5 * largest))
        fail_msg("%s[%lld]: got %.9g, want %.9g, largest %.3g", name, (long long)elem, grad[elem],
                 want, largest);
}

static void c33_gradients_equal_differences(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(configs); f++) {
        static bench b;
        slow s = {.b = &b};
        float *grads;
        open_bench(&b, configs[f], CR_F32);
        b.pass.aux_weight = AUX;
        run_blocks(&b);
        s.weights = model_bench_weights(&b.m);
        grads = model_bench_grads(&b.m);
        for (size_t i = 0; i < b.m.model->num_params; i++) {
            const cr_param *p = b.m.model->params[i];
            if (!strstr(p->name, ".mlp.")) continue;
            for (uint64_t k = 0; k < 3; k++) {
                uint32_t w[4];
                cr_rng_philox(8, CR_RNG_TEST, i, k, w);
                s.bumped = p;
                check_element(&s, in_copy(grads, b.m.full.grad, p->grad), p->num_elems,
                              w[0] % p->num_elems, p->name);
            }
        }
        s.bumped = NULL;
        for (int64_t e = 5; e < NUM_TOKENS * H; e += 61) {
            s.elem = e;
            check_element(&s, b.dx[0], NUM_TOKENS * H, e, "input, without the stream");
        }
        cr_free(grads);
        cr_free((void *)(uintptr_t)s.weights);
        model_bench_close(&b.m);
    }
}

/* Rows of x are those of the unit matrix, so the gate's weights are the router's logits, transposed, and
 * its gradient is that of the logits. Transformers' numbers are float32 of about 2 and 0.01. */
static void c33_auxiliary_loss_is_transformers(void **state)
{
    static bench b;
    json_t *all, *aux;
    cr_err err = {0};

    (void)state;
    if (cr_json_read_file("tests/parity/formulas.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    aux = json_object_get(all, "aux_loss");
    open_bench(&b, configs[1], CR_F32);
    b.pass.num_rows = H;
    b.pass.aux_weight = 1;
    memset(b.c, 0, sizeof b.c);
    for (int i = 0; i < H * H; i++)
        b.x[i] = i / H == i % H;
    for (int layer = 0; layer < 2; layer++) {
        float gate[5 * H];
        json_t *logits = json_array_get(json_object_get(aux, "logits"), (size_t)layer);
        for (int i = 0; i < H * 5; i++)
            gate[i % 5 * H + i / 5] = (float)json_number_value(json_array_get(logits, (size_t)i));
        model_bench_fill(&b.m, &b.block[layer]->children[0]->params[0], gate);
    }
    run_blocks(&b);
    check_near(cr_pass_aux_loss(b.m.model, b.m.state),
               json_number_value(json_object_get(aux, "loss")), 1e-6);
    for (int layer = 0; layer < 2; layer++) {
        const cr_param *gate = &b.block[layer]->children[0]->params[0];
        float *grad = downloaded(b.m.dev, gate->grad, (size_t)gate->num_elems * sizeof *grad);
        json_t *want = json_array_get(json_object_get(aux, "grads"), (size_t)layer);
        for (int i = 0; i < H * 5; i++)
            check_near(grad[i % 5 * H + i / 5], json_number_value(json_array_get(want, (size_t)i)),
                       1e-7);
        cr_free(grad);
    }
    json_decref(all);
    model_bench_close(&b.m);
}

/* ---- what must hold bit for bit ---- */

static void rows_do_not_depend_on_company(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(configs); f++)
        for (int type = 0; type < 2; type++) {
            static bench b;
            cr_dtype dtype = type ? CR_BF16 : CR_F32;
            size_t row = H * cr_dtype_bytes(dtype);
            char x[NUM_TOKENS * H * 4], all[NUM_TOKENS * H * 4], one[H * 4];
            cr_mem *in, *out;
            cr_err err = {0};
            open_bench(&b, configs[f], dtype);
            begin_rows(&b, dtype);
            cr_cast_host(dtype, x, CR_F32, b.x, NUM_TOKENS * H);
            in = TO_DEVICE(b.m.dev, x);
            out = TO_DEVICE(b.m.dev, all);
            assert_int_equal(cr_module_forward(b.block[0], &b.pass, in, in, out, &err), CR_OK);
            to_host();
            b.pass.num_rows = 1;
            for (size_t t = 0; t < NUM_TOKENS; t++) {
                in = to_device(b.m.dev, x + t * row, row);
                out = TO_DEVICE(b.m.dev, one);
                assert_int_equal(cr_module_forward(b.block[0], &b.pass, in, in, out, &err), CR_OK);
                to_host();
                assert_memory_equal(one, all + t * row, row);
            }
            model_bench_close(&b.m);
        }
}

/* A whole model: ids to log-probs and back. */
static void gradients(bench *b, bool should_recompute)
{
    int32_t ids[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu[] = {0, 20, NUM_TOKENS};
    float log_prob[NUM_TOKENS], entropy[NUM_TOKENS], grad[NUM_TOKENS];
    cr_batch batch = {.ids = ids,
                      .positions = positions,
                      .labels = labels,
                      .cu_seqlens = cu,
                      .num_tokens = NUM_TOKENS,
                      .num_seqs = 2};
    cr_outputs out = {{log_prob, entropy}};
    cr_err err = {0};

    for (int t = 0; t < NUM_TOKENS; t++) {
        ids[t] = (t * 7 + 3) % 50;
        labels[t] = (t * 11) % 50;
        positions[t] = t < 20 ? t : t - 20;
        grad[t] = b->c[0][t];
    }
    b->pass = (cr_pass){.state = b->m.state,
                        .dev = b->m.dev,
                        .dtype = b->m.model->params[0]->weight.dtype,
                        .tape = b->m.tape,
                        .scratch = b->m.scratch,
                        .batch = &batch,
                        .hooks = b->pass.hooks,
                        .should_recompute = should_recompute,
                        .aux_weight = b->pass.aux_weight};
    if (cr_zero(b->m.dev, b->m.full.grad, b->m.full.grad_bytes, &err) != CR_OK ||
        cr_model_forward(b->m.model, &b->pass, &out, &err) != CR_OK ||
        cr_model_backward(b->m.model, &b->pass, &(cr_outputs){{grad, grad}}, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(cr_stack_mark(b->m.scratch), 0);
    assert_int_equal(cr_stack_mark(b->m.tape), 0);
}

static void recompute_and_idle_experts_change_no_bit(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(configs); f++)
        for (int type = 0; type < 2; type++) {
            static bench b;
            float *all, *now;
            double aux;
            open_bench(&b, configs[f], type ? CR_BF16 : CR_F32);
            b.pass.aux_weight = AUX;
            gradients(&b, false);
            aux = cr_pass_aux_loss(b.m.model, b.m.state);
            all = model_bench_grads(&b.m);
            for (int way = 0; way < 3; way++) {
                b.m.model->skips_idle_experts = way > 0;
                gradients(&b, way != 1);
                now = model_bench_grads(&b.m);
                assert_memory_equal(all, now, b.m.full.grad_bytes);
                cr_free(now);
                assert_true(cr_pass_aux_loss(b.m.model, b.m.state) == aux);
            }
            cr_free(all);
            model_bench_close(&b.m);
        }
}

static void freezing_changes_no_bit(void **state)
{
    static const char *const frozen[] = {
        ".mlp.gate.", ".experts.1.", ".experts.0.down_proj", ".experts.2.gate_proj", ".experts.",
        ".layers.0.", "layernorm",   ".layers.1.self_attn"};

    (void)state;
    for (size_t f = 0; f < CR_COUNT(configs); f++) {
        static bench b;
        float *all, *now;
        open_bench(&b, configs[f], CR_F32);
        gradients(&b, false);
        all = model_bench_grads(&b.m);
        for (size_t k = 0; k < CR_COUNT(frozen); k++) { /* more and more */
            for (size_t i = 0; i < b.m.model->num_params; i++)
                if (strstr(b.m.model->params[i]->name, frozen[k]))
                    b.m.model->params[i]->is_trainable = false;
            cr_model_mark_trainable(b.m.model);
            gradients(&b, k % 2);
            now = model_bench_grads(&b.m);
            for (size_t i = 0; i < b.m.model->num_params; i++) {
                const cr_param *p = b.m.model->params[i];
                const float *grad = in_copy(now, b.m.full.grad, p->grad);
                if (p->is_trainable)
                    assert_memory_equal(grad, in_copy(all, b.m.full.grad, p->grad),
                                        (size_t)p->num_elems * sizeof *grad);
                for (int64_t e = 0; !p->is_trainable && e < p->num_elems; e++)
                    assert_true(grad[e] == 0);
            }
            cr_free(now);
        }
        cr_free(all);
        model_bench_close(&b.m);
    }
}

/* ---- idle experts ---- */

typedef struct trace {
    char calls[4000]; /* "0f1f2f.." of experts; then b for backward */
} trace;

static cr_status on_before(void *ctx, const cr_module *m, cr_phase phase, cr_err *err)
{
    trace *t = ctx;
    size_t used = strlen(t->calls);
    const char *at = strstr(m->name, "layers.0.mlp.experts.");

    (void)err;
    if (at && strcmp(m->cls, "Qwen3MoeMLP") == 0)
        snprintf(t->calls + used, sizeof t->calls - used, "%s%c", at + 21,
                 phase == CR_BACKWARD ? 'b' : 'f');
    return CR_OK;
}

static cr_status on_after(void *ctx, const cr_module *m, cr_phase phase, cr_err *err)
{
    (void)ctx;
    (void)m;
    (void)phase;
    (void)err;
    return CR_OK;
}

/* AdamW without a gradient only takes its part of the weight. */
static void check_only_decays(const bench *b, const cr_param *p)
{
    float *w = downloaded(b->m.dev, p->weight.data, (size_t)p->num_elems * sizeof *w);
    float now[M * H] = {0}, m[M * H] = {0}, v[M * H] = {0};
    cr_adamw_args a = {.param = TO_DEVICE(b->m.dev, now),
                       .m = TO_DEVICE(b->m.dev, m),
                       .v = TO_DEVICE(b->m.dev, v),
                       .grad = p->grad,
                       .num = (size_t)p->num_elems,
                       .lr = 1e-2,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .eps = 1e-8,
                       .weight_decay = 0.1,
                       .grad_scale = 1,
                       .t = 1};
    cr_err err = {0};

    refill(b->m.dev, a.param, w, a.num * sizeof *w);
    assert_int_equal(cr_adamw(b->m.dev, &a, &err), CR_OK);
    to_host();
    for (size_t e = 0; e < a.num; e++) {
        if (isfinite(w[e])) check_near(now[e], w[e] * (1 - 1e-3), 0x1p-23 * fabsf(w[e]));
        assert_true(m[e] == 0 && v[e] == 0);
    }
    cr_free(w);
}

/* The router sends every token to experts 1 and 3 of 5 (its other rows are zero, x has one sign); expert 0
 * is not a number, and it has no effect. */
static void c30_idle_experts_are_called_and_harmless(void **state)
{
    static bench b;
    trace t = {0};
    cr_hooks hooks = {on_before, on_after, &t};
    cr_param *gate, *poison;
    float w[5 * H], *part;

    (void)state;
    open_bench(&b, configs[1], CR_F32);
    gate = cr_model_find_param(b.m.model, "model.layers.0.mlp.gate.weight");
    poison = cr_model_find_param(b.m.model, "model.layers.0.mlp.experts.0.up_proj.weight");
    for (int64_t e = 0; e < gate->num_elems; e++)
        w[e] = e / H == 1 || e / H == 3 ? 0.1f * (float)(e / H) : 0;
    model_bench_fill(&b.m, gate, w);
    refill(b.m.dev, cr_at_const(CR_F32, poison->weight.data, 7), &(float){NAN}, sizeof(float));
    for (int i = 0; i < NUM_TOKENS * H; i++)
        b.x[i] = fabsf(b.x[i]);
    b.pass.hooks = &hooks;
    for (int skips = 0; skips < 2; skips++) {
        t.calls[0] = 0;
        b.m.model->skips_idle_experts = skips;
        run_blocks(&b);
        assert_string_equal(t.calls, skips ? "1f3f3b1b" : "0f1f2f3f4f4b3b2b1b0b");
        for (int i = 0; i < NUM_TOKENS * H; i++)
            assert_true(isfinite(b.y[0][i]) && isfinite(b.dx[0][i]));
        for (size_t i = 0; i < b.m.model->num_params; i++) {
            const cr_param *p = b.m.model->params[i];
            double sum = 0;
            if (!strstr(p->name, "layers.0.mlp.experts.")) continue;
            part = downloaded(b.m.dev, p->grad, (size_t)p->num_elems * sizeof *part);
            for (int64_t e = 0; e < p->num_elems; e++)
                sum += fabs(part[e]);
            cr_free(part);
            assert_true(strstr(p->name, "experts.1.") || strstr(p->name, "experts.3.") ? sum > 0
                                                                                       : sum == 0);
            if (sum == 0) check_only_decays(&b, p);
        }
    }
    model_bench_close(&b.m);
}

/* ---- checkpoints with stacked experts ---- */

/* The model's parameters, but those of experts stacked by layer: gate_up_proj and down_proj. */
static void write_stacked(const bench *b, const char *path, bool is_transposed)
{
    int64_t num = b->m.model->config.num_experts;
    cr_tensor_spec specs[64];
    const float *data[64] = {0};
    char names[4][60];
    char *weights = model_bench_weights(&b->m);
    size_t n = 0;
    cr_tensor_writer *writer;
    cr_err err = {0};

    for (size_t i = 0; i < b->m.model->num_params; i++) {
        const cr_param *p = b->m.model->params[i];
        if (strstr(p->name, ".experts.")) continue;
        data[n] = in_copy(weights, b->m.full.data, p->weight.data);
        specs[n] = (cr_tensor_spec){.name = p->name, .dtype = CR_F32, .num_dims = p->num_dims};
        memcpy(specs[n++].shape, p->shape, sizeof p->shape);
    }
    for (int i = 0; i < 4; i++) {
        bool is_down = i & 1;
        snprintf(names[i], sizeof names[i], "model.layers.%d.mlp.experts.%s_proj", i / 2,
                 is_down ? "down" : "gate_up");
        specs[n++] =
            (cr_tensor_spec){.name = names[i],
                             .dtype = CR_F32,
                             .num_dims = 3,
                             .shape = {num, is_down != is_transposed ? H : (2 - is_down) * M,
                                       is_down != is_transposed ? (2 - is_down) * M : H}};
    }
    assert_int_equal(cr_tensor_writer_open(path, specs, n, &writer, &err), CR_OK);
    for (size_t i = 0; i < n - 4; i++)
        assert_int_equal(cr_tensor_writer_put(writer, i, 0,
                                              specs[i].shape[0] *
                                                  (specs[i].num_dims > 1 ? specs[i].shape[1] : 1),
                                              data[i], &err),
                         CR_OK);
    for (int i = 0; i < 4; i++)
        for (int64_t e = 0; e < num; e++) {
            const cr_module *expert = b->block[i / 2]->children[1]->children[e];
            for (int64_t k = 0, parts = i & 1 ? 1 : 2; k < parts; k++) {
                const cr_param *p = &expert->children[i & 1 ? 2 : k]->params[0];
                int64_t at = (e * parts + k) * p->num_elems;
                assert_int_equal(
                    cr_tensor_writer_put(writer, n - 4 + (size_t)i, at, at + p->num_elems,
                                         in_copy(weights, b->m.full.data, p->weight.data), &err),
                    CR_OK);
            }
        }
    assert_int_equal(cr_tensor_writer_close(writer, &err), CR_OK);
    cr_free(weights);
}

static void stacked_experts_are_read(void **state)
{
    static bench b;
    char folder[] = "/tmp/croll-experts-XXXXXX", path[80];
    cr_weights *weights;
    float got[M * H], *want;
    cr_err err = {0};

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    open_bench(&b, configs[1], CR_F32);
    write_stacked(&b, path, /*is_transposed=*/true);
    assert_int_equal(cr_weights_open(folder, b.m.model, &weights, &err), CR_EFORMAT);
    if (!strstr(err.msg, "[5, 36, 24]")) fail_msg("%s", err.msg);
    err = (cr_err){0};
    write_stacked(&b, path, /*is_transposed=*/false);
    if (cr_weights_open(folder, b.m.model, &weights, &err) != CR_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < b.m.model->num_params; i++) {
        const cr_param *p = b.m.model->params[i];
        if (!strstr(p->name, ".experts.")) continue;
        assert_int_equal(cr_weights_read(weights, p, 5, p->num_elems, got, &err), CR_OK);
        want = downloaded(b.m.dev, p->weight.data, (size_t)p->num_elems * sizeof *want);
        assert_memory_equal(got, want + 5, (size_t)(p->num_elems - 5) * sizeof *got);
        cr_free(want);
    }
    cr_weights_close(weights);
    model_bench_close(&b.m);
    assert_int_equal(cr_remove_tree(folder, &err), CR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c32_forward_equals_double),
        cmocka_unit_test(c32_bf16_is_near_double),
        cmocka_unit_test(c33_gradients_equal_differences),
        cmocka_unit_test(c33_auxiliary_loss_is_transformers),
        cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(recompute_and_idle_experts_change_no_bit),
        cmocka_unit_test(freezing_changes_no_bit),
        cmocka_unit_test(c30_idle_experts_are_called_and_harmless),
        cmocka_unit_test(stacked_experts_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
