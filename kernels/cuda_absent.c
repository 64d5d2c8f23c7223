/* cuda_absent.c -- replaces kernels/cuda/ in a build without CUDA: answers, and says why. */
#include "kernels/gpu.h"
#include "kernels/kernels_impl.h"

cr_status cr_gpu_probe(cr_gpu_report *out, cr_err *err)
{
    *out = (cr_gpu_report){0};
    return cr_fail(err, CR_EABSENT,
                   "this build is for CPUs; scripts/gpu-check builds croll with CUDA and looks");
}

cr_gpu_products cr_gpu_get_products(const cr_device *dev)
{
    (void)dev;
    return (cr_gpu_products){0};
}

cr_status cri_cuda_open(cr_device *dev, cr_err *err)
{
    (void)dev;
    return cr_fail(err, CR_EABSENT,
                   "device cuda: this build is for CPUs; scripts/gpu-check builds croll with CUDA");
}
