/* attention.cu -- attention over packed sequences and over a paged cache, forward; bf16 heads of 64 and 128: attention_mma.cu
 * and, on a GPU of compute capability 9.0, attention_wgmma.cu.
 *
 * Mapping: a block of 128 threads takes 16 query rows that share their keys: 16 neighbouring rows of one sequence and head, or
 * the heads of one kv head's group for one row of a generation step. Keys come in tiles of 64 positions counted from the
 * start of the sequence, packed and cached alike, with an online softmax in float32; sums over head_dim and over keys go
 * up one by one, maxima and sums of a tile by fixed shuffles. So a row's bits depend on its own keys alone: not on
 * its place in the block, other rows, or where its keys lie. The cache holds K [64, D] and V [64, D] of a kv head one
 * after the other, in the act dtype.
 *
 * FLOPs 4 D a pair of query and key; bytes 4 D a key and block of 16 rows in bf16: 16 FLOPs a byte from L2. Shared
 * memory, as floats: 16 (D + 1) of Q, 64 (D + 1) of K, then V, 16 x 64 weights: 46 KiB for D 128, 87 KiB for D 256.
 * Registers: below 128. Limit: fused multiply-add of fp32 units with one shared load for 8 of them: at most half of 67
 * TFLOP/s on H100 and H200, where tensor cores reach ten times that. A prompt that is computed by the cached entry reads its keys once a row.
 */
#include "kernels/cuda/attention/heads.h"

#include <math.h>

enum { KEYS = CR_KV_BLOCK, ROWS = 16, THREADS_A_BLOCK = 128, WARPS = THREADS_A_BLOCK / 32 };

template <class T, int DPAD> struct state {
    static constexpr int COLS =
                             DPAD > THREADS_A_BLOCK ? DPAD / THREADS_A_BLOCK : 1, /* a thread's */
        LANES = DPAD < THREADS_A_BLOCK ? DPAD : THREADS_A_BLOCK, GROUPS = THREADS_A_BLOCK / LANES,
                         MINE = ROWS / GROUPS; /* rows of a thread */
    float o[MINE][COLS];
};

/* Pieces of the block's shared memory. */
struct shared_tiles {
    float *q, *kv, *p, *factor, *max, *sum;
};

static __device__ __forceinline__ shared_tiles tiles_in(unsigned char *memory, int D)
{
    shared_tiles s;

    s.q = (float *)(void *)memory;
    s.kv = s.q + ROWS * (D + 1);
    s.p = s.kv + KEYS * (D + 1);
    s.factor = s.p + ROWS * KEYS;
    s.max = s.factor + ROWS;
    s.sum = s.max + ROWS;
    return s;
}

static int shared_bytes(int64_t head_dim)
{
    return (int)((ROWS + KEYS) * (head_dim + 1) + ROWS * KEYS + 3 * ROWS) * (int)sizeof(float);
}

/* p [ROWS, KEYS] = scaled scores of the tile of keys from k0 on, -inf where a row does not see the key. */
static __device__ __forceinline__ void scores(const shared_tiles &s, const block_rows &rows, int k0,
                                              int D, float scale)
{
    enum { EACH = ROWS * KEYS / THREADS_A_BLOCK };
    int key = (int)threadIdx.x % KEYS, r0 = (int)threadIdx.x / KEYS * EACH;
    float acc[EACH] = {};

    for (int d = 0; d < D; d++) {
        float k = s.kv[key * (D + 1) + d];
#pragma unroll
        for (int r = 0; r < EACH; r++)
            acc[r] = fmaf(s.q[(r0 + r) * (D + 1) + d], k, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        int64_t end = rows.num_keys + (r0 + r) * rows.step;
        bool is_seen = k0 + key < end && (rows.window == 0 || k0 + key >= end - rows.window);
        s.p[(r0 + r) * KEYS + key] = is_seen ? acc[r] * scale : -INFINITY;
    }
}

/* p becomes e^(p - max), max the largest so far. A row that has seen no key yet has max -inf and weights 0. */
static __device__ __forceinline__ void weigh(const shared_tiles &s)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    for (int r = warp; r < ROWS; r += WARPS) {
        float low = s.p[r * KEYS + lane], high = s.p[r * KEYS + lane + 32], old = s.max[r];
        float max = fmaxf(low, high);
        for (int d = 16; d > 0; d /= 2)
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, d));
        max = fmaxf(max, old);
        float shift = max == -INFINITY ? 0.0f : max;
        low = expf(low - shift);
        high = expf(high - shift);
        s.p[r * KEYS + lane] = low;
        s.p[r * KEYS + lane + 32] = high;
        float part = low + high, factor = expf(old - shift);
        for (int d = 16; d > 0; d /= 2)
            part += __shfl_xor_sync(0xffffffffu, part, d);
        __syncwarp(); /* all lanes have read most */
        if (lane == 0) {
            s.max[r] = max;
            s.factor[r] = factor;
            s.sum[r] = s.sum[r] * factor + part;
        }
    }
}

