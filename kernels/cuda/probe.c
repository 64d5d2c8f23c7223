/* probe.c -- which GPUs and CUDA libraries there are, and whether a kernel of this build runs. */
#include "kernels/cuda/cuda.h"
#include "kernels/gpu.h"

#include <cublasLt.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

/* CUDA packs 13.0 as 13000; cuBLAS and NCCL are distinguished by three numbers. */
static void write_versions(cr_gpu_report *out)
{
    int driver = 0, runtime = 0, major = 0, minor = 0, patch = 0, nccl = 0;

    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver)
        snprintf(out->driver, sizeof out->driver, "%d.%d", driver / 1000, driver % 1000 / 10);
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        snprintf(out->runtime, sizeof out->runtime, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    if (cublasLtGetProperty(MAJOR_VERSION, &major) == CUBLAS_STATUS_SUCCESS &&
        cublasLtGetProperty(MINOR_VERSION, &minor) == CUBLAS_STATUS_SUCCESS &&
        cublasLtGetProperty(PATCH_LEVEL, &patch) == CUBLAS_STATUS_SUCCESS)
        snprintf(out->cublas, sizeof out->cublas, "%d.%d.%d", major, minor, patch);
    if (ncclGetVersion(&nccl) == ncclSuccess)
        snprintf(out->nccl, sizeof out->nccl, "%d.%d.%d", nccl / 10000, nccl / 100 % 100,
                 nccl % 100);
}

void cri_cuda_why_none(cudaError_t code, char *text, size_t capacity_bytes)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0, runtime = 0;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        snprintf(text, capacity_bytes,
                 "there is no NVIDIA driver on this machine (a container needs --gpus all)");
    else if (code == cudaErrorInsufficientDriver)
        snprintf(
            text, capacity_bytes,
            "the NVIDIA driver is for CUDA %d.%d, this build needs one for CUDA %d.%d or newer",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (code != cudaSuccess && code != cudaErrorNoDevice)
        snprintf(text, capacity_bytes, "%s (%s)", cudaGetErrorString(code), cudaGetErrorName(code));
    else if (visible)
        snprintf(text, capacity_bytes,
                 "none is visible to this process: CUDA_VISIBLE_DEVICES is \"%.60s\"", visible);
    else
        snprintf(text, capacity_bytes, "none is visible to this process");
}

/* Runs the kernel of pattern.cu on the current GPU and compares every element. */
static cudaError_t try_kernel(bool *is_right)
{
    enum { NUM = 4096 };
    static const size_t num_bytes = NUM * sizeof(uint32_t);
    uint32_t *host = cr_alloc(num_bytes), *d_out = NULL;
    cudaStream_t stream = NULL;
    cudaError_t code = cudaMalloc((void **)&d_out, num_bytes);

    *is_right = false;
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cri_cuda_fill_pattern(d_out, NUM, stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
    if (code == cudaSuccess) code = cudaMemcpy(host, d_out, num_bytes, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess) {
        *is_right = true;
        for (uint32_t i = 0; i < NUM; i++)
            *is_right &= host[i] == i * CRI_CUDA_PATTERN;
    }
    if (stream) cudaStreamDestroy(stream);
    cudaFree(d_out);
    cr_free(host);
    return code;
}

static void look_at(int index, cr_gpu *gpu)
{
    struct cudaDeviceProp properties;
    bool is_right = false;
    cudaError_t code = cudaGetDeviceProperties(&properties, index);

    if (code == cudaSuccess) {
        snprintf(gpu->name, sizeof gpu->name, "%.127s", properties.name);
        gpu->memory_bytes = properties.totalGlobalMem;
        gpu->capability_major = properties.major;
        gpu->capability_minor = properties.minor;
        code = cudaSetDevice(index);
    }
    if (code == cudaSuccess) code = cudaMemGetInfo(&gpu->free_bytes, &gpu->memory_bytes);
    if (code == cudaSuccess) code = try_kernel(&is_right);
    if (code != cudaSuccess)
        snprintf(gpu->fault, sizeof gpu->fault, "%s (%s)", cudaGetErrorString(code),
                 cudaGetErrorName(code));
    else if (!is_right)
        snprintf(gpu->fault, sizeof gpu->fault, "a kernel ran and wrote wrong numbers");
    cudaGetLastError(); /* the next GPU starts without this one's error */
}

cr_status cr_gpu_probe(cr_gpu_report *out, cr_err *err)
{
    char why[CRI_CUDA_WHY_BYTES];
    cudaError_t code;

    *out = (cr_gpu_report){0};
    write_versions(out);
    code = cudaGetDeviceCount(&out->num_gpus);
    if (code != cudaSuccess || out->num_gpus == 0) {
        out->num_gpus = 0;
        cri_cuda_why_none(code, why, sizeof why);
        return cr_fail(err, CR_EABSENT, "CUDA shows no GPU: %s", why);
    }
    out->num_listed = out->num_gpus < CR_MAX_GPUS ? out->num_gpus : CR_MAX_GPUS;
    for (int i = 0; i < out->num_listed; i++)
        look_at(i, &out->gpu[i]);
    return CR_OK;
}
