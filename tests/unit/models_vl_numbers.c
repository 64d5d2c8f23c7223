/* models_vl_numbers.c -- vision-language models: position ids, log-probs and the gradient of every parameter against
 * those of Transformers (vision_models.json, by tests/parity/vision_models.py); batches that must be refused;
 * experts that a checkpoint has in one tensor. Their trees: models_vl.c.
 * // also on cuda, long
 */
#include "models/files/safetensors.h"
#include "models/vision/vision.h"
#include "strategies/units.h"
#include "tests/golden_vision.h"
#include "tests/memory.h"
#include "tests/vl_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- numbers ---- */

enum { MAX_ITEMS = 8 };

typedef struct inputs {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu[8],
        mrope[3 * MAX_TOKENS], grid[MAX_ITEMS][3];
    float second[MAX_ITEMS];
    float *pixels;
    cr_batch batch;
    cr_vision_input vision;
} inputs;

static int32_t whole(const json_t *array, size_t at)
{
    return (int32_t)json_integer_value(json_array_get(array, at));
}

static void read_items(const json_t *c, int64_t patch_dim, inputs *in)
{
    const json_t *items = json_object_get(c, "items"), *entry;
    size_t at;

    json_array_foreach(items, at, entry)
    {
        for (size_t k = 0; k < 3; k++)
            in->grid[at][k] = whole(entry, k + 1);
        if (whole(entry, 0))
            in->second[at] =
                (float)json_number_value(json_array_get(json_object_get(c, "second_per_grid"), at));
        in->vision.num_patches += (int64_t)in->grid[at][0] * in->grid[at][1] * in->grid[at][2];
    }
    in->vision.grid = (const int32_t(*)[3])in->grid;
    in->vision.second_per_grid = in->second;
    in->vision.num_items = (int64_t)json_array_size(items);
    in->vision.pixels = in->pixels =
        CR_NEW_ARRAY(float, (size_t)(in->vision.num_patches * patch_dim + 1));
    for (int64_t i = 0, row = 0; i < in->vision.num_items; i++) {
        int64_t rows = (int64_t)in->grid[i][0] * in->grid[i][1] * in->grid[i][2];
        char name[40];
        snprintf(name, sizeof name, "pixels %lld", (long long)i);
        for (int64_t e = 0; e < rows * patch_dim; e++)
            in->pixels[row * patch_dim + e] = (cr_float32)noise(name, "", e);
        row += rows;
    }
}

static void read_inputs(const json_t *c, int64_t patch_dim, inputs *in)
{
    const json_t *seqs = json_object_get(c, "ids"), *seq, *places = json_object_get(c, "mrope");
    int64_t num = 0, at = 0;
    size_t s;

    *in = (inputs){0};
    json_array_foreach(seqs, s, seq) num += (int64_t)json_array_size(seq);
    assert_true(num <= MAX_TOKENS);
    json_array_foreach(seqs, s, seq)
    {
        size_t n = json_array_size(seq);
        for (size_t t = 0; t < n; t++, at++) {
            in->ids[at] = whole(seq, t);
            in->positions[at] = (int32_t)t;
            in->labels[at] = t + 1 < n ? whole(seq, t + 1) : -1;
            for (size_t axis = 0; axis < 3; axis++)
                in->mrope[(int64_t)axis * num + at] =
                    whole(json_array_get(json_array_get(places, s), axis), t);
        }
        in->cu[s + 1] = (int32_t)at;
    }
    in->batch = (cr_batch){.ids = in->ids,
                           .positions = in->positions,
                           .labels = in->labels,
                           .cu_seqlens = in->cu,
                           .num_tokens = num,
                           .num_seqs = (int64_t)s};
    read_items(c, patch_dim, in);
}

static void check_case(const json_t *c, const way *w)
{
    cr_err err = {0};
    cr_model *model;
    model_bench b;
    inputs in;

    must(build_model(config_of(json_string_value(json_object_get(c, "family"))), &model, &err),
         &err);
    open_bench(model, cr_model_find_module(model, "model.visual"), w, &b);
    read_inputs(c, model->config.vision->patch_dim, &in);
    in.batch.mrope = in.mrope;
    if (in.vision.num_items) in.batch.vision = &in.vision;
    if (w->is_idle) in.batch.vision = cr_vision_idle(model);
    check_bench(c, w, &b, &in.batch);
    cr_free(in.pixels);
}

