/* experts.h -- operations of mixtures of experts: the router, the order of tokens by expert, and sums
 * over a token's experts.
 *
 * T tokens choose k of E experts each. The T k pairs are numbered twice: pair t k + j is token t's j-th
 * choice, and its slot is its place when pairs are sorted by expert, then token, then j. Products
 * run on the slots of one expert, a range of rows. Nothing here mixes tokens, so a token's result does not
 * depend on its company (kernels.h).
 *
 * Arrays of indices and counts are host-visible on cpu; count is host memory on every device. `meta`
 * deals the pairs to experts evenly. Threads and errors as in kernels.h.
 */
#ifndef CR_EXPERTS_H
#define CR_EXPERTS_H

#include "kernels/kernels.h"

/* prob = softmax(logits) in float32; expert = the k most probable, falling, the lower index first in a
 * tie; weight = their probabilities (divided by their sum if should_norm), rounded to dtype. */
typedef struct cr_router_args {
    const void *logits; /* [T, E] in dtype */
    cr_dtype dtype;
    bool should_norm;
    int64_t num_rows, num_experts, top_k;
    float *prob;      /* [T, E] */
    int32_t *expert;  /* [T, k] */
    float *weight;    /* [T, k] */
    double *prob_sum; /* [E] host: column sums of prob are added, or NULL */
} cr_router_args;
CR_MUST cr_status cr_router(cr_device *dev, const cr_router_args *a, cr_err *err);

/* dlogits [T, E] in dtype from grad_weight [T, k]. of_prob [E] (host) or NULL: the gradient of another
 * term of the loss by each row of prob, the same for all rows (the auxiliary loss). */
typedef struct cr_router_grad_args {
    cr_router_args fwd; /* prob and expert as the forward left them */
    const float *grad_weight;
    const float *of_prob;
    void *dlogits;
} cr_router_grad_args;
CR_MUST cr_status cr_router_grad(cr_device *dev, const cr_router_grad_args *a, cr_err *err);

/* slot[T k], token[T k] (of a slot) and count[E] of expert[T k] with T = num_rows, k = top_k. */
typedef struct cr_expert_sort_args {
    const int32_t *expert;
    int64_t num_rows, top_k, num_experts;
    int32_t *slot, *token;
    int64_t *count; /* host */
} cr_expert_sort_args;
CR_MUST cr_status cr_expert_sort(cr_device *dev, const cr_expert_sort_args *a, cr_err *err);

/* y[t] = add[t] + sum over j of weight[t, j] x[slot[t k + j]], in float32 and in the order of j, rounded
 * once. weight NULL: ones. add NULL: none; it may be y. */
typedef struct cr_rows_combine_args {
    const void *x, *add;
    const int32_t *slot;
    const float *weight;
    void *y;
    cr_dtype dtype;
    int64_t num_rows, top_k, num_cols;
} cr_rows_combine_args;
CR_MUST cr_status cr_rows_combine(cr_device *dev, const cr_rows_combine_args *a, cr_err *err);

/* y[r] = factor[r] x[r]; y may be x. */
CR_MUST cr_status cr_rows_scale(cr_device *dev, cr_dtype dtype, const void *x, const float *factor,
                                int64_t num_rows, int64_t num_cols, void *y, cr_err *err);
/* out[r] = sum over c of a[r, c] b[r, c]. */
CR_MUST cr_status cr_rows_dot(cr_device *dev, cr_dtype dtype, const void *a, const void *b,
                              int64_t num_rows, int64_t num_cols, float *out, cr_err *err);

#endif
