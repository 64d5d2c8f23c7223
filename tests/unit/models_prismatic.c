/* models_prismatic.c -- Prismatic models: log-probs and the gradient of every parameter against a module tree in PyTorch
 * (prismatic.json, by tests/parity/prismatic.py), rows with an image and without; stages: exactly which tensors train;
 * the units of its own wrap policy; an image in a sequence; batches and config.json that must be refused.
 * Not covered: how pixels come from files.
 * // also on cuda, long
 */
#include "images/reader.h"
#include "models/vision/vision.h"
#include "strategies/units.h"
#include "tests/golden_vision.h"
#include "tests/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_ROWS = 8 };

static json_t *cases;

typedef struct inputs {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], labels[MAX_TOKENS], cu[MAX_ROWS + 1],
        grid[MAX_ROWS][3];
    float *pixels;
    cr_batch batch;
    cr_vision_input vision;
} inputs;

static int32_t whole(const json_t *array, size_t at)
{
    return (int32_t)json_integer_value(json_array_get(array, at));
}

static void add_row(const cr_model_config *config, const json_t *ids, bool has_image, inputs *in)
{
    int32_t row[MAX_TOKENS], labels[MAX_TOKENS], first = in->cu[in->batch.num_seqs],
                                                 num = (int32_t)json_array_size(ids);

    for (int32_t t = 0; t < num; t++) {
        row[t] = whole(ids, (size_t)t);
        labels[t] = t + 1 < num ? whole(ids, (size_t)t + 1) : -1;
    }
    if (has_image) {
        int32_t side = (int32_t)config->vision->vit[0].side,
                *grid = in->grid[in->vision.num_items++];
        cr_image_insert(config->vision->image_id, side * side, row, labels, num, in->ids + first,
                        in->labels + first);
        num += side * side;
        in->vision.num_patches += side * side;
        grid[0] = 1, grid[1] = side, grid[2] = side;
    } else {
        memcpy(in->ids + first, row, (size_t)num * sizeof *row);
        memcpy(in->labels + first, labels, (size_t)num * sizeof *row);
    }
    for (int32_t t = 0; t < num; t++)
        in->positions[first + t] = t;
    in->cu[++in->batch.num_seqs] = first + num;
}

static void read_inputs(const json_t *c, const cr_model *model, inputs *in)
{
    const json_t *rows = json_object_get(c, "batch"), *row;
    int64_t each, cols = model->config.vision->patch_dim;
    size_t at;

    *in = (inputs){0};
    json_array_foreach(rows, at, row)
        add_row(&model->config, json_array_get(row, 0), whole(row, 1) != 0, in);
    in->batch.ids = in->ids;
    in->batch.positions = in->positions;
    in->batch.labels = in->labels;
    in->batch.cu_seqlens = in->cu;
    in->batch.num_tokens = in->cu[in->batch.num_seqs];
    in->pixels = CR_NEW_ARRAY(float, (size_t)(in->vision.num_patches * cols + 1));
    each = in->vision.num_items ? in->vision.num_patches / in->vision.num_items * cols : 0;
    for (int64_t i = 0; i < in->vision.num_items; i++) {
        char name[40];
        snprintf(name, sizeof name, "pixels %lld", (long long)i);
        for (int64_t e = 0; e < each; e++)
            in->pixels[i * each + e] = (cr_float32)noise(name, "", e);
    }
    in->vision.pixels = in->pixels;
    in->vision.grid = (const int32_t(*)[3])in->grid;
    in->batch.vision = &in->vision;
}

static json_t *model_json(const char *name)
{
    const json_t *c;
    size_t at;

    json_array_foreach(cases, at,
                       c) if (strcmp(json_string_value(json_object_get(c, "name")), name) ==
                              0) return json_deep_copy(json_object_get(c, "config"));
    fail_msg("no case %s", name);
    return NULL;
}

static cr_model *must_build(const json_t *config)
{
    cr_err err = {0};
    cr_model *model;

    must(cr_model_build(config, NULL, &model, &err), &err);
    return model;
}

static void check_case(const json_t *c, const way *w)
{
    cr_model *model = must_build(json_object_get(c, "config"));
    model_bench b;
    inputs in;

    assert_int_equal(model->num_params, json_object_size(json_object_get(c, "grad")));
    open_bench(model, model->tower, w, &b);
    read_inputs(c, model, &in);
    check_bench(c, w, &b, &in.batch);
    cr_free(in.pixels);
}

