/* config_vision.c -- vision_config and the token ids of vision-language families,
 * and M-RoPE's axes. Keys that the shapes of weights need are required; what the tower does not
 * compute is refused. */
#include "models/config_impl.h"

#include <math.h>
#include <string.h>

static cr_status read_kind(const json_t *v, const cr_model_config *c, cr_err *err)
{
    const json_t *type = cri_json_get(v, "model_type");
    size_t n = strlen(c->model_type);
    const char *text;

    if (!type) return CR_OK;
    text = json_is_string(type) ? json_string_value(type) : "";
    if (strncmp(text, c->model_type, n) == 0 && (!text[n] || strcmp(text + n, "_vision") == 0))
        return CR_OK;
    return cr_fail(err, CR_EABSENT, "model_type '%s' is not available in a %s (%s_vision is)", text,
                   c->model_type, c->model_type);
}

static cr_status read_sizes(cr_vision_config *c, const json_t *v, const cri_family *family,
                            cr_err *err)
{
    int64_t merge, dim;

    CR_TRY(cri_json_int(v, "depth", 0, 1, 4096, &c->depth, err));
    CR_TRY(cri_json_int(v, "hidden_size", 0, 1, 1 << 20, &c->hidden_size, err));
    CR_TRY(cri_json_int(v, "intermediate_size", 0, 1, 1 << 22, &c->intermediate_size, err));
    CR_TRY(cri_json_int(v, "num_heads", 0, 1, 4096, &c->num_heads, err));
    CR_TRY(cri_json_int(v, "out_hidden_size", 0, 1, 1 << 20, &c->out_hidden_size, err));
    CR_TRY(cri_json_int(v, "in_chans", 3, 1, 64, &c->in_channels, err));
    CR_TRY(cri_json_int(v, "in_channels", c->in_channels, 1, 64, &c->in_channels, err));
    CR_TRY(cri_json_int(v, "patch_size", family->patch_size, 1, 256, &c->patch_size, err));
    CR_TRY(cri_json_int(v, "temporal_patch_size", 2, 1, 64, &c->temporal_patch_size, err));
    CR_TRY(cri_json_int(v, "spatial_merge_size", CR_MERGE, 1, 64, &merge, err));
    if (merge != CR_MERGE)
        return cr_fail(err, CR_EABSENT, "spatial_merge_size %lld is not available (%d is)",
                       (long long)merge, CR_MERGE);
    dim = c->hidden_size / c->num_heads;
    if (dim * c->num_heads != c->hidden_size || dim % 4 || dim > 256)
        return cr_fail(err, CR_EABSENT,
                       "hidden_size %lld with num_heads %lld is not available (heads must have a "
                       "multiple of 4 elements, up to 256)",
                       (long long)c->hidden_size, (long long)c->num_heads);
    c->patch_dim = c->in_channels * c->temporal_patch_size * c->patch_size * c->patch_size;
    if (c->patch_dim > 1 << 20)
        return cr_fail(err, CR_EABSENT, "patches of %lld values are not available (up to %d are)",
                       (long long)c->patch_dim, 1 << 20);
    return CR_OK;
}

/* A list of whole numbers below `most`. */
static cr_status check_list(const json_t *list, const char *key, int64_t max, cr_err *err)
{
    const json_t *entry;
    size_t at;

    if (!json_is_array(list))
        return cr_fail(err, CR_EFORMAT, "key '%s' is missing (a list of blocks)", key);
    json_array_foreach(list, at, entry)
    {
        if (!json_is_integer(entry) || json_integer_value(entry) < 0 ||
            json_integer_value(entry) >= max)
            return cr_fail(err, CR_EFORMAT, "'%s' must list blocks from 0 to %lld", key,
                           (long long)max - 1);
    }
    return CR_OK;
}

static cr_status read_windows(cr_vision_config *c, const json_t *v, cr_err *err)
{
    const json_t *full = cri_json_get(v, "fullatt_block_indexes"), *entry;
    int64_t min = CR_MERGE * c->patch_size;
    size_t at;

    CR_TRY(cri_json_int(v, "window_size", 112, 1, 1 << 20, &c->window_size, err));
    if (c->window_size < min)
        return cr_fail(err, CR_EFORMAT, "window_size %lld is below a token's side of %lld pixels",
                       (long long)c->window_size, (long long)min);
    CR_TRY(cri_json_real(v, "tokens_per_second", 4, 1e-3, 1e6, &c->tokens_per_second, err));
    CR_TRY(check_list(full, "fullatt_block_indexes", c->depth, err));
    json_array_foreach(full, at, entry) c->is_full[json_integer_value(entry)] = true;
    return CR_OK;
}

