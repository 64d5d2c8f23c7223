/* kernels_reference.c -- every kernel against a plain loop in double, at awkward shapes, fp32 and
 * bf16, and the promise that a row's bits do not depend on its neighbours, on packing, on the cache
 * or on threads. Inputs are rounded to the dtype first, so the tolerance is that of one rounded
 * output plus float32 sums. Runs on every instruction set of the CPU. Not covered: speed.
 */
#include "base/json.h"
#include "kernels/attention.h"
#include "tests/arrays.h"
#include "tests/each_cpu.h"
#include "tests/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every float16 there and back, and rounding to it: to the nearest multiple of the last bit, ties to even. */
static void float16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x10000; i += 16) {
        uint16_t h[16], again[16];
        float f[16];
        for (uint32_t k = 0; k < 16; k++)
            h[k] = (uint16_t)(i + k);
        OK(cr_cast(dev, &(cr_cast_args){CR_F32, MEM(f), CR_F16, MEM(h), 16}, &err));
        OK(cr_cast(dev, &(cr_cast_args){CR_F16, MEM(again), CR_F32, MEM(f), 15},
                   &err)); /* the tail, too */
        for (int k = 0; k < 15; k++) {
            int exponent = h[k] >> 10 & 31, bits = h[k] & 1023;
            double want = exponent ? ldexp(1024 + bits, exponent - 25) : ldexp(bits, -24);
            if (exponent == 31 && bits) {
                assert_true(isnan(f[k]) && (again[k] & 0x7C00) == 0x7C00 && again[k] & 1023);
                continue;
            }
            assert_int_equal(again[k], h[k]);
            if (exponent < 31) assert_true(f[k] == (h[k] >> 15 ? -want : want));
            if (exponent == 31) assert_true(isinf(f[k]) && (f[k] < 0) == h[k] >> 15);
        }
    }
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t w[4];
        int exponent;
        double x, step, want;
        cr_rng_philox(9, CR_RNG_TEST, 0, i, w);
        x = ldexp(1 + (w[0] & ~(w[2] & 1 ? 0xFFF80000u : 0)) * 0x1p-32, (int)(w[1] % 44) - 27);
        x = (float)x;
        frexp(x, &exponent);
        step = ldexp(1, exponent - 11 < -24 ? -24 : exponent - 11);
        want = rint(x / step) * step;
        if (want >= 65520) want = INFINITY;
        assert_true(narrow(CR_F16, -x) == -want);
    }
}

static void linear_and_its_gradient(void **state)
{
    static const int64_t shape[][3] = {{1, 1, 1},     {1, 64, 172},  {7, 33, 65},
                                       {13, 64, 512}, {65, 172, 64}, {200, 31, 96}};

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 2; t++) {
            cr_dtype dt = both[t];
            int64_t m = shape[s][0], k = shape[s][1], n = shape[s][2];
            array x = make(dt, m * k, 1), w = make(dt, n * k, 0.3), b = make(dt, n, 1),
                  add = make(dt, m * n, 1), dy = make(dt, m * n, 1);
            void *y = cr_alloc((size_t)(m * n) * 4), *dx = cr_alloc((size_t)(m * k) * 4);
            float *dw = CR_NEW_ARRAY(float, n *k), *db = CR_NEW_ARRAY(float, n);
            cr_weight weight = {w.data, dt, n, k, NULL};
            cr_linear_args a = {x.data, &weight, b.data, add.data, y, dt, m};
            cr_linear_grad_args g = {x.data, dy.data, &weight, dx, false, MEM(dw), MEM(db), m};
            OK(cr_linear(dev, &a, &err));
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    double sum = b.x[j], size = 0;
                    for (int64_t q = 0; q < k; q++)
                        sum += x.x[i * k + q] * w.x[j * k + q],
                            size += fabs(x.x[i * k + q] * w.x[j * k + q]);
                    check_near(get(y, dt, i * n + j), narrow(dt, sum) + add.x[i * n + j],
                               tolerance(dt, sum, size) + tolerance(dt, sum + add.x[i * n + j], 0));
                }
            for (int64_t i = 0; i < n * k; i++)
                dw[i] = 1;
            g.is_dw_set = s % 2;
            OK(cr_linear_grad(dev, &g, &err));
            for (int64_t i = 0; i < m; i++)
                for (int64_t q = 0; q < k; q++) {
                    double sum = 0, size = 0;
                    for (int64_t j = 0; j < n; j++)
                        sum += dy.x[i * n + j] * w.x[j * k + q],
                            size += fabs(dy.x[i * n + j] * w.x[j * k + q]);
                    check_near(get(dx, dt, i * k + q), sum, tolerance(dt, sum, size));
                }
            for (int64_t j = 0; j < n; j++) {
                double bias = 0;
                for (int64_t i = 0; i < m; i++)
                    bias += dy.x[i * n + j];
                check_near(db[j], bias, 1e-5 * (double)m);
                for (int64_t q = 0; q < k; q++) {
                    double sum = g.is_dw_set ? 0 : 1, size = 0;
                    for (int64_t i = 0; i < m; i++)
                        sum += dy.x[i * n + j] * x.x[i * k + q],
                            size += fabs(dy.x[i * n + j] * x.x[i * k + q]);
                    check_near(dw[j * k + q], sum, tolerance(CR_F32, sum, size));
                }
            }
            drop(x), drop(w), drop(b), drop(add), drop(dy);
            cr_free(y), cr_free(dx), cr_free(dw), cr_free(db);
        }
}

