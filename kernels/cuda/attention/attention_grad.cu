/* attention_grad.cu -- backward of attention over packed sequences.
 *
 * With P from lse, dP = dO V^T and dS = scale P (dP - delta), delta = dO . o: dV = P^T dO, dK = dS^T q, dq = dS K. Three
 * kernels: delta (a warp a row of a head: bound by memory; it puts lse beside it); dK and dV (a block takes 32 keys of a sequence and kv head, of heads above 128 16,
 * and goes over the heads of the group and over the rows that see the keys, 16 at a time, upwards); dq (a block takes 16 rows of a head and
 * goes over their keys, as many at a time, upwards). Each sum has one order, in float32, which no other sequence changes; S and dP
 * are made twice, so that there are no atomics. The last two for bf16 heads of 64 and 128: attention_grad_mma.cu
 * and, on a GPU of compute capability 9.0, attention_grad_wgmma.cu.
 *
 * Blocks of 256 threads. FLOPs 14 D a pair of query and key (10 D and the second S and dP); tiles come from L2, 16 to 32
 * FLOPs a byte. Shared memory, as floats: 2 (16 + keys) (D + 1) and 2 x 16 (keys + 1): 53 KiB for D 128, 67 KiB for D 256, below the 99 KiB
 * of compute capability 8.6 and 8.9. Registers: D / 4
 * sums a thread in dK and dV, D / 16 in dq, below 128. Limit: fp32 units, as the forward.
 */
#include "kernels/cuda/attention/attention_grad.h"

#include <math.h>

enum { ROWS = 16 };
static __host__ __device__ constexpr int keys_of(int64_t head_dim)
{
    return head_dim > 128 ? 16 : 32;
}

struct grad_tiles {
    float *q, *d_o, *k, *v, *p, *ds;
};

template <int KEYS>
static __device__ __forceinline__ grad_tiles tiles_in(unsigned char *memory, int D)
{
    grad_tiles s;

    s.q = (float *)(void *)memory;
    s.d_o = s.q + ROWS * (D + 1);
    s.k = s.d_o + ROWS * (D + 1);
    s.v = s.k + KEYS * (D + 1);
    s.p = s.v + KEYS * (D + 1);
    s.ds = s.p + ROWS * (KEYS + 1);
    return s;
}

static int shared_bytes(int64_t head_dim)
{
    const int64_t keys = keys_of(head_dim);

    return (int)(2 * (ROWS + keys) * (head_dim + 1) + 2 * ROWS * (keys + 1)) * (int)sizeof(float);
}

/* P and dS of rows i0 .. and keys k0 .., from the tiles of q, dO, k and v. */
template <int KEYS, class T>
static __device__ __forceinline__ void weigh(const grad_args<T> &a, const sequence<T> &seq,
                                             const grad_tiles &s, int i0, int k0)
{
    constexpr int PITCH = KEYS + 1;
    int D = a.head_dim;

    for (int at = (int)threadIdx.x; at < ROWS * KEYS; at += THREADS) {
        int r = at / KEYS, j = at % KEYS, row = i0 + r, key = k0 + j;
        float dot = 0.0f, dp = 0.0f, p = 0.0f, ds = 0.0f;
        for (int d = 0; d < D; d++) {
            dot = fmaf(s.q[r * (D + 1) + d], s.k[j * (D + 1) + d], dot);
            dp = fmaf(s.d_o[r * (D + 1) + d], s.v[j * (D + 1) + d], dp);
        }
        if (seq.see.is_seen(row, key)) {
            p = expf(dot * a.scale - seq.lse[row]);
            ds = p * (dp - seq.delta[row]) * a.scale;
        }
        s.p[r * PITCH + j] = p;
        s.ds[r * PITCH + j] = ds;
    }
}

/* A thread's outputs of a tile of rows of DPAD elements: column thread % DPAD (and more if DPAD is above the block), rows
 * thread / DPAD + i GROUPS. */
template <int DPAD, int TALL> struct mine {
    static constexpr int GROUPS = THREADS / DPAD, NUM = TALL / GROUPS;
};

