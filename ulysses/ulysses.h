/* ulysses.h -- sequence parallel: the tokens of one packed batch lie on several ranks.
 *
 * The P ranks of a ulysses group (mesh.h: blocks of P) are given the same batch and each runs its own
 * rows of it, cut anywhere: rank p has rows T p / P up to T (p + 1) / P, whatever sequences they are
 * of. Everything in a model works row by row but attention, which gets all T rows of H / P heads:
 *
 *     [t, H, D]  --all-to-all-->  [T, H / P, D]  attention  [T, H / P, D]  --all-to-all-->  [t, H, D]
 *
 * and the same in backward. If there are fewer key/value heads than ranks, each goes to P / K ranks
 * and its gradient is the sum of theirs in float32. Positions, labels (already shifted) and
 * cu_seqlens are those of the whole batch, so nothing else is exchanged. Attention sees the very
 * arguments that it would see on one rank: a row's log-prob has the same bits.
 *
 * A loss sees the whole batch, too: log-probs of all ranks' rows are gathered, every rank computes the
 * same loss, and takes its own rows of its gradient. Parameters do not know about ulysses: the
 * gradients of all ranks are summed, as without it. So the callers of strategies' passes give the ranks of
 * a group the same batch (or all of them none), and count each loss once (CR_AXIS_DP).
 *
 * A batch of fewer than P tokens is followed by a sequence without labels, so that no rank is empty.
 *
 * Ownership: a cr_ulysses borrows group and model, and owns the cut batch until the next cut.
 * Threads: one. Failures of peers come from collectives.h.
 */
#ifndef CR_ULYSSES_H
#define CR_ULYSSES_H

#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/split.h"

typedef struct cr_ulysses cr_ulysses;

/* CR_ECONFIG (M4, M5): the model's heads cannot be distributed over the ranks of mesh's ulysses axis. Local. */
CR_MUST cr_status cr_ulysses_create(const cr_mesh *mesh, const cr_model *model, cr_ulysses **out,
                                    cr_err *err);
void cr_ulysses_destroy(cr_ulysses *u); /* accepts NULL */

/* This rank's rows of a batch, and how its attention reaches the others: for a pass. Both are owned
 * by u and valid until the next cut. Local. */
void cr_ulysses_cut(cr_ulysses *u, const cr_batch *whole);
const cr_batch *cr_ulysses_batch(const cr_ulysses *u);
const cr_split *cr_ulysses_split(const cr_ulysses *u);

/* Rows with values: after a cut the labelled ones of the whole batch, after a choice those (in
 * ascending order; own gets this rank's, numbered in its part). This rank's are [*first, *first +
 * *num) of them. Local. */
void cr_ulysses_choose(cr_ulysses *u, const int32_t *rows, int64_t num_rows, int32_t *own);
void cr_ulysses_rows(const cr_ulysses *u, size_t *first, size_t *num);
/* values [rows with values, num_cols] of 4 bytes each: this rank's are there, the others' are filled in. Collective
 * over the group. */
CR_MUST cr_status cr_ulysses_collect(cr_ulysses *u, const char *name, void *values,
                                     int64_t num_cols, cr_err *err);

#endif
