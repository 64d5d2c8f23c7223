/* memory.h -- devices and their memory.
 *
 * A device (`cpu`, `meta`, `cuda`) owns memory that only its kernels (kernels.h) and the communicators (mesh/collectives.h) read and write. Such
 * memory is a `cr_mem *`, a type without a definition, so the compiler refuses to dereference it on the host. A `void *`, `float *` or
 * `int32_t *` is host memory. Data crosses the border by name:
 *
 *     cr_upload      host to device            cr_copy   within a device
 *     cr_download    device to host            cr_move   from one device to another
 *
 * Order: a device has five streams, and a `cr_device *` stands for a device and one of them. Kernels, copies and cr_zero are queued on the
 * stream of their handle and run there in the order of the calls; the calls may return before. Work of two streams is ordered by events
 * alone: what one stream writes and another reads, or writes again, needs one in between. The host waits for a stream by cr_device_sync, by
 * cr_download and by operations with results in host memory. On cpu all is finished when a call returns. Structs and host arrays that a call
 * points to have been read when it returns, but for the host memory of cr_upload_async and cr_download_async.
 *
 * Ownership: who opens a device closes it, who allocates memory frees it (with the same size).
 * Threads: one caller a device, all streams together, except cr_download: any thread. Errors: CR_EIO when memory runs out, CR_EABSENT for an unknown device.
 */
#ifndef CR_MEMORY_H
#define CR_MEMORY_H

#include "base/base.h"

typedef enum cr_dtype { CR_F32, CR_BF16, CR_F16, CR_F64 } cr_dtype;
size_t cr_dtype_bytes(cr_dtype dtype);
const char *cr_dtype_name(cr_dtype dtype); /* "fp32", "bf16", "fp16", "fp64" */

/* ---- devices ---- */

typedef struct cr_device cr_device;

/* name: "cpu", "meta", "cuda", "far" (far.c: for tests of the border between host and device). num_threads >= 1: threads that one kernel may use (results do not change).
 * The device is owned by the caller. CR_EABSENT: unknown or not built in. */
CR_MUST cr_status cr_device_open(const char *name, int num_threads, cr_device **out, cr_err *err);
/* number: which GPU of this host, round robin; -1, as cr_device_open has it: that of the rank on its host. Others have one. */
CR_MUST cr_status cr_device_open_number(const char *name, int number, int num_threads,
                                        cr_device **out, cr_err *err);
void cr_device_close(cr_device *dev); /* accepts NULL */
/* name, or what CROLL_DEVICE names in its place, for tests. Default: of "cpu". */
const char *cr_device_or(const char *name);
const char *cr_device_default(void);
bool cr_device_name_is_gpu(const char *name); /* as cr_device_is_gpu, before it is open */
const char *cr_device_name(const cr_device *dev);
const char *cr_device_variant(const cr_device *dev); /* "avx512bf16", ..; "": only one */
int cr_device_host_threads(const cr_device *dev); /* for work beside it: num_threads of its open */
bool cr_device_is_meta(const cr_device *dev);
bool cr_device_is_gpu(const cr_device *dev);
bool cr_device_has_own_memory(const cr_device *dev); /* a tensor takes no memory of the host */
/* Frees the memory that kernels keep to work in (not counted in the stats), until one needs it. Only while none runs. */
void cr_device_drop_scratch(cr_device *dev);

/* Of all streams together. */
typedef struct cr_device_stats {
    size_t bytes_now, bytes_peak, host_bytes_now; /* cr_host_alloc */
    int64_t num_graph_launches;                   /* graphs that were queued instead of a call */
    /* multiply-add = 2, attention in both; moved_bytes: of operations that are no products and no attention */
    double flops, attention_flops, moved_bytes;
    int64_t max_elems; /* of one array of an operation, by its sizes: its largest index + 1 */
    const char *max_elems_in; /* that operation; NULL: none */
} cr_device_stats;
cr_device_stats cr_device_get_stats(const cr_device *dev);

