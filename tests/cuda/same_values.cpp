/* same_values.cpp -- compiles only if the names and values of the simulation's headers are those of the toolkit's: with a
 * toolkit these are its own, without one those of kernels/cuda/sim/include. Never run. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#define IS(name, value) static_assert((int)name == value, #name);
IS(cudaErrorInvalidValue, 1)
IS(cudaErrorMemoryAllocation, 2)
IS(cudaErrorInvalidConfiguration, 9)
IS(cudaErrorNotReady, 600)
IS(cudaErrorNotSupported, 801)
IS(cudaMemcpyHostToHost, 0)
IS(cudaMemcpyHostToDevice, 1)
IS(cudaMemcpyDeviceToHost, 2)
IS(cudaMemcpyDeviceToDevice, 3)
IS(cudaStreamNonBlocking, 1)
IS(cudaEventDisableTiming, 2)
IS(cudaFuncAttributeMaxDynamicSharedMemorySize, 8)
IS(cudaStreamCaptureModeThreadLocal, 1)
IS(MAJOR_VERSION, 0)
IS(PATCH_LEVEL, 2)
IS(ncclRemoteError, 6)
IS(ncclInProgress, 7)
IS(ncclInt32, 2)
IS(ncclFloat16, 6)
IS(ncclFloat32, 7)
IS(ncclFloat64, 8)
IS(ncclBfloat16, 9)
IS(ncclSum, 0)
IS(ncclProd, 1)
IS(ncclMax, 2)
IS(ncclMin, 3)
IS(CUBLAS_STATUS_INVALID_VALUE, 7)
IS(CUBLAS_STATUS_NOT_SUPPORTED, 15)
IS(CUBLAS_OP_T, 1)
IS(CUBLAS_COMPUTE_32F, 68)
IS(CUDA_R_32F, 0)
IS(CUDA_R_16F, 2)
IS(CUDA_R_16BF, 14)
IS(CUBLASLT_MATMUL_DESC_TRANSA, 3)
IS(CUBLASLT_MATMUL_DESC_TRANSB, 4)
IS(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)
IS(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)
IS(CUBLASLT_ALGO_CONFIG_ID, 0)
IS(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2)
IS(CUBLASLT_ALGO_CONFIG_STAGES_ID, 6)
static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "size of an algorithm");
static_assert(sizeof(ncclUniqueId) == 128, "size of an id");
