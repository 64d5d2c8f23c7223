/* models_pass.c -- forward and backward of every dense family, with random weights.
 *
 * Log-probs and entropy against a slow double-precision model written here; gradients against central
 * differences of that model; and what must hold bit for bit: packing, recompute, frozen parameters,
 * cached against packed attention. Not covered: real checkpoints and Transformers itself (the
 * acceptance checks do that), bf16 accuracy (only its bitwise promises).
 * // also on far
 * // also on cuda
 */
#include "base/rng.h"
#include "kernels/attention.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a model with a device ---- */

typedef model_bench bench;

#define BASE                                                                                   \
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_attention_heads\":4,\"vocab_size\":70," \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":100,\"initializer_range\":0.3"

static const char *const families[] = {
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"attention_bias\":true,\"mlp_bias\":"
    "true," BASE "}",
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_key_value_heads\":2,"
    "\"tie_word_embeddings\":true,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
    "\"original_max_position_embeddings\":16}," BASE "}",
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"num_key_value_heads\":2,"
    "\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":1," BASE "}",
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"head_dim\":"
    "12," BASE "}",
};

/* Biases and norms away from 0 and 1, so that a forgotten one is seen. */
static void disturb(const bench *b)
{
    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        size_t num_bytes = (size_t)p->num_elems * sizeof(float);
        float *w;
        if (p->num_dims != 1 || p->weight.dtype != CR_F32) continue;
        w = downloaded(b->dev, p->weight.data, num_bytes);
        for (int64_t e = 0; e < p->num_elems; e++)
            w[e] += 0.3f * (float)cr_rng_normal(3, CR_RNG_TEST, i, (uint64_t)e);
        refill(b->dev, p->weight.data, w, num_bytes);
        cr_free(w);
    }
}

static bench bench_open(const char *text, cr_dtype dtype)
{
    cr_err err = {0};
    bench b;

    if (model_bench_open(&b, text, dtype, &err) != CR_OK) fail_msg("%s", err.msg);
    disturb(&b);
    return b;
}

/* ---- a batch ---- */

enum { MAX_TOKENS = 160 };

typedef struct data {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu[8];
    cr_batch batch;
} data;

/* Positions count from `start`. */
static void add_sequence_at(data *d, int length, int salt, int start)
{
    int64_t at = d->batch.num_tokens;

    for (int t = 0; t < length; t++) {
        uint32_t w[4];
        cr_rng_philox(5, CR_RNG_TEST, (uint64_t)salt, (uint64_t)t, w);
        d->ids[at + t] = (int32_t)(w[0] % 70);
        d->positions[at + t] = start + t;
        d->labels[at + t] = -1;
        if (t) d->labels[at + t - 1] = w[1] % 5 ? d->ids[at + t] : -1; /* with holes */
    }
    d->cu[d->batch.num_seqs + 1] = (int32_t)(at + length);
    d->batch.num_tokens += length;
    d->batch.num_seqs++;
    d->batch.ids = d->ids;
    d->batch.positions = d->positions;
    d->batch.labels = d->labels;
    d->batch.cu_seqlens = d->cu;
}

static void add_sequence(data *d, int length, int salt)
{
    add_sequence_at(d, length, salt, 0);
}

static int num_labels(const data *d)
{
    int num = 0;

    for (int64_t t = 0; t < d->batch.num_tokens; t++)
        num += d->labels[t] >= 0;
    return num;
}

static void coefficients(int num, float *of_log_prob, float *of_entropy)
{
    for (int i = 0; i < num; i++) {
        of_log_prob[i] = (float)cr_rng_normal(6, CR_RNG_TEST, 1, (uint64_t)i);
        of_entropy[i] = (float)cr_rng_normal(6, CR_RNG_TEST, 2, (uint64_t)i);
    }
}

/* ---- the double-precision model ---- */

typedef struct slow {
    const cr_model *model;
    const bench *b;
    const float *weights;                      /* a copy of all */
    double *x, *y, *q, *k, *v, *o, *gate, *up; /* [T, ..] */
    const cr_param *bumped;                    /* one element read as value + bump */
    int64_t bumped_elem;
    double bump;
} slow;

static double value(const slow *s, const cr_param *p, int64_t e)
{
    const float *w = in_copy(s->weights, s->b->full.data, p->weight.data);

    return w[e] + (p == s->bumped && e == s->bumped_elem ? s->bump : 0);
}

