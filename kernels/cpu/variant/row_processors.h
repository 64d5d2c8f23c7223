/* row_processors.h -- a tile of a row of logits becomes that of the distribution that was sampled (cr_row_processors). Training and
 * generation edit with this code, tile by tile, so their log-probs have the same bits.
 */
#ifndef CR_ROW_EDITS_H
#define CR_ROW_EDITS_H

#include "kernels/cpu/variant/simd.h"

enum { CRI_TILE = 512 }; /* vocabulary entries that the head works on at a time */

/* Where the host finds the arrays, in *view; NULL stays NULL. */
CR_INLINE const cr_row_processors *view_processors(const cr_row_processors_mem *e,
                                                   cr_row_processors *view)
{
    if (!e) return NULL;
    *view = (cr_row_processors){.temperature = e->temperature,
                                .penalty = e->penalty,
                                .temperatures = cr_mem_to_host(e->temperatures),
                                .kept_first = cr_mem_to_host(e->kept_first),
                                .kept_num = cr_mem_to_host(e->kept_num),
                                .kept_ids = cr_mem_to_host(e->kept_ids),
                                .seen_list = cr_mem_to_host(e->seen_list),
                                .seen_until = cr_mem_to_host(e->seen_until),
                                .seen_first = cr_mem_to_host(e->seen_first),
                                .seen_ids = cr_mem_to_host(e->seen_ids),
                                .seen_place = cr_mem_to_host(e->seen_place)};
    return view;
}

/* What is left of a tile. */
typedef struct processed_tile {
    int64_t num;         /* values, close together */
    int64_t label;       /* which of them is the label's; -1: none */
    const int32_t *kept; /* their ids; NULL: all ids of the tile */
} processed_tile;

/* The first of ids[0 .. num-1], which ascend, that is not below `least`. */
CR_INLINE int64_t first_not_below(const int32_t *ids, int64_t num, int64_t min)
{
    int64_t low = 0;

    while (low < num) {
        int64_t middle = low + (num - low) / 2;
        if (ids[middle] < min)
            low = middle + 1;
        else
            num = middle;
    }
    return low;
}

/* slope: dz'/dz of the tile's ids, NULL: not wanted. */
CR_INLINE void penalise(const cr_row_processors *e, int64_t row, int64_t v0, int64_t cols, float *z,
                        float *slope)
{
    size_t first = e->seen_first[e->seen_list[row]], end = e->seen_first[e->seen_list[row] + 1];
    const int32_t *ids = e->seen_ids + first, *place = e->seen_place + first;
    int64_t num = (int64_t)(end - first);

    for (int64_t i = first_not_below(ids, num, v0); i < num && ids[i] < v0 + cols; i++) {
        float *x = &z[ids[i] - v0];
        bool is_below = *x < 0;
        if (place[i] > e->seen_until[row]) continue;
        *x = is_below ? *x * e->penalty : *x / e->penalty;
        if (slope && is_below) slope[ids[i] - v0] *= e->penalty;
        if (slope && !is_below) slope[ids[i] - v0] /= e->penalty;
    }
}

/* Tokens v0 .. v0 + cols - 1 of a row, z[cols], in place. slope [cols] or NULL. */
CR_INLINE processed_tile process_tile(const cr_row_processors *e, int64_t row, int64_t label,
                                      int64_t v0, int64_t cols, float *z, float *slope)
{
    int64_t num = e && e->kept_first ? e->kept_num[row] : 0;
    processed_tile t = {cols, label >= v0 && label < v0 + cols ? label - v0 : -1, NULL};
    float temperature;

    if (!e) return t;
    temperature = e->temperatures ? e->temperatures[row] : e->temperature;
    for (int64_t i = 0; slope && i < cols; i++)
        slope[i] = 1 / temperature;
    if (e->penalty != 1) penalise(e, row, v0, cols, z, slope);
    if (num) {
        const int32_t *ids = e->kept_ids + e->kept_first[row];
        int64_t first = first_not_below(ids, num, v0);
        t = (processed_tile){0, -1, ids + first};
        for (; first + t.num < num && t.kept[t.num] < v0 + cols; t.num++) {
            if (t.kept[t.num] == label) t.label = t.num;
            z[t.num] = z[t.kept[t.num] - v0];
        }
    }
    if (temperature != 1)
        for (int64_t i = 0; i < t.num; i++)
            z[i] /= temperature;
    return t;
}

#endif
