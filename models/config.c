/* config.c -- config.json of a family, checked in full (vision_config: config_vision.c).
 *
 * Absent keys have the defaults of Transformers' classes, except the sizes that decide the shapes of
 * weights: those are required. A key that would change the result and that we do not compute
 * (another activation, quantisation, dropout, ..) is refused; other unknown keys are no business of
 * a model's mathematics and are left alone. Both spellings: 4.x (rope_scaling, torch_dtype,
 * num_experts) and 5.x (rope_parameters, dtype, num_local_experts).
 */
#include "models/config_impl.h"

#include <math.h>
#include <string.h>

static const cri_family families[] = {
    {.model_type = "llama",
     .prefix = "Llama",
     .text_prefix = "Llama",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .mlp_bias = CRI_BIAS_KEY,
     .max_position_embeddings = 2048},
    {.model_type = "qwen2",
     .prefix = "Qwen2",
     .text_prefix = "Qwen2",
     .qkv_bias = CRI_BIAS_ALWAYS,
     .has_window = true,
     .num_kv_heads = 32,
     .max_position_embeddings = 32768},
    {.model_type = "qwen3",
     .prefix = "Qwen3",
     .text_prefix = "Qwen3",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .has_qk_norm = true,
     .has_window = true,
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768},
    {.model_type = "gemma3_text",
     .prefix = "Gemma3",
     .text_prefix = "Gemma3",
     .base = "Gemma3TextModel",
     .act_key = "hidden_activation",
     .act = "gelu_pytorch_tanh",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .has_qk_norm = true,
     .has_norms_after = true,
     .is_tied = true,
     .norm_offset = 1,
     .scales_embedding = true,
     .window_pattern = 6,
     .query_scalar = 256,
     .num_kv_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 131072,
     .rope_theta = 1e6},
    {.model_type = "qwen3_moe",
     .prefix = "Qwen3Moe",
     .text_prefix = "Qwen3Moe",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .has_qk_norm = true,
     .has_window = true,
     .has_experts = true,
     .num_kv_heads = 4,
     .max_position_embeddings = 32768},
    {.model_type = "qwen2_5_vl",
     .prefix = "Qwen2_5_VL",
     .text_prefix = "Qwen2_5_VL",
     .mlp = "Qwen2MLP",
     .qkv_bias = CRI_BIAS_ALWAYS,
     .has_window = true,
     .num_kv_heads = 8,
     .max_position_embeddings = 32768,
     .max_window_layers = 80,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .vision = CRI_VISION_WINDOWS,
     .vision_class = "Qwen2_5_VisionTransformerPretrainedModel",
     .vision_act = "silu",
     .patch_size = 14},
    {.model_type = "qwen3_vl",
     .prefix = "Qwen3VL",
     .text_prefix = "Qwen3VLText",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .has_qk_norm = true,
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 128000,
     .rope_theta = 5e5,
     .vision = CRI_VISION_DEEPSTACK,
     .vision_class = "Qwen3VLVisionModel",
     .vision_act = "gelu_pytorch_tanh",
     .patch_size = 16},
    {.model_type = "qwen3_vl_moe",
     .prefix = "Qwen3VLMoe",
     .text_prefix = "Qwen3VLMoeText",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .has_qk_norm = true,
     .has_experts = true,
     .is_stacked = true,
     .num_kv_heads = 16,
     .max_position_embeddings = 128000,
     .rope_theta = 5e5,
     .vision = CRI_VISION_DEEPSTACK,
     .vision_class = "Qwen3VLMoeVisionModel",
     .vision_act = "gelu_pytorch_tanh",
     .patch_size = 16},
    {.model_type = "prismatic",
     .prefix = "Prismatic",
     .text_prefix = "Llama",
     .qkv_bias = CRI_BIAS_KEY,
     .o_bias = CRI_BIAS_KEY,
     .mlp_bias = CRI_BIAS_KEY,
     .max_position_embeddings = 2048,
     .vision = CRI_VISION_PRISMATIC},
};

