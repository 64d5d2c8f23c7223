/* attention.c -- attention and its gradient of bf16 heads of 64 and 128 on a simulated GPU of compute capability 9.0, which takes wgmma
 * and TMA (attention_wgmma.cu, attention_grad_wgmma.cu), and of 8.0, which takes mma.sync (attention_mma.cu, attention_grad_mma.cu): which
 * one ran, and that they have the same bits, packed and cached, at the edges of tiles, blocks, stretches of keys that blocks share, windows
 * and groups of heads, under seeds that order copies and warps differently. What is beside a sequence, in the batch or in its cache's blocks, has no part in it, NaN least of
 * all. Numbers are checked against the cpu in tests/unit/kernels_attention.c, and there packed and cached rows by bytes. Bits are equal by
 * the simulation's order of sums alone, which is both kernels' order; the tensor cores of real GPUs round in their own ways. */
#include "kernels/attention.h"
#include "tests/cuda_sim/operands.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_SEEDS = 2, BLOCKS = 3, NUM_SEQS = 5, LONGEST = 3, FURTHER = 24 };

typedef struct heads {
    int64_t num, kv, dim, window;
    bool is_bidirectional;
    const int32_t *lengths;
    int32_t num_rows; /* of the cached sequence */
} heads;
/* Of the tall one a block has more tiles of keys than stages. */
static const int32_t edges[NUM_SEQS] = {1, 64, 63, 129, 65}, tall[NUM_SEQS] = {2, 64, 1, 330, 20},
                     few[NUM_SEQS] = {1, 2, 1, 3, 1};
/* With a window of 70 a block's second 64 rows do not see the first tile of its first, and the other way round. */
static const heads layouts[] = {
    {2, 2, 64, 0, false, edges, 150}, {2, 1, 128, 70, false, edges, 100},
    {1, 1, 128, 0, true, edges, 0},   {1, 1, 64, 5, false, tall, 70},
    {66, 1, 64, 0, false, few, 3},    {3, 1, 128, 0, false, few, 66},
    {1, 1, 64, 0, false, tall, 0},
};

/* What a packed batch gives, rows one after the other. */
enum { O, LSE, DQ, DK, DV, NUM_OUTS };
typedef struct batch {
    heads h;
    cr_device *dev;
    int32_t cu[NUM_SEQS + 1];
    int64_t T, q_num, kv_num;
    cr_mem *q, *k, *v_mem, *v, *d_o_mem, *d_o,
        *seqs; /* FURTHER elements on: v is not k, d_o not q */
    cr_mem *outs[NUM_OUTS];
} batch;

static cr_mem *ids(cr_device *dev, const int32_t *x, int64_t num)
{
    cr_mem *mem;

    OK(cr_device_alloc(dev, (size_t)num * 4, &mem, &err));
    OK(cr_upload(dev, mem, x, (size_t)num * 4, &err));
    return mem;
}

static size_t row_bytes(const heads *h, int out)
{
    return out == LSE ? (size_t)h->num * 4 : (size_t)((out < DK ? h->num : h->kv) * h->dim) * 2;
}

/* Of all outputs. */
static size_t bytes_of_rows(const heads *h, int64_t num)
{
    size_t sum = 0;

    for (int i = 0; i < NUM_OUTS; i++)
        sum += (size_t)num * row_bytes(h, i);
    return sum;
}

static void batch_open(batch *b, const heads *h, const char *capability)
{
    *b = (batch){.h = *h};
    setenv("CROLL_SIM_CAPABILITY", capability, 1);
    OK(cr_device_open("cuda", 1, &b->dev, &err));
    for (int s = 0; s < NUM_SEQS; s++)
        b->cu[s + 1] = b->cu[s] + h->lengths[s];
    b->T = b->cu[NUM_SEQS] > h->num_rows ? b->cu[NUM_SEQS] : h->num_rows;
    b->q_num = b->T * h->num * h->dim, b->kv_num = b->T * h->kv * h->dim;
    b->q = numbers(b->dev, CR_BF16, b->q_num);
    b->k = numbers(b->dev, CR_BF16, b->kv_num);
    b->v_mem = numbers(b->dev, CR_BF16, b->kv_num + FURTHER);
    b->v = cr_mem_add(b->v_mem, FURTHER * 2);
    b->d_o_mem = numbers(b->dev, CR_BF16, b->q_num + FURTHER);
    b->d_o = cr_mem_add(b->d_o_mem, FURTHER * 2);
    for (int i = 0; i < NUM_OUTS; i++)
        OK(cr_device_alloc(b->dev, (size_t)b->T * row_bytes(h, i), &b->outs[i], &err));
    b->seqs = ids(b->dev, b->cu, NUM_SEQS + 1);
}

