/* gemm_neon.h -- the register tile of pairs of bfloat16 by BFMMLA (see gemm.h).
 *
 * BFMMLA adds four products to each element of a square of two rows and two columns: two units of the row times two of
 * the column, first those of the first unit. The two products of a unit are added, then their sum to the element; both are
 * rounded to odd, and denormals count as zero (FPCR.EBF would round otherwise; nothing sets it). The sum of an element is
 * made by the same instructions in the same order, whichever tile it is in and whichever row lies beside it.
 */
#ifndef CR_GEMM_NEON_H
#define CR_GEMM_NEON_H

#include "kernels/cpu/variant/gemm.h"

/* Units k and k + 1 of row r, then of the next row; zeros after the last one. */
CR_INLINE bfloat16x8_t two_rows(const uint32_t *a, int64_t row_stride, int64_t k_stride, int r,
                                int rows)
{
    uint32x2_t low, high = vdup_n_u32(0);

    a += r * row_stride;
    if (k_stride == 1) {
        low = vld1_u32(a);
        if (r + 1 < rows) high = vld1_u32(a + row_stride);
    } else {
        low = (uint32x2_t){a[0], a[k_stride]};
        if (r + 1 < rows) high = (uint32x2_t){a[row_stride], a[row_stride + k_stride]};
    }
    return vreinterpretq_bf16_u32(vcombine_u32(low, high));
}

/* Of the vectors of a panel at k and at k + 1: units of columns 0 and 1, or (second) 2 and 3. */
CR_INLINE bfloat16x8_t two_columns(const uint32_t *at, bool second)
{
    uint32x4_t x = vld1q_u32(at), y = vld1q_u32(at + CRI_PANEL);

    return vreinterpretq_bf16_u32(second ? vzip2q_u32(x, y) : vzip1q_u32(x, y));
}

/* A row of four columns from two squares, and back: both are the same exchange. */
CR_INLINE vf halves(vf a, vf b, bool second)
{
    return second ? __builtin_shufflevector(a, b, 2, 3, 6, 7)
                  : __builtin_shufflevector(a, b, 0, 1, 4, 5);
}

/* Rows r and r + 1 of the sums as squares, or the other way around. */
CR_INLINE void exchange(vf *first, vf *second)
{
    vf a = *first, b = *second;

    *first = halves(a, b, false);
    *second = halves(a, b, true);
}

/* Adds to rows x (CRI_PANEL * num_panels) sums; num_units is even. */
CR_INLINE void neon_tile(int rows, int num_panels, int64_t num_units, const uint32_t *a,
                         int64_t row_stride, int64_t k_stride, const uint32_t *panel, vf *sums)
{
    const int row = 2 * num_panels; /* vectors of a row */
    vf acc[2 * CRI_ROWS];

#pragma GCC unroll 32
    for (int i = 0; i < (rows + 1) / 2 * 2 * row; i++)
        acc[i] = i < rows * row ? sums[i] : v_set(0);
#pragma GCC unroll 32
    for (int i = 0; i < (rows + 1) / 2 * row; i++)
        exchange(&acc[i / row * 2 * row + i % row], &acc[i / row * 2 * row + row + i % row]);
    for (int64_t k = 0; k < num_units; k += 2)
#pragma GCC unroll 4
        for (int p = 0; p < num_panels; p++) {
            const uint32_t *at = panel + (p * num_units + k) * CRI_PANEL;
            bfloat16x8_t b[4] = {two_columns(at, false), two_columns(at, true),
                                 two_columns(at + V_LANES, false), two_columns(at + V_LANES, true)};
#pragma GCC unroll 8
            for (int r = 0; r < rows; r += 2) {
                bfloat16x8_t x = two_rows(a + k * k_stride, row_stride, k_stride, r, rows);
                vf *c = &acc[r * row + 2 * p];
                c[0] = (vf)vbfmmlaq_f32((float32x4_t)c[0], x, b[0]);
                c[row] = (vf)vbfmmlaq_f32((float32x4_t)c[row], x, b[1]);
                c[1] = (vf)vbfmmlaq_f32((float32x4_t)c[1], x, b[2]);
                c[row + 1] = (vf)vbfmmlaq_f32((float32x4_t)c[row + 1], x, b[3]);
            }
        }
#pragma GCC unroll 32
    for (int i = 0; i < (rows + 1) / 2 * row; i++)
        exchange(&acc[i / row * 2 * row + i % row], &acc[i / row * 2 * row + row + i % row]);
#pragma GCC unroll 32
    for (int i = 0; i < rows * row; i++)
        sums[i] = acc[i];
}

#endif
