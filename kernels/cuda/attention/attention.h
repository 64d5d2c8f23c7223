/* attention.h -- what forward and backward of attention share: where the rows of a sequence lie, and tiles in shared
 * memory. Inside kernels/cuda only. */
#ifndef CR_CUDA_ATTENTION_H
#define CR_CUDA_ATTENTION_H

#include "kernels/cuda/attention/attention_pieces.h"
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

template <class T> struct packed_args {
    const T *q, *k, *v;
    T *o;
    float *lse;
    const int32_t *cu_seqlens;
    int64_t num_seqs, max_seqlen;
    int window, num_heads, num_kv_heads, head_dim;
    float scale;
    bool is_bidirectional;
    int64_t num_rows; /* of k and v */
};

template <class T> struct cached_args {
    const T *q, *k, *v;
    T *o, *blocks;
    const int32_t *row_slot, *row_pos, *block_table;
    int64_t max_blocks;
    int window, num_heads, num_kv_heads, head_dim;
    float scale;
    int64_t num_blocks, num_tiles;
    const cr_row_tile *tiles; /* of rows that are not alone */
};

/* Positions are below 2^31, and a longer window sees all. */
static inline int window_of(int64_t window)
{
    return window > INT32_MAX ? 0 : (int)window;
}

/* Elements of one kv head in a cache block: K, then V. */
static __device__ __forceinline__ int64_t pair_elems(int D)
{
    return (int64_t)2 * CR_KV_BLOCK * D;
}

/* Where the tiles of a slot's position lie, counted in pairs of them. */
template <class T>
static __device__ __forceinline__ int64_t pair_of(const cached_args<T> &a, int slot, int pos,
                                                  int kv)
{
    int64_t block = a.block_table[slot * a.max_blocks + pos / CR_KV_BLOCK];

    return block * a.num_kv_heads + kv;
}
template <class T>
static __device__ __forceinline__ T *tiles_of(const cached_args<T> &a, int slot, int pos, int kv)
{
    return a.blocks + pair_of(a, slot, pos, kv) * pair_elems(a.head_dim);
}

/* The heads of a kv head's group, `most` a block. */
struct group_part {
    int kv, head, num; /* head: the first */
};
template <class T>
static __device__ __forceinline__ group_part part_of_group(const cached_args<T> &a, int block,
                                                           int max)
{
    int group = a.num_heads / a.num_kv_heads, parts = (group + max - 1) / max, kv = block / parts,
        first = block % parts * max;

    return group_part{kv, kv * group + first, group - first < max ? group - first : max};
}
template <class T> static inline unsigned num_group_parts(const cached_args<T> &a, int max)
{
    int group = a.num_heads / a.num_kv_heads;

    return (unsigned)((group + max - 1) / max * a.num_kv_heads);
}

/* A kernel with `shared` bytes of dynamic shared memory, which may be more than 48 KiB. */
template <class Kernel, class... Args>
static cudaError_t launch_shared(cr_device *dev, Kernel kernel, dim3 grid, int threads, int shared,
                                 const Args &...args)
{
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);

    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(kernel, grid, dim3((unsigned)threads), (size_t)shared, cri_cuda_stream(dev),
                       args...);
}

/* attention_mma.cu: bf16 and these heads, by sizes alone, so that packed and cached rows go the same way. A block has MMA_ROWS
 * rows. */
enum { MMA_ROWS = 64 };
static inline bool is_for_tensor_cores(cr_dtype dtype, int64_t head_dim)
{
    return dtype == CR_BF16 && (head_dim == 64 || head_dim == 128);
}

/* Their keys are summed in stretches of SPLIT positions from the start of the sequence, each from nothing, and then one stretch
 * after the other. So several blocks can share a row's keys and have the bits of one block that takes them all. */
enum { SPLIT = 8 * CR_KV_BLOCK };
/* Of the rows of a generation step: num stretches at most, a block each, whose `warps` first warps leave what they have in sums, and a launch
 * that adds it up. sums NULL: one block takes all keys of a row. */
struct shares {
    float *sums;
    int num, warps;
};
cudaError_t add_shares(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                       int64_t num_rows);

cudaError_t attend_packed_on_tensor_cores(cr_device *dev, const packed_args<bf16> &a);
cudaError_t attend_cached_on_tensor_cores(cr_device *dev, const cached_args<bf16> &a,
                                          const shares &s, int64_t num_rows);
cudaError_t attend_tiles_on_tensor_cores(cr_device *dev, const cached_args<bf16> &a,
                                         bool has_stretches);
/* attention_wgmma.cu: the same on a GPU that has wgmma; a block of packed rows has WGMMA_ROWS. */
enum { WGMMA_ROWS = 128 };
cudaError_t attend_packed_by_wgmma(cr_device *dev, const packed_args<bf16> &a);
cudaError_t attend_cached_by_wgmma(cr_device *dev, const cached_args<bf16> &a, const shares &s,
                                   int64_t num_rows);
cudaError_t attend_tiles_by_wgmma(cr_device *dev, const cached_args<bf16> &a, bool has_stretches);

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
