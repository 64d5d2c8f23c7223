/* kernels_devices.c -- every operation of the table but attention (kernels_attention.c) on the device under test (CROLL_DEVICE)
 * against the device cpu, whose numbers kernels_reference.c holds against float64: the same inputs are uploaded to both, all arrays that
 * were passed are downloaded and compared. Shapes are awkward: 1, odd, one past a tile, several tiles; fp32, bf16, fp16. And by
 * bytes on the device alone: a row alone and in company, head and logits. An operation that the device does not have is
 * listed. Not covered: speed.
 *
 * Tolerances: one rounding of the output's dtype (the last bit may fall either way), and float32 sums, whose
 * size `near` bounds.
 */
// also on far
// also on cuda
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/experts.h"
#include "kernels/linears.h"
#include "kernels/vision.h"
#include "tests/both_devices.h"

static const cr_dtype act[] = {CR_F32, CR_BF16, CR_F16};

/* Array y is the same on both devices; compares the others and frees all. */
static void same_bits(const char *what, int y)
{
    array *a = &all[y];
    void *host[2] = {cr_alloc(bytes_of(a)), cr_alloc(bytes_of(a))};

    OK(cr_download(cpu, host[0], a->on[0], bytes_of(a), &err));
    OK(cr_download(dev, host[1], a->on[1], bytes_of(a), &err));
    if (memcmp(host[0], host[1], bytes_of(a)) != 0) fail_msg("%s: not the same bits", what);
    cr_free(host[0]);
    cr_free(host[1]);
    check(what);
}

/* ---- flat ranges ---- */

static void casts(void **state)
{
    (void)state;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int64_t n = 1; n < 5000; n = n * 7 + 1) {
                int x = floats(act[from], n + 3, 3, 0), y = floats(act[to], n, 1, 0);
                BOTH(cast, cr_cast_args, .to = act[to], .dst = M(y), .from = act[from],
                     .src = cr_at(act[from], M(x), 3), .num = (size_t)n); /* not aligned */
            }
}

static void flat_ranges(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 20000; n = n * 9 + 2) {
        double sum[2];
        uint64_t checksum[2];
        int x = floats(CR_F32, n, 1, 0);
        BOTH(scale, cr_scale_args, .x = M(x), .factor = 0.3f, .num = (size_t)n);
        {
            int y = floats(CR_F32, n, 1, 0);
            BOTH(blend, cr_blend_args, .y = M(y), .x = M(x), .a = -0.7f, .b = 1.3f,
                 .num = (size_t)n);
        }
        for (int t = 0; t < 2; t++)
            for (int is_added = 0; is_added < 2; is_added++)
                for (int parts = 1; parts < (n < 30 ? 400 : 5); parts = parts * 3 + 1) { /* bits */
                    int y = floats(CR_F32, n, 1, 0);
                    x = floats(act[t], (n + 8) * parts, 3, 0);
                    for (int d = 0; d < 2; d++)
                        OK(cr_sum_parts(d ? dev : cpu,
                                        &(cr_sum_parts_args){M(y), act[t], M(x), (size_t)(n + 8),
                                                             (size_t)n, (size_t)parts, is_added},
                                        &err));
                    same_bits("sum_parts", y);
                }
        x = floats(CR_F32, n, 1, 0);
        BOTH(square_sum, cr_square_sum_args, .x = M(x), .num = (size_t)n, .out = &sum[d]);
        check_near(sum[1], sum[0], 1e-12 * sum[0]);
        for (int64_t odd = 0; odd < 4; odd++) {
            x = floats(CR_F32, n + 1, 1, 0);
            BOTH(checksum, cr_checksum_args, .data = cr_mem_add(M(x), (size_t)odd),
                 .num_bytes = (size_t)(4 * n - odd), .start = 5, .out = &checksum[d]);
            assert_true(checksum[0] == checksum[1]);
        }
        for (int t = 0; t < 3; t++) { /* float32: nothing is rounded */
            int p = floats(CR_F32, n, 1, 1e-6), m = floats(CR_F32, n, 0.1, 1e-7),
                v = floats(CR_F32, n, 0, 1e-7), g = floats(CR_F32, n, 1, 0),
                rounded = floats(act[t], n + 1, 1, 1e-6); /* the last one stays */
            BOTH(adamw, cr_adamw_args, .param = M(p), .m = M(m), .v = M(v), .grad = M(g),
                 .num = (size_t)n, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                 .weight_decay = 0.1, .grad_scale = 0.5, .t = 3, .rounded = t ? M(rounded) : NULL,
                 .rounded_dtype = act[t]);
        }
    }
}

/* As kernels.h writes it. */
static uint64_t sum_as_written(const uint8_t *p, size_t num, uint64_t start)
{
    uint64_t lane[4] = {start ^ 0x9E3779B97F4A7C15u, start + 1, start ^ 2, start + 3};

    for (size_t word = 0; word < num / 32 * 4; word++) {
        uint64_t x = 0, *l = &lane[word % 4];
        for (size_t b = 0; b < 8; b++)
            x |= (uint64_t)p[8 * word + b] << 8 * b;
        *l = (*l ^ x) * 0xFF51AFD7ED558CCDu;
        *l ^= *l >> 29;
    }
    for (size_t i = num / 32 * 32; i < num; i++)
        lane[0] = (lane[0] ^ p[i]) * 0x100000001B3u;
    return ((lane[0] * 31 + lane[1]) * 31 + lane[2]) * 31 + lane[3];
}

