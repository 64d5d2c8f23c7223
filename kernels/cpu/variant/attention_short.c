/* attention_short.c -- see attention_short.h. About 45 instructions for 16 keys of a row. */
#include "kernels/cpu/variant/attention_short.h"
#include "kernels/cpu/variant/entries.h"

#include <math.h>

#if defined(__AVX512F__)
enum { DIMS_AT_ONCE = 8 }; /* sums of o that stay in registers, for SHORT_ROWS rows */
#else
enum { DIMS_AT_ONCE = 2 };
#endif

static const float log2_e = 1.44269504088896341f, ln_2 = 0.69314718055994531f;

/* 2^x for x <= 0, relative error below 2e-7; 0 from -127 down; NaN stays. */
CR_INLINE v16 exp2_below(v16 x)
{
    const v16 magic = v_set(12582912.0f + 127.0f); /* 1.5 2^23: the sum's last bits are x + 127 */
    v16 y = v_set(0x1.5bba14p-10f), biased;

    x = v_max(v_set(-127.0f), x);
    biased = x + magic;
    x = x - (biased - magic);
    y = v_fma(y, x, v_set(0x1.3cea88p-7f));
    y = v_fma(y, x, v_set(0x1.c6b752p-5f));
    y = v_fma(y, x, v_set(0x1.ebf9bcp-3f));
    y = v_fma(y, x, v_set(0x1.62e42ap-1f));
    y = v_fma(y, x, v_set(1.0f));
    return y * (v16)((i16x32)biased << 23);
}

void CR_V(short_store)(cr_dtype dtype, const void *k, const void *v, int64_t at, int64_t head_dim,
                       int64_t slot, float *tile)
{
    int64_t dims = short_dims(head_dim);
    float *to = tile + slot / 16 * 32 * dims;

    if (slot % 16 == 0) memset(to, 0, (size_t)(32 * dims) * 4);
    to += slot % 16;
    for (int64_t d = 0; d < head_dim; d++) {
        to[16 * d] = e_get(dtype, k, at + d);
        to[16 * (dims + d)] = e_get(dtype, v, at + d);
    }
}

typedef v16 join(v16 a, v16 b);

CR_INLINE v16 v_add(v16 a, v16 b)
{
    return a + b;
}

