/* hopper.cu -- see hopper.h. */
#include "tests/cuda_sim/hopper.h"

#include "kernels/cuda/dev/wgmma.h"

enum { TILE = 64 * 64, TILE_BYTES = TILE * 2, STAGES = 2, STEPS = HOPPER_K / 64, CONSUMERS = 4 };

CUtensorMap hopper_map(const uint16_t *x, int rows, int cols, int ld, int box_rows)
{
    const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows},
                     strides[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    CUtensorMap map = {};

    if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t *>(x),
                               dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        cri_sim_die("no tensor map");
    return map;
}

/* ---- one box, one product ---- */

static __global__ void box(const __grid_constant__ CUtensorMap map, int x, int y, uint16_t *out)
{
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, 1);
    unsigned char *at = first_tile(memory);
    const uint16_t *tile = (const uint16_t *)(const void *)at;

    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        fence_async();
        barrier_expect(full, TILE_BYTES);
        load_box(at, &map, x, y, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    for (int i = (int)threadIdx.x; i < TILE; i += (int)blockDim.x)
        out[i] = tile[i];
}

/* Rows of 64 into a swizzled tile, by stores. */
static __device__ void store_tile(unsigned char *tile, const uint16_t *x, int rows)
{
    for (int i = (int)threadIdx.x; i < rows * 64; i += (int)blockDim.x) {
        int r = i / 64, chunk = i % 64 / 8 ^ r % 8;
        ((uint16_t *)(void *)tile)[r * 64 + chunk * 8 + i % 8] = x[i];
    }
}

/* The warp's 16 rows of a, as fragments. */
static __device__ void take_a(uint32_t (&f)[4][4], const uint16_t *a)
{
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;

    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            const uint16_t *two =
                a + (row + 8 * (i % 2)) * 64 + 16 * k + 2 * (lane % 4) + i / 2 * 8;
            f[k][i] = two[0] | (uint32_t)two[1] << 16;
        }
}

static __device__ uint64_t b_of(const unsigned char *tile, int k, hopper_form form,
                                hopper_error error)
{
    if (form != B_TURNED) return tile_descriptor(tile) + 2 * (uint64_t)k;
    return tile_descriptor(tile, error == TURNED_NOWHERE ? 16 : TILE_BYTES) + 128 * (uint64_t)k +
           (error == TURNED_MISALIGNED ? 8 : 0);
}

static __global__ void product(const __grid_constant__ CUtensorMap map_a,
                               const __grid_constant__ CUtensorMap map_b, const uint16_t *a,
                               const uint16_t *b, int n, hopper_form form, hopper_error error,
                               float *out)
{
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, 1);
    unsigned char *a_tile = first_tile(memory), *b_tile = a_tile + TILE_BYTES;
    float d[32][4], early[32][4];
    uint32_t f[4][4];

    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        fence_async();
        if (form != BY_STORES) {
            barrier_expect(full, (uint32_t)(TILE_BYTES + n * 128));
            load_box(a_tile, &map_a, 0, 0, full);
            for (int i = 0; i < (form == B_TURNED ? n : 1); i += 64)
                load_box(b_tile + i * 128, &map_b, i, 0, full);
        }
    }
    if (form == BY_STORES) {
        store_tile(a_tile, a, 64);
        store_tile(b_tile, b, n);
        if (error != NO_STORE_FENCE) fence_async();
    }
    __syncthreads();
    if (form != BY_STORES) barrier_wait(full, 0);
    if (form >= A_HERE) take_a(f, a);
    wgmma_fence();
    for (int turn = 0; turn < 2; turn++) {
        for (int k = 0; k < 4; k++)
            if (form < A_HERE)
                cri_sim_wgmma(&d[0][0], n, tile_descriptor(a_tile) + 2 * (uint64_t)k,
                              b_of(b_tile, k, form, error), turn > 0 || k > 0);
            else
                cri_sim_wgmma_a(&d[0][0], n, f[k], b_of(b_tile, k, form, error), form == B_TURNED,
                                turn > 0 || k > 0);
        if (error == A_UNFENCED) {
            wgmma_commit();
            wgmma_wait<0>(d);
        }
        if (error == A_UNFENCED || error == A_UNDER_WAY) f[2][1] ^= threadIdx.x;
    }
    wgmma_commit();
    if (error == EARLY_SUMS)
        for (int i = 0; i < n / 2; i++)
            early[i / 4][i % 4] = d[i / 4][i % 4];
    wgmma_wait<0>(d);
    for (int i = 0; i < n / 2; i++)
        out[(int)threadIdx.x * (n / 2) + i] = (error == EARLY_SUMS ? early : d)[i / 4][i % 4];
}