static cr_status read_deepstack(cr_vision_config *c, const json_t *v, int64_t num_layers,
                                cr_err *err)
{
    const json_t *list = cri_json_get(v, "deepstack_visual_indexes"), *entry;
    size_t max = num_layers < CR_MAX_DEEPSTACK ? (size_t)num_layers : CR_MAX_DEEPSTACK, at;

    CR_TRY(check_list(list, "deepstack_visual_indexes", c->depth, err));
    if (json_array_size(list) > max)
        return cr_fail(
            err, CR_EABSENT,
            "'deepstack_visual_indexes' lists more than %zu blocks: each needs a decoder "
            "layer, and %d is the most",
            max, CR_MAX_DEEPSTACK);
    json_array_foreach(list, at, entry)
    {
        c->deepstack[at] = json_integer_value(entry);
        if (at > 0 && c->deepstack[at] <= c->deepstack[at - 1])
            return cr_fail(err, CR_EABSENT, "'deepstack_visual_indexes' must rise");
    }
    c->num_deepstack = (int64_t)json_array_size(list);
    return CR_OK;
}

static cr_status read_positions(cr_vision_config *c, const json_t *v, cr_err *err)
{
    int64_t num;

    CR_TRY(cri_json_int(v, "num_position_embeddings", 0, 1, 1 << 26, &num, err));
    c->position_side = (int64_t)sqrt((double)num);
    if (c->position_side * c->position_side != num)
        return cr_fail(err, CR_EFORMAT, "num_position_embeddings %lld is not a square number",
                       (long long)num);
    return CR_OK;
}

static cr_status read_rope(cr_vision_config *c, const json_t *v, cr_err *err)
{
    const json_t *o = cri_json_get(v, "rope_parameters"), *type = cri_json_get(o, "rope_type");
    double theta;

    if (o && !json_is_object(o))
        return cr_fail(err, CR_EFORMAT, "rope_parameters must be an object or null");
    if (type && (!json_is_string(type) || (strcmp(json_string_value(type), "axial") != 0 &&
                                           strcmp(json_string_value(type), "default") != 0)))
        return cr_fail(err, CR_EABSENT, "rope_type '%s' is not available (axial is)",
                       json_is_string(type) ? json_string_value(type) : "");
    CR_TRY(cri_json_real(o, "rope_theta", 10000, 1.0001, 1e15, &theta, err));
    c->rope_theta = (float)theta;
    return CR_OK;
}

static cr_status read_vision_config(cr_model_config *c, const json_t *v, const cri_family *family,
                                    cr_err *err)
{
    cr_vision_config *vision = c->vision;
    double range;

    CR_TRY(read_kind(v, c, err));
    CR_TRY(read_sizes(vision, v, family, err));
    CR_TRY(cri_json_only(v, "hidden_act", family->vision_act, err));
    if (vision->out_hidden_size != c->hidden_size)
        return cr_fail(err, CR_EFORMAT,
                       "out_hidden_size %lld is not the hidden_size %lld of the text",
                       (long long)vision->out_hidden_size, (long long)c->hidden_size);
    CR_TRY(cri_json_real(v, "initializer_range", 0.02, 0, 10, &range, err));
    vision->initializer_range = (float)range;
    vision->norm_eps = (float)1e-6;
    vision->is_full = CR_NEW_ARRAY(bool, vision->depth);
    CR_TRY(read_rope(vision, v, err));
    if (family->vision == CRI_VISION_WINDOWS) return read_windows(vision, v, err);
    memset(vision->is_full, true, (size_t)vision->depth * sizeof(bool));
    CR_TRY(read_positions(vision, v, err));
    return read_deepstack(vision, v, c->num_layers, err);
}

cr_status cri_json_token(const json_t *json, const char *key, int64_t usual, int64_t vocab,
                         int32_t *out, cr_err *err)
{
    int64_t id;

    CR_TRY(cri_json_int(json, key, usual, 0, INT32_MAX, &id, err));
    if (id >= vocab)
        return cr_fail(err, CR_EFORMAT, "%s %lld is outside the vocabulary of %lld", key,
                       (long long)id, (long long)vocab);
    *out = (int32_t)id;
    return CR_OK;
}

