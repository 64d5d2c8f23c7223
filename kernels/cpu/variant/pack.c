/* pack.c -- A and B of a product as units in the order in which they are read (see gemm.h). */
#include "kernels/cpu/variant/gemm.h"

/* A half as a unit of its own. */
CR_INLINE uint32_t widened(cr_dtype dtype, uint16_t h)
{
    uint32_t u;
    float x;

    if (dtype == CR_BF16) return (uint32_t)h << 16;
    x = f16_get(h);
    memcpy(&u, &x, 4);
    return u;
}

/* Unit i of a row of k elements. */
CR_INLINE uint32_t unit_of(cr_dtype dtype, const void *row, int64_t i, int64_t k)
{
    uint32_t u;

    if (dtype == CR_F32) {
        memcpy(&u, (const char *)row + 4 * i, 4);
    } else if (gemm_has_pairs(dtype)) {
        if (2 * i + 1 < k)
            memcpy(&u, (const char *)row + 4 * i, 4);
        else
            u = 2 * i < k ? ((const uint16_t *)row)[2 * i] : 0;
    } else {
        u = widened(dtype, ((const uint16_t *)row)[i]);
    }
    return u;
}

/* V_LANES units from unit i on. */
CR_INLINE vf units_at(cr_dtype dtype, const void *row, int64_t i)
{
    return gemm_has_pairs(dtype) ? v_load((const float *)row + i) : v_get(dtype, row, i);
}

/* As many units of CRI_PANEL whole rows as squares of V_LANES x V_LANES hold. Returns their number. */
CR_INLINE int64_t pack_squares(cr_dtype dtype, const char *w, int64_t row_bytes, int64_t k,
                               uint32_t *panel)
{
    int64_t units = (gemm_has_pairs(dtype) ? k / 2 : k) / V_LANES * V_LANES;

    for (int64_t i = 0; i < units; i += V_LANES)
        for (int64_t j = 0; j < CRI_PANEL; j += V_LANES) {
            vf x[V_LANES];
#pragma GCC unroll 16
            for (int64_t r = 0; r < V_LANES; r++)
                x[r] = units_at(dtype, w + (j + r) * row_bytes, i);
            v_transpose(x);
#pragma GCC unroll 16
            for (int64_t r = 0; r < V_LANES; r++)
                v_store((float *)panel + (i + r) * CRI_PANEL + j, x[r]);
        }
    return units;
}

/* Reads CRI_PANEL rows side by side and writes in order. */
CR_INLINE void pack_panel(cr_dtype dtype, const char *w, int64_t row_bytes, int64_t cols, int64_t k,
                          uint32_t *panel)
{
    int64_t units = gemm_units(dtype, k), i = 0;

    if (cols == CRI_PANEL) i = pack_squares(dtype, w, row_bytes, k, panel);
    for (; i < units; i++)
        for (int64_t j = 0; j < CRI_PANEL; j++)
            panel[i * CRI_PANEL + j] = j < cols ? unit_of(dtype, w + j * row_bytes, i, k) : 0;
}

void CR_V(pack_rows)(cr_dtype dtype, const void *w, int64_t ldw, int64_t n, int64_t k,
                     uint32_t *panels)
{
    int64_t units = gemm_units(dtype, k), row_bytes = ldw * (int64_t)cr_dtype_bytes(dtype);

    for (int64_t n0 = 0; n0 < n; n0 += CRI_PANEL, panels += units * CRI_PANEL) {
        const char *rows = (const char *)w + n0 * row_bytes;
        if (n - n0 < CRI_PANEL)
            pack_panel(dtype, rows, row_bytes, n - n0, k, panels);
        else
            CR_BY_DTYPE(dtype, pack_panel, rows, row_bytes, CRI_PANEL, k, panels);
    }
}