static void batch_close(batch *b)
{
    cr_device_free(b->dev, b->q, (size_t)b->q_num * 2);
    cr_device_free(b->dev, b->k, (size_t)b->kv_num * 2);
    cr_device_free(b->dev, b->v_mem, (size_t)(b->kv_num + FURTHER) * 2);
    cr_device_free(b->dev, b->d_o_mem, (size_t)(b->q_num + FURTHER) * 2);
    for (int i = 0; i < NUM_OUTS; i++)
        cr_device_free(b->dev, b->outs[i], (size_t)b->T * row_bytes(&b->h, i));
    cr_device_free(b->dev, b->seqs, sizeof b->cu);
    cr_device_close(b->dev);
}

/* All outputs, one after the other. */
static void run_packed(const batch *b, char *out)
{
    const heads *h = &b->h;
    const cr_attention_args a = {.q = b->q,
                                 .k = b->k,
                                 .v = b->v,
                                 .o = b->outs[O],
                                 .lse = b->outs[LSE],
                                 .dtype = CR_BF16,
                                 .cu_seqlens = b->seqs,
                                 .num_seqs = NUM_SEQS,
                                 .num_heads = h->num,
                                 .num_kv_heads = h->kv,
                                 .head_dim = h->dim,
                                 .scale = 0.3F,
                                 .window = h->window,
                                 .is_bidirectional = h->is_bidirectional,
                                 .sizes = {h->lengths[LONGEST], 1, b->cu[NUM_SEQS]}};

    const cr_attention_grad_args g = {a, b->d_o, b->outs[DQ], b->outs[DK], b->outs[DV]};

    OK(cr_attention(b->dev, &a, &err));
    OK(cr_attention_grad(b->dev, &g, &err));
    for (int i = 0; i < NUM_OUTS; i++) {
        size_t num_bytes = (size_t)b->cu[NUM_SEQS] * row_bytes(h, i);
        OK(cr_download(b->dev, out, b->outs[i], num_bytes, &err));
        out += num_bytes;
    }
}

static void make_nan(cr_device *dev, cr_mem *x, int64_t first, int64_t num)
{
    uint16_t *nan = CR_NEW_ARRAY(uint16_t, num);

    memset(nan, 0xff, (size_t)num * 2);
    OK(cr_upload(dev, cr_mem_add(x, (size_t)first * 2), nan, (size_t)num * 2, &err));
    cr_free(nan);
}

/* The first rows of the batch as one sequence, all in one call, in blocks in any order: each row alone, or all in tiles and blocks that are
 * NaN before. */
static void run_cached(const batch *b, bool in_tiles, char *out)
{
    static const int32_t table[BLOCKS] = {2, 0, 1};
    const heads *h = &b->h;
    int32_t zeros[BLOCKS * CR_KV_BLOCK] = {0}, places[BLOCKS * CR_KV_BLOCK];
    size_t block = cr_kv_block_bytes(b->dev, CR_BF16, h->kv, h->dim);
    cr_row_tile in_order[BLOCKS * CR_KV_BLOCK];
    cr_mem *slots, *pos, *blocks, *cache, *tiles = NULL;
    int64_t num_tiles = 0;

    if (h->num_rows == 0) return;
    for (int i = 0; i < h->num_rows; i++)
        places[i] = i;
    slots = ids(b->dev, zeros, h->num_rows), pos = ids(b->dev, places, h->num_rows);
    blocks = ids(b->dev, table, BLOCKS);
    OK(cr_device_alloc(b->dev, BLOCKS * block, &cache, &err));
    if (in_tiles) {
        make_nan(b->dev, cache, 0, (int64_t)(BLOCKS * block / 2));
        num_tiles = cr_row_tiles(zeros, places, h->num_rows, in_order);
        assert_true(num_tiles == (h->num_rows + CR_ROW_TILE - 1) / CR_ROW_TILE);
        tiles = ids(b->dev, (int32_t *)in_order, 2 * num_tiles);
    }
    const cr_attention_cached_args a = {.q = b->q,
                                        .k = b->k,
                                        .v = b->v,
                                        .o = b->outs[O],
                                        .blocks = cache,
                                        .dtype = CR_BF16,
                                        .row_slot = slots,
                                        .row_pos = pos,
                                        .block_table = blocks,
                                        .num_rows = h->num_rows,
                                        .max_blocks = BLOCKS,
                                        .num_heads = h->num,
                                        .num_kv_heads = h->kv,
                                        .head_dim = h->dim,
                                        .sizes = {h->num_rows, 1, h->num_rows},
                                        .num_blocks = BLOCKS,
                                        .scale = 0.3F,
                                        .window = h->window,
                                        .tiles = tiles,
                                        .num_tiles = num_tiles};
    OK(cr_attention_cached(b->dev, &a, &err));
    OK(cr_download(b->dev, out, b->outs[O], (size_t)h->num_rows * row_bytes(h, O), &err));
    cr_device_free(b->dev, slots, (size_t)h->num_rows * 4);
    cr_device_free(b->dev, pos, (size_t)h->num_rows * 4);
    cr_device_free(b->dev, blocks, sizeof table);
    if (tiles) cr_device_free(b->dev, tiles, (size_t)num_tiles * 8);
    cr_device_free(b->dev, cache, BLOCKS * block);
}

