/* gemm.c -- the register tile and the three products of a Linear (see gemm.h).
 *
 * Register tile: CRI_ROWS rows x two vectors of columns, with AVX-512 12 x 32 (24 accumulators of 32 registers), with
 * NEON 12 x 8 (of 32, too; with BFMMLA an accumulator is a square of two rows and two columns), with AVX2 6 x 16 (12 of
 * 16). Fewer rows take several panels at once so that a single row (decoding) still has 8 independent chains. Rows of A
 * stay in L2 (MC), a panel of B in L1/L2.
 * Bytes: A is read n / CRI_PANEL times, B m / CRI_ROWS times from the near caches.
 */
#include "kernels/cpu/variant/gemm.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/entries.h"
#if defined(V_NEON_BF16)
#include "kernels/cpu/variant/gemm_neon.h"
#endif
#if defined(__AMX_BF16__)
#include "kernels/cpu/variant/gemm_amx.h"
#endif

enum { MC = 192, NC = 1024 };
/* ---- the register tile ---- */

CR_INLINE vf multiply_add(cr_dtype dtype, gemm_unit a, vf b, vf acc)
{
    float x;
#if defined(__AVX512BF16__)
    if (gemm_has_pairs(dtype))
        return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32((int)a), (__m512bh)b);
#endif
    (void)dtype;
    memcpy(&x, &a, sizeof x);
    return v_fma(v_set(x), b, acc);
}

/* The columns of a panel at one k. */
CR_INLINE void load_columns(cr_dtype dtype, const char *row, vf b[2])
{
    if (!gemm_is_narrow(dtype)) {
        b[0] = v_get(CR_F32, row, 0);
        b[1] = v_get(CR_F32, row, V_LANES);
    } else if (dtype == CR_BF16) {
        vu words;
        memcpy(&words, row, sizeof words);
        b[0] = (vf)(words << 16);
        b[1] = (vf)(words & 0xFFFF0000u);
    } else {
        b[0] = v_get(dtype, row, 0);
        b[1] = v_get(dtype, row, V_LANES);
    }
}

/* rows x (CRI_PANEL * num_panels) sums; is_more: on top of those that are there. is_widening: puts the numbers of the
 * panel there in float32. */