static void products_of_any_batch(int64_t M, int64_t K, int64_t N)
{
    for (int t = 0; t < 3; t++) {
        cr_dtype dt = both[t];
        size_t bytes = cr_dtype_bytes(dt);
        array x = make(dt, M * K, 1), w = make(dt, N * K, 0.3);
        char *whole = cr_alloc((size_t)(M * N) * 4), *part = cr_alloc((size_t)(M * N) * 4);
        cr_weight weight = {w.data, dt, N, K, NULL}, packed = weight;
        cr_linear_args a = {x.data, &weight, NULL, NULL, MEM(whole), dt, M};
        void *panels = cr_alloc(cr_weight_packed_bytes(dev, &weight));
        OK(cr_linear(dev, &a, &err));
        OK(cr_weight_pack(dev, &(cr_weight_pack_args){&weight, panels}, &err));
        packed.packed = panels;
        for (int64_t step = 1; step <= M; step = step * 2 + 1)
            for (int p = 0; p < 2; p++) {
                memset(part, 0xEE, (size_t)(M * N) * 4);
                for (int64_t i = 0; i < M; i += step) {
                    cr_linear_args b = {MEM((char *)x.data + (size_t)(i * K) * bytes),
                                        p ? &packed : &weight,
                                        NULL,
                                        NULL,
                                        MEM(part + (size_t)(i * N) * bytes),
                                        dt,
                                        M - i < step ? M - i : step};
                    OK(cr_linear(dev, &b, &err));
                }
                assert_memory_equal(part, whole, (size_t)(M * N) * bytes);
            }
        drop(x), drop(w);
        cr_free(whole), cr_free(part), cr_free(panels);
    }
}

static void products_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    products_of_any_batch(130, 96, 200);
    products_of_any_batch(67, 83, 49);
    products_of_any_batch(67, 4161, 49); /* sums that are cut where W is not packed */
}

/* dx = dy W has the bits of y = x W^T with dy for x and W^T, packed, for W. */
static void a_gradient_is_a_product(void **state)
{
    enum { M = 35, N = 4161, K = 49 };

    (void)state;
    for (int t = 0; t < 3; t++) {
        cr_dtype dt = both[t];
        size_t bytes = cr_dtype_bytes(dt), num_bytes = (size_t)(M * K) * bytes;
        array dy = make(dt, M * N, 1), w = make(dt, N * K, 0.3), turned = make(dt, N * K, 1);
        char *dx = cr_alloc(num_bytes), *y = cr_alloc(num_bytes);
        cr_weight weight = {w.data, dt, N, K, NULL}, other = {turned.data, dt, K, N, NULL};
        cr_linear_grad_args g = {.dy = dy.data, .w = &weight, .dx = MEM(dx), .num_rows = M};
        cr_linear_args a = {.x = dy.data, .w = &other, .y = MEM(y), .out_dtype = dt, .num_rows = M};
        void *panels = cr_alloc(cr_weight_packed_bytes(dev, &other));
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < K; j++)
                memcpy((char *)turned.data + (j * N + i) * bytes,
                       (const char *)w.data + (i * K + j) * bytes, bytes);
        OK(cr_weight_pack(dev, &(cr_weight_pack_args){&other, panels}, &err));
        other.packed = panels;
        OK(cr_linear(dev, &a, &err));
        OK(cr_linear_grad(dev, &g, &err));
        assert_memory_equal(dx, y, num_bytes);
        drop(dy), drop(w), drop(turned);
        cr_free(dx), cr_free(y), cr_free(panels);
    }
}

/* M, K, N of no whole tile. */
static const int64_t odd[][3] = {{1, 1, 1},    {2, 31, 33},  {15, 33, 17}, {17, 63, 65},
                                 {31, 64, 47}, {33, 95, 31}, {47, 97, 64}, {49, 32, 1}};

