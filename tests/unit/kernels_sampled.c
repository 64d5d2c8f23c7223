/* kernels_sampled.c -- the head with cr_row_processors: log-probs, entropies and gradients against doubles, in which the
 * derivative by a logit is a difference; and the same bits from whole rows of logits. Vocabularies around the tile of 512
 * words, rows that keep few, all, or the words of one tile only, histories that begin and end anywhere. The rank, the
 * largest and the chosen ids of a row, with equal logits among them.
 * Runs on every instruction set of the CPU. Not covered: which words a filter keeps (engine_sampling.c).
 */
#include "kernels/attention.h"
#include "tests/arrays.h"
#include "tests/each_cpu.h"
#include "tests/memory.h"

#include <string.h>

typedef struct rows {
    cr_row_processors e;
    int64_t num, vocab;
    int32_t *labels, *kept_num, *kept_ids, *seen_list, *seen_until, *seen_ids, *seen_place;
    size_t *kept_first, seen_first[3];
} rows;

static uint32_t draw(uint64_t n)
{
    uint32_t w[4];

    cr_rng_philox(++salt, CR_RNG_TEST, 7, n, w);
    return w[0];
}

/* Rows keep: all, half, a few, the label alone, the last tile. */
static void keep_words(rows *r)
{
    size_t at = 0;

    r->kept_first = CR_NEW_ARRAY(size_t, r->num);
    r->kept_num = CR_NEW_ARRAY(int32_t, r->num);
    r->kept_ids = CR_NEW_ARRAY(int32_t, r->num * r->vocab);
    for (int64_t i = 0; i < r->num; i++) {
        r->kept_first[i] = at;
        for (int64_t v = 0; i % 5 && v < r->vocab; v++) {
            bool is_kept = i % 5 == 1   ? draw(1) % 2
                           : i % 5 == 2 ? draw(2) % 97 == 0
                           : i % 5 == 4 ? v >= (r->vocab - 1) / 512 * 512
                                        : false;
            if (is_kept || v == r->labels[i])
                r->kept_ids[at + (size_t)r->kept_num[i]++] = (int32_t)v;
        }
        at += (size_t)r->kept_num[i];
    }
    r->e.kept_first = r->kept_first;
    r->e.kept_num = r->kept_num;
    r->e.kept_ids = r->kept_ids;
}

/* Two lists of words, half of the rows each; the first is empty. */
static void see_words(rows *r)
{
    int32_t num = 0;

    r->seen_list = CR_NEW_ARRAY(int32_t, r->num);
    r->seen_until = CR_NEW_ARRAY(int32_t, r->num);
    r->seen_ids = CR_NEW_ARRAY(int32_t, r->vocab);
    r->seen_place = CR_NEW_ARRAY(int32_t, r->vocab);
    for (int64_t v = 0; v < r->vocab; v++) {
        if (draw(3) % 4) continue;
        r->seen_ids[num] = (int32_t)v;
        r->seen_place[num++] = (int32_t)(draw(4) % 20);
    }
    r->seen_first[2] = (size_t)num;
    for (int64_t i = 0; i < r->num; i++) {
        r->seen_list[i] = i >= r->num / 4;
        r->seen_until[i] = (int32_t)(i % 20);
    }
    r->e.seen_list = r->seen_list;
    r->e.seen_until = r->seen_until;
    r->e.seen_first = r->seen_first;
    r->e.seen_ids = r->seen_ids;
    r->e.seen_place = r->seen_place;
}

static void rows_free(rows *r)
{
    void *all[] = {r->labels,    r->kept_num,   r->kept_ids, r->kept_first,
                   r->seen_list, r->seen_until, r->seen_ids, r->seen_place};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_free(all[i]);
}

/* ---- in double ---- */

static bool is_kept(const rows *r, int64_t row, int64_t v)
{
    if (!r->kept_num || r->kept_num[row] == 0) return true;
    for (int32_t k = 0; k < r->kept_num[row]; k++)
        if (r->kept_ids[r->kept_first[row] + (size_t)k] == v) return true;
    return false;
}

static bool is_seen(const rows *r, int64_t row, int64_t v)
{
    if (!r->seen_list || r->seen_list[row] == 0) return false;
    for (size_t k = 0; k < r->seen_first[2]; k++)
        if (r->seen_ids[k] == v) return r->seen_place[k] <= r->seen_until[row];
    return false;
}

/* What a word's logit becomes. */
static double edited(const rows *r, double z, bool seen)
{
    double p = r->e.penalty;

    return (seen ? z < 0 ? z * p : z / p : z) / (double)r->e.temperature;
}

