/* linear.cu -- products of activations and weights: y = x W^T, dx = dy W, dw += dy^T x.
 *
 * Those of 16-bit numbers are cuBLASLt's where it can promise what product.h does (library.h); the head's, logits, and
 * all others run here, by kernels chosen by the GPU, dtypes and the sizes of the weight alone, never by the number of rows (few rows of y have
 * few.cu where it has the same bits):
 * wgmma (y and the head's logits on a GPU of compute capability 9, sizes as the next): linear_wgmma.cu.
 * tensor cores (bf16, rows of A and B of whole 16-byte pieces): a block of 4 warps makes a 64 x 128 tile of C, a warp 32 x
 *   64 by mma.m16n8k16; 64 of k at a time, three stages of cp.async; shared memory 72 KiB, at most 206 registers, two blocks an
 *   SM. FLOPs a byte of L2: 43; of shared memory: 21. Limit: mma.sync, about 0.6 of the peak of an H100 or H200; by the instructions of the loop (bench/gpu_static) at most 70 % of that.
 * plain (fp32, fp16, odd sizes): a block of 256 threads makes a 64 x 64 tile, a thread 4 x 4; 16 of k at a time by shared memory
 *   (8.5 KiB); fused multiply-add. Limit: fp32 units, 8 shared loads for 16 of them: about half of 67 TFLOP/s. TF32 is not used.
 * Columns sums of dy (dbias): a thread a column over a stretch of 256 rows, then the stretches in order.
 * Nothing is packed: all read W as it lies.
 */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/product_mma.h"

/* ---- plain ---- */

enum { SIDE = 64, DEPTH = 16, EDGE = 4 };

/* Elements (i, k) of a matrix lie at i si + k sk. */
template <class T> struct strided {
    const T *x;
    int64_t num, si, sk;
};

/* tile[k][i] = element (first + i, k0 + k), 0 outside. Threads that are neighbours read neighbours. */
template <class T>
static __device__ __forceinline__ void load_side(float *tile, const strided<T> &a, int64_t first,
                                                 int64_t k0, int64_t end)
{
#pragma unroll
    for (int j = 0; j < SIDE * DEPTH / THREADS; j++) {
        int at = (int)threadIdx.x + j * THREADS;
        int k = a.sk == 1 ? at % DEPTH : at / SIDE, i = a.sk == 1 ? at / DEPTH : at % SIDE;
        bool is_in = first + i < a.num && k0 + k < end;
        tile[k * (SIDE + EDGE) + i] =
            is_in ? to_float(a.x[(first + i) * a.si + (k0 + k) * a.sk]) : 0.0f;
    }
}

template <class T, class End>
static __global__ void __launch_bounds__(THREADS, 2)
    plain_product(strided<T> a, strided<T> b, int64_t num_k, const __grid_constant__ End end)
{
    SHARED(float, as, DEPTH *(SIDE + EDGE));
    SHARED(float, bs, DEPTH *(SIDE + EDGE));
    int64_t row0 = (int64_t)blockIdx.x * SIDE, col0 = (int64_t)blockIdx.y * SIDE;
    int row = (int)threadIdx.x / 16 * 4, col = (int)threadIdx.x % 16 * 4;
    float acc[4][4] = {};

    for (int64_t k0 = 0; k0 < num_k; k0 += DEPTH) {
        load_side(as, a, row0, k0, num_k);
        load_side(bs, b, col0, k0, num_k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const float4 x = *(const float4 *)(const void *)(as + k * (SIDE + EDGE) + row),
                         y = *(const float4 *)(const void *)(bs + k * (SIDE + EDGE) + col);
            const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fmaf(xs[i], ys[j], acc[i][j]);
        }
        __syncthreads(); /* the next tiles overwrite these */
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const auto to = end.row(row0 + row + i);
#pragma unroll
        for (int j = 0; j < 4; j++)
            to.put(col0 + col + j, acc[i][j]);
    }
}

