/* runtime.cpp -- the CUDA runtime's calls: launches, copies, streams, events, graphs of one stream, and what the
 * simulated GPU says of itself. */
#include "kernels/cuda/sim/async.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CUDA_13 = 13000 };

struct CUevent_st { /* stays when it is destroyed: queued work may still name it */
    uint64_t num_recorded = 0, num_done = 0;
    cri_sim_clock clock;
    CUstream_st *stream = nullptr;
};
struct CUgraph_st {
    std::vector<cri_sim_op> ops;
};
struct CUgraphExec_st {
    std::vector<cri_sim_op> ops;
};

static std::map<const void *, int> shared_limit;
static cudaError_t last_error;

cudaError_t cri_sim_keep_error(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

/* ---- launches ---- */

/* Major number of the compute capability, CROLL_SIM_CAPABILITY: 9, or 8, which has less shared memory and no wgmma. */
static int capability(void)
{
    const char *text = getenv("CROLL_SIM_CAPABILITY");

    if (!text || !strcmp(text, "9.0")) return 9;
    if (strcmp(text, "8.0") != 0) cri_sim_die("CROLL_SIM_CAPABILITY=%s: 8.0 or 9.0", text);
    return 8;
}

void cri_sim_need_sm_90(const char *what)
{
    if (capability() < 9) cri_sim_die("%s on a GPU of compute capability 8.0", what);
}

static int most_shared(void)
{
    return capability() < 9 ? 163 * 1024 : CRI_SIM_SHARED_MAX;
}

static bool fits(dim3 grid, dim3 block, size_t shared, const void *kernel)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    size_t limit = shared_limit.count(kernel) ? (size_t)shared_limit[kernel] : 48 * 1024;

    return threads && threads <= CRI_SIM_MAX_THREADS && block.z <= 64 && grid.x && grid.y &&
           grid.z && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535 && shared <= limit;
}

cudaError_t cri_sim_launch_body(const char *name, dim3 grid, dim3 block, size_t shared,
                                cudaStream_t stream, void (*invoke)(const void *, const void *),
                                const void *kernel, const void *args, size_t num_bytes)
{
    cri_sim_enter enter;
    const unsigned char *bytes = (const unsigned char *)args;
    cri_sim_body body = {invoke, kernel, std::vector<unsigned char>(bytes, bytes + num_bytes)};
    cri_sim_op op;

    if (!fits(grid, block, shared, kernel))
        return cri_sim_keep_error(cudaErrorInvalidConfiguration);
    op.name = name;
    op.run = [=] { cri_sim_run_kernel(name, grid, block, shared, body); };
    return cri_sim_enqueue(stream, std::move(op));
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    cri_sim_enter enter;

    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value > most_shared())
        return cri_sim_keep_error(cudaErrorInvalidValue);
    shared_limit[kernel] = value;
    return cudaSuccess;
}

/* ---- copies ---- */

/* On the device what is unwritten stays so in the copy: a block of a cache that is not full is copied whole. */
static void do_copy(void *dst, const void *src, size_t n)
{
    bool is_inside = cri_sim_is_checked && cri_sim_in_arena(src) && cri_sim_in_arena(dst);
    std::vector<size_t> holes;

    if (is_inside) holes = cri_sim_check_fill_holes(src, n);
    cri_sim_touch(src, n, false);
    cri_sim_touch(dst, n, true);
    memcpy(dst, src, n);
    for (size_t at : holes) {
        cri_sim_check_unwritten((const char *)src + at, 1);
        cri_sim_check_unwritten((const char *)dst + at, 1);
    }
}

/* Pinned memory that queued copies will read. */
static std::multimap<uint64_t, size_t> to_be_read;

static bool is_to_be_read(const void *p, size_t n)
{
    for (const auto &range : to_be_read)
        if (range.first < (uint64_t)p + n && (uint64_t)p < range.first + range.second) return true;
    return false;
}

