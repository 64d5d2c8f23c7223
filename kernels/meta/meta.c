/* meta.c -- the device that touches nothing: addresses that must not be read, and counting (which
 * kernels.c does). The same code runs on it as a plan. Results in host memory (norms, drawn ids) are
 * zero, and experts get equal numbers of tokens. */
#include "kernels/kernels_impl.h"

#include <string.h>

enum { PAGE = 4096 };

/* Addresses are never mapped: the low part of the address space up to num_bytes past it. */
static cr_status meta_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    (void)err;
    (void)num_bytes;
    *out = (cr_mem *)(uintptr_t)(PAGE + 64 * (dev->streams[0]->stats.bytes_now / 64 % 32));
    return CR_OK;
}

static void meta_release(cr_device *dev, cr_mem *ptr, size_t num_bytes)
{
    (void)dev;
    (void)ptr;
    (void)num_bytes;
}

static void meta_close(cr_device *dev)
{
    (void)dev;
}

static cr_status meta_upload(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                             cr_err *err)
{
    (void)dev;
    (void)dst;
    (void)src;
    (void)num_bytes;
    (void)err;
    return CR_OK;
}

static cr_status meta_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                               cr_err *err)
{
    (void)dev;
    (void)src;
    (void)err;
    memset(dst, 0, num_bytes);
    return CR_OK;
}

static cr_status meta_zero(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err)
{
    return meta_upload(dev, dst, NULL, num_bytes, err);
}

static cr_status meta_copy(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                           cr_err *err)
{
    return meta_upload(dev, dst, src, num_bytes, err);
}

/* Memory of cr_host_alloc has no address either. */
static cr_status meta_download_async(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                                     cr_err *err)
{
    (void)src;
    return meta_upload(dev, NULL, dst, num_bytes, err);
}

static void meta_open_lane(const cr_device *dev, cr_device *lane)
{
    (void)dev;
    (void)lane;
}

/* ---- results in host memory ---- */

static void results_of_square_sum(const cr_square_sum_args *a)
{
    *a->out = 0;
}

static void results_of_checksum(const cr_checksum_args *a)
{
    *a->out = a->start;
}

static void results_of_draw(const cr_draw_args *a)
{
    for (int64_t r = 0; r < a->num_rows; r++)
        a->out[r] = (cr_drawn){.kept = a->out[r].kept,
                               .top_ids = a->out[r].top_ids,
                               .top_log_probs = a->out[r].top_log_probs};
}

static void results_of_logits_log_prob(const cr_logits_log_prob_args *a)
{
    size_t bytes = (size_t)a->num_rows * sizeof(float);

    if (a->log_prob) memset(a->log_prob, 0, bytes);
    if (a->entropy) memset(a->entropy, 0, bytes);
}

static void results_of_router(const cr_router_args *a)
{
    (void)a; /* nothing is added to prob_sum */
}

/* Evenly, the first experts get the rest. */
static void results_of_expert_sort(const cr_expert_sort_args *a)
{
    int64_t n = a->num_rows * a->top_k;

    for (int64_t e = 0; e < a->num_experts; e++)
        a->count[e] = n / a->num_experts + (e < n % a->num_experts);
}

/* ---- operations ---- */

#define OP_TO_HOST(name, args)                                               \
    static cr_status meta_##name(cr_device *dev, const args *a, cr_err *err) \
    {                                                                        \
        (void)dev;                                                           \
        (void)err;                                                           \
        results_of_##name(a);                                                \
        return CR_OK;                                                        \
    }
#define OP(name, args)                                                       \
    static cr_status meta_##name(cr_device *dev, const args *a, cr_err *err) \
    {                                                                        \
        (void)dev;                                                           \
        (void)a;                                                             \
        (void)err;                                                           \
        return CR_OK;                                                        \
    }
CR_OPS(OP, OP_TO_HOST)

static size_t meta_packed_bytes(const cr_device *dev, const cr_weight *w)
{
    (void)dev;
    return (size_t)((w->num_rows + 31) / 32 * 32 * w->num_cols) * cr_dtype_bytes(w->dtype);
}

static size_t meta_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                                  int64_t head_dim)
{
    (void)dev;
    return (size_t)(2 * CR_KV_BLOCK * num_kv_heads * head_dim) * cr_dtype_bytes(dtype);
}

cr_status cri_meta_open(cr_device *dev, cr_err *err)
{
#define ENTRY(name, args) .name = meta_##name,
    static const cr_kernels meta_kernels = {.name = "meta",
                                            .close = meta_close,
                                            .drop_scratch = meta_close,
                                            .open_lane = meta_open_lane,
                                            .alloc = meta_alloc,
                                            .release = meta_release,
                                            .upload = meta_upload,
                                            .download = meta_download,
                                            .zero = meta_zero,
                                            .copy = meta_copy,
                                            .host_alloc = meta_alloc,
                                            .host_release = meta_release,
                                            .upload_async = meta_upload,
                                            .download_async = meta_download_async,
                                            .host_wrote = cri_wrote_now,
                                            .sync = cri_nothing_to_wait,
                                            .record = cri_event_over,
                                            .wait = cri_event_over,
                                            .is_over = cri_is_over_now,
                                            .graph_run = cri_call_work,
                                            .graph_destroy = cri_no_graph,
                                            .share = cri_share_as_is,
                                            .unshare = cri_forget,
                                            .spoil = cri_forget,
                                            .memory = cri_host_memory,
                                            .packed_bytes = meta_packed_bytes,
                                            .kv_block_bytes = meta_kv_block_bytes,
                                            CR_OPS(ENTRY, ENTRY)};

    (void)err;
    dev->kernels = &meta_kernels;
    return CR_OK;
}