CR_INLINE void tile(cr_dtype dtype, int rows, int num_panels, int64_t units, const gemm_unit *a,
                    int64_t row_stride, int64_t k_stride, const char *panel, bool is_more, vf *sums,
                    bool is_widening, float *widened)
{
    enum { AHEAD_BYTES = 4096 };
    const int64_t row_bytes = gemm_panel_bytes(dtype, 1), panel_bytes = units * row_bytes;
    /* weights that come from memory: the CPU's own prefetch is late for narrow rows of a panel */
    const bool
        is_streamed = gemm_is_narrow(dtype) || (V_LANES < 16 && rows <= 4),
        /* several panels side by side are lines far apart: those after them are asked for in their order */
        is_in_order = is_streamed && rows == 1 && row_bytes < 64 && num_panels > 1;
    const char *next = panel + num_panels * panel_bytes;
    vf acc[2 * CRI_ROWS];

#pragma GCC unroll 24
    for (int i = 0; i < rows * num_panels * 2; i++)
        acc[i] = v_set(0);
    if (is_more)
#pragma GCC unroll 24
        for (int i = 0; i < rows * num_panels * 2; i++)
            acc[i] = sums[i];
#if defined(V_NEON_BF16)
    if (gemm_has_pairs(dtype)) {
        neon_tile(rows, num_panels, units, a, row_stride, k_stride,
                  (const gemm_unit *)(const void *)panel, acc);
        units = 0;
    }
#endif
    for (int64_t k = 0; k < units; k++) {
        if (is_in_order)
#pragma GCC unroll 4
            for (int i = 0; i < num_panels * row_bytes; i += 64)
                __builtin_prefetch(next + k * num_panels * row_bytes + i, 0, 2);
#pragma GCC unroll 4
        for (int p = 0; p < num_panels; p++) {
            const char *at = panel + p * panel_bytes + k * row_bytes;
            const gemm_unit *from = a;
            vf b[2];
            /* each panel reads A, for whose values 12 sums leave no registers from panel to panel */
            if (V_REGISTERS < 32 && rows == 3 && p > 0) __asm__("" : "+r"(from));
            if (is_streamed && !is_in_order) __builtin_prefetch(at + AHEAD_BYTES);
            load_columns(dtype, at, b);
            if (is_widening) {
                v_store(widened + k * CRI_PANEL, b[0]);
                v_store(widened + k * CRI_PANEL + V_LANES, b[1]);
            }
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                gemm_unit x = from[r * row_stride + k * k_stride];
                int i = (r * num_panels + p) * 2;
                acc[i] = multiply_add(dtype, x, b[0], acc[i]);
                acc[i + 1] = multiply_add(dtype, x, b[1], acc[i + 1]);
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * num_panels * 2; i++)
        sums[i] = acc[i];
}

#define TILE_CASE(rows, panels)                                                                \
    case (rows)*8 + (panels):                                                                  \
        tile(dtype, rows, panels, units, a, row_stride, k_stride, panel, is_more, sums, false, \
             NULL);                                                                            \
        return

CR_INLINE void any_tile(cr_dtype dtype, int rows, int panels, int64_t units, const gemm_unit *a,
                        int64_t row_stride, int64_t k_stride, const char *panel, bool is_more,
                        vf *sums)
{
    switch (rows * 8 + panels) {
        TILE_CASE(1, 1);
        TILE_CASE(1, 2);
        TILE_CASE(1, 4);
        TILE_CASE(2, 1);
        TILE_CASE(2, 2);
        TILE_CASE(3, 1);
        TILE_CASE(3, 2);
        TILE_CASE(4, 1);
        TILE_CASE(5, 1);
        TILE_CASE(6, 1);
#if V_REGISTERS == 32
        TILE_CASE(4, 2);
        TILE_CASE(7, 1);
        TILE_CASE(8, 1);
        TILE_CASE(9, 1);
        TILE_CASE(10, 1);
        TILE_CASE(11, 1);
        TILE_CASE(12, 1);
#endif
    }
}

/* Noinline: one copy of each tile. */
static __attribute__((noinline)) void run_tile(cr_dtype dtype, int rows, int panels, int64_t units,
                                               const gemm_unit *a, int64_t row_stride,
                                               int64_t k_stride, const char *panel, bool is_more,
                                               vf *sums)
{
    CR_BY_DTYPE(dtype, any_tile, rows, panels, units, a, row_stride, k_stride, panel, is_more,
                sums);
}

/* A whole tile of a panel of 16-bit numbers, which is widened on the way, for the tiles after it. */
static __attribute__((noinline)) void run_widening_tile(cr_dtype dtype, int64_t units,
                                                        const gemm_unit *a, int64_t row_stride,
                                                        int64_t k_stride, const char *panel,
                                                        bool is_more, vf *sums, float *widened)
{
    if (dtype == CR_BF16)
        tile(CR_BF16, CRI_ROWS, 1, units, a, row_stride, k_stride, panel, is_more, sums, true,
             widened);
    else
        tile(CR_F16, CRI_ROWS, 1, units, a, row_stride, k_stride, panel, is_more, sums, true,
             widened);
}

/* V_LANES columns of a row of C from their sums; some < V_LANES: the last ones. */
CR_INLINE void finish(cr_dtype dtype, cr_dtype aux, const gemm_out *o, int64_t m, int64_t n,
                      int64_t some, vf x)
{
    if (o->factor) x = x * v_set(*o->factor);
    if (o->bias)
        x = x + (some < V_LANES ? v_get_some(aux, o->bias, n, some) : v_get(aux, o->bias, n));
    if (o->add) {
        int64_t at = m * o->ldadd + n;
        vf y = some < V_LANES ? v_get_some(aux, o->add, at, some) : v_get(aux, o->add, at);
        x = v_rounded(dtype, x) + y; /* the branch's output, then the residual */
    }
    if (some < V_LANES)
        v_put_some(dtype, o->c, m * o->ldc + n, x, some);
    else
        v_put(dtype, o->c, m * o->ldc + n, x);
}

/* A whole tile to rows m .. m + rows - 1, columns n0 .. n0 + CRI_PANEL wide - 1 of C. */
CR_INLINE void finish_tile(cr_dtype dtype, const gemm_out *out, int64_t m, int64_t n0, int rows,
                           int wide, const vf *acc)
{
    const gemm_out o = *out; /* no store to C changes it */

    for (int r = 0; r < rows; r++)
        for (int64_t n = n0; n < n0 + wide * CRI_PANEL; n += CRI_PANEL, acc += 2) {
            finish(dtype, dtype, &o, m + r, n, V_LANES, acc[0]);
            finish(dtype, dtype, &o, m + r, n + V_LANES, V_LANES, acc[1]);
        }
}

/* At the right edge of C, which has n columns, or with a bias or residual of another dtype. */
static void finish_edge(const gemm_out *o, int64_t m, int64_t n0, int64_t n, int rows, int wide,
                        const vf *acc)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * wide; i++) {
            int64_t at = n0 + i * V_LANES;
            if (at < n)
                finish(o->c_dtype, o->aux_dtype, o, m + r, at, n - at < V_LANES ? n - at : V_LANES,
                       acc[r * 2 * wide + i]);
        }
}