/* Of memory that begins at any byte, with one thread and several, on both devices: the value that kernels.h defines. */
static void checksums(void **state)
{
    enum { BLOCK = CR_CHECKSUM_BLOCK, LARGEST = 11 * BLOCK + 64 };
    static const size_t sizes[] = {
        0, 1, 8, 31, 32, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 8 * BLOCK + 40, LARGEST - 8};
    uint8_t *bytes = cr_alloc(LARGEST);
    uint64_t sums[12];
    cr_device *three;
    int x = floats(CR_F32, LARGEST / 4, 1, 0);

    (void)state;
    OK(cr_device_open("cpu", 3, &three, &err));
    OK(cr_download(cpu, bytes, all[x].on[0], LARGEST, &err));
    for (size_t i = 0; i < CR_COUNT(sizes); i++)
        for (size_t odd = 0; odd < 8; odd += 7) {
            uint64_t start = 77 * i, wanted, got;
            size_t num = 0;
            for (size_t at = 0; at < sizes[i]; at += BLOCK)
                sums[num++] = sum_as_written(bytes + odd + at,
                                             sizes[i] - at < BLOCK ? sizes[i] - at : BLOCK, start);
            wanted = sum_as_written((const uint8_t *)sums, 8 * num, start);
            for (int d = 0; d < 3; d++) {
                OK(cr_checksum(
                    d == 2 ? three
                    : d    ? dev
                           : cpu,
                    &(cr_checksum_args){cr_mem_add(all[x].on[d == 1], odd), sizes[i], start, &got},
                    &err));
                if (got != wanted)
                    fail_msg("checksum of %zu bytes from %zu on, device %d", sizes[i], odd, d);
            }
        }
    cr_device_close(three);
    cr_free(bytes);
    drop_all();
}

/* ---- products ---- */

static const int64_t shapes[][3] = {{1, 1, 1},     {7, 33, 65},    {13, 64, 512},
                                    {65, 176, 72}, {130, 40, 130}, {64, 128, 136},
                                    {3, 200, 8},   {70, 31, 96},   {600, 8, 24}};

static void products(void **state)
{
    (void)state;
    for (size_t s = 0; s < CR_COUNT(shapes); s++)
        for (int t = 0; t < 3; t++)
            for (int option = 0; option < 3; option++) {
                if ((s + (size_t)t + (size_t)option) % 3) continue; /* each pair with some shapes */
                int64_t m = shapes[s][0], k = shapes[s][1], n = shapes[s][2];
                cr_dtype dt = act[t], to = option == 2 ? CR_F32 : dt;
                double near = 4e-6 * sqrt((double)k), grad_near = 4e-6 * sqrt((double)(m + n));
                int x = floats(dt, m * k, 1, 0), w = floats(dt, n * k, 0.3, 0),
                    b = floats(dt, n, 1, 0), r = floats(dt, m * n, 1, 0),
                    y = floats(to, m * n, 1, near + (dt == CR_F32 ? 0 : 0x1p-6)),
                    packed = floats(CR_F32, 1, 0, 0), dy = floats(dt, m * n, 1, 0),
                    dx = floats(dt, m * k, 1, grad_near + (dt == CR_F32 ? 0 : 0x1p-6)),
                    dw = floats(CR_F32, n * k, 1, grad_near), db = floats(CR_F32, n, 1, grad_near);
                (void)packed;
                for (int d = 0; d < 2; d++) {
                    cr_device *on = d ? dev : cpu;
                    cr_weight weight = {M(w), dt, n, k, NULL};
                    OK(cr_linear(on,
                                 &(cr_linear_args){M(x), &weight, option ? M(b) : NULL,
                                                   option == 1 ? M(r) : NULL, M(y), to, m},
                                 &err));
                    OK(cr_linear_grad(on,
                                      &(cr_linear_grad_args){M(x), M(dy), &weight, M(dx),
                                                             option == 1, M(dw),
                                                             option ? M(db) : NULL, m, option == 1},
                                      &err));
                }
                check("linear and linear_grad");
            }
}

