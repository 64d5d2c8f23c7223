/* ending.h -- how the kernels of products (product.h) put sums into C, row by row. Inside kernels/cuda only. */
#ifndef CR_CUDA_ENDING_H
#define CR_CUDA_ENDING_H

#include "kernels/cuda/head/log_probs.h"
#include "kernels/cuda/op.h"
#include "kernels/cuda/product.h"

static __device__ __forceinline__ void store_two(float *p, float x, float y)
{
    *(float2 *)(void *)p = make_float2(x, y);
}
static __device__ __forceinline__ void store_two(bf16 *p, float x, float y)
{
    *(uint32_t *)(void *)p = pack_bf16(x, y);
}

/* Row of an ending: what is put at a column. Of: what a sum x becomes there, by at(col, x), num_cols. */
template <class To, class Of> struct ending_row {
    To *c; /* of this row; NULL: it is past the last */
    Of of;

    __device__ __forceinline__ void put(int64_t col, float x) const
    {
        if (!c || col >= of.num_cols) return;
        c[col] = from_float<To>(of.at(col, x));
    }

    /* The columns col and col + 1: one store, if their address allows it. */
    __device__ __forceinline__ void put_two(int64_t col, float x, float y) const
    {
        if (!c || col >= of.num_cols) return;
        x = of.at(col, x);
        if (col + 1 < of.num_cols) {
            y = of.at(col + 1, y);
            if ((uintptr_t)(c + col) % (2 * sizeof(To)) == 0) {
                store_two(c + col, x, y);
                return;
            }
            c[col + 1] = from_float<To>(y);
        }
        c[col] = from_float<To>(x);
    }
};

/* The product itself. Aux: of bias and add. */
template <class To, class Aux> struct ended_sum {
    const Aux *bias, *add; /* add: of this row */
    int64_t num_cols;
    float factor;

    __device__ __forceinline__ float at(int64_t col, float x) const
    {
        x *= factor;
        if (bias) x += to_float(bias[col]);
        if (add) x = rounded<To>(x) + to_float(add[col]);
        return x;
    }
};

/* Where C goes. */
template <class To, class Aux> struct ending {
    To *c;
    const Aux *bias, *add;
    int64_t m, n, ldc;
    float factor;

    __device__ __forceinline__ ending_row<To, ended_sum<To, Aux>> row(int64_t i) const
    {
        bool is_in = i < m;

        return {is_in ? c + i * ldc : NULL, {bias, is_in && add ? add + i * ldc : NULL, n, factor}};
    }
};

template <class To, class Aux> static inline ending<To, Aux> ending_of(const cri_product *p)
{
    return {(To *)p->c, (const Aux *)p->bias, (const Aux *)p->add, p->m, p->n, p->ldc, p->factor};
}

/* ---- the gradient of logits instead of the logits (head.cu) ---- */

/* Of a row, what its forward has found and the gradients of its results: arrays from row 0 of the call on. */
typedef struct cri_dz {
    const float *lse, *mean_z, *grad_log_prob, *grad_entropy;
    const int32_t *labels;
    row_processors processors;
    int64_t first_row, first_token; /* of the product's C */
    const float *rest, *log_sum;    /* of a loss over tokens; NULL: none */
    float temperature;
} cri_dz;

/* dz of the tokens of one row. */
struct dz_row {
    const row_processors *processors;
    int64_t row, first_token, num_cols;
    float lse, mean_z, g, ge;
    int32_t label;
    float rest, log_sum, temperature; /* rest 0: no loss over tokens */

    __device__ __forceinline__ float at(int64_t col, float z) const
    {
        int32_t id = (int32_t)(first_token + col);
        float slope, d;

        if (!process_logit(*processors, row, id, z, slope)) return 0.0f;
        d = -(expf(z - lse) * fmaf(ge, z - mean_z, g));
        if (id == label) d += g;
        if (rest != 0.0f) d = fmaf(rest, expf(z / temperature - log_sum), d);
        return d * slope;
    }
};

template <class To> struct dz_ending {
    To *c;
    int64_t m, n, ldc;
    cri_dz dz;

    __device__ __forceinline__ ending_row<To, dz_row> row(int64_t i) const
    {
        int64_t at = dz.first_row + i;

        if (i >= m) return {};
        return {c + i * ldc,
                {&dz.processors, at, dz.first_token, n, dz.lse[at], dz.mean_z[at],
                 dz.grad_log_prob[at], dz.grad_entropy ? dz.grad_entropy[at] : 0.0f, dz.labels[at],
                 dz.rest ? dz.rest[at] : 0.0f, dz.rest ? dz.log_sum[at] : 0.0f, dz.temperature}};
    }
};

template <class To> static inline dz_ending<To> dz_ending_of(const cri_product *p)
{
    return {(To *)p->c, p->m, p->n, p->ldc, *p->dz};
}

#endif
