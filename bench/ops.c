/* ops.c -- seconds of single operations in bf16 on the device of CROLL_DEVICE: `bench_ops REPEATS OP=SIZES ..`, a JSON line for each:
 *
 *     copy=BYTES                cr_copy; a number of float32
 *     checksum=BYTES
 *     adamw=ELEMENTS            masters, moments and gradients in float32
 *     rmsnorm=ROWSxCOLS         and rmsnorm_grad: with rstd kept, and the weight's gradient
 *     attention=TxHxKxD         and attention_grad: one causal sequence of T tokens, H heads, K kv heads, D a head
 *     head=ROWSxVOCABxHIDDEN    and head_grad: log-probs of labels, both gradients
 *
 * {"case", "seconds" of the median, "best_s", "flops" and "moved_bytes" as the device counts them in a call}. How they are timed:
 * lab.h. bench/gpu_speed says what they come to; products: products.c.
 */
#include "bench/lab.h"
#include "kernels/attention.h"

#include <stdio.h>

enum { MAX_SIZES = 4, MAX_ARRAYS = 12 };

/* An operation with its sizes, and its arrays. */
typedef struct bench_op {
    int64_t n[MAX_SIZES];
    cr_mem *mem[MAX_ARRAYS];
    size_t bytes[MAX_ARRAYS];
    int num_arrays;
} bench_op;

static cr_status add(lab *l, bench_op *o, cr_dtype dtype, int64_t num, cr_mem **out, cr_err *err)
{
    CR_CHECK(o->num_arrays < MAX_ARRAYS, "more than %d arrays", MAX_ARRAYS);
    o->bytes[o->num_arrays] = (size_t)num * cr_dtype_bytes(dtype);
    CR_TRY(lab_fill(l, dtype, num, out, err));
    o->mem[o->num_arrays++] = *out;
    return CR_OK;
}

static cr_status add_zeros(lab *l, bench_op *o, int64_t num_bytes, cr_mem **out, cr_err *err)
{
    CR_CHECK(o->num_arrays < MAX_ARRAYS, "more than %d arrays", MAX_ARRAYS);
    o->bytes[o->num_arrays] = (size_t)num_bytes;
    CR_TRY(cr_device_alloc(l->dev, (size_t)num_bytes, out, err));
    o->mem[o->num_arrays++] = *out;
    return cr_zero(l->dev, *out, (size_t)num_bytes, err);
}

/* Measured and printed; name with the sizes as they were asked for. */
static cr_status report(lab *l, const char *name, const char *sizes, lab_call *call, void *ctx,
                        cr_err *err)
{
    lab_cost c;

    CR_TRY(lab_measure(l, call, ctx, &c, err));
    printf("{\"peer\":\"croll\",\"case\":\"%s=%s\",\"seconds\":%.6g,\"best_s\":%.6g,\"flops\":%.9g,"
           "\"moved_bytes\":%.9g}\n",
           name, sizes, c.median_s, c.best_s, c.flops, c.moved_bytes);
    fflush(stdout);
    return CR_OK;
}

static cr_status call_copy(lab *l, void *ctx, cr_err *err)
{
    const bench_op *o = ctx;

    return cr_copy(l->dev, o->mem[1], o->mem[0], o->bytes[0], err);
}

static cr_status copy(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    cr_mem *unused;

    CR_TRY(add(l, o, CR_F32, o->n[0] / 4, &unused, err));
    CR_TRY(add_zeros(l, o, o->n[0] / 4 * 4, &unused, err));
    return report(l, "copy", sizes, call_copy, o, err);
}

static cr_status call_checksum(lab *l, void *ctx, cr_err *err)
{
    const bench_op *o = ctx;
    uint64_t sum;

    return cr_checksum(l->dev, &(cr_checksum_args){o->mem[0], o->bytes[0], 1, &sum}, err);
}

static cr_status checksum(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    cr_mem *unused;

    CR_TRY(add(l, o, CR_F32, o->n[0] / 4, &unused, err));
    return report(l, "checksum", sizes, call_checksum, o, err);
}

