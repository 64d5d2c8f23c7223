/* models_tree.c -- trees from config.json without weights: parameter counts of published models, names
 * and classes, rotary frequencies, windows, and values that must be refused.
 * Not covered: numbers of a forward (models_pass.c), files (models_files.c). */
#include "models/models.h"
#include "tests/check_near.h"
#include "tests/model_bench.h"

#include <stdio.h>
#include <string.h>

static cr_model *must_build(const char *text)
{
    cr_err err = {0};
    cr_model *model;

    if (build_model(text, &model, &err) != CR_OK) fail_msg("%s", err.msg);
    return model;
}

/* Shapes and numbers of parameters that the models publish. */
static const struct published {
    const char *name, *type;
    int h, layers, heads, kv, dim, f, vocab, is_tied;
    long long count;
} published[] = {
    {"Qwen3-0.6B", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1, 596049920},
    {"Qwen3-1.7B", "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 1, 1720574976},
    {"Qwen3-4B", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 1, 4022468096},
    {"Qwen3-8B", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 0, 8190735360},
    {"Qwen3-32B", "qwen3", 5120, 64, 64, 8, 128, 25600, 151936, 0, 32762123264},
    {"Qwen2.5-0.5B", "qwen2", 896, 24, 14, 2, 64, 4864, 151936, 1, 494032768},
    {"Qwen2.5-1.5B", "qwen2", 1536, 28, 12, 2, 128, 8960, 151936, 1, 1543714304},
    {"Qwen2.5-7B", "qwen2", 3584, 28, 28, 4, 128, 18944, 152064, 0, 7615616512},
    {"Qwen2.5-72B", "qwen2", 8192, 80, 64, 8, 128, 29568, 152064, 0, 72706203648},
    {"Llama-3-8B", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 0, 8030261248},
    {"Llama-3-70B", "llama", 8192, 80, 64, 8, 128, 28672, 128256, 0, 70553706496},
};

static void counts_of_published_models(void **state)
{
    char text[600];

    (void)state;
    for (size_t i = 0; i < CR_COUNT(published); i++) {
        const struct published *p = &published[i];
        long long count = 0;
        cr_model *model;
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
                 "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
                 "\"intermediate_size\":%d,\"vocab_size\":%d,\"tie_word_embeddings\":%s}",
                 p->type, p->h, p->layers, p->heads, p->kv, p->dim, p->f, p->vocab,
                 p->is_tied ? "true" : "false");
        model = must_build(text);
        for (size_t k = 0; k < model->num_params; k++)
            count += model->params[k]->num_elems;
        if (count != p->count) fail_msg("%s: %lld parameters, want %lld", p->name, count, p->count);
        cr_model_free(model);
    }
}

#define SMALL(type)                                                                \
    "\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":96,"     \
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"vocab_size\":100"

static void check_param(const cr_model *model, const char *name, int64_t rows, int64_t cols)
{
    cr_param *param = cr_model_find_param(model, name);

    if (!param) fail_msg("no parameter %s", name);
    assert_int_equal(param->shape[0], rows);
    assert_int_equal(param->shape[1], cols);
    assert_int_equal(param->num_dims, cols ? 2 : 1);
}

/* What strategies and the engine go by, instead of names. */
static void flags(void **state)
{
    cr_model *m = must_build("{" SMALL("qwen2") ",\"tie_word_embeddings\":true}");
    const cr_module *layer = m->layers[1], *embed = cr_model_find_module(m, "model.embed_tokens"),
                    *q = cr_model_find_module(m, "model.layers.1.self_attn.q_proj");

    (void)state;
    assert_true(layer->parent->is_container && !layer->is_container);
    assert_true(embed->is_lookup && embed->weight->is_shared && embed->weight->is_product);
    assert_true(cr_model_find_module(m, "lm_head")->is_lm_head && !embed->is_lm_head);
    assert_true(q->parent->is_attention && !q->is_attention && q->weight->is_product);
    assert_ptr_equal(q->bias, cr_model_find_param(m, "model.layers.1.self_attn.q_proj.bias"));
    assert_false(q->bias->is_product || q->weight->is_shared);
    assert_null(cr_model_find_module(m, "model.norm")->bias);
    cr_model_free(m);
    m = must_build("{" SMALL("qwen3") "}");
    embed = cr_model_find_module(m, "model.embed_tokens");
    assert_false(embed->weight->is_shared || embed->weight->is_product);
    cr_model_free(m);
}

