/* config.h -- what config.json says, with defaults filled in, in both
 * spellings (4.x, 5.x).
 *
 * Part of a cr_model (models.h), which owns it. Read-only once the model is built, so any number of
 * threads may read it.
 */
#ifndef CR_CONFIG_H
#define CR_CONFIG_H

#include "base/json.h"
#include "kernels/kernels.h"

enum { CR_MAX_DEEPSTACK = 16, CR_MERGE = 2 /* patches of a token of Qwen-VL, along a side */ };

/* A vision transformer of a Prismatic backbone: square images of one size. */
typedef struct cr_vit_config {
    int64_t num_blocks; /* that run: all but the last, whose output Prismatic does not take */
    int64_t hidden_size, intermediate_size, num_heads, patch_size, image_size;
    int64_t side, patch_dim;        /* image_size / patch_size; 3 patch_size^2 */
    int64_t num_class, num_reg;     /* tokens before the patches: class (0 or 1), registers */
    int64_t num_positions;          /* rows of its table: patches, and what is before them or not */
    bool has_layer_scale, has_tanh; /* GELU by tanh */
    float norm_eps;
} cr_vit_config;
enum { CR_MAX_VITS = 2 };
typedef enum cr_projector_kind {
    CR_PROJECTOR_LINEAR,
    CR_PROJECTOR_MLP,      /* two Linears with a GELU between them */
    CR_PROJECTOR_FUSED_MLP /* three */
} cr_projector_kind;

/* vision_config. Lengths are in elements, windows and patches in pixels. */
typedef struct cr_vision_config {
    int64_t depth, hidden_size, intermediate_size, num_heads, out_hidden_size;
    int64_t in_channels, patch_size, temporal_patch_size;
    int64_t patch_dim; /* in_channels * temporal_patch_size * patch_size^2: a row of pixels */
    bool *is_full;     /* [depth] the block attends over a whole frame, else over windows (owned) */
    int64_t window_size;                 /* a side; 0: the family has no windows */
    int64_t position_side;               /* learned positions are a square of this side; 0: none */
    int64_t num_deepstack;               /* features for the outputs of decoder layers 0, 1, .. */
    int64_t deepstack[CR_MAX_DEEPSTACK]; /* the blocks after which they are taken, rising */
    double tokens_per_second; /* of a video's temporal ids; 0: each frame is an item of its own */
    float norm_eps, rope_theta, initializer_range;
    int32_t image_id, video_id, start_id; /* placeholders, and the token before their first */
    int64_t merge;                        /* patches of a token, along a side */
    int num_vits;                         /* Prismatic: transformers side by side; 0: Qwen-VL */
    cr_vit_config vit[CR_MAX_VITS];
    cr_projector_kind projector;
} cr_vision_config;

/* Rotary embedding: inverse frequencies [head_dim / 2], scaling applied (owned), and a factor on cos and sin. */
typedef struct cr_rope_config {
    float *inv_freq, scaling;
} cr_rope_config;

/* What a decoder layer has of its own. */
typedef struct cr_layer_config {
    int64_t window; /* sliding window, 0: full attention */
    float scale;    /* of q . k */
    int rope;       /* which of the model's */
    bool is_sparse; /* experts */
} cr_layer_config;

enum { CR_MAX_ROPES = 2 };

/* The head of a model, which config.json does not say. */
typedef enum cr_head_kind {
    CR_HEAD_WORDS, /* a language model's */
    /* Transformers' ForTokenClassification with one label: `score`, a Linear with a bias. Files may have it under TRL's
     * names, v_head.summary, too, in value_head.safetensors beside the model or in it. */
    CR_HEAD_VALUE,
    CR_HEAD_VALUE_TRL, /* the same; where files lack it, its first values are TRL's */
    /* Of a reward model, Transformers' ForSequenceClassification with one label: `score` without a bias, whose values the folder has. */
    CR_HEAD_SCORE
} cr_head_kind;

typedef struct cr_model_config {
    char *model_type;   /* "llama", "qwen2", "qwen3", "gemma3_text", "qwen2_5_vl", "qwen3_vl", .. */
    char *architecture; /* "LlamaForCausalLM" */
    int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads,
        head_dim;
    int64_t max_position_embeddings;
    float rms_norm_eps, initializer_range;
    bool is_tied, has_qkv_bias, has_o_bias, has_mlp_bias, has_qk_norm;
    bool has_norms_after, has_geglu; /* after both parts of a layer; GeGLU instead of SwiGLU */
    float norm_offset;               /* an RMSNorm multiplies by it + its weight */
    float embed_scale;               /* factor on embeddings, 0: none */
    cr_layer_config *layers;         /* [num_layers] (owned) */
    cr_rope_config
        ropes[CR_MAX_ROPES]; /* the second: of layers with a window, where those differ */
    int64_t position_limit;  /* positions must be below it; 0: no limit (dynamic rope scaling) */
    uint8_t *rope_axis;      /* [head_dim / 2] M-RoPE: t, h or w; NULL: there is one axis (owned) */
    int32_t bos_id, pad_id,
        eos_ids[16]; /* -1: none; generation_config.json decides eos when there */
    int num_eos;
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size;
    bool should_norm_topk, wants_aux_loss; /* norm_topk_prob, output_router_logits */
    float router_aux_loss_coef;
    cr_dtype storage_dtype;   /* torch_dtype / dtype */
    cr_vision_config *vision; /* NULL: a text model (owned) */
    json_t *json;             /* config.json as read (owned) */
} cr_model_config;

#endif
