/* moe.h -- expert parallel: the experts of a layer lie on the ranks of an ep group (mesh.h: blocks of E).
 *
 * Rank j runs experts [n j / E, n (j + 1) / E) of every layer for the tokens of all ranks of its group;
 * everything else of a model runs on a rank's own tokens. In each block of experts:
 *
 *     rows by expert  --counts, rows: all-to-all-->  rows by (rank, expert)  experts here
 *     rows by expert  <---------all-to-all---------  their outputs
 *
 * and in backward the gradients of the outputs (with the rows' weights) go there and those of the rows
 * come back. The block itself is models/sparse.c; the ranges of two ranks are exchanged without copies in
 * between. A rank's gradient of an expert is of the tokens of its whole group: the sum over all ranks is
 * that of one rank, so nothing is divided.
 *
 * Which collectives a rank meets depends on the model alone: ranks without rows exchange zero rows.
 *
 * Ownership: a cr_moe borrows the mesh. Threads: one. Failures of peers come from collectives.h.
 */
#ifndef CR_MOE_H
#define CR_MOE_H

#include "mesh/collectives.h"
#include "mesh/mesh.h"
#include "models/dispatch.h"

typedef struct cr_moe cr_moe;

/* CR_ECONFIG (M8): the model's experts cannot be divided over the ranks of mesh's ep axis. Local. */
CR_MUST cr_status cr_moe_create(const cr_mesh *mesh, const cr_model *model, cr_moe **out,
                                cr_err *err);
void cr_moe_destroy(cr_moe *moe); /* accepts NULL */
/* For a pass; owned by moe. */
const cr_dispatch *cr_moe_dispatch(const cr_moe *moe);

#endif