static const cr_param *find(const slow *s, int layer, const char *name)
{
    char full[140];

    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    return cr_model_find_param(s->model, full);
}

static void slow_norm(const slow *s, int layer, const char *name, const double *x, int64_t rows,
                      double *y)
{
    const cr_param *w = find(s, layer, name);
    int64_t n = w->num_elems;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0, scale;
        for (int64_t c = 0; c < n; c++)
            sum += x[r * n + c] * x[r * n + c];
        scale = 1 / sqrt(sum / (double)n + s->model->config.rms_norm_eps);
        for (int64_t c = 0; c < n; c++)
            y[r * n + c] = x[r * n + c] * scale * value(s, w, c);
    }
}

typedef enum how { SET, ADD } how;

static void slow_linear(const slow *s, int layer, const char *name, const double *x, int64_t rows,
                        double *y, how mode)
{
    char full[100];
    const cr_param *w, *bias;

    snprintf(full, sizeof full, "%s.weight", name);
    w = find(s, layer, full);
    snprintf(full, sizeof full, "%s.bias", name);
    bias = find(s, layer, full);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < w->shape[0]; n++) {
            double sum = bias ? value(s, bias, n) : 0;
            for (int64_t c = 0; c < w->shape[1]; c++)
                sum += x[r * w->shape[1] + c] * value(s, w, n * w->shape[1] + c);
            y[r * w->shape[0] + n] = sum + (mode == ADD ? y[r * w->shape[0] + n] : 0);
        }
}

static void slow_rope(const slow *s, const data *d, double *x, int64_t heads)
{
    const cr_model_config *c = &s->model->config;
    int64_t dim = c->head_dim;

    for (int64_t t = 0; t < d->batch.num_tokens; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < dim / 2; i++) {
                double *a = x + (t * heads + h) * dim + i, *b = a + dim / 2, old = *a;
                float angle = (float)d->positions[t] * c->ropes[0].inv_freq[i];
                double co = c->ropes[0].scaling * cos((double)angle),
                       si = c->ropes[0].scaling * sin((double)angle);
                *a = old * co - *b * si;
                *b = *b * co + old * si;
            }
}

static void slow_attend_row(const slow *s, int layer, int64_t first, int64_t t, int64_t h)
{
    const cr_model_config *c = &s->model->config;
    int64_t dim = c->head_dim, kv = h / (c->num_heads / c->num_kv_heads);
    const double *q = s->q + (t * c->num_heads + h) * dim;
    double *o = s->o + (t * c->num_heads + h) * dim, p[MAX_TOKENS], max = -INFINITY, sum = 0;
    int64_t window = c->layers[layer].window;

    if (window && t - window + 1 > first) first = t - window + 1;
    for (int64_t j = first; j <= t; j++) {
        p[j] = 0;
        for (int64_t i = 0; i < dim; i++)
            p[j] += q[i] * s->k[(j * c->num_kv_heads + kv) * dim + i] / sqrt((double)dim);
        max = fmax(max, p[j]);
    }
    for (int64_t j = first; j <= t; j++)
        sum += p[j] = exp(p[j] - max);
    for (int64_t i = 0; i < dim; i++) {
        o[i] = 0;
        for (int64_t j = first; j <= t; j++)
            o[i] += p[j] / sum * s->v[(j * c->num_kv_heads + kv) * dim + i];
    }
}

static void slow_layer(slow *s, const data *d, int layer)
{
    const cr_model_config *c = &s->model->config;
    int64_t n = d->batch.num_tokens;

    slow_norm(s, layer, "input_layernorm.weight", s->x, n, s->y);
    slow_linear(s, layer, "self_attn.q_proj", s->y, n, s->q, SET);
    slow_linear(s, layer, "self_attn.k_proj", s->y, n, s->k, SET);
    slow_linear(s, layer, "self_attn.v_proj", s->y, n, s->v, SET);
    if (c->has_qk_norm) {
        slow_norm(s, layer, "self_attn.q_norm.weight", s->q, n * c->num_heads, s->q);
        slow_norm(s, layer, "self_attn.k_norm.weight", s->k, n * c->num_kv_heads, s->k);
    }
    slow_rope(s, d, s->q, c->num_heads);
    slow_rope(s, d, s->k, c->num_kv_heads);
    for (int64_t i = 0; i < d->batch.num_seqs; i++)
        for (int64_t t = d->cu[i]; t < d->cu[i + 1]; t++)
            for (int64_t h = 0; h < c->num_heads; h++)
                slow_attend_row(s, layer, d->cu[i], t, h);
    slow_linear(s, layer, "self_attn.o_proj", s->o, n, s->x, ADD);
    slow_norm(s, layer, "post_attention_layernorm.weight", s->x, n, s->y);
    slow_linear(s, layer, "mlp.gate_proj", s->y, n, s->gate, SET);
    slow_linear(s, layer, "mlp.up_proj", s->y, n, s->up, SET);
    for (int64_t e = 0; e < n * c->intermediate_size; e++)
        s->gate[e] = s->gate[e] / (1 + exp(-s->gate[e])) * s->up[e];
    slow_linear(s, layer, "mlp.down_proj", s->gate, n, s->x, ADD);
}

