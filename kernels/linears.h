/* linears.h -- several products of the same rows, which a device may make together. Declared by ops.h.
 *
 * Ownership, threads, errors: as kernels.h.
 */
#ifndef CR_LINEARS_H
#define CR_LINEARS_H

#include "kernels/kernels.h"

/* y[i][M, N_i] = x[M, K] W_i^T (+ bias[i]), the same bits as cr_linear's, in the dtype of the weights: q, k and v; gate and up. */
enum { CR_LINEARS = 3 };
typedef struct cr_linears_args {
    const cr_mem *x;
    cr_weight w[CR_LINEARS];        /* [N_i, K], of one dtype */
    const cr_mem *bias[CR_LINEARS]; /* [N_i] or NULL */
    cr_mem *y[CR_LINEARS];
    int num;          /* of them */
    int64_t num_rows; /* M */
} cr_linears_args;

/* The i-th alone, while a is there. */
static inline cr_linear_args cr_linear_of(const cr_linears_args *a, int i)
{
    cr_linear_args one;

    one.x = a->x;
    one.w = &a->w[i];
    one.bias = a->bias[i];
    one.add = NULL;
    one.y = a->y[i];
    one.out_dtype = a->w[i].dtype;
    one.num_rows = a->num_rows;
    return one;
}

#endif