template <class T, class End>
static cudaError_t launch_plain(const cri_product *p, const End &end, cudaStream_t stream)
{
    const strided<T> a = {(const T *)p->a, p->m, p->is_a_turned ? 1 : p->lda,
                          p->is_a_turned ? p->lda : 1},
                     b = {(const T *)p->b, p->n, p->is_b_turned ? 1 : p->ldb,
                          p->is_b_turned ? p->ldb : 1};
    auto kernel = plain_product<T, End>;

    return CUDA_LAUNCH(
        kernel, dim3((unsigned)((p->m + SIDE - 1) / SIDE), (unsigned)((p->n + SIDE - 1) / SIDE)),
        dim3(THREADS), 0, stream, a, b, p->k, end);
}

/* ---- tensor cores ---- */

template <bool IS_A_TURNED, bool IS_B_TURNED, class End>
static __global__ void __launch_bounds__(MMA_THREADS, 2)
    mma_product(lying a, lying b, int64_t num_k, const __grid_constant__ End end)
{
    mma_tile<IS_A_TURNED, IS_B_TURNED>(a, b, num_k, end, (int64_t)blockIdx.x * TM,
                                       (int64_t)blockIdx.y * TN);
}

template <bool IS_A_TURNED, bool IS_B_TURNED, class End>
static cudaError_t launch_mma(const cri_product *p, const End &end, cudaStream_t stream)
{
    const lying a = {(const bf16 *)p->a, p->is_a_turned ? p->k : p->m, p->is_a_turned ? p->m : p->k,
                     p->lda},
                b = {(const bf16 *)p->b, p->is_b_turned ? p->k : p->n, p->is_b_turned ? p->n : p->k,
                     p->ldb};
    auto kernel = mma_product<IS_A_TURNED, IS_B_TURNED, End>;
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_SHARED);

    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(kernel,
                       dim3((unsigned)((p->m + TM - 1) / TM), (unsigned)((p->n + TN - 1) / TN)),
                       dim3(MMA_THREADS), MMA_SHARED, stream, a, b, p->k, end);
}

/* By the columns of A and B as they are in memory; those of C do not count. */
static bool is_for_mma(const cri_product *p)
{
    int64_t a_cols = p->is_a_turned ? p->m : p->k, b_cols = p->is_b_turned ? p->n : p->k;

    return p->dtype == CR_BF16 && (a_cols | b_cols | p->lda | p->ldb) % 8 == 0;
}

/* On this GPU; not by the number of rows. Weights as they are: the others' rows do not lie along k. */
static bool is_for_wgmma(const cr_device *dev, const cri_product *p)
{
    return cri_cuda_has_wgmma(dev) && !p->is_a_turned && !p->is_b_turned && p->k > 0 &&
           p->aux_dtype == CR_BF16;
}

template <class To, class Aux> static cudaError_t launch_bf16(cr_device *dev, const cri_product *p)
{
    cudaStream_t stream = cri_cuda_stream(dev);
    const ending<To, Aux> end = ending_of<To, Aux>(p);

    if (!is_for_mma(p)) return launch_plain<bf16>(p, end, stream);
    if (is_for_wgmma(dev, p)) return cri_cuda_product_wgmma(dev, p);
    return p->is_a_turned   ? launch_mma<true, true>(p, end, stream)
           : p->is_b_turned ? launch_mma<false, true>(p, end, stream)
                            : launch_mma<false, false>(p, end, stream);
}

template <class T> static cudaError_t launch_act(const cri_product *p, cudaStream_t stream)
{
    return p->c_dtype == p->dtype     ? launch_plain<T>(p, ending_of<T, T>(p), stream)
           : p->aux_dtype == p->dtype ? launch_plain<T>(p, ending_of<float, T>(p), stream)
                                      : launch_plain<T>(p, ending_of<float, float>(p), stream);
}

template <class T> static cudaError_t launch_dz(cr_device *dev, const cri_product *p)
{
    cudaStream_t stream = cri_cuda_stream(dev);

    if (p->dtype == CR_BF16 && is_for_mma(p))
        return is_for_wgmma(dev, p) ? cri_cuda_product_wgmma(dev, p)
                                    : launch_mma<false, false>(p, dz_ending_of<bf16>(p), stream);
    return launch_plain<T>(p, dz_ending_of<T>(p), stream);
}

