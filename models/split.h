/* split.h -- what a pass needs when the sequences of its batch go on in other ranks' batches: attention
 * is handed to two functions that ulysses/ fills in, so that models/ knows of no ranks.
 *
 * Owned by who fills it in; valid for one pass. Threads and errors: those of the pass.
 */
#ifndef CR_SPLIT_H
#define CR_SPLIT_H

#include "models/pass.h"

/* Attention runs on all tokens and some of the heads. Both functions are collective and may use
 * p->scratch. */
typedef struct cr_split {
    const int32_t *cu_seqlens; /* of all tokens; those of the batch are of its own rows */
    int64_t num_tokens, num_seqs, num_heads, num_kv_heads; /* of attention here */
    const cr_batch *whole; /* what was cut, and the row of it that is the batch's first */
    int64_t first;
    /* x [batch's tokens, num_heads, D] to y [all tokens, heads here, D], and back; copies of one head
     * are added on the way back. num_heads: of the whole model, queries' or keys'. */
    cr_status (*to_heads)(void *ctx, const char *name, cr_pass *p, const cr_mem *x,
                          int64_t num_heads, cr_mem *y, cr_err *err);
    cr_status (*to_rows)(void *ctx, const char *name, cr_pass *p, const cr_mem *y,
                         int64_t num_heads, cr_mem *x, cr_err *err);
    void *ctx;
    /* lists of rows for those functions: host, and on the device in the pass's index.split_lists */
    const int32_t *lists;
    int64_t num_in_lists;
} cr_split;

#endif
