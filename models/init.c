/* init.c -- random weights that do not depend on who asks for which range (see weights.h). */
#include "base/rng.h"
#include "models/models_impl.h"
#include "models/weights.h"

#include <math.h>
#include <string.h>

/* Two normal numbers of pair `pair` (Box-Muller): elements 2 pair and 2 pair + 1. */
static void normal_pair(uint64_t seed, uint64_t name, int64_t pair, float std, float out[2])
{
    uint32_t w[4];
    double radius, angle;

    cr_rng_philox(seed, CR_RNG_INIT, name, (uint64_t)pair, w);
    radius = std * sqrt(-2.0 * log(cr_rng_double(w[0], w[1])));
    angle = 6.283185307179586476925 * cr_rng_double(w[2], w[3]);
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

/* On the cores that this process may use: a pair takes 70 ns, and a model has billions. */
static void fill_normal(const cr_param *param, uint64_t seed, float std, int64_t begin, int64_t end,
                        float *out)
{
    enum { PAIRS_A_CORE = 4096 };
    uint64_t name = cr_hash64(param->name, strlen(param->name));
    int64_t num_pairs = (end + 1) / 2 - begin / 2;
    int num_cores = num_pairs < 2 * PAIRS_A_CORE ? 1 : cr_num_cores();

#pragma omp parallel for schedule(static) num_threads(num_cores) if (num_cores > 1)
    for (int64_t p = begin / 2; p < (end + 1) / 2; p++) {
        float pair[2];
        normal_pair(seed, name, p, std, pair);
        if (2 * p >= begin) out[2 * p - begin] = pair[0];
        if (2 * p + 1 < end) out[2 * p + 1 - begin] = pair[1];
    }
}

static void fill_uniform(const cr_param *param, uint64_t seed, int64_t begin, int64_t end,
                         float *out)
{
    uint64_t name = cr_hash64(param->name, strlen(param->name));

    for (int64_t e = begin; e < end; e++) {
        uint32_t w[4];
        cr_rng_philox(seed, CR_RNG_INIT, name, (uint64_t)e, w);
        out[e - begin] = (float)((2 * cr_rng_double(w[0], w[1]) - 1) * (double)param->init_std);
    }
}

void cr_param_init(const cr_model *model, const cr_param *param, uint64_t seed, int64_t begin,
                   int64_t end, float *out)
{
    const cr_param *own = param->copy_of ? param->copy_of : param->tied_to ? param->tied_to : param;
    const cri_root *root = model->root->impl;
    int64_t pad = model->config.pad_id;

    CR_CHECK(begin >= 0 && begin <= end && end <= own->num_elems, "range of %s", own->name);
    switch (own->init) {
    case CR_INIT_NORMAL:
        fill_normal(own, seed, own->init_std, begin, end, out);
        break;
    case CR_INIT_UNIFORM:
        fill_uniform(own, seed, begin, end, out);
        break;
    case CR_INIT_ONES:
        for (int64_t e = 0; e < end - begin; e++)
            out[e] = 1;
        break;
    case CR_INIT_ZEROS:
        memset(out, 0, (size_t)(end - begin) * sizeof *out);
        break;
    }
    if (pad >= 0 && own == root->embed->weight)
        for (int64_t e = pad * own->shape[1]; e < (pad + 1) * own->shape[1]; e++)
            if (e >= begin && e < end) out[e - begin] = 0;
}