/* Log-probs and entropies of labelled rows. */
static void slow_forward(slow *s, const data *d, double *log_prob, double *entropy)
{
    const cr_model_config *c = &s->model->config;
    const cr_param *embed = find(s, -1, "model.embed_tokens.weight"),
                   *head = find(s, -1, "lm_head.weight");
    int64_t n = d->batch.num_tokens, h = c->hidden_size;

    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < h; i++)
            s->x[t * h + i] = value(s, embed, d->ids[t] * h + i);
    for (int layer = 0; layer < c->num_layers; layer++)
        slow_layer(s, d, layer);
    slow_norm(s, -1, "model.norm.weight", s->x, n, s->y);
    for (int64_t t = 0, row = 0; t < n; t++) {
        double z[100], sum = 0, mean = 0;
        if (d->labels[t] < 0) continue;
        for (int64_t v = 0; v < c->vocab_size; v++) {
            z[v] = 0;
            for (int64_t i = 0; i < h; i++)
                z[v] += s->y[t * h + i] * value(s, head, v * h + i);
            sum += exp(z[v]);
            mean += z[v] * exp(z[v]);
        }
        log_prob[row] = z[d->labels[t]] - log(sum);
        entropy[row++] = log(sum) - mean / sum;
    }
}

static slow slow_open(const bench *b)
{
    slow s = {.model = b->model, .b = b, .weights = model_bench_weights(b)};
    double **all[] = {&s.x, &s.y, &s.q, &s.k, &s.v, &s.o, &s.gate, &s.up};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        *all[i] = CR_NEW_ARRAY(double, MAX_TOKENS * 64);
    return s;
}

static void slow_close(slow *s)
{
    double *all[] = {s->x, s->y, s->q, s->k, s->v, s->o, s->gate, s->up};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_free(all[i]);
    cr_free((void *)(uintptr_t)s->weights);
}

/* ---- passes of the real model ---- */

typedef enum keep { NOTHING, KEEP, RECOMPUTE } keep;

static cr_pass make_pass(bench *b, const data *d, keep mode)
{
    return (cr_pass){.state = b->state,
                     .dev = b->dev,
                     .dtype = b->model->params[0]->weight.dtype,
                     .tape = mode == NOTHING ? NULL : b->tape,
                     .scratch = b->scratch,
                     .batch = &d->batch,
                     .should_recompute = mode == RECOMPUTE};
}

static void forward(bench *b, cr_pass *p, float *log_prob, float *entropy)
{
    cr_outputs out = {{log_prob, entropy}};
    cr_err err = {0};

    if (cr_model_forward(b->model, p, &out, &err) != CR_OK) fail_msg("%s", err.msg);
    assert_int_equal(cr_stack_mark(b->scratch), 0);
}