/* Asks for what finish_tile will add while the sums are made. */
CR_INLINE void prefetch_add(const gemm_out *o, int64_t m, int64_t n0, int rows)
{
    int64_t bytes = (int64_t)cr_dtype_bytes(o->aux_dtype);

    for (int r = 0; r < rows; r++) {
        const char *at = (const char *)o->add + ((m + r) * o->ldadd + n0) * bytes;
        __builtin_prefetch(at);
        __builtin_prefetch(at + CRI_PANEL * bytes - 1);
    }
}

/* The product that goes on from the sums of a tile at row m, column n0. Tiles of several panels have few rows. */
static void go_on(cr_dtype dtype, const gemm_more *more, int64_t m, int64_t n0, int num_rows,
                  int wide, vf *sums)
{
    const int max = wide == 1 ? CRI_ROWS : num_rows < 4 ? num_rows : 4;
    const char *panel =
        (const char *)more->panels + n0 / CRI_PANEL * gemm_panel_bytes(dtype, more->num_units);

    for (int r = 0; r < num_rows; r += max)
        run_tile(dtype, num_rows - r < max ? num_rows - r : max, wide, more->num_units,
                 more->a + (m + r) * more->row_stride, more->row_stride, 1, panel,
                 /*is_more=*/true, sums + r * 2 * wide);
}

#if defined(__AMX_BF16__)
/* Rows m0 .. m1 in steps of num_rows <= 32 against panels p0 .. p1. */
static void amx_rows(int64_t num_rows, int64_t m0, int64_t m1, int64_t p0, int64_t p1, int64_t n,
                     int64_t units, const gemm_unit *a, amx_a at, const gemm_unit *panels,
                     const gemm_out *o)
{
    bool is_plain = o->aux_dtype == o->c_dtype || (!o->bias && !o->add);
    int rows = (int)num_rows, wide;

    set_tiles(num_rows);
    for (int64_t p = p0; p < p1; p += wide) {
        int64_t n0 = p * CRI_PANEL;
        wide = rows <= 16 && p + 1 < p1 ? 2 : 1;
        for (int64_t m = m0; m < m1; m += rows) {
            const gemm_unit *rows_of_a = a + m / 16 * at.second;
            vf acc[64];
            if (o->add) prefetch_add(o, m, n0, rows);
            if (rows > 16)
                amx_square(units, rows_of_a, at, panels + n0 * units, acc);
            else if (wide == 2)
                amx_wide(2, units, rows_of_a, at, panels + n0 * units, acc);
            else
                amx_wide(1, units, rows_of_a, at, panels + n0 * units, acc);
            if (o->more) go_on(CR_BF16, o->more, m, n0, rows, wide, acc);
            if (is_plain && n - n0 >= wide * CRI_PANEL)
                CR_BY_DTYPE(o->c_dtype, finish_tile, o, m, n0, rows, wide, acc);
            else
                finish_edge(o, m, n0, n, rows, wide, acc);
        }
    }
}

/* As block, of pairs. Tiles are given back, so that the kernel need not save them with the thread. */
static void amx_block(int64_t m0, int64_t m1, int64_t p0, int64_t p1, int64_t n, int64_t units,
                      const gemm_unit *a, int64_t row_stride, const gemm_unit *panels,
                      const gemm_out *o)
{
    int64_t whole = m0 + (m1 - m0) / 32 * 32;
    amx_a at = {row_stride * 4, CRI_TILE_UNITS, row_stride * 16};

    if (row_stride == CRI_GROUPS) at = (amx_a){64, 256, units * 16};
    __asm__ volatile("" ::: "memory"); /* tile loads do not say that they read memory */
    if (whole > m0) amx_rows(32, m0, whole, p0, p1, n, units, a, at, panels, o);
    if (m1 > whole) amx_rows(m1 - whole, whole, m1, p0, p1, n, units, a, at, panels, o);
    _tile_release();
}

/* Squares of 16 x 16 sums lie transposed in `in` [32 columns of C][2]: row by row in out [32][2]. */
static void transpose_squares(const vf *in, int64_t num_rows, vf *out)
{
    for (int64_t i = 0; i < 2; i++)
        for (int64_t r = 0; r < num_rows; r += 16) {
            vf x[16];
#pragma GCC unroll 16
            for (int64_t j = 0; j < 16; j++)
                x[j] = in[(i * 16 + j) * 2 + r / 16];
            v_transpose(x);
#pragma GCC unroll 16
            for (int64_t j = 0; j < 16; j++)
                out[(r + j) * 2 + i] = x[j];
        }
}

