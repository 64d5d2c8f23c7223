/* attention.h -- what forward and backward of attention share: where the rows of a sequence lie, and tiles in shared
 * memory. Inside kernels/cuda only.
 */
#ifndef CR_CUDA_ATTENTION_H
#define CR_CUDA_ATTENTION_H

#include "kernels/cuda/op.h"

/* Rows of one head of [T, heads, D] from x on. */
template <class T> struct head_rows {
    const T *x;
    int64_t stride;
};

/* Rows first .. first + ROWS - 1 as floats, row stride D + 1; zeros from `end` on. NUM threads. */
template <int ROWS, int NUM, class T>
static __device__ __forceinline__ void load_rows(float *tile, const head_rows<T> &from, int first,
                                                 int end, int D)
{
    for (int at = (int)threadIdx.x; at < ROWS * D; at += NUM) {
        int row = at / D, d = at % D;
        tile[row * (D + 1) + d] =
            first + row < end ? to_float(from.x[(first + row) * from.stride + d]) : 0.0f;
    }
}

/* A piece of `rows` rows of one packed sequence, by block. */
struct seq_piece {
    int begin, len,
        first; /* of the sequence in the batch, its rows; of the piece in it: >= len: no piece */
};

static __device__ __forceinline__ seq_piece piece_of_block(const int32_t *cu_seqlens,
                                                           int64_t pieces_a_seq, int rows)
{
    int64_t s = blockIdx.x / pieces_a_seq;
    int begin = cu_seqlens[s];

    return seq_piece{begin, cu_seqlens[s + 1] - begin, (int)(blockIdx.x % pieces_a_seq) * rows};
}

/* call<T, DPAD>(..): DPAD is head_dim rounded up to 16, 64, 128 or 256. */
#define CRI_BY_HEAD_DIM(T, head_dim, call, ...)      \
    ((head_dim) <= 16    ? call<T, 16>(__VA_ARGS__)  \
     : (head_dim) <= 64  ? call<T, 64>(__VA_ARGS__)  \
     : (head_dim) <= 128 ? call<T, 128>(__VA_ARGS__) \
                         : call<T, 256>(__VA_ARGS__))
#define CRI_BY_DTYPE_AND_DIM(dtype, head_dim, call, ...)                      \
    ((dtype) == CR_BF16  ? CRI_BY_HEAD_DIM(bf16, head_dim, call, __VA_ARGS__) \
     : (dtype) == CR_F16 ? CRI_BY_HEAD_DIM(f16, head_dim, call, __VA_ARGS__)  \
                         : CRI_BY_HEAD_DIM(float, head_dim, call, __VA_ARGS__))

#endif
