/* wrong.cu -- see wrong.h. */
#include "kernels/cuda/dev/mma.h"
#include "tests/cuda_sim/wrong.h"

static __global__ void fill(float *out, float value, int num)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < num) out[i] = value + (float)i;
}

static __global__ void add_one(const float *in, float *out, int num)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < num) out[i] = in[i] + 1.0f;
}

/* ---- barriers ---- */

static __global__ void reverse(float *x, bool has_barrier)
{
    SHARED(float, s, 64);

    s[threadIdx.x] = x[threadIdx.x];
    if (has_barrier) __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];
}

static __global__ void warp_reverse(float *x, bool has_barrier) /* one warp: __syncwarp is enough */
{
    SHARED(float, s, 32);

    s[threadIdx.x] = x[threadIdx.x];
    if (has_barrier) __syncwarp();
    x[threadIdx.x] = s[31 - threadIdx.x];
}

static __global__ void half_barrier(float *x)
{
    if (threadIdx.x < 16) __syncthreads();
    x[threadIdx.x] = 1.0f;
}

static __global__ void two_barriers(float *x)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1.0f;
}

/* ---- warps ---- */

static __global__ void partial_shuffle(float *x)
{
    if (threadIdx.x < 20) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (float)threadIdx.x, 1);
}

static __global__ void ended_lane(float *x) /* lane 0 reads a lane outside of the mask */
{
    if (threadIdx.x < 8) x[threadIdx.x] = __shfl_sync(0xffu, (float)threadIdx.x, 8);
}

static __global__ void different_operations(float *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
    else
        __syncwarp();
}

/* ---- memory ---- */

static __global__ void past_end(float *x, int num)
{
    x[(int)threadIdx.x + num - 31] = 0.0f;
}

static __global__ void shared_past_end(float *x)
{
    SHARED(float, s, 32);

    s[threadIdx.x + threadIdx.x / 31] = 1.0f;
    x[threadIdx.x] = s[threadIdx.x];
}

static __global__ void blocks_race(float *x)
{
    x[threadIdx.x] = (float)blockIdx.x;
}

static __global__ void atomics(float *x)
{
    atomicAdd(x, 1.0f);
}

static __global__ void misaligned(float *x)
{
    float4 v = *(float4 *)(x + 1);

    x[0] = v.x + v.y + v.z + v.w;
}

static __global__ void copy_without_wait(const float *in, float *out, bool has_wait)
{
    SHARED(float, s, 128);

    cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
    cp_async_commit();
    if (has_wait) cp_async_wait<0>();
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = s[4 * threadIdx.x + i];
}