static __global__ void elect(int *out)
{
    out[threadIdx.x] = is_elected();
}

/* ---- a pipeline ---- */

struct pipe {
    unsigned char *memory;
    barrier *full, *empty;
    hopper_kind kind;
};

static __device__ void load_stages(const pipe &p, const CUtensorMap *a, const CUtensorMap *b)
{
    hopper_kind kind = p.kind;
    int bytes = 2 * TILE_BYTES;

    if (kind == EXPECT_MORE) bytes += 16;
    if (kind == EXPECT_LESS) bytes -= 16;
    if (kind == EXPECT_HALF) bytes = TILE_BYTES;
    for (int i = 0; i < STEPS; i++) {
        int at = i % STAGES, round = i / STAGES;
        unsigned char *tile = p.memory + at * 2 * TILE_BYTES + (kind == TILE_MISALIGNED ? 128 : 0);
        if (kind != NO_EMPTY_WAIT)
            barrier_wait(p.empty + at, (uint32_t)((round + (kind != EMPTY_PARITY)) & 1));
        barrier_expect(p.full + at, (uint32_t)bytes);
        if (kind == EXPECT_TWICE) barrier_expect(p.full + at, 0);
        load_box(tile, a, 64 * i, 0, p.full + at);
        load_box(tile + TILE_BYTES, b, 64 * i, 0, p.full + at);
    }
    if (kind == COPY_NOT_WAITED) { /* no thread waits for it */
        barrier_wait(p.empty, 1);
        barrier_expect(p.full, TILE_BYTES);
        load_box(p.memory, a, 0, 0, p.full);
    }
}

static __device__ void release(const pipe &p, int at)
{
    int num = p.kind == ARRIVAL_MORE ? 2 : 1;

    if (p.kind == ARRIVAL_SHORT && threadIdx.x == 96) return;
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < num; i++)
            barrier_arrive(p.empty + at);
}

/* The errors that one turn of the loop may have before and after its products. */
static __device__ void touch(hopper_kind kind, float (&d)[8][4], unsigned char *tile, int i)
{
    if (kind == TOUCH_WITHOUT_FENCE && i > 0) d[0][0] += 1.0f;
    if (kind == STORE_UNDER_WAY && i == 1 && threadIdx.x == 0) tile[5] = 0;
}

static __device__ void multiply(const pipe &p, float (&d)[8][4])
{
    hopper_kind kind = p.kind;
    int warp = (int)threadIdx.x / 32;

    for (int i = 0; i < STEPS; i++) {
        int at = i % STAGES, round = i / STAGES;
        unsigned char *tile = p.memory + at * 2 * TILE_BYTES;
        uint64_t a = tile_descriptor(tile), b = tile_descriptor(tile + TILE_BYTES);
        if (kind == WARPS_DIFFER && warp == 2) b += 2;
        if (kind == LANES_DIFFER && threadIdx.x == 7) a += 2;
        if (kind == NO_SWIZZLE) a &= ~((uint64_t)3 << 62);
        if (kind != NO_FULL_WAIT)
            barrier_wait(p.full + at, (uint32_t)((round + (kind == FULL_PARITY)) & 1));
        if (kind != NO_WGMMA_FENCE && (kind != TOUCH_WITHOUT_FENCE || i == 0)) wgmma_fence();
        for (uint64_t k = 0; k < 4; k++)
            cri_sim_wgmma(&d[0][0], 64, a + 2 * k, b + 2 * k, i > 0 || k > 0);
        if (kind == EARLY_RELEASE) release(p, at);
        if (kind == STORE_UNDER_WAY) touch(kind, d, tile, i);
        if (kind != NO_COMMIT) wgmma_commit();
        if (kind == WAIT_TOO_FEW)
            wgmma_wait<1>(d);
        else
            wgmma_wait<0>(d);
        touch(kind, d, tile, i);
        if (kind == STORE_AFTER_READ && i == 1 && threadIdx.x == 96) tile[TILE_BYTES] = 0;
        if (kind != EARLY_RELEASE) release(p, at);
    }
}