/* Packed, then cached; checks which instructions ran. */
static void run(const heads *h, const char *capability, uint64_t seed, char *out)
{
    cri_sim_stats before = cri_sim_counts;
    batch b;

    batch_open(&b, h, capability);
    cri_sim_seed(seed);
    memset(out, 0, 2 * bytes_of_rows(h, b.T));
    run_packed(&b, out);
    run_cached(&b, seed % 2, out + bytes_of_rows(h, b.T));
    assert_true((cri_sim_counts.wgmma > before.wgmma) == (capability[0] == '9'));
    assert_true((cri_sim_counts.mma > before.mma) == (capability[0] == '8'));
    batch_close(&b);
}

/* ---- stretches of keys ---- */

/* Keys of a row are summed in stretches of this many (SPLIT of attention.h), which blocks share where rows are few. */
enum { STRETCH = 512, NUM_LONG = 6, FILLERS = 133, FILLER_BLOCKS = 3 };

/* A sequence whose keys are in the cache: q, k, v of all its rows on the host, as floats of bfloat16 values. */
typedef struct sequence {
    heads h;
    int32_t len;
    float *q, *k, *v;
} sequence;

/* As bfloat16 has them. */
static float *some_numbers(int64_t num, uint32_t seed)
{
    float *f = numbers_on_host(num, seed);
    uint16_t *narrow = CR_NEW_ARRAY(uint16_t, num);

    cr_cast_host(CR_BF16, narrow, CR_F32, f, (size_t)num);
    cr_cast_host(CR_F32, f, CR_BF16, narrow, (size_t)num);
    cr_free(narrow);
    return f;
}

static void sequence_open(sequence *s, const heads *h, int32_t len)
{
    *s = (sequence){*h, len, some_numbers(len * h->num * h->dim, 1),
                    some_numbers(len * h->dim, 1000003), some_numbers(len * h->dim, 77)};
}

static void sequence_close(sequence *s)
{
    cr_free(s->q), cr_free(s->k), cr_free(s->v);
}

/* The cache of a sequence with one kv head, blocks in order and whole; then those of FILLERS rows more. */
static cr_mem *cache_of(cr_device *dev, const sequence *s, int64_t num_blocks)
{
    int64_t D = s->h.dim, tile = CR_KV_BLOCK * D, num = (num_blocks + FILLER_BLOCKS) * 2 * tile;
    float *f = CR_NEW_ARRAY(float, num);
    cr_mem *mem;

    memset(f, 0, (size_t)num * sizeof *f);
    for (int64_t i = 0; i < s->len; i++) {
        float *to = f + i / CR_KV_BLOCK * 2 * tile + i % CR_KV_BLOCK * D;
        memcpy(to, s->k + i * D, (size_t)D * sizeof *f);
        memcpy(to + tile, s->v + i * D, (size_t)D * sizeof *f);
    }
    mem = narrowed(dev, CR_BF16, f, num);
    cr_free(f);
    return mem;
}

/* Rows of the cached sequence at these positions into out [NUM_LONG, heads, dim]; fillers: and this many rows of another sequence, so
 * that no blocks are left to share keys. */
