/* kernels_log_probs.c -- rows of logits on the device under test (CROLL_DEVICE) against the device cpu: what is drawn from them
 * (cr_draw: processors, filters, numbers), and the head with cr_row_processors, forward and backward. And by bytes on the device
 * alone: rows alone and in company, the log-prob of a draw and that of logits_log_prob with the kept ids, head and
 * logits with processors.
 *
 * Vocabularies of 1, odd, one past a tile of 1024 words, 70,001; 255, 256 and 257 kept ids; equal logits, zeros of both signs, all
 * ids but one banned. Tolerances: float32 sums (2e-5 of a log-prob); an id may be another one only where u is within 2e-6 of
 * the place at which the cpu's id changes. Not covered: that draws follow the distribution (engine_sampling.c).
 */
// also on far
// also on cuda
#include "kernels/attention.h"
#include "tests/both_devices.h"

/* ---- draw ---- */

enum { MAX_WORDS = 1025, MAX_TOP = 7 };

/* What one row gives. */
typedef struct drawn_row {
    cr_drawn d;
    cr_buf kept;
    int32_t top_ids[MAX_TOP];
    float top_log_probs[MAX_TOP];
} drawn_row;

static void draw_rows(cr_device *on, const float *z, int64_t vocab, const cr_draw_row *rows,
                      int64_t num, drawn_row *out)
{
    size_t bytes = (size_t)(num * vocab) * sizeof *z;
    cr_drawn *d = CR_NEW_ARRAY(cr_drawn, num);
    cr_mem *mem;

    OK(cr_device_alloc(on, bytes, &mem, &err));
    OK(cr_upload(on, mem, z, bytes, &err));
    for (int64_t r = 0; r < num; r++) {
        cr_buf_clear(&out[r].kept);
        d[r] = (cr_drawn){.kept = r % 5 == 4 ? NULL : &out[r].kept,
                          .top_ids = out[r].top_ids,
                          .top_log_probs = out[r].top_log_probs};
    }
    OK(cr_draw(on, &(cr_draw_args){mem, num, vocab, rows, d}, &err));
    for (int64_t r = 0; r < num; r++)
        out[r].d = d[r];
    cr_device_free(on, mem, bytes);
    cr_free(d);
}

static void free_rows(drawn_row *rows, int64_t num)
{
    for (int64_t r = 0; r < num; r++)
        cr_buf_free(&rows[r].kept);
}

static int32_t id_at(const float *z, int64_t vocab, cr_draw_row row, float u)
{
    drawn_row out = {0};

    row.u = u;
    draw_rows(cpu, z, vocab, &row, 1, &out);
    free_rows(&out, 1);
    return out.d.id;
}

/* One row of the device against the cpu's. */
static void check_row(const char *what, const float *z, int64_t vocab, const cr_draw_row *row,
                      drawn_row *want, const drawn_row *got)
{
    if (got->d.id != want->d.id) { /* the id on the other side of u? */
        bool is_near = got->d.id == id_at(z, vocab, *row, row->u - 2e-6f) ||
                       got->d.id == id_at(z, vocab, *row, row->u + 2e-6f);
        if (!is_near)
            fail_msg("%s: u %g of %lld words draws %d, the cpu %d", what, (double)row->u,
                     (long long)vocab, got->d.id, want->d.id);
        want->d.log_prob = got->d.log_prob, want->d.rank = got->d.rank;
    }
    if (got->d.id < 0) return;
    if (got->d.num_kept != want->d.num_kept)
        fail_msg("%s: %zu of %lld words are kept, %zu on the cpu", what, got->d.num_kept,
                 (long long)vocab, want->d.num_kept);
    check_near(got->d.log_prob, want->d.log_prob, 2e-5);
    check_near(got->d.log_mass, want->d.log_mass, 1e-5);
    assert_int_equal(got->kept.num_bytes, want->kept.num_bytes);
    if (got->kept.num_bytes)
        assert_memory_equal(got->kept.data, want->kept.data, got->kept.num_bytes);
    if (row->has_rank) assert_int_equal(got->d.rank, want->d.rank);
    for (int64_t i = 0; i < row->num_top; i++) {
        float a = got->top_log_probs[i], b = want->top_log_probs[i];
        assert_int_equal(got->top_ids[i], want->top_ids[i]);
        if (a != b) check_near(a, b, 2e-5);
    }
}

