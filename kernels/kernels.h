/* kernels.h -- the one table of operations that models run on.
 *
 * A device (`cpu`, `meta`, `cuda`) fills in one table of kernels (kernels_impl.h). Models, strategies and the optimizer call the operations
 * and never ask which device they run on. Each takes one struct of arguments, whose comment says what it computes: kernels.h has those that every
 * model needs, heads.h, attention.h, experts.h and vision.h the others, ops.h the list. Backward of `x` is `x_grad`. `meta` touches no data: it only
 * counts bytes and FLOPs, so the same code is a plan.
 *
 * Promises, on every device:
 * - A row's result does not depend on which other rows are in the call, on their number, or on the number of threads: each output element is
 *   accumulated over the whole inner dimension in one fixed order. So log-probs of generation equal those of training bit for bit.
 * - Products accumulate in float32; softmax, norms, log-probs and losses are float32 inside.
 * - Gradients of parameters are float32 and are ADDED to (cr_linear_grad: unless is_dw_set); gradients of activations are overwritten unless the comment says added.
 * - No kernel allocates after warm-up (scratch grows inside the device) or communicates.
 *
 * Shapes: T tokens of packed sequences (no padding), h hidden, H query heads, K kv heads, D head dimension, V vocabulary. All matrices are
 * row-major and contiguous. `act` dtype is that of the activations (CR_F32, CR_BF16 or CR_F16). Every tensor and every array of indices is
 * device memory (cr_mem, memory.h; indices are int32 and in range); numbers that follow from indices, and that a launch or the count of FLOPs
 * needs, come beside them. Structs that an argument points to (cr_weight, cr_row_processors_mem) have been read when the call returns. Results in
 * host memory (double *, float *) are there when the call returns.
 * Threads: one caller a device. Errors: shapes and dtypes are checked here (CR_EARG), devices do not check again; what one lacks is CR_EABSENT.
 */
#ifndef CR_KERNELS_H
#define CR_KERNELS_H

#include "kernels/ops.h"

/* ---- flat ranges ---- */

/* Round to nearest even. src and dst may not overlap. */
typedef struct cr_cast_args {
    cr_dtype to;
    cr_mem *dst;
    cr_dtype from;
    const cr_mem *src;
    size_t num;
} cr_cast_args;

/* x *= factor. */
typedef struct cr_scale_args {
    cr_mem *x; /* [num] float32 */
    float factor;
    size_t num;
} cr_scale_args;

/* y[i] (=, += with is_added) the sum of parts x_k[i] in float32, by the tree of mesh/comm.h. y may be one of the parts. */
typedef struct cr_sum_parts_args {
    cr_mem *y;       /* [num] float32 */
    cr_dtype dtype;  /* of the parts: fp32 or bf16 */
    const cr_mem *x; /* the parts, each `stride` elements after the one before */
    size_t stride, num, num_parts;
    bool is_added;
} cr_sum_parts_args;

/* Sum of squares in float64, fixed order: partial sums of blocks of 4096 elements, then their sum. */
typedef struct cr_square_sum_args {
    const cr_mem *x; /* [num] float32 */
    size_t num;
    double *out; /* host */
} cr_square_sum_args;

/* A checksum of bytes that depends on their order and on `start`: equal data, equal sums, on every device. C(bytes, start) of at most
 * 64 KiB: lanes L0 .. L3 begin as start ^ 0x9E3779B97F4A7C15, start + 1, start ^ 2, start + 3. Word i of 8 bytes (little-endian) of the whole
 * groups of four goes to L = L(i % 4): L = (L ^ word) * 0xFF51AFD7ED558CCD, L ^= L >> 29; then each byte left to L0 = (L0 ^ byte) * 0x100000001B3.
 * C = ((L0 * 31 + L1) * 31 + L2) * 31 + L3. The checksum is C(C of each 64 KiB, the last one may be shorter, as words of 8 bytes, start). */
enum { CR_CHECKSUM_BLOCK = 64 * 1024 };
typedef struct cr_checksum_args {
    const cr_mem *data;
    size_t num_bytes;
    uint64_t start;
    uint64_t *out; /* host */
} cr_checksum_args;

/* One AdamW update (decoupled decay, as torch.optim.AdamW). t counts from 1. grad is multiplied by
 * grad_scale (the clip factor) on the way. rounded: NULL, or where the new param goes as cr_cast would round it. */
typedef struct cr_adamw_args {
    cr_mem *param, *m, *v; /* [num] float32: masters and moments, updated */
    const cr_mem *grad;    /* [num] float32 */
    size_t num;
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t t;
    cr_mem *rounded;        /* [num] */
    cr_dtype rounded_dtype; /* bf16 or fp16 */
} cr_adamw_args;

/* y = a x + b y. */
typedef struct cr_blend_args {
    cr_mem *y;
    const cr_mem *x; /* [num] float32, as y */
    float a, b;
    size_t num;
} cr_blend_args;

