/* hopper.h -- kernels by mbarriers, TMA and wgmma: right ones, and one with an error at a time (hopper.cu). */
#ifndef CR_TEST_HOPPER_H
#define CR_TEST_HOPPER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hopper_kind {
    HOPPER_RIGHT,
    NO_FULL_WAIT,
    NO_EMPTY_WAIT,
    FULL_PARITY,
    EMPTY_PARITY,
    EXPECT_MORE,
    EXPECT_LESS,
    EXPECT_HALF,
    EXPECT_TWICE,
    ARRIVAL_SHORT,
    ARRIVAL_MORE,
    EARLY_RELEASE,
    NO_WGMMA_WAIT,
    WAIT_TOO_FEW,
    NO_COMMIT,
    NO_WGMMA_FENCE,
    TOUCH_WITHOUT_FENCE,
    NO_INIT_FENCE,
    NO_INIT_BARRIER,
    TILE_MISALIGNED,
    WARPS_DIFFER,
    LANES_DIFFER,
    NO_SWIZZLE,
    STORE_UNDER_WAY,
    STORE_AFTER_READ,
    COPY_NOT_WAITED,
    NO_INIT,
    NUM_HOPPER_KINDS
} hopper_kind;

typedef enum hopper_form {
    BY_COPIES, /* a and b come to shared memory by TMA */
    BY_STORES, /* by ordinary stores */
    A_HERE,    /* a in registers */
    B_TURNED   /* and b [64, n] */
} hopper_form;
typedef enum hopper_error {
    NO_ERROR,
    NO_STORE_FENCE,
    EARLY_SUMS,
    A_UNDER_WAY, /* written too early, */
    A_UNFENCED,  /* and without a fence after it */
    TURNED_MISALIGNED,
    TURNED_NOWHERE /* where the next columns are is not said */
} hopper_error;    /* of hopper_product */

enum { HOPPER_ROWS = 64, HOPPER_K = 256, HOPPER_BOX = 64 };

/* A matrix of bf16 for boxes of box_rows rows of 64. */
CUtensorMap hopper_map(const uint16_t *x, int rows, int cols, int ld, int box_rows);

/* out [64, 64]: the box of 64 rows from column x and row y on, as it is in shared memory. */
cudaError_t hopper_box(const uint16_t *matrix, int rows, int cols, int ld, int x, int y,
                       uint16_t *out, cudaStream_t s);
/* out [128, n / 2]: the sums of each thread of a [64, 64] b [n, 64]^T, n 8 or a multiple of 64; then once more, added. */
cudaError_t hopper_product(const uint16_t *a, const uint16_t *b, int n, hopper_form form,
                           hopper_error error, float *out, cudaStream_t s);
/* out [64, 64] = a [64, 256] b [64, 256]^T by a warp that loads two stages and a warpgroup that multiplies. */
cudaError_t hopper_pipeline(const uint16_t *a, const uint16_t *b, hopper_kind kind, float *out,
                            cudaStream_t s);
typedef enum registers_kind {
    REGISTERS_RIGHT,
    NONE_GIVEN, /* no warpgroup gives back what others take */
    MORE_IS_FEWER,
    FEWER_IS_MORE,
    SOME_WARPS, /* of a warpgroup */
    NUM_REGISTERS_KINDS
} registers_kind;
/* Three warpgroups: the last gives registers to the others. */
cudaError_t hopper_registers(registers_kind kind, cudaStream_t s);
/* out [32]: which lanes were elected. */
cudaError_t hopper_elect(int *out, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
