/* kernels_attention_long.c -- attention of bfloat16 heads of 64 and 128 over sequences of 300, 2049 and 5000, hidden size 1024, groups of 2
 * and 4, on the device under test (CROLL_DEVICE): outputs, log-sums and gradients of some rows against float64 by PyTorch
 * (tests/parity/attention.py); and by bytes: packed rows, rows through the cache in tiles and chunks beside another sequence, single
 * rows whose keys blocks share, rows beside more rows than there are multiprocessors, whose keys no blocks share.
 *
 * Of each case only the last kv head and its group; with the argument `whole` all heads: seconds on a GPU, hours on the simulated one.
 * There, without arguments, T is 300; with `all` every T.
 */
// also on far
// also on cuda
#include "base/json.h"
#include "kernels/attention.h"
#include "tests/ok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 1024, BESIDE = 37, COMPANY = 140, MAX_GROUP = 4 };
static const float SHARP = 4;

static cr_device *dev;
static json_t *goldens;
static bool is_whole, is_all;

/* Of the heads that run: all of HIDDEN, or the last of kv and its group. */
typedef struct sizes {
    int32_t T;
    int64_t D, group, num, kv, first_head, first_kv; /* of HIDDEN's */
} sizes;

/* bfloat16 numbers of [-1, 1): element `at` of the array `name`. */
static float value(char name, uint32_t at)
{
    uint32_t x = at * 2654435761u + (uint32_t)name * 40503u;

    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    x ^= x >> 16;
    return (float)(x >> 24) / 128 - 1;
}

static int64_t num_rows(const sizes *s)
{
    return BESIDE + s->T;
}

/* Rows of BESIDE, which is before it, and of the sequence. */
static cr_mem *filled(const sizes *s, char name)
{
    bool is_q = name == 'q' || name == 'g';
    int64_t cols = is_q ? s->num * s->D : s->kv * s->D, of = is_q ? HIDDEN : HIDDEN / s->group,
            first = (is_q ? s->first_head : s->first_kv) * s->D, num = num_rows(s) * cols;
    float *f = CR_NEW_ARRAY(float, num);
    uint16_t *narrow = CR_NEW_ARRAY(uint16_t, num);
    cr_mem *mem;

    for (int64_t i = 0; i < num; i++)
        f[i] = (name == 'q' ? SHARP : 1) *
               value(name, (uint32_t)((i / cols - BESIDE) * of + first + i % cols));
    cr_cast_host(CR_BF16, narrow, CR_F32, f, (size_t)num);
    OK(cr_device_alloc(dev, (size_t)num * 2, &mem, &err));
    OK(cr_upload(dev, mem, narrow, (size_t)num * 2, &err));
    cr_free(f), cr_free(narrow);
    return mem;
}

static cr_mem *words(const void *x, int64_t num)
{
    cr_mem *mem;

    OK(cr_device_alloc(dev, (size_t)num * 4, &mem, &err));
    OK(cr_upload(dev, mem, x, (size_t)num * 4, &err));
    return mem;
}

enum { Q, K, V, G, O, LSE, DQ, DK, DV, NUM_ARRAYS };
typedef struct batch {
    sizes s;
    cr_mem *on[NUM_ARRAYS];
    char *o; /* of packed rows */
} batch;

static size_t row_bytes(const batch *b, int array)
{
    if (array == LSE) return (size_t)b->s.num * 4;
    return (size_t)((array == K || array == V || array >= DK ? b->s.kv : b->s.num) * b->s.D) * 2;
}

static char *fetched(const batch *b, int array)
{
    size_t num_bytes = (size_t)num_rows(&b->s) * row_bytes(b, array);
    char *host = cr_alloc(num_bytes);

    OK(cr_download(dev, host, b->on[array], num_bytes, &err));
    return host;
}

static void batch_close(batch *b)
{
    for (int i = 0; i < NUM_ARRAYS; i++)
        cr_device_free(dev, b->on[i], (size_t)num_rows(&b->s) * row_bytes(b, i));
    cr_free(b->o);
}

/* Forward and backward of both sequences, packed. */
static void batch_open(batch *b, const sizes *s)
{
    const int32_t cu[] = {0, BESIDE, (int32_t)num_rows(s)};
    cr_mem *seqs = words(cu, CR_COUNT(cu));

    *b = (batch){.s = *s};
    b->on[Q] = filled(s, 'q'), b->on[K] = filled(s, 'k');
    b->on[V] = filled(s, 'v'), b->on[G] = filled(s, 'g');
    for (int i = O; i < NUM_ARRAYS; i++)
        OK(cr_device_alloc(dev, (size_t)num_rows(s) * row_bytes(b, i), &b->on[i], &err));
    const cr_attention_args a = {.q = b->on[Q],
                                 .k = b->on[K],
                                 .v = b->on[V],
                                 .o = b->on[O],
                                 .lse = b->on[LSE],
                                 .dtype = CR_BF16,
                                 .cu_seqlens = seqs,
                                 .num_seqs = 2,
                                 .num_heads = s->num,
                                 .num_kv_heads = s->kv,
                                 .head_dim = s->D,
                                 .scale = 1 / sqrtf((float)s->D),
                                 .sizes = {s->T, 1, num_rows(s)}};
    const cr_attention_grad_args g = {a, b->on[G], b->on[DQ], b->on[DK], b->on[DV]};
    OK(cr_attention(dev, &a, &err));
    OK(cr_attention_grad(dev, &g, &err));
    b->o = fetched(b, O);
    cr_device_free(dev, seqs, sizeof cu);
}

