/* memory.h -- for tests: host arrays as device memory (MEM), and where the host reads and writes device memory
 * (HOST, F32). The devices under test compute on memory of the host (cpu, far). */
#ifndef CR_TEST_MEMORY_H
#define CR_TEST_MEMORY_H

#include "kernels/memory.h"

#define MEM(host) cr_mem_of_host((void *)(uintptr_t)(host))
#define HOST(mem) ((char *)cr_host_view(mem))
#define F32(mem)  ((float *)cr_host_view(mem))

#endif
