/* attention.h -- attention over packed sequences (causal, or over all of each) and over a paged KV cache,
 * and the vocabulary head: the two operations whose inner loop generation and training share.
 *
 * Attention is computed row by row of q over key tiles of CR_KV_BLOCK positions counted from the
 * start of the sequence, with an online softmax in float32. The cache holds its blocks in the very
 * layout of those tiles, so a decoded row gives the bits of the same row in a packed forward.
 * No T x T matrix and no [T, V] float32 matrix ever exists.
 */
#ifndef CR_ATTENTION_H
#define CR_ATTENTION_H

#include "kernels/heads.h"

enum { CR_KV_BLOCK = 64 }; /* positions in a cache block and in a key tile */

/* What the lengths of sequences make of a call. */
typedef struct cr_seq_sizes {
    int64_t max_seqlen;
    double num_pairs; /* of a query and a key that it sees, as if there were no window: for FLOPs */
    int64_t num_rows; /* T; the forward does with 0: at most num_seqs x max_seqlen */
} cr_seq_sizes;

/* Packed sequences: rows cu_seqlens[s] .. cu_seqlens[s+1]-1 are sequence s, key <= query unless said. */
typedef struct cr_attention_args {
    const cr_mem *q, *k, *v; /* [T, H, D], [T, K, D], [T, K, D] */
    cr_mem *o;               /* [T, H, D] */
    cr_mem *lse;             /* [T, H] float32 or NULL: saved for backward */
    cr_dtype dtype;
    const cr_mem *cu_seqlens; /* [num_seqs + 1] */
    int64_t num_seqs, num_heads, num_kv_heads, head_dim;
    float scale;           /* D^-0.5 */
    int64_t window;        /* keys > query - window; 0: no window */
    bool is_bidirectional; /* every row sees all keys of its sequence; no window then */
    cr_seq_sizes sizes;
} cr_attention_args;

typedef struct cr_attention_grad_args {
    cr_attention_args fwd; /* q, k, v, o, lse and shapes of the forward */
    const cr_mem *d_o;     /* [T, H, D] gradient of o */
    cr_mem *dq, *dk, *dv;
} cr_attention_grad_args;

/* One layer's cache: num_blocks blocks. Layout inside a block is the device's. */
size_t cr_kv_block_bytes(const cr_device *dev, cr_dtype dtype, int64_t num_kv_heads,
                         int64_t head_dim);

/* Rows of one slot at positions that follow each other. */
enum { CR_ROW_TILE = 128 }; /* at most */
typedef struct cr_row_tile {
    int32_t first, num;
} cr_row_tile;
/* Tiles of all rows from the first that has its slot's next position right after it; the rows before it are alone. At most num_rows of
 * them: how many. Of cr_attention_cached_args. */
int64_t cr_row_tiles(const int32_t *row_slot, const int32_t *row_pos, int64_t num_rows,
                     cr_row_tile *tiles);

/* Rows of a generation step: row r belongs to slot row_slot[r] at position row_pos[r] (0-based); the
 * keys of that slot are in blocks block_table[slot * max_blocks + pos / CR_KV_BLOCK]. Rows of one
 * slot come in ascending position. First does what `heads` says (q and k are its results), then writes k and v of all rows
 * into the cache, then attends. */
typedef struct cr_attention_cached_args {
    const cr_mem *q, *k, *v; /* [R, H, D], [R, K, D], [R, K, D]: the new rows */
    cr_mem *o;               /* [R, H, D] */
    cr_mem *blocks;          /* [num_blocks] of cr_kv_block_bytes, this layer's */
    cr_dtype dtype;
    const cr_mem *row_slot, *row_pos; /* [R] */
    const cr_mem *block_table;        /* [num_slots, max_blocks] */
    int64_t num_rows, max_blocks, num_heads, num_kv_heads, head_dim;
    cr_seq_sizes sizes; /* of a row: row_pos + 1 */
    float scale;
    int64_t window;
    int64_t num_blocks; /* of `blocks` */
    /* cr_row_tile [num_tiles] cover all rows from num_alone on; 0: every row is alone. Results are the same: rows of a tile read their
     * keys together. */
    const cr_mem *tiles;
    int64_t num_tiles, num_alone;
    cr_qk_heads_args heads; /* q_in NULL: q and k are ready */
} cr_attention_cached_args;

/* What sampling makes of rows of logits before it draws: ids of a row's history are penalised (z < 0: z p, else z / p),
 * all are divided by the temperature, and only the kept ids can be drawn. Log-probs, entropies and gradients are those of
 * that distribution; which ids are kept does not move with the logits. Borrowed. Arrays are host memory and have an
 * element a row; a pass uploads them as cr_row_edits_mem. */
typedef struct cr_row_edits {
    float temperature, penalty; /* above 0; 1: off */
    const float *temperatures;  /* of each row, instead; NULL: the same for all */
    const size_t *kept_first;   /* into kept_ids; NULL: every row keeps all ids */
    const int32_t *kept_num;    /* 0: this row keeps all ids */
    const int32_t *kept_ids;    /* of a row: ascending, its label among them */
    const int32_t *seen_list; /* the list that has the row's history; may be NULL if penalty is 1 */
    const int32_t *seen_until;            /* and up to which place it had come */
    const size_t *seen_first;             /* [lists + 1] */
    const int32_t *seen_ids, *seen_place; /* of a list: ids ascending, and where each was first */
} cr_row_edits;
/* The same in memory of the device. */
typedef struct cr_row_edits_mem {
    float temperature, penalty;
    const cr_mem *temperatures;
    const cr_mem *kept_first; /* size_t, as is seen_first */
    const cr_mem *kept_num, *kept_ids, *seen_list, *seen_until, *seen_first, *seen_ids, *seen_place;
} cr_row_edits_mem;

