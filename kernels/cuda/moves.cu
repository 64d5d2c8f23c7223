/* moves.cu -- rows that are moved, added and scaled by an index: embedding and its gradient, bags of table rows, gathers,
 * scatters.
 *
 * Mapping: a block of 128 threads takes one row; moves copy it in pieces of 16, 4 or 2 bytes, as addresses and row lengths
 * allow. Bytes: each row is read and written once (rows_add: read twice): bound by memory.
 *
 * Gradient of an embedding: rows of dw that several tokens share are summed in the order of the tokens, without atomics.
 * A first kernel finds for each token the next one with the same id, and whether there is one before: T^2 / 2
 * comparisons of ids in shared memory (8192 tokens: 64 blocks, about 20 us; 65536: about 0.3 ms). A second one has a block for each
 * piece of 128 columns of each token that is the first of its id, and walks along the chain. A very frequent id makes a long chain: 0.5 us a
 * token at most. Scratch: 8 bytes a token. Shared memory 512 bytes, below 40 registers.
 */
#include "kernels/cuda/op.h"

enum { WIDTH = 128 };

/* ---- moves ---- */

/* Row i of dst is row index[i] of src, or the other way round. */
template <class Unit>
static __global__ void __launch_bounds__(WIDTH)
    move_rows(Unit *dst, const Unit *src, const int32_t *index, int64_t row_units, bool is_scatter)
{
    int64_t i = blockIdx.x, far = index[i];
    Unit *to = dst + (is_scatter ? far : i) * row_units;
    const Unit *from = src + (is_scatter ? i : far) * row_units;

    for (int64_t u = threadIdx.x; u < row_units; u += WIDTH)
        to[u] = from[u];
}

template <class Unit>
static cudaError_t move_units(cr_device *dev, cr_mem *dst, const cr_mem *src, const cr_mem *index,
                              int64_t num_rows, size_t row_bytes, bool is_scatter)
{
    auto kernel = move_rows<Unit>;

    return CUDA_LAUNCH(kernel, blocks_for(num_rows, 1, INT32_MAX), dim3(WIDTH), 0,
                       cri_cuda_stream(dev), out<Unit>(dst), in<Unit>(src), in<int32_t>(index),
                       (int64_t)(row_bytes / sizeof(Unit)), is_scatter);
}

static cr_status move(const char *op, cr_device *dev, cr_mem *dst, const cr_mem *src,
                      const cr_mem *index, int64_t num_rows, size_t row_bytes, bool is_scatter,
                      cr_err *err)
{
    uintptr_t all = (uintptr_t)dst | (uintptr_t)src | row_bytes;
    cudaError_t code =
        all % 16 == 0 ? move_units<uint4>(dev, dst, src, index, num_rows, row_bytes, is_scatter)
        : all % 4 == 0
            ? move_units<uint32_t>(dev, dst, src, index, num_rows, row_bytes, is_scatter)
            : move_units<uint16_t>(dev, dst, src, index, num_rows, row_bytes, is_scatter);

    return launched(op, code, err);
}

cr_status cri_cuda_embedding(cr_device *dev, const cr_embedding_args *a, cr_err *err)
{
    return move("embedding", dev, a->y, a->w->data, a->ids, a->num_tokens,
                (size_t)a->w->num_cols * cr_dtype_bytes(a->w->dtype), false, err);
}

cr_status cri_cuda_rows_gather(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    return move("rows_gather", dev, a->dst, a->src, a->index, a->num_rows,
                (size_t)a->num_cols * cr_dtype_bytes(a->dtype), false, err);
}

cr_status cri_cuda_rows_scatter(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    return move("rows_scatter", dev, a->dst, a->src, a->index, a->num_rows,
                (size_t)a->num_cols * cr_dtype_bytes(a->dtype), true, err);
}

/* ---- rows_add ---- */

template <class T>
static __global__ void __launch_bounds__(WIDTH)
    add_rows(T *dst, const T *src, const int32_t *index, int64_t num_cols, bool is_fast)
{
    T *to = dst + index[blockIdx.x] * num_cols;
    const T *from = src + (int64_t)blockIdx.x * num_cols;

    for (int64_t c = threadIdx.x * PER; c < num_cols; c += WIDTH * PER) {
        float x[PER], y[PER];
        load8(x, to, c, num_cols, is_fast);
        load8(y, from, c, num_cols, is_fast);
#pragma unroll
        for (int e = 0; e < PER; e++)
            x[e] += y[e];
        store8(to, c, num_cols, is_fast, x);
    }
}

