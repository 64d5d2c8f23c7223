/* kernels.h -- devices, their memory, and the one table of operations that models run on.
 *
 * A device (`cpu`, `meta`, later `cuda`) fills in one table of kernels (kernels_impl.h). Models,
 * strategies and the optimizer call the functions below and never ask which device they run on.
 * `meta` touches no data: it only counts bytes and FLOPs, so the same code is a plan.
 *
 * Promises, on every device:
 * - A row's result does not depend on which other rows are in the call, on their number, or on the
 *   number of threads: each output element is accumulated over the whole inner dimension in one
 *   fixed order. So log-probs of generation equal those of training bit for bit.
 * - Products accumulate in float32; softmax, norms, log-probs and losses are float32 inside.
 * - Gradients of parameters are float32 and are ADDED to; gradients of activations are overwritten
 *   unless the comment says added.
 * - No kernel allocates after warm-up (scratch grows inside the device) or communicates.
 *
 * Shapes: T tokens of packed sequences (no padding), h hidden, H query heads, K kv heads, D head
 * dimension, V vocabulary. All matrices are row-major and contiguous. `act` dtype is that of the
 * activations (CR_F32, CR_BF16 or CR_F16). Device pointers come from cr_device_alloc; ids, positions,
 * offsets and per-token scalars (log-probs, lse, rstd) are plain host-visible arrays on cpu.
 *
 * Threads: one caller a device. Errors: shapes and dtypes are checked here (CR_EARG), devices do
 * not check again; what a device lacks is CR_EABSENT.
 */
#ifndef CR_KERNELS_H
#define CR_KERNELS_H

#include "base/base.h"

typedef enum cr_dtype { CR_F32, CR_BF16, CR_F16, CR_F64 } cr_dtype;
size_t cr_dtype_bytes(cr_dtype dtype);
const char *cr_dtype_name(cr_dtype dtype); /* "fp32", "bf16", "fp16", "fp64" */

/* ---- devices and memory ---- */

typedef struct cr_device cr_device;

/* name: "cpu", "meta", "cuda". num_threads >= 1: threads that one kernel may use (results do not change).
 * The device is owned by the caller. CR_EABSENT: unknown or not built in. */
CR_MUST cr_status cr_device_open(const char *name, int num_threads, cr_device **out, cr_err *err);
void cr_device_close(cr_device *dev);
const char *cr_device_name(const cr_device *dev);
const char *cr_device_variant(const cr_device *dev); /* "avx512bf16", ..; "": only one */
bool cr_device_is_meta(const cr_device *dev);

/* 64-byte aligned, NOT zeroed. On meta: an address that must not be read. */
CR_MUST cr_status cr_device_alloc(cr_device *dev, size_t num_bytes, void **out, cr_err *err);
void cr_device_free(cr_device *dev, void *ptr, size_t num_bytes);

typedef struct cr_device_stats {
    size_t bytes_now, bytes_peak;
    double flops; /* multiply-add = 2 */
} cr_device_stats;
cr_device_stats cr_device_get_stats(const cr_device *dev);
void cr_device_reset_peak(cr_device *dev);

/* Stack memory of one device: allocations are released together by going back to a mark. One block
 * reserved on first use and grown only while the stack is empty; peak is exact. */
typedef struct cr_stack cr_stack;
cr_stack *cr_stack_create(cr_device *dev);
void cr_stack_destroy(cr_stack *stack);
CR_MUST cr_status cr_stack_push(cr_stack *stack, size_t num_bytes, void **out, cr_err *err);
size_t cr_stack_mark(const cr_stack *stack);
void cr_stack_release(cr_stack *stack, size_t mark);
size_t cr_stack_peak_bytes(const cr_stack *stack);
size_t cr_stack_reserved_bytes(const cr_stack *stack); /* what it holds of the device now */
/* The most bytes since the last call of this. */
size_t cr_stack_take_high(cr_stack *stack);

/* ---- flat ranges ---- */

CR_MUST cr_status cr_zero(cr_device *dev, void *dst, size_t num_bytes, cr_err *err);
CR_MUST cr_status cr_copy(cr_device *dev, void *dst, const void *src, size_t num_bytes,
                          cr_err *err);
/* Round to nearest even. src and dst may not overlap. */
CR_MUST cr_status cr_cast(cr_device *dev, cr_dtype to, void *dst, cr_dtype from, const void *src,
                          size_t num, cr_err *err);
/* y += x, each in its dtype, rounded once. */
CR_MUST cr_status cr_add(cr_device *dev, cr_dtype dtype, void *y, const void *x, size_t num,
                         cr_err *err);
CR_MUST cr_status cr_scale(cr_device *dev, float *x, float factor, size_t num, cr_err *err);
/* Sum of squares in float64, fixed order: partial sums of blocks of 4096 elements, then their sum. */
CR_MUST cr_status cr_square_sum(cr_device *dev, const float *x, size_t num, double *out,
                                cr_err *err);

/* One AdamW update (decoupled decay, as torch.optim.AdamW). t counts from 1. grad is multiplied by
 * grad_scale (the clip factor) on the way. */
typedef struct cr_adamw_args {
    float *param, *m, *v; /* [num] masters and moments, updated */
    const float *grad;    /* [num] */
    size_t num;
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t t;
} cr_adamw_args;
CR_MUST cr_status cr_adamw(cr_device *dev, const cr_adamw_args *a, cr_err *err);