/* Of a GPU its own memory, of other devices what the machine, or its cgroup, has for this process. */
typedef struct cr_device_memory {
    int64_t all_bytes, free_bytes;
    int num_gpus; /* that this process sees, and a number of cr_device_open_number chooses from, round robin; 0: the memory is the host's */
} cr_device_memory;
CR_MUST cr_status cr_device_get_memory(const cr_device *dev, cr_device_memory *out, cr_err *err);

/* ---- streams and events ---- */

typedef enum cr_stream {
    CR_STREAM_COMPUTE, /* of the handle that cr_device_open gives */
    CR_STREAM_GATHER,
    CR_STREAM_REDUCE,
    CR_STREAM_COPY,
    CR_STREAM_UPLOAD,
    CR_NUM_STREAMS
} cr_stream;

/* The handle of another stream of the same device: same memory, same stats. Owned by the device. */
cr_device *cr_device_stream(cr_device *dev, cr_stream stream);
/* The host waits until the handle's stream has run all that is queued. */
CR_MUST cr_status cr_device_sync(cr_device *dev, cr_err *err);

/* A place in a stream: after all that had been queued there when it was recorded; recorded again, it is another one. */
typedef struct cr_event cr_event;
CR_MUST cr_status cr_event_create(cr_device *dev, cr_event **out, cr_err *err);
void cr_event_destroy(cr_event *event); /* accepts NULL; waits that are queued stay */
CR_MUST cr_status cr_event_record(cr_event *event, cr_device *dev, cr_err *err);
/* Without a wait: the event is over, and what came before it too. An event that was not recorded is over. */
CR_MUST cr_status cr_event_is_over(const cr_event *event, bool *out, cr_err *err);
/* What is queued on dev's stream from now on runs after the event. The host does not wait. An event that was not recorded is over. */
CR_MUST cr_status cr_event_wait(const cr_event *event, cr_device *dev, cr_err *err);
/* What is queued on dev's stream from now on runs after all that is queued on other's now. */
CR_MUST cr_status cr_stream_join(cr_device *dev, cr_device *other, cr_err *err);

/* ---- memory ---- */

typedef struct cr_mem cr_mem; /* never defined */

/* 64-byte aligned, NOT zeroed. On meta: an address that must not be used. */
CR_MUST cr_status cr_device_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
/* Accepts NULL; after all streams. */
void cr_device_free(cr_device *dev, cr_mem *mem, size_t num_bytes);
/* Host memory, as memory of a `cpu` device, which may compute on it (meta of meta); asynchronous copies of dev use it (of a GPU: pinned). NOT zeroed. */
CR_MUST cr_status cr_host_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
void cr_host_free(cr_device *dev, cr_mem *mem, size_t num_bytes); /* as cr_device_free */

/* num_bytes after mem. */
static inline cr_mem *cr_mem_add(cr_mem *mem, size_t num_bytes)
{
    return (cr_mem *)(void *)((char *)mem + num_bytes);
}
static inline const cr_mem *cr_mem_add_const(const cr_mem *mem, size_t num_bytes)
{
    return (const cr_mem *)(const void *)((const char *)mem + num_bytes);
}
static inline cr_mem *cr_at(cr_dtype dtype, cr_mem *mem, int64_t elem)
{
    return cr_mem_add(mem, (size_t)elem * cr_dtype_bytes(dtype));
}
static inline const cr_mem *cr_at_const(cr_dtype dtype, const cr_mem *mem, int64_t elem)
{
    return cr_mem_add_const(mem, (size_t)elem * cr_dtype_bytes(dtype));
}

CR_MUST cr_status cr_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                            cr_err *err);
/* On meta dst is zeroed. */
CR_MUST cr_status cr_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                              cr_err *err);
CR_MUST cr_status cr_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                          cr_err *err);
/* The same with host memory of cr_host_alloc, run in the order of dev's stream: until the host has waited for it, it does not write what is read, nor touch what is written. */
CR_MUST cr_status cr_upload_async(cr_device *dev, cr_mem *dst, const cr_mem *host, size_t num_bytes,
                                  cr_err *err);
