/* kernels_head.c -- the vocabulary head and its gradients, also of a loss over some ids, against plain loops in double, at awkward shapes and
 * in each dtype. Inputs are rounded to the dtype first, so the tolerance is that of one rounded output plus float32 sums. Runs on every
 * instruction set of the CPU. Not covered: processors, ranks and the largest logits (kernels_sampled).
 */
#include "kernels/attention.h"
#include "tests/arrays.h"
#include "tests/each_cpu.h"

/* The gradient of a loss over ids: given derivatives of some ids, all others by their probability at a temperature. */
static void over_ids(cr_dtype dt, int64_t R, int64_t k, int64_t V, float T)
{
    enum { IDS = 5 };
    array x = make(dt, R * k, 1), w = make(dt, V * k, 0.5);
    int32_t *labels = CR_NEW_ARRAY(int32_t, R), *ids = CR_NEW_ARRAY(int32_t, R * IDS);
    float *out = CR_NEW_ARRAY(float, 4 * R), *dw = CR_NEW_ARRAY(float, V *k),
          *g = CR_NEW_ARRAY(float, (2 + 2 * IDS) * R), *rest = g + R, *dz = rest + R,
          *chosen = dz + R * IDS, *log_sum = CR_NEW_ARRAY(float, R);
    double *wx = CR_NEW_ARRAY(double, R *k), *ww = CR_NEW_ARRAY(double, V *k),
           *z = CR_NEW_ARRAY(double, V), *d = CR_NEW_ARRAY(double, V);
    void *dx = cr_alloc((size_t)(R * k) * 4);
    cr_weight weight = {w.data, dt, V, k, NULL};
    cr_head_chosen of_ids = {MEM(dz), MEM(rest), MEM(log_sum), T};
    cr_head_grad_args a = {{.x = x.data,
                            .w = &weight,
                            .labels = MEM(labels),
                            .num_rows = R,
                            .lse = MEM(out),
                            .mean_z = MEM(out + R),
                            .num_chosen = IDS,
                            .chosen_ids = MEM(ids),
                            .chosen_log_prob = MEM(chosen)},
                           MEM(g),
                           NULL,
                           dx,
                           MEM(dw),
                           &of_ids};

    for (int64_t r = 0; r < R; r++) {
        labels[r] = (int32_t)(r * 37 % V);
        g[r] = 0.3f * (float)(r % 3) - 0.2f;
        rest[r] = r % 4 ? 0.4f * (float)(r % 5) - 0.7f : 0;
        for (int64_t i = 0; i < IDS;
             i++) { /* the label among them, one at the end, one without a id */
            ids[r * IDS + i] = i == 3 ? -1 : (int32_t)((r * 37 + i * (V - 1) / (IDS - 1)) % V);
            dz[r * IDS + i] = 0.25f * (float)(i + r % 2) - 0.4f;
        }
    }
    OK(cr_head(dev, &a.fwd, &err));
    for (int64_t r = 0; r < R; r++) {
        double lse = 0, soft = 0;
        for (int64_t v = 0; v < V; v++) {
            z[v] = 0;
            for (int64_t i = 0; i < k; i++)
                z[v] += x.x[r * k + i] * w.x[v * k + i];
            lse += exp(z[v]);
            soft += exp(z[v] / T);
        }
        log_sum[r] = (float)log(soft);
        for (int64_t v = 0; v < V; v++) {
            double p = exp(z[v]) / lse;
            d[v] = g[r] * ((v == labels[r]) - p);
            for (int64_t i = 0; i <= IDS; i++) {
                if (i < IDS && ids[r * IDS + i] != v) continue;
                d[v] += i < IDS ? (double)dz[r * IDS + i] : rest[r] * exp(z[v] / T) / soft;
                break;
            }
            for (int64_t i = 0; i < k; i++) {
                wx[r * k + i] += d[v] * w.x[v * k + i];
                ww[v * k + i] += d[v] * x.x[r * k + i];
            }
        }
    }
    OK(cr_head_grad(dev, &a, &err));
    for (int64_t i = 0; i < R * k; i++)
        check_near(get(dx, dt, i), wx[i], (dt != CR_F32 ? 0.02 : 2e-5) * (1 + fabs(wx[i])));
    for (int64_t i = 0; i < V * k; i++)
        check_near(dw[i], ww[i], (dt != CR_F32 ? 0.02 : 2e-5) * (1 + fabs(ww[i])));
    drop(x), drop(w);
    cr_free(labels), cr_free(ids), cr_free(out), cr_free(dw), cr_free(g), cr_free(log_sum);
    cr_free(wx), cr_free(ww), cr_free(z), cr_free(d), cr_free(dx);
}