static void run_long(cr_device *dev, const sequence *s, const int32_t *places, int fillers,
                     uint16_t *out)
{
    const heads *h = &s->h;
    int64_t D = h->dim, num_blocks = (s->len + CR_KV_BLOCK - 1) / CR_KV_BLOCK,
            num = NUM_LONG + fillers;
    int32_t *slot = CR_NEW_ARRAY(int32_t, num), *pos = CR_NEW_ARRAY(int32_t, num),
            *table = CR_NEW_ARRAY(int32_t, 2 * num_blocks);
    float *q = CR_NEW_ARRAY(float, num * h->num * D), *k = CR_NEW_ARRAY(float, num *D),
          *v = CR_NEW_ARRAY(float, num *D);
    cr_mem *cache = cache_of(dev, s, num_blocks), *o, *of_q, *of_k, *of_v, *slots, *where, *blocks;

    for (int64_t i = 0; i < num; i++) {
        bool is_filler = i >= NUM_LONG;
        int64_t row = is_filler ? i - NUM_LONG : places[i];
        slot[i] = is_filler, pos[i] = (int32_t)row;
        memcpy(q + i * h->num * D, s->q + row * h->num * D, (size_t)(h->num * D) * sizeof *q);
        memcpy(k + i * D, s->k + row * D, (size_t)D * sizeof *k);
        memcpy(v + i * D, s->v + row * D, (size_t)D * sizeof *v);
    }
    for (int64_t i = 0; i < num_blocks; i++)
        table[i] = (int32_t)i, table[num_blocks + i] = (int32_t)(num_blocks + i % FILLER_BLOCKS);
    of_q = narrowed(dev, CR_BF16, q, num * h->num * D);
    of_k = narrowed(dev, CR_BF16, k, num * D), of_v = narrowed(dev, CR_BF16, v, num * D);
    slots = ids(dev, slot, num), where = ids(dev, pos, num),
    blocks = ids(dev, table, 2 * num_blocks);
    OK(cr_device_alloc(dev, (size_t)(num * h->num * D) * 2, &o, &err));
    const cr_attention_cached_args a = {.q = of_q,
                                        .k = of_k,
                                        .v = of_v,
                                        .o = o,
                                        .blocks = cache,
                                        .dtype = CR_BF16,
                                        .row_slot = slots,
                                        .row_pos = where,
                                        .block_table = blocks,
                                        .num_rows = num,
                                        .max_blocks = num_blocks,
                                        .num_heads = h->num,
                                        .num_kv_heads = 1,
                                        .head_dim = D,
                                        .sizes = {s->len, 1, num},
                                        .num_blocks = num_blocks + FILLER_BLOCKS,
                                        .scale = 0.3F,
                                        .window = h->window};
    OK(cr_attention_cached(dev, &a, &err));
    OK(cr_download(dev, out, o, (size_t)(NUM_LONG * h->num * D) * 2, &err));
    cr_mem *const mems[] = {of_q, of_k, of_v, o, slots, where, blocks, cache};
    const int64_t bytes[] = {num * h->num * D * 2,
                             num * D * 2,
                             num * D * 2,
                             num * h->num * D * 2,
                             num * 4,
                             num * 4,
                             num_blocks * 8,
                             (num_blocks + FILLER_BLOCKS) * 2 * CR_KV_BLOCK * D * 2};
    for (size_t i = 0; i < CR_COUNT(mems); i++)
        cr_device_free(dev, mems[i], (size_t)bytes[i]);
    cr_free(slot), cr_free(pos), cr_free(table), cr_free(q), cr_free(k), cr_free(v);
}

/* One head of one row in float64, within the rounding of weights and result to bfloat16. Returns its logsumexp. */
static double check_row(const sequence *s, int64_t pos, int64_t head, const uint16_t *got)
{
    const heads *h = &s->h;
    int64_t D = h->dim, first = h->window && pos >= h->window ? pos + 1 - h->window : 0;
    const float *q = s->q + (pos * h->num + head) * D;
    double *sum = CR_NEW_ARRAY(double, D), *off = CR_NEW_ARRAY(double, D), whole = 0, max = -1e30;
    float *f = CR_NEW_ARRAY(float, D);

    cr_cast_host(CR_F32, f, CR_BF16, got, (size_t)D);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t key = first; key <= pos; key++) {
            double dot = 0, p;
            for (int64_t d = 0; d < D; d++)
                dot += (double)q[d] * (double)s->k[key * D + d];
            if (pass == 0) {
                max = dot > max ? dot : max;
                continue;
            }
            p = exp((dot - max) * (double)0.3F);
            whole += p;
            for (int64_t d = 0; d < D; d++) {
                sum[d] += p * (double)s->v[key * D + d];
                off[d] += p * fabs((double)s->v[key * D + d]) * 0x1p-8;
            }
        }
    for (int64_t d = 0; d < D; d++)
        if (!(fabs((double)f[d] - sum[d] / whole) <=
              off[d] / whole + fabs(sum[d] / whole) * 0x1p-8))
            fail_msg("row %lld, head %lld, column %lld: %g, not %g", (long long)pos,
                     (long long)head, (long long)d, (double)f[d], sum[d] / whole);
    cr_free(sum), cr_free(off), cr_free(f);
    return max * (double)0.3F + log(whole);
}

