/* kernels_vision.c -- the kernels of vision towers against plain loops in double: LayerNorm, both GELUs, GeGLU,
 * attention over whole segments, rotation by given angles, weighted table rows; and that a row's bits
 * depend on no other row and on no number of threads, and those of text's rope not on where angles come
 * from. Tolerances as in kernels_reference.c. Not covered: speed.
 */
#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/vision.h"
#include "tests/arrays.h"
#include "tests/each_cpu.h"
#include "tests/memory.h"

#include <string.h>

static void layernorm_and_its_gradient(void **state)
{
    static const int64_t cols[] = {1, 8, 16, 33, 144, 1152};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            enum { M = 5 };
            cr_dtype dt = both[t];
            int64_t n = cols[c];
            array x = make(dt, M * n, 2), w = make(dt, n, 1), b = make(dt, n, 1),
                  dy = make(dt, M * n, 1), dx = make(dt, M * n, 1);
            void *y = cr_alloc((size_t)(M * n) * 4);
            float mean[M], rstd[M], *dw = CR_NEW_ARRAY(float, n), *db = CR_NEW_ARRAY(float, n);
            double *ww = CR_NEW_ARRAY(double, n), *wb = CR_NEW_ARRAY(double, n);
            cr_layernorm_args a = {x.data,    w.data, b.data, y, MEM(mean),
                                   MEM(rstd), dt,     M,      n, 1e-6f};
            cr_layernorm_grad_args g = {x.data,  w.data,  dy.data, MEM(mean), MEM(rstd), dx.data,
                                        MEM(dw), MEM(db), true,    dt,        M,         n};
            for (int64_t i = 0; i < M * n; i++) {
                x.x[i] += 3; /* a mean to take away */
                ((float *)y)[i] = (float)x.x[i];
            }
            OK(cr_cast(dev, &(cr_cast_args){dt, x.data, CR_F32, y, (size_t)(M * n)}, &err));
            for (int64_t i = 0; i < M * n; i++)
                x.x[i] = get(x.data, dt, i);
            OK(cr_layernorm(dev, &a, &err));
            OK(cr_layernorm_grad(dev, &g, &err));
            for (int64_t i = 0; i < M; i++) {
                double m = 0, var = 0, sum = 0, dot = 0, r;
                for (int64_t j = 0; j < n; j++)
                    m += x.x[i * n + j] / (double)n;
                for (int64_t j = 0; j < n; j++)
                    var += pow(x.x[i * n + j] - m, 2) / (double)n;
                r = 1 / sqrt(var + 1e-6f);
                check_near(mean[i], m, 1e-5);
                check_near(rstd[i], r, 1e-5 * r);
                for (int64_t j = 0; j < n; j++) {
                    double u = dy.x[i * n + j] * w.x[j] / (double)n;
                    sum += u;
                    dot += u * (x.x[i * n + j] - m) * r;
                }
                for (int64_t j = 0; j < n; j++) {
                    double v = (x.x[i * n + j] - m) * r, want = v * w.x[j] + b.x[j],
                           d = dx.x[i * n + j] + r * (dy.x[i * n + j] * w.x[j] - sum - v * dot);
                    check_near(get(y, dt, i * n + j), want, tolerance(dt, want, 5));
                    check_near(get(dx.data, dt, i * n + j), d, tolerance(dt, d, 5 * r));
                    ww[j] += dy.x[i * n + j] * v;
                    wb[j] += dy.x[i * n + j];
                }
            }
            for (int64_t j = 0; j < n; j++) {
                check_near(dw[j], ww[j], 1e-5 * (1 + fabs(ww[j])));
                check_near(db[j], wb[j], 1e-5 * (1 + fabs(wb[j])));
            }
            drop(x), drop(w), drop(b), drop(dy), drop(dx);
            cr_free(y), cr_free(dw), cr_free(db), cr_free(ww), cr_free(wb);
        }
}

