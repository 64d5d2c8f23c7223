/* flat.cu -- casts, scaling, sums of parts, AdamW, norms and checksums of flat ranges.
 *
 * Mapping: a thread takes 8 neighbouring elements (16-byte loads and stores where pointers allow), blocks of 256, at
 * most 2112 blocks, which go round. No shared memory but for sums. An element's result depends on that element alone.
 * Bytes an element: cast fp32 to bf16 6, scale 8, blend 12, sum_parts of fp32 4 a part and 4 (8 when added), AdamW 28 (14 FLOPs; 30 with rounded weights), square_sum 4: bound by memory on every GPU
 * (AdamW at most 120 elements/ns on H100 with 3.35 TB/s, 171 on H200 with 4.8 TB/s). Registers: below 64, so four
 * blocks an SM at least and 128 bytes in flight a thread of AdamW.
 * square_sum: blocks of 4096 elements in float64, then one block adds them; the order depends on num alone.
 * checksum: a block of 64 KiB has four chains of 2048 dependent steps of about 30 cycles, 35 us on H100 whatever the size. A warp
 * takes eight blocks, each in its own four lanes, with 16 words under way a lane while 16 are summed: of 100 MB 200 warps. Then one warp sums
 * the blocks' sums. Bound by memory from about 200 MB on, by the chains below.
 */
#include "kernels/cuda/op.h"

#include <math.h>

enum { SQUARES = 4096 };

/* ---- casts ---- */

template <class To, class From> struct cast_op {
    To *dst;
    const From *src;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float f[PER];
        load8(f, src, i, num, is_fast);
        store8(dst, i, num, is_fast, f);
    }
};

template <class To, class From> static cudaError_t cast(cr_device *dev, const cr_cast_args *a)
{
    cast_op<To, From> op = {out<To>(a->dst), in<From>(a->src), is_wide(a->dst) && is_wide(a->src)};

    return on_each(dev, op, a->num);
}

template <class To> static cudaError_t cast_to(cr_device *dev, const cr_cast_args *a)
{
    return a->from == CR_BF16  ? cast<To, bf16>(dev, a)
           : a->from == CR_F16 ? cast<To, f16>(dev, a)
                               : cast<To, float>(dev, a);
}

cr_status cri_cuda_cast(cr_device *dev, const cr_cast_args *a, cr_err *err)
{
    if (a->to == a->from) /* NaNs keep their bits */
        return dev->kernels->copy(dev, a->dst, a->src, a->num * cr_dtype_bytes(a->to), err);
    return launched("cast", CRI_BY_DTYPE(a->to, cast_to, dev, a), err);
}

/* ---- scale ---- */

struct scale_op {
    float *x;
    float factor;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float f[PER];
        load8(f, x, i, num, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            f[e] *= factor;
        store8(x, i, num, is_fast, f);
    }
};

cr_status cri_cuda_scale(cr_device *dev, const cr_scale_args *a, cr_err *err)
{
    scale_op op = {out<float>(a->x), a->factor, is_wide(a->x)};

    return launched("scale", on_each(dev, op, a->num), err);
}

/* ---- sums of parts ---- */

/* sum = the sum of all parts along the tree of mesh/comm.h, W elements at a time; load(f, p): those of part p.
 * of_bit[k]: the sum of 2^k parts, where bit k of the number of parts so far is set; k < BITS. Loops are unrolled, so that
 * these are registers. */
template <int BITS, int W, class Load>
static __device__ __forceinline__ void sum_tree(float (&sum)[W], int num_parts, const Load &load)
{
    float of_bit[BITS][W];

    for (int p = 0; p < num_parts; p++) {
        bool is_kept = false;
        load(sum, p);
#pragma unroll
        for (int k = 0; k < BITS; k++) {
            if (is_kept) continue;
            is_kept = !(p >> k & 1);
#pragma unroll
            for (int e = 0; e < W; e++) {
                if (is_kept)
                    of_bit[k][e] = sum[e];
                else
                    sum[e] = of_bit[k][e] + sum[e];
            }
        }
    }
    int low = num_parts & -num_parts; /* the number of parts in the last sum */
#pragma unroll
    for (int k = 0; k < BITS; k++)
#pragma unroll
        for (int e = 0; e < W; e++)
            if (num_parts >> k & 1 && 1 << k != low) sum[e] = of_bit[k][e] + sum[e];
}