const cri_family *cri_family_find(const char *model_type)
{
    for (size_t i = 0; i < CR_COUNT(families); i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

/* ---- values ---- */

const json_t *cri_json_get(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);

    return json_is_null(value) ? NULL : value;
}

cr_status cri_json_int(const json_t *o, const char *key, int64_t fallback, int64_t min, int64_t max,
                       int64_t *out, cr_err *err)
{
    const json_t *value = cri_json_get(o, key);

    *out = fallback;
    if (!value && fallback >= min) return CR_OK;
    if (!value)
        return cr_fail(err, CR_EFORMAT, "key '%s' is missing (a whole number from %lld to %lld)",
                       key, (long long)min, (long long)max);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        return cr_fail(err, CR_EFORMAT, "'%s' must be a whole number from %lld to %lld", key,
                       (long long)min, (long long)max);
    *out = json_integer_value(value);
    return CR_OK;
}

cr_status cri_json_bool(const json_t *o, const char *key, bool fallback, bool *out, cr_err *err)
{
    const json_t *value = cri_json_get(o, key);

    *out = fallback;
    if (!value) return CR_OK;
    if (!json_is_boolean(value)) return cr_fail(err, CR_EFORMAT, "'%s' must be true or false", key);
    *out = json_is_true(value);
    return CR_OK;
}

cr_status cri_json_real(const json_t *o, const char *key, double fallback, double min, double max,
                        double *out, cr_err *err)
{
    const json_t *value = cri_json_get(o, key);

    *out = fallback;
    if (!value && !isnan(fallback)) return CR_OK;
    if (!value) return cr_fail(err, CR_EFORMAT, "key '%s' is missing (a number)", key);
    if (!json_is_number(value) || !(json_number_value(value) >= min) ||
        !(json_number_value(value) <= max))
        return cr_fail(err, CR_EFORMAT, "'%s' must be a number from %g to %g", key, min, max);
    *out = json_number_value(value);
    return CR_OK;
}

cr_status cri_json_only(const json_t *o, const char *key, const char *only, cr_err *err)
{
    const json_t *value = cri_json_get(o, key);

    if (!value || (json_is_string(value) && strcmp(json_string_value(value), only) == 0))
        return CR_OK;
    return cr_fail(err, CR_EABSENT, "'%s' %s is not available (only \"%s\" is)", key,
                   json_is_string(value) ? json_string_value(value) : "that is not a text", only);
}

/* ---- parts of config.json ---- */

/* A value head may begin with the weights below a language-model head, and with those of a reward model. */
static bool has_base(const char *architecture, const cri_family *family)
{
    size_t num = strlen(family->prefix);

    return strncmp(architecture, family->prefix, num) == 0 &&
           (strcmp(architecture + num, "ForCausalLM") == 0 ||
            strcmp(architecture + num, "ForSequenceClassification") == 0);
}

static cr_status read_family(cr_model_config *c, const json_t *json, cr_head_kind head,
                             const cri_family **family, cr_err *err)
{
    const bool has_value_head = head != CR_HEAD_WORDS;
    const json_t *type = cri_json_get(json, "model_type"),
                 *names = cri_json_get(json, "architectures"), *first;

    if (!json_is_string(type))
        return cr_fail(err, CR_EFORMAT,
                       "key 'model_type' is missing (text, for example \"qwen3\")");
    *family = cri_family_find(json_string_value(type));
    if (!*family)
        return cr_fail(err, CR_EABSENT,
                       "model_type '%s' is not available (llama, qwen2, qwen3, gemma3_text, "
                       "qwen3_moe, qwen2_5_vl, qwen3_vl, qwen3_vl_moe and prismatic are)",
                       json_string_value(type));
    c->model_type = cr_strdup((*family)->model_type);
    if (has_value_head && (*family)->vision)
        return cr_fail(err, CR_EABSENT, "a value head is not available for a '%s'",
                       (*family)->model_type);
    c->architecture = cr_asprintf("%sFor%s", (*family)->prefix,
                                  head == CR_HEAD_SCORE ? "SequenceClassification"
                                  : has_value_head      ? "TokenClassification"
                                  : (*family)->vision   ? "ConditionalGeneration"
                                                        : "CausalLM");
    if (!names) return CR_OK;
    first = json_array_get(names, 0);
    if (!json_is_array(names) || (json_array_size(names) && !json_is_string(first)))
        return cr_fail(err, CR_EFORMAT, "'architectures' must be a list of names");
    if (has_value_head && head != CR_HEAD_SCORE && first &&
        has_base(json_string_value(first), *family))
        return CR_OK;
    if (first && strcmp(json_string_value(first), c->architecture) != 0)
        return cr_fail(err, CR_EABSENT, "architecture '%s' is not available (%s is)",
                       json_string_value(first), c->architecture);
    return CR_OK;
}

static cr_status read_sizes(cr_model_config *c, const json_t *json, const cri_family *family,
                            cr_err *err)
{
    bool has_kv = json_object_get(json, "num_key_value_heads") != NULL;
    bool has_dim = json_object_get(json, "head_dim") != NULL;
    int64_t dim, kv;

    CR_TRY(cri_json_int(json, "vocab_size", 0, 1, 1 << 26, &c->vocab_size, err));
    CR_TRY(cri_json_int(json, "hidden_size", 0, 1, 1 << 20, &c->hidden_size, err));
    CR_TRY(cri_json_int(json, "intermediate_size", 0, 1, 1 << 22, &c->intermediate_size, err));
    CR_TRY(cri_json_int(json, "num_hidden_layers", 0, 1, 4096, &c->num_layers, err));
    CR_TRY(cri_json_int(json, "num_attention_heads", 0, 1, 4096, &c->num_heads, err));
    kv = has_kv || !family->num_kv_heads ? c->num_heads : family->num_kv_heads;
    CR_TRY(cri_json_int(json, "num_key_value_heads", kv, 1, 4096, &c->num_kv_heads, err));
    if (c->num_heads % c->num_kv_heads)
        return cr_fail(err, CR_EFORMAT,
                       "num_key_value_heads %lld does not divide num_attention_heads %lld",
                       (long long)c->num_kv_heads, (long long)c->num_heads);
    dim = has_dim || !family->head_dim ? c->hidden_size / c->num_heads : family->head_dim;
    if (!cri_json_get(json, "head_dim") && dim * c->num_heads != c->hidden_size &&
        dim != family->head_dim)
        return cr_fail(err, CR_EFORMAT,
                       "num_attention_heads %lld does not divide hidden_size %lld, and there is no "
                       "head_dim",
                       (long long)c->num_heads, (long long)c->hidden_size);
    CR_TRY(cri_json_int(json, "head_dim", dim, 2, 256, &c->head_dim, err));
    if (c->head_dim < 2 || c->head_dim > 256 || c->head_dim % 2)
        return cr_fail(err, CR_EABSENT,
                       "head_dim %lld is not available (even numbers up to 256 are)",
                       (long long)c->head_dim);
    return cri_json_int(json, "max_position_embeddings", family->max_position_embeddings, 1,
                        INT32_MAX, &c->max_position_embeddings, err);
}

static cr_status read_bias(const json_t *json, const char *key, cri_bias rule, bool *out,
                           cr_err *err)
{
    *out = rule == CRI_BIAS_ALWAYS;
    if (rule != CRI_BIAS_KEY) return CR_OK;
    return cri_json_bool(json, key, false, out, err);
}

static cr_status refuse_softcaps(const json_t *json, cr_err *err)
{
    static const char *const keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    bool is_bidirectional;

    for (size_t i = 0; i < CR_COUNT(keys); i++)
        if (cri_json_get(json, keys[i]))
            return cr_fail(err, CR_EABSENT, "'%s' is not available (null is)", keys[i]);
    CR_TRY(cri_json_bool(json, "use_bidirectional_attention", false, &is_bidirectional, err));
    return is_bidirectional
               ? cr_fail(err, CR_EABSENT, "'use_bidirectional_attention' true is not available")
               : CR_OK;
}

static cr_status read_switches(cr_model_config *c, const json_t *json, const cri_family *family,
                               cr_err *err)
{
    double eps, range, dropout;

    CR_TRY(cri_json_only(json, family->act_key ? family->act_key : "hidden_act",
                         family->act ? family->act : "silu", err));
    CR_TRY(refuse_softcaps(json, err));
    if (cri_json_get(json, "quantization_config"))
        return cr_fail(err, CR_EABSENT,
                       "'quantization_config': quantised weights are not available");
    CR_TRY(cri_json_real(json, "attention_dropout", 0, 0, 1, &dropout, err));
    if (dropout != 0)
        return cr_fail(err, CR_EABSENT, "attention_dropout %g is not available (0 is)", dropout);
    eps = family->rms_norm_eps > 0 ? family->rms_norm_eps : 1e-6;
    CR_TRY(cri_json_real(json, "rms_norm_eps", eps, 0, 1, &eps, err));
    CR_TRY(cri_json_real(json, "initializer_range", 0.02, 0, 10, &range, err));
    c->rms_norm_eps = (float)eps;
    c->initializer_range = (float)range;
    c->has_qk_norm = family->has_qk_norm;
    c->has_norms_after = family->has_norms_after;
    c->has_geglu = family->act != NULL;
    c->norm_offset = family->norm_offset;
    if (family->scales_embedding) c->embed_scale = sqrtf((float)c->hidden_size);
    CR_TRY(cri_json_bool(json, "tie_word_embeddings", family->is_tied, &c->is_tied, err));
    CR_TRY(read_bias(json, "attention_bias", family->qkv_bias, &c->has_qkv_bias, err));
    CR_TRY(read_bias(json, "attention_bias", family->o_bias, &c->has_o_bias, err));
    return read_bias(json, "mlp_bias", family->mlp_bias, &c->has_mlp_bias, err);
}

/* A window counts only when use_sliding_window says so; then it is for layers from
 * max_window_layers on (all layers of qwen3_moe), unless layer_types says otherwise. In Gemma it is for
 * all layers but each n-th (sliding_window_pattern), unless layer_types says otherwise. */
static cr_status read_windows(cr_model_config *c, const json_t *json, const cri_family *family,
                              cr_err *err)
{
    const json_t *types = cri_json_get(json, "layer_types");
    int64_t window, from = 0, pattern = 0;
    bool is_on = family->window_pattern > 0;

    if (family->has_window) CR_TRY(cri_json_bool(json, "use_sliding_window", false, &is_on, err));
    if (!is_on) return CR_OK;
    if (family->window_pattern)
        CR_TRY(cri_json_int(json, "sliding_window_pattern", family->window_pattern, 1, INT32_MAX,
                            &pattern, err));
    else if (!family->has_experts)
        CR_TRY(cri_json_int(json, "max_window_layers",
                            family->max_window_layers ? family->max_window_layers : 28, 0,
                            INT32_MAX, &from, err));
    if (json_object_get(json, "sliding_window") && !cri_json_get(json, "sliding_window"))
        return pattern ? cr_fail(err, CR_EFORMAT, "'sliding_window' must be a whole number")
                       : CR_OK;
    CR_TRY(cri_json_int(json, "sliding_window", 4096, 1, INT32_MAX, &window, err));
    for (int64_t i = from; i < c->num_layers; i++)
        c->layers[i].window = pattern && (i + 1) % pattern == 0 ? 0 : window;
    if (!types || family->has_experts) return CR_OK;
    if (!json_is_array(types) || (int64_t)json_array_size(types) != c->num_layers)
        return cr_fail(err, CR_EFORMAT, "'layer_types' must list num_hidden_layers (%lld) names",
                       (long long)c->num_layers);
    for (int64_t i = 0; i < c->num_layers; i++) {
        const char *name = json_string_value(json_array_get(types, (size_t)i));
        bool is_sliding = name && strcmp(name, "sliding_attention") == 0;
        if (!is_sliding && !(name && strcmp(name, "full_attention") == 0))
            return cr_fail(err, CR_EABSENT,
                           "layer_types[%lld] '%s' is not available (full_attention and "
                           "sliding_attention are)",
                           (long long)i, name ? name : "");
        c->layers[i].window = is_sliding ? window : 0;
    }
    return CR_OK;
}

static cr_status read_experts(cr_model_config *c, const json_t *json, const cri_family *family,
                              cr_err *err)
{
    const json_t *dense = cri_json_get(json, "mlp_only_layers"), *entry;
    bool is_vl = family->is_stacked; /* defaults of another class */
    int64_t step, num_local;
    double coef;
    size_t at;

    if (!family->has_experts) return CR_OK;
    CR_TRY(cri_json_int(json, "num_local_experts", is_vl ? 60 : 128, 0, 4096, &num_local, err));
    CR_TRY(cri_json_int(json, "num_experts", num_local, 0, 4096, &c->num_experts, err));
    CR_TRY(cri_json_int(json, "num_experts_per_tok", is_vl ? 4 : 8, 1, 4096,
                        &c->num_experts_per_tok, err));
    CR_TRY(cri_json_int(json, "moe_intermediate_size", is_vl ? 1408 : 768, 1, 1 << 22,
                        &c->moe_intermediate_size, err));
    CR_TRY(cri_json_int(json, "decoder_sparse_step", 1, 1, 4096, &step, err));
    CR_TRY(cri_json_bool(json, "norm_topk_prob", false, &c->should_norm_topk, err));
    c->should_norm_topk = c->should_norm_topk || is_vl;
    CR_TRY(cri_json_bool(json, "output_router_logits", false, &c->wants_aux_loss, err));
    CR_TRY(cri_json_real(json, "router_aux_loss_coef", 0.001, 0, 1e6, &coef, err));
    c->router_aux_loss_coef = (float)coef;
    if (c->num_experts && c->num_experts_per_tok > c->num_experts)
        return cr_fail(err, CR_EFORMAT, "num_experts_per_tok %lld is more than num_experts %lld",
                       (long long)c->num_experts_per_tok, (long long)c->num_experts);
    for (int64_t i = 0; i < c->num_layers; i++)
        c->layers[i].is_sparse = c->num_experts > 0 && (i + 1) % step == 0;
    if (dense && !json_is_array(dense))
        return cr_fail(err, CR_EFORMAT, "'mlp_only_layers' must be a list of layers");
    json_array_foreach(dense, at, entry)
    {
        int64_t layer = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (layer < 0)
            return cr_fail(err, CR_EFORMAT, "'mlp_only_layers' must be a list of layers");
        if (layer < c->num_layers) c->layers[layer].is_sparse = false;
    }
    return CR_OK;
}

/* What decoder layers have of their own. */
static cr_status read_layers(cr_model_config *c, const json_t *json, const cri_family *family,
                             cr_err *err)
{
    double scalar = (double)c->head_dim;

    c->layers = CR_NEW_ARRAY(cr_layer_config, c->num_layers);
    if (family->query_scalar > 0)
        CR_TRY(cri_json_real(json, "query_pre_attn_scalar", family->query_scalar, 1e-6, 1e6,
                             &scalar, err));
    CR_TRY(read_windows(c, json, family, err));
    for (int64_t i = 0; i < c->num_layers; i++) {
        c->layers[i].scale = 1.0f / sqrtf((float)scalar);
        c->layers[i].rope = family->window_pattern && c->layers[i].window;
    }
    return read_experts(c, json, family, err);
}

static cr_status read_dtype(cr_model_config *c, const json_t *json, cr_err *err)
{
    static const struct {
        const char *name;
        cr_dtype dtype;
    } names[] = {{"float32", CR_F32}, {"bfloat16", CR_BF16}, {"float16", CR_F16}};
    const json_t *value = cri_json_get(json, "dtype");
    const char *text;

    if (!value) value = cri_json_get(json, "torch_dtype");
    c->storage_dtype = CR_F32;
    if (!value) return CR_OK;
    text = json_is_string(value) ? json_string_value(value) : "";
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(text, names[i].name) == 0) {
            c->storage_dtype = names[i].dtype;
            return CR_OK;
        }
    return cr_fail(err, CR_EFORMAT, "dtype '%s' is unknown (float32, bfloat16 or float16)", text);
}

