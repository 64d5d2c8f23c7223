/* models_vl.c -- vision-language models: trees against those of Transformers (tests/parity/vision_trees.txt),
 * parameter counts of published models, config.json with nested and flat text, values that must be
 * refused, what freezing freezes. Their numbers: models_vl_numbers.c. */
#include "models/vision/cost.h"
#include "strategies/units.h"
#include "tests/vl_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the tree ---- */

static void add_lines(const cr_module *m, cr_buf *out)
{
    cr_buf_addf(out, "module %s %s\n", *m->name ? m->name : ".", m->cls);
    for (size_t i = 0; i < m->num_params; i++) {
        const cr_param *p = &m->params[i];
        cr_buf_addf(out, "param %s", p->name);
        for (int d = 0; d < p->num_dims; d++)
            cr_buf_addf(out, " %lld", (long long)p->shape[d]);
        cr_buf_adds(out, "\n");
    }
    for (size_t i = 0; i < m->num_children; i++)
        add_lines(m->children[i], out);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_model(const char *text, cr_buf *out)
{
    cr_model *model = must_build(text);
    const char **names = CR_NEW_ARRAY(const char *, model->num_params);

    cr_buf_addf(out, "model %s\n", model->config.model_type);
    add_lines(model->root, out);
    for (size_t i = 0; i < model->num_params; i++)
        names[i] = model->params[i]->file_name;
    qsort(names, model->num_params, sizeof *names, by_text);
    for (size_t i = 0; i < model->num_params; i++)
        cr_buf_addf(out, "stored %s\n", names[i]);
    cr_free(names);
    cr_model_free(model);
}

static void trees_of_transformers(void **state)
{
    cr_buf want = {0}, got = {0};
    cr_err err = {0};

    (void)state;
    if (cr_file_read("tests/parity/vision_trees.txt", &want, &err) != CR_OK)
        fail_msg("%s", err.msg);
    add_model(qwen2_5_vl, &got);
    add_model(qwen3_vl, &got);
    for (const char *w = want.data, *g = got.data; *w || *g;) {
        size_t n = strcspn(w, "\n"), k = strcspn(g, "\n");
        if (n != k || strncmp(w, g, n) != 0)
            fail_msg("'%.*s', Transformers has '%.*s'", (int)k, g, (int)n, w);
        w += n + (w[n] == '\n');
        g += k + (g[k] == '\n');
    }
    cr_buf_free(&want);
    cr_buf_free(&got);
}

/* Shapes and numbers of parameters that the models publish. */
static const struct published {
    const char *name, *type, *text, *vision, *section;
    bool is_tied;
    long long all, visual;
} published[] = {
    {"Qwen2.5-VL-3B", "qwen2_5_vl",
     "\"hidden_size\":2048,\"num_hidden_layers\":36,\"num_attention_heads\":16,"
     "\"num_key_value_heads\":2,\"intermediate_size\":11008,\"vocab_size\":151936",
     "\"depth\":32,\"hidden_size\":1280,\"num_heads\":16,\"intermediate_size\":3420,"
     "\"out_hidden_size\":2048,\"fullatt_block_indexes\":[7,15,23,31]",
     "[16,24,24]", true, 3754622976, 668684288},
    {"Qwen2.5-VL-7B", "qwen2_5_vl",
     "\"hidden_size\":3584,\"num_hidden_layers\":28,\"num_attention_heads\":28,"
     "\"num_key_value_heads\":4,\"intermediate_size\":18944,\"vocab_size\":152064",
     "\"depth\":32,\"hidden_size\":1280,\"num_heads\":16,\"intermediate_size\":3420,"
     "\"out_hidden_size\":3584,\"fullatt_block_indexes\":[7,15,23,31]",
     "[16,24,24]", false, 8292166656, 676550144},
    {"Qwen3-VL-4B", "qwen3_vl",
     "\"hidden_size\":2560,\"num_hidden_layers\":36,\"num_attention_heads\":32,\"head_dim\":128,"
     "\"num_key_value_heads\":8,\"intermediate_size\":9728,\"vocab_size\":151936",
     "\"depth\":24,\"hidden_size\":1024,\"num_heads\":16,\"intermediate_size\":4096,"
     "\"out_hidden_size\":2560,\"num_position_embeddings\":2304,"
     "\"deepstack_visual_indexes\":[5,11,17]",
     "[24,20,20]", true, 4437815808, 415347712},
    {"Qwen3-VL-30B-A3B", "qwen3_vl_moe",
     "\"hidden_size\":2048,\"num_hidden_layers\":48,\"num_attention_heads\":32,\"head_dim\":128,"
     "\"num_key_value_heads\":4,\"intermediate_size\":6144,\"vocab_size\":151936,\"num_experts\":"
     "128,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":768",
     "\"depth\":27,\"hidden_size\":1152,\"num_heads\":16,\"intermediate_size\":4304,"
     "\"out_hidden_size\":2048,\"num_position_embeddings\":2304,"
     "\"deepstack_visual_indexes\":[8,16,24]",
     "[24,20,20]", false, 31070754032, 538631408},
};

static void counts_of_published_models(void **state)
{
    char text[1200];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(published); i++) {
        const struct published *p = &published[i];
        long long all = 0, visual = 0;
        cr_model *model;
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"tie_word_embeddings\":%s,\"vision_config\":{%s},"
                 "\"text_config\":{%s,\"rope_scaling\":{\"mrope_section\":%s}}}",
                 p->type, p->is_tied ? "true" : "false", p->vision, p->text, p->section);
        model = must_build(text);
        for (size_t k = 0; k < model->num_params; k++) {
            all += model->params[k]->num_elems;
            if (strncmp(model->params[k]->name, "model.visual.", 13) == 0)
                visual += model->params[k]->num_elems;
        }
        if (all != p->all || visual != p->visual)
            fail_msg("%s: %lld parameters, %lld of vision", p->name, all, visual);
        cr_model_free(model);
    }
}

