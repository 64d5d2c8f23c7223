/* device.c -- the device `cuda`: memory, copies, streams and events by the CUDA runtime, and the table of its operations.
 *
 * Streams do not block one another (cudaStreamNonBlocking), and nothing runs on the default stream. An upload goes
 * through a ring of pinned slots, so that its source has been read when the call returns and the host does not wait for
 * the copy. An event is a number in a ring of CUDA events of its stream: when the ring has gone round, a wait for an old
 * one waits for the younger one in its place, which is later, and right.
 *
 * A graph is captured from one stream. What can not be in it, or would be wrong when it runs again, is refused while it is made:
 * copies from and to the host (the slots of uploads hold other bytes later), allocation, release, waits, events, other streams.
 * It is good until memory is released, whose addresses it may have.
 *
 * A handle's GPU is the one that was asked for, or that of the rank on its host, round robin. Threads: as memory.h says; the CUDA runtime keeps
 * the current GPU a thread, so each call sets it (cri_cuda_stream).
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/library.h"
#include "kernels/gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LENT = 8,
    NUM_EVENTS = 256,
    NUM_SLOTS = 32,
    SLOT_BYTES = 1 << 18,
    SCRATCH_UNIT = 1 << 20
};

typedef struct stream {
    cudaStream_t stream;
    cudaEvent_t events[NUM_EVENTS]; /* made when they are first recorded */
    uint64_t num_recorded;
    cr_mem *scratch;
    size_t scratch_bytes;
} stream;

