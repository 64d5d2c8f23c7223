/* dispatch.h -- what a pass needs when experts are spread over ranks: rows travel to the rank that has
 * their expert and back through functions that moe/ fills in, so that models/ knows of no ranks.
 *
 * Rank r of num_ranks runs experts [E r / num_ranks, E (r + 1) / num_ranks). Rows that leave are in the
 * order of experts, so those for one rank are a range; they arrive in the order of ranks, then experts.
 * All functions are collective over the ranks. Owned by who fills it in; valid for one pass. Threads
 * and errors: those of the pass.
 */
#ifndef CR_DISPATCH_H
#define CR_DISPATCH_H

#include "models/pass.h"

/* How many rows of a block of experts travel (host arrays). */
typedef struct cr_travel {
    const char *name;    /* of the block */
    int64_t num_experts; /* E */
    int64_t *leaving;    /* [E] for each expert */
    int64_t *arriving;   /* [num_ranks, E / num_ranks] from each rank for each expert here */
} cr_travel;

typedef struct cr_dispatch {
    int rank, num_ranks;
    /* Fills arriving. */
    cr_status (*agree)(void *ctx, const cr_travel *t, cr_err *err);
    cr_status (*send)(void *ctx, const cr_travel *t, const cr_mem *leaving, size_t row_bytes,
                      cr_mem *arriving, cr_err *err);
    cr_status (*give_back)(void *ctx, const cr_travel *t, const cr_mem *arriving, size_t row_bytes,
                           cr_mem *leaving, cr_err *err);
    void *ctx;
} cr_dispatch;

#endif
