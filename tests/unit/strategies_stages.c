/* strategies_stages.c -- every stage on trees of Qwen2.5-VL and Qwen3-VL (C40): what is
 * trained, elements of the optimizer, bytes of the frozen, and the dtype of the math of the tower and of
 * the language model, with an image.
 * Not covered: what a tower computes (models_vision.c).
 * // also on cuda, long
 */
#include "models/vision/vision.h"
#include "strategies/fsdp_impl.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"

#define TEXT                                                                                   \
    "\"vocab_size\":99,\"hidden_size\":48,\"intermediate_size\":70,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-6,\"num_hidden_layers\":3,"                 \
    "\"head_dim\":12,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"   \
    "\"mrope_section\":[2,2,2]}"
#define VISION                                                                                  \
    "\"depth\":3,\"hidden_size\":40,\"intermediate_size\":52,\"num_heads\":2,\"patch_size\":4," \
    "\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"out_hidden_size\":48"
#define IDS                                                                                    \
    "\"tie_word_embeddings\":true,\"image_token_id\":90,\"video_token_id\":91,\"vision_start_" \
    "token_id\":92"

static const char *const models[] = {
    "{\"model_type\":\"qwen2_5_vl\",\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{\"model_type\":\"qwen2_5_vl_text\"," TEXT
    "},\"vision_config\":{\"model_type\":\"qwen2_5_vl_vision\"," VISION
    ",\"window_size\":16,\"fullatt_block_indexes\":[1],\"tokens_per_second\":2}}",
    "{\"model_type\":\"qwen3_vl\",\"architectures\":[\"Qwen3VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{" TEXT "},\"vision_config\":{" VISION
    ",\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[0,2]}}"};

/* V: the tower, P: the projector, L: the last layer, l: the rest of the language model. */
static char part_of(const char *name)
{
    if (strstr(name, ".visual.merger.") || strstr(name, ".deepstack_merger_list.")) return 'P';
    if (strstr(name, ".visual.")) return 'V';
    return strstr(name, ".language_model.layers.2.") ? 'L' : 'l';
}

/* Each row of the table, and prefixes. Parts that are trained. */
static const struct row {
    const char *stage, *prefix, *trained;
} rows[] = {
    {"align", NULL, "P"},
    {"finetune", NULL, "PLl"},
    {"vla-train", NULL, "PLl"},
    {"full-finetune", NULL, "VPLl"},
    {"vla-full-train", NULL, "VPLl"},
    {"last-layer-finetune", NULL, "L"},
    {"vla-sandwich-train", NULL, "VPL"},
    {NULL, NULL, "VPLl"},
    {NULL, "visual", "Ll"},
    {NULL, "model.language_model", "VP"},
};

static cr_model *open_model(const char *text, const struct row *r)
{
    cr_model *model;
    cr_err err = {0};

    if (build_model(text, &model, &err) != CR_OK ||
        (r->stage ? cr_model_freeze_stage(model, r->stage, &err)
                  : cr_model_freeze(model, r->prefix, &err)) != CR_OK)
        fail_msg("%s", err.msg);
    cr_model_set_precision(model);
    return model;
}

static void c40_stages_of_towers(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * CR_COUNT(rows); i++) {
        const char *trained = rows[i / 2].trained;
        bool is_wide = strchr(trained, 'V');
        const cr_fsdp_args args = {.is_train = true, .param_dtype = CR_BF16};
        cr_world_args meta = {.kind = CR_WORLD_META, .meta_rank = 1, .meta_num_ranks = 4};
        int64_t num_trained = 0, num[2] = {0}, shard = 0, frozen_bytes = 0;
        int ranks[] = {0, 1, 2, 3};
        cr_model *model = open_model(models[i % 2], &rows[i / 2]);
        cr_world *world = NULL;
        cr_mesh *mesh = NULL;
        cr_device *dev = NULL;
        cr_mesh_shape shape;
        cr_fsdp *f = NULL;
        cr_err err = {0};
        for (size_t k = 0; k < model->num_params; k++) {
            const cr_param *p = model->params[k];
            bool is_tower = strstr(p->name, ".visual.");
            if (p->is_trainable != !!strchr(trained, part_of(p->name)) ||
                p->is_fp32 != (is_wide && is_tower))
                fail_msg("case %zu: %s: trained %d, float32 %d", i, p->name, p->is_trainable,
                         p->is_fp32);
            num_trained += p->is_trainable ? p->num_elems : 0;
        }
        if (cr_world_open(&meta, &world, &err) != CR_OK ||
            cr_device_open("meta", 1, &dev, &err) != CR_OK ||
            cr_mesh_shape_init(&shape, 4, 4, 1, 1, 0, &err) != CR_OK ||
            cr_mesh_create(world, dev, "train", ranks, &shape, &mesh, &err) != CR_OK ||
            cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK)
            fail_msg("case %zu: %s", i, err.msg);
        for (size_t k = 0; k < f->units.num; k++) {
            const cr_unit *u = &f->units.unit[k];
            const cr_flat *flats[] = {&u->trained, &u->frozen};
            for (int t = 0; t < 2; t++)
                for (size_t p = 0; p < flats[t]->num_params; p++) {
                    assert_int_equal(flats[t]->params[p]->is_trainable, t == 0);
                    assert_int_equal(flats[t]->params[p]->is_fp32, flats[t]->is_fp32);
                    num[t] += flats[t]->params[p]->num_elems;
                }
            shard += u->trained.shard_elems;
            frozen_bytes += u->frozen.shard_elems * (u->frozen.is_fp32 ? 4 : 2);
        }
        assert_int_equal(num[0], num_trained); /* elements of the optimizer; the rest is padding */
        assert_int_equal(num[0], f->units.num_trained);
        assert_int_equal(num[1], f->units.num_frozen);
        assert_int_equal(f->arena[CRI_MASTER].num_bytes, 4 * shard);
        assert_int_equal(f->arena[CRI_M].num_bytes, 4 * shard);
        assert_int_equal(f->arena[CRI_V].num_bytes, 4 * shard);
        assert_int_equal(f->arena[CRI_FROZEN].num_bytes, frozen_bytes);
        assert_true(4 * shard >= num_trained && 4 * shard <= num_trained + num_trained / 2 + 8192);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_device_close(dev);
        cr_world_close(world);
        cr_model_free(model);
    }
}

