/* attention_grad.h -- what the kernels of attention's backward share: arguments, a sequence's rows, and who sees whom. Inside kernels/cuda
 * only.
 */
#ifndef CR_CUDA_ATTENTION_GRAD_H
#define CR_CUDA_ATTENTION_GRAD_H

#include "kernels/cuda/attention/attention.h"

/* Where row and key, counted in their sequence of len, meet. */
struct sight {
    int len, window;
    bool is_bidirectional;

    __device__ __forceinline__ bool is_seen(int row, int key) const
    {
        return row < len && key < len &&
               (is_bidirectional || (key <= row && (window == 0 || key > row - window)));
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
    const float *lse;
    float *delta; /* [T, H]: dO . o */
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
    const float *lse, *delta; /* row stride num_heads */
    int64_t num_heads;
    sight see;
};

template <class T>
static __device__ __forceinline__ sequence<T> sequence_of(const grad_args<T> &a,
                                                          const seq_piece &piece, int head)
{
    int64_t D = a.head_dim, q_stride = a.num_heads * D, kv_stride = a.num_kv_heads * D,
            kv = head / (a.num_heads / a.num_kv_heads), q = piece.begin * q_stride + head * D,
            k = piece.begin * kv_stride + kv * D, row = (int64_t)piece.begin * a.num_heads + head;

    return sequence<T>{{a.q + q, q_stride},  {a.d_o + q, q_stride},
                       {a.k + k, kv_stride}, {a.v + k, kv_stride},
                       a.lse + row,          a.delta + row,
                       a.num_heads,          {piece.len, a.window, a.is_bidirectional}};
}

/* attention_grad_mma.cu, and attention_grad_wgmma.cu on a GPU that has wgmma; after the deltas are there. */
cudaError_t grad_on_tensor_cores(cr_device *dev, const grad_args<bf16> &a);
cudaError_t grad_by_wgmma(cr_device *dev, const grad_args<bf16> &a);

#endif
