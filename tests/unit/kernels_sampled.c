/* kernels_sampled.c -- the head with cr_row_edits: log-probs, entropies and gradients against doubles, in which the
 * derivative by a logit is a difference; and the same bits from whole rows of logits. Vocabularies around the tile of 512
 * words, rows that keep few, all, or the words of one tile only, histories that begin and end anywhere.
 * Runs on every instruction set of the CPU. Not covered: which words a filter keeps (engine_sampling.c).
 */
#include "kernels/attention.h"
#include "tests/arrays.h"
#include "tests/each_cpu.h"
#include "tests/memory.h"

#include <string.h>

typedef struct rows {
    cr_row_edits e;
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
    double most, mass, moment, label;
} sums;

static void results(const sums *s, double y, bool moved_is_label, double *log_prob, double *entropy)
{
    double mass = s->mass + exp(y - s->most), moment = s->moment + y * exp(y - s->most),
           lse = s->most + log(mass);

    *log_prob = (moved_is_label ? y : s->label) - lse;
    *entropy = lse - moment / mass;
}

/* dz[v] of g log_prob + ge entropy by central differences with a step of 1e-5. */
static void one_row(const rows *r, int64_t row, const double *z, double g, double ge,
                    double *log_prob, double *entropy, double *dz)
{
    bool *kept = CR_NEW_ARRAY(bool, r->vocab), *seen = CR_NEW_ARRAY(bool, r->vocab);
    sums all = {.most = -INFINITY};

    for (int64_t v = 0; v < r->vocab; v++) {
        kept[v] = is_kept(r, row, v);
        seen[v] = is_seen(r, row, v);
        if (kept[v]) all.most = fmax(all.most, edited(r, z[v], seen[v]));
    }
    for (int64_t v = 0; v < r->vocab; v++) {
        double y = edited(r, z[v], seen[v]);
        if (!kept[v]) continue;
        all.mass += exp(y - all.most);
        all.moment += y * exp(y - all.most);
        if (v == r->labels[row]) all.label = y;
    }
    for (int64_t v = 0; v < r->vocab; v++) {
        double y = edited(r, z[v], seen[v]), h = 1e-5, up[2], down[2], weight = exp(y - all.most);
        sums rest = {all.most, all.mass - weight, all.moment - y * weight, all.label};
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
    cr_head_grad_args a = {{x.data, &weight, r.labels, R, MEM(out), MEM(out + R), MEM(out + 2 * R),
                            MEM(out + 3 * R), &r.e},
                           MEM(out + 4 * R),
                           MEM(out + 5 * R),
                           dx,
                           MEM(dw)};

    r.e = (cr_row_edits){.temperature = temperature, .penalty = penalty};
    for (int64_t i = 0; i < R; i++) {
        r.labels[i] = (int32_t)(i * 37 % V);
        out[4 * R + i] = (float)(i % 3) - 1;
        out[5 * R + i] = 0.1f * (float)(i % 4);
    }
    if (has_kept) keep_words(&r);
    if (penalty != 1) see_words(&r);
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
    OK(cr_logits_log_prob(
        dev,
        &(cr_logits_log_prob_args){MEM(logits), R, V, r.labels, &r.e, out + 6 * R, out + 7 * R},
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

/* Edits that change nothing leave the bits, and wrong ones are refused. */
static void edges(void **state)
{
    const float logits[3] = {1, 2, -1};
    const int32_t label = 1, num = 0;
    const size_t first = 0;
    cr_row_edits e = {.temperature = 1, .penalty = 1, .kept_first = &first, .kept_num = &num};
    float a[2], b[2];
    cr_err refused = {0};

    (void)state;
    OK(cr_logits_log_prob(
        dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, &label, NULL, &a[0], &a[1]}, &err));
    OK(cr_logits_log_prob(
        dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, &label, &e, &b[0], &b[1]}, &err));
    assert_memory_equal(a, b, sizeof a);
    e.temperature = 0;
    assert_int_equal(
        cr_logits_log_prob(dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, &label, &e, a, NULL},
                           &refused),
        CR_EARG);
    e = (cr_row_edits){.temperature = 1, .penalty = 1.1f};
    refused = (cr_err){0};
    assert_int_equal(
        cr_logits_log_prob(dev, &(cr_logits_log_prob_args){MEM(logits), 1, 3, &label, &e, a, NULL},
                           &refused),
        CR_EARG);
    assert_non_null(strstr(refused.msg, "without their words"));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(head), cmocka_unit_test(edges)};

    return cmocka_run_group_tests(tests, open_device, close_device);
}

int main(void)
{
    return on_each_cpu(run);
}