/* Products of dtype dt: y, dx, and dw added to 0. */
static void all_products(cr_dtype dt, int64_t m, int64_t n, int64_t k, const void *x, const void *w,
                         const void *dy, void *out[3])
{
    cr_weight weight = {w, dt, n, k, NULL};
    cr_linear_args a = {x, &weight, NULL, NULL, out[0], dt, m};
    cr_linear_grad_args g = {x, dy, &weight, out[1], false, out[2], NULL, m};

    memset(out[2], 0, (size_t)(n * k) * 4);
    OK(cr_linear(dev, &a, &err));
    OK(cr_linear_grad(dev, &g, &err));
}

/* Leaves NaN in the scratch of panels. */
static void spoil_scratch(cr_dtype dt)
{
    enum { N = 1024, K = 1024 };
    void *no = cr_alloc(N * K * 4), *y = cr_alloc(N * 4);
    cr_weight weight = {no, dt, N, K, NULL};
    cr_linear_args a = {no, &weight, NULL, NULL, y, dt, 1};

    memset(no, 0xFF, N * K * 4); /* in each dtype */
    OK(cr_linear(dev, &a, &err));
    cr_free(no), cr_free(y);
}

/* What an earlier product of no numbers left in the scratch is in no sum. */
static void products_start_from_nothing(void **state)
{
    enum { BIG = 130 };

    (void)state;
    for (size_t s = 0; s < CR_COUNT(odd); s++)
        for (int t = 0; t < 3; t++) {
            int64_t m = odd[s][0], k = odd[s][1], n = odd[s][2], size[] = {m * n, m * k, n * k};
            cr_dtype dt = both[t];
            array x = make(dt, m * k, 1), w = make(dt, n * k, 0.3), dy = make(dt, m * n, 1);
            void *no = cr_alloc(BIG * BIG * 4), *out[3][3];
            for (int i = 0; i < 9; i++)
                out[i / 3][i % 3] = cr_alloc(BIG * BIG * 4);
            all_products(dt, m, n, k, x.data, w.data, dy.data, out[0]);
            memset(no, 0xFF, BIG * BIG * 4); /* NaN in each dtype */
            all_products(dt, BIG, BIG, BIG, no, no, no, out[2]);
            assert_true(isnan(get(out[2][0], dt, BIG * BIG - 1)));
            all_products(dt, m, n, k, x.data, w.data, dy.data, out[1]);
            for (int i = 0; i < 3; i++)
                assert_memory_equal(out[0][i], out[1][i],
                                    (size_t)size[i] * (i < 2 ? cr_dtype_bytes(dt) : 4));
            drop(x), drop(w), drop(dy);
            cr_free(no);
            for (int i = 0; i < 9; i++)
                cr_free(out[i / 3][i % 3]);
        }
}

/* A row of infinity, NaN or -0 stays in its row: the others have their bits; infinity times numbers other than 0
 * is infinity, also where k is filled up to a whole tile; sums of -0 are 0. */
static void rows_with_no_numbers_stay_alone(void **state)
{
    static const double special[] = {INFINITY, NAN, -0.0};

    (void)state;
    for (size_t s = 1; s < CR_COUNT(odd); s++)
        for (int t = 0; t < 3; t++)
            for (size_t v = 0; v < CR_COUNT(special); v++) {
                int64_t m = odd[s][0], k = odd[s][1], n = odd[s][2], row = m / 2;
                cr_dtype dt = both[t];
                size_t bytes = cr_dtype_bytes(dt), at = (size_t)(row * n) * bytes;
                array x = make(dt, m * k, 1), w = make(dt, n * k, 0.3);
                char *plain = cr_alloc((size_t)(m * n) * 4), *y = cr_alloc((size_t)(m * n) * 4);
                cr_weight weight = {w.data, dt, n, k, NULL};
                cr_linear_args a = {x.data, &weight, NULL, NULL, MEM(plain), dt, m};
                float value = (float)special[v];
                OK(cr_linear(dev, &a, &err));
                for (int64_t i = row * k; i < (row + 1) * k; i++)
                    if (v == 2 || i == row * k)
                        OK(cr_cast(dev,
                                   &(cr_cast_args){dt, MEM((char *)x.data + (size_t)i * bytes),
                                                   CR_F32, MEM(&value), 1},
                                   &err));
                a.y = MEM(y);
                OK(cr_linear(dev, &a, &err));
                assert_memory_equal(plain, y, at);
                assert_memory_equal(plain + at + (size_t)n * bytes, y + at + (size_t)n * bytes,
                                    (size_t)((m - row - 1) * n) * bytes);
                for (int64_t j = 0; j < n; j++) {
                    double z = get(MEM(y), dt, row * n + j), first = w.x[j * k];
                    if (v == 0) assert_true(isinf(z) && (z > 0) == (first > 0));
                    if (v == 1) assert_true(isnan(z));
                    if (v == 2) assert_true(z == 0);
                }
                drop(x), drop(w);
                cr_free(plain), cr_free(y);
            }
}