/* ---- products ---- */

/* A weight [num_rows, num_cols] as torch's Linear stores it (out, in). packed is NULL or what cr_weight_pack made of exactly these values; results
 * are the same bits with and without. cr_weight_packed_bytes 0: the device reads weights as they lie, packed is without effect. */
typedef struct cr_weight {
    const cr_mem *data;
    cr_dtype dtype; /* the act dtype of the products it takes part in */
    int64_t num_rows, num_cols;
    const cr_mem *packed;
} cr_weight;
size_t cr_weight_packed_bytes(const cr_device *dev, const cr_weight *w);

typedef struct cr_weight_pack_args {
    const cr_weight *w;
    cr_mem *packed; /* cr_weight_packed_bytes of w */
} cr_weight_pack_args;

/* y[M, N] = x[M, K] W^T (+ bias[N]) (+ add[M, N]). The device decides whether it is rounded before add, too, which is
 * the same for all rows. y in out_dtype (act or CR_F32). bias and add are in W's dtype; add may be y itself. */
typedef struct cr_linear_args {
    const cr_mem *x;
    const cr_weight *w; /* [N, K] */
    const cr_mem *bias; /* [N] or NULL */
    const cr_mem *add;  /* [M, N] or NULL: the residual stream */
    cr_mem *y;
    cr_dtype out_dtype;
    int64_t num_rows; /* M */
} cr_linear_args;

/* Backward of cr_linear: dx[M, K] (=, or += if is_dx_added) dy W; dw[N, K] (+=, or = if is_dw_set) dy^T x;
 * dbias[N] += column sums of dy. Each of dx, dw, dbias may be NULL. */
typedef struct cr_linear_grad_args {
    const cr_mem *x, *dy; /* act dtype */
    const cr_weight *w;
    cr_mem *dx; /* act dtype */
    bool is_dx_added;
    cr_mem *dw, *dbias; /* float32 */
    int64_t num_rows;
    bool is_dw_set;
} cr_linear_grad_args;

/* ---- rows ---- */

/* RMSNorm over rows of num_cols (reference: x rsqrt(mean(x^2) + eps), rounded, then times weight; with an
 * offset, as Gemma has it, times offset + weight without that rounding), rounded once more before add.
 * rstd[num_rows] is written when not NULL. q/k norm: rows = T * heads, cols = D. In place is fine. */
typedef struct cr_rmsnorm_args {
    const cr_mem *x, *weight;
    cr_mem *y;
    cr_mem *rstd; /* float32 */
    cr_dtype dtype;
    int64_t num_rows, num_cols;
    float eps, offset;
    const cr_mem *add; /* [num_rows, num_cols] or NULL: the residual stream */
} cr_rmsnorm_args;
/* dx (=, or += if is_dx_added); dweight float32, added, may be NULL. dx may be dy. */
typedef struct cr_rmsnorm_grad_args {
    const cr_mem *x, *weight, *dy;
    const cr_mem *rstd; /* float32 */
    cr_mem *dx;
    cr_mem *dweight;
    bool is_dx_added;
    cr_dtype dtype;
    int64_t num_rows, num_cols;
    float offset;
} cr_rmsnorm_grad_args;

/* h = silu(gate) * up, all [num]. */
typedef struct cr_swiglu_args {
    cr_dtype dtype;
    const cr_mem *gate, *up;
    cr_mem *h;
    size_t num;
} cr_swiglu_args;
/* dgate, dup may be gate, up themselves. h: NULL, or where the forward's h goes once more, which may be dh. */
typedef struct cr_swiglu_grad_args {
    cr_dtype dtype;
    const cr_mem *gate, *up, *dh;
    cr_mem *dgate, *dup, *h;
    size_t num;
} cr_swiglu_grad_args;

/* y[t] = w[ids[t]]. ids are in range (callers check). */
typedef struct cr_embedding_args {
    const cr_weight *w;
    const cr_mem *ids; /* [num_tokens] */
    int64_t num_tokens;
    cr_mem *y;
} cr_embedding_args;
/* dw[ids[t]] += dy[t], in token order. */
typedef struct cr_embedding_grad_args {
    cr_dtype dtype;
    const cr_mem *dy;  /* [num_tokens, num_cols] */
    const cr_mem *ids; /* [num_tokens] */
    int64_t num_tokens, num_cols;
    cr_mem *dw; /* [.., num_cols] float32 */
} cr_embedding_grad_args;

/* Rows of num_cols elements. rows_gather: dst[i] = src[index[i]]; rows_scatter: dst[index[i]] = src[i];
 * rows_add: dst[index[i]] += src[i]. In the last two an index comes once. */
typedef struct cr_rows_move_args {
    cr_dtype dtype;
    const cr_mem *src, *index; /* index [num_rows] */
    int64_t num_rows, num_cols;
    cr_mem *dst;
} cr_rows_move_args;

#endif