/* delta of num rows of heads, a warp a row: up to 256 columns; and lse beside it: both with the rows of a head one after another. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_deltas(grad_args<T> a, int64_t num, bool is_fast)
{
    int64_t D = a.head_dim, stride = (int64_t)gridDim.x * (THREADS / 32);
    int lane = (int)threadIdx.x % 32;

    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < num;
         r += stride) {
        float x[PER], y[PER], sum = 0.0f;
        load8(x, a.o + r * D, lane * PER, D, is_fast);
        load8(y, a.d_o + r * D, lane * PER, D, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            sum = fmaf(x[e], y[e], sum);
        sum = warp_sum(sum);
        if (lane < 2) {
            int64_t at = (r % a.num_heads + lane * a.num_heads) * a.num_rows + r / a.num_heads;
            a.sums[at] = lane == 0 ? a.lse[r] : sum;
        }
    }
}

template <class T, int DPAD>
static __global__ void __launch_bounds__(THREADS, 1) grad_of_keys(grad_args<T> a)
{
    constexpr int KEYS = keys_of(DPAD), PITCH = KEYS + 1;
    typedef mine<DPAD, KEYS> M;
    DYNAMIC_SHARED(memory);
    int D = a.head_dim, kv = head_of_block(), group = a.num_heads / a.num_kv_heads,
        d = (int)threadIdx.x % DPAD, j0 = (int)threadIdx.x / DPAD;
    seq_piece piece = piece_of_block(a.cu_seqlens, KEYS, true);
    if (piece.first >= piece.len) return;
    int k0 = piece.first, last = k0 + KEYS < piece.len ? k0 + KEYS - 1 : piece.len - 1,
        end = a.window > 0 && a.window < piece.len - last ? last + a.window : piece.len;
    const grad_tiles s = tiles_in<KEYS>(memory, D);
    float dk[M::NUM] = {}, dv[M::NUM] = {};
    sequence<T> seq = sequence_of(a, piece, kv * group);

    load_rows<KEYS, THREADS>(s.k, seq.k, k0, seq.see.len, D);
    load_rows<KEYS, THREADS>(s.v, seq.v, k0, seq.see.len, D);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        seq = sequence_of(a, piece, h);
        for (int i0 = a.is_bidirectional ? 0 : k0; i0 < end; i0 += ROWS) {
            load_rows<ROWS, THREADS>(s.q, seq.q, i0, seq.see.len, D);
            load_rows<ROWS, THREADS>(s.d_o, seq.d_o, i0, seq.see.len, D);
            __syncthreads();
            weigh<KEYS>(a, seq, s, i0, k0);
            __syncthreads();
            for (int r = 0; d < D && r < ROWS; r++) {
                float x = s.d_o[r * (D + 1) + d], y = s.q[r * (D + 1) + d];
#pragma unroll
                for (int i = 0; i < M::NUM; i++) {
                    int j = j0 + i * M::GROUPS;
                    dv[i] = fmaf(s.p[r * PITCH + j], x, dv[i]);
                    dk[i] = fmaf(s.ds[r * PITCH + j], y, dk[i]);
                }
            }
            __syncthreads(); /* the next rows overwrite q, dO and the weights */
        }
    }
#pragma unroll
    for (int i = 0; i < M::NUM; i++) {
        int key = k0 + j0 + i * M::GROUPS;
        if (key >= piece.len || d >= D) continue;
        int64_t at = ((int64_t)(piece.begin + key) * a.num_kv_heads + kv) * D + d;
        a.dk[at] = from_float<T>(dk[i]);
        a.dv[at] = from_float<T>(dv[i]);
    }
}

template <class T, int DPAD>
static __global__ void __launch_bounds__(THREADS) grad_of_rows(grad_args<T> a)
{
    constexpr int KEYS = keys_of(DPAD), PITCH = KEYS + 1;
    typedef mine<DPAD, ROWS> M;
    DYNAMIC_SHARED(memory);
    int D = a.head_dim, head = head_of_block(), d = (int)threadIdx.x % DPAD,
        r0 = (int)threadIdx.x / DPAD;
    seq_piece piece = piece_of_block(a.cu_seqlens, ROWS, false);
    if (piece.first >= piece.len) return;
    int i0 = piece.first, after = i0 + ROWS < piece.len ? i0 + ROWS : piece.len,
        end = a.is_bidirectional ? piece.len : after,
        begin = a.window > 0 && i0 + 1 > a.window ? i0 + 1 - a.window : 0;
    const grad_tiles s = tiles_in<KEYS>(memory, D);
    const sequence<T> seq = sequence_of(a, piece, head);
    float dq[M::NUM] = {};

    load_rows<ROWS, THREADS>(s.q, seq.q, i0, seq.see.len, D);
    load_rows<ROWS, THREADS>(s.d_o, seq.d_o, i0, seq.see.len, D);
    for (int k0 = begin / KEYS * KEYS; k0 < end; k0 += KEYS) {
        load_rows<KEYS, THREADS>(s.k, seq.k, k0, seq.see.len, D);
        load_rows<KEYS, THREADS>(s.v, seq.v, k0, seq.see.len, D);
        __syncthreads();
        weigh<KEYS>(a, seq, s, i0, k0);
        __syncthreads();
        for (int j = 0; d < D && j < KEYS; j++) {
            float x = s.k[j * (D + 1) + d];
#pragma unroll
            for (int i = 0; i < M::NUM; i++)
                dq[i] = fmaf(s.ds[(r0 + i * M::GROUPS) * PITCH + j], x, dq[i]);
        }
        __syncthreads(); /* the next keys overwrite k, v and the weights */
    }
#pragma unroll
    for (int i = 0; i < M::NUM; i++) {
        int row = i0 + r0 + i * M::GROUPS;
        if (row < piece.len && d < D)
            a.dq[((int64_t)(piece.begin + row) * a.num_heads + head) * D + d] =
                from_float<T>(dq[i]);
    }
}

