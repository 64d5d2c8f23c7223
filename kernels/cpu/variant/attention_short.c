/* attention_short.c -- see attention_short.h. About 45 instructions for V_LANES keys of a row. */
#include "kernels/cpu/variant/attention_short.h"
#include "kernels/cpu/variant/entries.h"
#include "kernels/cpu/variant/simd_exp.h"
#include "kernels/cpu/variant/simd_rows.h"

#include <math.h>

/* DIMS_AT_ONCE: sums of o that stay in registers, for two rows. GROUPS: of V_LANES keys in a tile. */
enum { DIMS_AT_ONCE = V_REGISTERS / 4, GROUPS = CR_KV_BLOCK / V_LANES };

static const float log2_e = (float)1.44269504088896341, ln_2 = (float)0.69314718055994531;

void CR_V(short_store)(cr_dtype dtype, const void *k, const void *v, int64_t at, int64_t head_dim,
                       int64_t slot, float *tile)
{
    int64_t dims = short_dims(head_dim);
    float *to = tile + slot / V_LANES * 2 * V_LANES * dims;

    if (slot % V_LANES == 0) memset(to, 0, (size_t)(2 * V_LANES * dims) * sizeof(float));
    to += slot % V_LANES;
    for (int64_t d = 0; d < head_dim; d++) {
        to[V_LANES * d] = e_get(dtype, k, at + d);
        to[V_LANES * (dims + d)] = e_get(dtype, v, at + d);
    }
}

typedef struct span {
    int64_t first, end; /* keys that a row sees */
} span;

CR_INLINE span seen(const short_heads *h, const short_row *row)
{
    int64_t end = row->pos + 1;

    return (span){h->window > 0 && end > h->window ? end - h->window : 0, end};
}

/* Groups of V_LANES keys that a pair sees. Rows are in ascending position. */
CR_INLINE span groups(const short_heads *h, const short_pair *p)
{
    return (span){seen(h, &p->rows[0]).first / V_LANES, p->rows[p->num - 1].pos / V_LANES + 1};
}

CR_INLINE int64_t tile_at(const int32_t *table, int64_t t)
{
    return table ? table[t] : t;
}

/* q in units of log2, zero after its end. */
CR_INLINE void load_q(const short_heads *h, const short_row *row, float q[SHORT_HEAD])
{
    for (int64_t d = 0; d < SHORT_HEAD; d += V_LANES) {
        int64_t left = h->head_dim - d;
        vf x = left > 0 ? v_get_left(h->dtype, h->q, row->at + d, left) : v_set(0);
        v_store(q + d, x * v_set(h->scale * log2_e));
    }
}

/* scores = q . K in units of log2, and the largest of each lane. */
CR_INLINE void score(int num, int dims, const short_heads *h, const short_pair *p, float *scores,
                     vf *max)
{
    span all = groups(h, p), both = {seen(h, &p->rows[num - 1]).first, p->rows[0].pos + 1};
    float q[2][SHORT_HEAD];

#pragma GCC unroll 2
    for (int r = 0; r < num; r++) {
        load_q(h, &p->rows[r], q[r]);
        max[r] = v_set(-INFINITY);
    }
    for (int64_t g = all.first; g < all.end;) {
        const float *kt =
            p->tiles + tile_at(h->table, g / GROUPS) * h->stride + g % GROUPS * 2 * V_LANES * dims;
        int64_t end = (g / GROUPS + 1) * GROUPS < all.end ? (g / GROUPS + 1) * GROUPS : all.end;
        for (; g < end; g++, kt += 2 * V_LANES * dims, scores += V_LANES) {
            vf s[2];
#pragma GCC unroll 2
            for (int r = 0; r < num; r++)
                s[r] = v_set(q[r][0]) * v_load(kt);
#pragma GCC unroll 16
            for (int d = 1; d < dims; d++)
#pragma GCC unroll 2
                for (int r = 0; r < num; r++)
                    s[r] = v_fma(v_set(q[r][d]), v_load(kt + V_LANES * d), s[r]);
#pragma GCC unroll 16
            for (int d = 0; d < dims; d++) /* the values of these keys come next */
                __builtin_prefetch(kt + V_LANES * (dims + d));
            if (V_LANES * g < both.first || V_LANES * g + V_LANES > both.end)
                for (int r = 0; r < num; r++) {
                    span row = seen(h, &p->rows[r]);
                    vi key = v_lanes() + (int32_t)(V_LANES * g);
                    s[r] = v_select((key < (int32_t)row.end) & (key >= (int32_t)row.first), s[r],
                                    v_set(-INFINITY));
                }
#pragma GCC unroll 2
            for (int r = 0; r < num; r++) {
                max[r] = v_max(s[r], max[r]);
                v_store(scores + r * h->ld_scores, s[r]);
            }
        }
    }
}