template <class T> static cudaError_t rows_add(cr_device *dev, const cr_rows_move_args *a)
{
    auto kernel = add_rows<T>;

    return CUDA_LAUNCH(kernel, blocks_for(a->num_rows, 1, INT32_MAX), dim3(WIDTH), 0,
                       cri_cuda_stream(dev), out<T>(a->dst), in<T>(a->src), in<int32_t>(a->index),
                       a->num_cols, a->num_cols % PER == 0 && is_wide(a->dst) && is_wide(a->src));
}

cr_status cri_cuda_rows_add(cr_device *dev, const cr_rows_move_args *a, cr_err *err)
{
    return launched("rows_add", CRI_BY_DTYPE(a->dtype, rows_add, dev, a), err);
}

/* ---- gradients of tables ---- */

/* next[i]: the next place with the id of place i, or num; is_first[i]: no place before has it. */
static __global__ void __launch_bounds__(WIDTH)
    chain_ids(const int32_t *ids, int64_t num, int32_t *next, int32_t *is_first)
{
    SHARED(int32_t, tile, WIDTH);
    int64_t i = (int64_t)blockIdx.x * WIDTH + threadIdx.x, after = num;
    int32_t id = i < num ? ids[i] : -1, first = 1;

    for (int64_t j0 = 0; j0 < num; j0 += WIDTH) {
        int64_t some = num - j0 < WIDTH ? num - j0 : (int64_t)WIDTH;
        if (threadIdx.x < some) tile[threadIdx.x] = ids[j0 + threadIdx.x];
        __syncthreads();
        for (int64_t j = 0; j < some; j++) {
            if (tile[j] != id) continue;
            if (j0 + j < i) first = 0;
            if (j0 + j > i && after == num) after = j0 + j;
        }
        __syncthreads(); /* the next ids overwrite these */
    }
    if (i >= num) return;
    next[i] = (int32_t)after;
    is_first[i] = first;
}

/* dw[ids[i]] += factor[i] dy[i / per_row] along the chain of place i. factor NULL: ones. */
template <class T>
static __global__ void __launch_bounds__(WIDTH)
    add_chains(const T *dy, const int32_t *ids, const float *factor, const int32_t *next,
               const int32_t *is_first, int64_t num, int64_t per_row, int64_t num_cols, float *dw)
{
    int64_t i = blockIdx.x, c = (int64_t)blockIdx.y * WIDTH + threadIdx.x;

    if (!is_first[i] || c >= num_cols) return;
    float *to = dw + ids[i] * num_cols + c, sum = *to;
    for (; i < num; i = next[i]) {
        float g = to_float(dy[i / per_row * num_cols + c]);
        sum += factor ? factor[i] * g : g;
    }
    *to = sum;
}

template <class T>
static cr_status table_grad(const char *op, cr_device *dev, const cr_mem *dy, const cr_mem *ids,
                            const cr_mem *factor, int64_t num, int64_t per_row, int64_t num_cols,
                            cr_mem *dw, cr_err *err)
{
    int64_t num_pieces = (num_cols + WIDTH - 1) / WIDTH;
    auto kernel = add_chains<T>;
    cudaStream_t stream = cri_cuda_stream(dev);
    cudaError_t code;
    void *mem;

    CR_TRY(cri_cuda_scratch(dev, (size_t)num * 2 * sizeof(int32_t), &mem, err));
    int32_t *next = (int32_t *)mem, *is_first = next + num;
    code = CUDA_LAUNCH(chain_ids, blocks_for(num, WIDTH, INT32_MAX), dim3(WIDTH), 0, stream,
                       in<int32_t>(ids), num, next, is_first);
    if (code == cudaSuccess)
        code =
            CUDA_LAUNCH(kernel, dim3((unsigned)num, (unsigned)num_pieces), dim3(WIDTH), 0, stream,
                        in<T>(dy), in<int32_t>(ids), in<float>(factor), (const int32_t *)next,
                        (const int32_t *)is_first, num, per_row, num_cols, out<float>(dw));
    return launched(op, code, err);
}

cr_status cri_cuda_embedding_grad(cr_device *dev, const cr_embedding_grad_args *a, cr_err *err)
{
    return CRI_BY_DTYPE(a->dtype, table_grad, "embedding_grad", dev, a->dy, a->ids, NULL,
                        a->num_tokens, (int64_t)1, a->num_cols, a->dw, err);
}

cr_status cri_cuda_embedding_bag_grad(cr_device *dev, const cr_embedding_bag_grad_args *a,
                                      cr_err *err)
{
    return CRI_BY_DTYPE(a->dtype, table_grad, "embedding_bag_grad", dev, a->dy, a->index, a->weight,
                        a->num_rows * a->per_row, a->per_row, a->num_cols, a->dw, err);
}