/* Asks for num_rows rows of `units`. */
static void prefetch_rows(const gemm_unit *w, int64_t units, int64_t num_rows)
{
    for (int64_t i = 0; i < num_rows * units; i += 16)
        __builtin_prefetch(w + i, 0, 2);
}

/* Columns n0 .. n1 of C, in steps of num_cols <= 32: tiles of A are rows of W, and x is packed as B. */
static void amx_columns(int64_t num_cols, int64_t n0, int64_t n1, int64_t m, int64_t units,
                        const gemm_unit *w, const gemm_unit *x, const gemm_out *o)
{
    bool is_plain = o->aux_dtype == o->c_dtype || (!o->bias && !o->add);
    amx_a at = {units * 4, CRI_TILE_UNITS, units * 16};
    vf sums[64], acc[64];

    memset(sums, 0, sizeof sums); /* what no tile stores is transposed, too */
    set_tiles(num_cols);
    for (int64_t n = n0; n < n1; n += num_cols) {
        if (n + num_cols < n1) prefetch_rows(w + (n + num_cols) * units, units, num_cols);
        for (int64_t r = 0; r < m; r += CRI_PANEL) {
            int rows = (int)(m - r < CRI_PANEL ? m - r : CRI_PANEL);
            if (num_cols > 16)
                amx_square(units, w + n * units, at, x + r * units, sums);
            else
                amx_wide(1, units, w + n * units, at, x + r * units, sums);
            transpose_squares(sums, rows, acc);
            if (is_plain && num_cols == CRI_PANEL)
                CR_BY_DTYPE(o->c_dtype, finish_tile, o, r, n, rows, 1, acc);
            else
                finish_edge(o, r, n, n + num_cols, rows, 1, acc);
        }
    }
}

/* Columns n0 .. n1 of C = x W^T from rows of W as they lie: C^T = W x^T, the same sums. */
static void amx_transposed(int64_t n0, int64_t n1, int64_t m, int64_t units, const gemm_unit *w,
                           const gemm_unit *x, const gemm_out *o)
{
    int64_t whole = n0 + (n1 - n0) / 32 * 32;

    __asm__ volatile("" ::: "memory");
    if (whole > n0) amx_columns(32, n0, whole, m, units, w, x, o);
    if (n1 > whole) amx_columns(n1 - whole, whole, n1, m, units, w, x, o);
    _tile_release();
}
#endif

/* The sums that a tile goes on from, and where they go if there is more to add. */
CR_INLINE void begin_tile(const gemm_out *o, int64_t m, int64_t n0, int rows, int wide, vf *sums)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * wide; i++)
            sums[r * 2 * wide + i] = v_load(o->before + (m + r) * o->ld_sums + n0 + i * V_LANES);
}

CR_INLINE void keep_tile(const gemm_out *o, int64_t m, int64_t n0, int rows, int wide,
                         const vf *sums)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * wide; i++)
            v_store(o->after + (m + r) * o->ld_sums + n0 + i * V_LANES, sums[r * 2 * wide + i]);
}

/* A part of C: rows m0 .. m1, panels p0 .. p1. */
typedef struct part {
    int64_t m0, m1, p0, p1;
} part;

/* At most four panels; p1 - p0 and the rows are what register tiles there are for. widened: room for one panel in
 * float32, with which rows after the first tile are multiplied, or NULL. */
static void block_panels(part at, cr_dtype dtype, int64_t n, int64_t units, const gemm_unit *a,
                         int64_t row_stride, const void *panel, float *widened, const gemm_out *o)
{
    bool is_grouped = row_stride == CRI_GROUPS;
    bool is_plain = o->aux_dtype == o->c_dtype || (!o->bias && !o->add);
    int64_t n0 = at.p0 * CRI_PANEL, rows, row_step = is_grouped ? 1 : row_stride,
            k_step = is_grouped ? CRI_ROWS : 1;
    int wide = (int)(at.p1 - at.p0);
    const cr_dtype own = dtype;

    for (int64_t m = at.m0; m < at.m1; m += rows) {
        int64_t left = at.m1 - m;
        vf sums[2 * CRI_ROWS];
        rows = left < CRI_ROWS ? left : CRI_ROWS;
        if (!is_grouped && left < 2 * CRI_ROWS && left > CRI_ROWS)
            rows = (left + 1) / 2; /* even parts */
        if (o->add) prefetch_add(o, m, n0, (int)rows);
        if (o->before) begin_tile(o, m, n0, (int)rows, wide, sums);
        const gemm_unit *from =
            a + (is_grouped ? m / CRI_ROWS * gemm_group_units(units) : m * row_stride);
        if (widened && m == at.m0) {
            run_widening_tile(dtype, units, from, row_step, k_step, panel, o->before, sums,
                              widened);
            dtype = CR_F32, panel = widened;
        } else {
            run_tile(dtype, (int)rows, wide, units, from, row_step, k_step, panel, o->before, sums);
        }
        if (o->more && !o->after) go_on(own, o->more, m, n0, (int)rows, wide, sums);
        if (o->after)
            keep_tile(o, m, n0, (int)rows, wide, sums);
        else if (is_plain && n - n0 >= wide * CRI_PANEL)
            CR_BY_DTYPE(o->c_dtype, finish_tile, o, m, n0, (int)rows, wide, sums);
        else
            finish_edge(o, m, n0, n, (int)rows, wide, sums);
    }
}