/* Words around ids 3 and 40 repeat, in the prompt and in the response. */
static const int32_t prompt[] = {0, 3, 3, 2, 40}, response[] = {1, 3, 3, 3, 41, 1};
static const float bias[] = {4.5f, -2, 0.25f};
static const int32_t biased[] = {41, 0, 5}, banned[] = {2, 7, 6}, allowed[] = {9, 0, 2, 41, 5, 11};

/* Ways to draw, by number; most use what `vocab` has of the lists. */
enum { NUM_WAYS = 22 };
static cr_draw_row way(int number, int64_t vocab, float u)
{
    cr_draw_row r = {.temperature = 1,
                     .penalty = 1,
                     .top_p = 1,
                     .u = u,
                     .has_rank = number % 2,
                     .num_top = number % 3        ? 0
                                : vocab < MAX_TOP ? vocab
                                                  : 2 + number % 6};
    cr_token_processors *e = &r.processors;
    bool has_words = vocab > 42;

    if (has_words) {
        r.history[0] = prompt, r.num_history[0] = CR_COUNT(prompt);
        r.history[1] = response, r.num_history[1] = CR_COUNT(response);
        e->biased = biased, e->bias = bias, e->banned = banned, e->allowed = allowed;
    }
    if (number % 11 >= 8) r.temperature = 0.7f;
    switch (number % 11) {
    case 1:
        r.top_k = 1;
        break;
    case 2:
        r.top_k = vocab;
        break; /* off */
    case 3:
        r.top_k = 40, r.top_p = 0.8f;
        break;
    case 4:
        r.top_p = 0.9003f; /* no sum of equal words is close to it */
        break;
    case 5:
        r.top_p = 1e-6f;
        break;
    case 6:
        r.min_p = 0.05f;
        break;
    case 7:
        r.top_k = vocab - 1, r.min_p = 1e-3f;
        break;
    case 8:
        r.top_p = 0.9703f, r.min_p = 0.01f, r.is_raw = true;
        break;
    case 9:
        r.temperature = 0, r.top_k = 5;
        break;
    case 10:
        r.top_k = 200, r.top_p = 0.95f;
        break;
    default:
        break;
    }
    if (number < 11 || !has_words) return r;
    if (number % 2) r.penalty = 1.3f;
    if (number % 3 == 0) e->presence = 0.4f;
    if (number % 4 == 0) e->frequency = -0.3f;
    if (number % 5 == 0) e->num_biased = CR_COUNT(biased);
    if (number % 7 == 0) e->num_allowed = CR_COUNT(allowed);
    if (number % 3 == 1) e->num_banned = CR_COUNT(banned);
    return r;
}

/* shape: 0 normal numbers, 1 ties and zeros of both signs, 2 all equal, 3 one far above. */
static void make_logits(float *z, int64_t num, int shape, uint64_t row)
{
    for (int64_t i = 0; i < num; i++) {
        double x = 2.5 * cr_rng_normal(11, CR_RNG_TEST, row, (uint64_t)i);
        z[i] = (float)(shape == 0   ? x
                       : shape == 1 ? round(2 * x) / 2
                       : shape == 2 ? -3
                                    : x + 60 * (i == num / 2));
    }
}

static void draws(void **state)
{
    static const int64_t vocabs[] = {1, 33, 97, MAX_WORDS};
    static float z[NUM_WAYS * MAX_WORDS];
    cr_draw_row rows[NUM_WAYS];
    drawn_row want[NUM_WAYS] = {0}, got[NUM_WAYS] = {0};

    (void)state;
    for (size_t v = 0; v < CR_COUNT(vocabs); v++)
        for (int shape = 0; shape < 4; shape++) {
            int64_t n = vocabs[v];
            if (n > 100 && shape % 3 == 0) continue;
            for (int r = 0; r < NUM_WAYS; r++) {
                float u = r % 6 == 0 ? 0 : r % 6 == 5 ? 0x1.fffffep-1f : (float)(r * 7 % 23) / 23;
                make_logits(z + r * n, n, shape, (uint64_t)r + 100 * v);
                rows[r] = way(r, n, u);
            }
            draw_rows(cpu, z, n, rows, NUM_WAYS, want);
            draw_rows(dev, z, n, rows, NUM_WAYS, got);
            for (int r = 0; r < NUM_WAYS; r++) {
                char what[64];
                snprintf(what, sizeof what, "way %d, logits %d", r, shape);
                check_row(what, z + r * n, n, &rows[r], &want[r], &got[r]);
            }
        }
    free_rows(want, NUM_WAYS), free_rows(got, NUM_WAYS);
}

