/* packed.h -- whole sequences one after another as the batch of a pass, without padding.
 *
 * Clear, add each sequence and write its labels, run packed.batch. Arrays grow and are used again; host memory.
 * Owned by the caller: {0} is empty, cr_packed_free releases. One thread.
 */
#ifndef CR_PACKED_H
#define CR_PACKED_H

#include "models/pass.h"

typedef struct cr_packed {
    cr_batch batch; /* of the arrays below; other fields are the caller's, until it is cleared */
    int32_t *ids, *positions, *labels, *cu_seqlens; /* owned */
    size_t capacity_tokens, capacity_seqs;
} cr_packed;

void cr_packed_clear(cr_packed *packed);
/* Append a sequence (ids NULL: zeros) at positions 0 .. num_tokens-1. Returns its labels [num_tokens], all -1 (none), borrowed until
 * the next call. */
int32_t *cr_packed_add(cr_packed *packed, const int32_t *ids, size_t num_tokens);
int64_t cr_packed_bytes(const cr_packed *packed); /* of its arrays */
void cr_packed_free(cr_packed *packed);

#endif
