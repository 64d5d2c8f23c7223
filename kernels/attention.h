/* attention.h -- attention over packed sequences (causal, or over all of each) and over a paged KV cache,
 * and drawing tokens from logits (the vocabulary head is in heads.h).
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

/* Logits processors of single ids of one row; {0}: none. Host memory, read when the call returns. */
typedef struct cr_token_processors {
    const int32_t *biased; /* ids, each once */
    const float *bias;     /* [num_biased] is added to their logits */
    size_t num_biased;
    float presence, frequency; /* subtracted if the response has the id; for each time it has */
    const int32_t *allowed, *banned; /* other ids, these ids cannot be drawn; one must be left */
    size_t num_allowed, num_banned;  /* num_allowed 0: all are allowed */
} cr_token_processors;

/* How one row is drawn from, in the order of Hugging Face's processors and of vLLM: bias, penalty on the ids of
 * `history` (z < 0: z p, else z / p; once an id), frequency and presence penalties on the ids of history[1], allowed and
 * banned ids, temperature, top_k with ties, top_p (the fewest ids, largest first, then by id), min_p, and one draw
 * that inverts the distribution function at u. */
typedef struct cr_draw_row {
    float temperature;  /* 0: the first of the largest, and no filter */
    float penalty;      /* 1: off */
    float top_p, min_p; /* 1, 0: off */
    int64_t top_k;      /* <= 0: off */
    bool is_raw; /* numbers are of the softmax of the logits: no processors, temperature, filters */
    bool has_rank;             /* cr_drawn has the rank, */
    int64_t num_top;           /* and this number of the most likely ids; 0: none */
    float u;                   /* in [0, 1) */
    const int32_t *history[2]; /* host, read when the call returns: prompt and response */
    size_t num_history[2];
    cr_token_processors processors;
} cr_draw_row;

typedef struct cr_drawn {
    int32_t id;       /* -1: the logits are not finite; nothing else is meant then */
    float log_prob;   /* the bits that cr_head computes for the same row with the same processors */
    float log_mass;   /* log of the probability of the kept ids before the filters */
    size_t num_kept;  /* 0: all ids, or is_raw, as is log_mass then */
    cr_buf *kept;     /* int32 the kept ids are appended, ascending; in: borrowed, or NULL */
    int32_t rank;     /* as cr_head's; 0: not wanted */
    int32_t *top_ids; /* [num_top] in: borrowed; as cr_head's */
    float *top_log_probs; /* [num_top] the same; -INFINITY: an id that cannot be drawn */
} cr_drawn;

/* On a device with graphs: PUT keeps the rows for QUEUE, work of dev's stream that may be captured; TAKE waits. Arguments are the same thrice. */
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

#endif
