/* cuda.h -- what the C and the CUDA files of this folder share (inside kernels/cuda only). It must
 * compile as C11 and as C++17. */
#ifndef CR_CUDA_H
#define CR_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CRI_CUDA_PATTERN 2654435761u /* odd: no two elements of a probe are alike */

/* d_out[i] = i * CRI_CUDA_PATTERN for i < num, queued on stream. Returns the launch's error. */
cudaError_t cri_cuda_fill_pattern(uint32_t *d_out, int num, cudaStream_t stream);

/* Why cudaGetDeviceCount gave `code` or no GPU. */
enum { CRI_CUDA_WHY_BYTES = 160 };
void cri_cuda_why_none(cudaError_t code, char *text, size_t capacity_bytes);

#ifdef __cplusplus
}
#endif

#endif