/* Gradients of sum(a log_prob + b entropy), from zero. */
static void gradients(bench *b, const data *d, keep mode)
{
    float lp[MAX_TOKENS], ent[MAX_TOKENS], g_lp[MAX_TOKENS], g_ent[MAX_TOKENS];
    cr_pass p = make_pass(b, d, mode);
    cr_err err = {0};

    if (cr_zero(b->dev, b->full.grad, b->full.grad_bytes, &err) != CR_OK) fail_msg("%s", err.msg);
    coefficients(num_labels(d), g_lp, g_ent);
    forward(b, &p, lp, ent);
    if (cr_model_backward(b->model, &p, &(cr_outputs){{g_lp, g_ent}}, &err) != CR_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(cr_stack_mark(b->scratch), 0);
    assert_int_equal(cr_stack_mark(b->tape), 0);
}

/* float32 sums of up to 48 terms and 3 layers: about 1e-6 of values of about 1; 20 times that. */
static void forward_equals_double(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        bench b = bench_open(families[f], CR_F32);
        slow s = slow_open(&b);
        data d = {0};
        float lp[MAX_TOKENS], ent[MAX_TOKENS];
        double want_lp[MAX_TOKENS], want_ent[MAX_TOKENS];
        cr_pass p;
        add_sequence(&d, 9, 1);
        add_sequence(&d, 1, 2);
        add_sequence(&d, 90, 3);
        p = make_pass(&b, &d, NOTHING);
        forward(&b, &p, lp, ent);
        slow_forward(&s, &d, want_lp, want_ent);
        for (int i = 0; i < num_labels(&d); i++) {
            check_near(lp[i], want_lp[i], 2e-5);
            check_near(ent[i], want_ent[i], 2e-5);
        }
        slow_close(&s);
        model_bench_close(&b);
    }
}

/* Each sequence says where its positions start: rotary embedding reads them, not the place in the
 * batch. Distances are the same as from 0, so the outcome is, to the rounding of larger angles. */
static void c38_positions_start_anywhere(void **state)
{
    static const int starts[] = {0, 1, 7, 50};

    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        bench b = bench_open(families[f], CR_F32);
        slow s = slow_open(&b);
        float lp[3][MAX_TOKENS], ent[MAX_TOKENS];
        double want_lp[MAX_TOKENS], want_ent[MAX_TOKENS];
        for (int moved = 0; moved < 3; moved++) {
            data d = {0};
            cr_pass p;
            for (int i = 0; i < 4; i++)
                add_sequence_at(&d, 6 + 5 * i, i, moved ? starts[i] : 0);
            for (int t = 0; t < d.batch.num_tokens && moved == 2; t++)
                d.positions[t] = 2 * d.positions[t] + t % 2; /* holes: only the reference knows */
            p = make_pass(&b, &d, NOTHING);
            forward(&b, &p, lp[moved], ent);
            slow_forward(&s, &d, want_lp, want_ent);
            for (int i = 0; i < num_labels(&d); i++) {
                check_near(lp[moved][i], want_lp[i], 2e-5);
                if (moved == 1) check_near(lp[1][i], lp[0][i], 5e-5);
            }
        }
        slow_close(&s);
        model_bench_close(&b);
    }
}

static double slow_loss(slow *s, const data *d)
{
    double lp[MAX_TOKENS], ent[MAX_TOKENS], sum = 0;
    float g_lp[MAX_TOKENS], g_ent[MAX_TOKENS];
    int num = num_labels(d);

    coefficients(num, g_lp, g_ent);
    slow_forward(s, d, lp, ent);
    for (int i = 0; i < num; i++)
        sum += g_lp[i] * lp[i] + g_ent[i] * ent[i];
    return sum;
}

/* Central difference with step 1e-5 in double: error about 1e-9. The float32 gradient sums about 20
 * tokens through 3 layers: 1e-5 of the parameter's largest element, with a floor. */
static void check_gradient(const float *grads, slow *s, const data *d, const cr_param *p)
{
    const float *grad = in_copy(grads, s->b->full.grad, p->grad);
    double largest = 1e-2;

    for (int64_t e = 0; e < p->num_elems; e++)
        largest = fmax(largest, fabs(grad[e]));
    for (int i = 0; i < 3; i++) {
        uint32_t w[4];
        double up, down;
        cr_rng_philox(8, CR_RNG_TEST, cr_hash64(p->name, strlen(p->name)), (uint64_t)i, w);
        s->bumped = p;
        s->bumped_elem = w[0] % p->num_elems;
        if (i == 2) /* a row of the embedding that occurs */
            s->bumped_elem = p == s->model->params[0] ? d->ids[0] * p->shape[1] + 3 : 0;
        s->bump = 1e-5;
        up = slow_loss(s, d);
        s->bump = -1e-5;
        down = slow_loss(s, d);
        if (!(fabs((up - down) / 2e-5 - grad[s->bumped_elem]) <= 2e-5 * largest))
            fail_msg("%s[%lld]: got %.9g, want %.9g, largest %.3g", p->name,
                     (long long)s->bumped_elem, grad[s->bumped_elem], (up - down) / 2e-5, largest);
    }
    s->bumped = NULL;
}

