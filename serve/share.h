/* share.h -- fair shares of one worker between tenants, in tokens.
 *
 * Of the tenants that have work the one goes next that has used the fewest tokens for its weight: one with prompts of
 * 8,192 tokens gets one turn where another with prompts of 128 gets 64. A tenant that comes back after a pause starts
 * where the others are: what it left unused is not saved up, and what it has used is not forgiven.
 *
 *     cr_share_wake   it has work now; `now` is the least that one with work has used, and never decreases
 *     of those that have work the one with the smallest `used` is next:  cr_share_use
 *
 * (Fair queueing by virtual time.) Threads: one caller.
 */
#ifndef CR_SERVE_SHARE_H
#define CR_SERVE_SHARE_H

#include <stdint.h>

typedef struct cr_share {
    double weight; /* above 0 */
    double used;   /* tokens / weight */
} cr_share;

static inline void cr_share_wake(cr_share *share, double now)
{
    if (share->used < now) share->used = now;
}

/* Negative: fewer were used than had been estimated. */
static inline void cr_share_use(cr_share *share, int64_t tokens)
{
    share->used += (double)tokens / share->weight;
}

#endif