/* Log-prob of the label and entropy: masses of the words but `moved`, whose logit is z. */
typedef struct sums {
    double max, mass, moment, label;
} sums;

static void results(const sums *s, double y, bool moved_is_label, double *log_prob, double *entropy)
{
    double mass = s->mass + exp(y - s->max), moment = s->moment + y * exp(y - s->max),
           lse = s->max + log(mass);

    *log_prob = (moved_is_label ? y : s->label) - lse;
    *entropy = lse - moment / mass;
}

/* dz[v] of g log_prob + ge entropy by central differences with a step of 1e-5. */
static void one_row(const rows *r, int64_t row, const double *z, double g, double ge,
                    double *log_prob, double *entropy, double *dz)
{
    bool *kept = CR_NEW_ARRAY(bool, r->vocab), *seen = CR_NEW_ARRAY(bool, r->vocab);
    sums all = {.max = -INFINITY};

    for (int64_t v = 0; v < r->vocab; v++) {
        kept[v] = is_kept(r, row, v);
        seen[v] = is_seen(r, row, v);
        if (kept[v]) all.max = fmax(all.max, edited(r, z[v], seen[v]));
    }
    for (int64_t v = 0; v < r->vocab; v++) {
        double y = edited(r, z[v], seen[v]);
        if (!kept[v]) continue;
        all.mass += exp(y - all.max);
        all.moment += y * exp(y - all.max);
        if (v == r->labels[row]) all.label = y;
    }
    for (int64_t v = 0; v < r->vocab; v++) {
        double y = edited(r, z[v], seen[v]), h = 1e-5, up[2], down[2], weight = exp(y - all.max);
        sums rest = {all.max, all.mass - weight, all.moment - y * weight, all.label};
        bool is_label = v == r->labels[row];
        dz[v] = 0;
        if (!kept[v]) continue;
        if (is_label) results(&rest, y, true, log_prob, entropy);
        results(&rest, edited(r, z[v] + h, seen[v]), is_label, &up[0], &up[1]);
        results(&rest, edited(r, z[v] - h, seen[v]), is_label, &down[0], &down[1]);
        dz[v] = (g * (up[0] - down[0]) + ge * (up[1] - down[1])) / (2 * h);
    }
    cr_free(kept);
    cr_free(seen);
}

/* ---- the head ---- */

static cr_row_processors_mem processors_mem(const cr_row_processors *e)
{
    return (cr_row_processors_mem){e->temperature,     e->penalty,         MEM(e->temperatures),
                                   MEM(e->kept_first), MEM(e->kept_num),   MEM(e->kept_ids),
                                   MEM(e->seen_list),  MEM(e->seen_until), MEM(e->seen_first),
                                   MEM(e->seen_ids),   MEM(e->seen_place)};
}

