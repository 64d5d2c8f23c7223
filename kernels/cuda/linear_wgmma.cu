/* linear_wgmma.cu -- products of activations and weights, bf16, C = A B^T, by wgmma and TMA: for GPUs of compute capability 9.0 alone
 * (compiled for sm_90a; linear.cu chooses).
 *
 * Mapping: a block makes a 256 x 192 tile of C: two warpgroups of 128 rows each by wgmma.m64n192k16, two a step of k, and a third one, of which one
 * thread loads and whose registers the others have: 64 of k at a time, four stages, A and B by a tensor map each (zeros outside of the matrices). A stage
 * has two mbarriers: full, when its bytes have come; empty, when the eight warps have read it. An element's sum is one chain over ascending k, 16 at a
 * time, as in linear.cu: in the simulation both have the same bits (tests/cuda_sim/products.c), on hardware the sums of
 * wgmma and mma.sync may be rounded differently: a GPU uses one of them for all rows, but for few rows by few.cu, which library.c probes.
 *
 * FLOPs 2 k an element of C; bytes: 56 KiB a stage, 110 FLOPs a byte of L2, 256 a byte of a weight for few rows. Shared memory 225 KiB, one
 * block an SM; registers: 192 of sums a thread, at most 240. Limit on H100 and H200: 990 TFLOP/s need 9 TB/s of L2, which
 * gives about 64 % of that: clusters, which would load a tile once for two blocks, are not used. Few rows: the bytes of
 * the weight, a tile of 256 rows costs the tensor cores no more than its weights cost memory.
 */
#include "kernels/cuda/dev/wgmma.h"
#include "kernels/cuda/ending.h"

enum {
    GROUPS = 2, /* that multiply; the one after them loads */
    PARTS = 2,  /* of 64 rows, of a warpgroup */
    GROUP_THREADS = 128,
    GROUP_ROWS = 64 * PARTS,
    TM = GROUP_ROWS * GROUPS,
    TN = 192,
    TK = 64,
    STAGES = 4,
    WARPS = 4 * GROUPS,
    WGMMA_THREADS = (GROUPS + 1) * GROUP_THREADS,
    ROW_BYTES = TK * 2,
    A_BYTES = TM * ROW_BYTES,
    STAGE_BYTES = A_BYTES + TN * ROW_BYTES,
    WGMMA_SHARED = STAGES * STAGE_BYTES + TILE_ATOM,
    MULTIPLY_REGISTERS = 240,
    LOAD_REGISTERS = 24
};
static_assert(GROUPS * MULTIPLY_REGISTERS + LOAD_REGISTERS <= (GROUPS + 1) * 168,
              "what the launch bounds leave a thread");

struct stages {
    unsigned char *memory;
    barrier *full, *empty;
};

static __device__ __forceinline__ void load_stages(const stages &s, const CUtensorMap *a,
                                                   const CUtensorMap *b, int row0, int col0,
                                                   int steps)
{
    for (int i = 0; i < steps; i++) {
        int at = i % STAGES;
        unsigned char *tile = s.memory + at * STAGE_BYTES;
        barrier_wait(s.empty + at, ~(i / STAGES) & 1); /* the first round at once */
        barrier_expect(s.full + at, STAGE_BYTES);
        load_box(tile, a, i * TK, row0, s.full + at);
        load_box(tile + A_BYTES, b, i * TK, col0, s.full + at);
    }
}

/* acc: of the warpgroup's rows. */
static __device__ __forceinline__ void multiply(float (&acc)[PARTS][TN / 8][4], const stages &s,
                                                int group, int steps)
{
    bool is_first = threadIdx.x % 32 == 0;

    for (int i = 0; i < steps; i++) {
        int at = i % STAGES;
        const unsigned char *tile = s.memory + at * STAGE_BYTES,
                            *rows = tile + group * (GROUP_ROWS * ROW_BYTES);
        uint64_t a = tile_descriptor(rows), next = tile_descriptor(rows + 64 * ROW_BYTES),
                 b = tile_descriptor(tile + A_BYTES);
        barrier_wait(s.full + at, i / STAGES & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TK / 16; k++) {
            wgmma(acc[0], a + 2 * k, b + 2 * k, i > 0 || k > 0);
            wgmma(acc[1], next + 2 * k, b + 2 * k, i > 0 || k > 0);
        }
        wgmma_commit();
        wgmma_wait<1>(acc[0], acc[1]); /* the stage before has been read */
        if (is_first && i > 0) barrier_arrive(s.empty + (i - 1) % STAGES);
    }
    wgmma_wait<0>(acc[0], acc[1]);
}

template <class End>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1)
    wgmma_product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                  int steps, const __grid_constant__ End end)
{
    DYNAMIC_SHARED(memory);
    SHARED(barrier, full, STAGES);
    SHARED(barrier, empty, STAGES);
    const stages s = {first_tile(memory), full, empty};
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int row0 = (int)blockIdx.x * TM, col0 = (int)blockIdx.y * TN;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, WARPS);
        }
        fence_async();
    }
    __syncthreads();
    if (warp >= WARPS) {
        set_registers<LOAD_REGISTERS, false>();
        if (warp == WARPS && is_elected()) load_stages(s, &a, &b, row0, col0, steps);
        return;
    }
    set_registers<MULTIPLY_REGISTERS, true>();
    float acc[PARTS][TN / 8][4];
    multiply(acc, s, warp / 4, steps);
    row0 += warp / 4 * GROUP_ROWS + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int e = 0; e < 4 * PARTS; e += 2) {
        const auto row = end.row(row0 + e / 4 * 64 + 8 * (e % 4 / 2));
#pragma unroll
        for (int j = 0; j < TN / 8; j++)
            row.put_two(col0 + 8 * j + lane % 4 * 2, acc[e / 4][j][e % 4],
                        acc[e / 4][j][e % 4 + 1]);
    }
}

template <class End>
static cudaError_t launch_wgmma(cr_device *dev, const cri_product *p, const End &end)
{
    auto kernel = wgmma_product<End>;
    CUtensorMap a, b;
    cudaError_t code = p->m > INT32_MAX - TM || p->n > INT32_MAX - TN || p->k > INT32_MAX - TK
                           ? cudaErrorInvalidValue /* places are ints */
                           : cudaFuncSetAttribute(
                                 kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WGMMA_SHARED);

    if (code == cudaSuccess) code = cri_cuda_tensor_map(dev, &a, p->a, p->m, p->k, p->lda, TM);
    if (code == cudaSuccess) code = cri_cuda_tensor_map(dev, &b, p->b, p->n, p->k, p->ldb, TN);
    if (code != cudaSuccess) return code;
    return CUDA_LAUNCH(kernel,
                       dim3((unsigned)((p->m + TM - 1) / TM), (unsigned)((p->n + TN - 1) / TN)),
                       dim3(WGMMA_THREADS), WGMMA_SHARED, cri_cuda_stream(dev), a, b,
                       (int)((p->k + TK - 1) / TK), end);
}

cudaError_t cri_cuda_product_wgmma(cr_device *dev, const cri_product *p)
{
    return p->dz                   ? launch_wgmma(dev, p, dz_ending_of<bf16>(p))
           : p->c_dtype == CR_BF16 ? launch_wgmma(dev, p, ending_of<bf16, bf16>(p))
                                   : launch_wgmma(dev, p, ending_of<float, bf16>(p));
}
