/* entries.h -- the operations of the cuda device, cri_cuda_linear and so on for each of ops.h, and what device.c gives
 * them. Inside kernels/cuda only; C11 and C++17.
 */
#ifndef CR_CUDA_ENTRIES_H
#define CR_CUDA_ENTRIES_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/kernels_impl.h"

/* The CUDA stream of a handle. */
cudaStream_t cri_cuda_stream(const cr_device *dev);
/* At least num_bytes for the operation that is queued next on the stream of dev, aligned to 256 bytes; the operation
 * before may still use the same memory. */
cr_status cri_cuda_scratch(cr_device *dev, size_t num_bytes, void **mem, cr_err *err);

/* The same memory, as the operation before has left it. */
void *cri_cuda_scratch_now(const cr_device *dev);

/* At least num_bytes of pinned memory of the device, for one copy each way: the caller waits for it before it asks again. */
enum { CRI_TO_DEVICE, CRI_TO_HOST, CRI_NUM_PINNED };
cr_status cri_cuda_pinned(cr_device *dev, int which, size_t num_bytes, void **mem, cr_err *err);

/* wgmma is there on compute capability 9 alone, and tensor maps are used where it is. */
bool cri_cuda_has_wgmma(const cr_device *dev);
/* Of a bf16 matrix of `rows` rows of `cols` elements, `ld` from one to the next, for boxes of box_rows rows of 64, laid out in
 * shared memory as dev/hopper.h says. cudaErrorInvalidValue: its address or ld are no multiples of 16 bytes. */
cudaError_t cri_cuda_tensor_map(const cr_device *dev, CUtensorMap *out, const void *x, int64_t rows,
                                int64_t cols, int64_t ld, int box_rows);

/* The products by cuBLASLt (library.h), NULL without. */
struct cri_library *cri_cuda_library(const cr_device *dev);

#define CRI_CUDA_DECLARE(name, args) \
    cr_status cri_cuda_##name(cr_device *dev, const args *a, cr_err *err);
CR_OPS(CRI_CUDA_DECLARE, CRI_CUDA_DECLARE)
#undef CRI_CUDA_DECLARE
size_t cri_cuda_packed_bytes(const cr_device *dev, const cr_weight *w);
size_t cri_cuda_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                               int64_t head_dim);

#ifdef __cplusplus
}
#endif

#endif
