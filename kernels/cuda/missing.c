/* missing.c -- the operations that the cuda device has no kernel for yet: each refuses by name, and nothing else is done
 * instead. A line goes when its kernel comes. */
#include "kernels/cuda/entries.h"

/* clang-format off */
#define MISSING(OP)                                            \
    OP(draw, cr_draw_args)
/* clang-format on */

#define REFUSE(name, args)                                                                       \
    cr_status cri_cuda_##name(cr_device *dev, const args *a, cr_err *err)                        \
    {                                                                                            \
        (void)dev;                                                                               \
        (void)a;                                                                                 \
        return cr_fail(err, CR_EABSENT, "device cuda has no kernel for " #name " yet: use cpu"); \
    }
MISSING(REFUSE)
