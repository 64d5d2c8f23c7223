/* golden_models.h -- models of vision_models.py and text_models.py (tests/parity): their weights, which are a function of a name and an index, and
 * gradients against the file's. Tests only; each file that includes it has its own copy.
 */
#ifndef CR_TESTS_GOLDEN_MODELS_H
#define CR_TESTS_GOLDEN_MODELS_H

#include "tests/check_near.h"
#include "tests/model_bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static inline void must(cr_status status, const cr_err *err)
{
    if (status != CR_OK) fail_msg("%s", err->msg);
}

static inline uint32_t crc32(const char *text)
{
    uint32_t x = 0xFFFFFFFFu;

    for (; *text; text++) {
        x ^= (unsigned char)*text;
        for (int k = 0; k < 8; k++)
            x = (x >> 1) ^ (x & 1 ? 0xEDB88320u : 0);
    }
    return ~x;
}

/* As in vision_models.py. */
static int64_t noise_seed;
static inline double noise(const char *name, const char *what, int64_t at)
{
    char text[200], seed[24] = "";
    uint32_t x;

    if (noise_seed) snprintf(seed, sizeof seed, "%lld ", (long long)noise_seed);
    snprintf(text, sizeof text, "%s%s%s", seed, what, name);
    x = crc32(text) + (uint32_t)at;
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    x ^= x >> 16;
    return x / 2147483648.0 - 1;
}

/* A copy has those of its original. */
static inline float value_of(const cr_param *copy, int64_t at)
{
    const cr_param *p = copy->copy_of ? copy->copy_of : copy;
    const char *end = p->name + strlen(p->name) - 6;
    bool is_table = strstr(p->name, "embed") && !strstr(p->name, "patch");
    double cols = (double)(p->num_elems / p->shape[0]);
    double factor = strstr(p->name, "lora_") ? 0.6 / sqrt(cols)
                    : is_table               ? 1
                    : p->num_dims == 1       ? 0.2
                                             : 1.7 / sqrt(cols);

    return (cr_float32)(noise(p->name, "", at) * factor +
                        (p->num_dims == 1 && strcmp(end, "weight") == 0));
}

/* single: what float32 may err; a build in float64 has less to round. */
static inline double allowed_error(double single)
{
    return sizeof(float) == sizeof(double) ? 1e-9 : single;
}

/* A build in float64 has no 16-bit dtypes. */
static inline bool is_computed(cr_dtype dtype)
{
    return dtype == CR_F32 || sizeof(float) < sizeof(double);
}

/* value: of an element of a parameter. */
static inline void set_weights_to(float (*value)(const cr_param *, int64_t), const model_bench *b)
{
    for (size_t i = 0; i < b->model->num_params; i++) {
        const cr_param *p = b->model->params[i];
        float *values = CR_NEW_ARRAY(float, (size_t)p->num_elems);
        for (int64_t e = 0; e < p->num_elems; e++)
            values[e] = value(p, e);
        model_bench_fill(b, p, values);
        cr_free(values);
    }
}

static inline void set_weights(const model_bench *b)
{
    set_weights_to(value_of, b);
}

/* Norm of the gradient, and its projections, against the file's. */
static inline void check_grad(const cr_param *p, const float *grad, const json_t *want,
                              double allowed)
{
    static const char *const what[] = {"", "first ", "second "};
    double norm = json_number_value(json_array_get(want, 0));

    if (json_array_size(want) != 3) fail_msg("%s is not in the file", p->name);
    for (size_t k = 0; k < 3; k++) {
        double x = 0, y = json_number_value(json_array_get(want, k));
        for (int64_t e = 0; e < p->num_elems; e++)
            x += (double)grad[e] * (k ? noise(p->name, what[k], e) : grad[e]);
        if (k == 0) x = sqrt(x);
        /* of a projection: that of the difference's norm on a vector of num_elems / 3 */
        if (!(fabs(x - y) <= allowed * norm * (k ? sqrt((double)p->num_elems) : 1)))
            fail_msg("%s: %.9g, Transformers has %.9g (norm %g)", p->name, x, y, norm);
    }
}

#endif