static void loss_over_ids(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        over_ids(both[t], 3, 16, 11, 1);
        over_ids(both[t], 100, 24, 1000, 1);
        over_ids(both[t], 7, 33, 1300, 1.7f);
    }
}

static void c35_head_and_its_gradient(void **state)
{
    static const int64_t shape[][3] = {
        {3, 16, 7}, {100, 24, 1000}, {7, 33, 1300}, {3, 8, 151936}}; /* R, h, V */

    (void)state;
    for (size_t s = 0; s < CR_COUNT(shape); s++)
        for (int t = 0; t < 2; t++) {
            cr_dtype dt = both[t];
            int64_t R = shape[s][0], k = shape[s][1], V = shape[s][2];
            array x = make(dt, R * k, 1), w = make(dt, V * k, 0.5);
            int32_t *labels = CR_NEW_ARRAY(int32_t, R);
            float *out = CR_NEW_ARRAY(float, 8 * R), *dw = CR_NEW_ARRAY(float, V *k),
                  *logits = CR_NEW_ARRAY(float, R *V);
            double *wx = CR_NEW_ARRAY(double, R *k), *ww = CR_NEW_ARRAY(double, V *k),
                   *z = CR_NEW_ARRAY(double, V);
            void *dx = cr_alloc((size_t)(R * k) * 4);
            cr_weight weight = {w.data, dt, V, k, NULL};
            cr_head_grad_args a = {{x.data, &weight, MEM(labels), R, MEM(out), MEM(out + R),
                                    MEM(out + 2 * R), MEM(out + 3 * R)},
                                   MEM(out + 4 * R),
                                   MEM(out + 5 * R),
                                   dx,
                                   MEM(dw)};
            for (int64_t r = 0; r < R; r++) {
                labels[r] = (int32_t)(r * 37 % V);
                out[4 * R + r] = (float)(r % 3) - 1;
                out[5 * R + r] = 0.1f * (float)(r % 5);
            }
            OK(cr_head(dev, &a.fwd, &err));
            OK(cr_head_grad(dev, &a, &err));
            for (int64_t r = 0; r < R; r++) {
                double max = -INFINITY, sum = 0, mean = 0, lse, entropy;
                for (int64_t v = 0; v < V; v++) {
                    z[v] = 0;
                    for (int64_t i = 0; i < k; i++)
                        z[v] += x.x[r * k + i] * w.x[v * k + i];
                    max = fmax(max, z[v]);
                }
                for (int64_t v = 0; v < V; v++)
                    sum += exp(z[v] - max);
                lse = max + log(sum);
                for (int64_t v = 0; v < V; v++)
                    mean += exp(z[v] - lse) * z[v];
                entropy = lse - mean;
                check_near(out[r], z[labels[r]] - lse, 1e-5);
                check_near(out[R + r], entropy, 1e-5 * (1 + fabs(entropy)));
                for (int64_t v = 0; v < V; v++) {
                    double p = exp(z[v] - lse),
                           dz = F32(a.grad_log_prob)[r] * ((v == labels[r]) - p) -
                                F32(a.grad_entropy)[r] * p * (z[v] - mean);
                    for (int64_t i = 0; i < k; i++) {
                        wx[r * k + i] += dz * w.x[v * k + i];
                        ww[v * k + i] += dz * x.x[r * k + i];
                    }
                }
            }
            for (int64_t i = 0; i < R * k; i++)
                check_near(get(dx, dt, i), wx[i], (dt != CR_F32 ? 0.02 : 2e-5) * (1 + fabs(wx[i])));
            for (int64_t i = 0; i < V * k; i++)
                check_near(dw[i], ww[i], (dt != CR_F32 ? 0.02 : 2e-5) * (1 + fabs(ww[i])));
            float *log_prob = out + 6 * R,
                  *entropy = out + 7 * R; /* generation's way: the same bits */
            for (int64_t r = 0; r < R; r++)
                OK(cr_logits(
                    dev,
                    &(cr_logits_args){MEM((char *)x.data + (size_t)(r * k) * cr_dtype_bytes(dt)),
                                      &weight, 1, MEM(logits + r * V)},
                    &err));
            OK(cr_logits_log_prob(
                dev,
                &(cr_logits_log_prob_args){MEM(logits), R, V, MEM(labels), NULL, log_prob, entropy},
                &err));
            assert_memory_equal(log_prob, out, (size_t)R * 4);
            assert_memory_equal(entropy, out + R, (size_t)R * 4);
            drop(x), drop(w);
            cr_free(labels), cr_free(out), cr_free(dw), cr_free(logits), cr_free(wx), cr_free(ww),
                cr_free(z), cr_free(dx);
        }
}

static int group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_over_ids),
        cmocka_unit_test(c35_head_and_its_gradient),
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
