/* gpu.h -- what GPUs this machine has for this build, and whether code of this build runs on them.
 *
 * For `croll doctor`, the tests and NCCL only: models reach a GPU through a device (kernels.h), never
 * through here. A build without CUDA links kernels/cuda_absent.c and answers the same calls.
 *
 * Ownership: a cr_gpu_report is plain data of the caller. Threads: any. Errors: CR_EABSENT when
 * this build has no CUDA, when there is no driver, or when the driver shows no GPU; the message says which.
 */
#ifndef CR_GPU_H
#define CR_GPU_H

#include "kernels/memory.h"

enum { CR_MAX_GPUS = 16 };

typedef struct cr_gpu {
    char name[128];
    size_t memory_bytes, free_bytes;
    int capability_major, capability_minor; /* 9, 0: the code of this build must fit it */
    char fault[200];                        /* "": a kernel of this build ran and was right */
} cr_gpu;

/* Versions as NVIDIA writes them: 13.0, 2.27.7. driver: the newest CUDA that the driver can run. */
typedef struct cr_gpu_report {
    char driver[16], runtime[16], cublas[16], nccl[16];
    int num_gpus, num_listed; /* num_listed: at most CR_MAX_GPUS */
    cr_gpu gpu[CR_MAX_GPUS];
} cr_gpu_report;

/* The versions are filled in even when there is no GPU (all "" without CUDA). Local; takes a
 * moment, since each GPU gets a context. */
CR_MUST cr_status cr_gpu_probe(cr_gpu_report *out, cr_err *err);

/* ---- for a communicator of GPU memory (mesh/gpu/), of a device "cuda"; only in builds with it ---- */

/* The cudaStream_t of the handle; its GPU becomes the calling thread's. */
void *cr_gpu_stream(const cr_device *dev);
/* The same text in two processes of one host that share a GPU. */
CR_MUST cr_status cr_gpu_identity(const cr_device *dev, char *text, size_t capacity_bytes,
                                  cr_err *err);
/* Memory of a device for the other processes on its GPU (CUDA IPC). From lend to take_back they may open it, and it is not freed: what has
 * been lent and is released all the same, as when a run fails, stays until the process ends. */
typedef struct cr_gpu_loan {
    char allocation[64]; /* a cudaIpcMemHandle_t */
    size_t offset_bytes; /* in it */
} cr_gpu_loan;
CR_MUST cr_status cr_gpu_lend(cr_device *dev, const cr_mem *mem, cr_gpu_loan *out, cr_err *err);
void cr_gpu_take_back(cr_device *dev, const cr_mem *mem);
/* What another process lends. *base is for close, which comes when all that was queued with it has run. CR_EABSENT: it cannot be opened. */
CR_MUST cr_status cr_gpu_open_loan(cr_device *dev, const cr_gpu_loan *loan, cr_mem **base,
                                   cr_err *err);
CR_MUST cr_status cr_gpu_close_loan(cr_device *dev, cr_mem *base, cr_err *err);
/* Sizes of weights that products were asked for, and those whose products are cuBLASLt's; of the others all are croll's own
 * kernels'. */
typedef struct cr_gpu_products {
    int num_sizes, num_taken;
    int num_few; /* of all sizes: those whose few rows have a kernel of their own, with the same bits */
    int num_fitted;    /* algorithms of cuBLASLt for few rows beside those for many */
    char refusal[120]; /* why the first met that is not taken is not */
} cr_gpu_products;
cr_gpu_products cr_gpu_get_products(const cr_device *dev);

#endif