/* A weight that is not a number spoils its column of y and none beside it. */
static void weights_with_no_numbers_stay_alone(void **state)
{
    (void)state;
    for (size_t s = 1; s < CR_COUNT(odd); s++)
        for (int t = 0; t < 3; t++) {
            int64_t m = odd[s][0], k = odd[s][1], n = odd[s][2], col = n / 2;
            cr_dtype dt = both[t];
            size_t bytes = cr_dtype_bytes(dt);
            array x = make(dt, m * k, 1), w = make(dt, n * k, 0.3);
            char *plain = cr_alloc((size_t)(m * n) * 4), *y = cr_alloc((size_t)(m * n) * 4);
            cr_weight weight = {w.data, dt, n, k, NULL};
            cr_linear_args a = {x.data, &weight, NULL, NULL, MEM(plain), dt, m};
            OK(cr_linear(dev, &a, &err));
            memset(HOST(w.data) + (size_t)(col * k) * bytes, 0xFF, (size_t)k * bytes);
            a.y = MEM(y);
            OK(cr_linear(dev, &a, &err));
            for (int64_t i = 0; i < m * n; i++)
                if (i % n == col)
                    assert_true(isnan(get(MEM(y), dt, i)));
                else
                    assert_memory_equal(plain + (size_t)i * bytes, y + (size_t)i * bytes, bytes);
            drop(x), drop(w);
            cr_free(plain), cr_free(y);
        }
}

static void norms_rope_swiglu(void **state)
{
    static const int64_t cols[] = {1, 8, 16, 33, 576};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (int t = 0; t < 2; t++) {
            cr_dtype dt = both[t];
            int64_t m = 5, n = cols[c];
            float offset = (float)(c % 2); /* then the result is added to dy, too */
            array x = make(dt, m * n, 2), w = make(dt, n, 1), dy = make(dt, m * n, 1);
            void *y = cr_alloc((size_t)(m * n) * 4), *dx = cr_alloc((size_t)(m * n) * 4);
            float rstd[5], *dw = CR_NEW_ARRAY(float, n);
            cr_rmsnorm_args a = {x.data, w.data, y,     MEM(rstd), dt,
                                 m,      n,      1e-5f, offset,    offset > 0 ? dy.data : NULL};
            cr_rmsnorm_grad_args g = {x.data, w.data, dy.data, MEM(rstd), dx,    MEM(dw),
                                      false,  dt,     m,       n,         offset};
            OK(cr_rmsnorm(dev, &a, &err));
            OK(cr_rmsnorm_grad(dev, &g, &err));
            for (int64_t i = 0; i < m; i++) {
                double s = 0, dot = 0, r;
                for (int64_t j = 0; j < n; j++)
                    s += x.x[i * n + j] * x.x[i * n + j];
                r = 1 / sqrt(s / (double)n + 1e-5f);
                check_near(rstd[i], r, 1e-5 * r);
                for (int64_t j = 0; j < n; j++)
                    dot += dy.x[i * n + j] * (offset + w.x[j]) * x.x[i * n + j];
                for (int64_t j = 0; j < n; j++) {
                    double v = x.x[i * n + j], weight = offset + w.x[j], normed = v * r * weight,
                           want = normed + (double)offset * dy.x[i * n + j],
                           d = r * (dy.x[i * n + j] * weight - v * r * r * dot / (double)n);
                    check_near(get(y, dt, i * n + j), want,
                               tolerance(dt, want, 1) + tolerance(dt, normed, 1));
                    check_near(get(dx, dt, i * n + j), d, tolerance(dt, d, 10 * r));
                }
            }
            for (int64_t j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < m; i++)
                    sum += dy.x[i * n + j] * (offset > 0 ? x.x[i * n + j] * rstd[i]
                                                         : narrow(dt, x.x[i * n + j] * rstd[i])),
                        size += fabs(dy.x[i * n + j] * x.x[i * n + j] * rstd[i]);
                check_near(dw[j], sum,
                           tolerance(CR_F32, sum, size) + (dt != CR_F32 ? size * 0x1p-7 : 0));
            }
            OK(cr_swiglu(dev, &(cr_swiglu_args){dt, x.data, dy.data, y, (size_t)(m * n)}, &err));
            for (int64_t i = 0; i < m * n; i++) {
                double want = x.x[i] / (1 + exp(-x.x[i])) * dy.x[i];
                check_near(get(y, dt, i), want, 2 * tolerance(dt, want, 1));
            }
            void *du = cr_alloc((size_t)(m * n) * 4), *h = cr_alloc((size_t)(m * n) * 4);
            array dh = make(dt, m * n, 1);
            OK(cr_swiglu_grad(
                dev,
                &(cr_swiglu_grad_args){dt, x.data, dy.data, dh.data, dx, du, h, (size_t)(m * n)},
                &err));
            for (int64_t i = 0; i < m * n; i++) {
                double s = 1 / (1 + exp(-x.x[i])),
                       da = dh.x[i] * dy.x[i] * s * (1 + x.x[i] * (1 - s)),
                       dup = dh.x[i] * x.x[i] * s;
                check_near(get(dx, dt, i), da, tolerance(dt, da, 1));
                check_near(get(du, dt, i), dup, tolerance(dt, dup, 1));
                assert_true(get(h, dt, i) == get(y, dt, i)); /* the forward's bits */
            }
            drop(x), drop(w), drop(dy), drop(dh);
            cr_free(y), cr_free(dx), cr_free(dw), cr_free(du), cr_free(h);
        }
}