static void gradients_equal_differences(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        bench b = bench_open(families[f], CR_F32);
        slow s = slow_open(&b);
        data d = {0};
        float *grads;
        add_sequence(&d, 9, 1);
        add_sequence(&d, 2, 2);
        add_sequence(&d, 12, 3);
        gradients(&b, &d, KEEP);
        grads = model_bench_grads(&b);
        for (size_t i = 0; i < b.model->num_params; i++)
            check_gradient(grads, &s, &d, b.model->params[i]);
        cr_free(grads);
        slow_close(&s);
        model_bench_close(&b);
    }
}

static void packing_changes_no_bit(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++)
        for (int type = 0; type < 2; type++) {
            bench b = bench_open(families[f], type ? CR_BF16 : CR_F32);
            float packed[MAX_TOKENS], packed_ent[MAX_TOKENS], lp[MAX_TOKENS], ent[MAX_TOKENS];
            int lengths[] = {3, 65, 1, 20}, at = 0;
            data d = {0};
            cr_pass p;
            for (int i = 0; i < 4; i++)
                add_sequence(&d, lengths[i], i);
            p = make_pass(&b, &d, KEEP);
            forward(&b, &p, packed, packed_ent);
            cr_stack_release(b.tape, 0);
            for (int i = 0; i < 4; i++) {
                data one = {0};
                int num;
                add_sequence(&one, lengths[i], i);
                num = num_labels(&one);
                p = make_pass(&b, &one, NOTHING);
                forward(&b, &p, lp, ent);
                assert_memory_equal(lp, packed + at, (size_t)num * sizeof *lp);
                assert_memory_equal(ent, packed_ent + at, (size_t)num * sizeof *ent);
                at += num;
            }
            model_bench_close(&b);
        }
}

static void recompute_changes_no_bit(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++)
        for (int type = 0; type < 2; type++) {
            bench b = bench_open(families[f], type ? CR_BF16 : CR_F32);
            data d = {0};
            float *kept, *again;
            size_t kept_bytes;
            add_sequence(&d, 40, 1);
            add_sequence(&d, 33, 2);
            gradients(&b, &d, KEEP);
            kept = model_bench_grads(&b);
            kept_bytes = cr_stack_peak_bytes(b.tape);
            cr_stack_destroy(b.tape);
            b.tape = cr_stack_create(b.dev);
            gradients(&b, &d, RECOMPUTE);
            again = model_bench_grads(&b);
            assert_memory_equal(kept, again, b.full.grad_bytes);
            assert_true(cr_stack_peak_bytes(b.tape) < kept_bytes);
            cr_free(kept);
            cr_free(again);
            model_bench_close(&b);
        }
}

/* Freezing leaves the other gradients as they are, and nothing is kept below the lowest. */
static void freezing_changes_no_bit(void **state)
{
    static const char *const frozen[] = {
        "model.embed_tokens", "model.layers.0.",  "model.layers.1.self_attn.k_proj",
        "model.norm",         "model.layers.1.m", "model.layers.1.self_attn",
        "model.layers.1.i",   "model.layers.1.p",
    };

    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        bench b = bench_open(families[f], CR_F32);
        data d = {0};
        float *all, *now;
        size_t tape_bytes = SIZE_MAX;
        add_sequence(&d, 40, 1);
        add_sequence(&d, 5, 2);
        gradients(&b, &d, KEEP);
        all = model_bench_grads(&b);
        for (size_t k = 0; k < CR_COUNT(frozen); k++) { /* more and more */
            for (size_t i = 0; i < b.model->num_params; i++)
                if (strncmp(b.model->params[i]->name, frozen[k], strlen(frozen[k])) == 0)
                    b.model->params[i]->is_trainable = false;
            cr_model_mark_trainable(b.model);
            cr_stack_destroy(b.tape);
            b.tape = cr_stack_create(b.dev);
            gradients(&b, &d, k % 2 ? RECOMPUTE : KEEP);
            now = model_bench_grads(&b);
            for (size_t i = 0; i < b.model->num_params; i++) {
                cr_param *p = b.model->params[i];
                const float *got = in_copy(now, b.full.grad, p->grad);
                if (p->is_trainable) {
                    assert_memory_equal(got, in_copy(all, b.full.grad, p->grad),
                                        (size_t)p->num_elems * sizeof(float));
                    continue;
                }
                for (int64_t e = 0; e < p->num_elems; e++)
                    assert_true(got[e] == 0);
            }
            cr_free(now);
            if (k % 2 == 0) {
                assert_true(cr_stack_peak_bytes(b.tape) <= tape_bytes);
                tape_bytes = cr_stack_peak_bytes(b.tape);
            }
        }
        cr_free(all);
        model_bench_close(&b);
    }
}

