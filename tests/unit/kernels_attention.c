/* kernels_attention.c -- attention and its gradient on the device under test (CROLL_DEVICE) against the device cpu, and the
 * gradient of bf16 heads that tensor cores take against float64. By bytes on the device alone: a sequence alone and packed, forward
 * and backward; cached rows and packed rows. Lengths of 1, odd, one past a tile, several tiles; windows; groups of heads; all of a sequence.
 * Not covered: speed.
 */
// also on far
// also on cuda
#include "kernels/attention.h"
#include "tests/both_devices.h"

static const cr_dtype act[] = {CR_F32, CR_BF16, CR_F16};

typedef struct heads {
    int64_t num, kv, dim, window;
    bool is_bidirectional;
    const int32_t *lengths;
} heads;
enum { SEQS = 5, LONGEST = 3 };
/* One past two tiles of keys, so that a window may skip one; and one past a tile, where heads are big or many. With a window of 34 the
 * last row that sees a block of 64 keys is in a tile of its own, with one of 66 the last that sees 128 keys is; with one of 70 some of
 * 16 rows see all of a tile. */
static const int32_t two_tiles[SEQS] = {1, 64, 17, 129, 3}, a_tile[SEQS] = {1, 16, 17, 65, 3},
                     few[SEQS] = {1, 2, 3, 20, 3}, three_tiles[SEQS] = {1, 2, 17, 193, 3};
static const heads layouts[] = {
    {2, 1, 8, 0, false, two_tiles},    {6, 2, 24, 0, false, a_tile},
    {2, 2, 64, 0, false, a_tile},      {3, 1, 128, 0, false, a_tile},
    {2, 1, 200, 0, false, a_tile},     {4, 2, 16, 37, false, two_tiles},
    {2, 2, 40, 70, false, two_tiles},  {2, 2, 24, 0, true, two_tiles},
    {34, 2, 8, 0, false, a_tile},      {66, 1, 64, 0, false, few},
    {2, 1, 128, 34, false, two_tiles}, {1, 1, 64, 0, true, a_tile},
    {1, 1, 64, 70, false, two_tiles},  {1, 1, 64, 66, false, three_tiles}};

/* The last ones are there for the tensor cores of device cuda alone. */
static bool is_tried(size_t layout, cr_dtype dtype, bool is_its_turn)
{
    return dtype == CR_BF16 && layouts[layout].dim % 64 == 0 ? true : layout < 9 && is_its_turn;
}

/* Starts of the sequences. */
static int64_t starts(const heads *h, int32_t *cu)
{
    cu[0] = 0;
    for (size_t s = 0; s < SEQS; s++)
        cu[s + 1] = cu[s] + h->lengths[s];
    return cu[SEQS];
}

/* Arrays of a packed batch. */
typedef struct batch {
    heads h;
    cr_dtype dtype;
    int32_t cu[SEQS + 1];
    int q, k, v, o, lse, seqs, d_o, dq, dk, dv;
} batch;

static void fill(batch *b, const heads *h, cr_dtype dtype)
{
    *b = (batch){.h = *h, .dtype = dtype};
    int64_t T = starts(h, b->cu), q_num = T * h->num * h->dim, k_num = T * h->kv * h->dim;
    b->q = floats(dtype, q_num, 1, 0), b->d_o = floats(dtype, q_num, 1, 0);
    b->k = floats(dtype, k_num, 1, 0), b->v = floats(dtype, k_num, 1, 0);
    b->o = floats(dtype, q_num, 1, 0), b->dq = floats(dtype, q_num, 1, 0);
    b->dk = floats(dtype, k_num, 1, 0), b->dv = floats(dtype, k_num, 1, 0);
    b->lse = floats(CR_F32, T * h->num, 1, 0), b->seqs = ints(b->cu, CR_COUNT(b->cu));
}

/* Of all sequences; d: 0 on the device cpu, 1 on the one under test. */
static cr_attention_args args_of(const batch *b, int d, float scale)
{
    const heads *h = &b->h;

    return (cr_attention_args){M(b->q),
                               M(b->k),
                               M(b->v),
                               M(b->o),
                               M(b->lse),
                               b->dtype,
                               M(b->seqs),
                               SEQS,
                               h->num,
                               h->kv,
                               h->dim,
                               scale,
                               h->window,
                               h->is_bidirectional,
                               {h->lengths[LONGEST], 1, b->cu[SEQS]}};
}