/* cuTensorMapEncodeTiled of the driver, which is not linked: a binary starts without one. */
typedef CUresult encode_map(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuMemGetAddressRange, likewise. */
typedef CUresult address_range(CUdeviceptr *, size_t *, CUdeviceptr);

typedef struct cuda { /* a device's `impl`; lanes have the same one */
    int gpu;
    stream of[CR_NUM_STREAMS];
    char *slots; /* pinned, NUM_SLOTS of SLOT_BYTES; NULL until the first upload */
    cudaEvent_t slot_free[NUM_SLOTS];
    void *pinned[CRI_NUM_PINNED]; /* grown, as scratch is */
    size_t pinned_bytes[CRI_NUM_PINNED];
    uint64_t num_uploads;
    cri_library *library;
    encode_map *encode; /* of tensor maps; NULL on a GPU without wgmma */
    address_range *range_of;
    const cr_mem *lent[MAX_LENT]; /* NULL: free */
    pthread_mutex_t lock; /* recursive: of a capture, and of downloads, which any thread may call */
    const cr_device *recorder; /* the handle whose stream is captured now, or NULL */
    uint64_t num_released;     /* allocations */
} cuda;

struct cr_graph {
    cudaGraphExec_t graph; /* NULL: not captured */
    uint64_t key, num_released;
    bool has_run, is_refused; /* since then work was called; there was no memory for the graph */
};

/* Of the simulated GPU (sim/), which notices reads of memory that is undefined again; no GPU has it. */
void cri_sim_spoil(void *mem, size_t num_bytes, cudaStream_t stream) __attribute__((weak));

static cr_status check(const char *what, cudaError_t code, cr_err *err)
{
    if (code == cudaSuccess) return CR_OK;
    (void)cudaGetLastError(); /* the next call starts without it */
    return cr_fail(err, CR_EIO, "device cuda: %s: %s (%s)", what, cudaGetErrorString(code),
                   cudaGetErrorName(code));
}

/* Of a call that waits for queued work, or asks about it. A kernel that fails takes the GPU from the process: every later
 * call returns its error. */
static cr_status check_work(cudaError_t code, cr_err *err)
{
    if (code == cudaSuccess) return CR_OK;
    return cr_fail(
        err, CR_EIO,
        "device cuda: work on the GPU failed: %s (%s); dmesg (Xid) and nvidia-smi -q say "
        "what the GPU met, CUDA_LAUNCH_BLOCKING=1 which operation did",
        cudaGetErrorString(code), cudaGetErrorName(code));
}

/* After a failed release. A lost GPU has nothing to give back; the wait that failed has said why. */
static bool is_lost(void)
{
    (void)cudaGetLastError();
    return cudaDeviceSynchronize() != cudaSuccess;
}

/* CR_EARG: not while operations are captured. */
static cr_status check_free(const cr_device *dev, const char *what, cr_err *err)
{
    if (!((const cuda *)dev->impl)->recorder) return CR_OK;
    return cr_fail(err, CR_EARG, "device cuda: %s while operations are captured", what);
}

static stream *stream_of(const cr_device *dev)
{
    return &((cuda *)dev->impl)->of[dev->stream];
}

cudaStream_t cri_cuda_stream(const cr_device *dev)
{
    const cuda *c = dev->impl;

    CR_CHECK(!c->recorder || dev->stream == c->recorder->stream,
             "device cuda: a second stream is used while one is captured");
    (void)cudaSetDevice(c->gpu); /* it has worked when the device was opened */
    return stream_of(dev)->stream;
}

bool cri_cuda_has_wgmma(const cr_device *dev)
{
    return ((const cuda *)dev->impl)->encode != NULL;
}

cudaError_t cri_cuda_tensor_map(const cr_device *dev, CUtensorMap *out, const void *x, int64_t rows,
                                int64_t cols, int64_t ld, int box_rows)
{
    const cuuint64_t dims[2] = {(cuuint64_t)cols, (cuuint64_t)rows},
                     strides[1] = {(cuuint64_t)ld * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    union {
        const void *from;
        void *address; /* nothing is written there */
    } matrix = {x};
    CUresult code =
        ((const cuda *)dev->impl)
            ->encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.address, dims, strides, box,
                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

    return code == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cri_library *cri_cuda_library(const cr_device *dev)
{
    return ((const cuda *)dev->impl)->library;
}

void *cr_gpu_stream(const cr_device *dev)
{
    return cri_cuda_stream(dev);
}

cr_status cr_gpu_identity(const cr_device *dev, char *text, size_t capacity_bytes, cr_err *err)
{
    const cuda *c = dev->impl;

    return check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(text, (int)capacity_bytes, c->gpu),
                 err);
}

cr_gpu_products cr_gpu_get_products(const cr_device *dev)
{
    return cri_library_products(cri_cuda_library(dev));
}

/* ---- memory ---- */

static cr_status cuda_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    size_t num_free = 0, num_all = 0;
    void *mem = NULL;
    cudaError_t code;

    *out = NULL;
    CR_TRY(check_free(dev, "an allocation", err));
    (void)cri_cuda_stream(dev);
    code = cudaMalloc(&mem, num_bytes ? num_bytes : 1);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&num_free, &num_all);
        return cr_fail(err, CR_EIO,
                       "out of GPU memory asking for %zu bytes (%zu of %zu are free; croll plan "
                       "--device cuda says what a run needs)",
                       num_bytes, num_free, num_all);
    }
    CR_TRY(check("cudaMalloc", code, err));
    *out = cr_mem_of_host(mem);
    return CR_OK;
}

static cr_status cuda_memory(const cr_device *dev, cr_device_memory *out, cr_err *err)
{
    size_t num_free = 0, num_all = 0;

    (void)cri_cuda_stream(dev);
    CR_TRY(check("its memory", cudaMemGetInfo(&num_free, &num_all), err));
    *out = (cr_device_memory){.all_bytes = (int64_t)num_all, .free_bytes = (int64_t)num_free};
    return check("its GPUs", cudaGetDeviceCount(&out->num_gpus), err);
}

/* ---- memory that other processes of the GPU open ---- */

static bool is_lent(const cuda *c, const cr_mem *mem)
{
    for (int i = 0; i < MAX_LENT; i++)
        if (mem && c->lent[i] == mem) return true;
    return false;
}

static cr_status base_of(const cuda *c, const cr_mem *mem, cr_mem **base, cr_err *err)
{
    CUdeviceptr first;
    size_t num_bytes;

    if (c->range_of(&first, &num_bytes, (CUdeviceptr)(uintptr_t)mem) != CUDA_SUCCESS)
        return cr_fail(err, CR_EIO, "device cuda: memory that is lent is no allocation");
    *base = cr_mem_of_host((void *)(uintptr_t)first);
    return CR_OK;
}

