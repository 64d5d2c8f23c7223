/* adapters.h -- products of Linears that have low-rank adapters (LoRA), of the same rows: q, k and v; gate and up; one alone. Declared by ops.h.
 *
 * h_i = s_i A_i x: float32 sums over ascending columns, times the scale, rounded once. y_i is the sum of x W_i^T, over ascending columns, and of
 * h_i B_i^T; then the bias, then the addend, as in cr_linear. The cpu goes on with h's columns where those of x end, in one sum: y is
 * written once, and B of zeros leaves the base's bits (but a sum of -0, which is 0). cuda rounds the base's y before it adds h B^T. In
 * either case a row's bits depend on the row alone, so that a prompt, a decode step and a training step have the same. A may have an x of its
 * own (dropout); without, it is given that of the base, here and below.
 *
 * Backward: dh_i = s_i dy_i B_i, in the same way; dx = the sum over i, in this order, of dy_i W_i + dh_i A_i, each rounded to dx as is_dx_added is.
 * Where A has an x of its own, dx has no dh_i A_i: it takes the place of that x, if dx is wanted.
 * The base is frozen. is_base_made: its products are not made here (those of experts are one operation, too): y += h B^T, dx += dh A.
 * Ownership, threads, errors: as kernels.h.
 */
#ifndef CR_ADAPTERS_H
#define CR_ADAPTERS_H

#include "kernels/linears.h"

typedef struct cr_low_rank {
    cr_weight a,
        b; /* A [r, K], B [N, r], of the Linear's dtype; a.data NULL: this Linear has none */
    float scale;
    cr_mem *x; /* [M, K] what A is given; NULL: the x of the base */
} cr_low_rank;

/* Columns of h and of dh: the ranks of all of them, one after the other. */
static inline int64_t cr_low_ranks(const cr_low_rank *low, int num)
{
    int64_t all = 0;

    for (int i = 0; i < num; i++)
        all += low[i].a.data ? low[i].a.num_rows : 0;
    return all;
}

typedef struct cr_adapted_linears_args {
    cr_linears_args base; /* y may be add */
    const cr_mem *add;    /* as in cr_linear, for a base of one; or NULL */
    cr_low_rank low[CR_LINEARS];
    cr_mem *h; /* [M, cr_low_ranks], written */
    bool is_base_made;
} cr_adapted_linears_args;

typedef struct cr_adapted_linears_grad_args {
    const cr_mem *x;
    const cr_mem *dy[CR_LINEARS];
    cr_weight w[CR_LINEARS];
    cr_low_rank low[CR_LINEARS];
    cr_mem *dx; /* or NULL */
    bool is_dx_added;
    cr_mem *da[CR_LINEARS], *db[CR_LINEARS]; /* float32, added; NULL: that one is frozen */
    cr_mem *h, *dh;                          /* [M, cr_low_ranks], written: h is made again */
    int num;
    int64_t num_rows;
    bool is_base_made;
} cr_adapted_linears_grad_args;

#endif