static double gelu_in_double(cr_gelu_kind kind, double x, double *slope)
{
    double beta = sqrt(2 / M_PI), p = 0.5 * erfc(-x / sqrt(2)), t;

    *slope = p + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    if (kind == CR_GELU_ERF) return x * p;
    t = tanh(beta * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * beta * (1 + 0.134145 * x * x);
    return 0.5 * x * (1 + t);
}

static void gelu_and_its_gradient(void **state)
{
    enum { N = 1003 };

    (void)state;
    for (size_t t = 0; t < CR_COUNT(both); t++)
        for (int kind = CR_GELU_ERF; kind <= CR_GELU_TANH; kind++) {
            cr_dtype dt = both[t];
            array x = make(dt, N, 3), dy = make(dt, N, 1);
            void *y = cr_alloc(N * 4), *dx = cr_alloc(N * 4);
            OK(cr_gelu(dev, &(cr_gelu_args){(cr_gelu_kind)kind, dt, x.data, y, N}, &err));
            OK(cr_gelu_grad(
                dev, &(cr_gelu_grad_args){(cr_gelu_kind)kind, dt, x.data, dy.data, dx, N}, &err));
            for (int64_t i = 0; i < N; i++) {
                double slope, want = gelu_in_double((cr_gelu_kind)kind, x.x[i], &slope);
                check_near(get(y, dt, i), want, tolerance(dt, want, 0));
                check_near(get(dx, dt, i), dy.x[i] * slope,
                           tolerance(dt, dy.x[i] * slope, fabs(dy.x[i])));
            }
            drop(x), drop(dy);
            cr_free(y), cr_free(dx);
        }
}

static void geglu_and_its_gradient(void **state)
{
    enum { N = 1003 };

    (void)state;
    for (size_t t = 0; t < CR_COUNT(both); t++)
        for (int kind = CR_GELU_ERF; kind <= CR_GELU_TANH; kind++) {
            cr_gelu_kind k = (cr_gelu_kind)kind;
            cr_dtype dt = both[t];
            array gate = make(dt, N, 3), up = make(dt, N, 1), dh = make(dt, N, 1);
            void *h = cr_alloc(N * 4);
            OK(cr_geglu(dev, &(cr_geglu_args){k, dt, gate.data, up.data, h, N}, &err));
            OK(cr_geglu_grad(dev,
                             &(cr_geglu_grad_args){k, dt, gate.data, up.data, dh.data, gate.data,
                                                   up.data, N}, /* in place */
                             &err));
            for (int64_t i = 0; i < N; i++) {
                double slope, act = gelu_in_double(k, gate.x[i], &slope), want = act * up.x[i],
                              dgate = dh.x[i] * up.x[i] * slope, dup = dh.x[i] * act;
                check_near(get(h, dt, i), want, 2 * tolerance(dt, want, fabs(up.x[i])));
                check_near(get(gate.data, dt, i), dgate,
                           tolerance(dt, dgate, fabs(dh.x[i] * up.x[i])));
                check_near(get(up.data, dt, i), dup, tolerance(dt, dup, fabs(dh.x[i])));
            }
            drop(gate), drop(up), drop(dh);
            cr_free(h);
        }
}

/* Far from 0 the values are tiny, or x: relative error where the normal distribution is small. */
static void gelu_far_from_zero(void **state)
{
    float x[64], y[64];

    (void)state;
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i - 32) * 0.37f;
    OK(cr_gelu(dev, &(cr_gelu_args){CR_GELU_ERF, CR_F32, MEM(x), MEM(y), 64}, &err));
    for (int i = 0; i < 64; i++) {
        double slope, want = gelu_in_double(CR_GELU_ERF, x[i], &slope);
        /* x^2 / 2 is rounded before exp: an ulp of it is relative to the result */
        check_near(y[i], want, fabs(want) * (5e-7 + x[i] * x[i] * 0x1p-24));
    }
}