/* By bytes: rows one by one, and some at a time; with a packed weight. */
static void product_rows_alone(void **state)
{
    (void)state;
    for (size_t s = 0; s < CR_COUNT(shapes); s++)
        for (int t = 0; t < 3; t++) {
            int64_t m = shapes[s][0], k = shapes[s][1], n = shapes[s][2];
            if ((s + (size_t)t) % 3) continue; /* each dtype with some shapes */
            cr_dtype dt = act[t];
            size_t bytes = cr_dtype_bytes(dt), packed_bytes;
            int d = 1, x = floats(dt, m * k, 1, 0), w = floats(dt, n * k, 0.3, 0),
                whole = floats(dt, m * n, 1, 0), part = floats(dt, m * n, 1, 0);
            cr_weight weight = {M(w), dt, n, k, NULL}, packed = weight;
            char *a = cr_alloc((size_t)(m * n) * bytes), *b = cr_alloc((size_t)(m * n) * bytes);
            cr_mem *panels;
            packed_bytes = cr_weight_packed_bytes(dev, &weight);
            if (cr_device_is_gpu(dev)) assert_int_equal(packed_bytes, 0);
            OK(cr_device_alloc(dev, packed_bytes, &panels, &err));
            OK(cr_weight_pack(dev, &(cr_weight_pack_args){&weight, panels}, &err));
            packed.packed = panels;
            OK(cr_linear(dev, &(cr_linear_args){M(x), &weight, NULL, NULL, M(whole), dt, m}, &err));
            OK(cr_download(dev, a, M(whole), (size_t)(m * n) * bytes, &err));
            for (int64_t step = m > 20 ? 9 : 1; step <= m; step = step * 8 + 1) {
                for (int64_t i = 0; i < m; i += step) {
                    cr_linear_args one = {cr_at(dt, M(x), i * k),
                                          i / step % 2 ? &packed : &weight,
                                          NULL,
                                          NULL,
                                          cr_at(dt, M(part), i * n),
                                          dt,
                                          m - i < step ? m - i : step};
                    OK(cr_linear(dev, &one, &err));
                }
                OK(cr_download(dev, b, M(part), (size_t)(m * n) * bytes, &err));
                assert_memory_equal(a, b, (size_t)(m * n) * bytes);
            }
            cr_device_free(dev, panels, packed_bytes);
            cr_free(a), cr_free(b);
            drop_all();
        }
}

/* By bytes: as each product alone. */
static void products_of_the_same_rows(void **state)
{
    static const int64_t sizes[][CR_LINEARS] = {{40, 8, 24}, {31, 7, 5}, {264, 264, 16}},
                         rows[] = {1, 33, 70};
    enum { K = 72 };

    (void)state;
    for (size_t s = 0; s < 9; s++)
        for (int t = 0; t < 3; t++) {
            const int64_t *n = sizes[s % 3], m = rows[s / 3];
            cr_dtype dt = act[t];
            int x = floats(dt, m * K, 1, 0), num = 1 + (int)(s + (size_t)t) % CR_LINEARS;
            cr_linears_args a = {.x = all[x].on[1], .num = num, .num_rows = m};
            int alone[CR_LINEARS], together[CR_LINEARS];
            for (int i = 0; i < num; i++) {
                int w = floats(dt, n[i] * K, 0.3, 0), b = floats(dt, n[i], 1, 0);
                alone[i] = floats(dt, m * n[i], 1, 0), together[i] = floats(dt, m * n[i], 1, 0);
                a.w[i] = (cr_weight){all[w].on[1], dt, n[i], K, NULL};
                a.bias[i] = i == 1 ? NULL : all[b].on[1];
                a.y[i] = all[together[i]].on[1];
            }
            OK(cr_linears(dev, &a, &err));
            for (int i = 0; i < num; i++) {
                size_t bytes = (size_t)(m * n[i]) * cr_dtype_bytes(dt);
                char *got = cr_alloc(2 * bytes);
                cr_linear_args one = cr_linear_of(&a, i);
                one.y = all[alone[i]].on[1];
                OK(cr_linear(dev, &one, &err));
                OK(cr_download(dev, got, a.y[i], bytes, &err));
                OK(cr_download(dev, got + bytes, one.y, bytes, &err));
                assert_memory_equal(got, got + bytes, bytes);
                cr_free(got);
            }
            drop_all();
        }
}

/* ---- rows ---- */