static double near_of(cr_dtype dtype, double f32, double bf16, double f16)
{
    return dtype == CR_F32 ? f32 : dtype == CR_BF16 ? bf16 : f16;
}

static void attention(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++)
        for (int t = 0; t < 3; t++) {
            const heads *h = &layouts[l];
            batch b;
            if (!is_tried(l, act[t], (l + (size_t)t) % 3 == 0)) continue; /* each dtype with some */
            fill(&b, h, act[t]);
            all[b.o].near = near_of(act[t], 2e-6, 0x1p-6, 0x1p-9), all[b.lse].near = 1e-5;
            all[b.dq].near = all[b.dk].near = all[b.dv].near =
                near_of(act[t], 3e-5 * (1 + (double)(h->num / h->kv) / 32), 0.06, 0.008);
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                const cr_attention_args a = args_of(&b, d, 1 / sqrtf((float)h->dim));
                const cr_attention_grad_args g = {a, M(b.d_o), M(b.dq), M(b.dk), M(b.dv)};
                OK(cr_attention(on, &a, &err));
                OK(cr_attention_grad(on, &g, &err));
            }
            check("attention and attention_grad");
        }
}

/* Scores of some hundreds, so that e^x of what one tile of keys has more than another is infinite. */
static void attention_large_scores(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++)
        for (int t = 0; t < 3; t++) {
            batch b;
            if (!is_tried(l, act[t], layouts[l].lengths == two_tiles)) continue;
            fill(&b, &layouts[l], act[t]);
            all[b.o].near = near_of(act[t], 1e-3, 0x1p-6, 0x1p-9), all[b.lse].near = 1e-3;
            for (int d = 0; d < 2; d++) {
                const cr_attention_args a = args_of(&b, d, 100);
                OK(cr_attention(d ? dev : cpu, &a, &err));
            }
            check("attention of large scores");
        }
}

/* ---- backward of attention on the device: bytes, and float64 ---- */

/* Forward and backward of num_seqs sequences, up to `longest` each, the first at row `row`. */
static void back(const batch *b, int seqs, int64_t num_seqs, int64_t row, int64_t num_rows,
                 int64_t longest)
{
    enum { d = 1 };
    const heads *h = &b->h;
    int64_t q = row * h->num * h->dim, k = row * h->kv * h->dim;
    const cr_attention_args a = {.q = cr_at(b->dtype, M(b->q), q),
                                 .k = cr_at(b->dtype, M(b->k), k),
                                 .v = cr_at(b->dtype, M(b->v), k),
                                 .o = cr_at(b->dtype, M(b->o), q),
                                 .lse = cr_at(CR_F32, M(b->lse), row * h->num),
                                 .dtype = b->dtype,
                                 .cu_seqlens = M(seqs),
                                 .num_seqs = num_seqs,
                                 .num_heads = h->num,
                                 .num_kv_heads = h->kv,
                                 .head_dim = h->dim,
                                 .scale = 0.3f,
                                 .window = h->window,
                                 .is_bidirectional = h->is_bidirectional,
                                 .sizes = {longest, 1, num_rows}};
    const cr_attention_grad_args g = {a, cr_at(b->dtype, M(b->d_o), q),
                                      cr_at(b->dtype, M(b->dq), q), cr_at(b->dtype, M(b->dk), k),
                                      cr_at(b->dtype, M(b->dv), k)};

    OK(cr_attention(dev, &a, &err));
    OK(cr_attention_grad(dev, &g, &err));
}

/* By bytes: a sequence alone. */
static void attention_grad_alone(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++)
        for (int t = 0; t < 3; t++) {
            batch b;
            if (!is_tried(l, act[t], (l + (size_t)t) % 3 == 1)) continue;
            fill(&b, &layouts[l], act[t]);
            const int of[] = {b.dq, b.dk, b.dv};
            char *whole[3], *part;
            back(&b, b.seqs, SEQS, 0, b.cu[SEQS], b.h.lengths[LONGEST]);
            for (int i = 0; i < 3; i++) {
                whole[i] = fetched(of[i]);
                OK(cr_zero(dev, all[of[i]].on[1], bytes_of(&all[of[i]]), &err));
            }
            for (int s = 0; s < SEQS; s++) {
                int32_t len = b.cu[s + 1] - b.cu[s];
                back(&b, ints((int32_t[]){0, len}, 2), 1, b.cu[s], len, len);
            }
            for (int i = 0; i < 3; i++) {
                part = fetched(of[i]);
                assert_memory_equal(part, whole[i], bytes_of(&all[of[i]]));
                cr_free(part), cr_free(whole[i]);
            }
            drop_all();
        }
}

