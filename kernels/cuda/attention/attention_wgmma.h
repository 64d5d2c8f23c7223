/* attention_wgmma.h -- for the sources of attention by wgmma: tensor maps of rows, and rows as A in registers. Inside kernels/cuda only. */
#ifndef CR_CUDA_ATTENTION_WGMMA_H
#define CR_CUDA_ATTENTION_WGMMA_H

#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/dev/wgmma.h"

enum { ROW_BYTES = 64 * (int)sizeof(bf16) }; /* of a row of a box */

/* `num` rows of `cols` elements, one after the other, in boxes of box_rows. */
static inline cudaError_t map_of_rows(cr_device *dev, CUtensorMap *out, const bf16 *x, int64_t num,
                                      int64_t cols, int box_rows)
{
    return cri_cuda_tensor_map(dev, out, x, num, cols, cols, box_rows);
}

/* Rows first .. first + 15 of num, straight into the fragments of A that they are; zeros after them. */
template <int D>
static __device__ __forceinline__ void take_a(uint32_t (&a)[D / 16][4], const head_rows<bf16> &rows,
                                              int first, int num)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int e = 0; e < 4; e++) {
        int row = first + lane / 4 + 8 * (e % 2);
        const uint32_t *from = (const uint32_t *)(const void *)(rows.x + row * rows.stride);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            a[i][e] = row < num ? from[8 * i + lane % 4 + 4 * (e / 2)] : 0;
    }
}

#endif
