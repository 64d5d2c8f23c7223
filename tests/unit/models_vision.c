/* models_vision.c -- vision towers against Transformers (tests/parity/vision.py): rows, deepstack features,
 * the gradient of every parameter; with weights that are there only between hooks, kept or recomputed;
 * frozen parts, float32 inside a bf16 pass, memory of a plan, and items that do not depend on each other.
 * Not covered: real images, the language model around it, ranks.
 * // also on far
 * // also on cuda, long
 */
#include "models/vision/vision_impl.h"
#include "models/weights.h"
#include "tests/check_near.h"
#include "tests/memory.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FEATURES = 3, MAX_PATCHES = 256, OUT = 12, CASES = 2 };

#define OK(call)                                      \
    do {                                              \
        if ((call) != CR_OK) fail_msg("%s", err.msg); \
    } while (0)

static cr_err err;
static json_t *goldens;

/* As in vision.py. */
static void draws(const char *name, float *x, int64_t num)
{
    uint32_t seed = 2166136261u;

    for (const char *c = name; *c; c++)
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    for (int64_t i = 0; i < num; i++) {
        uint32_t h = (uint32_t)((uint64_t)i * 2654435761u + seed);
        h ^= h >> 16;
        h *= 0x7FEB352Du;
        h ^= h >> 15;
        h *= 0x846CA68Bu;
        h ^= h >> 16;
        x[i] = (float)(h >> 8) / (float)(1 << 23) - 1.0f;
    }
}

typedef struct bench {
    model_bench m;
    cr_module *visual;
    const json_t *golden;
    int32_t grid[4][3];
    float pixels[MAX_PATCHES * 64];
    cr_vision_input in;
    int64_t num_features, num_elems; /* of a feature */
    float out[MAX_FEATURES][MAX_PATCHES / 4 * OUT], grad[MAX_FEATURES][MAX_PATCHES / 4 * OUT];
    int num_open, num_calls; /* modules between hooks, calls */
} bench;

/* Below model.visual. */
static const char *short_name(const cr_param *p)
{
    const char *prefix = "model.visual.";

    return strncmp(p->name, prefix, strlen(prefix)) == 0 ? p->name + strlen(prefix) : NULL;
}

static void fill(const bench *b, cr_param *p)
{
    const char *name = short_name(p), *end = name + strlen(name);
    float *x = CR_NEW_ARRAY(float, p->num_elems);
    float scale = (float)(2 / sqrt((double)(p->num_elems / p->shape[0])));

    draws(name, x, p->num_elems);
    for (int64_t i = 0; i < p->num_elems; i++) {
        if (strcmp(end - 5, ".bias") == 0)
            x[i] *= 0.25f;
        else if (p->num_dims == 1)
            x[i] = 1 + x[i] * 0.25f;
        else if (strcmp(name, "pos_embed.weight") != 0)
            x[i] *= scale;
    }
    model_bench_fill(&b->m, p, x);
    cr_free(x);
}

/* As strategies do: weights are away but between the hooks of their module. An absent weight's `packed`
 * remembers it, which nothing reads. */
static void put_away(const cr_module *m, bool is_away)
{
    for (size_t i = 0; i < m->num_params; i++) {
        cr_param *p = &m->params[i];
        const cr_mem *data = p->weight.data ? p->weight.data : p->weight.packed;
        p->weight.data = is_away ? NULL : data;
        p->weight.packed = is_away ? data : NULL;
    }
}

static cr_status put_all_away(void *ctx, cr_module *m, cr_err *e)
{
    (void)ctx;
    (void)e;
    put_away(m, true);
    return CR_OK;
}

static cr_status before(void *ctx, const cr_module *m, cr_phase phase, cr_err *e)
{
    bench *b = ctx;

    (void)phase;
    (void)e;
    b->num_open++;
    b->num_calls++;
    put_away(m, false);
    return CR_OK;
}

static cr_status after(void *ctx, const cr_module *m, cr_phase phase, cr_err *e)
{
    bench *b = ctx;

    (void)phase;
    (void)e;
    b->num_open--;
    put_away(m, true);
    return CR_OK;
}

