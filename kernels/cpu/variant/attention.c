/* attention.c -- attention, packed and cached, forward (attention_grad.c: backward).
 *
 * Keys come in tiles of 64 positions from the start of the sequence: K transposed [D][64] (lanes over
 * keys) and V [64][Dp] (lanes over D, Dp = D rounded up to 16), in float32; heads of at most 16 have
 * tiles and a way of their own (attention_short.h). A cache block is such a pair of tiles per kv head,
 * so decoding reads what a packed forward builds in scratch, and both run attend() on up to 8 query
 * rows that share the tiles (neighbouring rows, or the heads of a group). What a row gets does not
 * depend on the rows beside it: each lane adds its keys in order.
 */
#include "kernels/cpu/slots.h"
#include "kernels/cpu/variant/attention_short.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/simd_exp.h"

#include <math.h>

/* VALUE: the length of V's rows is a multiple of it. Sums of SCORE_ROWS rows and KEY_VECTORS vectors of keys, or of VALUE_ROWS
 * rows and two vectors of values, stay in registers; APART_ROWS: rows whose keys are not the same. */
enum { TILE = CR_KV_BLOCK, VALUE = 16, MAX_ROWS = 8, MAX_DIM = 256, TILE_VECTORS = TILE / V_LANES };
#if V_REGISTERS == 32
enum { SCORE_ROWS = 4, APART_ROWS = 2, KEY_VECTORS = 4, VALUE_ROWS = 8 };
#else
enum { SCORE_ROWS = 4, APART_ROWS = 4, KEY_VECTORS = 2, VALUE_ROWS = 4 };
#endif

CR_INLINE int64_t padded(int64_t head_dim)
{
    return (head_dim + VALUE - 1) / VALUE * VALUE;
}

/* Floats of one kv head's tiles: K [D][64] then V [64][Dp]. */
CR_INLINE int64_t tile_floats(int64_t head_dim)
{
    return head_dim <= SHORT_HEAD ? short_tile_floats(head_dim)
                                  : (head_dim + padded(head_dim)) * TILE;
}

CR_INLINE void widen_row(cr_dtype dtype, const void *src, int64_t at, int64_t n, float *dst)
{
    int64_t i = 0;

    for (; n - i >= V_LANES; i += V_LANES)
        v_store(dst + i, v_get(dtype, src, at + i));
    for (; i < n; i++)
        dst[i] = e_get(dtype, src, at + i);
}

static void widen(cr_dtype dtype, const void *src, int64_t at, int64_t n, float *dst)
{
    CR_BY_DTYPE(dtype, widen_row, src, at, n, dst);
}

CR_INLINE void narrow_row(cr_dtype dtype, const float *src, int64_t n, void *dst, int64_t at)
{
    int64_t i = 0;

    for (; n - i >= V_LANES; i += V_LANES)
        v_put(dtype, dst, at + i, v_load(src + i));
    for (; i < n; i++)
        e_put(dtype, dst, at + i, src[i]);
}

static void narrow(cr_dtype dtype, const float *src, int64_t n, void *dst, int64_t at)
{
    CR_BY_DTYPE(dtype, narrow_row, src, n, dst, at);
}

/* Write one key and value (at element `at` of k and v) into place `slot` of a tile pair. */
static void store_key(cr_dtype dtype, const void *k, const void *v, int64_t at, int64_t head_dim,
                      int64_t slot, float *tiles)
{
    int64_t dp = padded(head_dim);
    float *vt = tiles + head_dim * TILE + slot * dp, key[MAX_DIM];

    if (head_dim <= SHORT_HEAD) {
        CR_V(short_store)(dtype, k, v, at, head_dim, slot, tiles);
        return;
    }
    widen(dtype, k, at, head_dim, key);
    for (int64_t d = 0; d < head_dim; d++)
        tiles[d * TILE + slot] = key[d];
    memset(vt, 0, (size_t)dp * sizeof(float));
    widen(dtype, v, at, head_dim, vt);
}

/* One query row that is being computed. */
typedef struct row {
    float q[MAX_DIM], o[MAX_DIM],
        sums[V_LANES];           /* sums: of the weights, key j in lane j mod V_LANES */
    int64_t num_keys, first_key; /* keys first_key .. num_keys - 1 are seen */
    float max;
    int64_t out; /* element of o where it goes, and of lse */
    int64_t lse_at;
} row;