static void norms(void **state)
{
    static const int64_t cols[] = {1, 8, 33, 256, 264, 1000, 1032, 2056, 4104};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (int t = 0; t < 3; t++) {
            int64_t n = cols[c], m = n > 1000 ? 3 : 37;
            cr_dtype dt = act[t];
            double bf = dt == CR_F32 ? 1e-5 : 0x1p-5;
            int x = floats(dt, m * n, 2, 0), w = floats(dt, n, 1, 0), y = floats(dt, m * n, 1, bf),
                rstd = floats(CR_F32, m, 1, 1e-3), dy = floats(dt, m * n, 1, 0),
                dx = floats(dt, m * n, 1, bf),
                dw = floats(CR_F32, n, 1, (double)m * 1e-5 + (dt == CR_F32 ? 0 : 0.05)), b, mean,
                db;
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                OK(cr_rmsnorm(on,
                              &(cr_rmsnorm_args){M(x), M(w), M(y), M(rstd), dt, m, n, 1e-5f,
                                                 (float)(c % 2), c % 4 > 1 ? M(dy) : NULL},
                              &err));
                OK(cr_rmsnorm_grad(on,
                                   &(cr_rmsnorm_grad_args){M(x), M(w), M(dy), M(rstd), M(dx),
                                                           c % 3 ? M(dw) : NULL, c % 2, dt, m, n,
                                                           (float)(c % 2)},
                                   &err));
                OK(cr_rmsnorm(on, &(cr_rmsnorm_args){M(x), M(w), M(x), NULL, dt, m, n, 1e-5f},
                              &err));
            }
            all[x].near = bf;
            check("rmsnorm and rmsnorm_grad");
            x = floats(dt, m * n, 2, 0), w = floats(dt, n, 1, 0), b = floats(dt, n, 1, 0),
            y = floats(dt, m * n, 1, bf), mean = floats(CR_F32, m, 1, 1e-5),
            rstd = floats(CR_F32, m, 1, 0), dy = floats(dt, m * n, 1, 0),
            dx = floats(dt, m * n, 1, bf), dw = floats(CR_F32, n, 1, (double)m * 1e-4),
            db = floats(CR_F32, n, 1, (double)m * 1e-5);
            if (n == 1) all[rstd].near = 1e3, all[dx].near = 1; /* a variance of 0 */
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                all[rstd].near = fmax(all[rstd].near, 1e-4);
                OK(cr_layernorm(
                    on,
                    &(cr_layernorm_args){M(x), M(w), M(b), M(y), M(mean), M(rstd), dt, m, n, 1e-6f},
                    &err));
                OK(cr_layernorm_grad(on,
                                     &(cr_layernorm_grad_args){M(x), M(w), M(dy), M(mean), M(rstd),
                                                               M(dx), M(dw), c % 2 ? M(db) : NULL,
                                                               c % 2, dt, m, n},
                                     &err));
            }
            check("layernorm and layernorm_grad");
            x = floats(dt, m * n, 2, 0), w = floats(dt, n, 1, 0), b = floats(dt, m * n, 1, 0),
            y = floats(dt, m * n, 1, bf), dy = floats(dt, m * n, 1, 0),
            dx = floats(dt, m * n, 1, bf), dw = floats(CR_F32, n, 1, (double)m * 1e-5);
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                OK(cr_cols_scale(
                    on, &(cr_cols_scale_args){dt, M(x), M(w), c % 2 ? M(b) : NULL, M(y), m, n},
                    &err));
                OK(cr_cols_scale_grad(on,
                                      &(cr_cols_scale_grad_args){dt, M(x), M(w), M(dy),
                                                                 c % 3 ? M(dx) : NULL,
                                                                 c % 4 ? M(dw) : NULL, m, n},
                                      &err));
            }
            check("cols_scale and cols_scale_grad");
        }
}

static void rope(void **state)
{
    static const int64_t dims[] = {2, 8, 64, 128, 10};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(dims); c++)
        for (int t = 0; t < 3; t++)
            for (int by_angles = 0; by_angles < 2; by_angles++) {
                int64_t D = dims[c], tokens = 17, heads = 3;
                int x = floats(act[t], tokens * heads * D, 1, act[t] == CR_F32 ? 1e-6 : 0x1p-7),
                    positions = some_ints(tokens, 5000), inv = floats(CR_F32, D / 2, 0.1, 0),
                    angles = floats(CR_F32, tokens * D / 2, 100, 0);
                BOTH(rope, cr_rope_args, .x = M(x), .dtype = act[t], .positions = M(positions),
                     .inv_freq = M(inv), .scaling = 1.1f, .sign = c % 2 ? 1 : -1,
                     .num_tokens = tokens, .num_heads = heads, .head_dim = D,
                     .angles = by_angles ? M(angles) : NULL);
            }
}

static void qk_heads(void **state)
{
    static const int64_t dims[] = {2, 8, 64, 128, 10, 192, 256};

    (void)state;
    for (size_t c = 0; c < CR_COUNT(dims); c++)
        for (int t = 0; t < 3; t++)
            for (int has_norms = 0; has_norms < 2; has_norms++) {
                bool is_large = c == 3; /* blocks of 8 warps, of which two have a second head */
                int64_t D = dims[c], T = is_large ? 260 : 5, H = is_large ? 7 : 3,
                        K = is_large ? 3 : 2;
                cr_dtype dt = act[t];
                double near = dt == CR_F32 ? 4e-6 : 0x1p-6;
                int q = floats(dt, T * H * D, 1, near), k = floats(dt, T * K * D, 1, near),
                    q_in = floats(dt, T * H * D, 1, 0), k_in = floats(dt, T * K * D, 1, 0),
                    wq = floats(dt, D, 1, 0), wk = floats(dt, D, 1, 0),
                    positions = some_ints(T, 5000), inv = floats(CR_F32, D / 2, 0.1, 0),
                    rq = floats(CR_F32, T * H, 1, 1e-5), rk = floats(CR_F32, T * K, 1, 1e-5);
                BOTH(qk_heads, cr_qk_heads_args, .q_in = M(has_norms ? q_in : q),
                     .k_in = M(has_norms ? k_in : k), .q = M(q), .k = M(k),
                     .q_weight = has_norms ? M(wq) : NULL, .k_weight = has_norms ? M(wk) : NULL,
                     .q_rstd = has_norms ? M(rq) : NULL, .k_rstd = has_norms ? M(rk) : NULL,
                     .dtype = dt, .positions = M(positions), .inv_freq = M(inv), .scaling = 1.1f,
                     .sign = c % 2 ? 1 : -1, .num_tokens = T, .num_heads = H, .num_kv_heads = K,
                     .head_dim = D, .eps = 1e-6f, .offset = (float)(c % 2));
            }
}

