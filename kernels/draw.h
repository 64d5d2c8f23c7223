/* draw.h -- what the devices' kernels of `draw` share. Inside kernels/ only; C11 and C++17. */
#ifndef CR_KERNELS_DRAW_H
#define CR_KERNELS_DRAW_H

#include "kernels/attention.h"

/* The logit of an id that cannot be drawn: finite, so that sums over rows and tiles stay numbers, and e^z is 0 at any
 * temperature; divided by a temperature it is below CRI_MAX_BANNED. */
#define CRI_BANNED     (-1e30f)
#define CRI_MAX_BANNED (-1e20f)

static inline bool cri_draw_has_processor(const cr_draw_row *row)
{
    const cr_token_processors *e = &row->processors;

    return row->penalty != 1 || e->presence != 0 || e->frequency != 0 || e->num_biased ||
           e->num_allowed || e->num_banned;
}

static inline bool cri_draw_has_filter(const cr_draw_row *row, int64_t vocab_size)
{
    bool has_k = row->top_k > 0 && row->top_k < vocab_size;

    return row->temperature > 0 && (has_k || row->top_p < 1 || row->min_p > 0);
}

#endif
