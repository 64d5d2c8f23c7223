/* attention.c -- attention and its gradient of bf16 heads of 64 and 128 on a simulated GPU of compute capability 9.0, which takes wgmma
 * and TMA (attention_wgmma.cu, attention_grad_wgmma.cu), and of 8.0, which takes mma.sync (attention_mma.cu, attention_grad_mma.cu): which
 * one ran, and that they have the same bits, packed and cached, at the edges of tiles, blocks, windows and groups of heads, under seeds that
 * order copies and warps differently. What is beside a sequence, in the batch or in its cache's blocks, has no part in it, NaN least of
 * all. Numbers are checked against the cpu in tests/unit/kernels_attention.c, and there packed and cached rows by bytes. Bits are equal by
 * the simulation's order of sums alone, which is both kernels' order; the tensor cores of real GPUs round in their own ways. */
#include "kernels/attention.h"
#include "tests/cuda_sim/operands.h"

#include <cuda_runtime_api.h>
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

/* The first rows of the batch as one sequence, all in one call; in blocks in any order, which are NaN before, or as they come. */
static void run_cached(const batch *b, bool is_nan, char *out)
{
    static const int32_t table[BLOCKS] = {2, 0, 1};
    const heads *h = &b->h;
    int32_t zeros[BLOCKS * CR_KV_BLOCK] = {0}, places[BLOCKS * CR_KV_BLOCK];
    size_t block = cr_kv_block_bytes(b->dev, CR_BF16, h->kv, h->dim);
    cr_mem *slots, *pos, *blocks, *cache;

    if (h->num_rows == 0) return;
    for (int i = 0; i < h->num_rows; i++)
        places[i] = i;
    slots = ids(b->dev, zeros, h->num_rows), pos = ids(b->dev, places, h->num_rows);
    blocks = ids(b->dev, table, BLOCKS);
    OK(cr_device_alloc(b->dev, BLOCKS * block, &cache, &err));
    if (is_nan) make_nan(b->dev, cache, 0, (int64_t)(BLOCKS * block / 2));
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
                                        .scale = 0.3F,
                                        .window = h->window};
    OK(cr_attention_cached(b->dev, &a, &err));
    OK(cr_download(b->dev, out, b->outs[O], (size_t)h->num_rows * row_bytes(h, O), &err));
    cr_device_free(b->dev, slots, (size_t)h->num_rows * 4);
    cr_device_free(b->dev, pos, (size_t)h->num_rows * 4);
    cr_device_free(b->dev, blocks, sizeof table);
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

static size_t most_bytes(const heads *h)
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
        size_t num_bytes = most_bytes(h);
        char *want = cr_alloc(num_bytes), *got = cr_alloc(num_bytes);
        memset(want, 0, num_bytes), memset(got, 0, num_bytes);
        run(h, "8.0", 0, want);
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
    size_t num_bytes = most_bytes(&h);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_beside_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
