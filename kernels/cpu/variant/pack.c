/* pack.c -- A and B of a product as units in the order in which they are read (see gemm.h). */
#include "kernels/cpu/variant/gemm.h"

/* ---- B ---- */

/* A panel that is being written; its numbers: units, or of 16 bits (gemm_is_narrow). */
typedef union panel_out {
    gemm_unit *units;
    uint16_t *narrow;
} panel_out;

/* Two times V_LANES columns of one k, from word i on: bfloat16 with the second ones in the high bits. */
CR_INLINE void put_columns(cr_dtype dtype, uint16_t *out, vu words)
{
    vh low, high;

    if (dtype == CR_BF16) {
        memcpy(out, &words, sizeof words);
        return;
    }
    low = v_narrowed(words & 0xFFFF), high = v_narrowed(words >> 16);
    memcpy(out, &low, sizeof low);
    memcpy(out + V_LANES, &high, sizeof high);
}

CR_INLINE vu columns_of(const uint16_t *low, const uint16_t *high)
{
    vh x, y;

    memcpy(&x, low, sizeof x);
    memcpy(&y, high, sizeof y);
    return v_widened(x) | v_widened(y) << 16;
}

/* Unit i of column j of a panel from a row of k elements; NULL: zero. */
CR_INLINE void put_unit(cr_dtype dtype, const void *row, int64_t i, int64_t k, int64_t j,
                        panel_out panel)
{
    gemm_unit u = 0;

    if (gemm_is_narrow(dtype)) {
        int64_t at = dtype == CR_BF16 ? j % V_LANES * 2 + j / V_LANES : j;
        panel.narrow[i * CRI_PANEL + at] = row ? ((const uint16_t *)row)[i] : 0;
        return;
    }
    if (row && (dtype == CR_F32 || 2 * i + 1 < k))
        memcpy(&u, (const char *)row + (int64_t)sizeof u * i, sizeof u);
    else if (row)
        u = 2 * i < k ? ((const uint16_t *)row)[2 * i] : 0;
    panel.units[i * CRI_PANEL + j] = u;
}

/* As many units of CRI_PANEL whole rows as squares of V_LANES x V_LANES hold. Returns their number. */
CR_INLINE int64_t pack_squares(cr_dtype dtype, const char *w, int64_t row_bytes, int64_t k,
                               panel_out panel)
{
    bool is_narrow = gemm_is_narrow(dtype);
    int64_t units = (gemm_has_pairs(dtype) ? k / 2 : k) / V_LANES * V_LANES,
            unit_bytes = is_narrow ? 2 : (int64_t)sizeof(gemm_unit);

    for (int64_t i = 0; i < units; i += V_LANES)
        for (int64_t j = 0; j < (is_narrow ? V_LANES : CRI_PANEL); j += V_LANES) {
            vf x[V_LANES];
#pragma GCC unroll 16
            for (int64_t r = 0; r < V_LANES; r++) {
                const void *at = w + (j + r) * row_bytes + i * unit_bytes,
                           *second = (const char *)at + V_LANES * row_bytes;
                x[r] = is_narrow ? (vf)columns_of(at, second) : v_load(at);
            }
            v_transpose(x);
#pragma GCC unroll 16
            for (int64_t r = 0; r < V_LANES; r++)
                if (is_narrow)
                    put_columns(dtype, panel.narrow + (i + r) * CRI_PANEL, (vu)x[r]);
                else
                    v_store((float *)panel.units + (i + r) * CRI_PANEL + j, x[r]);
        }
    return units;
}

/* Reads CRI_PANEL rows side by side and writes in order. */
CR_INLINE void pack_panel(cr_dtype dtype, const char *w, int64_t row_bytes, int64_t cols, int64_t k,
                          void *out)
{
    int64_t units = gemm_units(dtype, k), i = 0;
    panel_out panel = {out};

    if (cols == CRI_PANEL) i = pack_squares(dtype, w, row_bytes, k, panel);
    for (; i < units; i++)
        for (int64_t j = 0; j < CRI_PANEL; j++)
            put_unit(dtype, j < cols ? w + j * row_bytes : NULL, i, k, j, panel);
}

void CR_V(pack_rows)(cr_dtype dtype, const void *w, int64_t ldw, int64_t n, int64_t k, void *panels)
{
    int64_t panel_bytes = gemm_panel_bytes(dtype, gemm_units(dtype, k)),
            row_bytes = ldw * (int64_t)cr_dtype_bytes(dtype);
    char *panel = panels;

    for (int64_t n0 = 0; n0 < n; n0 += CRI_PANEL, panel += panel_bytes) {
        const char *rows = (const char *)w + n0 * row_bytes;
        if (n - n0 < CRI_PANEL)
            pack_panel(dtype, rows, row_bytes, n - n0, k, panel);
        else
            CR_BY_DTYPE(dtype, pack_panel, rows, row_bytes, CRI_PANEL, k, panel);
    }
}

