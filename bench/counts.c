/* counts.c -- what one step asks of a GPU, counted without one: `bench_counts decode|train|sync|staged|phase MODEL [N]`, in a build
 * for the simulated device (preset cuda-sim). MODEL has a config.json. Weights are random, bf16.
 *
 *     decode   a step of generation of N streams (default 1): one that is recorded, and one that is queued from the graph;
 *              greedy, then with temperature 0.99, top_k 100, top_p 0.99
 *     train    micro-batches of 8192 tokens, one of a step of one and each further one of a step of N (default 1); the update
 *     sync     rank 0's weights to rank 1 on the same GPU, which lends its memory (CROLL_SIM_GPUS=1 scripts/mpi 2 bench_counts sync ..)
 *     staged   the same through the host's memory, as where a container keeps processes from lending
 *     phase    all states of training to the host, and back, the second time
 *
 * No kernel and no copy runs: the linker puts the functions __wrap_.. below before those of the simulation, and they only count. All that
 * comes from the device is zero, so sizes may be those of real models. One JSON line each: launches of kernels and products of cuBLASLt
 * (nodes: those of a graph), copies, bytes and waits of the host (a cudaMemcpy is one), memory that was made, memory of another process that was
 * opened (loans), kernels by name.
 */
#include "engine/engine.h"
#include "mesh/collectives.h"
#include "models/weights.h"
#include "strategies/strategies.h"

#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_KERNELS = 256, TOKENS = 8192 };

/* ---- what is counted ---- */

typedef struct kernel_count {
    const void *kernel;
    int64_t num;
} kernel_count;

typedef struct tally {
    int64_t launches, products, zeros, graphs, nodes, waits, copies[4],
        bytes[4]; /* by cudaMemcpyKind */
    int64_t allocations, allocated, pinnings, pinned, loans;
    kernel_count kernels[MAX_KERNELS];
    size_t num_kernels;
} tally;

typedef struct allocation {
    char *at;
    size_t num_bytes;
} allocation;

static tally now;
static bool is_captured, is_lending;
static allocation *allocations;
static size_t num_allocations, allocations_capacity;

static void count_node(void)
{
    if (is_captured) now.nodes++;
}

static void count_copy(void *dst, size_t n, enum cudaMemcpyKind kind)
{
    now.copies[kind]++;
    now.bytes[kind] += (int64_t)n;
    if (kind == cudaMemcpyDeviceToHost && n <= 1 << 20)
        memset(dst, 0, n); /* larger ones: memory that is zero */
}

