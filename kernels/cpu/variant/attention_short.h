/* attention_short.h -- attention of heads of at most 16 elements: fewer than a vector has lanes.
 *
 * Lanes are keys everywhere: a tile of CR_KV_BLOCK positions is groups of V_LANES keys, each K [dims][V_LANES]
 * then V [dims][V_LANES], dims being 8 or 16 (rows after head_dim are zero), so that no lane is idle in
 * either product and the heads of a group share what was loaded. The scores of a row are all there
 * before its largest is taken; weights and their sums with V are added lane by lane in order of
 * groups, and the lanes in one fixed tree at the end. A row's result depends on its own keys only.
 */
#ifndef CR_ATTENTION_SHORT_H
#define CR_ATTENTION_SHORT_H

#include "kernels/cpu/variant/simd_io.h"

enum { SHORT_HEAD = 16, SHORT_PAIRS = 4 /* of a call */ };

CR_INLINE int64_t short_dims(int64_t head_dim)
{
    return head_dim <= 8 ? 8 : 16;
}

CR_INLINE int64_t short_tile_floats(int64_t head_dim)
{
    return 2 * short_dims(head_dim) * CR_KV_BLOCK;
}

/* What the pairs of a call have in common. */
typedef struct short_heads {
    cr_dtype dtype;
    int64_t head_dim, window;
    bool sees_all; /* every row of a call sees the keys of all its rows */
    float scale;
    const void *q;
    void *o;
    const int32_t *table; /* tile t of a pair lies at tiles + (table ? table[t] : t) * stride */
    int64_t stride;
    const int32_t *next_table; /* of the next call, whose keys are fetched meanwhile; NULL: none */
    int64_t next_tiles;        /* in that table */
    float *scores; /* scratch [2 SHORT_PAIRS][ld_scores], ld_scores: keys of all tiles */
    int64_t ld_scores;
} short_heads;

typedef struct short_row {
    int64_t at;  /* its element of q and o */
    int64_t pos; /* the last key that it sees */
    float *lse;  /* NULL: not wanted */
} short_row;

/* One or two rows with the same keys; what is loaded serves both. */
typedef struct short_pair {
    const float *tiles;
    int num;
    short_row rows[2];
} short_pair;

/* Write one key and value (element `at` of k and v) into place `slot` of a tile. Places after it in
 * its group are zero, or were written before. */
void CR_V(short_store)(cr_dtype dtype, const void *k, const void *v, int64_t at, int64_t head_dim,
                       int64_t slot, float *tile);
void CR_V(short_attend)(const short_heads *h, int num, const short_pair *pairs);

#endif