static bench *bench_open_on(const char *device, size_t number, cr_dtype dtype, bool is_fp32)
{
    bench *b = CR_NEW(bench);
    const json_t *config, *grids;
    char *text, name[24];

    b->golden = json_array_get(json_object_get(goldens, "cases"), number);
    config = json_object_get(b->golden, "config");
    grids = json_object_get(b->golden, "grids");
    text = json_dumps(config, 0);
    OK(build_model(text, &b->m.model, &err));
    free(text);
    b->visual = cr_model_find_module(b->m.model, "model.visual");
    if (is_fp32) cr_module_set_fp32(b->visual);
    OK(cr_device_open(device, 1, &b->m.dev, &err));
    OK(cr_full_weights_init(&b->m.full, b->m.model, b->m.dev, dtype, NULL, 11, &err));
    OK(cr_full_weights_add_grads(&b->m.full, b->m.model, &err));
    b->m.tape = cr_stack_create(b->m.dev);
    b->m.scratch = cr_stack_create(b->m.dev);
    b->m.state = cr_pass_state_create();
    for (size_t i = 0; i < b->m.model->num_params; i++)
        if (short_name(b->m.model->params[i])) fill(b, b->m.model->params[i]);
    b->in = (cr_vision_input){.pixels = b->pixels,
                              .grid = (const int32_t(*)[3])b->grid,
                              .num_items = (int64_t)json_array_size(grids)};
    for (int64_t i = 0; i < b->in.num_items; i++) {
        for (size_t k = 0; k < 3; k++)
            b->grid[i][k] =
                (int32_t)json_integer_value(json_array_get(json_array_get(grids, (size_t)i), k));
        b->in.num_patches += b->grid[i][0] * b->grid[i][1] * b->grid[i][2];
    }
    draws("pixels", b->pixels, b->in.num_patches * b->m.model->config.vision->patch_dim);
    b->num_features = 1 + b->m.model->config.vision->num_deepstack;
    b->num_elems = b->in.num_patches / 4 * OUT;
    for (int64_t i = 0; i < b->num_features; i++) {
        snprintf(name, sizeof name, "grad%d", (int)i);
        draws(name, b->grad[i], b->num_elems);
    }
    return b;
}

static bench *bench_open(size_t number, cr_dtype dtype, bool is_fp32)
{
    return bench_open_on(cr_device_default(), number, dtype, is_fp32);
}

static void bench_close(bench *b)
{
    model_bench_close(&b->m);
    cr_free(b);
}

/* Forward, and backward if it is_back, in the dtype of the pass; features and their gradients stay float32
 * in the bench. */
static void run(bench *b, cr_dtype dtype, bool is_back, bool should_recompute)
{
    const cr_hooks hooks = {before, after, b};
    cr_pass p = {.state = b->m.state,
                 .dev = b->m.dev,
                 .dtype = dtype,
                 .tape = is_back ? b->m.tape : NULL,
                 .scratch = b->m.scratch,
                 .hooks = &hooks,
                 .should_recompute = should_recompute};
    cr_mem *out[MAX_FEATURES], *grad[MAX_FEATURES];
    size_t num = (size_t)b->num_elems;

    cr_model_mark_trainable(b->m.model);
    OK(cr_pass_begin(b->m.model, &p, &err));
    OK(cr_module_walk(b->visual, put_all_away, NULL, &err));
    OK(cr_zero(b->m.dev, b->m.full.grad, b->m.full.grad_bytes, &err));
    for (int64_t i = 0; i < b->num_features; i++) {
        OK(cr_device_alloc(b->m.dev, num * 4, &out[i], &err));
        OK(cr_device_alloc(b->m.dev, num * 4, &grad[i], &err));
        OK(cr_cast(
            b->m.dev,
            &(cr_cast_args){dtype, grad[i], CR_F32, to_device(b->m.dev, b->grad[i], num * 4), num},
            &err));
    }
    OK(cri_vision_forward(b->visual, &p, &b->in, out[0], out + 1, &err));
    for (int64_t i = 0; i < b->num_features; i++)
        OK(cr_cast(
            b->m.dev,
            &(cr_cast_args){CR_F32, to_device(b->m.dev, b->out[i], num * 4), dtype, out[i], num},
            &err));
    p.phase = CR_BACKWARD;
    if (is_back) OK(cri_vision_backward(b->visual, &p, &b->in, grad[0], grad + 1, &err));
    cr_stack_release(b->m.tape, 0);
    to_host();
    assert_int_equal(cr_stack_mark(b->m.scratch), 0);
    assert_int_equal(b->num_open, 0);
    assert_int_equal(p.state->frames.num_bytes, 0);
    for (int64_t i = 0; i < b->num_features; i++) {
        cr_device_free(b->m.dev, out[i], num * 4);
        cr_device_free(b->m.dev, grad[i], num * 4);
    }
}