/* The lanes of each of x[0 .. 7] joined in v_sum's order: in lanes 0 .. 7 and again in 8 .. 15. */
CR_INLINE v16 join_lanes(join *both, const v16 x[8])
{
    v16 a[4], b[2], c;

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        a[i] = both(__builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17,
                                            18, 19, 20, 21, 22, 23),
                    __builtin_shufflevector(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15,
                                            24, 25, 26, 27, 28, 29, 30, 31));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        b[i] = both(__builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16,
                                            17, 18, 19, 24, 25, 26, 27),
                    __builtin_shufflevector(a[2 * i], a[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20,
                                            21, 22, 23, 28, 29, 30, 31));
    c = both(__builtin_shufflevector(b[0], b[1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25,
                                     28, 29),
             __builtin_shufflevector(b[0], b[1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27,
                                     30, 31));
    return both(
        __builtin_shufflevector(c, c, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14),
        __builtin_shufflevector(c, c, 1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15));
}

typedef struct span {
    int64_t first, end; /* keys that a row sees */
} span;

CR_INLINE span seen(const short_heads *h, const short_row *row)
{
    int64_t end = row->pos + 1;

    return (span){h->window > 0 && end > h->window ? end - h->window : 0, end};
}

/* Groups of 16 keys that a pair sees. Rows are in ascending position. */
CR_INLINE span groups(const short_heads *h, const short_pair *p)
{
    return (span){seen(h, &p->rows[0]).first / 16, p->rows[p->num - 1].pos / 16 + 1};
}

CR_INLINE int64_t tile_at(const int32_t *table, int64_t t)
{
    return table ? table[t] : t;
}

CR_INLINE v16 load_q(const short_heads *h, const short_row *row)
{
    return h->head_dim == SHORT_HEAD ? v_get(h->dtype, h->q, row->at)
                                     : v_get_some(h->dtype, h->q, row->at, h->head_dim);
}

/* scores = q . K in units of log2, and the largest of each lane. */
CR_INLINE void score(int num, int dims, const short_heads *h, const short_pair *p, float *scores,
                     v16 *most)
{
    span all = groups(h, p), both = {seen(h, &p->rows[num - 1]).first, p->rows[0].pos + 1};
    float q[2][SHORT_HEAD];

#pragma GCC unroll 2
    for (int r = 0; r < num; r++) {
        v_store(q[r], load_q(h, &p->rows[r]) * v_set(h->scale * log2_e));
        most[r] = v_set(-INFINITY);
    }
    for (int64_t g = all.first; g < all.end;) {
        const float *kt = p->tiles + tile_at(h->table, g / 4) * h->stride + g % 4 * 32 * dims;
        int64_t end = (g / 4 + 1) * 4 < all.end ? (g / 4 + 1) * 4 : all.end;
        for (; g < end; g++, kt += 32 * dims, scores += 16) {
            v16 s[2];
#pragma GCC unroll 2
            for (int r = 0; r < num; r++)
                s[r] = v_set(q[r][0]) * v_load(kt);
#pragma GCC unroll 16
            for (int d = 1; d < dims; d++)
#pragma GCC unroll 2
                for (int r = 0; r < num; r++)
                    s[r] = v_fma(v_set(q[r][d]), v_load(kt + 16 * d), s[r]);
#pragma GCC unroll 16
            for (int d = 0; d < dims; d++) /* the values of these keys come next */
                __builtin_prefetch(kt + 16 * (dims + d));
            if (16 * g < both.first || 16 * g + 16 > both.end)
                for (int r = 0; r < num; r++) {
                    span row = seen(h, &p->rows[r]);
                    i16x32 key = v_lanes() + (int32_t)(16 * g);
                    s[r] = v_select((key < (int32_t)row.end) & (key >= (int32_t)row.first), s[r],
                                    v_set(-INFINITY));
                }
#pragma GCC unroll 2
            for (int r = 0; r < num; r++) {
                most[r] = v_max(s[r], most[r]);
                v_store(scores + r * h->ld_scores, s[r]);
            }
        }
    }
}

/* o = weights . V by lanes, for elements d0 .. d0 + some - 1; the first call makes weights of scores. */
CR_INLINE void weigh(int num, int dims, int d0, int some, const short_heads *h, const short_pair *p,
                     float *scores, const float *most, v16 *sum, v16 o[][SHORT_HEAD])
{
    span all = groups(h, p);
    int64_t next_tiles = h->next_table && d0 == 0 ? h->next_tiles : 0;
    v16 shift[2];

#pragma GCC unroll 2
    for (int r = 0; r < num; r++) {
        shift[r] = v_set(most[r]);
        if (d0 == 0) sum[r] = v_set(0);
#pragma GCC unroll 8
        for (int d = d0; d < d0 + some; d++)
            o[r][d] = v_set(0);
    }
    for (int64_t g = all.first; g < all.end;) {
        int64_t inside = g % 4 * 32 * dims,
                end = (g / 4 + 1) * 4 < all.end ? (g / 4 + 1) * 4 : all.end;
        const float *vt =
                        p->tiles + tile_at(h->table, g / 4) * h->stride + inside + 16 * (dims + d0),
                    *next = g / 4 < next_tiles
                                ? p->tiles + h->next_table[g / 4] * h->stride + inside
                                : vt;
        for (; g < end; g++, vt += 32 * dims, next += 32 * dims, scores += 16) {
            v16 w[2];
#pragma GCC unroll 2
            for (int r = 0; r < num; r++) {
                w[r] = v_load(scores + r * h->ld_scores);
                if (d0 > 0) continue;
                w[r] = exp2_below(w[r] - shift[r]);
                sum[r] = sum[r] + w[r];
                if (some < dims) v_store(scores + r * h->ld_scores, w[r]);
            }
            if (d0 == 0)
#pragma GCC unroll 16
                for (int d = 0; d < dims; d++)
                    __builtin_prefetch(next + 16 * d);
#pragma GCC unroll 8
            for (int d = 0; d < some; d++)
#pragma GCC unroll 2
                for (int r = 0; r < num; r++)
                    o[r][d0 + d] = v_fma(w[r], v_load(vt + 16 * d), o[r][d0 + d]);
        }
    }
}

static __attribute__((noinline)) void score_pair(const short_heads *h, const short_pair *p,
                                                 float *scores, v16 *most)
{
    bool is_alone = p->num == 1;

    if (h->head_dim <= 8) {
        is_alone ? score(1, 8, h, p, scores, most) : score(2, 8, h, p, scores, most);
    } else {
        is_alone ? score(1, 16, h, p, scores, most) : score(2, 16, h, p, scores, most);
    }
}

CR_INLINE void weigh_rows(int num, int dims, const short_heads *h, const short_pair *p,
                          float *scores, const float *most, v16 *sum, float (*out)[SHORT_HEAD])
{
    v16 o[2][SHORT_HEAD];

#pragma GCC unroll 16
    for (int d = 0; d < dims; d += DIMS_AT_ONCE)
        weigh(num, dims, d, DIMS_AT_ONCE, h, p, scores, most, sum, o);
#pragma GCC unroll 2
    for (int r = 0; r < num; r++)
#pragma GCC unroll 2
        for (int d = 0; d < dims; d += 8) {
            v8 low = v_low(join_lanes(v_add, o[r] + d));
            memcpy(out[r] + d, &low, sizeof low);
        }
}

static __attribute__((noinline)) void weigh_pair(const short_heads *h, const short_pair *p,
                                                 float *scores, const float *most, v16 *sum,
                                                 float (*out)[SHORT_HEAD])
{
    bool is_alone = p->num == 1;

    if (h->head_dim <= 8) {
        is_alone ? weigh_rows(1, 8, h, p, scores, most, sum, out)
                 : weigh_rows(2, 8, h, p, scores, most, sum, out);
    } else {
        is_alone ? weigh_rows(1, 16, h, p, scores, most, sum, out)
                 : weigh_rows(2, 16, h, p, scores, most, sum, out);
    }
}

/* Scores of all pairs, then all their largest, then all values: a chain of dependent operations of
 * one pair has the work of another beside it. */
void CR_V(short_attend)(const short_heads *h, int num, const short_pair *pairs)
{
    enum { ROWS = 2 * SHORT_PAIRS };
    v16 lanes[ROWS];
    float most[16], sums[16], inverse[16], out[ROWS][SHORT_HEAD];

    for (int i = 0; i < ROWS; i++)
        lanes[i] = v_set(1); /* of rows that are not there */
    for (int i = 0; i < num; i++)
        score_pair(h, &pairs[i], h->scores + 2 * i * h->ld_scores, lanes + 2 * i);
    v_store(most, join_lanes(v_max, lanes));
    for (int i = 0; i < num; i++)
        weigh_pair(h, &pairs[i], h->scores + 2 * i * h->ld_scores, most + 2 * i, lanes + 2 * i,
                   out + 2 * i);
    v_store(sums, join_lanes(v_add, lanes));
    v_store(inverse, v_set(1) / v_load(sums));
    for (int i = 0; i < num; i++)
        for (int r = 0; r < pairs[i].num; r++) {
            const short_row *row = &pairs[i].rows[r];
            int n = 2 * i + r;
            v16 o = v_load(out[n]) * v_set(inverse[n]);
            if (h->head_dim == SHORT_HEAD)
                v_put(h->dtype, h->o, row->at, o);
            else
                v_put_some(h->dtype, h->o, row->at, o, h->head_dim);
            if (row->lse) *row->lse = most[n] * ln_2 + logf(sums[n]);
        }
}
