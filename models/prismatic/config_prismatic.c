/* config_prismatic.c -- config.json of a Prismatic model, with the keys of its port to Transformers (PrismaticConfig).
 *
 * What each vision transformer is, `vision_towers` says: a list of one or two objects with the keys of Transformers'
 * SiglipVisionConfig and Dinov2Config; or timm_model_ids, by the names of the port. All sizes are free; patches of both
 * must be as many, for their features lie side by side.
 */
#include "models/config_impl.h"

#include <math.h>
#include <string.h>

/* What LlamaConfig of Transformers has where text_config, which the port writes without defaults, is silent. */
cr_status cri_prismatic_text(const json_t *json, json_t **text, cr_err *err)
{
    static const struct {
        const char *key;
        json_int_t value;
    } usual[] = {{"vocab_size", 32000},        {"hidden_size", 4096},
                 {"intermediate_size", 11008}, {"num_hidden_layers", 32},
                 {"num_attention_heads", 32},  {"bos_token_id", 1},
                 {"eos_token_id", 2}};
    const json_t *inner = cri_json_get(json, "text_config"), *type;

    if (!json_is_object(inner))
        return cr_fail(err, CR_EFORMAT, "key 'text_config' is missing (an object)");
    type = cri_json_get(inner, "model_type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "llama") != 0))
        return cr_fail(err, CR_EABSENT, "text_config: model_type '%s' is not available (llama is)",
                       json_is_string(type) ? json_string_value(type) : "");
    *text = json_deep_copy(inner);
    for (size_t i = 0; i < CR_COUNT(usual); i++)
        if (!json_object_get(*text, usual[i].key))
            json_object_set_new(*text, usual[i].key, json_integer(usual[i].value));
    if (!cri_json_get(*text, "dtype") && !cri_json_get(*text, "torch_dtype") &&
        cri_json_get(json, "torch_dtype"))
        json_object_set(*text, "torch_dtype", json_object_get(json, "torch_dtype"));
    return CR_OK;
}

/* ---- one vision transformer ---- */

enum { MAX_SIZE = 2048 /* pixels, along a side */ };

static cr_status finish_vit(cr_vit_config *c, cr_err *err)
{
    int64_t dim = c->hidden_size / c->num_heads;

    if (dim * c->num_heads != c->hidden_size || dim % 4 || dim > 256)
        return cr_fail(err, CR_EABSENT,
                       "hidden_size %lld with %lld heads is not available (heads must have a "
                       "multiple of 4 elements, up to 256)",
                       (long long)c->hidden_size, (long long)c->num_heads);
    if (c->image_size % c->patch_size)
        return cr_fail(err, CR_EABSENT,
                       "image_size %lld is no multiple of patch_size %lld: not available",
                       (long long)c->image_size, (long long)c->patch_size);
    if (c->intermediate_size < 1)
        return cr_fail(err, CR_EFORMAT, "mlp_ratio gives an MLP of no width");
    c->side = c->image_size / c->patch_size;
    c->patch_dim = 3 * c->patch_size * c->patch_size;
    /* as timm: with registers a class token has no position of its own */
    c->num_positions = c->side * c->side + (c->num_reg ? 0 : c->num_class);
    return CR_OK;
}

static cr_status read_act(cr_vit_config *c, const json_t *v, const char *usual, cr_err *err)
{
    const json_t *act = cri_json_get(v, "hidden_act");
    const char *name = act ? json_string_value(act) : usual;

    c->has_tanh = name && strcmp(name, "gelu_pytorch_tanh") == 0;
    if (!c->has_tanh && !(name && strcmp(name, "gelu") == 0))
        return cr_fail(err, CR_EABSENT,
                       "hidden_act '%s' is not available (gelu and gelu_pytorch_tanh are)",
                       name ? name : "");
    return CR_OK;
}

static cr_status read_vit(cr_vit_config *c, const json_t *v, cr_err *err)
{
    const char *type = json_string_value(json_object_get(v, "model_type"));
    bool is_siglip = type && strcmp(type, "siglip_vision_model") == 0,
         has_registers = type && strcmp(type, "dinov2_with_registers") == 0, is_swiglu;
    double eps, ratio;
    int64_t depth, channels;

    if (!is_siglip && !has_registers && !(type && strcmp(type, "dinov2") == 0))
        return cr_fail(err, CR_EABSENT,
                       "model_type '%s' is not available (siglip_vision_model, dinov2 and "
                       "dinov2_with_registers are)",
                       type ? type : "");
    CR_TRY(cri_json_int(v, "hidden_size", 0, 1, 1 << 20, &c->hidden_size, err));
    CR_TRY(cri_json_int(v, "num_hidden_layers", 0, 2, 4096, &depth, err));
    CR_TRY(cri_json_int(v, "num_attention_heads", 0, 1, 4096, &c->num_heads, err));
    CR_TRY(cri_json_int(v, "image_size", 0, 1, MAX_SIZE, &c->image_size, err));
    CR_TRY(cri_json_int(v, "patch_size", is_siglip ? 16 : 14, 1, 256, &c->patch_size, err));
    CR_TRY(cri_json_int(v, "num_channels", 3, 3, 3, &channels, err));
    CR_TRY(cri_json_real(v, "layer_norm_eps", 1e-6, 0, 1, &eps, err));
    CR_TRY(read_act(c, v, is_siglip ? "gelu_pytorch_tanh" : "gelu", err));
    if (is_siglip) {
        CR_TRY(cri_json_int(v, "intermediate_size", 0, 1, 1 << 22, &c->intermediate_size, err));
    } else {
        CR_TRY(cri_json_real(v, "mlp_ratio", 4, 1e-3, 1e3, &ratio, err));
        CR_TRY(cri_json_bool(v, "use_swiglu_ffn", false, &is_swiglu, err));
        if (is_swiglu)
            return cr_fail(err, CR_EABSENT, "use_swiglu_ffn true is not available (false is)");
        c->intermediate_size = (int64_t)((double)c->hidden_size * ratio);
        c->num_class = 1;
        c->has_layer_scale = true;
    }
    if (has_registers) CR_TRY(cri_json_int(v, "num_register_tokens", 4, 1, 1024, &c->num_reg, err));
    c->num_blocks = depth - 1;
    c->norm_eps = (float)eps;
    return finish_vit(c, err);
}

/* timm's, as 0.9 has them: GELU by erf in all of them. */
static const struct {
    const char *name;
    cr_vit_config c;
} timm[] = {
    {"vit_large_patch14_reg4_dinov2.lvd142m",
     {23, 1024, 4096, 16, 14, .num_class = 1, .num_reg = 4, .has_layer_scale = true}},
    {"vit_so400m_patch14_siglip_224", {26, 1152, 4304, 16, 14}},
    {"vit_so400m_patch14_siglip_384", {26, 1152, 4304, 16, 14}},
};

static cr_status find_timm(cr_vit_config *c, const json_t *json, size_t at, cr_err *err)
{
    const char *name =
                   json_string_value(json_array_get(json_object_get(json, "timm_model_ids"), at)),
               *act = json_string_value(
                   json_array_get(json_object_get(json, "timm_override_act_layers"), at));
    const json_t *size = json_array_get(json_object_get(json, "image_sizes"), at);

    for (size_t i = 0; name && i < CR_COUNT(timm); i++)
        if (strcmp(timm[i].name, name) == 0) *c = timm[i].c;
    if (!c->num_blocks)
        return cr_fail(err, CR_EABSENT,
                       "timm_model_ids: '%s' is not available (%s, %s and %s are; vision_towers "
                       "describes others)",
                       name ? name : "", timm[0].name, timm[1].name, timm[2].name);
    if (act && strcmp(act, "gelu") != 0 && strcmp(act, "gelu_tanh") != 0)
        return cr_fail(err, CR_EABSENT,
                       "timm_override_act_layers: '%s' is not available (null, gelu, gelu_tanh "
                       "are)",
                       act);
    if (!json_is_integer(size) || json_integer_value(size) < 1 ||
        json_integer_value(size) > MAX_SIZE)
        return cr_fail(err, CR_EFORMAT,
                       "'image_sizes' must have a whole number up to %d for each tower", MAX_SIZE);
    c->has_tanh = act && strcmp(act, "gelu_tanh") == 0;
    c->image_size = json_integer_value(size);
    c->image_size -= c->image_size % c->patch_size; /* what timm's patches leave out: 384 / 14 */
    c->norm_eps = 1e-6F;
    return finish_vit(c, err);
}

/* ---- the whole ---- */

static cr_status read_vits(cr_vision_config *c, const json_t *json, cr_err *err)
{
    const json_t *towers = cri_json_get(json, "vision_towers");
    size_t num = json_array_size(towers ? towers : cri_json_get(json, "timm_model_ids"));
    bool is_fused;

    if (num < 1 || num > CR_MAX_VITS)
        return cr_fail(err, CR_EFORMAT,
                       "'vision_towers' (or timm_model_ids) must list one or two vision "
                       "transformers");
    CR_TRY(cri_json_bool(json, "use_fused_vision_backbone", num > 1, &is_fused, err));
    if (is_fused != (num > 1))
        return cr_fail(err, CR_EFORMAT, "use_fused_vision_backbone is %s, but there are %zu towers",
                       is_fused ? "true" : "false", num);
    c->num_vits = (int)num;
    for (size_t i = 0; i < num; i++) {
        cr_vit_config *v = &c->vit[i];
        if (towers ? read_vit(v, json_array_get(towers, i), err) != CR_OK
                   : find_timm(v, json, i, err) != CR_OK)
            return cr_fail_add(err, "vision tower %zu", i);
        if (v->side != c->vit[0].side)
            return cr_fail(err, CR_EFORMAT, "the towers have %lld x %lld and %lld x %lld patches",
                           (long long)c->vit[0].side, (long long)c->vit[0].side, (long long)v->side,
                           (long long)v->side);
        c->hidden_size += v->hidden_size;
        c->patch_dim += v->patch_dim;
        c->depth += v->num_blocks;
    }
    return CR_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t num = strlen(text), n = strlen(end);

    return num >= n && strcmp(text + num - n, end) == 0;
}

/* As the original: "no-align+gelu-mlp" is the projector and how it was trained. */
static cr_status read_projector(cr_vision_config *c, const json_t *json, cr_err *err)
{
    const json_t *value = cri_json_get(json, "arch_specifier");
    const char *name = value             ? json_string_value(value)
                       : c->num_vits > 1 ? "fused-gelu-mlp"
                                         : "gelu-mlp";

    c->projector = CR_PROJECTOR_LINEAR;
    if (name && ends_with(name, "linear")) return CR_OK;
    c->projector = CR_PROJECTOR_FUSED_MLP;
    if (name && ends_with(name, "fused-gelu-mlp")) return CR_OK;
    c->projector = CR_PROJECTOR_MLP;
    if (name && ends_with(name, "gelu-mlp")) return CR_OK;
    return cr_fail(err, CR_EABSENT,
                   "arch_specifier '%s' is not available (linear, gelu-mlp and fused-gelu-mlp are)",
                   name ? name : "");
}

/* The last row of the table, if the port has padded it beyond the tokenizer's ids, of which the last one is pad_token_id. */
static int64_t usual_placeholder(const cr_model_config *c, const json_t *json)
{
    const json_t *pad = cri_json_get(json, "pad_token_id");
    int64_t last = json_is_integer(pad) ? json_integer_value(pad) : -1;

    return last >= 0 && last < c->vocab_size - 1 ? c->vocab_size - 1 : -1;
}

cr_status cri_prismatic_read(cr_model_config *c, const json_t *json, cr_err *err)
{
    cr_vision_config *v = c->vision = CR_NEW(cr_vision_config);

    v->merge = 1;
    v->in_channels = 3;
    v->temporal_patch_size = 1;
    v->out_hidden_size = c->hidden_size;
    v->initializer_range = 0.02F;
    v->video_id = v->start_id = -1;
    CR_TRY(read_vits(v, json, err));
    CR_TRY(read_projector(v, json, err));
    return cri_json_token(json, "image_token_id", usual_placeholder(c, json), c->vocab_size,
                          &v->image_id, err);
}
