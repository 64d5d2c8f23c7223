/* rope.c -- inverse frequencies of the rotary embedding and their scaling types.
 *
 * Numbers are float32 as in Transformers: there the table is float32 even in a float64 model. The
 * dynamic type equals the default one as long as no position reaches max_position_embeddings; beyond
 * it Transformers' result depends on what ran before, so such positions are refused in a forward.
 */
#include "models/models_impl.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static cr_status scale_linear(const cr_model_config *c, cr_rope_config *r, const json_t *o,
                              cr_err *err)
{
    double factor;

    CR_TRY(cri_json_real(o, "factor", NAN, 1e-6, 1e6, &factor, err));
    for (int64_t i = 0; i < c->head_dim / 2; i++)
        r->inv_freq[i] /= (float)factor;
    return CR_OK;
}

static cr_status scale_llama3(const cr_model_config *c, cr_rope_config *r, const json_t *o,
                              cr_err *err)
{
    double factor, low, high;
    int64_t old;

    CR_TRY(cri_json_real(o, "factor", NAN, 1e-6, 1e6, &factor, err));
    CR_TRY(cri_json_real(o, "low_freq_factor", NAN, 1e-6, 1e6, &low, err));
    CR_TRY(cri_json_real(o, "high_freq_factor", NAN, 1e-6, 1e6, &high, err));
    CR_TRY(cri_json_int(o, "original_max_position_embeddings", 0, 1, INT32_MAX, &old, err));
    if (!(low < high))
        return cr_fail(err, CR_EFORMAT, "low_freq_factor %g must be below high_freq_factor %g", low,
                       high);
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double inv = r->inv_freq[i], wave = 2 * pi / inv, g;
        if (wave < (double)old / high) continue;
        if (wave > (double)old / low) {
            r->inv_freq[i] = (float)(inv / factor);
            continue;
        }
        g = ((double)old / wave - low) / (high - low);
        r->inv_freq[i] = (float)((1 - g) * inv / factor + g * inv);
    }
    return CR_OK;
}

static double yarn_mscale(double scale, double c)
{
    return scale <= 1 ? 1 : 0.1 * c * log(scale) + 1;
}

/* 5.x rule: `factor` as written; the ratio of lengths only where it is absent. */
static cr_status scale_yarn(const cr_model_config *c, cr_rope_config *r, const json_t *o,
                            double theta, cr_err *err)
{
    double factor, fast, slow, scaling, mscale, mscale_all, low, high, dim = (double)c->head_dim;
    int64_t old;
    bool is_truncated;

    CR_TRY(cri_json_int(o, "original_max_position_embeddings", c->max_position_embeddings, 1,
                        INT32_MAX, &old, err));
    CR_TRY(cri_json_real(o, "factor", (double)c->max_position_embeddings / (double)old, 1e-6, 1e6,
                         &factor, err));
    CR_TRY(cri_json_real(o, "beta_fast", 32, 1e-6, 1e6, &fast, err));
    CR_TRY(cri_json_real(o, "beta_slow", 1, 1e-6, 1e6, &slow, err));
    CR_TRY(cri_json_real(o, "attention_factor", 0, 0, 1e3, &scaling, err));
    CR_TRY(cri_json_real(o, "mscale", 0, 0, 1e3, &mscale, err));
    CR_TRY(cri_json_real(o, "mscale_all_dim", 0, 0, 1e3, &mscale_all, err));
    CR_TRY(cri_json_bool(o, "truncate", true, &is_truncated, err));
    if (scaling == 0)
        scaling = mscale > 0 && mscale_all > 0
                      ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
                      : yarn_mscale(factor, 1);
    low = dim * log((double)old / (fast * 2 * pi)) / (2 * log(theta));
    high = dim * log((double)old / (slow * 2 * pi)) / (2 * log(theta));
    if (is_truncated) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        double inv = r->inv_freq[i];
        r->inv_freq[i] = (float)(ramp * inv / factor + (1 - ramp) * inv);
    }
    r->scaling = (float)scaling;
    return CR_OK;
}