/* Rows enough to widen a panel once, with the first tile, and its most units. */
enum { WIDEN_ROWS = 4 * CRI_ROWS, MAX_DEPTH = 2048 };

static void block(part at, cr_dtype dtype, int64_t n, int64_t units, const gemm_unit *a,
                  int64_t row_stride, const void *panels, const gemm_out *o)
{
    int64_t rows = at.m1 - at.m0, wide;
    bool is_widened = gemm_is_narrow(dtype) && rows >= WIDEN_ROWS && units <= MAX_DEPTH;
    float widened[MAX_DEPTH * CRI_PANEL];

#if defined(__AMX_BF16__)
    if (gemm_has_pairs(dtype)) {
        amx_block(at.m0, at.m1, at.p0, at.p1, n, units, a, row_stride, panels, o);
        return;
    }
#endif
    for (int64_t p = at.p0; p < at.p1; p += wide) {
        const char *panel = (const char *)panels + p * gemm_panel_bytes(dtype, units);
        wide = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
        while (p + wide > at.p1)
            wide /= 2;
        block_panels((part){at.m0, at.m1, p, p + wide}, dtype, n, units, a, row_stride, panel,
                     is_widened ? widened : NULL, o);
    }
}

/* Panels of one thread: it packs them and multiplies them with all rows, so that they stay in its L2. */
static int64_t panels_each(int64_t num_panels, int threads)
{
    return (num_panels + threads - 1) / threads;
}

/* Rows in blocks that stay in L2, too. */
static void block_rows(part at, cr_dtype dtype, int64_t n, int64_t units, const gemm_unit *a,
                       int64_t row_stride, const void *panels, const gemm_out *o)
{
    for (int64_t m = at.m0; m < at.m1; m += MC)
        block((part){m, m + MC < at.m1 ? m + MC : at.m1, at.p0, at.p1}, dtype, n, units, a,
              row_stride, panels, o);
}

void CR_V(gemm)(cr_device *dev, cr_dtype dtype, int64_t m, int64_t n, int64_t units,
                const gemm_unit *a, int64_t row_stride, const void *panels, const gemm_out *out)
{
    int64_t num_panels = (n + CRI_PANEL - 1) / CRI_PANEL;
    /* what it takes to start threads: about as long as 2e6 multiply-adds, or as reading 128 KB of B */
    bool is_worth = (double)m * (double)n * (double)units > 2e6 || n * units > 32768;
    int threads = is_worth ? dev->num_threads : 1;
    int64_t each = panels_each(num_panels, threads), bands = (num_panels + each - 1) / each,
            blocks = num_panels < 4 * threads && m >= 2 * MC ? (m + MC - 1) / MC : 1;

    if (threads == 1) {
        block_rows((part){0, m, 0, num_panels}, dtype, n, units, a, row_stride, panels, out);
        return;
    }
#pragma omp parallel for schedule(static, 1) num_threads(threads) collapse(2)
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < bands; i++)
            block_rows((part){b * MC, b + 1 < blocks ? (b + 1) * MC : m, i * each,
                              (i + 1) * each < num_panels ? (i + 1) * each : num_panels},
                       dtype, n, units, a, row_stride, panels, out);
}

/* ---- the products of a Linear ---- */

/* What of B is packed at a time: columns, and numbers along k. */
typedef struct cut {
    int64_t cols, depth;
} cut;

/* Panels of n columns stay in the L2 of each thread. Long sums are cut, all columns at once so that rows of A are copied
 * once: otherwise a panel alone would not fit. */
