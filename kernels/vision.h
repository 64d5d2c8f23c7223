/* vision.h -- operations of vision towers that text models do without: LayerNorm, GELU, sums of weighted
 * table rows (interpolated positions) and rows added to some others.
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
CR_MUST cr_status cr_layernorm(cr_device *dev, const cr_layernorm_args *a, cr_err *err);
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
CR_MUST cr_status cr_layernorm_grad(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err);

/* x Phi(x), or its approximation by tanh. y may be x. Backward: dx may be dy or x. */
typedef enum cr_gelu_kind { CR_GELU_ERF, CR_GELU_TANH } cr_gelu_kind;
CR_MUST cr_status cr_gelu(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x,
                          cr_mem *y, size_t num, cr_err *err);
CR_MUST cr_status cr_gelu_grad(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x,
                               const cr_mem *dy, cr_mem *dx, size_t num, cr_err *err);

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
CR_MUST cr_status cr_embedding_bag_grad(cr_device *dev, const cr_embedding_bag_grad_args *a,
                                        cr_err *err);

/* dst[index[i]] += src[i]: rows of num_cols elements. An index comes once. */
CR_MUST cr_status cr_rows_add(cr_device *dev, cr_dtype dtype, const cr_mem *src,
                              const cr_mem *index, int64_t num_rows, int64_t num_cols, cr_mem *dst,
                              cr_err *err);

#endif