static void change(inputs *in, int kind)
{
    int64_t first = 0;

    while (in->ids[first] != 90)
        first++;
    switch (kind) {
    case 0:
        in->ids[first] = 5;
        break;
    case 1:
        in->ids[in->batch.num_tokens - 1] = 90;
        break;
    case 2:
        in->grid[0][1] += 2, in->vision.num_patches += 2 * in->grid[0][2];
        break;
    case 3:
        in->grid[0][2]++;
        break;
    case 4:
        in->vision.num_patches--;
        break;
    case 5:
        in->second[0] = 1;
        break;
    case 6:
        in->vision.num_items--, in->vision.num_patches -= 8;
        break;
    case 7:
        in->grid[2][0] = 0;
        break;
    default: /* the sequence of the video ends too early */
        in->cu[2] = in->cu[1] + 12;
    }
}

/* Positions of Transformers, and what does not fit. */
static void c38_positions_of_items(void **state)
{
    static const char *const sentences[] = {
        "item 0 (1 x 6 x 10 patches) needs 15 placeholders from token 9 on, 14 are there",
        "is a placeholder, but the batch has only 3",
        "item 0 (1 x 8 x 10 patches) needs 20 placeholders from token 8 on, 15 are there",
        "item 0 has a grid of 1 x 6 x 11 patches",
        "3 items have 116 patches by their grids, 115 are given",
        "token 8 is a placeholder of an image, but item 0 is a video",
        "has only 2",
        "item 2 has a grid of 0 x 4 x 2",
        "item 1"};
    json_t *all = NULL, *c;
    cr_err err = {0};
    size_t at;
    int num = 0;

    (void)state;
    if (cr_json_read_file("tests/parity/vision_models.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    json_array_foreach(all, at, c)
    {
        const char *family = json_string_value(json_object_get(c, "family"));
        cr_model *model = must_build(config_of(family));
        int32_t mrope[3 * MAX_TOKENS];
        inputs in;
        if (json_array_size(json_object_get(c, "items")) == 0) {
            cr_model_free(model);
            continue;
        }
        num++;
        read_inputs(c, model->config.vision->patch_dim, &in);
        if (cr_vision_positions(&model->config, &in.batch, &in.vision, mrope, &err) != CR_OK)
            fail_msg("%s", err.msg);
        assert_memory_equal(mrope, in.mrope, 3 * (size_t)in.batch.num_tokens * sizeof *mrope);
        cr_free(in.pixels);
        for (int k = 0; k < (int)CR_COUNT(sentences); k++) {
            err = (cr_err){0};
            read_inputs(c, model->config.vision->patch_dim, &in);
            change(&in, k);
            if (cr_vision_positions(&model->config, &in.batch, &in.vision, mrope, &err) == CR_OK)
                fail_msg("accepted: %s", sentences[k]);
            if (!strstr(err.msg, sentences[k])) fail_msg("%s, case %d: %s", family, k, err.msg);
            cr_free(in.pixels);
        }
        err = (cr_err){0};
        cr_model_free(model);
    }
    assert_int_equal(num, 3);
    json_decref(all);
}

/* Packed sequences with and without images: whole, recomputed and in tiles, by stages, with a tower that
 * runs for nothing, in bfloat16 with a tower in either precision. */
static void numbers_of_transformers(void **state)
{
    static const way ways[] = {
        {.pass = {.dtype = CR_F32}},
        {.pass = {.dtype = CR_F32, .should_recompute = true, .mlp_tiles = 3}},
        {.pass = {.dtype = CR_F32}, .stage = "align"},
        {.pass = {.dtype = CR_F32, .should_recompute = true}, .stage = "finetune"},
        {.pass = {.dtype = CR_F32}, .stage = "last-layer-finetune"},
        {.pass = {.dtype = CR_F32}, .stage = "vla-sandwich-train"},
        {.pass = {.dtype = CR_BF16}},
        {.pass = {.dtype = CR_BF16, .should_recompute = true}, .has_fp32_tower = true},
    };
    static const way idle[] = {
        {.pass = {.dtype = CR_F32}, .is_idle = true},
        {.pass = {.dtype = CR_F32}, .is_idle = true, .stage = "vla-sandwich-train"},
    };
    json_t *all = NULL, *c;
    cr_err err = {0};
    size_t at;

    (void)state;
    must(cr_json_read_file("tests/parity/vision_models.json", &all, &err), &err);
    json_array_foreach(all, at, c)
    {
        bool has_images = json_array_size(json_object_get(c, "items")) > 0;
        for (size_t i = 0; i < CR_COUNT(ways); i++)
            if (is_computed(ways[i].pass.dtype)) check_case(c, &ways[i]);
        for (size_t i = 0; i < CR_COUNT(idle) && !has_images; i++)
            check_case(c, &idle[i]);
    }
    json_decref(all);
}

/* What a forward refuses before it runs anything. */
static void wrong_batches(void **state)
{
    static const char text_model[] = "{\"model_type\":\"qwen3\",\"head_dim\":16,"
                                     "\"num_hidden_layers\":2," TEXT_KEYS "}";
    static const char *const sentences[] = {
        "a batch with images needs positions",  "item 1 of 4 has no placeholders",
        "a pass over the cache takes features", "stands at position -3 of axis h",
        "a qwen3 has no vision tower",          "but a qwen3 has one axis"};
    json_t *all = NULL;
    cr_err err = {0};

    (void)state;
    must(cr_json_read_file("tests/parity/vision_models.json", &all, &err), &err);
    for (int i = 0; i < (int)CR_COUNT(sentences); i++) {
        float log_prob[MAX_TOKENS];
        cr_outputs out = {{log_prob, NULL}};
        cr_kv_view kv = {0};
        cr_pass pass = {.dtype = CR_F32};
        model_bench b;
        inputs in;
        must(model_bench_open(&b, i < 4 ? qwen2_5_vl : text_model, CR_F32, &err), &err);
        read_inputs(json_array_get(all, 1), 96, &in);
        in.batch.vision = i == 5 ? NULL : &in.vision;
        in.batch.mrope = i == 0 || i == 4 ? NULL : in.mrope;
        pass.state = b.state;
        pass.dev = b.dev;
        pass.scratch = b.scratch;
        pass.batch = &in.batch;
        if (i == 1) {
            in.vision.num_items = 4;
            in.batch.num_tokens = in.cu[1];
            in.batch.num_seqs = 1;
            memcpy(in.grid[3], in.grid[2], sizeof in.grid[3]);
            in.vision.num_patches += 8;
        }
        if (i == 2) pass.kv = &kv;
        if (i == 3) in.mrope[in.batch.num_tokens + 1] = -3;
        if (cr_model_forward(b.model, &pass, &out, &err) == CR_OK)
            fail_msg("accepted: %s", sentences[i]);
        if (!strstr(err.msg, sentences[i])) fail_msg("case %d: %s", i, err.msg);
        err = (cr_err){0};
        cr_free(in.pixels);
        model_bench_close(&b);
    }
    json_decref(all);
}

/* ---- experts in one tensor ---- */

/* gate_up_proj and down_proj, or any other tensor: elements of p at their places. hub: as param->stacked. */
static void put_values(cr_tensor_writer *writer, size_t index, const cr_model *model,
                       const cr_param *p, bool is_hub)
{
    float *values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
    int64_t first = 0;
    cr_err err = {0};

    cr_param_init(model, p, 3, 0, p->num_elems, values);
    if (p->stacked && !is_hub) { /* gate above up */
        int64_t expert = p->stacked->shape[1] * p->stacked->shape[2];
        first = p->stacked->first / expert * expert;
        if (p->stacked->first > first) first += p->num_elems;
    }
    for (int64_t col = 0; p->stacked && is_hub && col < p->shape[1]; col++)
        for (int64_t row = 0; row < p->shape[0]; row++) {
            int64_t at = p->stacked->first + col * p->stacked->shape[2] + row;
            must(cr_tensor_writer_put(writer, index, at, at + 1, &values[row * p->shape[1] + col],
                                      &err),
                 &err);
        }
    if (!p->stacked || !is_hub)
        must(cr_tensor_writer_put(writer, index, first, first + p->num_elems, values, &err), &err);
    cr_free(values);
}

static void write_checkpoint(const char *path, const cr_model *model, bool is_hub)
{
    cr_tensor_spec *specs = CR_NEW_ARRAY(cr_tensor_spec, model->num_params);
    size_t *index = CR_NEW_ARRAY(size_t, model->num_params), num = 0;
    cr_tensor_writer *writer;
    cr_err err = {0};

    for (size_t i = 0; i < model->num_params; i++) {
        const cr_param *p = model->params[i];
        const int64_t *shape = p->stacked ? p->stacked->shape : p->shape;
        const char *name = p->stacked ? p->stacked->tensor : p->file_name;
        index[i] = 0;
        while (index[i] < num && strcmp(specs[index[i]].name, name) != 0)
            index[i]++;
        if (index[i] < num) continue;
        specs[num] = (cr_tensor_spec){
            .name = name, .dtype = CR_F32, .num_dims = p->stacked ? 3 : p->num_dims};
        memcpy(specs[num].shape, shape, (size_t)specs[num].num_dims * sizeof *shape);
        if (p->stacked && !is_hub) {
            specs[num].shape[1] = shape[2];
            specs[num].shape[2] = shape[1];
        }
        num++;
    }
    must(cr_tensor_writer_open(path, specs, num, &writer, &err), &err);
    for (size_t i = 0; i < model->num_params; i++)
        put_values(writer, index[i], model, model->params[i], is_hub);
    must(cr_tensor_writer_close(writer, &err), &err);
    cr_free(specs);
    cr_free(index);
}

/* Files as on the hub and as Transformers 5 may keep them, also where a tensor's shape does not show
 * (h = 2 m, h = m); every range of elements. */
static void c41_stacked_experts(void **state)
{
    static const int widths[] = {24, 16, 32, 20};
    char folder[] = "/tmp/croll_vl_XXXXXX";
    char *path;

    (void)state;
    assert_non_null(mkdtemp(folder));
    path = cr_path_join(folder, "model.safetensors");
    for (size_t i = 0; i < 2 * CR_COUNT(widths); i++) {
        char text[900];
        float want[64 * 64], got[64 * 64];
        cr_weights *weights;
        cr_model *model;
        cr_err err = {0};
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen3_vl_moe\"," IDS ",\"text_config\":{\"vocab_size\":97,"
                 "\"hidden_size\":32,\"intermediate_size\":8,\"num_attention_heads\":2,"
                 "\"num_key_value_heads\":2,\"num_hidden_layers\":1,\"head_dim\":16,"
                 "\"num_experts\":3,\"num_experts_per_tok\":2,\"moe_intermediate_size\":%d,"
                 "\"rope_parameters\":{\"mrope_section\":[4,2,2]}},\"vision_config\":{"
                 "\"depth\":1,\"hidden_size\":8,\"intermediate_size\":8,\"num_heads\":1,"
                 "\"out_hidden_size\":32,\"num_position_embeddings\":4,\"patch_size\":2,"
                 "\"deepstack_visual_indexes\":[]}}",
                 widths[i / 2]);
        model = must_build(text);
        write_checkpoint(path, model, i % 2 == 0);
        must(cr_weights_open(folder, model, &weights, &err), &err);
        for (size_t k = 0; k < model->num_params; k++) {
            const cr_param *p = model->params[k];
            int64_t half = p->num_elems * 2 / 5;
            if (p->num_elems > (int64_t)CR_COUNT(got)) continue;
            cr_param_init(model, p, 3, 0, p->num_elems, want);
            for (int64_t e = 0; e < half; e++)
                got[e] = -7;
            must(cr_weights_read(weights, p, half, p->num_elems, got + half, &err), &err);
            for (int64_t e = 0; e < half; e++)
                assert_true(got[e] == -7);
            must(cr_weights_read(weights, p, 0, half, got, &err), &err);
            if (memcmp(got, want, (size_t)p->num_elems * sizeof *got) != 0)
                fail_msg("width %d, hub %d: %s", widths[i / 2], i % 2 == 0, p->name);
        }
        cr_weights_close(weights);
        cr_model_free(model);
    }
    remove(path);
    rmdir(folder);
    cr_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c38_positions_of_items),
        cmocka_unit_test(c41_stacked_experts),
        cmocka_unit_test(wrong_batches),
        cmocka_unit_test(numbers_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