template <class T, int BITS> struct sum_parts_op {
    float *y;
    const T *x;
    int64_t stride;
    int num_parts;
    bool is_added, is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float sum[PER], f[PER];
        sum_tree<BITS>(sum, num_parts, [&](float(&part)[PER], int p) {
            load8(part, x + p * stride, i, num, is_fast);
        });
        if (is_added) {
            load8(f, y, i, num, is_fast);
#pragma unroll
            for (int e = 0; e < PER; e++)
                sum[e] += f[e];
        }
        store8(y, i, num, is_fast, sum);
    }
};

/* An element after the other: 16 sums of 8 elements would not stay in registers. */
template <class T> struct sum_many_parts_op {
    float *y;
    const T *x;
    int64_t stride;
    int num_parts;
    bool is_added;

    __device__ void operator()(int64_t first, int64_t num) const
    {
        for (int64_t i = first; i < first + PER && i < num; i++) {
            float sum[1] = {0.0f}; /* there is a part at least, which a compiler cannot know */
            sum_tree<16>(sum, num_parts,
                         [&](float(&part)[1], int p) { part[0] = to_float(x[p * stride + i]); });
            y[i] = is_added ? sum[0] + y[i] : sum[0];
        }
    }
};

template <class T, int BITS>
static cudaError_t sum_few_parts(cr_device *dev, const cr_sum_parts_args *a)
{
    bool is_fast = is_wide(a->x) && is_wide(a->y) && a->stride * sizeof(T) % 16 == 0;
    sum_parts_op<T, BITS> op = {out<float>(a->y),  in<T>(a->x), (int64_t)a->stride,
                                (int)a->num_parts, a->is_added, is_fast};

    return on_each(dev, op, a->num);
}

template <class T> static cudaError_t sum_many_parts(cr_device *dev, const cr_sum_parts_args *a)
{
    sum_many_parts_op<T> op = {out<float>(a->y), in<T>(a->x), (int64_t)a->stride, (int)a->num_parts,
                               a->is_added};

    return on_each(dev, op, a->num);
}

template <class T> static cudaError_t sum_parts(cr_device *dev, const cr_sum_parts_args *a)
{
    return a->num_parts < 16    ? sum_few_parts<T, 4>(dev, a)
           : a->num_parts < 256 ? sum_few_parts<T, 8>(dev, a)
                                : sum_many_parts<T>(dev, a);
}

cr_status cri_cuda_sum_parts(cr_device *dev, const cr_sum_parts_args *a, cr_err *err)
{
    return launched("sum_parts",
                    a->dtype == CR_BF16 ? sum_parts<bf16>(dev, a) : sum_parts<float>(dev, a), err);
}

/* ---- AdamW ---- */

/* To: of the rounded weights; float: none. */
template <class To> struct adamw_op {
    float *param, *m, *v;
    const float *grad;
    To *rounded;
    float decay, b1, b2, c1, c2, eps, step, root, scale;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float p[PER], m8[PER], v8[PER], g[PER];
        load8(p, param, i, num, is_fast);
        load8(m8, m, i, num, is_fast);
        load8(v8, v, i, num, is_fast);
        load8(g, grad, i, num, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++) {
            float x = g[e] * scale;
            m8[e] = b1 * m8[e] + c1 * x;
            v8[e] = b2 * v8[e] + c2 * x * x;
            p[e] = p[e] * decay - step * (m8[e] / (sqrtf(v8[e]) * root + eps));
        }
        store8(param, i, num, is_fast, p);
        store8(m, i, num, is_fast, m8);
        store8(v, i, num, is_fast, v8);
        if (sizeof(To) < sizeof(float)) store8(rounded, i, num, is_fast, p);
    }
};

