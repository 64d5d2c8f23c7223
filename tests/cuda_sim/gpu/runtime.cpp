/* runtime.cpp -- the CUDA runtime's calls: launches, copies, streams, events, and what the simulated GPU says of itself. */
#include "tests/cuda_sim/gpu/async.h"
#include "tests/cuda_sim/gpu/ipc.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CUDA_13 = 13000 };

static std::map<const void *, int> shared_limit;
static cudaError_t last_error;

cudaError_t cri_sim_keep_error(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

/* ---- launches ---- */

/* Of compute capabilities: the shared memory that a block may have. Only 9.0 has wgmma. CROLL_SIM_CAPABILITY names one. */
static const struct kind {
    const char *name;
    int major, shared;
} capabilities[] = {{"9.0", 9, CRI_SIM_SHARED_MAX}, {"8.0", 8, 163 * 1024}, {"8.9", 8, 99 * 1024}};

static const struct kind *chosen(void)
{
    const char *text = getenv("CROLL_SIM_CAPABILITY");

    if (!text) return &capabilities[0];
    for (const kind &c : capabilities)
        if (!strcmp(text, c.name)) return &c;
    cri_sim_die("CROLL_SIM_CAPABILITY=%s: 8.0, 8.9 or 9.0", text);
}

static int capability(void)
{
    return chosen()->major;
}

void cri_sim_need_sm_90(const char *what)
{
    if (capability() < 9) cri_sim_die("%s on a GPU of compute capability %s", what, chosen()->name);
}

static int max_shared(void)
{
    return chosen()->shared;
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
    op.is_submitted = true;
    op.run = [=] { cri_sim_run_kernel(grid, block, shared, body); };
    return cri_sim_enqueue(stream, std::move(op));
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    cri_sim_enter enter;

    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value > max_shared())
        return cri_sim_keep_error(cudaErrorInvalidValue);
    shared_limit[kernel] = value;
    return cudaSuccess;
}

/* ---- copies ---- */

/* On the device what is unwritten stays so in the copy: a block of a cache that is not full is copied whole. */
static void do_copy(void *dst, const void *src, size_t n)
{
    bool to = cri_sim_in_arena(dst), from = cri_sim_in_arena(src);
    bool is_inside = cri_sim_is_checked && from && to;
    std::vector<size_t> holes;

    cri_sim_counts.to_device += to && !from ? n : 0;
    cri_sim_counts.to_host += from && !to ? n : 0;
    cri_sim_counts.on_device += from && to ? n : 0;

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
    op.name = names[kind];
    op.is_submitted = true;
    op.queued = [=] { /* until it is waited for, the host has nothing there */
                      if (!to && !is_to_be_read(dst, n)) memset(dst, 0xff, n);
                      if (!from) to_be_read.emplace((uint64_t)src, n);
    };
    op.run = [=] {
        do_copy(dst, src, n);
        if (!from) to_be_read.erase(to_be_read.find((uint64_t)src));
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
    if (cri_sim_unless_captured(nullptr) != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
    cri_sim_counts.host_waits++;
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
    op.is_submitted = true;
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

/* Lower numbers come first, as CUDA has it; the simulation's order is the seed's all the same. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *min, int *highest)
{
    *min = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    if (priority < -5 || priority > 0)
        cri_sim_die("a stream of priority %d: they go from 0 to -5", priority);
    return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cri_sim_enter enter;

    if (s->capture) cri_sim_die("a stream is destroyed while it is captured");
    cri_sim_run_stream(s);
    s->is_alive = false;
    return cri_sim_lost;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cri_sim_enter enter;
    cudaError_t code = cri_sim_unless_captured(s);

    if (code != cudaSuccess) return code;
    cri_sim_counts.host_waits++;
    cri_sim_run_stream(s);
    cri_sim_host_clock.join(s->clock);
    return cri_sim_lost;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cri_sim_enter enter;
    cudaError_t code = cri_sim_unless_any_captured();

    if (code != cudaSuccess) return code;
    cri_sim_counts.host_waits++;
    cri_sim_run_all();
    for (CUstream_st *s : cri_sim_streams())
        cri_sim_host_clock.join(s->clock);
    return cri_sim_lost;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cri_sim_enter enter;
    cudaError_t code = cri_sim_unless_captured(s);

    if (code != cudaSuccess) return code;
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

    if (!s || !s->is_alive)
        cri_sim_die("an event on the default stream, or one that was destroyed");
    if (cri_sim_lost) return cri_sim_keep_error(cri_sim_lost);
    e->place.reset();
    e->capture.reset();
    if (s->capture) return cri_sim_capture_record(s, e);
    e->place = cri_sim_mark(s);
    return cudaSuccess;
}

/* Captures the last record at the time of the call; an event that was not recorded is over. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    cri_sim_enter enter;

    if (!s || !s->is_alive) cri_sim_die("a wait on the default stream, or one that was destroyed");
    if (cri_sim_lost) return cri_sim_keep_error(cri_sim_lost);
    if (s->capture || e->capture) return cri_sim_capture_wait(s, e);
    if (e->place) cri_sim_wait(s, e->place);
    return cudaSuccess;
}

/* Not of an event in a capture, nor by a thread that captures. */
static cudaError_t unless_captured(cudaEvent_t e)
{
    cudaError_t code = cri_sim_unless_captured(nullptr);

    return code == cudaSuccess && e->capture ? cri_sim_keep_error(cudaErrorCapturedEvent) : code;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cri_sim_enter enter;
    cudaError_t code = unless_captured(e);
    cri_sim_place place = e->place;

    if (code != cudaSuccess || !place) return code;
    cri_sim_counts.host_waits += !place->is_over;
    cri_sim_run_until([place] { return place->is_over; }, place->stream);
    cri_sim_host_clock.join(place->clock);
    return cri_sim_lost;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cri_sim_enter enter;
    cudaError_t code = unless_captured(e);

    if (code != cudaSuccess || !e->place) return code;
    if (!e->place->is_over) cri_sim_run_some();
    if (!e->place->is_over && !cri_sim_lost) return cudaErrorNotReady;
    cri_sim_host_clock.join(e->place->clock);
    return cri_sim_lost;
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

static thread_local int current; /* as CUDA has it */

int cri_sim_gpu(void)
{
    return getenv("CROLL_SIM_GPUS") ? current : (int)getpid();
}

cudaError_t cudaSetDevice(int index)
{
    if (!is_gpu(index)) return cri_sim_keep_error(cudaErrorInvalidValue);
    current = index;
    return cudaSuccess;
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
    out->totalGlobalMem = (size_t)cri_sim_memory_bytes();
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
    *out = !strcmp(symbol, "cuTensorMapEncodeTiled") ? (void *)cuTensorMapEncodeTiled
           : !strcmp(symbol, "cuMemGetAddressRange") ? (void *)cuMemGetAddressRange
                                                     : nullptr;
    *found = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
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
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed",
     "mapping of buffer object failed"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
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
