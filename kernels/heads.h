/* heads.h -- what heads of q and k go through between their products and attention; the vocabulary head. */
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

/* ---- the vocabulary head ---- */

/* Logits processors of rows, what sampling makes of logits before it draws: ids of a row's history are penalised (z < 0: z p, else z / p),
 * all are divided by the temperature, and only the kept ids can be drawn. Log-probs, entropies and gradients are those of
 * that distribution; which ids are kept does not move with the logits. Borrowed. Arrays are host memory and have an
 * element a row; a pass uploads them as cr_row_processors_mem. */
typedef struct cr_row_processors {
    float temperature, penalty; /* above 0; 1: off */
    const float *temperatures;  /* of each row, instead; NULL: the same for all */
    const size_t *kept_first;   /* into kept_ids; NULL: every row keeps all ids */
    const int32_t *kept_num;    /* 0: this row keeps all ids */
    const int32_t *kept_ids;    /* of a row: ascending, its label among them */
    const int32_t *seen_list; /* the list that has the row's history; may be NULL if penalty is 1 */
    const int32_t *seen_until;            /* and up to which place it had come */
    const size_t *seen_first;             /* [lists + 1] */
    const int32_t *seen_ids, *seen_place; /* of a list: ids ascending, and where each was first */
} cr_row_processors;
/* The same in memory of the device. */
typedef struct cr_row_processors_mem {
    float temperature, penalty;
    const cr_mem *temperatures;
    const cr_mem *kept_first; /* size_t, as is seen_first */
    const cr_mem *kept_num, *kept_ids, *seen_list, *seen_until, *seen_first, *seen_ids, *seen_place;
} cr_row_processors_mem;

/* Vocabulary head on R rows: z = x W^T in float32, tile by tile of the vocabulary (fixed tiles).
 * log_prob = z[label] - lse, entropy = lse - sum(p z). Every output may be NULL. */
typedef struct cr_head_args {
    const cr_mem *x;      /* [R, h] act dtype */
    const cr_weight *w;   /* [V, h] */
    const cr_mem *labels; /* [R] */
    int64_t num_rows;
    cr_mem *log_prob, *entropy; /* [R] float32 */
    cr_mem *lse, *mean_z;       /* [R] float32, saved for backward: logsumexp and sum(p z) */
    const cr_row_processors_mem *processors; /* z is after them; NULL: none */
    /* More of each row, with the log-probs of the same z and log-sum (equal bits for one token). */
    cr_mem *rank;    /* [R] int32: 1 + tokens whose z is above that of the label */
    int64_t num_top; /* the tokens with the largest z, falling; of equal ones the lower id first */
    cr_mem *top_ids,
        *top_log_prob; /* [R, num_top] int32, float32; -1, -inf: no more tokens are kept */
    int64_t num_chosen;
    const cr_mem *chosen_ids; /* [R, num_chosen] int32 below V; -1: none */
    cr_mem *chosen_log_prob;  /* [R, num_chosen] float32; -inf: none, or not a kept token */
} cr_head_args;

/* A loss over tokens of a row: what it adds to dz of each of fwd.num_chosen tokens, which fwd.chosen_ids has at most once in a row
 * (-1: none), and to all others rest e^(z / temperature - log_sum). */
typedef struct cr_head_chosen {
    const cr_mem *dz;      /* [R, num_chosen] float32 */
    const cr_mem *rest;    /* [R] float32 */
    const cr_mem *log_sum; /* [R] float32: of z / temperature */
    float temperature;
} cr_head_chosen;

/* dx[R, h] overwritten (act dtype), dw[V, h] += (float32, NULL if frozen); logits are recomputed
 * tile by tile: dz = g_log_prob (1[v = label] - p) - g_entropy p (z - mean_z), and what `tokens` adds. */
typedef struct cr_head_grad_args {
    cr_head_args
        fwd; /* x, w, labels, lse, mean_z; with tokens chosen_ids and chosen_log_prob, no processors */
    const cr_mem *grad_log_prob, *grad_entropy; /* [R] float32; grad_entropy may be NULL */
    cr_mem *dx;
    cr_mem *dw;
    const cr_head_chosen *chosen; /* NULL: none */
} cr_head_grad_args;

/* For generation: the logits that cr_head reduces, with the same bits. */
typedef struct cr_logits_args {
    const cr_mem *x;    /* [R, h] act dtype */
    const cr_weight *w; /* [V, h] */
    int64_t num_rows;
    cr_mem *logits; /* [R, V] float32 */
} cr_logits_args;

/* log_prob of labels and entropy from rows of logits, with cr_head's processors, tiles and order. */
typedef struct cr_logits_log_prob_args {
    const cr_mem *logits; /* [R, V] float32 */
    int64_t num_rows, vocab_size;
    const cr_mem *labels; /* [R] */
    const cr_row_processors_mem *processors;
    float *log_prob, *entropy; /* [R] host, or NULL */
} cr_logits_log_prob_args;

#endif