template <class To> static cudaError_t adamw(cr_device *dev, const cr_adamw_args *a)
{
    adamw_op<To> op = {out<float>(a->param),
                       out<float>(a->m),
                       out<float>(a->v),
                       in<float>(a->grad),
                       out<To>(a->rounded),
                       (float)(1 - a->lr * a->weight_decay),
                       (float)a->beta1,
                       (float)a->beta2,
                       (float)(1 - a->beta1),
                       (float)(1 - a->beta2),
                       (float)a->eps,
                       (float)(a->lr / (1 - pow(a->beta1, (double)a->t))),
                       (float)(1 / sqrt(1 - pow(a->beta2, (double)a->t))),
                       (float)a->grad_scale,
                       is_wide(a->param) && is_wide(a->m) && is_wide(a->v) && is_wide(a->grad) &&
                           is_wide(a->rounded)};

    return on_each(dev, op, a->num);
}

cr_status cri_cuda_adamw(cr_device *dev, const cr_adamw_args *a, cr_err *err)
{
    cr_dtype to = a->rounded ? a->rounded_dtype : CR_F32;

    return launched("adamw", CRI_BY_DTYPE(to, adamw, dev, a), err);
}

/* ---- blend ---- */

struct blend_op {
    float *y;
    const float *x;
    float a, b;
    bool is_fast;