static void check_head(cr_dtype dt, int64_t R, int64_t k, int64_t V, float temperature,
                       float penalty, bool has_kept)
{
    rows r = {.num = R, .vocab = V, .labels = CR_NEW_ARRAY(int32_t, R)};
    array x = make(dt, R * k, 1), w = make(dt, V * k, 0.5);
    float *out = CR_NEW_ARRAY(float, 8 * R), *dw = CR_NEW_ARRAY(float, V *k),
          *logits = CR_NEW_ARRAY(float, R *V);
    double *wx = CR_NEW_ARRAY(double, R *k), *ww = CR_NEW_ARRAY(double, V *k),
           *z = CR_NEW_ARRAY(double, V), *dz = CR_NEW_ARRAY(double, V),
           tol = dt == CR_F32 ? 3e-5 : 0.02;
    void *dx = cr_alloc((size_t)(R * k) * 4);
    cr_weight weight = {w.data, dt, V, k, NULL};
    cr_row_processors_mem on_device;
    cr_head_grad_args a = {{x.data, &weight, MEM(r.labels), R, MEM(out), MEM(out + R),
                            MEM(out + 2 * R), MEM(out + 3 * R), &on_device},
                           MEM(out + 4 * R),
                           MEM(out + 5 * R),
                           dx,
                           MEM(dw)};

    r.e = (cr_row_processors){.temperature = temperature, .penalty = penalty};
    for (int64_t i = 0; i < R; i++) {
        r.labels[i] = (int32_t)(i * 37 % V);
        out[4 * R + i] = (float)(i % 3) - 1;
        out[5 * R + i] = 0.1f * (float)(i % 4);
    }
    if (has_kept) keep_words(&r);
    if (penalty != 1) see_words(&r);
    on_device = processors_mem(&r.e);
    OK(cr_head(dev, &a.fwd, &err));
    OK(cr_head_grad(dev, &a, &err));
    for (int64_t i = 0; i < R; i++) {
        double log_prob = NAN, entropy = NAN;
        for (int64_t v = 0; v < V; v++) {
            z[v] = 0;
            for (int64_t c = 0; c < k; c++)
                z[v] += x.x[i * k + c] * w.x[v * k + c];
        }
        one_row(&r, i, z, out[4 * R + i], out[5 * R + i], &log_prob, &entropy, dz);
        check_near(out[i], log_prob, 2e-5 * (1 + fabs(log_prob)));
        check_near(out[R + i], entropy, 2e-5 * (1 + fabs(entropy)));
        for (int64_t v = 0; v < V; v++)
            for (int64_t c = 0; c < k; c++) {
                wx[i * k + c] += dz[v] * w.x[v * k + c];
                ww[v * k + c] += dz[v] * x.x[i * k + c];
            }
    }
    for (int64_t i = 0; i < R * k; i++)
        check_near(get(dx, dt, i), wx[i], tol * (1 + fabs(wx[i])));
    for (int64_t i = 0; i < V * k; i++)
        check_near(dw[i], ww[i], tol * (1 + fabs(ww[i])));
    /* whole rows of logits, as generation has them: the same bits */
    OK(cr_logits(dev, &(cr_logits_args){x.data, &weight, R, MEM(logits)}, &err));
    OK(cr_logits_log_prob(dev,
                          &(cr_logits_log_prob_args){MEM(logits), R, V, MEM(r.labels), &on_device,
                                                     out + 6 * R, out + 7 * R},
                          &err));
    assert_memory_equal(out + 6 * R, out, (size_t)R * 8);
    drop(x), drop(w), rows_free(&r);
    cr_free(out), cr_free(dw), cr_free(logits), cr_free(wx), cr_free(ww), cr_free(z), cr_free(dz),
        cr_free(dx);
}

static void head(void **state)
{
    static const int64_t shape[][3] = {{5, 16, 7}, {21, 24, 512}, {110, 8, 513}, {6, 33, 1300}};
    static const struct {
        float temperature, penalty;
        bool has_kept;
    } how[] = {{1, 1, false}, {0.6f, 1, false}, {1, 1.3f, false}, {1.7f, 0.8f, false},
               {1, 1, true},  {0.6f, 1, true},  {1, 1.1f, true},  {0.6f, 1.1f, true}};

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (size_t h = 0; h < CR_COUNT(how); h++)
            for (int t = 0; t < 3; t++)
                check_head(both[t], shape[s][0], shape[s][1], shape[s][2], how[h].temperature,
                           how[h].penalty, how[h].has_kept);
}

/* ---- rank, the largest logits, chosen ids ---- */

/* A weight with equal rows: words with the same logit. The caller frees it. */
static array with_equal_rows(cr_dtype dt, int64_t V, int64_t k)
{
    int64_t num = V * 2 / 3 + 1;
    size_t row_bytes = (size_t)k * cr_dtype_bytes(dt);
    array some = make(dt, num * k, 0.5), all = make(dt, V * k, 0.5);

    for (int64_t v = 0; v < V; v++) {
        memcpy(HOST(all.data) + (size_t)v * row_bytes,
               HOST(some.data) + (size_t)(v * 7 % num) * row_bytes, row_bytes);
        for (int64_t c = 0; c < k; c++)
            all.x[v * k + c] = some.x[v * 7 % num * k + c];
    }
    drop(some);
    return all;
}

/* Outputs of R rows, device memory of the host. */
typedef struct more {
    int64_t num, num_top, num_chosen;
    int32_t *rank, *top_ids, *chosen_ids;
    float *log_prob, *top, *chosen;
} more;

static more more_create(int64_t num, int64_t num_top, int64_t num_chosen)
{
    int64_t tops = num * num_top + 1, chosen = num * num_chosen + 1;
    more m = {.num = num, .num_top = num_top, .num_chosen = num_chosen};

    m.rank = CR_NEW_ARRAY(int32_t, num);
    m.log_prob = CR_NEW_ARRAY(float, num);
    m.top_ids = CR_NEW_ARRAY(int32_t, tops);
    m.top = CR_NEW_ARRAY(float, tops);
    m.chosen_ids = CR_NEW_ARRAY(int32_t, chosen);
    m.chosen = CR_NEW_ARRAY(float, chosen);
    return m;
}

static void more_free(more *m)
{
    void *all[] = {m->rank, m->top_ids, m->chosen_ids, m->log_prob, m->top, m->chosen};

    for (size_t i = 0; i < CR_COUNT(all); i++)
        cr_free(all[i]);
}