/* The log-prob of a draw has the bits of logits_log_prob with the same temperature and kept ids. */
static void check_log_prob(const float *z, int64_t n, const cr_draw_row *row, const drawn_row *got)
{
    enum { d = 1 };
    size_t nothing = 0;
    int32_t num = (int32_t)got->d.num_kept;
    int logits = add(FLOATS, CR_F32, n, 0, z), label = ints(&got->d.id, 1),
        first = ints((const int32_t *)(const void *)&nothing, 2), nums = ints(&num, 1),
        ids = ints(num ? (const int32_t *)(const void *)got->kept.data : &num, num ? num : 1);
    bool is_raw = row->is_raw || row->temperature == 0;
    cr_row_processors_mem e = {.temperature = is_raw ? 1 : row->temperature,
                               .penalty = 1,
                               .kept_first = M(first),
                               .kept_num = M(nums),
                               .kept_ids = M(ids)};
    float log_prob;

    OK(cr_logits_log_prob(
        dev, &(cr_logits_log_prob_args){M(logits), 1, n, M(label), &e, &log_prob, NULL}, &err));
    assert_memory_equal(&log_prob, &got->d.log_prob, sizeof log_prob);
    drop_all();
}

/* More words than the pieces and stretches that devices cut a row into: filters, ranks and largest logits over several of them, more
 * kept ids than come with the results; rows alone and in company, by bytes. */
static void many_words(void **state)
{
    enum { N = 70001, ROWS = 6 };
    static const int ways[ROWS] = {0, 4, 3, 7, 8, 21};
    float *z = CR_NEW_ARRAY(float, ROWS *N);
    cr_draw_row rows[ROWS];
    drawn_row want[ROWS] = {0}, got[ROWS] = {0}, one = {0};

    (void)state;
    make_logits(z, (int64_t)ROWS * N, 0, 9);
    for (int r = 0; r < ROWS; r++) {
        rows[r] = way(ways[r], N, 0.71f);
        rows[r].has_rank = true, rows[r].num_top = r % 2 ? 0 : 5;
    }
    draw_rows(cpu, z, N, rows, ROWS, want);
    draw_rows(dev, z, N, rows, ROWS, got);
    for (int r = 0; r < ROWS; r++) {
        check_row("many words", z + r * N, N, &rows[r], &want[r], &got[r]);
        draw_rows(dev, z + r * N, N, &rows[r], 1, &one);
        assert_int_equal(one.d.id, got[r].d.id);
        assert_memory_equal(&one.d.log_prob, &got[r].d.log_prob, 4);
        assert_memory_equal(&one.d.log_mass, &got[r].d.log_mass, 4);
        if (ways[r] < 11) check_log_prob(z + r * N, N, &rows[r], &one);
    }
    free_rows(want, ROWS), free_rows(got, ROWS), free_rows(&one, 1);
    cr_free(z);
}

/* As many kept ids as come with the results of a GPU (256), one less and one more. */
static void kept_with_results(void **state)
{
    enum { N = 9001, ROWS = 3, WITH = 256 };
    static float z[ROWS * N];
    cr_draw_row rows[ROWS];
    drawn_row want[ROWS] = {0}, got[ROWS] = {0};

    (void)state;
    for (int i = 0; i < ROWS * N; i++) /* each logit once a row: all above the place of top_k */
        z[i] = (float)(i * 4099 % N) / 2048;
    for (int r = 0; r < ROWS; r++)
        rows[r] = (cr_draw_row){
            .temperature = 1, .penalty = 1, .top_p = 1, .top_k = WITH - 1 + r, .u = 0.4f};
    draw_rows(cpu, z, N, rows, ROWS, want);
    draw_rows(dev, z, N, rows, ROWS, got);
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(got[r].kept.num_bytes, (WITH - 1 + r) * 4);
        check_row("kept ids", z + r * N, N, &rows[r], &want[r], &got[r]);
        check_log_prob(z + r * N, N, &rows[r], &got[r]);
    }
    free_rows(want, ROWS), free_rows(got, ROWS);
}

