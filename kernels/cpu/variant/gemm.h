/* gemm.h -- the one product all others are made of.
 *
 * C[m, n] (=, +=) sum over k of A[m, k] B[k, n], k ascending, one float32 accumulator an element.
 * Numbers come in units of 4 bytes: one float32, or (where the variant has vdpbf16ps) a pair of
 * bfloat16 along k. B is packed in panels of 32 columns: panel[k][32] units. A is read where it
 * lies: unit (m, k) at a[m * row_stride + k * k_stride].
 */
#ifndef CR_GEMM_H
#define CR_GEMM_H

#include "kernels/cpu/variant/simd_io.h"

enum { CRI_PANEL = 32 };

/* Is this dtype multiplied in pairs here? */
CR_INLINE bool gemm_has_pairs(cr_dtype dtype)
{
#if defined(__AVX512BF16__)
    return dtype == CR_BF16;
#else
    (void)dtype;
    return false;
#endif
}

/* Units along k of num elements. */
CR_INLINE int64_t gemm_units(cr_dtype dtype, int64_t num)
{
    return gemm_has_pairs(dtype) ? (num + 1) / 2 : num;
}

typedef struct gemm_out {
    void *c; /* [m, n], row stride ldc elements of c_dtype */
    cr_dtype c_dtype;
    int64_t ldc;
    bool is_added;    /* float32 C only: accumulate in place */
    const void *bias; /* [n] in aux_dtype or NULL */
    const void *add;  /* [m, n], row stride ldadd, aux_dtype, or NULL */
    int64_t ldadd;
    cr_dtype aux_dtype;
} gemm_out;

/* panels: ceil(n / 32) panels of num_units * 32 units. */
void CR_V(gemm)(cr_device *dev, int64_t m, int64_t n, int64_t num_units, bool is_pairs,
                const uint32_t *a, int64_t row_stride, int64_t k_stride, const uint32_t *panels,
                const gemm_out *out);

/* Pack num_cols columns of W as B: from rows of W ([n, k] row-major, k contiguous: B = W^T). */
void CR_V(pack_rows)(cr_dtype dtype, const void *w, int64_t ldw, int64_t n, int64_t k,
                     uint32_t *panels);
/* From a matrix [k, n] row-major (n contiguous: B = W as it lies). */
void CR_V(pack_cols)(cr_dtype dtype, const void *w, int64_t ldw, int64_t k, int64_t n,
                     uint32_t *panels);
/* A as units [m][units], when it cannot be read where it lies. */
void CR_V(pack_a)(cr_dtype dtype, const void *a, int64_t lda, int64_t m, int64_t k, uint32_t *out);
/* A^T of a matrix [k, m] (m contiguous) as units [units][m]. */
void CR_V(pack_at)(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m, uint32_t *out);
/* dw[n, k] += dy[t, n]^T x[t, k] over num_rows t; dy has row stride ld_dy. */
void CR_V(product_tn)(cr_device *dev, cr_dtype dtype, const void *dy, int64_t ld_dy, const void *x,
                      int64_t num_rows, int64_t n, int64_t k, float *dw);

#endif
