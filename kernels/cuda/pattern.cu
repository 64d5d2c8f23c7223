/* pattern.cu -- the smallest kernel there is: it shows that code of this build runs on a GPU.
 *
 * Mapping: one thread an element, blocks of 128; no shared memory; one pass over the output. What it
 * catches: a build without code for the GPU's compute capability, a driver older than the toolkit,
 * a GPU that another process holds alone. It says nothing about speed.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dev/device.h"

static __global__ void fill_pattern(uint32_t *d_out, int num)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < num) d_out[i] = (uint32_t)i * CRI_CUDA_PATTERN;
}

cudaError_t cri_cuda_fill_pattern(uint32_t *d_out, int num, cudaStream_t stream)
{
    return CUDA_LAUNCH(fill_pattern, dim3((unsigned)(num + 127) / 128), dim3(128), 0, stream, d_out,
                       num);
}
