/* norms.cu -- RMSNorm and LayerNorm, and a factor a column (layer scale), forward and backward.
 *
 * Mapping: a row belongs to G threads: a warp (up to 1024 columns: q and k norms, small models), or a block of 256. A
 * thread owns the columns 8 (thread + G i) .. + 7. The forward reads x twice (LayerNorm three times), the second time
 * from L1 or L2; the backward keeps x and dy of a row in registers, up to 8192 columns (then: not available), and sums of
 * dweight and dbias over its rows, which a second kernel adds in a fixed tree: no atomics, the same bits each
 * time. A row's result does not depend on other rows.
 * Bytes an element in bf16: forward 4, backward 6 and partial sums (8 a column and G threads' rows, 16 rows at least):
 * bound by memory: 0.84 elements/ps on H100 (3.35 TB/s) forward, 0.5 backward; H200 1.43 times that.
 * Shared memory: 32 bytes. Registers: forward at most 40, backward 24 a chunk of 8 columns (bench/gpu_static shows them; 4
 * chunks at 8192 columns: one block an SM). Each row of a block of 256 has two barriers; x, dy and the weight of a row
 * are asked for together, 48 bytes a thread and chunk, so that two or more blocks an SM have enough under way.
 * A factor a column: a thread owns 8 columns of FEW_ROWS rows or more, as many as keep the number of parts small. Forward 4 bytes an element
 * in bf16 (6 with add), backward 6.
 */
#include "kernels/cuda/op.h"

#include <math.h>

enum { BLOCK = 256, FEW_ROWS = 16, MAX_PARTS = 1024, MAX_COLS = 8192 };

/* A row of the forward, for G threads. */
template <int G> struct row_of {
    int64_t row;
    int thread; /* of the row's */

    __device__ row_of(void)
    {
        row = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / G;
        thread = (int)threadIdx.x % G;
    }
};

template <class T> struct norm_forward {
    const T *x, *weight, *bias;
    T *y;
    float *mean, *rstd;
    int64_t num_rows, num_cols;
    float eps;
    bool is_fast;
    float offset; /* of RMSNorm's weight, and what is added to the result or NULL */
    const T *add;
};

