/* product.h -- the matrix product that linear, its gradient, the head and logits share (linear.cu).
 *
 * C[m, n] = sum over k of A B, float32 sums over ascending k in one chain an element, so that an element's bits depend on
 * its row of A and its column of B alone: not on m, nor on the tile it falls into. Then, in this order: times the factor, + bias, rounded to
 * C's dtype and + add if there is an add, rounded to C's dtype.
 */
#ifndef CR_CUDA_PRODUCT_H
#define CR_CUDA_PRODUCT_H

#include "kernels/cuda/entries.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cri_product {
    cr_dtype dtype; /* of A and B */
    const void *a;  /* [m, k], or [k, m] if is_a_turned */
    const void *b;  /* [n, k], or [k, n] if is_b_turned */
    bool is_a_turned, is_b_turned;
    int64_t m, n, k, lda, ldb; /* strides of rows as they are in memory */
    cr_dtype c_dtype;          /* dtype or CR_F32 */
    void *c;
    int64_t ldc;
    cr_dtype aux_dtype; /* of bias and add: dtype, or CR_F32 with a float32 C */
    const void *bias;   /* [n] or NULL */
    const void *add;    /* [m, n], row stride ldc, or NULL; may be C */
    const struct cri_dz
        *dz; /* ending.h: C, of dtype, is the gradient of these logits; NULL: C is the product */
    float factor; /* of the sums; not 1: for linear.cu and few.cu alone */
} cri_product;

/* Queues it on the stream of dev. Turned: A not, B is (dx), or both (dw). */
cr_status cri_cuda_product(cr_device *dev, const char *op, const cri_product *p, cr_err *err);
/* The same by cuBLASLt where it can promise that (library.h). */
cr_status cri_cuda_product_anyhow(cr_device *dev, const char *op, const cri_product *p,
                                  cr_err *err);

/* Products of few rows or of few columns or k (few.cu): num of them of as many rows, for which cri_cuda_is_for_few is true. Up to CRI_FEW_ROWS rows
 * read each weight once. is_rounded: as above; else the addend comes before the only rounding, as cuBLASLt has it. */
enum { CRI_FEW_ROWS = 64, CRI_FEW_PRODUCTS = CR_LINEARS };
bool cri_cuda_is_for_few(const cri_product *p); /* by all but its number of rows */
cr_status cri_cuda_product_few(cr_device *dev, const char *op, const cri_product *p, int num,
                               bool is_rounded, cr_err *err);
/* Of bf16 whose rows are whole 16-byte pieces, neither turned, aux of bf16, on a GPU that has wgmma (linear_wgmma.cu). */
cudaError_t cri_cuda_product_wgmma(cr_device *dev, const cri_product *p);

#ifdef __cplusplus
}
#endif

#endif