/* Rows of five stretches, of one, at their edges: blocks that share keys, blocks that do not, both GPUs: by bits; and float64. */
static void test_shared_keys(void **state)
{
    static const heads shapes[] = {{20, 1, 128, 0, false, NULL, 0},
                                   {66, 1, 64, 0, false, NULL, 0},
                                   {3, 1, 64, STRETCH + 40, false, NULL, 0},
                                   {2, 1, 128, 30, false, NULL, 0}};
    const int32_t len = 4 * STRETCH + 101,
                  places[NUM_LONG] = {
                      5, STRETCH - 1, STRETCH, 2 * STRETCH + 20, 4 * STRETCH - 1, len - 1};

    (void)state;
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        sequence s;
        sequence_open(&s, &shapes[i], len);
        size_t num = (size_t)(NUM_LONG * s.h.num * s.h.dim);
        uint16_t *got[4];
        for (int turn = 0; turn < 4; turn++) {
            cr_device *dev;
            got[turn] = CR_NEW_ARRAY(uint16_t, num);
            setenv("CROLL_SIM_CAPABILITY", turn / 2 ? "9.0" : "8.0", 1);
            OK(cr_device_open("cuda", 1, &dev, &err));
            run_long(dev, &s, places, turn % 2 ? FILLERS : 0, got[turn]);
            cr_device_close(dev);
            assert_memory_equal(got[turn], got[0], num * 2);
        }
        for (int row = 0; row < NUM_LONG; row++)
            for (int64_t head = 0; head < s.h.num; head += 13)
                check_row(&s, places[row], head, got[0] + (row * s.h.num + head) * s.h.dim);
        for (int turn = 0; turn < 4; turn++)
            cr_free(got[turn]);
        sequence_close(&s);
    }
}

/* A packed sequence of four stretches has the bits of its rows in the cache; and float64. Once more with scores of some hundreds: what
 * e^x of one tile or stretch has more than of another is infinite. */
static void test_packed_stretches(void **state)
{
    static const heads h = {1, 1, 64, 0, false, NULL, 0};
    const int32_t len = 3 * STRETCH + 70, cu[2] = {0, len},
                  places[NUM_LONG] = {
                      0, STRETCH - 1, STRETCH, 2 * STRETCH + 1, 3 * STRETCH + 64, len - 1};
    uint16_t got[NUM_LONG * 64], *whole = CR_NEW_ARRAY(uint16_t, len * 64);
    float *lse = CR_NEW_ARRAY(float, len);
    sequence s;

    (void)state;
    sequence_open(&s, &h, len);
    for (int turn = 0; turn < 4; turn++) {
        cr_device *dev;
        cr_mem *q, *k, *v, *o, *seqs, *of_lse;
        for (int32_t i = 0; i < len * 64 && turn == 2; i++)
            s.q[i] *= 128;
        setenv("CROLL_SIM_CAPABILITY", turn % 2 ? "9.0" : "8.0", 1);
        OK(cr_device_open("cuda", 1, &dev, &err));
        q = narrowed(dev, CR_BF16, s.q, len * 64), k = narrowed(dev, CR_BF16, s.k, len * 64);
        v = narrowed(dev, CR_BF16, s.v, len * 64), o = narrowed(dev, CR_BF16, s.v, len * 64);
        seqs = ids(dev, cu, 2);
        OK(cr_device_alloc(dev, (size_t)len * sizeof *lse, &of_lse, &err));
        const cr_attention_args a = {.q = q,
                                     .k = k,
                                     .v = v,
                                     .o = o,
                                     .lse = of_lse,
                                     .dtype = CR_BF16,
                                     .cu_seqlens = seqs,
                                     .num_seqs = 1,
                                     .num_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim = 64,
                                     .scale = 0.3F,
                                     .sizes = {len, 1, len}};
        OK(cr_attention(dev, &a, &err));
        OK(cr_download(dev, whole, o, (size_t)len * 128, &err));
        OK(cr_download(dev, lse, of_lse, (size_t)len * sizeof *lse, &err));
        run_long(dev, &s, places, 0, got);
        for (int i = 0; i < NUM_LONG; i++)
            assert_memory_equal(whole + places[i] * 64, got + i * 64, 128);
        for (int32_t i = 0; i < len; i += i < STRETCH ? 128 : 7)
            assert_true(fabs(check_row(&s, i, 0, whole + i * 64) - (double)lse[i]) <
                        (turn < 2 ? 1e-5 : 1e-3));
        cr_mem *const mems[] = {q, k, v, o};
        for (size_t i = 0; i < CR_COUNT(mems); i++)
            cr_device_free(dev, mems[i], (size_t)len * 128);
        cr_device_free(dev, seqs, sizeof cu);
        cr_device_free(dev, of_lse, (size_t)len * sizeof *lse);
        cr_device_close(dev);
    }
    cr_free(whole), cr_free(lse);
    sequence_close(&s);
}

