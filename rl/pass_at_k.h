/* pass_at_k.h -- pass@k of many prompts as one exact fraction, and intervals of shares. Pure functions; any
 * thread.
 */
#ifndef CR_PASS_AT_K_H
#define CR_PASS_AT_K_H

#include "base/base.h"

/* `num` prompts have n samples each, of which c are right. num is below 2^32, n at most 65536. */
typedef struct cr_pass_count {
    size_t n, c, num;
} cr_pass_count;

/* The mean over prompts of 1 - C(n - c, k) / C(n, k) in lowest terms, "17/40"; prompts with n < k are left
 * out. Owned by the caller; NULL: all are left out. */
char *cr_pass_fraction(const cr_pass_count *counts, size_t num_counts, size_t k);

/* Wilson's score interval of a share p of n, 95 %. */
void cr_wilson(double p, double n, double *low, double *high);

#endif