/* ---- token ids ---- */

/* One id, or null. Negative ids (old Llama files say pad -1) mean none. */
static cr_status read_id(const json_t *json, const char *key, int32_t *out, cr_err *err)
{
    const json_t *value = cri_json_get(json, key);

    *out = -1;
    if (!value) return CR_OK;
    if (json_is_array(value) && json_array_size(value) == 1) value = json_array_get(value, 0);
    if (!json_is_integer(value) || json_integer_value(value) > INT32_MAX)
        return cr_fail(err, CR_EFORMAT, "'%s' must be a token id or null", key);
    if (json_integer_value(value) >= 0) *out = (int32_t)json_integer_value(value);
    return CR_OK;
}

static cr_status add_eos(cr_model_config *c, const json_t *id, cr_err *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return cr_fail(err, CR_EFORMAT, "'eos_token_id' must be a token id or a list of them");
    if (c->num_eos == (int)CR_COUNT(c->eos_ids))
        return cr_fail(err, CR_EFORMAT, "'eos_token_id' lists more than %d ids",
                       (int)CR_COUNT(c->eos_ids));
    c->eos_ids[c->num_eos++] = (int32_t)json_integer_value(id);
    return CR_OK;
}

static cr_status read_ids(cr_model_config *c, const json_t *json, const json_t *generation,
                          cr_err *err)
{
    const json_t *eos = cri_json_get(generation, "eos_token_id"), *entry;
    size_t at;

    for (size_t i = 0; i < CR_COUNT(c->eos_ids); i++)
        c->eos_ids[i] = -1;
    CR_TRY(read_id(json, "bos_token_id", &c->bos_id, err));
    CR_TRY(read_id(json, "pad_token_id", &c->pad_id, err));
    if (c->pad_id >= c->vocab_size)
        return cr_fail(err, CR_EFORMAT, "pad_token_id %d is outside the vocabulary of %lld",
                       c->pad_id, (long long)c->vocab_size);
    if (!eos) eos = cri_json_get(json, "eos_token_id");
    if (!eos) return CR_OK;
    if (!json_is_array(eos)) return add_eos(c, eos, err);
    json_array_foreach(eos, at, entry) CR_TRY(add_eos(c, entry, err));
    return CR_OK;
}

