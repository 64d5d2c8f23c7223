/* vl_keys.h -- parts of config.json of the small vision-language models that tests/mesh/images.c trains on several
 * ranks and tests/unit/models_interleaved.c runs at once. Tests only.
 */
#ifndef CR_TEST_VL_KEYS_H
#define CR_TEST_VL_KEYS_H

#define TEXT                                                                                       \
    "\"vocab_size\":99,\"hidden_size\":48,\"intermediate_size\":70,\"num_attention_heads\":4,"     \
    "\"num_key_value_heads\":2,\"num_hidden_layers\":3,\"head_dim\":12,\"initializer_range\":0.1," \
    "\"rms_norm_eps\":1e-6"
#define MROPE                                                                                      \
    ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"mrope_section\":[2," \
    "2,2]}"
#define VISION                                                                                  \
    "\"depth\":3,\"hidden_size\":40,\"intermediate_size\":52,\"num_heads\":2,\"patch_size\":4," \
    "\"initializer_range\":0.1,\"spatial_merge_size\":2,\"temporal_patch_size\":2,"             \
    "\"out_hidden_size\":48"
#define IDS "\"image_token_id\":90,\"video_token_id\":91,\"vision_start_token_id\":92"

#endif