cr_status cr_gpu_lend(cr_device *dev, const cr_mem *mem, cr_gpu_loan *out, cr_err *err)
{
    cuda *c = dev->impl;
    cudaIpcMemHandle_t handle;
    cr_mem *base = NULL;
    int i = 0;

    (void)cri_cuda_stream(dev);
    CR_TRY(base_of(c, mem, &base, err));
    CR_TRY(check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, cr_mem_to_host(base)), err));
    while (i < MAX_LENT && c->lent[i])
        i++;
    CR_CHECK(i < MAX_LENT, "device cuda: more than %d allocations are lent", MAX_LENT);
    c->lent[i] = base;
    memcpy(out->allocation, &handle, sizeof handle);
    out->offset_bytes = (size_t)((const char *)cr_mem_to_host(mem) - (char *)cr_mem_to_host(base));
    return CR_OK;
}

void cr_gpu_take_back(cr_device *dev, const cr_mem *mem)
{
    cuda *c = dev->impl;
    cr_err err = {0};
    cr_mem *base = NULL;

    (void)cri_cuda_stream(dev);
    if (base_of(c, mem, &base, &err) != CR_OK) return; /* a lost GPU */
    for (int i = 0; i < MAX_LENT; i++)
        if (c->lent[i] == base) {
            c->lent[i] = NULL;
            return;
        }
}

cr_status cr_gpu_open_loan(cr_device *dev, const cr_gpu_loan *loan, cr_mem **base, cr_err *err)
{
    cudaIpcMemHandle_t handle;
    void *at = NULL;
    cudaError_t code;

    (void)cri_cuda_stream(dev);
    memcpy(&handle, loan->allocation, sizeof handle);
    code = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
    *base = cr_mem_of_host(at);
    if (code == cudaSuccess) return CR_OK;
    (void)cudaGetLastError();
    return cr_fail(err, CR_EABSENT, "device cuda: memory of another process: %s (%s)",
                   cudaGetErrorString(code), cudaGetErrorName(code));
}

cr_status cr_gpu_close_loan(cr_device *dev, cr_mem *base, cr_err *err)
{
    (void)cri_cuda_stream(dev);
    return check("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(cr_mem_to_host(base)), err);
}

/* Waits for all streams. */
static void cuda_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    cudaError_t code;

    (void)num_bytes;
    CR_CHECK(!((const cuda *)dev->impl)->recorder,
             "device cuda: memory is released while operations are captured");
    (void)cri_cuda_stream(dev);
    ((cuda *)dev->impl)->num_released++;
    if (is_lent(dev->impl, mem)) return;
    code = cudaFree(cr_mem_to_host(mem));
    CR_CHECK(code == cudaSuccess || is_lost(), "cudaFree: %s", cudaGetErrorString(code));
}

/* ---- memory of the host ---- */

static cr_status pin(void **mem, size_t num_bytes, cr_err *err)
{
    cudaError_t code = cudaMallocHost(mem, num_bytes);

    if (code != cudaErrorMemoryAllocation) return check("cudaMallocHost", code, err);
    (void)cudaGetLastError();
    return cr_fail(
        err, CR_EIO,
        "the host has no %zu bytes of memory that can be pinned for the GPU (uploads and "
        "offloaded states use it; a container may limit it)",
        num_bytes);
}

static cr_status cuda_host_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    void *mem = NULL;

    *out = NULL;
    CR_TRY(check_free(dev, "an allocation", err));
    (void)cri_cuda_stream(dev);
    CR_TRY(pin(&mem, num_bytes ? num_bytes : 1, err));
    *out = cr_mem_of_host(mem);
    return CR_OK;
}

static cr_status sync_all(const cr_device *dev, cr_err *err)
{
    const cuda *c = dev->impl;

    (void)cri_cuda_stream(dev);
    for (int s = 0; s < CR_NUM_STREAMS; s++)
        CR_TRY(check_work(cudaStreamSynchronize(c->of[s].stream), err));
    return CR_OK;
}

static void cuda_host_release(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    cr_err err = {0};
    cudaError_t code;

    (void)num_bytes;
    (void)sync_all(dev, &err); /* a copy of a lost GPU has ended, too */
    code = cudaFreeHost(cr_mem_to_host(mem));
    CR_CHECK(code == cudaSuccess || is_lost(), "cudaFreeHost: %s", cudaGetErrorString(code));
}