/* ---- the dtype of math ---- */

typedef struct seen {
    bool is_wide;
    int num_tower, num_text;
} seen;

/* Products and norms take the dtype of their weights. */
static void see(void *ctx, const cr_fsdp_moment *moment)
{
    seen *s = ctx;
    const cr_module *m = moment->module;
    bool is_tower = strstr(m->name, ".visual.");

    if (m->num_params == 0 || m->params[0].tied_to || strcmp(m->cls, "Embedding") == 0 ||
        moment->phase == CR_BACKWARD)
        return;
    for (size_t i = 0; i < m->num_params; i++)
        if (m->params[i].weight.data &&
            m->params[i].weight.dtype != (is_tower && s->is_wide ? CR_F32 : CR_BF16))
            fail_msg("%s computes in %s", m->name, cr_dtype_name(m->params[i].weight.dtype));
    s->num_tower += is_tower;
    s->num_text += !is_tower;
}

static cr_status no_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                         cr_err *err)
{
    float *grad_log_prob = grad->of[CR_LOG_PROB];

    (void)out;
    (void)ctx, (void)err;
    for (size_t i = 0; i < num; i++)
        grad_log_prob[i] = -0.1F;
    return CR_OK;
}

/* One image of two tokens in a sequence of seven. */
static void c40_dtype_of_towers(void **state)
{
    static float pixels[8 * 96];
    static const int32_t ids[] = {1, 92, 90, 90, 3, 4, 5}, labels[] = {-1, -1, -1, 3, 4, 5, -1},
                         positions[] = {0, 1, 2, 3, 4, 5, 6}, cu[] = {0, 7},
                         grid[1][3] = {{1, 4, 2}};
    const cr_vision_input vision = {
        .pixels = pixels, .grid = grid, .num_items = 1, .num_patches = 8};
    int32_t mrope[21];

    (void)state;
    for (int i = 0; i < 8 * 96; i++)
        pixels[i] = (float)(i % 13) / 8 - 0.7F;
    for (size_t i = 0; i < 2 * CR_COUNT(rows); i++) {
        const cr_fsdp_args args = {.is_train = true, .param_dtype = CR_BF16, .seed = 3};
        cr_world_args local = {.kind = CR_WORLD_LOCAL};
        const cr_batch batch = {ids, positions, labels, cu, 7, 1, mrope, &vision};
        cr_model *model = open_model(models[i % 2], &rows[i / 2]);
        seen s = {.is_wide = strchr(rows[i / 2].trained, 'V')};
        int rank = 0;
        cr_mesh_shape shape;
        cr_world *world = NULL;
        cr_mesh *mesh = NULL;
        cr_device *dev = NULL;
        cr_fsdp *f = NULL;
        cr_err err = {0};
        if (cr_world_open(&local, &world, &err) != CR_OK ||
            cr_device_open(cr_device_default(), 1, &dev, &err) != CR_OK ||
            cr_mesh_shape_init(&shape, 1, 1, 1, 1, 0, &err) != CR_OK ||
            cr_mesh_create(world, dev, "train", &rank, &shape, &mesh, &err) != CR_OK ||
            cr_fsdp_create(model, dev, mesh, &args, &f, &err) != CR_OK)
            fail_msg("case %zu: %s", i, err.msg);
        cr_fsdp_watch(f, see, &s);
        if (cr_vision_positions(&model->config, &batch, &vision, mrope, &err) != CR_OK ||
            cr_fsdp_backward(f, &batch, no_loss, NULL, &err) != CR_OK)
            fail_msg("case %zu: %s", i, err.msg);
        assert_true(s.num_tower > 20 && s.num_text > 20);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
        cr_device_close(dev);
        cr_world_close(world);
        cr_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(c40_stages_of_towers),
                                       cmocka_unit_test(c40_dtype_of_towers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
