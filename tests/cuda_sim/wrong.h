/* wrong.h -- kernels with one error each, their right twins, and small right ones (wrong.cu). */
#ifndef CR_TEST_WRONG_H
#define CR_TEST_WRONG_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wrong_kind {
    WRONG_NO_BARRIER,
    RIGHT_BARRIER,
    WRONG_NO_SYNCWARP,
    RIGHT_SYNCWARP,
    WRONG_PAST_END,
    WRONG_SHARED_PAST_END,
    WRONG_BLOCKS_RACE,
    RIGHT_ATOMICS,
    WRONG_HALF_BARRIER,
    WRONG_TWO_BARRIERS,
    WRONG_PARTIAL_SHUFFLE,
    WRONG_ENDED_LANE,
    WRONG_DIFFERENT_OPERATIONS,
    WRONG_MISALIGNED,
    WRONG_NO_WAIT,
    RIGHT_WAIT,
    WRONG_UNINITIALISED,
    WRONG_UNINITIALISED_SHARED,
    WRONG_HOST_MEMORY,
    WRONG_TOO_MUCH_SHARED
} wrong_kind;

/* x and y: 64 floats at least. */
cudaError_t wrong_run(wrong_kind kind, float *x, float *y, cudaStream_t s);
cudaError_t wrong_fill(float *out, float value, int num, cudaStream_t s); /* value + i */
cudaError_t wrong_add_one(const float *in, float *out, int num, cudaStream_t s);
/* c [16, 8] += a [16, 16] b [8, 16]^T; a and b bf16, loaded by ldmatrix, from rows that cp.async brought. */
cudaError_t right_mma(const uint16_t *a, const uint16_t *b, float *c, cudaStream_t s);
/* b is [16, 8] now, turned by ldmatrix. */
cudaError_t right_mma_trans(const uint16_t *a, const uint16_t *b, float *c, cudaStream_t s);
/* On the host: reads and writes memory of the host, as a launcher does. */
float right_host_sum(const float *x, int num);
/* out [6, 32]: by index, up, down, xor, ballot, sum of the warp, of each lane's number squared */
cudaError_t right_shuffles(int *out, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