/* o = o factor + p V. */
template <class T, int DPAD>
static __device__ __forceinline__ void take_values(state<T, DPAD> &st, const shared_tiles &s, int D)
{
    typedef state<T, DPAD> S;
    int d0 = (int)threadIdx.x % S::LANES, r0 = (int)threadIdx.x / S::LANES * S::MINE;

#pragma unroll
    for (int c = 0; c < S::COLS; c++) {
        int d = d0 + c * THREADS_A_BLOCK;
        if (d >= D) break;
#pragma unroll
        for (int r = 0; r < S::MINE; r++)
            st.o[r][c] *= s.factor[r0 + r];
        for (int key = 0; key < KEYS; key++) {
            float v = s.kv[key * (D + 1) + d];
#pragma unroll
            for (int r = 0; r < S::MINE; r++)
                st.o[r][c] = fmaf(s.p[(r0 + r) * KEYS + key], v, st.o[r][c]);
        }
    }
}

/* One tile of keys, of which `some` are there. */
template <class T, int DPAD>
static __device__ __forceinline__ void
take_tile(state<T, DPAD> &st, const shared_tiles &s, const block_rows &rows, const head_rows<T> &k,
          const head_rows<T> &v, int some, int k0, int D, float scale)
{
    load_rows<KEYS, THREADS_A_BLOCK>(s.kv, k, 0, some, D);
    __syncthreads();
    scores(s, rows, k0, D, scale);
    __syncthreads();
    load_rows<KEYS, THREADS_A_BLOCK>(s.kv, v, 0, some, D);
    weigh(s);
    __syncthreads();
    take_values<T, DPAD>(st, s, D);
    __syncthreads(); /* the next tile overwrites K, V and the weights */
}

template <class T, int DPAD>
static __device__ __forceinline__ void start(state<T, DPAD> &st, const shared_tiles &s)
{
    typedef state<T, DPAD> S;

#pragma unroll
    for (int r = 0; r < S::MINE; r++)
#pragma unroll
        for (int c = 0; c < S::COLS; c++)
            st.o[r][c] = 0.0f;
    if (threadIdx.x < ROWS) {
        s.max[threadIdx.x] = -INFINITY;
        s.sum[threadIdx.x] = 0.0f;
    }
}

/* Row i of the block goes to o + i stride, and its logsumexp to lse[i lse_stride]. */
template <class T, int DPAD>
static __device__ __forceinline__ void finish(const state<T, DPAD> &st, const shared_tiles &s,
                                              int num, int D, T *o, int64_t stride, float *lse,
                                              int64_t lse_stride)
{
    typedef state<T, DPAD> S;
    int d0 = (int)threadIdx.x % S::LANES, r0 = (int)threadIdx.x / S::LANES * S::MINE;

#pragma unroll
    for (int r = 0; r < S::MINE; r++) {
        if (r0 + r >= num) break;
        float inverse = 1.0f / s.sum[r0 + r];
#pragma unroll
        for (int c = 0; c < S::COLS; c++) {
            int d = d0 + c * THREADS_A_BLOCK;
            if (d < D) o[(r0 + r) * stride + d] = from_float<T>(st.o[r][c] * inverse);
        }
    }
    int row = (int)threadIdx.x;
    if (lse && row < num) lse[row * lse_stride] = s.max[row] + logf(s.sum[row]);
}

/* ---- packed ---- */

