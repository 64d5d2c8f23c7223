/* measure.c -- see measure.h. Shapes are those of a layer of a small model: large enough for full speed, small enough for
 * a core. AdamW's arrays are past every cache of one. */
#include "kernels/measure.h"
#include "kernels/attention.h"

#include <string.h>

enum {
    ROWS = 512, /* tokens */
    COLS = 2048,
    LENGTH = 1024, /* one sequence */
    HEADS = 16,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    ELEMS = 1 << 24, /* of AdamW */
    MIN_CALLS = 3
};
static const double min_s = 0.5, max_s = 20;

typedef struct lab {
    cr_device *dev;
    cr_mem *mem; /* all zeros */
    size_t num_bytes;
    cr_mem *cu_seqlens;
} lab;

static cr_mem *at(const lab *l, size_t elems, size_t elem_bytes)
{
    CR_CHECK(elems * elem_bytes < l->num_bytes, "measuring past its memory");
    return cr_mem_add(l->mem, elems * elem_bytes);
}

static cr_mem *act(const lab *l, size_t elems)
{
    return at(l, elems, 2);
}

static cr_status products(const lab *l, cr_err *err)
{
    enum { X = 0, Y = ROWS * COLS, W = 2 * ROWS * COLS, DW = (W + COLS * COLS) / 2 };
    const cr_weight w = {act(l, W), CR_BF16, COLS, COLS, NULL};
    const cr_linear_args forward = {
        .x = act(l, X), .w = &w, .y = act(l, Y), .out_dtype = CR_BF16, .num_rows = ROWS};
    const cr_linear_grad_args backward = {.x = act(l, X),
                                          .dy = act(l, Y),
                                          .w = &w,
                                          .dx = act(l, X),
                                          .dw = at(l, DW, sizeof(float)),
                                          .num_rows = ROWS};

    CR_TRY(cr_linear(l->dev, &forward, err));
    return cr_linear_grad(l->dev, &backward, err);
}

static cr_status attention(const lab *l, cr_err *err)
{
    enum { Q = LENGTH * HEADS * HEAD_DIM, K = LENGTH * KV_HEADS * HEAD_DIM };
    const cr_attention_args forward = {.q = act(l, 0),
                                       .k = act(l, Q),
                                       .v = act(l, Q + K),
                                       .o = act(l, Q + 2 * K),
                                       .lse = act(l, 2 * Q + 2 * K),
                                       .dtype = CR_BF16,
                                       .cu_seqlens = l->cu_seqlens,
                                       .num_seqs = 1,
                                       .num_heads = HEADS,
                                       .num_kv_heads = KV_HEADS,
                                       .head_dim = HEAD_DIM,
                                       .scale = 0.088f,
                                       .sizes = {LENGTH, 0.5 * LENGTH * (LENGTH + 1), LENGTH}};
    const cr_attention_grad_args backward = {.fwd = forward,
                                             .d_o = act(l, 3 * Q + 2 * K),
                                             .dq = act(l, 4 * Q + 2 * K),
                                             .dk = act(l, 5 * Q + 2 * K),
                                             .dv = act(l, 5 * Q + 3 * K)};

    CR_TRY(cr_attention(l->dev, &forward, err));
    return cr_attention_grad(l->dev, &backward, err);
}

static cr_status memory(const lab *l, cr_err *err)
{
    const cr_adamw_args a = {.param = at(l, 0, 4),
                             .m = at(l, ELEMS, 4),
                             .v = at(l, 2 * ELEMS, 4),
                             .grad = at(l, 3 * ELEMS, 4),
                             .num = ELEMS,
                             .lr = 1e-6,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .grad_scale = 1,
                             .t = 1};

    return cr_adamw(l->dev, &a, err);
}

typedef cr_status work(const lab *l, cr_err *err);

/* amount: which of the device's counts. */
static double count_of(const lab *l, size_t amount)
{
    cr_device_stats s = cr_device_get_stats(l->dev);
    double x;

    memcpy(&x, (const char *)&s + amount, sizeof x);
    return x;
}

static cr_status best_rate(const lab *l, work *call, size_t amount, double *out, cr_err *err)
{
    double began = 0;

    *out = 0;
    for (int i = 0; i <= MIN_CALLS || cr_now_s() - began < min_s; i++) {
        double before = count_of(l, amount), now = cr_now_s(), rate;
        CR_TRY(call(l, err));
        CR_TRY(cr_device_sync(l->dev, err));
        rate = (count_of(l, amount) - before) / (cr_now_s() - now);
        if (i > 0 && rate > *out) *out = rate; /* the first one makes scratch */
        if (i == 0) began = cr_now_s();
        if (i > 0 && cr_now_s() - began > max_s) break;
    }
    return CR_OK;
}

static cr_status lab_open(lab *l, cr_device *dev, cr_err *err)
{
    const int32_t cu_seqlens[] = {0, LENGTH};

    *l = (lab){.dev = dev, .num_bytes = (size_t)4 * ELEMS * sizeof(float) + 64};
    CR_TRY(cr_device_alloc(dev, l->num_bytes, &l->mem, err));
    CR_TRY(cr_device_alloc(dev, sizeof cu_seqlens, &l->cu_seqlens, err));
    CR_TRY(cr_zero(dev, l->mem, l->num_bytes, err));
    return cr_upload(dev, l->cu_seqlens, cu_seqlens, sizeof cu_seqlens, err);
}

cr_status cr_device_measure(cr_device *dev, cr_speed *out, cr_err *err)
{
    const size_t flops = offsetof(cr_device_stats, flops),
                 moved = offsetof(cr_device_stats, moved_bytes);
    lab l;

    *out = (cr_speed){0};
    CR_TRY_GOTO(out, lab_open(&l, dev, err));
    CR_TRY_GOTO(out, best_rate(&l, products, flops, &out->product_flops_s, err));
    CR_TRY_GOTO(out, best_rate(&l, attention, flops, &out->attention_flops_s, err));
    cr_note(best_rate(&l, memory, moved, &out->memory_bytes_s, err));
out:
    cr_device_free(dev, l.cu_seqlens, 2 * sizeof(int32_t));
    cr_device_free(dev, l.mem, l.num_bytes);
    return err->status;
}