static cr_head_args more_args(const more *m, const cr_mem *x, const cr_weight *w,
                              const int32_t *labels, const cr_row_processors_mem *processors)
{
    return (cr_head_args){.x = x,
                          .w = w,
                          .labels = MEM(labels),
                          .num_rows = m->num,
                          .log_prob = MEM(m->log_prob),
                          .processors = processors,
                          .rank = MEM(m->rank),
                          .num_top = m->num_top,
                          .top_ids = MEM(m->top_ids),
                          .top_log_prob = MEM(m->top),
                          .num_chosen = m->num_chosen,
                          .chosen_ids = MEM(m->chosen_ids),
                          .chosen_log_prob = MEM(m->chosen)};
}

/* z of every word as the kernel has it (single operations: the same bits); -inf: not kept. */
static void process_as_float(const rows *r, int64_t row, float *z)
{
    for (int64_t v = 0; v < r->vocab; v++) {
        if (is_seen(r, row, v)) z[v] = z[v] < 0 ? z[v] * r->e.penalty : z[v] / r->e.penalty;
        z[v] = is_kept(r, row, v) ? z[v] / r->e.temperature : -INFINITY;
    }
}

/* The bits of the plain log-prob of word v in one row. */
static float plain(const array *x, const cr_weight *w, const rows *r, int64_t row, int32_t v)
{
    cr_row_processors e = r->e;
    cr_row_processors_mem on_device;
    float log_prob;

    if (e.kept_first) e.kept_first += row, e.kept_num += row;
    if (e.seen_list) e.seen_list += row, e.seen_until += row;
    on_device = processors_mem(&e);
    OK(cr_head(dev,
               &(cr_head_args){.x = cr_at(x->dtype, x->data, row * w->num_cols),
                               .w = w,
                               .labels = MEM(&v),
                               .num_rows = 1,
                               .log_prob = MEM(&log_prob),
                               .processors = &on_device},
               &err));
    return log_prob;
}

static void check_row(const more *m, const array *x, const array *w, const cr_weight *weight,
                      const rows *r, int64_t row, const float *z, const double *log_prob)
{
    int64_t k = m->num_top, c = m->num_chosen, V = r->vocab;
    const int32_t *ids = m->top_ids + row * k, *chosen = m->chosen_ids + row * c;
    int32_t rank = 1;

    (void)w;
    for (int64_t v = 0; v < V; v++)
        rank += z[v] > z[r->labels[row]];
    assert_int_equal(m->rank[row], rank);
    for (int64_t i = 0; i < k; i++) {
        int64_t num_before = 0; /* words that must come before this one */
        float bits;
        if (ids[i] < 0) {
            assert_true(i > 0 && m->top[row * k + i] == -INFINITY);
            continue;
        }
        for (int64_t v = 0; v < V; v++)
            num_before += z[v] > z[ids[i]] || (z[v] == z[ids[i]] && v < ids[i]);
        assert_int_equal(num_before, i);
        bits = plain(x, weight, r, row, ids[i]);
        assert_memory_equal(&bits, &m->top[row * k + i], sizeof bits);
        check_near(bits, log_prob[ids[i]], 2e-5 * (1 + fabs(log_prob[ids[i]])));
    }
    for (int64_t i = 0; i < c; i++) {
        float bits, got = m->chosen[row * c + i];
        if (chosen[i] < 0 || !is_kept(r, row, chosen[i])) {
            assert_true(got == -INFINITY);
            continue;
        }
        bits = plain(x, weight, r, row, chosen[i]);
        assert_memory_equal(&bits, &got, sizeof bits);
        check_near(got, log_prob[chosen[i]], 2e-5 * (1 + fabs(log_prob[chosen[i]])));
    }
}

/* log softmax of the edited row in double. */
static void in_double(const rows *r, int64_t row, const array *x, const array *w, double *out)
{
    int64_t V = r->vocab, k = w->n / V;
    double max = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++) {
        double z = 0;
        for (int64_t c = 0; c < k; c++)
            z += x->x[row * k + c] * w->x[v * k + c];
        out[v] = is_kept(r, row, v) ? edited(r, z, is_seen(r, row, v)) : -INFINITY;
        max = fmax(max, out[v]);
    }
    for (int64_t v = 0; v < V; v++)
        sum += exp(out[v] - max);
    for (int64_t v = 0; v < V; v++)
        out[v] -= max + log(sum);
}