/* Pair i of cols columns of a matrix [k, n] side by side: cols is most often a constant. */
CR_INLINE void pack_pairs(const uint16_t *w, int64_t ldw, int64_t k, int64_t i, int64_t cols,
                          gemm_unit *out)
{
    const uint16_t *low = w + 2 * i * ldw;

    if (2 * i + 1 < k)
        for (int64_t j = 0; j < cols; j++)
            out[j] = low[j] | (gemm_unit)low[ldw + j] << 16;
    else if (2 * i < k)
        for (int64_t j = 0; j < cols; j++)
            out[j] = low[j];
    else
        memset(out, 0, (size_t)cols * sizeof *out);
}

/* Unit i of CRI_PANEL columns of a matrix [k, n]: row i of a panel. */
CR_INLINE void pack_units(cr_dtype dtype, const void *w, int64_t ldw, int64_t k, int64_t i,
                          void *out)
{
    if (dtype == CR_F32) {
        memcpy(out, (const float *)w + i * ldw, CRI_PANEL * sizeof(float));
    } else if (gemm_has_pairs(dtype)) {
        pack_pairs(w, ldw, k, i, CRI_PANEL, out);
    } else {
        const uint16_t *row = (const uint16_t *)w + i * ldw;
        put_columns(dtype, out, columns_of(row, row + V_LANES));
    }
}

/* The same of fewer columns; the others are zero. */
static __attribute__((noinline)) void pack_edge(cr_dtype dtype, const char *w, int64_t ldw,
                                                int64_t k, int64_t i, int64_t cols, void *out)
{
    int64_t num = gemm_has_pairs(dtype) ? 2 : 1, bytes = (int64_t)cr_dtype_bytes(dtype);
    char some[2 * CRI_PANEL * sizeof(gemm_unit)] = {0};

    for (int64_t r = 0; r < num && i * num + r < k; r++)
        memcpy(some + r * CRI_PANEL * bytes, w + (i * num + r) * ldw * bytes,
               (size_t)(cols * bytes));
    CR_BY_DTYPE(dtype, pack_units, some, CRI_PANEL, num, 0, out);
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
                           char *panels)
{
    enum { BAND = 8 * CRI_PANEL };
    int64_t units = gemm_units(dtype, k), bytes = (int64_t)cr_dtype_bytes(dtype),
            panel_bytes = gemm_panel_bytes(dtype, units), row_bytes = gemm_panel_bytes(dtype, 1);

    for (int64_t n0 = 0; n0 < n; n0 += BAND) {
        int64_t band = n - n0 < BAND ? n - n0 : BAND;
        for (int64_t i = 0; i < units; i++) {
            if (i + AHEAD < units) prefetch_unit(dtype, w + n0 * bytes, ldw, i + AHEAD, band);
            for (int64_t j = 0; j < band; j += CRI_PANEL) {
                const char *at = w + (n0 + j) * bytes;
                char *out = panels + (n0 + j) / CRI_PANEL * panel_bytes + i * row_bytes;
                if (band - j >= CRI_PANEL)
                    pack_units(dtype, at, ldw, k, i, out);
                else
                    pack_edge(dtype, at, ldw, k, i, band - j, out);
            }
        }
    }
}

void CR_V(pack_cols)(cr_dtype dtype, const void *w, int64_t ldw, int64_t k, int64_t n, void *panels)
{
    CR_BY_DTYPE(dtype, pack_matrix, w, ldw, k, n, panels);
}

/* ---- A ---- */

CR_INLINE void widen_row(cr_dtype dtype, const void *row, int64_t num, float *out)
{
    int64_t i = 0;

    for (; i + V_LANES <= num; i += V_LANES)
        v_store(out + i, v_get(dtype, row, i));
    for (; i < num; i++)
        out[i] = e_get(dtype, row, i);
}

void CR_V(pack_a)(cr_dtype dtype, const void *a, int64_t lda, int64_t m, int64_t k, gemm_unit *out)
{
    int64_t units = gemm_units(dtype, k);

    for (int64_t r = 0; r < m; r++, out += units) {
        const char *row = (const char *)a + (size_t)(r * lda) * cr_dtype_bytes(dtype);
        if (!gemm_has_pairs(dtype)) {
            CR_BY_DTYPE(dtype, widen_row, row, k, (float *)out);
        } else {
            memcpy(out, row, (size_t)(k / 2) * sizeof *out);
            if (k % 2) out[k / 2] = ((const uint16_t *)(const void *)row)[k - 1];
            for (int64_t i = (k + 1) / 2; i < units; i++)
                out[i] = 0;
        }
    }
}