#define CALL(name)                                                           \
    static cr_status call_##name(lab *l, void *ctx, cr_err *err)             \
    {                                                                        \
        return cr_##name(l->dev, (const struct cr_##name##_args *)ctx, err); \
    }
CALL(adamw)
CALL(rmsnorm)
CALL(rmsnorm_grad)
CALL(attention)
CALL(attention_grad)
CALL(head)
CALL(head_grad)

static cr_status adamw(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    cr_adamw_args a = {.num = (size_t)o->n[0],
                       .lr = 1e-6,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .eps = 1e-8,
                       .grad_scale = 1,
                       .t = 1};
    cr_mem *grad;

    CR_TRY(add(l, o, CR_F32, o->n[0], &a.param, err));
    CR_TRY(add(l, o, CR_F32, o->n[0], &grad, err));
    CR_TRY(add_zeros(l, o, 4 * o->n[0], &a.m, err));
    CR_TRY(add_zeros(l, o, 4 * o->n[0], &a.v, err));
    a.grad = grad;
    return report(l, "adamw", sizes, call_adamw, &a, err);
}

static cr_status rmsnorm(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    int64_t rows = o->n[0], cols = o->n[1];
    cr_mem *x, *weight, *y, *rstd, *dx, *dweight;
    cr_rmsnorm_args a = {.dtype = CR_BF16, .num_rows = rows, .num_cols = cols, .eps = 1e-6f};
    cr_rmsnorm_grad_args g = {.dtype = CR_BF16, .num_rows = rows, .num_cols = cols};

    CR_TRY(add(l, o, CR_BF16, rows * cols, &x, err));
    CR_TRY(add(l, o, CR_BF16, cols, &weight, err));
    CR_TRY(add(l, o, CR_BF16, rows * cols, &y, err));
    CR_TRY(add_zeros(l, o, rows * 4, &rstd, err));
    CR_TRY(add_zeros(l, o, rows * cols * 2, &dx, err));
    CR_TRY(add_zeros(l, o, cols * 4, &dweight, err));
    a.x = g.x = x, a.weight = g.weight = weight, a.y = y, g.dy = y, a.rstd = rstd, g.rstd = rstd;
    g.dx = dx, g.dweight = dweight;
    CR_TRY(report(l, "rmsnorm", sizes, call_rmsnorm, &a, err));
    return report(l, "rmsnorm_grad", sizes, call_rmsnorm_grad, &g, err);
}

static cr_status attention(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    int64_t length = o->n[0], heads = o->n[1], kv_heads = o->n[2], dim = o->n[3];
    const int32_t cu_seqlens[] = {0, (int32_t)length};
    cr_mem *q, *k, *v, *d_o, *cu;
    cr_attention_grad_args g = {
        .fwd = {.dtype = CR_BF16,
                .num_seqs = 1,
                .num_heads = heads,
                .num_kv_heads = kv_heads,
                .head_dim = dim,
                .scale = 0.1f,
                .sizes = {length, 0.5 * (double)length * (double)(length + 1), length}}};

    CR_TRY(add(l, o, CR_BF16, length * heads * dim, &q, err));
    CR_TRY(add(l, o, CR_BF16, length * kv_heads * dim, &k, err));
    CR_TRY(add(l, o, CR_BF16, length * kv_heads * dim, &v, err));
    CR_TRY(add(l, o, CR_BF16, length * heads * dim, &d_o, err));
    CR_TRY(add_zeros(l, o, length * heads * dim * 2, &g.fwd.o, err));
    CR_TRY(add_zeros(l, o, length * heads * 4, &g.fwd.lse, err));
    CR_TRY(add_zeros(l, o, length * heads * dim * 2, &g.dq, err));
    CR_TRY(add_zeros(l, o, length * kv_heads * dim * 2, &g.dk, err));
    CR_TRY(add_zeros(l, o, length * kv_heads * dim * 2, &g.dv, err));
    CR_TRY(add_zeros(l, o, sizeof cu_seqlens, &cu, err));
    CR_TRY(cr_upload(l->dev, cu, cu_seqlens, sizeof cu_seqlens, err));
    g.fwd.q = q, g.fwd.k = k, g.fwd.v = v, g.fwd.cu_seqlens = cu, g.d_o = d_o;
    CR_TRY(report(l, "attention", sizes, call_attention, &g.fwd, err));
    return report(l, "attention_grad", sizes, call_attention_grad, &g, err);
}

