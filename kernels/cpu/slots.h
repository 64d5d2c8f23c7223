/* slots.h -- what a device's scratch is used for. A kernel calls others while its own slots hold something: linear and
 * product_tn take the first two, so a kernel that calls them keeps nothing there. */
#ifndef CR_CPU_SLOTS_H
#define CR_CPU_SLOTS_H

#include "kernels/cpu/cpu.h"

enum cri_cpu_slot {
    CRI_SLOT_PANELS, /* B of a product */
    CRI_SLOT_ROWS,   /* A of a product, where it cannot be read in place */
    CRI_SLOT_HEAD,   /* what the head keeps of each row: its state, or dx */
    CRI_SLOT_LOGITS, /* a tile of logits */
    CRI_SLOT_DZ,     /* and its gradient */
    CRI_SLOT_TILE,   /* panels of a tile of the vocabulary, which two products share */
    CRI_SLOT_HEAD_X, /* rows of x and of dz as A, beside the products of the head's gradient */
    CRI_SLOT_HEAD_DZ,
    CRI_SLOT_LOW_ROWS, /* adapters: h or its gradient as A, B or A as panels, and all A's in one matrix */
    CRI_SLOT_LOW_PANELS,
    CRI_SLOT_LOW_A,
    CRI_NUM_SLOTS,
    /* kernels that call no product and are called by none of the above */
    CRI_SLOT_TASKS = CRI_SLOT_PANELS, /* attention: the memory of each thread */
    CRI_SLOT_EXPERTS = CRI_SLOT_PANELS,
    CRI_SLOT_SUMS = CRI_SLOT_PANELS, /* of the blocks of a checksum */
    CRI_SLOT_DRAW = CRI_SLOT_HEAD,   /* sampling: the memory of each thread */
};
_Static_assert((int)CRI_NUM_SLOTS == (int)CRI_NUM_SCRATCH, "a slot of the scratch has no name");

#endif
