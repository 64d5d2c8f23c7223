/* draw.h -- what the call of a draw (draw_call.cu) gives to its kernels (draw.cu). Inside kernels/cuda only. */
#ifndef CR_CUDA_DRAW_H
#define CR_CUDA_DRAW_H

#include "kernels/cuda/head/log_probs.h"
#include "kernels/draw.h"

enum draw_list { PROMPT, RESPONSE, ALLOWED, BANNED, BIASED, NUM_LISTS };

/* A row of cr_draw_row as kernels read it. */
struct draw_row {
    int64_t first_id[NUM_LISTS], num_ids[NUM_LISTS]; /* lists in draw_rows.ids */
    int64_t first_bias;                              /* of the biased ids, as elements of 4 bytes */
    float temperature, penalty, presence, frequency, top_p, min_p, u; /* temperature 0: 1 here */
    int64_t top_k;                                                    /* 0: off */
    bool has_processor, is_greedy, has_filter, is_raw, is_listed;     /* listed: its kept ids */
};

struct chosen {
    int32_t id; /* -1: the logits are not finite */
    float log_mass;
    int64_t num_kept; /* 0: all, or is_raw */
};

enum { CRI_DRAW_KEPT = 256 }; /* kept ids of a row that come with its results; more are fetched */

/* All arrays of a draw; on the device but for `rows` while the host fills them in. */
struct draw_rows {
    int64_t num, vocab_size, num_pieces;
    const float *logits;                                          /* [num, vocab_size] */
    bool has_processor, has_draw, has_filter, has_list, has_rank; /* some row */
    int64_t num_top;
    /* from the host */
    draw_row *rows;
    float *temperatures; /* of the numbers, as are flags: 1 for the edited logits */
    int32_t *flags, *ids;
    /* to the host */
    chosen *all;
    float *log_prob, *top_log_probs;
    int32_t *rank, *top_ids, *kept; /* kept: [num, CRI_DRAW_KEPT] */
    /* scratch */
    token_limit *limits;
    int32_t *labels;
    float *max_piece; /* [num, num_pieces], as are the next three */
    int32_t *piece_id, *piece_found;
    unsigned long long *piece_mass, *bins; /* bins: [num, CRI_DRAW_BINS] */
    float *edited;                         /* [num, vocab_size] */
    int32_t *tokens;                       /* as many: marks, candidates, then kept ids */
    void *tiles;
};

enum { CRI_DRAW_BINS = 2048 };
int64_t cri_cuda_draw_pieces(int64_t vocab_size);
cri_log_prob_rows cri_cuda_draw_numbers(const draw_rows *d); /* of what was drawn */
cudaError_t cri_cuda_draw_queue(const draw_rows *d, cudaStream_t stream);

#endif
