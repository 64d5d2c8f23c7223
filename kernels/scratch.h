/* scratch.h -- memory that kernels keep to work in, for callers that give their device to others between
 * phases. It is not counted in cr_device_get_stats. */
#ifndef CR_SCRATCH_H
#define CR_SCRATCH_H

#include "kernels/kernels.h"

/* Free it; it is made again when a kernel needs it. Only while none runs. */
void cr_device_drop_scratch(cr_device *dev);

#endif