static void cuda_spoil(cr_device *dev, cr_mem *mem, size_t num_bytes)
{
    if (cri_sim_spoil && num_bytes)
        cri_sim_spoil(cr_mem_to_host(mem), num_bytes, cri_cuda_stream(dev));
}

cr_status cri_cuda_scratch(cr_device *dev, size_t num_bytes, void **mem, cr_err *err)
{
    stream *s = stream_of(dev);

    if (s->scratch_bytes < num_bytes) {
        size_t wanted = (num_bytes + SCRATCH_UNIT - 1) / SCRATCH_UNIT * SCRATCH_UNIT;
        if (s->scratch) cuda_release(dev, s->scratch, s->scratch_bytes);
        s->scratch = NULL;
        s->scratch_bytes = 0;
        CR_TRY(cuda_alloc(dev, wanted, &s->scratch, err));
        s->scratch_bytes = wanted;
    }
    cuda_spoil(dev, s->scratch, num_bytes);
    *mem = cr_mem_to_host(s->scratch);
    return CR_OK;
}

void *cri_cuda_scratch_now(const cr_device *dev)
{
    return cr_mem_to_host(stream_of(dev)->scratch);
}

cr_status cri_cuda_pinned(cr_device *dev, int which, size_t num_bytes, void **mem, cr_err *err)
{
    cuda *c = dev->impl;
    size_t wanted = num_bytes + num_bytes / 2;

    if (c->pinned_bytes[which] < num_bytes) {
        CR_TRY(check_free(dev, "an allocation", err));
        CR_TRY(sync_all(dev, err));
        if (c->pinned[which]) CR_TRY(check("cudaFreeHost", cudaFreeHost(c->pinned[which]), err));
        c->pinned[which] = NULL;
        c->pinned_bytes[which] = 0;
        CR_TRY(pin(&c->pinned[which], wanted, err));
        c->pinned_bytes[which] = wanted;
    }
    *mem = c->pinned[which];
    return CR_OK;
}

static void cuda_drop_scratch(cr_device *dev)
{
    cuda *c = dev->impl;

    for (int i = 0; i < CR_NUM_STREAMS; i++) {
        stream *s = &c->of[i];
        if (s->scratch) cuda_release(dev, s->scratch, s->scratch_bytes);
        s->scratch = NULL;
        s->scratch_bytes = 0;
    }
}

/* ---- copies ---- */

static cr_status make_slots(cuda *c, cr_err *err)
{
    void *mem;

    if (c->slots) return CR_OK;
    for (int i = 0; i < NUM_SLOTS; i++)
        CR_TRY(check("an event", cudaEventCreateWithFlags(&c->slot_free[i], cudaEventDisableTiming),
                     err));
    CR_TRY(pin(&mem, (size_t)NUM_SLOTS * SLOT_BYTES, err));
    c->slots = mem;
    return CR_OK;
}

static cr_status cuda_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                             cr_err *err)
{
    cuda *c = dev->impl;
    cudaStream_t on = cri_cuda_stream(dev);

    CR_TRY(check_free(dev, "an upload", err));
    CR_TRY(make_slots(c, err));
    for (size_t at = 0; at < num_bytes; at += SLOT_BYTES) {
        size_t num = num_bytes - at < SLOT_BYTES ? num_bytes - at : SLOT_BYTES;
        int i = (int)(c->num_uploads++ % NUM_SLOTS);
        char *slot = c->slots + (size_t)i * SLOT_BYTES;
        CR_TRY(check_work(cudaEventSynchronize(c->slot_free[i]), err));
        memcpy(slot, (const char *)src + at, num);
        CR_TRY(check("an upload",
                     cudaMemcpyAsync(cr_mem_to_host(cr_mem_add(dst, at)), slot, num,
                                     cudaMemcpyHostToDevice, on),
                     err));
        CR_TRY(check("an upload", cudaEventRecord(c->slot_free[i], on), err));
    }
    return CR_OK;
}