static void names_and_classes(void **state)
{
    cr_model *qwen2 = must_build("{" SMALL("qwen2") ",\"tie_word_embeddings\":true}");
    cr_model *qwen3 = must_build("{" SMALL("qwen3") ",\"head_dim\":32}");
    cr_model *llama = must_build("{" SMALL("llama") ",\"attention_bias\":true,\"mlp_bias\":true}");

    (void)state;
    check_param(qwen2, "model.layers.2.self_attn.q_proj.bias", 64, 0);
    check_param(qwen2, "model.layers.2.self_attn.k_proj.weight", 32, 64);
    assert_null(cr_model_find_param(qwen2, "model.layers.2.self_attn.o_proj.bias"));
    assert_ptr_equal(cr_model_find_param(qwen2, "lm_head.weight"),
                     cr_model_find_param(qwen2, "model.embed_tokens.weight"));
    check_param(qwen3, "model.layers.0.self_attn.q_norm.weight", 32, 0);
    check_param(qwen3, "model.layers.0.self_attn.o_proj.weight", 64, 128);
    check_param(qwen3, "lm_head.weight", 100, 64);
    assert_null(cr_model_find_param(qwen3, "model.layers.3.mlp.up_proj.weight"));
    check_param(llama, "model.layers.1.self_attn.o_proj.bias", 64, 0);
    check_param(llama, "model.layers.1.mlp.down_proj.bias", 64, 0);
    assert_string_equal(qwen3->root->cls, "Qwen3ForCausalLM");
    assert_string_equal(cr_model_find_module(qwen3, "model")->cls, "Qwen3Model");
    assert_string_equal(cr_model_find_module(qwen3, "model.layers")->cls, "ModuleList");
    assert_string_equal(cr_model_find_module(qwen3, "model.layers.1")->cls, "Qwen3DecoderLayer");
    assert_string_equal(cr_model_find_module(qwen3, "model.layers.1.self_attn")->cls,
                        "Qwen3Attention");
    assert_string_equal(cr_model_find_module(qwen3, "model.layers.1.mlp")->cls, "Qwen3MLP");
    assert_string_equal(cr_model_find_module(qwen3, "model.norm")->cls, "Qwen3RMSNorm");
    assert_string_equal(cr_model_find_module(qwen3, "model.embed_tokens")->cls, "Embedding");
    assert_string_equal(qwen3->no_split[0], "Qwen3DecoderLayer");
    assert_null(cr_model_find_module(qwen3, "model.layer"));
    assert_int_equal(cr_model_find_module(qwen3, "model.layers.2.mlp.up_proj")->layer, 2);
    cr_model_free(qwen2);
    cr_model_free(qwen3);
    cr_model_free(llama);
}

#define ROPE(dim, scaling)                                                                      \
    "{\"model_type\":\"llama\",\"hidden_size\":" #dim ",\"intermediate_size\":8,"               \
    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"vocab_size\":8,\"head_dim\":" #dim "," \
    "\"max_position_embeddings\":1024," scaling "}"

/* Vectors of Transformers' rope_utils; they are float32, so 3 units in the last place. */
static void check_freq(const cr_model *model, int at, double want)
{
    check_near(model->config.ropes[0].inv_freq[at], want, 3.6e-7 * want);
}

static void rotary_frequencies(void **state)
{
    cr_model *llama3 = must_build(ROPE(
        128, "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
             "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
             "\"original_max_position_embeddings\":8192}"));
    cr_model *yarn = must_build(ROPE(
        128, "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"yarn\",\"factor\":4.0,"
             "\"original_max_position_embeddings\":32768}"));
    cr_model *linear = must_build(
        ROPE(128, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_theta\":10000"));
    cr_model *dynamic =
        must_build(ROPE(128, "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"));

    (void)state;
    check_freq(llama3, 28, 3.211446106e-03);
    check_freq(llama3, 29, 2.166570630e-03);
    check_freq(llama3, 32, 5.248460220e-04);
    check_freq(llama3, 35, 9.556212171e-05);
    check_freq(llama3, 36, 7.784655463e-05);
    check_freq(llama3, 63, 3.068925878e-07);
    check_near(yarn->config.ropes[0].scaling, 1.138629436, 1e-7);
    check_freq(yarn, 23, 6.978305988e-03);
    check_freq(yarn, 24, 5.375321489e-03);
    check_freq(yarn, 30, 1.064360957e-03);
    check_freq(yarn, 39, 6.490394298e-05);
    check_freq(yarn, 40, 4.445698505e-05);
    check_freq(linear, 0, 0.5);
    check_freq(linear, 32, 0.005);
    check_freq(dynamic, 32, 0.01);
    assert_int_equal(dynamic->config.position_limit, 1024);
    cr_model_free(llama3);
    cr_model_free(yarn);
    cr_model_free(linear);
    cr_model_free(dynamic);
}