/* Qwen2.5-VL-7B, by hand: parameters of Linears are passed once a patch, a merged token, a token of text; pairs of a frame in 4 blocks,
 * of windows of 8 x 8 in 28. */
static void costs_of_images(void **state)
{
    const double text = 28 * (3584.0 * (3584 + 2 * 512) + 3584.0 * 3584 + 3 * 3584.0 * 18944),
                 patch = 1176.0 * 1280 + 32 * (4 * 1280.0 * 1280 + 3 * 1280.0 * 3420),
                 merged = 5120.0 * 5120 + 5120.0 * 3584;
    const int32_t grids[][3] = {{1, 10, 22}, {3, 10, 22}, {1, 2, 2}, {1, 16, 8}};
    /* a side of 22 is 8, 8 and 6 */
    const double windows[] = {(64 + 4) * (64 + 64 + 36), 3 * (64 + 4) * (64 + 64 + 36), 4 * 4,
                              128 * 64};
    const struct {
        const char *trained;
        double tower, projector, text;
    } ways[] = {{"", 3, 3, 3}, {"model.visual.", 1, 3, 3}, {"model.language_model.", 3, 3, 2}};
    char config[1200];
    cr_model *model;
    cr_image_cost cost;

    (void)state;
    snprintf(config, sizeof config,
             "{\"model_type\":\"%s\",\"vision_config\":{%s},\"text_config\":{%s,"
             "\"rope_scaling\":{\"mrope_section\":%s}}}",
             published[1].type, published[1].vision, published[1].text, published[1].section);
    model = must_build(config);
    for (size_t w = 0; w < CR_COUNT(ways); w++) {
        for (size_t k = 0; k < model->num_params; k++) {
            const char *name = model->params[k]->name;
            model->params[k]->is_trainable =
                !*ways[w].trained || strncmp(name, ways[w].trained, strlen(ways[w].trained)) != 0 ||
                strstr(name, ".merger.");
        }
        cr_image_cost_of(model, &cost);
        for (size_t i = 0; i < CR_COUNT(grids); i++) {
            const int32_t *g = grids[i];
            const double n = (double)g[1] * g[2];
            const double want =
                (ways[w].tower * g[0] * n * patch + ways[w].projector * g[0] * n / 4 * merged +
                 ways[w].tower * 2 * 1280 * (28 * windows[i] + 4 * g[0] * n * n)) /
                (ways[w].text * text);
            assert_true(fabs(cr_image_cost_tokens(&cost, g) / want - 1) < 1e-12);
        }
    }
    cr_model_free(model);
    model = must_build("{\"model_type\":\"llama\"," TEXT_KEYS ",\"num_hidden_layers\":1}");
    cr_image_cost_of(model, &cost);
    assert_true(cr_image_cost_tokens(&cost, grids[0]) == 0);
    cr_model_free(model);
}