/* s[r][first ..] = scale * q_r . K_r for num rows and KEY_VECTORS vectors of keys, -inf outside the row's
 * keys; the tiles begin at position k0, and is_shared: all are kt[0]. */
CR_INLINE void scores(int num, bool is_shared, const row *rows, const float *const *kt,
                      int64_t head_dim, int64_t k0, float scale, int first, vf s[][TILE_VECTORS])
{
    vf acc[SCORE_ROWS * KEY_VECTORS];

    k0 += first * V_LANES;

#pragma GCC unroll 16
    for (int i = 0; i < KEY_VECTORS * num; i++)
        acc[i] = v_set(0);
    for (int64_t d = 0; d < head_dim; d++) {
        vf k[KEY_VECTORS];
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) {
            vf q = v_set(rows[r].q[d]);
#pragma GCC unroll 4
            for (int i = 0; i < KEY_VECTORS; i++) {
                if (r == 0 || !is_shared) k[i] = v_load(kt[r] + d * TILE + V_LANES * (first + i));
                acc[KEY_VECTORS * r + i] = v_fma(q, k[i], acc[KEY_VECTORS * r + i]);
            }
        }
    }
    for (int r = 0; r < num; r++) {
        const vf *sums = acc + KEY_VECTORS * r;
        if (rows[r].num_keys >= k0 + KEY_VECTORS * V_LANES && rows[r].first_key <= k0) {
            for (int i = 0; i < KEY_VECTORS; i++)
                s[r][first + i] = sums[i] * v_set(scale);
            continue;
        }
        for (int i = 0; i < KEY_VECTORS; i++) {
            vi key = v_lanes() + (int32_t)(k0 + V_LANES * i);
            vi is_seen = (key < (int32_t)rows[r].num_keys) & (key >= (int32_t)rows[r].first_key);
            s[r][first + i] = v_select(is_seen, sums[i] * v_set(scale), v_set(-INFINITY));
        }
    }
}