static void windows_and_sparse_layers(void **state)
{
    cr_model *off = must_build("{" SMALL("qwen2") ",\"sliding_window\":16,"
                                                  "\"max_window_layers\":1}");
    cr_model *on = must_build("{" SMALL("qwen2") ",\"sliding_window\":16,\"max_window_layers\":1,"
                                                 "\"use_sliding_window\":true}");
    cr_model *dense = must_build("{" SMALL("qwen3_moe") ",\"mlp_only_layers\":[0,1,2]}");
    cr_model *moe =
        must_build("{" SMALL("qwen3_moe") ",\"num_local_experts\":8,\"mlp_only_layers\":[2]}");

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(off->config.layers[i].window, 0);
    assert_int_equal(on->config.layers[0].window, 0);
    assert_int_equal(on->config.layers[1].window, 16);
    assert_string_equal(dense->layers[0]->cls, "Qwen3MoeDecoderLayer");
    cr_model_free(off);
    cr_model_free(on);
    cr_model_free(dense);
    assert_string_equal(cr_model_find_module(moe, "model.layers.1.mlp")->cls,
                        "Qwen3MoeSparseMoeBlock");
    assert_string_equal(cr_model_find_module(moe, "model.layers.0.mlp.experts.7")->cls,
                        "Qwen3MoeMLP");
    assert_int_equal(cr_model_find_param(moe, "model.layers.1.mlp.gate.weight")->shape[0], 8);
    assert_string_equal(cr_model_find_module(moe, "model.layers.2.mlp")->cls, "Qwen3MoeMLP");
    cr_model_free(moe);
}

/* As Transformers 4 and the hub write it, and 5; what config.json does not say. */
static void gemma3(void **state)
{
    cr_model *old = must_build("{" SMALL(
        "gemma3_text") ",\"sliding_window\":16,\"sliding_window_pattern\":2,\"rope_theta\":"
                       "1e6,\"rope_local_base_freq\":100.0,\"query_pre_attn_scalar\":64,"
                       "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}");
    cr_model *new = must_build(
        "{" SMALL("gemma3_text") ",\"sliding_window\":16,\"query_pre_attn_scalar\":64,"
                                 "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                                 "\"sliding_attention\"],\"rope_parameters\":{\"full_attention\":{"
                                 "\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1e6},"
                                 "\"sliding_attention\":{\"rope_theta\":100.0}}}");
    const cr_model_config *a = &old->config, *b = &new->config;

    (void)state;
    assert_memory_equal(a->layers, b->layers, 3 * sizeof *a->layers);
    assert_int_equal(a->layers[0].window, 16);
    assert_int_equal(a->layers[1].window, 0);
    assert_int_equal(a->layers[0].rope, 1);
    assert_int_equal(a->layers[1].rope, 0);
    check_near(a->layers[1].scale, 0.125, 0);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(a->ropes[i].inv_freq, b->ropes[i].inv_freq,
                            (size_t)a->head_dim / 2 * sizeof(float));
    check_freq(old, 0, 1.0 / 8);
    check_near(a->ropes[1].inv_freq[0], 1, 0);
    assert_true(a->is_tied);
    assert_string_equal(old->root->cls, "Gemma3ForCausalLM");
    assert_string_equal(cr_model_find_module(old, "model")->cls, "Gemma3TextModel");
    assert_string_equal(cr_model_find_module(old, "model.embed_tokens")->cls,
                        "Gemma3TextScaledWordEmbedding");
    assert_string_equal(cr_model_find_module(old, "model.layers.2.post_feedforward_layernorm")->cls,
                        "Gemma3RMSNorm");
    cr_model_free(old);
    cr_model_free(new);
}

