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

/* dlogits [T, E] in dtype from grad_weight [T, k]. of_prob [E] or NULL: the gradient of another
 * term of the loss by each row of prob, the same for all rows (the auxiliary loss). */
typedef struct cr_router_grad_args {
    cr_router_args fwd;        /* prob and expert as the forward left them */
    const cr_mem *grad_weight; /* float32 */
    const cr_mem *of_prob;     /* float32 */
    cr_mem *dlogits;
} cr_router_grad_args;

/* slot[T k], token[T k] (of a slot) and count[E] of expert[T k] with T = num_rows, k = top_k. */
typedef struct cr_expert_sort_args {
    const cr_mem *expert; /* int32, as are the next two */
    int64_t num_rows, top_k, num_experts;
    cr_mem *slot, *token;
    int64_t *count; /* host */
} cr_expert_sort_args;

/* Products of the rows of experts, each with its own weight; all weights have one shape and dtype. Rows of expert e follow those of
 * e - 1: rows[e] of them, maybe none. x [M, K] and y [M, N] are in the weights' dtype. */
enum { CR_EXPERTS_A_CALL = 128 }; /* at most */
typedef struct cr_expert_linear_args {
    const cr_mem *x;
    const cr_weight *const *w; /* [num_experts] of [N, K] */
    const int64_t *rows;       /* [num_experts] host */
    int64_t num_experts;
    cr_mem *y; /* row r: x[r] W^T */
} cr_expert_linear_args;

/* As cr_linear_grad. dw [num_experts] of [N, K] float32; NULL, also one of them: not wanted. */
typedef struct cr_expert_linear_grad_args {
    const cr_mem *x, *dy;
    const cr_weight *const *w;
    const int64_t *rows;
    int64_t num_experts;
    cr_mem *dx; /* NULL: not wanted */
    bool is_dx_added;
    cr_mem *const *dw;
} cr_expert_linear_grad_args;

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

/* y[r] = factor[r] x[r]; y may be x. */
typedef struct cr_rows_scale_args {
    cr_dtype dtype;
    const cr_mem *x;
    const cr_mem *factor; /* [num_rows] float32 */
    int64_t num_rows, num_cols;
    cr_mem *y;
} cr_rows_scale_args;

/* dot[r] = sum over c of x[r, c] y[r, c]. */
typedef struct cr_rows_dot_args {
    cr_dtype dtype;
    const cr_mem *x, *y;
    int64_t num_rows, num_cols;
    cr_mem *dot; /* [num_rows] float32 */
} cr_rows_dot_args;

#endif