static void activations(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++)
        for (int64_t n = 1; n < 3000; n = n * 9 + 4) {
            cr_dtype dt = act[t];
            double near = dt == CR_F32 ? 2e-6 : 0x1p-6;
            size_t num = (size_t)n;
            int gate = floats(dt, n, 3, near), up = floats(dt, n, 1, near),
                dh = floats(dt, n, 1, near), h = floats(dt, n, 1, near);
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                OK(cr_swiglu(on, &(cr_swiglu_args){dt, M(gate), M(up), M(h), num}, &err));
                OK(cr_swiglu_grad(
                    on,
                    &(cr_swiglu_grad_args){dt, M(gate), M(up), M(dh), M(gate), M(up), M(dh), num},
                    &err));
            }
            char *once = fetched(h), *again = fetched(dh); /* h of the gradient: in dh's place */
            assert_memory_equal(once, again, bytes_of(&all[h]));
            cr_free(once);
            cr_free(again);
            check("swiglu and swiglu_grad");
            for (cr_gelu_kind kind = CR_GELU_ERF; kind <= CR_GELU_TANH; kind++) {
                int x = floats(dt, n, 3, near), dx = floats(dt, n, 1, near),
                    y = floats(dt, n, 1, near);
                gate = floats(dt, n, 3, near), up = floats(dt, n, 1, near),
                dh = floats(dt, n, 1, 0), h = floats(dt, n, 1, near);
                for (int d = 0; d < 2; d++) {
                    cr_device *on = d ? dev : cpu;
                    OK(cr_gelu(on, &(cr_gelu_args){kind, dt, M(x), M(y), num}, &err));
                    OK(cr_gelu_grad(on, &(cr_gelu_grad_args){kind, dt, M(x), M(dh), M(dx), num},
                                    &err));
                    OK(cr_geglu(on, &(cr_geglu_args){kind, dt, M(gate), M(up), M(h), num}, &err));
                    OK(cr_geglu_grad(
                        on,
                        &(cr_geglu_grad_args){kind, dt, M(gate), M(up), M(dh), M(gate), M(up), num},
                        &err));
                }
                check("gelu, geglu and their gradients");
            }
        }
}

static void moves(void **state)
{
    static const int64_t cols[] = {1, 5, 8, 64, 130, 1030};
    enum { WORDS = 40, TOKENS = 300 };

    (void)state;
    for (size_t c = 0; c < CR_COUNT(cols); c++)
        for (int t = 0; t < 3; t++) {
            int64_t n = cols[c];
            cr_dtype dt = act[t];
            double near = dt == CR_F32 ? 1e-6 : 0x1p-7;
            int32_t once[WORDS];
            for (int i = 0; i < WORDS; i++)
                once[i] = (i * 7 + 3) % WORDS;
            int w = floats(dt, WORDS * n, 1, 0), ids = some_ints(TOKENS, WORDS),
                y = floats(dt, TOKENS * n, 1, 0), index = ints(once, WORDS),
                to = floats(dt, WORDS * n, 1, 0), sum = floats(dt, WORDS * n, 1, near),
                dw = floats(CR_F32, WORDS * n, 1, 1e-5), bag = floats(CR_F32, WORDS * n, 1, 1e-5),
                factor = floats(CR_F32, TOKENS, 1, 0);
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                cr_weight weight = {M(w), dt, WORDS, n, NULL};
                OK(cr_embedding(on, &(cr_embedding_args){&weight, M(ids), TOKENS, M(y)}, &err));
                OK(cr_embedding_grad(
                    on, &(cr_embedding_grad_args){dt, M(y), M(ids), TOKENS, n, M(dw)}, &err));
                OK(cr_embedding_bag_grad(on,
                                         &(cr_embedding_bag_grad_args){M(y), dt, M(ids), M(factor),
                                                                       M(bag), TOKENS / 4, 4, n},
                                         &err));
                OK(cr_rows_scatter(on, &(cr_rows_move_args){dt, M(w), M(index), WORDS, n, M(to)},
                                   &err));
                OK(cr_rows_add(on, &(cr_rows_move_args){dt, M(w), M(index), WORDS, n, M(sum)},
                               &err));
                OK(cr_rows_gather(on, &(cr_rows_move_args){dt, M(to), M(ids), TOKENS, n, M(y)},
                                  &err));
            }
            check("moves of rows");
        }
}

/* ---- head ---- */

/* num ids of each row, each at most once in it, some -1; row r has its label's (some_ints), too. */
static int words_once(int64_t rows, int64_t num, int64_t vocab)
{
    int32_t *ids = CR_NEW_ARRAY(int32_t, rows * num);
    int at;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < num; i++)
            ids[r * num + i] = r % 7 == 3 && i == 1
                                   ? -1
                                   : (int32_t)((r * 7 + r * r % 5 + 3 + i * (vocab / num)) % vocab);
    at = ints(ids, rows * num);
    cr_free(ids);
    return at;
}