/* ---- products ---- */

/* A weight [num_rows, num_cols] as torch's Linear stores it (out, in). packed is NULL or what
 * cr_weight_pack made of exactly these values; results are the same bits with and without. */
typedef struct cr_weight {
    const void *data;
    cr_dtype dtype; /* the act dtype of the products it takes part in */
    int64_t num_rows, num_cols;
    const void *packed;
} cr_weight;
size_t cr_weight_packed_bytes(const cr_device *dev, const cr_weight *w);
CR_MUST cr_status cr_weight_pack(cr_device *dev, const cr_weight *w, void *packed, cr_err *err);

/* y[M, N] = x[M, K] W^T (+ bias[N]) (+ add[M, N], rounded after bias). y in out_dtype (act or
 * CR_F32). bias and add are in W's dtype; add may be y itself. */
typedef struct cr_linear_args {
    const void *x;
    const cr_weight *w; /* [N, K] */
    const void *bias;   /* [N] or NULL */
    const void *add;    /* [M, N] or NULL: the residual stream */
    void *y;
    cr_dtype out_dtype;
    int64_t num_rows; /* M */
} cr_linear_args;
CR_MUST cr_status cr_linear(cr_device *dev, const cr_linear_args *a, cr_err *err);

/* Backward of cr_linear: dx[M, K] (=, or += if is_dx_added) dy W; dw[N, K] += dy^T x;
 * dbias[N] += column sums of dy. Each of dx, dw, dbias may be NULL. */
typedef struct cr_linear_grad_args {
    const void *x, *dy; /* act dtype */
    const cr_weight *w;
    void *dx; /* act dtype */
    bool is_dx_added;
    float *dw, *dbias; /* float32 */
    int64_t num_rows;
} cr_linear_grad_args;
CR_MUST cr_status cr_linear_grad(cr_device *dev, const cr_linear_grad_args *a, cr_err *err);

/* ---- rows ---- */

/* RMSNorm over rows of num_cols (reference: x rsqrt(mean(x^2) + eps), rounded, then times weight).
 * rstd[num_rows] is written when not NULL. q/k norm: rows = T * heads, cols = D. In place is fine. */
typedef struct cr_rmsnorm_args {
    const void *x, *weight;
    void *y;
    float *rstd;
    cr_dtype dtype;
    int64_t num_rows, num_cols;
    float eps;
} cr_rmsnorm_args;
CR_MUST cr_status cr_rmsnorm(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err);
/* dx (=, or += if is_dx_added); dweight float32, added, may be NULL. dx may be dy. */
typedef struct cr_rmsnorm_grad_args {
    const void *x, *weight, *dy;
    const float *rstd;
    void *dx;
    float *dweight;
    bool is_dx_added;
    cr_dtype dtype;
    int64_t num_rows, num_cols;
} cr_rmsnorm_grad_args;
CR_MUST cr_status cr_rmsnorm_grad(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err);

/* Half-split rotary embedding in place on x[num_tokens, num_heads, D] (row stride num_heads * D):
 * angle = angles[t, i], or positions[t] * inv_freq[i] where angles is NULL; cos and sin are float32,
 * times `scaling`. sign -1: backward. Equal angles are equal bits, wherever they come from. */
typedef struct cr_rope_args {
    void *x;
    cr_dtype dtype;
    const int32_t *positions; /* [num_tokens] */
    const float *inv_freq;    /* [D / 2] */
    float scaling;
    int sign;
    int64_t num_tokens, num_heads, head_dim;
    const float *angles; /* [num_tokens, D / 2]: rotation along several axes, or NULL */
} cr_rope_args;
CR_MUST cr_status cr_rope(cr_device *dev, const cr_rope_args *a, cr_err *err);

/* h = silu(gate) * up, all [num]. Backward: dgate, dup may be gate, up themselves. */
CR_MUST cr_status cr_swiglu(cr_device *dev, cr_dtype dtype, const void *gate, const void *up,
                            void *h, size_t num, cr_err *err);
CR_MUST cr_status cr_swiglu_grad(cr_device *dev, cr_dtype dtype, const void *gate, const void *up,
                                 const void *dh, void *dgate, void *dup, size_t num, cr_err *err);

/* y[t] = w[ids[t]]; backward adds dy rows to dw in token order. ids are in range (callers check). */
CR_MUST cr_status cr_embedding(cr_device *dev, const cr_weight *w, const int32_t *ids,
                               int64_t num_tokens, void *y, cr_err *err);
CR_MUST cr_status cr_embedding_grad(cr_device *dev, cr_dtype dtype, const void *dy,
                                    const int32_t *ids, int64_t num_tokens, int64_t num_cols,
                                    float *dw, cr_err *err);
/* dst[i] = src[index[i]]: rows of num_cols elements (gather), and dst[index[i]] = src[i] (scatter). */
CR_MUST cr_status cr_rows_gather(cr_device *dev, cr_dtype dtype, const void *src,
                                 const int32_t *index, int64_t num_rows, int64_t num_cols,
                                 void *dst, cr_err *err);
CR_MUST cr_status cr_rows_scatter(cr_device *dev, cr_dtype dtype, const void *src,
                                  const int32_t *index, int64_t num_rows, int64_t num_cols,
                                  void *dst, cr_err *err);

#endif