static __global__ void uninitialised_shared(float *x)
{
    SHARED(float, s, 32);

    if (threadIdx.x > 0 || blockIdx.x == 0)
        s[threadIdx.x] = 1.0f; /* block 1 has memory of its own */
    x[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
}

/* ---- tensor cores ---- */

static __global__ void mma(const uint16_t *a, const uint16_t *b, float *c, bool is_turned)
{
    SHARED(uint16_t, rows, 16 * 16);
    SHARED(uint16_t, cols, 16 * 16);
    uint32_t fa[4], fb[4], both[2];
    float fc[4];
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    int b_row = is_turned ? lane % 16 : lane % 8, b_col = is_turned ? 0 : lane / 8 % 2 * 8;

    cp_async16(rows + lane * 8, a + lane * 8, true);
    cp_async16(cols + lane * 8, b + lane * 8 % 128, lane < 16); /* the other half is zeros */
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    ldmatrix_x4(fa, rows + lane % 16 * 16 + lane / 16 * 8);
    if (is_turned)
        ldmatrix_x4_trans(fb, cols + b_row * 8);
    else
        ldmatrix_x4(fb, cols + b_row * 16 + b_col);
    both[0] = fb[0];
    both[1] = fb[1];
    for (int i = 0; i < 4; i++)
        fc[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] + (float)cols[128 + 4 * lane + i]; /* + 0 */
    mma_16816(fc, fa, both);
    for (int i = 0; i < 4; i++)
        c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}

static __global__ void shuffles(int *out)
{
    int lane = (int)threadIdx.x, v = lane * lane;

    out[lane] = __shfl_sync(0xffffffffu, v, 5, 8);
    out[32 + lane] = __shfl_up_sync(0xffffffffu, v, 3);
    out[64 + lane] = __shfl_down_sync(0xffffffffu, v, 2, 16);
    out[96 + lane] = __shfl_xor_sync(0xffffffffu, v, 9);
    out[128 + lane] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    out[160 + lane] = (int)warp_sum((float)v);
}

/* ---- launches ---- */

cudaError_t wrong_fill(float *out, float value, int num, cudaStream_t s)
{
    return CUDA_LAUNCH(fill, dim3((unsigned)(num + 63) / 64), dim3(64), 0, s, out, value, num);
}

cudaError_t wrong_add_one(const float *in, float *out, int num, cudaStream_t s)
{
    return CUDA_LAUNCH(add_one, dim3((unsigned)(num + 63) / 64), dim3(64), 0, s, in, out, num);
}

cudaError_t right_mma(const uint16_t *a, const uint16_t *b, float *c, cudaStream_t s)
{
    return CUDA_LAUNCH(mma, dim3(1), dim3(32), 0, s, a, b, c, false);
}

cudaError_t right_mma_trans(const uint16_t *a, const uint16_t *b, float *c, cudaStream_t s)
{
    return CUDA_LAUNCH(mma, dim3(1), dim3(32), 0, s, a, b, c, true);
}

cudaError_t right_shuffles(int *out, cudaStream_t s)
{
    return CUDA_LAUNCH(shuffles, dim3(1), dim3(32), 0, s, out);
}

float right_host_sum(const float *x, int num)
{
    float sum = 0;

    for (int i = 0; i < num; i++)
        sum += x[i];
    return sum;
}

static cudaError_t run_barriers(wrong_kind kind, float *x, cudaStream_t s)
{
    switch (kind) {
    case WRONG_NO_BARRIER:
    case RIGHT_BARRIER:
        return CUDA_LAUNCH(reverse, dim3(1), dim3(64), 0, s, x, kind == RIGHT_BARRIER);
    case WRONG_NO_SYNCWARP:
    case RIGHT_SYNCWARP:
        return CUDA_LAUNCH(warp_reverse, dim3(1), dim3(32), 0, s, x, kind == RIGHT_SYNCWARP);
    case WRONG_HALF_BARRIER:
        return CUDA_LAUNCH(half_barrier, dim3(1), dim3(32), 0, s, x);
    case WRONG_TWO_BARRIERS:
        return CUDA_LAUNCH(two_barriers, dim3(1), dim3(32), 0, s, x);
    case WRONG_PARTIAL_SHUFFLE:
        return CUDA_LAUNCH(partial_shuffle, dim3(1), dim3(32), 0, s, x);
    case WRONG_ENDED_LANE:
        return CUDA_LAUNCH(ended_lane, dim3(1), dim3(32), 0, s, x);
    case WRONG_DIFFERENT_OPERATIONS:
        return CUDA_LAUNCH(different_operations, dim3(1), dim3(32), 0, s, x);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t wrong_run(wrong_kind kind, float *x, float *y, cudaStream_t s)
{
    switch (kind) {
    case WRONG_PAST_END:
        return CUDA_LAUNCH(past_end, dim3(1), dim3(32), 0, s, x, 64);
    case WRONG_SHARED_PAST_END:
        return CUDA_LAUNCH(shared_past_end, dim3(1), dim3(32), 0, s, x);
    case WRONG_BLOCKS_RACE:
        return CUDA_LAUNCH(blocks_race, dim3(4), dim3(32), 0, s, x);
    case RIGHT_ATOMICS:
        return CUDA_LAUNCH(atomics, dim3(4), dim3(32), 0, s, x);
    case WRONG_MISALIGNED:
        return CUDA_LAUNCH(misaligned, dim3(1), dim3(1), 0, s, x);
    case WRONG_NO_WAIT:
    case RIGHT_WAIT:
        return CUDA_LAUNCH(copy_without_wait, dim3(1), dim3(32), 0, s, x, y, kind == RIGHT_WAIT);
    case WRONG_UNINITIALISED:
        return CUDA_LAUNCH(add_one, dim3(1), dim3(64), 0, s, y, x, 64);
    case WRONG_UNINITIALISED_SHARED:
        return CUDA_LAUNCH(uninitialised_shared, dim3(2), dim3(32), 0, s, x);
    case WRONG_HOST_MEMORY:
        return CUDA_LAUNCH(add_one, dim3(1), dim3(64), 0, s, x, new float[64], 64);
    case WRONG_TOO_MUCH_SHARED:
        return CUDA_LAUNCH(atomics, dim3(1), dim3(32), 64 * 1024, s, x);
    default:
        return run_barriers(kind, x, s);
    }
}