/* The whole range of u, with and without filters: so each id at its place. */
static void range_of_u(void **state)
{
    enum { N = 37, ROWS = 150 }; /* more than a launch takes */
    static float z[ROWS * N];
    cr_draw_row rows[ROWS];
    static drawn_row want[ROWS], got[ROWS];

    (void)state;
    make_logits(z, N, 1, 5);
    for (int r = 1; r < ROWS; r++)
        memcpy(z + r * N, z, N * sizeof *z);
    for (int filter = 0; filter < 2; filter++) {
        for (int r = 0; r < ROWS; r++)
            rows[r] = (cr_draw_row){.temperature = 1.5f,
                                    .penalty = 1,
                                    .top_p = filter ? 0.93f : 1,
                                    .u = ((float)r + 0.37f) / ROWS};
        draw_rows(cpu, z, N, rows, ROWS, want);
        draw_rows(dev, z, N, rows, ROWS, got);
        for (int r = 0; r < ROWS; r++)
            check_row(filter ? "top_p" : "no filter", z, N, &rows[r], &want[r], &got[r]);
    }
    free_rows(want, ROWS), free_rows(got, ROWS);
}

/* All ids but one are banned, or one alone is allowed: it is drawn, with all of the mass. */
static void one_is_left(void **state)
{
    enum { N = 1030, LEFT = 1026 };
    static const int32_t one[] = {LEFT};
    static float z[2 * N];
    static int32_t others[N];
    int num = 0;
    cr_draw_row rows[2] = {way(0, N, 0.5f), way(4, N, 0.99f)};
    drawn_row got[2] = {0};

    (void)state;
    make_logits(z, 2 * N, 0, 6);
    for (int32_t i = 0; i < N; i++)
        if (i != LEFT) others[num++] = i;
    rows[0].processors = (cr_token_processors){.banned = others, .num_banned = (size_t)num};
    rows[1].processors = (cr_token_processors){.allowed = one, .num_allowed = 1};
    rows[0].num_top = 2;
    draw_rows(dev, z, N, rows, 2, got);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(got[r].d.id, LEFT);
        check_near(got[r].d.log_prob, 0, 0);
    }
    assert_int_equal(got[0].top_ids[0], LEFT);
    assert_true(got[0].top_log_probs[1] == -INFINITY);
    assert_int_equal(got[1].d.num_kept, 1);
    check_near(got[1].d.log_mass, 0, 0);
    free_rows(got, 2);
}

static void not_finite(void **state)
{
    enum { N = 1100 };
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static float z[N];
    drawn_row got = {0};

    (void)state;
    for (int w = 0; w < 3; w++)
        for (int how = 0; how < 5; how += 4) { /* no filter, top_p */
            cr_draw_row row = way(how, N, 0.3f);
            make_logits(z, N, 0, 7);
            for (int i = 0; i < N; i++)
                if (w == 2 || i == 1050) z[i] = wrong[w];
            draw_rows(dev, z, N, &row, 1, &got);
            assert_true(got.d.id == -1 || !isfinite(got.d.log_prob)); /* an engine refuses both */
            make_logits(z, N, 0, 7);
            z[1050] = -INFINITY; /* a word that cannot be drawn is no error */
            draw_rows(dev, z, N, &row, 1, &got);
            assert_in_range(got.d.id, 0, N - 1);
        }
    free_rows(&got, 1);
}