#if defined(__AVX512F__)
/* 16-bit numbers of CRI_ROWS columns; zero after them. */
CR_INLINE vh load_group(const uint16_t *p)
{
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)p),
            high = _mm_loadl_epi64((const __m128i *)(const void *)(p + 8));

    return (vh)_mm256_set_m128i(high, low);
}
#elif defined(__AVX2__)
CR_INLINE vh load_group(const uint16_t *p)
{
    int32_t last;

    memcpy(&last, p + 4, sizeof last);
    return (vh)_mm_insert_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p), last, 2);
}
#endif

/* Unit i of a whole group. With vectors of V_LANES > CRI_ROWS, more units than it has are written: into the next unit,
 * which comes later, or after the last one (masked loads and stores take three times as long). */
CR_INLINE void pack_group(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t i,
                          gemm_unit *out)
{
    const uint16_t *low = (const uint16_t *)a + (gemm_has_pairs(dtype) ? 2 * i : i) * lda;

    if (dtype == CR_F32) {
        memcpy(out, (const float *)a + i * lda, CRI_ROWS * sizeof(float));
        return;
    }
#if defined(__AVX2__)
    vh x = load_group(low);
    if (gemm_has_pairs(dtype)) {
        vu pairs = v_widened(x);
        if (2 * i + 1 < k) pairs |= v_widened(load_group(low + lda)) << 16;
        v_store((float *)out, (vf)pairs);
    } else {
        v_store((float *)out, v_get(dtype, &x, 0));
    }
#else
    if (gemm_has_pairs(dtype))
        pack_pairs(a, lda, k, i, CRI_ROWS, out);
    else
        widen_row(dtype, low, CRI_ROWS, (float *)out);
#endif
}

/* The last group, of cols < CRI_ROWS. */
CR_INLINE void pack_some(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t i,
                         int64_t cols, gemm_unit *out)
{
    if (gemm_has_pairs(dtype))
        pack_pairs(a, lda, k, i, cols, out);
    else
        widen_row(dtype, (const char *)a + (size_t)(i * lda) * cr_dtype_bytes(dtype), cols,
                  (float *)out);
}

CR_INLINE void pack_groups(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m,
                           gemm_unit *out)
{
    int64_t units = gemm_units(dtype, k), bytes = (int64_t)cr_dtype_bytes(dtype),
            stride = gemm_group_units(units);

    for (int64_t i = 0; i < units; i++, out += CRI_ROWS) {
        if (i + AHEAD < units) prefetch_unit(dtype, a, lda, i + AHEAD, m);
        for (int64_t g = 0; g < m; g += CRI_ROWS) {
            const char *at = (const char *)a + g * bytes;
            gemm_unit *to = out + g / CRI_ROWS * stride;
            if (m - g >= CRI_ROWS)
                pack_group(dtype, at, lda, k, i, to);
            else
                pack_some(dtype, at, lda, k, i, m - g, to);
        }
    }
}

#if defined(__AMX_BF16__)
/* Units k0 .. k0 + 15 of rows m0 .. m0 + 15 of A^T: one tile, with zeros beyond k. */
CR_INLINE void pack_tile(const uint16_t *a, int64_t lda, int64_t k, int64_t num_rows,
                         gemm_unit *out)
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
                                                     int64_t num_rows, gemm_unit *out)
{
    pack_tile(a, lda, k, num_rows, out);
}

static void pack_tiles(const uint16_t *a, int64_t lda, int64_t k, int64_t m, gemm_unit *out)
{
    int64_t units = gemm_units(CR_BF16, k);

    for (int64_t i = 0; i < units; i += CRI_TILE_UNITS)
        for (int64_t g = 0; g < m; g += 16) {
            const uint16_t *at = a + 2 * i * lda + g;
            gemm_unit *to = out + g * units + i * 16;
            if (m - g >= 16 && k - 2 * i >= 2 * CRI_TILE_UNITS)
                pack_tile(at, lda, 2 * CRI_TILE_UNITS, 16, to);
            else
                pack_tile_edge(at, lda, k - 2 * i, m - g < 16 ? m - g : 16, to);
        }
}
#endif

void CR_V(pack_at)(cr_dtype dtype, const void *a, int64_t lda, int64_t k, int64_t m, gemm_unit *out)
{
#if defined(__AMX_BF16__)
    if (dtype == CR_BF16) {
        pack_tiles(a, lda, k, m, out);
        return;
    }
#endif
    CR_BY_DTYPE(dtype, pack_groups, a, lda, k, m, out);
}