static size_t max_bytes(const heads *h)
{
    int64_t T = h->num_rows;
    for (int s = 0; s < NUM_SEQS; s++)
        T += h->lengths[s];
    return 2 * bytes_of_rows(h, T);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++) {
        const heads *h = &layouts[l];
        size_t num_bytes = max_bytes(h);
        char *want = cr_alloc(num_bytes), *got = cr_alloc(num_bytes);
        memset(want, 0, num_bytes), memset(got, 0, num_bytes);
        run(h, "8.0", 0, want);
        run(h, "8.0", 1, got);
        assert_memory_equal(got, want, num_bytes);
        for (uint64_t seed = 0; seed < NUM_SEEDS; seed++) {
            run(h, "9.0", seed, got);
            assert_memory_equal(got, want, num_bytes);
        }
        cr_free(want), cr_free(got);
    }
}

/* Rows of every other sequence are NaN: the first, third .., then the second .. */
static void test_beside_nan(void **state)
{
    static const heads h = {2, 1, 128, 0, false, edges, 0};
    size_t num_bytes = max_bytes(&h);
    char *want = cr_alloc(num_bytes), *got = cr_alloc(num_bytes);

    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        batch b;
        batch_open(&b, &h, turn < 2 ? "9.0" : "8.0");
        run_packed(&b, want);
        for (int s = turn % 2; s < NUM_SEQS; s += 2) {
            make_nan(b.dev, b.q, b.cu[s] * h.num * h.dim, h.lengths[s] * h.num * h.dim);
            make_nan(b.dev, b.d_o, b.cu[s] * h.num * h.dim, h.lengths[s] * h.num * h.dim);
            make_nan(b.dev, b.k, b.cu[s] * h.kv * h.dim, h.lengths[s] * h.kv * h.dim);
            make_nan(b.dev, b.v, b.cu[s] * h.kv * h.dim, h.lengths[s] * h.kv * h.dim);
        }
        run_packed(&b, got);
        size_t out = 0; /* where its rows begin */
        for (int i = 0; i < NUM_OUTS; i++) {
            size_t row = row_bytes(&h, i);
            for (int s = 1 - turn % 2; s < NUM_SEQS; s += 2) {
                size_t at = out + (size_t)b.cu[s] * row;
                assert_memory_equal(got + at, want + at, (size_t)h.lengths[s] * row);
            }
            out += (size_t)b.cu[NUM_SEQS] * row;
        }
        batch_close(&b);
    }
    cr_free(want), cr_free(got);
}

/* Not by tensor cores, but on every GPU: compute capability 8.9 has 99 KiB of shared memory a block. */
static void heads_of_256_fit_everywhere(void **state)
{
    static const heads h = {2, 1, 256, 0, false, edges, 0};
    static const char *const capabilities[] = {"9.0", "8.9"};
    char *out[2];
    size_t num_bytes = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        batch b;
        batch_open(&b, &h, capabilities[i]);
        num_bytes = bytes_of_rows(&h, b.cu[NUM_SEQS]);
        out[i] = cr_alloc(num_bytes);
        run_packed(&b, out[i]);
        batch_close(&b);
    }
    assert_memory_equal(out[0], out[1], num_bytes);
    cr_free(out[0]), cr_free(out[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_of_256_fit_everywhere),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_beside_nan),
        cmocka_unit_test(test_shared_keys),
        cmocka_unit_test(test_packed_stretches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