static void rope_of_heads(int64_t H, int64_t D)
{
    enum { T = 4 };
    const int32_t pos[T] = {0, 3, 700, 1500};
    float freq[12];

    for (int i = 0; i < D / 2; i++)
        freq[i] = powf(10000.0f, -2.0f * (float)i / (float)D);
    for (int t = 0; t < 2; t++) {
        array x = make(both[t], T * H * D, 1);
        cr_rope_args a = {x.data, both[t], MEM(pos), MEM(freq), 1.5f, 1, T, H, D};
        OK(cr_rope(dev, &a, &err));
        for (int64_t i = 0; i < T * H; i++)
            for (int64_t d = 0; d < D / 2; d++) {
                float angle = (float)pos[i / H] * freq[d];
                double c = 1.5 * cos(angle), s = 1.5 * sin(angle), u = x.x[i * D + d],
                       v = x.x[i * D + D / 2 + d];
                check_near(get(x.data, both[t], i * D + d), u * c - v * s,
                           tolerance(both[t], u * c - v * s, 3));
                check_near(get(x.data, both[t], i * D + D / 2 + d), v * c + u * s,
                           tolerance(both[t], v * c + u * s, 3));
            }
        a.sign = -1; /* times 1.5^2 */
        OK(cr_rope(dev, &a, &err));
        for (int64_t i = 0; i < x.n; i++)
            check_near(get(x.data, both[t], i), 2.25 * x.x[i], both[t] != CR_F32 ? 0.06 : 1e-5);
        drop(x);
    }
}

static void rope_turns_and_turns_back(void **state)
{
    (void)state;
    rope_of_heads(3, 24);
    rope_of_heads(6, 8); /* short heads side by side */
    rope_of_heads(3, 16);
    rope_of_heads(3, 8);
}

/* Softmax attention of row i of one sequence and head in double; p gets the probabilities. */
static void reference_row(const array *q, const array *k, const array *v, int64_t first, int64_t i,
                          int64_t h, int64_t H, int64_t K, int64_t D, int64_t window, double *p,
                          double *o)
{
    int64_t kv = h / (H / K), from = window && i + 1 > window ? i + 1 - window : 0;
    double max = -INFINITY, sum = 0;

    for (int64_t j = from; j <= i; j++) {
        double s = 0;
        for (int64_t d = 0; d < D; d++)
            s += q->x[((first + i) * H + h) * D + d] * k->x[((first + j) * K + kv) * D + d];
        p[j] = s / sqrt((double)D);
        max = fmax(max, p[j]);
    }
    for (int64_t j = from; j <= i; j++)
        sum += p[j] = exp(p[j] - max);
    for (int64_t d = 0; d < D; d++)
        o[d] = 0;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = j < from ? 0 : p[j] / sum;
        for (int64_t d = 0; d < D; d++)
            o[d] += p[j] * v->x[((first + j) * K + kv) * D + d];
    }
}

