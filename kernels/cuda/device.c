/* device.c -- the cuda device. There are no kernels for it yet, so it does not open. */
#include "kernels/kernels_impl.h"

cr_status cri_cuda_open(cr_device *dev, cr_err *err)
{
    (void)dev;
    return cr_fail(err, CR_EABSENT,
                   "device cuda is not available yet (this build only looks at GPUs: croll "
                   "doctor): use cpu");
}
