/* kernels_impl.h -- the table a device fills in; included only inside kernels/.
 *
 * memory.c and kernels.c have checked the arguments before an entry is called. No entry is NULL.
 * Everything is queued on the stream of `dev`; the cpu device has finished when the call returns. A device that works
 * through another one makes all its entries from CR_OPS, each a call of the other's.
 */
#ifndef CR_KERNELS_IMPL_H
#define CR_KERNELS_IMPL_H

#include "kernels/adapters.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/experts.h"
#include "kernels/kernels.h"
#include "kernels/vision.h"

/* share, unshare and spoil of a device whose kernels may use any address of the host. */
cr_status cri_share_as_is(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err);
void cri_forget(cr_device *dev, cr_mem *mem, size_t num_bytes);

/* memory of a device that computes in the host's */
cr_status cri_host_memory(const cr_device *dev, cr_device_memory *out, cr_err *err);

/* graph_run and graph_destroy of a device without graphs */
cr_status cri_call_work(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work, void *ctx,
                        cr_err *err);
void cri_no_graph(cr_device *dev, cr_graph *graph);

/* Where a stream had come: `position` is the device's. */
struct cr_event {
    cr_device *dev; /* the stream where it was recorded, or NULL */
    uint64_t position;
};
/* sync, record and wait, is_over, host_wrote of a device that has finished when a call returns */
cr_status cri_nothing_to_wait(cr_device *dev, cr_err *err);
cr_status cri_event_over(cr_device *dev, cr_event *event, cr_err *err);
cr_status cri_is_over_now(cr_device *dev, const cr_event *event, bool *out, cr_err *err);
cr_status cri_wrote_now(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err);

/* What one expert has of a product of experts, whose rows begin at `row`: for a device that makes them one after the other. */
static inline cr_linear_args cri_linear_of_expert(const cr_expert_linear_args *a, int64_t e,
                                                  int64_t row)
{
    const cr_weight *w = a->w[e];
    cr_linear_args one;

    one.x = cr_at_const(w->dtype, a->x, row * w->num_cols);
    one.w = w;
    one.bias = one.add = NULL;
    one.y = cr_at(w->dtype, a->y, row * w->num_rows);
    one.out_dtype = w->dtype;
    one.num_rows = a->rows[e];
    return one;
}
static inline cr_linear_grad_args cri_linear_grad_of_expert(const cr_expert_linear_grad_args *a,
                                                            int64_t e, int64_t row)
{
    const cr_weight *w = a->w[e];
    cr_linear_grad_args one;

    one.x = a->dw ? cr_at_const(w->dtype, a->x, row * w->num_cols) : NULL;
    one.dy = cr_at_const(w->dtype, a->dy, row * w->num_rows);
    one.w = w;
    one.dx = a->dx ? cr_at(w->dtype, a->dx, row * w->num_cols) : NULL;
    one.is_dx_added = a->is_dx_added;
    one.dw = a->dw ? a->dw[e] : NULL;
    one.dbias = NULL;
    one.num_rows = a->rows[e];
    return one;
}

typedef struct cr_kernels {
    const char *name;
    void (*close)(cr_device *dev);
    void (*drop_scratch)(cr_device *dev);
    /* lane: a device of one thread on the same memory, whose table and variant are set (lanes.h) */
    void (*open_lane)(const cr_device *dev, cr_device *lane);
    /* memory */
    cr_status (*alloc)(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
    void (*release)(cr_device *dev, cr_mem *ptr, size_t num_bytes);
    cr_status (*upload)(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                        cr_err *err);
    cr_status (*download)(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                          cr_err *err);
    cr_status (*zero)(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err);
    cr_status (*copy)(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                      cr_err *err);
    /* streams: the wait of the host, and events (wait: of the stream) */
    cr_status (*sync)(cr_device *dev, cr_err *err);
    cr_status (*record)(cr_device *dev, cr_event *event, cr_err *err);
    cr_status (*wait)(cr_device *dev, cr_event *event, cr_err *err);
    cr_status (*is_over)(cr_device *dev, const cr_event *event, bool *out, cr_err *err);
    cr_status (*graph_run)(cr_device *dev, cr_graph **graph, uint64_t key, cr_work work, void *ctx,
                           cr_err *err);
    void (*graph_destroy)(cr_device *dev, cr_graph *graph);
    /* host memory, and its copies */
    cr_status (*host_alloc)(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
    void (*host_release)(cr_device *dev, cr_mem *ptr, size_t num_bytes);
    cr_status (*upload_async)(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                              cr_err *err);
    cr_status (*download_async)(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                                cr_err *err);
    cr_status (*host_wrote)(cr_device *dev, cr_mem *mem, size_t num_bytes, cr_err *err);
    /* cr_device_share, cr_device_unshare */
    cr_status (*share)(cr_device *dev, void *host, size_t num_bytes, cr_mem **out, cr_err *err);
    void (*unshare)(cr_device *dev, cr_mem *mem, size_t num_bytes);
    /* the content of mem is undefined from now on */
    void (*spoil)(cr_device *dev, cr_mem *mem, size_t num_bytes);
    cr_status (*memory)(const cr_device *dev, cr_device_memory *out, cr_err *err);
    /* layouts of the device */
    size_t (*packed_bytes)(const cr_device *dev, const cr_weight *w);
    size_t (*kv_block_bytes)(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                             int64_t head_dim);
/* operations: cr_status (*linear)(cr_device *dev, const cr_linear_args *a, cr_err *err), .. */
#define CRI_ENTRY(name, args) cr_status (*name)(cr_device * dev, const args *a, cr_err *err);
    CR_OPS(CRI_ENTRY, CRI_ENTRY)
#undef CRI_ENTRY
} cr_kernels;

struct cr_device {
    const cr_kernels *kernels;
    const struct cri_device_kind *kind; /* its row in memory.c */
    const char *variant;                /* instruction set of the kernels, NULL: no matter */
    int num_threads, host_threads;      /* of a kernel; of work on the host beside it */
    int number;                         /* which of the host's was asked for; -1: none */
    cr_device_stats stats;              /* in the first of the streams */
    void *impl;   /* of the device: scratch, tables; the same in all streams */
    void *queues; /* of a device whose streams run later */
    int stream;   /* this handle's */
    cr_device *streams[CR_NUM_STREAMS]; /* the same in all; a lane has one */
};

cr_status cri_cpu_open(cr_device *dev, cr_err *err);
cr_status cri_far_open(cr_device *dev, cr_err *err);
void *cri_far_view(const cr_mem *mem,
                   bool should_wait); /* memory of another device: its own address */
cr_status cri_meta_open(cr_device *dev, cr_err *err);
cr_status cri_cuda_open(cr_device *dev, cr_err *err); /* kernels/cuda/ or kernels/cuda_absent.c */

#endif