cr_status cri_cuda_product(cr_device *dev, const char *op, const cri_product *p, cr_err *err)
{
    cudaStream_t stream = cri_cuda_stream(dev);

    if (is_for_mma(p) && ((uintptr_t)p->a | (uintptr_t)p->b) % 16)
        return cr_fail(err, CR_EARG,
                       "%s on device cuda: bf16 matrices begin at multiples of 16 bytes", op);
    if (p->m <= 0 || p->n <= 0) return CR_OK;
    return launched(op,
                    p->dz ? CRI_BY_DTYPE(p->dtype, launch_dz, dev, p)
                    : p->dtype == CR_F32
                        ? launch_plain<float>(p, ending_of<float, float>(p), stream)
                    : p->dtype == CR_F16      ? launch_act<f16>(p, stream)
                    : p->c_dtype == CR_BF16   ? launch_bf16<bf16, bf16>(dev, p)
                    : p->aux_dtype == CR_BF16 ? launch_bf16<float, bf16>(dev, p)
                                              : launch_bf16<float, float>(dev, p),
                    err);
}

/* ---- entries ---- */

cr_status cri_cuda_product_anyhow(cr_device *dev, const char *op, const cri_product *p, cr_err *err)
{
    bool is_taken;

    CR_TRY(cri_library_product(dev, cri_cuda_library(dev), op, p, &is_taken, err));
    return is_taken ? CR_OK : cri_cuda_product(dev, op, p, err);
}

static cri_product forward(const cr_linear_args *a)
{
    const cr_weight *w = a->w;

    return {.dtype = w->dtype,
            .a = a->x,
            .b = w->data,
            .is_a_turned = false,
            .is_b_turned = false,
            .m = a->num_rows,
            .n = w->num_rows,
            .k = w->num_cols,
            .lda = w->num_cols,
            .ldb = w->num_cols,
            .c_dtype = a->out_dtype,
            .c = a->y,
            .ldc = w->num_rows,
            .aux_dtype = w->dtype,
            .bias = a->bias,
            .add = a->add,
            .dz = NULL,
            .factor = 1.0f};
}

cr_status cri_cuda_linear(cr_device *dev, const cr_linear_args *a, cr_err *err)
{
    const cri_product p = forward(a);

    return cri_cuda_product_anyhow(dev, "linear", &p, err);
}

cr_status cri_cuda_linears(cr_device *dev, const cr_linears_args *a, cr_err *err)
{
    cri_product p[CR_LINEARS];
    bool is_taken;

    for (int i = 0; i < a->num; i++) {
        const cr_linear_args one = cr_linear_of(a, i);
        p[i] = forward(&one);
    }
    CR_TRY(cri_library_few(dev, cri_cuda_library(dev), "linears", p, a->num, &is_taken, err));
    for (int i = 0; i < a->num && !is_taken; i++)
        CR_TRY(cri_cuda_product_anyhow(dev, "linears", &p[i], err));
    return CR_OK;
}

/* By the tiles that the head uses. */
cr_status cri_cuda_logits(cr_device *dev, const cr_logits_args *a, cr_err *err)
{
    const cr_linear_args linear = {a->x, a->w, NULL, NULL, a->logits, CR_F32, a->num_rows};
    const cri_product p = forward(&linear);

    return cri_cuda_product(dev, "logits", &p, err);
}

template <class T>
static cr_status bias_grad(cr_device *dev, const cr_linear_grad_args *a, cr_err *err)
{
    int64_t n = a->w->num_rows;
    void *mem;

    CR_TRY(
        cri_cuda_scratch(dev, (size_t)(num_stretches(a->num_rows) * n) * sizeof(float), &mem, err));
    return launched("linear_grad",
                    sum_columns(in<T>(a->dy), a->num_rows, n, (float *)mem, out<float>(a->dbias),
                                /*should_add=*/true, cri_cuda_stream(dev)),
                    err);
}