template <class T, int DPAD> static cudaError_t gradient(cr_device *dev, const grad_args<T> &a)
{
    constexpr int KEYS = keys_of(DPAD);
    cudaError_t code = launch_shared(dev, grad_of_keys<T, DPAD>,
                                     grid_of_pieces(a.num_kv_heads, a.num_seqs, a.max_seqlen, KEYS),
                                     THREADS, shared_bytes(a.head_dim), a);

    if (code != cudaSuccess) return code;
    return launch_shared(dev, grad_of_rows<T, DPAD>,
                         grid_of_pieces(a.num_heads, a.num_seqs, a.max_seqlen, ROWS), THREADS,
                         shared_bytes(a.head_dim), a);
}

template <class T> static cudaError_t by_head_dim(cr_device *dev, const grad_args<T> &a)
{
    return CRI_BY_HEAD_DIM(T, a.head_dim, gradient, dev, a);
}
template <> cudaError_t by_head_dim(cr_device *dev, const grad_args<bf16> &a)
{
    if (!is_for_tensor_cores(CR_BF16, a.head_dim))
        return CRI_BY_HEAD_DIM(bf16, a.head_dim, gradient, dev, a);
    return cri_cuda_has_wgmma(dev) ? grad_by_wgmma(dev, a) : grad_on_tensor_cores(dev, a);
}

template <class T>
static cudaError_t all_gradients(cr_device *dev, const cr_attention_grad_args *g, float *sums)
{
    const cr_attention_args *f = &g->fwd;
    const grad_args<T> a = {in<T>(f->q),
                            in<T>(f->k),
                            in<T>(f->v),
                            in<T>(f->o),
                            in<T>(g->d_o),
                            in<float>(f->lse),
                            sums,
                            out<T>(g->dq),
                            out<T>(g->dk),
                            out<T>(g->dv),
                            in<int32_t>(f->cu_seqlens),
                            f->num_seqs,
                            f->sizes.max_seqlen,
                            window_of(f->window),
                            (int)f->num_heads,
                            (int)f->num_kv_heads,
                            (int)f->head_dim,
                            f->scale,
                            f->is_bidirectional,
                            f->sizes.num_rows};
    int64_t num = f->sizes.num_rows * f->num_heads;
    bool is_fast = f->head_dim % PER == 0 && is_wide(f->o) && is_wide(g->d_o);
    auto of_deltas = sum_deltas<T>;
    cudaError_t code = CUDA_LAUNCH(of_deltas, blocks_for(num, THREADS / 32), dim3(THREADS), 0,
                                   cri_cuda_stream(dev), a, num, is_fast);

    return code == cudaSuccess ? by_head_dim<T>(dev, a) : code;
}

cr_status cri_cuda_attention_grad(cr_device *dev, const cr_attention_grad_args *a, cr_err *err)
{
    const cr_attention_args *f = &a->fwd;
    void *mem;

    if (f->sizes.max_seqlen == 0) return CR_OK;
    if (is_for_tensor_cores(f->dtype, f->head_dim) &&
        !(is_wide(f->q) && is_wide(f->k) && is_wide(f->v) && is_wide(a->d_o) && is_wide(a->dq) &&
          is_wide(a->dk) && is_wide(a->dv)))
        return cr_fail(err, CR_EARG,
                       "attention_grad on device cuda: bf16 heads of 64 and 128 begin at multiples "
                       "of 16 bytes");
    CR_TRY(cri_cuda_scratch(dev, (size_t)(2 * f->sizes.num_rows * f->num_heads) * sizeof(float),
                            &mem, err));
    return launched("attention_grad", CRI_BY_DTYPE(f->dtype, all_gradients, dev, a, (float *)mem),
                    err);
}