/* Sum over a row of f(x). */
template <int G, class T, class F>
static __device__ __forceinline__ float sum_row(const norm_forward<T> &a, int64_t r, int thread,
                                                float *shared, F f)
{
    float sum = 0.0f;

    for (int64_t c = PER * thread; c < a.num_cols; c += PER * G) {
        float x[PER];
        load8(x, a.x + r * a.num_cols, c, a.num_cols, a.is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            if (c + e < a.num_cols) sum += f(x[e]);
    }
    return group_sum<G>(sum, shared);
}

template <class T, int G, bool IS_LAYER>
static __global__ void __launch_bounds__(BLOCK) norm(norm_forward<T> a)
{
    SHARED(float, sums, BLOCK / 32);
    row_of<G> at;
    int64_t r = at.row;
    float mean = 0.0f, rstd, n = (float)a.num_cols;

    if (r >= a.num_rows) return; /* all threads of a row */
    if (IS_LAYER) mean = sum_row<G>(a, r, at.thread, sums, [](float x) { return x; }) / n;
    rstd = 1.0f / sqrtf(sum_row<G>(a, r, at.thread, sums,
                                   [mean](float x) { return (x - mean) * (x - mean); }) /
                            n +
                        a.eps);
    if (at.thread == 0 && a.mean) a.mean[r] = mean;
    if (at.thread == 0 && a.rstd) a.rstd[r] = rstd;
    for (int64_t c = PER * at.thread; c < a.num_cols; c += PER * G) {
        float x[PER], w[PER], b[PER];
        load8(x, a.x + r * a.num_cols, c, a.num_cols, a.is_fast);
        load8(w, a.weight, c, a.num_cols, a.is_fast);
        if (IS_LAYER) load8(b, a.bias, c, a.num_cols, a.is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            x[e] = IS_LAYER           ? fmaf((x[e] - mean) * rstd, w[e], b[e])
                   : a.offset == 0.0f ? rounded<T>(x[e] * rstd) * w[e]
                                      : x[e] * rstd * (a.offset + w[e]);
        if (!IS_LAYER && a.add) {
            load8(b, a.add + r * a.num_cols, c, a.num_cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                x[e] = b[e] + rounded<T>(x[e]);
        }
        store8(a.y + r * a.num_cols, c, a.num_cols, a.is_fast, x);
    }
}

template <class T, bool IS_LAYER>
static cudaError_t forward(cr_device *dev, const norm_forward<T> &a)
{
    bool is_warp = a.num_cols <= 1024;
    auto kernel = is_warp ? norm<T, 32, IS_LAYER> : norm<T, BLOCK, IS_LAYER>;

    return CUDA_LAUNCH(kernel, blocks_for(a.num_rows, is_warp ? BLOCK / 32 : 1, INT32_MAX),
                       dim3(BLOCK), 0, cri_cuda_stream(dev), a);
}

static bool are_wide(int64_t num_cols, const cr_mem *a, const cr_mem *b, const cr_mem *c,
                     const cr_mem *d)
{
    return num_cols % PER == 0 && is_wide(a) && is_wide(b) && is_wide(c) && is_wide(d);
}

template <class T> static cudaError_t rmsnorm(cr_device *dev, const cr_rmsnorm_args *a)
{
    const norm_forward<T> f = {in<T>(a->x), in<T>(a->weight),
                               NULL,        out<T>(a->y),
                               NULL,        out<float>(a->rstd),
                               a->num_rows, a->num_cols,
                               a->eps,      are_wide(a->num_cols, a->x, a->weight, a->y, a->add),
                               a->offset,   in<T>(a->add)};

    return forward<T, false>(dev, f);
}

cr_status cri_cuda_rmsnorm(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err)
{
    return launched("rmsnorm", CRI_BY_DTYPE(a->dtype, rmsnorm, dev, a), err);
}

template <class T> static cudaError_t layernorm(cr_device *dev, const cr_layernorm_args *a)
{
    const norm_forward<T> f = {in<T>(a->x),
                               in<T>(a->weight),
                               in<T>(a->bias),
                               out<T>(a->y),
                               out<float>(a->mean),
                               out<float>(a->rstd),
                               a->num_rows,
                               a->num_cols,
                               a->eps,
                               are_wide(a->num_cols, a->x, a->weight, a->y, a->bias),
                               0,
                               NULL};

    return forward<T, true>(dev, f);
}

cr_status cri_cuda_layernorm(cr_device *dev, const cr_layernorm_args *a, cr_err *err)
{
    return launched("layernorm", CRI_BY_DTYPE(a->dtype, layernorm, dev, a), err);
}

/* ---- backward ---- */

/* mean NULL: RMSNorm. parts: [number of row groups][dweight, then dbias: num_cols each], or NULL. */
template <class T> struct norm_backward {
    const T *x, *weight, *dy;
    const float *mean, *rstd;
    T *dx;
    float *parts;
    int64_t num_rows, num_cols, rows_a_group;
    bool is_dx_added, is_fast;
    float offset; /* of RMSNorm's weight */
};

/* x, dy and weight of columns c .. of row r: all three are asked for before the first is used. */
template <class T>
static __device__ __forceinline__ void load_three(float (&x)[PER], float (&dy)[PER],
                                                  float (&w)[PER], const norm_backward<T> &a,
                                                  int64_t r, int c)
{
    int64_t row = r * a.num_cols;

    if (a.is_fast) { /* rows of whole pieces */
        const wide8<T> wide_x = load_wide(a.x + row + c), wide_dy = load_wide(a.dy + row + c),
                       wide_w = load_wide(a.weight + c);
        unpack(x, wide_x);
        unpack(dy, wide_dy);
        unpack(w, wide_w);
        return;
    }
    load8(x, a.x + row, c, a.num_cols, false);
    load8(dy, a.dy + row, c, a.num_cols, false);
    load8(w, a.weight, c, a.num_cols, false);
}

/* With u = dy w and n = (x - mean) r: dx = r (u - mean(u) - n mean(u n)), without mean(u) for RMSNorm. */
template <class T, int G, int CHUNKS, bool IS_LAYER>
static __global__ void __launch_bounds__(BLOCK, CHUNKS > 1 ? 1 : 2) norm_grad(norm_backward<T> a)
{
    SHARED(float, sums, BLOCK / 32);
    int64_t group = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / G, begin = group * a.rows_a_group,
            end = begin + a.rows_a_group < a.num_rows ? begin + a.rows_a_group : a.num_rows;
    int thread = (int)threadIdx.x % G, cols = (int)a.num_cols;
    float dw[CHUNKS][PER] = {}, db[CHUNKS][PER] = {};

    for (int64_t r = begin; r < end; r++) {
        float rstd = a.rstd[r], mean = IS_LAYER ? a.mean[r] : 0.0f, sum = 0.0f, dot = 0.0f;
        float n[CHUNKS][PER], u[CHUNKS][PER];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = PER * (thread + G * i);
            float w[PER];
            if (c >= cols) break;
            load_three(n[i], u[i], w, a, r, c);
#pragma unroll
            for (int e = 0; e < PER; e++) {
                n[i][e] = (n[i][e] - mean) * rstd; /* beyond the row dy and w are 0 */
                dw[i][e] =
                    fmaf(u[i][e], IS_LAYER || a.offset != 0.0f ? n[i][e] : rounded<T>(n[i][e]),
                         dw[i][e]);
                if (IS_LAYER) db[i][e] += u[i][e];
                u[i][e] *= IS_LAYER || a.offset == 0.0f ? w[e] : a.offset + w[e];
                if (IS_LAYER) sum += u[i][e];
                dot = fmaf(u[i][e], n[i][e], dot);
            }
        }
        if (IS_LAYER) sum = group_sum<G>(sum, sums) / (float)cols;
        dot = group_sum<G>(dot, sums) / (float)cols;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int c = PER * (thread + G * i);
            float dx[PER] = {};
            if (c >= cols) break;
            if (a.is_dx_added) load8(dx, a.dx + r * cols, c, cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                dx[e] += rstd * (u[i][e] - sum - n[i][e] * dot);
            store8(a.dx + r * cols, c, cols, a.is_fast, dx);
        }
    }
    if (!a.parts || begin >= a.num_rows) return;
    float *part = a.parts + group * (IS_LAYER ? 2 : 1) * cols;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int c = PER * (thread + G * i);
        if (c >= cols) break;
        store8(part, c, cols, false, dw[i]);
        if (IS_LAYER) store8(part + cols, c, cols, false, db[i]);
    }
}

/* dweight and dbias (either may be NULL) += the parts. A block has 32 columns; its warp w adds parts w, w + 32, .., and
 * then a warp a column adds the 32 sums in a tree: an order that follows from the number of parts alone. */
enum { ADDERS = 32 };
static __global__ void __launch_bounds__(32 * ADDERS)
    add_norm_parts(const float *parts, int64_t num_parts, int64_t num_cols, int64_t stride,
                   float *dweight, float *dbias)
{
    SHARED(float, sums, 2 * 32 * (ADDERS + 1));
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * 32, c = first + lane;
    float w = 0.0f, b = 0.0f;

    if (c < num_cols) {
#pragma unroll 8
        for (int64_t p = warp; p < num_parts; p += ADDERS) {
            w += parts[p * stride + c];
            if (dbias) b += parts[p * stride + num_cols + c];
        }
    }
    sums[lane * (ADDERS + 1) + warp] = w;
    sums[(32 + lane) * (ADDERS + 1) + warp] = b;
    __syncthreads();
    w = group_sum<32>(sums[warp * (ADDERS + 1) + lane], (float *)nullptr);
    b = group_sum<32>(sums[(32 + warp) * (ADDERS + 1) + lane], (float *)nullptr);
    if (lane > 0 || first + warp >= num_cols) return;
    if (dweight) dweight[first + warp] += w;
    if (dbias) dbias[first + warp] += b;
}

template <class T, bool IS_LAYER>
static cr_status backward(const char *op, cr_device *dev, norm_backward<T> a, cr_mem *dweight,
                          cr_mem *dbias, cr_err *err)
{
    int64_t n = a.num_cols, group = n <= 1024 ? 32 : (int)BLOCK, stride = (IS_LAYER ? 2 : 1) * n;
    int64_t max = (a.num_rows + MAX_PARTS - 1) / MAX_PARTS;
    cudaStream_t stream = cri_cuda_stream(dev);
    cudaError_t code;
    void *mem = NULL;

    if (n > MAX_COLS)
        return cr_fail(err, CR_EABSENT,
                       "%s of %lld columns is not available yet on device cuda "
                       "(at most %d)",
                       op, (long long)n, MAX_COLS);
    a.rows_a_group = cr_max64(max, FEW_ROWS);
    int64_t num_parts = (a.num_rows + a.rows_a_group - 1) / a.rows_a_group;
    if (dweight || dbias)
        CR_TRY(cri_cuda_scratch(dev, (size_t)(num_parts * stride) * sizeof(float), &mem, err));
    a.parts = (float *)mem;
    auto kernel = n <= 256    ? norm_grad<T, 32, 1, IS_LAYER>
                  : n <= 1024 ? norm_grad<T, 32, 4, IS_LAYER>
                  : n <= 2048 ? norm_grad<T, BLOCK, 1, IS_LAYER>
                  : n <= 4096 ? norm_grad<T, BLOCK, 2, IS_LAYER>
                              : norm_grad<T, BLOCK, 4, IS_LAYER>;
    code = CUDA_LAUNCH(kernel, blocks_for(num_parts * group, BLOCK, INT32_MAX), dim3(BLOCK), 0,
                       stream, a);
    if (code == cudaSuccess && mem)
        code = CUDA_LAUNCH(add_norm_parts, blocks_for(n, 32, INT32_MAX), dim3(32 * ADDERS), 0,
                           stream, (const float *)mem, num_parts, n, stride, out<float>(dweight),
                           out<float>(dbias));
    return launched(op, code, err);
}

template <class T>
static cr_status rmsnorm_grad(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err)
{
    const norm_backward<T> b = {
        in<T>(a->x), in<T>(a->weight),   in<T>(a->dy),
        NULL,        in<float>(a->rstd), out<T>(a->dx),
        NULL,        a->num_rows,        a->num_cols,
        0,           a->is_dx_added,     are_wide(a->num_cols, a->x, a->weight, a->dy, a->dx),
        a->offset};

    return backward<T, false>("rmsnorm_grad", dev, b, a->dweight, NULL, err);
}

cr_status cri_cuda_rmsnorm_grad(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err)
{
    return CRI_BY_DTYPE(a->dtype, rmsnorm_grad, dev, a, err);
}

template <class T>
static cr_status layernorm_grad(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err)
{
    const norm_backward<T> b = {in<T>(a->x),
                                in<T>(a->weight),
                                in<T>(a->dy),
                                in<float>(a->mean),
                                in<float>(a->rstd),
                                out<T>(a->dx),
                                NULL,
                                a->num_rows,
                                a->num_cols,
                                0,
                                a->is_dx_added,
                                are_wide(a->num_cols, a->x, a->weight, a->dy, a->dx),
                                0};

    return backward<T, true>("layernorm_grad", dev, b, a->dweight, a->dbias, err);
}

cr_status cri_cuda_layernorm_grad(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err)
{
    return CRI_BY_DTYPE(a->dtype, layernorm_grad, dev, a, err);
}

/* ---- a factor a column ---- */

/* y = add + factor x, and its backward, of the rows of a group; x is dy there, and parts (NULL: not wanted) are sums of dy second. */
template <class T> struct column_factors {
    const T *x, *factor, *add, *second;
    T *y; /* NULL: not wanted */
    float *parts;
    int64_t num_rows, num_cols, rows_a_group;
    bool is_fast;
};

template <class T>
static __global__ void __launch_bounds__(BLOCK) scale_columns(column_factors<T> a)
{
    int64_t pieces = (a.num_cols + PER - 1) / PER,
            at = (int64_t)blockIdx.x * BLOCK + (int64_t)threadIdx.x, group = at / pieces,
            c = at % pieces * PER, begin = group * a.rows_a_group,
            end = begin + a.rows_a_group < a.num_rows ? begin + a.rows_a_group : a.num_rows;
    float factor[PER], sum[PER] = {};

    if (begin >= a.num_rows) return;
    load8(factor, a.factor, c, a.num_cols, a.is_fast);
    for (int64_t r = begin; r < end; r++) {
        float x[PER], more[PER];
        int64_t row = r * a.num_cols;
        load8(x, a.x + row, c, a.num_cols, a.is_fast);
        if (a.parts) {
            load8(more, a.second + row, c, a.num_cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                sum[e] = fmaf(x[e], more[e], sum[e]);
        }
        if (!a.y) continue;
#pragma unroll
        for (int e = 0; e < PER; e++)
            x[e] *= factor[e];
        if (a.add) {
            load8(more, a.add + row, c, a.num_cols, a.is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                x[e] += more[e];
        }
        store8(a.y + row, c, a.num_cols, a.is_fast, x);
    }
    if (a.parts) store8(a.parts + group * a.num_cols, c, a.num_cols, false, sum);
}

template <class T>
static cudaError_t run_columns(cr_device *dev, const column_factors<T> &a, int64_t num_groups)
{
    int64_t pieces = (a.num_cols + PER - 1) / PER;

    return CUDA_LAUNCH(scale_columns<T>, blocks_for(num_groups * pieces, BLOCK, INT32_MAX),
                       dim3(BLOCK), 0, cri_cuda_stream(dev), a);
}

template <class T> static cudaError_t cols_scale(cr_device *dev, const cr_cols_scale_args *a)
{
    const column_factors<T> f = {in<T>(a->x),
                                 in<T>(a->factor),
                                 in<T>(a->add),
                                 NULL,
                                 out<T>(a->y),
                                 NULL,
                                 a->num_rows,
                                 a->num_cols,
                                 1,
                                 are_wide(a->num_cols, a->x, a->factor, a->add, a->y)};

    return run_columns(dev, f, a->num_rows);
}

cr_status cri_cuda_cols_scale(cr_device *dev, const cr_cols_scale_args *a, cr_err *err)
{
    return launched("cols_scale", CRI_BY_DTYPE(a->dtype, cols_scale, dev, a), err);
}

template <class T>
static cr_status cols_scale_grad(cr_device *dev, const cr_cols_scale_grad_args *a, cr_err *err)
{
    int64_t n = a->num_cols, rows = cr_max64((a->num_rows + MAX_PARTS - 1) / MAX_PARTS, FEW_ROWS),
            num_parts = (a->num_rows + rows - 1) / rows;
    column_factors<T> f = {in<T>(a->dy),  in<T>(a->factor),
                           NULL,          in<T>(a->x),
                           out<T>(a->dx), NULL,
                           a->num_rows,   n,
                           rows,          are_wide(n, a->x, a->factor, a->dy, a->dx)};
    cudaError_t code;
    void *mem = NULL;

    if (a->dfactor)
        CR_TRY(cri_cuda_scratch(dev, (size_t)(num_parts * n) * sizeof(float), &mem, err));
    f.parts = (float *)mem;
    code = run_columns(dev, f, num_parts);
    if (code == cudaSuccess && mem)
        code = CUDA_LAUNCH(add_norm_parts, blocks_for(n, 32, INT32_MAX), dim3(32 * ADDERS), 0,
                           cri_cuda_stream(dev), (const float *)mem, num_parts, n, n,
                           out<float>(a->dfactor), (float *)NULL);
    return launched("cols_scale_grad", code, err);
}

cr_status cri_cuda_cols_scale_grad(cr_device *dev, const cr_cols_scale_grad_args *a, cr_err *err)
{
    return CRI_BY_DTYPE(a->dtype, cols_scale_grad, dev, a, err);
}