/* o_r = o_r shrink_r + p_r V_r for num rows and `wide` vectors of V from the g-th on, keys in order. */
CR_INLINE void take_columns(int num, int wide, bool is_shared, row *rows, const float *const *tiles,
                            int64_t head_dim, int g, int64_t keys, float p[][TILE],
                            const float *shrink)
{
    int64_t at = head_dim * TILE + V_LANES * g, dp = padded(head_dim);
    vf acc[VALUE_ROWS * 2];

#pragma GCC unroll 8
    for (int r = 0; r < num; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            acc[r * 2 + w] = v_load(rows[r].o + V_LANES * (g + w)) * v_set(shrink[r]);
    for (int64_t j = 0; j < keys; j++) {
        vf v[2];
#pragma GCC unroll 8
        for (int r = 0; r < num; r++)
#pragma GCC unroll 2
            for (int w = 0; w < wide; w++) {
                if (r == 0 || !is_shared) v[w] = v_load(tiles[r] + at + j * dp + V_LANES * w);
                acc[r * 2 + w] = v_fma(v_set(p[r][j]), v[w], acc[r * 2 + w]);
            }
    }
#pragma GCC unroll 8
    for (int r = 0; r < num; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            v_store(rows[r].o + V_LANES * (g + w), acc[r * 2 + w]);
}

CR_INLINE void take_values(int num, bool is_shared, row *rows, const float *const *tiles,
                           int64_t head_dim, int64_t keys, float p[][TILE], const float *shrink)
{
    int vectors = (int)(padded(head_dim) / V_LANES), g = 0;

    for (; g + 2 <= vectors; g += 2)
        take_columns(num, 2, is_shared, rows, tiles, head_dim, g, keys, p, shrink);
    if (g < vectors) take_columns(num, 1, is_shared, rows, tiles, head_dim, g, keys, p, shrink);
}

/* p = e^(s - max) for a row's 64 keys, max being the largest so far: what went before shrinks. A
 * row that has seen no key yet (a window that begins later) has max -inf and weights 0. */
CR_INLINE void weigh(row *r, const vf s[TILE_VECTORS], int64_t keys, float p[TILE], float *old_max)
{
    vf all = s[0];
    float max, shift;

    for (int i = 1; i < TILE_VECTORS; i++)
        all = v_max(all, s[i]);
    max = v_greatest(all);
    *old_max = r->max;
    if (max > r->max) r->max = max;
    shift = r->max == -INFINITY ? 0 : r->max;
    for (int i = 0; i < TILE_VECTORS; i++)
        v_store(p + V_LANES * i, V_LANES * i < keys ? v_exp(s[i] - v_set(shift)) : v_set(0));
    *old_max -= shift;
}

/* Take one tile into the online softmax of the rows. Row r attends to tiles[r]; is_shared: all of
 * them are tiles[0]. */
CR_INLINE void attend_tile(int num, bool is_shared, row *rows, const float *const *tiles,
                           int64_t head_dim, int64_t k0, float scale)
{
    const int step =
        is_shared ? SCORE_ROWS : 2; /* rows whose sums fit into registers with their keys */
    int64_t keys = 0;
    vf s[MAX_ROWS][TILE_VECTORS];
    float p[MAX_ROWS][TILE], shrink[16] = {0};

#pragma GCC unroll 4
    for (int r = 0; r < num; r += step)
        for (int i = 0; i < TILE_VECTORS; i += KEY_VECTORS)
            scores(num - r < step ? num - r : step, is_shared, rows + r, tiles + r, head_dim, k0,
                   scale, i, s + r);
    for (int r = 0; r < num; r++)
        if (rows[r].num_keys - k0 > keys) keys = rows[r].num_keys - k0;
    if (keys > TILE) keys = TILE;
    for (int r = 0; r < num; r++)
        weigh(&rows[r], s[r], keys, p[r], &shrink[r]);
    for (int r = 0; r < MAX_ROWS; r += V_LANES)
        v_store(shrink + r, v_exp(v_load(shrink + r)));
    for (int r = 0; r < num; r++) {
        vf sums = v_load(rows[r].sums) * v_set(shrink[r]);
        for (int i = 0; i < TILE_VECTORS; i++)
            sums = sums + v_load(p[r] + V_LANES * i);
        v_store(rows[r].sums, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < num; r += VALUE_ROWS)
        take_values(num - r < VALUE_ROWS ? num - r : VALUE_ROWS, is_shared, rows + r, tiles + r,
                    head_dim, keys, p + r, shrink + r);
}

#define ROWS_CASE(n, call) \
    case n: {              \
        enum { NUM = n };  \
        call;              \
        break;             \
    }
#define FOR_ROWS(num, call) \
    switch (num) {          \
        ROWS_CASE(1, call)  \
        ROWS_CASE(2, call)  \
        ROWS_CASE(3, call)  \
        ROWS_CASE(4, call)  \
        ROWS_CASE(5, call)  \
        ROWS_CASE(6, call)  \
        ROWS_CASE(7, call)  \
        ROWS_CASE(8, call)  \
    }

static __attribute__((noinline)) void attend(int num, row *rows, const float *tiles,
                                             int64_t head_dim, int64_t k0, float scale)
{
    const float *same[MAX_ROWS] = {tiles, tiles, tiles, tiles, tiles, tiles, tiles, tiles};

    FOR_ROWS(num, attend_tile(NUM, true, rows, same, head_dim, k0, scale))
}

static __attribute__((noinline)) void attend_each(int num, row *rows, const float *const *tiles,
                                                  int64_t head_dim, int64_t k0, float scale)
{
    FOR_ROWS(num, attend_tile(NUM, false, rows, tiles, head_dim, k0, scale))
}

static void begin_row(row *r, cr_dtype dtype, const void *q, int64_t at, int64_t head_dim,
                      int64_t pos, int64_t window)
{
    widen(dtype, q, at, head_dim, r->q);
    memset(r->o, 0, (size_t)padded(head_dim) * sizeof(float));
    r->num_keys = pos + 1;
    r->first_key = window > 0 && pos + 1 > window ? pos + 1 - window : 0;
    memset(r->sums, 0, sizeof r->sums);
    r->max = -INFINITY;
    r->out = at;
}

/* Writes the row, and its logsumexp where that is wanted. */
static void end_row(row *r, cr_dtype dtype, int64_t head_dim, void *o, float *lse)
{
    float sum = v_sum(v_load(r->sums)), inverse = 1.0f / sum;

    for (int64_t d = 0; d < head_dim; d++)
        r->o[d] *= inverse;
    narrow(dtype, r->o, head_dim, o, r->out);
    if (lse) *lse = r->max + logf(sum);
}

/* ---- packed ---- */

/* Tiles of one sequence and kv head; keys after the end are zero. */
static void build_tiles(cr_dtype dtype, const void *k, const void *v, int64_t first, int64_t len,
                        int64_t kv_heads, int64_t kv, int64_t head_dim, float *tiles)
{
    int64_t num = (len + TILE - 1) / TILE;

    if (len % TILE)
        memset(tiles + (num - 1) * tile_floats(head_dim), 0,
               (size_t)tile_floats(head_dim) * sizeof(float));
    for (int64_t i = 0; i < len; i++)
        store_key(dtype, k, v, ((first + i) * kv_heads + kv) * head_dim, head_dim, i % TILE,
                  tiles + i / TILE * tile_floats(head_dim));
}

/* Rows r0 .. r1 - 1 of one sequence and its heads of kv groups kv0 .. kv1 - 1, short ones. Row r is at
 * position pos[r], or r - r0 without pos; kv head kv has its tiles kv * kv_stride after. */
static void attend_short(const short_heads *heads, int64_t r0, int64_t r1, const int32_t *pos,
                         int64_t num_heads, int64_t group, int64_t kv0, int64_t kv1,
                         const float *tiles, int64_t kv_stride, float *lse)
{
    short_pair pairs[SHORT_PAIRS];
    int num = 0;

    for (int64_t kv = kv0; kv < kv1; kv++) {
        bool is_open = false; /* the last pair has place for another row of this kv head */
        for (int64_t r = r0; r < r1; r++)
            for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
                int64_t at = r * num_heads + h;
                if (!is_open && num == SHORT_PAIRS) {
                    CR_V(short_attend)(heads, num, pairs);
                    num = 0;
                }
                if (!is_open) {
                    pairs[num].tiles = tiles + kv * kv_stride;
                    pairs[num++].num = 0;
                }
                pairs[num - 1].rows[pairs[num - 1].num++] =
                    (short_row){at * heads->head_dim,
                                heads->sees_all ? r1 - r0 - 1
                                : pos           ? pos[r]
                                                : r - r0,
                                lse ? lse + at : NULL};
                is_open = !is_open;
            }
    }
    CR_V(short_attend)(heads, num, pairs);
}

/* The last key that row i of a sequence sees. */
CR_INLINE int64_t last_key(const cr_attention_args *a, int64_t i, int64_t len)
{
    return a->is_bidirectional ? len - 1 : i;
}

static void attend_sequence(const cr_attention_args *a, int64_t s, int64_t kv, float *tiles)
{
    const int32_t *cu_seqlens = cr_mem_to_host(a->cu_seqlens);
    int64_t first = cu_seqlens[s], len = cu_seqlens[s + 1] - first,
            group = a->num_heads / a->num_kv_heads, floats = tile_floats(a->head_dim);
    row rows[MAX_ROWS];
    float *lse = cr_mem_to_host(a->lse);

    build_tiles(a->dtype, a->k, a->v, first, len, a->num_kv_heads, kv, a->head_dim, tiles);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < len; i += MAX_ROWS) {
            int num = len - i < MAX_ROWS ? (int)(len - i) : MAX_ROWS;
            int64_t from;
            for (int r = 0; r < num; r++)
                begin_row(&rows[r], a->dtype, a->q,
                          ((first + i + r) * a->num_heads + h) * a->head_dim, a->head_dim,
                          last_key(a, i + r, len), a->window);
            from = rows[0].first_key / TILE;
            for (int64_t t = from; t * TILE < rows[num - 1].num_keys; t++)
                attend(num, rows, tiles + t * floats, a->head_dim, t * TILE, a->scale);
            for (int r = 0; r < num; r++)
                end_row(&rows[r], a->dtype, a->head_dim, a->o,
                        lse ? &lse[(first + i + r) * a->num_heads + h] : NULL);
        }
}

/* The same for short heads; tiles and then scores of num_tiles tiles. */
static void attend_short_sequence(const cr_attention_args *a, int64_t s, int64_t kv, float *tiles,
                                  int64_t num_tiles)
{
    const int32_t *cu_seqlens = cr_mem_to_host(a->cu_seqlens);
    int64_t first = cu_seqlens[s], len = cu_seqlens[s + 1] - first,
            floats = tile_floats(a->head_dim);
    short_heads h = {.dtype = a->dtype,
                     .head_dim = a->head_dim,
                     .window = a->window,
                     .sees_all = a->is_bidirectional,
                     .scale = a->scale,
                     .q = a->q,
                     .o = a->o,
                     .stride = floats,
                     .scores = tiles + num_tiles * floats,
                     .ld_scores = num_tiles * TILE};

    build_tiles(a->dtype, a->k, a->v, first, len, a->num_kv_heads, kv, a->head_dim, tiles);
    attend_short(&h, first, first + len, NULL, a->num_heads, a->num_heads / a->num_kv_heads, kv,
                 kv + 1, tiles, 0, cr_mem_to_host(a->lse));
}

cr_status CR_V(attention)(cr_device *dev, const cr_attention_args *a, cr_err *err)
{
    bool is_short = a->head_dim <= SHORT_HEAD;
    int64_t num_tiles = (a->sizes.max_seqlen + TILE - 1) / TILE,
            per = num_tiles * (tile_floats(a->head_dim) + is_short * 2 * SHORT_PAIRS * TILE);
    float *all = cri_scratch(dev, CRI_SLOT_TASKS, (size_t)(per * dev->num_threads) * sizeof(float));

    (void)err;
    CRI_FOR(dev->num_threads, work, a->num_seqs * a->num_kv_heads, {
        int64_t s = work / a->num_kv_heads, kv = work % a->num_kv_heads;
        float *mine = all + per * cri_thread(dev);
        if (is_short)
            attend_short_sequence(a, s, kv, mine, num_tiles);
        else
            attend_sequence(a, s, kv, mine);
    });
    return CR_OK;
}

/* ---- cached ---- */

size_t CR_V(kv_block_bytes)(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                            int64_t head_dim)
{
    (void)dev;
    (void)dtype;
    return (size_t)(num_kv_heads * tile_floats(head_dim)) * sizeof(float);
}

/* The arrays of indices. */
CR_INLINE const int32_t *slots_of(const cr_attention_cached_args *a)
{
    return cr_mem_to_host(a->row_slot);
}

CR_INLINE const int32_t *places_of(const cr_attention_cached_args *a)
{
    return cr_mem_to_host(a->row_pos);
}

CR_INLINE const int32_t *blocks_of(const cr_attention_cached_args *a, int64_t slot)
{
    return (const int32_t *)cr_mem_to_host(a->block_table) + slot * a->max_blocks;
}

/* The tiles that hold position pos of a row's slot, for kv head kv. */
static float *tiles_at(const cr_attention_cached_args *a, int64_t slot, int64_t pos, int64_t kv)
{
    int64_t block = blocks_of(a, slot)[pos / TILE];

    return (float *)a->blocks + (block * a->num_kv_heads + kv) * tile_floats(a->head_dim);
}

/* Rows r0 .. r1-1 belong to one slot: their heads of one kv group go together, up to 8 at a time. */
static void attend_cached(const cr_attention_cached_args *a, int64_t r0, int64_t r1, int64_t kv)
{
    int64_t group = a->num_heads / a->num_kv_heads, total = (r1 - r0) * group,
            slot = slots_of(a)[r0];
    row rows[MAX_ROWS];

    for (int64_t i = 0; i < total; i += MAX_ROWS) {
        int num = total - i < MAX_ROWS ? (int)(total - i) : MAX_ROWS;
        int64_t max = 0, from = INT64_MAX;
        for (int k = 0; k < num; k++) {
            int64_t r = r0 + (i + k) / group, h = kv * group + (i + k) % group;
            begin_row(&rows[k], a->dtype, a->q, (r * a->num_heads + h) * a->head_dim, a->head_dim,
                      places_of(a)[r], a->window);
            if (rows[k].num_keys > max) max = rows[k].num_keys;
            if (rows[k].first_key / TILE < from) from = rows[k].first_key / TILE;
        }
        for (int64_t t = from; t * TILE < max; t++)
            attend(num, rows, tiles_at(a, slot, t * TILE, kv), a->head_dim, t * TILE, a->scale);
        for (int k = 0; k < num; k++)
            end_row(&rows[k], a->dtype, a->head_dim, a->o, NULL);
    }
}

/* One row alone in its slot: all its heads, up to 8 at a time in even parts. */
static void attend_alone(const cr_attention_cached_args *a, int64_t r)
{
    int64_t group = a->num_heads / a->num_kv_heads,
            parts = (a->num_heads + MAX_ROWS - 1) / MAX_ROWS;
    row rows[MAX_ROWS];

    for (int64_t part = 0; part < parts; part++) {
        int64_t h0 = part * a->num_heads / parts;
        int num = (int)((part + 1) * a->num_heads / parts - h0);
        for (int i = 0; i < num; i++)
            begin_row(&rows[i], a->dtype, a->q, (r * a->num_heads + h0 + i) * a->head_dim,
                      a->head_dim, places_of(a)[r], a->window);
        for (int64_t t = rows[0].first_key / TILE; t * TILE < rows[0].num_keys; t++) {
            const float *tiles[MAX_ROWS];
            for (int i = 0; i < num; i++)
                tiles[i] = tiles_at(a, slots_of(a)[r], t * TILE, (h0 + i) / group);
            attend_each(num, rows, tiles, a->head_dim, t * TILE, a->scale);
        }
        for (int i = 0; i < num; i++)
            end_row(&rows[i], a->dtype, a->head_dim, a->o, NULL);
    }
}

/* Rows r0 .. r1 - 1 of one slot with short heads. */
static void attend_short_slot(const cr_attention_cached_args *a, int64_t r0, int64_t r1,
                              float *scores, int64_t ld_scores)
{
    int64_t floats = tile_floats(a->head_dim);
    short_heads h = {.dtype = a->dtype,
                     .head_dim = a->head_dim,
                     .window = a->window,
                     .scale = a->scale,
                     .q = a->q,
                     .o = a->o,
                     .table = blocks_of(a, slots_of(a)[r0]),
                     .stride = a->num_kv_heads * floats,
                     .scores = scores,
                     .ld_scores = ld_scores};

    if (r1 == r0 + 1 && r1 < a->num_rows) {
        h.next_table = blocks_of(a, slots_of(a)[r1]);
        h.next_tiles = places_of(a)[r1] / TILE + 1;
    }
    attend_short(&h, r0, r1, places_of(a), a->num_heads, a->num_heads / a->num_kv_heads, 0,
                 a->num_kv_heads, cr_mem_to_host(a->blocks), floats, NULL);
}

/* The rows of the slot whose first row is r, keys first; nothing if r is not its first. */
static void attend_slot(const cr_attention_cached_args *a, int64_t r, float *scores,
                        int64_t ld_scores)
{
    int64_t end = r + 1;

    if (r > 0 && slots_of(a)[r - 1] == slots_of(a)[r]) return;
    while (end < a->num_rows && slots_of(a)[end] == slots_of(a)[r])
        end++;
    for (int64_t i = r; i < end; i++)
        for (int64_t kv = 0; kv < a->num_kv_heads; kv++)
            store_key(a->dtype, a->k, a->v, (i * a->num_kv_heads + kv) * a->head_dim, a->head_dim,
                      places_of(a)[i] % TILE, tiles_at(a, slots_of(a)[i], places_of(a)[i], kv));
    if (a->head_dim <= SHORT_HEAD)
        attend_short_slot(a, r, end, scores, ld_scores);
    else if (end == r + 1 && a->num_heads < MAX_ROWS * a->num_kv_heads)
        attend_alone(a, r);
    else
        for (int64_t kv = 0; kv < a->num_kv_heads; kv++)
            attend_cached(a, r, end, kv);
}

cr_status CR_V(attention_cached)(cr_device *dev, const cr_attention_cached_args *a, cr_err *err)
{
    int64_t ld_scores = (a->sizes.max_seqlen + TILE - 1) / TILE * TILE;
    float *scores;

    if (a->heads.q_in) CR_TRY(CR_V(qk_heads)(dev, &a->heads, err));
    scores = cri_scratch(dev, CRI_SLOT_TASKS,
                         (size_t)(2 * SHORT_PAIRS * ld_scores * dev->num_threads) * sizeof(float));
    CRI_FOR(a->num_rows < 16 ? 1 : dev->num_threads, r, a->num_rows,
            attend_slot(a, r, scores + 2 * SHORT_PAIRS * ld_scores * cri_thread(dev), ld_scores));
    return CR_OK;
}
