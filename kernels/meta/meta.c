/* meta.c -- the device that touches nothing: addresses that must not be read, and counting (which
 * kernels.c does). The same code runs on it as a plan. Results that a host would read (log-probs,
 * norms) are zero. */
#include "kernels/kernels_impl.h"

#include <string.h>

enum { PAGE = 4096 };

/* Addresses are never mapped: the low part of the address space up to num_bytes past it. */
static cr_status meta_alloc(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err)
{
    (void)err;
    (void)num_bytes;
    *out = (cr_mem *)(uintptr_t)(PAGE + 64 * (dev->stats.bytes_now / 64 % 32));
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

static cr_status meta_download(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                               cr_err *err)
{
    (void)dev;
    (void)src;
    (void)err;
    memset(dst, 0, num_bytes);
    return CR_OK;
}

static void meta_open_lane(const cr_device *dev, cr_device *lane)
{
    (void)dev;
    (void)lane;
}

/* An entry that does nothing: NAME(parameters), with the parameters marked as unused. */
#define NOTHING(name, params, unused) \
    static cr_status name params      \
    {                                 \
        unused;                       \
        return CR_OK;                 \
    }

NOTHING(meta_zero, (cr_device * dev, cr_mem *dst, size_t n, cr_err *err), (void)dev; (void)dst;
        (void)n; (void)err)
NOTHING(meta_upload, (cr_device * dev, cr_mem *dst, const void *src, size_t n, cr_err *err),
        (void)dev;
        (void)dst; (void)src; (void)n; (void)err)
NOTHING(meta_sync, (cr_device * dev, cr_err *err), (void)dev; (void)err)
NOTHING(meta_copy, (cr_device * dev, cr_mem *dst, const cr_mem *src, size_t n, cr_err *err),
        (void)dev;
        (void)dst; (void)src; (void)n; (void)err)
NOTHING(meta_checksum,
        (cr_device * dev, const cr_mem *x, size_t n, uint64_t start, uint64_t *out, cr_err *err),
        (void)dev;
        (void)x; (void)n; *out = start; (void)err)
NOTHING(meta_cast,
        (cr_device * dev, cr_dtype to, cr_mem *dst, cr_dtype from, const cr_mem *src, size_t n,
         cr_err *err),
        (void)dev;
        (void)to; (void)dst; (void)from; (void)src; (void)n; (void)err)
NOTHING(meta_scale, (cr_device * dev, cr_mem *x, float f, size_t n, cr_err *err), (void)dev;
        (void)x; (void)f; (void)n; (void)err)
NOTHING(meta_square_sum, (cr_device * dev, const cr_mem *x, size_t n, double *out, cr_err *err),
        (void)dev;
        (void)x; (void)n; *out = 0; (void)err)
NOTHING(meta_adamw, (cr_device * dev, const cr_adamw_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)
NOTHING(meta_pack, (cr_device * dev, const cr_weight *w, cr_mem *p, cr_err *err), (void)dev;
        (void)w; (void)p; (void)err)
NOTHING(meta_linear, (cr_device * dev, const cr_linear_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)
NOTHING(meta_linear_grad, (cr_device * dev, const cr_linear_grad_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_rmsnorm, (cr_device * dev, const cr_rmsnorm_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)
NOTHING(meta_rmsnorm_grad, (cr_device * dev, const cr_rmsnorm_grad_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_rope, (cr_device * dev, const cr_rope_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)
NOTHING(meta_swiglu,
        (cr_device * dev, cr_dtype t, const cr_mem *g, const cr_mem *u, cr_mem *h, size_t n,
         cr_err *err),
        (void)dev;
        (void)t; (void)g; (void)u; (void)h; (void)n; (void)err)
NOTHING(meta_swiglu_grad,
        (cr_device * dev, cr_dtype t, const cr_mem *g, const cr_mem *u, const cr_mem *dh,
         cr_mem *dg, cr_mem *du, size_t n, cr_err *err),
        (void)dev;
        (void)t; (void)g; (void)u; (void)dh; (void)dg; (void)du; (void)n; (void)err)
NOTHING(meta_embedding,
        (cr_device * dev, const cr_weight *w, const int32_t *ids, int64_t n, cr_mem *y,
         cr_err *err),
        (void)dev;
        (void)w; (void)ids; (void)n; (void)y; (void)err)
NOTHING(meta_embedding_grad,
        (cr_device * dev, cr_dtype t, const cr_mem *dy, const int32_t *ids, int64_t n, int64_t c,
         cr_mem *dw, cr_err *err),
        (void)dev;
        (void)t; (void)dy; (void)ids; (void)n; (void)c; (void)dw; (void)err)
NOTHING(meta_rows,
        (cr_device * dev, cr_dtype t, const cr_mem *src, const cr_mem *i, int64_t n, int64_t c,
         cr_mem *dst, cr_err *err),
        (void)dev;
        (void)t; (void)src; (void)i; (void)n; (void)c; (void)dst; (void)err)
NOTHING(meta_layernorm, (cr_device * dev, const cr_layernorm_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_layernorm_grad, (cr_device * dev, const cr_layernorm_grad_args *a, cr_err *err),
        (void)dev;
        (void)a; (void)err)
NOTHING(meta_gelu,
        (cr_device * dev, cr_gelu_kind k, cr_dtype t, const cr_mem *x, cr_mem *y, size_t n,
         cr_err *err),
        (void)dev;
        (void)k; (void)t; (void)x; (void)y; (void)n; (void)err)
NOTHING(meta_gelu_grad,
        (cr_device * dev, cr_gelu_kind k, cr_dtype t, const cr_mem *x, const cr_mem *dy, cr_mem *dx,
         size_t n, cr_err *err),
        (void)dev;
        (void)k; (void)t; (void)x; (void)dy; (void)dx; (void)n; (void)err)
NOTHING(meta_embedding_bag_grad,
        (cr_device * dev, const cr_embedding_bag_grad_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_attention, (cr_device * dev, const cr_attention_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_attention_grad, (cr_device * dev, const cr_attention_grad_args *a, cr_err *err),
        (void)dev;
        (void)a; (void)err)
NOTHING(meta_attention_cached, (cr_device * dev, const cr_attention_cached_args *a, cr_err *err),
        (void)dev;
        (void)a; (void)err)
NOTHING(meta_head_grad, (cr_device * dev, const cr_head_grad_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_logits,
        (cr_device * dev, const cr_mem *x, const cr_weight *w, int64_t n, cr_mem *z, cr_err *err),
        (void)dev;
        (void)x; (void)w; (void)n; (void)z; (void)err)

NOTHING(meta_router, (cr_device * dev, const cr_router_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)
NOTHING(meta_router_grad, (cr_device * dev, const cr_router_grad_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_rows_combine, (cr_device * dev, const cr_rows_combine_args *a, cr_err *err), (void)dev;
        (void)a; (void)err)
NOTHING(meta_rows_scale,
        (cr_device * dev, cr_dtype t, const cr_mem *x, const cr_mem *f, int64_t n, int64_t c,
         cr_mem *y, cr_err *err),
        (void)dev;
        (void)t; (void)x; (void)f; (void)n; (void)c; (void)y; (void)err)
NOTHING(meta_rows_dot,
        (cr_device * dev, cr_dtype t, const cr_mem *a, const cr_mem *b, int64_t n, int64_t c,
         cr_mem *out, cr_err *err),
        (void)dev;
        (void)t; (void)a; (void)b; (void)n; (void)c; (void)out; (void)err)

/* Evenly, the first experts get the rest. */
static cr_status meta_expert_sort(cr_device *dev, const cr_expert_sort_args *a, cr_err *err)
{
    int64_t n = a->num_rows * a->top_k;

    (void)dev;
    (void)err;
    for (int64_t e = 0; e < a->num_experts; e++)
        a->count[e] = n / a->num_experts + (e < n % a->num_experts);
    return CR_OK;
}

static cr_status meta_logits_sample(cr_device *dev, const cr_mem *z, int64_t v, float t, float u,
                                    int32_t *id, cr_err *err)
{
    (void)dev;
    (void)z;
    (void)v;
    (void)t;
    (void)u;
    (void)err;
    *id = 0;
    return CR_OK;
}

NOTHING(meta_head, (cr_device * dev, const cr_head_args *a, cr_err *err), (void)dev; (void)a;
        (void)err)

static cr_status meta_logits_log_prob(cr_device *dev, const cr_mem *z, int64_t n, int64_t v,
                                      const int32_t *labels, const cr_row_edits *edits,
                                      float *log_prob, float *entropy, cr_err *err)
{
    size_t bytes = (size_t)n * sizeof(float);

    (void)dev;
    (void)z;
    (void)v;
    (void)labels;
    (void)edits;
    (void)err;
    if (log_prob) memset(log_prob, 0, bytes);
    if (entropy) memset(entropy, 0, bytes);
    return CR_OK;
}

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
    static const cr_kernels meta_kernels = {
        .name = "meta",
        .alloc = meta_alloc,
        .release = meta_release,
        .close = meta_close,
        .upload = meta_upload,
        .download = meta_download,
        .sync = meta_sync,
        .drop_scratch = meta_close,
        .open_lane = meta_open_lane,
        .zero = meta_zero,
        .copy = meta_copy,
        .checksum = meta_checksum,
        .cast = meta_cast,
        .scale = meta_scale,
        .square_sum = meta_square_sum,
        .adamw = meta_adamw,
        .packed_bytes = meta_packed_bytes,
        .pack = meta_pack,
        .linear = meta_linear,
        .linear_grad = meta_linear_grad,
        .rmsnorm = meta_rmsnorm,
        .rmsnorm_grad = meta_rmsnorm_grad,
        .rope = meta_rope,
        .swiglu = meta_swiglu,
        .swiglu_grad = meta_swiglu_grad,
        .embedding = meta_embedding,
        .embedding_grad = meta_embedding_grad,
        .rows_gather = meta_rows,
        .rows_scatter = meta_rows,
        .rows_add = meta_rows,
        .layernorm = meta_layernorm,
        .layernorm_grad = meta_layernorm_grad,
        .gelu = meta_gelu,
        .gelu_grad = meta_gelu_grad,
        .embedding_bag_grad = meta_embedding_bag_grad,
        .router = meta_router,
        .router_grad = meta_router_grad,
        .expert_sort = meta_expert_sort,
        .rows_combine = meta_rows_combine,
        .rows_scale = meta_rows_scale,
        .rows_dot = meta_rows_dot,
        .attention = meta_attention,
        .attention_grad = meta_attention_grad,
        .kv_block_bytes = meta_kv_block_bytes,
        .attention_cached = meta_attention_cached,
        .head = meta_head,
        .head_grad = meta_head_grad,
        .logits = meta_logits,
        .logits_sample = meta_logits_sample,
        .logits_log_prob = meta_logits_log_prob,
    };

    (void)err;
    dev->kernels = &meta_kernels;
    return CR_OK;
}