cr_status cri_config_read(cr_model_config *c, const json_t *json, const json_t *generation,
                          cr_head_kind head, cr_err *err)
{
    const cri_family *family = NULL;
    json_t *text;

    if (!json_is_object(json)) return cr_fail(err, CR_EFORMAT, "must be a JSON object");
    if (generation && !json_is_object(generation))
        return cr_fail(err, CR_EFORMAT, "generation_config.json must be a JSON object");
    CR_TRY(read_family(c, json, head, &family, err));
    if (family->vision == CRI_VISION_PRISMATIC)
        CR_TRY(cri_prismatic_text(json, &text, err));
    else
        text = cri_vision_text(json, family);
    CR_TRY_GOTO(out, read_sizes(c, text, family, err));
    CR_TRY_GOTO(out, read_switches(c, text, family, err));
    CR_TRY_GOTO(out, read_layers(c, text, family, err));
    CR_TRY_GOTO(out, read_dtype(c, text, err));
    CR_TRY_GOTO(out, read_ids(c, text, generation, err));
    CR_TRY_GOTO(out, cri_rope_read(c, text, family, err));
    CR_TRY_GOTO(out, cri_vision_read(c, json, text, family, err));
out:
    json_decref(text);
    return err->status;
}

void cri_config_fini(cr_model_config *c)
{
    cr_free(c->model_type);
    cr_free(c->architecture);
    for (size_t i = 0; i < CR_MAX_ROPES; i++)
        cr_free(c->ropes[i].inv_freq);
    cr_free(c->rope_axis);
    cr_free(c->layers);
    if (c->vision) cr_free(c->vision->is_full);
    cr_free(c->vision);
    json_decref(c->json);
}