/* dx[m, w's columns] = factor dy W, rows of dx with stride ld; add: NULL, or what it is added to. */
static cri_product back_product(const cr_weight *w, const void *dy, int64_t ld_dy, int64_t m,
                                void *dx, int64_t ld, const void *add, float factor)
{
    return {.dtype = w->dtype,
            .a = dy,
            .b = w->data,
            .is_a_turned = false,
            .is_b_turned = true,
            .m = m,
            .n = w->num_cols,
            .k = w->num_rows,
            .lda = ld_dy,
            .ldb = w->num_cols,
            .c_dtype = w->dtype,
            .c = dx,
            .ldc = ld,
            .aux_dtype = w->dtype,
            .bias = NULL,
            .add = add,
            .dz = NULL,
            .factor = factor};
}

/* dw[n, k] += dy^T x over m rows, with strides ld. */
static cri_product weight_product(cr_dtype dtype, const void *dy, int64_t ld_dy, int64_t n,
                                  const void *x, int64_t ld_x, int64_t k, int64_t m, void *dw)
{
    return {.dtype = dtype,
            .a = dy,
            .b = x,
            .is_a_turned = true,
            .is_b_turned = true,
            .m = n,
            .n = k,
            .k = m,
            .lda = ld_dy,
            .ldb = ld_x,
            .c_dtype = CR_F32,
            .c = dw,
            .ldc = k,
            .aux_dtype = CR_F32,
            .bias = NULL,
            .add = dw,
            .dz = NULL,
            .factor = 1.0f};
}

cr_status cri_cuda_linear_grad(cr_device *dev, const cr_linear_grad_args *a, cr_err *err)
{
    const cr_weight *w = a->w;
    int64_t n = w->num_rows, k = w->num_cols;
    const cri_product dx =
        back_product(w, a->dy, n, a->num_rows, a->dx, k, a->is_dx_added ? a->dx : NULL, 1.0f);
    cri_product dw = weight_product(w->dtype, a->dy, n, n, a->x, k, k, a->num_rows, a->dw);

    if (a->is_dw_set) dw.add = NULL;
    if (a->dx) CR_TRY(cri_cuda_product_anyhow(dev, "linear_grad", &dx, err));
    if (a->dw) CR_TRY(cri_cuda_product_anyhow(dev, "linear_grad", &dw, err));
    return a->dbias ? CRI_BY_DTYPE(w->dtype, bias_grad, dev, a, err) : CR_OK;
}

/* ---- Linears with adapters ---- */

/* Few columns, or a few of k, of any number of rows: one launch where the sizes allow it, which are the weights' alone. */
static cr_status multiply_low(cr_device *dev, const char *op, const cri_product *p, int num,
                              cr_err *err)
{
    bool is_one = num > 0;

    for (int i = 0; i < num; i++)
        is_one = is_one && cri_cuda_is_for_few(&p[i]);
    if (is_one) return cri_cuda_product_few(dev, op, p, num, /*is_rounded=*/true, err);
    for (int i = 0; i < num; i++)
        CR_TRY(cri_cuda_product(dev, op, &p[i], err));
    return CR_OK;
}

static cri_product low_product(const cr_weight *w, const void *a, int64_t lda, int64_t m, void *c,
                               int64_t ldc, const void *add, float factor)
{
    const cr_linear_args one = {(const cr_mem *)a, w,        NULL, (const cr_mem *)add,
                                (cr_mem *)c,       w->dtype, m};
    cri_product p = forward(&one);

    p.lda = lda;
    p.ldc = ldc;
    p.factor = factor;
    return p;
}

/* h of all, from x. */
static cr_status multiply_inner(cr_device *dev, const char *op, const cr_low_rank *low, int num,
                                const cr_mem *x, int64_t num_rows, cr_mem *h, cr_err *err)
{
    cri_product p[CR_LINEARS];
    const int64_t ld = cr_low_ranks(low, num);
    int64_t col = 0;
    int there = 0;

    for (int i = 0; i < num; i++) {
        const cr_weight *a = &low[i].a;
        if (!a->data) continue;
        p[there++] = low_product(a, low[i].x ? low[i].x : x, a->num_cols, num_rows,
                                 cr_at(a->dtype, h, col), ld, NULL, low[i].scale);
        col += a->num_rows;
    }
    return multiply_low(dev, op, p, there, err);
}