static cr_seq_sizes longest(const int32_t *cu, int num)
{
    cr_seq_sizes sizes = {.num_rows = cu[num]};

    for (int s = 0; s < num; s++)
        if (cu[s + 1] - cu[s] > sizes.max_seqlen) sizes.max_seqlen = cu[s + 1] - cu[s];
    return sizes;
}

static void attention_over_segments(void **state)
{
    static const int64_t dims[] = {8, 16, 40, 64, 72, 80};
    const int32_t cu[] = {0, 1, 49, 115, 244};
    enum { H = 3, S = 4, MAX_NUM = 129 };

    (void)state;
    for (size_t c = 0; c < CR_COUNT(dims); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            cr_dtype dt = both[t];
            int64_t D = dims[c], T = cu[S], n = T * H * D;
            array q = make(dt, n, 1), k = make(dt, n, 1), v = make(dt, n, 1), g = make(dt, n, 1);
            void *o = cr_alloc((size_t)n * 4), *dq = cr_alloc((size_t)n * 4),
                 *dk = cr_alloc((size_t)n * 4), *dv = cr_alloc((size_t)n * 4);
            double *wq = CR_NEW_ARRAY(double, n), *wk = CR_NEW_ARRAY(double, n),
                   *wv = CR_NEW_ARRAY(double, n), scale = 1 / sqrt((double)D);
            float *lse = CR_NEW_ARRAY(float, T *H);
            double slack = dt != CR_F32 ? 0.03 : 2e-5; /* 16 bits: delta comes from the rounded o */
            cr_attention_grad_args a = {.fwd = {.q = q.data,
                                                .k = k.data,
                                                .v = v.data,
                                                .o = o,
                                                .lse = MEM(lse),
                                                .dtype = dt,
                                                .cu_seqlens = MEM(cu),
                                                .num_seqs = S,
                                                .num_heads = H,
                                                .num_kv_heads = H,
                                                .head_dim = D,
                                                .scale = (float)scale,
                                                .is_bidirectional = true,
                                                .sizes = longest(cu, S)},
                                        .d_o = g.data,
                                        .dq = dq,
                                        .dk = dk,
                                        .dv = dv};
            OK(cr_attention(dev, &a.fwd, &err));
            OK(cr_attention_grad(dev, &a, &err));
            for (int s = 0; s < S; s++)
                for (int64_t i = cu[s]; i < cu[s + 1]; i++)
                    for (int64_t h = 0; h < H; h++) {
                        double p[MAX_NUM], sum = 0, delta = 0, max = -INFINITY;
                        int64_t at = (i * H + h) * D;
                        for (int64_t j = cu[s]; j < cu[s + 1]; j++) {
                            double z = 0;
                            for (int64_t d = 0; d < D; d++)
                                z += q.x[at + d] * k.x[(j * H + h) * D + d];
                            p[j - cu[s]] = z * scale;
                            max = fmax(max, z * scale);
                        }
                        for (int64_t j = 0; j < cu[s + 1] - cu[s]; j++)
                            sum += p[j] = exp(p[j] - max);
                        for (int64_t d = 0; d < D; d++) {
                            double want = 0;
                            for (int64_t j = cu[s]; j < cu[s + 1]; j++)
                                want += p[j - cu[s]] / sum * v.x[(j * H + h) * D + d];
                            check_near(get(o, dt, at + d), want, tolerance(dt, want, 3));
                            delta += g.x[at + d] * want;
                        }
                        check_near(lse[i * H + h], max + log(sum), 1e-5);
                        for (int64_t j = cu[s]; j < cu[s + 1]; j++) {
                            double w = p[j - cu[s]] / sum, dp = 0, ds;
                            int64_t ka = (j * H + h) * D;
                            for (int64_t d = 0; d < D; d++)
                                dp += g.x[at + d] * v.x[ka + d];
                            ds = w * (dp - delta) * scale;
                            for (int64_t d = 0; d < D; d++) {
                                wv[ka + d] += w * g.x[at + d];
                                wk[ka + d] += ds * q.x[at + d];
                                wq[at + d] += ds * k.x[ka + d];
                            }
                        }
                    }
            for (int64_t i = 0; i < n; i++) {
                check_near(get(dq, dt, i), wq[i], slack * (1 + fabs(wq[i])));
                check_near(get(dk, dt, i), wk[i], slack * (1 + fabs(wk[i])));
                check_near(get(dv, dt, i), wv[i], slack * (1 + fabs(wv[i])));
            }
            drop(q), drop(k), drop(v), drop(g);
            cr_free(o), cr_free(dq), cr_free(dk), cr_free(dv), cr_free(wq), cr_free(wk),
                cr_free(wv), cr_free(lse);
        }
}