/* Each changes one thing of a good file; the sentence must name the key. */
static const char *const refused[][2] = {
    {"\"vocab_size\":-3", "vocab_size"},
    {"\"vocab_size\":\"100\"", "vocab_size"},
    {"\"hidden_size\":99999999999999", "hidden_size"},
    {"\"num_key_value_heads\":3", "num_key_value_heads"},
    {"\"head_dim\":33", "head_dim"},
    {"\"num_attention_heads\":6,\"head_dim\":null", "num_attention_heads"},
    {"\"hidden_act\":\"gelu\"", "hidden_act"},
    {"\"rms_norm_eps\":-1", "rms_norm_eps"},
    {"\"rope_theta\":0", "rope_theta"},
    {"\"rope_scaling\":{\"type\":\"longrope\"}", "longrope"},
    {"\"rope_scaling\":{\"type\":\"linear\"}", "factor"},
    {"\"rope_scaling\":7", "rope_scaling"},
    {"\"tie_word_embeddings\":\"yes\"", "tie_word_embeddings"},
    {"\"quantization_config\":{}", "quantization_config"},
    {"\"model_type\":\"mamba\"", "mamba"},
    {"\"model_type\":null", "model_type"},
    {"\"architectures\":[\"Qwen3ForSequenceClassification\"]", "Qwen3ForSequenceClassification"},
    {"\"torch_dtype\":\"int8\"", "int8"},
    {"\"pad_token_id\":100", "pad_token_id"},
    {"\"eos_token_id\":[1,\"x\"]", "eos_token_id"},
    {"\"attention_dropout\":0.1", "attention_dropout"},
    {"\"final_logit_softcapping\":30.0", "final_logit_softcapping"},
    {"\"use_bidirectional_attention\":true", "use_bidirectional_attention"},
    {"\"model_type\":\"gemma3_text\",\"hidden_activation\":\"silu\"", "hidden_activation"},
    {"\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":[]}",
     "full_attention"},
};

static void wrong_values_name_their_key(void **state)
{
    static const char base[] = "{" SMALL("qwen3") "}";

    (void)state;
    for (size_t i = 0; i < CR_COUNT(refused); i++) {
        cr_err err = {0};
        cr_model *model;
        json_t *json = NULL, *change = NULL;
        char text[200];
        snprintf(text, sizeof text, "{%s}", refused[i][0]);
        assert_int_equal(cr_json_parse(base, sizeof base - 1, "base", &json, &err), CR_OK);
        assert_int_equal(cr_json_parse(text, strlen(text), "change", &change, &err), CR_OK);
        json_object_update(json, change);
        if (cr_model_build(json, NULL, &model, &err) == CR_OK) fail_msg("accepted: %s", text);
        assert_null(model);
        if (!strstr(err.msg, refused[i][1]) || !strstr(err.msg, "config.json"))
            fail_msg("%s: %s", text, err.msg);
        json_decref(json);
        json_decref(change);
    }
}

static void generation_config_decides_eos(void **state)
{
    cr_err err = {0};
    json_t *json = NULL, *generation = NULL;
    cr_model *model;
    const char text[] = "{" SMALL("llama") ",\"eos_token_id\":2,\"pad_token_id\":-1}";
    const char list[] = "{\"eos_token_id\":[5,7]}";

    (void)state;
    assert_int_equal(cr_json_parse(text, sizeof text - 1, "a", &json, &err), CR_OK);
    assert_int_equal(cr_json_parse(list, sizeof list - 1, "b", &generation, &err), CR_OK);
    assert_int_equal(cr_model_build(json, generation, &model, &err), CR_OK);
    assert_int_equal(model->config.num_eos, 2);
    assert_int_equal(model->config.eos_ids[1], 7);
    assert_int_equal(model->config.pad_id, -1);
    cr_model_free(model);
    json_decref(json);
    json_decref(generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_published_models),
        cmocka_unit_test(flags),
        cmocka_unit_test(names_and_classes),
        cmocka_unit_test(rotary_frequencies),
        cmocka_unit_test(windows_and_sparse_layers),
        cmocka_unit_test(gemma3),
        cmocka_unit_test(wrong_values_name_their_key),
        cmocka_unit_test(generation_config_decides_eos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
