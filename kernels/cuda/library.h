/* library.h -- products of activations and weights by cuBLASLt, as far as it keeps the promise that a row's bits do not
 * depend on the other rows.
 *
 * cuBLASLt promises that for no number of rows. So algorithms are asked for once a weight's sizes and types, with 8192 rows, without
 * workspace and without any way to split k; the first of them that passes a probe is kept for every number of rows. The probe
 * compares bytes: the same row alone, first and last among 2, 16, 17, 64, 257, 2048 and 8192 rows, as far as rows and products have 128 MiB
 * each. Sizes for which there is no such algorithm, for which a call of cuBLASLt fails before the first product, or whose probe finds a
 * difference, are left to the kernels of linear.cu for good, with a warning that says why.
 *
 * That algorithm, or linear.cu's kernel, says which bits a row has. Few rows may be made otherwise, if all of them have these bits in the
 * probe: up to CRI_FEW_ROWS rows by few.cu; else up to 1, 16, 64, 256 and 1024 rows by the algorithm that cuBLASLt has for as many.
 *
 * Threads: one caller, that of the device. Scratch: of the stream, for a bias that is not aligned to 16 bytes. The probe has numbers of its
 * own, whose sums are nothing but what rounding leaves, in a weight of its own: up to 384 MiB of device memory and the weight's bytes, for its time, once a size.
 */
#ifndef CR_CUDA_LIBRARY_H
#define CR_CUDA_LIBRARY_H

#include "kernels/cuda/product.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/gpu.h"

typedef struct cri_library cri_library;

/* With CROLL_CUDA_PRODUCTS=own it has few rows alone. CR_EUSAGE for a word but own and library. */
CR_MUST cr_status cri_library_open(cri_library **out, cr_err *err);
void cri_library_close(cri_library *library); /* NULL is fine; nothing of it may be queued */

/* Queues the product on the stream of dev, unless it is left to linear.cu: then *is_taken is false. CR_EIO: what was
 * accepted once is refused now; going on by other kernels would change bits. */
CR_MUST cr_status cri_library_product(cr_device *dev, cri_library *library, const char *op,
                                      const cri_product *p, bool *is_taken, cr_err *err);

/* The same of num products of the same rows, without addends, in one launch, where all of them are few.cu's; else nothing is queued. */
CR_MUST cr_status cri_library_few(cr_device *dev, cri_library *library, const char *op,
                                  const cri_product *p, int num, bool *is_taken, cr_err *err);

/* Of those that were asked; NULL is fine. */
cr_gpu_products cri_library_products(const cri_library *library);

#ifdef __cplusplus
}
#endif

#endif