/* A segment beside others, on two threads, has the bits that it has alone on one. */
static void segments_do_not_depend_on_each_other(void **state)
{
    static const int64_t dims[] = {16, 72};
    const int32_t cu[] = {0, 70, 202, 213};
    enum { H = 2, S = 3 };
    cr_device *two;

    (void)state;
    OK(cr_device_open(cr_device_default(), 2, &two, &err));
    for (size_t c = 0; c < CR_COUNT(dims); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            int64_t row = H * dims[c], n = cu[S] * row;
            size_t bytes = cr_dtype_bytes(both[t]), row_bytes = (size_t)row * bytes;
            array in[4];
            char *out[2][4];
            float *lse = CR_NEW_ARRAY(float, cu[S] * H);
            for (int i = 0; i < 4; i++) {
                in[i] = make(both[t], n, 1);
                for (int w = 0; w < 2; w++)
                    out[w][i] = cr_alloc((size_t)n * bytes);
            }
            for (int s = -1; s < S; s++) { /* -1: all of them */
                int w = s >= 0;
                size_t first = s < 0 ? 0 : (size_t)cu[s] * row_bytes;
                const int32_t alone[] = {0, s < 0 ? 0 : cu[s + 1] - cu[s]};
                cr_attention_grad_args a = {
                    .fwd = {.q = MEM((char *)in[0].data + first),
                            .k = MEM((char *)in[1].data + first),
                            .v = MEM((char *)in[2].data + first),
                            .o = MEM(out[w][0] + first),
                            .lse = MEM(lse),
                            .dtype = both[t],
                            .cu_seqlens = MEM(s < 0 ? cu : alone),
                            .num_seqs = s < 0 ? S : 1,
                            .num_heads = H,
                            .num_kv_heads = H,
                            .head_dim = dims[c],
                            .scale = 0.2f,
                            .is_bidirectional = true,
                            .sizes = longest(s < 0 ? cu : alone, s < 0 ? S : 1)},
                    .d_o = MEM((char *)in[3].data + first),
                    .dq = MEM(out[w][1] + first),
                    .dk = MEM(out[w][2] + first),
                    .dv = MEM(out[w][3] + first)};
                OK(cr_attention(s < 0 ? two : dev, &a.fwd, &err));
                OK(cr_attention_grad(s < 0 ? two : dev, &a, &err));
            }
            for (int i = 0; i < 4; i++) {
                assert_memory_equal(out[0][i], out[1][i], (size_t)n * bytes);
                drop(in[i]), cr_free(out[0][i]), cr_free(out[1][i]);
            }
            cr_free(lse);
        }
    cr_device_close(two);
}

static void bidirectional_has_no_window(void **state)
{
    const int32_t cu[] = {0, 1};
    float x[16] = {0}, o[16];
    cr_attention_args a = {MEM(x), MEM(x), MEM(x), MEM(o), NULL, CR_F32, MEM(cu),
                           1,      1,      1,      16,     1,    4,      true};

    (void)state;
    assert_int_equal(cr_attention(dev, &a, &err), CR_EARG);
}

