/* async.h -- what goes on beside the threads of a block: mbarriers, bulk copies by a tensor map and wgmma, and the order that they
 * make (async.cpp, wgmma.cpp); what they and ordinary accesses may do to the same shared memory (check_async.cpp).
 *
 * Order in a block: each warp has a clock, which goes up when it arrives at an mbarrier, and each mbarrier has one, which counts its
 * phases; a warp that has waited for a phase has acquired the clocks of all that arrived there. __syncthreads joins all.
 */
#ifndef CR_SIM_ASYNC_H
#define CR_SIM_ASYNC_H

#include "tests/cuda_sim/gpu/lanes.h"

enum {
    CRI_SIM_MAX_WARPS = CRI_SIM_MAX_THREADS / CRI_SIM_WARP,
    CRI_SIM_MAX_MBARRIERS = 32,
    CRI_SIM_CHUNK = 16 /* bytes of shared memory that are looked at together */
};

/* ---- async.cpp ---- */

void cri_sim_async_new_block(void);
void cri_sim_async_end_block(void); /* nothing may be under way */
void cri_sim_async_sync_block(void);
/* After all lanes have run until they wait: lets copies arrive and wakes lanes that wait at an mbarrier. False: none waits there. */
bool cri_sim_async_go_on(cri_sim_lane *lanes, int num);
/* Has the running thread acquired what the warp (or the mbarrier: CRI_SIM_MAX_WARPS + its number) did at this time of its clock? */
bool cri_sim_is_acquired(int of, uint32_t time);
uint32_t cri_sim_clock_of(int warp);
uint32_t cri_sim_fences_of(unsigned thread); /* fence_async it has made in this block */
void cri_sim_need_sm_90(const char *what);

/* ---- check_async.cpp; only where kernels are instrumented ---- */

void cri_sim_chunks_new_block(void);
/* An ordinary write by the running thread. */
void cri_sim_chunks_write(const void *p, size_t num_bytes);
/* A product of the running thread's warp begins to read a chunk, has read it. */
void cri_sim_chunk_begin_read(const void *p);
void cri_sim_chunk_end_read(const void *p);
/* A copy of the running thread begins to write; `phase` of the mbarrier will say that it is there. */
void cri_sim_chunks_begin_copy(const void *p, size_t num_bytes, int mbarrier, uint32_t phase);

/* check.cpp: the cells of shared memory under a bulk copy, and a read by wgmma. */
void cri_sim_check_copy_begins(const void *p, size_t num_bytes, int mbarrier, uint32_t phase);
void cri_sim_check_copy_arrived(const void *p, size_t num_bytes);
void cri_sim_check_wgmma_read(const void *p, size_t num_bytes);

/* ---- wgmma.cpp ---- */

void cri_sim_wgmma_new_block(void);
void cri_sim_wgmma_end_block(void);
void cri_sim_do_wgmma(cri_sim_lane *w);
void cri_sim_do_wgmma_commit(cri_sim_lane *w);
void cri_sim_do_wgmma_wait(cri_sim_lane *w);
/* warp.cpp: what a lane has of A, 16 rows of 16 of k, of mma and of wgmma. */
void cri_sim_take_a(float (*a)[16], int lane, const uint32_t *fragment);
/* The running thread accesses memory of its own, in which the sums of a product may be, or its A. */
void cri_sim_wgmma_touch(const void *p, size_t num_bytes, bool is_write);

#endif