static void attention_and_its_gradient(void **state)
{
    static const int64_t heads[][3] = {{8, 4, 8},  {3, 3, 12}, {5, 1, 16},
                                       {4, 1, 24}, {2, 2, 64}, {6, 2, 80}}; /* H, K, D */
    const int32_t cu[] = {0, 1, 66, 195, 260};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(heads); c++)
        for (int mode = 0; mode < 4; mode++) {
            cr_dtype dt = mode == 1 ? CR_BF16 : mode == 3 ? CR_F16 : CR_F32;
            int64_t H = heads[c][0], K = heads[c][1], D = heads[c][2], T = cu[4],
                    window = mode == 2 ? 40 : 0;
            array q = make(dt, T * H * D, 1), k = make(dt, T * K * D, 1),
                  v = make(dt, T * K * D, 1), g = make(dt, T * H * D, 1);
            void *o = cr_alloc((size_t)(T * H * D) * 4), *dq = cr_alloc((size_t)(T * H * D) * 4),
                 *dk = cr_alloc((size_t)(T * K * D) * 4), *dv = cr_alloc((size_t)(T * K * D) * 4);
            double *wq = CR_NEW_ARRAY(double, T *H *D), *wk = CR_NEW_ARRAY(double, T *K *D),
                   *wv = CR_NEW_ARRAY(double, T *K *D);
            float *lse = CR_NEW_ARRAY(float, T *H);
            cr_attention_grad_args a = {{q.data, k.data, v.data, o, MEM(lse), dt, MEM(cu), 4, H, K,
                                         D, (float)(1 / sqrt((double)D)), window},
                                        g.data,
                                        dq,
                                        dk,
                                        dv};
            a.fwd.sizes = (cr_seq_sizes){.max_seqlen = 129, .num_rows = T};
            OK(cr_attention(dev, &a.fwd, &err));
            for (int s = 0; s < 4; s++)
                for (int64_t i = 0; i < cu[s + 1] - cu[s]; i++)
                    for (int64_t h = 0; h < H; h++) {
                        double p[200], want[128], delta = 0;
                        int64_t at = ((cu[s] + i) * H + h) * D, kv = h / (H / K);
                        reference_row(&q, &k, &v, cu[s], i, h, H, K, D, window, p, want);
                        for (int64_t d = 0; d < D; d++) {
                            check_near(get(o, dt, at + d), want[d], tolerance(dt, want[d], 3));
                            delta += g.x[at + d] * want[d];
                        }
                        for (int64_t j = 0; j <= i; j++) {
                            double dp = 0, ds;
                            int64_t ka = ((cu[s] + j) * K + kv) * D;
                            for (int64_t d = 0; d < D; d++)
                                dp += g.x[at + d] * v.x[ka + d];
                            ds = p[j] * (dp - delta) / sqrt((double)D);
                            for (int64_t d = 0; d < D; d++) {
                                wv[ka + d] += p[j] * g.x[at + d];
                                wk[ka + d] += ds * q.x[at + d];
                                wq[at + d] += ds * k.x[ka + d];
                            }
                        }
                    }
            spoil_scratch(dt);
            OK(cr_attention_grad(dev, &a, &err));
            double slack = dt != CR_F32 ? 0.03 : 2e-5; /* bf16: delta comes from the rounded o */
            for (int64_t i = 0; i < T * H * D; i++)
                check_near(get(dq, dt, i), wq[i], slack * (1 + fabs(wq[i])));
            for (int64_t i = 0; i < T * K * D; i++) {
                check_near(get(dk, dt, i), wk[i], slack * (1 + fabs(wk[i])));
                check_near(get(dv, dt, i), wv[i], slack * (1 + fabs(wv[i])));
            }
            drop(q), drop(k), drop(v), drop(g);
            cr_free(o), cr_free(dq), cr_free(dk), cr_free(dv), cr_free(wq), cr_free(wk),
                cr_free(wv), cr_free(lse);
        }
}

/* One prompt of 70 positions, shared by two slots (block 0 shared, block 1 copied), decoded one row
 * at a time beside each other: the bits of a packed forward of each whole sequence. */