/* Angles that are positions times frequencies give the bits of those; others turn by themselves. */
static void rope_by_angles(void **state)
{
    enum { T = 37, H = 3 };
    static const int64_t dims[] = {8, 16, 24, 72, 128};
    int32_t pos[T];
    float freq[64];

    (void)state;
    for (size_t c = 0; c < CR_COUNT(dims); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            int64_t D = dims[c], n = T * H * D;
            cr_dtype dt = both[t];
            size_t bytes = (size_t)n * cr_dtype_bytes(dt);
            array x = make(dt, n, 1);
            void *same = cr_alloc(bytes);
            float *angles = CR_NEW_ARRAY(float, T *D / 2);
            cr_rope_args by_pos = {same, dt, MEM(pos), MEM(freq), 1.5f, 1, T, H, D, NULL},
                         by_angle = {x.data, dt, NULL, NULL, 1.5f, 1, T, H, D, MEM(angles)};
            for (int64_t i = 0; i < D / 2; i++)
                freq[i] = powf(10000.0f, -2.0f * (float)i / (float)D);
            for (int64_t r = 0; r < T; r++) {
                pos[r] = (int32_t)(r * 41 % 1500);
                for (int64_t i = 0; i < D / 2; i++)
                    angles[r * D / 2 + i] = (float)pos[r] * freq[i];
            }
            memcpy(same, HOST(x.data), bytes);
            OK(cr_rope(dev, &by_pos, &err));
            OK(cr_rope(dev, &by_angle, &err));
            assert_memory_equal(HOST(x.data), same, bytes);
            angles[T * D / 2 - 1] = 0.75f; /* one other angle, and back with it */
            memcpy(same, HOST(x.data), bytes);
            OK(cr_rope(dev, &by_angle, &err));
            for (int64_t h = 0; h < H; h++) {
                int64_t i = ((T - 1) * H + h) * D + D / 2 - 1;
                double u = get(same, dt, i), v = get(same, dt, i + D / 2), k = 1.5 * cos(0.75f),
                       s = 1.5 * sin(0.75f);
                check_near(get(x.data, dt, i), u * k - v * s, tolerance(dt, u * k - v * s, 3));
                check_near(get(x.data, dt, i + D / 2), v * k + u * s,
                           tolerance(dt, v * k + u * s, 3));
            }
            by_angle.sign = -1;
            OK(cr_rope(dev, &by_angle, &err));
            for (int64_t i = 0; i < n; i++)
                check_near(get(x.data, dt, i), 2.25 * get(same, dt, i), dt != CR_F32 ? 0.1 : 1e-5);
            drop(x);
            cr_free(same), cr_free(angles);
        }
}

static void weighted_table_rows(void **state)
{
    enum { T = 9, K = 4, ROWS = 7 };
    static const int64_t cols[] = {5, 16, 72};
    int32_t index[T * K];
    float weight[T * K];

    (void)state;
    for (int i = 0; i < T * K; i++) {
        index[i] = i * 5 % ROWS;
        weight[i] = 0.1f * (float)(i % 9) - 0.2f;
    }
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            cr_dtype dt = both[t];
            int64_t n = cols[c];
            array table = make(dt, ROWS * n, 1), add = make(dt, T * n, 1), dy = make(dt, T * n, 1);
            float *dw = CR_NEW_ARRAY(float, ROWS *n);
            double *want = CR_NEW_ARRAY(double, ROWS *n);
            void *y = cr_alloc((size_t)(T * n) * 4);
            cr_rows_combine_args f = {table.data, add.data, MEM(index), MEM(weight), y, dt,
                                      T,          K,        n};
            cr_embedding_bag_grad_args g = {dy.data, dt, MEM(index), MEM(weight), MEM(dw), T, K, n};
            OK(cr_rows_combine(dev, &f, &err));
            OK(cr_embedding_bag_grad(dev, &g, &err));
            OK(cr_embedding_bag_grad(dev, &g, &err)); /* added */
            for (int64_t r = 0; r < T; r++)
                for (int64_t i = 0; i < n; i++) {
                    double sum = add.x[r * n + i];
                    for (int64_t j = 0; j < K; j++) {
                        int64_t at = index[r * K + j] * n + i;
                        sum += weight[r * K + j] * table.x[at];
                        want[at] += 2 * weight[r * K + j] * dy.x[r * n + i];
                    }
                    check_near(get(y, dt, r * n + i), sum, tolerance(dt, sum, 4));
                }
            for (int64_t i = 0; i < ROWS * n; i++)
                check_near(dw[i], want[i], 1e-5 * (1 + fabs(want[i])));
            drop(table), drop(add), drop(dy);
            cr_free(dw), cr_free(want), cr_free(y);
        }
}