static cr_status apply_type(cr_model_config *c, cr_rope_config *r, const json_t *o,
                            const char *type, double theta, cr_err *err)
{
    if (strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0) return CR_OK;
    if (strcmp(type, "linear") == 0) return scale_linear(c, r, o, err);
    if (strcmp(type, "llama3") == 0) return scale_llama3(c, r, o, err);
    if (strcmp(type, "yarn") == 0) return scale_yarn(c, r, o, theta, err);
    if (strcmp(type, "dynamic") == 0) {
        double factor;
        CR_TRY(cri_json_real(o, "factor", NAN, 1e-6, 1e6, &factor, err));
        c->position_limit = c->max_position_embeddings;
        return CR_OK;
    }
    return cr_fail(err, CR_EABSENT,
                   "rope type '%s' is not available yet (default, linear, dynamic, llama3 and yarn "
                   "are)",
                   type);
}

/* An object or null. */
static cr_status get_object(const json_t *json, const char *key, const json_t **out, cr_err *err)
{
    *out = cri_json_get(json, key);
    if (*out && !json_is_object(*out))
        return cr_fail(err, CR_EFORMAT, "%s must be an object or null", key);
    return CR_OK;
}

/* o: what config.json says of this rope under the key, or NULL. */
static cr_status read_one(cr_model_config *c, cr_rope_config *r, const json_t *json,
                          const json_t *o, const char *key, double theta, cr_err *err)
{
    const json_t *type = json_object_get(o, "rope_type");
    double partial;

    CR_TRY(cri_json_real(o, "rope_theta", theta, 1.0001, 1e15, &theta, err));
    CR_TRY(cri_json_real(json, "partial_rotary_factor", 1, 0, 1, &partial, err));
    if (partial == 1) CR_TRY(cri_json_real(o, "partial_rotary_factor", 1, 0, 1, &partial, err));
    if (partial != 1)
        return cr_fail(err, CR_EABSENT, "partial_rotary_factor %g is not available (1 is)",
                       partial);
    if (!type) type = json_object_get(o, "type");
    if (type && !json_is_string(type))
        return cr_fail(err, CR_EFORMAT, "%s.rope_type must be text", key);
    r->scaling = 1;
    r->inv_freq = CR_NEW_ARRAY(float, c->head_dim / 2);
    for (int64_t i = 0; i < c->head_dim / 2; i++)
        r->inv_freq[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)c->head_dim);
    if (apply_type(c, r, o, type ? json_string_value(type) : "default", theta, err) != CR_OK)
        return cr_fail_add(err, "%s", key);
    return CR_OK;
}

/* Layers with a window have a rope of their own where the family has a pattern of windows: rope_parameters
 * then has an object for each kind of layer, 4.x rope_local_base_freq. */
cr_status cri_rope_read(cr_model_config *c, const json_t *json, const cri_family *family,
                        cr_err *err)
{
    const json_t *full, *sliding = NULL;
    const char *key = "rope_parameters";
    double theta, local;

    CR_TRY(get_object(json, key, &full, err));
    if (full && family->window_pattern) {
        CR_TRY(get_object(full, "sliding_attention", &sliding, err));
        CR_TRY(get_object(full, "full_attention", &full, err));
    }
    if (!full) CR_TRY(get_object(json, key = "rope_scaling", &full, err));
    CR_TRY(cri_json_real(json, "rope_theta", family->rope_theta > 0 ? family->rope_theta : 10000,
                         1.0001, 1e15, &theta, err));
    CR_TRY(read_one(c, &c->ropes[0], json, full, key, theta, err));
    if (!family->window_pattern) return CR_OK;
    CR_TRY(cri_json_real(json, "rope_local_base_freq", 10000, 1.0001, 1e15, &local, err));
    return read_one(c, &c->ropes[1], json, sliding, "rope_parameters.sliding_attention", local,
                    err);
}