/* Rows alone and in company, by bytes. */
static void rows_alone(void **state)
{
    enum { N = 1100 };
    static float z[NUM_WAYS * N];
    cr_draw_row rows[NUM_WAYS];
    drawn_row many[NUM_WAYS] = {0}, one = {0};

    (void)state;
    for (int r = 0; r < NUM_WAYS; r++) {
        make_logits(z + r * N, N, r % 2, (uint64_t)r);
        rows[r] = way(r, N, (float)r / NUM_WAYS);
    }
    draw_rows(dev, z, N, rows, NUM_WAYS, many);
    for (int r = 0; r < NUM_WAYS; r++) {
        draw_rows(dev, z + r * N, N, &rows[r], 1, &one);
        assert_int_equal(one.d.id, many[r].d.id);
        assert_memory_equal(&one.d.log_prob, &many[r].d.log_prob, 4);
        assert_memory_equal(&one.d.log_mass, &many[r].d.log_mass, 4);
        assert_int_equal(one.d.num_kept, many[r].d.num_kept);
        if (rows[r].has_rank) assert_int_equal(one.d.rank, many[r].d.rank);
        assert_memory_equal(one.top_ids, many[r].top_ids, (size_t)rows[r].num_top * 4);
        assert_memory_equal(one.top_log_probs, many[r].top_log_probs, (size_t)rows[r].num_top * 4);
        if (r < 11 || rows[r].is_raw || rows[r].temperature == 0)
            check_log_prob(z + r * N, N, &rows[r], &one);
        if (r % 5 == 4) continue;
        assert_int_equal(one.kept.num_bytes, many[r].kept.num_bytes);
        if (one.kept.num_bytes)
            assert_memory_equal(one.kept.data, many[r].kept.data, one.kept.num_bytes);
    }
    free_rows(many, NUM_WAYS), free_rows(&one, 1);
}

/* ---- the head with row processors ---- */

/* Arrays of cr_row_processors on both devices. */
typedef struct processor_arrays {
    int temperatures, kept_first, kept_num, kept_ids, seen_list, seen_until, seen_first, seen_ids,
        seen_place;
} processor_arrays;

/* Rows keep many, every third id from `row % 3`, those of the last tile, or the label alone; two lists of seen ids. */
static processor_arrays make_processors(const int32_t *labels, int64_t R, int64_t V)
{
    processor_arrays e;
    int32_t *kept = CR_NEW_ARRAY(int32_t, R * V), *num = CR_NEW_ARRAY(int32_t, R),
            *list = CR_NEW_ARRAY(int32_t, R), *until = CR_NEW_ARRAY(int32_t, R),
            *seen = CR_NEW_ARRAY(int32_t, V), *place = CR_NEW_ARRAY(int32_t, V);
    float *temperature = CR_NEW_ARRAY(float, R);
    size_t *first = CR_NEW_ARRAY(size_t, R), at = 0, seen_first[3] = {0};

    for (int64_t i = 0; i < R; i++) {
        first[i] = at;
        for (int64_t v = 0; i % 4 && v < V; v++) {
            bool is_kept = i % 4 == 1 ? v % 3 == i % 3 : i % 4 == 2 && v >= (V - 1) / 1024 * 1024;
            if (is_kept || v == labels[i]) kept[at + (size_t)num[i]++] = (int32_t)v;
        }
        at += (size_t)num[i];
        list[i] = i >= R / 4;
        until[i] = (int32_t)(i % 20);
        temperature[i] = 0.5f + 0.25f * (float)(i % 5);
    }
    for (int64_t v = 1; v < V; v += 1 + v % 5) {
        place[seen_first[2]] = (int32_t)(v * 13 % 20);
        seen[seen_first[2]++] = (int32_t)v;
    }
    e = (processor_arrays){add(FLOATS, CR_F32, R, 0, temperature),
                           ints((const int32_t *)(const void *)first, 2 * R),
                           ints(num, R),
                           ints(kept, R * V),
                           ints(list, R),
                           ints(until, R),
                           ints((const int32_t *)(const void *)seen_first, 6),
                           ints(seen, V),
                           ints(place, V)};
    cr_free(kept), cr_free(num), cr_free(list), cr_free(until), cr_free(seen), cr_free(place);
    cr_free(temperature), cr_free(first);
    return e;
}

