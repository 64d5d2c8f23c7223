/* attention_grad.h -- what the kernels of attention's backward share: arguments, a sequence's rows, and who sees whom. Inside kernels/cuda
 * only.
 */
#ifndef CR_CUDA_ATTENTION_GRAD_H
#define CR_CUDA_ATTENTION_GRAD_H

#include "kernels/cuda/attention/attention.h"

/* Some of the rows or keys of a tile, counted from its first. */
struct pass_range {
    int first;
    unsigned num;

    __device__ __forceinline__ bool has(int i) const
    {
        return (unsigned)(i - first) < num;
    }
};
static __device__ __forceinline__ pass_range range_of(int first, int end)
{
    return pass_range{first, end > first ? (unsigned)(end - first) : 0};
}

/* Where row and key, counted in their sequence of len, meet. */
struct sight {
    int len, window;
    bool is_bidirectional;

    __device__ __forceinline__ bool is_seen(int row, int key) const
    {
        return row < len && key < len &&
               (is_bidirectional || (key <= row && (window == 0 || key > row - window)));
    }
    /* The rows that see the key, of a tile from row `first` on, and the keys that the row sees, of one from key `first` on: as is_seen. */
    __device__ __forceinline__ pass_range rows_of(int key, int first) const
    {
        int begin = is_bidirectional ? 0 : key,
            end = is_bidirectional || window == 0 || window > len - key ? len : key + window;
        return range_of(begin - first, key < len ? end - first : begin - first);
    }
    __device__ __forceinline__ pass_range keys_of(int row, int first) const
    {
        int begin = is_bidirectional || window == 0 || window > row ? 0 : row - window + 1,
            end = is_bidirectional ? len : row + 1;
        return range_of(begin - first, row < len ? end - first : begin - first);
    }
    /* num_keys keys from key on by all of num_rows rows from row on. Rows after the last count as seeing. */
    __device__ __forceinline__ bool is_all_seen(int row, int num_rows, int key, int num_keys) const
    {
        return key + num_keys <= len &&
               (is_bidirectional ||
                (key + num_keys - 1 <= row && (window == 0 || key > row + num_rows - 1 - window)));
    }
};

template <class T> struct grad_args {
    const T *q, *k, *v, *o, *d_o;
    const float *lse; /* [T, H] */
    float *sums;      /* [2, H, T]: lse, and delta, dO . o */
    T *dq, *dk, *dv;
    const int32_t *cu_seqlens;
    int64_t num_seqs, max_seqlen;
    int window, num_heads, num_kv_heads, head_dim;
    float scale;
    bool is_bidirectional;
    int64_t num_rows;
};

/* One sequence and head. */
template <class T> struct sequence {
    head_rows<T> q, d_o, k, v;
    const float *lse, *delta;
    sight see;
};

template <class T>
static __device__ __forceinline__ sequence<T> sequence_of(const grad_args<T> &a,
                                                          const seq_piece &piece, int head)
{
    int64_t D = a.head_dim, q_stride = a.num_heads * D, kv_stride = a.num_kv_heads * D,
            kv = head / (a.num_heads / a.num_kv_heads), q = piece.begin * q_stride + head * D,
            k = piece.begin * kv_stride + kv * D;
    const float *lse = a.sums + head * a.num_rows + piece.begin;

    return sequence<T>{{a.q + q, q_stride},
                       {a.d_o + q, q_stride},
                       {a.k + k, kv_stride},
                       {a.v + k, kv_stride},
                       lse,
                       lse + a.num_heads * a.num_rows,
                       {piece.len, a.window, a.is_bidirectional}};
}

/* attention_grad_mma.cu, and attention_grad_wgmma.cu on a GPU that has wgmma; after the sums are there. */
cudaError_t grad_on_tensor_cores(cr_device *dev, const grad_args<bf16> &a);
cudaError_t grad_by_wgmma(cr_device *dev, const grad_args<bf16> &a);

#endif
