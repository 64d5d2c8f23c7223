/* gemm_amx.h -- sums of pairs of bfloat16 in tiles of AMX (see gemm.h): 32 rows x 32 columns in four tiles, so that two tiles of A and two
 * of B are four products. Other tiles are given back by who has set them.
 */
#ifndef CR_GEMM_AMX_H
#define CR_GEMM_AMX_H

#include "kernels/cpu/variant/gemm.h"

/* Tiles 0 to 3 hold sums; then those of A and of B. Up to 16 rows are multiplied with two panels at a time. */
static void set_tiles(int64_t num_rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    uint8_t low = (uint8_t)(num_rows < 16 ? num_rows : 16), high = (uint8_t)(num_rows - low);

    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    c.rows[0] = c.rows[1] = c.rows[4] = low;
    c.rows[2] = c.rows[3] = high ? high : low;
    if (high) c.rows[5] = high;
    _tile_loadconfig(&c);
}

/* Where A's tiles are: bytes of a row, units from one tile along k to the next, and to the rows from 16 on. */
typedef struct amx_a {
    int64_t row_bytes, step, second;
} amx_a;

/* Up to 32 rows x 32 columns, row by row. */
CR_INLINE void amx_square(int64_t units, const uint32_t *a, amx_a at, const uint32_t *panel,
                          vf *out)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < units; k += CRI_TILE_UNITS, a += at.step, panel += 16 * CRI_PANEL) {
        _tile_loadd(6, panel, 4 * CRI_PANEL);
        _tile_loadd(4, a, at.row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + 16, 4 * CRI_PANEL);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + at.second, at.row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, 128);
    _tile_stored(1, out + 1, 128);
    _tile_stored(2, out + 32, 128);
    _tile_stored(3, out + 33, 128);
}

/* Asks for unit k + ahead of a panel of `units`, or of the one that is multiplied after it, `skip` panels on. */
CR_INLINE void amx_prefetch(const uint32_t *panel, int64_t k, int64_t units, int skip)
{
    enum { AHEAD_UNITS = 64 };
    const uint32_t *at = panel + (k + AHEAD_UNITS) * CRI_PANEL;

    if (k + AHEAD_UNITS >= units) at += (skip - 1) * units * CRI_PANEL;
#pragma GCC unroll 32
    for (int64_t i = 0; i < CRI_TILE_UNITS * CRI_PANEL; i += 16)
        __builtin_prefetch(at + i, 0, 2);
}

/* Up to 16 rows x 64 or 32 columns. */
CR_INLINE void amx_wide(int wide, int64_t units, const uint32_t *a, amx_a at, const uint32_t *panel,
                        vf *out)
{
    const uint32_t *next = panel + units * CRI_PANEL;

    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < units; k += CRI_TILE_UNITS, a += at.step) {
        amx_prefetch(panel, k, units, wide);
        if (wide == 2) amx_prefetch(next, k, units, wide);
        _tile_loadd(4, a, at.row_bytes);
        _tile_loadd(6, panel + k * CRI_PANEL, 4 * CRI_PANEL);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + k * CRI_PANEL + 16, 4 * CRI_PANEL);
        _tile_dpbf16ps(1, 4, 7);
        if (wide == 1) continue;
        _tile_loadd(6, next + k * CRI_PANEL, 4 * CRI_PANEL);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, next + k * CRI_PANEL + 16, 4 * CRI_PANEL);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, out, 64 * 2 * wide);
    _tile_stored(1, out + 1, 64 * 2 * wide);
    if (wide == 1) return;
    _tile_stored(2, out + 2, 64 * 2 * wide);
    _tile_stored(3, out + 3, 64 * 2 * wide);
}

#endif