static __global__ void pipeline(const __grid_constant__ CUtensorMap a,
                                const __grid_constant__ CUtensorMap b, hopper_kind kind, float *out)
{
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, STAGES);
    SHARED(barrier, empty, STAGES);
    const pipe p = {first_tile(memory), full, empty, kind};
    float d[8][4];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    if (threadIdx.x == 0 && kind != NO_INIT) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, CONSUMERS);
        }
        if (kind != NO_INIT_FENCE) fence_async();
    }
    if (kind != NO_INIT_BARRIER) __syncthreads();
    if (warp == CONSUMERS) {
        if (is_elected()) load_stages(p, &a, &b);
        return;
    }
    if (kind == NO_WGMMA_WAIT) { /* the first stage alone, and its sums at once */
        barrier_wait(full, 0);
        wgmma_fence();
        cri_sim_wgmma(&d[0][0], 64, tile_descriptor(p.memory),
                      tile_descriptor(p.memory + TILE_BYTES), false);
        wgmma_commit();
    } else {
        multiply(p, d);
    }
    for (int i = 0; i < 32; i++)
        out[(16 * warp + lane / 4 + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + 2 * (lane % 4) + i % 2] =
            d[i / 4][i % 4];
}

/* ---- launches ---- */

static cudaError_t allow(const void *kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 * 1024);
}

cudaError_t hopper_box(const uint16_t *matrix, int rows, int cols, int ld, int x, int y,
                       uint16_t *out, cudaStream_t s)
{
    return CUDA_LAUNCH(box, dim3(1), dim3(64), TILE_BYTES + TILE_ATOM, s,
                       hopper_map(matrix, rows, cols, ld, HOPPER_BOX), x, y, out);
}

cudaError_t hopper_product(const uint16_t *a, const uint16_t *b, int n, hopper_form form,
                           hopper_error error, float *out, cudaStream_t s)
{
    const CUtensorMap map_a = hopper_map(a, 64, 64, 64, 64),
                      map_b = form == B_TURNED ? hopper_map(b, 64, n, n, 64)
                                               : hopper_map(b, n, 64, 64, n);

    return CUDA_LAUNCH(product, dim3(1), dim3(128), (size_t)(TILE_BYTES + n * 128 + TILE_ATOM), s,
                       map_a, map_b, a, b, n, form, error, out);
}

cudaError_t hopper_pipeline(const uint16_t *a, const uint16_t *b, hopper_kind kind, float *out,
                            cudaStream_t s)
{
    cudaError_t code = allow((const void *)pipeline);

    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(pipeline, dim3(1), dim3(32 * (CONSUMERS + 1)),
                       STAGES * 2 * TILE_BYTES + TILE_ATOM, s,
                       hopper_map(a, HOPPER_ROWS, HOPPER_K, HOPPER_K, 64),
                       hopper_map(b, HOPPER_ROWS, HOPPER_K, HOPPER_K, 64), kind, out);
}

/* 168 a thread by the launch. */
static __global__ void share_registers(registers_kind kind)
{
    if (threadIdx.x < 256 && kind == MORE_IS_FEWER)
        set_registers<160, true>();
    else if (threadIdx.x < 256)
        set_registers<232, true>();
    else if (kind == FEWER_IS_MORE)
        set_registers<176, false>();
    else if (kind != NONE_GIVEN && (kind != SOME_WARPS || threadIdx.x < 320))
        set_registers<40, false>();
}

cudaError_t hopper_registers(registers_kind kind, cudaStream_t s)
{
    return CUDA_LAUNCH(share_registers, dim3(1), dim3(384), 0, s, kind);
}

cudaError_t hopper_elect(int *out, cudaStream_t s)
{
    return CUDA_LAUNCH(elect, dim3(1), dim3(32), 0, s, out);
}