/* Log-sums of rows of `vocab` logits: about ln(vocab), so that probabilities add up to about 1. */
static int some_log_sums(int64_t rows, int64_t vocab)
{
    float *sums = CR_NEW_ARRAY(float, rows);
    int at;

    for (int64_t r = 0; r < rows; r++)
        sums[r] = logf((float)vocab) + 0.3f * (float)(r % 5 - 2);
    at = add(FLOATS, CR_F32, rows, 0, sums);
    cr_free(sums);
    return at;
}

static void head(void **state)
{
    static const int64_t shape[][3] = {{3, 16, 7},     {5, 33, 2100},
                                       {65, 24, 1032},  /* R, h, V; labels go by 64 */
                                       {2, 8, 66000},   /* launches go by 65,536, of dz by 6144 */
                                       {2050, 8, 40},   /* rows by 2048 */
                                       {4100, 16, 24}}; /* of dz by 4096 */

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 3; t++) {
            int64_t R = shape[s][0], k = shape[s][1], V = shape[s][2];
            enum { TOP = 5, CHOSEN = 3 };
            cr_dtype dt = act[t];
            double near = 2e-5, grad_near = dt == CR_F32 ? 2e-5 : dt == CR_BF16 ? 0.03 : 0.004;
            int x = floats(dt, R * k, 1, 0), w = floats(dt, V * k, 0.5, 0),
                labels = some_ints(R, V), chosen = some_ints(R * CHOSEN, V),
                out = floats(CR_F32, 4 * R, 1, near), rank = some_ints(R, 9),
                top = some_ints(R * TOP, 9), top_lp = floats(CR_F32, R * TOP, 1, near),
                chosen_lp = floats(CR_F32, R * CHOSEN, 1, near), g = floats(CR_F32, 2 * R, 1, 0),
                dx = floats(dt, R * k, 1, grad_near),
                dw = floats(CR_F32, V * k, 1,
                            grad_near * (R > 4096 ? 16 : 4)), /* sums of R numbers */
                once = words_once(R, CHOSEN, V), dz = floats(CR_F32, R * CHOSEN, 1, 0),
                log_sum = some_log_sums(R, V), dx_words = floats(dt, R * k, 1, grad_near * 4),
                dw_words = floats(CR_F32, V * k, 1, grad_near * (R > 4096 ? 64 : 16));
            for (int d = 0; d < 2; d++) {
                cr_device *on = d ? dev : cpu;
                cr_weight weight = {M(w), dt, V, k, NULL};
                for (int64_t equal = 1; equal < V; equal += V - 2) /* ids of equal logits */
                    OK(cr_copy(on, cr_at(dt, M(w), equal * k), M(w), (size_t)k * cr_dtype_bytes(dt),
                               &err));
                cr_head_args a = {.x = M(x),
                                  .w = &weight,
                                  .labels = M(labels),
                                  .num_rows = R,
                                  .log_prob = M(out),
                                  .entropy = cr_at(CR_F32, M(out), R),
                                  .lse = cr_at(CR_F32, M(out), 2 * R),
                                  .mean_z = cr_at(CR_F32, M(out), 3 * R),
                                  .rank = M(rank),
                                  .num_top = TOP,
                                  .top_ids = M(top),
                                  .top_log_prob = M(top_lp),
                                  .num_chosen = CHOSEN,
                                  .chosen_ids = M(chosen),
                                  .chosen_log_prob = M(chosen_lp)};
                cr_head_chosen of_ids = {M(dz), cr_at(CR_F32, M(g), R), M(log_sum), 1.5f};
                cr_head_grad_args grad = {a, M(g), cr_at(CR_F32, M(g), R), M(dx), M(dw), NULL};
                OK(cr_head(on, &a, &err));
                OK(cr_head_grad(on, &grad, &err));
                a.chosen_ids =
                    M(once); /* the cpu has the logits of these, the other its log-probs */
                a.rank = NULL, a.num_top = 0;
                grad = (cr_head_grad_args){
                    a,           M(g),        s % 2 ? cr_at(CR_F32, M(g), R) : NULL,
                    M(dx_words), M(dw_words), &of_ids};
                OK(cr_head(on, &a, &err));
                OK(cr_head_grad(on, &grad, &err));
            }
            check("head and head_grad");
        }
}