static void check_more(cr_dtype dt, int64_t R, int64_t k, int64_t V, int64_t num_top, bool is_plain)
{
    rows r = {.num = R, .vocab = V, .labels = CR_NEW_ARRAY(int32_t, R)};
    array x = make(dt, R * k, 1), w = with_equal_rows(dt, V, k);
    cr_weight weight = {w.data, dt, V, k, NULL};
    more m = more_create(R, num_top, 3), again = more_create(1, num_top, 3);
    float *logits = CR_NEW_ARRAY(float, R *V);
    double *log_prob = CR_NEW_ARRAY(double, V);
    cr_row_processors_mem on_device;
    cr_head_args a = more_args(&m, x.data, &weight, r.labels, &on_device), alone;

    r.e = (cr_row_processors){.temperature = is_plain ? 1 : 0.7f, .penalty = is_plain ? 1 : 1.2f};
    for (int64_t i = 0; i < R; i++) {
        r.labels[i] = (int32_t)(i * 37 % V);
        m.chosen_ids[3 * i] = (int32_t)(draw(5) % (uint32_t)V);
        m.chosen_ids[3 * i + 1] = i % 2 ? -1 : r.labels[i];
        m.chosen_ids[3 * i + 2] = (int32_t)(V - 1);
    }
    if (!is_plain) keep_words(&r), see_words(&r);
    on_device = processors_mem(&r.e);
    OK(cr_head(dev, &a, &err));
    OK(cr_logits(dev, &(cr_logits_args){x.data, &weight, R, MEM(logits)}, &err));
    for (int64_t i = 0; i < R; i++) {
        process_as_float(&r, i, logits + i * V);
        in_double(&r, i, &x, &w, log_prob);
        check_row(&m, &x, &w, &weight, &r, i, logits + i * V, log_prob);
    }
    for (int64_t i = 0; i < R && is_plain; i++) { /* alone as in company */
        alone = more_args(&again, cr_at(dt, x.data, i * k), &weight, r.labels + i, NULL);
        memcpy(again.chosen_ids, m.chosen_ids + 3 * i, 3 * sizeof(int32_t));
        OK(cr_head(dev, &alone, &err));
        assert_memory_equal(again.rank, m.rank + i, 4);
        assert_memory_equal(again.log_prob, m.log_prob + i, 4);
        assert_memory_equal(again.top_ids, m.top_ids + i * num_top, (size_t)num_top * 4);
        assert_memory_equal(again.top, m.top + i * num_top, (size_t)num_top * 4);
        assert_memory_equal(again.chosen, m.chosen + 3 * i, 12);
    }
    drop(x), drop(w), rows_free(&r), more_free(&m), more_free(&again);
    cr_free(logits), cr_free(log_prob);
}

static void rank_and_the_largest(void **state)
{
    static const int64_t shape[][4] = {
        {5, 16, 7, 7}, {64, 24, 512, 20}, {11, 33, 1300, 1}, {11, 33, 1300, 600}};

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 3; t++)
            for (int how = 0; how < 2; how++)
                check_more(both[t], shape[s][0], shape[s][1], shape[s][2], shape[s][3], how == 0);
}

/* Edits that change nothing leave the bits, and wrong ones are refused. */
static void edges(void **state)
{
    const float logits[3] = {1, 2, -1};
    const int32_t label = 1, num = 0;
    const size_t first = 0;
    cr_row_processors e = {.temperature = 1, .penalty = 1, .kept_first = &first, .kept_num = &num};
    cr_row_processors_mem m = processors_mem(&e);
    float a[2], b[2];
    cr_err refused = {0};

    (void)state;
    OK(cr_logits_log_prob(
        dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, MEM(&label), NULL, &a[0], &a[1]}, &err));
    OK(cr_logits_log_prob(
        dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, MEM(&label), &m, &b[0], &b[1]}, &err));
    assert_memory_equal(a, b, sizeof a);
    m.temperature = 0;
    assert_int_equal(
        cr_logits_log_prob(
            dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, MEM(&label), &m, a, NULL}, &refused),
        CR_EARG);
    m = (cr_row_processors_mem){.temperature = 1, .penalty = 1.1f};
    refused = (cr_err){0};
    assert_int_equal(
        cr_logits_log_prob(
            dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, MEM(&label), &m, a, NULL}, &refused),
        CR_EARG);
    assert_non_null(strstr(refused.msg, "without their tokens"));
}

static int open_device(void **state)
{
    (void)state;
    return cr_device_open(cr_device_default(), 1, &dev, &err) == CR_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    cr_device_close(dev);
    return 0;
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head), cmocka_unit_test(rank_and_the_largest), cmocka_unit_test(edges)};

    return cmocka_run_group_tests(tests, open_device, close_device);
}

int main(void)
{
    return on_each_cpu(run);
}