/* An array of the device as float64. */
static double *doubles(int array_index)
{
    const array *a = &all[array_index];
    char *raw = fetched(array_index);
    float *f = CR_NEW_ARRAY(float, a->num);
    double *x = CR_NEW_ARRAY(double, a->num);

    cr_cast_host(CR_F32, f, a->dtype, raw, (size_t)a->num);
    for (int64_t i = 0; i < a->num; i++)
        x[i] = (double)f[i];
    cr_free(raw), cr_free(f);
    return x;
}

/* A gradient, and how far it may be off: each term by the rounding of P or dS to bfloat16 and by float32, the sum by its own. */
typedef struct summed {
    double *x, *off;
} summed;

static summed nothing_summed(int64_t num)
{
    return (summed){CR_NEW_ARRAY(double, num), CR_NEW_ARRAY(double, num)};
}

static void add_row(summed *s, int64_t at, const double *row, int64_t D, double factor, double off)
{
    for (int64_t d = 0; d < D; d++) {
        s->x[at + d] += factor * row[d];
        s->off[at + d] += (fabs(factor) * 0x1p-8 + off) * fabs(row[d]);
    }
}

static void compare_sums(const char *what, summed *s, int array_index)
{
    double *got = doubles(array_index);

    for (int64_t i = 0; i < all[array_index].num; i++) {
        double tol = s->off[i] + fabs(s->x[i]) * 0x1p-8 + 1e-6;
        if (!(fabs(got[i] - s->x[i]) <= tol))
            fail_msg("%s: element %lld is %.9g, not %.9g +- %.3g", what, (long long)i, got[i],
                     s->x[i], tol);
    }
    cr_free(got), cr_free(s->x), cr_free(s->off);
}

static double dot_of(const double *x, const double *y, int64_t D)
{
    double sum = 0;

    for (int64_t d = 0; d < D; d++)
        sum += x[d] * y[d];
    return sum;
}

static void attention_grad_in_doubles(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++) {
        const heads h = layouts[l];
        batch b;
        if (h.dim % 64) continue;
        fill(&b, &h, CR_BF16);
        back(&b, b.seqs, SEQS, 0, b.cu[SEQS], h.lengths[LONGEST]);
        double *q = doubles(b.q), *k = doubles(b.k), *v = doubles(b.v), *o = doubles(b.o),
               *d_o = doubles(b.d_o), *lse = doubles(b.lse);
        int64_t D = h.dim, group = h.num / h.kv;
        summed dq = nothing_summed(all[b.dq].num), dk = nothing_summed(all[b.dk].num),
               dv = nothing_summed(all[b.dv].num);
        for (int s = 0; s < SEQS; s++)
            for (int64_t i = b.cu[s]; i < b.cu[s + 1]; i++)
                for (int64_t head = 0; head < h.num; head++) {
                    int64_t row = (i * h.num + head) * D;
                    double delta = dot_of(o + row, d_o + row, D);
                    for (int64_t j = b.cu[s]; j < b.cu[s + 1]; j++) {
                        int64_t key = (j * h.kv + head / group) * D;
                        if (!h.is_bidirectional && (j > i || (h.window && j <= i - h.window)))
                            continue;
                        double p = exp(dot_of(q + row, k + key, D) * 0.3 - lse[i * h.num + head]),
                               dp = dot_of(d_o + row, v + key, D), ds = 0.3 * p * (dp - delta),
                               off = p * (fabs(dp) + fabs(delta)) * 2e-5;
                        add_row(&dv, key, d_o + row, D, p, p * 2e-5);
                        add_row(&dk, key, q + row, D, ds, off);
                        add_row(&dq, row, k + key, D, ds, off);
                    }
                }
        compare_sums("dq", &dq, b.dq), compare_sums("dk", &dk, b.dk);
        compare_sums("dv", &dv, b.dv);
        cr_free(q), cr_free(k), cr_free(v), cr_free(o), cr_free(d_o), cr_free(lse);
        drop_all();
    }
}

/* By bytes on the device: each sequence alone, and its rows through the cache in chunks, in blocks in any order, give what the
 * packed batch gives. */