static void check_direction(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    bool to = cri_sim_in_arena(dst), from = cri_sim_in_arena(src);
    uint64_t d = (uint64_t)dst, s = (uint64_t)src;

    if ((kind == cudaMemcpyHostToDevice && (!to || from)) ||
        (kind == cudaMemcpyDeviceToHost && (to || !from)) ||
        (kind == cudaMemcpyDeviceToDevice && !(to && from)))
        cri_sim_die("a copy of kind %d from %p to %p: the direction is wrong", (int)kind, src, dst);
    if (d < s + n && s < d + n)
        cri_sim_die("a copy from %p to %p of %zu bytes: they overlap", src, dst, n);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    static const char *const names[] = {"copy host to host", "copy to device", "copy to host",
                                        "copy on device", "copy"};
    cri_sim_enter enter;
    bool to = cri_sim_in_arena(dst), from = cri_sim_in_arena(src);
    cri_sim_op op;

    check_direction(dst, src, n, kind);
    if (!to && !cri_sim_is_pinned(dst, n))
        cri_sim_die("an asynchronous copy to pageable host memory would block: use pinned memory");
    if (!from && !cri_sim_is_pinned(src, n))
        cri_sim_die(
            "an asynchronous copy from pageable host memory would block: use pinned memory");
    /* until it is waited for, the host has nothing there */
    if (!to && !is_to_be_read(dst, n)) memset(dst, 0xff, n);
    if (!from) to_be_read.emplace((uint64_t)src, n);
    op.name = names[kind];
    op.run = [=] {
        do_copy(dst, src, n);
        auto read = to_be_read.find((uint64_t)src);
        if (read != to_be_read.end()) to_be_read.erase(read); /* a graph's copy: the first time */
    };
    return cri_sim_enqueue(stream, std::move(op));
}

/* Ordered after what the host has waited for, and nothing else: croll's streams do not block. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
    static CUstream_st *own;
    cri_sim_enter enter;
    cri_sim_op op;

    check_direction(dst, src, n, kind);
    if (!own) own = cri_sim_new_stream();
    op.name = "cudaMemcpy";
    op.run = [=] { do_copy(dst, src, n); };
    cri_sim_enqueue(own, std::move(op));
    cri_sim_run_stream(own);
    cri_sim_host_clock.join(own->clock);
    return cri_sim_lost;
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream)
{
    cri_sim_enter enter;
    cri_sim_op op;

    op.name = "memset";
    op.run = [=] {
        cri_sim_touch(dst, n, true);
        memset(dst, value, n);
    };
    return cri_sim_enqueue(stream, std::move(op));
}

void cri_sim_spoil(void *mem, size_t n, cudaStream_t stream)
{
    cri_sim_enter enter;
    cri_sim_op op;

    op.name = "release of memory";
    op.run = [=] {
        cri_sim_touch(mem, n, true);
        memset(mem, 0xff, n);
        if (cri_sim_is_checked) cri_sim_check_unwritten(mem, n);
    };
    cri_sim_enqueue(stream, std::move(op));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    cri_sim_enter enter;
    cri_sim_op op;

    op.name = "host function";
    op.run = [=] {
        cri_sim_close_memory();
        fn(arg);
    };
    return cri_sim_enqueue(stream, std::move(op));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cri_sim_enter enter;

    if (flags != cudaStreamNonBlocking)
        cri_sim_die("a stream without cudaStreamNonBlocking waits for the default stream");
    *out = cri_sim_new_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cri_sim_enter enter;

    cri_sim_run_stream(s);
    s->is_alive = false;
    return cri_sim_lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cri_sim_enter enter;

    cri_sim_run_stream(s);
    cri_sim_host_clock.join(s->clock);
    return cri_sim_lost;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cri_sim_enter enter;

    cri_sim_run_all();
    for (CUstream_st *s : cri_sim_streams())
        cri_sim_host_clock.join(s->clock);
    return cri_sim_lost;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cri_sim_enter enter;

    if (!s->queue.empty()) cri_sim_run_some();
    if (!s->queue.empty()) return cudaErrorNotReady;
    cri_sim_host_clock.join(s->clock);
    return cri_sim_lost;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    cri_sim_enter enter;
    cri_sim_op op;
    uint64_t turn = ++e->num_recorded;
    cudaError_t result;

    op.name = "event record";
    op.ready = [e, turn] { /* done as soon as it is the head */
                           if (e->num_done < turn) e->num_done = turn;
                           return true;
    };
    e->stream = s;
    result = cri_sim_enqueue(s, std::move(op));
    e->clock = s->clock;
    return result;
}