/* Vocabulary head on R rows: z = x W^T in float32, tile by tile of the vocabulary (fixed tiles).
 * log_prob = z[label] - lse, entropy = lse - sum(p z). Every output may be NULL. */
typedef struct cr_head_args {
    const cr_mem *x;      /* [R, h] act dtype */
    const cr_weight *w;   /* [V, h] */
    const cr_mem *labels; /* [R] */
    int64_t num_rows;
    cr_mem *log_prob, *entropy;    /* [R] float32 */
    cr_mem *lse, *mean_z;          /* [R] float32, saved for backward: logsumexp and sum(p z) */
    const cr_row_edits_mem *edits; /* z is what they make of the logits; NULL: the logits */
    /* More of each row, with the log-probs of the same z and log-sum (equal bits for one word). */
    cr_mem *rank;    /* [R] int32: 1 + words whose z is above that of the label */
    int64_t num_top; /* the words with the largest z, falling; of equal ones the lower id first */
    cr_mem *top_ids,
        *top_log_prob; /* [R, num_top] int32, float32; -1, -inf: no more words are kept */
    int64_t num_chosen;
    const cr_mem *chosen_ids; /* [R, num_chosen] int32 below V; -1: none */
    cr_mem *chosen_log_prob;  /* [R, num_chosen] float32; -inf: none, or not a kept word */
} cr_head_args;

/* dx[R, h] overwritten (act dtype), dw[V, h] += (float32, NULL if frozen); logits are recomputed
 * tile by tile: dz = g_log_prob (1[v = label] - p) - g_entropy p (z - mean_z). */
typedef struct cr_head_grad_args {
    cr_head_args fwd;                           /* x, w, labels, lse, mean_z */
    const cr_mem *grad_log_prob, *grad_entropy; /* [R] float32; grad_entropy may be NULL */
    cr_mem *dx;
    cr_mem *dw;
} cr_head_grad_args;

/* For generation: the logits that cr_head reduces, with the same bits. */
typedef struct cr_logits_args {
    const cr_mem *x;    /* [R, h] act dtype */
    const cr_weight *w; /* [V, h] */
    int64_t num_rows;
    cr_mem *logits; /* [R, V] float32 */
} cr_logits_args;

/* Changes of single logits; {0}: none. Host memory, read when the call returns. */
typedef struct cr_word_edits {
    const int32_t *biased; /* ids, each once */
    const float *bias;     /* [num_biased] is added to their logits */
    size_t num_biased;
    float presence, frequency; /* subtracted if the response has the id; for each time it has */
    const int32_t *allowed, *banned; /* other ids, these ids cannot be drawn; one must be left */
    size_t num_allowed, num_banned;  /* num_allowed 0: all are allowed */
} cr_word_edits;

/* How one row is drawn from, in the order of Hugging Face's processors and of vLLM: bias, penalty on the ids of
 * `history` (z < 0: z p, else z / p; once an id), frequency and presence penalties on the ids of history[1], allowed and
 * banned ids, temperature, top_k with ties, top_p (the fewest ids, largest first, then by id), min_p, and one draw
 * that inverts the distribution function at u. */
typedef struct cr_draw_row {
    float temperature;  /* 0: the first of the largest, and no filter */
    float penalty;      /* 1: off */
    float top_p, min_p; /* 1, 0: off */
    int64_t top_k;      /* <= 0: off */
    bool is_raw;     /* numbers are of the softmax of the logits: no edits, temperature, filters */
    bool has_rank;   /* cr_drawn has the rank, */
    int64_t num_top; /* and this number of the most likely ids; 0: none */
    float u;         /* in [0, 1) */
    const int32_t *history[2]; /* host, read when the call returns: prompt and response */
    size_t num_history[2];
    cr_word_edits edits;
} cr_draw_row;

typedef struct cr_drawn {
    int32_t id;           /* -1: the logits are not finite; nothing else is meant then */
    float log_prob;       /* the bits that cr_head computes for the same row with the same edits */
    float log_mass;       /* log of the probability of the kept ids before the filters */
    size_t num_kept;      /* 0: all ids, or is_raw, as is log_mass then */
    cr_buf *kept;         /* int32 the kept ids are appended, ascending; in: borrowed, or NULL */
    int32_t rank;         /* as cr_head's; 0: not wanted */
    int32_t *top_ids;     /* [num_top] in: borrowed; as cr_head's */
    float *top_log_probs; /* [num_top] the same; -INFINITY: an id that cannot be drawn */
} cr_drawn;

/* On a device that records: PUT keeps the rows for QUEUE, work of dev's stream that may be recorded; TAKE waits. Arguments are the same thrice. */
typedef enum cr_draw_part { CR_DRAW_ALL, CR_DRAW_PUT, CR_DRAW_QUEUE, CR_DRAW_TAKE } cr_draw_part;
/* One id for each row of logits. */
typedef struct cr_draw_args {
    const cr_mem *logits; /* [num_rows, vocab_size] float32, not changed; not looked at by PUT */
    int64_t num_rows, vocab_size;
    const cr_draw_row *rows; /* [num_rows] host */
    cr_drawn *out;           /* [num_rows] host */
    cr_draw_part part;
    uint64_t *key; /* by PUT: what QUEUE queues is the same with the same key and logits */
} cr_draw_args;

/* log_prob of labels and entropy from rows of logits, with cr_head's edits, tiles and order. */
typedef struct cr_logits_log_prob_args {
    const cr_mem *logits; /* [R, V] float32 */
    int64_t num_rows, vocab_size;
    const cr_mem *labels; /* [R] */
    const cr_row_edits_mem *edits;
    float *log_prob, *entropy; /* [R] host, or NULL */
} cr_logits_log_prob_args;

#endif