CR_MUST cr_status cr_download_async(cr_device *dev, cr_mem *host, const cr_mem *src,
                                    size_t num_bytes, cr_err *err);
/* Between two devices, one of which is a cpu and its memory of the other's cr_host_alloc, or which are the same. A copy to or from the cpu has run when it returns. */
CR_MUST cr_status cr_move(cr_device *to, cr_mem *dst, cr_device *from, const cr_mem *src,
                          size_t num_bytes, cr_err *err);
CR_MUST cr_status cr_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err);
/* Host to host: what cr_cast (kernels.h) does on a device. */
void cr_cast_host(cr_dtype to, void *dst, cr_dtype from, const void *src, size_t num);

/* Buffers of a communicator that moves data on the host, as memory of dev: *out is where kernels find them, until unshare, which comes before
 * the host unmaps them. host: shared pages, at any offset. CR_EABSENT: dev cannot. */
CR_MUST cr_status cr_device_share(cr_device *dev, void *host, size_t num_bytes, cr_mem **out,
                                  cr_err *err);
void cr_device_unshare(cr_device *dev, cr_mem *mem, size_t num_bytes);
/* Where the host reads and writes memory of a device that computes on host memory, after all streams: for those communicators, and for tests. */
void *cr_host_view(const cr_mem *mem);
/* The same address, without a wait: for communicators that wait for the stream they work on; cr_host_wrote: what they wrote is its work. */
void *cr_host_address(const cr_mem *mem);
CR_MUST cr_status cr_host_wrote(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err);

/* Host memory as device memory and back: the same address. Inside kernels/, in tests, and for groups without a device. */
static inline cr_mem *cr_mem_of_host(void *host)
{
    return (cr_mem *)host;
}
static inline void *cr_mem_to_host(const cr_mem *mem)
{
    return (void *)(uintptr_t)mem;
}

/* ---- graphs ---- */

/* What one function queues on one device, kept to be queued again at once, without calling it (a CUDA graph). Good while the same key says
 * that it would queue the same operations with the same arguments, and no memory of the device was freed. */
typedef struct cr_graph cr_graph;
typedef cr_status (*cr_work)(void *ctx, cr_err *err);
/* false: cr_graph_run is a call of work. */
bool cr_device_has_graphs(const cr_device *dev);
/* Queue on dev's stream what work(ctx) queues. With a new key, or after memory was freed, work is called; the next time, too, and captured; from then
 * on the graph is queued, and not counted in the stats. While it is captured work uses no other stream, and waits, allocation and copies that are
 * not asynchronous are refused (CR_EARG). No memory for a graph: a warning, and work is called. *graph: NULL at first. */
CR_MUST cr_status cr_graph_run(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work,
                               void *ctx, cr_err *err);
void cr_graph_destroy(cr_device *dev, cr_graph *graph); /* accepts NULL */

/* ---- stacks ---- */

/* Stack memory for work of one stream: allocations are released together by going back to a mark. One block reserved on first use and grown
 * only while the stack is empty; peak is exact. */
typedef struct cr_stack cr_stack;
cr_stack *cr_stack_create(cr_device *dev);
void cr_stack_destroy(cr_stack *stack); /* accepts NULL */
CR_MUST cr_status cr_stack_push(cr_stack *stack, size_t num_bytes, cr_mem **out, cr_err *err);
/* Push and upload. */
CR_MUST cr_status cr_stack_push_copy(cr_stack *stack, const void *src, size_t num_bytes,
                                     cr_mem **out, cr_err *err);
size_t cr_stack_mark(const cr_stack *stack);
void cr_stack_release(cr_stack *stack, size_t mark);
size_t cr_stack_peak_bytes(const cr_stack *stack);
size_t cr_stack_reserved_bytes(const cr_stack *stack); /* what it holds of the device now */
size_t cr_stack_take_high(cr_stack *stack); /* largest size since the last call of this */

#endif