/* From any thread. */
static cr_status cuda_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                               cr_err *err)
{
    cuda *c = dev->impl;
    cr_status status;

    pthread_mutex_lock(&c->lock); /* CUDA refuses to wait for a stream that is captured */
    status = check_free(dev, "a download", err);
    if (status == CR_OK) status = check_work(cudaStreamSynchronize(cri_cuda_stream(dev)), err);
    if (status == CR_OK)
        status =
            check("a download",
                  cudaMemcpy(dst, cr_mem_to_host(src), num_bytes, cudaMemcpyDeviceToHost), err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

static cr_status cuda_upload_async(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                                   cr_err *err)
{
    return check("an upload",
                 cudaMemcpyAsync(cr_mem_to_host(dst), src, num_bytes, cudaMemcpyHostToDevice,
                                 cri_cuda_stream(dev)),
                 err);
}

static cr_status cuda_download_async(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                                     cr_err *err)
{
    return check("a download",
                 cudaMemcpyAsync(dst, cr_mem_to_host(src), num_bytes, cudaMemcpyDeviceToHost,
                                 cri_cuda_stream(dev)),
                 err);
}

static cr_status cuda_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                           cr_err *err)
{
    if (num_bytes == 0 || dst == src) return CR_OK;
    return check("a copy",
                 cudaMemcpyAsync(cr_mem_to_host(dst), cr_mem_to_host(src), num_bytes,
                                 cudaMemcpyDeviceToDevice, cri_cuda_stream(dev)),
                 err);
}

static cr_status cuda_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    if (num_bytes == 0) return CR_OK;
    return check("zeroing",
                 cudaMemsetAsync(cr_mem_to_host(dst), 0, num_bytes, cri_cuda_stream(dev)), err);
}

/* ---- streams and events ---- */

static cr_status cuda_sync(cr_device *dev, cr_err *err)
{
    CR_TRY(check_free(dev, "a wait", err));
    return check_work(cudaStreamSynchronize(cri_cuda_stream(dev)), err);
}

static cr_status cuda_record(cr_device *dev, cr_event *event, cr_err *err)
{
    stream *s = stream_of(dev);
    cudaStream_t on = cri_cuda_stream(dev);
    cudaEvent_t *e = &s->events[s->num_recorded % NUM_EVENTS];

    CR_TRY(check_free(dev, "an event", err));
    if (!*e) CR_TRY(check("an event", cudaEventCreateWithFlags(e, cudaEventDisableTiming), err));
    CR_TRY(check("an event", cudaEventRecord(*e, on), err));
    event->position = s->num_recorded++;
    return CR_OK;
}

static cudaEvent_t place_of(const cr_event *event)
{
    return stream_of(event->dev)->events[event->position % NUM_EVENTS];
}

static cr_status cuda_wait(cr_device *dev, cr_event *event, cr_err *err)
{
    CR_TRY(check_free(dev, "an event", err));
    return check("an event", cudaStreamWaitEvent(cri_cuda_stream(dev), place_of(event), 0), err);
}

static cr_status cuda_is_over(cr_device *dev, const cr_event *event, bool *out, cr_err *err)
{
    cudaError_t code;

    *out = false;
    CR_TRY(check_free(dev, "an event", err));
    (void)cri_cuda_stream(dev);
    code = cudaEventQuery(place_of(event));
    *out = code != cudaErrorNotReady;
    return *out ? check_work(code, err) : CR_OK;
}

/* ---- graphs ---- */

static void drop_graph(const cr_device *dev, cr_graph *r)
{
    cudaError_t code;

    if (!r->graph) return;
    code = cudaStreamSynchronize(cri_cuda_stream(dev));
    if (code == cudaSuccess) code = cudaGraphExecDestroy(r->graph);
    CR_CHECK(code == cudaSuccess || is_lost(), "a graph: %s", cudaGetErrorString(code));
    r->graph = NULL;
}

static void cuda_graph_destroy(cr_device *dev, cr_graph *r)
{
    drop_graph(dev, r);
    cr_free(r);
}

/* Of making the graph or of its launch, which has done nothing if it has failed. */
static cr_status check_graph(const cr_device *dev, cr_graph *r, cudaError_t code, cr_err *err)
{
    if (code != cudaErrorMemoryAllocation) return check("a graph", code, err);
    (void)cudaGetLastError();
    drop_graph(dev, r);
    r->is_refused = true;
    cr_log(CR_LOG_WARN, "cuda",
           "no GPU memory is left for a graph: its operations are queued one by one, which is "
           "slower");
    return CR_OK;
}

