/* products.c -- GFLOP/s of a Linear's products: `bench_products [threads] [fp32|bf16] [repeats] [MxNxK ..]`, defaults 1 bf16
 * 15, on the device of CROLL_DEVICE. A JSON line for each shape, or those of SmolLM2-135M (N x K 1536x576, 576x1536, 576x576, head
 * 49152x576) and M = 16, 64, 256, 512: y = x W^T with W as it lies and packed, dx = dy W, dw += dy^T x. [best, median,
 * seconds of the median, FLOPs as the device counts them]; the GFLOP/s are of 2 M N K, a multiplication and an
 * addition for each of M N sums of K. core_peak: peak.h, measured before the shape. own_sizes: weights whose products cuBLASLt should make, and croll's own kernels do,
 * because it keeps no promise for them. How they are timed: lab.h.
 */
#include "bench/lab.h"
#include "bench/peak.h"
#include "kernels/gpu.h"
#include "kernels/kernels.h"

#include <stdio.h>

typedef struct shape {
    int64_t m, n, k;
} shape;

enum { Y, Y_PACKED, DX, DW };
typedef struct product {
    int what;
    const cr_linear_args *y;
    const cr_linear_grad_args *grad;
} product;

static cr_status once(lab *l, void *ctx, cr_err *err)
{
    const product *p = ctx;
    cr_linear_grad_args only = *p->grad;

    if (p->what <= Y_PACKED) return cr_linear(l->dev, p->y, err);
    if (p->what == DX) only.dw = NULL;
    if (p->what == DW) only.dx = NULL;
    return cr_linear_grad(l->dev, &only, err);
}

static cr_status measure(lab *l, shape s, product *p, cr_err *err)
{
    static const char *const names[] = {"y", "y_packed", "dx", "dw"};
    double gflop = 2e-9 * (double)s.m * (double)s.n * (double)s.k;
    lab_cost cost;

    CR_TRY(lab_measure(l, once, p, &cost, err));
    printf("%s\"%s\":[%.4g,%.4g,%.6g,%.9g]", p->what ? "," : "", names[p->what],
           gflop / cost.best_s, gflop / cost.median_s, cost.median_s, cost.flops);
    return CR_OK;
}

/* Of those met so far. */
static int own_sizes(const lab *l)
{
    cr_gpu_products p = {0};

    if (cr_device_is_gpu(l->dev)) p = cr_gpu_get_products(l->dev);
    return p.num_sizes - p.num_taken;
}

static cr_status run(lab *l, cr_dtype dtype, shape s, cr_err *err)
{
    enum { X, W, DY, OUT_Y, OUT_DX, OUT_DW, PACKED, NUM };
    size_t bytes = cr_dtype_bytes(dtype),
           sizes[NUM] = {
               [X] = (size_t)(s.m * s.k) * bytes,      [W] = (size_t)(s.n * s.k) * bytes,
               [DY] = (size_t)(s.m * s.n) * bytes,     [OUT_Y] = (size_t)(s.m * s.n) * bytes,
               [OUT_DX] = (size_t)(s.m * s.k) * bytes, [OUT_DW] = (size_t)(s.n * s.k) * 4};
    cr_mem *mem[NUM] = {NULL};
    cr_weight weight = {NULL, dtype, s.n, s.k, NULL}, with;
    cr_linear_args to_y = {.out_dtype = dtype, .num_rows = s.m};
    int own_before;
    cr_linear_grad_args grad = {.w = &weight, .num_rows = s.m};

    for (int i = X; i <= DY; i++)
        CR_TRY(lab_fill(l, dtype, (int64_t)(sizes[i] / bytes), &mem[i], err));
    weight.data = mem[W];
    sizes[PACKED] = cr_weight_packed_bytes(l->dev, &weight);
    for (int i = OUT_Y; i < NUM; i++)
        CR_TRY(cr_device_alloc(l->dev, sizes[i], &mem[i], err));
    CR_TRY(cr_zero(l->dev, mem[OUT_DW], sizes[OUT_DW], err));
    own_before = own_sizes(l);
    CR_TRY(cr_weight_pack(l->dev, &(cr_weight_pack_args){&weight, mem[PACKED]}, err));
    with = weight, with.packed = mem[PACKED];
    to_y.x = grad.x = mem[X], to_y.y = mem[OUT_Y];
    grad.dy = mem[DY], grad.dx = mem[OUT_DX], grad.dw = mem[OUT_DW];
    printf(
        "{\"peer\":\"croll\",\"device\":\"%s\",\"variant\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,"
        "\"m\":%lld,\"n\":%lld,\"k\":%lld,\"core_peak\":%.4g,",
        cr_device_name(l->dev), cr_device_variant(l->dev), cr_dtype_name(dtype), l->threads,
        (long long)s.m, (long long)s.n, (long long)s.k, peak_gflops(l, dtype));
    for (int what = Y; what <= DW; what++) {
        to_y.w = what == Y_PACKED ? &with : &weight;
        CR_TRY(measure(l, s, &(product){what, &to_y, &grad}, err));
    }
    printf(",\"own_sizes\":%d}\n", own_sizes(l) - own_before);
    fflush(stdout);
    for (int i = 0; i < NUM; i++)
        cr_device_free(l->dev, mem[i], sizes[i]);
    return CR_OK;
}

static cr_status run_all(lab *l, cr_dtype dtype, int num, char **shapes, cr_err *err)
{
    static const int64_t m[] = {16, 64, 256, 512},
                         nk[][2] = {{1536, 576}, {576, 1536}, {576, 576}, {49152, 576}};

    for (int i = 0; i < num; i++) {
        long long a, b, c;
        char end;
        if (sscanf(shapes[i], "%lldx%lldx%lld%c", &a, &b, &c, &end) != 3 || a < 1 || b < 1 || c < 1)
            return cr_fail(err, CR_EUSAGE, "\"%s\" is no MxNxK", shapes[i]);
        CR_TRY(run(l, dtype, (shape){a, b, c}, err));
    }
    for (size_t i = 0; i < CR_COUNT(nk) && num == 0; i++)
        for (size_t j = 0; j < CR_COUNT(m); j++)
            CR_TRY(run(l, dtype, (shape){m[j], nk[i][0], nk[i][1]}, err));
    return CR_OK;
}

int main(int argc, char **argv)
{
    lab l = {.threads = argc > 1 ? atoi(argv[1]) : 1, .repeats = argc > 3 ? atoi(argv[3]) : 15};
    cr_dtype dtype = argc > 2 && strcmp(argv[2], "fp32") == 0 ? CR_F32 : CR_BF16;
    cr_err err = {0};

    if (l.threads < 1 || l.repeats < 1 || l.repeats > LAB_MAX_REPEATS) {
        fprintf(stderr,
                "usage: bench_products [threads] [fp32|bf16] [repeats: 1 to 99] [MxNxK ..]\n");
        return 2;
    }
    if (cr_device_open(cr_device_default(), l.threads, &l.dev, &err) == CR_OK)
        cr_note(run_all(&l, dtype, argc > 4 ? argc - 4 : 0, argv + 4, &err));
    cr_device_close(l.dev);
    if (err.status == CR_OK) return 0;
    fprintf(stderr, "bench_products: %s\n", err.msg);
    return 1;
}