cr_status cri_cuda_adapted_linears(cr_device *dev, const cr_adapted_linears_args *a, cr_err *err)
{
    const cr_linears_args *base = &a->base;
    const int64_t ld = cr_low_ranks(a->low, base->num), m = base->num_rows;
    cri_product p[CR_LINEARS];
    int64_t col = 0;
    int there = 0;

    if (a->add) {
        cr_linear_args one = cr_linear_of(base, 0);
        one.add = a->add;
        CR_TRY(cri_cuda_linear(dev, &one, err));
    } else if (!a->is_base_made) {
        CR_TRY(cri_cuda_linears(dev, base, err));
    }
    CR_TRY(multiply_inner(dev, "adapted_linears", a->low, base->num, base->x, m, a->h, err));
    for (int i = 0; i < base->num; i++) {
        const cr_weight *b = &a->low[i].b;
        if (!a->low[i].a.data) continue;
        p[there++] = low_product(b, cr_at(b->dtype, a->h, col), ld, m, base->y[i], b->num_rows,
                                 base->y[i], 1.0f);
        col += b->num_cols;
    }
    return multiply_low(dev, "adapted_linears", p, there, err);
}

/* dh, and the gradients of A and B, of one of them, whose columns of h and dh begin there. */
static cr_status grads_of_low(cr_device *dev, const cr_adapted_linears_grad_args *a, int i,
                              const cr_mem *h, cr_mem *dh, int64_t ld, cr_err *err)
{
    static const char op[] = "adapted_linears_grad";
    const cr_low_rank *low = &a->low[i];
    const int64_t n = low->b.num_rows, k = low->a.num_cols, r = low->a.num_rows, m = a->num_rows;
    cr_mem *dx = low->x ? low->x : a->dx;
    const cri_product inner = back_product(&low->b, a->dy[i], n, m, dh, ld, NULL, low->scale),
                      outer = back_product(&low->a, dh, ld, m, dx, k, low->x ? NULL : dx, 1.0f),
                      da = weight_product(low->a.dtype, dh, ld, r, low->x ? low->x : a->x, k, k, m,
                                          a->da[i]),
                      db = weight_product(low->a.dtype, a->dy[i], n, n, h, ld, r, m, a->db[i]);

    CR_TRY(cri_cuda_product(dev, op, &inner, err));
    if (a->da[i]) CR_TRY(cri_cuda_product_anyhow(dev, op, &da, err));
    if (a->db[i]) CR_TRY(cri_cuda_product_anyhow(dev, op, &db, err));
    return a->dx ? cri_cuda_product(dev, op, &outer, err) : CR_OK; /* x has been read */
}

cr_status cri_cuda_adapted_linears_grad(cr_device *dev, const cr_adapted_linears_grad_args *a,
                                        cr_err *err)
{
    const int64_t ld = cr_low_ranks(a->low, a->num);
    int64_t col = 0;

    CR_TRY(
        multiply_inner(dev, "adapted_linears_grad", a->low, a->num, a->x, a->num_rows, a->h, err));
    for (int i = 0; i < a->num; i++) {
        const cr_weight *w = &a->w[i];
        const cri_product dx =
            back_product(w, a->dy[i], w->num_rows, a->num_rows, a->dx, w->num_cols,
                         i > 0 || a->is_dx_added ? a->dx : NULL, 1.0f);
        if (a->dx && !a->is_base_made)
            CR_TRY(cri_cuda_product_anyhow(dev, "adapted_linears_grad", &dx, err));
        if (!a->low[i].a.data) continue;
        CR_TRY(grads_of_low(dev, a, i, cr_at(w->dtype, a->h, col), cr_at(w->dtype, a->dh, col), ld,
                            err));
        col += a->low[i].a.num_rows;
    }
    return CR_OK;
}

size_t cri_cuda_packed_bytes(const cr_device *dev, const cr_weight *w)
{
    (void)dev;
    (void)w;
    return 0;
}

cr_status cri_cuda_weight_pack(cr_device *dev, const cr_weight_pack_args *a, cr_err *err)
{
    (void)dev;
    (void)a;
    (void)err;
    return CR_OK;
}