/* Unit i of cols columns of a matrix [k, n], side by side: cols is most often a constant. */
CR_INLINE void pack_units(cr_dtype dtype, const char *w, int64_t ldw, int64_t k, int64_t i,
                          int64_t cols, uint32_t *out)
{
    if (dtype == CR_F32) {
        memcpy(out, (const uint32_t *)(const void *)w + i * ldw, (size_t)cols * 4);
    } else if (gemm_has_pairs(dtype)) {
        const uint16_t *low = (const uint16_t *)(const void *)w + 2 * i * ldw;
        if (2 * i + 1 < k)
            for (int64_t j = 0; j < cols; j++)
                out[j] = low[j] | (uint32_t)low[ldw + j] << 16;
        else if (2 * i < k)
            for (int64_t j = 0; j < cols; j++)
                out[j] = low[j];
        else
            memset(out, 0, (size_t)cols * 4);
    } else {
        const uint16_t *row = (const uint16_t *)(const void *)w + i * ldw;
        for (int64_t j = 0; j < cols; j++)
            out[j] = widened(dtype, row[j]);
    }
}

/* Asks for the rows of unit i. */
CR_INLINE void prefetch_unit(cr_dtype dtype, const void *a, int64_t lda, int64_t i, int64_t cols)
{
    int64_t bytes = (int64_t)cr_dtype_bytes(dtype), num = gemm_has_pairs(dtype) ? 2 : 1;

    for (int64_t r = i * num; r < (i + 1) * num; r++)
        for (int64_t at = 0; at < cols * bytes; at += 64)
            __builtin_prefetch((const char *)a + r * lda * bytes + at);
}

enum { AHEAD = 8 };

/* Eight panels side by side: more of a row is read at a time, and the lines that are written fit into
 * one set of the cache. */
CR_INLINE void pack_matrix(cr_dtype dtype, const char *w, int64_t ldw, int64_t k, int64_t n,
                           uint32_t *panels)
{
    enum { BAND = 8 * CRI_PANEL };
    int64_t units = gemm_units(dtype, k), bytes = (int64_t)cr_dtype_bytes(dtype);

    for (int64_t n0 = 0; n0 < n; n0 += BAND) {
        int64_t band = n - n0 < BAND ? n - n0 : BAND;
        for (int64_t i = 0; i < units; i++) {
            if (i + AHEAD < units) prefetch_unit(dtype, w + n0 * bytes, ldw, i + AHEAD, band);
            for (int64_t j = 0; j < band; j += CRI_PANEL) {
                const char *at = w + (n0 + j) * bytes;
                uint32_t *out = panels + (n0 + j) * units + i * CRI_PANEL;
                if (band - j >= CRI_PANEL) {
                    pack_units(dtype, at, ldw, k, i, CRI_PANEL, out);
                } else {
                    memset(out, 0, CRI_PANEL * 4);
                    pack_units(dtype, at, ldw, k, i, band - j, out);
                }
            }
        }
    }
}

void CR_V(pack_cols)(cr_dtype dtype, const void *w, int64_t ldw, int64_t k, int64_t n,
                     uint32_t *panels)
{
    CR_BY_DTYPE(dtype, pack_matrix, w, ldw, k, n, panels);
}

void CR_V(pack_a)(cr_dtype dtype, const void *a, int64_t lda, int64_t m, int64_t k, uint32_t *out)
{
    int64_t units = gemm_units(dtype, k);

    for (int64_t r = 0; r < m; r++, out += units) {
        const uint16_t *row = (const uint16_t *)a + r * lda;
        if (dtype == CR_F32) {
            memcpy(out, (const uint32_t *)a + r * lda, (size_t)k * 4);
        } else if (gemm_has_pairs(dtype)) {
            memcpy(out, row, (size_t)(k / 2) * 4);
            if (k % 2) out[k / 2] = row[k - 1];
            for (int64_t i = (k + 1) / 2; i < units; i++)
                out[i] = 0;
        } else {
            for (int64_t i = 0; i < k; i++)
                out[i] = widened(dtype, row[i]);
        }
    }
}

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
CR_INLINE __m512i load_group(const uint16_t *p)
{
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)p),
            high = _mm_loadl_epi64((const __m128i *)(const void *)(p + 8));

    return _mm512_cvtepu16_epi32(_mm256_set_m128i(high, low));
}