static void cache_against_packed(int64_t H, int64_t K, int64_t D, int64_t window)
{
    enum { PROMPT = 70, LEN = 140 };

    for (int t = 0; t < 2; t++) {
        cr_dtype dt = both[t];
        size_t bytes = cr_dtype_bytes(dt), qrow = (size_t)(H * D) * bytes,
               krow = (size_t)(K * D) * bytes, block = cr_kv_block_bytes(dev, dt, K, D);
        array q = make(dt, 2 * LEN * H * D, 1), k = make(dt, 2 * LEN * K * D, 1),
              v = make(dt, 2 * LEN * K * D, 1);
        char *whole = cr_alloc(2 * LEN * qrow), *step = cr_alloc(2 * LEN * qrow),
             *blocks = cr_alloc(8 * block);
        const int32_t cu[] = {0, LEN, 2 * LEN}, table[] = {0, 1, 2, 0, 3, 4};
        int32_t slots[PROMPT], pos[PROMPT];
        cr_attention_args a = {q.data, k.data, v.data, MEM(whole), NULL, dt,    MEM(cu),
                               2,      H,      K,      D,          0.2f, window};
        cr_attention_cached_args c = {.blocks = MEM(blocks),
                                      .dtype = dt,
                                      .row_slot = MEM(slots),
                                      .row_pos = MEM(pos),
                                      .block_table = MEM(table),
                                      .max_blocks = 3,
                                      .num_heads = H,
                                      .num_kv_heads = K,
                                      .head_dim = D,
                                      .scale = 0.2f,
                                      .window = window,
                                      .num_blocks = 8};
        memset(blocks, 0xFF, 8 * block); /* NaN */
        /* both sequences have the same prompt */
        memcpy(HOST(q.data) + LEN * qrow, HOST(q.data), PROMPT * qrow);
        memcpy(HOST(k.data) + LEN * krow, HOST(k.data), PROMPT * krow);
        memcpy(HOST(v.data) + LEN * krow, HOST(v.data), PROMPT * krow);
        a.sizes.max_seqlen = LEN;
        OK(cr_attention(dev, &a, &err));
        for (int i = 0; i < PROMPT; i++)
            slots[i] = 0, pos[i] = i;
        for (int done = 0; done < PROMPT; done += 30) { /* the prompt in chunks */
            c.num_rows = PROMPT - done < 30 ? PROMPT - done : 30;
            c.row_pos = MEM(pos + done);
            c.sizes.max_seqlen = done + c.num_rows;
            c.q = MEM(HOST(q.data) + (size_t)done * qrow),
            c.k = MEM(HOST(k.data) + (size_t)done * krow),
            c.v = MEM(HOST(v.data) + (size_t)done * krow), c.o = MEM(step + (size_t)done * qrow);
            OK(cr_attention_cached(dev, &c, &err));
        }
        assert_memory_equal(step, whole, PROMPT * qrow);
        OK(cr_copy(dev, MEM(blocks + 3 * block), MEM(blocks + 1 * block), block, &err));
        c.row_pos = MEM(pos);
        for (int i = PROMPT; i < LEN; i++) {
            char *rq = cr_alloc(2 * qrow), *rk = cr_alloc(2 * krow), *rv = cr_alloc(2 * krow),
                 *ro = cr_alloc(2 * qrow);
            for (int s = 0; s < 2; s++) {
                slots[s] = s, pos[s] = i;
                memcpy(rq + (size_t)s * qrow, HOST(q.data) + (size_t)(s * LEN + i) * qrow, qrow);
                memcpy(rk + (size_t)s * krow, HOST(k.data) + (size_t)(s * LEN + i) * krow, krow);
                memcpy(rv + (size_t)s * krow, HOST(v.data) + (size_t)(s * LEN + i) * krow, krow);
            }
            c.q = MEM(rq), c.k = MEM(rk), c.v = MEM(rv), c.o = MEM(ro), c.num_rows = 2;
            c.sizes.max_seqlen = i + 1;
            OK(cr_attention_cached(dev, &c, &err));
            for (int s = 0; s < 2; s++)
                assert_memory_equal(ro + (size_t)s * qrow, whole + (size_t)(s * LEN + i) * qrow,
                                    qrow);
            cr_free(rq), cr_free(rk), cr_free(rv), cr_free(ro);
        }
        drop(q), drop(k), drop(v);
        cr_free(whole), cr_free(step), cr_free(blocks);
    }
}

static void cache_gives_the_bits_of_a_packed_forward(void **state)
{
    (void)state;
    cache_against_packed(6, 3, 24, 0);
    cache_against_packed(8, 4, 8, 0); /* short heads: pairs of a group, a head alone, odd groups */
    cache_against_packed(2, 2, 4, 0);
    cache_against_packed(6, 2, 12, 37);
    cache_against_packed(5, 1, 16, 20);
    cache_against_packed(10, 5, 8, 50);
}