/* ---- float64 ---- */

static int64_t whole_number(const json_t *c, const char *name)
{
    return (int64_t)json_integer_value(json_object_get(c, name));
}

/* The golden's cells of an array are those of rows, heads (of_heads: those of q) and columns (of_columns). Rounding of weights and dS is to a part of 2^-9 each:
 * a sum of many has that part of its usual size, which `size` times the cells' is above. */
static void check_cells(const batch *b, const json_t *c, const char *name, int array, double size)
{
    const json_t *want = json_object_get(c, name), *rows = json_object_get(c, "rows"),
                 *heads = json_object_get(c, "heads"), *columns = json_object_get(c, "columns");
    bool of_heads = array < DK, of_columns = array != LSE;
    size_t num_heads = of_heads ? json_array_size(heads) : 1,
           num_columns = of_columns ? json_array_size(columns) : 1, num = json_array_size(want);
    char *host = fetched(b, array);
    double squares = 0;

    assert_int_equal(num, json_array_size(rows) * num_heads * num_columns);
    for (size_t i = 0; i < num; i++)
        squares += pow(json_number_value(json_array_get(want, i)), 2);
    for (size_t i = 0; i < num; i++) {
        int64_t row = json_integer_value(json_array_get(rows, i / num_columns / num_heads)),
                head =
                    of_heads
                        ? json_integer_value(json_array_get(heads, i / num_columns % num_heads)) -
                              b->s.first_head
                        : b->s.kv - 1,
                column =
                    of_columns ? json_integer_value(json_array_get(columns, i % num_columns)) : 0;
        const char *at = host + (size_t)(BESIDE + row) * row_bytes(b, array);
        double exact = json_number_value(json_array_get(want, i)), tol;
        float got;
        if (of_columns)
            cr_cast_host(CR_F32, &got, CR_BF16, at + (head * b->s.D + column) * 2, 1);
        else
            memcpy(&got, at + head * 4, 4);
        tol = of_columns ? size * sqrt(squares / (double)num) + fabs(exact) * 0x1p-7 : 1e-4;
        if (!(fabs((double)got - exact) <= tol))
            fail_msg("%s of row %lld, head %lld, column %lld (T %d, D %lld, group %lld) is %.7g, "
                     "not %.7g +- %.2g",
                     name, (long long)row, (long long)head, (long long)column, b->s.T,
                     (long long)b->s.D, (long long)b->s.group, (double)got, exact, tol);
    }
    cr_free(host);
}

/* ---- through the cache ---- */

typedef struct cache {
    const batch *b;
    int64_t max_blocks;
    size_t block; /* bytes */
    cr_mem *blocks, *table, *o;
} cache;

/* Slot 0: BESIDE; slot 1: the sequence. Blocks are in falling order. */
static void cache_open(cache *c, const batch *b)
{
    int64_t max = (b->s.T + CR_KV_BLOCK - 1) / CR_KV_BLOCK;
    int32_t *table = CR_NEW_ARRAY(int32_t, 2 * max);

    *c = (cache){.b = b, .max_blocks = max};
    c->block = cr_kv_block_bytes(dev, CR_BF16, b->s.kv, b->s.D);
    for (int64_t i = 0; i < 2 * max; i++)
        table[i] = (int32_t)(2 * max - 1 - i);
    c->table = words(table, 2 * max);
    OK(cr_device_alloc(dev, (size_t)(2 * max) * c->block, &c->blocks, &err));
    OK(cr_device_alloc(dev, (size_t)num_rows(&b->s) * row_bytes(b, O), &c->o, &err));
    cr_free(table);
}

static void cache_close(cache *c)
{
    cr_device_free(dev, c->table, (size_t)c->max_blocks * 8);
    cr_device_free(dev, c->blocks, (size_t)(2 * c->max_blocks) * c->block);
    cr_device_free(dev, c->o, (size_t)num_rows(&c->b->s) * row_bytes(c->b, O));
}

/* Rows first .. first + num - 1 of the batch, which end one sequence and begin the next one, or are of one; in tiles, or each alone.
 * They have the bytes of packed rows. */