static cut cut_of(const cr_device *dev, cr_dtype dtype, int64_t n, int64_t k)
{
    enum { L2_BYTES = 1 << 19, MIN_PANELS = 8, MIN_DEPTH = 256 };
    int64_t units = gemm_units(dtype, k), max, fits;
    cut c = {n < NC ? n : NC, k};

#if defined(__AMX_BF16__)
    if (dtype == CR_BF16) {
        c.cols = L2_BYTES / (int64_t)sizeof(gemm_unit) / units / CRI_PANEL * CRI_PANEL;
        if (c.cols < 2 * CRI_PANEL || c.cols > NC) c.cols = NC;
        return c;
    }
#endif
    if (units > MAX_DEPTH) {
        fits = L2_BYTES / (int64_t)gemm_panels_bytes(dtype, c.cols, 1) / 16 * 16;
        c.depth = (fits < MIN_DEPTH ? MIN_DEPTH : fits) * (gemm_has_pairs(dtype) ? 2 : 1);
        return c;
    }
    fits = L2_BYTES / gemm_panel_bytes(dtype, units);
    max = (fits < MIN_PANELS ? MIN_PANELS : fits) * CRI_PANEL * dev->num_threads;
    c.cols = max < NC * dev->num_threads ? max : NC * dev->num_threads;
    return c;
}

/* Threads for work on num numbers: what it takes to start them is about as long as packing 32768. */
static int threads_for(const cr_device *dev, int64_t num)
{
    return num > 32768 ? dev->num_threads : 1;
}

/* A as units, where it lies if possible; otherwise in the scratch. Cut rows are copied: they lie so far apart that they
 * would meet in a few sets of the cache. */
static const gemm_unit *units_of(cr_device *dev, cr_dtype dtype, const void *x, int64_t ld,
                                 int64_t m, int64_t k, int64_t *row_stride)
{
    int64_t units = gemm_units(dtype, k);
    gemm_unit *packed;

    *row_stride = units;
    if (ld == k && gemm_in_place(dtype, k)) return x;
    packed = cri_scratch(dev, CRI_SLOT_ROWS, (size_t)(m * units) * sizeof(gemm_unit));
    CRI_FOR(threads_for(dev, m * k), i, (m + MC - 1) / MC,
            CR_V(pack_a)(dtype, (const char *)x + i * MC * ld * (int64_t)cr_dtype_bytes(dtype), ld,
                         m - i * MC < MC ? m - i * MC : MC, k, packed + i * MC * units));
    return packed;
}

/* Panels of n columns of B, [n, k] (is_transposed: B = W^T) or [k, n], by the threads that multiply them. */
static void pack_panels(const cr_device *dev, cr_dtype dtype, bool is_transposed, const void *w,
                        int64_t ld, int64_t k, int64_t n, void *panels)
{
    int64_t num = (n + CRI_PANEL - 1) / CRI_PANEL, bytes = (int64_t)cr_dtype_bytes(dtype);
    int threads = threads_for(dev, n * k);
    int64_t each = panels_each(num, threads), cols = each * CRI_PANEL;

#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < (num + each - 1) / each; i++) {
        int64_t n0 = i * cols, some = n - n0 < cols ? n - n0 : cols;
        char *to = (char *)panels + i * each * gemm_panel_bytes(dtype, gemm_units(dtype, k));
        if (is_transposed)
            CR_V(pack_rows)(dtype, (const char *)w + n0 * ld * bytes, ld, some, k, to);
        else
            CR_V(pack_cols)(dtype, (const char *)w + n0 * bytes, ld, k, some, to);
    }
}

size_t CR_V(packed_bytes)(const cr_device *dev, const cr_weight *w)
{
    (void)dev;
    return gemm_panels_bytes(w->dtype, w->num_rows, gemm_units(w->dtype, w->num_cols));
}

cr_status CR_V(weight_pack)(cr_device *dev, const cr_weight_pack_args *a, cr_err *err)
{
    const cr_weight *w = a->w;

    (void)err;
    pack_panels(dev, w->dtype, /*is_transposed=*/true, w->data, w->num_cols, w->num_cols,
                w->num_rows, cr_mem_to_host(a->packed));
    return CR_OK;
}

/* `depth` numbers along k, from k0 on, of columns n0 .. n0 + cols - 1 of B = W^T, or W. */
static void pack_part(const cr_device *dev, const cr_weight *w, bool is_transposed, int64_t n0,
                      int64_t cols, int64_t k0, int64_t depth, void *panels)
{
    int64_t ld = w->num_cols, first = is_transposed ? n0 * ld + k0 : k0 * ld + n0;
    const char *at = (const char *)w->data + (size_t)first * cr_dtype_bytes(w->dtype);

    pack_panels(dev, w->dtype, is_transposed, at, ld, depth, cols, panels);
}