/* Both sides sum up to a hundred products in float32 in each of 20 steps: 20 sqrt(100) 2^-24 = 1.2e-5 of rows
 * of size 1 to 3 if all went one way, and a third of that of the norm of a gradient (measured: 3e-6, 1.2e-6). */
static void check_features(const bench *b)
{
    const json_t *features = json_object_get(b->golden, "features");

    assert_int_equal(json_array_size(features), b->num_features);
    for (int64_t i = 0; i < b->num_features; i++) {
        const json_t *want = json_array_get(features, (size_t)i);
        assert_int_equal(json_array_size(want), b->num_elems);
        for (int64_t k = 0; k < b->num_elems; k++)
            check_near(b->out[i][k], json_real_value(json_array_get(want, (size_t)k)), 1e-5);
    }
}

static void check_grads(const bench *b)
{
    const json_t *grads = json_object_get(b->golden, "grads");
    float *all = model_bench_grads(&b->m);
    size_t num = 0;

    for (size_t i = 0; i < b->m.model->num_params; i++) {
        const cr_param *p = b->m.model->params[i];
        const char *name = short_name(p);
        const json_t *want;
        const float *grad = in_copy(all, b->m.full.grad, p->grad);
        double norm = 0, dot = 0, sum = 0, of_norm, of_dot;
        char dot_name[100];
        float *x;
        if (!name) continue;
        num++;
        want = json_object_get(grads, name);
        if (!want) fail_msg("no gradient of %s", name);
        of_norm = json_real_value(json_array_get(want, 0));
        of_dot = json_real_value(json_array_get(want, 1));
        x = CR_NEW_ARRAY(float, p->num_elems);
        snprintf(dot_name, sizeof dot_name, "dot.%s", name);
        draws(dot_name, x, p->num_elems);
        for (int64_t k = 0; k < p->num_elems; k++) {
            norm += (double)grad[k] * (double)grad[k];
            dot += (double)grad[k] * (double)x[k];
            sum += (double)x[k] * (double)x[k];
        }
        cr_free(x);
        if (fabs(dot - of_dot) > 4e-6 * of_norm * sqrt(sum)) print_error("%s\n", p->name);
        check_near(sqrt(norm), of_norm, 4e-6 * of_norm);
        check_near(dot, of_dot, 4e-6 * of_norm * sqrt(sum));
    }
    cr_free(all);
    assert_int_equal(num, json_object_size(grads));
}

static void towers_are_those_of_transformers(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++) {
        bench *b = bench_open(c, CR_F32, false);
        float *grad, *again;
        run(b, CR_F32, false, false);
        check_features(b);
        run(b, CR_F32, true, false);
        check_features(b);
        check_grads(b);
        grad = model_bench_grads(&b->m);
        run(b, CR_F32, true, true); /* recomputed: the same bits */
        check_features(b);
        again = model_bench_grads(&b->m);
        assert_memory_equal(again, grad, b->m.full.grad_bytes);
        cr_free(again);
        cr_free(grad);
        bench_close(b);
    }
}

/* Rows of an item that is alone are those that it has in company, in every dtype. */
static void items_do_not_depend_on_each_other(void **state)
{
    static const cr_dtype dtypes[] = {CR_F32, CR_BF16};

    (void)state;
    for (size_t c = 0; c < CASES; c++)
        for (size_t t = 0; t < CR_COUNT(dtypes); t++) {
            bench *b = bench_open(c, dtypes[t], false);
            int64_t cols = b->m.model->config.vision->patch_dim, first = 0,
                    num_items = b->in.num_items;
            float out[MAX_FEATURES][MAX_PATCHES / 4 * OUT];
            run(b, dtypes[t], false, false);
            memcpy(out, b->out, sizeof out);
            for (int64_t i = 0; i < num_items; i++) {
                int64_t num = b->grid[i][0] * b->grid[i][1] * b->grid[i][2];
                b->in.grid = (const int32_t(*)[3])b->grid + i;
                b->in.pixels = b->pixels + first * cols;
                b->in.num_items = 1;
                b->in.num_patches = num;
                b->num_elems = num / 4 * OUT;
                run(b, dtypes[t], false, false);
                for (int64_t k = 0; k < b->num_features; k++)
                    assert_memory_equal(b->out[k], out[k] + first / 4 * OUT,
                                        (size_t)b->num_elems * 4);
                first += num;
            }
            bench_close(b);
        }
}

