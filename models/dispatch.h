/* dispatch.h -- what a pass needs when experts are spread over ranks (expert parallelism): rows are dispatched to
 * the rank that has their expert, and the results combined, through functions that moe/ fills in: models/ has no ranks.
 *
 * Rank r of num_ranks runs experts [E r / num_ranks, E (r + 1) / num_ranks). Rows that are sent are in the
 * order of experts, so those for one rank are a range; they are received in the order of ranks, then experts.
 * All functions are collective over the ranks. Owned by who fills it in; valid for one pass. Threads
 * and errors: those of the pass.
 */
#ifndef CR_DISPATCH_H
#define CR_DISPATCH_H

#include "models/pass.h"

/* Rows of a block of experts that are sent and received (host arrays). */
typedef struct cr_dispatch_counts {
    const char *name;     /* of the block */
    int64_t num_experts;  /* E */
    int64_t *send_counts; /* [E] for each expert */
    int64_t *recv_counts; /* [num_ranks, E / num_ranks] from each rank for each expert here */
} cr_dispatch_counts;

typedef struct cr_dispatch {
    int rank, num_ranks;
    /* Fills recv_counts. */
    cr_status (*exchange_counts)(void *ctx, const cr_dispatch_counts *t, cr_err *err);
    /* Rows to the ranks of their experts, and the experts' results back. */
    cr_status (*dispatch)(void *ctx, const cr_dispatch_counts *t, const cr_mem *send,
                          size_t row_bytes, cr_mem *recv, cr_err *err);
    cr_status (*combine)(void *ctx, const cr_dispatch_counts *t, const cr_mem *send,
                         size_t row_bytes, cr_mem *recv, cr_err *err);
    void *ctx;
} cr_dispatch;

#endif