/* Heads of 256 have 86 KB of shared memory a block: no 4 of them fit on a multiprocessor, whose registers need not be divided by 4. */
template <class T, int DPAD>
static __global__ void __launch_bounds__(THREADS_A_BLOCK, DPAD > 128 ? 3 : 4)
    attend_packed(packed_args<T> a)
{
    DYNAMIC_SHARED(memory);
    int D = a.head_dim, head = head_of_block(), kv = head / (a.num_heads / a.num_kv_heads);
    seq_piece piece = piece_of_block(a.cu_seqlens, ROWS, false);
    if (piece.first >= piece.len) return;
    const block_rows rows = rows_of_piece(piece, ROWS, a.window, a.is_bidirectional);
    int end = last_key(rows);
    const shared_tiles s = tiles_in(memory, D);
    int64_t q_stride = (int64_t)a.num_heads * D, kv_stride = (int64_t)a.num_kv_heads * D,
            at = (int64_t)piece.begin * q_stride + (int64_t)head * D;
    const head_rows<T> q = {a.q + at, q_stride};
    state<T, DPAD> st;

    start(st, s);
    load_rows<ROWS, THREADS_A_BLOCK>(s.q, q, piece.first, piece.len, D);
    for (int k0 = first_key(rows) / KEYS * KEYS; k0 < end; k0 += KEYS) {
        int64_t from = (int64_t)(piece.begin + k0) * kv_stride + (int64_t)kv * D;
        const head_rows<T> k = {a.k + from, kv_stride}, v = {a.v + from, kv_stride};
        take_tile<T, DPAD>(st, s, rows, k, v, piece.len - k0, k0, D, a.scale);
    }
    int64_t row = (int64_t)piece.begin + piece.first;
    finish<T, DPAD>(st, s, rows.num, D, a.o + row * q_stride + (int64_t)head * D, q_stride,
                    a.lse ? a.lse + row * a.num_heads + head : NULL, a.num_heads);
}

template <class T> static packed_args<T> packed_of(const cr_attention_args *a)
{
    return {in<T>(a->q),
            in<T>(a->k),
            in<T>(a->v),
            out<T>(a->o),
            out<float>(a->lse),
            in<int32_t>(a->cu_seqlens),
            a->num_seqs,
            a->sizes.max_seqlen,
            window_of(a->window),
            (int)a->num_heads,
            (int)a->num_kv_heads,
            (int)a->head_dim,
            a->scale,
            a->is_bidirectional,
            a->sizes.num_rows ? a->sizes.num_rows : a->num_seqs * a->sizes.max_seqlen};
}

template <class T, int DPAD> static cudaError_t packed(cr_device *dev, const cr_attention_args *a)
{
    return launch_shared(dev, attend_packed<T, DPAD>,
                         grid_of_pieces(a->num_heads, a->num_seqs, a->sizes.max_seqlen, ROWS),
                         THREADS_A_BLOCK, shared_bytes(a->head_dim), packed_of<T>(a));
}

static cr_status check_aligned(const char *op, const cr_mem *q, const cr_mem *k, const cr_mem *v,
                               cr_err *err)
{
    if (is_wide(q) && is_wide(k) && is_wide(v)) return CR_OK;
    return cr_fail(err, CR_EARG,
                   "%s on device cuda: bf16 heads of 64 and 128 begin at multiples of 16 bytes",
                   op);
}

static cudaError_t packed_on_tensor_cores(cr_device *dev, const cr_attention_args *a)
{
    return cri_cuda_has_wgmma(dev) ? attend_packed_by_wgmma(dev, packed_of<bf16>(a))
                                   : attend_packed_on_tensor_cores(dev, packed_of<bf16>(a));
}

cr_status cri_cuda_attention(cr_device *dev, const cr_attention_args *a, cr_err *err)
{
    if (a->sizes.max_seqlen == 0) return CR_OK;
    if (!is_for_tensor_cores(a->dtype, a->head_dim))
        return launched("attention", CRI_BY_DTYPE_AND_DIM(a->dtype, a->head_dim, packed, dev, a),
                        err);
    CR_TRY(check_aligned("attention", a->q, a->k, a->v, err));
    return launched("attention", packed_on_tensor_cores(dev, a), err);
}

/* ---- cached ---- */

template <class T, int DPAD>
static __global__ void __launch_bounds__(THREADS_A_BLOCK, 4) attend_cached(cached_args<T> a)
{
    DYNAMIC_SHARED(memory);
    int64_t r = blockIdx.x;
    const group_part part = part_of_group(a, (int)blockIdx.y, ROWS);
    int D = a.head_dim, slot = a.row_slot[r], end = a.row_pos[r] + 1;
    const block_rows rows = {part.num, end, 0, a.window};
    int64_t at = (r * a.num_heads + part.head) * D;
    const shared_tiles s = tiles_in(memory, D);
    const head_rows<T> q = {a.q + at, D};
    state<T, DPAD> st;

    start(st, s);
    load_rows<ROWS, THREADS_A_BLOCK>(s.q, q, 0, part.num, D);
    for (int k0 = first_key(rows) / KEYS * KEYS; k0 < end; k0 += KEYS) {
        const T *tiles = tiles_of(a, slot, k0, part.kv);
        const head_rows<T> k = {tiles, D}, v = {tiles + KEYS * D, D};
        take_tile<T, DPAD>(st, s, rows, k, v, end - k0, k0, D, a.scale);
    }
    finish<T, DPAD>(st, s, part.num, D, a.o + at, D, NULL, 0);
}

