/* gpu.c -- see gpu.h. cuBLASLt is not in it: croll's products are its own kernels, which need no workspace. */
#include "plan/gpu.h"

enum { MIB = 1 << 20, PAGE = 2 * MIB, GRAPH_MIB = 24 };

/* NCCL's defaults (init.cc: LL 0.5, LL128 4.69, Simple 4 MiB): of a channel for each rank that it receives from. Rings have
 * one such rank; send and receive, which reductions use, have every GPU of the host, by Simple alone. */
enum {
    CHANNELS = 16,
    RING_KIB = 512 + 4800 + 4096,
    NEAR_GPUS = 7,
    PEER_CHANNELS = 4,
    PEER_MIB = 4,
    ROOMS_MIB = 64 /* mesh/gpu/comm_nccl.c: two chunks of an all-reduce over replicas */
};

/* head.cu: of HEAD_ROWS rows a tile of logits, their gradients, and dx in float32. */
enum { HEAD_ROWS = 4096, HEAD_WORDS = 1024 };

static int64_t num_communicators(const cr_plan_role *r)
{
    bool has[CR_NUM_AXES] = {false};
    int64_t num = r->mesh.num_ranks > 1 && (r->is_train || r->synced.num); /* weights to engines */

    for (size_t i = 0; i < r->passes.num_calls; i++)
        has[r->passes.call[i].axis] = true;
    for (int axis = 0; axis < CR_NUM_AXES; axis++)
        num += has[axis];
    return num;
}

void cr_gpu_needs(const cr_plan_role *r, cr_gpu_need out[CR_GPU_NEEDS])
{
    const int64_t communicator =
        (int64_t)CHANNELS * RING_KIB * 1024 + (int64_t)NEAR_GPUS * PEER_CHANNELS * PEER_MIB * MIB;

    out[0] = (cr_gpu_need){"CUDA context",
                           "others measured 300 to 555 MiB: pytorch issue 107667, llama.cpp pull "
                           "request 23604; it grows with the GPU",
                           (int64_t)512 * MIB, false};
    out[1] = (cr_gpu_need){"buffers of NCCL",
                           "defaults of NCCL 2: 16 channels of 9.2 MiB and 7 GPUs x 4 channels of "
                           "4 MiB a communicator; NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS change it",
                           communicator * num_communicators(r) +
                               (r->is_train && (r->mesh.num_ddp > 1 || r->mesh.num_eddp > 1)
                                    ? (int64_t)ROOMS_MIB * MIB
                                    : 0),
                           false};
    out[2] = (cr_gpu_need){"scratch of kernels", "the vocabulary head: kernels/cuda/head/head.cu",
                           r->hidden_size ? HEAD_ROWS * (HEAD_WORDS * 6 + r->hidden_size * 4) : 0,
                           false};
    out[3] = (cr_gpu_need){"recorded steps",
                           "at most 32 of an engine, none with enforce_eager or experts; others "
                           "measured 24 MiB a CUDA graph of a larger model: vllm issue 50780",
                           r->num_graphs * GRAPH_MIB * MIB, true};
}

static int64_t sum_of(const cr_plan_role *role, bool is_idle)
{
    cr_gpu_need need[CR_GPU_NEEDS];
    int64_t sum = 0;

    cr_gpu_needs(role, need);
    for (int i = 0; i < CR_GPU_NEEDS; i++)
        if (!is_idle || !need[i].is_dropped) sum += need[i].bytes;
    return sum;
}

int64_t cr_gpu_need_bytes(const cr_plan_role *role)
{
    return sum_of(role, false);
}

int64_t cr_gpu_idle_bytes(const cr_plan_role *role)
{
    return sum_of(role, true);
}

int64_t cr_gpu_peak(const cr_plan_role *role)
{
    return cr_plan_peak(role) + (int64_t)(sizeof(cr_plan_bytes) / sizeof(int64_t)) * PAGE +
           cr_gpu_need_bytes(role);
}