/* Columns n0 .. n0 + cols - 1 of C = A B with A [m, k] and B = W^T, or W, whose panels are made in the scratch. */
static void multiply_columns(cr_device *dev, const cr_weight *w, bool is_transposed, const void *a,
                             int64_t m, int64_t k, int64_t n0, int64_t cols, int64_t depth,
                             gemm_out out)
{
    int64_t wide = (cols + CRI_PANEL - 1) / CRI_PANEL * CRI_PANEL, stride,
            num_sums = depth < k ? m * wide : 0;
    float *sums = cri_scratch(dev, CRI_SLOT_PANELS,
                              (size_t)num_sums * sizeof(float) +
                                  gemm_panels_bytes(w->dtype, cols, gemm_units(w->dtype, depth)));
    void *panels = sums + num_sums;

    out.ld_sums = wide;
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
        int64_t num = k - k0 < depth ? k - k0 : depth;
        const void *at = (const char *)a + (size_t)k0 * cr_dtype_bytes(w->dtype);
        const gemm_unit *units = units_of(dev, w->dtype, at, k, m, num, &stride);
        out.before = k0 > 0 ? sums : NULL;
        out.after = k - k0 > num ? sums : NULL;
        pack_part(dev, w, is_transposed, n0, cols, k0, num, panels);
        CR_V(gemm)(dev, w->dtype, m, cols, gemm_units(w->dtype, num), units, stride, panels, &out);
    }
}

/* C in blocks of columns, whose panels of B are made here. */
static void multiply_blocks(cr_device *dev, const cr_weight *w, bool is_transposed, const void *a,
                            int64_t m, const gemm_out *out)
{
    int64_t n = is_transposed ? w->num_rows : w->num_cols,
            k = is_transposed ? w->num_cols : w->num_rows;
    size_t c_bytes = cr_dtype_bytes(out->c_dtype), aux_bytes = cr_dtype_bytes(out->aux_dtype);
    cut c = cut_of(dev, w->dtype, n, k);

    for (int64_t n0 = 0; n0 < n; n0 += c.cols) {
        gemm_out some = *out;
        gemm_more more;
        if (out->more) {
            more = *out->more;
            more.panels = (const char *)more.panels +
                          n0 / CRI_PANEL * gemm_panel_bytes(w->dtype, more.num_units);
            some.more = &more;
        }
        some.c = (char *)out->c + (size_t)n0 * c_bytes;
        if (out->bias) some.bias = (const char *)out->bias + (size_t)n0 * aux_bytes;
        if (out->add) some.add = (const char *)out->add + (size_t)n0 * aux_bytes;
        multiply_columns(dev, w, is_transposed, a, m, k, n0, n - n0 < c.cols ? n - n0 : c.cols,
                         c.depth, some);
    }
}

#if defined(__AMX_BF16__)
/* Few rows: packing W would take longer than the products. */
static bool multiply_few(cr_device *dev, const cr_weight *w, const void *a, int64_t m,
                         const gemm_out *out)
{
    enum { MAX_ROWS = 320, STEP = 256 };
    int64_t n = w->num_rows, k = w->num_cols, units = gemm_units(w->dtype, k);
    gemm_unit *x;

    if (w->dtype != CR_BF16 || out->more || m > MAX_ROWS || !gemm_in_place(w->dtype, k))
        return false;
    x = cri_scratch(dev, CRI_SLOT_PANELS,
                    (size_t)((m + CRI_PANEL - 1) / CRI_PANEL * CRI_PANEL * units) *
                        sizeof(gemm_unit));
    CR_V(pack_rows)(w->dtype, a, k, m, k, x);
    CRI_FOR(n * units > 32768 ? dev->num_threads : 1, i, (n + STEP - 1) / STEP,
            amx_transposed(i * STEP, n < (i + 1) * STEP ? n : (i + 1) * STEP, m, units,
                           cr_mem_to_host(w->data), x, out));
    return true;
}
#endif

void CR_V(multiply)(cr_device *dev, const cr_weight *w, bool is_transposed, const void *a,
                    int64_t m, const gemm_out *out)
{
    int64_t n = w->num_rows, k = w->num_cols, stride;

    if (is_transposed && w->packed) {
        const gemm_unit *x = units_of(dev, w->dtype, a, k, m, k, &stride);
        CR_V(gemm)
        (dev, w->dtype, m, n, gemm_units(w->dtype, k), x, stride, cr_mem_to_host(w->packed), out);
        return;
    }
#if defined(__AMX_BF16__)
    if (is_transposed && multiply_few(dev, w, a, m, out)) return;
#endif
    multiply_blocks(dev, w, is_transposed, a, m, out);
}

