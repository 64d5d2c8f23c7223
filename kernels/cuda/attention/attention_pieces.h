/* attention_pieces.h -- which rows of which head are a block's, and which keys those see. Inside kernels/cuda only. */
#ifndef CR_CUDA_ATTENTION_PIECES_H
#define CR_CUDA_ATTENTION_PIECES_H

#include "kernels/cuda/dev/device.h"

/* A piece of some rows of one packed sequence. */
struct seq_piece {
    int begin, len,
        first; /* of the sequence in the batch, its rows; of the piece in it: >= len: no piece */
};

/* One head and piece of `rows` rows of a sequence is a block's. Blocks run in about their order: pieces with most work come first, with those
 * of all heads and sequences, so that the short ones fill up the end. Up to 65,535 sequences and pieces. */
static inline dim3 grid_of_pieces(int64_t num_heads, int64_t num_seqs, int64_t max_seqlen, int rows)
{
    return dim3((unsigned)num_heads, (unsigned)num_seqs,
                (unsigned)((max_seqlen + rows - 1) / rows));
}
static __device__ __forceinline__ int head_of_block(void)
{
    return (int)blockIdx.x;
}
/* is_upwards: keys, of which the first are seen by most rows; otherwise rows, of which the last see most keys. */
static __device__ __forceinline__ seq_piece piece_of_block(const int32_t *cu_seqlens, int rows,
                                                           bool is_upwards)
{
    unsigned i = is_upwards ? blockIdx.z : gridDim.z - 1 - blockIdx.z;
    int begin = cu_seqlens[blockIdx.y];

    return seq_piece{begin, cu_seqlens[blockIdx.y + 1] - begin, (int)i * rows};
}

/* Rows of a block, which share their keys. */
struct block_rows {
    int num;                        /* how many */
    int num_keys, step;             /* row i sees keys below num_keys + i step */
    int window;                     /* and not below that - window; 0: from the first */
    int begin = 0, end = INT32_MAX; /* keys that the block takes, of those */
};

/* Of a piece of at most `most` rows. */
static __device__ __forceinline__ block_rows rows_of_piece(const seq_piece &piece, int max,
                                                           int window, bool is_bidirectional)
{
    int left = piece.len - piece.first;

    return block_rows{left < max ? left : max, is_bidirectional ? piece.len : piece.first + 1,
                      is_bidirectional ? 0 : 1, window};
}

/* The first key that any of the rows sees, and the end of what they see, of those that the block takes. */
static __device__ __forceinline__ int first_key(const block_rows &rows)
{
    int first = rows.window > 0 && rows.num_keys > rows.window ? rows.num_keys - rows.window : 0;

    return first > rows.begin ? first : rows.begin;
}
static __device__ __forceinline__ int last_key(const block_rows &rows)
{
    int end = rows.num_keys + (rows.num - 1) * rows.step;

    return end < rows.end ? end : rows.end;
}

#endif