static cr_status record(cr_device *dev, cr_graph *r, cr_work work, void *ctx, cr_err *err)
{
    cuda *c = dev->impl;
    cudaStream_t on = cri_cuda_stream(dev);
    cudaGraph_t graph = NULL;
    cudaError_t code;

    pthread_mutex_lock(&c->lock);
    if (check("a graph", cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), err) ==
        CR_OK) {
        c->recorder = dev;
        cr_note(work(ctx, err));
        c->recorder = NULL;
        code = cudaStreamEndCapture(on, &graph);
        if (err->status == CR_OK)
            cr_note(check("a graph", code, err));
        else
            (void)cudaGetLastError(); /* what went wrong is in err */
    }
    pthread_mutex_unlock(&c->lock);
    if (err->status == CR_OK)
        cr_note(check_graph(dev, r, cudaGraphInstantiate(&r->graph, graph, 0), err));
    if (graph) (void)cudaGraphDestroy(graph);
    return err->status;
}

static cr_status cuda_graph_run(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work,
                                void *ctx, cr_err *err)
{
    const cuda *c = dev->impl;
    cr_graph *r = *graph;

    CR_TRY(check_free(dev, "a graph", err));
    if (!r) r = *graph = CR_NEW(cr_graph);
    if (r->key != key || r->num_released != c->num_released) {
        drop_graph(dev, r);
        *r = (cr_graph){.key = key, .num_released = c->num_released};
    }
    if (!r->graph && r->has_run && !r->is_refused) CR_TRY(record(dev, r, work, ctx, err));
    if (r->graph) {
        CR_TRY(check_graph(dev, r, cudaGraphLaunch(r->graph, cri_cuda_stream(dev)), err));
        if (r->graph) {
            dev->streams[0]->stats.num_graph_launches++;
            return CR_OK;
        }
    }
    r->has_run = true;
    return work(ctx, err);
}

/* ---- memory that the host writes: there is no such memory of this device ---- */

static cr_status cuda_share(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err)
{
    (void)dev;
    (void)host;
    *out = NULL;
    return cr_fail(err, CR_EABSENT,
                   "device cuda: kernels do not use %zu bytes of shared memory of the host",
                   num_bytes);
}

static cr_status cuda_host_wrote(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err)
{
    (void)dev;
    (void)mem;
    return cr_fail(err, CR_EABSENT, "device cuda: the host cannot have written %zu bytes of it",
                   num_bytes);
}

/* ---- the device ---- */

/* Lanes are closed, too; they have one stream, and nothing of their own. */
static void cuda_close(cr_device *dev)
{
    cuda *c = dev->impl;
    cr_err err = {0};

    if (!dev->streams[1]) return;
    (void)sync_all(dev, &err); /* what failed there was reported, or no call waits for it */
    cuda_drop_scratch(dev);
    cri_library_close(c->library);
    for (int i = 0; i < NUM_SLOTS; i++)
        if (c->slot_free[i]) (void)cudaEventDestroy(c->slot_free[i]);
    if (c->slots) (void)cudaFreeHost(c->slots);
    for (int i = 0; i < CRI_NUM_PINNED; i++)
        if (c->pinned[i]) (void)cudaFreeHost(c->pinned[i]);
    for (int s = 0; s < CR_NUM_STREAMS; s++) {
        for (int i = 0; i < NUM_EVENTS; i++)
            if (c->of[s].events[i]) (void)cudaEventDestroy(c->of[s].events[i]);
        (void)cudaStreamDestroy(c->of[s].stream);
    }
    pthread_mutex_destroy(&c->lock);
    cr_free(c);
}

static void cuda_open_lane(const cr_device *dev, cr_device *lane)
{
    lane->impl = dev->impl;
}

