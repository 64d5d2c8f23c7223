/* lanes.h -- the threads of the running block, shared by block.cpp (which runs them) and warp.cpp (what they do
 * together). */
#ifndef CR_SIM_LANES_H
#define CR_SIM_LANES_H

#include "tests/cuda_sim/gpu/impl.h"

enum cri_sim_state {
    CRI_SIM_NEW,
    CRI_SIM_READY,
    CRI_SIM_AT_BLOCK,
    CRI_SIM_AT_WARP,
    CRI_SIM_AT_MBARRIER,
    CRI_SIM_DONE
};
enum cri_sim_warp_kind {
    CRI_SIM_W_SYNC,
    CRI_SIM_W_SHUFFLE,
    CRI_SIM_W_BALLOT,
    CRI_SIM_W_MMA,
    CRI_SIM_W_LDMATRIX,
    CRI_SIM_W_ELECT,
    CRI_SIM_W_WGMMA,
    CRI_SIM_W_WGMMA_COMMIT,
    CRI_SIM_W_WGMMA_WAIT
};

struct cri_sim_copy { /* a cp.async */
    void *dst;
    const void *src, *pc;
    bool is_valid, is_done;
    int group;
};
struct
    cri_sim_operands { /* of the warp operation that a lane waits in; an mbarrier's: row and arg */
    uint64_t value, result;
    uint64_t
        b_tile; /* wgmma: value is that of A or a its registers, arg its n, or the groups that may be under way */
    bool adds;
    cri_sim_shuffle_kind shuffle;
    int arg, width;
    float *c;
    const uint32_t *a, *b;
    uint32_t *r;
    const void *row, *pc; /* of an ldmatrix, a wgmma */
    bool is_transposed;   /* of an ldmatrix; B of a wgmma */
};
struct cri_sim_lane {
    void *sp;
    unsigned char *stack;
    cri_sim_uint3 tid;
    uint32_t index, warp_phase;
    cri_sim_state state;
    int line; /* of the barrier it waits at */
    cri_sim_warp_kind kind;
    uint32_t mask;
    cri_sim_operands op;
    int group; /* of cp.async */
    std::vector<cri_sim_copy> copies;
};

/* c[8] += a[16] B[16, 8], each an FMA chain by ascending k; rows of B are ld floats apart. */
static inline void cri_sim_fma_row(const float *a, const float *b, int ld, float *c)
{
    float sum[8];

    memcpy(sum, c, sizeof sum);
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++)
            sum[j] = __builtin_fmaf(a[k], b[k * ld + j], sum[j]);
    memcpy(c, sum, sizeof sum);
}

/* Leaves the running lane until the scheduler goes on with it. */
void cri_sim_suspend(cri_sim_state state);
/* Lets the warp operations happen for which all lanes of their masks have come; false: no such operation. n: lanes of
 * the warp. */
bool cri_sim_complete_warp(cri_sim_lane *w, int n);

#endif