static void *map(size_t num_bytes, int access)
{
    void *at =
        mmap(NULL, num_bytes + 1, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

/* ---- in the place of the simulation's ---- */

typedef struct cri_dim3 {
    unsigned x, y, z;
} cri_dim3;
cudaError_t __wrap__Z19cri_sim_launch_bodyPKc4dim3S1_mP11CUstream_stPFvPKvS5_ES5_S5_m(
    const char *name, cri_dim3 grid, cri_dim3 block, size_t shared, cudaStream_t stream,
    void *invoke, const void *kernel, const void *args, size_t num_bytes);
cudaError_t __wrap__Z19cri_sim_launch_bodyPKc4dim3S1_mP11CUstream_stPFvPKvS5_ES5_S5_m(
    const char *name, cri_dim3 grid, cri_dim3 block, size_t shared, cudaStream_t stream,
    void *invoke, const void *kernel, const void *args, size_t num_bytes)
{
    size_t i = 0;

    (void)name, (void)grid, (void)block, (void)shared, (void)stream, (void)invoke, (void)args,
        (void)num_bytes;
    now.launches++;
    count_node();
    while (i < now.num_kernels && now.kernels[i].kernel != kernel)
        i++;
    if (i == MAX_KERNELS) abort();
    if (i == now.num_kernels) now.kernels[now.num_kernels++] = (kernel_count){kernel, 0};
    now.kernels[i].num++;
    return cudaSuccess;
}

#define WRAP(type, name, ...)        \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)
#define REAL(type, name, ...) type __real_##name(__VA_ARGS__)

WRAP(cublasStatus_t, cublasLtMatmul, cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
     const void *A, cublasLtMatrixLayout_t lA, const void *B, cublasLtMatrixLayout_t lB,
     const void *beta, const void *C, cublasLtMatrixLayout_t lC, void *D, cublasLtMatrixLayout_t lD,
     const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    (void)h, (void)d, (void)alpha, (void)A, (void)lA, (void)B, (void)lB, (void)beta, (void)C,
        (void)lC, (void)D, (void)lD, (void)algo;
    (void)workspace, (void)workspace_bytes, (void)stream;
    now.products++;
    count_node();
    return 0;
}

WRAP(void, cri_sim_spoil, void *mem, size_t n, cudaStream_t stream)
{
    (void)mem, (void)n, (void)stream;
}

WRAP(cudaError_t, cudaMemcpy, void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    (void)src;
    now.waits++;
    count_copy(dst, n, kind);
    return cudaSuccess;
}

WRAP(cudaError_t, cudaMemcpyAsync, void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
     cudaStream_t stream)
{
    (void)src, (void)stream;
    count_node();
    count_copy(dst, n, kind);
    return cudaSuccess;
}

WRAP(cudaError_t, cudaMemsetAsync, void *dst, int value, size_t n, cudaStream_t stream)
{
    (void)dst, (void)value, (void)n, (void)stream;
    now.zeros++;
    count_node();
    return cudaSuccess;
}

WRAP(cudaError_t, cudaMalloc, void **out, size_t n)
{
    now.allocations++;
    now.allocated += (int64_t)n;
    *out = map(n, PROT_NONE);
    allocations =
        cr_reserve(allocations, &allocations_capacity, num_allocations + 1, sizeof *allocations);
    allocations[num_allocations++] = (allocation){*out, n};
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

static const allocation *allocation_of(const void *mem)
{
    const allocation *a = allocations;

    while (a < allocations + num_allocations &&
           ((const char *)mem < a->at || (const char *)mem >= a->at + a->num_bytes))
        a++;
    return a < allocations + num_allocations ? a : NULL;
}

WRAP(CUresult, cuMemGetAddressRange, CUdeviceptr *base, size_t *num_bytes, CUdeviceptr mem)
{
    const allocation *a = allocation_of((const void *)(uintptr_t)mem);

    if (!a) return CUDA_ERROR_INVALID_VALUE;
    *base = (CUdeviceptr)(uintptr_t)a->at;
    *num_bytes = a->num_bytes;
    return CUDA_SUCCESS;
}

/* A handle is a size, and what is opened is as much memory of this process: nothing is read. */
WRAP(cudaError_t, cudaIpcGetMemHandle, cudaIpcMemHandle_t *handle, void *mem)
{
    if (!is_lending) return cudaErrorInvalidValue;
    memcpy(handle, &allocation_of(mem)->num_bytes, sizeof(size_t));
    return cudaSuccess;
}

WRAP(cudaError_t, cudaIpcOpenMemHandle, void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    size_t n;

    (void)flags;
    memcpy(&n, &handle, sizeof n);
    now.loans++;
    return (*out = map(n, PROT_NONE)) ? cudaSuccess : cudaErrorMemoryAllocation;
}

WRAP(cudaError_t, cudaIpcCloseMemHandle, void *mem)
{
    (void)mem;
    return cudaSuccess;
}

WRAP(cudaError_t, cudaFree, void *mem)
{
    (void)mem; /* addresses are not used again */
    return cudaSuccess;
}

WRAP(cudaError_t, cudaMallocHost, void **out, size_t n)
{
    now.pinnings++;
    now.pinned += (int64_t)n;
    return (*out = map(n, PROT_READ | PROT_WRITE)) ? cudaSuccess : cudaErrorMemoryAllocation;
}

WRAP(cudaError_t, cudaFreeHost, void *mem)
{
    (void)mem;
    return cudaSuccess;
}

REAL(cudaError_t, cudaStreamSynchronize, cudaStream_t s);
WRAP(cudaError_t, cudaStreamSynchronize, cudaStream_t s)
{
    now.waits++;
    return __real_cudaStreamSynchronize(s);
}

REAL(cudaError_t, cudaEventSynchronize, cudaEvent_t e);
WRAP(cudaError_t, cudaEventSynchronize, cudaEvent_t e)
{
    now.waits++;
    return __real_cudaEventSynchronize(e);
}

REAL(cudaError_t, cudaDeviceSynchronize, void);
WRAP(cudaError_t, cudaDeviceSynchronize, void)
{
    now.waits++;
    return __real_cudaDeviceSynchronize();
}

REAL(cudaError_t, cudaStreamBeginCapture, cudaStream_t s, enum cudaStreamCaptureMode mode);
WRAP(cudaError_t, cudaStreamBeginCapture, cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    is_captured = true;
    return __real_cudaStreamBeginCapture(s, mode);
}

REAL(cudaError_t, cudaStreamEndCapture, cudaStream_t s, cudaGraph_t *out);
WRAP(cudaError_t, cudaStreamEndCapture, cudaStream_t s, cudaGraph_t *out)
{
    is_captured = false;
    return __real_cudaStreamEndCapture(s, out);
}

WRAP(cudaError_t, cudaGraphLaunch, cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    now.graphs++;
    return cudaSuccess;
}

/* ---- lines ---- */

/* The names of all functions of this program; kept. */
typedef struct symbol {
    uint64_t at;
    char name[120];
} symbol;
static symbol *symbols;
static size_t num_symbols;
extern char __executable_start;

static void read_symbols(void)
{
    FILE *f = popen("nm -C -n --defined-only /proc/$PPID/exe", "r");
    char line[4096], name[120];
    size_t capacity = 0;
    unsigned long at;

    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx %*c %119[^(\n]", &at, name) != 2) continue;
        symbols = cr_reserve(symbols, &capacity, num_symbols + 1, sizeof *symbols);
        symbols[num_symbols].at = at;
        strcpy(symbols[num_symbols++].name, strncmp(name, "void ", 5) == 0 ? name + 5 : name);
    }
    if (f) pclose(f);
}

static const char *name_of(const void *kernel)
{
    uint64_t base = (uint64_t)&__executable_start, at = (uint64_t)kernel;

    for (size_t i = 0; i < num_symbols; i++)
        if (symbols[i].at == at || symbols[i].at == at - base) return symbols[i].name;
    return "?";
}

static int64_t of(const tally *before, const void *kernel)
{
    for (size_t i = 0; i < before->num_kernels; i++)
        if (before->kernels[i].kernel == kernel) return before->kernels[i].num;
    return 0;
}

/* What was counted since `before`. */
static void print(const char *what, const cr_model *model, const tally *before)
{
    const char *between = "";

    if (!symbols) read_symbols();
    printf("{\"what\": \"%s\", \"layers\": %lld", what, (long long)model->config.num_layers);
#define FIELD(name) printf(", \"" #name "\": %lld", (long long)(now.name - before->name))
    FIELD(launches), FIELD(products), FIELD(zeros), FIELD(graphs), FIELD(nodes), FIELD(waits),
        FIELD(allocations), FIELD(allocated);
    FIELD(pinnings), FIELD(pinned), FIELD(loans), FIELD(copies[cudaMemcpyHostToDevice]),
        FIELD(bytes[cudaMemcpyHostToDevice]);
    FIELD(copies[cudaMemcpyDeviceToHost]), FIELD(bytes[cudaMemcpyDeviceToHost]),
        FIELD(copies[cudaMemcpyDeviceToDevice]);
    FIELD(bytes[cudaMemcpyDeviceToDevice]);
#undef FIELD
    printf(", \"kernels\": {");
    for (size_t i = 0; i < now.num_kernels; i++) {
        int64_t num = now.kernels[i].num - of(before, now.kernels[i].kernel);
        if (num == 0) continue;
        printf("%s\"%s\": %lld", between, name_of(now.kernels[i].kernel), (long long)num);
        between = ", ";
    }
    printf("}}\n");
    fflush(stdout);
}

/* ---- steps ---- */

static cr_status decode_steps(cr_engine *e, const cr_model *model, int64_t streams,
                              bool is_filtered, cr_err *err)
{
    cr_generating how = {.log_probs = is_filtered ? CR_LOG_PROBS_SAMPLED : CR_LOG_PROBS_RAW,
                         .temperature = is_filtered ? 0.99f : 0,
                         .top_k = is_filtered ? 100 : 0,
                         .top_p = is_filtered ? 0.99f : 1,
                         .repetition_penalty = 1,
                         .max_new_tokens = 12,
                         .seed = 1};
    const char *const whats[] = {"decode, recorded", "decode, replayed",
                                 "decode with filters, recorded", "decode with filters, replayed"};
    cr_generated g;
    tally before, replayed = {0}, after = {0};

    for (int64_t s = 0; s < streams; s++) {
        int32_t prompt[16] = {1, (int32_t)s};
        uint64_t id = (uint64_t)s;
        CR_TRY(cr_engine_submit(e, prompt, 16, &id, 1, &how, NULL, err));
    }
    while (!cr_engine_is_idle(e)) {
        before = now;
        CR_TRY(cr_engine_step(e, err));
        if (now.nodes > before.nodes) print(whats[2 * is_filtered], model, &before);
        if (now.graphs == before.graphs || now.nodes > before.nodes) continue;
        replayed = before, after = now;
    }
    now = after; /* the last of the steps that ran from a graph */
    if (after.graphs) print(whats[2 * is_filtered + 1], model, &replayed);
    while (cr_engine_poll(e, &g))
        cr_generated_free(&g);
    return CR_OK;
}

static cr_status count_decode(cr_model *model, cr_device *dev, int64_t streams, cr_err *err)
{
    cr_engine_limits limits = {
        .max_running = streams, .max_model_len = 64, .max_rows = 16 * streams};
    cr_full_weights full;
    cr_engine *e;

    CR_TRY(cr_full_weights_init(&full, model, dev, CR_BF16, NULL, 1, err));
    CR_TRY(cr_engine_create(model, dev, &limits, &e, err));
    CR_TRY(cr_engine_set_weights(e, err));
    CR_TRY(decode_steps(e, model, streams, false, err));
    CR_TRY(decode_steps(e, model, streams, true, err));
    cr_engine_destroy(e);
    cr_full_weights_fini(&full);
    return CR_OK;
}

static cr_status no_loss(void *ctx, const cr_outputs *out, size_t num, const cr_outputs *grad,
                         cr_err *err)
{
    (void)ctx, (void)out, (void)num, (void)grad, (void)err;
    return CR_OK;
}

static cr_status make_trainer(cr_world *world, cr_model *model, cr_device *dev,
                              cr_mesh_shape *shape, cr_mesh **mesh, cr_fsdp **f, cr_err *err)
{
    int ranks[1] = {0};
    cr_fsdp_args args = {.is_train = true,
                         .param_dtype = CR_BF16,
                         .reduce_dtype = CR_REDUCE_F32,
                         .seed = 1,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .max_grad_norm = 1};

    CR_TRY(cr_mesh_shape_init(shape, 1, 0, 1, 1, 0, err));
    CR_TRY(cr_mesh_create(world, dev, "counts", ranks, shape, mesh, err));
    return cr_fsdp_create(model, dev, *mesh, &args, f, err);
}

static cr_status train_step(cr_fsdp *f, const cr_model *model, const cr_batch *batch,
                            int64_t num_micro, bool is_printed, cr_err *err)
{
    cr_update update;
    tally before;

    for (int64_t i = 0; i < num_micro; i++) {
        before = now;
        CR_TRY(cr_fsdp_backward(f, batch, no_loss, NULL, err));
        if (is_printed && (i == 0 || i == num_micro - 1))
            print(i ? "micro-batch, a further one" : "micro-batch, the first", model, &before);
    }
    before = now;
    CR_TRY(cr_fsdp_update(f, 1e-3, &update, err));
    if (is_printed) print("update", model, &before);
    return CR_OK;
}

static cr_status count_train(cr_world *world, cr_model *model, cr_device *dev, int64_t num_micro,
                             cr_err *err)
{
    int32_t *ids = CR_NEW_ARRAY(int32_t, 3 * TOKENS), cu[2] = {0, TOKENS};
    cr_batch batch = {.ids = ids,
                      .positions = ids + TOKENS,
                      .labels = ids + 2 * TOKENS,
                      .cu_seqlens = cu,
                      .num_tokens = TOKENS,
                      .num_seqs = 1};
    cr_mesh_shape shape;
    cr_mesh *mesh;
    cr_fsdp *f;

    for (int32_t t = 0; t < TOKENS; t++)
        ids[t] = 1 + t % 1000, ids[TOKENS + t] = t, ids[2 * TOKENS + t] = 1;
    CR_TRY(make_trainer(world, model, dev, &shape, &mesh, &f, err));
    CR_TRY(train_step(f, model, &batch, num_micro, false, err));
    CR_TRY(train_step(f, model, &batch, num_micro, true, err));
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    cr_free(ids);
    return CR_OK;
}

static cr_status count_phase(cr_world *world, cr_model *model, cr_device *dev, cr_err *err)
{
    cr_mesh_shape shape;
    cr_mesh *mesh;
    tally before;
    cr_fsdp *f;

    CR_TRY(make_trainer(world, model, dev, &shape, &mesh, &f, err));
    for (int i = 0; i < 2; i++) {
        before = now;
        CR_TRY(cr_fsdp_offload(f, CR_STATE_ALL, err));
        if (i) print("phase: to the host", model, &before);
        before = now;
        CR_TRY(cr_fsdp_load(f, CR_STATE_ALL, err));
        if (i) print("phase: back", model, &before);
    }
    cr_fsdp_destroy(f);
    cr_mesh_destroy(mesh);
    return CR_OK;
}

static cr_status count_sync(cr_world *world, cr_model *model, cr_device *dev, cr_err *err)
{
    int all[2] = {0, 1};
    cr_mesh_shape shape;
    cr_group *group;
    tally before;

    if (cr_world_num_ranks(world) != 2)
        return cr_fail(err, CR_EUSAGE,
                       "sync and staged take two ranks: scripts/mpi 2 bench_counts sync ..");
    CR_TRY(cr_group_create(world, dev, "weight sync", all, 2, &group, err));
    if (cr_world_rank(world) == 0) {
        cr_mesh *mesh;
        cr_fsdp *f;
        CR_TRY(make_trainer(world, model, dev, &shape, &mesh, &f, err));
        for (int i = 0; i < 2; i++) {
            before = now;
            CR_TRY(cr_weight_sync_send(f, group, CR_BF16, err));
        }
        print("sync: sender", model, &before);
        cr_fsdp_destroy(f);
        cr_mesh_destroy(mesh);
    } else {
        cr_weight_copy *copy;
        CR_TRY(cr_weight_copy_create(model, dev, CR_BF16, &copy, err));
        for (int i = 0; i < 2; i++) {
            before = now;
            CR_TRY(cr_weight_sync_receive(copy, group, err));
        }
        print("sync: receiver", model, &before);
        cr_weight_copy_destroy(copy);
    }
    CR_TRY(cr_barrier(group, "counts", err));
    cr_group_destroy(group);
    return CR_OK;
}

static cr_status count(const char *what, const char *folder, int64_t num, cr_world *world,
                       cr_err *err)
{
    cr_model *model;
    cr_device *dev;

    is_lending = strcmp(what, "sync") == 0;
    CR_TRY(cr_device_open("cuda", 1, &dev, err));
    CR_TRY(cr_model_open(folder, &model, err));
    model->config.num_eos = 0;
    if (strcmp(what, "decode") == 0)
        CR_TRY(count_decode(model, dev, num, err));
    else if (strcmp(what, "train") == 0)
        CR_TRY(count_train(world, model, dev, num, err));
    else if (strcmp(what, "phase") == 0)
        CR_TRY(count_phase(world, model, dev, err));
    else if (strcmp(what, "sync") == 0 || strcmp(what, "staged") == 0)
        CR_TRY(count_sync(world, model, dev, err));
    else
        return cr_fail(err, CR_EUSAGE, "\"%s\" is none of decode, train, sync, staged, phase",
                       what);
    cr_model_free(model);
    cr_device_close(dev);
    return CR_OK;
}

int main(int argc, char **argv)
{
    cr_world_args args = {.kind = cr_world_kind_here(),
                          .deadline_s = 3600}; /* for random weights */
    cr_world *world;
    cr_err err = {0};

    if (argc < 3) {
        fprintf(stderr, "usage: bench_counts decode|train|sync|staged|phase MODEL [N]\n");
        return 2;
    }
    if (cr_world_open(&args, &world, &err) != CR_OK ||
        count(argv[1], argv[2], argc > 3 ? atoll(argv[3]) : 1, world, &err) != CR_OK) {
        fprintf(stderr, "bench_counts: %s\n", err.msg);
        return 1;
    }
    cr_world_close(world);
    cr_free(symbols);
    cr_free(allocations);
    return 0;
}