/* Nested and flat files say the same; axes of frequencies; what the tower needs. */
static void configs(void **state)
{
    static const uint8_t chunks[] = {0, 0, 1, 1, 1, 2, 2, 2},
                         interleaved[] = {0, 1, 2, 0, 1, 2, 0, 0};
    cr_model *a = must_build(qwen2_5_vl), *b = must_build(flat), *c = must_build(qwen3_vl);
    const cr_vision_config *v = a->config.vision, *w = c->config.vision;

    (void)state;
    assert_false(a->config.is_tied);
    assert_true(b->config.is_tied);
    assert_int_equal(b->config.storage_dtype, CR_BF16);
    assert_int_equal(a->config.storage_dtype, CR_F32);
    assert_int_equal(b->num_params + 1, a->num_params); /* lm_head */
    assert_ptr_equal(cr_model_find_param(b, "lm_head.weight"),
                     cr_model_find_param(b, "model.language_model.embed_tokens.weight"));
    assert_memory_equal(a->config.rope_axis, chunks, sizeof chunks);
    assert_memory_equal(b->config.rope_axis, chunks, sizeof chunks);
    assert_memory_equal(c->config.rope_axis, interleaved, sizeof interleaved);
    assert_memory_equal(a->config.ropes[0].inv_freq, b->config.ropes[0].inv_freq,
                        8 * sizeof(float));
    assert_int_equal(v->patch_dim, 3 * 2 * 4 * 4);
    assert_int_equal(v->window_size, 16);
    assert_true(!v->is_full[0] && v->is_full[1]);
    check_near(v->tokens_per_second, 2, 0);
    assert_int_equal(v->video_id, 91);
    assert_int_equal(w->window_size, 0);
    assert_true(w->is_full[0]);
    assert_int_equal(w->position_side, 6);
    assert_int_equal(w->num_deepstack, 3);
    assert_int_equal(w->deepstack[1], 2);
    assert_string_equal(c->no_split[1], "Qwen3VLVisionBlock");
    assert_string_equal(a->no_split[0], "Qwen2_5_VLDecoderLayer");
    assert_null(a->no_split[2]);
    cr_model_free(a);
    cr_model_free(b);
    cr_model_free(c);
}

/* part.key: value changed, and what the sentence must have. */
static const struct refusal {
    const char *base, *part, *change, *want;
} refused[] = {
    {qwen3_vl, "vision_config", "\"model_type\":\"siglip\"", "siglip"},
    {qwen2_5_vl, "vision_config", "\"model_type\":\"qwen3_vl_vision\"", "qwen2_5_vl_vision is"},
    {qwen3_vl, NULL, "\"vision_config\":null", "vision_config"},
    {qwen3_vl, "vision_config", "\"depth\":null", "vision_config: key 'depth'"},
    {qwen3_vl, "vision_config", "\"hidden_size\":null", "hidden_size"},
    {qwen3_vl, "vision_config", "\"intermediate_size\":null", "intermediate_size"},
    {qwen3_vl, "vision_config", "\"num_heads\":3", "num_heads 3"},
    {qwen3_vl, "vision_config", "\"num_heads\":16", "multiple of 4"},
    {qwen3_vl, "vision_config", "\"out_hidden_size\":32", "out_hidden_size 32 is not"},
    {qwen3_vl, "vision_config", "\"patch_size\":[4,4]", "patch_size"},
    {qwen3_vl, "vision_config", "\"patch_size\":256,\"temporal_patch_size\":64", "values"},
    {qwen3_vl, "vision_config", "\"spatial_merge_size\":4", "spatial_merge_size 4"},
    {qwen3_vl, "vision_config", "\"hidden_act\":\"silu\"", "gelu_pytorch_tanh"},
    {qwen2_5_vl, "vision_config", "\"hidden_act\":\"quick_gelu\"", "quick_gelu"},
    {qwen3_vl, "vision_config", "\"num_position_embeddings\":37", "not a square"},
    {qwen3_vl, "vision_config", "\"num_position_embeddings\":null", "num_position_embeddings"},
    {qwen3_vl, "vision_config", "\"deepstack_visual_indexes\":[2,1]", "must rise"},
    {qwen3_vl, "vision_config", "\"deepstack_visual_indexes\":[4]", "from 0 to 3"},
    {qwen3_vl, "vision_config", "\"deepstack_visual_indexes\":null", "deepstack_visual_indexes"},
    {qwen2_5_vl, "vision_config", "\"fullatt_block_indexes\":[2]", "from 0 to 1"},
    {qwen2_5_vl, "vision_config", "\"window_size\":7", "window_size 7"},
    {qwen2_5_vl, "vision_config", "\"tokens_per_second\":0", "tokens_per_second"},
    {qwen2_5_vl, "vision_config", "\"rope_parameters\":{\"rope_type\":\"yarn\"}", "yarn"},
    {qwen2_5_vl, "text_config", "\"rope_parameters\":{\"rope_type\":\"default\"}", "mrope_section"},
    {qwen2_5_vl, "text_config", "\"rope_parameters\":{\"mrope_section\":[2,3,4]}", "sum 9"},
    {qwen2_5_vl, "text_config", "\"rope_parameters\":{\"mrope_section\":[9,-1,0]}",
     "mrope_section"},
    {qwen2_5_vl, "text_config", "\"vocab_size\":null", "vocab_size"},
    {qwen2_5_vl, NULL, "\"image_token_id\":97", "image_token_id 97 is outside"},
    {qwen2_5_vl, NULL, "\"architectures\":[\"Qwen2VLForConditionalGeneration\"]",
     "Qwen2_5_VLForConditionalGeneration is"},
};