static void take_rows(const cache *c, int64_t first, int64_t num, bool in_tiles)
{
    const batch *b = c->b;
    const sizes *s = &b->s;
    int32_t *slot = CR_NEW_ARRAY(int32_t, num), *pos = CR_NEW_ARRAY(int32_t, num);
    cr_row_tile *tiles = CR_NEW_ARRAY(cr_row_tile, num);
    size_t at = (size_t)first * row_bytes(b, O), num_bytes = (size_t)num * row_bytes(b, O),
           at_k = (size_t)first * row_bytes(b, K);
    char *got = cr_alloc(num_bytes);
    int64_t num_tiles = 0;

    for (int64_t i = 0; i < num; i++) {
        slot[i] = first + i >= BESIDE;
        pos[i] = (int32_t)(first + i - slot[i] * BESIDE);
    }
    if (in_tiles) num_tiles = cr_row_tiles(slot, pos, num, tiles);
    cr_mem *slots = words(slot, num), *places = words(pos, num),
           *of_tiles = num_tiles > 0 ? words(tiles, 2 * num_tiles) : NULL;
    const cr_attention_cached_args a = {.q = cr_mem_add(b->on[Q], at),
                                        .k = cr_mem_add(b->on[K], at_k),
                                        .v = cr_mem_add(b->on[V], at_k),
                                        .o = c->o,
                                        .blocks = c->blocks,
                                        .dtype = CR_BF16,
                                        .row_slot = slots,
                                        .row_pos = places,
                                        .block_table = c->table,
                                        .num_rows = num,
                                        .max_blocks = c->max_blocks,
                                        .num_heads = s->num,
                                        .num_kv_heads = s->kv,
                                        .head_dim = s->D,
                                        .sizes = {s->T, 1, num},
                                        .scale = 1 / sqrtf((float)s->D),
                                        .num_blocks = 2 * c->max_blocks,
                                        .tiles = of_tiles,
                                        .num_tiles = num_tiles,
                                        .num_alone = num_tiles > 0 ? tiles[0].first : 0};
    OK(cr_attention_cached(dev, &a, &err));
    OK(cr_download(dev, got, c->o, num_bytes, &err));
    for (int64_t i = 0; i < num; i++)
        if (memcmp(got + (size_t)i * row_bytes(b, O), b->o + at + (size_t)i * row_bytes(b, O),
                   row_bytes(b, O)) != 0)
            fail_msg(
                "row %lld of T %d, D %lld, group %lld: %s its bytes differ from the packed row's",
                (long long)(first + i - BESIDE), s->T, (long long)s->D, (long long)s->group,
                in_tiles  ? "in tiles"
                : num > 1 ? "in company"
                          : "alone");
    cr_device_free(dev, slots, (size_t)num * 4), cr_device_free(dev, places, (size_t)num * 4);
    if (of_tiles) cr_device_free(dev, of_tiles, (size_t)num_tiles * 8);
    cr_free(slot), cr_free(pos), cr_free(tiles), cr_free(got);
}

static void through_the_cache(const batch *b)
{
    const int64_t edges[] = {0, BESIDE - 1, BESIDE + 130, BESIDE + 1100, BESIDE + 4096};
    const int32_t alone[] = {0, 63, 64, 511, 512, 2048, 4999};
    int64_t all = num_rows(&b->s);
    cache c;

    cache_open(&c, b);
    for (size_t i = 0; i < CR_COUNT(edges); i++) { /* the second has a row alone before its tiles */
        int64_t end = i + 1 < CR_COUNT(edges) && edges[i + 1] < all ? edges[i + 1] : all;
        if (edges[i] < all) take_rows(&c, edges[i], end - edges[i], true);
    }
    for (size_t i = 0; i < CR_COUNT(alone); i++)
        if (alone[i] < b->s.T) take_rows(&c, BESIDE + alone[i], 1, false);
    take_rows(&c, all - 1, 1, false);
    take_rows(&c, all - COMPANY, COMPANY, false);
    cache_close(&c);
}

static void long_sequences(void **state)
{
    size_t i;
    json_t *c;

    (void)state;
    json_array_foreach(json_object_get(goldens, "cases"), i, c)
    {
        sizes s = {.T = (int32_t)whole_number(c, "T"),
                   .D = whole_number(c, "D"),
                   .group = whole_number(c, "group")};
        batch b;
        s.num = is_whole ? HIDDEN / s.D : s.group, s.kv = s.num / s.group;
        s.first_head = HIDDEN / s.D - s.num, s.first_kv = HIDDEN / s.D / s.group - s.kv;
        if (s.T > 300 && !is_whole && !is_all) continue;
        batch_open(&b, &s);
        check_cells(&b, c, "o", O, 0x1p-6), check_cells(&b, c, "lse", LSE, 0);
        check_cells(&b, c, "dq", DQ, 0x1p-5), check_cells(&b, c, "dk", DK, 0x1p-5);
        check_cells(&b, c, "dv", DV, 0x1p-5);
        through_the_cache(&b);
        batch_close(&b);
    }
}

/* [whole | all] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_sequences)};
    int num_failed;

    is_whole = argc > 1 && strcmp(argv[1], "whole") == 0;
    is_all = argc > 1 ? strcmp(argv[1], "all") == 0 : strcmp(cr_device_default(), "cuda") != 0;
    if (cr_json_read_file("tests/parity/attention.json", &goldens, &err) != CR_OK ||
        cr_device_open(cr_device_default(), 1, &dev, &err) != CR_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    num_failed = cmocka_run_group_tests(tests, NULL, NULL);
    cr_device_close(dev);
    json_decref(goldens);
    return num_failed;
}
