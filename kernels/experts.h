/* experts.h -- operations of mixtures of experts: the router, the order of tokens by expert, and sums
 * over a token's experts.
 *
 * T tokens choose k of E experts each. The T k pairs are numbered twice: pair t k + j is token t's j-th
 * choice, and its slot is its place when pairs are sorted by expert, then token, then j. Products
 * run on the slots of one expert, a range of rows. Nothing here mixes tokens, so a token's result does not
 * depend on its company (kernels.h).
 *
 * Numbers of experts, slots and tokens are int32 in device memory; counts are host memory. `meta`
 * deals the pairs to experts evenly. Threads and errors as in kernels.h.
 */
#ifndef CR_EXPERTS_H
#define CR_EXPERTS_H

#include "kernels/kernels.h"

/* prob = softmax(logits) in float32; expert = the k most probable, falling, the lower index first in a
 * tie; weight = their probabilities (divided by their sum if should_norm), rounded to dtype. */
typedef struct cr_router_args {
    const cr_mem *logits; /* [T, E] in dtype */
    cr_dtype dtype;
    bool should_norm;
    int64_t num_rows, num_experts, top_k;
    cr_mem *prob;     /* [T, E] float32 */
    cr_mem *expert;   /* [T, k] int32 */
    cr_mem *weight;   /* [T, k] float32 */
    double *prob_sum; /* [E] host: column sums of prob are added, or NULL */
} cr_router_args;
CR_MUST cr_status cr_router(cr_device *dev, const cr_router_args *a, cr_err *err);

/* dlogits [T, E] in dtype from grad_weight [T, k]. of_prob [E] (host) or NULL: the gradient of another
 * term of the loss by each row of prob, the same for all rows (the auxiliary loss). */
typedef struct cr_router_grad_args {
    cr_router_args fwd;        /* prob and expert as the forward left them */
    const cr_mem *grad_weight; /* float32 */
    const float *of_prob;      /* host */
    cr_mem *dlogits;
} cr_router_grad_args;
CR_MUST cr_status cr_router_grad(cr_device *dev, const cr_router_grad_args *a, cr_err *err);

/* slot[T k], token[T k] (of a slot) and count[E] of expert[T k] with T = num_rows, k = top_k. */
typedef struct cr_expert_sort_args {
    const cr_mem *expert; /* int32, as are the next two */
    int64_t num_rows, top_k, num_experts;
    cr_mem *slot, *token;
    int64_t *count; /* host */
} cr_expert_sort_args;
CR_MUST cr_status cr_expert_sort(cr_device *dev, const cr_expert_sort_args *a, cr_err *err);

/* y[t] = add[t] + sum over j of weight[t, j] x[slot[t k + j]], in float32 and in the order of j, rounded
 * once. weight NULL: ones. add NULL: none; it may be y. */
typedef struct cr_rows_combine_args {
    const cr_mem *x, *add;
    const cr_mem *slot;   /* int32 */
    const cr_mem *weight; /* float32 */
    cr_mem *y;
    cr_dtype dtype;
    int64_t num_rows, top_k, num_cols;
} cr_rows_combine_args;
CR_MUST cr_status cr_rows_combine(cr_device *dev, const cr_rows_combine_args *a, cr_err *err);

/* y[r] = factor[r] x[r]; y may be x. */
CR_MUST cr_status cr_rows_scale(cr_device *dev, cr_dtype dtype, const cr_mem *x,
                                const cr_mem *factor, int64_t num_rows, int64_t num_cols, cr_mem *y,
                                cr_err *err);
/* out[r] = sum over c of a[r, c] b[r, c]. */
CR_MUST cr_status cr_rows_dot(cr_device *dev, cr_dtype dtype, const cr_mem *a, const cr_mem *b,
                              int64_t num_rows, int64_t num_cols, cr_mem *out, cr_err *err);

#endif