static void numbers_of_pytorch(void **state)
{
    static const way ways[] = {
        {.pass = {.dtype = CR_F32}},
        {.pass = {.dtype = CR_F32, .should_recompute = true}},
        {.pass = {.dtype = CR_F32}, .stage = "align"},
        {.pass = {.dtype = CR_F32}, .stage = "finetune"},
        {.pass = {.dtype = CR_F32}, .stage = "last-layer-finetune"},
        {.pass = {.dtype = CR_F32, .should_recompute = true}, .stage = "vla-sandwich-train"},
        {.pass = {.dtype = CR_BF16}},
        {.pass = {.dtype = CR_BF16}, .has_fp32_tower = true},
    };
    const json_t *c;
    size_t at;

    (void)state;
    json_array_foreach(cases, at, c) for (size_t i = 0; i < CR_COUNT(ways);
                                          i++) if (is_computed(ways[i].pass.dtype))
        check_case(c, &ways[i]);
}

/* Names and shapes of parameters are those of the port; the last block and the last norm of a tower are not there, and those of
 * a checkpoint are left alone. */
static void names_of_the_port(void **state)
{
    const json_t *c, *name;
    size_t at, k;

    (void)state;
    json_array_foreach(cases, at, c)
    {
        cr_model *model = must_build(json_object_get(c, "config"));
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *p = model->params[i];
            const json_t *shape = json_object_get(json_object_get(c, "shape"), p->name);
            if ((int)json_array_size(shape) != p->num_dims) fail_msg("shape of %s", p->name);
            for (int d = 0; d < p->num_dims; d++)
                assert_int_equal(p->shape[d], whole(shape, (size_t)d));
        }
        json_array_foreach(json_object_get(c, "unused"), k, name)
        {
            if (!cr_is_named(json_string_value(name), model->towers.unused))
                fail_msg("%s", json_string_value(name));
        }
        cr_model_free(model);
    }
}

/* ---- stages ---- */

/* V: the towers, P: the projector, L: the last layer, l: the rest of the language model. */
static char part_of(const char *name)
{
    if (strncmp(name, "vision_backbone.", 16) == 0) return 'V';
    if (strncmp(name, "projector.", 10) == 0) return 'P';
    return strncmp(name, "language_model.model.layers.1.", 30) == 0 ? 'L' : 'l';
}

static const struct row {
    const char *stage, *trained;
} rows[] = {
    {"align", "P"},
    {"finetune", "PLl"},
    {"vla-train", "PLl"},
    {"full-finetune", "VPLl"},
    {"vla-full-train", "VPLl"},
    {"last-layer-finetune", "L"},
    {"vla-sandwich-train", "VPL"},
};

static void c40_stages(void **state)
{
    const json_t *c;
    size_t at;

    (void)state;
    json_array_foreach(cases, at, c) for (size_t r = 0; r < CR_COUNT(rows); r++)
    {
        bool is_wide = strchr(rows[r].trained, 'V');
        cr_model *model = must_build(json_object_get(c, "config"));
        cr_err err = {0};
        must(cr_model_freeze_stage(model, rows[r].stage, &err), &err);
        cr_model_set_precision(model);
        for (size_t i = 0; i < model->num_params; i++) {
            const cr_param *p = model->params[i];
            char part = part_of(p->name);
            if (p->is_trainable != !!strchr(rows[r].trained, part) ||
                p->is_fp32 != (is_wide && part == 'V'))
                fail_msg("%s: %s: trained %d, float32 %d", rows[r].stage, p->name, p->is_trainable,
                         p->is_fp32);
        }
        cr_model_free(model);
    }
}