/* Pair i of a whole group. Four units more than it has are written: into the next pair, which comes
 * later, or after the last one (masked loads and stores take three times as long). */
CR_INLINE void pack_group(const uint16_t *a, int64_t lda, int64_t k, int64_t i, uint32_t *out)
{
    const uint16_t *low = a + 2 * i * lda;
    __m512i x = load_group(low);

    if (2 * i + 1 < k) x = _mm512_or_si512(x, _mm512_slli_epi32(load_group(low + lda), 16));
    _mm512_storeu_si512(out, x);
}
#endif

CR_INLINE void pack_groups(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m,
                           uint32_t *out)
{
    int64_t units = gemm_units(dtype, k), bytes = (int64_t)cr_dtype_bytes(dtype),
            stride = gemm_group_units(units);

    for (int64_t i = 0; i < units; i++, out += CRI_ROWS) {
        if (i + AHEAD < units) prefetch_unit(dtype, a, lda, i + AHEAD, m);
        for (int64_t g = 0; g < m; g += CRI_ROWS) {
            const char *at = (const char *)a + g * bytes;
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
            if (dtype == CR_BF16 && m - g >= CRI_ROWS) {
                pack_group((const uint16_t *)(const void *)at, lda, k, i,
                           out + g / CRI_ROWS * stride);
                continue;
            }
#endif
            if (m - g >= CRI_ROWS)
                pack_units(dtype, at, lda, k, i, CRI_ROWS, out + g / CRI_ROWS * stride);
            else
                pack_units(dtype, at, lda, k, i, m - g, out + g / CRI_ROWS * stride);
        }
    }
}

#if defined(__AMX_BF16__)
/* Units k0 .. k0 + 15 of rows m0 .. m0 + 15 of A^T: one tile, with zeros beyond k. */
CR_INLINE void pack_tile(const uint16_t *a, int64_t lda, int64_t k, int64_t num_rows, uint32_t *out)
{
    vf x[16];

#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; i++) {
        vh low = {0}, high = {0};
        if (2 * i < k) memcpy(&low, a + 2 * i * lda, (size_t)num_rows * 2);
        if (2 * i + 1 < k) memcpy(&high, a + (2 * i + 1) * lda, (size_t)num_rows * 2);
        x[i] = (vf)(v_widened(low) | v_widened(high) << 16);
    }
    v_transpose(x);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; i++)
        v_store((float *)out + i * 16, x[i]);
}

static __attribute__((noinline)) void pack_tile_edge(const uint16_t *a, int64_t lda, int64_t k,
                                                     int64_t num_rows, uint32_t *out)
{
    pack_tile(a, lda, k, num_rows, out);
}

static void pack_tiles(const uint16_t *a, int64_t lda, int64_t k, int64_t m, uint32_t *out)
{
    int64_t units = gemm_units(CR_BF16, k);

    for (int64_t i = 0; i < units; i += CRI_TILE_UNITS)
        for (int64_t g = 0; g < m; g += 16) {
            const uint16_t *at = a + 2 * i * lda + g;
            uint32_t *to = out + g * units + i * 16;
            if (m - g >= 16 && k - 2 * i >= 2 * CRI_TILE_UNITS)
                pack_tile(at, lda, 2 * CRI_TILE_UNITS, 16, to);
            else
                pack_tile_edge(at, lda, k - 2 * i, m - g < 16 ? m - g : 16, to);
        }
}
#endif

void CR_V(pack_at)(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m, uint32_t *out)
{
#if defined(__AMX_BF16__)
    if (dtype == CR_BF16) {
        pack_tiles(a, lda, k, m, out);
        return;
    }
#endif
    CR_BY_DTYPE(dtype, pack_groups, a, lda, k, m, out);
}