static void attention_alone_and_cached(void **state)
{
    (void)state;
    for (size_t l = 0; l < CR_COUNT(layouts); l++)
        for (int t = 0; t < 2; t++) {
            const heads h = layouts[l];
            enum { d = 1, MAX_ROWS = 193, BLOCKS = 4 };
            const int32_t len = h.lengths[LONGEST];
            int32_t cu[SEQS + 1], alone[] = {0, len}, slot[MAX_ROWS] = {0}, pos[MAX_ROWS],
                                  table[] = {2, 0, 3, 1};
            int64_t T = starts(&h, cu), first = cu[LONGEST] * h.num * h.dim,
                    first_k = cu[LONGEST] * h.kv * h.dim;
            cr_dtype dt = act[t];
            size_t row = (size_t)(h.num * h.dim) * cr_dtype_bytes(dt),
                   block = cr_kv_block_bytes(dev, dt, h.kv, h.dim);
            if (h.is_bidirectional || !is_tried(l, dt, l % 2 != (size_t)t)) continue;
            for (int i = 0; i < len; i++)
                pos[i] = i;
            int q = floats(dt, T * h.num * h.dim, 1, 0), k = floats(dt, T * h.kv * h.dim, 1, 0),
                v = floats(dt, T * h.kv * h.dim, 1, 0), o = floats(dt, T * h.num * h.dim, 1, 0),
                one = floats(dt, len * h.num * h.dim, 1, 0), seqs = ints(cu, CR_COUNT(cu)),
                lone = ints(alone, 2), slots = ints(slot, len), places = ints(pos, len),
                blocks = ints(table, BLOCKS);
            cr_attention_args a = {M(q),  M(k), M(v),  M(o), NULL,     dt,    M(seqs), SEQS,
                                   h.num, h.kv, h.dim, 0.3f, h.window, false, {len, 1}};
            cr_mem *cache;
            OK(cr_device_alloc(dev, BLOCKS * block, &cache, &err));
            OK(cr_attention(dev, &a, &err));
            char *whole = fetched(o), *part;
            a.q = cr_at(dt, M(q), first), a.k = cr_at(dt, M(k), first_k),
            a.v = cr_at(dt, M(v), first_k);
            a.o = M(one), a.cu_seqlens = M(lone), a.num_seqs = 1;
            OK(cr_attention(dev, &a, &err));
            part = fetched(one);
            assert_memory_equal(part, whole + (size_t)cu[LONGEST] * row, (size_t)len * row);
            cr_free(part);
            OK(cr_zero(dev, M(one), (size_t)len * row, &err));
            for (int64_t done = 0, num; done < len; done += num) {
                num = len - done > 39 ? 45 : len - done > 14 ? 12 : 1;
                cr_attention_cached_args c = {cr_at(dt, M(q), first + done * h.num * h.dim),
                                              cr_at(dt, M(k), first_k + done * h.kv * h.dim),
                                              cr_at(dt, M(v), first_k + done * h.kv * h.dim),
                                              cr_at(dt, M(one), done * h.num * h.dim),
                                              cache,
                                              dt,
                                              M(slots),
                                              cr_mem_add(M(places), (size_t)done * 4),
                                              M(blocks),
                                              num,
                                              BLOCKS,
                                              h.num,
                                              h.kv,
                                              h.dim,
                                              {len, 1},
                                              0.3f,
                                              h.window,
                                              BLOCKS};
                OK(cr_attention_cached(dev, &c, &err));
            }
            part = fetched(one);
            assert_memory_equal(part, whole + (size_t)cu[LONGEST] * row, (size_t)len * row);
            cr_free(part), cr_free(whole);
            cr_device_free(dev, cache, BLOCKS * block);
            drop_all();
        }
}

/* q, k and o of rows whose norms and rotation are a part of the call, or came before it. */
typedef struct in_cache {
    int64_t num, kv, dim;
    cr_dtype dtype;
    int q_in, k_in, v, w_q, w_k, inv, slots, places, blocks, q, k, o;
} in_cache;
enum { CACHED_ROWS = 129, CACHE_BLOCKS = 3 };

