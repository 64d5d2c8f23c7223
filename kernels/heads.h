/* heads.h -- what heads of q and k go through between their products and attention. */
#ifndef CR_HEADS_H
#define CR_HEADS_H

#include "kernels/kernels.h"

/* Half-split rotary embedding in place on x[num_tokens, num_heads, D] (row stride num_heads * D):
 * angle = angles[t, i], or positions[t] * inv_freq[i] where angles is NULL; cos and sin are float32,
 * times `scaling`. sign -1: backward. Equal angles are equal bits, wherever they come from. */
typedef struct cr_rope_args {
    cr_mem *x;
    cr_dtype dtype;
    const cr_mem *positions, *inv_freq; /* [num_tokens]; [D / 2] float32 */
    float scaling;
    int sign;
    int64_t num_tokens, num_heads, head_dim;
    const cr_mem *angles; /* [num_tokens, D / 2] float32: rotation along several axes, or NULL */
} cr_rope_args;

/* What q and k go through before attention, head by head: RMSNorm (as cr_rmsnorm; no weights: none) and rotation (as cr_rope). */
typedef struct cr_qk_heads_args {
    const cr_mem *q_in, *k_in;         /* [T, H, D], [T, K, D] */
    cr_mem *q, *k;                     /* the same places without weights; else they may be */
    const cr_mem *q_weight, *k_weight; /* [D], both or none */
    cr_mem *q_rstd, *k_rstd;           /* float32 [T, H], [T, K], or NULL */
    cr_dtype dtype;
    const cr_mem *positions, *inv_freq, *angles; /* from here on as in cr_rope_args */
    float scaling;
    int sign;
    int64_t num_tokens, num_heads, num_kv_heads, head_dim;
    float eps, offset; /* as in cr_rmsnorm_args */
} cr_qk_heads_args;

#endif