/* By bytes on the device: rows alone, and generation's way by rows of logits. */
static void head_alone_and_by_logits(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        enum { d = 1, R = 67, K = 40, V = 1100 };
        cr_dtype dt = act[t];
        int x = floats(dt, R * K, 1, 0), w = floats(dt, V * K, 0.5, 0), labels = some_ints(R, V),
            out = floats(CR_F32, 2 * R, 1, 0), z = floats(CR_F32, R * V, 1, 0);
        cr_weight weight = {M(w), dt, V, K, NULL};
        cr_head_args a = {.x = M(x),
                          .w = &weight,
                          .labels = M(labels),
                          .num_rows = R,
                          .log_prob = M(out),
                          .entropy = cr_at(CR_F32, M(out), R)};
        float one[R], entropy[R];
        OK(cr_head(dev, &a, &err));
        char *whole = fetched(out), *part;
        for (int64_t r = 0; r < R; r += 33) {
            cr_head_args b = a;
            cr_logits_args l = {cr_at(dt, M(x), r * K), &weight, R - r < 33 ? R - r : 33,
                                cr_at(CR_F32, M(z), r * V)};
            b.x = cr_at(dt, M(x), r * K), b.labels = cr_mem_add(M(labels), (size_t)r * 4),
            b.num_rows = 1;
            b.log_prob = cr_at(CR_F32, M(out), r), b.entropy = cr_at(CR_F32, M(out), R + r);
            OK(cr_head(dev, &b, &err));
            OK(cr_logits(dev, &l, &err));
        }
        part = fetched(out);
        assert_memory_equal(part, whole, 2 * R * 4);
        OK(cr_logits_log_prob(
            dev, &(cr_logits_log_prob_args){M(z), R, V, M(labels), NULL, one, entropy}, &err));
        assert_memory_equal(one, whole, R * 4);
        assert_memory_equal(entropy, whole + R * 4, R * 4);
        cr_free(whole), cr_free(part);
        drop_all();
    }
}

/* ---- experts ---- */

static void experts(void **state)
{
    static const int64_t shape[][3] = {
        {1, 1, 1}, {37, 8, 2}, {70, 60, 4}, {130, 33, 33}}; /* T, E, k */

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 3; t++)
            for (int should_norm = 0; should_norm < 2; should_norm++) {
                int64_t T = shape[s][0], E = shape[s][1], k = shape[s][2], n = 70, count[2][64];
                double sums[2][64] = {0}, bit = act[t] == CR_F32 ? 1e-6 : 0x1p-7;
                cr_dtype dt = act[t];
                /* logits in float32 are all different, so that the order is sure */
                int logits = floats(dt, T * E, 2, 0), prob = floats(CR_F32, T * E, 1, 1e-6),
                    weight = floats(CR_F32, T * k, 1, bit), expert = some_ints(T * k, 2),
                    dw = floats(CR_F32, T * k, 1, 0), aux = floats(CR_F32, E, 1, 0),
                    dz = floats(dt, T * E, 1, bit), slot = some_ints(T * k, 2),
                    token = some_ints(T * k, 2), x = floats(dt, T * k * n, 1, 0),
                    y = floats(dt, T * n, 1, bit * 8), add_to = floats(dt, T * n, 1, 0),
                    dot = floats(CR_F32, T, 1, 1e-5), factor = floats(CR_F32, T, 1, 0),
                    scaled = floats(dt, T * n, 1, bit), keys = floats(CR_F32, 2 * T, 1, 0),
                    dropped = floats(dt, T * n, 1, bit);
                for (int d = 0; d < 2; d++) {
                    cr_device *on = d ? dev : cpu;
                    cr_router_args r = {M(logits), dt,      should_norm, T,         E,
                                        k,         M(prob), M(expert),   M(weight), sums[d]};
                    OK(cr_router(on, &r, &err));
                    OK(cr_router_grad(
                        on, &(cr_router_grad_args){r, M(dw), t ? M(aux) : NULL, M(dz)}, &err));
                    OK(cr_expert_sort(
                        on, &(cr_expert_sort_args){M(expert), T, k, E, M(slot), M(token), count[d]},
                        &err));
                    OK(cr_rows_combine(on,
                                       &(cr_rows_combine_args){M(x), should_norm ? M(add_to) : NULL,
                                                               M(slot), s % 2 ? M(weight) : NULL,
                                                               M(y), dt, T, k, n},
                                       &err));
                    OK(cr_rows_dot(on, &(cr_rows_dot_args){dt, M(x), M(add_to), T, n, M(dot)},
                                   &err));
                    OK(cr_rows_scale(
                        on, &(cr_rows_scale_args){dt, M(x), M(factor), T, n, M(scaled)}, &err));
                    OK(cr_rows_drop(on,
                                    &(cr_rows_drop_args){dt, M(x), s % 2 ? M(add_to) : NULL,
                                                         M(keys), 0x123456789ABCDEF, 0.3, T, n,
                                                         M(dropped)},
                                    &err));
                }
                for (int64_t e = 0; e < E; e++) {
                    check_near(sums[1][e], sums[0][e], 1e-5 * (double)T);
                    assert_int_equal(count[0][e], count[1][e]);
                }
                check("experts");
            }
}

/* Rows of experts, some without any, one past a tile; N, K */
enum { GROUP = 5 };
static const int64_t of_group[][GROUP] = {{3, 0, 65, 1, 128}, {0, 0, 7, 0, 0}, {64, 64, 0, 5, 63}};
static const int64_t group_shapes[][2] = {{136, 72}, {40, 264}, {33, 65}};

typedef struct grouped {
    int64_t rows, N, K;
    cr_dtype dtype;
    int x, dy, w[GROUP], y, dx, dw[GROUP];
} grouped;