static void attend_rows(const in_cache *c, cr_mem *cache, bool is_one_call, int64_t first,
                        int64_t num)
{
    enum { d = 1 };
    int64_t q_at = first * c->num * c->dim, k_at = first * c->kv * c->dim;
    cr_mem *q = cr_at(c->dtype, M(c->q), q_at), *k = cr_at(c->dtype, M(c->k), k_at),
           *places = cr_mem_add(M(c->places), (size_t)first * 4);
    cr_qk_heads_args before = {.q_in = cr_at(c->dtype, M(c->q_in), q_at),
                               .k_in = cr_at(c->dtype, M(c->k_in), k_at),
                               .q = q,
                               .k = k,
                               .q_weight = M(c->w_q),
                               .k_weight = M(c->w_k),
                               .dtype = c->dtype,
                               .positions = places,
                               .inv_freq = M(c->inv),
                               .scaling = 1.0f,
                               .sign = 1,
                               .num_tokens = num,
                               .num_heads = c->num,
                               .num_kv_heads = c->kv,
                               .head_dim = c->dim,
                               .eps = 1e-6f};
    cr_attention_cached_args a = {.q = q,
                                  .k = k,
                                  .v = cr_at(c->dtype, M(c->v), k_at),
                                  .o = cr_at(c->dtype, M(c->o), q_at),
                                  .blocks = cache,
                                  .dtype = c->dtype,
                                  .row_slot = M(c->slots),
                                  .row_pos = places,
                                  .block_table = M(c->blocks),
                                  .num_rows = num,
                                  .max_blocks = CACHE_BLOCKS,
                                  .num_heads = c->num,
                                  .num_kv_heads = c->kv,
                                  .head_dim = c->dim,
                                  .sizes = {CACHED_ROWS, 1},
                                  .scale = 0.3f,
                                  .num_blocks = CACHE_BLOCKS};

    if (is_one_call)
        a.heads = before;
    else
        OK(cr_qk_heads(dev, &before, &err));
    OK(cr_attention_cached(dev, &a, &err));
}

/* By bytes on the device: norms and rotation as a part of the call, and as a call of their own before it. */
static void attention_cached_with_heads(void **state)
{
    static const int64_t dims[] = {8, 24, 64, 128};
    int32_t slot[CACHED_ROWS] = {0}, pos[CACHED_ROWS], table[CACHE_BLOCKS] = {2, 0, 1};

    (void)state;
    for (int i = 0; i < CACHED_ROWS; i++)
        pos[i] = i;
    for (size_t l = 0; l < CR_COUNT(dims); l++)
        for (int t = 0; t < 2; t++) {
            in_cache c = {.num = 4, .kv = 2, .dim = dims[l], .dtype = act[t]};
            int64_t q_num = CACHED_ROWS * c.num * c.dim, k_num = CACHED_ROWS * c.kv * c.dim;
            size_t block = cr_kv_block_bytes(dev, c.dtype, c.kv, c.dim);
            char *got[2][3];
            c.q_in = floats(c.dtype, q_num, 1, 0), c.k_in = floats(c.dtype, k_num, 1, 0);
            c.v = floats(c.dtype, k_num, 1, 0), c.q = floats(c.dtype, q_num, 1, 0);
            c.k = floats(c.dtype, k_num, 1, 0), c.o = floats(c.dtype, q_num, 1, 0);
            c.w_q = floats(c.dtype, c.dim, 1, 0), c.w_k = floats(c.dtype, c.dim, 1, 0);
            c.inv = floats(CR_F32, c.dim / 2, 0.1, 0), c.slots = ints(slot, CACHED_ROWS);
            c.places = ints(pos, CACHED_ROWS), c.blocks = ints(table, CACHE_BLOCKS);
            for (int is_one_call = 0; is_one_call < 2; is_one_call++) {
                cr_mem *cache;
                OK(cr_device_alloc(dev, CACHE_BLOCKS * block, &cache, &err));
                attend_rows(&c, cache, is_one_call, 0, 70);
                attend_rows(&c, cache, is_one_call, 70, CACHED_ROWS - 71);
                attend_rows(&c, cache, is_one_call, CACHED_ROWS - 1, 1);
                got[is_one_call][0] = fetched(c.q), got[is_one_call][1] = fetched(c.k);
                got[is_one_call][2] = fetched(c.o);
                cr_device_free(dev, cache, CACHE_BLOCKS * block);
            }
            for (int i = 0; i < 3; i++) {
                assert_memory_equal(got[0][i], got[1][i],
                                    (size_t)(i == 1 ? k_num : q_num) * cr_dtype_bytes(c.dtype));
                cr_free(got[0][i]), cr_free(got[1][i]);
            }
            drop_all();
        }
}

/* [pattern]: the tests whose names match. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_large_scores),
        cmocka_unit_test(attention_alone_and_cached),
        cmocka_unit_test(attention_cached_with_heads),
        cmocka_unit_test(attention_grad_alone),
        cmocka_unit_test(attention_grad_in_doubles),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return on_both_devices(tests);
}
