/* config_impl.h -- reading config.json inside models/: the families, and values of JSON objects. */
#ifndef CR_CONFIG_IMPL_H
#define CR_CONFIG_IMPL_H

#include "models/config.h"

/* Families (config.c): what a class name begins with and what differs between them. */
typedef enum cri_bias { CRI_BIAS_NEVER, CRI_BIAS_ALWAYS, CRI_BIAS_KEY } cri_bias;
typedef enum cri_vision_kind {
    CRI_VISION_NONE,
    CRI_VISION_WINDOWS,   /* Qwen2.5-VL */
    CRI_VISION_DEEPSTACK, /* Qwen3-VL */
    CRI_VISION_PRISMATIC
} cri_vision_kind;
typedef struct cri_family {
    const char *model_type, *prefix; /* "qwen3_vl", "Qwen3VL" */
    const char *text_prefix, *mlp;   /* "Qwen3VLText"; NULL: text_prefix and "MLP" */
    cri_bias qkv_bias, o_bias, mlp_bias;
    bool has_qk_norm, has_window, has_experts, has_norms_after, is_tied;
    bool is_stacked; /* files have its experts as cr_stacked; the router always renormalises */
    int64_t num_kv_heads, head_dim; /* of the class, when the key is absent; 0: derived */
    int64_t max_position_embeddings, max_window_layers;
    double rms_norm_eps, rope_theta;  /* 0: the usual ones */
    const char *act_key, *act, *base; /* NULL: "hidden_act", "silu"; prefix and "Model" */
    float norm_offset;
    bool scales_embedding; /* by the root of hidden_size */
    int64_t
        window_pattern; /* layers with a window and a rope of their own, but for each n-th; 0: none */
    double query_scalar; /* query_pre_attn_scalar; 0: head_dim */
    cri_vision_kind vision;
    const char *vision_class, *vision_act;
    int64_t patch_size;
} cri_family;
const cri_family *cri_family_find(const char *model_type); /* NULL: none */

/* config.c: fill model->config; json stays borrowed. With a value head the file may be that of a causal language model. */
CR_MUST cr_status cri_config_read(cr_model_config *c, const json_t *json, const json_t *generation,
                                  cr_head_kind head, cr_err *err);
void cri_config_fini(cr_model_config *c);

/* ---- values of JSON objects, with sentences that name the key ---- */

const json_t *cri_json_get(const json_t *o, const char *key); /* NULL: absent or null */
/* Absent, null or the text `only`. */
CR_MUST cr_status cri_json_only(const json_t *o, const char *key, const char *only, cr_err *err);
/* Absent and null give `fallback`; fallback < least: the key is required. */
CR_MUST cr_status cri_json_int(const json_t *o, const char *key, int64_t fallback, int64_t min,
                               int64_t max, int64_t *out, cr_err *err);
CR_MUST cr_status cri_json_bool(const json_t *o, const char *key, bool fallback, bool *out,
                                cr_err *err);
/* NaN as fallback: the key is required. */
CR_MUST cr_status cri_json_real(const json_t *o, const char *key, double fallback, double min,
                                double max, double *out, cr_err *err);

/* rope.c: ropes and position_limit from rope_theta and rope_scaling (4.x) or
 * rope_parameters (5.x). usual_theta: of the family, 0: 10000. */
CR_MUST cr_status cri_rope_read(cr_model_config *c, const json_t *json, const cri_family *family,
                                cr_err *err);

/* config_vision.c: the text part as one object (the caller frees it). */
json_t *cri_vision_text(const json_t *json, const cri_family *family);
/* prismatic/config_prismatic.c: config->vision, and what Transformers' LlamaConfig says where text_config does not. */
CR_MUST cr_status cri_prismatic_read(cr_model_config *c, const json_t *json, cr_err *err);
CR_MUST cr_status cri_prismatic_text(const json_t *json, json_t **text, cr_err *err);
/* A token id of the vocabulary; usual below 0: the key is required. */
CR_MUST cr_status cri_json_token(const json_t *json, const char *key, int64_t usual, int64_t vocab,
                                 int32_t *out, cr_err *err);
/* config->vision and rope_axis, which stay NULL in text families. */
CR_MUST cr_status cri_vision_read(cr_model_config *c, const json_t *json, const json_t *text,
                                  const cri_family *family, cr_err *err);

#endif