/* Bytes a layer keeps: all but outputs of norms and silu(gate) * up. 64 tokens: nothing is rounded. */
static void tape_has_the_bytes_of_the_formula(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++) {
        bench b = bench_open(families[f], CR_F32);
        const cr_model_config *c = &b.model->config;
        int64_t h = c->hidden_size, q = c->num_heads * c->head_dim,
                kv = c->num_kv_heads * c->head_dim, n = c->has_qk_norm;
        int64_t layer = 4 * (2 * h + n * (q + kv) + (q + 2 * kv) + q + 2 * c->intermediate_size) +
                        4 * (c->num_heads + 2 + n * (c->num_heads + c->num_kv_heads));
        int64_t rows, want;
        data d = {0};
        float lp[MAX_TOKENS], ent[MAX_TOKENS];
        cr_pass p;
        add_sequence(&d, 64, 1);
        for (int t = 0; t < 64; t++)
            d.labels[t] = t < 32 ? 1 : -1;
        rows = 32;
        p = make_pass(&b, &d, KEEP);
        for (int i = 0; i < 2; i++) { /* the second time the stack is one block */
            cr_stack_release(b.tape, 0);
            forward(&b, &p, lp, ent);
        }
        want = 64 * (4 * h + c->num_layers * layer) + rows * (4 * h + 4 * 3);
        want += 4 * (64 + 64 + rows + rows) + 64 + 64; /* ids, positions, rows of the head, labels;
            frequencies, offsets */
        assert_int_equal(cr_stack_mark(b.tape), want);
        cr_stack_release(b.tape, 0);
        model_bench_close(&b);
    }
}

/* ---- generation ---- */

enum { MAX_BLOCKS = 2 };

static void logits_of_rows(bench *b, cr_pass *p, const int32_t *rows, int num, float *out)
{
    size_t num_bytes = (size_t)(num * b->model->config.vocab_size) * sizeof *out;
    cr_err err = {0};

    if (cr_model_logits(b->model, p, rows, num, to_device(b->dev, out, num_bytes), &err) != CR_OK)
        fail_msg("%s", err.msg);
    to_host();
}

/* Two slots: a prompt of each in one call beside the other's single tokens, then token by token. */
static void cached_rows_equal_packed_rows(void **state)
{
    (void)state;
    for (size_t f = 0; f < CR_COUNT(families); f++)
        for (int type = 0; type < 2; type++) {
            cr_dtype dtype = type ? CR_BF16 : CR_F32;
            bench b = bench_open(families[f], dtype);
            const cr_model_config *c = &b.model->config;
            size_t bytes = cr_kv_block_bytes(b.dev, dtype, c->num_kv_heads, c->head_dim);
            cr_mem *blocks[3];
            int32_t table[2 * MAX_BLOCKS] = {2, 0, 3, 1}, rows[MAX_TOKENS], slot[MAX_TOKENS],
                              pos[MAX_TOKENS], ids[MAX_TOKENS], lengths[2] = {70, 9};
            data d = {0};
            float *want = CR_NEW_ARRAY(float, MAX_TOKENS * c->vocab_size),
                  *got = CR_NEW_ARRAY(float, MAX_TOKENS * c->vocab_size);
            cr_err err = {0};
            cr_pass p;
            add_sequence(&d, lengths[0], 1);
            add_sequence(&d, lengths[1], 2);
            for (int i = 0; i < 3; i++)
                if (cr_device_alloc(b.dev, bytes * 2 * MAX_BLOCKS, &blocks[i], &err) != CR_OK)
                    fail_msg("%s", err.msg);
            for (int t = 0; t < MAX_TOKENS; t++)
                rows[t] = t;
            p = make_pass(&b, &d, NOTHING);
            logits_of_rows(&b, &p, rows, 79, want);
            /* step 0: 66 tokens of slot 0; then one token of slot 0 and 1..3 of slot 1 */
            for (int done[2] = {0, 0}; done[0] < lengths[0] || done[1] < lengths[1];) {
                int take[2] = {done[0] ? 1 : 66, done[0] ? 1 + done[1] % 3 : 0}, num = 0;
                cr_kv_view kv = {blocks, slot, pos, table, 2, MAX_BLOCKS, 2 * MAX_BLOCKS};
                cr_batch batch = {.ids = ids, .positions = pos};
                for (int s = 0; s < 2; s++)
                    for (int i = 0; i < take[s] && done[s] < lengths[s]; i++, num++, done[s]++) {
                        slot[num] = s;
                        pos[num] = done[s];
                        ids[num] = d.ids[d.cu[s] + done[s]];
                        rows[num] = num;
                    }
                batch.num_tokens = num;
                p.batch = &batch;
                p.kv = &kv;
                logits_of_rows(&b, &p, rows, num, got);
                for (int r = 0; r < num; r++)
                    assert_memory_equal(got + r * c->vocab_size,
                                        want + (d.cu[slot[r]] + pos[r]) * c->vocab_size,
                                        (size_t)c->vocab_size * sizeof(float));
            }
            for (int i = 0; i < 3; i++)
                cr_device_free(b.dev, blocks[i], bytes * 2 * MAX_BLOCKS);
            cr_free(want);
            cr_free(got);
            model_bench_close(&b);
        }
}