static grouped make_grouped(const int64_t *of, const int64_t *shape, cr_dtype dt)
{
    grouped g = {.N = shape[0], .K = shape[1], .dtype = dt};
    double slack = dt == CR_F32 ? 0 : 0x1p-6;

    for (int e = 0; e < GROUP; e++)
        g.rows += of[e];
    g.x = floats(dt, g.rows * g.K, 1, 0), g.dy = floats(dt, g.rows * g.N, 1, 0);
    g.y = floats(dt, g.rows * g.N, 1, 4e-6 * sqrt((double)g.K) + slack);
    g.dx = floats(dt, g.rows * g.K, 1, 4e-6 * sqrt((double)g.N) + slack);
    for (int e = 0; e < GROUP; e++) {
        g.w[e] = floats(dt, g.N * g.K, 0.3, 0);
        g.dw[e] = floats(CR_F32, g.N * g.K, 1, 4e-6 * sqrt((double)of[e]));
    }
    return g;
}

/* Experts from `first` on, whose rows begin at `at`. Expert 2's weight is frozen. */
static void run_grouped(const grouped *g, int d, const int64_t *of, int first, int num, int64_t at,
                        bool is_added)
{
    cr_weight w[GROUP];
    const cr_weight *ws[GROUP];
    cr_mem *dw[GROUP];
    cr_dtype dt = g->dtype;

    for (int e = 0; e < num; e++) {
        w[e] = (cr_weight){M(g->w[first + e]), dt, g->N, g->K, NULL};
        ws[e] = &w[e];
        dw[e] = first + e == 2 ? NULL : M(g->dw[first + e]);
    }
    OK(cr_expert_linear(d ? dev : cpu,
                        &(cr_expert_linear_args){cr_at(dt, M(g->x), at * g->K), ws, of + first, num,
                                                 cr_at(dt, M(g->y), at * g->N)},
                        &err));
    OK(cr_expert_linear_grad(d ? dev : cpu,
                             &(cr_expert_linear_grad_args){
                                 cr_at(dt, M(g->x), at * g->K), cr_at(dt, M(g->dy), at * g->N), ws,
                                 of + first, num, cr_at(dt, M(g->dx), at * g->K), is_added, dw},
                             &err));
}

static void grouped_products(void **state)
{
    (void)state;
    for (size_t i = 0; i < CR_COUNT(of_group); i++)
        for (size_t s = 0; s < CR_COUNT(group_shapes); s++)
            for (int t = 0; t < 3; t++) {
                if (act[t] != CR_BF16 && (i + s + (size_t)t) % 3) continue;
                grouped g = make_grouped(of_group[i], group_shapes[s], act[t]);
                for (int d = 0; d < 2; d++)
                    run_grouped(&g, d, of_group[i], 0, GROUP, 0, s % 2);
                check("expert_linear and expert_linear_grad");
            }
}

/* By bytes: each expert alone gives what the group gives, and its rows one by one as well. */
static void grouped_products_alone(void **state)
{
    enum { d = 1 };

    (void)state;
    for (size_t i = 0; i < CR_COUNT(of_group); i++)
        for (size_t s = 0; s < CR_COUNT(group_shapes); s++) {
            grouped g = make_grouped(of_group[i], group_shapes[s], CR_BF16);
            int of[2 + GROUP] = {g.y, g.dx};
            char *whole[2 + GROUP], *part;
            memcpy(of + 2, g.dw, sizeof g.dw);
            for (int pass = 0; pass < 3; pass++) {
                int64_t at = 0;
                int num = pass < 2 ? 2 + GROUP : 2; /* dw is a sum over rows */
                for (int e = 0; e < GROUP; e++)
                    OK(cr_zero(dev, M(g.dw[e]), bytes_of(&all[g.dw[e]]), &err));
                if (pass == 0) run_grouped(&g, d, of_group[i], 0, GROUP, 0, false);
                for (int e = 0; pass > 0 && e < GROUP; at += of_group[i][e++])
                    for (int64_t row = 0, step; row < of_group[i][e]; row += step) {
                        int64_t one[GROUP];
                        step = pass == 1 ? of_group[i][e] : 1 + row % 3;
                        if (step > of_group[i][e] - row) step = of_group[i][e] - row;
                        one[e] = step;
                        run_grouped(&g, d, one, e, 1, at + row, false);
                    }
                for (int a = 0; a < num; a++) {
                    part = fetched(of[a]);
                    if (pass) assert_memory_equal(part, whole[a], bytes_of(&all[of[a]]));
                    if (pass == 0) whole[a] = part;
                    if (pass) cr_free(part);
                }
            }
            for (int a = 0; a < 2 + GROUP; a++)
                cr_free(whole[a]);
            drop_all();
        }
}

/* [pattern]: the tests whose names match. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts),
        cmocka_unit_test(flat_ranges),
        cmocka_unit_test(checksums),
        cmocka_unit_test(products),
        cmocka_unit_test(product_rows_alone),
        cmocka_unit_test(products_of_the_same_rows),
        cmocka_unit_test(norms),
        cmocka_unit_test(rope),
        cmocka_unit_test(qk_heads),
        cmocka_unit_test(activations),
        cmocka_unit_test(moves),
        cmocka_unit_test(head),
        cmocka_unit_test(head_alone_and_by_logits),
        cmocka_unit_test(experts),
        cmocka_unit_test(grouped_products),
        cmocka_unit_test(grouped_products_alone),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return on_both_devices(tests);
}
