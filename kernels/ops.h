/* ops.h -- the list of operations: one line each.
 *
 * OP(name, args) declares `cr_name(dev, a, err)`, which takes the arguments as one struct `args`. What it
 * computes is said above that struct, in the header that the list names. OP_TO_HOST is the same for
 * operations with results in host memory, which are there when the call returns; others may still
 * run then, and do nothing for no rows or elements.
 *
 * From the list follow the declarations below, the table that a device fills in (kernels_impl.h), the
 * functions that check, count and call it (kernels.c), the device `meta` except for results in host
 * memory, and the tables of the cpu's variants. docs/extending.md says how one is added.
 */
#ifndef CR_OPS_H
#define CR_OPS_H

#include "kernels/memory.h"

/* clang-format off */
#define CR_OPS(OP, OP_TO_HOST)                                 \
    /* kernels.h */                                            \
    OP(cast, cr_cast_args)                                     \
    OP(scale, cr_scale_args)                                   \
    OP(sum_parts, cr_sum_parts_args)                           \
    OP_TO_HOST(square_sum, cr_square_sum_args)                 \
    OP_TO_HOST(checksum, cr_checksum_args)                     \
    OP(adamw, cr_adamw_args)                                   \
    OP(blend, cr_blend_args)                                   \
    OP(weight_pack, cr_weight_pack_args)                       \
    OP(linear, cr_linear_args)                                 \
    OP(linear_grad, cr_linear_grad_args)                       \
    OP(rmsnorm, cr_rmsnorm_args)                               \
    OP(rmsnorm_grad, cr_rmsnorm_grad_args)                     \
    OP(swiglu, cr_swiglu_args)                                 \
    OP(swiglu_grad, cr_swiglu_grad_args)                       \
    OP(embedding, cr_embedding_args)                           \
    OP(embedding_grad, cr_embedding_grad_args)                 \
    OP(rows_gather, cr_rows_move_args)                         \
    OP(rows_scatter, cr_rows_move_args)                        \
    OP(rows_add, cr_rows_move_args)                            \
    /* heads.h */                                              \
    OP(rope, cr_rope_args)                                     \
    OP(qk_heads, cr_qk_heads_args)                             \
    /* linears.h */                                            \
    OP(linears, cr_linears_args)                               \
    /* adapters.h */                                           \
    OP(adapted_linears, cr_adapted_linears_args)               \
    OP(adapted_linears_grad, cr_adapted_linears_grad_args)     \
    /* attention.h */                                          \
    OP(attention, cr_attention_args)                           \
    OP(attention_grad, cr_attention_grad_args)                 \
    OP(attention_cached, cr_attention_cached_args)             \
    OP(head, cr_head_args)                                     \
    OP(head_grad, cr_head_grad_args)                           \
    OP(logits, cr_logits_args)                                 \
    OP_TO_HOST(draw, cr_draw_args)                             \
    OP_TO_HOST(logits_log_prob, cr_logits_log_prob_args)       \
    /* experts.h */                                            \
    OP_TO_HOST(router, cr_router_args)                         \
    OP(router_grad, cr_router_grad_args)                       \
    OP_TO_HOST(expert_sort, cr_expert_sort_args)               \
    OP(expert_linear, cr_expert_linear_args)                   \
    OP(expert_linear_grad, cr_expert_linear_grad_args)         \
    OP(rows_combine, cr_rows_combine_args)                     \
    OP(rows_scale, cr_rows_scale_args)                         \
    OP(rows_dot, cr_rows_dot_args)                             \
    /* dropout.h */                                            \
    OP(rows_drop, cr_rows_drop_args)                           \
    /* vision.h */                                             \
    OP(layernorm, cr_layernorm_args)                           \
    OP(layernorm_grad, cr_layernorm_grad_args)                 \
    OP(gelu, cr_gelu_args)                                     \
    OP(gelu_grad, cr_gelu_grad_args)                           \
    OP(geglu, cr_geglu_args)                                   \
    OP(geglu_grad, cr_geglu_grad_args)                         \
    OP(embedding_bag_grad, cr_embedding_bag_grad_args)         \
    OP(cols_scale, cr_cols_scale_args)                         \
    OP(cols_scale_grad, cr_cols_scale_grad_args)
/* clang-format on */

#define CR_OP_DECLARE(name, args) \
    struct args;                  \
    CR_MUST cr_status cr_##name(cr_device *dev, const struct args *a, cr_err *err);
CR_OPS(CR_OP_DECLARE, CR_OP_DECLARE)
#undef CR_OP_DECLARE

#endif