/* Train the parameters whose name begins with it (NULL: none); their gradients are as if all were trained. */
static void check_frozen(size_t number, const char *trained, bool should_recompute)
{
    bench *b = bench_open(number, CR_F32, false);
    float *all_grads, *now;
    size_t num = 0;
    int all;

    run(b, CR_F32, true, should_recompute);
    all = b->num_calls;
    all_grads = model_bench_grads(&b->m);
    for (size_t i = 0; i < b->m.model->num_params; i++) {
        cr_param *p = b->m.model->params[i];
        const char *name = short_name(p);
        p->is_trainable = name && trained && strncmp(name, trained, strlen(trained)) == 0;
        num += p->is_trainable;
    }
    assert_int_equal(num > 0, trained != NULL);
    b->num_calls = 0;
    run(b, CR_F32, true, should_recompute);
    check_features(b);
    now = model_bench_grads(&b->m);
    for (size_t i = 0; i < b->m.model->num_params; i++) {
        const cr_param *p = b->m.model->params[i];
        const float *want = in_copy(all_grads, b->m.full.grad, p->grad),
                    *got = in_copy(now, b->m.full.grad, p->grad);
        for (int64_t k = 0; k < p->num_elems; k++)
            if (got[k] != (p->is_trainable ? want[k] : 0)) fail_msg("%s", p->name);
    }
    if (!trained) { /* hooks of one forward */
        int calls = b->num_calls;
        b->num_calls = 0;
        run(b, CR_F32, false, false);
        assert_int_equal(calls, b->num_calls);
        assert_true(calls < all);
    }
    cr_free(now);
    cr_free(all_grads);
    bench_close(b);
}

static void frozen_parts(void **state)
{
    static const char *const trained[] = {
        NULL,           "patch_embed.",        "blocks.0.norm1.weight", "blocks.1.attn.qkv.bias",
        "blocks.1.mlp", "blocks.2.norm2",      "blocks.2.attn.proj.",   "merger.",
        "merger.mlp.2", "merger.linear_fc1.b",
    };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(trained); i++)
        for (size_t c = 0; c < CASES; c++) {
            if (trained[i] && strcmp(trained[i], "merger.mlp.2") == 0 && c == 1) continue;
            if (trained[i] && strcmp(trained[i], "merger.linear_fc1.b") == 0 && c == 0) continue;
            check_frozen(c, trained[i], false);
            check_frozen(c, trained[i], true);
        }
    check_frozen(1, "pos_embed.", false);
    check_frozen(1, "deepstack_merger_list.0.norm", false); /* no block has a gradient */
    check_frozen(1, "deepstack_merger_list.1.linear_fc2", true);
}

/* A float32 tower in a bf16 pass: rows are those of float32, rounded; gradients those of rounded rows. */
static void float32_inside_halves(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++) {
        bench *wide = bench_open(c, CR_F32, false), *b = bench_open(c, CR_BF16, true);
        float *grads[2];
        for (int64_t i = 0; i < b->num_features; i++)
            for (int64_t k = 0; k < b->num_elems; k++) {
                uint16_t half;
                cr_cast_host(CR_BF16, &half, CR_F32, &wide->grad[i][k], 1);
                cr_cast_host(CR_F32, &wide->grad[i][k], CR_BF16, &half, 1);
            }
        run(wide, CR_F32, true, false);
        run(b, CR_BF16, true, false);
        for (int64_t i = 0; i < b->num_features; i++)
            for (int64_t k = 0; k < b->num_elems; k++) {
                uint16_t half;
                float x;
                cr_cast_host(CR_BF16, &half, CR_F32, &wide->out[i][k], 1);
                cr_cast_host(CR_F32, &x, CR_BF16, &half, 1);
                assert_true(b->out[i][k] == x);
            }
        grads[0] = model_bench_grads(&b->m);
        grads[1] = model_bench_grads(&wide->m);
        assert_memory_equal(grads[0], grads[1], b->m.full.grad_bytes);
        cr_free(grads[0]);
        cr_free(grads[1]);
        bench_close(wide);
        bench_close(b);
    }
}

