/* entries.h -- the functions of one variant, as its table names them. */
#ifndef CR_ENTRIES_H
#define CR_ENTRIES_H

#include "kernels/cpu/variant/simd_io.h"

cr_status CR_V(cast)(cr_device *dev, cr_dtype to, cr_mem *dst, cr_dtype from, const cr_mem *src,
                     size_t num, cr_err *err);
cr_status CR_V(scale)(cr_device *dev, cr_mem *x, float factor, size_t num, cr_err *err);
cr_status CR_V(square_sum)(cr_device *dev, const cr_mem *x, size_t num, double *out, cr_err *err);
cr_status CR_V(adamw)(cr_device *dev, const cr_adamw_args *a, cr_err *err);
size_t CR_V(packed_bytes)(const cr_device *dev, const cr_weight *w);
cr_status CR_V(pack)(cr_device *dev, const cr_weight *w, cr_mem *packed, cr_err *err);
cr_status CR_V(linear)(cr_device *dev, const cr_linear_args *a, cr_err *err);
cr_status CR_V(linear_grad)(cr_device *dev, const cr_linear_grad_args *a, cr_err *err);
cr_status CR_V(rmsnorm)(cr_device *dev, const cr_rmsnorm_args *a, cr_err *err);
cr_status CR_V(rmsnorm_grad)(cr_device *dev, const cr_rmsnorm_grad_args *a, cr_err *err);
cr_status CR_V(rope)(cr_device *dev, const cr_rope_args *a, cr_err *err);
cr_status CR_V(swiglu)(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up,
                       cr_mem *h, size_t num, cr_err *err);
cr_status CR_V(swiglu_grad)(cr_device *dev, cr_dtype dtype, const cr_mem *gate, const cr_mem *up,
                            const cr_mem *dh, cr_mem *dgate, cr_mem *dup, size_t num, cr_err *err);
cr_status CR_V(embedding_grad)(cr_device *dev, cr_dtype dtype, const cr_mem *dy, const int32_t *ids,
                               int64_t num_tokens, int64_t num_cols, cr_mem *dw, cr_err *err);
cr_status CR_V(attention)(cr_device *dev, const cr_attention_args *a, cr_err *err);
cr_status CR_V(attention_grad)(cr_device *dev, const cr_attention_grad_args *a, cr_err *err);
size_t CR_V(kv_block_bytes)(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                            int64_t head_dim);
cr_status CR_V(attention_cached)(cr_device *dev, const cr_attention_cached_args *a, cr_err *err);
cr_status CR_V(head)(cr_device *dev, const cr_head_args *a, cr_err *err);
cr_status CR_V(head_grad)(cr_device *dev, const cr_head_grad_args *a, cr_err *err);
cr_status CR_V(logits)(cr_device *dev, const cr_mem *x, const cr_weight *w, int64_t num_rows,
                       cr_mem *logits, cr_err *err);
cr_status CR_V(logits_sample)(cr_device *dev, const cr_mem *logits, int64_t vocab_size,
                              float temperature, float u, int32_t *id, cr_err *err);
cr_status CR_V(logits_log_prob)(cr_device *dev, const cr_mem *logits, int64_t num_rows,
                                int64_t vocab_size, const int32_t *labels,
                                const cr_row_edits *edits, float *log_prob, float *entropy,
                                cr_err *err);
cr_status CR_V(router)(cr_device *dev, const cr_router_args *a, cr_err *err);
cr_status CR_V(router_grad)(cr_device *dev, const cr_router_grad_args *a, cr_err *err);
cr_status CR_V(expert_sort)(cr_device *dev, const cr_expert_sort_args *a, cr_err *err);
cr_status CR_V(rows_combine)(cr_device *dev, const cr_rows_combine_args *a, cr_err *err);
cr_status CR_V(rows_scale)(cr_device *dev, cr_dtype dtype, const cr_mem *x, const cr_mem *factor,
                           int64_t num_rows, int64_t num_cols, cr_mem *y, cr_err *err);
cr_status CR_V(rows_dot)(cr_device *dev, cr_dtype dtype, const cr_mem *a, const cr_mem *b,
                         int64_t num_rows, int64_t num_cols, cr_mem *out, cr_err *err);
cr_status CR_V(rows_add)(cr_device *dev, cr_dtype dtype, const cr_mem *src, const cr_mem *index,
                         int64_t num_rows, int64_t num_cols, cr_mem *dst, cr_err *err);
cr_status CR_V(layernorm)(cr_device *dev, const cr_layernorm_args *a, cr_err *err);
cr_status CR_V(layernorm_grad)(cr_device *dev, const cr_layernorm_grad_args *a, cr_err *err);
cr_status CR_V(gelu)(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x, cr_mem *y,
                     size_t num, cr_err *err);
cr_status CR_V(gelu_grad)(cr_device *dev, cr_gelu_kind kind, cr_dtype dtype, const cr_mem *x,
                          const cr_mem *dy, cr_mem *dx, size_t num, cr_err *err);
cr_status CR_V(embedding_bag_grad)(cr_device *dev, const cr_embedding_bag_grad_args *a,
                                   cr_err *err);
extern const cr_kernels CR_V(cpu_kernels);

#endif
