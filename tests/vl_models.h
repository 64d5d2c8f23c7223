/* vl_models.h -- the config.json of small vision-language models, those of tests/parity/vision_models.py.
 * Tests only; each file that includes it has its own copy.
 */
#ifndef CR_TESTS_VL_MODELS_H
#define CR_TESTS_VL_MODELS_H

#include "tests/check_near.h"
#include "tests/model_bench.h"

#include <string.h>

static inline cr_model *must_build(const char *text)
{
    cr_err err = {0};
    cr_model *model;

    if (build_model(text, &model, &err) != CR_OK) fail_msg("%s", err.msg);
    return model;
}

/* The models of tests/parity/vision_models.py. */
#define TEXT_KEYS                                                                              \
    "\"vocab_size\":97,\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-6"
#define VISION_KEYS                                                                 \
    "\"hidden_size\":32,\"intermediate_size\":50,\"num_heads\":2,\"patch_size\":4," \
    "\"spatial_merge_size\":2,\"temporal_patch_size\":2,\"out_hidden_size\":64"
#define IDS "\"image_token_id\":90,\"video_token_id\":91,\"vision_start_token_id\":92"
#define TEXT_2_5                                                                         \
    TEXT_KEYS ",\"num_hidden_layers\":2,\"rope_parameters\":{\"rope_type\":\"default\"," \
              "\"rope_theta\":10000.0,\"mrope_section\":[2,3,3]}"
#define VISION_2_5 \
    VISION_KEYS    \
    ",\"depth\":2,\"window_size\":16,\"fullatt_block_indexes\":[1],\"tokens_per_second\":2"
static const char qwen2_5_vl[] =
    "{\"model_type\":\"qwen2_5_vl\",\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{\"model_type\":\"qwen2_5_vl_text\"," TEXT_2_5
    "},\"vision_config\":{\"model_type\":\"qwen2_5_vl_vision\"," VISION_2_5 "}}";
/* As the hub has it. */
static const char flat[] =
    "{\"model_type\":\"qwen2_5_vl\"," IDS "," TEXT_KEYS ",\"num_hidden_layers\":2,"
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"rope_theta\":10000.0,"
    "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3,3]},\"vision_config\":{"
    "\"model_type\":\"qwen2_5_vl\",\"in_chans\":3," VISION_2_5 "}}";
static const char qwen3_vl[] =
    "{\"model_type\":\"qwen3_vl\",\"architectures\":[\"Qwen3VLForConditionalGeneration\"]," IDS
    ",\"text_config\":{" TEXT_KEYS ",\"num_hidden_layers\":4,\"head_dim\":16,\"rope_parameters\":{"
    "\"rope_type\":\"default\",\"rope_theta\":10000.0,\"mrope_section\":[4,2,2]}},"
    "\"vision_config\":{" VISION_KEYS ",\"depth\":4,\"num_position_embeddings\":36,"
    "\"deepstack_visual_indexes\":[0,2,3]}}";

static const char qwen3_vl_moe[] =
    "{\"model_type\":\"qwen3_vl_moe\"," IDS ",\"text_config\":{" TEXT_KEYS
    ",\"num_hidden_layers\":3,\"head_dim\":16,\"num_experts\":4,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":24,\"mlp_only_layers\":[1],\"rope_parameters\":{"
    "\"rope_theta\":10000.0,\"mrope_section\":[4,2,2]}},\"vision_config\":{" VISION_KEYS
    ",\"depth\":2,\"num_position_embeddings\":36,\"deepstack_visual_indexes\":[1]}}";

static inline const char *config_of(const char *family)
{
    if (strcmp(family, "qwen3_vl_moe") == 0) return qwen3_vl_moe;
    return strcmp(family, "qwen3_vl") == 0 ? qwen3_vl : qwen2_5_vl;
}

#endif