static void rows_are_added(void **state)
{
    enum { T = 7, N = 3, C = 21 };
    const int32_t index[N] = {5, 0, 3};

    (void)state;
    for (size_t t = 0; t < CR_COUNT(both); t++) {
        array dst = make(both[t], T * C, 1), src = make(both[t], N * C, 1);
        OK(cr_rows_add(dev, &(cr_rows_move_args){both[t], src.data, MEM(index), N, C, dst.data},
                       &err));
        for (int64_t r = 0; r < T; r++)
            for (int64_t i = 0; i < C; i++) {
                double want = dst.x[r * C + i];
                for (int64_t k = 0; k < N; k++)
                    if (index[k] == r) want += src.x[k * C + i];
                check_near(get(dst.data, both[t], r * C + i), want, tolerance(both[t], want, 0));
            }
        drop(dst), drop(src);
    }
}

static void factors_of_columns(void **state)
{
    static const int64_t cols[] = {1, 8, 33, 144};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (size_t t = 0; t < CR_COUNT(both); t++) {
            enum { M = 5 };
            cr_dtype dt = both[t];
            int64_t n = cols[c];
            array x = make(dt, M * n, 2), w = make(dt, n, 1), add = make(dt, M * n, 1),
                  y = make(dt, M * n, 1), dy = make(dt, M * n, 1), dx = make(dt, M * n, 1);
            float *dw = CR_NEW_ARRAY(float, n);
            OK(cr_cols_scale(dev, &(cr_cols_scale_args){dt, x.data, w.data, add.data, y.data, M, n},
                             &err));
            OK(cr_cols_scale_grad(
                dev,
                &(cr_cols_scale_grad_args){dt, x.data, w.data, dy.data, dx.data, MEM(dw), M, n},
                &err));
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t i = j; i < M * n; i += n) {
                    double want = add.x[i] + w.x[j] * x.x[i], d = w.x[j] * dy.x[i];
                    check_near(get(y.data, dt, i), want, tolerance(dt, want, 1));
                    check_near(get(dx.data, dt, i), d, tolerance(dt, d, 1));
                    sum += x.x[i] * dy.x[i];
                }
                check_near(dw[j], sum, 1e-5 * (1 + fabs(sum)));
            }
            OK(cr_cols_scale(dev, &(cr_cols_scale_args){dt, x.data, w.data, NULL, x.data, M, n},
                             &err));
            for (int64_t i = 0; i < M * n; i++)
                check_near(get(x.data, dt, i), w.x[i % n] * x.x[i],
                           tolerance(dt, w.x[i % n] * x.x[i], 1));
            drop(x), drop(w), drop(add), drop(y), drop(dy), drop(dx);
            cr_free(dw);
        }
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm_and_its_gradient),
        cmocka_unit_test(gelu_and_its_gradient),
        cmocka_unit_test(geglu_and_its_gradient),
        cmocka_unit_test(gelu_far_from_zero),
        cmocka_unit_test(attention_over_segments),
        cmocka_unit_test(segments_do_not_depend_on_each_other),
        cmocka_unit_test(bidirectional_has_no_window),
        cmocka_unit_test(rope_by_angles),
        cmocka_unit_test(weighted_table_rows),
        cmocka_unit_test(rows_are_added),
        cmocka_unit_test(factors_of_columns),
    };

    err = (cr_err){0};
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