/* Captures the last record at the time of the call; an event that was not recorded is over. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    cri_sim_enter enter;
    cri_sim_op op;
    uint64_t turn = e->num_recorded;

    if (!turn) return cudaSuccess;
    op.name = "wait for event";
    op.waits_for = e->stream;
    op.ready = [e, turn] { return e->num_done >= turn; };
    s->clock.join(e->clock);
    return cri_sim_enqueue(s, std::move(op));
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cri_sim_enter enter;
    uint64_t turn = e->num_recorded;

    if (turn) cri_sim_run_until([e, turn] { return e->num_done >= turn; }, e->stream);
    cri_sim_host_clock.join(e->clock);
    return cri_sim_lost;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cri_sim_enter enter;

    if (e->num_done < e->num_recorded) cri_sim_run_some();
    if (e->num_done < e->num_recorded && !cri_sim_lost) return cudaErrorNotReady;
    cri_sim_host_clock.join(e->clock);
    return cri_sim_lost;
}

/* ---- graphs: one captured stream. Arguments are frozen at capture, as CUDA freezes them. ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode)
{
    cri_sim_enter enter;

    s->is_capturing = true;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    cri_sim_enter enter;

    s->is_capturing = false;
    *out = new CUgraph_st{std::move(s->captured)};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    *out = new CUgraphExec_st{graph->ops};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    cri_sim_enter enter;

    for (const cri_sim_op &op : exec->ops)
        cri_sim_enqueue(s, op);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* ---- the device ---- */

/* CROLL_SIM_DRIVER: the newest CUDA that the driver can run, as CUDA packs it; 0: no driver. */
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)cri_sim_setting("CROLL_SIM_DRIVER", CUDA_13);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDA_13;
    return cudaSuccess;
}

/* CROLL_SIM_GPUS: GPUs of the machine, for all its processes; without it each process has one of its own. */
static int num_gpus(void)
{
    return (int)cri_sim_setting("CROLL_SIM_GPUS", 1);
}

static bool is_gpu(int index)
{
    return index >= 0 && index < num_gpus();
}

cudaError_t cudaGetDeviceCount(int *num)
{
    int driver;

    *num = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver < CUDA_13) return cri_sim_keep_error(cudaErrorInsufficientDriver);
    if (num_gpus() < 1) return cri_sim_keep_error(cudaErrorNoDevice);
    *num = num_gpus();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    return is_gpu(index) ? cudaSuccess : cri_sim_keep_error(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int capacity, int index)
{
    if (!is_gpu(index)) return cri_sim_keep_error(cudaErrorInvalidValue);
    snprintf(text, (size_t)capacity, "simulated:%d",
             getenv("CROLL_SIM_GPUS") ? index : (int)getpid());
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index)
{
    if (!is_gpu(index)) return cri_sim_keep_error(cudaErrorInvalidValue);
    *out = {};
    snprintf(out->name, sizeof out->name, "simulated GPU (kernels run on the CPU, %s)",
             cri_sim_is_checked ? "every access is checked" : "fast");
    out->totalGlobalMem = (size_t)64 << 30;
    out->major = capability();
    out->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index)
{
    if (!is_gpu(index) || attribute != cudaDevAttrComputeCapabilityMajor)
        return cri_sim_keep_error(cudaErrorInvalidValue);
    *value = capability();
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    bool is_known = !strcmp(symbol, "cuTensorMapEncodeTiled");

    *out = is_known ? (void *)cuTensorMapEncodeTiled : nullptr;
    *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = cri_sim_lost ? cri_sim_lost : last_error;

    last_error = cudaSuccess;
    return e;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &x : errors)
        if (x.code == e) return x.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    for (const auto &x : errors)
        if (x.code == e) return x.text;
    return "unrecognized error code";
}