#define ENTRY(op, args) .op = cri_cuda_##op,
static const cr_kernels table = {.name = "cuda",
                                 .close = cuda_close,
                                 .drop_scratch = cuda_drop_scratch,
                                 .open_lane = cuda_open_lane,
                                 .alloc = cuda_alloc,
                                 .release = cuda_release,
                                 .upload = cuda_upload,
                                 .download = cuda_download,
                                 .zero = cuda_zero,
                                 .copy = cuda_copy,
                                 .sync = cuda_sync,
                                 .record = cuda_record,
                                 .wait = cuda_wait,
                                 .is_over = cuda_is_over,
                                 .graph_run = cuda_graph_run,
                                 .graph_destroy = cuda_graph_destroy,
                                 .host_alloc = cuda_host_alloc,
                                 .host_release = cuda_host_release,
                                 .upload_async = cuda_upload_async,
                                 .download_async = cuda_download_async,
                                 .host_wrote = cuda_host_wrote,
                                 .share = cuda_share,
                                 .unshare = cri_forget,
                                 .spoil = cuda_spoil,
                                 .memory = cuda_memory,
                                 .packed_bytes = cri_cuda_packed_bytes,
                                 .kv_block_bytes = cri_cuda_kv_block_bytes,
                                 CR_OPS(ENTRY, ENTRY)};

static cr_status find_gpu(int number, int *gpu, cr_err *err)
{
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    char why[CRI_CUDA_WHY_BYTES];
    int num = 0;
    cudaError_t code = cudaGetDeviceCount(&num);

    if (code != cudaSuccess || num < 1) {
        cri_cuda_why_none(code, why, sizeof why);
        return cr_fail(err, CR_EABSENT, "device cuda: %s; croll doctor shows more", why);
    }
    if (number < 0) number = rank ? atoi(rank) : 0;
    *gpu = number % num;
    return check("cudaSetDevice", cudaSetDevice(*gpu), err);
}

static cr_status find_in_driver(const char *name, void **out, cr_err *err)
{
    enum cudaDriverEntryPointQueryResult found;

    CR_TRY(check(
        name, cudaGetDriverEntryPointByVersion(name, out, 12000, cudaEnableDefault, &found), err));
    if (found == cudaDriverEntryPointSuccess) return CR_OK;
    return cr_fail(err, CR_EABSENT, "device cuda: the driver has no %s", name);
}

static cr_status find_functions(cuda *c, cr_err *err)
{
    union {
        void *mem;
        encode_map *encode;
        address_range *range_of;
    } symbol = {NULL};
    int major;

    CR_TRY(find_in_driver("cuMemGetAddressRange", &symbol.mem, err));
    c->range_of = symbol.range_of;
    CR_TRY(check("its compute capability",
                 cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->gpu), err));
    if (major != 9) return CR_OK;
    CR_TRY(find_in_driver("cuTensorMapEncodeTiled", &symbol.mem, err));
    c->encode = symbol.encode;
    return CR_OK;
}

/* Blocks of kernels of NCCL, and of casts and sums beside it, which other GPUs wait for, are placed before those of compute. */
static cr_status make_streams(cuda *c, cr_err *err)
{
    int min, highest;

    CR_TRY(check("priorities of streams", cudaDeviceGetStreamPriorityRange(&min, &highest), err));
    for (int s = 0; s < CR_NUM_STREAMS; s++) {
        bool is_first = s == CR_STREAM_GATHER || s == CR_STREAM_REDUCE;
        CR_TRY(check("a stream",
                     cudaStreamCreateWithPriority(&c->of[s].stream, cudaStreamNonBlocking,
                                                  is_first ? highest : min),
                     err));
    }
    return CR_OK;
}

static void init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t recursive;

    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
}

cr_status cri_cuda_open(cr_device *dev, cr_err *err)
{
    cuda *c;
    int gpu = 0;

    CR_TRY(find_gpu(dev->number, &gpu, err));
    c = CR_NEW(cuda);
    c->gpu = gpu;
    init_lock(&c->lock);
    cr_note(find_functions(c, err));
    if (err->status == CR_OK) cr_note(cri_library_open(&c->library, err));
    if (err->status == CR_OK) cr_note(make_streams(c, err));
    if (err->status != CR_OK) {
        for (int s = 0; s < CR_NUM_STREAMS; s++)
            if (c->of[s].stream) (void)cudaStreamDestroy(c->of[s].stream);
        cri_library_close(c->library);
        pthread_mutex_destroy(&c->lock);
        cr_free(c);
        return err->status;
    }
    dev->kernels = &table;
    dev->num_threads = 1; /* a kernel fills the GPU: lanes would share it */
    dev->impl = c;
    return CR_OK;
}