/* ---- hooks, empty batches, wrong input ---- */

typedef struct trace {
    int depth, num[3];
} trace;

static cr_status on_before(void *ctx, const cr_module *m, cr_phase phase, cr_err *err)
{
    trace *t = ctx;

    (void)m;
    (void)err;
    t->depth++;
    t->num[phase]++;
    return CR_OK;
}

static cr_status on_after(void *ctx, const cr_module *m, cr_phase phase, cr_err *err)
{
    trace *t = ctx;

    (void)m;
    (void)phase;
    (void)err;
    t->depth--;
    return CR_OK;
}

static void hooks_are_balanced_even_without_tokens(void **state)
{
    bench b = bench_open(families[3], CR_F32);
    data d = {0};
    trace t = {0};
    cr_hooks hooks = {on_before, on_after, &t};
    float lp[MAX_TOKENS], ent[MAX_TOKENS], g[MAX_TOKENS] = {0};
    cr_pass p;
    cr_err err = {0};
    int expect = 0;

    (void)state;
    for (int full = 1; full >= 0; full--) {
        data empty = {0};
        if (full)
            add_sequence(&d, 10, 1);
        else
            d = empty, add_sequence(&d, 0, 1);
        p = make_pass(&b, &d, RECOMPUTE);
        p.hooks = &hooks;
        t = (trace){0};
        forward(&b, &p, lp, ent);
        if (cr_model_backward(b.model, &p, &(cr_outputs){{g, NULL}}, &err) != CR_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(t.depth, 0);
        assert_int_equal(t.num[CR_FORWARD], 5 + 2 * 14); /* root, model, embed, norm, lm_head */
        assert_int_equal(t.num[CR_RECOMPUTE], 2 * 13);   /* all of a layer but down_proj */
        assert_int_equal(t.num[CR_BACKWARD], 5 + 2 * 14);
        expect += t.num[CR_BACKWARD];
    }
    assert_int_equal(expect, 2 * 33);
    model_bench_close(&b);
}

static void wrong_ids_are_sentences(void **state)
{
    bench b = bench_open(families[0], CR_F32);
    data d = {0};
    float lp[MAX_TOKENS], ent[MAX_TOKENS];
    cr_outputs out = {{lp, ent}};
    cr_err err = {0};
    cr_pass p;

    (void)state;
    add_sequence(&d, 10, 1);
    d.ids[4] = 70;
    p = make_pass(&b, &d, NOTHING);
    assert_int_equal(cr_model_forward(b.model, &p, &out, &err), CR_EARG);
    assert_non_null(strstr(err.msg, "70"));
    model_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_equals_double),
        cmocka_unit_test(c38_positions_start_anywhere),
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(packing_changes_no_bit),
        cmocka_unit_test(recompute_changes_no_bit),
        cmocka_unit_test(freezing_changes_no_bit),
        cmocka_unit_test(tape_has_the_bytes_of_the_formula),
        cmocka_unit_test(cached_rows_equal_packed_rows),
        cmocka_unit_test(hooks_are_balanced_even_without_tokens),
        cmocka_unit_test(wrong_ids_are_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