static void wrong_values_name_their_key(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(refused); i++) {
        const struct refusal *r = &refused[i];
        cr_err err = {0};
        cr_model *model;
        json_t *json = NULL, *change = NULL;
        char text[200];
        snprintf(text, sizeof text, "{%s}", r->change);
        assert_int_equal(cr_json_parse(r->base, strlen(r->base), "base", &json, &err), CR_OK);
        assert_int_equal(cr_json_parse(text, strlen(text), "change", &change, &err), CR_OK);
        json_object_update(r->part ? json_object_get(json, r->part) : json, change);
        if (cr_model_build(json, NULL, &model, &err) == CR_OK) fail_msg("accepted: %s", text);
        if (!strstr(err.msg, r->want) || !strstr(err.msg, "config.json"))
            fail_msg("%s: %s", text, err.msg);
        json_decref(json);
        json_decref(change);
    }
}

/* ---- freezing ---- */

/* By both spellings, and by stage: V tower, P projector, L language model, e embedding, z last layer. */
static void freezing(void **state)
{
    static const struct {
        const char *prefix, *stage, *want;
    } cases[] = {
        {"model.visual", NULL, "--LLez"},
        {"visual", NULL, "--LLez"},
        {"visual.merger", NULL, "V-LLez"},
        {"model.language_model.layers.0, lm_head", NULL, "VP--ez"},
        {"model.layers.0,lm_head", NULL, "VP--ez"},
        {"model", NULL, "---L--"},
        {NULL, "align", "-P----"},
        {NULL, "finetune", "-PLLez"},
        {NULL, "full-finetune", "VPLLez"},
        {NULL, "last-layer-finetune", "-----z"},
        {NULL, "vla-sandwich-train", "VP---z"},
    };
    static const char *const text[] = {qwen2_5_vl, qwen3_vl};
    static const char *const probes[][6] = {
        {"model.visual.blocks.1.attn.qkv.bias", "model.visual.merger.mlp.0.weight",
         "model.language_model.layers.0.mlp.up_proj.weight", "lm_head.weight",
         "model.language_model.embed_tokens.weight",
         "model.language_model.layers.1.self_attn.q_proj.bias"},
        {"model.visual.pos_embed.weight", "model.visual.merger.norm.bias",
         "model.language_model.layers.0.mlp.up_proj.weight", "lm_head.weight",
         "model.language_model.embed_tokens.weight",
         "model.language_model.layers.3.self_attn.q_norm.weight"},
    };

    (void)state;
    for (size_t m = 0; m < CR_COUNT(text); m++)
        for (size_t i = 0; i < CR_COUNT(cases); i++) {
            cr_model *model = must_build(text[m]);
            cr_err err = {0};
            cr_status status = cases[i].stage ? cr_model_freeze_stage(model, cases[i].stage, &err)
                                              : cr_model_freeze(model, cases[i].prefix, &err);
            if (status != CR_OK) fail_msg("case %zu: %s", i, err.msg);
            for (size_t k = 0; k < CR_COUNT(probes[m]); k++)
                if (cr_model_find_param(model, probes[m][k])->is_trainable !=
                    (cases[i].want[k] != '-'))
                    fail_msg("case %zu, %s", i, probes[m][k]);
            if (m == 1 && cases[i].stage) /* deepstack mergers go with the merger */
                assert_int_equal(
                    cr_model_find_param(model, "model.visual.deepstack_merger_list.2.norm.bias")
                        ->is_trainable,
                    cases[i].want[1] != '-');
            cr_model_free(model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_of_transformers),
        cmocka_unit_test(counts_of_published_models),
        cmocka_unit_test(costs_of_images),
        cmocka_unit_test(configs),
        cmocka_unit_test(wrong_values_name_their_key),
        cmocka_unit_test(freezing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