template <class T> static cached_args<T> cached_of(const cr_attention_cached_args *a)
{
    return {in<T>(a->q),
            in<T>(a->k),
            in<T>(a->v),
            out<T>(a->o),
            out<T>(a->blocks),
            in<int32_t>(a->row_slot),
            in<int32_t>(a->row_pos),
            in<int32_t>(a->block_table),
            a->max_blocks,
            window_of(a->window),
            (int)a->num_heads,
            (int)a->num_kv_heads,
            (int)a->head_dim,
            a->scale,
            a->num_blocks,
            a->num_tiles,
            in<cr_row_tile>(a->tiles)};
}

template <class T, int DPAD>
static cudaError_t cached(cr_device *dev, const cr_attention_cached_args *a)
{
    const cached_args<T> c = cached_of<T>(a);
    const dim3 grid((unsigned)a->num_rows, num_group_parts(c, ROWS));
    cudaError_t code = cri_cuda_heads_to_cache(dev, &a->heads, c, a->num_rows);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, attend_cached<T, DPAD>, grid, THREADS_A_BLOCK,
                         shared_bytes(a->head_dim), c);
}

/* The first num_alone rows are alone. */
static cudaError_t cached_on_tensor_cores(cr_device *dev, const cr_attention_cached_args *a,
                                          const cached_args<bf16> &c, const shares &s,
                                          int64_t num_alone)
{
    bool by_wgmma = cri_cuda_has_wgmma(dev), has_stretches = s.num > 1;
    cudaError_t code = cri_cuda_heads_to_cache(dev, &a->heads, c, a->num_rows);

    if (code == cudaSuccess && num_alone > 0)
        code = by_wgmma ? attend_cached_by_wgmma(dev, c, s, num_alone)
                        : attend_cached_on_tensor_cores(dev, c, s, num_alone);
    if (code == cudaSuccess && s.sums) code = add_shares(dev, c, s, num_alone);
    if (code != cudaSuccess || c.num_tiles == 0) return code;
    return by_wgmma ? attend_tiles_by_wgmma(dev, c, has_stretches)
                    : attend_tiles_on_tensor_cores(dev, c, has_stretches);
}

/* Blocks share a row's keys where there are fewer blocks than multiprocessors. By the size of the table, not by the rows' positions:
 * a launch that is kept and repeated later has room for all. */
static cr_status shares_of(cr_device *dev, const cached_args<bf16> &c, int64_t num_rows,
                           shares *out, cr_err *err)
{
    enum { MULTIPROCESSORS = 132 };
    int64_t num = (c.max_blocks * CR_KV_BLOCK + SPLIT - 1) / SPLIT,
            blocks = num_rows * num_group_parts(c, MMA_ROWS);
    int group = c.num_heads / c.num_kv_heads,
        warps = (group < MMA_ROWS ? group + 15 : MMA_ROWS) / 16;
    void *sums;

    *out = shares{NULL, (int)num, warps};
    if (num == 1 || num_rows == 0 || blocks > MULTIPROCESSORS) return CR_OK;
    CR_TRY(cri_cuda_scratch(
        dev, (size_t)(blocks * num * warps * 32 * (c.head_dim / 2 + 4)) * sizeof(float), &sums,
        err));
    out->sums = (float *)sums;
    return CR_OK;
}

cr_status cri_cuda_attention_cached(cr_device *dev, const cr_attention_cached_args *a, cr_err *err)
{
    if (!is_for_tensor_cores(a->dtype, a->head_dim))
        return launched("attention_cached",
                        CRI_BY_DTYPE_AND_DIM(a->dtype, a->head_dim, cached, dev, a), err);
    CR_TRY(check_aligned("attention_cached", a->q, a->blocks, a->blocks, err));
    const cached_args<bf16> c = cached_of<bf16>(a);
    int64_t num_alone = a->num_tiles > 0 ? a->num_alone : a->num_rows;
    shares s;
    CR_TRY(shares_of(dev, c, num_alone, &s, err));
    return launched("attention_cached", cached_on_tensor_cores(dev, a, c, s, num_alone), err);
}

size_t cri_cuda_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                               int64_t head_dim)
{
    (void)dev;
    return (size_t)(2 * CR_KV_BLOCK * num_kv_heads * head_dim) * cr_dtype_bytes(dtype);
}