/* mrope_section says how many frequencies follow each of the axes t, h, w: one run after another, or
 * (interleaved) h and w have every third from the second and third on, and t the rest. */
static cr_status read_axes(cr_model_config *c, const json_t *text, const cri_family *family,
                           cr_err *err)
{
    const json_t *o = cri_json_get(text, "rope_parameters"), *list;
    int64_t half = c->head_dim / 2, num[3] = {24, 20, 20}, at = 0;
    bool is_interleaved = family->vision == CRI_VISION_DEEPSTACK;

    if (!json_is_object(o)) o = cri_json_get(text, "rope_scaling");
    list = cri_json_get(o, "mrope_section");
    if ((list || !is_interleaved) && json_array_size(list) != 3)
        return cr_fail(err, CR_EFORMAT,
                       "key 'rope_scaling.mrope_section' is missing (three whole numbers with the "
                       "sum of head_dim / 2)");
    for (size_t i = 0; list && i < 3; i++) {
        const json_t *entry = json_array_get(list, i);
        num[i] = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (num[i] < 0 || num[i] > half)
            return cr_fail(err, CR_EFORMAT, "mrope_section must be whole numbers from 0 to %lld",
                           (long long)half);
    }
    if (num[0] + num[1] + num[2] != half)
        return cr_fail(err, CR_EFORMAT, "mrope_section has the sum %lld, head_dim / 2 is %lld",
                       (long long)(num[0] + num[1] + num[2]), (long long)half);
    c->rope_axis = CR_NEW_ARRAY(uint8_t, half);
    for (uint8_t axis = 0; axis < 3; axis++)
        for (int64_t i = 0; i < num[axis]; i++) {
            int64_t k = is_interleaved ? axis + 3 * i : at++;
            if (k < half && (axis > 0 || !is_interleaved)) c->rope_axis[k] = axis;
        }
    return CR_OK;
}

cr_status cri_vision_read(cr_model_config *c, const json_t *json, const json_t *text,
                          const cri_family *family, cr_err *err)
{
    const json_t *v = cri_json_get(json, "vision_config");

    if (family->vision == CRI_VISION_NONE) return CR_OK;
    if (family->vision == CRI_VISION_PRISMATIC) return cri_prismatic_read(c, json, err);
    CR_TRY(read_axes(c, text, family, err));
    if (!json_is_object(v))
        return cr_fail(err, CR_EFORMAT, "key 'vision_config' is missing (an object)");
    c->vision = CR_NEW(cr_vision_config);
    c->vision->merge = CR_MERGE;
    if (read_vision_config(c, v, family, err) != CR_OK) return cr_fail_add(err, "vision_config");
    CR_TRY(
        cri_json_token(json, "image_token_id", 151655, c->vocab_size, &c->vision->image_id, err));
    CR_TRY(
        cri_json_token(json, "video_token_id", 151656, c->vocab_size, &c->vision->video_id, err));
    return cri_json_token(json, "vision_start_token_id", 151652, c->vocab_size,
                          &c->vision->start_id, err);
}

/* text_config where there is one; what only the outer object has counts as well. tie_word_embeddings:
 * the outer one decides, but in Qwen2.5-VL's files either may say it. */
json_t *cri_vision_text(const json_t *json, const cri_family *family)
{
    const json_t *inner = cri_json_get(json, "text_config"), *entry;
    bool is_tied = json_is_true(json_object_get(json, "tie_word_embeddings"));
    static const char *const outer[] = {"dtype", "torch_dtype"};
    json_t *text;
    const char *key;

    if (family->vision == CRI_VISION_NONE || !json_is_object(inner)) return json_deep_copy(json);
    text = json_deep_copy(inner);
    if (family->vision == CRI_VISION_WINDOWS)
        is_tied = is_tied || json_is_true(json_object_get(inner, "tie_word_embeddings"));
    json_object_foreach((json_t *)(uintptr_t)json, key, entry) if (!cri_json_get(text, key))
        json_object_set(text, key, (json_t *)(uintptr_t)entry);
    for (size_t i = 0; i < CR_COUNT(outer); i++)
        if (cri_json_get(json, outer[i]))
            json_object_set(text, outer[i], json_object_get(json, outer[i]));
    if (is_tied || json_is_boolean(json_object_get(json, "tie_word_embeddings")))
        json_object_set_new(text, "tie_word_embeddings", json_boolean(is_tied));
    return text;
}