static void c24_adamw_is_torchs(void **state)
{
    float p[3] = {1, -2, 0.5f}, m[3] = {0}, v[3] = {0};
    double wp[3] = {1, -2, 0.5}, wm[3] = {0}, wv[3] = {0};
    uint16_t rounded[3], want[3];

    (void)state;
    for (int t = 1; t <= 100; t++) {
        float g[3];
        for (int i = 0; i < 3; i++) {
            g[i] = (float)(sin(t * (i + 1)) * 3);
            double x = g[i] * 0.5;
            wp[i] *= 1 - 1e-2 * 0.1;
            wm[i] = 0.9 * wm[i] + 0.1 * x;
            wv[i] = 0.95 * wv[i] + 0.05 * x * x;
            wp[i] -= 1e-2 / (1 - pow(0.9, t)) * wm[i] / (sqrt(wv[i] / (1 - pow(0.95, t))) + 1e-8);
        }
        cr_adamw_args a = {MEM(p), MEM(m), MEM(v), MEM(g), 3, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, t};
        a.rounded = MEM(rounded);
        a.rounded_dtype = t % 2 ? CR_BF16 : CR_F16;
        OK(cr_adamw(dev, &a, &err));
        cr_cast_host(a.rounded_dtype, want, CR_F32, p, 3);
        assert_memory_equal(rounded, want, sizeof want);
    }
    for (int i = 0; i < 3; i++)
        check_near(p[i], wp[i], 100 * 0x1p-24 * 2); /* 100 updates, each rounds p below 2 once */
    json_t *all;
    if (cr_json_read_file("tests/parity/formulas.json", &all, &err) != CR_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < 3; i++) /* torch.optim.AdamW of the same gradients */
        check_near(p[i], json_number_value(json_array_get(json_object_get(all, "adamw"), i)), 1e-6);
    json_decref(all);
}

/* Products large enough to be cut over threads, by rows and by columns: fewer threads than panels, and more. */
static void compare_threads(int threads)
{
    static const int64_t shape[][3] = {
        {500, 128, 256}, {60, 600, 700}, {391, 129, 257}, {1, 601, 700}};
    cr_device *two;

    OK(cr_device_open(cr_device_default(), threads, &two, &err));
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 2; t++) {
            int64_t m = shape[s][0], k = shape[s][1], n = shape[s][2], size[] = {m * n, m * k};
            cr_dtype dt = both[t];
            array x = make(dt, m * k, 1), w = make(dt, n * k, 1), dy = make(dt, m * n, 1);
            void *out[2][3];
            for (int i = 0; i < 2; i++) {
                cr_device *one = dev;
                for (int j = 0; j < 3; j++)
                    out[i][j] = cr_alloc((size_t)(j < 2 ? size[j] : n * k) * 4);
                if (i == 1) dev = two;
                all_products(dt, m, n, k, x.data, w.data, dy.data, out[i]);
                dev = one;
            }
            for (int j = 0; j < 2; j++)
                assert_memory_equal(out[0][j], out[1][j], (size_t)size[j] * cr_dtype_bytes(dt));
            assert_memory_equal(out[0][2], out[1][2], (size_t)(n * k) * 4);
            for (int i = 0; i < 6; i++)
                cr_free(out[i / 3][i % 3]);
            drop(x), drop(w), drop(dy);
        }
    cr_device_close(two);
}

static void threads_change_nothing(void **state)
{
    (void)state;
    compare_threads(2);
    compare_threads(7);
}

static void a_stack_gives_back_what_it_took(void **state)
{
    cr_stack *s = cr_stack_create(dev);
    size_t before = cr_device_get_stats(dev).bytes_now;
    cr_mem *p;

    (void)state;
    for (int round = 0; round < 3; round++) {
        size_t mark[200];
        for (int i = 0; i < 200; i++) {
            mark[i] = cr_stack_mark(s);
            OK(cr_stack_push(s, (size_t)(i * 997 + 1), &p, &err));
            memset(cr_host_view(p), i, (size_t)(i * 997 + 1));
        }
        for (int i = 199; i >= 0; i--)
            cr_stack_release(s, mark[i]);
        assert_int_equal(cr_stack_mark(s), 0);
    }
    cr_stack_destroy(s);
    assert_int_equal(cr_device_get_stats(dev).bytes_now, before);
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float16),
        cmocka_unit_test(linear_and_its_gradient),
        cmocka_unit_test(products_do_not_depend_on_the_batch),
        cmocka_unit_test(a_gradient_is_a_product),
        cmocka_unit_test(products_start_from_nothing),
        cmocka_unit_test(rows_with_no_numbers_stay_alone),
        cmocka_unit_test(weights_with_no_numbers_stay_alone),
        cmocka_unit_test(norms_rope_swiglu),
        cmocka_unit_test(rope_turns_and_turns_back),
        cmocka_unit_test(attention_and_its_gradient),
        cmocka_unit_test(cache_gives_the_bits_of_a_packed_forward),
        cmocka_unit_test(c24_adamw_is_torchs),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_stack_gives_back_what_it_took),
    };

    err = (cr_err){0};
    salt = 0; /* each instruction set has the same numbers */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run(void)
{
    return with_device(&dev, group);
}

int main(void)
{
    return on_each_cpu(run);
}