/* how: bit 0 temperature of each row, bit 1 penalty, bit 2 kept ids. */
static cr_row_processors_mem processors_on(const processor_arrays *e, int how, int d)
{
    cr_row_processors_mem m = {.temperature = 0.8f, .penalty = 1};

    if (how & 1) m.temperatures = M(e->temperatures);
    if (how & 2) {
        m.penalty = 1.3f;
        m.seen_list = M(e->seen_list), m.seen_until = M(e->seen_until);
        m.seen_first = M(e->seen_first), m.seen_ids = M(e->seen_ids);
        m.seen_place = M(e->seen_place);
    }
    if (how & 4) {
        m.kept_first = M(e->kept_first), m.kept_num = M(e->kept_num);
        m.kept_ids = M(e->kept_ids);
    }
    return m;
}

/* head, head_grad; by bytes on the device: logits and logits_log_prob. */
static void check_head(cr_dtype dt, int64_t R, int64_t k, int64_t V, int how)
{
    enum { TOP = 3 };
    double near = 3e-5, grad_near = dt == CR_F32 ? 3e-5 : dt == CR_BF16 ? 0.04 : 0.005;
    int32_t *labels = CR_NEW_ARRAY(int32_t, R);
    float *out = CR_NEW_ARRAY(float, 2 * R), *again = CR_NEW_ARRAY(float, 2 * R);
    processor_arrays e;
    int at, x, w, res, more, dx, dw, z;

    for (int64_t i = 0; i < R; i++)
        labels[i] = (int32_t)(i * 37 % V);
    e = make_processors(labels, R, V);
    at = ints(labels, R), x = floats(dt, R * k, 1, 0), w = floats(dt, V * k, 0.5, 0);
    res = floats(CR_F32, (6 + TOP) * R, 1, near), more = some_ints((1 + TOP) * R, 9);
    dx = floats(dt, R * k, 1, grad_near), dw = floats(CR_F32, V * k, 1, grad_near * 4);
    z = floats(CR_F32, R * V, 1, 1e-4);
    for (int d = 0; d < 2; d++) {
        cr_device *on = d ? dev : cpu;
        cr_weight weight = {M(w), dt, V, k, NULL};
        cr_row_processors_mem m = processors_on(&e, how, d);
        cr_head_args a = {.x = M(x),
                          .w = &weight,
                          .labels = M(at),
                          .num_rows = R,
                          .log_prob = M(res),
                          .entropy = cr_at(CR_F32, M(res), R),
                          .lse = cr_at(CR_F32, M(res), 2 * R),
                          .mean_z = cr_at(CR_F32, M(res), 3 * R),
                          .processors = &m,
                          .rank = M(more),
                          .num_top = TOP,
                          .top_ids = cr_at(CR_F32, M(more), R),
                          .top_log_prob = cr_at(CR_F32, M(res), 6 * R)};
        cr_head_grad_args grad = {a, cr_at(CR_F32, M(res), 4 * R), cr_at(CR_F32, M(res), 5 * R),
                                  M(dx), M(dw)};
        OK(cr_head(on, &a, &err));
        OK(cr_head_grad(on, &grad, &err));
        OK(cr_logits(on, &(cr_logits_args){M(x), &weight, R, M(z)}, &err));
        OK(cr_download(on, out, M(res), (size_t)(2 * R) * 4, &err));
        OK(cr_logits_log_prob(
            on, &(cr_logits_log_prob_args){M(z), R, V, M(at), &m, again, again + R}, &err));
        assert_memory_equal(again, out, (size_t)(2 * R) * 4);
    }
    check("head with processors");
    cr_free(labels), cr_free(out), cr_free(again);
}

static void head_with_processors(void **state)
{
    static const int64_t shape[][3] = {{5, 16, 7}, {66, 8, 33}, {6, 24, 1025}};

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int how = 0; how < 8; how++)
            check_head(how % 3 == 0   ? CR_F32
                       : how % 3 == 1 ? CR_BF16
                                      : CR_F16,
                       shape[s][0], shape[s][1], shape[s][2], how);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws),
        cmocka_unit_test(many_words),
        cmocka_unit_test(kept_with_results),
        cmocka_unit_test(range_of_u),
        cmocka_unit_test(one_is_left),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(rows_alone),
        cmocka_unit_test(head_with_processors),
    };

    return on_both_devices(tests);
}