/* bf16 throughout: rows of size 1 within a few of its steps (2^-8 each, 20 of them added by chance). */
static void halves_are_near(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++) {
        bench *wide = bench_open(c, CR_F32, false), *b = bench_open(c, CR_BF16, false);
        double far = 0, size = 0, grad_far = 0, grad_size = 0;
        float *grads[2];
        run(wide, CR_F32, true, false);
        run(b, CR_BF16, true, false);
        for (int64_t i = 0; i < b->num_features; i++)
            for (int64_t k = 0; k < b->num_elems; k++) {
                far += pow((double)b->out[i][k] - (double)wide->out[i][k], 2);
                size += pow((double)wide->out[i][k], 2);
            }
        grads[0] = model_bench_grads(&b->m);
        grads[1] = model_bench_grads(&wide->m);
        for (size_t k = 0; k < b->m.full.grad_bytes / 4; k++) {
            grad_far += pow((double)grads[0][k] - (double)grads[1][k], 2);
            grad_size += pow((double)grads[1][k], 2);
        }
        cr_free(grads[0]);
        cr_free(grads[1]);
        check_near(sqrt(far / size), 0, 0.03);
        check_near(sqrt(grad_far / grad_size), 0, 0.05);
        bench_close(wide);
        bench_close(b);
    }
}

/* The plan's device takes as much of both stacks, and counts as many operations. */
static void a_plan_takes_the_same_memory(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++)
        for (int is_fp32 = 0; is_fp32 < 2; is_fp32++)
            for (int again = 0; again < 2; again++) {
                bench *b = bench_open(c, CR_BF16, is_fp32),
                      *plan = bench_open_on("meta", c, CR_BF16, is_fp32);
                run(b, CR_BF16, true, again);
                run(plan, CR_BF16, true, again);
                assert_int_equal(cr_stack_peak_bytes(b->m.tape), cr_stack_peak_bytes(plan->m.tape));
                assert_int_equal(cr_stack_peak_bytes(b->m.scratch),
                                 cr_stack_peak_bytes(plan->m.scratch));
                assert_true(cr_stack_peak_bytes(b->m.tape) > 0);
                assert_true(cr_device_get_stats(b->m.dev).flops ==
                            cr_device_get_stats(plan->m.dev).flops);
                bench_close(b);
                bench_close(plan);
            }
}

static void grids_are_checked(void **state)
{
    static const int32_t bad[][3] = {{1, 3, 4},   {1, 4, 5}, {0, 4, 4},
                                     {1, -2, -8}, {1, 4, 6}, {INT32_MAX, 2, 2}};
    bench *b = bench_open(0, CR_F32, false);
    cr_pass p = {.state = b->m.state, .dev = b->m.dev, .dtype = CR_F32, .scratch = b->m.scratch};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        memcpy(b->grid[0], bad[i], sizeof bad[i]);
        b->in.num_items = 1;
        b->in.num_patches = 16;
        assert_int_equal(cri_vision_forward(b->visual, &p, &b->in, MEM(b->out[0]), NULL, &err),
                         CR_EARG);
        err = (cr_err){0};
    }
    bench_close(b);
}

static int read_goldens(void **state)
{
    (void)state;
    return cr_json_read_file("tests/parity/vision.json", &goldens, &err) == CR_OK ? 0 : -1;
}

static int drop_goldens(void **state)
{
    (void)state;
    json_decref(goldens);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(towers_are_those_of_transformers),
        cmocka_unit_test(items_do_not_depend_on_each_other),
        cmocka_unit_test(frozen_parts),
        cmocka_unit_test(float32_inside_halves),
        cmocka_unit_test(halves_are_near),
        cmocka_unit_test(a_plan_takes_the_same_memory),
        cmocka_unit_test(grids_are_checked),
    };
    return cmocka_run_group_tests(tests, read_goldens, drop_goldens);
}