cr_status CR_V(linear)(cr_device *dev, const cr_linear_args *a, cr_err *err)
{
    const cr_weight *w = a->w;
    int64_t n = w->num_rows;
    gemm_out out = {.c = a->y,
                    .c_dtype = a->out_dtype,
                    .ldc = n,
                    .bias = a->bias,
                    .add = a->add,
                    .ldadd = n,
                    .aux_dtype = w->dtype};

    (void)err;
    CR_V(multiply)(dev, w, /*is_transposed=*/true, a->x, a->num_rows, &out);
    return CR_OK;
}

/* A^T of [k, m] in groups. A part is whole groups, also those of AMX, which have 16 rows. */
static void pack_band(const cr_device *dev, cr_dtype dtype, const char *a, int64_t lda, int64_t k,
                      int64_t m, gemm_unit *groups)
{
    enum { PART = 4 * CRI_ROWS };
    int64_t units = gemm_units(dtype, k), bytes = (int64_t)cr_dtype_bytes(dtype);

    CRI_FOR(threads_for(dev, m * k), i, (m + PART - 1) / PART,
            CR_V(pack_at)(dtype, a + i * PART * bytes, lda, k,
                          m - i * PART < PART ? m - i * PART : PART,
                          groups + gemm_groups_at(dtype, i * PART, units)));
}

/* Rows t .. of one dw, whose panels of x are there, in bands of dy^T that stay in L2. */
static void product_of_panels(cr_device *dev, cr_dtype dtype, const gemm_tn *of, int64_t t,
                              int64_t rows, int64_t k, const void *panels)
{
    enum { BAND = 16 * CRI_ROWS };
    int64_t units = gemm_units(dtype, rows), bytes = (int64_t)cr_dtype_bytes(dtype);
    gemm_unit *groups = cri_scratch(
        dev, CRI_SLOT_ROWS, (size_t)gemm_groups_units(dtype, BAND, units) * sizeof(gemm_unit));

    for (int64_t n0 = 0; n0 < of->n; n0 += BAND) {
        int64_t band = of->n - n0 < BAND ? of->n - n0 : BAND;
        float *at = of->dw + n0 * k;
        gemm_out out = {.c = at, .ldc = k, .add = at, .ldadd = k}; /* all of it float32 */
        pack_band(dev, dtype, (const char *)of->dy + (t * of->ld + n0) * bytes, of->ld, rows, band,
                  groups);
        CR_V(gemm)(dev, dtype, band, k, units, groups, CRI_GROUPS, panels, &out);
    }
}

/* t in chunks. */
void CR_V(product_tn)(cr_device *dev, cr_dtype dtype, const gemm_tn *of, int num, const void *x,
                      int64_t ld_x, int64_t num_rows, int64_t k)
{
    int64_t chunk = gemm_has_pairs(dtype) ? 1024 : 512, bytes = (int64_t)cr_dtype_bytes(dtype);

    for (int64_t t = 0; t < num_rows; t += chunk) {
        int64_t rows = num_rows - t < chunk ? num_rows - t : chunk;
        void *panels =
            cri_scratch(dev, CRI_SLOT_PANELS, gemm_panels_bytes(dtype, k, gemm_units(dtype, rows)));
        pack_panels(dev, dtype, /*is_transposed=*/false, (const char *)x + t * ld_x * bytes, ld_x,
                    rows, k, panels);
        for (int i = 0; i < num; i++)
            product_of_panels(dev, dtype, &of[i], t, rows, k, panels);
    }
}

cr_status CR_V(linear_grad)(cr_device *dev, const cr_linear_grad_args *a, cr_err *err)
{
    const cr_weight *w = a->w;
    int64_t m = a->num_rows, n = w->num_rows, k = w->num_cols;
    gemm_out dx = {.c = a->dx,
                   .c_dtype = w->dtype,
                   .ldc = k,
                   .add = a->is_dx_added ? a->dx : NULL,
                   .ldadd = k,
                   .aux_dtype = w->dtype};

    const gemm_tn dw = {a->dy, n, n, cr_mem_to_host(a->dw)};

    (void)err;
    if (a->dx) CR_V(multiply)(dev, w, false, a->dy, m, &dx); /* dx[m, k] = dy[m, n] W[n, k] */
    if (a->dw && a->is_dw_set) memset(cr_mem_to_host(a->dw), 0, (size_t)(n * k) * sizeof(float));
    if (a->dw) CR_V(product_tn)(dev, w->dtype, &dw, 1, a->x, k, m, k);
    float *dbias = cr_mem_to_host(a->dbias);
    if (dbias)
        for (int64_t t = 0; t < m; t++)
            for (int64_t j = 0; j < n; j++)
                dbias[j] += e_get(w->dtype, a->dy, t * n + j);
    return CR_OK;
}