/* o = weights . V by lanes, for elements d0 .. d0 + some - 1; the first call makes weights of scores. */
CR_INLINE void weigh(int num, int dims, int d0, int some, const short_heads *h, const short_pair *p,
                     float *scores, const float *max, vf *sum, vf o[][SHORT_HEAD])
{
    span all = groups(h, p);
    int64_t next_tiles = h->next_table && d0 == 0 ? h->next_tiles : 0;

#pragma GCC unroll 2
    for (int r = 0; r < num; r++) {
        if (d0 == 0) sum[r] = v_set(0);
#pragma GCC unroll 8
        for (int d = d0; d < d0 + some; d++)
            o[r][d] = v_set(0);
    }
    for (int64_t g = all.first; g < all.end;) {
        int64_t inside = g % GROUPS * 2 * V_LANES * dims, t = g / GROUPS,
                end = (t + 1) * GROUPS < all.end ? (t + 1) * GROUPS : all.end;
        const float *vt = p->tiles + tile_at(h->table, t) * h->stride + inside +
                          V_LANES * (dims + d0),
                    *next = t < next_tiles ? p->tiles + h->next_table[t] * h->stride + inside : vt;
        for (; g < end;
             g++, vt += 2 * V_LANES * dims, next += 2 * V_LANES * dims, scores += V_LANES) {
            vf w[2];
#pragma GCC unroll 2
            for (int r = 0; r < num; r++) {
                w[r] = v_load(scores + r * h->ld_scores);
                if (d0 > 0) continue;
                w[r] = exp2_below(w[r] - v_set(max[r]));
                sum[r] = sum[r] + w[r];
                if (some < dims) v_store(scores + r * h->ld_scores, w[r]);
            }
            if (d0 == 0)
#pragma GCC unroll 16
                for (int d = 0; d < dims; d++)
                    __builtin_prefetch(next + V_LANES * d);
#pragma GCC unroll 8
            for (int d = 0; d < some; d++)
#pragma GCC unroll 2
                for (int r = 0; r < num; r++)
                    o[r][d0 + d] = v_fma(w[r], v_load(vt + V_LANES * d), o[r][d0 + d]);
        }
    }
}

static __attribute__((noinline)) void score_pair(const short_heads *h, const short_pair *p,
                                                 float *scores, vf *max)
{
    bool is_alone = p->num == 1;

    if (h->head_dim <= 8) {
        is_alone ? score(1, 8, h, p, scores, max) : score(2, 8, h, p, scores, max);
    } else {
        is_alone ? score(1, 16, h, p, scores, max) : score(2, 16, h, p, scores, max);
    }
}

CR_INLINE void weigh_rows(int num, int dims, const short_heads *h, const short_pair *p,
                          float *scores, const float *max, vf *sum, float (*out)[SHORT_HEAD])
{
    vf o[2][SHORT_HEAD];

#pragma GCC unroll 16
    for (int d = 0; d < dims; d += DIMS_AT_ONCE)
        weigh(num, dims, d, DIMS_AT_ONCE, h, p, scores, max, sum, o);
#pragma GCC unroll 2
    for (int r = 0; r < num; r++)
#pragma GCC unroll 2
        for (int d = 0; d < dims; d += 8)
            v_join_lanes(v_add, o[r] + d, out[r] + d);
}

static __attribute__((noinline)) void weigh_pair(const short_heads *h, const short_pair *p,
                                                 float *scores, const float *max, vf *sum,
                                                 float (*out)[SHORT_HEAD])
{
    bool is_alone = p->num == 1;

    if (h->head_dim <= 8) {
        is_alone ? weigh_rows(1, 8, h, p, scores, max, sum, out)
                 : weigh_rows(2, 8, h, p, scores, max, sum, out);
    } else {
        is_alone ? weigh_rows(1, 16, h, p, scores, max, sum, out)
                 : weigh_rows(2, 16, h, p, scores, max, sum, out);
    }
}

/* Scores of all pairs, then all their largest, then all values: a chain of dependent operations of
 * one pair has the work of another beside it. */
void CR_V(short_attend)(const short_heads *h, int num, const short_pair *pairs)
{
    enum { ROWS = 2 * SHORT_PAIRS };
    vf lanes[ROWS];
    float max[ROWS], sums[ROWS], inverse[ROWS], out[ROWS][SHORT_HEAD];

    for (int i = 0; i < ROWS; i++)
        lanes[i] = v_set(1); /* of rows that are not there */
    for (int i = 0; i < num; i++)
        score_pair(h, &pairs[i], h->scores + 2 * i * h->ld_scores, lanes + 2 * i);
    v_join_lanes(v_max, lanes, max);
    for (int i = 0; i < num; i++)
        weigh_pair(h, &pairs[i], h->scores + 2 * i * h->ld_scores, max + 2 * i, lanes + 2 * i,
                   out + 2 * i);
    v_join_lanes(v_add, lanes, sums);
    for (int i = 0; i < ROWS; i++)
        inverse[i] = 1 / sums[i];
    for (int i = 0; i < num; i++)
        for (int r = 0; r < pairs[i].num; r++) {
            const short_row *row = &pairs[i].rows[r];
            int n = 2 * i + r;
            for (int64_t d = 0; d < h->head_dim; d += V_LANES)
                v_put_left(h->dtype, h->o, row->at + d, v_load(out[n] + d) * v_set(inverse[n]),
                           h->head_dim - d);
            if (row->lse) *row->lse = max[n] * ln_2 + logf(sums[n]);
        }
}
