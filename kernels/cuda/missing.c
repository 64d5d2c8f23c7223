/* missing.c -- the operations that the cuda device has no kernel for yet: each refuses by name, and nothing else is done
 * instead. A line goes when its kernel comes. */
#include "kernels/cuda/entries.h"

/* clang-format off */
#define MISSING(OP)                                            \
    OP(cast, cr_cast_args)                                     \
    OP(scale, cr_scale_args)                                   \
    OP(square_sum, cr_square_sum_args)                         \
    OP(checksum, cr_checksum_args)                             \
    OP(adamw, cr_adamw_args)                                   \
    OP(weight_pack, cr_weight_pack_args)                       \
    OP(linear, cr_linear_args)                                 \
    OP(linear_grad, cr_linear_grad_args)                       \
    OP(rmsnorm, cr_rmsnorm_args)                               \
    OP(rmsnorm_grad, cr_rmsnorm_grad_args)                     \
    OP(rope, cr_rope_args)                                     \
    OP(swiglu, cr_swiglu_args)                                 \
    OP(swiglu_grad, cr_swiglu_grad_args)                       \
    OP(embedding, cr_embedding_args)                           \
    OP(embedding_grad, cr_embedding_grad_args)                 \
    OP(rows_gather, cr_rows_move_args)                         \
    OP(rows_scatter, cr_rows_move_args)                        \
    OP(rows_add, cr_rows_move_args)                            \
    OP(attention, cr_attention_args)                           \
    OP(attention_grad, cr_attention_grad_args)                 \
    OP(attention_cached, cr_attention_cached_args)             \
    OP(head, cr_head_args)                                     \
    OP(head_grad, cr_head_grad_args)                           \
    OP(logits, cr_logits_args)                                 \
    OP(draw, cr_draw_args)                                     \
    OP(logits_log_prob, cr_logits_log_prob_args)               \
    OP(router, cr_router_args)                                 \
    OP(router_grad, cr_router_grad_args)                       \
    OP(expert_sort, cr_expert_sort_args)                       \
    OP(rows_combine, cr_rows_combine_args)                     \
    OP(rows_scale, cr_rows_scale_args)                         \
    OP(rows_dot, cr_rows_dot_args)                             \
    OP(layernorm, cr_layernorm_args)                           \
    OP(layernorm_grad, cr_layernorm_grad_args)                 \
    OP(gelu, cr_gelu_args)                                     \
    OP(gelu_grad, cr_gelu_grad_args)                           \
    OP(geglu, cr_geglu_args)                                   \
    OP(geglu_grad, cr_geglu_grad_args)                         \
    OP(embedding_bag_grad, cr_embedding_bag_grad_args)
/* clang-format on */

#define REFUSE(name, args)                                                                       \
    cr_status cri_cuda_##name(cr_device *dev, const args *a, cr_err *err)                        \
    {                                                                                            \
        (void)dev;                                                                               \
        (void)a;                                                                                 \
        return cr_fail(err, CR_EABSENT, "device cuda has no kernel for " #name " yet: use cpu"); \
    }
MISSING(REFUSE)

/* ---- layouts ---- */

size_t cri_cuda_packed_bytes(const cr_device *dev, const cr_weight *w)
{
    (void)dev;
    return (size_t)(w->num_rows * w->num_cols) * cr_dtype_bytes(w->dtype);
}

size_t cri_cuda_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                               int64_t head_dim)
{
    (void)dev;
    return (size_t)(2 * CR_KV_BLOCK * num_kv_heads * head_dim) * cr_dtype_bytes(dtype);
}
