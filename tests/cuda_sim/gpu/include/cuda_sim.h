/* cuda_sim.h -- CUDA device code as C++ on a CPU: what a kernel may use when it is compiled by g++.
 *
 * A thread of a block is a fiber. It runs until it meets a barrier or a warp operation, or ends; a
 * kernel without those is a plain loop of calls. Warps of a block, and lanes of a warp, run in an order
 * that the seed chooses anew after every barrier. Blocks run one after another, in an order by seed.
 *
 * Every misuse ends the process with one sentence on stderr and exit code 86 (cri_sim_die).
 * Kernels include dev/device.h, never this file.
 */
#ifndef CR_CUDA_SIM_H
#define CR_CUDA_SIM_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__

/* ---- places ---- */

enum { CRI_SIM_WARP = 32, CRI_SIM_MAX_THREADS = 1024 };
struct cri_sim_uint3 {
    unsigned x, y, z;
};
struct cri_sim_lane; /* a thread of the running block */
struct cri_sim_self_t {
    cri_sim_uint3 tid;
    cri_sim_lane *lane;
};
extern cri_sim_self_t
    cri_sim_self; /* set at each switch; a plain global, so nothing of it is cached over a switch */
extern cri_sim_uint3 cri_sim_block_idx;
extern dim3 cri_sim_block_dim, cri_sim_grid_dim;
#define threadIdx (cri_sim_self.tid)
#define blockIdx  cri_sim_block_idx
#define blockDim  cri_sim_block_dim
#define gridDim   cri_sim_grid_dim

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}

/* ---- launches ---- */

cudaError_t cri_sim_launch_body(const char *name, dim3 grid, dim3 block, size_t shared,
                                cudaStream_t stream,
                                void (*invoke)(const void *kernel, const void *args),
                                const void *kernel, const void *args, size_t num_bytes);
/* Arguments are converted to the kernel's parameter types and copied now, as the real launch does. */
template <class... P, class... A>
void cri_sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                    cudaStream_t stream, A... a)
{
    typedef std::tuple<P...> params;
    params args(static_cast<P>(a)...);
    auto invoke = [](const void *k, const void *p) {
        std::apply((void (*)(P...))k, *(const params *)p);
    };

    static_assert(sizeof args <= 4096, "parameters of a kernel");
    cri_sim_launch_body(name, grid, block, shared, stream, invoke, (const void *)kernel, &args,
                        sizeof args);
}

/* ---- shared memory ---- */

struct cri_sim_site { /* one SHARED of one kernel */
    uint64_t block;
    void *data;
};
void *cri_sim_shared(cri_sim_site *site, size_t num_bytes, size_t align);
void *cri_sim_shared_dynamic(void);

/* ---- barriers and warps ---- */

enum cri_sim_shuffle_kind {
    CRI_SIM_SHUFFLE_INDEX,
    CRI_SIM_SHUFFLE_UP,
    CRI_SIM_SHUFFLE_DOWN,
    CRI_SIM_SHUFFLE_XOR
};
void cri_sim_sync_block(int line);
void cri_sim_sync_warp(uint32_t mask);
uint64_t cri_sim_shuffle(uint32_t mask, uint64_t value, cri_sim_shuffle_kind kind, int arg,
                         int width);
uint32_t cri_sim_ballot(uint32_t mask, int predicate);
[[noreturn]] void cri_sim_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define __syncthreads() cri_sim_sync_block(__LINE__)
static inline void __syncwarp(uint32_t mask = 0xffffffffu)
{
    cri_sim_sync_warp(mask);
}
template <class T>
static inline T cri_sim_shuffle_as(uint32_t mask, T v, cri_sim_shuffle_kind kind, int arg,
                                   int width)
{
    uint64_t bits = 0;

    static_assert(sizeof v <= 8, "shuffle of 4 or 8 bytes");
    memcpy(&bits, &v, sizeof v);
    bits = cri_sim_shuffle(mask, bits, kind, arg, width);
    memcpy(&v, &bits, sizeof v);
    return v;
}
#define CRI_SIM_SHUFFLE(name, kind)                                                      \
    template <class T> static inline T name(uint32_t mask, T v, int arg, int width = 32) \
    {                                                                                    \
        return cri_sim_shuffle_as(mask, v, kind, arg, width);                            \
    }
CRI_SIM_SHUFFLE(__shfl_sync, CRI_SIM_SHUFFLE_INDEX)
CRI_SIM_SHUFFLE(__shfl_up_sync, CRI_SIM_SHUFFLE_UP)
CRI_SIM_SHUFFLE(__shfl_down_sync, CRI_SIM_SHUFFLE_DOWN)
CRI_SIM_SHUFFLE(__shfl_xor_sync, CRI_SIM_SHUFFLE_XOR)
#undef CRI_SIM_SHUFFLE
static inline uint32_t __ballot_sync(uint32_t mask, int p)
{
    return cri_sim_ballot(mask, p);
}
static inline int __any_sync(uint32_t mask, int p)
{
    return cri_sim_ballot(mask, p) != 0;
}
static inline int __all_sync(uint32_t mask, int p)
{
    return cri_sim_ballot(mask, !p) == 0;
}

/* ---- memory ---- */

float atomicAdd(float *p, float v); /* atomics do not race with each other */
int atomicAdd(int *p, int v);
unsigned atomicAdd(unsigned *p, unsigned v);
unsigned long long atomicAdd(unsigned long long *p, unsigned long long v);
int atomicOr(int *p, int v);
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

/* ---- tensor cores and asynchronous copies (models of the PTX instructions; see dev/mma.h) ---- */

void cri_sim_mma_16816_bf16(float *c, const uint32_t *a, const uint32_t *b);
void cri_sim_ldmatrix_x4(uint32_t *r, const void *row, bool is_transposed);
void cri_sim_cp_async16(void *shared, const void *global, bool is_valid);
void cri_sim_cp_async_commit(void);
void cri_sim_cp_async_wait(int num_pending);

/* ---- mbarriers, bulk copies, wgmma (see dev/hopper.h, wgmma.h) ---- */
void cri_sim_mbarrier_init(void *barrier, uint32_t num_arrivals);
void cri_sim_mbarrier_arrive(void *barrier, uint32_t num_bytes);
void cri_sim_mbarrier_wait(void *barrier, uint32_t parity);
void cri_sim_fence_async(void);
void cri_sim_load_box(void *tile, const CUtensorMap *map, int x, int y, void *barrier);
bool cri_sim_elect(void);
void cri_sim_set_registers(uint32_t num, bool is_more);
uint32_t cri_sim_shared_address(const void *p);
void cri_sim_wgmma(float *d, int n, uint64_t a, uint64_t b, bool adds);
void cri_sim_wgmma_a(float *d, int n, const uint32_t *a, uint64_t b, bool is_b_turned, bool adds);
void cri_sim_wgmma_fence(void);
void cri_sim_wgmma_commit(void);
void cri_sim_wgmma_wait(int num_pending);
#include "tests/cuda_sim/gpu/math.h"

#endif