/* Prismatic's "or" of policies: each transformer, each block, the projector, each decoder layer; the root has the others. */
static void c27_units(void **state)
{
    static const char *const want[] = {"root",
                                       "vision_backbone.featurizer",
                                       "vision_backbone.featurizer.blocks.0",
                                       "vision_backbone.featurizer.blocks.1",
                                       "vision_backbone.featurizer.blocks.2",
                                       "vision_backbone.fused_featurizer",
                                       "vision_backbone.fused_featurizer.blocks.0",
                                       "vision_backbone.fused_featurizer.blocks.1",
                                       "projector",
                                       "language_model.model.layers.0",
                                       "language_model.model.layers.1"};
    static const char *const classes[] = {"VisionTransformer", "Block", "FusedMLPProjector",
                                          "LlamaDecoderLayer"};
    static const cr_wrap_policy policies[] = {
        {0}, {.classes = classes, .num_classes = CR_COUNT(classes), .is_nested = true}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        bool is_wide = i % 2;
        json_t *config = model_json("fused");
        cr_model *model = must_build(config);
        cr_units units = {0};
        cr_err err = {0};
        must(cr_model_freeze_stage(model, is_wide ? "full-finetune" : "finetune", &err), &err);
        cr_model_set_precision(model);
        must(cr_units_build(model, &policies[i / 2], 2, &units, &err), &err);
        assert_int_equal(units.num, CR_COUNT(want));
        for (size_t k = 0; k < units.num; k++) {
            const cr_unit *u = &units.unit[k];
            bool is_tower = k >= 1 && k <= 7;
            assert_string_equal(u->name, want[k]);
            assert_int_equal(u->trained.is_fp32, is_wide && is_tower);
            assert_int_equal(u->trained.num_params == 0, !is_wide && is_tower);
            assert_int_equal(u->frozen.num_params > 0, !is_wide && is_tower);
        }
        /* what a transformer keeps for itself: class token, positions, patches */
        assert_int_equal(units.unit[1].trained.num_params + units.unit[1].frozen.num_params, 4);
        assert_int_equal(units.unit[5].trained.num_params + units.unit[5].frozen.num_params, 3);
        cr_units_free(&units);
        cr_model_free(model);
        json_decref(config);
    }
}

/* ---- what is refused ---- */

static void image_in_a_sequence(void **state)
{
    json_t *config = model_json("linear");
    cr_model *model = must_build(config);
    const int32_t ids[] = {1, 5, 6}, labels[] = {5, 6, -1};
    int32_t out[12], given[12];

    (void)state;
    cr_image_insert(model->config.vision->image_id, 9, ids, labels, 3, out, given);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(out[i], i == 0 ? 1 : i < 10 ? 95 : ids[i - 9]);
        assert_int_equal(given[i], i < 9 ? -1 : labels[i - 9]);
    }
    cr_model_free(model);
    json_decref(config);
}

static void check_refused(const cr_model *model, inputs *in, const char *why)
{
    cr_err err = {0};

    if (cr_vision_positions(&model->config, &in->batch, &in->vision, NULL, &err) != CR_EARG ||
        !strstr(err.msg, why))
        fail_msg("'%s' instead of '%s'", err.msg, why);
}

static void batches_that_do_not_fit(void **state)
{
    const json_t *c = json_array_get(cases, 0);
    cr_model *model = must_build(json_object_get(c, "config"));
    cr_err err = {0};
    inputs in;

    (void)state;
    read_inputs(c, model, &in);
    must(cr_vision_positions(&model->config, &in.batch, &in.vision, NULL, &err), &err);
    in.ids[0] = 95;
    check_refused(model, &in, "stands after its first token");
    in.ids[0] = 1;
    in.ids[9] = 3;
    check_refused(model, &in, "needs 9 placeholders from token 1 on, 8 are there");
    in.ids[9] = in.ids[10] = 95;
    check_refused(model, &in, "stands after its first token");
    in.ids[10] = 3;
    in.grid[0][1] = 1, in.grid[0][2] = 9;
    check_refused(model, &in, "an image of this model has 1 x 3 x 3");
    in.grid[0][1] = in.grid[0][2] = 3;
    in.vision.num_items--;
    in.vision.num_patches -= 9;
    check_refused(model, &in, "only 2 images and videos");
    in.vision.num_items = 0;
    check_refused(model, &in, "has none");
    cr_free(in.pixels);
    cr_model_free(model);
}

static void check_config(const char *name, const char *key, json_t *value, int tower,
                         const char *why)
{
    json_t *config = model_json(name),
           *at = tower < 0
                     ? config
                     : json_array_get(json_object_get(config, "vision_towers"), (size_t)tower);
    cr_err err = {0};
    cr_model *model;

    json_object_set_new(at, key, value);
    if (cr_model_build(config, NULL, &model, &err) == CR_OK || !strstr(err.msg, why))
        fail_msg("%s: '%s' instead of '%s'", key, err.msg, why);
    json_decref(config);
}

