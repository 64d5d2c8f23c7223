/* gemm.h -- the one product all others are made of.
 *
 * C[m, n] = sum over k of A[m, k] B[k, n], k ascending, one float32 accumulator an element.
 * Numbers come in units of 4 bytes: one float32, or (where the variant has vdpbf16ps or BFMMLA) a pair of
 * bfloat16 along k. B is packed in panels of CRI_PANEL columns: panel[k][CRI_PANEL] units. Without pairs, 16-bit
 * numbers keep their 16 bits in panels and are widened when they are multiplied with units of A, which are
 * float32: panel[k][CRI_PANEL] of float16 as they are, or panel[k][V_LANES] words with the bfloat16 of column
 * j in the low bits and that of column j + V_LANES in the high bits. A is read where it
 * lies, unit (m, k) at a[m * row_stride + k], or (row_stride CRI_GROUPS) from groups of CRI_ROWS rows,
 * one after another: group[k][CRI_ROWS].
 *
 * AMX multiplies pairs in tiles of 16 rows x 16 units: k is filled up with zeros to whole tiles, groups are
 * of 16 rows, each group[k / 16][16 rows][16 units], and of every tile the first and the second numbers
 * of the pairs are summed apart, in order, before both are added to the accumulator.
 */
#ifndef CR_GEMM_H
#define CR_GEMM_H

#include "kernels/cpu/variant/simd_io.h"

/* CRI_ROWS: rows of the largest register tile, whose sums are 24 of 32 registers or 12 of 16. */
typedef float_bits gemm_unit;

enum { CRI_PANEL = 2 * V_LANES, CRI_ROWS = V_REGISTERS * 3 / 8, CRI_GROUPS = 0 };
/* Units of a tile along k. */
#if defined(__AMX_BF16__)
enum { CRI_TILE_UNITS = 16 };
#elif defined(V_NEON_BF16)
enum { CRI_TILE_UNITS = 2 };
#else
enum { CRI_TILE_UNITS = 1 };
#endif

/* Is this dtype multiplied in pairs here? */
CR_INLINE bool gemm_has_pairs(cr_dtype dtype)
{
    return V_HAS_PAIRS && dtype == CR_BF16;
}

/* Units along k of num elements. */
CR_INLINE int64_t gemm_units(cr_dtype dtype, int64_t num)
{
    if (!gemm_has_pairs(dtype)) return num;
    return (num + 2 * CRI_TILE_UNITS - 1) / (2 * CRI_TILE_UNITS) * CRI_TILE_UNITS;
}

/* Do panels have 16 bits a number? */
CR_INLINE bool gemm_is_narrow(cr_dtype dtype)
{
    return dtype != CR_F32 && !gemm_has_pairs(dtype);
}

CR_INLINE int64_t gemm_panel_bytes(cr_dtype dtype, int64_t units)
{
    return units * CRI_PANEL * (gemm_is_narrow(dtype) ? 2 : (int64_t)sizeof(gemm_unit));
}

/* Of the panels of n columns. */
CR_INLINE size_t gemm_panels_bytes(cr_dtype dtype, int64_t n, int64_t units)
{
    return (size_t)((n + CRI_PANEL - 1) / CRI_PANEL * gemm_panel_bytes(dtype, units));
}

/* Are rows of num elements A where they lie? */
CR_INLINE bool gemm_in_place(cr_dtype dtype, int64_t num)
{
    return dtype == CR_F32 || (gemm_has_pairs(dtype) && num == 2 * gemm_units(dtype, num));
}

/* From one group of CRI_ROWS rows to the next: a cache line more than it needs, so that groups which are
 * written side by side do not all fall into one set of the cache. */
CR_INLINE int64_t gemm_group_units(int64_t units)
{
    return units * CRI_ROWS + 16;
}

/* Where the group of row m begins. */
CR_INLINE int64_t gemm_groups_at(cr_dtype dtype, int64_t m, int64_t units)
{
#if defined(__AMX_BF16__)
    if (dtype == CR_BF16) return m * units;
#endif
    (void)dtype;
    return m / CRI_ROWS * gemm_group_units(units);
}

/* Units of all groups of m rows. */
CR_INLINE int64_t gemm_groups_units(cr_dtype dtype, int64_t m, int64_t units)
{
#if defined(__AMX_BF16__)
    if (dtype == CR_BF16) return (m + 15) / 16 * 16 * units;
#endif
    (void)dtype;
    return (m + CRI_ROWS - 1) / CRI_ROWS * gemm_group_units(units) + 4; /* see pack_group */
}

/* A product of the same dtype whose sums go on where those of the first end: rows of A as they lie, and all panels of C. */
typedef struct gemm_more {
    const gemm_unit *a;
    int64_t row_stride, num_units;
    const void *panels;
} gemm_more;

typedef struct gemm_out {
    void *c; /* [m, n], row stride ldc elements of c_dtype */
    cr_dtype c_dtype;
    int64_t ldc;
    const void *bias; /* [n] in aux_dtype or NULL */
    const void *add;  /* [m, n], row stride ldadd, aux_dtype, or NULL; may be c */
    int64_t ldadd;
    cr_dtype aux_dtype;
    const float *
        before; /* [m, n], row stride ld_sums, in whole panels: sums that these go on from; NULL: 0 */
    float *after; /* where they go instead of c, because there is more to add; NULL: c */
    int64_t ld_sums;
    const gemm_more *more; /* NULL: none */
    const float *factor;   /* of the sums, before all that is added; NULL: 1 */
} gemm_out;

/* panels: ceil(n / CRI_PANEL) panels of numbers of the dtype. */
void CR_V(gemm)(cr_device *dev, cr_dtype dtype, int64_t m, int64_t n, int64_t num_units,
                const gemm_unit *a, int64_t row_stride, const void *panels, const gemm_out *out);

/* Pack num_cols columns of W as B: from rows of W ([n, k] row-major, k contiguous: B = W^T). */
void CR_V(pack_rows)(cr_dtype dtype, const void *w, int64_t ldw, int64_t n, int64_t k,
                     void *panels);
/* From a matrix [k, n] row-major (n contiguous: B = W as it lies). */
void CR_V(pack_cols)(cr_dtype dtype, const void *w, int64_t ldw, int64_t k, int64_t n,
                     void *panels);
/* A as units [m][units], when it cannot be read where it lies. */
void CR_V(pack_a)(cr_dtype dtype, const void *a, int64_t lda, int64_t m, int64_t k, gemm_unit *out);
/* A^T of a matrix [k, m] (m contiguous) as groups of rows. */
void CR_V(pack_at)(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m,
                   gemm_unit *out);
/* C[m, n] = A[m, k] B and what out says. B = W^T (is_transposed: from its packed form, if there is one) or W. */
void CR_V(multiply)(cr_device *dev, const cr_weight *w, bool is_transposed, const void *a,
                    int64_t m, const gemm_out *out);

/* dw[n, k] += dy[t, n]^T x[t, k] over num_rows t of the same x, for each of num; rows of dy and of x have strides ld. */
typedef struct gemm_tn {
    const void *dy;
    int64_t ld, n;
    float *dw;
} gemm_tn;
void CR_V(product_tn)(cr_device *dev, cr_dtype dtype, const gemm_tn *of, int num, const void *x,
                      int64_t ld_x, int64_t num_rows, int64_t k);

#endif
