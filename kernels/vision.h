/* vision.h -- LayerNorm, GELU and GeGLU, sums of weighted table rows (interpolated positions), and a factor a column (layer
 * scale): what vision towers and models with another activation than SwiGLU need.
 *
 * The forward of an embedding bag is cr_rows_combine (experts.h) with the table as x. Promises, threads
 * and errors as in kernels.h; index arrays are int32 in device memory and in range.
 */
#ifndef CR_KERNELS_VISION_H
#define CR_KERNELS_VISION_H

#include "kernels/kernels.h"

/* y = (x - mean) rstd weight + bias over rows of num_cols, rstd = 1 / sqrt(variance + eps), rounded once.
 * mean and rstd [num_rows] are written when not NULL. In place is fine. */
typedef struct cr_layernorm_args {
    const cr_mem *x, *weight, *bias;
    cr_mem *y;
    cr_mem *mean, *rstd; /* float32 */
    cr_dtype dtype;
    int64_t num_rows, num_cols;
    float eps;
} cr_layernorm_args;
/* dx (=, or += if is_dx_added); dweight and dbias float32, added, may be NULL. dx may be dy. */
typedef struct cr_layernorm_grad_args {
    const cr_mem *x, *weight, *dy;
    const cr_mem *mean, *rstd; /* float32 */
    cr_mem *dx;
    cr_mem *dweight, *dbias; /* float32 */
    bool is_dx_added;
    cr_dtype dtype;
    int64_t num_rows, num_cols;
} cr_layernorm_grad_args;

/* x Phi(x), or its approximation by tanh. y may be x. dx may be dy or x. */
typedef enum cr_gelu_kind { CR_GELU_ERF, CR_GELU_TANH } cr_gelu_kind;
typedef struct cr_gelu_args {
    cr_gelu_kind kind;
    cr_dtype dtype;
    const cr_mem *x;
    cr_mem *y;
    size_t num;
} cr_gelu_args;
typedef struct cr_gelu_grad_args {
    cr_gelu_kind kind;
    cr_dtype dtype;
    const cr_mem *x, *dy;
    cr_mem *dx;
    size_t num;
} cr_gelu_grad_args;

/* h = gelu(gate) * up, gelu rounded first (as Transformers' Gemma computes it). */
typedef struct cr_geglu_args {
    cr_gelu_kind kind;
    cr_dtype dtype;
    const cr_mem *gate, *up;
    cr_mem *h;
    size_t num;
} cr_geglu_args;
/* dgate, dup may be gate, up themselves. */
typedef struct cr_geglu_grad_args {
    cr_gelu_kind kind;
    cr_dtype dtype;
    const cr_mem *gate, *up, *dh;
    cr_mem *dgate, *dup;
    size_t num;
} cr_geglu_grad_args;

/* dw[index[t k + j]] += weight[t k + j] dy[t] for the k = per_row table rows of row t, in order of t,
 * then j: the backward of y[t] = sum over j of weight[t k + j] w[index[t k + j]]. */
typedef struct cr_embedding_bag_grad_args {
    const cr_mem *dy; /* [num_rows, num_cols] */
    cr_dtype dtype;
    const cr_mem *index;  /* [num_rows, per_row] int32 */
    const cr_mem *weight; /* [num_rows, per_row] float32 */
    cr_mem *dw;           /* [.., num_cols] float32, added */
    int64_t num_rows, per_row, num_cols;
} cr_embedding_bag_grad_args;

/* y[r, c] = add[r, c] + factor[c] x[r, c], rounded once. add NULL: none; y may be x or add. */
typedef struct cr_cols_scale_args {
    cr_dtype dtype;
    const cr_mem *x, *factor, *add;
    cr_mem *y;
    int64_t num_rows, num_cols;
} cr_cols_scale_args;
/* dx[r, c] = factor[c] dy[r, c]; dfactor[c] += sum over r of dy[r, c] x[r, c], in an order that follows from the number of
 * rows. dx may be dy; either may be NULL. */
typedef struct cr_cols_scale_grad_args {
    cr_dtype dtype;
    const cr_mem *x, *factor, *dy;
    cr_mem *dx;
    cr_mem *dfactor; /* float32 */
    int64_t num_rows, num_cols;
} cr_cols_scale_grad_args;

#endif
