/* kernels_impl.h -- the table a device fills in; included only inside kernels/.
 *
 * kernels.c has checked shapes and dtypes before an entry is called. No entry is NULL. Everything is
 * queued in order; the cpu device has finished when the call returns.
 */
#ifndef CR_KERNELS_IMPL_H
#define CR_KERNELS_IMPL_H

#include "kernels/attention.h"
#include "kernels/experts.h"
#include "kernels/kernels.h"
#include "kernels/vision.h"

typedef struct cr_kernels {
    const char *name;
    cr_status (*alloc)(cr_device *dev, size_t num_bytes, cr_mem **out, cr_err *err);
    void (*release)(cr_device *dev, cr_mem *ptr, size_t num_bytes);
    void (*close)(cr_device *dev);
    cr_status (*upload)(cr_device *dev, cr_mem *dst, const void *src, size_t num_bytes,
                        cr_err *err);
    cr_status (*download)(cr_device *dev, void *dst, const cr_mem *src, size_t num_bytes,
                          cr_err *err);
    cr_status (*sync)(cr_device *dev, cr_err *err);
    void (*drop_scratch)(cr_device *dev);
    /* lane: a device of one thread on the same memory, whose table and variant are set (lanes.h) */
    void (*open_lane)(const cr_device *dev, cr_device *lane);
    cr_status (*zero)(cr_device *dev, cr_mem *dst, size_t num_bytes, cr_err *err);
    cr_status (*copy)(cr_device *dev, cr_mem *dst, const cr_mem *src, size_t num_bytes,
                      cr_err *err);
    cr_status (*cast)(cr_device *dev, cr_dtype to, cr_mem *dst, cr_dtype from, const cr_mem *src,
                      size_t num, cr_err *err);
    cr_status (*scale)(cr_device *dev, cr_mem *x, float factor, size_t num, cr_err *err);
    cr_status (*square_sum)(cr_device *dev, const cr_mem *x, size_t num, double *out, cr_err *err);
    cr_status (*checksum)(cr_device *dev, const cr_mem *data, size_t num_bytes, uint64_t start,
                          uint64_t *out, cr_err *err);
    cr_status (*adamw)(cr_device *dev, const cr_adamw_args *a, cr_err *err);
    size_t (*packed_bytes)(const cr_device *dev, const cr_weight *w);
    cr_status (*pack)(cr_device *dev, const cr_weight *w, cr_mem *packed, cr_err *err);
    cr_status (*linear)(cr_device *dev, const cr_linear_args *a, cr_err *err);
    cr_status (*linear_grad)(cr_device *dev, const cr_linear_grad_args *a, cr_err *err);
    cr_status (*rmsnorm)(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err);
    cr_status (*rmsnorm_grad)(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err);
    cr_status (*rope)(cr_device *dev, const cr_rope_args *a, cr_err *err);
    cr_status (*swiglu)(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up,
                        cr_mem *h, size_t num, cr_err *err);
    cr_status (*swiglu_grad)(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up,
                             const cr_mem *dh, cr_mem *dgate, cr_mem *dup, size_t num, cr_err *err);
    cr_status (*embedding)(cr_device *dev, const cr_weight *w, const int32_t *ids,
                           int64_t num_tokens, cr_mem *y, cr_err *err);
    cr_status (*embedding_grad)(cr_device *dev, cr_dtype dtype, const cr_mem *dy,
                                const int32_t *ids, int64_t num_tokens, int64_t num_cols,
                                cr_mem *dw, cr_err *err);
    cr_status (*rows_gather)(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                             int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err);
    cr_status (*rows_scatter)(cr_device *dev, cr_dtype dtype, const cr_mem *src,
                              const cr_mem *index, int64_t num_rows, int64_t num_cols, cr_mem *dst,
                              cr_err *err);
    cr_status (*router)(cr_device *dev, const cr_router_args *a, cr_err *err);
    cr_status (*router_grad)(cr_device *dev, const cr_router_grad_args *a, cr_err *err);
    cr_status (*expert_sort)(cr_device *dev, const cr_expert_sort_args *a, cr_err *err);
    cr_status (*rows_combine)(cr_device *dev, const cr_rows_combine_args *a, cr_err *err);
    cr_status (*rows_scale)(cr_device *dev, cr_dtype dtype, const cr_mem *x, const cr_mem *factor,
                            int64_t num_rows, int64_t num_cols, cr_mem *y, cr_err *err);
    cr_status (*rows_dot)(cr_device *dev, cr_dtype dtype, const cr_mem *a, const cr_mem *b,
                          int64_t num_rows, int64_t num_cols, cr_mem *out, cr_err *err);
    cr_status (*rows_add)(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                          int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err);
    cr_status (*layernorm)(cr_device *dev, const cr_layernorm_args *a, cr_err *err);
    cr_status (*layernorm_grad)(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err);
    cr_status (*gelu)(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x, cr_mem *y,
                      size_t num, cr_err *err);
    cr_status (*gelu_grad)(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x,
                           const cr_mem *dy, cr_mem *dx, size_t num, cr_err *err);
    cr_status (*embedding_bag_grad)(cr_device *dev, const cr_embedding_bag_grad_args *a,
                                    cr_err *err);
    cr_status (*attention)(cr_device *dev, const cr_attention_args *a, cr_err *err);
    cr_status (*attention_grad)(cr_device *dev, const cr_attention_grad_args *a, cr_err *err);
    size_t (*kv_block_bytes)(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                             int64_t head_dim);
    cr_status (*attention_cached)(cr_device *dev, const cr_attention_cached_args *a, cr_err *err);
    cr_status (*head)(cr_device *dev, const cr_head_args *a, cr_err *err);
    cr_status (*head_grad)(cr_device *dev, const cr_head_grad_args *a, cr_err *err);
    cr_status (*logits)(cr_device *dev, const cr_mem *x, const cr_weight *w, int64_t num_rows,
                        cr_mem *logits, cr_err *err);
    cr_status (*logits_sample)(cr_device *dev, const cr_mem *logits, int64_t vocab_size,
                               float temperature, float u, int32_t *id, cr_err *err);
    cr_status (*logits_log_prob)(cr_device *dev, const cr_mem *logits, int64_t num_rows,
                                 int64_t vocab_size, const int32_t *labels,
                                 const cr_row_edits *edits, float *log_prob, float *entropy,
                                 cr_err *err);
} cr_kernels;

struct cr_device {
    const cr_kernels *kernels;
    const char *variant; /* instruction set of the kernels, NULL: no matter */
    int num_threads;
    cr_device_stats stats;
    void *impl; /* of the device: scratch, tables, streams */
};

cr_status cri_cpu_open(cr_device *dev, cr_err *err);
cr_status cri_meta_open(cr_device *dev, cr_err *err);
cr_status cri_cuda_open(cr_device *dev, cr_err *err); /* kernels/cuda/ or kernels/cuda_absent.c */

#endif