static cr_status head(lab *l, bench_op *o, const char *sizes, cr_err *err)
{
    int64_t rows = o->n[0], vocab = o->n[1], hidden = o->n[2];
    cr_mem *x, *w, *labels, *grad_log_prob;
    cr_weight weight = {NULL, CR_BF16, vocab, hidden, NULL};
    cr_head_grad_args g = {.fwd = {.w = &weight, .num_rows = rows}};

    CR_TRY(add(l, o, CR_BF16, rows * hidden, &x, err));
    CR_TRY(add(l, o, CR_BF16, vocab * hidden, &w, err));
    CR_TRY(add(l, o, CR_F32, rows, &grad_log_prob, err));
    CR_TRY(add_zeros(l, o, rows * 4, &labels, err)); /* the first word */
    CR_TRY(add_zeros(l, o, rows * 4, &g.fwd.log_prob, err));
    CR_TRY(add_zeros(l, o, rows * 4, &g.fwd.lse, err));
    CR_TRY(add_zeros(l, o, rows * 4, &g.fwd.mean_z, err));
    CR_TRY(add_zeros(l, o, rows * hidden * 2, &g.dx, err));
    CR_TRY(add_zeros(l, o, vocab * hidden * 4, &g.dw, err));
    weight.data = w, g.fwd.x = x, g.fwd.labels = labels, g.grad_log_prob = grad_log_prob;
    CR_TRY(report(l, "head", sizes, call_head, &g.fwd, err));
    return report(l, "head_grad", sizes, call_head_grad, &g, err);
}

static cr_status run(lab *l, const char *arg, cr_err *err)
{
    static const struct {
        const char *name;
        int num_sizes;
        cr_status (*run)(lab *l, bench_op *o, const char *sizes, cr_err *err);
    } ops[] = {{"copy", 1, copy},       {"checksum", 1, checksum},   {"adamw", 1, adamw},
               {"rmsnorm", 2, rmsnorm}, {"attention", 4, attention}, {"head", 3, head}};
    const char *sizes = strchr(arg, '=');
    bench_op o = {.num_arrays = 0};

    for (size_t i = 0; sizes && i < CR_COUNT(ops); i++) {
        char *at = (char *)(uintptr_t)sizes;
        int num = 0;
        if (strlen(ops[i].name) != (size_t)(sizes - arg) ||
            strncmp(arg, ops[i].name, (size_t)(sizes - arg)) != 0)
            continue;
        do
            o.n[num] = strtoll(at + 1, &at, 10);
        while (o.n[num++] > 0 && *at == 'x' && num < MAX_SIZES);
        if (num != ops[i].num_sizes || *at || o.n[num - 1] < 1) break;
        cr_note(ops[i].run(l, &o, sizes + 1, err));
        for (int m = 0; m < o.num_arrays; m++)
            cr_device_free(l->dev, o.mem[m], o.bytes[m]);
        return err->status;
    }
    return cr_fail(err, CR_EUSAGE, "\"%s\" is no operation with its sizes", arg);
}

int main(int argc, char **argv)
{
    lab l = {.threads = 1, .repeats = argc > 1 ? atoi(argv[1]) : 0};
    cr_err err = {0};

    if (argc < 3 || l.repeats < 1 || l.repeats > LAB_MAX_REPEATS) {
        fprintf(
            stderr,
            "usage: bench_ops REPEATS OP=SIZES .. (REPEATS: 1 to 99; operations: bench/ops.c)\n");
        return 2;
    }
    if (cr_device_open(cr_device_default(), l.threads, &l.dev, &err) == CR_OK)
        for (int i = 2; i < argc && err.status == CR_OK; i++)
            cr_note(run(&l, argv[i], &err));
    cr_device_close(l.dev);
    if (err.status == CR_OK) return 0;
    fprintf(stderr, "bench_ops: %s\n", err.msg);
    return 1;
}