static void configs_that_do_not_fit(void **state)
{
    (void)state;
    check_config("fused", "arch_specifier", json_string("no-align+conv"), -1, "'no-align+conv'");
    check_config("fused", "use_fused_vision_backbone", json_false(), -1, "there are 2 towers");
    check_config("fused", "image_size", json_integer(24), 0, "4 x 4 and 3 x 3 patches");
    check_config("fused", "image_size", json_integer(19), 0, "no multiple of patch_size");
    check_config("fused", "hidden_act", json_string("quick_gelu"), 1, "hidden_act 'quick_gelu'");
    check_config("fused", "model_type", json_string("clip_vision_model"), 1, "'clip_vision_model'");
    check_config("fused", "num_attention_heads", json_integer(3), 1, "multiple of 4 elements");
    check_config("fused", "image_size", json_integer(4096), 1, "from 1 to 2048");
    check_config("mlp", "mlp_ratio", json_real(0.001), 0, "no width");
    check_config("mlp", "use_swiglu_ffn", json_true(), 0, "use_swiglu_ffn");
    check_config("mlp", "image_token_id", json_integer(97), -1, "outside the vocabulary");
    check_config("mlp", "image_token_id", json_null(), -1, "key 'image_token_id' is missing");
    check_config("mlp", "vision_towers", json_null(), -1, "one or two vision transformers");
    check_config("mlp", "text_config", json_pack("{s:s}", "model_type", "mistral"), -1,
                 "'mistral' is not available");
}

/* config.json as the port writes it: towers by timm's names, of Llama only what differs from its defaults. */
static void config_of_the_port(void **state)
{
    static const char text[] =
        "{\"model_type\":\"prismatic\",\"architectures\":[\"PrismaticForConditionalGeneration\"],"
        "\"arch_specifier\":\"no-align+fused-gelu-mlp\",\"use_fused_vision_backbone\":true,"
        "\"image_sizes\":[224,224],\"pad_token_id\":32000,\"pad_to_multiple_of\":64,"
        "\"timm_model_ids\":[\"vit_large_patch14_reg4_dinov2.lvd142m\","
        "\"vit_so400m_patch14_siglip_224\"],\"timm_override_act_layers\":[null,null],"
        "\"torch_dtype\":\"bfloat16\",\"text_config\":{\"model_type\":\"llama\","
        "\"pad_token_id\":32000,\"torch_dtype\":\"bfloat16\",\"vocab_size\":32064}}";
    const struct {
        const char *name;
        int64_t num;
    } want[] = {
        {"vision_backbone.featurizer.cls_token", 1024},
        {"vision_backbone.featurizer.reg_token", 4 * 1024},
        {"vision_backbone.featurizer.pos_embed", 256 * 1024},
        {"vision_backbone.featurizer.blocks.22.ls2.scale_factor", 1024},
        {"vision_backbone.fused_featurizer.pos_embed", 256 * 1152},
        {"vision_backbone.fused_featurizer.blocks.25.mlp.fc1.weight", 4304 * 1152},
        {"projector.fc1.weight", 2176 * 8704},
        {"projector.fc3.bias", 4096},
        {"language_model.lm_head.weight", 32064 * 4096},
    };
    cr_err err = {0};
    cr_model *model;

    (void)state;
    must(build_model(text, &model, &err), &err);
    for (size_t i = 0; i < CR_COUNT(want); i++) {
        const cr_param *p = cr_model_find_param(model, want[i].name);
        if (!p || p->num_elems != want[i].num) fail_msg("%s", want[i].name);
    }
    assert_null(cr_model_find_param(model, "vision_backbone.featurizer.blocks.23.norm1.weight"));
    assert_int_equal(model->config.vision->image_id, 32063);
    assert_int_equal(model->config.storage_dtype, CR_BF16);
    cr_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_pytorch),
        cmocka_unit_test(names_of_the_port),
        cmocka_unit_test(c40_stages),
        cmocka_unit_test(c27_units),
        cmocka_unit_test(image_in_a_sequence),
        cmocka_unit_test(batches_that_do_not_fit),
        cmocka_unit_test(configs_that_do_not_fit),
        cmocka_unit_test(config_of_the_port),
    };
    cr_err err = {0};
    int failed;

    if (cr_json_read_file("tests/parity/prismatic.json", &cases, &err) != CR_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(cases);
    return failed;
}