    __device__ void operator()(int64_t i, int64_t num) const
    {
        float f[PER], g[PER];
        load8(f, y, i, num, is_fast);
        load8(g, x, i, num, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            f[e] = a * g[e] + b * f[e];
        store8(y, i, num, is_fast, f);
    }
};

cr_status cri_cuda_blend(cr_device *dev, const cr_blend_args *a, cr_err *err)
{
    blend_op op = {out<float>(a->y), in<float>(a->x), a->a, a->b, is_wide(a->y) && is_wide(a->x)};

    return launched("blend", on_each(dev, op, a->num), err);
}

/* ---- sums of squares ---- */

static __global__ void __launch_bounds__(THREADS)
    square_parts(const float *x, int64_t num, bool is_fast, double *part)
{
    SHARED(double, sums, THREADS / 32);
    int64_t first = (int64_t)blockIdx.x * SQUARES,
            end = first + SQUARES < num ? first + SQUARES : num;
    double sum = 0;

    for (int64_t i = first + threadIdx.x * PER; i < end; i += THREADS * PER) {
        float f[PER];
        load8(f, x, i, end, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            sum += (double)f[e] * (double)f[e];
    }
    sum = group_sum<THREADS>(sum, sums);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_parts(const double *part, int64_t num, double *total)
{
    SHARED(double, sums, THREADS / 32);
    double sum = 0;

    for (int64_t i = threadIdx.x; i < num; i += THREADS)
        sum += part[i];
    sum = group_sum<THREADS>(sum, sums);
    if (threadIdx.x == 0) *total = sum;
}

cr_status cri_cuda_square_sum(cr_device *dev, const cr_square_sum_args *a, cr_err *err)
{
    int64_t num = (int64_t)a->num, parts = (num + SQUARES - 1) / SQUARES;
    cudaStream_t stream = cri_cuda_stream(dev);
    cudaError_t code;
    void *mem;

    *a->out = 0;
    if (num == 0) return CR_OK;
    CR_TRY(cri_cuda_scratch(dev, (size_t)(parts + 1) * sizeof(double), &mem, err));
    double *total = (double *)mem, *part = total + 1;
    code = CUDA_LAUNCH(square_parts, blocks_for(parts, 1, INT32_MAX), dim3(THREADS), 0, stream,
                       in<float>(a->x), num, is_wide(a->x), part);
    if (code == cudaSuccess)
        code = CUDA_LAUNCH(add_parts, dim3(1), dim3(THREADS), 0, stream, (const double *)part,
                           parts, total);
    CR_TRY(launched("square_sum", code, err));
    return dev->kernels->download(dev, a->out, cr_mem_of_host(total), sizeof *total, err);
}

/* ---- checksums ---- */

enum { SUM_LANES = 4, SUM_THREADS = 32, SUMS_A_WARP = SUM_THREADS / SUM_LANES, SUM_DEPTH = 16 };

static __device__ __forceinline__ uint64_t sum_word(uint64_t lane, uint64_t word)
{
    lane = (lane ^ word) * 0xFF51AFD7ED558CCDu;
    return lane ^ lane >> 29;
}

/* SUM_DEPTH words of a lane, one group of four after another. */
template <bool IS_ALIGNED>
static __device__ __forceinline__ void take_words(uint64_t (&word)[SUM_DEPTH],
                                                  const unsigned char *p, int num)
{
#pragma unroll
    for (int i = 0; i < SUM_DEPTH; i++) {
        word[i] = 0;
        if (i >= num) continue;
        if (IS_ALIGNED)
            word[i] = *(const uint64_t *)(const void *)(p + 32 * i);
        else
            for (int b = 0; b < 8; b++)
                word[i] |= (uint64_t)p[32 * i + b] << 8 * b;
    }
}

/* sums[i] = C (kernels.h) of the i-th block_bytes, four threads each: thread k has lane k, thread 0 the bytes after the last group of
 * four words, too. */
template <bool IS_ALIGNED>
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_blocks(const unsigned char *all, int64_t num_bytes, int64_t block_bytes, int64_t num,
               uint64_t start, uint64_t *sums)
{
    SHARED(uint64_t, lanes, SUM_THREADS);
    int t = (int)threadIdx.x, k = t % SUM_LANES;
    int64_t block = (int64_t)blockIdx.x * SUMS_A_WARP + t / SUM_LANES, at = block * block_bytes,
            rest = num_bytes - at < block_bytes ? num_bytes - at : block_bytes,
            size = block < num ? rest : 0, left = size / 32;
    const unsigned char *p = all + (block < num ? at : 0), *end = p + left * 32;
    uint64_t lane = k == 0   ? start ^ 0x9E3779B97F4A7C15u
                    : k == 1 ? start + 1
                    : k == 2 ? start ^ 2
                             : start + 3,
             word[SUM_DEPTH], next[SUM_DEPTH];

    p += 8 * k;
    take_words<IS_ALIGNED>(next, p, left < SUM_DEPTH ? (int)left : SUM_DEPTH);
    for (; left > 0; left -= SUM_DEPTH) {
        int64_t after = left - SUM_DEPTH;
#pragma unroll
        for (int i = 0; i < SUM_DEPTH; i++)
            word[i] = next[i];
        p += 32 * SUM_DEPTH;
        take_words<IS_ALIGNED>(next, p, after < SUM_DEPTH ? (int)after : SUM_DEPTH);
#pragma unroll
        for (int i = 0; i < SUM_DEPTH; i++)
            if (i < left) lane = sum_word(lane, word[i]);
    }
    for (int64_t i = 0; k == 0 && i < size % 32; i++)
        lane = (lane ^ end[i]) * 0x100000001B3u;
    lanes[t] = lane;
    __syncthreads();
    if (k == 0 && block < num)
        sums[block] = ((lane * 31 + lanes[t + 1]) * 31 + lanes[t + 2]) * 31 + lanes[t + 3];
}

/* num blocks of block_bytes, the last one may be shorter. */
static cudaError_t sum_all(cr_device *dev, const void *data, int64_t num_bytes, int64_t block_bytes,
                           int64_t num, uint64_t start, uint64_t *sums)
{
    auto kernel = (uintptr_t)data % 8 ? sum_blocks<false> : sum_blocks<true>;

    return CUDA_LAUNCH(kernel, blocks_for(num, SUMS_A_WARP, INT32_MAX), dim3(SUM_THREADS), 0,
                       cri_cuda_stream(dev), (const unsigned char *)data, num_bytes, block_bytes,
                       num, start, sums);
}

cr_status cri_cuda_checksum(cr_device *dev, const cr_checksum_args *a, cr_err *err)
{
    const int64_t block = CR_CHECKSUM_BLOCK, bytes = (int64_t)a->num_bytes,
                  num = (bytes + block - 1) / block, sums_bytes = num * (int64_t)sizeof(uint64_t);
    cudaError_t code = cudaSuccess;
    void *mem;
    uint64_t *sums;

    CR_TRY(cri_cuda_scratch(dev, (size_t)sums_bytes + sizeof *sums, &mem, err));
    sums = (uint64_t *)mem;
    if (num) code = sum_all(dev, in<void>(a->data), bytes, block, num, a->start, sums);
    if (code == cudaSuccess)
        code = sum_all(dev, sums, sums_bytes, sums_bytes, 1, a->start, sums + num);
    CR_TRY(launched("checksum", code, err));
    return dev->kernels->download(dev, a->out, cr_mem_of_host(sums + num), sizeof *sums, err);
}
